//! Reconciles this machine with the desired document. Level-triggered: every document is applied as a whole, and applying one
//! twice changes nothing.

use super::{DELIVER_WITHIN, Daemon};
use crate::artifacts::Shortfall;
use crate::job::Placing;
use crate::key::{JobKey, Key};
use crate::orders::KeeperOrder;
use crate::step::{Opening, Stage};
use crate::sync::NotPlaced;
use std::collections::BTreeSet;
use std::time::Instant;
use wire::model::step::StepTry;
use wire::runner::{Desired, DesiredState, DesiredStep, EndCause, What};

impl Daemon {
    /// `fresh`: told at registration, so its log offsets are what is durable now.
    pub(super) fn reconcile(&mut self, desired: Desired, fresh: bool, now: Instant) {
        self.version = desired.version;
        for job in self.jobs.values_mut() {
            (job.listed, job.lists_steps) = (false, false);
        }
        // Servers are nothing that the document lists: they stay as long as their job does.
        self.steps.values_mut().filter(|step| !step.is_server()).for_each(|step| step.listed = false);
        let mut workdirs: BTreeSet<String> = desired.kept_workdirs.into_iter().collect();
        for mut wanted in desired.jobs {
            workdirs.insert(wanted.workdir.clone());
            let key = JobKey { job: wanted.job, epoch: wanted.epoch };
            let steps = std::mem::take(&mut wanted.steps);
            match self.jobs.get_mut(&key) {
                Some(job) => job.want(wanted),
                None if self.closing.is_none() => self.accept(wanted, &steps, now),
                None => continue,
            }
            let job = self.jobs.get_mut(&key).expect("it was there, or is now");
            (job.listed, job.lists_steps) = (true, !steps.is_empty());
            for step in steps {
                self.learn(key.step(step.step), step, fresh, now);
            }
        }
        for key in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.apply_job(key);
        }
        for key in self.steps.keys().copied().collect::<Vec<_>>() {
            self.apply(key);
        }
        // Commands are started first; unused folders are removed while they begin.
        self.open_ready(now);
        self.tidy_workdirs(workdirs);
        self.send_snapshots(desired.snapshots);
        self.change_features(desired.features);
        if desired.shutdown {
            self.close(DELIVER_WITHIN, now);
        }
    }

    fn learn(&mut self, key: Key, wanted: DesiredStep, fresh: bool, now: Instant) {
        let Some(step) = self.steps.get_mut(&key) else {
            if self.closing.is_none() {
                self.add_step(key, wanted, now);
            }
            return;
        };
        if let Some(output) = step.output.as_mut().filter(|_| fresh || step.wanted.is_none()) {
            output.delivered = wanted.log_offset;
        }
        // Who lists it when this runner registers does not know of its end, whatever another database was told: it is told again.
        if fresh && std::mem::take(&mut step.reported) {
            if let Some(job) = self.jobs.get_mut(&key.of).filter(|job| job.facts.is_empty()) {
                job.tell(What::Accepted);
                job.tell(What::SyncComplete { fetched_blobs: 0, fetched_bytes: 0 });
            }
            if step.ended.as_ref().is_some_and(|ended| ended.started) {
                step.told_started = false;
                step.tell_started(None);
            }
            if let Some(end) = step.end_fact() {
                step.tell(end);
            }
        }
        step.listed = true;
        step.wanted = Some(wanted);
    }

    /// A job that is to end gets no more files.
    fn apply_job(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let cause = match job.state() {
            DesiredState::Stopped => EndCause::Stopped,
            DesiredState::Aborted => EndCause::Aborted,
            _ => return,
        };
        if let Placing::UnderWay(task) = &job.files {
            task.abort();
            job.files = Placing::Failed(NotPlaced { cause, why: "ended before its files were in place".to_owned() });
        }
    }

    /// Brings one step nearer to what is wanted of it.
    pub(super) fn apply(&mut self, key: Key) {
        let (Some(job), Some(step)) = (self.jobs.get(&key.of), self.steps.get(&key)) else { return };
        match (&step.stage, step.state(job)) {
            (Stage::Over, _) => self.settle_over(key),
            (Stage::Waiting(_) | Stage::Ready(_) | Stage::Uploading(_), DesiredState::Aborted) => {
                self.cut(key, EndCause::Aborted, "aborted before it began");
            }
            (Stage::Waiting(_) | Stage::Ready(_), DesiredState::Stopped) => {
                self.cut(key, EndCause::Stopped, "stopped before it began");
            }
            // Its keeper does what it is told once more, and says so.
            (Stage::Kept(_), state) if step.ordered != Some(state) || job.unanswered => self.order(key, state),
            _ => {}
        }
    }

    fn order(&mut self, key: Key, state: DesiredState) {
        let within_ms = self.jobs.get(&key.of).map_or(0, |job| job.stop_within_ms());
        let Some(step) = self.steps.get_mut(&key) else { return };
        let journalled = match state {
            DesiredState::Running | DesiredState::Frozen => self.journal.frozen(key, state == DesiredState::Frozen),
            _ => Ok(()),
        };
        if let Err(error) = journalled {
            tracing::error!(%key, %error, "the journal cannot be written");
        }
        step.order(match state {
            DesiredState::Running => KeeperOrder::Thaw,
            DesiredState::Frozen => KeeperOrder::Freeze,
            DesiredState::Stopped => KeeperOrder::Stop { cause: EndCause::Stopped, within_ms },
            DesiredState::Aborted => KeeperOrder::Abort { cause: EndCause::Aborted },
            DesiredState::Unknown => return, // of a later version: what runs, runs on
        });
        (step.ordered, step.still) = (Some(state), None);
    }

    /// Ends a step at once, wherever it stands.
    pub(super) fn cut(&mut self, key: Key, cause: EndCause, message: &str) {
        let Some(step) = self.steps.get_mut(&key) else { return };
        let refuse = || Stage::Ready(Opening::Refuse { cause, message: message.to_owned() });
        match &step.stage {
            Stage::Waiting(task) => {
                task.iter().for_each(|task| task.abort());
                step.stage = refuse();
            }
            Stage::Ready(_) => step.stage = refuse(),
            Stage::Kept(_) => {
                step.order(KeeperOrder::Abort { cause });
                step.ordered = Some(DesiredState::Aborted);
            }
            Stage::Uploading(task) => {
                task.abort();
                let problems = vec!["the upload of artifacts was cut short".to_owned()];
                let answer = Some("its upload was cut short".to_owned()).filter(|_| step.has_large_answer());
                self.tell_end(key, &Shortfall { problems, answer, ..Shortfall::default() });
            }
            Stage::Containing | Stage::Over | Stage::Ended => {}
        }
    }

    /// The control plane wants to hear no more of it: it ends here, and nothing more is told.
    pub(super) fn disown(&mut self, of: JobKey, which: Option<StepTry>) {
        if which.is_none()
            && let Some(job) = self.jobs.get_mut(&of)
        {
            job.refused = true;
            job.facts.clear();
            self.apply_job(of);
        }
        for key in self.steps_of(of).map(|step| step.key).collect::<Vec<_>>() {
            let Some(step) = self.steps.get_mut(&key) else { continue };
            if step.refused || which.is_some_and(|which| which != key.step) {
                continue;
            }
            tracing::warn!(%key, "the control plane disowns this step: its processes are ended");
            step.refused = true;
            step.facts.clear();
            self.cut(key, EndCause::Aborted, "disowned by the control plane");
        }
    }
}
