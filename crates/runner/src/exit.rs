//! The exit record of a step, in a disk block that is allocated before the step begins: a full disk never loses an outcome.
//! The file has two parts: that the step may have begun, and how it ended.

use crate::durable;
use crate::record;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use wire::Base64;
use wire::model::crash_point;
use wire::runner::EndCause;

const FILE: &str = "exit";
const HALF: usize = 4096;
/// The second half also holds the end of the command's output.
const END: usize = 3 * HALF;
/// A message that would not fit into its half with all else is cut.
const LONGEST_MESSAGE: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExitRecord {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub cause: Option<EndCause>,
    pub message: Option<String>,
    pub final_offset: i64,
    pub active_ms: i64,
    pub started: bool,
    pub at_ms: i64,
    /// The end of its standard output, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_tail: Option<Base64>,
}

/// Allocates and syncs both halves, so that writing them later changes no metadata.
pub fn prepare(dir: &Path) -> io::Result<()> {
    let mut file = File::create_new(dir.join(FILE))?;
    file.write_all(&[0; HALF + END])?;
    durable::sync_all(&file)
}

/// Not synced: it tells the next runner on the same boot, and page cache outlives processes.
pub fn mark_begun(dir: &Path, at_ms: i64) -> io::Result<()> {
    crash_point!("exit.begun", block(dir)?.write_all_at(&record::seal(at_ms.to_string().as_bytes()), 0))
}

/// When the step may have begun.
pub fn begun(dir: &Path) -> Option<i64> {
    let bytes: [u8; HALF] = block_at(dir, 0)?;
    std::str::from_utf8(record::open(&bytes)?).ok()?.parse().ok()
}

pub fn write(dir: &Path, ended: &ExitRecord) -> io::Result<()> {
    let mut ended = ended.clone();
    if let Some(message) = &mut ended.message {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        // Escaped, a control character takes six bytes.
        *message = message.replace(char::is_control, " ");
    }
    let sealed = record::seal(&serde_json::to_vec(&ended)?);
    assert!(sealed.len() <= END, "an exit record fits its place");
    let file = block(dir)?;
    crash_point!("exit.write", file.write_all_at(&sealed, HALF as u64).and_then(|()| durable::sync_data(&file)))
}

pub fn read(dir: &Path) -> Option<ExitRecord> {
    let bytes: [u8; END] = block_at(dir, HALF as u64)?;
    serde_json::from_slice(record::open(&bytes)?).ok()
}

fn block(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(dir.join(FILE))
}

fn block_at<const SIZE: usize>(dir: &Path, at: u64) -> Option<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    File::open(dir.join(FILE)).ok()?.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

#[test]
fn an_outcome_reads_back_and_its_absence_is_known() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(read(dir.path()), None, "no file");
    prepare(dir.path()).unwrap();
    assert_eq!((read(dir.path()), begun(dir.path())), (None, None));
    mark_begun(dir.path(), 1700000000123).unwrap();
    assert_eq!((read(dir.path()), begun(dir.path())), (None, Some(1700000000123)));
    let stdout_tail = Some(Base64(vec![0; wire::runner::TAIL_BYTES]));
    let message = Some("\u{1}\"é".repeat(2000));
    let ended = ExitRecord { exit_code: Some(3), message, stdout_tail, ..ExitRecord::default() };
    write(dir.path(), &ended).unwrap();
    let back = read(dir.path()).unwrap();
    assert_eq!((back.exit_code, back.stdout_tail), (Some(3), ended.stdout_tail));
    assert!(back.message.unwrap().len() <= LONGEST_MESSAGE);
}
