//! Runs in a sandbox, as their users see them: what they cannot reach, and that everything else is as without one.

use crate::home::Home;
use crate::process::{Running, end_of};
use nix::sys::signal::Signal;

/// Prints `GOT …` for everything of others that it can read or write, and `mine` for its own.
fn thief(home: &Home, other: &str) -> String {
    let (data, user) = (home.data().display(), home.here());
    let (user, here) = (user.parent().unwrap().display(), home.here());
    let here = here.display();
    format!(
        "for it in {data}/token {data}/installation.json {data}/remuda.db {data}/control.sock {data}/blobs {other} \
             {user}/.config {here} /run/user; do
           test -e $it && echo GOT $it
         done
         for it in / /etc /usr /var/tmp {data} $REPL_WORKDIR/.. /proc/sys/kernel/core_pattern; do
           test -w $it && echo GOT writing $it
         done
         test -n \"$SSH_AUTH_SOCK$REPL_TOKEN$REPL_HOME\" && echo GOT variables
         repl ps --all 2>/dev/null | grep run_ && echo GOT the control plane
         repl step once -- echo a durable step
         echo mine >made; cat made"
    )
}

#[test]
fn a_run_in_a_sandbox_reads_and_writes_its_own_and_nothing_else() {
    let mut home = Home::new();
    home.set("SSH_AUTH_SOCK", "/tmp/agent");
    let other = home.run(&["--hold", "10m"], "echo theirs >file; pwd").out();
    let other = format!("{}/file", other.trim());
    assert!(std::path::Path::new(&other).exists() && home.data().join("token").exists());
    let script = thief(&home, &other);
    let ended = home.run(&["--sandbox", "--artifact", "made", "--env", "SSH_AUTH_SOCK=/tmp/agent"], &script);
    assert_eq!((ended.code, &*ended.out()), (0, "a durable step\nmine\n"), "{ended}");
    let run = home.json(&["ps", "--all"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(home.json(&["artifact", "ls", &run])[0]["path"], "made");
    assert!(home.done(&["why", &run]).out().contains("in a sandbox (network host)"));
    // The same without a sandbox gets at all of it: the script looks in the right places.
    let ended = home.run(&["--no-sandbox"], &script);
    for got in ["/token", "/remuda.db", &other, "writing /etc"] {
        let expected = match got {
            "writing /etc" => nix::unistd::geteuid().is_root(),
            "/remuda.db" => home.data().join("remuda.db").exists(), // not where the database is PostgreSQL
            _ => true,
        };
        assert_eq!(
            ended.out().lines().any(|line| line.starts_with("GOT") && line.ends_with(got)),
            expected,
            "{got}: {ended}"
        );
    }
}

#[test]
fn a_cancelled_run_in_a_sandbox_says_goodbye() {
    let home = Home::new();
    let words = ["run", "--sandbox=none", "-c", "trap 'echo bye; exit 4' TERM; echo ready; sleep 1000 & wait"];
    let mut run = Running::start(&mut home.repl(&words));
    assert_eq!(run.line(), "ready");
    let id = home.json(&["ps"])[0]["id"].as_str().unwrap().to_owned();
    home.done(&["cancel", &id]);
    let ended = run.end();
    assert!(ended.out().ends_with("bye\n"), "{ended}");
}

#[test]
fn a_paused_run_in_a_sandbox_goes_on_and_outlives_its_runner() {
    let home = Home::new();
    let run = home.detach(&["--sandbox"], "mkfifo gate; pwd; read word <gate; echo $word; exit 6");
    let mut follow = Running::start(&mut home.repl(&["logs", "-f", &run]));
    let workdir = follow.line();
    home.done(&["pause", &run]);
    home.done(&["resume", &run]);
    let runner: i32 = {
        let lock = std::path::Path::new(workdir.trim()).parent().unwrap().join("runner.lock");
        std::fs::read_to_string(lock).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    crate::process::signal(runner, Signal::SIGKILL);
    std::fs::write(format!("{}/gate", workdir.trim()), "after\n").unwrap();
    let ended = home.attach(&run);
    assert_eq!(ended.code, 6, "{ended}");
    assert!(ended.out().ends_with("after\n"), "{ended}");
    drop(follow);
}

#[test]
fn how_a_sandbox_is_asked_for() {
    let home = Home::with("[providers.local]\nsandbox = { network = \"none\" }\n");
    let plan = |flags: &[&str]| home.json(&[&["run", "--dry-run"], flags, &["-c", "true"]].concat())["sandbox"].clone();
    assert_eq!(
        (plan(&[]), plan(&["--sandbox"]), plan(&["--sandbox=none"])),
        ("none".into(), "host".into(), "none".into())
    );
    assert_eq!(plan(&["--no-sandbox"]), serde_json::Value::Null);
    let interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '";
    assert_eq!(home.run(&[], interfaces).out(), "lo\n");
    home.write("box.repl.yml", "type: task\nsandbox: true\ncommands: [\"test -w / || echo read-only\"]\n");
    assert_eq!(home.say(&["run", "box.repl.yml"]).out(), "read-only\n");
    for (file, words) in [
        ("sandbox: maybe", "must be true, false or a map"),
        ("sandbox: {network: lan}", "`lan` is none of host, none"),
        ("sandbox: {net: none}", "unknown field `sandbox.net`"),
    ] {
        home.write("bad.repl.yml", format!("type: task\ncommands: [\"true\"]\n{file}\n"));
        home.say(&["run", "bad.repl.yml"]).refused(2, &[words]);
    }
    let said = end_of(&mut home.repl(&["doctor"])).out();
    assert!(said.contains("bubblewrap") && said.contains("with and without a network"), "{said}");
    // A machine that is just being made does not say it yet.
    let machines = home.json(&["instance", "ls"]);
    let ids = machines.as_array().unwrap().iter().filter_map(|machine| machine["id"].as_str());
    let shown: Vec<String> = ids.map(|id| home.done(&["instance", "show", id]).out()).collect();
    assert!(shown.iter().any(|machine| machine.contains("bubblewrap")), "{shown:?}");
}
