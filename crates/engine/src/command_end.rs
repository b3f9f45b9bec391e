//! Reports of a runner about the commands of a planned agent: started, and ended with an output or an error that has a class and an effect. Each
//! end names its try; the end of an older one is refused before it comes here.

use crate::agent::{MAX_BYTES, MAX_OUTPUT_BYTES, reference, schema_problem};
use crate::plan_limits::PlanLimits;
use crate::run_tx::RunTx;
use crate::runner::{Fact, Output, What};
use crate::step::{Place, step_plan};
use crate::{Engine, EngineContext};
use adapters::tool::mcp::stdio;
use model::agent::AgentKind;
use model::hierarchy::{self, Rows};
use model::job::{Job, JobReason, LifecycleError};
use model::recovery::{ErrorClass, StepFailure};
use model::run::LastError;
use model::step::{OnMachine, Step, StepTry, ToolKind};
use model::{Effect, Failure, Refused};
use serde_json::{Value, json};
use store::WorkKind;
use store::artifact::Artifact;

impl Engine {
    /// Outputs that are too large for a report were uploaded before it: they are read here, outside of the transaction, and all are compared
    /// with the schemas of their steps. Of one that is too large for its row, too, the artifact is what remains, and the output names it.
    pub(crate) async fn with_outputs(&self, job: &Job, mut facts: Vec<Fact>) -> Result<Vec<Fact>, Failure> {
        for fact in &mut facts {
            let mut large = None;
            if let What::Ended { output: output @ Some(Output::Artifact { .. }), .. } = &mut fact.what
                && let Some(Output::Artifact { path, size }) = output.take()
            {
                *output = match self.uploaded(job, path.clone(), size).await? {
                    Some((artifact, text)) => {
                        large = Some(artifact).filter(|_| text.len() > MAX_OUTPUT_BYTES);
                        Some(Output::Json(text))
                    }
                    None => Some(Output::Artifact { path, size }),
                };
            }
            if let Some(step) = fact.step {
                self.check_output(step, &mut fact.what, large).await?;
            }
        }
        Ok(facts)
    }

    /// What does not match its schema, or is a plan with mistakes, is no output. `large`: the artifact that stands for it from then on.
    async fn check_output(&self, step: StepTry, what: &mut What, large: Option<Artifact>) -> Result<(), Failure> {
        let What::Ended { reason: reason @ JobReason::DoneByRunner, exit_code, message, output, stdout_tail, .. } =
            what
        else {
            return Ok(());
        };
        let context = self.context.clone();
        let Some(asked) = self.store.read("step.schema", move |tx| asked_of(tx, &context, step)).await? else {
            return Ok(());
        };
        if !asked.is_checked() && large.is_none() {
            return Ok(());
        }
        let said = answer(asked.tool, output.as_ref(), *exit_code, stdout_tail.as_deref());
        let problem = match &large {
            Some(artifact) if asked.is_read_again() => {
                Some(format!("its output has {} bytes: {MAX_OUTPUT_BYTES} are allowed", artifact.size))
            }
            _ => said.ok().and_then(|said| asked.problem(&self.context, &said)),
        };
        if let Some(problem) = problem {
            (*reason, *message) = (JobReason::InvalidOutput, Some(problem));
        } else if let Some(artifact) = large {
            let hash = artifact.hash.as_deref().unwrap_or_default();
            *output = Some(Output::Json(reference(&artifact, (artifact.size, hash)).to_string()));
        }
        Ok(())
    }

    async fn uploaded(&self, job: &Job, path: String, size: i64) -> Result<Option<(Artifact, String)>, Failure> {
        let (run, attempt) = (job.run, job.attempt);
        let find = move |tx: &mut store::Tx| store::artifact::by_path(tx, run, attempt, &path);
        let found = self.store.read("artifact.output", find).await?;
        let is_whole = |found: &Artifact| found.state == "final" && found.size == size && size <= MAX_BYTES as i64;
        let Some(artifact) = found.filter(is_whole) else {
            return Ok(None);
        };
        let (blobs, name) = (self.blobs.clone(), crate::artifact::name_of(&artifact));
        let bytes = store::blob::blocking(move || blobs.open(&name)?.read_all()).await?;
        Ok(String::from_utf8(bytes).ok().map(|text| (artifact, text)))
    }
}

/// What the output of a plan's step must be.
struct Asked {
    tool: ToolKind,
    schema: Option<Value>,
    /// Of a planner: by what its plan is checked.
    limits: Option<PlanLimits>,
}

impl Asked {
    /// Whether anything but its size can be wrong with an output.
    fn is_checked(&self) -> bool {
        self.schema.is_some() || self.limits.is_some()
    }

    /// A plan is carried out after it was recorded, and what the client of a server says is more than an output: neither can be put away.
    fn is_read_again(&self) -> bool {
        self.limits.is_some() || self.tool == ToolKind::Mcp
    }

