//! Each refusal of a document, with its place and its words.

use super::*;
use crate::{Template, compile};
use model::plan::{MAX_PLANNED_AGENTS, Policy};
use model::step::ToolKind;
use model::time::{HOUR, MINUTE, SECOND};
use serde_json::json;

fn market() -> Value {
    serde_json::from_str(include_str!("../../tests/market.json")).unwrap()
}

fn with_steps(steps: Value) -> Value {
    json!({ "type": "agents", "inputs": { "topic": "solar" }, "agents": [{ "name": "a", "tasks": [{ "name": "t", "steps": steps }] }] })
}

fn with_tasks(parallelism: &str, tasks: Value) -> Value {
    json!({ "type": "agents", "inputs": { "topic": "solar", "list": [1] }, "agents": [{ "name": "a", "parallelism": parallelism, "tasks": tasks }] })
}

fn problems(document: &Value) -> Vec<String> {
    match check(document) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(Problem::to_string).collect(),
    }
}

/// Exactly one problem, and it says this.
fn refused(document: Value, place: &str, words: &str) {
    let found = problems(&document);
    assert_eq!(found.len(), 1, "{words}: {found:#?}");
    assert!(
        found[0].starts_with(&format!("{place}: ")) && found[0].contains(words),
        "{} does not say {place}: {words}",
        found[0]
    );
}

fn step(step: Value, place: &str, words: &str) {
    let place = if place.is_empty() {
        "agents[0].tasks[0].steps[0]".to_owned()
    } else {
        format!("agents[0].tasks[0].steps[0].{place}")
    };
    refused(with_steps(json!([step])), &place, words);
}

#[test]
fn a_file_that_uses_every_field_is_accepted_and_compiled() {
    let checked = check(&market()).unwrap_or_else(|problems| panic!("{problems:#?}"));
    assert_eq!(checked.warnings, []);
    let plan = compile(&checked.document);
    model::plan::check(&plan.agents).unwrap();
    assert_eq!((plan.rules.replans, plan.rules.max_agents, plan.max_duration_ms), (2, 10, 12 * HOUR));
    let [research, build] = &plan.agents[..] else { panic!("two agents") };
    let after: Vec<&[usize]> = research.tasks.iter().map(|task| &task.after[..]).collect();
    assert_eq!(after, [&[][..], &[0], &[1]], "digest reads the output of sources; mail depends on digest by its word");
    assert_eq!(
        (research.parallel, research.max_tries, research.tasks[0].parallel, research.tasks[1].parallel),
        (4, 2, 3, 1)
    );
    assert_eq!(build.tasks[0].name, "task-1");
    let names: Vec<&str> = build.tasks[0].steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["step-1", "pack", "sum", "hand", "later"]);
    let machine = build.machine.as_ref().unwrap();
    assert_eq!(
        (machine.resources.cpu_milli, &machine.secrets[..]),
        (Some(2000), &["B".to_owned(), "HF_TOKEN".to_owned()][..])
    );
    let gpu = machine.resources.gpu.as_ref().map(ToString::to_string);
    assert_eq!((gpu.as_deref(), machine.spot), (Some("a100:2"), true));
    assert_eq!(json!(machine.env), json!({ "A": "1", "LANG": "C" }));
    assert!(research.machine.is_some(), "its model may call a shell");
    for plan in &plan.agents {
        for step in plan.tasks.iter().flat_map(|task| &task.steps) {
            Template::for_tool(step.tool, &step.input).unwrap();
        }
    }
    let stored: crate::Compiled = serde_json::from_value(serde_json::to_value(&plan).unwrap()).unwrap();
    assert_eq!(stored, plan);
}

#[test]
fn each_level_has_a_time_out_of_its_own() {
    let document = with_steps(json!([{ "http": { "url": "https://h.example/" } }, { "llm": { "prompt": "p" } }]));
    let plan = compile(&check(&document).unwrap().document);
    let (agent, task) = (&plan.agents[0], &plan.agents[0].tasks[0]);
    let steps: Vec<i64> = task.steps.iter().map(|step| step.timeout_ms).collect();
    assert_eq!((agent.timeout_ms, task.timeout_ms, steps), (6 * HOUR, HOUR, vec![30 * SECOND, HOUR]));
}

