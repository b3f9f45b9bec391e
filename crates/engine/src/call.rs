//! Calls of functions, as their callers see them: a pinned result answers at once and nothing is written; otherwise the caller shares the
//! execution of the same call or begins one, and reads how it is.

use crate::cached_run::{CalledRun, by_run};
use crate::execution::{OWN_ADAPTER, Request, Work, kind_of, open, request_of};
use crate::run::{KeyedResponse, Submission, affordable, check_asked, check_secrets, use_contents};
use crate::{Engine, EngineContext, cached_run};
use calls::cached_run::FUNCTION;
use calls::call::{Call, value_of};
use calls::function::Function;
pub use calls::json::rounded;
use calls::json::{self, to_json};
use calls::key::{Epoch, execution_key};
use calls::reach::closure;
use calls::record::ExecStatus;
use calls::refs::Uuid;
use calls::{ExecId, Fault, Memory, NodeId, Value, read};
use model::execution::{Execution, ExecutionStatus};
use model::plan::AgentPlan;
use model::run::LastError;
use model::spec::CallPart;
use model::step::ToolKind;
use model::{CallId, Failure, OrgId, Refused, RunId, Timestamp, Trouble};
use serde_json::Value as Json;
use std::sync::Arc;
use store::execution::Numbered;
use store::idempotency::Key;
use store::object::Objects;
use store::{Lane, Tx};

/// Of one call. Each is a node.
pub const MAX_INPUTS: usize = 1_000;
/// Records of the inputs of one call.
const MAX_RECORDS: usize = 100_000;

/// A function and the values it is applied to.
#[derive(Debug, Clone)]
pub struct CallAsked {
    pub org: OrgId,
    pub function: String,
    pub inputs: Vec<Json>,
    /// A pinned result answers. If not, the call is executed, and its result replaces the pinned one.
    pub cache: bool,
}

/// How a call is.
#[derive(Debug, Clone)]
pub struct CallSeen {
    /// None: a pinned result answered, and there is no execution of this caller's.
    pub id: Option<CallId>,
    pub function: String,
    pub node: String,
    pub attempt: i64,
    pub status: ExecutionStatus,
    pub result: Option<CallResult>,
    pub error: Option<LastError>,
    pub not_before: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// The run that executes it.
    pub run: Option<RunId>,
    /// It failed for a reason that may pass.
    pub may_pass: bool,
    /// The run that executed it failed, and said nothing about the call: why, as a value. It is kept as long as what nothing leads to.
    pub failure: Option<CallFailure>,
}

#[derive(Debug, Clone)]
pub struct CallFailure {
    pub dag: String,
    /// None: it was deleted.
    pub value: Option<Json>,
}

#[derive(Debug, Clone)]
pub struct CallResult {
    pub exec: String,
    pub ok: bool,
    /// The root of its result dag. None: it was deleted, or is no value.
    pub value: Option<Json>,
    pub run: Option<String>,
}

/// Makes a submission of an org from the document of a run.
pub type ReadDocument = fn(&EngineContext, (OrgId, &str), Json) -> Result<Submission, Failure>;

/// Names the executions of a caller that shares them with no other.
#[derive(Debug)]
struct Own {
    uuid: Uuid,
    /// The caller may ask again under this name.
    returns: bool,
}

impl Own {
    fn new(name: &str, returns: bool) -> Own {
        Own { uuid: Uuid::derived(name), returns }
    }
}

/// What a call is, once its function and inputs were read.
enum Prepared {
    Run(Box<Submission>, CalledRun),
    Adapter(Function, Call),
}

impl Prepared {
    fn node(&self) -> NodeId {
        match self {
            Prepared::Run(_, called) => called.call.node,
            Prepared::Adapter(_, call) => call.node,
        }
    }
}

/// Turns a call into the bytes that are answered.
pub type CallRender = Arc<dyn Fn(&CallSeen) -> Vec<u8> + Send + Sync>;

pub enum CallAnswer {
    Hit(Box<CallSeen>),
    Asked(KeyedResponse),
}

