//! Sessions of the real binary as a user has them, from an empty folder: what is typed, what is said, what is left.
//! Every session has a home of its own and leaves no process behind.

mod asked;
mod owned;
mod people;
mod session;
#[path = "../../../testkit/tests/support/skip.rs"]
mod skip;
mod told;
mod trust;

use session::{REDACTED, Session};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};

macro_rules! transcript_is {
    ($session:expr) => {
        insta::with_settings!({ filters => REDACTED.to_vec(), omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!($session.transcript());
        });
    };
}

#[test]
fn a_first_run_needs_no_set_up() {
    let mut session = Session::new();
    session.type_in("repl run --name first -c 'echo hello; echo oops >&2; exit 3'");
    session.type_in("repl run --name second -- printf '%s|' one 'two three'");
    session.type_in("repl status second");
    session.type_in("repl ps");
    session.type_in("repl ps -a");
    session.type_in("repl why first");
    session.type_in("repl logs first");
    session.type_in("repl logs first --stream stderr");
    session.type_in("repl audit");
    transcript_is!(session);
}

#[test]
fn files_travel_once_and_artifacts_come_back() {
    let mut session = Session::new();
    std::fs::write(session.here().join("data.txt"), "one two three\n").unwrap();
    let line = "repl run --file data.txt --artifact 'out/*' -c 'mkdir out; wc -c data.txt > out/n'";
    session.type_in(line);
    session.type_in("repl artifact ls @last");
    session.type_in("repl artifact get @last");
    session.type_in("cat out/n");
    session.type_in(line);
    session.type_in("echo mine > out/n; repl artifact get @last");
    session.type_in("repl artifact get @last --force && cat out/n");
    session.type_in("repl artifact get @last out/n --output -");
    session.type_in("repl artifact get @last 'nothing/*'");
    session.type_in("repl run -c 'wc -c data.txt'");
    transcript_is!(session);
}

#[test]
fn a_run_that_was_executed_before_is_answered_and_explained() {
    let mut session = Session::new();
    std::fs::write(session.here().join("data.txt"), "one\n").unwrap();
    let line = "repl run --cache --name count --file data.txt -c 'wc -l < data.txt'";
    session.type_in(line);
    session.type_in(line);
    session.type_in("repl status count");
    std::fs::write(session.here().join("data.txt"), "one\ntwo\n").unwrap();
    session.type_in(line);
    session.type_in("repl cache why");
    session.type_in("repl backtrack");
    session.type_in("repl cache invalidate count");
    session.type_in("repl cache invalidate --all");
    session.type_in("repl cache ls");
    session.type_in("repl cache rebuild");
    session.type_in("repl cache invalidate");
    session.type_in("repl cache invalidate nothing");
    session.type_in("repl run -c true && repl cache why");
    session.type_in("repl run --cache --save-snapshot -c true");
    session.type_in("repl audit");
    transcript_is!(session);
}

#[test]
fn a_folder_arrives_as_git_would_have_it() {
    let session = Session::new();
    let folder = session.here().join("project");
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    for (name, text) in [("a.sh", "echo from a"), (".gitignore", "*.tmp\n"), ("x.tmp", "x"), ("sub/b.txt", "b")] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    session.quietly("chmod 755 project/a.sh");
    let seen = session
        .quietly("repl run --file project -c 'cd project && find . -type f | sort && ./a.sh' 2>/dev/null || true");
    assert_eq!(seen, "./.gitignore\n./a.sh\n./sub/b.txt\nfrom a\n");
    let seen = session.quietly("repl run --file ../here/project/sub:deep -c 'cat deep/b.txt' 2>/dev/null");
    assert_eq!(seen, "b");
}

