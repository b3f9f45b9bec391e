//! The three databases every promise of the store is tested on.

pub mod postgres;
pub mod proxy;

use postgres::Postgres;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use store::{Clock, Database, Options, Store};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    Memory,
    File,
    Postgres,
}

/// A fresh, empty database.
pub struct World {
    pub on: On,
    pub store: Store,
    pub options: Options,
    pub clock: Arc<TestClock>,
    _folder: tempfile::TempDir,
}

/// Stands still unless moved. PostgreSQL does not look at it.
pub struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> model::Timestamp {
        model::Timestamp(self.0.load(Ordering::SeqCst))
    }
}

impl TestClock {
    pub fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl World {
    pub fn new(on: On, postgres: Option<&Postgres>) -> World {
        World::with(on, postgres, |_| {})
    }

    pub fn with(on: On, postgres: Option<&Postgres>, change: impl FnOnce(&mut Options)) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let database = match on {
            On::Memory => Database::Memory,
            On::File => Database::File(folder.path().join("remuda.db")),
            On::Postgres => Database::Postgres(postgres.expect("a server was started").database()),
        };
        let clock = Arc::new(TestClock(AtomicI64::new(1_800_000_000_000)));
        let mut options = Options::new(database);
        options.clock = clock.clone();
        options.blobs = Some(folder.path().join("blobs"));
        options.log_quota_bytes = 100_000;
        change(&mut options);
        let store = Store::open(&options).expect("an empty database opens");
        World { on, store, options, clock, _folder: folder }
    }
}

/// Runs a case with everything it needs to wait on many writes at once.
pub fn block_on<T>(case: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(case)
}
