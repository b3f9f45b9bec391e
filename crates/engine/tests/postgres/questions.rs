//! A question that many people answer has one taker, and so has an offered step.

use crate::{on_both, work};
use engine::Engine;
use engine::durable::{Answered, Asker, End, Request, StepRender};
use engine::offer::{Poll, Taken};
use engine::question::{Verdict, Word};
use engine::run::{Plans, Render, Submission};
use model::plan::{AgentPlan, StepPlan, TaskPlan};
use model::run::RunStatus;
use model::spec::RunSpec;
use model::step::{StepWait, ToolKind};
use model::time::HOUR;
use model::{Credits, Failure, OrgId, QuestionId, Refused, RunId, StepId};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

const APPROVERS: usize = 20;

/// A run whose only step asks a person.
async fn submit_asking(engine: &Engine, org: OrgId) -> RunId {
    let ask = StepPlan { input: json!({ "message": "go?" }), ..StepPlan::new("ask", ToolKind::Approval) };
    submit_steps(engine, org, vec![ask]).await
}

async fn submit_steps(engine: &Engine, org: OrgId, steps: Vec<StepPlan>) -> RunId {
    let spec: RunSpec = serde_json::from_value(json!({
        "kind": "agents", "command": { "argv": [] }, "provider": "fake", "region": "here", "stop_duration_ms": 0,
        "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast",
    }))
    .unwrap();
    let agents = vec![AgentPlan::new("one", vec![TaskPlan { parallel: 3, ..TaskPlan::new("all", steps) }])];
    let render: Render = Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes());
    let plans = Plans { agents, ..Plans::default() };
    let submission = Submission { org, by: None, name: None, spec, plans, start: true };
    let answer = engine.submit(submission, None, render).await.unwrap();
    String::from_utf8(answer.body).unwrap().parse().unwrap()
}

async fn approve(engine: Arc<Engine>, org: OrgId, id: QuestionId, client: usize) -> Option<usize> {
    let verdict = Verdict::Approve { answer: Some(json!(client)), input: None };
    let word = Word { by: format!("client-{client}"), verdict, note: None };
    match engine.answer(org, id, word, None).await {
        Ok(_) => Some(client),
        Err(Failure::Refused(Refused::NotFrom { .. })) => None,
        Err(failure) => panic!("{failure:?}"),
    }
}

/// Of all that approve at the same moment one is told that it was his, and his answer is the step's output.
async fn one_taker(engines: &[Arc<Engine>]) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    let run = submit_asking(engine, org).await;
    work(engine, &worker).await;
    let open = engine.questions(org, StepWait::Approval, true, i64::MAX, 10).await.unwrap();
    assert_eq!(open.len(), 1);
    let clients: Vec<_> = (0..APPROVERS)
        .map(|client| tokio::spawn(approve(engines[client % engines.len()].clone(), org, open[0].id, client)))
        .collect();
    let mut takers = Vec::new();
    for client in clients {
        takers.extend(client.await.unwrap());
    }
    assert_eq!(takers.len(), 1, "{takers:?}");
    work(engine, &worker).await;
    let step = engine.tree(org, run).await.unwrap().steps[0].id;
    assert_eq!(engine.step(org, run, step).await.unwrap().output, Some(json!(takers[0])));
    assert_eq!(engine.run(org, run).await.unwrap().status, RunStatus::Completed);
    let audit = engine.audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

#[test]
fn of_twenty_clients_that_approve_at_once_one_is_the_taker() {
    on_both(async |planes| one_taker(planes).await);
}

/// Each offered step has one taker, whose report ends it; runs are taken from side by side.
async fn one_taker_each(engines: &[Arc<Engine>]) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    let external = |name: &str| StepPlan {
        input: json!({ "tool": "crm", "input": name }),
        ..StepPlan::new(name, ToolKind::External)
    };
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(submit_steps(engine, org, vec![external("a"), external("b")]).await);
    }
    work(engine, &worker).await;
    let programs: Vec<_> =
        (0..APPROVERS).map(|n| tokio::spawn(take_and_end(engines[n % engines.len()].clone(), org))).collect();
    let mut taken = Vec::new();
    for program in programs {
        taken.extend(program.await.unwrap());
    }
    assert_eq!((taken.len(), taken.iter().collect::<BTreeSet<_>>().len()), (6, 6), "{taken:?}");
    work(engine, &worker).await;
    for run in runs {
        assert_eq!(engine.run(org, run).await.unwrap().status, RunStatus::Completed);
    }
    let audit = engine.audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

/// What one program does: a step, if there is one, and none after it.
async fn take_and_end(engine: Arc<Engine>, org: OrgId) -> Option<StepId> {
    let poll = Poll { org, tools: vec!["crm".into()], lease_ms: HOUR };
    let render: StepRender<Taken> = Arc::new(|_| None);
    let Some(Answered::Now(taken)) = engine.poll_step(&poll, None, &render).await.unwrap() else { return None };
    let (request, at) = (Request::plain(Asker::Org(org), taken.run), (taken.step, taken.fence));
    let end = End::Completed { output: taken.input, cost: Credits::ZERO };
    engine.end_step(request, at, end, None).await.unwrap();
    Some(taken.step)
}

#[test]
fn of_twenty_programs_that_poll_at_once_each_step_has_one_taker() {
    on_both(async |planes| one_taker_each(planes).await);
}
