//! Every button that a page has, pressed as a browser presses it: what it does, what a double click does, and what the same button does when
//! what stood in its way is gone.

use super::tests::{Shown, button, enter, form_token, get, post, submitted, world};
use crate::hostile::World;
use crate::repeated;
use axum::http::StatusCode;
use engine::store::Tx;
use model::job::JobStatus;
use model::workflow::WorkflowStatus;
use model::{CallId, InstanceId, RunId, WorkflowId};
use serde_json::{Value, json};

async fn read(world: &World, path: &str) -> Value {
    let got = world.ask("get", &format!("/api/v1{path}"), Some(&world.admin), &[], "").await;
    assert_eq!(got.status, StatusCode::OK, "{path}: {}", got.body);
    got.body
}

/// Presses the button of this page whose address has this action, with these fields.
async fn press(world: &World, cookie: &str, page: &str, action: &str, fields: &str) -> Shown {
    let shown = get(world, page, cookie).await;
    assert_eq!(shown.status, StatusCode::OK, "{page}: {}", shown.text);
    let body = format!("csrf={}&page={}&{fields}", form_token(&shown.text), version_of(&shown.text));
    post(world, &button(&shown.text, action), cookie, &body).await
}

/// The version of a page whose buttons act once each time it is loaded.
fn version_of(text: &str) -> &str {
    text.split_once(r#"name="page" value=""#).and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default()
}

/// What each button of a page does, as the API tells it: page, action, fields, where it is read, the field, and what it says afterwards.
#[tokio::test]
async fn each_button_does_what_it_says() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let talking = repeated::talking(&world).await;
    let approval = read(&world, "/approvals").await["data"][0]["id"].as_str().unwrap().to_owned();
    let called = repeated::called(&world).await;
    // The only machine is taken: what is started waits.
    repeated::placed(&world).await;
    let created = submitted(&world, false).await;
    let of_run = |run: &str| (format!("/runs/{run}"), format!("/runs/{run}"));
    let asked = format!("/approvals/{approval}");
    let table: Vec<((String, String), &str, String, &str, Value)> = vec![
        (of_run(&created), "start", String::new(), "status", json!("running")),
        (("/inbox".to_owned(), asked), "reject", format!("note-{approval}=no"), "status", json!("rejected")),
        (of_run(&created), "pause", String::new(), "status", json!("paused")),
        (of_run(&created), "resume", String::new(), "status", json!("running")),
        (("/calls".to_owned(), format!("/calls/{called}")), "cancel", String::new(), "ended", json!(true)),
    ];
    let sent = press(&world, &cookie, &format!("/runs/{talking}"), "send", "text=hello").await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    let id: RunId = talking.parse().unwrap();
    let count = world.engine.store.read("test.read", move |tx| engine::store::message::count(tx, id)).await.unwrap();
    assert_eq!(count, 1, "the agent is told once");
    for ((page, path), action, fields, field, value) in table {
        let done = match action {
            // Buttons that answer have no version: a question is answered once.
            "reject" => {
                let form = form_token(&get(&world, &page, &cookie).await.text);
                post(&world, &format!("/inbox/{approval}/reject"), &cookie, &format!("csrf={form}&{fields}")).await
            }
            _ => press(&world, &cookie, &page, action, &fields).await,
        };
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{action}: {}", done.text);
        if action == "cancel" {
            let id: CallId = called.parse().unwrap();
            let look = move |tx: &mut Tx| engine::store::execution::find(tx, id.0);
            assert!(!world.engine.store.read("test.read", look).await.unwrap().unwrap().asked, "it is given up");
            continue;
        }
        assert_eq!(read(&world, &path).await[field], value, "{action}");
    }
}

#[tokio::test]
async fn a_run_that_failed_is_tried_again() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = repeated::failed(&world).await;
    let page = format!("/runs/{run}");
    assert_eq!(read(&world, &page).await["status"], "failed");
    let done = press(&world, &cookie, &page, "retry", "").await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    assert_eq!(read(&world, &page).await["attempt_number"], 2);
}

