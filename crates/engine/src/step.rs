//! Whether a step may begin, and what is written down about it: its input, its record in the run's journal, its output. The journal is
//! looked up before every act and written in the commits that begin and end it, so that no effect is repeated in any attempt.

use crate::render::{Evaluated, Want, wait_until};
use crate::run_tx::{RunTx, Tracked};
use model::hierarchy::{Pick, Ready, Rows, TaskReady};
use model::plan::{AgentPlan, Policy, StepPlan};
use model::question::QuestionStatus;
use model::run::LastError;
use model::step::{Recorded, Step, StepStatus, StepWait, ToolKind};
use model::task::Task;
use model::{AgentId, Failure, RunId, Timestamp, Trouble, bug};
use serde_json::Value;
use std::sync::Arc;
use store::step::{Data, JournalRow};

/// A task by its place in its agent's plan, and the item of a `for_each` that it was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskPlace {
    pub(crate) sequence: i64,
    pub(crate) item: Option<i64>,
}

impl TaskPlace {
    pub(crate) fn of(task: &Task) -> TaskPlace {
        TaskPlace { sequence: task.sequence, item: task.item }
    }
}

/// A step by its place in its agent's plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) task: TaskPlace,
    pub(crate) step: i64,
}

impl Place {
    pub(crate) fn of(task: &Task, step: &Step) -> Place {
        Place { task: TaskPlace::of(task), step: step.sequence }
    }
}

/// What the holder of an agent's work item brings into a transaction, and what it learns there.
pub(crate) struct Acting {
    pub(crate) agent: AgentId,
    pub(crate) fence: i64,
    /// Something was woken that may begin now.
    pub(crate) again: bool,
    /// When to look again for something that cannot wake the agent.
    pub(crate) look_at: Option<Timestamp>,
    pub(crate) plan: Arc<AgentPlan>,
    pub(crate) evaluated: Arc<Evaluated>,
    /// What could begin if its expressions were evaluated.
    pub(crate) wanted: Vec<Want>,
}

/// What the expressions of a step gave, outside of any transaction.
#[derive(Debug, Clone)]
pub(crate) enum Prepared {
    Call(Call),
    /// Its `if` is false.
    NotNeeded,
    /// They cannot be evaluated.
    Refused(LastError),
}

/// What a step's tool is called with.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The step by its logical names: the journal's row is found by it.
    pub(crate) identity: String,
    /// The same for the same step with the same input, in every try and attempt of the run.
    pub(crate) key: String,
    pub(crate) input: Value,
}

/// Added to the generation of a step for each of its dialogues that has failed. Generations below it are those of attempts with `rerun`.
pub(crate) const NEXT_DIALOGUE: i64 = 1_000;

impl Call {
    fn of_next_dialogue(self, run: RunId, tool: ToolKind) -> Result<Call, Failure> {
        let identity: Result<plan::Identity, _> = self.identity.parse();
        let before = identity.map_err(|why| Trouble::internal(format!("{}: {why}", self.identity)))?;
        let next = plan::Identity { generation: before.generation + NEXT_DIALOGUE, ..before };
        let key = plan::key(run, &next, tool, &self.input);
        Ok(Call { identity: next.to_string(), key, input: self.input })
    }
}

/// What the expressions of a task gave.
#[derive(Debug, Clone)]
pub(crate) enum PreparedTask {
    Go,
    NotNeeded,
    /// Its `for_each` gave so many items.
    Each(i64),
    Refused(LastError),
}

