//! Simulated followers of a run: each reads its events and its log piece by piece, at its own pace, some of them
//! very slowly. The pieces together must be complete.

use crate::chance::Chance;
use crate::sim::Promise;
use crate::time::now;
use crate::world::{Happening, World};
use engine::Engine;
use model::{Failure, JobId};
use std::collections::BTreeMap;

/// Small, so that a log is read in many pieces.
const PIECE_BYTES: i64 = 700;
const PIECE_EVENTS: i64 = 4;

pub struct Follower {
    pub client: usize,
    every_ms: i64,
    not_before_ms: i64,
    /// The last event that was seen.
    seq: i64,
    logs: BTreeMap<JobId, (i64, Vec<u8>)>,
    /// What it has followed is lost with the database.
    pub gone: bool,
}

/// What is left after a piece was read.
struct More {
    behind: bool,
    ended: bool,
}

impl Follower {
    pub fn new(client: usize, every_ms: i64) -> Follower {
        Follower { client, every_ms, not_before_ms: 0, seq: 0, logs: BTreeMap::new(), gone: false }
    }
}

impl World {
    /// The next piece of everything, unless the run is over and everything was seen.
    pub fn read_on(&mut self, index: usize) {
        let (now_ms, follower) = (self.now.ms(), &self.followers[index]);
        if follower.gone {
            return;
        }
        let wait_ms = follower.not_before_ms - now_ms;
        if wait_ms > 0 {
            return self.after(wait_ms, Happening::Follower { index });
        }
        let every_ms = follower.every_ms;
        let unread = Ok(More { behind: true, ended: false });
        let more = self.serving().map_or(unread, |engine| self.read_piece(&engine, index));
        match more {
            Ok(More { behind: false, ended: true }) | Err(_) => {} // seen, or deleted under their eyes
            Ok(_) => self.after(every_ms, Happening::Follower { index }),
        }
    }

    fn read_piece(&mut self, engine: &Engine, index: usize) -> Result<More, Failure> {
        let client = &self.clients[self.followers[index].client];
        let (org, Some(id)) = (self.orgs[client.org], client.run) else {
            return Ok(More { behind: false, ended: true });
        };
        let (run, events, last) = now(engine.events(org, id, self.followers[index].seq, PIECE_EVENTS))?;
        for event in events {
            let expected = self.followers[index].seq + 1;
            if event.seq != expected {
                self.complain(Promise::Safe, format!("{id}: event {} came where {expected} was due", event.seq));
            }
            self.followers[index].seq = event.seq;
        }
        let mut behind = self.followers[index].seq < last;
        for job in now(engine.jobs(org, id))?.1 {
            let (offset, seen) = self.followers[index].logs.entry(job.id).or_default();
            let page = now(engine.logs.read(job.id, *offset, PIECE_BYTES))?;
            behind |= page.next_offset > *offset;
            *offset = page.next_offset;
            page.frames.iter().for_each(|placed| seen.extend(&placed.frame.data));
        }
        Ok(More { behind, ended: run.status.is_end() })
    }

    /// One follower stops reading for this long.
    pub fn slow_down(&mut self, ms: i64, luck: &mut Chance) {
        if !self.followers.is_empty() {
            let index = luck.between(0, self.followers.len() as i64) as usize;
            self.note(format_args!("follower {index} stops reading for {ms}"));
            self.followers[index].not_before_ms = self.now.ms() + ms;
        }
    }

    /// At the end they read what is left, and have seen every log as it is kept.
    pub fn judge_followers(&mut self) {
        let engine = self.auditor.engine();
        for index in 0..self.followers.len() {
            if self.clients[self.followers[index].client].deleted || self.followers[index].gone {
                continue; // under their eyes
            }
            while self.read_piece(&engine, index).is_ok_and(|more| more.behind) && self.broken.is_empty() {}
            for (job, (_, seen)) in std::mem::take(&mut self.followers[index].logs) {
                let page = now(engine.logs.read(job, 0, i64::MAX)).expect("a log is read");
                let kept: Vec<u8> = page.frames.iter().flat_map(|placed| placed.frame.data.clone()).collect();
                if kept != seen {
                    let what =
                        format!("a follower saw {} bytes of the log of {job}, not its {}", seen.len(), kept.len());
                    self.complain(Promise::Safe, what);
                }
            }
        }
    }
}
