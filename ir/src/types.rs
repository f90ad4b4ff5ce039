//! Types of values: tensors over at most one symbolic dimension, cache states, and the batch.
use std::fmt;

use crate::graph::{Graph, NodeId};
use atomc_dtype::step::Size;

pub use atomc_dtype::step::BOOK_BLOCKS;
pub use atomc_dtype::{DType, Encode, Encoded, Fact, Order, TEXT, Whole, nth_name};

/// Largest dimension and largest number of heads in a text: sums of several cannot overflow.
pub(crate) const MAX_SIZE: usize = 1 << 40;

/// A dimension: a number, or what a step chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A number.
    Fixed(usize),
    /// `T`: tokens in the step.
    Tokens,
    /// `R`: rows of the step that want logits.
    Rows,
    /// `T*k`: k rows for each token of the step, those of a token one after the other.
    Choices(usize),
}

impl Dim {
    /// The number, if it is one.
    pub fn fixed(self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(n),
            _ => None,
        }
    }

    /// The dimension's size in a step of these sizes.
    pub fn at(self, tokens: usize, rows: usize) -> usize {
        match self {
            Dim::Fixed(n) => n,
            Dim::Tokens => tokens,
            Dim::Rows => rows,
            Dim::Choices(count) => tokens.saturating_mul(count),
        }
    }
}

impl Size for Dim {
    fn fixed(self) -> Option<usize> {
        self.fixed()
    }
    fn of(size: usize) -> Dim {
        Dim::Fixed(size)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Tokens => f.write_str("T"),
            Dim::Rows => f.write_str("R"),
            Dim::Choices(count) => write!(f, "T*{count}"),
        }
    }
}

/// The dimensions of a tensor, slowest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// A shape of numbers.
    pub fn fixed(dims: &[usize]) -> Shape {
        Shape(dims.iter().map(|&n| Dim::Fixed(n)).collect())
    }

    /// `[lead, rest…]`
    pub fn led_by(lead: Dim, rest: &[usize]) -> Shape {
        Shape(std::iter::once(lead).chain(rest.iter().map(|&n| Dim::Fixed(n))).collect())
    }

    /// How many axes there are.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Elements along the last axis, if that is a number.
    pub fn last(&self) -> Option<usize> {
        self.0.last().and_then(|d| d.fixed())
    }

    /// Elements in one row: the product of all dimensions but the first, if that is a number.
    pub fn row(&self) -> Option<usize> {
        self.0.iter().skip(1).try_fold(1usize, |row, d| row.checked_mul(d.fixed()?))
    }

    /// The sizes, if none is symbolic.
    pub fn sizes(&self) -> Option<Vec<usize>> {
        self.0.iter().map(|d| d.fixed()).collect()
    }

    /// Elements in a step of these sizes.
    pub fn elements(&self, tokens: usize, rows: usize) -> usize {
        self.0.iter().map(|d| d.at(tokens, rows)).product()
    }

    /// Whether the first dimension, and only the first, may be symbolic.
    pub fn well_formed(&self) -> bool {
        self.0.iter().skip(1).all(|d| d.fixed().is_some()) && self.0.iter().all(|d| d.fixed() != Some(0))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

/// How the elements of a tensor lie in memory. Values do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Layout {
    /// Row after row.
    #[default]
    Rows,
    /// Panels of rows with groups of columns inside, as contraction kernels read their weights.
    /// Width and group come from the target's arch row.
    Panels,
    /// Panels of rows with single columns inside, as contraction kernels read the scales of a
    /// weight with blocks of one row: those of a panel's rows lie side by side.
    Columns,
    /// Rows of codes, each followed by its scales: one in f32 for this many columns. The values are
    /// the codes times their scales.
    Scaled(usize),
    /// Rows of codes, as many to a byte as their bits allow, each followed by its scales: one in
    /// e8m0 for this many columns, also for those of the padding.
    Mx(usize),
    /// The experts of rows, as any indices, followed by the rows of each expert: see
    /// [`crate::layout::Groups`].
    Grouped {
        /// How many experts there are.
        experts: usize,
        /// Rows in a block of one expert's.
        tile: usize,
    },
}

impl Layout {
    /// What follows the shape in the text form.
    pub fn suffix(self) -> String {
        match self {
            Layout::Rows => String::new(),
            Layout::Panels => "@panels".into(),
            Layout::Columns => "@columns".into(),
            Layout::Scaled(group) => format!("@scaled({group})"),
            Layout::Mx(group) => format!("@mx({group})"),
            Layout::Grouped { experts, tile } => format!("@grouped({experts}, {tile})"),
        }
    }

