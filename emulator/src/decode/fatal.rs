//! Words that crash LLVM's disassembler: it follows a null pointer, or reaches code that its
//! authors took for unreachable. None of them is an instruction of its chip, so they are refused
//! first.
//!
//! The usual one is a literal. LLVM 22 reads it once the encoding is decoded. After the longest
//! encoding of a chip (8 bytes, on gfx950 16) it has no bytes left for one, and reports that to a
//! stream that no longer exists. Registers that belong to no class of LLVM's are another.
use crate::isa::{Family, Isa};

/// As many dwords as the longest rule looks at.
pub type Words = [u32; 4];

/// A pattern that is no instruction of some chips.
struct Rule {
    name: &'static str,
    chips: fn(Family) -> bool,
    is_broken: fn(Words) -> bool,
}

/// The rule that `words` break, if they break one.
pub fn broken(isa: &Isa, words: Words) -> Option<&'static str> {
    let rule = RULES.iter().find(|rule| (rule.chips)(isa.family) && (rule.is_broken)(words))?;
    Some(rule.name)
}

/// Encodings and opcodes are those of the instruction-set guides of CDNA2 to CDNA4 and RDNA4.
static RULES: [Rule; 9] = [
    Rule { name: "a part of a register that there is not", chips: Family::is_cdna, is_broken: selects_nothing },
    Rule { name: "a literal behind eight bytes", chips: Family::is_cdna, is_broken: has_late_literal },
    Rule { name: "a comparison into a literal", chips: Family::is_cdna, is_broken: compares_into_literal },
    Rule { name: "a literal as a buffer's offset", chips: Family::is_cdna, is_broken: has_literal_offset },
    Rule { name: "scalars as sums of a matrix", chips: Family::is_cdna, is_broken: adds_scalars },
    Rule { name: "scalars as a matrix", chips: |f| f == Family::Gfx950, is_broken: multiplies_scalars },
    Rule { name: "scalars as 32 numbers", chips: |f| f == Family::Gfx950, is_broken: converts_scalars },
    Rule { name: "three trap registers", chips: |f| f >= Family::Gfx12, is_broken: loads_traps },
    Rule { name: "a literal as a barrier", chips: |f| f >= Family::Gfx12, is_broken: has_literal_barrier },
];

/// In place of an operand: parts of registers are selected in the next dword (SDWA).
const SDWA: u32 = 0xf9;
/// In place of an operand: a literal follows the instruction.
const LITERAL: u32 = 0xff;

/// The bits of a dword that an encoding is told by, from the highest down.
const VOP3: u32 = 0b11_0100;
const VOP3P: u32 = 0b1_1010_0111;
const MUBUF: u32 = 0b11_1000;
const MTBUF: u32 = 0b11_1010;
const SMEM: u32 = 0b11_1101;
const SOP1: u32 = 0b1_0111_1101;

/// `v_mfma_ld_scale_b32`, the first half of a scaled product of 16 bytes.
const LOAD_SCALE: u32 = 0x2c;

fn field(word: u32, at: u32, bits: u32) -> u32 {
    word >> at & ((1 << bits) - 1)
}

/// A source of VOP3, of the second dword.
fn source(word: u32, index: u32) -> u32 {
    field(word, 9 * index, 9)
}

fn is_vector(source: u32) -> bool {
    source >= 0x100
}

fn is_inline(source: u32) -> bool {
    (128..=208).contains(&source) || (240..=248).contains(&source)
}

fn is_vop3(first: u32) -> bool {
    first >> 26 == VOP3
}

/// The opcode of VOP3P.
fn packed_opcode(first: u32) -> Option<u32> {
    (first >> 23 == VOP3P).then_some(field(first, 16, 7))
}

fn selects_nothing([first, second, ..]: Words) -> bool {
    // Bit 31 is clear in the encodings VOP1, VOP2 and VOPC alone; these are told by seven bits.
    let (is_vop1, is_vopc) = (first >> 25 == 0x3f, first >> 25 == 0x3e);
    let no_result = field(second, 8, 3) == 7 || field(second, 11, 2) == 3;
    let no_source = field(second, 16, 3) == 7 || !is_vop1 && field(second, 24, 3) == 7;
    first >> 31 == 0 && field(first, 0, 9) == SDWA && (no_source || !is_vopc && no_result)
}

fn has_late_literal([first, second, _, fourth]: Words) -> bool {
    let of_scaled = packed_opcode(first) == Some(LOAD_SCALE) && source(fourth, 2) == LITERAL;
    is_vop3(first) && ((0..3).any(|index| source(second, index) == LITERAL) || of_scaled)
}

fn compares_into_literal([first, ..]: Words) -> bool {
    is_vop3(first) && field(first, 16, 10) < 0x100 && field(first, 0, 8) == LITERAL
}

fn has_literal_offset([first, second, ..]: Words) -> bool {
    [MUBUF, MTBUF].contains(&(first >> 26)) && field(second, 24, 8) == LITERAL
}

/// `v_accvgpr_read_b32` and `v_accvgpr_write_b32` have one source.
fn adds_scalars([first, second, ..]: Words) -> bool {
    let sums = source(second, 2);
    let is_product = packed_opcode(first).is_some_and(|op| op >= 0x40 && ![0x58, 0x59].contains(&op));
    is_product && !is_vector(sums) && !is_inline(sums)
}

/// Products of f8, f6 and f4, which are scaled or not.
fn multiplies_scalars(words: Words) -> bool {
    let [first, second] = match packed_opcode(words[0]) {
        Some(LOAD_SCALE) => [words[2], words[3]],
        _ => [words[0], words[1]],
    };
    packed_opcode(first).is_some_and(|op| [0x2d, 0x2e].contains(&op)) && (0..2).any(|i| !is_vector(source(second, i)))
}

/// `v_cvt_scalef32_*` between 32 numbers of f6 and of more bits.
fn converts_scalars([first, second, ..]: Words) -> bool {
    is_vop3(first) && matches!(field(first, 16, 10), 0x254..=0x257 | 0x260..=0x263) && !is_vector(source(second, 0))
}

/// `s_load_b96` and `s_buffer_load_b96`.
fn loads_traps([first, ..]: Words) -> bool {
    first >> 26 == SMEM && [5, 21].contains(&field(first, 13, 6)) && (108..=123).contains(&field(first, 6, 7))
}

/// `s_barrier_signal` and its kin.
fn has_literal_barrier([first, ..]: Words) -> bool {
    first >> 23 == SOP1 && (0x4e..=0x52).contains(&field(first, 8, 8)) && field(first, 0, 8) == LITERAL
}
