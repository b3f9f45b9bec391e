//! What runners do in the simulated world: dial, beat, report, repeat until acknowledged. Messages are lost, doubled and late;
//! machines come and go with the provider. Speaks to the engine as the server's handlers do.

use crate::agent_machine::{AgentWork, CommandStage, Moves};
use crate::book::Situation;
use crate::faults::Kind;
use crate::machine::{Key, Later, Machine, Progress, Stage};
use crate::process::SERVER;
use crate::program::Program;
use crate::sim::Promise;
use crate::time::now;
use crate::truth::Execution;
use crate::world::{Happening, Report, World};
use adapters::fake::MachineState;
use engine::Engine;
use engine::desired::Desired;
use engine::runner::{Introduction, Taken, What};
use model::job::{JobReason, LifecycleError};
use model::step::StepTry;
use model::time::{MINUTE, SECOND};
use model::{Failure, InstanceId, JobId, Refused};
use std::collections::BTreeMap;

const HEARTBEAT_MS: i64 = 10 * SECOND;
/// A request that was not answered is sent again after this.
const RETRY_AFTER_MS: i64 = 5 * SECOND;
/// Without acknowledgement for so long, an idle runner ends (the ladder's last step).
const PANIC_MS: i64 = 15 * MINUTE;

impl World {
    /// Machines as the provider has them: new processes dial, dead ones fall silent, gone machines take everything along.
    pub fn meet_machines(&mut self) {
        let changes = self.far.near.changes();
        if self.met.replace(changes) == Some(changes) {
            return;
        }
        let real = self.far.near.machines();
        for (name, found) in &real {
            let boots_ms = self.boots_ms;
            let machine = self.machines.entry(name.clone()).or_insert_with(|| Machine::new(found.boot.clone()));
            match found.state {
                MachineState::Running if machine.starts < found.starts => {
                    machine.start_process(found.starts, self.now.ms());
                    let process = machine.process_no;
                    let ms = if boots_ms > 0 { self.chance.between(0, boots_ms) } else { 0 };
                    self.note(format_args!("{name} starts, process {process}"));
                    self.after(ms, Happening::Dial { name: name.clone(), process });
                }
                MachineState::Queued | MachineState::Running | MachineState::Going => {}
                MachineState::RunnerGone => self.process_ended(name),
                MachineState::Gone => self.machine_gone(name),
            }
        }
        let forgotten: Vec<String> = self.machines.keys().filter(|name| !real.contains_key(*name)).cloned().collect();
        for name in forgotten {
            self.machine_gone(&name);
            self.machines.remove(&name);
        }
    }

    fn process_ended(&mut self, name: &str) {
        if self.machines.get(name).is_some_and(|machine| machine.process.is_some()) {
            self.note(format_args!("the runner of {name} is gone"));
            self.stream_broke(name);
            self.machines.get_mut(name).expect("it was just seen").process = None;
        }
    }

    /// Nothing is left but its name, for as long as the provider lists it.
    fn machine_gone(&mut self, name: &str) {
        self.process_ended(name);
        let Some(machine) = self.machines.get_mut(name).filter(|machine| !machine.gone) else { return };
        machine.gone = true;
        let works = std::mem::take(&mut machine.works);
        let agents = std::mem::take(&mut machine.agents);
        for step in agents.values().flat_map(|work| work.commands.keys()) {
            self.truth.command_ended(*step);
        }
        self.note(format_args!("{name} is gone"));
        for (job, epoch) in works.into_keys() {
            self.truth.ended(job, epoch, self.now.ms(), None);
        }
    }