/// A refusal is not what a machine's button answers for ever: when the job has ended, the button that is shown then ends the machine.
#[tokio::test]
async fn a_machine_that_was_busy_is_ended_when_it_is_not() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = repeated::placed(&world).await;
    let machine = run["instance"].as_str().unwrap().to_owned();
    let shown = get(&world, "/machines", &cookie).await;
    let (form, to) = (form_token(&shown.text), button(&shown.text, "terminate"));
    assert!(to.contains("seen=") && to.contains(run["id"].as_str().unwrap()), "{to}");
    let untyped = post(&world, &to, &cookie, &format!("csrf={form}&typed-{machine}=x")).await;
    assert_eq!(untyped.status, StatusCode::BAD_REQUEST, "{}", untyped.text);
    let body = format!("csrf={form}&typed-{machine}={machine}");
    let busy = post(&world, &to, &cookie, &body).await;
    assert_eq!(busy.status, StatusCode::CONFLICT, "{}", busy.text);
    assert!(busy.text.contains("cancel it first"), "{}", busy.text);
    let id: RunId = run["id"].as_str().unwrap().parse().unwrap();
    let job = world.engine.jobs(world.org, id).await.unwrap().1[0].clone();
    repeated::write(&world, move |tx| {
        let mut job = job.clone();
        job.status = JobStatus::Done;
        engine::store::job::save(tx, &job)
    })
    .await;
    let stale = post(&world, &to, &cookie, &body).await;
    assert!(stale.status == StatusCode::CONFLICT && stale.text.contains("no run is on it"), "{}", stale.text);
    let to = button(&get(&world, "/machines", &cookie).await.text, "terminate");
    let done = post(&world, &to, &cookie, &body).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    let ending = read(&world, &format!("/instances/{machine}")).await;
    assert!(["terminating", "terminated"].contains(&ending["status"].as_str().unwrap()), "{ending}");
    let id: InstanceId = machine.parse().unwrap();
    let flows = move |tx: &mut Tx| engine::store::workflow::of_instance(tx, id);
    let before = world.engine.store.read("test.read", flows).await.unwrap().len();
    assert_eq!(post(&world, &to, &cookie, &body).await.status, StatusCode::SEE_OTHER, "pressed twice it is ended once");
    assert_eq!(world.engine.store.read("test.read", flows).await.unwrap().len(), before);
}

/// The page shows the orphan anew after each decision; its buttons are new ones then, also if the orphan is as it was.
#[tokio::test]
async fn an_orphan_is_kept_again_and_ended_again() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    repeated::orphan(&world).await;
    let kept = async || read(&world, "/orphans/whitelist").await["data"].as_array().unwrap().len();
    for round in 0..2 {
        let done = press(&world, &cookie, "/orphans", "keep", "reason-i-1=mine").await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
        assert_eq!(kept().await, 1, "round {round}");
        assert!(!get(&world, "/orphans", &cookie).await.text.contains("/orphans/keep"), "what is kept has no buttons");
        world.ask("delete", "/api/v1/orphans/whitelist/i-1", Some(&world.admin), &[], "").await;
        assert_eq!(kept().await, 0);
    }
    let untyped = press(&world, &cookie, "/orphans", "terminate", "typed-i-1=i-2").await;
    assert_eq!(untyped.status, StatusCode::BAD_REQUEST, "{}", untyped.text);
    for round in 0..3 {
        let done = press(&world, &cookie, "/orphans", "terminate", "typed-i-1=i-1").await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
        let orphan = read(&world, "/orphans").await["data"][0].clone();
        assert!(orphan["ending_at"].is_i64(), "round {round}: {orphan}");
        // The provider refuses for good, each time with the same words.
        repeated::write(&world, |tx| {
            let id = engine::store::orphan::by_handle(tx, "i-1")?.remove(0).id;
            engine::store::orphan::end_refused(tx, id, "denied")
        })
        .await;
        assert!(get(&world, "/orphans", &cookie).await.text.contains("denied"));
    }
}

/// The secret of a page's buttons stands beside the region, which is the same for all who see it.
#[tokio::test]
async fn orphans_that_have_not_changed_are_rendered_as_before() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    repeated::orphan(&world).await;
    let region = async || get(&world, "/ui/orphans", &cookie).await.text;
    let first = region().await;
    assert!(first.contains("/orphans/keep"), "{first}");
    assert_eq!(region().await, first);
    // A form without the secret is an old page's: it would be taken for a repetition.
    let page = get(&world, "/orphans", &cookie).await.text;
    let body = format!("csrf={}&reason-i-1=mine", form_token(&page));
    let refused = post(&world, &button(&page, "keep"), &cookie, &body).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
}

