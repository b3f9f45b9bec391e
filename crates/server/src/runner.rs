//! Routes of runners: their protocol in, engine facts out. Reports are judged by the engine, never here.

use crate::auth::Machine;
use crate::follow::{Feed, stream};
use crate::problem::Answer;
use crate::routes::{Asked, Path, Query, id};
use crate::{Shared, now_ms};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse;
use engine::runner::{Fact, Introduction, What};
use engine::store::Hint;
use engine::store::log::Chunk;
use engine::store::log_file::{Frame, LogStream};
use model::job::{Frost, JobReason};
use model::spec::OnLostControl;
use model::{InstanceId, JobId, Timestamp};
use serde::Deserialize;
use wire::Base64;
use wire::runner as protocol;

pub(crate) async fn register(
    State(house): State<Shared>,
    machine: Machine,
    asked: Asked<protocol::Register>,
) -> Answer<Json<protocol::Registered>> {
    let who = asked.value;
    let introduction = Introduction {
        name: who.name,
        nonce: who.nonce,
        version: who.version,
        host: who.host,
        containment: who.containment,
    };
    let instance = house.engine.register(machine.0.id, introduction).await?;
    let desired = document(&house, instance.id).await?;
    Ok(Json(protocol::Registered { session: instance.session, control_plane_id: control_id(&house), desired }))
}

#[derive(Debug, Deserialize)]
pub(crate) struct Session {
    session: i64,
}

pub(crate) async fn desired(State(house): State<Shared>, machine: Machine, Query(query): Query<Session>) -> Answer {
    let instance = machine.0.id;
    Ok(stream(&house, move |house, feed| async move {
        house.engine.house.presence.stream(instance, true);
        tell(&house, &feed, instance, query.session).await;
        house.engine.house.presence.stream(instance, false);
        if !*house.closing.borrow()
            && let Err(failure) = house.engine.stream_closed(instance).await
        {
            tracing::warn!(%failure, %instance, "a closed stream could not be noted");
        }
    }))
}

async fn tell(house: &Shared, feed: &Feed, instance: InstanceId, session: i64) {
    let mut bell = house.hub.follow(Hint::Instance(instance));
    let mut told = -1;
    loop {
        let desired = match house.engine.desired(instance).await {
            Ok(desired) => desired,
            Err(failure) => return tracing::warn!(%failure, %instance, "its desired document could not be read"),
        };
        if desired.instance.session != session {
            let _ =
                feed.send(sse::Event::default().event("superseded").data(desired.instance.session.to_string())).await;
            return;
        }
        if desired.instance.desired_version > told {
            told = desired.instance.desired_version;
            let data = serde_json::to_string(&wired(desired)).expect("a document is plain data");
            if feed.send(sse::Event::default().id(told.to_string()).event("desired").data(data)).await.is_err() {
                return;
            }
        }
        if !feed.wait(bell.rung()).await {
            return;
        }
    }
}

pub(crate) async fn heartbeat(
    State(house): State<Shared>,
    machine: Machine,
    asked: Asked<protocol::Heartbeat>,
) -> Answer<Json<protocol::Beat>> {
    let (instance, beat) = (machine.0, asked.value);
    house.engine.heartbeat(&instance, beat.observed_version, Timestamp(now_ms())).await?;
    Ok(Json(protocol::Beat {
        control_plane_id: control_id(&house),
        desired_version: instance.desired_version,
        session_current: instance.session == beat.session,
    }))
}

pub(crate) async fn report(
    State(house): State<Shared>,
    machine: Machine,
    asked: Asked<protocol::ReportBatch>,
) -> Answer<Json<protocol::ReportAnswer>> {
    let (instance, batch) = (machine.0, asked.value);
    house.engine.heartbeat(&instance, instance.observed_version, Timestamp(now_ms())).await?;
    house.engine.house.presence.waited(instance.id, batch.durable_waits);
    let facts = batch.facts.into_iter().filter_map(fact).collect();
    let chunks = batch.logs.into_iter().map(chunk).collect();
    let taken = house.engine.report(&instance, facts, chunks).await?;
    let refused = taken.refused.into_iter().map(|(job, epoch, refused)| protocol::RefusedFact {
        job,
        epoch,
        code: refused.code().to_owned(),
        message: refused.to_string(),
    });
    Ok(Json(protocol::ReportAnswer {
        log_offsets: taken.log_offsets,
        refused: refused.collect(),
        session_current: instance.session == batch.session,
    }))
}

pub(crate) async fn blob(State(house): State<Shared>, machine: Machine, Path(hash): Path<String>) -> Answer<Body> {
    let blob = house.engine.open_blob(machine.0.org, &hash)?;
    Ok(Body::from_stream(blob.into_stream()))
}

#[derive(Debug, Deserialize)]
pub(crate) struct ArtifactQuery {
    epoch: i64,
    path: String,
}

