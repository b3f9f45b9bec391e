//! Hints: notifications that something changed, sent after a commit and coalesced. They carry no data, only what to read again; a
//! lost hint delays a reader until its next poll.

use model::log::LogId;
use model::{InstanceId, OrgId, RunId, Timestamp};
use std::collections::BTreeSet;
use tokio::sync::broadcast;
use tokio::sync::mpsc::UnboundedSender;

/// A receiver that falls further behind gets `Lagged` and rescans.
const BACKLOG: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hint {
    /// A work item may be due at this time. A worker that polls earlier anyway can ignore it.
    Work(Timestamp),
    /// Hints may have been missed: every listener reads again.
    Everything,
    /// Something about this run changed.
    Run(RunId),
    /// A row of this run was written: its own, or one of an attempt, agent, task or step of it. Pages read it again; nothing of the engine
    /// waits for it, because it comes with nearly every commit of a run.
    Rows(RunId),
    /// The instance's desired document changed.
    Instance(InstanceId),
    /// More bytes of this log are durable.
    Logs(LogId),
    /// More frames of a run that has several logs are durable.
    RunLogs(RunId),
    /// A step is offered to programs of this org that poll.
    Offers(OrgId),
    /// A token was revoked or a session ended: caches of tokens and sessions are emptied.
    Tokens,
    /// Something of this org changed that a listing shows.
    Org(OrgId, Topic),
    /// Providers were added or removed: every process reads them again.
    Providers,
    /// What the page of orphans shows changed. Orphans belong to no org.
    Orphans,
}

/// Which listing of an org changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    Runs,
    Machines,
    /// Tickets and approvals.
    Inbox,
    Money,
    /// Executions of calls, and results that are kept.
    Calls,
    Workflows,
}

impl Topic {
    const ALL: [(Topic, char); 6] = [
        (Topic::Runs, 'r'),
        (Topic::Machines, 'm'),
        (Topic::Inbox, 'i'),
        (Topic::Money, 'c'),
        (Topic::Calls, 'x'),
        (Topic::Workflows, 'w'),
    ];

    fn letter(self) -> char {
        Topic::ALL.iter().find(|(topic, _)| *topic == self).map_or(' ', |(_, letter)| *letter)
    }
    fn of(letter: char) -> Option<Topic> {
        Topic::ALL.iter().find(|(_, of)| *of == letter).map(|(topic, _)| *topic)
    }
}

impl Hint {
    pub(crate) fn to_line(self) -> String {
        match self {
            Hint::Work(at) => format!("w{}", at.ms()),
            Hint::Everything => "e".to_owned(),
            Hint::Run(id) => format!("r{}", id.0),
            Hint::Rows(id) => format!("h{}", id.0),
            Hint::Instance(id) => format!("i{}", id.0),
            Hint::Logs(log) => format!("l{}.{}", log.key().0, log.key().1),
            Hint::RunLogs(id) => format!("f{}", id.0),
            Hint::Offers(org) => format!("o{}", org.0),
            Hint::Org(org, topic) => format!("g{}{}", topic.letter(), org.0),
            Hint::Tokens => "t".to_owned(),
            Hint::Providers => "p".to_owned(),
            Hint::Orphans => "u".to_owned(),
        }
    }

    /// Kinds of hints that only a newer process knows are dropped.
    pub(crate) fn from_line(line: &str) -> Option<Hint> {
        let number = || line.get(1..).and_then(|n| n.parse().ok());
        match line.as_bytes().first()? {
            // A process without times in its hints means: due at once.
            b'w' => Some(Hint::Work(Timestamp(number().unwrap_or(0)))),
            b'e' => Some(Hint::Everything),
            b'r' => number().map(RunId).map(Hint::Run),
            b'h' => number().map(RunId).map(Hint::Rows),
            b'i' => number().map(InstanceId).map(Hint::Instance),
            b'l' => {
                let (subject, number) = line[1..].split_once('.')?;
                Some(Hint::Logs(LogId::from_key(subject.parse().ok()?, number.parse().ok()?)))
            }
            b'f' => number().map(RunId).map(Hint::RunLogs),
            b'o' => number().map(OrgId).map(Hint::Offers),
            b'g' => {
                let mut rest = line[1..].chars();
                let topic = Topic::of(rest.next()?)?;
                Some(Hint::Org(OrgId(rest.as_str().parse().ok()?), topic))
            }
            b't' => Some(Hint::Tokens),
            b'p' => Some(Hint::Providers),
            b'u' => Some(Hint::Orphans),
            _ => None,
        }
    }
}

/// Keeps one `Work` hint, the one with the earliest time, which is the first in the order of the set.
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
            // An error: the notifier has ended, with the store.
            let _ = others.send(hints);
        }
    }

    /// The same listeners without the other processes: for the task that receives hints from those.
    pub(crate) fn only_here(&self) -> Hints {
        Hints { here: self.here.clone(), others: None }
    }

    /// Sends to the listeners in this process only.
    pub(crate) fn heard(&self, hints: &BTreeSet<Hint>) {
        for hint in hints {
            // An error: there is no listener.
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
            Hint::Rows(RunId(7)),
            Hint::Instance(InstanceId(8)),
            Hint::Logs(LogId::from_key(9, 0)),
            Hint::Logs(LogId::from_key(9, 2)),
            Hint::RunLogs(RunId(10)),
            Hint::Offers(OrgId(11)),
            Hint::Tokens,
            Hint::Org(OrgId(12), Topic::Machines),
            Hint::Org(OrgId(13), Topic::Runs),
            Hint::Org(OrgId(14), Topic::Workflows),
            Hint::Orphans,
        ] {
            assert_eq!(Hint::from_line(&hint.to_line()), Some(hint));
        }
        assert_eq!(Hint::from_line("w"), Some(Hint::Work(Timestamp(0))));
        assert_eq!(Hint::from_line("gz1"), None);
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
