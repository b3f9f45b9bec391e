//! Templates over arbitrary texts and values: parsing and rendering never panic, end soon, and stay within their bounds.

use plan::template::scan;
use plan::{MAX_RENDERED_BYTES, Scope, Template, check, references, render};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Fragments that expressions are made of, in any order.
fn fragment() -> impl Strategy<Value = String> {
    let known = [
        "${{",
        "}}",
        "{{",
        "}",
        "{",
        "(",
        ")",
        "[",
        "]",
        "'",
        "\"",
        "\\",
        ".",
        ",",
        ":",
        "|",
        "+",
        "-",
        "/",
        "//",
        "%",
        "==",
        "<",
        "=",
        " in ",
        " not ",
        " is ",
        " and ",
        " if ",
        " else ",
        "inputs",
        "inputs.text",
        "inputs.list",
        "inputs.n",
        "steps.x.output",
        "item",
        "none",
        "true",
        "0",
        "1",
        "-1",
        "9.5",
        "tojson",
        "join",
        "split('')",
        "replace('', inputs.text)",
        "sort",
        "map(attribute='x')",
        "sum",
        "default(1)",
        "reverse",
        "unique",
        "items",
        "list",
        "string",
        "round(3)",
        "int",
        "defined",
        "string",
        "startingwith 'a'",
        "[0]",
        "[::-1]",
        "[-1]",
        "'a'",
        "ü",
        "\n",
        "$",
        "*",
        "~",
        "range(9)",
    ];
    prop_oneof![8 => proptest::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => ".{0,4}"]
}

fn scope() -> Scope {
    Scope::new()
        .with(
            "inputs",
            json!({ "text": "a\"b\\c,d".repeat(50), "list": [{ "x": 1 }, { "x": null }, 3, "q"], "n": i64::MAX }),
        )
        .with("steps", json!({ "x": { "output": { "deep": [[[{ "a": -0.0 }]]], "big": u64::MAX } } }))
        .with("item", json!(1.5))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_refused_or_rendered_within_bounds(parts in proptest::collection::vec(fragment(), 0..24), wrap in any::<bool>()) {
        let text = if wrap { format!("${{{{ {} }}}}", parts.concat()) } else { parts.concat() };
        if let Ok(template) = Template::parse(&json!({ "a": [&text] })) {
            let _ = references(&template);
            if let Ok(value) = render(&template, &scope()) {
                prop_assert!(value.to_string().len() <= 8 * MAX_RENDERED_BYTES);
                prop_assert_eq!(render(&template, &scope()), Ok(value), "the same value each time");
            }
        }
    }

    #[test]
    fn a_text_without_an_expression_stays_as_it_is(text in "([^$]|\\$[^{]){0,40}") {
        prop_assume!(!text.contains("${{")); // as `$${{` may
        let value = json!({ "k": &text });
        prop_assert_eq!(Template::parse(&value).unwrap().render(&Scope::new()).unwrap(), value);
    }

    #[test]
    fn a_text_is_cut_only_at_expressions(before in "[^$]{0,9}", between in "[^$]{0,9}") {
        let text = format!("{before}${{{{ inputs.n }}}}{between}${{{{ 'x}}}}' }}}}");
        let rendered = Template::parse(&json!(text)).unwrap().render(&scope()).unwrap();
        prop_assert_eq!(rendered, json!(format!("{before}{}{between}x}}}}", i64::MAX)));
    }

    #[test]
    fn any_value_is_a_document_or_a_list_of_problems(value in value()) {
        if let Err(problems) = check(&value) {
            prop_assert!(!problems.is_empty() && problems.len() <= plan::MAX_PROBLEMS);
        }
        let mut document: Value = serde_json::from_str(include_str!("market.json")).unwrap();
        for place in ["/agents", "/tools", "/planner", "/agents/0/tasks/1", "/agents/0/tasks/1/steps/0", "/agents/0/tasks/0/steps/0/http", "/output"] {
            *document.pointer_mut(place).unwrap() = value.clone();
            let _ = check(&document);
            document = serde_json::from_str(include_str!("market.json")).unwrap();
        }
    }
}

fn value() -> impl Strategy<Value = Value> {
    let words = [
        "type",
        "agents",
        "tasks",
        "steps",
        "name",
        "http",
        "llm",
        "url",
        "command",
        "if",
        "for_each",
        "${{ item }}",
        "${{",
        "env",
        "secret",
        "5m",
    ];
    let word = proptest::sample::select(words.to_vec()).prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.clone().prop_map(Value::from)
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((word.clone(), inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

#[test]
fn only_dollar_and_two_braces_are_special() {
    for (text, expected) in [
        ("{{ inputs.n }} {% if %} $x ${y} $${{ 1 }}", json!("{{ inputs.n }} {% if %} $x ${y} $1")),
        ("${{ 1 }}", json!(1)),
        (" ${{ 1 }}", json!(" 1")),
        ("${{ {'a': {'b': 1}} }}", json!({ "a": { "b": 1 } })),
        ("${{ inputs.list[0] }}!", json!("{\"x\":1}!")),
        ("${{ none }}", json!(null)),
        ("}}", json!("}}")),
    ] {
        assert_eq!(Template::parse(&json!(text)).unwrap().render(&scope()).unwrap(), expected, "{text}");
    }
    assert!(scan("${{ 'a }}").is_err() && scan("${{").is_err());
}

#[test]
fn a_result_that_is_too_large_is_an_error() {
    let scope =
        Scope::new().with("inputs", json!({ "half": "x".repeat(MAX_RENDERED_BYTES / 2), "huge": "x".repeat(3 << 20) }));
    let render = |value: Value| Template::parse(&value).unwrap().render(&scope).map_err(|error| error.to_string());
    assert!(render(json!("${{ inputs.half }}")).is_ok());
    for value in [
        json!("${{ inputs.half }}${{ inputs.half }}!"),
        json!(["${{ inputs.half }}", "${{ inputs.half }}", "!"]),
        json!(["x".repeat(MAX_RENDERED_BYTES), "${{ 1 }}"]),
        json!("${{ [inputs.half, inputs.half, inputs.half] }}"),
    ] {
        assert!(render(value).unwrap_err().contains("larger than 1048576 bytes"));
    }
    assert!(render(json!("${{ inputs.huge|length }}")).unwrap_err().contains("reads more than"));
    assert_eq!(
        render(json!("${{ inputs.nothing }}")).unwrap_err(),
        "${{ inputs.nothing }}: it has no value: something that it names does not exist"
    );
}
