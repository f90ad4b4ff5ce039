//! A request for too much, or for things that do not exist, is refused with a reason, and keeps no
//! other request waiting.
use std::time::Instant;

use super::*;

fn wide(count: usize) -> Value {
    let properties: serde_json::Map<_, _> =
        (0..count).map(|i| (format!("k{i}"), json!({ "type": "integer" }))).collect();
    let schema = json!({ "type": "object", "properties": properties });
    json!({ "type": "json_schema", "json_schema": { "schema": schema } })
}

#[test]
fn what_asks_for_too_much_is_refused_before_any_work() {
    run(async {
        let router = plain();
        for (change, field, what) in [
            (json!({ "prompt": vec!["a"; 100_000] }), "n", "at most 256 answers"),
            (json!({ "prompt": vec!["a"; 100], "n": 3 }), "n", "at most 256 answers"),
            (
                json!({ "stop": vec!["a".repeat(1000); 20] }),
                "stop",
                "the texts have 20000 bytes; all of them may have 16384",
            ),
            (
                json!({ "response_format": wide(5000) }),
                "response_format",
                "5000 properties of one object; at most 2500",
            ),
            (json!({ "structured_outputs": { "choice": [] } }), "response_format", "none to choose from"),
            (json!({ "structured_outputs": { "regex": "[^\\s\\S]" } }), "response_format", ""),
            (json!({ "structured_outputs": { "grammar": "a: b\nb: a" } }), "response_format", ""),
            (json!({ "structured_outputs": { "json": { "$ref": "#" } } }), "response_format", ""),
        ] {
            let mut body = json!({ "prompt": "Q", "max_tokens": 3 });
            body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let began = Instant::now();
            let (status, found) = post_json(&router, COMPLETIONS, &body).await;
            assert!(began.elapsed() < Duration::from_secs(10), "{what}: {:?}", began.elapsed());
            assert_eq!((status, found["error"]["param"].as_str()), (400, Some(field)), "{found}");
            assert!(found["error"]["message"].as_str().unwrap().contains(what), "{found}");
        }
    });
}

/// Preparing this form takes some hundred milliseconds: plain requests end before.
#[test]
fn a_form_keeps_no_plain_request_waiting() {
    run(async {
        let router = plain();
        let large = json!({ "prompt": "Q", "max_tokens": 4, "response_format": wide(2000) });
        let form = async {
            let (status, found) = post_json(&router, COMPLETIONS, &large).await;
            assert_eq!(status, 200, "{found}");
            Instant::now()
        };
        let others = async {
            for _ in 0..8 {
                let body = json!({ "prompt": "Q: Ana", "max_tokens": 4 });
                assert_eq!(post_json(&router, COMPLETIONS, &body).await.0, 200);
            }
            Instant::now()
        };
        let (form, others) = tokio::join!(form, others);
        assert!(others < form);
    });
}

/// Clients that leave before their form's turn cost nothing, and the next is served.
#[test]
fn forms_of_clients_that_left_are_not_prepared() {
    run(async {
        let router = plain();
        let began = Instant::now();
        let whole = json!({ "prompt": "Q", "max_tokens": 4, "response_format": wide(1980) });
        assert_eq!(post_json(&router, COMPLETIONS, &whole).await.0, 200);
        let one = began.elapsed();
        for count in 1990..2010 {
            let body = json!({ "prompt": "Q", "max_tokens": 4, "response_format": wide(count) });
            let leaves = post_json(&router, COMPLETIONS, &body);
            assert!(tokio::time::timeout(Duration::from_millis(5), leaves).await.is_err());
        }
        let began = Instant::now();
        let body = json!({ "prompt": "Q", "max_tokens": 4, "structured_outputs": { "choice": ["7"] } });
        let (status, found) = post_json(&router, COMPLETIONS, &body).await;
        assert_eq!((status, &found["choices"][0]["text"]), (200, &json!("7")));
        // One of them may have begun.
        assert!(began.elapsed() < one * 8, "{:?}, one {one:?}", began.elapsed());
    });
}
