//! Dialogues with tools while the control plane dies or the run is paused: what has ended is not asked for again, and what is paused
//! stands still.

use crate::model::{Reply, Script};
use crate::process;
use crate::recorder::{self, Recorder};
use crate::scene::Scene;
use serde_json::json;

/// Where a dialogue of three turns with a call after each of the first two can be interrupted.
const PLACES: [&str; 5] = ["turn-1", "call-1", "turn-2", "call-2", "turn-3"];

/// A worker that dies is missed soon, and what it held is taken over.
const SHORT_LEASE: &str = "[timings]\nlease_ms = 1200\n";

#[test]
fn a_dialogue_goes_on_where_it_was_when_its_control_plane_was_killed() {
    goes_on_where_it_was(&Scene::new(dialogues(), holding()), |scene| {
        process::kill(scene.home.control_plane());
    });
}

#[test]
fn a_dialogue_goes_on_where_it_was_when_both_workers_were_killed() {
    goes_on_where_it_was(&Scene::of_many(dialogues(), holding(), SHORT_LEASE), |scene| {
        scene.home.many().kill(2);
        scene.home.many().kill(3);
    });
}

/// One dialogue for each place, all interrupted by the same death.
fn goes_on_where_it_was(scene: &Scene, die: impl Fn(&Scene)) {
    let runs = PLACES.map(|place| scene.submit(&dialogue_plan(place)));
    for place in PLACES {
        match place.split_once('-').unwrap() {
            ("turn", turn) => scene.model.hears(place, turn.parse().unwrap(), 1),
            (_, call) => scene.recorder.hears(&path(place, call), 1),
        }
    }
    die(scene);
    PLACES.iter().for_each(|place| scene.model.release(place));
    scene.recorder.release("call");
    for (run, place) in runs.iter().zip(PLACES) {
        let ended = scene.home.attach(run);
        assert_eq!(ended.code, 0, "{place}: {ended}");
        assert_eq!(scene.output(run), json!({ "said": "all is well" }), "{place}");
        asked_once_but_for(scene, place);
    }
    scene.home.adds_up();
}

/// What was under way when the process died may come twice; all else came once.
fn asked_once_but_for(scene: &Scene, place: &str) {
    for turn in 1..=3 {
        let times = scene.model.count(place, turn);
        let most = if place == format!("turn-{turn}") { 2 } else { 1 };
        assert!((1..=most).contains(&times), "{place}: turn {turn} was asked for {times} times");
    }
    for call in 1..=2 {
        let all = scene.recorder.records();
        let calls: Vec<_> = all.iter().filter(|record| record.path == path(place, &call.to_string())).collect();
        let most = if place == format!("call-{call}") { 2 } else { 1 };
        assert!((1..=most).contains(&calls.len()), "{place}: call {call}: {calls:?}");
        assert!(calls.iter().all(|record| record.key.is_some() && record.key == calls[0].key), "{calls:?}");
    }
}

fn path(place: &str, call: &str) -> String {
    format!("/look?about={place}-{call}")
}

fn dialogues() -> Script {
    let dialogue = |place: &str| {
        let look =
            |call: usize| Reply::Calls(vec![("look", json!({ "about": format!("{place}-{call}") }).to_string())]);
        let held = |turn: usize, reply: Reply| {
            let here = place == format!("turn-{turn}");
            vec![if here { Reply::Held(Box::new(reply)) } else { reply }]
        };
        let turns = vec![held(1, look(1)), held(2, look(2)), held(3, Reply::Text("all is well"))];
        (place.to_owned(), turns)
    };
    PLACES.iter().map(|place| dialogue(place)).collect()
}

/// Holds the call at which a dialogue is to be interrupted.
fn holding() -> Recorder {
    Recorder::answering(|record, _| {
        let held = ["/look?about=call-1-1", "/look?about=call-2-2"].contains(&record.path.as_str());
        if held { recorder::Reply::Held("call") } else { recorder::Reply::Json(json!({ "seen": true })) }
    })
}

fn dialogue_plan(place: &str) -> String {
    format!(
        "type: agents\n\
         tools:\n  look: {{http: {{url: \"RECORDER/look\", query: {{about: \"${{{{ args.about }}}}\"}}}}, args: {{about: {{type: string}}}}}}\n\
         agents:\n- name: a\n  tasks:\n  - name: t\n    steps:\n    - {{name: s, llm: {{prompt: {place} go, tools: [look]}}}}\n\
         output: {{said: \"${{{{ agents.a.tasks.t.steps.s.output.text }}}}\"}}\n"
    )
}

