//! The whole system from the outside: the real binary, its embedded control plane, real runners and keepers, each test in a
//! home of its own. What is said is the business of the session snapshots; here it is what happens.

mod agents;
mod api;
mod cached;
mod called;
mod cluster;
mod cost;
mod crowd;
mod disk;
mod features;
mod following;
mod gate;
mod home;
mod hosts;
mod intents;
mod kills;
mod lost_database;
mod machines;
mod orphans;
mod output;
mod process;
mod providers;
mod refusals;
mod sandbox;
mod servers;
mod serving;
mod shared;
#[path = "../../../testkit/tests/support/skip.rs"]
mod skip;
mod ssh;
mod start;
mod steps;
mod stopping;
mod storms;
mod surroundings;
#[allow(
    dead_code,
    clippy::disallowed_methods,
    reason = "the tests of remotes use more of it; it waits for a store that says nothing by itself"
)]
#[path = "../../../adapters/tests/remote/weed.rs"]
mod weed;
