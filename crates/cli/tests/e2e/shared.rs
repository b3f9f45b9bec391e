//! Several control planes on one PostgreSQL: what one accepts another may drive and a third may tell, and any of them may die.

use crate::cluster::Cluster;
use crate::gate::Gate;
use crate::home::Home;
use crate::process::{self, Running};
use nix::sys::signal::Signal;

/// The home goes first: its processes still speak with the database.
struct Shared {
    home: Home,
    cluster: Cluster,
}

impl Shared {
    fn new() -> Shared {
        let (mut home, cluster) = (Home::new(), Cluster::start());
        home.set("REPL_DATABASE", &cluster.url());
        Shared { home, cluster }
    }

    /// A server that answers, and its address.
    fn server(&self, address: &str, more: &[&str]) -> (Running, String) {
        let mut server = Running::start(&mut self.home.repl(&[&["server", "--listen", address], more].concat()));
        let said = server.hear("serving http://");
        (server, said.trim().rsplit_once("http://").unwrap().1.to_owned())
    }

    fn worker(&self, server: &str) -> Running {
        let mut worker = Running::start(&mut self.home.repl(&["worker", "--server", server]));
        worker.hear("working");
        worker
    }

    /// From now on commands talk to the server at this address.
    fn talk_to(&mut self, address: &str) {
        let token = std::fs::read_to_string(self.home.data().join("token")).unwrap();
        self.home.set("REPL_TOKEN", &token);
        self.home.set("REPL_URL", &format!("http://{address}"));
    }

    /// Ends machines and then processes, in order, as an operator would.
    fn end(self, processes: Vec<Running>) {
        self.home.adds_up();
        let is_runner = |process: &process::Process| process.words.starts_with("repl runner");
        let runners: Vec<_> = self.home.processes().into_iter().filter(is_runner).collect();
        for machine in self.home.instances() {
            self.home.done(&["instance", "terminate", machine["id"].as_str().unwrap()]);
        }
        assert!(runners.iter().all(|runner| process::ends(runner.pid)));
        for running in processes {
            process::signal(running.pid(), Signal::SIGTERM);
            let ended = running.end();
            assert_eq!(ended.code, 0, "{ended}");
        }
    }
}

#[test]
fn servers_and_workers_share_one_database() {
    let mut shared = Shared::new();
    let (first, address) = shared.server("127.0.0.1:0", &[]);
    let (second, other) = shared.server("127.0.0.1:0", &["--no-worker"]);
    let worker = shared.worker(&address);
    shared.talk_to(&address);
    let other = format!("http://{other}");
    let home = &shared.home;
    let hello = home.run(&[], "echo hello; echo aside >&2; exit 3");
    assert_eq!((hello.code, &*hello.out()), (3, "hello\n"), "{hello}");
    // Accepted by one, told by the other, as it happens.
    let gate = Gate::new(home, "gate");
    home.write("data", "x".repeat(100_000));
    let command = format!("wc -c < data; {}; seq 1 3000; echo made > out; exit 6", gate.wait());
    let run = home.detach(&["--file", "data", "--artifact", "out"], &command);
    let mut followed = Running::start(&mut home.repl(&["--url", &other, "attach", &run]));
    let events = Running::start(&mut home.repl(&["--url", &other, "events", "-f", "--json", &run]));
    assert_eq!(followed.line(), "100000");
    gate.open();
    let ended = followed.end();
    assert_eq!((ended.code, ended.out()), (6, (1..=3000).map(|n| format!("{n}\n")).collect()), "{}", ended.stderr);
    let events = events.end();
    assert_eq!(events.out(), home.done(&["events", "-f", "--json", &run]).out(), "the same story everywhere");
    home.done(&["--url", &other, "artifact", "get", &run]);
    assert_eq!(std::fs::read_to_string(home.here().join("out")).unwrap(), "made\n");
    // Whichever server accepted a run: the newest comes first, on every page. (Each server gives ids of its own.)
    let accept = |n: usize| {
        let url = if n.is_multiple_of(2) { &other } else { &format!("http://{address}") };
        home.json(&["--url", url, "run", "--detach", "-c", "true"])["id"].as_str().unwrap().to_owned()
    };
    let mut newest: Vec<String> = (0..4).map(accept).collect();
    newest.reverse();
    let listed = home.json(&["ps", "--all", "--limit", "4"]);
    let listed: Vec<_> = listed.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
    assert_eq!(listed, newest);
    // And cancelled by the other.
    let command = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut followed = Running::start(&mut home.repl(&["run", "--name", "ends", "-c", command]));
    assert_eq!(followed.line(), "ready");
    home.done(&["--url", &other, "cancel", "ends"]);
    let ended = followed.end();
    assert_eq!((ended.code, &*ended.out()), (143, "bye\n"), "{ended}");
    shared.end(vec![worker, second, first]);
}

