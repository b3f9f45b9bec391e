//! The daemon's side of its keepers: prepares the warm slot, sends orders to a keeper, records its end, and ends its processes if it was killed.

use super::{Daemon, Event, Warm};
use crate::artifacts::{self, Left, Shortfall};
use crate::clock::wall_ms;
use crate::contain;
use crate::exit::{self, ExitRecord};
use crate::init;
use crate::key::Key;
use crate::orders::{self, KeeperOrder, Told};
use crate::output;
use crate::slot::{self, Slot};
use crate::step::Stage;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use wire::model::crash_point;
use wire::runner::{EndCause, Init, What};

/// A command that says something at once does so within this; its start waits that long to travel with it.
const FIRST_OUTPUT_WITHIN: Duration = Duration::from_millis(3);
/// Keepers that die before they begin, one after the other, for one job.
const STARTS_AT_MOST: u32 = 3;

pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The first orders go in at once, the others by the channel; what the keeper says comes back as events, its end as the last.
pub fn attach(
    key: Key,
    mut keeper: UnixStream,
    first: &[KeeperOrder],
    events: &mpsc::UnboundedSender<Event>,
) -> io::Result<mpsc::UnboundedSender<KeeperOrder>> {
    keeper.set_nonblocking(true)?;
    // By ourselves, as much as finds room: a task would have its turn only when we have done everything else. A keeper that is
    // gone says so below.
    let first: Vec<u8> = first.iter().flat_map(orders::pack).collect();
    let written = keeper.write(&first).unwrap_or(0);
    let (mut read, mut write) = tokio::net::UnixStream::from_std(keeper)?.into_split();
    let (orders, mut given) = mpsc::unbounded_channel::<KeeperOrder>();
    tokio::spawn(async move {
        if write.write_all(&first[written..]).await.is_err() {
            return;
        }
        while let Some(order) = given.recv().await {
            if write.write_all(&orders::pack(&order)).await.is_err() {
                return;
            }
        }
    });
    let events = events.clone();
    tokio::spawn(async move {
        let mut said = [0; 512];
        while let Ok(read @ 1..) = read.read(&mut said).await {
            for told in orders::heard(&said[..read]) {
                if events.send(Event::Told(key, told)).is_err() {
                    return;
                }
            }
        }
        let _ = events.send(Event::KeeperGone(key));
    });
    Ok(orders)
}

impl Daemon {
    /// One keeper waits, always; made when nothing urgent is under way.
    pub(super) fn prepare_slot(&mut self, now: Instant) {
        let urgent = self.jobs.values().any(|job| job.company_until.is_some());
        if !urgent && self.closing.is_none() {
            self.prepare_slot_now(now);
        }
    }

