//! Bad input and bad luck: each a clear message with the fix and the right exit code, nothing half-done, no process left.

use crate::api::Api;
use crate::gate::Gate;
use crate::home::Home;
use crate::process::{self, Running};
use serde_json::json;
use std::net::TcpListener;
use wire::client::ClientError;

#[test]
fn what_cannot_be_meant_is_refused_before_anything_starts() {
    let home = Home::new();
    home.write("wrong.repl.yml", "type: task\ncomands: [true]\n");
    home.write("kind.repl.yml", "type: tsk\ncommands: [true]\n");
    home.write("broken.repl.yml", "type: [\n");
    let table: &[(&[&str], &[&str])] = &[
        (&["run", "--budgt", "1", "-c", "true"], &["--budgt", "--budget"]),
        (&["rnu"], &["rnu", "run"]),
        (&["run", "wrong.repl.yml"], &["comands", "commands"]),
        (&["run", "kind.repl.yml"], &["tsk", "task"]),
        (&["run", "broken.repl.yml"], &["broken.repl.yml"]),
        (&["run", "missing.repl.yml"], &["missing.repl.yml"]),
        (&["run", "--file", "missing.txt", "-c", "true"], &["missing.txt"]),
        (&["run", "--budget", "-1", "-c", "true"], &["--budget", "-1"]),
        (&["run", "--max-duration", "5x", "-c", "true"], &["5x", "5m"]),
        (&["run", "--memory", "lots", "-c", "true"], &["lots", "GB"]),
        (&["run", "--env", "=x", "-c", "true"], &["=x"]),
        (&["run"], &["-c"]),
    ];
    for (words, said) in table {
        let ended = home.say(words);
        assert!(ended.stdout.is_empty(), "{words:?}: {ended}");
        assert_eq!(ended.code, 2, "{words:?}: {ended}");
        for word in *said {
            assert!(ended.stderr.contains(word), "{words:?} should say `{word}`: {ended}");
        }
    }
    assert!(!home.data().exists(), "nothing was started");
    assert!(home.processes().is_empty());
}