    /// Whether rows are codes that carry their scales.
    pub fn is_coded(self) -> bool {
        matches!(self, Layout::Scaled(_) | Layout::Mx(_))
    }

    /// Whether it is a layout of constants with elements in an order that a weight plan makes.
    pub fn is_packed(self) -> bool {
        matches!(self, Layout::Panels | Layout::Columns)
    }

    /// The layout of the text after the `@`.
    pub fn from_suffix(text: &str) -> Option<Layout> {
        match text {
            "panels" => Some(Layout::Panels),
            "columns" => Some(Layout::Columns),
            _ => {
                let (name, sizes) = text.strip_suffix(')')?.split_once('(')?;
                let size = |text: &str| text.parse().ok().filter(|&n| n > 0 && n <= MAX_SIZE);
                match (name, sizes.split_once(", ")) {
                    ("scaled", None) => Some(Layout::Scaled(size(sizes)?)),
                    ("mx", None) => Some(Layout::Mx(size(sizes)?)),
                    ("grouped", Some((experts, tile))) => {
                        Some(Layout::Grouped { experts: size(experts)?, tile: size(tile)? })
                    }
                    _ => None,
                }
            }
        }
    }
}

/// What a router makes of its logits, so that they are the sizes of choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Score {
    /// Their softmax.
    Softmax,
    /// The logistic function of each.
    Sigmoid,
    /// The softmax of those alone that were chosen.
    Chosen,
    /// The square root of `ln(1 + exp(logit))`.
    RootSoftplus,
}

impl Score {
    /// Every one.
    pub const ALL: [Score; 4] = [Score::Softmax, Score::Sigmoid, Score::Chosen, Score::RootSoftplus];

    /// Its name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Score::Softmax => "softmax",
            Score::Sigmoid => "sigmoid",
            Score::Chosen => "chosen",
            Score::RootSoftplus => "root_softplus",
        }
    }
}

/// For which position a row of a rotary table is, and which way it turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Turn {
    /// The token's own.
    Token,
    /// The token's own, turned back: sines have the other sign.
    Back,
    /// The first of the token's block of as many.
    Block(usize),
}

impl Turn {
    /// The position for a token at one.
    pub fn position(self, position: i32) -> i32 {
        match self {
            Turn::Token | Turn::Back => position,
            Turn::Block(every) => position - position % every as i32,
        }
    }
}

/// What tells how good a group of experts is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Best {
    /// The largest score of its experts.
    Max,
    /// The sum of the two largest.
    Sum2,
}

impl Best {
    /// Every one.
    pub const ALL: [Best; 2] = [Best::Max, Best::Sum2];

    /// Its name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Best::Max => "max",
            Best::Sum2 => "sum2",
        }
    }
}

/// How a router chooses experts, and how much each of them counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// How many experts a token has.
    pub k: usize,
    /// What logits become.
    pub score: Score,
    /// Groups of as many experts each; 1 if there are none.
    pub groups: usize,
    /// How many of the groups a token chooses from.
    pub kept: usize,
    /// By which of their experts' scores.
    pub best: Best,
    /// Whether the weights of a token are divided by their sum.
    pub renormalise: bool,
    /// What weights are multiplied with in the end.
    pub scale: f64,
}

impl Router {
    /// The operands after the logits: the bias, and the first of the experts that a rank holds.
    pub fn behind_logits<T: Copy>(rest: &[T], held: Option<usize>) -> (Option<T>, Option<T>) {
        match (held, rest) {
            (Some(_), &[ref bias @ .., first]) => (bias.first().copied(), Some(first)),
            _ => (rest.first().copied(), None),
        }
    }

    /// What is added to the sum of a token's scores before they are divided by it, if anything is:
    /// logistic functions may all be zero in f32. Source: transformers, `DeepseekV3TopkRouter`.
    pub fn added(&self) -> Option<f64> {
        matches!(self.score, Score::Sigmoid | Score::RootSoftplus).then_some(1e-20)
    }

    /// Whether experts are chosen by their logits, because scores are in the same order: what is
    /// far below the largest score is zero in f32, and would be equal.
    pub fn by_logits(&self, has_bias: bool) -> bool {
        !has_bias && (self.groups == 1 || self.best == Best::Max)
    }
}

