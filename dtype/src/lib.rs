//! Types of elements: the one list that configurations, graphs, artifacts and frameworks speak of.
use serde::{Deserialize, Serialize};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE's float of 32 bits.
    F32,
    /// IEEE's float of 16 bits.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// `f8e4m3fn` of the OCP, saturating: what is above 448 is 448. An element of caches only; what becomes of a NaN is not said.
    F8E4M3,
    /// An integer with a sign.
    I32,
}

impl DType {
    /// All types.
    pub const ALL: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I32];

    /// The name in graphs and manifests.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3 => "f8e4m3",
            DType::I32 => "i32",
        }
    }

    /// As torch, and frameworks with it, name it.
    pub fn torch_name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F8E4M3 => "float8_e4m3fn",
            DType::I32 => "int32",
        }
    }

    /// The type of this [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::F8E4M3 => 1,
        }
    }

    /// Whether tensors are floats of this type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }
}