impl RunTx<'_> {
    /// What a task's `if` and `for_each` say. A task without them begins, and so does one that was made for an item.
    pub(crate) fn task_readiness(&mut self, task: &Task) -> TaskReady {
        let Some(acting) = &mut self.acting else { return TaskReady::Go };
        let plan = acting.plan.tasks.get(task.sequence as usize);
        let decides = plan.is_some_and(|plan| plan.condition.is_some() || plan.for_each.is_some());
        if !decides || task.item.is_some() {
            return TaskReady::Go;
        }
        match acting.evaluated.tasks.get(&task.sequence) {
            None => {
                acting.wanted.push(Want::Task(task.sequence));
                TaskReady::Later
            }
            Some(PreparedTask::Go) => TaskReady::Go,
            Some(PreparedTask::NotNeeded) => TaskReady::NotNeeded,
            Some(PreparedTask::Each(items)) => TaskReady::Each { items: *items },
            Some(PreparedTask::Refused(error)) => TaskReady::Refused(error.clone()),
        }
    }

    /// A machine's command is begun by its job; any other step by its record, its input and its policy.
    pub(crate) fn readiness(&mut self, step: &Step) -> Result<Ready, Failure> {
        if step.parent.is_some() {
            return self.child_readiness(step);
        }
        let task = Rows::task(self, step.task)?;
        let Some(acting) = &mut self.acting else { return Ok(Ready::Go) };
        let place = Place::of(&task, step);
        let call = match acting.evaluated.steps.get(&place) {
            Some(Prepared::Call(call)) => call.clone(),
            Some(Prepared::NotNeeded) => return Ok(Ready::NotNeeded),
            Some(Prepared::Refused(error)) => return Ok(Ready::Refused(error.clone())),
            None => {
                acting.wanted.push(Want::Step(place));
                return Ok(Ready::Later);
            }
        };
        let policy = self.policy_of(step, place);
        let (call, recorded) = match bug!(journal_after_the_act) {
            true => (call, None),
            false => self.recorded(step, call)?,
        };
        let (call, approved) = match policy {
            Policy::Ask => self.as_approved(call, recorded.as_ref())?,
            Policy::Allow if self.may_repeat_another(step)? => self.as_approved(call, recorded.as_ref())?,
            Policy::Allow | Policy::Deny => (call, true),
        };
        match recorded {
            Some(row) if row.key != call.key && !step.idempotent && !self.is_resumed(step)? => {
                Ok(Ready::Escalate(input_changed()))
            }
            Some(row) if row.key == call.key && row.state == Recorded::Done => match self.record_holds(step, &row)? {
                Ready::Recorded => {
                    self.answer_by(step, &row);
                    Ok(Ready::Recorded)
                }
                Ready::Go => self.permitted(step, place, call, policy, approved),
                ready => Ok(ready),
            },
            Some(_) if bug!(begun_row_overlooked) => self.permitted(step, place, call, policy, approved),
            Some(row)
                if row.key == call.key
                    && row.state == Recorded::Begun
                    && !step.may_be_repeated()
                    && !self.is_resumed(step)? =>
            {
                self.note_call(step, call)?;
                Ok(Ready::Unknown)
            }
            _ => self.permitted(step, place, call, policy, approved),
        }
    }

    /// What the journal says of a step. A dialogue that failed by what was said in it is followed by one of another generation, whose turns
    /// and calls have no records yet: the same turns would lead to the same end.
    fn recorded(&mut self, step: &Step, mut call: Call) -> Result<(Call, Option<JournalRow>), Failure> {
        loop {
            let row = store::step::journal(self.tx, self.run.id, &call.identity)?;
            if step.tool != ToolKind::Llm || row.as_ref().is_none_or(|row| row.state != Recorded::Failed) {
                return Ok((call, row));
            }
            call = call.of_next_dialogue(self.run.id, step.tool)?;
        }
    }

    /// A person has seen the ticket of this step and said that it goes on.
    pub(crate) fn is_resumed(&mut self, step: &Step) -> Result<bool, Failure> {
        let last = self.last_question(step, StepWait::Ticket)?;
        Ok(last.is_some_and(|ticket| ticket.status == QuestionStatus::Resolved))
    }

    fn policy_of(&self, step: &Step, place: Place) -> Policy {
        let plan = self.acting.as_ref().and_then(|acting| step_plan(&acting.plan, place));
        match step.tool {
            ToolKind::Approval => Policy::Ask,
            _ => plan.and_then(|plan| plan.policy).unwrap_or(Policy::Allow),
        }
    }

    /// What its policy and a person say.
    fn permitted(
        &mut self,
        step: &Step,
        place: Place,
        call: Call,
        policy: Policy,
        approved: bool,
    ) -> Result<Ready, Failure> {
        match policy {
            Policy::Deny => Ok(Ready::Refused(denied())),
            _ if approved => self.go(step, place, call),
            Policy::Allow if self.same_step(step, &call)?.is_none() => self.go(step, place, call),
            _ => Ok(Ready::Ask),
        }
    }

    fn go(&mut self, step: &Step, place: Place, call: Call) -> Result<Ready, Failure> {
        if step.tool == ToolKind::Wait {
            return match wait_until(&call.input, self.at) {
                Ok(until) => Ok(Ready::Wait { until }),
                Err(error) => Ok(Ready::Refused(error)),
            };
        }
        let ready = match step.tool {
            ToolKind::External => crate::offer::offer(self.run.org, &call.input),
            _ if step.needs_machine() => self.readiness_on_machine(step, &call.input)?,
            _ if step.by_children => Ready::Go,
            _ if self.has_enough_acts(step.agent)? => Ready::Later,
            _ => {
                let endpoint = self.endpoint_of(step.tool, &call.input);
                self.paced(step, endpoint)?
            }
        };
        if let Some(acting) = &mut self.acting
            && !matches!(acting.evaluated.steps.get(&place), Some(Prepared::Call(evaluated)) if evaluated.key == call.key)
        {
            // A person put another input in the place of the one that was evaluated.
            Arc::make_mut(&mut acting.evaluated).steps.insert(place, Prepared::Call(call));
        }
        self.if_affordable(step, ready)
    }

    /// Whether so many steps of an agent are under way that no other begins before one of them has ended.
    pub(crate) fn has_enough_acts(&mut self, agent: AgentId) -> Result<bool, Failure> {
        Ok(Rows::agent(self, agent)?.acting >= self.context.config.worker.agent_steps)
    }

    /// The evaluated call of a step that may begin in this transaction.
    pub(crate) fn call_of(&mut self, step: &Step) -> Result<Option<Call>, Failure> {
        let task = Rows::task(self, step.task)?;
        let Some(acting) = &self.acting else { return Ok(None) };
        Ok(match acting.evaluated.steps.get(&Place::of(&task, step)) {
            Some(Prepared::Call(call)) => Some(call.clone()),
            _ => None,
        })
    }

    pub(crate) fn answer_by(&mut self, step: &Step, row: &JournalRow) {
        let answered = Step { key: Some(row.key.clone()), answer: Some(row.step), ..step.clone() };
        Rows::set_step(self, answered);
    }

    /// Its input and key stand before it is called.
    pub(crate) fn note_begun(&mut self, step: &Step) -> Result<(), Failure> {
        if step.parent.is_some() {
            return self.note_child_begun(step);
        }
        let Some(call) = self.call_of(step)? else { return Ok(()) };
        let input = step.needs_machine().then(|| call.input.clone());
        self.note_call(step, call)?;
        let step = &Rows::step(self, step.id)?;
        self.hold_call(step)?;
        if let Some(input) = input {
            let step = Rows::step(self, step.id)?;
            self.begun_on_machine(&step, &input)?;
        }
        Ok(())
    }

    /// What a step is called with, or, in an earlier attempt, was. From here on the journal's record belongs to this row: the
    /// outcome of the step, once it is known, is recorded here.
    fn note_call(&mut self, step: &Step, call: Call) -> Result<(), Failure> {
        if step.key.is_none() {
            store::step::insert_data(self.tx, step.id, Data::Input, &call.input)?;
        } else if step.identity.as_deref() == Some(call.identity.as_str()) {
            return Ok(());
        }
        let content = RunTx::content_of(step, &call.input);
        Rows::set_step(self, Step { key: Some(call.key), identity: Some(call.identity), content, ..step.clone() });
        Ok(())
    }

    /// The time of a step of the tool `wait` has come.
    pub(crate) fn note_timer(&mut self, step: &Step) -> Result<(), Failure> {
        let waited = step.began_at.map_or(0, |began| self.at.since(began));
        self.note_output(step, &serde_json::json!({ "waited_ms": waited }))
    }

    /// A step that was called has answered.
    pub(crate) fn note_output(&mut self, step: &Step, output: &Value) -> Result<(), Failure> {
        store::step::insert_data(self.tx, step.id, Data::Output, output)?;
        self.outputs.insert(step.id, output.clone());
        Rows::set_step(self, Step { answer: Some(step.id), ..step.clone() });
        Ok(())
    }

    /// The journal says of each step that changed what its row says.
    pub(crate) fn write_journal(&mut self) -> Result<(), Failure> {
        let changed = self.steps.iter().filter(|kept| kept.is_to_be_written()).map(|kept| &kept.it);
        let called = changed.filter(|step| step.key.is_some() && !step.replayed);
        for step in called.cloned().collect::<Vec<_>>() {
            let Some(identity) = step.identity.clone() else { continue };
            let row = step.recorded().map(|state| JournalRow {
                key: step.key.clone().unwrap_or_default(),
                state,
                step: step.answer.unwrap_or(step.id),
                // Doing under another name what has failed is no repetition.
                content: step.content.clone().filter(|_| state != Recorded::Failed),
            });
            match &row {
                // What a row that was replaced has recorded stands; the row in its place records anew. Its failure is recorded here, since a
                // retry replaces a row in the commit in which it fails.
                Some(row) if step.replaced && row.state != Recorded::Failed => {}
                Some(row) => store::step::record(self.tx, self.run.id, &identity, row)?,
                None => store::step::forget(self.tx, self.run.id, &identity, step.id)?,
            }
        }
        Ok(())
    }

    /// Steps of an agent that some holder works on: those of its running tasks.
    pub(crate) fn acted_on(&mut self, agent: AgentId) -> Result<Vec<Step>, Failure> {
        let parallel = Rows::agent(self, agent)?.parallel as usize;
        let mut found = Vec::new();
        for task in self.running_tasks(agent, parallel)? {
            let most = Rows::task(self, task)?.parallel as usize;
            let running = Rows::steps(self, task, Pick::Running, most)?;
            // Of one whose children wait for a person, others may be worked on.
            let waiting = Rows::steps(self, task, Pick::Waiting, most)?;
            for step in running.iter().chain(&waiting) {
                let step = Rows::step(self, *step)?;
                if step.by_children {
                    for child in Rows::open_children(self, step.id)? {
                        found.push(Rows::step(self, child)?);
                    }
                }
                if running.contains(&step.id) {
                    found.push(step);
                }
            }
        }
        Ok(found)
    }

    /// Also those that are ending: what is in flight below them is still acted on.
    fn running_tasks(&mut self, agent: AgentId, most: usize) -> Result<Vec<model::TaskId>, Failure> {
        for task in store::task::in_flight(self.tx, agent, most as i64)? {
            if !self.tasks.iter().any(|held| held.it.id == task.id) {
                self.tasks.push(Tracked::clean(task));
            }
        }
        let running = |task: &model::task::Task| {
            task.agent == agent && task.status == model::task::TaskStatus::Running && !task.replaced
        };
        Ok(self.tasks.iter().filter(|held| running(&held.it)).map(|held| held.it.id).collect())
    }
}

/// Whether, by its row, a holder works on it.
pub(crate) fn is_in_flight(step: &Step) -> bool {
    step.status == StepStatus::Running && !step.is_unknown()
}

pub(crate) fn step_plan(plan: &AgentPlan, place: Place) -> Option<&StepPlan> {
    plan.tasks.get(place.task.sequence as usize)?.steps.get(place.step as usize)
}

fn denied() -> LastError {
    LastError { code: "denied".into(), message: "its policy is `deny`".into(), cause: None }
}

pub(crate) fn input_changed() -> LastError {
    LastError {
        code: "input_changed".into(),
        message: "it was begun with another input, and it is not known to be safe to begin it again".into(),
        cause: None,
    }
}
