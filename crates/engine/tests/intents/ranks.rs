//! Runs with several jobs: placed together, retried in place, stopped and frozen in chunks, paid in sum, and ended with one exit code.

use crate::bench::{Bench, PRICE, now, settings, spec};
use crate::machines::{Plan, ended};
use adapters::fake::{Call, Fate};
use engine::Config;
use engine::run::Action;
use model::agent::AgentStatus;
use model::hierarchy::CHUNK;
use model::instance::InstanceStatus;
use model::job::{FreezeState, Job, JobReason, JobStatus};
use model::run::{Phase, RunOutcome, RunStatus};
use model::spec::{FailureMode, Resources, Retry, RetryEvent, RunSpec};
use model::time::{MINUTE, SECOND};
use model::{AgentId, Credits, RunId, TroubleKind};
use std::collections::BTreeSet;

fn nodes(nodes: i64) -> RunSpec {
    RunSpec { nodes, ..spec() }
}

fn on_interruption(nodes: i64) -> RunSpec {
    let retry = Retry { max_attempts: 4, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    RunSpec { nodes, retry: Some(retry), ..spec() }
}

fn running(spec: RunSpec) -> (Bench, RunId) {
    let mut bench = Bench::with(settings(spec.nodes), Config::default());
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec);
    bench.settle();
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    (bench, run)
}

fn agents(bench: &Bench, run: RunId) -> Vec<AgentId> {
    now(bench.engine.tree(bench.org, run)).unwrap().agents.iter().map(|agent| agent.id).collect()
}

/// The last job of a rank.
fn of_rank(bench: &Bench, run: RunId, rank: usize) -> Job {
    let agent = agents(bench, run)[rank];
    bench.jobs(run).into_iter().rfind(|job| job.agent == agent).expect("it has a job")
}

fn machine(bench: &Bench, job: &Job) -> String {
    let id = job.instance.expect("it is placed");
    now(bench.engine.find_instance(id)).unwrap().expect("it is known").name
}

#[test]
fn ranks_get_a_machine_each_and_the_run_ends_with_the_last_of_them() {
    let (mut bench, run) = running(nodes(3));
    let jobs = bench.jobs(run);
    assert_eq!(jobs.iter().filter_map(|job| job.instance).collect::<BTreeSet<_>>().len(), 3);
    assert!(jobs.iter().all(|job| job.submission == 1 && job.status == JobStatus::Running));
    assert_eq!(bench.run(run).agent_count, 3);
    bench.check();
    for rank in [2, 0] {
        bench.exits_of(&of_rank(&bench, run, rank), 0);
        assert_eq!(bench.run(run).status, RunStatus::Running);
        bench.check();
    }
    bench.exits_of(&of_rank(&bench, run, 1), 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check_all_gone();
}

#[test]
fn warm_machines_are_claimed_together_in_the_submission() {
    let (mut bench, first) = running(nodes(3));
    for rank in 0..3 {
        bench.exits_of(&of_rank(&bench, first, rank), 0);
    }
    let second = bench.submit(nodes(3));
    let jobs = bench.jobs(second);
    assert!(jobs.iter().all(|job| job.warm && job.status == JobStatus::Provisioning), "{jobs:?}");
    assert_eq!(jobs.iter().filter_map(|job| job.instance).collect::<BTreeSet<_>>().len(), 3);
    bench.check();
}

/// The best slots first would lock the machines against the order of their ids.
#[test]
fn machines_are_locked_in_the_order_of_their_ids_whichever_fits_best() {
    let mut bench = Bench::new();
    let sized = |gigabytes: i64, nodes: i64| RunSpec {
        resources: Resources { memory_bytes: Some(gigabytes << 30), ..Resources::default() },
        ..self::nodes(nodes)
    };
    bench.runners.plan = Some(Plan::Run);
    let earlier = [8, 4].map(|gigabytes| bench.submit(sized(gigabytes, 2)));
    bench.settle();
    for run in earlier {
        [0, 1].iter().for_each(|rank| bench.exits_of(&of_rank(&bench, run, *rank), 0));
    }
    let run = bench.submit(sized(2, 4));
    let chosen: Vec<_> = bench.jobs(run).iter().filter_map(|job| job.instance.filter(|_| job.warm)).collect();
    assert_eq!(chosen.len(), 4);
    assert!(!chosen.is_sorted(), "the small machines are younger: {chosen:?}");
    bench.check();
}

#[test]
fn what_has_no_room_waits_in_the_list_in_turn_and_is_placed_when_there_is() {
    let mut bench = Bench::with(settings(2), Config::default());
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(nodes(5));
    bench.settle();
    let jobs = bench.jobs(run);
    let waiting: Vec<_> = jobs.iter().filter_map(|job| Some((job.turn?, job.queue_seq?))).collect();
    assert_eq!(jobs.iter().filter(|job| job.status == JobStatus::Running).count(), 2, "no machine above the limit");
    assert_eq!(waiting.len(), 3);
    assert!(waiting.windows(2).all(|pair| pair[0] < pair[1]), "each has a turn of its own: {waiting:?}");
    bench.check();
    let why = now(bench.engine.why(bench.org, run)).unwrap().1;
    assert!(why.facts.iter().any(|fact| fact == "2 of 5 machines run, 3 wait"), "{why:?}");
    bench.runners.plan = Some(Plan::Exit(0));
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.runners.executions(run), 5);
    bench.check();
}

