//! Keys and values of a cache of bytes, widened block by block for products. The order of elements
//! stays nearly the same: two groups of two-byte elements become a group of f32 each.
use atomc_ir::DType;

use super::{Attention, Block};
use crate::code::{Int, Ptr, Vector};
use crate::host::LANES;

impl<'c> Attention<'_, '_, 'c> {
    pub fn widens(&self) -> bool {
        self.cache.ty.dtype == DType::F8E4M3
    }

    /// The keys or values of a turn's blocks, in scratch. Those of the next turn lie `next` bytes
    /// further on.
    pub fn widen(&self, block: &Block<'c>, which: usize, stored: &[Ptr<'c>], next: Int<'c>) -> Vec<Ptr<'c>> {
        let (c, l) = (self.code(), &self.cache.layout);
        let stored_bytes = [l.head_bytes, l.value_bytes][which];
        let bytes = stored_bytes * self.dot.dtype.size();
        let widened = stored.iter().enumerate().map(|(number, &from)| {
            let to = c.at(block.widened[which], number * bytes);
            c.repeat(0, stored_bytes, 4 * LANES, |at| {
                let from = c.at(from, at);
                c.prefetch(c.at(from, next));
                for half in 0..2 {
                    let at = at + 2 * half * LANES;
                    let to = c.at(to, at * self.dot.dtype.size());
                    self.widen_group(c.at(from, 2 * half * LANES), to);
                }
            });
            to
        });
        widened.collect()
    }

    /// A group of two bytes of each of 16 rows.
    fn widen_group(&self, from: Ptr<'c>, to: Ptr<'c>) {
        const BUILT: &str = "vectors of 16 elements";
        let c = self.code();
        let (i8, i16, i32) = (c.cx.i8_type(), c.cx.i16_type(), c.cx.i32_type());
        let pairs = c.load(c.ints(i16, LANES), from, 2).into_vector_value();
        let upper = c.b.build_right_shift(pairs, c.splat(i16.const_int(8, false)), false, "").expect(BUILT);
        let [low, high] = [pairs, upper].map(|v| {
            let bytes = c.b.build_int_truncate(v, c.ints(i8, LANES), "").expect(BUILT);
            c.widen(bytes, DType::F8E4M3)
        });
        let wide = c.ints(i32, LANES);
        let bits = |v: Vector<'c>| c.bitcast(v, wide).into_vector_value();
        let k = |n: u64| c.splat(i32.const_int(n, false));
        let both = match self.dot.dtype {
            // Four bits of mantissa are whole in the upper halves.
            DType::BF16 => {
                let low = c.b.build_right_shift(bits(low), k(16), false, "").expect(BUILT);
                c.b.build_or(low, c.b.build_and(bits(high), k(0xffff_0000), "").expect(BUILT), "").expect(BUILT)
            }
            DType::F16 => {
                let [low, high] =
                    [low, high].map(|v| c.b.build_int_z_extend(c.narrow(v, DType::F16), wide, "").expect(BUILT));
                c.b.build_or(low, c.b.build_left_shift(high, k(16), "").expect(BUILT), "").expect(BUILT)
            }
            _ => {
                c.store(to, low, 4);
                return c.store(c.at(to, 4 * LANES), high, 4);
            }
        };
        c.store(to, both, 4);
    }
}
