//! Entities as the API shows them. Words and amounts only: nothing is decided here.

use engine::artifact::Artifact;
use engine::ledger::Entered;
use engine::org::Org;
use engine::plan::{Missing, Place};
use engine::said::{Counts, Span};
use engine::view::{RunSnapshot, SeenJob, StepDetail, Tree};
use model::agent::Agent;
use model::attempt::Attempt;
use model::children::Children;
use model::host::NotTaken;
use model::job::{Job, JobStatus};
use model::manifest::{Manifest, ResourceKind};
use model::offer::{Offer, PassedOver};
use model::run::{LastError, Run};
use model::spec::{Resources, RunSpec};
use model::step::Step;
use model::task::Task;
use model::workflow::Workflow;
use model::{Credits, Timestamp};
use std::collections::BTreeMap;
use wire::api::*;

pub(crate) fn ms(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::ms)
}

pub(crate) fn error(error: &Option<LastError>) -> Option<ErrorView> {
    error.as_ref().map(|e| ErrorView { code: e.code.clone(), message: e.message.clone(), cause: e.cause.clone() })
}

pub(crate) fn run(snapshot: &RunSnapshot, now: Timestamp) -> RunView {
    let (run, job) = (&snapshot.run, snapshot.job.as_ref());
    let money = snapshot.attempt.as_ref();
    let amount = |pick: fn(&Attempt) -> Credits| money.map(pick).unwrap_or_default();
    let (reserved, charged, refunded) = (amount(|a| a.reserved), amount(|a| a.charged), amount(|a| a.refunded));
    let ended_at = run.completed_at.or(run.cancelled_at);
    let spans = spans(job, ended_at, now);
    let hold = snapshot.allocation.as_ref().and_then(|slot| slot.hold()).filter(|hold| hold.until > now);
    RunView {
        id: run.id.to_string(),
        name: run.name.clone(),
        kind: run.spec.kind.to_string(),
        task: snapshot.goal.clone(),
        status: run.status.to_string(),
        phase: run.phase.map(|p| p.to_string()),
        outcome: run.outcome.map(|o| o.to_string()),
        pause_reason: run.pause_reason.map(|r| r.to_string()),
        attempt_number: run.attempt,
        max_attempts: run.max_attempts,
        plan_version: run.plan_version,
        agent_count: run.agent_count,
        task_count: run.task_count,
        step_count: run.step_count,
        planned_agents: run.planned.agents,
        planned_tasks: run.planned.tasks,
        planned_steps: run.planned.steps,
        failure_mode: run.spec.failure_mode.to_string(),
        max_agents: run.spec.plan.max_agents,
        priority: run.spec.priority.to_string(),
        credits_reserved: reserved.to_string(),
        credits_reserved_micro: reserved.micro(),
        credits_charged: charged.to_string(),
        credits_charged_micro: charged.micro(),
        credits_refunded: refunded.to_string(),
        credits_refunded_micro: refunded.micro(),
        budget: run.spec.budget.map(|b| b.to_string()),
        created_at: run.created_at.ms(),
        started_at: ms(run.queued_at),
        running_at: ms(run.running_at),
        completed_at: ms(run.completed_at),
        cancelled_at: ms(run.cancelled_at),
        duration_ms: ended_at.map(|end| run.queued_at.map_or(0, |started| end.since(started))), // R140
        queued_ms: spans.0,
        starting_ms: spans.1,
        running_ms: spans.2,
        command: snapshot.content.command.shown(),
        last_error: error(&run.last_error),
        last_heartbeat: ms(snapshot.beat_at),
        termination_reason: run.termination.as_ref().map(|t| t.reason.to_string()),
        escalation_ticket_id: snapshot.ticket.map(|ticket| ticket.to_string()),
        context: context(run, None),
        exit_code: run.exit_code,
        signal: run.signal,
        warm: job.filter(|j| j.instance.is_some()).map(|j| j.warm),
        instance: job.and_then(|j| j.instance).map(|i| i.to_string()),
        allocation: job.and_then(|j| j.allocation).map(|a| a.to_string()),
        workdir: snapshot.allocation.as_ref().map(|a| a.workdir.clone()),
        hold_until: hold.map(|hold| hold.until.ms()),
        synced_blobs: job.filter(|j| j.running_at.is_some()).map(|j| j.synced_blobs),
        late_evidence: run.late_evidence.clone(),
        cached_from: cached_from(run),
        follows: run
            .call
            .as_ref()
            .filter(|_| !run.status.is_end())
            .and_then(|called| called.run)
            .map(|it| it.to_string()),
        inputs: None,
        output: None,
        output_error: None,
        step: None,
        allowed: model::run::allowed(run).into_iter().map(str::to_owned).collect(),
        version: run.version,
        links: links(run),
    }
}

