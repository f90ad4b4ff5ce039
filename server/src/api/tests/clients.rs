//! Interfaces other than OpenAI's completions and chats, salts, and fields that are ignored.
use super::*;

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// The events of a stream, each with its name.
async fn events(router: &Router, path: &str, body: &Value) -> Vec<Value> {
    let (status, bytes) = answer(router, asked("POST", path, body.to_string())).await;
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(status, 200, "{text}");
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// Text of deltas.
fn joined(events: &[Value], kind: &str, field: &str) -> String {
    let of = events.iter().filter(|event| event["type"] == kind);
    of.filter_map(|event| event["delta"][field].as_str().or(event["delta"].as_str())).collect()
}

const CALL: &str = "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>";
const THOUGHT: &str = "<think>\nI add.\n</think>\n\n3";

#[test]
fn texts_are_made_tokens_and_back() {
    run(async {
        let router = plain();
        let (status, found) =
            post_json(&router, "/tokenize", &json!({ "prompt": "Q: é", "return_token_strs": true })).await;
        assert_eq!((status, &found["max_model_len"]), (200, &json!(128)), "{found}");
        let tokens = found["tokens"].as_array().unwrap();
        assert_eq!(found["count"], tokens.len());
        assert_eq!(found["token_strs"].as_array().unwrap().len(), tokens.len());
        let (_, back) = post_json(&router, "/detokenize", &json!({ "tokens": tokens })).await;
        assert_eq!(back, json!({ "prompt": "Q: é" }));
        let talk = json!({ "messages": [{ "role": "user", "content": "Q: é" }] });
        assert_eq!(post_json(&router, "/tokenize", &talk).await.1["tokens"], found["tokens"]);
        let (_, version) = answer(&router, asked("GET", "/version", "")).await;
        assert_eq!(version, json!({ "version": env!("CARGO_PKG_VERSION") }).to_string().into_bytes());
    });
}

#[test]
fn what_is_wrong_with_tokens_is_named() {
    are_refused(
        "/detokenize",
        json!({ "tokens": [1] }),
        vec![
            (json!({ "tokens": [512] }), 400, "tokens"),
            (json!({ "tokens": vec![1; 129] }), 400, "tokens"),
            (json!({ "tokens": null }), 400, "tokens"),
            (json!({ "model": "gpt-4" }), 404, "model"),
        ],
    );
    are_refused("/tokenize", json!({}), vec![(json!({ "prompt": null }), 400, "prompt")]);
}

#[test]
fn responses_have_items() {
    run(async {
        let router = service(toy(), |service| service.thoughts = true, 64);
        for (said, items) in [(CALL, &["message", "function_call"][..]), (THOUGHT, &["reasoning", "message"])] {
            let mut body = json!({ "input": "x", "structured_outputs": { "choice": [said] }, "temperature": 0,
                "tools": [{ "type": "function", "name": "weather", "parameters": { "type": "object" } }] });
            let (status, found) = post_json(&router, RESPONSES, &body).await;
            assert_eq!((status, &found["status"]), (200, &json!("completed")), "{found}");
            let output = found["output"].as_array().unwrap();
            assert_eq!(output.iter().map(|item| item["type"].as_str().unwrap()).collect::<Vec<_>>(), items);
            if said == CALL {
                assert_eq!(output[0]["content"][0]["text"], "I look.\n");
                assert_eq!(
                    (&output[1]["name"], &output[1]["arguments"]),
                    (&json!("weather"), &json!("{\"city\":\"Rom\"}"))
                );
            } else {
                assert_eq!(
                    (&output[0]["content"][0]["text"], &output[1]["content"][0]["text"]),
                    (&json!("I add."), &json!("3"))
                );
            }
            body["stream"] = true.into();
            let told = events(&router, RESPONSES, &body).await;
            let numbers: Vec<u64> = told.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
            assert_eq!(numbers, (0..told.len() as u64).collect::<Vec<_>>());
            assert_eq!(told[0]["type"], "response.created");
            let last = &told.last().unwrap();
            assert_eq!(last["type"], "response.completed");
            let shown = |output: &Value| -> Vec<(Value, Value, Value)> {
                let items = output.as_array().unwrap().iter();
                items.map(|item| (item["type"].clone(), item["content"].clone(), item["arguments"].clone())).collect()
            };
            assert_eq!(shown(&last["response"]["output"]), shown(&found["output"]));
            let text = joined(&told, "response.output_text.delta", "");
            assert_eq!(text, if said == CALL { "I look.\n" } else { "3" });
            let thought = joined(&told, "response.reasoning_text.delta", "");
            assert_eq!(thought, if said == CALL { "" } else { "I add." });
        }
        let (_, cut) = post_json(
            &router,
            RESPONSES,
            &json!({ "input": "x", "max_output_tokens": 2, "temperature": 0,
            "ignore_eos": true }),
        )
        .await;
        assert_eq!((&cut["status"], &cut["usage"]["output_tokens"]), (&json!("incomplete"), &json!(2)), "{cut}");
    });
}

/// The prompt is that of a chat with the same messages.
#[test]
fn items_and_blocks_are_messages_of_a_chat() {
    let template = "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.reasoning_content }}|\
        {% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.a }}{% endfor %}]{% endfor %}";
    run(async {
        let router = service(
            toy(),
            |service| {
                service.templates =
                    Templates::new(Some(template.into()), &json!({})).map_err(|error| error.to_string());
            },
            64,
        );
        let chat = json!({ "messages": [
            { "role": "system", "content": "S" },
            { "role": "user", "content": "U" },
            { "role": "assistant", "content": "A", "reasoning": "T", "tool_calls": [
                { "function": { "name": "f", "arguments": "{\"a\": 7}" } }] },
            { "role": "tool", "content": "R" },
        ] });
        let (_, expect) = post_json(&router, "/tokenize", &chat).await;
        let text = post_json(&router, "/detokenize", &json!({ "tokens": expect["tokens"] })).await.1;
        assert!(text["prompt"].as_str().unwrap().contains("f7"), "{text}");
        let (_, found) = post_json(
            &router,
            "/v1/messages/count_tokens",
            &json!({ "system": [{ "type": "text", "text": "S" }],
            "messages": [
                { "role": "user", "content": "U" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "T", "signature": "" }, { "type": "text", "text": "A" },
                    { "type": "tool_use", "id": "t", "name": "f", "input": { "a": 7 } }] },
                { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": "R" }] },
            ] }),
        )
        .await;
        assert_eq!(found["input_tokens"], expect["count"], "{found}");
        let (_, found) = post_json(
            &router,
            RESPONSES,
            &json!({ "instructions": "S", "max_output_tokens": 1, "input": [
            { "role": "user", "content": [{ "type": "input_text", "text": "U" }] },
            { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "T" }] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "A" }] },
            { "type": "function_call", "call_id": "t", "name": "f", "arguments": "{\"a\": 7}" },
            { "type": "function_call_output", "call_id": "t", "output": "R" },
        ] }),
        )
        .await;
        assert_eq!(found["usage"]["input_tokens"], expect["count"], "{found}");
    });
}

