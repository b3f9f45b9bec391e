//! `[limits]` in the settings: how long each state may last before the control plane acts. The functions that compute deadlines take
//! them as an argument.

use crate::time::{DAY, MINUTE, SECOND};
use crate::{Credits, Refused};
use serde::{Deserialize, Serialize};

/// The value of a secret: it becomes a variable of the command.
pub const MAX_SECRET_BYTES: usize = 64 * 1024;
/// Amounts are 64-bit micro-credits: so many still fit.
const MOST_CREDITS: i64 = 1_000_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// A run waits so long to be picked up, and a job for a machine.
    pub pending_ms: i64,
    /// A paused run is cancelled after this.
    pub paused_ms: i64,
    /// Everything of a run that is resumed must go on within this.
    pub resuming_ms: i64,
    /// From a job's place on a machine until its runner has taken it. Starting the machine is part of it.
    pub boot_ms: i64,
    /// From then until its files are in place.
    pub sync_ms: i64,
    /// After `stop_duration` the runner kills the job's processes. The job is fenced if the runner has not confirmed it this much later.
    pub fence_ms: i64,
    /// The runner enforces `max_duration`. The control plane does so this much later …
    pub max_duration_grace_ms: i64,
    /// … or, of a silent machine that works to the end of its job by itself (`on_lost_control: finish`), this much later (R147).
    pub silent_grace_ms: i64,
    /// An org with fewer whole credits than this gets no retry by itself. What is set aside for the run counts (R72, R153).
    pub min_credits_to_retry: i64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            pending_ms: DAY,
            paused_ms: 7 * DAY,
            resuming_ms: 5 * MINUTE,
            boot_ms: 10 * MINUTE,
            sync_ms: 10 * MINUTE,
            fence_ms: 60 * SECOND,
            max_duration_grace_ms: 60 * SECOND,
            silent_grace_ms: 5 * MINUTE,
            min_credits_to_retry: 10,
        }
    }
}

impl Limits {
    /// The chains: a job that is slow to start or to resume is stopped, and stopping it takes less time than its start may; a job that
    /// can be started at all can be started while a run waits; a runner reports its job's end before the control plane ends it.
    pub fn check(&self) -> Result<(), Refused> {
        let chains: [&[(&str, i64)]; 5] = [
            &[("fence_ms", self.fence_ms), ("boot_ms", self.boot_ms), ("pending_ms", self.pending_ms)],
            &[("fence_ms", self.fence_ms), ("sync_ms", self.sync_ms), ("pending_ms", self.pending_ms)],
            &[("fence_ms", self.fence_ms), ("resuming_ms", self.resuming_ms), ("pending_ms", self.pending_ms)],
            &[("resuming_ms", self.resuming_ms), ("paused_ms", self.paused_ms)],
            &[("max_duration_grace_ms", self.max_duration_grace_ms), ("silent_grace_ms", self.silent_grace_ms)],
        ];
        for chain in chains {
            if chain[0].1 <= 0 {
                return Err(Refused::invalid(format!("limits.{}", chain[0].0), "must be positive"));
            }
            if let Some(pair) = chain.windows(2).find(|pair| pair[0].1 >= pair[1].1) {
                return Err(Refused::invalid(
                    format!("limits.{}", pair[0].0),
                    format!("must be smaller than limits.{} ({})", pair[1].0, pair[1].1),
                ));
            }
        }
        if !(0..=MOST_CREDITS).contains(&self.min_credits_to_retry) {
            let why = format!("must be from 0 to {MOST_CREDITS} credits");
            return Err(Refused::invalid("limits.min_credits_to_retry", why));
        }
        Ok(())
    }

    pub fn least_to_retry(&self) -> Credits {
        Credits::whole(self.min_credits_to_retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_breaks_its_chain_is_refused_by_name() {
        let limits = Limits::default();
        limits.check().unwrap();
        for (broken, named) in [
            (Limits { fence_ms: 0, ..limits }, "limits.fence_ms: must be positive"),
            (Limits { fence_ms: 10 * MINUTE, ..limits }, "limits.fence_ms: must be smaller than limits.boot_ms"),
            (Limits { boot_ms: DAY, ..limits }, "limits.boot_ms: must be smaller than limits.pending_ms"),
            (Limits { sync_ms: 30 * SECOND, ..limits }, "limits.fence_ms: must be smaller than limits.sync_ms"),
            (Limits { resuming_ms: 8 * DAY, ..limits }, "limits.resuming_ms: must be smaller than limits.pending_ms"),
            (Limits { paused_ms: MINUTE, ..limits }, "limits.resuming_ms: must be smaller than limits.paused_ms"),
            (Limits { silent_grace_ms: SECOND, ..limits }, "limits.max_duration_grace_ms: must be smaller than"),
            (Limits { min_credits_to_retry: -1, ..limits }, "limits.min_credits_to_retry: must be from 0"),
            (Limits { min_credits_to_retry: i64::MAX, ..limits }, "limits.min_credits_to_retry: must be from 0"),
        ] {
            let refused = broken.check().unwrap_err().to_string();
            assert!(refused.starts_with(named), "{refused}");
        }
    }

    #[test]
    fn only_what_is_set_differs_from_the_defaults() {
        let limits: Limits = serde_json::from_str(r#"{"boot_ms": 1200000}"#).unwrap();
        assert_eq!(limits, Limits { boot_ms: 20 * MINUTE, ..Limits::default() });
        assert!(serde_json::from_str::<Limits>(r#"{"boot": 1}"#).is_err());
    }
}
