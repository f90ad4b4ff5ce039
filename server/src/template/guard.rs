//! Chat templates are programs from elsewhere: none of them may recurse without end, or nest so
//! deep that the stack overflows.
//!
//! A value of Jinja can only become part of itself by way of a namespace, as `set` changes its
//! fields. So each value that a field is set to goes through a filter first, which takes plain
//! values alone, nested to a limited depth. The filter is written into the source where minijinja's
//! own lexer finds the assignment. The parser recurses within itself for some operators: the source
//! is short, and it is parsed and rendered on a deep stack.
use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value as Item, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::threads::{self, Place};

/// Most bytes of a template's source.
pub const SOURCE: usize = 256 << 10;
/// Most tokens of a tag: the parser searches nested expressions for constants again and again.
const TOKENS: usize = 2048;
/// For parsing and rendering: even a source of `SOURCE` bytes, each nesting an operator, takes only
/// a part of this stack.
pub const STACK: Place = Place { stack: 256 << 20, nice: 5 };
/// The filter, which no template can name anew.
pub const PLAIN: &str = "_plain";
/// How deep lists and maps nest in a field of a namespace.
const DEPTH: usize = 64;
/// Values in one.
const VALUES: usize = 100_000;

/// Types of maps that never change. Others show later contents of a namespace.
const OWNED: [&str; 2] = ["IndexMap<", "BTreeMap<"];

/// A source in which fields are only set to plain values.
pub fn guarded(source: &str) -> Result<String, String> {
    if source.len() > SOURCE {
        return Err(format!("has {} bytes; at most {SOURCE} are taken", source.len()));
    }
    let (mut made, mut written) = (String::with_capacity(source.len()), 0);
    let mut insert = |at: u32, text: &str| {
        made.push_str(&source[written..at as usize]);
        made.push_str(text);
        written = at as usize;
    };
    let mut place = Tag::Outside;
    let (mut before, mut tokens) = (0, 0);
    for token in tokenize(source, false, SyntaxConfig::default()) {
        // The parser reads the same text and reports a fault in it.
        let Ok((token, Span { end_offset, .. })) = token else { break };
        let begins = matches!(token, Token::TemplateData(_) | Token::BlockStart | Token::VariableStart);
        tokens = if begins { 0 } else { tokens + 1 };
        if tokens > TOKENS {
            return Err(format!("has a tag of more than {TOKENS} tokens"));
        }
        place = match (place, token) {
            (_, Token::BlockStart) => Tag::Begun,
            (Tag::Begun, Token::Ident("set")) => Tag::Target { has_field: false },
            (Tag::Target { .. }, Token::Dot) => Tag::Target { has_field: true },
            (Tag::Target { has_field: true }, Token::Assign) => {
                insert(end_offset, " (");
                Tag::Value
            }
            (Tag::Target { has_field }, Token::Pipe) => {
                if has_field {
                    Tag::Filters
                } else {
                    Tag::Outside
                }
            }
            (Tag::Value, Token::BlockEnd) => {
                insert(before, &format!(" ) | {PLAIN}"));
                Tag::Outside
            }
            (Tag::Filters, Token::BlockEnd) => {
                insert(before, &format!(" | {PLAIN}"));
                Tag::Outside
            }
            (place @ (Tag::Target { .. } | Tag::Value | Tag::Filters), token)
                if !matches!(token, Token::BlockEnd | Token::Assign) || matches!(place, Tag::Value | Tag::Filters) =>
            {
                place
            }
            _ => Tag::Outside,
        };
        before = end_offset;
    }
    made.push_str(&source[written..]);
    Ok(made)
}

/// The position of a token in a tag.
#[derive(Clone, Copy)]
enum Tag {
    Outside,
    Begun,
    /// The variable that is set, up to `=` or `|`.
    Target {
        has_field: bool,
    },
    Value,
    Filters,
}

/// The filter: the value as one that is never changed.
pub fn plain(value: Item) -> Result<Item, Error> {
    let mut seen = 0;
    own(value, 0, &mut seen)
}

fn own(value: Item, depth: usize, seen: &mut usize) -> Result<Item, Error> {
    let wrong = |why: String| Err(Error::new(ErrorKind::InvalidOperation, format!("a field is set to {why}")));
    *seen += 1;
    if depth > DEPTH || *seen > VALUES {
        return wrong(format!("values that nest deeper than {DEPTH}, or are more than {VALUES}"));
    }
    let name = value.as_object().map_or("", |object| object.type_name());
    match value.kind() {
        ValueKind::Map if !OWNED.iter().any(|owned| name.contains(owned)) => {
            wrong(format!("a `{}`", name.rsplit("::").next().unwrap_or(name)))
        }
        ValueKind::Map => {
            let entry = |key: Item| Ok((key.clone(), own(value.get_item(&key)?, depth + 1, seen)?));
            let entries = value.try_iter()?.map(entry).collect::<Result<Vec<_>, Error>>()?;
            Ok(Item::from_pairs(entries))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Item> =
                value.try_iter()?.map(|item| own(item, depth + 1, seen)).collect::<Result<_, _>>()?;
            Ok(if name.contains("Tuple") { value } else { items.into() })
        }
        _ => Ok(value),
    }
}

/// Works on templates in a thread with a deep stack.
pub fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    threads::within("atomc-template", STACK, work).map_err(|error| error.to_string())
}
