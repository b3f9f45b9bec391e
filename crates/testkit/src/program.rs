//! Programs of simulated commands that do their work in durable steps: each asks before it acts and reports when it has, again and
//! again until a server answers. Most programs end with their command, wherever they were.

use crate::agent_machine::CommandStage;
use crate::book::Situation;
use crate::machine::{Machine, Stage, Steps};
use crate::sim::Promise;
use crate::time::now;
use crate::world::{Happening, World};
use engine::Engine;
use engine::durable::{Answered, Asker, Begin, End, Ended, Request, Standing, StepClaim, failure};
use engine::lease::Beat;
use model::time::SECOND;
use model::{Credits, Effect, Failure, Refused, StepId};
use serde_json::json;

/// A request that was not answered is sent again after this.
const ASK_AGAIN_MS: i64 = 2 * SECOND;
/// A program that waits for a person, or for another program's lease, looks again after this.
const LOOK_AGAIN_MS: i64 = 15 * SECOND;
const LEASE_MS: i64 = 30 * SECOND;

pub struct Program {
    pub claim: StepClaim,
    pub steps: Steps,
    next: i64,
    doing: Option<Doing>,
}

#[derive(Clone)]
struct Doing {
    step: StepId,
    fence: i64,
    key: String,
    /// It takes longer than its lease.
    beats: bool,
}

impl Program {
    pub fn new(claim: StepClaim, steps: Steps) -> Program {
        Program { claim, steps, next: 0, doing: None }
    }

    fn begin(&self) -> Begin {
        Begin {
            name: format!("d{}", self.next),
            key: None,
            input: json!({ "n": self.next }),
            idempotent: !self.steps.once,
            lease_ms: LEASE_MS,
            max_cost: Credits(self.steps.cost),
        }
    }

    fn is_over(&self) -> bool {
        self.next >= self.steps.count
    }
}

impl Machine {
    /// Whether the command of a program runs, and if so, whether it stands still.
    fn runs(&self, claim: &StepClaim) -> Option<bool> {
        let key = (claim.job, claim.epoch);
        if let Some(work) = self.works.get(&key) {
            return (work.stage == Stage::Running && work.step == claim.step).then_some(false);
        }
        let work = self.agents.get(&key)?;
        let command = work.commands.get(&claim.step)?;
        (command.stage == CommandStage::Running).then_some(work.still)
    }
}

impl World {
    /// The next request of a program, or the same again.
    pub fn program(&mut self, name: &str, mut program: Program) {
        match self.machines.get(name).and_then(|machine| machine.runs(&program.claim)) {
            None if self.outlives(name) => {}
            None => return,
            Some(true) => return self.program_later(name, program, SECOND),
            Some(false) => {}
        }
        let Some(engine) = self.reaches(name) else { return self.program_later(name, program, ASK_AGAIN_MS) };
        match program.doing.clone() {
            None => {
                let told = now(engine.begin_step(request(&program), program.begin()));
                self.hears(name, program, told, World::is_told);
            }
            Some(doing) if doing.beats => {
                let told = now(engine.beat_step(request(&program), (doing.step, doing.fence), None));
                program.doing = Some(Doing { beats: false, ..doing });
                self.hears(name, program, told, |world, name, program, beat| {
                    if beat != Beat::Cancel {
                        world.program_later(name, program, LEASE_MS / 2);
                    }
                });
            }
            Some(doing) => {
                let told = self.ends(&engine, &program, &doing);
                self.hears(name, program, told, World::is_told_of_its_end);
            }
        }
    }

    /// Now and then a process stays when its command has ended, and asks with the token that it was given.
    fn outlives(&mut self, name: &str) -> bool {
        self.machines.get(name).is_some_and(|machine| !machine.gone) && self.chance.one_in(2)
    }

    fn program_later(&mut self, name: &str, program: Program, ms: i64) {
        self.after(ms, Happening::Program { name: name.to_owned(), program: Box::new(program) });
    }

