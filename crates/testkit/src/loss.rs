//! The loss of the database, and what people do then: they have what still runs tracked again, and end what nothing will track any more by
//! typing its id. Machines, what runs there, and what users remember stay.

use crate::book::Situation;
use crate::machine::{Machine, Stage};
use crate::process::{SECOND, SERVER, engine};
use crate::sim::Promise;
use crate::time::now;
use crate::world::{World, open_store};
use adapters::fake::MachineState;
use adapters::{Handle, Provider as _};
use engine::Engine;
use engine::orphan::{Import, ImportOutcome, OrphanOverview};
use engine::store::unlisted::{Unlisted, UnlistedJob};
use model::orphan::{Listed, ListedStatus, OrphanSection, ResourceType};
use model::run::Run;
use model::time::SECOND as A_SECOND;
use model::{Failure, RunId, Timestamp};
use std::sync::{Arc, Mutex};

/// Orphans that people look at in one go.
const LOOKED_AT: i64 = 100;

/// What its provider lists beside ours: of another control plane, and with a name that tells nothing.
pub fn strangers() -> [Listed; 2] {
    ["repl-0therpl4-9ix-1h2i", "repl-of-an-older-time"].map(|name| Listed {
        kind: ResourceType::Instance,
        name: name.to_owned(),
        handle: format!("i-{name}"),
        nonce: None,
        status: ListedStatus::Running,
        instance_type: None,
        region: "here".to_owned(),
        created_at: Some(Timestamp(1)),
        ip: None,
        last_seen: None,
        price_micro: Some(1),
    })
}

/// What imports were answered, the first ones and those that followed at once.
pub type Told = Arc<Mutex<Vec<(bool, Result<Vec<Import>, Failure>)>>>;

impl Machine {
    /// What its runner says of itself to a control plane that may not know it.
    pub fn introduction(&self) -> Unlisted {
        let job = |(&(job, epoch), work): (&crate::machine::Key, &crate::machine::Work)| UnlistedJob {
            job,
            epoch,
            started: work.began_ms.is_some(),
            ended: work.stage == Stage::Ended,
            log_from: work.acknowledged,
            stub: Some(work.stub.clone()),
        };
        Unlisted {
            name: self.boot.name.clone(),
            nonce: self.boot.nonce.clone(),
            host: "sim".to_owned(),
            version: "sim".to_owned(),
            jobs: self.works.iter().map(job).collect(),
            seen_at: Timestamp(0),
        }
    }

    /// Something runs here that will come to its end by itself. What was paused with its plan will not: the plan is lost.
    fn goes_on(&self) -> bool {
        self.works.values().any(|work| work.stage != Stage::Ended)
            || self.agents.values().any(|work| work.is_working() && !work.still)
    }

    /// Something runs here, or has ended and was not told.
    pub fn is_needed(&self) -> bool {
        self.is_working()
            || self.works.values().any(|work| !work.facts.is_empty())
            || self.agents.values().any(|work| !work.facts.is_empty())
    }
}

impl World {
    /// Every process dies, and the next ones find an empty database of the same installation.
    pub fn lose_database(&mut self, away_ms: i64) {
        if self.database_lost {
            return;
        }
        self.note(format_args!("the database is lost"));
        self.database_lost = true;
        for process in [SERVER, SECOND] {
            if self.processes[process].is_some() {
                self.bury(process, away_ms);
            }
        }
        self.fate.leave();
        let next = open_store(&self.now, &self.fate, &self.auditor, self.now.wall_ms());
        self.lost_store = Some(std::mem::replace(&mut self.store, next));
        self.tool.store = self.store.clone();
        let outside = engine(&self.config, &self.far, &self.tool, &self.store, false);
        self.auditor.begin(outside.clone());
        self.orgs = ["one", "two"].map(|name| now(outside.ensure_org(name)).expect("an org is made"));
        self.clients.iter_mut().for_each(|client| client.lost = client.run);
        self.followers.iter_mut().for_each(|follower| follower.gone = true);
        self.tool.book().forget_names();
        self.unsettle(0);
    }

