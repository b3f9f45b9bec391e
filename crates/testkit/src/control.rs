//! The control plane as a process of the simulated world: started, beaten, killed at any commit, and started again over the
//! same database. What it does is the real engine's; this file only calls it as the server would.

use crate::chance::Chance;
use crate::faults::Blow;
use crate::provider::FarProvider;
use crate::sim::Promise;
use crate::time::{now, poll};
use crate::world::{Happening, World};
use engine::run::{Action, Render};
use engine::{Config, Engine, House, Presence, Provider};
use model::time::{MINUTE, SECOND};
use model::{Failure, InstanceId};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use store::{CrashHook, Installation, Moment, Store, Worker};

const BEAT_EVERY_MS: i64 = store::worker::BEAT_EVERY_MS;
/// A client that was not answered asks again after this.
const ASK_AGAIN_MS: i64 = 2 * SECOND;

pub struct Control {
    pub engine: Engine,
    pub since_ms: i64,
    boot: u64,
    worker: Worker,
    beats: u64,
    tasks: Vec<Task>,
}

struct Task {
    work: Pin<Box<dyn Future<Output = ()>>>,
}

/// Where processes end: at commits, by luck. Once dead, nothing a process still tries is heard.
pub struct Grave {
    pub dead: Arc<AtomicBool>,
    in_thousand: AtomicI64,
    chance: Mutex<Chance>,
}

impl Grave {
    pub fn new(chance: Chance) -> Grave {
        Grave { dead: Arc::default(), in_thousand: AtomicI64::new(0), chance: Mutex::new(chance) }
    }
    pub fn set_rate(&self, in_thousand: i64) {
        self.in_thousand.store(in_thousand, Ordering::Relaxed);
    }
    pub fn hook(self: Arc<Grave>) -> CrashHook {
        Arc::new(move |_, moment| {
            if self.dead.load(Ordering::Relaxed) {
                return moment == Moment::Before;
            }
            let rate = self.in_thousand.load(Ordering::Relaxed);
            let dies = self.chance.lock().expect("one thread").in_thousand(rate);
            self.dead.fetch_or(dies, Ordering::Relaxed);
            dies
        })
    }
}

pub fn engine(config: &Config, far: &FarProvider, store: &Store) -> Engine {
    let provider: Arc<dyn Provider> = Arc::new(far.clone());
    let house = House {
        config: config.clone(),
        installation: Installation::new("s1mulat3", [7; 32]),
        providers: BTreeMap::from([("fake".to_owned(), provider)]),
        control_url: "sim:".to_owned(),
        presence: Presence::alone(store.read_now("sim.now", |tx| Ok(tx.at())).expect("an inline store answers")),
    };
    Engine::new(house, store.clone()).expect("the settings are good")
}

impl World {
    pub fn start_control(&mut self) {
        if self.control.is_some() {
            return;
        }
        self.boots += 1;
        self.grave.dead.store(false, Ordering::Relaxed);
        let engine = engine(&self.config, &self.far, &self.store);
        let started = now(async {
            let worker = engine.start_worker("sim".to_owned()).await?;
            engine.beat(&worker).await?;
            engine.arm_sweep().await?;
            engine.look_for_everyone().await?;
            Ok::<_, Failure>(worker)
        });
        let boot = self.boots;
        self.note(format_args!("control {boot} starts: {}", started.is_ok()));
        let Ok(worker) = started else { return self.bury(SECOND) };
        let since_ms = self.now.ms();
        self.control = Some(Control { engine, since_ms, boot: self.boots, worker, beats: 0, tasks: Vec::new() });
        self.after(BEAT_EVERY_MS, Happening::Beat { boot: self.boots });
    }

    /// The process is gone, with all it had in memory and every connection.
    fn bury(&mut self, away_ms: i64) {
        let boot = self.boots;
        self.note(format_args!("control {boot} is dead, for {away_ms}"));
        self.control = None;
        self.grave.dead.store(true, Ordering::Relaxed);
        self.after(away_ms, Happening::Restart);
        let streaming: Vec<_> = self.machines.keys().cloned().collect();
        for name in streaming {
            self.stream_broke(&name);
        }
    }

    pub fn beat(&mut self, boot: u64) {
        let Some(control) = self.control.as_mut().filter(|control| control.boot == boot) else { return };
        control.beats += 1;
        let (engine, worker, flush) = (control.engine.clone(), control.worker.clone(), control.beats.is_multiple_of(4));
        let beaten = now(async {
            engine.beat(&worker).await?;
            if flush { engine.flush_presence().await } else { Ok(()) }
        });
        self.unless_dead(beaten, "beat");
        self.after(BEAT_EVERY_MS, Happening::Beat { boot });
    }

