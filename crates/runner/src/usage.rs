//! How busy the host is, for heartbeats. A figure that cannot be read is zero; no decision depends on it.

use std::path::{Path, PathBuf};
use wire::runner::Usage;

/// Remembers the last reading, because cpu use is a difference.
pub struct Meter {
    /// On whose file system room is counted.
    dir: PathBuf,
    last: Option<(u64, u64)>,
}

pub struct Host {
    pub name: String,
    pub cpu_milli: i64,
    pub memory_bytes: i64,
}

impl Meter {
    pub fn new(dir: &Path) -> Meter {
        Meter { dir: dir.to_owned(), last: None }
    }

    pub fn host() -> Host {
        let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as i64);
        Host { name, cpu_milli: cpus * 1000, memory_bytes: memory("MemTotal:") }
    }

    pub fn usage(&mut self) -> Usage {
        let now = cpu_ticks();
        let cpu_milli = match (self.last, now) {
            (Some((busy_then, all_then)), Some((busy, all))) if all > all_then => {
                let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
                (busy.saturating_sub(busy_then) * 1000 * cpus / (all - all_then)) as i64
            }
            _ => 0,
        };
        self.last = now;
        Usage {
            cpu_milli,
            memory_bytes: memory("MemTotal:") - memory("MemAvailable:"),
            disk_free_bytes: disk_free(&self.dir),
        }
    }
}

fn memory(field: &str) -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<i64>().ok()).unwrap_or(0) * 1024
}

/// Busy and all ticks since boot.
fn cpu_ticks() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        text.lines().next()?.split_ascii_whitespace().skip(1).take(8).filter_map(|tick| tick.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((all - idle, all))
}

fn disk_free(at: &Path) -> i64 {
    nix::sys::statvfs::statvfs(at).map_or(0, |disk| (disk.blocks_available() * disk.fragment_size()) as i64)
}

#[test]
fn the_host_has_memory_and_disk() {
    let mut meter = Meter::new(Path::new("."));
    let usage = meter.usage();
    assert!(usage.memory_bytes > 0 && usage.disk_free_bytes > 0);
    assert!(Meter::host().memory_bytes > usage.memory_bytes);
}
