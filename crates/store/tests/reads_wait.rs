//! A read that may have seen a commit is answered only after the sync of that commit. Alone in its process: it delays every sync.

use futures_util::FutureExt as _;
use model::fault::{self, Moment};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use store::{Database, Lane, Options, Store, worker};

#[tokio::test]
async fn a_read_beside_a_commit_is_answered_when_that_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Options::new(Database::File(folder.path().join("t.db")))).unwrap();
    let (asks, asked) = channel();
    let (go, goes) = channel::<()>();
    let goes = Mutex::new(goes);
    fault::arm(move |name, moment| {
        if (name, moment) == ("database.sync", Moment::Before) {
            let _ = asks.send(());
            let _ = goes.lock().unwrap().recv(); // once the sender is gone nothing waits
        }
    });
    let writer = store.clone();
    let written = tokio::spawn(async move { writer.write(Lane::Normal, "beat", worker::beat).await });
    tokio::task::spawn_blocking(move || asked.recv()).await.unwrap().unwrap();
    let last = |tx: &mut store::Tx| worker::lived_since(tx, 0);
    // Read where it is asked for, so its answer is there at the first look unless it waits for the disk.
    let mut read_inline = Box::pin(store.read_inline("read_inline", last));
    assert!((&mut read_inline).now_or_never().is_none(), "it may have seen the commit");
    assert!(!written.is_finished());
    drop(go);
    read_inline.await.unwrap();
    written.await.unwrap().unwrap();
}
