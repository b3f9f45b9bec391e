//! Ends the process when the database's files can no longer be trusted. What a failed write or sync has left on disk is unknown, and a
//! second try may report success for pages that the kernel has already dropped: only a restart, which reads the files, is safe.

use std::fmt::Display;
use std::io::Write as _;

/// Logs the reason (to standard error if no logger is installed) and aborts. No caller is answered any more.
pub(crate) fn end_process(error: impl Display) -> ! {
    tracing::error!(%error, "the database could not be written: ending the process, because a failed write must not be repeated");
    if !tracing::dispatcher::has_been_set() {
        let _ = writeln!(std::io::stderr(), "the database could not be written: {error}: ending the process");
    }
    std::process::abort();
}
