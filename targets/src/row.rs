//! Evaluates the row-wise part of a kernel's body, one vector of elements at a time.
//!
//! Every family uses it: as the whole kernel, as the prologue of a contraction, or as the epilogue
//! of its accumulators. Nothing is materialised; a norm's statistics are computed once a row by
//! [`Rows::prepare`].
mod memory;
mod norm;
mod quantise;
pub mod rope;
mod streams;
mod team;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use atomc_ir::{Diagnostic, Graph, Layout, Op, TensorType, Value, Values};

use crate::code::{Code, Int, Ptr, Vector};
use crate::math::Lanes;
use norm::Statistics;
use quantise::Scale;
pub use quantise::{GroupScale, to_bits};
pub use team::{Team, Threads};

/// A tensor in memory.
#[derive(Clone, Debug)]
pub struct Operand<'c> {
    pub ptr: Ptr<'c>,
    pub ty: TensorType,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// A column: known when the code is made, or when it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Col<'c> {
    Const(usize),
    Var(Int<'c>),
}

/// The place of a vector of elements: a row, a head for values with heads, and the first column
/// (inside the head).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At<'c> {
    pub row: Int<'c>,
    pub head: Option<Int<'c>>,
    pub col: Col<'c>,
}

/// A vector that was computed: its value, its first column, its piece, and the vector itself.
type Kept<'c> = (Value, Int<'c>, Option<usize>, Vector<'c>);

/// The body of one kernel, with its operands in memory.
pub struct Rows<'a, 'c> {
    pub code: &'a Code<'c>,
    pub graph: &'a Graph,
    memory: HashMap<Value, Operand<'c>>,
    indices: HashMap<Value, Ptr<'c>>,
    /// Values that a family computes itself, for the position it is at.
    bound: RefCell<HashMap<Value, Vector<'c>>>,
    /// The statistics of each norm, for the row or head that was prepared last.
    statistics: RefCell<HashMap<Value, Statistics<'c>>>,
    /// The scale of each quantised value with one scale a row, for the row that was prepared last.
    scales: RefCell<HashMap<Value, Scale<'c>>>,
    team: Cell<Option<Team<'a, 'c>>>,
    /// The columns of this member's first vectors of a row.
    columns: RefCell<Vec<Int<'c>>>,
    /// The number of pieces in which vectors are computed, and the current piece; none while they
    /// are only loaded.
    pieces: Cell<usize>,
    piece: Cell<Option<usize>>,
    /// Vectors that were computed for a norm's scale and are wanted again, by value, column and
    /// piece.
    kept: RefCell<Vec<Kept<'c>>>,
    /// Whole vectors as loaded from memory, for all of their pieces.
    loaded: RefCell<Vec<(Value, At<'c>, Vector<'c>)>>,
}

pub fn unsupported(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new("target::unsupported", what)
}

/// A row and, for values with heads, the head.
type Place<'c> = (Int<'c>, Option<Int<'c>>);

/// Whether a statistic of the whole row is needed before any of its elements.
pub fn is_norm(op: &Op) -> bool {
    matches!(op.values(), Values::Normed(_))
}

type Made<'c> = Result<Vector<'c>, Diagnostic>;

impl<'a, 'c> Rows<'a, 'c> {
    pub fn new(code: &'a Code<'c>, graph: &'a Graph) -> Rows<'a, 'c> {
        Rows {
            code,
            graph,
            memory: HashMap::new(),
            indices: HashMap::new(),
            bound: RefCell::default(),
            statistics: RefCell::default(),
            scales: RefCell::default(),
            team: Cell::default(),
            columns: RefCell::default(),
            pieces: Cell::new(1),
            piece: Cell::new(Some(0)),
            kept: RefCell::default(),
            loaded: RefCell::default(),
        }
    }

    fn is_bound(&self, v: Value) -> bool {
        self.bound.borrow().contains_key(&v)
    }

    /// Forgets the values of the last row.
    pub fn forget(&self) {
        self.kept.borrow_mut().clear();
    }