#[test]
fn what_is_wrong_with_a_response_is_named() {
    let wrong = vec![
        (json!({ "input": null }), 400, "input"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), 400, "input[0].type"),
        (json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }), 400, "input[0].content"),
        (json!({ "previous_response_id": "resp_1" }), 400, "previous_response_id"),
        (json!({ "background": true }), 400, "background"),
        (json!({ "tools": [{ "type": "web_search" }] }), 400, "tools[0].type"),
        (json!({ "tool_choice": { "type": "function", "name": "g" } }), 400, "tool_choice"),
        (json!({ "truncation": "auto" }), 400, "truncation"),
        (json!({ "n": 2 }), 400, "n"),
        (json!({ "temperature": -1 }), 400, "temperature"),
    ];
    are_refused(RESPONSES, json!({ "input": "x", "max_output_tokens": 2 }), wrong);
}

#[test]
fn messages_have_blocks() {
    run(async {
        let router = service(toy(), |service| service.thoughts = true, 64);
        let tools = json!([{ "name": "weather", "input_schema": { "type": "object" } }]);
        for (said, kinds, reason) in
            [(CALL, &["text", "tool_use"][..], "tool_use"), (THOUGHT, &["thinking", "text"], "end_turn")]
        {
            let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 100, "tools": tools,
                "structured_outputs": { "choice": [said] }, "temperature": 0 });
            let (status, found) = post_json(&router, MESSAGES, &body).await;
            assert_eq!((status, &found["stop_reason"]), (200, &json!(reason)), "{found}");
            let content = found["content"].as_array().unwrap();
            assert_eq!(content.iter().map(|block| block["type"].as_str().unwrap()).collect::<Vec<_>>(), kinds);
            assert!(
                content
                    .iter()
                    .any(|block| { block["input"] == json!({ "city": "Rom" }) || block["thinking"] == "I add." }),
                "{found}"
            );
            body["stream"] = true.into();
            let told = events(&router, MESSAGES, &body).await;
            let ends = [&told[0], &told[told.len() - 2], &told[told.len() - 1]].map(|event| event["type"].clone());
            assert_eq!(ends, ["message_start", "message_delta", "message_stop"]);
            assert_eq!(told[told.len() - 2]["delta"]["stop_reason"], reason);
            assert_eq!(told[told.len() - 2]["usage"]["output_tokens"], found["usage"]["output_tokens"]);
            let count = |kind: &str| told.iter().filter(|event| event["type"] == kind).count();
            assert_eq!((count("content_block_start"), count("content_block_stop")), (2, 2));
            let text = joined(&told, "content_block_delta", "text");
            assert_eq!(text, if said == CALL { "I look.\n" } else { "3" });
        }
    });
}