#[test]
fn time_outs_and_idempotency_follow_from_the_tool() {
    let task = 1_000 * SECOND;
    let of = |tool: Value| {
        let mut step = tool;
        step["name"] = "s".into();
        let document = json!({ "type": "agents", "agents": [{ "tasks": [{ "timeout": "1000s", "steps": [step] }] }] });
        let plan = compile(&check(&document).unwrap_or_else(|problems| panic!("{problems:?}")).document);
        let step = plan.agents[0].tasks[0].steps[0].clone();
        (step.timeout_ms, step.idempotent, plan.agents[0].machine.is_some())
    };
    let url = "https://h.example/";
    for (tool, expected) in [
        (json!({ "command": "x" }), (task, false, true)),
        (json!({ "http": { "url": url } }), (30 * SECOND, true, false)),
        (json!({ "http": { "url": url, "method": "HEAD" } }), (30 * SECOND, true, false)),
        (json!({ "http": { "url": url, "json": {} } }), (30 * SECOND, false, false)),
        (json!({ "http": { "url": url, "timeout": "5m" } }), (5 * MINUTE, true, false)),
        (json!({ "http": { "url": url }, "timeout": "5m", "idempotent": false }), (5 * MINUTE, false, false)),
        (json!({ "llm": { "prompt": "p" } }), (task, true, false)),
        (json!({ "mcp": { "url": url, "tool": "t" } }), (30 * SECOND, false, false)),
        (json!({ "mcp": { "command": ["m"], "tool": "t" } }), (30 * SECOND, false, true)),
        (json!({ "exec": ["e"] }), (30 * SECOND, false, true)),
        (json!({ "external": "e" }), (30 * SECOND, false, false)),
        (json!({ "call": { "function": "f" } }), (task, true, false)),
        (json!({ "approval": "ok?" }), (task, false, false)),
        (json!({ "wait": "2h" }), (task, false, false)),
    ] {
        assert_eq!(of(tool.clone()), expected, "{tool}");
    }
}

#[test]
fn tools_that_models_call_ask_first_unless_they_only_read() {
    let document = check(&market()).unwrap().document;
    let policies: Vec<(&str, Policy)> =
        document.tools.iter().map(|(name, tool)| (name.as_str(), tool.policy)).collect();
    let expected = [
        ("count", Policy::Deny),
        ("files", Policy::Ask),
        ("search", Policy::Allow),
        ("shell", Policy::Ask),
        ("ticket", Policy::Ask),
    ];
    assert_eq!(policies, expected);
}

#[test]
fn what_a_model_can_start_runs_in_a_sandbox_unless_the_file_says_otherwise() {
    use model::spec::{Network, Sandbox};
    let of = |document: &Value| crate::compile(&check(document).unwrap().document).sandbox;
    let default = Sandbox { network: Network::Host, only_models: true };
    for tool in [json!({ "command": "x" }), json!({ "exec": ["x"] }), json!({ "mcp": { "command": ["x"] } })] {
        let mut document = with_steps(json!([{ "llm": { "prompt": "p", "tools": ["t"] } }]));
        document["tools"] = json!({ "t": tool });
        assert_eq!(of(&document), Some(default), "{tool}");
        for (said, expected) in [
            (json!("off"), None),
            (json!(false), None),
            (json!(true), Some(Sandbox::DEFAULT)),
            (json!({ "network": "none" }), Some(Sandbox { network: Network::None, only_models: false })),
        ] {
            document["sandbox"] = said.clone();
            assert_eq!(of(&document), expected, "{said}");
        }
        document["sandbox"] = Value::Null;
        document["tools"]["t"]["policy"] = "deny".into();
        assert_eq!(of(&document), None, "nobody can call it");
    }
    let mut document = with_steps(json!([{ "name": "a", "command": "x" }]));
    assert_eq!(of(&document), None, "the file's author wrote it");
    document["sandbox"] = true.into();
    assert_eq!(of(&document), Some(Sandbox::DEFAULT));
}

