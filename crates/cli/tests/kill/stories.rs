//! Scenarios ("stories") during which a process is killed; together they pass every crash point. Each names its points;
//! a story that does not reach one of its points fails.

mod agents;
mod machines;
mod pages;

use crate::gate::Gate;
use crate::process;
use crate::puppet::Puppet;
use crate::world::{World, count};
use agents::{a_person_is_told, a_program_elsewhere, a_program_takes_a_step, agents_at_work, commands_of_an_agent};
use machines::{
    a_busy_machine_is_ended, a_machine_is_drained, a_machine_is_ended, a_machine_is_prepared, a_provider_is_removed,
};
use nix::sys::signal::Signal;
use pages::a_person_signs_in_and_out;
use std::io::Write as _;
use std::process::Stdio;
use wire::model::fault::Role;

pub struct Story {
    pub name: &'static str,
    /// Of the user's `config.toml`.
    pub settings: &'static str,
    /// Other deaths on the way, as `REPL_CRASH` says them.
    pub also: &'static str,
    /// Whether it is told on PostgreSQL too, with a server and a worker of their own.
    pub shared: bool,
    pub tell: fn(&World),
    /// `name` or `role/name`.
    pub points: &'static [&'static str],
}

pub const STORIES: &[Story] = &[
    Story {
        name: "a_first_run",
        settings: "",
        also: "",
        shared: true,
        tell: a_first_run,
        points: &[
            "api.post",
            "control.announce",
            "control.start",
            "database.sync",
            "exit.begun",
            "keeper/exit.write",
            "heartbeat.post",
            "hints.tell",
            "ids.mark",
            "ids.take",
            "installation.write",
            "instance.look_for_all",
            "job.exec",
            "journal.begins",
            "journal.forget",
            "journal.replace",
            "keeper.fork",
            "local.boot",
            "local.start",
            "local.trace",
            "log.append",
            "log.gathered",
            "log.seal",
            "worker/blob.keep",
            "org.ensure",
            "provider.copy",
            "provider.spawn",
            "register.post",
            "report.post",
            "run.submit",
            "runner.register",
            "runner.report",
            "slot.assign",
            "spool.append",
            "store.migrate",
            "sweep.arm",
            "token.create",
            "token.file",
            "work.claim",
            "work.finish",
            "worker.beat",
            "worker.start",
            "workflow.mark",
            "workflow.record",
        ],
    },
    Story {
        name: "output_goes_on",
        settings: "",
        also: "",
        shared: true,
        tell: output_goes_on,
        points: &["log.append", "runner.report"],
    },
    crate::cached::STORY,
    crate::called::STORY,
    crate::cached::HEADS,
    Story {
        name: "a_queue",
        settings: "[providers.local]\nmax_instances = 1\n",
        also: "",
        shared: true,
        tell: a_queue,
        points: &["pool.place"],
    },
    Story {
        name: "files_and_artifacts",
        // An artifact that expires within the hour is leased by each download.
        settings: "[timings]\nartifacts_kept_ms = 1800000\n",
        also: "",
        shared: true,
        tell: files_and_artifacts,
        points: &[
            "artifact.announce",
            "artifact.keep",
            "artifact.lease",
            "artifact.place",
            "artifact.put",
            "blob.announce",
            "blob.keep",
            "blob.kept",
            "blob.pack",
            "blob.put",
            "cache.keep",
            "files.place",
            "tree.link",
        ],
    },
    Story {
        name: "cancelled_and_deleted",
        settings: "",
        also: "",
        shared: true,
        tell: cancelled_and_deleted,
        points: &["idempotency.refuse", "run.act", "run.delete"],
    },
    Story {
        name: "a_person_signs_in_and_out",
        settings: "listen = \"127.0.0.1:0\"\n",
        also: "",
        shared: false,
        tell: a_person_signs_in_and_out,
        points: &["session.end", "session.open"],
    },
    Story {
        name: "money_secrets_and_holds",
        settings: "",
        also: "",
        shared: true,
        tell: money_secrets_and_holds,
        points: &[
            "allocation.extend",
            "allocation.reconcile",
            "allocation.release",
            "credits.add",
            "secret.delete",
            "secret.put",
            "token.revoke",
            "workdir.remove",
        ],
    },
    Story {
        name: "a_machine_is_ended",
        settings: "",
        also: "",
        shared: true,
        tell: a_machine_is_ended,
        points: &[
            "instance.forgotten",
            "instance.terminate",
            "local.clean_up",
            "local.forget",
            "local.terminated",
            "provider.forget",
            "provider.inspect",
            "provider.terminate",
            "workflow.mark",
            "workflow.record",
        ],
    },
    Story {
        name: "a_provider_is_removed",
        settings: "",
        also: "",
        shared: true,
        tell: a_provider_is_removed,
        points: &["provider.add", "provider.clear", "provider.gone", "provider.in_use", "provider.leave"],
    },
    Story {
        name: "a_machine_is_prepared",
        settings: "[features.one]\ninstall = 'echo in >> \"$HOME/said\"'\nremove = 'echo out >> \"$HOME/said\"'\n",
        also: "",
        shared: true,
        tell: a_machine_is_prepared,
        points: &["feature.said", "feature.script"],
    },
    Story {
        name: "a_machine_is_drained",
        settings: "",
        also: "",
        shared: true,
        tell: a_machine_is_drained,
        points: &["instance.drain"],
    },
    Story {
        name: "a_busy_machine_is_ended",
        settings: "",
        also: "",
        shared: true,
        tell: a_busy_machine_is_ended,
        points: &["instance.terminate"],
    },
    Story {
        name: "the_shop_is_closed",
        settings: "",
        also: "",
        shared: false,
        tell: the_shop_is_closed,
        points: &["answer.keep", "instance.retire_idle", "instance.seen", "worker.stop"],
    },
    Story {
        name: "a_runner_dies",
        settings: "",
        also: "",
        shared: true,
        tell: a_runner_dies,
        points: &["instance.reconcile", "instance.stream_closed", "journal.frozen"],
    },
    Story {
        name: "a_keeper_dies",
        settings: "",
        also: "",
        shared: false,
        tell: a_keeper_dies,
        points: &["contain.end", "runner/exit.write", "run.reconcile"],
    },
    Story {
        name: "a_machine_falls_silent",
        settings: "[timings]\nheartbeat_every_ms = 100\nunreachable_after_ms = 400\n",
        also: "",
        shared: false,
        tell: a_machine_falls_silent,
        points: &["job.reconcile", "runner.heard_again"],
    },
    Story {
        name: "much_output",
        settings: "",
        also: "",
        shared: false,
        tell: much_output,
        points: &["spool.drop", "spool.roll"],
    },
    Story {
        name: "time_passes",
        settings: "[timings]\nsweep_every_ms = 100\nartifacts_kept_ms = 1\n",
        also: "",
        shared: false,
        tell: time_passes,
        points: &["blob.delete", "sweep.artifact", "sweep.keys"],
    },
    Story {
        name: "old_logs_go",
        settings: "[timings]\nsweep_every_ms = 100\n[logs]\nhot_ms = 500\nkeep_ms = 1500\n",
        also: "",
        shared: false,
        tell: old_logs_go,
        points: &["log.delete", "log.keep_from", "log.mark_deleted", "log.sweep"],
    },
    Story {
        name: "files_go",
        settings: "[timings]\nsweep_every_ms = 100\ncontents_kept_ms = 3000\n",
        also: "",
        shared: false,
        tell: files_go,
        points: &["sweep.links"],
    },
    Story {
        name: "a_folder_outlives_its_machine",
        settings: "",
        also: "",
        shared: false,
        tell: a_folder_outlives_its_machine,
        points: &["provider.remove_workdir"],
    },
    Story {
        name: "an_item_kills_its_workers",
        settings: "[timings]\nlease_ms = 1200\n", // what is left behind is looked for six times as often
        also: "worker/job.reconcile:before",
        shared: false,
        tell: an_item_kills_its_workers,
        points: &["work.give_up"],
    },
    Story {
        name: "agents_at_work",
        settings: "",
        also: "",
        shared: false,
        tell: agents_at_work,
        points: &["agent.advance", "output.announce", "question.answer", "question.untold"],
    },
    Story {
        name: "the_database_is_lost",
        settings: "[notify]\nexec = ['sh', '-c', 'cat > /dev/null']\n",
        also: "",
        shared: false,
        tell: the_database_is_lost,
        points: &[
            "ids.pass",
            "log.begin_at",
            "orphan.arm",
            "orphan.end",
            "orphan.ended",
            "orphan.import",
            "orphan.keep",
            "orphan.scan",
            "orphan.told",
            "runner.unlisted",
        ],
    },
    Story {
        name: "a_person_is_told",
        settings: "[notify]\nexec = ['sh', '-c', 'cat > /dev/null; echo told >> told']\n",
        also: "",
        shared: false,
        tell: a_person_is_told,
        points: &["notify.start", "question.told"],
    },
    Story {
        name: "a_program_elsewhere",
        settings: "",
        also: "",
        shared: false,
        tell: a_program_elsewhere,
        points: &["run.finish", "step.beat", "step.begin", "step.end", "step.leases", "step.recorded"],
    },
    Story {
        name: "commands_of_an_agent",
        settings: "",
        also: "",
        shared: false,
        tell: commands_of_an_agent,
        points: &["kept.put"],
    },
    Story {
        name: "a_program_takes_a_step",
        settings: "",
        also: "",
        shared: true,
        tell: a_program_takes_a_step,
        points: &["step.announce", "step.take"],
    },
    Story {
        name: "the_end_before_the_log",
        settings: "",
        also: "",
        shared: false,
        tell: the_end_before_the_log,
        points: &["runner.tail"],
    },
];

