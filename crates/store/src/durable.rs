//! Syncs the WAL of a SQLite file after commits. The writer thread commits without a sync; one `fdatasync` counts for all commits
//! before it, and runs while the writer works on the next group. No caller is answered before that: neither the callers of the
//! writes, nor callers whose reads may have seen them.

use crate::fatal::end_process;
use crate::lite::{Ran, release};
use crate::tx::Context;
use model::{Failure, Trouble, TroubleKind, bug, crash_point};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use tokio::sync::watch;

pub(crate) struct Durable {
    sync: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    context: Arc<Context>,
    /// Number of the last commit that a read can have seen: each is counted before it is made.
    begun: AtomicU64,
    /// Number of the last commit that is synced.
    reached: watch::Sender<u64>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    groups: Vec<Committed>,
    /// A sync is under way. The thread that does it takes the groups that arrive meanwhile afterwards.
    under_way: bool,
    closed: bool,
}

/// Whether the file that was opened is still the one at this path, by device and inode. If it was removed or replaced, the next start
/// would open another file and find none of the commits that are synced here.
fn still_at(path: &Path, opened: &Metadata) -> io::Result<()> {
    let found = std::fs::metadata(path);
    if found.as_ref().is_ok_and(|found| (found.dev(), found.ino()) == (opened.dev(), opened.ino())) {
        return Ok(());
    }
    let what = if found.is_ok() { "replaced" } else { "removed" };
    Err(io::Error::other(format!("{} was {what} while this process was using it", path.display())))
}

/// A group whose transaction has ended, and the number of the last commit that it wrote or may have read.
pub(crate) struct Committed {
    pub(crate) number: u64,
    pub(crate) group: Vec<Ran>,
}

impl Durable {
    /// For the database at `path`, which is open. SQLite uses one WAL file as long as any connection is open.
    pub(crate) fn of(path: &Path, context: Arc<Context>) -> Result<Arc<Durable>, Failure> {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let log = PathBuf::from(log);
        let failed = |e: io::Error| Trouble::new(TroubleKind::Database, format!("cannot open {}: {e}", log.display()));
        let file = File::options().write(true).open(&log).map_err(failed)?;
        let opened = file.metadata().map_err(failed)?;
        Ok(Durable::by(context, move || {
            file.sync_data()?;
            still_at(&log, &opened)
        }))
    }