#[test]
fn a_lost_rank_is_tried_again_in_place_while_another_lives() {
    let (mut bench, run) = running(on_interruption(2));
    let lost = of_rank(&bench, run, 1);
    bench.say_of(&lost, ended(JobReason::Interrupted, None, 0, 0));
    bench.settle();
    let tree = now(bench.engine.tree(bench.org, run)).unwrap();
    assert_eq!(bench.run(run).status, RunStatus::Running);
    assert_eq!(tree.agents[1].status, AgentStatus::Pending);
    assert_eq!(tree.agents[1].due_at, Some(bench.at() + 15 * SECOND));
    assert_eq!(bench.jobs(run).len(), 2, "not before its pause is over");
    bench.check();
    let why = now(bench.engine.why(bench.org, run)).unwrap().1;
    assert!(why.facts.iter().any(|fact| fact.starts_with("rank-1 is tried again in 15s")), "{why:?}");
    bench.advance(15 * SECOND);
    let again = of_rank(&bench, run, 1);
    assert_eq!((again.submission, again.status), (2, JobStatus::Running));
    assert_eq!(of_rank(&bench, run, 0).submission, 1, "submissions count for each rank");
    bench.check();
    for rank in 0..2 {
        bench.exits_of(&of_rank(&bench, run, rank), 0);
    }
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.runners.executions(run), 3);
    bench.check_all_gone();
}

#[test]
fn the_next_try_of_a_rank_survives_other_looks_at_the_run_and_a_restart() {
    let (mut bench, run) = running(on_interruption(2));
    // The other rank is not active: the run looks idle but for the pending agent.
    bench.runners.plan = Some(Plan::Pull);
    for rank in 0..2 {
        bench.say_of(&of_rank(&bench, run, rank), ended(JobReason::Interrupted, None, 0, 0));
    }
    bench.advance(16 * SECOND);
    let pulling = of_rank(&bench, run, 0);
    assert_eq!((pulling.status, pulling.submission), (JobStatus::Pulling, 2));
    bench.say_of(&of_rank(&bench, run, 1), ended(JobReason::Interrupted, None, 0, 0));
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Running);
    bench.restart();
    bench.advance(20 * SECOND);
    assert_eq!(bench.jobs(run).len(), 4, "its pause is 30 s now");
    bench.advance(11 * SECOND);
    assert_eq!((bench.jobs(run).len(), of_rank(&bench, run, 1).submission), (5, 3));
    bench.check();
}

