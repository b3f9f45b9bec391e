//! Requests of runners: register, heartbeat, report. A report is accepted or refused by its job's epoch alone; a repeated report changes nothing.

use crate::intents::launch_run;
use crate::run_tx::RunTx;
use crate::{Engine, EngineContext};
use model::bug;
use model::instance::{Instance, InstanceEvent, InstanceStatus};
use model::job::{Job, JobEvent, JobReason, JobStatus, LifecycleError};
use model::log::LogId;
use model::run::RunStatus;
use model::step::StepTry;
use model::tree::TreeRef;
use model::{Failure, InstanceId, JobId, Refused, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use store::log::Chunk;
use store::{Frame, Lane, Tx, WorkKind};

/// Jobs of one report that are read on the caller's thread. A runner has one job at a time; a report of more is rare.
const FEW_JOBS: usize = 4;
/// Late reports that a run remembers.
const EVIDENCE_KEPT: usize = 20;

/// A runner introduces itself.
#[derive(Debug, Clone)]
pub struct Introduction {
    pub name: String,
    pub nonce: String,
    pub version: String,
    pub host: String,
    pub containment: Option<String>,
    pub sandbox: Option<String>,
}

/// What happened to a job, or to a step of it, on its machine.
#[derive(Debug, Clone)]
pub enum What {
    Accepted,
    SyncComplete {
        blobs: i64,
    },
    /// What its files name cannot be read where it was told to.
    SourceFailed {
        why: String,
    },
    Started {
        unenforced: Option<String>,
    },
    Froze,
    Thawed,
    /// The init with this checksum has ended well on its machine, now or for an earlier job.
    Initialised {
        checksum: String,
    },
    /// Nothing of the job is left, and no step's end says so.
    Closed {
        reason: JobReason,
        message: Option<String>,
        lifecycle_error: Option<LifecycleError>,
    },
    /// Of a step.
    Ended {
        reason: JobReason,
        exit_code: Option<i32>,
        signal: Option<i32>,
        message: Option<String>,
        /// What failed around the command, where the reason alone does not say it.
        lifecycle_error: Option<LifecycleError>,
        final_offset: i64,
        active_ms: i64,
        /// How long before the report was sent.
        ended_ago_ms: i64,
        /// JSON that the command has left as its answer.
        output: Option<Output>,
        /// The end of its standard output, where it was asked for.
        stdout_tail: Option<Vec<u8>>,
        /// Whether the command was ever started.
        started: bool,
        /// The tree of what it was to keep.
        kept: Option<TreeRef>,
    },
}

/// JSON that a step has produced, checked by the runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Json(String),
    /// An artifact of the run has it.
    Artifact {
        path: String,
        size: i64,
    },
}

#[derive(Debug, Clone)]
pub struct Fact {
    pub job: JobId,
    pub epoch: i64,
    /// None where it is about the job.
    pub step: Option<StepTry>,
    pub what: What,
}

/// Consecutive frames of what one try of a step has written.
#[derive(Debug, Clone)]
pub struct StepChunk {
    pub job: JobId,
    pub epoch: i64,
    pub step: StepTry,
    pub offset: i64,
    pub frames: Vec<Frame>,
}

/// How a report was taken.
#[derive(Debug, Default)]
pub struct Taken {
    pub log_offsets: Vec<LogReach>,
    pub refused: Vec<NotTaken>,
}

/// How far the log of a try is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogReach {
    pub job: JobId,
    pub epoch: i64,
    pub step: StepTry,
    pub offset: i64,
}

/// A report that is refused as outdated: of one try, or of a whole epoch of a job.
#[derive(Debug)]
pub struct NotTaken {
    pub job: JobId,
    pub epoch: i64,
    pub step: Option<StepTry>,
    pub why: Refused,
}

impl Engine {
    /// Whose token this is. The token is derived from the name, so it is good even after the database was lost.
    pub async fn recognise(&self, name: &str, token: &str) -> Result<Instance, Failure> {
        self.check_runner(name, token)?;
        let name = name.to_owned();
        let read = move |tx: &mut Tx| Ok(store::instance::by_name(tx, &name)?.ok_or(name.clone()));
        let found = self.store.read_inline("instance.by_name", read).await?;
        found.map_err(|name| Refused::Unlisted { name }.into())
    }

