//! `repl step` in a script whose parts are killed in the middle: it goes on after its last finished step, and a file that records every
//! execution says that no finished one was repeated.

use crate::api::Api;
use crate::gate::Gate;
use crate::home::Home;
use crate::process::{self, Running};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

/// Five steps, each of which records that it was executed. The third says who the script is and waits at a gate, the first time.
struct Script {
    home: Home,
    record: PathBuf,
    pid: Gate,
    gate: Gate,
}

impl Script {
    fn new() -> Script {
        let home = Home::new();
        let (pid, gate) = (Gate::new(&home, "pid"), Gate::new(&home, "gate"));
        let record = home.here().join("record");
        Script { home, record, pid, gate }
    }

    fn text(&self, flags: &str) -> String {
        let (record, first) = (self.record.display(), self.home.here().join("first"));
        let third = format!(
            "[ $1 = 3 ] && [ ! -e {0} ] && {{ touch {0}; {1}; {2}; }}; true",
            first.display(),
            self.pid.say("$MAIN"),
            self.gate.wait()
        );
        self.home.write("one.sh", format!("echo $1 >> {record}; {third}; echo did $1"));
        let one = self.home.here().join("one.sh");
        format!(
            "export MAIN=$$; for n in 1 2 3 4 5; do repl step epoch {flags} -- sh {} $n || exit 1; done; repl step get epoch",
            one.display()
        )
    }

    fn executed(&self) -> BTreeMap<String, usize> {
        let mut counted = BTreeMap::new();
        for line in std::fs::read_to_string(&self.record).unwrap().lines() {
            *counted.entry(line.to_owned()).or_default() += 1;
        }
        counted
    }
}

const ALL: &str = "did 1\ndid 2\ndid 3\ndid 4\ndid 5\ndid 5\n";

fn each_once() -> BTreeMap<String, usize> {
    ["1", "2", "3", "4", "5"].map(|n| (n.to_owned(), 1)).into()
}

#[test]
fn a_script_that_is_killed_goes_on_after_its_last_finished_step() {
    let script = Script::new();
    let run = script.home.detach(&["--retry", "3", "--retry-delay", "0s"], &script.text(""));
    process::kill(script.pid.hear().parse().unwrap());
    let ended = script.home.attach(&run);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(script.home.status(&run)["attempt_number"], 2);
    let mut expected = each_once();
    expected.insert("3".to_owned(), 2); // interrupted, and so repeated
    assert_eq!(script.executed(), expected);
    assert!(ended.out().ends_with(ALL), "finished steps print what they had printed: {ended}");
    script.home.adds_up();
}

#[test]
fn neither_the_death_of_the_control_plane_nor_that_of_the_runner_repeats_or_loses_a_step() {
    for both in [false, true] {
        let script = Script::new();
        let run = script.home.detach(&["--retry", "3"], &script.text(""));
        script.pid.hear();
        process::kill(script.home.control_plane());
        if both {
            process::kill(script.home.the("repl runner"));
        }
        script.gate.open();
        let ended = script.home.attach(&run);
        assert_eq!((ended.code, ended.out()), (0, ALL.to_owned()), "{}", ended.stderr);
        assert_eq!(script.executed(), each_once());
        assert_eq!(script.home.status(&run)["attempt_number"], 1);
        script.home.adds_up();
    }
}

#[test]
fn the_death_of_the_runner_alone_changes_nothing() {
    let script = Script::new();
    let run = script.home.detach(&["--retry", "3"], &script.text("--once"));
    script.pid.hear();
    process::kill(script.home.the("repl runner"));
    script.gate.open();
    let ended = script.home.attach(&run);
    assert_eq!((ended.code, ended.out()), (0, ALL.to_owned()), "{}", ended.stderr);
    assert_eq!(script.executed(), each_once());
    script.home.adds_up();
}