#[test]
fn a_model_may_call_one_tool_of_a_server_or_all_that_it_lists() {
    let url = "https://mcp.example/";
    let with = |tool: Value| {
        let mut document = with_steps(json!([{ "llm": { "prompt": "p", "tools": ["t"] } }]));
        document["tools"] = json!({ "t": tool });
        document
    };
    let q = json!({ "q": { "type": "string" } });
    let arguments = json!({ "q": "${{ args.q }}" });
    for tool in [
        json!({ "mcp": { "url": url } }),
        json!({ "mcp": { "url": url, "tools": ["a"] } }),
        json!({ "mcp": { "url": url, "tool": "a", "arguments": arguments }, "args": q }),
    ] {
        assert_eq!(problems(&with(tool)), [""; 0]);
    }
    for (tool, place, words) in [
        (json!({ "mcp": { "url": url }, "args": q }), "tools.t.args", "name one tool with `tool`"),
        (json!({ "mcp": { "url": url, "arguments": { "q": 1 } } }), "tools.t.mcp.arguments", "name one tool"),
        (json!({ "mcp": { "url": url, "tool": "a", "tools": ["a"] } }), "tools.t.mcp.tools", "one of the two"),
        (json!({ "mcp": { "url": url }, "env": { "A": "b" } }), "tools.t.env", "starts no process"),
    ] {
        refused(with(tool), place, words);
    }
}

#[test]
fn the_shape_of_a_document_is_checked() {
    let agents = with_steps(json!([{ "llm": { "prompt": "p" } }]))["agents"].clone();
    let of = |field: &str, value: Value| {
        let mut document = json!({ "type": "agents", "agents": agents });
        document[field] = value;
        document
    };
    for (document, place, words) in [
        (of("agnts", json!(1)), "agnts", "did you mean `agents`?"),
        (of("type", json!("task")), "type", "must be `agents`"),
        (of("name", json!("two words")), "name", "letters, digits"),
        (of("name", json!(7)), "name", "must be a text, not a number: write quotes"),
        (of("budget", json!(-1)), "budget", "-1"),
        (of("budget", json!(0)), "budget", "more than nothing"),
        (of("max_tokens", json!(0)), "max_tokens", "from 1"),
        (of("max_agents", json!(1001)), "max_agents", "1000"),
        (of("failure_mode", json!("contine")), "failure_mode", "did you mean `continue`?"),
        (of("replan", json!({ "max": 3 })), "replan.max", "from 0 to 2"),
        (of("max_duration", json!("0s")), "max_duration", "more than nothing"),
        (of("max_duration", json!("-5m")), "max_duration", "write it like"),
        (of("max_duration", json!(5)), "max_duration", "has no unit"),
        (of("sandbox", json!("on")), "sandbox", "off"),
        (of("sandbox", json!({ "network": "lan" })), "sandbox.network", "none"),
        (of("sandbox", json!({})), "sandbox", "network"),
        (of("secrets", json!(["a b"])), "secrets[0]", "variable name"),
        (of("env", json!({ "REPL_X": "1" })), "env.REPL_X", "reserved"),
        (of("env", json!({ "X": [1] })), "env.X", "must be a text"),
        (of("env", json!({ "X": { "secret": "Y", "prefx": "" } })), "env.X.prefx", "did you mean `prefix`?"),
        (of("inputs", json!([])), "inputs", "must be an object"),
        (of("inputs", json!({ "a": { "secret": "B" } })), "inputs.a", "a secret is not possible here"),
        (of("tools", json!({ "a b": { "http": { "url": "https://h.example/" } } })), "tools[\"a b\"]", "letters"),
        (of("goal", json!("g")), "", ""),
    ] {
        if place.is_empty() {
            let found = problems(&document);
            assert!(found[0].contains("`agents` and `goal` stand together"), "{found:?}");
        } else {
            refused(document, place, words);
        }
    }
    assert_eq!(
        problems(&json!([])),
        [
            "a plan is an object, not a list: fields: type, name, inputs, budget, max_tokens, failure_mode, max_attempts, max_agents, on_exhausted, replan, max_duration, priority, tools, agents, goal, planner, output, sandbox, files, env, secrets, rerun"
        ]
    );
    assert!(problems(&json!({ "type": "agents" }))[0].contains("needs one of agents, goal"));
    assert!(problems(&json!({ "type": "agents", "agents": [] }))[0].contains("agents: there must be at least one"));
    assert!(problems(&json!({ "type": "agents", "goal": "g" }))[0].contains("a goal needs a `planner`"));
    assert_eq!(problems(&of("goal", Value::Null)), [""; 0], "nothing behind a field is no field");
}

