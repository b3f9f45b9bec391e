//! Runners with a good token that no row knows, or whose jobs none does: the database was lost, or restored from an older copy. What they
//! say of themselves is written down for the recovery report; nothing that runs there is ended.

use super::AT_ONCE;
use crate::Engine;
use model::instance::Instance;
use model::stub::Stub;
use model::time::{HOUR, MINUTE};
use model::{Failure, Refused, bug, names};
use store::unlisted::{Unlisted, UnlistedJob};
use store::{Lane, Tx};

/// A runner has one job at a time, and a few that have ended.
const MOST_JOBS: usize = 16;
/// A stub is far shorter.
const MOST_STUB_BYTES: usize = 64 << 10;
/// It introduces itself every few seconds; its row need not follow each time.
const NOTED_EVERY_MS: i64 = MINUTE;
/// Longer than a runner waits to be tracked again.
const FORGOTTEN_AFTER_MS: i64 = 25 * HOUR;

/// A runner that is not listed, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnlistedOverview {
    pub runner: Unlisted,
    /// Each with what its stub says, if this installation has sealed it.
    pub jobs: Vec<(UnlistedJob, Option<Stub>)>,
}

impl Engine {
    /// The row of a runner that has proven its name. Without one, or with a job that was sealed here and has no row, it is noted and told
    /// that it is not listed.
    pub async fn listed(&self, mut runner: Unlisted) -> Result<Instance, Failure> {
        runner.jobs.truncate(MOST_JOBS);
        runner.jobs.iter_mut().for_each(|job| {
            job.stub.take_if(|sealed| sealed.text.len() > MOST_STUB_BYTES);
        });
        let name = runner.name.clone();
        let open: Vec<_> = self.sealed(&runner).filter(|(job, _)| !job.ended).map(|(job, _)| job.job).collect();
        let read = move |tx: &mut Tx| {
            let found = store::instance::by_name(tx, &name)?;
            let unknown = |tx: &mut Tx| {
                open.iter().try_fold(false, |any, job| Ok::<_, Failure>(any || store::job::find(tx, *job)?.is_none()))
            };
            match found {
                // One that has ended is told so, whatever it has.
                Some(instance) if !instance.status.is_open() || !unknown(tx)? => Ok(Some(instance)),
                _ => Ok(None),
            }
        };
        let found = self.store.read("runner.listed", read).await?;
        match found {
            Some(instance) => Ok(instance),
            None if bug!(unlisted_disowned) => {
                Err(Refused::Gone { what: "instance", why: "it is not known".into() }.into())
            }
            None => {
                let name = runner.name.clone();
                self.note_unlisted(runner).await?;
                Err(Refused::Unlisted { name }.into())
            }
        }
    }

    async fn note_unlisted(&self, runner: Unlisted) -> Result<(), Failure> {
        let named = names::parse(&runner.name).into_iter().flat_map(|name| name.ids());
        let seen = highest(named.chain(self.sealed(&runner).flat_map(|(_, stub)| stub_ids(&stub))));
        self.pass_ids(seen).await?;
        let name = runner.name.clone();
        let read = move |tx: &mut Tx| Ok((store::unlisted::find(tx, &name)?, tx.at()));
        let (before, now) = self.store.read("runner.unlisted", read).await?;
        let is_same = |before: Unlisted| {
            now.since(before.seen_at) < NOTED_EVERY_MS
                && before == Unlisted { seen_at: before.seen_at, ..runner.clone() }
        };
        if before.is_some_and(is_same) {
            return Ok(());
        }
        self.store.write(Lane::Low, "runner.unlisted", move |tx| store::unlisted::seen(tx, &runner)).await
    }

    /// The jobs that this installation has sealed, for this very machine.
    pub(super) fn sealed<'a>(&'a self, runner: &'a Unlisted) -> impl Iterator<Item = (&'a UnlistedJob, Stub)> {
        runner.jobs.iter().filter_map(|job| Some((job, self.open_stub(runner, job)?)))
    }

    fn open_stub(&self, runner: &Unlisted, job: &UnlistedJob) -> Option<Stub> {
        let stub = self.context.installation.open_stub(job.stub.as_ref()?)?;
        let is_its = stub.instance == runner.name && (stub.job, stub.epoch) == (job.job, job.epoch);
        is_its.then_some(stub)
    }

    /// In the order of their names, after this one.
    pub async fn unlisted(&self, after: String, limit: i64) -> Result<Vec<UnlistedOverview>, Failure> {
        let read = move |tx: &mut Tx| store::unlisted::page(tx, &after, limit);
        let found = self.store.read("runner.unlisted", read).await?;
        let picture = |runner: Unlisted| {
            let jobs = runner.jobs.iter().map(|job| (job.clone(), self.open_stub(&runner, job))).collect();
            UnlistedOverview { runner, jobs }
        };
        Ok(found.into_iter().map(picture).collect())
    }

    pub(super) async fn forget_silent_runners(&self) -> Result<(), Failure> {
        let forget = move |tx: &mut Tx| {
            let since = tx.at() - FORGOTTEN_AFTER_MS;
            store::unlisted::forget_silent(tx, since, AT_ONCE)
        };
        while self.store.write(Lane::Low, "runner.unlisted", forget).await? == AT_ONCE as u64 {}
        Ok(())
    }

    /// A database that is older than what is out there must not give out ids that are in use there.
    pub(super) async fn pass_ids(&self, seen: Option<i64>) -> Result<(), Failure> {
        use std::sync::atomic::Ordering::Relaxed;
        let Some(seen) = seen.filter(|seen| *seen > self.ids_passed.load(Relaxed)) else { return Ok(()) };
        self.store.pass_ids(seen).await?;
        // After the write: were it noted before, a write that failed would never be tried again.
        self.ids_passed.fetch_max(seen, Relaxed);
        Ok(())
    }
}

/// Without those that nothing of ours can have: a user who makes a name, for example as a folder, chooses its ids.
pub(super) fn highest(ids: impl Iterator<Item = i64>) -> Option<i64> {
    ids.filter(|id| *id <= names::MAX_SEEN_ID).max()
}

fn stub_ids(stub: &Stub) -> impl Iterator<Item = i64> + use<> {
    [Some(stub.run.0), Some(stub.job.0), stub.step.map(|step| step.id.0)].into_iter().flatten()
}
