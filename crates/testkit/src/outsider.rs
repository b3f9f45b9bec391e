//! Programs outside that poll for steps of the tool `external`. Each takes one at a time, does it and reports its end again and again
//! until a server answers. Now and then one falls silent with a step in hand, or works for longer than its lease.

use crate::book::Situation;
use crate::faults::Kind;
use crate::time::now;
use crate::world::{Happening, World};
use engine::Engine;
use engine::durable::{Answered, Asker, End, Ended, Request, Standing, StepRender, failure};
use engine::lease::Beat;
use engine::offer::{Poll, Taken};
use model::time::SECOND;
use model::{Credits, Effect, Failure};
use serde_json::json;
use std::sync::Arc;

/// The name under which steps are offered.
pub const TOOL: &str = "crm";
/// Looks again after this when nothing was offered.
const POLL_EVERY_MS: i64 = 20 * SECOND;
/// A request that was not answered is sent again after this.
const ASK_AGAIN_MS: i64 = 2 * SECOND;
const LEASE_MS: i64 = 30 * SECOND;

pub struct Outsider {
    /// Index of its org.
    org: usize,
    doing: Option<Doing>,
}

#[derive(Clone)]
struct Doing {
    taken: Taken,
    left_ms: i64,
    /// Renews its lease while it works.
    beats: bool,
}

impl World {
    /// One for each org.
    pub fn add_outsiders(&mut self) {
        for org in 0..self.orgs.len() {
            self.outsiders.push(Outsider { org, doing: None });
            self.outsider_later(org, POLL_EVERY_MS);
        }
    }

    pub fn outsider(&mut self, index: usize) {
        let lost = self.faults.strikes(Kind::Lost).is_some();
        let Some(engine) = self.serving().filter(|_| !lost) else { return self.outsider_later(index, ASK_AGAIN_MS) };
        match self.outsiders[index].doing.clone() {
            None => self.polls(&engine, index),
            Some(doing) if doing.left_ms > 0 => self.works_on(&engine, index, doing),
            Some(doing) => self.reports(&engine, index, &doing),
        }
        self.fate.was_troubled(); // the caller is told
    }

    fn outsider_later(&mut self, index: usize, ms: i64) {
        self.after(ms, Happening::Outsider { index });
    }

    fn polls(&mut self, engine: &Engine, index: usize) {
        let poll = Poll { org: self.orgs[self.outsiders[index].org], tools: vec![TOOL.to_owned()], lease_ms: LEASE_MS };
        let render: StepRender<Taken> = Arc::new(|_| None);
        let told = now(engine.poll_step(&poll, None, &render));
        let heard = self.faults.strikes(Kind::Lost).is_none();
        match told {
            // Of a step that it was given and never heard of, the lease runs out.
            Ok(Some(_)) if !heard => self.outsider_later(index, ASK_AGAIN_MS),
            Ok(Some(Answered::Now(taken))) => self.takes(index, taken),
            Ok(_) => self.outsider_later(index, POLL_EVERY_MS),
            Err(_) => self.outsider_later(index, ASK_AGAIN_MS),
        }
    }

    fn takes(&mut self, index: usize, taken: Taken) {
        self.note(format_args!("{} of {} is taken, fence {}: {}", taken.path, taken.run, taken.fence, taken.key));
        let mut book = self.tool.book();
        book.meets(Situation::StepTaken);
        book.is_called(taken.input["name"].as_str().unwrap_or_default(), &taken.key);
        book.goes(&taken.key, !taken.idempotent);
        drop(book);
        if self.chance.one_in(8) {
            return self.outsider_later(index, POLL_EVERY_MS); // it has done it, and falls silent
        }
        let left_ms = self.chance.pick(&[0, SECOND, 20 * SECOND, 50 * SECOND]);
        self.outsiders[index].doing = Some(Doing { taken, left_ms, beats: self.chance.one_in(2) });
        self.outsider_later(index, left_ms.min(LEASE_MS / 2));
    }

    fn works_on(&mut self, engine: &Engine, index: usize, doing: Doing) {
        let left_ms = doing.left_ms - LEASE_MS / 2;
        if doing.beats && left_ms > 0 {
            let request = self.request_of(index, &doing.taken);
            let told = now(engine.beat_step(request, (doing.taken.step, doing.taken.fence), None));
            if matches!(told, Ok(Answered::Now(Beat::Cancel))) {
                self.tool.book().meets(Situation::TakenCancelled);
                self.outsiders[index].doing = None;
                return self.outsider_later(index, POLL_EVERY_MS);
            }
        }
        self.outsiders[index].doing = Some(Doing { left_ms, ..doing });
        self.outsider_later(index, left_ms.clamp(0, LEASE_MS / 2));
    }

    /// What may be repeated fails now and then.
    fn reports(&mut self, engine: &Engine, index: usize, doing: &Doing) {
        let taken = &doing.taken;
        let end = match taken.idempotent && self.chance.one_in(8) {
            true => End::Failed(failure(None, "it did not work".into(), Some(Effect::None))),
            false => End::Completed { output: json!(1), cost: Credits::ZERO },
        };
        let told = now(engine.end_step(self.request_of(index, taken), (taken.step, taken.fence), end, None));
        self.note(format_args!("the end of {} is reported: {told:?}", taken.path));
        match &told {
            Ok(Answered::Now(Ended { standing: Standing::Completed { .. }, .. })) => {
                self.tool.book().finishes(&taken.key);
            }
            Ok(Answered::Now(Ended { standing: Standing::Late { .. }, .. })) => {
                self.tool.book().meets(Situation::TakenReportedLate);
            }
            _ => {}
        }
        let heard = self.faults.strikes(Kind::Lost).is_none();
        match told {
            Err(Failure::Trouble(_)) => self.outsider_later(index, ASK_AGAIN_MS),
            Ok(_) if !heard => self.outsider_later(index, ASK_AGAIN_MS),
            _ => {
                self.outsiders[index].doing = None;
                self.outsider_later(index, SECOND);
            }
        }
    }

    fn request_of<T>(&self, index: usize, taken: &Taken) -> Request<T> {
        Request::plain(Asker::Org(self.orgs[self.outsiders[index].org]), taken.run)
    }
}
