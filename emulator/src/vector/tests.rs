//! Every mnemonic of the table against a scalar definition, over edge values and all their pairs;
//! then modifiers, one by one.
//!
//! Instructions are written as text and parsed, as those of kernels are. Definitions take and give
//! raw bits.
mod cross;
mod definitions;
mod modifiers;
mod predicates;

use std::collections::HashSet;

use super::{VectorOp, resolve, table};
use crate::decode::parse;
use crate::inst::Inst;
use crate::isa::Isa;
use crate::wave::{Mode, Rounding, Wave};

pub fn mode() -> Mode {
    Mode {
        round32: Rounding::NearestEven,
        round16_64: Rounding::NearestEven,
        denormals32_in: true,
        denormals32_out: true,
        denormals16_64_in: true,
        denormals16_64_out: true,
        dx10_clamp: true,
        ieee: true,
        fp16_ovfl: false,
    }
}

pub fn wave(chip: &str) -> Wave {
    Wave::new(Isa::find(chip).unwrap(), mode(), 0)
}

pub fn decode(text: &str, isa: &'static Isa) -> (Inst, VectorOp) {
    let mut inst = parse::instructions(text, 0).unwrap_or_else(|e| panic!("{text}: {e:?}")).remove(0);
    let op = resolve(&mut inst, isa).unwrap_or_else(|| panic!("{text} on {}", isa.name));
    (inst, op)
}

/// Parses, resolves and runs one instruction.
pub fn run(wave: &mut Wave, text: &str) {
    let (inst, op) = decode(text, wave.isa);
    // SAFETY: `resolve` chose the build for this machine.
    unsafe { (op.run)(wave, &inst) }
}

pub fn refused(chip: &str, text: &str) -> bool {
    let mut inst = parse::instructions(text, 0).unwrap().remove(0);
    resolve(&mut inst, Isa::find(chip).unwrap()).is_none()
}

/// The type of an operand of a test, as a letter: `u` 32 bits, `w` 64, `s` 16, `f` f32, `h` f16,
/// `d` f64; small shift amounts and exponents are `e`; `p` is a pair of f16, `q` a pair of 16-bit
/// integers, `b` a pair of bf16, `c` one.
fn edges(kind: char) -> Vec<u64> {
    let integers = [
        0,
        1,
        2,
        3,
        15,
        31,
        33,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0xffff,
        0x10000,
        0x7f_ffff,
        0x80_0000,
        0xff_ffff,
        0x100_0000,
        0x7fff_ffff,
        0x8000_0000,
        0x8000_0001,
        0xffff_fffe,
        0xffff_ffff,
        0x1234_5678,
        0xdead_beef,
    ];
    let floats = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        1.5,
        2.5,
        -0.5,
        0.1,
        255.5,
        65504.0,
        -65520.0,
        1e-7,
        2147483648.0,
        -2147483904.0,
        4294967040.0,
        f32::MAX,
        f32::MIN_POSITIVE,
        -1e-40,
        1e-45,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        448.0,
        -464.5,
        1e25,
    ];
    match kind {
        'u' | 'e' => integers.to_vec(),
        's' | 'c' => integers.iter().map(|x| x & 0xffff).collect(),
        'w' => integers.iter().flat_map(|x| [*x, x << 32 | 0x89ab_cdef, u64::MAX - x]).step_by(2).collect(),
        'f' => floats.iter().map(|x| x.to_bits().into()).chain([0x7f80_0001]).collect(),
        'd' => {
            let more = [f64::MAX, f64::MIN_POSITIVE, 5e-324, -1e-310, 0.1, 1e300, -3.5, 1e-200];
            floats.iter().map(|x| f64::from(*x)).chain(more).map(f64::to_bits).step_by(1).collect()
        }
        'h' => [
            0, 0x8000, 1, 0x83ff, 0x400, 0x3c00, 0xbc00, 0x3555, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01,
            0x4248, 0x1400, 0xd640,
        ]
        .to_vec(),
        'p' => edges('h').iter().zip(edges('h').iter().rev()).map(|(a, b)| a | b << 16).collect(),
        'q' => edges('s').iter().zip(edges('s').iter().rev()).map(|(a, b)| a | b << 16).collect(),
        'b' => edges('f').iter().zip(edges('f').iter().rev()).map(|(a, b)| a >> 16 | b & 0xffff_0000).collect(),
        other => panic!("no such kind: {other}"),
    }
}

/// All combinations of edge values of some kinds; of three sources every fifth, which still has all
/// pairs.
fn combinations(kinds: &str) -> Vec<Vec<u64>> {
    let mut all = vec![vec![]];
    for kind in kinds.chars() {
        let values = edges(kind);
        all = all
            .into_iter()
            .flat_map(|c: Vec<u64>| values.iter().map(move |v| c.iter().copied().chain([*v]).collect()))
            .collect();
    }
    let step = if kinds.len() > 2 { 5 } else { 1 };
    all.into_iter().step_by(step).collect()
}

fn is_wide(kind: char) -> bool {
    matches!(kind, 'w' | 'd')
}