    /// A person has what was lost tracked again, twice, has providers listed, and ends what nothing will track any more.
    pub fn recover(&mut self, serving: &Engine) {
        let heard = std::mem::take(&mut *self.told.lock().expect("one thread"));
        for (again, told) in heard {
            self.hear_of_imports(again, told);
        }
        self.forget_what_is_gone();
        for orphan in now(serving.orphans(i64::MAX, LOOKED_AT)).unwrap_or_default() {
            self.end_unless_needed(serving, &orphan);
            if self.fate.is_dead(SERVER) {
                return;
            }
        }
        // One request at a time, which may take as long as its provider does.
        let (engine, told) = (serving.clone(), self.told.clone());
        if let Some(server) = self.processes[SERVER].as_mut().filter(|_| Arc::strong_count(&self.told) == 2) {
            server.ask(async move {
                for again in [false, true] {
                    let imported = engine.import("duty".into(), None).await;
                    told.lock().expect("one thread").push((again, imported));
                }
                let _ = engine.scan_now(None).await; // what it found is read next time
            });
        }
    }

    fn hear_of_imports(&mut self, again: bool, told: Result<Vec<Import>, Failure>) {
        let all = match told {
            Ok(all) => all,
            Err(Failure::Trouble(_)) => return,
            Err(refused) => return self.complain(Promise::Safe, format!("an import was refused: {refused}")),
        };
        for import in all {
            self.note(format_args!("{import:?}"));
            if let ImportOutcome::Imported(it) = import.outcome {
                self.tool.book().meets(Situation::Imported);
                self.imports.push(it.run);
                if self.imports.iter().filter(|run| **run == it.run).count() > 1 {
                    self.complain(Promise::Safe, format!("{} was imported twice, again: {again}", it.run));
                }
            }
        }
    }

    /// A person types the id of a machine of ours that no row knows and on which nothing goes on.
    fn end_unless_needed(&mut self, serving: &Engine, orphan: &OrphanOverview) {
        let id = &orphan.orphan.listed.handle;
        let ours = matches!(orphan.section, OrphanSection::CurrentSession | OrphanSection::OtherSessions);
        // While its end is under way the person does not ask again.
        let is_ending = orphan.orphan.ending.is_some();
        if !ours || is_ending || self.machines.get(id).is_some_and(Machine::goes_on) {
            return;
        }
        let ended = now(serving.end_orphan((self.orgs[0], "duty".into()), (Some("fake"), id), id, false));
        self.note(format_args!("{id} is to end by a person's word: {}", ended.is_ok()));
        self.tool.book().meets(Situation::OrphanEnded);
        self.fate.was_troubled();
    }

    /// Real providers forget what has ended by themselves.
    fn forget_what_is_gone(&mut self) {
        for (name, machine) in self.far.near.machines() {
            if machine.state == MachineState::Gone && self.row_of(&name).is_none() {
                let _ = now(self.far.near.forget(&Handle(name)));
            }
        }
    }

    pub fn row_of(&self, name: &str) -> Option<model::instance::Instance> {
        let name = name.to_owned();
        let row = now(self.store.read("sim.instance", move |tx| store::instance::by_name(tx, &name)));
        row.expect("a database in memory is read")
    }

    /// A runner that no row knows, with something to do, was told to leave.
    pub fn turned_away(&mut self, name: &str, why: &Failure) {
        if self.database_lost && self.machines[name].is_needed() && self.row_of(name).is_none() {
            self.complain(Promise::Safe, format!("{name} has work, and was turned away: {why}"));
        }
    }

    /// Whatever is listed and was not made by us is there until a person says otherwise.
    pub fn judge_strangers(&mut self) {
        let placed = self.far.near.placed();
        for stranger in self.strangers.clone() {
            if !placed.contains_key(&stranger) {
                self.complain(Promise::Safe, format!("{stranger} was ended without a person's word"));
            }
        }
    }

    /// It was accepted before the database was lost, and is there only if it was imported.
    pub fn is_lost(&self, run: RunId) -> bool {
        self.clients.iter().any(|client| client.lost == Some(run))
    }

    /// Where the log of an imported run begins, as its import has said.
    pub fn log_from(&self, run: &Run) -> i64 {
        let (org, id) = (run.org, run.id);
        let told = now(self.store.read("sim.events", move |tx| store::event::after(tx, org, Some(id), 0, 100)));
        let told = told.expect("a database in memory is read");
        let imported = told.iter().find(|event| event.kind == "run.imported").expect("an import is told");
        let body: serde_json::Value = serde_json::from_str(&imported.body.to_string()).expect("events are JSON");
        body["log_from"].as_i64().expect("it says where the log begins")
    }
}

/// How long the control plane is away with its database.
pub const AWAY_MS: [i64; 3] = [A_SECOND, 20 * A_SECOND, 5 * 60 * A_SECOND];
