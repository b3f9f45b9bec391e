//! Buttons of pages that are out of date: what changed meanwhile is said, nothing is done, and the page leads to what it is about. Nothing
//! takes the place of what a person looks at.

use super::tests::{Shown, button, enter, form_token, get, post, submitted, world};
use crate::hostile::World;
use crate::repeated;
use axum::http::StatusCode;
use engine::Scope;
use model::{InstanceId, WorkflowId};
use serde_json::{Value, json};

async fn asked(world: &World, path: &str, body: Value) {
    let got = world.ask("post", &format!("/api/v1{path}"), Some(&world.admin), &[], &body.to_string()).await;
    assert!(got.status.is_success(), "{path}: {} {}", got.status, got.body);
}

/// A button as it was on the page, and the fields that are sent with it.
async fn on_page(world: &World, cookie: &str, page: &str, action: &str, fields: &str) -> (String, String) {
    let shown = get(world, page, cookie).await;
    assert_eq!(shown.status, StatusCode::OK, "{page}: {}", shown.text);
    (button(&shown.text, action), format!("csrf={}&{fields}", form_token(&shown.text)))
}

/// It is refused as out of date, with a link to what it is about.
fn check(what: &str, refused: &Shown, says: &str, link: &str) {
    assert_eq!(refused.status, StatusCode::CONFLICT, "{what}: {}", refused.text);
    assert!(refused.text.contains("out of date") && refused.text.contains(says), "{what}: {}", refused.text);
    assert!(refused.text.contains(&format!(r#"<a href="{link}">Look at it"#)), "{what}: {}", refused.text);
}

#[tokio::test]
async fn a_button_of_a_run_that_has_moved_on_is_refused() {
    // What the page shows, what another user asks meanwhile, the button, and what it is told.
    let table = [
        (false, "start", "cancel", "start", "the run is cancelled now"),
        (false, "cancel", "start", "cancel", "the run is running now"),
        (true, "pause", "pause", "pause", "the run is paused now"),
        (true, "cancel", "pause", "cancel", "the run is paused now"),
    ];
    for (started, shown, meanwhile, action, says) in table {
        let world = world().await;
        let cookie = enter(&world, &world.admin).await;
        if started {
            repeated::placed(&world).await; // what is started now waits
        }
        let run = submitted(&world, started).await;
        let page = format!("/runs/{run}");
        let (to, body) = on_page(&world, &cookie, &page, shown, "").await;
        asked(&world, &format!("{page}/{meanwhile}"), json!({})).await;
        let refused = post(&world, &to, &cookie, &body).await;
        check(action, &refused, says, &page);
    }
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let page = format!("/runs/{}", repeated::failed(&world).await);
    let (to, body) = on_page(&world, &cookie, &page, "retry", "").await;
    asked(&world, &format!("{page}/retry"), json!({})).await;
    check("retry", &post(&world, &to, &cookie, &body).await, "in attempt 2", &page);
}

#[tokio::test]
async fn a_button_of_a_kept_folder_that_was_extended_or_released_is_refused() {
    for (action, meanwhile, says) in [
        ("extend", "extend", "the folder is kept until"),
        ("release", "extend", "the folder is kept until"),
        ("extend", "release", "the folder is not kept any more"),
        ("release", "release", "the folder is not kept any more"),
    ] {
        let world = world().await;
        let cookie = enter(&world, &world.admin).await;
        let slot = repeated::held(&world).await;
        let (to, body) = on_page(&world, &cookie, "/machines", action, "").await;
        let body_of = if meanwhile == "extend" { json!({ "duration_ms": 10_800_000 }) } else { json!({}) };
        asked(&world, &format!("/allocations/{slot}/{meanwhile}"), body_of).await;
        check(action, &post(&world, &to, &cookie, &body).await, says, "/machines");
    }
    // The same button twice is one act, although the first press has changed what it showed.
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    repeated::held(&world).await;
    let (to, body) = on_page(&world, &cookie, "/machines", "extend", "").await;
    let first = post(&world, &to, &cookie, &body).await;
    assert_eq!(first.status, StatusCode::SEE_OTHER, "{}", first.text);
    assert_eq!(post(&world, &to, &cookie, &body).await.status, StatusCode::SEE_OTHER);
    // The page that is reached says until when, once.
    let said = first.header("set-cookie").split(';').next().unwrap().to_owned();
    let reached = get(&world, first.header("location"), &format!("{cookie}; {said}")).await;
    assert!(reached.text.contains(r#"<p class="said">Kept until <time"#), "{}", reached.text);
    assert!(reached.header("set-cookie").contains("_said=;"), "{}", reached.header("set-cookie"));
    assert!(!get(&world, "/machines", &cookie).await.text.contains("class=\"said\""));
}

#[tokio::test]
async fn a_button_of_a_machine_a_workflow_or_a_call_that_has_moved_on_is_refused() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let machine = repeated::placed(&world).await["instance"].as_str().unwrap().to_owned();
    let fields = format!("typed-{machine}={machine}&force-{machine}=1");
    let (to, body) = on_page(&world, &cookie, "/machines", "terminate", &fields).await;
    let id: InstanceId = machine.parse().unwrap();
    repeated::write(&world, move |tx| {
        let mut machine = engine::store::instance::lock(tx, id)?;
        machine.status = model::instance::InstanceStatus::Ready;
        engine::store::instance::save(tx, &machine)
    })
    .await;
    check("terminate", &post(&world, &to, &cookie, &body).await, "the machine is ready", "/machines");

    for (action, prepared) in [("cancel", true), ("retry", false)] {
        let world = self::world().await;
        let cookie = enter(&world, &world.admin).await;
        let flow = if prepared { repeated::launching(&world).await } else { repeated::failed_workflow(&world).await };
        let (page, id): (_, WorkflowId) = (format!("/workflows/{flow}"), flow.parse().unwrap());
        let (to, body) = on_page(&world, &cookie, &page, action, "").await;
        repeated::write(&world, move |tx| {
            let mut flow = engine::store::workflow::find(tx, id)?.unwrap();
            flow.status = model::workflow::WorkflowStatus::Completed;
            engine::store::workflow::save(tx, &flow)
        })
        .await;
        check(action, &post(&world, &to, &cookie, &body).await, "the workflow is completed now", &page);
    }
}

#[tokio::test]
async fn an_answer_to_a_question_that_was_answered_is_refused() {
    for (is_ticket, action, meanwhile) in [
        (false, "approve", json!({})),
        (false, "reject", json!({})),
        (true, "skip", json!({ "action": "abort" })),
        (true, "abort", json!({ "action": "skip" })),
    ] {
        let world = world().await;
        let cookie = enter(&world, &world.token(world.org, Scope::Approve).await).await;
        let id = if is_ticket { world.ticket().await } else { world.approval().await };
        let form = form_token(&get(&world, "/inbox", &cookie).await.text);
        let path = if is_ticket { format!("/escalations/{id}/resolve") } else { format!("/approvals/{id}/reject") };
        asked(&world, &path, meanwhile).await;
        let refused = post(&world, &format!("/inbox/{id}/{action}"), &cookie, &format!("csrf={form}")).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{action}: {}", refused.text);
        let link = format!(r#"<a href="/inbox?open={id}">Look at it"#);
        assert!(refused.text.contains(&link), "{action}: {}", refused.text);
    }
}

/// The address of the region of a page.
fn region(text: &str) -> String {
    let src = text.split(r#"<live-region src=""#).skip(1).map(|rest| rest.split('"').next().unwrap());
    src.map(|src| src.replace("&amp;", "&")).find(|src| src.starts_with("/ui/inbox?")).expect("the inbox has a region")
}

#[tokio::test]
async fn a_question_that_a_colleague_answers_is_shown_answered_and_no_other_takes_its_place() {
    let world = world().await;
    let (mine, theirs) = (
        enter(&world, &world.token(world.org, Scope::Approve).await).await,
        enter(&world, &world.token(world.org, Scope::Approve).await).await,
    );
    let (approval, ticket) = (world.approval().await, world.ticket().await);
    let page = get(&world, "/inbox", &mine).await.text;
    let approve = format!(r#"formaction="/inbox/{approval}/approve""#);
    assert!(page.contains(&approve) && !page.contains(&format!("/inbox/{ticket}/")), "{page}");
    let src = region(&page);
    let form = form_token(&get(&world, "/inbox", &theirs).await.text);
    let body = format!("csrf={form}&note-{approval}=too+dear");
    let done = post(&world, &format!("/inbox/{approval}/reject"), &theirs, &body).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    // What the script puts into the open page.
    let now = get(&world, &src, &mine).await.text;
    assert!(!now.contains("formaction"), "no button is where one was: {now}");
    let view = world.ask("get", &format!("/api/v1/approvals/{approval}"), Some(&world.admin), &[], "").await.body;
    for said in [view["answered_by"].as_str().unwrap(), "rejected", "too dear", "Answered"] {
        assert!(now.contains(said), "{said}: {now}");
    }
    assert!(now.contains(&format!(r#"Next: <a href="/inbox?open={ticket}">"#)), "{now}");
    // The page that is loaded next shows the next question; an id of no question shows none.
    assert!(get(&world, "/inbox", &mine).await.text.contains(&format!(r#"formaction="/inbox/{ticket}/skip""#)));
    let none = get(&world, "/inbox?open=qst_zzz", &mine).await;
    assert!(none.status == StatusCode::OK && none.text.contains("no such question"), "{}", none.text);
    // A region without a name has no buttons that another question could take over.
    assert!(!get(&world, "/ui/inbox", &mine).await.text.contains("formaction"));
}

/// What a person writes to an agent is meant for the state that they saw.
#[tokio::test]
async fn a_word_to_an_agent_of_a_run_that_has_moved_on_is_refused() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let page = format!("/runs/{}", repeated::talking(&world).await);
    let (to, body) = on_page(&world, &cookie, &page, "send", "text=hello").await;
    asked(&world, &format!("{page}/pause"), json!({})).await;
    check("send", &post(&world, &to, &cookie, &body).await, "the run is paused now", &page);
    let (to, body) = on_page(&world, &cookie, &page, "send", "text=hello").await;
    let done = post(&world, &to, &cookie, &body).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    assert_eq!(post(&world, &to, &cookie, &body).await.status, StatusCode::SEE_OTHER, "pressed twice it is one act");
}

#[tokio::test]
async fn what_failed_is_tried_again_from_the_list() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let failed = [repeated::failed(&world).await];
    let page = get(&world, "/runs?show=failed", &cookie).await.text;
    let chosen = failed.iter().map(|id| {
        let of = page.split(&format!(r#"name="run" value="{id} "#)).nth(1).unwrap().split('"').next().unwrap();
        format!("&run={id}+{of}")
    });
    let body = format!("csrf={}{}", form_token(&page), chosen.collect::<String>());
    let done = post(&world, "/runs?do=retry&at=show%3Dfailed", &cookie, &body).await;
    assert_eq!((done.status, done.header("location")), (StatusCode::SEE_OTHER, "/runs?show=failed"), "{}", done.text);
    for id in failed {
        let now = world.ask("get", &format!("/api/v1/runs/{id}"), Some(&world.admin), &[], "").await.body;
        assert_eq!(now["attempt_number"], 2, "{now}");
    }
}

#[tokio::test]
async fn several_runs_are_acted_on_and_the_list_keeps_its_filter_and_page() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    submitted(&world, false).await;
    let page = get(&world, "/runs?show=created&q=sleep", &cookie).await.text;
    let chosen = page.split(r#"name="run" value=""#).nth(1).unwrap().split('"').next().unwrap().replace(' ', "+");
    let at = page.split(r#"formaction="/runs?do=cancel"#).nth(1).unwrap().split('"').next().unwrap();
    let to = format!("/runs?do=cancel{}", at.replace("&amp;", "&"));
    let body = format!("csrf={}&run={chosen}", form_token(&page));
    let done = post(&world, &to, &cookie, &body).await;
    assert_eq!(
        (done.status, done.header("location")),
        (StatusCode::SEE_OTHER, "/runs?show=created&q=sleep"),
        "{}",
        done.text
    );
    // An address that a link made up leads to a list all the same.
    let made_up = post(&world, "/runs?do=cancel&at=%2F%2Fevil.example", &cookie, &body).await;
    assert!(["/runs", ""].contains(&made_up.header("location")), "{}", made_up.header("location"));
}

#[tokio::test]
async fn a_form_that_was_changed_after_its_plan_is_planned_again() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let form = form_token(&get(&world, "/new", &cookie).await.text);
    let hidden = |text: &str| {
        let value = |name: &str| {
            let at = format!(r#"name="{name}" value=""#);
            text.split(&at).nth(1).unwrap().split('"').next().unwrap().to_owned()
        };
        format!("once={}&planned={}", value("once"), value("planned"))
    };
    let plan = post(&world, "/new?do=plan", &cookie, &format!("csrf={form}&command=true&budget=1")).await;
    assert_eq!(plan.status, StatusCode::OK, "{}", plan.text);
    let changed = format!("csrf={form}&command=true&budget=2&{}", hidden(&plan.text));
    let again = post(&world, "/new?do=start", &cookie, &changed).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.text);
    assert!(again.text.contains("changed after it was planned") && again.text.contains("What would happen"));
    assert_eq!(world.engine.open_runs().await.unwrap(), 0, "nothing was started");
    let planned = format!("csrf={form}&command=true&budget=2&{}", hidden(&again.text));
    let started = post(&world, "/new?do=start", &cookie, &planned).await;
    assert_eq!(started.status, StatusCode::SEE_OTHER, "{}", started.text);
    assert_eq!(world.engine.open_runs().await.unwrap(), 1);
}

/// The page of events says whose request each change was.
#[tokio::test]
async fn the_events_of_a_run_say_who_asked() {
    let world = world().await;
    let (token, text) =
        world.engine.create_token(world.org, "night shift".into(), Scope::Admin, None, None).await.unwrap();
    let cookie = enter(&world, &text).await;
    let run = submitted(&world, false).await;
    let page = format!("/runs/{run}");
    let (to, body) = on_page(&world, &cookie, &page, "cancel", "").await;
    assert_eq!(post(&world, &to, &cookie, &body).await.status, StatusCode::SEE_OTHER);
    let events = world.ask("get", &format!("/api/v1{page}/events"), Some(&world.admin), &[], "").await.body;
    let by = |kind: &str| {
        let found = events["data"].as_array().unwrap().iter().find(|event| event["kind"] == kind);
        found.unwrap_or_else(|| panic!("{kind}: {events}"))["body"]["by"].clone()
    };
    assert!(by("run.created").as_str().unwrap().contains("`owner`"), "{events}");
    assert_eq!(by("run.cancelled"), json!(token.described()));
    let shown = get(&world, &format!("{page}/events"), &cookie).await.text;
    assert!(shown.contains("night shift") && shown.contains("owner"), "{shown}");
}
