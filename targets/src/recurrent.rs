//! The parts that kernels of the family `recur` share on all machines: the tokens of a sequence in
//! a step, the sequence's slot, and the beginnings of operands that are parts of rows.
use std::cell::RefCell;

use atomc_ir::{DeltaSizes, Diagnostic, Op, Value};
use inkwell::IntPredicate;
use inkwell::values::FloatValue;

use crate::cache::Batch;
use crate::code::{Code, Int, Ptr, Vector};
use crate::kernel::Kernel;
use crate::row::{At, Col, Operand, Rows, unsupported};

/// The node that a kernel is built around: it alone.
pub fn node(kernel: &Kernel) -> Result<Value, Diagnostic> {
    kernel.the("conv, delta_rule or scan", |op| matches!(op, Op::Conv {} | Op::DeltaRule { .. } | Op::Scan {}))
}

/// A state in memory, and the batch that maps sequences to slots.
#[derive(Clone, Copy)]
pub struct State<'c> {
    slots: Ptr<'c>,
    batch: Batch<'c>,
    /// Tokens of a sequence up to which the state behind each is kept.
    each: usize,
}

/// The tokens of one sequence, and its slots.
#[derive(Clone, Copy)]
pub struct Run<'c> {
    pub first: Int<'c>,
    pub end: Int<'c>,
    /// Whether the sequence has slots, and whether it continues a state in them.
    pub has_slot: Int<'c>,
    pub goes_on: Int<'c>,
    /// The slot that it continues; some slot if the sequence has none.
    pub slot: Ptr<'c>,
    state: State<'c>,
}

impl<'c> Run<'c> {
    /// Whether there is a slot for the state behind the first `tokens` tokens, if it is kept with
    /// all others, and the slot.
    fn behind(&self, c: &Code<'c>, tokens: Int<'c>) -> (Int<'c>, Ptr<'c>) {
        if self.state.each == 1 { (self.has_slot, self.slot) } else { self.state.slot(c, self.first, tokens) }
    }

    /// As [`Run::behind`], behind the last token, if its state alone is kept.
    pub fn last(&self, c: &Code<'c>) -> (Int<'c>, Ptr<'c>) {
        self.behind(c, c.int(1))
    }

    /// Whether the state behind each token is kept, and not behind the last one alone
    /// (`SlotsType::keeps`). None if never.
    fn keeps_all(&self, c: &Code<'c>) -> Option<Int<'c>> {
        (self.state.each > 1).then(|| !c.less(self.state.each, self.end - self.first))
    }

    /// Runs `keep` with the slot for the state behind a token, if it is kept with all others.
    pub fn keep_behind(&self, c: &Code<'c>, token: Int<'c>, keep: impl FnOnce(Ptr<'c>)) {
        if let Some(keeps_all) = self.keeps_all(c) {
            c.when(keeps_all, || {
                let (has_slot, slot) = self.behind(c, token + 1 - self.first);
                c.when(has_slot, || keep(slot));
            });
        }
    }

    /// Runs `keep` with each slot for a state of the step, and the tokens that the state is behind.
    pub fn keep_states(&self, c: &Code<'c>, keep: impl Fn(Ptr<'c>, Int<'c>)) {
        if let Some(keeps_all) = self.keeps_all(c) {
            c.when(keeps_all, || {
                c.repeat(1, self.end - self.first + 1, 1, |tokens| {
                    let (has_slot, slot) = self.behind(c, tokens);
                    c.when(has_slot, || keep(slot, tokens));
                });
            });
        }
        self.keep_last(c, |slot| keep(slot, self.end - self.first));
    }

    /// Runs `keep` with the slot for the state behind all tokens, if it is kept alone.
    pub fn keep_last(&self, c: &Code<'c>, keep: impl FnOnce(Ptr<'c>)) {
        let alone = self.keeps_all(c).map_or(c.always(), |all| !all);
        let (has_slot, slot) = self.last(c);
        c.when(alone & has_slot, || keep(slot));
    }
}

impl<'c> State<'c> {
    pub fn of(kernel: &Kernel<'_, 'c>) -> Result<State<'c>, Diagnostic> {
        match (&kernel.slots[..], kernel.batch) {
            (&[(v, slots)], Some(batch)) => {
                let each = kernel.rows.graph.ty(v).as_slots().map_or(1, |ty| ty.each);
                Ok(State { slots, batch, each })
            }
            _ => Err(unsupported("a recurrence has one state of slots and a batch")),
        }
    }

