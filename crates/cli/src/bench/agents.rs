//! Steps of agents and of programs: how many a second and how long one takes, in turns with Restate's server and a Rust service of it if
//! they are installed; and whether a step costs the same in a long run and beside many finished runs.

mod restate;
mod web;

use super::Plan;
use super::bare::{cpu_seconds, load, ms};
use super::figure::{Figure, Goal, percentile};
use super::plane::{Plane, Setup};
use crate::complaint::{Complaint, Done};
use crate::control_plane::new_key;
use futures_util::future::try_join_all;
use restate::Restate;
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::{Duration, Instant};
use web::Web;
use wire::api::{BeginStep, CompleteStep, FinishBody, StepAnswer};
use wire::client::{Client, Method};

const STEPS: usize = 10;
const AT_ONCE: usize = 64;
/// A run of a bench that has not ended by then never will.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Steps at the end of a long run that are compared with those of short ones.
const COMPARED: usize = 500;

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let web = Web::start().await?;
    let peer = match &plan.restate {
        Some(folder) => Some(Restate::start(folder).await?),
        None => {
            eprintln!("repl: Restate is not measured: --restate FOLDER names its programs (docs/performance.md)");
            None
        }
    };
    let mut found = Repeats::default();
    let plane = Plane::start(&Setup::default()).await?;
    for _ in plan.repeats("agents") {
        beside(plan, &plane, peer.as_ref(), &web, &mut found).await?;
    }
    drop(peer);
    long_runs(plan, &plane, &mut found).await?;
    drop(plane);
    many_runs(plan, &mut found).await?;
    Ok(found.figures(plan))
}

/// One repeat: each measurement of ours, then the same of Restate.
async fn beside(plan: &Plan, plane: &Plane, peer: Option<&Restate>, web: &Web, found: &mut Repeats) -> Done<()> {
    let (many, few, pages) = (plan.size(1_280).max(AT_ONCE), plan.size(100).max(20), plan.size(640).max(AT_ONCE));
    let program = || program_run(&plane.client, STEPS);
    let plan_of = pages_plan(&web.url);
    let agents = || agents_run(&plane.client, &plan_of);
    program().await?;
    agents().await?;
    let (commits, cpu) = (plane.counts().await?.commits(), cpu_seconds(plane.pid));
    found.ours.steps.push(steps_a_second(many, program).await?);
    found.ours.cpu_ms.push((cpu_seconds(plane.pid) - cpu) * 1e3 / (many * STEPS) as f64);
    found.commits.push((plane.counts().await?.commits() - commits) as f64 / (many * STEPS) as f64);
    found.ours.one_ms.push(one_by_one(few, program).await?);
    found.ours.pages.push(steps_a_second(pages, agents).await?);
    if let Some(peer) = peer {
        let no_ops = json!({ "steps": STEPS });
        let no_ops = || peer.call("wf", &no_ops);
        let with_url = json!({ "steps": STEPS, "url": web.url });
        let calls = || peer.call("http", &with_url);
        no_ops().await?;
        calls().await?;
        let cpu = peer.cpu_seconds();
        found.theirs.steps.push(steps_a_second(many, no_ops).await?);
        found.theirs.cpu_ms.push((peer.cpu_seconds() - cpu) * 1e3 / (many * STEPS) as f64);
        found.theirs.one_ms.push(one_by_one(few, no_ops).await?);
        found.theirs.pages.push(steps_a_second(pages, calls).await?);
    }
    found.loads.push(load());
    Ok(())
}

/// Runs of ten steps, and one of very many: the time of a step in the first and at the end of the other.
async fn long_runs(plan: &Plan, plane: &Plane, found: &mut Repeats) -> Done<()> {
    for _ in plan.repeats("agents, long runs") {
        let mut short = Vec::new();
        while short.len() < COMPARED {
            short.extend(timed_steps(&plane.client, STEPS).await?);
        }
        let long = timed_steps(&plane.client, plan.size(10_000)).await?;
        found.short_ms.push(percentile(&short, 0.5));
        found.long_ms.push(percentile(&long[long.len() - COMPARED.min(long.len())..], 0.5));
    }
    found.loads.push(load());
    Ok(())
}

