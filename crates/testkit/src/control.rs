//! The simulated control plane: starts, renews leases, is frozen, killed, and started again on the same database; and the faults
//! of it and its machines. Its behaviour is the real engine's; this file only calls the engine as the server would.

use crate::faults::Kind;
use crate::process::{Process, SECOND, SERVER};
use crate::sim::Promise;
use crate::time::now;
use crate::world::{Happening, World};
use engine::work::CLAIMED_AT_ONCE;
use model::time::{HOUR, MINUTE, SECOND as A_SECOND};
use model::{Failure, InstanceId, Refused};
use store::WorkClass;

const BEAT_EVERY_MS: i64 = store::worker::RENEW_EVERY_MS;
/// A connection that is dead for longer than this is found out.
const STREAM_TIMEOUT_MS: i64 = 30 * A_SECOND;

impl World {
    pub fn start_process(&mut self, process: usize) {
        if self.processes[process].is_some() {
            return;
        }
        self.boots += 1;
        self.fate.set_dead(process, false);
        self.fate.enter(process);
        self.unsettle(0); // items that became due while no process ran are overdue at the first commit
        let engine = crate::process::engine(
            &self.config,
            &self.far_of(process),
            &self.tool_of(process),
            &self.store,
            !self.has_second,
        );
        let started = now(async {
            let worker = engine.start_worker(["server", "second"][process].to_owned()).await?;
            engine.beat(&worker).await?;
            engine.arm_sweep().await?;
            engine.arm_scans().await?;
            if process == SERVER {
                engine.look_for_everyone().await?;
            }
            Ok::<_, Failure>(worker)
        });
        let boot = self.boots;
        self.note(format_args!("process {process} starts, boot {boot}: {}", started.is_ok()));
        let Ok(worker) = started else { return self.bury(process, A_SECOND) };
        self.processes[process] = Some(Process::new(engine, worker, boot));
        self.after(BEAT_EVERY_MS, Happening::Beat { process, boot });
    }

    /// The process is gone, with all it had in memory and every connection.
    pub fn bury(&mut self, process: usize, away_ms: i64) {
        self.note(format_args!("process {process} is dead, for {away_ms}"));
        self.processes[process] = None;
        self.fate.set_dead(process, true);
        self.fate.unsettle(0);
        self.after(away_ms, Happening::Restart { process });
        if process == SERVER {
            let names: Vec<_> = self.machines.keys().cloned().collect();
            names.iter().for_each(|name| self.stream_broke(name));
        }
    }

    pub fn beat(&mut self, which: usize, boot: u64) {
        let now_ms = self.now.ms();
        let Some(process) = self.processes[which].as_mut().filter(|process| process.boot == boot) else { return };
        if process.frozen_until_ms > now_ms {
            let ms = process.frozen_until_ms - now_ms;
            return self.after(ms, Happening::Beat { process: which, boot });
        }
        process.beats += 1;
        let (engine, worker, flush) = (process.engine.clone(), process.worker.clone(), process.beats.is_multiple_of(2));
        self.fate.enter(which);
        let beaten = now(async {
            engine.beat(&worker).await?;
            if flush { engine.flush_presence().await } else { Ok(()) }
        });
        self.unless_troubled(which, beaten, "beat");
        self.net[which] = self.now.ms() < self.fate.unsettled_until_ms();
        self.after(BEAT_EVERY_MS, Happening::Beat { process: which, boot });
        if which == SERVER && std::mem::take(&mut self.rescan) {
            let streaming = self.machines.values().filter_map(|m| m.process.as_ref().filter(|p| p.streaming)?.instance);
            streaming.collect::<Vec<_>>().into_iter().for_each(|instance| self.tell(instance));
        }
    }

    /// Every process claims what is due and goes on with what is under way. True if anything was claimed or ended.
    pub fn turn(&mut self) -> bool {
        // The order of the two processes alternates.
        let first = (self.auditor.commits() % 2) as usize;
        let busy = self.turn_of(first);
        self.turn_of(1 - first) || busy
    }