fn a_first_run(world: &World) {
    // Where a keeper dies the run is told to try again, and it would after this code too.
    let code = if world.spot.role == Role::Keeper { 0 } else { 6 };
    let run = world.submit(&[], &format!("seq 1 300; exit {code}"), code, &count(300));
    world.ends(&run);
    // A machine that has one run behind it takes the next.
    let run = world.submit(&[], "seq 1 20", 0, &count(20));
    world.ends(&run);
}

/// What was sent and not acknowledged is sent again together with what came meanwhile.
fn output_goes_on(world: &World) {
    let gate = Gate::new(&world.home, "gate");
    let run = world.submit(&[], &format!("seq 1 150; {}; seq 151 300", gate.wait()), 0, &count(300));
    world.has_died();
    world.meets(|| gate.open());
    world.ends(&run);
}

fn a_queue(world: &World) {
    let gate = Gate::new(&world.home, "gate");
    let first = world.submit(&[], &gate.wait(), 0, "");
    let waiting = [1, 2].map(|n| world.submit(&[], &format!("echo {n}"), 0, &format!("{n}\n")));
    world.meets(|| gate.open());
    world.ends(&first);
    waiting.iter().for_each(|run| world.ends(run));
}

fn files_and_artifacts(world: &World) {
    world.home.write("data", "x".repeat(300_000));
    world.home.write("one", "1");
    world.home.write("two", "2");
    let flags = ["--file", "data", "--file", "one", "--file", "two", "--artifact", "out/*"];
    let run = world.submit(&flags, "mkdir out; cat one two; wc -c < data | tee out/n; exit 3", 3, "12300000\n");
    world.ends(&run);
    world.insist(&["artifact", "get", &run, "--force"], 0);
    assert_eq!(std::fs::read_to_string(world.home.here().join("out/n")).unwrap(), "300000\n");
    let listed = world.json(&["artifact", "ls", &run]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "one name, one artifact: {listed}");
}

