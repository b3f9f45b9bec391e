//! The work item of an execution: an Executor. The adapter `dml-exec-repl` is built in: it claims the key, submits the run that executes the
//! call and collects what that run left (`claim.rs`). Other adapters are programs, which it asks (`invoke.rs`). Then it pins the result in
//! one transaction and answers every caller. Each step can be repeated: a worker that dies leaves the rows from which the next holder of the
//! item goes on.

mod claim;
mod collect;
mod give_up;
mod integrate;
mod invoke;

pub(crate) use integrate::size_of;
pub use invoke::Executor;

use crate::cached_run::{CallerEnd, kept, project, result_of};
use crate::run::{Action, act};
use crate::run_tx::RunTx;
use crate::{Engine, EngineContext};
use calls::function::Function;
use calls::key::{Epoch, execution_key};
use calls::{ExecId, Fault, NodeId};
use claim::orchestrated;
use model::claim::LEASE_MS;
use model::execution::{Execution, ExecutionEvent, ExecutionStatus, apply};
use model::run::{LastError, Run, RunEvent, RunStatus};
use model::spec::RunSpec;
use model::{Failure, OrgId, Outcome, Refused, RunId, Timestamp, Trouble};
use store::blob::Blobs;
pub use store::exec::ExecRow;
pub use store::execution::Numbered;
use store::{Item, Lane, Tx, WorkKind};

/// Callers that are answered between two looks at the execution.
const ANSWERED_AT_ONCE: i64 = 100;
/// The owner of a claim refreshes its lease so often.
const POLL_MS: i64 = LEASE_MS / 3;
/// The adapter that is built in.
pub(crate) const OWN_ADAPTER: &str = "dml-exec-repl";
/// Digits of the execution key in the name of its run.
const NAME_DIGITS: usize = 16;

/// What is executed, and how.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Request {
    /// What the run that asked first was called.
    pub name: String,
    /// A caller with `cache: false` asked: its result replaces the one that is pinned.
    #[serde(default)]
    pub fresh: bool,
    /// This caller, a step, may ask again under the same key.
    #[serde(default)]
    pub returns: bool,
    /// Its first caller takes an error that is pinned as an answer.
    #[serde(default)]
    pub takes_errors: bool,
    /// How often the results of its function had been invalidated when it was opened. None: as `open` finds it.
    #[serde(default)]
    pub epoch: Option<i64>,
    pub work: Work,
}

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// By a run of this system. Its id is given out before it exists, so that submitting twice makes one run.
    Run { run: RunId, spec: Box<RunSpec> },
    /// By a program. `uuid` names the execution in its exchange.
    Adapter { inputs: Vec<NodeId>, uuid: String },
}

impl Request {
    pub(crate) fn run(&self) -> Option<RunId> {
        match &self.work {
            Work::Run { run, .. } => Some(*run),
            Work::Adapter { .. } => None,
        }
    }
}

/// An execution and what its next step depends on.
struct ExecutionNow {
    it: Execution,
    request: Request,
    /// Runs that wait for it.
    callers: Vec<RunId>,
    /// The run that executes it, once it was submitted.
    backend: Option<Run>,
    at: Timestamp,
}

enum Next {
    Begin,
    /// The adapter's program is asked how it is.
    Invoke,
    /// The adapter's program is asked to stop, or to clean up.
    Close,
    Abandon,
    Collect,
    Integrate,
    Resume,
    Answer,
    StopBackend,
    LookAgain(Timestamp),
    Over,
}

impl ExecutionNow {
    fn next(&self) -> Next {
        use ExecutionStatus as S;
        let open = self.backend.as_ref().is_some_and(|run| !run.status.is_end());
        let ending = self.backend.as_ref().is_some_and(|run| run.termination.is_some());
        match self.it.status {
            status if status.is_end() && !self.callers.is_empty() => Next::Answer,
            // Its end wakes the item again.
            status if status.is_end() && open && !ending => Next::StopBackend,
            // A run that executed it needs no cleanup of ours.
            status if status.is_end() && (self.it.closing.is_none() || self.request.run().is_some()) => Next::Over,
            status if status.is_end() => self.not_before(Next::Close),
            _ if self.callers.is_empty() && !self.it.asked => Next::Abandon,
            S::RetryWait => match self.it.not_before {
                Some(due) if due > self.at => Next::LookAgain(due),
                _ => Next::Resume,
            },
            S::IntegrateOk | S::IntegrateError => Next::Integrate,
            S::ResolveCallNode => Next::Begin,
            _ if self.request.run().is_none() => self.not_before(Next::Invoke),
            // Without a token it was not submitted; with one, the run is not known any more.
            _ if self.backend.is_none() && self.it.token.is_none() => Next::Begin,
            _ if open => Next::LookAgain(self.at + POLL_MS),
            _ => Next::Collect,
        }
    }

