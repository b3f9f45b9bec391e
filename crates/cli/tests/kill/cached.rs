//! The same command three times with a cache: it is executed once, whatever dies. Then a result is invalidated, an execution is left by its last
//! caller, and everything is collected.

use crate::stories::Story;
use crate::world::{World, count};
use serde_json::Value;

pub const HEADS: Story = Story {
    name: "a_head_goes_and_comes",
    settings: "",
    also: "",
    shared: true,
    tell: a_head_goes_and_comes,
    points: &["dag.put", "dag.ref", "dag.touch", "dag.touch_blobs", "dag.unref"],
};

/// A head is made, sent to a remote, brought back, and deleted, whatever dies.
fn a_head_goes_and_comes(world: &World) {
    let command = "head -c 1500000 /dev/zero > out.bin";
    let words =
        ["run", "--cache", "--artifact", "out.bin", "--detach", "--json", "--idempotency-key", "k", "-c", command];
    let run: Value = serde_json::from_slice(&world.insist(&words, 0).stdout).unwrap();
    world.insist(&["attach", run["id"].as_str().unwrap()], 0);
    let remote = format!("file://{}", world.home.here().join("remote").display());
    world.insist(&["dag", "branch", "main"], 0);
    let commit = world.insist(&["dag", "ref", "main"], 0).out();
    world.insist(&["dag", "push", &remote, "main"], 0);
    for name in ["refs/heads/main", "refs/remotes/origin/main"] {
        world.insist(&["dag", "ref", name, "--delete"], 0);
    }
    world.insist(&["dag", "pull", &remote, "main", "--as", "other"], 0);
    assert_eq!(world.insist(&["dag", "ref", "refs/remotes/other/main"], 0).out(), commit);
    let left = world.json(&["dag", "heads"]);
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
}

pub const STORY: Story = Story {
    name: "the_same_three_times",
    // What nothing leads to goes at once.
    settings: "[calls]\nunnamed_kept_ms = 0\n",
    also: "",
    shared: true,
    tell: the_same_three_times,
    points: &[
        "cache.invalidate",
        "server/cache.sweep",
        "server/cache.unpin",
        "execution.advance",
        "execution.answer",
        "execution.begin",
        "execution.integrate",
        "execution.poll",
        "execution.stage",
        "execution.stop",
        "run.submit_cached",
    ],
};

/// Submits a cached command; the same key, however often it is typed.
fn submit(world: &World, key: &str, command: &str) -> String {
    let words = ["run", "--cache", "--detach", "--json", "--idempotency-key", key, "-c", command];
    let run: Value = serde_json::from_slice(&world.insist(&words, 0).stdout).unwrap();
    run["id"].as_str().unwrap().to_owned()
}

fn status(world: &World, run: &str) -> String {
    world.json(&["status", run])["run"]["status"].as_str().unwrap().to_owned()
}

fn the_same_three_times(world: &World) {
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
    let left = submit(world, "left", "sleep 600");
    let follows = world.json(&["status", &left])["run"]["follows"].as_str().unwrap().to_owned();
    let began = || world.home.say(&["status", &follows, "--json"]).out().contains("\"status\": \"running\"");
    world.until("it runs", began);
    world.insist(&["cancel", &left], 0);
    world.until("what executes it is cancelled", || status(world, &follows) == "cancelled");
    let again = submit(world, "again", &command);
    world.insist(&["attach", &again], 0);
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "x\nx\n", "what was invalidated is executed again");
    world.insist(&["cache", "gc", "--older-than", "0s"], 0);
    assert_eq!(world.json(&["cache", "ls"]).as_array().unwrap().len(), 0);
}
