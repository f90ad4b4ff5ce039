//! What kernels of the family `recur` have in common on all machines: which tokens of a step are of
//! one sequence, and where its slot is.
use atomc_ir::{DeltaSizes, Diagnostic, Op, Value};
use inkwell::IntPredicate;

use crate::cache::Batch;
use crate::code::{Code, Int, Ptr};
use crate::kernel::Kernel;
use crate::row::{Operand, unsupported};

/// The node that a kernel is built around: it alone.
pub fn node(kernel: &Kernel) -> Result<Value, Diagnostic> {
    kernel.the("conv or delta_rule", |op| matches!(op, Op::Conv {} | Op::DeltaRule { .. }))
}

/// A state in memory, and the batch that says which slots are whose.
#[derive(Clone, Copy)]
pub struct State<'c> {
    slots: Ptr<'c>,
    batch: Batch<'c>,
}

/// The tokens of one sequence, and its slot.
#[derive(Clone, Copy)]
pub struct Run<'c> {
    pub first: Int<'c>,
    pub end: Int<'c>,
    /// Whether the sequence has a slot, and whether it goes on from what is in it.
    pub has_slot: Int<'c>,
    pub goes_on: Int<'c>,
    /// The slot; some slot if the sequence has none.
    pub slot: Ptr<'c>,
}

impl<'c> State<'c> {
    pub fn of(kernel: &Kernel<'_, 'c>) -> Result<State<'c>, Diagnostic> {
        match (&kernel.slots[..], kernel.batch) {
            (&[(_, slots)], Some(batch)) => Ok(State { slots, batch }),
            _ => Err(unsupported("a recurrence has one state of slots and a batch")),
        }
    }

    /// `body` if a token is the first of its sequence in the step, which has so many tokens.
    pub fn when_first(&self, c: &Code<'c>, token: Int<'c>, tokens: Int<'c>, body: impl FnOnce(Run<'c>)) {
        let sequence = |token| c.load_index(self.batch.sequences, token);
        let own = sequence(token);
        let before = sequence(c.larger(token, 1) - 1);
        let is_first = c.equal(token, 0) | c.compare(IntPredicate::NE, own, before);
        c.when(is_first, || {
            // Tokens of a sequence lie one behind the other, and sequences in their order: the end
            // is found by halving.
            let range = [(token + 1).into(), tokens.into()];
            let end = c.for_each((0, c.bits(tokens), 1), &range, |_, range| {
                let [low, high] = [0, 1].map(|i| c.as_int(range[i]));
                let middle = (low + high) / 2;
                let is_own = c.less(middle, high) & !c.less(own, sequence(middle));
                vec![c.pick(is_own, middle + 1, low), c.pick(is_own, high, middle)]
            });
            let number = c.load_index(self.batch.table(c, token), 0);
            let has_slot = c.less(number.constant(0) - 1, number);
            let goes_on = has_slot & c.less(0, c.load_index(self.batch.positions, token));
            let offset = c.to_i64(c.larger(number, 0)) * c.to_i64(self.batch.block_stride);
            let slot = c.at(self.slots, offset);
            body(Run { first: token, end: c.as_int(end[0]), has_slot, goes_on, slot });
        });
    }
}

/// The operands of a convolution.
pub struct Conv<'k, 'c> {
    pub x: &'k Operand<'c>,
    pub weight: &'k Operand<'c>,
    pub out: &'k Operand<'c>,
    pub channels: usize,
    /// Tokens that the convolution sees.
    pub len: usize,
}

impl<'k, 'c> Conv<'k, 'c> {
    pub fn of(kernel: &'k Kernel<'_, 'c>, node: Value) -> Result<Conv<'k, 'c>, Diagnostic> {
        let operands = kernel.rows.graph.operands(node.node);
        let (x, weight) = (kernel.rows.operand(operands[1])?, kernel.rows.operand(operands[2])?);
        let (_, out) = kernel.output()?;
        let sizes = weight.ty.shape.sizes().unwrap_or_default();
        let &[len, channels] = &sizes[..] else { return Err(unsupported("a convolution of unknown length")) };
        Ok(Conv { x, weight, out, channels, len })
    }
}

/// The operands of a delta rule.
pub struct Delta<'k, 'c> {
    pub q: &'k Operand<'c>,
    pub k: &'k Operand<'c>,
    pub v: &'k Operand<'c>,
    pub g: &'k Operand<'c>,
    pub beta: &'k Operand<'c>,
    pub out: &'k Operand<'c>,
    pub sizes: DeltaSizes,
    pub eps: f64,
}

impl<'k, 'c> Delta<'k, 'c> {
    pub fn of(kernel: &'k Kernel<'_, 'c>, node: Value) -> Result<Delta<'k, 'c>, Diagnostic> {
        let graph = kernel.rows.graph;
        let Op::DeltaRule { eps } = *graph.op(node.node) else { return Err(unsupported("no delta rule")) };
        let operands = graph.operands(node.node);
        let operand = |slot: usize| kernel.rows.operand(operands[slot]);
        let sizes = DeltaSizes::of(graph, node.node).ok_or_else(|| unsupported("a delta rule of unknown sizes"))?;
        let (_, out) = kernel.output()?;
        let [q, k, v] = [operand(1)?, operand(2)?, operand(3)?];
        Ok(Delta { q, k, v, g: operand(4)?, beta: operand(5)?, out, sizes, eps })
    }
}
