//! Stories of agents: their requests, commands, questions to people, and steps of programs elsewhere.

use crate::api::Api;
use crate::recorder::{Recorder, Reply};
use crate::world::World;
use serde_json::json;
use wire::client::ClientError;

/// Requests before and behind a person's word. Each is made, and none under another key than its own.
pub(super) fn agents_at_work(world: &World) {
    // The answer to the first one is an artifact.
    let recorder = Recorder::answering(|record, _| match record.path.as_str() {
        "/a" => Reply::Text("a".repeat(300 << 10)),
        path => Reply::Json(json!({ "path": path })),
    });
    let request = |name: &str| format!("{{name: {name}, http: {{url: \"{}\"}}}}", recorder.url(&format!("/{name}")));
    let steps = [request("a"), "{name: ok, approval: \"go on?\"}".to_owned(), request("b")].join(", ");
    let run = world.submit_plan(&format!("type: agents\nagents:\n- tasks:\n  - steps: [{steps}]\n"));
    world.until("a person is asked", || asked(world, &run).is_some());
    let question = asked(world, &run).unwrap();
    assert_eq!(recorder.count("/b"), 0, "nobody has said yes");
    world.until("the answer is taken", || {
        let answered = Api::of(&world.home).try_post(&format!("/approvals/{question}/approve"), &json!({}));
        // One that died behind its commit has taken it, and takes no other.
        matches!(answered, Ok(_) | Err(ClientError::Problem(_)))
    });
    world.ends(&run);
    for path in ["/a", "/b"] {
        let keys: Vec<_> = recorder.records().into_iter().filter(|record| record.path == path).collect();
        assert!(!keys.is_empty() && keys.iter().all(|record| record.key == keys[0].key), "{path}: {keys:?}");
    }
}

/// An answer that got lost is given again: the program does each step once, and the steps are its. The output of the second is an artifact.
pub(super) fn a_program_takes_a_step(world: &World) {
    let ran = world.home.here().join("ran");
    let steps =
        ["{name: s, external: {tool: crm, input: 1}}", "{name: large, external: {tool: crm, input: 2}}"].join(", ");
    let run = world.submit_plan(&format!("type: agents\nagents:\n- tasks:\n  - steps: [{steps}]\n"));
    let line = format!(
        "read input; echo $input >> {}; if [ $input = 2 ]; then printf '\"%0300000d\"' 0; else echo '\"small\"'; fi",
        ran.display()
    );
    for _ in 0..2 {
        world.insist(&["step", "poll", "--tool", "crm", "--once", "--", "sh", "-c", &line], 0);
    }
    world.ends(&run);
    assert_eq!(world.json(&["status", &run])["run"]["status"], "completed");
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "1\n2\n");
}

/// The program of `[notify]` is started at least once, whichever process dies beside it, and what it told of is still to be answered.
pub(super) fn a_person_is_told(world: &World) {
    let run = world.submit_plan("type: agents\nagents:\n- tasks:\n  - steps: [{name: ok, approval: \"go on?\"}]\n");
    world.until("a person is asked", || asked(world, &run).is_some());
    world.has_died();
    let told = world.home.data().join("told");
    world.until("a person is told", || told.exists());
    let question = asked(world, &run).unwrap();
    world.insist(&["approval", "approve", &question], 0);
    world.ends(&run);
}

/// A program that is not heard asks again. What it has finished answers ever after, and what it left is given up.
pub(super) fn a_program_elsewhere(world: &World) {
    let run = world.submit_plan("type: external\nname: import\n");
    let steps = format!("/runs/{run}/steps");
    let done = json!({ "rows": 17 });
    let begin = |name: &str| {
        let body = json!({ "name": name, "idempotent": true, "lease_ms": 1500 });
        Api::of(&world.home).try_post(&steps, &body).unwrap_or_default()
    };
    let left = || begin("left")["state"] == "go";
    world.until("a step is begun and left", left);
    world.until("the other is done", || {
        let told = begin("load");
        if told["state"] == "go" {
            let at = format!("{steps}/{}", told["id"].as_str().unwrap());
            let api = Api::of(&world.home);
            let beat = json!({ "fence": told["fence"] });
            let end = json!({ "fence": told["fence"], "output": done });
            drop(api.try_post(&format!("{at}/heartbeat"), &beat));
            drop(api.try_post(&format!("{at}/complete"), &end)); // whether it was taken is told by the next answer
        }
        told["state"] == "completed" && told["output"] == done
    });
    let recorded = || Api::of(&world.home).try_get(&format!("{steps}/recorded?name=load")).unwrap_or_default();
    world.until("its record answers", || recorded()["output"] == done);
    if world.spot.name == "step.leases" {
        world.has_died();
    }
    world.until("what was left begins again", left);
    world.until("the run is finished", || {
        let finished = Api::of(&world.home).try_post(&format!("/runs/{run}/finish"), &json!({ "output": done }));
        // One that died behind its commit has finished it, and finishes it no more.
        matches!(finished, Ok(_) | Err(ClientError::Problem(_)))
    });
    world.ends(&run);
    assert_eq!(world.json(&["status", &run])["run"]["status"], "completed");
}

fn asked(world: &World, run: &str) -> Option<String> {
    let events = world.json(&["events", run]);
    let asked = events.as_array().unwrap().iter().find(|event| event["kind"] == "question.asked")?;
    asked["body"]["question"].as_str().map(str::to_owned)
}

/// Two commands in one workdir, the first of which keeps its files. Each is begun once, whichever process dies.
pub(super) fn commands_of_an_agent(world: &World) {
    let ran = world.home.here().join("ran");
    let first = format!("echo 1 >> {}; echo made > out", ran.display());
    let second = format!("test -f out && echo 2 >> {}", ran.display());
    let steps = format!(
        "{{name: first, command: {}, files: [out]}}, {{name: second, command: {}}}",
        json!(first),
        json!(second)
    );
    let run = world.submit_plan(&format!("type: agents\nagents:\n- tasks:\n  - steps: [{steps}]\n"));
    world.ends(&run);
    assert_eq!(world.json(&["status", &run])["run"]["status"], "completed");
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "1\n2\n");
}