#[test]
fn a_detached_run_is_followed_cancelled_and_retried() {
    let mut session = Session::new();
    session.type_in("repl run --detach --name long -c 'echo started; sleep 600'");
    session.type_in("repl run --detach --name long -c 'echo again'");
    let mut attached = session.begin("exec repl attach long");
    let mut first = String::new();
    BufReader::new(attached.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "started\n");
    let pid = nix::unistd::Pid::from_raw(attached.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(attached.wait().unwrap().code(), Some(130), "Ctrl-C detaches");
    session.wait_for("long", "job.started");
    session.type_in("repl ps");
    session.type_in("repl cancel long");
    session.type_in("repl attach @last");
    session.type_in("repl cancel @last");
    session.type_in("repl retry @last");
    session.type_in("repl run --name short -c 'exit 7'");
    session.type_in("repl retry short");
    session.type_in("repl attach short");
    session.type_in("repl delete short && repl status short");
    transcript_is!(session);
}

#[test]
fn ends_have_their_exit_codes() {
    let session = Session::new();
    let table = [
        ("repl run -c true", 0),
        ("repl run -c 'exit 42'", 42),
        ("repl run -c 'kill -9 $$'", 137),
        ("repl run -c 'kill -TERM $$'", 143),
        ("repl run --max-duration 1s -c 'sleep 60'", 124),
        ("repl run -- /no/such/program", 127),
        ("repl run --stop-duration 0s --name c --detach -c 'sleep 600' && repl cancel c --abort && repl attach c", 143),
    ];
    for (line, code) in table {
        let output = session.shell(line).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn output_arrives_byte_for_byte() {
    let session = Session::new();
    let bytes = |line: &str| session.shell(line).output().unwrap().stdout;
    assert_eq!(bytes("repl run -c 'printf \"\\000\\377\\r\\n\\033[1mx\"'"), b"\x00\xff\r\n\x1b[1mx");
    let line = bytes("repl run -c 'head -c 1000000 /dev/zero | tr \"\\000\" a'");
    assert_eq!(line.len(), 1_000_000);
    assert!(line.iter().all(|byte| *byte == b'a'), "a line of 1 MB, nothing added where it was cut");
    let merged = bytes("repl run --merge -c 'for i in $(seq 300); do echo o$i; echo e$i >&2; done'");
    let expected: String = (1..=300).map(|i| format!("o{i}\ne{i}\n")).collect();
    assert_eq!(String::from_utf8(merged).unwrap(), expected);
    let replays = [bytes("repl logs @last"), bytes("repl logs @last")];
    assert_eq!(replays[0], replays[1]);
    assert_eq!(replays[0], expected.as_bytes());
}

#[test]
fn much_output_is_not_lost() {
    let session = Session::new();
    let line = "repl run -c 'seq 1 3000000' 2>/dev/null | cksum; seq 1 3000000 | cksum";
    let sums = session.quietly(line);
    let sums: Vec<&str> = sums.lines().collect();
    assert_eq!(sums[0], sums[1]);
    assert_eq!(session.quietly("repl logs @last --tail 2"), "2999999\n3000000\n");
    assert_eq!(session.quietly("repl logs @last | head -n 1"), "1\n");
}

#[test]
fn a_run_file_is_read_strictly() {
    let mut session = Session::new();
    let file = "type: task\nname: count\nfiles: [data.txt]\nenv: {WHO: you}\ncommands:\n  - echo \"for $WHO\"\n  - wc -c < data.txt\n";
    std::fs::write(session.here().join("data.txt"), "one two three\n").unwrap();
    std::fs::write(session.here().join("count.repl.yml"), file).unwrap();
    session.type_in("repl run count.repl.yml 2>/dev/null");
    session.type_in("repl run count.repl.yml --env WHO=me --dry-run");
    session.type_in("sed -i s/commands/comands/ count.repl.yml; repl run count.repl.yml");
    session.type_in("repl run nothing.repl.yml");
    transcript_is!(session);
}

#[test]
fn every_listing_speaks_json() {
    let mut session = Session::new();
    session.quietly("repl run --name one --artifact n -c 'echo x | tee n'");
    for line in [
        "repl ps -a --json",
        "repl status one --json",
        "repl why one --json",
        "repl events one --json",
        "repl instance ls --json",
        "repl allocation ls -a --json",
        "repl allocation show one --json",
        "repl workflow ls --json",
        "repl manifest ls --json",
        "repl artifact ls one --json",
        "repl credits balance --json",
        "repl credits ledger --json",
        "repl credits usage --json",
        "repl secret ls --json",
        "repl token ls --json",
        "repl control status --json",
        "repl audit --json",
        "repl doctor --json",
        "repl run --dry-run --json -c x",
    ] {
        session.shape(line);
    }
    transcript_is!(session);
}

#[test]
fn every_action_speaks_json() {
    let mut session = Session::new();
    session.quietly("repl run --name one -c 'exit 7' || true");
    session.quietly("repl run --detach --name two -c 'sleep 600'");
    session.wait_for("two", "job.started");
    let the = |what: &str| {
        format!(
            "$(repl {what} ls --json | sed -n 's/.*\"id\": \"\\({}_[^\"]*\\)\".*/\\1/p' | head -n 1)",
            &prefix(what)
        )
    };
    for line in [
        "repl run --detach --name three --json -c true",
        "repl extend one 2h --json",
        "repl release one --json",
        "repl retry one --json",
        "repl pause two --json",
        "repl resume two --json",
        "repl cancel two --json",
        "repl token create ci --json",
        "repl credits add 1 --json",
        &format!("repl instance show {} --json", the("instance")),
        &format!("repl workflow show {} --json", the("workflow")),
        &format!("repl manifest show {} --json", the("manifest")),
        &format!("repl instance terminate {} --force --json", the("instance")),
    ] {
        session.names(line);
    }
    transcript_is!(session);
}

/// How ids of that kind begin.
fn prefix(what: &str) -> &'static str {
    match what {
        "instance" => "ins",
        "workflow" => "wfl",
        _ => "mft",
    }
}

#[test]
fn a_run_is_paused_and_resumed() {
    let mut session = Session::new();
    session.quietly("repl run --detach --name still -c 'sleep 600'");
    session.wait_for("still", "job.started");
    session.type_in("repl pause still");
    session.wait_for("still", "run.paused");
    session.type_in("repl ps");
    session.type_in("repl pause still");
    session.type_in("repl resume still");
    session.wait_for("still", "job.thawed");
    session.type_in("repl cancel still --abort");
    session.wait_for("still", "run.cancelled");
    session.type_in("repl pause still");
    session.type_in("repl logs still");
    session.type_in("repl completion bash | head -n 1");
    session.type_in("repl completion tcsh");
    transcript_is!(session);
}

#[test]
fn machines_holds_and_what_stands_behind_them() {
    let mut session = Session::new();
    session.quietly("repl run --name one -c 'echo kept > file'");
    session.type_in("repl allocation ls -a");
    session.type_in("repl extend 2h");
    session.type_in("repl extend one 20h");
    let path = session.json("repl allocation show one --json")["path"].as_str().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(std::path::Path::new(&path).join("file")).unwrap(), "kept\n");
    session.type_in("repl release one");
    session.type_in("repl release one");
    session.type_in("repl instance ls");
    session
        .type_in("repl instance show $(repl instance ls --json | sed -n 's/.*\"id\": \"\\(ins_[^\"]*\\)\".*/\\1/p')");
    session.type_in("repl workflow ls");
    session.type_in(
        "repl workflow show $(repl workflow ls --json | sed -n 's/.*\"id\": \"\\(wfl_[^\"]*\\)\".*/\\1/p' | tail -n 1)",
    );
    session.type_in("repl manifest ls");
    transcript_is!(session);
}

#[test]
fn orphans_are_said_kept_and_ended_by_their_id() {
    let mut session = Session::new();
    session.quietly("repl run -c true");
    // Of another installation, and one whose name cannot be read.
    for name in ["repl-0therpl4-none-1a", "repl-old"] {
        std::fs::create_dir_all(session.home().join("instances").join(name)).unwrap();
    }
    session.type_in("repl orphans scan");
    session.type_in("repl orphans list --json | head -n 3");
    session.type_in("repl orphans inspect i-nowhere");
    session.type_in("repl orphans whitelist repl-0therpl4-none-1a");
    session.type_in("repl orphans whitelist repl-0therpl4-none-1a --reason mine --expires 2024-02-30");
    session.type_in("repl orphans whitelist repl-0therpl4-none-1a --reason 'of the other team'");
    session.type_in("repl orphans list");
    session.type_in("repl orphans unwhitelist repl-0therpl4-none-1a");
    session.type_in("echo no | repl orphans terminate repl-0therpl4-none-1a");
    session.type_in("echo repl-0therpl4-none-1a | repl orphans terminate repl-0therpl4-none-1a");
    session.type_in("repl orphans recovery-report");
    session.type_in("repl orphans recovery-report --org default");
    session.type_in("repl orphans recovery-report --import --org nobody");
    session.type_in("repl orphans recovery-report --import");
    transcript_is!(session);
}

#[test]
fn money_secrets_and_tokens() {
    let mut session = Session::new();
    session.type_in("repl credits balance");
    session.type_in("repl credits add 5 --memo 'for tea'");
    session.type_in("repl credits ledger");
    session.type_in("repl credits add -- -5");
    session.type_in("printf 'open sesame\\n' | repl secret set DOOR");
    session.type_in("repl secret ls");
    session.type_in("repl run --secret DOOR -c 'echo \"the word is $DOOR\"; printf %s \"$DOOR\" | wc -c'");
    session.type_in("repl run --secret WINDOW -c true");
    session.type_in("repl secret delete DOOR");
    session.type_in("repl secret delete DOOR");
    session.type_in("repl token create reader --scope read");
    session.type_in("repl token ls");
    session.type_in("REPL_TOKEN=$(repl token create r2 --scope read 2>/dev/null) repl cancel @last");
    session.type_in("REPL_TOKEN=rmd_wrong repl ps");
    session.type_in("repl run --budget 0.000001 -c true");
    transcript_is!(session);
}

#[test]
fn providers_are_listed_added_priced_and_removed() {
    let mut session = Session::new();
    let config = session.here().join("../.config/remuda");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "[providers.local]\nmax_instances = 2\norgs = ['default']\n").unwrap();
    for line in [
        "repl provider ls",
        "repl provider add local second --set max_instances=1",
        "repl provider add local second --set max_instances=2",
        "repl provider add exec mine",
        "repl provider add ssh lab",
        "repl provider ls",
        "repl provider prices | awk '{ print $1, $2, $3, $4, $NF }'",
        "repl provider prices secnd",
        "repl provider prices second --json | grep -v 'cpu_milli\\|memory_bytes\\|gpu'",
        "repl run --dry-run --provider second -c true | grep -v 'machine\\|set aside'",
        "repl run --dry-run --gpu h100:9 -c true",
        "repl run --region nowhere -c true",
        "repl provider test second",
        "repl provider test second --yes",
        "repl provider remove local",
        "repl provider remove third",
    ] {
        session.type_in(line);
    }
    session.quietly("repl provider remove second --force");
    transcript_is!(session);
}

