//! JSON schemas that users write: for outputs, answers and arguments. Draft 2020-12; a reference to another document is refused, so nothing
//! is fetched.

use boon::{Compiler, SchemaIndex, Schemas, UrlLoader};
use serde_json::Value;
use std::collections::BTreeSet;

/// Bytes of one schema, about. One that is larger belongs into the program that checks the output.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;
/// Different schemas of one document. Compiling one takes about 0.1 ms.
pub const MAX_SCHEMAS: usize = 1_000;
/// Of the errors of one output, so many are said.
const MAX_SAID: usize = 5;
const HERE: &str = "schema:output";

struct NothingElse;

impl UrlLoader for NothingElse {
    fn load(&self, url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err(format!("`{url}` is another document: only references within the schema are possible").into())
    }
}

/// A compiled schema.
pub struct OutputSchema {
    schemas: Schemas,
    index: SchemaIndex,
}

impl OutputSchema {
    pub fn compile(schema: &Value) -> Result<OutputSchema, String> {
        let mut compiler = Compiler::new();
        compiler.use_loader(Box::new(NothingElse));
        compiler.add_resource(HERE, schema.clone()).map_err(|error| said(&error))?;
        let mut schemas = Schemas::new();
        let index = compiler.compile(HERE, &mut schemas).map_err(|error| said(&error))?;
        Ok(OutputSchema { schemas, index })
    }

    /// What is wrong with a value, in a few sentences.
    pub fn validate(&self, value: &Value) -> Result<(), Vec<String>> {
        let Err(error) = self.schemas.validate(value, self.index) else { return Ok(()) };
        let mut said = Vec::new();
        leaves(&error, &mut said);
        Err(said)
    }
}

fn leaves(error: &boon::ValidationError<'_, '_>, found: &mut Vec<String>) {
    for cause in &error.causes {
        leaves(cause, found);
    }
    if error.causes.is_empty() && found.len() < MAX_SAID {
        let place = error.instance_location.to_string();
        found.push(if place.is_empty() { error.kind.to_string() } else { format!("{place}: {}", error.kind) });
    }
}

fn said(error: &boon::CompileError) -> String {
    let why = match error {
        boon::CompileError::LoadUrlError { src, .. } => src.to_string(),
        boon::CompileError::ValidationError { src, .. } => {
            let mut said = Vec::new();
            leaves(src, &mut said);
            said.join(", ")
        }
        other => other.to_string(),
    };
    format!("not a JSON schema: {}", why.replace(HERE, ""))
}

/// The schemas of a document that were found good. Many steps share few schemas, so each is compiled once.
#[derive(Default)]
pub struct GoodSchemas {
    good: BTreeSet<String>,
}

impl GoodSchemas {
    pub fn check(&mut self, schema: &Value) -> Result<(), String> {
        let text = schema.to_string();
        if self.good.contains(&text) {
            return Ok(());
        }
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(format!("the schema is larger than {MAX_SCHEMA_BYTES} bytes"));
        }
        if self.good.len() >= MAX_SCHEMAS {
            return Err(format!("the document has more than {MAX_SCHEMAS} different schemas"));
        }
        OutputSchema::compile(schema)?;
        self.good.insert(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_output_is_compared_with_its_schema() {
        let schema = json!({ "type": "object", "properties": { "summary": { "$ref": "#/$defs/text" } }, "required": ["summary"], "$defs": { "text": { "type": "string" } } });
        let schema = OutputSchema::compile(&schema).unwrap();
        assert_eq!(schema.validate(&json!({ "summary": "x" })), Ok(()));
        let said = schema.validate(&json!({ "summary": 3 })).unwrap_err();
        assert!(said[0].starts_with("/summary: "), "{said:?}");
        assert!(schema.validate(&json!({})).unwrap_err()[0].contains("summary"));
    }

    #[test]
    fn nothing_is_fetched_and_nonsense_is_refused() {
        for (schema, words) in [
            (json!({ "$ref": "https://schemas.example/x.json" }), "another document"),
            (json!({ "$ref": "file:///etc/passwd" }), "another document"),
            (json!({ "type": "strin" }), "not a JSON schema"),
            (json!({ "properties": 3 }), "not a JSON schema"),
            (json!({ "$ref": "#/$defs/none" }), "not a JSON schema"),
            (json!({ "pattern": "(" }), "not a JSON schema"),
        ] {
            let error = OutputSchema::compile(&schema).err().unwrap_or_else(|| panic!("{schema} is accepted"));
            assert!(error.contains(words), "{schema}: {error}");
        }
        let endless = OutputSchema::compile(&json!({ "$ref": "#" }));
        assert!(
            endless.is_err() || endless.unwrap().validate(&json!(1)).is_err(),
            "a schema that is itself accepts nothing, and ends"
        );
    }
}
