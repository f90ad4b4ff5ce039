//! Evaluates the row-wise part of a kernel's body, one vector of elements at a time.
//!
//! Every family uses it: as the whole kernel, as what happens to the rows before a contraction, or
//! as what happens to accumulators after it. Nothing is materialised; a norm's statistics are
//! computed once a row by [`Rows::prepare`].
mod quantise;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use atomc_ir::arch::Machine;
use atomc_ir::{Diagnostic, Dim, Graph, Layout, Norm, Op, Reads, TensorType, Type, Value, Values};
use inkwell::values::FloatValue;

use crate::code::{Code, Int, Ptr, Vector};
use crate::math::Lanes;
use quantise::Scale;
pub use quantise::to_bits;

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

/// Where a vector of elements is: a row, for values with heads the head, and the first column
/// (inside the head).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At<'c> {
    pub row: Int<'c>,
    pub head: Option<Int<'c>>,
    pub col: Col<'c>,
}

/// A vector that was computed: of which value, from which column on, which piece of it, and what it
/// is.
type Kept<'c> = (Value, Int<'c>, Option<usize>, Vector<'c>);

/// The body of one kernel, with its operands in memory.
pub struct Rows<'a, 'c> {
    pub code: &'a Code<'c>,
    pub graph: &'a Graph,
    memory: HashMap<Value, Operand<'c>>,
    indices: HashMap<Value, Ptr<'c>>,
    /// Values that a family computes itself, for the position it is at.
    bound: RefCell<HashMap<Value, Vector<'c>>>,
    /// Of each norm, for the row or head that was prepared last.
    statistics: RefCell<HashMap<Value, Statistics<'c>>>,
    /// Of each value of codes with one scale for a row, for the row that was prepared last.
    scales: RefCell<HashMap<Value, Scale<'c>>>,
    team: Cell<Option<Team<'a, 'c>>>,
    /// Where this member's first vectors of a row begin.
    columns: RefCell<Vec<Int<'c>>>,
    /// In how many pieces vectors are computed, and which of them is; none while they are only
    /// loaded.
    pieces: Cell<usize>,
    piece: Cell<Option<usize>>,
    /// Vectors that were computed for a norm's scale and are wanted again, by value, column and
    /// piece.
    kept: RefCell<Vec<Kept<'c>>>,
    /// Whole vectors as they lie in memory, for all of their pieces.
    loaded: RefCell<Vec<(Value, At<'c>, Vector<'c>)>>,
}

/// What a machine does for threads that compute a row together.
pub trait Threads<'c> {
    /// The sum over a team, all of whom come here.
    fn team_sum(&self, v: FloatValue<'c>, team: Team<'_, 'c>) -> FloatValue<'c>;

    /// The largest of a team's numbers.
    fn team_top(&self, v: FloatValue<'c>, team: Team<'_, 'c>) -> FloatValue<'c>;

    /// No instruction is moved across.
    fn keep_order(&self);
}

/// The threads that compute one row together; without a team, one thread goes along the whole row.
#[derive(Clone, Copy)]
pub struct Team<'a, 'c> {
    /// Which of them this one is.
    pub index: Int<'c>,
    pub size: usize,
    /// Where the waves of a work-group exchange a float each; none if the team is a part of one
    /// wave.
    pub exchange: Option<Ptr<'c>>,
    pub threads: &'a dyn Threads<'c>,
}

pub fn unsupported(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new("target::unsupported", what)
}

/// What a norm must know of a whole row: the mean, if it takes that off, and the scale of what is
/// left.
#[derive(Clone, Copy, Debug)]
struct Statistics<'c> {
    centre: Option<FloatValue<'c>>,
    scale: FloatValue<'c>,
}

/// What is added up along a row: the elements, or their squares, without the mean.
#[derive(Clone, Copy)]
enum Term<'c> {
    Value,
    Square(Option<FloatValue<'c>>),
}

/// A row and, for values with heads, the head.
type Place<'c> = (Int<'c>, Option<Int<'c>>);

/// Whether a statistic of the whole row comes before any of its elements.
pub fn is_norm(op: &Op) -> bool {
    matches!(op.values(), Values::Normed(_))
}

