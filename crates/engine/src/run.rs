//! What a person or program asks of a run: submit, start, cancel, retry, delete. And the run's own item: deadlines, money, dispatch.

use crate::run_tx::RunTx;
use crate::view::{self, RunSnapshot};
use crate::{Engine, EngineContext};
use model::bug;
use model::hierarchy;
use model::job::JobStatus;
use model::run::{Run, RunEvent, RunStatus};
use model::spec::{RunKind, RunSpec};
use model::{Credits, Failure, OrgId, Refused, RunId, Timestamp};
use std::sync::Arc;
use store::idempotency::{self, Key, Looked};
use store::{Item, Lane, Turn, Tx};

/// A run that waits for something that cannot wake it is looked at again after this.
const LOOK_AGAIN_MS: i64 = 5 * model::time::SECOND;

/// A run as it was asked for.
#[derive(Debug, Clone)]
pub struct Submission {
    pub org: OrgId,
    pub name: Option<String>,
    pub spec: RunSpec,
    pub start: bool,
}

/// The answer to a request that may be repeated: stored with its effect.
#[derive(Debug, Clone)]
pub struct KeyedResponse {
    pub status: i64,
    pub body: Vec<u8>,
    pub replayed: bool,
}

/// How a refusal is answered at every repetition: status and body. None where it is not kept, and a repetition is judged anew.
pub type Refusals = fn(&Refused, &Key) -> Option<(i64, Vec<u8>)>;

/// For callers without a protocol of their own: whatever is a decision about the request is kept, in words.
pub fn in_words(refused: &Refused, _: &Key) -> Option<(i64, Vec<u8>)> {
    let status = match refused {
        Refused::NotFound { .. } => 404,
        Refused::NotFrom { .. } | Refused::Conflict { .. } | Refused::Stale { .. } | Refused::Held { .. } => 409,
        _ => return None,
    };
    Some((status, refused.to_string().into_bytes()))
}

/// Turns the outcome into the bytes that are answered now and at every repetition.
pub type Render = Arc<dyn Fn(&RunSnapshot) -> Vec<u8> + Send + Sync>;

/// What may be asked of a run that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Start,
    Cancel { abort: bool },
    Retry { force: bool },
    Pause,
    Resume,
}

impl Engine {
    /// The run, its attempt, reservation, agent, job, workflow and slot in one transaction: accepted means safe.
    pub async fn submit(
        &self,
        submission: Submission,
        key: Option<Key>,
        render: Render,
    ) -> Result<KeyedResponse, Failure> {
        check_asked(&self.context, &submission)?;
        self.check_stdin(&submission).await?;
        let context = self.context.clone();
        self.keyed(Lane::Normal, "run.submit", key, 201, move |tx| {
            check_secrets(tx, &submission)?;
            let run = fresh(tx, &submission);
            use_contents(tx, &run)?;
            let mut run_tx = RunTx::fresh(tx, &context, run);
            run_tx.publish("run.created", store::body!({ "name": run_tx.run.name, "status": "created" }));
            if submission.start {
                run_tx.run_event(RunEvent::Started)?;
            } else {
                affordable(run_tx.tx, &context, &submission)?;
            }
            Ok(render(&run_tx.close_shown()?))
        })
        .await
    }

    pub async fn act_on(
        &self,
        org: OrgId,
        id: RunId,
        action: Action,
        key: Option<Key>,
        render: Render,
    ) -> Result<KeyedResponse, Failure> {
        let context = self.context.clone();
        self.keyed(Lane::Normal.of(id), "run.act", key, 200, move |tx| {
            act(tx, &context, org, id, action)?;
            Ok(render(&view::snapshot(tx, id)?))
        })
        .await
    }