/// A step beside few finished runs and beside very many, in two control planes.
async fn many_runs(plan: &Plan, found: &mut Repeats) -> Done<()> {
    let (few, many) = (Plane::start(&Setup::default()).await?, Plane::start(&Setup::default()).await?);
    finished(&few, plan.size(1_000)).await?;
    finished(&many, plan.size(100_000)).await?;
    for _ in plan.repeats("agents, many runs") {
        let mut times = [Vec::new(), Vec::new()];
        while times[0].len() < COMPARED {
            times[0].extend(timed_steps(&few.client, STEPS).await?);
            times[1].extend(timed_steps(&many.client, STEPS).await?);
        }
        found.few_ms.push(percentile(&times[0], 0.5));
        found.many_ms.push(percentile(&times[1], 0.5));
    }
    found.loads.push(load());
    Ok(())
}

#[derive(Default)]
struct Side {
    /// No-op steps a second, many runs at a time.
    steps: Vec<f64>,
    cpu_ms: Vec<f64>,
    /// Ten steps of one run, with nothing beside it.
    one_ms: Vec<f64>,
    /// Steps that call a web service, a second.
    pages: Vec<f64>,
}

#[derive(Default)]
struct Repeats {
    ours: Side,
    theirs: Side,
    commits: Vec<f64>,
    short_ms: Vec<f64>,
    long_ms: Vec<f64>,
    few_ms: Vec<f64>,
    many_ms: Vec<f64>,
    loads: Vec<f64>,
}

impl Repeats {
    fn figures(&self, plan: &Plan) -> Vec<Figure> {
        let at_load = |what: &str| {
            let load = percentile(&self.loads, 0.5);
            format!("{what} (load {load:.1})")
        };
        let figure = |what: &str, unit: &'static str, ours: &[f64], theirs: &[f64], goal: Option<Goal>| {
            let figure = Figure::new("agents", at_load(what), unit, ours);
            match (theirs.is_empty(), goal) {
                (true, _) => figure,
                (false, None) => figure.beside("Restate", ours, theirs),
                (false, Some(goal)) => figure.beside("Restate", ours, theirs).goal(goal),
            }
        };
        let (ours, theirs) = (&self.ours, &self.theirs);
        let (long, many) = (plan.size(10_000), plan.size(100_000));
        vec![
            figure("steps of programs, 64 runs at a time", "/s", &ours.steps, &theirs.steps, Some(Goal::AtLeast(2.0))),
            figure("ten steps, one run at a time, p50", "ms", &ours.one_ms, &theirs.one_ms, Some(Goal::AtMost(0.4))),
            figure("http steps, 64 runs at a time", "/s", &ours.pages, &theirs.pages, Some(Goal::AtLeast(1.5))),
            figure("processor time of a step", "ms", &ours.cpu_ms, &theirs.cpu_ms, None),
            Figure::new("agents", at_load("commits of a step, 64 runs at a time"), "", &self.commits),
            Figure::new("agents", at_load(&format!("a step at the end of a run of {long}, p50")), "ms", &self.long_ms)
                .beside("in a run of ten", &self.long_ms, &self.short_ms)
                .goal(Goal::AtMost(1.2)),
            Figure::new("agents", at_load(&format!("a step beside {many} finished runs, p50")), "ms", &self.many_ms)
                .beside(format!("beside {}", plan.size(1_000)), &self.many_ms, &self.few_ms)
                .goal(Goal::AtMost(1.2)),
        ]
    }
}

/// So many runs, from submission to output, by as many clients as may be under way; steps a second.
async fn steps_a_second<F: Future<Output = Done<()>>>(runs: usize, one: impl Fn() -> F) -> Done<f64> {
    let left = Cell::new(runs);
    let client = || async {
        while left.get() > 0 {
            left.set(left.get() - 1);
            one().await?;
        }
        Done::Ok(())
    };
    let began = Instant::now();
    try_join_all((0..AT_ONCE).map(|_| client())).await?;
    Ok((runs * STEPS) as f64 / began.elapsed().as_secs_f64())
}

