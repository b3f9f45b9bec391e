//! Programs outside that drive a run of their own (`type: external`): each begins steps, does them, reports their ends and finishes its run.
//! Each request is sent again until a server answers. Now and then one works for longer than its lease, or gives up.

use crate::book::Situation;
use crate::faults::Kind;
use crate::time::now;
use crate::world::{Happening, World};
use engine::Engine;
use engine::durable::{Answered, Asker, Begin, End, Request, Standing};
use engine::external::Finish;
use engine::run::Render;
use model::time::SECOND;
use model::{Credits, Failure, OrgId, RunId, StepId};
use serde_json::json;
use std::sync::Arc;

/// A request that was not answered is sent again after this.
const ASK_AGAIN_MS: i64 = 2 * SECOND;
/// After this it looks again whether its run was begun, retried, or goes on.
const LOOK_AGAIN_MS: i64 = 15 * SECOND;
const LEASE_MS: i64 = 30 * SECOND;

pub struct ExternalProgram {
    org: OrgId,
    run: RunId,
    count: i64,
    once: bool,
    next: i64,
    /// The step that it does, and its fence.
    doing: Option<(StepId, i64, String)>,
}

impl ExternalProgram {
    fn request<T>(&self) -> Request<T> {
        Request::plain(Asker::Org(self.org), self.run)
    }

    fn begin(&self) -> Begin {
        Begin {
            name: format!("e{}", self.next),
            key: None,
            input: json!({ "n": self.next }),
            idempotent: !self.once,
            lease_ms: LEASE_MS,
            max_cost: Credits::ZERO,
        }
    }
}

impl World {
    /// A client's run was accepted, and its program begins.
    pub fn add_external(&mut self, org: OrgId, run: RunId) {
        let (count, once) = (self.chance.between(0, 4), self.chance.one_in(2));
        self.externals.push(ExternalProgram { org, run, count, once, next: 0, doing: None });
        self.after(0, Happening::External { index: self.externals.len() - 1 });
    }

    pub fn external_program(&mut self, index: usize) {
        let run = self.externals[index].run;
        let row = now(self.store.read("sim.run", move |tx| store::run::find(tx, run)));
        let Some(row) = row.expect("a database in memory is read") else { return }; // the database was lost
        let lost = self.faults.strikes(Kind::Lost).is_some();
        let ms = match self.serving().filter(|_| !lost) {
            None => ASK_AGAIN_MS,
            Some(_) if row.status.is_end() => {
                // A retry begins from the first step, and what has finished is answered from the journal.
                let program = &mut self.externals[index];
                (program.next, program.doing) = (0, None);
                LOOK_AGAIN_MS
            }
            Some(engine) => self.external_asks(&engine, index),
        };
        self.fate.was_troubled(); // the caller is told
        self.after(ms, Happening::External { index });
    }

    /// Its next request, and after which time the one after it follows.
    fn external_asks(&mut self, engine: &Engine, index: usize) -> i64 {
        let program = &self.externals[index];
        let (org, run, name) = (program.org, program.run, program.next);
        let told = match program.doing.clone() {
            None if program.next >= program.count => return self.finishes(engine, org, run),
            None => now(engine.begin_step(program.request(), program.begin())),
            Some((step, fence, _)) => {
                let end = End::Completed { output: json!(name), cost: Credits::ZERO };
                let told = now(engine.end_step(program.request(), (step, fence), end, None));
                told.map(|answered| match answered {
                    Answered::Now(ended) => Answered::Now(ended.standing),
                    Answered::Before(before) => Answered::Before(before),
                })
            }
        };
        self.note(format_args!("e{name} of {run} asks: {told:?}"));
        if let (Ok(Answered::Now(Standing::Completed { .. })), Some((_, _, key))) =
            (&told, &self.externals[index].doing)
        {
            self.tool.book().finishes(key);
        }
        let heard = self.faults.strikes(Kind::Lost).is_none();
        match told {
            Ok(Answered::Now(standing)) if heard => self.external_hears(index, standing),
            Ok(_) | Err(Failure::Trouble(_)) => ASK_AGAIN_MS,
            // It was not begun, has ended, or is about to end.
            Err(Failure::Refused(_)) => {
                self.externals[index].doing = None;
                LOOK_AGAIN_MS
            }
        }
    }

    fn external_hears(&mut self, index: usize, standing: Standing) -> i64 {
        let program = &mut self.externals[index];
        match standing {
            Standing::Go { step, fence, key, .. } => {
                let ms = self.chance.pick(&[0, SECOND, 20 * SECOND, 50 * SECOND]);
                self.tool.book().goes(&key, program.once);
                program.doing = Some((step, fence, key));
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
        }
    }

    fn finishes(&mut self, engine: &Engine, org: OrgId, run: RunId) -> i64 {
        let finish = match self.chance.one_in(6) {
            true => Finish::Failed("it gave up".into()),
            false => Finish::Done(Some(json!("done"))),
        };
        let render: Render = Arc::new(|_| Vec::new());
        let told = now(engine.finish_run(org, run, finish, None, render));
        self.note(format_args!("the program of {run} finishes it: {:?}", told.as_ref().map(|answer| answer.status)));
        if told.is_ok() {
            self.tool.book().meets(Situation::ProgramFinished);
        }
        LOOK_AGAIN_MS
    }
}
