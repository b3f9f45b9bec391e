//! Bytes that outlive a run: artifacts by name, files by content. The row stands before the bytes; unique in its attempt.

use crate::{Engine, view};
use model::{ArtifactId, Failure, InstanceId, JobId, OrgId, Refused, RunId};
use store::Lane;
use store::artifact::Artifact;
use store::blob::{BlobHash, BlobName, Download, Upload};

/// Artifacts of one run in sum.
pub const RUN_BYTES: i64 = 10 * 1024 * 1024 * 1024;

impl Engine {
    /// A runner is about to send an artifact of a job it has.
    pub async fn announce_artifact(
        &self,
        instance: InstanceId,
        job: JobId,
        epoch: i64,
        path: String,
    ) -> Result<Artifact, Failure> {
        if !model::spec::is_inside(&path) {
            return Err(Refused::invalid("path", format!("`{path}` leaves the run's folder")).into());
        }
        self.store
            .write(Lane::Normal, "artifact.announce", move |tx| {
                let job = store::job::find(tx, job)?.ok_or_else(|| Refused::not_found("job", job))?;
                if job.instance != Some(instance) || job.epoch != epoch || job.fenced {
                    return Err(Refused::OldEpoch { job: job.id.to_string(), given: epoch, current: job.epoch }.into());
                }
                if store::artifact::bytes_of(tx, job.run)? >= RUN_BYTES {
                    return Err(Refused::TooLarge { what: "the run's artifacts", limit: "10 GB".into() }.into());
                }
                store::artifact::announce(tx, job.org, job.run, job.attempt, &path)
            })
            .await
    }

    pub async fn keep_artifact(&self, artifact: &Artifact, upload: Upload) -> Result<(), Failure> {
        let name = name_of(artifact);
        let stored = upload.keep_async(name).await?;
        let (id, hash) = (artifact.id, stored.hash.to_string());
        self.store
            .write(Lane::Normal, "artifact.keep", move |tx| store::artifact::finalise(tx, id, stored.size, &hash))
            .await
    }

    pub async fn artifacts(&self, org: OrgId, run: RunId, after: i64, limit: i64) -> Result<Vec<Artifact>, Failure> {
        self.store
            .read("artifact.of_run", move |tx| {
                view::owned(tx, org, run)?;
                store::artifact::of_run(tx, run, after, limit)
            })
            .await
    }

    pub async fn open_artifact(&self, org: OrgId, run: RunId, id: ArtifactId) -> Result<(Artifact, Download), Failure> {
        let found = self.store.glance("artifact.find", move |tx| store::artifact::find(tx, id)).await?;
        let artifact =
            found.filter(|a| a.org == org && a.run == run).ok_or_else(|| Refused::not_found("artifact", id))?;
        if artifact.deleted_at.is_some() {
            return Err(Refused::Gone { what: "the artifact", why: "its 30 days are over".into() }.into());
        }
        if artifact.state != "final" {
            return Err(Refused::Conflict { why: "the artifact is still being uploaded".into() }.into());
        }
        let download = self.blobs.open(&name_of(&artifact))?;
        Ok((artifact, download))
    }

    /// Which of these contents this org has not sent yet.
    pub async fn missing_blobs(&self, org: OrgId, hashes: Vec<String>) -> Result<Vec<String>, Failure> {
        let (mut missing, mut there) = (Vec::new(), Vec::new());
        for text in hashes {
            let hash: BlobHash = text
                .parse()
                .map_err(|_| Refused::invalid("hashes", format!("`{text}` is not a BLAKE3 hash in hex")))?;
            if !self.blobs.has(&BlobName::Content { org, hash })? {
                missing.push(text);
            } else {
                there.push(text);
            }
        }
        if there.is_empty() {
            return Ok(sorted(missing));
        }
        let unnamed = self
            .store
            .read("blob.rows", move |tx| {
                let mut unnamed = Vec::new();
                for hash in &there {
                    if !store::content::is_here(tx, org, hash)? {
                        unnamed.push(hash.clone());
                    }
                }
                Ok(unnamed)
            })
            .await?;
        missing.extend(unnamed); // bytes without a row are on their way out
        Ok(sorted(missing))
    }

    pub async fn keep_blob(&self, org: OrgId, hash: &str, upload: Upload) -> Result<(), Failure> {
        let hash: BlobHash =
            hash.parse().map_err(|_| Refused::invalid("hash", format!("`{hash}` is not a BLAKE3 hash in hex")))?;
        let text = hash.to_string();
        self.store.write(Lane::Normal, "blob.announce", move |tx| store::content::announce(tx, org, &text)).await?;
        upload.keep_content_async(org, Some(hash)).await.map(drop)
    }

    pub fn open_blob(&self, org: OrgId, hash: &str) -> Result<Download, Failure> {
        let hash: BlobHash =
            hash.parse().map_err(|_| Refused::invalid("hash", format!("`{hash}` is not a BLAKE3 hash in hex")))?;
        self.blobs.open(&BlobName::Content { org, hash })
    }
}

fn name_of(artifact: &Artifact) -> BlobName {
    BlobName::Artifact { org: artifact.org, run: artifact.run, attempt: artifact.attempt, artifact: artifact.id }
}

fn sorted(mut hashes: Vec<String>) -> Vec<String> {
    hashes.sort();
    hashes.dedup();
    hashes
}
