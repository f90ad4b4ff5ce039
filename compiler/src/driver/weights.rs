//! The weight plan: constant parts of a graph as expressions over checkpoint tensors, each buffer once for all buckets.
use std::collections::HashMap;

use atomc_artifact::manifest::{Layout, Weight, WeightExpr};
use atomc_ir::{Arch, Diagnostic, Graph, Op, Value};

#[derive(Default)]
pub struct Weights {
    pub list: Vec<Weight>,
    /// By expression, type and layout.
    known: HashMap<String, usize>,
}

impl Weights {
    /// The number of the buffer that holds a constant value.
    pub fn number(&mut self, graph: &Graph, v: Value, arch: &Arch) -> Result<usize, Diagnostic> {
        let weight = weight(graph, v, arch)?;
        let next = self.list.len();
        let number =
            *self.known.entry(format!("{} {:?} {:?}", weight.name, weight.dtype, weight.layout)).or_insert(next);
        if number == next {
            self.list.push(weight);
        }
        Ok(number)
    }
}

fn weight(graph: &Graph, v: Value, arch: &Arch) -> Result<Weight, Diagnostic> {
    let (name, expr) = expr(graph, v)?;
    let ty = graph.ty(v).as_tensor().ok_or_else(|| unsupported(graph, v, "is no tensor"))?;
    let shape = ty.shape.sizes().ok_or_else(|| unsupported(graph, v, "has no fixed shape"))?;
    let (layout, bytes) = match (ty.layout, &shape[..]) {
        (atomc_ir::Layout::Panels, &[ref stack @ .., rows, cols]) => {
            let p = atomc_targets::panels(rows, cols, ty.dtype, arch);
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

/// A constant as one line of text and as an expression. Packing is a matter of the buffer's layout, not of its values.
fn expr(graph: &Graph, v: Value) -> Result<(String, WeightExpr), Diagnostic> {
    let operands = || graph.operands(v.node).into_iter().map(|v| expr(graph, v)).collect::<Result<Vec<_>, _>>();
    match graph.op(v.node) {
        Op::Weight { name } => {
            let shape = graph.ty(v).as_tensor().and_then(|t| t.shape.sizes());
            let shape = shape.ok_or_else(|| unsupported(graph, v, "has no fixed shape"))?;
            Ok((name.clone(), WeightExpr::Tensor { name: name.clone(), shape }))
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
        Op::Pack {} => expr(graph, graph.operands(v.node)[0]),
        Op::RopeFreqs { freqs } => {
            let values = freqs.inverse().into_iter().map(|f| f as f32).collect();
            Ok((format!("rope_freqs({freqs:?})"), WeightExpr::Const { values }))
        }
        op => Err(unsupported(graph, v, &format!("is a `{}`, which no weight plan can hold", op.name()))),
    }
}

fn unsupported(graph: &Graph, v: Value, what: &str) -> Diagnostic {
    Diagnostic::new("driver::weight", format!("a weight {what}")).at(graph.location(v.node))
}
