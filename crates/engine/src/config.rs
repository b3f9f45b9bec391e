//! The settings of the engine, with their defaults. Checked once, at start.

use crate::tool_price::ToolPrices;
use model::feature::Features;
use model::hold::HoldLimits;
use model::log::LogLimits;
use model::manifest::Retention;
use model::orphan::OrphanLimits;
use model::recovery::EscalationLimits;
use model::time::{DAY, HOUR, MINUTE};
use model::workflow::Intent;
use model::{Credits, Limits, Refused};
use serde::{Deserialize, Serialize};

/// Below this a worker that only waits for its turn of the processor would be taken for dead.
const SHORTEST_LEASE_MS: i64 = 600;

/// More would only use memory: each holder has a connection, buffers and timers.
const MOST_ACT_PERMITS: i64 = 10_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub holds: HoldLimits,
    pub timings: Timings,
    pub money: Money,
    pub logs: LogLimits,
    pub limits: Limits,
    /// When failures of steps become a question to a person.
    pub escalation: EscalationLimits,
    pub worker: WorkerLimits,
    /// When providers are asked what they list.
    pub orphans: OrphanLimits,
    /// How long what a workflow made is kept.
    pub manifests: Retention,
    /// Scripts that prepare machines, by the names that runs use.
    pub features: Features,
    pub calls: Calls,
    /// What one call of a tool costs.
    pub tool_prices: ToolPrices,
}

/// Where results of calls are kept, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calls {
    /// Results of one project do not answer calls of another.
    pub project: String,
    /// A result that answered no caller for so long may be deleted.
    pub kept_ms: i64,
    /// Of all results of an org in sum; those that were used longest ago go first.
    pub max_bytes: i64,
    /// Programs that functions may name: names, or beginnings of names that end in `*`. The URI of a function never chooses what is
    /// executed here. None: as the role of the process says.
    pub adapters: Option<Vec<String>>,
    /// Where calls and results are exchanged with adapters; in the home if there is none.
    pub exchange: Option<std::path::PathBuf>,
    /// Records of calls that nothing leads to are kept so long after their last use: they may be on their way to being named. On
    /// PostgreSQL this must be longer than any transaction takes: a collection does not see what another process has not committed.
    pub unnamed_kept_ms: i64,
}

impl Calls {
    fn check(&self) -> Result<(), Refused> {
        let is_name = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-'))
                && !text.starts_with('-')
        };
        for pattern in self.adapters.iter().flatten() {
            if !is_name(pattern.strip_suffix('*').unwrap_or(pattern)) {
                let why = format!(
                    "`{pattern}` is neither the name of a program (a-z, 0-9, -) nor the beginning of one with `*` after it"
                );
                return Err(Refused::invalid("calls.adapters", why));
            }
        }
        let numbers =
            [("kept_ms", self.kept_ms), ("max_bytes", self.max_bytes), ("unnamed_kept_ms", self.unnamed_kept_ms)];
        if let Some((name, _)) = numbers.into_iter().find(|(_, number)| *number < 0) {
            return Err(Refused::invalid(format!("calls.{name}"), "must not be negative"));
        }
        match &self.exchange {
            Some(folder) if !folder.is_absolute() => {
                Err(Refused::invalid("calls.exchange", "must be an absolute path"))
            }
            _ => Ok(()),
        }
    }
}

impl Default for Calls {
    fn default() -> Self {
        Calls {
            project: "default".into(),
            kept_ms: 90 * DAY,
            max_bytes: 10 << 30,
            unnamed_kept_ms: DAY,
            adapters: None,
            exchange: None,
        }
    }
}

