//! Runs of agents on real machines: commands share a workdir, answer with JSON, have logs of their own and survive the runner.

use crate::api::{Api, text_of};
use crate::gate::Gate;
use crate::home::Home;
use crate::process;
use serde_json::{Value, json};

const FILE: &str = r#"
type: agents
name: built
inputs: {topic: "it's $(solar) \"quoted\""}
files: [greeting]
agents:
  - name: build
    env: {EVERYWHERE: "yes"}
    tasks:
      - name: all
        steps:
          - name: make
            command: "cat greeting; printf %s \"$TOPIC\" > out.txt; echo '{\"n\": 3}' > \"$REPL_OUTPUT\"; echo aside >&2"
            env: {TOPIC: "${{ inputs.topic }}"}
          - name: show
            command: [sh, -c, 'cat out.txt; echo " $1 $EVERYWHERE"', x, "${{ steps.make.output.n }}"]
          - name: ask
            exec: {command: [sh, -c, 'read -r line; printf "{\"got\": %s}" "$line"; echo heard >&2'], input: {a: "${{ inputs.topic }}"}}
output:
  n: "${{ agents.build.tasks.all.steps.make.output.n }}"
  said: "${{ agents.build.tasks.all.steps.show.output.stdout_tail }}"
  got: "${{ agents.build.tasks.all.steps.ask.output.got.a }}"
"#;

fn steps(api: &Api, run: &str) -> Vec<Value> {
    api.get(&format!("/runs/{run}/steps"))["data"].as_array().unwrap().clone()
}

#[test]
fn commands_of_an_agent_share_a_machine_and_answer_with_json() {
    let home = Home::new();
    home.write("greeting", "hello\n");
    home.write("built.yaml", FILE);
    home.say(&["run", "built.yaml"]);
    let api = Api::of(&home);
    let run = home.status("@last")["id"].as_str().unwrap().to_owned();
    let seen = api.get(&format!("/runs/{run}"));
    assert_eq!(seen["status"], "completed", "{seen:#}");
    let topic = "it's $(solar) \"quoted\"";
    assert_eq!(seen["output"], json!({ "n": 3, "said": format!("{topic} 3 yes\n"), "got": topic }));
    assert_eq!(home.jobs(&run).len(), 1, "one machine for the whole agent");
    // Each step has a log of its own, and all of them together one order.
    let all = api.events(&format!("/runs/{run}/logs"));
    assert_eq!(text_of(&all), format!("hello\naside\n{topic} 3 yes\nheard\n"));
    let ids: Vec<Value> = steps(&api, &run).iter().map(|step| step["id"].clone()).collect();
    let show = ids[1].as_str().unwrap();
    let one = api.events(&format!("/runs/{run}/logs?step={show}"));
    assert_eq!(text_of(&one), format!("{topic} 3 yes\n"));
    let frame = &one.iter().find(|(kind, _)| kind == "log").unwrap().1;
    assert_eq!((frame["step"].as_str(), frame["try"].as_i64()), (Some(show), Some(1)));
    home.adds_up();
}

/// The runner dies between two commands and during one; what was begun is found again, and nothing is begun twice.
#[test]
fn a_runner_that_is_killed_loses_no_command() {
    let home = Home::new();
    let (begun, gate) = (Gate::new(&home, "begun"), Gate::new(&home, "go"));
    let file = format!(
        "type: agents\nagents:\n  - name: one\n    tasks:\n      - name: all\n        steps:\n          - {{name: first, command: {}}}\n          - {{name: second, command: \"cat ran\"}}\n",
        json!(format!("echo once >> ran; {}; {}", begun.say("yes"), gate.wait()))
    );
    home.write("one.yaml", file);
    home.done(&["run", "--detach", "one.yaml"]);
    let run = home.status("@last")["id"].as_str().unwrap().to_owned();
    let api = Api::of(&home);
    assert_eq!(begun.hear(), "yes");
    process::kill(home.the("repl runner"));
    gate.open();
    home.attach(&run);
    assert_eq!(home.status(&run)["status"], "completed");
    assert_eq!(text_of(&api.events(&format!("/runs/{run}/logs"))), "once\n");
    home.adds_up();
}

/// In the next attempt the workdir is another one: what a finished command has left is laid there, and the command is not run again.
#[test]
fn kept_files_are_there_in_the_next_attempt() {
    let home = Home::new();
    let (ran, mark) = (home.here().join("ran"), home.here().join("mark"));
    let make = format!("echo once >> {}; mkdir -p d; echo made > d/out; chmod 750 d/out", ran.display());
    let uses = format!("cat d/out; stat -c %a d/out; test -e {0} || {{ touch {0}; exit 1; }}", mark.display());
    home.write(
        "kept.yaml",
        format!(
            "type: agents\nfailure_mode: retry\nmax_attempts: 2\nagents:\n  - name: one\n    tasks:\n      - name: all\n        steps:\n          - {{name: make, command: {}, files: [d]}}\n          - {{name: use, command: {}}}\n",
            json!(make),
            json!(uses)
        ),
    );
    home.say(&["run", "kept.yaml"]);
    let run = home.status("@last")["id"].as_str().unwrap().to_owned();
    let api = Api::of(&home);
    let seen = api.get(&format!("/runs/{run}"));
    assert_eq!((seen["status"].as_str(), seen["attempt_number"].as_i64()), (Some("completed"), Some(2)), "{seen:#}");
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "once\n", "it is not run again");
    assert_eq!(text_of(&api.events(&format!("/runs/{run}/logs"))), "made\n750\nmade\n750\n");
    home.adds_up();
}

/// A command that is killed is tried again: what its second try writes is told apart, while a run is followed and when its log is read.
#[test]
fn the_output_of_a_new_try_begins_with_a_mark() {
    let home = Home::new();
    let command = "echo one; test -e mark || { touch mark; kill -9 $$; }; echo two";
    home.write(
        "twice.yaml",
        format!(
            "type: agents\nagents:\n  - name: one\n    tasks:\n      - name: all\n        steps:\n          - {{name: work, idempotent: true, command: {}}}\n",
            json!(command)
        ),
    );
    for args in
        [&["run", "twice.yaml"][..], &["logs", "@last"], &["logs", "@last", "-f"], &["logs", "@last", "--step", "work"]]
    {
        let done = home.done(args);
        assert_eq!(done.out(), "one\none\ntwo\n", "{args:?}");
        assert_eq!(done.stderr.matches("repl: work: try 2\n").count(), 1, "{args:?}: {}", done.stderr);
        assert!(!done.stderr.contains("try 1"), "{args:?}: {}", done.stderr);
    }
    home.adds_up();
}
