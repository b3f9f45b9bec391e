//! The surroundings of a command: a folder of its own, an environment without the control plane's variables, an empty stdin, secrets that
//! no other process sees.

use crate::gate::Gate;
use crate::home::Home;
use crate::process::end_of;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn a_command_knows_what_it_was_given_and_nothing_of_ours() {
    let mut home = Home::new();
    home.set("LEAK", "of whoever typed the command");
    home.set("REPL_LOG", "warn");
    let ended = home.run(&["--env", "GIVEN=a b", "--env", "LINES=1\n2"], "env -0 | tr '\\n\\0' '~\\n' | cut -d= -f1");
    let seen: BTreeSet<String> = ended.out().lines().map(str::to_owned).collect();
    for name in ["GIVEN", "LINES", "PATH", "HOME", "REPL_RUN", "REPL_JOB", "REPL_WORKDIR"] {
        assert!(seen.contains(name), "{name} is missing: {seen:?}");
    }
    for name in ["LEAK", "REPL_HOME", "REPL_LOG", "REPL_TOKEN", "REPL_URL"] {
        assert!(!seen.contains(name), "{name} got through: {seen:?}");
    }
    let ended = end_of(&mut home.shell("echo ours | repl run -c 'cat; echo end of input'"));
    assert_eq!(ended.out(), "end of input\n");
}

#[test]
fn every_run_has_an_empty_folder_of_its_own() {
    let home = Home::of_machines(1);
    home.write("sent", "x");
    let first = home.run(&["--file", "sent", "--workdir", "deep/er"], "pwd; touch left; ls -A ..");
    assert!(first.out().lines().next().unwrap().ends_with("/deep/er"), "{first}");
    let second = home.run(&[], "ls -A; pwd");
    let folder = second.out();
    assert_eq!(folder.lines().count(), 1, "nothing of the first is there: {second}");
    assert!(!first.out().starts_with(folder.trim()), "{first}");
}

#[test]
fn a_secret_reaches_its_command_and_nothing_else() {
    const VALUE: &str = "correct-horse-battery";
    let home = Home::new();
    let gate = Gate::new(&home, "gate");
    home.write("value", VALUE);
    let set = end_of(&mut home.shell("repl secret set HORSE < value"));
    assert_eq!(set.code, 0, "{set}");
    std::fs::remove_file(home.here().join("value")).unwrap();
    // Whole, in two writes, and on the other stream; never in the command, which is stored as it was typed.
    let command = format!(
        r#"echo "<$HORSE>"; printf '<%.8s' "$HORSE"; {}; printf '%s>\n' "${{HORSE#????????}}"; echo "$HORSE" >&2; test ${{#HORSE}} = 21"#,
        gate.wait()
    );
    let run = home.detach(&["--secret", "HORSE"], &command);
    gate.open();
    let ended = home.attach(&run);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(ended.out(), "<***>\n<***>\n");
    assert!(ended.stderr.starts_with("***\n"), "{ended}");
    home.stop();
    assert_eq!(files_with(home.data(), VALUE), Vec::<String>::new());
}

#[test]
fn a_home_with_a_very_long_path_is_a_home() {
    let long = tempfile::Builder::new().prefix(&"e2e-long-".repeat(12)).tempdir().unwrap();
    let home = Home::on(long.path());
    let ended = home.run(&[], "echo far; exit 3");
    assert_eq!((ended.code, &*ended.out()), (3, "far\n"), "{ended}");
}

/// Files below a folder in which the word stands.
fn files_with(folder: &Path, word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files_with(&entry.path(), word));
        } else if kind.is_file() {
            let bytes = std::fs::read(entry.path()).unwrap();
            if bytes.windows(word.len()).any(|part| part == word.as_bytes()) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    found
}
