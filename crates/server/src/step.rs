//! Routes of durable steps, for programs: processes of jobs, by their step token, and others, by a token of the org.

use crate::auth::{Stepper, Writer};
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Asked, Path, Query, answered, id};
use crate::{Shared, run};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use engine::Hint;
use engine::durable::{Answered, Begin, DEFAULT_LEASE_MS, End, Ended, Report, Request, Standing, StepRender};
use engine::external::Finish;
use engine::lease::Beat;
use engine::offer::{Poll, Taken};
use model::recovery::ErrorClass;
use model::step::StepWait;
use model::time::show_duration;
use model::{Credits, Effect, Refused, RunId, StepId};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use wire::api::{
    BeatStep, BeginStep, CompleteStep, ErrorView, FailStep, FinishBody, PollSteps, PolledStep, StepAnswer, StepBeat,
};

/// The longest that a request waits for a step to become free.
const LONGEST_WAIT_MS: i64 = 60 * model::time::SECOND;
/// Unless a poll says how long it waits: a program that asks again at once must not keep the control plane busy.
const POLL_WAIT_MS: i64 = 30 * model::time::SECOND;
/// A command may ask before its machine's report that it runs has come.
const REPORTED_WITHIN_MS: i64 = 10 * model::time::SECOND;

pub(crate) async fn begin(
    State(state): State<Shared>,
    stepper: Stepper,
    Path(run): Path<String>,
    asked: Asked<BeginStep>,
) -> HandlerResult {
    let run: RunId = id("run", &run)?;
    let wait_ms = asked.value.wait_ms.unwrap_or(0);
    if !(0..=LONGEST_WAIT_MS).contains(&wait_ms) {
        return Err(Refused::invalid("wait_ms", "must lie between 0 and 60000").into());
    }
    let begin = wanted(&asked.value)?;
    let mut bell = state.hub.follow(Hint::Run(run));
    let mut closing = state.closing.subscribe();
    let started = tokio::time::Instant::now();
    loop {
        let request = request(stepper, run, &asked, settled());
        let standing = match state.engine.begin_step(request, begin.clone()).await? {
            Answered::Before(before) => return answered(before),
            Answered::Now(standing) => standing,
        };
        if let Some(view) = answer(&standing) {
            return Ok(Json(view).into_response());
        }
        let within_ms = if standing == Standing::NotYet { wait_ms.max(REPORTED_WITHIN_MS) } else { wait_ms };
        let until = started + Duration::from_millis(within_ms as u64);
        if tokio::time::Instant::now() >= until || *closing.borrow() {
            return Err(unsettled(&standing));
        }
        // A lease that runs out rings no bell.
        let look = if let Standing::Held { left_ms, .. } = standing { left_ms.max(1) } else { LONGEST_WAIT_MS };
        let look = tokio::time::Instant::now() + Duration::from_millis(look as u64);
        tokio::select! {
            () = bell.rung() => {}
            () = tokio::time::sleep_until(until.min(look)) => {}
            _ = closing.changed() => {}
        }
    }
}

pub(crate) async fn complete(
    State(state): State<Shared>,
    stepper: Stepper,
    Path((run, step)): Path<(String, String)>,
    asked: Asked<CompleteStep>,
) -> HandlerResult {
    let at = (id("step", &step)?, asked.value.fence);
    let next = asked.value.next.as_ref().map(wanted).transpose()?;
    let finish = asked.value.finish.as_ref().map(finish_of).transpose()?;
    let end =
        End::Completed { output: asked.value.output.clone(), cost: credits("cost", asked.value.cost.as_deref())? };
    let request = request(stepper, id("run", &run)?, &asked, ended_once());
    ended(match (next, finish) {
        (Some(_), Some(_)) => {
            return Err(Refused::invalid("finish", "give either next or finish, not both").into());
        }
        (None, Some(finish)) => state.engine.end_last_step(request, at, end, finish).await?,
        (next, None) => state.engine.end_step(request, at, end, next).await?,
    })
}

