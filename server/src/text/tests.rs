use super::*;

fn model() -> Text {
    Text::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3"))).unwrap()
}

#[test]
fn pieces_are_the_whole() {
    let text = model();
    for line in ["Q: Ana has 12 apples.", "día — 千 🦀🦀\u{301}!", "", "a\u{fffd}b", "\n\n  x "] {
        let tokens = text.encode(line, false, 1000).unwrap();
        let mut reader = Reader::new(true);
        let mut pieces: Vec<String> = tokens.iter().map(|&token| reader.push(&text, token).unwrap()).collect();
        pieces.push(reader.end(&text).unwrap());
        assert_eq!(pieces.concat(), text.decode(&tokens, true).unwrap(), "{pieces:?}");
    }
    // Bytes that never end a character do not pile up.
    let crab = text.encode("🦀", false, 1000).unwrap();
    let (mut reader, mut found) = (Reader::new(true), String::new());
    for _ in 0..100 {
        found += &reader.push(&text, crab[0]).unwrap();
        assert!(reader.tokens.len() <= 2 * MOST_PENDING);
    }
    found += &reader.end(&text).unwrap();
    assert!(crab.len() > 1 && found.chars().count() >= 100 && found.chars().all(|c| c == '\u{fffd}'), "{found}");
}

#[test]
fn long_prompts_are_refused_before_they_are_cut_up() {
    let fault = model().encode(&"x".repeat(1 << 20), true, 16).unwrap_err().to_string();
    assert_eq!(fault, "a prompt of 1048576 bytes is longer than any of 16 tokens");
}

#[test]
fn tokens_are_their_bytes() {
    let text = model();
    let bytes = text.bytes(600);
    assert_eq!(bytes.len(), 600);
    for line in ["Q: Ana has 12 apples.\nA:", "día — 千 🦀"] {
        let tokens = text.encode(line, false, 1000).unwrap();
        let joined: Vec<u8> = tokens.iter().flat_map(|&token| bytes[token as usize].clone()).collect();
        assert_eq!(String::from_utf8_lossy(&joined), line);
    }
    let end = text.token("<|end|>").unwrap();
    assert_eq!(bytes[end as usize], b"\xff<|end|>");
    assert_eq!(bytes[599], b"");
}

fn run(texts: &[&str], keep: bool, pieces: &[&str]) -> (String, bool) {
    let mut stops = Stops::new(texts.iter().map(|&text| text.to_owned()).collect(), keep);
    let mut all = String::new();
    for piece in pieces {
        let shown = stops.push(piece);
        all += &shown.text;
        if shown.ends {
            return (all, true);
        }
    }
    (all + &stops.end(), false)
}

#[test]
fn stops_are_found_across_pieces() {
    assert_eq!(run(&["\n\n"], false, &["a\n", "b\n", "\nc"]), ("a\nb".into(), true));
    assert_eq!(run(&["\n\n"], true, &["a\n", "b\n", "\nc"]), ("a\nb\n\n".into(), true));
    assert_eq!(run(&["END", "D."], false, &["the E", "N", "D. x"]), ("the ".into(), true));
    assert_eq!(run(&["END"], false, &["the E", "NE", "N"]), ("the ENEN".into(), false));
    assert_eq!(run(&["aab"], false, &["a", "a", "a", "b"]), ("a".into(), true));
    assert_eq!(run(&["é!"], false, &["caf", "é", "?é", "!"]), ("café?".into(), true));
    assert_eq!(run(&["", "x"], false, &["abc"]), ("abc".into(), false));
    assert_eq!(run(&["abab!", "bc"], true, &["xaba", "bab", "!"]), ("xababab!".into(), true));
    assert_eq!(run(&["ab", "abc"], true, &["xabc"]), ("xab".into(), true));
    // Nothing is held that cannot become one.
    let mut stops = Stops::new(vec!["stop".into()], false);
    assert_eq!((stops.push("go s").text, stops.push("o").text), ("go ".into(), "so".into()));
}

/// Texts that almost match again and again cost about their length once.
#[test]
fn long_stops_are_looked_for_in_time() {
    let texts: Vec<String> = (0..64).map(|i| "a".repeat(200 + i) + "b").collect();
    let mut stops = Stops::new(texts, false);
    let began = std::time::Instant::now();
    let mut shown = String::new();
    for _ in 0..20_000 {
        shown += &stops.push("aaaa").text;
    }
    shown += &stops.end();
    assert_eq!(shown.len(), 80_000);
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    // Answers share the texts.
    let copy = stops.clone();
    assert_eq!(copy.push_all(&["x", "aa"]), "xaa");
}

