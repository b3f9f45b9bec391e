//! A tool that exists only in memory, for tests and simulation: each call may fail, hang, or have its effect without an answer.
//! Has no clock, thread or randomness: a script decides the outcome of each call, and counts its effects by key.

use crate::tool::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog, ToolUsage};
use model::Effect;
use model::recovery::ErrorClass;
use serde_json::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What becomes of one call: whether it has its effect, and what its caller is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Fate {
    happens: bool,
    says: Vec<u8>,
    then: Then,
}

#[derive(Debug, Clone, PartialEq)]
enum Then {
    Answer(ToolAnswer),
    Fail(ToolFailure),
    Hang,
}

impl Fate {
    /// The effect happens, and the caller gets this output.
    pub fn answer(output: Value) -> Fate {
        Fate { happens: true, says: Vec::new(), then: Then::Answer(ToolAnswer { output, usage: None }) }
    }

    /// The caller is told of this effect. [`Effect::Done`] happens, [`Effect::None`] does not. [`Effect::Perhaps`] does not
    /// unless [`Fate::happened`] is added: the caller cannot see the difference.
    pub fn fail(class: ErrorClass, effect: Effect) -> Fate {
        let message = format!("the script fails this call: {class}, effect {effect:?}");
        let then = Then::Fail(ToolFailure::new(class, effect, "scripted", message));
        Fate { happens: effect == Effect::Done, says: Vec::new(), then }
    }

    /// No answer until [`FakeTool::tell`] gives the call another fate, or the caller drops it. No effect by then, unless
    /// [`Fate::happened`] is added.
    pub fn hang() -> Fate {
        Fate { happens: false, says: Vec::new(), then: Then::Hang }
    }

    /// The effect happens, whatever the caller is told.
    pub fn happened(mut self) -> Fate {
        let told_none = matches!(&self.then, Then::Fail(failure) if failure.failure.effect == Effect::None);
        assert!(!told_none, "a failure with effect `none` promises that nothing happened");
        self.happens = true;
        self
    }

    /// Writes this to the step's log before anything else.
    pub fn saying(mut self, text: &str) -> Fate {
        self.says = text.as_bytes().to_vec();
        self
    }

    pub fn using(mut self, used: ToolUsage) -> Fate {
        match &mut self.then {
            Then::Answer(answer) => answer.usage = Some(used),
            Then::Fail(failure) => failure.usage = Some(used),
            Then::Hang => panic!("a call that hangs reports no usage"),
        }
        self
    }

    /// The code of a failure, for callers that tell failures of one class apart.
    pub fn coded(mut self, code: &str) -> Fate {
        match &mut self.then {
            Then::Fail(failure) => failure.failure.error.code = code.to_owned(),
            other => panic!("{other:?} is no failure"),
        }
        self
    }

    /// Only a failure asks its caller to wait.
    pub fn retry_after_ms(mut self, wait_ms: i64) -> Fate {
        match &mut self.then {
            Then::Fail(failure) => failure.failure.retry_after_ms = Some(wait_ms),
            other => panic!("{other:?} is no failure"),
        }
        self
    }
}

/// Decides each call's fate when it is first polled. The number counts the calls with this key, from 1.
/// It must not call the tool itself, which is locked meanwhile.
pub type Decide = Box<dyn FnMut(&ToolCall, u32) -> Fate + Send>;

/// A call that hangs.
#[derive(Debug, Clone, PartialEq)]
pub struct Hanging {
    /// For [`FakeTool::tell`]; calls are numbered in the order in which they were first polled.
    pub number: u64,
    pub key: String,
    pub input: Value,
}

/// What the far side knows of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub calls: u32,
    /// More than one for a step that is not idempotent is the error that the journal exists to prevent.
    pub effects: u32,
    /// Calls whose caller dropped them before they ended.
    pub cut: u32,
}

pub struct FakeTool {
    world: Mutex<World>,
}

struct World {
    decide: Decide,
    seen: BTreeMap<String, Tally>,
    open: BTreeMap<u64, Open>,
    next: u64,
    changes: u64,
}

/// A call that was polled and has not ended.
struct Open {
    key: String,
    input: Value,
    happened: bool,
    /// What the next poll does; none while the call hangs.
    told: Option<Fate>,
    waker: Option<Waker>,
}

