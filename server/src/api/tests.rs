mod clients;
mod connections;
mod page;

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use hyper::body::Body as _;
use serde_json::json;
use tower::ServiceExt;

use super::*;
use crate::grammar::FormLimits;
use crate::schedule::Options;
use crate::schedule::toy::{Draft, Toy};
use crate::worker;

mod bounds;

const VOCAB: usize = 512;
/// Tokens at which the toy fails, and at which it panics.
const FAILING: u32 = 500;
const PANICKING: u32 = 501;

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3"))
}

fn toy() -> Toy {
    Toy::sized(400, 0, (VOCAB, 128))
}

/// An engine that takes `pause` milliseconds for a step.
fn slow(pause: u64) -> Toy {
    let mut toy = toy();
    toy.pause = Duration::from_millis(pause);
    toy
}

/// Limits of a machine that has other work, and of a build that is not optimised.
fn patient() -> FormLimits {
    let long = Duration::from_secs(60);
    FormLimits { prepare: long, wait: long, mask: long, answer: long, ..FormLimits::default() }
}

fn service(toy: Toy, change: impl FnOnce(&mut Service), queue: usize) -> Router {
    let options = Options { running: 4, step_tokens: 0, prefix_cache: true, speculate: 3 };
    let (handle, _) = worker::start(toy, options, queue).unwrap();
    let text = Arc::new(Text::open(folder()).unwrap());
    let stop = vec![text.token("<|end|>").unwrap()];
    let template = "{% for m in messages %}{{ m.content }}{% if tools %} tools{% endif %}{% endfor %}";
    let mut service = Service {
        handle,
        templates: Templates::new(Some(template.into()), &json!({})).map_err(|error| error.to_string()),
        eyes: None,
        thoughts: false,
        grammars: Grammars::new(text.clone(), VOCAB, stop.clone(), patient()),
        text,
        names: vec!["toy".into(), "other".into()],
        adapters: vec![],
        stop,
        defaults: Defaults::default(),
        access: Access::default(),
        page: true,
        body_bytes: 1 << 20,
        choices: 8,
        lanes: Arc::default(),
        metrics: Arc::default(),
        started: SystemTime::now(),
    };
    change(&mut service);
    router(service)
}

fn plain() -> Router {
    service(toy(), |_| (), 64)
}

fn asked(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    request.body(body.into()).unwrap()
}

async fn bytes(response: Response) -> Vec<u8> {
    let mut body = std::pin::pin!(response.into_body());
    let mut all = vec![];
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        all.extend(frame.unwrap().into_data().unwrap());
    }
    all
}

async fn answer(router: &Router, request: Request<Body>) -> (u16, Vec<u8>) {
    let response = router.clone().oneshot(request).await.unwrap();
    (response.status().as_u16(), bytes(response).await)
}

async fn post_json(router: &Router, path: &str, body: &Value) -> (u16, Value) {
    let (status, bytes) = answer(router, asked("POST", path, body.to_string())).await;
    (status, serde_json::from_slice(&bytes).unwrap())
}

/// The chunks of a stream.
async fn chunks(router: &Router, path: &str, body: &Value) -> Vec<Value> {
    let (status, bytes) = answer(router, asked("POST", path, body.to_string())).await;
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(status, 200, "{text}");
    let mut lines: Vec<&str> = text.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").unwrap()).collect();
    assert_eq!(lines.pop(), Some("[DONE]"));
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn run<F: Future<Output = ()>>(future: F) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
}

/// The value of a counter.
async fn counted(router: &Router, name: &str) -> u64 {
    let (_, page) = answer(router, asked("GET", "/metrics", "")).await;
    let page = String::from_utf8(page).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("atomc_{name} ")));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().unwrap()
}

