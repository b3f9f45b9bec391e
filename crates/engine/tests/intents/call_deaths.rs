//! The control plane dies before and after the writes about calls that stories seldom reach: who asked asks again, and all ends alike.

use crate::bench::{Bench, now, spec};
use crate::cached_runs::{cached, is_hit, salted};
use crate::kept_results::{dead_item, executions, flaws, write};
use crate::machines::Plan;
use engine::call::{CallAnswer, CallAsked, CallRender};
use model::RunId;
use model::execution::ExecutionStatus;
use model::run::RunStatus;
use model::time::{DAY, HOUR, MINUTE};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::Moment;

/// The items of a worker that died are taken over within this time.
const TAKEN_OVER_MS: i64 = 11_000;

/// One write, what leads to it, and what is so afterwards.
struct Death<T> {
    point: &'static str,
    prepare: fn(&mut Bench) -> T,
    /// May be done again. In a dead process it does nothing.
    act: fn(&mut Bench, T),
    check: fn(&mut Bench, T),
}

impl<T: Copy> Death<T> {
    fn told(&self) {
        let mut bench = Bench::new();
        let of = (self.prepare)(&mut bench);
        bench.crashes.count();
        (self.act)(&mut bench, of);
        let writes = bench.crashes.writes.lock().unwrap().clone();
        let reached: Vec<usize> =
            writes.iter().enumerate().filter_map(|(at, name)| (*name == self.point).then_some(at)).collect();
        assert!(!reached.is_empty(), "{} is not among {writes:?}", self.point);
        (self.check)(&mut bench, of);
        for write in reached {
            for moment in [Moment::Before, Moment::After] {
                eprintln!("{} dies {moment:?} write {write}", self.point);
                let mut bench = Bench::new();
                let of = (self.prepare)(&mut bench);
                bench.crashes.arm(write, moment);
                (self.act)(&mut bench, of);
                assert!(bench.crashes.has_struck());
                bench.revive();
                bench.advance(TAKEN_OVER_MS);
                (self.act)(&mut bench, of);
                (self.check)(&mut bench, of);
                bench.check();
            }
        }
    }
}

fn is_dead(bench: &Bench) -> bool {
    bench.crashes.dead.load(Ordering::Relaxed)
}

#[test]
fn rows_of_pins_are_made_again() {
    let prepare = |bench: &mut Bench| {
        let runs = ["one", "two"].map(|salt| bench.submit(salted(spec(), salt)));
        bench.settle();
        let org = bench.org;
        let nodes = runs.map(|run| bench.run(run).call.unwrap().node.parse().unwrap());
        write(bench, move |tx| nodes.iter().try_for_each(|node| store::pin::remove(tx, org, "default", *node)));
    };
    let act = |bench: &mut Bench, ()| drop(now(bench.engine.rebuild_pins(bench.org)));
    let check = |bench: &mut Bench, ()| {
        assert_eq!(flaws(bench), [""; 0]);
        for salt in ["one", "two"] {
            let hit = bench.submit(salted(spec(), salt));
            assert!(is_hit(bench, hit), "{salt}");
        }
    };
    Death { point: "cache.rebuild", prepare, act, check }.told();
}

/// The call that cached runs of this specification have made.
fn ask(bench: &Bench) -> Option<CallAnswer> {
    let render: CallRender = Arc::new(|seen| seen.node.clone().into_bytes());
    let function = "dml+exec://dml-exec-repl/run".to_owned();
    let inputs = vec![serde_json::to_value(spec()).unwrap()];
    now(bench.engine.call(CallAsked { org: bench.org, function, inputs, cache: true }, None, render)).ok()
}

#[test]
fn a_hit_writes_nothing_but_once_an_hour_that_its_result_is_in_use() {
    let prepare = |bench: &mut Bench| {
        bench.submit(cached(spec()));
        bench.settle();
        bench.crashes.count();
        assert!(matches!(ask(bench), Some(CallAnswer::Hit(_))));
        assert_eq!(*bench.crashes.writes.lock().unwrap(), [""; 0], "a hit writes nothing");
        bench.jump(2 * HOUR);
    };
    let act = |bench: &mut Bench, ()| drop(ask(bench));
    let check = |bench: &mut Bench, ()| {
        assert!(matches!(ask(bench), Some(CallAnswer::Hit(_))));
        let pin = now(bench.engine.pins(bench.org, i64::MAX, 10)).unwrap().remove(0);
        assert!(bench.at().since(pin.used_at) < HOUR, "the last use is of now");
    };
    Death { point: "call.used", prepare, act, check }.told();
}

#[test]
fn an_execution_that_ended_long_ago_goes() {
    let prepare = |bench: &mut Bench| {
        bench.submit(cached(spec()));
        bench.settle();
        bench.jump(100 * DAY);
    };
    let act = |bench: &mut Bench, ()| bench.advance(MINUTE);
    let check = |bench: &mut Bench, ()| {
        // The item that collects is begun again after the death of its worker.
        bench.advance(MINUTE);
        assert_eq!(executions(bench, bench.org), []);
        let again = bench.submit(cached(spec()));
        assert_eq!(executions(bench, bench.org)[0].it.attempt, 2, "its first attempt is not forgotten");
        bench.settle();
        assert_eq!(bench.run(again).status, RunStatus::Completed);
    };
    Death { point: "execution.forget", prepare, act, check }.told();
}

/// Two runs wait for one execution, which is under way.
fn shared(bench: &mut Bench) -> (i64, [RunId; 2]) {
    bench.runners.plan = Some(Plan::Run);
    let callers = [(); 2].map(|()| bench.submit(cached(spec())));
    bench.settle();
    (bench.run(callers[0]).call.unwrap().execution.unwrap(), callers)
}

/// Its item is claimed by one worker more that would die on it.
fn gives_up(bench: &mut Bench, (execution, _): (i64, [RunId; 2])) {
    if !is_dead(bench) {
        let item = dead_item(bench, execution);
        now(bench.engine.work_on(item));
    }
}

fn all_are_told(bench: &mut Bench, (_, callers): (i64, [RunId; 2])) {
    bench.settle();
    let it = executions(bench, bench.org).remove(0).it;
    assert_eq!((it.status, it.error.unwrap().code.as_str()), (ExecutionStatus::FailedTerminal, "poisoned"));
    for caller in callers {
        let told = bench.run(caller);
        assert_eq!((told.status, told.last_error.unwrap().code.as_str()), (RunStatus::Failed, "poisoned"));
    }
    bench.check_all_gone();
}

#[test]
fn an_execution_that_kills_its_workers_is_given_up() {
    Death { point: "execution.give_up", prepare: shared, act: gives_up, check: all_are_told }.told();
}

#[test]
fn callers_are_failed_where_the_item_is_given_up() {
    let act = |bench: &mut Bench, of| {
        gives_up(bench, of);
        gives_up(bench, of);
    };
    Death { point: "execution.fail_caller", prepare: shared, act, check: all_are_told }.told();
}
