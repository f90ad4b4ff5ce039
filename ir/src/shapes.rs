//! Types of results, a function for each op of the table.
mod pooled;
mod streams;

use crate::graph::Graph;
use crate::rope::{Freqs, Scaling};
use crate::types::{
    Block, CacheType, DType, Dim, Layout, MOST_KEPT, Router, Rule, Score, Shape, SlotsType, TensorType, Turn, Type,
    Whole,
};
use atomc_dtype::step::{self, Elements, Fault, Step, Stored};

use pooled::some_tokens;
pub use pooled::{attend_part, join, pool};
pub use streams::{collapse, mix, mix_rows, sinkhorn};

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

pub fn weights(_: &[&Type], name: &str, _: &usize, _: &Option<Whole>) -> Types {
    source(&[], name)
}

/// By the rule of the table of steps, which weight plans have too.
pub fn step(inputs: &[&Type], step: &Step) -> Types {
    let value = |ty: &&Type| {
        let t = tensor(ty, "every operand")?;
        Ok::<_, String>(step::Value::new(t.shape.0.clone(), Elements::Of(t.dtype), Stored::Unknown))
    };
    let operands = inputs.iter().map(value).collect::<Result<_, _>>()?;
    let made = step.value(operands).map_err(|Fault { at, detail }| {
        // The name of the op stands before it.
        match at.trim_start_matches('.').split_once('.') {
            None | Some((_, "of")) => detail,
            Some((_, place)) => format!("{place}: {detail}"),
        }
    })?;
    let dtype = made.elements.dtype().ok_or("makes elements of no type")?;
    one(dtype, Shape(made.shape))
}