impl Engine {
    /// Answers from a pinned result, or begins or joins the execution.
    pub async fn call(&self, asks: CallAsked, key: Option<Key>, render: CallRender) -> Result<CallAnswer, Failure> {
        let (org, cache) = (asks.org, asks.cache);
        let prepared = self.prepared(asks).await?;
        if cache && let Some(hit) = self.hit(org, prepared.node()).await? {
            return Ok(CallAnswer::Hit(Box::new(hit)));
        }
        let context = self.context.clone();
        let answered = self.keyed(Lane::Normal, "call.ask", key, 202, move |tx| {
            let own = (!cache).then(|| Own::new(&format!("call of {org} {}", tx.next_id()), false));
            let id = begin(tx, &context, org, &prepared, own.as_ref())?;
            let mut it = locked(tx, id)?;
            if !it.asked {
                it.asked = true;
                store::execution::save(tx, id, &it)?;
            }
            Ok(render(&seen(tx, id, it)?))
        });
        Ok(CallAnswer::Asked(answered.await?))
    }

    /// The same for a step of a run, which is then a caller of the execution until it ends. `step` names the step: without a cache its
    /// repetitions share one execution, and a result that this had is their answer.
    pub(crate) async fn call_by_run(&self, asks: CallAsked, run: RunId, step: &str) -> Result<CallSeen, Failure> {
        let (org, cache) = (asks.org, asks.cache);
        let prepared = self.prepared(asks).await?;
        if cache && let Some(hit) = self.hit(org, prepared.node()).await? {
            return Ok(hit);
        }
        let context = self.context.clone();
        let own = (!cache).then(|| Own::new(&format!("call of {org} by step {step}"), true));
        self.store
            .write(Lane::Normal, "call.step", move |tx| {
                if let Some(own) = &own
                    && let Some(id) = ended_well(tx, org, prepared.node(), own)?
                {
                    let it = locked(tx, id)?;
                    return seen(tx, id, it);
                }
                let id = begin(tx, &context, org, &prepared, own.as_ref())?;
                store::execution::join(tx, id, run)?;
                let it = locked(tx, id)?;
                seen(tx, id, it)
            })
            .await
    }

    /// The function `dml+exec://dml-exec-repl/run` is a run of this system and shares results with `repl run --cache`.
    async fn prepared(&self, asks: CallAsked) -> Result<Prepared, Failure> {
        if !self.is_run(&asks.function)? {
            let function = self.context.function(&asks.function)?;
            let call = node_of(&function, &asks.inputs)?;
            return Ok(Prepared::Adapter(function, call));
        }
        let [document] = <[Json; 1]>::try_from(asks.inputs).map_err(|inputs| {
            let why = format!("{} takes one input, the document of a run, here are {}", asks.function, inputs.len());
            Refused::invalid("inputs", why)
        })?;
        let read = self.documents.ok_or_else(|| Trouble::internal("this process reads no documents of runs"))?;
        let limited = self.context.limits_orgs();
        let name = if limited { self.balance(asks.org).await?.name } else { String::new() };
        let mut submission = read(&self.context, (asks.org, &name), document)?;
        let keyed = submission.spec.call.as_ref().and_then(CallPart::caller).cloned().unwrap_or_default();
        submission.start = true;
        // Its result is kept: what the key of a cached run does not know is refused here, too.
        submission.spec.call = Some(CallPart::Caller(keyed.clone()));
        check_asked(&self.context, &submission)?;
        submission.spec.call = None;
        self.check_stdin(&submission).await?;
        let called = self.call_of(submission.org, &submission.spec, &keyed).await?;
        Ok(Prepared::Run(Box::new(submission), called))
    }

    /// The URI under which calls of a function are kept.
    pub fn function_uri(&self, text: &str) -> Result<String, Refused> {
        let function = Function::parse(text).map_err(|bad| Refused::invalid("function", bad.to_string()))?;
        match function.adapter() == OWN_ADAPTER {
            true => self.is_run(text).map(|_| FUNCTION.to_owned()),
            false => Ok(function.uri().as_str().to_owned()),
        }
    }

