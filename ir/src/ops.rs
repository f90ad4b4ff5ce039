//! The op table: each op once, with its operands, attributes, result types and meaning.
use std::fmt::Write;

use crate::attr::Attr;
use crate::elementwise::Elementwise;
use crate::family::Family;
use crate::graph::Graph;
use crate::interp::{self, Real, Val};
use crate::rope::Freqs;
use crate::shapes;
use crate::types::{Block, DType, Encoded, Fact, Layout, Order, Router, Rule, Shape, Type, Whole};

/// How far a graph has come. Each pass names the stage that it leaves; the verifier knows what each
/// stage forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// As a frontend builds it.
    Model,
    /// Contraction weights are packed and every node knows its segment.
    Segmented,
    /// Every computing node is a kernel, but for the caller's.
    Fused,
}

/// What kind of thing an op is, as a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Comes from outside the graph; its type is written, not inferred.
    Source,
    /// Pure, and allowed in a weight plan.
    Layout,
    /// Pure.
    Compute,
    /// Makes a new cache state of an old one.
    Effect,
    /// Where graphs are split into segments.
    Boundary,
    /// A boundary whose work is not a kernel's but that of whoever runs the step.
    Call,
}

/// Which rows of an operand a row of the result needs, as a column of the table for each operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Row i for row i.
    Row,
    /// The row that an operand of indices names.
    Chosen,
    /// All rows of the token that row i stands for.
    Choices,
    /// Any of them.
    All,
    /// The operand has no rows of the step: all rows of the result share it.
    Shared,
    /// As [`Reads::Shared`]: a weight that kernels read in panels.
    Panels,
    /// As [`Reads::Shared`]: scales of a weight that kernels read in columns of panels.
    Columns,
    /// The operand itself: the result takes its place in memory.
    Taken,
}

impl Reads {
    /// Of what works along an axis: rows are joined or parted along the first, and left alone along
    /// the others.
    fn along(axis: usize) -> Reads {
        if axis == 0 { Reads::All } else { Reads::Row }
    }

    /// Of what there is one for each block of a weight: kernels read those of a panel together
    /// where each row has its own.
    fn blocks(block: &Option<Block>) -> Reads {
        if block.is_some_and(|block| block.rows == 1) { Reads::Columns } else { Reads::Shared }
    }

    /// The layout in which kernels read such an operand, if only one will do.
    pub fn layout(self) -> Option<Layout> {
        match self {
            Reads::Panels => Some(Layout::Panels),
            Reads::Columns => Some(Layout::Columns),
            _ => None,
        }
    }
}

/// Which kernels compute an op, as a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// None: it comes from outside, from the weight plan or from the caller.
    Outside,
    /// Any, a vector of a row at a time, as a part of what they make.
    Inline,
    /// Those that make whole rows and have a way of their own to store this one.
    Rows,
    /// Those that are built around it: of one family in steps of few tokens, of another in all
    /// others.
    Around {
        /// In decode steps.
        few: Family,
        /// In all others.
        many: Family,
    },
}

/// What the elements of the first operand become, as a column of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// The same ones, perhaps elsewhere or of another type.
    Kept,
    /// Of axis 1 those from `start` to `start + len`, and as many further on, so many times.
    Part {
        /// How many parts there are.
        of: usize,
        /// The first element of the first.
        start: usize,
        /// How many elements.
        len: usize,
    },
    /// Each times the element of the next operand.
    Multiplied,
    /// Each plus the element of the next operand.
    Added,
    /// What is `c` times as large for a row that is `c` times as large.
    Scaled,
    /// The row by a statistic of its own.
    Normed(Norm),
    /// The nearest codes by a scale, times that scale.
    Coded,
    /// Something else.
    Other,
}

impl Values {
    /// Of what takes a range of an axis: a part of each row, or other rows.
    fn along(axis: usize, start: usize, len: usize) -> Values {
        if axis == 1 { Values::Part { of: 1, start, len } } else { Values::Kept }
    }

