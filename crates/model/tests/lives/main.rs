//! Proof of the model: its tables against the fixtures, every small state of a whole world, and properties of the
//! decisions. Knows nothing outside the crate.

mod calls;
mod charting;
mod children;
mod dag;
mod explore;
mod fixture;
mod hierarchy;
mod invariants;
mod life;
mod limits;
mod machines;
mod money;
mod patterns;
mod placement;
mod samples;
mod settlement;
mod submission;
mod tables;
mod walks;
mod world;
