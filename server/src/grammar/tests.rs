use std::path::Path;

use super::*;
use crate::schedule::{Chooser, Settings};

/// Limits of a machine that has other work, and of a build that is not optimised.
fn patient() -> FormLimits {
    FormLimits { prepare: FOR_EVER, mask: FOR_EVER, answer: FOR_EVER, ..FormLimits::default() }
}

fn grammars() -> (Grammars, Arc<Text>, u32) {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3"));
    let text = Arc::new(Text::open(folder).unwrap());
    let end = text.token("<|end|>").unwrap();
    (Grammars::new(text.clone(), 512, vec![end], patient()), text, end)
}

fn prepared(grammars: &Grammars, form: &Form) -> Result<Prescribed, FormError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(grammars.prepare(form))
}

/// A guide to the text of an answer.
fn guide(grammars: &Grammars, form: &Form) -> Box<dyn Guide> {
    prepared(grammars, form).unwrap().guide(Start::Text).unwrap()
}

/// What is wrong with a form.
fn refused(form: &Form) -> String {
    match prepared(&grammars().0, form).map(|_| ()) {
        Err(FormError::Fault(why)) => panic!("{why}"),
        Err(error) => error.to_string(),
        Ok(()) => panic!("{form:?} is taken"),
    }
}

const FOR_EVER: Duration = Duration::from_secs(60);

/// A guide's progress after a token.
fn last(guide: &mut dyn Guide, token: u32) -> Progress {
    guide.take(token).unwrap();
    guide.progress(FOR_EVER).unwrap()
}