    /// At once, or when its time has come. A caller may leave before that.
    fn not_before(&self, next: Next) -> Next {
        match self.it.not_before {
            Some(due) if due > self.at => Next::LookAgain(due.min(self.at + POLL_MS)),
            _ => next,
        }
    }
}

impl Engine {
    pub(crate) async fn reconcile_execution(&self, item: Item) -> Result<(), Failure> {
        loop {
            let Some(seen) = self.see_execution(item.subject).await? else { return self.done(item).await };
            match seen.next() {
                Next::Begin => self.begin_execution(item).await?,
                Next::Invoke => self.ask_adapter(item, &seen).await?,
                Next::Close => self.close_adapter(item, &seen).await?,
                Next::Abandon => self.execution_event(item, ExecutionEvent::Abandoned).await?,
                Next::Resume => self.execution_event(item, ExecutionEvent::WaitOver).await?,
                Next::Collect => self.collect_result(item, &seen).await?,
                Next::Integrate => self.integrate(item, &seen).await?,
                Next::Answer => self.answer_callers(item, &seen).await?,
                Next::StopBackend => self.stop_backend(item, &seen).await?,
                Next::LookAgain(due) => {
                    if !seen.it.status.is_end() {
                        self.refresh_claim(item, &seen.it).await?;
                    }
                    return self.at(item, due).await;
                }
                Next::Over => return self.done(item).await,
            }
        }
    }

    async fn see_execution(&self, id: i64) -> Result<Option<ExecutionNow>, Failure> {
        self.store
            .read("execution.see", move |tx| {
                let Some(it) = store::execution::find(tx, id)? else { return Ok(None) };
                let request = request_of(tx, id)?;
                let callers = store::execution::callers(tx, id, ANSWERED_AT_ONCE)?;
                let backend = match request.run() {
                    Some(run) => store::run::find(tx, run)?,
                    None => None,
                };
                Ok(Some(ExecutionNow { it, request, callers, backend, at: tx.at() }))
            })
            .await
    }

    /// A result that was pinned since its callers looked is their answer. Otherwise the claim, and the run that executes the call if one
    /// does, in one transaction: submitted once, however often it is repeated.
    async fn begin_execution(&self, item: Item) -> Result<(), Failure> {
        let (context, me, blobs) = (self.context.clone(), self.orchestrator.clone(), self.blobs.clone());
        let begun = self
            .store
            .write(Lane::Normal, "execution.begin", move |tx| {
                store::work::hold(tx, &item)?;
                let Some(mut it) = store::execution::lock(tx, item.subject)?.filter(|it| !it.status.is_end()) else {
                    return Ok(());
                };
                let request = request_of(tx, item.subject)?;
                if it.status == ExecutionStatus::ResolveCallNode
                    && let Some(exec) = pinned(tx, (&context, &blobs), &it, &request)?
                {
                    let event = ExecutionEvent::Pinned { exec: exec.to_string() };
                    return changed(tx, item.subject, &it, event).map(drop);
                }
                it = changed(tx, item.subject, &it, ExecutionEvent::NotPinned)?;
                let me = *me.get_or_init(|| tx.next_id());
                orchestrated(tx, &it, me, None)?;
                let Work::Run { run, spec } = &request.work else { return Ok(()) };
                if store::run::find(tx, *run)?.is_none() {
                    submit_backend(tx, &context, &it, (*run, spec))?;
                }
                let (token, seen) = (run.to_string(), it.token_version);
                let pending = ExecutionEvent::Pending { token, seen, retry_after_ms: None };
                changed(tx, item.subject, &it, pending).map(drop)
            })
            .await;
        match begun {
            // The rules do not allow this run: trying again would not help.
            Err(Failure::Refused(refused)) if !matches!(refused, Refused::Fenced { .. }) => {
                let error = LastError { code: "refused".into(), message: refused.to_string(), cause: None };
                self.execution_event(item, ExecutionEvent::NonRetryableFailure { error }).await
            }
            begun => begun,
        }
    }

