//! Remotes in a folder: pushes, pulls, writers beside one another, sweeps, damage, and kills between any two steps.

#![allow(clippy::disallowed_methods, reason = "waits for a real store to start, and says how long a large push took")]

mod cut;
mod damage;
mod histories;
mod large;
mod lossy;
mod pushing;
mod s3;
mod sweeping;
mod weed;
mod world;
