//! The input of one turn, and the request that is made of it in the dialect that the server accepts.

use super::settings::Models;
use crate::tool::ToolCall;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::time::Duration;
use url::Url;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    model: String,
    messages: Vec<Value>,
    /// Tools that the model may call: `{name, description?, parameters?}`.
    #[serde(default)]
    tools: Vec<OfferedTool>,
    #[serde(default)]
    tool_choice: Option<Value>,
    /// JSON schema of the answer.
    #[serde(default)]
    output: Option<Value>,
    #[serde(default)]
    max_output_tokens: Option<i64>,
    #[serde(default)]
    temperature: Option<f64>,
    #[serde(default)]
    top_p: Option<f64>,
    #[serde(default)]
    seed: Option<i64>,
    #[serde(default)]
    stop: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfferedTool {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<Value>,
}

pub struct Turn {
    pub url: Url,
    /// As the server names it.
    pub model: String,
    /// As the price table names it.
    pub price_name: String,
    pub api_key: Option<String>,
    pub first_token_within: Duration,
    pub silent_for: Duration,
    messages: Vec<Value>,
    schema: Option<Value>,
    max_output_tokens: i64,
    /// The fields that are the same in every dialect.
    fields: Map<String, Value>,
}

/// Which of the optional fields a server accepts. It begins with what OpenAI documents for all models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dialect {
    no_usage_in_streams: bool,
    no_json_schema: bool,
    no_json_mode: bool,
    completion_tokens: bool,
}

pub fn read(call: &ToolCall, models: &Models) -> Result<Turn, String> {
    let input: Input = serde_json::from_value(call.input.clone()).map_err(|error| error.to_string())?;
    if input.messages.is_empty() || input.messages.iter().any(|message| !message.is_object()) {
        return Err("messages: needs at least one, each an object with role and content".to_owned());
    }
    let found = models.find(&input.model)?;
    let url = format!("{}/chat/completions", found.settings.base_url.trim_end_matches('/'));
    let url = Url::parse(&url).map_err(|error| format!("llm.{}.base_url: {error}", found.name))?;
    let max_output_tokens = input.max_output_tokens.unwrap_or_else(|| found.limits.default_output_tokens());
    if max_output_tokens <= 0 {
        return Err("max_output_tokens: must be positive".to_owned());
    }
    let api_key = match &found.settings.api_key {
        Some(name) => {
            Some(call.secrets.get(name).ok_or_else(|| format!("there is no secret {name}"))?.trim().to_owned())
        }
        None => found.settings.key_here.clone(),
    };
    Ok(Turn {
        url,
        model: found.model.to_owned(),
        price_name: format!("{}/{}", found.name, found.model),
        api_key,
        first_token_within: Duration::from_millis(found.settings.first_token_within_ms),
        silent_for: Duration::from_millis(found.settings.silent_for_ms),
        max_output_tokens,
        fields: fields(&input),
        messages: input.messages,
        schema: input.output,
    })
}

fn fields(input: &Input) -> Map<String, Value> {
    let mut fields = Map::new();
    let optional = [
        ("temperature", input.temperature.map(Value::from)),
        ("top_p", input.top_p.map(Value::from)),
        ("seed", input.seed.map(Value::from)),
        ("stop", input.stop.clone()),
    ];
    fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    if !input.tools.is_empty() {
        let tools = input.tools.iter().map(|tool| {
            let parameters = tool.parameters.clone().unwrap_or_else(|| json!({"type": "object", "properties": {}}));
            let mut function = json!({"name": tool.name, "parameters": parameters});
            if let Some(description) = &tool.description {
                function["description"] = Value::String(description.clone());
            }
            json!({"type": "function", "function": function})
        });
        fields.insert("tools".to_owned(), tools.collect());
        if let Some(choice) = &input.tool_choice {
            fields.insert("tool_choice".to_owned(), choice.clone());
        }
    }
    fields
}

impl Turn {
    pub fn wants_json(&self) -> bool {
        self.schema.is_some()
    }

    pub fn body(&self, dialect: Dialect) -> String {
        let mut body = self.fields.clone();
        let mut messages = self.messages.clone();
        if let Some(schema) = &self.schema {
            if dialect.no_json_schema {
                // JSON mode knows no schema, and insists that the prompt speaks of JSON.
                let text =
                    format!("Answer with one JSON document and nothing else. It must match this JSON schema: {schema}");
                messages.insert(0, json!({"role": "system", "content": text}));
                if !dialect.no_json_mode {
                    body.insert("response_format".to_owned(), json!({"type": "json_object"}));
                }
            } else {
                let format = json!({"type": "json_schema", "json_schema": {"name": "output", "schema": schema}});
                body.insert("response_format".to_owned(), format);
            }
        }
        let limit = if dialect.completion_tokens { "max_completion_tokens" } else { "max_tokens" };
        body.insert(limit.to_owned(), self.max_output_tokens.into());
        body.insert("model".to_owned(), self.model.clone().into());
        body.insert("messages".to_owned(), Value::Array(messages));
        body.insert("stream".to_owned(), true.into());
        if !dialect.no_usage_in_streams {
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        Value::Object(body).to_string()
    }
}

impl Dialect {
    /// The next dialect to try after a refusal that names one of the optional fields. Each step gives up one more of them, so it ends.
    pub fn without_what_is_refused(self, status: u16, text: &str, wants_json: bool) -> Option<Dialect> {
        if !matches!(status, 400 | 404 | 415 | 422 | 500 | 501) {
            return None;
        }
        let text = text.to_ascii_lowercase();
        if !self.no_usage_in_streams && (text.contains("stream_options") || text.contains("include_usage")) {
            return Some(Dialect { no_usage_in_streams: true, ..self });
        }
        if !self.completion_tokens && text.contains("max_completion_tokens") {
            return Some(Dialect { completion_tokens: true, ..self });
        }
        let about_format = ["response_format", "json_schema", "json_object"].iter().any(|field| text.contains(field));
        match (wants_json && about_format, self.no_json_schema, self.no_json_mode) {
            (true, false, _) => Some(Dialect { no_json_schema: true, ..self }),
            (true, true, false) => Some(Dialect { no_json_mode: true, ..self }),
            _ => None,
        }
    }
}