pub(crate) async fn artifact(
    State(house): State<Shared>,
    machine: Machine,
    Path(job): Path<String>,
    Query(query): Query<ArtifactQuery>,
    body: Body,
) -> Answer<StatusCode> {
    let job: JobId = id("job", &job)?;
    let artifact = house.engine.announce_artifact(machine.0.id, job, query.epoch, query.path).await?;
    let upload = house.engine.blobs.receive(body.into_data_stream(), engine::artifact::RUN_BYTES).await?;
    house.engine.keep_artifact(&artifact, upload).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn control_id(house: &Shared) -> String {
    house.engine.house.installation.control_id.clone()
}

async fn document(house: &Shared, instance: InstanceId) -> Answer<protocol::Desired> {
    Ok(wired(house.engine.desired(instance).await?))
}

fn wired(desired: engine::desired::Desired) -> protocol::Desired {
    protocol::Desired {
        version: desired.instance.desired_version,
        instance: desired.instance.id,
        jobs: desired.job.into_iter().map(wired_job).collect(),
        kept_workdirs: desired.kept_workdirs,
        shutdown: desired.shutdown,
    }
}

fn wired_job(desired: engine::desired::DesiredJob) -> protocol::DesiredJob {
    let engine::desired::DesiredJob { job, run, workdir, secrets, inline, log_offset } = desired;
    let state = match (job.stop_asked_at, job.abort) {
        (Some(_), true) => protocol::DesiredState::Aborted,
        (Some(_), false) => protocol::DesiredState::Stopped,
        (None, _) if matches!(job.frost, Frost::Freezing | Frost::Frozen) => protocol::DesiredState::Frozen,
        (None, _) => protocol::DesiredState::Running,
    };
    let spec = run.spec;
    let files = spec.files.into_iter().map(|file| protocol::SyncFile {
        inline: inline.get(&file.hash).map(|bytes| Base64(bytes.clone())),
        path: file.path,
        hash: file.hash,
        size: file.size,
        mode: file.mode,
    });
    protocol::DesiredJob {
        job: job.id,
        run: job.run,
        epoch: job.epoch,
        state,
        answer: matches!(job.frost, Frost::Freezing | Frost::Thawing),
        workdir,
        working_dir: spec.working_dir,
        command: match spec.command {
            model::spec::Command::Shell(text) => protocol::Command::Shell(text),
            model::spec::Command::Argv(argv) => protocol::Command::Argv(argv),
        },
        env: spec.env,
        secrets: secrets.into_iter().map(|(name, value)| (name, protocol::Secret(value))).collect(),
        files: files.collect(),
        artifacts: spec.artifacts,
        max_duration_ms: spec.max_duration_ms.map(|max| (max - run.active_ms).max(1)),
        stop_duration_ms: spec.stop_duration_ms,
        merge: spec.merge,
        on_lost_control: match spec.on_lost_control {
            OnLostControl::Finish => protocol::OnLostControl::Finish,
            OnLostControl::Stop => protocol::OnLostControl::Stop,
        },
        log_offset,
    }
}

fn fact(fact: protocol::Fact) -> Option<Fact> {
    let what = match fact.what {
        protocol::What::Accepted => What::Accepted,
        protocol::What::SyncComplete { fetched_blobs, .. } => What::SyncComplete { blobs: fetched_blobs },
        protocol::What::Started => What::Started,
        protocol::What::Froze => What::Froze,
        protocol::What::Thawed => What::Thawed,
        protocol::What::Ended { exit_code, signal, cause, message, final_offset, active_ms, .. } => What::Ended {
            reason: reason(cause, exit_code, signal),
            exit_code,
            signal,
            message,
            final_offset,
            active_ms,
        },
        protocol::What::Unknown => return None, // of a newer runner: nothing we could decide upon
    };
    Some(Fact { job: fact.job, epoch: fact.epoch, what })
}

fn reason(cause: Option<protocol::EndCause>, exit_code: Option<i32>, signal: Option<i32>) -> JobReason {
    use protocol::EndCause as Cause;
    match cause {
        None if exit_code == Some(0) && signal.is_none() => JobReason::DoneByRunner,
        None => JobReason::ExitedWithError,
        Some(Cause::Stopped) => JobReason::TerminatedByServer,
        Some(Cause::Aborted) => JobReason::AbortedByUser,
        Some(Cause::MaxDuration) => JobReason::MaxDuration,
        Some(Cause::OutOfMemory | Cause::DiskFull) => JobReason::LimitsExceeded,
        Some(Cause::ControlLost) => JobReason::ControlLost,
        Some(Cause::Interrupted) => JobReason::Interrupted,
        Some(Cause::SyncFailed | Cause::ExecutorError | Cause::Unknown) => JobReason::ExecutorError,
    }
}

fn chunk(chunk: protocol::LogChunk) -> Chunk {
    let frames = chunk.frames.into_iter().map(|frame| Frame {
        stream: match frame.stream {
            protocol::Stream::Stdout => LogStream::Stdout,
            protocol::Stream::Stderr => LogStream::Stderr,
            protocol::Stream::Runner | protocol::Stream::Unknown => LogStream::Runner,
        },
        at: Timestamp(frame.at_ms),
        data: frame.data.0,
    });
    Chunk { job: chunk.job, epoch: chunk.epoch, offset: chunk.offset, frames: frames.collect() }
}
