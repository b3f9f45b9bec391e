//! What a person or program asks of a run: submit, start, cancel, retry, delete. And the run's own item: deadlines, money, dispatch.

use crate::command;
use crate::planner::PLANNERS_VERSION;
use crate::run_tx::RunTx;
use crate::view::{self, RunSnapshot};
use crate::{Actor, Engine, EngineContext};
use model::bug;
use model::job_counters::JobPick;
use model::plan::{AgentPlan, MachinePlan, RunPlan, Totals};
use model::refused::Unfit;
use model::run::{Run, RunEvent, RunStatus};
use model::spec::{CallPart, MAX_ENV_BYTES, MAX_NODES, RunKind, RunSpec};
use model::{Credits, Failure, OrgId, Refused, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::idempotency::{self, Key, Looked};
use store::{Item, Lane, Turn, Tx};

/// A run that waits for something that cannot wake it is looked at again after this.
pub(crate) const LOOK_AGAIN_MS: i64 = 5 * model::time::SECOND;

/// A run as it was asked for.
#[derive(Debug, Clone)]
pub struct Submission {
    pub org: OrgId,
    /// Who submits it, in words.
    pub by: Option<String>,
    pub name: Option<String>,
    pub spec: RunSpec,
    pub plans: Plans,
    pub start: bool,
}

/// What the agents of a run of `type: agents` do. Empty for other runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plans {
    pub shared: RunPlan,
    pub agents: Vec<AgentPlan>,
    /// Makes the next plan version when too much has failed.
    pub planner: Option<AgentPlan>,
    /// As it was submitted, for people.
    pub document: Option<serde_json::Value>,
}

