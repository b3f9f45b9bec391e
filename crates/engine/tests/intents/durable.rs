//! Durable steps: a program asks before it acts and reports when it has. What has finished answers ever after; what was interrupted is
//! done again or asked about; an older epoch begins nothing.

use crate::bench::{Bench, now, shown, spec};
use crate::machines::{Plan, ended, fact};
use engine::durable::{Answered, Asker, Begin, End, Ended, Request, Standing, StepClaim, failure};
use engine::external::{Finish, FirstRender};
use engine::lease::Beat;
use engine::question::{Verdict, Word};
use engine::run::{Action, Submission};
use model::job::JobReason;
use model::run::{RunStatus, Ticket};
use model::spec::{Command, Retry, RetryEvent, RunKind, RunSpec};
use model::step::{Step, StepStatus, StepWait};
use model::time::{MINUTE, SECOND};
use model::{Credits, Failure, OrgId, Refused, RunId, StepId};
use serde_json::{Value, json};
use std::sync::Arc;

fn once(name: &str) -> Begin {
    let input = json!({ "argv": [name] });
    Begin { name: name.into(), key: None, input, idempotent: false, lease_ms: MINUTE, max_cost: Credits::ZERO }
}

fn step(name: &str) -> Begin {
    Begin { idempotent: true, ..once(name) }
}

/// A job that runs until it is told otherwise.
fn job(spec: RunSpec) -> (Bench, RunId, Asker) {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec);
    bench.settle();
    let asker = process(&bench, run);
    (bench, run, asker)
}

/// A process of the run's newest job.
fn process(bench: &Bench, run: RunId) -> Asker {
    let job = bench.job(run);
    let step = job.step.unwrap();
    Asker::Job(StepClaim { org: bench.org, run, attempt: job.attempt, job: job.id, epoch: job.epoch, step })
}

fn retried() -> RunSpec {
    let on_events = vec![RetryEvent::Error, RetryEvent::Interruption];
    RunSpec { retry: Some(Retry { max_attempts: 3, on_events, duration_ms: None, delay_ms: Some(0) }), ..spec() }
}

fn external() -> (Bench, RunId, Asker) {
    let mut bench = Bench::new();
    let run = bench.submit(RunSpec { kind: RunKind::External, command: Command::Argv(vec![]), ..spec() });
    bench.settle();
    let asker = Asker::Org(bench.org);
    (bench, run, asker)
}

fn begin(bench: &Bench, asker: Asker, run: RunId, begin: &Begin) -> Standing {
    told(now(bench.engine.begin_step(Request::plain(asker, run), begin.clone())).unwrap())
}

fn told<T: std::fmt::Debug>(answered: Answered<T>) -> T {
    let Answered::Now(answer) = answered else { panic!("said before: {answered:?}") };
    answer
}

fn refused(bench: &Bench, asker: Asker, run: RunId, begin: Begin) -> Failure {
    now(bench.engine.begin_step(Request::plain(asker, run), begin)).unwrap_err()
}

fn beat(bench: &Bench, asker: Asker, run: RunId, at: (StepId, i64)) -> Beat {
    told(now(bench.engine.beat_step(Request::plain(asker, run), at, None)).unwrap())
}

#[track_caller]
fn goes(standing: Standing) -> (StepId, i64) {
    let Standing::Go { step, fence, .. } = standing else { panic!("not to be done: {standing:?}") };
    (step, fence)
}

fn end(bench: &Bench, asker: Asker, run: RunId, at: (StepId, i64), end: End, next: Option<Begin>) -> Ended {
    told(now(bench.engine.end_step(Request::plain(asker, run), at, end, next)).unwrap())
}

fn done(output: Value) -> End {
    End::Completed { output, cost: Credits::ZERO }
}

#[track_caller]
fn outputs(standing: &Standing) -> &Value {
    let Standing::Completed { output, .. } = standing else { panic!("not completed: {standing:?}") };
    output
}

/// The command ends with this code.
fn exits(bench: &mut Bench, run: RunId, code: i32) {
    let job = bench.job(run);
    let reason = if code == 0 { JobReason::DoneByRunner } else { JobReason::ExitedWithError };
    let end = ended(reason, Some(code), 0, SECOND);
    let told = bench.report(job.instance.unwrap(), vec![fact(job.id, job.epoch, job.step, end)], Vec::new());
    assert!(told.unwrap().unwrap().refused.is_empty());
    bench.settle();
}

fn row(bench: &Bench, run: RunId, id: StepId) -> Step {
    let tree = now(bench.engine.tree(bench.org, run)).unwrap();
    tree.steps.into_iter().find(|step| step.id == id).expect("it has a row")
}

