//! The op table: each op once, with its operands, attributes, result types and meaning.
use std::fmt::Write;

use crate::attr::{Attr, Attributes};
use crate::elementwise::Elementwise;
use crate::family::Family;
use crate::graph::Graph;
use crate::interp::{self, Real, Val};
use crate::rope::Freqs;
use crate::shapes;
use crate::types::{Block, DType, Encode, Encoded, Fact, Layout, Order, Router, Rule, Shape, Turn, Type, Whole};
use atomc_dtype::step::Step;
use atomc_dtype::weight_steps;

/// The stage of a graph. Each pass names the stage that it leaves; the verifier knows the rules of
/// each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// As a frontend builds it.
    Model,
    /// Contraction weights are packed and every node knows its segment.
    Segmented,
    /// Every computing node is a kernel, except for the caller's.
    Fused,
}

/// The class of an op, as a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An input or a constant of the graph; its type is written, not inferred.
    Source,
    /// Pure, and allowed in a weight plan.
    Layout,
    /// Pure.
    Compute,
    /// Makes a new cache state of an old one.
    Effect,
    /// Where graphs are split into segments.
    Boundary,
    /// A boundary that the caller of a step works on, and no kernel.
    Call,
}

/// The rows of an operand that a row of the result needs, as a column of the table for each
/// operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Row i for row i.
    Row,
    /// Row i for row i, of which kernels read elements in any order: it lies in memory.
    Placed,
    /// The row that an operand of indices names.
    Chosen,
    /// All rows of the token that row i belongs to.
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
    /// The column of an op along an axis: along the first one rows are joined or parted, along the
    /// others they stay apart.
    fn along(axis: usize) -> Reads {
        if axis == 0 { Reads::All } else { Reads::Row }
    }

    /// The column of scales or zero points of a weight: kernels read those of a panel together if
    /// each row has its own.
    fn blocks(block: &Option<Block>) -> Reads {
        if block.is_some_and(|block| block.rows == 1) { Reads::Columns } else { Reads::Shared }
    }

    /// Whether row i of the result needs row i alone.
    pub fn is_row(self) -> bool {
        matches!(self, Reads::Row | Reads::Placed)
    }

    /// The layout that kernels need of such an operand, if they need one.
    pub fn layout(self) -> Option<Layout> {
        match self {
            Reads::Panels => Some(Layout::Panels),
            Reads::Columns => Some(Layout::Columns),
            _ => None,
        }
    }
}

/// The kernels that compute an op, as a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// No kernel: it is a source, or the weight plan or the caller computes it.
    Outside,
    /// Any kernel, a vector of a row at a time, as a part of its result.
    Inline,
    /// Kernels that make whole rows and store this result in a way of their own.
    Rows,
    /// Kernels that are built around it: of one family in steps of few tokens, of another in all
    /// others.
    Around {
        /// In decode steps.
        few: Family,
        /// In all others.
        many: Family,
    },
}

/// The relation of the result's elements to those of the first operand, as a column of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// The same elements, perhaps in other places or of another type.
    Kept,
    /// Equal parts of axis 1. The first one is elements `start` to `start + len`.
    Part {
        /// The number of parts.
        of: usize,
        /// The first element of the first.
        start: usize,
        /// The number of elements.
        len: usize,
    },
    /// Each element times that of the next operand.
    Multiplied,
    /// Each element plus that of the next operand.
    Added,
    /// A result that is `c` times as large if the row is `c` times as large.
    Scaled,
    /// The row, normalised by a statistic of its own.
    Normed(Norm),
    /// The row, quantised: the nearest codes times their scale.
    Coded,
    /// Any other function.
    Other,
}

impl Values {
    /// The column of an op that takes a range of an axis: a part of each row, or other rows.
    fn along(axis: usize, start: usize, len: usize) -> Values {
        if axis == 1 { Values::Part { of: 1, start, len } } else { Values::Kept }
    }

    /// Whether the result's elements are unchanged elements of the first operand.
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
    /// The constant that is added to the mean of the squares.
    pub eps: f64,
    /// Whether the mean of the row is subtracted first.
    pub centred: bool,
}

