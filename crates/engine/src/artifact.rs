//! Artifacts of runs. The engine writes the row and counts its bytes against the run's limit, then the runner uploads the bytes; both are
//! kept for 30 days after the run's end. A name is unique in its attempt.

use crate::{Engine, view};
use model::time::HOUR;
use model::{ArtifactId, Failure, InstanceId, JobId, OrgId, Refused, RunId, bug, tree};
use store::Lane;
use store::artifact::Announced;
pub use store::artifact::{Artifact, EntryKind};
use store::blob::{BlobName, Download, Upload};

/// Artifacts of one run in sum.
pub const RUN_BYTES: i64 = 10 * 1024 * 1024 * 1024;
/// A download delays deletion by this much, but never beyond the second figure past the expiry.
pub(crate) const LEASE_MS: i64 = HOUR;
const LEASE_AT_MOST_MS: i64 = 24 * HOUR;

/// One artifact as a runner announces it.
#[derive(Debug, Clone)]
pub struct Announcement {
    pub job: JobId,
    pub epoch: i64,
    pub path: String,
    pub size: i64,
    pub what: EntryKind,
}

impl Engine {
    /// A runner is about to send an artifact of a job it has: its name and its bytes are reserved under the run's lock, so that uploads
    /// side by side cannot exceed the run's limit together. Folders and links have no bytes and are final at once.
    pub async fn announce_artifact(&self, instance: InstanceId, new: Announcement) -> Result<Artifact, Failure> {
        check(&new)?;
        let job = new.job;
        let found = self.store.read_inline("artifact.job", move |tx| store::job::find(tx, job)).await?;
        let run = found.ok_or_else(|| Refused::not_found("job", job))?.run;
        self.store
            .write(Lane::Normal.of(run), "artifact.announce", move |tx| {
                let run = store::run::lock(tx, run)?;
                let job = store::job::find(tx, job)?.ok_or_else(|| Refused::not_found("job", job))?;
                if job.instance != Some(instance) || job.epoch != new.epoch || job.fenced || job.status.is_end() {
                    let (given, current) = (new.epoch, job.epoch);
                    return Err(Refused::OldEpoch { job: job.id.to_string(), given, current }.into());
                }
                let before = store::artifact::by_path(tx, run.id, job.attempt, &new.path)?.map_or(0, |a| a.size);
                if store::artifact::reserve(tx, run.id, new.size - before)? > RUN_BYTES {
                    return Err(Refused::TooLarge { what: "the run's artifacts", limit: "10 GB".into() }.into());
                }
                let Announcement { path, size, what, .. } = &new;
                let announced = Announced { org: run.org, run: run.id, attempt: job.attempt, path, size: *size, what };
                let artifact = store::artifact::announce(tx, &announced)?;
                if !matches!(what, EntryKind::File { .. }) {
                    store::artifact::finalise(tx, (run.id, artifact.id), 0, "")?;
                }
                Ok(artifact)
            })
            .await
    }

    pub async fn keep_artifact(&self, artifact: &Artifact, upload: Upload) -> Result<(), Failure> {
        let name = name_of(artifact);
        let stored = upload.stored();
        if stored.size != artifact.size {
            let why = format!("{} bytes were announced and {} came", artifact.size, stored.size);
            return Err(Refused::invalid("size", why).into());
        }
        upload.keep_async(name.clone()).await?;
        let (id, hash) = ((artifact.run, artifact.id), stored.hash.to_string());
        let is_final = self
            .store
            .write(Lane::Normal, "artifact.keep", move |tx| store::artifact::finalise(tx, id, stored.size, &hash))
            .await?;
        if !is_final {
            self.blobs.delete(&name)?;
            return Err(Refused::Conflict { why: "the run ended before this artifact had arrived".into() }.into());
        }
        Ok(())
    }

    pub async fn artifacts(&self, org: OrgId, run: RunId, after: i64, limit: i64) -> Result<Vec<Artifact>, Failure> {
        self.store
            .read("artifact.of_run", move |tx| {
                view::owned(tx, org, run)?;
                store::artifact::of_run(tx, run, after, limit)
            })
            .await
    }

    /// The bytes of an artifact that has not expired. Near its expiry the download takes a lease first, so that a sweep does not delete
    /// what is being read.
    pub async fn open_artifact(&self, org: OrgId, run: RunId, id: ArtifactId) -> Result<(Artifact, Download), Failure> {
        let (found, at) =
            self.store.read_inline("artifact.find", move |tx| Ok((store::artifact::find(tx, id)?, tx.at()))).await?;
        let artifact =
            found.filter(|a| a.org == org && a.run == run).ok_or_else(|| Refused::not_found("artifact", id))?;
        if artifact.deleted_at.is_some() || artifact.expires_at.is_some_and(|expires| expires <= at) {
            return Err(Refused::Gone { what: "the artifact", why: "the time it is kept is over".into() }.into());
        }
        match (artifact.state.as_str(), &artifact.what) {
            ("final", EntryKind::File { .. }) => {}
            ("final", what) => {
                let why = format!("`{}` is a {}, which has no bytes", artifact.path, what.kind());
                return Err(Refused::Conflict { why }.into());
            }
            ("failed", _) => {
                return Err(Refused::Conflict { why: "the artifact was not uploaded to its end".into() }.into());
            }
            _ => return Err(Refused::Conflict { why: "the artifact is still being uploaded".into() }.into()),
        }
        let expires = artifact.expires_at.filter(|expires| *expires < at + LEASE_MS);
        if let Some(expires) = expires.filter(|_| !bug!(download_lease_ignored)) {
            let until = (at + LEASE_MS).min(expires + LEASE_AT_MOST_MS);
            self.store.write(Lane::Normal, "artifact.lease", move |tx| store::artifact::lease(tx, id, until)).await?;
        }
        let download = self.blobs.open(&bytes_of(&artifact)?)?;
        Ok((artifact, download))
    }
}

fn check(new: &Announcement) -> Result<(), Refused> {
    if !tree::is_path(&new.path) {
        return Err(Refused::invalid("path", format!("`{}` leaves the run's folder", new.path)));
    }
    if new.size < 0 {
        return Err(Refused::invalid("size", "must not be negative"));
    }
    match &new.what {
        EntryKind::File { mode } if *mode > 0o777 => Err(Refused::invalid("mode", "permission bits only")),
        EntryKind::Link { target } if !tree::stays_inside(target, new.path.split('/').count() - 1) => {
            Err(Refused::invalid("target", format!("`{}` leads out of the run's folder", new.path)))
        }
        _ => Ok(()),
    }
}

/// Where its bytes are.
fn bytes_of(artifact: &Artifact) -> Result<BlobName, Failure> {
    match &artifact.hash {
        Some(hash) if artifact.in_contents => Ok(BlobName::Content { org: artifact.org, hash: hash.parse()? }),
        _ => Ok(name_of(artifact)),
    }
}

pub(crate) fn name_of(artifact: &Artifact) -> BlobName {
    BlobName::Artifact { org: artifact.org, run: artifact.run, attempt: artifact.attempt, artifact: artifact.id }
}
