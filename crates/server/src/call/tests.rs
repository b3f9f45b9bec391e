//! Calls whose adapter is a program: what the Executor does about each way in which it answers, or does not. The program is a script that
//! does what the test says next.

use crate::hostile::World;
use axum::http::StatusCode;
use calls::adapter::Request;
use calls::record::ExecStatus;
use calls::{Value as Datum, json as values};
use engine::adapters::call::exchange::Exchange;
use engine::adapters::call::{Adapters, Own};
use engine::execution::Executor;
use engine::store::object::Objects;
use engine::store::{Hint, Lane, Topic, Tx, WorkClass, WorkKind, Worker};
use model::{CallId, Failure, OrgId, Timestamp};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FUNCTION: &str = "dml+exec://dml-exec-said/f";

/// A control plane whose adapter `dml-exec-said` does what the file `act` says, and keeps each request.
struct Scene {
    world: World,
    folder: tempfile::TempDir,
    worker: Worker,
}

impl Scene {
    async fn new() -> Scene {
        Scene::with(Duration::from_secs(20)).await
    }

    /// An adapter that takes longer is killed.
    async fn with(within: Duration) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let script = "#!/bin/sh\nd=$(dirname \"$0\")\ncat > $d/request\ncat $d/request >> $d/requests\n. $d/act\n";
        let program = folder.path().join("dml-exec-said");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::join_paths([folder.path(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
        let own =
            Own { program: "/nonexistent".into(), path: "/nonexistent".into(), names: &[], variables: Vec::new() };
        let adapters = Adapters { path, within, own: Some(own), ..Adapters::new(vec!["dml-exec-*".to_owned()]) };
        let executor = Executor { adapters, exchange: folder.path().join("exchange") };
        let world = World::executing(executor).await;
        let worker = world.engine.start_worker("test".into()).await.unwrap();
        world.engine.beat(&worker).await.unwrap();
        Scene { world, folder, worker }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    /// What the adapter does when it is asked next.
    fn acts(&self, script: &str) {
        std::fs::write(self.file("act"), script).unwrap();
    }
    fn answers(&self, answer: &Value) {
        std::fs::write(self.file("answer"), answer.to_string()).unwrap();
        self.acts("cat $d/answer");
    }
    fn request(&self) -> Request {
        serde_json::from_str(&std::fs::read_to_string(self.file("request")).unwrap()).unwrap()
    }
    fn requests(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file("requests")).unwrap_or_default();
        serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap).collect()
    }
    /// How often it was asked this.
    fn asked(&self, operation: &str) -> usize {
        self.requests().iter().filter(|request| request["operation"] == operation).count()
    }

    async fn ask(&self, body: Value) -> (StatusCode, Value) {
        let got = self.world.ask("post", "/api/v1/calls", Some(&self.world.admin), &[], &body.to_string()).await;
        (got.status, got.body)
    }
    /// A new execution, whose adapter was not asked yet.
    async fn begin(&self) -> String {
        let (status, call) = self.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{call}");
        call["id"].as_str().unwrap().to_owned()
    }
    async fn show(&self, id: &str) -> Value {
        let path = format!("/api/v1/calls/{id}");
        self.world.ask("get", &path, Some(&self.world.admin), &[], "").await.body
    }

    /// In one transaction.
    async fn write<T: Send + 'static>(&self, act: impl Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static) -> T {
        self.world.engine.store.write(Lane::Normal, "test.write", act).await.unwrap()
    }
    fn org(&self) -> OrgId {
        self.world.org
    }
    fn project(&self) -> String {
        self.world.engine.context.config.calls.project.clone()
    }
    /// The records of a node's execs, newest first.
    async fn execs(&self, node: &str) -> Vec<Vec<u8>> {
        let (org, node) = (self.org(), node.parse().unwrap());
        let read = move |tx: &mut Tx| {
            let rows = engine::store::exec::of_node(tx, org, node, 100)?;
            let records =
                rows.iter().map(|row| calls::Read::record(&mut Objects { tx, org }, row.id.into())).collect::<Vec<_>>();
            records.into_iter().map(|record| Ok(record?.expect("its record is here"))).collect()
        };
        self.write(read).await
    }
    /// One more execution of the same call, `cache: false`.
    async fn begin_fresh(&self) -> String {
        let (status, call) = self.ask(json!({ "function": FUNCTION, "inputs": [1, "two"], "cache": false })).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{call}");
        call["id"].as_str().unwrap().to_owned()
    }
    /// Its adapter is asked, publishes this and says so.
    async fn ends_with(&self, id: &str, status: ExecStatus, value: &str) -> Value {
        self.answers(&pending("t"));
        self.work(id).await;
        self.answers(&self.publishes(status, value));
        self.until_over(id).await
    }

