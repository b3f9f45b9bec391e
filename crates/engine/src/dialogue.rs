//! The dialogue of an `llm` step with its model: which turn or which calls of tools come next, given how those before them ended. Pure: the
//! same ends give the same next turn, so that a holder that takes over, or a new attempt, goes on where the journal ends.

mod offers;

use crate::plan_limits::PlanProblem;
use adapters::ToolFailure;
use adapters::tool::mcp::MOST_TOOLS;
use model::Effect;
use model::plan::{LLM_TURN_TIMEOUT_MS, Policy, RunPlan, ToolPlan};
use model::recovery::{ErrorClass, MAX_TRIES, StepFailure};
use model::step::ToolKind;
use offers::{Offers, is_server};
use plan::{OutputSchema, Scope};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A wrong final answer is sent back with its errors so often.
const REPROMPTS: i64 = 2;
/// Bytes of text that are taken for one token when a prompt is measured against a model's context.
const BYTES_PER_TOKEN: i64 = 3;
/// At this share of the context, in percent, earlier turns are left out; those that are kept fill at most half of it.
const FULL_PERCENT: i64 = 80;
const KEPT_PERCENT: i64 = 40;
/// The code of a failure that says that a prompt is too long.
const CONTEXT_LENGTH: &str = "context_length";
/// Bytes of a tool's result that the model is shown.
const MAX_RESULT_BYTES: usize = 64 * 1024;

/// What is asked of the model, and what has become of it so far.
pub(crate) struct Dialogue {
    input: Value,
    schema: Option<Value>,
    /// Of a planner: checks its answer, a plan.
    plan_problem: Option<PlanProblem>,
    /// As the file names them. An MCP server without `tool` stands for all its tools, which are listed before the first turn.
    tools: BTreeMap<String, ToolPlan>,
    /// Roots that expressions of tools may read beside `args`.
    scope: Scope,
    /// Tokens that the model reads.
    context: i64,
    /// How often a turn, or a list of tools, is asked for: the tries of the step, which has no others.
    max_tries: i64,
    /// Lists of tools (`tools/files`), turns (`t3`) and calls (`t3/c1`) that have ended.
    ended: BTreeMap<String, Ended>,
    /// What people said, by the turn that tells it to the model.
    heard: BTreeMap<String, Vec<String>>,
    /// What a turn tells in addition since this holder began it, or will when it begins.
    offered: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ended {
    Answered(Value),
    Failed(ChildFailure),
}

/// How the last try of a child failed, and how many it had.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChildFailure {
    pub(crate) failure: StepFailure,
    pub(crate) tries: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Next {
    /// These have to end first. Turns come alone, the calls of one turn together.
    Children(Vec<Wanted>),
    Done(Value),
    /// By what was said in it.
    Failed(ToolFailure),
    /// A turn, or a list of tools, was not answered.
    ChildFailed(ChildFailure),
}

/// A turn or a call that comes next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) tool: ToolKind,
    pub(crate) idempotent: bool,
    pub(crate) timeout_ms: Option<i64>,
    pub(crate) max_tries: i64,
    /// What its tool is called with.
    pub(crate) input: Value,
    /// What its row keeps: of a turn only what was added to the dialogue.
    pub(crate) kept: Value,
    pub(crate) ask: bool,
}

