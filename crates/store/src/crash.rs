//! Crash points of writes: each has two, named after it, before and after its commit. A real process dies there when it was
//! armed (`model::fault`), a simulated one where its own hook says so. Never does anything unless asked.

use model::fault;
pub use model::fault::Moment;
use std::sync::Arc;

/// Asked at each crash point of an inline store: true means "the process dies here".
pub type CrashHook = Arc<dyn Fn(&'static str, Moment) -> bool + Send + Sync>;

/// Called by an inline store after each write, with nothing locked: whoever watches may read what is there now.
pub type Observer = Arc<dyn Fn() + Send + Sync>;

/// True when the hook wants this write to die. A process that was armed for it does not return.
pub(crate) fn reached(hook: Option<&CrashHook>, name: &'static str, moment: Moment) -> bool {
    fault::reached(name, moment);
    hook.is_some_and(|hook| hook(name, moment))
}