pub(crate) fn why_span((fact, span): &(Option<usize>, Span)) -> WhySpan {
    let (since, until) = match span.counts {
        Counts::Since(at) => (Some(at.ms()), None),
        Counts::Until(at) => (None, Some(at.ms())),
    };
    let place = |place: usize| place as i64;
    WhySpan { fact: fact.map(place), start: place(span.bytes.start), end: place(span.bytes.end), since, until }
}

pub(crate) fn cached_from(run: &Run) -> Option<CachedFrom> {
    let called = run.call.as_ref()?;
    let (exec, node) = (called.exec.clone()?, called.node.clone());
    Some(CachedFrom { run: called.run.map(|run| run.to_string()), exec, node, hit: called.execution.is_none() })
}

/// `plan`: as it was written, where the run is shown by itself.
pub(crate) fn context(run: &Run, plan: Option<serde_json::Value>) -> serde_json::Value {
    serde_json::json!({ "decomposition": plan, "replan_count": replans(run) })
}

/// The first plan of a run with a goal is made by a planner too, and is none that replaces another.
fn replans(run: &Run) -> i64 {
    (run.plan_version - if run.spec.plan.goal { 2 } else { 1 }).max(0)
}

/// Waiting for a machine, getting ready there, running: as far as each has come.
fn spans(job: Option<&Job>, ended_at: Option<Timestamp>, now: Timestamp) -> (Option<i64>, Option<i64>, Option<i64>) {
    let Some(job) = job else { return (None, None, None) };
    let end = job.gone_at.or(job.ended_at).or(ended_at).unwrap_or(now);
    let queued = job.placed_at.unwrap_or(end).since(job.submitted_at);
    let starting = job.placed_at.map(|placed| job.running_at.unwrap_or(end).since(placed));
    let running = job.running_at.map(|running| end.since(running));
    (Some(queued), starting, running)
}

pub(crate) fn plan(spec: &RunSpec, plan: &engine::plan::Plan) -> Plan {
    let size = |r: &Resources| ResourcesBody {
        cpu_milli: r.cpu_milli,
        memory_bytes: r.memory_bytes,
        gpu: r.gpu.as_ref().map(ToString::to_string),
        disk_bytes: r.disk_bytes,
    };
    let (machine, placement) = match plan.placement {
        Place::Now(instance) => (Some(instance), "now"),
        Place::StartMachine => (None, "start_machine"),
        Place::ReplaceMachine(_) => (None, "replace_machine"),
        Place::Wait => (None, "wait"),
    };
    Plan {
        dry_run: true,
        command: spec.command.shown(),
        provider: spec.provider.clone(),
        region: spec.region.clone(),
        pool: PoolPlan {
            instances: plan.room.instances,
            max_instances: plan.room.max_instances,
            available: plan.available,
            waiting: plan.waiting,
        },
        machine: machine.map(|instance| instance.to_string()),
        machine_size: size(&plan.size),
        warm: machine.is_some(),
        placement: placement.to_owned(),
        init: plan.initialised.map(|done| if done { "done" } else { "first" }.to_owned()),
        limits: size(&spec.resources),
        price_per_hour: plan.per_hour.to_string(),
        price_per_hour_micro: plan.per_hour.micro(),
        credits_reserved: plan.reserved.to_string(),
        credits_reserved_micro: plan.reserved.micro(),
        credits_most: plan.most.map(|most| most.to_string()),
        credits_most_micro: plan.most.map(Credits::micro),
        credits_available: plan.balance.to_string(),
        credits_available_micro: plan.balance.micro(),
        max_duration_ms: spec.max_duration_ms,
        artifacts: spec.artifacts.clone(),
        sandbox: spec.sandbox.map(|sandbox| sandbox.network.to_string()),
        files: files_plan(spec, &plan.missing),
        offers: plan.choice.offers.iter().map(offer).collect(),
        host: plan.host.clone(),
        other_hosts: plan.other_hosts.iter().map(other_host).collect(),
        passed_over: plan.choice.passed_over.iter().map(passed_over).collect(),
    }
}