    /// Runs `body` if a token is the first of its sequence in the step, which has `tokens` tokens.
    pub fn when_first(&self, c: &Code<'c>, token: Int<'c>, tokens: Int<'c>, body: impl FnOnce(Run<'c>)) {
        c.when(c.equal(self.before(c, token, 1), 0), || {
            let end = self.end(c, token, tokens, c.bits(tokens));
            body(self.run(c, token, end));
        });
    }

    /// The number of a token's sequence.
    pub fn sequence(&self, c: &Code<'c>, token: Int<'c>) -> Int<'c> {
        c.load_index(self.batch.sequences, token)
    }

    /// The end of a token's sequence. The tokens of a sequence are consecutive, and sequences are
    /// in order, so `times` halvings find it.
    pub fn end(&self, c: &Code<'c>, token: Int<'c>, tokens: Int<'c>, times: Int<'c>) -> Int<'c> {
        let own = self.sequence(c, c.smaller(token, tokens - 1));
        let begin = token + 1;
        let range = [begin, c.pick_int(c.less(0, times), c.larger(tokens, begin), begin)];
        let [end, _] = c.carry((0, times, 1), range, |_, [low, high]| {
            let middle = (low + high) / 2;
            let is_own = c.less(middle, high) & !c.less(own, self.sequence(c, c.smaller(middle, tokens - 1)));
            [c.pick_int(is_own, middle + 1, low), c.pick_int(is_own, high, middle)]
        });
        end
    }

    /// Tokens of the sequence that come before this one in the step, counted up to `most`.
    pub fn before(&self, c: &Code<'c>, token: Int<'c>, most: usize) -> Int<'c> {
        let own = self.sequence(c, token);
        (1..=most).fold(c.int(0), |count, back| {
            let same = c.compare(IntPredicate::EQ, self.sequence(c, c.larger(token, back) - back), own);
            let is_own = same & !c.less(token, back);
            count + c.as_int(c.pick(is_own, c.int(1), c.int(0)))
        })
    }

    /// Some tokens of a sequence.
    pub fn run(&self, c: &Code<'c>, first: Int<'c>, end: Int<'c>) -> Run<'c> {
        let (has_slot, slot) = self.slot(c, first, c.int(0));
        let goes_on = has_slot & c.less(0, c.load_index(self.batch.positions, first));
        Run { first, end, has_slot, goes_on, slot, state: *self }
    }

    /// The slot at an entry of the table of a sequence from `first` on, and whether there is one.
    fn slot(&self, c: &Code<'c>, first: Int<'c>, entry: Int<'c>) -> (Int<'c>, Ptr<'c>) {
        let number = c.load_index(self.batch.table(c, first), entry);
        let has_slot = c.less(number.constant(0) - 1, number);
        let offset = c.to_i64(c.larger(number, 0)) * c.to_i64(self.batch.block_stride);
        (has_slot, c.at(self.slots, offset))
    }
}

/// An operand of the body, or a part of the columns of one, or of its heads.
fn part<'c>(rows: &Rows<'_, 'c>, v: Value) -> Result<Operand<'c>, Diagnostic> {
    let from = |v: Value| part(rows, rows.graph.operands(v.node)[0]);
    let ty = rows.shape(v)?.clone();
    match *rows.graph.op(v.node) {
        Op::Reshape { .. } => Ok(Operand { ty, ..from(v)? }),
        Op::Slice { axis: 1, start, .. } => {
            let whole = from(v)?;
            let heads = whole.ty.shape.0.get(2).map_or(Some(1), |elements| elements.fixed());
            let elements = heads.ok_or_else(|| unsupported("heads of unknown width"))?;
            Ok(Operand { ptr: rows.code.at(whole.ptr, start * elements * ty.dtype.size()), ty, ..whole })
        }
        _ => rows.operand(v).cloned(),
    }
}