    /// One transaction whose answer is stored under the caller's key: a repetition gets the same answer and no second effect.
    /// That holds for a refusal too (invariant 5).
    pub async fn keyed(
        &self,
        turn: impl Into<Turn>,
        name: &'static str,
        key: Option<Key>,
        status: i64,
        f: impl Fn(&mut Tx) -> Result<Vec<u8>, Failure> + Send + Sync + 'static,
    ) -> Result<KeyedResponse, Failure> {
        let asked = key.clone();
        let done = self
            .store
            .write(turn, name, move |tx| {
                if let Some(answer) = replay(tx, key.as_ref())? {
                    return Ok(answer);
                }
                let body = f(tx)?;
                record(tx, key.as_ref(), status, body)
            })
            .await;
        match (asked, done) {
            (Some(key), Err(Failure::Refused(refused))) => self.remember(key, refused).await,
            (_, done) => done,
        }
    }

    /// Stores a refusal under its key, after the refused transaction has taken its effects and the key back. If another request
    /// has used the key in between, its answer is the key's answer. Nobody has been told anything before this commits.
    async fn remember(&self, key: Key, refused: Refused) -> Result<KeyedResponse, Failure> {
        let about_the_key = matches!(refused, Refused::KeyReused | Refused::KeyBusy { .. });
        let kept = if about_the_key || bug!(refusal_forgotten) { None } else { (self.refusals)(&refused, &key) };
        let Some((status, body)) = kept else { return Err(refused.into()) };
        let replayed = self
            .store
            .write(Lane::Normal, "idempotency.refuse", move |tx| {
                let known = replay(tx, Some(&key))?;
                if known.is_none() {
                    idempotency::record(tx, &key, status, &body)?;
                }
                Ok(known)
            })
            .await?;
        replayed.ok_or_else(|| refused.into())
    }

    /// The stored answer, for a request whose work is more than one transaction and may be begun again harmlessly.
    pub async fn answered_before(&self, key: Option<Key>) -> Result<Option<KeyedResponse>, Failure> {
        let Some(key) = key else { return Ok(None) };
        let known = self.store.read("idempotency.known", move |tx| idempotency::known(tx, &key)).await?;
        Ok(known.map(|(status, body)| KeyedResponse { status, body, replayed: true }))
    }

    async fn cancel(&self, org: OrgId, id: RunId, abort: bool) -> Result<(), Failure> {
        let context = self.context.clone();
        self.store
            .write(Lane::Normal.of(id), "run.act", move |tx| act(tx, &context, org, id, Action::Cancel { abort }))
            .await
    }

    pub async fn delete(&self, org: OrgId, id: RunId) -> Result<(), Failure> {
        let context = self.context.clone();
        self.store
            .write(Lane::Normal.of(id), "run.delete", move |tx| {
                let mut run_tx = open_owned(tx, &context, org, id)?;
                run_tx.run_event(RunEvent::Deleted)?;
                run_tx.close().map(drop)
            })
            .await
    }

    /// Ends everything that is open, for an owner who closes the shop.
    pub async fn cancel_everything(&self) -> Result<i64, Failure> {
        let orgs = self.store.read("org.page", |tx| store::org::page(tx, OrgId(0), 1000)).await?;
        let mut cancelled = 0;
        for org in orgs {
            let mut before = i64::MAX;
            loop {
                let page =
                    self.store.read("run.page", move |tx| store::run::page(tx, org.id, true, before, 100)).await?;
                let Some(last) = page.last() else { break };
                before = last.id.0;
                for run in &page {
                    match self.cancel(org.id, run.id, true).await {
                        Ok(()) => cancelled += 1,
                        Err(Failure::Refused(Refused::NotFrom { .. } | Refused::NotFound { .. })) => {} // ended meanwhile
                        Err(failure) => return Err(failure),
                    }
                }
            }
        }
        Ok(cancelled)
    }

    pub async fn open_runs(&self) -> Result<i64, Failure> {
        self.store.read("run.count_open", store::run::count_open).await
    }