#[test]
fn guesses_are_told() {
    run(async {
        for (draft, right) in [(Draft::Good, true), (Draft::Bad, false)] {
            let (plain, router) = (plain(), service(toy().with_draft(draft, 8), |_| (), 64));
            let (mut made, mut were_right) = (0, 0);
            for (path, field) in [(COMPLETIONS, "prompt"), (CHATS, "messages")] {
                let asked = if path == CHATS { json!([{ "role": "user", "content": "Q" }]) } else { json!("Q: Ana") };
                let body = json!({ "model": "toy", field: asked, "max_tokens": 20, "n": 2, "temperature": 0 });
                let (_, expect) = post_json(&plain, path, &body).await;
                let (_, found) = post_json(&router, path, &body).await;
                let none = json!({ "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0 });
                assert_eq!(expect["usage"]["completion_tokens_details"], none);
                assert_eq!(found["choices"], expect["choices"]);
                let of = |usage: &Value, field: &str| usage["completion_tokens_details"][field].as_u64().unwrap();
                let told = |usage: &Value| {
                    ["accepted", "rejected"].map(|kind| of(usage, &format!("{kind}_prediction_tokens")))
                };
                let [accepted, rejected] = told(&found["usage"]);
                assert!((accepted > 0) == right && rejected > 0, "{found}");
                (made, were_right) = (made + accepted + rejected, were_right + accepted);
                let mut body = body;
                (body["stream"], body["stream_options"]) = (true.into(), json!({ "include_usage": true }));
                let chunks = chunks(&router, path, &body).await;
                let [accepted, rejected] = told(&chunks.last().unwrap()["usage"]);
                assert!((accepted > 0) == right && rejected > 0);
                (made, were_right) = (made + accepted + rejected, were_right + accepted);
            }
            // Counts are updated after the last step.
            while counted(&router, "requests_running").await > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(counted(&router, "guessed_tokens_total").await, made);
            assert_eq!(counted(&router, "guessed_tokens_right_total").await, were_right);
        }
    });
}

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";

#[test]
fn streams_say_what_whole_answers_do() {
    run(async {
        let router = plain();
        for (path, prompt) in
            [(COMPLETIONS, json!("Q: Ana")), (COMPLETIONS, json!([[1, 2, 3], [4, 5]])), (CHATS, json!("Q: Ana"))]
        {
            let mut body = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 20, "n": 2, "logprobs": 2 });
            if path == CHATS {
                body["messages"] = json!([{ "role": "user", "content": prompt }]);
                (body["logprobs"], body["top_logprobs"]) = (true.into(), 2.into());
            }
            let (status, whole) = post_json(&router, path, &body).await;
            assert_eq!(status, 200, "{whole}");
            body["stream"] = true.into();
            body["stream_options"] = json!({ "include_usage": true });
            let chunks = chunks(&router, path, &body).await;
            let usage = &chunks.last().unwrap()["usage"];
            for field in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                assert_eq!(usage[field], whole["usage"][field], "{field} of {path}");
            }
            for choice in whole["choices"].as_array().unwrap() {
                let of = chunks.iter().filter_map(|chunk| {
                    let part = &chunk["choices"][0];
                    (part["index"] == choice["index"]).then_some(part)
                });
                let text = of.clone().filter_map(|part| part["text"].as_str().or(part["delta"]["content"].as_str()));
                let expect = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
                assert_eq!(text.collect::<String>(), expect);
                assert_eq!(of.clone().next_back().unwrap()["finish_reason"], choice["finish_reason"]);
                let list = |part: &Value| match path {
                    CHATS => part["logprobs"]["content"].as_array().cloned().unwrap_or_default(),
                    _ => part["logprobs"]["token_logprobs"].as_array().cloned().unwrap_or_default(),
                };
                assert_eq!(of.flat_map(list).collect::<Vec<_>>(), list(choice), "{path}");
                assert_eq!(list(choice).len(), 20);
            }
        }
    });
}

#[test]
fn echoes_have_the_prompt_and_how_likely_it_was() {
    run(async {
        let router = plain();
        let body = json!({ "prompt": "Q: Ana has", "max_tokens": 3, "temperature": 0, "echo": true, "logprobs": 1 });
        let (_, found) = post_json(&router, COMPLETIONS, &body).await;
        let (choice, prompt) = (&found["choices"][0], found["usage"]["prompt_tokens"].as_u64().unwrap() as usize);
        assert!(choice["text"].as_str().unwrap().starts_with("Q: Ana has"), "{found}");
        let list = &choice["logprobs"];
        for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(list[field].as_array().unwrap().len(), prompt + 3, "{field}");
        }
        let known = list["token_logprobs"].as_array().unwrap();
        assert!(known[0].is_null() && known[1..].iter().all(|value| value.as_f64().unwrap() <= 0.0));
        // As a model without an answer, which is how prompts are scored.
        let (status, scored) = post_json(
            &router,
            COMPLETIONS,
            &json!({ "prompt": "Q: Ana has", "max_tokens": 0, "echo": true, "logprobs": 1 }),
        )
        .await;
        assert_eq!(status, 200);
        assert_eq!(scored["choices"][0]["text"], "Q: Ana has");
        assert_eq!(scored["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap()[..], known[..prompt]);
        let streamed =
            json!({ "prompt": "Q: Ana has", "max_tokens": 3, "temperature": 0, "echo": true, "stream": true });
        let all = chunks(&router, COMPLETIONS, &streamed).await;
        let text: String = all.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, choice["text"].as_str().unwrap());
    });
}

