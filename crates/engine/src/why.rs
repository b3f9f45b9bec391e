//! Explains why a run waits or failed, and what a user can do, from the same rows and rules by which the engine decides.

use crate::Engine;
use crate::host::HostsNow;
use crate::said::{Said, Span};
use crate::view::{RunSnapshot, snapshot};
use model::attempt::MINIMUM_CHARGE;
use model::hierarchy::Pick;
use model::host::Wanted;
use model::job::{Job, JobReason, JobStatus};
use model::pool::{Placement, Wish};
use model::question::Question;
use model::run::{PauseReason, Phase, Run, RunReason, RunStatus};
use model::spec::{RunContent, RunKind, show_memory};
use model::step::StepWait;
use model::time::show_duration;
use model::{Credits, Failure, OrgId, RunId, Timestamp};
use store::Tx;
use store::question::Which;

/// Ranks that are to be tried again, of which a person is told.
const RANKS_SHOWN: i64 = 10;
/// Tickets and approvals that a person is told of.
const QUESTIONS_SHOWN: i64 = 5;
/// Steps that begin later of which a person is told.
const PUT_OFF_SHOWN: i64 = 5;
/// Hosts that are not taken of which a person is told.
const HOSTS_SHOWN: usize = 10;
/// Open runs among which those are looked for that wait to begin.
const OPEN_LOOKED_AT: i64 = 100;
/// Failed steps among which the first is looked for.
const FAILED_LOOKED_AT: i64 = 100;

#[derive(Debug, Clone, Default)]
pub struct Why {
    pub summary: String,
    pub facts: Vec<String>,
    pub next: Vec<String>,
    /// Durations in these texts: of a fact, by its place, or of the summary.
    pub spans: Vec<(Option<usize>, Span)>,
    /// It waits, has failed or was cancelled, or one of the facts is a warning. False: it works as it should, was never started or completed.
    pub attention: bool,
}

impl Why {
    /// Takes the place of the summary.
    fn say(&mut self, said: impl Into<Said>) {
        let said = said.into();
        self.summary = said.text;
        self.spans.retain(|(fact, _)| fact.is_some());
        self.spans.extend(said.spans.into_iter().map(|span| (None, span)));
    }

    fn note(&mut self, said: impl Into<Said>) {
        let (fact, said) = (self.facts.len(), said.into());
        self.facts.push(said.text);
        self.spans.extend(said.spans.into_iter().map(|span| (Some(fact), span)));
    }

    /// A fact that a person should know, also if all else is well.
    fn warn(&mut self, said: impl Into<Said>) {
        self.note(said);
        self.attention = true;
    }
}

impl Engine {
    pub async fn why(&self, org: OrgId, id: RunId) -> Result<(RunSnapshot, Why), Failure> {
        let context = self.context.clone();
        self.store
            .read("run.why", move |tx| {
                crate::view::owned(tx, org, id)?;
                let snapshot = snapshot(tx, id)?;
                let why = explain(tx, &context, &snapshot)?;
                Ok((snapshot, why))
            })
            .await
    }

    /// Of the newest open runs those that wait to begin, each with why. At most `limit`, which is small: every one is explained.
    pub async fn waiting(&self, org: OrgId, limit: usize) -> Result<Vec<(RunSnapshot, Why)>, Failure> {
        let context = self.context.clone();
        self.store
            .read("run.waiting", move |tx| {
                let open = store::run::page_shown(tx, org, store::run::Which::Open, i64::MAX, OPEN_LOOKED_AT)?;
                let waits = |one: &RunSnapshot| {
                    let on_the_way = matches!(one.run.phase, Some(Phase::Queued | Phase::Provisioning));
                    matches!(one.run.status, RunStatus::Pending | RunStatus::Retrying) || on_the_way
                };
                let waiting = open.into_iter().filter(waits).take(limit);
                waiting.map(|one| explain(tx, &context, &one).map(|why| (one, why))).collect()
            })
            .await
    }
}

