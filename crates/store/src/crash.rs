//! Crash points of writes: each write has two, under its own name, before and after its commit. A real process dies there if it was
//! armed (`model::fault`), a simulated one if its hook returns true.

use model::fault;
pub use model::fault::Moment;
use std::sync::Arc;

/// Asked at each crash point of an inline store: true means "the process dies here".
pub type CrashHook = Arc<dyn Fn(&'static str, Moment) -> bool + Send + Sync>;

/// Called by an inline store after each write, with no lock held, so that it may read the store.
pub type Observer = Arc<dyn Fn() + Send + Sync>;

/// True when the hook wants this write to die. A process that was armed for it does not return.
pub(crate) fn reached(hook: Option<&CrashHook>, name: &'static str, moment: Moment) -> bool {
    fault::reached(name, moment);
    hook.is_some_and(|hook| hook(name, moment))
}