/// An older copy of the database does not know which numbers were given out since.
#[test]
fn a_server_on_a_restored_database_numbers_from_the_present_time_on() {
    let mut shared = Shared::new();
    let number = |home: &Home| {
        let id = home.status("@last")["id"].as_str().unwrap().to_owned();
        i64::from_str_radix(id.strip_prefix("run_").unwrap(), 36).unwrap()
    };
    let began_ms = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
    // Each comes back where the machines of the one before expect it.
    let (plain, mut address): (&[&str], String) = (&[], "127.0.0.1:0".to_owned());
    for (flags, is_above) in [(plain, false), (&["--restored"], true), (plain, true)] {
        let (server, at) = shared.server(&address, flags);
        shared.talk_to(&at);
        address = at;
        assert_eq!(shared.home.run(&["--hold", "0s"], "true").code, 0);
        assert_eq!(number(&shared.home) > began_ms, is_above, "{flags:?}");
        process::signal(server.pid(), Signal::SIGTERM);
        assert_eq!(server.end().code, 0);
    }
    let (last, _) = shared.server(&address, plain);
    shared.end(vec![last]);
}

#[test]
fn many_runs_are_placed_in_order_by_whichever_worker() {
    let mut shared = Shared::new();
    shared.home.configure("[providers.local]\nmax_instances = 1\n");
    let (first, address) = shared.server("127.0.0.1:0", &[]);
    let workers = [shared.worker(&address), shared.worker(&address)];
    shared.talk_to(&address);
    let home = &shared.home;
    let (gate, order) = (Gate::new(home, "gate"), home.here().join("order"));
    let mut runs = vec![home.detach(&[], &gate.wait())];
    for n in 0..12 {
        let command = format!("mkdir ../busy || exit 99; echo {n} >> {}; rmdir ../busy", order.display());
        runs.push(home.detach(&[], &command));
    }
    gate.open();
    for run in &runs {
        let ended = home.attach(run);
        assert_eq!(ended.code, 0, "{ended}");
    }
    assert_eq!(std::fs::read_to_string(order).unwrap(), (0..12).map(|n| format!("{n}\n")).collect::<String>());
    shared.end(workers.into_iter().chain([first]).collect());
}

/// A worker dies while it holds an item. The other takes the item over when the lease has expired: only that worker can have made
/// the run's machine.
#[test]
fn what_a_dead_worker_held_is_taken_over() {
    let mut shared = Shared::new();
    shared.home.configure("[timings]\nlease_ms = 3000\n");
    let (first, address) = shared.server("127.0.0.1:0", &["--no-worker"]);
    shared.talk_to(&address);
    shared.home.set("REPL_CRASH", "worker/workflow.record:before");
    let dies = shared.worker(&address);
    shared.home.unset("REPL_CRASH");
    let run = shared.home.detach(&[], "echo made; exit 4");
    assert_eq!(dies.end().code, 137, "it died where it was told to");
    let held = shared.cluster.ask(include_str!("held.sql"));
    assert_eq!(held, "1", "with the run's workflow in its hands");
    let lives = shared.worker(&address);
    let ended = shared.home.attach(&run);
    assert_eq!((ended.code, &*ended.out()), (4, "made\n"), "{ended}");
    assert_eq!(shared.home.jobs(&run).len(), 1, "nothing was begun twice");
    shared.end(vec![lives, first]);
}