#[test]
fn what_people_type_is_understood_or_answered() {
    let mut session = Session::new();
    std::fs::write(session.here().join("train.py"), "print('hello')\n").unwrap();
    std::fs::write(session.here().join("a b.sh"), "echo hi\n").unwrap();
    session.quietly("repl run --name train --artifact n -c 'echo hello | tee n'");
    for line in [
        "repl logs",
        "repl log train",
        "repl ls -a",
        "repl artifact get n --output -",
        "repl artifact get './n*' --output -",
        "repl artifact list | tail -n +2",
        "repl run python train.py",
        "repl run train.py --epochs 3",
        "repl run --cpu 2 train.py --name x",
        "repl run 'python train.py | tee log'",
        "repl run sh 'a b.sh'",
        "repl run gone.repl.yml",
        "repl train.py",
        "repl top",
        "repl list -a",
        "repl stauts train",
        "repl run --gpus 1 -c true",
        "repl status trian",
        "repl status other",
        "repl help frobnicate",
        "repl help ls | head -n 3",
        "repl help | head -n 1",
        "repl artifact help | head -n 1",
        "printf word | repl secret set DOOR && repl secret rm DOOR",
        "repl token rm $(repl token create ci --json | sed -n 's/.*\"id\": \"\\(tok_[^\"]*\\)\".*/\\1/p')",
    ] {
        session.type_in(line);
    }
    session.quietly("repl run --detach --name long -c 'trap : TERM; while :; do sleep 0.1; done'");
    session.wait_for("long", "job.started");
    session.quietly("repl kill long");
    let ended = session.shell("repl attach long 2>&1 >/dev/null").output().unwrap();
    assert_eq!(ended.status.code(), Some(143));
    session.type_in("repl rm long");
    for size in ["8Mi", "8M", "8MB"] {
        let plan = session.json(&format!("repl run --dry-run --json --memory {size} -c true"));
        assert_eq!(plan["limits"]["memory_bytes"], 8 << 20, "{size}: {plan}");
    }
    transcript_is!(session);
}

