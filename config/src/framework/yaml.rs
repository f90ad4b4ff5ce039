//! The part of YAML that options are written in: keys with values, objects and lists by their
//! indentation, and JSON. Everything else is refused, with its line.
use serde_json::{Map, Value, json};

/// Words for nothing, for yes and for no, as PyYAML reads them: in small letters, with a large
/// first one, or in large ones.
const NOTHING: [&str; 2] = ["~", "null"];
const YES: [&str; 3] = ["yes", "on", "true"];
const NO: [&str; 3] = ["no", "off", "false"];

/// First letters of values that are refused: anchors, tags, texts of several lines, and reserved
/// ones.
const REFUSED: [char; 9] = ['&', '*', '!', '|', '>', '%', '@', '`', '?'];

/// A line with content: its number, its indentation, and the text after that.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

/// The entries of a file.
pub fn read(text: &str) -> Result<Map<String, Value>, String> {
    let mut lines = vec![];
    for (number, line) in text.lines().enumerate() {
        let (number, bare) = (number + 1, without_comment(line).trim_end());
        let indent = bare.len() - bare.trim_start_matches(' ').len();
        let text = &bare[indent..];
        if text.starts_with('\t') {
            return Err(fault(number, "a tab is no indentation"));
        }
        // The mark is allowed before the first entry.
        if !(text.is_empty() || text == "---" && lines.is_empty()) {
            lines.push(Line { number, indent, text });
        }
    }
    let mut rest = &lines[..];
    let Some(first) = rest.first() else { return Ok(Map::new()) };
    let entries = object(&mut rest, first.indent)?;
    match rest.first() {
        Some(line) => Err(fault(line.number, "its indentation is that of nothing before it")),
        None => Ok(entries),
    }
}

fn fault(line: usize, what: &str) -> String {
    format!("line {line}: {what}")
}

/// A line without its comment. A comment begins after a blank.
fn without_comment(line: &str) -> &str {
    let (mut quoted, mut before) = (None, ' ');
    for (at, letter) in line.char_indices() {
        match quoted {
            Some(quote) if letter == quote && before != '\\' => quoted = None,
            Some(_) => {}
            None if letter == '#' && before.is_whitespace() => return &line[..at],
            None if matches!(letter, '"' | '\'') && matches!(before, ' ' | '[' | '{' | ',' | ':') => {
                quoted = Some(letter);
            }
            None => {}
        }
        before = letter;
    }
    line
}

/// The entries at an indentation, up to a line that has less.
fn object(rest: &mut &[Line], indent: usize) -> Result<Map<String, Value>, String> {
    let mut entries = Map::new();
    while let Some((line, behind)) = rest.split_first().filter(|(line, _)| line.indent == indent) {
        let colon = line.text.find(": ").or_else(|| line.text.strip_suffix(':').map(str::len));
        let at = colon.ok_or_else(|| fault(line.number, "must be a key, a colon and a value"))?;
        let key = scalar(line.number, &line.text[..at])?;
        let key = crate::compare::plain(&key);
        *rest = behind;
        let value = match line.text[at + 1..].trim() {
            "" => below(rest, indent)?,
            text => scalar(line.number, text)?,
        };
        if entries.insert(key.clone(), value).is_some() {
            return Err(fault(line.number, &format!("{key} stands there twice")));
        }
    }
    Ok(entries)
}

/// The value of a key that has none on its own line: an object, a list, or nothing.
fn below(rest: &mut &[Line], indent: usize) -> Result<Value, String> {
    let Some(line) = rest.first() else { return Ok(Value::Null) };
    let (is_item, inside) = (item(line.text).is_some(), line.indent);
    match inside > indent {
        // Items may have the indent of their key.
        _ if is_item && inside >= indent => list(rest, inside),
        true => Ok(Value::Object(object(rest, inside)?)),
        false => Ok(Value::Null),
    }
}

fn item(text: &str) -> Option<&str> {
    text.strip_prefix("- ").or_else(|| text.strip_prefix('-').filter(|rest| rest.is_empty()))
}

fn list(rest: &mut &[Line], indent: usize) -> Result<Value, String> {
    let mut items = vec![];
    while let Some((line, behind)) = rest.split_first().filter(|(line, _)| line.indent == indent) {
        let Some(text) = item(line.text) else { break };
        let text = text.trim();
        if text.is_empty() || text.starts_with("- ") || text.contains(": ") && !text.starts_with(['"', '\'', '{', '['])
        {
            return Err(fault(line.number, "an item of a list must be one value, or JSON"));
        }
        items.push(scalar(line.number, text)?);
        *rest = behind;
    }
    Ok(Value::Array(items))
}

/// A value on one line, as PyYAML takes it.
fn scalar(line: usize, text: &str) -> Result<Value, String> {
    let text = text.trim();
    match text.chars().next() {
        Some('"' | '{' | '[') => {
            serde_json::from_str(text).map_err(|_| fault(line, &format!("{text}: is no JSON on one line")))
        }
        Some('\'') => match text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
            Some(inside) => Ok(json!(inside.replace("''", "'"))),
            None => Err(fault(line, "a quotation mark is not closed on its line")),
        },
        Some(first) if REFUSED.contains(&first) => Err(fault(line, &format!("`{first}` is not understood here"))),
        _ => plain(line, text),
    }
}

/// A value without quotation marks.
fn plain(line: usize, text: &str) -> Result<Value, String> {
    let spelled = |word: &&str| {
        let (first, others) = word.split_at(1);
        [word.to_string(), word.to_uppercase(), first.to_uppercase() + others].iter().any(|other| other == text)
    };
    let is = |words: &[&str]| words.iter().any(spelled);
    if is(&NOTHING) {
        return Ok(Value::Null);
    }
    if is(&YES) || is(&NO) {
        return Ok(json!(is(&YES)));
    }
    let digits = text.trim_start_matches(['+', '-']).replace('_', "");
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit())
        && digits.chars().all(|digit| digit.is_ascii_hexdigit() || "xo.:+-eE".contains(digit));
    let other_base = is_number && digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
    if other_base || is_number && digits.contains(':') {
        return Err(fault(
            line,
            &format!("{text}: write the number with decimal digits, or the text in quotation marks"),
        ));
    }
    match serde_json::from_str::<Value>(&text.replace('_', "")) {
        Ok(number @ Value::Number(_)) if is_number => Ok(number),
        _ => Ok(json!(text)),
    }
}

#[cfg(test)]
mod tests;
