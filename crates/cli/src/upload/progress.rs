//! A bar on a terminal while many files are read or sent: how many, how much, how fast. Silent elsewhere, and for what is over at once.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Less than this is over before a person has read a bar.
const WORTH_FILES: usize = 200;
const WORTH_BYTES: i64 = 16 << 20;

pub struct Progress {
    bar: Option<ProgressBar>,
    files: usize,
    done: AtomicUsize,
}

impl Progress {
    pub fn new(verb: &'static str, files: usize, bytes: i64) -> Progress {
        let is_worth_it = files >= WORTH_FILES || bytes >= WORTH_BYTES;
        let bar = (is_worth_it && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(bytes.max(0) as u64), ProgressDrawTarget::stderr());
            let template = "{spinner} {prefix} {msg} · {bytes}/{total_bytes} · {bytes_per_sec}";
            bar.set_style(ProgressStyle::with_template(template).expect("a template of ours"));
            bar.set_prefix(verb);
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        let progress = Progress { bar, files, done: AtomicUsize::new(0) };
        progress.advance(0, 0);
        progress
    }

    pub fn advance(&self, files: usize, bytes: i64) {
        let done = self.done.fetch_add(files, Ordering::Relaxed) + files;
        if let Some(bar) = &self.bar {
            bar.inc(bytes.max(0) as u64);
            bar.set_message(format!("{done}/{} {}", self.files, if self.files == 1 { "file" } else { "files" }));
        }
    }

    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
