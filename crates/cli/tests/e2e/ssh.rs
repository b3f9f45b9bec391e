//! Runs on hosts that are reached by ssh, whatever happens to the hosts, the lines to them and the control plane meanwhile.

use crate::gate::Gate;
use crate::home::Home;
use crate::hosts::Hosts;
use crate::process::{self, Ended};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;

/// Each look is a command of its own, and a host is asked again within a few seconds.
const MANY_LOOKS: usize = 1000;

/// A home with these hosts, in the order of what must end first.
struct Lab {
    home: Home,
    hosts: Hosts,
}

impl Lab {
    fn new(homes: &[&str], more: &str) -> Option<Lab> {
        let hosts = Hosts::start(homes)?;
        let home = Home::with(&hosts.settings(more));
        Some(Lab { home, hosts })
    }

    /// The machine of a run, and the name of the host that it is on.
    fn machine(&self, run: &str) -> (Value, String) {
        let id = self.home.status(run)["instance"].as_str().unwrap().to_owned();
        let machine = self.home.json(&["instance", "show", &id]);
        let host = machine["host"].as_str().unwrap().to_owned();
        (machine, host)
    }

    /// The same hosts, of a provider that is added by a command.
    fn added(homes: &[&str]) -> Option<Lab> {
        let hosts = Hosts::start(homes)?;
        Some(Lab { home: Home::new(), hosts })
    }

    fn add(&self) {
        let added = self.adding(&["--accept-host-key"]);
        assert_eq!(added.code, 0, "{added}");
    }

    fn adding(&self, more: &[&str]) -> Ended {
        let (targets, identity) = self.hosts.targets();
        let words: Vec<&str> = ["provider", "add", "ssh", "lab"]
            .into_iter()
            .chain(targets.iter().map(String::as_str))
            .chain(["--identity", &identity])
            .chain(more.iter().copied())
            .collect();
        self.home.say(&words)
    }

    /// With `--force` its machines end, and then nothing of ours is on the hosts: one that cannot be reached is named.
    fn leaves_nothing(&mut self) {
        self.hosts.get(1).cut_off();
        let removed = self.home.say(&["provider", "remove", "lab", "--force"]);
        assert_eq!(removed.code, 0, "{removed}");
        self.hosts.get(1).connect();
        let listed = || self.home.json(&["provider", "ls"]).as_array().unwrap().iter().any(|it| it["name"] == "lab");
        assert!((0..MANY_LOOKS).any(|_| !listed()), "it goes when its machines are gone and its hosts are cleared");
        // The program on the host that clears it may still be at its last steps.
        for number in 0..self.hosts.count() {
            let clear = (0..MANY_LOOKS).any(|_| !listed() && self.hosts.get(number).left().is_empty());
            assert!(clear, "host{number} still has {:?}", self.hosts.get(number).left());
        }
    }
}

#[test]
fn a_run_goes_to_a_host_without_any_way_back_and_its_files_come_and_go() {
    let Some(mut lab) = Lab::new(&["a"], "") else { return };
    let home = &lab.home;
    home.write("input", "from here\n");
    let flags = ["--provider", "lab", "--file", "input", "--artifact", "output"];
    let first = home.run(&flags, "cat input; hostname; echo to you > output; echo $HOME");
    assert_eq!((first.code, &*first.out()), (0, "from here\nhost0\n/root\n"), "{first}");
    home.done(&["artifact", "get", "@last"]);
    assert_eq!(std::fs::read_to_string(home.here().join("output")).unwrap(), "to you\n");
    let second = home.run(&["--provider", "lab"], "exit 7");
    assert_eq!(second.code, 7, "{second}");
    assert_eq!(home.status("@last")["warm"], true);
    let (machine, _) = lab.machine("@last");
    assert_eq!(machine["provider"], "lab");
    let held = lab.hosts.get(0).machines();
    assert_eq!(held.len(), 1, "{held:?}");
    lab.home.adds_up();
}

