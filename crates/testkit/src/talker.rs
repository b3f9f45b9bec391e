//! The model in the simulated world: it asks for calls of tools, several side by side, makes plans, and answers in the end; and does
//! what servers of models do: it is busy, its stream is cut, its JSON is broken, and it does not say what it has used.

use crate::book::Situation;
use crate::faults::Kind;
use crate::tool::FarTool;
use adapters::{ToolAnswer, ToolCall, ToolFailure, ToolUsage};
use model::Effect;
use model::recovery::ErrorClass;
use model::time::SECOND;
use serde_json::{Value, json};

/// Turns after which it comes to its end.
const TALKS_FOR: usize = 2;
const INPUT_TOKENS: i64 = 100;
const OUTPUT_TOKENS: i64 = 20;

impl FarTool {
    pub async fn talk(&self, call: &ToolCall) -> Result<ToolAnswer, ToolFailure> {
        self.now.wait(self.draw(&[0, 0, 100, SECOND])).await;
        if self.faults.strikes(Kind::ModelBusy).is_some() {
            let busy = ToolFailure::new(ErrorClass::RateLimited, Effect::None, "overloaded", "too many requests");
            return Err(busy.retry_after_ms(Some(self.draw(&[SECOND, 20 * SECOND]))));
        }
        self.goes_on().await;
        self.book().happens(&call.key, false);
        self.dies_here(Kind::CallCrashAfter).await;
        self.now.wait(self.draw(&[0, 0, 2 * SECOND, 30 * SECOND])).await;
        let output = self.says(&call.input);
        if self.faults.strikes(Kind::StreamCut).is_some() {
            let cut = ToolFailure::new(ErrorClass::Transient, Effect::Perhaps, "cut", "the stream ended too early");
            return Err(cut.using(Some(self.usage(call, true))));
        }
        self.goes_on().await;
        self.book().answered(&call.key);
        let unsaid = self.faults.strikes(Kind::UsageMissing).is_some();
        Ok(ToolAnswer { output, usage: Some(self.usage(call, unsaid)) })
    }

    fn usage(&self, call: &ToolCall, estimated: bool) -> ToolUsage {
        self.book().used(&call.key, INPUT_TOKENS + OUTPUT_TOKENS);
        ToolUsage { of: "sim".into(), input_tokens: INPUT_TOKENS, output_tokens: OUTPUT_TOKENS, estimated }
    }

    fn says(&self, input: &Value) -> Value {
        let messages = input["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let turns = messages.iter().filter(|message| message["role"] == "assistant").count();
        let offered: Vec<&str> =
            input["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str()).collect();
        let message = match input.get("output") {
            Some(_) => self.object(messages),
            None if turns < TALKS_FOR && !offered.is_empty() && self.draw(&[0, 1, 1]) == 1 => self.calls(&offered),
            None => json!({ "content": "done", "tool_calls": [] }),
        };
        json!({ "message": message, "finish_reason": "stop" })
    }

    fn calls(&self, offered: &[&str]) -> Value {
        let count = self.draw(&[1, 1, 2, 3]);
        if count > 1 {
            self.book().meets(Situation::CallsSideBySide);
        }
        let calls = (0..count).map(|_| {
            let name = self.chance().pick(offered);
            if self.faults.strikes(Kind::BrokenAnswer).is_some() {
                return json!({ "name": name, "arguments": null, "unparseable": "{\"n\": " });
            }
            json!({ "name": name, "arguments": { "n": self.chance().between(0, 1000) } })
        });
        json!({ "content": "", "tool_calls": calls.collect::<Vec<_>>() })
    }

    /// A plan, or whatever else has a schema.
    fn object(&self, messages: &[Value]) -> Value {
        if self.faults.strikes(Kind::BrokenAnswer).is_some() {
            return json!({ "content": "{", "tool_calls": [], "json_error": "it is no JSON" });
        }
        let plans =
            messages.iter().any(|message| message["content"].as_str().is_some_and(|it| it.starts_with("Make a plan")));
        let answer = if plans { self.plan() } else { json!({ "n": 1 }) };
        json!({ "content": "", "tool_calls": [], "json": answer })
    }

    fn plan(&self) -> Value {
        if self.faults.strikes(Kind::BadPlan).is_some() {
            return json!({ "agents": [{ "tasks": [{ "steps": [{ "http": { "url": "nowhere" } }] }] }] });
        }
        let agents = (0..self.draw(&[1, 2])).map(|agent| {
            let steps = (0..self.draw(&[1, 2])).map(|step| {
                // By their names they are the same steps in every plan.
                let (once, badly) = (step == 0, self.draw(&[0, 0, 0, 1]) == 1);
                let path = match (once, badly) {
                    (true, _) => "once",
                    (false, true) => "badly",
                    (false, false) => "well",
                };
                let url = format!("https://sim.example/{path}");
                json!({ "name": format!("s{step}"), "http": { "url": url, "method": "POST" }, "idempotent": !once })
            });
            let steps: Vec<Value> = steps.collect();
            json!({ "name": format!("p{agent}"), "tasks": [{ "name": "t", "steps": steps }] })
        });
        json!({ "agents": agents.collect::<Vec<_>>() })
    }
}
