//! The tool that steps call in the simulated world: calls take their time, fail by class and effect, and end with the process that made
//! them. What really happened is counted here, by key, and never dies.

use crate::chance::Chance;
use crate::faults::{Faults, Kind};
use crate::time::Now;
use adapters::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog};
use model::Effect;
use model::recovery::ErrorClass;
use model::time::SECOND;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What the far side has seen of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub effects: u32,
    /// It must not be repeated.
    pub once: bool,
}

#[derive(Clone)]
pub struct FarTool {
    pub now: Now,
    pub faults: Faults,
    pub chance: Arc<Mutex<Chance>>,
    pub seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    /// The calling process is dead: nothing it still asks for is heard.
    pub caller_dead: Arc<AtomicBool>,
}

impl FarTool {
    fn draw(&self, choice: &[i64]) -> i64 {
        self.chance.lock().expect("one thread").pick(choice)
    }

    /// A dead process goes no further.
    async fn dies_here(&self, kind: Kind) {
        if self.caller_dead.load(Ordering::Relaxed) || self.faults.strikes(kind).is_some() {
            self.caller_dead.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
    }

    fn happens(&self, call: &ToolCall) {
        let mut seen = self.seen.lock().expect("one thread");
        let seen = seen.entry(call.key.clone()).or_default();
        seen.effects += 1;
        seen.once = call.input["once"] == true;
    }

    /// Half of the delay, then the effect, then the other half. A caller that dies before has not called, and after does not get the answer.
    async fn run(&self, call: &ToolCall) -> Result<ToolAnswer, ToolFailure> {
        self.dies_here(Kind::CallCrashBefore).await;
        self.now.wait(self.draw(&[0, 0, 100, SECOND])).await;
        if self.faults.strikes(Kind::CallFails).is_some() {
            return Err(ToolFailure::new(ErrorClass::Transient, Effect::None, "refused", "nobody listens"));
        }
        if self.caller_dead.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.happens(call);
        self.dies_here(Kind::CallCrashAfter).await;
        self.now.wait(self.draw(&[0, 0, 100, 20 * SECOND, 40 * SECOND])).await;
        if self.faults.strikes(Kind::CallTimesOut).is_some() {
            return Err(ToolFailure::new(ErrorClass::Transient, Effect::Perhaps, "cut", "the answer was cut off"));
        }
        match call.input["ends"].as_str() {
            Some("badly") => Err(ToolFailure::new(ErrorClass::Permanent, Effect::Done, "bad", "it answered no")),
            _ => Ok(ToolAnswer { output: Value::Null, usage: None }),
        }
    }
}

impl Tool for FarTool {
    fn call<'a>(&'a self, call: &'a ToolCall, _: &'a dyn ToolLog) -> ToolFuture<'a> {
        Box::pin(self.run(call))
    }
}