    fn by(context: Arc<Context>, sync: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Arc<Durable> {
        Arc::new(Durable {
            sync: Box::new(sync),
            context,
            begun: AtomicU64::new(0),
            reached: watch::Sender::new(0),
            waiting: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// A commit is about to be made. `then_answer` is called for it, whether it succeeds or not.
    pub(crate) fn begins(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Number of the last commit that a read can have seen.
    pub(crate) fn seen(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn has_reached(&self, number: u64) -> bool {
        *self.reached.borrow() >= number
    }

    /// Answers the callers of a group once it is synced. A writer thread with nothing else to do syncs itself, which saves waking the
    /// other thread.
    pub(crate) fn then_answer(&self, committed: Committed, has_more_to_do: bool) {
        let mut waiting = self.locked();
        waiting.groups.push(committed);
        if waiting.under_way {
            return;
        }
        if has_more_to_do {
            drop(waiting);
            return self.changed.notify_one();
        }
        self.sync_and_answer(waiting);
        self.changed.notify_one();
    }

    /// The thread: syncs while the writer works on, until it is closed and all groups are answered.
    pub(crate) fn serve(&self) {
        loop {
            let idle = |waiting: &mut Waiting| waiting.under_way || (waiting.groups.is_empty() && !waiting.closed);
            let waiting = self.changed.wait_while(self.locked(), idle).expect("nothing panics while it is locked");
            if waiting.groups.is_empty() {
                return;
            }
            self.sync_and_answer(waiting);
        }
    }

    /// The writer has ended.
    pub(crate) fn close(&self) {
        self.locked().closed = true;
        self.changed.notify_one();
    }

    /// Waits until everything that a read can have seen is synced. Returns at once unless a sync is under way.
    pub(crate) async fn read(&self) {
        let seen = self.seen();
        if !self.has_reached(seen) {
            let mut reached = self.reached.subscribe();
            // The sender is a field of `self`, so it is not closed.
            let _ = reached.wait_for(|reached| *reached >= seen).await;
        }
    }

    fn locked(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("nothing panics while it is locked")
    }

    fn sync_and_answer(&self, mut waiting: MutexGuard<'_, Waiting>) {
        let mut groups = std::mem::take(&mut waiting.groups);
        waiting.under_way = true;
        drop(waiting);
        if bug!(answered_before_the_disk) {
            groups.iter_mut().for_each(|committed| release(&self.context, std::mem::take(&mut committed.group)));
        }
        if let Err(error) = crash_point!("database.sync", (self.sync)()) {
            end_process(error);
        }
        let last = groups.iter().map(|committed| committed.number).max().unwrap_or(0);
        self.reached.send_if_modified(|reached| {
            let further = last > *reached;
            *reached = last.max(*reached);
            further
        });
        for committed in groups {
            release(&self.context, committed.group);
        }
        self.locked().under_way = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lite::{Writer, open_writer};
    use crate::migrate::MAIN;
    use crate::queue::{Access, Closure, Lane, Queue, Reply};
    use crate::tx::Tx;
    use crate::{Database, Options, Sql, args};
    use futures_util::FutureExt as _;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LAST: Sql = Sql::new("UPDATE monitor SET beat_at = $1 WHERE id = 1");

    /// A file whose syncs take as long as the test wants.
    struct Slow {
        durable: Arc<Durable>,
        queue: Arc<Queue>,
        /// `asked` receives when a sync begins; sending to `done` ends it.
        asked: Receiver<()>,
        done: Option<Sender<()>>,
        threads: Vec<std::thread::JoinHandle<()>>,
        _folder: tempfile::TempDir,
    }

    impl Slow {
        /// What is pushed before `starts` is there when the writer begins.
        fn new(group: usize) -> (Slow, Writer) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("t.db");
            let options = Options { group, ..Options::new(Database::File(path.clone())) };
            let context = crate::context(&options, None, None, None);
            let (asks, asked) = channel();
            let (done, ends) = channel();
            let ends = Mutex::new(ends);
            let sync = move || {
                let _ = asks.send(());
                let _ = ends.lock().unwrap().recv(); // an error: the test has ended
                Ok(())
            };
            let durable = Durable::by(context.clone(), sync);
            let writer = Writer::new(open_writer(&path, &MAIN).unwrap(), context, MAIN).answered_by(durable.clone());
            let queue = Arc::new(Queue::new());
            (Slow { durable, queue, asked, done: Some(done), threads: Vec::new(), _folder: folder }, writer.unwrap())
        }

        fn starts(&mut self, writer: Writer) {
            let (queue, durable) = (self.queue.clone(), self.durable.clone());
            self.threads.push(std::thread::spawn(move || writer.serve(&queue)));
            self.threads.push(std::thread::spawn(move || durable.serve()));
        }

        /// A write. The receiver hears when its closure has run.
        fn writes(&self, at: i64) -> (Receiver<()>, Reply<()>) {
            self.writes_after(at, Arc::default())
        }

        /// The same for a closure that waits while `held` is locked.
        fn writes_after(&self, at: i64, held: Arc<Mutex<()>>) -> (Receiver<()>, Reply<()>) {
            let (ran, has_run) = channel();
            let closure = move |tx: &mut Tx| {
                drop(held.lock().unwrap());
                tx.exec(&LAST, &args![at])?;
                let _ = ran.send(());
                Ok(())
            };
            let (job, answer) = Closure::boxed("test", Lane::Normal.into(), Access::Write, closure);
            self.queue.push(job);
            (has_run, answer)
        }

        fn wait_ends(&self) {
            self.done.as_ref().expect("the disk is slow").send(()).unwrap();
        }

        /// From now on no wait takes any time.
        fn disk_is_fast(&mut self) {
            self.done = None;
        }

        fn ends(mut self) {
            self.queue.close();
            self.disk_is_fast();
            self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    #[test]
    fn no_caller_is_answered_before_the_sync_and_the_writer_works_on() {
        let (mut slow, writer) = Slow::new(2);
        let held = Arc::new(Mutex::new(()));
        let holds = held.lock().unwrap();
        let mut writes: Vec<_> = (1..=2).map(|at| slow.writes(at)).collect();
        writes.extend((3..=5).map(|at| slow.writes_after(at, held.clone())));
        slow.starts(writer);
        slow.asked.recv().unwrap();
        // The first group waits for the disk, and the others are worked on meanwhile.
        drop(holds);
        writes.iter().for_each(|(has_run, _)| has_run.recv().unwrap());
        assert!(writes.iter_mut().all(|(_, answer)| answer.try_recv().is_err()), "a caller was answered");
        let durable = slow.durable.clone();
        let mut reader = Box::pin(durable.read());
        assert!((&mut reader).now_or_never().is_none(), "what was read is not on disk yet");
        slow.wait_ends();
        slow.asked.recv().unwrap();
        assert!(writes[4].1.try_recv().is_err(), "it was committed after the first wait had begun");
        slow.disk_is_fast();
        for (_, answer) in writes {
            answer.blocking_recv().unwrap().unwrap();
        }
        reader.now_or_never().expect("everything is on disk");
        slow.ends();
    }

    #[test]
    fn a_write_that_changes_no_row_waits_for_no_sync() {
        let (mut slow, writer) = Slow::new(64);
        slow.starts(writer);
        let look = |tx: &mut Tx| tx.exec(&Sql::new("UPDATE monitor SET beat_at = 1 WHERE id = 2"), &args![]).map(drop);
        let (job, answer) = Closure::boxed("test", Lane::Normal.into(), Access::Write, look);
        slow.queue.push(job);
        answer.blocking_recv().unwrap().unwrap();
        assert!(slow.asked.try_recv().is_err());
        slow.durable.read().now_or_never().expect("nothing was committed");
        slow.ends();
    }

    /// A read in a group after one that is not synced yet has seen what that one wrote.
    #[test]
    fn a_read_that_saw_an_unsynced_commit_waits_for_its_sync() {
        let (mut slow, writer) = Slow::new(2);
        let writes = [slow.writes(7), slow.writes(8)];
        slow.starts(writer);
        slow.asked.recv().unwrap();
        let look = |tx: &mut Tx| Ok(tx.row(&Sql::new("SELECT beat_at FROM monitor WHERE id = 1"), &args![])?.is_some());
        let mut looks = [(), ()].map(|()| {
            let (job, looked) = Closure::boxed("test", Lane::Normal.into(), Access::Read, look);
            slow.queue.push(job);
            looked
        });
        // The first read shares its group with no write, and that group has ended when this write runs.
        let (has_run, _) = slow.writes(9);
        has_run.recv().unwrap();
        assert!(looks[0].try_recv().is_err(), "it was told what a power cut may take back");
        slow.disk_is_fast();
        for (_, answer) in writes {
            answer.blocking_recv().unwrap().unwrap();
        }
        for looked in looks {
            assert_eq!(looked.blocking_recv().unwrap(), Ok(true));
        }
        slow.ends();
    }
}
