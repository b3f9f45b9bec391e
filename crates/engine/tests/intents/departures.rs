//! Providers that are removed: what becomes of the machines they have.

use crate::bench::{Bench, now, settings, spec};
use crate::cleanups::written;
use crate::machines::Plan;
use engine::Config;
use model::Timestamp;
use model::instance::InstanceStatus;
use model::provider_row::{Departure, ProviderRow};
use model::run::RunStatus;
use model::time::MINUTE;
use store::Moment;

fn row() -> ProviderRow {
    ProviderRow {
        name: "fake".to_owned(),
        kind: "fake".to_owned(),
        keys: Default::default(),
        orgs: None,
        price_per_hour: None,
        of_settings: false,
        leaving: false,
        departure: Departure::default(),
        added_by: "a test".to_owned(),
        added_at: Timestamp(0),
    }
}

/// The control plane dies between the ends of two machines: the other one is ended by the provider's work item.
#[test]
fn a_provider_that_is_removed_by_force_ends_all_its_machines_wherever_the_control_plane_dies() {
    for write in 0..3 {
        let mut bench = Bench::with(settings(2), Config::default());
        bench.runners.plan = Some(Plan::Run);
        let runs = [(); 2].map(|()| bench.submit(spec()));
        bench.settle();
        let machines = runs.map(|run| bench.job(run).instance.unwrap());
        written(&mut bench, |tx| store::provider::put(tx, &row()).unwrap());
        bench.crashes.count();
        bench.crashes.arm(write, Moment::After);
        now(bench.engine.remove_provider("fake", true, "somebody".to_owned())).unwrap_err();
        assert!(bench.revive(), "write {write}");
        bench.advance(5 * MINUTE);
        for (run, machine) in runs.into_iter().zip(machines) {
            let ended = now(bench.engine.instance(bench.org, machine)).unwrap().status;
            assert_eq!((ended, bench.run(run).status), (InstanceStatus::Terminated, RunStatus::Cancelled), "{write}");
        }
        assert!(bench.run(runs[0]).ended_by.is_some_and(|by| by.contains("somebody")), "write {write}");
        bench.check();
    }
}
