//! Hints: "look again", sent after a commit and coalesced. The database is the truth; a lost hint costs at most one rescan.
//! Never carries anything a reader would have to believe.

use model::{InstanceId, JobId, RunId, Timestamp};
use std::collections::BTreeSet;
use tokio::sync::broadcast;
use tokio::sync::mpsc::UnboundedSender;

/// A receiver that falls further behind is told so (`Lagged`) and rescans.
const BACKLOG: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hint {
    /// A work item may be due then, or another one later: whoever looks earlier anyway need not look again.
    Work(Timestamp),
    /// Hints may have been missed: whoever follows anything looks again.
    Everything,
    /// Something about this run changed.
    Run(RunId),
    /// The instance's desired document changed.
    Instance(InstanceId),
    /// More log bytes of this job are durable.
    Logs(JobId),
    /// A token was revoked: whoever believes one looks again.
    Tokens,
}

impl Hint {
    pub(crate) fn to_line(self) -> String {
        match self {
            Hint::Work(at) => format!("w{}", at.ms()),
            Hint::Everything => "e".to_owned(),
            Hint::Run(id) => format!("r{}", id.0),
            Hint::Instance(id) => format!("i{}", id.0),
            Hint::Logs(id) => format!("l{}", id.0),
            Hint::Tokens => "t".to_owned(),
        }
    }

    /// Hints of a newer process that we do not know are dropped.
    pub(crate) fn from_line(line: &str) -> Option<Hint> {
        let number = || line.get(1..).and_then(|n| n.parse().ok());
        match line.as_bytes().first()? {
            // Without a time from a process that is older than it: at once.
            b'w' => Some(Hint::Work(Timestamp(number().unwrap_or(0)))),
            b'e' => Some(Hint::Everything),
            b'r' => number().map(RunId).map(Hint::Run),
            b'i' => number().map(InstanceId).map(Hint::Instance),
            b'l' => number().map(JobId).map(Hint::Logs),
            b't' => Some(Hint::Tokens),
            _ => None,
        }
    }
}

/// Of the times when something may be due, the earliest counts for all: in their order it comes first.
pub(crate) fn keep_the_earliest(hints: &mut BTreeSet<Hint>) {
    let mut told = false;
    hints.retain(|hint| !matches!(hint, Hint::Work(_)) || !std::mem::replace(&mut told, true));
}

/// Sends what was committed to every listener in this process and, on PostgreSQL, to the others.
#[derive(Clone)]
pub(crate) struct Hints {
    here: broadcast::Sender<Hint>,
    others: Option<UnboundedSender<BTreeSet<Hint>>>,
}

impl Hints {
    pub(crate) fn new(others: Option<UnboundedSender<BTreeSet<Hint>>>) -> Hints {
        Hints { here: broadcast::Sender::new(BACKLOG), others }
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Hint> {
        self.here.subscribe()
    }

    pub(crate) fn committed(&self, mut hints: BTreeSet<Hint>) {
        keep_the_earliest(&mut hints);
        self.heard(&hints);
        if let Some(others) = self.others.as_ref().filter(|_| !hints.is_empty()) {
            // The notifier ends only with the store; then nobody is left to tell.
            let _ = others.send(hints);
        }
    }

    /// The same listeners, without the other processes: for whoever hears from those.
    pub(crate) fn only_here(&self) -> Hints {
        Hints { here: self.here.clone(), others: None }
    }

    /// From another process, or about to be: local listeners only.
    pub(crate) fn heard(&self, hints: &BTreeSet<Hint>) {
        for hint in hints {
            // An error means that nobody listens.
            let _ = self.here.send(*hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hint_reads_back() {
        for hint in [
            Hint::Work(Timestamp(6)),
            Hint::Everything,
            Hint::Run(RunId(7)),
            Hint::Instance(InstanceId(8)),
            Hint::Logs(JobId(9)),
            Hint::Tokens,
        ] {
            assert_eq!(Hint::from_line(&hint.to_line()), Some(hint));
        }
        assert_eq!(Hint::from_line("w"), Some(Hint::Work(Timestamp(0))));
        assert_eq!(Hint::from_line("z1"), None);
        assert_eq!(Hint::from_line(""), None);
    }

    #[test]
    fn of_many_times_the_earliest_is_told() {
        let hints = Hints::new(None);
        let mut heard = hints.listen();
        let works = [7, 3, 9].map(|ms| Hint::Work(Timestamp(ms)));
        hints.committed(works.into_iter().chain([Hint::Tokens, Hint::Run(RunId(1))]).collect());
        let told: BTreeSet<Hint> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert_eq!(told, BTreeSet::from([Hint::Work(Timestamp(3)), Hint::Run(RunId(1)), Hint::Tokens]));
    }
}