#[track_caller]
fn audited(bench: &Bench) {
    let audit = now(bench.engine.audit()).unwrap();
    assert!(audit.broken.is_empty(), "{:?}", audit.broken);
}

/// Errors that a program is told of are its own to judge: the run neither asks a person nor counts them among its retries.
#[test]
fn failed_durable_steps_do_not_count_among_the_failures_of_the_run() {
    let (mut bench, run, asker) = job(spec());
    for n in 0..7 {
        let at = goes(begin(&bench, asker, run, &step(&format!("bad-{n}"))));
        end(&bench, asker, run, at, End::Failed(failure(None, "no".into(), None)), None);
    }
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Running);
    let open = now(bench.engine.questions(bench.org, StepWait::Ticket, true, i64::MAX, 10)).unwrap();
    assert!(open.is_empty(), "{open:?}");
    exits(&mut bench, run, 0);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    audited(&bench);
}

#[test]
fn a_finished_step_answers_from_its_record_and_a_loop_has_one_for_each_key() {
    let (bench, run, asker) = job(spec());
    let at = goes(begin(&bench, asker, run, &step("train")));
    end(&bench, asker, run, at, done(json!({ "loss": 1 })), None);
    assert_eq!(outputs(&begin(&bench, asker, run, &step("train"))), &json!({ "loss": 1 }));
    let other = Begin { input: json!({ "argv": ["train", "2"] }), ..step("train") };
    let at = goes(begin(&bench, asker, run, &other));
    end(&bench, asker, run, at, done(json!({ "loss": 2 })), None);
    let keyed = Begin { key: Some("third".into()), ..step("train") };
    let at = goes(begin(&bench, asker, run, &keyed));
    end(&bench, asker, run, at, done(json!({ "loss": 3 })), None);
    let moved = Begin { input: json!("another input, the same key"), ..keyed };
    assert_eq!(outputs(&begin(&bench, asker, run, &moved)), &json!({ "loss": 3 }));
    let get = |key: Option<&str>| now(bench.engine.recorded_step(asker, run, "train".into(), key.map(str::to_owned)));
    assert_eq!(outputs(&get(None).unwrap()), &json!({ "loss": 3 }), "the newest of its name");
    assert_eq!(outputs(&get(Some("third")).unwrap()), &json!({ "loss": 3 }));
    assert!(matches!(get(Some("fourth")), Err(Failure::Refused(Refused::NotFound { .. }))));
    let tree = now(bench.engine.tree(bench.org, run)).unwrap();
    assert_eq!((bench.run(run).step_count, tree.tasks[0].step_count, tree.tasks[0].steps.total()), (4, 4, 1));
    audited(&bench);
}

#[test]
fn the_end_of_a_step_and_the_beginning_of_the_next_are_one_commit() {
    let (bench, run, asker) = external();
    let mut at = goes(begin(&bench, asker, run, &once("0")));
    bench.crashes.count();
    for n in 1..=10 {
        let ended = end(&bench, asker, run, at, done(json!(n)), Some(once(&n.to_string())));
        assert_eq!(outputs(&ended.standing), &json!(n));
        at = goes(ended.next.unwrap());
    }
    let writes = bench.crashes.writes.lock().unwrap().clone();
    assert_eq!(writes, ["step.end"; 10], "and nobody else has anything to do");
    audited(&bench);
}

/// The oracle: what finished is never to be done again, whatever was killed in between.
#[test]
fn a_script_that_is_killed_and_retried_goes_on_after_its_last_finished_step() {
    let (mut bench, run, asker) = job(retried());
    let at = goes(begin(&bench, asker, run, &once("paid")));
    end(&bench, asker, run, at, done(json!("receipt")), None);
    let interrupted = goes(begin(&bench, asker, run, &step("again")));
    exits(&mut bench, run, 137);
    let lost = row_of_attempt(&bench, run, interrupted.0);
    assert_eq!((lost.status, lost.outcome_unknown), (StepStatus::Cancelled, false));
    let asker = process(&bench, run);
    assert_eq!(bench.run(run).attempt, 2);
    assert_eq!(outputs(&begin(&bench, asker, run, &once("paid"))), &json!("receipt"));
    let at = goes(begin(&bench, asker, run, &step("again")));
    assert_ne!(at.0, interrupted.0);
    end(&bench, asker, run, at, done(json!(null)), None);
    exits(&mut bench, run, 0);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    audited(&bench);
}

