//! What a model may call: the tools of the file, and each tool that an MCP server of the file has listed. Names, arguments and inputs of
//! calls are judged here; nothing is called.

use model::plan::{Policy, ToolPlan};
use model::step::ToolKind;
use plan::{OutputSchema, Scope, Template};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Names of tools that servers of models take: letters, digits, `_` and `-`.
const LONGEST_NAME: usize = 64;
/// Of a name that would be too long, or that another tool has.
const HASH_DIGITS: usize = 8;

/// Why there is no call, with a code; the model is told.
type NoCall = (&'static str, String);

/// Tools by the names under which they are offered.
pub(super) struct Offers<'d>(BTreeMap<String, Offer<'d>>);

struct Offer<'d> {
    plan: &'d ToolPlan,
    /// One of the tools of a server.
    listed: Option<Listed<'d>>,
}

struct Listed<'d> {
    name: &'d str,
    description: &'d str,
    schema: &'d Value,
}

/// An MCP server that stands for all its tools.
pub(super) fn is_server(tool: &ToolPlan) -> bool {
    tool.tool == ToolKind::Mcp && tool.input.get("tool").is_none()
}

/// The input with its expressions evaluated.
pub(super) fn render(tool: &ToolPlan, scope: &Scope) -> Result<Value, NoCall> {
    let template = Template::for_tool(tool.tool, &tool.input).map_err(|bad| ("invalid_input", bad.error.why))?;
    template.render(scope).map_err(|error| ("invalid_arguments", error.to_string()))
}

impl<'d> Offers<'d> {
    /// `lists`: what each server has answered.
    pub(super) fn new(tools: &'d BTreeMap<String, ToolPlan>, lists: &BTreeMap<&str, &'d Value>) -> Offers<'d> {
        let plain = tools.iter().filter(|(_, tool)| !is_server(tool));
        let mut offers: BTreeMap<String, Offer<'d>> =
            plain.map(|(name, plan)| (name.clone(), Offer { plan, listed: None })).collect();
        for (server, list) in lists {
            let Some(plan) = tools.get(*server) else { continue };
            for tool in list["tools"].as_array().into_iter().flatten() {
                let name = tool["name"].as_str().unwrap_or_default();
                let again = |offer: &Offer<'d>| {
                    std::ptr::eq(offer.plan, plan) && offer.listed.as_ref().is_some_and(|listed| listed.name == name)
                };
                if offers.values().any(again) {
                    continue;
                }
                let description = tool["description"].as_str().unwrap_or_default();
                let listed = Some(Listed { name, description, schema: &tool["input"] });
                offers.insert(offered_name(server, name, &offers), Offer { plan, listed });
            }
        }
        Offers(offers)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// As the model is told of them.
    pub(super) fn described(&self) -> Value {
        self.0.iter().map(|(name, offer)| described(name, offer)).collect()
    }

    /// Which tool is called, and with what.
    pub(super) fn call(&self, call: &Value, scope: &Scope) -> Result<(&'d ToolPlan, Value), NoCall> {
        let asked = call["name"].as_str().unwrap_or_default();
        let Some(offer) = self.0.get(asked) else {
            let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            return Err(("unknown_tool", format!("there is no tool `{asked}`: there are {}", known.join(", "))));
        };
        if offer.plan.policy == Policy::Deny {
            return Err(("denied", format!("`{asked}` may not be called")));
        }
        let Value::Object(given) = &call["arguments"] else {
            return Err(("denied", "the arguments are no JSON object".into()));
        };
        let input = match &offer.listed {
            Some(listed) => input_of_listed(offer.plan, listed, given, scope)?,
            None => {
                let args = arguments(offer.plan, given).map_err(|why| ("invalid_arguments", why))?;
                render(offer.plan, &scope.clone().with("args", Value::Object(args)))?
            }
        };
        Ok((offer.plan, input))
    }
}

/// The server's own input with the tool and what the model gives it. Nothing of that is an expression.
fn input_of_listed(
    plan: &ToolPlan,
    listed: &Listed<'_>,
    given: &Map<String, Value>,
    scope: &Scope,
) -> Result<Value, NoCall> {
    let arguments = Value::Object(given.clone());
    // A schema that cannot be used is not used: the server judges its arguments in any case.
    if let Ok(schema) = OutputSchema::compile(listed.schema) {
        schema.validate(&arguments).map_err(|problems| ("invalid_arguments", problems.join("; ")))?;
    }
    let mut input = render(plan, scope)?;
    if let Some(fields) = input.as_object_mut() {
        fields.remove("tools");
        fields.insert("tool".to_owned(), json!(listed.name));
        fields.insert("arguments".to_owned(), arguments);
    }
    Ok(input)
}

/// `files__read`. A name that a server of models would not take, or that another tool has, ends with a hash.
fn offered_name(server: &str, tool: &str, taken: &BTreeMap<String, Offer<'_>>) -> String {
    let whole = format!("{server}__{tool}");
    let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    if whole.len() <= LONGEST_NAME && whole.chars().all(fits) && !taken.contains_key(&whole) {
        return whole;
    }
    let hash = plan::content(ToolKind::Mcp, &json!([server, tool]));
    let room = LONGEST_NAME - HASH_DIGITS - 1;
    let clean: String = whole.chars().take(room).map(|letter| if fits(letter) { letter } else { '_' }).collect();
    format!("{clean}_{}", &hash[..HASH_DIGITS])
}

fn described(name: &str, offer: &Offer<'_>) -> Value {
    let tool = offer.plan;
    let Some(listed) = &offer.listed else {
        let required: Vec<&String> =
            tool.args.iter().filter(|(_, schema)| schema.get("default").is_none()).map(|(name, _)| name).collect();
        let parameters = json!({ "type": "object", "properties": tool.args, "required": required });
        return json!({ "name": name, "description": tool.description, "parameters": parameters });
    };
    let mut parameters = listed.schema.as_object().cloned().unwrap_or_default();
    parameters.entry("type").or_insert_with(|| json!("object"));
    parameters.entry("properties").or_insert_with(|| json!({}));
    json!({ "name": name, "description": listed.description, "parameters": parameters })
}

/// The arguments with their defaults, if they match their schemas.
fn arguments(tool: &ToolPlan, given: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    if let Some(unknown) = given.keys().find(|name| !tool.args.contains_key(*name)) {
        return Err(format!("there is no argument `{unknown}`"));
    }
    let mut args = Map::new();
    for (name, schema) in &tool.args {
        let value = match (given.get(name), schema.get("default")) {
            (Some(value), _) | (None, Some(value)) => value.clone(),
            (None, None) => return Err(format!("the argument `{name}` is missing")),
        };
        let compiled = OutputSchema::compile(schema)?;
        compiled.validate(&value).map_err(|problems| format!("{name}: {}", problems.join("; ")))?;
        args.insert(name.clone(), value);
    }
    Ok(args)
}