impl Dialogue {
    pub(crate) fn new(input: Value, schema: Option<Value>, shared: &RunPlan, scope: Scope, context: i64) -> Dialogue {
        let named = input["tools"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let tools = named.filter_map(|name| Some((name.to_owned(), shared.tools.get(name)?.clone()))).collect();
        Dialogue {
            input,
            schema,
            plan_problem: None,
            tools,
            scope,
            context,
            max_tries: MAX_TRIES,
            ended: BTreeMap::new(),
            heard: BTreeMap::new(),
            offered: BTreeMap::new(),
        }
    }

    pub(crate) fn tried(mut self, max_tries: i64) -> Dialogue {
        self.max_tries = max_tries;
        self
    }

    /// The dialogue of a planner: its answer is a plan in which this finds no problem.
    pub(crate) fn planning(mut self, problem: Option<PlanProblem>) -> Dialogue {
        self.schema = Some(plan::planned_schema());
        self.plan_problem = problem;
        self
    }

    pub(crate) fn ended(&mut self, name: &str, how: Ended) {
        self.ended.insert(name.to_owned(), how);
    }

    /// What a turn that has begun, perhaps in an earlier attempt, tells of what people said.
    pub(crate) fn heard(&mut self, turn: &str, text: String) {
        self.heard.entry(turn.to_owned()).or_default().push(text);
    }

    /// What the next turn tells as well, in place of what was offered before.
    pub(crate) fn offer(&mut self, turn: &str, texts: Vec<String>) {
        self.offered.insert(turn.to_owned(), texts);
    }

    pub(crate) fn next(&self) -> Next {
        match self.offers() {
            Ok(offers) => self.next_turn(&offers),
            Err(next) => next,
        }
    }

    /// What the model may call, or the lists that have to be asked for first: once per dialogue, since their answers are recorded.
    fn offers(&self) -> Result<Offers<'_>, Next> {
        let (mut lists, mut wanted) = (BTreeMap::new(), Vec::new());
        let servers = self.tools.iter().filter(|(_, tool)| is_server(tool) && tool.policy != Policy::Deny);
        for (name, tool) in servers {
            let child = format!("tools/{name}");
            match self.ended.get(&child) {
                Some(Ended::Answered(list)) => drop(lists.insert(name.as_str(), list)),
                Some(Ended::Failed(failed)) => {
                    let mut failed = failed.clone();
                    let error = &mut failed.failure.error;
                    error.message = format!("the tools of `{name}` cannot be listed: {}", error.message);
                    return Err(Next::ChildFailed(failed));
                }
                None => wanted.push(self.listing(child, tool)?),
            }
        }
        if !wanted.is_empty() {
            return Err(Next::Children(wanted));
        }
        let offers = Offers::new(&self.tools, &lists);
        if offers.len() > MOST_TOOLS {
            let why = format!("the model would be offered {} tools: {MOST_TOOLS} are possible", offers.len());
            return Err(failed(ErrorClass::Permanent, "too_many_tools", why));
        }
        Ok(offers)
    }

    fn listing(&self, name: String, tool: &ToolPlan) -> Result<Wanted, Next> {
        let input = offers::render(tool, &self.scope)
            .map_err(|(code, why)| failed(ErrorClass::Permanent, code, format!("{name}: {why}")))?;
        Ok(Wanted {
            name,
            tool: tool.tool,
            idempotent: true,
            timeout_ms: tool.timeout_ms,
            max_tries: self.max_tries,
            kept: input.clone(),
            input,
            ask: false,
        })
    }

    fn next_turn(&self, offers: &Offers<'_>) -> Next {
        let mut history = History::new(&self.input, self.context);
        let most = self.input["max_turns"].as_i64().unwrap_or(1).max(1);
        let (mut asked_again, mut turns) = (0, 0);
        loop {
            turns += 1;
            let last = turns >= most + asked_again;
            self.tell(&format!("t{turns}"), &mut history);
            let answer = match self.answer(turns, last, offers, &mut history) {
                Ok(answer) => answer,
                Err(next) => return next,
            };
            let message = &answer["message"];
            let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            history.add(assistant(message, &calls, turns));
            if !calls.is_empty() {
                if last {
                    return failed(ErrorClass::Permanent, "max_turns", format!("it is not done after {turns} turns"));
                }
                match self.results(turns, &calls, offers) {
                    Ok(results) => history.extend(results),
                    Err(wanted) => return Next::Children(wanted),
                }
                continue;
            }
            match self.output(&answer, turns) {
                Ok(output) => return Next::Done(output),
                Err(Bad::Refused(text)) => return failed(ErrorClass::Permanent, "refused", text),
                Err(Bad::Invalid(why)) if asked_again < REPROMPTS => {
                    asked_again += 1;
                    let text = format!("That answer cannot be used: {why}. Answer again, with the mistake corrected.");
                    history.add(json!({ "role": "user", "content": text }));
                }
                Err(Bad::Invalid(why)) => return failed(ErrorClass::Permanent, "invalid_output", why),
            }
        }
    }

    /// What people said before a turn.
    fn tell(&self, turn: &str, history: &mut History) {
        let texts = self.heard.get(turn).into_iter().chain(self.offered.get(turn)).flatten();
        texts.for_each(|text| history.hear(text));
    }