    /// The worker does what is due, and what waits for its time is due now.
    async fn work(&self, id: &str) -> Value {
        let number = id.parse::<CallId>().unwrap().0;
        let hurry = move |tx: &mut Tx| {
            let mut it = engine::store::execution::lock(tx, number)?.unwrap();
            it.not_before = None;
            engine::store::execution::save(tx, number, &it)?;
            let at = tx.at();
            tx.wake(WorkKind::Invocation, number, at);
            Ok(())
        };
        self.world.engine.store.write(Lane::Normal, "test.hurry", hurry).await.unwrap();
        for item in self.world.engine.claim(&self.worker, WorkClass::Act, 8).await.unwrap() {
            self.world.engine.work_on(item).await;
        }
        self.show(id).await
    }
    async fn until_over(&self, id: &str) -> Value {
        for _ in 0..20 {
            let seen = self.work(id).await;
            if seen["ended"] == true {
                // Whatever is left to ask of the adapter.
                for _ in 0..12 {
                    self.work(id).await;
                }
                return seen;
            }
        }
        panic!("it never ends: {}", self.show(id).await);
    }

    /// What a worker does: its result is on the remote, and the adapter says so.
    fn publishes(&self, status: ExecStatus, value: &str) -> Value {
        let request = self.request();
        let value: Datum = values::parse(value).unwrap();
        let answer = Exchange::open(&request).unwrap().publish(status, &value).unwrap();
        serde_json::from_str(&answer.document()).unwrap()
    }
}

fn pending(token: &str) -> Value {
    json!({ "version": 1, "answer": "pending", "token": token, "retry_after_ms": 500 })
}

