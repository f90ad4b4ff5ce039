//! Types of elements: the one list that configurations, graphs, artifacts and frameworks speak of.
mod encode;
pub mod step;
mod stored;

pub use encode::{Encode, Encoded, exponent};
pub use stored::{Fact, MOST_ADDED, Order, SCALES, STAR, TEXT, WORD, Whole, code, nth_name, places};

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE's float of 32 bits.
    F32,
    /// IEEE's float of 16 bits.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// `f8e4m3fn` of the OCP, saturating: numbers above 448 become 448. The result for a NaN is not
    /// defined.
    F8E4M3,
    /// `e8m0` of the OCP, a power of two from 2^-127 to 2^127, without a sign; 255 is NaN. An
    /// element of scales only.
    E8M0,
    /// `e2m1` of the OCP: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and a sign.
    F4E2M1,
    /// An integer with a sign.
    I32,
    /// An integer with a sign.
    I8,
    /// An integer without a sign.
    U8,
    /// An integer from -8 to 7.
    I4,
    /// An integer from 0 to 15.
    U4,
}

impl DType {
    /// All types.
    pub const ALL: [DType; 11] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::E8M0,
        DType::F4E2M1,
        DType::I32,
        DType::I8,
        DType::U8,
        DType::I4,
        DType::U4,
    ];

    /// The name in graphs and manifests.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3 => "f8e4m3",
            DType::E8M0 => "e8m0",
            DType::F4E2M1 => "f4e2m1",
            DType::I32 => "i32",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I4 => "i4",
            DType::U4 => "u4",
        }
    }

    /// As torch, and frameworks with it, name it.
    pub fn torch_name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F8E4M3 => "float8_e4m3fn",
            DType::E8M0 => "float8_e8m0fnu",
            // The name of a pair of them, which is torch's element.
            DType::F4E2M1 => "float4_e2m1fn_x2",
            DType::I32 => "int32",
            DType::I8 => "int8",
            DType::U8 => "uint8",
            DType::I4 => "int4",
            DType::U4 => "uint4",
        }
    }

    /// The type of this [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Bits of an element.
    pub fn bits(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 32,
            DType::F16 | DType::BF16 => 16,
            DType::F8E4M3 | DType::E8M0 | DType::I8 | DType::U8 => 8,
            DType::F4E2M1 | DType::I4 | DType::U4 => 4,
        }
    }

    /// Bytes of this many elements side by side.
    pub fn bytes(self, elements: usize) -> usize {
        elements / 8 * self.bits() + (elements % 8 * self.bits()).div_ceil(8)
    }

    /// Bytes of an element of activations and caches, which are whole. Where a weight may come that
    /// has less than a byte for each, sizes are [`DType::bytes`].
    pub fn size(self) -> usize {
        assert!(self.bits().is_multiple_of(8), "an element of {} has no address", self.name());
        self.bits() / 8
    }

    /// Whether activations may be floats of this type, and weights without an encoding.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether a weight may be stored in this type, as codes that have a scale.
    pub fn is_code(self) -> bool {
        self.is_integer_code() || matches!(self, DType::F8E4M3 | DType::F4E2M1)
    }

    /// Whether such numbers may also have a zero point.
    pub fn is_integer_code(self) -> bool {
        matches!(self, DType::I8 | DType::U8 | DType::I4 | DType::U4)
    }

    /// Whether checkpoints store several codes in one number of this type.
    pub fn is_word(self) -> bool {
        matches!(self, DType::I32 | DType::I8 | DType::U8)
    }

    /// Whether an integer of this type plus a number is always one of the other type.
    pub fn shifts(self, by: i32, to: DType) -> bool {
        let of = |dtype: DType| dtype.integers().filter(|_| dtype.is_integer_code());
        let within = |([least, largest], to): ([i64; 2], [i64; 2])| {
            least + i64::from(by) >= to[0] && largest + i64::from(by) <= to[1]
        };
        of(self).zip(of(to)).is_some_and(within)
    }

    /// The least and the largest number of a type of integers.
    pub fn integers(self) -> Option<[i64; 2]> {
        let signed = match self {
            DType::I32 | DType::I8 | DType::I4 => true,
            DType::U8 | DType::U4 => false,
            _ => return None,
        };
        let all = 1 << self.bits();
        Some(if signed { [-all / 2, all / 2 - 1] } else { [0, all - 1] })
    }

    /// Whether zero points may be of this type: bytes, however few bits the codes have.
    pub fn is_zero_point(self) -> bool {
        matches!(self, DType::I8 | DType::U8)
    }

    /// Whether scales may be of this type.
    pub fn is_scale(self) -> bool {
        self.is_float() || self == DType::E8M0
    }
}
