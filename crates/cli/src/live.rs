//! The status line of a run on a terminal: queued, starting, running. Removed as soon as the run's own output goes to the same
//! terminal; not shown elsewhere.

use crate::control_plane::ControlPlane;
use crate::{say, show};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;
use wire::api::{RunView, Why};

const REDRAWN_EVERY: Duration = Duration::from_millis(120);
/// After a break of the event stream; the log's follower does the talking about it.
const PAUSE: Duration = Duration::from_secs(1);

pub struct Live {
    /// None when stderr is no terminal.
    line: Option<ProgressBar>,
    /// Whether the work's output goes to the same screen as the line.
    shares_screen: bool,
    last_byte: AtomicU8,
    terminal: bool,
    hidden: AtomicBool,
}

impl Live {
    /// A line if a person sees stderr; `text` until more is known.
    pub fn new(text: &str) -> Live {
        let terminal = std::io::stderr().is_terminal();
        let line = terminal.then(|| {
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}").expect("a template of ours");
            line.set_style(style.tick_chars("⠋⠙⠸⠴⠦⠇ "));
            line.set_message(shown(text));
            line.enable_steady_tick(REDRAWN_EVERY);
            line
        });
        let shares_screen = std::io::stdout().is_terminal();
        Live { line, shares_screen, last_byte: AtomicU8::new(b'\n'), terminal, hidden: AtomicBool::new(false) }
    }

    pub fn none() -> Live {
        let last_byte = AtomicU8::new(b'\n');
        Live { line: None, shares_screen: false, last_byte, terminal: false, hidden: AtomicBool::new(true) }
    }

    /// No line, but what is said begins on a line of its own.
    pub fn plain() -> Live {
        let (terminal, shares_screen) = (std::io::stderr().is_terminal(), std::io::stdout().is_terminal());
        Live { terminal, shares_screen, ..Live::none() }
    }

    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub fn phase(&self, text: String) {
        if let Some(line) = &self.line {
            // Drawn by itself, past the macros that everything else is printed with.
            line.set_message(shown(&text));
        }
    }

    /// A message for a person at a terminal; not printed elsewhere.
    pub fn say(&self, text: &str) {
        match &self.line {
            Some(line) if !self.hidden.load(Ordering::Relaxed) => line.suspend(|| eprintln!("repl: {text}")),
            Some(_) => eprintln!("repl: {text}"),
            None => {}
        }
    }

    /// A message that is printed also when stderr goes into a file.
    pub fn tell(&self, text: &str) {
        match &self.line {
            Some(line) if !self.hidden.load(Ordering::Relaxed) => line.suspend(|| eprintln!("repl: {text}")),
            _ => {
                self.end_line();
                eprintln!("repl: {text}");
            }
        }
    }

    /// The work is about to write.
    pub fn output(&self, stream: &str, bytes: &[u8]) {
        if self.shares_screen || stream != "stdout" {
            self.hide();
            self.last_byte.store(bytes.last().copied().unwrap_or(b'\n'), Ordering::Relaxed);
        }
    }

    /// The line is over; what follows begins on a line of its own.
    pub fn done(&self) {
        self.hide();
        self.end_line();
    }

    fn end_line(&self) {
        if self.terminal && self.last_byte.swap(b'\n', Ordering::Relaxed) != b'\n' {
            eprintln!();
        }
    }

    fn hide(&self) {
        if let Some(line) = &self.line
            && !self.hidden.swap(true, Ordering::Relaxed)
        {
            line.finish_and_clear();
        }
    }

    /// Shows the run's phase whenever something happened to it; waits for ever when there is no status line.
    pub async fn keep_up(&self, plane: &ControlPlane, run: &str) {
        let mut last: Option<String> = None;
        loop {
            if self.line.is_none() || self.hidden.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            if let Ok(mut events) = plane.events(&format!("/runs/{run}/events"), last.as_deref()).await {
                loop {
                    let waits = self.refresh(plane, run).await;
                    let mut next = std::pin::pin!(events.next());
                    // A run that waits hears nothing of those before it: they are counted again and again.
                    let event = loop {
                        tokio::select! {
                            event = &mut next => break event,
                            () = tokio::time::sleep(PAUSE), if waits => { self.refresh(plane, run).await; }
                        }
                    };
                    let Ok(Some(event)) = event else { break };
                    last = Some(event.id.clone());
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Live {
    /// Shows what the run does now; true while it waits for a machine.
    async fn refresh(&self, plane: &ControlPlane, run: &str) -> bool {
        let Ok(view) = plane.get::<RunView>(&format!("/runs/{run}")).await else { return false };
        let waits = view.status == "running" && view.phase.as_deref() == Some("queued");
        let why = match waits {
            true => plane.get::<Why>(&format!("/runs/{run}/why")).await.ok(),
            false => None,
        };
        self.phase(said(&view, why.as_ref().map(|why| why.summary.as_str())));
        waits
    }
}

/// In one row, whatever is drawn beside it and the ^C of a terminal included: only a row can be wiped.
fn shown(text: &str) -> String {
    const BESIDE: usize = 12;
    let room = show::columns_err().map_or(usize::MAX, |columns| columns.saturating_sub(BESIDE));
    say::cut(&say::harmless(&say::one_line(text)), room)
}

/// `why`: what a run that is queued waits for, in words that begin with `it`.
fn said(run: &RunView, why: Option<&str>) -> String {
    let place = run.instance.as_deref().map(|instance| format!(" on {instance}")).unwrap_or_default();
    let what = match (run.status.as_str(), run.phase.as_deref()) {
        ("running", Some("queued")) | ("pending", _) => {
            why.map_or("queued", |why| why.strip_prefix("it ").unwrap_or(why)).to_owned()
        }
        ("retrying", _) => format!("waits before attempt {} of {}", run.attempt_number, run.max_attempts),
        ("running", Some("provisioning")) => format!("starting{place}"),
        ("running", Some("pulling")) => format!("getting files{place}"),
        ("running", Some("running")) => format!("running{place}"),
        ("running", Some(phase)) => format!("{phase}{place}"),
        (status, _) => status.to_owned(),
    };
    // Without its name, which may be long: the line must fit into a row.
    format!("{} · {what}", run.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_waited_for() {
        let run = |status: &str, phase: Option<&str>| -> RunView {
            let mut run = crate::summary::sample();
            (run.status, run.phase, run.attempt_number) = (status.to_owned(), phase.map(str::to_owned), 2);
            run
        };
        let table = [
            (run("running", Some("queued")), Some("it waits behind 5 runs on local"), "waits behind 5 runs on local"),
            (run("running", Some("queued")), None, "queued"),
            (run("running", Some("pulling")), None, "getting files on ins_1"),
            (run("retrying", None), None, "waits before attempt 2 of 3"),
        ];
        for (run, why, line) in table {
            assert_eq!(said(&run, why), format!("run_9ix · {line}"));
        }
    }
}
