//! The first minutes of a new user: a command, a second one, files there and back.

use crate::home::Home;
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

#[test]
fn a_first_command_needs_nothing_and_a_second_finds_the_machine_warm() {
    let home = Home::new();
    let first = home.run(&[], "echo hello; echo aside >&2; exit 3");
    assert_eq!((first.code, &*first.out()), (3, "hello\n"), "{first}");
    assert!(first.stderr.starts_with("aside\n") && first.stderr.lines().count() > 1, "{first}");
    assert_eq!(home.status("@last")["warm"], false);
    let second = home.run(&[], "true");
    assert_eq!((second.code, &*second.out()), (0, ""), "{second}");
    let status = home.status("@last");
    assert_eq!((&status["warm"], &status["status"]), (&true.into(), &"completed".into()));
    assert!(home.done(&["status", "@last"]).out().contains("warm"));
    assert_eq!(home.instances().len(), 1);
    home.adds_up();
}

#[test]
fn a_file_travels_once_and_an_artifact_comes_back() {
    let home = Home::new();
    home.write("data.txt", "x".repeat(100_000));
    let line = ["run", "-c", "mkdir out; wc -c < data.txt > out/n", "--file", "data.txt", "--artifact", "out/*"];
    home.done(&line);
    assert_eq!(home.status("@last")["synced_blobs"], 1);
    let blobs = std::fs::read_dir(home.data().join("blobs")).unwrap().flatten().map(|org| org.path().join("content"));
    let content = blobs.into_iter().find(|content| content.exists()).unwrap();
    let stored = files(&content);
    home.done(&["artifact", "get", "@last"]);
    assert_eq!(std::fs::read_to_string(home.here().join("out/n")).unwrap().trim(), "100000");
    let again = home.done(&line);
    assert!(again.stderr.contains("none sent"), "{again}");
    assert_eq!(home.status("@last")["synced_blobs"], 0);
    // A machine that has never seen it gets it from the control plane, not from here again.
    let machine = home.status("@last")["instance"].as_str().unwrap().to_owned();
    home.done(&["instance", "terminate", &machine]);
    let elsewhere = home.done(&line);
    assert!(elsewhere.stderr.contains("none sent"), "{elsewhere}");
    assert_eq!(home.status("@last")["synced_blobs"], 1);
    assert_eq!(files(&content), stored, "nothing was stored twice");
}

