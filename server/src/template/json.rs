//! `tojson` of templates: the output of Python's `json.dumps`.
use std::io::{self, Write};

use minijinja::value::{Kwargs, Value as Item};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use super::option;

/// How `json.dumps` writes.
struct Python {
    /// Blanks of one level.
    indent: Option<usize>,
    between: String,
    colon: String,
    ascii: bool,
    depth: usize,
    has_value: bool,
}

/// The filter.
pub fn tojson(value: Item, options: Kwargs) -> Result<Item, Error> {
    let wrong = |why: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {why}"));
    let ascii = option(&options, "ensure_ascii", false)?;
    let sort = option(&options, "sort_keys", false)?;
    let indent = option::<i64>(&options, "indent", -1)?;
    let indent = usize::try_from(indent).ok();
    let separators: Vec<String> = options.get::<Option<Vec<String>>>("separators")?.unwrap_or_default();
    options.assert_all_used()?;
    let [between, colon] = match <[String; 2]>::try_from(separators) {
        Ok(separators) => separators,
        Err(_) => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
    };
    let mut value: Value = serde_json::to_value(value).map_err(|error| wrong(error.to_string()))?;
    if sort {
        value.sort_all_objects();
    }
    let mut out = vec![];
    let python = Python { indent, between, colon, ascii, depth: 0, has_value: false };
    value.serialize(&mut Serializer::with_formatter(&mut out, python)).map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(out).map_err(|error| wrong(error.to_string()))?;
    Ok(Item::from_safe_string(text))
}

impl Python {
    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        write!(out, "\n{:1$}", "", indent * self.depth)
    }

    fn open<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.has_value) = (self.depth + 1, false);
        out.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value {
            self.line(out)?;
        }
        self.has_value = true;
        out.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.between.as_bytes())?;
        }
        self.line(out)
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.colon.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        // Both write the shortest digits, and exponents from the same sizes on.
        let text = format!("{value:?}");
        match text.split_once('e') {
            Some((digits, exponent)) => {
                let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
                write!(out, "{digits}e{sign}{exponent:0>2}")
            }
            None => out.write_all(text.as_bytes()),
        }
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(text.as_bytes());
        }
        for unit in text.encode_utf16() {
            match u8::try_from(unit).ok().filter(u8::is_ascii) {
                Some(byte) => out.write_all(&[byte])?,
                None => write!(out, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, out: &mut W, escape: CharEscape) -> io::Result<()> {
        let letter = match escape {
            CharEscape::Quote => '"',
            CharEscape::ReverseSolidus => '\\',
            CharEscape::Solidus => '/',
            CharEscape::Backspace => 'b',
            CharEscape::FormFeed => 'f',
            CharEscape::LineFeed => 'n',
            CharEscape::CarriageReturn => 'r',
            CharEscape::Tab => 't',
            CharEscape::AsciiControl(byte) => return write!(out, "\\u{byte:04x}"),
        };
        write!(out, "\\{letter}")
    }
}
