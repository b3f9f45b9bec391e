//! A step that would do what was done under another name: by a step of an earlier plan, or by a call of an earlier dialogue of the same
//! step. The journal knows steps by their names, so it does not answer for it; a person approves it first.

use crate::child::generation_of;
use crate::run_tx::RunTx;
use crate::step::{Call, NEXT_DIALOGUE};
use model::hierarchy::Rows;
use model::question::SameStep;
use model::step::{Step, ToolKind};
use model::{Failure, StepId};

impl RunTx<'_> {
    /// Whether a person may have to be asked about this step although its policy allows it.
    pub(crate) fn may_repeat_another(&mut self, step: &Step) -> Result<bool, Failure> {
        let replanned = self.run.plan_version > 1 + i64::from(self.run.spec.plan.goal);
        if step.idempotent || !step.tool.has_effect() {
            return Ok(false);
        }
        // What a program begins below its step is the program's own matter, in whichever plan.
        Ok(match step.parent {
            Some(parent) => {
                let parent = Rows::step(self, parent)?;
                parent.tool == ToolKind::Llm && (replanned || generation_of(&parent) > NEXT_DIALOGUE)
            }
            None => replanned,
        })
    }

    /// The step of an earlier plan that was begun with the same tool and input under another name. Two steps of one plan may well do the
    /// same: the author of the plan meant that.
    pub(crate) fn same_step(&mut self, step: &Step, call: &Call) -> Result<Option<SameStep>, Failure> {
        if !self.may_repeat_another(step)? {
            return Ok(None);
        }
        let content = plan::content(step.tool, &call.input);
        if let Some(same) = self.same_call(step, call, &content)? {
            return Ok(Some(same));
        }
        let found = store::step::begun_elsewhere(self.tx, self.run.id, &content, &call.identity)?;
        let Some((identity, id)) = found else { return Ok(None) };
        let Some(earlier) = store::step::find(self.tx, id)? else { return Ok(None) };
        let version = Rows::agent(self, step.agent)?.plan_version;
        if Rows::agent(self, earlier.agent)?.plan_version >= version {
            return Ok(None);
        }
        Ok(Some(same(&identity, id)))
    }

    /// The call of an earlier dialogue of the same step that was made with the same tool and input. Two calls of one dialogue may well do
    /// the same: the model has seen what came of the first.
    fn same_call(&mut self, step: &Step, call: &Call, content: &str) -> Result<Option<SameStep>, Failure> {
        let Some(parent) = step.parent.map(|parent| Rows::step(self, parent)).transpose()? else { return Ok(None) };
        let Some((path, generation)) = parent.identity.as_deref().and_then(|identity| identity.rsplit_once('#')) else {
            return Ok(None);
        };
        let (beginning, end) = (format!("{path}/"), format!("#{generation}"));
        if !call.identity.starts_with(&beginning) || generation_of(&parent) <= NEXT_DIALOGUE {
            return Ok(None);
        }
        let found = store::step::begun_below(self.tx, self.run.id, content, &beginning, &end)?;
        Ok(found.map(|(identity, id)| same(&identity, id)))
    }

    /// What the journal finds a step by that does the same.
    pub(crate) fn content_of(step: &Step, input: &serde_json::Value) -> Option<String> {
        (!step.idempotent).then(|| plan::content(step.tool, input))
    }
}

fn same(identity: &str, step: StepId) -> SameStep {
    let path = identity.rsplit_once('#').map_or(identity, |(path, _)| path).to_owned();
    SameStep { step, path }
}