impl FakeTool {
    pub fn new(decide: Decide) -> FakeTool {
        let world = World { decide, seen: BTreeMap::new(), open: BTreeMap::new(), next: 1, changes: 0 };
        FakeTool { world: Mutex::new(world) }
    }

    /// One that answers every call with its input until it is told otherwise.
    pub fn obedient() -> FakeTool {
        FakeTool::new(Box::new(|call, _| Fate::answer(call.input.clone())))
    }

    pub fn decide_by(&self, decide: Decide) {
        self.world().decide = decide;
    }

    /// Everything that was ever asked for, by key.
    pub fn seen(&self) -> BTreeMap<String, Tally> {
        self.world().seen.clone()
    }

    pub fn seen_of(&self, key: &str) -> Tally {
        self.world().seen.get(key).copied().unwrap_or_default()
    }

    /// Calls that wait for [`FakeTool::tell`], oldest first.
    pub fn hanging(&self) -> Vec<Hanging> {
        let world = self.world();
        let hanging = world.open.iter().filter(|(_, open)| open.told.is_none());
        hanging
            .map(|(number, open)| Hanging { number: *number, key: open.key.clone(), input: open.input.clone() })
            .collect()
    }

    /// Gives a hanging call its fate. It ends at its next poll; its waker is called too, for callers that rely on it.
    /// False if there is no such call any more: its caller dropped it.
    pub fn tell(&self, number: u64, fate: Fate) -> bool {
        let mut world = self.world();
        world.changes += 1;
        let Some(open) = world.open.get_mut(&number).filter(|open| open.told.is_none()) else { return false };
        open.told = Some(fate);
        let waker = open.waker.take();
        drop(world);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Another number whenever a poll may have another result than before.
    pub fn changes(&self) -> u64 {
        self.world().changes
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // Every change is one assignment, so a panic elsewhere leaves nothing half-done here.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tool for FakeTool {
    fn endpoint(&self, input: &Value) -> Option<String> {
        crate::tool::origin(input["url"].as_str()?)
    }

    fn call<'a>(&'a self, call: &'a ToolCall, log: &'a dyn ToolLog) -> ToolFuture<'a> {
        Box::pin(FakeCall { tool: self, call, log, number: None })
    }
}

/// One call. Nothing happens before its first poll.
struct FakeCall<'a> {
    tool: &'a FakeTool,
    call: &'a ToolCall,
    log: &'a dyn ToolLog,
    number: Option<u64>,
}

impl Future for FakeCall<'_> {
    type Output = Result<ToolAnswer, ToolFailure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut world = self.tool.world();
        let number = self.number.unwrap_or_else(|| world.begin(self.call));
        let told = world.go_on(number, context.waker());
        drop(world);
        self.number = Some(number);
        let Some(fate) = told else { return Poll::Pending };
        if !fate.says.is_empty() {
            self.log.write(&fate.says);
        }
        let result = match fate.then {
            Then::Answer(answer) => Ok(answer),
            Then::Fail(failure) => Err(failure),
            Then::Hang => return Poll::Pending,
        };
        self.tool.world().open.remove(&number);
        Poll::Ready(result)
    }
}

impl Drop for FakeCall<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut world = self.tool.world();
        if let Some(open) = world.open.remove(&number) {
            world.changes += 1;
            world.seen.entry(open.key).or_default().cut += 1;
        }
    }
}

impl World {
    fn begin(&mut self, call: &ToolCall) -> u64 {
        let number = self.next;
        self.next += 1;
        let seen = self.seen.entry(call.key.clone()).or_default();
        seen.calls += 1;
        let told = Some((self.decide)(call, seen.calls));
        let open = Open { key: call.key.clone(), input: call.input.clone(), happened: false, told, waker: None };
        self.open.insert(number, open);
        number
    }

    /// Takes what the call was told, if anything. Its effect happens here, at most once a call.
    fn go_on(&mut self, number: u64, waker: &Waker) -> Option<Fate> {
        let open = self.open.get_mut(&number)?;
        open.waker = Some(waker.clone());
        let fate = open.told.take()?;
        self.changes += 1;
        if fate.happens && !std::mem::replace(&mut open.happened, true) {
            self.seen.entry(open.key.clone()).or_default().effects += 1;
        }
        Some(fate)
    }
}