fn error(seen: &Value) -> (&str, &str) {
    (seen["error"]["code"].as_str().unwrap_or_default(), seen["error"]["message"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn a_call_is_asked_about_with_its_newest_token_until_its_result_is_here_and_pinned() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    scene.answers(&pending("first"));
    let seen = scene.work(&id).await;
    assert_eq!(seen["status"], "poll_adapter", "{seen}");
    let node = seen["node"].as_str().unwrap().to_owned();
    assert_eq!(scene.execs(&node).await.len(), 0, "no exec record while it is pending");
    let request = scene.request();
    assert_eq!((request.token.as_deref(), request.attempt, request.function.as_str()), (None, 1, FUNCTION));
    let folder = scene.file("exchange").join(&request.execution);
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let inputs = Exchange::open(&request).unwrap().inputs().unwrap();
    assert_eq!(inputs.iter().map(values::to_json).collect::<Value>(), json!([1, "two"]));
    scene.answers(&pending("second"));
    scene.work(&id).await;
    assert_eq!(scene.request().token.as_deref(), Some("first"), "the token is stored before the next question");
    let done = scene.publishes(ExecStatus::Ok, r#"{"sum": 3}"#);
    scene.answers(&done);
    let seen = scene.work(&id).await;
    assert_eq!(scene.requests().iter().rfind(|it| it["operation"] == "invoke").unwrap()["token"], "second");
    assert_eq!((&seen["status"], &seen["result"]["value"]), (&json!("completed_ok"), &json!({ "sum": 3 })));
    scene.answers(&json!({ "version": 1, "answer": "done" }));
    scene.until_over(&id).await;
    assert_eq!(scene.asked("cleanup"), 1);
    assert!(!folder.exists(), "its exchange is gone");
    let before = scene.requests().len();
    let (status, hit) = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
    assert_eq!((status, &hit["status"], &hit["id"]), (StatusCode::OK, &json!("pinned_hit"), &Value::Null));
    assert_eq!(hit["result"], seen["result"]);
    let list = scene.world.ask("get", "/api/v1/calls", Some(&scene.world.admin), &[], "").await.body;
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "a hit writes nothing");
    let (status, again) = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"], "cache": false })).await;
    assert_eq!((status, scene.requests().len()), (StatusCode::ACCEPTED, before), "{again}");
    let first = scene.execs(&node).await;
    scene.ends_with(again["id"].as_str().unwrap(), ExecStatus::Ok, "4").await;
    let execs = scene.execs(&node).await;
    assert_eq!((first.len(), execs.len(), execs.contains(&first[0])), (1, 2, true), "appended, not overwritten");
    let (_, hit) = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
    assert_eq!(hit["result"]["value"], 4, "the new result replaces the old one");
    assert_ne!(hit["result"]["exec"], seen["result"]["exec"], "and both are kept");
}

/// Pages that list results are told when one is not kept any more.
#[tokio::test]
async fn an_invalidated_result_rings_the_listing_of_calls() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    let seen = scene.ends_with(&id, ExecStatus::Ok, "7").await;
    let mut bell = scene.world.state.hub.follow(Hint::Org(scene.org(), Topic::Calls));
    let body = json!({ "result": seen["node"] }).to_string();
    let done = scene.world.ask("post", "/api/v1/cache/invalidate", Some(&scene.world.admin), &[], &body).await;
    assert_eq!((done.status, &done.body["results"]), (StatusCode::OK, &json!(1)), "{}", done.body);
    tokio::time::timeout(Duration::from_secs(20), bell.rung()).await.expect("the invalidation is told");
}

/// The first execution ends between the look for a pin and the transaction that opens the second.
#[tokio::test]
async fn what_was_pinned_meanwhile_answers_and_the_adapter_is_not_asked() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    let first = scene.ends_with(&id, ExecStatus::Ok, "7").await;
    let (org, project, asked) = (scene.org(), scene.project(), scene.asked("invoke"));
    let node = first["node"].as_str().unwrap().parse().unwrap();
    let exec = first["result"]["exec"].as_str().unwrap().parse().unwrap();
    let of = project.clone();
    scene.write(move |tx| engine::store::pin::remove(tx, org, &of, node)).await;
    let second = scene.begin().await;
    assert_ne!(second, id, "there is no pin, so it is opened");
    scene.write(move |tx| engine::store::pin::set(tx, org, &project, node, exec)).await;
    let seen = scene.until_over(&second).await;
    assert_eq!((&seen["status"], &seen["result"]), (&json!("pinned_hit"), &first["result"]));
    assert_eq!(scene.asked("invoke"), asked, "it was not executed again");
    let fresh = scene.begin_fresh().await;
    let seen = scene.ends_with(&fresh, ExecStatus::Ok, "8").await;
    assert_eq!((&seen["status"], &seen["result"]["value"]), (&json!("completed_ok"), &json!(8)), "it wants a new one");
}

#[tokio::test]
async fn the_loser_of_a_pin_adopts_an_ok_that_is_whole_and_replaces_one_that_is_damaged() {
    for status in [ExecStatus::Error, ExecStatus::Ok] {
        for damaged in [false, true] {
            let scene = Scene::new().await;
            let (slow, quick) = (scene.begin().await, scene.begin_fresh().await);
            scene.answers(&pending("t"));
            scene.work(&slow).await;
            let pinned = scene.ends_with(&quick, ExecStatus::Ok, "\"quick\"").await;
            let (org, exec) = (scene.org(), pinned["result"]["exec"].as_str().unwrap().parse().unwrap());
            if damaged {
                let take_root = move |tx: &mut Tx| {
                    let result = calls::read::exec(&mut Objects { tx, org }, exec).unwrap().result;
                    let root = calls::read::dag(&mut Objects { tx, org }, result).unwrap().root;
                    engine::store::object::delete(tx, org, root.0, Timestamp(i64::MAX))
                };
                assert!(scene.write(take_root).await);
            }
            let seen = scene.ends_with(&slow, status, "\"slow\"").await;
            let own = if status == ExecStatus::Ok { "completed_ok" } else { "completed_error" };
            let (expected, value) = if damaged { (own, "slow") } else { ("pinned_hit", "quick") };
            assert_eq!((&seen["status"], &seen["result"]["value"]), (&json!(expected), &json!(value)), "{seen}");
            let (code, hit) = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
            assert_eq!((code, &hit["result"]["value"]), (StatusCode::OK, &json!(value)));
        }
    }
}

