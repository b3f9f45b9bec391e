//! Some simulations in an unoptimised build; `repl sim` runs thousands of them. Under faults no promise is broken, and every run ends
//! when the faults stop.

use std::collections::BTreeSet;
use std::ops::Range;
use testkit::sim::{self, Report};

fn check(seeds: Range<u64>) {
    let count = seeds.end - seeds.start;
    let broken: Vec<String> =
        seeds.map(sim::run).filter(|report| !report.is_good()).map(|report| report.story()).collect();
    assert!(broken.is_empty(), "{} of {count} worlds broke:\n{}", broken.len(), broken.join("\n\n"));
}

// Two halves, so that two cores have something to do.
#[test]
fn worlds_are_good() {
    check(0..100);
}

#[test]
fn more_worlds_are_good() {
    check(100..200);
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 0..20 {
        let again = sim::run(seed).compared_with(&sim::run(seed));
        assert!(again.is_good(), "{}", again.story());
    }
    assert_ne!(sim::run(1).hash, sim::run(2).hash);
}

#[test]
fn a_world_can_be_lived_again_from_the_list_of_its_faults() {
    let stormy = (0..).map(sim::run).find(|report| report.faults.len() > 20).expect("one of many is stormy");
    let again = sim::run_with(stormy.seed, &stormy.decisions());
    assert_eq!((again.hash, again.faults), (stormy.hash, stormy.faults));
    let calm = sim::run_with(stormy.seed, &[]);
    assert!(calm.faults.is_empty() && calm.is_good(), "{}", calm.story());
}

/// A fault that never strikes is not simulated, whatever the list says.
#[test]
fn every_kind_of_fault_is_met() {
    let met = |report: &Report| report.faults.iter().map(|(_, decision)| decision.kind).collect::<BTreeSet<_>>();
    let mut missing: BTreeSet<sim::Kind> = sim::Kind::ALL.iter().copied().collect();
    for seed in 0..400 {
        missing = &missing - &met(&sim::run(seed));
        if missing.is_empty() {
            return;
        }
    }
    panic!("never met: {missing:?}");
}

/// Nor is what no world comes to.
#[test]
fn every_situation_is_met() {
    let mut missing: BTreeSet<sim::Situation> = sim::Situation::ALL.iter().copied().collect();
    for seed in 0..600 {
        missing = &missing - &sim::run(seed).met;
        if missing.is_empty() {
            return;
        }
    }
    panic!("never met: {missing:?}");
}
