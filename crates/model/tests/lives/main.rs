//! Proof of the model: its tables against the fixtures, every small state of a whole world, and properties of the
//! decisions. Knows nothing outside the crate.

mod charting;
mod dag;
mod fixture;
mod samples;
mod tables;
mod walks;