#[tokio::test]
async fn a_failure_of_the_function_is_pinned_and_a_failure_of_the_adapter_is_not() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    scene.answers(&pending("t"));
    scene.work(&id).await;
    scene.answers(&scene.publishes(ExecStatus::Error, r#"{"type": "exit", "message": "no"}"#));
    let seen = scene.until_over(&id).await;
    assert_eq!((&seen["status"], &seen["result"]["status"]), (&json!("completed_error"), &json!("error")));
    let (status, hit) = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
    assert_eq!((status, &hit["result"]["value"]["message"]), (StatusCode::OK, &json!("no")), "an error is a hit");
    let (_, call) = scene.ask(json!({ "function": FUNCTION, "inputs": [2] })).await;
    let id = call["id"].as_str().unwrap();
    scene.answers(&json!({ "version": 1, "answer": "failed", "code": "no_image", "message": "there is no image x" }));
    let seen = scene.until_over(id).await;
    assert_eq!((&seen["status"], error(&seen)), (&json!("failed_terminal"), ("no_image", "there is no image x")));
    assert_eq!(scene.requests().iter().filter(|it| it["key"] == scene.requests().last().unwrap()["key"]).count(), 2);
    assert_eq!(scene.requests().last().unwrap()["operation"], "cleanup", "asked once, then told to clean up");
    let (status, again) = scene.ask(json!({ "function": FUNCTION, "inputs": [2] })).await;
    assert_eq!((status, &again["attempt"]), (StatusCode::ACCEPTED, &json!(2)), "what failed is executed again");
}

#[tokio::test]
async fn an_adapter_that_does_not_answer_is_asked_three_times_and_its_words_are_shown() {
    for (act, code, said) in [
        ("echo garbage; echo 'a stack' >&2", "not_json", "garbage"),
        ("sleep 60", "timed_out", "did not answer"),
        ("echo 'no disk' >&2; exit 3", "exited", "code 3; it said: no disk"),
        ("kill -9 $$", "killed", "signal 9"),
        ("cat $d/answer $d/answer", "not_json", "not one JSON document"),
        ("true", "empty", "nothing on stdout"),
    ] {
        let within = if act == "sleep 60" { Duration::from_millis(200) } else { Duration::from_secs(20) };
        let scene = Scene::with(within).await;
        let id = scene.begin().await;
        scene.answers(&pending("t"));
        scene.acts(act);
        let seen = scene.work(&id).await;
        assert_eq!((&seen["status"], error(&seen).0), (&json!("retry_wait"), code), "{seen}");
        assert!(error(&seen).1.contains(said), "{seen}");
        let seen = scene.work(&id).await;
        assert_eq!(seen["status"], "retry_wait", "{seen}");
        let seen = scene.work(&id).await;
        assert_eq!((&seen["status"], error(&seen).0), (&json!("failed_terminal"), code), "{seen}");
        assert_eq!(scene.asked("invoke"), 3, "{act}");
    }
}

#[tokio::test]
async fn an_answer_starts_the_count_of_failures_again() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    for _ in 0..3 {
        scene.acts("exit 1");
        scene.work(&id).await;
        assert_eq!(scene.work(&id).await["status"], "retry_wait");
        scene.answers(&pending("t"));
        assert_eq!(scene.work(&id).await["status"], "poll_adapter");
    }
}

