//! The pages as a person meets them: the real binary, a real browser. Each test makes a home, then a script of this folder drives Chromium.
//! A violation of the CSP, an error on the console or in a page fails the test, whatever the script looks at.

#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/api.rs"]
mod api;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/cluster.rs"]
mod cluster;
mod crowd;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/gate.rs"]
mod gate;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/home.rs"]
mod home;
mod opened;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/process.rs"]
mod process;
mod scenes;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/servers.rs"]
mod servers;
