//! When this process last heard from each runner. In memory, written to the database every 20 s (`flush_presence`). Always consulted
//! before a runner counts as silent.

use model::{InstanceId, JobId, Timestamp};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Jobs of which it is remembered whether a runner was told; of others that is assumed.
const REMEMBERED: usize = 10_000;

#[derive(Default)]
pub struct Presence {
    seen: Mutex<BTreeMap<InstanceId, LastSeen>>,
    /// Jobs that this process gave a place, and whether one stood in a document which was given out. By what was done here and not
    /// by the clock, which may have been set back since another process did it.
    placed: Mutex<BTreeMap<JobId, bool>>,
    /// No other process talks to runners.
    alone: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct LastSeen {
    at: Timestamp,
    observed_version: i64,
    unsaved: bool,
    streams: i64,
    durable_waits: u64,
}

impl Presence {
    /// Of the only process that talks to runners.
    pub fn alone() -> Presence {
        Presence { alone: true, ..Presence::default() }
    }

    pub(crate) fn place(&self, job: JobId) {
        let mut placed = self.placed.lock().expect("no panic while locked");
        placed.entry(job).or_insert(false); // what was delivered before stays so
        if placed.len() > REMEMBERED {
            placed.pop_first();
        }
    }

    pub(crate) fn deliver(&self, job: JobId) {
        if let Some(delivered) = self.placed.lock().expect("no panic while locked").get_mut(&job) {
            *delivered = true;
        }
    }

    /// Surely no runner was ever sent this job: only this process talks to runners, and it has not sent it.
    pub(crate) fn never_delivered(&self, job: JobId) -> bool {
        self.alone && self.placed.lock().expect("no panic while locked").get(&job) == Some(&false)
    }

    pub fn heard(&self, instance: InstanceId, at: Timestamp, observed_version: i64) {
        let mut seen = self.seen.lock().expect("no panic while locked");
        let entry = seen.entry(instance).or_default();
        entry.at = entry.at.max(at);
        entry.observed_version = entry.observed_version.max(observed_version);
        entry.unsaved = true;
    }

    /// How often a runner has waited for its disk. For tests and benchmarks.
    pub fn waited(&self, instance: InstanceId, durable_waits: u64) {
        let mut seen = self.seen.lock().expect("no panic while locked");
        if let Some(entry) = seen.get_mut(&instance) {
            entry.durable_waits = durable_waits;
        }
    }

    pub fn durable_waits(&self) -> u64 {
        self.seen.lock().expect("no panic while locked").values().map(|seen| seen.durable_waits).sum()
    }

    pub fn last(&self, instance: InstanceId) -> Option<Timestamp> {
        self.seen
            .lock()
            .expect("no panic while locked")
            .get(&instance)
            .map(|seen| seen.at)
            .filter(|at| *at > Timestamp(0))
    }

    /// A runner's command stream was opened or closed here.
    pub fn stream(&self, instance: InstanceId, opened: bool) {
        let mut seen = self.seen.lock().expect("no panic while locked");
        if opened {
            seen.entry(instance).or_default().streams += 1;
        } else if let Some(entry) = seen.get_mut(&instance) {
            entry.streams -= 1; // unless the machine was forgotten before its stream was closed
        }
    }

    pub fn streaming(&self, instance: InstanceId) -> bool {
        self.seen.lock().expect("no panic while locked").get(&instance).is_some_and(|seen| seen.streams > 0)
    }

    /// What was heard since the last call, to be written down in one statement a machine.
    pub(crate) fn unsaved(&self) -> Vec<(InstanceId, Timestamp, i64)> {
        let mut seen = self.seen.lock().expect("no panic while locked");
        let fresh = seen.iter_mut().filter(|(_, seen)| seen.unsaved && seen.at > Timestamp(0));
        fresh
            .map(|(id, seen)| {
                seen.unsaved = false;
                (*id, seen.at, seen.observed_version)
            })
            .collect()
    }

    pub(crate) fn forget(&self, instance: InstanceId) {
        self.seen.lock().expect("no panic while locked").remove(&instance);
    }
}
