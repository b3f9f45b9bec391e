//! Plans, settings and servers that cannot work: each a clear message with the place and the fix, before anything starts where that is possible.

use crate::api::Api;
use crate::model::{Reply, Script};
use crate::recorder::{self, Recorder};
use crate::scene::Scene;
use serde_json::json;

/// A plan with these steps in its only task.
fn steps(steps: &str) -> String {
    format!("type: agents\nagents:\n- tasks:\n  - steps: [{steps}]\n")
}

/// A plan with these tasks in its only agent, which may depend on each other.
fn tasks(tasks: &str) -> String {
    format!("type: agents\nagents:\n- parallelism: dag\n  tasks:\n{tasks}")
}

#[test]
fn a_plan_that_cannot_work_is_refused_before_anything_starts() {
    let scene = Scene::new(Script::new(), Recorder::start());
    let nothing = "steps: [{wait: 1s}]";
    let many = |count: usize| {
        let mut plan = String::from("type: agents\nagents:\n- tasks:\n  - steps:\n");
        (0..count).for_each(|_| plan.push_str("    - wait: 1s\n"));
        plan
    };
    let deep = format!("{}1{}", "(".repeat(1_000), ")".repeat(1_000));
    let table: Vec<(&str, String, Vec<&str>)> = vec![
        (
            "a cycle",
            tasks(&format!(
                "  - {{name: a, depends_on: [b], {nothing}}}\n  - {{name: b, depends_on: [a], {nothing}}}\n"
            )),
            vec!["5:", "waits, in the end, for itself", "a → b → a"],
        ),
        ("itself", tasks(&format!("  - {{name: a, depends_on: [a], {nothing}}}\n")), vec!["5:", "depends_on", "a → a"]),
        (
            "an unknown task",
            tasks(&format!("  - {{name: sources, {nothing}}}\n  - {{name: b, depends_on: [sorces], {nothing}}}\n")),
            vec!["6:", "sorces", "did you mean `sources`"],
        ),
        (
            "an unknown tool of a step",
            steps("{htpp: {url: \"https://a.example/\"}}"),
            vec!["htpp", "did you mean `http`"],
        ),
        ("an unknown tool of a model", steps("{llm: {prompt: p, tools: [serch]}}"), vec!["serch"]),
        (
            "an unknown name",
            steps("{http: {url: \"https://a.example/\", query: {q: \"${{ inputs.topik }}\"}}}"),
            vec!["topik"],
        ),
        (
            "a step that comes later",
            steps("{name: a, http: {url: \"https://a.example/${{ steps.b.output }}\"}}, {name: b, wait: 1s}"),
            vec!["`b` has no output yet"],
        ),
        ("a name twice", steps("{name: a, wait: 1s}, {name: a, wait: 1s}"), vec!["a"]),
        ("no name where one is needed", steps("{http: {method: POST, url: \"https://a.example/\"}}"), vec!["name"]),
        ("a negative budget", format!("budget: -1\n{}", steps("{wait: 1s}")), vec!["budget", "-1"]),
        ("no tokens", format!("max_tokens: 0\n{}", steps("{wait: 1s}")), vec!["max_tokens"]),
        (
            "a password in an address",
            steps("{http: {url: \"https://me:pass@a.example/\"}}"),
            vec!["user name or password"],
        ),
        (
            "a secret in a query",
            steps("{http: {url: \"https://a.example/\", query: {key: {secret: K}}}}"),
            vec!["query.key", "secret"],
        ),
        (
            "a secret in a body",
            steps("{name: a, http: {method: POST, url: \"https://a.example/\", json: {key: {secret: K}}}}"),
            vec!["json", "secret"],
        ),
        (
            "expressions inside of each other",
            steps("{llm: {prompt: \"${{ inputs['${{ inputs.x }}'] }}\"}}"),
            vec!["prompt"],
        ),
        ("an expression that goes deep", steps(&format!("{{llm: {{prompt: \"${{{{ {deep} }}}}\"}}}}")), vec!["prompt"]),
        (
            "an expression that goes on",
            steps(&format!("{{llm: {{prompt: \"${{{{ 1{} }}}}\"}}}}", " + 1".repeat(5_000))),
            vec!["prompt"],
        ),
        ("an expression that multiplies", steps("{llm: {prompt: \"${{ 'x' * 1000000000 }}\"}}"), vec!["prompt"]),
        ("an expression in a shell's text", steps("{name: a, command: \"echo ${{ inputs.x }}\"}"), vec!["command"]),
        (
            "a network that is none",
            format!("sandbox: {{network: lan}}\n{}", steps("{llm: {prompt: p}}")),
            vec!["network"],
        ),
        ("100,001 steps", many(100_001), vec!["100000", "steps"]),
        ("more than 10 MB", format!("{}# {}\n", steps("{wait: 1s}"), "x".repeat(10_000_000)), vec!["10000000 bytes"]),
        (
            "a schema that refers elsewhere",
            steps("{llm: {prompt: p, output: {$ref: \"https://a.example/schema.json\"}}}"),
            vec!["output"],
        ),
    ];
    for (what, plan, words) in table {
        let file = scene.file(&plan);
        let ended = scene.home.say(&["run", &file]);
        assert_eq!(ended.code, 2, "{what}: {ended}");
        assert!(ended.stdout.is_empty() && ended.stderr.len() < 4_000, "{what}: {ended}");
        for word in [file.as_str()].into_iter().chain(words) {
            assert!(ended.stderr.contains(word), "{what} should say `{word}`: {ended}");
        }
    }
    assert!(!scene.home.data().exists(), "nothing was started");
}