#[tokio::test]
async fn done_without_objects_is_looked_at_again_and_then_fails_with_what_is_missing() {
    for status in ["ok", "error"] {
        done_without_objects(status).await;
    }
}

async fn done_without_objects(status: &str) {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    let done = json!({ "version": 1, "answer": "done", "status": status, "result": "7".repeat(64) });
    scene.answers(&done);
    let seen = scene.work(&id).await;
    assert_eq!((&seen["status"], error(&seen).0), (&json!("retry_wait"), "result"), "{seen}");
    assert_eq!((&seen["result"], &seen["ended"]), (&Value::Null, &json!(false)), "it is not done before it is pinned");
    let (code, same) = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
    assert_eq!((code, &same["id"], &same["result"]), (StatusCode::ACCEPTED, &json!(id), &Value::Null), "nor a hit");
    let seen = scene.until_over(&id).await;
    assert_eq!(seen["status"], "failed_terminal");
    assert!(error(&seen).1.contains("put the result there first"), "{seen}");
    assert_eq!(scene.asked("invoke"), 1, "the first `done` counts: it is not asked again");
    // Another dag than the one that is on the remote is refused at once.
    let (_, call) = scene.ask(json!({ "function": FUNCTION, "inputs": [3] })).await;
    let id = call["id"].as_str().unwrap();
    scene.answers(&pending("t"));
    scene.work(id).await;
    scene.publishes(ExecStatus::Ok, "5");
    scene.answers(&done);
    let seen = scene.until_over(id).await;
    assert!(error(&seen).1.contains("result_not_in_its_tree"), "{seen}");
}

#[tokio::test]
async fn cancel_stops_the_work_of_the_adapter_and_then_cleans_up() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    scene.answers(&pending("t"));
    scene.work(&id).await;
    let path = format!("/api/v1/calls/{id}/cancel");
    let got = scene.world.ask("post", &path, Some(&scene.world.admin), &[], "{}").await;
    assert_eq!(got.status, StatusCode::OK, "{}", got.body);
    scene.answers(&json!({ "version": 1, "answer": "done" }));
    let seen = scene.until_over(&id).await;
    assert_eq!((&seen["status"], error(&seen).0), (&json!("failed_terminal"), "cancelled"));
    assert_eq!((scene.asked("cancel"), scene.asked("cleanup"), scene.asked("invoke")), (1, 1, 1));
    assert_eq!(std::fs::read_dir(scene.file("exchange")).unwrap().count(), 0);
}

#[tokio::test]
async fn callers_of_one_call_share_an_execution_and_another_org_never_does() {
    let scene = Scene::new().await;
    let (first, second) = (scene.begin().await, scene.begin().await);
    assert_eq!(first, second);
    let other = scene.world.engine.ensure_org("other").await.unwrap();
    let token = scene.world.token(other, engine::store::token::Scope::Admin).await;
    let body = json!({ "function": FUNCTION, "inputs": [1, "two"] }).to_string();
    let theirs = scene.world.ask("post", "/api/v1/calls", Some(&token), &[], &body).await;
    assert_ne!(theirs.body["id"], json!(first));
    let path = format!("/api/v1/calls/{first}");
    assert_eq!(scene.world.ask("get", &path, Some(&token), &[], "").await.status, StatusCode::NOT_FOUND);
    scene.answers(&pending("t"));
    scene.work(&first).await;
    scene.answers(&scene.publishes(ExecStatus::Ok, "1"));
    scene.until_over(&first).await;
    let theirs = scene.world.ask("post", "/api/v1/calls", Some(&token), &[], &body).await;
    assert_eq!(theirs.status, StatusCode::ACCEPTED, "the result of another org is no hit");
}

