//! Where machines read the contents of files: in the blob store itself, where that can be, or from the control plane. The blob store of these
//! tests can be read by machines; the one of today, a folder, cannot.

use crate::bench::{Bench, now, spec};
use crate::machines::{Plan, Reading};
use model::RunId;
use model::run::RunStatus;
use model::spec::BlobSource;
use model::time::{MINUTE, SECOND};
use model::workflow::{NodeStatus, output};

fn told(bench: &mut Bench, reading: Option<Reading>) -> RunId {
    bench.restart_with_direct_blobs();
    bench.runners.out_of_reach = reading;
    let run = bench.submit(spec());
    bench.settle();
    run
}

// For `crashes` and the matrix.
pub fn direct(bench: &mut Bench) -> RunId {
    told(bench, None)
}
pub fn out_of_reach(bench: &mut Bench) -> RunId {
    let run = told(bench, Some(Reading::Fails));
    bench.advance(11 * SECOND); // the items of a worker that died are taken over meanwhile
    run
}
pub fn never_ends(bench: &mut Bench) -> RunId {
    let run = told(bench, Some(Reading::Hangs));
    bench.advance(11 * MINUTE);
    run
}

#[track_caller]
fn came(bench: &Bench, run: RunId, sources: &[BlobSource], nodes: [NodeStatus; 2]) {
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.runners.sources, sources);
    let workflow = now(bench.engine.workflow(bench.org, bench.job(run).workflow)).unwrap();
    let status = |name: &str| workflow.nodes.iter().find(|node| node.name == name).unwrap().status;
    assert_eq!(["sync-direct", "sync-files"].map(status), nodes);
    assert!(output(&workflow, "sync-files").is_some(), "whichever it was, what follows reads its output by one name");
    assert_eq!(bench.runners.executions(run), 1);
    bench.check();
}

use BlobSource::{ControlPlane, Direct};
use NodeStatus::{Completed, Failed, Skipped};

#[test]
fn a_folder_of_the_control_plane_is_read_through_it() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(0));
    let run = bench.submit(spec());
    bench.settle();
    came(&bench, run, &[ControlPlane], [Skipped, Completed]);
}

#[test]
fn a_blob_store_that_machines_can_read_is_read_by_them() {
    let mut bench = Bench::new();
    let run = direct(&mut bench);
    came(&bench, run, &[Direct], [Completed, Skipped]);
}

#[test]
fn what_cannot_be_read_directly_is_sent_by_the_control_plane() {
    let mut bench = Bench::new();
    let run = out_of_reach(&mut bench);
    came(&bench, run, &[Direct, ControlPlane], [Failed, Completed]);
}

#[test]
fn a_machine_that_reads_in_vain_for_five_minutes_is_told_the_control_plane() {
    let mut bench = Bench::new();
    let run = told(&mut bench, Some(Reading::Hangs));
    bench.advance(4 * MINUTE);
    assert_eq!(bench.runners.sources, [Direct]);
    bench.advance(2 * MINUTE);
    came(&bench, run, &[Direct, ControlPlane], [Failed, Completed]);
}