    pub fn kill_keepers(&mut self, name: &str) {
        let machine = self.machines.get(name).expect("it was just seen");
        let keys: Vec<Key> = machine.works.iter().filter(|(_, w)| w.stage == Stage::Running).map(|(k, _)| *k).collect();
        let running = |(key, work): (&Key, &AgentWork)| {
            let running = work.commands.iter().filter(|(_, command)| command.stage == CommandStage::Running);
            running.map(|(step, _)| (*key, *step)).collect::<Vec<_>>()
        };
        let commands: Vec<(Key, StepTry)> = machine.agents.iter().flat_map(running).collect();
        for key in keys {
            self.work(name, key, Progress::Broke(LifecycleError::KeeperDied));
        }
        for (key, step) in commands {
            self.work(name, key, Progress::Command { step, moves: Moves::KeeperDied });
        }
    }

    /// The control plane or the runner finds its connection closed; the runner dials again.
    pub fn stream_broke(&mut self, name: &str) {
        let ms = self.chance.between(100, 3000);
        let Some(machine) = self.machines.get_mut(name) else { return };
        let Some(process) = machine.process.as_mut() else { return };
        process.in_flight = None;
        let (was, instance) = (std::mem::take(&mut process.streaming), process.instance);
        let number = machine.process_no;
        self.after(ms, Happening::Dial { name: name.to_owned(), process: number });
        if let (true, Some(instance)) = (was, instance) {
            let boot = self.processes[SERVER].as_ref().map_or(0, |server| server.boot);
            self.stream_closed(instance, boot);
        }
    }

    /// The server finds the stream closed; one that stands still finds it when it goes on.
    pub fn stream_closed(&mut self, instance: InstanceId, boot: u64) {
        let Some(server) = self.processes[SERVER].as_ref().filter(|server| server.boot == boot) else { return };
        let frozen_ms = server.frozen_until_ms - self.now.ms();
        if frozen_ms > 0 {
            return self.after(frozen_ms, Happening::StreamClosed { instance, boot });
        }
        if let Some(engine) = self.serving() {
            engine.context.presence.stream(instance, false);
            let closed = now(engine.stream_closed(instance));
            self.unless_troubled(SERVER, closed, "a closed stream");
        }
    }

    /// The engine of the serving process, if a message of the machine reaches it now.
    pub fn reaches(&mut self, name: &str) -> Option<Engine> {
        let now_ms = self.now.ms();
        let cut_off = self.machines.get(name).is_none_or(|machine| machine.cut_up_until_ms > now_ms);
        let lost = self.faults.strikes(Kind::Lost).is_some();
        if cut_off || lost { None } else { self.serving() }
    }

    /// Whether what is sent to the machine now arrives there.
    pub fn arrives(&mut self, name: &str) -> bool {
        let now_ms = self.now.ms();
        let cut_off = self.machines.get(name).is_none_or(|machine| machine.cut_down_until_ms > now_ms);
        self.faults.strikes(Kind::Lost).is_none() && !cut_off
    }

    fn is_process(&self, name: &str, process: u64) -> bool {
        self.machines.get(name).is_some_and(|machine| machine.process_no == process && machine.process.is_some())
    }

    pub fn dial(&mut self, name: &str, number: u64) {
        if !self.is_process(name, number) || self.machines[name].process.as_ref().is_some_and(|p| p.streaming) {
            return;
        }
        let again = Happening::Dial { name: name.to_owned(), process: number };
        let Some(engine) = self.reaches(name) else { return self.after(RETRY_AFTER_MS, again) };
        let (boot, introduction) = (self.machines[name].boot.clone(), self.machines[name].introduction());
        let answer = now(async {
            engine.check_runner(&boot.name, &boot.token)?;
            let instance = engine.listed(introduction).await?;
            let who = Introduction {
                name: boot.name.clone(),
                nonce: boot.nonce.clone(),
                version: "sim".to_owned(),
                host: "sim".to_owned(),
                containment: None,
                sandbox: None,
            };
            let instance = engine.register(instance.id, who).await?;
            engine.desired(instance.id).await
        });
        self.note(format_args!(
            "{name} dials: {}",
            answer.as_ref().map_or_else(ToString::to_string, |d| d.instance.status.to_string())
        ));
        match answer {
            Ok(_) if !self.arrives(name) => self.after(RETRY_AFTER_MS, again),
            Ok(desired) => self.connected(&engine, name, number, &desired),
            Err(Failure::Refused(Refused::Unlisted { .. })) if self.machines[name].is_needed() => {
                self.tool.book().meets(Situation::Unlisted);
                let process = self.machines.get_mut(name).and_then(|m| m.process.as_mut()).expect("it just dialled");
                // For a day this is no silence.
                (process.session, process.acknowledged_ms) = (0, self.now.ms());
                self.after(RETRY_AFTER_MS, again);
            }
            Err(failure @ Failure::Refused(_)) => {
                self.turned_away(name, &failure);
                self.far.near.kill_runner(name); // its registration is refused: the machine is to end
            }
            Err(Failure::Trouble(_)) => self.after(RETRY_AFTER_MS, again),
        }
    }