fn explain(tx: &mut Tx, context: &crate::EngineContext, snapshot: &RunSnapshot) -> Result<Why, Failure> {
    let (run, at) = (&snapshot.run, tx.at());
    let mut why = Why { attention: !is_well(snapshot), ..Why::default() };
    match (run.status, &run.termination, &snapshot.job) {
        (RunStatus::Created, ..) if run.call.is_some() => {
            let by = run.call.as_ref().and_then(|called| called.run).map_or_else(String::new, |by| by.to_string());
            why.summary = format!("it waits for {by}, which executes the same command");
            why.facts.push("its cache had no result for it: `repl cache why` says what differs".into());
            why.next.push(format!("follow it: repl attach {}", run.id));
            why.next.push(format!("see why that takes long: repl why {by}"));
        }
        (RunStatus::Created, ..) => {
            why.summary = "it was created and never started".into();
            why.next.push(format!("start it: repl start {}", run.id));
        }
        (RunStatus::Completed, ..) => why.summary = "it completed".into(),
        (RunStatus::Cancelled, ..) => cancelled(run, &mut why),
        (RunStatus::Failed, Some(termination), _) if termination.reason == RunReason::Budget => {
            out_of_credits(tx, run, &mut why)?;
        }
        (RunStatus::Failed, ..) => {
            if let Some(code) = run.exit_code {
                command_failed(&store::run::content(tx, run.id)?, code, &mut why);
            }
            failed(run, snapshot, at, context.config.logs.keep_ms, &mut why);
        }
        (RunStatus::Retrying, ..) => {
            retrying(run, at, &mut why);
            if let Some(machine) = crate::dispatch::fencing(tx, run.id)? {
                why.say(format!("it is tried again when {machine} is surely gone, on which it may still run"));
            }
        }
        (_, Some(termination), Some(job)) => {
            why.summary = format!("it is ending ({}), and waits for its processes to be gone", termination.reason);
            why.facts.extend(run.ended_by.clone());
            ending(job, at, &mut why);
        }
        (_, Some(termination), None) => {
            why.summary = format!("it is ending ({})", termination.reason);
            why.facts.extend(run.ended_by.clone());
        }
        (RunStatus::Paused, ..) if run.pause_reason == Some(PauseReason::Escalated) => {
            why.summary = "it is paused until a person has decided about a step of it".into();
        }
        (RunStatus::Paused, ..) => {
            let said = Said::new("it is paused for ").since(run.since, at);
            why.say(said.then(": nothing of it goes on until it is resumed"));
            why.next.push(format!("let it go on: repl resume {}", run.id));
            why.next.push(format!("give up: repl cancel {}", run.id));
        }
        (RunStatus::Running, ..) if run.pause_asked.is_some() => {
            why.summary = "it is asked to pause, and its machine has not said yet that everything stands still".into();
            why.next.push(format!("take that back: repl resume {}", run.id));
        }
        (RunStatus::Resuming, ..) => {
            why.summary = "it goes on as soon as its machine says that everything moves again".into();
        }
        (_, None, Some(job)) if job.status == JobStatus::Submitted => waiting(tx, context, run, job, &mut why)?,
        (_, _, Some(job)) => running(snapshot, job, at, &mut why),
        _ => why.summary = format!("it is {}", run.status),
    }
    if run.spec.kind == RunKind::Agents {
        steps(tx, snapshot, at, &mut why)?;
    }
    if run.spec.nodes > 1 && !run.status.is_end() {
        ranks(tx, run, at, &mut why)?;
    }
    if let Some(until) = run.credits_end_at.filter(|_| run.termination.is_none() && !run.status.is_end()) {
        low_credits(tx, run, until, &mut why)?;
    }
    if let Some(lost) = snapshot.instance.as_ref().filter(|instance| instance.displaced) {
        why.warn(format!(
            "{} is lost: somebody else's machine bears its name ({}) now, and is left alone",
            lost.id, lost.name
        ));
    }
    if let Some(sandbox) = run.spec.sandbox {
        let what = if sandbox.only_models { "processes that models ask for run" } else { "its commands run" };
        why.facts.push(format!("{what} in a sandbox (network {})", sandbox.network));
    }
    if let Some(unenforced) = snapshot.job.as_ref().and_then(|job| job.unenforced.as_ref()) {
        why.warn(format!("not limited: {unenforced}"));
        why.next.push("how to get limits enforced: repl doctor, on the machine's host".into());
    }
    for note in &run.late_evidence {
        why.warn(note.clone());
    }
    if let Some(item) = store::work::find(tx, store::WorkKind::Run, run.id.0)?
        && item.due.is_some_and(|due| at.since(due) > 60_000)
    {
        why.warn("no worker has worked on it for a minute: perhaps none is alive");
        why.next.push("look at the control plane: repl control status".into());
    }
    Ok(why)
}