fn offer(it: &Offer) -> OfferView {
    OfferView {
        provider: it.provider.clone(),
        region: it.region.clone(),
        spot: it.spot,
        instance_type: it.instance_type.clone(),
        price_per_hour: Credits(it.price_micro).to_string(),
        price_per_hour_micro: it.price_micro,
    }
}

fn other_host((host, why): &(String, NotTaken)) -> OtherHostView {
    OtherHostView { host: host.clone(), why: why.to_string() }
}

fn passed_over(it: &PassedOver) -> PassedOverView {
    PassedOverView { provider: it.provider.clone(), why: it.why.to_string() }
}

/// What of a tree is missing takes more than one question to find out (`POST /blobs/missing`, from the root down).
fn files_plan(spec: &RunSpec, missing: &Missing) -> FilesPlan {
    let stdin = spec.stdin.as_ref().filter(|_| missing.stdin).map_or((0, 0), |stdin| (1, stdin.size));
    FilesPlan {
        count: spec.files.as_ref().map_or(0, |tree| tree.files),
        bytes: spec.files.as_ref().map_or(0, |tree| tree.bytes),
        to_send: (!missing.tree).then_some(stdin.0),
        bytes_to_send: (!missing.tree).then_some(stdin.1),
    }
}

fn links(run: &Run) -> BTreeMap<String, String> {
    let base = format!("/api/v1/runs/{}", run.id);
    ["tree", "agents", "tasks", "steps", "events", "logs", "artifacts", "ledger", "jobs", "why"]
        .into_iter()
        .map(|part| (part.to_owned(), [&base, "/", part].concat()))
        .chain([("self".to_owned(), base.clone())])
        .collect()
}

pub(crate) fn attempt(a: &Attempt) -> AttemptView {
    AttemptView {
        run: a.run.to_string(),
        number: a.number,
        status: a.status.to_string(),
        credits_reserved: a.reserved.to_string(),
        credits_reserved_micro: a.reserved.micro(),
        credits_charged: a.charged.to_string(),
        credits_charged_micro: a.charged.micro(),
        credits_refunded: a.refunded.to_string(),
        credits_refunded_micro: a.refunded.micro(),
        uncollected_micro: a.uncollected.micro(),
        opened_at: a.opened_at.ms(),
        ended_at: ms(a.ended_at),
    }
}

pub(crate) fn tree(tree: &Tree, now: Timestamp) -> wire::api::Tree {
    let agents = tree.agents.iter().map(|a| {
        let mut view = agent(a);
        let charged = tree.charged.get(&a.name).copied().unwrap_or_default();
        view.credits_charged = Some(charged.to_string());
        view.credits_charged_micro = Some(charged.micro());
        view.tasks = tree
            .tasks
            .iter()
            .filter(|t| t.agent == a.id)
            .map(|t| {
                let mut view = task(t);
                view.steps = tree.steps.iter().filter(|s| s.task == t.id).map(step).collect();
                view
            })
            .collect();
        view.jobs = tree.jobs.iter().filter(|j| j.job.agent == a.id).map(job).collect();
        view
    });
    wire::api::Tree { agents: agents.collect(), run: run(&tree.snapshot, now), cut: tree.cut }
}

fn counts(c: &Children) -> CountsView {
    CountsView {
        pending: c.pending,
        running: c.running,
        waiting: c.waiting,
        paused: c.paused,
        completed: c.completed,
        partial: c.partial,
        skipped: c.skipped,
        failed: c.failed,
        cancelled: c.cancelled,
    }
}