#[test]
fn calls_of_tools_are_parsed() {
    run(async {
        let router = plain();
        let call = "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>";
        let mut body = json!({
            "messages": [{ "role": "user", "content": "x" }],
            "tools": [{ "type": "function", "function": { "name": "weather" } }],
            "structured_outputs": { "choice": [call] },
            "temperature": 0,
        });
        let (_, found) = post_json(&router, CHATS, &body).await;
        let choice = &found["choices"][0];
        let expect = json!({ "name": "weather", "arguments": "{\"city\":\"Rom\"}" });
        assert_eq!(choice["message"]["tool_calls"][0]["function"], expect, "{found}");
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!("I look.\n"), &json!("tool_calls"))
        );
        body["stream"] = true.into();
        let all = chunks(&router, CHATS, &body).await;
        let calls: Vec<&Value> =
            all.iter().map(|c| &c["choices"][0]["delta"]["tool_calls"]).filter(|c| !c.is_null()).collect();
        assert_eq!((calls.len(), &calls[0][0]["function"], &calls[0][0]["index"]), (1, &expect, &json!(0)));
        body["tool_choice"] = "none".into();
        let all = chunks(&router, CHATS, &body).await;
        let text: String = all.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, call);
    });
}

/// A tool with an argument that is one of two names. Blanks would take the toy's few positions.
fn tool(name: &str) -> Value {
    let schema = json!({
        "$defs": { "city": { "enum": ["Rom", "Oslo"] } },
        "type": "object",
        "properties": { "city": { "$ref": "#/$defs/city" } },
        "required": ["city"],
        "additionalProperties": false,
        "x-guidance": { "whitespace_flexible": false },
    });
    json!({ "type": "function", "function": { "name": name, "parameters": schema } })
}

#[test]
fn calls_of_tools_can_be_asked_for() {
    run(async {
        let router = plain();
        let plain = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": [tool("a"), tool("b")] });
        let named = json!({ "type": "function", "function": { "name": "b" } });
        for (choice, names, finish) in
            [(json!("required"), &["a", "b"][..], "tool_calls"), (named.clone(), &["b"], "stop")]
        {
            let mut body = plain.clone();
            (body["tool_choice"], body["parallel_tool_calls"]) = (choice, false.into());
            for seed in 0..4 {
                body["seed"] = seed.into();
                let (_, found) = post_json(&router, CHATS, &body).await;
                let choice = &found["choices"][0];
                let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{found}"));
                let call = &calls[0]["function"];
                assert!(calls.len() == 1 && names.contains(&call["name"].as_str().unwrap()), "{found}");
                let given: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
                assert!(given == json!({ "city": "Rom" }) || given == json!({ "city": "Oslo" }), "{found}");
                assert!(choice["message"]["content"].is_null() && choice["finish_reason"] == finish, "{found}");
            }
        }
        let mut body = plain.clone();
        (body["tool_choice"], body["stream"]) = (named, true.into());
        let all = chunks(&router, CHATS, &body).await;
        let made: Vec<&Value> = all.iter().map(|c| &c["choices"][0]["delta"]["tool_calls"][0]).collect();
        let made: Vec<&&Value> = made.iter().filter(|call| !call.is_null()).collect();
        assert!(made.len() == 1 && made[0]["function"]["name"] == "b", "{all:?}");
    });
}

