//! The two clocks of a runner: wall-clock time for display, and monotonic time for every limit.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Unix milliseconds. Decides nothing.
pub fn wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Time in which work was allowed to run: stands still while it is frozen. Suspend of the host does not count,
/// because `Instant` is CLOCK_MONOTONIC here.
#[derive(Debug, Clone, Copy)]
pub struct ActiveTime {
    before: Duration,
    running_since: Option<Instant>,
}

impl ActiveTime {
    pub fn started(now: Instant) -> ActiveTime {
        ActiveTime { before: Duration::ZERO, running_since: Some(now) }
    }
    pub fn pause(&mut self, now: Instant) {
        self.before = self.so_far(now);
        self.running_since = None;
    }
    pub fn resume(&mut self, now: Instant) {
        self.running_since.get_or_insert(now);
    }
    pub fn so_far(&self, now: Instant) -> Duration {
        self.before + self.running_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
    /// When this much will have passed; never while it stands still.
    pub fn reaches(&self, limit: Duration) -> Option<Instant> {
        self.running_since.map(|since| since + limit.saturating_sub(self.before))
    }
}

/// Waits between tries: 100 ms, doubled, at most 5 s.
#[derive(Debug, Default)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    pub fn next(&mut self) -> Duration {
        let wait = Duration::from_millis(100 << self.tries.min(6)).min(Duration::from_secs(5));
        self.tries += 1;
        wait
    }
    pub fn reset(&mut self) {
        self.tries = 0;
    }
    pub fn tries(&self) -> u32 {
        self.tries
    }
}

#[test]
fn frozen_time_does_not_count() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let mut time = ActiveTime::started(start);
    time.pause(at(10));
    assert_eq!((time.so_far(at(50)), time.reaches(Duration::from_secs(15))), (Duration::from_secs(10), None));
    time.resume(at(60));
    time.resume(at(61));
    assert_eq!(time.so_far(at(62)), Duration::from_secs(12));
    assert_eq!(time.reaches(Duration::from_secs(15)), Some(at(65)));
}

#[test]
fn waits_grow_to_five_seconds() {
    let mut backoff = Backoff::default();
    let waits: Vec<u64> = (0..8).map(|_| backoff.next().as_millis() as u64).collect();
    assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
}