    pub(super) fn prepare_slot_now(&mut self, now: Instant) {
        if !matches!(self.warm, Warm::None) || self.slot_due.is_some_and(|due| due > now) {
            return;
        }
        self.warm = Warm::Preparing;
        self.slot_due = None;
        self.slots_made += 1;
        let (instance, keepers, number) = (self.instance.clone(), self.keepers.clone(), self.slots_made);
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            let _ = events.send(Event::Slot(slot::prepare(&instance, &keepers, number)));
        });
    }

    pub(super) fn hear_slot(&mut self, made: io::Result<Slot>, now: Instant) {
        match made {
            Ok(slot) => {
                self.slot_backoff.reset();
                self.warm = Warm::Ready(slot);
            }
            Err(error) => {
                self.warm = Warm::None;
                self.slot_due = Some(now + self.slot_backoff.next());
                tracing::error!(%error, "no keeper could be prepared");
                if self.slot_backoff.tries() >= STARTS_AT_MOST {
                    self.give_up_waiting(&error);
                }
            }
        }
    }

    /// Who waits for a keeper must not wait for ever.
    fn give_up_waiting(&mut self, error: &io::Error) {
        let cause = if is_full(error) { EndCause::DiskFull } else { EndCause::ExecutorError };
        let waiting = self.steps.values().filter(|step| matches!(step.stage, Stage::Ready(_)));
        for key in waiting.map(|step| step.key).collect::<Vec<_>>() {
            self.end_without_record(key, cause, format!("no keeper could be prepared: {error}"), false);
        }
    }

    pub(super) fn hear_keeper(&mut self, key: Key, told: Told, now: Instant) {
        let (Some(job), Some(step)) = (self.jobs.get_mut(&key.of), self.steps.get_mut(&key)) else { return };
        match told {
            Told::Started => {
                if job.company_until.is_some() {
                    job.company_until = Some(now + FIRST_OUTPUT_WITHIN);
                }
                step.tell_started(job.wanted.as_ref().map(|wanted| wanted.limits));
                self.apply(key); // what was asked for while it started
            }
            Told::Froze => step.still = Some(true),
            Told::Thawed => step.still = Some(false),
            Told::Wrote => {}
        }
    }

    /// It wrote down how the step ended, or it never began, or it was killed.
    pub(super) fn keeper_gone(&mut self, key: Key) {
        let Some(step) = self.steps.get_mut(&key).filter(|step| step.is_kept()) else { return };
        let dir = step.folder().expect("a kept step has a folder").to_owned();
        if let Some(ended) = exit::read(&dir) {
            return self.over(key, ended);
        }
        if exit::begun(&dir).is_none() {
            return self.never_began(key);
        }
        tracing::warn!(%key, "the keeper died: ending what it held");
        step.stage = Stage::Containing;
        let (instance, keepers, events) = (self.instance.clone(), self.keepers.clone(), self.events.clone());
        tokio::task::spawn_blocking(move || {
            crash_point!("contain.end", contain::end_all(&instance.dir, &dir, key, Some(&keepers)));
            let _ = events.send(Event::Contained(key));
        });
    }

    /// Nothing was started, so another keeper may try.
    fn never_began(&mut self, key: Key) {
        let Some(step) = self.steps.get_mut(&key) else { return };
        if let Some(output) = step.output.take() {
            slot::discard(&output.dir);
        }
        match step.opening.take() {
            Some(opening) if step.starts < STARTS_AT_MOST => step.stage = Stage::Ready(opening),
            Some(_) => self.end_without_record(key, EndCause::KeeperDied, "its keepers died at once".to_owned(), false),
            None => {
                // Left by a runner before this one: the desired document will say whether to start it.
                self.steps.remove(&key);
                if self.steps_of(key.of).next().is_none() {
                    self.jobs.remove(&key.of);
                }
                if let Err(error) = self.journal.forget(key) {
                    tracing::warn!(%key, %error, "the journal cannot be written");
                }
                self.reopen.notify_one();
            }
        }
    }

    pub(super) fn contained(&mut self, key: Key) {
        self.end_unrecorded(key, EndCause::KeeperDied, "its keeper was killed; all its processes were ended");
    }

    /// Writes the exit record of a step that began and whose keeper wrote none. No process of it is left.
    pub(super) fn end_unrecorded(&mut self, key: Key, cause: EndCause, message: &str) {
        let Some(output) = self.steps.get_mut(&key).and_then(|step| step.output.as_mut()) else { return };
        let began = exit::begun(&output.dir).unwrap_or_else(wall_ms);
        let ended = ExitRecord {
            cause: Some(cause),
            message: Some(message.to_owned()),
            final_offset: output.reader.end().unwrap_or(output.delivered),
            active_ms: (wall_ms() - began).max(0),
            started: true,
            at_ms: wall_ms(),
            ..ExitRecord::default()
        };
        if let Err(error) = exit::write(&output.dir, &ended) {
            tracing::error!(%key, %error, "an outcome could not be written");
        }
        self.over(key, ended);
    }

    /// An end that no keeper wrote down; known to this runner only.
    pub(super) fn end_without_record(&mut self, key: Key, cause: EndCause, message: String, started: bool) {
        let ended = ExitRecord {
            cause: Some(cause),
            message: Some(message),
            started,
            at_ms: wall_ms(),
            ..ExitRecord::default()
        };
        self.over(key, ended);
    }

    pub(super) fn over(&mut self, key: Key, ended: ExitRecord) {
        let limits = self.jobs.get(&key.of).and_then(|job| Some(job.wanted.as_ref()?.limits));
        let Some(step) = self.steps.get_mut(&key) else { return };
        if ended.started {
            step.tell_started(limits);
        }
        step.steps_socket = None;
        let answered = ended.started
            && !step.is_server()
            && !matches!(ended.cause, Some(EndCause::Aborted | EndCause::KeeperDied | EndCause::Interrupted));
        step.ended = Some(ended);
        step.stage = Stage::Over;
        if answered {
            step.take_answer();
        }
        self.settle_over(key);
    }

    /// Artifacts first, then the end is told. A new runner has to hear first what is wanted.
    pub(super) fn settle_over(&mut self, key: Key) {
        if self.session.is_none() {
            return;
        }
        let workdir = self.jobs.get(&key.of).and_then(|job| Some(job.wanted.as_ref()?.workdir.clone()));
        let Some(step) = self.steps.get_mut(&key) else { return };
        let left_something = step.ended.as_ref().is_some_and(|ended| {
            ended.started && ended.cause != Some(EndCause::Aborted) && step.listed && self.closing.is_none()
        });
        let large = left_something && step.has_large_answer();
        let answer = step.folder().filter(|_| large).map(|dir| (step.answer_path(), output::path(dir)));
        let mut left = Left { answer, ..Left::default() };
        if let (Some(workdir), Some(wanted), true) = (workdir, &step.wanted, left_something) {
            left.workdir = self.instance.dir.join(workdir);
            (left.artifacts, left.keep) = (wanted.artifacts.clone(), step.to_keep().to_vec());
        }
        if left.is_nothing() {
            return self.tell_end(key, &Shortfall::default());
        }
        let (line, events) = (self.line.clone(), self.events.clone());
        let task = tokio::spawn(async move {
            let shortfall = artifacts::upload(key.of, left, line).await;
            let _ = events.send(Event::Uploaded(key, shortfall));
        });
        step.stage = Stage::Uploading(task.abort_handle());
    }

    pub(super) fn tell_end(&mut self, key: Key, shortfall: &Shortfall) {
        let init = self.jobs.get(&key.of).and_then(|job| job.wanted.as_ref()?.init.clone());
        let Some(step) = self.steps.get_mut(&key).filter(|step| !step.is_ended()) else { return };
        if let Some(ended) = step.ended.as_mut().filter(|_| !shortfall.problems.is_empty()) {
            let lost = format!("artifacts not uploaded: {}", shortfall.problems.join("; "));
            ended.message = Some(ended.message.take().map_or(lost.clone(), |message| format!("{message}; {lost}")));
        }
        step.kept.clone_from(&shortfall.kept);
        if let Some(why) = &shortfall.answer {
            step.answer_unusable(why);
        }
        if let Err(error) = step.add_to_log(&shortfall.lines()) {
            tracing::warn!(%key, %error, "a log could not be added to");
        }
        let done = init.filter(|init| init::is_done(&self.instance.dir, init));
        if let Some(Init { checksum, .. }) = done {
            step.tell(What::Initialised { checksum });
        }
        if let Some(end) = step.end_fact() {
            step.tell(end);
        }
        step.stage = Stage::Ended;
        if let Some(dir) = step.folder() {
            slot::groups_of(dir).remove();
        }
    }
}