    /// Whether the token is of this name and installation, whatever the database knows.
    pub fn check_runner(&self, name: &str, token: &str) -> Result<(), Refused> {
        match self.context.installation.is_runner_token(name, token) {
            true => Ok(()),
            false => Err(Refused::Unauthorized { why: "this runner's token is not of this installation".into() }),
        }
    }

    pub async fn register(&self, id: InstanceId, who: Introduction) -> Result<Instance, Failure> {
        let context = self.context.clone();
        let registered = self
            .store
            .write(Lane::High, "runner.register", move |tx| {
                let instance = store::instance::lock(tx, id)?;
                if instance.nonce != who.nonce {
                    return Err(Refused::Unauthorized { why: "another machine bears this name".into() }.into());
                }
                if instance.status == InstanceStatus::Terminated {
                    return Err(Refused::Gone { what: "instance", why: "it was terminated".into() }.into());
                }
                let event = InstanceEvent::Registered {
                    host: who.host.clone(),
                    runner_version: who.version.clone(),
                    containment: who.containment.clone(),
                    sandbox: who.sandbox.clone(),
                };
                let next = crate::transition::instance_event(tx, instance, event)?;
                store::instance::save(tx, &next)?;
                if !next.features.is_empty() {
                    crate::feature::wake_waiting(tx, &next)?;
                }
                let at = tx.at();
                tx.wake(WorkKind::Instance, next.id.0, at + context.config.timings.unreachable_after_ms);
                Ok(next)
            })
            .await;
        if let Err(Failure::Refused(Refused::Gone { .. })) = &registered {
            self.stream_closed(id).await?; // it is there although it has ended: its item ends it again
        }
        let registered = registered?;
        let at = registered.last_seen_at.unwrap_or_default();
        self.context.presence.heard(registered.id, at, registered.observed_version);
        Ok(registered)
    }

    /// A heartbeat. Writes nothing, unless the machine counted as unreachable or lost.
    pub async fn heartbeat(&self, instance: &Instance, observed_version: i64, at: Timestamp) -> Result<(), Failure> {
        if !instance.status.is_open() {
            return Ok(()); // its row is closed
        }
        self.context.presence.heard(instance.id, at, observed_version);
        if matches!(instance.status, InstanceStatus::Unreachable | InstanceStatus::Lost) {
            let (id, silence_ms) = (instance.id, self.context.config.timings.unreachable_after_ms);
            self.store
                .write(Lane::High, "runner.heard_again", move |tx| {
                    let instance = store::instance::lock(tx, id)?;
                    if !matches!(instance.status, InstanceStatus::Unreachable | InstanceStatus::Lost) {
                        return Ok(());
                    }
                    let next = crate::transition::instance_event(tx, instance, InstanceEvent::Heard)?;
                    let at = tx.at();
                    tx.wake(WorkKind::Instance, id.0, at + silence_ms); // its next silence is noticed too
                    store::instance::save(tx, &next)
                })
                .await?;
        }
        Ok(())
    }

    /// Facts and log bytes of one machine. Everything that is answered is durable.
    pub async fn report(
        &self,
        instance: &Instance,
        facts: Vec<Fact>,
        chunks: Vec<StepChunk>,
    ) -> Result<Taken, Failure> {
        let mut taken = Taken::default();
        let known = self.known(&facts, &chunks).await?;
        let jobs: Vec<(JobId, Vec<Fact>)> = by_job(facts);
        // The end of a job is decided with its log's durable length in hand; for anything else log and state commit side by side.
        let (first, beside): (Vec<StepChunk>, Vec<StepChunk>) =
            chunks.into_iter().partition(|chunk| jobs.iter().any(|(id, facts)| *id == chunk.job && ends(facts)));
        self.append_all(instance.id, &known, first, &mut taken).await?;
        let mut logged = Taken::default();
        let facts = async {
            for (job, facts) in jobs {
                match known.get(&job) {
                    Some(job) => self.report_job(instance.id, job, facts, &mut logged).await?,
                    None => {
                        let (epoch, why) = (facts[0].epoch, Refused::not_found("job", job));
                        logged.refused.push(NotTaken { job, epoch, step: None, why });
                    }
                }
            }
            Ok::<(), Failure>(())
        };
        let (facts, logs) = both(facts, self.append_all(instance.id, &known, beside, &mut taken)).await;
        facts?;
        logs?;
        taken.refused.append(&mut logged.refused);
        Ok(taken)
    }

