//! The parts that both contraction families share on every target: the values that a contraction is
//! made of, and the epilogue of its sums.
use atomc_ir::{Block, DType, Diagnostic, Graph, Layout, NodeId, Op, TensorType, Value};

use inkwell::values::FloatValue;

use crate::code::{Int, Vector};
use crate::kernel::Kernel;
use crate::row::{At, Col, Operand, unsupported};
use crate::schedule::WhyNot;

/// How the weight of a body's contraction is stored, if it is quantised: codes with scales, and
/// perhaps zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    pub codes: DType,
    /// Rows and columns of the weight.
    pub size: [usize; 2],
    /// Rows and columns that share a scale.
    pub block: Block,
    pub scale: DType,
    pub zero: Option<DType>,
    /// The type of numbers that are added to codes times scales, if there are some.
    pub least: Option<DType>,
}

impl Encoding {
    pub fn of(body: &Graph) -> Option<Encoding> {
        body.ids().find_map(|id| {
            let (Op::Linear { block, .. } | Op::Grouped { block, .. } | Op::PerHead { block, .. }) = *body.op(id)
            else {
                return None;
            };
            let (operands, marks) = (body.operands(id), marks_of(body, id));
            let ty = |v: Option<&Value>| body.ty(*v?).as_tensor();
            let &[.., rows, cols] = ty(operands.get(1))?.shape.sizes()?.as_slice() else { return None };
            let behind = |added: bool| ty(marks.get(1)).map(|t| t.dtype).filter(|dtype| dtype.is_float() == added);
            let (codes, scale) = (ty(operands.get(1))?.dtype, ty(marks.first())?.dtype);
            let (zero, least) = (behind(false), behind(true));
            Some(Encoding { codes, size: [rows, cols], block: block?, scale, zero, least })
        })
    }

    /// Whether all columns of a row share a scale and nothing is added, so that whole sums can be
    /// scaled.
    pub fn is_row_wise(&self) -> bool {
        self.has_one_group() && self.least.is_none()
    }

    /// Whether all columns of a row share a scale.
    pub fn has_one_group(&self) -> bool {
        self.block.cols >= self.size[1]
    }

    /// Refuses a body with a quantised weight, for a schedule that decodes none.
    pub fn none(body: &Graph) -> Result<(), WhyNot> {
        Encoding::of(body).map_or(Ok(()), |encoding| Err(encoding.refused("it decodes no weights")))
    }

    /// Refuses it for a reason, if that holds.
    pub fn refuse_if(&self, holds: bool, why: &str) -> Result<(), WhyNot> {
        if holds { Err(self.refused(why)) } else { Ok(()) }
    }

    /// Why a schedule does not take it.
    pub fn refused(&self, why: &str) -> WhyNot {
        let (codes, [rows, cols], Block { rows: high, cols: wide }) = (self.codes.name(), self.size, self.block);
        WhyNot::new(format!("{codes}[{rows}, {cols}] with a scale for each {high} by {wide}: {why}"))
    }
}

/// The product of a body, if it has one.
pub fn product_of(body: &Graph) -> Option<NodeId> {
    body.ids().find(|&id| body.op(id).is_contraction())
}

/// The rows of a body's product, with their type.
pub fn rows_of(body: &Graph) -> Option<(Value, &TensorType)> {
    let x = body.operands(product_of(body)?)[0];
    Some((x, body.ty(x).as_tensor()?))
}

/// Scales, and zero points or least numbers if there are some, of a product's weight.
fn marks_of(body: &Graph, product: NodeId) -> Vec<Value> {
    let first = body.op(product).marks();
    first.and_then(|first| Some(body.operands(product).get(first..)?.to_vec())).unwrap_or_default()
}

/// The experts of a product's rows, if it has some.
pub fn experts_of(body: &Graph, product: NodeId) -> Option<Value> {
    matches!(body.op(product), Op::Grouped { .. }).then(|| body.operands(product)[2])
}

/// The number of heads, if a product multiplies each with a matrix of its own.
pub fn heads_of(body: &Graph, product: NodeId) -> Option<usize> {
    let heads = || body.ty(body.operands(product)[1]).as_tensor()?.shape.0[0].fixed();
    matches!(body.op(product), Op::PerHead { .. }).then(heads).flatten()
}

