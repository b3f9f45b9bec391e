//! What a person asks of a run beside its command: limits, a plan, several commands, standard input, attempts.

use crate::session::Session;
use std::io::Write as _;
use std::process::{Output, Stdio};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn typed(session: &Session, line: &str) -> (Option<i32>, String, String) {
    let output = session.shell(line).output().unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// With this on standard input, through a pipe.
fn piped(session: &Session, line: &str, bytes: &[u8]) -> Output {
    let mut child =
        session.shell(line).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut pipe, bytes) = (child.stdin.take().unwrap(), bytes.to_vec());
    let writer = std::thread::spawn(move || pipe.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join(); // a command that does not read it all is no failure
    output
}

const TAKES_200_MB: &str = "head -c 200000000 /dev/zero | tail -c 199000000 >/dev/null; echo $?";

/// How many of its control groups hold the job back: the quota of the group around its own, which is where its limits are.
const QUOTAS: &str = r#"tails=$(sed -n 's|.*:.*/\([^/]*/[^/][^/]*\)$|\1|p' /proc/self/cgroup | sort -u)
for tail in $tails; do
    find /sys/fs/cgroup -type d -path "*/$tail" | while read -r own; do
        cat "$own/../cpu.cfs_quota_us" "$own/../cpu.max" 2>/dev/null
    done
done | grep -c '^[1-9]'"#;

/// Whether limits are enforced on this host.
fn limits_are_enforced(session: &Session) -> bool {
    let doctor = session.shell("repl doctor --json").output().unwrap().stdout;
    let checks: serde_json::Value = serde_json::from_slice(&doctor).unwrap();
    let limits = checks.as_array().unwrap().iter().find(|check| check["check"] == "limits").unwrap();
    if limits["state"] == "fine" {
        return true;
    }
    crate::skip::skip("limits", &limits.to_string());
    false
}

#[test]
fn a_limit_of_cpu_is_the_runs_own_and_not_the_machines() {
    for first in ["", "--cpu 0.1"] {
        let session = Session::new();
        if !limits_are_enforced(&session) {
            return;
        }
        std::fs::write(session.here().join("quotas"), QUOTAS).unwrap();
        session.quietly(&format!("repl run {first} -c true"));
        for (limit, groups) in [("", "0\n"), ("--cpu 0.1", "1\n"), ("", "0\n")] {
            let (_, said, all) = typed(&session, &format!("repl run {limit} --file quotas -c 'sh quotas; true'"));
            assert_eq!(said, groups, "first `{first}`, then `{limit}`: {all}");
        }
        let machines = session.json("repl instance ls --json");
        assert_eq!(machines.as_array().unwrap().len(), 1, "all of them on one machine: {machines}");
    }
}

#[test]
fn limits_are_the_runs_own_and_not_the_machines() {
    for first in ["", "--memory 64MB"] {
        let session = Session::new();
        if !limits_are_enforced(&session) {
            return;
        }
        session.quietly(&format!("repl run {first} -c true"));
        for (limit, code) in [("", "0\n"), ("--memory 64MB", "137\n"), ("", "0\n")] {
            let (_, said, _) = typed(&session, &format!("repl run {limit} -c '{TAKES_200_MB}'"));
            assert_eq!(said, code, "first `{first}`, then `{limit}`");
        }
        let machines = session.json("repl instance ls --json");
        assert_eq!(machines.as_array().unwrap().len(), 1, "all of them on one machine: {machines}");
        let (code, _, said) =
            typed(&session, "repl run --memory 64MB -c 'head -c 200000000 /dev/zero | tail -c 199000000 >/dev/null'");
        assert_eq!(code, Some(137));
        assert!(said.contains("failed: the memory limit was reached, exit code 137"), "{said}");
        assert!(said.contains("hint: submit it again with --memory above 64MB"), "{said}");
        assert_eq!(session.json("repl status @last --json")["run"]["last_error"]["code"], "limits_exceeded");
        let status = session.quietly("repl status -v");
        assert_eq!(status.matches("the memory limit was reached").count(), 2, "its end, and its step: {status}");
        let why = session.quietly("repl why");
        assert!(why.contains("submit it again with --memory above 64MB"), "{why}");
    }
}

/// The control plane is started where no control groups are mounted, so that its runners find none to limit a job with.
#[test]
fn a_limit_that_is_not_enforced_is_said_once_and_by_why() {
    let session = Session::new();
    let doctor = session.json("repl doctor --json");
    let limits = doctor.as_array().unwrap().iter().find(|check| check["check"] == "limits").unwrap();
    let mut line = "repl run --memory 64MB --retry 2 -c 'echo $REPL_ATTEMPT; [ $REPL_ATTEMPT = 2 ]'".to_owned();
    if limits["state"] == "fine" {
        let hides = "umount -R -l /sys/fs/cgroup";
        if !session.shell(&format!("unshare -m sh -c '{hides}'")).output().unwrap().status.success() {
            return crate::skip::skip("root", "only root can hide the control groups from a process");
        }
        std::fs::write(session.here().join("line"), format!("{hides} && {line}\n")).unwrap();
        line = "unshare -m sh line".to_owned();
    }
    let (code, said, all) = typed(&session, &line);
    assert_eq!((code, said.as_str()), (Some(0), "1\n2\n"), "{all}");
    let told: Vec<&str> = all.lines().filter(|line| line.contains("--memory is not enforced: ")).collect();
    assert_eq!(told.len(), 1, "two attempts, one line: {all}");
    let why = session.quietly("repl why");
    assert!(why.contains("not limited: --memory is not enforced: ") && why.contains("repl doctor"), "{why}");
    let status = session.quietly("repl status -v");
    assert!(status.contains("--memory is not enforced: "), "{status}");
    let doctor = session.json("repl doctor --json");
    let limits = doctor.as_array().unwrap().iter().find(|check| check["check"] == "limits").unwrap();
    assert_eq!(limits["state"], "limited", "what holds for the control plane, not for this shell: {doctor}");
}

#[test]
fn what_fits_nowhere_is_refused_and_a_plan_writes_nothing() {
    let session = Session::new();
    for line in
        ["repl run --cpu 1000 -c true", "repl run --memory 100TB -c true", "repl run --dry-run --cpu 1000 -c true"]
    {
        let (code, _, said) = typed(&session, line);
        assert_eq!(code, Some(1), "{line}: {said}");
        assert!(
            said.contains("the largest machine of local has ") && said.contains("fix: ask for at most --"),
            "{said}"
        );
    }
    std::fs::write(session.here().join("a.txt"), "four").unwrap();
    let plan = "repl run --dry-run --file a.txt --memory 64MB --cpu 1 --max-duration 2h --retry 2 -c 'cat a.txt'";
    let (code, said, _) = typed(&session, plan);
    assert_eq!(code, Some(0));
    for part in [
        "would run  cat a.txt\n",
        "pool       local/local: 0 of ",
        " machines exist, 0 free, 0 waiting\n",
        "machine    a new one: ",
        "limits     1 core and 64MB of memory\n",
        "price      0.01 credits an hour\n",
        "set aside  0.01 credits at its start, at most 0.04 in all; 1000000 are available\n",
        "1 to send (4 B)\n",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let asked = session.json(&format!("{plan} --json"));
    assert_eq!(
        (&asked["warm"], &asked["machine"], &asked["placement"]),
        (&false.into(), &serde_json::Value::Null, &"start_machine".into())
    );
    assert_eq!((&asked["limits"]["memory_bytes"], &asked["limits"]["cpu_milli"]), (&(64 << 20).into(), &1000.into()));
    assert_eq!((&asked["price_per_hour"], &asked["credits_most"]), (&"0.01".into(), &"0.04".into()));
    assert_eq!(asked["files"], serde_json::json!({ "count": 1, "bytes": 4, "to_send": 1, "bytes_to_send": 4 }));
    assert_eq!(session.quietly("repl ps -a --json").trim(), "[]");
    let balance = session.quietly("repl credits balance");
    session.quietly("repl run --file a.txt -c true");
    let asked = session.json(&format!("{plan} --json"));
    assert_eq!(
        (&asked["warm"], &asked["placement"], &asked["files"]["to_send"]),
        (&true.into(), &"now".into(), &0.into())
    );
    assert_eq!(asked["machine"], session.json("repl instance ls --json")[0]["id"]);
    assert!(balance.contains("1000000"), "nothing was set aside for plans: {balance}");
}

#[test]
fn the_dry_run_of_a_plan_draws_it_and_says_what_it_may_cost() {
    let session = Session::new();
    let config = session.here().join("../.config/remuda");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "[tools.prices]\nhttp = '0.25'\n").unwrap();
    let plan = "type: agents\nname: market\nagents:\n- name: research\n  tasks:\n  - name: sources\n    steps:\n    \
                - {name: page, http: {url: 'https://data.example/'}}\n    \
                - {name: other, http: {url: 'https://data.example/other'}}\n";
    std::fs::write(session.here().join("market.repl.yml"), plan).unwrap();
    let (code, said, all) = typed(&session, "repl run market.repl.yml --dry-run");
    assert_eq!(
        (code, said.as_str()),
        (
            Some(0),
            "market\n\
             └─ research\n   \
                └─ sources\n      \
                   ├─ page (http)\n      \
                   └─ other (http)\n\n\
             estimate  at most 0.5 credits for models and first calls of tools; machines are charged by the hour\n\
             available 1000000 credits\n"
        ),
        "{all}"
    );
    assert_eq!(session.quietly("repl ps -a --json").trim(), "[]", "nothing was submitted");
}

#[test]
fn commands_of_a_file_end_with_the_first_that_fails() {
    let session = Session::new();
    let file = |commands: &str| {
        std::fs::write(session.here().join("t.repl.yml"), format!("type: task\ncommands: {commands}\n")).unwrap();
        let (code, said, _) = typed(&session, "repl run t.repl.yml");
        (code.unwrap(), said)
    };
    assert_eq!(file("[false, echo next]"), (1, String::new()));
    assert_eq!(file("[echo one, exit 7, echo never]"), (7, "one\n".to_owned()));
    assert_eq!(file("['mkdir d; cd d; export A=b', 'pwd | grep -o /d$; echo $A']"), (0, "/d\nb\n".to_owned()));
    assert_eq!(
        file("\n  - |\n    cat <<E\n    it's\n    E\n  - 'echo two # and no more'\n  - echo three"),
        (0, "it's\ntwo\nthree\n".to_owned())
    );
    let (code, said, _) = typed(&session, "repl run -c 'false\necho next'");
    assert_eq!((code, said.as_str()), (Some(0), "next\n"), "-c is one text for sh");
    assert_eq!(session.json("repl ps -a --json")[0]["command"], "false\necho next");
}

#[test]
fn what_is_piped_in_becomes_standard_input_if_asked() {
    let session = Session::new();
    let bytes: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    let output = piped(&session, "repl run -i -c cat", &bytes);
    assert!(output.status.success() && output.stdout == bytes, "{}", text(&output.stderr));
    let output = piped(&session, "repl run --stdin -- tr a-z A-Z", b"hello");
    assert_eq!(text(&output.stdout), "HELLO");
    std::fs::write(session.here().join("t.repl.yml"), "type: task\ncommands: [read a, 'echo \"$a\"', cat]\n").unwrap();
    let output = piped(&session, "repl run -i t.repl.yml", b"one\ntwo\n");
    assert_eq!(text(&output.stdout), "one\ntwo\n", "one shell reads it");
    let output = piped(&session, "repl run -i --retry 2 -c 'cat; [ $REPL_ATTEMPT = 2 ]'", b"again\n");
    assert_eq!((text(&output.stdout), output.status.code()), ("again\nagain\n".to_owned(), Some(0)));
    let output = piped(&session, "repl run -i -c 'cat; echo end'", b"");
    assert_eq!(text(&output.stdout), "end\n");
    let output = session.shell("repl run -i -c cat < t.repl.yml").output().unwrap();
    assert!(text(&output.stdout).starts_with("type: task"), "a file is as good as a pipe");
}

#[test]
fn a_pipe_that_nobody_reads_gets_a_hint() {
    let session = Session::new();
    let hint = "what is piped in is not given to the command: add -i";
    let output = piped(&session, "repl run -c 'cat; echo ran'", b"data\n");
    assert_eq!(text(&output.stdout), "ran\n");
    assert_eq!(text(&output.stderr).matches(hint).count(), 1, "{}", text(&output.stderr));
    // A pipe without data, still open: the command does not wait for it.
    let mut child =
        session.shell("repl run -c 'cat; echo ran'").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(open);
    assert!(output.status.success() && !text(&output.stderr).contains(hint), "{}", text(&output.stderr));
    for line in ["repl run -c true < /dev/null", "echo x | repl run -i -c cat", ": | repl run -c true"] {
        let (code, _, said) = typed(&session, line);
        assert!(code == Some(0) && !said.contains(hint), "{line}: {said}");
    }
    let (_, _, said) = typed(&session, "echo x > f; repl run -c true < f");
    assert!(said.contains(hint), "{said}");
}

#[test]
fn attempts_are_counted_aloud_and_errors_told_once() {
    let session = Session::new();
    let line = "repl run --name tries --retry 3 -c 'echo attempt is $REPL_ATTEMPT; exit 5'";
    let (code, out, said) = typed(&session, line);
    assert_eq!((code, out.as_str()), (Some(5), "attempt is 1\nattempt is 2\nattempt is 3\n"));
    let told: Vec<&str> = said.lines().filter(|line| line.starts_with("repl: attempt")).collect();
    assert_eq!(told, ["repl: attempt 2 of 3", "repl: attempt 3 of 3"], "{said}");
    let status = session.quietly("repl status tries");
    assert_eq!(status.matches("the command exited with code 5").count(), 1, "{status}");
    assert!(!status.contains("agt_") && status.contains("3 of 3"), "{status}");
    let tree = session.quietly("repl status tries -v");
    assert!(["agt_", "tsk_", "stp_", "job_"].iter().all(|kind| tree.contains(kind)), "{tree}");
    assert_eq!(session.quietly("repl logs tries"), out);
}

#[test]
fn a_run_that_waits_is_queued_and_says_for_what() {
    let session = Session::new();
    let config = session.here().parent().unwrap().join(".config/remuda");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "[providers.local]\nmax_instances = 1\n").unwrap();
    for name in ["first", "second", "third"] {
        session.quietly(&format!("repl run --detach --name {name} -c 'sleep 600'"));
    }
    session.wait_for("first", "job.started");
    let listed = session.quietly("repl ps");
    let states: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(states, ["queued", "queued", "running"], "{listed}");
    assert!(session.quietly("repl status third").lines().next().unwrap().ends_with(" third queued"));
    let why = session.quietly("repl why third");
    assert!(why.contains(" queued: it waits behind 1 run on local"), "{why}");
    assert!(session.quietly("repl why second").contains("next in line"));
}