    pub fn set_memory(&mut self, v: Value, ptr: Ptr<'c>, ty: &TensorType) {
        if ty.dtype == atomc_ir::DType::I32 {
            self.indices.insert(v, ptr);
            return;
        }
        // A weight's rows are those of its matrix, or of its experts' matrices.
        let (memory, width) = (self.code.arch.memory, ty.width());
        let stride = match ty.layout {
            Layout::Columns => width,
            Layout::Panels => memory.padded(width),
            Layout::Scaled(_) | Layout::Mx(_) => memory.result_stride(ty),
            Layout::Rows | Layout::Grouped { .. } => memory.stride(width),
        };
        self.memory.insert(v, Operand { ptr, ty: ty.clone(), stride });
    }

    pub fn operand(&self, v: Value) -> Result<&Operand<'c>, Diagnostic> {
        self.memory
            .get(&v)
            .ok_or_else(|| unsupported(format!("`{}` must be in memory here", self.graph.op(v.node).name())))
    }

    pub fn index(&self, v: Value) -> Result<Ptr<'c>, Diagnostic> {
        self.indices.get(&v).copied().ok_or_else(|| unsupported("indices must be parameters"))
    }

    pub fn bind(&self, v: Value, lanes: Vector<'c>) {
        self.bound.borrow_mut().insert(v, lanes);
    }

    pub fn unbind(&self, v: Value) {
        self.bound.borrow_mut().remove(&v);
    }

    pub fn shape(&self, v: Value) -> Result<&TensorType, Diagnostic> {
        self.graph.ty(v).as_tensor().ok_or_else(|| unsupported("only tensors have rows"))
    }

    /// Elements of a row of a result that are to be written.
    pub fn padded(&self, out: &Operand<'c>) -> usize {
        self.code.arch.memory.padded(out.ty.shape.row().unwrap_or(0))
    }

    pub fn column(&self, col: Col<'c>) -> Int<'c> {
        match col {
            Col::Const(n) => self.code.int(n),
            Col::Var(v) => v,
        }
    }

    fn shifted(&self, col: Col<'c>, by: usize) -> Col<'c> {
        match col {
            Col::Const(n) => Col::Const(n + by),
            Col::Var(v) if by == 0 => Col::Var(v),
            Col::Var(v) => Col::Var(v + by),
        }
    }

    /// The vector that begins at `at`. Lanes beyond the row are anything.
    pub fn eval(&self, v: Value, at: At<'c>) -> Made<'c> {
        if let Some(&lanes) = self.bound.borrow().get(&v) {
            return Ok(lanes);
        }
        if let Col::Var(col) = at.col
            && let Some(&(.., kept)) = self
                .kept
                .borrow()
                .iter()
                .find(|(other, at, piece, _)| (*other, *at, *piece) == (v, col, self.piece.get()))
        {
            return Ok(kept);
        }
        let operands = self.graph.operands(v.node);
        match self.graph.op(v.node) {
            Op::Input { .. } => self.load(v, at),
            Op::Map(f) => {
                let args = operands.iter().map(|&o| self.eval_like(o, v, at)).collect::<Result<Vec<_>, _>>()?;
                let args: Vec<_> = args.into_iter().map(|v| Lanes { code: self.code, v }).collect();
                Ok(f.eval(&args).v)
            }
            Op::Cast { .. } => self.eval(operands[0], at),
            Op::Reshape { .. } => self.eval(operands[0], self.unfold(v, operands[0], at)?),
            Op::Slice { axis, start, .. } => self.eval(operands[0], self.moved(v, *axis, *start, at)?),
            Op::Gather {} => self.gather(&operands, at),
            Op::Reorder {} => self.reordered(&operands, at),
            &Op::GatherRun { .. } => self.gather_run(&operands, at),
            &Op::Placed { start, adds } => self.placed(&operands, (start, adds), at),
            op if is_norm(op) => self.norm(v, &operands, at),
            Op::PartNorm { .. } => self.norm(v, &operands[..2], at),
            Op::Rope {} => self.rope(&operands, at),
            Op::RopePairs {} => self.rope_pairs(&operands, at),
            &Op::Parts { start, step, .. } => self.eval(operands[0], self.part_of((start, step), at)?),
            Op::Beside {} => self.beside(&operands, at),
            Op::Quantise { to, rule } => self.quantised(v, *to, *rule, at),
            Op::Combine {} => self.combined(&operands, at),
            Op::Weigh {} => self.weighed(&operands, at),
            Op::Collapse {} => self.collapsed(&operands, at),
            Op::MixRows {} => self.mixed_rows(&operands, at),
            Op::Mix {} => self.mixed(&operands, at),
            Op::Join { .. } => self.joined(&operands, at),
            op => Err(unsupported(format!("`{}` cannot be computed a row at a time", op.name()))),
        }
    }

    /// An operand of an elementwise op: of the same shape, or a vector along the last axis, or
    /// along all heads.
    fn eval_like(&self, operand: Value, of: Value, at: At<'c>) -> Made<'c> {
        let (shape, of) = (&self.shape(operand)?.shape, &self.shape(of)?.shape);
        let width = of.last().unwrap_or(1);
        if shape.rank() == 1 && of.rank() == 3 && ![1, width].contains(&shape.last().unwrap_or(1)) {
            let head = at.head.ok_or_else(|| unsupported("heads without their number"))?;
            let col = Col::Var(head * width + self.column(at.col));
            return self.eval(operand, At { row: self.code.int(0), head: None, col });
        }
        match shape.rank() == 1 && of.rank() > 1 {
            true if shape.last() == Some(1) && of.last() != Some(1) => {
                let first = self.eval(operand, At { row: self.code.int(0), head: None, col: Col::Const(0) })?;
                Ok(self.code.splat(self.code.lane(first, 0).into_float_value()))
            }
            true => self.eval(operand, At { row: self.code.int(0), head: None, col: at.col }),
            false => self.eval(operand, at),
        }
    }

    /// `[T, H, d]` read through a `[T, H * d]` value, or through other heads of one in memory,
    /// which lie one behind the other.
    fn unfold(&self, v: Value, from: Value, at: At<'c>) -> Result<At<'c>, Diagnostic> {
        let in_memory = self.operand(from).is_ok();
        let (to, from) = (&self.shape(v)?.shape, &self.shape(from)?.shape);
        match (to.rank(), from.rank(), at.head) {
            (3, 2, Some(head)) => {
                let first = head * to.last().unwrap_or(0);
                Ok(At { head: None, col: Col::Var(first + self.column(at.col)), ..at })
            }
            (a, b, _) if a == b && to == from => Ok(at),
            (3, 3, Some(head)) if in_memory => {
                let first = head * to.last().unwrap_or(0);
                Ok(At { head: Some(self.code.int(0)), col: Col::Var(first + self.column(at.col)), ..at })
            }
            _ => Err(unsupported(format!("{from} seen as {to} inside a kernel"))),
        }
    }

    /// The address of a head that is a part of a row: the first one begins at `start`, and the next
    /// every `step` columns.
    fn part_of(&self, (start, step): (usize, usize), at: At<'c>) -> Result<At<'c>, Diagnostic> {
        let head = at.head.ok_or_else(|| unsupported("parts of a row without their number"))?;
        Ok(At { head: None, col: Col::Var(head * step + start + self.column(at.col)), ..at })
    }

    fn moved(&self, v: Value, axis: usize, start: usize, at: At<'c>) -> Result<At<'c>, Diagnostic> {
        match (axis, self.shape(v)?.shape.rank(), at.head) {
            (1, 2, _) | (2, 3, _) => Ok(At { col: self.shifted(at.col, start), ..at }),
            (1, 3, Some(head)) => Ok(At { head: Some(head + start), ..at }),
            _ => Err(unsupported(format!("a slice of axis {axis} inside a kernel"))),
        }
    }
}
