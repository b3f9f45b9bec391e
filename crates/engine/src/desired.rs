//! The desired document of an instance: all that its runner should be doing, computed from rows whenever it is asked for.

use crate::command::{self, Caller, Server, Started};
use crate::intents::launch_run;
use crate::planner::{told_errors, with_errors};
use crate::step::is_in_flight;
use crate::{Engine, EngineContext};
use model::agent::{Agent, AgentKind};
use model::allocation::Allocation;
use model::feature::FeatureState;
use model::hierarchy::Pick;
use model::instance::{Instance, InstanceStatus};
use model::job::{Job, JobStatus};
use model::plan::MachinePlan;
use model::run::Run;
use model::spec::{BlobSource, Command, Resources, RunContent, Sandbox, StdinRef};
use model::step::{Step, StepTry, ToolKind};
use model::stub::{SealedStub, Stub};
use model::task::Task;
use model::time::SECOND;
use model::tree::{Tree, TreeRef};
use model::{AgentId, AllocationId, Failure, InstanceId, OrgId, Refused};
use std::collections::BTreeMap;
use std::sync::Mutex;
use store::Tx;
use store::blob::BlobHash;
use store::step::Data;

/// Small trees travel inside the document, folders and files: up to so many, and so many bytes in sum.
const INLINE_BLOBS: usize = 64;
const INLINE_BYTES: i64 = 64 * 1024;
/// Names of workdirs that are remembered, of all machines together: 2 MB.
const REMEMBERED: usize = 20_000;
/// Open children of one step that are read: calls that a model has asked for in one turn.
const MOST_CHILDREN: i64 = 200;
/// Slots that are read one by one rather than all of a machine's.
const FEW: usize = 4;
/// The client of an MCP server judges the time-out of its call, because it knows whether the call was sent. It is ended if it does not.
const CLIENT_GRACE_MS: i64 = 5 * SECOND;

#[derive(Debug, Clone)]
pub struct Desired {
    pub instance: Instance,
    pub job: Option<DesiredJob>,
    pub kept_workdirs: Vec<String>,
    pub shutdown: bool,
}

#[derive(Debug, Clone)]
pub struct DesiredJob {
    pub job: Job,
    pub run: Run,
    pub content: RunContent,
    pub workdir: String,
    pub secrets: BTreeMap<String, String>,
    /// What it may use of its machine.
    pub limits: Resources,
    /// What its runner has to bring before anything starts; nothing once it has said that all is in place.
    pub files: Option<TreeRef>,
    /// The snapshot that is laid under its files, as long as they are to be brought.
    pub base: Option<TreeRef>,
    /// Where it reads what these name.
    pub source: BlobSource,
    /// The whole tree of its files, folders' documents included, if it is small, and a small standard input, by hash.
    pub inline: BTreeMap<String, Vec<u8>>,
    /// Those that have begun and have not been seen to end.
    pub steps: Vec<DesiredStep>,
    /// No step will be added.
    pub closed: bool,
    /// What its runner keeps of it.
    pub stub: SealedStub,
}

/// One try of one command.
#[derive(Debug, Clone)]
pub struct DesiredStep {
    pub step: StepTry,
    /// It is to end.
    pub stopped: bool,
    /// Its own variables, beside its job's.
    pub env: BTreeMap<String, String>,
    pub secrets: BTreeMap<String, String>,
    /// Trees that are laid into the workdir before it starts.
    pub restore: Vec<String>,
    /// What it leaves for another workdir.
    pub keep: Vec<String>,
    /// Its standard output is its answer.
    pub answers: bool,
    /// The MCP server that it asks, which outlives it.
    pub server: Option<Server>,
    pub command: Command,
    pub working_dir: Option<String>,
    pub stdin: Option<StdinRef>,
    pub artifacts: Vec<String>,
    pub max_duration_ms: Option<i64>,
    pub merge: bool,
    /// The end of its standard output is told with its own.
    pub tail: bool,
    pub log_offset: i64,
    /// A model has called it: it gets no token for steps of its own.
    pub by_model: bool,
    pub sandbox: Option<Sandbox>,
}

/// A job with what its rows say about it.
struct Found {
    job: Job,
    run: Run,
    content: RunContent,
    source: BlobSource,
    secrets: BTreeMap<String, String>,
    /// Of a planned agent; a plain task's one step follows from its run.
    commands: Vec<FoundCommand>,
}

struct FoundCommand {
    step: Step,
    started: Started,
    /// Values of its secrets, by its variables.
    secrets: BTreeMap<String, String>,
    sandbox: Option<Sandbox>,
}

