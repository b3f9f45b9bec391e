//! Situations in which two things come together: a completion and a cancel, the end of some agents and the death of the worker that acts
//! on the others.

use crate::agents::{agent, check, step, submit_agents, task, tree};
use crate::bench::{Bench, spec};
use adapters::tool::fake::Fate;
use engine::run::Action;
use model::RunId;
use model::agent::AgentStatus;
use model::run::RunStatus;
use model::time::MINUTE;

/// Events that say that the run has ended.
fn ends(bench: &Bench, run: RunId) -> Vec<String> {
    let kinds = ["run.completed", "run.failed", "run.cancelled"];
    bench.events(run).into_iter().filter(|kind| kinds.contains(&kind.as_str())).collect()
}

#[test]
fn a_run_that_completes_while_it_is_cancelled_has_one_end() {
    for (cancelled_first, end) in [(true, RunStatus::Cancelled), (false, RunStatus::Completed)] {
        let mut bench = Bench::brief();
        let run = bench.running(spec());
        if cancelled_first {
            bench.cancel(run);
        }
        bench.exits(run, 0);
        if !cancelled_first {
            let refused = bench.act(run, Action::Cancel { abort: false });
            assert!(refused.is_err(), "it has ended");
        }
        bench.advance(MINUTE);
        assert_eq!((bench.run(run).status, ends(&bench, run).len()), (end, 1), "cancelled first: {cancelled_first}");
        let (reserved, charged, refunded) = bench.money(run, 1);
        assert_eq!(reserved, charged + refunded);
        bench.check();
    }
}

#[test]
fn an_answer_that_comes_while_its_run_is_cancelled_does_not_complete_it() {
    for cancelled_first in [true, false] {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
        let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![step("s")])])]);
        bench.settle();
        let call = bench.tool.hanging()[0].number;
        if cancelled_first {
            bench.cancel(run);
        }
        assert!(bench.tool.tell(call, Fate::answer(serde_json::json!(1))));
        if !cancelled_first {
            bench.cancel(run); // the answer is there, and no worker has recorded it yet
        }
        bench.advance(MINUTE);
        assert_eq!((bench.run(run).status, ends(&bench, run).len()), (RunStatus::Cancelled, 1));
        check(&bench);
    }
}

#[test]
fn a_worker_that_dies_while_two_of_five_agents_work_leaves_three_done_and_the_run_ends() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|call, _| match call.input["of"].as_str() {
        Some("d" | "e") => Fate::hang(),
        _ => Fate::answer(call.input.clone()),
    }));
    let names = ["a", "b", "c", "d", "e"];
    let agents = names.map(|name| agent(name, vec![task("all", vec![step(name)])])).to_vec();
    let run = submit_agents(&mut bench, agents);
    bench.settle();
    let statuses = |bench: &Bench| tree(bench, run).agents.iter().map(|agent| agent.status).collect::<Vec<_>>();
    let (done, works) = (AgentStatus::Completed, AgentStatus::Running);
    assert_eq!(statuses(&bench), [done, done, done, works, works]);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    bench.restart();
    bench.tool.decide_by(Box::new(|call, _| Fate::answer(call.input.clone())));
    bench.advance(MINUTE);
    assert_eq!(statuses(&bench), [done; 5]);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    for step in tree(&bench, run).steps {
        let calls = if ["d", "e"].contains(&step.name.as_str()) { 2 } else { 1 };
        assert_eq!(bench.tool.seen_of(&step.key.unwrap()).calls, calls, "{}", step.name);
    }
    check(&bench);
}
