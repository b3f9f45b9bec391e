//! Counters of a store since it was opened: commits, and writes and reads by name. Exported by `/metrics`; not stored.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(crate) struct Tally {
    commits: AtomicU64,
    log_commits: AtomicU64,
    writes: Mutex<BTreeMap<&'static str, u64>>,
    reads: Mutex<BTreeMap<&'static str, u64>>,
    read_steps: AtomicU64,
}

/// The numbers at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions of the main database that were made durable; one may carry many writes.
    pub commits: u64,
    /// The same of the database of logs, where it is another one.
    pub log_commits: u64,
    /// Closures by name, each time one ran.
    pub writes: BTreeMap<&'static str, u64>,
    pub reads: BTreeMap<&'static str, u64>,
    /// What all reads have cost, in steps of SQLite's virtual machine; 0 on PostgreSQL.
    pub read_steps: u64,
}

impl Tally {
    pub(crate) fn committed(&self, is_log: bool) {
        let counter = if is_log { &self.log_commits } else { &self.commits };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ran(&self, name: &'static str, reads: bool) {
        let names = if reads { &self.reads } else { &self.writes };
        *names.lock().expect("nothing panics while counting").entry(name).or_default() += 1;
    }

    pub(crate) fn stepped(&self, steps: u64) {
        self.read_steps.fetch_add(steps, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        let all =
            |names: &Mutex<BTreeMap<&'static str, u64>>| names.lock().expect("nothing panics while counting").clone();
        Counts {
            commits: self.commits.load(Ordering::Relaxed),
            log_commits: self.log_commits.load(Ordering::Relaxed),
            writes: all(&self.writes),
            reads: all(&self.reads),
            read_steps: self.read_steps.load(Ordering::Relaxed),
        }
    }
}