/// Nothing waits that the run's own rows tell of: it completed, was never started, or is at work.
fn is_well(snapshot: &RunSnapshot) -> bool {
    let (run, agents) = (&snapshot.run, snapshot.run.spec.kind == RunKind::Agents);
    // Between its commands a run of agents works without a machine.
    let at_work =
        |job: &Job| job.status == JobStatus::Running && job.silent_since.is_none() || agents && job.status.is_end();
    match run.status {
        RunStatus::Created => run.call.is_none(),
        RunStatus::Completed => true,
        RunStatus::Running => {
            run.termination.is_none() && run.pause_asked.is_none() && snapshot.job.as_ref().is_none_or(at_work)
        }
        _ => false,
    }
}

/// What people are asked about its steps, and which of them failed first: its error, what was decided, and by which rule.
fn steps(tx: &mut Tx, snapshot: &RunSnapshot, at: Timestamp, why: &mut Why) -> Result<(), Failure> {
    let run = &snapshot.run;
    if !run.status.is_end() {
        for kind in [StepWait::Ticket, StepWait::Approval] {
            let which = Which { kind, open: true, run: Some(run.id), oldest_first: false };
            let open = store::question::page(tx, run.org, which, i64::MAX, QUESTIONS_SHOWN + 1)?;
            if !open.is_empty() && is_well(snapshot) {
                why.say("it is running, and a step of it waits for a person");
            }
            asked(&open, kind, at, why);
        }
        put_off(tx, run, at, why)?;
    }
    if !run.status.is_end() {
        offered(tx, run, why)?;
        called(tx, run, at, why)?;
    }
    let failed = store::step::failed(tx, run.id, run.attempt, FAILED_LOOKED_AT)?;
    let Some(first) = failed.into_iter().min_by_key(|step| (step.ended_at, step.id)) else { return Ok(()) };
    let agent = store::agent::find(tx, first.agent)?.map(|agent| agent.name).unwrap_or_default();
    let task = store::task::find(tx, first.task)?.map(|task| task.name).unwrap_or_default();
    let error =
        first.last_error.as_ref().map_or_else(String::new, |error| format!(": {} ({})", error.message, error.code));
    why.warn(format!(
        "the first step that failed is {agent}/{task}/{} ({}, {}){error}",
        first.name, first.tool, first.id
    ));
    if let Some(judged) = &first.judged {
        why.facts.push(format!(
            "class {}, effect {}, try {} of {}",
            judged.class,
            judged.effect.as_str(),
            first.tries,
            first.max_tries
        ));
        why.facts.push(format!("decided: {}, because {}", judged.decision, judged.rule.sentence()));
    }
    why.next.push(format!("the step with its input and output: GET /api/v1/runs/{}/steps/{}", run.id, first.id));
    Ok(())
}