#[test]
fn a_step_is_one_tool_with_what_belongs_to_it() {
    let url = "https://h.example/";
    for (value, place, words) in [
        (json!({ "name": "s" }), "", "needs one of command, http"),
        (json!({ "command": "x", "wait": "1s", "name": "s" }), "", "`command` and `wait` stand together"),
        (json!({ "command": "x" }), "", "needs a name"),
        (json!({ "http": { "url": url, "method": "POST" } }), "", "needs a name"),
        (json!({ "command": "echo ${{ inputs.topic }}", "name": "s" }), "command", "takes no expressions"),
        (json!({ "command": " ", "name": "s" }), "command", "empty"),
        (json!({ "command": [], "name": "s" }), "command", "at least one"),
        (json!({ "command": [""], "name": "s" }), "command", "program's name is empty"),
        (json!({ "command": {}, "name": "s" }), "command", "must be a text or a list of texts"),
        (json!({ "http": {} }), "http", "needs `url`"),
        (json!({ "http": { "url": url, "jsn": 1 } }), "http.jsn", "did you mean `json`?"),
        (
            json!({ "http": { "url": url, "json": 1, "body": "x" }, "name": "s" }),
            "http",
            "`json` and `body` cannot stand together",
        ),
        (json!({ "http": { "url": url, "json": 1, "method": "GET" } }), "http.method", "no body"),
        (json!({ "http": { "url": "https://u:p@h.example/" } }), "http.url", "user name"),
        (json!({ "http": { "url": { "secret": "X" } } }), "http.url", "must be a text"),
        (json!({ "http": { "url": "https://${{ item }}/" } }), "http.url", "must not decide"),
        (json!({ "http": { "url": url, "query": { "k": { "secret": "X" } } } }), "http.query.k", "use it in `headers`"),
        (
            json!({ "http": { "url": url, "json": { "k": [{ "secret": "X" }] } }, "name": "s" }),
            "http.json.k[0]",
            "use it in `headers`",
        ),
        (json!({ "http": { "url": url, "headers": { "a b": "x" } } }), "http.headers[\"a b\"]", "name of a header"),
        (json!({ "http": { "url": url, "timeout": "1s" }, "timeout": "1s" }), "timeout", "say it once"),
        (json!({ "http": { "url": url }, "env": { "A": "1" } }), "env", "starts no process"),
        (json!({ "http": { "url": url }, "files": ["x"] }), "files", "only a command"),
        (json!({ "command": "x", "name": "s", "files": ["../x"] }), "files[0]", "below the run's folder"),
        (json!({ "call": { "inputs": [1] } }), "call", "needs `function`"),
        (json!({ "call": { "function": "f", "inputs": 1 } }), "call.inputs", "must be a list"),
        (
            json!({ "call": { "function": "f", "inputs": [{ "secret": "X" }] } }),
            "call.inputs[0]",
            "use it in `headers`",
        ),
        (json!({ "llm": { "model": "m" } }), "llm", "needs `prompt`"),
        (json!({ "llm": { "prompt": "p", "tools": ["serch"] } }), "llm.tools[0]", "no tool is called `serch`"),
        (json!({ "llm": { "prompt": "p", "output": true }, "output": true }), "output", "say it once"),
        (json!({ "llm": { "prompt": "p", "output": { "type": "strin" } } }), "llm.output", "not a JSON schema"),
        (json!({ "llm": { "prompt": "p" }, "output": { "$ref": "https://x.example/" } }), "output", "another document"),
        (json!({ "llm": { "prompt": "p", "temperature": 9 } }), "llm.temperature", "from 0 to 2"),
        (json!({ "mcp": { "url": url }, "name": "s" }), "mcp", "needs `tool`"),
        (json!({ "mcp": { "url": url, "tool": "t", "tools": ["t"] }, "name": "s" }), "mcp.tools", "one tool"),
        (json!({ "mcp": { "url": url, "command": ["x"], "tool": "t" }, "name": "s" }), "mcp", "exactly one"),
        (json!({ "wait": "soon", "name": "s" }), "wait", "write it like"),
        (json!({ "wait": { "until": "tomorrow" }, "name": "s" }), "wait.until", "2030-01-31T08:00:00Z"),
        (json!({ "approval": {}, "name": "s" }), "approval", "needs `message`"),
        (json!({ "llm": { "prompt": "p" }, "retry": 0 }), "retry", "from 1 to 100"),
        (
            json!({ "llm": { "prompt": "p" }, "retry": { "on_events": ["eror"] } }),
            "retry.on_events[0]",
            "did you mean `error`?",
        ),
        (json!({ "llm": { "prompt": "p" }, "policy": "always" }), "policy", "allow, ask, deny"),
        (json!({ "llm": { "prompt": "p" }, "if": "steps.x" }), "if", "must be one expression"),
        (json!({ "llm": { "prompt": "p" }, "if": "is ${{ inputs.topic }}" }), "if", "must be one expression"),
    ] {
        step(value, place, words);
    }
}

