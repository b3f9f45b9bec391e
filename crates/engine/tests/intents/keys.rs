//! Requests that are repeated: one effect, the same bytes, also when the first answer was lost with its process.

use crate::bench::{Bench, now, shown, spec};
use engine::run::{Action, KeyedResponse, Submission};
use model::run::RunStatus;
use model::time::{DAY, HOUR};
use model::{Failure, Refused};
use store::Moment;
use store::idempotency::Key;

fn submission(bench: &Bench) -> Submission {
    Submission { org: bench.org, by: None, name: None, spec: spec(), plans: Default::default(), start: true }
}

#[test]
fn the_same_request_gets_the_same_bytes_and_has_one_effect() {
    let mut bench = Bench::new();
    let key = bench.key();
    let first = now(bench.engine.submit(submission(&bench), Some(key.clone()), shown())).unwrap();
    bench.settle(); // whatever becomes of the run, the answer stays
    let again = now(bench.engine.submit(submission(&bench), Some(key.clone()), shown())).unwrap();
    assert_eq!((first.status, &first.body, first.replayed), (201, &again.body, false));
    assert_eq!((again.status, again.replayed), (201, true));
    assert_eq!(now(bench.engine.list_runs(bench.org, engine::view::Which::All, i64::MAX, 10)).unwrap().len(), 1);
    let other = Key { hash: [99; 32], ..key.clone() };
    let refused = now(bench.engine.submit(submission(&bench), Some(other), shown())).unwrap_err();
    assert_eq!(refused.refused(), Some(&Refused::KeyReused));
    let elsewhere = Key { route: "POST /elsewhere".to_owned(), ..key };
    assert!(!now(bench.engine.submit(submission(&bench), Some(elsewhere), shown())).unwrap().replayed);
}

#[test]
fn a_crash_between_effect_and_answer_changes_nothing() {
    for moment in [Moment::Before, Moment::After] {
        let mut bench = Bench::new();
        bench.crashes.arm(0, moment);
        let run = bench.submit(spec());
        assert_eq!(bench.starts, 2, "it died over the first request");
        assert_eq!(now(bench.engine.list_runs(bench.org, engine::view::Which::All, i64::MAX, 10)).unwrap().len(), 1);
        bench.settle();
        bench.expect_end(run, RunStatus::Completed, None);
        bench.check();
    }
}

/// A key does not expire because of a day in which the client could not repeat its request: an outage, or a clock that was set forward.
#[test]
fn an_answer_is_kept_for_a_day_in_which_it_could_be_asked_for() {
    let mut bench = Bench::brief();
    let key = bench.key();
    let first = bench.submit_with(spec(), key.clone()).unwrap();
    for outage_ms in [25 * HOUR, 3 * DAY] {
        bench.outage(outage_ms);
        bench.advance(2 * HOUR);
        let again = bench.submit_with(spec(), key.clone()).unwrap();
        assert_eq!((again.body, again.replayed), (first.body.clone(), true));
    }
    bench.advance(DAY);
    assert!(!bench.submit_with(spec(), key).unwrap().replayed, "a day has passed");
}

/// What a person hears: the refusal itself, or the same words again.
fn refusal(answer: Result<KeyedResponse, Failure>) -> (String, bool) {
    match answer {
        Ok(answer) => {
            assert!(answer.status >= 400 && answer.replayed, "{answer:?}");
            (String::from_utf8(answer.body).unwrap(), true)
        }
        Err(failure) => (failure.refused().expect("the rules say no").to_string(), false),
    }
}

