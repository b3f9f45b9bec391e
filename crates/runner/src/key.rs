//! Which try of which job: the name of its folder, of its environment mark and of every fact about it.

use std::fmt;
use std::str::FromStr;
use wire::model::JobId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub job: JobId,
    pub epoch: i64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.epoch)
    }
}

impl FromStr for Key {
    type Err = ();
    fn from_str(text: &str) -> Result<Key, ()> {
        let (job, epoch) = text.split_once('.').ok_or(())?;
        Ok(Key { job: job.parse().map_err(drop)?, epoch: epoch.parse().map_err(drop)? })
    }
}

#[test]
fn a_key_reads_back() {
    let key = Key { job: JobId(12345), epoch: 2 };
    assert_eq!(key.to_string(), "job_9ix.2");
    assert_eq!("job_9ix.2".parse(), Ok(key));
    assert!("next.7".parse::<Key>().is_err());
}