#[test]
fn names_in_expressions_must_mean_something() {
    let llm = |prompt: &str| json!({ "llm": { "prompt": prompt } });
    for (prompt, words) in [
        ("${{ inputs.topik }}", "no input is called `topik`: did you mean `topic`?"),
        ("${{ inputs }}", "the name of the input is missing"),
        ("${{ inputz.topic }}", "nothing is called `inputz`: did you mean `inputs`?"),
        ("${{ run.attempt }}", "there is no `attempt` here"),
        ("${{ item }}", "`item` exists only in the steps of a task with `for_each`"),
        ("${{ args.q }}", "`args` exists only in `tools`"),
        ("${{ agents.a.tasks.t.steps.s.output }}", "`agents` exists only in the run's `output`"),
        ("${{ steps.later.output }}", "no step is called `later`"),
        ("${{ steps['step-1'].output }}", "does not run before this step"),
        ("${{ tasks.t.steps.x.output }}", "is this task itself"),
        ("${{ tasks.u.steps.x.output }}", "no task is called `u`"),
        ("${{ inputs.topic", "`${{` is not closed"),
        ("${{ inputs.topic|shout }}", "no filter is called `shout`"),
        ("${{ now() }}", "there are no functions"),
    ] {
        step(llm(prompt), "llm.prompt", words);
    }
    let first = json!({ "name": "first", "llm": { "prompt": "p", "output": { "type": "object", "properties": { "a": { "properties": { "b": {} } } } } } });
    for (prompt, words) in [
        ("${{ steps.first.output.a.b.c }}", ""),
        ("${{ steps.first.status }}", ""),
        ("${{ steps.first }}", "is incomplete: write it like steps.first.output"),
        ("${{ steps.first.outptu }}", "did you mean `output`?"),
        ("${{ steps.first.output.x }}", "schema has no `x`"),
        ("${{ steps.first.output.a.x }}", "schema has no `x`"),
        ("${{ steps.frist.output }}", "did you mean `first`?"),
        ("${{ steps.last.output }}", "does not run before"),
    ] {
        let document = with_steps(json!([first, llm(prompt), { "name": "last", "llm": { "prompt": "p" } }]));
        match words {
            "" => assert_eq!(problems(&document), [""; 0], "{prompt}"),
            words => refused(document, "agents[0].tasks[0].steps[1].llm.prompt", words),
        }
    }
}