#[tokio::test]
async fn what_is_no_function_or_no_value_is_refused_with_its_field() {
    let scene = Scene::new().await;
    for (body, said) in [
        (json!({ "function": "/bin/sh" }), "write it as dml+exec://"),
        (json!({ "function": "dml+exec://../x" }), "not the name of an adapter"),
        (json!({ "function": "dml+exec:///bin/sh" }), "not the name of an adapter"),
        (json!({ "function": "dml+exec://sh/x" }), "list it in `[calls] adapters`"),
        (json!({ "function": FUNCTION, "inputs": [{ "$bytes": "A" }] }), "inputs[0]"),
        (json!({ "function": FUNCTION, "inputs": [1, { "$what": 1 }] }), "inputs[1]"),
        (json!({ "function": FUNCTION, "input": [1] }), "did you mean `inputs`?"),
        (
            json!({ "function": FUNCTION, "inputs": [{ "$uri": format!("blake3:{}?size=2000000", "7".repeat(64)) }] }),
            "send it first",
        ),
        (
            json!({ "function": "dml+exec://dml-exec-repl/other", "inputs": [{}] }),
            "executes dml+exec://dml-exec-repl/run",
        ),
        (json!({ "function": "dml+exec://dml-exec-repl/run" }), "takes one input"),
        (json!({ "function": "dml+exec://dml-exec-repl/run", "inputs": [{ "comands": ["true"] }] }), "comands"),
        (of_run(json!({ "commands": ["true"], "features": ["cuda"] })), "does not know what a feature installs"),
        (of_run(json!({ "commands": ["true"], "save_snapshot": true })), "has no workdir to save"),
        (of_run(json!({ "type": "external" })), "type: task"),
        (of_run(json!({ "commands": ["true"], "cache": { "salt": "x".repeat(1025) } })), "longer than 1024 bytes"),
    ] {
        let (status, refused) = scene.ask(body.clone()).await;
        assert!(status.is_client_error() && refused.to_string().contains(said), "{body}: {status} {refused}");
    }
    assert_eq!(scene.requests().len(), 0);
}

