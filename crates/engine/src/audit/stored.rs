//! Invariants 4, 5 and 8: what is stored beside the runs. Artifacts have an owner and a name of their own and are deleted in time;
//! an idempotency key has one response.

use super::{Audit, PAGE};
use crate::Engine;
use crate::artifact::{LEASE_MS, name_of};
use model::time::{Outage, deadline_without};
use model::{ArtifactId, Failure, RunId, Timestamp};
use std::collections::BTreeSet;
use store::artifact::Artifact;
use store::{Tx, worker};

/// What one look at a page of artifacts knows beside them.
struct Page {
    artifacts: Vec<Artifact>,
    attempts: Vec<i64>,
    outages: Vec<Outage>,
    at: Timestamp,
}

impl Engine {
    /// 4 and 8 for the artifacts of one run.
    pub(super) async fn audit_artifacts(&self, run: RunId, audit: &mut Audit) -> Result<(), Failure> {
        let (mut names, mut after) = (BTreeSet::new(), 0);
        loop {
            let page = self.store.read("audit.artifacts", move |tx| page(tx, run, after)).await?;
            let Some(last) = page.artifacts.last() else { return Ok(()) };
            after = last.id.0;
            for artifact in &page.artifacts {
                audit.count("artifacts");
                let unique = names.insert((artifact.attempt, artifact.path.clone()));
                audit.must(unique, "4 artifacts", artifact.id, || {
                    format!("another of attempt {} has the name {}", artifact.attempt, artifact.path)
                });
                audit.must(page.attempts.contains(&artifact.attempt), "4 artifacts", artifact.id, || {
                    format!("of attempt {}, which {run} does not have", artifact.attempt)
                });
                self.expiry(artifact, &page, audit)?;
            }
            if (page.artifacts.len() as i64) < PAGE {
                return Ok(());
            }
        }
    }

    /// 8: the sweep deletes bytes, then marks the row. A download may delay it by its lease.
    fn expiry(&self, artifact: &Artifact, page: &Page, audit: &mut Audit) -> Result<(), Failure> {
        let Some(expires) = artifact.expires_at else { return Ok(()) };
        if artifact.deleted_at.is_some() {
            let gone = artifact.state == "deleted" && !self.blobs.has(&name_of(artifact))?;
            audit.must(gone, "8 expiry", artifact.id, || "marked as deleted, and its bytes are there".into());
            return Ok(());
        }
        let from = expires.max(artifact.lease_until.unwrap_or(expires));
        let within = self.context.config.timings.sweep_every_ms + LEASE_MS;
        let due = deadline_without(from, within, &page.outages);
        audit.must(due > page.at, "8 expiry", artifact.id, || {
            format!("its bytes expired at {expires:?}, and their deletion is overdue since {due:?}")
        });
        Ok(())
    }

    /// 4 for artifacts that no run's audit meets.
    pub(super) async fn audit_unowned_artifacts(&self, audit: &mut Audit) -> Result<(), Failure> {
        let mut after = ArtifactId(0);
        loop {
            let found = self.store.read("audit.unowned", move |tx| store::artifact::unowned(tx, after, PAGE)).await?;
            let Some(last) = found.last() else { return Ok(()) };
            after = last.id;
            for artifact in &found {
                audit.must(false, "4 artifacts", artifact.id, || {
                    format!("{} has no run {}", artifact.org, artifact.run)
                });
            }
        }
    }

    /// 5: a key is stored with the effect of its request and its response, in one transaction.
    pub(super) async fn audit_keys(&self, audit: &mut Audit) -> Result<(), Failure> {
        let mut last = None;
        loop {
            let after = last.clone();
            let keys =
                self.store.read("audit.keys", move |tx| store::idempotency::after(tx, after.as_ref(), PAGE)).await?;
            if keys.is_empty() {
                return Ok(());
            }
            for key in &keys {
                audit.count("idempotency keys");
                let subject = format!("{} {} {}", key.org, key.route, key.key);
                audit.must(key.rows == 1, "5 keys", &subject, || format!("stored {} times", key.rows));
                audit.must(key.answers == (key.rows, key.rows), "5 keys", &subject, || {
                    "stored without its response".into()
                });
            }
            last = keys.into_iter().last();
        }
    }
}

fn page(tx: &mut Tx, run: RunId, after: i64) -> Result<Page, Failure> {
    let artifacts = store::artifact::of_run(tx, run, after, PAGE)?;
    if artifacts.is_empty() {
        return Ok(Page { artifacts, attempts: Vec::new(), outages: Vec::new(), at: tx.at() });
    }
    let earliest = artifacts.iter().filter_map(|artifact| artifact.expires_at).min();
    Ok(Page {
        attempts: store::attempt::of_run(tx, run)?.iter().map(|attempt| attempt.number).collect(),
        outages: earliest.map_or(Ok(Vec::new()), |from| worker::outages(tx, from))?,
        artifacts,
        at: tx.at(),
    })
}
