//! Stories of machines that are prepared and ended, and of a provider that is removed with its own.

use super::open_machines;
use crate::gate::Gate;
use crate::world::{World, count};

pub(super) fn a_machine_is_ended(world: &World) {
    let run = world.submit(&["--hold", "0s"], "seq 1 20", 0, &count(20));
    world.ends(&run);
    for machine in open_machines(world) {
        world.insist(&["instance", "terminate", &machine], 0);
    }
    world.until("machines end", || open_machines(world).is_empty() && world.runner().is_none());
    world.until("their folders go", || {
        let left = std::fs::read_dir(world.home.data().join("instances")).unwrap().flatten();
        left.filter(|entry| entry.path().is_dir()).count() == 0
    });
    let run = world.submit(&[], "exit 4", 4, "");
    world.ends(&run);
}

pub(super) fn a_machine_is_drained(world: &World) {
    let (ready, gate) = (Gate::new(&world.home, "ready"), Gate::new(&world.home, "gate"));
    let run = world.submit(&[], &format!("echo 1; {}; {}; exit 6", ready.say("up"), gate.wait()), 6, "1\n");
    assert_eq!(world.meets(|| ready.hear()), "up");
    for machine in open_machines(world) {
        world.insist(&["instance", "drain", &machine], 0);
    }
    world.meets(|| gate.open());
    world.ends(&run);
    world.until("its machine ends", || open_machines(world).is_empty());
}

pub(super) fn a_busy_machine_is_ended(world: &World) {
    let ready = Gate::new(&world.home, "ready");
    let run = world.submit(&[], &format!("{}; exec sleep 1000", ready.say("up")), 143, "");
    assert_eq!(world.meets(|| ready.hear()), "up");
    for machine in open_machines(world) {
        world.insist(&["instance", "terminate", &machine, "--force"], 0);
    }
    world.ends(&run);
    world.until("its machine ends", || open_machines(world).is_empty());
}

/// The command starts when the feature is there, and the machine ends when it is gone. A script may run again, its removal before it.
pub(super) fn a_machine_is_prepared(world: &World) {
    let run = world.submit(&["--feature", "one", "--hold", "0s"], "echo 1", 0, "1\n");
    world.ends(&run);
    for machine in open_machines(world) {
        world.insist(&["instance", "terminate", &machine, "--force"], 0);
    }
    world.until("its machine ends", || open_machines(world).is_empty());
}

/// It is gone in the end, with its machine, whichever process dies on the way.
pub(super) fn a_provider_is_removed(world: &World) {
    world.insist(&["provider", "add", "local", "second"], 0);
    let run = world.submit(&["--provider", "second", "--hold", "0s"], "echo 1", 0, "1\n");
    world.ends(&run);
    world.insist(&["provider", "remove", "second", "--force"], 0);
    let is_listed = || world.json(&["provider", "ls"]).as_array().unwrap().iter().any(|it| it["name"] == "second");
    world.until("it goes", || !is_listed());
    assert!(open_machines(world).is_empty());
}
