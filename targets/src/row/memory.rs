//! Rows in memory: addresses of elements, and rows that indices or choices name.
use atomc_ir::arch::Machine;
use atomc_ir::{Diagnostic, Dim, Layout, Op, Value};

use super::{At, Col, Made, Operand, Rows, unsupported};
use crate::code::{Int, Ptr, Vector};

/// Whether rows of a table lie further from its begin than 32 bits count, which indices of GPUs
/// have.
fn is_far(x: &Operand) -> bool {
    let rows = x.ty.shape.0.first().and_then(|rows| rows.fixed()).unwrap_or(0);
    rows.saturating_mul(x.stride).saturating_mul(x.ty.dtype.bits() / 8) > u32::MAX as usize
}

/// Elements of the widest vector.
const VECTOR: usize = 16;

impl<'c> Rows<'_, 'c> {
    /// Address of an element of an operand with rows.
    pub fn address(&self, x: &Operand<'c>, at: At<'c>) -> Ptr<'c> {
        let c = self.code;
        let bits = x.ty.dtype.bits();
        let is_far = bits >= 8 && is_far(x);
        let mut element = if is_far { self.column(at.col) } else { at.row * x.stride + self.column(at.col) };
        if let Some(head) = at.head {
            element = element + head * x.ty.shape.last().unwrap_or(0);
        }
        let first = if is_far { c.at(x.ptr, c.to_i64(at.row) * (x.stride * bits / 8)) } else { x.ptr };
        match bits {
            bits if bits < 8 => c.at(first, element / (8 / bits)),
            bits => c.at(first, element * (bits / 8)),
        }
    }

    /// Stores a vector of a row, with zeros beyond its width. If GPUs' vectors divide the width, a
    /// vector is on one side of it.
    pub fn store_padded(&self, lanes: Vector<'c>, out: &Operand<'c>, at: At<'c>) {
        let c = self.code;
        let width = out.ty.shape.row().unwrap_or(0);
        let col = self.column(at.col);
        let lanes = match c.arch.machine {
            _ if width == self.padded(out) => lanes,
            Machine::Simt(_) if width.is_multiple_of(c.lanes()) => {
                c.pick(c.less(col, width), lanes, c.zero()).into_vector_value()
            }
            Machine::Simt(_) | Machine::Cpu(_) => c.choose(c.lanes_below(width - col), lanes, c.zero()),
        };
        c.store_floats(self.address(out, at), lanes, out.ty.dtype);
    }

    pub(super) fn load(&self, v: Value, at: At<'c>) -> Made<'c> {
        let (c, x, lanes) = (self.code, self.operand(v)?, self.code.lanes());
        match x.ty.layout {
            Layout::Scaled(group) => return self.stored(v, group, at),
            Layout::Mx(_) => return Err(unsupported("numbers of rows that matrix instructions scale")),
            _ => {}
        }
        if self.pieces.get() == 1 {
            return Ok(c.widen(self.load_bits(x, at)?, x.ty.dtype));
        }
        let known = self.loaded.borrow().iter().find(|(other, place, _)| (*other, *place) == (v, at)).map(|l| l.2);
        let all = match known {
            Some(all) => all,
            None => {
                c.set_lanes(self.whole());
                let bits = self.load_bits(x, at)?;
                let all = c.bitcast(bits, c.ints(c.bytes_type(x.ty.dtype.size()), c.lanes())).into_vector_value();
                c.set_lanes(lanes);
                self.loaded.borrow_mut().push((v, at, all));
                all
            }
        };
        // Computations on zeros leave no instructions.
        Ok(self.piece.get().map_or(c.zero(), |piece| c.widen(c.part(all, piece * lanes, lanes), x.ty.dtype)))
    }

    /// The bits of a vector.
    fn load_bits(&self, x: &Operand<'c>, at: At<'c>) -> Made<'c> {
        match x.ty.layout {
            Layout::Rows | Layout::Scaled(_) => Ok(self.code.load_bits(self.address(x, at), x.ty.dtype)),
            Layout::Panels => Ok(self.load_packed(x, at)),
            Layout::Mx(_) => Err(unsupported("parts of rows that matrix instructions scale")),
            Layout::Columns => Err(unsupported("rows of scales as activations")),
            Layout::Grouped { .. } => Err(unsupported("rows of indices as activations")),
        }
    }

    /// The bits of a vector, as words, of an operand or of rows chosen from one. Columns beyond the
    /// row are anything.
    pub fn bits(&self, v: Value, at: At<'c>) -> Made<'c> {
        let operands = self.graph.operands(v.node);
        if let Op::Gather {} = self.graph.op(v.node) {
            let row = self.code.load_index(self.index(operands[1])?, at.row);
            return self.bits(operands[0], At { row, ..at });
        }
        let (c, x) = (self.code, self.operand(v)?);
        let bytes = c.lanes() * x.ty.dtype.size();
        let word = c.bytes_type(bytes.min(4));
        Ok(c.load(c.ints(word, bytes.div_ceil(4)), self.address(x, at), c.alignment(x.ty.dtype)).into_vector_value())
    }

    /// Consecutive columns of one row of a packed weight, group by group or from inside one group.
    fn load_packed(&self, x: &Operand<'c>, at: At<'c>) -> Vector<'c> {
        let (c, m) = (self.code, self.code.arch.memory);
        let size = x.ty.dtype.size();
        let panel = at.row / m.panel * m.panel_bytes(x.ty.dtype, x.stride);
        let lane = at.row % m.panel * m.group_bytes;
        let (group, bytes) = (m.group_bytes / size, c.lanes() * size);
        let col = self.column(at.col);
        let groups = col / group * m.group_step();
        let inside = if bytes < m.group_bytes { col % group * size } else { c.int(0) };
        let first = c.at(x.ptr, panel + lane + (groups + inside));
        let part_bytes = bytes.min(m.group_bytes);
        let count = bytes / part_bytes;
        let part_type = c.bytes_type(part_bytes);
        let mut lanes = c.ints(part_type, count).get_undef();
        for g in 0..count {
            let part = c.load(part_type, c.at(first, g * m.group_step()), part_bytes.min(16) as u32);
            let at = c.cx.i32_type().const_int(g as u64, false);
            lanes = c.b.build_insert_element(lanes, part, at, "").expect("a part into a vector of them");
        }
        lanes
    }

    pub(super) fn gather(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let row = self.chosen_row(operands[1], at.row)?;
        self.eval(operands[0], At { row, ..at })
    }

    /// Elements of a row in memory, by the columns that another vector names.
    pub(super) fn reordered(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, x) = (self.code, self.operand(operands[0])?);
        let columns = self.eval(operands[1], At { row: c.int(0), head: None, ..at })?;
        let last = x.ty.shape.last().unwrap_or(1) - 1;
        let element = |lane: usize| {
            // Lanes beyond the row may be no numbers, of which this makes zero.
            let types = [c.index.into(), c.cx.f32_type().into()];
            let column = c.as_int(c.call("llvm.fptosi.sat", &types, &[c.lane(columns, lane).into()]));
            let column = c.smaller(c.larger(column, 0), last);
            c.load_number(self.address(x, At { col: Col::Var(column), ..at }), x.ty.dtype).into()
        };
        Ok(c.floats(&(0..c.lanes()).map(element).collect::<Vec<_>>()))
    }
    /// Of consecutive rows, side by side, from the one on that an index names.
    pub(super) fn gather_run(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (first, width) =
            (self.chosen_row(operands[1], at.row)?, self.shape(operands[0])?.shape.last().unwrap_or(1));
        if !width.is_multiple_of(VECTOR) {
            return Err(unsupported(format!("rows of {width} side by side: they must be multiples of {VECTOR}")));
        }
        let (row, col) = match at.col {
            Col::Const(col) => (first + col / width, Col::Const(col % width)),
            Col::Var(col) => (first + col / width, Col::Var(col % width)),
        };
        self.eval(operands[0], At { row, col, ..at })
    }

    /// A row with that of a table in its place, or added to it, where an index names one.
    pub(super) fn placed(&self, operands: &[Value], (start, adds): (usize, bool), at: At<'c>) -> Made<'c> {
        let c = self.code;
        let row = c.load_index(self.index(operands[2])?, at.row);
        let own = self.eval(operands[0], at)?;
        let from = At { row: c.larger(row, 0), col: self.shifted(at.col, start), ..at };
        let other = self.eval(operands[1], from)?;
        let other = if adds { c.fadd(own, other) } else { other };
        Ok(c.pick(c.less(row, 0), own, other).into_vector_value())
    }

    /// The row that an index names, which for those of no expert is the first.
    pub(super) fn chosen_row(&self, indices: Value, at: Int<'c>) -> Result<Int<'c>, Diagnostic> {
        let (c, from) = (self.code, self.index(indices)?);
        let is_given = self.graph.ty(indices).as_tensor().is_some_and(|t| t.shape.0[0] != Dim::Choices(t.choices()));
        Ok(if is_given { c.load_index(from, at) } else { c.larger(c.load_made_index(from, at), 0) })
    }

    /// Rows of a token's choices, each times its weight.
    pub(super) fn combined(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let c = self.code;
        let weights = self.operand(operands[1])?;
        let k = weights.ty.shape.last().unwrap_or(1);
        let mut sum = c.zero();
        for choice in 0..k {
            let row = self.eval(operands[0], At { row: at.row * k + choice, ..at })?;
            sum = c.fma(row, self.weight(weights, at.row, Col::Const(choice)), sum);
        }
        Ok(sum)
    }

    /// A head times the weight that its token has for it.
    pub(super) fn weighed(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let head = at.head.ok_or_else(|| unsupported("weights of heads without their number"))?;
        let weight = self.weight(self.operand(operands[1])?, at.row, Col::Var(head));
        Ok(self.code.fmul(self.eval(operands[0], at)?, weight))
    }

    /// One of a row's weights, which are f32 in memory, for all lanes.
    pub(super) fn weight(&self, weights: &Operand<'c>, row: Int<'c>, col: Col<'c>) -> Vector<'c> {
        let c = self.code;
        let weight = self.address(weights, At { row, head: None, col });
        c.splat(c.load(c.cx.f32_type(), weight, 4).into_float_value())
    }
}
