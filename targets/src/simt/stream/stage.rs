//! The rows of a contraction, computed into local memory a stretch of columns at a time, in runs as matrix instructions want
//! them: the runs of all tokens side by side.
//!
//! A norm commutes with the contraction, so rows are staged as they are times the norm's weights, and the sums are scaled by
//! what the squares of the row have come to by then. Only where elements have so few exponents that a row might not fit, the
//! squares are added up before anything else.
use atomc_ir::{DType, Diagnostic, Graph, Op, Value};
use inkwell::values::FloatValue;

use super::Shape;
use crate::KernelSpec;
use crate::code::{Any, Code, Int, Ptr};
use crate::row::{At, Col};
use crate::simt::contract::Contraction;
use crate::simt::fragment::RUN;
use crate::simt::rows;

/// Loads of rows that a thread has on the way where it only adds up squares.
const TOGETHER: usize = 4;

/// The norm that rows go through last.
#[derive(Clone, Copy)]
struct Norm {
    value: Value,
    of: Value,
    eps: f64,
    /// Whether sums are scaled, and not rows.
    late: bool,
}

/// Whether rows are computed column by column, but for one norm that may come last.
pub fn suits(body: &Graph, x: Value) -> bool {
    let normed = |v: Value| matches!(body.op(v.node), Op::RmsNorm { .. });
    let from = if normed(x) { body.operands(x.node) } else { vec![x] };
    fn all(body: &Graph, v: Value, is: &dyn Fn(Value) -> bool) -> bool {
        is(v) && body.operands(v.node).into_iter().all(|v| all(body, v, is))
    }
    from.into_iter().all(|v| all(body, v, &|v| !normed(v)))
}

pub struct Staging<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    /// Elements of a vector.
    lanes: usize,
    /// The token that this thread computes, and which of its vectors.
    token: Int<'c>,
    member: Int<'c>,
    norm: Option<Norm>,
    local: Ptr<'c>,
    /// Sums of squares: of each token, from each row of waves that share the tokens.
    squares: Ptr<'c>,
}

