//! Scalar arithmetic on integers and masks. Floating-point is in `salu_float.rs`.
//!
//! Semantics: "SALU instructions" of the CDNA3 and RDNA4 instruction-set guides.
use super::salu_float;
use crate::inst::{Aperture, Inst, Operand, scalar};
use crate::mem::flat;
use crate::wave::Wave;

/// Executes a scalar instruction.
pub type ScalarRun = fn(&mut Wave, &Inst);

/// A scalar instruction and its use of the condition code.
#[derive(Clone, Copy)]
pub struct ScalarOp {
    pub run: ScalarRun,
    pub dsts: u8,
    /// The destination is read, too.
    pub reads_dst: bool,
    pub reads_scc: bool,
    pub writes_scc: bool,
}

/// A 32-bit source.
#[inline(always)]
pub fn src(wave: &Wave, operand: Operand) -> u32 {
    match operand {
        Operand::Scalar { index, .. } => wave.sgpr[usize::from(index)],
        Operand::Scc => u32::from(wave.scc),
        Operand::Aperture(a) => (aperture(a) >> 32) as u32,
        other => other.bits32().unwrap_or(0),
    }
}

/// A 64-bit source; 32-bit constants are extended by their sign.
#[inline(always)]
pub fn src64(wave: &Wave, operand: Operand) -> u64 {
    match operand {
        Operand::Scalar { index: scalar::NULL, .. } => 0,
        Operand::Scalar { index, .. } => wave.scalar64(index),
        Operand::Scc => u64::from(wave.scc),
        Operand::Aperture(a) => aperture(a),
        Operand::Int(v) => v as u64,
        Operand::Float(v) => v.to_bits(),
        Operand::Literal(v) => v,
        _ => 0,
    }
}

fn aperture(a: Aperture) -> u64 {
    match a {
        Aperture::SharedBase => flat::SHARED,
        Aperture::SharedLimit => flat::SHARED | 0xffff_ffff,
        Aperture::PrivateBase => flat::PRIVATE,
        Aperture::PrivateLimit => flat::PRIVATE | 0xffff_ffff,
    }
}

#[inline(always)]
pub fn put(wave: &mut Wave, operand: Operand, value: u32) {
    if let Operand::Scalar { index, .. } = operand {
        wave.set_scalar(index, value);
    }
}

#[inline(always)]
pub fn put64(wave: &mut Wave, operand: Operand, value: u64) {
    match operand {
        Operand::Scalar { index: scalar::NULL, .. } => {}
        Operand::Scalar { index: scalar::EXEC, .. } => wave.set_exec(value),
        Operand::Scalar { index, .. } => wave.set_scalar64(index, value),
        _ => {}
    }
}

const PLAIN: ScalarOp = ScalarOp { run: |_, _| {}, dsts: 1, reads_dst: false, reads_scc: false, writes_scc: false };

/// Result of two sources, condition code unchanged.
macro_rules! plain {
    (|$a:ident, $b:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $b) = (src(w, i.operand(1)), src(w, i.operand(2)));
                put(w, i.operand(0), $f)
            },
            ..PLAIN
        }
    };
    (|$a:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let $a = src(w, i.operand(1));
                put(w, i.operand(0), $f)
            },
            ..PLAIN
        }
    };
}

/// Result and condition code of two sources (or one).
macro_rules! flags {
    (|$a:ident, $b:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $b) = (src(w, i.operand(1)), src(w, i.operand(2)));
                let (value, scc): (u32, bool) = $f;
                put(w, i.operand(0), value);
                w.scc = scc;
            },
            writes_scc: true,
            ..PLAIN
        }
    };
    (|$a:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let $a = src(w, i.operand(1));
                let (value, scc): (u32, bool) = $f;
                put(w, i.operand(0), value);
                w.scc = scc;
            },
            writes_scc: true,
            ..PLAIN
        }
    };
}

