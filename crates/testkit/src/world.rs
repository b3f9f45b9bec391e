//! The state of a simulation: one queue of events, one clock, the control plane, its machines and its users. Determines the order of
//! everything. The engine in it is the real one; time, machines and randomness are simulated.

use crate::auditor::Auditor;
use crate::chance::Chance;
use crate::client::Client;
use crate::database_pool::REUSE;
use crate::external_run::ExternalProgram;
use crate::faults::{Decision, Faults, Kind};
use crate::follower::Follower;
use crate::loss::{Told, strangers};
use crate::machine::{Key, Machine, Progress};
use crate::outsider::Outsider;
use crate::process::{Fate, Process, SECOND, SERVER};
use crate::program::Program;
use crate::provider::{FarProvider, fates};
use crate::sim::Promise;
use crate::time::{Now, now};
use crate::tool::FarTool;
use crate::trace::Trace;
use crate::truth::Truth;
use adapters::FakeProvider;
use adapters::fake::FakeSettings;
use engine::desired::Desired;
use engine::runner::{Fact, StepChunk, Taken};
use engine::{Config, Engine};
use model::time::{MINUTE, SECOND as A_SECOND};
use model::{Credits, InstanceId, OrgId, RunId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use store::{Database, Options, Store};

/// Any moment will do; not 0, which means "never" in places.
pub const BEGINNING_MS: i64 = 1_000_000_000;
/// More turns at one moment than this, and something wakes itself for ever.
const TURNS_AT_ONCE: usize = 400;

/// How often the simulated person on duty looks at the tickets.
pub const DUTY_EVERY_MS: i64 = 30 * A_SECOND;

pub enum Happening {
    /// A future waits for this moment.
    Moment,
    /// What stood still goes on.
    Thaw,
    Beat {
        process: usize,
        boot: u64,
    },
    Restart {
        process: usize,
    },
    Client {
        index: usize,
    },
    /// The person on duty looks for open tickets.
    Duty,
    Follower {
        index: usize,
    },
    /// A program outside goes on with its own run.
    External {
        index: usize,
    },
    /// A program outside asks for a step, or goes on with the one it has.
    Outsider {
        index: usize,
    },
    /// `ms`: for so long; none: as long as its luck says.
    Blow {
        kind: Kind,
        ms: Option<i64>,
    },
    StreamClosed {
        instance: InstanceId,
        boot: u64,
    },
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
    /// A program of a command asks about its steps.
    Program {
        name: String,
        program: Box<Program>,
    },
}

impl Happening {
    /// The machine on which it happens: while that sleeps, it waits.
    fn on(&self) -> Option<&str> {
        match self {
            Happening::Dial { name, .. }
            | Happening::Heartbeat { name, .. }
            | Happening::Told { name, .. }
            | Happening::Answered { name, .. }
            | Happening::WaitedInVain { name, .. }
            | Happening::Work { name, .. }
            | Happening::Program { name, .. } => Some(name),
            _ => None,
        }
    }
}

#[derive(Clone)]
pub struct Report {
    pub number: u64,
    pub facts: Vec<Fact>,
    pub chunks: Vec<StepChunk>,
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
    pub auditor: Auditor,
    pub orgs: [OrgId; 2],
    /// A refusal for want of credits is to be expected.
    pub poor: bool,
    pub config: Config,
    pub far: FarProvider,
    pub tool: FarTool,
    pub fate: Arc<Fate>,
    pub processes: [Option<Process>; 2],
    pub has_second: bool,
    pub boots: u64,
    /// A hint was lost: every runner that follows a document reads it again at the next beat.
    pub rescan: bool,
    /// Whatever seems to be due, a claim is tried: a dead worker's items look held.
    pub net: [bool; 2],
    pub boots_ms: i64,
    /// What the provider had seen when its machines were last met.
    pub met: Option<u64>,
    pub machines: BTreeMap<String, Machine>,
    pub clients: Vec<Client>,
    pub followers: Vec<Follower>,
    pub outsiders: Vec<Outsider>,
    pub externals: Vec<ExternalProgram>,
    pub truth: Truth,
    pub broken: Vec<(Promise, String)>,
    /// How far the clock was set back: so much longer may things take.
    pub set_back_ms: i64,
    pub database_lost: bool,
    /// The database that was lost, which only the oracle can still read.
    pub lost_store: Option<Store>,
    /// What people who import were answered, and what was imported.
    pub told: Told,
    pub imports: Vec<RunId>,
    /// What the provider lists and we have not made, by handle.
    pub strangers: Vec<String>,
}

impl World {
    /// An empty one. `trouble_ms`: how long things go wrong, if they do; `only`: these faults and no others.
    pub fn new(seed: u64, trouble_ms: i64, only: Option<&[Decision]>) -> World {
        let mut chance = Chance::new(seed);
        let now = Now::new(BEGINNING_MS);
        let (faults, blows) = Faults::draw(seed, trouble_ms, only, &now);
        let auditor = Auditor::new(&now);
        let fate = Fate::new(&now, &faults, &auditor);
        let takes_ms = faults.strikes(Kind::SlowCalls).map_or(0, |mut luck| luck.pick(&[200, 5_000, 40_000]));
        let far = FarProvider {
            near: provider(&faults, &mut chance),
            now: now.clone(),
            faults: faults.clone(),
            takes_ms: Arc::new(AtomicI64::new(takes_ms)),
            chance: Arc::new(Mutex::new(chance.fork())),
            caller_dead: fate.dead[2].clone(),
        };
        let store = open_store(&now, &fate, &auditor, 1);
        let tool = FarTool {
            now: now.clone(),
            faults: faults.clone(),
            chance: Arc::new(Mutex::new(chance.fork())),
            book: Arc::default(),
            store: store.clone(),
            caller_dead: fate.dead[2].clone(),
        };
        let poor = chance.one_in(8);
        let config = config(&mut chance, poor);
        let outside = crate::process::engine(&config, &far, &tool, &store, false);
        auditor.begin(outside.clone());
        let orgs = ["one", "two"].map(|name| crate::time::now(outside.ensure_org(name)).expect("an org is made"));
        let mut world = World {
            now,
            queue: BTreeMap::new(),
            numbers: 0,
            armed_ms: 0,
            chance,
            has_second: faults.strikes(Kind::SecondWorker).is_some(),
            boots_ms: faults.strikes(Kind::SlowBoots).map_or(0, |mut luck| luck.pick(&[A_SECOND, 30 * A_SECOND])),
            faults,
            trace: Trace::default(),
            store,
            auditor,
            orgs,
            poor,
            config,
            far,
            tool,
            fate,
            processes: [None, None],
            boots: 0,
            rescan: false,
            net: [false; 2],
            met: None,
            machines: BTreeMap::new(),
            clients: Vec::new(),
            followers: Vec::new(),
            outsiders: Vec::new(),
            externals: Vec::new(),
            truth: Truth::default(),
            broken: Vec::new(),
            set_back_ms: 0,
            database_lost: false,
            lost_store: None,
            told: Told::default(),
            imports: Vec::new(),
            strangers: Vec::new(),
        };
        if world.faults.strikes(Kind::Strangers).is_some() {
            for stranger in strangers() {
                world.strangers.push(stranger.handle.clone());
                world.far.near.place(stranger);
            }
        }
        for (at, kind) in blows {
            world.after(at, Happening::Blow { kind, ms: None });
        }
        world.after(DUTY_EVERY_MS, Happening::Duty);
        world.add_outsiders();
        for process in 0..1 + usize::from(world.has_second) {
            world.after(0, Happening::Restart { process });
        }
        world
    }

    /// A user arrives after `ms` and submits a run.
    pub fn add_client(&mut self, ms: i64, client: Client) {
        let index = self.clients.len();
        self.clients.push(client);
        self.after(ms, Happening::Client { index });
    }

    /// People as the seed draws them.
    pub fn populate(&mut self, runs: i64, within_ms: i64) {
        for number in 0..runs {
            let ms = self.chance.between(0, within_ms);
            let client = Client::draw(number as u64, &mut self.chance, BEGINNING_MS + ms);
            if client.spec.call.is_some() && self.chance.one_in(2) {
                // A user wants the same later, when its result may be kept.
                let later = ms + self.chance.between(MINUTE, 10 * MINUTE);
                let again = Client { org: client.org, ..Client::of((runs + number) as u64, client.spec.clone()) };
                self.add_client(later, again);
            }
            self.add_client(ms, client);
        }
    }

    /// From now on nothing goes wrong any more.
    pub fn calm_down(&mut self) {
        self.note(format_args!("calm"));
        self.faults.calm();
        self.fate.disk_is_full_until(0);
        self.unsettle(0);
        self.far.takes_ms.store(0, Ordering::Relaxed);
        self.boots_ms = 0;
        self.queue.retain(|_, happening| !matches!(happening, Happening::Blow { .. }));
        self.machines.values_mut().for_each(Machine::reconnect);
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

    /// The engine of the serving process, if it can answer now. What is written next is written by it.
    pub fn serving(&self) -> Option<Engine> {
        let server = self.processes[SERVER].as_ref().filter(|server| server.frozen_until_ms <= self.now.ms())?;
        if self.fate.is_dead(SERVER) {
            return None;
        }
        self.fate.enter(SERVER);
        Some(server.engine.clone())
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
        let asleep_ms = happening.on().and_then(|name| self.machines.get(name)).map_or(0, |m| m.asleep_until_ms);
        if asleep_ms > self.now.ms() {
            return self.after(asleep_ms - self.now.ms(), happening);
        }
        match happening {
            Happening::Moment => {}
            Happening::Thaw => self.unsettle(0),
            Happening::Beat { process, boot } => self.beat(process, boot),
            Happening::Restart { process } => self.start_process(process),
            Happening::Client { index } => self.ask(index),
            Happening::Duty => self.answer_questions(),
            Happening::Follower { index } => self.read_on(index),
            Happening::External { index } => self.external_program(index),
            Happening::Outsider { index } => self.outsider(index),
            Happening::Blow { kind, ms } => self.strike(kind, ms),
            Happening::StreamClosed { instance, boot } => self.stream_closed(instance, boot),
            Happening::Dial { name, process } => self.dial(&name, process),
            Happening::Heartbeat { name, process } => self.heartbeat(&name, process),
            Happening::Told { name, process, desired } => self.told(&name, process, &desired),
            Happening::Arrived { name, process, report } => self.arrived(&name, process, &report),
            Happening::Answered { name, process, number, upto, taken } => {
                self.answered(&name, process, number, &upto, &taken)
            }
            Happening::WaitedInVain { name, process, number } => self.waited_in_vain(&name, process, number),
            Happening::Work { name, key, progress } => self.work(&name, key, progress),
            Happening::Program { name, program } => self.program(&name, *program),
        }
    }

    /// Until nothing more happens at this moment: tasks are polled, due work is claimed, hints are followed, machines appear and go.
    fn settle(&mut self) {
        for _ in 0..TURNS_AT_ONCE {
            let before = self.auditor.news();
            let busy = self.turn();
            for instance in self.auditor.changed_instances() {
                if self.faults.strikes(Kind::HintLost).is_some() {
                    self.rescan = true;
                } else {
                    self.tell(instance);
                }
            }
            self.meet_machines();
            for at in self.now.new_waits() {
                self.numbers += 1;
                self.queue.insert((at, self.numbers), Happening::Moment);
            }
            let (news, complaints) = self.tool.news();
            news.iter().for_each(|what| self.note(format_args!("{what}")));
            for complaint in self.auditor.complaints().into_iter().chain(complaints) {
                self.complain(Promise::Safe, complaint);
            }
            if !self.broken.is_empty() || (!busy && self.auditor.news() == before) {
                return self.arm();
            }
        }
        self.complain(Promise::Ends, "something wakes itself for ever".to_owned());
    }

    /// Workers sleep until the next item is due, or their next beat.
    fn arm(&mut self) {
        if self.processes.iter().all(Option::is_none) {
            return;
        }
        let due = self.auditor.next_due().map(|due| due.ms() - self.now.wall_ms());
        let due = due.filter(|ms| *ms > 0).map(|ms| self.now.ms() + ms);
        if let Some(due) = due.filter(|due| *due != self.armed_ms) {
            self.armed_ms = due;
            self.numbers += 1;
            self.queue.insert((due, self.numbers), Happening::Moment);
        }
    }

    pub fn is_over(&self) -> bool {
        self.clients.iter().all(Client::is_done)
            && self.far.near.machines().is_empty()
            && now(self.auditor.engine().open_runs()).is_ok_and(|open| open == 0)
            && self.open_executions() == 0
    }

    pub fn tool_of(&self, process: usize) -> FarTool {
        FarTool { caller_dead: self.fate.dead[process].clone(), ..self.tool.clone() }
    }

    pub fn far_of(&self, process: usize) -> FarProvider {
        debug_assert!(process == SERVER || process == SECOND, "only those two call providers");
        FarProvider { caller_dead: self.fate.dead[process].clone(), ..self.far.clone() }
    }
}

pub fn open_store(now: &Now, fate: &Arc<Fate>, auditor: &Auditor, first_id: i64) -> Store {
    Store::inline(&Options {
        clock: Arc::new(now.clone()),
        crash: Some(fate.hook()),
        observe: Some(auditor.observer()),
        reuse: Some(REUSE),
        first_id,
        ..Options::new(Database::Memory)
    })
    .expect("a database in memory opens")
}

fn provider(faults: &Faults, chance: &mut Chance) -> Arc<FakeProvider> {
    let mut settings = FakeSettings {
        list_lag_calls: faults.strikes(Kind::ListLag).map_or(0, |mut luck| luck.pick(&[1, 3])),
        gone_lag_calls: faults.strikes(Kind::GoneLag).map_or(0, |mut luck| luck.pick(&[1, 4])),
        ..FakeSettings::default()
    };
    settings.capabilities.max_instances = chance.pick(&[1, 2, 3]);
    Arc::new(FakeProvider::new(settings, fates(faults)))
}

/// As in life, but unused machines and holds end soon: a world is short.
fn config(chance: &mut Chance, poor: bool) -> Config {
    let mut config = Config::default();
    config.timings.idle_duration_ms = chance.pick(&[10 * A_SECOND, 90 * A_SECOND]);
    config.timings.idle_duration_paid_ms = config.timings.idle_duration_ms;
    config.manifests.launch_run_ms = chance.pick(&[A_SECOND, MINUTE]);
    config.manifests.terminate_instance_ms = MINUTE;
    config.orphans.scan_every_ms = chance.pick(&[2 * MINUTE, 20 * MINUTE]);
    config.holds.default_debug_hold_ms = chance.pick(&[5 * A_SECOND, MINUTE]);
    config.holds.failure_debug_hold_ms = config.holds.default_debug_hold_ms + chance.pick(&[0, MINUTE]);
    config.calls.unnamed_kept_ms = chance.pick(&[0, MINUTE, model::time::DAY]);
    if poor {
        config.money.first_topup = Credits(25_000);
    }
    config
}
