//! One job as the daemon sees it: its desired state, whether its files are in place, and the facts that are still to be reported. Its commands
//! are its steps (`step.rs`).

use crate::clock::wall_ms;
use crate::key::JobKey;
use crate::step::Step;
use crate::sync::NotPlaced;
use std::collections::VecDeque;
use std::time::Instant;
use tokio::task::AbortHandle;
use wire::runner::{DesiredJob, DesiredState, Fact, OnLostControl, What};

pub struct Job {
    pub key: JobKey,
    /// From the desired document, without its steps; unknown to a new runner until it has heard one.
    pub wanted: Option<DesiredJob>,
    /// Whether the newest desired document names it.
    pub listed: bool,
    /// Whether the newest desired document names steps of it.
    pub lists_steps: bool,
    pub files: Placing,
    pub facts: VecDeque<Fact>,
    /// Facts that may wait this long for the first output, to travel with it.
    pub company_until: Option<Instant>,
    /// The control plane wants to hear no more of it.
    pub refused: bool,
    /// The newest desired document waits to be told that it stands still or goes on.
    pub unanswered: bool,
    /// What was last told: that it stands still, or goes on.
    told_still: bool,
    told_closed: bool,
}

/// How far the files of a job are.
pub enum Placing {
    UnderWay(AbortHandle),
    Done,
    Failed(NotPlaced),
}

impl Job {
    pub fn new(key: JobKey) -> Job {
        Job {
            key,
            wanted: None,
            listed: true,
            lists_steps: true,
            files: Placing::Done,
            facts: VecDeque::new(),
            company_until: None,
            refused: false,
            unanswered: false,
            told_still: false,
            told_closed: false,
        }
    }

    pub fn tell(&mut self, what: What) {
        if !self.refused {
            let JobKey { job, epoch } = self.key;
            self.facts.push_back(Fact { job, epoch, step: None, at_ms: wall_ms(), what });
        }
    }

    pub fn want(&mut self, wanted: DesiredJob) {
        self.unanswered = wanted.answer;
        self.wanted = Some(wanted);
    }

    pub fn state(&self) -> DesiredState {
        match &self.wanted {
            _ if !self.listed || self.refused => DesiredState::Aborted,
            Some(wanted) => wanted.state,
            None => DesiredState::Running,
        }
    }

    pub fn stops_when_lost(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.on_lost_control == OnLostControl::Stop)
    }

    pub fn stop_within_ms(&self) -> i64 {
        self.wanted.as_ref().map_or(0, |wanted| wanted.stop_duration_ms)
    }

    /// Says that it stands still or goes on, once all its steps do. Steps that have ended are waited for until that is known, because their
    /// end may be the job's.
    pub fn tell_stillness<'a>(&mut self, steps: impl Iterator<Item = &'a Step>) {
        let still = match self.state() {
            DesiredState::Frozen => true,
            DesiredState::Running => false,
            _ => return,
        };
        let (mut any_kept, mut all_so) = (false, true);
        for step in steps {
            any_kept |= step.is_kept();
            all_so &= step.stands(still);
        }
        if all_so && (self.unanswered || (any_kept && self.told_still != still)) {
            (self.unanswered, self.told_still) = (false, still);
            self.tell(if still { What::Froze } else { What::Thawed });
        }
    }

    /// Says that nothing of it is left, where no step's end says so.
    pub fn tell_closed(&mut self, any_step: bool) {
        if any_step || self.lists_steps || !self.listed || self.told_closed {
            return;
        }
        let closed = self.wanted.as_ref().is_some_and(|wanted| wanted.closed);
        let what = match (&self.files, self.state()) {
            (_, DesiredState::Stopped | DesiredState::Aborted) => What::Closed { cause: None, message: None },
            (Placing::Failed(not), _) => What::Closed { cause: Some(not.cause), message: Some(not.why.clone()) },
            (Placing::Done, _) if closed => What::Closed { cause: None, message: None },
            (Placing::Done | Placing::UnderWay(_), _) => return,
        };
        self.told_closed = true;
        self.tell(what);
    }
}
