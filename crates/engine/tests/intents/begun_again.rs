//! R146: a failed workflow of each intent is begun again as another one, which comes to its end. What has not failed is not.

use crate::bench::{Bench, now, settings, spec};
use crate::cleanups::{forgotten, manifest_of, written};
use crate::holds::finished;
use crate::machines::Plan;
use crate::snapshots;
use adapters::fake::{Call, Fate};
use engine::Config;
use engine::workflow::WorkflowRender;
use model::instance::InstanceStatus;
use model::manifest::ManifestStatus;
use model::run::RunStatus;
use model::snapshot::SnapshotStatus;
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE};
use model::workflow::{Intent, WorkflowStatus};
use model::{Failure, Refused, TroubleKind, WorkflowId};
use std::sync::Arc;

fn retried(bench: &Bench, id: WorkflowId) -> Result<WorkflowId, Failure> {
    let shown: WorkflowRender = Arc::new(|workflow| workflow.id.to_string().into_bytes());
    let answer = now(bench.engine.retry_workflow(bench.org, id, None, shown))?;
    Ok(String::from_utf8(answer.body).unwrap().parse().unwrap())
}

/// Refused while it has not failed, and begun again as another one when it has.
#[track_caller]
fn begun_again(bench: &mut Bench, id: WorkflowId) -> WorkflowId {
    let before = now(bench.engine.workflow(bench.org, id)).unwrap();
    if before.status != WorkflowStatus::Failed {
        let refused = retried(bench, id).unwrap_err();
        assert!(refused.to_string().contains(&format!("{id} is {}", before.status)), "{refused}");
        written(bench, move |tx| {
            let mut workflow = store::workflow::find(tx, id).unwrap().unwrap();
            workflow.status = WorkflowStatus::Failed;
            store::workflow::save(tx, &workflow).unwrap();
        });
    }
    let begun = retried(bench, id).unwrap();
    let after = now(bench.engine.workflow(bench.org, begun)).unwrap();
    assert_ne!(begun, id, "a failed one is never changed");
    assert_eq!(after.intent, before.intent);
    assert_ne!(after.manifest, before.manifest);
    begun
}

fn status(bench: &Bench, id: WorkflowId) -> WorkflowStatus {
    now(bench.engine.workflow(bench.org, id)).unwrap().status
}

fn nothing_ends(bench: &mut Bench) {
    bench.fate(|call, _, _| match call {
        Call::Terminate => Fate::FailBefore(TroubleKind::Network),
        _ => Fate::Obey,
    });
}

fn launch_run() {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    bench.submit(spec());
    let waits = bench.submit(spec());
    bench.settle();
    let id = bench.job(waits).workflow;
    let begun = begun_again(&mut bench, id);
    assert_eq!(bench.job(waits).workflow, begun);
    let refused = retried(&bench, id).unwrap_err();
    assert!(refused.to_string().contains("repl retry"), "its job has another one: {refused}");
    bench.runners.plan = Some(Plan::Exit(0));
    bench.settle();
    bench.expect_end(waits, RunStatus::Completed, None);
    assert_eq!(status(&bench, begun), WorkflowStatus::Completed);
}

fn terminate_instance() {
    let mut bench = Bench::new();
    let run = bench.submit(spec());
    bench.settle();
    let machine = bench.job(run).instance.unwrap();
    nothing_ends(&mut bench);
    bench.terminate(machine, true).unwrap();
    bench.settle();
    let of = |bench: &Bench| now(bench.engine.find_instance(machine)).unwrap().unwrap();
    let id = of(&bench).workflow.unwrap();
    let begun = begun_again(&mut bench, id);
    let refused = retried(&bench, id).unwrap_err();
    assert!(refused.to_string().contains(&format!("{begun} ends {machine} already")), "{refused}");
    bench.fate(|_, _, _| Fate::Obey);
    bench.advance(10 * MINUTE);
    assert_eq!(of(&bench).status, InstanceStatus::Terminated);
    assert_eq!(status(&bench, begun), WorkflowStatus::Completed);
    let refused = retried(&bench, id).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refused::Gone { .. })), "{refused}");
}

fn cleanup_manifest() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    nothing_ends(&mut bench);
    bench.advance(31 * MINUTE);
    let id = manifest_of(&bench, run).0.cleanup.expect("it is under way");
    let begun = begun_again(&mut bench, id);
    let refused = retried(&bench, id).unwrap_err();
    assert!(refused.to_string().contains(&format!("{begun} cleans")), "{refused}");
    bench.fate(|_, _, _| Fate::Obey);
    bench.advance(2 * HOUR);
    let refused = retried(&bench, id).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refused::Gone { what: "manifest", .. })), "{refused}");
    let (manifest, owned) = manifest_of(&bench, run);
    assert_eq!((manifest.status, owned), (ManifestStatus::Deleted, Vec::new()));
    assert_eq!(status(&bench, begun), WorkflowStatus::Completed);
}

fn create_snapshot() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 0, RunSpec { hold_ms: Some(HOUR), ..spec() });
    let first = snapshots::create(&mut bench, run).unwrap();
    bench.settle();
    snapshots::taken(&mut bench, first, Err("a file cannot be read".into()));
    let failed = snapshots::find(&bench, first);
    assert_eq!(failed.status, SnapshotStatus::Failed);
    let begun = begun_again(&mut bench, failed.workflow);
    bench.settle();
    let all = now(bench.engine.workdir_snapshots(bench.org, i64::MAX, 10)).unwrap();
    let second = all.iter().find(|it| it.workflow == begun).unwrap();
    assert_eq!((second.allocation, second.run), (failed.allocation, Some(run)), "of the same folder");
    let tree = snapshots::sent(&mut bench, "a");
    snapshots::taken(&mut bench, second.id, Ok(tree));
    assert_eq!(snapshots::find(&bench, second.id).status, SnapshotStatus::Ready);
    assert_eq!(snapshots::find(&bench, first), failed);
    assert_eq!(status(&bench, begun), WorkflowStatus::Completed);
    bench.advance(2 * HOUR);
    let refused = retried(&bench, failed.workflow).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refused::Conflict { .. })), "its folder is gone: {refused}");
}

#[test]
fn a_failed_workflow_of_every_intent_is_begun_again() {
    for intent in Intent::ALL {
        match intent {
            Intent::LaunchRun => launch_run(),
            Intent::TerminateInstance => terminate_instance(),
            Intent::CreateSnapshot => create_snapshot(),
            Intent::CleanupManifest => cleanup_manifest(),
        }
    }
}