#[test]
fn messages_say_which_text_ended_them() {
    run(async {
        let router = plain();
        let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 50,
            "structured_outputs": { "choice": ["one two three"] }, "stop_sequences": ["three", " tw"], "temperature": 0 });
        let (_, found) = post_json(&router, MESSAGES, &body).await;
        assert_eq!(
            (&found["stop_reason"], &found["stop_sequence"]),
            (&json!("stop_sequence"), &json!(" tw")),
            "{found}"
        );
        assert_eq!(found["content"][0]["text"], "one");
        body["stream"] = true.into();
        let told = events(&router, MESSAGES, &body).await;
        assert_eq!(joined(&told, "content_block_delta", "text"), "one");
        assert_eq!(told[told.len() - 2]["delta"]["stop_sequence"], " tw");
        body["max_tokens"] = 1.into();
        let told = events(&router, MESSAGES, &body).await;
        assert_eq!(told[told.len() - 2]["delta"]["stop_reason"], "max_tokens");
    });
}

#[test]
fn errors_of_messages_have_their_form() {
    run(async {
        let router = service(toy(), |service| service.access.keys = vec!["secret".into()], 64);
        let request = |key: &str, body: &Value| {
            let request = Request::builder().method("POST").uri(MESSAGES).header("x-api-key", key);
            request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())).unwrap()
        };
        let talk = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1 });
        let with = |field: &str, value: Value| {
            let mut body = talk.clone();
            body[field] = value;
            body
        };
        for (key, body, status, kind) in [
            ("secret", talk.clone(), 200, ""),
            ("other", talk.clone(), 401, "authentication_error"),
            ("secret", with("model", "gpt-4".into()), 404, "not_found_error"),
            ("secret", with("max_tokens", Value::Null), 400, "invalid_request_error"),
            (
                "secret",
                with("messages", json!([{ "role": "assistant", "content": "x" }])),
                400,
                "invalid_request_error",
            ),
            (
                "secret",
                with("tools", json!([{ "type": "web_search_20250305", "name": "x" }])),
                400,
                "invalid_request_error",
            ),
            ("secret", with("tool_choice", json!({ "type": "what" })), 400, "invalid_request_error"),
            ("secret", with("system", 3.into()), 400, "invalid_request_error"),
        ] {
            let (found, bytes) = answer(&router, request(key, &body)).await;
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(found, status, "{answer}");
            if status != 200 {
                assert_eq!((&answer["type"], &answer["error"]["type"]), (&json!("error"), &json!(kind)), "{answer}");
            }
        }
    });
}

#[test]
fn fields_that_mean_nothing_here_are_named() {
    run(async {
        let router = plain();
        for stream in [false, true] {
            let body =
                json!({ "prompt": "x", "max_tokens": 1, "logit_biass": {"1": 2}, "user": "me", "stream": stream });
            let response = router.clone().oneshot(asked("POST", COMPLETIONS, body.to_string())).await.unwrap();
            assert_eq!(response.headers()["x-atomc-ignored"], "logit_biass,user");
        }
        let plain = asked("POST", COMPLETIONS, json!({ "prompt": "x", "max_tokens": 1 }).to_string());
        assert!(!router.clone().oneshot(plain).await.unwrap().headers().contains_key("x-atomc-ignored"));
    });
    let wrong = vec![
        (json!({ "guided_json": { "type": "object" } }), 400, "guided_json"),
        (json!({ "structured_outputs": { "foo": 1 } }), 400, "structured_outputs.foo"),
        (json!({ "continue_final_message": true }), 400, "continue_final_message"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), 400, "chat_template_kwargs.messages"),
        (json!({ "chat_template_kwargs": { "tools": [] } }), 400, "chat_template_kwargs.tools"),
        (json!({ "cache_salt": "" }), 400, "cache_salt"),
    ];
    are_refused(CHATS, json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 2 }), wrong);
}