/// Condition code: the result is not zero.
macro_rules! nonzero {
    (|$a:ident, $b:ident| $f:expr) => {
        flags!(|$a, $b| {
            let v: u32 = $f;
            (v, v != 0)
        })
    };
    (|$a:ident| $f:expr) => {
        flags!(|$a| {
            let v: u32 = $f;
            (v, v != 0)
        })
    };
}

/// 64-bit results; the second source may be 32 bits wide, which `$wide` says.
macro_rules! wide {
    (|$a:ident, $b:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $b) = (src64(w, i.operand(1)), src64(w, i.operand(2)));
                let v: u64 = $f;
                put64(w, i.operand(0), v);
                w.scc = v != 0;
            },
            writes_scc: true,
            ..PLAIN
        }
    };
    (|$a:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let $a = src64(w, i.operand(1));
                let v: u64 = $f;
                put64(w, i.operand(0), v);
                w.scc = v != 0;
            },
            writes_scc: true,
            ..PLAIN
        }
    };
}

macro_rules! wide_shift {
    (|$a:ident, $b:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $b) = (src64(w, i.operand(1)), src(w, i.operand(2)));
                let v: u64 = $f;
                put64(w, i.operand(0), v);
                w.scc = v != 0;
            },
            writes_scc: true,
            ..PLAIN
        }
    };
}

/// 64-bit results without a condition code.
macro_rules! wide_plain {
    (|$a:ident, $b:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $b) = (src64(w, i.operand(1)), src64(w, i.operand(2)));
                put64(w, i.operand(0), $f);
            },
            ..PLAIN
        }
    };
    (|$a:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let $a = src64(w, i.operand(1));
                put64(w, i.operand(0), $f);
            },
            ..PLAIN
        }
    };
}

macro_rules! compare {
    ($width:ident, |$a:ident, $b:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $b) = ($width(w, i.operand(0)), $width(w, i.operand(1)));
                w.scc = $f;
            },
            dsts: 0,
            writes_scc: true,
            ..PLAIN
        }
    };
}

/// `exec` combined with a source; the destination gets the old `exec`.
macro_rules! save_exec {
    (|$s:ident, $e:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let one = matches!(i.operand(0), Operand::Scalar { count: 1, .. });
                let $s = if one { u64::from(src(w, i.operand(1))) } else { src64(w, i.operand(1)) };
                let $e = w.exec();
                let v = $f & w.isa.all_lanes();
                match one {
                    true => put(w, i.operand(0), $e as u32),
                    false => put64(w, i.operand(0), $e),
                }
                w.set_exec(v);
                w.scc = v != 0;
            },
            writes_scc: true,
            ..PLAIN
        }
    };
}

/// The instruction of a mnemonic without its first `s_`.
pub fn resolve(mnemonic: &str) -> Option<ScalarOp> {
    let name = mnemonic.strip_prefix("s_")?;
    arithmetic(name)
        .or_else(|| logic(name))
        .or_else(|| logic64(name))
        .or_else(|| bit_fields(name))
        .or_else(|| counts(name))
        .or_else(|| moves(name))
        .or_else(|| compares(name))
        .or_else(|| immediates(name))
        .or_else(|| masks(name))
        .or_else(|| salu_float::resolve(name))
}

fn add_signed(a: u32, b: u32) -> (u32, bool) {
    let (v, overflow) = (a as i32).overflowing_add(b as i32);
    (v as u32, overflow)
}

fn sub_signed(a: u32, b: u32) -> (u32, bool) {
    let (v, overflow) = (a as i32).overflowing_sub(b as i32);
    (v as u32, overflow)
}

fn shift_add(a: u32, b: u32, n: u32) -> (u32, bool) {
    let v = (u64::from(a) << n) + u64::from(b);
    (v as u32, v >> 32 != 0)
}

