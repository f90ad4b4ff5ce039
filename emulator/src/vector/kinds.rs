//! The types of operands: how a source becomes an array of lanes and how a result goes back.
//!
//! A handler fetches every source as an array of cells (with all its modifiers applied), computes
//! on values in one loop over the lanes, and stores the array of results: masks, modifiers of the
//! result and odd destinations are the store's business.
use super::{results, sources};
use crate::inst::{Inst, Operand};
use crate::num;
use crate::wave::{LANES, Mode, Rounding, Wave};

/// Cells of all lanes, 64 bits each.
pub type Wide = [u64; LANES];

/// The kind of an operand, which decides about constants, modifiers and flushing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Integers and plain bits.
    B16,
    B32,
    B64,
    /// 32 bits (or 16) that take signs as modifiers but are not arithmetic: `v_mov`, `v_cndmask`.
    M16,
    M32,
    F16,
    F32,
    F64,
    /// Two 16-bit values in one register; `op_sel`, `op_sel_hi` and `neg_*` choose and negate
    /// halves.
    Pk16,
    PkF16,
    /// Two f32 in two registers.
    PkF32,
    PkM32,
    /// Two bf16 in one register.
    PkBf16,
    /// f32, or one half of a register as f16 where `op_sel_hi` says so.
    Mix,
    /// Lanes as bits.
    Mask,
    /// A part of no interest to constants (register tuples of matrix instructions).
    Tuple,
}

/// A type of operand.
pub trait Kind {
    type Cell: Copy;
    type Value: Copy;
    const CLASS: Class;
    fn zero() -> [Self::Cell; LANES];
    fn get(cell: Self::Cell) -> Self::Value;
    fn put(value: Self::Value) -> Self::Cell;
    fn fetch(wave: &Wave, inst: &Inst, position: usize) -> [Self::Cell; LANES];
    fn store(wave: &mut Wave, inst: &Inst, cells: &mut [Self::Cell; LANES]);
    /// The rounding that results of this type obey.
    fn rounding(mode: &Mode) -> Rounding {
        mode.round32
    }
}

