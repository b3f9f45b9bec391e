//! Regions hear of each change that their pages would otherwise miss until they are loaded again.

use super::full::written;
use super::tests::{HOST, NEAR, enter, get, submitted, world};
use super::{Pages, PagesConfig};
use crate::hostile::World;
use crate::repeated::{self, orphan_as};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::adapters::tool::address::OwnAddresses;
use engine::store::artifact::{self, Announced, EntryKind};
use engine::store::{Lane, Tx};
use futures_util::StreamExt as _;
use model::log::LogId;
use model::step::{OnMachine, StepTry};
use model::{Failure, InstanceId, JobId, StepId, Timestamp, WorkflowId};
use serde_json::json;
use std::time::Duration;

/// An open page with one region.
struct Open<'w> {
    world: &'w World,
    cookie: String,
    region: String,
    stream: futures_util::stream::BoxStream<'static, Result<axum::body::Bytes, axum::Error>>,
}

impl Open<'_> {
    async fn at<'w>(world: &'w World, region: &str) -> Open<'w> {
        let cookie = enter(world, &world.admin).await;
        let request = Request::builder().uri(format!("/ui/live?r={region}"));
        let request = request.header("host", HOST).header("cookie", &cookie).body(Body::empty()).unwrap();
        let stream = world.raw(request).await.into_body().into_data_stream().boxed();
        let mut open = Open { world, cookie, region: region.to_owned(), stream };
        open.hears().await;
        open
    }

    /// Waits until it is told of a version.
    async fn hears(&mut self) {
        let mut heard = String::new();
        while !heard.contains("event: v") {
            heard += std::str::from_utf8(&self.stream.next().await.unwrap().unwrap()).unwrap();
        }
    }

    async fn now(&self) -> String {
        let shown = get(self.world, &self.region, &self.cookie).await;
        assert_eq!(shown.status, StatusCode::OK, "{}", shown.text);
        shown.text
    }

    /// Is told of versions until it shows this.
    async fn comes_to_show(&mut self, text: &str) {
        while !self.now().await.contains(text) {
            self.hears().await;
        }
    }
}

pub(super) async fn write(world: &World, act: impl Fn(&mut Tx) -> Result<(), Failure> + Send + Sync + 'static) {
    world.engine.store.write(Lane::Normal, "test.write", act).await.unwrap();
}

