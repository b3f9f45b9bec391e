//! What only SQLite must survive: a full disk in the middle of a group, a second owner, a newer or foreign file, a crash at a
//! commit, a reader beside a busy writer.

use crate::support::{On, World, block_on};
use model::{Credits, Failure, OrgId, Refused, Trouble, TroubleKind};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use store::{Database, Entry, EntryKind, Lane, Moment, Options, Sql, Store, Tx, args, org};

async fn names(store: &Store) -> Vec<String> {
    store
        .read("names", |tx| Ok(org::page(tx, OrgId(0), 1000)?.into_iter().map(|org| org.name).collect()))
        .await
        .unwrap()
}

fn make(name: String) -> impl Fn(&mut Tx) -> Result<(), Failure> + Send + Sync + 'static {
    move |tx| org::create(tx, &name).map(drop)
}

/// Holds the writer until the value is dropped, so that what is sent meanwhile becomes one group.
fn hold(store: &Store) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), Failure>>) {
    let (release, wait) = mpsc::channel::<()>();
    let (store, wait) = (store.clone(), Mutex::new(wait));
    let held = tokio::spawn(async move {
        let wait = move |_: &mut Tx| {
            let _ = wait.lock().unwrap().recv();
            Ok(())
        };
        store.write(Lane::Normal, "hold", wait).await
    });
    (release, held)
}

#[test]
fn a_full_disk_ends_the_group_and_each_closure_runs_again() {
    for on in [On::Memory, On::File] {
        for apart in [false, true] {
            let world = World::new(on, None);
            block_on(fill_the_disk(&world, apart));
        }
    }
}