/// Steps that no program has taken yet.
fn offered(tx: &mut Tx, run: &Run, why: &mut Why) -> Result<(), Failure> {
    for step in store::step::offered_of(tx, run.id, run.attempt, QUESTIONS_SHOWN)? {
        let Some(offer) = &step.offer else { continue };
        why.warn(format!("{} ({}) waits for a program that polls for `{}`", step.id, step.name, offer.tool));
        why.next.push(format!("take it: repl step poll --tool {} -- COMMAND", offer.tool));
    }
    Ok(())
}

/// Executions that its steps wait for.
fn called(tx: &mut Tx, run: &Run, at: Timestamp, why: &mut Why) -> Result<(), Failure> {
    for found in store::execution::of_caller(tx, run.id, QUESTIONS_SHOWN)? {
        let (id, it) = (model::CallId(found.id), found.it);
        let error = it.error.as_ref().map_or_else(String::new, |error| format!(": {}", error.message));
        let said = Said::new(format!("a step waits for {id}, {} ({}", it.function, it.status));
        let said = match it.not_before.filter(|due| *due > at) {
            Some(due) => said.then(", asked again in ").until(due, at),
            None => said,
        };
        why.warn(said.then(format!("){error}")));
        why.next.push(format!("see the call: repl call show {id}"));
    }
    Ok(())
}

/// Steps that begin by themselves at a later time, and what they wait for.
fn put_off(tx: &mut Tx, run: &Run, at: Timestamp, why: &mut Why) -> Result<(), Failure> {
    for step in store::step::put_off(tx, run.id, run.attempt, PUT_OFF_SHOWN)? {
        let agent = store::agent::find(tx, step.agent)?.map(|agent| agent.name).unwrap_or_default();
        let task = store::task::find(tx, step.task)?.map(|task| task.name).unwrap_or_default();
        let because = match (&step.held_back_by, &step.last_error) {
            (Some(endpoint), _) => format!("{endpoint} answered that there were too many requests (429)"),
            (None, Some(error)) => error.message.clone(),
            (None, None) => continue,
        };
        let said = Said::new(format!("{agent}/{task}/{} is called in ", step.name));
        why.warn(said.until(step.due_at.unwrap_or(at), at).then(format!(": {because}")));
    }
    Ok(())
}

fn asked(open: &[Question], kind: StepWait, at: Timestamp, why: &mut Why) {
    let noun = if kind == StepWait::Ticket { "escalation" } else { "approval" };
    for question in open.iter().take(QUESTIONS_SHOWN as usize) {
        let error = question.error.as_ref().map_or_else(String::new, |error| format!(": {}", error.message));
        let what = if kind == StepWait::Ticket { "a decision about" } else { "the approval of" };
        let same = question
            .same_as
            .as_ref()
            .map_or_else(String::new, |same| format!(": the same was begun before, as {} ({})", same.path, same.step));
        let said = Said::new(format!("{} waits for {what} {} for ", question.id, question.path));
        why.warn(said.since(question.asked_at, at).then(error).then(same));
        why.next.push(format!("look at it: repl {noun} show {}", question.id));
    }
    if open.len() as i64 > QUESTIONS_SHOWN {
        why.facts.push(format!("and there are more: repl {noun} ls"));
    }
}

/// Where the jobs of a run with several machines are, and which of its ranks are to be tried again.
fn ranks(tx: &mut Tx, run: &Run, at: Timestamp, why: &mut Why) -> Result<(), Failure> {
    let Some(attempt) = store::attempt::find(tx, run.id, run.attempt)? else { return Ok(()) };
    let jobs = attempt.tree.jobs;
    let others = [
        (jobs.queued, if jobs.queued == 1 { "waits" } else { "wait" }),
        (jobs.provisioning + jobs.pulling, "on the way"),
        (jobs.terminating + jobs.fencing, "ending"),
    ];
    let others = others.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}"));
    why.facts.push(format!("{} of {} machines run{}", jobs.active, run.spec.nodes, others.collect::<String>()));
    if attempt.tree.agents.pending == 0 {
        return Ok(());
    }
    for agent in store::agent::pick(tx, run.id, run.attempt, Pick::Pending, RANKS_SHOWN)? {
        let error = agent.last_error.as_ref().map_or_else(String::new, |error| format!(": {}", error.message));
        let said = Said::new(format!("{} is tried again ", agent.name));
        let said = match agent.due_at.filter(|due| *due > at) {
            Some(due) => said.then("in ").until(due, at),
            None => match crate::dispatch::fencing_agent(tx, run.id, agent.id)? {
                Some(machine) => said.then(format!("when {machine} is surely gone, on which it may still run")),
                None => continue,
            },
        };
        why.warn(said.then(error));
    }
    Ok(())
}

