//! Rows that blocks of tokens are pooled to: a row is made by the last token of its block, of the
//! keys and values that a cache has of the block's tokens, sixteen columns at a time, with a
//! running softmax.
use atomc_ir::{DType, Diagnostic, Op, Value};

use super::LANES;
use super::rows::pad;
use crate::cache::Cache;
use crate::code::{Int, Vector};
use crate::kernel::Kernel;
use crate::math;
use crate::row::{At, Col, Operand, unsupported};

/// The score of no token: below every real one.
const NONE: f64 = -1e30;

/// What makes a row.
struct Pool<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    cache: &'k Cache<'c>,
    bias: Value,
    every: usize,
    overlap: bool,
    width: usize,
}

/// Stores the row of a token: zeros, unless it is the last one of a block.
pub fn store<'c>(kernel: &Kernel<'_, 'c>, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let &Op::Pool { every, overlap } = rows.graph.op(v.node) else { return Err(unsupported("a pool of another op")) };
    let [cache] = &kernel.caches[..] else { return Err(unsupported("a pool of other than one cache")) };
    if cache.ty.dtype != DType::F32 || cache.layout.group != 1 {
        return Err(unsupported("a pool of a cache of other than f32"));
    }
    let (out, to) = kernel.output()?;
    if out != v {
        return Err(unsupported("a pool that is computed on"));
    }
    let (bias, width) = (rows.graph.operands(v.node)[1], to.ty.shape.last().unwrap_or(0));
    let pool = Pool { kernel, cache, bias, every, overlap, width };
    pad(rows, to, row, 0);
    let position = c.load_index(cache.batch.positions, row);
    c.when(c.equal((position + 1) % every, 0), || pool.store(to, row, position))
}

impl<'c> Pool<'_, '_, 'c> {
    fn store(&self, to: &Operand<'c>, row: Int<'c>, position: Int<'c>) -> Result<(), Diagnostic> {
        let c = self.kernel.code;
        let all = if self.overlap { 2 * self.every } else { self.every };
        let first = position + 1 - all;
        // The first block has none before it.
        let begin = c.pick_int(c.less(first, 0), self.every, 0);
        for col in (0..self.width).step_by(LANES) {
            let none = [c.lit(NONE), c.zero(), c.zero()];
            let [_, sum, made] = c.try_carry((begin, all, 1), none, |place, [top, sum, made]| {
                let [z, v] = self.columns(row, (first + place, place), col)?;
                let most = c.fmax(top, z);
                let [shrink, weight] = [top, z].map(|score| math::exp(c, c.fsub(score, most)));
                let sum = c.fma(sum, shrink, weight);
                Ok::<_, Diagnostic>([most, sum, c.fma(made, shrink, c.fmul(weight, v))])
            })?;
            let p = self.kernel.rows.address(to, At { row, head: None, col: Col::Const(col) });
            c.store_some(p, c.fdiv(made, sum), DType::F32, self.width - col);
        }
        Ok(())
    }

    /// Columns of the key, with its bias, and of the value of a token, by its position and its
    /// place among those of a row.
    fn columns(
        &self,
        row: Int<'c>,
        (position, place): (Int<'c>, Int<'c>),
        col: usize,
    ) -> Result<[Vector<'c>; 2], Diagnostic> {
        let (c, rows) = (self.kernel.code, &self.kernel.rows);
        // The block before has the first columns, and the block itself those behind them.
        let start = if self.overlap { c.pick_int(c.less(place, self.every), 0, self.width) } else { c.int(0) };
        let first = start + col;
        let slot = self.cache.slot_at(c, self.cache.batch.table(c, row), position);
        let key = c.at(self.cache.k, self.cache.key_at(c, slot, c.int(0)));
        let value = c.at(self.cache.v, self.cache.value_at(c, slot, c.int(0)));
        let number = |p| c.load(c.cx.f32_type(), p, 4);
        // Columns of a key lie a panel apart, and those of a value in panels of the block's tokens.
        let z: Vec<_> = (0..LANES).map(|lane| number(c.at(key, (first + lane) * (4 * LANES)))).collect();
        let panel = 4 * LANES * self.cache.layout.block_tokens;
        let of_value = |lane: usize| {
            let col = first + lane;
            number(c.at(value, col / LANES * panel + col % LANES * 4))
        };
        let v: Vec<_> = (0..LANES).map(of_value).collect();
        let at = At { row: place % self.every, head: None, col: Col::Var(first) };
        let z = c.fadd(c.floats(&z), rows.eval(self.bias, at)?);
        Ok([z, c.floats(&v)])
    }
}
