//! Recomputes every invariant from the tables: one snapshot per run and per org. Knows the rules, trusts no counter.

mod children;
mod pins;
mod stored;

use crate::Engine;
use model::agent::{Agent, AgentKind, AgentStatus};
use model::allocation::AllocationStatus;
use model::attempt::AttemptStatus;
use model::children::{ChildState, Children};
use model::hierarchy::Pick;
use model::job::{FreezeState, Job, JobStatus};
use model::ledger::Balance;
use model::plan::MAX_PLANNED_AGENTS;
use model::run::{Run, RunStatus};
use model::spec::RunKind;
use model::step::Step;
use model::step::StepWait;
use model::task::Task;
use model::{AgentId, AllocationId, Credits, Failure, JobId, OrgId, RunId, TaskId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use store::{EntryKind, Tx, WorkKind};

const PAGE: i64 = 200;
/// An item that is overdue by more than this is reported.
const OVERDUE_MS: i64 = 60_000;
/// The same while an item that is suspected of killing its holders is due: it runs alone, and each call that it makes may take minutes.
const BEHIND_SUSPECTS_MS: i64 = 15 * 60_000;
/// Overdue items among which a suspect is looked for.
const LOOKED_AT: i64 = 1000;

#[derive(Debug, Clone, Default)]
pub struct Audit {
    pub checked: BTreeMap<&'static str, i64>,
    pub broken: Vec<Broken>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub invariant: &'static str,
    pub subject: String,
    pub detail: String,
}

impl Audit {
    fn count(&mut self, what: &'static str) {
        *self.checked.entry(what).or_default() += 1;
    }
    fn must(&mut self, holds: bool, invariant: &'static str, subject: impl ToString, detail: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(Broken { invariant, subject: subject.to_string(), detail: detail() });
        }
    }
}

impl Engine {
    pub async fn audit(&self) -> Result<Audit, Failure> {
        let mut audit = Audit::default();
        let mut after = 0;
        loop {
            let ids = self.store.read("audit.runs", move |tx| store::run::ids_after(tx, after, PAGE)).await?;
            let Some(last) = ids.last() else { break };
            after = last.0;
            for id in ids {
                merge(&mut audit, self.audit_run(id).await?);
            }
        }
        let mut after = OrgId(0);
        loop {
            let orgs = self.store.read("audit.orgs", move |tx| store::org::page(tx, after, PAGE)).await?;
            let Some(last) = orgs.last() else { break };
            after = last.id;
            for org in orgs {
                let found = self.store.read("audit.org", move |tx| audit_org(tx, org.id)).await?;
                merge(&mut audit, found);
                self.audit_pins(org.id, &mut audit).await?;
            }
        }
        let found = self.store.read("audit.machines", audit_machines).await?;
        merge(&mut audit, found);
        self.audit_unowned_artifacts(&mut audit).await?;
        self.audit_keys(&mut audit).await?;
        Ok(audit)
    }

    /// The invariants of one run, as after every commit in tests.
    pub async fn audit_run(&self, id: RunId) -> Result<Audit, Failure> {
        let mut audit = self.store.read("audit.run", move |tx| audit_run(tx, id)).await?;
        self.audit_artifacts(id, &mut audit).await?;
        Ok(audit)
    }
}

fn merge(into: &mut Audit, from: Audit) {
    for (what, n) in from.checked {
        *into.checked.entry(what).or_default() += n;
    }
    into.broken.extend(from.broken);
}

fn audit_run(tx: &mut Tx, id: RunId) -> Result<Audit, Failure> {
    let mut audit = Audit::default();
    let Some(run) = store::run::find(tx, id)? else { return Ok(audit) };
    audit.count("runs");
    columns(tx, &run, &mut audit)?;
    money(tx, &run, &mut audit)?;
    let jobs = store::job::of_run(tx, run.id)?;
    hierarchy(tx, &run, &jobs, &mut audit)?;
    events(tx, &run, &mut audit)?;
    owner(tx, &run, &jobs, &mut audit)?;
    uploads(tx, &run, &mut audit)?;
    Ok(audit)
}

