//! The fake tool's faults: each does what it says, and works for a caller that polls by hand and ignores wake-ups.

use adapters::tool::fake::{Fate, Tally};
use adapters::{FakeTool, Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog, ToolUsage};
use model::Effect;
use model::recovery::ErrorClass;
use serde_json::json;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct Kept(Mutex<Vec<u8>>);

impl ToolLog for Kept {
    fn write(&self, text: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(text);
    }
}

fn call(key: &str) -> ToolCall {
    ToolCall { key: key.to_owned(), input: json!({"to": key}), secrets: Default::default(), timeout_ms: None }
}

fn poll(future: &mut ToolFuture<'_>) -> Poll<Result<ToolAnswer, ToolFailure>> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn polled(tool: &FakeTool, key: &str) -> Result<ToolAnswer, ToolFailure> {
    match poll(&mut tool.call(&call(key), &Kept::default())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the call hangs"),
    }
}

#[test]
fn each_fate_has_the_effect_and_the_answer_that_it_says() {
    use ErrorClass::{InvalidOutput, RateLimited, Transient};
    for (fate, effects, heard) in [
        (Fate::answer(json!(7)), 1, None),
        (Fate::fail(RateLimited, Effect::None), 0, Some((RateLimited, Effect::None))),
        (Fate::fail(Transient, Effect::Perhaps), 0, Some((Transient, Effect::Perhaps))),
        (Fate::fail(Transient, Effect::Perhaps).happened(), 1, Some((Transient, Effect::Perhaps))),
        (Fate::fail(InvalidOutput, Effect::Done), 1, Some((InvalidOutput, Effect::Done))),
    ] {
        let script = fate.clone();
        let tool = FakeTool::new(Box::new(move |_, _| script.clone()));
        let result = polled(&tool, "k");
        let failure = result.as_ref().err().map(|failed| (failed.failure.class, failed.failure.effect));
        assert_eq!(failure, heard, "{fate:?}");
        assert_eq!(tool.seen_of("k"), Tally { calls: 1, effects, cut: 0 }, "{fate:?}");
    }
}

#[test]
fn the_script_sees_which_call_with_the_key_it_is() {
    let tool = FakeTool::new(Box::new(|call, number| match number {
        1 => Fate::fail(ErrorClass::RateLimited, Effect::None).retry_after_ms(2_000),
        _ => Fate::answer(call.input.clone()),
    }));
    assert_eq!(polled(&tool, "a").unwrap_err().failure.retry_after_ms, Some(2_000));
    assert_eq!(polled(&tool, "a").unwrap().output, json!({"to": "a"}));
    assert!(polled(&tool, "b").is_err(), "another key counts for itself");
    assert_eq!(tool.seen()["a"], Tally { calls: 2, effects: 1, cut: 0 });
}

#[test]
fn nothing_happens_before_the_first_poll() {
    let tool = FakeTool::obedient();
    drop(tool.call(&call("k"), &Kept::default()));
    assert_eq!(tool.seen_of("k"), Tally::default());
}

#[test]
fn a_hanging_call_ends_when_it_is_told_and_only_then() {
    let tool = FakeTool::new(Box::new(|_, _| Fate::hang().saying("begun\n")));
    let (asked, log) = (call("k"), Kept::default());
    let mut future = tool.call(&asked, &log);
    for _ in 0..3 {
        assert!(poll(&mut future).is_pending());
    }
    assert_eq!(tool.seen_of("k"), Tally { calls: 1, effects: 0, cut: 0 });
    let hanging = tool.hanging();
    assert_eq!((hanging.len(), hanging[0].key.as_str()), (1, "k"));
    let used = ToolUsage { of: "m".to_owned(), input_tokens: 1, output_tokens: 2, estimated: false };
    assert!(tool.tell(hanging[0].number, Fate::answer(json!("late")).using(used.clone()).saying("ended\n")));
    assert!(!tool.tell(hanging[0].number, Fate::answer(json!("twice"))), "its fate is decided");
    assert_eq!(poll(&mut future), Poll::Ready(Ok(ToolAnswer { output: json!("late"), usage: Some(used) })));
    assert_eq!(log.0.lock().unwrap().as_slice(), b"begun\nended\n");
    drop(future);
    assert_eq!(tool.seen_of("k"), Tally { calls: 1, effects: 1, cut: 0 }, "a call that ended is not cut");
}

#[test]
fn an_effect_without_an_answer_happens_once_and_stays() {
    let tool = FakeTool::new(Box::new(|_, _| Fate::hang().happened()));
    let (asked, log) = (call("k"), Kept::default());
    let mut future = tool.call(&asked, &log);
    assert!(poll(&mut future).is_pending());
    assert_eq!(tool.seen_of("k").effects, 1);
    assert!(tool.tell(1, Fate::hang().happened()));
    assert!(poll(&mut future).is_pending());
    drop(future);
    assert_eq!(tool.seen_of("k"), Tally { calls: 1, effects: 1, cut: 1 });
    assert_eq!(tool.hanging(), []);
    assert!(!tool.tell(1, Fate::answer(json!(1))), "its caller is gone");
}

#[tokio::test]
async fn a_caller_that_relies_on_wake_ups_is_woken() {
    let tool = FakeTool::new(Box::new(|_, _| Fate::hang()));
    let (asked, log) = (call("k"), Kept::default());
    let told = async {
        while tool.hanging().is_empty() {
            tokio::task::yield_now().await;
        }
        tool.tell(1, Fate::answer(json!(1)))
    };
    let (answer, told) = tokio::join!(tool.call(&asked, &log), told);
    assert!(told && answer.unwrap().output == json!(1));
}