/// Another control plane's machine is not ended from here by a button that is always refused.
#[tokio::test]
async fn an_orphan_of_another_installation_has_no_button_that_ends_it() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    repeated::orphan_as(&world, "repl-another1-none-1".to_owned(), "i-1".to_owned()).await;
    let page = get(&world, "/orphans", &cookie).await.text;
    assert!(page.contains("Of other installations") && page.contains("/orphans/keep"), "{page}");
    assert!(!page.contains("/orphans/terminate") && page.contains("repl orphans terminate i-1 --force"), "{page}");
}

#[tokio::test]
async fn only_a_workflow_that_failed_is_tried_again_and_the_answer_is_the_new_one() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let old = repeated::failed_workflow(&world).await;
    let page = format!("/workflows/{old}");
    let done = press(&world, &cookie, &page, "retry", "").await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    let to = done.header("location").to_owned();
    assert!(to.starts_with("/workflows/wfl_") && to != page, "{to}");
    assert_eq!(read(&world, &to).await["intent"], "terminate-instance");
    let id: WorkflowId = old.parse().unwrap();
    for status in [WorkflowStatus::Cancelled, WorkflowStatus::Completed] {
        repeated::write(&world, move |tx| {
            let mut workflow = engine::store::workflow::find(tx, id)?.unwrap();
            workflow.status = status;
            engine::store::workflow::save(tx, &workflow)
        })
        .await;
        assert!(!get(&world, &page, &cookie).await.text.contains("/retry?"), "{status}");
    }
}

#[tokio::test]
async fn a_workflow_is_cancelled_with_a_reason() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let page = format!("/workflows/{}", repeated::launching(&world).await);
    let done = press(&world, &cookie, &page, "cancel", "reason=too+dear").await;
    assert_eq!((done.status, done.header("location")), (StatusCode::SEE_OTHER, page.as_str()), "{}", done.text);
    assert_eq!(read(&world, &page).await["cancel_reason"], "too dear");
}

/// Each answer to a ticket has its button, and is stored as it was given; what the step would have answered goes with “it was done” only.
#[tokio::test]
async fn each_answer_to_a_ticket_is_given_on_its_page() {
    // The answer, and what is typed as the step's output.
    let table = [
        ("resume", None),
        ("skip", None),
        ("retry", None),
        ("abort", None),
        ("done", Some(json!({ "status": 201 }))),
        ("not_done", None),
    ];
    for (action, output) in table {
        let world = world().await;
        let cookie = enter(&world, &world.token(world.org, engine::Scope::Approve).await).await;
        let ticket = world.ticket().await;
        let page = get(&world, "/inbox", &cookie).await.text;
        let to = format!("/inbox/{ticket}/{action}");
        assert!(page.contains(&format!(r#"formaction="{to}""#)), "{action}: {page}");
        let typed = output.as_ref().map(|it| it.to_string().replace('{', "%7B").replace('"', "%22"));
        let json = typed.map_or_else(String::new, |typed| format!("&json-{ticket}={typed}"));
        let body = format!("csrf={}&note-{ticket}=looked{json}", form_token(&page));
        let done = post(&world, &to, &cookie, &body).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{action}: {}", done.text);
        let now = read(&world, &format!("/escalations/{ticket}")).await;
        assert_eq!(
            (&now["status"], &now["action"], &now["note"]),
            (&json!("resolved"), &json!(action), &json!("looked")),
            "{now}"
        );
        assert_eq!(now["answer"], output.clone().unwrap_or_default(), "{action}");
        let step = format!("/runs/{}/steps/{}", now["run"].as_str().unwrap(), now["step"].as_str().unwrap());
        let step = read(&world, &step).await;
        if let Some(output) = output {
            assert_eq!((&step["status"], &step["output"]), (&json!("completed"), &output), "{step}");
        }
        // Answered, it is shown so.
        let shown = get(&world, &format!("/inbox?open={ticket}"), &cookie).await.text;
        assert!(!shown.contains(&to) && shown.contains("looked") && shown.contains("resolved"), "{action}: {shown}");
    }
}