fn row_of_attempt(bench: &Bench, run: RunId, id: StepId) -> Step {
    let found = now(bench.store.read("test", move |tx| store::step::find(tx, id))).unwrap().unwrap();
    assert_eq!(found.run, run);
    found
}

#[test]
fn what_must_not_be_repeated_and_was_interrupted_is_asked_about() {
    for (ticket, goes_on) in [(Ticket::NotDone, true), (Ticket::Done, false)] {
        let (mut bench, run, asker) = job(retried());
        let at = goes(begin(&bench, asker, run, &once("pay")));
        exits(&mut bench, run, 1);
        assert!(row_of_attempt(&bench, run, at.0).outcome_unknown);
        let asker = process(&bench, run);
        let standing = begin(&bench, asker, run, &once("pay"));
        assert!(matches!(standing, Standing::Waiting { what: StepWait::Ticket, .. }), "{standing:?}");
        bench.settle();
        assert_eq!(bench.run(run).status, RunStatus::Paused);
        assert_eq!(begin(&bench, asker, run, &once("other")), Standing::Paused);
        let open = now(bench.engine.questions(bench.org, StepWait::Ticket, true, i64::MAX, 10)).unwrap();
        let word = Word { by: "laptop".into(), verdict: Verdict::Resolve(ticket), note: None };
        now(bench.engine.answer(bench.org, open[0].id, word, None)).unwrap();
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Running);
        match begin(&bench, asker, run, &once("pay")) {
            Standing::Go { .. } => assert!(goes_on),
            Standing::Completed { .. } => assert!(!goes_on),
            standing => panic!("{standing:?}"),
        }
        audited(&bench);
    }
}

#[test]
fn a_failed_step_is_not_remembered() {
    let (bench, run, asker) = job(spec());
    let at = goes(begin(&bench, asker, run, &once("try")));
    let failed = End::Failed(failure(None, "exit code 3".into(), None));
    let told = end(&bench, asker, run, at, failed.clone(), None).standing;
    assert!(matches!(&told, Standing::Failed { error, .. } if error.message == "exit code 3"), "{told:?}");
    assert_eq!(end(&bench, asker, run, at, failed, None).standing, told, "said again");
    assert_eq!(bench.run(run).status, RunStatus::Running, "its failure is the program's matter");
    let again = goes(begin(&bench, asker, run, &once("try")));
    assert_ne!(again.0, at.0);
    let late = end(&bench, asker, run, at, done(json!(1)), None).standing;
    assert!(matches!(late, Standing::Late { .. }), "{late:?}");
    audited(&bench);
}

#[test]
fn one_process_does_a_step_and_others_wait_until_its_lease_is_over() {
    let (mut bench, run, asker) = job(spec());
    let (mine, theirs) = (step("s"), step("s"));
    let at = goes(begin(&bench, asker, run, &mine));
    let held = begin(&bench, asker, run, &theirs);
    assert_eq!(held, Standing::Held { step: at.0, left_ms: MINUTE });
    bench.advance(40 * SECOND);
    assert_eq!(beat(&bench, asker, run, at), Beat::Go);
    bench.advance(40 * SECOND);
    assert_eq!(begin(&bench, asker, run, &theirs), Standing::Held { step: at.0, left_ms: 20 * SECOND });
    bench.advance(21 * SECOND);
    assert_eq!(row(&bench, run, at.0).status, StepStatus::Failed, "given up by its item");
    let other = goes(begin(&bench, asker, run, &theirs));
    assert_eq!(beat(&bench, asker, run, at), Beat::Cancel);
    let late = end(&bench, asker, run, at, done(json!("late")), None).standing;
    assert!(matches!(late, Standing::Late { .. }), "a newer one exists: {late:?}");
    end(&bench, asker, run, other, done(json!("in time")), None);
    assert_eq!(outputs(&begin(&bench, asker, run, &mine)), &json!("in time"));
    audited(&bench);
}

#[test]
fn a_lease_that_runs_out_makes_what_must_not_be_repeated_unknown() {
    let (mut bench, run, asker) = external();
    let at = goes(begin(&bench, asker, run, &once("pay")));
    bench.advance(61 * SECOND);
    assert!(row(&bench, run, at.0).uncertain);
    assert_eq!(bench.run(run).status, RunStatus::Paused, "a person is asked");
    let told = end(&bench, asker, run, at, done(json!("after all")), None).standing;
    assert_eq!(outputs(&told), &json!("after all"), "it knows, and nobody has to be asked");
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    audited(&bench);
}

