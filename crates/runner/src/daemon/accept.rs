//! Prepares a new job: fetches its files and the standard input of its commands.

use super::{Daemon, Event, Warm};
use crate::cache::Cache;
use crate::job::{Job, Placing};
use crate::key::{JobKey, Key};
use crate::link::Line;
use crate::step::{Opening, Stage, Step};
use crate::sync::{self, Fetched, NotPlaced};
use crate::tree::Files;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;
use wire::model::crash_point;
use wire::runner::{DesiredJob, DesiredStep, Stdin, SyncTree, What};

/// On a warm start everything up to the first output takes far less; then it travels as one batch.
const WARM_START_WITHIN: Duration = Duration::from_secs(1);
/// Files and folders that are placed by the loop itself.
const ON_THE_SPOT: u64 = 500;

impl Daemon {
    /// A job that is new here. What the steps that came with it read is brought along with its files.
    pub(super) fn accept(&mut self, wanted: DesiredJob, steps: &[DesiredStep], now: Instant) {
        let key = JobKey { job: wanted.job, epoch: wanted.epoch };
        let workdir = sync::workdir(&self.instance.dir, &wanted.workdir, None);
        let stdins: Vec<Stdin> = steps.iter().filter_map(|step| step.stdin.clone()).collect();
        let mut job = Job::new(key);
        job.tell(What::Accepted);
        // What came with the order is small by its rules, and placed on the spot.
        let at_hand = match &wanted.files {
            None => Some(Ok(None)),
            Some(tree) => Files::inline(tree).map(|files| files.map(Some)),
        };
        // A few documents can stand for very many files: those are placed beside the loop, which goes on hearing orders.
        let at_hand = at_hand.filter(|files| !matches!(files, Ok(Some(files)) if files.entries() > ON_THE_SPOT));
        // A snapshot is laid under the files, and is never small.
        let at_hand = at_hand.filter(|_| wanted.base.is_none());
        let at_hand = at_hand.filter(|_| stdins.iter().all(|stdin| self.is_here(stdin)));
        if at_hand.is_some() {
            job.company_until = Some(now + WARM_START_WITHIN);
        }
        match (workdir, at_hand) {
            (Err(why), _) | (_, Some(Err(why))) => job.files = Placing::Failed(why),
            (Ok((workdir, _)), Some(Ok(files))) => {
                if let Warm::Ready(slot) = &self.warm {
                    slot.make_workdir(&workdir);
                }
                placed(&mut job, place(files, &stdins, &workdir, &self.cache, &AtomicBool::new(false)));
            }
            (Ok((workdir, _)), None) => {
                let events = self.events.clone();
                let tell = move |synced| drop(events.send(Event::Synced(key, synced)));
                let trees = wanted.base.iter().chain(&wanted.files).cloned().collect();
                job.files = Placing::UnderWay(self.bring_beside(trees, stdins, workdir, tell));
            }
        }
        job.want(wanted);
        self.jobs.insert(key, job);
    }

    fn is_here(&self, stdin: &Stdin) -> bool {
        stdin.inline.is_some() || self.cache.has(&stdin.hash)
    }

    fn bring_beside(
        &self,
        trees: Vec<SyncTree>,
        stdins: Vec<Stdin>,
        workdir: PathBuf,
        tell: impl FnOnce(Result<Fetched, NotPlaced>) + Send + 'static,
    ) -> AbortHandle {
        let (cache, line) = (self.cache.clone(), self.line.clone());
        let task = tokio::spawn(async move {
            // Dropped with this task: a job that is cut while its files are placed is not given more of them.
            let cut = Cut::default();
            let is_cut = cut.0.clone();
            let synced = match bring(trees, &stdins, cache.clone(), line).await {
                Ok((files, fetched)) => tokio::task::spawn_blocking(move || {
                    let placed = place(files, &stdins, &workdir, &cache, &is_cut);
                    cache.trim();
                    placed.map(|_| fetched)
                })
                .await
                .expect("placing files does not panic"),
                Err(why) => Err(why),
            };
            drop(cut);
            tell(synced);
        });
        task.abort_handle()
    }

    pub(super) fn hear_synced(&mut self, key: JobKey, outcome: Result<Fetched, NotPlaced>) {
        if let Some(job) = self.jobs.get_mut(&key).filter(|job| matches!(job.files, Placing::UnderWay(_))) {
            placed(job, outcome);
            self.go_on_waiting(key);
        }
    }

