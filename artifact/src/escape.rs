use std::ops::RangeInclusive;

/// Text of an artifact in a form that may be shown. Characters with a special meaning for a
/// terminal or a reader are written out, as `\u{1b}`: the maker of an artifact chooses its strings.
pub fn escaped(text: &str) -> String {
    replaced(text, |c| c.escape_default().collect())
}

/// The same for a line of JSON, which stays the same JSON: only its strings have such characters.
pub fn escaped_json(line: &str) -> String {
    replaced(line, |c| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect())
}

fn replaced(text: &str, escape: impl Fn(char) -> String) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        match hides(c) {
            true => shown += &escape(c),
            false => shown.push(c),
        }
        shown
    })
}

/// What Unicode has to hide or turn around text: soft hyphens, marks and fillers without width,
/// separators of lines, directions, annotations, beams of music, and tags.
const UNSEEN: [RangeInclusive<char>; 15] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff9}'..='\u{fffb}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// Control characters, line ends among them, and what is not seen.
fn hides(c: char) -> bool {
    c.is_control() || UNSEEN.iter().any(|range| range.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        assert_eq!(escaped("Qwen3 \u{e9}\u{4e2d} 'a' \\"), "Qwen3 \u{e9}\u{4e2d} 'a' \\");
        assert_eq!(escaped("a\x1b[2Jb\r\nc\0\x7f\u{9b}d"), r"a\u{1b}[2Jb\r\nc\u{0}\u{7f}\u{9b}d");
        assert_eq!(escaped("a\u{61c}b\u{ad}c\u{e0041}\u{180e}"), r"a\u{61c}b\u{ad}c\u{e0041}\u{180e}");
        assert_eq!(escaped("\u{202e}txt\u{2028}\u{feff}"), r"\u{202e}txt\u{2028}\u{feff}");
    }

    #[test]
    fn json_stays_the_same() {
        let tag = serde_json::json!("\u{e0041}\u{61c}");
        assert_eq!(escaped_json(&tag.to_string()), r#""\udb40\udc41\u061c""#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped_json(&tag.to_string())).unwrap(), tag);
        let value = serde_json::json!({ "\x1b\u{9b}": "\x7f\u{202e} \"\\\n" });
        let line = escaped_json(&value.to_string());
        assert_eq!(line, r#"{"\u001b\u009b":"\u007f\u202e \"\\\n"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