#[test]
fn a_host_that_cannot_be_used_is_an_error_within_seconds_that_says_why() {
    let Some(mut lab) = Lab::new(&["a"], "") else { return };
    if lab.home.is_many() {
        return; // servers do not read their settings again
    }
    let settings = lab.hosts.settings("");
    lab.home.configure(&settings.replace("accept_host_key = true", ""));
    let refused = lab.home.run(&["--provider", "lab", "--retry", "1"], "true");
    refused.refused(1, &["host key", "--accept-host-key"]);
    assert!(lab.home.instances().is_empty(), "nothing that might exist is left");
    lab.home.stop();
    lab.home.configure(&settings);
    lab.hosts.get(0).cut_off();
    let refused = lab.home.run(&["--provider", "lab", "--retry", "1"], "true");
    refused.refused(1, &["cannot be reached"]);
    assert!(lab.home.instances().is_empty(), "nothing that might exist is left");
    assert_eq!(spawn_tries(&lab.home), 3, "each of which gives up after ssh's 5 s");
    lab.hosts.get(0).connect();
    lab.home.stop();
    let (identity, wrong) = (lab.hosts.targets().1, lab.hosts.another_key());
    lab.home.configure(&settings.replace(&identity, &wrong));
    let refused = lab.home.run(&["--provider", "lab", "--retry", "1"], "true");
    refused.refused(1, &["does not let us in"]);
    assert!(lab.home.instances().is_empty(), "nothing that might exist is left");
    assert_eq!(spawn_tries(&lab.home), 1, "another try would not help");
    lab.home.stop();
    lab.home.configure(&settings);
    assert_eq!(lab.home.run(&["--provider", "lab"], "true").code, 0);
}

/// By a run, and by the command that adds a provider. What another try would not mend is said at the first one; a full disk may have room again
/// a few seconds later.
#[test]
fn what_is_wrong_with_a_host_is_said_at_once_by_a_run_and_when_it_is_added() {
    let Some(mut lab) = Lab::new(&["a"], "") else { return };
    if lab.home.is_many() {
        return; // servers do not read their settings again
    }
    let settings = lab.hosts.settings("");
    assert_eq!(lab.home.run(&["--provider", "lab"], "true").code, 0);
    lab.home.stop();
    let check = |lab: &Lab, more: &[&str], words: &[&str], tries: i64| {
        let (targets, identity) = lab.hosts.targets();
        lab.home.run(&["--provider", "lab", "--retry", "1"], "true").refused(1, words);
        assert!(lab.home.instances().is_empty(), "nothing that might exist is left");
        let add = ["provider", "add", "ssh", "other", &targets[0], "--identity", &identity, "--accept-host-key"];
        lab.home.say(&[&add[..], more].concat()).refused(1, words);
        assert_eq!(spawn_tries(&lab.home), tries, "{words:?}");
        lab.home.stop();
    };
    lab.hosts.change_host_key();
    lab.hosts.get(0).reboot();
    check(&lab, &[], &["is not the one that was accepted", "ssh-keygen -R"], 1);
    lab.hosts.change_host_key();
    let small = lab.hosts.small_folder();
    lab.hosts.get(0).reboot();
    let dir = small.0.display().to_string();
    lab.home.configure(&lab.hosts.settings(&format!("dir = \"{dir}\"")));
    check(&lab, &["--set", &format!("dir={dir}")], &["no space is left", "set `dir`"], 3);
    lab.home.configure(&settings);
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(18, 0);
    let another: u16 = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    elf.extend(another.to_le_bytes());
    elf.resize(64, 0);
    let old = b"#!/bin/sh\necho \"repl: version \\`GLIBC_2.99' not found\" >&2\nexit 1\n".to_vec();
    for (name, bytes, words) in [
        ("foreign", elf, ["and the runner's binary is for", "scripts/build-runner"]),
        ("old", old, ["libc is too old", "scripts/build-runner"]),
    ] {
        let binary = lab.home.here().join(name);
        std::fs::write(&binary, bytes).unwrap();
        lab.home.set("REPL_RUNNER_BINARY", binary.to_str().unwrap());
        check(&lab, &[], &words, 1);
        lab.home.unset("REPL_RUNNER_BINARY");
    }
    assert_eq!(lab.home.run(&["--provider", "lab"], "true").code, 0);
}

