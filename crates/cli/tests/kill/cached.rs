//! The same command three times with a cache: it is executed once, whatever dies. Then a result is invalidated, an execution is left by its last
//! caller, and everything is collected.

use crate::gate::Gate;
use crate::world::{World, count};
use serde_json::Value;

/// Submits a cached command; the same key, however often it is typed.
fn submit(world: &World, key: &str, command: &str) -> String {
    let words = ["run", "--cache", "--detach", "--json", "--idempotency-key", key, "-c", command];
    let run: Value = serde_json::from_slice(&world.insist(&words, 0).stdout).unwrap();
    run["id"].as_str().unwrap().to_owned()
}

fn status(world: &World, run: &str) -> String {
    world.json(&["status", run])["run"]["status"].as_str().unwrap().to_owned()
}

pub fn the_same_three_times(world: &World) {
    let marks = world.home.here().join("marks");
    let command = format!("echo x >> {}; seq 1 5", marks.display());
    let [one, two] = ["one", "two"].map(|key| submit(world, key, &command));
    for run in [&one, &two] {
        world.insist(&["attach", run], 0);
    }
    let three = submit(world, "three", &command);
    for run in [&one, &two, &three] {
        assert_eq!(world.insist(&["logs", run], 0).out(), count(5), "{run}");
        assert_eq!(status(world, run), "completed");
    }
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "x\n", "it was executed once");
    assert_eq!(world.json(&["cache", "ls"]).as_array().unwrap().len(), 1, "one pin");
    world.insist(&["cache", "invalidate", &three], 0);
    let gate = Gate::new(&world.home, "gate");
    let left = submit(world, "left", &gate.wait());
    let follows = world.json(&["status", &left])["run"]["follows"].as_str().unwrap().to_owned();
    let began = || world.home.say(&["status", &follows, "--json"]).out().contains("\"status\": \"running\"");
    world.until("it runs", began);
    world.insist(&["cancel", &left], 0);
    world.until("what executes it is cancelled", || status(world, &follows) == "cancelled");
    world.meets(|| gate.open());
    let again = submit(world, "again", &command);
    world.insist(&["attach", &again], 0);
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "x\nx\n", "what was invalidated is executed again");
    world.insist(&["cache", "gc", "--older-than", "0s"], 0);
    assert_eq!(world.json(&["cache", "ls"]).as_array().unwrap().len(), 0);
}