/// `apart`: a closure has just failed after writing, so that groups have savepoints.
async fn fill_the_disk(world: &World, apart: bool) {
    const PAGES: Sql = Sql::new("PRAGMA page_count");
    let store = &world.store;
    let limit = |pages: i64| {
        let pragma = Sql::new(Box::leak(format!("PRAGMA max_page_count = {pages}").into_boxed_str()));
        store.write(Lane::Normal, "limit", move |tx| tx.rows(&pragma, &args![]))
    };
    let pages = store.write(Lane::Normal, "pages", |tx| tx.row(&PAGES, &args![])?.unwrap().int(0)).await.unwrap();
    limit(pages + 2).await.unwrap();
    if apart {
        let regrets =
            |tx: &mut Tx| org::create(tx, "regretted").and(Err::<(), Failure>(Refused::Stale { what: "mind" }.into()));
        store.write(Lane::Normal, "regret", regrets).await.unwrap_err();
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let (release, held) = hold(store);
    let mut answers = Vec::new();
    for i in 0..5 {
        let (store, runs) = (store.clone(), runs.clone());
        // The third needs more room than there is, and does not even look at the error.
        let name = if i == 2 { "x".repeat(100_000) } else { format!("org {i}") };
        answers.push(tokio::spawn(async move {
            let f = move |tx: &mut Tx| {
                runs.fetch_add(1, Ordering::SeqCst);
                let first = org::create(tx, &name);
                let second = org::create(tx, &format!("{}, the second", &name[..5]));
                if i == 2 { Ok(()) } else { first.and(second).map(drop) }
            };
            store.write(Lane::Normal, "fill", f).await
        }));
        tokio::task::yield_now().await;
    }
    drop(release);
    held.await.unwrap().unwrap();
    for (i, answer) in answers.into_iter().enumerate() {
        match (i, answer.await.unwrap()) {
            (2, Err(Failure::Trouble(Trouble { kind: TroubleKind::DiskFull, retry: true, .. }))) => {}
            (2, other) => panic!("{other:?}"),
            (_, other) => other.unwrap(),
        }
    }
    assert_eq!(names(store).await.len(), 8, "both rows of the four that fit");
    let full = store.write(Lane::Normal, "fill", make("y".repeat(100_000))).await;
    assert!(full.is_err() && !store.writable());
    limit(1_000_000).await.unwrap();
    store.write(Lane::Normal, "fill", make("y".repeat(100_000))).await.unwrap();
    assert!(store.writable());
}

#[test]
fn waiting_writes_share_a_commit() {
    let world = World::new(On::File, None);
    block_on(async {
        let (release, held) = hold(&world.store);
        let mut answers = Vec::new();
        for i in 0..200 {
            let store = world.store.clone();
            answers
                .push(tokio::spawn(async move { store.write(Lane::Normal, "many", make(format!("org {i}"))).await }));
        }
        drop(release);
        held.await.unwrap().unwrap();
        for answer in answers {
            answer.await.unwrap().unwrap();
        }
        assert_eq!(names(&world.store).await.len(), 200);
    });
}

#[test]
fn reads_do_not_wait_for_the_writer() {
    let world = World::new(On::File, None);
    block_on(async {
        world.store.write(Lane::Normal, "make", make("before".to_owned())).await.unwrap();
        let (release, held) = hold(&world.store);
        assert_eq!(names(&world.store).await, ["before"]);
        drop(release);
        held.await.unwrap().unwrap();
    });
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let world = World::new(On::File, None);
    let options = world.options.clone();
    block_on(async {
        world.store.write(Lane::Normal, "make", make("kept".to_owned())).await.unwrap();
        let refused = Store::open(&options).err().unwrap();
        assert!(refused.to_string().contains("another control plane"), "{refused}");
    });
    let World { store, .. } = &world;
    let first_id = block_on(store.write(Lane::Normal, "id", |tx| Ok(tx.next_id()))).unwrap();
    let folder = copy(&options);
    let mut options = options;
    options.database = Database::File(folder.path().join("remuda.db"));
    let again = Store::open(&options).unwrap();
    block_on(async {
        assert_eq!(names(&again).await, ["kept"]);
        let id = again.write(Lane::Normal, "id", |tx| Ok(tx.next_id())).await.unwrap();
        assert!(id > first_id, "ids of a block that was given away are not given again");
    });
}

/// The mark stays where the database is restored, and its ids go on above it before anything outside was seen.
#[test]
fn a_database_restored_from_an_older_copy_gives_out_no_id_again() {
    let taken = |options: &Options, many: usize| {
        let store = Store::open(options).unwrap();
        let take = move |tx: &mut Tx| Ok((0..many).map(|_| tx.next_id()).collect::<Vec<_>>());
        block_on(store.write(Lane::Normal, "ids", take)).unwrap()
    };
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("remuda.db");
    let options = Options::new(Database::File(path.clone()));
    assert!(taken(&options, 10).iter().all(|id| *id < 100), "a new home begins with short ids");
    let older = place.path().join("older");
    std::fs::copy(&path, &older).unwrap();
    let lost = taken(&options, 5_000);
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(path.with_file_name(format!("remuda.db{end}")));
    }
    std::fs::rename(&older, &path).unwrap();
    let after = taken(&options, 10);
    assert!(after.iter().min() > lost.iter().max(), "{after:?} after {:?}", lost.last());
    let again = taken(&options, 10);
    assert!(again.iter().min() > after.iter().max(), "{again:?} after {after:?}");
    assert!(again[9] < 50_000, "each start skips the rest of a block and no more: {again:?}");
    // Without any database too, and not below what a new one for an existing installation begins with.
    std::fs::remove_file(&path).unwrap();
    assert!(taken(&options, 1) > again);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(taken(&Options { first_id: 1_000_000, ..options.clone() }, 1), [1_000_000]);
}

/// As a power cut would leave it: the files as they are, while the first owner still has them.
fn copy(options: &Options) -> tempfile::TempDir {
    let Database::File(path) = &options.database else { panic!("a file") };
    let folder = tempfile::tempdir().unwrap();
    for suffix in ["", "-wal"] {
        let name = format!("remuda.db{suffix}");
        std::fs::copy(path.with_file_name(&name), folder.path().join(&name)).unwrap();
    }
    folder
}

#[test]
fn a_newer_database_and_a_foreign_file_are_refused() {
    const NEWER: Sql = Sql::new("UPDATE schema SET version = 1000, min_binary = 1000 WHERE part = 'main'");
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(Database::File(folder.path().join("remuda.db")));
    let store = Store::open(&options).unwrap();
    block_on(store.write(Lane::Normal, "newer", |tx| tx.exec(&NEWER, &args![]))).unwrap();
    drop(store);
    let refused = Store::open(&options).err().unwrap();
    assert!(
        matches!(&refused, Failure::Refused(Refused::Conflict { why }) if why.contains("upgrade repl")),
        "{refused}"
    );

    let foreign = folder.path().join("foreign.db");
    std::fs::write(&foreign, "this is a letter to my aunt, and quite a long one at that".repeat(100)).unwrap();
    let refused = Store::open(&Options::new(Database::File(foreign.clone()))).err().unwrap();
    assert!(refused.to_string().contains("not a database of ours"), "{refused}");
    assert!(std::fs::read_to_string(&foreign).unwrap().starts_with("this is a letter"), "it is left alone");
}