    fn turn_of(&mut self, which: usize) -> bool {
        let now_ms = self.now.ms();
        let Some(process) = self.processes[which].as_mut().filter(|p| p.frozen_until_ms <= now_ms) else {
            return false;
        };
        self.fate.enter(which);
        let mut busy = process.go_on(&self.fate.dead[which]);
        let seems_due = self.auditor.next_due().is_some_and(|due| due.ms() <= self.now.wall_ms());
        if (seems_due || std::mem::take(&mut self.net[which])) && !self.fate.is_dead(which) {
            for class in WorkClass::ALL {
                let Some(process) = self.processes[which].as_mut().filter(|_| !self.fate.is_dead(which)) else { break };
                let claimed = now(process.engine.claim(&process.worker, class, CLAIMED_AT_ONCE));
                self.auditor.claimed();
                match claimed {
                    Ok(items) => {
                        busy |= !items.is_empty();
                        for item in items {
                            process.begin(item);
                            let what = format_args!("{which} claims {} {}", item.kind.as_str(), item.subject);
                            self.trace.note(now_ms - crate::world::BEGINNING_MS, what);
                        }
                    }
                    // It stood still for too long, and renews its lease first.
                    Err(Failure::Refused(Refused::Stale { .. })) => {}
                    Err(failure) => self.unless_troubled(which, Err(failure), "claim"),
                }
            }
        }
        if self.fate.is_dead(which) && self.processes[which].is_some() {
            let away_ms = self.chance.pick(&[0, A_SECOND, 10 * A_SECOND, 40 * A_SECOND]);
            self.bury(which, away_ms);
            return true;
        }
        busy
    }

    /// A fault happened: overdue items are not reported for a while, and workers look for items without a holder.
    pub fn unsettle(&mut self, ms: i64) {
        self.auditor.excuse();
        self.fate.unsettle(ms);
    }

    /// Trouble is fine when the process died of it, or the disk was made to refuse; otherwise nothing could have failed.
    pub fn unless_troubled(&mut self, process: usize, result: Result<(), Failure>, what: &str) {
        let troubled = self.fate.was_troubled();
        if let Err(failure) = result
            && !self.fate.is_dead(process)
            && !(troubled && matches!(failure, Failure::Trouble(_)))
        {
            self.complain(Promise::Safe, format!("{what} failed: {failure}"));
        }
    }

    pub fn strike(&mut self, kind: Kind, given_ms: Option<i64>) {
        let luck = self.faults.strikes(kind);
        let Some(mut luck) = luck.or(given_ms.map(|_| crate::chance::Chance::new(0))) else { return };
        let mut long = |choice: &[i64]| given_ms.unwrap_or_else(|| luck.pick(choice));
        let now_ms = self.now.ms();
        match kind {
            Kind::Outage => {
                let ms = long(&[A_SECOND, 25 * A_SECOND, 2 * MINUTE, 20 * MINUTE, HOUR]);
                self.note(format_args!("outage of {ms}"));
                if self.processes[SERVER].is_some() {
                    self.bury(SERVER, ms);
                }
            }
            Kind::DatabaseLost => self.lose_database(long(&crate::loss::AWAY_MS)),
            Kind::Upgrade => self.upgrade(),
            Kind::Frozen => self.freeze(SERVER, long(&[5 * A_SECOND, 45 * A_SECOND, 10 * MINUTE, HOUR])),
            Kind::SecondFrozen => self.freeze(SECOND, long(&[5 * A_SECOND, 45 * A_SECOND, 10 * MINUTE])),
            Kind::SecondKilled if self.processes[SECOND].is_some() => {
                self.bury(SECOND, long(&[A_SECOND, MINUTE, 20 * MINUTE]))
            }
            Kind::DiskFull => {
                let ms = long(&[A_SECOND, 20 * A_SECOND, 3 * MINUTE, 15 * MINUTE]);
                self.note(format_args!("the disk is full for {ms}"));
                self.fate.disk_is_full_until(now_ms + ms);
                self.after(ms, Happening::Thaw);
            }
            Kind::ClockForward => self.set_clock(long(&[2 * A_SECOND, 45 * A_SECOND, 10 * MINUTE, HOUR, 25 * HOUR])),
            Kind::ClockBack => self.set_clock(-long(&[2 * A_SECOND, 45 * A_SECOND, 10 * MINUTE, HOUR])),
            Kind::Suspended => {
                let ms = long(&[MINUTE, 10 * MINUTE, HOUR]);
                [SERVER, SECOND].into_iter().for_each(|process| self.freeze(process, ms));
                let names: Vec<String> = self.machines.keys().cloned().collect();
                names.iter().for_each(|name| self.put_to_sleep(name, ms));
            }
            _ => self.strike_machine(kind, long(&[5 * A_SECOND, 70 * A_SECOND, 4 * MINUTE, 18 * MINUTE]), &mut luck),
        }
    }

