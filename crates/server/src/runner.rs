//! Routes of runners: their protocol in, engine facts out. Reports are judged by the engine, never here.

use crate::auth::Machine;
use crate::follow::{Feed, stream};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Path, Query, id};
use crate::{Shared, now_ms};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse;
use engine::artifact::Announcement;
use engine::runner::{Fact, Introduction, What};
use engine::store::Hint;
use engine::store::artifact::EntryKind;
use engine::store::log::Chunk;
use engine::store::log_file::{Frame, LogStream};
use model::job::{FreezeState, JobReason, LifecycleError};
use model::spec::OnLostControl;
use model::{InstanceId, Refused, Timestamp};
use serde::Deserialize;
use std::collections::BTreeMap;
use wire::Base64;
use wire::pack;
use wire::runner as protocol;

pub(crate) async fn register(
    State(state): State<Shared>,
    machine: Machine,
    asked: Asked<protocol::Register>,
) -> HandlerResult<Json<protocol::Registered>> {
    let who = asked.value;
    let introduction = Introduction {
        name: who.name,
        nonce: who.nonce,
        version: who.version,
        host: who.host,
        containment: who.containment,
    };
    let instance = state.engine.register(machine.0.id, introduction).await?;
    let desired = document(&state, instance.id).await?;
    Ok(Json(protocol::Registered { session: instance.session, control_plane_id: control_id(&state), desired }))
}

#[derive(Debug, Deserialize)]
pub(crate) struct Session {
    session: i64,
}

pub(crate) async fn desired(
    State(state): State<Shared>,
    machine: Machine,
    Query(query): Query<Session>,
) -> HandlerResult {
    let instance = machine.0.id;
    Ok(stream(&state, move |state, feed| async move {
        state.engine.context.presence.stream(instance, true);
        tell(&state, &feed, instance, query.session).await;
        state.engine.context.presence.stream(instance, false);
        if !*state.closing.borrow()
            && let Err(failure) = state.engine.stream_closed(instance).await
        {
            tracing::warn!(%failure, %instance, "a closed stream could not be noted");
        }
    }))
}