    /// The model's answer of this turn, or what has to happen first. A prompt that is too long is shortened once.
    fn answer(&self, turn: i64, last: bool, offers: &Offers<'_>, history: &mut History) -> Result<Value, Next> {
        let mut name = format!("t{turn}");
        if history.is_full() && !history.shorten() {
            let why = "the dialogue does not fit the model's context, even without its earlier turns";
            return Err(failed(ErrorClass::Permanent, CONTEXT_LENGTH, why.into()));
        }
        loop {
            match self.ended.get(&name) {
                None => return Err(Next::Children(vec![self.turn(name, last, offers, history)])),
                Some(Ended::Answered(answer)) => return Ok(answer.clone()),
                Some(Ended::Failed(failed)) if failed.failure.error.code == CONTEXT_LENGTH => {
                    if !history.shorten() {
                        let why = failed.failure.error.message.clone();
                        return Err(self::failed(ErrorClass::Permanent, CONTEXT_LENGTH, why));
                    }
                    name = format!("t{turn}/short");
                }
                Some(Ended::Failed(failed)) => return Err(Next::ChildFailed(failed.clone())),
            }
        }
    }

    fn turn(&self, name: String, last: bool, offers: &Offers<'_>, history: &History) -> Wanted {
        let mut input = Map::new();
        for field in ["model", "max_output_tokens", "temperature"] {
            input.extend(self.input.get(field).map(|value| (field.to_owned(), value.clone())));
        }
        input.insert("messages".into(), Value::Array(history.messages()));
        if !last && offers.len() > 0 {
            input.insert("tools".into(), offers.described());
        }
        input.extend(self.schema.clone().map(|schema| ("output".to_owned(), schema)));
        let kept = json!({ "model": self.input["model"], "added": history.added() });
        Wanted {
            name,
            tool: ToolKind::Llm,
            idempotent: true,
            timeout_ms: Some(self.input["turn_timeout_ms"].as_i64().unwrap_or(LLM_TURN_TIMEOUT_MS)),
            max_tries: self.max_tries,
            input: Value::Object(input),
            kept,
            ask: false,
        }
    }

    /// The results of all calls of a turn, in their order, or those that have to end first.
    fn results(&self, turn: i64, calls: &[Value], offers: &Offers<'_>) -> Result<Vec<Value>, Vec<Wanted>> {
        let (mut results, mut wanted) = (Vec::new(), Vec::new());
        for (at, call) in calls.iter().enumerate() {
            let name = format!("t{turn}/c{}", at + 1);
            let text = match (self.ended.get(&name), self.call(name.clone(), call, offers)) {
                (Some(Ended::Answered(output)), _) => output.to_string(),
                (Some(Ended::Failed(failed)), _) => {
                    error_text(&failed.failure.error.code, &failed.failure.error.message)
                }
                (None, Ok(call)) => {
                    wanted.push(call);
                    continue;
                }
                (None, Err((code, why))) => error_text(code, &why),
            };
            results.push(json!({ "role": "tool", "tool_call_id": call_id(turn, at), "content": shown(text) }));
        }
        if wanted.is_empty() { Ok(results) } else { Err(wanted) }
    }

    /// A call as a child step; or why there is none, which the model is told.
    fn call(&self, name: String, call: &Value, offers: &Offers<'_>) -> Result<Wanted, (&'static str, String)> {
        let (tool, input) = offers.call(call, &self.scope)?;
        Ok(Wanted {
            name,
            tool: tool.tool,
            idempotent: tool.idempotent,
            timeout_ms: tool.timeout_ms,
            max_tries: MAX_TRIES,
            kept: input.clone(),
            input,
            ask: tool.policy == Policy::Ask,
        })
    }

    /// The output of the step: what the schema asks for, or the text.
    fn output(&self, answer: &Value, turns: i64) -> Result<Value, Bad> {
        let message = &answer["message"];
        if let Some(refusal) = message["refusal"].as_str() {
            return Err(Bad::Refused(format!("the model refused: {refusal}")));
        }
        let Some(schema) = &self.schema else {
            let text = message["content"].as_str().unwrap_or_default();
            return Ok(json!({ "text": text, "finish_reason": answer["finish_reason"], "turns": turns }));
        };
        let Some(value) = message.get("json") else {
            return Err(Bad::Invalid(message["json_error"].as_str().unwrap_or("it is no JSON").to_owned()));
        };
        let compiled = OutputSchema::compile(schema).map_err(Bad::Refused)?;
        compiled.validate(value).map_err(|problems| Bad::Invalid(problems.join("; ")))?;
        match self.plan_problem.as_ref().and_then(|problem| problem(value)) {
            Some(why) => Err(Bad::Invalid(why)),
            None => Ok(value.clone()),
        }
    }
}

