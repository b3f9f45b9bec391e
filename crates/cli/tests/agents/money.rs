//! What models cost: a turn that cannot be paid is never asked for, what was used is paid, and every credit is where it belongs.

use crate::model::{Reply, Script};
use crate::recorder::Recorder;
use crate::scene::Scene;
use serde_json::{Value, json};

/// A dialogue of two turns; the first uses so much.
fn two_turns(input: i64, output: i64) -> Script {
    let look = Reply::Calls(vec![("look", "{}".to_owned())]);
    Script::from([(
        "talk".to_owned(),
        vec![
            vec![Reply::Using(input, output, Box::new(look))],
            vec![Reply::Using(100, 20, Box::new(Reply::Text("done")))],
        ],
    )])
}

fn plan(more: &str) -> String {
    format!(
        "type: agents\n{more}\ntools: {{look: {{http: {{url: \"RECORDER/look\"}}}}}}\n\
         agents:\n- tasks:\n  - steps: [{{llm: {{prompt: talk, tools: [look], max_output_tokens: 1000}}}}]\n"
    )
}

fn micro(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or_else(|| panic!("no {field} in {value}"))
}

/// Prices are 10 and 20 credits for a million tokens: 1,000 tokens of an answer cost 0.02 credits at most.
#[test]
fn a_turn_that_the_budget_cannot_pay_is_not_asked_for() {
    let scene = Scene::new(two_turns(1_000, 1_000), Recorder::start());
    let (run, ended) = scene.run(&plan("budget: 0.05"));
    assert_eq!(ended.code, 1, "{ended}");
    let status = scene.home.status(&run);
    assert_eq!((&status["status"], &status["termination_reason"]), (&json!("failed"), &json!("budget")), "{status}");
    assert_eq!((scene.model.count("talk", 1), scene.model.count("talk", 2)), (1, 0), "not asked for");
    assert_eq!(micro(&status, "credits_charged_micro"), 30_000, "the first turn is paid: {status}");
    assert_eq!(
        micro(&status, "credits_reserved_micro"),
        micro(&status, "credits_charged_micro") + micro(&status, "credits_refunded_micro"),
        "{status}"
    );
    let why = scene.home.done(&["why", &run]).out();
    assert!(why.contains("budget"), "{why}");
    scene.home.adds_up();
    // The same dialogue, with enough for both.
    let (run, ended) = scene.run(&plan("budget: 0.08"));
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(micro(&scene.home.status(&run), "credits_charged_micro"), 30_000 + 1_400);
    scene.home.adds_up();
}

#[test]
fn a_warning_is_told_when_most_of_the_budget_is_used() {
    let scene = Scene::new(two_turns(1_000, 1_500), Recorder::start());
    let (run, _) = scene.run(&plan("budget: 0.045"));
    let events = scene.home.done(&["events", "--json", &run]).out();
    assert_eq!(events.matches("\"run.budget_warning\"").count(), 1, "{events}");
    scene.home.adds_up();
}

#[test]
fn an_agent_that_has_used_its_tokens_asks_for_no_further_turn() {
    let scene = Scene::new(two_turns(500, 600), Recorder::start());
    let (run, ended) = scene.run(&plan("max_tokens: 1000"));
    assert_eq!(ended.code, 1, "{ended}");
    let status = scene.home.status(&run);
    assert_eq!(status["termination_reason"], "budget", "{status}");
    assert_eq!((scene.model.count("talk", 1), scene.model.count("talk", 2)), (1, 0));
    scene.home.adds_up();
}

/// Each try is paid by itself: what was received before a stream was cut, too.
#[test]
fn a_turn_that_was_cut_off_is_paid_with_what_came() {
    let script = Script::from([("cut".to_owned(), vec![vec![Reply::CutOff, Reply::Text("whole")]])]);
    let scene = Scene::new(script, Recorder::start());
    let (run, ended) = scene.run("type: agents\nagents:\n- tasks:\n  - steps: [{llm: {prompt: cut}}]\n");
    assert_eq!(ended.code, 0, "{ended}");
    let rows = scene.home.json(&["credits", "ledger", "--run", &run]);
    let charges: Vec<i64> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kind"] == "charge")
        .map(|row| micro(row, "amount_micro"))
        .collect();
    assert_eq!((charges.len(), charges[1]), (2, 1_400), "{rows}");
    assert!(charges[0] > 0, "{rows}");
    scene.home.adds_up();
}

/// A server may say what it likes of what it used. The run pays what it has set aside at most, and nothing breaks.
#[test]
fn a_server_that_lies_about_what_it_used_breaks_nothing() {
    for (input, output) in [(i64::MAX, i64::MAX), (i64::MAX, 1), (0, 0), (-5, 7)] {
        let scene = Scene::new(two_turns(input, output), Recorder::start());
        let (run, _) = scene.run(&plan("budget: 0.05"));
        let status = scene.home.status(&run);
        assert!(micro(&status, "credits_charged_micro") <= 50_000, "{input} and {output}: {status}");
        assert!(["completed", "failed"].contains(&status["status"].as_str().unwrap()), "{status}");
        scene.home.adds_up();
    }
}

#[test]
fn what_a_run_has_used_is_told_by_agent_model_and_step_and_of_the_org_by_day() {
    let scene = Scene::new(two_turns(1_000, 1_000), Recorder::start());
    let (run, ended) = scene.run(&plan("name: talker"));
    assert_eq!(ended.code, 0, "{ended}");
    let usage = scene.home.json(&["status", "--cost", &run]);
    let total = &usage["total"];
    assert_eq!(
        (&total["input_tokens"], &total["output_tokens"], &total["turns"], &total["tool_calls"]),
        (&json!(1_100), &json!(1_020), &json!(2), &json!(1)),
        "{usage}"
    );
    let charged = micro(&scene.home.status(&run), "credits_charged_micro");
    for groups in ["agents", "models", "providers"] {
        let all = usage[groups]["groups"].as_array().unwrap();
        assert_eq!(all.iter().map(|group| micro(group, "charged_micro")).sum::<i64>(), charged, "{groups}: {usage}");
    }
    assert_eq!(usage["models"]["groups"][0]["key"], "default/scripted", "{usage}");
    let shown = scene.home.done(&["status", "--cost", &run]).out();
    for words in ["0.0314", "default/scripted", "AGENT", "MODEL", "STEP"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let ledger = scene.home.json(&["credits", "ledger"]);
    let rows = ledger.as_array().unwrap().iter().filter(|row| row["kind"] == "charge");
    let spent: i64 = rows.map(|row| micro(row, "amount_micro")).sum();
    for by in ["run", "agent", "model", "provider", "day"] {
        let usage = scene.home.json(&["credits", "usage", "--by", by]);
        let groups = usage["groups"].as_array().unwrap();
        assert_eq!(groups.iter().map(|group| micro(group, "charged_micro")).sum::<i64>(), spent, "{by}: {usage}");
    }
    let shown = scene.home.done(&["credits", "usage"]).out();
    assert!(shown.contains(&run) && shown.contains("talker"), "{shown}");
    let before = scene.home.json(&["credits", "usage", "--since", "9d", "--until", "2d"]);
    assert_eq!(micro(&before["total"], "charged_micro"), 0, "{before}");
}