impl Stops {
    fn push_all(mut self, pieces: &[&str]) -> String {
        let mut shown: String = pieces.iter().map(|piece| self.push(piece).text).collect();
        shown += &self.end();
        shown
    }
}

/// The example's tokenizer with another field.
fn changed(change: impl Fn(&mut serde_json::Value)) -> Result<Text, TextError> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3"));
    let mut file = serde_json::from_slice(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
    change(&mut file);
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("tokenizer.json"), file.to_string()).unwrap();
    Text::open(place.path())
}

#[test]
fn truncation_and_padding_are_left_aside() {
    let line = "Q: Ana has 12 apples. Ana buys 7 more.";
    let expect = model().encode(line, true, 1000).unwrap();
    let cut = serde_json::json!({ "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 });
    let wide = serde_json::json!({
        "strategy": { "Fixed": 100_000_000 }, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<|end|>",
    });
    for (field, value) in [("truncation", cut), ("padding", wide)] {
        let text = changed(|file| file[field] = value.clone()).unwrap();
        assert_eq!(text.encode(line, true, 1000).unwrap(), expect, "{field}");
    }
    let bad = serde_json::json!({ "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 9 });
    let text = changed(|file| file["truncation"] = bad.clone()).unwrap();
    assert_eq!(text.encode(line, true, 1000).unwrap(), expect);
}

#[test]
fn tokenizers_that_grow_texts_are_refused() {
    let replace = |pattern: serde_json::Value, content: &str| serde_json::json!({ "type": "Replace", "pattern": pattern, "content": content });
    let grow = replace(serde_json::json!({ "String": "a" }), "aaaa");
    let normalizers = |all: Vec<serde_json::Value>| serde_json::json!({ "type": "Sequence", "normalizers": all });
    let decoders = |all: Vec<serde_json::Value>| serde_json::json!({ "type": "Sequence", "decoders": all });
    let blank = replace(serde_json::json!({ "String": " " }), "\u{2581}");
    assert!(changed(|file| file["normalizer"] = normalizers(vec![blank.clone(); 2])).is_ok());
    for (field, part, what) in [
        ("normalizer", normalizers(vec![grow.clone(); 3]), "normalizer: `Replace` makes a text 64 times as long"),
        ("decoder", decoders(vec![grow.clone(); 3]), "decoder: `Replace` makes a text 64 times as long"),
        ("normalizer", replace(serde_json::json!({ "String": "" }), "a"), "`Replace` with an empty pattern"),
        ("normalizer", replace(serde_json::json!({ "Regex": "." }), &"a".repeat(40)), "40 times"),
        ("normalizer", normalizers(vec![replace(serde_json::json!({ "String": "a" }), "b"); 70]), "more than 64 steps"),
        (
            "normalizer",
            serde_json::json!({ "type": "Prepend", "prepend": "a".repeat(100) }),
            "`prepend` of 100 bytes; at most 64",
        ),
    ] {
        let why = match changed(|file| file[field] = part.clone()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{part}"),
        };
        assert!(why.contains("tokenizer.json: ") && why.contains(what), "{why}");
    }
    let long = changed(|file| file["model"]["vocab"]["a".repeat(5000)] = 511.into());
    assert!(long.err().unwrap().to_string().contains("has 5000 bytes; at most 4096 are taken"));
    // A panic of the library is an error of the file.
    let wrong = changed(|file| file["model"]["continuing_subword_prefix"] = "##########################".into());
    assert!(wrong.is_err());
}

#[test]
fn a_decoder_that_panics_fails_one_answer() {
    let strip = serde_json::json!({ "type": "Strip", "content": "a", "start": 0, "stop": 9 });
    let text = changed(|file| file["decoder"] = strip.clone()).unwrap();
    let token = text.token("a").unwrap();
    assert!(text.decode(&[token], true).is_err());
}

#[test]
fn parts_of_characters_are_shown_as_bytes() {
    let text = model();
    let crab = text.encode("🦀", false, 1000).unwrap();
    let shown: Vec<Shown> = crab.iter().map(|&token| text.show(token)).collect();
    assert!(shown.len() > 1 && shown.iter().all(|shown| shown.text.starts_with("bytes:\\x")), "{shown:?}");
    assert_eq!(shown.iter().flat_map(|shown| shown.bytes.clone()).collect::<Vec<_>>(), "🦀".as_bytes());
    let whole = text.encode("a", false, 1000).unwrap();
    assert_eq!(text.show(whole[0]), Shown { text: "a".into(), bytes: b"a".to_vec() });
    assert_eq!(escaped(b" \xf0\x9f"), "bytes: \\xf0\\x9f");
}
