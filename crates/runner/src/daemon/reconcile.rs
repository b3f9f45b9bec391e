//! Makes this machine what the desired document says. Level-triggered: every document is applied as a whole, and one
//! heard twice changes nothing.

use super::{DELIVER_WITHIN, Daemon, Event, Warm};
use crate::artifacts::Shortfall;
use crate::cache::Cache;
use crate::cgroup::Groups;
use crate::instance::Instance;
use crate::job::{self, Job, Opening, Stage};
use crate::key::Key;
use crate::link::Line;
use crate::orders::{KeeperOrder, Start};
use crate::sync::{self, Fetched, NotPlaced};
use crate::tree::Files;
use crate::{beneath, slot};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wire::model::crash_point;
use wire::runner::{Desired, DesiredJob, DesiredState, EndCause, Stdin, SyncTree, What};

/// On a warm start everything up to the first output takes far less; then it travels as one batch.
const WARM_START_WITHIN: Duration = Duration::from_secs(1);
/// Files and folders that are placed by the loop itself.
const ON_THE_SPOT: u64 = 500;
/// Before the name of a workdir that is being removed.
const SET_ASIDE: &str = ".removed_";

impl Daemon {
    /// `fresh`: told at registration, so its log offsets are what is durable now.
    pub(super) fn reconcile(&mut self, desired: Desired, fresh: bool, now: Instant) {
        self.version = desired.version;
        let named: BTreeSet<Key> = desired.jobs.iter().map(key_of).collect();
        for job in self.jobs.values_mut() {
            job.listed = named.contains(&job.key);
        }
        let mut workdirs: BTreeSet<String> = desired.kept_workdirs.into_iter().collect();
        for wanted in desired.jobs {
            workdirs.insert(wanted.workdir.clone());
            match self.jobs.get_mut(&key_of(&wanted)) {
                Some(job) => learn(job, wanted, fresh),
                None if self.closing.is_none() => self.accept(wanted, now),
                None => {}
            }
        }
        for key in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.apply(key);
        }
        // The command first: what nobody keeps goes while it begins.
        self.open_ready(now);
        self.tidy_workdirs(workdirs);
        if desired.shutdown {
            self.close(DELIVER_WITHIN, now);
        }
    }

    fn accept(&mut self, wanted: DesiredJob, now: Instant) {
        let key = key_of(&wanted);
        let workdir = sync::workdir(&self.instance.dir, &wanted.workdir, wanted.working_dir.as_deref());
        let mut job = Job::new(key, None, Stage::Ready(Opening::Start));
        job.tell(What::Accepted);
        // What came with the order is small by its rules, and placed on the spot.
        let at_hand = match &wanted.files {
            None => Some(Ok(None)),
            Some(tree) => Files::inline(tree).map(|files| files.map(Some)),
        };
        // A few documents can stand for very many files: those are placed beside the loop, which goes on hearing orders.
        let at_hand = at_hand.filter(|files| !matches!(files, Ok(Some(files)) if files.entries() > ON_THE_SPOT));
        let stdin = wanted.stdin.clone();
        let is_here = |stdin: &Stdin| stdin.inline.is_some() || self.cache.has(&stdin.hash);
        let at_hand = at_hand.filter(|_| stdin.as_ref().is_none_or(is_here));
        if at_hand.is_some() {
            job.company_until = Some(now + WARM_START_WITHIN);
        }
        match (workdir, at_hand) {
            (Err(why), _) | (_, Some(Err(why))) => refuse(&mut job, why),
            (Ok((workdir, _)), Some(Ok(files))) => {
                if let Warm::Ready(slot) = &self.warm {
                    slot.make_workdir(&workdir);
                }
                let place =
                    || files.map_or(Ok(()), |files| files.place(&workdir, &self.cache, &AtomicBool::new(false)));
                let placed = crash_point!("files.place", place());
                let placed = placed.and_then(|()| sync::place_stdin(stdin.as_ref(), &self.cache));
                synced(&mut job, placed.map(|()| Fetched::default()));
            }
            (Ok((workdir, _)), None) => {
                let (tree, cache, line) = (wanted.files.clone(), self.cache.clone(), self.line.clone());
                let events = self.events.clone();
                let task = tokio::spawn(async move {
                    // Dropped with this task: a job that is cut while its files are placed is not given more of them.
                    let cut = Cut::default();
                    let is_cut = cut.0.clone();
                    let synced = match bring(tree, stdin.as_ref(), cache.clone(), line).await {
                        Ok((files, fetched)) => tokio::task::spawn_blocking(move || {
                            let place = || files.map_or(Ok(()), |files| files.place(&workdir, &cache, &is_cut));
                            let placed = crash_point!("files.place", place());
                            let placed = placed.and_then(|()| sync::place_stdin(stdin.as_ref(), &cache));
                            cache.trim();
                            placed.map(|()| fetched)
                        })
                        .await
                        .expect("placing files does not panic"),
                        Err(why) => Err(why),
                    };
                    drop(cut);
                    let _ = events.send(Event::Synced(key, synced));
                });
                job.stage = Stage::Syncing(task.abort_handle());
            }
        }
        job.want(wanted);
        self.jobs.insert(key, job);
    }

    pub(super) fn hear_synced(&mut self, key: Key, outcome: Result<Fetched, NotPlaced>) {
        if let Some(job) = self.jobs.get_mut(&key)
            && matches!(job.stage, Stage::Syncing(_))
        {
            synced(job, outcome);
        }
    }

    /// Brings one job nearer to what is wanted of it.
    pub(super) fn apply(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        match (&job.stage, job.state()) {
            (Stage::Over, _) => self.settle_over(key),
            (Stage::Syncing(_) | Stage::Ready(_) | Stage::Uploading(_), DesiredState::Aborted) => {
                self.cut(key, EndCause::Aborted, "aborted before it began");
            }
            (Stage::Syncing(_) | Stage::Ready(_), DesiredState::Stopped) => {
                self.cut(key, EndCause::Stopped, "stopped before it began");
            }
            // Not begun, so it stands still as it is.
            (Stage::Syncing(_) | Stage::Ready(_), DesiredState::Frozen) if std::mem::take(&mut job.unanswered) => {
                job.tell(What::Froze);
            }
            (Stage::Syncing(_) | Stage::Ready(_), DesiredState::Running) if std::mem::take(&mut job.unanswered) => {
                job.tell(What::Thawed);
            }
            // Its keeper does what it is told once more, and says so.
            (Stage::Kept(_), state) if job.ordered != Some(state) || job.unanswered => self.order(key, state),
            _ => {}
        }
    }

    fn order(&mut self, key: Key, state: DesiredState) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let within_ms = job.wanted.as_ref().map_or(0, |wanted| wanted.stop_duration_ms);
        let journalled = match state {
            DesiredState::Running | DesiredState::Frozen => self.journal.frozen(key, state == DesiredState::Frozen),
            _ => Ok(()),
        };
        if let Err(error) = journalled {
            tracing::error!(%key, %error, "the journal cannot be written");
        }
        job.order(match state {
            DesiredState::Running => KeeperOrder::Thaw,
            DesiredState::Frozen => KeeperOrder::Freeze,
            DesiredState::Stopped => KeeperOrder::Stop { cause: EndCause::Stopped, within_ms },
            DesiredState::Aborted => KeeperOrder::Abort { cause: EndCause::Aborted },
            DesiredState::Unknown => return, // of a later version: what runs, runs on
        });
        (job.ordered, job.unanswered) = (Some(state), false);
    }

    /// Ends a job at once, wherever it stands.
    pub(super) fn cut(&mut self, key: Key, cause: EndCause, message: &str) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        match &job.stage {
            Stage::Syncing(task) => {
                task.abort();
                job.stage = Stage::Ready(Opening::Refuse { cause, message: message.to_owned() });
            }
            Stage::Ready(_) => job.stage = Stage::Ready(Opening::Refuse { cause, message: message.to_owned() }),
            Stage::Kept(_) => {
                job.order(KeeperOrder::Abort { cause });
                job.ordered = Some(DesiredState::Aborted);
            }
            Stage::Uploading(task) => {
                task.abort();
                let problems = vec!["the upload of artifacts was cut short".to_owned()];
                self.tell_end(key, &Shortfall { problems, ..Shortfall::default() });
            }
            Stage::Containing | Stage::Over | Stage::Ended => {}
        }
    }

    /// The control plane wants to hear no more of it: it ends here, and nothing more is told.
    pub(super) fn disown(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        tracing::warn!(%key, "the control plane disowns this job: its processes are ended");
        job.refused = true;
        job.facts.clear();
        self.cut(key, EndCause::Aborted, "disowned by the control plane");
    }

    /// Gives waiting slots to waiting jobs.
    pub(super) fn open_ready(&mut self, now: Instant) {
        let mut ready = self.jobs.values().filter(|job| self.may_open(job)).map(|job| job.key);
        let Some(key) = ready.next() else { return };
        drop(ready);
        match std::mem::replace(&mut self.warm, Warm::None) {
            Warm::Ready(slot) => {
                if let Err(error) = self.open(key, slot) {
                    self.could_not_open(key, &error);
                }
                self.slot_due = None;
            }
            // One that is being prepared stays so: a second would be nobody's.
            unready => {
                self.warm = unready;
                self.prepare_slot_now(now);
            }
        }
    }

    fn may_open(&self, job: &Job) -> bool {
        match &job.stage {
            Stage::Ready(Opening::Refuse { .. }) => true,
            // Two epochs of one job never run side by side.
            Stage::Ready(Opening::Start) => {
                let other = |other: &Job| other.key.job == job.key.job && other.has_processes();
                job.state() == DesiredState::Running && self.closing.is_none() && !self.jobs.values().any(other)
            }
            _ => false,
        }
    }

    /// Journal first, then the folder is the job's, then the keeper hears what to do.
    fn open(&mut self, key: Key, mut slot: slot::Slot) -> io::Result<()> {
        let job = self.jobs.get_mut(&key).expect("it was just found");
        let Stage::Ready(opening) = &job.stage else { return Ok(()) };
        let opening = opening.clone();
        let order = match &opening {
            Opening::Start => {
                let limits = job.wanted.as_ref().map(|wanted| wanted.limits).unwrap_or_default();
                let groups = slot.limit(&self.instance.layout, limits)?;
                start_order(job, &self.instance, &self.cache, groups)?
            }
            Opening::Refuse { cause, message } => KeeperOrder::Refuse { cause: *cause, message: message.clone() },
        };
        self.journal.begins(key, &self.boot_id)?;
        slot.assign(key)?;
        job.starts += 1;
        job.ordered = (opening == Opening::Start).then_some(DesiredState::Running);
        job.opening = Some(opening);
        job.output_in(&slot.dir);
        let link = KeeperOrder::Link { up: *self.up.borrow() };
        let keeper = super::keepers::attach(key, slot.keeper, &[link, order], &self.events)?;
        job.stage = Stage::Kept(keeper);
        Ok(())
    }

    fn could_not_open(&mut self, key: Key, error: &io::Error) {
        tracing::error!(%key, %error, "a job could not be opened");
        let cause = if super::keepers::is_full(error) { EndCause::DiskFull } else { EndCause::ExecutorError };
        self.end_without_record(key, cause, format!("the runner could not start it: {error}"), false);
    }

    /// Workdirs nobody keeps go. Only folders of our own making, never one a job here still uses.
    fn tidy_workdirs(&self, mut kept: BTreeSet<String>) {
        let in_use = self.jobs.values().filter(|job| !job.is_ended());
        kept.extend(in_use.filter_map(|job| job.wanted.as_ref()).map(|wanted| wanted.workdir.clone()));
        // A job whose folder is not known yet may use any.
        if self.jobs.values().any(|job| job.wanted.is_none() && !job.is_ended()) {
            return;
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
    if let Err(error) = crate::folder::remove(dir) {
        tracing::warn!(dir = %dir.display(), %error, "a workdir could not be removed");
    }
}

/// Set when it is dropped.
#[derive(Default)]
struct Cut(Arc<AtomicBool>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What has to be fetched before a job can begin: its files, and what its command reads.
async fn bring(
    tree: Option<SyncTree>,
    stdin: Option<&Stdin>,
    cache: Arc<Cache>,
    line: Line,
) -> Result<(Option<Files>, Fetched), NotPlaced> {
    let missing = stdin.filter(|stdin| stdin.inline.is_none() && !cache.has(&stdin.hash));
    let missing = missing.into_iter().map(|stdin| (stdin.hash.clone(), stdin.size)).collect();
    let fetched = sync::fetch(missing, cache.clone(), line.clone()).await?;
    match tree {
        Some(tree) => match Files::inline(&tree) {
            Some(files) => Ok((Some(files?), fetched)),
            None => Files::fetch(&tree, cache, line).await.map(|(files, more)| (Some(files), fetched.and(more))),
        },
        None => Ok((None, fetched)),
    }
}

fn key_of(wanted: &DesiredJob) -> Key {
    Key { job: wanted.job, epoch: wanted.epoch }
}

fn learn(job: &mut Job, wanted: DesiredJob, fresh: bool) {
    if let Some(output) = &mut job.output
        && (fresh || job.wanted.is_none())
    {
        output.delivered = wanted.log_offset;
    }
    job.want(wanted);
}

fn synced(job: &mut Job, outcome: Result<Fetched, NotPlaced>) {
    match outcome {
        Ok(fetched) => {
            job.tell(What::SyncComplete { fetched_blobs: fetched.blobs, fetched_bytes: fetched.bytes });
            job.stage = Stage::Ready(Opening::Start);
        }
        Err(why) => refuse(job, why),
    }
}

fn refuse(job: &mut Job, not_placed: NotPlaced) {
    job.stage = Stage::Ready(Opening::Refuse { cause: not_placed.cause, message: not_placed.why });
}

fn start_order(job: &Job, instance: &Instance, cache: &Cache, groups: Groups) -> io::Result<KeeperOrder> {
    let wanted = job.wanted.as_ref().expect("a job starts as it is wanted");
    let (workdir, dir) = sync::workdir(&instance.dir, &wanted.workdir, wanted.working_dir.as_deref())
        .map_err(|not_placed| io::Error::other(not_placed.why))?;
    std::fs::create_dir_all(&workdir)?;
    if let Some(start) = wanted.working_dir.as_deref().filter(|_| dir != workdir) {
        let steps = beneath::steps(start).map_err(io::Error::other)?;
        beneath::Beneath::open(&workdir)?.make_folders(&steps)?;
    }
    Ok(KeeperOrder::Start(Box::new(Start {
        key: job.key.to_string(),
        argv: job::argv(&wanted.command),
        env: job::environment(wanted, job.key, &workdir),
        secrets: wanted.secrets.values().map(|secret| secret.0.clone()).collect(),
        dir,
        merge: wanted.merge,
        max_duration_ms: wanted.max_duration_ms,
        stop_duration_ms: wanted.stop_duration_ms,
        spool_bytes: instance.boot.timings.log_spool_bytes,
        stdin: wanted.stdin.as_ref().map(|stdin| cache.path(&stdin.hash)),
        // Once a run is enough: its further attempts have the same limits.
        note: groups.unenforced.clone().filter(|_| wanted.attempt == 1),
        groups,
    })))
}