    fn connected(&mut self, engine: &Engine, name: &str, number: u64, desired: &Desired) {
        let now_ms = self.now.ms();
        let process = self.machines.get_mut(name).and_then(|m| m.process.as_mut()).expect("it just dialled");
        let first = process.instance.is_none();
        (process.instance, process.session) = (Some(desired.instance.id), desired.instance.session);
        (process.streaming, process.acknowledged_ms) = (true, now_ms);
        process.version = desired.instance.desired_version; // what a registration is answered with counts, whatever came before
        engine.context.presence.stream(desired.instance.id, true);
        if first {
            self.after(0, Happening::Heartbeat { name: name.to_owned(), process: number });
        }
        self.machines.get_mut(name).expect("it just dialled").tell_ends_again(desired);
        self.told(name, number, desired);
        self.send(name);
    }

    pub fn told(&mut self, name: &str, number: u64, desired: &Desired) {
        if !self.is_process(name, number) {
            return;
        }
        let machine = self.machines.get_mut(name).expect("it was just seen");
        let cut_ms = machine.cut_down_until_ms - self.now.ms();
        if cut_ms > 0 {
            // The stream stands still; what is in it comes later, unless it is broken by then.
            let (name, desired) = (name.to_owned(), Box::new(desired.clone()));
            return self.after(cut_ms, Happening::Told { name, process: number, desired });
        }
        let later = machine.obey(desired, &mut self.chance);
        if desired.shutdown {
            self.note(format_args!("{name} is told to end"));
            let keys: Vec<Key> = machine_works(&self.machines[name]);
            for key in keys {
                self.work(name, key, Progress::Ended { exit_code: None, reason: JobReason::TerminatedByServer });
            }
            self.disown_agents(name, |_, _| true, None);
            return self.far.near.kill_runner(name);
        }
        self.schedule(name, later);
        self.send(name);
    }

    fn schedule(&mut self, name: &str, later: Vec<Later>) {
        for (ms, key, progress) in later {
            self.after(ms, Happening::Work { name: name.to_owned(), key, progress });
        }
    }

    pub fn heartbeat(&mut self, name: &str, number: u64) {
        if !self.is_process(name, number) {
            return;
        }
        let (now_ms, heard_at) = (self.now.ms(), model::Timestamp(self.now.wall_ms()));
        if let Some(engine) = self.reaches(name) {
            let boot = self.machines[name].boot.clone();
            let process = self.machines[name].process.as_ref().expect("it was just seen");
            let (session, observed) = (process.session, process.version);
            let beaten = now(async {
                let instance = engine.recognise(&boot.name, &boot.token).await?;
                if instance.session == session {
                    engine.heartbeat(&instance, observed, heard_at).await?;
                }
                Ok::<_, Failure>(instance.session == session)
            });
            match beaten {
                Ok(_) if !self.arrives(name) => {}
                Ok(true) => {
                    self.machines.get_mut(name).and_then(|m| m.process.as_mut()).expect("as before").acknowledged_ms =
                        now_ms
                }
                // Its own registration, whose answer was lost, has made it old.
                Ok(false) => self.stream_broke(name),
                Err(_) => {}
            }
        }
        let machine = &self.machines[name];
        let silent_ms = machine.process.as_ref().map_or(0, |p| now_ms - p.acknowledged_ms);
        if silent_ms > PANIC_MS {
            for key in machine.stops_without_control() {
                self.work(name, key, Progress::Ended { exit_code: None, reason: JobReason::ControlLost });
            }
            if !self.machines[name].is_working() {
                self.note(format_args!("{name} panics"));
                return self.far.near.kill_runner(name);
            }
        }
        self.send(name);
        self.after(HEARTBEAT_MS, Happening::Heartbeat { name: name.to_owned(), process: number });
    }