pub(crate) fn agent(a: &Agent) -> AgentView {
    AgentView {
        id: a.id.to_string(),
        name: a.name.clone(),
        kind: a.kind.to_string(),
        attempt: a.attempt,
        plan_version: a.plan_version,
        sequence: a.sequence,
        status: a.status.to_string(),
        outcome: a.outcome.map(|o| o.to_string()),
        tries: a.tries,
        max_tries: a.max_tries,
        task_counts: counts(&a.tasks),
        last_error: error(&a.last_error),
        started_at: ms(a.started_at),
        ended_at: ms(a.ended_at),
        credits_charged: None,
        credits_charged_micro: None,
        tasks: Vec::new(),
        jobs: Vec::new(),
    }
}

pub(crate) fn task(t: &Task) -> TaskView {
    TaskView {
        id: t.id.to_string(),
        name: t.name.clone(),
        agent: t.agent.to_string(),
        sequence: t.sequence,
        status: t.status.to_string(),
        outcome: t.outcome.map(|o| o.to_string()),
        unneeded: t.unneeded,
        tries: t.tries,
        max_tries: t.max_tries,
        step_counts: counts(&t.steps),
        last_error: error(&t.last_error),
        started_at: ms(t.started_at),
        ended_at: ms(t.ended_at),
        steps: Vec::new(),
    }
}

pub(crate) fn step(s: &Step) -> StepView {
    let charged = s.usage.as_ref().map_or(Credits::ZERO, |usage| usage.charged);
    StepView {
        id: s.id.to_string(),
        name: s.name.clone(),
        agent: s.agent.to_string(),
        task: s.task.to_string(),
        parent: s.parent.map(|parent| parent.to_string()),
        sequence: s.sequence,
        tool: s.tool.to_string(),
        status: s.status.to_string(),
        idempotent: s.idempotent,
        uncertain: s.uncertain,
        verifying: s.verifying,
        outcome_unknown: s.outcome_unknown,
        replayed: s.replayed,
        unneeded: s.unneeded,
        waits: s.waits.map(|w| w.to_string()),
        held_back_by: s.held_back_by.clone(),
        due_at: ms(s.due_at),
        key: s.key.clone(),
        tries: s.tries,
        max_tries: s.max_tries,
        last_error: error(&s.last_error),
        error_class: s.judged.map(|j| j.class.to_string()),
        error_effect: s.judged.map(|j| j.effect.as_str().to_owned()),
        decision: s.judged.map(|j| j.decision.to_string()),
        rule: s.judged.map(|j| j.rule.to_string()),
        started_at: ms(s.started_at),
        began_at: ms(s.began_at),
        ended_at: ms(s.ended_at),
        credits_charged: charged.to_string(),
        credits_charged_micro: charged.micro(),
    }
}

pub(crate) fn step_detail(detail: StepDetail) -> StepDetailView {
    StepDetailView {
        step: step(&detail.step),
        input: detail.input,
        output: detail.output,
        earlier_tries: detail.earlier.iter().map(step).collect(),
        questions: detail.questions.iter().map(ToString::to_string).collect(),
    }
}

pub(crate) fn job(seen: &SeenJob) -> JobView {
    let j = &seen.job;
    JobView {
        id: j.id.to_string(),
        run: j.run.to_string(),
        agent: j.agent.to_string(),
        attempt: j.attempt,
        submission: j.submission,
        status: j.status.to_string(),
        phase: model::job::phase(j).map(|p| p.to_string()),
        reason: j.reason.map(|r| r.to_string()),
        message: j.message.clone(),
        exit_code: j.exit_code,
        signal: j.signal,
        workflow: j.workflow.to_string(),
        instance: j.instance.map(|i| i.to_string()),
        allocation: j.allocation.map(|a| a.to_string()),
        warm: j.warm,
        epoch: j.epoch,
        submitted_at: j.submitted_at.ms(),
        placed_at: ms(j.placed_at),
        running_at: ms(j.running_at),
        started_at: ms(j.started_at),
        ended_at: ms(j.ended_at),
        final_offset: j.final_offset,
        log_cut: j.log_cut,
        active_ms: if j.status == JobStatus::Running { 0 } else { j.active_ms },
        // What its machine said after its end is about other jobs.
        last_seen_at: ms(seen.last_seen_at.map(|at| j.ended_at.map_or(at, |ended| at.min(ended)))),
        unenforced: j.unenforced.clone(),
    }
}

