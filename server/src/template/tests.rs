use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Deserialize)]
struct Cases {
    special: Value,
    cases: Vec<Case>,
}

/// A conversation, and transformers' result for it: nothing if the template refuses it.
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
    assert!(error.contains("takes more than 3000000 steps"), "{error}");
    let year = Templates::new(Some("{{ strftime_now('%Y') }}".into()), &Value::Null).unwrap();
    assert!(year.render(&talk("x")).unwrap().parse::<u32>().unwrap() >= 2025);
}

fn rendered(source: &str) -> Result<String, TemplateError> {
    let templates = Templates::new(Some(source.to_owned()), &json!({}))?;
    templates.render(&Conversation { messages: vec![json!({ "role": "user", "content": "x" })], ..Default::default() })
}

/// None of these ends the process: each is rendered or refused.
#[test]
fn templates_cannot_nest_or_recurse_without_end() {
    for source in [
        "{% set ns=namespace() %}{% set ns.a=ns %}{{ ns }}",
        "{% set ns=namespace() %}{%- set  ns.a = [ns] -%}{{ ns ~ '' }}",
        "{% set ns=namespace() %}{% set x = ns %}{% set (ns.a, y) = ({'b': x}, 1) %}{{ ns|tojson }}",
        "{% set ns=namespace() %}{% set ns.a | default(ns, true) %}{% endset %}{{ ns|string }}",
        "{% set ns=namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
        "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}",
    ] {
        assert!(rendered(source).is_err(), "{source}");
    }
    for (open, close) in
        [("not ", "a"), ("-", "1"), ("1~", "1"), ("[", "]"), ("(", ")"), ("a if ", "b"), ("{'a':", "1"), ("a.b(", "1")]
    {
        let source = format!("{{{{ {}{close} }}}}", open.repeat(50_000));
        let _ = rendered(&source);
    }
    for part in [".a", "|string", "[0]", " is defined", "()", "+1", " and a", " == a"] {
        let _ = rendered(&format!("{{{{ a{} }}}}", part.repeat(30_000)));
    }
    let _ = rendered(&"{% if a %}".repeat(20_000));
    let _ = rendered(&"{% for a in b recursive %}".repeat(9_000));
    let long = rendered(&"a".repeat(300_000)).unwrap_err().to_string();
    assert_eq!(long, "chat_template: has 300000 bytes; at most 262144 are taken");
    let end =
        rendered("{% set ns=namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}");
    assert_eq!(end.unwrap_err().to_string(), "the chat template: takes more than 3000000 steps");
}

#[test]
fn fields_of_namespaces_are_set_as_ever() {
    let source = "{% set ns = namespace(n=0, all=[], s='') %}{% for m in messages %}{%- set ns.n = ns.n + 1 -%}\
                  {% set ns.all = ns.all + [m.content, {'a': [1, none]}] %}{% set ns.s %}<{{ m.role }}>{% endset %}\
                  {% set ns.t, ns.u = 'c', 'd' %}{% set ns.m = messages[1:] %}{% endfor %}{{ ns.m }}{{ ns.n }} {{ ns.all }} {{ ns.s }}{{ ns.t }}{{ ns.u }}\
                  {# {% set ns.a = ns %} #}{% raw %}{% set ns.a = ns %}{% endraw %}{{ '{% set ns.a = ns %}' }}";
    let kept = "{% set ns.a = ns %}";
    assert_eq!(rendered(source).unwrap(), format!("[]1 ['x', {{'a': [1, None]}}] <user>cd{kept}{kept}"));
}
