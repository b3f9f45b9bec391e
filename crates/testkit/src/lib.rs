//! The simulated world: the real engine on a real database in memory, with time, machines, people and luck that are ours.
//! One thread, one seed, one history. Never part of what serves anybody.

mod agent_machine;
mod auditor;
pub mod bare;
mod book;
mod chance;
mod client;
mod control;
mod database_pool;
mod duty;
mod faults;
mod follower;
mod judge;
mod machine;
mod people;
pub mod pgbench;
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
