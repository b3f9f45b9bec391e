//! By which names, over which transport and for how long pages are reached: sessions, cookies, tickets, streams that end.

use super::tests::{HOST, NEAR, enter, form_token, get, own as own_host, send, submitted, world};
use super::{Pages, PagesConfig, ticket};
use crate::auth::Reader;
use crate::hostile::World;
use crate::listen::Peer;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{Request, StatusCode};
use engine::Scope;
use engine::adapters::tool::address::{AddressPolicy, Denied, OwnAddresses, Profile};
use engine::{Hint, Topic};
use futures_util::StreamExt as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

const FAR: Peer = Peer::Remote(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)));

#[tokio::test]
async fn a_server_is_reached_by_its_names_and_its_cookie_is_as_safe_as_its_address() {
    // Public URL, own TLS, `insecure`, from where, `Host`, `Origin`; the status of a refusal, or whether the cookie is for HTTPS only.
    let table = [
        // Behind a proxy that speaks TLS.
        (Some("https://pages.example"), false, false, FAR, "pages.example", "https://pages.example", Ok(true)),
        (Some("https://pages.example/"), false, false, FAR, "Pages.Example", "https://pages.example", Ok(true)),
        (
            Some("https://pages.example:8443"),
            false,
            false,
            FAR,
            "pages.example:8443",
            "https://pages.example:8443",
            Ok(true),
        ),
        (Some("https://pages.example"), false, false, FAR, "pages.example", "http://pages.example", Err(403)),
        (Some("https://pages.example"), false, false, FAR, "pages.example:1", "https://pages.example:1", Err(421)),
        (Some("https://pages.example"), false, false, FAR, "other.example", "https://other.example", Err(421)),
        (Some("https://pages.example"), false, false, NEAR, HOST, "http://127.0.0.1:7780", Ok(true)),
        // A public name without TLS.
        (Some("http://pages.example"), false, false, FAR, "pages.example", "http://pages.example", Err(403)),
        (Some("http://pages.example"), false, true, FAR, "pages.example", "http://pages.example", Ok(false)),
        (Some("http://pages.example"), false, true, FAR, "pages.example", "https://pages.example", Err(403)),
        // An address, plain and with the server's own TLS.
        (None, false, false, FAR, "192.0.2.1:7780", "http://192.0.2.1:7780", Err(403)),
        (None, false, true, FAR, "192.0.2.1:7780", "http://192.0.2.1:7780", Ok(false)),
        (None, true, false, FAR, "192.0.2.1:7780", "https://192.0.2.1:7780", Ok(false)),
        (None, true, false, FAR, "192.0.2.1:7780", "http://192.0.2.1:7780", Err(403)),
        (None, true, false, FAR, "testtest.localhost", "https://testtest.localhost", Ok(false)),
        (None, false, false, Peer::Local, HOST, "http://127.0.0.1:7780", Ok(false)),
    ];
    for (url, tls, insecure, peer, host, origin, expected) in table {
        let pages = Pages::new(PagesConfig { insecure }, url.map(str::to_owned), tls, OwnAddresses::default());
        let world = World::showing(pages, peer).await;
        let what = format!("{url:?} tls {tls} insecure {insecure} {peer:?} {host} {origin}");
        let headers = [("host", host), ("origin", origin)];
        let entered = send(&world, "POST", "/login", &headers, &format!("token={}", world.admin)).await;
        let cookie = entered.header("set-cookie").to_owned();
        match expected {
            Err(status) => {
                assert_eq!((entered.status.as_u16(), cookie.as_str()), (status, ""), "{what}");
                continue;
            }
            Ok(_) => assert_eq!(entered.status, StatusCode::SEE_OTHER, "{what}: {}", entered.text),
        }
        let secure = cookie.starts_with("__Host-remuda_testtest=") && cookie.ends_with("; Secure");
        let plain = cookie.starts_with("remuda_testtest=") && !cookie.contains("Secure");
        assert_eq!((secure, plain), (expected == Ok(true), expected == Ok(false)), "{what}: {cookie}");
        let lasts: i64 = cookie.split("Max-Age=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
        assert!((43_190..=43_200).contains(&lasts), "a session lasts 12 hours: {cookie}");
        assert!(cookie.contains("; Path=/; ") && cookie.contains("; HttpOnly; SameSite=Lax"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap();
        let open = send(&world, "GET", "/", &[("host", host), ("cookie", cookie)], "").await;
        assert_eq!(open.status, StatusCode::OK, "{what}");
        // The same cookie under the other name is not ours.
        let other = cookie.strip_prefix("__Host-").map_or_else(|| format!("__Host-{cookie}"), str::to_owned);
        let closed = send(&world, "GET", "/", &[("host", host), ("cookie", &other)], "").await;
        assert_eq!(closed.status, StatusCode::SEE_OTHER, "{what}");
    }
}

/// A server says which names are good; the port of `repl ui` does not, because its name is what other programs must not know.
#[tokio::test]
async fn a_name_that_is_not_ours_is_told_ours_by_a_server_only() {
    let world = World::new(true).await.through_own_door().seen_from(NEAR);
    let name = world.state.pages.own_name("testtest");
    let label = name.split('.').next().unwrap();
    assert!(label.len() == 32 && World::new(true).await.state.pages.own_name("testtest") != name, "{name}");
    for host in ["127.0.0.1:9", "evil.example", "testtest.localhost:9", "x.testtest.localhost:9"] {
        let shown = send(&world, "GET", "/", &[("host", host)], "").await;
        assert_eq!(shown.status, StatusCode::MISDIRECTED_REQUEST, "{host}");
        assert!(shown.text.contains("repl ui") && !shown.text.contains(label), "{host}: {}", shown.text);
    }
    let followed = send(&world, "GET", "/", &[("host", own_host(&world).as_str())], "").await;
    assert_eq!(followed.status, StatusCode::UNAUTHORIZED, "the name is ours, and a ticket is needed");
    assert!(!followed.text.contains(label), "{}", followed.text);
    let world = self::world().await;
    let shown = send(&world, "GET", "/login", &[("host", "evil.example")], "").await;
    assert!(shown.text.contains("testtest.localhost") && shown.text.contains("REPL_PUBLIC_URL"), "{}", shown.text);
}

#[tokio::test]
async fn fragments_hold_no_secret_and_are_kept_by_no_cache_and_assets_for_ever() {
    let world = world().await;
    let run = submitted(&world, true).await;
    let flow = world.ask("get", "/api/v1/workflows", Some(&world.admin), &[], "").await.body;
    world.ticket().await;
    let cookie = enter(&world, &world.admin).await;
    let page = get(&world, "/runs", &cookie).await.text;
    let form = form_token(&page);
    let parts = ["head", "tree", "log", "events", "cost", "files"].map(|part| format!("/ui/runs/{run}/{part}"));
    let flow = format!("/ui/workflows/{}", flow["data"][0]["id"].as_str().unwrap());
    let others =
        ["/ui/runs", "/ui/inbox", "/ui/inbox/count", "/ui/machines", "/ui/spending", "/ui/calls"].map(str::to_owned);
    let build = page.split(r#"data-build=""#).nth(1).unwrap().split('"').next().unwrap().to_owned();
    for path in parts.into_iter().chain(others).chain([flow]) {
        let shown = get(&world, &path, &cookie).await;
        assert_eq!((shown.status, shown.header("cache-control")), (StatusCode::OK, "private, no-store"), "{path}");
        let secret = cookie.split_once('=').unwrap().1;
        assert!(!shown.text.contains("csrf") && !shown.text.contains(&form) && !shown.text.contains(secret), "{path}");
        // The script loads the page anew when this is not what the page was built by.
        assert_eq!(shown.header("x-build"), build, "{path}");
    }
    for asset in [super::asset::style(), super::asset::script(), super::asset::icon()] {
        let shown = send(&world, "GET", &asset.path, &[("host", HOST)], "").await;
        let kept = "public, max-age=31536000, immutable";
        assert_eq!((shown.status, shown.header("cache-control")), (StatusCode::OK, kept), "{}", asset.path);
        assert_eq!(shown.header("x-content-type-options"), "nosniff", "{}", asset.path);
    }
    let other = send(&world, "GET", "/static/script-0000000000000000.js", &[("host", HOST)], "").await;
    assert_eq!(other.status, StatusCode::NOT_FOUND);
}

/// What a stream says until it has said `last`, or until it ends.
async fn heard(
    stream: &mut (impl futures_util::Stream<Item = Result<axum::body::Bytes, axum::Error>> + Unpin),
    last: &str,
) -> String {
    let mut heard = String::new();
    let all = async {
        while !heard.contains(last) {
            let Some(piece) = stream.next().await else { return };
            heard += std::str::from_utf8(&piece.unwrap()).unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.expect("it says so, or ends");
    heard
}

/// A hint that changed nothing in a region is sent to no viewer.
#[tokio::test]
async fn a_region_is_told_only_when_it_has_changed() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    submitted(&world, false).await;
    let request = Request::builder().uri("/ui/live?r=/ui/runs").header("host", HOST).header("cookie", &cookie);
    let mut stream = world.raw(request.body(Body::empty()).unwrap()).await.into_body().into_data_stream();
    let first = heard(&mut stream, "event: v").await;
    assert_eq!(first.matches("event: v").count(), 1, "{first}");
    world.state.hub.ring(Hint::Org(world.org, Topic::Runs));
    while world.state.pages.live.renders.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    submitted(&world, false).await;
    let next = heard(&mut stream, "event: v").await;
    assert_eq!(next.matches("event: v").count(), 1, "{next}");
    let version = get(&world, "/ui/runs", &cookie).await.header("x-version").to_owned();
    assert!(next.contains(&version) && !first.contains(&version), "{first} {next} {version}");
}

#[tokio::test]
async fn a_stream_ends_when_its_session_does() {
    let world = world().await;
    let (token, _) = world.engine.create_token(world.org, "t".into(), Scope::Read, None, None).await.unwrap();
    let until = model::Timestamp(crate::now_ms() + 700);
    world.engine.open_session("secret".into(), token.id, until).await.unwrap();
    let request = Request::builder().uri("/ui/live?r=/ui/runs").header("host", HOST);
    let request = request.header("cookie", "remuda_testtest=secret").body(Body::empty()).unwrap();
    let answer = world.raw(request).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let said = heard(&mut answer.into_body().into_data_stream(), "event: over").await;
    assert!(said.contains("event: over") && crate::now_ms() >= until.ms(), "{said}");
    assert_eq!(get(&world, "/ui/runs", "remuda_testtest=secret").await.status, StatusCode::UNAUTHORIZED);
}

/// The port of `repl ui` is a part of the control plane: tools of steps do not reach it. A ticket is good for a minute.
#[tokio::test]
async fn a_ticket_grows_old_and_its_port_is_closed_to_tools() {
    let own = OwnAddresses::default();
    let pages = Pages::new(PagesConfig::default(), None, false, own.clone());
    let world = World::showing(pages, NEAR).await;
    let admin = world.engine.check_token(&world.admin).await.unwrap();
    let link = async || {
        ticket::open(State(world.state.clone()), Extension(Peer::Local), Reader(admin.clone())).await.unwrap().0
    };
    let (old, fresh) = (link().await.url, link().await.url);
    let port: u16 = old.split(".localhost:").nth(1).unwrap().split('/').next().unwrap().parse().unwrap();
    let policy = AddressPolicy::new(Profile::Embedded, Vec::new(), own);
    let to = |port: u16| policy.judge("here", ([127, 0, 0, 1], port).into(), false, &|_| true);
    assert!(matches!(to(port), Err(Denied::Own { .. })) && !matches!(to(port - 1), Err(Denied::Own { .. })), "{port}");
    let at = |url: &str| format!("/{}", url.split(".localhost:").nth(1).unwrap().split_once('/').unwrap().1);
    world.state.pages.tickets.age(&old, Duration::from_secs(61));
    world.state.pages.tickets.age(&fresh, Duration::from_secs(50));
    let world = world.through_own_door();
    let host = own_host(&world);
    let shown = send(&world, "GET", &at(&old), &[("host", host.as_str())], "").await;
    assert_eq!((shown.status, shown.header("set-cookie")), (StatusCode::UNAUTHORIZED, ""));
    assert_eq!(send(&world, "GET", &at(&fresh), &[("host", host.as_str())], "").await.status, StatusCode::SEE_OTHER);
}
