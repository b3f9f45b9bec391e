//! The tools that steps call in the simulated world: calls take their time, fail by class and effect, and end with the process that made
//! them. What really happened stands in the book.

use crate::book::{Book, Situation};
use crate::chance::Chance;
use crate::faults::{Faults, Kind};
use crate::time::Now;
use adapters::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog};
use model::Effect;
use model::recovery::ErrorClass;
use model::step::{Recorded, StepStatus};
use model::time::SECOND;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use store::Store;

#[derive(Clone)]
pub struct FarTool {
    pub now: Now,
    pub faults: Faults,
    pub chance: Arc<Mutex<Chance>>,
    pub book: Arc<Mutex<Book>>,
    /// To see what was recorded of a step that is called again.
    pub store: Store,
    /// The calling process is dead: nothing it still asks for is heard.
    pub caller_dead: Arc<AtomicBool>,
}

impl FarTool {
    pub fn draw(&self, choice: &[i64]) -> i64 {
        self.chance().pick(choice)
    }

    pub fn chance(&self) -> MutexGuard<'_, Chance> {
        self.chance.lock().expect("one thread")
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("one thread")
    }

    /// What has happened, and what must not have, since the last call.
    pub fn news(&self) -> (Vec<String>, Vec<String>) {
        let mut book = self.book();
        (book.news(), book.complaints())
    }

    /// A dead process goes no further.
    pub async fn dies_here(&self, kind: Kind) {
        if self.faults.strikes(kind).is_some() {
            self.caller_dead.store(true, Ordering::Relaxed);
        }
        self.goes_on().await;
    }

    pub async fn goes_on(&self) {
        if self.caller_dead.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// What has an answer in the run's journal is never asked for again, in any attempt.
    fn must_be_unfinished(&self, key: &str) {
        if !self.book().of(key).answered {
            return;
        }
        let known = key.to_owned();
        let finished = self.store.read_now("sim.finished", move |tx| {
            let mut steps = Vec::new();
            for run in store::run::ids_after(tx, 0, 1000)? {
                steps.extend(store::step::of_run(tx, run)?);
            }
            for step in steps.into_iter().filter(|step| step.status == StepStatus::Completed && !step.replayed) {
                // The journal has one row for each identity: a turn whose prompt has changed since has replaced it.
                let Some(identity) = step.identity.as_deref().filter(|_| step.key.as_deref() == Some(&known)) else {
                    continue;
                };
                let row = store::step::journal(tx, step.run, identity)?;
                if row.is_some_and(|row| row.key == known && row.state == Recorded::Done) {
                    return Ok(Some(step));
                }
            }
            Ok(None)
        });
        if let Some(step) = finished.expect("a database in memory is read") {
            self.book().complain(format!("{} ({}) has finished, and is called again", step.id, step.name));
        }
    }

    /// Half of the delay, then the effect, then the other half. A caller that dies before has not called, and after does not get the answer.
    async fn run(&self, call: &ToolCall) -> Result<ToolAnswer, ToolFailure> {
        self.must_be_unfinished(&call.key);
        self.dies_here(Kind::CallCrashBefore).await;
        if call.input.get("messages").is_some() {
            return self.talk(call).await;
        }
        self.now.wait(self.draw(&[0, 0, 100, SECOND])).await;
        if self.faults.strikes(Kind::CallFails).is_some() {
            return Err(ToolFailure::new(ErrorClass::Transient, Effect::None, "refused", "nobody listens"));
        }
        self.goes_on().await;
        if let Some(name) = call.input["verifies"].as_str() {
            return Ok(self.verifies(name, &call.key));
        }
        self.happens(call);
        self.dies_here(Kind::CallCrashAfter).await;
        self.now.wait(self.draw(&[0, 0, 100, 20 * SECOND, 40 * SECOND])).await;
        if self.faults.strikes(Kind::CallTimesOut).is_some() {
            return Err(ToolFailure::new(ErrorClass::Transient, Effect::Perhaps, "cut", "the answer was cut off"));
        }
        self.goes_on().await;
        if Asked::of(&call.input).badly {
            return Err(ToolFailure::new(ErrorClass::Permanent, Effect::Done, "bad", "it answered no"));
        }
        self.book().answered(&call.key);
        Ok(ToolAnswer { output: Value::Null, usage: None })
    }

    /// Tells whether a step had its effect, as the far side knows it. Now and then it cannot tell.
    fn verifies(&self, name: &str, key: &str) -> ToolAnswer {
        let says = match self.draw(&[0, 0, 0, 1]) {
            1 => "perhaps",
            _ if self.book().has_happened(name) => "done",
            _ => "not_done",
        };
        let mut book = self.book();
        book.answered(key);
        book.meets(Situation::Verified);
        ToolAnswer { output: json!({ "body": says }), usage: None }
    }

    fn happens(&self, call: &ToolCall) {
        let asked = Asked::of(&call.input);
        let mut book = self.book();
        if let Some(name) = asked.name {
            book.is_called(name, &call.key);
        }
        if call.input["asks"] == true {
            book.must_be_approved(&call.input);
        }
        book.happens(&call.key, asked.once);
    }
}

/// What the input of a call says about itself: in fields, or, of a plan that a planner made, in its address.
struct Asked<'i> {
    name: Option<&'i str>,
    once: bool,
    badly: bool,
}

impl Asked<'_> {
    fn of(input: &Value) -> Asked<'_> {
        let address = input["url"].as_str().unwrap_or_default();
        Asked {
            name: input["name"].as_str(),
            once: input["once"] == true || address.contains("/once"),
            badly: input["ends"] == "badly" || address.contains("/badly"),
        }
    }
}

impl Tool for FarTool {
    fn call<'a>(&'a self, call: &'a ToolCall, log: &'a dyn ToolLog) -> ToolFuture<'a> {
        let _ = log;
        Box::pin(self.run(call))
    }
}