    pub(super) fn hear_brought(&mut self, key: Key, outcome: Result<Fetched, NotPlaced>) {
        if let Some(step) = self.steps.get_mut(&key).filter(|step| matches!(step.stage, Stage::Waiting(Some(_)))) {
            step.stage = Stage::Ready(opening(outcome.map(drop)));
        }
    }

    /// A step that is new here. Of a job that is synced already, it brings what it reads by itself.
    pub(super) fn add_step(&mut self, key: Key, wanted: DesiredStep, now: Instant) {
        let Some(job) = self.jobs.get_mut(&key.of) else { return };
        let synced = matches!(job.files, Placing::Done);
        let missing = wanted.stdin.clone().filter(|stdin| self.cache.get(&stdin.hash).is_none());
        let mut step = Step::new(key, None, Stage::Waiting(None));
        let workdir = job.wanted.as_ref().map(|wanted| self.instance.dir.join(&wanted.workdir));
        match (missing, workdir) {
            (stdin, Some(workdir)) if synced && (stdin.is_some() || !wanted.restore.is_empty()) => {
                let events = self.events.clone();
                let tell = move |brought| drop(events.send(Event::Brought(key, brought)));
                let stdins = stdin.into_iter().collect();
                step.stage = Stage::Waiting(Some(self.bring_beside(wanted.restore.clone(), stdins, workdir, tell)));
            }
            _ if synced => job.company_until = job.company_until.or(Some(now + WARM_START_WITHIN)),
            _ => {}
        }
        step.wanted = Some(wanted);
        self.steps.insert(key, step);
        self.go_on_waiting(key.of);
    }

    /// What waited for the files of this job goes on, if they are in place or never will be.
    fn go_on_waiting(&mut self, key: JobKey) {
        let placed = match self.jobs.get(&key).map(|job| &job.files) {
            Some(Placing::Done) => Ok(()),
            Some(Placing::Failed(why)) => Err(why.clone()),
            Some(Placing::UnderWay(_)) | None => return,
        };
        for (_, step) in self.steps.range_mut(key.steps()) {
            if matches!(step.stage, Stage::Waiting(None)) {
                step.stage = Stage::Ready(opening(placed.clone()));
            }
        }
    }
}

fn opening(placed: Result<(), NotPlaced>) -> Opening {
    match placed {
        Ok(()) => Opening::Start,
        Err(not_placed) => Opening::Refuse { cause: not_placed.cause, message: not_placed.why },
    }
}

fn placed(job: &mut Job, outcome: Result<Fetched, NotPlaced>) {
    match outcome {
        Ok(fetched) => {
            job.tell(What::SyncComplete { fetched_blobs: fetched.blobs, fetched_bytes: fetched.bytes });
            job.files = Placing::Done;
        }
        Err(why) => job.files = Placing::Failed(why),
    }
}

/// Blocking.
fn place(
    files: impl IntoIterator<Item = Files>,
    stdins: &[Stdin],
    workdir: &std::path::Path,
    cache: &Cache,
    is_cut: &AtomicBool,
) -> Result<Fetched, NotPlaced> {
    let place = || files.into_iter().try_for_each(|files| files.place(workdir, cache, is_cut));
    crash_point!("files.place", place())?;
    stdins.iter().try_for_each(|stdin| sync::place_stdin(Some(stdin), cache))?;
    Ok(Fetched::default())
}

/// Set when it is dropped.
#[derive(Default)]
struct Cut(Arc<AtomicBool>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What has to be fetched before a command can begin: the job's files, and what the command reads.
async fn bring(
    trees: Vec<SyncTree>,
    stdins: &[Stdin],
    cache: Arc<Cache>,
    line: Line,
) -> Result<(Vec<Files>, Fetched), NotPlaced> {
    let missing = stdins.iter().filter(|stdin| stdin.inline.is_none() && !cache.has(&stdin.hash));
    let missing = missing.map(|stdin| (stdin.hash.clone(), stdin.size)).collect();
    let mut fetched = sync::fetch(missing, cache.clone(), line.clone()).await?;
    let mut all = Vec::new();
    for tree in &trees {
        match Files::inline(tree) {
            Some(files) => all.push(files?),
            None => {
                let (files, more) = Files::fetch(tree, cache.clone(), line.clone()).await?;
                all.push(files);
                fetched = fetched.and(more);
            }
        }
    }
    Ok((all, fetched))
}