impl Engine {
    pub async fn desired(&self, id: InstanceId) -> Result<Desired, Failure> {
        let (context, workdirs) = (self.context.clone(), self.workdirs.clone());
        let (instance, found, kept) = self
            .store
            .read("instance.desired", move |tx| {
                let instance = store::instance::find(tx, id)?.ok_or_else(|| Refused::not_found("instance", id))?;
                let kept = workdirs.kept_on(tx, id)?;
                let job = store::job::on_instance(tx, id)?.filter(wanted);
                let found = job.map(|job| find_job(tx, &context, job)).transpose()?;
                let found = found.filter(|found| !awaits_features(&instance, found));
                Ok((instance, found, kept))
            })
            .await?;
        let job = match found {
            Some(found) => {
                self.context.presence.deliver(found.job.id);
                let workdir = found.job.allocation.and_then(|slot| kept.get(&slot).cloned());
                Some(self.desired_job(&instance, found, workdir.unwrap_or_else(|| "work_1".into())).await?)
            }
            None => None,
        };
        // What was installed is removed first, for as long as its workflow waits for that.
        let cleared = instance.features.iter().all(|feature| feature.state == FeatureState::Left);
        let shutdown = match instance.status {
            InstanceStatus::Terminating => job.is_none() && cleared,
            InstanceStatus::Terminated => job.is_none(),
            _ => false,
        };
        Ok(Desired { instance, job, kept_workdirs: kept.into_values().collect(), shutdown })
    }

    async fn desired_job(&self, instance: &Instance, found: Found, workdir: String) -> Result<DesiredJob, Failure> {
        let Found { job, run, content, source, secrets, commands } = found;
        let files = content.files.clone().filter(|_| job.running_at.is_none());
        let mut inline = match job.running_at {
            None => self.inline(run.org, &content),
            Some(_) => BTreeMap::new(),
        };
        let (plain, mut steps) = (job.step.is_some(), Vec::new());
        if plain {
            let log_offset = self.logs.reached(job.id, job.epoch).await?.next_offset;
            steps.extend(rank_step(&job, &run, &content, log_offset));
        }
        for command in commands {
            let log_offset = self.logs.reached(command.step.present_try(), job.epoch).await?.next_offset;
            steps.push(command_step(command, &content, &mut inline, log_offset));
        }
        // A plain task's one step is all that there will ever be; an agent's job is closed by being stopped.
        let closed = plain || job.stop_asked_at.is_some();
        let limits = job.resources.clone().unwrap_or_else(|| run.spec.resources.clone());
        let org_name = self.org_name(run.org).await?;
        let stub = Stub::of((&job, &run, &content), instance, org_name, workdir.clone());
        let stub = self.context.installation.seal_stub(&stub);
        let base = content.base.clone().filter(|_| job.running_at.is_none());
        Ok(DesiredJob { base, job, run, content, source, workdir, secrets, limits, files, inline, steps, closed, stub })
    }

    /// Names of orgs never change, so each is read once.
    async fn org_name(&self, org: OrgId) -> Result<String, Failure> {
        let known = self.org_names.lock().expect("nothing panics while it is locked").get(&org).cloned();
        if let Some(name) = known {
            return Ok(name);
        }
        let name = self.store.read_inline("org.name", move |tx| Ok(store::org::find(tx, org)?.name)).await?;
        let mut names = self.org_names.lock().expect("nothing panics while it is locked");
        if names.len() >= REMEMBERED {
            names.pop_first();
        }
        names.insert(org, name.clone());
        Ok(name)
    }

    fn inline(&self, org: OrgId, content: &RunContent) -> BTreeMap<String, Vec<u8>> {
        let mut inline = self.inline_tree(org, content).unwrap_or_default();
        if let Some(stdin) = content.stdin.as_ref().filter(|stdin| stdin.size <= INLINE_BYTES)
            && let Ok(bytes) = self.open_blob(org, &stdin.hash).and_then(|blob| blob.read_all())
        {
            inline.insert(stdin.hash.clone(), bytes);
        }
        inline
    }

    /// None when the tree is too large, or not to be read: then the runner fetches it.
    fn inline_tree(&self, org: OrgId, content: &RunContent) -> Option<BTreeMap<String, Vec<u8>>> {
        let root = content.files.as_ref().filter(|tree| tree.bytes <= INLINE_BYTES)?;
        let (mut inline, mut left) = (BTreeMap::new(), INLINE_BYTES);
        let mut open = vec![(root.hash.clone(), true)];
        while let Some((hash, is_tree)) = open.pop() {
            if inline.contains_key(&hash) {
                continue;
            }
            let blob = self.open_blob(org, &hash).ok()?;
            left -= blob.size;
            if left < 0 || inline.len() == INLINE_BLOBS {
                return None;
            }
            let bytes = blob.read_all().ok()?;
            if is_tree {
                let tree = Tree::parse(&bytes).ok()?;
                open.extend(tree.children().map(|child| (child.hash.to_owned(), child.is_tree)));
            }
            inline.insert(hash, bytes);
        }
        Some(inline)
    }
}