/// What a model says that likes any other tokens better, at random.
fn said(form: &Form, seed: u32) -> String {
    let (grammars, text, end) = grammars();
    let mut chooser = Chooser::new(Settings::default(), Some(guide(&grammars, form)), &[]);
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
        if chooser.take(token).unwrap().is_some() || chooser.progress(FOR_EVER).unwrap() == Progress::Complete {
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
    let mut chooser = Chooser::new(Settings::default(), Some(guide(&grammars, &form)), &[]);
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
    let mut follow = prepared(&grammars, &number).unwrap().follow().unwrap();
    let digit = text.token("7").unwrap();
    let allowed = |guide: &mut dyn Guide| {
        let mut words = vec![u32::MAX; 16];
        guide.allow(&mut words).unwrap();
        [open, close, word, digit, end].map(|token| words[token as usize / 32] >> (token % 32) & 1 == 1)
    };
    assert_eq!(allowed(&mut follow), [false, false, false, true, false]);
    let mut guide = Behind { follow, open, close, place: Start::Either };
    assert_eq!(allowed(&mut guide), [true, false, false, true, false]);
    assert_eq!(guide.take(open), Ok(Progress::Open));
    assert_eq!(allowed(&mut guide), [true, true, true, true, false]);
    for token in [word, open, digit, close] {
        assert_eq!(guide.take(token), Ok(Progress::Open));
    }
    assert_eq!(allowed(&mut guide), [false, false, false, true, false]);
    assert_eq!(last(&mut guide, digit), Progress::Complete);
    // One that does not think follows at once.
    let follow = prepared(&grammars, &number).unwrap().follow().unwrap();
    assert_eq!(last(&mut Behind { follow, open, close, place: Start::Either }, digit), Progress::Complete);
}

#[test]
fn forms_that_are_none_are_refused() {
    for form in [
        Form::Regex("(".into()),
        Form::Regex(r"[^\s\S]".into()),
        Form::Lark("start: other".into()),
        Form::Lark("start: a\na: b\nb: a".into()),
        Form::Lark("a: b\nb: a".into()),
        Form::Json(json!({ "type": "what" })),
        Form::Json(json!({ "$ref": "#/nowhere" })),
        Form::Json(json!({ "$ref": "#" })),
        Form::Json(json!({ "$ref": "https://example.com/schema" })),
        Form::Json(json!({ "properties": { "a": { "$id": "b", "$ref": "#" } } })),
        Form::Json(json!(7)),
        Form::Choice(vec![]),
    ] {
        assert!(!refused(&form).is_empty(), "{form:?}");
    }
}

/// An object with `count` properties.
fn wide(count: usize, property: &Value) -> Value {
    json!({ "type": "object", "properties": (0..count).map(|i| (format!("k{i}"), property.clone())).collect::<serde_json::Map<_, _>>() })
}

fn rules(count: usize, rule: impl Fn(usize) -> String) -> Form {
    Form::Lark((0..count).map(rule).collect::<String>() + &format!("R{count}: \"b\"\nr{count}: \"b\"\n"))
}

#[test]
fn forms_that_are_too_much_are_refused_by_the_limit() {
    let alternatives = |i: usize| {
        let either = |name: &str| json!({ "type": "object", "properties": { format!("{name}{i}"): {} } });
        json!({ "anyOf": [either("a"), either("b")] })
    };
    let patterns = |i: usize| json!({ "type": "string", "pattern": format!("a.{{{i}}}$") });
    let chain: serde_json::Map<_, _> =
        (0..600).map(|i| (format!("d{i}"), json!({ "items": { "$ref": format!("#/$defs/d{}", i + 1) } }))).collect();
    let texts = |count: usize| (0..count).map(|i| format!("choice number {i}")).collect::<Vec<_>>();
    for (form, what) in [
        (Form::Json(wide(5000, &json!({}))), "5000 properties of one object; at most 2500"),
        (Form::Json(json!({ "required": texts(3000) })), "3000 properties of one object"),
        (Form::Json(json!({ "allOf": (0..12).map(alternatives).collect::<Vec<_>>() })), "4096 combined alternatives"),
        (Form::Json(json!({ "allOf": (0..9).map(alternatives).collect::<Vec<_>>() })), "512 combined alternatives"),
        (Form::Json(json!({ "allOf": (1..12).map(patterns).collect::<Vec<_>>() })), "11 expressions for one text"),
        (Form::Json(json!({ "$ref": "#/$defs/d0", "$defs": chain })), "1001 schemas within one another"),
        (Form::Json(json!({ "type": "integer", "multipleOf": 1_000_003 })), "1000003 units of `multipleOf`"),
        (Form::Json(json!({ "enum": texts(30_000) })), "30000 values of `enum`"),
        (Form::Json(json!({ "pattern": "a".repeat(70_000) })), "70000 bytes of one expression"),
        (
            rules(20_000, |i| format!("{}: \"a\" r{}\n", if i == 0 { "start".into() } else { format!("r{i}") }, i + 1)),
            "rules and terminals",
        ),
        (rules(5000, |i| format!("R{i}: \"a\" R{}\n", i + 1)), "rules and terminals; at most 2000"),
        (Form::Lark(format!("start: {}", quoted(&texts(60_000)))), "bytes"),
        (Form::Choice(texts(150_000)), "150000 choices; at most 100000 are taken"),
        (Form::Choice(vec!["a".repeat(3 << 20)]), "bytes of choices"),
        (Form::Regex("a".repeat(70_000)), "70000 bytes of one expression"),
        (Form::Regex("a?".repeat(25_000)), "steps behind one character"),
        (Form::Json(json!({ "pattern": "(a|b?)".repeat(2000) })), "steps behind one character"),
        (Form::Json(json!({ "patternProperties": { "[a-z]*".repeat(2000): {} } })), "steps behind one character"),
        (Form::Lark(format!("start: /{}/", "a*".repeat(2000))), "steps behind one character"),
        // What is named is written out where it stands, and what is not used takes nothing.
        (Form::Lark(format!("start: A\nA: {}\nB: \"b\"?", "B ".repeat(2000))), "steps behind one character"),
        (Form::Lark(format!("start: A\nA: {}\nB: \"b\"", "[B] ".repeat(2000))), "steps behind one character"),
        (Form::Lark(doubling(30)), "steps behind one character"),
        (Form::Lark(format!("{}%ignore T0", doubling(30).replace("T0\n", "\"a\"\n"))), "steps behind one character"),
        (Form::Lark(format!("start[stop=\"\"]: {}", "\"a\"? ".repeat(2000))), "steps behind one character"),
    ] {
        let clock = Clock::own();
        let why = form.check(&patient()).expect_err(what).to_string();
        let taken = clock.read().unwrap();
        assert!(why.contains(what), "{why}");
        assert!(taken < Duration::from_secs(1), "{what}: {taken:?}");
        assert_eq!(refused(&form), why);
    }
}

fn quoted(texts: &[String]) -> String {
    texts.iter().map(|text| json!(text).to_string()).collect::<Vec<_>>().join(" | ")
}

/// Terminals of which each is the next one twice.
fn doubling(count: usize) -> String {
    let terminals: String = (0..count).map(|i| format!("T{i}: T{} T{}\n", i + 1, i + 1)).collect();
    format!("start: T0\n{terminals}T{count}: \"b\"\n")
}

#[test]
fn expressions_that_take_their_length_are_taken() {
    let words: Vec<String> = (0..5000).map(|i| format!("word{i}")).collect();
    let unused = format!("start: \"a\"\n{}", doubling(30).replace("start: T0\n", ""));
    for form in [
        Form::Regex(words.join("|")),
        Form::Regex("a?".repeat(1000)),
        Form::Lark(format!("start: A\nA: ({}) /x/i~0..3", quoted(&words[..2000]))),
        Form::Lark(format!("start: {}", "A ".repeat(2000)) + "\nA: \"b\"?"),
        Form::Lark(doubling(12)),
        Form::Lark(unused),
    ] {
        assert_eq!(form.check(&patient()), Ok(()));
    }
}

#[test]
fn large_forms_are_followed() {
    let texts: Vec<String> = (0..10_000).map(|i| format!("choice number {i}")).collect();
    let answer = said(&Form::Choice(texts.clone()), 1);
    assert!(texts.contains(&answer), "{answer}");
    let answer = said(&Form::Json(json!({ "enum": texts })), 2);
    assert!(texts.contains(&serde_json::from_str(&answer).unwrap()), "{answer}");
    let answer = said(&Form::Json(wide(2000, &json!({ "type": "integer" }))), 3);
    assert!(answer.starts_with('{'), "{answer}");
}

#[test]
fn one_of_the_choices_is_followed() {
    let texts = ["yes", "yes, but", "no", "día"].map(str::to_owned).to_vec();
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..40 {
        found.insert(said(&Form::Choice(texts.clone()), seed));
    }
    assert_eq!(found, texts.iter().cloned().collect());
    // A text that ends an answer ends it at once, if no other text continues it.
    let (grammars, text, end) = grammars();
    let mut guide = guide(&grammars, &Form::Choice(vec!["7".into(), "71".into(), "71".into()]));
    let [seven, one] = ["7", "1"].map(|token| text.token(token).unwrap());
    assert_eq!(last(&mut *guide, seven), Progress::Open);
    let mut allowed = vec![u32::MAX; 16];
    guide.allow(&mut allowed).unwrap();
    assert_eq!(allowed.iter().map(|word| word.count_ones()).sum::<u32>(), 2);
    assert!([one, end].iter().all(|token| allowed[*token as usize / 32] >> (token % 32) & 1 == 1));
    assert_eq!(last(&mut *guide, one), Progress::Complete);
}

/// Masks of this form take seconds: its answer ends, and nothing is waited for.
#[test]
fn a_form_that_takes_too_long_ends_its_answer_alone() {
    let text =
        Arc::new(Text::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3"))).unwrap());
    let (end, a) = (text.token("<|end|>").unwrap(), text.token("a").unwrap());
    let slow: String = (0..1000).map(|i| format!("r{i}: r{}? \"x\"? \"a\"?\n", i + 1)).collect();
    let form = Form::Lark(format!("start: \"a\" r0\n{slow}r1000: \"b\"?\n"));
    let after = |mask| {
        let grammars = Grammars::new(text.clone(), 512, vec![end], FormLimits { mask, ..patient() });
        let mut guide = guide(&grammars, &form);
        (guide.take(a), guide)
    };
    assert_eq!(after(FOR_EVER).0, Ok(Progress::Busy));
    let (mut progress, mut guide) = after(Duration::from_millis(20));
    while progress == Ok(Progress::Busy) {
        progress = guide.progress(FOR_EVER);
    }
    let why = progress.unwrap_err();
    assert!(why.contains("takes longer than 0.02 s"), "{why}");
    // Others go on.
    assert_eq!(said(&Form::Lark("start: \"a\" \"b\"".into()), 1), "ab");
}

#[test]
fn forms_are_prepared_in_their_turn() {
    let limits = FormLimits { waiting: 1, wait: Duration::from_millis(50), ..FormLimits::default() };
    let workshop = Workshop::new(limits);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let wait = move |_: &Stop| {
            _ = gate.recv();
            Ok(1)
        };
        let first = workshop.make(wait);
        let second = async {
            tokio::task::yield_now().await;
            // One waits, and another finds no room; none waits for ever.
            let (waits, full) = tokio::join!(workshop.make(|_| Ok(2)), workshop.make(|_| Ok(3)));
            assert_eq!((waits, full), (Err(FormError::Busy), Err(FormError::Busy)));
            go.send(()).unwrap();
        };
        let (first, ()) = tokio::join!(first, second);
        assert_eq!(first, Ok(1));
        assert_eq!(workshop.make(|_| Ok(4)).await, Ok(4));
    });
}