#[test]
fn any_of_them_may_die() {
    let mut shared = Shared::new();
    let (first, address) = shared.server("127.0.0.1:0", &["--no-worker"]);
    let (second, other) = shared.server("127.0.0.1:0", &["--no-worker"]);
    let (dies, lives) = (shared.worker(&address), shared.worker(&address));
    shared.talk_to(&other);
    let home = &shared.home;
    let gate = Gate::new(home, "gate");
    let mut followed =
        Running::start(&mut home.repl(&["run", "-c", &format!("echo 0; {}; seq 1 3000; exit 6", gate.wait())]));
    assert_eq!(followed.line(), "0");
    // The worker, and the server that the runner talks to, which comes back at its address.
    process::kill(dies.pid());
    process::kill(first.pid());
    gate.open();
    let (again, _) = shared.server(&address, &["--no-worker"]);
    let ended = followed.end();
    assert_eq!((ended.code, ended.out()), (6, (1..=3000).map(|n| format!("{n}\n")).collect()), "{}", ended.stderr);
    assert_eq!(home.jobs("@last").len(), 1);
    assert_eq!(home.run(&[], "exit 4").code, 4);
    assert!(dies.end().code == 137 && first.end().code == 137);
    shared.end(vec![lives, again, second]);
}

#[test]
fn what_a_server_without_a_worker_hears_of_machines_is_known_to_all() {
    let mut shared = Shared::new();
    let timings = "[timings]\nheartbeat_every_ms = 200\nunreachable_after_ms = 15000\n";
    shared.home.configure(timings);
    let (first, address) = shared.server("127.0.0.1:0", &["--no-worker"]);
    let (second, other) = shared.server("127.0.0.1:0", &["--no-worker"]);
    let worker = shared.worker(&address);
    shared.talk_to(&other);
    let home = &shared.home;
    assert_eq!(home.run(&[], "exit 4").code, 4);
    // The machine talks to the first server; the second knows only what was written down.
    let machine = || home.instances()[0].clone();
    let before = machine()["last_seen_at"].as_i64().unwrap();
    let mut looks = 0;
    loop {
        let machine = machine();
        assert_eq!(machine["status"], "ready", "it is not missed: {machine}");
        if machine["last_seen_at"].as_i64().unwrap() > before {
            break;
        }
        looks += 1;
        assert!(looks < 5_000, "nobody writes down that it lives: {machine}");
    }
    shared.end(vec![worker, second, first]);
}

/// No token is left: the user that the servers run as makes one, by the database that this user can open.
#[test]
fn an_owner_without_a_token_makes_one_by_the_database() {
    let mut shared = Shared::new();
    let (first, address) = shared.server("127.0.0.1:0", &[]);
    shared.talk_to(&address);
    let own = shared.home.json(&["token", "ls"])[0]["id"].as_str().unwrap().to_owned();
    shared.home.say(&["token", "delete", &own]).refused(1, &["the last", "--yes", "repl control token"]);
    shared.home.done(&["token", "delete", &own, "--yes"]);
    shared.home.say(&["ps"]).refused(1, &["repl login", "repl control token"]);
    let made = shared.home.done(&["control", "token"]).out();
    shared.home.set("REPL_TOKEN", made.trim());
    shared.home.done(&["ps"]);
    assert_eq!(std::fs::read_to_string(shared.home.data().join("token")).unwrap(), made.trim());
    shared.end(vec![first]);
}