    /// Everything that is not acknowledged, at once if nothing is in flight.
    fn send(&mut self, name: &str) {
        let Some(machine) = self.machines.get(name) else { return };
        let Some(process) = machine.process.as_ref().filter(|p| p.session > 0 && p.in_flight.is_none()) else { return };
        debug_assert!(process.instance.is_some(), "a session comes with an instance");
        let (facts, chunks, upto) = machine.report(self.now.ms());
        if facts.is_empty() && chunks.is_empty() {
            return;
        }
        let (number, process) = (self.number(), machine_no(&self.machines[name]));
        self.machines.get_mut(name).and_then(|m| m.process.as_mut()).expect("as before").in_flight = Some(number);
        self.after(RETRY_AFTER_MS, Happening::WaitedInVain { name: name.to_owned(), process, number });
        let report = Report { number, facts, chunks, upto };
        let copies = 1 + i64::from(self.faults.strikes(Kind::Doubled).is_some());
        for _ in 0..copies {
            let ms = match self.faults.strikes(Kind::Late) {
                Some(mut luck) => luck.between(SECOND, 40 * SECOND),
                None => self.chance.between(0, 30),
            };
            self.after(ms, Happening::Arrived { name: name.to_owned(), process, report: Box::new(report.clone()) });
        }
    }

    /// A report reaches the control plane, perhaps after its sender has gone.
    pub fn arrived(&mut self, name: &str, process: u64, report: &Report) {
        let Some(machine) = self.machines.get(name) else { return };
        let boot = machine.boot.clone();
        let Some(engine) = self.reaches(name) else { return };
        let taken = now(async {
            let instance = engine.recognise(&boot.name, &boot.token).await?;
            engine.report(&instance, report.facts.clone(), report.chunks.clone()).await
        });
        let what: Vec<String> = report.facts.iter().map(|fact| format!("{} {:?}", fact.job, fact.what)).collect();
        self.note(format_args!("{name} reports {what:?} and {} chunks: {taken:?}", report.chunks.len()));
        match taken {
            Ok(taken) if self.arrives(name) => {
                let ms = self.chance.between(0, 30);
                let (number, upto) = (report.number, report.upto.clone());
                self.after(ms, Happening::Answered { name: name.to_owned(), process, number, upto, taken });
            }
            Ok(_) => {}
            Err(Failure::Trouble(_) | Failure::Refused(Refused::Unlisted { .. })) => {}
            Err(Failure::Refused(refused)) => {
                self.complain(Promise::Safe, format!("a report was refused as a whole: {refused}"))
            }
        }
    }

