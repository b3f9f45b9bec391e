//! Machines that an init has prepared: which run gets one, and what becomes of one whose init did not end well.

use crate::bench::{Bench, now, settings, spec};
use crate::machines::Plan;
use engine::Config;
use model::instance::Instance;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::{InstanceId, RunId};

fn with_init(checksum: &str) -> RunSpec {
    RunSpec { init: Some(format!("make {checksum}")), init_checksum: Some(checksum.to_owned()), ..spec() }
}

fn machine(bench: &Bench, run: RunId) -> (InstanceId, Instance) {
    let id = bench.job(run).instance.unwrap();
    (id, now(bench.engine.find_instance(id)).unwrap().unwrap())
}

fn ran(bench: &mut Bench, spec: RunSpec) -> InstanceId {
    let run = bench.submit(spec);
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    machine(bench, run).0
}

#[test]
fn a_run_goes_to_the_machine_that_has_its_init_and_to_no_other_one() {
    let mut bench = Bench::with(settings(4), Config::default());
    let (vanilla, prepared) = (ran(&mut bench, spec()), ran(&mut bench, with_init("a")));
    assert_eq!(vanilla, prepared, "a vanilla machine becomes one with an init");
    assert_eq!(ran(&mut bench, with_init("a")), prepared);
    let other = ran(&mut bench, with_init("b"));
    assert_ne!(other, prepared, "another init needs another machine");
    let plain = ran(&mut bench, spec());
    assert!(![prepared, other].contains(&plain), "no machine of theirs is vanilla");
    assert_eq!(ran(&mut bench, with_init("b")), other);
    assert_eq!(ran(&mut bench, with_init("c")), plain, "50: it is vanilla");
    bench.check();
    bench.check_all_gone();
}

#[test]
fn an_init_that_did_not_end_well_is_forgotten() {
    let mut bench = Bench::new();
    bench.runners.inits_fail = true;
    bench.runners.plan = Some(Plan::Exit(1));
    let run = bench.submit(with_init("a"));
    bench.settle();
    let (id, half) = machine(&bench, run);
    assert_eq!((half.init_checksum, half.init_done), (None, false), "vanilla again");
    bench.runners.inits_fail = false;
    bench.runners.plan = Some(Plan::Exit(0));
    assert_eq!(ran(&mut bench, with_init("b")), id);
    let (_, done) = machine(&bench, run);
    assert_eq!((done.init_checksum.as_deref(), done.init_done), (Some("b"), true));
    bench.check();
}

#[test]
fn a_job_that_leaves_before_its_command_began_leaves_no_init_behind() {
    let mut bench = Bench::new();
    let first = ran(&mut bench, spec());
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(with_init("a"));
    bench.settle();
    assert_eq!(machine(&bench, run).1.init_checksum.as_deref(), Some("a"), "nobody else may claim it for another");
    bench.cancel(run);
    bench.settle();
    let (id, left) = machine(&bench, run);
    assert_eq!((id, left.init_checksum), (first, None));
    // One that was known to have ended well stays.
    bench.runners.plan = Some(Plan::Exit(0));
    ran(&mut bench, with_init("b"));
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(with_init("b"));
    bench.settle();
    bench.cancel(run);
    bench.settle();
    assert_eq!(machine(&bench, run).1.init_checksum.as_deref(), Some("b"));
    bench.check();
}