/// How often the last run's machine was tried to be made.
fn spawn_tries(home: &Home) -> i64 {
    let all = home.json(&["workflow", "ls"]);
    let launch = all.as_array().unwrap().iter().find(|it| it["intent"] == "launch-run").unwrap();
    let shown = home.json(&["workflow", "show", launch["id"].as_str().unwrap()]);
    let spawn = shown["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "spawn-instance").unwrap();
    spawn["tries"].as_i64().unwrap()
}

#[test]
fn a_run_gets_the_host_and_the_gpus_that_it_asks_for() {
    let Some(mut lab) = Lab::added(&["a", "b"]) else { return };
    lab.hosts.get(1).program("nvidia-smi", "echo NVIDIA A100; echo NVIDIA A100");
    let (targets, _) = lab.hosts.targets();
    let added = lab.adding(&["--accept-host-key", "--slots", "2"]);
    assert!(added.code == 0 && added.out().contains("2 × NVIDIA A100"), "{added}");
    let home = &lab.home;
    let shown = home.json(&["provider", "show", "lab"]);
    let hosts = shown["hosts"].as_array().unwrap();
    assert_eq!((&hosts[0]["status"], &hosts[1]["gpus"][1]), (&"up".into(), &"NVIDIA A100".into()), "{shown}");
    assert_eq!(hosts[0]["architecture"], std::env::consts::ARCH, "{shown}");
    assert!(hosts[0]["memory_bytes"].as_i64() > Some(0) && hosts[0]["os_release"].is_string(), "{shown}");
    assert!(home.done(&["provider", "ls"]).out().contains("2 hosts up"));
    // What no host has is refused when it is submitted, and a dry run says why each other host is not taken.
    home.run(&["--provider", "lab", "--gpu", "h100"], "true").refused(
        1,
        &["asked for 1 × h100", "it has other GPUs", "it has no GPUs", "ask for what one of its hosts has"],
    );
    home.run(&["--provider", "lab", "--cpu", "4096"], "true")
        .refused(1, &["asked for 4096 cores", "a machine there has", "fix: ask for at most --cpu "]);
    let plan = home.json(&["run", "--dry-run", "--provider", "lab", "--gpu", "a100", "-c", "true"]);
    assert_eq!(
        (&plan["host"], &plan["other_hosts"][0]["host"]),
        (&targets[1].clone().into(), &targets[0].clone().into())
    );
    assert_eq!(plan["other_hosts"][0]["why"], "it has no GPUs", "{plan}");
    let gates: Vec<(Gate, Gate)> =
        (0..2).map(|n| (Gate::new(home, &format!("gpu{n}")), Gate::new(home, &format!("go{n}")))).collect();
    let flags = ["--provider", "lab", "--gpu", "a100", "--hold", "0s"];
    let says = "$(hostname):$CUDA_VISIBLE_DEVICES:$CUDA_DEVICE_ORDER";
    let runs: Vec<String> =
        gates.iter().map(|(said, go)| home.detach(&flags, &format!("{}; {}", said.say(says), go.wait()))).collect();
    let heard: Vec<String> = gates.iter().map(|(said, _)| said.hear()).collect();
    let mut both = heard.clone();
    both.sort();
    assert_eq!(both, ["host1:0:PCI_BUS_ID", "host1:1:PCI_BUS_ID"], "each has one of its own");
    let plain = home.run(&["--provider", "lab"], "hostname; echo ${CUDA_VISIBLE_DEVICES-unset}");
    assert_eq!(plain.out(), "host0\nunset\n", "there is no GPU to be told of: {plain}");
    let third = home.detach(&flags, "echo got $CUDA_VISIBLE_DEVICES");
    let why = home.done(&["why", &third]).out();
    assert!(why.contains(&format!("{}: all its 2 slots are taken", targets[1])), "{why}");
    gates[0].1.open();
    let ended = home.attach(&third);
    let freed = heard[0].split(':').nth(1).unwrap();
    assert_eq!((ended.code, ended.out()), (0, format!("got {freed}\n")), "{ended}");
    gates[1].1.open();
    for run in runs {
        assert_eq!(home.attach(&run).code, 0);
    }
    lab.home.adds_up();
}

/// A host without a bubblewrap that works gets no run that wants a sandbox: neither its first try nor a later one goes there.
#[test]
fn a_run_in_a_sandbox_goes_to_a_host_that_can_make_one() {
    if let Err(why) = runner::sandbox() {
        return crate::skip::skip("sandbox", &why); // the second host cannot make one, either
    }
    let Some(mut lab) = Lab::added(&["a", "b"]) else { return };
    lab.hosts.get(0).program("bwrap", "echo bwrap: no permissions to create a namespace >&2; exit 1");
    lab.add();
    let (targets, _) = lab.hosts.targets();
    let flags = ["--provider", "lab", "--sandbox", "--hold", "0s"];
    let plan = lab.home.json(&[&["run", "--dry-run"][..], &flags, &["-c", "true"]].concat());
    assert_eq!(
        (&plan["host"], &plan["other_hosts"][0]["host"]),
        (&targets[1].clone().into(), &targets[0].clone().into())
    );
    assert_eq!(
        plan["other_hosts"][0]["why"], "it cannot make sandboxes: bwrap: no permissions to create a namespace",
        "{plan}"
    );
    let shown = lab.home.json(&["provider", "show", "lab"]);
    let why = "bwrap: no permissions to create a namespace";
    assert_eq!((&shown["hosts"][0]["no_sandbox"], &shown["hosts"][1]["no_sandbox"]), (&why.into(), &Value::Null));
    let shown = lab.home.done(&["provider", "show", "lab"]).out();
    assert!(shown.contains("SANDBOX") && shown.contains(&format!("{}: no sandbox: {why}", targets[0])), "{shown}");
    let ended = lab.home.run(&flags, "hostname");
    assert_eq!((ended.code, &*ended.out()), (0, "host1\n"), "{ended}");
    lab.home.done(&["provider", "remove", "lab", "--force"]);
    lab.hosts.get(1).program("bwrap", "echo bwrap: no permissions to create a namespace >&2; exit 1");
    lab.add();
    lab.home.run(&flags, "true").refused(1, &["sandbox", "no permissions to create a namespace"]);
    let ended = lab.home.run(&["--provider", "lab"], "hostname");
    assert_eq!(ended.code, 0, "without one it is as good as any: {ended}");
    lab.home.adds_up();
}

#[test]
fn hosts_that_cannot_be_used_are_named_when_they_are_added_and_nothing_is_left_there() {
    let Some(mut lab) = Lab::added(&["a", "b"]) else { return };
    lab.adding(&[]).refused(1, &["hosts", "--accept-host-key"]);
    let long = format!("dir=/tmp/{}", "x".repeat(120));
    lab.adding(&["--accept-host-key", "--set", &long]).refused(1, &["too long for a socket"]);
    // Logind ends what a user leaves behind there, and its admin does not let the user linger.
    lab.hosts.get(1).program("busctl", "case $* in *KillUserProcesses) echo b true;; *) echo as 0;; esac");
    lab.hosts.get(1).program("loginctl", "exit 1");
    lab.adding(&["--accept-host-key"]).refused(1, &["enable-linger"]);
    for number in 0..2 {
        let left = lab.hosts.get(number).left();
        assert!(left.is_empty(), "host{number} still has {left:?}");
    }
    lab.hosts.get(1).program("loginctl", "exit 0");
    lab.hosts
        .get(1)
        .program("systemd-run", "while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\" # as a scope does");
    lab.hosts.get(0).cut_off();
    let added = lab.adding(&["--accept-host-key"]);
    let (targets, _) = lab.hosts.targets();
    assert!(added.code == 0 && added.out().contains("cannot be reached"), "{added}");
    let shown = lab.home.json(&["provider", "show", "lab"]);
    assert_eq!((&shown["hosts"][0]["status"], &shown["hosts"][1]["status"]), (&"down".into(), &"up".into()), "{shown}");
    let plan = lab.home.json(&["run", "--dry-run", "--provider", "lab", "-c", "true"]);
    assert_eq!(plan["host"], targets[1].as_str(), "{plan}");
    let ended = lab.home.run(&["--provider", "lab", "--hold", "0s"], "hostname");
    assert_eq!((ended.code, &*ended.out()), (0, "host1\n"), "{ended}");
    lab.hosts.get(0).connect();
    lab.leaves_nothing();
}

#[test]
fn a_host_that_cannot_be_cleared_is_named_and_cleared_later_or_given_up() {
    let Some(mut lab) = Lab::added(&["a"]) else { return };
    lab.add();
    assert_eq!(lab.home.run(&["--provider", "lab", "--hold", "0s"], "true").code, 0);
    let machine = lab.home.instances()[0]["id"].as_str().unwrap().to_owned();
    lab.home.done(&["instance", "terminate", &machine]);
    let gone = |lab: &mut Lab| lab.hosts.get(0).machines().is_empty();
    assert!((0..MANY_LOOKS).any(|_| lab.home.instances().is_empty() && gone(&mut lab)), "its machine ends");
    lab.hosts.get(0).cut_off();
    let host = lab.hosts.targets().0[0].clone();
    let told = lab.home.say(&["provider", "remove", "lab"]);
    let said = [&*host, "still has ~/.repl/", "cannot be reached", "--abandon"];
    assert!(told.code == 0 && said.iter().all(|text| told.stderr.contains(text)), "{told}");
    assert!(!lab.hosts.get(0).left().is_empty());
    let listed = lab.home.say(&["provider", "ls"]);
    assert!(listed.out().contains("is not cleared"), "{listed}");
    lab.hosts.get(0).connect();
    let told = lab.home.say(&["provider", "remove", "lab"]);
    assert_eq!((told.code, &*told.out()), (0, "lab is removed\n"), "{told}");
    let left = lab.hosts.get(0).left();
    assert!(left.is_empty(), "{left:?}");
    lab.add();
    lab.hosts.get(0).cut_off();
    let told = lab.home.say(&["provider", "remove", "lab", "--abandon"]);
    assert!(told.code == 0 && told.out().starts_with("lab is removed; what stays on 1 host"), "{told}");
    assert!(told.stderr.contains(&host), "{told}");
}

#[test]
fn three_hosts_a_slow_one_a_cut_line_a_reboot_and_a_killed_control_plane() {
    let Some(mut lab) = Lab::added(&["own", "shared", "shared"]) else { return };
    if lab.home.is_many() {
        return; // the address below is one server's
    }
    // The first host can dial this address, the others cannot: they have no route to it.
    let near = lab.hosts.get(0).near.clone();
    let address = format!("{near}:{}", free_port(&near));
    lab.home.set("REPL_LISTEN", &address);
    lab.home.set("REPL_PUBLIC_URL", &format!("http://{address}"));
    lab.add();
    lab.home.write("input", "x");
    let home = &lab.home;
    let gates: Vec<(Gate, Gate)> =
        (0..3).map(|n| (Gate::new(home, &format!("came{n}")), Gate::new(home, &format!("gate{n}")))).collect();
    let flags = ["--provider", "lab", "--file", "input", "--artifact", "output", "--retry", "1"];
    let (much, said) = ("[ $(hostname) != host0 ] || seq 1 50000", (1..=50_000).map(|n| format!("{n}\n")));
    let command = |(came, gate): &(Gate, Gate)| {
        format!("cat input; {}; {}; {much}; hostname > output; echo done", came.say("$(hostname)"), gate.wait())
    };
    let runs: Vec<String> = gates.iter().map(|gates| home.detach(&flags, &command(gates))).collect();
    let on: Vec<String> = gates.iter().map(|(came, _)| came.hear()).collect();
    let mut names = on.clone();
    names.sort();
    assert_eq!(names, ["host0", "host1", "host2"], "each has a host of its own");
    let of = |host: &str| on.iter().position(|name| name == host).unwrap();
    let (direct, cut, rebooted) = (of("host0"), of("host1"), of("host2"));
    assert_eq!(lab.hosts.get(1).machines().len(), 2, "they share a home");
    // All at once: the control plane dies, one host is cut off, another one starts again.
    process::kill(home.control_plane());
    lab.hosts.get(1).cut_off();
    lab.hosts.get(2).reboot();
    // What can go on does: this run ends while the control plane is away. Its output comes slowly, and whole.
    lab.hosts.get(0).slow();
    gates[direct].1.open();
    let ended = home.attach(&runs[direct]);
    assert_eq!(ended.code, 0, "{ended}");
    assert!(ended.out() == format!("x{}done\n", said.collect::<String>()), "{} bytes", ended.out().len());
    // The command on the host that is cut off goes on to its end there, and is told when the line is back.
    gates[cut].1.open();
    lab.hosts.get(1).connect();
    let ended = lab.home.attach(&runs[cut]);
    assert_eq!((ended.code, &*ended.out()), (0, "xdone\n"), "{ended}");
    for run in [direct, cut] {
        let folder = format!("got{run}");
        lab.home.done(&["artifact", "get", &runs[run], "--output", &folder]);
        let got = std::fs::read_to_string(lab.home.here().join(folder).join("output")).unwrap();
        assert_eq!(got, format!("{}\n", on[run]));
    }
    // The job of the earlier boot is over, and the host takes the next.
    let ended = lab.home.attach(&runs[rebooted]);
    assert_ne!(ended.code, 0, "{ended}");
    let status = lab.home.status(&runs[rebooted]);
    assert_eq!(
        (&status["status"], &status["last_error"]["code"]),
        (&"failed".into(), &"interrupted".into()),
        "{status}"
    );
    assert!(ended.stderr.contains("the host was restarted"), "{ended}");
    let after = lab.home.run(&["--provider", "lab"], "hostname");
    assert_eq!(after.code, 0, "{after}");
    lab.home.adds_up();
    lab.leaves_nothing();
    lab.home.stop();
}

#[test]
fn a_machine_gets_the_runners_binary_by_its_hash_and_nobody_else_does() {
    let home = Home::new();
    if home.is_many() {
        return; // the same routes, at another address
    }
    assert_eq!(home.run(&[], "true").code, 0);
    let machine = std::fs::read_dir(home.data().join("instances")).unwrap().flatten();
    let boot = machine.map(|entry| entry.path().join("runner.json")).find(|path| path.exists()).unwrap();
    let boot: Value = serde_json::from_slice(&std::fs::read(boot).unwrap()).unwrap();
    let text = |key: &str| boot[key].as_str().unwrap().to_owned();
    let ask = |hash: &str, token: &str| {
        let mut socket = UnixStream::connect(text("control_url").strip_prefix("unix:").unwrap()).unwrap();
        let path = format!("/runner/v1/binary/{}-unknown-linux-gnu/{hash}", std::env::consts::ARCH);
        let token = format!("{}.{token}", text("name"));
        write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        (String::from_utf8_lossy(&answer[..12]).into_owned(), answer.split_off(end + 4))
    };
    let token = text("token");
    let (status, problem) = ask("another", &token);
    assert_eq!(status, "HTTP/1.1 404");
    let problem: Value = serde_json::from_slice(&problem).unwrap();
    let fix = problem["fix"].as_str().unwrap();
    assert!(fix.contains("build-runner"), "{fix}");
    let hash = fix.strip_prefix("there is ").unwrap().split(' ').next().unwrap();
    let (status, bytes) = ask(hash, &token);
    assert_eq!(status, "HTTP/1.1 200");
    assert!(bytes.starts_with(b"\x7fELF"));
    assert_eq!(ask(hash, "forged").0, "HTTP/1.1 401");
}

fn free_port(address: &str) -> u16 {
    TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port()
}
