//! What really happened on the far side of every tool, by key, independent of what the engine recorded: the oracle of effects. It never dies, and it
//! complains by itself where one look is enough.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What the far side has seen of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub effects: u32,
    /// It must not be repeated.
    pub once: bool,
    /// A caller that was alive was answered.
    pub answered: bool,
    /// Tokens that a model has used for it, in all its tries.
    pub tokens: i64,
}

model::string_enum! {
    /// Situations that simulations reach now and then: a test asserts that all of them were reached.
    pub enum Situation {
        CallsSideBySide = "calls-side-by-side",
        Approved = "approved",
        Edited = "edited",
        Rejected = "rejected",
        Expired = "expired",
        PlanMade = "plan-made",
        PlannedAgain = "planned-again",
        RunRetried = "run-retried",
        StepBegun = "step-begun",
        /// A durable step answers from its record.
        StepRecorded = "step-recorded",
        StepHeld = "step-held",
        StepReportedLate = "step-reported-late",
        /// By a program outside that polls for steps of a plan.
        StepTaken = "step-taken",
        /// A `verify` said whether a step with an unknown outcome had happened.
        Verified = "verified",
        /// A `for_each` made a task for each item.
        MadePerItem = "made-per-item",
        /// An `if` was false, or a `for_each` had no item.
        NotNeeded = "not-needed",
        /// A run of agents came to the end of its budget.
        BudgetSpent = "budget-spent",
        /// A program outside finished its own run.
        ProgramFinished = "program-finished",
        /// Its lease was over when it reported the end.
        TakenReportedLate = "taken-reported-late",
        /// A heartbeat told it to stop.
        TakenCancelled = "taken-cancelled",
        /// A process of a job that is not its run's any more asks for a step.
        OlderJobRefused = "older-job-refused",
        /// A job that found no machine in one region got one in another.
        Elsewhere = "elsewhere",
        /// A manifest past its retention had its machines and slots ended side by side.
        CleanedUp = "cleaned-up",
        /// A machine that a spawn left unheard was bound to its row by a scan.
        Adopted = "adopted",
        /// After the loss of the database a runner with work waits to be tracked again.
        Unlisted = "unlisted",
        Imported = "imported",
        /// A person typed the id of what no row knows.
        OrphanEnded = "orphan-ended",
        /// A kept result answered a run.
        CallAnswered = "call-answered",
        /// Two runs waited for one execution.
        CallShared = "call-shared",
        /// A user that is no run called a function: a kept result answered, or an execution began.
        CallOfUserAnswered = "call-of-user-answered",
        CallOfUserExecuted = "call-of-user-executed",
        /// A `call` step of a plan has its value.
        StepCalled = "step-called",
        /// Another process went on with an execution whose worker was stopped or dead.
        ClaimTakenOver = "claim-taken-over",
        ResultsInvalidated = "results-invalidated",
        ResultsCollected = "results-collected",
    }
}

#[derive(Debug, Default)]
pub struct Book {
    met: BTreeSet<Situation>,
    seen: BTreeMap<String, Tally>,
    /// Names of steps whose input never changes, each with its only key.
    keys: BTreeMap<String, String>,
    /// Inputs that a person has approved, as text.
    approved: BTreeSet<String>,
    /// Keys of durable steps whose end was accepted.
    finished: BTreeSet<String>,
    complaints: Vec<String>,
    /// What has happened since it was last told.
    news: Vec<String>,
}

impl Book {
    pub fn of(&self, key: &str) -> Tally {
        self.seen.get(key).copied().unwrap_or_default()
    }

    pub fn all(&self) -> impl Iterator<Item = (&String, &Tally)> {
        self.seen.iter()
    }

    pub fn happens(&mut self, key: &str, once: bool) {
        let seen = self.seen.entry(key.to_owned()).or_default();
        (seen.effects, seen.once) = (seen.effects + 1, once);
        self.news.push(format!("effect {} of {key}", seen.effects));
    }

    pub fn answered(&mut self, key: &str) {
        self.seen.entry(key.to_owned()).or_default().answered = true;
    }

    pub fn used(&mut self, key: &str, tokens: i64) {
        self.seen.entry(key.to_owned()).or_default().tokens += tokens;
    }

    /// The same step with the same input has the same key in every try, attempt and plan: by it the far side knows a repetition.
    pub fn is_called(&mut self, name: &str, key: &str) {
        let known = self.keys.entry(name.to_owned()).or_insert_with(|| key.to_owned());
        if known != key {
            let complaint = format!("the step {name} is called under the key {key}, and before under {known}");
            self.complaints.push(complaint);
        }
    }

    /// The database is lost: what is submitted again is another run, whose steps have other keys.
    pub fn forget_names(&mut self) {
        self.keys.clear();
    }

    /// Whether the step of this name had an effect.
    pub fn has_happened(&self, name: &str) -> bool {
        self.keys.get(name).is_some_and(|key| self.of(key).effects > 0)
    }

    pub fn approves(&mut self, input: &Value) {
        self.approved.insert(input.to_string());
    }

    pub fn must_be_approved(&mut self, input: &Value) {
        if !self.approved.contains(&input.to_string()) {
            self.complaints.push(format!("nobody approved the input of a call: {input}"));
        }
    }

    /// A program was told that the end of its durable step is recorded.
    pub fn finishes(&mut self, key: &str) {
        self.finished.insert(key.to_owned());
    }

    /// A program was told to do a durable step.
    pub fn goes(&mut self, key: &str, once: bool) {
        if self.finished.contains(key) {
            self.complaints.push(format!("the finished step {key} is to be done again"));
        }
        self.happens(key, once);
    }

    pub fn meets(&mut self, situation: Situation) {
        self.met.insert(situation);
    }

    pub fn met(&self) -> BTreeSet<Situation> {
        self.met.clone()
    }

    pub fn complain(&mut self, what: String) {
        self.complaints.push(what);
    }

    pub fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    pub fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_must_not_happen_is_complained_of() {
        let mut book = Book::default();
        book.is_called("a", "1");
        book.is_called("a", "1");
        book.is_called("b", "2");
        book.approves(&json!({ "n": 1 }));
        book.must_be_approved(&json!({ "n": 1 }));
        book.goes("3", true);
        assert_eq!(book.complaints(), Vec::<String>::new());
        book.is_called("a", "2");
        book.must_be_approved(&json!({ "n": 2 }));
        book.finishes("3");
        book.goes("3", true);
        let complaints = book.complaints();
        let words = ["before under 1", "nobody approved", "to be done again"];
        assert!(
            complaints.len() == 3 && words.iter().zip(&complaints).all(|(word, it)| it.contains(word)),
            "{complaints:?}"
        );
        assert_eq!(book.of("3"), Tally { effects: 2, once: true, ..Tally::default() });
    }
}