#[test]
fn nothing_happens_between_paused_and_resumed() {
    let script = Script::from([(
        "talk".to_owned(),
        vec![
            vec![Reply::Calls(vec![("look", json!({ "about": "1" }).to_string())])],
            vec![Reply::Held(Box::new(Reply::Calls(vec![("look", json!({ "about": "2" }).to_string())])))],
            vec![Reply::Text("seen")],
        ],
    )]);
    let recorder = Recorder::answering(|record, _| match record.path.as_str() {
        "/b" => recorder::Reply::Held("b"),
        _ => recorder::Reply::Json(json!({})),
    });
    let scene = Scene::new(script, recorder);
    let run = scene.submit(PAUSED);
    scene.model.hears("talk", 2, 1);
    scene.recorder.hears("/b", 1);
    scene.recorder.hears("/before", 1);
    scene.home.done(&["pause", &run]);
    scene.model.release("talk");
    scene.recorder.release("b");
    scene.hears(&run, "run.paused", "paused");
    let (recorded, asked) = (scene.recorder.records().len(), scene.model.asked().len());
    // Another run goes all the way meanwhile, and takes longer than the paused one's timer.
    let (_, other) = scene.run(
        "type: agents\nagents:\n- tasks:\n  - steps: [{wait: 700ms}, {http: {url: \"RECORDER/other\"}}, {llm: {prompt: other}}]\n",
    );
    assert_eq!(other.code, 1, "the script has no such conversation: {other}");
    assert_eq!(scene.recorder.records().len(), recorded + 1, "{:?}", scene.recorder.records());
    assert_eq!(scene.model.asked().len(), asked + 1);
    assert_eq!(scene.home.status(&run)["status"], "paused");
    scene.home.done(&["resume", &run]);
    let ended = scene.home.attach(&run);
    assert_eq!(ended.code, 0, "{ended}");
    for path in ["/a", "/b", "/c", "/before", "/after", "/look?about=1", "/look?about=2"] {
        assert_eq!(scene.recorder.count(path), 1, "{path}");
    }
    for turn in 1..=3 {
        assert_eq!(scene.model.count("talk", turn), 1, "turn {turn}");
    }
    scene.home.adds_up();
}

const PAUSED: &str = "
type: agents
tools:
  look: {http: {url: \"RECORDER/look\", query: {about: \"${{ args.about }}\"}}, args: {about: {type: string}}}
agents:
- name: requests
  tasks:
  - steps: [{http: {url: \"RECORDER/a\"}}, {http: {url: \"RECORDER/b\"}}, {http: {url: \"RECORDER/c\"}}]
- name: dialogue
  tasks:
  - steps: [{llm: {prompt: talk, tools: [look]}}]
- name: timer
  tasks:
  - steps: [{http: {url: \"RECORDER/before\"}}, {wait: 600ms}, {http: {url: \"RECORDER/after\"}}]
";

#[test]
fn a_retried_run_asks_only_for_what_had_not_ended() {
    let script = Script::from([
        ("first".to_owned(), vec![vec![Reply::Text("one")]]),
        ("second".to_owned(), vec![vec![Reply::Html, Reply::Text("two")]]),
    ]);
    let scene = Scene::new(script, Recorder::start());
    let (run, ended) = scene.run(
        "type: agents\nfailure_mode: retry\nmax_attempts: 2\nagents:\n- name: a\n  tasks:\n  - name: t\n    steps:\n    \
         - {name: once, http: {method: POST, url: \"RECORDER/once\", json: {a: 1}}, idempotent: false}\n    \
         - {name: first, llm: {prompt: first}}\n    - {name: second, llm: {prompt: second}}\n\
         output: \"${{ agents.a.tasks.t.steps.second.output.text }}\"\n",
    );
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!((&scene.home.status(&run)["attempt_number"], scene.output(&run)), (&json!(2), json!("two")));
    assert_eq!(
        (scene.recorder.count("/once"), scene.model.count("first", 1), scene.model.count("second", 1)),
        (1, 1, 2)
    );
    scene.home.adds_up();
}

#[test]
fn a_word_to_an_agent_is_read_by_the_next_turn_and_by_those_after_it() {
    let look = Reply::Calls(vec![("look", json!({ "about": "x" }).to_string())]);
    let turns = vec![vec![Reply::Held(Box::new(look.clone()))], vec![look], vec![Reply::Text("done")]];
    let scene = Scene::new(Script::from([("talk".to_owned(), turns)]), Recorder::start());
    let tools = "tools: {look: {http: {url: \"RECORDER/look\", query: {about: \"${{ args.about }}\"}}, args: {about: {type: string}}}}";
    let steps = "steps: [{name: speak, llm: {prompt: talk, tools: [look]}}]";
    let run = scene.submit(&format!("type: agents\n{tools}\nagents:\n- name: one\n  tasks:\n  - {steps}\n"));
    scene.model.hears("talk", 1, 1);
    let sent = scene.home.done(&["send", &run, "be brief"]).out();
    assert!(sent.starts_with("msg_") && sent.contains(&format!("for one of {run}: read at its next turn")), "{sent}");
    let wrong = refused(&scene, &["send", &run, "--agent", "two", "hello"]);
    assert!(wrong.contains("no agent `two` is at work"), "{wrong}");
    scene.model.release("talk");
    let ended = scene.home.attach(&run);
    assert_eq!(ended.code, 0, "{ended}");
    let said: Vec<(usize, Vec<String>)> =
        scene.model.asked().into_iter().map(|asked| (asked.turn, asked.said)).collect();
    let brief = vec!["be brief".to_owned()];
    assert_eq!(said, [(1, vec![]), (2, brief.clone()), (3, brief)]);
    let events = scene.home.done(&["events", &run]).out();
    assert!(events.contains("message.sent") && events.contains("message.delivered"), "{events}");
    let late = refused(&scene, &["send", &run, "hello"]);
    assert!(late.contains("is completed, so `send` is not possible"), "{late}");
    let plain = scene.home.json(&["run", "--detach", "-c", "true"])["id"].as_str().unwrap().to_owned();
    let none = refused(&scene, &["send", &plain, "hello"]);
    assert!(none.contains("type: agents"), "{none}");
    scene.home.attach(&plain);
    scene.home.adds_up();
}

/// What is said to a command that is refused.
fn refused(scene: &Scene, words: &[&str]) -> String {
    let ended = scene.home.say(words);
    assert_eq!(ended.code, 1, "{ended}");
    ended.stderr
}