/// No more can be set aside for it: said while there is still time to do something.
fn low_credits(tx: &mut Tx, run: &Run, until: Timestamp, why: &mut Why) -> Result<(), Failure> {
    let at = tx.at();
    let available = store::org::find(tx, run.org)?.available;
    match run.spec.budget {
        Some(budget) if available > model::Credits::ZERO => {
            let said = Said::new(format!("its budget of {budget} credits ends in ")).until(until, at);
            why.warn(said.then(": it is stopped then"));
            why.next.push("a budget is not raised while it runs: submit it again with a larger --budget".into());
        }
        _ => {
            let said = Said::new("the credits set aside for it end in ").until(until, at);
            why.warn(said.then(", and no more are available: it is stopped then"));
            why.next.push("let it go on: repl credits add AMOUNT".into());
        }
    }
    Ok(())
}

fn cancelled(run: &Run, why: &mut Why) {
    why.summary = match (&run.ended_by, &run.termination) {
        (Some(by), _) => format!("it was cancelled with its machine: {by}"),
        (None, Some(termination)) if termination.reason == RunReason::PauseTimeout => {
            let why = run.last_error.as_ref().map_or("paused for too long", |error| error.message.as_str());
            format!("it was cancelled: {why}")
        }
        (None, _) => "it was cancelled".into(),
    };
    why.next.push("a cancelled run is not tried again: submit it again".into());
    why.next.push(format!("what it had written: repl logs {}", run.id));
}

/// The reservation ended and could not grow. What helps depends on which limit it met: the run's own budget stays as it was
/// submitted, the org's credits can be added to.
fn out_of_credits(tx: &mut Tx, run: &Run, why: &mut Why) -> Result<(), Failure> {
    let spent: Credits = store::attempt::of_run(tx, run.id)?.iter().map(|attempt| attempt.charged).sum();
    let available = store::org::spendable(tx, run.org)?;
    match run.spec.budget {
        Some(budget) if budget - spent < MINIMUM_CHARGE => {
            why.summary = format!("its budget of {budget} credits is used up: it cost {spent}");
            why.next.push(format!("the budget of a run stays as it is: submit it again with --budget above {budget}"));
        }
        _ => {
            why.summary = format!("the organisation had no more credits to set aside for it: it cost {spent}");
            why.facts.push(format!("available now: {available} credits"));
            why.next.push("add credits: repl credits add AMOUNT".into());
            if run.attempt < run.max_attempts {
                why.next.push(format!("then try it again: repl retry {}", run.id));
            } else {
                why.next.push("then submit it again: all its attempts are used".into());
            }
        }
    }
    why.facts.push(format!("code {}", RunReason::Budget));
    why.next.push(format!("its output so far: repl logs {}", run.id));
    Ok(())
}

