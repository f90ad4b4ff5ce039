//! From the disassembler's text to [`Inst`]: mnemonic, operands, modifiers.
use super::modifier;
use crate::inst::{AGPR, Aperture, Half, Inst, MAX_OPERANDS, Modifiers, NO_SOURCE, Operand, Source, scalar};

/// Text that cannot be understood; the caller adds which instruction it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear(pub String);

/// One instruction, or the two halves of a dual one.
pub fn instructions(text: &str, address: u64) -> Result<Vec<Inst>, Unclear> {
    text.split(" :: ").map(|half| instruction(half.trim(), address)).collect()
}

fn instruction(text: &str, address: u64) -> Result<Inst, Unclear> {
    let (printed, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let dual = printed.strip_prefix("v_dual_");
    let mut inst = Inst {
        mnemonic: base(printed).into(),
        operands: [NO_SOURCE; MAX_OPERANDS],
        count: 0,
        modifiers: Modifiers::default(),
        address,
        aux: 0,
    };
    if takes_text(&inst.mnemonic) {
        return Ok(inst);
    }
    for word in words(rest) {
        if let Some(inner) = enclosed(&word, "gpr_idx(", ")") {
            inst.aux = indexed(inner).ok_or_else(|| Unclear(word.clone()))?;
            continue;
        }
        match source(&word) {
            Some(s) if inst.modifiers == Modifiers::default() => push(&mut inst, s)?,
            _ => modifier::apply(&mut inst.modifiers, &word).map_err(|()| Unclear(word))?,
        }
    }
    // The mask of a dual selection is always the condition register, and is not printed.
    if dual == Some("cndmask_b32") && inst.count == 3 {
        push(&mut inst, plain(Operand::Scalar { index: scalar::VCC, count: 1 }))?;
    }
    Ok(inst)
}

/// Instructions with operands that are expressions of their own; [`super::control`] reads them from
/// the text.
fn takes_text(mnemonic: &str) -> bool {
    let whole = ["s_waitcnt", "s_waitcnt_depctr", "s_wait_alu", "s_delay_alu", "s_sendmsg", "s_sendmsghalt"];
    whole.contains(&mnemonic) || mnemonic.starts_with("s_getreg") || mnemonic.starts_with("s_setreg")
}

/// The operands that take their registers by index: bits of three sources and the destination.
fn indexed(list: &str) -> Option<u64> {
    let names = ["SRC0", "SRC1", "SRC2", "DST"];
    let bit = |name: &str| Some(1 << names.iter().position(|n| *n == name)?);
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(bit).sum()
}

fn push(inst: &mut Inst, source: Source) -> Result<(), Unclear> {
    let slot = inst.operands.get_mut(usize::from(inst.count));
    *slot.ok_or_else(|| Unclear("too many operands".into()))? = source;
    inst.count += 1;
    Ok(())
}

/// The mnemonic without the suffix of its encoding and without the mark of a half of a dual
/// instruction.
fn base(printed: &str) -> String {
    let mut name = printed;
    for suffix in ["_e64_dpp", "_e64_dpp8", "_dpp8", "_dpp", "_sdwa", "_e32", "_e64"] {
        if let Some(short) = name.strip_suffix(suffix) {
            name = short;
            break;
        }
    }
    match name.strip_prefix("v_dual_") {
        Some(rest) => format!("v_{rest}"),
        None => name.to_string(),
    }
}

/// Words between commas and spaces that are outside all brackets.
fn words(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let (mut depth, mut word) = (0, String::new());
    for c in text.chars() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 && (c == ',' || c.is_whitespace()) {
            if !word.is_empty() {
                out.push(std::mem::take(&mut word));
            }
        } else if !c.is_whitespace() {
            word.push(c);
        }
    }
    if !word.is_empty() {
        out.push(word);
    }
    out
}

fn plain(operand: Operand) -> Source {
    Source { operand, ..NO_SOURCE }
}

