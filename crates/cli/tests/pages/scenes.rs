//! One test per script. What a script needs of a home is made here; what it does and looks at stands in the script.

use crate::home::Home;
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

/// Runs a script in this home. `repl` in it is ours.
fn browse(home: &Home, script: &str, variables: &[(&str, &str)]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages").join(script);
    let mut node = home.shell(&format!("exec node '{}'", script.display()));
    node.env("PAGES_MODULES", modules()).env("TMPDIR", home.here());
    if let Some(folder) = std::env::var_os("PAGES_PICTURES") {
        node.env("PAGES_PICTURES", folder);
    }
    let ended = crate::process::end_of(node.envs(variables.iter().copied()));
    assert_eq!(ended.code, 0, "{ended}");
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
fn every_page_works_without_script() {
    let home = Home::with("[tools]\nallow = [\"127.0.0.1\"]\n");
    browse(&home, "without_script.mjs", &[]);
    home.stop();
}

/// axe finds nothing in light and dark, on narrow and wide screens.
#[test]
fn every_page_is_accessible() {
    let home = Home::with("[tools]\nallow = [\"127.0.0.1\"]\n");
    browse(&home, "looks.mjs", &[]);
    home.stop();
}
