//! The JSON schema and the check of a document's shape say the same of a document that uses every field, and of each small change to it.

use plan::problem::{At, Problems};
use plan::{OutputSchema, schema, shape_problems};
use serde_json::{Value, json};

fn market() -> Value {
    serde_json::from_str(include_str!("market.json")).unwrap()
}

/// Every place in a value, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, item)| places(item, &format!("{at}/{name}"), found)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found))
        }
        _ => {}
    }
}

/// Documents that differ from the sample in one place.
fn changed(sample: &Value) -> Vec<(String, Value)> {
    let mut at = Vec::new();
    places(sample, "", &mut at);
    let replacements = [
        json!(null),
        json!(7),
        json!(-1),
        json!(true),
        json!("word"),
        json!(""),
        json!("a ${{ inputs.topic }}"),
        json!("5m"),
        json!([]),
        json!(["x"]),
        json!({}),
        json!({ "secret": "NAME" }),
    ];
    let mut all = Vec::new();
    for place in at {
        for replacement in &replacements {
            let mut document = sample.clone();
            *document.pointer_mut(&place).unwrap() = replacement.clone();
            all.push((format!("{place} = {replacement}"), document));
        }
        let mut document = sample.clone();
        if let Some(Value::Object(fields)) = document.pointer_mut(&place) {
            fields.insert("no_such_field".to_owned(), json!(1));
            all.push((format!("{place} with a new field"), document));
        }
        if let Some((outer, name)) = place.rsplit_once('/') {
            let mut document = sample.clone();
            if let Some(Value::Object(fields)) = document.pointer_mut(outer) {
                fields.remove(name);
                all.push((format!("without {place}"), document));
            }
        }
    }
    all
}

#[test]
fn the_schema_and_the_check_agree_on_every_small_change() {
    let compiled = OutputSchema::compile(&schema()).unwrap();
    assert_eq!(compiled.validate(&market()), Ok(()));
    let (mut good, mut bad) = (0, 0);
    for (what, document) in changed(&market()) {
        let by_schema = compiled.validate(&document);
        let mut problems = Problems::default();
        shape_problems(&document, At::Root, &mut problems);
        let by_check = problems.into_list();
        assert_eq!(
            by_schema.is_ok(),
            by_check.is_empty(),
            "{what}: the schema says {by_schema:?}, the check {by_check:?}"
        );
        *(if by_check.is_empty() { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 300 && bad > 300, "the samples are one-sided: {good} good, {bad} bad");
}
