//! Durable steps of any program: a process of a job, or a program elsewhere whose run is of `type: external`. The program sends a
//! request before and after each step; a finished step is answered from the run's journal from then on. Steps are children of the command
//! that the process belongs to, or of the one step of an external run.

use crate::agent::PutAway;
use crate::child::ChildInput;
use crate::external::Finish;
use crate::run::KeyedResponse;
use crate::run_tx::RunTx;
use crate::{Engine, EngineContext};
use model::hierarchy::{self, NewChild, Rows, is_current};
use model::recovery::{ErrorClass, StepFailure};
use model::run::{LastError, RunStatus};
use model::spec::RunKind;
use model::step::{Recorded, Step, StepStatus, StepTry, StepWait, ToolKind};
use model::{Credits, Effect, Failure, JobId, OrgId, Refused, RunId, StepId, bug};
use serde_json::{Value, json};
use std::sync::Arc;
use store::idempotency::{self, Key};
use store::step::Data;
use store::{Hint, Installation, Lane, Tx};

/// Bytes of a step's input or output, as JSON.
pub const MAX_DATA_BYTES: usize = 256 * 1024;
const MAX_NAME: usize = 200;
const MAX_KEY: usize = 1000;
/// Steps of an attempt, those of programs included. A script that begins steps in a loop without an end is refused beyond.
const MAX_STEPS: i64 = 1_000_000;
pub const DEFAULT_LEASE_MS: i64 = 60_000;
const LEASES_MS: std::ops::RangeInclusive<i64> = 1_000..=model::time::DAY;

/// What a step token says: which try of which command of which job its bearer is a process of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepClaim {
    pub org: OrgId,
    pub run: RunId,
    pub attempt: i64,
    pub job: JobId,
    pub epoch: i64,
    pub step: StepTry,
}

impl StepClaim {
    /// Derived: nothing is stored, and no other claim can be made of it.
    pub fn token(&self, installation: &Installation) -> String {
        let StepClaim { org, run, attempt, job, epoch, step } = self;
        let ids = format!("{}.{}.{attempt}.{}.{epoch}", org.0, run.0, job.0);
        installation.step_token(&format!("{ids}.{}.{}", step.id.0, step.number))
    }

    pub fn read(installation: &Installation, token: &str) -> Option<StepClaim> {
        let claim = installation.read_step_token(token)?;
        let numbers: Vec<i64> = claim.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [org, run, attempt, job, epoch, step, number] = numbers.try_into().ok()?;
        let step = StepTry { id: StepId(step), number };
        Some(StepClaim { org: OrgId(org), run: RunId(run), attempt, job: JobId(job), epoch, step })
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A process of a job, by its step token.
    Job(StepClaim),
    /// A program with a token of the org.
    Org(OrgId),
}

impl Asker {
    pub fn org(self) -> OrgId {
        match self {
            Asker::Job(claim) => claim.org,
            Asker::Org(org) => org,
        }
    }
}

/// A step that a program wants to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Begin {
    pub name: String,
    /// Tells steps of one name apart; without it their input does.
    pub key: Option<String>,
    pub input: Value,
    /// Repeated if its outcome is unknown.
    pub idempotent: bool,
    pub lease_ms: i64,
    /// Set aside until it has ended.
    pub max_cost: Credits,
}

/// What the program is told about a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// Do it, and report its end with this fence.
    Go {
        step: StepId,
        fence: i64,
        key: String,
        lease_ms: i64,
    },
    Completed {
        step: StepId,
        output: Value,
    },
    /// It will not be done: a person said no, or it failed.
    Failed {
        step: StepId,
        error: LastError,
    },
    /// A person has said that the program goes on without it.
    Skipped {
        step: StepId,
    },
    /// Another process does it, and has so long to renew its lease.
    Held {
        step: StepId,
        left_ms: i64,
    },
    /// A person is asked about it.
    Waiting {
        step: StepId,
        what: StepWait,
    },
    /// The run is paused, or about to be: nothing begins.
    Paused,
    /// The command is not known to have begun: its machine's report is on the way.
    NotYet,
    /// The report came too late to change anything. It is kept as evidence.
    Late {
        step: StepId,
        given: i64,
        current: i64,
    },
}

