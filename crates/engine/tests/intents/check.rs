//! What must be true whenever nothing moves any more: the audit, money, machines, workflows. Judges only by rows and by the world.

use crate::bench::{Bench, now};
use adapters::fake::MachineState;
use model::instance::InstanceStatus;
use model::manifest::ManifestStatus;
use model::run::{RunReason, RunStatus};
use model::time::{HOUR, MINUTE};
use model::workflow::Intent;
use model::{Credits, RunId};
use store::EntryKind;

/// How a run ended, in one line a table can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub status: RunStatus,
    pub reason: Option<RunReason>,
    pub code: Option<String>,
}

impl Bench {
    pub fn end(&self, run: RunId) -> End {
        let run = self.run(run);
        End {
            status: run.status,
            reason: run.termination.map(|termination| termination.reason),
            code: run.last_error.map(|error| error.code),
        }
    }

    #[track_caller]
    pub fn expect_end(&self, run: RunId, status: RunStatus, code: Option<&str>) {
        let end = self.end(run);
        assert_eq!((end.status, end.code.as_deref()), (status, code), "{end:?}");
    }

    /// Every invariant of the tables, and nothing untracked in the world.
    #[track_caller]
    pub fn check(&self) {
        let audit = now(self.engine.audit()).unwrap();
        assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
        self.check_machines();
        self.check_workflows();
        let open = now(self.engine.open_runs()).unwrap();
        let balance = self.balance();
        let slots = now(self.engine.allocations(self.org, i64::MAX, 1000)).unwrap();
        let held: Credits = slots.iter().map(|snapshot| snapshot.allocation.account.left()).sum();
        assert!(
            open > 0 || balance.reserved == held,
            "nothing is open, {held} are set aside for holds, and {balance:?}"
        );
    }

    /// Every machine has an open row or is gone, and every open row is used, held or being terminated.
    #[track_caller]
    fn check_machines(&self) {
        for (name, machine) in self.provider.machines() {
            let row = now(self.store.read("check", move |tx| store::instance::by_name(tx, &name))).unwrap();
            let row = row.expect("the row stands before the machine");
            assert!(
                machine.state == MachineState::Gone || row.status.is_open(),
                "{} is {:?}, its row {}",
                row.name,
                machine.state,
                row.status
            );
        }
        for snapshot in now(self.engine.list_instances(self.org, i64::MAX, 1000)).unwrap() {
            let (id, status) = (snapshot.instance.id, snapshot.instance.status);
            if !status.is_open() {
                continue;
            }
            let slots = now(self.store.read("check", move |tx| store::allocation::kept_on(tx, id))).unwrap();
            let wanted = slots.iter().any(|slot| slot.status.is_live() || slot.status.as_str() == "AVAILABLE");
            let workflows = now(self.store.read("check", move |tx| store::workflow::of_instance(tx, id))).unwrap();
            let ending = workflows.iter().any(|w| w.intent == Intent::TerminateInstance && !w.status.is_end());
            assert_eq!(status == InstanceStatus::Terminating, ending, "{id} is {status}, ending: {ending}");
            assert!(wanted || ending, "{id} is {status}, and nobody wants it: {slots:?}");
        }
    }

    /// A workflow whose subject has ended has ended too, and its manifest is sealed with the same outcome.
    #[track_caller]
    fn check_workflows(&self) {
        for workflow in now(self.engine.workflows(self.org, i64::MAX, 1000)).unwrap() {
            let (manifest, _) = now(self.engine.manifest(self.org, workflow.manifest)).unwrap();
            let sealed = manifest.status != ManifestStatus::Draft;
            assert_eq!(sealed, workflow.status.is_end(), "{}: {manifest:?}", workflow.status);
            assert_eq!(manifest.outcome.is_some(), sealed);
            if let Some(job) = workflow.job {
                let job = now(self.store.read("check", move |tx| store::job::find(tx, job))).unwrap().unwrap();
                assert_eq!(job.status.is_end(), workflow.status.is_end(), "{job:?} {workflow:#?}");
            }
        }
    }

    /// The provider was never made to make one machine twice.
    #[track_caller]
    pub fn check_made_once(&self) {
        let made = self.provider.made();
        assert!(made.values().all(|times| *times == 1), "{made:?}");
    }

    /// All runs have ended: after holds and idle times nothing is left of any machine.
    #[track_caller]
    pub fn check_all_gone(&mut self) {
        self.check_all_gone_after(HOUR + 10 * MINUTE);
    }

    #[track_caller]
    pub fn check_all_gone_after(&mut self, ms: i64) {
        self.advance(ms);
        self.check();
        assert_eq!(self.provider.machines().keys().collect::<Vec<_>>(), Vec::<&String>::new(), "nobody forgets it");
        let open: Vec<_> = now(self.engine.list_instances(self.org, i64::MAX, 1000))
            .unwrap()
            .into_iter()
            .filter(|snapshot| snapshot.instance.status.is_open())
            .map(|snapshot| (snapshot.instance.id, snapshot.instance.status))
            .collect();
        assert!(open.is_empty(), "{open:?}");
        let held = now(self.engine.remains()).unwrap().held;
        assert_eq!(held, 0, "folders are kept for nobody");
    }

    /// (reserved, charged, refunded) of an attempt, by the ledger.
    pub fn money(&self, run: RunId, attempt: i64) -> (Credits, Credits, Credits) {
        let rows = now(self.engine.ledger_of_run(self.org, run, 0, 1000)).unwrap();
        let sum = |kind: EntryKind| {
            let rows = rows.iter().filter(|row| row.entry.kind == kind && row.entry.attempt == Some(attempt));
            rows.map(|row| row.entry.amount).sum()
        };
        (sum(EntryKind::Reserve), sum(EntryKind::Charge), sum(EntryKind::Refund))
    }

    pub fn events(&self, run: RunId) -> Vec<String> {
        now(self.engine.events(self.org, run, 0, 1000)).unwrap().1.into_iter().map(|event| event.kind).collect()
    }
}