#[test]
fn when_no_rank_is_left_the_whole_run_waits() {
    let (mut bench, run) = running(on_interruption(2));
    bench.say_of(&of_rank(&bench, run, 0), ended(JobReason::Interrupted, None, 0, 0));
    assert_eq!(bench.run(run).status, RunStatus::Running);
    bench.say_of(&of_rank(&bench, run, 1), ended(JobReason::Interrupted, None, 0, 0));
    assert_eq!(bench.run(run).status, RunStatus::Retrying);
    bench.check();
    bench.advance(16 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    let submissions = [0, 1].map(|rank| of_rank(&bench, run, rank).submission);
    assert_eq!(submissions, [2, 2]);
    bench.check();
}

/// The machine of a fenced job may still run it: only its own rank waits for that machine's end.
#[test]
fn a_rank_waits_for_the_end_of_its_own_old_machine_and_no_other_does() {
    let mut bench = Bench::with(settings(6), Config::default());
    bench.runners.plan = Some(Plan::Pull);
    let on_events = vec![RetryEvent::NoCapacity, RetryEvent::Interruption];
    let retry = Retry { max_attempts: 4, on_events, duration_ms: None, delay_ms: None };
    let run = bench.submit(RunSpec { retry: Some(retry), ..nodes(3) });
    bench.settle();
    bench.cut_off_machine(machine(&bench, &of_rank(&bench, run, 1)));
    bench.fate(|call, _, _| match call {
        Call::Terminate => Fate::FailBefore(TroubleKind::Network),
        _ => Fate::Obey,
    });
    bench.runners.plan = Some(Plan::Run);
    bench.advance(15 * MINUTE);
    let fenced = of_rank(&bench, run, 1);
    assert!(fenced.fenced && fenced.submission == 1, "its machine is still there: {fenced:?}");
    assert_eq!(bench.run(run).status, RunStatus::Running);
    let why = now(bench.engine.why(bench.org, run)).unwrap().1;
    assert!(why.facts.iter().any(|fact| fact.starts_with("rank-1 is tried again when ")), "{why:?}");
    bench.say_of(&of_rank(&bench, run, 2), ended(JobReason::Interrupted, None, 0, 0));
    bench.advance(MINUTE);
    assert_eq!((of_rank(&bench, run, 2).submission, of_rank(&bench, run, 1).submission), (2, 1));
    bench.check();
    bench.fate(|_, _, _| Fate::Obey);
    bench.advance(2 * MINUTE);
    assert_eq!(of_rank(&bench, run, 1).submission, 2);
    bench.check();
}

#[test]
fn the_exit_code_is_that_of_the_first_failed_rank() {
    let (mut bench, run) = running(nodes(3));
    bench.exits_of(&of_rank(&bench, run, 0), 0);
    bench.exits_of(&of_rank(&bench, run, 2), 7);
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    assert_eq!(bench.run(run).exit_code, Some(7), "the third was stopped, and says nothing");
    bench.check();
}

#[test]
fn without_a_failed_rank_the_exit_code_is_that_of_rank_0() {
    let (mut bench, run) = running(nodes(2));
    bench.exits_of(&of_rank(&bench, run, 0), 0);
    bench.cancel(run);
    bench.settle();
    bench.expect_end(run, RunStatus::Cancelled, None);
    assert_eq!(bench.run(run).exit_code, Some(0), "not what the stopped one said");
    bench.check();
}

#[test]
fn a_run_that_continues_does_without_a_failed_rank_and_shows_its_exit_code() {
    let (mut bench, run) = running(RunSpec { failure_mode: FailureMode::Continue, ..nodes(2) });
    bench.exits_of(&of_rank(&bench, run, 1), 9);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    bench.exits_of(&of_rank(&bench, run, 0), 0);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!((bench.run(run).outcome, bench.run(run).exit_code), (Some(RunOutcome::Partial), Some(9)));
    bench.check();
}

#[test]
fn an_error_of_any_rank_opens_the_next_attempt() {
    let retry = Retry { max_attempts: 2, on_events: vec![RetryEvent::Error], duration_ms: None, delay_ms: Some(0) };
    let (mut bench, run) = running(RunSpec { retry: Some(retry), ..nodes(2) });
    bench.exits_of(&of_rank(&bench, run, 0), 3);
    bench.advance(SECOND);
    assert_eq!(bench.run(run).attempt, 2, "although the rank that ended last was only stopped");
    let jobs = bench.jobs(run);
    assert_eq!(
        jobs.iter().map(|job| (job.attempt, job.submission)).collect::<Vec<_>>(),
        [(1, 1), (1, 1), (2, 1), (2, 1)]
    );
    bench.check();
}

#[test]
fn a_run_is_paused_when_all_its_machines_stand_still() {
    let (mut bench, run) = running(nodes(2));
    let deaf = machine(&bench, &of_rank(&bench, run, 1));
    bench.runners.deaf.push(deaf.clone());
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Running, "one machine has not said so yet");
    bench.reconnect(&deaf);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    assert!(bench.jobs(run).iter().all(|job| job.freeze == FreezeState::Frozen));
    bench.act(run, Action::Resume).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Running);
    bench.check();
}

#[test]
fn a_pause_is_complete_when_the_last_job_that_moves_is_lost() {
    let (mut bench, run) = running(on_interruption(2));
    let moving = of_rank(&bench, run, 1);
    let deaf = machine(&bench, &moving);
    bench.runners.deaf.push(deaf.clone());
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    bench.reconnect(&deaf);
    bench.say_of(&moving, ended(JobReason::Interrupted, None, 0, 0));
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    bench.advance(MINUTE);
    assert_eq!(bench.jobs(run).len(), 2, "nothing begins in a paused run");
    bench.act(run, Action::Resume).unwrap();
    bench.advance(SECOND);
    assert_eq!((bench.run(run).status, bench.jobs(run).len()), (RunStatus::Running, 3));
    bench.check();
}

