//! A simulated world: one queue of happenings, one clock, the control plane, its machines and its people. Owns the order of
//! everything. The control plane in it is the real one; only time, machines and luck are ours.

use crate::chance::Chance;
use crate::client::Client;
use crate::control::{Control, Grave};
use crate::faults::{Blow, Faults, TROUBLES};
use crate::machine::{Key, Machine, Progress};
use crate::provider::FarProvider;
use crate::sim::Promise;
use crate::time::{Now, now};
use crate::trace::Trace;
use crate::truth::Truth;
use adapters::FakeProvider;
use adapters::fake::{FakeSettings, Fate};
use engine::desired::Desired;
use engine::runner::{Fact, Taken};
use engine::store::log::Chunk;
use engine::{Config, Engine};
use model::time::MINUTE;
use model::{OrgId, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use store::{Database, Hint, Options, Store};

/// Any moment will do; not 0, which means "never" in places.
pub const BEGINNING_MS: i64 = 1_000_000_000;
/// More turns at one moment than this, and something wakes itself for ever.
const TURNS_AT_ONCE: usize = 400;

pub enum Happening {
    /// Somebody waits for this moment.
    Moment,
    Beat {
        boot: u64,
    },
    Restart,
    Client {
        index: usize,
    },
    Blow(Blow),
    Dial {
        name: String,
        process: u64,
    },
    Heartbeat {
        name: String,
        process: u64,
    },
    Told {
        name: String,
        process: u64,
        desired: Box<Desired>,
    },
    Arrived {
        name: String,
        process: u64,
        report: Box<Report>,
    },
    Answered {
        name: String,
        process: u64,
        number: u64,
        upto: BTreeMap<Key, u64>,
        taken: Taken,
    },
    WaitedInVain {
        name: String,
        process: u64,
        number: u64,
    },
    Work {
        name: String,
        key: Key,
        progress: Progress,
    },
}

#[derive(Clone)]
pub struct Report {
    pub number: u64,
    pub facts: Vec<Fact>,
    pub chunks: Vec<Chunk>,
    pub upto: BTreeMap<Key, u64>,
}

pub struct World {
    pub now: Now,
    queue: BTreeMap<(i64, u64), Happening>,
    numbers: u64,
    armed_ms: i64,
    pub chance: Chance,
    pub faults: Faults,
    pub trace: Trace,
    pub store: Store,
    /// Reads only, and never dies.
    pub auditor: Engine,
    pub org: OrgId,
    pub config: Config,
    pub far: FarProvider,
    pub grave: Arc<Grave>,
    pub control: Option<Control>,
    pub boots: u64,
    hints: Box<dyn FnMut() -> Option<Hint>>,
    pub machines: BTreeMap<String, Machine>,
    pub clients: Vec<Client>,
    pub truth: Truth,
    pub broken: Vec<(Promise, String)>,
}

impl World {
    pub fn new(seed: u64, runs: u64, trouble_ms: i64) -> World {
        let mut chance = Chance::new(seed);
        let faults = Faults::draw(&mut chance, trouble_ms);
        let now = Now::new(BEGINNING_MS);
        let grave = Arc::new(Grave::new(chance.fork()));
        let (near, config) = (provider(&faults, &mut chance), config());
        let far = FarProvider {
            near,
            now: now.clone(),
            takes_ms: Arc::new(AtomicI64::new(faults.call_takes_ms)),
            chance: Arc::new(Mutex::new(chance.fork())),
            caller_dead: grave.dead.clone(),
        };
        let store = Store::inline(&Options {
            clock: Arc::new(now.clone()),
            crash: Some(grave.clone().hook()),
            ..Options::new(Database::Memory)
        })
        .expect("a database in memory opens");
        let auditor = crate::control::engine(&config, &far, &store);
        let org = crate::time::now(auditor.ensure_org("sim")).expect("the first org is made");
        let mut receiver = store.hints();
        let hints = Box::new(move || {
            loop {
                match receiver.try_recv() {
                    Ok(hint) => return Some(hint),
                    Err(error) if error.to_string().contains("lagged") => {}
                    Err(_) => return None,
                }
            }
        });
        let mut world = World {
            now,
            queue: BTreeMap::new(),
            numbers: 0,
            armed_ms: 0,
            chance,
            faults,
            trace: Trace::default(),
            store,
            auditor,
            org,
            config,
            far,
            grave,
            control: None,
            boots: 0,
            hints,
            machines: BTreeMap::new(),
            clients: Vec::new(),
            truth: Truth::default(),
            broken: Vec::new(),
        };
        world.populate(runs, trouble_ms);
        world
    }

    fn populate(&mut self, runs: u64, trouble_ms: i64) {
        for number in 0..runs {
            let at = self.chance.between(0, trouble_ms / 2);
            let client = Client::draw(number, "fake", "here", &mut self.chance, BEGINNING_MS + at);
            self.clients.push(client);
            self.after(at, Happening::Client { index: number as usize });
        }
        for (at, blow) in self.faults.blows.clone() {
            self.after(at, Happening::Blow(blow));
        }
        self.grave.set_rate(self.faults.crash);
        self.after(0, Happening::Restart);
    }

    /// From now on nothing goes wrong any more.
    pub fn calm_down(&mut self) {
        self.note(format_args!("calm"));
        self.faults = Faults::calm();
        self.grave.set_rate(0);
        self.far.takes_ms.store(0, Ordering::Relaxed);
        self.far.near.decide_by(Box::new(|_, _| Fate::Obey));
        self.queue.retain(|_, happening| !matches!(happening, Happening::Blow(_)));
        self.machines.values_mut().for_each(|machine| machine.cut_off_until_ms = 0);
    }

    pub fn after(&mut self, ms: i64, happening: Happening) {
        self.numbers += 1;
        self.queue.insert((self.now.ms() + ms, self.numbers), happening);
    }

    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now.ms() - BEGINNING_MS, what);
    }

    pub fn complain(&mut self, promise: Promise, what: String) {
        self.note(format_args!("BROKEN {what}"));
        self.broken.push((promise, what));
    }

    /// The next happening and all that follows from it at once. False when it lies beyond `until_ms`.
    pub fn step(&mut self, until_ms: i64) -> bool {
        let Some((&(at, number), _)) = self.queue.first_key_value() else { return false };
        if at > until_ms || !self.broken.is_empty() {
            return false;
        }
        let happening = self.queue.remove(&(at, number)).expect("it was just seen");
        self.now.move_to(at);
        self.happen(happening);
        self.settle();
        true
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Moment => {}
            Happening::Beat { boot } => self.beat(boot),
            Happening::Restart => self.start_control(),
            Happening::Client { index } => self.ask(index),
            Happening::Blow(blow) => self.strike(blow),
            Happening::Dial { name, process } => self.dial(&name, process),
            Happening::Heartbeat { name, process } => self.heartbeat(&name, process),
            Happening::Told { name, process, desired } => self.told(&name, process, &desired),
            Happening::Arrived { name, process, report } => self.arrived(&name, process, &report),
            Happening::Answered { name, process, number, upto, taken } => {
                self.answered(&name, process, number, &upto, &taken)
            }
            Happening::WaitedInVain { name, process, number } => self.waited_in_vain(&name, process, number),
            Happening::Work { name, key, progress } => self.work(&name, key, progress),
        }
    }

    /// Until nothing more happens at this moment: tasks are polled, due work is claimed, hints are followed, machines appear and go.
    fn settle(&mut self) {
        for _ in 0..TURNS_AT_ONCE {
            let busy = self.turn();
            let touched = self.follow_hints();
            self.meet_machines();
            for at in self.now.new_waits() {
                self.numbers += 1;
                self.queue.insert((at, self.numbers), Happening::Moment);
            }
            self.audit(&touched);
            if !self.broken.is_empty() || (!busy && touched.is_empty()) {
                return self.arm();
            }
        }
        self.complain(Promise::Ends, "something wakes itself for ever".to_owned());
    }

    /// The worker sleeps until the next item is due, or its next beat.
    fn arm(&mut self) {
        if self.control.is_none() {
            return;
        }
        let due = now(self.auditor.next_due()).expect("a database in memory is read").map(|due| due.ms());
        if let Some(due) = due.filter(|due| *due > self.now.ms() && *due != self.armed_ms) {
            self.armed_ms = due;
            self.numbers += 1;
            self.queue.insert((due, self.numbers), Happening::Moment);
        }
    }

    /// Runs that were written about, after their runners were told.
    fn follow_hints(&mut self) -> BTreeSet<RunId> {
        let (mut runs, mut instances) = (BTreeSet::new(), BTreeSet::new());
        while let Some(hint) = (self.hints)() {
            match hint {
                Hint::Run(run) => drop(runs.insert(run)),
                Hint::Instance(instance) => drop(instances.insert(instance)),
                Hint::Work | Hint::Everything | Hint::Logs(_) => {} // in memory none is ever missed
            }
        }
        instances.into_iter().for_each(|instance| self.tell(instance));
        runs
    }

    fn audit(&mut self, touched: &BTreeSet<RunId>) {
        for run in touched {
            let audit = now(self.auditor.audit_run(*run)).expect("a database in memory is read");
            // What waited for us while we were away is overdue, and is worked on next.
            let back_ms = self.control.as_ref().map_or(0, |control| self.now.ms() - control.since_ms);
            for broken in audit.broken.iter().filter(|b| b.invariant != "7 owner" || back_ms > 2 * MINUTE) {
                self.complain(Promise::Safe, format!("{}: {}: {}", broken.invariant, broken.subject, broken.detail));
            }
        }
    }
}

fn provider(faults: &Faults, chance: &mut Chance) -> Arc<FakeProvider> {
    let settings = FakeSettings {
        list_lag_calls: faults.list_lag_calls,
        gone_lag_calls: faults.gone_lag_calls,
        ..FakeSettings::default()
    };
    let (before, after, mut luck) = (faults.call_fails_before, faults.call_fails_after, chance.fork());
    let decide = move |_, _: &str| match (luck.in_thousand(before), luck.in_thousand(after)) {
        (true, _) => Fate::FailBefore(luck.pick(&TROUBLES)),
        (false, true) => Fate::FailAfter(luck.pick(&TROUBLES)),
        (false, false) => Fate::Obey,
    };
    Arc::new(FakeProvider::new(settings, Box::new(decide)))
}

/// As in life, but unused machines go soon: a world is short.
fn config() -> Config {
    let mut config = Config::default();
    config.timings.idle_duration_ms = 4 * MINUTE;
    config
}