fn failed(run: &Run, snapshot: &RunSnapshot, at: Timestamp, log_kept_ms: i64, why: &mut Why) {
    why.summary = run.last_error.as_ref().map_or_else(|| "it failed".to_owned(), |error| error.message.clone());
    if let Some(error) = &run.last_error {
        why.facts.push(format!("code {}", error.code));
    }
    if let Some(job) = &snapshot.job {
        if let Some(instance) = &snapshot.instance {
            why.facts.push(format!("{} ran on {} ({})", job.id, instance.id, if job.warm { "warm" } else { "cold" }));
        }
        if job.log_cut {
            why.facts.push("the tail of its log never arrived".into());
        }
    }
    if run.termination.as_ref().is_some_and(|termination| termination.reason == RunReason::Deadline) {
        why.next.push("give it more time: submit it again with a longer --max-duration".into());
    }
    if let Some(limit) = run.spec.resources.memory_bytes.filter(|_| is_out_of_memory(run)) {
        why.next.push(format!("give it more memory: submit it again with --memory above {}", show_memory(limit)));
    }
    if crate::log::ended_at(run).is_some_and(|ended| at.since(ended) >= log_kept_ms) {
        why.facts.push(format!("its log is no longer kept: that is {} after the end", show_duration(log_kept_ms)));
    } else {
        why.next.push(format!("its output: repl logs {}", run.id));
    }
    if model::run::allowed(run).contains(&"retry") {
        why.next.push(format!("again (attempt {} of {}): repl retry {}", run.attempt + 1, run.max_attempts, run.id));
    } else if run.attempt < run.max_attempts {
        why.next.push("it cannot be tried again: submit it again".into());
    } else {
        why.next.push(format!("all {} attempts are used: submit it again", run.max_attempts));
    }
}

/// What its command says about the likeliest mistakes: a shell that was meant, a file that was not sent.
fn command_failed(content: &RunContent, code: i32, why: &mut Why) {
    match content.command.needs_shell().filter(|_| code == 127) {
        Some(needs_shell) => why.next.push(format!("{needs_shell}: repl run -c 'LINE'")),
        None if code == 127 => {
            why.facts.push("127 usually means: command not found there; files must be sent with --file".into());
        }
        None => {}
    }
    if content.files.is_none() && content.command.names_file() {
        why.next.push("files of yours are there only if they were sent: submit it again with --file PATH".into());
    }
}

/// Whether the memory limit of its own ended it.
fn is_out_of_memory(run: &Run) -> bool {
    let limits = JobReason::LimitsExceeded.to_string();
    run.last_error.as_ref().is_some_and(|error| error.code == limits && error.message.contains("memory"))
}

fn retrying(run: &Run, at: Timestamp, why: &mut Why) {
    why.say(Said::new("it is tried again in ").until(run.retry_at.unwrap_or(at), at));
    if let Some(error) = &run.last_error {
        why.facts.push(error.message.clone());
    }
    why.next.push(format!("give up: repl cancel {}", run.id));
}

fn ending(job: &Job, at: Timestamp, why: &mut Why) {
    if job.silent_since.is_some() {
        why.facts.push("its machine does not answer: nothing new starts before it is surely gone".into());
        why.next.push(format!("if you know that it is gone: repl retry --force {}", job.run));
    }
    if let Some(remove_at) = job.remove_at.filter(|remove_at| *remove_at > at) {
        why.note(Said::new("it is killed in ").until(remove_at, at));
        why.next.push(format!("now: repl cancel --abort {}", job.run));
    }
}