#[test]
fn faults_are_told_in_words_of_json() {
    run(async {
        let router = plain();
        for (body, message) in [
            (json!({ "prompt": { "a": 1 } }), "prompt: must be a text, a list of tokens, or a list of either"),
            (json!({ "prompt": "x", "stop": 7 }), "stop: must be a text, or a list of texts"),
            (json!({ "prompt": "x", "temperature": "hot" }), "temperature: is \"hot\", and must be a number"),
            (json!({ "prompt": "x", "stream": {} }), "stream: is an object, and must be true or false"),
        ] {
            let (_, found) = post_json(&router, COMPLETIONS, &body).await;
            assert_eq!(found["error"]["message"], message);
        }
    });
}

/// Tokens of a prompt that were there already, as an answer says.
async fn cached(router: &Router, headers: &str, body: &Value) -> Option<u64> {
    let request = Request::builder().method("POST").uri(COMPLETIONS).header(header::CONTENT_TYPE, "application/json");
    let request = request.header(header::AUTHORIZATION, headers).body(Body::from(body.to_string())).unwrap();
    let (status, bytes) = answer(router, request).await;
    let found: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(status, 200, "{found}");
    found["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
}

#[test]
fn salts_keep_beginnings_apart() {
    run(async {
        let router = plain();
        let of = |salt: Option<&str>| json!({ "prompt": (0..40).collect::<Vec<u32>>(), "max_tokens": 1, "cache_salt": salt });
        for salt in [None, Some("a"), Some("b")] {
            assert_eq!(cached(&router, "", &of(salt)).await, Some(0), "{salt:?}");
            assert!(cached(&router, "", &of(salt)).await > Some(30), "{salt:?}");
        }
        // A client with one of several keys does not learn which prompts others have used.
        let keys = |service: &mut Service| service.access.keys = vec!["one".into(), "two".into()];
        let router = service(toy(), keys, 64);
        assert_eq!(cached(&router, "Bearer one", &of(None)).await, None);
        assert_eq!(cached(&router, "Bearer two", &of(None)).await, None);
        assert_eq!(cached(&router, "Bearer two", &of(Some("a"))).await, Some(0));
        assert!(cached(&router, "Bearer two", &of(Some("a"))).await > Some(30));
    });
}

#[test]
fn tokens_of_one_character_have_its_place() {
    run(async {
        let router = plain();
        let body = json!({ "prompt": "é😀.", "max_tokens": 0, "echo": true, "logprobs": 3 });
        let (_, found) = post_json(&router, COMPLETIONS, &body).await;
        let list = &found["choices"][0]["logprobs"];
        let tokens: Vec<&str> = list["tokens"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        let offsets: Vec<u64> = list["text_offset"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap()).collect();
        assert!(tokens.iter().filter(|text| text.starts_with("bytes:\\x")).count() >= 4, "{tokens:?}");
        assert_eq!((offsets[0], offsets.last()), (0, Some(&2)), "{tokens:?} {offsets:?}");
        assert!(offsets.is_sorted() && offsets.contains(&1));
        // The likeliest are reported for each of them, and none hides another.
        let top = list["top_logprobs"].as_array().unwrap().iter().filter_map(Value::as_object);
        assert!(top.clone().count() > 3 && top.clone().all(|top| top.len() >= 3), "{list}");
        let chat = json!({ "messages": [{ "role": "user", "content": "x" }], "logprobs": true,
            "structured_outputs": { "choice": ["😀"] } });
        let (_, found) = post_json(&router, CHATS, &chat).await;
        let told = found["choices"][0]["logprobs"]["content"].as_array().unwrap();
        let bytes: Vec<u8> = told
            .iter()
            .flat_map(|token| token["bytes"].as_array().unwrap())
            .map(|b| b.as_u64().unwrap() as u8)
            .collect();
        assert!(bytes.starts_with("😀".as_bytes()), "{found}");
    });
}
