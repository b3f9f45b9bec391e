//! The oracle: records what really happened to commands, independent of reports. Checks two promises: a run's command
//! never runs twice at the same time, and never again unless a retry policy or a user asked for it.

use model::step::StepTry;
use model::{JobId, RunId};
use std::collections::{BTreeMap, BTreeSet};

/// One execution of a run's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    pub run: RunId,
    pub job: JobId,
    pub epoch: i64,
    pub machine: String,
    pub began_ms: i64,
    pub ended_ms: Option<i64>,
    /// None while it runs, and when it was killed.
    pub exit_code: Option<i32>,
}

#[derive(Default)]
pub struct Truth {
    executions: BTreeMap<(JobId, i64), Execution>,
    /// A person took it upon himself that these are gone: they may run beside whatever replaces them.
    given_up: BTreeSet<JobId>,
    /// Ends that the command did not come to by itself, as their runner saw them: (job, epoch).
    slots_failed: BTreeSet<(JobId, i64)>,
    /// Commands of planned agents that run, by the key of their step.
    commands: BTreeMap<String, (JobId, StepTry)>,
    /// Every try of theirs that has begun.
    tries: BTreeSet<StepTry>,
}

impl Truth {
    /// A complaint if the try has begun before, or another one of the same step is not over.
    pub fn command_began(&mut self, key: String, job: JobId, step: StepTry) -> Option<String> {
        let beside = self.commands.insert(key, (job, step)).filter(|(other, _)| !self.given_up.contains(other));
        match (self.tries.insert(step), beside) {
            (false, _) => Some(format!("the try {step} was started twice")),
            (true, Some((_, other))) => Some(format!("{step} runs beside {other}")),
            (true, None) => None,
        }
    }

    pub fn command_ended(&mut self, step: StepTry) {
        self.commands.retain(|_, (_, running)| *running != step);
    }

    /// A complaint if another execution of the run is not over, and no person gave up one of the two.
    pub fn began(&mut self, execution: Execution) -> Option<String> {
        let wanted = |job: JobId| !self.given_up.contains(&job);
        let beside = |other: &&Execution| other.ended_ms.is_none() && wanted(other.job) && wanted(execution.job);
        let other = self.of(execution.run).find(beside).cloned();
        let key = (execution.job, execution.epoch);
        let complaint = match (&other, self.executions.contains_key(&key)) {
            (Some(other), _) => Some(format!(
                "{} runs twice at a time: {} on {} since {}, and now {} on {}",
                execution.run, other.job, other.machine, other.began_ms, execution.job, execution.machine
            )),
            (None, true) => Some(format!("epoch {} of {} was started twice", execution.epoch, execution.job)),
            (None, false) => None,
        };
        self.executions.insert(key, execution);
        complaint
    }

    pub fn ended(&mut self, job: JobId, epoch: i64, at_ms: i64, exit_code: Option<i32>) {
        if let Some(execution) = self.executions.get_mut(&(job, epoch)).filter(|e| e.ended_ms.is_none()) {
            execution.ended_ms = Some(at_ms);
            execution.exit_code = exit_code;
        }
    }

    /// Only by a user's `retry --force`.
    pub fn given_up(&mut self, job: JobId) {
        self.given_up.insert(job);
    }

    /// The sync failed, the keeper died, or the runner stopped it without a control plane: its slot must not count as used.
    pub fn slot_failed(&mut self, job: JobId, epoch: i64) {
        self.slots_failed.insert((job, epoch));
    }

    pub fn has_slot_failed(&self, job: JobId, epoch: i64) -> bool {
        self.slots_failed.contains(&(job, epoch))
    }

    pub fn of(&self, run: RunId) -> impl Iterator<Item = &Execution> {
        self.executions.values().filter(move |execution| execution.run == run)
    }
}

/// The bytes that a command writes are computed from its job and epoch, so that a log can be checked without keeping it.
pub fn output(job: JobId, epoch: i64, from: i64, to: i64) -> Vec<u8> {
    (from..to).map(|at| b'a' + ((job.0 + 7 * epoch + at + at / 26) % 26) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution(job: i64, epoch: i64) -> Execution {
        Execution {
            run: RunId(1),
            job: JobId(job),
            epoch,
            machine: "m".to_owned(),
            began_ms: 0,
            ended_ms: None,
            exit_code: None,
        }
    }

    #[test]
    fn a_command_that_runs_twice_is_noticed() {
        let mut truth = Truth::default();
        assert_eq!(truth.began(execution(1, 1)), None);
        assert!(truth.began(execution(2, 1)).unwrap().contains("twice at a time"));
        let mut truth = Truth::default();
        assert_eq!(truth.began(execution(1, 1)), None);
        truth.ended(JobId(1), 1, 5, Some(0));
        assert_eq!(truth.began(execution(2, 1)), None, "one after the other is a retry");
        truth.ended(JobId(2), 1, 6, None);
        assert!(truth.began(execution(1, 1)).unwrap().contains("started twice"));
    }

    #[test]
    fn what_a_person_gave_up_may_run_beside_its_replacement_and_nothing_else_may() {
        let mut truth = Truth::default();
        assert_eq!(truth.began(execution(1, 1)), None);
        truth.given_up(JobId(1));
        assert_eq!(truth.began(execution(2, 1)), None);
        assert!(truth.began(execution(3, 1)).unwrap().contains("job_2"), "the replacement was not given up");
        truth.ended(JobId(2), 1, 5, Some(0));
        truth.ended(JobId(3), 1, 5, Some(0));
        assert!(truth.began(execution(1, 1)).unwrap().contains("started twice"), "nor may it begin again");
        let mut truth = Truth::default();
        truth.given_up(JobId(1));
        assert_eq!(truth.began(execution(2, 1)), None);
        assert_eq!(truth.began(execution(1, 1)), None, "it was given up before it began");
    }

    #[test]
    fn a_gap_or_a_repetition_shows_in_the_output() {
        let whole = output(JobId(3), 1, 0, 100);
        assert_eq!([output(JobId(3), 1, 0, 40), output(JobId(3), 1, 40, 100)].concat(), whole);
        assert_ne!([output(JobId(3), 1, 0, 40), output(JobId(3), 1, 41, 101)].concat(), whole);
        assert_ne!([output(JobId(3), 1, 0, 40), output(JobId(3), 1, 39, 99)].concat(), whole);
    }
}