    /// What was answered, if it was heard. Who is refused asks no more: its job is not the current one, or its run is over.
    fn hears<T: std::fmt::Debug>(
        &mut self,
        name: &str,
        program: Program,
        told: Result<Answered<T>, Failure>,
        then: impl FnOnce(&mut World, &str, Program, T),
    ) {
        self.fate.was_troubled(); // the caller is told
        self.note(format_args!("d{} of {} asks: {told:?}", program.next, program.claim.step));
        match told {
            Err(Failure::Refused(Refused::OldEpoch { .. } | Refused::OldTry { .. })) => {
                self.tool.book().meets(Situation::OlderJobRefused);
            }
            Err(Failure::Refused(_)) => {}
            Ok(Answered::Now(answer)) if self.arrives(name) => then(self, name, program, answer),
            Ok(_) | Err(Failure::Trouble(_)) => self.program_later(name, program, ASK_AGAIN_MS),
        }
    }

    fn is_told(&mut self, name: &str, mut program: Program, standing: Standing) {
        let situation = match &standing {
            Standing::Go { .. } => Some(Situation::StepBegun),
            Standing::Completed { .. } if program.doing.is_none() => Some(Situation::StepRecorded),
            Standing::Held { .. } => Some(Situation::StepHeld),
            Standing::Late { .. } => Some(Situation::StepReportedLate),
            _ => None,
        };
        situation.into_iter().for_each(|situation| self.tool.book().meets(situation));
        let ms = match standing {
            Standing::Go { step, fence, key, .. } => {
                self.must_be_current(&program.claim);
                self.tool.book().goes(&key, program.steps.once);
                let ms = self.chance.pick(&[0, SECOND, 20 * SECOND]);
                program.doing = Some(Doing { step, fence, key, beats: ms > LEASE_MS / 2 });
                ms
            }
            Standing::Completed { .. } | Standing::Failed { .. } | Standing::Skipped { .. } => {
                (program.next, program.doing) = (program.next + 1, None);
                100
            }
            Standing::Late { .. } => {
                program.doing = None;
                100
            }
            Standing::Held { .. } | Standing::Waiting { .. } | Standing::Paused | Standing::NotYet => LOOK_AGAIN_MS,
        };
        if !program.is_over() {
            self.program_later(name, program, ms);
        }
    }

    /// A step that may be repeated fails now and then. Half of the ends begin the next step.
    fn ends(&mut self, engine: &Engine, program: &Program, doing: &Doing) -> Result<Answered<Ended>, Failure> {
        let fails = !program.steps.once && self.chance.one_in(8);
        let end = match fails {
            true => End::Failed(failure(None, "it did not work".into(), Some(Effect::None))),
            false => End::Completed { output: json!(program.next), cost: Credits(program.steps.cost) },
        };
        let after = Program { next: program.next + 1, doing: None, ..*program };
        let next = (!after.is_over() && self.chance.one_in(2)).then(|| after.begin());
        let told = now(engine.end_step(request(program), (doing.step, doing.fence), end, next));
        if let Ok(Answered::Now(Ended { standing: Standing::Completed { .. }, .. })) = &told {
            self.tool.book().finishes(&doing.key);
        }
        told
    }

    fn is_told_of_its_end(&mut self, name: &str, mut program: Program, ended: Ended) {
        match ended.next {
            Some(next) => {
                (program.next, program.doing) = (program.next + 1, None);
                self.is_told(name, program, next);
            }
            None => self.is_told(name, program, ended.standing),
        }
    }

    /// Only the job that the run has now begins anything.
    fn must_be_current(&mut self, claim: &StepClaim) {
        let id = claim.job;
        let job =
            self.store.read_now("sim.job", move |tx| store::job::find(tx, id)).expect("a database in memory is read");
        let current = job.is_some_and(|job| job.epoch == claim.epoch && !job.status.is_end());
        if !current {
            self.complain(Promise::Safe, format!("a process of {} epoch {} began a step", claim.job, claim.epoch));
        }
    }
}

fn request<T>(program: &Program) -> Request<T> {
    Request::plain(Asker::Job(program.claim), program.claim.run)
}
