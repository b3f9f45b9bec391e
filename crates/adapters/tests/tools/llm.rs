//! The tool `llm` against servers that speak the chat protocol well, badly, and not at all.

use crate::server::{Act, Server, answer, json as json_answer};
use crate::{Kept, call, embedded, is};
use adapters::tool::llm::{LlmTool, Models};
use adapters::{Tool, ToolAnswer, ToolFailure, ToolUsage};
use model::Effect;
use model::recovery::ErrorClass::{Permanent, RateLimited, Transient, Unknown};
use serde_json::{Value, json};

const KEY: &str = "sk-sesame-open";

fn tool(base_url: &str) -> LlmTool {
    let settings = json!({"default": {
        "base_url": base_url, "api_key": "API_KEY", "models": {"small": {"context": 8000}},
        "first_token_within_ms": 2000, "silent_for_ms": 300,
    }});
    LlmTool::new(embedded(), Models(serde_json::from_value(settings).unwrap()))
}

fn input() -> Value {
    json!({"model": "default", "messages": [{"role": "user", "content": "hello"}]})
}

async fn turn(server: &Server, input: Value) -> (Result<ToolAnswer, ToolFailure>, String) {
    let log = Kept::default();
    let asked = call(input, &[("API_KEY", KEY)]);
    let result = tool(&server.url("/v1/")).call(&asked, &log).await;
    (result, log.text())
}

/// A head, and events until the server closes.
fn stream(text: &str) -> Vec<Act> {
    vec![Act::Say(format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{text}").into_bytes())]
}

fn events(chunks: &[Value]) -> String {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

fn says(text: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]})
}

fn ends(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn used(input: i64, output: i64) -> Value {
    json!({"choices": [], "usage": {"prompt_tokens": input, "completion_tokens": output}})
}

fn fragment(call: Value) -> Value {
    json!({"choices": [{"delta": {"content": null, "tool_calls": [call]}}]})
}

#[tokio::test]
async fn a_turn_is_asked_for_and_its_text_is_logged_as_it_comes() {
    let text = events(&[says("Hel"), says("lo"), ends("stop"), used(9, 2)]) + "data: [DONE]\n\n";
    let server = Server::saying(stream(&text)).await;
    let mut asked = input();
    asked["temperature"] = json!(0.5);
    let (result, log) = turn(&server, asked).await;
    let answer = result.unwrap();
    assert_eq!(answer.output, json!({"message": {"content": "Hello", "tool_calls": []}, "finish_reason": "stop"}));
    let usage = ToolUsage { of: "default/small".to_owned(), input_tokens: 9, output_tokens: 2, estimated: false };
    assert_eq!((answer.usage, log.as_str()), (Some(usage), "Hello"));
    let request = server.received().remove(0);
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/chat/completions"));
    assert_eq!(request.header("authorization"), Some("Bearer sk-sesame-open"));
    assert_eq!(request.header("idempotency-key"), Some("step-key"));
    let expected = json!({
        "model": "small", "messages": [{"role": "user", "content": "hello"}], "stream": true,
        "stream_options": {"include_usage": true}, "max_tokens": 2000, "temperature": 0.5,
    });
    assert_eq!(request.json(), expected);
}

#[tokio::test]
async fn each_way_to_write_the_same_answer_is_understood() {
    let whole = json!({"choices": [{"message": {"content": "Hi", "tool_calls": null}, "finish_reason": "stop"}],
                       "usage": {"prompt_tokens": 3, "completion_tokens": 1}});
    let last = json!({"choices": [{"delta": {"content": null}, "finish_reason": "stop"}]});
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}";
    let chunked = format!("data: {}\n\ndata: {}\n\n{usage}\n\n", says("Hi"), ends("stop"));
    let chunked = format!("{:x}\r\n{chunked}\r\n", chunked.len());
    for (what, acts) in [
        ("no [DONE]", stream(&events(&[says("Hi"), ends("stop"), used(3, 1)]))),
        ("[DONE] and nothing about the end", stream(&(events(&[says("Hi"), used(3, 1)]) + "data: [DONE]\n\n"))),
        (
            "CRLF, comments and no space",
            stream(&format!(
                ": ping\r\n\r\ndata:{}\r\n\r\n: ping\r\n\r\ndata:{last}\r\n\r\n{usage}\r\n\r\n",
                says("Hi")
            )),
        ),
        ("a last event without its empty line", stream(&format!("{}{usage}", events(&[says("Hi"), ends("stop")])))),
        (
            "other fields of events",
            stream(&format!("event: x\nid: 7\nretry: 1\n{}", events(&[says("Hi"), ends("stop"), used(3, 1)]))),
        ),
        ("one document", json_answer(whole.clone())),
        ("one document that is called a stream", stream(&whole.to_string())),
        (
            "usage in every chunk",
            stream(&events(&[
                json!({"choices": [{"delta": {"content": "Hi"}}], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}),
                json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}),
            ])),
        ),
        (
            "the connection breaks after the end",
            vec![
                Act::Say(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunked}").into_bytes()),
                Act::Reset,
            ],
        ),
    ] {
        let server = Server::saying(acts).await;
        let (result, log) = turn(&server, input()).await;
        let answer = result.unwrap_or_else(|failed| panic!("{what}: {failed:?}"));
        assert_eq!(answer.output["message"]["content"], "Hi", "{what}");
        assert_eq!((&answer.output["finish_reason"], log.as_str()), (&json!("stop"), "Hi"), "{what}");
        let usage = answer.usage.unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.estimated), (3, 1, false), "{what}");
    }
}

