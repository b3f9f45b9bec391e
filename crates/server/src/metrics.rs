//! `/metrics`: the counters of this process in Prometheus' text format. Contains no data of an org.

use crate::Shared;
use crate::auth::Admin;
use crate::problem::HandlerResult;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use engine::Counts;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

pub(crate) async fn metrics(State(state): State<Shared>, _: Admin) -> HandlerResult {
    let mut text = String::new();
    let due = state.engine.count_due().await?.max(0) as u64;
    family(&mut text, "gauge", "remuda_work_due", "Work items that are due and not finished.", [(String::new(), due)]);
    store(&mut text, &state.engine.counts());
    let requests = state.requests.load(Ordering::Relaxed).max(0) as u64;
    family(&mut text, "counter", "remuda_requests_total", "Requests answered.", [(String::new(), requests)]);
    let failures = state.failures.load(Ordering::Relaxed).max(0) as u64;
    let about = "Requests answered 500: a panic, or a failure inside the control plane.";
    family(&mut text, "counter", "remuda_request_failures_total", about, [(String::new(), failures)]);
    let about = "Streams that keep web pages up to date: one a browser.";
    family(&mut text, "gauge", "remuda_page_streams", about, [(String::new(), state.pages.open_streams())]);
    let waits = state.engine.context.presence.durable_waits();
    let about = "Times the runners of this control plane waited for their disk, as they say.";
    family(&mut text, "counter", "remuda_runner_durable_waits_total", about, [(String::new(), waits)]);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

fn store(text: &mut String, counts: &Counts) {
    let commits = [("state", counts.commits), ("logs", counts.log_commits)];
    let commits = commits.map(|(name, count)| (format!("{{database=\"{name}\"}}"), count));
    family(
        text,
        "counter",
        "remuda_store_commits_total",
        "Transactions made durable; one may carry many writes.",
        commits,
    );
    let named = |names: &std::collections::BTreeMap<&'static str, u64>| {
        names.iter().map(|(name, count)| (format!("{{name=\"{name}\"}}"), *count)).collect::<Vec<_>>()
    };
    family(text, "counter", "remuda_store_writes_total", "Writing closures that ran.", named(&counts.writes));
    family(text, "counter", "remuda_store_reads_total", "Reading closures that ran.", named(&counts.reads));
}

fn family(text: &mut String, kind: &str, name: &str, about: &str, samples: impl IntoIterator<Item = (String, u64)>) {
    let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
    for (labels, count) in samples {
        let _ = writeln!(text, "{name}{labels} {count}");
    }
}
