//! The bytes of each token, which grammars need.
use std::collections::HashMap;

use tokenizers::{DecoderWrapper, Tokenizer};

/// The first byte of a special token.
const SPECIAL: u8 = 0xff;
/// How tokenizers of pieces write a blank.
const BLANK: char = '\u{2581}';

/// The bytes of tokens; none of a token that does not exist.
pub fn of(tokenizer: &Tokenizer, tokens: impl Iterator<Item = u32>) -> Vec<Vec<u8>> {
    let added = tokenizer.get_added_tokens_decoder();
    let levels = has_byte_level(tokenizer.get_decoder()).then(byte_level);
    let one = |id: u32| match (added.get(&id), tokenizer.id_to_token(id)) {
        (Some(token), _) if token.special => [&[SPECIAL], token.content.as_bytes()].concat(),
        (Some(token), _) => token.content.clone().into_bytes(),
        (None, Some(token)) => match &levels {
            Some(levels) => token.chars().filter_map(|c| levels.get(&c).copied()).collect(),
            None => piece(&token),
        },
        (None, None) => vec![],
    };
    tokens.map(one).collect()
}

fn has_byte_level(decoder: Option<&DecoderWrapper>) -> bool {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => true,
        Some(DecoderWrapper::Sequence(all)) => {
            all.get_decoders().iter().any(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_)))
        }
        _ => false,
    }
}

/// A piece of text with marks for blanks, or one byte as `<0x0A>`.
fn piece(token: &str) -> Vec<u8> {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => token.replace(BLANK, " ").into_bytes(),
    }
}

/// The characters that byte-level tokenizers write bytes as: those that can be printed are
/// themselves, the others follow from U+0100 on.
fn byte_level() -> HashMap<char, u8> {
    let is_shown = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let mut written = |byte: u8| {
        if is_shown(byte) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or_default()
    };
    (0..=u8::MAX).map(|byte| (written(byte), byte)).collect()
}
