//! Records panics on this thread during a simulation: the store turns a panic into an error of one transaction, which is right for
//! a server but would hide a bug here.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;

thread_local! {
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Panics during `f` are kept instead of printed. One that ends `f` goes on with the text of all of them.
pub fn watching<T>(f: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let kept = SEEN.with_borrow_mut(|seen| seen.as_mut().map(|seen| seen.push(panic.to_string())));
            if kept.is_none() {
                usual(panic);
            }
        }));
    });
    SEEN.set(Some(Vec::new()));
    let result = catch_unwind(AssertUnwindSafe(f));
    let seen = SEEN.take().unwrap_or_default();
    result.unwrap_or_else(|_| resume_unwind(Box::new(seen.join("\n"))))
}

pub fn panics() -> Vec<String> {
    SEEN.with_borrow(|seen| seen.clone().unwrap_or_default())
}
