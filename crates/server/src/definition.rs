//! What a run was submitted with, as a run file says it: pasted into a form or saved as a file, it is the same run again.

use crate::Shared;
use crate::auth::Reader;
use crate::problem::HandlerResult;
use crate::routes::{Path, id};
use axum::Json;
use axum::extract::State;
use model::run::Run;
use model::spec::{
    CallPart, Command, DEFAULT_MAX_DURATION_MS, DEFAULT_STOP_DURATION_MS, Network, OnLostControl, Priority, RunContent,
    RunKind,
};
use serde_json::{Map, Value, json};
use wire::api::Definition;

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
) -> HandlerResult<Json<Definition>> {
    let (shown, document) = state.engine.definition(reader.org(), id("run", &run)?).await?;
    let definition = document.unwrap_or_else(|| written(&shown.run, &shown.content));
    let sent_files = shown.run.spec.sent_files;
    Ok(Json(Definition { run: shown.run.id.to_string(), definition, sent_files }))
}

/// The fields that were said, or that differ from what holds without them.
fn written(run: &Run, content: &RunContent) -> Value {
    let terms = &run.spec;
    let mut file = Map::new();
    let mut say = |name: &str, value: Value| {
        let nothing = match &value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if !nothing {
            file.insert(name.to_owned(), value);
        }
    };
    let duration = |ms: Option<i64>, usual: i64| ms.filter(|ms| *ms != usual).map(|ms| format!("{ms}ms"));
    say("type", json!(terms.kind.as_str()));
    say("name", json!(run.name));
    if terms.kind != RunKind::External {
        say("commands", json!(commands(&content.command)));
    }
    say("env", json!(content.env));
    say("secrets", json!(content.secrets));
    say("artifacts", json!(content.artifacts));
    say("working_dir", json!(content.working_dir));
    say("init", json!(content.init));
    say("merge", json!(content.merge));
    let mut resources = Map::new();
    resources.extend(terms.resources.cpu_milli.map(|milli| ("cpu".to_owned(), json!(format!("{milli}m")))));
    resources.extend(terms.resources.memory_bytes.map(|bytes| ("memory".to_owned(), json!(format!("{bytes}b")))));
    resources.extend(terms.resources.disk_bytes.map(|bytes| ("disk".to_owned(), json!(format!("{bytes}b")))));
    resources.extend(terms.resources.gpu.as_ref().map(|gpu| ("gpu".to_owned(), json!(gpu.to_string()))));
    say("resources", Value::Object(resources));
    say("provider", json!(terms.provider));
    say("region", json!((!terms.any_region).then_some(&terms.region)));
    say("spot", json!(terms.spot));
    say("max_duration", json!(duration(terms.max_duration_ms, DEFAULT_MAX_DURATION_MS)));
    say("stop_duration", json!(duration(Some(terms.stop_duration_ms), DEFAULT_STOP_DURATION_MS)));
    say("hold", json!(terms.hold_ms.map(|ms| format!("{ms}ms"))));
    say("budget", json!(terms.budget.map(|budget| budget.to_string())));
    say("priority", json!((terms.priority != Priority::Normal).then(|| terms.priority.as_str())));
    say(
        "on_lost_control",
        json!((terms.on_lost_control != OnLostControl::Finish).then(|| terms.on_lost_control.as_str())),
    );
    say("features", json!(terms.features));
    say("save_snapshot", json!(terms.save_snapshot));
    if let Some(retry) = &terms.retry {
        let mut policy = json!({ "max_attempts": retry.max_attempts });
        policy["on_events"] = json!(retry.on_events.iter().map(|event| event.as_str()).collect::<Vec<_>>());
        for (name, ms) in [("duration", retry.duration_ms), ("delay", retry.delay_ms)] {
            if let Some(ms) = ms {
                policy[name] = json!(format!("{ms}ms"));
            }
        }
        say("retry", policy);
    }
    if let Some(sandbox) = &terms.sandbox {
        say("sandbox", json!({ "network": if sandbox.network == Network::None { "none" } else { "host" } }));
    }
    if let Some(cache) = terms.call.as_ref().and_then(CallPart::caller) {
        say("cache", json!({ "salt": cache.salt, "errors": cache.errors }));
    }
    Value::Object(file)
}

fn commands(command: &Command) -> Vec<String> {
    match command {
        Command::Shell(text) => vec![text.clone()],
        Command::Script(texts) => texts.clone(),
        Command::Argv(words) => vec![words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")],
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