pub(crate) async fn fail(
    State(state): State<Shared>,
    stepper: Stepper,
    Path((run, step)): Path<(String, String)>,
    asked: Asked<FailStep>,
) -> HandlerResult {
    let FailStep { fence, message, code, class, effect } = asked.value.clone();
    let effect = effect.map(|word| effect_of(&word)).transpose()?;
    let class = class.map(|word| class_of(&word)).transpose()?;
    let at: (StepId, i64) = (id("step", &step)?, fence);
    let request = request(stepper, id("run", &run)?, &asked, ended_once());
    ended(state.engine.end_step(request, at, End::Failed(Report { code, message, class, effect }), None).await?)
}

pub(crate) async fn heartbeat(
    State(state): State<Shared>,
    stepper: Stepper,
    Path((run, step)): Path<(String, String)>,
    asked: Asked<BeatStep>,
) -> HandlerResult {
    let at = (id("step", &step)?, asked.value.fence);
    let render: StepRender<Beat> = Arc::new(|beat| Some(bytes(&shown_beat(*beat))));
    let request = request(stepper, id("run", &run)?, &asked, render);
    match state.engine.beat_step(request, at, asked.value.lease_ms).await? {
        Answered::Before(before) => answered(before),
        Answered::Now(beat) => Ok(Json(shown_beat(beat)).into_response()),
    }
}

