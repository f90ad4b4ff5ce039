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
    // Nothing is held that cannot become one.
    let mut stops = Stops::new(vec!["stop".into()], false);
    assert_eq!((stops.push("go s").text, stops.push("o").text), ("go ".into(), "so".into()));
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