    pub fn answered(&mut self, name: &str, process: u64, number: u64, upto: &BTreeMap<Key, u64>, taken: &Taken) {
        if !self.is_process(name, process) {
            return;
        }
        let now_ms = self.now.ms();
        let machine = self.machines.get_mut(name).expect("it was just seen");
        let state = machine.process.as_mut().expect("it was just seen");
        state.acknowledged_ms = now_ms;
        if state.in_flight == Some(number) {
            state.in_flight = None;
        }
        for (key, last) in upto {
            if let Some(work) = machine.works.get_mut(key) {
                work.facts.retain(|(number, _)| number > last);
            }
            if let Some(work) = machine.agents.get_mut(key) {
                work.acknowledged(*last);
            }
        }
        machine.forget_delivered();
        for reach in &taken.log_offsets {
            let work = machine.agents.get_mut(&(reach.job, reach.epoch));
            if let Some(command) = work.and_then(|work| work.commands.get_mut(&reach.step)) {
                command.acknowledged = reach.offset;
            }
        }
        for (key, work) in &mut machine.works {
            if let Some(reach) = taken.log_offsets.iter().find(|reach| (reach.job, reach.epoch) == *key) {
                work.acknowledged = reach.offset.min(work.written);
            }
        }
        let refused: Vec<Key> = taken.refused.iter().map(|no| (no.job, no.epoch)).collect();
        for key in refused {
            self.work(name, key, Progress::Ended { exit_code: None, reason: JobReason::TerminatedByServer });
            if let Some(work) = self.machines.get_mut(name).and_then(|m| m.works.get_mut(&key)) {
                work.facts.clear();
                work.acknowledged = work.written;
            }
        }
        for no in &taken.refused {
            self.disown_agents(name, |job, epoch| (job, epoch) == (no.job, no.epoch), no.step);
        }
        self.send(name);
    }

