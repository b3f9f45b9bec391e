//! One test per script. What a script needs of a home is made here; what it does and looks at stands in the script.

use crate::home::Home;
use crate::process::{self, Running, signal};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `scripts/test` has installed what drives the browser: in a folder named by the lock file.
fn modules() -> PathBuf {
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages/package-lock.json");
    let sum = Command::new("cksum").stdin(std::fs::File::open(lock).unwrap()).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("a test has a home")).join(".cache"),
        PathBuf::from,
    );
    let folder = cache.join("remuda-tests").join(format!("pages-{}", sum.split(' ').next().unwrap()));
    assert!(folder.is_dir(), "{} is missing: run ./scripts/test tools", folder.display());
    folder
}

/// Runs a script in this home. `repl` in it is ours. With `UPDATE_DOCS=1` it makes the pictures of docs/pages.md, with `PAGES_PICTURES` one of each
/// page in that folder.
fn browse(home: &Home, script: &str, variables: &[(&str, &str)]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages").join(script);
    let mut node = home.shell(&format!("exec node '{}'", script.display()));
    node.env("PAGES_MODULES", modules()).env("TMPDIR", home.here());
    for name in ["PAGES_PICTURES", "PAGES_LOG_MB", "PAGES_FIGURES"] {
        node.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        node.env("PAGES_MANUAL", Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures"));
    }
    node.envs(variables.iter().copied());
    // It may take longer than any other command of a test: what bounds it is the time that the whole test has.
    let ended = node.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_first_visit_ends_with_a_run_that_is_followed_to_its_end() {
    let home = Home::new();
    browse(&home, "first.mjs", &[]);
    assert_eq!(home.json(&["ps", "--all"]).as_array().unwrap().len(), 2);
    home.stop();
}

/// A tree that grows, questions that are answered, a run that is paused.
#[test]
fn agents_are_watched_and_answered() {
    let home = Home::with("[tools]\nallow = [\"127.0.0.1\"]\n");
    browse(&home, "agents.mjs", &[]);
    home.stop();
}

#[test]
fn a_log_is_opened_searched_and_followed() {
    let home = Home::new();
    browse(&home, "log.mjs", &[]);
    home.stop();
}

/// A connection that is cut, twelve tabs, posts of other sites, names full of markup.
#[test]
fn pages_survive_bad_networks_and_bad_neighbours() {
    let home = Home::new();
    browse(&home, "hostile.mjs", &[]);
    home.stop();
}

#[test]
fn two_organisations_see_nothing_of_each_other() {
    let mut home = Home::new();
    let theirs = in_another_org(&home);
    let mut server = Running::start(&mut home.repl(&["server", "--listen", "127.0.0.1:0"]));
    let said = server.hear("serving http://");
    let url = format!("http://{}", said.trim().rsplit_once("http://").unwrap().1);
    let ours = std::fs::read_to_string(home.data().join("token")).unwrap();
    let variables = [("REPL_URL", &*url), ("PAGES_URL", &url), ("PAGES_OURS", ours.trim()), ("PAGES_THEIRS", &theirs)];
    browse(&home, "orgs.mjs", &variables);
    let is_runner = |process: &crate::process::Process| process.words.starts_with("repl runner");
    let runners: Vec<_> = home.processes().into_iter().filter(is_runner).collect();
    home.set("REPL_URL", &url);
    home.set("REPL_TOKEN", ours.trim());
    for machine in home.instances() {
        home.done(&["instance", "terminate", machine["id"].as_str().unwrap()]);
    }
    assert!(runners.iter().all(|runner| crate::process::ends(runner.pid)));
    signal(server.pid(), Signal::SIGTERM);
    let ended = server.end();
    assert_eq!(ended.code, 0, "{ended}");
}

/// A token of an organisation that is made before the control plane first starts.
fn in_another_org(home: &Home) -> String {
    use testkit::rehearsal::{Database, Rehearsal};
    std::fs::create_dir_all(home.data()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let database = Database::File(home.data().join("remuda.db"));
        Rehearsal::open(home.data(), database, false).await.unwrap().token_of("elsewhere").await.unwrap()
    })
}

#[test]
fn every_page_works_without_script() {
    let home = Home::new();
    browse(&home, "without_script.mjs", &[]);
    home.stop();
}

/// Fields, opened parts, selections and rows stay as they are while a page changes; ages, titles and the status line go on.
#[test]
fn what_a_person_does_stays_while_a_page_changes() {
    let home = Home::with("[tools]\nallow = [\"127.0.0.1\"]\n");
    browse(&home, "live.mjs", &[]);
    home.stop();
}

#[test]
fn every_row_and_page_is_reached_by_the_keyboard() {
    let home = Home::new();
    browse(&home, "keys.mjs", &[]);
    home.stop();
}

/// axe finds nothing in light and dark, nothing is wider than the screen, targets are large enough, and forced colours drown nothing.
fn look(script: &str, width: &str) {
    let home = Home::with("[tools]\nallow = [\"127.0.0.1\"]\n");
    browse(&home, script, &[("PAGES_WIDTH", width)]);
    home.stop();
}

#[test]
fn every_page_is_accessible_on_a_narrow_screen() {
    look("looks.mjs", "320");
}

#[test]
fn every_page_is_accessible_on_a_wide_screen() {
    look("looks.mjs", "1440");
}

#[test]
fn pages_that_are_seen_seldom_are_accessible_on_a_narrow_screen() {
    look("looks_rare.mjs", "320");
}

/// The same where something waits or went wrong. A machine whose row is gone is an orphan; one of the workflows is as if its provider had had no room.
fn look_at_states(width: &str) {
    let home = Home::with("[tools]\nallow = [\"127.0.0.1\"]\n[providers.local]\nmax_instances = 2\n");
    assert_eq!(home.run(&[], "true").code, 0);
    let machine = home.instances()[0]["name"].as_str().unwrap().to_owned();
    process::kill(home.control_plane());
    let database = rusqlite::Connection::open(home.data().join("remuda.db")).unwrap();
    database.execute_batch(include_str!("../e2e/unknown.sql")).unwrap();
    database.execute_batch(include_str!("failed_workflow.sql")).unwrap();
    drop(database);
    home.done(&["orphans", "scan"]);
    browse(&home, "looks_states.mjs", &[("PAGES_WIDTH", width), ("PAGES_ORPHAN", &machine)]);
    let line = format!("echo {machine} | repl orphans terminate {machine}");
    assert_eq!(process::end_of(&mut home.shell(&line)).code, 0);
    process::vanishes(&home.data().join("instances").join(&machine));
    home.stop();
}

#[test]
fn pages_of_what_waits_or_failed_are_accessible_on_a_narrow_screen() {
    look_at_states("320");
}

#[test]
fn pages_of_what_waits_or_failed_are_accessible_on_a_wide_screen() {
    look_at_states("1440");
}

#[test]
fn pages_that_are_seen_seldom_are_accessible_on_a_wide_screen() {
    look("looks_rare.mjs", "1440");
}