fn cancelled_and_deleted(world: &World) {
    let ready = Gate::new(&world.home, "ready");
    let command = format!("trap 'echo bye; exit 0' TERM; {}; while :; do sleep 0.02; done", ready.say("up"));
    let run = world.submit(&[], &command, 143, "bye\n");
    assert_eq!(world.meets(|| ready.hear()), "up");
    world.insist(&["cancel", &run], 0);
    world.ends(&run);
    world.insist(&["retry", &run], 1); // refused, whichever process dies while the refusal is stored
    let other = world.submit(&[], "echo 1", 0, "1\n");
    world.ends(&other);
    world.delete(&other);
}

fn money_secrets_and_holds(world: &World) {
    world.insist(&["credits", "add", "5", "--memo", "once"], 0);
    let rows = world.json(&["credits", "ledger", "--limit", "100"]);
    let fives = rows.as_array().unwrap().iter().filter(|row| row["amount_micro"] == 5_000_000);
    assert_eq!(fives.count(), 1, "credited once: {rows}");
    set_secret(world, "KEY", "hidden");
    let run = world.submit(&["--secret", "KEY", "--hold", "1h"], "test $KEY = hidden && echo 1", 0, "1\n");
    world.ends(&run);
    world.insist(&["extend", &run, "2h"], 0);
    world.insist(&["release", &run], 0);
    world.insist(&["secret", "delete", "KEY"], 0);
    let made = world.json(&["token", "create", "visitor"]);
    world.insist(&["token", "delete", made["id"].as_str().unwrap()], 0);
}