    /// The run's item: its deadline, its next window of compute, its next dispatch.
    pub(crate) async fn reconcile_run(&self, item: Item) -> Result<(), Failure> {
        let (id, context) = (RunId(item.subject), self.context.clone());
        self.store
            .write(Lane::Normal.of(id), "run.reconcile", move |tx| {
                store::work::hold(tx, &item)?;
                let next = reconcile(tx, &context, id)?;
                store::work::finish(tx, &item, next);
                Ok(())
            })
            .await
    }
}

/// What a submission names must be here before it is accepted, and stays while its run is open.
fn use_contents(tx: &mut Tx, run: &Run) -> Result<(), Failure> {
    if let Some(tree) = &run.spec.files
        && !store::content::is_tree_here(tx, run.org, &tree.hash)?
    {
        let why = format!(
            "the tree {} is not here: PUT /api/v1/trees/{{hash}} first, and before it what it names",
            tree.hash
        );
        return Err(Refused::invalid("files", why).into());
    }
    store::content::use_by(tx, run.org, run.id, &contents(&run.spec))
}

impl Engine {
    /// The bound is on the bytes that are here, not on what is said about them.
    async fn check_stdin(&self, submission: &Submission) -> Result<(), Failure> {
        let Some(stdin) = &submission.spec.stdin else { return Ok(()) };
        if !self.missing_blobs(submission.org, vec![stdin.hash.clone()]).await?.is_empty() {
            let why = format!("its bytes were never sent: PUT /api/v1/blobs/{} first", stdin.hash);
            return Err(Refused::invalid("stdin", why).into());
        }
        let size = self.open_blob(submission.org, &stdin.hash)?.size;
        if size != stdin.size {
            return Err(
                Refused::invalid("stdin.size", format!("says {}, and there are {size} bytes", stdin.size)).into()
            );
        }
        Ok(())
    }
}

/// Hashes of all bytes that a run needs before it can start.
pub(crate) fn contents(spec: &RunSpec) -> Vec<String> {
    let files = spec.files.iter().map(|tree| tree.hash.clone());
    files.chain(spec.stdin.iter().map(|stdin| stdin.hash.clone())).collect()
}

/// All that can be refused without a look at any row.
pub(crate) fn check_asked(context: &EngineContext, submission: &Submission) -> Result<(), Refused> {
    submission.spec.check()?;
    if let Some(name) = &submission.name {
        check_name(name)?;
    }
    check_fit(context, &submission.spec)
}

/// Refuses what no machine of the provider could ever hold: waiting would not help.
fn check_fit(context: &EngineContext, spec: &RunSpec) -> Result<(), Refused> {
    let largest = context.provider(&spec.provider)?.capabilities().largest;
    if largest.satisfies(&spec.resources) {
        return Ok(());
    }
    Err(Refused::DoesNotFit { asked: spec.resources.clone(), largest, place: spec.provider.clone() })
}

/// What starting it would reserve, if the org has so much. Only the start reserves.
pub(crate) fn affordable(tx: &mut Tx, context: &EngineContext, submission: &Submission) -> Result<Credits, Failure> {
    let needed = crate::ledger::estimate(context, &submission.spec, Credits::ZERO)?;
    let available = store::org::find(tx, submission.org)?.available;
    if available < needed {
        return Err(Refused::Unaffordable { needed, available }.into());
    }
    Ok(needed)
}

fn replay(tx: &mut Tx, key: Option<&Key>) -> Result<Option<KeyedResponse>, Failure> {
    let Some(key) = key else { return Ok(None) };
    Ok(match idempotency::lookup(tx, key)? {
        Looked::Fresh => None,
        Looked::Replay { status, body } => Some(KeyedResponse { status, body, replayed: true }),
    })
}

fn record(tx: &mut Tx, key: Option<&Key>, status: i64, body: Vec<u8>) -> Result<KeyedResponse, Failure> {
    if let Some(key) = key {
        idempotency::record(tx, key, status, &body)?;
    }
    Ok(KeyedResponse { status, body, replayed: false })
}

