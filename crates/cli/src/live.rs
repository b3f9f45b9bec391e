//! The one live line of a run on a terminal: queued, starting, running. Gone as soon as the work speaks to the same
//! screen; silent everywhere else.

use crate::control_plane::ControlPlane;
use crate::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;
use wire::api::RunView;

const REDRAWN_EVERY: Duration = Duration::from_millis(120);
/// After a break of the event stream; the log's follower does the talking about it.
const PAUSE: Duration = Duration::from_secs(1);

pub struct Live {
    /// None when nobody watches.
    line: Option<ProgressBar>,
    /// Whether the work's output goes to the same screen as the line.
    shares_screen: bool,
    last_byte: AtomicU8,
    terminal: bool,
    hidden: AtomicBool,
}

impl Live {
    /// A line if a person sees stderr.
    pub fn new() -> Live {
        let terminal = std::io::stderr().is_terminal();
        let line = terminal.then(|| {
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("a template of ours");
            line.set_style(style.tick_chars("⠋⠙⠸⠴⠦⠇ "));
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

    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub fn phase(&self, text: String) {
        if let Some(line) = &self.line {
            // Drawn by itself, past the macros that everything else is printed with.
            line.set_message(say::harmless(&say::one_line(&text)));
        }
    }

    /// Something a person should read now; nobody does elsewhere.
    pub fn say(&self, text: &str) {
        match &self.line {
            Some(line) if !self.hidden.load(Ordering::Relaxed) => line.suspend(|| eprintln!("repl: {text}")),
            Some(_) => eprintln!("repl: {text}"),
            None => {}
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
        if self.terminal && self.last_byte.load(Ordering::Relaxed) != b'\n' {
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

    /// Shows the run's phase whenever something happened to it; waits for ever when nobody watches.
    pub async fn keep_up(&self, plane: &ControlPlane, run: &str) {
        let mut last: Option<String> = None;
        loop {
            if self.line.is_none() || self.hidden.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            if let Ok(mut events) = plane.events(&format!("/runs/{run}/events"), last.as_deref()).await {
                while let Ok(Some(event)) = events.next().await {
                    last = Some(event.id.clone());
                    if let Ok(view) = plane.get::<RunView>(&format!("/runs/{run}")).await {
                        self.phase(said(&view));
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn said(run: &RunView) -> String {
    let place = run.instance.as_deref().map(|instance| format!(" on {instance}")).unwrap_or_default();
    let what = match (run.status.as_str(), run.phase.as_deref()) {
        ("running", Some("queued")) | ("pending", _) => "queued".to_owned(),
        ("running", Some("provisioning")) => format!("starting{place}"),
        ("running", Some("pulling")) => format!("getting files{place}"),
        ("running", Some("running")) => format!("running{place}"),
        ("running", Some(phase)) => format!("{phase}{place}"),
        (status, _) => status.to_owned(),
    };
    format!("{} {} · {what}", run.id, run.name)
}