    async fn execution_event(&self, item: Item, event: ExecutionEvent) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "execution.advance", move |tx| {
                store::work::hold(tx, &item)?;
                let Some(it) = store::execution::lock(tx, item.subject)? else { return Ok(()) };
                // A caller that has joined since the look keeps it.
                let wanted =
                    event == ExecutionEvent::Abandoned && !store::execution::callers(tx, item.subject, 1)?.is_empty();
                // Before the first poll nothing has been asked of the adapter.
                if it.status == ExecutionStatus::ResolveCallNode && !matches!(event, ExecutionEvent::Abandoned) {
                    let it = changed(tx, item.subject, &it, ExecutionEvent::NotPinned)?;
                    return changed(tx, item.subject, &it, event.clone()).map(drop);
                }
                if wanted { Ok(()) } else { changed(tx, item.subject, &it, event.clone()).map(drop) }
            })
            .await
    }

    /// Each caller in a transaction of its own: one that was answered before is not answered again.
    async fn answer_callers(&self, item: Item, seen: &ExecutionNow) -> Result<(), Failure> {
        for caller in &seen.callers {
            let (caller, it) = (*caller, seen.it.clone());
            let (context, blobs, backend) = (self.context.clone(), self.blobs.clone(), seen.backend.clone());
            self.store
                .write(Lane::Normal.of(caller), "execution.answer", move |tx| {
                    store::work::hold(tx, &item)?;
                    store::execution::leave(tx, item.subject, caller)?;
                    // A run one of whose steps waits reads the result itself.
                    if store::run::find(tx, caller)?.is_none_or(|run| run.call.is_none()) {
                        return Ok(());
                    }
                    let answer = answer_of(tx, (&context, &blobs), &it, backend.as_ref())?;
                    let mut run_tx = RunTx::open(tx, &context, caller)?;
                    if run_tx.run.status == RunStatus::Created && run_tx.run.deleted_at.is_none() {
                        run_tx.replay(&answer)?;
                    }
                    run_tx.close().map(drop)
                })
                .await?;
        }
        Ok(())
    }

    /// Its last caller has gone: what executes the call is cancelled.
    async fn stop_backend(&self, item: Item, seen: &ExecutionNow) -> Result<(), Failure> {
        let Some(run) = seen.request.run() else { return Ok(()) };
        let context = self.context.clone();
        self.store
            .write(Lane::Normal.of(run), "execution.stop", move |tx| {
                store::work::hold(tx, &item)?;
                let found = store::run::find(tx, run)?.filter(|run| !run.status.is_end());
                let Some(found) = found else { return Ok(()) };
                act(tx, &context, &found.org.into(), run, Action::Cancel { abort: false })
            })
            .await
    }
}

/// The open execution of a call, or a new one, made by `made` with its number.
pub(crate) fn open(
    tx: &mut Tx,
    org: OrgId,
    (node, function): (NodeId, &str),
    epoch: Epoch,
    made: &dyn Fn(&mut Tx, i64) -> Request,
) -> Result<(i64, Request), Failure> {
    let key = execution_key(&org.to_string(), node, &epoch).to_string();
    if let Some(id) = store::execution::open_of(tx, org, &key)?
        && store::execution::lock(tx, id)?.is_some_and(|execution| !execution.status.is_end())
    {
        let request = request_of(tx, id)?;
        return Ok((id, request));
    }
    let id = tx.next_id();
    let request = made(tx, id);
    let epoch = match epoch {
        Epoch::Counter(epoch) => epoch as i64,
        Epoch::Own(_) => store::execution::epoch(tx, org, function, node)?,
    };
    let request = Request { epoch: Some(epoch), ..request };
    // An adapter names its job by key and attempt: what an earlier execution left must not answer for this one.
    let attempt = 1 + store::execution::last_attempt(tx, org, &key)?;
    let it = Execution { function: function.to_owned(), ..Execution::new(org, key, node.to_string(), attempt) };
    let document = serde_json::to_value(&request).expect("a request is plain data");
    store::execution::insert(tx, id, &it, &document)?;
    let at = tx.at();
    tx.wake(kind_of(&it), id, at);
    Ok((id, request))
}