#[test]
fn an_output_is_read_only_after_it_exists() {
    let task =
        |name: &str, prompt: &str| json!({ "name": name, "steps": [{ "name": "s", "llm": { "prompt": prompt } }] });
    let reads = |name: &str| format!("${{{{ tasks.{name}.steps.s.output }}}}");
    let place = "agents[0].tasks[0].steps[0].llm.prompt";
    refused(with_tasks("sequential", json!([task("a", &reads("b")), task("b", "p")])), place, "runs after this task");
    refused(with_tasks("parallel", json!([task("a", &reads("b")), task("b", "p")])), place, "parallelism: dag");
    let dag = with_tasks("dag", json!([task("a", &reads("b")), task("b", "p")]));
    assert_eq!(check(&dag).unwrap().document.agents[0].tasks[0].after, [1]);
    let knot = with_tasks(
        "dag",
        json!([task("a", &reads("b")), task("b", &reads("c")), task("c", &reads("a")), task("d", &reads("a"))]),
    );
    refused(knot, "agents[0].tasks[0].depends_on", "waits, in the end, for itself: a → b → c → a");
    let mut parallel = with_steps(
        json!([{ "name": "s", "llm": { "prompt": "p" } }, { "llm": { "prompt": "${{ steps.s.output }}" } }]),
    );
    parallel["agents"][0]["tasks"][0]["parallelism"] = "parallel".into();
    refused(parallel, "agents[0].tasks[0].steps[1].llm.prompt", "do not wait for each other");
    let mut many = with_tasks("sequential", json!([task("a-b", "p"), task("b", "${{ tasks.a.steps.s.output }}")]));
    refused(many.clone(), "agents[0].tasks[1].steps[0].llm.prompt", "did you mean tasks[\"a-b\"]?");
    many["agents"][0]["tasks"][0]["for_each"] = json!("${{ inputs.list }}");
    for (prompt, words) in
        [("${{ tasks['a-b'][0].steps.s.output }}", ""), ("${{ tasks['a-b'].steps.s.output }}", "is a list")]
    {
        many["agents"][0]["tasks"][1]["steps"][0]["llm"]["prompt"] = prompt.into();
        match words {
            "" => assert_eq!(problems(&many), [""; 0]),
            words => refused(many.clone(), "agents[0].tasks[1].steps[0].llm.prompt", words),
        }
    }
}

