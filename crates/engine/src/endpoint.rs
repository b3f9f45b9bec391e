//! Endpoints that answered 429 (too many requests): a step that would call one waits until its pause is over, in every run of the org.

use crate::run_tx::RunTx;
use model::Failure;
use model::hierarchy::{Ready, Rows};
use model::step::{Step, ToolKind};
use serde_json::Value;

impl RunTx<'_> {
    pub(crate) fn endpoint_of(&self, tool: ToolKind, input: &Value) -> Option<String> {
        self.context.tools.get(&tool)?.endpoint(input)
    }

    /// Whether a call may be sent to this endpoint now. A step that has to wait says why.
    pub(crate) fn paced(&mut self, step: &Step, endpoint: Option<String>) -> Result<Ready, Failure> {
        let Some(endpoint) = endpoint else { return Ok(Ready::Go) };
        let pause = store::endpoint::find(self.tx, self.run.org, &endpoint)?;
        let Some(pause) = pause.filter(|pause| pause.not_before > self.at) else { return Ok(Ready::Go) };
        Rows::set_step(self, Step { held_back_by: Some(endpoint), ..step.clone() });
        Ok(Ready::NotBefore { at: pause.not_before })
    }
}