/// The columns beside the document say what it says.
fn columns(tx: &mut Tx, run: &Run, audit: &mut Audit) -> Result<(), Failure> {
    let Some((status, attempt, open, version)) = store::run::columns(tx, run.id)? else { return Ok(()) };
    let said = (status.as_str(), attempt, open, version);
    let meant = (run.status.as_str(), run.attempt, !run.status.is_end() && run.deleted_at.is_none(), run.version);
    audit.must(said == meant, "projection", run.id, || format!("columns {said:?}, document {meant:?}"));
    Ok(())
}

/// 4: a run has ended only with every announced artifact final or marked failed.
fn uploads(tx: &mut Tx, run: &Run, audit: &mut Audit) -> Result<(), Failure> {
    if run.status.is_end() && run.spec.has_artifacts {
        let open = store::artifact::uploading(tx, run.id)?;
        audit.must(open == 0, "4 artifacts", run.id, || format!("{open} uploads are open although it has ended"));
    }
    Ok(())
}

/// 1: `0 ≤ charged ≤ reserved`, and at every end `charged + refunded = reserved`, by the attempt and by its ledger rows.
fn money(tx: &mut Tx, run: &Run, audit: &mut Audit) -> Result<(), Failure> {
    let mut sums: BTreeMap<(i64, &'static str), Credits> = BTreeMap::new();
    let mut after = 0;
    loop {
        let rows = store::ledger::of_run(tx, run.org, run.id, after, PAGE)?;
        let Some(last) = rows.last() else { break };
        after = last.seq;
        for row in &rows {
            let sum = sums.entry((row.entry.attempt.unwrap_or(0), row.entry.kind.as_str())).or_default();
            *sum = *sum + row.entry.amount;
        }
        if (rows.len() as i64) < PAGE {
            break;
        }
    }
    let charged: Credits =
        sums.iter().filter(|((_, kind), _)| *kind == EntryKind::Charge.as_str()).map(|(_, sum)| *sum).sum();
    let used = store::usage::of_run(tx, run.org, run.id)?.charged;
    audit.must(used == charged, "1 credits", run.id, || format!("ledger {charged} charged, usage {used}"));
    for a in store::attempt::of_run(tx, run.id)? {
        audit.count("attempts");
        let sum = |kind: EntryKind| sums.get(&(a.number, kind.as_str())).copied().unwrap_or_default();
        let by_ledger = (sum(EntryKind::Reserve), sum(EntryKind::Charge), sum(EntryKind::Refund));
        let subject = format!("{}#{}", run.id, a.number);
        audit.must(by_ledger == (a.reserved, a.charged, a.refunded), "1 credits", &subject, || {
            format!("ledger {by_ledger:?}, attempt {:?}", (a.reserved, a.charged, a.refunded))
        });
        audit.must(a.charged >= Credits::ZERO && a.charged <= a.reserved, "1 credits", &subject, || {
            format!("charged {} of {} reserved", a.charged, a.reserved)
        });
        let retried = a.tree.retried_cost;
        audit.must(retried >= Credits::ZERO && retried <= a.charged, "1 credits", &subject, || {
            format!("retries cost {retried} of {} charged", a.charged)
        });
        let closed = a.status == AttemptStatus::Open || a.charged + a.refunded == a.reserved;
        audit.must(closed, "1 credits", &subject, || format!("{} + {} is not {}", a.charged, a.refunded, a.reserved));
        let in_step = a.number != run.attempt || (a.status == AttemptStatus::Open) != run.status.is_end();
        audit.must(in_step, "3 states", &subject, || format!("the run is {}, its attempt {}", run.status, a.status));
    }
    Ok(())
}

/// 2 and 3: counters are exact, and what the run says fits what its agents say.
fn hierarchy(tx: &mut Tx, run: &Run, jobs: &[Job], audit: &mut Audit) -> Result<(), Failure> {
    let (agents, tasks, steps) = (
        store::agent::of_attempt(tx, run.id, run.attempt)?,
        store::task::of_attempt(tx, run.id, run.attempt)?,
        store::step::of_attempt(tx, run.id, run.attempt)?,
    );
    let counted = (agents.len() as i64, tasks.len() as i64, steps.len() as i64);
    let said = (run.agent_count, run.task_count, run.step_count);
    audit.must(counted == said, "2 hierarchy", run.id, || format!("counted {counted:?}, the run says {said:?}"));
    counters(tx, run, jobs, (&agents, &tasks, &steps), audit)?;
    let working = agents.iter().any(|agent| !agent.status.is_end());
    // What a run says of its agents it says of the current plan version; it also waits for agents of an earlier one that still work.
    let agents: Vec<&Agent> = agents.iter().filter(|agent| agent.plan_version == run.plan_version).collect();
    let open = jobs.iter().filter(|j| !j.status.is_end()).count();
    let fits = match run.status {
        // Once its agents have ended, their machines are let go.
        RunStatus::Running => working || open > 0,
        RunStatus::Completed => agents.iter().all(|a| a.status == AgentStatus::Completed),
        RunStatus::Failed => agents.iter().any(|a| a.status == AgentStatus::Failed),
        RunStatus::Cancelled => agents.iter().all(|a| a.status.is_end()),
        RunStatus::Paused => agents.iter().all(|a| stands_still(a)),
        _ => true,
    };
    let states: Vec<_> = agents.iter().map(|a| a.status.as_str()).collect();
    audit.must(fits, "3 states", run.id, || format!("{} with agents {states:?}", run.status));
    audit.must(open == 0 || !run.status.is_end(), "3 states", run.id, || {
        format!("{} with {open} open jobs", run.status)
    });
    for job in jobs.iter().filter(|j| !j.status.is_end()) {
        let frozen = job.freeze == FreezeState::Frozen || job.status == JobStatus::Terminating;
        audit.must(run.status != RunStatus::Paused || frozen, "3 states", job.id, || {
            format!("{} in a paused run", job.freeze)
        });
        let others = jobs.iter().filter(|j| j.agent == job.agent && !j.status.is_end()).count();
        audit.must(others == 1, "one live job an agent", job.id, || format!("{others} are open"));
    }
    Ok(())
}

/// Whether an agent is as it may be in a paused run. One that a planner has added meanwhile, or the planner, waits for the resume.
fn stands_still(agent: &Agent) -> bool {
    let is_new = agent.status == AgentStatus::Pending && agent.started_at.is_none();
    agent.status.is_end() || agent.status == AgentStatus::Paused || is_new
}

/// 2, below the run: every parent's counters are what its children say (R144).
fn counters(
    tx: &mut Tx,
    run: &Run,
    jobs: &[Job],
    (agents, tasks, steps): (&[Agent], &[Task], &[Step]),
    audit: &mut Audit,
) -> Result<(), Failure> {
    let (mut by_agent, mut by_task) =
        (BTreeMap::<AgentId, Vec<ChildState>>::new(), BTreeMap::<TaskId, Vec<ChildState>>::new());
    tasks.iter().for_each(|task| by_agent.entry(task.agent).or_default().push(task.child_state()));
    let top = steps.iter().filter(|step| step.parent.is_none());
    top.for_each(|step| by_task.entry(step.task).or_default().push(step.child_state()));
    let children = children::audit(tx, steps, audit)?;
    let (mut counted, mut superseded) = (Children::default(), 0);
    for agent in agents.iter().filter(|agent| agent.kind != AgentKind::System) {
        if agent.plan_version == run.plan_version {
            counted.add(agent.child_state());
        } else {
            superseded += i64::from(!agent.status.is_end());
        }
        let below = by_agent.remove(&agent.id).unwrap_or_default();
        let exact = counts(&agent.tasks, agent.task_count, &below);
        audit.must(exact, "2 counters", agent.id, || format!("{:?} for {below:?}", agent.tasks));
        at_most(audit, agent.id, agent.tasks.running, agent.parallel);
        let ended = !agent.status.is_end() || agent.tasks.open() == 0;
        audit.must(ended, "2 counters", agent.id, || format!("{} with {:?}", agent.status, agent.tasks));
    }
    for task in tasks {
        let below = by_task.remove(&task.id).unwrap_or_default();
        let made = task.step_count - children.of_task(task.id);
        // Steps of a task that was not needed were never made, and count as completed.
        let exact = if task.unneeded { below.is_empty() } else { counts(&task.steps, made, &below) };
        audit.must(exact, "2 counters", task.id, || format!("{:?} for {below:?}", task.steps));
        at_most(audit, task.id, task.steps.running + task.steps.waiting, task.parallel);
        let ended = !task.status.is_end() || task.steps.open() == 0;
        audit.must(ended, "2 counters", task.id, || format!("{} with {:?}", task.status, task.steps));
    }
    for id in by_agent.keys() {
        audit.must(false, "2 hierarchy", id, || "tasks of an agent that does not exist".into());
    }
    // Steps of a task in whose place a retry has put another are history.
    for id in by_task.keys() {
        let exists = store::task::find(tx, *id)?.is_some();
        audit.must(exists, "2 hierarchy", id, || "steps of a task that does not exist".into());
    }
    for job in jobs {
        let exists = store::agent::find(tx, job.agent)?.is_some();
        audit.must(exists, "2 hierarchy", job.id, || format!("a job of agent {}, which does not exist", job.agent));
    }
    let Some(attempt) = store::attempt::find(tx, run.id, run.attempt)? else { return Ok(()) };
    let jobs = attempt.tree.jobs.counts(jobs.iter().filter(|job| job.attempt == run.attempt));
    audit.must(jobs, "2 counters", run.id, || format!("{:?} is not what its jobs say", attempt.tree.jobs));
    if run.spec.kind == RunKind::Agents {
        // A planner begins beside what still ends.
        let planner = i64::from(attempt.tree.planner.is_some());
        at_most(audit, run.id, attempt.tree.agents.running, run.spec.plan.max_agents + planner);
    }
    let said = (attempt.tree.agents, attempt.tree.superseded);
    audit.must(said == (counted, superseded), "2 counters", run.id, || {
        format!("{said:?} for {counted:?}, {superseded}")
    });
    let planned: BTreeSet<AgentId> = agents.iter().filter(|a| a.kind != AgentKind::Rank).map(|a| a.id).collect();
    let is_act = |step: &&Step| step.child_state() == ChildState::Running && !step.by_children;
    let of_plans = steps.iter().filter(|step| planned.contains(&step.agent) && !step.needs_machine());
    let acts = of_plans.filter(is_act).filter(|step| children.counts_as_act(step)).count() as i64;
    audit.must(attempt.tree.in_flight == acts, "2 counters", run.id, || {
        format!("{} acts in flight, the attempt says {}", acts, attempt.tree.in_flight)
    });
    Ok(())
}

/// A parent has no more children under way at once than it may.
fn at_most(audit: &mut Audit, parent: impl ToString, running: i64, limit: i64) {
    audit.must(running <= limit, "2 limits", parent, || format!("{running} run at once, {limit} may"));
}

/// Whether a parent counts its children rightly. Those without a row are pending, or were cancelled with their parent.
fn counts(said: &Children, made: i64, below: &[ChildState]) -> bool {
    let mut counted = Children::default();
    below.iter().for_each(|state| counted.add(*state));
    let unmade = said.total() - counted.total();
    let as_pending = Children { pending: counted.pending + unmade, ..counted };
    let as_cancelled = Children { cancelled: counted.cancelled + unmade, ..counted };
    made == below.len() as i64 && unmade >= 0 && (*said == as_pending || *said == as_cancelled)
}

/// Events are numbered without gaps.
fn events(tx: &mut Tx, run: &Run, audit: &mut Audit) -> Result<(), Failure> {
    let head = store::event::last(tx, run.org, Some(run.id))?;
    let (count, first, last) = store::event::numbers(tx, run.org, Some(run.id))?;
    let gapless = count == 0 || (first == 1 && last == count);
    audit.must(gapless, "events gapless", run.id, || format!("{count} events are numbered from {first} to {last}"));
    audit.must(head == last, "events gapless", run.id, || format!("the head says {head}, the last is {last}"));
    Ok(())
}

/// Invariant 7: every open run has a work item that will wake it: its own, one of its agents' or jobs', or that of the
/// pool it waits for. A dead holder is no owner (R144): from the end of its lease on the item waits for another worker.
fn owner(tx: &mut Tx, run: &Run, jobs: &[Job], audit: &mut Audit) -> Result<(), Failure> {
    if run.status.is_end() || run.status == RunStatus::Created || run.deleted_at.is_some() {
        return Ok(());
    }
    let at = tx.at();
    let mut subjects = vec![(WorkKind::Run, run.id.0)];
    for job in jobs.iter().filter(|j| j.attempt == run.attempt && !j.status.is_end()) {
        subjects.push((WorkKind::Job, job.id.0));
        subjects.push((WorkKind::Pool, job.pool.0));
        subjects.extend(job.instance.map(|i| (WorkKind::Instance, i.0)));
    }
    for agent in store::agent::pick(tx, run.id, run.attempt, Pick::Running, MAX_PLANNED_AGENTS as i64)? {
        subjects.push((WorkKind::Agent, agent.id.0));
    }
    // A run whose steps all wait for people is woken by their answers.
    let asked =
        StepWait::ALL.iter().map(|kind| store::question::count_open(tx, run.id, *kind)).sum::<Result<i64, _>>()?;
    // A program outside drives its own run, when it likes.
    let external = run.spec.kind == RunKind::External && run.status == RunStatus::Running;
    // A program that polls for an offered step comes when it likes, too.
    let offered = !store::step::offered_of(tx, run.id, run.attempt, 1)?.is_empty();
    let (mut owned, mut overdue) = (asked > 0 || external || offered, Vec::new());
    for (kind, subject) in subjects {
        let Some(item) = store::work::find(tx, kind, subject)? else { continue };
        let free_at = free_at(tx, &item)?;
        owned |= item.due.is_some() || free_at.is_none();
        if let Some(due) = item.due.zip(free_at).map(|(due, free)| due.max(free))
            && at.since(due) > OVERDUE_MS
            && (at.since(due) > BEHIND_SUSPECTS_MS || !is_behind_suspects(tx)?)
        {
            let (name, held) = (model::slug(subject), item.owner.is_some());
            let holder = if held { ", held by a dead worker" } else { "" };
            overdue.push(format!("{} {name} is overdue since {due:?}{holder}", kind.as_str()));
        }
    }
    audit.must(owned, "7 owner", run.id, || "nothing will ever wake it".into());
    audit.must(overdue.is_empty(), "7 owner", run.id, || overdue.join(", "));
    Ok(())
}

/// Whether an item that is suspected of killing its holders is due, or under way: all others wait for it.
fn is_behind_suspects(tx: &mut Tx) -> Result<bool, Failure> {
    let at = tx.at();
    for item in store::work::overdue(tx, at, LOOKED_AT)? {
        // The death of its last holder counts when the next one takes it.
        let last = item.owner.is_some() && free_at(tx, &item)?.is_some();
        if item.deaths + i64::from(last) >= store::work::SUSPECT_AFTER {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Since when other workers may take the item: none while its holder is alive.
fn free_at(tx: &mut Tx, item: &store::work::ItemState) -> Result<Option<Timestamp>, Failure> {
    let Some(holder) = item.owner else { return Ok(Some(Timestamp(0))) };
    let ends = store::worker::lease_ends_at(tx, holder)?.unwrap_or(Timestamp(0));
    Ok((ends <= tx.at()).then_some(ends))
}

/// 6: the ledger is one chain, and the balance is its sum.
fn audit_org(tx: &mut Tx, id: OrgId) -> Result<Audit, Failure> {
    let mut audit = Audit::default();
    let org = store::org::find(tx, id)?;
    audit.count("orgs");
    let (mut balance, mut before) = (Balance::default(), None::<store::ledger::Entered>);
    let mut holds: BTreeMap<AllocationId, BTreeMap<&'static str, Credits>> = BTreeMap::new();
    loop {
        let rows = store::ledger::after(tx, id, before.as_ref().map_or(0, |row| row.seq), PAGE)?;
        if rows.is_empty() {
            break;
        }
        for row in rows {
            audit.count("ledger rows");
            audit.must(row.follows(before.as_ref()), "6 ledger", id, || {
                format!("row {} does not follow the one before it", row.seq)
            });
            balance = balance.moved(&row.entry);
            audit.must(
                balance.available >= Credits::ZERO && balance.reserved >= Credits::ZERO,
                "1 credits",
                id,
                || format!("row {} leaves {balance:?}", row.seq),
            );
            let set_aside =
                !row.entry.from_available && !matches!(row.entry.kind, EntryKind::Topup | EntryKind::Adjust);
            match crate::idle_billing::slot_of(&row.entry) {
                Some(slot) => {
                    let sum = holds.entry(slot).or_default().entry(row.entry.kind.as_str()).or_default();
                    *sum = *sum + row.entry.amount;
                }
                None => audit.must(row.entry.run.is_some() || !set_aside, "1 credits", id, || {
                    format!("row {} ({}) is neither a run's nor a hold's", row.seq, row.entry.key)
                }),
            }
            before = Some(row);
        }
    }
    for (slot, sums) in holds {
        audit.count("extended holds");
        extended_hold(tx, slot, &sums, &mut audit)?;
    }
    let (said, summed) = ((org.available, org.reserved), (balance.available, balance.reserved));
    audit.must(said == summed, "1 credits", id, || format!("the balance says {said:?}, the ledger {summed:?}"));
    let last = before.map_or(0, |row| row.seq);
    audit.must(org.ledger_seq == last, "6 ledger", id, || {
        format!("the org says row {}, the last is {last}", org.ledger_seq)
    });
    Ok(audit)
}

/// 1 for what extensions set aside: the slot's account is what its ledger rows say, and over when the hold is.
fn extended_hold(
    tx: &mut Tx,
    id: AllocationId,
    sums: &BTreeMap<&'static str, Credits>,
    audit: &mut Audit,
) -> Result<(), Failure> {
    let sum = |kind: EntryKind| sums.get(kind.as_str()).copied().unwrap_or_default();
    let by_ledger = (sum(EntryKind::Reserve), sum(EntryKind::Charge), sum(EntryKind::Refund));
    let Some(slot) = store::allocation::find(tx, id)? else {
        audit.must(false, "1 credits", id, || format!("{by_ledger:?} were moved for a slot that does not exist"));
        return Ok(());
    };
    let a = slot.account;
    audit.must(by_ledger == (a.reserved, a.charged, a.refunded), "1 credits", id, || {
        format!("ledger {by_ledger:?}, hold {:?}", (a.reserved, a.charged, a.refunded))
    });
    audit.must(a.left() >= Credits::ZERO && (slot.hold().is_some() || a.left().is_zero()), "1 credits", id, || {
        format!("{} of {} reserved is left, held: {}", a.left(), a.reserved, slot.hold().is_some())
    });
    Ok(())
}

/// Machines and slots: one live slot and one job at a time, every machine owned by a manifest.
fn audit_machines(tx: &mut Tx) -> Result<Audit, Failure> {
    let mut audit = Audit::default();
    for pool in store::pool::all(tx)? {
        for instance in store::instance::open_in(tx, pool.id)? {
            audit.count("instances");
            let owner = store::manifest::owner(tx, model::manifest::ResourceKind::Instance, instance.id.0)?;
            audit.must(owner.is_some(), "nothing untracked", instance.id, || "no manifest owns it".into());
            let slots = store::allocation::kept_on(tx, instance.id)?;
            let live = slots.iter().filter(|s| s.status.is_live()).count();
            let free = slots.iter().filter(|s| s.status == AllocationStatus::Available).count();
            audit.must(
                live + free == 1 || !crate::instance::stays(instance.status),
                "a machine has a slot",
                instance.id,
                || format!("{} without a slot, and nobody ends it", instance.status),
            );
            audit.must(live + free <= 1, "one job an instance", instance.id, || {
                format!("{live} live and {free} free slots")
            });
            let jobs: Vec<JobId> = store::job::open_on(tx, instance.id)?.iter().map(|job| job.id).collect();
            audit.must(jobs.len() == live, "one job an instance", instance.id, || {
                format!("{live} live slots, open jobs {jobs:?}")
            });
        }
    }
    Ok(audit)
}
