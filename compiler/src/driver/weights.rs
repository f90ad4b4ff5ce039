//! The weight plan: constant parts of a graph as expressions over checkpoint tensors, each buffer
//! once for all buckets.
use std::collections::HashMap;

use atomc_artifact::manifest::{Encode, Layout, Weight, WeightExpr};
use atomc_ir::layout::Panels;
use atomc_ir::{Arch, Block, Diagnostic, Graph, NodeId, Op, Value};

/// What the codes of a weight are multiplied with, and what is taken off them.
pub struct Encoding {
    block: Block,
    scale: Value,
    zero: Option<Value>,
}

impl Encoding {
    /// That of a kernel's operand, if a product in its body has it as a weight of codes.
    pub fn of(graph: &Graph, kernel: NodeId, slot: usize) -> Option<Encoding> {
        let Op::Kernel { body, .. } = graph.op(kernel) else { return None };
        let inputs = body.inputs();
        let (product, block) = body.users(inputs[slot]).into_iter().find_map(|user| match (user, body.op(user.0)) {
            ((product, 1), &(Op::Linear { block, .. } | Op::PerHead { block, .. })) => Some((product, (2, block?))),
            ((product, 1), &Op::Grouped { block, .. }) => Some((product, (3, block?))),
            _ => None,
        })?;
        let (first, block) = block;
        let operand = |v: &Value| Some(graph.operands(kernel)[inputs.iter().position(|input| input == v)?]);
        let operands = body.operands(product);
        let zero = operands.get(first + 1).map(operand);
        Some(Encoding { block, scale: operand(operands.get(first)?)?, zero: zero.flatten() })
    }
}

#[derive(Default)]
pub struct Weights {
    pub list: Vec<Weight>,
    /// By expression, type and layout.
    known: HashMap<String, usize>,
}

impl Weights {
    /// The number of the buffer that holds a constant value.
    pub fn number(
        &mut self,
        graph: &Graph,
        v: Value,
        encoding: Option<Encoding>,
        arch: &Arch,
    ) -> Result<usize, Diagnostic> {
        let mut weight = weight(graph, v, arch)?;
        if let Some(Encoding { block, scale, zero }) = encoding {
            let value = |v| expr(graph, v).map(|(_, expr)| Box::new(expr));
            let (block, zero) = ([block.rows, block.cols], zero.map(value).transpose()?);
            weight.expr = WeightExpr::Scaled { block, scale: value(scale)?, zero, of: Box::new(weight.expr) };
        }
        let next = self.list.len();
        let number =
            *self.known.entry(format!("{} {:?} {:?}", weight.name, weight.dtype, weight.layout)).or_insert(next);
        if number == next {
            self.list.push(weight);
        }
        Ok(number)
    }
}

/// A constant value as a weight of a plan, whatever it is multiplied with.
pub fn weight(graph: &Graph, v: Value, arch: &Arch) -> Result<Weight, Diagnostic> {
    let (name, expr) = expr(graph, v)?;
    let ty = graph.ty(v).as_tensor().ok_or_else(|| unsupported(graph, v, "is no tensor"))?;
    let shape = ty.shape.sizes().ok_or_else(|| unsupported(graph, v, "has no fixed shape"))?;
    let (layout, bytes) = match (ty.layout, &shape[..]) {
        (packed @ (atomc_ir::Layout::Panels | atomc_ir::Layout::Columns), &[ref stack @ .., rows, cols]) => {
            let p = Panels::in_layout(packed, [rows, cols], ty.dtype, &arch.memory).expect("a layout in panels");
            let bytes = stack.iter().product::<usize>() * p.bytes;
            (Layout::Panels { width: p.width, group: p.group, rows: p.rows, cols: p.cols }, bytes)
        }
        (atomc_ir::Layout::Rows, &[.., cols]) => {
            let stride = arch.memory.stride(cols);
            let rows: usize = shape[..shape.len() - 1].iter().product();
            (Layout::Rows { stride }, ty.dtype.bytes(rows * stride))
        }
        _ => return Err(unsupported(graph, v, "has too few axes for its layout")),
    };
    Ok(Weight { name, dtype: ty.dtype, shape, layout, bytes, expr })
}

