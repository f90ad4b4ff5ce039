//! The weight plan: constant parts of a graph as expressions over checkpoint tensors, each buffer
//! once for all buckets.
use std::collections::HashMap;

use atomc_artifact::manifest::{Layout, Weight, WeightExpr};
use atomc_ir::arch::Fp8;
use atomc_ir::layout::Panels;
use atomc_ir::{Arch, Block, Class, Diagnostic, Graph, NodeId, Op, Value};

/// What the codes of a weight are multiplied with, and what is taken off them.
pub struct Encoding {
    block: Block,
    scale: Value,
    zero: Option<Value>,
}

impl Encoding {
    /// The encoding of a kernel's operand, if a product in its body has it as a quantised weight.
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
    let is_fnuz = arch.gpu().is_some_and(|gpu| gpu.simt.fp8 == Fp8::Fnuz);
    let unsigned_zeros = is_fnuz && ty.dtype == atomc_ir::DType::F8E4M3;
    Ok(Weight { name, dtype: ty.dtype, shape, layout, bytes, expr, unsigned_zeros })
}

/// A constant as one line of text, and as an expression.
type Named = (String, WeightExpr);

/// A constant of a plan. Packing is a matter of the buffer's layout, not of its values.
fn expr(graph: &Graph, v: Value) -> Result<Named, Diagnostic> {
    let op = graph.op(v.node);
    // What no plan can hold is named itself, and not what it is made of.
    let operands = if op.class() == Class::Layout { graph.operands(v.node) } else { vec![] };
    let operands: Vec<Named> = operands.into_iter().map(|v| expr(graph, v)).collect::<Result<_, _>>()?;
    if let Some(step) = op.step() {
        let (names, operands): (Vec<String>, _) = operands.into_iter().unzip();
        let name = step.text(&names);
        return Ok((name, WeightExpr::of(step, operands).ok_or_else(|| no_plan(graph, v))?));
    }
    match op {
        Op::Weight { .. } | Op::Weights { .. } => stored(graph, v),
        Op::RopeFreqs { freqs } => {
            let values = freqs.inverse().into_iter().map(|f| f as f32).collect();
            Ok((format!("rope_freqs{freqs}"), WeightExpr::Const { values }))
        }
        Op::Numbers { values } => {
            let constant = values.iter().map(|&n| n as f32).collect();
            Ok((format!("numbers({values:?})"), WeightExpr::Const { values: constant }))
        }
        Op::Pack { .. } => operands.into_iter().next().ok_or_else(|| no_plan(graph, v)),
        _ => Err(no_plan(graph, v)),
    }
}

/// A tensor of the checkpoint, or a stack of them.
fn stored(graph: &Graph, v: Value) -> Result<Named, Diagnostic> {
    let shape = graph.ty(v).as_tensor().and_then(|t| t.shape.sizes());
    let shape = shape.ok_or_else(|| unsupported(graph, v, "has no fixed shape"))?;
    match graph.op(v.node) {
        Op::Weights { name, count, whole } => {
            let shape = shape[1..].to_vec();
            let or = whole.as_ref().map_or(String::new(), |whole| {
                format!(" or {}[{}..{}]", whole.name, whole.start, whole.start + shape[0])
            });
            let expr = WeightExpr::Stack { name: name.clone(), count: *count, shape, whole: whole.clone() };
            Ok((format!("stack({count} {name}{or})"), expr))
        }
        Op::Weight { name } => Ok((name.clone(), WeightExpr::Tensor { name: name.clone(), shape })),
        _ => Err(no_plan(graph, v)),
    }
}

fn no_plan(graph: &Graph, v: Value) -> Diagnostic {
    unsupported(graph, v, &format!("is a `{}`, which no weight plan can hold", graph.op(v.node).name()))
}

fn unsupported(graph: &Graph, v: Value, what: &str) -> Diagnostic {
    Diagnostic::new("driver::weight", format!("a weight {what}")).at(graph.location(v.node))
}
