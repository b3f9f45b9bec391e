//! Crash points: every write has two, named after it, before and after its commit. `REPL_CRASH=submit:before` kills the
//! process there; a simulation decides by its own hook. Never does anything unless asked.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// Asked at each crash point of an inline store: true means "the process dies here".
pub type CrashHook = Arc<dyn Fn(&'static str, Moment) -> bool + Send + Sync>;

/// The names of all writes this process has reached so far: what a kill test can choose from.
pub fn points() -> Vec<&'static str> {
    REACHED.lock().expect("no panic while crash points are locked").iter().copied().collect()
}

static REACHED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
static CHOSEN: OnceLock<Option<(String, Moment)>> = OnceLock::new();

/// True when the hook wants this write to die. The environment's choice never returns.
pub(crate) fn reached(hook: Option<&CrashHook>, name: &'static str, moment: Moment) -> bool {
    if moment == Moment::Before {
        REACHED.lock().expect("no panic while crash points are locked").insert(name);
    }
    let chosen = CHOSEN.get_or_init(|| parse(&std::env::var("REPL_CRASH").ok()?));
    if chosen.as_ref().is_some_and(|(at, when)| at == name && *when == moment) {
        std::process::abort();
    }
    hook.is_some_and(|hook| hook(name, moment))
}

fn parse(text: &str) -> Option<(String, Moment)> {
    let (name, moment) = text.rsplit_once(':')?;
    let moment = match moment {
        "before" => Moment::Before,
        "after" => Moment::After,
        _ => return None,
    };
    Some((name.to_owned(), moment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_named_by_write_and_moment() {
        assert_eq!(parse("submit:before"), Some(("submit".to_owned(), Moment::Before)));
        assert_eq!(parse("log.append:after"), Some(("log.append".to_owned(), Moment::After)));
        assert_eq!(parse("submit"), None);
        assert_eq!(parse("submit:during"), None);
    }
}
