//! The checks at the end of a simulation: every run has ended and is paid, nothing is left running, and what the control plane
//! reports is what the simulated machines really did.

use crate::book::Situation;
use crate::sim::Promise;
use crate::time::now;
use crate::truth;
use crate::world::World;
use adapters::fake::MachineState;
use model::Failure;
use model::allocation::AllocationStatus;
use model::question::QuestionStatus;
use model::run::{Run, RunStatus};
use model::spec::{FailureMode, RunKind};
use model::step::{StepStatus, StepWait, ToolKind};
use model::workflow::{PatternKind, WorkflowStatus};
use std::collections::BTreeMap;
use store::LogStream;

impl World {
    pub fn judge(&mut self) {
        let audit = now(self.auditor.engine().audit()).expect("a database in memory is read");
        for broken in audit.broken {
            self.complain(Promise::Safe, format!("{}: {}: {}", broken.invariant, broken.subject, broken.detail));
        }
        for index in 0..self.clients.len() {
            self.judge_client(index);
        }
        self.judge_count();
        self.judge_results();
        self.judge_effects();
        self.note_expired();
        self.judge_money();
        self.judge_machines();
        self.judge_strangers();
        self.note_workflows();
        if self.broken.is_empty() {
            self.judge_followers();
        }
    }

    fn judge_client(&mut self, index: usize) {
        let client = &self.clients[index];
        let Some(id) = client.run else {
            if !client.turned_away {
                self.complain(Promise::Ends, format!("client {index} was never answered"));
            }
            return;
        };
        let found = now(self.store.read("sim.run", move |tx| store::run::find(tx, id)));
        match found.expect("a database in memory is read") {
            Some(run) if client.deleted && run.status == RunStatus::Created => {}
            Some(run) => self.judge_run(index, &run),
            None if self.is_lost(id) => {}
            None => self.complain(Promise::Safe, format!("an accepted run is gone: {id}")),
        }
    }

    /// As many runs as were accepted: no request made two, and none of an unheard answer was forgotten.
    fn judge_count(&mut self) {
        let runs = now(self.store.read("sim.runs", |tx| {
            let ids = store::run::ids_after(tx, 0, 1000)?;
            ids.into_iter().map(|id| store::run::find(tx, id)).collect::<Result<Vec<_>, Failure>>()
        }));
        let runs = runs.expect("a database in memory is read").into_iter().flatten();
        // What executes the calls of cached runs was submitted by no user.
        let by_a_user = |run: &Run| run.spec.call.as_ref().is_none_or(|call| call.backend().is_none());
        let runs = runs.filter(|run| run.imported_at.is_none() && by_a_user(run)).count();
        let accepted = self.clients.iter().filter(|client| client.run.is_some() && client.run != client.lost).count();
        if runs != accepted {
            self.complain(Promise::Safe, format!("{accepted} requests made {runs} runs"));
        }
    }

    /// A step that must not be repeated had its effect at most once, in all attempts.
    fn judge_effects(&mut self) {
        let book = self.tool.book.clone();
        let book = book.lock().expect("one thread");
        for (key, seen) in book.all().filter(|(_, seen)| seen.once && seen.effects > 1) {
            self.complain(Promise::NotRepeated, format!("the step {key} had its effect {} times", seen.effects));
        }
    }

    /// Nothing is set aside for what has ended.
    fn judge_money(&mut self) {
        for org in self.orgs {
            let balance = now(self.auditor.engine().balance(org)).expect("a database in memory is read");
            if balance.reserved != model::Credits::ZERO && self.broken.is_empty() {
                self.complain(Promise::Safe, format!("{} credits of {org} are set aside for nobody", balance.reserved));
            }
        }
    }

    fn judge_machines(&mut self) {
        for (name, machine) in self.far.near.machines() {
            let known = name.clone();
            let row = now(self.store.read("sim.instance", move |tx| store::instance::by_name(tx, &known)));
            let row = row.expect("a database in memory is read").map(|row| (row.status, row.handle.is_some()));
            let care = if machine.state == MachineState::Gone { "forgets" } else { "ends" };
            let state = machine.state;
            let what = format!("{name} is {state:?} and nobody {care} it: its row says (status, bound) {row:?}");
            self.complain(Promise::Ends, what);
        }
    }