/// The same decision that placement would make now, in words.
fn waiting(tx: &mut Tx, context: &crate::EngineContext, run: &Run, job: &Job, why: &mut Why) -> Result<(), Failure> {
    let Some(pool) = store::pool::find(tx, job.pool)? else { return Ok(()) };
    let before = store::job::count_before(tx, job, run.spec.priority)?;
    let (room, mut slots) = (crate::pool::room(tx, context, &pool)?, store::allocation::available(tx, pool.id)?);
    let resources = job.resources.clone().unwrap_or_else(|| run.spec.resources.clone());
    let (available, hosts) = (slots.len(), HostsNow::read(tx, context, &pool, std::iter::empty())?);
    let of_run = run.spec.wanted(&resources);
    let wanted = Wanted { sandbox: of_run.sandbox && !job.no_sandbox, ..of_run };
    let room_here = hosts.as_ref().map_or(room, |hosts| {
        hosts.retain(&mut slots, wanted);
        hosts.room(wanted)
    });
    let other_hosts = hosts.map_or_else(Vec::new, |hosts| hosts.choose(wanted).1);
    let (spot, init_checksum) = (run.spec.spot || job.spot, run.spec.init_checksum.clone());
    let features = context.wanted_features(&run.spec.features);
    let wish = Wish { org: run.org, resources, spot, init_checksum, features };
    why.summary = match (before, model::pool::place(&wish, &slots, room_here)) {
        (0, Placement::Wait) => {
            let machines = if room.instances == 1 { "the machine" } else { "one of the machines" };
            format!("it is next in line and waits for {machines} of {} to become free", pool.provider)
        }
        (0, Placement::Retire(idle)) => format!("it is next in line; {idle} is idle but does not fit and makes room"),
        (0, Placement::Claim(_) | Placement::Spawn) => "there is room, and it is about to be placed".to_owned(),
        (n, _) => format!("it waits behind {n} run{} on {}", if n == 1 { "" } else { "s" }, pool.provider),
    };
    why.facts.push(format!(
        "pool {}/{}: {} of {} machines exist, {} free",
        pool.provider, pool.region, room.instances, room.max_instances, available
    ));
    why.facts.extend(other_hosts.iter().take(HOSTS_SHOWN).map(|(host, not)| format!("{host}: {not}")));
    if room.ending > 0 {
        why.facts.push(format!("{} on the way out", room.ending));
    }
    why.next.push(format!("more machines at once: [providers.{}] max_instances in the settings", pool.provider));
    why.next.push("sooner: submit with --priority high".into());
    Ok(())
}

/// Its machine is there, and features are being installed on it.
fn is_prepared(snapshot: &RunSnapshot) -> bool {
    let machine = snapshot.instance.as_ref().filter(|machine| machine.ready_at.is_some());
    machine.is_some_and(|machine| !machine.has_features(&snapshot.run.spec.features))
}

fn running(snapshot: &RunSnapshot, job: &Job, at: Timestamp, why: &mut Why) {
    let said = |text: &str, from: Option<Timestamp>| Said::new(text).lasting(from, at);
    why.say(match job.status {
        JobStatus::Provisioning if is_prepared(snapshot) => {
            let features = snapshot.run.spec.features.join(", ");
            said(&format!("its machine is being prepared with {features}"), job.placed_at)
        }
        JobStatus::Provisioning if job.warm => {
            said("it was given to a warm machine", job.placed_at).then(", which has not taken it yet")
        }
        JobStatus::Provisioning if job.machine_queued.is_some() => {
            let why = job.machine_queued.as_deref().unwrap_or_default();
            said("its machine waits in its provider's queue", job.placed_at).then(format!(": {why}"))
        }
        JobStatus::Provisioning => said("its machine is being started", job.placed_at),
        JobStatus::Pulling => said("its files are being brought there", job.accepted_at),
        JobStatus::Running if job.silent_since.is_some() => {
            said("it runs on a machine that has not been heard", job.silent_since)
        }
        JobStatus::Running => said("nothing is wrong: it has been running", job.running_at),
        other => format!("its job is {other}").into(),
    });
    if job.silent_since.is_some() {
        why.facts.push("an unreachable machine is not a failed run: it is waited for".into());
        why.next.push(format!("if you know that it is gone: repl retry --force {}", job.run));
    }
    if let Some(instance) = &snapshot.instance {
        why.facts.push(format!("{} on {}", job.id, instance.id));
        if snapshot.content.init.is_some() {
            let done = instance.init_done && instance.init_checksum == snapshot.run.spec.init_checksum;
            let init =
                if done { "its machine has its init: it is not run again" } else { "its init runs before its command" };
            why.facts.push(init.to_owned());
        }
    }
}