/// Whether a body's product multiplies heads with matrices of their own.
pub fn has_heads(body: &Graph) -> bool {
    product_of(body).is_some_and(|product| matches!(body.op(product), Op::PerHead { .. }))
}

/// Rows of heads in memory, as products take them: the element of a row of `of` at which each
/// head's columns begin.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows {
    pub of: Value,
    start: usize,
    apart: usize,
}

impl HeadRows {
    /// Columns are read in whole steps, as many as weights are padded to, and vectors are aligned.
    const STEP: usize = 32;
    const VEC16: usize = 16;

    pub fn of(body: &Graph, product: NodeId) -> Option<HeadRows> {
        heads_of(body, product)?;
        let (x, w) = (body.operands(product)[0], body.operands(product)[1]);
        let columns = body.ty(x).as_tensor()?.shape.last()?;
        let (of, start, apart) = match body.op(x.node) {
            Op::Input { .. } => (x, 0, columns),
            Op::Reshape { .. } => (body.operands(x.node)[0], 0, columns),
            &Op::Parts { start, step, .. } => (body.operands(x.node)[0], start, step),
            _ => return None,
        };
        let ty = body.ty(of).as_tensor()?;
        let aligned = |elements: usize| ty.dtype.bytes(elements).is_multiple_of(HeadRows::VEC16);
        let as_multiplied = ty.dtype == multiplied(body, ty, body.ty(w).as_tensor()?);
        let is_there = matches!(body.op(of.node), Op::Input { .. }) && ty.layout == Layout::Rows && as_multiplied;
        let is_whole = columns.is_multiple_of(HeadRows::STEP) && aligned(start) && aligned(apart);
        (is_there && is_whole).then_some(HeadRows { of, start, apart })
    }

    /// The element of a row at which a head's columns begin.
    pub fn column<'c>(&self, head: Int<'c>) -> Int<'c> {
        head * self.apart + self.start
    }
}

/// The sum over a token's choices that a product is part of, and its operand.
pub fn combine_of(body: &Graph, product: NodeId) -> Option<(Value, Value)> {
    let mut of = Value::from(product);
    while let [(user, _)] = body.users(of)[..] {
        match body.op(user) {
            Op::Map(_) => of = user.into(),
            Op::Combine {} => return Some((user.into(), of)),
            _ => break,
        }
    }
    None
}

/// The type of numbers that are multiplied, of a body's x and weight.
pub fn multiplied(body: &Graph, x: &TensorType, w: &TensorType) -> DType {
    let row_wise = Encoding::of(body).is_none_or(|encoding| encoding.is_row_wise());
    match x.layout {
        _ if !w.dtype.is_code() => w.dtype,
        // Codes are numbers of bf16. Scaled codes are not, if a row of either operand has several
        // scales.
        Layout::Scaled(group) if row_wise && Some(group) >= x.shape.last() => DType::BF16,
        Layout::Scaled(_) => DType::F32,
        Layout::Mx(_) => w.dtype,
        _ => x.dtype,
    }
}

/// A contraction `x @ w^T` inside a kernel, with its result as pieces of equal width that the
/// epilogue reads side by side.
#[derive(Clone)]
pub struct Parts<'k, 'a, 'c> {
    pub kernel: &'k Kernel<'a, 'c>,
    pub x: Value,
    pub w: Operand<'c>,
    /// Values that hold sums, and the first weight row of each.
    pieces: Vec<(Value, usize)>,
    linear: Value,
    /// The sum over a token's choices that makes the result, and its operand.
    combine: Option<(Value, Value)>,
    out: Value,
    pub to: &'k Operand<'c>,
}