    fn disown_agents(&mut self, name: &str, is_meant: impl Fn(JobId, i64) -> bool, which: Option<StepTry>) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        let meant = machine.agents.iter_mut().filter(|((job, epoch), _)| is_meant(*job, *epoch));
        let later: Vec<Later> = meant.flat_map(|(key, work)| work.disown(*key, which)).collect();
        self.schedule(name, later);
    }

    /// The files of a planned agent's job are there, or cannot be brought.
    fn agent_synced(&mut self, name: &str, key: Key) {
        let fails = self.faults.strikes(Kind::SyncFails).is_some();
        let Some(work) = self.machines.get_mut(name).and_then(|machine| machine.agents.get_mut(&key)) else { return };
        if std::mem::replace(&mut work.synced, true) || work.closed {
            return;
        }
        if fails {
            work.closed = true;
            let (reason, lifecycle_error) = (JobReason::ExecutorError, Some(LifecycleError::SyncFailed));
            work.fact(None, What::Closed { reason, message: None, lifecycle_error });
            self.note(format_args!("the files of {} cannot be brought to {name}", key.0));
        } else {
            work.fact(None, What::SyncComplete { blobs: 0 });
        }
        self.send(name);
    }

    /// Something happens to a command of a planned agent. What stands still goes on later.
    fn command(&mut self, name: &str, key: Key, step: StepTry, moves: Moves) {
        let now_ms = self.now.ms();
        let Some(work) = self.machines.get_mut(name).and_then(|machine| machine.agents.get_mut(&key)) else { return };
        let Some(stage) = work.commands.get(&step).map(|command| command.stage) else { return };
        let by_itself = matches!(moves, Moves::Began | Moves::Wrote | Moves::Ended { exit_code: Some(_), .. });
        if work.still && by_itself {
            return self.schedule(name, vec![(SECOND, key, Progress::Command { step, moves })]);
        }
        match (stage, moves) {
            (CommandStage::Waiting, Moves::Began) => {
                let (later, program) = (work.begin(key, step, now_ms), work.program(step));
                self.command_begins(name, key.0, step);
                self.schedule(name, later);
                self.start_program(name, program);
            }
            (CommandStage::Running, Moves::Wrote) => work.wrote(step),
            (CommandStage::Waiting | CommandStage::Running, Moves::Ended { .. } | Moves::KeeperDied) => {
                work.end(step, now_ms, moves);
                self.truth.command_ended(step);
                self.note(format_args!("{step} of {} ends on {name}: {moves:?}", key.0));
            }
            _ => return,
        }
        self.send(name);
    }

    /// Its effect is counted by the key under which the control plane has begun it.
    fn command_begins(&mut self, name: &str, job: JobId, step: StepTry) {
        self.note(format_args!("{step} of {job} begins on {name}"));
        // What was sent before the database was lost has its row there.
        let known = [Some(&self.store), self.lost_store.as_ref()].into_iter().flatten();
        let row = known.into_iter().find_map(|store| {
            let row = now(store.read("sim.step", move |tx| store::step::find(tx, step.id)));
            row.expect("a database in memory is read")
        });
        let Some(row) = row else {
            return self.complain(Promise::Safe, format!("{step} begins without a row"));
        };
        let Some(rows_key) = row.key.clone() else {
            return self.complain(Promise::Safe, format!("{step} begins without a key"));
        };
        let named = format!("{}/{}", row.run, row.identity.as_deref().unwrap_or_default());
        self.tool.book().is_called(&named, &rows_key);
        self.tool.book().happens(&rows_key, !row.may_be_repeated());
        if let Some(complaint) = self.truth.command_began(rows_key, job, step) {
            self.complain(Promise::Safe, complaint);
        }
    }

    fn start_program(&mut self, name: &str, program: Option<Program>) {
        if let Some(program) = program {
            self.after(0, Happening::Program { name: name.to_owned(), program: Box::new(program) });
        }
    }

    pub fn waited_in_vain(&mut self, name: &str, process: u64, number: u64) {
        if self.is_process(name, process) {
            let state = self.machines.get_mut(name).and_then(|m| m.process.as_mut()).expect("it was just seen");
            if state.in_flight == Some(number) {
                state.in_flight = None;
                self.send(name);
            }
        }
    }

    /// Something happens to a job by itself, whether a runner watches or not.
    pub fn work(&mut self, name: &str, key: Key, progress: Progress) {
        match progress {
            Progress::Command { step, moves } => return self.command(name, key, step, moves),
            Progress::Synced if self.machines.get(name).is_some_and(|machine| machine.agents.contains_key(&key)) => {
                return self.agent_synced(name, key);
            }
            _ => {}
        }
        let now_ms = self.now.ms();
        let Some(work) = self.machines.get_mut(name).and_then(|machine| machine.works.get_mut(&key)) else { return };
        let stage = work.stage;
        match (stage, progress) {
            (Stage::Syncing, Progress::Synced) if self.faults.strikes(Kind::SyncFails).is_some() => {
                work.broke(now_ms, LifecycleError::SyncFailed);
                self.truth.slot_failed(key.0, key.1);
                self.note(format_args!("the files of {} cannot be brought to {name}", key.0));
            }
            (Stage::Syncing | Stage::Running, Progress::Broke(error)) => {
                work.broke(now_ms, error);
                self.truth.ended(key.0, key.1, now_ms, None);
                self.truth.slot_failed(key.0, key.1);
                self.note(format_args!("{} breaks on {name}: {error}", key.0));
            }
            (Stage::Syncing, Progress::Synced) => {
                let (run, later, program) = (work.run, work.begin(key, now_ms), work.program());
                self.note(format_args!("{} begins on {name}", key.0));
                let execution = Execution {
                    run,
                    job: key.0,
                    epoch: key.1,
                    machine: name.to_owned(),
                    began_ms: now_ms,
                    ended_ms: None,
                    exit_code: None,
                };
                if let Some(complaint) = self.truth.began(execution) {
                    self.complain(Promise::Safe, complaint);
                }
                self.schedule(name, later);
                self.start_program(name, program);
            }
            (Stage::Running, Progress::Wrote) => work.write(),
            (Stage::Syncing | Stage::Running, Progress::Ended { exit_code, reason }) => {
                work.end(now_ms, exit_code, reason);
                if reason == JobReason::ControlLost {
                    self.truth.slot_failed(key.0, key.1);
                }
                self.truth.ended(key.0, key.1, now_ms, exit_code);
                self.note(format_args!("{} ends on {name}: {exit_code:?} {reason}", key.0));
            }
            _ => return,
        }
        self.send(name);
    }
}

fn machine_works(machine: &Machine) -> Vec<Key> {
    machine.works.keys().copied().collect()
}

fn machine_no(machine: &Machine) -> u64 {
    machine.process_no
}
