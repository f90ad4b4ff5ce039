//! The op table: each op once, with its operands, attributes, result types and meaning.
use std::fmt::Write;

use crate::elementwise::Elementwise;
use crate::graph::Graph;
use crate::interp::{self, Real, Val};
use crate::rope::{Freqs, Scaling};
use crate::types::{Block, DType, Shape, Type};

/// How far a graph has come. Each pass names the stage that it leaves; the verifier knows what each stage forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// As a frontend builds it.
    Model,
    /// Contraction weights are packed and every node knows its segment.
    Segmented,
    /// Every computing node is a kernel, but for the caller's.
    Fused,
}

/// The schedule family that emits a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// One row at a time: norms, rotary embedding, activations, gathers, the largest of a row, writes into the cache.
    Rows,
    /// A contraction over few rows, with row-wise ops before it and elementwise ops after it.
    Matvec,
    /// A contraction over many rows, tiled, with elementwise ops after it.
    Matmul,
    /// Attention of one new token of each sequence, with the ops that make its queries, keys and values.
    AttendOne,
    /// Attention of runs of tokens over a cache that already holds their keys and values.
    AttendMany,
}

impl Family {
    pub const ALL: [Family; 5] = [Family::Rows, Family::Matvec, Family::Matmul, Family::AttendOne, Family::AttendMany];

    pub fn name(self) -> &'static str {
        match self {
            Family::Rows => "rows",
            Family::Matvec => "matvec",
            Family::Matmul => "matmul",
            Family::AttendOne => "attend_one",
            Family::AttendMany => "attend_many",
        }
    }
}

/// An attribute's text form.
pub trait Attr: Sized {
    /// Nothing for an attribute that is left out.
    fn show(&self) -> String;
    fn read(text: &str) -> Option<Self>;

    /// The value of an attribute that is left out, if it may be.
    fn absent() -> Option<Self> {
        None
    }
}