fn set_secret(world: &World, name: &str, value: &str) {
    for _ in 0..5 {
        let mut command = world.home.repl(&["secret", "set", name]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(value.as_bytes()).ok();
        if child.wait().unwrap().success() {
            return;
        }
    }
    panic!("the secret is never set");
}

fn open_machines(world: &World) -> Vec<String> {
    let listed = world.json(&["instance", "ls"]);
    listed.as_array().unwrap().iter().map(|machine| machine["id"].as_str().unwrap().to_owned()).collect()
}

fn the_shop_is_closed(world: &World) {
    let (ready, gate) = (Gate::new(&world.home, "ready"), Gate::new(&world.home, "gate"));
    let run = world.submit(&[], &format!("echo 1; {}; {}; exit 6", ready.say("up"), gate.wait()), 6, "1\n");
    assert_eq!(world.meets(|| ready.hear()), "up");
    // If a process dies while it closes, the next command finds its state and goes on. A machine with a job is left alone.
    world.home.say(&["control", "stop"]);
    world.insist(&["ps"], 0);
    world.meets(|| gate.open());
    world.ends(&run);
    world.home.say(&["control", "stop"]);
    world.insist(&["ps"], 0);
}

/// What runs is imported; what is left of an idle machine is an orphan, which a person keeps for a while and then ends.
fn the_database_is_lost(world: &World) {
    let (ready, gate) = (Gate::new(&world.home, "ready"), Gate::new(&world.home, "gate"));
    let command = format!("seq 1 100; {}; {}; seq 101 200; exit 6", ready.say("up"), gate.wait());
    let run = world.submit(&[], &command, 6, &count(200));
    assert_eq!(world.meets(|| ready.hear()), "up");
    world.insist(&["run", "--hold", "0s", "-c", "true"], 0);
    let machines = world.json(&["instance", "ls"]);
    let idle = machines.as_array().unwrap().iter().find(|machine| machine["run"].is_null()).unwrap();
    let idle = idle["name"].as_str().unwrap().to_owned();
    lose_database(world);
    world.until("it is tracked again", || {
        world.home.say(&["orphans", "recovery-report", "--import"]);
        world.home.say(&["status", &run]).code == 0
    });
    world.meets(|| gate.open());
    world.ends(&run);
    world.insist(&["orphans", "scan"], 0);
    world.insist(&["orphans", "whitelist", &idle, "--reason", "looked at"], 0);
    world.insist(&["orphans", "unwhitelist", &idle], 0);
    let typed = format!("echo {idle} | repl orphans terminate {idle}");
    let folder = world.home.data().join("instances").join(&idle);
    // One that died over its answer has ended it all the same.
    let asked = || process::end_of(&mut world.home.shell(&typed)).code == 0 || !folder.exists();
    world.until("its end is asked for", asked);
    world.until("it is gone", || !folder.exists());
}

fn lose_database(world: &World) {
    process::kill(world.home.control_plane());
    for entry in std::fs::read_dir(world.home.data()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("remuda") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

fn a_runner_dies(world: &World) {
    let (ready, gate) = (Gate::new(&world.home, "ready"), Gate::new(&world.home, "gate"));
    let command = format!("seq 1 100; {}; {}; seq 101 200; exit 6", ready.say("up"), gate.wait());
    let run = world.submit(&[], &command, 6, &count(200));
    assert_eq!(world.meets(|| ready.hear()), "up");
    world.kill_runner();
    world.until("another runner comes", || world.runner().is_some());
    world.has_died();
    world.meets(|| gate.open());
    world.ends(&run);
}

fn a_keeper_dies(world: &World) {
    let (ready, once) = (Gate::new(&world.home, "ready"), world.home.here().join("once"));
    let die = format!("touch {}; {}; exec sleep 1000", once.display(), ready.say("$PPID"));
    let run = world.submit(&["--retry", "2"], &format!("test -e {} && exit 5; {die}", once.display()), 5, "");
    world.begins(&run, 2..=2);
    process::kill(world.meets(|| ready.hear()).parse().unwrap());
    world.ends(&run);
}

fn a_machine_falls_silent(world: &World) {
    let (ready, gate) = (Gate::new(&world.home, "ready"), Gate::new(&world.home, "gate"));
    let command = format!("seq 1 100; {}; {}; seq 101 200; exit 6", ready.say("up"), gate.wait());
    let run = world.submit(&[], &command, 6, &count(200));
    assert_eq!(world.meets(|| ready.hear()), "up");
    let runner = world.runner().unwrap();
    process::signal(runner, Signal::SIGSTOP);
    let status = || world.json(&["instance", "ls"])[0]["status"].clone();
    world.until("the machine is missed", || status() == "unreachable");
    process::signal(runner, Signal::SIGCONT);
    world.until("it is heard again", || status() == "ready");
    world.meets(|| gate.open());
    world.ends(&run);
}

/// More than one segment of the spool, and time to deliver the first while the command lives.
fn much_output(world: &World) {
    let (gate, line) = (Gate::new(&world.home, "gate"), "0123456789".repeat(10));
    let command = format!("yes {line} | head -n 90000; {}; echo {line}", gate.wait());
    let run = world.submit(&[], &command, 0, &format!("{line}\n").repeat(90_001));
    world.has_died();
    world.meets(|| gate.open());
    world.ends(&run);
}

fn time_passes(world: &World) {
    let run = world.submit(&["--artifact", "made"], "echo 1 | tee made", 0, "1\n");
    world.ends(&run);
    world.until("the artifact goes", || {
        let listed = world.json(&["artifact", "ls", &run]);
        listed[0]["deleted_at"].is_i64()
    });
}

fn files_go(world: &World) {
    world.home.write("one", "1");
    let run = world.submit(&["--file", "one"], "cat one", 0, "1");
    world.ends(&run);
    let contents = world.home.data().join("blobs");
    world.until("its files go", || {
        let mut folders = vec![contents.clone()];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => files += usize::from(entry.path().to_string_lossy().contains("/content/")),
                }
            }
        }
        files == 0
    });
}