#[test]
fn a_refusal_is_remembered_even_if_it_would_be_granted_now() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(crate::machines::Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let (key, other, retry) = (bench.key(), bench.key(), Action::Retry { force: false });
    let ask = |bench: &Bench, key: &Key| now(bench.engine.act_on(bench.org, run, retry, Some(key.clone()), shown()));
    let (why, replayed) = refusal(ask(&bench, &key));
    assert!(why.contains("running") && !replayed, "{why}");
    bench.exits(run, 1);
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    for _ in 0..2 {
        assert_eq!(refusal(ask(&bench, &key)), (why.clone(), true));
    }
    assert_eq!(bench.run(run).attempt, 1, "and nothing happened");
    assert_eq!(ask(&bench, &Key { hash: [99; 32], ..key }).unwrap_err().refused(), Some(&Refused::KeyReused));
    assert_eq!(ask(&bench, &other).unwrap().status, 200, "another key is another request");
    assert_eq!(bench.run(run).attempt, 2);
    bench.settle();
    bench.exits(run, 0);
    bench.check();
}

#[test]
fn a_refused_request_leaves_its_answer_and_nothing_else() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(crate::machines::Plan::Run);
    let named = |bench: &Bench| Submission { name: Some("mine".to_owned()), ..submission(bench) };
    let first = now(bench.engine.submit(named(&bench), None, shown())).unwrap();
    let (key, before) = (bench.key(), bench.balance());
    let (why, _) = refusal(now(bench.engine.submit(named(&bench), Some(key.clone()), shown())));
    assert!(why.contains("open already"), "{why}");
    assert_eq!(bench.balance(), before, "what it would have reserved came back");
    assert_eq!(now(bench.engine.list_runs(bench.org, engine::view::Which::All, i64::MAX, 10)).unwrap().len(), 1);
    bench.settle();
    bench.exits(String::from_utf8(first.body).unwrap().parse().unwrap(), 0);
    assert_eq!(
        refusal(now(bench.engine.submit(named(&bench), Some(key), shown()))),
        (why, true),
        "the name is free now"
    );
    bench.check();
}

/// A refused transaction commits nothing, so the first commit is that of the refusal; until then no client was answered.
#[test]
fn a_crash_between_a_refusal_and_its_answer_changes_nothing() {
    for moment in [Moment::Before, Moment::After] {
        let mut bench = Bench::new();
        let run = bench.submit(spec());
        bench.settle();
        let (key, retry) = (bench.key(), Action::Retry { force: false });
        bench.crashes.arm(0, moment);
        let ask = |bench: &Bench| now(bench.engine.act_on(bench.org, run, retry, Some(key.clone()), shown()));
        assert!(matches!(ask(&bench), Err(Failure::Trouble(_))), "it died: {moment:?}");
        assert!(bench.revive());
        let (why, replayed) = refusal(ask(&bench));
        assert_eq!(replayed, moment == Moment::After, "{why}");
        assert_eq!(refusal(ask(&bench)), (why, true));
        bench.check();
    }
}

/// 402 and validation errors are judged anew: a client that mends what was wrong may use its key.
#[test]
fn a_refusal_that_the_asker_can_mend_is_not_remembered() {
    let mut bench = Bench::new();
    let secret = model::spec::RunSpec { secrets: vec!["TOKEN".to_owned()], ..spec() };
    let key = bench.key();
    for _ in 0..2 {
        let refused = bench.submit_with(secret.clone(), key.clone()).unwrap_err();
        assert!(matches!(refused.refused(), Some(Refused::Invalid { .. })), "{refused:?}");
    }
    now(bench.engine.put_secret(bench.org, "TOKEN".to_owned(), "hunter22".to_owned())).unwrap();
    assert_eq!(bench.submit_with(secret, key).unwrap().status, 201);
    let mut config = engine::Config::default();
    config.money.first_topup = model::Credits(1);
    let mut poor = Bench::with(crate::bench::settings(2), config);
    let key = poor.key();
    for _ in 0..2 {
        let refused = poor.submit_with(spec(), key.clone()).unwrap_err();
        assert!(matches!(refused.refused(), Some(Refused::Unaffordable { .. })), "{refused:?}");
    }
    let balance: engine::ledger::OrgRender = std::sync::Arc::new(|_| Vec::new());
    let topup = model::Credits::whole(1000);
    now(poor.engine.add_credits(poor.org, topup, String::new(), None, balance)).unwrap();
    assert_eq!(poor.submit_with(spec(), key).unwrap().status, 201);
}

