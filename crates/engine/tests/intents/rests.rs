//! Items that are due although there is nothing to do: many are put off by one claim, and nothing that has something to do is.

use crate::bench::{Bench, now, settings, spec};
use crate::machines::Plan;
use engine::Config;
use engine::run::Action;
use model::Limits;
use model::RunId;
use model::time::HOUR;
use store::{Item, Lane, Tx, WorkClass, WorkKind};

fn wake(bench: &Bench, runs: &[RunId]) {
    let runs = runs.to_vec();
    let woken = bench.engine.store.write(Lane::Normal, "test.wake", move |tx: &mut Tx| {
        let at = tx.at();
        runs.iter().for_each(|run| tx.wake(WorkKind::Run, run.0, at));
        Ok(())
    });
    now(woken).unwrap();
}

fn claimed(bench: &Bench) -> Vec<Item> {
    now(bench.engine.claim(&bench.worker, WorkClass::Control, 32)).unwrap()
}

#[test]
fn runs_that_wait_are_put_off_until_their_deadline_without_being_leased() {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    let busy = bench.submit(spec());
    bench.settle();
    let waiting: Vec<RunId> = (0..450).map(|_| bench.submit(spec())).collect();
    bench.act(waiting[7], Action::Pause).unwrap();
    bench.settle();
    wake(&bench, &waiting);
    assert_eq!(claimed(&bench), [], "all of them, however many a claim looks at");
    for id in &waiting {
        let run = bench.run(*id);
        let deadline = model::run::deadline(&run, &Limits::default(), false).map(|(due, _)| due);
        assert_eq!(deadline.is_some(), *id == waiting[7], "only a pause has an end");
        let subject = run.id.0;
        let find = move |tx: &mut Tx| store::work::find(tx, WorkKind::Run, subject);
        let item = now(bench.engine.store.read("test.find", find)).unwrap().unwrap();
        assert_eq!((item.due, item.owner), (deadline, None), "{id}");
    }
    // Compute is charged by the window: only a look can tell whether one is full.
    wake(&bench, &[busy]);
    let items = claimed(&bench);
    assert_eq!(items.iter().map(|item| item.subject).collect::<Vec<_>>(), [busy.0]);
    items.into_iter().for_each(|item| now(bench.engine.work_on(item)));
    bench.check();
}

#[test]
fn a_run_whose_deadline_has_come_is_not_put_off() {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    bench.submit(spec());
    bench.settle();
    let paused = bench.submit(spec());
    bench.act(paused, Action::Pause).unwrap();
    bench.settle();
    let is_claimed = |bench: &Bench| {
        wake(bench, &[paused]);
        claimed(bench).iter().any(|item| item.kind == WorkKind::Run && item.subject == paused.0)
    };
    assert!(!is_claimed(&bench));
    let (deadline, _) = model::run::deadline(&bench.run(paused), &Limits::default(), false).unwrap();
    bench.outage(deadline.since(bench.at()) + HOUR);
    assert!(!is_claimed(&bench), "we were away all the while: that is not counted");
    let long_paused = move |tx: &mut Tx| {
        let mut run = store::run::lock(tx, paused)?;
        run.since = run.since - Limits::default().paused_ms;
        store::run::save(tx, &run)
    };
    now(bench.engine.store.write(Lane::Normal, "test.age", long_paused)).unwrap();
    assert!(is_claimed(&bench));
}