/// The log of the first attempt stays while the second runs, and both go after the end of the run.
fn old_logs_go(world: &World) {
    let (gate, once) = (Gate::new(&world.home, "gate"), world.home.here().join("once"));
    let again = format!("{}; echo 2; exit 0", gate.wait());
    let command = format!("test -e {0} && {{ {again}; }}; touch {0}; echo 1; exit 1", once.display());
    let run = world.submit(&["--retry", "2"], &command, 0, "1\n2\n");
    world.begins(&run, 2..=2);
    if world.spot.name == "log.keep_from" {
        world.has_died(); // the first log is old, and its run is open
    }
    world.meets(|| gate.open());
    world.until("the run ends", || world.json(&["status", &run])["run"]["status"] == "completed");
    world.until("its log is deleted", || {
        let read = world.home.say(&["logs", &run]);
        read.code == 1 && read.stderr.contains("the log is gone: logs are kept for 1.5s after the end of their run")
    });
    world.until("its files are deleted", || crate::check::gathered(world) == 0);
    world.delete(&run);
}

fn a_folder_outlives_its_machine(world: &World) {
    let run = world.submit(&["--hold", "1h"], "echo 1 | tee made", 0, "1\n");
    world.ends(&run);
    for machine in open_machines(world) {
        world.insist(&["instance", "terminate", &machine, "--force"], 0);
    }
    world.until("its machine ends", || open_machines(world).is_empty());
    world.insist(&["release", &run], 0);
}

/// Each worker that works on the item dies, until the item is given up: the only way in which deaths of control planes fail a run.
fn an_item_kills_its_workers(world: &World) {
    let run = world.submit(&[], "exec sleep 1000", 1, "");
    world.begins(&run, 0..=1);
    // A follower would wait longer after each death.
    world.has_died();
    // Its exit code depends on whether it had begun.
    world.until("the run is given up", || world.json(&["status", &run])["run"]["status"] == "failed");
}

/// No runner of ours tells an end before its log, but the protocol allows it: the test speaks for one.
fn the_end_before_the_log(world: &World) {
    let ready = Gate::new(&world.home, "ready");
    let run = world.submit(&[], &format!("{}; exec sleep 1000", ready.say("up")), 0, "1\n");
    assert_eq!(world.meets(|| ready.hear()), "up");
    let runner = world.runner().unwrap();
    process::signal(runner, Signal::SIGSTOP);
    let puppet = Puppet::of(world);
    puppet.tells_the_end(2);
    puppet.sends("1\n");
    world.ends(&run);
    process::signal(runner, Signal::SIGCONT);
    world.until("the runner gives way", || world.runner().is_some_and(|now| now != runner));
}
