//! Two servers, two workers and their database die in turn while runs are at work, in line and being followed: every run ends as
//! its command did, every byte is told once, and the books are right.

use crate::gate::Gate;
use crate::home::Home;
use crate::process::Running;

/// Two machines, so that some runs are in line whatever dies.
const MACHINES: &str = "[providers.local]\nmax_instances = 2\n";
const LINES: usize = 500;

/// Two runs that are at work and followed, one at each server, and some in line behind them.
struct Storm {
    followed: Vec<(Running, Gate)>,
    in_line: Vec<String>,
}

impl Storm {
    fn begin(home: &Home, round: usize) -> Storm {
        let mut followed = Vec::new();
        for n in 0..2 {
            let gate = Gate::new(home, &format!("gate{round}.{n}"));
            let command = format!("echo ready; {}; seq 1 {LINES}; exit 6", gate.wait());
            let mut running = Running::start(&mut home.repl(&["run", "-c", &command]));
            assert_eq!(running.line(), "ready");
            followed.push((running, gate));
        }
        let in_line = (0..4).map(|n| home.detach(&[], &format!("echo {n}; exit {n}"))).collect();
        Storm { followed, in_line }
    }

    fn let_through(&self) {
        self.followed.iter().for_each(|(_, gate)| gate.open());
    }

    /// Every accepted run ends as its command says.
    fn end(self, home: &Home, what: &str) {
        let expected: String = (1..=LINES).map(|n| format!("{n}\n")).collect();
        for (running, _) in self.followed {
            let ended = running.end();
            assert_eq!((ended.code, ended.out()), (6, expected.clone()), "{what}: {}", ended.stderr);
        }
        for (n, run) in self.in_line.iter().enumerate() {
            let ended = home.attach(run);
            assert_eq!((ended.code, ended.out()), (n as i32, format!("{n}\n")), "{what}: {ended}");
            assert_eq!(home.jobs(run).len(), 1, "{what}: nothing was begun twice");
        }
    }
}

#[test]
fn each_of_them_dies_in_turn_and_no_run_fails() {
    let home = Home::of_many(MACHINES);
    let names = ["a server", "the other server", "a worker", "the other worker"];
    for round in 0..8 {
        let storm = Storm::begin(&home, round);
        home.many().kill(round % 4);
        storm.let_through();
        storm.end(&home, names[round % 4]);
    }
    home.adds_up();
}

#[test]
fn the_database_restarts_again_and_again_and_no_run_fails() {
    let home = Home::of_many(MACHINES);
    for round in 0..6 {
        let storm = Storm::begin(&home, round);
        // While they are at work, and while their ends are on the way.
        if round % 2 == 0 {
            home.many().restart_database();
            storm.let_through();
        } else {
            storm.let_through();
            home.many().restart_database();
        }
        storm.end(&home, "the database");
    }
    home.adds_up();
}
