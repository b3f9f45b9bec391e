//! Routes of runners: their protocol in, engine facts out. Reports are judged by the engine, never here.

use crate::auth::{Machine, Named};
use crate::follow::{Feed, stream};
use crate::input::Pieces;
use crate::problem::HandlerResult;
use crate::routes::{Asked, Path, Query, id};
use crate::{Shared, now_ms};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse;
use engine::artifact::Announcement;
use engine::artifact::EntryKind;
use engine::durable::StepClaim;
use engine::feature::FeatureSaid;
use engine::log::{Frame, LogStream};
use engine::orphan::{Unlisted, UnlistedJob};
use engine::runner::{Fact, Introduction, LogReach, Output, StepChunk, What};
use engine::{Hint, Installation};
use model::feature::{Feature, FeatureState, Features};
use model::job::{FreezeState, JobReason, LifecycleError};
use model::spec::{BlobSource, Network, OnLostControl};
use model::{InstanceId, Refused, Timestamp};
use serde::Deserialize;
use std::collections::BTreeMap;
use wire::Base64;
use wire::pack;
use wire::runner as protocol;

pub(crate) async fn register(
    State(state): State<Shared>,
    named: Named,
    asked: Asked<protocol::Register>,
) -> HandlerResult<Json<protocol::Registered>> {
    let who = asked.value;
    let instance = state.engine.listed(introduced(named.0, &who)).await?;
    let introduction = Introduction {
        name: who.name,
        nonce: who.nonce,
        version: who.version,
        host: who.host,
        containment: who.containment,
        sandbox: who.sandbox,
    };
    let instance = state.engine.register(instance.id, introduction).await?;
    let desired = document(&state, instance.id).await?;
    Ok(Json(protocol::Registered { session: instance.session, control_plane_id: control_id(&state), desired }))
}

