//! The walls between crates, read from their Cargo.toml files: which crate may know which, and which outside world
//! stays behind which wall. The table is the one of ARCHITECTURE.md.

use crate::tree::{Complaint, File, Tree};

/// Who may know whom. Every crate that reaches `model` through these may also name it.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("plan", &["model"]),
    ("calls", &[]),
    ("folder", &[]),
    ("wire", &["model"]),
    ("runfile", &["plan", "wire"]),
    ("store", &["model", "calls"]),
    ("adapters", &["model", "calls", "folder"]),
    ("engine", &["model", "plan", "calls", "store", "adapters"]),
    ("server", &["model", "plan", "calls", "engine", "wire", "runfile"]),
    ("runner", &["wire", "folder"]),
    ("testkit", &["model", "calls", "engine", "store", "adapters", "wire"]),
    ("cli", &["plan", "calls", "wire", "runfile", "server", "runner", "testkit"]),
];

/// All that the pure crates need. Anything else would be I/O, a clock or luck.
const PURE_NEEDS: &[(&str, &[&str])] = &[
    ("model", &["serde", "serde_json", "thiserror"]),
    (
        "plan",
        &["model", "blake3", "boon", "minijinja", "percent-encoding", "serde", "serde_json", "strsim", "thiserror"],
    ),
    ("calls", &["base64", "blake3", "serde", "serde_json", "thiserror", "unicode-normalization"]),
];

/// Exceptions. Remotes of calls are systems of others that a user names, as tools are, and no place of the control plane's own state: so
/// their S3 client belongs to the adapters. `repl bench` compares the store with a bare connection to SQLite (`crates/testkit/src/bare.rs`): in the store it would be
/// in what serves, and through the store it would not be bare.
const ALSO: &[(&str, &str)] = &[("testkit", "rusqlite"), ("adapters", "object_store")];

/// Outside worlds and the crates that may know them. A name ending in `*` stands for all that begin so.
const WORLDS: &[(&str, &[&str], &[&str])] = &[
    (
        "databases, brokers and blob stores",
        &["store"],
        &[
            "rusqlite",
            "libsqlite3-sys",
            "tokio-postgres*",
            "postgres*",
            "sqlx*",
            "diesel*",
            "sea-orm*",
            "deadpool*",
            "bb8*",
            "r2d2*",
            "redb",
            "sled",
            "rocksdb",
            "redis",
            "lapin",
            "amqp*",
            "rdkafka",
            "object_store",
            "aws-sdk-s3",
            "aws-sdk-sqs",
        ],
    ),
    ("describing the API", &["wire", "server"], &["utoipa*"]),
    ("HTTP serving", &["server"], &["axum*", "hyper*", "warp", "actix*", "rocket", "poem*", "tower-http"]),
    (
        "clouds, machines, LLM and notifier vendors",
        &["adapters"],
        &[
            "aws-sdk-*",
            "aws-config",
            "aws-sigv4",
            "google-cloud*",
            "azure*",
            "bollard*",
            "kube*",
            "k8s-openapi",
            "openssh*",
            "russh*",
            "async-openai",
            "lettre",
            "slack*",
        ],
    ),
    ("talking to people", &["cli"], &["clap*", "indicatif", "dialoguer", "ratatui", "crossterm", "tracing-subscriber"]),
    ("clocks and calendars", &[], &["chrono", "time", "jiff", "humantime", "quanta"]),
];

pub fn crates_know_only_whom_they_may(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for manifest in tree.manifests() {
        let name = manifest.krate();
        let Some((_, allowed)) = DIRECTIONS.iter().find(|(krate, _)| *krate == name) else {
            complaints.push(
                manifest.complain(1, format!("`{name}` has no place in the context: a new crate must earn its wall")),
            );
            continue;
        };
        for dependency in dependencies(manifest) {
            let ours = DIRECTIONS.iter().any(|(krate, _)| *krate == dependency.name);
            // Tests may use the simulated world wherever they are.
            let for_tests = dependency.dev && dependency.name == "testkit";
            if ours && !for_tests && !allowed.contains(&dependency.name.as_str()) {
                let what = format!("`{name}` may not know `{}`, only {allowed:?}", dependency.name);
                complaints.push(manifest.complain(dependency.line, what));
            }
        }
    }
    complaints
}

pub fn model_plan_and_calls_are_pure_by_their_dependencies(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for manifest in tree.manifests() {
        let Some((krate, needs)) = PURE_NEEDS.iter().find(|(krate, _)| *krate == manifest.krate()) else { continue };
        let strangers = dependencies(manifest).into_iter().filter(|it| !it.dev && !needs.contains(&it.name.as_str()));
        complaints.extend(
            strangers.map(|it| manifest.complain(it.line, format!("{krate} needs only {needs:?}, not `{}`", it.name))),
        );
    }
    complaints
}

pub fn each_outside_world_has_its_crate(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for manifest in tree.manifests() {
        for dependency in dependencies(manifest).into_iter().filter(|dependency| !dependency.dev) {
            // The first world that names a crate decides: `aws-sdk-s3` is a blob store, the other SDKs are clouds.
            let world = WORLDS.iter().find(|(_, _, names)| names.iter().any(|name| matches(name, &dependency.name)));
            if let Some((what, homes, _)) = world
                && !homes.contains(&manifest.krate())
                && !ALSO.contains(&(manifest.krate(), dependency.name.as_str()))
            {
                let what = format!("`{}`: {what} belong to {homes:?}", dependency.name);
                complaints.push(manifest.complain(dependency.line, what));
            }
        }
    }
    complaints
}

struct Dependency {
    name: String,
    dev: bool,
    line: usize,
}

/// From every table that declares any: plain, dev, build, and those of a target.
fn dependencies(manifest: &File) -> Vec<Dependency> {
    let table: toml::Table = manifest.text.parse().expect("cargo has read this file");
    let mut found = Vec::new();
    collect(manifest, &table, &mut found);
    for target in table.get("target").and_then(toml::Value::as_table).into_iter().flat_map(|targets| targets.values()) {
        collect(manifest, target.as_table().expect("a target is a table"), &mut found);
    }
    found
}

fn collect(manifest: &File, table: &toml::Table, found: &mut Vec<Dependency>) {
    for (kind, dev) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
        for (key, value) in table.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
            // A renamed dependency is still what it is.
            let name = value.get("package").and_then(toml::Value::as_str).unwrap_or(key).to_owned();
            let line =
                manifest.lines().find(|(_, line)| line.trim_start().starts_with(key.as_str())).map_or(1, |(at, _)| at);
            found.push(Dependency { name, dev, line });
        }
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}