#[tokio::test]
async fn tool_calls_are_put_together_however_they_are_cut() {
    let two = json!([{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]);
    let whole = json!({"choices": [{"message": {"content": null, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{\"x\": 1}"}},
        {"id": "1", "type": "function", "function": {"name": "b", "arguments": {}}},
    ]}, "finish_reason": "tool_calls"}]});
    let f = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
    let by_index = [
        fragment(json!({"index": 0, "id": "1", "function": f("a", "")})),
        fragment(json!({"index": 1, "id": "2", "function": f("b", "")})),
        fragment(json!({"index": 0, "function": {"arguments": "{\"x\""}})),
        fragment(json!({"index": 0, "function": {"arguments": ": 1}"}})),
        ends("tool_calls"),
    ];
    let no_ids = [
        fragment(json!({"index": 0, "function": f("a", "{\"x\"")})),
        fragment(json!({"index": 0, "function": {"name": null, "arguments": ": 1}"}})),
        fragment(json!({"index": 1, "id": "", "function": f("b", "{}")})),
        ends("stop"),
    ];
    let repeated = [
        fragment(json!({"index": 0, "id": "1", "function": f("a", "{\"x\"")})),
        fragment(json!({"index": 0, "id": "1", "function": f("a", ": 1}")})),
        fragment(json!({"index": 1, "id": "1", "function": f("b", "{}")})),
        ends("tool_calls"),
    ];
    let all_zero = [
        fragment(json!({"index": 0, "id": "1", "function": f("a", "{\"x\": 1}")})),
        fragment(json!({"index": 0, "id": "2", "function": f("b", "{}")})),
        ends("tool_calls"),
    ];
    let no_indexes = [
        fragment(json!({"function": f("a", "{\"x\"")})),
        fragment(json!({"function": {"arguments": ": 1}"}})),
        fragment(json!({"function": f("b", "{}")})),
        ends("stop"),
    ];
    let no_indexes_with_ids = [
        fragment(json!({"id": "1", "function": f("a", "{\"x\"")})),
        fragment(json!({"id": "2", "function": f("b", "{}")})),
        fragment(json!({"id": "1", "function": {"arguments": ": 1}"}})),
        ends("tool_calls"),
    ];
    for (what, acts) in [
        ("by index", stream(&events(&by_index))),
        ("without ids", stream(&events(&no_ids))),
        ("ids and names repeated", stream(&events(&repeated))),
        ("index 0 for all", stream(&events(&all_zero))),
        ("without indexes", stream(&events(&no_indexes))),
        ("without indexes, by id", stream(&events(&no_indexes_with_ids))),
        ("one document", json_answer(whole)),
    ] {
        let server = Server::saying(acts).await;
        let output = turn(&server, input()).await.0.unwrap_or_else(|failed| panic!("{what}: {failed:?}")).output;
        assert_eq!(output["message"]["tool_calls"], two, "{what}");
        assert_eq!(
            (&output["finish_reason"], &output["message"]["content"]),
            (&json!("tool_calls"), &Value::Null),
            "{what}"
        );
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_marked_and_never_guessed() {
    for text in ["{\"x\": ", "not json", "[1]", "7"] {
        let chunk = fragment(json!({"index": 0, "id": "1", "function": {"name": "a", "arguments": text}}));
        let server = Server::saying(stream(&events(&[chunk, ends("length")]))).await;
        let output = turn(&server, input()).await.0.unwrap().output;
        assert_eq!(output["message"]["tool_calls"], json!([{"name": "a", "arguments": null, "unparseable": text}]));
        assert_eq!(output["finish_reason"], "length");
    }
}

#[tokio::test]
async fn tools_and_a_schema_are_offered_and_the_json_is_read() {
    let fenced = "```json\n{\"a\": 1}\n```";
    let server = Server::saying(stream(&events(&[says(fenced), ends("stop")]))).await;
    let mut asked = input();
    asked["tools"] = json!([{"name": "search", "description": "d", "parameters": {"type": "object"}}]);
    asked["tool_choice"] = json!("auto");
    asked["output"] = json!({"type": "object"});
    asked["max_output_tokens"] = json!(77);
    let output = turn(&server, asked).await.0.unwrap().output;
    assert_eq!(output["message"]["json"], json!({"a": 1}));
    let sent = server.received()[0].json();
    let function = json!({"name": "search", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(sent["tools"], json!([{"type": "function", "function": function}]));
    assert_eq!((&sent["tool_choice"], &sent["max_tokens"]), (&json!("auto"), &json!(77)));
    let schema = json!({"name": "output", "schema": {"type": "object"}});
    assert_eq!(sent["response_format"], json!({"type": "json_schema", "json_schema": schema}));
}

#[tokio::test]
async fn json_that_was_cut_is_an_answer_that_says_so() {
    let server = Server::saying(stream(&events(&[says("{\"a\": "), ends("length"), used(5, 4)]))).await;
    let mut asked = input();
    asked["output"] = json!({"type": "object"});
    let answer = turn(&server, asked).await.0.unwrap();
    let message = &answer.output["message"];
    assert!(
        message.get("json").is_none() && message["json_error"].as_str().unwrap().contains("it ended with `length`")
    );
    assert_eq!(answer.usage.unwrap().output_tokens, 4);
}

#[tokio::test]
async fn a_server_that_refuses_an_optional_field_is_asked_without_it_and_remembered() {
    let server = Server::start(|request, _| {
        let sent = request.json();
        let refuse = |what: &str| answer("400 Bad Request", &[], json!({"error": {"message": what}}).to_string());
        if sent.get("stream_options").is_some() {
            return refuse("Unrecognized request argument supplied: stream_options");
        }
        if sent.get("max_tokens").is_some() {
            return refuse("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.");
        }
        match sent["response_format"]["type"].as_str() {
            Some("json_schema") => refuse("response_format json_schema is not supported"),
            Some(_) => refuse("response_format is not supported"),
            None => stream(&events(&[says("{\"a\": 1}"), ends("stop")])),
        }
    })
    .await;
    let mut asked = input();
    asked["output"] = json!({"type": "object"});
    let tool = tool(&server.url("/v1"));
    let asked = call(asked, &[("API_KEY", KEY)]);
    for requests in [5, 6] {
        let answer = tool.call(&asked, &Kept::default()).await.unwrap();
        assert_eq!(answer.output["message"]["json"], json!({"a": 1}));
        assert_eq!(server.received().len(), requests, "the second turn is asked in the right way at once");
    }
    let sent = server.received().remove(5).json();
    assert_eq!(sent["max_completion_tokens"], 2000);
    assert!(sent["messages"][0]["content"].as_str().unwrap().contains("JSON schema"), "the schema is in the prompt");
}

#[tokio::test]
async fn each_failure_has_a_class_an_effect_and_a_code() {
    let error =
        |status: &str, error: Value| answer(status, &[("retry-after", "2")], json!({"error": error}).to_string());
    let in_stream = |error: Value| stream(&events(&[says("Hel"), json!({"error": error})]));
    let html = answer("200 OK", &[("content-type", "text/html")], "<html>Welcome</html>");
    let late = |mut acts: Vec<Act>| {
        acts.push(Act::Hang);
        acts
    };
    for (what, acts, class, effect, code) in [
        ("429", error("429 Slow", json!({"message": "slow down"})), RateLimited, Effect::None, "rate_limited"),
        ("quota", error("429 Slow", json!({"code": "insufficient_quota"})), Permanent, Effect::None, "quota"),
        ("529", error("529 Overloaded", json!({"type": "overloaded_error"})), RateLimited, Effect::None, "overloaded"),
        ("503 overloaded", error("503 Busy", json!("overloaded")), RateLimited, Effect::None, "overloaded"),
        ("503", answer("503 Busy", &[], "<html>"), Transient, Effect::Perhaps, "http_status"),
        ("500", answer("500 Oops", &[], "<html>"), Unknown, Effect::Perhaps, "http_status"),
        ("401", error("401 No", json!({"message": "bad key"})), Permanent, Effect::Done, "http_status"),
        (
            "context",
            error("400 Bad", json!({"code": "context_length_exceeded"})),
            Permanent,
            Effect::Done,
            "context_length",
        ),
        (
            "context by its text",
            error("400 Bad", json!({"message": "This model's maximum context length is 8192 tokens"})),
            Permanent,
            Effect::Done,
            "context_length",
        ),
        (
            "context in the stream",
            in_stream(json!({"message": "prompt is too long"})),
            Permanent,
            Effect::Done,
            "context_length",
        ),
        ("error in the stream", in_stream(json!({"message": "engine died"})), Unknown, Effect::Perhaps, "in_stream"),
        (
            "429 in the stream",
            in_stream(json!({"code": 429, "message": "slow"})),
            RateLimited,
            Effect::Perhaps,
            "rate_limited",
        ),
        (
            "overload in the stream",
            in_stream(json!({"type": "overloaded_error"})),
            RateLimited,
            Effect::Perhaps,
            "overloaded",
        ),
        ("html", html, Permanent, Effect::Done, "not_a_model"),
        ("an empty stream", stream(""), Transient, Effect::Perhaps, "cut"),
        ("an empty document", json_answer(json!({})), Permanent, Effect::Done, "not_a_model"),
        ("garbage", stream("data: {oops\n\n"), Permanent, Effect::Done, "not_a_model"),
        (
            "a redirect",
            crate::server::redirect("302 Found", "http://elsewhere/"),
            Permanent,
            Effect::Done,
            "http_status",
        ),
        ("a cut stream", stream(&events(&[says("Hel")])), Transient, Effect::Perhaps, "cut"),
        ("a cut document", stream("{\"choices\": [{\"mess"), Transient, Effect::Perhaps, "cut"),
        ("silence between tokens", late(stream(&events(&[says("Hel")]))), Transient, Effect::Perhaps, "timeout"),
        ("silence from the start", vec![Act::Hang], Transient, Effect::Perhaps, "timeout"),
        ("a closed connection", vec![], Transient, Effect::Perhaps, "cut"),
    ] {
        let server = Server::saying(acts).await;
        let (result, log) = turn(&server, input()).await;
        let failed = result.map_err(Box::new).expect_err(what);
        let found = (failed.failure.class, failed.failure.effect, failed.failure.error.code.as_str());
        assert_eq!(found, (class, effect, code), "{what}: {}", failed.failure.error.message);
        assert_eq!(server.received().len(), 1, "{what}: asked once");
        if log == "Hel" {
            let usage = failed.usage.expect(what);
            assert!(usage.estimated && usage.input_tokens > 10 && usage.output_tokens == 1, "{what}: {usage:?}");
        }
        if what == "429" {
            assert_eq!(failed.failure.retry_after_ms, Some(2_000));
        }
    }
}

#[tokio::test]
async fn what_the_server_does_not_count_is_estimated_and_marked() {
    let thinking = json!({"choices": [{"delta": {"reasoning_content": "0123456789abcdef"}}]});
    let server = Server::saying(stream(&events(&[thinking, says("12345678"), ends("stop")]))).await;
    let answer = turn(&server, input()).await.0.unwrap();
    let asked = server.received()[0].body.len() as i64;
    let usage = answer.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.estimated), ((asked + 3) / 4, 6, true));
    assert_eq!(answer.output["message"]["content"], "12345678", "thoughts are paid and not part of the answer");
}

#[tokio::test]
async fn the_key_appears_neither_in_the_log_nor_in_errors() {
    let halves = [says("key sk-ses"), says("ame-open!"), ends("stop")];
    let server = Server::saying(stream(&events(&halves))).await;
    let (result, log) = turn(&server, input()).await;
    assert_eq!((result.unwrap().output["message"]["content"].as_str(), log.as_str()), (Some("key ***!"), "key ***!"));
    let server = Server::saying(answer("401 No", &[], format!("bad key {KEY}"))).await;
    assert_eq!(turn(&server, input()).await.0.unwrap_err().failure.error.message, "HTTP 401: bad key ***");
}

#[tokio::test]
async fn a_turn_that_cannot_be_asked_for_had_no_effect() {
    let server = Server::saying(vec![]).await;
    for change in [
        json!({"model": "unknown"}),
        json!({"messages": []}),
        json!({"messages": ["text"]}),
        json!({"max_output_tokens": 0}),
        json!({"bogus": 1}),
    ] {
        let mut asked = input();
        asked.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let failed = turn(&server, asked).await.0.unwrap_err();
        is(&failed, Permanent, Effect::None, "invalid_input");
    }
    let no_key = tool(&server.url("/v1")).call(&call(input(), &[]), &Kept::default()).await.unwrap_err();
    is(&no_key, Permanent, Effect::None, "invalid_input");
    assert_eq!(server.received().len(), 0);
    let failed = tool("http://169.254.169.254/v1").call(&call(input(), &[("API_KEY", KEY)]), &Kept::default()).await;
    is(&failed.unwrap_err(), Permanent, Effect::None, "address_refused");
}
