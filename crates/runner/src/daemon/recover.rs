//! The start of a runner: it reconnects to the keepers of an earlier runner, reports steps that ended meanwhile, ends the processes of dead
//! keepers, and removes what a crash left half done. A step that began before the last boot of the host and has no exit record ends
//! *interrupted*: the mark that it began is not synced, so its absence does not show that the command never ran.

use super::{Daemon, keepers, open};
use crate::exit::{self, ExitRecord};
use crate::job::Job;
use crate::journal::Begun;
use crate::key::Key;
use crate::step::{Stage, Step};
use crate::{contain, slot};
use std::io;
use std::path::Path;
use wire::runner::{EndCause, What};

const RESTARTED: &str = "the host was restarted";

impl Daemon {
    pub(super) fn recover(&mut self) -> io::Result<()> {
        let jobs = self.instance.jobs();
        slot::discard_waiting(&jobs);
        self.instance.layout.remove_left(&self.instance.group_prefix());
        let known = self.journal.known().clone();
        for (key, about) in &known {
            self.recover_step(*key, about, &jobs.join(key.to_string()))?;
        }
        for (key, dir) in slot::step_dirs(&jobs).into_iter().filter(|(key, _)| !known.contains_key(key)) {
            // Forgotten, but its folder outlived the runner that forgot it.
            contain::end_all(&self.instance.dir, &dir, key, None);
            slot::discard(&dir);
        }
        self.note_inventory();
        Ok(())
    }

    /// A step that began has found the files of its job in place.
    fn recover_step(&mut self, key: Key, about: &Begun, dir: &Path) -> io::Result<()> {
        let same_boot = about.boot == self.boot_id;
        if !dir.exists() && same_boot {
            // Journalled, but the folder never became the step's: no order was given.
            return self.journal.forget(key);
        }
        let job = self.jobs.entry(key.of).or_insert_with(|| Job::new(key.of));
        let mut step = Step::new(key, None, Stage::Over);
        if !dir.exists() {
            self.steps.insert(key, step);
            let message = format!("{RESTARTED}; nothing of the job is left");
            self.end_without_record(key, EndCause::Interrupted, message, true);
            return Ok(());
        }
        if job.facts.is_empty() {
            job.tell(What::Accepted);
            job.tell(What::SyncComplete { fetched_blobs: 0, fetched_bytes: 0 });
        }
        step.output_in(dir);
        if let Some(ended) = exit::read(dir) {
            self.steps.insert(key, step);
            self.recover_end(key, ended, same_boot);
            return Ok(());
        }
        // A keeper that lives takes the connection; of a dead one this is its end.
        match slot::connect(dir) {
            Ok(keeper) => {
                if !step.is_server() {
                    step.steps_socket = open::serve_steps(dir, &self.steps_line);
                }
                step.stage = Stage::Kept(keepers::attach(key, keeper, &[], &self.events)?);
                self.steps.insert(key, step);
            }
            Err(_) if !same_boot => {
                self.steps.insert(key, step);
                self.end_unrecorded(key, EndCause::Interrupted, RESTARTED);
            }
            Err(_) => {
                let (orders, _nobody) = tokio::sync::mpsc::unbounded_channel();
                step.stage = Stage::Kept(orders);
                self.steps.insert(key, step);
                self.keeper_gone(key);
            }
        }
        Ok(())
    }

    /// After a power cut the record may be safe and the end of the log not.
    fn recover_end(&mut self, key: Key, mut ended: ExitRecord, same_boot: bool) {
        if let Some(output) = self.steps.get_mut(&key).and_then(|step| step.output.as_mut()).filter(|_| !same_boot) {
            let end = output.reader.end().unwrap_or(0);
            ended.final_offset = ended.final_offset.min(end);
        }
        self.over(key, ended);
    }
}