async fn tell(state: &Shared, feed: &Feed, instance: InstanceId, session: i64) {
    let mut bell = state.hub.follow(Hint::Instance(instance));
    let mut told = -1;
    loop {
        let desired = match state.engine.desired(instance).await {
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
    State(state): State<Shared>,
    machine: Machine,
    asked: Asked<protocol::Heartbeat>,
) -> HandlerResult<Json<protocol::Beat>> {
    let (instance, beat) = (machine.0, asked.value);
    state.engine.heartbeat(&instance, beat.observed_version, Timestamp(now_ms())).await?;
    Ok(Json(protocol::Beat {
        control_plane_id: control_id(&state),
        desired_version: instance.desired_version,
        session_current: instance.session == beat.session,
    }))
}

pub(crate) async fn report(
    State(state): State<Shared>,
    machine: Machine,
    asked: Asked<protocol::ReportBatch>,
) -> HandlerResult<Json<protocol::ReportAnswer>> {
    let (instance, batch) = (machine.0, asked.value);
    state.engine.heartbeat(&instance, instance.observed_version, Timestamp(now_ms())).await?;
    state.engine.context.presence.waited(instance.id, batch.durable_waits);
    let facts = batch.facts.into_iter().filter_map(fact).collect();
    let chunks = batch.logs.into_iter().map(chunk).collect();
    let taken = state.engine.report(&instance, facts, chunks).await?;
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

pub(crate) async fn blob(
    State(state): State<Shared>,
    machine: Machine,
    Path(hash): Path<String>,
) -> HandlerResult<Body> {
    let blob = state.engine.open_blob(machine.0.org, &hash)?;
    Ok(Body::from_stream(blob.into_stream()))
}

/// Small blobs together, one after the other; those that are larger, or not here, are left out, and the runner asks for each by itself.
pub(crate) async fn blobs(
    State(state): State<Shared>,
    machine: Machine,
    asked: Asked<protocol::BlobsAsked>,
) -> HandlerResult<Body> {
    let hashes = asked.value.hashes;
    if hashes.len() > pack::PACK_BLOBS {
        return Err(Refused::TooLarge { what: "the list of hashes", limit: "1,000".into() }.into());
    }
    let (engine, org) = (state.engine.clone(), machine.0.org);
    let packed = engine::store::blob::blocking(move || {
        let mut packed = Vec::new();
        for hash in &hashes {
            let Ok(blob) = engine.open_blob(org, hash) else { continue };
            if blob.size <= pack::BLOB_BYTES && packed.len() as i64 + blob.size <= 2 * pack::PACK_BYTES as i64 {
                pack::push(&mut packed, false, hash, &blob.read_all()?);
            }
        }
        Ok(packed)
    });
    Ok(Body::from(packed.await?))
}

#[derive(Debug, Deserialize)]
pub(crate) struct ArtifactQuery {
    epoch: i64,
    path: String,
    kind: String,
    size: i64,
    #[serde(default)]
    mode: u32,
    #[serde(default)]
    target: String,
}

pub(crate) async fn artifact(
    State(state): State<Shared>,
    machine: Machine,
    Path(job): Path<String>,
    Query(query): Query<ArtifactQuery>,
    body: Body,
) -> HandlerResult<StatusCode> {
    let what = match query.kind.as_str() {
        "file" => EntryKind::File { mode: query.mode },
        "folder" => EntryKind::Folder,
        "link" => EntryKind::Link { target: query.target },
        other => return Err(Refused::invalid("kind", format!("`{other}` is not file, folder or link")).into()),
    };
    let is_file = matches!(what, EntryKind::File { .. });
    let size = if is_file { query.size } else { 0 };
    let new = Announcement { job: id("job", &job)?, epoch: query.epoch, path: query.path, size, what };
    let artifact = state.engine.announce_artifact(machine.0.id, new).await?;
    if is_file {
        let upload = state.engine.blobs.receive(body.into_data_stream(), size).await?;
        state.engine.keep_artifact(&artifact, upload).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

fn control_id(state: &Shared) -> String {
    state.engine.context.installation.control_id.clone()
}

async fn document(state: &Shared, instance: InstanceId) -> HandlerResult<protocol::Desired> {
    Ok(wired(state.engine.desired(instance).await?))
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
        (None, _) if matches!(job.freeze, FreezeState::Freezing | FreezeState::Frozen) => {
            protocol::DesiredState::Frozen
        }
        (None, _) => protocol::DesiredState::Running,
    };
    let spec = run.spec;
    let stdin = spec.stdin.map(|stdin| protocol::Stdin {
        inline: inline.get(&stdin.hash).map(|bytes| Base64(bytes.clone())),
        hash: stdin.hash,
        size: stdin.size,
    });
    let files = spec.files.map(|tree| protocol::SyncTree {
        // The whole tree, or nothing of it.
        inline: match inline.contains_key(&tree.hash) {
            true => inline.into_iter().map(|(hash, bytes)| (hash, Base64(bytes))).collect(),
            false => BTreeMap::new(),
        },
        hash: tree.hash,
    });
    protocol::DesiredJob {
        job: job.id,
        run: job.run,
        epoch: job.epoch,
        state,
        answer: matches!(job.freeze, FreezeState::Freezing | FreezeState::Thawing),
        workdir,
        working_dir: spec.working_dir,
        command: match spec.command {
            model::spec::Command::Shell(text) => protocol::Command::Shell(text),
            model::spec::Command::Script(entries) => protocol::Command::Shell(model::spec::script(&entries)),
            model::spec::Command::Argv(argv) => protocol::Command::Argv(argv),
        },
        env: spec.env,
        secrets: secrets.into_iter().map(|(name, value)| (name, protocol::Secret(value))).collect(),
        files,
        stdin,
        limits: protocol::Limits { cpu_milli: spec.resources.cpu_milli, memory_bytes: spec.resources.memory_bytes },
        attempt: job.attempt,
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
        protocol::What::Started { unenforced } => What::Started { unenforced },
        protocol::What::Froze => What::Froze,
        protocol::What::Thawed => What::Thawed,
        protocol::What::Ended { exit_code, signal, cause, message, final_offset, active_ms, started, ended_ago_ms } => {
            What::Ended {
                reason: reason(cause, exit_code, signal),
                exit_code,
                signal,
                message,
                lifecycle_error: lifecycle_error(cause, started),
                final_offset,
                active_ms,
                ended_ago_ms: ended_ago_ms.max(0),
            }
        }
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
        Some(Cause::SyncFailed | Cause::KeeperDied | Cause::ExecutorError | Cause::Unknown) => JobReason::ExecutorError,
    }
}

/// What the allocation fails of (R135, R136). A disk that is full before the command starts has no room for its files.
fn lifecycle_error(cause: Option<protocol::EndCause>, started: bool) -> Option<LifecycleError> {
    use protocol::EndCause as Cause;
    match cause? {
        Cause::SyncFailed => Some(LifecycleError::SyncFailed),
        Cause::DiskFull if !started => Some(LifecycleError::SyncFailed),
        Cause::KeeperDied => Some(LifecycleError::KeeperDied),
        Cause::ControlLost => Some(LifecycleError::ControlLost),
        Cause::Interrupted => Some(LifecycleError::Interrupted),
        Cause::Stopped | Cause::Aborted | Cause::MaxDuration | Cause::OutOfMemory | Cause::DiskFull => None,
        Cause::ExecutorError | Cause::Unknown => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::World;
    use serde_json::json;

    #[tokio::test]
    async fn limits_commands_and_attempt_travel_with_the_job() {
        let world = World::new(true).await;
        let resources = json!({ "cpu_milli": 500, "memory_bytes": 64 << 20 });
        let body = json!({ "commands": ["false", "echo it's"], "resources": resources, "start": true });
        let got = world.submit(&world.admin, body).await;
        let instance: InstanceId = got.body["instance"].as_str().unwrap().parse().unwrap();
        let job = wired(world.engine.desired(instance).await.unwrap()).jobs.pop().unwrap();
        assert_eq!(job.limits, protocol::Limits { cpu_milli: Some(500), memory_bytes: Some(64 << 20) });
        assert_eq!((job.attempt, job.stdin.is_none()), (1, true));
        let script = model::spec::script(&["false".to_owned(), "echo it's".to_owned()]);
        assert_eq!(job.command, protocol::Command::Shell(script));
        assert_eq!(got.body["command"], "false\necho it's", "people see what they wrote");
    }
}
