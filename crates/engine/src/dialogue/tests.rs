//! Dialogues by hand: what comes next after each way in which turns and calls end.

use super::*;
use crate::plan_limits::PlanLimits;
use model::run::LastError;
use model::spec::{Command, RunSpec};

fn tool(policy: Policy) -> ToolPlan {
    ToolPlan {
        tool: ToolKind::Http,
        description: "Looks things up.".into(),
        args: BTreeMap::from([
            ("q".to_owned(), json!({ "type": "string" })),
            ("n".to_owned(), json!({ "type": "integer", "default": 3 })),
        ]),
        policy,
        idempotent: true,
        timeout_ms: Some(30_000),
        input: json!({ "method": "GET", "url": "https://search.example/", "query": { "q": "${{ args.q }}", "n": "${{ args.n }}" } }),
    }
}

fn dialogue(max_turns: i64, schema: Option<Value>) -> Dialogue {
    let shared = RunPlan {
        tools: BTreeMap::from([("search".to_owned(), tool(Policy::Allow)), ("shell".to_owned(), tool(Policy::Ask))]),
        ..RunPlan::default()
    };
    let input = json!({ "model": "default", "system": "Be brief.", "prompt": "Find it.", "tools": ["search", "shell"], "max_turns": max_turns });
    Dialogue::new(input, schema, &shared, Scope::new(), 100_000)
}

fn says(text: &str) -> Ended {
    Ended::Answered(json!({ "message": { "content": text, "tool_calls": [] }, "finish_reason": "stop" }))
}

fn asks(calls: Value) -> Ended {
    Ended::Answered(json!({ "message": { "content": null, "tool_calls": calls }, "finish_reason": "tool_calls" }))
}

fn fails(class: ErrorClass, code: &str) -> Ended {
    let error = LastError { code: code.into(), message: "no answer".into(), cause: None };
    let failure = StepFailure { class, effect: Effect::Perhaps, retry_after_ms: None, error };
    Ended::Failed(ChildFailure { failure, tries: 5 })
}

fn call(name: &str, arguments: Value) -> Value {
    json!({ "name": name, "arguments": arguments })
}

fn wanted(next: Next) -> Vec<Wanted> {
    match next {
        Next::Children(wanted) => wanted,
        other => panic!("{other:?}"),
    }
}