    /// The jobs a report speaks of, read once.
    async fn known(&self, facts: &[Fact], chunks: &[StepChunk]) -> Result<BTreeMap<JobId, Job>, Failure> {
        let named = facts.iter().map(|fact| fact.job).chain(chunks.iter().map(|chunk| chunk.job));
        let named: BTreeSet<JobId> = named.collect();
        if named.is_empty() {
            return Ok(BTreeMap::new());
        }
        let few = named.len() <= FEW_JOBS;
        let find = move |tx: &mut Tx| {
            let found = named.iter().filter_map(|id| store::job::find(tx, *id).transpose());
            found.map(|job| job.map(|job| (job.id, job))).collect()
        };
        match few {
            true => self.store.read_inline("runner.jobs", find).await,
            false => self.store.read("runner.jobs", find).await,
        }
    }

    async fn append_all(
        &self,
        instance: InstanceId,
        known: &BTreeMap<JobId, Job>,
        chunks: Vec<StepChunk>,
        taken: &mut Taken,
    ) -> Result<(), Failure> {
        for StepChunk { job: id, epoch, step, offset, frames } in chunks {
            let found = known.get(&id).ok_or_else(|| Refused::not_found("job", id));
            let job = match found.and_then(|job| judge(job, instance, epoch).map(|()| job)) {
                Ok(job) => job,
                Err(why) => {
                    taken.refused.push(NotTaken { job: id, epoch, step: None, why });
                    continue;
                }
            };
            let log = match self.log_of(job, step).await? {
                Ok(log) => log,
                Err(why) => {
                    taken.refused.push(NotTaken { job: id, epoch, step: Some(step), why });
                    continue;
                }
            };
            let (chunk, run) = (Chunk { log, epoch, offset, frames }, job.run);
            let appended = match log {
                LogId::Job(_) => self.logs.append(chunk).await,
                LogId::Step(_) => self.logs.append_in_run(run, chunk).await,
            };
            let next = match appended {
                Ok(logged) => logged.next_offset,
                Err(Failure::Refused(Refused::LogGap { expected, .. })) => expected,
                Err(other) => return Err(other),
            };
            taken.log_offsets.push(LogReach { job: id, epoch, step, offset: next });
            if awaits_tail(job) {
                self.store
                    .write(Lane::High, "runner.tail", move |tx| {
                        let at = tx.at();
                        tx.wake(WorkKind::Job, id.0, at);
                        Ok(())
                    })
                    .await?;
            }
        }
        Ok(())
    }

    /// Where the output of a try belongs: into the log of its job, whose only step it is, or into one of its own.
    async fn log_of(&self, job: &Job, step: StepTry) -> Result<Result<LogId, Refused>, Failure> {
        if job.step.is_some() {
            return Ok(judge_step(job, step).map(|()| LogId::Job(job.id)));
        }
        let row = self.store.read_inline("runner.step", move |tx| store::step::find(tx, step.id)).await?;
        let Some(row) = row.filter(|row| row.agent == job.agent && row.needs_machine()) else {
            return Ok(Err(Refused::not_found("step", step.id)));
        };
        let current = StepTry { id: row.id, number: row.tries };
        Ok(if current == step { Ok(LogId::Step(step)) } else { Err(old_try(step, current)) })
    }

    async fn report_job(
        &self,
        instance: InstanceId,
        known: &Job,
        facts: Vec<Fact>,
        taken: &mut Taken,
    ) -> Result<(), Failure> {
        let (context, job, run, epoch) = (self.context.clone(), known.id, known.run, facts[0].epoch);
        let plain = known.step.is_some();
        let logged = if plain && ends(&facts) { self.logs.reached(job, known.epoch).await?.next_offset } else { 0 };
        let facts = if plain { facts } else { self.with_outputs(known, facts).await? };
        let written = self
            .store
            .write(Lane::High.of(run), "runner.report", move |tx| {
                apply(tx, &context, run, instance, job, &facts, logged)
            })
            .await;
        let refused = match written {
            Ok(refused) => refused,
            Err(Failure::Refused(why @ (Refused::NotFound { .. } | Refused::NotFrom { .. }))) => {
                vec![NotTaken { job, epoch, step: None, why }]
            }
            Err(other) => return Err(other),
        };
        taken.refused.extend(refused);
        Ok(())
    }
}

/// Whether one of these is the end of the job.
fn ends(facts: &[Fact]) -> bool {
    facts.iter().any(|fact| matches!(fact.what, What::Ended { .. }))
}