    /// Whether the function is a run of this system, if it may be called here.
    pub fn is_run(&self, text: &str) -> Result<bool, Refused> {
        let function = self.context.function(text)?;
        let plain = FUNCTION.split('?').next().unwrap_or(FUNCTION);
        match function.adapter() == OWN_ADAPTER {
            true if text != plain && text != FUNCTION => {
                let why = format!("`{text}` is not known: the adapter {OWN_ADAPTER} executes {plain}");
                Err(Refused::invalid("function", why))
            }
            is_run => Ok(is_run),
        }
    }

    /// The pinned result of a call. Its use is noted at most once an hour, so that a result in use is kept.
    pub(crate) async fn hit(&self, org: OrgId, node: NodeId) -> Result<Option<CallSeen>, Failure> {
        if self.pinned_result(org, node).await?.is_none() {
            return Ok(None);
        }
        let project = cached_run::project(&self.context);
        let of = project.clone();
        let found = self.store.read("call.hit", move |tx| {
            let Some(exec) = store::pin::find(tx, org, &of, node)? else { return Ok(None) };
            let Some(row) = store::exec::find(tx, org, exec)? else { return Ok(None) };
            let Some(result) = result_of(tx, org, exec)? else { return Ok(None) };
            let stale = store::pin::is_stale(tx, org, &of, node)?;
            let hit = CallSeen {
                id: None,
                function: row.function,
                node: node.to_string(),
                attempt: 0,
                status: ExecutionStatus::PinnedHit,
                run: row.run,
                result: Some(result),
                error: None,
                not_before: None,
                started_at: None,
                ended_at: Some(row.ended_at),
                may_pass: false,
                failure: None,
            };
            Ok(Some((hit, stale)))
        });
        let Some((hit, stale)) = found.await? else { return Ok(None) };
        if stale {
            let note = move |tx: &mut Tx| store::pin::used(tx, org, &project, node);
            self.store.write(Lane::Low, "call.used", note).await?;
        }
        Ok(Some(hit))
    }

    /// One execution of a call.
    pub async fn called(&self, org: OrgId, id: CallId) -> Result<CallSeen, Failure> {
        self.store
            .read("call.find", move |tx| {
                let it = owned(tx, org, id)?;
                seen(tx, id.0, it)
            })
            .await
    }

    /// Newest first.
    pub async fn calls(&self, org: OrgId, before: i64, limit: i64) -> Result<Vec<Numbered>, Failure> {
        self.store.read("call.page", move |tx| store::execution::page(tx, org, before, limit)).await
    }

    /// Callers that are no runs want it no longer. It ends with its last caller.
    pub async fn cancel_call(
        &self,
        org: OrgId,
        id: CallId,
        key: Option<Key>,
        render: CallRender,
    ) -> Result<KeyedResponse, Failure> {
        self.keyed(Lane::Normal, "call.cancel", key, 200, move |tx| {
            owned(tx, org, id)?;
            let mut it = store::execution::lock(tx, id.0)?.ok_or_else(|| Refused::not_found("call", id.to_string()))?;
            if it.asked && !it.status.is_end() {
                it.asked = false;
                store::execution::save(tx, id.0, &it)?;
                let at = tx.at();
                tx.wake(kind_of(&it), id.0, at);
            }
            Ok(render(&seen(tx, id.0, it)?))
        })
        .await
    }
}

impl EngineContext {
    /// The function, if it may be called here.
    pub(crate) fn function(&self, text: &str) -> Result<Function, Refused> {
        let bad = |bad: calls::function::BadFunction| Refused::invalid("function", bad.to_string());
        let function = Function::parse(text).map_err(bad)?;
        let usual = [OWN_ADAPTER.to_owned()];
        function.permitted(self.config.calls.adapters.as_deref().unwrap_or(&usual)).map_err(bad)?;
        Ok(function)
    }

    /// Steps of a plan that would call what is not executed here are refused before anything runs.
    pub(crate) fn check_calls<'p>(&self, agents: impl Iterator<Item = &'p AgentPlan>) -> Result<(), Refused> {
        let steps = agents.flat_map(|agent| &agent.tasks).flat_map(|task| &task.steps);
        for step in steps.filter(|step| step.tool == ToolKind::Call) {
            let function = step.input["function"].as_str().unwrap_or_default();
            self.function(function).map_err(|bad| Refused::invalid(format!("step {}", step.name), bad.to_string()))?;
        }
        Ok(())
    }
}

