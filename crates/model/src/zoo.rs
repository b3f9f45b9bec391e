//! Which known bug is active in this process. Compiled only with `--cfg bug_zoo`, never into a released binary; therefore this module,
//! alone in this crate, may read the environment.

use std::sync::OnceLock;

static CHOSEN: OnceLock<Option<String>> = OnceLock::new();

/// True when `REPL_BUG` names it.
pub fn is_let_in(bug: &str) -> bool {
    CHOSEN.get_or_init(|| std::env::var(crate::fault::BUG).ok()).as_deref() == Some(bug)
}
