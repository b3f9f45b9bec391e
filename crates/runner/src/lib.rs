//! The runner: the daemon on an instance, and the keeper, which holds the processes of one step. The runner is the authority on its
//! machine: it writes its journal before it acts, works on without the control plane, and repeats its reports until they are
//! acknowledged. Never opens a port and never decides what should run.

#![allow(clippy::disallowed_methods, reason = "lives in real time: processes, limits and silence are measured here")]

mod artifacts;
mod beneath;
mod cache;
mod cgroup;
mod clock;
mod contain;
mod containment;
mod daemon;
mod durable;
mod exit;
mod feature;
mod first;
mod init;
mod instance;
mod job;
mod journal;
mod keeper;
mod kept;
mod key;
mod link;
mod namespace;
mod orders;
mod output;
mod pages;
mod process;
mod record;
mod report;
mod sandbox;
#[cfg(test)]
#[path = "../../testkit/tests/support/skip.rs"]
mod skip;
mod slot;
mod socket;
mod spool;
mod step;
mod steps_socket;
mod sync;
mod tree;
mod usage;

pub use artifacts::MOST_FILES as SEARCHED_FILES;
pub use contain::{end, socket_path};
pub use containment::{Containment, Way};
pub use sandbox::FIX as SANDBOX_FIX;

use std::path::Path;
use std::process::ExitCode;

/// `repl runner --dir DIR`: serves the instance in that directory until it is told to leave. Returns at once, and well,
/// when another runner serves it already.
pub fn run(dir: &Path) -> ExitCode {
    match serve(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(dir = %dir.display(), %error, "the runner could not serve");
            ExitCode::FAILURE
        }
    }
}

fn serve(dir: &Path) -> std::io::Result<()> {
    only_for_the_owner();
    let Some(lock) = instance::lock_to_serve(dir)? else {
        tracing::info!(dir = %dir.display(), "another runner serves here");
        return Ok(());
    };
    // Nothing a runner inherited by accident goes on to keepers and jobs.
    // SAFETY: only marks descriptors, closes none. A kernel too old for it leaves them to the keeper, which closes them.
    unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    let instance = instance::Instance::open(dir)?;
    // One thread: its work is waiting. Hashing and deleting go to the few threads beside it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(8).build()?;
    let served = runtime.block_on(daemon::serve(instance, lock));
    // A download or a search that still runs must not keep a runner that leaves.
    runtime.shutdown_background();
    served
}

/// Journals, spools and logs hold what jobs say: whatever this process makes, other users cannot read. Jobs get a umask of
/// their own (`keeper::start`).
fn only_for_the_owner() {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
}

/// `repl keeper`: becomes a keeper. To be called before anything else starts: threads, runtimes, argument parsers.
pub fn keeper_main() -> ! {
    only_for_the_owner();
    keeper::main()
}

/// `repl first`: becomes the first process of a sandbox. To be called as early as [`keeper_main`].
pub fn first_main() -> ! {
    first::main()
}

/// What makes sandboxes on this host, e.g. `bubblewrap 0.8.0`; otherwise why there are none. Makes one, and remembers if that worked.
pub fn sandbox() -> Result<&'static str, String> {
    sandbox::can()
}

/// Whether a sandbox without the host's network can be made here, too.
pub fn sandbox_without_network() -> Result<(), String> {
    sandbox::probe(false).map(drop)
}

/// Which version of control groups can limit `memory` or `cpu` of jobs on this host.
pub fn limits(controller: &str) -> Option<&'static str> {
    cgroup::Layout::discover().limits(controller)
}

/// How processes of a dead keeper are ended on this host, and why not in a better way. `choice` is the best that may
/// be used: `cgroup`, `pidns` or `sweep`; without one the environment's (`REPL_CONTAINMENT`).
pub fn containment(choice: Option<&str>) -> Containment {
    containment::discover(choice.unwrap_or(&containment::choice())).0
}
