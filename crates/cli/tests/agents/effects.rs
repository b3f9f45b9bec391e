//! The oracle of effects: many runs while servers, workers and the database are killed and stopped at random. What the recorder has heard
//! is held against what the product says: nothing that must happen is missing, and nothing happens twice that must not.

use crate::api::Api;
use crate::process;
use crate::recorder::{Recorded, Recorder, Reply};
use crate::scene::Scene;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `ORACLE_RUNS` of them, and `ORACLE_SEED` for other deaths.
const RUNS: u64 = 30;
const LEASE_MS: u64 = 1500;
/// So many requests lie between two deaths.
const BETWEEN: u64 = 6;

#[test]
fn no_effect_is_lost_or_repeated_while_servers_workers_and_the_database_die() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (runs, seed) = (number("ORACLE_RUNS").unwrap_or(RUNS), number("ORACLE_SEED").unwrap_or(1));
    // The effect has happened, and its answer is lost.
    let recorder = Recorder::answering(|record, times| match record.path.ends_with("/lost") {
        true => Reply::Cut,
        false => Reply::Json(json!({ "times": times })),
    });
    let scene = Scene::of_many(Default::default(), recorder, &format!("[timings]\nlease_ms = {LEASE_MS}\n"));
    let over = AtomicBool::new(false);
    let submitted = std::thread::scope(|scope| {
        let deaths = scope.spawn(|| die_at_random(&scene, seed, &over));
        let submitted: Vec<String> = (0..runs).map(|number| submit(&scene, number)).collect();
        until_all_have_ended(&scene);
        over.store(true, Ordering::Relaxed);
        deaths.join().unwrap();
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

const IDEMPOTENT: [&str; 3] = ["get", "put", "last"];

fn once(number: u64) -> &'static [&'static str] {
    if number.is_multiple_of(5) { &["pay", "mail", "lost"] } else { &["pay", "mail"] }
}

fn heard<'r>(records: &'r [Recorded], number: u64, step: &str) -> impl Iterator<Item = &'r Recorded> {
    let path = format!("/{number}/{step}");
    records.iter().filter(move |record| record.path == path)
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
    let mut all = vec![get("get"), post("pay"), put];
    all.extend(number.is_multiple_of(5).then(|| post("lost")));
    all.push(get("last"));
    let plan = json!({ "type": "agents", "agents": [
        { "name": "a", "tasks": [{ "name": "t", "steps": all }] },
        { "name": "b", "tasks": [{ "name": "t", "steps": [post("mail")] }] },
    ] });
    let (file, key) = (scene.file(&plan.to_string()), format!("run-{number}"));
    let run = insist(scene, &["run", &file, "--detach", "--json", "--idempotency-key", &key]);
    run["id"].as_str().unwrap().to_owned()
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

/// Kills, stops for longer than a lease, and restarts, each time some requests have come.
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
        match random(8) {
            0 => scene.home.many().restart_database(),
            stopped @ (1 | 2) => {
                let worker = scene.home.many().pid(stopped as usize + 1);
                process::signal(worker, Signal::SIGSTOP);
                // The other one goes on meanwhile. Its lease is over when nothing has come for so long, or much has.
                scene.recorder.hears_in_all(usize::MAX, lease);
                process::signal(worker, Signal::SIGCONT);
            }
            killed => scene.home.many().kill(killed as usize % 4),
        }
    }
}