pub(crate) fn act(tx: &mut Tx, context: &EngineContext, org: OrgId, id: RunId, action: Action) -> Result<(), Failure> {
    let mut run_tx = open_owned(tx, context, org, id)?;
    match action {
        Action::Start => run_tx.run_event(RunEvent::Started)?,
        Action::Cancel { abort } => run_tx.run_event(RunEvent::CancelAsked { abort })?,
        Action::Pause => run_tx.run_event(RunEvent::PauseAsked { why: model::run::PauseReason::Asked })?,
        Action::Resume => run_tx.run_event(RunEvent::ResumeAsked)?,
        Action::Retry { force } => {
            files_are_here(&mut run_tx)?;
            if force {
                give_up_silent_jobs(&mut run_tx)?;
            }
            run_tx.run_event(RunEvent::RetryAsked { after_ms: 0 })?;
        }
    }
    run_tx.close().map(drop)
}

/// What a run was sent with is kept a while after its end; later there is nothing to try again with.
fn files_are_here(run_tx: &mut RunTx<'_>) -> Result<(), Failure> {
    if let Some(tree) = &run_tx.run.spec.files
        && !store::content::is_tree_here(run_tx.tx, run_tx.run.org, &tree.hash)?
    {
        let why = "no run needed them for long, and they were deleted: submit it again".into();
        return Err(Refused::Gone { what: "what the run was sent with", why }.into());
    }
    if let Some(stdin) = &run_tx.run.spec.stdin
        && !store::content::is_here(run_tx.tx, run_tx.run.org, &stdin.hash)?
    {
        let why = "no run needed it for long, and its bytes were deleted: submit the run again".to_owned();
        return Err(Refused::Gone { what: "the run's standard input", why }.into());
    }
    Ok(())
}

/// A person says that a silent machine's job is surely gone: it is fenced, and its run may go on.
fn give_up_silent_jobs(run_tx: &mut RunTx<'_>) -> Result<(), Failure> {
    let silent: Vec<_> =
        run_tx.jobs.iter().filter(|j| !j.it.status.is_end() && j.it.silent_since.is_some()).map(|j| j.it.id).collect();
    silent.into_iter().try_for_each(|job| run_tx.job_event(job, model::job::JobEvent::GaveUpOn).map(drop))
}

fn open_owned<'t>(tx: &'t mut Tx, context: &'t EngineContext, org: OrgId, id: RunId) -> Result<RunTx<'t>, Failure> {
    let run_tx = RunTx::open(tx, context, id)?;
    if run_tx.run.org != org && !bug!(org_unchecked) {
        return Err(Refused::not_found("run", id).into()); // another org's run does not exist
    }
    Ok(run_tx)
}

fn reconcile(tx: &mut Tx, context: &EngineContext, id: RunId) -> Result<Option<Timestamp>, Failure> {
    let Some(run) = store::run::find(tx, id)? else { return Ok(None) };
    if run.status.is_end() || run.deleted_at.is_some() {
        return Ok(None);
    }
    let mut run_tx = RunTx::open(tx, context, id)?;
    if let Some((due, event)) = deadline(&mut run_tx)?
        && due <= run_tx.at
        && !matches!(event, RunEvent::RetryCame)
    {
        run_tx.run_event(event)?;
    }
    go_on_ending(&mut run_tx)?;
    run_tx.dispatch()?;
    let charge = meter(&mut run_tx)?;
    let soon = run_tx.at + LOOK_AGAIN_MS;
    let due = deadline(&mut run_tx)?.map(|(due, _)| if due > run_tx.at { due } else { soon });
    run_tx.close()?;
    Ok(due.into_iter().chain(charge).min())
}

/// Earlier commits may have had no room to end everything that must end.
fn go_on_ending(run_tx: &mut RunTx<'_>) -> Result<(), Failure> {
    if !run_tx.attempt()?.it.tree.unfinished {
        return Ok(());
    }
    hierarchy::continue_endings(run_tx)?;
    if run_tx.run.termination.is_some() { hierarchy::stop_agents(run_tx) } else { Ok(()) }
}