/// What a runner says of itself and of its jobs, should no row know them.
fn introduced(name: String, who: &protocol::Register) -> Unlisted {
    let job = |known: &protocol::KnownJob| {
        let stub = who.stubs.iter().find(|stub| (stub.job, stub.epoch) == (known.job, known.epoch));
        UnlistedJob {
            job: known.job,
            epoch: known.epoch,
            started: stub.is_some_and(|stub| stub.started),
            ended: known.ended,
            log_from: stub.map_or(0, |stub| stub.log_from.max(0)),
            stub: stub.map(|stub| stub.stub.clone()),
        }
    };
    Unlisted {
        name,
        nonce: who.nonce.clone(),
        host: who.host.clone(),
        version: who.version.clone(),
        jobs: who.jobs.iter().map(job).collect(),
        seen_at: Timestamp(0),
    }
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
            let data = serde_json::to_string(&wired(state, desired)).expect("a document is plain data");
            debug_assert!(data.len() <= protocol::DOCUMENT_BYTES, "a document of {} bytes", data.len());
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
    let refused = taken.refused.into_iter().map(|no| protocol::RefusedFact {
        job: no.job,
        epoch: no.epoch,
        step: no.step,
        code: no.why.code().to_owned(),
        message: no.why.to_string(),
    });
    let reach = |reach: LogReach| {
        let LogReach { job, epoch, step, offset } = reach;
        protocol::LogReach { job, epoch, step, offset }
    };
    Ok(Json(protocol::ReportAnswer {
        log_offsets: taken.log_offsets.into_iter().map(reach).collect(),
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
    let packed = engine::blocking(move || {
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

/// A file that a step has left for another workdir.
pub(crate) async fn put_blob(
    State(state): State<Shared>,
    machine: Machine,
    Path(hash): Path<String>,
    body: Pieces,
) -> HandlerResult<StatusCode> {
    crate::blob::receive(&state, machine.0.org, &hash, body).await
}

/// A folder of such files, behind everything that it names.
pub(crate) async fn put_tree(
    State(state): State<Shared>,
    machine: Machine,
    Path(hash): Path<String>,
    body: Pieces,
) -> HandlerResult<StatusCode> {
    crate::blob::receive_tree(&state, machine.0.org, &hash, body).await
}

/// A folder that this machine was asked for was sent, or could not be.
pub(crate) async fn snapshot(
    State(state): State<Shared>,
    machine: Machine,
    Json(said): Json<protocol::SnapshotTaken>,
) -> HandlerResult<StatusCode> {
    let why = || said.error.clone().unwrap_or_else(|| "its runner did not say why".to_owned());
    let taken = said.tree.clone().ok_or_else(why);
    state.engine.snapshot_taken(machine.0.id, said.snapshot, taken).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A feature of this machine was installed or removed, or could not be.
pub(crate) async fn feature(
    State(state): State<Shared>,
    machine: Machine,
    Json(said): Json<protocol::FeatureDone>,
) -> HandlerResult<StatusCode> {
    let done = said.error.map_or(Ok(()), Err);
    state.engine.feature_said(machine.0.id, FeatureSaid { name: said.name, request: said.request, done }).await?;
    Ok(StatusCode::NO_CONTENT)
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
    Ok(wired(state, state.engine.desired(instance).await?))
}

fn wired(state: &Shared, desired: engine::desired::Desired) -> protocol::Desired {
    let features =
        desired.instance.features.iter().filter_map(|it| wired_feature(&state.engine.context.config.features, it));
    protocol::Desired {
        features: features.collect(),
        version: desired.instance.desired_version,
        instance: desired.instance.id,
        jobs: desired.job.into_iter().map(|job| wired_job(&state.engine.context.installation, job)).collect(),
        kept_workdirs: desired.kept_workdirs,
        snapshots: desired
            .instance
            .sends
            .into_iter()
            .map(|(snapshot, workdir)| protocol::DesiredSnapshot { snapshot, workdir })
            .collect(),
        shutdown: desired.shutdown,
    }
}

/// What its runner is asked to do with a feature; none: nothing. Values of `pass` come from this process's environment.
fn wired_feature(settings: &Features, it: &Feature) -> Option<protocol::DesiredFeature> {
    let known = settings.get(&it.name);
    let (act, install, within_ms) = match it.state {
        FeatureState::Installing => {
            let known = known.filter(|known| engine::feature::checksum(known) == it.checksum)?;
            (protocol::FeatureAct::Install, known.install.clone(), known.install_ms)
        }
        FeatureState::Removing => (protocol::FeatureAct::Remove, String::new(), it.remove_ms),
        FeatureState::Installed | FeatureState::Broken | FeatureState::Left => return None,
    };
    let passed = known.into_iter().flat_map(|known| &known.pass);
    let secrets = passed.filter_map(|name| Some((name.clone(), protocol::Secret(std::env::var(name).ok()?))));
    Some(protocol::DesiredFeature {
        name: it.name.clone(),
        checksum: it.checksum.clone(),
        request: it.request,
        act,
        install,
        remove: it.remove.clone(),
        env: known.map_or_else(Default::default, |known| known.env.clone()),
        secrets: secrets.collect(),
        within_ms,
    })
}

fn wired_job(installation: &Installation, desired: engine::desired::DesiredJob) -> protocol::DesiredJob {
    let engine::desired::DesiredJob {
        job,
        run,
        content,
        workdir,
        secrets,
        limits,
        files,
        base,
        source,
        inline,
        steps,
        closed,
        stub,
    } = desired;
    let state = match (job.stop_asked_at, job.abort) {
        (Some(_), true) => protocol::DesiredState::Aborted,
        (Some(_), false) => protocol::DesiredState::Stopped,
        (None, _) if matches!(job.freeze, FreezeState::Freezing | FreezeState::Frozen) => {
            protocol::DesiredState::Frozen
        }
        (None, _) => protocol::DesiredState::Running,
    };
    let spec = run.spec;
    let clean = spec.call.as_ref().is_some_and(|part| part.backend().is_some());
    let claim =
        |step| StepClaim { org: run.org, run: run.id, attempt: job.attempt, job: job.id, epoch: job.epoch, step };
    let token = |step: &engine::desired::DesiredStep| {
        (!step.by_model && !clean).then(|| protocol::Secret(claim(step.step).token(installation)))
    };
    let steps = steps.into_iter().map(|step| wired_step(token(&step), step, &inline)).collect();
    let files = files.map(|tree| protocol::SyncTree {
        // The whole tree, or nothing of it.
        inline: match inline.contains_key(&tree.hash) {
            true => inline.into_iter().map(|(hash, bytes)| (hash, Base64(bytes))).collect(),
            false => BTreeMap::new(),
        },
        hash: tree.hash,
        plain_modes: clean,
    });
    protocol::DesiredJob {
        job: job.id,
        run: job.run,
        epoch: job.epoch,
        state,
        answer: matches!(job.freeze, FreezeState::Freezing | FreezeState::Thawing),
        workdir,
        env: content.env,
        secrets: wired_secrets(secrets),
        files,
        base: base.map(|tree| protocol::SyncTree { hash: tree.hash, inline: BTreeMap::new(), plain_modes: clean }),
        source: match source {
            BlobSource::Direct => protocol::BlobSource::Direct,
            BlobSource::ControlPlane => protocol::BlobSource::ControlPlane,
        },
        init: content.init.zip(spec.init_checksum).map(|(script, checksum)| protocol::Init { script, checksum }),
        limits: protocol::Limits { cpu_milli: limits.cpu_milli, memory_bytes: limits.memory_bytes },
        attempt: job.attempt,
        stop_duration_ms: spec.stop_duration_ms,
        on_lost_control: match spec.on_lost_control {
            OnLostControl::Finish => protocol::OnLostControl::Finish,
            OnLostControl::Stop => protocol::OnLostControl::Stop,
        },
        steps,
        closed,
        stub: Some(stub),
        clean,
    }
}

fn restored(hash: String) -> protocol::SyncTree {
    protocol::SyncTree { hash, inline: BTreeMap::new(), plain_modes: false }
}

fn wired_secrets(secrets: BTreeMap<String, String>) -> BTreeMap<String, protocol::Secret> {
    secrets.into_iter().map(|(name, value)| (name, protocol::Secret(value))).collect()
}

fn wired_step(
    steps_token: Option<protocol::Secret>,
    step: engine::desired::DesiredStep,
    inline: &BTreeMap<String, Vec<u8>>,
) -> protocol::DesiredStep {
    let stdin = step.stdin.map(|stdin| protocol::Stdin {
        inline: inline.get(&stdin.hash).map(|bytes| Base64(bytes.clone())),
        hash: stdin.hash,
        size: stdin.size,
    });
    protocol::DesiredStep {
        step: step.step,
        state: if step.stopped { protocol::DesiredState::Stopped } else { protocol::DesiredState::Running },
        working_dir: step.working_dir,
        command: match step.command {
            model::spec::Command::Shell(text) => protocol::Command::Shell(text),
            model::spec::Command::Script(entries) => protocol::Command::Shell(model::spec::script(&entries)),
            model::spec::Command::Argv(argv) => protocol::Command::Argv(argv),
        },
        env: step.env,
        secrets: wired_secrets(step.secrets),
        stdin,
        restore: step.restore.into_iter().map(restored).collect(),
        keep: step.keep,
        artifacts: step.artifacts,
        max_duration_ms: step.max_duration_ms,
        merge: step.merge,
        tail: step.tail,
        answers: step.answers,
        server: step.server.map(|server| protocol::DesiredServer { name: server.name, argv: server.argv }),
        log_offset: step.log_offset,
        steps_token,
        sandbox: step.sandbox.map(|sandbox| protocol::Sandbox { network: sandbox.network == Network::Host }),
    }
}

fn fact(fact: protocol::Fact) -> Option<Fact> {
    let what = match fact.what {
        protocol::What::Accepted => What::Accepted,
        protocol::What::SyncComplete { fetched_blobs, .. } => What::SyncComplete { blobs: fetched_blobs },
        protocol::What::SourceFailed { why } => What::SourceFailed { why },
        protocol::What::Started { unenforced } => What::Started { unenforced },
        protocol::What::Initialised { checksum } => What::Initialised { checksum },
        protocol::What::Froze => What::Froze,
        protocol::What::Thawed => What::Thawed,
        protocol::What::Closed { cause, message } => What::Closed {
            reason: cause.map_or(JobReason::DoneByRunner, |cause| reason(Some(cause), None, None)),
            message,
            lifecycle_error: lifecycle_error(cause, false),
        },
        protocol::What::Ended {
            exit_code,
            signal,
            cause,
            message,
            final_offset,
            active_ms,
            started,
            ended_ago_ms,
            output,
            stdout_tail,
            kept,
        } => {
            What::Ended {
                reason: reason(cause, exit_code, signal),
                // The command's own word is not how it went.
                exit_code: exit_code.filter(|_| cause != Some(protocol::EndCause::InvalidOutput)),
                signal,
                message,
                lifecycle_error: lifecycle_error(cause, started),
                final_offset,
                active_ms,
                ended_ago_ms: ended_ago_ms.max(0),
                output: output.map(|output| match output {
                    protocol::Output::Json(text) => Output::Json(text),
                    protocol::Output::Artifact { path, size } => Output::Artifact { path, size },
                }),
                stdout_tail: stdout_tail.map(|tail| tail.0),
                started,
                kept,
            }
        }
        protocol::What::Unknown => return None, // of a newer runner: nothing we could decide upon
    };
    Some(Fact { job: fact.job, epoch: fact.epoch, step: fact.step, what })
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
        Some(Cause::InvalidOutput) => JobReason::InvalidOutput,
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
        Cause::InvalidOutput | Cause::ExecutorError | Cause::Unknown => None,
    }
}

fn chunk(chunk: protocol::LogChunk) -> StepChunk {
    let frames = chunk.frames.into_iter().map(|frame| Frame {
        stream: match frame.stream {
            protocol::Stream::Stdout => LogStream::Stdout,
            protocol::Stream::Stderr => LogStream::Stderr,
            protocol::Stream::Runner | protocol::Stream::Unknown => LogStream::Runner,
        },
        at: Timestamp(frame.at_ms),
        data: frame.data.0,
    });
    let (job, epoch, step) = (chunk.job, chunk.epoch, chunk.step);
    StepChunk { job, epoch, step, offset: chunk.offset, frames: frames.collect() }
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
        let job = wired(&world.state, world.engine.desired(instance).await.unwrap()).jobs.pop().unwrap();
        assert_eq!(job.limits, protocol::Limits { cpu_milli: Some(500), memory_bytes: Some(64 << 20) });
        let [step] = &job.steps[..] else { panic!("a plain task is a job with one step: {job:?}") };
        assert_eq!((job.attempt, job.closed, step.stdin.is_none(), step.step.number), (1, true, true, 1));
        let script = model::spec::script(&["false".to_owned(), "echo it's".to_owned()]);
        assert_eq!(step.command, protocol::Command::Shell(script));
        assert_eq!(got.body["command"], "false\necho it's", "people see what they wrote");
    }
}
