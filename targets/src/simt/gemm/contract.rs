//! The parts that both contraction families share: the weight's panels as fragments, and the
//! epilogue on results in the lanes' layout.
use atomc_ir::{DType, Diagnostic, Graph, Layout, Op};

use crate::KernelSpec;
use crate::code::{Int, Ptr, Vector};
use crate::contraction::{
    Encoding, HeadRows, Parts, combine_of, experts_of, heads_of, multiplied, product_of, rows_of,
};
use crate::row::{At, Col, unsupported};
use crate::simt::launch::Kernel;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Matrix;
use crate::tuning::{Kind, Stored};

/// Sizes of the contraction of a body, before there is a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The type of numbers that are multiplied.
    pub dtype: DType,
    /// Rows of the weight that are multiplied, and its columns.
    pub rows: usize,
    pub depth: usize,
    /// Pieces of the result.
    pub pieces: usize,
    /// Whether the rows are multiplied as they are in memory.
    pub plain: bool,
    /// The type that rows are quantised to, if they are.
    pub quantised_rows: Option<DType>,
    /// The encoding of the weight, if it is quantised.
    pub encoding: Option<Encoding>,
    /// The experts, if each row is multiplied by the weight of one of them.
    pub experts: Option<Experts>,
    /// The number of heads, if each has a matrix of its own.
    pub heads: Option<usize>,
}

/// The experts of rows.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub count: usize,
    /// Rows for each token.
    pub choices: usize,
    pub layout: Layout,
    /// Whether a token's choices are added up.
    pub combined: bool,
}

impl Experts {
    /// Rows of a block, where rows are grouped.
    pub fn block(&self) -> Option<usize> {
        if let Layout::Grouped { tile, .. } = self.layout { Some(tile) } else { None }
    }
}

impl Sizes {
    pub fn of(body: &Graph) -> Result<Sizes, Diagnostic> {
        let linear = product_of(body);
        let is_coded = Encoding::of(body).is_some();
        if let Some((_, x)) = rows_of(body).filter(|(_, x)| x.layout.is_coded() && !is_coded) {
            return Err(unsupported(format!("products of rows of {x} with a weight of floats")));
        }
        let made = || {
            let weight = body.ty(body.operands(linear?)[1]).as_tensor()?;
            let width = body.ty(*body.outputs().first()?).as_tensor()?.shape.row()?;
            let all = body.ty(linear?.into()).as_tensor()?.shape.last()?;
            let (rows, x) = rows_of(body)?;
            let heads = heads_of(body, linear?);
            let is_input = matches!(body.op(rows.node), Op::Input { .. });
            let dtype = multiplied(body, x, weight);
            let plain = match heads {
                Some(_) => HeadRows::of(body, linear?).is_some(),
                None => is_input && x.layout == Layout::Rows && x.dtype == dtype,
            };
            Some(Sizes {
                dtype,
                rows: all,
                depth: weight.shape.last()?,
                pieces: if heads.is_some() { 1 } else { all / width.max(1) },
                heads,
                plain,
                quantised_rows: x.layout.is_coded().then_some(x.dtype),
                encoding: Encoding::of(body),
                experts: experts_of(body, linear?).and_then(|v| {
                    let t = body.ty(v).as_tensor()?;
                    let combined = combine_of(body, linear?).is_some();
                    let count = weight.shape.0.first()?.fixed()?;
                    Some(Experts { count, choices: t.choices(), layout: t.layout, combined })
                }),
            })
        };
        made().ok_or_else(|| unsupported("a contraction family without a contraction"))
    }
}

/// The class of a kernel: the facts that the best numbers of a schedule depend on.
pub fn tuned_by(spec: &KernelSpec) -> Result<(Kind, Vec<usize>), Diagnostic> {
    let s = Sizes::of(spec.body)?;
    let weight = s
        .encoding
        .map_or(Stored::floats(s.dtype), |e| Stored::quantised(e.codes, e.block, e.size, e.zero.or(e.least).is_some()));
    let rows = s.quantised_rows.unwrap_or(s.dtype).name();
    let kind = Kind::Gemm { rows, weight, plain: s.plain, pieces: s.pieces };
    Ok((kind, vec![s.rows, s.depth, spec.tokens]))
}

/// A panel of 16 rows of a weight.
#[derive(Clone, Copy)]
pub struct Panel<'c> {
    /// Counted from the weight's first.
    pub number: Int<'c>,
    /// Counted from the first of its matrix.
    pub own: Int<'c>,
    /// The expert that the matrix belongs to, where experts have one each.
    pub expert: Option<Int<'c>>,
}

/// A contraction on a GPU.
pub struct Contraction<'k, 'a, 'c> {
    pub parts: Parts<'k, 'a, 'c>,
    pub matrix: Matrix<'a, 'c>,
}

impl<'k, 'a, 'c> Contraction<'k, 'a, 'c> {
    pub fn new(kernel: &'k Kernel<'a, 'c>) -> Result<Contraction<'k, 'a, 'c>, Diagnostic> {
        let parts = Parts::new(kernel)?;
        Ok(Contraction { matrix: Matrix::new(kernel.code, parts.multiplied()?), parts })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.matrix.c
    }

    /// Panels of the result, its padding included.
    pub fn panels(&self) -> usize {
        match self.parts.heads() {
            Some(_) => self.parts.width().div_ceil(self.code().arch.memory.panel),
            None => self.code().arch.memory.panels(self.parts.to.ty.shape.row().unwrap_or(0)),
        }
    }

    /// The addresses of the panels of all pieces that make a panel of the result, perhaps in an
    /// expert's weight. The result's padding uses the last panel; its results are stored as zeros.
    pub fn weights(&self, panel: Int<'c>, expert: Option<Int<'c>>) -> Vec<Ptr<'c>> {
        let panel = self.made(panel);
        let number = |start| self.weight_panel(panel, self.code().int(start / 16), expert);
        self.parts.starts().map(number).collect()
    }

