//! Byte-pair encoding over bytes, and the expressions that cut texts before it.
use serde_json::{Value as Json, json};

use super::{CONTROL, DEFINED, Tokens, UNKNOWN};
use crate::error::GgufError;
use crate::value::Metadata;

const MERGES: &str = "tokenizer.ggml.merges";
const CUTS: &str = "tokenizer.ggml.pre";

/// A way to cut texts into words, within which tokens are merged.
struct Cuts {
    /// Its names in files.
    names: &'static [&'static str],
    /// Expressions, each of which cuts what those before it have left.
    expressions: &'static [&'static str],
    /// Whether GPT-2's expression comes after them.
    gpt2: bool,
    /// Whether a word that is a token is not merged from its bytes.
    whole: bool,
    /// Whether texts are brought to their composed form first.
    composed: bool,
    /// Whether texts begin with a token unless a file says otherwise.
    begins: bool,
}

const USUAL: Cuts = Cuts { names: &[], expressions: &[], gpt2: false, whole: false, composed: false, begins: false };

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Letters that are large or small.
const CASED: &str = concat!(
    r"\s?[A-Za-z",
    "µÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ",
    "Ὀ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ",
    "-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃",
    "]+",
);

/// All ways that are known.
const ALL: &[Cuts] = &[
    Cuts {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        expressions: &[LLAMA3],
        whole: true,
        begins: true,
        ..USUAL
    },
    Cuts { names: &["dbrx", "smaug-bpe"], expressions: &[LLAMA3], ..USUAL },
    Cuts { names: &["chatglm-bpe"], expressions: &[LLAMA3], ..USUAL },
    Cuts { names: &["glm4", "glm5"], expressions: &[LLAMA3], whole: true, ..USUAL },
    Cuts {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"],
        expressions: &[QWEN2],
        composed: true,
        ..USUAL
    },
    Cuts { names: &["stablelm2", "hunyuan", "solar-open"], expressions: &[QWEN2], ..USUAL },
    Cuts { names: &["qwen35"], expressions: &[QWEN3_5], composed: true, ..USUAL },
    Cuts { names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"], expressions: &[GPT4O], ..USUAL },
    Cuts { names: &["tekken"], expressions: &[TEKKEN], whole: true, begins: true, ..USUAL },
    Cuts {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        expressions: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
        ..USUAL
    },
    Cuts {
        names: &["deepseek-llm"],
        expressions: &["[\r\n]", CASED, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ..USUAL
    },
    Cuts {
        names: &["deepseek-coder"],
        expressions: &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ..USUAL
    },
    Cuts {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "exaone4", "gigachat", "a.x-4.0", "mellum", "granite-docling"],
        gpt2: true,
        ..USUAL
    },
    Cuts {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"],
        expressions: &[r"\p{N}"],
        gpt2: true,
        ..USUAL
    },
    Cuts { names: &["default"], expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..USUAL },
];

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// The way that a file names. One without a name is older than the names.
fn cuts(metadata: &Metadata) -> Result<&'static Cuts, GgufError> {
    let found = metadata.text(CUTS)?.unwrap_or("default");
    let known = || ALL.iter().flat_map(|cuts| cuts.names).copied().collect::<Vec<_>>().join(", ");
    let cuts = ALL.iter().find(|cuts| cuts.names.contains(&found));
    cuts.ok_or_else(|| GgufError::Unknown { key: CUTS.to_owned(), found: found.to_owned(), known: known() })
}

/// All names.
#[cfg(test)]
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().flat_map(|cuts| cuts.names).copied()
}

/// Whether texts begin with a token unless a file says otherwise.
pub fn begins(metadata: &Metadata) -> Result<bool, GgufError> {
    Ok(cuts(metadata)?.begins)
}

pub fn tokenizer(tokens: &Tokens) -> Result<Json, GgufError> {
    let cuts = cuts(tokens.metadata)?;
    let level =
        |gpt2: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": gpt2 });
    let split = |expression: &&str| json!({ "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated", "invert": false });
    let mut words: Vec<Json> = cuts.expressions.iter().map(split).collect();
    words.push(level(cuts.gpt2));
    let is_word = |id: usize| !matches!(tokens.types[id], UNKNOWN | CONTROL | DEFINED);
    let letters = letters();
    let spell = |id: usize| if is_word(id) { spelled(tokens.all[id], &letters) } else { tokens.all[id].to_owned() };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": tokens.added(|_| true, false),
        "normalizer": cuts.composed.then(|| json!({ "type": "NFC" })),
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": words },
        "post_processor": tokens.post_processor()?,
        "decoder": level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": cuts.whole,
            "vocab": tokens.vocabulary(spell), "merges": merges(tokens.metadata)?,
        },
    }))
}

/// A token in the letters that stand for bytes. Some writers leave a token as it is in texts.
fn spelled(token: &str, letters: &[char; 256]) -> String {
    if token.chars().all(|letter| letters.contains(&letter)) {
        return token.to_owned();
    }
    token.bytes().map(|byte| letters[usize::from(byte)]).collect()
}

/// The letters that stand for bytes: a byte's own where that can be seen, and the next one above
/// 255 where it cannot.
fn letters() -> [char; 256] {
    let mut above = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        seen @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(seen),
        _ => above.next().expect("letters enough"),
    })
}

/// Pairs of tokens, those that are merged first before others. A pair has a space between its two.
fn merges<'a>(metadata: &'a Metadata) -> Result<Vec<[&'a str; 2]>, GgufError> {
    let all = metadata.texts(MERGES)?.ok_or_else(|| GgufError::NoKey { key: MERGES.to_owned() })?;
    let pair = |(at, merge): (usize, &'a str)| {
        let what = || format!("merge {at} is no pair of tokens with a space between them");
        merge.split_once(' ').map(|(one, two)| [one, two]).ok_or_else(|| GgufError::Tokenizer { what: what() })
    };
    all.into_iter().enumerate().map(pair).collect()
}