#[test]
fn the_api_refuses_what_is_not_for_it() {
    let home = Home::new();
    let api = Api::of(&home);
    let not_json = api.post_bytes("/runs", b"{\"commands\": [".to_vec());
    assert_eq!((not_json.status, &*not_json.code), (400, "invalid_body"), "{not_json:?}");
    assert!(not_json.request_id.is_some() && not_json.fix.is_some(), "{not_json:?}");
    let large = api.post_bytes("/runs", vec![b' '; 12 << 20]);
    assert_eq!((large.status, &*large.code), (413, "too_large"), "{large:?}");
    let negative = api.post_bytes("/runs", br#"{"commands": ["true"], "budget": "-1"}"#.to_vec());
    assert_eq!(negative.status, 400, "{negative:?}");
    let nothing = api.post_bytes("/runs", b"{}".to_vec());
    assert_eq!(nothing.status, 400, "{nothing:?}");
    // PostgreSQL has no text with a NUL: it is refused before a database sees it.
    let nul = api.post_bytes("/runs", br#"{"commands": ["true\u0000"]}"#.to_vec());
    assert_eq!(nul.status, 400, "{nul:?}");
    let Err(ClientError::Problem(nul)) = api.try_get("/runs?name=%00") else { panic!("a name with a NUL") };
    assert_eq!(nul.status, 400, "{nul:?}");
    let nowhere = api.post_bytes("/rnus", b"{}".to_vec());
    assert_eq!((nowhere.status, &*nowhere.code), (404, "not_found"), "{nowhere:?}");
    for path in ["/runs/run_zzzz", "/runs/x", "/instances/ins_zzzz", "/allocations/alc_zzzz", "/workflows/wfl_zzzz"] {
        let Err(ClientError::Problem(problem)) = api.try_get(path) else { panic!("{path} exists") };
        assert!(matches!(problem.status, 400 | 404), "{path}: {problem:?}");
    }
    let url = home.url();
    for token in [None, Some("rmd_wrong"), Some("")] {
        let Err(ClientError::Problem(problem)) = Api::at(&url, token).try_get("/runs") else {
            panic!("{token:?} is good")
        };
        assert_eq!((problem.status, &*problem.code), (401, "unauthorized"), "{problem:?}");
    }
    assert_eq!(api.get("/runs")["data"], json!([]), "nothing was begun");
    home.adds_up();
}

#[test]
fn a_token_opens_what_it_says_and_no_more() {
    let mut home = Home::new();
    assert_eq!(home.run(&["--name", "mine"], "true").code, 0);
    let read = home.json(&["token", "create", "reader", "--scope", "read"])["token"].as_str().unwrap().to_owned();
    home.set("REPL_TOKEN", &read);
    assert_eq!(home.status("@last")["name"], "mine");
    home.say(&["run", "-c", "true"]).refused(1, &["scope", "write"]);
    home.say(&["audit"]).refused(1, &["admin"]);
    home.set("REPL_TOKEN", "rmd_wrong");
    home.say(&["ps"]).refused(1, &["token", "REPL_TOKEN"]);
    home.unset("REPL_TOKEN");
}

#[test]
fn no_credits_no_run() {
    let home = Home::with("[prices]\nlocal = \"2000000\"\n");
    home.say(&["run", "-c", "true"]).refused(1, &["2000000 credits", "1000000", "--budget", "repl credits add"]);
    assert!(home.instances().is_empty(), "no machine was started for it");
    let open = home.json(&["ps"]);
    assert_eq!(open, json!([]), "nothing is under way");
    // Within what there is, it runs; and what it may not exceed, it does not.
    let ended = home.run(&["--max-duration", "1s"], "echo cheap");
    assert_eq!((ended.code, &*ended.out()), (0, "cheap\n"), "{ended}");
    home.adds_up();
}

#[test]
fn a_budget_ends_a_run_when_it_is_used_up() {
    // A credit a second.
    let home = Home::with("[prices]\nlocal = \"3600\"\n");
    let command = "trap 'echo checkpoint; exit 0' TERM; while :; do sleep 0.05; done";
    let ended = home.run(&["--budget", "1"], command);
    assert_eq!((ended.code, &*ended.out()), (1, "checkpoint\n"), "{ended}");
    let status = home.status("@last");
    assert_eq!((&status["termination_reason"], &status["credits_charged"]), (&"budget".into(), &"1".into()));
    assert_eq!(home.jobs("@last")[0]["reason"], "budget");
    let why = home.done(&["why", "@last"]).out();
    assert!(why.contains("its budget of 1 credits is used up") && why.contains("--budget above 1"), "{why}");
    assert!(!why.contains("repl retry"), "what is refused is not advised: {why}");
    // Time that is paid for as a whole ends by the clock.
    let ended = home.run(&["--budget", "1", "--max-duration", "1s"], command);
    assert_eq!(ended.code, 124, "{ended}");
    home.adds_up();
}

#[test]
fn a_run_is_warned_before_its_budget_ends_and_the_budget_is_all_its_attempts_may_cost() {
    let home = Home::with("[prices]\nlocal = \"3600\"\n[money]\nwindow_ms = 100\n");
    let ended = home.run(&["--budget", "2", "--retry", "3", "--hold", "1h"], "while :; do sleep 0.05; done");
    assert_eq!(ended.code, 143, "{ended}");
    let events = home.json(&["events", "@last"]);
    let kinds: Vec<&str> = events.as_array().unwrap().iter().filter_map(|event| event["kind"].as_str()).collect();
    let when = |kind: &str| kinds.iter().position(|k| *k == kind).unwrap_or_else(|| panic!("{kind}: {kinds:?}"));
    assert!(when("run.low_credits") < when("run.out_of_credits"), "{kinds:?}");
    home.say(&["retry", "@last"]).refused(1, &["budget of 2 credits", "larger --budget"]);
    // A price on local machines is for running: what is held or idle there costs nothing.
    home.done(&["extend"]);
    let rows = home.json(&["credits", "ledger"]);
    let others: Vec<_> = rows.as_array().unwrap().iter().filter(|row| row["run"].is_null()).collect();
    assert!(others.len() == 1 && others[0]["kind"] == "topup", "{others:?}");
    home.adds_up();
}

#[test]
fn a_taken_port_is_named() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let server = home.say(&["server", "--listen", &address]);
    server.refused(server.code, &[&address, "taken", "--listen"]);
    assert!(matches!(server.code, 1 | 2), "{server}");
    home.say(&["server", "--listen", "nowhere"]).refused(server.code, &["nowhere"]);
    assert!(home.processes().is_empty());
}

#[test]
fn a_database_of_a_newer_version_is_left_alone() {
    let home = Home::new();
    assert_eq!(home.run(&[], "true").code, 0);
    home.done(&["control", "stop", "--all"]);
    let database = home.data().join("remuda.db");
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.execute_batch(include_str!("newer.sql")).unwrap();
    drop(connection);
    let before = std::fs::read(&database).unwrap();
    home.say(&["run", "-c", "true"]).refused(2, &["newer version", "upgrade repl"]);
    assert!(std::fs::read(&database).unwrap() == before, "not a byte of it was changed");
    assert!(home.processes().is_empty());
}

#[test]
fn a_database_of_a_build_before_the_first_release_is_refused_with_the_fix() {
    let home = Home::new();
    let database = home.data().join("remuda.db");
    std::fs::create_dir_all(home.data()).unwrap();
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.execute_batch(include_str!("earlier.sql")).unwrap();
    drop(connection);
    home.say(&["run", "-c", "true"]).refused(2, &["remuda.db", "before the first release", "move it away"]);
    assert!(home.processes().is_empty());
    std::fs::rename(&database, home.data().join("earlier.db")).unwrap();
    assert_eq!(home.run(&[], "true").code, 0);
}

#[test]
fn one_sqlite_file_has_one_control_plane() {
    let (one, two) = (Home::new(), Home::new());
    let database = format!("sqlite:{}", one.here().join("shared.db").display());
    let serve = ["server", "--listen", "127.0.0.1:0", "--database", &database];
    let mut first = Running::start(&mut one.repl(&serve));
    first.hear("serving");
    let second = two.say(&serve);
    second.refused(second.code, &["shared.db", "another"]);
    assert!(matches!(second.code, 1 | 2), "{second}");
    // And one home, even with a database of its own.
    let third = one.say(&["server", "--listen", "127.0.0.1:0"]);
    third.refused(third.code, &["another control plane", "repl control stop"]);
    assert_eq!(one.run(&[], "echo fine").out(), "fine\n", "the first is not troubled");
    one.done(&["control", "stop", "--all"]);
    assert_eq!(first.end().code, 0);
}

#[test]
fn nobody_outlives_a_deleted_home() {
    let home = Home::new();
    let gate = Gate::new(&home, "gate");
    let mut followed = Running::start(&mut home.repl(&["run", "-c", &format!("echo ready; {}", gate.wait())]));
    assert_eq!(followed.line(), "ready");
    let all = home.processes();
    assert!(all.len() >= 4, "control plane, runner, keeper, work: {all:?}");
    followed.interrupt();
    assert_eq!(followed.end().code, 130);
    std::fs::remove_dir_all(home.data()).unwrap();
    for process in all {
        assert!(process::ends(process.pid), "{process:?} goes on");
    }
    assert!(!home.data().exists(), "nobody made it again");
}

#[test]
fn a_damaged_installation_is_not_replaced() {
    let home = Home::new();
    assert_eq!(home.run(&[], "true").code, 0);
    home.done(&["control", "stop", "--all"]);
    let file = home.data().join("installation.json");
    std::fs::write(&file, "{ damaged").unwrap();
    home.say(&["run", "-c", "true"]).refused(2, &["installation.json", "damaged", "backup"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{ damaged");
    assert!(home.processes().is_empty());
}