#[test]
fn a_name_is_taken_while_its_run_is_open() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(crate::machines::Plan::Run);
    let named = |bench: &Bench| Submission { name: Some("mine".to_owned()), ..submission(bench) };
    let answer = now(bench.engine.submit(named(&bench), None, shown())).unwrap();
    let run = String::from_utf8(answer.body).unwrap().parse().unwrap();
    let refused = now(bench.engine.submit(named(&bench), None, shown())).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Conflict { .. })), "{refused:?}");
    bench.settle();
    bench.exits(run, 0);
    now(bench.engine.submit(named(&bench), None, shown())).unwrap();
    bench.check();
}

#[test]
fn a_deleted_run_is_hidden_and_its_ledger_stays() {
    let mut bench = Bench::new();
    let run = bench.submit(spec());
    assert!(now(bench.engine.delete(bench.org, run)).is_err(), "it is open");
    bench.settle();
    now(bench.engine.delete(bench.org, run)).unwrap();
    now(bench.engine.delete(bench.org, run)).unwrap(); // asked twice
    assert!(now(bench.engine.snapshot(bench.org, run)).is_err());
    let refused = bench.act(run, Action::Cancel { abort: false }).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::NotFound { .. })), "{refused:?}");
    assert!(!now(bench.engine.ledger(bench.org, 0, 100)).unwrap().is_empty());
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_secret_travels_to_the_machine_and_a_missing_one_is_refused() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(crate::machines::Plan::Run);
    let secret = model::spec::RunSpec { secrets: vec!["TOKEN".to_owned()], ..spec() };
    let key = bench.key();
    let refused = bench.submit_with(secret.clone(), key).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Invalid { .. })), "{refused:?}");
    now(bench.engine.put_secret(bench.org, "TOKEN".to_owned(), "hunter22".to_owned())).unwrap();
    let run = bench.submit(secret);
    bench.settle();
    let desired = now(bench.engine.desired(bench.job(run).instance.unwrap())).unwrap().job.unwrap();
    assert_eq!(desired.secrets["TOKEN"], "hunter22");
    let told = format!("{:?}", bench.events(run));
    assert!(!told.contains("hunter22"));
    now(bench.engine.delete_secret(bench.org, "TOKEN".to_owned())).unwrap();
    let desired = now(bench.engine.desired(bench.job(run).instance.unwrap())).unwrap().job.unwrap();
    assert!(desired.secrets.is_empty(), "missing there as it is here");
    bench.exits(run, 0);
    bench.check();
}

/// A machine with a running job is ended in one transaction with its run: a crash leaves both or neither, a repetition nothing.
#[test]
fn a_forced_termination_happens_once_with_its_run() {
    for moment in [Moment::Before, Moment::After] {
        let mut bench = Bench::new();
        bench.runners.plan = Some(crate::machines::Plan::Run);
        let run = bench.submit(spec());
        bench.settle();
        let (id, key) = (bench.job(run).instance.unwrap(), bench.key());
        bench.crashes.arm(0, moment);
        let first = bench.terminate_with(id, true, key.clone()).unwrap();
        assert_eq!(bench.starts, 2, "it died over the request");
        assert_eq!(first.body, b"terminate:terminating");
        bench.advance(20 * model::time::SECOND);
        let again = bench.terminate_with(id, true, key.clone()).unwrap();
        assert_eq!((&again.body, again.replayed), (&first.body, true), "{moment:?}");
        assert_eq!(bench.run(run).status, RunStatus::Cancelled);
        let workflows = now(bench.store.read("test", move |tx| store::workflow::of_instance(tx, id))).unwrap();
        assert_eq!(workflows.len(), 1, "it is ended once");
        let other = bench.terminate_with(id, false, Key { hash: [99; 32], ..key }).unwrap_err();
        assert_eq!(other.refused(), Some(&Refused::KeyReused));
        bench.check();
    }
}