/// The names of workdirs by the slot they belong to, which never change: a machine keeps those of its last runs for a while, and is told
/// of all of them whenever anything about it changes.
#[derive(Default)]
pub(crate) struct Workdirs(Mutex<BTreeMap<AllocationId, String>>);

impl Workdirs {
    fn kept_on(&self, tx: &mut Tx, instance: InstanceId) -> Result<BTreeMap<AllocationId, String>, Failure> {
        let ids = store::allocation::kept_ids(tx, instance)?;
        let mut kept = self.known(&ids);
        let unknown: Vec<_> = ids.into_iter().filter(|id| !kept.contains_key(id)).collect();
        let slots = match unknown.len() {
            ..=FEW => unknown.into_iter().filter_map(|id| store::allocation::find(tx, id).transpose()).collect(),
            _ => store::allocation::kept_on(tx, instance),
        };
        let slots: Vec<Allocation> = slots?;
        let mut known = self.0.lock().expect("nothing panics while it is locked");
        for slot in slots {
            if known.len() >= REMEMBERED {
                known.pop_first(); // the oldest, which is the first to be no longer kept
            }
            known.insert(slot.id, slot.workdir.clone());
            kept.insert(slot.id, slot.workdir);
        }
        Ok(kept)
    }

    fn known(&self, ids: &[AllocationId]) -> BTreeMap<AllocationId, String> {
        let known = self.0.lock().expect("nothing panics while it is locked");
        ids.iter().filter_map(|id| known.get(id).map(|name| (*id, name.clone()))).collect()
    }
}

fn find_job(tx: &mut Tx, context: &EngineContext, job: Job) -> Result<Found, Failure> {
    let found = store::run::find_with_content(tx, job.run)?;
    let (run, mut content) = found.ok_or_else(|| Refused::not_found("run", job.run))?;
    let named = content.secrets.iter().map(|name| (name.clone(), name.clone()));
    let mut named: BTreeMap<String, String> = named.collect();
    let mut commands = Vec::new();
    if job.step.is_none() {
        let machine = machine_of(tx, job.agent)?;
        named.extend(machine.secrets.iter().map(|name| (name.clone(), name.clone())));
        if let Ok((env, secrets)) = command::variables(Some(&serde_json::json!(machine.env))) {
            content.env.extend(env);
            named.extend(secrets);
        }
        content.working_dir = machine.working_dir.or(content.working_dir);
        commands = find_commands(tx, context, &run, &job)?;
    }
    let secrets = open_secrets(tx, context, run.org, &named)?;
    let source = launch_run::source_of(tx, context, &job)?;
    Ok(Found { job, run, content, source, secrets, commands })
}

fn machine_of(tx: &mut Tx, agent: AgentId) -> Result<MachinePlan, Failure> {
    let Some(agent) = store::agent::find(tx, agent)? else { return Ok(MachinePlan::default()) };
    let plan = store::plan::find(tx, agent.run, agent.plan_version, agent.sequence)?;
    Ok(plan.and_then(|plan| plan.machine).unwrap_or_default())
}

/// Commands that were begun in this job and have not been seen to end. What could not be started was never begun.
fn find_commands(tx: &mut Tx, context: &EngineContext, run: &Run, job: &Job) -> Result<Vec<FoundCommand>, Failure> {
    let mut commands = Vec::new();
    let agent = store::agent::find(tx, job.agent)?;
    let most = agent.as_ref().map_or(0, |agent| agent.parallel);
    let of_planner = agent.as_ref().is_some_and(|agent| is_of_planner(agent, run));
    for task in store::task::in_flight(tx, job.agent, most)? {
        for step in worked_on(tx, &task)? {
            if step.on.as_ref().is_none_or(|on| on.job != job.id) {
                continue;
            }
            let mut input = store::step::data(tx, step.id, Data::Input)?.unwrap_or_default();
            if agent.as_ref().is_some_and(|agent| agent.kind == AgentKind::Planner) {
                input = with_errors(input, told_errors(tx, job.agent)?);
            }
            let caller = Caller { key: step.key.as_deref().unwrap_or_default(), timeout_ms: step.timeout_ms };
            let Ok(started) = command::read(step.tool, &input, caller) else { continue };
            let secrets = open_secrets(tx, context, run.org, &started.secrets)?;
            let sandbox = run.spec.sandbox.and_then(|it| it.around(step.parent.is_some() || of_planner));
            commands.push(FoundCommand { step, started, secrets, sandbox });
        }
    }
    Ok(commands)
}