#[test]
fn thoughts_are_told_apart() {
    run(async {
        let router = service(toy(), |service| service.thoughts = true, 64);
        let answer = "<think>\nI add.\n</think>\n\n3";
        let mut body = json!({
            "messages": [{ "role": "user", "content": "x" }],
            "structured_outputs": { "choice": [answer] },
        });
        let (_, found) = post_json(&router, CHATS, &body).await;
        let message =
            json!({ "role": "assistant", "content": "3", "reasoning": "I add.", "reasoning_content": "I add." });
        assert_eq!(found["choices"][0]["message"], message);
        body["stream"] = true.into();
        let all = chunks(&router, CHATS, &body).await;
        let said = |field: &str| -> String {
            all.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
        };
        assert_eq!((said("reasoning_content"), said("content")), ("I add.".into(), "3".into()));
        body["include_reasoning"] = false.into();
        let all = chunks(&router, CHATS, &body).await;
        assert!(all.iter().all(|chunk| chunk["choices"][0]["delta"]["reasoning"].is_null()), "{all:?}");
        // Without the option they are text.
        let (_, found) = post_json(
            &plain(),
            CHATS,
            &json!({ "stream": false, "messages": body["messages"],
            "structured_outputs": { "choice": [answer] } }),
        )
        .await;
        assert_eq!(found["choices"][0]["message"]["content"], answer);
    });
}

/// Requests, each with a field that is wrong, are refused with its name.
fn are_refused(path: &'static str, plain: Value, wrong: Vec<(Value, u16, &'static str)>) {
    run(async {
        let router = self::plain();
        for (fields, status, param) in wrong {
            let mut body = plain.clone();
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let (found, answer) = post_json(&router, path, &body).await;
            let error = &answer["error"];
            assert_eq!((found, &error["param"]), (status, &json!(param)), "{answer}");
            let name = param.split('.').next().unwrap();
            assert!(error["message"].as_str().unwrap().contains(name) || status == 404, "{answer}");
        }
    });
}

#[test]
fn what_is_wrong_with_a_chat_is_named() {
    let wrong = vec![
        (json!({ "model": "gpt-4" }), 404, "model"),
        (json!({ "messages": [] }), 400, "messages"),
        (json!({ "messages": [{ "content": "x" }] }), 400, "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }), 400, "messages[0].content"),
        (json!({ "temperature": -1 }), 400, "temperature"),
        (json!({ "top_p": 0 }), 400, "top_p"),
        (json!({ "n": 9 }), 400, "n"),
        (json!({ "n": -1 }), 400, "n"),
        (json!({ "stop": 7 }), 400, "stop"),
        (json!({ "top_logprobs": 2 }), 400, "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), 400, "logprobs"),
        (json!({ "presence_penalty": 3 }), 400, "presence_penalty"),
        (json!({ "repetition_penalty": 0 }), 400, "repetition_penalty"),
        (json!({ "logit_bias": { "7": 101 } }), 400, "logit_bias"),
        (json!({ "logit_bias": { "x": 1 } }), 400, "logit_bias"),
        (json!({ "stop_token_ids": [512] }), 400, "stop_token_ids"),
        (json!({ "response_format": { "type": "xml" } }), 400, "response_format.type"),
        (json!({ "structured_outputs": { "regex": "(" } }), 400, "response_format"),
        (json!({ "tool_choice": "required" }), 400, "tool_choice"),
        (json!({ "tool_choice": "any" }), 400, "tool_choice"),
        (
            json!({ "tools": [tool("a")], "tool_choice": { "type": "function", "function": { "name": "b" } } }),
            400,
            "tool_choice",
        ),
        (
            json!({ "tools": [tool("a")], "tool_choice": "required", "response_format": { "type": "json_object" } }),
            400,
            "tool_choice",
        ),
        (json!({ "tools": [{ "type": "function" }], "tool_choice": "required" }), 400, "tools"),
        (
            json!({ "tools": [{ "function": { "name": "a", "parameters": { "type": "what" } } }], "tool_choice": "required" }),
            400,
            "tools",
        ),
        (json!({ "functions": [] }), 400, "functions"),
    ];
    are_refused(CHATS, json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 2 }), wrong);
}

#[test]
fn what_is_wrong_with_a_completion_is_named() {
    let wrong = vec![
        (json!({ "suffix": "y" }), 400, "suffix"),
        (json!({ "best_of": 3 }), 400, "best_of"),
        (json!({ "use_beam_search": true }), 400, "use_beam_search"),
        (json!({ "prompt": [] }), 400, "prompt"),
        (json!({ "prompt": [[]] }), 400, "prompt"),
        (json!({ "prompt": [900] }), 400, "prompt"),
        (json!({ "prompt": { "a": 1 } }), 400, "prompt"),
        (json!({ "prompt": vec![3; 129] }), 400, "prompt"),
        (json!({ "prompt": "x".repeat(500_000) }), 400, "prompt"),
        (json!({ "prompt": vec![vec![3]; 257] }), 400, "n"),
    ];
    are_refused(COMPLETIONS, json!({ "prompt": "x", "max_tokens": 2 }), wrong);
}