    fn judge_run(&mut self, index: usize, run: &Run) {
        if !run.status.is_end() {
            let open = self.open_rows(run);
            let what = format!("{} never ends: it is {} ({:?}){open}", run.id, run.status, run.phase);
            return self.complain(Promise::Ends, what);
        }
        if run.call.is_some() {
            return self.judge_caller(index, run);
        }
        let executions: Vec<_> = self.truth.of(run.id).cloned().collect();
        let client = &self.clients[index];
        let attempts = client.spec.retry.as_ref().map_or(1, |retry| retry.max_attempts * retry.max_attempts);
        let allowed = client.retries + attempts;
        if executions.len() as i64 > allowed {
            let what = format!("{} was executed {} times, {allowed} were wanted", run.id, executions.len());
            self.complain(Promise::NotRepeated, what);
        }
        let really = |code: i32| executions.iter().any(|execution| execution.exit_code == Some(code));
        if run.spec.kind == RunKind::External {
            return self.judge_usage(run);
        }
        if run.spec.kind == RunKind::Agents {
            self.note_situations(run);
            self.judge_usage(run);
            return self.judge_step_logs(run);
        }
        if run.status == RunStatus::Completed && !really(0) {
            self.complain(Promise::Safe, format!("{} is said to have completed, but no command of it did", run.id));
        }
        if let Some(code) = run.exit_code.filter(|code| !really(*code)) {
            let what = format!("{} is said to have ended with {code}, but no command of it did", run.id);
            self.complain(Promise::Safe, what);
        }
        self.judge_logs(run);
        self.judge_slots(run);
    }

    /// What is open below a run that does not end: the first thing to know about it.
    fn open_rows(&self, run: &Run) -> String {
        let (id, attempt) = (run.id, run.attempt);
        let rows = now(self.store.read("sim.open", move |tx| {
            let mut rows = Vec::new();
            for agent in store::agent::of_attempt(tx, id, attempt)?.iter().filter(|agent| !agent.status.is_end()) {
                rows.push(format!("\n    {agent:?}"));
            }
            for task in store::task::of_attempt(tx, id, attempt)?.iter().filter(|task| !task.status.is_end()) {
                rows.push(format!("\n    {task:?}"));
            }
            for step in store::step::of_attempt(tx, id, attempt)?.iter().filter(|step| !step.status.is_end()) {
                rows.push(format!("\n    {step:?}"));
            }
            Ok(rows.concat())
        }));
        rows.expect("a database in memory is read")
    }

    fn note_situations(&mut self, run: &Run) {
        let (id, attempt) = (run.id, run.attempt);
        let steps = now(self.store.read("sim.steps", move |tx| store::step::of_attempt(tx, id, attempt)));
        let called = |step: &model::step::Step| step.tool == ToolKind::Call && step.status == StepStatus::Completed;
        if steps.expect("a database in memory is read").iter().any(called) {
            self.tool.book().meets(Situation::StepCalled);
        }
        let tasks = now(self.store.read("sim.tasks", move |tx| store::task::of_attempt(tx, id, attempt)));
        let tasks = tasks.expect("a database in memory is read");
        let mut book = self.tool.book();
        let by_goal = run.spec.plan.goal && run.plan_version > 1;
        let again = run.plan_version > 1 + i64::from(run.spec.plan.goal);
        let retried = run.attempt > 1 && run.spec.failure_mode == FailureMode::Retry;
        let spent =
            run.status == RunStatus::Failed && run.last_error.as_ref().is_some_and(|error| error.code == "budget");
        let met = [
            (by_goal, Situation::PlanMade),
            (again, Situation::PlannedAgain),
            (retried, Situation::RunRetried),
            (spent, Situation::BudgetSpent),
            (tasks.iter().any(|task| task.item.is_some()), Situation::MadePerItem),
            (tasks.iter().any(|task| task.unneeded), Situation::NotNeeded),
        ];
        met.into_iter().filter(|(is_met, _)| *is_met).for_each(|(_, situation)| book.meets(situation));
    }

    /// An approval that was not given in time.
    fn note_expired(&mut self) {
        for org in self.orgs {
            let closed = now(self.auditor.engine().questions(org, StepWait::Approval, false, i64::MAX, 100));
            let closed = closed.expect("a database in memory is read");
            if closed.iter().any(|question| question.status == QuestionStatus::Expired) {
                self.tool.book().meets(Situation::Expired);
            }
        }
    }