/// How rows of activations become codes, and what their scale is. `most` is the largest code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// By a scale that is given.
    Static,
    /// By a scale for each row: its largest size over `most`.
    Row,
    /// By a scale for this many columns of a row, likewise.
    Group(usize),
    /// By the same scale rounded up to a power of two.
    Power(usize),
    /// By a power of two for this many columns of a row, as the OCP's MX formats have it. The
    /// result is numbers of the type of the rows, which holds them.
    Mx(usize),
    /// By the same powers of two; the result is the codes, with their scales.
    MxCodes(usize),
}

/// Rows and columns of a weight that share a scale, and a zero point if there is one. The last
/// blocks may be smaller.
///
/// With the type of the weight and those of its scales and zero points, which are operands like it,
/// this is the weight's encoding: a scale for each tensor, for each row, for groups of columns or
/// for squares are the same thing with other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// Rows of a block, at least one.
    pub rows: usize,
    /// Columns of a block, at least one.
    pub cols: usize,
}

impl Block {
    /// How many blocks a matrix has from top to bottom, and from left to right.
    pub fn grid(self, rows: usize, cols: usize) -> [usize; 2] {
        [rows.div_ceil(self.rows), cols.div_ceil(self.cols)]
    }
}

/// The type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType {
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions.
    pub shape: Shape,
    /// How it lies in memory.
    pub layout: Layout,
}

impl TensorType {
    /// A tensor with rows one after the other.
    pub fn new(dtype: DType, shape: Shape) -> TensorType {
        TensorType { dtype, shape, layout: Layout::Rows }
    }

    /// Bytes of its elements side by side, in a step of these sizes.
    pub fn bytes(&self, tokens: usize, rows: usize) -> usize {
        self.dtype.bytes(self.shape.elements(tokens, rows))
    }

    /// Elements that lie side by side: those of a row of the step, or of a matrix.
    pub fn width(&self) -> usize {
        match self.shape.0.first() {
            Some(lead) if lead.fixed().is_none() && self.shape.rank() > 1 => self.shape.row().unwrap_or(0),
            _ => self.shape.last().unwrap_or(1),
        }
    }

    /// Rows for each token of the step.
    pub fn choices(&self) -> usize {
        match self.shape.0.first() {
            Some(&Dim::Choices(count)) => count,
            _ => 1,
        }
    }

    /// Whether it is a list of indices: no rows, no padding.
    pub fn is_indices(&self) -> bool {
        self.dtype == DType::I32 && self.shape.rank() == 1
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.dtype.name(), self.shape, self.layout.suffix())
    }
}

/// The state of one layer's KV cache. Writing gives a new state, so that order and effects are
/// ordinary operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheType {
    /// The type of keys and values.
    pub dtype: DType,
    /// Heads of keys, and of values.
    pub heads: usize,
    /// Elements of a head's key.
    pub head_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// Whether a value is the first elements of its key, and nothing else.
    pub is_prefix: bool,
}

impl CacheType {
    /// Keys and values that are equally wide.
    pub fn even(dtype: DType, heads: usize, head_dim: usize) -> CacheType {
        CacheType { dtype, heads, head_dim, value_dim: head_dim, is_prefix: false }
    }

    /// Keys that have the values as their first elements.
    pub fn prefix(dtype: DType, heads: usize, head_dim: usize, value_dim: usize) -> CacheType {
        CacheType { dtype, heads, head_dim, value_dim, is_prefix: true }
    }

    /// Numbers of a token: a value that is a part of its key is none of its own.
    pub fn numbers(&self) -> usize {
        self.heads * (self.head_dim + if self.is_prefix { 0 } else { self.value_dim })
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheType { dtype, heads, head_dim, value_dim, is_prefix } = self;
        write!(f, "cache<{}, {heads}, {head_dim}", dtype.name())?;
        match is_prefix {
            true => write!(f, ", prefix {value_dim}>"),
            false if value_dim == head_dim => f.write_str(">"),
            false => write!(f, ", {value_dim}>"),
        }
    }
}