/// An execution of this org.
pub(crate) fn owned(tx: &mut Tx, org: OrgId, id: CallId) -> Result<Execution, Failure> {
    let found = store::execution::find(tx, id.0)?.filter(|it| it.org == org);
    found.ok_or_else(|| Refused::not_found("call", id.to_string()).into())
}

/// The call node of a function and its inputs as JSON.
fn node_of(function: &Function, inputs: &[Json]) -> Result<Call, Refused> {
    if inputs.len() > MAX_INPUTS {
        return Err(Refused::invalid("inputs", format!("a call has at most {MAX_INPUTS}, here are {}", inputs.len())));
    }
    let value = |(at, input): (usize, &Json)| {
        json::parse(&input.to_string()).map_err(|bad| Refused::invalid(format!("inputs[{at}]"), bad.to_string()))
    };
    let values = inputs.iter().enumerate().map(value).collect::<Result<Vec<Value>, Refused>>()?;
    Call::of(function, &values).map_err(|bad| Refused::invalid("inputs", bad.to_string()))
}

/// The newest execution of a caller without a cache, if it has ended with a value that is still here. One that failed is executed again.
fn ended_well(tx: &mut Tx, org: OrgId, node: NodeId, own: &Own) -> Result<Option<i64>, Failure> {
    let key = execution_key(&org.to_string(), node, &Epoch::Own(own.uuid.clone())).to_string();
    let Some(newest) = store::execution::newest_of(tx, org, &key)? else { return Ok(None) };
    // One that is open does not end between this look and the caller's.
    let it = locked(tx, newest.id)?;
    let Some(exec) = it.exec.filter(|_| it.status == ExecutionStatus::CompletedOk) else { return Ok(None) };
    let exec = exec.parse().map_err(|_| Trouble::internal("an execution has no exec"))?;
    Ok(result_of(tx, org, exec)?.map(|_| newest.id))
}

/// The open execution of the call, or a new one. `own` names the execution of a caller that shares it with no other.
fn begin(
    tx: &mut Tx,
    context: &EngineContext,
    org: OrgId,
    prepared: &Prepared,
    own: Option<&Own>,
) -> Result<i64, Failure> {
    match prepared {
        Prepared::Run(submission, called) => begin_run(tx, context, submission, called, own),
        Prepared::Adapter(function, call) => begin_adapter(tx, org, function, call, own),
    }
}

fn begin_run(
    tx: &mut Tx,
    context: &EngineContext,
    submission: &Submission,
    called: &CalledRun,
    own: Option<&Own>,
) -> Result<i64, Failure> {
    let (org, call) = (submission.org, &called.call);
    check_secrets(tx, submission)?;
    affordable(tx, context, submission)?;
    store::object::put(tx, org, &call.records)?;
    let epoch = epoch(tx, org, (FUNCTION, call.node), own)?;
    let made = |tx: &mut Tx, id: i64| Request {
        fresh: own.is_some(),
        returns: own.is_some_and(|own| own.returns),
        ..by_run(tx, (id, called), submission, true)
    };
    let (id, request) = open(tx, org, (call.node, FUNCTION), epoch, &made)?;
    // The run that executes it comes later: until then these are its contents.
    if let Some(run) = request.run() {
        use_contents(tx, run, submission)?;
    }
    Ok(id)
}

