//! What a test says that this host cannot run. Compiled into each crate whose tests say it, by `#[path]`: those crates do not depend on
//! testkit.

/// Says that a test, or a part of it, is not run on this host, and why; `./scripts/test` lists it. `REPL_TEST_MUST=limits` names subjects that
/// this host is meant to have: then that is a failure.
pub fn skip(subject: &str, why: &str) {
    let known =
        include_str!("../../../../scripts/test").lines().find_map(|line| line.strip_prefix("readonly subjects=("));
    let known = known.and_then(|line| line.strip_suffix(')')).expect("scripts/test lists the subjects");
    assert!(known.split(' ').any(|it| it == subject), "{subject} is none of the subjects in scripts/test: {known}");
    let must = std::env::var("REPL_TEST_MUST").unwrap_or_default();
    assert!(!must.split(',').any(|it| it == subject), "REPL_TEST_MUST names {subject}, but {why}");
    eprintln!("SKIPPED ({subject}): {why}");
}