    fn strike_machine(&mut self, kind: Kind, ms: i64, luck: &mut crate::chance::Chance) {
        if kind == Kind::SlowFollower {
            return self.slow_down(ms, luck);
        }
        let names: Vec<String> =
            self.machines.iter().filter(|(_, m)| m.process.is_some()).map(|(n, _)| n.clone()).collect();
        if names.is_empty() {
            return;
        }
        let name = names[luck.between(0, names.len() as i64) as usize].clone();
        self.note(format_args!("{kind:?} {name}"));
        let machine = self.machines.get_mut(&name).expect("it was just seen");
        let until_ms = self.now.ms() + ms;
        match kind {
            Kind::KillRunner => self.far.near.kill_runner(&name),
            Kind::KillKeeper => self.kill_keepers(&name),
            Kind::DestroyMachine => self.far.near.destroy(&name),
            Kind::MachineAsleep => self.put_to_sleep(&name, ms),
            Kind::CutUp | Kind::CutDown => {
                if kind == Kind::CutUp {
                    machine.cut_up_until_ms = until_ms;
                } else {
                    machine.cut_down_until_ms = until_ms;
                }
                if ms > STREAM_TIMEOUT_MS {
                    self.stream_broke(&name);
                }
            }
            _ => {}
        }
    }

    fn upgrade(&mut self) {
        self.note(format_args!("an upgrade"));
        if let (Some(engine), Some(server)) = (self.serving(), &self.processes[SERVER]) {
            let stopped = now(engine.stop_worker(&server.worker));
            self.unless_troubled(SERVER, stopped, "an orderly end");
            self.bury(SERVER, 3 * A_SECOND);
        }
    }

    fn freeze(&mut self, which: usize, ms: i64) {
        self.note(format_args!("process {which} stands still for {ms}"));
        if let Some(process) = &mut self.processes[which] {
            process.frozen_until_ms = process.frozen_until_ms.max(self.now.ms() + ms);
            self.fate.unsettle(0);
            self.after(ms, Happening::Thaw);
        }
    }

    fn put_to_sleep(&mut self, name: &str, ms: i64) {
        self.note(format_args!("{name} sleeps for {ms}"));
        let now_ms = self.now.ms();
        self.machines.get_mut(name).expect("it was just seen").sleep(ms, now_ms);
    }

    fn set_clock(&mut self, ms: i64) {
        self.note(format_args!("the clock jumps by {ms}"));
        self.now.jump(ms);
        self.set_back_ms += (-ms).max(0);
        self.unsettle((-ms).max(0));
    }

    /// The server pushes the new document down the runner's open stream.
    pub fn tell(&mut self, instance: InstanceId) {
        let Some(engine) = self.serving() else {
            self.rescan = true;
            return;
        };
        let found = self.machines.iter().find(|(_, machine)| {
            machine.process.as_ref().is_some_and(|process| process.streaming && process.instance == Some(instance))
        });
        let Some((name, process)) = found.map(|(name, machine)| (name.clone(), machine.process_no)) else { return };
        if let Ok(desired) = now(engine.desired(instance)) {
            let ms = match self.faults.strikes(Kind::Late) {
                Some(mut luck) => luck.between(A_SECOND, 20 * A_SECOND),
                None => self.chance.between(0, 50),
            };
            self.after(ms, Happening::Told { name, process, desired: Box::new(desired) });
        }
    }
}