/// What a shell's script is told at a Tab.
fn offered(session: &Session, words: &[&str]) -> Vec<String> {
    let line = format!("repl complete bash {} -- '{}'", words.len() - 1, words.join("' '"));
    let output = session.shell(&line).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_tab_completes_what_exists() {
    let session = Session::new();
    // No control plane runs: nothing is offered but flags, and none is started for it.
    assert!(offered(&session, &["repl", "status", "tr"]).is_empty());
    assert!(offered(&session, &["repl", "status", ""]).iter().all(|word| word.starts_with('-')));
    assert!(!session.home().exists(), "a Tab makes no home");

    session.quietly("repl run --name train --artifact 'out/*' -c 'mkdir out; echo 1 > out/loss; echo 2 > out/model'");
    session.quietly("repl run --detach --name long -c 'sleep 600'");
    session.wait_for("long", "job.started");
    assert_eq!(offered(&session, &["repl", "status", ""]), ["@last", "long", "train"]);
    assert_eq!(offered(&session, &["repl", "logs", "tr"]), ["train"]);
    assert_eq!(offered(&session, &["repl", "cancel", "t"]), [""; 0], "it has ended");
    assert_eq!(offered(&session, &["repl", "kill", "l"]), ["long"]);
    assert_eq!(offered(&session, &["repl", "artifact", "get", "train", ""]), ["out/loss", "out/model"]);
    let ids = |line: &str, path: &str| -> Vec<String> {
        let listed = session.json(line);
        listed.as_array().unwrap().iter().map(|it| it[path].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(offered(&session, &["repl", "why", "run_"]), ids("repl ps -a --json", "id"));
    assert_eq!(offered(&session, &["repl", "instance", "show", "ins"]), ids("repl instance ls --json", "id"));
    assert_eq!(offered(&session, &["repl", "release", "alc_"]).len(), ids("repl allocation ls -a --json", "id").len());

    // What waits for a person, and the parts of a tree.
    let plan =
        "{type: agents, agents: [{name: writer, tasks: [{name: draft, steps: [{name: agree, approval: \"ok?\"}]}]}]}";
    session.quietly(&format!("echo '{plan}' > plan.yml; repl run --detach --name planned plan.yml"));
    session.wait_for("planned", "question.asked");
    let approvals = ids("repl approval ls --json", "id");
    assert_eq!((approvals.len(), offered(&session, &["repl", "approval", "show", "q"])), (1, approvals));
    assert_eq!(offered(&session, &["repl", "escalation", "resolve", "q"]), [""; 0], "no ticket is open");
    let plan = "{type: agents, agents: [{tasks: [{steps: [{name: killed, command: \"kill -9 $$\"}]}]}]}";
    session.quietly("repl kill long"); // its machine is free
    session.quietly(&format!("echo '{plan}' > killed.yml; repl run --detach --name killed killed.yml"));
    session.wait_for("killed", "question.asked");
    let tickets = ids("repl escalation ls --json", "id");
    assert_eq!((tickets.len(), offered(&session, &["repl", "escalation", "resolve", "q"])), (1, tickets));
    assert_eq!(offered(&session, &["repl", "approval", "show", "q"]), ids("repl approval ls --json", "id"));
    // Of the run that the line names, which is not the last one.
    for (flag, name) in [("--agent", "writer"), ("--task", "draft"), ("--step", "agree")] {
        assert_eq!(offered(&session, &["repl", "logs", "planned", flag, ""]), [name], "{flag}");
    }

    // As a shell does it: the script is loaded, the function called, its answer read.
    let line = "eval \"$(repl completion bash)\"; COMP_WORDS=(repl logs tr); COMP_CWORD=2; _repl repl tr logs; echo ${COMPREPLY[@]}";
    let output = session.shell(&format!("exec bash -c '{line}'")).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "train\n");

    // One that has gone away answers nothing, and is not started again.
    session.quietly("repl control stop --all");
    assert!(offered(&session, &["repl", "logs", "tr"]).is_empty());
    let status = session.shell("repl control status").output().unwrap();
    assert_eq!(status.status.code(), Some(1), "not running");
    assert!(offered(&session, &["repl", "--url", "http://127.0.0.1:1", "logs", "tr"]).is_empty());
}

#[test]
fn completion_is_installed_once() {
    let mut session = Session::new();
    std::fs::write(session.here().join("../.bashrc"), "alias x=y").unwrap();
    session.type_in("repl completion bash --install; repl completion bash --install; cat ~/.bashrc");
    session.type_in("repl completion fish --install; cat ~/.config/fish/completions/repl.fish");
    session.type_in("SHELL=/bin/tcsh repl completion --install");
    session.type_in("repl completion");
    transcript_is!(session);
}

#[test]
fn wrong_input_is_refused_before_anything_happens() {
    let mut session = Session::new();
    for line in [
        "repl run --nmae x -c true",
        "repl run",
        "repl run -c true --budget -1",
        "repl run -c true --max-duration 5x",
        "repl run -c true --memory 1",
        "repl run -c true --retry x",
        "repl run -c true --retry 0",
        "repl run -c true --hold 2",
        "repl run -c true --retry-delay 0",
        "repl run -c true --name",
        "repl logs --tail x",
        "printf 'type: task\\nretry: many\\n' > t.repl.yml; repl run t.repl.yml",
        "printf 'type: task\\nmemory: 4GB\\n' > t.repl.yml; repl run t.repl.yml",
        "repl run -c true --file gone.txt",
        "repl run -c true --json",
        "repl run --env 1X=2 -c true",
        "repl run --workdir ../up -c true",
        "repl run --provider mars -c true",
        "repl run --name 'a b' -c true",
        "repl run --hold 48h -c true",
        "repl run --max-duration 0s -c true",
        "repl run --artifact ../x -c true",
        "repl run --artifact '[' -c true",
        "repl release",
        "repl extend 2",
        "repl status nobody",
        "repl status run_zzzz",
        "repl logs @last",
        "repl extend",
        "repl credits add 0",
        "repl instance terminate ins_zzzz",
        "echo 'ulr = 1' > repl.toml; repl ps; code=$?; rm repl.toml; exit $code",
        "echo 'tokn = 1' > mine.toml; repl --config mine.toml ps",
        "printf '[holds]\\ndefault_debug_hld_ms = 1\\n' > mine.toml; REPL_CONFIG=mine.toml repl ps",
        "REPL_URL=127.0.0.1:7 repl ps",
        "REPL_URL=http://127.0.0.1:1 repl ps",
        "repl worker",
    ] {
        session.type_in(line);
    }
    assert!(session.quietly("repl ps -a").is_empty());
    transcript_is!(session);
}

#[test]
fn a_control_plane_that_cannot_start_says_why() {
    let mut session = Session::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    session.type_in("touch file; REPL_HOME=$PWD/file/below repl ps");
    session.type_in("REPL_DATABASE=mysql://x repl ps");
    let output = session.shell(&format!("REPL_LISTEN=127.0.0.1:{port} repl ps")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&port.to_string()) && said.contains("fix:"), "{said}");
    session.type_in("repl control status");
    transcript_is!(session);
}

#[test]
fn two_first_commands_start_one_control_plane() {
    let session = Session::new();
    let begun: Vec<_> = (0..4).map(|_| session.begin("repl ps >/dev/null; repl control status --json")).collect();
    let pids: Vec<serde_json::Value> = begun
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            status["pid"].clone()
        })
        .collect();
    assert!(pids.iter().all(|pid| *pid == pids[0] && pid.is_number()), "{pids:?}");
    let refused = session.shell("repl server --listen 127.0.0.1:0").output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("another control plane"), "{said}");
}