pub fn map(inputs: &[&Type]) -> Types {
    let first = float(inputs[0], "the first operand")?;
    for other in &inputs[1..] {
        let t = float(other, "every operand")?;
        let row_vector = t.shape.rank() == 1 && (t.shape.last() == first.shape.last() || t.shape.last() == Some(1));
        let of_heads = t.shape.rank() == 1 && first.shape.rank() == 3 && t.shape.last() == first.shape.row();
        if t.shape != first.shape && !row_vector && !of_heads {
            return Err(format!(
                "operands have shapes {} and {}: they must be equal, or one axis like the last or a whole row, or one number",
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
    if let Scaling::Long { factors } = &freqs.scaling
        && factors.len() != freqs.dim / 2
    {
        return Err(format!("{} factors of {} frequencies", factors.len(), freqs.dim / 2));
    }
    one(DType::F32, Shape::fixed(&[freqs.dim / 2]))
}

pub fn pack(inputs: &[&Type], &to: &Layout) -> Types {
    let t = match to {
        Layout::Rows | Layout::Scaled(_) | Layout::Mx(_) | Layout::Grouped { .. } => {
            return Err("packs into panels or columns".into());
        }
        Layout::Panels => weight(inputs[0])?,
        Layout::Columns => {
            let t = tensor(inputs[0], "w")?;
            let fits = t.dtype.is_scale() || t.dtype.is_zero_point();
            if fits { t } else { return Err(format!("w must be scales or zero points, not {t}")) }
        }
    };
    match (t.shape.sizes(), t.shape.rank()) {
        (Some(_), 2 | 3) => Ok(vec![Type::Tensor(TensorType { layout: to, ..t.clone() })]),
        _ => Err(format!("{t} must have two or three axes of known size")),
    }
}

pub fn reshape(inputs: &[&Type], shape: &Shape) -> Types {
    let t = tensor(inputs[0], "x")?;
    if !shape.well_formed() || t.shape.0.first() != shape.0.first() || t.shape.row() != shape.row() {
        return Err(format!("{} cannot become {shape}: the first axis and the elements of a row must stay", t.shape));
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

pub fn reorder(inputs: &[&Type]) -> Types {
    let (x, order) = (float(inputs[0], "x")?, float(inputs[1], "order")?);
    match (&x.shape.0[..], &order.shape.0[..]) {
        (&[_, width], &[of]) if width == of && order.dtype == DType::F32 => one(x.dtype, x.shape.clone()),
        _ => Err(format!("x is {x}, order is {order}: there must be a number in f32 for each column")),
    }
}

pub fn gather_run(inputs: &[&Type], &count: &usize) -> Types {
    let (table, rows) = (float(inputs[0], "table")?, index(inputs[1], "rows")?);
    match table.shape.0[..] {
        [_, Dim::Fixed(width)] if count > 0 => {
            one(table.dtype, Shape(vec![rows.shape.0[0], Dim::Fixed(width.saturating_mul(count))]))
        }
        _ => Err(format!("{count} rows of {table} side by side: it must have two axes")),
    }
}

pub fn placed(inputs: &[&Type], &start: &usize, _: &bool) -> Types {
    let (x, table, rows) = (float(inputs[0], "x")?, float(inputs[1], "table")?, index(inputs[2], "rows")?);
    match (&x.shape.0[..], &table.shape.0[..]) {
        (&[lead, Dim::Fixed(width)], &[_, Dim::Fixed(wide)])
            if rows.shape.0 == [lead] && table.dtype == x.dtype && start.saturating_add(width) <= wide =>
        {
            one(x.dtype, x.shape.clone())
        }
        _ => Err(format!("x {x}, table {table} from column {start} on, rows {rows} do not fit")),
    }
}

/// What a contraction may multiply with.
fn weight(ty: &Type) -> Result<&TensorType, String> {
    let t = tensor(ty, "w")?;
    if t.dtype.is_code() { Ok(t) } else { float(ty, "w") }
}

/// The rows that a contraction takes: floats, or codes with their scales.
fn factor(ty: &Type) -> Result<&TensorType, String> {
    let t = tensor(ty, "x")?;
    if t.layout.is_coded() { Ok(t) } else { float(ty, "x") }
}

pub fn quantise(inputs: &[&Type], &to: &DType, &rule: &Rule) -> Types {
    let x = float(inputs[0], "x")?;
    let width = match (x.shape.rank(), x.shape.last()) {
        (2, Some(width)) => width,
        _ => return Err(format!("x must have two axes, not {x}")),
    };
    let known = match rule {
        Rule::Static | Rule::Row => matches!(to, DType::F8E4M3 | DType::I8),
        Rule::Group(_) | Rule::Power(_) => to == DType::F8E4M3,
        Rule::Mx(_) | Rule::MxCodes(_) => matches!(to, DType::F8E4M3 | DType::F4E2M1),
    };
    if !known {
        return Err(format!("no rule makes codes of {} like that", to.name()));
    }
    match (&inputs[1..], rule) {
        ([], Rule::Row | Rule::Group(_) | Rule::Power(_) | Rule::Mx(_) | Rule::MxCodes(_)) => {}
        ([scale], Rule::Static) if float(scale, "scale")?.shape == Shape::fixed(&[1]) => {}
        _ => return Err("there must be one scale where the rule makes none".into()),
    }
    let (dtype, layout) = match rule {
        Rule::Static | Rule::Row => (to, Layout::Scaled(width)),
        Rule::Group(columns) | Rule::Power(columns) => (to, Layout::Scaled(columns)),
        Rule::MxCodes(columns) => (to, Layout::Mx(columns)),
        // A code times a power of two is a number of the type that x has.
        Rule::Mx(_) => (x.dtype, Layout::Rows),
    };
    Ok(vec![Type::Tensor(TensorType { dtype, shape: x.shape.clone(), layout })])
}

pub fn linear(inputs: &[&Type], &out: &DType, &block: &Option<Block>) -> Types {
    let (x, w) = (factor(inputs[0])?, weight(inputs[1])?);
    let Some(&[rows, cols]) = w.shape.sizes().as_deref() else {
        return Err(format!("w must have two axes of known size, not {w}"));
    };
    encoding(w.dtype, (&[], [rows, cols]), &inputs[2..], block)?;
    if x.shape.rank() != 2 || x.shape.last() != Some(cols) {
        return Err(format!("x is {}, w is {}: the last axes must agree", x.shape, w.shape));
    }
    if !out.is_float() {
        return Err("the result must be of a float type".into());
    }
    one(out, Shape(vec![x.shape.0[0], w.shape.0[0]]))
}

/// That codes, and nothing else, have a scale for each block, and no others but integers a zero
/// point or a least number.
/// Of experts' weights each has its own, which their number leads.
fn encoding(
    codes: DType,
    (lead, [rows, cols]): (&[usize], [usize; 2]),
    more: &[&Type],
    block: Option<Block>,
) -> Result<(), String> {
    let (Some(block), Some((scale, zero))) = (block, more.split_first()) else {
        let bare = block.is_none() && more.is_empty() && !codes.is_code();
        return if bare { Ok(()) } else { Err(format!("a weight of {} {}", codes.name(), wants(codes))) };
    };
    if !codes.is_code() {
        return Err(format!("a weight of {} {}", codes.name(), wants(codes)));
    }
    let grid = Shape::fixed(&[lead, &block.grid(rows, cols)].concat());
    let scale = tensor(scale, "scale")?;
    if !scale.dtype.is_scale() || scale.shape != grid {
        return Err(format!("scale must be {grid} of f32, f16, bf16 or e8m0, not {scale}"));
    }
    let Some(zero) = zero.first() else { return Ok(()) };
    let zero = tensor(zero, "zero")?;
    if !codes.is_integer_code() {
        return Err(format!("a weight of {} has no zero points", codes.name()));
    }
    let fits = (zero.dtype.is_zero_point() || zero.dtype.is_float()) && zero.shape == grid;
    if fits { Ok(()) } else { Err(format!("zero must be {grid} of i8, u8, f32, f16 or bf16, not {zero}")) }
}

fn wants(codes: DType) -> &'static str {
    if codes.is_code() { "takes a block and a scale for each" } else { "has neither block nor scale" }
}

/// Numbers up to here are whole in f32.
const WHOLE_IN_F32: usize = 1 << 24;

pub fn numbers(_: &[&Type], values: &[usize]) -> Types {
    if let Some(large) = values.iter().find(|&&value| value > WHOLE_IN_F32) {
        return Err(format!("{large} is more than {WHOLE_IN_F32}, to which f32 has all whole numbers"));
    }
    one(DType::F32, Shape::fixed(&[values.len()]))
}

pub fn route(inputs: &[&Type], by: &Router, &held: &Option<usize>) -> Types {
    let logits = float(inputs[0], "logits")?;
    let (&[Dim::Tokens, Dim::Fixed(experts)], Layout::Rows) = (&logits.shape.0[..], logits.layout) else {
        return Err(format!("logits must have a row for each token, not {logits}"));
    };
    let (bias, first) = Router::behind_logits(&inputs[1..], held);
    match (held, first) {
        (None, _) if inputs.len() <= 2 => {}
        (Some(1..), Some(first)) if *first == Type::tensor(DType::F32, Shape::fixed(&[1])) => {}
        (None, _) => return Err("where all experts are held none of them is the first".into()),
        (Some(0), _) => return Err("no experts are held".into()),
        (Some(_), Some(first)) => return Err(format!("first must be f32[1], not {first}")),
        (Some(_), None) => return Err("where some experts are held one of them is the first".into()),
    }
    if let Some(bias) = bias
        && float(bias, "bias")?.shape != Shape::fixed(&[experts])
    {
        return Err(format!("bias must have one number for each of {experts} experts, not {bias}"));
    }
    let &Router { k, score, groups, kept, scale, .. } = by;
    if groups == 0 || !experts.is_multiple_of(groups) {
        return Err(format!("{groups} equal groups of {experts} experts"));
    }
    if kept == 0 || kept > groups {
        return Err(format!("{kept} of {groups} groups"));
    }
    let open = kept * (experts / groups);
    if k == 0 || k > open {
        return Err(format!("{k} of {open} experts to choose from"));
    }
    if score == Score::Chosen && groups > 1 {
        return Err("groups are told by scores that all experts have".into());
    }
    if !scale.is_finite() {
        return Err(format!("scale {scale} must be a number"));
    }
    Ok(routed(k))
}

/// The weights of experts, and which they are.
fn routed(k: usize) -> Vec<Type> {
    let weights = Type::tensor(DType::F32, Shape::led_by(Dim::Tokens, &[k]));
    vec![weights, Type::tensor(DType::I32, Shape(vec![Dim::Choices(k)]))]
}

pub fn route_given(inputs: &[&Type], by: &Router) -> Types {
    let (logits, chosen) = (float(inputs[0], "logits")?, float(inputs[1], "chosen")?);
    let &Router { k, score, groups, kept, scale, .. } = by;
    let (&[Dim::Tokens, Dim::Fixed(_)], Layout::Rows) = (&logits.shape.0[..], logits.layout) else {
        return Err(format!("logits must have a row for each token, not {logits}"));
    };
    if chosen.dtype != DType::F32 || chosen.shape != Shape::led_by(Dim::Tokens, &[k]) || k == 0 {
        return Err(format!("chosen must be f32[T, {k}], not {chosen}"));
    }
    if score == Score::Chosen || (groups, kept) != (1, 1) || !scale.is_finite() {
        return Err("experts that are given have scores of their own, no groups, and a scale".into());
    }
    Ok(routed(k))
}

/// The experts of pairs, and how many each token has.
fn choices<'a>(ty: &'a Type, what: &str) -> Result<(&'a TensorType, usize), String> {
    let t = index(ty, what)?;
    match t.shape.0[..] {
        [Dim::Choices(k)] => Ok((t, k)),
        _ => Err(format!("{what} must have some for each token, not {ty}")),
    }
}

pub fn group(inputs: &[&Type], &experts: &usize, &tile: &usize) -> Types {
    let (t, _) = choices(inputs[0], "experts")?;
    if experts == 0 || tile == 0 {
        return Err(format!("{experts} experts in blocks of {tile} rows"));
    }
    Ok(vec![Type::Tensor(TensorType { layout: Layout::Grouped { experts, tile }, ..t.clone() })])
}

pub fn grouped(inputs: &[&Type], &out: &DType, &block: &Option<Block>) -> Types {
    let (x, w, (experts, k)) = (factor(inputs[0])?, weight(inputs[1])?, choices(inputs[2], "experts")?);
    let Some(&[count, rows, cols]) = w.shape.sizes().as_deref() else {
        return Err(format!("w must have three axes of known size, not {w}"));
    };
    encoding(w.dtype, (&[count], [rows, cols]), &inputs[3..], block)?;
    let lead = x.shape.0[0];
    if x.shape.rank() != 2 || x.shape.last() != Some(cols) || ![Dim::Tokens, Dim::Choices(k)].contains(&lead) {
        return Err(format!("x is {}, w is {}, experts are {}: they do not fit", x.shape, w.shape, experts.shape));
    }
    if let Layout::Grouped { experts, .. } = experts.layout
        && experts != count
    {
        return Err(format!("rows are grouped by {experts} experts, and there are weights of {count}"));
    }
    if !out.is_float() {
        return Err("the result must be of a float type".into());
    }
    one(out, Shape(vec![Dim::Choices(k), w.shape.0[1]]))
}

pub fn per_head(inputs: &[&Type], &out: &DType, &block: &Option<Block>) -> Types {
    let (x, w) = (float(inputs[0], "x")?, weight(inputs[1])?);
    let Some(&[heads, rows, cols]) = w.shape.sizes().as_deref() else {
        return Err(format!("w must have three axes of known size, not {w}"));
    };
    encoding(w.dtype, (&[heads], [rows, cols]), &inputs[2..], block)?;
    if x.shape.0[1..] != [Dim::Fixed(heads), Dim::Fixed(cols)] {
        return Err(format!("x is {}, w is {}: heads and the last axes must agree", x.shape, w.shape));
    }
    if !out.is_float() {
        return Err("the result must be of a float type".into());
    }
    one(out, Shape::led_by(x.shape.0[0], &[heads, rows]))
}

pub fn combine(inputs: &[&Type]) -> Types {
    let (y, weights) = (float(inputs[0], "y")?, float(inputs[1], "weights")?);
    if weights.dtype != DType::F32 {
        return Err(format!("weights must be f32, as they are made, not {weights}"));
    }
    match (&y.shape.0[..], &weights.shape.0[..]) {
        (&[Dim::Choices(k), width], &[Dim::Tokens, Dim::Fixed(choices)]) if k == choices => {
            one(y.dtype, Shape(vec![Dim::Tokens, width]))
        }
        // A token's one choice has a weight as a token has.
        (&[Dim::Choices(1), width], &[Dim::Choices(1), Dim::Fixed(1)])
        | (&[Dim::Tokens, width], &[Dim::Tokens, Dim::Fixed(1)]) => one(y.dtype, Shape(vec![Dim::Tokens, width])),
        _ => Err(format!("y is {}, weights are {}: they do not fit", y.shape, weights.shape)),
    }
}

pub fn weigh(inputs: &[&Type]) -> Types {
    let (x, weights) = (float(inputs[0], "x")?, float(inputs[1], "weights")?);
    if weights.dtype != DType::F32 {
        return Err(format!("weights must be f32, as they are made, not {weights}"));
    }
    match (&x.shape.0[..], &weights.shape.0[..]) {
        (&[rows, heads, _], &[of, each]) if (rows, heads) == (of, each) => one(x.dtype, x.shape.clone()),
        _ => Err(format!("x is {}, weights are {}: there must be one for each head", x.shape, weights.shape)),
    }
}

/// Every operand after the first is a vector along its last axis.
pub fn norm(inputs: &[&Type], &eps: &f64) -> Types {
    let x = float(inputs[0], "x")?;
    for ty in &inputs[1..] {
        let vector = float(ty, "every vector")?;
        if x.shape.rank() < 2 || vector.shape.rank() != 1 || vector.shape.last() != x.shape.last() {
            return Err(format!(
                "x is {}, a vector is {}: it must have one axis like the last of x",
                x.shape, vector.shape
            ));
        }
    }
    if eps.is_nan() || eps < 0.0 {
        return Err(format!("eps {eps} must not be negative"));
    }
    one(x.dtype, x.shape.clone())
}

pub fn squares(inputs: &[&Type]) -> Types {
    let (a, b) = (float(inputs[0], "a")?, float(inputs[1], "b")?);
    match (&a.shape.0[..], &b.shape.0[..]) {
        (&[rows, Dim::Fixed(_)], &[other, Dim::Fixed(_)]) if rows == other => {
            one(DType::F32, Shape(vec![rows, Dim::Fixed(2)]))
        }
        _ => Err(format!("a is {}, b is {}: both must have the same rows, and two axes", a.shape, b.shape)),
    }
}

pub fn part_norm(inputs: &[&Type], eps: &f64, &of: &usize, &at: &usize) -> Types {
    let (x, squares) = (float(inputs[0], "x")?, float(inputs[2], "squares")?);
    let width = x.shape.last().unwrap_or(0);
    if x.shape.rank() != 2 || of < width {
        return Err(format!("x is {}: it must be a part of a row of {of} elements", x.shape));
    }
    let has_sums = squares.shape.rank() == 2 && squares.shape.0[0] == x.shape.0[0];
    if !has_sums || squares.dtype != DType::F32 || squares.shape.last() <= Some(at) {
        return Err(format!("squares is {squares}: it must be f32, with column {at} for each row of {}", x.shape));
    }
    norm(&inputs[..2], eps)
}

pub fn rope_table(inputs: &[&Type], _: &f64, _: &f64, _: &usize, _: &Turn) -> Types {
    let (pos, len, freqs) = (index(inputs[0], "positions")?, index(inputs[1], "lengths")?, float(inputs[2], "freqs")?);
    match inputs[3..] {
        [] => {}
        [heights, widths, axes] => {
            let others = [index(heights, "heights")?, index(widths, "widths")?];
            let axes = float(axes, "axes")?;
            if others.iter().any(|other| other.shape != pos.shape) || axes.shape != freqs.shape {
                return Err(format!("positions {pos}, {}, {}, axes {axes} do not fit", others[0], others[1]));
            }
        }
        _ => return Err("heights, widths and axes are given together".into()),
    }
    match freqs.shape.sizes().as_deref() {
        Some(&[half]) if pos.shape == len.shape => one(DType::F32, Shape(vec![pos.shape.0[0], Dim::Fixed(2 * half)])),
        _ => Err(format!("positions {pos}, lengths {len}, freqs {freqs} do not fit")),
    }
}

pub fn growth(inputs: &[&Type], _: &f64, &length: &usize, _: &usize) -> Types {
    match (&index(inputs[0], "positions")?.shape.0[..], length) {
        (_, 0) => Err("a length must not be 0".into()),
        (&[lead], _) => one(DType::F32, Shape(vec![lead, Dim::Fixed(1)])),
        _ => Err("positions must have one axis".into()),
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

pub fn parts(inputs: &[&Type], &count: &usize, &start: &usize, &len: &usize, &step: &usize) -> Types {
    let x = float(inputs[0], "x")?;
    match x.shape.0[..] {
        [lead, Dim::Fixed(width)]
            if count > 0
                && (1..=step).contains(&len)
                && (count - 1).saturating_mul(step).saturating_add(start).saturating_add(len) <= width =>
        {
            one(x.dtype, Shape::led_by(lead, &[count, len]))
        }
        _ => Err(format!("{count} times {len} elements from {start} on, each {step} further on, of {x}")),
    }
}

pub fn beside(inputs: &[&Type]) -> Types {
    let (a, b) = (float(inputs[0], "a")?, float(inputs[1], "b")?);
    match (a.shape.0.split_last(), b.shape.0.split_last()) {
        (Some((&Dim::Fixed(m), rows)), Some((&Dim::Fixed(n), other)))
            if a.dtype == b.dtype && rows == other && !rows.is_empty() =>
        {
            one(a.dtype, Shape([rows, &[Dim::Fixed(usize::saturating_add(m, n))]].concat()))
        }
        _ => Err(format!("{a} and {b} differ in more than the last axis")),
    }
}

pub fn argmax(inputs: &[&Type]) -> Types {
    let x = float(inputs[0], "x")?;
    if x.shape.rank() != 2 {
        return Err(format!("x must have two axes, not {x}"));
    }
    one(DType::I32, Shape(vec![x.shape.0[0]]))
}

fn heads_fit(t: &TensorType, c: CacheType, width: usize) -> bool {
    t.shape == Shape::led_by(Dim::Tokens, &[c.heads, width])
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
    if c.is_prefix {
        return Err(format!("values of {} are a part of its keys: `key_write` writes both", inputs[0]));
    }
    if !heads_fit(k, c, c.head_dim) || !heads_fit(v, c, c.value_dim) {
        return Err(format!("k {k} and v {v} do not fit {}", inputs[0]));
    }
    Ok(vec![inputs[0].clone()])
}

pub fn key_write(inputs: &[&Type], &values: &usize, every: &Option<usize>) -> Types {
    some_tokens(every)?;
    let c = cache(inputs[0])?;
    let k = float(inputs[1], "k")?;
    batch(inputs[2])?;
    if !c.is_prefix || values != c.value_dim || !heads_fit(k, c, c.head_dim) {
        return Err(format!("k {k}, of which {values} are a value, does not fit {}", inputs[0]));
    }
    Ok(vec![inputs[0].clone()])
}

pub fn attention(inputs: &[&Type], _: &f64, _: &usize) -> Types {
    let (q, c) = (float(inputs[0], "q")?, cache(inputs[1])?);
    batch(inputs[2])?;
    let heads = match q.shape.0[..] {
        [Dim::Tokens, Dim::Fixed(h), Dim::Fixed(d)] if d == c.head_dim && h % c.heads == 0 => h,
        _ => return Err(format!("q {q} does not fit {}: head sizes must agree and heads be a multiple", inputs[1])),
    };
    if let Some(sinks) = inputs.get(3)
        && float(sinks, "sinks")?.shape != Shape::fixed(&[heads])
    {
        return Err(format!("sinks must have one number for each of {heads} heads, not {sinks}"));
    }
    one(q.dtype, Shape::led_by(Dim::Tokens, &[heads, c.value_dim]))
}

pub fn attend_up_to(inputs: &[&Type], scale: &f64, window: &usize) -> Types {
    index(inputs[3], "ends")?;
    attention(&inputs[..3], scale, window)
}

pub fn choose(inputs: &[&Type], &k: &usize, every: &Option<usize>) -> Types {
    some_tokens(every)?;
    let (q, w, c) = (float(inputs[0], "q")?, float(inputs[1], "w")?, cache(inputs[2])?);
    batch(inputs[3])?;
    let heads = heads_of_one_key(q, c)?;
    if w.shape != Shape::led_by(Dim::Tokens, &[heads]) || w.dtype != DType::F32 {
        return Err(format!("w must be f32[T, {heads}], a weight for each head, not {w}"));
    }
    if k == 0 {
        return Err("no positions are chosen".into());
    }
    one(DType::I32, Shape(vec![Dim::Choices(k)]))
}

/// Heads of queries that one head of keys serves.
fn heads_of_one_key(q: &TensorType, c: CacheType) -> Result<usize, String> {
    match q.shape.0[..] {
        [Dim::Tokens, Dim::Fixed(heads), Dim::Fixed(dim)] if dim == c.head_dim && c.heads == 1 => Ok(heads),
        _ => Err(format!("q {q} does not fit {}: one head of keys serves all queries", Type::Cache(c))),
    }
}

pub fn choose_blocks(inputs: &[&Type], &k: &usize, &block: &usize, &local: &usize) -> Types {
    let heads = heads_of_one_key(float(inputs[0], "q")?, cache(inputs[1])?)?;
    batch(inputs[2])?;
    if k == 0 || block == 0 {
        return Err(format!("no keys are chosen by {k} blocks of {block}"));
    }
    if local > k {
        return Err(format!("the last {local} blocks are more than the {k} that are chosen"));
    }
    one(DType::I32, Shape(vec![Dim::Choices(heads.saturating_mul(k))]))
}

pub fn attend_listed(inputs: &[&Type], scale: &f64, block: &Option<usize>) -> Types {
    let list = inputs[3].as_tensor().filter(|list| list.is_indices() && list.layout == Layout::Rows);
    let Some(&[Dim::Choices(entries)]) = list.map(|list| &list.shape.0[..]) else {
        return Err(format!("list must be i32[T*k], not {}", inputs[3]));
    };
    let heads = cache(inputs[1])?.heads;
    match *block {
        Some(0) => Err("blocks must have a position".into()),
        Some(_) if !entries.is_multiple_of(heads) => {
            Err(format!("{entries} blocks are no lists of {heads} heads with as many each"))
        }
        _ => attention(&inputs[..3], scale, &0),
    }
}

fn slots(ty: &Type) -> Result<&SlotsType, String> {
    match ty.as_slots() {
        Some(slots) if (1..=MOST_KEPT).contains(&slots.each) => Ok(slots),
        Some(_) => Err(format!("state {ty} must keep states behind 1 to {MOST_KEPT} tokens")),
        None => Err(format!("state must be of slots, not {ty}")),
    }
}

/// A slot has the tokens before, each with all its channels.
pub fn conv(inputs: &[&Type]) -> Types {
    let (s, x, w) = (slots(inputs[0])?, float(inputs[1], "x")?, float(inputs[2], "weight")?);
    batch(inputs[3])?;
    match (&s.shape[..], &x.shape.0[..], w.shape.sizes().as_deref()) {
        (&[before, channels], &[Dim::Tokens, Dim::Fixed(n)], Some(&[len, m]))
            if n == channels && m == channels && before + 1 == len && s.dtype == x.dtype =>
        {
            Ok(vec![Type::Tensor(x.clone()), inputs[0].clone()])
        }
        _ => Err(format!("x {x} and weight {w} do not fit {}", inputs[0])),
    }
}

/// A slot has a matrix for each head of values, of a row for each element of a key.
pub fn delta_rule(inputs: &[&Type], &eps: &f64) -> Types {
    batch(inputs[6])?;
    if eps.is_nan() || eps < 0.0 {
        return Err(format!("eps {eps} must not be negative"));
    }
    recurrence(inputs, true)
}

pub fn scan(inputs: &[&Type]) -> Types {
    batch(inputs[7])?;
    let (s, skip) = (slots(inputs[0])?, float(inputs[6], "skip")?);
    if skip.dtype != DType::F32 || s.shape.first().is_none_or(|&heads| skip.shape != Shape::fixed(&[heads])) {
        return Err(format!("skip {skip} is not a number for each head of {}", inputs[0]));
    }
    recurrence(inputs, false)
}

/// A state, queries, keys, values, and the two gates of each head; the first may have a number for
/// each element of a key.
fn recurrence(inputs: &[&Type], by_channel: bool) -> Types {
    let s = slots(inputs[0])?;
    let names = ["q", "k", "v", "g", "beta"];
    let rows = (1..).zip(names).map(|(i, name)| float(inputs[i], name)).collect::<Result<Vec<_>, _>>()?;
    let (q, k, v, g, beta) = (rows[0], rows[1], rows[2], rows[3], rows[4]);
    let led = |sizes: &[usize]| Shape::led_by(Dim::Tokens, sizes);
    let key_heads = q.shape.0.get(1).and_then(|d| d.fixed()).unwrap_or(0);
    match s.shape[..] {
        [heads, dk, dv]
            if s.dtype == DType::F32
                && g.dtype == DType::F32
                && key_heads > 0
                && heads % key_heads == 0
                && q == k
                && q.shape == led(&[key_heads, dk])
                && v.shape == led(&[heads, dv])
                && beta.shape == led(&[heads])
                && (g.shape == led(&[heads]) || by_channel && dk > 1 && g.shape == led(&[heads * dk])) =>
        {
            Ok(vec![Type::Tensor(v.clone()), inputs[0].clone()])
        }
        _ => Err(format!("q {q}, k {k}, v {v}, g {g}, beta {beta} do not fit {}", inputs[0])),
    }
}

pub fn all_reduce(inputs: &[&Type]) -> Types {
    let x = float(inputs[0], "x")?;
    if x.shape.rank() != 2 || x.shape.0[0] != Dim::Tokens {
        return Err(format!("x must have a row for each token, not {x}"));
    }
    if let Some(added) = inputs.get(1).filter(|added| **added != inputs[0]) {
        return Err(format!("what is added must be as the sum, {x}, not {added}"));
    }
    one(x.dtype, x.shape.clone())
}

pub fn all_gather(inputs: &[&Type], ranks: &usize) -> Types {
    let x = float(inputs[0], "x")?;
    match &x.shape.0[..] {
        &[rows, Dim::Fixed(width)] if *ranks > 0 => {
            one(x.dtype, Shape(vec![rows, Dim::Fixed(width.saturating_mul(*ranks))]))
        }
        _ => Err(format!("x must be rows for {ranks} ranks, not {x}")),
    }
}

pub fn hand_on(inputs: &[&Type], stage: &usize) -> Types {
    match inputs[0].as_tensor() {
        Some(x) if *stage > 0 && x.layout == Layout::Rows && x.shape.0.first() == Some(&Dim::Tokens) => {
            Ok(vec![inputs[0].clone()])
        }
        _ => Err(format!("x must have a row for each token, for a stage behind the first, not {}", inputs[0])),
    }
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
