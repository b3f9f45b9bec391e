//! Requests for pages as browsers and attackers send them: whose session, from where, under which name, and what the answers hold.

use super::ticket;
use crate::auth::Reader;
use crate::hostile::World;
use crate::listen::Peer;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, Request, StatusCode};
use engine::store::token::Scope;
use futures_util::StreamExt as _;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(super) const HOST: &str = "127.0.0.1:7780";
const ORIGIN: &str = "http://127.0.0.1:7780";
pub(super) const NEAR: Peer = Peer::Remote(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

/// The name and port under which the port of `repl ui` answers.
pub(super) fn own(world: &World) -> String {
    format!("{}:9", world.state.pages.own_name("testtest"))
}

pub(super) struct Shown {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    pub(super) text: String,
}

impl Shown {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub(super) async fn world() -> World {
    World::new(true).await.seen_from(NEAR)
}

pub(super) async fn send(world: &World, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Shown {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = world.raw(request.body(Body::from(body.to_owned())).unwrap()).await;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let bytes = axum::body::to_bytes(answer.into_body(), 8 << 20).await.unwrap();
    Shown { status, headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

pub(super) async fn get(world: &World, path: &str, cookie: &str) -> Shown {
    send(world, "GET", path, &[("host", HOST), ("cookie", cookie)], "").await
}

pub(super) async fn post(world: &World, path: &str, cookie: &str, body: &str) -> Shown {
    send(world, "POST", path, &[("host", HOST), ("origin", ORIGIN), ("cookie", cookie)], body).await
}

/// Signs in with this token; the cookie.
pub(super) async fn enter(world: &World, token: &str) -> String {
    let shown = post(world, "/login", "", &format!("token={token}")).await;
    assert_eq!(shown.status, StatusCode::SEE_OTHER, "{}", shown.text);
    let cookie = shown.header("set-cookie");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && !cookie.contains("Domain"), "{cookie}");
    assert!(cookie.starts_with("remuda_testtest="), "{cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

/// The form token of a page.
pub(super) fn form_token(text: &str) -> String {
    let at = text.find(r#"name="csrf" value=""#).expect("a page has a form") + 19;
    text[at..].split('"').next().unwrap().to_owned()
}

/// The address of the button that ends with this action.
pub(super) fn button(text: &str, action: &str) -> String {
    let found = text.split("formaction=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let found = found.map(|it| it.replace("&amp;", "&")).find(|it| it.contains(&format!("/{action}?")));
    found.unwrap_or_else(|| panic!("no button {action} in {text}"))
}

async fn a_run(world: &World) -> String {
    submitted(world, true).await
}

pub(super) async fn submitted(world: &World, start: bool) -> String {
    let got = world.submit(&world.admin, json!({ "commands": ["sleep 5"], "start": start })).await;
    got.body["id"].as_str().unwrap().to_owned()
}

async fn status_of(world: &World, run: &str) -> String {
    let got = world.ask("get", &format!("/api/v1/runs/{run}"), Some(&world.admin), &[], "").await;
    got.body["status"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_person_signs_in_looks_acts_and_signs_out() {
    let world = world().await;
    let closed = get(&world, "/runs/run_1?a=b", "").await;
    assert_eq!(
        (closed.status, closed.header("location")),
        (StatusCode::SEE_OTHER, "/login?next=%2Fruns%2Frun%5F1%3Fa%3Db")
    );
    let cookie = enter(&world, &world.admin).await;
    assert!(get(&world, "/", &cookie).await.text.contains("No runs yet"));
    let run = submitted(&world, false).await;
    let page = get(&world, &format!("/runs/{run}"), &cookie).await;
    assert_eq!((page.status, page.header("cache-control")), (StatusCode::OK, "private, no-store"));
    let (form, to) = (form_token(&page.text), button(&page.text, "cancel"));
    let done = post(&world, &to, &cookie, &format!("csrf={form}")).await;
    assert_eq!(
        (done.status, done.header("location")),
        (StatusCode::SEE_OTHER, format!("/runs/{run}").as_str()),
        "{}",
        done.text
    );
    assert_eq!(status_of(&world, &run).await, "cancelled");
    // A double click is one act; the same button on a page that was loaded before is out of date for another action.
    assert_eq!(post(&world, &to, &cookie, &format!("csrf={form}")).await.status, StatusCode::SEE_OTHER);
    let stale = post(&world, &to.replace("/cancel", "/pause"), &cookie, &format!("csrf={form}")).await;
    assert_eq!(stale.status, StatusCode::CONFLICT);
    assert!(stale.text.contains("the run is cancelled now"), "{}", stale.text);
    assert_eq!(post(&world, "/logout", &cookie, &format!("csrf={form}")).await.status, StatusCode::SEE_OTHER);
    assert_eq!(get(&world, "/", &cookie).await.status, StatusCode::SEE_OTHER, "the session is over");
}

#[tokio::test]
async fn every_page_answers_with_its_policy_and_without_inline_script_or_style() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = a_run(&world).await;
    let ticket = world.ticket().await;
    let flow = world.ask("get", "/api/v1/workflows", Some(&world.admin), &[], "").await.body;
    let flow = flow["data"][0]["id"].as_str().unwrap().to_owned();
    let of_agents = world.ask("get", "/api/v1/escalations", Some(&world.admin), &[], "").await.body["data"][0].clone();
    let step = format!("/runs/{}/steps/{}", of_agents["run"].as_str().unwrap(), of_agents["step"].as_str().unwrap());
    let tree = format!("/runs/{}", of_agents["run"].as_str().unwrap());
    let parts = ["", "/log", "/events", "/cost", "/files", "/definition"].map(|part| format!("/runs/{run}{part}"));
    let others = [
        "/",
        "/runs?show=failed",
        "/inbox",
        "/machines",
        "/workflows",
        "/spending",
        "/calls",
        "/orphans",
        "/settings",
        "/new",
    ];
    let all = others.into_iter().map(str::to_owned).chain(parts).chain([format!("/workflows/{flow}"), step, tree]);
    for path in all {
        let page = get(&world, &path, &cookie).await;
        assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.text);
        assert!(page.header("content-security-policy").starts_with("default-src 'self'"), "{path}");
        assert_eq!((page.header("x-content-type-options"), page.header("referrer-policy")), ("nosniff", "same-origin"));
        assert!(
            !page.text.contains("<style") && !page.text.contains(" style=") && !page.text.contains(" onclick="),
            "{path}"
        );
        assert_eq!(page.text.matches("<script").count(), 1, "{path}");
        assert!(page.text.len() <= 60 * 1024, "{path} has {} bytes", page.text.len());
    }
    assert!(get(&world, "/inbox", &cookie).await.text.contains(&ticket));
    for path in ["/nothing", "/runs/run_zzz", "/runs/run_1/nothing"] {
        assert_eq!(get(&world, path, &cookie).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let docs = send(&world, "GET", "/api/v1/docs", &[("host", HOST)], "").await;
    assert!(docs.header("content-security-policy").starts_with("default-src 'self'"));
    assert!(!docs.text.contains("<style") && !docs.text.contains("<script>"), "the API's page obeys the policy too");
}

#[tokio::test]
async fn a_form_of_another_site_does_nothing() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = submitted(&world, false).await;
    let page = get(&world, &format!("/runs/{run}"), &cookie).await;
    let (form, to) = (format!("csrf={}", form_token(&page.text)), button(&page.text, "cancel"));
    let other = enter(&world, &world.token(world.org, Scope::Admin).await).await;
    let others_form = format!("csrf={}", form_token(&get(&world, "/", &other).await.text));
    let ours = ("origin", ORIGIN);
    let table: [(&str, Vec<(&str, &str)>, &str); 7] = [
        ("another origin", vec![("origin", "https://evil.example")], &form),
        ("no origin", vec![("origin", "null")], &form),
        ("a missing origin", vec![], &form),
        ("another port of the host", vec![("origin", "http://127.0.0.1:7781")], &form),
        ("a cross-site request", vec![ours, ("sec-fetch-site", "cross-site")], &form),
        ("no form token", vec![ours], ""),
        ("the form token of another session", vec![ours], &others_form),
    ];
    for (what, mut headers, body) in table {
        headers.extend([("host", HOST), ("cookie", cookie.as_str())]);
        let shown = send(&world, "POST", &to, &headers, body).await;
        assert_eq!(shown.status, StatusCode::FORBIDDEN, "{what}: {}", shown.text);
    }
    assert_eq!(status_of(&world, &run).await, "created");
    let headers = [("host", HOST), ("cookie", cookie.as_str()), ours, ("sec-fetch-site", "same-origin")];
    assert_eq!(send(&world, "POST", &to, &headers, &form).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_name_that_is_not_ours_gets_nothing() {
    let world = world().await;
    for (host, good) in [
        (HOST, true),
        ("[::1]:7780", true),
        ("testtest.localhost:7780", true),
        ("evil.example", false),
        ("localhost:7780", false),
        ("testtest.localhost.evil.example", false),
        ("", false),
    ] {
        let status = send(&world, "GET", "/login", &[("host", host)], "").await.status;
        assert_eq!(status, if good { StatusCode::OK } else { StatusCode::MISDIRECTED_REQUEST }, "{host}");
    }
}

#[tokio::test]
async fn plain_http_from_another_machine_is_refused() {
    let world = World::new(false).await;
    let shown = send(&world, "GET", "/login", &[("host", HOST)], "").await;
    assert_eq!(shown.status, StatusCode::FORBIDDEN);
    assert!(shown.text.contains("insecure = true"), "{}", shown.text);
}

#[tokio::test]
async fn a_cookie_opens_neither_the_api_nor_the_runners_protocol() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    for path in ["/api/v1/runs", "/runner/v1/desired", "/metrics"] {
        assert_eq!(get(&world, path, &cookie).await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
}

#[tokio::test]
async fn ten_bad_tokens_a_minute_and_then_none() {
    let world = world().await;
    for n in 0..10 {
        assert_eq!(post(&world, "/login", "", "token=rmd_no").await.status, StatusCode::UNAUTHORIZED, "{n}");
    }
    let good = post(&world, "/login", "", &format!("token={}", world.admin)).await;
    assert_eq!(good.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn what_a_session_may_do_is_what_its_token_may_do() {
    let world = world().await;
    let run = a_run(&world).await;
    let cookie = enter(&world, &world.token(world.org, Scope::Read).await).await;
    let page = get(&world, &format!("/runs/{run}"), &cookie).await;
    assert!(!page.text.contains("formaction"), "a reader gets no buttons");
    let body = format!("csrf={}", form_token(&page.text));
    let denied = post(&world, &format!("/runs/{run}/cancel?seen=running.1.1"), &cookie, &body).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    let elsewhere = world.engine.ensure_org("elsewhere").await.unwrap();
    let stranger = enter(&world, &world.token(elsewhere, Scope::Admin).await).await;
    for path in [format!("/runs/{run}"), format!("/ui/runs/{run}/head"), format!("/runs/{run}/log")] {
        assert_eq!(get(&world, &path, &stranger).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert!(!get(&world, "/ui/runs", &stranger).await.text.contains(&run));
}

#[tokio::test]
async fn a_stream_tells_versions_and_ends_with_the_token() {
    let world = world().await;
    let run = a_run(&world).await;
    let (token, text) = world.engine.create_token(world.org, "t".into(), Scope::Write, None, None).await.unwrap();
    let cookie = enter(&world, &text).await;
    let request = Request::builder().uri(format!("/ui/live?r=/ui/runs/{run}/head&r=/ui/runs&r=/ui/nothing"));
    let request = request.header("host", HOST).header("cookie", &cookie).body(Body::empty()).unwrap();
    let answer = world.raw(request).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let mut stream = answer.into_body().into_data_stream();
    let mut heard = String::new();
    while heard.matches("event: v").count() < 2 {
        heard += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
    }
    assert!(heard.contains("event: build") && heard.contains("retry: "), "{heard}");
    let version = |text: &str| text.rsplit(r#""v":""#).next().unwrap()[..16].to_owned();
    let fragment = get(&world, "/ui/runs", &cookie).await;
    assert!(heard.contains(fragment.header("x-version")), "the fragment is the one that was announced: {heard}");
    world.ask("post", &format!("/api/v1/runs/{run}/cancel"), Some(&world.admin), &[], "").await;
    let news = stream.next().await.unwrap().unwrap();
    assert!(!heard.contains(&version(std::str::from_utf8(&news).unwrap())), "a change is a new version");
    world.engine.revoke_token(world.org, token.id).await.unwrap();
    let mut last = String::new();
    let ended = async {
        while let Some(piece) = stream.next().await {
            last += std::str::from_utf8(&piece.unwrap()).unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("the stream of a revoked token ends");
    assert!(last.contains("event: over"), "{last}");
    assert_eq!(get(&world, "/ui/runs", &cookie).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn many_viewers_of_a_region_cost_one_renderer() {
    let world = world().await;
    let run = a_run(&world).await;
    let cookie = enter(&world, &world.admin).await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let request = Request::builder().uri(format!("/ui/live?r=/ui/runs/{run}/head"));
        let request = request.header("host", HOST).header("cookie", &cookie).body(Body::empty()).unwrap();
        let mut stream = world.raw(request).await.into_body().into_data_stream();
        let mut heard = String::new();
        while !heard.contains("event: v") {
            heard += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
        }
        streams.push(stream);
    }
    let reads = world.engine.store.counts().reads;
    for _ in 0..100 {
        assert_eq!(get(&world, &format!("/ui/runs/{run}/head"), &cookie).await.status, StatusCode::OK);
    }
    assert_eq!(world.engine.store.counts().reads, reads, "fragments that are followed come from memory");
    assert_eq!(world.state.pages.live.renders.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_expired_session_is_refused() {
    let world = world().await;
    let expires = Some(model::Timestamp(crate::now_ms() + 60_000));
    let (_, text) = world.engine.create_token(world.org, "t".into(), Scope::Read, expires, None).await.unwrap();
    let shown = post(&world, "/login", "", &format!("token={text}")).await;
    let seconds = shown.header("set-cookie").split("Max-Age=").nth(1).unwrap().split(';').next().unwrap();
    assert!(seconds.parse::<i64>().unwrap() <= 60, "a session does not outlast its token");
    let (token, _) = world.engine.create_token(world.org, "u".into(), Scope::Read, None, None).await.unwrap();
    world.engine.open_session("secret".into(), token.id, model::Timestamp(crate::now_ms() - 1)).await.unwrap();
    assert_eq!(get(&world, "/", "remuda_testtest=secret").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_ticket_opens_the_own_door_once() {
    let world = World::new(true).await;
    let admin = world.engine.check_token(&world.admin).await.unwrap();
    let link = ticket::open(State(world.state.clone()), Extension(Peer::Local), Reader(admin.clone())).await.unwrap().0;
    assert!(ticket::open(State(world.state.clone()), Extension(NEAR), Reader(admin)).await.is_err());
    let path = link.url.split_once(".localhost:").unwrap().1.split_once('/').unwrap().1;
    let world = world.through_own_door().seen_from(NEAR);
    let own = own(&world);
    let at = |path: &str| format!("/{path}");
    assert_eq!(send(&world, "GET", &at(path), &[("host", HOST)], "").await.status, StatusCode::MISDIRECTED_REQUEST);
    let entered = send(&world, "GET", &at(path), &[("host", own.as_str())], "").await;
    assert_eq!((entered.status, entered.header("referrer-policy")), (StatusCode::SEE_OTHER, "no-referrer"));
    let cookie = entered.header("set-cookie").split(';').next().unwrap().to_owned();
    let open = send(&world, "GET", "/", &[("host", own.as_str()), ("cookie", &cookie)], "").await;
    assert_eq!(open.status, StatusCode::OK);
    assert_eq!(
        send(&world, "GET", &at(path), &[("host", own.as_str())], "").await.status,
        StatusCode::UNAUTHORIZED,
        "twice"
    );
    for path in ["/api/v1/runs", "/runner/v1/desired", "/metrics", "/healthz", "/login"] {
        let shown = send(&world, "GET", path, &[("host", own.as_str()), ("cookie", &cookie)], "").await;
        assert_eq!(shown.status, StatusCode::NOT_FOUND, "{path} is not behind this door");
    }
}

#[tokio::test]
async fn an_approval_is_edited_and_approved_and_a_ticket_resolved() {
    let world = world().await;
    let cookie = enter(&world, &world.token(world.org, Scope::Approve).await).await;
    let (approval, ticket) = (world.approval().await, world.ticket().await);
    let page = get(&world, "/inbox", &cookie).await;
    assert!(page.text.contains("mail.example") && page.text.contains(&ticket), "{}", page.text);
    let form = form_token(&page.text);
    let bad =
        post(&world, &format!("/inbox/{approval}/edit"), &cookie, &format!("csrf={form}&json-{approval}=%7Bno")).await;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
    let input = "%7B%22method%22%3A%22POST%22%2C%22url%22%3A%22https%3A%2F%2Fmail.example%2Fother%22%7D";
    let body = format!("csrf={form}&json-{approval}={input}&note-{approval}=fine");
    let done = post(&world, &format!("/inbox/{approval}/edit"), &cookie, &body).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    let shown = world.ask("get", &format!("/api/v1/approvals/{approval}"), Some(&world.admin), &[], "").await.body;
    assert_eq!(
        (&shown["status"], &shown["edited_input"]["url"], &shown["note"]),
        (&json!("approved"), &json!("https://mail.example/other"), &json!("fine"))
    );
    let done = post(&world, &format!("/inbox/{ticket}/skip"), &cookie, &format!("csrf={form}")).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    assert!(get(&world, "/inbox", &cookie).await.text.contains("Nothing waits"));
}

#[tokio::test]
async fn a_run_is_planned_and_started_once_by_a_form() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let form = form_token(&get(&world, "/new", &cookie).await.text);
    assert_eq!(post(&world, "/new?do=plan", &cookie, &format!("csrf={form}")).await.status, StatusCode::BAD_REQUEST);
    let body = format!("csrf={form}&command=echo+%3Cb%3Ehi%3C%2Fb%3E&name=first");
    let plan = post(&world, "/new?do=plan", &cookie, &body).await;
    assert!(plan.text.contains("What would happen") && plan.text.contains("&lt;b&gt;hi"), "{}", plan.text);
    let once = plan.text.split(r#"name="once" value=""#).nth(1).unwrap().split('"').next().unwrap();
    let planned = plan.text.split(r#"name="planned" value=""#).nth(1).unwrap().split('"').next().unwrap();
    let body = format!("{body}&once={once}&planned={planned}");
    let first = post(&world, "/new?do=start", &cookie, &body).await;
    let second = post(&world, "/new?do=start", &cookie, &body).await;
    assert!(first.header("location").starts_with("/runs/run_"), "{}", first.text);
    assert_eq!(first.header("location"), second.header("location"), "pressed twice it is one run");
}

#[tokio::test]
async fn a_run_file_is_pasted_and_its_definition_is_the_same_run_again() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let form = form_token(&get(&world, "/new", &cookie).await.text);
    let encode =
        |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let plan = |file: &str| format!("csrf={form}&file={}", encode(file));
    for (file, said) in [
        ("type: task\ncommand: [x]", "unknown field `command`"),
        ("type: task\ncommands: [x]\nfiles: [a.csv]", "repl run FILE"),
        ("type: task\nenv: [HOME]\ncommands: [x]", "`HOME` is not set here"),
        (
            "type: agents\nagents:\n- name: a\n  tasks:\n  - name: t\n",
            "the file:5:5: agents[0].tasks[0]: a task needs `steps`",
        ),
    ] {
        let refused = post(&world, "/new?do=plan", &cookie, &plan(file)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{file}");
        assert!(refused.text.contains(said), "{file}: {}", refused.text);
    }
    let task = "type: task\nname: all-of-it\ncommands: [\"echo 'a b'\", 'true']\nenv: {A: '1'}\nresources: {cpu: 0.5, memory: 64MB}\n\
        max_duration: 2h\nhold: 1m\nbudget: 3\npriority: high\nretry: {max_attempts: 2, on_events: [error], delay: 5s}\nartifacts: ['out/*']\n";
    let agents = "type: agents\nagents:\n- name: a\n  tasks:\n  - name: t\n    steps:\n    - {name: s, wait: 1s}\n";
    for (file, once) in [(task, "1"), (agents, "2")] {
        let planned = post(&world, "/new?do=plan", &cookie, &plan(file)).await.text;
        let planned = planned.split(r#"name="planned" value=""#).nth(1).unwrap().split('"').next().unwrap();
        let form = format!("{}&once={once}&planned={planned}", plan(file));
        let done = post(&world, "/new?do=start", &cookie, &form).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
        let run = done.header("location").strip_prefix("/runs/").unwrap().to_owned();
        let shown = world.ask("get", &format!("/api/v1/runs/{run}/definition"), Some(&world.admin), &[], "").await.body;
        let again = runfile::written(&shown["definition"]);
        let (first, second) =
            (runfile::read("f", file, &|_| None).unwrap(), runfile::read("f", &again, &|_| None).unwrap());
        let said = |mut submit: wire::api::Submit| {
            // What was not said is chosen when it is submitted.
            submit.provider.get_or_insert_with(|| "local".to_owned());
            submit.budget = submit.budget.map(|budget| budget.trim_end_matches('0').trim_end_matches('.').to_owned());
            serde_json::to_value(submit).unwrap()
        };
        if file == task {
            assert_eq!(said(second.0), said(first.0), "{again}");
        } else {
            assert_eq!(second.0.plan, first.0.plan);
        }
        let page = get(&world, &format!("/runs/{run}/definition"), &cookie).await.text;
        assert!(
            page.contains(if file == task { "echo &#39;a b&#39;" } else { "wait: 1s" }) || page.contains("echo 'a b'"),
            "{page}"
        );
        assert!(
            get(&world, &format!("/new?from={run}"), &cookie).await.text.contains("type: "),
            "it is changed and run again"
        );
    }
}

#[tokio::test]
async fn runs_are_found_by_a_text_of_their_name_or_command() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    for (name, command) in [("first", "echo 50%_done"), ("Second", "train --Fast"), ("third", "echo 500 done")] {
        let got = world.submit(&world.admin, json!({ "name": name, "commands": [command], "start": false })).await;
        assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
    }
    for (text, found) in [
        ("FAST", vec!["Second"]),
        ("second", vec!["Second"]),
        ("50%25_", vec!["first"]),
        ("done", vec!["third", "first"]),
        ("commands", vec![]),
    ] {
        let page = world.ask("get", &format!("/api/v1/runs?q={text}"), Some(&world.admin), &[], "").await.body;
        let names: Vec<&str> =
            page["data"].as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap()).collect();
        assert_eq!(names, found, "{text}");
        assert_eq!(get(&world, &format!("/runs?q={text}"), &cookie).await.text.matches("<tr id=").count(), found.len());
    }
    // A state and a text at once: both count.
    let cancelled =
        world.ask("get", "/api/v1/runs?name=third", Some(&world.admin), &[], "").await.body["data"][0]["id"].clone();
    let cancel = format!("/api/v1/runs/{}/cancel", cancelled.as_str().unwrap());
    assert!(world.ask("post", &cancel, Some(&world.admin), &[], "").await.status.is_success());
    for (api, page, found) in [
        ("status=cancelled", "show=cancelled", vec!["third"]),
        ("status=created", "show=created", vec!["first"]),
        ("all=false", "show=open", vec!["first"]),
        ("status=failed", "show=failed", vec![]),
        ("all=true", "show=all", vec!["third", "first"]),
    ] {
        let listed = world.ask("get", &format!("/api/v1/runs?q=done&{api}"), Some(&world.admin), &[], "").await.body;
        let names: Vec<&str> =
            listed["data"].as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap()).collect();
        assert_eq!(names, found, "{api}");
        let shown = get(&world, &format!("/runs?q=done&{page}"), &cookie).await.text;
        assert_eq!(shown.matches("<tr id=").count(), found.len(), "{page}");
    }
    let elsewhere = world.engine.ensure_org("elsewhere").await.unwrap();
    let stranger = world.token(elsewhere, Scope::Read).await;
    let none = world.ask("get", "/api/v1/runs?q=done", Some(&stranger), &[], "").await.body;
    assert_eq!(none["data"], json!([]));
}

/// What waits says why, and settings show what the machine lacks; both as the API says it.
#[tokio::test]
async fn machines_and_settings_say_what_is_missing() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let (first, second) = (a_run(&world).await, a_run(&world).await);
    let page = get(&world, "/machines", &cookie).await.text;
    let waiting = world.ask("get", "/api/v1/pools/waiting", Some(&world.admin), &[], "").await.body;
    assert_eq!(waiting["data"].as_array().unwrap().len(), 2, "{waiting}");
    for (run, why) in [(&first, &waiting["data"][1]), (&second, &waiting["data"][0])] {
        assert_eq!(why["run"].as_str(), Some(run.as_str()));
        assert!(page.contains(&format!("/runs/{run}")) && !why["summary"].as_str().unwrap().is_empty(), "{page}");
    }
    let settings = get(&world, "/settings", &cookie).await.text;
    assert!(settings.contains("it is &lt;small&gt;") && settings.contains("make room"), "{settings}");
    let reader = enter(&world, &world.token(world.org, Scope::Read).await).await;
    assert!(!get(&world, "/settings", &reader).await.text.contains("make room"));
}

#[tokio::test]
async fn text_of_users_is_shown_and_never_obeyed() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let command = "echo '<script>alert(1)</script>' \u{202e}\u{1b}[31m";
    let got = world.submit(&world.admin, json!({ "commands": [command], "start": true })).await;
    let run = got.body["id"].as_str().unwrap().to_owned();
    for path in ["/runs".to_owned(), format!("/runs/{run}"), format!("/runs/{run}/events")] {
        let page = get(&world, &path, &cookie).await;
        assert!(
            !page.text.contains("<script>alert") && !page.text.contains('\u{202e}') && !page.text.contains('\u{1b}'),
            "{path}"
        );
    }
    assert!(get(&world, &format!("/runs/{run}"), &cookie).await.text.contains("‹U+202E›␛[31m"));
}

#[tokio::test]
async fn several_runs_are_cancelled_at_once() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let runs = [submitted(&world, false).await, submitted(&world, false).await, submitted(&world, false).await];
    let page = get(&world, "/", &cookie).await.text;
    let chosen: Vec<&str> =
        page.split(r#"name="run" value=""#).skip(1).map(|rest| rest.split('"').next().unwrap()).take(2).collect();
    let body = format!("csrf={}&run={}&run={}", form_token(&page), chosen[0], chosen[1]);
    let done = post(&world, "/runs?do=cancel", &cookie, &body).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    let mut states = Vec::new();
    for run in &runs {
        states.push(status_of(&world, run).await);
    }
    assert_eq!(states, ["created", "cancelled", "cancelled"], "the newest two were chosen");
    let stale = post(&world, "/runs?do=retry", &cookie, &body).await;
    assert_eq!(stale.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn files_of_runs_are_saved_and_never_shown() {
    for name in ["a.html", "b.svg", "c\"\r\nset-cookie: x.js"] {
        let mut answer = crate::routes::download(name, Body::from("<script>alert(1)</script>"));
        super::headers(answer.headers_mut());
        let text = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        assert!(text("content-disposition").starts_with("attachment; filename*=UTF-8''"), "{name}");
        assert!(!text("content-disposition").contains('"'), "{name}");
        assert_eq!(
            (text("content-type").as_str(), text("content-security-policy").as_str()),
            ("application/octet-stream", "sandbox")
        );
        assert_eq!(text("x-content-type-options"), "nosniff");
    }
}

#[tokio::test]
async fn a_form_that_cannot_be_read_is_answered_with_a_page() {
    let world = world().await;
    for body in ["token=%ff", "token=%00", &format!("token={}", "x".repeat(2 << 20))] {
        let shown = post(&world, "/login", "", body).await;
        assert_eq!(shown.status, StatusCode::BAD_REQUEST);
        assert!(shown.text.contains("cannot be read") && shown.text.contains(r#"name="token""#), "{}", shown.text);
    }
}

/// The first answer of so many that is not `usual`.
async fn until_limited(world: &World, usual: StatusCode, headers: &[(&str, &str)], path: &str) -> Shown {
    for _ in 0..1_000 {
        let shown = send(world, "GET", path, headers, "").await;
        if shown.status != usual {
            return shown;
        }
    }
    panic!("{path}: a thousand requests and no limit");
}

#[tokio::test]
async fn strangers_at_the_pages_are_slowed_down_and_a_session_is_not() {
    for (path, usual, cookie) in [
        ("/login", StatusCode::OK, ""),
        ("/", StatusCode::SEE_OTHER, "remuda_testtest=guess"),
        ("/static/nothing", StatusCode::NOT_FOUND, ""),
        ("/ui/inbox/count", StatusCode::UNAUTHORIZED, "remuda_testtest=guess"),
    ] {
        let world = world().await;
        let good = enter(&world, &world.admin).await;
        assert_eq!(get(&world, "/inbox", &good).await.status, StatusCode::OK);
        let limited = until_limited(&world, usual, &[("host", HOST), ("cookie", cookie)], path).await;
        assert_eq!((limited.status, limited.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"), "{path}");
        assert!(limited.text.contains("too many requests"), "{}", limited.text);
        // What is refused causes no read of the database.
        let reads = || world.engine.store.counts().reads.values().sum::<u64>();
        let (before, mut admitted) = (reads(), 0);
        for _ in 0..50 {
            let shown = send(&world, "GET", path, &[("host", HOST), ("cookie", "remuda_testtest=other")], "").await;
            admitted += u64::from(shown.status != StatusCode::TOO_MANY_REQUESTS);
        }
        let read = reads() - before;
        assert!(read <= admitted + 5, "{path}: {read} reads for {admitted} answers of 50");
        let served = get(&world, "/inbox", &good).await;
        assert_eq!(served.status, StatusCode::OK, "{path}: the session was good a moment ago");
        assert!(served.headers.contains_key("ratelimit-remaining"), "{:?}", served.headers);
    }
}

#[tokio::test]
async fn a_session_that_asks_too_much_is_told_so() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let headers = [("host", HOST), ("cookie", cookie.as_str())];
    let mut last = StatusCode::OK;
    for _ in 0..20 {
        let many = (0..200).map(|_| send(&world, "GET", "/static/nothing", &headers, ""));
        let answers = futures_util::future::join_all(many).await;
        if answers.iter().any(|shown| shown.status == StatusCode::TOO_MANY_REQUESTS) {
            last = StatusCode::TOO_MANY_REQUESTS;
            break;
        }
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
}

/// Wrong hosts and forms of other sites are counted too.
#[tokio::test]
async fn what_is_refused_at_the_door_is_counted() {
    let world = world().await;
    let limited = until_limited(&world, StatusCode::MISDIRECTED_REQUEST, &[("host", "evil.example")], "/").await;
    assert_eq!(limited.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn the_port_of_repl_ui_is_limited_too() {
    let world = world().await.through_own_door();
    let own = own(&world);
    let limited = until_limited(&world, StatusCode::UNAUTHORIZED, &[("host", own.as_str())], "/").await;
    assert_eq!(limited.status, StatusCode::TOO_MANY_REQUESTS);
}
