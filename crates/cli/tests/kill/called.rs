//! A function is called twice and a third time without the cache, a run is called, and a call is cancelled: whatever dies, each call is
//! executed once, its result is pinned, and nothing of an adapter is left.

use crate::check;
use crate::cluster::Cluster;
use crate::process;
use crate::stories::Story;
use crate::world::{Spot, World};
use nix::sys::signal::Signal;
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

/// A worker is stopped after it asked the adapter, or while it pins the result: its lease runs out, another takes the execution over, and the
/// stopped one wakes up too late. Two callers, three workers, one key: one execution, one pin.
pub fn stopped_while_it_owned(spot: &Spot) {
    let cluster = Cluster::start();
    let world = World::shared(&cluster.database("world"), STORY.settings, spot, "REPL_STOP", 3);
    let sum = function(&world, "sum", "cat");
    let words = ["call", sum.as_str(), "7"];
    std::thread::scope(|scope| {
        let callers = [0, 1].map(|_| scope.spawn(|| world.home.say(&words)));
        for caller in callers {
            let said = caller.join().unwrap();
            assert_eq!((said.code, said.out().as_str()), (0, "[7]\n"), "{}", said.stderr);
        }
    });
    world.until("a worker is stopped", || world.kept_up.iter().any(|worker| worker.is_stopped()));
    let zombie = world.kept_up.iter().find(|worker| worker.is_stopped()).unwrap();
    process::signal(zombie.pid(), Signal::SIGCONT);
    zombie.hears("has taken");
    assert_eq!(marks(&world, "sum"), 1, "it was executed once");
    assert_eq!(world.json(&["call", "ls"]).as_array().unwrap().len(), 1, "one execution");
    assert_eq!(world.json(&["cache", "ls"]).as_array().unwrap().len(), 1, "one pin");
    check::settled(&world);
    world.closes();
}