impl<'s, 'k, 'a, 'c> Staging<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        shape: Shape,
        spec: &KernelSpec,
    ) -> Result<Staging<'s, 'k, 'a, 'c>, Diagnostic> {
        let (c, parts) = (contraction.matrix.c, &contraction.parts);
        let (graph, x) = (parts.kernel.rows.graph, parts.x);
        let late = contraction.matrix.dtype == DType::BF16;
        let norm = match graph.op(x.node) {
            Op::RmsNorm { eps } => Some(Norm { value: x, of: graph.operands(x.node)[0], eps: *eps, late }),
            _ => None,
        };
        let (lane, wave) = (c.lane_index(), c.wave_index());
        let (near, blocks) = (shape.near(), shape.blocks());
        let token = c.add(c.rem(lane, near), c.mul(c.rem(wave, blocks), c.int(near)));
        let member = c.add(c.div(lane, near), c.mul(c.div(wave, blocks), c.int(32 / near)));
        let buffers = if shape.stretches > 1 { 2 } else { 1 };
        let staging = Staging {
            contraction,
            shape,
            lanes: rows::vector(spec.body).min(contraction.matrix.run()),
            token: c.smaller(token, c.int(shape.tokens - 1)),
            member,
            norm,
            local: c.shared(buffers * shape.stretch_bytes(), 128),
            squares: c.shared(shape.waves() * near * 4, 16),
        };
        staging.set_scale()?;
        Ok(staging)
    }

    fn code(&self) -> &'a Code<'c> {
        self.contraction.matrix.c
    }

    fn float(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        self.code().b.build_float_add(a, b, "").expect("floats")
    }

    /// What the norm is to scale rows by: nothing yet, or the scale.
    fn set_scale(&self) -> Result<(), Diagnostic> {
        let (c, rows) = (self.code(), &self.contraction.parts.kernel.rows);
        let Some(norm) = self.norm else { return Ok(()) };
        if norm.late {
            rows.set_scale(norm.value, c.number(1.0));
            return Ok(());
        }
        let width = rows.shape(norm.of)?.shape.last().unwrap_or(0);
        c.set_lanes(self.lanes);
        let turn = self.shape.members() * self.lanes;
        let mut result = Ok(());
        let sums = c.for_each((c.int(0), c.int(width), turn * TOGETHER), &[c.number(0.0).into()], |first, sums| {
            let mut sum = sums[0].into_float_value();
            for i in 0..TOGETHER {
                let col = c.add(first, c.add(c.mul(self.member, c.int(self.lanes)), c.int(i * turn)));
                match self.inside(norm.of, col, width) {
                    Ok(v) => sum = self.float(sum, c.sum(c.fmul(v, v))),
                    Err(e) => result = Err(e),
                }
            }
            vec![sum.into()]
        });
        result?;
        self.add_up(sums[0].into_float_value());
        c.barrier();
        rows.set_scale(norm.value, self.scale_of(self.token, norm));
        Ok(())
    }

    /// A vector of the thread's row, zeros beyond its width.
    fn inside(&self, v: Value, col: Int<'c>, width: usize) -> Result<crate::code::Vector<'c>, Diagnostic> {
        let c = self.code();
        let inside = c.less(col, c.int(width));
        let safe = c.pick(inside, col, c.int(0)).into_int_value();
        let lanes = self.contraction.parts.kernel.rows.eval(v, At { row: self.token, head: None, col: Col::Var(safe) })?;
        Ok(c.pick(inside, lanes, c.zero()).into_vector_value())
    }

    /// The thread's vectors in a stretch.
    fn vectors(&self) -> usize {
        self.shape.stretch_columns().div_ceil(self.lanes * self.shape.members())
    }

    /// Where the thread's vector lies in a stretch.
    fn column(&self, i: usize) -> Int<'c> {
        let c = self.code();
        c.mul(c.add(self.member, c.int(i * self.shape.members())), c.int(self.lanes))
    }

    /// The thread's part of a stretch, as words, and then the sum of its squares with those that were there.
    pub fn load(&self, stretch: Int<'c>, squares: Any<'c>) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, parts) = (self.code(), &self.contraction.parts);
        c.set_lanes(self.lanes);
        let width = parts.kernel.rows.shape(parts.x)?.shape.last().unwrap_or(0);
        let first = c.mul(stretch, c.int(self.shape.stretch_columns()));
        let mut sum = squares.into_float_value();
        let mut words = Vec::new();
        for i in 0..self.vectors() {
            let col = c.add(first, self.column(i));
            // Beyond the stretch is the next one, whose squares are added up there.
            let end = c.smaller(c.add(first, c.int(self.shape.stretch_columns())), c.int(width));
            if let Some(Norm { of, late: true, .. }) = self.norm {
                let v = self.inside(of, col, width)?;
                let v = c.pick(c.less(col, end), v, c.zero()).into_vector_value();
                sum = self.float(sum, c.sum(c.fmul(v, v)));
            }
            let bits = c.narrow(self.inside(parts.x, col, width)?, self.contraction.matrix.dtype);
            words.push(match self.lanes {
                1 => bits.into(),
                lanes => c.bitcast(bits, c.cx.i32_type().vec_type(lanes as u32 / 2)),
            });
        }
        words.push(sum.into());
        Ok(words)
    }

    /// Stores what was loaded into a buffer.
    pub fn store(&self, buffer: Int<'c>, words: &[Any<'c>]) {
        let (c, tokens) = (self.code(), self.shape.tokens);
        let (run, size) = (self.contraction.matrix.run(), self.contraction.matrix.dtype.size());
        let to = c.at(self.local, c.add(c.mul(buffer, c.int(self.shape.stretch_bytes())), c.mul(self.token, c.int(RUN))));
        let whole = self.shape.stretch_columns().is_multiple_of(self.lanes * self.shape.members());
        for (i, &word) in words[..self.vectors()].iter().enumerate() {
            let col = self.column(i);
            let inside = c.mul(c.rem(col, run), c.int(size));
            let store = || {
                let p = c.at(to, c.add(c.mul(c.div(col, run), c.int(tokens * RUN)), inside));
                c.store(p, word, (self.lanes * size) as u32);
            };
            match whole {
                true => store(),
                false => c.when(c.less(col, c.int(self.shape.stretch_columns())), store),
            }
        }
    }

    /// The address of a buffer.
    pub fn buffer(&self, number: Int<'c>) -> Int<'c> {
        let c = self.code();
        c.add(c.local_address(self.local), c.mul(number, c.int(self.shape.stretch_bytes())))
    }

    /// The thread's squares, where sums are scaled by them, for others to see behind the next barrier.
    pub fn leave(&self, squares: FloatValue<'c>) {
        if self.norm.is_some_and(|norm| norm.late) {
            self.add_up(squares);
        }
    }

    fn add_up(&self, squares: FloatValue<'c>) {
        let (c, near) = (self.code(), self.shape.near());
        let distances: Vec<usize> = std::iter::successors(Some(near), |d| Some(d * 2)).take_while(|&d| d < 32).collect();
        let sum = c.across(squares, &distances, |a, b| self.float(a, b));
        c.when(c.less(c.lane_index(), c.int(near)), || {
            let place = c.add(c.mul(c.wave_index(), c.int(near)), c.lane_index());
            c.store(c.at(self.squares, c.mul(place, c.int(4))), sum, 4);
        });
    }

    /// What the sums of a token are to be scaled by, if they are.
    pub fn scale(&self, token: Int<'c>) -> Option<FloatValue<'c>> {
        self.norm.filter(|norm| norm.late).map(|norm| self.scale_of(token, norm))
    }

    fn scale_of(&self, token: Int<'c>, norm: Norm) -> FloatValue<'c> {
        let (c, near, blocks) = (self.code(), self.shape.near(), self.shape.blocks());
        let place = c.add(c.mul(c.div(token, near), c.int(near)), c.rem(token, near));
        let part = |i: usize| {
            let at = c.add(place, c.int(i * blocks * near));
            c.load(c.cx.f32_type(), c.at(self.squares, c.mul(at, c.int(4))), 4).into_float_value()
        };
        let sum = (1..self.shape.waves() / blocks).fold(part(0), |sum, i| self.float(sum, part(i)));
        let shape = self.contraction.parts.kernel.rows.shape(norm.of).expect("rows that were loaded");
        c.inverse_root(sum, shape.shape.last().unwrap_or(0), norm.eps)
    }
}
