//! The loop around the engine: beats, claims when something is due, works, sleeps until the next thing or a hint.

use crate::now_ms;
use engine::Engine;
use engine::store::{Hint, Worker};
use model::Failure;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, broadcast, watch};

/// Items worked on at once by one process.
const HANDS: usize = 16;
/// The safety net under every hint, and no longer than between two beats: what a dead worker held is taken over in time.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
const PRESENCE_EVERY: Duration = Duration::from_secs(20);

/// Works until told to stop, then gives everything back.
pub(crate) async fn work(engine: Engine, name: String, mut closing: watch::Receiver<bool>) -> Result<(), Failure> {
    let worker = engine.start_worker(name).await?;
    engine.beat(&worker).await?;
    engine.arm_sweep().await?;
    let mut hints = engine.store.hints();
    let hands = Arc::new(Semaphore::new(HANDS));
    let beating = tokio::spawn(beat(engine.clone(), worker.clone(), closing.clone()));
    // What a worker that died has left is due for nobody until somebody claims: that is looked for at least so often.
    let mut claim_by = tokio::time::Instant::now();
    let longest = LONGEST_SLEEP.min(beat_every(&engine));
    while !*closing.borrow() {
        let net = tokio::time::Instant::now() >= claim_by;
        if net {
            claim_by = tokio::time::Instant::now() + longest;
        }
        let sleep = match turn(&engine, &worker, &hands, net).await {
            Ok(sleep) => sleep,
            Err(failure) => {
                tracing::warn!(%failure, "nothing could be claimed");
                Duration::from_secs(1)
            }
        };
        tokio::select! {
            () = tokio::time::sleep(sleep.min(longest)) => {}
            () = woken(&mut hints) => {}
            _ = closing.changed() => {}
        }
    }
    beating.abort();
    // What is in hand is finished or handed over: both are safe, this is only quicker for others.
    let _ = tokio::time::timeout(Duration::from_secs(10), hands.acquire_many(HANDS as u32)).await;
    engine.stop_worker(&worker).await
}

/// Claims and starts what is due. How long there is nothing to do, unless somebody rings. `net`: whatever seems to be due.
async fn turn(engine: &Engine, worker: &Worker, hands: &Arc<Semaphore>, net: bool) -> Result<Duration, Failure> {
    let due = engine.next_due().await?.map(|due| due.ms() - now_ms());
    let seems_due = due.is_some_and(|ms| ms <= 0);
    let claimed = if seems_due || net { engine.claim(worker).await? } else { Vec::new() };
    if claimed.is_empty() {
        return Ok(match due {
            Some(ms) if ms > 0 => LONGEST_SLEEP.min(Duration::from_millis(ms as u64 + 1)),
            Some(_) => Duration::from_millis(200), // somebody else was quicker, or a suspect waits for its turn
            None => LONGEST_SLEEP,
        });
    }
    for item in claimed {
        let permit = hands.clone().acquire_owned().await.expect("never closed");
        let engine = engine.clone();
        tokio::spawn(async move {
            engine.work_on(item).await;
            drop(permit);
        });
    }
    Ok(Duration::ZERO)
}

/// A hint that work may be due; hints about other things are slept through.
async fn woken(hints: &mut broadcast::Receiver<Hint>) {
    loop {
        match hints.recv().await {
            Ok(Hint::Work | Hint::Everything) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

fn beat_every(engine: &Engine) -> Duration {
    Duration::from_millis(engine::store::worker::beat_every_ms(engine.house.config.timings.lease_ms) as u64)
}

async fn beat(engine: Engine, worker: Worker, mut closing: watch::Receiver<bool>) {
    let every = beat_every(&engine);
    while !*closing.borrow() {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = closing.changed() => return,
        }
        if let Err(failure) = engine.beat(&worker).await {
            tracing::warn!(%failure, "this worker's beat failed");
        }
    }
}

/// What this process hears from machines is written down, so that workers elsewhere do not miss them. Until told to stop.
pub(crate) async fn remember(engine: Engine, mut closing: watch::Receiver<bool>) {
    let missed_after = Duration::from_millis(engine.house.config.timings.unreachable_after_ms as u64);
    let every = PRESENCE_EVERY.min(missed_after / 3);
    while !*closing.borrow() {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = closing.changed() => {}
        }
        if let Err(failure) = engine.flush_presence().await {
            tracing::warn!(%failure, "signs of life could not be written down");
        }
    }
}