fn arithmetic(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "add_u32" | "add_co_u32" => flags!(|a, b| a.overflowing_add(b)),
        "sub_u32" | "sub_co_u32" => flags!(|a, b| a.overflowing_sub(b)),
        "add_i32" | "add_co_i32" => flags!(|a, b| add_signed(a, b)),
        "sub_i32" | "sub_co_i32" => flags!(|a, b| sub_signed(a, b)),
        "addc_u32" | "add_co_ci_u32" => ScalarOp {
            run: |w, i| {
                let v = u64::from(src(w, i.operand(1))) + u64::from(src(w, i.operand(2))) + u64::from(w.scc);
                put(w, i.operand(0), v as u32);
                w.scc = v >> 32 != 0;
            },
            reads_scc: true,
            writes_scc: true,
            ..PLAIN
        },
        "subb_u32" | "sub_co_ci_u32" => ScalarOp {
            run: |w, i| {
                let (a, b) = (u64::from(src(w, i.operand(1))), u64::from(src(w, i.operand(2))) + u64::from(w.scc));
                put(w, i.operand(0), a.wrapping_sub(b) as u32);
                w.scc = b > a;
            },
            reads_scc: true,
            writes_scc: true,
            ..PLAIN
        },
        "min_i32" => flags!(|a, b| ((a as i32).min(b as i32) as u32, (a as i32) < b as i32)),
        "min_u32" => flags!(|a, b| (a.min(b), a < b)),
        "max_i32" => flags!(|a, b| ((a as i32).max(b as i32) as u32, (a as i32) >= b as i32)),
        "max_u32" => flags!(|a, b| (a.max(b), a >= b)),
        "mul_i32" => plain!(|a, b| a.wrapping_mul(b)),
        "mul_hi_u32" => plain!(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        "mul_hi_i32" => plain!(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
        "abs_i32" => nonzero!(|a| (a as i32).wrapping_abs() as u32),
        "absdiff_i32" => nonzero!(|a, b| (a as i32).wrapping_sub(b as i32).wrapping_abs() as u32),
        "lshl1_add_u32" => flags!(|a, b| shift_add(a, b, 1)),
        "lshl2_add_u32" => flags!(|a, b| shift_add(a, b, 2)),
        "lshl3_add_u32" => flags!(|a, b| shift_add(a, b, 3)),
        "lshl4_add_u32" => flags!(|a, b| shift_add(a, b, 4)),
        "add_nc_u64" | "add_u64" => wide_plain!(|a, b| a.wrapping_add(b)),
        "sub_nc_u64" | "sub_u64" => wide_plain!(|a, b| a.wrapping_sub(b)),
        "mul_u64" => wide_plain!(|a, b| a.wrapping_mul(b)),
        _ => return None,
    })
}

fn logic(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "and_b32" => nonzero!(|a, b| a & b),
        "or_b32" => nonzero!(|a, b| a | b),
        "xor_b32" => nonzero!(|a, b| a ^ b),
        "andn2_b32" | "and_not1_b32" => nonzero!(|a, b| a & !b),
        "orn2_b32" | "or_not1_b32" => nonzero!(|a, b| a | !b),
        "nand_b32" => nonzero!(|a, b| !(a & b)),
        "nor_b32" => nonzero!(|a, b| !(a | b)),
        "xnor_b32" => nonzero!(|a, b| !(a ^ b)),
        "not_b32" => nonzero!(|a| !a),
        "lshl_b32" => nonzero!(|a, b| a << (b & 31)),
        "lshr_b32" => nonzero!(|a, b| a >> (b & 31)),
        "ashr_i32" => nonzero!(|a, b| (a as i32 >> (b & 31)) as u32),
        "pack_ll_b32_b16" => plain!(|a, b| a & 0xffff | b << 16),
        "pack_lh_b32_b16" => plain!(|a, b| a & 0xffff | b & 0xffff_0000),
        "pack_hh_b32_b16" => plain!(|a, b| a >> 16 | b & 0xffff_0000),
        "pack_hl_b32_b16" => plain!(|a, b| a >> 16 | b << 16),
        _ => return None,
    })
}