type Made<'c> = Result<Vector<'c>, Diagnostic>;

/// Turns of a loop along a row up to which it is unrolled.
const UNROLL: usize = 8;

/// Keeps what went wrong inside a loop's body, and gives the body something to go on with.
fn kept<'c>(failed: &mut Result<(), Diagnostic>, e: Diagnostic, c: &Code<'c>) -> Vector<'c> {
    *failed = Err(e);
    c.zero()
}

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

    /// From here on vectors are computed a piece at a time, of as many lanes as the code has, so
    /// that few registers hold what lies between loads and results. Loads are of whole vectors.
    pub fn set_pieces(&self, pieces: usize) {
        self.pieces.set(pieces);
        self.loaded.borrow_mut().clear();
    }

    /// Elements of a whole vector.
    fn whole(&self) -> usize {
        self.pieces.get() * self.code.lanes()
    }

    /// `f` of each piece of a vector, one after the other.
    pub fn each_piece(&self, mut f: impl FnMut() -> Made<'c>) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let one = |piece| {
            self.piece.set(Some(piece));
            let made = f();
            if self.pieces.get() > 1 {
                self.keep_order();
            }
            made
        };
        let made = (0..self.pieces.get()).map(one).collect();
        self.piece.set(Some(0));
        made
    }

    /// Loads what the vectors that begin at `at` are made of, before any piece of them is computed.
    pub fn load_ahead(&self, v: Value, at: &[At<'c>]) -> Result<(), Diagnostic> {
        if self.pieces.get() == 1 {
            return Ok(());
        }
        self.loaded.borrow_mut().clear();
        self.piece.set(None);
        let loaded = at.iter().try_for_each(|&at| self.eval(v, at).map(|_| ()));
        self.piece.set(Some(0));
        self.keep_order();
        loaded
    }

    /// What was begun before is under way while what follows computes.
    fn keep_order(&self) {
        if let Some(team) = self.team.get() {
            team.threads.keep_order();
        }
    }

    /// From here on rows are computed by such teams.
    pub fn set_team(&self, team: Team<'a, 'c>) {
        self.team.set(Some(team));
        let first = team.index * self.whole();
        *self.columns.borrow_mut() = (0..UNROLL).map(|turn| first + turn * team.size * self.whole()).collect();
    }

    /// Does `body` at the vectors of a row of `n` elements that this member of the team has: where
    /// each begins.
    pub fn each_column(
        &self,
        n: usize,
        mut body: impl FnMut(Int<'c>) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        self.each_columns(n, 1, |cols| body(cols[0]))
    }

    /// As [`Rows::each_column`], at `together` vectors at a time where there are so many.
    pub fn each_columns(
        &self,
        n: usize,
        together: usize,
        mut body: impl FnMut(&[Int<'c>]) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let c = self.code;
        let Some(Team { index, size, .. }) = self.team.get() else {
            return Err(unsupported("columns of a team without members"));
        };
        let (turn, mut result) = (size * self.whole(), Ok(()));
        if n.div_ceil(turn) > UNROLL {
            let first = index * self.whole();
            c.repeat(first, n, turn, |col| result = body(&[col]));
            return result;
        }
        let columns = self.columns.borrow().clone();
        columns[..n / turn].chunks(together).try_for_each(&mut body)?;
        if !n.is_multiple_of(turn) {
            let col = columns[n / turn];
            c.when(c.less(col, n), || result = body(&[col]));
        }
        result
    }

    /// `body` with vectors of some values at the same columns, of the row of `n` elements that this
    /// member of the team has a share of. A norm's scale comes last where it can, so that what else
    /// they are made of is loaded while squares are added up.
    pub fn each_made<const N: usize>(
        &self,
        values: [Value; N],
        (row, head): (Int<'c>, Option<Int<'c>>),
        n: usize,
        mut body: impl FnMut(Int<'c>, [Vector<'c>; N]) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let c = self.code;
        let made = |col: Int<'c>| {
            let made: Result<Vec<_>, _> =
                values.iter().map(|&v| self.eval(v, At { row, head, col: Col::Var(col) })).collect();
            made.map(|made| std::array::from_fn::<_, N, _>(|i| made[i]))
        };
        let prepare = || values.iter().try_for_each(|&v| self.prepare(v, row, head));
        let late = |&v: &Value| self.last_norm(v).is_some() || !self.needs_norm(v);
        let Some(columns) = self.own_columns(n).filter(|_| values.iter().all(late)) else {
            prepare()?;
            return self.each_column(n, |col| body(col, made(col)?));
        };
        let norms = values.map(|v| self.last_norm(v));
        norms.iter().flatten().for_each(|&norm| self.set_scale(norm, c.number(1.0)));
        let all = columns.iter().map(|&col| made(col)).collect::<Result<Vec<_>, _>>()?;
        prepare()?;
        let scales = norms.map(|norm| norm.map(|norm| c.splat(self.statistics.borrow()[&norm].scale)));
        columns.into_iter().zip(all).try_for_each(|(col, made)| {
            body(col, std::array::from_fn(|i| scales[i].map_or(made[i], |scale| c.fmul(made[i], scale))))
        })
    }

    /// The columns of this member's vectors of a row, where every member has as many.
    fn own_columns(&self, n: usize) -> Option<Vec<Int<'c>>> {
        let turn = self.team.get()?.size * self.whole();
        let fits = self.pieces.get() == 1 && n.is_multiple_of(turn) && n / turn <= UNROLL;
        fits.then(|| self.columns.borrow()[..n / turn].to_vec())
    }

    /// The only norm that a value needs, if the value is a multiple of its scale.
    fn last_norm(&self, v: Value) -> Option<Value> {
        let from = |v: Value| self.graph.operands(v.node)[0];
        let op = self.graph.op(v.node);
        match op.values() {
            _ if self.is_bound(v) => None,
            Values::Kept | Values::Scaled if op.reads(0) == Reads::Row => self.last_norm(from(v)),
            Values::Normed(norm) if !norm.centred && !self.has_norm(from(v)) => Some(v),
            _ => None,
        }
    }

    fn has_norm(&self, v: Value) -> bool {
        is_norm(self.graph.op(v.node)) || self.graph.operands(v.node).into_iter().any(|v| self.has_norm(v))
    }

    /// Whether a norm must be prepared before the value can be computed.
    fn needs_norm(&self, v: Value) -> bool {
        let needs = || self.graph.operands(v.node).into_iter().any(|v| self.needs_norm(v));
        !self.is_bound(v) && (is_norm(self.graph.op(v.node)) || needs())
    }

    fn is_bound(&self, v: Value) -> bool {
        self.bound.borrow().contains_key(&v)
    }

    /// Forgets what was kept of the last row.
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
            Layout::Scaled(_) => memory.result_stride(ty),
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
            op if is_norm(op) => self.norm(v, &operands, at),
            Op::Rope {} => self.rope(&operands, at),
            Op::RopePairs {} => self.rope_pairs(&operands, at),
            Op::Parts { start, .. } => self.eval(operands[0], self.part_of(operands[0], v, *start, at)?),
            Op::Beside {} => self.beside(&operands, at),
            Op::Quantise { to, rule } => self.quantised(v, *to, *rule, at),
            Op::Combine {} => self.combined(&operands, at),
            op => Err(unsupported(format!("`{}` cannot be computed a row at a time", op.name()))),
        }
    }

    /// An operand of an elementwise op: of the same shape, or a vector along the last axis.
    fn eval_like(&self, operand: Value, of: Value, at: At<'c>) -> Made<'c> {
        let (shape, of) = (&self.shape(operand)?.shape, &self.shape(of)?.shape);
        match shape.rank() == 1 && of.rank() > 1 {
            true if shape.last() == Some(1) && of.last() != Some(1) => {
                let first = self.eval(operand, At { row: self.code.int(0), head: None, col: Col::Const(0) })?;
                Ok(self.code.splat(self.code.lane(first, 0).into_float_value()))
            }
            true => self.eval(operand, At { row: self.code.int(0), head: None, col: at.col }),
            false => self.eval(operand, at),
        }
    }

    /// `[T, H, d]` read through a `[T, H * d]` value.
    fn unfold(&self, v: Value, from: Value, at: At<'c>) -> Result<At<'c>, Diagnostic> {
        let (to, from) = (&self.shape(v)?.shape, &self.shape(from)?.shape);
        match (to.rank(), from.rank(), at.head) {
            (3, 2, Some(head)) => {
                let first = head * to.last().unwrap_or(0);
                Ok(At { head: None, col: Col::Var(first + self.column(at.col)), ..at })
            }
            (a, b, _) if a == b && to == from => Ok(at),
            _ => Err(unsupported(format!("{from} seen as {to} inside a kernel"))),
        }
    }

    /// A head of equal parts of a row, read through the row.
    fn part_of(&self, x: Value, v: Value, start: usize, at: At<'c>) -> Result<At<'c>, Diagnostic> {
        let width = self.shape(x)?.shape.last().unwrap_or(0);
        match (&self.shape(v)?.shape.0[..], at.head) {
            (&[_, Dim::Fixed(count), _], Some(head)) => {
                let first = head * (width / count) + start;
                Ok(At { head: None, col: Col::Var(first + self.column(at.col)), ..at })
            }
            _ => Err(unsupported("parts of a row without their number")),
        }
    }

    fn moved(&self, v: Value, axis: usize, start: usize, at: At<'c>) -> Result<At<'c>, Diagnostic> {
        match (axis, self.shape(v)?.shape.rank(), at.head) {
            (1, 2, _) | (2, 3, _) => Ok(At { col: self.shifted(at.col, start), ..at }),
            (1, 3, Some(head)) => Ok(At { head: Some(head + start), ..at }),
            _ => Err(unsupported(format!("a slice of axis {axis} inside a kernel"))),
        }
    }

    /// Address of an element of an operand with rows.
    pub fn address(&self, x: &Operand<'c>, at: At<'c>) -> Ptr<'c> {
        let c = self.code;
        let mut element = at.row * x.stride + self.column(at.col);
        if let Some(head) = at.head {
            element = element + head * x.ty.shape.last().unwrap_or(0);
        }
        c.at(x.ptr, element * x.ty.dtype.size())
    }

    /// Stores a vector of a row, with what is beyond its width as zeros. Vectors of GPUs lie whole
    /// on one side of it.
    pub fn store_padded(&self, lanes: Vector<'c>, out: &Operand<'c>, at: At<'c>) {
        let c = self.code;
        let width = out.ty.shape.row().unwrap_or(0);
        let col = self.column(at.col);
        let lanes = match c.arch.machine {
            _ if width == self.padded(out) => lanes,
            Machine::Simt(_) => c.pick(c.less(col, width), lanes, c.zero()).into_vector_value(),
            Machine::Cpu(_) => c.choose(c.lanes_below(width - col), lanes, c.zero()),
        };
        c.store_floats(self.address(out, at), lanes, out.ty.dtype);
    }

    fn load(&self, v: Value, at: At<'c>) -> Made<'c> {
        let (c, x, lanes) = (self.code, self.operand(v)?, self.code.lanes());
        if let Layout::Scaled(group) = x.ty.layout {
            return self.stored(v, group, at);
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
        // What is computed of zeros leaves no instructions.
        Ok(self.piece.get().map_or(c.zero(), |piece| c.widen(c.part(all, piece * lanes, lanes), x.ty.dtype)))
    }

    /// The bits of a vector.
    fn load_bits(&self, x: &Operand<'c>, at: At<'c>) -> Made<'c> {
        match x.ty.layout {
            Layout::Rows | Layout::Scaled(_) => Ok(self.code.load_bits(self.address(x, at), x.ty.dtype)),
            Layout::Panels => Ok(self.load_packed(x, at)),
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
        let panel_bytes = m.panel * x.stride * size;
        let panel = at.row / m.panel * panel_bytes;
        let lane = at.row % m.panel * m.group_bytes;
        let (group, bytes) = (m.group_bytes / size, c.lanes() * size);
        let col = self.column(at.col);
        let groups = col / group * (m.panel * m.group_bytes);
        let inside = if bytes < m.group_bytes { col % group * size } else { c.int(0) };
        let first = c.at(x.ptr, panel + lane + (groups + inside));
        let part_bytes = bytes.min(m.group_bytes);
        let count = bytes / part_bytes;
        let part_type = c.bytes_type(part_bytes);
        let mut lanes = c.ints(part_type, count).get_undef();
        for g in 0..count {
            let part = c.load(part_type, c.at(first, g * m.panel * m.group_bytes), part_bytes.min(16) as u32);
            let at = c.cx.i32_type().const_int(g as u64, false);
            lanes = c.b.build_insert_element(lanes, part, at, "").expect("a part into a vector of them");
        }
        lanes
    }

    fn gather(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let row = self.chosen_row(operands[1], at.row)?;
        self.eval(operands[0], At { row, ..at })
    }

    /// The row that an index names, which for those of no expert is the first.
    fn chosen_row(&self, indices: Value, at: Int<'c>) -> Result<Int<'c>, Diagnostic> {
        let (c, from) = (self.code, self.index(indices)?);
        let is_given = self.graph.ty(indices).as_tensor().is_some_and(|t| t.shape.0[0] != Dim::Choices(t.choices()));
        Ok(if is_given { c.load_index(from, at) } else { c.larger(c.load_made_index(from, at), 0) })
    }

    /// Rows of a token's choices, each times its weight.
    fn combined(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let c = self.code;
        let weights = self.operand(operands[1])?;
        let k = weights.ty.shape.last().unwrap_or(1);
        let mut sum = c.zero();
        for choice in 0..k {
            let row = self.eval(operands[0], At { row: at.row * k + choice, ..at })?;
            let weight = self.address(weights, At { row: at.row, head: None, col: Col::Const(choice) });
            let weight = c.load(c.cx.f32_type(), weight, 4).into_float_value();
            sum = c.fma(row, c.splat(weight), sum);
        }
        Ok(sum)
    }

    fn norm(&self, v: Value, operands: &[Value], at: At<'c>) -> Made<'c> {
        let known = self.statistics.borrow().get(&v).copied();
        let Statistics { centre, scale } = known.ok_or_else(|| unsupported("a norm of what is computed later"))?;
        let x = self.left(self.eval(operands[0], at)?, centre);
        let w = self.eval_like(operands[1], v, at)?;
        let scaled = self.code.fmul(self.code.fmul(x, self.code.splat(scale)), w);
        match operands.get(2) {
            Some(&bias) => Ok(self.code.fadd(scaled, self.eval_like(bias, v, at)?)),
            None => Ok(scaled),
        }
    }

    /// What is left of a vector without the mean of its row.
    fn left(&self, v: Vector<'c>, centre: Option<FloatValue<'c>>) -> Vector<'c> {
        centre.map_or(v, |centre| self.code.fsub(v, self.code.splat(centre)))
    }

    /// Emits the statistics of every norm that `v` needs, for this row and head.
    pub fn prepare(&self, v: Value, row: Int<'c>, head: Option<Int<'c>>) -> Result<(), Diagnostic> {
        if self.bound.borrow().contains_key(&v) || !matches!(self.graph.ty(v), Type::Tensor(_)) {
            return Ok(());
        }
        let operands = self.graph.operands(v.node);
        let op = self.graph.op(v.node);
        match op.values() {
            Values::Normed(norm) => {
                self.prepare(operands[0], row, head)?;
                let statistics = self.statistics_of(operands[0], norm, row, head)?;
                self.statistics.borrow_mut().insert(v, statistics);
                Ok(())
            }
            Values::Coded => {
                self.prepare(operands[0], row, head)?;
                let Op::Quantise { to, rule } = *op else { return Ok(()) };
                self.prepare_scale(v, (to, rule), (row, head))
            }
            _ if op.reads(0) == Reads::Chosen => {
                let row = self.code.load_index(self.index(operands[1])?, row);
                self.prepare(operands[0], row, head)
            }
            _ if op.is_contraction() => Ok(()),
            _ => operands.iter().try_for_each(|&o| self.prepare(o, row, head)),
        }
    }

    /// From here on a norm scales by this, which the family has made itself.
    pub fn set_scale(&self, norm: Value, scale: FloatValue<'c>) {
        self.statistics.borrow_mut().insert(norm, Statistics { centre: None, scale });
    }

    /// Of a row or head: the mean, if the norm takes it off, and `1 / sqrt(mean(x^2) + eps)` of
    /// what is left.
    fn statistics_of(
        &self,
        x: Value,
        norm: Norm,
        row: Int<'c>,
        head: Option<Int<'c>>,
    ) -> Result<Statistics<'c>, Diagnostic> {
        let c = self.code;
        let n = self.shape(x)?.shape.last().unwrap_or(0);
        let mut centre = None;
        if norm.centred {
            let sum = self.sum(x, n, (row, head), Term::Value)?;
            centre = Some(c.b.build_float_mul(sum, c.number(1.0 / n as f64), "").expect("floats"));
        }
        let squares = self.sum(x, n, (row, head), Term::Square(centre))?;
        Ok(Statistics { centre, scale: c.inverse_root(squares, n, norm.eps) })
    }

    /// The sum of a term of each element of a row, by the whole team.
    fn sum(&self, x: Value, n: usize, place: Place<'c>, term: Term<'c>) -> Result<FloatValue<'c>, Diagnostic> {
        let c = self.code;
        Ok(match self.team.get() {
            None => c.sum(self.terms(x, n, place, term)?),
            Some(team) => {
                let share = self.share(x, n, place, (team.index, team.size), term)?;
                team.threads.team_sum(c.sum(share), team)
            }
        })
    }

    /// What a term is made of.
    fn base(&self, v: Vector<'c>, term: Term<'c>) -> Vector<'c> {
        match term {
            Term::Value => v,
            Term::Square(centre) => self.left(v, centre),
        }
    }

    fn added(&self, base: Vector<'c>, sum: Vector<'c>, term: Term<'c>) -> Vector<'c> {
        match term {
            Term::Value => self.code.fadd(base, sum),
            Term::Square(_) => self.code.fma(base, base, sum),
        }
    }

    /// Terms of a whole row, summed up lane by lane.
    fn terms(&self, x: Value, n: usize, (row, head): Place<'c>, term: Term<'c>) -> Made<'c> {
        let (c, lanes) = (self.code, self.code.lanes());
        let square = |sum: Vector<'c>, col: Col<'c>, count: usize| -> Made<'c> {
            let mut v = self.base(self.eval(x, At { row, head, col })?, term);
            if count < lanes {
                v = c.choose(c.lanes_below(count), v, c.zero());
            }
            Ok(self.added(v, sum, term))
        };
        let mut sum = c.zero();
        if head.is_some() {
            for col in (0..n).step_by(lanes) {
                sum = square(sum, Col::Const(col), n - col)?;
            }
            return Ok(sum);
        }
        let whole = n / lanes * lanes;
        let mut failed = Ok(());
        let carried = c.for_each((0, whole, lanes), &[sum.into()], |col, sums| {
            let next = square(sums[0].into_vector_value(), Col::Var(col), lanes);
            vec![next.unwrap_or_else(|e| kept(&mut failed, e, c)).into()]
        });
        failed?;
        sum = carried[0].into_vector_value();
        if whole < n { square(sum, Col::Const(whole), n - whole) } else { Ok(sum) }
    }

    /// Terms of one member's share of a row: every `size`-th vector.
    fn share(
        &self,
        x: Value,
        n: usize,
        (row, head): Place<'c>,
        (index, size): (Int<'c>, usize),
        term: Term<'c>,
    ) -> Made<'c> {
        let (c, lanes) = (self.code, self.whole());
        let (turns, first) = (n.div_ceil(size * lanes), index * lanes);
        let whole = n.is_multiple_of(size * lanes);
        let value = |col: Int<'c>| -> Made<'c> {
            let inside = c.less(col, n);
            let safe = if whole { col } else { c.pick_int(inside, col, 0) };
            let v = self.base(self.eval(x, At { row, head, col: Col::Var(safe) })?, term);
            Ok(if whole { v } else { c.pick(inside, v, c.zero()).into_vector_value() })
        };
        if turns <= UNROLL {
            let mut sum = c.zero();
            for turn in 0..turns {
                let col = self.columns.borrow()[turn];
                self.each_piece(|| {
                    let v = value(col)?;
                    if !matches!(term, Term::Square(Some(_))) {
                        self.kept.borrow_mut().push((x, col, self.piece.get(), v));
                    }
                    sum = self.added(v, sum, term);
                    Ok(sum)
                })?;
            }
            return Ok(sum);
        }
        let mut failed = Ok(());
        let carried = c.for_each((0, turns, 1), &[c.zero().into()], |turn, sums| {
            let (col, mut sum) = (turn * (size * lanes) + first, sums[0].into_vector_value());
            let all = self.each_piece(|| {
                sum = self.added(value(col)?, sum, term);
                Ok(sum)
            });
            vec![all.map_or_else(|e| kept(&mut failed, e, c), |_| sum).into()]
        });
        failed.map(|()| carried[0].into_vector_value())
    }

    /// Element j of the first half is rotated with element j of the second; what the table does not
    /// cover stays.
    fn rope(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let c = self.code;
        let Col::Const(col) = at.col else { return self.rope_anywhere(operands, at) };
        let (x, table) = (operands[0], operands[1]);
        let rot = self.shape(table)?.shape.last().unwrap_or(0);
        let half = rot / 2;
        let own = self.eval(x, at)?;
        let angle = |col: usize| self.eval(table, At { head: None, col: Col::Const(col), ..at });
        let mut result = own;
        if col < half {
            let partner = self.eval(x, At { col: Col::Const(col + half), ..at })?;
            let turned = c.fsub(c.fmul(own, angle(col)?), c.fmul(partner, angle(half + col)?));
            result = self.blend(turned, result, 0, half - col);
        }
        if col < rot && col + self.code.lanes() > half {
            // In lane i stands element col + i, whose partner is `half` before it.
            let skip = half.saturating_sub(col);
            let from = (col + skip) - half;
            let late = |v: Vector<'c>| self.delayed(v, skip);
            let partner = late(self.eval(x, At { col: Col::Const(from), ..at })?);
            let (cos, sin) = (late(angle(from)?), late(angle(half + from)?));
            let turned = c.fma(own, cos, c.fmul(partner, sin));
            result = self.blend(turned, result, skip, rot - col);
        }
        Ok(result)
    }

    /// As [`Rows::rope`], where the column is known when the kernel runs: whole vectors lie in one
    /// half.
    fn rope_anywhere(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, x, table) = (self.code, operands[0], operands[1]);
        let (rot, dim) = (self.shape(table)?.shape.last(), self.shape(x)?.shape.last());
        let (rot, half) = (rot.unwrap_or(0), rot.unwrap_or(0) / 2);
        if !half.is_multiple_of(self.whole()) {
            return Err(unsupported(format!("a rotation of {rot} columns in vectors of {}", c.lanes())));
        }
        let col = self.column(at.col);
        let (early, turns) = (c.less(col, half), c.less(col, rot));
        let place = |early_col: Int<'c>, late_col: Int<'c>| {
            let col = c.pick_int(early, early_col, late_col);
            c.pick_int(turns, col, 0)
        };
        let own = self.eval(x, at)?;
        let partner = place(col + half, col - half);
        let partner = self.eval(x, At { col: Col::Var(partner), ..at })?;
        let angle = |first: Int<'c>| self.eval(table, At { head: None, col: Col::Var(first), ..at });
        let cos_at = place(col, col - half);
        let (cos, sin) = (angle(cos_at)?, angle(cos_at + half)?);
        let signed = c.pick(early, c.fsub(c.zero(), sin), sin).into_vector_value();
        let turned = c.fma(own, cos, c.fmul(partner, signed));
        let all = dim == Some(rot);
        Ok(if all { turned } else { c.pick(turns, turned, own).into_vector_value() })
    }

    /// Neighbours are rotated with each other: whole pairs lie in a vector.
    fn rope_pairs(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, x, table) = (self.code, operands[0], operands[1]);
        let [rot, dim] = [table, x].map(|v| self.shape(v).map(|t| t.shape.last().unwrap_or(0)));
        let (rot, dim, lanes) = (rot?, dim?, c.lanes());
        let splits = matches!(at.col, Col::Var(_)) && !rot.is_multiple_of(self.whole());
        if lanes < 2 || splits {
            return Err(unsupported(format!("a rotation of neighbours of {rot} columns in vectors of {lanes}")));
        }
        let own = self.eval(x, at)?;
        let (half, turns) = match at.col {
            Col::Const(col) if col >= rot => return Ok(own),
            Col::Const(col) => (Col::Const(col / 2), None),
            Col::Var(col) if rot == dim => (Col::Var(col / 2), None),
            Col::Var(col) => {
                let turns = c.less(col, rot);
                (Col::Var(c.pick_int(turns, col / 2, 0)), Some(turns))
            }
        };
        let twice: Vec<usize> = (0..lanes).map(|i| i / 2).collect();
        let angle = |first: usize| {
            let v = self.eval(table, At { head: None, col: self.shifted(half, first), ..at })?;
            Ok::<_, Diagnostic>(c.shuffle(v, v, &twice))
        };
        let (cos, sin) = (angle(0)?, angle(rot / 2)?);
        let others: Vec<usize> = (0..lanes).map(|i| i ^ 1).collect();
        let other = c.fmul(c.shuffle(own, own, &others), sin);
        let mixed: Vec<usize> = (0..lanes).map(|i| if i % 2 == 0 { i } else { lanes + i }).collect();
        let signed = c.shuffle(c.fsub(c.zero(), other), other, &mixed);
        let turned = c.fma(own, cos, signed);
        Ok(match (turns, at.col) {
            (Some(turns), _) => c.pick(turns, turned, own).into_vector_value(),
            (None, Col::Const(col)) if col + lanes > rot => self.blend(turned, own, 0, rot - col),
            _ => turned,
        })
    }

    /// The columns of one operand, then those of the other.
    fn beside(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, [a, b]) = (self.code, [operands[0], operands[1]]);
        let width = self.shape(a)?.shape.last().unwrap_or(0);
        match at.col {
            Col::Const(col) if col >= width => self.eval(b, At { col: Col::Const(col - width), ..at }),
            Col::Const(col) if col + c.lanes() <= width => self.eval(a, at),
            Col::Const(col) => {
                let (early, late) = (self.eval(a, at)?, self.eval(b, At { col: Col::Const(0), ..at })?);
                Ok(self.blend(early, self.delayed(late, width - col), 0, width - col))
            }
            Col::Var(_) if !width.is_multiple_of(self.whole()) => {
                Err(unsupported(format!("what stands behind {width} columns in vectors of {}", c.lanes())))
            }
            Col::Var(col) => {
                let is_early = c.less(col, width);
                let [early, late] = [c.pick_int(is_early, col, 0), c.pick_int(is_early, 0, col - width)];
                let early = self.eval(a, At { col: Col::Var(early), ..at })?;
                let late = self.eval(b, At { col: Col::Var(late), ..at })?;
                Ok(c.pick(is_early, early, late).into_vector_value())
            }
        }
    }

    /// Lanes `from..to` of `a`, the others of `b`.
    fn blend(&self, a: Vector<'c>, b: Vector<'c>, from: usize, to: usize) -> Vector<'c> {
        let lanes: Vec<usize> =
            (0..self.code.lanes()).map(|i| if i >= from && i < to { i } else { self.code.lanes() + i }).collect();
        self.code.shuffle(a, b, &lanes)
    }

    /// Lane i takes what lane `i - by` had.
    fn delayed(&self, v: Vector<'c>, by: usize) -> Vector<'c> {
        let lanes: Vec<usize> = (0..self.code.lanes()).map(|i| i.saturating_sub(by)).collect();
        if by == 0 { v } else { self.code.shuffle(v, v, &lanes) }
    }
}