#[test]
fn time_in_which_the_run_is_paused_or_no_control_plane_was_there_is_no_time_of_a_lease() {
    let (mut bench, run, asker) = job(spec());
    let at = goes(begin(&bench, asker, run, &step("s")));
    bench.advance(30 * SECOND);
    bench.act(run, Action::Pause).unwrap();
    bench.advance(10 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    assert_eq!(row(&bench, run, at.0).status, StepStatus::Running);
    bench.act(run, Action::Resume).unwrap();
    bench.advance(20 * SECOND);
    assert_eq!(beat(&bench, asker, run, at), Beat::Go);
    bench.outage(10 * MINUTE);
    bench.advance(SECOND);
    assert_eq!(beat(&bench, asker, run, at), Beat::Go);
    audited(&bench);
}

#[test]
fn an_older_epoch_begins_nothing_and_ends_its_own_try_while_no_newer_one_exists() {
    let (mut bench, run, old) = job(retried());
    let ended_late = goes(begin(&bench, old, run, &once("a")));
    let begun_anew = goes(begin(&bench, old, run, &step("b")));
    exits(&mut bench, run, 1);
    let refused = refused(&bench, old, run, step("c"));
    assert!(matches!(refused, Failure::Refused(Refused::OldEpoch { .. })), "{refused:?}");
    let new = process(&bench, run);
    let told = end(&bench, old, run, ended_late, done(json!("a")), None).standing;
    assert_eq!(outputs(&told), &json!("a"));
    assert_eq!(outputs(&begin(&bench, new, run, &once("a"))), &json!("a"), "the new process need not do it");
    let newer = goes(begin(&bench, new, run, &step("b")));
    let late = end(&bench, old, run, begun_anew, done(json!("old")), None).standing;
    assert!(matches!(late, Standing::Late { .. }), "{late:?}");
    assert_eq!(bench.run(run).late_evidence.len(), 1);
    end(&bench, new, run, newer, done(json!("new")), None);
    let stranger = now(bench.engine.end_step(Request::plain(old, run), newer, done(json!("x")), None)).unwrap_err();
    assert!(matches!(stranger, Failure::Refused(Refused::NotFound { .. })), "{stranger:?}");
    audited(&bench);
}

#[test]
fn a_step_is_of_one_run_and_one_org() {
    let (bench, run, asker) = job(spec());
    let not_found = |asker: Asker, run: RunId| {
        let refused = refused(&bench, asker, run, step("s"));
        matches!(refused, Failure::Refused(Refused::NotFound { .. }))
    };
    assert!(not_found(asker, RunId(run.0 + 1)));
    assert!(not_found(Asker::Org(OrgId(bench.org.0 + 1)), run));
    let own = refused(&bench, Asker::Org(bench.org), run, step("s"));
    assert!(own.to_string().contains("type: external"), "{own}");
}

#[test]
fn bad_steps_are_refused_by_field() {
    let (bench, run, asker) = external();
    let table = [
        (Begin { name: String::new(), ..step("s") }, "name"),
        (Begin { name: "a\nb".into(), ..step("s") }, "name"),
        (Begin { key: Some(String::new()), ..step("s") }, "key"),
        (Begin { lease_ms: 0, ..step("s") }, "lease_ms"),
        (Begin { max_cost: Credits(-1), ..step("s") }, "max_cost"),
        (Begin { input: json!("x".repeat(300_000)), ..step("s") }, "256 KiB"),
    ];
    for (begin, field) in table {
        let refused = refused(&bench, asker, run, begin).to_string();
        assert!(refused.contains(field), "{refused} does not name {field}");
    }
    for n in 0..100 {
        goes(begin(&bench, asker, run, &once(&n.to_string())));
    }
    let refused = refused(&bench, asker, run, once("one more"));
    assert!(refused.to_string().contains("end some of them first"), "{refused}");
    audited(&bench);
}

#[test]
fn a_program_finishes_its_run_and_what_is_under_way_ends_with_it() {
    let table = [
        (Finish::Done(Some(json!({ "rows": 3 }))), RunStatus::Completed),
        (Finish::Failed("no disk".into()), RunStatus::Failed),
    ];
    for (finish, status) in table {
        let (mut bench, run, asker) = external();
        let at = goes(begin(&bench, asker, run, &once("open")));
        let key = bench.key();
        for _ in 0..2 {
            now(bench.engine.finish_run(bench.org, run, finish.clone(), Some(key.clone()), shown())).unwrap();
        }
        bench.settle();
        assert_eq!(bench.run(run).status, status);
        let open = row(&bench, run, at.0);
        assert_eq!((open.status, open.outcome_unknown), (StepStatus::Cancelled, true));
        refused(&bench, asker, run, step("after"));
        audited(&bench);
    }
}

#[test]
fn a_pause_waits_for_what_a_program_outside_has_under_way() {
    let (mut bench, run, asker) = external();
    let at = goes(begin(&bench, asker, run, &once("s")));
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Running);
    assert_eq!(beat(&bench, asker, run, at), Beat::Pause);
    let ended = end(&bench, asker, run, at, done(json!(1)), Some(once("next")));
    assert_eq!(ended.next, Some(Standing::Paused));
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    bench.act(run, Action::Resume).unwrap();
    bench.settle();
    goes(begin(&bench, asker, run, &once("next")));
    bench.cancel(run);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Cancelled, "a cancel does not wait for the program");
    audited(&bench);
}

