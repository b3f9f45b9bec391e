//! Checks the database after every commit, outside of the simulated processes: the invariants of each run that the commit touched.
//! Only reads, and survives the crash of any simulated process.

use crate::time::{Now, now};
use engine::Engine;
use engine::audit::Broken;
use model::{InstanceId, RunId, Timestamp};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use store::{Hint, Observer, WorkClass};

/// After the control plane was away, or its clock was set, what waited is overdue and is worked on next.
const EXCUSED_MS: i64 = 2 * model::time::MINUTE;

/// What is seen of the commits of one world. Cloning shares it.
#[derive(Clone)]
pub struct Auditor(Arc<Mutex<Inner>>);

struct Inner {
    now: Now,
    engine: Option<Engine>,
    next_hint: Box<dyn FnMut() -> Option<Hint> + Send>,
    commits: u64,
    /// Commits with hints, whether or not the hints arrived.
    news: u64,
    /// A commit was made without a hint: every known run is checked.
    untold: Arc<AtomicBool>,
    known: BTreeSet<RunId>,
    instances: BTreeSet<InstanceId>,
    complaints: Vec<String>,
    excused_until_ms: i64,
    /// Valid until an item is woken, finished or claimed.
    next_due: Option<Option<Timestamp>>,
}

impl Auditor {
    pub fn new(now: &Now) -> Auditor {
        Auditor(Arc::new(Mutex::new(Inner {
            now: now.clone(),
            engine: None,
            next_hint: Box::new(|| None),
            commits: 0,
            news: 0,
            untold: Arc::default(),
            known: BTreeSet::new(),
            instances: BTreeSet::new(),
            complaints: Vec::new(),
            excused_until_ms: 0,
            next_due: None,
        })))
    }

    /// For the store's options: the store does not keep its auditor alive, which keeps the store.
    pub fn observer(&self) -> Observer {
        let auditor: Weak<Mutex<Inner>> = Arc::downgrade(&self.0);
        Arc::new(move || {
            if let Some(auditor) = auditor.upgrade() {
                auditor.lock().expect("one thread").committed();
            }
        })
    }

    pub fn begin(&self, engine: Engine) {
        let mut receiver = engine.store.hints();
        let mut inner = self.lock();
        inner.next_hint = Box::new(move || {
            loop {
                match receiver.try_recv() {
                    Ok(hint) => return Some(hint),
                    Err(error) if error.to_string().contains("lagged") => {}
                    Err(_) => return None,
                }
            }
        });
        inner.engine = Some(engine);
        // What was known of an earlier database is not of this one.
        inner.known.clear();
        inner.instances.clear();
        inner.next_due = None;
    }

    pub fn engine(&self) -> Engine {
        self.lock().engine.clone().expect("the auditor has begun")
    }

    /// From now on what is overdue is forgiven for a while.
    pub fn excuse(&self) {
        let mut inner = self.lock();
        inner.excused_until_ms = inner.now.ms() + EXCUSED_MS;
    }

    /// Set where a commit's hints are lost with its author.
    pub fn untold(&self) -> Arc<AtomicBool> {
        self.lock().untold.clone()
    }

    /// Machines whose document was changed since the last call.
    pub fn changed_instances(&self) -> BTreeSet<InstanceId> {
        std::mem::take(&mut self.lock().instances)
    }

    pub fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().complaints)
    }

    pub fn commits(&self) -> u64 {
        self.lock().commits
    }

    pub fn news(&self) -> u64 {
        self.lock().news
    }

    /// When the earliest item without a holder is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        let mut inner = self.lock();
        if let Some(due) = inner.next_due {
            return due;
        }
        let engine = inner.engine.clone().expect("the auditor has begun");
        let due = |class| now(engine.next_due(class)).expect("a database in memory is read");
        let due = WorkClass::ALL.into_iter().filter_map(due).min();
        *inner.next_due.insert(due)
    }

    /// A worker has tried to claim due items; a claim sends no hint.
    pub fn claimed(&self) {
        self.lock().next_due = None;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("one thread")
    }
}

impl Inner {
    fn committed(&mut self) {
        self.commits += 1;
        let untold = self.untold.swap(false, Ordering::Relaxed);
        let mut touched = if untold { self.known.clone() } else { BTreeSet::new() };
        let (mut told, mut worked) = (untold, untold);
        while let Some(hint) = (self.next_hint)() {
            told |= !matches!(hint, Hint::Org(..) | Hint::Rows(_) | Hint::Orphans); // what pages show is no news to a run
            match hint {
                Hint::Run(run) => drop(touched.insert(run)),
                Hint::Instance(instance) => drop(self.instances.insert(instance)),
                Hint::Work(_) | Hint::Everything => worked = true,
                Hint::Logs(_)
                | Hint::RunLogs(_)
                | Hint::Offers(_)
                | Hint::Tokens
                | Hint::Providers
                | Hint::Orphans
                | Hint::Rows(_)
                | Hint::Org(..) => {}
            }
        }
        if worked {
            self.next_due = None;
        }
        self.news += u64::from(told);
        let Some(engine) = self.engine.clone() else { return };
        let excused = self.now.ms() < self.excused_until_ms;
        for run in touched {
            self.known.insert(run);
            let audit = now(engine.audit_run(run)).expect("a database in memory is read");
            let late = |broken: &Broken| broken.detail.contains("overdue");
            for broken in audit.broken.iter().filter(|it| !(late(it) && excused)) {
                self.complaints.push(format!("{}: {}: {}", broken.invariant, broken.subject, broken.detail));
            }
        }
    }
}