    /// The panel of the weight at which a piece of the result begins.
    pub fn first_panel(&self, piece: Int<'c>) -> Int<'c> {
        let c = self.code();
        self.parts
            .starts()
            .enumerate()
            .fold(c.int(0), |first, (i, start)| c.pick_int(c.equal(piece, i), start / 16, first))
    }

    /// These panels.
    pub fn panels_of(&self, panel: Int<'c>, expert: Option<Int<'c>>) -> Vec<Panel<'c>> {
        let panel = self.made(panel);
        self.parts.starts().map(|start| self.numbered(panel + start / 16, expert)).collect()
    }

    /// A panel of the weight, or of an expert's.
    pub fn numbered(&self, own: Int<'c>, expert: Option<Int<'c>>) -> Panel<'c> {
        let (memory, shape) = (self.code().arch.memory, &self.parts.w.ty.shape);
        let rows = shape.0[shape.rank() - 2].fixed().unwrap_or(0);
        let number = expert.map_or(own, |expert| own + expert * memory.panels(rows));
        Panel { number, own, expert }
    }

    /// A panel of the result that there are weights for.
    pub fn made(&self, panel: Int<'c>) -> Int<'c> {
        self.code().smaller(panel, self.parts.width().div_ceil(16) - 1)
    }

    /// The address of a panel of the weight, counted from a first one. Weights may be larger than
    /// 32 bits can address.
    pub fn weight_panel(&self, panel: Int<'c>, first: Int<'c>, expert: Option<Int<'c>>) -> Ptr<'c> {
        let (c, w) = (self.code(), &self.parts.w);
        let bytes = c.arch.memory.panel_bytes(w.ty.dtype, w.stride);
        let number = c.to_i64(self.numbered(panel + first, expert).number);
        c.at(w.ptr, number * bytes)
    }

    /// The epilogue for one token and some consecutive features of it, from their sums. The
    /// features may be those of a head that has a matrix of its own.
    pub fn finish(
        &self,
        token: Int<'c>,
        head: Option<Int<'c>>,
        col: Int<'c>,
        sums: &[Vector<'c>],
    ) -> Result<(), Diagnostic> {
        let (c, rows) = (self.code(), &self.parts.kernel.rows);
        c.set_lanes(self.matrix.layout.results);
        let at = At { row: token, head, col: Col::Var(col) };
        let lanes = self.parts.result(at, sums)?;
        match head {
            Some(_) => self.store_head(self.parts.place_of(at), col, lanes),
            None => rows.store_padded(lanes, self.parts.to, at),
        }
        Ok(())
    }

    /// Stores features of a head. The columns after the last head's are padded with zeros.
    fn store_head(&self, place: At<'c>, col: Int<'c>, lanes: Vector<'c>) {
        let (c, rows, to) = (self.code(), &self.parts.kernel.rows, self.parts.to);
        let (width, results) = (self.parts.width(), self.matrix.layout.results);
        let store = || c.store_floats(rows.address(to, place), lanes, to.ty.dtype);
        if width.is_multiple_of(16) {
            store()
        } else {
            c.when(c.less(col, width), store)
        }
        let (end, padded) = (self.parts.heads().unwrap_or(1) * width, rows.padded(to));
        let is_last = c.compare(inkwell::IntPredicate::EQ, rows.column(place.col) + results, end);
        if end < padded {
            c.when(is_last, || {
                for col in (end..padded).step_by(results) {
                    let at = At { head: None, col: Col::Const(col), ..place };
                    c.store_floats(rows.address(to, at), c.zero(), to.ty.dtype);
                }
            });
        }
    }

    /// Runs the epilogue of some panels with sums of zero, for at most `rows` rows. A row below
    /// zero is skipped.
    pub fn finish_zeros(
        &self,
        threads: usize,
        (panel, panels): (Int<'c>, usize),
        rows: usize,
        row: impl Fn(Int<'c>) -> Int<'c>,
    ) -> Result<(), Diagnostic> {
        let (c, results) = (self.code(), self.matrix.layout.results);
        let zeros = vec![self.matrix.zero(); self.parts.starts().len()];
        let count = 16 * panels / results;
        c.repeat(c.thread(), rows * count, threads, |item| {
            let (row, col) = (row(item / count), panel * 16 + item % count * results);
            let is_row = c.less(0, row + 1);
            let is_there = if panels == 1 { is_row } else { is_row & c.less(col, self.panels() * 16) };
            c.when(is_there, || self.finish(row, None, col, &zeros))
        })
    }

    /// The epilogue for as many features as a vector has, with operands that were
    /// [loaded](Parts::beside) early. Features of a head are followed by no padding.
    pub fn finish_at(&self, at: At<'c>, sums: &[Vector<'c>], beside: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let lanes = self.parts.result_with(at, sums, beside)?;
        let at = self.parts.place_of(at);
        self.parts.kernel.rows.store_padded(lanes, self.parts.to, at);
        Ok(())
    }
}