    /// Whether they are numbers of the first operand as they were, all or some.
    pub fn are_kept(self) -> bool {
        matches!(self, Values::Kept | Values::Part { .. })
    }
}

/// Which elements inside a row an element of the result needs, as a column of the table: of the
/// first operand, and of all others that have rows all, where it says nothing else. With [`Reads`]
/// it says what of an operand must be known for some elements of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// The same one, of every operand that has as many.
    Same,
    /// One that lies elsewhere, of one of the operands.
    Moved,
    /// All of the last axis.
    Axis,
    /// Those of the last axis that share such a group of columns.
    Group(usize),
    /// All of the row.
    Row,
    /// All of the head that is as the result's.
    Head,
    /// The same one, of rows that are chosen.
    Picked,
    /// Of a token's key, or value, the one that is written.
    Written,
    /// All of every operand's row.
    All,
    /// Rows cannot be computed without others.
    Whole,
}

impl Within {
    /// Of what works along an axis.
    fn along(axis: usize) -> Within {
        if axis == 0 { Within::Whole } else { Within::Moved }
    }

    /// Of what a rule makes codes of.
    fn of(rule: &Rule) -> Within {
        match *rule {
            Rule::Static => Within::Same,
            Rule::Row => Within::Axis,
            Rule::Group(columns) | Rule::Power(columns) | Rule::Mx(columns) | Rule::MxCodes(columns) => {
                Within::Group(columns)
            }
        }
    }
}

/// A norm of rows: `x * scale * weight`, plus a bias if there is one, where `scale` is
/// `1 / sqrt(mean(x^2) + eps)` over the last axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// What is added to the mean of the squares.
    pub eps: f64,
    /// Whether the mean of the row is taken off it before.
    pub centred: bool,
}