    /// Claims what is due and polls what is under way. True if anything was claimed or ended.
    pub fn turn(&mut self) -> bool {
        let mut busy = false;
        if let Some(control) = &mut self.control {
            let before = control.tasks.len();
            control.tasks.retain_mut(|task| poll(&mut task.work).is_none());
            busy = control.tasks.len() != before;
            let engine = control.engine.clone();
            if !self.grave.dead.load(Ordering::Relaxed) {
                match now(engine.claim(&control.worker)) {
                    Ok(items) => {
                        busy |= !items.is_empty();
                        for item in items {
                            let engine = engine.clone();
                            let work = Box::pin(async move { engine.work_on(item).await });
                            control.tasks.push(Task { work });
                            let what = format!("claimed {} {}", item.kind.as_str(), item.subject);
                            self.trace.note(self.now.ms() - crate::world::BEGINNING_MS, format_args!("{what}"));
                        }
                    }
                    Err(failure) => self.unless_dead(Err(failure), "claim"),
                }
            }
        }
        if self.control.is_some() && self.grave.dead.load(Ordering::Relaxed) {
            let away = self.chance.pick(&[0, SECOND, 10 * SECOND, 40 * SECOND]);
            self.bury(away);
            return true;
        }
        busy
    }

    /// Trouble is fine when the process died of it; otherwise nothing could have failed.
    pub fn unless_dead(&mut self, result: Result<(), Failure>, what: &str) {
        if let Err(failure) = result
            && !self.grave.dead.load(Ordering::Relaxed)
        {
            self.complain(Promise::Safe, format!("{what} failed: {failure}"));
        }
    }

    pub fn strike(&mut self, blow: Blow) {
        self.note(format_args!("{blow:?}"));
        let names: Vec<String> =
            self.machines.iter().filter(|(_, m)| m.process.is_some()).map(|(n, _)| n.clone()).collect();
        let victim = (!names.is_empty()).then(|| names[self.chance.between(0, names.len() as i64) as usize].clone());
        match (blow, victim) {
            (Blow::Outage { ms }, _) if self.control.is_some() => self.bury(ms),
            (Blow::Upgrade, _) => {
                if let Some(control) = &self.control {
                    let stopped = now(control.engine.stop_worker(&control.worker));
                    self.unless_dead(stopped, "an orderly end");
                    self.bury(3 * SECOND);
                }
            }
            (Blow::KillRunner, Some(name)) => self.far.near.kill_runner(&name),
            (Blow::KillKeeper, Some(name)) => self.kill_keepers(&name),
            (Blow::DestroyMachine, Some(name)) => self.far.near.destroy(&name),
            (Blow::CutOff { ms }, Some(name)) => {
                let until = self.now.ms() + ms;
                self.machines.get_mut(&name).expect("it was just seen").cut_off_until_ms = until;
                // The connection is found dead only by those who use it; the stream breaks in the middle of the silence.
                self.stream_broke(&name);
            }
            _ => {}
        }
    }

    /// A client's next request, or the same again if nobody answered.
    pub fn ask(&mut self, index: usize) {
        let Some(control) = &self.control else { return self.after(ASK_AGAIN_MS, Happening::Client { index }) };
        let (client, org) = (&self.clients[index], self.org);
        let render: Render = Arc::new(|picture| picture.run.id.to_string().into_bytes());
        let key = Some(client.key(org));
        let answer = match (client.run, client.wishes.last()) {
            (None, _) => now(control.engine.submit(client.submission(org), key, render)),
            (Some(run), Some((_, action))) => now(control.engine.act_on(org, run, *action, key, render)),
            (Some(_), None) => return,
        };
        let asked = client.wishes.last().filter(|_| client.run.is_some()).map(|(_, action)| *action);
        self.note(format_args!(
            "client {index} asks {asked:?}: {}",
            match &answer {
                Ok(answer) => format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)),
                Err(failure) => failure.to_string(),
            }
        ));
        match (answer, asked) {
            (Err(Failure::Trouble(_)), _) => return self.after(ASK_AGAIN_MS, Happening::Client { index }),
            (Ok(answer), None) => {
                let id = String::from_utf8(answer.body).ok().and_then(|text| text.parse().ok());
                self.clients[index].run = id;
            }
            (Err(Failure::Refused(refused)), None) => {
                self.complain(Promise::Safe, format!("a good run was refused: {refused}"))
            }
            (result, Some(action)) => {
                self.clients[index].wishes.pop();
                self.clients[index].retries += i64::from(result.is_ok() && matches!(action, Action::Retry { .. }));
            }
        }
        if let Some((at, _)) = self.clients[index].wishes.last() {
            let ms = (at - self.now.ms()).max(0);
            self.after(ms, Happening::Client { index });
        }
    }

    /// The server pushes the new document down the runner's open stream.
    pub fn tell(&mut self, instance: InstanceId) {
        let Some(control) = &self.control else { return };
        let found = self.machines.iter().find(|(_, machine)| {
            machine.process.as_ref().is_some_and(|process| process.streaming && process.instance == Some(instance))
        });
        let Some((name, process)) = found.map(|(name, machine)| (name.clone(), machine.process_no)) else { return };
        if let Ok(desired) = now(control.engine.desired(instance)) {
            let ms = self.chance.between(0, 50);
            self.after(ms, Happening::Told { name, process, desired: Box::new(desired) });
        }
    }
}

/// How long a world may need to end everything once nothing goes wrong any more.
pub const ENOUGH_MS: i64 = 150 * MINUTE;
