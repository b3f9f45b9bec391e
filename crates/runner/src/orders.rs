//! The protocol between runner and keeper on the keeper's socket: orders are JSON with a length prefix, answers are
//! single bytes, which cannot be torn. The only way by which secret values leave the runner; the keeper holds them in memory only.

use crate::cgroup::Groups;
use crate::sandbox::Sandbox;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use wire::runner::EndCause;

/// More environment than any kernel lets a command have.
const LONGEST: usize = 16 << 20;

#[derive(Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum KeeperOrder {
    Start(Box<Start>),
    /// The job ends before it began: its files did not arrive, or it was cancelled meanwhile.
    Refuse {
        cause: EndCause,
        message: String,
    },
    Freeze,
    Thaw,
    /// SIGTERM to the tree, SIGKILL after this long.
    Stop {
        cause: EndCause,
        within_ms: i64,
    },
    /// SIGKILL at once.
    Abort {
        cause: EndCause,
    },
    /// Output below this offset is durable elsewhere.
    Delivered {
        offset: i64,
    },
    /// Whether the control plane is there to take output: with it a full spool holds the job back, without it output
    /// is dropped with a mark.
    Link {
        up: bool,
    },
}

/// No `Debug`: it carries secrets.
#[derive(Serialize, Deserialize)]
pub struct Start {
    pub key: String,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Values to hide in the output.
    pub secrets: Vec<String>,
    pub dir: PathBuf,
    pub merge: bool,
    /// The end of its standard output goes into the exit record.
    pub tail: bool,
    /// Its standard output goes into the file of its answer, and not into its log.
    pub answers: bool,
    pub max_duration_ms: Option<i64>,
    pub stop_duration_ms: i64,
    pub spool_bytes: u64,
    /// Those of the folder, with the job's limits.
    pub groups: Groups,
    /// A file whose bytes become the command's standard input.
    pub stdin: Option<PathBuf>,
    /// What the reader of the log should know before the first output.
    pub note: Option<String>,
    /// The command runs in it; an older runner asks for none.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
}

pub fn pack(order: &KeeperOrder) -> Vec<u8> {
    let body = serde_json::to_vec(order).expect("orders are plain data");
    let mut packed = Vec::with_capacity(4 + body.len());
    packed.extend_from_slice(&(body.len() as u32).to_le_bytes());
    packed.extend_from_slice(&body);
    packed
}

/// Takes the first whole order out of what has arrived.
pub fn unpack(arrived: &mut Vec<u8>) -> io::Result<Option<KeeperOrder>> {
    let Some(length) = arrived.first_chunk::<4>().map(|head| u32::from_le_bytes(*head) as usize) else {
        return Ok(None);
    };
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an order longer than any"));
    }
    if arrived.len() < 4 + length {
        return Ok(None);
    }
    let order = serde_json::from_slice(&arrived[4..4 + length])?;
    arrived.drain(..4 + length);
    Ok(Some(order))
}

/// What a keeper tells, one byte each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Also said first to a runner that attaches to a job under way.
    Started,
    /// There is more output than before.
    Wrote,
    /// Everything of the job stands still, or goes on.
    Froze,
    Thawed,
}

impl Told {
    pub fn byte(self) -> u8 {
        match self {
            Told::Started => b's',
            Told::Wrote => b'w',
            Told::Froze => b'f',
            Told::Thawed => b't',
        }
    }
}

/// What was told, in order; of a job's start and its output once is enough.
pub fn heard(bytes: &[u8]) -> Vec<Told> {
    let once = [Told::Started, Told::Wrote].into_iter().filter(|told| bytes.contains(&told.byte()));
    let turns =
        bytes.iter().filter_map(|byte| [Told::Froze, Told::Thawed].into_iter().find(|told| told.byte() == *byte));
    once.chain(turns).collect()
}

#[test]
fn what_a_keeper_tells_is_heard_in_order() {
    assert_eq!(heard(b"wswft"), [Told::Started, Told::Wrote, Told::Froze, Told::Thawed]);
    assert_eq!(heard(b"tfwt?"), [Told::Wrote, Told::Thawed, Told::Froze, Told::Thawed]);
}

#[test]
fn orders_arrive_whole_wherever_they_are_cut() {
    let mut bytes = pack(&KeeperOrder::Stop { cause: EndCause::Stopped, within_ms: 5 });
    bytes.extend(pack(&KeeperOrder::Freeze));
    let (mut arrived, mut orders) = (Vec::new(), 0);
    for byte in bytes {
        arrived.push(byte);
        orders += usize::from(unpack(&mut arrived).unwrap().is_some());
    }
    assert_eq!((orders, arrived.len()), (2, 0));
    assert!(unpack(&mut vec![0xff; 8]).is_err());
}
