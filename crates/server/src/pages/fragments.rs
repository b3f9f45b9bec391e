//! Rendered regions. Those that are followed are kept up to a number of bytes, the one rendered longest ago dropped first. Requests that come
//! while a region is rendered share the next render.

use super::session::Viewer;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) viewer: Viewer,
    pub(crate) src: String,
}

struct Kept {
    number: u64,
    version: u64,
    html: Arc<str>,
}

/// Fragments by key, one of each.
pub(crate) struct Cache {
    fragments: HashMap<Key, Kept>,
    /// Keys by the numbers of their fragments, which grow.
    order: BTreeMap<u64, Key>,
    numbers: u64,
    bytes: usize,
    most: usize,
}

impl Cache {
    pub(crate) fn of(most: usize) -> Cache {
        let (fragments, order, numbers, bytes) = Default::default();
        Cache { fragments, order, numbers, bytes, most }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<(u64, Arc<str>)> {
        self.fragments.get(key).map(|kept| (kept.version, kept.html.clone()))
    }

    pub(crate) fn put(&mut self, key: &Key, version: u64, html: Arc<str>) {
        self.remove(key);
        self.numbers += 1;
        self.bytes += weight(key, &html);
        self.order.insert(self.numbers, key.clone());
        self.fragments.insert(key.clone(), Kept { number: self.numbers, version, html });
        while self.bytes > self.most {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.remove(&oldest);
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        if let Some(kept) = self.fragments.remove(key) {
            self.order.remove(&kept.number);
            self.bytes -= weight(key, &kept.html);
        }
    }
}

/// The key is held twice, and a reader may choose a long one.
fn weight(key: &Key, html: &str) -> usize {
    2 * key.src.len() + html.len()
}

/// Renders for requests that are under way.
#[derive(Default)]
pub(crate) struct Turns(std::sync::Mutex<HashMap<Key, Weak<Turn>>>);

/// Requests for one region. The lock is held by the one that renders; the others wait for it.
#[derive(Default)]
struct Turn {
    begun: AtomicU64,
    last: tokio::sync::Mutex<Option<(u64, Arc<str>)>>,
}

impl Turns {
    /// What `render` gives, or what that of another request gave that began after this call: never less than what was committed before it.
    pub(crate) async fn shared<E>(
        &self,
        key: Key,
        render: impl Future<Output = Result<Arc<str>, E>>,
    ) -> Result<Arc<str>, E> {
        let turn = self.turn(key);
        let before = turn.begun.load(Ordering::SeqCst);
        let mut last = turn.last.lock().await;
        if let Some((_, html)) = last.as_ref().filter(|(number, _)| *number > before) {
            return Ok(html.clone());
        }
        let number = turn.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let html = render.await?;
        *last = Some((number, html.clone()));
        Ok(html)
    }

    fn turn(&self, key: Key) -> Arc<Turn> {
        let mut turns = self.0.lock().expect("no panic while locked");
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Turn::default());
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use model::OrgId;

    fn key(src: &str) -> Key {
        Key { viewer: Viewer { org: OrgId(1), scope: 1 }, src: src.to_owned() }
    }

    #[test]
    fn a_busy_region_takes_no_room_from_a_quiet_one() {
        let mut cache = Cache::of(1_000);
        cache.put(&key("quiet"), 1, "as it was".into());
        for version in 0..100_000 {
            cache.put(&key("busy"), version, "x".repeat(900).into());
        }
        assert_eq!(cache.get(&key("quiet")), Some((1, "as it was".into())));
        assert_eq!((cache.order.len(), cache.get(&key("busy")).unwrap().0), (2, 99_999));
    }

    #[test]
    fn a_fragment_that_is_as_it_was_before_counts_as_rendered_now() {
        let mut cache = Cache::of(100);
        for (src, version) in [("a", 1), ("a", 2), ("b", 1), ("a", 1)] {
            cache.put(&key(src), version, "x".repeat(40).into());
        }
        cache.put(&key("c"), 1, "x".repeat(40).into());
        assert!(cache.get(&key("b")).is_none(), "it was rendered longest ago");
        assert!(cache.get(&key("a")).is_some() && cache.get(&key("c")).is_some());
    }

    #[test]
    fn bytes_are_bounded() {
        let mut cache = Cache::of(1_000);
        for n in 0..100 {
            cache.put(&key(&format!("{n:02}")), n, "x".repeat(96).into());
        }
        assert_eq!((cache.fragments.len(), cache.order.len(), cache.bytes), (10, 10, 1_000));
        cache.put(&key("too large"), 1, "x".repeat(2_000).into());
        assert_eq!((cache.fragments.len(), cache.order.len(), cache.bytes), (0, 0, 0));
        cache.put(&key("a"), 1, "x".into());
        cache.remove(&key("a"));
        assert_eq!((cache.order.len(), cache.bytes), (0, 0));
    }

    /// Those that come while the first one renders share one render that begins after they came.
    #[tokio::test]
    async fn a_crowd_shares_a_render_that_began_after_it_came() {
        let (turns, renders) = (Turns::default(), AtomicU64::new(0));
        let render = async || {
            let number = renders.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            Ok::<Arc<str>, ()>(number.to_string().into())
        };
        let shown = join_all((0..1_000).map(|_| turns.shared(key("a"), render()))).await;
        assert_eq!(renders.load(Ordering::SeqCst), 2);
        assert_eq!((&*shown[0].clone().unwrap(), &*shown[999].clone().unwrap()), ("0", "1"));
        assert_eq!(&*turns.shared(key("a"), render()).await.unwrap(), "2", "what comes later is rendered anew");
    }

    #[tokio::test]
    async fn a_refusal_is_shared_with_none() {
        let turns = Turns::default();
        let refused = async { Err::<Arc<str>, &str>("no") };
        let good = async { Ok::<Arc<str>, &str>("yes".into()) };
        let (first, second) = tokio::join!(turns.shared(key("a"), refused), turns.shared(key("a"), good));
        assert_eq!((first, second), (Err("no"), Ok("yes".into())));
    }
}