fn judge(job: &Job, instance: InstanceId, epoch: i64) -> Result<(), Refused> {
    if (job.instance != Some(instance) || job.epoch != epoch || job.fenced) && !bug!(old_epoch_accepted) {
        return Err(Refused::OldEpoch { job: job.id.to_string(), given: epoch, current: job.epoch });
    }
    Ok(())
}

/// A report names the try it is about: what is said of another one than the current changes nothing.
fn judge_step(job: &Job, said: StepTry) -> Result<(), Refused> {
    match job.step {
        Some(step) if step == said => Ok(()),
        Some(step) if step.id == said.id => Err(old_try(said, step)),
        _ => Err(Refused::not_found("step", said.id)),
    }
}

/// The one step of a plain task is its job's; those of a planned agent's job have rows.
fn judge_fact(run_tx: &mut RunTx<'_>, job: JobId, said: Option<StepTry>) -> Result<(), Failure> {
    let (Some(said), job) = (said, run_tx.job(job)?.clone()) else { return Ok(()) };
    if job.step.is_some() {
        return Ok(judge_step(&job, said)?);
    }
    let known = store::step::find(run_tx.tx, said.id)?.filter(|step| step.agent == job.agent);
    match known.and_then(|step| Some((step.present_try(), step.on?.job))) {
        Some((current, on)) if current == said && on == job.id => Ok(()),
        Some((current, _)) => Err(old_try(said, current).into()),
        None => Err(Refused::not_found("step", said.id).into()),
    }
}

fn old_try(said: StepTry, current: StepTry) -> Refused {
    Refused::OldTry { step: said.id.to_string(), given: said.number, current: current.number }
}

/// Ended but for the tail of its log.
fn awaits_tail(job: &Job) -> bool {
    job.status == JobStatus::Terminating && job.gone_at.is_some()
}

/// The facts of one job in the order they happened, in one transaction. What is said of an epoch or a try that is over is refused, and
/// noted where it tells of an end.
fn apply(
    tx: &mut Tx,
    context: &EngineContext,
    run: model::RunId,
    instance: InstanceId,
    job: JobId,
    facts: &[Fact],
    logged: i64,
) -> Result<Vec<NotTaken>, Failure> {
    let (mut run_tx, mut refused) = (RunTx::open(tx, context, run)?, Vec::new());
    if run_tx.job(job).is_err() {
        late(&mut run_tx, job, facts); // of an earlier attempt
        return run_tx.close().map(|_| refused);
    }
    for fact in facts {
        let epoch = fact.epoch;
        if let Err(why) = judge(run_tx.job(job)?, instance, epoch) {
            late(&mut run_tx, job, facts);
            refused.push(NotTaken { job, epoch, step: None, why });
            break;
        }
        if run_tx.job(job)?.status.is_end() {
            continue; // reported twice
        }
        match judge_fact(&mut run_tx, job, fact.step) {
            Ok(()) => happened(&mut run_tx, job, fact, logged)?,
            Err(Failure::Refused(why)) => {
                late(&mut run_tx, job, std::slice::from_ref(fact));
                refused.push(NotTaken { job, epoch, step: fact.step, why });
            }
            Err(trouble) => return Err(trouble),
        }
    }
    run_tx.close().map(|_| refused)
}

/// One reported fact, and everything that must have happened before it although its report has not arrived yet.
fn happened(run_tx: &mut RunTx<'_>, job: JobId, fact: &Fact, logged: i64) -> Result<(), Failure> {
    let what = &fact.what;
    run_tx.job_event(job, JobEvent::Accepted)?;
    let began = match what {
        What::Started { .. } => true,
        What::Ended { exit_code, signal, active_ms, .. } => exit_code.or(*signal).is_some() || *active_ms > 0,
        _ => false,
    };
    if began && run_tx.job(job)?.status == JobStatus::Pulling {
        run_tx.job_event(job, JobEvent::SyncComplete { blobs: 0 })?;
    }
    let event = match what {
        What::Accepted => return Ok(()),
        What::SyncComplete { blobs } => JobEvent::SyncComplete { blobs: *blobs },
        What::SourceFailed { why } => return launch_run::source_failed(run_tx, job, why),
        What::Started { unenforced } => {
            if let (None, Some(step)) = (run_tx.job(job)?.step, fact.step) {
                run_tx.command_started(step)?;
            }
            JobEvent::CommandStarted { unenforced: unenforced.clone() }
        }
        What::Initialised { checksum } => return initialised(run_tx, job, checksum),
        What::Froze => JobEvent::Froze,
        What::Thawed => JobEvent::Thawed,
        What::Closed { reason, message, lifecycle_error } => JobEvent::Ended {
            reason: *reason,
            exit_code: None,
            signal: None,
            message: message.clone(),
            lifecycle_error: *lifecycle_error,
            final_offset: 0,
            active_ms: 0,
            ended_ago_ms: 0,
        },
        What::Ended { .. } => match (run_tx.job(job)?.step, fact.step) {
            (None, Some(step)) => return run_tx.command_ended(step, what),
            _ => return step_ended(run_tx, job, what, logged),
        },
    };
    run_tx.job_event(job, event).map(drop)
}