impl<'k, 'a, 'c> Parts<'k, 'a, 'c> {
    pub fn new(kernel: &'k Kernel<'a, 'c>) -> Result<Parts<'k, 'a, 'c>, Diagnostic> {
        let graph = kernel.rows.graph;
        let linear = kernel.the("product", Op::is_contraction)?;
        let operands = graph.operands(linear.node);
        let w = kernel.rows.operand(operands[1])?.clone();
        if w.ty.layout != Layout::Panels {
            return Err(unsupported("the weight of a contraction must be packed"));
        }
        let (out, to) = kernel.output()?;
        if heads_of(graph, linear.node).is_some() {
            let out = if matches!(graph.op(out.node), Op::Reshape { .. }) { graph.operands(out.node)[0] } else { out };
            let pieces = vec![(linear, 0)];
            return Ok(Parts { kernel, x: operands[0], w, pieces, linear, combine: None, out, to });
        }
        let width = to.ty.shape.row().unwrap_or(0);
        let mut pieces = Vec::new();
        // A bias of all pieces may be added before the pieces are separated.
        let mut whole = linear;
        while let [(user, _)] = graph.users(whole)[..]
            && matches!(graph.op(user), Op::Map(_))
        {
            whole = user.into();
        }
        let combine = combine_of(graph, linear.node);
        for (user, _) in graph.users(whole) {
            if let Op::Slice { axis: 1, start, len } = graph.op(user) {
                if *len != width || start % kernel.code.arch.memory.panel != 0 {
                    return Err(unsupported(format!("a slice of {len} from {start} of a contraction")));
                }
                pieces.push((user.into(), *start));
            }
        }
        if pieces.is_empty() {
            if kernel.rows.shape(linear)?.shape.last() != Some(width) {
                return Err(unsupported("a contraction that is wider than the result"));
            }
            pieces.push((linear, 0));
        } else if pieces.len() != graph.users(whole).len() {
            return Err(unsupported("a contraction that is read whole and in slices"));
        }
        Ok(Parts { kernel, x: operands[0], w, pieces, linear, combine, out, to })
    }

    /// The first weight row of each piece.
    pub fn starts(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.pieces.iter().map(|&(_, start)| start)
    }

    /// Elements of a row of the result, or of one of its heads if each has a matrix of its own.
    pub fn width(&self) -> usize {
        match self.heads() {
            Some(_) => self.w.ty.shape.0[1].fixed().unwrap_or(0),
            None => self.to.ty.shape.row().unwrap_or(0),
        }
    }

    /// The number of heads, if each has a matrix of its own.
    pub fn heads(&self) -> Option<usize> {
        heads_of(self.kernel.rows.graph, self.linear.node)
    }

    /// The place of a head's columns in a row of the result.
    pub fn place_of(&self, at: At<'c>) -> At<'c> {
        let column = self.kernel.rows.column(at.col);
        let col = at.head.map_or(at.col, |head| Col::Var(head * self.width() + column));
        At { head: None, col, ..at }
    }

    /// The type of the products' operands: the weight's, or that of x if the weight is quantised.
    pub fn multiplied(&self) -> Result<DType, Diagnostic> {
        let (x, w) = (self.kernel.rows.shape(self.x)?, &self.w.ty);
        Ok(multiplied(self.kernel.rows.graph, x, w))
    }

    /// The rows of x, if they are in memory in the type of products' operands; for heads, the rows
    /// that theirs are parts of.
    pub fn rows_in_memory(&self) -> Option<&Operand<'c>> {
        let x = match self.heads() {
            Some(_) => self.kernel.rows.operand(self.head_rows()?.of).ok()?,
            None => self.kernel.rows.operand(self.x).ok()?,
        };
        (x.ty.layout == Layout::Rows && x.ty.dtype == multiplied(self.kernel.rows.graph, &x.ty, &self.w.ty))
            .then_some(x)
    }

    /// Rows of heads in memory, if each head has a matrix of its own.
    pub fn head_rows(&self) -> Option<HeadRows> {
        HeadRows::of(self.kernel.rows.graph, self.linear.node)
    }

    /// Scales, and zero points or least numbers if there are some, of a weight that is stored as
    /// codes.
    pub fn marks(&self) -> Result<Vec<&Operand<'c>>, Diagnostic> {
        let marks = marks_of(self.kernel.rows.graph, self.linear.node);
        marks.into_iter().map(|v| self.kernel.rows.operand(v)).collect()
    }

