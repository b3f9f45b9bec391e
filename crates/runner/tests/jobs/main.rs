//! Real runners, real keepers and real processes against a control plane that remembers and fails on request.

mod control;
mod host;

mod containment;
mod crashes;
mod files;
mod limits;
mod output;
mod sandbox;
mod script;
mod servers;
#[path = "../../../testkit/tests/support/skip.rs"]
mod skip;
mod stdin;
mod steps;
mod stops;
mod surroundings;
