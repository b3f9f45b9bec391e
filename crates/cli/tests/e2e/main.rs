//! The whole system from the outside: the real binary, its embedded control plane, real runners and keepers, each test in a
//! home of its own. What is said is the business of the session snapshots; here it is what happens.

mod agents;
mod api;
mod cluster;
mod cost;
mod crowd;
mod disk;
mod following;
mod gate;
mod home;
mod intents;
mod kills;
mod machines;
mod orphans;
mod output;
mod process;
mod refusals;
mod servers;
mod serving;
mod shared;
mod start;
mod steps;
mod stopping;
mod storms;
mod surroundings;