/// From now on the machine is worth more to jobs with the same init.
fn initialised(run_tx: &mut RunTx<'_>, job: JobId, checksum: &str) -> Result<(), Failure> {
    let Some(instance) = run_tx.job(job)?.instance else { return Ok(()) };
    let kept = run_tx.instance(instance)?;
    if kept.it.init_checksum.as_deref() == Some(checksum) && !kept.it.init_done {
        kept.set(Instance { init_done: true, ..kept.it.clone() });
    }
    Ok(())
}

/// A step has ended. The one step of a plain task is all of its job: its end is the job's.
fn step_ended(run_tx: &mut RunTx<'_>, job: JobId, what: &What, logged: i64) -> Result<(), Failure> {
    let What::Ended {
        reason,
        exit_code,
        signal,
        message,
        lifecycle_error,
        final_offset,
        active_ms,
        ended_ago_ms,
        kept,
        ..
    } = what
    else {
        return Ok(());
    };
    run_tx.job_event(job, JobEvent::Logged { to: logged })?;
    if let Some(tree) = kept.as_ref().filter(|_| run_tx.run.spec.save_snapshot)
        && store::content::is_tree_here(run_tx.tx, run_tx.run.org, &tree.hash)?
    {
        let kept = Job { kept: Some(tree.clone()), ..run_tx.job(job)?.clone() };
        run_tx.set_job(kept)?;
    }
    let ended = JobEvent::Ended {
        reason: *reason,
        exit_code: *exit_code,
        signal: *signal,
        message: message.clone(),
        lifecycle_error: *lifecycle_error,
        final_offset: *final_offset,
        active_ms: *active_ms,
        ended_ago_ms: *ended_ago_ms,
    };
    run_tx.job_event(job, ended).map(drop)
}

/// Late evidence: a report that arrives after the end was decided. Stored and shown; changes neither status nor charges.
fn late(run_tx: &mut RunTx<'_>, job: JobId, facts: &[Fact]) {
    let ended = facts.iter().find_map(|fact| match &fact.what {
        What::Ended { exit_code, signal, .. } => Some((exit_code, signal)),
        _ => None,
    });
    let Some((code, signal)) = ended else { return };
    if bug!(late_report_changes_the_end) {
        let mut run = run_tx.run.clone();
        run.exit_code = *code;
        run.status = if *code == Some(0) { RunStatus::Completed } else { run.status };
        return run_tx.set_run(run);
    }
    let how = match (code, signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    };
    run_tx.note_late(format!("{job} reported its end late: {how}"));
}

impl RunTx<'_> {
    pub(crate) fn note_late(&mut self, note: String) {
        let mut run = self.run.clone();
        if !run.late_evidence.contains(&note) && run.late_evidence.len() < EVIDENCE_KEPT {
            run.late_evidence.push(note);
            self.set_run(run);
        }
    }
}

fn by_job(facts: Vec<Fact>) -> Vec<(JobId, Vec<Fact>)> {
    let mut jobs: Vec<(JobId, Vec<Fact>)> = Vec::new();
    for fact in facts {
        match jobs.iter_mut().find(|(job, _)| *job == fact.job) {
            Some((_, list)) => list.push(fact),
            None => jobs.push((fact.job, vec![fact])),
        }
    }
    jobs
}

/// Polls two futures together: the engine has no runtime of its own.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut done_a, mut done_b) = (None, None);
    std::future::poll_fn(|cx| {
        if done_a.is_none()
            && let std::task::Poll::Ready(value) = a.as_mut().poll(cx)
        {
            done_a = Some(value);
        }
        if done_b.is_none()
            && let std::task::Poll::Ready(value) = b.as_mut().poll(cx)
        {
            done_b = Some(value);
        }
        if done_a.is_some() && done_b.is_some() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    (done_a.expect("polled to its end"), done_b.expect("polled to its end"))
}
