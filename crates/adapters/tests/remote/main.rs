//! Remotes in a folder: pushes, pulls, writers beside one another, sweeps, damage, and kills between any two steps.

mod cut;
mod damage;
mod histories;
mod pushing;
mod sweeping;
mod world;
