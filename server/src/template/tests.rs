use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Deserialize)]
struct Cases {
    special: Value,
    cases: Vec<Case>,
}

/// A conversation, and what transformers makes of it: nothing where the template refuses it.
#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Value>,
    tools: Vec<Value>,
    generate: bool,
    more: Map<String, Value>,
    prompt: Option<String>,
}

#[test]
fn prompts_are_those_of_transformers() {
    let Cases { special, cases } = serde_json::from_str(include_str!("../../tests/templates/cases.json")).unwrap();
    for (index, case) in cases.into_iter().enumerate() {
        let templates = Templates::new(Some(case.template), &special).unwrap();
        let Case { messages, tools, generate, more, prompt, .. } = case;
        let found = templates.render(&Conversation { messages, tools, generate, more });
        match (found, prompt) {
            (Ok(found), Some(prompt)) => assert_eq!(found, prompt, "case {index}"),
            (Err(TemplateError::Raised(why)), None) => assert!(why.contains("must alternate"), "{why}"),
            (found, prompt) => panic!("case {index}: {found:?} is not {prompt:?}"),
        }
    }
}

fn talk(text: &str) -> Conversation {
    let messages = vec![json!({ "role": "user", "content": text })];
    Conversation { messages, generate: true, ..Conversation::default() }
}

#[test]
fn templates_come_from_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let error = Templates::open(dir.path()).unwrap().render(&talk("x")).unwrap_err().to_string();
    assert!(error.starts_with("the model has no chat template"), "{error}");
    let config = json!({
        "bos_token": { "content": "<b>", "special": true },
        "chat_template": [
            { "name": "default", "template": "{{ bos_token }}{{ messages[0].content }}" },
            { "name": "tool_use", "template": "{{ tools | length }} tools" },
        ],
    });
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let templates = Templates::open(dir.path()).unwrap();
    assert_eq!(templates.render(&talk("x")).unwrap(), "<b>x");
    let tools = vec![json!({}), json!({})];
    assert_eq!(templates.render(&Conversation { tools, ..talk("x") }).unwrap(), "2 tools");
    std::fs::write(dir.path().join("chat_template.jinja"), "file {{ messages[0].content }}").unwrap();
    assert_eq!(Templates::open(dir.path()).unwrap().render(&talk("x")).unwrap(), "file x");
    std::fs::write(dir.path().join("chat_template.jinja"), "{% if %}").unwrap();
    assert!(Templates::open(dir.path()).is_err());
}

#[test]
fn a_template_cannot_run_for_ever() {
    let endless = "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}";
    let templates = Templates::new(Some(endless.into()), &Value::Null).unwrap();
    let error = templates.render(&talk("x")).unwrap_err().to_string();
    assert!(error.contains("ran out of fuel"), "{error}");
    let year = Templates::new(Some("{{ strftime_now('%Y') }}".into()), &Value::Null).unwrap();
    assert!(year.render(&talk("x")).unwrap().parse::<u32>().unwrap() >= 2025);
}