/// The work item of an execution: a program that is asked may take its time.
pub(crate) fn kind_of(it: &Execution) -> WorkKind {
    match Function::parse(&it.function) {
        Ok(function) if function.adapter() != OWN_ADAPTER => WorkKind::Invocation,
        _ => WorkKind::Execution,
    }
}

pub(crate) fn request_of(tx: &mut Tx, id: i64) -> Result<Request, Failure> {
    let request = store::execution::request(tx, id)?;
    serde_json::from_value(request).map_err(|error| Trouble::internal(format!("a request: {error}")).into())
}

fn node_of(it: &Execution) -> Result<NodeId, Failure> {
    it.node.parse().map_err(|_| Trouble::internal("an execution has no node").into())
}

/// The exec that answers the callers of an execution that has not begun.
fn pinned(
    tx: &mut Tx,
    from: (&EngineContext, &Blobs),
    it: &Execution,
    request: &Request,
) -> Result<Option<ExecId>, Failure> {
    let node = node_of(it)?;
    if request.fresh {
        return Ok(None);
    }
    if request.run().is_some() {
        return Ok(match kept(tx, from, it.org, node, request.takes_errors)? {
            Some(CallerEnd::Kept(kept)) => Some(kept.exec),
            _ => None,
        });
    }
    let Some(exec) = store::pin::find(tx, it.org, &project(from.0), node)? else { return Ok(None) };
    Ok(crate::call::result_of(tx, it.org, exec)?.map(|_| exec))
}

/// One event of an execution; what it is afterwards is written.
fn changed(tx: &mut Tx, id: i64, it: &Execution, event: ExecutionEvent) -> Result<Execution, Failure> {
    let at = tx.at();
    let Outcome::Moved { next, .. } = apply(it, &event, at)? else { return Ok(it.clone()) };
    if next.status.is_end() {
        store::claim::release(tx, next.org, &next.key)?;
    }
    store::execution::save(tx, id, &next)?;
    Ok(next)
}

/// The run that executes the call: named by key and attempt, so that people find it, and so that it exists once.
fn submit_backend(
    tx: &mut Tx,
    context: &EngineContext,
    it: &Execution,
    (run, spec): (RunId, &RunSpec),
) -> Result<(), Failure> {
    let name = format!("call:{}-{}", &it.key[..NAME_DIGITS], it.attempt);
    let at = tx.at();
    store::content::use_by(tx, it.org, run, &crate::run::contents(spec))?;
    let run = Run::created(run, it.org, name, spec.terms(), at);
    let mut run_tx = RunTx::fresh(tx, context, run, spec.content());
    run_tx.created();
    run_tx.run_event(RunEvent::Started)?;
    run_tx.close().map(drop)
}

/// What the end of the execution means for a caller.
fn answer_of(
    tx: &mut Tx,
    (context, blobs): (&EngineContext, &Blobs),
    it: &Execution,
    backend: Option<&Run>,
) -> Result<CallerEnd, Failure> {
    let failed = |error: LastError| {
        let (exit_code, signal) = backend.map_or((None, None), |run| (run.exit_code, run.signal));
        CallerEnd::Failed { error, exit_code, signal }
    };
    if let Some(exec) = &it.exec {
        // Not by way of the pin: it may have been invalidated since, and this caller asked before.
        let exec = exec.parse().map_err(|_| Trouble::internal("an execution has no exec"))?;
        match result_of(tx, blobs, it.org, exec) {
            Ok(kept) => {
                store::pin::used(tx, it.org, &project(context), node_of(it)?)?;
                return Ok(CallerEnd::Kept(Box::new(kept)));
            }
            Err(Fault::Source(failure)) => return Err(failure),
            Err(_) => {}
        }
        let message = "its result was deleted before it could be read: submit it again".to_owned();
        return Ok(failed(LastError { code: "result_gone".into(), message, cause: None }));
    }
    let unknown = || LastError { code: "failed".into(), message: "its execution failed".into(), cause: None };
    Ok(failed(it.error.clone().unwrap_or_else(unknown)))
}