#[test]
fn work_without_end_keeps_no_other_waiting() {
    let limits = FormLimits { prepare: Duration::from_millis(300), ..FormLimits::default() };
    let workshop = Workshop::new(limits);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    runtime.block_on(async {
        for _ in 0..3 {
            let is_over = is_over.clone();
            let spin = move |_: &Stop| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                Ok(0)
            };
            assert_eq!(workshop.make(spin).await, Err(FormError::Slow(limits.prepare)));
            assert_eq!(workshop.make(|_| Ok(1)).await, Ok(1));
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        // A panic is that of one form.
        let fails = |_: &Stop| -> Result<i32, FormError> { panic!("out of everything") };
        assert!(matches!(workshop.make(fails).await, Err(FormError::Wrong(_))));
        assert_eq!(workshop.make(|_| Ok(2)).await, Ok(2));
    });
}

#[test]
fn work_that_takes_long_keeps_no_quick_one_waiting() {
    let workshop = Workshop::new(patient());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = is_over.clone();
        let long = workshop.make(move |_: &Stop| {
            while !flag.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            Ok(1)
        });
        let quick = async {
            assert_eq!(workshop.make(|_: &Stop| Ok(2)).await, Ok(2));
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        };
        let (long, ()) = tokio::join!(long, quick);
        assert_eq!(long, Ok(1));
    });
}

#[test]
fn what_came_of_a_form_is_kept() {
    let (grammars, ..) = grammars();
    let form = Form::Json(json!({ "type": "integer" }));
    assert!(prepared(&grammars, &form).is_ok());
    assert!(grammars.shared.cache.get(&form).is_some_and(|outcome| outcome.is_ok()));
    let wrong = Form::Lark("start: other".into());
    assert!(prepared(&grammars, &wrong).is_err());
    assert!(grammars.shared.cache.get(&wrong).is_some_and(|outcome| outcome.is_err()));
    // What is large is not, and only some are.
    let large = Form::Json(wide(1000, &json!({})));
    prepared(&grammars, &large).unwrap();
    assert!(grammars.shared.cache.get(&large).is_none());
    for i in 0..100 {
        let _ = prepared(&grammars, &Form::Choice(vec![format!("{i}")]));
    }
    assert!(grammars.shared.cache.get(&form).is_none());
}