fn logic64(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "and_b64" => wide!(|a, b| a & b),
        "or_b64" => wide!(|a, b| a | b),
        "xor_b64" => wide!(|a, b| a ^ b),
        "andn2_b64" | "and_not1_b64" => wide!(|a, b| a & !b),
        "orn2_b64" | "or_not1_b64" => wide!(|a, b| a | !b),
        "nand_b64" => wide!(|a, b| !(a & b)),
        "nor_b64" => wide!(|a, b| !(a | b)),
        "xnor_b64" => wide!(|a, b| !(a ^ b)),
        "not_b64" => wide!(|a| !a),
        "lshl_b64" => wide_shift!(|a, b| a << (b & 63)),
        "lshr_b64" => wide_shift!(|a, b| a >> (b & 63)),
        "ashr_i64" => wide_shift!(|a, b| (a as i64 >> (b & 63)) as u64),
        _ => return None,
    })
}

/// `(a >> offset)` of `width` bits, extended by zeros or by the sign.
fn field(a: u64, offset: u32, width: u32, signed: bool) -> u64 {
    let width = width.min(64);
    if width == 0 {
        return 0;
    }
    match signed {
        true => ((a as i64 >> offset) << (64 - width) >> (64 - width)) as u64,
        false => a >> offset & (u64::MAX >> (64 - width)),
    }
}

fn bit_fields(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "bfe_u32" => nonzero!(|a, b| field(a.into(), b & 31, b >> 16 & 127, false) as u32),
        "bfe_i32" => nonzero!(|a, b| field(i64::from(a as i32) as u64, b & 31, b >> 16 & 127, true) as u32),
        "bfe_u64" => wide_shift!(|a, b| field(a, b & 63, b >> 16 & 127, false)),
        "bfe_i64" => wide_shift!(|a, b| field(a, b & 63, b >> 16 & 127, true)),
        "bfm_b32" => plain!(|a, b| ((1u32 << (a & 31)) - 1) << (b & 31)),
        "bfm_b64" => wide_plain!(|a, b| ((1u64 << (a & 63)) - 1) << (b & 63)),
        "brev_b32" => plain!(|a| a.reverse_bits()),
        "brev_b64" => wide_plain!(|a| a.reverse_bits()),
        "sext_i32_i8" => plain!(|a| i32::from(a as i8) as u32),
        "sext_i32_i16" => plain!(|a| i32::from(a as i16) as u32),
        "bitset0_b32" => ScalarOp {
            run: |w, i| put(w, i.operand(0), src(w, i.operand(0)) & !(1 << (src(w, i.operand(1)) & 31))),
            reads_dst: true,
            ..PLAIN
        },
        "bitset1_b32" => ScalarOp {
            run: |w, i| put(w, i.operand(0), src(w, i.operand(0)) | 1 << (src(w, i.operand(1)) & 31)),
            reads_dst: true,
            ..PLAIN
        },
        "bitset0_b64" => ScalarOp {
            run: |w, i| put64(w, i.operand(0), src64(w, i.operand(0)) & !(1 << (src(w, i.operand(1)) & 63))),
            reads_dst: true,
            ..PLAIN
        },
        "bitset1_b64" => ScalarOp {
            run: |w, i| put64(w, i.operand(0), src64(w, i.operand(0)) | 1 << (src(w, i.operand(1)) & 63)),
            reads_dst: true,
            ..PLAIN
        },
        _ => return None,
    })
}

/// A 32-bit result of one 64-bit source.
macro_rules! narrow {
    (|$a:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let $a = src64(w, i.operand(1));
                put(w, i.operand(0), $f);
            },
            ..PLAIN
        }
    };
}

/// The number of a bit, or -1 for none.
fn found(n: u32, width: u32) -> u32 {
    if n == width { u32::MAX } else { n }
}

