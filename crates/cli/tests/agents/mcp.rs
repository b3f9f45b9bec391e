//! MCP servers of agents: a program that is kept on the agent's machine from call to call, and one whose tools a model may call.

use crate::model::{Reply, Script};
use crate::process;
use crate::recorder::Recorder;
use crate::scene::Scene;
use serde_json::{Value, json};
use std::path::PathBuf;

const SERVER: &str = include_str!("../../../adapters/tests/tools/mcp_server.py");

fn scene(script: Script) -> Scene {
    let scene = Scene::new(script, Recorder::start());
    scene.home.write("server.py", SERVER);
    scene
}

/// The workdir of the run's machine, once the file is in it.
fn workdir(scene: &Scene, file: &str) -> PathBuf {
    loop {
        let (mut open, mut found) = (vec![scene.home.data().to_path_buf()], None);
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name == file && dir.file_name().is_some_and(|dir| dir.to_string_lossy().starts_with("work_")) {
                    found = Some(dir.clone());
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(entry.path());
                }
            }
        }
        // A file that never comes is ended by the time limit of the test.
        if let Some(dir) = found {
            return dir;
        }
        std::thread::yield_now();
    }
}

const KEPT: &str = "
type: agents
files: [server.py]
agents:
- name: a
  tasks:
  - name: t
    steps:
    - {name: one, mcp: {command: [python3, server.py], tool: add, arguments: {n: 2}}}
    - {name: fifo, command: \"mkfifo gate\"}
    - {name: held, mcp: {command: [python3, server.py], tool: gate, arguments: {path: gate}}, timeout: 10m}
    - {name: two, mcp: {command: [python3, server.py], tool: add, arguments: {n: 3}}}
    - {name: other, mcp: {command: [python3, server.py, again], tool: add, arguments: {n: 1}}}
output:
  one: \"${{ agents.a.tasks.t.steps.one.output.structured }}\"
  two: \"${{ agents.a.tasks.t.steps.two.output.structured }}\"
  other: \"${{ agents.a.tasks.t.steps.other.output.structured }}\"
";

#[test]
fn a_server_remembers_while_the_control_plane_is_killed_and_ends_with_its_agent() {
    let scene = scene(Script::new());
    let run = scene.submit(KEPT);
    let gate = workdir(&scene, "gate").join("gate");
    // Opened only when the server reads: the call is under way.
    let mut open = std::fs::File::options().write(true).open(gate).unwrap();
    process::kill(scene.home.control_plane());
    std::io::Write::write_all(&mut open, b"go").unwrap();
    drop(open);
    let ended = scene.home.attach(&run);
    assert_eq!(ended.code, 0, "{ended}");
    let output = scene.output(&run);
    let total = |name: &str| output[name]["total"].clone();
    assert_eq!((total("one"), total("two"), total("other")), (json!(2), json!(6), json!(1)), "{output}");
    assert_eq!(output["one"]["pid"], output["two"]["pid"], "one process for all calls: {output}");
    assert_ne!(output["one"]["pid"], output["other"]["pid"], "another program is another server");
    assert_ne!(output["one"]["key"], output["two"]["key"], "each call has its step's key");
    for name in ["one", "other"] {
        let pid = output[name]["pid"].as_i64().unwrap() as i32;
        assert!(!process::lives(pid), "{name} lives on after its agent");
    }
    scene.home.adds_up();
}

#[test]
fn a_model_uses_a_listed_tool_after_a_person_has_agreed() {
    let add = |n: Value| Reply::Calls(vec![("sums__add", json!({ "n": n }).to_string())]);
    let script = Script::from([(
        "sum".to_owned(),
        vec![vec![add(json!(4))], vec![add(json!("four"))], vec![add(json!(5))], vec![Reply::Text("nine")]],
    )]);
    let scene = scene(script);
    let run = scene.submit(
        "type: agents\nfiles: [server.py]\n\
         tools:\n  sums: {mcp: {command: [python3, server.py], tools: [add]}}\n\
         agents:\n- name: a\n  tasks:\n  - name: t\n    steps:\n    - {name: s, llm: {prompt: sum up, tools: [sums]}}\n\
         output: {said: \"${{ agents.a.tasks.t.steps.s.output.text }}\"}\n",
    );
    for n in [4, 5] {
        scene.hears(&run, "question.asked", if n == 4 { "s/t1/c1" } else { "s/t3/c1" });
        let open = scene.home.json(&["approval", "ls"]);
        let question = open[0]["id"].as_str().unwrap_or_else(|| panic!("{open}")).to_owned();
        let shown = scene.home.done(&["approval", "show", &question]).out();
        assert!(shown.contains("\"add\"") && shown.contains(&format!("\"n\": {n}")), "{shown}");
        scene.home.done(&["approval", "approve", &question]);
    }
    let ended = scene.home.attach(&run);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(scene.output(&run), json!({ "said": "nine" }));
    let tree = scene.tree(&run);
    assert_eq!(tree["a/t/s/tools/sums"]["status"], "completed", "{tree:?}");
    assert!(!tree.contains_key("a/t/s/t2/c1"), "arguments that do not match are not sent");
    scene.home.adds_up();
}

#[test]
fn a_server_that_misbehaves_ends_its_step_with_a_clear_error() {
    let scene = scene(Script::from([("list".to_owned(), vec![vec![Reply::Text("no")]])]));
    let step = |words: &str, tool: &str| {
        let call = format!("{{command: [python3, server.py{words}], tool: {tool}, timeout: 2s}}");
        format!("{{name: s, mcp: {call}, idempotent: true, retry: 1}}")
    };
    let table = [
        (step(", --mute", "add"), "did not begin a session within 2000 ms"),
        (step("", "hang"), "did not answer within 2000 ms"),
        (step(", --exit", "add"), "no licence"),
        (step("", "fail"), "the disk is full"),
        (step("", "die"), "out of cheese"),
        (step("", "flood"), "no message of MCP"),
        ("{name: s, mcp: {command: [./none], tool: t}, idempotent: true, retry: 1}".to_owned(), "./none: not found"),
        ("{name: s, llm: {prompt: list it, tools: [mute]}}".to_owned(), "the tools of `mute` cannot be listed"),
    ];
    for (step, words) in table {
        let (run, ended) = scene.run(&format!(
            "type: agents\nsandbox: off\nfiles: [server.py]\n\
             tools:\n  mute: {{mcp: {{command: [python3, server.py, --mute]}}, timeout: 1s}}\n\
             agents:\n- name: a\n  tasks:\n  - name: t\n    steps:\n    - {step}\n"
        ));
        assert_eq!(ended.code, 1, "{step}: {ended}");
        let why = scene.home.done(&["why", &run]).out();
        assert!(why.contains(words), "{step} should say `{words}`: {why}");
    }
    scene.home.adds_up();
}

#[test]
fn secrets_reach_a_server_in_its_variables_and_nobody_else() {
    let scene = scene(Script::new());
    scene.home.write("key", "sesame-open-now");
    assert_eq!(process::end_of(&mut scene.home.shell("repl secret set KEY < key")).code, 0);
    let (run, ended) = scene.run(
        "type: agents\nfiles: [server.py]\nagents:\n- name: a\n  tasks:\n  - name: t\n    steps:\n    \
         - {name: s, mcp: {command: [python3, server.py], tool: env, arguments: {name: TOKEN}}, env: {TOKEN: {secret: KEY}}}\n    \
         - {name: none, mcp: {command: [python3, server.py], tool: env, arguments: {name: REPL_STEP_TOKEN}}}\n\
         output: {said: \"${{ agents.a.tasks.t.steps.s.output.content }}\", none: \"${{ agents.a.tasks.t.steps.none.output.content }}\"}\n",
    );
    assert_eq!(ended.code, 0, "{ended}");
    let output = scene.output(&run);
    let said = output["said"][0]["text"].as_str().unwrap().to_owned();
    assert!(!said.contains("sesame") && !said.is_empty(), "it is masked: {output}");
    assert_eq!(output["none"][0]["text"], "", "a server gets no token for steps");
}