/// The state that one layer keeps of each sequence, whatever its length: a slot of fixed size.
/// Steps give a new state, as with [`CacheType`]. A sequence's slot is zero when it begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotsType {
    /// The type of the numbers.
    pub dtype: DType,
    /// The sizes of a slot, slowest first.
    pub shape: Vec<usize>,
    /// Tokens of a sequence in a step up to which the state behind each is kept. If it is more than
    /// one, the table of a sequence begins with the slot that the step goes on from, and has a slot
    /// for the state behind each token after it; if the tokens are more than these, the first of
    /// those is for the state behind the last one. Otherwise one slot is for both. A state behind
    /// tokens is not kept where the slot's number is -1.
    pub each: usize,
}

impl SlotsType {
    /// Slots of which a sequence has one.
    pub fn new(dtype: DType, shape: Vec<usize>) -> SlotsType {
        SlotsType { dtype, shape, each: 1 }
    }

    /// Whether a step keeps the state behind a token: behind each if the sequence has no more of
    /// them in the step than slots, and behind the last one otherwise.
    pub fn keeps(&self, tokens: usize, is_last: bool) -> bool {
        is_last || tokens <= self.each
    }

    /// Entries of a sequence's table.
    pub fn entries(&self) -> usize {
        if self.each > 1 { self.each + 1 } else { 1 }
    }

    /// The entry for the state behind the first `behind` of `tokens` tokens of a step, or for the
    /// one that the step goes on from.
    pub fn entry(&self, behind: usize, tokens: usize) -> usize {
        match (self.each, tokens <= self.each) {
            (1, _) => 0,
            (_, true) => behind,
            (_, false) => behind.min(1),
        }
    }

    /// Numbers of a slot.
    pub fn numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of a slot, with its numbers side by side: whole units of [`SLOT_ALIGN`].
    pub fn bytes(&self) -> usize {
        self.dtype.bytes(self.numbers()).next_multiple_of(SLOT_ALIGN)
    }
}

/// The sizes of a delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSizes {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each with a state.
    pub heads: usize,
    /// Elements of a query or key: rows of a state.
    pub key_dim: usize,
    /// Elements of a value: columns of a state.
    pub value_dim: usize,
    /// Numbers of a head by which its state decays: one, or one for each row.
    pub decays: usize,
}

impl DeltaSizes {
    /// Of a node that is one.
    pub fn of(graph: &Graph, node: NodeId) -> Option<DeltaSizes> {
        let operands = graph.operands(node);
        let &[heads, key_dim, value_dim] = &graph.ty(*operands.first()?).as_slots()?.shape[..] else { return None };
        let row = |slot: usize| graph.ty(*operands.get(slot)?).as_tensor()?.shape.0.get(1)?.fixed();
        Some(DeltaSizes { key_heads: row(1)?, heads, key_dim, value_dim, decays: row(4)? / heads })
    }
}

/// Most tokens behind each of which a step keeps the state: as many as it verifies.
pub const MOST_KEPT: usize = 8;

/// Slots begin at multiples of this many bytes, as pages of a cache do.
pub const SLOT_ALIGN: usize = 256;

impl fmt::Display for SlotsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slots<{}", self.dtype.name())?;
        self.shape.iter().try_for_each(|size| write!(f, ", {size}"))?;
        if self.each > 1 {
            write!(f, ", each {}", self.each)?;
        }
        f.write_str(">")
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// Numbers.
    Tensor(TensorType),
    /// A state of a cache.
    Cache(CacheType),
    /// A state of slots.
    Slots(SlotsType),
    /// Which sequence and position each token of the step belongs to, and where the sequences'
    /// cache blocks are.
    Batch,
}

impl Type {
    /// A tensor with rows one after the other.
    pub fn tensor(dtype: DType, shape: Shape) -> Type {
        Type::Tensor(TensorType::new(dtype, shape))
    }

    /// The type of a tensor, if it is one.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// The type of a cache state, if it is one.
    pub fn as_cache(&self) -> Option<CacheType> {
        match self {
            Type::Cache(c) => Some(*c),
            _ => None,
        }
    }

    /// The type of a state of slots, if it is one.
    pub fn as_slots(&self) -> Option<&SlotsType> {
        match self {
            Type::Slots(s) => Some(s),
            _ => None,
        }
    }

    /// Whether it is kept from step to step.
    pub fn is_state(&self) -> bool {
        matches!(self, Type::Cache(_) | Type::Slots(_))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) => t.fmt(f),
            Type::Cache(c) => c.fmt(f),
            Type::Slots(s) => s.fmt(f),
            Type::Batch => f.write_str("batch"),
        }
    }
}