pub(crate) fn artifact(a: &Artifact) -> ArtifactView {
    ArtifactView {
        id: a.id.to_string(),
        run: a.run.to_string(),
        attempt: a.attempt,
        path: a.path.clone(),
        kind: a.what.kind().into(),
        mode: a.what.mode(),
        target: a.what.target().map(str::to_owned),
        size: a.size,
        state: a.state.clone(),
        created_at: a.created_at.ms(),
        expires_at: ms(a.expires_at),
        deleted_at: ms(a.deleted_at),
    }
}

pub(crate) fn workflow(w: &Workflow, run: Option<String>) -> WorkflowView {
    let nodes = w.nodes.iter().map(|n| NodeView {
        name: n.name.clone(),
        logical: n.logical.clone(),
        after: n.after.clone(),
        status: n.status.to_string(),
        tries: n.tries,
        output: n.output.clone(),
        error: n.error.clone(),
        waiting_until: ms(n.waiting_until),
        started_at: ms(n.started_at),
        ended_at: ms(n.ended_at),
        compensated_at: ms(n.compensated_at),
        pattern: n.origin.as_ref().map(|origin| origin.pattern.to_string()),
        of: n.origin.as_ref().map(|origin| origin.of.clone()),
        child: n.child.map(|child| child.to_string()),
    });
    let patterns = w.applied.iter().map(|applied| PatternView {
        pattern: applied.pattern.to_string(),
        by: applied.by.clone(),
        target: applied.target.clone(),
        nodes: applied.nodes.clone(),
        at: applied.at.ms(),
    });
    let orphan_risks = w.orphan_risks.iter().map(|risk| OrphanRiskView {
        node: risk.node.clone(),
        kind: risk.resource.kind.to_string(),
        name: risk.resource.name.clone(),
        provider: risk.resource.provider.clone(),
        error: risk.error.clone(),
        at: risk.at.ms(),
    });
    WorkflowView {
        id: w.id.to_string(),
        intent: w.intent.to_string(),
        status: w.status.to_string(),
        manifest: w.manifest.to_string(),
        job: w.job.map(|j| j.to_string()),
        run,
        instance: w.instance.map(|i| i.to_string()),
        error: w.error.clone(),
        parent: w.parent.map(|parent| parent.to_string()),
        cancel_reason: w.cancel_reason.clone(),
        created_at: w.created_at.ms(),
        ended_at: ms(w.ended_at),
        topology: engine::workflow::topology(w),
        nodes: nodes.collect(),
        orphan_risks: orphan_risks.collect(),
        patterns: patterns.collect(),
    }
}

pub(crate) fn manifest(m: &Manifest, resources: &[(ResourceKind, i64)]) -> ManifestView {
    let resources = resources.iter().map(|(kind, id)| ResourceView {
        kind: kind.to_string(),
        id: resource_id(*kind, *id),
        priority: kind.priority(),
    });
    ManifestView {
        id: m.id.to_string(),
        workflow: m.workflow.to_string(),
        intent: m.intent.to_string(),
        status: m.status.to_string(),
        outcome: m.outcome.map(|o| o.to_string()),
        created_at: m.created_at.ms(),
        sealed_at: ms(m.sealed_at),
        retain_until: ms(m.retain_until),
        deleted_at: ms(m.deleted_at),
        cleanup: m.cleanup.map(|workflow| workflow.to_string()),
        resources: resources.collect(),
    }
}

fn resource_id(kind: ResourceKind, id: i64) -> String {
    match kind {
        ResourceKind::Allocation => model::AllocationId(id).to_string(),
        ResourceKind::Instance => model::InstanceId(id).to_string(),
        ResourceKind::Run => model::RunId(id).to_string(),
        ResourceKind::Artifact => model::ArtifactId(id).to_string(),
        ResourceKind::Snapshot => model::SnapshotId(id).to_string(),
        ResourceKind::Feature | ResourceKind::Object => model::slug(id),
    }
}