#[test]
fn a_repeated_request_is_answered_again_and_begins_nothing() {
    let (mut bench, run, asker) = external();
    let key = bench.key();
    let ask = |bench: &Bench, begin: &Begin| {
        let settled = |standing: &Standing| matches!(standing, Standing::Go { .. }).then(|| b"go".to_vec());
        let request = Request { asker, run, key: Some(key.clone()), render: std::sync::Arc::new(settled) };
        now(bench.engine.begin_step(request, begin.clone())).unwrap()
    };
    let other = goes(begin(&bench, asker, run, &step("s")));
    assert!(
        matches!(ask(&bench, &step("s")), Answered::Now(Standing::Held { .. })),
        "not kept: asked again, it may be free"
    );
    end(&bench, asker, run, other, End::Failed(failure(None, "no".into(), None)), None);
    assert!(matches!(ask(&bench, &step("s")), Answered::Now(Standing::Go { .. })));
    let Answered::Before(again) = ask(&bench, &step("s")) else { panic!("begun twice") };
    assert_eq!(again.body, b"go");
    audited(&bench);
}

#[test]
fn a_first_step_that_cannot_be_paid_ends_the_run_that_was_made_with_it() {
    for (max_cost, state, status) in [(1, "go", RunStatus::Running), (1_000_000_000, "budget", RunStatus::Failed)] {
        let mut bench = Bench::new();
        let spec = RunSpec { kind: RunKind::External, command: Command::Argv(vec![]), ..spec() };
        let (org, plans) = (bench.org, Default::default());
        let submission = Submission { org, by: None, name: None, spec, plans, start: true };
        let first = Begin { max_cost: Credits::whole(max_cost), ..once("buy") };
        let render: FirstRender = Arc::new(|snapshot, standing| {
            let state = match standing {
                Standing::Go { fence: 1, .. } => "go".to_owned(),
                Standing::Failed { error, .. } => error.code.clone(),
                other => panic!("{other:?}"),
            };
            format!("{} {state}", snapshot.run.id).into_bytes()
        });
        let made = now(bench.engine.submit_with_step(submission, first, None, render)).unwrap();
        let said = String::from_utf8(made.body).unwrap();
        let (run, said) = said.split_once(' ').unwrap();
        bench.settle();
        let run: RunId = run.parse().unwrap();
        assert_eq!((said, bench.run(run).status), (state, status), "{:?}", bench.run(run).last_error);
        audited(&bench);
    }
}

#[test]
fn what_a_step_may_cost_is_set_aside_and_what_it_cost_is_charged_once() {
    let (mut bench, run, asker) = external();
    let costly = Begin { max_cost: Credits::whole(2), ..once("buy") };
    let at = goes(begin(&bench, asker, run, &costly));
    let attempt = |bench: &Bench| bench.snapshot(run).attempt.unwrap();
    assert!(attempt(&bench).left() >= Credits::whole(2) && attempt(&bench).charged.is_zero());
    let paid = |cost: Credits| End::Completed { output: json!("receipt"), cost };
    let too_much = now(bench.engine.end_step(Request::plain(asker, run), at, paid(Credits::whole(3)), None));
    assert!(too_much.unwrap_err().to_string().starts_with("cost: "));
    for _ in 0..2 {
        end(&bench, asker, run, at, paid(Credits::whole(1)), None);
    }
    assert_eq!(attempt(&bench).charged, Credits::whole(1));
    assert_eq!(outputs(&begin(&bench, asker, run, &costly)), &json!("receipt"), "a record costs nothing");
    audited(&bench);
    let dear = Begin { max_cost: Credits::whole(1_000_000_000), ..once("dear") };
    let standing = begin(&bench, asker, run, &dear);
    assert!(matches!(&standing, Standing::Failed { error, .. } if error.code == "budget"), "{standing:?}");
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Failed);
    assert_eq!(bench.run(run).termination.unwrap().reason, model::run::RunReason::Budget);
    audited(&bench);
}