    fn problem(&self, context: &EngineContext, said: &Value) -> Option<String> {
        let problem = schema_problem(said, self.schema.as_ref());
        problem.map(|problem| problem.failure.error.message).or_else(|| self.limits.as_ref()?.problem(context, said))
    }
}

fn asked_of(tx: &mut store::Tx, context: &EngineContext, step: StepTry) -> Result<Option<Asked>, Failure> {
    let Some(step) = store::step::find(tx, step.id)? else { return Ok(None) };
    if step.parent.is_some() {
        return Ok(Some(Asked { tool: step.tool, schema: None, limits: None }));
    }
    let (task, agent) = (store::task::find(tx, step.task)?, store::agent::find(tx, step.agent)?);
    let (Some(task), Some(agent)) = (task, agent) else { return Ok(None) };
    let plan = store::plan::find(tx, agent.run, agent.plan_version, agent.sequence)?;
    let planned = plan.as_ref().and_then(|plan| step_plan(plan, Place::of(&task, &step)));
    let schema = planned.and_then(|planned| planned.output.clone());
    let limits = match agent.kind {
        AgentKind::Planner => {
            let run = store::run::find(tx, agent.run)?.ok_or_else(|| Refused::not_found("run", agent.run))?;
            let document = store::plan::shared(tx, run.id)?.document;
            PlanLimits::of(tx, context, &run, document)?
        }
        _ => None,
    };
    Ok(Some(Asked { tool: step.tool, schema, limits }))
}

impl RunTx<'_> {
    /// Files that had to be there first are in place, and others may begin.
    pub(crate) fn command_started(&mut self, said: StepTry) -> Result<(), Failure> {
        let step = Rows::step(self, said.id)?;
        let Some(on) = step.on.clone().filter(|on| !on.restores.is_empty()) else { return Ok(()) };
        Rows::set_step(self, Step { on: Some(OnMachine { restores: Vec::new(), ..on }), ..step.clone() });
        Rows::wake_agent(self, step.agent, self.at);
        Ok(())
    }

    pub(crate) fn command_ended(&mut self, said: StepTry, what: &What) -> Result<(), Failure> {
        let step = Rows::step(self, said.id)?;
        if !hierarchy::is_current(&step, said.number) {
            return Ok(()); // said twice, or it was given up: its row says what became of it
        }
        let What::Ended { final_offset, kept, .. } = what else { return Ok(()) };
        let kept = kept.as_ref().map(|tree| tree.hash.clone());
        let kept = match kept {
            Some(tree) if store::content::is_tree_here(self.tx, self.run.org, &tree)? => {
                store::content::use_by(self.tx, self.run.org, self.run.id, std::slice::from_ref(&tree))?;
                Some(tree)
            }
            _ => None,
        };
        if let Some(on) = step.on.clone() {
            let job = self.job(on.job)?.clone();
            let on = OnMachine { log_end: Some(*final_offset), kept, ..on };
            Rows::set_step(self, Step { on: Some(on), ..step.clone() });
            job.instance.into_iter().for_each(|instance| self.tell(instance));
        }
        self.wake(WorkKind::StepLog, said.id.0, self.at);
        let step = Rows::step(self, said.id)?;
        self.judge_end(&step, what)
    }

    fn judge_end(&mut self, step: &Step, what: &What) -> Result<(), Failure> {
        let (id, number) = (step.id, step.tries);
        match ended(step.tool, what) {
            End::Well(output) => {
                self.note_output(step, &output)?;
                let may_leave_files = step.files.as_ref().is_none_or(|globs| !globs.is_empty());
                if step.tool == ToolKind::Command && may_leave_files && !self.is_verify(step)? {
                    let mut agent = Rows::agent(self, step.agent)?;
                    agent.in_workdir += 1;
                    Rows::set_agent(self, agent);
                }
                match step.parent {
                    Some(_) => hierarchy::complete_child(self, id, number),
                    None => hierarchy::complete_step(self, id, number),
                }
            }
            End::Stopped if hierarchy::is_to_stop(self, step)? => {
                hierarchy::cancel_step(self, id, number, !step.idempotent)
            }
            End::Stopped => self.lose_command(step, &error("stopped", "its machine was shut down".into())),
            End::Lost(error) => self.lose_command(step, &error),
            End::Failed(failure) if step.parent.is_some() => hierarchy::fail_child(self, id, number, &failure),
            End::Failed(failure) => hierarchy::fail_step(self, id, number, &failure),
        }
    }

    /// A `verify` only reads: no later step needs what it leaves in the workdir.
    fn is_verify(&mut self, step: &Step) -> Result<bool, Failure> {
        let parent = step.parent.map(|parent| Rows::step(self, parent)).transpose()?;
        Ok(parent.is_some_and(|parent| parent.verifying))
    }

    pub(crate) fn lose_command(&mut self, step: &Step, error: &LastError) -> Result<(), Failure> {
        match step.parent {
            Some(_) => hierarchy::lose_child(self, step.id, step.tries, error),
            None => hierarchy::lose_step(self, step.id, step.tries, error),
        }
    }
}