/// Whether its plan was made while the run went on, and not by the file's author.
pub(crate) fn is_of_planner(agent: &Agent, run: &Run) -> bool {
    agent.kind == AgentKind::Planned && (run.spec.plan.goal || agent.plan_version > 1)
}

/// Steps of a task that run, and children that do.
fn worked_on(tx: &mut Tx, task: &Task) -> Result<Vec<Step>, Failure> {
    let mut all = Vec::new();
    for pick in [Pick::Running, Pick::Waiting] {
        for step in store::step::pick(tx, task.id, pick, task.parallel)? {
            match step.by_children {
                true => all.extend(store::step::open_children(tx, step.id, MOST_CHILDREN)?),
                false => all.push(step),
            }
        }
    }
    all.retain(is_in_flight);
    Ok(all)
}

/// Values by variables, of secrets by their names. One that was deleted meanwhile is missing there, as it is here.
fn open_secrets(
    tx: &mut Tx,
    context: &EngineContext,
    org: OrgId,
    named: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut values = BTreeMap::new();
    for (variable, name) in named {
        if let Ok(value) = store::secret::open(tx, &context.installation, org, name) {
            values.insert(variable.clone(), value);
        }
    }
    Ok(values)
}

/// A command of a planned agent, with its evaluated input.
fn command_step(
    found: FoundCommand,
    content: &RunContent,
    inline: &mut BTreeMap<String, Vec<u8>>,
    log_offset: i64,
) -> DesiredStep {
    let FoundCommand { step, mut started, secrets, sandbox } = found;
    // A server in a sandbox is another one than the same program outside.
    if let (Some(sandbox), Some(server)) = (sandbox, &mut started.server) {
        server.name.push_str(&format!(" in a sandbox, network {}", sandbox.network));
    }
    let stdin = started.stdin.map(|bytes| {
        let (hash, size) = (BlobHash::of(&bytes).to_string(), bytes.len() as i64);
        inline.insert(hash.clone(), bytes);
        StdinRef { hash, size }
    });
    let on = step.on.as_ref();
    let by_model = step.parent.is_some();
    let grace_ms = if step.stdio { CLIENT_GRACE_MS } else { 0 };
    DesiredStep {
        step: step.present_try(),
        stopped: on.is_some_and(|on| on.stopping),
        env: started.env,
        secrets,
        restore: on.map(|on| on.restores.clone()).unwrap_or_default(),
        keep: step.files.clone().unwrap_or_default(),
        answers: step.tool == ToolKind::Exec || step.stdio,
        server: started.server,
        command: started.command,
        working_dir: content.working_dir.clone(),
        stdin,
        artifacts: Vec::new(),
        max_duration_ms: step.timeout_ms.map(|ms| ms + grace_ms),
        merge: false,
        tail: step.tool == ToolKind::Command,
        log_offset,
        by_model,
        sandbox,
    }
}

/// The one step of a plain task, which is the run's own command.
fn rank_step(job: &Job, run: &Run, content: &RunContent, log_offset: i64) -> Option<DesiredStep> {
    Some(DesiredStep {
        step: job.step?,
        stopped: false,
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        restore: Vec::new(),
        // The whole workdir, which becomes a snapshot.
        keep: if run.spec.save_snapshot { vec!["**".to_owned()] } else { Vec::new() },
        answers: false,
        server: None,
        command: content.command.clone(),
        working_dir: content.working_dir.clone(),
        stdin: content.stdin.clone(),
        artifacts: content.artifacts.clone(),
        max_duration_ms: run.spec.max_duration_ms.map(|max| (max - run.active_ms).max(1)),
        merge: content.merge,
        tail: false,
        log_offset,
        by_model: false,
        sandbox: run.spec.sandbox.and_then(|it| it.around(false)),
    })
}

/// It was placed on a machine that is still being prepared for it. One that is to end is told so, prepared or not.
fn awaits_features(instance: &Instance, found: &Found) -> bool {
    let waits = found.job.accepted_at.is_none() && found.job.stop_asked_at.is_none();
    waits && !instance.has_features(&found.run.spec.features)
}

/// Jobs that a runner should know of: placed, and not known to be gone from there.
fn wanted(job: &Job) -> bool {
    job.status != JobStatus::Submitted && !job.status.is_end() && job.gone_at.is_none() && !job.fenced
}
