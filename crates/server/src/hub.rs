//! Passes each hint of the store to the tasks that follow the run, machine or log that it names.

use engine::{Hint, Store};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::{broadcast, watch};

#[derive(Clone, Default)]
pub(crate) struct Hub {
    topics: Arc<Mutex<HashMap<Hint, Topic>>>,
}

struct Topic {
    bell: watch::Sender<u64>,
    followers: usize,
}

/// Rings when a hint says that there may be something new. Its topic is removed with the last follower.
pub(crate) struct Bell {
    hub: Hub,
    hint: Hint,
    rings: watch::Receiver<u64>,
}

impl Hub {
    /// Starts listening to the store. Ends with it.
    pub(crate) fn start(store: &Store) -> Hub {
        let hub = Hub::default();
        let (mut hints, listening) = (store.hints(), hub.clone());
        tokio::spawn(async move {
            loop {
                match hints.recv().await {
                    Ok(Hint::Everything) => listening.ring_all(),
                    Ok(hint) => listening.ring(hint),
                    Err(broadcast::error::RecvError::Lagged(_)) => listening.ring_all(),
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        hub
    }

    pub(crate) fn follow(&self, hint: Hint) -> Bell {
        let mut topics = self.topics.lock().expect("no panic while locked");
        let topic = topics.entry(hint).or_insert_with(|| Topic { bell: watch::channel(0).0, followers: 0 });
        topic.followers += 1;
        Bell { hub: self.clone(), hint, rings: topic.bell.subscribe() }
    }

    pub(crate) fn ring(&self, hint: Hint) {
        if let Some(topic) = self.topics.lock().expect("no panic while locked").get(&hint) {
            topic.bell.send_modify(|n| *n += 1);
        }
    }

    /// Hints may have been missed: all followers read again.
    fn ring_all(&self) {
        for topic in self.topics.lock().expect("no panic while locked").values() {
            topic.bell.send_modify(|n| *n += 1);
        }
    }
}

impl Bell {
    /// Returns when there may be something new since the last call.
    pub(crate) async fn rung(&mut self) {
        // The sender lives as long as a follower does.
        let _ = self.rings.changed().await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let mut topics = self.hub.topics.lock().expect("no panic while locked");
        if let Some(topic) = topics.get_mut(&self.hint) {
            topic.followers -= 1;
            if topic.followers == 0 {
                topics.remove(&self.hint);
            }
        }
    }
}