#[tokio::test]
async fn an_integer_that_would_be_rounded_is_refused() {
    let scene = Scene::new().await;
    let number = "100000000000000000000";
    let call = format!(r#"{{"function": "{FUNCTION}", "inputs": [[{number}]]}}"#);
    let step = format!(r#"{{"name": "f", "call": {{"function": "{FUNCTION}", "inputs": [{number}]}}}}"#);
    let agents = format!(r#"[{{"name": "a", "tasks": [{{"name": "t", "steps": [{step}]}}]}}]"#);
    let plan = format!(r#"{{"type": "agents", "start": true, "plan": {{"type": "agents", "agents": {agents}}}}}"#);
    for (path, body) in [("/api/v1/calls", call), ("/api/v1/runs", plan)] {
        let got = scene.world.ask("post", path, Some(&scene.world.admin), &[], &body).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{path}: {}", got.body);
        assert!(got.body["detail"].as_str().unwrap().contains(number), "{}", got.body);
        let float = body.replace(number, "1e20");
        let got = scene.world.ask("post", path, Some(&scene.world.admin), &[], &float).await;
        assert!(got.status.is_success(), "{path}: {}", got.body);
    }
}

fn of_run(document: Value) -> Value {
    json!({ "function": "dml+exec://dml-exec-repl/run", "inputs": [document] })
}

/// A worker asks, loses its lease while the adapter thinks, and hears `done` after another worker has pinned another one.
#[tokio::test]
async fn a_done_that_is_heard_after_the_first_changes_nothing() {
    let mut scene = Scene::new().await;
    let id = scene.begin().await;
    scene.answers(&pending("t"));
    let node = scene.work(&id).await["node"].as_str().unwrap().to_owned();
    let fifo = scene.file("go");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    scene.acts("read line < $d/go; cat $d/late");
    let number = id.parse::<CallId>().unwrap().0;
    scene
        .write(move |tx| {
            let mut it = engine::store::execution::lock(tx, number)?.unwrap();
            it.not_before = None;
            engine::store::execution::save(tx, number, &it)?;
            let at = tx.at();
            tx.wake(WorkKind::Invocation, number, at);
            Ok(())
        })
        .await;
    let item = scene.world.engine.claim(&scene.worker, WorkClass::Act, 8).await.unwrap().remove(0);
    let slow = scene.world.engine.clone();
    let slow = tokio::spawn(async move { slow.work_on(item).await });
    // Opened when its reader, the adapter, is there.
    let mut go =
        tokio::task::spawn_blocking(move || std::fs::File::options().write(true).open(fifo).unwrap()).await.unwrap();
    scene.world.engine.stop_worker(&scene.worker).await.unwrap();
    scene.worker = scene.world.engine.start_worker("another".into()).await.unwrap();
    scene.world.engine.beat(&scene.worker).await.unwrap();
    scene.answers(&scene.publishes(ExecStatus::Ok, "1"));
    let first = scene.until_over(&id).await;
    assert_eq!((&first["status"], &first["result"]["value"]), (&json!("completed_ok"), &json!(1)), "{first}");
    let late = json!({ "version": 1, "answer": "done", "status": "error", "result": "7".repeat(64) });
    std::fs::write(scene.file("late"), late.to_string()).unwrap();
    // It may have been killed meanwhile, for it took too long.
    std::io::Write::write_all(&mut go, b"\n").ok();
    slow.await.unwrap();
    assert_eq!(scene.show(&id).await, first);
    assert_eq!(scene.execs(&node).await.len(), 1);
}

#[tokio::test]
async fn an_execution_whose_adapter_kills_the_workers_ends_and_may_be_asked_for_again() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    scene.answers(&pending("t"));
    scene.work(&id).await;
    // Dead at once, and again when the adapter is to be told of the end.
    for left in ["cancel", ""] {
        let number = id.parse::<CallId>().unwrap().0;
        scene
            .write(move |tx| {
                let at = tx.at();
                tx.wake(WorkKind::Invocation, number, at);
                Ok(())
            })
            .await;
        let item = scene.world.engine.claim(&scene.worker, WorkClass::Act, 8).await.unwrap().remove(0);
        scene.world.engine.work_on(engine::store::Item { dead: true, ..item }).await;
        let seen = scene.show(&id).await;
        assert_eq!((&seen["status"], error(&seen).0), (&json!("failed_terminal"), "poisoned"), "{seen}");
        let it = scene.write(move |tx| engine::store::execution::find(tx, number)).await.unwrap();
        assert_eq!(it.closing.map(|closing| closing.to_string()).unwrap_or_default(), left);
    }
    assert_eq!((scene.asked("cancel"), scene.asked("cleanup")), (0, 0));
    let (status, again) = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
    assert_eq!((status, &again["attempt"]), (StatusCode::ACCEPTED, &json!(2)));
}

#[tokio::test]
async fn results_of_one_function_are_invalidated_together_and_what_is_in_flight_is_not_kept() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    scene.ends_with(&id, ExecStatus::Ok, "1").await;
    let flying = scene.begin_fresh().await;
    scene.answers(&pending("t"));
    scene.work(&flying).await;
    let invalidate = async |body: Value| {
        let text = body.to_string();
        scene.world.ask("post", "/api/v1/cache/invalidate", Some(&scene.world.admin), &[], &text).await
    };
    let other = invalidate(json!({ "function": "dml+exec://dml-exec-said/g" })).await;
    assert_eq!((other.status, &other.body["results"]), (StatusCode::OK, &json!(0)), "{}", other.body);
    let hit = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
    assert_eq!(hit.0, StatusCode::OK, "of another function");
    let done = invalidate(json!({ "function": FUNCTION })).await;
    assert_eq!((done.status, &done.body["results"]), (StatusCode::OK, &json!(1)), "{}", done.body);
    scene.answers(&scene.publishes(ExecStatus::Ok, "2"));
    let seen = scene.until_over(&flying).await;
    assert_eq!(
        (&seen["status"], &seen["result"]["value"]),
        (&json!("completed_ok"), &json!(2)),
        "its caller is answered"
    );
    let (status, _) = scene.ask(json!({ "function": FUNCTION, "inputs": [1, "two"] })).await;
    assert_eq!(status, StatusCode::ACCEPTED, "and nobody after it");
    for (body, said) in [
        (json!({ "function": "/bin/sh" }), "write it as dml+exec://"),
        (json!({ "function": FUNCTION, "all": true }), "name one result"),
        (json!({}), "name one result"),
    ] {
        let refused = invalidate(body).await;
        assert!(refused.status.is_client_error() && refused.body.to_string().contains(said), "{}", refused.body);
    }
}

#[tokio::test]
async fn two_calls_differ_in_what_is_not_shown_of_them_too() {
    let scene = Scene::new().await;
    let diff = async |first: &str, second: &str| {
        let path = format!("/api/v1/cache/diff?first={first}&second={second}");
        scene.world.ask("get", &path, Some(&scene.world.admin), &[], "").await
    };
    let id = scene.begin().await;
    let one = scene.ends_with(&id, ExecStatus::Ok, r#"{"a": 1, "b": 2}"#).await;
    let fresh = scene.begin_fresh().await;
    let again = scene.ends_with(&fresh, ExecStatus::Error, r#"{"a": 1, "b": 3}"#).await;
    let found = diff(&id, &fresh).await.body;
    assert_eq!(found["differences"], json!(["status: ok, now error", "value, \"b\": 2, now 3"]), "{found}");
    assert_eq!((&found["first"], &found["second"]), (&one["node"], &again["node"]));
    let (_, call) = scene.ask(json!({ "function": FUNCTION, "inputs": [2] })).await;
    let other = call["id"].as_str().unwrap().to_owned();
    let found = diff(one["result"]["exec"].as_str().unwrap(), &other).await.body;
    assert_eq!(
        found["differences"].as_array().unwrap()[..2],
        [json!("input 0: 1, now 2"), json!("input 1: \"two\", now absent")]
    );
    assert!(found["differences"][2].as_str().unwrap().starts_with("status: ok, now "), "{found}");
    // Of runs the values of variables are compared, and not shown.
    let run = |value: &str| of_run(json!({ "commands": ["true"], "env": { "KEY": value } }));
    let mut ids = Vec::new();
    for value in ["one", "two"] {
        let (status, call) = scene.ask(run(value)).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{call}");
        ids.push(call["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(diff(&ids[0], &ids[1]).await.body["differences"], json!(["variable KEY was changed"]));
    assert_eq!(diff(&ids[0], &ids[0]).await.body["differences"], json!([]));
    assert_eq!(diff(&ids[0], "cal_99").await.body["code"], "not_found");
    let other = scene.world.engine.ensure_org("other").await.unwrap();
    let token = scene.world.token(other, engine::store::token::Scope::Admin).await;
    let path = format!("/api/v1/cache/diff?first={id}&second={id}");
    assert_eq!(scene.world.ask("get", &path, Some(&token), &[], "").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn why_a_call_was_executed_names_the_inputs_that_differ() {
    let scene = Scene::new().await;
    let id = scene.begin().await;
    let first = scene.ends_with(&id, ExecStatus::Ok, "1").await;
    let why = async |id: &str| {
        let path = format!("/api/v1/cache/why/{id}");
        scene.world.ask("get", &path, Some(&scene.world.admin), &[], "").await.body
    };
    assert_eq!(why(&id).await["note"], format!("there was no result of {FUNCTION} yet"));
    let (_, call) = scene.ask(json!({ "function": FUNCTION, "inputs": [2, "two"] })).await;
    let said = why(call["id"].as_str().unwrap()).await;
    assert_eq!(
        (&said["differences"], &said["with"]["exec"]),
        (&json!(["input 0: 1, now 2"]), &first["result"]["exec"])
    );
    assert_eq!((&said["hit"], &said["run"], &said["node"]), (&json!(false), &call["id"], &call["node"]));
    let fresh = scene.begin_fresh().await;
    assert_eq!(why(&fresh).await["note"], "it was asked for without the cache");
    assert_eq!(why("cal_99").await["code"], "not_found");
    let other = scene.world.engine.ensure_org("other").await.unwrap();
    let token = scene.world.token(other, engine::store::token::Scope::Admin).await;
    let theirs = scene.world.ask("get", &format!("/api/v1/cache/why/{id}"), Some(&token), &[], "").await;
    assert_eq!(theirs.status, StatusCode::NOT_FOUND);
}
