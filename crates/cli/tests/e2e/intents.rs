//! What prepares, keeps and cleans up machines, as a user sees it: inits and the retention of manifests.

use crate::home::Home;

const BRIEF: &str = "[timings]\nidle_duration_ms = 500\nidle_duration_paid_ms = 500\n\
                     [manifests]\nlaunch_run_ms = 1000\nterminate_instance_ms = 1000\n";

#[test]
fn an_init_runs_once_for_all_runs_that_bring_it() {
    let home = Home::of_machines(1);
    let file = |name: &str, init: &str, command: &str| {
        let text = format!("type: task\ninit: {init}\ncommands: ['{command}']\n");
        home.write(name, text).to_str().unwrap().to_owned()
    };
    let prepared = file("a.repl.yml", "echo preparing; date +%s%N > made", "cat $REPL_INIT/made");
    let planned = home.say(&["run", &prepared, "--dry-run"]);
    assert!(planned.out().contains("runs before the command"), "{planned}");
    let first = home.say(&["run", &prepared]);
    assert_eq!((first.code, first.out().lines().count()), (0, 2), "{first}");
    let made = first.out().lines().last().unwrap().to_owned();
    assert!(first.out().starts_with("preparing\n"), "its output is part of the log: {first}");
    assert!(home.say(&["run", &prepared, "--dry-run"]).out().contains("skipped: the machine has it"));
    let second = home.say(&["run", &prepared]);
    assert_eq!((second.code, second.out()), (0, format!("{made}\n")), "it is not run again");
    assert_eq!(home.status("@last")["warm"], true);
    // Another init gets another machine, and one that fails ends its run and leaves nothing behind.
    let failing = file("b.repl.yml", "touch half; exit 3", "echo started");
    for _ in 0..2 {
        let failed = home.say(&["run", &failing]);
        assert_eq!((failed.code, failed.out()), (3, String::new()), "{failed}");
        assert!(failed.stderr.contains("the init script ended with code 3"), "{failed}");
    }
    let third = home.say(&["run", &prepared]);
    assert_eq!(third.code, 0, "{third}");
    assert_ne!(third.out().lines().last(), Some(made.as_str()), "the machine is another one");
    home.adds_up();
}

#[test]
fn what_a_run_made_is_gone_after_its_retention() {
    let home = Home::with(BRIEF);
    assert_eq!(home.run(&["--hold", "0s"], "true").code, 0);
    let manifests = || home.json(&["manifest", "ls"]).as_array().unwrap().clone();
    let launch = |all: &[serde_json::Value]| all.iter().find(|it| it["intent"] == "launch-run").unwrap().clone();
    let mut last = launch(&manifests());
    for _ in 0..1000 {
        if last["status"] == "DELETED" {
            break;
        }
        last = launch(&manifests());
    }
    assert_eq!(last["status"], "DELETED", "{last}");
    let shown = home.json(&["manifest", "show", last["id"].as_str().unwrap()]);
    assert_eq!(shown["resources"], serde_json::json!([]));
    assert!(shown["deleted_at"].is_i64());
    home.adds_up();
}

#[test]
fn a_run_starts_from_the_folder_of_another() {
    let home = Home::of_machines(1);
    let command =
        "mkdir -p data/.hidden empty && echo trained > data/model && echo x > data/.hidden/y && ln -s data/model link";
    assert_eq!(home.run(&["--name", "train"], command).code, 0);
    let ready = |id: &str| {
        let mut shown = home.json(&["snapshot", "show", id]);
        for _ in 0..1000 {
            if shown["status"] != "making" {
                break;
            }
            shown = home.json(&["snapshot", "show", id]);
        }
        assert_eq!(shown["status"], "ready", "{shown}");
        shown
    };
    let id = home.json(&["snapshot", "create", "train"])["id"].as_str().unwrap().to_owned();
    assert!(ready(&id)["files"].as_i64().unwrap() >= 2);
    home.write("extra", "sent\n");
    let look = "cat data/model data/.hidden/y link extra; echo more > more";
    let second = home.run(&["--snapshot", &id, "--file", "extra", "--save-snapshot"], look);
    assert_eq!((second.code, &*second.out()), (0, "trained\nx\ntrained\nsent\n"), "{second}");
    // The end of a run made another one, with what it added.
    let all = home.json(&["snapshot", "ls"]);
    // Each server gives out ids from blocks of its own: the order of two says nothing where there are several.
    let others: Vec<&str> =
        all.as_array().unwrap().iter().filter_map(|it| it["id"].as_str()).filter(|it| *it != id).collect();
    assert_eq!((all.as_array().unwrap().len(), others.len()), (2, 1));
    let saved = others[0].to_owned();
    ready(&saved);
    let third = home.run(&["--snapshot", &saved], "cat more data/model");
    assert_eq!((third.code, &*third.out()), (0, "more\ntrained\n"), "{third}");
    home.done(&["snapshot", "delete", &id]);
    home.run(&["--snapshot", &id], "true").refused(1, &["deleted"]);
    home.run(&["--snapshot", "snp_zzzz"], "true").refused(1, &["snp_zzzz"]);
    home.say(&["snapshot", "create", "snp_1"]).refused(1, &["snp_1"]);
    home.adds_up();
}