#[test]
fn a_newer_command_replaces_an_older_control_plane() {
    let session = Session::new();
    session.quietly("repl run -c true");
    let before = session.control_plane();
    // In place, as its holder writes it: the lock belongs to this very file.
    let lock = session.home().join("control.lock");
    let text = std::fs::read_to_string(&lock).unwrap();
    std::fs::write(&lock, text.replace(env!("CARGO_PKG_VERSION"), "0.0.1")).unwrap();
    session.quietly("repl ps -a");
    session::wait_for_the_end_of(before);
    assert_ne!(session.control_plane(), before);
    let status = session.json("repl run -c true >/dev/null; repl status @last --json");
    assert_eq!(status["run"]["warm"], true, "its machines stay");
}

#[test]
fn a_home_with_a_long_path_works_too() {
    let session = Session::new();
    let long = session.here().join("x".repeat(120));
    let line =
        format!("export REPL_HOME={}; repl run -c 'echo far' 2>/dev/null; repl control status --json", long.display());
    let said = session.quietly(&line);
    let (output, status) = said.split_once('\n').unwrap();
    assert_eq!(output, "far");
    let status: serde_json::Value = serde_json::from_str(status).unwrap();
    let socket = std::path::PathBuf::from(status["socket"].as_str().unwrap());
    assert!(socket.exists() && socket.as_os_str().len() < 100, "{socket:?}");
    session.quietly(&format!("REPL_HOME={} repl control stop --all", long.display()));
    assert!(!socket.parent().unwrap().exists(), "{socket:?} was left behind");
}