/// How a program says that a step ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Completed {
        output: Value,
        /// Charged to the run.
        cost: Credits,
    },
    Failed(Report),
}

/// What a program says of a step that failed. What it does not say is taken in the way that does least harm.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub code: Option<String>,
    pub message: String,
    pub class: Option<ErrorClass>,
    pub effect: Option<Effect>,
}

impl Report {
    /// Of a durable step: it had its effect, and another try is its program's matter. Of one that was offered (`offered`): it may have
    /// had its effect, and is tried again if it may be repeated.
    pub(crate) fn failure(&self, offered: bool) -> StepFailure {
        let effect = self.effect.unwrap_or(if offered { Effect::Perhaps } else { Effect::Done });
        let usual = if offered && effect != Effect::Done { ErrorClass::Transient } else { ErrorClass::Permanent };
        let code = self.code.clone().unwrap_or_else(|| "failed".into());
        let error = LastError { code, message: self.message.clone(), cause: None };
        StepFailure { class: self.class.unwrap_or(usual), effect, retry_after_ms: None, error }
    }
}

/// What became of a reported end, and of the step that was to begin with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub standing: Standing,
    pub next: Option<Standing>,
    /// Status of the run that was finished with it.
    pub run: Option<RunStatus>,
}

impl Begin {
    pub fn check(&self) -> Result<(), Refused> {
        let plain = |text: &str, most: usize| {
            !text.is_empty() && text.chars().count() <= most && !text.chars().any(char::is_control)
        };
        if !plain(&self.name, MAX_NAME) {
            let why = format!("must be 1 to {MAX_NAME} characters, none of them a control character");
            return Err(Refused::invalid("name", why));
        }
        if self.key.as_ref().is_some_and(|key| !plain(key, MAX_KEY)) {
            let why = format!("must be 1 to {MAX_KEY} characters, none of them a control character");
            return Err(Refused::invalid("key", why));
        }
        check_lease(self.lease_ms)?;
        check_cost("max_cost", self.max_cost)?;
        check_data("the input", &self.input)
    }

    /// What tells it from other steps of its name.
    fn item(&self) -> String {
        item(self.key.as_deref(), &self.input)
    }
}

fn check_cost(field: &str, cost: Credits) -> Result<(), Refused> {
    if cost >= Credits::ZERO { Ok(()) } else { Err(Refused::invalid(field, "must not be negative, e.g. 0.25")) }
}

pub(crate) fn check_lease(ms: i64) -> Result<(), Refused> {
    if LEASES_MS.contains(&ms) {
        return Ok(());
    }
    Err(Refused::invalid("lease_ms", "must lie between 1000 (a second) and 86400000 (a day)"))
}

fn item(key: Option<&str>, input: &Value) -> String {
    let told_by = match key {
        Some(key) => json!({ "key": key }),
        None => json!({ "input": input }),
    };
    plan::key::content(ToolKind::External, &told_by)[..32].to_owned()
}

fn check_data(what: &'static str, data: &Value) -> Result<(), Refused> {
    let bytes = data.to_string().len();
    if bytes > MAX_DATA_BYTES { Err(Refused::TooLarge { what, limit: "256 KiB as JSON".into() }) } else { Ok(()) }
}

/// Turns an answer into the bytes that are answered now and at every repetition; none where a repetition is judged anew.
pub type StepRender<T> = Arc<dyn Fn(&T) -> Option<Vec<u8>> + Send + Sync>;

/// An answer, or the one that was given under the same key.
#[derive(Debug, Clone)]
pub enum Answered<T> {
    Now(T),
    Before(KeyedResponse),
}

/// A request of a program: who asks about which run, and the key under which its answer is kept.
pub struct Request<T> {
    pub asker: Asker,
    pub run: RunId,
    pub key: Option<Key>,
    pub render: StepRender<T>,
}

impl<T> Request<T> {
    /// Kept under no key.
    pub fn plain(asker: Asker, run: RunId) -> Request<T> {
        Request { asker, run, key: None, render: Arc::new(|_| None) }
    }
}