#[tokio::test]
async fn a_step_is_followed_to_its_decision() {
    let world = world().await;
    let ticket = world.ticket().await;
    let path = format!("/api/v1/escalations/{ticket}");
    let asked = world.ask("get", &path, Some(&world.admin), &[], "").await.body;
    let region = format!("/ui/runs/{}/steps/{}", asked["run"].as_str().unwrap(), asked["step"].as_str().unwrap());
    let mut open = Open::at(&world, &region).await;
    assert!(open.now().await.contains(r#"data-s="running""#), "{}", open.now().await);
    let body = json!({ "action": "skip" }).to_string();
    let done = world.ask("post", &format!("{path}/resolve"), Some(&world.admin), &[], &body).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    world.work().await;
    open.comes_to_show(r#"data-s="skipped""#).await;
}

/// What begins a step is a request of a program that no event of the run tells of.
#[tokio::test]
async fn a_step_that_begins_is_shown_while_it_runs() {
    let world = world().await;
    let run = world.agents(json!([{ "name": "s", "external": { "tool": "crm", "input": 1 } }])).await;
    let steps = world.ask("get", &format!("/api/v1/runs/{run}/steps"), Some(&world.admin), &[], "").await.body;
    let step = steps["data"][0]["id"].as_str().unwrap();
    let mut tree = Open::at(&world, &format!("/ui/runs/{run}/tree")).await;
    let mut one = Open::at(&world, &format!("/ui/runs/{run}/steps/{step}")).await;
    let (running, in_tree) = (r#"data-s="running""#, r#">s</a><span class="st" data-s="running""#);
    assert!(!tree.now().await.contains(in_tree) && !one.now().await.contains(running));
    let body = json!({ "tools": ["crm"] }).to_string();
    let taken = world.ask("post", "/api/v1/steps/poll", Some(&world.admin), &[], &body).await;
    assert_eq!((taken.status, taken.body["id"].as_str()), (StatusCode::OK, Some(step)), "{}", taken.body);
    tree.comes_to_show(in_tree).await;
    one.comes_to_show(running).await;
}

#[tokio::test]
async fn the_log_of_a_step_appears_when_it_begins() {
    let world = world().await;
    let run = world.agents(json!([{ "name": "s", "http": { "url": "https://a.example/" } }])).await;
    let steps = world.ask("get", &format!("/api/v1/runs/{run}/steps"), Some(&world.admin), &[], "").await.body;
    let step = steps["data"][0]["id"].as_str().unwrap().to_owned();
    let mut open = Open::at(&world, &format!("/ui/runs/{run}/steps/{step}/log")).await;
    assert_eq!(open.now().await, "");
    let number: StepId = step.parse().unwrap();
    written(&world, &run, LogId::Step(StepTry { id: number, number: 1 }), b"hello from the step\n").await;
    write(&world, move |tx| {
        // As if a machine had begun it.
        let mut step = engine::store::step::find(tx, number)?.unwrap();
        let (job, restores) = (JobId(1), Vec::new());
        step.on =
            Some(OnMachine { job, epoch: 1, input_bytes: 0, restores, stopping: false, log_end: None, kept: None });
        engine::store::step::save(tx, &step)
    })
    .await;
    open.comes_to_show("hello from the step").await;
    assert!(open.now().await.contains(&format!(r#"<live-region src="/ui/runs/{run}/log?step={step}""#)));
}

#[tokio::test]
async fn workflows_and_their_nodes_are_followed() {
    let world = world().await;
    submitted(&world, true).await;
    let listed = async || world.ask("get", "/api/v1/workflows", Some(&world.admin), &[], "").await.body;
    let first = listed().await["data"][0]["id"].as_str().unwrap().to_owned();
    let mut list = Open::at(&world, "/ui/workflows").await;
    let mut one = Open::at(&world, &format!("/ui/workflows/{first}")).await;
    submitted(&world, true).await;
    let second = listed().await["data"][0]["id"].as_str().unwrap().to_owned();
    assert_ne!(first, second);
    list.comes_to_show(&second).await;
    let id: WorkflowId = first.parse().unwrap();
    write(&world, move |tx| {
        let mut workflow = engine::store::workflow::lock(tx, id)?;
        workflow.cancel_reason = Some("not needed any more".to_owned());
        engine::store::workflow::save(tx, &workflow)
    })
    .await;
    one.comes_to_show("not needed any more").await;
}

#[tokio::test]
async fn files_are_followed_from_their_announcement_to_their_deletion() {
    let world = world().await;
    let run = submitted(&world, false).await;
    let (org, id): (_, model::RunId) = (world.org, run.parse().unwrap());
    let mut open = Open::at(&world, &format!("/ui/runs/{run}/files")).await;
    let announced = move |tx: &mut Tx| {
        let what = EntryKind::File { mode: 0o644 };
        let new = Announced { org, run: id, attempt: 1, path: "out.txt", size: 5, what: &what };
        artifact::announce(tx, &new).map(|_| ())
    };
    write(&world, announced).await;
    open.comes_to_show("uploading").await;
    let of = move |tx: &mut Tx| -> Result<(model::RunId, model::ArtifactId), Failure> {
        Ok((id, artifact::by_path(tx, id, 1, "out.txt")?.expect("it is announced").id))
    };
    write(&world, move |tx| of(tx).and_then(|of| artifact::finalise(tx, of, 5, "00")).map(|_| ())).await;
    open.comes_to_show("final").await;
    write(&world, move |tx| of(tx).and_then(|of| artifact::deleted(tx, of))).await;
    open.comes_to_show("deleted").await;
}

/// A region that cannot be rendered any more says so: what it showed before would pass for the present.
#[tokio::test]
async fn a_region_whose_thing_is_gone_says_so_and_goes_on_when_it_is_back() {
    let world = world().await;
    let run = submitted(&world, false).await;
    let id: model::RunId = run.parse().unwrap();
    let mut open = Open::at(&world, &format!("/ui/runs/{run}/head")).await;
    let elsewhere = world.engine.ensure_org("elsewhere").await.unwrap();
    let ours = world.org;
    for (org, text) in [(elsewhere, "404 Not Found"), (ours, "created")] {
        write(&world, move |tx| {
            let mut run = engine::store::run::lock(tx, id)?;
            run.org = org;
            tx.hint(engine::Hint::Run(id));
            engine::store::run::save(tx, &run)
        })
        .await;
        open.comes_to_show(text).await;
    }
}

/// A heartbeat sends no hint: machines are rendered from time to time.
#[tokio::test]
async fn machines_are_rendered_again_without_a_hint() {
    let mut pages = Pages::new(PagesConfig::default(), None, false, OwnAddresses::default());
    pages.live.machines_every = Duration::from_millis(5);
    let world = World::showing(pages, NEAR).await;
    let instance: InstanceId = repeated::placed(&world).await["instance"].as_str().unwrap().parse().unwrap();
    let mut open = Open::at(&world, "/ui/machines").await;
    let heard = Timestamp(crate::now_ms() + 12_345);
    write(&world, move |tx| engine::store::instance::seen(tx, instance, heard, 0)).await;
    open.comes_to_show(&format!(r#"data-age="{}""#, heard.ms())).await;
}

/// However many searches are followed, two are rendered at once; other regions do not wait for them.
#[tokio::test]
async fn searches_take_turns() {
    let world = world().await;
    let busy = world.state.pages.live.searching.acquire_many(2).await.unwrap();
    let cookie = enter(&world, &world.admin).await;
    let request = Request::builder().uri("/ui/live?r=%2Fui%2Fruns%3Fq%3Da&r=/ui/runs");
    let request = request.header("host", HOST).header("cookie", &cookie).body(Body::empty()).unwrap();
    let mut stream = world.raw(request).await.into_body().into_data_stream();
    let mut heard = String::new();
    while !heard.contains(r#""src":"/ui/runs""#) {
        heard += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
    }
    assert!(!heard.contains("q=a"), "{heard}");
    drop(busy);
    while !heard.contains(r#""src":"/ui/runs?q=a""#) {
        heard += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
    }
}

#[tokio::test]
async fn orphans_are_followed() {
    let world = world().await;
    let mut open = Open::at(&world, "/ui/orphans").await;
    orphan_as(&world, "repl-testtest-none-1".to_owned(), "i-new".to_owned()).await;
    open.comes_to_show("i-new").await;
    write(&world, |tx| engine::store::orphan::remove(tx, "local", "i-new")).await;
    open.comes_to_show("Nothing is left behind that costs.").await;
}