/// Elements up to which a part of each row begins at a multiple: 0 if at the first one.
pub fn start(rows: &Rows, v: Value) -> usize {
    let before = || start(rows, rows.graph.operands(v.node)[0]);
    match *rows.graph.op(v.node) {
        Op::Reshape { .. } => before(),
        Op::Slice { axis: 1, start, .. } => {
            let shape = rows.shape(v).map(|ty| ty.shape.0.get(2).and_then(|elements| elements.fixed()));
            before() + start * shape.ok().flatten().unwrap_or(1)
        }
        _ => 0,
    }
}

/// The bits of the elements at which parts of rows begin that a value is made of.
fn starts_of_all(rows: &Rows, v: Value) -> usize {
    let own = match *rows.graph.op(v.node) {
        Op::Slice { start, .. } => start,
        _ => 0,
    };
    rows.graph.operands(v.node).iter().fold(own, |bits, &operand| bits | starts_of_all(rows, operand))
}

/// Makes elements of a value, where another's may be given.
type Eval<'k, 'c> = dyn Fn(Value, At<'c>, Option<(Value, Vector<'c>)>) -> Result<Vector<'c>, Diagnostic> + 'k;

/// The element-wise part of a body.
struct Elements<'k, 'c> {
    eval: Box<Eval<'k, 'c>>,
    /// Whether all could be made.
    failed: RefCell<Result<(), Diagnostic>>,
}

impl<'k, 'c> Elements<'k, 'c> {
    fn of(rows: &'k Rows<'_, 'c>) -> Elements<'k, 'c> {
        let eval = |v, at, given: Option<(Value, Vector<'c>)>| {
            given.iter().for_each(|&(of, made)| rows.bind(of, made));
            let made = rows.eval(v, at);
            given.iter().for_each(|&(of, _)| rows.unbind(of));
            made
        };
        Elements { eval: Box::new(eval), failed: RefCell::new(Ok(())) }
    }

    /// Elements of a value from a column of a token on, where others may be given.
    fn at(
        &self,
        c: &Code<'c>,
        v: Value,
        token: Int<'c>,
        column: Int<'c>,
        given: Option<(Value, Vector<'c>)>,
    ) -> Vector<'c> {
        (self.eval)(v, At { row: token, head: None, col: Col::Var(column) }, given).unwrap_or_else(|fault| {
            *self.failed.borrow_mut() = Err(fault);
            c.zero()
        })
    }
}

/// The operands of a convolution.
pub struct Conv<'k, 'c> {
    pub x: Operand<'c>,
    pub weight: &'k Operand<'c>,
    pub out: &'k Operand<'c>,
    pub channels: usize,
    /// Tokens that the convolution sees.
    pub len: usize,
    /// The element of a row at which the convolution's input begins.
    pub start: usize,
    /// The convolution's result, and the stored value.
    made: [Value; 2],
    elements: Elements<'k, 'c>,
}

impl<'k, 'c> Conv<'k, 'c> {
    pub fn of(kernel: &'k Kernel<'_, 'c>, node: Value) -> Result<Conv<'k, 'c>, Diagnostic> {
        let operands = kernel.rows.graph.operands(node.node);
        let (x, weight) = (part(&kernel.rows, operands[1])?, kernel.rows.operand(operands[2])?);
        let (last, out) = kernel.output()?;
        let sizes = weight.ty.shape.sizes().unwrap_or_default();
        let &[len, channels] = &sizes[..] else { return Err(unsupported("a convolution of unknown length")) };
        let (start, elements) = (start(&kernel.rows, operands[1]), Elements::of(&kernel.rows));
        Ok(Conv { x, weight, out, channels, len, start, made: [node, last], elements })
    }

    /// The stored value of a sum, at a column of a token.
    pub fn stored(&self, c: &Code<'c>, sum: Vector<'c>, token: Int<'c>, column: Int<'c>) -> Vector<'c> {
        self.elements.at(c, self.made[1], token, column, Some((self.made[0], sum)))
    }

    /// Whether all that is stored could be made.
    pub fn finish(self) -> Result<(), Diagnostic> {
        self.elements.failed.into_inner()
    }
}

/// How a state changes.
#[derive(Clone, Copy)]
pub enum Rule {
    /// By what a value differs from what its key finds, with keys and queries of length one, to
    /// whose squares this is added.
    Delta { eps: f64 },
    /// By the value. The result has it too, times a number of the head.
    Sum { skip: Value },
}

