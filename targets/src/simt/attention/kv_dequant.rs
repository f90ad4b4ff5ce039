//! Keys and values as they lie in a cache, and as products take them.
//!
//! A cache of bytes is laid out as if its elements were those that it is widened to, which have two bytes: addresses of runs are
//! half of what they would be, and one run becomes another in order.
use atomc_ir::arch::Isa;
use atomc_ir::{CacheType, DType, Diagnostic};
use inkwell::types::VectorType;

use crate::code::{Int, Ptr, Vector};
use crate::row::unsupported;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, RUN};

/// How the elements of a cache become those of products.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// The type of products.
    pub dtype: DType,
    /// How many times larger its elements are.
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

    /// Bytes in the cache of so many for products.
    pub fn bytes(&self, bytes: usize) -> usize {
        bytes / self.times
    }

    pub fn offset<'c>(&self, bytes: Int<'c>) -> Int<'c> {
        if self.times == 1 { bytes } else { bytes / self.times }
    }

    /// A run as it lies there.
    pub fn load_run<'c>(&self, c: &Gpu<'c>, p: Ptr<'c>) -> Vector<'c> {
        c.load_vector(c.cx.i32_type(), self.bytes(RUN) / 4, p, self.bytes(RUN))
    }

    /// Runs as products take them.
    pub fn widen<'c>(&self, c: &Gpu<'c>, runs: &[Vector<'c>]) -> Fragment<'c> {
        runs.iter().map(|&run| if self.times == 1 { run } else { widen_run(c, run, self.dtype) }).collect()
    }
}

/// Bytes of `f8e4m3` have the bits of wider floats but for the last ones of the mantissa, and for the exponent, which is less by
/// a number: once they stand where they belong, a product by a power of two is all. It keeps what is subnormal.
fn widen_run<'c>(c: &Gpu<'c>, run: Vector<'c>, dtype: DType) -> Vector<'c> {
    let words = (0..run.get_type().get_size() as usize).map(|i| c.as_int(c.lane(run, i)));
    let widen = |word| match (dtype, c.simt.isa) {
        (DType::F16, _) => by_halves(c, word, (c.cx.f16_type().vec_type(2), 1, 256.0)),
        // Pairs of bf16 are multiplied as they are.
        (_, Isa::Ptx) => by_halves(c, word, (c.cx.bf16_type().vec_type(2), 4, 120f64.exp2())),
        (_, Isa::Amdgcn) => by_words(c, word),
    };
    c.words(&words.flat_map(widen).collect::<Vec<_>>())
}

/// To a type of two bytes, which has the mantissa so many bits lower: two elements of a word at a time, first in
/// the upper bytes of halves.
fn by_halves<'c>(c: &Gpu<'c>, word: Int<'c>, (pair, by, scale): (VectorType<'c>, usize, f64)) -> [Int<'c>; 2] {
    let [low, high] = apart(c, word);
    let scale = VectorType::const_vector(&[pair.get_element_type().into_float_type().const_float(scale); 2]);
    [low, high].map(|bytes| {
        let bits = (bytes & 0x8000_8000) | (bytes & 0x7f00_7f00).shift_right(by, false);
        let floats = c.bitcast(bits, pair).into_vector_value();
        c.as_int(c.bitcast(c.fmul(floats, scale), c.cx.i32_type()))
    })
}

/// The bytes of a word in the upper bytes of halves of two.
fn apart<'c>(c: &Gpu<'c>, word: Int<'c>) -> [Int<'c>; 2] {
    if c.simt.isa == Isa::Ptx {
        // Bytes by number, from the lowest on; 4 is the first of zero.
        let zero = c.cx.i32_type().const_zero();
        let select = |bytes| c.cx.i32_type().const_int(bytes, false).into();
        let pick = |bytes| c.as_int(c.call("llvm.nvvm.prmt", &[], &[word.into(), zero.into(), select(bytes)]));
        return [pick(0x1404), pick(0x3424)];
    }
    let low = (word & 0xff).shift_left(8) | (word & 0xff00).shift_left(16);
    [low, (word & 0xff_0000).shift_right(8, false) | (word & 0xff00_0000)]
}

/// To bf16 by way of f32, of whose upper halves the mantissa is a part.
fn by_words<'c>(c: &Gpu<'c>, word: Int<'c>) -> [Int<'c>; 2] {
    let scale = c.number(120f64.exp2());
    let float = |byte: usize| {
        let bits = word.shift_left(24 - 8 * byte).shift_right(4, true) & 0x87f0_0000;
        let float = c.bitcast(bits, c.cx.f32_type()).into_float_value();
        let float = c.b.build_float_mul(float, scale, "").expect("floats");
        c.as_int(c.bitcast(float, c.cx.i32_type()))
    };
    [0, 2].map(|byte| float(byte).shift_right(16, false) | (float(byte + 1) & 0xffff_0000))
}