#[test]
fn a_folder_keeps_its_modes_and_leaves_behind_what_git_ignores() {
    let home = Home::new();
    home.write("p/run.sh", "#!/bin/sh\ncat deep/er/data\n");
    home.write("p/deep/er/data", "found\n");
    home.write("p/.gitignore", "*.log\n/build/\n!keep.log\n");
    home.write("p/deep/.gitignore", "secret\n");
    for ignored in ["p/a.log", "p/build/big", "p/deep/secret", "p/.git/config"] {
        home.write(ignored, "no");
    }
    home.write("p/keep.log", "kept");
    home.write("p/empty", "");
    home.write("p/large", "l".repeat(70_000)); // more than travels with the order itself
    home.write("p/a name with  spaces", "x");
    for (name, mode) in [("p/run.sh", 0o755), ("p/deep/er/data", 0o640), ("p/empty", 0o400)] {
        std::fs::set_permissions(home.here().join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let seen = home.run(&["--file", "p"], "cd p; find . -type f -printf '%m %p\\n' | sort -k2; ./run.sh");
    let expected = ["644 ./.gitignore", "644 ./a name with  spaces", "644 ./deep/.gitignore", "640 ./deep/er/data"];
    let expected = [&expected[..], &["400 ./empty", "644 ./keep.log", "644 ./large", "755 ./run.sh", "found"]].concat();
    assert_eq!(seen.out().lines().collect::<Vec<_>>(), expected, "{seen}");
    // Only what changed travels again.
    home.write("p/deep/er/data", "y".repeat(70_000));
    let seen = home.run(&["--file", "p"], "wc -c < p/deep/er/data");
    assert_eq!(seen.out().trim(), "70000");
    assert!(seen.stderr.contains(", 1 sent"), "{seen}");
    assert_eq!(home.status("@last")["synced_blobs"], 1);
}

#[test]
fn links_and_empty_folders_arrive_and_a_link_out_of_the_tree_is_followed_when_asked() {
    let home = Home::new();
    home.write("outside/secret", "from outside\n");
    let run = home.write("p/bin/run", "#!/bin/sh\ncat ../lib/data\n");
    std::fs::set_permissions(run, std::fs::Permissions::from_mode(0o755)).unwrap();
    home.write("p/lib/real", "found\n");
    std::fs::create_dir_all(home.here().join("p/out/empty")).unwrap();
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, home.here().join(name)).unwrap();
    link("real", "p/lib/data");
    link("../bin", "p/lib/bin");
    let look =
        "cd p; find . ! -type d -printf '%y %p %l\\n' | sed 's/ $//' | sort; rmdir out/empty && cd lib/bin && ./run";
    let inside = home.run(&["--file", "p"], look);
    assert_eq!(inside.out(), "f ./bin/run\nf ./lib/real\nl ./lib/bin ../bin\nl ./lib/data real\nfound\n", "{inside}");
    link("../../outside/secret", "p/lib/leaves");
    let refused = home.say(&["run", "--file", "p", "-c", "true"]);
    assert_eq!(refused.code, 2, "{refused}");
    for word in ["the link p/lib/leaves leads out of what is sent", "--follow-links"] {
        assert!(refused.stderr.contains(word), "`{word}` is missing: {refused}");
    }
    std::fs::remove_file(home.here().join("p/lib/bin")).unwrap();
    let followed = home.run(&["--file", "p", "--follow-links"], "cd p/lib; test ! -L leaves && cat leaves data");
    assert_eq!((followed.code, &*followed.out()), (0, "from outside\nfound\n"), "{followed}");
}

/// More files than go into one pack and more names than go into one request; `scripts/files` does the same with 200,000 and measures it.
#[test]
fn a_folder_of_6000_long_names_arrives_whole_and_is_sent_once() {
    const FILES: usize = 6_000;
    let home = Home::new();
    let long = "n".repeat(190);
    for number in 0..FILES {
        home.write(&format!("many/{long}-{number:05}"), number.to_string());
    }
    let line = ["--file", "many"];
    let first = home.run(&line, "find many -type f | wc -l; cat many/*-00000 many/*-05999");
    assert_eq!((first.code, &*first.out()), (0, "6000\n05999"), "{first}");
    assert!(first.stderr.contains("6000 sent"), "{first}");
    let again = home.run(&line, "find many -type f | wc -l");
    assert_eq!((again.code, &*again.out()), (0, "6000\n"), "{again}");
    assert!(again.stderr.contains("none sent"), "{again}");
    assert_eq!(home.status("@last")["synced_blobs"], 0, "the machine has them too");
}

#[test]
fn artifacts_are_what_the_globs_name_also_after_a_failure() {
    let home = Home::new();
    let flags = ["--artifact", "out/**", "--artifact", "*.bin"];
    let ended = home.run(
        &flags,
        "mkdir -p out/deep out/empty; echo a > out/a; chmod 750 out/a; ln -s a out/l; ln -s ../a out/deep/up; \
         echo b > out/deep/b; printf '\\0\\377' > x.bin; echo no > y.txt; exit 4",
    );
    assert_eq!(ended.code, 4, "{ended}");
    let listed = home.json(&["artifact", "ls", "@last"]);
    let mut paths: Vec<&str> = listed.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["out/a", "out/deep/b", "out/deep/up", "out/empty", "out/l", "x.bin"]);
    home.done(&["artifact", "get", "@last", "--output", "fresh"]);
    let fresh = home.here().join("fresh");
    assert_eq!(std::fs::read(fresh.join("x.bin")).unwrap(), b"\x00\xff");
    assert_eq!(std::fs::read_to_string(fresh.join("out/deep/b")).unwrap(), "b\n");
    let mode = |path: &str| std::fs::metadata(fresh.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("out/a"), mode("out/deep/b") & 0o111), (0o750, 0), "executable bits");
    assert!(std::fs::read_dir(fresh.join("out/empty")).unwrap().next().is_none(), "an empty folder is there");
    for (link, target) in [("out/l", "a"), ("out/deep/up", "../a")] {
        assert_eq!(std::fs::read_link(fresh.join(link)).unwrap(), Path::new(target), "{link}");
        assert_eq!(std::fs::read_to_string(fresh.join(link)).unwrap(), "a\n", "{link}");
    }
    home.adds_up();
}

#[test]
fn two_first_commands_at_once_start_one_control_plane() {
    let home = Home::new();
    let mut all: Vec<_> = (0..4)
        .map(|n| {
            let command = format!("echo {n}");
            crate::process::Running::start(&mut home.repl(&["run", "-c", &command]))
        })
        .collect();
    for (n, one) in all.drain(..).enumerate() {
        let ended = one.end();
        assert_eq!((ended.code, ended.out()), (0, format!("{n}\n")), "{ended}");
    }
    let serving = home.processes().into_iter().filter(|process| process.words.starts_with("repl control serve"));
    assert_eq!(serving.count(), 1);
    home.adds_up();
}

/// Every file below, with what changes when it is written again.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, i64)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let about = entry.metadata().unwrap();
        if about.is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.insert(entry.path(), (about.ino(), about.mtime_nsec()));
        }
    }
    found
}