    /// What the workflows of this world came to.
    fn note_workflows(&mut self) {
        for org in self.orgs {
            let (workflows, events) = now(self.store.read("sim.workflows", move |tx| {
                Ok((store::workflow::page(tx, org, i64::MAX, 1000)?, store::event::after(tx, org, None, 0, 1000)?))
            }))
            .expect("a database in memory is read");
            let mut book = self.tool.book();
            for workflow in workflows {
                let went = |pattern| workflow.applied.iter().any(|applied| applied.pattern == pattern);
                let well = workflow.status == WorkflowStatus::Completed;
                if well && went(PatternKind::RetryWithAlternative) {
                    book.meets(Situation::Elsewhere);
                }
                if well && went(PatternKind::ParallelFanOut) {
                    book.meets(Situation::CleanedUp);
                }
            }
            if events.iter().any(|event| event.kind == "instance.adopted") {
                book.meets(Situation::Adopted);
            }
        }
    }

    /// No org pays for tokens that no model has used, or twice for the same.
    fn judge_usage(&mut self, run: &Run) {
        let id = run.id;
        let steps = now(self.store.read("sim.steps", move |tx| store::step::of_run(tx, id)));
        let mut paid: BTreeMap<String, i64> = BTreeMap::new();
        for step in steps.expect("a database in memory is read") {
            // What was asked is paid by an estimate, whether or not it reached the model before its caller died.
            let counted = step.usage.filter(|usage| !usage.estimated);
            let tokens = counted.map_or(0, |usage| usage.input_tokens + usage.output_tokens);
            *paid.entry(step.key.unwrap_or_default()).or_default() += tokens;
        }
        for (key, tokens) in paid {
            let used = self.tool.book().of(&key).tokens;
            if tokens > used {
                self.complain(Promise::Safe, format!("{id} pays for {tokens} tokens of {key}, which used {used}"));
            }
        }
    }

    /// The same of the logs of commands, which each have their own.
    fn judge_step_logs(&mut self, run: &Run) {
        let (id, attempt) = (run.id, run.attempt);
        let steps = now(self.store.read("sim.steps", move |tx| store::step::of_attempt(tx, id, attempt)));
        for step in steps.expect("a database in memory is read").into_iter().filter(|step| step.on.is_some()) {
            let of = step.present_try();
            let page = now(self.auditor.engine().logs.read(of, 0, i64::MAX)).expect("a log is read");
            let written = page.frames.iter().filter(|placed| placed.frame.stream == LogStream::Stdout);
            let kept: Vec<u8> = written.flat_map(|placed| placed.frame.data.clone()).collect();
            if kept != crate::agent_machine::output(of, 0, kept.len() as i64) {
                self.complain(Promise::Safe, format!("the log of {of} is not what was written"));
            }
        }
    }

    /// R135, R136: the slot of a job whose sync failed, whose keeper died or which lost its control plane is FAILED and not held.
    fn judge_slots(&mut self, run: &Run) {
        let id = run.id;
        let slots = now(self.store.read("sim.slots", move |tx| {
            let jobs = store::job::of_run(tx, id)?.into_iter();
            jobs.map(|job| {
                Ok((job.allocation.map(|slot| store::allocation::find(tx, slot)).transpose()?.flatten(), job))
            })
            .collect::<Result<Vec<_>, Failure>>()
        }));
        for (slot, job) in slots.expect("a database in memory is read") {
            let Some(slot) = slot.filter(|_| self.truth.has_slot_failed(job.id, job.epoch)) else { continue };
            if slot.status != AllocationStatus::Failed || slot.debug_hold_until.is_some() {
                let what = format!(
                    "{} of {}, which broke, is {} until {:?}",
                    slot.id, job.id, slot.status, slot.debug_hold_until
                );
                self.complain(Promise::Safe, what);
            }
        }
    }

    /// What is kept of a log is what was written, from its beginning, without gap or repetition; all of it unless it is marked.
    fn judge_logs(&mut self, run: &Run) {
        let id = run.id;
        let jobs = now(self.store.read("sim.jobs", move |tx| store::job::of_run(tx, id)));
        for job in jobs.expect("a database in memory is read") {
            let page = now(self.auditor.engine().logs.read(job.id, 0, i64::MAX)).expect("a log is read");
            let written = page.frames.iter().filter(|placed| placed.frame.stream == LogStream::Stdout);
            let kept: Vec<u8> = written.flat_map(|placed| placed.frame.data.clone()).collect();
            // Of an imported run the log begins where its runner still had it.
            let from = if run.imported_at.is_some() { self.log_from(run) } else { 0 };
            let to = from + kept.len() as i64;
            if kept != truth::output(job.id, job.epoch, from, to) {
                self.complain(Promise::Safe, format!("the log of {} is not what was written", job.id));
            }
            if let Some(end) = job.final_offset.filter(|end| !job.log_cut && *end != to) {
                let what = format!("the log of {} has {} of {end} bytes, and no mark", job.id, kept.len());
                self.complain(Promise::Safe, what);
            }
        }
    }
}
