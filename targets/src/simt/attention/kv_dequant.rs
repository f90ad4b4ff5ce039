//! Keys and values as stored in a cache, and as products take them.
//!
//! A cache of bytes has the layout of a cache of the two-byte elements that it is widened to:
//! addresses of vectors are halved, and one vector becomes another in order.
use atomc_ir::{CacheType, DType, Diagnostic};

use crate::code::codes::Decoder;
use crate::code::{Int, Ptr, Vector};
use crate::row::unsupported;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, VEC16};

/// How the elements of a cache become those of products.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// The type of products.
    pub dtype: DType,
    /// The factor by which its elements are larger.
    times: usize,
}

impl Stored {
    /// Under queries of a type.
    pub fn new(cache: CacheType, query: DType) -> Result<Stored, Diagnostic> {
        let made = Stored::of(cache.dtype, query);
        made.ok_or_else(|| unsupported(format!("a cache of {} under queries of {}", cache.dtype.name(), query.name())))
    }

    /// Bytes are widened to two bytes, and to no more.
    pub fn of(cache: DType, query: DType) -> Option<Stored> {
        match (cache, query.size()) {
            (DType::F8E4M3, 2) => Some(Stored { dtype: query, times: 2 }),
            (DType::F8E4M3, _) => None,
            (dtype, _) => Some(Stored { dtype, times: 1 }),
        }
    }

    pub fn is_widened(&self) -> bool {
        self.times > 1
    }

    /// The bytes in the cache that become `bytes` bytes for products.
    pub fn bytes(&self, bytes: usize) -> usize {
        bytes / self.times
    }

    pub fn offset<'c>(&self, bytes: Int<'c>) -> Int<'c> {
        if self.times == 1 { bytes } else { bytes / self.times }
    }

    /// A stored vector.
    pub fn load_vec16<'c>(&self, c: &Gpu<'c>, p: Ptr<'c>) -> Vector<'c> {
        c.load_vector(c.cx.i32_type(), self.bytes(VEC16) / 4, p, self.bytes(VEC16))
    }

    /// Vectors as products take them.
    pub fn widen<'c>(&self, c: &Gpu<'c>, vec16s: &[Vector<'c>]) -> Fragment<'c> {
        vec16s.iter().map(|&vec16| if self.times == 1 { vec16 } else { widen_vec16(c, vec16, self.dtype) }).collect()
    }
}

/// A vector of bytes as one of numbers of two.
fn widen_vec16<'c>(c: &Gpu<'c>, vec16: Vector<'c>, dtype: DType) -> Vector<'c> {
    let words: Vec<Int> = (0..vec16.get_type().get_size() as usize).map(|i| c.as_int(c.lane(vec16, i))).collect();
    c.words(&Decoder::new(c.arch, DType::F8E4M3, dtype).decode(c, &words, None))
}
