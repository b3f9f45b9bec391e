//! Runs of agents from the outside: the real binary against a scripted server of models and a recorder of effects, while processes die,
//! servers misbehave and models lie.

#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/api.rs"]
mod api;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/cluster.rs"]
mod cluster;
mod cut_off;
mod effects;
mod example;
mod hierarchy;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/home.rs"]
mod home;
mod hostile;
mod life;
mod listener;
mod loops;
mod mcp;
mod model;
mod money;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/process.rs"]
mod process;
mod recorder;
mod refused;
mod sandbox;
mod scene;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/servers.rs"]
mod servers;