fn counts(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "bcnt1_i32_b32" => nonzero!(|a| a.count_ones()),
        "bcnt0_i32_b32" => nonzero!(|a| a.count_zeros()),
        "bcnt1_i32_b64" => ScalarOp { run: |w, i| count64(w, i, u64::count_ones), writes_scc: true, ..PLAIN },
        "bcnt0_i32_b64" => ScalarOp { run: |w, i| count64(w, i, u64::count_zeros), writes_scc: true, ..PLAIN },
        "ff1_i32_b32" | "ctz_i32_b32" => plain!(|a| found(a.trailing_zeros(), 32)),
        "ff0_i32_b32" => plain!(|a| found((!a).trailing_zeros(), 32)),
        "ff1_i32_b64" | "ctz_i32_b64" => narrow!(|a| found(a.trailing_zeros(), 64)),
        "ff0_i32_b64" => narrow!(|a| found((!a).trailing_zeros(), 64)),
        "flbit_i32_b32" | "clz_i32_u32" => plain!(|a| found(a.leading_zeros(), 32)),
        "flbit_i32_b64" | "clz_i32_u64" => narrow!(|a| found(a.leading_zeros(), 64)),
        "flbit_i32" | "cls_i32" => plain!(|a| found((a ^ (a as i32 >> 31) as u32).leading_zeros(), 32)),
        "flbit_i32_i64" | "cls_i32_i64" => narrow!(|a| found((a ^ (a as i64 >> 63) as u64).leading_zeros(), 64)),
        _ => return None,
    })
}

fn count64(w: &mut Wave, i: &Inst, f: fn(u64) -> u32) {
    let n = f(src64(w, i.operand(1)));
    put(w, i.operand(0), n);
    w.scc = n != 0;
}

fn moves(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "mov_b32" | "movk_i32" => plain!(|a| a),
        "mov_b64" => wide_plain!(|a| a),
        "cselect_b32" => ScalarOp {
            run: |w, i| put(w, i.operand(0), src(w, i.operand(if w.scc { 1 } else { 2 }))),
            reads_scc: true,
            ..PLAIN
        },
        "cselect_b64" => ScalarOp {
            run: |w, i| put64(w, i.operand(0), src64(w, i.operand(if w.scc { 1 } else { 2 }))),
            reads_scc: true,
            ..PLAIN
        },
        "cmov_b32" | "cmovk_i32" => ScalarOp {
            run: |w, i| {
                if w.scc {
                    put(w, i.operand(0), src(w, i.operand(1)));
                }
            },
            reads_scc: true,
            reads_dst: true,
            ..PLAIN
        },
        "cmov_b64" => ScalarOp {
            run: |w, i| {
                if w.scc {
                    put64(w, i.operand(0), src64(w, i.operand(1)));
                }
            },
            reads_scc: true,
            reads_dst: true,
            ..PLAIN
        },
        _ => return None,
    })
}

fn compares(name: &str) -> Option<ScalarOp> {
    let name = match name.strip_prefix("cmpk_") {
        Some(rest) => format!("cmp_{rest}"),
        None => name.to_string(),
    };
    Some(match name.as_str() {
        "cmp_eq_i32" | "cmp_eq_u32" => compare!(src, |a, b| a == b),
        "cmp_lg_i32" | "cmp_lg_u32" => compare!(src, |a, b| a != b),
        "cmp_gt_i32" => compare!(src, |a, b| a as i32 > b as i32),
        "cmp_ge_i32" => compare!(src, |a, b| a as i32 >= b as i32),
        "cmp_lt_i32" => compare!(src, |a, b| (a as i32) < b as i32),
        "cmp_le_i32" => compare!(src, |a, b| a as i32 <= b as i32),
        "cmp_gt_u32" => compare!(src, |a, b| a > b),
        "cmp_ge_u32" => compare!(src, |a, b| a >= b),
        "cmp_lt_u32" => compare!(src, |a, b| a < b),
        "cmp_le_u32" => compare!(src, |a, b| a <= b),
        "cmp_eq_u64" => compare!(src64, |a, b| a == b),
        "cmp_lg_u64" => compare!(src64, |a, b| a != b),
        "bitcmp0_b32" => compare!(src, |a, b| a >> (b & 31) & 1 == 0),
        "bitcmp1_b32" => compare!(src, |a, b| a >> (b & 31) & 1 != 0),
        "bitcmp0_b64" => compare!(src64, |a, b| a >> (b & 63) & 1 == 0),
        "bitcmp1_b64" => compare!(src64, |a, b| a >> (b & 63) & 1 != 0),
        _ => return None,
    })
}