#[test]
fn tasks_and_their_order_are_checked() {
    let task = |name: &str, more: Value| {
        let mut task = json!({ "name": name, "steps": [{ "llm": { "prompt": "p" } }] });
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let none = || json!({});
    for (parallelism, tasks, place, words) in [
        (
            "dag",
            json!([task("sources", none()), task("b", json!({ "depends_on": ["sorces"] }))]),
            "agents[0].tasks[1].depends_on",
            "no task is called `sorces`: did you mean `sources`?",
        ),
        (
            "sequential",
            json!([task("a", none()), task("b", json!({ "depends_on": ["a"] }))]),
            "agents[0].tasks[1].depends_on",
            "parallelism: dag",
        ),
        (
            "dag",
            json!([task("a", json!({ "depends_on": ["a"] }))]),
            "agents[0].tasks[0].depends_on",
            "for itself: a → a",
        ),
        ("dag", json!([task("a", none()), task("a", none())]), "agents[0].tasks[1].name", "used twice"),
        ("tree", json!([task("a", none())]), "agents[0].parallelism", "sequential, parallel, dag"),
        ("dag", json!([]), "agents[0].tasks", "at least one"),
        ("dag", json!([{ "name": "a" }]), "agents[0].tasks[0]", "needs `steps`"),
        ("dag", json!([task("a", json!({ "for_each": [] }))]), "agents[0].tasks[0].for_each", "1 to 100"),
        ("dag", json!([task("a", json!({ "for_each": vec![1; 101] }))]), "agents[0].tasks[0].for_each", "101 items"),
        (
            "dag",
            json!([task("a", json!({ "for_each": "all" }))]),
            "agents[0].tasks[0].for_each",
            "must be one expression",
        ),
        (
            "dag",
            json!([task("a", json!({ "if": "${{ item }}", "for_each": [1] }))]),
            "agents[0].tasks[0].if",
            "`item` exists only in the steps",
        ),
        (
            "dag",
            json!([task("a", json!({ "parallelism": "dag" }))]),
            "agents[0].tasks[0].parallelism",
            "sequential, parallel",
        ),
    ] {
        refused(with_tasks(parallelism, tasks), place, words);
    }
    let mut twice = with_steps(json!([{ "llm": { "prompt": "p" }, "name": "step-2" }, { "llm": { "prompt": "p" } }]));
    refused(twice.clone(), "agents[0].tasks[0].steps[1].name", "`step-2` is used twice");
    twice["agents"] = json!([
        with_steps(json!([{ "llm": { "prompt": "p" } }]))["agents"][0],
        with_steps(json!([{ "llm": { "prompt": "p" } }]))["agents"][0]
    ]);
    refused(twice, "agents[1].name", "`a` is used twice");
}

#[test]
fn all_problems_are_shown_together_up_to_a_limit() {
    let document = with_steps(json!([
        { "llm": { "prompt": "${{ inputs.a }} ${{ inputs.b }}", "modle": "m" } },
        { "command": "x" },
        { "http": { "url": "ftp://h.example/" }, "timeout": "1x" },
    ]));
    assert_eq!(problems(&document).len(), 6);
    let many = with_steps(Value::Array(vec![json!({ "command": "x" }); 1_000]));
    assert_eq!(problems(&many).len(), crate::MAX_PROBLEMS);
}

/// What a `verify` asks has to answer soon, and from what it sees.
#[test]
fn a_verify_asks_neither_a_program_that_polls_nor_a_model() {
    for (tool, call) in [("external", json!("look")), ("llm", json!({ "prompt": "did it happen?" }))] {
        let found = problems(&with_steps(json!([{ "name": "s", "command": "x", "verify": { (tool): call } }])));
        let words = [format!("`verify` has no field `{tool}`"), "needs one of command, http, mcp, exec".to_owned()];
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(words.iter().all(|words| found.iter().any(|found| found.contains(words))), "{found:?}");
    }
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let mut document =
        with_steps(json!([{ "llm": { "prompt": "p" }, "verify": { "http": { "url": "https://h.example/" } } }]));
    document["replan"] = json!({ "enabled": true });
    let warnings = |document: &Value| -> Vec<String> {
        check(document).unwrap().warnings.iter().map(Problem::to_string).collect()
    };
    let found = warnings(&document);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("replan: has no effect without a planner"));

    let mut serial = with_steps(json!([{ "llm": { "prompt": "p" } }]));
    serial["agents"][0]["max_concurrent_tasks"] = json!(2);
    serial["agents"][0]["tasks"][0]["max_concurrent_steps"] = json!(2);
    let found = warnings(&serial);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("agents[0].max_concurrent_tasks: has no effect: its tasks run one after the other"));
    assert!(found[1].starts_with("agents[0].tasks[0].max_concurrent_steps: has no effect: its steps run one after"));
    serial["agents"][0]["parallelism"] = json!("dag");
    serial["tools"] = json!({ "search": { "http": { "url": "https://h.example/" } } });
    serial["agents"][0]["tasks"][0]["steps"][0]["llm"]["tools"] = json!(["search"]);
    assert_eq!(warnings(&serial), [""; 0], "it bounds the calls of a turn");
    let task = compile(&check(&serial).unwrap().document).agents[0].tasks[0].clone();
    assert_eq!((task.parallel, task.calls_at_once()), (1, 2));
}