pub(crate) fn balance(org: &Org) -> BalanceView {
    BalanceView {
        org: org.id.to_string(),
        available: org.available.to_string(),
        available_micro: org.available.micro(),
        reserved: org.reserved.to_string(),
        reserved_micro: org.reserved.micro(),
    }
}

pub(crate) fn ledger_row(row: &Entered) -> LedgerRow {
    LedgerRow {
        seq: row.seq,
        at: row.at.ms(),
        kind: row.entry.kind.as_str().to_owned(),
        amount: row.entry.amount.to_string(),
        amount_micro: row.entry.amount.micro(),
        run: row.entry.run.map(|r| r.to_string()),
        attempt: row.entry.attempt,
        key: row.entry.key.clone(),
        memo: row.entry.memo.clone(),
        hash: row.hash.iter().map(|b| format!("{b:02x}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use crate::hostile::World;
    use engine::store::{Lane, run};
    use model::time::HOUR;
    use model::{InstanceId, RunId, Timestamp};
    use serde_json::json;

    /// R140: nothing of it ever ran, however long it was there. One that was started lasted from then on.
    #[tokio::test]
    async fn a_run_that_was_cancelled_before_its_start_lasted_no_time() {
        let world = World::new(true).await;
        for (start, expected) in [(false, 0..1), (true, HOUR..2 * HOUR)] {
            let got = world.submit(&world.admin, json!({ "commands": ["true"], "start": start })).await;
            let id: RunId = got.body["id"].as_str().unwrap().parse().unwrap();
            let an_hour_ago = move |tx: &mut engine::store::Tx| {
                let mut row = run::lock(tx, id)?;
                row.created_at = row.created_at - HOUR;
                row.queued_at = row.queued_at.map(|at| at - HOUR);
                run::save(tx, &row)
            };
            world.engine.store.write(Lane::Normal, "test.age", an_hour_ago).await.unwrap();
            let path = format!("/api/v1/runs/{id}");
            if start {
                let ended = move |tx: &mut engine::store::Tx| {
                    let mut row = run::lock(tx, id)?;
                    (row.status, row.cancelled_at) = (model::run::RunStatus::Cancelled, Some(tx.at()));
                    run::save(tx, &row)
                };
                world.engine.store.write(Lane::Normal, "test.end", ended).await.unwrap();
            } else {
                world.ask("post", &format!("{path}/cancel"), Some(&world.admin), &[], "").await;
            }
            let shown = world.ask("get", &path, Some(&world.admin), &[], "").await.body;
            assert_eq!(shown["status"], "cancelled");
            assert!(expected.contains(&shown["duration_ms"].as_i64().unwrap()), "{shown}");
        }
    }

    /// R141: the machine's sign of life is the job's; the run shows who looks after it.
    #[tokio::test]
    async fn a_job_shows_its_machine_and_a_run_its_worker() {
        let world = World::new(true).await;
        let run = world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await.body;
        let (id, machine) = (run["id"].as_str().unwrap(), run["instance"].as_str().unwrap());
        let ask =
            async |path: &str| world.ask("get", &format!("/api/v1/runs{path}"), Some(&world.admin), &[], "").await.body;
        let job = async || ask(&format!("/{id}/jobs")).await["data"][0].clone();
        assert_eq!(
            (job().await["last_seen_at"].clone(), ask(&format!("/{id}")).await["last_heartbeat"].clone()),
            Default::default()
        );
        let machine: InstanceId = machine.parse().unwrap();
        let heard = move |tx: &mut engine::store::Tx| engine::store::instance::seen(tx, machine, Timestamp(1234), 1);
        world.engine.store.write(Lane::Normal, "test.seen", heard).await.unwrap();
        let worker = world.engine.start_worker("test".into()).await.unwrap();
        world.engine.beat(&worker).await.unwrap();
        assert_eq!(job().await["last_seen_at"], 1234);
        assert_eq!(ask(&format!("/{id}/tree")).await["agents"][0]["jobs"][0]["last_seen_at"], 1234);
        let beat = ask(&format!("/{id}")).await["last_heartbeat"].as_i64().expect("a worker lives");
        assert!(beat > 1234);
        assert_eq!(ask("").await["data"][0]["last_heartbeat"], beat);
    }
}