enum Bad {
    Refused(String),
    /// The model is told, and asked again.
    Invalid(String),
}

/// Messages so far, turn by turn.
struct History {
    /// System and prompt, which are always kept.
    opening: Vec<Value>,
    turns: Vec<Vec<Value>>,
    /// Bytes that the model's context holds.
    limit_bytes: i64,
    shortened: bool,
}

impl History {
    fn new(input: &Value, context: i64) -> History {
        let system = input["system"].as_str().map(|text| json!({ "role": "system", "content": text }));
        let prompt = match &input["prompt"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let opening = system.into_iter().chain([json!({ "role": "user", "content": prompt })]).collect();
        History { opening, turns: Vec::new(), limit_bytes: context.max(1) * BYTES_PER_TOKEN, shortened: false }
    }

    /// A model's message begins a turn; what follows belongs to it.
    fn add(&mut self, message: Value) {
        match self.turns.last_mut() {
            Some(turn) if message["role"] != "assistant" => turn.push(message),
            _ => self.turns.push(vec![message]),
        }
    }

    /// Before the first turn it belongs to the opening, which is always kept.
    fn hear(&mut self, text: &str) {
        let message = json!({ "role": "user", "content": text });
        self.turns.last_mut().unwrap_or(&mut self.opening).push(message);
    }

    fn extend(&mut self, messages: Vec<Value>) {
        messages.into_iter().for_each(|message| self.add(message));
    }

    fn messages(&self) -> Vec<Value> {
        self.opening.iter().chain(self.turns.iter().flatten()).cloned().collect()
    }

    /// What the next turn adds to those before it.
    fn added(&self) -> Vec<Value> {
        match self.turns.last() {
            Some(turn) => turn[1..].to_vec(),
            None => self.opening.clone(),
        }
    }

    fn bytes(messages: &[Value]) -> i64 {
        messages.iter().map(|message| message.to_string().len() as i64).sum()
    }

    fn is_full(&self) -> bool {
        Self::bytes(&self.messages()) * 100 > self.limit_bytes * FULL_PERCENT
    }

    /// Keeps the last whole turns that fit. Once: a dialogue that fills up again is over.
    fn shorten(&mut self) -> bool {
        if self.shortened || self.turns.len() < 2 {
            return false;
        }
        self.shortened = true;
        let room = self.limit_bytes * KEPT_PERCENT / 100 - Self::bytes(&self.opening);
        let (mut kept, mut used) = (0, 0);
        for turn in self.turns.iter().rev() {
            used += Self::bytes(turn);
            if kept > 0 && used > room {
                break;
            }
            kept += 1;
        }
        let dropped = self.turns.len() - kept;
        self.turns.drain(..dropped);
        let note = format!("({dropped} earlier turns of this dialogue were left out, because it became too long.)");
        self.opening.push(json!({ "role": "user", "content": note }));
        dropped > 0
    }
}

/// The model's own message, as the next turn shows it to the model. Ids are ours: those of servers are not unique.
fn assistant(message: &Value, calls: &[Value], turn: i64) -> Value {
    let mut said = json!({ "role": "assistant", "content": message["content"] });
    if !calls.is_empty() {
        let calls = calls.iter().enumerate().map(|(at, call)| {
            let arguments = match &call["arguments"] {
                Value::Null => call["unparseable"].as_str().unwrap_or_default().to_owned(),
                given => given.to_string(),
            };
            json!({ "id": call_id(turn, at), "type": "function", "function": { "name": call["name"], "arguments": arguments } })
        });
        said["tool_calls"] = calls.collect();
    }
    said
}

fn call_id(turn: i64, at: usize) -> String {
    format!("t{turn}c{}", at + 1)
}

fn error_text(code: &str, message: &str) -> String {
    json!({ "error": { "code": code, "message": message } }).to_string()
}

fn shown(text: String) -> String {
    if text.len() <= MAX_RESULT_BYTES {
        return text;
    }
    let end = (0..=MAX_RESULT_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}… ({} bytes in all)", &text[..end], text.len())
}

fn failed(class: ErrorClass, code: &str, message: String) -> Next {
    Next::Failed(ToolFailure::new(class, Effect::Done, code, message))
}

#[cfg(test)]
mod tests;