enum End {
    Well(Value),
    /// Because it was to.
    Stopped,
    /// With its machine.
    Lost(LastError),
    Failed(StepFailure),
}

fn error(code: &str, message: String) -> LastError {
    LastError { code: code.into(), message, cause: None }
}

fn failed(class: ErrorClass, effect: Effect, code: &str, message: String) -> End {
    End::Failed(StepFailure { class, effect, retry_after_ms: None, error: error(code, message) })
}

/// An exit code is an answer, and its effect *done*. A signal, a limit or a time-out cut it off somewhere: *perhaps*.
fn ended(tool: ToolKind, what: &What) -> End {
    use Effect::{Done, None as Nothing, Perhaps};
    use ErrorClass::{InvalidOutput, Permanent, Resource, Transient, Unknown};
    let What::Ended { reason, exit_code, signal, message, lifecycle_error, output, stdout_tail, started, .. } = what
    else {
        return failed(Unknown, Perhaps, "unknown", "it did not end".into());
    };
    let said = |words: &str| message.clone().unwrap_or_else(|| words.to_owned());
    match (reason, exit_code, signal) {
        (JobReason::DoneByRunner, ..) if tool == ToolKind::Mcp => called(output.as_ref()),
        // The client of the server did not get so far as to say what became of its call.
        (JobReason::ExitedWithError, Some(code), _) if tool == ToolKind::Mcp => {
            failed(Transient, Perhaps, "mcp_client", format!("the client of the MCP server exited with code {code}"))
        }
        (JobReason::DoneByRunner, ..) => match answer(tool, output.as_ref(), *exit_code, stdout_tail.as_deref()) {
            Ok(output) => End::Well(output),
            Err(why) => failed(InvalidOutput, Done, "invalid_output", why),
        },
        (JobReason::InvalidOutput, ..) => failed(InvalidOutput, Done, "invalid_output", said("its output is not JSON")),
        (JobReason::ExitedWithError, _, Some(signal)) => {
            failed(Transient, Perhaps, "signal", format!("the command was killed by signal {signal}"))
        }
        (JobReason::ExitedWithError, Some(code), _) => {
            failed(Permanent, Done, "exit_code", format!("the command exited with code {code}"))
        }
        (JobReason::MaxDuration, ..) => failed(Transient, Perhaps, "timeout", "the step's time limit passed".into()),
        (JobReason::LimitsExceeded, ..) => {
            failed(Resource, Perhaps, reason.as_str(), said("it needed more than its machine has"))
        }
        (JobReason::TerminatedByServer | JobReason::TerminatedByUser | JobReason::AbortedByUser, ..) => End::Stopped,
        (JobReason::Interrupted | JobReason::ControlLost | JobReason::InstanceLost, ..) => {
            End::Lost(error(reason.as_str(), said("its machine was lost")))
        }
        (JobReason::ExecutorError, ..) if *lifecycle_error == Some(LifecycleError::KeeperDied) => {
            failed(Transient, Perhaps, "keeper_died", said("the process that held it was killed"))
        }
        (JobReason::ExecutorError, ..) if !started => {
            failed(Transient, Nothing, "not_started", said("it could not be started"))
        }
        _ => failed(Unknown, Perhaps, reason.as_str(), said("it ended in an unknown way")),
    }
}

/// What the client of an MCP server says of its call.
fn called(output: Option<&Output>) -> End {
    let text = match output {
        Some(Output::Json(text)) => text.as_str(),
        _ => "",
    };
    match serde_json::from_str(text) {
        Ok(stdio::ServerAnswer::Output(output)) => End::Well(output),
        Ok(stdio::ServerAnswer::Failed { class, effect, code, message }) => failed(class, effect, &code, message),
        Err(_) => {
            let why = "what the client of the MCP server said did not arrive".to_owned();
            failed(ErrorClass::Unknown, Effect::Perhaps, "mcp_client", why)
        }
    }
}

/// What it left in `$REPL_OUTPUT`; a command that left nothing answers with how it ended.
fn answer(
    tool: ToolKind,
    output: Option<&Output>,
    exit_code: Option<i32>,
    tail: Option<&[u8]>,
) -> Result<Value, String> {
    if tool == ToolKind::Mcp {
        return match called(output) {
            End::Well(output) => Ok(output),
            _ => Err("the call failed".into()),
        };
    }
    match output {
        Some(Output::Json(text)) => {
            serde_json::from_str(text).map_err(|error| format!("its output is not JSON: {error}"))
        }
        Some(Output::Artifact { path, .. }) => Err(format!("its output `{path}` did not arrive")),
        None if tool == ToolKind::Exec => Err("it wrote no JSON to its standard output".into()),
        None => {
            let tail = String::from_utf8_lossy(tail.unwrap_or_default());
            Ok(json!({ "exit_code": exit_code.unwrap_or(0), "stdout_tail": tail }))
        }
    }
}