impl Plans {
    /// Names of all secrets that steps and machines are given.
    fn secrets(&self) -> BTreeSet<String> {
        let mut names = Vec::new();
        let agents = self.agents.iter().chain(&self.planner);
        for agent in agents.clone() {
            if let Some(machine) = &agent.machine {
                names.extend(machine.secrets.iter().cloned());
                machine.env.values().for_each(|value| crate::agent::collect_secrets(value, &mut names));
            }
        }
        let steps = agents.flat_map(|agent| &agent.tasks).flat_map(|task| &task.steps);
        let verified = steps.clone().filter_map(|step| step.verify.as_deref());
        let inputs =
            steps.chain(verified).map(|step| &step.input).chain(self.shared.tools.values().map(|tool| &tool.input));
        inputs.for_each(|input| crate::agent::collect_secrets(input, &mut names));
        names.into_iter().collect()
    }
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
        if let Some(cache) = submission.spec.call.as_ref().and_then(CallPart::caller).cloned() {
            return Box::pin(self.submit_cached(submission, cache, key, render)).await;
        }
        self.submit_and(submission, key, |_| Ok(()), move |snapshot, ()| render(snapshot)).await
    }

    /// A submission, and what else its commit does to the run.
    pub(crate) async fn submit_and<T>(
        &self,
        submission: Submission,
        key: Option<Key>,
        then: impl Fn(&mut RunTx<'_>) -> Result<T, Failure> + Send + Sync + 'static,
        render: impl Fn(&RunSnapshot, &T) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<KeyedResponse, Failure> {
        self.know_hosts_of(&submission.plans).await?;
        check_asked(&self.context, &submission)?;
        self.check_stdin(&submission).await?;
        let context = self.context.clone();
        self.keyed(Lane::Normal, "run.submit", key, 201, move |tx| {
            check_secrets(tx, &submission)?;
            let run = fresh(tx, &submission);
            use_contents(tx, run.id, &submission)?;
            keep_plans(tx, run.id, &submission.plans)?;
            let mut run_tx = RunTx::fresh(tx, &context, run, submission.spec.content());
            run_tx.by.clone_from(&submission.by);
            run_tx.created();
            if submission.start {
                run_tx.run_event(RunEvent::Started)?;
            } else {
                affordable(run_tx.tx, &context, &submission)?;
            }
            let more = then(&mut run_tx)?;
            Ok(render(&run_tx.close_shown()?, &more))
        })
        .await
    }

    pub async fn act_on(
        &self,
        actor: impl Into<Actor>,
        id: RunId,
        action: Action,
        key: Option<Key>,
        render: Render,
    ) -> Result<KeyedResponse, Failure> {
        let (context, actor) = (self.context.clone(), actor.into());
        self.keyed(Lane::Normal.of(id), "run.act", key, 200, move |tx| {
            act(tx, &context, &actor, id, action)?;
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
    /// has used the key in between, its answer is the key's answer. No client is answered before this commits.
    pub(crate) async fn remember(&self, key: Key, refused: Refused) -> Result<KeyedResponse, Failure> {
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

    async fn cancel(&self, actor: Actor, id: RunId, abort: bool) -> Result<(), Failure> {
        let context = self.context.clone();
        self.store
            .write(Lane::Normal.of(id), "run.act", move |tx| act(tx, &context, &actor, id, Action::Cancel { abort }))
            .await
    }

    pub async fn delete(&self, actor: impl Into<Actor>, id: RunId) -> Result<(), Failure> {
        let (context, actor) = (self.context.clone(), actor.into());
        self.store
            .write(Lane::Normal.of(id), "run.delete", move |tx| {
                let mut run_tx = open_for(tx, &context, &actor, id)?;
                run_tx.run_event(RunEvent::Deleted)?;
                run_tx.close().map(drop)
            })
            .await
    }

    /// Ends everything that is open, of every org, for an owner who closes the shop. `by` is the owner's token in words.
    pub async fn cancel_everything(&self, by: &str) -> Result<i64, Failure> {
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
                    let owner = Actor { org: org.id, by: Some(by.to_owned()) };
                    match self.cancel(owner, run.id, true).await {
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

/// Each agent's plan is one row, written once.
fn keep_plans(tx: &mut Tx, run: RunId, plans: &Plans) -> Result<(), Failure> {
    if plans.shared != RunPlan::default() {
        store::plan::insert_shared(tx, run, &plans.shared)?;
    }
    if let Some(agents) = plans.shared.document.as_ref().and_then(|document| document.get("agents")) {
        store::plan::insert_source(tx, run, 1, &serde_json::json!({ "agents": agents }))?;
    }
    if let Some(document) = &plans.document {
        store::plan::insert_document(tx, run, document)?;
    }
    for (sequence, plan) in (0..).zip(&plans.agents) {
        store::plan::insert(tx, run, 1, sequence, plan)?;
    }
    match &plans.planner {
        Some(planner) => store::plan::insert(tx, run, PLANNERS_VERSION, 0, planner),
        None => Ok(()),
    }
}

/// What a submission names must be here before it is accepted, and stays while its run is open.
pub(crate) fn use_contents(tx: &mut Tx, run: RunId, submission: &Submission) -> Result<(), Failure> {
    if let Some(tree) = &submission.spec.files
        && !store::content::is_tree_here(tx, submission.org, &tree.hash)?
    {
        let why = format!(
            "the tree {} is not here: PUT /api/v1/trees/{{hash}} first, and before it what it names",
            tree.hash
        );
        return Err(Refused::invalid("files", why).into());
    }
    store::content::use_by(tx, submission.org, run, &contents(&submission.spec))
}

impl Engine {
    /// The bound is on the bytes that are here, not on what is said about them.
    pub(crate) async fn check_stdin(&self, submission: &Submission) -> Result<(), Failure> {
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
    let files = spec.base.iter().chain(&spec.files).map(|tree| tree.hash.clone());
    files.chain(spec.stdin.iter().map(|stdin| stdin.hash.clone())).collect()
}

/// All that can be refused without a look at any row.
pub(crate) fn check_asked(context: &EngineContext, submission: &Submission) -> Result<(), Refused> {
    submission.spec.check()?;
    check_plans(&submission.spec, &submission.plans)?;
    context.check_calls(submission.plans.agents.iter().chain(&submission.plans.planner))?;
    check_machines(context, submission)?;
    check_sandbox(context, submission)?;
    context.check_features(&submission.spec.features)?;
    if let Some(name) = &submission.name {
        check_name(name)?;
    }
    context.check_fit(&submission.spec.provider, &submission.spec.resources)?;
    check_asked_for(context, &submission.spec)
}

/// What costs its owner money is taken only by who named it.
fn check_asked_for(context: &EngineContext, spec: &RunSpec) -> Result<(), Refused> {
    let provider = &spec.provider;
    let unasked = spec.kind != RunKind::External && !spec.providers.contains(provider);
    if unasked && context.provider(provider)?.capabilities().bills {
        return Err(Refused::Unasked { provider: provider.clone() });
    }
    Ok(())
}

fn check_plans(spec: &RunSpec, plans: &Plans) -> Result<(), Refused> {
    if spec.kind != RunKind::Agents {
        return Ok(());
    }
    if spec.plan.replans > 0 && plans.planner.is_none() {
        return Err(Refused::invalid("planner", "a run that may be planned again needs one"));
    }
    if !spec.plan.goal {
        model::plan::check(&plans.agents)?;
    } else if plans.planner.is_none() {
        return Err(Refused::invalid("planner", "a goal needs one"));
    }
    plans.planner.as_slice().iter().try_for_each(|planner| model::plan::check(std::slice::from_ref(planner)))
}

/// Where a sandbox is wanted and none can be made, nothing would ever run.
fn check_sandbox(context: &EngineContext, submission: &Submission) -> Result<(), Refused> {
    let (own, spec) = (submission.spec.provider.as_str(), &submission.spec);
    let Some(sandbox) = spec.sandbox else { return Ok(()) };
    let machines = submission.plans.agents.iter().filter(|agent| agent.is_in_sandbox(sandbox, false));
    let machines = machines.filter_map(|agent| agent.machine.as_ref());
    // Of several providers that a run names, those that cannot are passed over: see `Passed::NoSandbox`.
    let places: BTreeSet<&str> = match spec.kind {
        RunKind::Agents => machines.map(|machine| machine.provider.as_deref().unwrap_or(own)).collect(),
        _ => BTreeSet::from([own]),
    };
    for place in places {
        let no_sandbox = |why: String| Refused::NoSandbox { place: place.to_owned(), why };
        context.provider(place)?.can_sandbox().map_err(no_sandbox)?;
        let hosts = context.providers.all().get(place).map_or_else(Vec::new, |listing| listing.hosts.clone());
        let unable: Vec<String> =
            hosts.iter().filter_map(|host| Some(format!("{}: {}", host.name, host.no_sandbox()?))).collect();
        if !hosts.is_empty() && unable.len() == hosts.len() {
            return Err(no_sandbox(unable.join("; ")));
        }
    }
    Ok(())
}

/// Machines of agents: each agent that has commands has one, of a provider that is set up, and what all its processes are given fits into
/// a machine's document.
fn check_machines(context: &EngineContext, submission: &Submission) -> Result<(), Refused> {
    for agent in submission.plans.agents.iter().chain(&submission.plans.planner) {
        let at = format!("agents.{}", agent.name);
        let needs = agent.tasks.iter().flat_map(|task| &task.steps).any(|step| step.needs_machine());
        let Some(machine) = &agent.machine else {
            let why = "it has commands, and no machine to run them on";
            return if needs { Err(Refused::invalid(at, why)) } else { continue };
        };
        let provider = machine.provider.as_deref().unwrap_or(&submission.spec.provider);
        context.check_fit(provider, &machine.resources).map_err(|refused| match refused {
            Refused::DoesNotFit(unfit) => Refused::DoesNotFit(Box::new(Unfit { at: Some(at.clone()), ..*unfit })),
            refused => refused,
        })?;
        check_variables(&submission.spec.env, agent, machine)?;
    }
    Ok(())
}

/// What all processes of an agent are given, with the variables of its run.
pub(crate) fn check_variables(
    of_run: &BTreeMap<String, String>,
    agent: &AgentPlan,
    machine: &MachinePlan,
) -> Result<(), Refused> {
    let bad = |why: String| Refused::invalid(format!("agents.{}.env", agent.name), why);
    let (env, secrets) = command::variables(Some(&serde_json::json!(machine.env))).map_err(bad)?;
    let bytes: usize = env.iter().chain(of_run).map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_ENV_BYTES {
        return Err(bad("more than 128 KiB in sum, with the run's: put it into a file and send it with --file".into()));
    }
    let mut names = env.keys().chain(secrets.keys()).chain(&machine.secrets);
    names.try_for_each(|name| model::spec::check_variable(name).map_err(bad))
}

/// What starting it would reserve, if the org has so much. Only the start reserves.
pub(crate) fn affordable(tx: &mut Tx, context: &EngineContext, submission: &Submission) -> Result<Credits, Failure> {
    let needed = crate::ledger::estimate(context, &submission.spec.terms(), Credits::ZERO)?;
    let available = store::org::find(tx, submission.org)?.available;
    if available < needed && !bug!(unaffordable_accepted) {
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

pub(crate) fn act(
    tx: &mut Tx,
    context: &EngineContext,
    actor: &Actor,
    id: RunId,
    action: Action,
) -> Result<(), Failure> {
    let mut run_tx = open_for(tx, context, actor, id)?;
    refuse_to_run_caller(&run_tx, action)?;
    match action {
        Action::Start => run_tx.run_event(RunEvent::Started)?,
        Action::Cancel { abort } => run_tx.run_event(RunEvent::CancelAsked { abort })?,
        Action::Pause => run_tx.run_event(RunEvent::PauseAsked { why: model::run::PauseReason::Asked })?,
        Action::Resume => run_tx.run_event(RunEvent::ResumeAsked)?,
        Action::Retry { force } => {
            run_tx.refuse_retry_of_import()?;
            files_are_here(&mut run_tx)?;
            let given_up = force && give_up_silent_jobs(&mut run_tx)?;
            // What is left of the run goes on, or has yet to end.
            if !given_up || run_tx.run.status.is_end() || run_tx.run.status == RunStatus::Retrying {
                run_tx.run_event(RunEvent::RetryAsked { after_ms: 0 })?;
            }
        }
    }
    run_tx.close().map(drop)
}

/// A run that asks for a call never executes anything itself.
fn refuse_to_run_caller(run_tx: &RunTx<'_>, action: Action) -> Result<(), Refused> {
    let Some(called) = &run_tx.run.call else { return Ok(()) };
    let why = match (action, called.run) {
        (Action::Start, Some(run)) if !run_tx.run.status.is_end() => {
            format!("it waits for {run}, which executes the same command: repl attach {}", run_tx.run.id)
        }
        (Action::Retry { .. }, _) => "it was answered with a result: submit it again".to_owned(),
        _ => return Ok(()),
    };
    Err(Refused::Conflict { why })
}

/// What a run was sent with is kept a while after its end; later there is nothing to try again with.
fn files_are_here(run_tx: &mut RunTx<'_>) -> Result<(), Failure> {
    if !run_tx.run.spec.sent_files {
        return Ok(());
    }
    let content = store::run::content(run_tx.tx, run_tx.run.id)?;
    if let Some(tree) = &content.files
        && !store::content::is_tree_here(run_tx.tx, run_tx.run.org, &tree.hash)?
    {
        let why = "no run needed them for long, and they were deleted: submit it again".into();
        return Err(Refused::Gone { what: "what the run was sent with", why }.into());
    }
    if let Some(stdin) = &content.stdin
        && !store::content::is_here(run_tx.tx, run_tx.run.org, &stdin.hash)?
    {
        let why = "no run needed it for long, and its bytes were deleted: submit the run again".to_owned();
        return Err(Refused::Gone { what: "the run's standard input", why }.into());
    }
    Ok(())
}

/// A person says that a silent machine's job is surely gone: it is fenced, and its run may go on. Whether there was one. Machines are
/// locked in the order of their ids.
fn give_up_silent_jobs(run_tx: &mut RunTx<'_>) -> Result<bool, Failure> {
    if run_tx.attempts.is_empty() || run_tx.attempt()?.it.tree.jobs.silent() == 0 {
        return Ok(false);
    }
    let mut silent = Vec::new();
    for id in run_tx.pick_jobs(JobPick::Open, MAX_NODES as usize)? {
        let job = run_tx.job(id)?;
        if job.silent_since.is_some() {
            silent.push((job.instance, id));
        }
    }
    silent.sort();
    for (_, job) in &silent {
        run_tx.job_event(*job, model::job::JobEvent::GaveUpOn)?;
    }
    Ok(!silent.is_empty())
}

/// A run of the actor's org. Its events say who asked.
pub(crate) fn open_for<'t>(
    tx: &'t mut Tx,
    context: &'t EngineContext,
    actor: &Actor,
    id: RunId,
) -> Result<RunTx<'t>, Failure> {
    let mut run_tx = RunTx::open(tx, context, id)?;
    if run_tx.run.org != actor.org && !bug!(org_unchecked) {
        return Err(Refused::not_found("run", id).into()); // another org's run does not exist
    }
    run_tx.by.clone_from(&actor.by);
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
    run_tx.go_on()?;
    run_tx.dispatch()?;
    let charge = meter(&mut run_tx)?;
    let soon = run_tx.at + LOOK_AGAIN_MS;
    let due = deadline(&mut run_tx)?.map(|(due, _)| if due > run_tx.at { due } else { soon });
    run_tx.close()?;
    Ok(due.into_iter().chain(charge).min())
}

/// The run's deadline, moved by outages of the control plane: during one no runner could report and no worker could pick the run up.
fn deadline(run_tx: &mut RunTx<'_>) -> Result<Option<(Timestamp, RunEvent)>, Failure> {
    let deadline = run_tx.deadline();
    let Some(from) = crate::idle_runs::waits_since(&run_tx.run, deadline.as_ref()) else { return Ok(deadline) };
    let outages = store::worker::outages(run_tx.tx, from)?;
    Ok(crate::idle_runs::without(&run_tx.run, deadline, &outages))
}

/// Charges every full window of the active jobs and keeps the reservation an hour ahead. Returns when to look again.
fn meter(run_tx: &mut RunTx<'_>) -> Result<Option<Timestamp>, Failure> {
    if run_tx.next_charge()?.is_some_and(|due| due <= run_tx.at) {
        // All together, so that they have the same windows from now on.
        let active = run_tx.pick_jobs(JobPick::Active, MAX_NODES as usize)?;
        for job in &active {
            run_tx.charge_job(*job, run_tx.at)?;
        }
        let at = run_tx.at;
        let attempt = run_tx.attempt()?;
        let mut next = attempt.it.clone();
        next.tree.jobs.charged_to = Some(at);
        let hourly = next.tree.jobs.hourly();
        attempt.set(next);
        let goes_on = active.first().map_or(Ok(true), |job| run_tx.top_up(*job, hourly))?;
        // An imported run was paid for in the lost database: a lack of credits never ends it.
        if !goes_on && run_tx.run.termination.is_none() && run_tx.run.imported_at.is_none() {
            out_of_credits(run_tx)?;
        }
    }
    run_tx.next_charge()
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
    let planned = submission.plans.secrets();
    for name in submission.spec.secrets.iter().chain(&planned) {
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
    let name = submission.name.clone().unwrap_or_else(|| format!("run-{}", id.slug()));
    let run = Run::created(id, submission.org, name, submission.spec.terms(), at);
    match submission.spec.kind {
        RunKind::Agents => Run { planned: Totals::of(&submission.plans.agents), ..run },
        _ => run,
    }
}