/// Signed 16-bit immediates are printed without their sign: this gives it back to the instructions
/// with a `k` in their name.
pub fn extend_immediate(inst: &mut Inst) {
    let name = inst.mnemonic.strip_prefix("s_").unwrap_or("");
    let signed = matches!(name, "movk_i32" | "cmovk_i32" | "addk_i32" | "addk_co_i32" | "mulk_i32");
    if !(signed || name.starts_with("cmpk_") && name.ends_with("_i32")) {
        return;
    }
    if let Operand::Literal(v) = inst.operand(1) {
        inst.operands[1].operand = Operand::Int(i64::from(v as u16 as i16));
    }
}

fn immediates(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "addk_i32" | "addk_co_i32" => ScalarOp {
            run: |w, i| {
                let (v, overflow) = add_signed(src(w, i.operand(0)), src(w, i.operand(1)));
                put(w, i.operand(0), v);
                w.scc = overflow;
            },
            reads_dst: true,
            writes_scc: true,
            ..PLAIN
        },
        "mulk_i32" => ScalarOp {
            run: |w, i| put(w, i.operand(0), src(w, i.operand(0)).wrapping_mul(src(w, i.operand(1)))),
            reads_dst: true,
            ..PLAIN
        },
        _ => return None,
    })
}

fn masks(name: &str) -> Option<ScalarOp> {
    let name = name.strip_suffix("_b32").or_else(|| name.strip_suffix("_b64"))?;
    Some(match name {
        "and_saveexec" => save_exec!(|s, e| s & e),
        "or_saveexec" => save_exec!(|s, e| s | e),
        "xor_saveexec" => save_exec!(|s, e| s ^ e),
        "andn2_saveexec" | "and_not1_saveexec" => save_exec!(|s, e| s & !e),
        "andn1_saveexec" | "and_not0_saveexec" => save_exec!(|s, e| !s & e),
        "orn2_saveexec" | "or_not1_saveexec" => save_exec!(|s, e| s | !e),
        "orn1_saveexec" | "or_not0_saveexec" => save_exec!(|s, e| !s | e),
        "nand_saveexec" => save_exec!(|s, e| !(s & e)),
        "nor_saveexec" => save_exec!(|s, e| !(s | e)),
        "xnor_saveexec" => save_exec!(|s, e| !(s ^ e)),
        "andn2_wrexec" | "and_not1_wrexec" => {
            ScalarOp { run: |w, i| wrexec(w, i, |s, e| s & !e), writes_scc: true, ..PLAIN }
        }
        "andn1_wrexec" | "and_not0_wrexec" => {
            ScalarOp { run: |w, i| wrexec(w, i, |s, e| !s & e), writes_scc: true, ..PLAIN }
        }
        "wqm" => ScalarOp { run: whole_quads, writes_scc: true, ..PLAIN },
        _ => return None,
    })
}

/// `exec` and the destination both get the combination.
fn wrexec(w: &mut Wave, i: &Inst, f: fn(u64, u64) -> u64) {
    let v = f(w.mask(i.operand(1)), w.exec()) & w.isa.all_lanes();
    w.set_mask(i.operand(0), v);
    w.set_exec(v);
    w.scc = v != 0;
}

/// Every group of four lanes that has an active one becomes active as a whole.
fn whole_quads(w: &mut Wave, i: &Inst) {
    let any = w.mask(i.operand(1));
    let any = any | any >> 1;
    let first = (any | any >> 2) & 0x1111_1111_1111_1111;
    let v = (first * 15) & w.isa.all_lanes();
    w.set_mask(i.operand(0), v);
    w.scc = v != 0;
}
