//! The oracle of effects: many runs with http, mcp and external steps while servers, workers and the database are killed and stopped at
//! random. What the recorder has heard is held against what the product says: nothing that must happen is missing, and nothing happens
//! twice that must not.

use crate::api::Api;
use crate::process::{self, Running};
use crate::recorder::{Recorded, Recorder, Reply};
use crate::scene::Scene;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `ORACLE_RUNS` of them, and `ORACLE_SEED` for other deaths.
const RUNS: u64 = 30;
const LEASE_MS: u64 = 1500;
/// Programs that take external steps.
const PROGRAMS: u64 = 2;
const PROGRAM_LEASE: &str = "5s";
/// So many requests lie between two deaths.
const BETWEEN: u64 = 6;

#[test]
fn no_effect_is_lost_or_repeated_while_servers_workers_and_the_database_die() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (runs, seed) = (number("ORACLE_RUNS").unwrap_or(RUNS), number("ORACLE_SEED").unwrap_or(1));
    // The effect has happened, and its answer is lost.
    let recorder = Recorder::answering(|record, times| match record.path.rsplit('/').next() {
        Some("lost") => Reply::Cut,
        Some("tool" | "order") => record.mcp(),
        _ => Reply::Json(json!({ "times": times })),
    });
    let scene = Scene::of_many(Default::default(), recorder, &format!("[timings]\nlease_ms = {LEASE_MS}\n"));
    let over = AtomicBool::new(false);
    let (scene, over) = (&scene, &over);
    let submitted = std::thread::scope(|scope| {
        let deaths = scope.spawn(|| die_at_random(scene, seed, over));
        let programs: Vec<_> =
            (0..PROGRAMS).map(|number| scope.spawn(move || poll(scene, seed + number, over))).collect();
        let ends = Ends(over);
        let submitted: Vec<String> = (0..runs).map(|number| submit(scene, number)).collect();
        until_all_have_ended(scene);
        drop(ends);
        deaths.join().unwrap();
        programs.into_iter().for_each(|program| program.join().unwrap());
        submitted
    });
    for (number, run) in submitted.iter().enumerate() {
        let status = scene.home.status(run);
        assert_eq!(status["status"], "completed", "run {number}, seed {seed}: {status}");
    }
    let records = scene.recorder.records();
    let mut keys = BTreeSet::new();
    for number in 0..runs {
        for step in IDEMPOTENT {
            let key = key_of(&records, number, step);
            assert!(keys.insert(key), "{step} of run {number} has the key of another step");
        }
        for step in once(number) {
            let heard = heard(&records, number, step).count();
            assert_eq!(heard, 1, "{step} of run {number} must happen once, seed {seed}");
            assert!(keys.insert(key_of(&records, number, step)));
        }
    }
    scene.home.adds_up();
}

/// The other threads end with the test, also with one that has failed.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const IDEMPOTENT: [&str; 5] = ["get", "put", "tool", "sync", "last"];

fn once(number: u64) -> &'static [&'static str] {
    if number.is_multiple_of(5) { &["pay", "mail", "order", "ship", "lost"] } else { &["pay", "mail", "order", "ship"] }
}

fn heard<'r>(records: &'r [Recorded], number: u64, step: &str) -> impl Iterator<Item = &'r Recorded> {
    let path = format!("/{number}/{step}");
    // Of the messages to an MCP server only calls have an effect.
    let is_call = |record: &Recorded| record.message().is_none_or(|method| method == "tools/call");
    records.iter().filter(move |record| record.path == path && is_call(record))
}

/// The only key under which a step was heard of.
fn key_of(records: &[Recorded], number: u64, step: &str) -> String {
    let keys: BTreeSet<_> = heard(records, number, step).map(|record| record.key.clone().unwrap_or_default()).collect();
    assert_eq!(keys.len(), 1, "{step} of run {number} has one key: {keys:?}");
    keys.into_iter().next().unwrap()
}

fn submit(scene: &Scene, number: u64) -> String {
    let post = |name: &str| {
        let url = format!("RECORDER/{number}/{name}");
        json!({ "name": name, "http": { "method": "POST", "url": url, "json": { "of": number } }, "idempotent": false, "timeout": "800ms" })
    };
    let get = |name: &str| json!({ "name": name, "http": { "url": format!("RECORDER/{number}/{name}") }, "retry": 10 });
    let put = json!({ "name": "put", "http": { "method": "PUT", "url": format!("RECORDER/{number}/put"), "json": {} }, "idempotent": true, "retry": 10 });
    let call = |name: &str, more: Value| {
        let mcp = json!({ "url": format!("RECORDER/{number}/{name}"), "tool": "t", "arguments": { "of": number } });
        merged(json!({ "name": name, "mcp": mcp }), more)
    };
    let external = |name: &str, more: Value| {
        let input = json!({ "path": format!("/{number}/{name}") });
        merged(json!({ "name": name, "external": { "tool": "record", "input": input } }), more)
    };
    let (repeated, once) = (json!({ "idempotent": true, "retry": 10 }), json!({ "timeout": "800ms" }));
    let mut all = vec![get("get"), post("pay"), put, call("tool", repeated.clone()), external("ship", json!({}))];
    all.push(external("sync", repeated));
    all.extend(number.is_multiple_of(5).then(|| post("lost")));
    all.push(get("last"));
    let plan = json!({ "type": "agents", "agents": [
        { "name": "a", "tasks": [{ "name": "t", "steps": all }] },
        { "name": "b", "tasks": [{ "name": "t", "steps": [post("mail"), call("order", once)] }] },
    ] });
    let (file, key) = (scene.file(&plan.to_string()), format!("run-{number}"));
    let run = insist(scene, &["run", &file, "--detach", "--json", "--idempotency-key", &key]);
    run["id"].as_str().unwrap().to_owned()
}