/// The median time of a run, in ms.
async fn one_by_one<F: Future<Output = Done<()>>>(runs: usize, one: impl Fn() -> F) -> Done<f64> {
    let mut took = Vec::new();
    for _ in 0..runs {
        let began = Instant::now();
        one().await?;
        took.push(ms(began));
    }
    Ok(percentile(&took, 0.5))
}

async fn post(client: &Client, path: &str, body: &Value) -> Done<Value> {
    let request = client.request(Method::POST, path).header("idempotency-key", &new_key()?).json(body);
    Ok(request.within(ENDS_WITHIN).send().await?.json().await?)
}

async fn started(client: &Client) -> Done<String> {
    let run = post(client, "/api/v1/runs", &json!({ "type": "external", "start": true })).await?;
    Ok(run["id"].as_str().unwrap_or_default().to_owned())
}

/// A run whose steps this process does: each end begins the next step in one request.
async fn program_run(client: &Client, steps: usize) -> Done<()> {
    timed_steps(client, steps).await.map(drop)
}

/// The same, with the time of each step in ms.
async fn timed_steps(client: &Client, steps: usize) -> Done<Vec<f64>> {
    let step =
        |n: usize| BeginStep { name: "s".into(), key: Some(n.to_string()), input: json!(n), ..BeginStep::default() };
    let submitted =
        post(client, "/api/v1/runs", &json!({ "type": "external", "start": true, "step": step(0) })).await?;
    let run = submitted["id"].as_str().unwrap_or_default();
    let first = serde_json::from_value(submitted["step"].clone());
    let mut now: StepAnswer = first.map_err(|error| Complaint::refused(format!("no first step began: {error}")))?;
    let mut took = Vec::with_capacity(steps);
    for n in 0..steps {
        let began = Instant::now();
        let (id, fence) = (now.id.clone().unwrap_or_default(), now.fence.unwrap_or_default());
        let next = (n + 1 < steps).then(|| step(n + 1));
        let finish = next.is_none().then(|| FinishBody { output: Some(json!(STEPS)), error: None });
        let done = CompleteStep { fence, output: json!(n), cost: None, next, finish };
        let answer: StepAnswer = client.post(&format!("/api/v1/runs/{run}/steps/{id}/complete"), &done).await?;
        took.push(ms(began));
        match answer.next {
            Some(next) => now = *next,
            None => expect_completed(&json!({ "status": answer.run_status }))?,
        }
    }
    Ok(took)
}

async fn finish(client: &Client, run: &str) -> Done<()> {
    let output = FinishBody { output: Some(json!(STEPS)), error: None };
    let ended: Value = client.post(&format!("/api/v1/runs/{run}/finish"), &output).await?;
    expect_completed(&ended)
}

fn expect_completed(run: &Value) -> Done<()> {
    match run["status"] == "completed" {
        true => Ok(()),
        false => Err(Complaint::refused(format!("a run of the bench is {}: {}", run["status"], run["last_error"]))),
    }
}

/// One agent, one task, ten steps that ask the web service, one after the other.
fn pages_plan(url: &str) -> Value {
    let step = |n: usize| json!({ "name": format!("s{n}"), "http": { "url": format!("{url}?n={n}") } });
    let steps: Vec<Value> = (0..STEPS).map(step).collect();
    let plan = json!({ "type": "agents", "agents": [{ "name": "a", "tasks": [{ "name": "t", "steps": steps }] }] });
    json!({ "type": "agents", "plan": plan, "start": true })
}

async fn agents_run(client: &Client, plan: &Value) -> Done<()> {
    expect_completed(&post(client, "/api/v1/runs?wait=50s", plan).await?)
}

/// Runs that have ended, without steps.
async fn finished(plane: &Plane, runs: usize) -> Done<()> {
    eprintln!("repl: {runs} runs are finished first");
    let left = Cell::new(runs);
    let one = || async {
        while left.get() > 0 {
            left.set(left.get() - 1);
            finish(&plane.client, &started(&plane.client).await?).await?;
        }
        Done::Ok(())
    };
    try_join_all((0..AT_ONCE).map(|_| one())).await.map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_plan_of_the_bench_is_a_plan() {
        let asked = super::pages_plan("http://127.0.0.1:1/");
        let checked = plan::check(&asked["plan"]).expect("a plan without problems");
        assert_eq!(checked.document.agents.len(), 1);
    }
}
