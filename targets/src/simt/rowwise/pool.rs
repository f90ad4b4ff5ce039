//! Rows that blocks of tokens are pooled to: a row is made by the last token of its block. A thread
//! has a few columns of it, with a running softmax over the tokens.
use atomc_ir::{DType, Diagnostic, Op, Value};

use crate::code::{Int, Vector};
use crate::math;
use crate::row::{At, Col, Operand, unsupported};
use crate::simt::keys::Keys;
use crate::simt::launch::Kernel;

/// The score of no token: below every real one.
const NONE: f64 = -1e30;

/// What makes a row.
struct Pool<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    keys: Keys<'k, 'c>,
    bias: Value,
    every: usize,
    overlap: bool,
    width: usize,
    /// The position of the block's last token.
    position: Int<'c>,
}

/// Stores the row of a token: zeros, unless it is the last one of a block.
pub fn store<'c>(
    kernel: &Kernel<'_, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    threads: usize,
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let &Op::Pool { every, overlap } = rows.graph.op(v.node) else { return Err(unsupported("a pool of another op")) };
    let [cache] = &kernel.caches[..] else { return Err(unsupported("a pool of other than one cache")) };
    let (group, width) = (cache.layout.group, out.ty.shape.last().unwrap_or(0));
    if cache.ty.dtype != DType::F32 || !width.is_multiple_of(group) {
        return Err(unsupported(format!("a pool of {width} columns of {}", cache.ty)));
    }
    let position = c.load_index(cache.batch.positions, row);
    let (keys, bias) = (Keys::of(c, cache, row), rows.graph.operands(v.node)[1]);
    let pool = Pool { kernel, keys, bias, every, overlap, width, position };
    let (lanes, is_last) = (c.lanes(), c.equal((position + 1) % every, 0));
    c.set_lanes(group);
    let made = c.repeat(c.thread() * group, rows.padded(out), threads * group, |col| {
        let put = |lanes: Vector<'c>| {
            c.store_floats(rows.address(out, At { row, head: None, col: Col::Var(col) }), lanes, out.ty.dtype);
        };
        let is_made = is_last & c.less(col, width);
        c.when(!is_made, || put(c.zero()));
        c.when(is_made, || pool.row(col).map(put))
    });
    c.set_lanes(lanes);
    made
}

impl<'c> Pool<'_, '_, 'c> {
    /// Columns of a row.
    fn row(&self, col: Int<'c>) -> Result<Vector<'c>, Diagnostic> {
        let c = self.kernel.code;
        let all = if self.overlap { 2 * self.every } else { self.every };
        let first = self.position + 1 - all;
        // The first block has none before it.
        let begin = c.pick_int(c.less(first, 0), self.every, 0);
        let none = [c.lit(NONE), c.zero(), c.zero()];
        let [_, sum, made] = c.try_carry((begin, all, 1), none, |place, [top, sum, made]| {
            let [z, v] = self.columns((first + place, place), col)?;
            let most = c.fmax(top, z);
            let [shrink, weight] = [top, z].map(|score| math::exp(c, c.fsub(score, most)));
            let sum = c.fma(sum, shrink, weight);
            Ok::<_, Diagnostic>([most, sum, c.fma(made, shrink, c.fmul(weight, v))])
        })?;
        Ok(c.fdiv(made, sum))
    }

    /// Columns of the key, with its bias, and of the value of a token, by its position and its
    /// place among those of a row.
    fn columns(&self, (position, place): (Int<'c>, Int<'c>), col: Int<'c>) -> Result<[Vector<'c>; 2], Diagnostic> {
        let (c, keys) = (self.kernel.code, &self.keys);
        // The block before has the first columns, and the block itself those behind them.
        let start = if self.overlap { c.pick_int(c.less(place, self.every), 0, self.width) } else { c.int(0) };
        let (col, slot, head) = (start + col, keys.slot(position), c.int(0));
        let group = col / keys.groups().0;
        let [key, value] =
            [keys.key_group(keys.key(slot, head), group), keys.value_group(keys.value(slot, head), group)];
        let at = At { row: place % self.every, head: None, col: Col::Var(col) };
        Ok([c.fadd(key, self.kernel.rows.eval(self.bias, at)?), value])
    }
}