macro_rules! ops {
    (graph [$(
        $(#[doc = $step_doc:literal])*
        $step:ident = $step_text:literal { $($step_attr:ident: $step_ty:ty),* $(; $own:ident: $own_ty:ty = $plans:expr)? }
            of $of:tt packs $packs:literal op ($($step_arg:ident: $step_reads:expr),*) [$step_maker:expr, $step_values:expr, $step_within:expr];
    )*] plan $plan:tt $(
        $(#[doc = $doc:literal])*
        $name:ident = $text:literal ($($arg:ident: $reads:expr),* $(; $($more:ident: $also:expr),*)?) {$($attr:ident: $ty:ty),*}
            [$class:ident, $maker:expr, $values:expr, $within:expr, $work:path] $shape:path, $eval:path;
    )*) => {
        /// The op of a node.
        #[derive(Clone, Debug)]
        pub enum Op {
            /// An elementwise op.
            Map(Elementwise),
            /// A fused region: `body` computes the results from the operands, `family` says how.
            Kernel {
                /// The family of its schedules.
                family: Family,
                /// The graph that it computes.
                body: Box<Graph>,
            },
            $(
                $(#[doc = $step_doc])*
                $step {
                    $(#[doc = concat!("The attribute `", stringify!($step_attr), "`.")] $step_attr: $step_ty,)*
                    $(#[doc = concat!("The attribute `", stringify!($own), "`.")] $own: $own_ty)?
                },
            )*
            $($(#[doc = $doc])* $name { $(#[doc = concat!("The attribute `", stringify!($attr), "`.")] $attr: $ty),* },)*
        }

        impl Op {
            /// The step of weight plans that it is, if it is one.
            pub fn step(&self) -> Option<Step> {
                match self {
                    $(Op::$step { $($step_attr,)* $($own)? } => {
                        Some(Step::$step { $($step_attr: $step_attr.to_owned(),)* $($own: $own.to_owned())? })
                    })*
                    _ => None,
                }
            }

            /// The name in the text form.
            pub fn name(&self) -> &'static str {
                match self {
                    Op::Map(e) => e.name(),
                    Op::Kernel { .. } => "kernel",
                    $(Op::$step { .. } => $step_text,)*
                    $(Op::$name { .. } => $text,)*
                }
            }

            /// Names of the required operands; `None` if any number is allowed.
            pub fn operands(&self) -> Option<&'static [&'static str]> {
                match self {
                    Op::Map(e) => Some(e.operands()),
                    Op::Kernel { .. } => None,
                    $(Op::$step { .. } => operand_names(&[$(stringify!($step_arg)),*]),)*
                    $(Op::$name { .. } => operand_names(&[$(stringify!($arg)),*]),)*
                }
            }

            /// Names of the optional operands.
            pub fn optional(&self) -> &'static [&'static str] {
                match self {
                    $(Op::$name { .. } => &[$($(stringify!($more)),*)?],)*
                    Op::Map(_) | Op::Kernel { .. } $(| Op::$step { .. })* => &[],
                }
            }

            /// The class of the op.
            pub fn class(&self) -> Class {
                match self {
                    Op::Map(_) | Op::Kernel { .. } => Class::Compute,
                    $(Op::$step { .. } => Class::Layout,)*
                    $(Op::$name { .. } => Class::$class,)*
                }
            }

            /// The rows that a row of the result needs of the operand in a slot.
            #[allow(unused_variables)]
            pub fn reads(&self, slot: usize) -> Reads {
                use Reads::*;
                match self {
                    Op::Map(_) => Row,
                    Op::Kernel { .. } => All,
                    $(Op::$step { $($step_attr,)* $($own)? } => nth(&[$($step_reads),*], slot),)*
                    $(Op::$name { $($attr),* } => nth(&[$($reads,)* $($($also),*)?], slot),)*
                }
            }

            /// The kernels that compute it.
            pub fn maker(&self) -> Maker {
                use Maker::*;
                match self {
                    Op::Map(_) => Inline,
                    Op::Kernel { .. } => Outside,
                    $(Op::$step { .. } => $step_maker,)*
                    $(Op::$name { .. } => $maker,)*
                }
            }

            /// The relation of the result's elements to those of the first operand.
            #[allow(unused_variables)]
            pub fn values(&self) -> Values {
                use Values::*;
                match self {
                    Op::Map(e) => e.values(),
                    Op::Kernel { .. } => Other,
                    $(Op::$step { $($step_attr,)* $($own)? } => $step_values,)*
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
                    $(Op::$step { $($step_attr,)* $($own)? } => $step_within,)*
                    $(Op::$name { $($attr),* } => $within,)*
                }
            }

            /// Multiplications and additions for each element of the result, for ops that have
            /// kernels built around them.
            pub fn work(&self, inputs: &[&Type]) -> usize {
                match self {
                    Op::Map(_) | Op::Kernel { .. } $(| Op::$step { .. })* => 0,
                    $(Op::$name { .. } => $work(inputs),)*
                }
            }

            /// Attributes in the order of the table, without those that are left out.
            pub fn attributes(&self) -> Vec<(&'static str, String)> {
                let mut all: Vec<(&'static str, String)> = match self {
                    Op::Map(e) => e.constants().into_iter().map(|(name, value)| (name, value.show())).collect(),
                    Op::Kernel { family, .. } => vec![("family", family.show())],
                    $(Op::$step { $($step_attr,)* $($own)? } => {
                        let none = Vec::<(&'static str, String)>::new();
                        [none, $($step_attr.named(stringify!($step_attr)),)* $($own.named(stringify!($own)))?].concat()
                    })*
                    $(Op::$name { $($attr),* } => vec![$((stringify!($attr), $attr.show())),*],)*
                };
                all.retain(|(_, value)| !value.is_empty());
                all
            }

            /// The op of this name with these attributes, or their fault.
            pub(crate) fn from_text(name: &str, attrs: &mut Vec<(String, String)>) -> Result<Op, String> {
                if let Some(&e) = Elementwise::ALL.iter().find(|e| e.name() == name) {
                    return Ok(Op::Map(e.with(|name| Attributes::take(attrs, name))?));
                }
                match name {
                    $($step_text => Ok(Op::$step {
                        $($step_attr: Attributes::take(attrs, stringify!($step_attr))?,)*
                        $($own: Attributes::take(attrs, stringify!($own))?)?
                    }),)*
                    $($text => Ok(Op::$name { $($attr: Attributes::take(attrs, stringify!($attr))?),* }),)*
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
                    $(Op::$step { $($step_attr,)* $($own)? } => {
                        let step = Step::$step { $($step_attr: $step_attr.to_owned(),)* $($own: $own.to_owned())? };
                        shapes::step(inputs, &step)
                    })*
                    $(Op::$name { $($attr),* } => $shape(inputs $(, $attr)*),)*
                }
            }

            /// The reference meaning.
            pub(crate) fn eval<S: Real>(&self, args: &[&Val<S>], cx: interp::Cx) -> Result<Vec<Val<S>>, String> {
                match self {
                    Op::Map(e) => interp::map(args, cx, *e),
                    Op::Kernel { body, .. } => interp::kernel(args, cx, body),
                    $(Op::$step { $($step_attr,)* $($own)? } => {
                        let step = Step::$step { $($step_attr: $step_attr.to_owned(),)* $($own: $own.to_owned())? };
                        interp::step(args, cx, &step)
                    })*
                    $(Op::$name { $($attr),* } => $eval(args, cx $(, $attr)*),)*
                }
            }

            /// Every op as (text name, operands, documentation), for `docs` and tests.
            pub const TABLE: &'static [(&'static str, &'static [&'static str], &'static str)] =
                &[
                    $(($step_text, &[$(stringify!($step_arg)),*], concat!($($step_doc),*)),)*
                    $(($text, &[$(stringify!($arg),)* $($(stringify!($more)),*)?], concat!($($doc),*)),)*
                ];
        }
    };
}

weight_steps!(ops! {
    /// A parameter of the graph.
    Input = "input" () { name: String }
        [Source, Outside, Other, All, work::none] shapes::source, interp::source;
    /// A tensor of the checkpoint.
    Weight = "weight" () { name: String }
        [Source, Outside, Other, Whole, work::none] shapes::source, interp::source;
    /// `count` tensors of the checkpoint, stacked along a new first axis. `name` has a star in the
    /// place of their numbers. If the checkpoint has a tensor `whole`, it holds all of them.
    Weights = "weights" () { name: String, count: usize, whole: Option<Whole> }
        [Source, Outside, Other, Whole, work::none] shapes::weights, interp::weights;
    /// Inverse frequencies of a rotary embedding, a constant of the configuration.
    RopeFreqs = "rope_freqs" () { freqs: Freqs }
        [Layout, Outside, Other, Whole, work::none] shapes::rope_freqs, interp::rope_freqs;
    /// Whole numbers in f32, a constant of the configuration.
    Numbers = "numbers" () { values: Vec<usize> }
        [Layout, Outside, Other, Whole, work::none] shapes::numbers, interp::numbers;
    /// The same values in another layout.
    Pack = "pack" (w: Shared) { to: Layout }
        [Layout, Outside, Kept, Same, work::none] shapes::pack, interp::pack;
    /// The same elements in row-major order under another shape.
    Reshape = "reshape" (x: Row) { shape: Shape }
        [Compute, Inline, Kept, Same, work::none] shapes::reshape, interp::reshape;
    /// The same values in another element type.
    Cast = "cast" (x: Row) { to: DType }
        [Compute, Inline, Kept, Same, work::none] shapes::cast, interp::cast;
    /// Row `rows[i]` of the table, for each i. An index below zero takes the first row.
    Gather = "gather" (table: Chosen, rows: Row) {}
        [Compute, Inline, Kept, Picked, work::none] shapes::gather, interp::gather;
    /// Column `order[i]` of each row, for each i. Numbers that name no column take the nearest one.
    Reorder = "reorder" (x: Placed, order: Shared) {}
        [Compute, Inline, Other, Axis, work::none] shapes::reorder, interp::reorder;
    /// `count` consecutive rows of the table side by side, from row `rows[i]` on, for each i.
    GatherRun = "gather_run" (table: Shared, rows: Row) { count: usize }
        [Compute, Inline, Other, Whole, work::none] shapes::gather_run, interp::gather_run;
    /// Row i of `x`, with columns of row `rows[i]` of a table in its place, or added to it: as many
    /// as x has, from `start` on. Where the index is below zero it is row i of `x`.
    Placed = "placed" (x: Row, table: Chosen, rows: Row) { start: usize, adds: bool }
        [Compute, Inline, Other, Whole, work::none] shapes::placed, interp::placed;
    /// `x @ w^T`, accumulated in f32. A quantised weight has scales, one for each block of rows and
    /// columns, and may have zero points: its elements are `(code - zero) * scale`. Where the last
    /// operand is of floats, it is least numbers: the elements are `code * scale + zero`.
    Linear = "linear" (x: Row, w: Panels; scale: Reads::blocks(block), zero: Reads::blocks(block)) { out: DType, block: Option<Block> }
        [Compute, CONTRACTION, Other, Row, work::dot] shapes::linear, interp::linear;
    /// The experts that each token chooses by its logits, with the weight of each. A bias is added
    /// to scores for the choice, and only there. Of equal experts the first one is taken. A rank
    /// may hold some of the experts: the last operand, in f32, is the first of these, and experts
    /// are counted from there. Other experts are -1 then, with a weight of zero.
    Route = "route" (logits: Row; bias: Shared, first: Shared) { by: Router, held: Option<usize> }
        [Compute, Rows, Other, All, work::none] shapes::route, interp::route;
    /// How much each of a token's experts counts, by its score, where a row of f32 names the
    /// experts. The second result is these, as `route` has them.
    RouteGiven = "route_given" (logits: Row, chosen: Row) { by: Router }
        [Compute, Rows, Other, All, work::none] shapes::route_given, interp::route_given;
    /// The indices of experts, followed by the rows of each expert.
    Group = "group" (experts: All) { experts: usize, tile: usize }
        [Compute, GROUP, Kept, Whole, work::none] shapes::group, interp::group;
    /// As `linear`, with the weight of an expert for each row. A row with an expert below zero is
    /// zeros. Rows of x are those of tokens, or of all choices.
    Grouped = "grouped" (x: All, w: Panels, experts: Row; scale: Reads::blocks(block), zero: Reads::blocks(block)) { out: DType, block: Option<Block> }
        [Compute, GROUPED, Other, Row, work::dot] shapes::grouped, interp::grouped;
    /// Each of a row's heads times a matrix of its own, accumulated in f32. There are as many
    /// matrices as heads. Weights are stored as those of `linear`.
    PerHead = "per_head" (x: Row, w: Panels; scale: Reads::blocks(block), zero: Reads::blocks(block)) { out: DType, block: Option<Block> }
        [Compute, GROUPED, Other, Head, work::dot] shapes::per_head, interp::per_head;
    /// The sum of the rows of a token's choices, each times its weight, in their order. A token may
    /// have one row, which stays as it is.
    Combine = "combine" (y: Choices, weights: Row) {}
        [Compute, Inline, Other, Picked, work::none] shapes::combine, interp::combine;
    /// Each of a token's heads times the weight that the token has for it.
    Weigh = "weigh" (x: Row, weights: Row) {}
        [Compute, Inline, Other, Same, work::none] shapes::weigh, interp::weigh;
    /// The weights by which the streams of `x`, which lie side by side, are mixed. A logit is
    /// `m / sqrt(mean(x^2) + norm) * scale + base`, where `m` may have parts that are added up. The
    /// first logits, one for each stream, give the weights of the row that a half of a layer sees:
    /// their logistic function plus `eps`. If there are more, the second result has, for each new
    /// stream, the weights of the old streams and that of the row which the half makes. The latter
    /// is twice the logistic function of the next logits. The others are a matrix, from old streams
    /// to new ones: softmax along rows, plus `eps`, then `rounds` times divided by the sums of
    /// columns, and before each but the first by those of rows, with `eps` added to all sums.
    Sinkhorn = "sinkhorn" (m: Row, x: Row, base: Shared, scale: Shared) { streams: usize, rounds: usize, norm: f64, eps: f64 }
        [Compute, Rows, Other, All, work::none] shapes::sinkhorn, interp::sinkhorn;
    /// The sum of a token's streams, each times its weight.
    Collapse = "collapse" (x: Row, weights: Row) {}
        [Compute, Inline, Other, Row, work::none] shapes::collapse, interp::collapse;
    /// The sum of a token's rows, each times its share: the softmax of logits, of which a row may
    /// have several. The first one counts.
    MixRows = "mix_rows" (x: Row, logits: Row) {}
        [Compute, Inline, Other, Row, work::none] shapes::mix_rows, interp::mix_rows;
    /// New streams of a token: each is a sum of the old ones and of `y`, with weights of its own.
    Mix = "mix" (x: Row, y: Row, weights: Row) {}
        [Compute, Inline, Other, Row, work::none] shapes::mix, interp::mix;
    /// `x`, quantised to codes of a type. A rule makes the scales, or one scale for all is given.
    /// The values are `code * scale`.
    Quantise = "quantise" (x: Row; scale: Shared) { to: DType, rule: Rule }
        [Compute, Inline, Coded, Within::of(rule), work::none] shapes::quantise, interp::quantise;
    /// `x / sqrt(mean(x^2) + eps) * weight` over the last axis.
    RmsNorm = "rms_norm" (x: Row, weight: Shared) { eps: f64 }
        [Compute, Inline, Normed(Norm { eps: *eps, centred: false }), Axis, work::none] shapes::norm, interp::rms_norm;
    /// The sum of the squares of each row of `a`, then of `b`.
    Squares = "squares" (a: Row, b: Row) {}
        [Compute, Rows, Other, Row, work::none] shapes::squares, interp::squares;
    /// `x / sqrt(squares / of + eps) * weight`, where x is a part of each row: column `at` of
    /// `squares` has the sum of the squares of all `of` elements.
    PartNorm = "part_norm" (x: Row, weight: Shared, squares: Row) { eps: f64, of: usize, at: usize }
        [Compute, Inline, Other, Axis, work::none] shapes::part_norm, interp::part_norm;
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * weight` over the last axis, plus a bias if there
    /// is one.
    LayerNorm = "layer_norm" (x: Row, weight: Shared; bias: Shared) { eps: f64 }
        [Compute, Inline, Normed(Norm { eps: *eps, centred: true }), Axis, work::none] shapes::norm, interp::layer_norm;
    /// Cosines, then sines, of `position * freq`, times `scale`. With `growth` above zero the base
    /// grows with sequences longer than `original` (dynamic NTK). `turn` says for which position a
    /// token's row is, and whether it turns back. A token may have three positions: `axes` says for
    /// each frequency which of them it takes, 0 for that of `positions`, 1 for that of `heights`, 2
    /// for that of `widths`.
    RopeTable = "rope_table" (positions: Row, lengths: Row, freqs: Shared; heights: Row, widths: Row, axes: Shared) { scale: f64, growth: f64, original: usize, turn: Turn }
        [Compute, Rows, Other, All, work::none] shapes::rope_table, interp::rope_table;
    /// What queries at a position are multiplied with: `1 + beta ln(1 + n)`, where `n` is the
    /// number of whole lengths in `position + shift`.
    Growth = "growth" (positions: Row) { beta: f64, length: usize, shift: usize }
        [Compute, Rows, Other, All, work::none] shapes::growth, interp::growth;
    /// Rotates the first elements of each head, as many as the table is wide. Element i and element
    /// i of the other half are a pair.
    Rope = "rope" (x: Row, table: Row) {}
        [Compute, Inline, Scaled, Axis, work::none] shapes::rope, interp::rope;
    /// Rotates the first elements of each head, as many as the table is wide. Neighbouring elements
    /// are a pair.
    RopePairs = "rope_pairs" (x: Row, table: Row) {}
        [Compute, Inline, Scaled, Axis, work::none] shapes::rope, interp::rope_pairs;
    /// Elements `start` to `start + len` of a row, the same number again `step` elements further
    /// on, and so on: `count` times.
    Parts = "parts" (x: Row) { count: usize, start: usize, len: usize, step: usize }
        [Compute, Inline, Part { of: *count, start: *start, len: *len }, Moved, work::none] shapes::parts, interp::parts;
    /// `a` followed by `b` along the last axis.
    Beside = "beside" (a: Row, b: Row) {}
        [Compute, Inline, Other, Moved, work::none] shapes::beside, interp::beside;
    /// The column of the largest element of each row; the first one of equals. NaN is never the
    /// largest. Without an element above minus infinity it is column 0.
    Argmax = "argmax" (x: Row) {}
        [Compute, Rows, Other, All, work::none] shapes::argmax, interp::argmax;
    /// Writes each token's key and value into the cache, at the token's position.
    KvWrite = "kv_write" (cache: Taken, k: Row, v: Row, batch: Shared) {}
        [Effect, Rows, Other, Written, work::none] shapes::kv_write, interp::kv_write;
    /// Writes each token's key into a cache that has the first `values` elements of its keys as
    /// values. If a row of the cache is of `every` tokens, the last of these alone writes it.
    KeyWrite = "key_write" (cache: Taken, k: Row, batch: Shared) { values: usize, every: Option<usize> }
        [Effect, Rows, Other, Written, work::none] shapes::key_write, interp::key_write;
    /// Causal attention of each token over its own sequence. `window` is the number of keys that a
    /// token sees, 0 for all. `sinks` is a score for each head that takes part in the softmax and
    /// has no value. It is not scaled.
    Attention = "attention" (q: Row, cache: Shared, batch: Shared; sinks: Shared) { scale: f64, window: usize }
        [Boundary, ATTENTION, Other, Head, work::none] shapes::attention, interp::attention;
    /// Attention of each token over its own sequence up to a position that is its own or comes
    /// after it: over as many positions as `ends` says, which are all in the cache and do not
    /// become fewer from token to token. `window` is the number of keys that a token sees up to its
    /// own position, 0 for all.
    AttendUpTo = "attend_up_to" (q: Row, cache: Shared, batch: Shared, ends: Row) { scale: f64, window: usize }
        [Boundary, ATTENTION, Other, Head, work::none] shapes::attend_up_to, interp::attend_up_to;
    /// The positions that a token attends to, in ascending order: the `k` of its sequence, up to
    /// its own, with the largest sum over heads of `w * relu(q . key)`. Of equal sums the first
    /// position is taken. A token that has fewer positions has -1 after the last one. If a row of
    /// the cache is of `every` tokens, rows are chosen, of those that are complete.
    Choose = "choose" (q: Row, w: Row, cache: Shared, batch: Shared) { k: usize, every: Option<usize> }
        [Boundary, CHOOSE, Other, All, work::none] shapes::choose, interp::choose;
    /// The blocks of keys that each head of a token attends to, head by head, in ascending order.
    /// Block `i` has `block` positions of the sequence, from `i * block` on. A head has the `k`
    /// blocks with the largest product of its query with a key, up to the token's own. The last
    /// `local` blocks are taken first, and of equal ones the first one. A head of a token that has
    /// fewer blocks has -1 after the last one.
    ChooseBlocks = "choose_blocks" (q: Row, cache: Shared, batch: Shared) { k: usize, block: usize, local: usize }
        [Boundary, CHOOSE, Other, All, work::none] shapes::choose_blocks, interp::choose_blocks;
    /// Attention of each token over the positions of its sequence that a list has for it: as many
    /// as the token has positions, or as the list has room for. What follows them is -1. With a
    /// size of blocks each head of the cache has a list of its own, of blocks. Of these the token
    /// sees the positions up to its own.
    AttendListed = "attend_listed" (q: Row, cache: Shared, batch: Shared, list: Choices) { scale: f64, block: Option<usize> }
        [Boundary, ATTEND_LISTED, Other, Head, work::none] shapes::attend_listed, interp::attend_listed;
    /// A part of attention: over the last `window` keys of a cache, 0 for all, or over listed ones.
    /// If a row of the cache is of `every` tokens, a token sees those that are complete. The first
    /// result is the part's own attention, or zeros without a key. The second has the largest score
    /// of each head, -1e30 without a key, then the sum of the exponentials of what scores are less
    /// than it.
    AttendPart = "attend_part" (q: Row, cache: Shared, batch: Shared; list: Choices) { scale: f64, window: usize, every: Option<usize> }
        [Boundary, ATTEND_LISTED, Other, Whole, work::none] shapes::attend_part, interp::attend_part;
    /// Attention over the keys of two parts, by the results of each, and perhaps over a sink.
    Join = "join" (a: Row, of_a: Row, b: Row, of_b: Row; sinks: Shared) { to: DType }
        [Compute, Inline, Other, Row, work::none] shapes::join, interp::join;
    /// For the last token of each block of `every` tokens a row of the block: the sum of the values
    /// of a cache, column by column, each times its weight, which is the softmax of keys plus the
    /// row of `bias` for the token's place in the block. With an overlap the second half of columns
    /// is of the block, and the first one of the block before, if there is one: columns of both are
    /// summed together. Other tokens have zeros.
    Pool = "pool" (cache: Shared, bias: Shared, batch: Shared) { every: usize, overlap: bool }
        [Compute, Rows, Other, All, work::none] shapes::pool, interp::pool;
    /// A convolution of each channel over a sequence: a token and those before it, as many as the
    /// weight is long. The state keeps the last inputs.
    Conv = "conv" (state: Taken, x: All, weight: Shared, batch: Shared) {}
        [Boundary, RECUR, Other, Whole, work::none] shapes::conv, interp::conv;
    /// The gated delta rule. For each token in order a head's state becomes `exp(g) S + k d^T` with
    /// `d = beta (v - exp(g) S^T k)`, and the result is `S^T q`. Queries and keys, which several
    /// heads of values may share, enter as `x / sqrt(sum(x^2) + eps)`; queries are also divided by
    /// the root of their width. `g` has a number for each head, or for each element of a head's
    /// key: then the rows of the state, one for each element, decay apart.
    DeltaRule = "delta_rule" (state: Taken, q: All, k: All, v: All, g: All, beta: All, batch: Shared) { eps: f64 }
        [Boundary, RECUR, Other, Whole, work::delta] shapes::delta_rule, interp::delta_rule;
    /// A linear recurrence with a decay, the state space of Mamba-2. For each token in order a
    /// head's state becomes `exp(g) S + k (beta v)^T`, and the result is `S^T q + skip v`. Several
    /// heads of values may share queries and keys.
    Scan = "scan" (state: Taken, q: All, k: All, v: All, g: All, beta: All, skip: Shared, batch: Shared) {}
        [Boundary, RECUR, Other, Whole, work::delta] shapes::scan, interp::scan;
    /// The sum over all ranks, rounded to the type of `x`, plus `added`, which all ranks have
    /// alike. The reference is a single rank, which adds its own part alone.
    AllReduce = "all_reduce" (x: Taken; added: Row) {}
        [Call, Outside, Other, Whole, work::none] shapes::all_reduce, interp::all_reduce;
    /// The rows of all ranks side by side, in the order of the ranks. The reference is a single
    /// rank, which takes its own part for those of all.
    AllGather = "all_gather" (x: All) { ranks: usize }
        [Call, Outside, Other, Whole, work::none] shapes::all_gather, interp::all_gather;
    /// Rows for the stage that begins here, as they are: the ranks of the stage before hand them
    /// on. The reference is a single rank, which has all stages.
    HandOn = "hand_on" (x: All) { stage: usize }
        [Call, Outside, Other, Whole, work::none] shapes::hand_on, interp::hand_on;
    /// Attention over a cache of the caller's. The caller puts these keys and values into it. The
    /// reference sees those of the step alone.
    CallerAttention = "caller_attention" (q: Row, k: All, v: All, batch: Shared) { layer: usize, scale: f64, window: usize }
        [Call, Outside, Other, Whole, work::none] shapes::caller_attention, interp::caller_attention;
});

/// Kernels around a product of rows with a weight.
const CONTRACTION: Maker = Maker::Around { few: Family::Matvec, many: Family::Matmul };
/// Kernels around a product of each row with the weight of its expert, or of parts of rows.
const GROUPED: Maker = Maker::Around { few: Family::GroupedMatvec, many: Family::GroupedMatmul };
/// Kernels that list the rows of each expert.
const GROUP: Maker = Maker::Around { few: Family::Group, many: Family::Group };
/// Kernels around attention over a cache.
const ATTENTION: Maker = Maker::Around { few: Family::AttendOne, many: Family::AttendMany };
/// Kernels that choose positions, or blocks of them, by the keys of a cache.
const CHOOSE: Maker = Maker::Around { few: Family::Choose, many: Family::Choose };
/// Kernels around attention over listed positions of a cache.
const ATTEND_LISTED: Maker = Maker::Around { few: Family::AttendListed, many: Family::AttendListed };
/// Kernels that process the tokens of each sequence in order.
const RECUR: Maker = Maker::Around { few: Family::Recur, many: Family::Recur };

/// Multiplications and additions for each element of a result, apart from the work that depends on
/// the sequences.
mod work {
    use crate::types::Type;

    pub fn none(_: &[&Type]) -> usize {
        0
    }

    /// One multiplication and one addition for every element of a row of the first operand.
    pub fn dot(inputs: &[&Type]) -> usize {
        2 * inputs[0].as_tensor().and_then(|t| t.shape.last()).unwrap_or(0)
    }

    /// For every element of a row of values: the state's product with the key, the change of the
    /// state, and its product with the query.
    pub fn delta(inputs: &[&Type]) -> usize {
        3 * inputs[1].as_tensor().and_then(|t| t.shape.last()).map_or(0, |keys| 2 * keys)
    }
}

impl Op {
    /// Multiplications and additions for each pair of a token and one that it sees, over all heads:
    /// of the score, and of the weighted value.
    pub fn work_of_pair(&self, inputs: &[&Type]) -> usize {
        let (Op::Attention { .. } | Op::AttendUpTo { .. }, [Type::Tensor(q), Type::Cache(c), ..]) = (self, inputs)
        else {
            return 0;
        };
        2 * q.shape.0.get(1).and_then(|heads| heads.fixed()).unwrap_or(0) * (c.head_dim + c.value_dim)
    }

    /// The first operand behind a product's weight: its scales, with zero points or least numbers
    /// after them, if it is quantised.
    pub fn marks(&self) -> Option<usize> {
        match self {
            Op::Linear { .. } | Op::PerHead { .. } => Some(2),
            Op::Grouped { .. } => Some(3),
            _ => None,
        }
    }

    /// Whether it is attention over a cache of this model's own.
    pub fn attends(&self) -> bool {
        matches!(self, Op::Attention { .. } | Op::AttendUpTo { .. } | Op::AttendListed { .. } | Op::AttendPart { .. })
    }

    /// Whether the graph is split here.
    pub fn is_boundary(&self) -> bool {
        matches!(self.class(), Class::Boundary | Class::Call)
    }

    /// Whether kernels are built around it, with the following ops as their epilogue.
    pub fn is_contraction(&self) -> bool {
        let product = |slot| self.reads(slot) == Reads::Panels;
        self.operands().is_some_and(|names| (0..names.len()).any(product))
    }

    /// Whether the caller does it.
    pub fn is_call(&self) -> bool {
        self.class() == Class::Call
    }

    /// The slot of the operand that gives the result its place in memory.
    pub fn in_place(&self) -> Option<usize> {
        let slots = self.operands().map_or(0, <[_]>::len);
        (0..slots).find(|&slot| self.reads(slot) == Reads::Taken)
    }

    /// Whether row i of the result needs only row i of operands with rows, or a row that indices
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

/// Checks that there are as many operands as the table says.
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

/// The column of a slot. If any number of operands is allowed, all have that of the first.
fn nth(columns: &[Reads], slot: usize) -> Reads {
    columns.get(slot).or(columns.first()).copied().unwrap_or(Reads::All)
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

    /// Counts all heads of queries, which may share a head of the cache, and values that are a part
    /// of keys.
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