/// The version table of a build before the first release, as its migrations left it.
const EARLIER_BUILD: &str =
    "CREATE TABLE schema (part TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, min_binary BIGINT NOT NULL);
     INSERT INTO schema (part, version, min_binary) VALUES ('main', 6, 6), ('logs', 2, 2)";

#[test]
fn a_database_of_an_earlier_build_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["remuda.db", "remuda-logs.db"] {
        // The main file, and then the file of the logs beside a main file that is new.
        let place = tempfile::tempdir_in(&folder).unwrap();
        let (path, main) = (place.path().join(name), place.path().join("remuda.db"));
        let earlier = rusqlite::Connection::open(&path).unwrap();
        earlier.execute_batch(&format!("PRAGMA journal_mode = WAL; {EARLIER_BUILD}")).unwrap();
        earlier.close().unwrap();
        let before = std::fs::read(&path).unwrap();
        let refused = Store::open(&Options::new(Database::File(main))).err().unwrap();
        let Failure::Refused(Refused::Conflict { why }) = refused else { panic!("{refused:?}") };
        assert!(why.contains(path.to_str().unwrap()) && why.contains("before the first release"), "{why}");
        assert!(why.contains("move it away"), "{why}");
        assert!(std::fs::read(&path).unwrap() == before, "{name} was changed");
    }
}

#[test]
fn a_crash_point_ends_the_process_before_or_after_its_commit() {
    for (moment, kept) in [("before", false), ("after", true)] {
        let folder = tempfile::tempdir().unwrap();
        let me = std::env::current_exe().unwrap();
        let mut child = Command::new(me);
        child.args(["--exact", "sqlite::the_process_that_crashes", "--nocapture"]);
        child.env("STORE_CRASH_FOLDER", folder.path()).env("STORE_CRASH_MOMENT", moment);
        let ended = child.output().unwrap();
        assert!(!ended.status.success(), "it survived {moment}");
        let store = Store::open(&Options::new(Database::File(folder.path().join("remuda.db")))).unwrap();
        assert_eq!(block_on(names(&store)) == ["doomed"], kept, "{moment}");
    }
}

/// Does nothing by itself: the test above runs it in a process of its own.
#[test]
fn the_process_that_crashes() {
    let Some(folder) = std::env::var_os("STORE_CRASH_FOLDER") else { return };
    let chosen = std::env::var("STORE_CRASH_MOMENT").unwrap();
    model::fault::arm(move |name, moment| {
        if name == "doomed" && moment.to_string() == chosen {
            std::process::abort();
        }
    });
    let store = Store::open(&Options::new(Database::File(Path::new(&folder).join("remuda.db")))).unwrap();
    let _ = block_on(store.write(Lane::Normal, "doomed", make("doomed".to_owned())));
}

/// A WAL file that is removed or replaced under a running process: the process ends at its next sync, and answers no caller.
#[test]
fn a_process_whose_log_is_gone_ends_before_it_answers() {
    for (how, what) in [("remove", "was removed"), ("replace", "was replaced")] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "sqlite::the_process_that_loses_its_log", "--nocapture"]);
        child.env("STORE_LOG_FOLDER", folder.path()).env("STORE_LOG_HOW", how);
        let ended = child.output().unwrap();
        let [said, complained] = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(ended.status.signal(), Some(nix::libc::SIGABRT), "{how}: {said}{complained}");
        assert!(said.contains("first answered") && !said.contains("second answered"), "{how}: {said}");
        assert!(complained.contains("remuda.db-wal") && complained.contains(what), "{how}: {complained}");
    }
}

/// Does nothing by itself: the test above runs it in a process of its own.
#[test]
fn the_process_that_loses_its_log() {
    let Some(folder) = std::env::var_os("STORE_LOG_FOLDER") else { return };
    let database = Path::new(&folder).join("remuda.db");
    let store = Store::open(&Options::new(Database::File(database.clone()))).unwrap();
    block_on(store.write(Lane::Normal, "first", make("first".to_owned()))).unwrap();
    println!("first answered");
    let log = database.with_file_name("remuda.db-wal");
    std::fs::remove_file(&log).unwrap();
    if std::env::var("STORE_LOG_HOW").unwrap() == "replace" {
        std::fs::write(&log, "another file").unwrap();
    }
    let _ = block_on(store.write(Lane::Normal, "second", make("second".to_owned())));
    println!("second answered");
}

