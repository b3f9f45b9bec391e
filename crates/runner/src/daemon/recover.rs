//! What a runner finds when it starts: keepers that work on, jobs that ended meanwhile, and what a crash left half done.

use super::{Daemon, keepers};
use crate::exit::{self, ExitRecord};
use crate::job::{Job, Stage};
use crate::journal::Begun;
use crate::key::Key;
use crate::{contain, slot};
use std::io;
use std::path::Path;
use wire::runner::{EndCause, What};

impl Daemon {
    pub(super) fn recover(&mut self) -> io::Result<()> {
        let jobs = self.instance.jobs();
        slot::discard_waiting(&jobs);
        self.instance.layout.remove_left(&self.instance.group_prefix());
        let known = self.journal.known().clone();
        for (key, about) in &known {
            self.recover_job(*key, about, &jobs.join(key.to_string()))?;
        }
        for (key, dir) in slot::job_dirs(&jobs).into_iter().filter(|(key, _)| !known.contains_key(key)) {
            // Forgotten, but its folder outlived the runner that forgot it.
            contain::end_all(&self.instance.dir, &dir, key, None);
            slot::discard(&dir);
        }
        self.note_inventory();
        Ok(())
    }

    fn recover_job(&mut self, key: Key, about: &Begun, dir: &Path) -> io::Result<()> {
        let same_boot = about.boot == self.boot_id;
        if !dir.exists() && same_boot {
            // Journalled, but the folder never became the job's: no order was given.
            return self.journal.forget(key);
        }
        let mut job = Job::new(key, None, Stage::Over);
        if !dir.exists() {
            self.jobs.insert(key, job);
            let message = "the host was restarted; nothing of the job is left".to_owned();
            self.end_without_record(key, EndCause::KeeperDied, message, true);
            return Ok(());
        }
        job.output_in(dir);
        job.tell(What::Accepted);
        job.tell(What::SyncComplete { fetched_blobs: 0, fetched_bytes: 0 });
        if let Some(ended) = exit::read(dir) {
            self.jobs.insert(key, job);
            self.recover_end(key, ended, same_boot);
            return Ok(());
        }
        // A keeper that lives takes the connection; of a dead one this is its end.
        match slot::connect(dir) {
            Ok(keeper) => {
                job.stage = Stage::Kept(keepers::attach(key, keeper, &[], &self.events)?);
                self.jobs.insert(key, job);
            }
            Err(_) => {
                let (orders, _nobody) = tokio::sync::mpsc::unbounded_channel();
                job.stage = Stage::Kept(orders);
                self.jobs.insert(key, job);
                self.keeper_gone(key);
            }
        }
        Ok(())
    }

    /// After a power cut the record may be safe and the end of the log not.
    fn recover_end(&mut self, key: Key, mut ended: ExitRecord, same_boot: bool) {
        if let Some(output) = self.jobs.get_mut(&key).and_then(|job| job.output.as_mut()).filter(|_| !same_boot) {
            let end = output.reader.end().unwrap_or(0);
            ended.final_offset = ended.final_offset.min(end);
        }
        self.over(key, ended);
    }
}