/// An operand with the signs around it.
fn source(word: &str) -> Option<Source> {
    if let Some(inner) = enclosed(word, "neg(", ")") {
        return Some(Source { neg: true, ..source(inner)? });
    }
    if let Some(inner) = enclosed(word, "abs(", ")").or_else(|| enclosed(word, "|", "|")) {
        return Some(Source { abs: true, ..source(inner)? });
    }
    if let Some(inner) = enclosed(word, "sext(", ")") {
        return Some(Source { sext: true, ..source(inner)? });
    }
    if let Some(operand) = operand(word) {
        return Some(plain(operand));
    }
    let inner = word.strip_prefix('-')?;
    Some(Source { neg: true, ..source(inner)? })
}

fn enclosed<'a>(word: &'a str, open: &str, close: &str) -> Option<&'a str> {
    word.strip_prefix(open)?.strip_suffix(close)
}

/// A register, a constant or `off`.
fn operand(word: &str) -> Option<Operand> {
    number(word).or_else(|| special(word)).or_else(|| register(word))
}

fn number(word: &str) -> Option<Operand> {
    // A literal that could have been an inline constant.
    let word = enclosed(word, "lit(", ")").or_else(|| enclosed(word, "lit64(", ")")).unwrap_or(word);
    if let Some(hex) = word.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(Operand::Literal);
    }
    if !word.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return None;
    }
    match word.contains('.') {
        true => word.parse().ok().map(Operand::Float),
        false => word.parse().ok().map(Operand::Int),
    }
}

fn special(word: &str) -> Option<Operand> {
    use scalar::{EXEC, M0, NULL, VCC};
    let (index, count) = match word {
        "off" => return Some(Operand::Off),
        "scc" | "src_scc" => return Some(Operand::Scc),
        "src_shared_base" => return Some(Operand::Aperture(Aperture::SharedBase)),
        "src_shared_limit" => return Some(Operand::Aperture(Aperture::SharedLimit)),
        "src_private_base" => return Some(Operand::Aperture(Aperture::PrivateBase)),
        "src_private_limit" => return Some(Operand::Aperture(Aperture::PrivateLimit)),
        "vcc" => (VCC, 2),
        "vcc_lo" => (VCC, 1),
        "vcc_hi" => (VCC + 1, 1),
        "exec" => (EXEC, 2),
        "exec_lo" => (EXEC, 1),
        "exec_hi" => (EXEC + 1, 1),
        "m0" => (M0, 1),
        "null" => (NULL, 1),
        "flat_scratch" => (102, 2),
        "flat_scratch_lo" => (102, 1),
        "flat_scratch_hi" => (103, 1),
        "xnack_mask" => (104, 2),
        "xnack_mask_lo" => (104, 1),
        "xnack_mask_hi" => (105, 1),
        _ => return None,
    };
    Some(Operand::Scalar { index, count })
}

/// `v7`, `v7.h`, `s[0:3]`, `a[4:7]`, `ttmp9`.
fn register(word: &str) -> Option<Operand> {
    let (word, half) = match word.strip_suffix(".l").map(|w| (w, Half::Low)) {
        Some(found) => found,
        None => word.strip_suffix(".h").map_or((word, Half::Whole), |w| (w, Half::High)),
    };
    let digits = word.find(|c: char| c == '[' || c.is_ascii_digit())?;
    let (file, place) = word.split_at(digits);
    let (first, last) = match enclosed(place, "[", "]") {
        Some(range) => {
            let (a, b) = range.split_once(':').unwrap_or((range, range));
            (a.parse::<u16>().ok()?, b.parse::<u16>().ok()?)
        }
        None => {
            let n = place.parse().ok()?;
            (n, n)
        }
    };
    let count = u8::try_from(last.checked_sub(first)? + 1).ok()?;
    let scalars = |base: u8, limit: u16| {
        (last < limit).then(|| Operand::Scalar { index: base + u8::try_from(first).unwrap_or(0), count })
    };
    match file {
        "v" if last < AGPR => Some(Operand::Vector { row: first, count, half }),
        "a" if last < AGPR => Some(Operand::Vector { row: AGPR + first, count, half }),
        "s" => scalars(0, u16::from(scalar::VCC)),
        "ttmp" => scalars(scalar::TTMP, 16),
        _ => None,
    }
}

/// The number of a scalar register in text that is not parsed as an operand.
pub fn scalar_register(word: &str) -> Option<u8> {
    match operand(word.trim())? {
        Operand::Scalar { index, .. } => Some(index),
        _ => None,
    }
}