#[test]
fn a_planners_plan_stays_within_what_the_file_allows() {
    let file = |allow: Value| {
        let document = json!({ "type": "agents", "goal": "g", "max_agents": 2, "inputs": { "topic": "x" }, "planner": { "exec": ["./plan"], "allow": allow },
            "tools": { "search": { "http": { "url": "https://h.example/" } } } });
        check(&document).unwrap_or_else(|problems| panic!("{problems:?}")).document
    };
    let plan = |step: Value| json!({ "agents": [{ "tasks": [{ "steps": [step] }] }] });
    let secret = json!({ "name": "s", "http": { "url": "https://h.example/", "headers": { "A": { "secret": "S" } } } });
    for (allow, plan, words) in [
        (json!(null), plan(json!({ "llm": { "prompt": "${{ inputs.topic }}", "tools": ["search"] } })), ""),
        (json!(null), plan(json!({ "llm": { "prompt": "p", "tools": ["shell"] } })), "no tool is called `shell`"),
        (json!(null), plan(json!({ "name": "s", "command": "rm -rf ." })), "must not use `command`"),
        (json!(["command"]), plan(json!({ "name": "s", "command": "ls" })), ""),
        (json!(["http"]), plan(secret.clone()), "must not name secrets"),
        (json!(["http", "secrets"]), plan(secret), ""),
        (json!(null), json!({ "agents": [], "tools": {} }), "has no field `tools`"),
        (
            json!(null),
            json!({ "agents": vec![plan(json!({ "wait": "1s", "name": "w" }))["agents"][0].clone(); 3] }),
            "`max_agents` is 2",
        ),
    ] {
        let found = check_planned(&plan, &file(allow))
            .map_err(|problems| problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"));
        match words {
            "" => assert!(found.is_ok(), "{found:?}"),
            words => assert!(found.clone().unwrap_err().contains(words), "{found:?}"),
        }
    }
}

/// A model wrote the plan: what it runs may send away whatever it can read.
#[test]
fn a_planners_agents_get_the_secrets_of_the_file_only_if_it_says_so() {
    let plan =
        json!({ "agents": [{ "env": { "MINE": "1" }, "tasks": [{ "steps": [{ "name": "x", "command": "env" }] }] }] });
    for (allow, secrets, env) in [
        (json!(["command"]), vec![], json!({ "LANG": "C", "MINE": "1" })),
        (
            json!(["command", "secrets"]),
            vec!["KEY"],
            json!({ "LANG": "C", "MINE": "1", "TOKEN": { "secret": "CANARY" } }),
        ),
    ] {
        let document = json!({ "type": "agents", "goal": "g", "planner": { "exec": ["./plan"], "allow": allow },
            "secrets": ["KEY"], "env": { "LANG": "C", "TOKEN": { "secret": "CANARY" } } });
        let file = check(&document).unwrap().document;
        let planned = crate::compile_planned(&check_planned(&plan, &file).unwrap(), &file).unwrap();
        let machine = planned[0].machine.as_ref().unwrap();
        assert_eq!(
            (machine.secrets.iter().map(String::as_str).collect::<Vec<_>>(), json!(machine.env)),
            (secrets, env)
        );
    }
}

#[test]
fn the_largest_plans_are_checked_and_larger_ones_refused() {
    let steps: Vec<Value> = (0..100)
        .map(|n| json!({ "http": { "url": "https://h.example/", "query": { "n": n, "t": "${{ inputs.topic }}" } } }))
        .collect();
    let tasks: Vec<Value> = (0..1_000)
        .map(|n| json!({ "name": format!("t{n}"), "depends_on": if n > 0 { vec![format!("t{}", n - 1)] } else { vec![] }, "steps": steps }))
        .collect();
    let mut document = with_tasks("dag", tasks.into());
    assert_eq!(problems(&document), [""; 0]);
    document["agents"][0]["tasks"][0]["for_each"] = json!([1, 2]);
    refused(document.clone(), "agents", "100100 steps");
    document["agents"] = vec![json!({ "tasks": [] }); MAX_PLANNED_AGENTS + 1].into();
    assert!(problems(&document)[0].contains("1000 are allowed"));
    let large = with_steps(json!([{ "llm": { "prompt": "x".repeat(MAX_DOCUMENT_BYTES) } }]));
    assert_eq!(problems(&large), ["the document is larger than 10000000 bytes"]);
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    step(
        json!({ "name": "s", "http": { "url": "https://h.example/", "json": deep } }),
        &format!("http.json{}", "[0]".repeat(64)),
        "nested deeper",
    );
}

#[test]
fn a_header_stays_text_whatever_comes_in() {
    let call = json!({ "method": "GET", "url": "https://h.example/", "headers": { "A": "${{ steps.x.output }}" }, "json": "${{ steps.x.output }}" });
    let scope = crate::Scope::new().with("steps", json!({ "x": { "output": { "secret": "KEY" } } }));
    let rendered = Template::for_tool(ToolKind::Http, &call).unwrap().render(&scope).unwrap();
    assert_eq!(rendered["headers"]["A"], json!("{\"secret\":\"KEY\"}"), "an output cannot name a secret");
    assert_eq!(rendered["json"], json!({ "secret": "KEY" }));
}