fn code(next: Next) -> String {
    match next {
        Next::Failed(failed) => failed.failure.error.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_turn_offers_tools_and_the_last_one_offers_none() {
    let mut it = dialogue(2, None);
    let first = wanted(it.next());
    assert_eq!((first.len(), first[0].name.as_str(), first[0].tool), (1, "t1", ToolKind::Llm));
    assert_eq!(first[0].input["messages"][0], json!({ "role": "system", "content": "Be brief." }));
    assert_eq!(first[0].input["tools"][0]["parameters"]["required"], json!(["q"]));
    it.ended("t1", asks(json!([call("search", json!({ "q": "x" }))])));
    it.ended("t1/c1", Ended::Answered(json!({ "status": 200 })));
    let last = wanted(it.next());
    assert_eq!((last[0].name.as_str(), last[0].input.get("tools")), ("t2", None));
    assert_eq!(last[0].kept["added"].as_array().unwrap().len(), 1, "a turn keeps only what it added: {}", last[0].kept);
    it.ended("t2", says("done"));
    assert_eq!(it.next(), Next::Done(json!({ "text": "done", "finish_reason": "stop", "turns": 2 })));
}

#[test]
fn calls_of_a_turn_come_together_and_each_gets_a_result_in_its_order() {
    let mut it = dialogue(5, None);
    let calls = json!([
        call("search", json!({ "q": "a" })),
        call("shell", json!({ "q": "b", "n": 1 })),
        call("other", json!({})),
        call("search", json!({ "q": 7 })),
        { "name": "search", "arguments": null, "unparseable": "{" },
        call("search", json!({ "q": "a", "evil": 1 })),
    ]);
    it.ended("t1", asks(calls));
    let next = wanted(it.next());
    let names: Vec<(&str, bool)> = next.iter().map(|call| (call.name.as_str(), call.ask)).collect();
    assert_eq!(names, [("t1/c1", false), ("t1/c2", true)]);
    assert_eq!(next[0].input["query"], json!({ "q": "a", "n": 3 }), "defaults are filled in");
    it.ended("t1/c2", fails(ErrorClass::Permanent, "rejected"));
    assert_eq!(wanted(it.next())[0].name, "t1/c1", "every call is waited for");
    it.ended("t1/c1", Ended::Answered(json!("found")));
    let turn = wanted(it.next()).remove(0);
    let messages = turn.input["messages"].as_array().unwrap();
    let results: Vec<&str> = messages[3..].iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(results[0], "\"found\"");
    for (at, words) in
        [(1, "rejected"), (2, "unknown_tool"), (3, "invalid_arguments"), (4, "denied"), (5, "no argument `evil`")]
    {
        assert!(results[at].contains(words), "{at}: {}", results[at]);
    }
    assert_eq!(messages[2]["tool_calls"][1]["id"], messages[4]["tool_call_id"]);
}

#[test]
fn a_wrong_final_answer_is_sent_back_twice() {
    let schema = json!({ "type": "object", "required": ["summary"] });
    let mut it = dialogue(1, Some(schema));
    let json_of = |value: Value| {
        Ended::Answered(
            json!({ "message": { "content": "", "tool_calls": [], "json": value }, "finish_reason": "stop" }),
        )
    };
    it.ended("t1", says("no json"));
    let again = wanted(it.next()).remove(0);
    assert_eq!(again.name, "t2");
    assert!(again.input["messages"][3]["content"].as_str().unwrap().contains("cannot be used"));
    it.ended("t2", json_of(json!({})));
    assert!(wanted(it.next())[0].input["messages"][5]["content"].as_str().unwrap().contains("summary"));
    let mut good = dialogue(1, it.schema.clone());
    good.ended = it.ended.clone();
    good.ended("t3", json_of(json!({ "summary": "s" })));
    assert_eq!(good.next(), Next::Done(json!({ "summary": "s" })));
    it.ended("t3", json_of(json!([])));
    assert_eq!(code(it.next()), "invalid_output");
}

#[test]
fn a_model_that_never_ends_is_ended() {
    let mut it = dialogue(1, None);
    it.ended("t1", asks(json!([call("search", json!({ "q": "a" }))])));
    assert_eq!(code(it.next()), "max_turns");
}

#[test]
fn a_dialogue_that_is_too_long_is_shortened_once() {
    let mut it = dialogue(50, None);
    let long = "x".repeat(30_000);
    for turn in 1..8 {
        it.ended(&format!("t{turn}"), asks(json!([call("search", json!({ "q": "a" }))])));
        it.ended(&format!("t{turn}/c1"), Ended::Answered(json!(long)));
    }
    assert_eq!(wanted(it.next())[0].input["messages"].as_array().unwrap().len(), 2 + 7 * 2);
    it.ended("t8", asks(json!([call("search", json!({ "q": "a" }))])));
    it.ended("t8/c1", Ended::Answered(json!(long)));
    let short = wanted(it.next()).remove(0);
    let messages = short.input["messages"].as_array().unwrap();
    assert!(messages.len() < 2 + 8 * 2 && messages.len() > 4, "{}", messages.len());
    assert_eq!(messages[1]["content"], "Find it.");
    assert!(messages[2]["content"].as_str().unwrap().contains("earlier turns"), "{}", messages[2]);
    assert_eq!(messages[3]["role"], "assistant", "whole turns are kept");
    for turn in 9..30 {
        it.ended(&format!("t{turn}"), asks(json!([call("search", json!({ "q": "a" }))])));
        it.ended(&format!("t{turn}/c1"), Ended::Answered(json!(long)));
    }
    assert_eq!(code(it.next()), CONTEXT_LENGTH);
}

#[test]
fn a_server_that_finds_the_prompt_too_long_is_asked_again_with_less() {
    let mut it = dialogue(5, None);
    for turn in 1..3 {
        it.ended(&format!("t{turn}"), asks(json!([call("search", json!({ "q": "a" }))])));
        it.ended(&format!("t{turn}/c1"), Ended::Answered(json!("y".repeat(70_000))));
    }
    let too_long = || fails(ErrorClass::Permanent, CONTEXT_LENGTH);
    it.ended("t3", too_long());
    let short = wanted(it.next()).remove(0);
    assert_eq!(short.name, "t3/short");
    assert!(short.input["messages"].as_array().unwrap().len() < 6);
    it.ended("t3/short", too_long());
    assert_eq!(code(it.next()), CONTEXT_LENGTH);
}

fn with_server(policy: Policy, only: Option<Value>) -> Dialogue {
    let mut input = json!({ "argv": ["./files"], "env": { "ROOT": "${{ inputs.root }}" } });
    input.as_object_mut().unwrap().extend(only.map(|only| ("tools".to_owned(), only)));
    let files = ToolPlan { tool: ToolKind::Mcp, args: BTreeMap::new(), input, idempotent: false, ..tool(policy) };
    let shared = RunPlan {
        tools: BTreeMap::from([("files".to_owned(), files), ("files__read".to_owned(), tool(Policy::Allow))]),
        ..RunPlan::default()
    };
    let input = json!({ "model": "default", "prompt": "Go.", "tools": ["files", "files__read"], "max_turns": 5 });
    Dialogue::new(input, None, &shared, Scope::new().with("inputs", json!({ "root": "/data" })), 100_000)
}

fn listed() -> Value {
    let path = json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"], "additionalProperties": false });
    json!({ "tools": [
        { "name": "write", "description": "Writes.", "input": path },
        { "name": "read", "description": null, "input": path },
        { "name": "list all", "description": "Lists.", "input": {} },
        { "name": "x".repeat(80), "description": "", "input": { "type": "no such type" } },
        { "name": "write", "description": "again", "input": {} },
    ] })
}

#[test]
fn a_servers_tools_are_listed_once_before_the_first_turn_and_offered_by_its_name() {
    let mut it = with_server(Policy::Ask, Some(json!(["write", "read"])));
    let first = wanted(it.next());
    assert_eq!((first.len(), first[0].name.as_str(), first[0].tool), (1, "tools/files", ToolKind::Mcp));
    assert_eq!(
        first[0].input,
        json!({ "argv": ["./files"], "env": { "ROOT": "/data" }, "tools": ["write", "read"] }),
        "expressions are evaluated"
    );
    assert!(first[0].idempotent && !first[0].ask, "a list changes nothing");
    it.ended("tools/files", Ended::Answered(listed()));
    let turn = wanted(it.next()).remove(0);
    assert_eq!(turn.name, "t1");
    let names: Vec<&str> =
        turn.input["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 5, "one that is listed twice is offered once: {names:?}");
    assert!(names.contains(&"files__write") && names.contains(&"files__read"), "{names:?}");
    let good = |name: &str| name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    assert!(names.iter().all(|name| good(name)), "{names:?}");
    let other_read =
        names.iter().find(|name| name.starts_with("files__read_")).expect("the file has a tool of that name");
    it.ended(
        "t1",
        asks(json!([
            call("files__write", json!({ "path": "${{ inputs.root }}" })),
            call(other_read, json!({ "path": "b" })),
            call("files__write", json!({ "path": 7 })),
            call("files__write", json!({ "path": "a", "more": 1 })),
            call("files", json!({})),
        ])),
    );
    let calls = wanted(it.next());
    assert_eq!(calls.len(), 2, "arguments that do not match are answered, and not sent: {calls:?}");
    assert_eq!(
        calls[0].input,
        json!({ "argv": ["./files"], "env": { "ROOT": "/data" }, "tool": "write", "arguments": { "path": "${{ inputs.root }}" } }),
        "what a model says is no expression"
    );
    assert_eq!((calls[1].input["tool"].as_str(), calls[1].ask, calls[1].idempotent), (Some("read"), true, false));
}

#[test]
fn a_list_that_cannot_be_had_ends_the_dialogue_and_a_denied_server_is_not_asked() {
    let mut it = with_server(Policy::Ask, None);
    it.ended("tools/files", fails(ErrorClass::Transient, "timeout"));
    match it.next() {
        Next::ChildFailed(ChildFailure { failure, tries: 5 }) => {
            assert_eq!(failure.error.message, "the tools of `files` cannot be listed: no answer");
            assert_eq!((failure.class, failure.effect), (ErrorClass::Transient, Effect::Perhaps));
        }
        other => panic!("{other:?}"),
    }
    let denied = wanted(with_server(Policy::Deny, None).next()).remove(0);
    assert_eq!((denied.name.as_str(), denied.input["tools"].as_array().unwrap().len()), ("t1", 1));
    let mut many = with_server(Policy::Ask, None);
    let tools: Vec<Value> = (0..MOST_TOOLS).map(|n| json!({ "name": format!("t{n}"), "input": {} })).collect();
    many.ended("tools/files", Ended::Answered(json!({ "tools": tools })));
    assert_eq!(code(many.next()), "too_many_tools");
}

#[test]
fn a_turn_has_the_tries_of_its_step_and_its_failure_is_that_of_the_dialogue() {
    let mut it = dialogue(5, None).tried(7);
    let turn = wanted(it.next()).remove(0);
    assert_eq!(turn.max_tries, 7);
    it.ended("t1", asks(json!([call("search", json!({ "q": "a" }))])));
    assert_eq!(wanted(it.next())[0].max_tries, MAX_TRIES, "a call is the model's matter");
    it.ended("t1", fails(ErrorClass::RateLimited, "http_429"));
    match it.next() {
        Next::ChildFailed(failed) => {
            assert_eq!((failed.failure.class, failed.tries), (ErrorClass::RateLimited, 5));
            assert_eq!((failed.failure.effect, failed.failure.error.code.as_str()), (Effect::Perhaps, "http_429"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_people_said_stands_before_the_turn_that_took_it_in_every_later_prompt() {
    let said = |turn: &Wanted| -> Vec<(usize, String)> {
        let messages = turn.input["messages"].as_array().unwrap().iter().enumerate().skip(2);
        let users = messages.filter(|(_, message)| message["role"] == "user");
        users.map(|(at, message)| (at, message["content"].as_str().unwrap().to_owned())).collect()
    };
    let mut it = dialogue(5, None);
    it.offer("t1", vec!["early".into()]);
    assert_eq!(said(&wanted(it.next())[0]), [(2, "early".to_owned())]);
    it.ended("t1", asks(json!([call("search", json!({ "q": "a" }))])));
    it.ended("t1/c1", Ended::Answered(json!("found")));
    let plain = wanted(it.next()).remove(0);
    it.offer("t2", vec!["no".into()]);
    it.offer("t2", vec!["late".into(), "later".into()]);
    let told = wanted(it.next()).remove(0);
    assert_ne!(plain.input, told.input);
    assert_eq!(said(&told)[1..], [(5, "late".to_owned()), (6, "later".to_owned())], "behind the results of the calls");
    assert_eq!(told.kept["added"].as_array().unwrap().len(), 3, "and kept with the turn: {}", told.kept);
    // Another holder reads the same from the rows.
    let mut other = dialogue(5, None);
    other.heard("t1", "early".into());
    other.heard("t2", "late".into());
    other.heard("t2", "later".into());
    other.ended = it.ended.clone();
    assert_eq!(other.next(), it.next());
}

/// The answer of a planner's dialogue is checked as a file is.
#[test]
fn a_plan_with_mistakes_is_sent_back_with_them() {
    let document = json!({ "type": "agents", "goal": "g", "planner": { "llm": {}, "allow": ["http"] } });
    let answers = |plan: Value| {
        let message = json!({ "content": plan.to_string(), "tool_calls": [], "json": plan });
        Ended::Answered(json!({ "message": message, "finish_reason": "stop" }))
    };
    let tasks = |step: Value| json!({ "tasks": [{ "steps": [step] }] });
    let works = || tasks(json!({ "http": { "url": "https://h.example/" } }));
    let forbidden = json!({ "agents": [tasks(json!({ "name": "x", "command": "rm" }))] });
    let too_many = json!({ "agents": [works(), works()] });
    let good = json!({ "agents": [works()] });
    let table = [(forbidden, "must not use `command`"), (too_many, "more than 9 agents: it may have 1")];
    for ((bad, why), asked_again) in table.iter().flat_map(|row| (0..=3).map(move |times| (row, times))) {
        let (spec, org) = (RunSpec::task(Command::Argv(Vec::new()), "local", "here").terms(), "lab".to_owned());
        let limits = PlanLimits { document: document.clone(), most: 9, room: 1, spec, org };
        let file = plan::check(&document).unwrap().document;
        let mut it = dialogue(1, None).planning(Some(Box::new(move |plan| limits.allowed(&file, plan).err())));
        for turn in 1..=asked_again {
            it.ended(&format!("t{turn}"), answers(bad.clone()));
        }
        if asked_again == 3 {
            assert_eq!(code(it.next()), "invalid_output", "the third mistake is the last");
            continue;
        }
        let next = wanted(it.next()).remove(0);
        let said = next.input["messages"].as_array().unwrap().last().unwrap().to_string();
        assert_eq!(said.contains(why), asked_again > 0, "{said}");
        it.ended(&next.name, answers(good.clone()));
        assert_eq!(it.next(), Next::Done(good.clone()));
    }
}
