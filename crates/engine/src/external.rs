//! Runs of `type: external`: a program outside begins their steps, and that program or a user finishes the run.

use crate::Engine;
use crate::durable::{Asker, Begin, MAX_DATA_BYTES, Standing, failure, open};
use crate::run::{KeyedResponse, Render, Submission};
use crate::run_tx::RunTx;
use crate::view::{self, RunSnapshot};
use model::hierarchy::{self, Rows};
use model::spec::RunKind;
use model::step::StepStatus;
use model::{Failure, OrgId, Refused, RunId};
use serde_json::Value;
use std::sync::Arc;
use store::Lane;
use store::idempotency::Key;

/// How the program says that its run is over.
#[derive(Debug, Clone, PartialEq)]
pub enum Finish {
    Done(Option<Value>),
    Failed(String),
}

impl Finish {
    pub(crate) fn check(&self) -> Result<(), Refused> {
        match self {
            Finish::Done(Some(output)) if output.to_string().len() > MAX_DATA_BYTES => {
                Err(Refused::TooLarge { what: "the output", limit: "256 KiB as JSON".into() })
            }
            _ => Ok(()),
        }
    }
}

/// Turns a run and what became of its first step into the bytes that are answered.
pub type FirstRender = Arc<dyn Fn(&RunSnapshot, &Standing) -> Vec<u8> + Send + Sync>;

impl Engine {
    /// One commit for a run and the beginning of its first step.
    pub async fn submit_with_step(
        &self,
        submission: Submission,
        first: Begin,
        key: Option<Key>,
        render: FirstRender,
    ) -> Result<KeyedResponse, Failure> {
        if submission.spec.kind != RunKind::External || !submission.start {
            let why = "only a run of `type: external` that starts at once (`start`) begins a step with its submission";
            return Err(Refused::invalid("step", why).into());
        }
        first.check()?;
        let asker = Asker::Org(submission.org);
        let begin = move |run_tx: &mut RunTx<'_>| run_tx.begin_durable(asker, &first);
        self.submit_and(submission, key, begin, move |snapshot, standing| render(snapshot, standing)).await
    }

    pub async fn finish_run(
        &self,
        org: OrgId,
        run: RunId,
        finish: Finish,
        key: Option<Key>,
        render: Render,
    ) -> Result<KeyedResponse, Failure> {
        finish.check()?;
        let context = self.context.clone();
        self.keyed(Lane::Normal.of(run), "run.finish", key, 200, move |tx| {
            let mut run_tx = open(tx, &context, Asker::Org(org), run)?;
            run_tx.finish_program(&finish)?;
            run_tx.close()?;
            Ok(render(&view::snapshot(tx, run)?))
        })
        .await
    }
}

impl RunTx<'_> {
    pub(crate) fn finish_program(&mut self, finish: &Finish) -> Result<(), Failure> {
        if self.run.spec.kind != RunKind::External {
            let why = "only a run of `type: external` is finished by its program; others end by themselves";
            return Err(Refused::Conflict { why: why.into() }.into());
        }
        let program = match self.run.status.is_end() {
            false => self.attempt()?.it.tree.program,
            true => None,
        };
        let program = program.map(|program| Rows::step(self, program)).transpose()?;
        let Some(program) = program.filter(|program| program.status == StepStatus::Running) else {
            return Err(Refused::not_from("run", self.run.status, "be finished", &[]).into());
        };
        match finish {
            Finish::Done(output) => {
                if let Some(output) = output {
                    self.note_output(&program, output)?;
                }
                hierarchy::complete_step(self, program.id, program.tries)
            }
            Finish::Failed(message) => {
                let failure = failure(Some("program_failed".into()), message.clone(), None).failure(false);
                hierarchy::fail_step(self, program.id, program.tries, &failure)
            }
        }
    }
}
