//! Bounds that hold while a run goes on, not only when its plan is checked: items of a `for_each`, and calls of a model side by side.

use crate::agents::{agent, agents_spec, check, found, step, submit, task, tree};
use crate::bench::Bench;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use model::plan::{Policy, RunPlan, StepPlan, TaskPlan, ToolPlan};
use model::run::RunStatus;
use model::step::ToolKind;
use model::task::TaskStatus;
use model::time::{MINUTE, SECOND};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The list is an earlier step's answer, so that no check of the plan can count it.
#[test]
fn a_list_of_more_than_100_items_fails_its_task_before_any_of_them_begins() {
    for (items, status, calls) in [(100, RunStatus::Completed, 101), (101, RunStatus::Failed, 1)] {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(move |call, _| match call.input["of"] == "list" {
            true => Fate::answer(json!((0..items).collect::<Vec<i64>>())),
            false => Fate::answer(json!({})),
        }));
        let each = StepPlan { input: json!({ "of": "each", "n": "${{ item }}" }), ..step("each") };
        let each = TaskPlan {
            after: vec![0],
            for_each: Some(json!("${{ tasks.first.steps.list.output }}")),
            ..task("all", vec![each])
        };
        let agents = vec![agent("one", vec![task("first", vec![step("list")]), each])];
        let run = submit(&mut bench, agents_spec(), Plans { agents, ..Plans::default() });
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).status, status, "{items}: {:?}", bench.run(run).last_error);
        assert_eq!(bench.tool.seen().len(), calls, "{items}");
        if status == RunStatus::Failed {
            let why = bench.run(run).last_error.unwrap().message;
            assert!(why.contains("101 items: 100 are allowed"), "{why}");
            assert_eq!(tree(&bench, run).tasks.last().unwrap().status, TaskStatus::Failed);
        }
        check(&bench);
    }
}

/// A model asks for nine calls at once; its task has three steps side by side, or as many as it says.
#[test]
fn calls_of_one_turn_run_side_by_side_up_to_the_bound_of_their_task() {
    for (parallel, parallel_calls, most) in
        [(1, None, 3), (2, None, 2), (5, None, 5), (1, Some(1), 1), (1, Some(4), 4), (5, Some(5), 5)]
    {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(|call, _| match call.input["messages"].as_array() {
            None => Fate::hang(),
            Some(messages) => {
                let asks = messages.iter().all(|message| message["role"] != "assistant");
                let calls = (0..if asks { 9 } else { 0 }).map(|n| json!({ "name": "look", "arguments": { "at": n } }));
                let message = json!({ "content": "", "tool_calls": calls.collect::<Value>() });
                Fate::answer(json!({ "message": message, "finish_reason": "stop" }))
            }
        }));
        let look = ToolPlan {
            tool: ToolKind::Http,
            description: String::new(),
            args: BTreeMap::from([("at".to_owned(), json!({ "type": "integer" }))]),
            policy: Policy::Allow,
            idempotent: true,
            timeout_ms: Some(30 * SECOND),
            input: json!({ "of": "${{ args.at }}" }),
        };
        let input = json!({ "model": "default", "prompt": "go", "tools": ["look"], "max_turns": 5 });
        let talk = StepPlan { input, idempotent: true, ..StepPlan::new("talk", ToolKind::Llm) };
        let shared = RunPlan { tools: BTreeMap::from([("look".to_owned(), look)]), ..RunPlan::default() };
        let agents = vec![agent("one", vec![TaskPlan { parallel, parallel_calls, ..task("all", vec![talk]) }])];
        let run = submit(&mut bench, agents_spec(), Plans { agents, shared, ..Plans::default() });
        bench.settle();
        let mut answered = 0;
        while answered < 9 {
            let hanging = bench.tool.hanging();
            assert_eq!(hanging.len(), most.min(9 - answered), "of {parallel} and {parallel_calls:?}, after {answered}");
            assert!(found(&bench, run, "talk").children.running <= most as i64);
            assert!(bench.tool.tell(hanging[0].number, Fate::answer(json!({}))));
            answered += 1;
            bench.settle();
        }
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
        check(&bench);
    }
}
