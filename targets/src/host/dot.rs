//! Products of rows with panels: the inner step of every contraction, whatever the CPU has for it.
use atomc_ir::DType;
use atomc_ir::arch::Cpu;

use super::{Host, LANES};
use crate::code::{Code, Int, Ptr, Vector};

/// Hardware prefetchers stop at page borders, every 4 KiB; asking half a page ahead carries the
/// stream over them.
pub const AHEAD: usize = 2048;

/// How elements of one type are multiplied on one processor.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    pub core: Cpu,
    pub dtype: DType,
    /// Columns that lie together in a panel.
    pub group: usize,
    pairs: bool,
}

/// How [`Dot::sums`] steps through panels.
#[derive(Clone, Copy, Debug)]
pub struct Walk<'c> {
    /// Groups to sum over.
    pub count: usize,
    /// Bytes from one group of a panel to the next.
    pub step: usize,
    /// Groups in one turn of the loop, with sums of their own; divides `count`.
    pub unroll: usize,
    /// Bytes to prefetch ahead of the reads.
    pub ahead: Option<Int<'c>>,
}

/// One group of a panel, or one group of a row in all lanes, ready to be multiplied.
#[derive(Clone)]
pub struct Group<'c>(Vec<Vector<'c>>);

impl Dot {
    pub fn new(c: &Host, dtype: DType) -> Dot {
        Dot { core: *c.core, dtype, group: c.arch.memory.group_bytes / dtype.size(), pairs: c.core.has_pairs(dtype) }
    }

    /// Whether many rows are multiplied by tiles.
    pub fn has_tiles(&self) -> bool {
        self.core.has_tiles(self.dtype)
    }

    /// Bytes of one group of a panel.
    pub fn step(&self, c: &Code) -> usize {
        c.arch.memory.group_step()
    }

    /// Registers that one group occupies.
    pub fn registers(&self) -> usize {
        if self.pairs { 1 } else { self.group }
    }

    /// A group of each of 16 rows.
    pub fn panel<'c>(&self, c: &Code<'c>, p: Ptr<'c>) -> Group<'c> {
        self.split(c, c.load(c.ints(c.cx.i32_type(), LANES), p, 4).into_vector_value())
    }

    /// A group of one row, in all lanes.
    pub fn row<'c>(&self, c: &Code<'c>, p: Ptr<'c>) -> Group<'c> {
        self.split(c, c.splat(c.load(c.cx.i32_type(), p, 4)))
    }

    /// The elements of 4-byte lanes.
    fn split<'c>(&self, c: &Code<'c>, lanes: Vector<'c>) -> Group<'c> {
        if self.pairs {
            return Group(vec![lanes]);
        }
        let k = |n: u64| c.splat(c.cx.i32_type().const_int(n, false));
        let high = c.b.build_and(lanes, k(0xffff_0000), "").expect("integers");
        Group(match self.dtype {
            DType::BF16 => vec![c.widen_bf16(lanes), c.bitcast(high, c.f32s()).into_vector_value()],
            DType::F16 => {
                let upper = c.b.build_right_shift(high, k(16), false, "").expect("integers");
                [lanes, upper].map(|v| widen_f16(c, v)).to_vec()
            }
            _ => vec![c.bitcast(lanes, c.f32s()).into_vector_value()],
        })
    }

    /// `sum + panel * row`, over the columns of the group.
    pub fn add<'c>(&self, c: &Code<'c>, sum: Vector<'c>, panel: &Group<'c>, row: &Group<'c>) -> Vector<'c> {
        if !self.pairs {
            return panel.0.iter().zip(&row.0).fold(sum, |s, (&a, &b)| c.fma(a, b, s));
        }
        multiply_pairs(c, sum, panel.0[0], row.0[0])
    }

    /// Sums over groups of every row with every panel: `sums[row][panel]`.
    pub fn sums<'c>(&self, c: &Code<'c>, rows: &[Ptr<'c>], panels: &[Ptr<'c>], walk: Walk<'c>) -> Vec<Vec<Vector<'c>>> {
        let (m, n) = (rows.len(), panels.len());
        let Walk { count, step, unroll, ahead } = walk;
        let zeros = vec![c.zero(); unroll * m * n];
        let sums = c.carry((0, count, unroll), zeros, |i, sums| {
            let mut next = Vec::with_capacity(sums.len());
            for u in 0..unroll {
                let at = i + u;
                let weights: Vec<_> = panels.iter().map(|&p| c.at(p, at * step)).collect();
                if let Some(ahead) = ahead {
                    weights.iter().for_each(|&p| c.prefetch(c.at(p, ahead)));
                }
                let weights: Vec<_> = weights.into_iter().map(|p| self.panel(c, p)).collect();
                for (r, &row) in rows.iter().enumerate() {
                    let x = self.row(c, c.at(row, at * c.arch.memory.group_bytes));
                    for (p, w) in weights.iter().enumerate() {
                        next.push(self.add(c, sums[(u * m + r) * n + p], w, &x));
                    }
                }
            }
            next
        });
        let at = |u: usize, r: usize, p: usize| sums[(u * m + r) * n + p];
        let total = |r, p| (1..unroll).fold(at(0, r, p), |s, u| c.fadd(s, at(u, r, p)));
        (0..m).map(|r| (0..n).map(|p| total(r, p)).collect()).collect()
    }

    /// Stores two vectors, none of which is NaN; in one instruction where the CPU can.
    pub fn store_two<'c>(&self, c: &Code<'c>, p: Ptr<'c>, v: [Vector<'c>; 2]) {
        if self.pairs {
            let name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512";
            return c.store(p, c.call(name, &[], &[v[1].into(), v[0].into()]), 2);
        }
        c.store_floats(p, v[0], self.dtype);
        c.store_floats(c.at(p, c.lanes() * self.dtype.size()), v[1], self.dtype);
    }
}

/// `sum + a * b` of pairs of bf16.
pub fn multiply_pairs<'c>(c: &Code<'c>, sum: Vector<'c>, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
    let bf16s = c.cx.bf16_type().vec_type(2 * LANES as u32);
    let [a, b] = [a, b].map(|v| c.bitcast(v, bf16s));
    c.call("llvm.x86.avx512bf16.dpbf16ps.512", &[], &[sum.into(), a.into(), b.into()]).into_vector_value()
}

/// f16 bits in the low half of each lane, as f32.
fn widen_f16<'c>(c: &Code<'c>, lanes: Vector<'c>) -> Vector<'c> {
    let bits = c.b.build_int_truncate(lanes, c.ints(c.cx.i16_type(), LANES), "").expect("integers");
    let halves = c.bitcast(bits, c.cx.f16_type().vec_type(LANES as u32)).into_vector_value();
    c.b.build_float_ext(halves, c.f32s(), "").expect("floats")
}