/// Waits for a step that is offered to one of the program's tools. A step token of a job may not: the steps of other runs are not its.
pub(crate) async fn poll(State(state): State<Shared>, writer: Writer, asked: Asked<PollSteps>) -> HandlerResult {
    let PollSteps { tools, wait_ms, lease_ms } = asked.value.clone();
    let wait_ms = wait_ms.unwrap_or(POLL_WAIT_MS);
    if !(0..=LONGEST_WAIT_MS).contains(&wait_ms) {
        return Err(Refused::invalid("wait_ms", "must lie between 0 and 60000").into());
    }
    let org = writer.org();
    let poll = Poll { org, tools, lease_ms: lease_ms.unwrap_or(DEFAULT_LEASE_MS) };
    let (key, render): (_, StepRender<Taken>) = (asked.key(org), Arc::new(|taken| Some(bytes(&polled(taken)))));
    let mut bell = state.hub.follow(Hint::Offers(org));
    let mut closing = state.closing.subscribe();
    let until = tokio::time::Instant::now() + Duration::from_millis(wait_ms as u64);
    loop {
        match state.engine.poll_step(&poll, key.as_ref(), &render).await? {
            Some(Answered::Before(before)) => return answered(before),
            Some(Answered::Now(taken)) => return Ok(Json(polled(&taken)).into_response()),
            None if tokio::time::Instant::now() >= until || *closing.borrow() => {
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
            None => {}
        }
        tokio::select! {
            () = bell.rung() => {}
            () = tokio::time::sleep_until(until) => {}
            _ = closing.changed() => {}
        }
    }
}

fn polled(taken: &Taken) -> PolledStep {
    let Taken { run, run_name, step, path, tool, fence, key, input, idempotent, lease_ms, deadline } = taken.clone();
    let deadline_at = deadline.map(|at| at.ms());
    let (run, id) = (run.to_string(), step.to_string());
    PolledStep { run, run_name, id, path, tool, fence, key, input, idempotent, lease_ms, deadline_at }
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Recorded {
    /// The name of the step.
    #[param(required = true)]
    name: String,
    /// The key it was begun with; without it the newest finished step of the name is meant.
    key: Option<String>,
}

pub(crate) async fn recorded(
    State(state): State<Shared>,
    stepper: Stepper,
    Path(run): Path<String>,
    Query(query): Query<Recorded>,
) -> HandlerResult {
    let standing = state.engine.recorded_step(stepper.asker(), id("run", &run)?, query.name, query.key).await?;
    match answer(&standing) {
        Some(view) => Ok(Json(view).into_response()),
        None => Err(unsettled(&standing)),
    }
}

pub(crate) async fn finish(
    State(state): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<FinishBody>,
) -> HandlerResult {
    let finish = finish_of(&asked.value)?;
    let (org, key) = (writer.org(), asked.key(writer.org()));
    answered(state.engine.finish_run(org, id("run", &run)?, finish, key, run::render()).await?)
}

fn finish_of(body: &FinishBody) -> Result<Finish, Refused> {
    match (body.output.clone(), body.error.clone()) {
        (output, None) => Ok(Finish::Done(output)),
        (None, Some(error)) => Ok(Finish::Failed(error)),
        (Some(_), Some(_)) => Err(Refused::invalid("error", "give either output or error, not both")),
    }
}

fn request<B, T>(stepper: Stepper, run: RunId, asked: &Asked<B>, render: StepRender<T>) -> Request<T> {
    let asker = stepper.asker();
    Request { asker, run, key: asked.key(asker.org()), render }
}

pub(crate) fn wanted(body: &BeginStep) -> Result<Begin, Refused> {
    Ok(Begin {
        name: body.name.clone(),
        key: body.key.clone(),
        input: body.input.clone(),
        idempotent: body.idempotent,
        lease_ms: body.lease_ms.unwrap_or(DEFAULT_LEASE_MS),
        max_cost: credits("max_cost", body.max_cost.as_deref())?,
    })
}

fn credits(field: &str, text: Option<&str>) -> Result<Credits, Refused> {
    let read = text.map(str::parse::<Credits>).transpose();
    Ok(read.map_err(|error| Refused::invalid(field, error.to_string()))?.unwrap_or_default())
}

fn effect_of(word: &str) -> Result<Effect, Refused> {
    match word {
        "none" => Ok(Effect::None),
        "perhaps" => Ok(Effect::Perhaps),
        "done" => Ok(Effect::Done),
        _ => Err(Refused::invalid("effect", format!("`{word}` is not none, perhaps or done"))),
    }
}

/// Words for what a program's error is. The others are ours to say.
pub(crate) const CLASSES: &[&str] = &["transient", "rate_limited", "resource", "invalid_output", "permanent"];

fn class_of(word: &str) -> Result<ErrorClass, Refused> {
    let class = CLASSES.contains(&word).then(|| word.parse().ok()).flatten();
    class.ok_or_else(|| Refused::invalid("class", format!("`{word}` is not one of {}", CLASSES.join(", "))))
}

fn bytes(view: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(view).expect("a view is plain data")
}

fn settled() -> StepRender<Standing> {
    Arc::new(|standing| answer(standing).map(|view| bytes(&view)))
}

fn ended_once() -> StepRender<Ended> {
    Arc::new(|ended| end_answer(ended).map(|view| bytes(&view)))
}

fn ended(answer: Answered<Ended>) -> HandlerResult {
    match answer {
        Answered::Before(before) => answered(before),
        Answered::Now(ended) => match end_answer(&ended) {
            Some(view) => Ok(Json(view).into_response()),
            None => Err(unsettled(&ended.standing)),
        },
    }
}

fn end_answer(ended: &Ended) -> Option<StepAnswer> {
    let mut view = answer(&ended.standing)?;
    view.next = ended.next.as_ref().map(|next| Box::new(became(next)));
    view.run_status = ended.run.map(|status| status.to_string());
    // What was sent need not be sent back.
    view.output = None;
    Some(view)
}

/// What a program can go on with; none where it has to ask again.
fn answer(standing: &Standing) -> Option<StepAnswer> {
    let told = |state: &str, step: &StepId| StepAnswer {
        state: state.to_owned(),
        id: Some(step.to_string()),
        ..StepAnswer::default()
    };
    Some(match standing {
        Standing::Go { step, fence, key, lease_ms } => {
            StepAnswer { fence: Some(*fence), key: Some(key.clone()), lease_ms: Some(*lease_ms), ..told("go", step) }
        }
        Standing::Completed { step, output } => StepAnswer { output: Some(output.clone()), ..told("completed", step) },
        Standing::Failed { step, error } => StepAnswer {
            error: Some(ErrorView {
                code: error.code.clone(),
                message: error.message.clone(),
                cause: error.cause.clone(),
            }),
            ..told("failed", step)
        },
        Standing::Skipped { step } => told("skipped", step),
        Standing::Held { .. }
        | Standing::Waiting { .. }
        | Standing::Paused
        | Standing::NotYet
        | Standing::Late { .. } => return None,
    })
}

/// What became of a step that was asked for together with something else.
pub(crate) fn became(standing: &Standing) -> StepAnswer {
    answer(standing).unwrap_or_else(|| not_begun(standing))
}

/// A step that did not begin: what came with it has happened all the same.
fn not_begun(standing: &Standing) -> StepAnswer {
    let (state, step) = match standing {
        Standing::Held { step, .. } => ("held", Some(step)),
        Standing::Waiting { step, .. } => ("waiting", Some(step)),
        _ => ("paused", None),
    };
    StepAnswer { state: state.to_owned(), id: step.map(ToString::to_string), ..StepAnswer::default() }
}

fn unsettled(standing: &Standing) -> Problem {
    let held = |detail: String| Problem::new(StatusCode::CONFLICT, "held", detail);
    match standing {
        Standing::Held { step, left_ms } => {
            held(format!("another process does {step}, and has {} to renew its lease", show_duration(*left_ms)))
                .fix("ask again with wait_ms")
        }
        Standing::Waiting { step, what: StepWait::Approval } => {
            held(format!("a person has to approve {step}")).fix("repl approval ls; ask again with wait_ms")
        }
        Standing::Waiting { step, .. } => held(format!("it is not known what became of {step}: a person is asked"))
            .fix("repl escalation ls; ask again with wait_ms"),
        Standing::Late { step, given, current } => {
            Refused::OldTry { step: step.to_string(), given: *given, current: *current }.into()
        }
        Standing::NotYet => held("the command is not known to run yet".into()).fix("ask again with wait_ms"),
        _ => held("the run is paused: nothing begins".into()).fix("ask again with wait_ms"),
    }
}

fn shown_beat(beat: Beat) -> StepBeat {
    let state = match beat {
        Beat::Go => "go",
        Beat::Pause => "pause",
        Beat::Cancel => "cancel",
    };
    StepBeat { state: state.to_owned() }
}

#[cfg(test)]
mod tests {
    use crate::hostile::{Got, World};
    use axum::http::StatusCode;
    use engine::durable::StepClaim;
    use engine::runner::{Fact, What};
    use engine::store::token::Scope;
    use model::RunId;
    use model::job::Job;
    use serde_json::{Value, json};

    async fn ask(world: &World, token: &str, path: &str, body: Value) -> Got {
        world.ask("post", &format!("/api/v1/runs/{path}"), Some(token), &[], &body.to_string()).await
    }

    async fn submitted(world: &World, body: Value) -> String {
        let got = world.submit(&world.admin, body).await;
        assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
        got.body["id"].as_str().unwrap().to_owned()
    }

    /// A run whose command runs, as its machine reports.
    async fn running(world: &World) -> (String, Job) {
        let run = submitted(world, json!({ "commands": ["./train"], "start": true })).await;
        let id: RunId = run.parse().unwrap();
        let job = world.engine.jobs(world.org, id).await.unwrap().1.remove(0);
        let of = job.instance.unwrap();
        let instance = world.engine.store.read("test", move |tx| engine::store::instance::find(tx, of)).await.unwrap();
        let facts = [What::Accepted, What::SyncComplete { blobs: 0 }, What::Started { unenforced: None }];
        let facts = facts.map(|what| Fact { job: job.id, epoch: job.epoch, step: job.step, what }).to_vec();
        let taken = world.engine.report(&instance.unwrap(), facts, Vec::new()).await.unwrap();
        assert!(taken.refused.is_empty(), "{:?}", taken.refused);
        (run, job)
    }

    fn claim(world: &World, job: &Job) -> StepClaim {
        let step = job.step.unwrap();
        StepClaim { org: world.org, run: job.run, attempt: job.attempt, job: job.id, epoch: job.epoch, step }
    }

    fn token(world: &World, claim: StepClaim) -> String {
        claim.token(&world.engine.context.installation)
    }

    #[tokio::test]
    async fn a_process_of_a_job_does_a_step_once_and_gets_its_output_ever_after() {
        let world = World::new(true).await;
        let (run, job) = running(&world).await;
        let token = token(&world, claim(&world, &job));
        let step = json!({ "name": "epoch", "key": "3", "input": { "lr": 1 }, "idempotent": true });
        let go = ask(&world, &token, &format!("{run}/steps"), step.clone()).await;
        assert_eq!(
            (go.status, &go.body["state"], &go.body["lease_ms"]),
            (StatusCode::OK, &json!("go"), &json!(60_000))
        );
        let held = ask(&world, &token, &format!("{run}/steps"), step.clone()).await;
        assert_eq!((held.status, &held.body["code"]), (StatusCode::CONFLICT, &json!("held")), "{}", held.body);
        let at = format!("{run}/steps/{}", go.body["id"].as_str().unwrap());
        let beat = ask(&world, &token, &format!("{at}/heartbeat"), json!({ "fence": go.body["fence"] })).await;
        assert_eq!(beat.body, json!({ "state": "go" }));
        let next = json!({ "name": "epoch", "key": "4" });
        let done = json!({ "fence": go.body["fence"], "output": { "loss": 2 }, "next": next });
        let done = ask(&world, &token, &format!("{at}/complete"), done).await;
        assert_eq!((&done.body["state"], &done.body["next"]["state"]), (&json!("completed"), &json!("go")));
        let again = ask(&world, &token, &format!("{run}/steps"), step).await;
        assert_eq!((&again.body["state"], &again.body["output"]), (&json!("completed"), &json!({ "loss": 2 })));
        let path = format!("/api/v1/runs/{run}/steps/recorded?name=epoch");
        let recorded = world.ask("get", &path, Some(&token), &[], "").await;
        assert_eq!(recorded.body["output"], json!({ "loss": 2 }), "{}", recorded.body);
        let fourth = format!("{run}/steps/{}", done.body["next"]["id"].as_str().unwrap());
        let failed = json!({ "fence": 1, "message": "out of memory", "code": "oom" });
        let failed = ask(&world, &token, &format!("{fourth}/fail"), failed).await;
        assert_eq!(failed.body["error"]["code"], "oom", "{}", failed.body);
    }

    #[tokio::test]
    async fn a_step_token_is_good_for_the_steps_of_its_own_job_and_epoch() {
        let world = World::new(true).await;
        let (run, job) = running(&world).await;
        let other = submitted(&world, json!({ "type": "external", "start": true })).await;
        let mine = claim(&world, &job);
        let step = json!({ "name": "s" });
        let begin = async |claim: StepClaim, run: &str| {
            ask(&world, &token(&world, claim), &format!("{run}/steps"), step.clone()).await
        };
        assert_eq!(begin(mine, &other).await.status, StatusCode::NOT_FOUND, "another run");
        let old = begin(StepClaim { epoch: mine.epoch - 1, ..mine }, &run).await;
        assert_eq!((old.status, &old.body["code"]), (StatusCode::CONFLICT, &json!("old_epoch")), "{}", old.body);
        let forged = token(&world, mine).replace("rms_", "rms_9");
        assert_eq!(ask(&world, &forged, &format!("{run}/steps"), step.clone()).await.status, StatusCode::UNAUTHORIZED);
        let go = begin(mine, &run).await;
        let at = format!("{run}/steps/{}/complete", go.body["id"].as_str().unwrap());
        let stranger = token(&world, StepClaim { epoch: mine.epoch + 1, ..mine });
        assert_eq!(ask(&world, &stranger, &at, json!({ "fence": 1 })).await.status, StatusCode::NOT_FOUND);
        let wrong = ask(&world, &token(&world, mine), &at, json!({ "fence": 7 })).await;
        assert_eq!((wrong.status, &wrong.body["code"]), (StatusCode::CONFLICT, &json!("old_try")), "{}", wrong.body);
        // Nothing else is open to it.
        for (method, path) in [("get", ""), ("post", "/cancel"), ("get", "/logs"), ("post", "/finish")] {
            let path = format!("/api/v1/runs/{run}{path}");
            let got = world.ask(method, &path, Some(&token(&world, mine)), &[], "{}").await;
            assert_eq!(got.status, StatusCode::FORBIDDEN, "{method} {path}: {}", got.body);
        }
        let secrets = world.ask("get", "/api/v1/secrets", Some(&token(&world, mine)), &[], "").await;
        assert_eq!(secrets.status, StatusCode::FORBIDDEN);
    }

    #[tokio::test]
    async fn a_run_of_a_program_and_its_first_step_begin_in_one_request() {
        let world = World::new(true).await;
        let body = |more: Value| {
            let mut body = json!({ "type": "external", "start": true, "step": { "name": "load", "input": 1 } });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let wait = json!({ "name": "load", "wait_ms": 10 });
        let plan = json!({ "agents": [{ "tasks": [{ "steps": [{ "wait": "1s" }] }] }] });
        for (more, field) in [
            (json!({ "start": false }), "step"),
            (json!({ "type": "task", "commands": ["true"] }), "step"),
            (json!({ "type": "agents", "plan": plan }), "step"),
            (json!({ "step": wait }), "step.wait_ms"),
            (json!({ "step": { "name": "" } }), "name"),
        ] {
            let refused = world.submit(&world.admin, body(more)).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
            assert!(refused.body["detail"].as_str().unwrap().starts_with(field), "{}", refused.body);
        }
        let text = body(json!({})).to_string();
        let waits = world.ask("post", "/api/v1/runs?wait=1s", Some(&world.admin), &[], &text).await;
        assert_eq!(waits.status, StatusCode::BAD_REQUEST, "its answer would come too late: {}", waits.body);
        let commits = world.engine.store.counts().commits;
        let key = [("idempotency-key", "one")];
        let made = world.ask("post", "/api/v1/runs", Some(&world.admin), &key, &text).await;
        assert_eq!((made.status, &made.body["status"]), (StatusCode::CREATED, &json!("running")), "{}", made.body);
        assert_eq!(world.engine.store.counts().commits, commits + 1);
        let (run, go) = (made.body["id"].as_str().unwrap(), &made.body["step"]);
        assert_eq!((&go["state"], &go["lease_ms"]), (&json!("go"), &json!(60_000)));
        let again = world.ask("post", "/api/v1/runs", Some(&world.admin), &key, &text).await;
        assert_eq!(again.body, made.body, "the same run, step and fence");
        let at = format!("{run}/steps/{}/complete", go["id"].as_str().unwrap());
        let done = ask(&world, &world.admin, &at, json!({ "fence": go["fence"], "finish": {} })).await;
        assert_eq!((&done.body["state"], &done.body["run_status"]), (&json!("completed"), &json!("completed")));
        let shown = world.ask("get", &format!("/api/v1/runs/{run}"), Some(&world.admin), &[], "").await;
        assert!(shown.body.get("step").is_none(), "{}", shown.body);
    }

    #[tokio::test]
    async fn the_last_step_and_its_run_end_in_one_request() {
        let world = World::new(true).await;
        let run = submitted(&world, json!({ "type": "external", "name": "etl", "start": true })).await;
        let go = ask(&world, &world.admin, &format!("{run}/steps"), json!({ "name": "load" })).await.body;
        let at = format!("{run}/steps/{}/complete", go["id"].as_str().unwrap());
        let done = |more: Value| {
            let mut body = json!({ "fence": go["fence"], "output": 1 });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let both = done(json!({ "next": { "name": "more" }, "finish": {} }));
        let refused = ask(&world, &world.admin, &at, both).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
        assert!(refused.body["detail"].as_str().unwrap().starts_with("finish"), "{}", refused.body);
        let large = done(json!({ "finish": { "output": "x".repeat(300 << 10) } }));
        assert_eq!(ask(&world, &world.admin, &at, large).await.status, StatusCode::PAYLOAD_TOO_LARGE);
        let commits = world.engine.store.counts().commits;
        let last = ask(&world, &world.admin, &at, done(json!({ "finish": { "output": { "rows": 3 } } }))).await;
        assert_eq!((last.status, &last.body["state"]), (StatusCode::OK, &json!("completed")), "{}", last.body);
        assert_eq!(last.body["run_status"], "completed");
        let told = world.ask("get", &format!("/api/v1/runs/{run}"), Some(&world.admin), &[], "").await.body;
        assert_eq!((&told["status"], &told["output"]), (&json!("completed"), &json!({ "rows": 3 })), "{told}");
        assert_eq!(world.engine.store.counts().commits, commits + 1);
        // A program that was not answered says it again.
        let again = ask(&world, &world.admin, &at, done(json!({}))).await;
        assert_eq!((again.status, &again.body["state"]), (StatusCode::OK, &json!("completed")), "{}", again.body);
    }

    #[tokio::test]
    async fn a_program_elsewhere_begins_and_finishes_its_own_run() {
        let world = World::new(true).await;
        let run = submitted(&world, json!({ "type": "external", "name": "etl", "start": true })).await;
        let read = world.token(world.org, Scope::Read).await;
        let step = json!({ "name": "load" });
        assert_eq!(ask(&world, &read, &format!("{run}/steps"), step.clone()).await.status, StatusCode::FORBIDDEN);
        let go = ask(&world, &world.admin, &format!("{run}/steps"), step.clone()).await;
        assert_eq!(go.body["state"], "go", "{}", go.body);
        for (body, field) in [
            (json!({ "name": "s", "wait_ms": 60_001 }), "wait_ms"),
            (json!({ "name": "s", "max_cost": "-1" }), "max_cost"),
            (json!({ "name": "" }), "name"),
        ] {
            let got = ask(&world, &world.admin, &format!("{run}/steps"), body).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST);
            assert!(got.body["detail"].as_str().unwrap().starts_with(field), "{}", got.body);
        }
        let both = json!({ "output": 1, "error": "x" });
        assert_eq!(ask(&world, &world.admin, &format!("{run}/finish"), both).await.status, StatusCode::BAD_REQUEST);
        let finished = ask(&world, &world.admin, &format!("{run}/finish"), json!({ "output": { "rows": 3 } })).await;
        assert_eq!((finished.status, &finished.body["status"]), (StatusCode::OK, &json!("completed")));
        let shown = world.ask("get", &format!("/api/v1/runs/{run}"), Some(&world.admin), &[], "").await;
        assert_eq!(shown.body["output"], json!({ "rows": 3 }), "{}", shown.body);
        let twice = ask(&world, &world.admin, &format!("{run}/finish"), json!({})).await;
        assert_eq!(twice.status, StatusCode::CONFLICT);
        let with_command = world.submit(&world.admin, json!({ "type": "external", "commands": ["x"] })).await;
        assert_eq!(with_command.status, StatusCode::BAD_REQUEST);
    }

    #[tokio::test]
    async fn a_program_waits_for_a_step_that_another_process_does() {
        let world = World::new(true).await;
        let run = submitted(&world, json!({ "type": "external", "start": true })).await;
        let step = json!({ "name": "s", "wait_ms": 60_000 });
        let go = ask(&world, &world.admin, &format!("{run}/steps"), step.clone()).await;
        let path = format!("{run}/steps");
        let waits = ask(&world, &world.admin, &path, step);
        let ends = async {
            let at = format!("{run}/steps/{}/complete", go.body["id"].as_str().unwrap());
            ask(&world, &world.admin, &at, json!({ "fence": 1, "output": "done" })).await
        };
        let (waited, _) = tokio::join!(waits, ends);
        assert_eq!((&waited.body["state"], &waited.body["output"]), (&json!("completed"), &json!("done")));
    }
}