#[test]
fn a_person_who_gives_up_one_silent_machine_leaves_the_others_alone() {
    let (mut bench, run) = running(on_interruption(2));
    let silent = of_rank(&bench, run, 0);
    bench.cut_off_machine(machine(&bench, &silent));
    bench.advance(2 * MINUTE);
    assert!(of_rank(&bench, run, 0).silent_since.is_some());
    bench.act(run, Action::Retry { force: true }).unwrap();
    assert_eq!(of_rank(&bench, run, 0).reason, Some(JobReason::InstanceLost));
    assert_eq!((bench.run(run).status, bench.run(run).attempt), (RunStatus::Running, 1));
    bench.advance(MINUTE);
    assert_eq!((of_rank(&bench, run, 0).submission, of_rank(&bench, run, 1).submission), (2, 1));
    bench.check();
}

/// More ranks than one commit may touch: begun, paused, resumed and stopped by the run's item, a chunk a commit.
#[test]
fn many_ranks_are_begun_frozen_and_stopped_in_chunks() {
    let many = CHUNK as i64 + 50;
    let mut bench = Bench::with(settings(3), Config::default());
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(nodes(many));
    assert_eq!(bench.jobs(run).len(), CHUNK, "one commit");
    bench.drain();
    assert_eq!(bench.jobs(run).len() as i64, many);
    bench.settle();
    bench.act(run, Action::Pause).unwrap();
    let frozen = |bench: &Bench| bench.jobs(run).iter().filter(|job| job.freeze != FreezeState::Moving).count();
    assert_eq!(frozen(&bench), CHUNK);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    bench.check();
    bench.act(run, Action::Resume).unwrap();
    bench.settle();
    assert_eq!((bench.run(run).status, frozen(&bench)), (RunStatus::Running, 0));
    bench.check();
    bench.cancel(run);
    let open = |bench: &Bench| bench.jobs(run).iter().filter(|job| job.status.is_end()).count();
    assert!(open(&bench) <= CHUNK);
    bench.settle();
    bench.expect_end(run, RunStatus::Cancelled, None);
    bench.check();
}

#[test]
fn all_machines_are_paid_and_what_is_set_aside_lasts_for_all_of_them() {
    let (mut bench, run) = running(nodes(3));
    assert_eq!(bench.money(run, 1).0, Credits(PRICE.micro() * 3), "an hour ahead for each");
    bench.advance(40 * MINUTE);
    let (reserved, charged, _) = bench.money(run, 1);
    assert_eq!(charged, Credits(40 * 60 * 10_000 * 3));
    assert!((reserved - charged).micro() * 2 >= PRICE.micro() * 3, "{reserved} and {charged}: half an hour at least");
    for rank in 0..3 {
        bench.exits_of(&of_rank(&bench, run, rank), 0);
    }
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.money(run, 1).1, charged);
    bench.check();
}

#[test]
fn a_budget_ends_a_run_when_all_its_machines_together_have_used_it() {
    // Three machines use in ten minutes what one would use in half an hour.
    let budget = Credits(PRICE.micro() / 2);
    let (mut bench, run) = running(RunSpec { budget: Some(budget), ..nodes(3) });
    bench.advance(9 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    bench.advance(2 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("budget"));
    assert!(bench.money(run, 1).1 <= budget);
    bench.check();
}

#[test]
fn a_rank_that_ends_frees_its_machine_for_others() {
    let (mut bench, run) = running(nodes(2));
    bench.exits_of(&of_rank(&bench, run, 1), 0);
    let other = bench.submit(spec());
    assert!(bench.job(other).warm);
    assert_eq!(bench.job(other).instance, of_rank(&bench, run, 1).instance);
    let machines = now(bench.engine.list_instances(bench.org, i64::MAX, 10)).unwrap();
    assert!(machines.iter().all(|machine| machine.instance.status == InstanceStatus::Ready));
    bench.check();
}

#[test]
fn jobs_are_read_in_pages_over_all_attempts() {
    let (mut bench, run) = running(on_interruption(2));
    for rank in [0, 1] {
        let lost = of_rank(&bench, run, rank);
        let name = machine(&bench, &lost);
        bench.provider.destroy(&name);
    }
    bench.advance(5 * MINUTE);
    let all: Vec<_> = bench.jobs(run).iter().map(|job| job.id).collect();
    assert!(all.len() > 3, "{all:?}");
    let page = |after: i64| now(bench.engine.seen_jobs(bench.org, run, after, 2)).unwrap();
    let (mut read, mut after) = (Vec::new(), 0);
    while let Some(last) = page(after).last() {
        read.extend(page(after).iter().map(|seen| seen.job.id));
        after = last.job.id.0;
    }
    assert_eq!(read, all);
    let refused = now(bench.engine.seen_jobs(bench.org, run, 1, 2)).unwrap_err().to_string();
    assert!(refused.contains("no page"), "{refused}");
}
