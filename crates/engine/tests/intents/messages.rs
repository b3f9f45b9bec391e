//! What people say to agents: told to the model once, at the next turn of the dialogue, by the worker that leads it then.

use crate::agents::{agent, agents_spec, check, step, submit, task};
use crate::bench::{Bench, now, spec};
use crate::crashes::around_every_write;
use crate::dialogues::{begin, talks, turn};
use adapters::ToolCall;
use adapters::tool::fake::Fate;
use engine::message::MessageRender;
use engine::run::Plans;
use model::plan::StepPlan;
use model::run::RunStatus;
use model::step::ToolKind;
use model::time::MINUTE;
use model::{Failure, Refused, RunId};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use store::idempotency::Key;

fn send(bench: &Bench, run: RunId, agent: Option<&str>, text: &str, key: Option<Key>) -> Result<String, Failure> {
    let render: MessageRender = Arc::new(|message| message.agent.clone().into_bytes());
    let sent = bench.engine.send_message(bench.org, run, agent.map(str::to_owned), text.to_owned(), key, render);
    now(sent).map(|answer| String::from_utf8(answer.body).unwrap())
}

/// What a turn's prompt has of people's words: where each stands among the messages.
fn heard(call: &ToolCall) -> Vec<(usize, String)> {
    let messages = call.input["messages"].as_array().unwrap().iter().enumerate();
    let of_people = messages.filter(|(at, message)| *at > 0 && message["role"] == "user");
    of_people.map(|(at, message)| (at, message["content"].as_str().unwrap().to_owned())).collect()
}

type Prompts = Arc<Mutex<Vec<(usize, Vec<(usize, String)>)>>>;

/// Notes what each turn is asked with. The one of this number gets no answer until the flag is set.
fn noted(bench: &Bench, hangs: usize) -> (Prompts, Arc<AtomicBool>) {
    let (prompts, said) = (Prompts::default(), Arc::new(AtomicBool::new(false)));
    let (notes, flag) = (prompts.clone(), said.clone());
    bench.tool.decide_by(Box::new(move |call, _| {
        let Some(turn) = turn(call) else { return talks(call) };
        notes.lock().unwrap().push((turn, heard(call)));
        if turn == hangs && !flag.load(Ordering::Relaxed) { Fate::hang() } else { talks(call) }
    }));
    (prompts, said)
}

#[test]
fn the_next_turn_takes_what_was_said_and_the_others_read_it_where_it_was_said() {
    let mut bench = Bench::new();
    let (prompts, said_all) = noted(&bench, 1);
    let run = begin(&mut bench);
    bench.settle();
    let key = bench.key();
    for _ in 0..2 {
        // Asked twice under one key, it is said once.
        assert_eq!(send(&bench, run, None, "hurry", Some(key.clone())).unwrap(), "one");
    }
    send(&bench, run, Some("one"), "and be brief", None).unwrap();
    said_all.store(true, Ordering::Relaxed);
    bench.restart();
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    let said = |at: usize| vec![(at, "hurry".to_owned()), (at + 1, "and be brief".to_owned())];
    // Turn 1 had begun: it is asked again with what it began with.
    let expected = [(1, vec![]), (1, vec![]), (2, said(3)), (3, said(3))];
    assert_eq!(*prompts.lock().unwrap(), expected);
    let events = bench.events(run);
    let count = |kind: &str| events.iter().filter(|it| *it == kind).count();
    assert_eq!((count("message.sent"), count("message.delivered")), (2, 2), "{events:?}");
    check(&bench);
}

#[test]
fn dying_around_every_commit_tells_the_model_once_and_always_the_same() {
    let story = |bench: &mut Bench| {
        let (prompts, said) = noted(bench, 2);
        let run = begin(bench);
        bench.advance(3 * MINUTE);
        let key = bench.key();
        loop {
            let sent = send(bench, run, None, "hurry", Some(key.clone()));
            if !bench.revive() {
                sent.unwrap();
                break;
            }
        }
        said.store(true, Ordering::Relaxed);
        // The holder of the second turn dies: another asks it again, and goes on.
        bench.restart();
        bench.advance(5 * MINUTE);
        (run, prompts)
    };
    around_every_write(story, |bench, (run, prompts), place| {
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{place}");
        for (turn, heard) in prompts.lock().unwrap().iter() {
            let expected = if *turn == 3 { vec![(5, "hurry".to_owned())] } else { vec![] };
            assert_eq!(*heard, expected, "{place}, turn {turn}");
        }
        let events = bench.events(run);
        let delivered = events.iter().filter(|it| *it == "message.delivered").count();
        assert_eq!(delivered, 1, "{place}: {events:?}");
        check(bench);
    });
}

#[test]
fn a_run_that_nobody_could_listen_in_refuses() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let why = |result: Result<String, Failure>| match result.unwrap_err() {
        Failure::Refused(refused) => (refused.code(), refused.to_string()),
        Failure::Trouble(trouble) => panic!("{trouble:?}"),
    };
    let check_refused = |result: Result<String, Failure>, code: &str, words: &str| {
        let (got, text) = why(result);
        assert!(got == code && text.contains(words), "{got}: {text}");
    };
    let plain = bench.submit(spec());
    check_refused(send(&bench, plain, None, "x", None), "conflict", "type: agents");
    let llm = |name: &str| StepPlan {
        input: json!({ "model": "default", "prompt": "go" }),
        idempotent: true,
        ..StepPlan::new(name, ToolKind::Llm)
    };
    let agents = vec![
        agent("a", vec![task("t", vec![llm("talk")])]),
        agent("b", vec![task("t", vec![llm("talk")])]),
        agent("mute", vec![task("t", vec![step("page")])]),
    ];
    let run = submit(&mut bench, agents_spec(), Plans { agents, ..Plans::default() });
    bench.settle();
    check_refused(send(&bench, run, None, "x", None), "invalid", "name one of a, b");
    check_refused(send(&bench, run, Some("mute"), "x", None), "conflict", "talks with no model");
    check_refused(send(&bench, run, Some("nobody"), "x", None), "invalid", "no agent `nobody`");
    check_refused(send(&bench, run, Some("a"), "  ", None), "invalid", "text");
    check_refused(send(&bench, run, Some("a"), &"x".repeat(16 * 1024 + 1), None), "too_large", "16 KiB");
    for _ in 0..20 {
        send(&bench, run, Some("a"), "x", None).unwrap();
    }
    check_refused(send(&bench, run, Some("a"), "x", None), "conflict", "20 messages wait");
    send(&bench, run, Some("b"), "x", None).unwrap();
    bench.cancel(run);
    bench.settle();
    check_refused(send(&bench, run, Some("a"), "x", None), "invalid_state_transition", "cancelled");
    let render: MessageRender = Arc::new(|_| Vec::new());
    let stranger = now(bench.engine.send_message(model::OrgId(bench.org.0 + 1), run, None, "x".into(), None, render));
    assert!(matches!(stranger, Err(Failure::Refused(Refused::NotFound { .. }))), "{stranger:?}");
}
