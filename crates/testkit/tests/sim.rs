//! Small simulated worlds, many of them: nothing breaks under faults, and everything ends when they stop.

use std::ops::Range;
use testkit::sim::{self, Promise};

fn check(seeds: Range<u64>, promises: &[Promise]) {
    let count = seeds.end - seeds.start;
    let broke = |report: &sim::Report| promises.iter().any(|promise| report.broke(*promise));
    let broken: Vec<String> = seeds.map(sim::run).filter(broke).map(|report| report.story()).collect();
    assert!(broken.is_empty(), "{} of {count} worlds broke {promises:?}:\n{}", broken.len(), broken.join("\n\n"));
}

// Two halves, so that two cores have something to do.
#[test]
fn worlds_are_safe() {
    check(0..100, &[Promise::Safe, Promise::NotRepeated]);
}

#[test]
fn more_worlds_are_safe() {
    check(100..200, &[Promise::Safe, Promise::NotRepeated]);
}

#[test]
fn everything_ends() {
    check(0..200, &[Promise::Ends]);
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in [1, 2, 3] {
        let (once, again) = (sim::run(seed), sim::run(seed));
        let differ = once.trace.iter().zip(&again.trace).find(|(a, b)| a != b);
        assert_eq!(once.hash, again.hash, "they part at {differ:?}");
    }
}