#[test]
fn what_there_is_not_is_said() {
    run(async {
        let router = plain();
        for (method, path, status) in [
            ("GET", "/nowhere", 404),
            ("GET", COMPLETIONS, 405),
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1/models/gpt-4", 404),
            ("GET", "/v1/models/%ff", 404),
        ] {
            let (found, bytes) = answer(&router, asked(method, path, "{}")).await;
            let error: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(found, status, "{error}");
            let told = error["error"]["message"].as_str().unwrap();
            assert!(told.contains(path) || error["error"]["param"] == "model", "{error}");
        }
        let (status, bytes) = answer(&router, asked("POST", COMPLETIONS, "x".repeat(2 << 20))).await;
        let error: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((status, &error["error"]["type"]), (413, &json!("invalid_request_error")), "{error}");
    });
}

#[test]
fn keys_and_origins_are_asked_for() {
    run(async {
        let keyed = service(
            toy(),
            |service| {
                service.access.keys = vec!["a".into(), "secret".into()];
                service.access.origins = vec!["http://page".into()];
            },
            64,
        );
        let with = |key: &str| {
            let request = Request::builder().uri("/v1/models").header(header::AUTHORIZATION, key);
            request.header(header::ORIGIN, "http://page").body(Body::empty()).unwrap()
        };
        for (key, status) in [
            ("Bearer secret", 200),
            ("bearer a", 200),
            ("BEARER  a", 200),
            ("Bearer b", 401),
            ("Basic a", 401),
            ("secret", 401),
            ("", 401),
        ] {
            let response = keyed.clone().oneshot(with(key)).await.unwrap();
            assert_eq!(response.status().as_u16(), status, "{key}");
            assert_eq!(response.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "http://page");
        }
        assert_eq!(answer(&keyed, asked("GET", "/health", "")).await.0, 200);
        let other =
            Request::builder().uri("/health").header(header::ORIGIN, "http://other").body(Body::empty()).unwrap();
        let response = keyed.oneshot(other).await.unwrap();
        assert!(!response.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    });
}

#[test]
fn a_full_queue_refuses_and_empties() {
    run(async {
        let router = service(slow(5), |_| (), 2);
        let body = json!({ "prompt": [3, 4], "max_tokens": 20, "temperature": 0, "ignore_eos": true });
        let all: Vec<_> = (0..12)
            .map(|_| {
                let (router, body) = (router.clone(), body.clone());
                tokio::spawn(async move { post_json(&router, COMPLETIONS, &body).await })
            })
            .collect();
        let mut statuses = vec![];
        for one in all {
            let (status, answer) = one.await.unwrap();
            assert!(status == 200 || answer["error"]["type"] == "rate_limit_error", "{answer}");
            statuses.push(status);
        }
        assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
        for _ in 0..5 {
            assert_eq!(post_json(&router, COMPLETIONS, &body).await.0, 200);
        }
    });
}

#[test]
fn faults_and_panics_answer_500_and_the_server_goes_on() {
    run(async {
        let mut toy = toy();
        (toy.failing, toy.panicking) = (Some(FAILING), Some(PANICKING));
        let router = service(toy, |_| (), 64);
        for token in [FAILING, PANICKING] {
            for stream in [false, true] {
                let body = json!({ "prompt": [1, token], "stream": stream });
                let (status, bytes) = answer(&router, asked("POST", COMPLETIONS, body.to_string())).await;
                let error: Value = serde_json::from_slice(&bytes).unwrap();
                assert_eq!((status, &error["error"]["type"]), (500, &json!("server_error")), "{error}");
                assert!(error["error"]["message"].as_str().unwrap().contains("it was told to"), "{error}");
            }
            assert_eq!(post_json(&router, COMPLETIONS, &json!({ "prompt": [1, 2], "temperature": 0 })).await.0, 200);
        }
        let (_, page) = answer(&router, asked("GET", "/metrics", "")).await;
        let page = String::from_utf8(page).unwrap();
        assert!(
            page.contains("atomc_step_faults_total 4") && page.contains("atomc_requests_total{end=\"error\"} 4"),
            "{page}"
        );
    });
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    run(async {
        let router = service(slow(1), |_| (), 64);
        let body = json!({ "prompt": [3, 4], "max_tokens": 100, "ignore_eos": true, "n": 3, "stream": true });
        for _ in 0..10 {
            let response = router.clone().oneshot(asked("POST", COMPLETIONS, body.to_string())).await.unwrap();
            drop(response);
            let whole = router.clone().oneshot(asked("POST", COMPLETIONS, body.to_string().replace("true", "false")));
            _ = tokio::time::timeout(Duration::from_millis(2), whole).await;
        }
        for _ in 0..500 {
            let (_, page) = answer(&router, asked("GET", "/metrics", "")).await;
            let page = String::from_utf8(page).unwrap();
            if page.contains("requests_running 0\n") && page.contains("requests_waiting 0\n") {
                assert!(page.contains("{end=\"gone\"} "), "{page}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("requests of nobody run on");
    });
}

/// A pseudo-random number below another.
fn below(state: &mut u64, most: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % most.max(1)
}

/// A request with something wrong in it, most of the time.
fn spoiled(body: &str, state: &mut u64) -> Vec<u8> {
    const PIECES: &[&str] =
        &["null", "-1", "1e999", "\"\"", "[]", "{}", "true", "\\u0000", "\u{fffd}", "9223372036854775808"];
    let mut bytes = body.as_bytes().to_vec();
    for _ in 0..1 + below(state, 2) {
        let at = below(state, bytes.len());
        match below(state, 7) {
            0 => bytes.truncate(at),
            1 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte = below(state, 256) as u8),
            2..=5 => {
                let piece = PIECES[below(state, PIECES.len())];
                // In the place of a value.
                let end = at + bytes[at..].iter().position(|byte| b",}]".contains(byte)).unwrap_or(0);
                let start = bytes[..at].iter().rposition(|&byte| byte == b':').map_or(at, |colon| colon + 1);
                bytes.splice(start..end.max(start), piece.bytes());
            }
            _ => {
                let end = (at + below(state, 12)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

#[test]
fn no_request_ends_the_server() {
    run(async {
        let router = plain();
        let seeds = [
            (
                COMPLETIONS,
                json!({ "prompt": "Q: Ana", "max_tokens": 3, "temperature": 0.5, "top_k": 5, "min_p": 0.1, "seed": 1 }),
            ),
            (
                COMPLETIONS,
                json!({ "prompt": [[1, 2], [3]], "max_tokens": 2, "logprobs": 2, "echo": true, "stop": ["a", "\n"] }),
            ),
            (
                CHATS,
                json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "x" }] }], "max_tokens": 2,
                "tools": [{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }],
                "tool_choice": "required", "parallel_tool_calls": false, "logit_bias": { "3": 5 }, "n": 2, "stream": true, "stream_options": { "include_usage": true } }),
            ),
            (
                CHATS,
                json!({ "messages": [{ "role": "assistant", "content": null, "tool_calls": [
                { "function": { "name": "f", "arguments": "{\"a\": 1}" } }] }], "max_completion_tokens": 4,
                "response_format": { "type": "json_schema", "json_schema": { "name": "s", "schema": {
                    "type": "object", "properties": { "a": { "type": "integer", "minimum": 3 } }, "required": ["a"] } } } }),
            ),
            (
                CHATS,
                json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 5, "structured_outputs": { "regex": "[ab]{1,3}c" },
                "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logprobs": true, "top_logprobs": 3 }),
            ),
        ];
        let mut state = 7;
        let mut statuses = std::collections::BTreeMap::<u16, usize>::new();
        for index in 0..1500 {
            let (path, body) = &seeds[index % seeds.len()];
            let body = spoiled(&body.to_string(), &mut state);
            let (status, answer) = answer(&router, asked("POST", path, body.clone())).await;
            let shown = (String::from_utf8_lossy(&body), String::from_utf8_lossy(&answer));
            assert!(status == 200 || (400..500).contains(&status), "{status}: {shown:?}");
            if status != 200 {
                let error: Value = serde_json::from_slice(&answer).unwrap();
                assert!(error["error"]["message"].is_string(), "{shown:?}");
            }
            *statuses.entry(status).or_default() += 1;
        }
        assert!(statuses[&400] > 500 && statuses[&200] > 100, "{statuses:?}");
        assert_eq!(post_json(&router, COMPLETIONS, &json!({ "prompt": [1, 2] })).await.0, 200);
    });
}