impl<A: Attr> Attr for Option<A> {
    fn show(&self) -> String {
        self.as_ref().map_or(String::new(), A::show)
    }
    fn read(text: &str) -> Option<Self> {
        A::read(text).map(Some)
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl Attr for usize {
    fn show(&self) -> String {
        self.to_string()
    }
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Attr for f64 {
    /// The shortest text that reads back as the same number.
    fn show(&self) -> String {
        format!("{self:?}")
    }
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Nothing is escaped: names have neither quotes nor backslashes nor control characters.
impl Attr for String {
    fn show(&self) -> String {
        format!("\"{self}\"")
    }
    fn read(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('"')?.strip_suffix('"')?;
        (!inner.contains(|c: char| c == '"' || c == '\\' || c.is_control())).then(|| inner.to_string())
    }
}

impl Attr for DType {
    fn show(&self) -> String {
        self.name().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        DType::from_name(text)
    }
}

impl Attr for Shape {
    fn show(&self) -> String {
        self.to_string()
    }
    fn read(text: &str) -> Option<Self> {
        crate::text::read_shape(text)
    }
}

impl Attr for Block {
    fn show(&self) -> String {
        format!("[{}, {}]", self.rows, self.cols)
    }
    fn read(text: &str) -> Option<Self> {
        let (rows, cols) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(", ")?;
        let size = |text: &str| text.parse().ok().filter(|&n| n > 0);
        Some(Block { rows: size(rows)?, cols: size(cols)? })
    }
}

impl Attr for Family {
    fn show(&self) -> String {
        self.name().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        Family::ALL.into_iter().find(|f| f.name() == text)
    }
}

impl Attr for Freqs {
    fn show(&self) -> String {
        let rest = match self.scaling {
            Scaling::Default => "default".to_string(),
            Scaling::Linear { factor } => format!("linear, {factor:?}"),
            Scaling::Dynamic { factor, original } => format!("dynamic, {factor:?}, {original}"),
            Scaling::Llama3 { factor, low, high, original } => {
                format!("llama3, {factor:?}, {low:?}, {high:?}, {original}")
            }
            Scaling::Yarn { factor, beta_fast, beta_slow, original, truncate } => {
                format!("yarn, {factor:?}, {beta_fast:?}, {beta_slow:?}, {original}, {truncate}")
            }
        };
        format!("({:?}, {}, {rest})", self.theta, self.dim)
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.strip_prefix('(')?.strip_suffix(')')?.split(", ").collect();
        let f = |i: usize| words.get(i)?.parse::<f64>().ok();
        let n = |i: usize| words.get(i)?.parse::<usize>().ok();
        let scaling = match *words.get(2)? {
            "default" => Scaling::Default,
            "linear" => Scaling::Linear { factor: f(3)? },
            "dynamic" => Scaling::Dynamic { factor: f(3)?, original: n(4)? },
            "llama3" => Scaling::Llama3 { factor: f(3)?, low: f(4)?, high: f(5)?, original: n(6)? },
            "yarn" => {
                let truncate = words.get(7)?.parse().ok()?;
                Scaling::Yarn { factor: f(3)?, beta_fast: f(4)?, beta_slow: f(5)?, original: n(6)?, truncate }
            }
            _ => return None,
        };
        Some(Freqs { theta: f(0)?, dim: n(1)?, scaling })
    }
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

macro_rules! ops {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal ($($arg:ident),* $(; $($more:ident),*)?) {$($attr:ident: $ty:ty),*} $class:ident, $shape:path, $eval:path;)*) => {
        #[derive(Clone, Debug)]
        pub enum Op {
            /// An elementwise op.
            Map(Elementwise),
            /// A fused region: `body` computes the results from the operands, `family` says how.
            Kernel { family: Family, body: Box<Graph> },
            $($(#[doc = $doc])* $name { $($attr: $ty),* },)*
        }

        impl Op {
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

            pub fn class(&self) -> Class {
                match self {
                    Op::Map(_) | Op::Kernel { .. } => Class::Compute,
                    $(Op::$name { .. } => Class::$class,)*
                }
            }

            /// Attributes in the order of the table, without those that are left out.
            pub fn attributes(&self) -> Vec<(&'static str, String)> {
                let mut all: Vec<(&'static str, String)> = match self {
                    Op::Map(_) => vec![],
                    Op::Kernel { family, .. } => vec![("family", family.show())],
                    $(Op::$name { $($attr),* } => vec![$((stringify!($attr), $attr.show())),*],)*
                };
                all.retain(|(_, value)| !value.is_empty());
                all
            }

            /// The op of this name with these attributes, or what is wrong with them.
            pub(crate) fn from_text(name: &str, attrs: &mut Vec<(String, String)>) -> Result<Op, String> {
                if let Some(&e) = Elementwise::ALL.iter().find(|e| e.name() == name) {
                    return Ok(Op::Map(e));
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
    Input = "input" () { name: String } Source, shapes::source, interp::source;
    /// A tensor of the checkpoint.
    Weight = "weight" () { name: String } Source, shapes::source, interp::source;
    /// Inverse frequencies of a rotary embedding, a constant of the configuration.
    RopeFreqs = "rope_freqs" () { freqs: Freqs } Layout, shapes::rope_freqs, interp::rope_freqs;
    /// Joins operands along an axis.
    Concat = "concat" (many) { axis: usize } Layout, shapes::concat, interp::concat;
    /// Elements `start` to `start + len` of an axis.
    Slice = "slice" (x) { axis: usize, start: usize, len: usize } Layout, shapes::slice, interp::slice;
    /// Of so many equal parts along an axis that of the rank, of those that share the model out.
    Shard = "shard" (x) { axis: usize, parts: usize } Layout, shapes::shard, interp::shard;
    /// Other layout, same values.
    Pack = "pack" (w) {} Layout, shapes::pack, interp::pack;
    /// Same elements in row-major order under another shape.
    Reshape = "reshape" (x) { shape: Shape } Compute, shapes::reshape, interp::reshape;
    /// Other element type.
    Cast = "cast" (x) { to: DType } Compute, shapes::cast, interp::cast;
    /// Row `rows[i]` of the table, for each i.
    Gather = "gather" (table, rows) {} Compute, shapes::gather, interp::gather;
    /// `x @ w^T`, accumulated in f32. A weight that is stored as codes has scales, one for each block of rows and columns, and
    /// may have zero points: its elements are `(code - zero) * scale`.
    Linear = "linear" (x, w; scale, zero) { out: DType, block: Option<Block> } Compute, shapes::linear, interp::linear;
    /// `x / sqrt(mean(x^2) + eps) * weight` over the last axis.
    RmsNorm = "rms_norm" (x, weight) { eps: f64 } Compute, shapes::rms_norm, interp::rms_norm;
    /// Cosines, then sines, of `position * freq`, times `scale`. With `growth` above zero the base grows with sequences longer
    /// than `original` (dynamic NTK).
    RopeTable = "rope_table" (positions, lengths, freqs) { scale: f64, growth: f64, original: usize } Compute, shapes::rope_table, interp::rope_table;
    /// Rotates the first elements of each head, as many as the table is wide; halves, not pairs, belong together.
    Rope = "rope" (x, table) {} Compute, shapes::rope, interp::rope;
    /// The column of the largest element of each row, the first of equals. NaN is never the largest; where nothing is greater
    /// than minus infinity, column 0.
    Argmax = "argmax" (x) {} Compute, shapes::argmax, interp::argmax;
    /// Writes each token's key and value into the cache, at the token's position.
    KvWrite = "kv_write" (cache, k, v, batch) {} Effect, shapes::kv_write, interp::kv_write;
    /// Causal attention of each token over its own sequence; `window` counts the keys that are seen, 0 for all.
    Attention = "attention" (q, cache, batch) { scale: f64, window: usize } Boundary, shapes::attention, interp::attention;
    /// The sum over all ranks, of which the reference is one: of its own part alone.
    AllReduce = "all_reduce" (x) {} Call, shapes::all_reduce, interp::all_reduce;
    /// Attention over a cache of the caller's, who puts these keys and values into it. The reference sees those of the step alone.
    CallerAttention = "caller_attention" (q, k, v, batch) { layer: usize, scale: f64, window: usize } Call, shapes::caller_attention, interp::caller_attention;
}

impl Op {
    /// Whether the graph is split here.
    pub fn is_boundary(&self) -> bool {
        matches!(self.class(), Class::Boundary | Class::Call)
    }

    /// Whether the caller does it.
    pub fn is_call(&self) -> bool {
        self.class() == Class::Call
    }

    /// Name and attributes, as the text form has them: equal keys on equal operands mean equal results.
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

fn take<A: Attr>(attrs: &mut Vec<(String, String)>, name: &str) -> Result<A, String> {
    let Some(at) = attrs.iter().position(|(n, _)| n == name) else {
        return A::absent().ok_or_else(|| format!("attribute `{name}` is missing"));
    };
    let (_, text) = attrs.remove(at);
    A::read(&text).ok_or_else(|| format!("attribute `{name}` cannot be `{text}`"))
}

/// Result types, one function an op.
mod shapes {
    use crate::graph::Graph;
    use crate::rope::Freqs;
    use crate::types::{Block, CacheType, DType, Dim, Layout, Shape, TensorType, Type};

    type Types = Result<Vec<Type>, String>;

    fn one(dtype: DType, shape: Shape) -> Types {
        Ok(vec![Type::tensor(dtype, shape)])
    }

    fn tensor<'a>(ty: &'a Type, what: &str) -> Result<&'a TensorType, String> {
        ty.as_tensor().ok_or_else(|| format!("{what} must be a tensor, not {ty}"))
    }

    fn float<'a>(ty: &'a Type, what: &str) -> Result<&'a TensorType, String> {
        let t = tensor(ty, what)?;
        if t.dtype.is_float() { Ok(t) } else { Err(format!("{what} must be of a float type, not {ty}")) }
    }

    fn index<'a>(ty: &'a Type, what: &str) -> Result<&'a TensorType, String> {
        let t = tensor(ty, what)?;
        if t.dtype == DType::I32 && t.shape.rank() == 1 {
            Ok(t)
        } else {
            Err(format!("{what} must be i32 with one axis, not {ty}"))
        }
    }

    pub fn source(_: &[&Type], _: &str) -> Types {
        Err("has no type of its own: it must be written".into())
    }

    pub fn map(inputs: &[&Type]) -> Types {
        let first = float(inputs[0], "the first operand")?;
        for other in &inputs[1..] {
            let t = float(other, "every operand")?;
            let row_vector = t.shape.rank() == 1 && t.shape.last() == first.shape.last();
            if t.shape != first.shape && !row_vector {
                return Err(format!(
                    "operands have shapes {} and {}: they must be equal, or one axis like the last",
                    first.shape, t.shape
                ));
            }
        }
        one(first.dtype, first.shape.clone())
    }

    pub fn kernel(inputs: &[&Type], body: &Graph) -> Types {
        let wants: Vec<&Type> = body.inputs().iter().map(|&v| body.ty(v)).collect();
        if wants != inputs {
            let list = |types: &[&Type]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
            return Err(format!("operands are ({}), the body takes ({})", list(inputs), list(&wants)));
        }
        Ok(body.outputs().iter().map(|&v| body.ty(v).clone()).collect())
    }

    pub fn rope_freqs(_: &[&Type], freqs: &Freqs) -> Types {
        if freqs.dim == 0 || !freqs.dim.is_multiple_of(2) {
            return Err(format!("rotary dimension {} must be even and not zero", freqs.dim));
        }
        one(DType::F32, Shape::fixed(&[freqs.dim / 2]))
    }

    pub fn concat(inputs: &[&Type], &axis: &usize) -> Types {
        let first = tensor(inputs.first().ok_or("takes at least one operand")?, "the first operand")?;
        let mut dims = first.shape.0.clone();
        let mut total = 0;
        for ty in inputs {
            let t = tensor(ty, "every operand")?;
            let size =
                t.shape.0.get(axis).and_then(|d| d.fixed()).ok_or(format!("axis {axis} of {ty} is no number"))?;
            total = usize::saturating_add(total, size);
            let others =
                |s: &Shape| s.0.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, d)| *d).collect::<Vec<_>>();
            if t.dtype != first.dtype || others(&t.shape) != others(&first.shape) {
                return Err(format!("{ty} and {first} differ in more than axis {axis}"));
            }
        }
        dims[axis] = Dim::Fixed(total);
        one(first.dtype, Shape(dims))
    }

    pub fn slice(inputs: &[&Type], &axis: &usize, &start: &usize, &len: &usize) -> Types {
        let t = tensor(inputs[0], "x")?;
        let size = t.shape.0.get(axis).and_then(|d| d.fixed()).ok_or(format!("axis {axis} of {t} is no number"))?;
        let end = start.saturating_add(len);
        if len == 0 || end > size {
            return Err(format!("elements {start} to {end} of {size}"));
        }
        let mut shape = t.shape.clone();
        shape.0[axis] = Dim::Fixed(len);
        one(t.dtype, shape)
    }

    pub fn shard(inputs: &[&Type], &axis: &usize, &parts: &usize) -> Types {
        let t = tensor(inputs[0], "x")?;
        let size = t.shape.0.get(axis).and_then(|d| d.fixed()).ok_or(format!("axis {axis} of {t} is no number"))?;
        if parts == 0 || !size.is_multiple_of(parts) {
            return Err(format!("{parts} equal parts of {size}"));
        }
        let mut shape = t.shape.clone();
        shape.0[axis] = Dim::Fixed(size / parts);
        one(t.dtype, shape)
    }

    pub fn pack(inputs: &[&Type]) -> Types {
        let t = weight(inputs[0])?;
        match (t.shape.sizes(), t.shape.rank()) {
            (Some(_), 2) => Ok(vec![Type::Tensor(TensorType { layout: Layout::Panels, ..t.clone() })]),
            _ => Err(format!("{t} must have two axes of known size")),
        }
    }

    pub fn reshape(inputs: &[&Type], shape: &Shape) -> Types {
        let t = tensor(inputs[0], "x")?;
        if !shape.well_formed() || t.shape.0.first() != shape.0.first() || t.shape.row() != shape.row() {
            return Err(format!(
                "{} cannot become {shape}: the first axis and the elements of a row must stay",
                t.shape
            ));
        }
        one(t.dtype, shape.clone())
    }

    pub fn cast(inputs: &[&Type], &to: &DType) -> Types {
        let t = float(inputs[0], "x")?;
        if to.is_float() { one(to, t.shape.clone()) } else { Err("casts to float types only".into()) }
    }

    pub fn gather(inputs: &[&Type]) -> Types {
        let (table, rows) = (float(inputs[0], "table")?, index(inputs[1], "rows")?);
        if table.shape.rank() != 2 {
            return Err(format!("table must have two axes, not {table}"));
        }
        one(table.dtype, Shape(vec![rows.shape.0[0], table.shape.0[1]]))
    }

    /// What a contraction may multiply with.
    fn weight(ty: &Type) -> Result<&TensorType, String> {
        let t = tensor(ty, "w")?;
        if t.dtype.is_code() { Ok(t) } else { float(ty, "w") }
    }

    pub fn linear(inputs: &[&Type], &out: &DType, &block: &Option<Block>) -> Types {
        let (x, w) = (float(inputs[0], "x")?, weight(inputs[1])?);
        let Some(&[rows, cols]) = w.shape.sizes().as_deref() else {
            return Err(format!("w must have two axes of known size, not {w}"));
        };
        encoding(w.dtype, [rows, cols], &inputs[2..], block)?;
        if x.shape.rank() != 2 || x.shape.last() != Some(cols) {
            return Err(format!("x is {}, w is {}: the last axes must agree", x.shape, w.shape));
        }
        if !out.is_float() {
            return Err("the result must be of a float type".into());
        }
        one(out, Shape(vec![x.shape.0[0], w.shape.0[0]]))
    }

    /// That codes, and nothing else, have a scale for each block, and no others but integers a zero point.
    fn encoding(codes: DType, [rows, cols]: [usize; 2], more: &[&Type], block: Option<Block>) -> Result<(), String> {
        let (Some(block), Some((scale, zero))) = (block, more.split_first()) else {
            let bare = block.is_none() && more.is_empty() && !codes.is_code();
            return if bare { Ok(()) } else { Err(format!("a weight of {} {}", codes.name(), wants(codes))) };
        };
        if !codes.is_code() {
            return Err(format!("a weight of {} {}", codes.name(), wants(codes)));
        }
        let grid = Shape::fixed(&block.grid(rows, cols));
        let scale = tensor(scale, "scale")?;
        if !scale.dtype.is_scale() || scale.shape != grid {
            return Err(format!("scale must be {grid} of f32, f16, bf16 or e8m0, not {scale}"));
        }
        let Some(zero) = zero.first() else { return Ok(()) };
        let zero = tensor(zero, "zero")?;
        let fits = codes.is_integer_code() && zero.dtype == codes && zero.shape == grid;
        if fits { Ok(()) } else { Err(format!("zero must be {grid} of the weight's integers, not {zero}")) }
    }

    fn wants(codes: DType) -> &'static str {
        if codes.is_code() { "takes a block and a scale for each" } else { "has neither block nor scale" }
    }

    pub fn rms_norm(inputs: &[&Type], &eps: &f64) -> Types {
        let (x, w) = (float(inputs[0], "x")?, float(inputs[1], "weight")?);
        if x.shape.rank() < 2 || w.shape.rank() != 1 || w.shape.last() != x.shape.last() {
            return Err(format!(
                "x is {}, weight is {}: weight must have one axis like the last of x",
                x.shape, w.shape
            ));
        }
        if eps.is_nan() || eps < 0.0 {
            return Err(format!("eps {eps} must not be negative"));
        }
        one(x.dtype, x.shape.clone())
    }

    pub fn rope_table(inputs: &[&Type], _: &f64, _: &f64, _: &usize) -> Types {
        let (pos, len, freqs) =
            (index(inputs[0], "positions")?, index(inputs[1], "lengths")?, float(inputs[2], "freqs")?);
        match freqs.shape.sizes().as_deref() {
            Some(&[half]) if pos.shape == len.shape => {
                one(DType::F32, Shape(vec![pos.shape.0[0], Dim::Fixed(2 * half)]))
            }
            _ => Err(format!("positions {pos}, lengths {len}, freqs {freqs} do not fit")),
        }
    }

    pub fn rope(inputs: &[&Type]) -> Types {
        let (x, table) = (float(inputs[0], "x")?, float(inputs[1], "table")?);
        match (&x.shape.0[..], &table.shape.0[..]) {
            (&[t, _, Dim::Fixed(d)], &[u, Dim::Fixed(rot)]) if t == u && rot <= d && rot % 2 == 0 => {
                one(x.dtype, x.shape.clone())
            }
            _ => Err(format!("x {x} and table {table} do not fit")),
        }
    }

    pub fn argmax(inputs: &[&Type]) -> Types {
        let x = float(inputs[0], "x")?;
        if x.shape.rank() != 2 {
            return Err(format!("x must have two axes, not {x}"));
        }
        one(DType::I32, Shape(vec![x.shape.0[0]]))
    }

    fn heads_fit(t: &TensorType, c: CacheType) -> bool {
        t.shape == Shape::led_by(Dim::Tokens, &[c.heads, c.head_dim])
    }

    fn batch(ty: &Type) -> Result<(), String> {
        if *ty == Type::Batch { Ok(()) } else { Err(format!("batch must be a batch, not {ty}")) }
    }

    fn cache(ty: &Type) -> Result<CacheType, String> {
        ty.as_cache().ok_or_else(|| format!("cache must be a cache, not {ty}"))
    }

    pub fn kv_write(inputs: &[&Type]) -> Types {
        let c = cache(inputs[0])?;
        let (k, v) = (float(inputs[1], "k")?, float(inputs[2], "v")?);
        batch(inputs[3])?;
        if !heads_fit(k, c) || !heads_fit(v, c) {
            return Err(format!("k {k} and v {v} do not fit {}", inputs[0]));
        }
        Ok(vec![inputs[0].clone()])
    }

    pub fn attention(inputs: &[&Type], _: &f64, _: &usize) -> Types {
        let (q, c) = (float(inputs[0], "q")?, cache(inputs[1])?);
        batch(inputs[2])?;
        match q.shape.0[..] {
            [Dim::Tokens, Dim::Fixed(h), Dim::Fixed(d)] if d == c.head_dim && h % c.heads == 0 => {
                one(q.dtype, q.shape.clone())
            }
            _ => Err(format!("q {q} does not fit {}: head sizes must agree and heads be a multiple", inputs[1])),
        }
    }

    pub fn all_reduce(inputs: &[&Type]) -> Types {
        let x = float(inputs[0], "x")?;
        if x.shape.rank() != 2 || x.shape.0[0] != Dim::Tokens {
            return Err(format!("x must have a row for each token, not {x}"));
        }
        one(x.dtype, x.shape.clone())
    }

    pub fn caller_attention(inputs: &[&Type], _: &usize, _: &f64, _: &usize) -> Types {
        let (q, k, v) = (float(inputs[0], "q")?, float(inputs[1], "k")?, float(inputs[2], "v")?);
        batch(inputs[3])?;
        match (&q.shape.0[..], &k.shape.0[..]) {
            (&[Dim::Tokens, Dim::Fixed(h), Dim::Fixed(d)], &[Dim::Tokens, Dim::Fixed(g), Dim::Fixed(e)])
                if d == e && g > 0 && h % g == 0 && k == v && q.dtype == k.dtype =>
            {
                one(q.dtype, Shape::led_by(Dim::Tokens, &[h.saturating_mul(d)]))
            }
            _ => Err(format!("q {q}, k {k}, v {v} do not fit: head sizes must agree and heads be a multiple")),
        }
    }
}