macro_rules! narrow {
    ($(#[$doc:meta])* $name:ident, $value:ty, $class:ident, $get:expr, $put:expr) => {
        $(#[$doc])*
        pub struct $name;
        impl Kind for $name {
            type Cell = u32;
            type Value = $value;
            const CLASS: Class = Class::$class;
            fn zero() -> [u32; LANES] {
                [0; LANES]
            }
            #[inline(always)]
            fn get(cell: u32) -> $value {
                let get: fn(u32) -> $value = $get;
                get(cell)
            }
            #[inline(always)]
            fn put(value: $value) -> u32 {
                let put: fn($value) -> u32 = $put;
                put(value)
            }
            #[inline(always)]
            fn fetch(wave: &Wave, inst: &Inst, position: usize) -> [u32; LANES] {
                sources::fetch32(wave, inst, position, Class::$class)
            }
            #[inline(always)]
            fn store(wave: &mut Wave, inst: &Inst, cells: &mut [u32; LANES]) {
                results::store32(wave, inst, cells, Class::$class)
            }
            fn rounding(mode: &Mode) -> Rounding {
                match Class::$class {
                    Class::F16 | Class::PkF16 => mode.round16_64,
                    _ => mode.round32,
                }
            }
        }
    };
}

macro_rules! wide {
    ($name:ident, $value:ty, $class:ident, $get:expr, $put:expr) => {
        pub struct $name;
        impl Kind for $name {
            type Cell = u64;
            type Value = $value;
            const CLASS: Class = Class::$class;
            fn zero() -> Wide {
                [0; LANES]
            }
            #[inline(always)]
            fn get(cell: u64) -> $value {
                let get: fn(u64) -> $value = $get;
                get(cell)
            }
            #[inline(always)]
            fn put(value: $value) -> u64 {
                let put: fn($value) -> u64 = $put;
                put(value)
            }
            #[inline(always)]
            fn fetch(wave: &Wave, inst: &Inst, position: usize) -> Wide {
                sources::fetch64(wave, inst, position, Class::$class)
            }
            #[inline(always)]
            fn store(wave: &mut Wave, inst: &Inst, cells: &mut Wide) {
                results::store64(wave, inst, cells, Class::$class)
            }
            fn rounding(mode: &Mode) -> Rounding {
                match Class::$class {
                    Class::F64 => mode.round16_64,
                    _ => mode.round32,
                }
            }
        }
    };
}

narrow!(U32, u32, B32, |c| c, |v| v);
narrow!(I32, i32, B32, |c| c as i32, |v| v as u32);
narrow!(U16, u16, B16, |c| c as u16, |v| v as u32);
narrow!(I16, i16, B16, |c| c as i16, |v| v as u16 as u32);
narrow!(Bits32, u32, M32, |c| c, |v| v);
narrow!(Bits16, u16, M16, |c| c as u16, |v| v as u32);
narrow!(F32, f32, F32, f32::from_bits, |v| v.to_bits());
narrow!(
    /// f16 as the f32 of the same value. Sums, products, quotients and roots of f16 that are
    /// rounded to f32 first do not suffer from the double rounding, since 24 >= 2 * 11 + 2.
    F16,
    f32,
    F16,
    |c| num::f16_to_f32(c as u16),
    |v| num::f32_to_f16(v) as u32
);
narrow!(
    /// F16 with signalling NaN among the values.
    S16,
    f32,
    F16,
    |c| num::f16_to_f32_signalling(c as u16),
    |v| num::f32_to_f16(v) as u32
);
narrow!(
    /// The bits of an f16 that is arithmetic (flushed, with sign modifiers).
    H16,
    u16,
    F16,
    |c| c as u16,
    |v| v as u32
);
narrow!(Mix, f32, Mix, f32::from_bits, |v| v.to_bits());
narrow!(Pk16, [u16; 2], Pk16, |c| [c as u16, (c >> 16) as u16], |v| v[0] as u32 | (v[1] as u32) << 16);
narrow!(
    PkF16,
    [f32; 2],
    PkF16,
    |c| [num::f16_to_f32(c as u16), num::f16_to_f32((c >> 16) as u16)],
    |v| num::f32_to_f16(v[0]) as u32 | (num::f32_to_f16(v[1]) as u32) << 16
);
narrow!(
    PkS16,
    [f32; 2],
    PkF16,
    |c| [num::f16_to_f32_signalling(c as u16), num::f16_to_f32_signalling((c >> 16) as u16)],
    |v| num::f32_to_f16(v[0]) as u32 | (num::f32_to_f16(v[1]) as u32) << 16
);
narrow!(
    PkBf16,
    [f32; 2],
    PkBf16,
    |c| [f32::from_bits(c << 16), f32::from_bits(c & 0xffff_0000)],
    |v| num::f32_to_bf16(v[0]) as u32 | (num::f32_to_bf16(v[1]) as u32) << 16
);
wide!(U64, u64, B64, |c| c, |v| v);
wide!(I64, i64, B64, |c| c as i64, |v| v as u64);
wide!(F64, f64, F64, f64::from_bits, |v| v.to_bits());
wide!(PkF32, [f32; 2], PkF32, |c| [f32::from_bits(c as u32), f32::from_bits((c >> 32) as u32)], |v| v[0].to_bits()
    as u64
    | (v[1].to_bits() as u64) << 32);
wide!(PkU32, [u32; 2], PkM32, |c| [c as u32, (c >> 32) as u32], |v| v[0] as u64 | (v[1] as u64) << 32);

/// The final bits of a constant operand of a class (a packed f16 has an inline constant in its
/// lower half, packed integers have the 32 bits of an f32); `None` for operands that are no
/// constants.
pub fn constant(operand: Operand, class: Class) -> Option<u64> {
    let bits = match (operand, class) {
        (Operand::Int(v), Class::B64 | Class::F64 | Class::Mask) => v as u64,
        (Operand::Int(v), Class::B16 | Class::M16 | Class::F16) => v as u16 as u64,
        (Operand::Int(v), _) => v as u32 as u64,
        (Operand::Float(v), Class::F64 | Class::B64) => half_turn(v).to_bits(),
        (Operand::Float(v), Class::B16 | Class::M16 | Class::F16 | Class::PkF16) => {
            num::f64_to_f16(v, Rounding::NearestEven) as u64
        }
        (Operand::Float(v), Class::PkBf16) => num::f32_to_bf16(v as f32) as u64,
        (Operand::Float(v), _) => (v as f32).to_bits() as u64,
        // A literal of 32 bits is the upper half of an f64.
        (Operand::Literal(v), Class::F64) if v <= u32::MAX as u64 => v << 32,
        (Operand::Literal(v), Class::B16 | Class::M16 | Class::F16) => v as u16 as u64,
        (Operand::Literal(v) | Operand::Const(v), _) => v,
        _ => return None,
    };
    Some(bits)
}

/// The text shortens 1/(2 pi) to eight digits.
fn half_turn(v: f64) -> f64 {
    if v == 0.15915494 || v == 0.15915494309189532 { f64::from_bits(0x3fc4_5f30_6dc9_c882) } else { v }
}