    /// The product.
    pub fn product(&self) -> NodeId {
        self.linear.node
    }

    /// The experts of rows, if weights are theirs.
    pub fn experts(&self) -> Option<Value> {
        experts_of(self.kernel.rows.graph, self.linear.node)
    }

    /// Rows of the product for each token.
    pub fn choices(&self) -> usize {
        self.kernel.rows.shape(self.linear).map_or(1, TensorType::choices)
    }

    /// Rows of the product for each of x.
    pub fn rows_of_x(&self) -> Result<usize, Diagnostic> {
        Ok(self.choices() / self.kernel.rows.shape(self.x)?.choices())
    }

    /// How much a choice of a token counts, where choices are added up.
    pub fn weight_of(&self, token: Int<'c>, choice: Int<'c>) -> Result<FloatValue<'c>, Diagnostic> {
        let rows = &self.kernel.rows;
        let (combine, _) = self.combine.ok_or_else(|| unsupported("weights of choices that stay apart"))?;
        let weights = rows.operand(rows.graph.operands(combine.node)[1])?;
        let place = rows.address(weights, At { row: token, head: None, col: Col::Var(choice) });
        Ok(rows.code.load(rows.code.cx.f32_type(), place, 4).into_float_value())
    }

    /// Rows in memory that the epilogue reads at the places of its results, so that they can be
    /// loaded before the sums are complete.
    fn rows_beside(&self) -> impl Iterator<Item = Value> {
        let (graph, shape) = (self.kernel.rows.graph, &self.to.ty.shape);
        graph.inputs().into_iter().filter(move |&v| {
            let as_wide = graph.ty(v).as_tensor().is_some_and(|t| t.layout == Layout::Rows && t.shape == *shape);
            as_wide && graph.users(v).iter().any(|&(user, _)| matches!(graph.op(user), Op::Map(_)))
        })
    }

    /// The bits of vectors of them.
    pub fn beside(&self, at: At<'c>) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let rows = &self.kernel.rows;
        let load = |x: &Operand<'c>| rows.code.load_bits(rows.address(x, at), x.ty.dtype);
        self.rows_beside().map(|v| rows.operand(v).map(load)).collect()
    }

    /// As [`Parts::result`], with the operands that [`Parts::beside`] loaded for the same place.
    pub fn result_with(
        &self,
        at: At<'c>,
        sums: &[Vector<'c>],
        beside: &[Vector<'c>],
    ) -> Result<Vector<'c>, Diagnostic> {
        let rows = &self.kernel.rows;
        for (v, &bits) in self.rows_beside().zip(beside) {
            rows.bind(v, rows.code.widen(bits, rows.operand(v)?.ty.dtype));
        }
        let result = self.result(at, sums);
        self.rows_beside().for_each(|v| rows.unbind(v));
        result
    }

    /// The epilogue's result for sums, one vector for each piece.
    pub fn result(&self, at: At<'c>, sums: &[Vector<'c>]) -> Result<Vector<'c>, Diagnostic> {
        let rows = &self.kernel.rows;
        if let Some((combine, of)) = self.combine {
            // An addend of a choice's product is summed over the choices as the products were.
            let mut all = sums[0];
            if of != self.linear {
                let (c, choices) = (rows.code, self.choices());
                rows.bind(self.linear, c.zero());
                for choice in 0..choices {
                    rows.forget();
                    let more = rows.eval(of, At { row: at.row * choices + choice, ..at })?;
                    all = c.fma(more, c.splat(self.weight_of(at.row, c.int(choice))?), all);
                }
                rows.unbind(self.linear);
            }
            rows.forget();
            rows.bind(combine, all);
            return rows.eval(self.out, at);
        }
        if self.heads().is_some() {
            rows.bind(self.linear, sums[0]);
            let made = rows.eval(self.out, at);
            rows.unbind(self.linear);
            return made;
        }
        for (&(v, _), &sum) in self.pieces.iter().zip(sums) {
            rows.bind(self.linear, sum);
            if v != self.linear {
                rows.unbind(v);
                let lanes = rows.eval(v, at)?;
                rows.bind(v, lanes);
            }
        }
        rows.eval(self.out, at)
    }
}
