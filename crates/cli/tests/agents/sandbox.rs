//! What a model can start runs in a sandbox unless the file says otherwise: a hostile command gets nothing.

use crate::model::{Reply, Script};
use crate::recorder::Recorder;
use crate::scene::Scene;
use serde_json::json;

const PLAN: &str = "
type: agents
tools:
  shell: {command: [sh, -c, \"${{ args.command }}\"], args: {command: {type: string}}, policy: allow}
agents:
- name: a
  tasks:
  - name: t
    steps:
    - {name: own, command: 'test $REPL_STEP_TOKEN && test $REPL_STEPS && echo has a token; echo from the plan >shared', idempotent: true}
    - {name: s, llm: {prompt: attack, tools: [shell], max_turns: 4}}
    - {name: after, command: 'test -e stolen && cat stolen; cat made', idempotent: true}
";

#[test]
fn a_hostile_command_of_a_model_gets_nothing_and_the_loop_goes_on() {
    let command = "for it in \"$HOME\"/.config \"$REPL_WORKDIR\"/../runner.json \"$REPL_WORKDIR\"/../../../token \
                   \"$REPL_WORKDIR\"/../../../control.sock /run/user; do test -e \"$it\" && echo GOT $it >>stolen; done; \
                   env | grep ^REPL_STEP[S_] >>stolen; test -w / && echo GOT the root >>stolen; \
                   cat shared; echo by the model >made; echo '{\"a\": 1}' >\"$REPL_OUTPUT\"";
    let script = Script::from([(
        "attack".to_owned(),
        vec![
            vec![Reply::Calls(vec![("shell", json!({ "command": command }).to_string())])],
            vec![Reply::Text("tried")],
        ],
    )]);
    let scene = Scene::new(script, Recorder::start());
    let (run, ended) = scene.run(PLAN);
    assert_eq!(ended.code, 0, "{ended}");
    let tree = scene.tree(&run);
    assert_eq!(tree["a/t/s/t1/c1"]["status"], "completed", "{tree:?}");
    let said = scene.home.done(&["logs", &run, "--step", "after"]).out();
    assert_eq!(said, "by the model\n", "the model's command and the plan's share a workdir, and nothing was stolen");
    assert!(scene.home.done(&["why", &run]).out().contains("processes that models ask for run in a sandbox"));
    // Said so, it has no sandbox: the test looks in the right places.
    let (run, ended) = scene.run(&format!("sandbox: off\n{}", PLAN.trim_start()));
    assert_eq!(ended.code, 0, "{ended}");
    let said = scene.home.done(&["logs", &run, "--step", "after"]).out();
    assert!(said.contains("/token") && said.contains("runner.json") && said.contains("/.config"), "{said}");
    // With or without a sandbox, the token by which a process begins and ends steps is for what the plan starts.
    assert!(!said.contains("REPL_STEP"), "{said}");
    assert_eq!(scene.home.done(&["logs", &run, "--step", "own"]).out(), "has a token\n");
}