macro_rules! ops {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident = $text:literal ($($arg:ident: $reads:expr),* $(; $($more:ident: $also:expr),*)?) {$($attr:ident: $ty:ty),*}
            [$class:ident, $maker:expr, $values:expr, $within:expr, $work:path] $shape:path, $eval:path;
    )*) => {
        /// What a node does.
        #[derive(Clone, Debug)]
        pub enum Op {
            /// An elementwise op.
            Map(Elementwise),
            /// A fused region: `body` computes the results from the operands, `family` says how.
            Kernel {
                /// How it is computed.
                family: Family,
                /// What it computes.
                body: Box<Graph>,
            },
            $($(#[doc = $doc])* $name { $(#[doc = concat!("The attribute `", stringify!($attr), "`.")] $attr: $ty),* },)*
        }

        impl Op {
            /// Its name in the text form.
            pub fn name(&self) -> &'static str {
                match self {
                    Op::Map(e) => e.name(),
                    Op::Kernel { .. } => "kernel",
                    $(Op::$name { .. } => $text,)*
                }
            }

            /// Names of the operands that there must be; `None` where any number is allowed.
            pub fn operands(&self) -> Option<&'static [&'static str]> {
                match self {
                    Op::Map(e) => Some(e.operands()),
                    Op::Kernel { .. } => None,
                    $(Op::$name { .. } => operand_names(&[$(stringify!($arg)),*]),)*
                }
            }

            /// Names of the operands that may follow.
            pub fn optional(&self) -> &'static [&'static str] {
                match self {
                    $(Op::$name { .. } => &[$($(stringify!($more)),*)?],)*
                    Op::Map(_) | Op::Kernel { .. } => &[],
                }
            }

            /// What kind of thing it is.
            pub fn class(&self) -> Class {
                match self {
                    Op::Map(_) | Op::Kernel { .. } => Class::Compute,
                    $(Op::$name { .. } => Class::$class,)*
                }
            }

            /// Which rows of the operand in a slot a row of the result needs.
            #[allow(unused_variables)]
            pub fn reads(&self, slot: usize) -> Reads {
                use Reads::*;
                match self {
                    Op::Map(_) => Row,
                    Op::Kernel { .. } => All,
                    $(Op::$name { $($attr),* } => nth(&[$($reads,)* $($($also),*)?], slot),)*
                }
            }

            /// Which kernels compute it.
            pub fn maker(&self) -> Maker {
                use Maker::*;
                match self {
                    Op::Map(_) => Inline,
                    Op::Kernel { .. } => Outside,
                    $(Op::$name { .. } => $maker,)*
                }
            }

            /// What the elements of the first operand become.
            #[allow(unused_variables)]
            pub fn values(&self) -> Values {
                use Values::*;
                match self {
                    Op::Map(e) => e.values(),
                    Op::Kernel { .. } => Other,
                    $(Op::$name { $($attr),* } => $values,)*
                }
            }

            /// Which elements inside rows of its operands an element of the result needs.
            #[allow(unused_variables)]
            pub fn within(&self) -> Within {
                use Within::*;
                match self {
                    Op::Map(_) => Same,
                    Op::Kernel { .. } => Whole,
                    $(Op::$name { $($attr),* } => $within,)*
                }
            }

            /// Multiplications and additions for each element of the result, where these are what
            /// its kernels are for.
            pub fn work(&self, inputs: &[&Type]) -> usize {
                match self {
                    Op::Map(_) | Op::Kernel { .. } => 0,
                    $(Op::$name { .. } => $work(inputs),)*
                }
            }

            /// Attributes in the order of the table, without those that are left out.
            pub fn attributes(&self) -> Vec<(&'static str, String)> {
                let mut all: Vec<(&'static str, String)> = match self {
                    Op::Map(e) => e.constants().into_iter().map(|(name, value)| (name, value.show())).collect(),
                    Op::Kernel { family, .. } => vec![("family", family.show())],
                    $(Op::$name { $($attr),* } => vec![$((stringify!($attr), $attr.show())),*],)*
                };
                all.retain(|(_, value)| !value.is_empty());
                all
            }

            /// The op of this name with these attributes, or what is wrong with them.
            pub(crate) fn from_text(name: &str, attrs: &mut Vec<(String, String)>) -> Result<Op, String> {
                if let Some(&e) = Elementwise::ALL.iter().find(|e| e.name() == name) {
                    return Ok(Op::Map(e.with(|name| take(attrs, name))?));
                }
                match name {
                    $($text => Ok(Op::$name { $($attr: take(attrs, stringify!($attr))?),* }),)*
                    _ => Err(format!("unknown op `{name}`")),
                }
            }

            /// Types of the results for operands of these types.
            pub fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, String> {
                if let Some(names) = self.operands() {
                    check_count(self, names, inputs.len())?;
                }
                match self {
                    Op::Map(_) => shapes::map(inputs),
                    Op::Kernel { body, .. } => shapes::kernel(inputs, body),
                    $(Op::$name { $($attr),* } => $shape(inputs $(, $attr)*),)*
                }
            }

            /// The reference meaning.
            pub(crate) fn eval<S: Real>(&self, args: &[&Val<S>], cx: interp::Cx) -> Result<Vec<Val<S>>, String> {
                match self {
                    Op::Map(e) => interp::map(args, cx, *e),
                    Op::Kernel { body, .. } => interp::kernel(args, cx, body),
                    $(Op::$name { $($attr),* } => $eval(args, cx $(, $attr)*),)*
                }
            }

            /// Every op as (text name, operands, documentation), for `docs` and tests.
            pub const TABLE: &'static [(&'static str, &'static [&'static str], &'static str)] =
                &[$(($text, &[$(stringify!($arg),)* $($(stringify!($more)),*)?], concat!($($doc),*)),)*];
        }
    };
}

