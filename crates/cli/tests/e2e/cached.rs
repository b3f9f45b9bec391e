//! Cached runs as a user has them: the second that is the same shows the first one's output, files and exit code, and runs nothing.

use crate::home::Home;
use std::collections::BTreeSet;

fn lines(home: &Home, name: &str) -> usize {
    std::fs::read_to_string(home.here().join(name)).map_or(0, |text| text.lines().count())
}

#[test]
fn a_result_that_is_kept_looks_like_the_run_that_made_it() {
    let home = Home::new();
    let mark = home.here().join("mark");
    home.write("in.txt", "data\n");
    let command = format!(
        "echo x >> {}; echo out; echo err >&2; mkdir -p out/sub; cp in.txt out/sub/copy; chmod 750 out/sub/copy; \
         ln -s copy out/sub/link; head -c 2000000 /dev/zero | tr '\\000' z",
        mark.display()
    );
    let flags = ["--cache", "--file", "in.txt", "--artifact", "out/**"];
    let first = home.run(&flags, &command);
    let second = home.run(&[&flags[..], &["--name", "second"]].concat(), &command);
    assert_eq!(lines(&home, "mark"), 1, "it was executed once");
    assert_eq!(second.stdout, first.stdout);
    assert!(second.stdout.len() > 2_000_000 && second.stderr.starts_with("err\n"), "{}", second.stderr);
    assert!(second.stderr.contains("cached from run_"), "{}", second.stderr);
    assert_eq!(
        home.done(&["logs", "second", "--tail", "1"]).stdout.len(),
        second.stdout.len(),
        "a large result is told whole"
    );
    let status = home.status("second");
    assert_eq!((&status["status"], &status["cached_from"]["hit"]), (&"completed".into(), &true.into()));
    home.done(&["artifact", "get", "second"]);
    let copy = home.here().join("out/sub/copy");
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), "data\n");
    assert_eq!(std::fs::read_link(home.here().join("out/sub/link")).unwrap().to_str(), Some("copy"));
    home.adds_up();
}

#[test]
fn a_cached_command_sees_nothing_of_its_host() {
    let home = Home::new();
    home.write("tool", "#!/bin/sh\n");
    std::fs::set_permissions(home.here().join("tool"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let ended =
        home.run(&["--cache", "--file", "tool", "--env", "MODE=a"], "umask; stat -c %a tool; exec /usr/bin/env");
    let mut said = ended.out().lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
    assert_eq!((said.next().as_deref(), said.next().as_deref()), (Some("0022"), Some("755")));
    let names: BTreeSet<String> = said.filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect();
    // PWD is the shell's own; by the two others the runner finds what is left of the command.
    let ours = ["PWD", "REPL_JOB_KEY", "REPL_WORKDIR", "OLDPWD", "_", "SHLVL"];
    let theirs: Vec<&str> = names.iter().map(String::as_str).filter(|name| !ours.contains(name)).collect();
    assert_eq!(theirs, ["HOME", "LANG", "MODE", "PATH", "TZ"]);
}

#[test]
fn a_changed_file_is_executed_and_named() {
    let home = Home::new();
    home.write("a.txt", "1");
    home.run(&["--cache", "--file", "a.txt"], "cat a.txt");
    home.write("a.txt", "2");
    let second = home.run(&["--cache", "--file", "a.txt", "--name", "second"], "cat a.txt");
    assert_eq!(second.out(), "2");
    let why = home.done(&["cache", "why", "second"]).out();
    assert!(why.contains("differs from run_") && why.contains("file a.txt was changed"), "{why}");
    let from = home.done(&["backtrack", "second"]).out();
    assert!(from.contains("command") && from.contains("cat a.txt") && from.contains("a.txt"), "{from}");
    let none = home.say(&["backtrack", "abcdef"]);
    assert!(none.code == 1 && none.stderr.contains("repl cache ls"), "{none}");
}

#[test]
fn a_head_goes_to_a_remote_and_comes_to_another_home_where_it_answers_nothing() {
    let (home, other) = (Home::new(), Home::new());
    let mark = home.here().join("mark");
    let command = format!("echo x >> {}; head -c 1500000 /dev/zero > out.bin; echo done", mark.display());
    let flags = ["--cache", "--artifact", "out.bin"];
    home.run(&flags, &command);
    let remote = format!("file://{}", home.here().join("remote").display());
    assert!(home.done(&["dag", "branch", "main"]).stderr.contains("main is at "));
    let commit = home.done(&["dag", "ref", "main"]).out();
    let sent: serde_json::Value =
        serde_json::from_slice(&home.done(&["dag", "push", &remote, "--json"]).stdout).unwrap();
    assert_eq!((&sent["commit"], &sent["blobs"]), (&commit.trim().into(), &1.into()), "{sent}");
    let again = home.done(&["dag", "push", &remote]);
    assert!(again.stderr.contains("already"), "{again}");
    // What is new goes over the line, and nothing else.
    home.run(&["--cache"], "echo second");
    home.done(&["dag", "branch", "main"]);
    let newer: serde_json::Value =
        serde_json::from_slice(&home.done(&["dag", "push", &remote, "--json"]).stdout).unwrap();
    assert!(newer["objects"].as_u64() < sent["objects"].as_u64() && newer["blobs"] == 0, "{newer} after {sent}");
    // Elsewhere: the head, its log, its values and files are there, and no run is answered by them.
    let pulled = other.done(&["dag", "pull", &remote]);
    assert!(pulled.stderr.contains("repl dag branch main origin/main"), "{pulled}");
    other.done(&["dag", "branch", "main", "origin/main"]);
    let log: serde_json::Value = serde_json::from_slice(&other.done(&["dag", "log", "--json"]).stdout).unwrap();
    assert_eq!((log.as_array().unwrap().len(), &log[1]["id"]), (2, &commit.trim().into()), "{log}");
    assert_eq!(other.run(&flags, &command).out(), "done");
    assert_eq!(lines(&home, "mark"), 2, "it was executed again");
    // Two homes went different ways: the second to push is refused.
    other.done(&["dag", "branch", "main"]);
    other.done(&["dag", "push", &remote]);
    home.run(&["--cache"], "echo third");
    home.done(&["dag", "branch", "main"]);
    let refused = home.say(&["dag", "push", &remote]);
    assert!(refused.code == 1 && refused.stderr.contains("not an ancestor"), "{refused}");
    home.done(&["dag", "push", &remote, "--force"]);
    let refused = other.say(&["dag", "pull", &remote]);
    assert!(refused.code == 1 && refused.stderr.contains("--force"), "{refused}");
    other.done(&["dag", "pull", &remote, "--force"]);
    let none = home.say(&["dag", "pull", "file:///does/not/exist"]);
    assert!(none.code == 1 && none.stderr.contains("no repository"), "{none}");
    home.adds_up();
}