#[test]
fn the_api_refuses_the_same_with_the_place_and_the_fix() {
    let scene = Scene::new(Script::new(), Recorder::start());
    let api = Api::of(&scene.home);
    let step = |step: serde_json::Value| json!({ "type": "agents", "agents": [{ "tasks": [{ "steps": [step] }] }] });
    let waits = |name: &str, other: &str| json!({ "name": name, "depends_on": [other], "steps": [{ "wait": "1s" }] });
    let cycle = json!({ "type": "agents",
        "agents": [{ "parallelism": "dag", "tasks": [waits("a", "b"), waits("b", "a")] }] });
    let table = [
        (step(json!({ "htpp": {} })), "agents[0].tasks[0].steps[0].htpp"),
        (step(json!({ "llm": { "prompt": "p", "tools": ["serch"] } })), "serch"),
        (step(json!({ "llm": { "prompt": "p", "model": "no-such" } })), "no-such"),
        (step(json!({ "http": { "url": "https://me:pass@a.example/" } })), "user name or password"),
        (
            json!({ "type": "agents", "agents": [{ "tasks": [{ "steps": vec![json!({ "wait": "1s" }); 100_001] }] }] }),
            "100001 steps",
        ),
        (cycle, "agents[0].tasks[0].depends_on"),
        (json!({ "type": "agents" }), "agents, goal"),
        (json!([]), "object"),
    ];
    for (plan, said) in table {
        let body = json!({ "type": "agents", "plan": plan, "start": true });
        let problem = api.post_bytes("/runs", body.to_string().into_bytes());
        assert!(matches!(problem.status, 400 | 422) && problem.request_id.is_some(), "{problem:?}");
        assert!(format!("{problem:?}").contains(said), "it should say `{said}`: {problem:?}");
    }
    assert_eq!(api.get("/runs?all=true")["data"], json!([]), "nothing was begun");
    scene.home.adds_up();
}

#[test]
fn a_negative_price_of_a_model_is_refused_at_the_start() {
    let scene = Scene::new(Script::new(), Recorder::start());
    for price in ["\"-1\"", "-1", "-0.5"] {
        scene.home.configure(&format!(
            "[llm.default]\nbase_url = \"http://127.0.0.1:1/v1\"\n[llm.default.models.m]\ncontext = 8000\ninput_price = {price}\n"
        ));
        let file = scene.file(&steps("{llm: {prompt: p}}"));
        scene.home.say(&["run", &file]).refused(2, &["config.toml", "positive decimal number"]);
    }
    assert!(!scene.home.data().join("remuda.db").exists(), "nothing was started");
}

#[test]
fn a_server_that_is_none_of_models_or_tools_is_said_to_be_so() {
    let script = Script::from([
        ("page".to_owned(), vec![vec![Reply::Html]]),
        ("garbled".to_owned(), vec![vec![Reply::Garbled]]),
        ("money".to_owned(), vec![vec![Reply::Status(402, "{\"error\": {\"message\": \"no credit\"}}")]]),
        ("denied".to_owned(), vec![vec![Reply::Status(401, "{\"error\": {\"message\": \"bad key\"}}")]]),
    ]);
    let recorder = Recorder::answering(|record, _| match record.path.as_str() {
        "/mcp" => recorder::Reply::Hang,
        "/page" => recorder::Reply::Status(200, "<html></html>"),
        "/much" => recorder::Reply::Text("x".repeat(9 << 20)),
        _ => recorder::Reply::Json(json!({})),
    });
    let scene = Scene::new(script, recorder);
    let mcp = |path: &str| {
        format!("{{name: s, mcp: {{url: \"RECORDER/{path}\", tool: t, timeout: 300ms}}, idempotent: true, retry: 1}}")
    };
    let http = |path: &str| format!("{{name: s, http: {{url: \"RECORDER/{path}\"}}}}");
    let llm = |prompt: &str| format!("{{name: s, llm: {{prompt: {prompt}}}}}");
    let table = [
        (llm("page"), vec!["does not answer as a chat server does", "base_url"]),
        (llm("garbled"), vec!["does not answer as a chat server does"]),
        (llm("money"), vec!["no credit"]),
        (llm("denied"), vec!["bad key"]),
        (mcp("mcp"), vec!["time"]),
        (mcp("page"), vec![]),
        (http("much"), vec!["8388608"]),
    ];
    for (step, words) in table {
        let (run, ended) = scene.run(&steps(&step));
        assert_eq!(ended.code, 1, "{step}: {ended}");
        let why = scene.home.done(&["why", &run]).out();
        for word in words {
            assert!(why.contains(word), "{step} should say `{word}`: {why}");
        }
        assert!(why.len() < 4_000, "{step}: {why}");
    }
    scene.home.adds_up();
}