/// Whether a result is as defined: all NaN are equal, and approximations may be off by one in the
/// last place.
fn same(kind: char, got: u64, want: u64, ulp: u64) -> bool {
    let close = |bits: u64| got == want || got ^ want < 1 << (bits - 1) && got.abs_diff(want) <= ulp;
    let nan = |x: u64| match kind {
        'f' => f32::from_bits(x as u32).is_nan(),
        'd' => f64::from_bits(x).is_nan(),
        'h' => x & 0x7fff > 0x7c00,
        _ => false,
    };
    match kind {
        'p' => same('h', got & 0xffff, want & 0xffff, ulp) && same('h', got >> 16, want >> 16, ulp),
        'b' => same('c', got & 0xffff, want & 0xffff, ulp) && same('c', got >> 16, want >> 16, ulp),
        'c' => got & 0xffff == want || got & 0x7fff > 0x7f80 && want & 0x7fff > 0x7f80,
        'h' | 's' => nan(got & 0xffff) && nan(want) || (got & 0xffff).abs_diff(want) <= ulp,
        'd' | 'w' => nan(got) && nan(want) || close(64),
        _ => nan(got) && nan(want) || close(32),
    }
}

/// A register or pair for operand `k`.
fn register(kind: char, k: usize) -> String {
    if is_wide(kind) { format!("v[{}:{}]", 2 * k, 2 * k + 1) } else { format!("v{}", 2 * k) }
}

/// Runs an instruction over all combinations and compares every lane. `kinds` is the result's
/// letter, `=`, the sources'; a `+` after the result says that the first source is the destination
/// itself.
pub fn check(chip: &str, mnemonic: &str, kinds: &str, ulp: u64, define: impl Fn(&[u64]) -> u64) {
    let (result, sources) = kinds.split_once('=').unwrap();
    let accumulates = result.ends_with('+');
    let result = result.chars().next().unwrap();
    let mut wave = wave(chip);
    let operand = |(k, kind): (usize, char)| register(kind, if accumulates { k } else { k + 1 });
    let named: Vec<String> = sources.chars().enumerate().skip(accumulates.into()).map(operand).collect();
    let text = format!("{mnemonic} {}, {}", register(result, 0), named.join(", "));
    let lanes = wave.isa.lanes as usize;
    for chunk in combinations(sources).chunks(lanes) {
        for (lane, values) in chunk.iter().enumerate() {
            for (k, value) in values.iter().enumerate() {
                let row = if accumulates { 2 * k } else { 2 * k + 2 };
                wave.vgpr[row][lane] = *value as u32;
                wave.vgpr[row + 1][lane] = (value >> 32) as u32;
            }
        }
        run(&mut wave, &text);
        for (lane, values) in chunk.iter().enumerate() {
            let low = u64::from(wave.vgpr[0][lane]);
            let got = if is_wide(result) { low | u64::from(wave.vgpr[1][lane]) << 32 } else { low };
            let want = define(values);
            assert!(same(result, got, want, ulp), "{chip}: {text}: of {values:x?} {got:#x}, not {want:#x}");
        }
    }
}

/// Mnemonics that the lists of definitions and predicates do not hold; each has a test of its own.
const ELSEWHERE: &[&str] = &[
    "v_readfirstlane_b32",
    "v_readlane_b32",
    "v_writelane_b32",
    "v_permlane16_b32",
    "v_permlanex16_b32",
    "v_permlane16_var_b32",
    "v_permlanex16_var_b32",
    "v_permlane64_b32",
    "v_permlane32_swap_b32",
    "v_permlane16_swap_b32",
    "v_mbcnt_lo_u32_b32",
    "v_mbcnt_hi_u32_b32",
    "v_swap_b32",
    "v_swap_b16",
    "v_nop",
    "v_pipeflush",
    "v_clrexcp",
    "v_cndmask_b32",
    "v_cndmask_b16",
    "v_add_co_u32",
    "v_sub_co_u32",
    "v_subrev_co_u32",
    "v_addc_co_u32",
    "v_add_co_ci_u32",
    "v_subb_co_u32",
    "v_sub_co_ci_u32",
    "v_subbrev_co_u32",
    "v_subrev_co_ci_u32",
    "v_mad_u64_u32",
    "v_mad_co_u64_u32",
    "v_mad_i64_i32",
    "v_mad_co_i64_i32",
    "v_div_scale_f32",
    "v_div_scale_f64",
    "v_div_fmas_f32",
    "v_div_fmas_f64",
    "v_fma_mix_f32",
    "v_fma_mixlo_f16",
    "v_fma_mixhi_f16",
    "v_mad_mix_f32",
    "v_mad_mixlo_f16",
    "v_mad_mixhi_f16",
    "v_pk_add_f32",
    "v_pk_mul_f32",
    "v_pk_fma_f32",
    "v_pk_mov_b32",
    "v_cvt_pk_f32_fp8",
    "v_cvt_pk_f32_bf8",
    "v_cvt_sr_fp8_f32",
    "v_cvt_sr_bf8_f32",
    "v_cvt_sr_pk_bf16_f32",
    "v_bitop3_b32",
    "v_bitop3_b16",
    "v_dot4_i32_iu8",
    "v_cvt_sr_bf16_f32",
    "v_cvt_sr_f16_f32",
    "v_dot8_i32_iu4",
];

#[test]
fn every_mnemonic_is_tested() {
    let tested: HashSet<&str> =
        definitions::names().chain(predicates::names()).chain(ELSEWHERE.iter().copied()).collect();
    let scaled = |name: &str| name.starts_with("v_cvt_scalef32");
    let mut missing: Vec<&str> = table().keys().filter(|n| !tested.contains(**n) && !scaled(n)).copied().collect();
    missing.sort();
    assert!(missing.is_empty(), "no test of {}", missing.join(" "));
}