impl Engine {
    /// One transaction of a run. Requests of a run take turns by its lock, so the key is looked up behind it.
    pub(crate) async fn ask_about_steps<T: Send + 'static>(
        &self,
        name: &'static str,
        request: Request<T>,
        f: impl Fn(&mut RunTx<'_>) -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<Answered<T>, Failure> {
        let (context, asked) = (self.context.clone(), request.key.clone());
        let Request { asker, run, key, render } = request;
        let done = self.store.write(Lane::Normal.of(run), name, move |tx| {
            let mut run_tx = open(tx, &context, asker, run)?;
            let known = key.as_ref().map(|key| idempotency::known(run_tx.tx, key)).transpose()?.flatten();
            if let Some((status, body)) = known {
                return Ok(Answered::Before(KeyedResponse { status, body, replayed: true }));
            }
            let answer = f(&mut run_tx)?;
            run_tx.close()?;
            if let (Some(key), Some(body)) = (&key, render(&answer)) {
                idempotency::lookup(tx, key)?;
                idempotency::record(tx, key, 200, &body)?;
            }
            Ok(Answered::Now(answer))
        });
        match (asked, done.await) {
            (Some(key), Err(Failure::Refused(refused))) => self.remember(key, refused).await.map(Answered::Before),
            (_, done) => done,
        }
    }

    pub async fn begin_step(&self, request: Request<Standing>, begin: Begin) -> Result<Answered<Standing>, Failure> {
        begin.check()?;
        let asker = request.asker;
        self.ask_about_steps("step.begin", request, move |run_tx| run_tx.begin_durable(asker, &begin)).await
    }

    /// One commit for the end of a step and the beginning of the next.
    pub async fn end_step(
        &self,
        request: Request<Ended>,
        at: (StepId, i64),
        end: End,
        next: Option<Begin>,
    ) -> Result<Answered<Ended>, Failure> {
        next.iter().try_for_each(Begin::check)?;
        self.end_and(request, at, end, move |run_tx, asker, ended| {
            ended.next = next.as_ref().map(|next| run_tx.begin_durable(asker, next)).transpose()?;
            Ok(())
        })
        .await
    }

    /// One commit for the end of a program's last step and of its run.
    pub async fn end_last_step(
        &self,
        request: Request<Ended>,
        at: (StepId, i64),
        end: End,
        finish: Finish,
    ) -> Result<Answered<Ended>, Failure> {
        finish.check()?;
        self.end_and(request, at, end, move |run_tx, _, ended| {
            run_tx.finish_program(&finish)?;
            ended.run = Some(run_tx.run.status);
            Ok(())
        })
        .await
    }

    async fn end_and(
        &self,
        request: Request<Ended>,
        (step, fence): (StepId, i64),
        end: End,
        then: impl Fn(&mut RunTx<'_>, Asker, &mut Ended) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Result<Answered<Ended>, Failure> {
        let (asker, run) = (request.asker, request.run);
        let mut large = None;
        if let End::Completed { output, cost } = &end {
            check_cost("cost", *cost)?;
            large = self.put_away_reported((asker, run), step, output).await?;
        }
        self.ask_about_steps("step.end", request, move |run_tx| {
            let standing = run_tx.end_durable(asker, (step, fence), &end, large.as_ref())?;
            let mut ended = Ended { standing, next: None, run: None };
            if !matches!(ended.standing, Standing::Late { .. }) {
                then(run_tx, asker, &mut ended)?;
            }
            run_tx.tx.hint(Hint::Run(run)); // requests may wait for this step
            Ok(ended)
        })
        .await
    }

    /// What the journal has of a step: of this key, or the last one of this name.
    pub async fn recorded_step(
        &self,
        asker: Asker,
        run: RunId,
        name: String,
        key: Option<String>,
    ) -> Result<Standing, Failure> {
        let context = self.context.clone();
        self.store
            .write(Lane::Normal.of(run), "step.recorded", move |tx| {
                open(tx, &context, asker, run)?.recorded_durable(asker, &name, key.as_deref())
            })
            .await
    }
}

/// Another org's run does not exist, nor does another run for a process of a job.
pub(crate) fn open<'t>(
    tx: &'t mut Tx,
    context: &'t EngineContext,
    asker: Asker,
    run: RunId,
) -> Result<RunTx<'t>, Failure> {
    let named = match asker {
        Asker::Job(claim) => claim.run == run,
        Asker::Org(_) => true,
    };
    if !named {
        return Err(Refused::not_found("run", run).into());
    }
    let run_tx = RunTx::open(tx, context, run)?;
    match asker {
        Asker::Org(org) if run_tx.run.org != org => Err(Refused::not_found("run", run).into()),
        _ => Ok(run_tx),
    }
}

