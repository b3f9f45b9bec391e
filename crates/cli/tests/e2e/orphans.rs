//! A machine whose row is gone: found, kept, and ended when its id is typed.

use crate::home::Home;
use crate::process;
use serde_json::Value;

fn orphans(home: &Home, flags: &[&str]) -> Vec<Value> {
    let all = home.json(&[&["orphans", "list"], flags].concat());
    all.as_array().unwrap().clone()
}

#[test]
fn a_machine_without_a_row_is_found_kept_and_ended_by_its_id() {
    let home = Home::of_machines(3);
    assert_eq!(home.run(&[], "true").code, 0);
    let machine = home.instances()[0]["name"].as_str().unwrap().to_owned();
    let folder = home.data().join("instances").join(&machine);
    let report = home.json(&["orphans", "scan"]);
    let counted = |what: &str| report["scans"][0][what].as_i64().unwrap();
    assert_eq!((counted("listed"), counted("tracked"), counted("orphans")), (1, 1, 0), "{report}");

    process::kill(home.control_plane());
    let database = rusqlite::Connection::open(home.data().join("remuda.db")).unwrap();
    database.execute_batch(include_str!("unknown.sql")).unwrap();
    drop(database);
    assert_eq!(orphans(&home, &[]).len(), 0, "nobody has looked since");
    let shown = home.done(&["orphan", "scan", "--verbose"]).out();
    assert!(shown.contains("Orphaned Resources (1 found)") && shown.contains("Young"), "{shown}");
    let found = &orphans(&home, &[])[0];
    assert_eq!((found["provider_id"].as_str(), found["provider"].as_str()), (Some(&*machine), Some("local")));
    assert_eq!((found["young"].as_bool(), found["resource_type"].as_str()), (Some(true), Some("instance")));
    assert!(machine.contains(found["inferred_info"]["control_id"].as_str().unwrap()), "{found}");

    // Said before a run, unless it is not wanted.
    let warned = |flags: &[&str]| home.run(flags, "true").to_string().contains("1 orphaned resource");
    assert!(warned(&[]) && !warned(&["--yes"]) && !warned(&["--no-preflight"]));

    home.say(&["orphans", "whitelist", &machine]).refused(2, &["--reason"]);
    home.say(&["orphans", "whitelist", &machine, "--reason", " "]).refused(2, &["--reason"]);
    let past = ["orphans", "whitelist", &machine, "--reason", "x", "--expires", "2024-02-07"];
    home.say(&past).refused(2, &["2024-02-07", "in the past"]);
    home.say(&["orphans", "inspect", "i-nowhere"]).refused(1, &["i-nowhere"]);
    home.done(&["orphans", "whitelist", &machine, "--reason", "debugging", "--notes", "ask ops"]);
    assert_eq!(orphans(&home, &[]).len(), 0);
    let kept = &orphans(&home, &["--include-whitelisted"])[0]["whitelisted"];
    assert_eq!((kept["reason"].as_str(), kept["notes"].as_str()), (Some("debugging"), Some("ask ops")));
    assert!(!warned(&[]));
    home.done(&["orphans", "unwhitelist", &machine]);
    assert_eq!(orphans(&home, &[]).len(), 1);

    let typed =
        |what: &str| process::end_of(&mut home.shell(&format!("echo {what} | repl orphans terminate {machine}")));
    typed("yes").refused(1, &["nothing is terminated"]);
    assert!(folder.exists());
    assert_eq!(typed(&machine).code, 0);
    process::vanishes(&folder);
    home.done(&["orphans", "scan"]);
    assert_eq!(orphans(&home, &[]).len(), 0);
}