/// The operands of a delta rule, or of a scan.
pub struct Delta<'k, 'c> {
    pub q: Operand<'c>,
    pub k: Operand<'c>,
    pub v: Operand<'c>,
    pub out: &'k Operand<'c>,
    pub sizes: DeltaSizes,
    pub rule: Rule,
    /// The elements of rows at which queries, keys and values begin.
    pub starts: [usize; 3],
    /// A multiple of no higher power of two than those at which all begin that the decay is made
    /// of.
    pub decay_start: usize,
    /// The gates.
    g: Value,
    beta: Value,
    elements: Elements<'k, 'c>,
}

impl<'k, 'c> Delta<'k, 'c> {
    pub fn of(kernel: &'k Kernel<'_, 'c>, node: Value) -> Result<Delta<'k, 'c>, Diagnostic> {
        let graph = kernel.rows.graph;
        let operands = graph.operands(node.node);
        let rule = match *graph.op(node.node) {
            Op::DeltaRule { eps } => Rule::Delta { eps },
            Op::Scan {} => Rule::Sum { skip: operands[6] },
            _ => return Err(unsupported("neither a delta rule nor a scan")),
        };
        let operand = |slot: usize| part(&kernel.rows, operands[slot]);
        let sizes = DeltaSizes::of(graph, node.node).ok_or_else(|| unsupported("a delta rule of unknown sizes"))?;
        let (_, out) = kernel.output()?;
        let [q, k, v] = [operand(1)?, operand(2)?, operand(3)?];
        let starts = [1, 2, 3].map(|slot| start(&kernel.rows, operands[slot]));
        let (g, beta, elements) = (operands[4], operands[5], Elements::of(&kernel.rows));
        let decay_start = starts_of_all(&kernel.rows, g);
        Ok(Delta { q, k, v, out, sizes, rule, starts, decay_start, g, beta, elements })
    }

    /// What is added to the squares of keys and queries, if these get a length of one.
    pub fn eps(&self) -> f64 {
        match self.rule {
            Rule::Delta { eps } => eps,
            Rule::Sum { .. } => 0.0,
        }
    }

    /// The gates of a token's head, all rows of which decay alike: the logarithm of the decay, and
    /// the rate of the new value.
    pub fn gates(&self, c: &Code<'c>, token: Int<'c>, head: Int<'c>) -> [FloatValue<'c>; 2] {
        [self.g, self.beta].map(|v| self.of_head(c, v, token, head))
    }

    /// The logarithms of the decays of rows of the state of a token's head, as many as there are
    /// lanes, if rows decay apart.
    pub fn decays(&self, c: &Code<'c>, token: Int<'c>, head: Int<'c>, row: Int<'c>) -> Vector<'c> {
        self.elements.at(c, self.g, token, head * self.sizes.key_dim + row, None)
    }

    /// The rate of the new value of a token's head.
    pub fn rate(&self, c: &Code<'c>, token: Int<'c>, head: Int<'c>) -> FloatValue<'c> {
        self.of_head(c, self.beta, token, head)
    }

    /// The logarithm of the decay of a row of the state of a token's head, or of all its rows.
    pub fn decay(&self, c: &Code<'c>, token: Int<'c>, head: Int<'c>, row: Int<'c>) -> FloatValue<'c> {
        let column = if self.by_row() { head * self.sizes.key_dim + row } else { head };
        self.of_head(c, self.g, token, column)
    }

    /// Whether each row of a state decays by a number of its own.
    pub fn by_row(&self) -> bool {
        self.sizes.decays > 1
    }

    /// The number of a head, of a weight that has one for each.
    pub fn weight_of(&self, c: &Code<'c>, v: Value, head: Int<'c>) -> FloatValue<'c> {
        self.of_head(c, v, c.int(0), head)
    }

    /// A number of a token's head.
    fn of_head(&self, c: &Code<'c>, v: Value, token: Int<'c>, head: Int<'c>) -> FloatValue<'c> {
        let lanes = c.lanes();
        c.set_lanes(1);
        let number = c.lane(self.elements.at(c, v, token, head, None), 0).into_float_value();
        c.set_lanes(lanes);
        number
    }

    /// Whether all gates could be made.
    pub fn finish(self) -> Result<(), Diagnostic> {
        self.elements.failed.into_inner()
    }
}
