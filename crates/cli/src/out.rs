//! What commands print. The standard macros panic when a write fails; the ones here, which take their names, do not: output that
//! cannot be written (a full disk behind `>`) ends the command with a sentence and code 2, and a lost stderr is nobody's loss.

use crate::complaint::{Complaint, USAGE};
use std::io::Write as _;

/// One line of output on stdout.
macro_rules! println {
    () => { $crate::out::line(format_args!("")) };
    ($($words:tt)*) => { $crate::out::line(format_args!($($words)*)) };
}

/// One line for people on stderr.
macro_rules! eprintln {
    () => { $crate::out::note(format_args!("")) };
    ($($words:tt)*) => { $crate::out::note(format_args!($($words)*)) };
}

/// Output without an end of line.
#[allow(unused_macros, reason = "the standard one must not be met by the first who needs it")]
macro_rules! print {
    ($($words:tt)*) => { $crate::out::bytes(format!($($words)*).as_bytes()) };
}

/// Words for people without an end of line.
#[allow(unused_macros, reason = "the standard one must not be met by the first who needs it")]
macro_rules! eprint {
    ($($words:tt)*) => { $crate::out::hint(format_args!($($words)*)) };
}

pub fn line(words: std::fmt::Arguments<'_>) {
    written(writeln!(std::io::stdout().lock(), "{words}"));
}

/// As they are, and at once.
pub fn bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()));
}

pub fn note(words: std::fmt::Arguments<'_>) {
    writeln!(std::io::stderr().lock(), "{words}").ok();
}

pub fn hint(words: std::fmt::Arguments<'_>) {
    write!(std::io::stderr().lock(), "{words}").ok();
}

/// There is nobody left to tell the result, so the command is over; nothing it started ends with it.
fn written(result: std::io::Result<()>) {
    if let Err(error) = result {
        note(format_args!("{}", unwritten(&error)));
        std::process::exit(USAGE.into());
    }
}

/// The complaint about output that could not be written.
pub fn unwritten(error: &std::io::Error) -> Complaint {
    Complaint::usage(format!("cannot write the output: {error}"))
}