#[test]
fn a_key_makes_one_run_of_two_submissions() {
    let session = Session::new();
    let line = "repl run --detach --idempotency-key monday -c true";
    let first = session.quietly(line);
    assert_eq!(session.quietly(line), first);
    let output = session.shell("repl run --detach --idempotency-key monday -c false").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_server_in_the_foreground_is_found_by_its_home_and_by_its_address() {
    let session = Session::new();
    let mut server = session.begin("exec repl server --listen 127.0.0.1:0");
    let mut said = BufReader::new(server.stderr.take().unwrap()).lines();
    let url = said.find_map(|line| Some(line.unwrap().strip_prefix("repl: serving ")?.to_owned())).unwrap();
    assert_eq!(session.quietly("repl run -c 'echo here' 2>/dev/null"), "here\n");
    assert_eq!(session.quietly(&format!("REPL_URL={url} repl run -c 'echo there' 2>/dev/null")), "there\n");
    session.quietly("repl control stop --all");
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_follower_outlives_its_control_plane() {
    let session = Session::new();
    let gate = session.here().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let line = format!("exec repl run -c 'echo one; read word < {}; echo $word; exit 5'", gate.display());
    let mut followed = session.begin(&line);
    let mut out = BufReader::new(followed.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "one\n");
    let before = session.control_plane();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(before), nix::sys::signal::Signal::SIGKILL).unwrap();
    session::wait_for_the_end_of(before);
    // Opened when the work reads it: it never noticed.
    std::fs::OpenOptions::new().write(true).open(&gate).unwrap().write_all(b"two\n").unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "two\n");
    assert_eq!(followed.wait().unwrap().code(), Some(5));
}

#[test]
fn a_deleted_home_leaves_nobody_behind() {
    let session = Session::new();
    session.quietly("repl run -c true");
    let pid = session.control_plane();
    std::fs::remove_dir_all(session.home()).unwrap();
    session::wait_for_the_end_of(pid);
    assert_eq!(session.quietly("repl run -c 'echo anew' 2>/dev/null"), "anew\n");
}