/// How much one worker process does at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerLimits {
    /// Agents whose steps it acts on. Their acts mostly wait for others.
    pub act_permits: i64,
    /// Agents of one organisation whose steps all workers together act on at once. More of them wait for their turn.
    pub org_agents: i64,
    /// Steps of one agent that are under way at once, whatever its plan says.
    pub agent_steps: i64,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        WorkerLimits { act_permits: 256, org_agents: 128, agent_steps: 50 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timings {
    pub heartbeat_every_ms: i64,
    pub degraded_after_ms: i64,
    pub panic_after_ms: i64,
    pub force_terminate_after_ms: i64,
    pub unreachable_after_ms: i64,
    /// An unused machine whose provider charges nothing is terminated after this.
    pub idle_duration_ms: i64,
    pub idle_duration_paid_ms: i64,
    /// Files that were sent for runs are deleted when no run has used them for this long.
    pub contents_kept_ms: i64,
    /// How long the embedded control plane stays with nothing open or held.
    pub embedded_idle_ms: i64,
    /// A worker process that has not been heard of for so long is dead, and others take over what it held.
    pub lease_ms: i64,
    /// How often what ends by time alone is looked for.
    pub sweep_every_ms: i64,
    /// What a run left stays so long after its end.
    pub artifacts_kept_ms: i64,
}

impl Default for Timings {
    fn default() -> Self {
        Timings {
            heartbeat_every_ms: 10_000,
            degraded_after_ms: 2 * MINUTE,
            panic_after_ms: 15 * MINUTE,
            force_terminate_after_ms: 25 * MINUTE,
            unreachable_after_ms: MINUTE,
            idle_duration_ms: 30 * MINUTE,
            idle_duration_paid_ms: 5 * MINUTE,
            contents_kept_ms: 30 * DAY,
            embedded_idle_ms: 30 * MINUTE,
            lease_ms: store::worker::LEASE_MS,
            sweep_every_ms: 5 * MINUTE,
            artifacts_kept_ms: 30 * DAY,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Money {
    /// Compute is charged in windows of this length.
    pub window_ms: i64,
    /// So much is reserved ahead while a run lives.
    pub ahead_ms: i64,
    /// What a new embedded org starts with.
    pub first_topup: Credits,
}

impl Default for Money {
    fn default() -> Self {
        Money { window_ms: MINUTE, ahead_ms: HOUR, first_topup: Credits::whole(1_000_000) }
    }
}

impl Config {
    /// How long the manifest of such a workflow keeps what it owns. Never less than the idle time of machines: a machine that waits for
    /// the next run belongs to the run before it.
    pub(crate) fn retention_ms(&self, intent: Intent) -> Option<i64> {
        let Timings { idle_duration_ms, idle_duration_paid_ms, .. } = self.timings;
        let kept = self.manifests.of(intent)?;
        let idle = if intent == Intent::LaunchRun { idle_duration_ms.max(idle_duration_paid_ms) } else { 0 };
        Some(kept.max(idle))
    }

    /// The ordering chains of the design; a setting that breaks one is refused by name.
    pub fn check(&self) -> Result<(), Refused> {
        self.holds.check()?;
        self.logs.check()?;
        self.escalation.check()?;
        self.limits.check()?;
        self.orphans.check()?;
        self.manifests.check()?;
        self.calls.check()?;
        model::feature::check(&self.features)?;
        if !(1..=MOST_ACT_PERMITS).contains(&self.worker.act_permits) {
            return Err(Refused::invalid("worker.act_permits", format!("must lie between 1 and {MOST_ACT_PERMITS}")));
        }
        for (name, most) in [("org_agents", self.worker.org_agents), ("agent_steps", self.worker.agent_steps)] {
            if most < 1 {
                return Err(Refused::invalid(format!("worker.{name}"), "must be positive"));
            }
        }
        let t = &self.timings;
        let chain = [
            ("heartbeat_every_ms", t.heartbeat_every_ms),
            ("unreachable_after_ms", t.unreachable_after_ms),
            ("degraded_after_ms", t.degraded_after_ms),
            ("panic_after_ms", t.panic_after_ms),
            ("force_terminate_after_ms", t.force_terminate_after_ms),
        ];
        if t.heartbeat_every_ms <= 0 {
            return Err(Refused::invalid("timings.heartbeat_every_ms", "must be positive"));
        }
        if t.lease_ms < SHORTEST_LEASE_MS {
            return Err(Refused::invalid("timings.lease_ms", format!("must be at least {SHORTEST_LEASE_MS}")));
        }
        for (name, ms) in [("sweep_every_ms", t.sweep_every_ms), ("artifacts_kept_ms", t.artifacts_kept_ms)] {
            if ms <= 0 {
                return Err(Refused::invalid(format!("timings.{name}"), "must be positive"));
            }
        }
        for pair in chain.windows(2) {
            if pair[0].1 >= pair[1].1 {
                return Err(Refused::invalid(
                    format!("timings.{}", pair[0].0),
                    format!("must be smaller than timings.{} ({})", pair[1].0, pair[1].1),
                ));
            }
        }
        if t.heartbeat_every_ms >= self.limits.fence_ms {
            let why = format!("must be smaller than limits.fence_ms ({})", self.limits.fence_ms);
            return Err(Refused::invalid("timings.heartbeat_every_ms", why));
        }
        if self.money.window_ms <= 0 || self.money.ahead_ms < self.money.window_ms {
            return Err(Refused::invalid("money.window_ms", "must be positive and no larger than money.ahead_ms"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked_at_start_and_against_the_timings() {
        Config::default().check().unwrap();
        let mut config = Config::default();
        config.limits.boot_ms = 1;
        assert!(config.check().unwrap_err().to_string().starts_with("limits.fence_ms: "));
        let mut config = Config::default();
        config.timings.heartbeat_every_ms = 59_000;
        config.limits.fence_ms = 59_000;
        assert!(config.check().unwrap_err().to_string().starts_with("timings.heartbeat_every_ms: "));
    }

    /// A window that lies in the future deletes what was put a moment ago.
    #[test]
    fn limits_of_kept_results_are_not_negative() {
        let fields: [(&str, fn(&mut Calls) -> &mut i64); 3] = [
            ("calls.kept_ms", |calls| &mut calls.kept_ms),
            ("calls.max_bytes", |calls| &mut calls.max_bytes),
            ("calls.unnamed_kept_ms", |calls| &mut calls.unnamed_kept_ms),
        ];
        for (name, field) in fields {
            let mut config = Config::default();
            *field(&mut config.calls) = -1;
            assert_eq!(config.check().unwrap_err().to_string(), format!("{name}: must not be negative"));
            *field(&mut config.calls) = 0;
            config.check().unwrap();
        }
    }
}