fn begin_adapter(tx: &mut Tx, org: OrgId, function: &Function, call: &Call, own: Option<&Own>) -> Result<i64, Failure> {
    let mut below = Memory::default();
    below.add(call.records.iter().cloned());
    let found = closure(&mut below, [call.node.into()], &|_| false, MAX_RECORDS);
    let found = found.map_err(|fault| Refused::invalid("inputs", fault.to_string()))?;
    for blob in found.blobs {
        if !store::content::is_here(tx, org, &blob.hash.to_string())? {
            let why = format!("the blob {} is not here: send it first (PUT /api/v1/blobs)", blob.uri());
            return Err(Refused::invalid("inputs", why).into());
        }
    }
    store::object::put(tx, org, &call.records)?;
    let uri = function.uri().as_str();
    let epoch = epoch(tx, org, (uri, call.node), own)?;
    let (inputs, fresh, returns) = (call.inputs.clone(), own.is_some(), own.is_some_and(|own| own.returns));
    let made = move |_: &mut Tx, id: i64| {
        let uuid = Uuid::derived(&format!("execution {org} {id} {}", call.node)).to_string();
        let work = Work::Adapter { inputs: inputs.clone(), uuid };
        Request { name: String::new(), fresh, returns, takes_errors: true, epoch: None, work }
    };
    open(tx, org, (call.node, uri), epoch, &made).map(|(id, _)| id)
}

fn locked(tx: &mut Tx, id: i64) -> Result<Execution, Failure> {
    store::execution::lock(tx, id)?.ok_or_else(|| Trouble::internal("an execution is gone").into())
}

/// Callers share an execution unless they want one of their own.
fn epoch(tx: &mut Tx, org: OrgId, (function, node): (&str, NodeId), own: Option<&Own>) -> Result<Epoch, Failure> {
    Ok(match own {
        None => Epoch::Counter(store::execution::epoch(tx, org, function, node)? as u64),
        Some(own) => Epoch::Own(own.uuid.clone()),
    })
}

pub(crate) fn seen(tx: &mut Tx, id: i64, it: Execution) -> Result<CallSeen, Failure> {
    let exec = it.exec.as_ref().and_then(|exec| exec.parse().ok());
    let run = match exec.filter(|_| it.started_at.is_none()) {
        // Pinned before it began: no run was submitted for it.
        Some(exec) => store::exec::find(tx, it.org, exec)?.and_then(|row| row.run),
        None => request_of(tx, id)?.run(),
    };
    let result = match exec {
        Some(exec) => result_of(tx, it.org, exec)?,
        None => None,
    };
    let failure = failure_of(tx, &it)?;
    Ok(CallSeen {
        failure,
        id: Some(CallId(id)),
        function: it.function,
        node: it.node,
        attempt: it.attempt,
        status: it.status,
        result,
        error: it.error,
        not_before: it.not_before,
        started_at: it.started_at,
        ended_at: it.ended_at,
        // A run that executes a call ends it without a result only if something outside of the command failed.
        may_pass: it.gave_up || run.is_some(),
        run,
    })
}

/// What the Orchestrator published of a run that says nothing about the call.
fn failure_of(tx: &mut Tx, it: &Execution) -> Result<Option<CallFailure>, Failure> {
    let failed = it.status == ExecutionStatus::FailedTerminal && kind_of(it) == store::WorkKind::Execution;
    let Some(dag) = it.done.as_ref().filter(|done| failed && !done.ok).map(|done| done.result.clone()) else {
        return Ok(None);
    };
    let id: calls::DagId = dag.parse().map_err(|_| Trouble::internal("an execution has no result"))?;
    let mut objects = Objects { tx, org: it.org };
    let value = read::dag(&mut objects, id).and_then(|dag| value_of(&mut objects, dag.root));
    let value = match value {
        Ok(value) => value.as_ref().map(to_json),
        Err(Fault::Source(failure)) => return Err(failure),
        Err(_) => None,
    };
    Ok(Some(CallFailure { dag, value }))
}

/// None: the exec is not here any more.
pub(crate) fn result_of(tx: &mut Tx, org: OrgId, exec: ExecId) -> Result<Option<CallResult>, Failure> {
    let mut objects = Objects { tx, org };
    let read = |objects: &mut Objects<'_>| {
        let record = read::exec(objects, exec)?;
        let root = read::dag(objects, record.result)?.root;
        let value = value_of(objects, root)?;
        Ok((record, value))
    };
    match read(&mut objects) {
        Ok((record, value)) => Ok(Some(CallResult {
            exec: exec.to_string(),
            ok: record.status == ExecStatus::Ok,
            value: value.as_ref().map(to_json),
            run: record.provenance.run,
        })),
        Err(Fault::Source(failure)) => Err(failure),
        Err(_) => Ok(None),
    }
}
