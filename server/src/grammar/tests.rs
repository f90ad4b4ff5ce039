use std::path::Path;

use super::*;
use crate::schedule::{Chooser, Settings};

fn grammars() -> (Grammars, Arc<Text>, u32) {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3"));
    let text = Arc::new(Text::open(folder).unwrap());
    let end = text.token("<|end|>").unwrap();
    (Grammars::new(text.clone(), 512, vec![end]), text, end)
}

/// What a model says that likes any other tokens better, at random.
fn said(form: &Form, seed: u32) -> String {
    let (grammars, text, end) = grammars();
    let mut chooser = Chooser::new(Settings::default(), Some(grammars.guide(form, Start::Text).unwrap()), &[]);
    let mut tokens = vec![];
    let mut state = seed;
    for step in 0..300 {
        let mut number = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f32 / 65536.0
        };
        let mut row: Vec<f32> = (0..512).map(&mut number).collect();
        // Answers end some time.
        row[end as usize] += step as f32 / 50.0;
        for close in ["\"", "}", "]"] {
            row[text.token(close).unwrap() as usize] += step as f32 / 50.0;
        }
        let token = chooser.choose(&row).unwrap().token;
        if token == end {
            break;
        }
        tokens.push(token);
        if chooser.take(token).unwrap().is_some() {
            break;
        }
    }
    text.decode(&tokens, true).unwrap()
}

#[test]
fn answers_follow_a_schema() {
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 9 }, "age": { "type": "integer" } },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    for seed in 0..5 {
        let answer = said(&Form::Json(schema.clone()), seed);
        let value: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert!(
            value["name"].is_string() && value["age"].is_i64() && value.as_object().unwrap().len() == 2,
            "{answer}"
        );
    }
}

/// A model that likes blanks best still comes to an end of them.
#[test]
fn blanks_have_an_end() {
    let (grammars, text, _) = grammars();
    let form = Form::Json(json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"] }));
    let mut chooser = Chooser::new(Settings::default(), Some(grammars.guide(&form, Start::Text).unwrap()), &[]);
    let mut row = vec![0.0; 512];
    ["\n", " ", "}"]
        .iter()
        .for_each(|blank| row[text.token(&blank.replace('\n', "Ċ").replace(' ', "Ġ")).unwrap() as usize] = 9.0);
    let mut tokens = vec![];
    while tokens.len() < 200 {
        let token = chooser.choose(&row).unwrap().token;
        tokens.push(token);
        if chooser.take(token).unwrap().is_some() || text.decode(&tokens, true).unwrap().ends_with('}') {
            return;
        }
    }
    panic!("{:?}", text.decode(&tokens, true));
}

#[test]
fn answers_follow_an_expression() {
    for seed in 0..5 {
        let answer = said(&Form::Regex("(yes|no), [0-9]{3}\\.".into()), seed);
        let (word, number) = answer.split_once(", ").unwrap();
        assert!(["yes", "no"].contains(&word) && number.len() == 4 && number.ends_with('.'), "{answer}");
    }
    assert_eq!(said(&Form::Lark("start: \"a\" \"b\"".into()), 1), "ab");
}

#[test]
fn a_form_is_that_of_the_text_behind_a_thought() {
    let (grammars, text, end) = grammars();
    // The example knows no thoughts: two of its tokens stand for their tags.
    let [open, close, word] = ["A", "B", "C"].map(|token| text.token(token).unwrap());
    let number = Form::Regex("[0-9]".into());
    let mut follow = grammars.follow(&number).unwrap();
    let digit = text.token("7").unwrap();
    let allowed = |guide: &mut dyn Guide| {
        let mut words = vec![u32::MAX; 16];
        guide.allow(&mut words).unwrap();
        [open, close, word, digit, end].map(|token| words[token as usize / 32] >> (token % 32) & 1 == 1)
    };
    assert_eq!(allowed(&mut follow), [false, false, false, true, false]);
    let mut guide = Behind { follow, open, close, place: Start::Either };
    assert_eq!(allowed(&mut guide), [true, false, false, true, false]);
    assert!(!guide.take(open).unwrap());
    assert_eq!(allowed(&mut guide), [true, true, true, true, false]);
    for token in [word, open, digit, close] {
        assert!(!guide.take(token).unwrap());
    }
    assert_eq!(allowed(&mut guide), [false, false, false, true, false]);
    assert!(guide.take(digit).unwrap());
    // One that does not think follows at once.
    let follow = grammars.follow(&number).unwrap();
    assert!(Behind { follow, open, close, place: Start::Either }.take(digit).unwrap());
}

#[test]
fn forms_that_are_none_are_refused() {
    let (grammars, ..) = grammars();
    for form in [
        Form::Regex("(".into()),
        Form::Lark("start: other".into()),
        Form::Json(json!({ "type": "what" })),
        Form::Json(json!({ "$ref": "#/nowhere" })),
        Form::Json(json!(7)),
    ] {
        assert!(grammars.guide(&form, Start::Text).is_err(), "{form:?}");
    }
}