fn merged(mut one: Value, other: Value) -> Value {
    one.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    one
}

/// A program that takes external steps, and is killed with all that it started each time many requests have come. What it was at is given up
/// after its lease: long enough that everything which it had sent has come.
fn poll(scene: &Scene, seed: u64, over: &AtomicBool) {
    let record = r#"read -r input; path=${input#*\"path\":\"}; path=${path%%\"*}
exec 3<>"/dev/tcp/127.0.0.1/$0" || exit 75
printf 'POST %s HTTP/1.1\r\nhost: r\r\nidempotency-key: %s\r\ncontent-length: 0\r\n\r\n' "$path" "$REPL_STEP_KEY" >&3
read -r _ status _ <&3; echo "{\"status\": $status}""#;
    let port = scene.recorder.url("").rsplit(':').next().unwrap().to_owned();
    let words = ["step", "poll", "--tool", "record", "--lease", PROGRAM_LEASE, "--", "bash", "-c", record, &port];
    let mut random = seed;
    while !over.load(Ordering::Relaxed) {
        let program = Running::start(scene.home.repl(&words).process_group(0));
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let enough = scene.recorder.records().len() + 60 + (random >> 33) as usize % 60;
        while !over.load(Ordering::Relaxed) && !scene.recorder.hears_in_all(enough, Duration::from_millis(200)) {}
        nix::sys::signal::killpg(Pid::from_raw(program.pid()), Signal::SIGKILL).ok();
        program.end();
    }
}

/// Types a command until it succeeds: its server may die under it.
fn insist(scene: &Scene, words: &[&str]) -> Value {
    for _ in 0..20 {
        let said = scene.home.say(words);
        if said.code == 0 {
            return serde_json::from_slice(&said.stdout).unwrap();
        }
    }
    panic!("{words:?} never succeeds");
}

/// Answers every ticket by what the recorder has heard.
fn until_all_have_ended(scene: &Scene) {
    while insist(scene, &["ps", "--json"]).as_array().is_some_and(|open| !open.is_empty()) {
        let open = Api::of(&scene.home).try_get("/escalations");
        for ticket in open.ok().and_then(|page| page["data"].as_array().cloned()).unwrap_or_default() {
            let happened =
                scene.recorder.records().iter().any(|record| record.key.as_deref() == ticket["key"].as_str());
            let action = if happened { "done" } else { "not_done" };
            let path = format!("/escalations/{}/resolve", ticket["id"].as_str().unwrap());
            // One that is refused or lost is looked at again.
            Api::of(&scene.home).try_post(&path, &json!({ "action": action })).ok();
        }
    }
}

/// Kills, stops for longer than a lease, and restarts servers, workers and the database, each time some requests have come.
fn die_at_random(scene: &Scene, mut seed: u64, over: &AtomicBool) {
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let lease = Duration::from_millis(2 * LEASE_MS);
    let mut heard = BETWEEN as usize;
    while !over.load(Ordering::Relaxed) {
        if !scene.recorder.hears_in_all(heard, lease) {
            continue;
        }
        heard = scene.recorder.records().len() + 1 + random(2 * BETWEEN) as usize;
        // A process that finds no database while it starts ends, and is not started again: all of them are up first.
        let all_up = || {
            for member in 0..4 {
                scene.home.many().pid(member);
            }
        };
        match random(11) {
            0 => {
                all_up();
                scene.home.many().restart_database();
            }
            // No lease is renewed meanwhile, and none can be taken.
            10 => {
                all_up();
                scene.home.many().stop_database();
                scene.recorder.hears_in_all(usize::MAX, lease);
                scene.home.many().database_goes_on();
            }
            // Both servers and both workers in turn.
            stopped @ 1..=4 => {
                let member = scene.home.many().pid(stopped as usize - 1);
                process::signal(member, Signal::SIGSTOP);
                // The other one goes on meanwhile. Its lease is over when nothing has come for so long, or much has.
                scene.recorder.hears_in_all(usize::MAX, lease);
                process::signal(member, Signal::SIGCONT);
            }
            killed => scene.home.many().kill(killed as usize % 4),
        }
    }
}