/// The writer thread drops the last handle, and must not wait for threads that wait for it.
#[test]
fn a_closure_may_own_the_last_handle_of_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(Database::File(folder.path().join("remuda.db")));
    let store = Store::open(&options).unwrap();
    let (began, has_begun) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    block_on(async {
        let own = store.clone();
        let closure = move |tx: &mut Tx| {
            let _own = &own;
            began.send(()).unwrap();
            let _ = wait.lock().unwrap().recv();
            org::create(tx, "last").map(drop)
        };
        let writing = tokio::spawn(async move { store.write(Lane::Normal, "last", closure).await });
        has_begun.recv().unwrap();
        writing.abort();
        let _ = writing.await;
    });
    drop(go);
    // The lock of the file is free when the store is closed.
    let again = loop {
        match Store::open(&options) {
            Ok(store) => break store,
            Err(_) => std::thread::yield_now(),
        }
    };
    assert_eq!(block_on(names(&again)), ["last"]);
}

#[test]
fn an_inline_store_needs_no_runtime_and_dies_where_it_is_told() {
    let armed = Arc::new(AtomicBool::new(false));
    let mut options = Options::new(Database::Memory);
    let hook = armed.clone();
    options.crash =
        Some(Arc::new(move |name, moment| hook.load(Ordering::SeqCst) && name == "charge" && moment == Moment::Before));
    let store = Store::inline(&options).unwrap();
    let org = store
        .write_now("make", |tx| {
            let org = org::create(tx, "default")?;
            tx.ledger(Entry::new(org, EntryKind::Topup, Credits::whole(1), "first"));
            Ok(org)
        })
        .unwrap();
    let charge = move |tx: &mut Tx| {
        tx.ledger(Entry::new(org, EntryKind::Charge, Credits(1), "c").from_available());
        Ok(())
    };
    armed.store(true, Ordering::SeqCst);
    assert!(store.write_now("charge", charge).unwrap_err().to_string().contains("crashed"));
    let left = |store: &Store| store.read_now("left", move |tx| org::find(tx, org).map(|org| org.available)).unwrap();
    assert_eq!(left(&store), Credits::whole(1));
    armed.store(false, Ordering::SeqCst);
    store.write_now("charge", charge).unwrap();
    assert_eq!(left(&store), Credits::whole(1) - Credits(1));
}

#[test]
fn an_inline_read_runs_on_the_callers_thread_and_on_a_readers_when_all_connections_are_in_use() {
    // Each thread asks once. All closures run at the same time, or this never ends.
    const AT_ONCE: usize = 8;
    let world = World::new(On::File, None);
    let all_look = Arc::new(Barrier::new(AT_ONCE));
    let askers = (0..AT_ONCE).map(|_| {
        let (store, all_look) = (world.store.clone(), all_look.clone());
        let look = move |_: &mut Tx| {
            all_look.wait();
            Ok(std::thread::current().id())
        };
        std::thread::spawn(move || {
            block_on(store.read_inline("read_inline", look)).unwrap() == std::thread::current().id()
        })
    });
    let own: Vec<bool> = askers.collect::<Vec<_>>().into_iter().map(|asker| asker.join().unwrap()).collect();
    assert_eq!(own.iter().filter(|own| **own).count(), 4, "there are four connections for inline reads");
}

#[test]
fn the_files_of_a_database_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("data/remuda.db");
    let files = || -> Vec<(String, u32)> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(path.parent().unwrap()).unwrap().map(Result::unwrap) {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            all.push((entry.file_name().to_string_lossy().into_owned(), mode));
        }
        all.sort();
        all
    };
    let opened = || {
        let store = Store::open(&Options::new(Database::File(path.clone()))).unwrap();
        block_on(async { store.write(Lane::Normal, "make", make("one".into())).await.ok() });
        store
    };
    // As the most careless of users would have left them.
    nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    for _ in 0..2 {
        let store = opened();
        let found = files();
        let wide: Vec<_> = found.iter().filter(|(_, mode)| mode & 0o077 != 0).collect();
        assert!(wide.is_empty(), "{wide:?}");
        for name in ["remuda.db", "remuda.db-wal", "remuda.db-shm", "remuda-logs.db", "remuda-logs.db-wal", "blobs"] {
            assert!(found.iter().any(|(there, _)| there == name), "{name} among {found:?}");
        }
        for (name, _) in &found {
            let wide = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(path.with_file_name(name), wide).unwrap();
        }
        drop(store);
    }
}
