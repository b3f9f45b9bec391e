//! Virtual time: one clock for the whole world, moved only by the world, futures that wait for it, and the wall clock of the
//! control plane, which may be wrong. Never waits itself.

use engine::store::Clock;
use model::Timestamp;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// The world's clock, and who waits for it.
#[derive(Clone)]
pub struct Now {
    ms: Arc<AtomicI64>,
    /// How far the wall clock is ahead of the time that has really passed.
    wrong_by: Arc<AtomicI64>,
    waits: Arc<Mutex<Vec<i64>>>,
}

impl Clock for Now {
    fn now(&self) -> Timestamp {
        Timestamp(self.wall_ms())
    }
}

impl engine::Timer for Now {
    fn after(&self, ms: i64) -> engine::TimerFuture {
        let now = self.clone();
        Box::pin(async move { now.wait(ms).await })
    }
}

impl Now {
    pub fn new(ms: i64) -> Now {
        Now { ms: Arc::new(AtomicI64::new(ms)), wrong_by: Arc::default(), waits: Arc::default() }
    }
    pub fn ms(&self) -> i64 {
        self.ms.load(Ordering::Relaxed)
    }
    pub fn wall_ms(&self) -> i64 {
        self.ms() + self.wrong_by.load(Ordering::Relaxed)
    }
    pub fn move_to(&self, ms: i64) {
        debug_assert!(ms >= self.ms(), "time does not go back");
        self.ms.store(ms, Ordering::Relaxed);
    }

    /// The wall clock is set forward or back.
    pub fn jump(&self, ms: i64) {
        self.wrong_by.fetch_add(ms, Ordering::Relaxed);
    }

    /// Ready when the clock has moved on by `ms`.
    pub async fn wait(&self, ms: i64) {
        let until = self.ms() + ms;
        if ms > 0 {
            self.waits.lock().expect("one thread").push(until);
        }
        std::future::poll_fn(|_| if self.ms() >= until { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// When those who have begun to wait since the last call want to be polled again.
    pub fn new_waits(&self) -> Vec<i64> {
        std::mem::take(&mut self.waits.lock().expect("one thread"))
    }
}

/// Polls once. Wakers are not needed: every future here waits for the simulated clock.
pub fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + '_>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// For what has no reason to wait: an inline store answers at once.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing here waits for anything"),
    }
}
