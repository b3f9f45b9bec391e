//! What looking at pages does to the control plane: nothing is written, an open stream counts as use, and it ends when its person leaves.

use super::tests::{HOST, NEAR, enter, form_token, get, post, submitted, world};
use super::{Pages, PagesConfig};
use crate::hostile::World;
use crate::repeated;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::adapters::tool::address::OwnAddresses;
use futures_util::StreamExt as _;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Each route of the pages that answers GET, as the router has it.
fn routes() -> Vec<&'static str> {
    let source = include_str!("../pages.rs");
    let routes = source.split(".route(\"").skip(1).map(|rest| rest.split_once('"').unwrap());
    let routes =
        routes.filter(|(_, rest)| rest.lines().next().unwrap().split(".route(").next().unwrap().contains("get("));
    routes.map(|(path, _)| path).filter(|path| *path != "/ticket").collect()
}

#[tokio::test]
async fn no_get_writes_anything() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = submitted(&world, true).await;
    let ticket = world.ticket().await;
    let read = async |path: &str| world.ask("get", &format!("/api/v1{path}"), Some(&world.admin), &[], "").await.body;
    let of_agents = read(&format!("/escalations/{ticket}")).await;
    let (other, step) = (of_agents["run"].as_str().unwrap(), of_agents["step"].as_str().unwrap());
    let flow = read("/workflows").await["data"][0]["id"].as_str().unwrap().to_owned();
    repeated::orphan(&world).await;
    repeated::called(&world).await;
    let script = super::asset::script().path.clone();
    let asked = BTreeMap::from([
        ("/", vec!["/".to_owned(), "/?show=failed".to_owned()]),
        ("/login", vec!["/login".to_owned()]),
        ("/static/{name}", vec![script]),
        ("/ui/live", vec![]), // below, because it does not end
        ("/ui/{*region}", vec!["/ui/runs".to_owned(), format!("/ui/runs/{run}/head"), "/ui/inbox/count".to_owned()]),
        ("/runs", vec!["/runs?q=sleep".to_owned()]),
        ("/new", vec!["/new".to_owned(), format!("/new?from={run}"), "/new?do=start&command=true".to_owned()]),
        ("/runs/{id}", vec![format!("/runs/{run}"), format!("/runs/{other}"), format!("/runs/{run}?do=cancel")]),
        ("/runs/{id}/steps/{step}", vec![format!("/runs/{other}/steps/{step}")]),
        ("/runs/{id}/artifacts/{artifact}", vec![format!("/runs/{run}/artifacts/art_1")]),
        ("/runs/{id}/artifacts/{artifact}/preview", vec![format!("/runs/{run}/artifacts/art_1/preview")]),
        ("/runs/{id}/steps/{step}/{part}", vec![format!("/runs/{other}/steps/{step}/input")]),
        ("/runs/{id}/log/raw", vec![format!("/runs/{run}/log/raw")]),
        ("/runs/{id}/definition/raw", vec![format!("/runs/{run}/definition/raw")]),
        ("/runs/{id}/output/raw", vec![format!("/runs/{run}/output/raw")]),
        ("/runs/{id}/inputs/raw", vec![format!("/runs/{run}/inputs/raw")]),
        ("/runs/{id}/error/raw", vec![format!("/runs/{run}/error/raw")]),
        (
            "/runs/{id}/{part}",
            ["log", "events", "cost", "files", "definition", "cancel", "retry", "pause", "send"]
                .map(|part| format!("/runs/{run}/{part}"))
                .into(),
        ),
        ("/inbox", vec!["/inbox".to_owned(), format!("/inbox?open={ticket}")]),
        ("/inbox/{id}/{action}", ["input", "skip", "abort"].map(|part| format!("/inbox/{ticket}/{part}")).into()),
        ("/machines", vec!["/machines".to_owned()]),
        ("/workflows", vec!["/workflows".to_owned()]),
        ("/workflows/{id}", vec![format!("/workflows/{flow}")]),
        ("/calls", vec!["/calls".to_owned()]),
        ("/workflows/{id}/nodes/{node}", vec![format!("/workflows/{flow}/nodes/check-budget")]),
        ("/calls/{id}", vec!["/calls/none".to_owned()]),
        ("/calls/{id}/{action}", vec!["/calls/none/value".to_owned(), "/calls/none/cancel".to_owned()]),
        ("/spending", vec!["/spending".to_owned()]),
        ("/orphans", vec!["/orphans".to_owned()]),
        ("/settings", vec!["/settings".to_owned()]),
    ]);
    let known: Vec<&str> = routes();
    assert!(known.len() >= 20 && known.contains(&"/runs/{id}/{part}"), "{known:?}");
    for route in &known {
        assert!(asked.contains_key(route), "{route} is new: say how it is asked");
    }
    let written = || {
        let counts = world.engine.store.counts();
        (counts.commits, counts.log_commits, counts.writes)
    };
    for path in asked.values().flatten() {
        let before = written();
        let shown = get(&world, path, &cookie).await;
        assert!(!shown.status.is_server_error(), "{path}: {}", shown.text);
        assert_eq!(written(), before, "{path} writes");
    }
    let before = written();
    drop(stream(&world, &cookie).await);
    assert_eq!(written(), before, "/ui/live writes");
    // What does write is seen by this.
    submitted(&world, false).await;
    assert_ne!(written(), before);
}

/// A stream of the runs' region that has said its first words.
async fn stream(world: &World, cookie: &str) -> axum::body::BodyDataStream {
    let request = Request::builder().uri("/ui/live?r=/ui/runs").header("host", HOST).header("cookie", cookie);
    let answer = world.raw(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let mut stream = answer.into_body().into_data_stream();
    let mut heard = String::new();
    while !heard.contains("event: v") {
        heard += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
    }
    stream
}

#[tokio::test]
async fn logout_ends_the_streams_of_its_session_and_no_other() {
    let world = world().await;
    let (leaves, stays) = (enter(&world, &world.admin).await, enter(&world, &world.admin).await);
    let (mut left, mut stayed) = (stream(&world, &leaves).await, stream(&world, &stays).await);
    assert_eq!(world.state.pages.open_streams(), 2);
    let form = form_token(&get(&world, "/", &leaves).await.text);
    let out = post(&world, "/logout", &leaves, &format!("csrf={form}")).await;
    assert_eq!(out.status, StatusCode::SEE_OTHER, "{}", out.text);
    let mut last = String::new();
    let ended = async {
        while let Some(piece) = left.next().await {
            last += std::str::from_utf8(&piece.unwrap()).unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the stream of who has left ends");
    assert!(last.contains("event: over"), "{last}");
    let counted = async {
        while world.state.pages.open_streams() != 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), counted).await.expect("one stream is left");
    submitted(&world, false).await;
    let news = tokio::time::timeout(Duration::from_secs(10), stayed.next()).await.expect("the other one goes on");
    assert!(std::str::from_utf8(&news.unwrap().unwrap()).unwrap().contains("event: v"));
}

#[tokio::test]
async fn an_open_stream_counts_as_activity() {
    let mut pages = Pages::new(PagesConfig::default(), None, false, OwnAddresses::default());
    pages.live.active_every = Duration::from_millis(5);
    let world = World::showing(pages, NEAR).await;
    let cookie = enter(&world, &world.admin).await;
    let _stream = stream(&world, &cookie).await;
    // Twice: the first beat comes with the request itself.
    for beat in 0..2 {
        world.state.asked_at.store(0, Ordering::Relaxed);
        let told = async {
            while world.state.asked_at.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), told).await.unwrap_or_else(|_| panic!("no beat {beat}"));
    }
}
