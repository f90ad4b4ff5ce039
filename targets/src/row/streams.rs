//! Streams of a token, and parts of attention, that are mixed by weights in memory.
use atomc_ir::{Diagnostic, Value};

use super::{At, Col, Made, Rows, unsupported};
use crate::code::{Int, Vector};
use crate::math;

impl<'c> Rows<'_, 'c> {
    /// The streams that a value has.
    fn streams(&self, x: Value) -> Result<usize, Diagnostic> {
        let count = self.shape(x)?.shape.0.get(1).and_then(|streams| streams.fixed());
        count.ok_or_else(|| unsupported("streams without their number"))
    }

    /// The streams at a place, each times its weight, of which the first is that of a column.
    fn weighted(&self, x: Value, weights: Value, at: At<'c>, first: Int<'c>) -> Made<'c> {
        let (c, weights) = (self.code, self.operand(weights)?);
        (0..self.streams(x)?).try_fold(c.zero(), |sum, stream| {
            let own = self.eval(x, At { head: Some(c.int(stream)), ..at })?;
            Ok(c.fma(own, self.weight(weights, at.row, Col::Var(first + stream)), sum))
        })
    }

    /// Columns of logits, which may lie in parts that are added up.
    pub fn logits(&self, m: Value, row: Int<'c>, col: Col<'c>) -> Made<'c> {
        if self.shape(m)?.shape.rank() == 2 {
            return self.eval(m, At { row, head: None, col });
        }
        let part = |part: usize| self.eval(m, At { row, head: Some(self.code.int(part)), col });
        (1..self.streams(m)?).try_fold(part(0)?, |sum, i| Ok(self.code.fadd(sum, part(i)?)))
    }

    /// A row of all streams.
    pub(super) fn collapsed(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        self.weighted(operands[0], operands[1], at, self.code.int(0))
    }

    /// A row of all rows of a token, by the softmax of their logits.
    pub(super) fn mixed_rows(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, logits) = (self.code, self.operand(operands[1])?);
        let (count, each) = (self.streams(operands[0])?, self.shape(operands[1])?.shape.last().unwrap_or(1));
        let logit = |row: usize| self.weight(logits, at.row, Col::Const(row * each));
        let all: Vec<Vector> = (0..count).map(logit).collect();
        let top = all[1..].iter().fold(all[0], |top, &v| c.fmax(top, v));
        let (mut sum, mut shares) = (c.zero(), c.zero());
        for (row, logit) in all.into_iter().enumerate() {
            let share = math::exp(c, c.fsub(logit, top));
            let own = self.eval(operands[0], At { head: Some(c.int(row)), ..at })?;
            (sum, shares) = (c.fma(own, share, sum), c.fadd(shares, share));
        }
        Ok(c.fdiv(sum, shares))
    }

    /// A new stream, of the old ones and of a row.
    pub(super) fn mixed(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let stream = at.head.ok_or_else(|| unsupported("streams without their number"))?;
        let (c, count) = (self.code, self.streams(operands[0])?);
        let first = stream * (count + 1);
        let sum = self.weighted(operands[0], operands[2], at, first)?;
        let weight = self.weight(self.operand(operands[2])?, at.row, Col::Var(first + count));
        Ok(c.fma(self.eval(operands[1], At { head: None, ..at })?, weight, sum))
    }

    /// Attention over the keys of two parts.
    pub(super) fn joined(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, head) = (self.code, at.head.ok_or_else(|| unsupported("heads without their number"))?);
        let heads = self.streams(operands[0])?;
        let part = |of: Value| {
            let of = self.operand(of)?;
            Ok::<_, Diagnostic>([head, head + heads].map(|col| self.weight(of, at.row, Col::Var(col))))
        };
        let mut parts = vec![part(operands[1])?, part(operands[3])?];
        if let Some(&sinks) = operands.get(4) {
            let sink = self.weight(self.operand(sinks)?, c.int(0), Col::Var(head));
            parts.push([sink, c.lit(1.0)]);
        }
        let top = parts[1..].iter().fold(parts[0][0], |top, [own, _]| c.fmax(top, *own));
        let weight = |[own, sum]: &[Vector<'c>; 2]| c.fmul(math::exp(c, c.fsub(*own, top)), *sum);
        let weights: Vec<Vector> = parts.iter().map(weight).collect();
        let all = weights[1..].iter().fold(weights[0], |all, &weight| c.fadd(all, weight));
        let near = c.fmul(self.eval(operands[0], at)?, weights[0]);
        Ok(c.fdiv(c.fma(self.eval(operands[2], at)?, weights[1], near), all))
    }
}
