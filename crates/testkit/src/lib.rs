//! The simulator: the real engine on a real SQLite database in memory, with simulated time, machines, users and randomness.
//! One thread; a seed determines the whole history. Not part of a serving process.

mod agent_machine;
mod auditor;
pub mod bare;
mod book;
mod cached_run;
mod chance;
mod client;
mod control;
mod database_pool;
mod duty;
mod external_run;
mod faults;
mod follower;
mod judge;
mod loss;
mod machine;
mod outsider;
mod people;
pub mod pgbench;
pub mod pinned;
mod plans;
mod process;
mod program;
mod provider;
pub mod rehearsal;
mod runner;
pub mod scene;
pub mod shrink;
pub mod sim;
mod talker;
mod time;
mod tool;
mod trace;
mod truth;
mod watch;
mod world;