/// A constant as one line of text and as an expression. Packing is a matter of the buffer's layout,
/// not of its values.
fn expr(graph: &Graph, v: Value) -> Result<(String, WeightExpr), Diagnostic> {
    let operands = || graph.operands(v.node).into_iter().map(|v| expr(graph, v)).collect::<Result<Vec<_>, _>>();
    match graph.op(v.node) {
        Op::Weight { name } => {
            let shape = graph.ty(v).as_tensor().and_then(|t| t.shape.sizes());
            let shape = shape.ok_or_else(|| unsupported(graph, v, "has no fixed shape"))?;
            Ok((name.clone(), WeightExpr::Tensor { name: name.clone(), shape }))
        }
        Op::Weights { name, count, whole } => {
            let shape = graph.ty(v).as_tensor().and_then(|t| t.shape.sizes());
            let shape = shape.ok_or_else(|| unsupported(graph, v, "has no fixed shape"))?[1..].to_vec();
            let or = whole.as_ref().map_or(String::new(), |whole| {
                format!(" or {}[{}..{}]", whole.name, whole.start, whole.start + shape[0])
            });
            let expr = WeightExpr::Stack { name: name.clone(), count: *count, shape, whole: whole.clone() };
            Ok((format!("stack({count} {name}{or})"), expr))
        }
        &Op::Every { axis, step, start } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            let expr = WeightExpr::Every { axis, step, start, of: Box::new(of) };
            Ok((format!("every({name}, axis {axis}, {step} from {start})"), expr))
        }
        &Op::Pad { axis, len } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            Ok((format!("pad({name}, axis {axis}, {len})"), WeightExpr::Pad { axis, len, of: Box::new(of) }))
        }
        Op::Concat { axis } => {
            let (names, parts): (Vec<_>, Vec<_>) = operands()?.into_iter().unzip();
            let along = if *axis == 0 { String::new() } else { format!(", axis {axis}") };
            Ok((format!("concat({}{along})", names.join(", ")), WeightExpr::Concat { axis: *axis, parts }))
        }
        Op::Slice { axis, start, len } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            let end = start + len;
            let expr = WeightExpr::Slice { axis: *axis, start: *start, len: *len, of: Box::new(of) };
            Ok((format!("slice({name}, axis {axis}, {start}..{end})"), expr))
        }
        &Op::Shard { axis, parts } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            let expr = WeightExpr::Shard { axis, parts, of: Box::new(of) };
            Ok((format!("shard({name}, axis {axis}, 1 of {parts})"), expr))
        }
        &Op::Offset { by } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            Ok((format!("offset({name}, {by:?})"), WeightExpr::Offset { by: by as f32, of: Box::new(of) }))
        }
        Op::Transpose {} => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            Ok((format!("transpose({name})"), WeightExpr::Transpose { of: Box::new(of) }))
        }
        Op::View { shape } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            let sizes = shape.sizes().ok_or_else(|| unsupported(graph, v, "has no fixed shape"))?;
            Ok((format!("view({name}, {shape})"), WeightExpr::View { shape: sizes, of: Box::new(of) }))
        }
        &Op::Unpack { from, to, axis, len, order } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            let name = format!("unpack({name}, {len} {} along axis {axis}, {})", to.name(), order.name());
            Ok((name, WeightExpr::Unpack { from, to, axis, len, order, of: Box::new(of) }))
        }
        &Op::Shift { by, to } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            Ok((format!("shift({name}, {by}, {})", to.name()), WeightExpr::Shift { by, to, of: Box::new(of) }))
        }
        &Op::Encode { codes, scales, block, made } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            let by = Encode { codes, scales, block: [block.rows, block.cols] };
            let name =
                format!("encode({name}, {} of {} for {} by {})", made.name(), codes.name(), block.rows, block.cols);
            Ok((name, WeightExpr::Encode { by, made, of: Box::new(of) }))
        }
        Op::Expect { is } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            let (other, told) = expr(graph, graph.operands(v.node)[1])?;
            let expr = WeightExpr::Expect { is: is.clone(), told: Box::new(told), of: Box::new(of) };
            Ok((format!("expect({name}, {other} {})", is.text()), expr))
        }
        &Op::Dequantise { block, .. } => {
            let (name, of) = expr(graph, graph.operands(v.node)[0])?;
            let (other, scale) = expr(graph, graph.operands(v.node)[1])?;
            let (block, scale) = ([block.rows, block.cols], Box::new(scale));
            let name = format!("dequantise({name}, {other}, blocks of {} by {})", block[0], block[1]);
            Ok((name, WeightExpr::Dequantise { block, scale, of: Box::new(of) }))
        }
        Op::Pack { .. } => expr(graph, graph.operands(v.node)[0]),
        Op::RopeFreqs { freqs } => {
            let values = freqs.inverse().into_iter().map(|f| f as f32).collect();
            Ok((format!("rope_freqs{freqs}"), WeightExpr::Const { values }))
        }
        Op::Numbers { values } => Ok((
            format!("numbers({values:?})"),
            WeightExpr::Const { values: values.iter().map(|&n| n as f32).collect() },
        )),
        op => Err(unsupported(graph, v, &format!("is a `{}`, which no weight plan can hold", op.name()))),
    }
}

fn unsupported(graph: &Graph, v: Value, what: &str) -> Diagnostic {
    Diagnostic::new("driver::weight", format!("a weight {what}")).at(graph.location(v.node))
}
