//! After a new plan was made: a step that would do what a step of an earlier plan did under another name. The journal knows steps by their
//! names, so it does not answer for it; a person approves it first.

use crate::run_tx::RunTx;
use crate::step::Call;
use model::Failure;
use model::hierarchy::Rows;
use model::question::SameStep;
use model::step::{Step, ToolKind};

impl RunTx<'_> {
    /// Whether a person may have to be asked about this step although its policy allows it.
    pub(crate) fn may_repeat_another(&mut self, step: &Step) -> Result<bool, Failure> {
        let replanned = self.run.plan_version > 1 + i64::from(self.run.spec.plan.goal);
        if !replanned || step.idempotent || !step.tool.has_effect() {
            return Ok(false);
        }
        // What a program begins below its step is the program's own matter, in whichever plan.
        Ok(match step.parent {
            Some(parent) => Rows::step(self, parent)?.tool == ToolKind::Llm,
            None => true,
        })
    }

    /// The step of an earlier plan that was begun with the same tool and input under another name. Two steps of one plan may well do the
    /// same: the author of the plan meant that.
    pub(crate) fn same_step(&mut self, step: &Step, call: &Call) -> Result<Option<SameStep>, Failure> {
        if !self.may_repeat_another(step)? {
            return Ok(None);
        }
        let content = plan::content(step.tool, &call.input);
        let found = store::step::begun_elsewhere(self.tx, self.run.id, &content, &call.identity)?;
        let Some((identity, id)) = found else { return Ok(None) };
        let Some(earlier) = store::step::find(self.tx, id)? else { return Ok(None) };
        let version = Rows::agent(self, step.agent)?.plan_version;
        if Rows::agent(self, earlier.agent)?.plan_version >= version {
            return Ok(None);
        }
        let path = identity.rsplit_once('#').map_or(identity.as_str(), |(path, _)| path).to_owned();
        Ok(Some(SameStep { step: id, path }))
    }

    /// What the journal finds a step by that does the same.
    pub(crate) fn content_of(step: &Step, input: &serde_json::Value) -> Option<String> {
        (!step.idempotent).then(|| plan::content(step.tool, input))
    }
}
