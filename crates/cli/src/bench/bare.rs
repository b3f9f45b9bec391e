//! Reference figures without Remuda: the time of a process, of a commit, of a synced write; and the load of the machine.

use crate::complaint::{Complaint, Done};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use testkit::bare::Plain;

pub fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// From the wish for a process to its first byte, in ms.
pub fn first_byte_of_a_shell() -> Done<f64> {
    let began = Instant::now();
    let failed = |error: std::io::Error| Complaint::usage(format!("sh could not be started: {error}"));
    let mut child = Command::new("sh").args(["-c", "echo x"]).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut byte = [0];
    child.stdout.take().expect("piped").read_exact(&mut byte).map_err(failed)?;
    let took = ms(began);
    child.wait().map_err(failed)?;
    Ok(took)
}

/// Processes a second, one after the other.
pub fn shells_a_second(count: usize) -> Done<f64> {
    let failed = |error: std::io::Error| Complaint::usage(format!("sh could not be started: {error}"));
    let began = Instant::now();
    for _ in 0..count {
        Command::new("sh").args(["-c", "true"]).status().map_err(failed)?;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// SQLite in a folder of ours: one small row, one commit, in ms.
pub struct Commits(Plain);

impl Commits {
    pub fn in_folder(folder: &Path) -> Done<Commits> {
        Ok(Commits(Plain::open(&folder.join("bare.db"))?))
    }
    pub fn one(&mut self) -> Done<f64> {
        let began = Instant::now();
        self.0.write(1, 200, 1)?;
        Ok(ms(began))
    }
}

/// Overwrites a page of a file and waits for the disk, in ms, so many times.
pub fn fdatasyncs(folder: &Path, count: usize) -> Done<Vec<f64>> {
    let path = folder.join("page");
    let failed = |error: std::io::Error| Complaint::file("write", &path, &error);
    let mut file = std::fs::File::create(&path).map_err(failed)?;
    file.write_all(&[1; 4096]).and_then(|()| file.sync_all()).map_err(failed)?;
    let mut took = Vec::with_capacity(count);
    for n in 0..count {
        let began = Instant::now();
        file.write_all_at(&[n as u8; 4096], 0).and_then(|()| file.sync_data()).map_err(failed)?;
        took.push(ms(began));
    }
    Ok(took)
}

/// Processes that wanted a core, on average over the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// Ticks of the clock that a process has computed, and how many make a second.
pub fn cpu_seconds(pid: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = after_name.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    let a_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    ticks / a_second as f64
}

/// A line of `/proc/PID/smaps_rollup`, in MB.
pub fn memory_mb(pid: i32, line: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let found =
        text.lines().find_map(|found| found.strip_prefix(line)?.trim().trim_end_matches(" kB").parse::<f64>().ok());
    found.map_or(f64::NAN, |kb| kb / 1024.0)
}
