//! Paused and resumed: what stands still, what does not count, and what happens anyway.

use crate::bench::{Bench, now, settings, spec};
use crate::machines::Plan;
use engine::Config;
use engine::run::Action;
use model::RunId;
use model::agent::AgentStatus;
use model::job::{FreezeState, JobStatus};
use model::run::{PauseReason, Phase, RunStatus};
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE};

fn running(spec: RunSpec) -> (Bench, RunId) {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec);
    bench.settle();
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    (bench, run)
}

#[track_caller]
fn expect(bench: &Bench, run: RunId, status: RunStatus, freeze: FreezeState) {
    let (is, job) = (bench.run(run), bench.job(run));
    assert_eq!((is.status, job.freeze), (status, freeze), "{is:?}");
}

#[test]
fn a_run_is_paused_when_its_machine_says_so_and_goes_on_when_it_says_so() {
    let (mut bench, run) = running(spec());
    let name = bench.name_of(run);
    bench.runners.deaf.push(name.clone());
    bench.act(run, Action::Pause).unwrap();
    expect(&bench, run, RunStatus::Running, FreezeState::Freezing);
    bench.reconnect(&name);
    bench.settle();
    expect(&bench, run, RunStatus::Paused, FreezeState::Frozen);
    assert_eq!(bench.run(run).pause_reason, Some(PauseReason::Asked));
    let why = now(bench.engine.why(bench.org, run)).unwrap().1;
    assert!(why.next[0].contains("repl resume"), "{why:?}");
    bench.check();

    bench.runners.deaf.push(name.clone());
    bench.act(run, Action::Resume).unwrap();
    expect(&bench, run, RunStatus::Resuming, FreezeState::Thawing);
    bench.reconnect(&name);
    bench.settle();
    expect(&bench, run, RunStatus::Running, FreezeState::Moving);
    let agents = now(bench.engine.tree(bench.org, run)).unwrap().agents;
    assert_eq!((agents[0].status, agents[0].tries), (AgentStatus::Running, 1), "the same try");
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.runners.executions(run), 1);
    bench.check_all_gone();
}

#[test]
fn asked_twice_is_asked_once_and_a_wish_can_be_taken_back() {
    let (mut bench, run) = running(spec());
    let name = bench.name_of(run);
    bench.runners.deaf.push(name.clone());
    for action in [Action::Pause, Action::Pause, Action::Resume, Action::Resume] {
        bench.act(run, action).unwrap();
    }
    expect(&bench, run, RunStatus::Running, FreezeState::Thawing);
    bench.reconnect(&name);
    bench.settle();
    assert!(bench.run(run).pause_asked.is_none() && bench.run(run).status == RunStatus::Running);
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check_all_gone();
}

#[test]
fn what_waits_for_a_machine_is_held_without_one() {
    let (mut bench, first) = running(spec());
    let waiting = bench.submit(spec());
    bench.act(waiting, Action::Pause).unwrap();
    expect(&bench, waiting, RunStatus::Paused, FreezeState::Frozen);
    bench.exits(first, 0);
    bench.advance(MINUTE);
    assert_eq!(bench.job(waiting).status, JobStatus::Submitted, "a free machine does not tempt it");
    bench.act(waiting, Action::Resume).unwrap();
    bench.settle();
    expect(&bench, waiting, RunStatus::Running, FreezeState::Moving);
    bench.settle();
    bench.exits(waiting, 0);
    bench.expect_end(waiting, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn paused_time_is_not_active_time() {
    let (mut bench, run) = running(RunSpec { max_duration_ms: Some(20 * MINUTE), ..spec() });
    bench.advance(10 * MINUTE);
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    bench.advance(30 * MINUTE);
    expect(&bench, run, RunStatus::Paused, FreezeState::Frozen);
    bench.act(run, Action::Resume).unwrap();
    bench.settle();
    bench.advance(9 * MINUTE);
    expect(&bench, run, RunStatus::Running, FreezeState::Moving);
    bench.advance(5 * MINUTE);
    bench.settle();
    bench.expect_end(run, RunStatus::Failed, Some("deadline"));
    bench.check();
}

#[test]
fn a_paused_run_can_be_cancelled() {
    let (mut bench, run) = running(spec());
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    bench.cancel(run);
    bench.settle();
    bench.expect_end(run, RunStatus::Cancelled, None);
    bench.check();
}

#[test]
fn a_frozen_machine_that_dies_ends_its_run() {
    let (mut bench, run) = running(spec());
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    let name = bench.name_of(run);
    bench.provider.destroy(&name);
    bench.advance(HOUR);
    bench.expect_end(run, RunStatus::Failed, Some("instance_lost"));
    bench.check();
}

#[test]
fn only_what_runs_can_be_paused() {
    let (mut bench, run) = running(spec());
    bench.exits(run, 0);
    let refused = bench.act(run, Action::Pause).unwrap_err().to_string();
    assert!(refused.contains("completed"), "{refused}");
}