impl RunTx<'_> {
    pub(crate) fn begin_durable(&mut self, asker: Asker, begin: &Begin) -> Result<Standing, Failure> {
        let Some(parent) = self.program_of(asker)? else { return Ok(Standing::NotYet) };
        let item = begin.item();
        if let Some(done) = self.record_of(&parent, &begin.name, &item)? {
            return Ok(done);
        }
        if self.run.pause_asked.is_some() || self.run.status != RunStatus::Running {
            return Ok(Standing::Paused);
        }
        let name = format!("{}/{}", parent.name, begin.name);
        if let Some(open) = self.open_child(parent.id, &name, Some(&item))? {
            let child = Rows::step(self, open)?;
            if let Some(standing) = self.under_way(&child)? {
                return Ok(standing);
            }
        }
        check_room(self.run.step_count)?;
        let identity = self.identity_below(&parent, &format!("{}#{item}", begin.name))?;
        let key = plan::key(self.run.id, &identity, ToolKind::External, &Value::Null);
        let child = NewChild {
            name: begin.name.clone(),
            item: Some(item),
            tool: ToolKind::External,
            idempotent: begin.idempotent,
            // Whether a failed one is tried again is the program's to say.
            max_tries: 1,
            timeout_ms: None,
        };
        let (input, most) = (begin.input.clone(), begin.max_cost);
        let input =
            ChildInput { input, key, ask: false, most, asked: None, max_tokens: 0, recorded: true, endpoint: None };
        let child = self.begin_child(parent.id, child, input)?;
        self.lease(asker, &child, begin)
    }

    /// The step that a program's steps are children of. None: it will be there in a moment.
    fn program_of(&mut self, asker: Asker) -> Result<Option<Step>, Failure> {
        match asker {
            Asker::Job(claim) => self.command_of(claim),
            Asker::Org(_) if self.run.spec.kind == RunKind::External => self.external_program(),
            Asker::Org(_) => {
                let why = "only processes of its own jobs begin steps of this run; a run of `type: external` takes them from anywhere";
                Err(Refused::Conflict { why: why.into() }.into())
            }
        }
    }

    /// An older epoch, attempt or try begins nothing (R151).
    fn command_of(&mut self, claim: StepClaim) -> Result<Option<Step>, Failure> {
        let job = store::job::find(self.tx, claim.job)?.filter(|job| job.run == self.run.id);
        let job = job.ok_or_else(|| Refused::not_found("job", claim.job))?;
        let current = job.attempt == self.run.attempt && job.epoch == claim.epoch && !job.status.is_end();
        if !current && !bug!(old_epoch_begins) {
            let (job, given, current) = (job.id.to_string(), claim.epoch, job.epoch);
            return Err(Refused::OldEpoch { job, given, current }.into());
        }
        let Some(step) = store::step::find(self.tx, claim.step.id)? else { return Ok(None) };
        let step = Rows::step(self, step.id)?;
        let StepTry { id, number } = claim.step;
        match () {
            _ if is_current(&step, number) => Ok(Some(step)),
            _ if step.status == StepStatus::Pending && step.tries < number => Ok(None),
            _ => Err(Refused::OldTry { step: id.to_string(), given: number, current: step.tries }.into()),
        }
    }

    fn external_program(&mut self) -> Result<Option<Step>, Failure> {
        if self.run.status.is_end() || self.run.termination.is_some() || self.run.status == RunStatus::Created {
            return Err(Refused::not_from("run", self.run.status, "begin or answer steps", &[]).into());
        }
        let program = self.attempt()?.it.tree.program;
        let step = program.map(|program| Rows::step(self, program)).transpose()?;
        Ok(step.filter(|step| step.status == StepStatus::Running))
    }

    fn identity_below(&mut self, parent: &Step, path: &str) -> Result<plan::Identity, Failure> {
        let (agent, task) = (Rows::agent(self, parent.agent)?, Rows::task(self, parent.task)?);
        let generation = crate::child::generation_of(parent);
        Ok(plan::identity(&agent.name, &task.name, &format!("{}/{path}", parent.name), generation))
    }

    /// A finished step answers, whatever the run does: no row is made for it.
    fn record_of(&mut self, parent: &Step, name: &str, item: &str) -> Result<Option<Standing>, Failure> {
        let identity = self.identity_below(parent, &format!("{name}#{item}"))?.to_string();
        match store::step::journal(self.tx, self.run.id, &identity)? {
            Some(row) if row.state == Recorded::Done => self.completed(row.step).map(Some),
            _ => Ok(None),
        }
    }

    fn completed(&mut self, step: StepId) -> Result<Standing, Failure> {
        let output = match self.outputs.get(&step) {
            Some(output) => Some(output.clone()),
            None => store::step::data(self.tx, step, Data::Output)?,
        };
        Ok(Standing::Completed { step, output: output.unwrap_or_default() })
    }

    /// What is said to a program that asks for a step which another process has begun. None: it is free.
    fn under_way(&mut self, child: &Step) -> Result<Option<Standing>, Failure> {
        if child.status != StepStatus::Running || child.uncertain {
            return Ok(None);
        }
        match self.lease_ends(child)? {
            Some(ends) if ends <= self.at => {
                hierarchy::lose_child(self, child.id, child.tries, &crate::lease::lease_lost())?;
                Ok(None)
            }
            ends => {
                let lease_ms = child.lease.as_ref().map_or(0, |lease| lease.ms);
                let left_ms = ends.map_or(lease_ms, |ends| ends.since(self.at));
                Ok(Some(Standing::Held { step: child.id, left_ms }))
            }
        }
    }

    /// What became of a child that was asked for; one that begins is leased to the program.
    fn lease(&mut self, asker: Asker, child: &Step, begin: &Begin) -> Result<Standing, Failure> {
        let step = child.id;
        let error = || child.last_error.clone().unwrap_or_else(crate::lease::lease_lost);
        match child.status {
            StepStatus::Running if !child.uncertain => {
                let job = match asker {
                    Asker::Job(claim) => Some((claim.job, claim.epoch)),
                    Asker::Org(_) => None,
                };
                self.give_lease(step, begin.lease_ms, job)?;
                Ok(go(child, begin.lease_ms))
            }
            StepStatus::Completed => self.completed(child.answer.unwrap_or(step)),
            StepStatus::Failed | StepStatus::Cancelled => Ok(Standing::Failed { step, error: error() }),
            StepStatus::Skipped => Ok(Standing::Skipped { step }),
            StepStatus::Waiting | StepStatus::Running => {
                Ok(Standing::Waiting { step, what: child.waits.unwrap_or(StepWait::Ticket) })
            }
            StepStatus::Pending => Ok(Standing::Paused),
        }
    }

    /// `large`: what stands for an output that is too large for its row.
    fn end_durable(
        &mut self,
        asker: Asker,
        (id, fence): (StepId, i64),
        end: &End,
        large: Option<&PutAway>,
    ) -> Result<Standing, Failure> {
        let step = self.own_step(asker, id)?;
        if is_current(&step, fence) {
            return match end {
                End::Completed { output, cost } => {
                    self.charge_program(&step, *cost)?;
                    if let Some(refused) = self.output_refused(&step, output, large.is_some())? {
                        return self.fail_durable(id, fence, &refused.failure);
                    }
                    let step = Rows::step(self, id)?;
                    self.note_reported(&step, output, large)?;
                    hierarchy::complete_step(self, id, fence)?;
                    self.completed(id)
                }
                End::Failed(report) => {
                    let failure = report.failure(self.was_offered(&step));
                    self.fail_durable(id, fence, &failure)
                }
            };
        }
        match end {
            _ if step.tries != fence => self.late(&step, fence),
            // Said again.
            End::Completed { .. } if step.status == StepStatus::Completed || step.found_done => self.completed(id),
            End::Failed(report) if step.status == StepStatus::Failed => {
                Ok(Standing::Failed { step: id, error: report.failure(false).error })
            }
            End::Completed { output, .. } if self.may_be_found_done(&step)? => {
                self.note_reported(&step, output, large)?;
                let found = Rows::step(self, id)?.found_done();
                Rows::set_step(self, found);
                self.completed(id)
            }
            _ => self.late(&step, fence),
        }
    }

    fn note_reported(&mut self, step: &Step, output: &Value, large: Option<&PutAway>) -> Result<(), Failure> {
        let Some(large) = large else { return self.note_output(step, output) };
        large.finalise(self.tx)?;
        self.note_output(step, &large.reference)
    }

    fn fail_durable(&mut self, id: StepId, fence: i64, failure: &StepFailure) -> Result<Standing, Failure> {
        hierarchy::fail_step(self, id, fence, failure)?;
        let step = Rows::step(self, id)?;
        Ok(Standing::Failed { step: id, error: step.last_error.unwrap_or_else(|| failure.error.clone()) })
    }

    /// The step, if it is this program's to report about.
    pub(crate) fn own_step(&mut self, asker: Asker, id: StepId) -> Result<Step, Failure> {
        let found = store::step::find(self.tx, id)?.filter(|step| step.run == self.run.id);
        found.ok_or_else(|| Refused::not_found("step", id))?;
        let step = Rows::step(self, id)?;
        let job = step.lease.as_ref().and_then(|lease| lease.job);
        let own = match asker {
            Asker::Job(claim) => step.parent == Some(claim.step.id) && job == Some((claim.job, claim.epoch)),
            Asker::Org(_) => step.lease.is_some() && job.is_none(),
        };
        if own { Ok(step) } else { Err(Refused::not_found("step", id).into()) }
    }

    /// Whether a program may still say that a step was done which ended with its parent, or whose lease ran out: as long as no newer
    /// one of its identity was begun (R151).
    fn may_be_found_done(&mut self, step: &Step) -> Result<bool, Failure> {
        let given_up = match step.status {
            StepStatus::Cancelled => step.tries > 0,
            StepStatus::Failed => step.last_error.as_ref().is_some_and(|error| error.code == crate::lease::LEASE_LOST),
            _ => false,
        };
        let Some(identity) = step.identity.clone().filter(|_| given_up && !step.replaced) else { return Ok(false) };
        let row = store::step::journal(self.tx, self.run.id, &identity)?;
        Ok(row.is_none_or(|row| row.step == step.id))
    }

    fn late(&mut self, step: &Step, given: i64) -> Result<Standing, Failure> {
        let note = format!("{} ({}) was reported late: its try {given} is over", step.id, step.name);
        self.note_late(note);
        Ok(Standing::Late { step: step.id, given, current: step.tries })
    }

    fn recorded_durable(&mut self, asker: Asker, name: &str, key: Option<&str>) -> Result<Standing, Failure> {
        if name.is_empty() {
            return Err(Refused::invalid("name", "which step? e.g. ?name=train").into());
        }
        let Some(parent) = self.program_of(asker)? else { return Ok(Standing::NotYet) };
        let none = || Failure::from(Refused::not_found("finished step", name));
        if let Some(key) = key {
            return self.record_of(&parent, name, &item(Some(key), &Value::Null))?.ok_or_else(none);
        }
        let identity = self.identity_below(&parent, name)?;
        let path = format!("{}/{}/{}#", identity.agent, identity.task, identity.step);
        let found = store::step::last_recorded(self.tx, self.run.id, &path)?;
        self.completed(found.ok_or_else(none)?)
    }
}

fn check_room(steps: i64) -> Result<(), Refused> {
    if steps < MAX_STEPS {
        return Ok(());
    }
    let why = format!("the run has {steps} steps, and more than {MAX_STEPS} are not possible: begin another run");
    Err(Refused::Conflict { why })
}

fn go(child: &Step, lease_ms: i64) -> Standing {
    Standing::Go { step: child.id, fence: child.tries, key: child.key.clone().unwrap_or_default(), lease_ms }
}

/// An error as a program reports it, without a class.
pub fn failure(code: Option<String>, message: String, effect: Option<Effect>) -> Report {
    Report { code, message, class: None, effect }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_a_million_steps_and_no_more() {
        assert_eq!(check_room(MAX_STEPS - 1), Ok(()));
        let refused = check_room(MAX_STEPS).unwrap_err().to_string();
        assert!(refused.contains("the run has 1000000 steps"), "{refused}");
    }
}