ops! {
    /// A parameter of the graph.
    Input = "input" () { name: String }
        [Source, Outside, Other, All, work::none] shapes::source, interp::source;
    /// A tensor of the checkpoint.
    Weight = "weight" () { name: String }
        [Source, Outside, Other, Whole, work::none] shapes::source, interp::source;
    /// As many tensors of the checkpoint, one behind the other along a new first axis: `name` has a
    /// star in the place of their numbers. Where there is a tensor `whole`, it has them all.
    Weights = "weights" () { name: String, count: usize, whole: Option<Whole> }
        [Source, Outside, Other, Whole, work::none] shapes::weights, interp::weights;
    /// Inverse frequencies of a rotary embedding, a constant of the configuration.
    RopeFreqs = "rope_freqs" () { freqs: Freqs }
        [Layout, Outside, Other, Whole, work::none] shapes::rope_freqs, interp::rope_freqs;
    /// Whole numbers in f32, a constant of the configuration.
    Numbers = "numbers" () { values: Vec<usize> }
        [Layout, Outside, Other, Whole, work::none] shapes::numbers, interp::numbers;
    /// Joins operands along an axis.
    Concat = "concat" (many: Reads::along(*axis)) { axis: usize }
        [Layout, Rows, Kept, Within::along(*axis), work::none] shapes::concat, interp::concat;
    /// Elements `start` to `start + len` of an axis.
    Slice = "slice" (x: Reads::along(*axis)) { axis: usize, start: usize, len: usize }
        [Layout, Inline, Values::along(*axis, *start, *len), Within::along(*axis), work::none] shapes::slice, interp::slice;
    /// Each `step`-th element of an axis, from `start` on.
    Every = "every" (x: Reads::along(*axis)) { axis: usize, step: usize, start: usize }
        [Layout, Outside, Kept, Within::along(*axis), work::none] shapes::every, interp::every;
    /// `x` with zeros behind it along an axis, which then has `len` elements.
    Pad = "pad" (x: Reads::along(*axis)) { axis: usize, len: usize }
        [Layout, Outside, Kept, Within::along(*axis), work::none] shapes::pad, interp::pad;
    /// Of so many equal parts along an axis that of the rank, of those that share the model out.
    Shard = "shard" (x: Reads::along(*axis)) { axis: usize, parts: usize }
        [Layout, Outside, Kept, Whole, work::none] shapes::shard, interp::shard;
    /// `w + by`, for a weight that is kept as what it differs by from a constant.
    Offset = "offset" (w: Row) { by: f64 }
        [Layout, Outside, Other, Same, work::none] shapes::offset, interp::offset;
    /// Columns of each matrix as rows.
    Transpose = "transpose" (x: All) {}
        [Layout, Outside, Other, Whole, work::none] shapes::transpose, interp::transpose;
    /// The elements of a stored tensor in row-major order under any other shape.
    View = "view" (x: All) { shape: Shape }
        [Layout, Outside, Kept, Whole, work::none] shapes::view, interp::view;
    /// The codes that the words of a checkpoint are made of, bit by bit: along the axis there are
    /// `len` of them, whose last word may have bits to spare. `order` says where in a word each
    /// lies.
    Unpack = "unpack" (words: Reads::along(*axis)) { from: DType, to: DType, axis: usize, len: usize, order: Order }
        [Layout, Outside, Other, Whole, work::none] shapes::unpack, interp::unpack;
    /// `codes + by`, integers of another type, which has all of these.
    Shift = "shift" (codes: Row) { by: i32, to: DType }
        [Layout, Outside, Other, Same, work::none] shapes::shift, interp::shift;
    /// `x` of a checkpoint whose tensor `told`, which nothing is computed with, says that `x` is
    /// stored as it is taken to be.
    Expect = "expect" (x: Row, told: All) { is: Fact }
        [Layout, Outside, Kept, Whole, work::none] shapes::expect, interp::expect;
    /// The codes or the scales that a stored weight becomes, block by block; codes of 4 bits as
    /// bytes of two.
    Encode = "encode" (w: All) { codes: DType, scales: DType, block: Block, made: Encoded }
        [Layout, Outside, Other, Whole, work::none] shapes::encode, interp::encode;
    /// The numbers that unpacked codes mean, by a power of two for each block: the last step but
    /// `pack`.
    Dequantise = "dequantise" (codes: Shared, scale: Shared) { block: Block, to: DType }
        [Layout, Outside, Other, Whole, work::none] shapes::dequantise, interp::dequantise;
    /// Other layout, same values.
    Pack = "pack" (w: Shared) { to: Layout }
        [Layout, Outside, Kept, Same, work::none] shapes::pack, interp::pack;
    /// Same elements in row-major order under another shape.
    Reshape = "reshape" (x: Row) { shape: Shape }
        [Compute, Inline, Kept, Same, work::none] shapes::reshape, interp::reshape;
    /// Other element type.
    Cast = "cast" (x: Row) { to: DType }
        [Compute, Inline, Kept, Same, work::none] shapes::cast, interp::cast;
    /// Row `rows[i]` of the table, for each i; the first one where that is below zero.
    Gather = "gather" (table: Chosen, rows: Row) {}
        [Compute, Inline, Kept, Picked, work::none] shapes::gather, interp::gather;
    /// `x @ w^T`, accumulated in f32. A weight that is stored as codes has scales, one for each
    /// block of rows and columns, and may have zero points: its elements are
    /// `(code - zero) * scale`.
    Linear = "linear" (x: Row, w: Panels; scale: Reads::blocks(block), zero: Reads::blocks(block)) { out: DType, block: Option<Block> }
        [Compute, CONTRACTION, Other, Row, work::dot] shapes::linear, interp::linear;
    /// Which experts each token chooses by its logits, with the weight of each. A bias is added to
    /// scores where experts are chosen, and only there. Equals are taken in the order of experts.
    /// Of a rank that holds some of the experts the last operand says which is the first of these,
    /// in f32, and experts are counted from there: others are -1, with a weight of zero.
    Route = "route" (logits: Row; bias: Shared, first: Shared) { by: Router, held: Option<usize> }
        [Compute, Rows, Other, All, work::none] shapes::route, interp::route;
    /// The same indices of experts, with the rows of each expert behind them.
    Group = "group" (experts: All) { experts: usize, tile: usize }
        [Compute, GROUP, Kept, Whole, work::none] shapes::group, interp::group;
    /// As `linear`, with the weight of an expert for each row; where the expert is below zero there
    /// is none, and the row is zeros. Rows of x are those of tokens, or as many as there are
    /// experts.
    Grouped = "grouped" (x: All, w: Panels, experts: Row; scale: Reads::blocks(block), zero: Reads::blocks(block)) { out: DType, block: Option<Block> }
        [Compute, GROUPED, Other, Row, work::dot] shapes::grouped, interp::grouped;
    /// Each of a row's heads times a matrix of its own, of as many as there are heads, accumulated
    /// in f32. Weights are stored as those of `linear`.
    PerHead = "per_head" (x: Row, w: Panels; scale: Reads::blocks(block), zero: Reads::blocks(block)) { out: DType, block: Option<Block> }
        [Compute, GROUPED, Other, Head, work::dot] shapes::per_head, interp::per_head;
    /// The rows that a token's choices made, each times its weight, added up in their order. A
    /// token may have one row, as it is.
    Combine = "combine" (y: Choices, weights: Row) {}
        [Compute, Inline, Other, Picked, work::none] shapes::combine, interp::combine;
    /// `x` as codes of a type, by scales that a rule makes or that is given for all. The values are
    /// `code * scale`.
    Quantise = "quantise" (x: Row; scale: Shared) { to: DType, rule: Rule }
        [Compute, Inline, Coded, Within::of(rule), work::none] shapes::quantise, interp::quantise;
    /// `x / sqrt(mean(x^2) + eps) * weight` over the last axis.
    RmsNorm = "rms_norm" (x: Row, weight: Shared) { eps: f64 }
        [Compute, Inline, Normed(Norm { eps: *eps, centred: false }), Axis, work::none] shapes::norm, interp::rms_norm;
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` over the last axis.
    LayerNorm = "layer_norm" (x: Row, weight: Shared, bias: Shared) { eps: f64 }
        [Compute, Inline, Normed(Norm { eps: *eps, centred: true }), Axis, work::none] shapes::norm, interp::layer_norm;
    /// Cosines, then sines, of `position * freq`, times `scale`. With `growth` above zero the base
    /// grows with sequences longer than `original` (dynamic NTK).
    RopeTable = "rope_table" (positions: Row, lengths: Row, freqs: Shared) { scale: f64, growth: f64, original: usize }
        [Compute, Rows, Other, All, work::none] shapes::rope_table, interp::rope_table;
    /// Rotates the first elements of each head, as many as the table is wide; halves, not pairs,
    /// belong together.
    Rope = "rope" (x: Row, table: Row) {}
        [Compute, Inline, Scaled, Axis, work::none] shapes::rope, interp::rope;
    /// Rotates the first elements of each head, as many as the table is wide; neighbours, not
    /// halves, belong together.
    RopePairs = "rope_pairs" (x: Row, table: Row) {}
        [Compute, Inline, Scaled, Axis, work::none] shapes::rope, interp::rope_pairs;
    /// Elements `start` to `start + len` of a row, the same `step` further on, and so on: `count`
    /// times.
    Parts = "parts" (x: Row) { count: usize, start: usize, len: usize, step: usize }
        [Compute, Inline, Part { of: *count, start: *start, len: *len }, Moved, work::none] shapes::parts, interp::parts;
    /// `b` behind `a` along the last axis.
    Beside = "beside" (a: Row, b: Row) {}
        [Compute, Inline, Other, Moved, work::none] shapes::beside, interp::beside;
    /// The column of the largest element of each row, the first of equals. NaN is never the
    /// largest; where nothing is greater than minus infinity, column 0.
    Argmax = "argmax" (x: Row) {}
        [Compute, Rows, Other, All, work::none] shapes::argmax, interp::argmax;
    /// Writes each token's key and value into the cache, at the token's position.
    KvWrite = "kv_write" (cache: Taken, k: Row, v: Row, batch: Shared) {}
        [Effect, Rows, Other, Written, work::none] shapes::kv_write, interp::kv_write;
    /// Writes each token's key into a cache whose values are so many first elements of its keys.
    KeyWrite = "key_write" (cache: Taken, k: Row, batch: Shared) { values: usize }
        [Effect, Rows, Other, Written, work::none] shapes::key_write, interp::key_write;
    /// Causal attention of each token over its own sequence; `window` counts the keys that are
    /// seen, 0 for all. `sinks` has a score for each head, as it is, that takes part in the softmax
    /// and has no value.
    Attention = "attention" (q: Row, cache: Shared, batch: Shared; sinks: Shared) { scale: f64, window: usize }
        [Boundary, ATTENTION, Other, Head, work::none] shapes::attention, interp::attention;
    /// A convolution of each channel over the tokens of a sequence: of a token and those before it,
    /// as many as the weight is long, the last of which the state keeps.
    Conv = "conv" (state: Taken, x: All, weight: Shared, batch: Shared) {}
        [Boundary, RECUR, Other, Whole, work::none] shapes::conv, interp::conv;
    /// The gated delta rule: of each token in turn a head's state becomes `exp(g) S + k d^T` with
    /// `d = beta (v - exp(g) S^T k)`, and gives `S^T q`. Of queries and keys, which several heads
    /// of values may share, the op takes `x / sqrt(sum(x^2) + eps)`, of queries over the root of
    /// their width.
    DeltaRule = "delta_rule" (state: Taken, q: All, k: All, v: All, g: All, beta: All, batch: Shared) { eps: f64 }
        [Boundary, RECUR, Other, Whole, work::delta] shapes::delta_rule, interp::delta_rule;
    /// The sum over all ranks, of which the reference is one: of its own part alone.
    AllReduce = "all_reduce" (x: Taken) {}
        [Call, Outside, Other, Whole, work::none] shapes::all_reduce, interp::all_reduce;
    /// Attention over a cache of the caller's, who puts these keys and values into it. The
    /// reference sees those of the step alone.
    CallerAttention = "caller_attention" (q: Row, k: All, v: All, batch: Shared) { layer: usize, scale: f64, window: usize }
        [Call, Outside, Other, Whole, work::none] shapes::caller_attention, interp::caller_attention;
}

/// Kernels around a product of rows with a weight.
const CONTRACTION: Maker = Maker::Around { few: Family::Matvec, many: Family::Matmul };
/// Kernels around a product of each row with the weight of its expert, or of parts of rows.
const GROUPED: Maker = Maker::Around { few: Family::GroupedMatvec, many: Family::GroupedMatmul };
/// Kernels that say which rows each expert has.
const GROUP: Maker = Maker::Around { few: Family::Group, many: Family::Group };
/// Kernels around attention over a cache.
const ATTENTION: Maker = Maker::Around { few: Family::AttendOne, many: Family::AttendMany };
/// Kernels that go through the tokens of each sequence.
const RECUR: Maker = Maker::Around { few: Family::Recur, many: Family::Recur };

/// Multiplications and additions for each element of a result. What depends on the sequences is not
/// known here.
mod work {
    use crate::types::Type;

    pub fn none(_: &[&Type]) -> usize {
        0
    }

    /// One of each for every element of a row of the first operand.
    pub fn dot(inputs: &[&Type]) -> usize {
        2 * inputs[0].as_tensor().and_then(|t| t.shape.last()).unwrap_or(0)
    }

    /// For every element of a row of values: what the state has for the key, what it is changed by,
    /// and what it has for the query.
    pub fn delta(inputs: &[&Type]) -> usize {
        3 * inputs[1].as_tensor().and_then(|t| t.shape.last()).map_or(0, |keys| 2 * keys)
    }
}

impl Op {
    /// Multiplications and additions for each pair of a token and one that it sees, of all heads:
    /// those of a score, and of a weight with a value.
    pub fn work_of_pair(&self, inputs: &[&Type]) -> usize {
        let (Op::Attention { .. }, [Type::Tensor(q), Type::Cache(c), ..]) = (self, inputs) else { return 0 };
        2 * q.shape.0.get(1).and_then(|heads| heads.fixed()).unwrap_or(0) * (c.head_dim + c.value_dim)
    }

    /// Whether the graph is split here.
    pub fn is_boundary(&self) -> bool {
        matches!(self.class(), Class::Boundary | Class::Call)
    }

    /// Whether kernels are built around it that take what follows as their epilogue.
    pub fn is_contraction(&self) -> bool {
        let product = |slot| self.reads(slot) == Reads::Panels;
        self.operands().is_some_and(|names| (0..names.len()).any(product))
    }

    /// Whether the caller does it.
    pub fn is_call(&self) -> bool {
        self.class() == Class::Call
    }

    /// The slot of the operand whose place in memory the result takes.
    pub fn in_place(&self) -> Option<usize> {
        let slots = self.operands().map_or(0, <[_]>::len);
        (0..slots).find(|&slot| self.reads(slot) == Reads::Taken)
    }

    /// Whether row i of the result needs, of operands with rows, row i alone or one that indices
    /// name.
    pub fn is_row_wise(&self) -> bool {
        let slots = self.operands().map_or(1, <[_]>::len);
        matches!(self.maker(), Maker::Inline | Maker::Rows) && (0..slots).all(|slot| self.reads(slot) != Reads::All)
    }

    /// Name and attributes, as the text form has them: equal keys on equal operands mean equal
    /// results.
    pub fn key(&self) -> String {
        let mut key = self.name().to_string();
        for (name, value) in self.attributes() {
            let _ = write!(key, " {name}={value}");
        }
        if let Op::Kernel { body, .. } = self {
            key += &body.print();
        }
        key
    }
}

/// That there are as many operands as the table says.
fn check_count(op: &Op, names: &[&str], count: usize) -> Result<(), String> {
    let more = op.optional();
    if (names.len()..=names.len() + more.len()).contains(&count) {
        return Ok(());
    }
    let or = if more.is_empty() { String::new() } else { format!(" and perhaps {}", more.join(", ")) };
    Err(format!("`{}` takes {} operands ({}){or}, not {count}", op.name(), names.len(), names.join(", ")))
}

/// `concat` takes any number of operands, which the table writes as `many`.
fn operand_names(names: &'static [&'static str]) -> Option<&'static [&'static str]> {
    (names != ["many"]).then_some(names)
}

/// The column of a slot; where any number of operands is allowed, all have that of the first.
fn nth(columns: &[Reads], slot: usize) -> Reads {
    columns.get(slot).or(columns.first()).copied().unwrap_or(Reads::All)
}

fn take<A: Attr>(attrs: &mut Vec<(String, String)>, name: &str) -> Result<A, String> {
    let Some(at) = attrs.iter().position(|(n, _)| n == name) else {
        return A::absent().ok_or_else(|| format!("attribute `{name}` is missing"));
    };
    let (_, text) = attrs.remove(at);
    A::read(&text).ok_or_else(|| format!("attribute `{name}` cannot be `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_joined_along_the_first_axis_alone() {
        let slice = |axis| Op::Slice { axis, start: 0, len: 1 };
        assert_eq!((slice(0).reads(0), slice(0).is_row_wise()), (Reads::All, false));
        assert_eq!((slice(1).reads(0), slice(1).is_row_wise()), (Reads::Row, true));
        // All operands of a concat are alike.
        assert_eq!((Op::Concat { axis: 1 }.reads(7), Op::Concat { axis: 0 }.reads(7)), (Reads::Row, Reads::All));
    }

    #[test]
    fn ranges_of_columns_are_parts_of_rows() {
        let slice = |axis| Op::Slice { axis, start: 2, len: 3 }.values();
        assert_eq!((slice(0), slice(1)), (Values::Kept, Values::Part { of: 1, start: 2, len: 3 }));
        assert_eq!(
            Op::Parts { count: 4, start: 0, len: 1, step: 2 }.values(),
            Values::Part { of: 4, start: 0, len: 1 }
        );
        assert!(slice(0).are_kept() && slice(1).are_kept() && !Values::Added.are_kept());
        let map = |e| Op::Map(e).values();
        assert_eq!((map(Elementwise::Add), map(Elementwise::Mul)), (Values::Added, Values::Multiplied));
        assert_eq!(map(Elementwise::Silu), Values::Other);
    }

    #[test]
    fn kernels_are_built_around_products_and_attention() {
        let linear = Op::Linear { out: DType::F32, block: None };
        assert!(linear.is_contraction() && !linear.is_row_wise());
        let attention = Op::Attention { scale: 1.0, window: 0 };
        assert!(attention.is_boundary() && !attention.is_contraction() && !attention.is_row_wise());
        assert_eq!(
            (Op::AllReduce {}.in_place(), Op::KvWrite {}.in_place(), linear.in_place()),
            (Some(0), Some(0), None)
        );
    }

    #[test]
    fn a_product_takes_two_operations_for_each_element_of_a_row() {
        let x = Type::tensor(DType::BF16, Shape::fixed(&[3, 40]));
        let w = Type::tensor(DType::BF16, Shape::fixed(&[7, 40]));
        assert_eq!(Op::Linear { out: DType::F32, block: None }.work(&[&x, &w]), 80);
        assert_eq!(Op::Gather {}.work(&[&x, &w]), 0);
    }

    /// Of all heads of queries, which may share one of the cache, and of values that are a part of
    /// keys.
    #[test]
    fn attention_takes_operations_for_each_pair_and_head() {
        use crate::types::{CacheType, Dim};

        let attention = Op::Attention { scale: 1.0, window: 0 };
        let of = |heads: usize, cache: CacheType| {
            let q = Type::tensor(DType::BF16, Shape::led_by(Dim::Tokens, &[heads, cache.head_dim]));
            attention.work_of_pair(&[&q, &Type::Cache(cache), &Type::Batch])
        };
        assert_eq!(of(64, CacheType::even(DType::BF16, 8, 128)), 2 * 64 * (128 + 128));
        assert_eq!(of(128, CacheType::prefix(DType::BF16, 1, 576, 512)), 2 * 128 * (576 + 512));
        assert_eq!(Op::Gather {}.work_of_pair(&[]), 0);
    }
}