/// The run's deadline with our outages taken out: while we were away nobody could report, and nothing could be picked up.
fn deadline(run_tx: &mut RunTx<'_>) -> Result<Option<(Timestamp, RunEvent)>, Failure> {
    let Some(from) = crate::idle_runs::counts_from(&run_tx.run) else { return Ok(model::run::deadline(&run_tx.run)) };
    let outages = store::worker::outages(run_tx.tx, from)?;
    Ok(crate::idle_runs::deadline(&run_tx.run, &outages))
}

/// Charges every full window of running jobs and keeps the reservation an hour ahead. Returns when to look again.
fn meter(run_tx: &mut RunTx<'_>) -> Result<Option<Timestamp>, Failure> {
    let running = run_tx.jobs.iter().filter(|j| j.it.status == JobStatus::Running);
    let running: Vec<_> = running.map(|j| (j.it.id, Credits(j.it.price_micro))).collect();
    let mut next = None;
    for (job, hourly) in running {
        if run_tx.next_charge(job)?.is_some_and(|due| due <= run_tx.at) {
            run_tx.charge_job(job, run_tx.at)?;
            let goes_on = run_tx.top_up(job, hourly)?;
            if !goes_on && run_tx.run.termination.is_none() {
                out_of_credits(run_tx)?;
            }
        }
        next = run_tx.next_charge(job)?.into_iter().chain(next).min();
    }
    Ok(next)
}

/// The reservation ends: a warning, and a graceful stop.
fn out_of_credits(run_tx: &mut RunTx<'_>) -> Result<(), Failure> {
    run_tx.publish("run.out_of_credits", store::body!({ "budget": run_tx.run.spec.budget.map(|b| b.to_string()) }));
    let error = model::run::LastError {
        code: "budget".into(),
        message: "the reservation is used up and nothing more may be reserved".into(),
        cause: None,
    };
    run_tx.run_event(RunEvent::AgentFailed { reason: model::run::RunReason::Budget, error })
}

/// Names are words people type: they must not look like ids or flags.
fn check_name(name: &str) -> Result<(), Refused> {
    if !model::spec::is_name(name) {
        return Err(Refused::invalid("name", format!("`{name}` {}", model::spec::NAME_RULE)));
    }
    if name.parse::<RunId>().is_ok() {
        return Err(Refused::invalid("name", format!("`{name}` reads like the id of a run: choose another")));
    }
    Ok(())
}

pub(crate) fn check_secrets(tx: &mut Tx, submission: &Submission) -> Result<(), Failure> {
    for name in &submission.spec.secrets {
        if !store::secret::exists(tx, submission.org, name)? {
            return Err(
                Refused::invalid("secrets", format!("there is no secret `{name}`: repl secret set {name}")).into()
            );
        }
    }
    Ok(())
}

pub(crate) fn fresh(tx: &mut Tx, submission: &Submission) -> Run {
    let (id, at) = (RunId(tx.next_id()), tx.at());
    let spec = submission.spec.clone();
    debug_assert_eq!(spec.kind, RunKind::Task, "checked before");
    Run {
        id,
        org: submission.org,
        name: submission.name.clone().unwrap_or_else(|| format!("run-{}", id.slug())),
        max_attempts: spec.max_attempts(),
        spec,
        status: RunStatus::Created,
        phase: None,
        outcome: None,
        pause_asked: None,
        pause_reason: None,
        termination: None,
        attempt: 1,
        plan_version: 1,
        replanning: false,
        agent_count: 0,
        task_count: 0,
        step_count: 0,
        submission: 1,
        created_at: at,
        queued_at: None,
        running_at: None,
        completed_at: None,
        cancelled_at: None,
        deleted_at: None,
        since: at,
        retry_at: None,
        active_ms: 0,
        active_since: None,
        exit_code: None,
        signal: None,
        last_error: None,
        late_evidence: Vec::new(),
        credits_end_at: None,
        ended_by: None,
        last_at: at,
        version: 1,
    }
}
