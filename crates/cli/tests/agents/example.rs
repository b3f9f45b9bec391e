//! The scripted server of models that examples start: it speaks as the tests' own does.

use crate::process::Running;
use crate::recorder::Recorder;
use crate::scene::Scene;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents/model_server.py");

#[test]
fn the_model_server_of_the_examples_leads_a_dialogue() {
    let scene = Scene::new(Default::default(), Recorder::start());
    let script = json!({ "ask": [
        [{ "status": 429, "retry_after": 0.05 }, { "cut": true }, { "calls": [{ "name": "look", "arguments": { "about": "x y" } }] }],
        { "text": "{\"answer\": " },
        { "json": { "answer": 42 }, "usage": false },
    ] });
    let script = scene.home.write("script.json", script.to_string());
    let log = scene.home.here().join("asked.log");
    let mut command = Command::new("python3");
    command.arg(SERVER).arg("--script").arg(script).arg("--log").arg(&log).stdin(Stdio::piped());
    let mut server = Running::start(&mut command);
    let url = server.line();
    scene
        .home
        .configure(&format!("[llm.default]\nbase_url = \"{url}\"\n[llm.default.models.scripted]\ncontext = 16000\n"));
    let (run, ended) = scene.run(
        "type: agents\ntools:\n  look: {http: {url: \"RECORDER/look\", query: {about: \"${{ args.about }}\"}}, args: {about: {type: string}}}\n\
         agents:\n- name: a\n  tasks:\n  - name: t\n    steps:\n    \
         - {name: s, llm: {prompt: ask me, tools: [look], output: {type: object, properties: {answer: {type: integer}}, required: [answer]}}}\n    \
         - {name: echo, llm: {prompt: nobody wrote this}}\n\
         output: [\"${{ agents.a.tasks.t.steps.s.output.answer }}\", \"${{ agents.a.tasks.t.steps.echo.output.text }}\"]\n",
    );
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(scene.output(&run), json!([42, "echo: nobody wrote this"]));
    assert_eq!(scene.recorder.count("/look?about=x+y"), 1, "{:?}", scene.recorder.records());
    let asked = std::fs::read_to_string(log).unwrap();
    let turns: Vec<Value> =
        asked.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["turn"].take()).collect();
    assert_eq!(turns, [1, 1, 1, 2, 3, 1], "{asked}");
    drop(server.child.stdin.take());
    assert_eq!(server.end().code, 0, "it ends with its standard input");
}
