//! The key of a try: job, epoch, step and number of the try. It names the try's folder and its mark in the environment, and is in every
//! report about it.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use wire::model::step::StepTry;
use wire::model::{JobId, StepId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    pub job: JobId,
    pub epoch: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub of: JobKey,
    pub step: StepTry,
}

impl JobKey {
    pub fn step(self, step: StepTry) -> Key {
        Key { of: self, step }
    }

    /// An MCP server of this job, by its name; `number` tells it from those of the same name before it. Servers are held as steps are, by
    /// a keeper in a folder of their own, so they have the same kind of key. Tries of steps count from 1, servers below 0.
    pub fn server(self, name: &str, number: i64) -> Key {
        self.step(StepTry { id: server_id(name), number: -number.max(1) })
    }

    /// Where the steps of this job lie in a map of all.
    pub fn steps(self) -> RangeInclusive<Key> {
        let end = |id, number| self.step(StepTry { id: StepId(id), number });
        end(i64::MIN, i64::MIN)..=end(i64::MAX, i64::MAX)
    }
}

impl Key {
    /// Of a server, and not of a step that the control plane knows.
    pub fn is_server(self) -> bool {
        self.step.number < 0
    }

    pub fn is_server_called(self, name: &str) -> bool {
        self.is_server() && self.step.id == server_id(name)
    }
}

fn server_id(name: &str) -> StepId {
    let hash = blake3::hash(name.as_bytes());
    let (first, _) = hash.as_bytes().split_at(8);
    StepId(i64::from_le_bytes(first.try_into().expect("eight bytes")) & (i64::MAX >> 8))
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.epoch)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.of, self.step)
    }
}

impl FromStr for JobKey {
    type Err = ();
    fn from_str(text: &str) -> Result<JobKey, ()> {
        let (job, epoch) = text.split_once('.').ok_or(())?;
        Ok(JobKey { job: job.parse().map_err(drop)?, epoch: epoch.parse().map_err(drop)? })
    }
}

impl FromStr for Key {
    type Err = ();
    fn from_str(text: &str) -> Result<Key, ()> {
        let parts: Vec<&str> = text.split('.').collect();
        let [job, epoch, step, number] = parts[..] else { return Err(()) };
        let of = JobKey { job: job.parse().map_err(drop)?, epoch: epoch.parse().map_err(drop)? };
        Ok(of.step(StepTry { id: step.parse().map_err(drop)?, number: number.parse().map_err(drop)? }))
    }
}

#[test]
fn a_key_reads_back() {
    let key = JobKey { job: JobId(12345), epoch: 2 }.step(StepTry { id: StepId(7), number: 3 });
    assert_eq!(key.to_string(), "job_9ix.2.stp_7.3");
    assert_eq!("job_9ix.2.stp_7.3".parse(), Ok(key));
    let server = key.of.server("files", 1_700_000_000_000);
    assert!(server.is_server() && server.is_server_called("files") && !server.is_server_called("other"));
    assert_eq!(server.to_string().parse(), Ok(server));
    assert!(!key.is_server() && key.of.steps().contains(&server));
    assert!("next.7".parse::<Key>().is_err());
    assert!("job_9ix.2".parse::<Key>().is_err());
}
