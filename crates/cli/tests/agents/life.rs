//! The life of a step as a user sees it: a `verify` that finds out, an endpoint that asks for a pause, an answer that is an artifact.

use crate::recorder::{Recorder, Reply};
use crate::scene::Scene;
use serde_json::json;

/// The answer to the payment is lost; what was paid is found by its amount.
#[test]
fn a_payment_whose_answer_is_lost_is_looked_for_and_made_once() {
    for paid in [true, false] {
        let recorder = Recorder::answering(move |record, times| match (record.method.as_str(), times) {
            ("POST", 1) => Reply::Cut,
            ("GET", _) if paid => Reply::Json(json!({ "payments": [{ "id": 7 }] })),
            ("GET", _) => Reply::Json(json!({ "payments": [] })),
            _ => Reply::Json(json!({ "id": 8 })),
        });
        let scene = Scene::new(Default::default(), recorder);
        let (run, ended) = scene.run(PAYMENT);
        assert_eq!(ended.code, 0, "{ended}");
        assert_eq!(scene.recorder.count("/pay"), if paid { 1 } else { 2 });
        assert_eq!(scene.output(&run), if paid { json!(7) } else { json!(8) });
        let tree = scene.tree(&run);
        assert_eq!(tree["bank/all/pay/verify"]["status"], "completed", "{tree:?}");
        let keys: Vec<_> = scene.recorder.records().into_iter().filter(|record| record.path == "/pay").collect();
        assert!(keys.iter().all(|record| record.key == keys[0].key), "{keys:?}");
    }
}

const PAYMENT: &str = r#"
type: agents
agents:
- name: bank
  tasks:
  - name: all
    steps:
    - name: pay
      http: {method: POST, url: "RECORDER/pay", json: {amount: 5}}
      verify:
        http: {url: "RECORDER/payments"}
        outcome: "${{ {'outcome': 'done', 'output': {'body': output.body.payments[0]}} if output.body.payments else 'not_done' }}"
output: "${{ agents.bank.tasks.all.steps.pay.output.body.id }}"
"#;

#[test]
fn a_run_that_waits_for_an_endpoint_says_so() {
    let recorder = Recorder::answering(|_, times| if times == 1 { Reply::Busy("600") } else { Reply::Json(json!(1)) });
    let scene = Scene::new(Default::default(), recorder);
    let plan = "type: agents\nagents:\n- tasks:\n  - steps: [{name: page, http: {url: \"RECORDER/page\"}}]\n";
    let first = scene.submit(plan);
    scene.recorder.hears("/page", 1);
    explains(&scene, &first);
    let second = scene.submit(&plan.replace("/page", "/other"));
    let why = explains(&scene, &second);
    assert!(why.contains("429") && why.contains(&scene.recorder.url("")), "{why}");
    assert_eq!(scene.recorder.count("/other"), 0);
    for run in [&first, &second] {
        scene.home.done(&["cancel", run]);
    }
}

/// What `repl why` says once the run waits.
fn explains(scene: &Scene, run: &str) -> String {
    for _ in 0..ASKED_AT_MOST {
        let why = scene.home.done(&["why", run]).out();
        if why.contains("is called in") {
            return why;
        }
    }
    panic!("{run} does not wait: {}", scene.home.done(&["why", run]).out());
}

const ASKED_AT_MOST: usize = 1_000;

#[test]
fn a_long_answer_is_an_artifact_of_its_run() {
    let recorder = Recorder::answering(|_, _| Reply::Text("long ".repeat(100_000)));
    let scene = Scene::new(Default::default(), recorder);
    let (run, ended) = scene.run(LONG);
    assert_eq!(ended.code, 0, "{ended}");
    let body = scene.output(&run);
    assert_eq!(body["bytes"], 500_000, "{body}");
    let listed = scene.home.json(&["artifact", "ls", &run]);
    let found = listed.as_array().unwrap().iter().find(|artifact| artifact["path"] == body["path"]);
    assert_eq!(found.map(|artifact| (&artifact["id"], &artifact["size"])), Some((&body["artifact"], &json!(500_000))));
}

const LONG: &str = r#"
type: agents
agents:
- name: a
  tasks: [{name: t, steps: [{name: page, http: {url: "RECORDER/long"}}]}]
output: "${{ agents.a.tasks.t.steps.page.output.body }}"
"#;
