//! Buttons of a run and of its steps: in each state those that would be carried out, and no others.

use super::followed::write;
use super::tests::{enter, get, submitted, world};
use model::run::{Called, Run, RunReason, RunStatus, Termination};
use model::step::StepStatus;
use model::{RunId, StepId, Timestamp};
use serde_json::json;

/// What of a run is not as in the plainest one of its status.
type Change = fn(&mut Run);

const ACTIONS: [&str; 5] = ["start", "resume", "retry", "pause", "cancel"];

fn terminating(run: &mut Run) {
    run.termination = Some(Termination { reason: RunReason::StoppedByUser, at: run.created_at, abort: false });
}

fn called(run: &mut Run) {
    run.call = Some(Called { node: "00".into(), execution: Some(1), run: Some(RunId(1)), exec: None });
}

#[tokio::test]
async fn a_run_offers_what_its_state_allows_and_no_more() {
    use RunStatus::{Cancelled, Completed, Created, Failed, Paused, Pending, Resuming, Retrying, Running};
    let table: [(RunStatus, Change, &[&str]); 16] = [
        (Created, |_| {}, &["start", "cancel"]),
        (Created, called, &["cancel"]),
        (Pending, |_| {}, &["cancel"]),
        (Retrying, |_| {}, &["cancel"]),
        (Resuming, |_| {}, &["cancel"]),
        (Running, |_| {}, &["pause", "cancel"]),
        (Running, terminating, &["cancel"]),
        (Paused, |_| {}, &["resume", "cancel"]),
        (Paused, terminating, &["cancel"]),
        (Failed, |run| run.max_attempts = 2, &["retry"]),
        (Failed, |_| {}, &[]),
        (Failed, |run| (run.attempt, run.max_attempts) = (2, 2), &[]),
        (Failed, |run| (run.max_attempts, run.imported_at) = (2, Some(Timestamp(1))), &[]),
        (
            Failed,
            |run| {
                run.max_attempts = 2;
                called(run);
            },
            &[],
        ),
        (Completed, |_| {}, &[]),
        (Cancelled, |_| {}, &[]),
    ];
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = submitted(&world, false).await;
    let id: RunId = run.parse().unwrap();
    let first = world.engine.snapshot(world.org, id).await.unwrap().run;
    for (status, change, allowed) in table {
        let mut next = Run { status, attempt: 1, max_attempts: 1, ..first.clone() };
        change(&mut next);
        write(&world, move |tx| {
            let version = engine::store::run::lock(tx, id)?.version;
            engine::store::run::save(tx, &Run { version, ..next.clone() })
        })
        .await;
        let page = get(&world, &format!("/runs/{run}"), &cookie).await.text;
        let shown = |action: &&str| page.contains(&format!(r#"formaction="/runs/{run}/{action}?"#));
        let command = |action: &&str| page.contains(&format!("data-copy>repl {action} {run}<"));
        let of = |is: &dyn Fn(&&str) -> bool| ACTIONS.into_iter().filter(is).collect::<Vec<_>>();
        assert_eq!((of(&shown), of(&command)), (allowed.to_vec(), allowed.to_vec()), "{status}");
        // What is not offered would be refused, or change nothing.
        let state = async || {
            let run = world.engine.snapshot(world.org, id).await.unwrap().run;
            (run.status, run.pause_asked, run.termination)
        };
        let before = state().await;
        for action in ACTIONS.into_iter().filter(|it| !allowed.contains(it)) {
            world.ask("post", &format!("/api/v1/runs/{run}/{action}"), Some(&world.admin), &[], "{}").await;
            assert_eq!(state().await, before, "{status} {action}");
        }
    }
}

/// A word to a model is offered while its step talks, a new attempt where the run has one left.
#[tokio::test]
async fn a_step_offers_what_it_and_its_run_allow() {
    const SAY: &str = "Say something";
    const AGAIN: &str = "Try again";
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = world.agents(json!([{ "name": "s", "external": { "tool": "crm", "input": 1 } }])).await;
    let steps = world.ask("get", &format!("/api/v1/runs/{run}/steps"), Some(&world.admin), &[], "").await.body;
    let step = steps["data"][0]["id"].as_str().unwrap().to_owned();
    let (run_id, step_id): (RunId, StepId) = (run.parse().unwrap(), step.parse().unwrap());
    // Whether it is a turn below a step, its status, the status of the run and its attempts; what is offered.
    let table: [(bool, StepStatus, RunStatus, i64, &[&str]); 5] = [
        (false, StepStatus::Running, RunStatus::Running, 1, &[SAY]),
        (true, StepStatus::Running, RunStatus::Running, 1, &[]),
        (false, StepStatus::Completed, RunStatus::Running, 1, &[]),
        (false, StepStatus::Failed, RunStatus::Failed, 2, &[AGAIN]),
        (false, StepStatus::Failed, RunStatus::Failed, 1, &[]),
    ];
    for (turn, status, of_run, attempts, offered) in table {
        write(&world, move |tx| {
            let mut run = engine::store::run::lock(tx, run_id)?;
            (run.status, run.max_attempts) = (of_run, attempts);
            engine::store::run::save(tx, &run)?;
            let mut step = engine::store::step::find(tx, step_id)?.unwrap();
            (step.tool, step.status) = (model::step::ToolKind::Llm, status);
            (step.parent, step.ended_at) = (turn.then_some(StepId(1)), status.is_end().then(|| tx.at()));
            engine::store::step::save(tx, &step)
        })
        .await;
        let page = get(&world, &format!("/runs/{run}/steps/{step}"), &cookie).await.text;
        let shown: Vec<&str> = [SAY, AGAIN].into_iter().filter(|it| page.contains(it)).collect();
        assert_eq!(shown, offered, "{status} {of_run} {attempts}");
    }
}
