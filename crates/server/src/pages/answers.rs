//! Headers that every answer of this origin has, whatever it is: pages, fragments, streams, the API's JSON, downloads, refusals.

use super::tests::{HOST, enter, form_token, get, post, send, submitted, world};
use crate::hostile::World;
use axum::body::Body;
use axum::http::{Request, StatusCode};

const PAGES: &str =
    "default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'";
const DOWNLOAD: &str = "sandbox";

struct Case {
    what: &'static str,
    path: String,
    status: StatusCode,
    policy: &'static str,
    headers: Vec<(&'static str, String)>,
}

/// One of each kind of answer.
async fn cases(world: &World) -> Vec<Case> {
    let cookie = enter(world, &world.admin).await;
    let run = submitted(world, true).await;
    let bearer = format!("Bearer {}", world.admin);
    let page = |headers: &mut Vec<(&'static str, String)>| headers.push(("cookie", cookie.clone()));
    let api = |headers: &mut Vec<(&'static str, String)>| headers.push(("authorization", bearer.clone()));
    type With<'w> = &'w dyn Fn(&mut Vec<(&'static str, String)>);
    let nobody: With<'_> = &|_| {};
    let table: [(&str, &str, u16, &str, With<'_>); 17] = [
        ("a page", "/runs", 200, PAGES, &page),
        ("a fragment", "/ui/runs", 200, PAGES, &page),
        ("a stream of pages", "/ui/live?r=/ui/runs", 200, PAGES, &page),
        ("an asset", &super::asset::script().path, 200, PAGES, nobody),
        ("the way to the door", "/runs", 303, PAGES, nobody),
        ("the door", "/login", 200, PAGES, nobody),
        ("a fragment without a session", "/ui/runs", 401, PAGES, nobody),
        ("a page that is not there", "/runs/run_zzz", 404, PAGES, &page),
        ("nothing", "/nothing", 404, PAGES, nobody),
        ("JSON", "/api/v1/runs", 200, PAGES, &api),
        ("JSON without a token", "/api/v1/runs", 401, PAGES, nobody),
        ("JSON of what is not there", "/api/v1/runs/run_zzz", 404, PAGES, &api),
        ("JSON of a wrong query", "/api/v1/runs?limit=x", 400, PAGES, &api),
        ("the description of the API", "/api/v1/docs", 200, PAGES, nobody),
        ("figures", "/metrics", 200, PAGES, &api),
        ("a stream of the API", &format!("/api/v1/runs/{run}/logs"), 200, PAGES, &api),
        ("a download", &format!("/runs/{run}/definition/raw"), 200, DOWNLOAD, &page),
    ];
    let case = |(what, path, status, policy, with): (_, &str, _, _, With<'_>)| {
        let mut headers = vec![("host", HOST.to_owned())];
        with(&mut headers);
        Case { what, path: path.to_owned(), status: StatusCode::from_u16(status).unwrap(), policy, headers }
    };
    table.into_iter().map(case).collect()
}

#[tokio::test]
async fn every_kind_of_answer_has_the_headers_that_keep_it_what_it_is() {
    let world = world().await;
    let mut wrong = Vec::new();
    for case in cases(&world).await {
        let mut request = Request::builder().uri(&case.path);
        for (name, value) in &case.headers {
            request = request.header(*name, value);
        }
        let answer = world.raw(request.body(Body::empty()).unwrap()).await;
        let header = |name: &str| answer.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        let got = [header("content-security-policy"), header("x-content-type-options"), header("referrer-policy")];
        if answer.status() != case.status || got != [case.policy, "nosniff", "same-origin"] {
            wrong.push(format!("{}, {}: {} {got:?}", case.what, case.path, answer.status()));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// The same of what is refused before it is looked at.
#[tokio::test]
async fn refusals_at_the_door_have_them_too() {
    let world = world().await;
    let wrong_host = send(&world, "GET", "/runs", &[("host", "evil.example")], "").await;
    let foreign = send(&world, "POST", "/login", &[("host", HOST), ("origin", "https://evil.example")], "").await;
    let mut last = send(&world, "PUT", "/runs", &[("host", HOST), ("origin", "http://127.0.0.1:7780")], "").await;
    let mut all = vec![(421, wrong_host), (403, foreign)];
    for _ in 0..5_000 {
        if last.status == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        last = send(&world, "GET", "/nothing", &[("host", HOST)], "").await;
    }
    all.push((429, last));
    for (status, shown) in all {
        let got =
            ["content-security-policy", "x-content-type-options", "referrer-policy"].map(|name| shown.header(name));
        assert_eq!((shown.status.as_u16(), got), (status, [PAGES, "nosniff", "same-origin"]), "{}", shown.text);
    }
}

/// A form that was filled in before its session ended does nothing, and says where to go on.
#[tokio::test]
async fn a_form_of_a_session_that_is_over_does_nothing() {
    let world = world().await;
    let run = submitted(&world, false).await;
    let (token, _) = world.engine.create_token(world.org, "t".into(), engine::Scope::Write, None, None).await.unwrap();
    let until = model::Timestamp(crate::now_ms() + 600_000);
    world.engine.open_session("secret".into(), token.id, until).await.unwrap();
    let cookie = "remuda_testtest=secret";
    let page = get(&world, &format!("/runs/{run}"), cookie).await.text;
    let (form, to) = (format!("csrf={}", form_token(&page)), super::tests::button(&page, "cancel"));
    world.engine.end_session("secret").await.unwrap();
    world.state.pages.forget_sessions();
    let late = post(&world, &to, cookie, &form).await;
    assert!(late.status == StatusCode::SEE_OTHER && late.header("location").starts_with("/login"), "{}", late.text);
    let now = world.ask("get", &format!("/api/v1/runs/{run}"), Some(&world.admin), &[], "").await.body;
    assert_eq!(now["status"], "created");
}

/// Without script the number of questions stands in the title already.
#[tokio::test]
async fn the_title_counts_questions_without_script() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    assert!(get(&world, "/runs", &cookie).await.text.contains("<title>Runs · Remuda</title>"));
    world.approval().await;
    assert!(get(&world, "/runs", &cookie).await.text.contains("<title>(1) Runs · Remuda</title>"));
}