#[test]
fn a_step_passes_on_codes_input_and_files() {
    let home = Home::new();
    let ended = home.run(
        &[],
        "repl step bad -- sh -c 'exit 7'; echo $?; repl step none -- /no/such/program; echo $?; \
         echo given | repl step cat --stdin -- cat; \
         repl step make --file 'out/*' -- sh -c 'mkdir -p out; echo made > out/it; echo wrote'; rm -r out; \
         repl step make --file 'out/*' -- sh -c 'mkdir -p out; echo made > out/it; echo wrote'; cat out/it; \
         repl step bytes -- printf 'a\\377b' | od -An -tx1; repl step bytes -- printf 'a\\377b' | od -An -tx1; \
         repl step get nothing; echo $?; repl ps",
    );
    assert_eq!(ended.out(), "7\n127\ngiven\nwrote\nwrote\nmade\n 61 ff 62\n 61 ff 62\n1\n", "{}", ended.stderr);
    assert!(ended.stderr.contains("no such finished step: nothing"), "{}", ended.stderr);
    home.adds_up();
}

#[test]
fn a_program_elsewhere_does_the_steps_of_its_own_run() {
    let home = Home::new();
    home.write("import.repl.yml", "type: external\nname: import\n");
    let run = home.json(&["run", "--detach", "import.repl.yml"])["id"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        let ended = home.done(&["step", "load", "--run", "import", "--", "sh", "-c", "echo loaded >> record; echo 17"]);
        assert_eq!(ended.out(), "17\n");
    }
    assert_eq!(std::fs::read_to_string(home.here().join("record")).unwrap(), "loaded\n");
    assert_eq!(home.done(&["step", "get", "load", "--run", &run]).out(), "17\n");
    home.done(&["finish", "import", "--output", "{\"rows\": 17}"]);
    assert_eq!(home.status(&run)["status"], "completed");
    assert_eq!(home.say(&["finish", "import"]).code, 1, "once");
    assert_eq!(home.say(&["step", "x", "--", "true"]).code, 2, "of which run?");
    home.adds_up();
}

/// A plan of one `external` step, and what its run answers.
fn external(more: &str) -> String {
    format!(
        "type: agents\nagents: [{{name: a, tasks: [{{name: t, steps: [{{name: s, external: {{tool: crm, input: {{n: 7}}}}{more}}}]}}]}}]\n\
         output: {{got: \"${{{{ agents.a.tasks.t.steps.s.output.n }}}}\"}}\n"
    )
}

#[test]
fn a_worker_elsewhere_does_the_external_steps_of_a_plan() {
    let home = Home::new();
    home.write("plan.repl.yml", external(""));
    let run = home.json(&["run", "--detach", "plan.repl.yml"])["id"].as_str().unwrap().to_owned();
    let command = ["--", "sh", "-c", "test -n \"$REPL_STEP_KEY\" && cat"];
    let told = home.done(&[&["step", "poll", "--tool", "crm", "--once", "--json"], &command[..]].concat());
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((&told["run"], &told["path"], &told["state"]), (&json!(run), &json!("a/t/s"), &json!("completed")));
    let attached = home.attach(&run);
    assert_eq!(attached.code, 0, "{attached}");
    assert_eq!(Api::of(&home).get(&format!("/runs/{run}"))["output"], json!({ "got": 7 }));
    for wrong in [&["step", "poll", "--tool", "crm"][..], &["step", "pay", "--tool", "crm", "--", "true"]] {
        assert_eq!(home.say(wrong).code, 2, "{wrong:?}");
    }
    home.adds_up();
}

#[test]
fn an_external_step_of_a_worker_that_died_is_given_to_the_next_under_the_same_key() {
    let home = Home::new();
    let (key, gate) = (Gate::new(&home, "key"), Gate::new(&home, "gate"));
    home.write("plan.repl.yml", external(", idempotent: true"));
    let run = home.json(&["run", "--detach", "plan.repl.yml"])["id"].as_str().unwrap().to_owned();
    let line = format!("{}; {}", key.say("$REPL_STEP_KEY"), gate.wait());
    let words = ["step", "poll", "--tool", "crm", "--lease", "1s", "--", "sh", "-c", &line];
    let first = Running::start(home.repl(&words).process_group(0));
    let heard = key.hear();
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(first.pid()), nix::sys::signal::Signal::SIGKILL).unwrap();
    first.end();
    let told = home.done(&["step", "poll", "--tool", "crm", "--once", "--json", "--", "cat"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((&told["key"], &told["try"]), (&json!(heard), &json!(2)));
    home.attach(&run);
    assert_eq!(home.status(&run)["status"], "completed");
    home.adds_up();
}
