//! Steps and tools: what belongs to which tool, who may call what, and the expressions in their inputs.

use super::{Checker, has, names_secret, template, tool_names, whole};
use crate::document::{Call, Fields, Step, Tool};
use crate::fields::{STEP, TOOL};
use crate::problem::At;
use crate::reference::View;
use crate::shape::{Slot, duration, each_template};
use crate::template::has_expression;
use crate::wait::parse_time;
use model::spec;
use model::step::ToolKind;
use serde_json::Value;

impl Checker<'_> {
    /// The file's `tools:`.
    pub(super) fn tools(&mut self, value: &Value) {
        let at = At::Root.key("tools");
        let fields = Fields::of(value);
        let values = fields.get("tools").and_then(Value::as_object);
        for (name, value) in values.into_iter().flatten() {
            if self.problems.full() {
                return;
            }
            if let Some(tool) = self.file.tools.get(name) {
                self.tool(tool, value, at.key(name));
            }
        }
    }

    fn tool(&mut self, tool: &Tool, value: &Value, at: At<'_>) {
        let view = View { args: Some(&tool.args), ..View::new(&self.file.inputs) };
        each_template(value, TOOL.fields, at, &mut |value, slot, at| {
            template(value, slot, &view, at, self.problems);
        });
        for (name, schema) in &tool.args {
            self.schema(schema, at.key("args").key(name));
        }
        self.call(&tool.call, value, at);
        if tool.call.tool == ToolKind::Mcp {
            self.mcp_tool(value, at);
        }
    }

    /// One tool of a server with arguments of the file's, or, without `tool`, the tools of a server as it describes them.
    fn mcp_tool(&mut self, value: &Value, at: At<'_>) {
        let inner = Fields::of(value).get("mcp").unwrap_or(&Value::Null);
        let place = at.key("mcp");
        if has(inner, "tool") {
            if has(inner, "tools") {
                self.problems.hint(
                    place.key("tools"),
                    "`tool` names the one that may be called",
                    "write one of the two",
                );
            }
            return;
        }
        let hint = "name one tool with `tool`, or leave it out: the server says what its tools take";
        if has(value, "args") {
            self.problems.hint(at.key("args"), "are the arguments of one tool", hint);
        }
        if has(inner, "arguments") {
            self.problems.hint(place.key("arguments"), "are what one tool is given", hint);
        }
        if has(value, "description") {
            self.warnings.add(at.key("description"), "has no effect: the server describes its tools");
        }
    }

    /// Returns the positions of the tasks whose outputs it reads.
    pub(super) fn step(&mut self, step: &Step, value: &Value, view: &View<'_>, at: At<'_>) -> Vec<usize> {
        let mut after = Vec::new();
        each_template(value, STEP.fields, at, &mut |value, slot, at| {
            let view = View { output: slot == Slot::Outcome, ..*view };
            after.extend(template(value, slot, &view, at, self.problems));
        });
        if let Some(condition) = &step.condition {
            whole(condition, "${{ steps.NAME.output.ok }}", at.key("if"), self.problems);
        }
        if !step.named && !step.idempotent && step.call.tool.has_effect() {
            let hint = "add `name:`, or `idempotent: true` if it may run twice";
            self.problems.hint(at, "a step that is not idempotent needs a name: its record is found by it", hint);
        }
        self.call(&step.call, value, at);
        self.of_tool(step, value, at);
        if let Some(schema) = &step.output {
            let place = at.key("llm");
            self.schema(schema, if has(value, "output") { at.key("output") } else { place.key("output") });
        }
        if let (Some(verify), Some(value)) = (&step.verify, Fields::of(value).get("verify")) {
            self.call(verify, value, at.key("verify"));
            if let Some(outcome) = Fields::of(value).get("outcome") {
                let example = "${{ 'done' if output.body.sent else 'not_done' }}";
                whole(outcome, example, at.key("verify").key("outcome"), self.problems);
            }
            if step.idempotent {
                self.warnings.add(at.key("verify"), "has no effect: the step is idempotent and simply runs again");
            }
        }
        self.planned(step, at);
        after
    }

    /// What every call is checked for, in a step, a tool or `verify`.
    fn call(&mut self, call: &Call, value: &Value, at: At<'_>) {
        let name = call.tool.as_str();
        let inner = Fields::of(value).get(name).unwrap_or(&Value::Null);
        if has(value, "timeout") && has(inner, "timeout") {
            self.problems.add(at.key("timeout"), format!("is also said in `{name}`: say it once"));
        }
        if has(value, "env") && !call.needs_machine() {
            self.problems.add(
                at.key("env"),
                format!("`{name}` starts no process: only command, exec and mcp with `command` take variables"),
            );
        }
        if call.tool == ToolKind::Http
            && matches!(call.input["method"].as_str(), Some("GET" | "HEAD"))
            && (has(inner, "json") || has(inner, "body"))
        {
            self.problems.add(at.key(name).key("method"), "GET and HEAD have no body");
        }
        if let Some(argv) = call.input["argv"].as_array()
            && argv.first().and_then(Value::as_str).is_some_and(|program| program.trim().is_empty())
        {
            self.problems.add(at.key(name), "the program's name is empty");
        }
    }

    /// What belongs to one kind of tool only.
    fn of_tool(&mut self, step: &Step, value: &Value, at: At<'_>) {
        let tool = step.call.tool;
        let inner = Fields::of(value).get(tool.as_str()).unwrap_or(&Value::Null);
        let place = at.key(tool.as_str());
        if step.files.is_some() && tool != ToolKind::Command {
            self.problems.add(at.key("files"), "only a command leaves files");
        }
        for (index, glob) in step.files.iter().flatten().enumerate().filter(|(_, glob)| !spec::is_inside(glob)) {
            self.problems.add(at.key("files").index(index), format!("`{glob}` must stay below the run's folder"));
        }
        match tool {
            ToolKind::Llm => {
                if has(value, "output") && has(inner, "output") {
                    self.problems.add(at.key("output"), "is also said in `llm`: say it once");
                }
                let tools_at = place.key("tools");
                for (index, name) in Fields::of(inner).texts("tools").iter().enumerate() {
                    if !self.file.tools.contains_key(name) {
                        self.problems.hint(
                            tools_at.index(index),
                            format!("no tool is called `{name}`"),
                            tool_names(self.file, name),
                        );
                    }
                }
            }
            ToolKind::Mcp if has(inner, "tools") => {
                self.problems.hint(place.key("tools"), "a step calls one tool", "write `tool: NAME`");
            }
            ToolKind::Mcp if !has(inner, "tool") => {
                self.problems.add(place, "a step needs `tool`, the server's tool that it calls")
            }
            ToolKind::Call => {
                let inputs = Fields::of(inner).get("inputs");
                let is_list = |value: &Value| value.is_array() || value.as_str().is_some_and(has_expression);
                if !inputs.is_none_or(is_list) {
                    self.problems.hint(place.key("inputs"), "must be a list", "write [VALUE, …]");
                }
            }
            ToolKind::Approval => {
                if let Some(schema) = Fields::of(inner).get("answer") {
                    self.schema(schema, place.key("answer"));
                }
            }
            ToolKind::Wait => self.wait(&step.call.input, inner.is_object(), place),
            _ => {}
        }
    }

    fn wait(&mut self, input: &Value, in_full: bool, at: At<'_>) {
        let literal = |name: &str| input[name].as_str().filter(|text| !has_expression(text));
        let place = |name| if in_full { At::Key(&at, name) } else { at };
        if let Some(Err(why)) = literal("for").map(duration) {
            self.problems.quantity(place("for"), &why);
        }
        if let Some(text) = literal("until")
            && parse_time(text).is_none()
        {
            self.problems.hint(place("until"), format!("`{text}` is not a time"), "write it like 2030-01-31T08:00:00Z");
        }
    }

    fn schema(&mut self, schema: &Value, at: At<'_>) {
        if let Err(why) = self.schemas.check(schema) {
            self.problems.add(at, why);
        }
    }

    /// A planner's plan uses the file's tools; other tools and secrets only if the file says so.
    fn planned(&mut self, step: &Step, at: At<'_>) {
        let Some(planner) = self.planner else { return };
        let calls = std::iter::once(&step.call).chain(&step.verify);
        for call in calls {
            let always = matches!(call.tool, ToolKind::Llm | ToolKind::Approval | ToolKind::Wait);
            if !always && !planner.allow.contains(&call.tool) {
                let hint = format!("add `{}` to the file's `planner.allow`", call.tool);
                self.problems.hint(at, format!("a planner's plan must not use `{}`", call.tool), hint);
            }
            self.planned_secrets(names_secret(&call.input), at);
        }
    }
}
