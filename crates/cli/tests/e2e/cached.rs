//! Cached runs as a user has them: the second that is the same shows the first one's output, files and exit code, and runs nothing.

use crate::home::Home;
use crate::weed::{self, Weed};
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
    assert_eq!(other.run(&flags, &command).out().trim(), "done");
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

#[test]
fn what_a_kept_result_cannot_know_is_refused_with_the_way_out() {
    let settings = "[providers.far]\nkind = \"ssh\"\nhosts = [\"somebody@box.invalid\"]\n";
    let feature = "[features.tool]\ninstall = \"true\"\nremove = \"true\"\n";
    let home = Home::with(&format!("{settings}{feature}"));
    for (flags, said) in [
        (&["--provider", "far"][..], "use --provider local, or leave out --cache"),
        (&["--feature", "tool"], "leave out features or cache"),
        (&["--save-snapshot"], "leave out save_snapshot or cache"),
    ] {
        let refused = home.run(&[&["--cache"], flags].concat(), "true");
        assert!(refused.code != 0 && refused.stderr.contains(said), "{flags:?}: {refused}");
    }
    assert_eq!(home.done(&["ps", "--all", "--json"]).out().trim(), "[]", "nothing was submitted");
}

/// All that is in the folder was written two days ago.
fn age(folder: &std::path::Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            age(&path);
        } else {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            let then = file.metadata().unwrap().modified().unwrap() - std::time::Duration::from_secs(2 * 24 * 3600);
            file.set_modified(then).unwrap();
        }
    }
}

#[test]
fn what_no_head_of_a_remote_needs_is_deleted_by_the_second_sweep() {
    let home = Home::new();
    let folder = home.here().join("remote");
    let remote = format!("file://{}", folder.display());
    let none = home.say(&["dag", "sweep", &remote]);
    assert!(none.code == 1 && none.stderr.contains("no repository"), "{none}");
    assert!(!folder.exists(), "a sweep makes no remote");
    home.run(&["--cache"], "echo first");
    home.done(&["dag", "branch", "main"]);
    home.done(&["dag", "push", &remote]);
    let kept = home.done(&["dag", "ref", "main"]).out();
    // The second push replaces the first: its manifest is needed no more.
    home.run(&["--cache"], "echo second");
    home.done(&["dag", "branch", "main"]);
    home.done(&["dag", "push", &remote]);
    let sweep = || -> serde_json::Value {
        serde_json::from_slice(&home.done(&["dag", "sweep", &remote, "--json"]).stdout).unwrap()
    };
    assert_eq!(sweep(), serde_json::json!({ "deleted": 0, "marked": 0, "spared": 0 }), "all is young");
    age(&folder);
    let said = home.done(&["dag", "sweep", &remote]);
    assert!(said.stderr.contains("0 files deleted, 1 marked") && said.stderr.contains("in a day"), "{said}");
    age(&folder);
    assert_eq!(sweep(), serde_json::json!({ "deleted": 1, "marked": 0, "spared": 0 }));
    home.done(&["dag", "pull", &remote]);
    let log = home.done(&["dag", "log", "origin/main"]).out();
    assert!(log.contains(&kept[..12]), "what the head reaches is whole: {log}");
}

#[test]
fn a_head_goes_to_a_bucket_and_comes_back() {
    let weed = Weed::start();
    let mut home = Home::new();
    for (name, value) in [
        ("AWS_ENDPOINT_URL", weed.endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", weed::KEY),
        ("AWS_SECRET_ACCESS_KEY", weed::SECRET),
        ("AWS_REGION", "us-east-1"),
    ] {
        home.set(name, value);
    }
    home.run(&["--cache"], "head -c 1500000 /dev/zero");
    home.done(&["dag", "branch", "main"]);
    let remote = format!("s3://{}/team", weed::BUCKET);
    home.done(&["dag", "push", &remote]);
    home.done(&["dag", "pull", &remote, "--as", "team"]);
    let (ours, theirs) = (home.done(&["dag", "ref", "main"]), home.done(&["dag", "ref", "refs/remotes/team/main"]));
    assert_eq!(ours.out(), theirs.out());
}
