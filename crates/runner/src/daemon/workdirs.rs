//! Removes the folders of jobs that the desired document does not list any more (their hold has ended).

use super::Daemon;
use crate::sync;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use wire::model::crash_point;

/// Before the name of a workdir that is being removed.
const SET_ASIDE: &str = ".removed_";

impl Daemon {
    /// Removes workdirs that are not kept. Only folders that a runner has made, and never one that an open job uses.
    pub(super) fn tidy_workdirs(&self, mut kept: BTreeSet<String>) {
        let in_use = self.jobs.values().filter(|job| self.steps_of(job.key).any(|step| !step.is_ended()));
        for job in in_use {
            // A job whose folder is not known yet may use any.
            let Some(wanted) = &job.wanted else { return };
            kept.insert(wanted.workdir.clone());
        }
        let unwanted = set_aside(&self.instance.dir, &kept);
        if !unwanted.is_empty() {
            tokio::task::spawn_blocking(move || unwanted.iter().for_each(|dir| remove(dir)));
        }
    }
}

/// Renames them first, at once: a folder of the same name made a moment later is another.
fn set_aside(instance: &Path, kept: &BTreeSet<String>) -> Vec<PathBuf> {
    let mut unwanted = Vec::new();
    for entry in std::fs::read_dir(instance).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let aside = instance.join(format!("{SET_ASIDE}{name}"));
        if name.starts_with(SET_ASIDE) {
            unwanted.push(entry.path()); // a runner before this one had not finished
        } else if sync::workdir(instance, &name, None).is_ok() && !kept.contains(&name) {
            match crash_point!("workdir.remove", std::fs::rename(entry.path(), &aside)) {
                Ok(()) => unwanted.push(aside),
                Err(error) => tracing::warn!(%name, %error, "a workdir could not be removed"),
            }
        }
    }
    unwanted
}

fn remove(dir: &Path) {
    if let Err(error) = folder::remove(dir) {
        tracing::warn!(dir = %dir.display(), %error, "a workdir could not be removed");
    }
}
