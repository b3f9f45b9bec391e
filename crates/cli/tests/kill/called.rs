//! A function is called twice and a third time without the cache, a run is called, and a call is cancelled: whatever dies, each call is
//! executed once, its result is pinned, and nothing of an adapter is left.

use crate::stories::Story;
use crate::world::World;
use std::os::unix::fs::PermissionsExt as _;

pub const STORY: Story = Story {
    name: "a_function_is_called",
    settings: "[calls]\nadapters = [\"dml-exec-*\"]\n",
    also: "",
    shared: true,
    tell: a_function_is_called,
    points: &[
        "adapter.close",
        "adapter.invoke",
        "call.ask",
        "call.ask_run",
        "call.cancel",
        "exchange.export",
        "execution.close",
        "execution.fetch",
        "execution.heard",
    ],
};

/// The function of a program that leaves a mark each time it is executed.
fn function(world: &World, name: &str, rest: &str) -> String {
    let program = world.home.here().join(name);
    let text = format!("#!/bin/sh\necho x >> {}.marks\n{rest}\n", program.display());
    let draft = world.home.here().join(format!("{name}.draft"));
    std::fs::write(&draft, &text).unwrap();
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(draft, &program).unwrap();
    format!("dml+exec://dml-exec-local{}?blake3={}", program.display(), blake3::hash(text.as_bytes()).to_hex())
}

fn marks(world: &World, name: &str) -> usize {
    std::fs::read_to_string(world.home.here().join(format!("{name}.marks"))).map_or(0, |text| text.lines().count())
}

fn a_function_is_called(world: &World) {
    let sum = function(world, "sum", "cat");
    let first = world.insist(&["call", &sum, "1", "\"two\""], 0);
    assert_eq!(first.out(), "[1,\"two\"]\n");
    let second = world.insist(&["call", &sum, "1", "\"two\""], 0);
    assert_eq!(second.out(), first.out());
    assert!(second.stderr.contains("hit "), "{}", second.stderr);
    assert_eq!(marks(world, "sum"), 1, "it was executed once");
    let run = world.insist(&["call", "dml+exec://dml-exec-repl/run", r#"{"commands": ["exit 3"]}"#], 1);
    assert!(run.out().contains("\"exit_code\":3"), "{}", run.out());
    assert_eq!(world.json(&["cache", "ls"]).as_array().unwrap().len(), 2, "two pins");
    let slow = function(world, "slow", "exec sleep 600");
    let id = world.insist(&["call", "--detach", &slow], 0).out().trim().to_owned();
    world.until("it runs", || marks(world, "slow") == 1);
    world.insist(&["call", "cancel", &id], 0);
    let status = || world.json(&["call", "show", &id])["status"].as_str().unwrap().to_owned();
    world.until("it is over", || status() == "failed_terminal");
    let exchange = world.home.data().join("exchange");
    world.until("nothing of the adapter is left", || std::fs::read_dir(&exchange).unwrap().count() == 0);
    assert_eq!((marks(world, "sum"), marks(world, "slow")), (1, 1));
}
