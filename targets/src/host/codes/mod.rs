//! Weights that are stored as codes. Codes are decoded in registers after a panel is loaded, to the
//! numbers that a form of products takes. The sum over the columns that share a scale is scaled as
//! a whole. Only where a group of columns ends inside a word is every code scaled.
mod blocks;
mod bytes;
mod floats;
mod pairs;
mod unpack;

use std::rc::Rc;

use atomc_ir::arch::Cpu;
use atomc_ir::{Block, DType, Diagnostic, Layout, Op, TensorType, Value};

use super::LANES;
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::contraction::Parts;
use crate::row::{At, Col, Operand, Rows};
use bytes::Bytes;
use floats::Floats;
use pairs::Pairs;

/// A weight of codes.
#[derive(Clone)]
pub struct Codes<'a, 'c> {
    c: &'a Code<'c>,
    core: Cpu,
    w: Operand<'c>,
    /// Rows and columns of codes that share a scale, and a zero point or a least number if there
    /// are some.
    block: Block,
    scale: Operand<'c>,
    zero: Option<Operand<'c>>,
    /// Numbers that are added to codes times scales.
    least: Option<Operand<'c>>,
    /// Columns of x that share a scale, if x is codes.
    x_group: usize,
    /// Whether codes and rows of x are multiplied as pairs of bf16 where both are exact in it.
    by_pairs: bool,
}

/// A panel: its number in the weight, its address, and the distance in panels to the one that is
/// read next, if that one is to be prefetched.
#[derive(Clone, Copy)]
pub struct Panel<'c> {
    pub number: Int<'c>,
    pub ptr: Ptr<'c>,
    pub ahead: Option<Int<'c>>,
}

/// Columns that are summed before a scale is applied, in words of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spans {
    /// All of a row.
    Whole { words: usize },
    /// Groups of `words` words each, `count` of them, and the rest.
    Groups { count: usize, words: usize, rest: usize },
    /// None: they end inside words.
    Columns,
}

impl Spans {
    /// Runs `each` for the first word, the words and the number of every span.
    fn each<'c>(self, c: &Code<'c>, each: impl Fn(Int<'c>, usize, Int<'c>)) {
        match self {
            Spans::Whole { words } => each(c.int(0), words, c.int(0)),
            Spans::Groups { count, words, rest } => {
                c.repeat(0, count, 1, |span| each(span * words, words, span));
                if rest > 0 {
                    each(c.int(count * words), rest, c.int(count));
                }
            }
            Spans::Columns => {}
        }
    }
}

/// A way to multiply codes with rows of x that were staged for it.
trait Form<'c> {
    /// Bytes of a staged row.
    fn row_bytes(&self) -> usize;

    /// Stages a row, which is there as f32 with its padding.
    fn stage(&self, from: Ptr<'c>, to: Ptr<'c>);

    /// Registers of tables, if there are more than one.
    fn tables(&self) -> usize {
        0
    }

    /// Words of 16 rows as factors.
    fn decode(&self, words: Vector<'c>, zero: Option<Vector<'c>>) -> Vec<Vector<'c>>;

    /// The beginnings of a span's sums.
    fn begin(&self, row: Ptr<'c>, span: Int<'c>) -> Vec<Any<'c>>;

    /// Adds the products of a word's columns.
    fn add(&self, sums: &[Any<'c>], factors: &[Vector<'c>], row: Ptr<'c>, word: Int<'c>) -> Vec<Any<'c>>;

    /// The sum of a span's products.
    fn end(&self, sums: &[Any<'c>], zero: Option<Vector<'c>>, row: Ptr<'c>, span: Int<'c>) -> Vector<'c>;

    /// The sum of a row's numbers over a span, in the unit of its sums.
    fn total(&self, row: Ptr<'c>, span: Int<'c>) -> Vector<'c>;

    /// The unit of a row's sums.
    fn unit(&self, row: Ptr<'c>) -> Option<Vector<'c>>;
}

/// Products of rows of one contraction with a weight of codes.
pub struct Products<'a, 'c> {
    codes: Codes<'a, 'c>,
    form: Rc<dyn Form<'c> + 'a>,
    /// A row as f32, before it is staged.
    row: Operand<'c>,
    rows: Ptr<'c>,
    /// The scales of each row, if rows are quantised.
    scales: Option<Ptr<'c>>,
    /// The scales in a row.
    scales_of_row: usize,
    /// Columns of x that share a scale, if a row has several.
    in_groups: Option<usize>,
}

impl<'a, 'c> Codes<'a, 'c> {
    /// The weight of a contraction, if it is stored as codes.
    pub fn of(core: Cpu, parts: &Parts<'_, 'a, 'c>) -> Result<Option<Codes<'a, 'c>>, Diagnostic> {
        let (rows, w) = (&parts.kernel.rows, parts.w.clone());
        let product = parts.kernel.the("product", Op::is_contraction)?;
        let (Op::Linear { block: Some(block), .. }
        | Op::Grouped { block: Some(block), .. }
        | Op::PerHead { block: Some(block), .. }) = *rows.graph.op(product.node)
        else {
            return Ok(None);
        };
        let marks = parts.marks()?;
        let behind = |added: bool| marks.get(1).filter(|of| of.ty.dtype.is_float() == added).map(|&of| of.clone());
        let (scale, zero, least) = (marks[0].clone(), behind(false), behind(true));
        // Groups of columns go over the heads of a row.
        let group = rows.scaled_group(parts.x).filter(|_| parts.heads().is_none());
        let is_exact = group.is_some() || rows.shape(parts.x)?.dtype == DType::BF16;
        let by_pairs = is_exact && core.multiplies_pairs_each_cycle();
        let x_group = group.unwrap_or(usize::MAX);
        Ok(Some(Codes { c: rows.code, core, w, block, scale, zero, least, x_group, by_pairs }))
    }

    /// The matrix of an expert, if each has one.
    pub fn of_expert(&self, expert: Int<'c>) -> Codes<'a, 'c> {
        let (c, [rows, _]) = (self.c, self.grid());
        let matrix = |of: &Operand<'c>| {
            // In columns, rows of scales are padded.
            let rows = if of.ty.layout == Layout::Columns { c.arch.memory.padded(rows) } else { rows };
            let bytes = rows * of.stride * of.ty.dtype.size();
            Operand { ptr: c.at(of.ptr, expert * bytes), ..of.clone() }
        };
        let [rows, _] = self.sizes();
        let bytes = c.arch.memory.packed_bytes(self.w.ty.dtype, rows, self.w.stride);
        let w = Operand { ptr: c.at(self.w.ptr, expert * bytes), ..self.w.clone() };
        let [zero, least] = [&self.zero, &self.least].map(|of| of.as_ref().map(matrix));
        Codes { w, scale: matrix(&self.scale), zero, least, ..self.clone() }
    }

    /// Columns in a word of a panel.
    fn per_word(&self) -> usize {
        8 * self.c.arch.memory.group_bytes / self.w.ty.dtype.bits()
    }

    /// Rows and columns.
    fn sizes(&self) -> [usize; 2] {
        let axes = &self.w.ty.shape.0[self.w.ty.shape.rank() - 2..];
        [0, 1].map(|axis| axes[axis].fixed().expect("a weight has a known size"))
    }

    /// Bytes from one word of a row to the next.
    fn step(&self) -> usize {
        self.c.arch.memory.group_step()
    }

    fn spans(&self) -> Spans {
        let ([_, cols], per) = (self.sizes(), self.per_word());
        match self.span_columns() {
            Some(span) if span >= cols => Spans::Whole { words: self.w.stride / per },
            Some(span) if span.is_multiple_of(per) && (self.least.is_none() || span.is_multiple_of(LANES)) => {
                Spans::Groups { count: cols / span, words: span / per, rest: (cols % span).div_ceil(per) }
            }
            _ => Spans::Columns,
        }
    }

    /// Columns that share a scale of the weight and one of x, if the borders of one are among those
    /// of the other.
    fn span_columns(&self) -> Option<usize> {
        let [_, cols] = self.sizes();
        let (block, group) = (self.block.cols, self.x_group);
        match (block >= cols, group >= cols) {
            (_, true) => Some(block),
            (true, false) => Some(group),
            _ if block.is_multiple_of(group) => Some(group),
            _ if group.is_multiple_of(block) => Some(block),
            _ => None,
        }
    }

    /// Columns of x that share a scale, if a row has several and sums end at the same columns.
    pub fn groups_of_x(&self) -> Option<usize> {
        (self.x_group < self.sizes()[1] && self.spans() != Spans::Columns).then_some(self.x_group)
    }

    /// The number of scales of a row of x, if it has scales.
    pub fn scales_of_x(&self) -> usize {
        self.groups_of_x().map_or(1, |group| self.sizes()[1].div_ceil(group))
    }

    /// The number of a span's scale in a row.
    pub fn scale_of_x(&self, span: Int<'c>) -> Int<'c> {
        self.block_of(span, self.x_group)
    }

    /// The block of `columns` columns that a span lies in.
    fn block_of(&self, span: Int<'c>, columns: usize) -> Int<'c> {
        let (c, [_, cols]) = (self.c, self.sizes());
        match self.span_columns() {
            _ if columns >= cols => c.int(0),
            Some(span_columns) if span_columns < columns => span / (columns / span_columns),
            _ => span,
        }
    }

    /// The number of spans of a row.
    fn count(&self) -> usize {
        match self.spans() {
            Spans::Whole { .. } | Spans::Columns => 1,
            Spans::Groups { count, rest, .. } => count + usize::from(rest > 0),
        }
    }

    fn panel_bytes(&self) -> usize {
        self.c.arch.memory.panel_bytes(self.w.ty.dtype, self.w.stride)
    }

    fn load(&self, panel: Panel<'c>, word: Int<'c>) -> Vector<'c> {
        let c = self.c;
        let at = c.at(panel.ptr, word * self.step());
        c.load(c.ints(c.cx.i32_type(), LANES), at, 4).into_vector_value()
    }

    /// Prefetches a word of the panel that is read next.
    fn prefetch(&self, panel: Panel<'c>, word: Int<'c>) {
        let c = self.c;
        if let Some(ahead) = panel.ahead {
            c.prefetch(c.at(panel.ptr, ahead * self.panel_bytes() + word * self.step()));
        }
    }

    /// Runs `turn` for `count` words from `first` on, several of them in each turn of a loop.
    fn each_word(
        &self,
        first: Int<'c>,
        words: usize,
        most: usize,
        carried: Vec<Any<'c>>,
        turn: impl Fn(Int<'c>, &[Any<'c>]) -> Vec<Any<'c>>,
    ) -> Vec<Any<'c>> {
        let together = (1..=most.max(1)).rev().find(|n| words.is_multiple_of(*n)).expect("one");
        let turns = |at: Int<'c>, carried: &[Any<'c>]| {
            (0..together).fold(carried.to_vec(), |carried, i| turn(at + i, &carried))
        };
        if words == together {
            return turns(first, &carried);
        }
        self.c.for_each((first, first + words, together), &carried, turns)
    }
}

impl<'a, 'c> Products<'a, 'c> {
    /// Products of `count` rows of x, of which at most some are multiplied together. They are
    /// staged at `to`; returns the bytes that they take there, too.
    pub fn new(
        parts: &Parts<'_, 'a, 'c>,
        codes: Codes<'a, 'c>,
        to: Ptr<'c>,
        count: usize,
        together: usize,
    ) -> Result<(Products<'a, 'c>, usize), Diagnostic> {
        let (c, rows) = (codes.c, &parts.kernel.rows);
        let x = rows.shape(parts.x)?;
        let in_groups = codes.groups_of_x();
        let are_codes = rows.has_row_scale(parts.x) || in_groups.is_some();
        let scales_of_row = codes.scales_of_x();
        let form = codes.form(x, are_codes, together);
        let row = Operand { ptr: to, ty: TensorType::new(DType::F32, x.shape.clone()), stride: codes.w.stride };
        let scales = c.at(to, row.stride * 4);
        let scale_bytes = if are_codes { (4 * count * scales_of_row).next_multiple_of(64) } else { 0 };
        let bytes = row.stride * 4 + scale_bytes + count * form.row_bytes();
        let (rows, scales) = (c.at(scales, scale_bytes), are_codes.then_some(scales));
        Ok((Products { codes, form, row, rows, scales, scales_of_row, in_groups }, bytes))
    }

    /// Stages a row of x.
    pub fn stage(&self, parts: &Parts<'_, 'a, 'c>, number: Int<'c>) -> Result<(), Diagnostic> {
        let (c, rows, row) = (self.codes.c, &parts.kernel.rows, &self.row);
        let scales = self.scales.map(|at| c.at(at, number * (4 * self.scales_of_row)));
        rows.prepare(parts.x, number, None)?;
        if let (Some(group), Some(scales)) = (self.in_groups, scales) {
            stage_groups(rows, parts.x, number, group, row, scales)?;
        } else {
            c.repeat(0, row.stride, LANES, |col| {
                let at = At { row: number, head: None, col: Col::Var(col) };
                let lanes = if scales.is_some() { rows.codes(parts.x, at)? } else { rows.eval(parts.x, at)? };
                rows.store_padded(lanes, row, At { row: c.int(0), ..at });
                Ok(())
            })?;
            if let Some(scales) = scales {
                c.store(scales, rows.scale(parts.x, number)?, 4);
            }
        }
        self.form.stage(row.ptr, c.at(self.rows, number * self.form.row_bytes()));
        Ok(())
    }

    /// Divides rows into groups of nearly equal size, for which registers hold the sums.
    pub fn rows_together(&self, panels: usize, rows: usize) -> usize {
        let registers = self.codes.core.vector.holds(LANES);
        let sums = self.form.begin(self.rows, self.codes.c.int(0)).len() * panels;
        let most = (registers * 3 / 4).saturating_sub(self.form.tables()) / sums;
        rows.div_ceil(rows.div_ceil(most.max(1)))
    }

    /// The products with the matrix of an expert.
    pub fn of_expert(&self, expert: Int<'c>) -> Products<'a, 'c> {
        Products { codes: self.codes.of_expert(expert), form: self.form.clone(), row: self.row.clone(), ..*self }
    }

    /// The sums of some rows with every panel: `sums[row][panel]`.
    pub fn sums(&self, numbers: &[Int<'c>], panels: &[Panel<'c>]) -> Vec<Vec<Vector<'c>>> {
        let (c, codes, form) = (self.codes.c, &self.codes, &*self.form);
        let rows: Vec<Ptr> = numbers.iter().map(|&row| c.at(self.rows, row * form.row_bytes())).collect();
        let sums = match codes.spans() {
            Spans::Whole { words } => {
                let zero = c.int(0);
                let sums = self.span(&rows, panels, zero, words, zero);
                self.scaled(numbers, panels, zero, &sums, None)
            }
            Spans::Groups { count, words, rest } => {
                let zeros = vec![c.zero(); rows.len() * panels.len()];
                let sums = c.carry((0, count, 1), zeros, |span, before| {
                    let sums = self.span(&rows, panels, span * words, words, span);
                    self.scaled(numbers, panels, span, &sums, Some(&before))
                });
                if rest == 0 {
                    sums
                } else {
                    let more = self.span(&rows, panels, c.int(count * words), rest, c.int(count));
                    self.scaled(numbers, panels, c.int(count), &more, Some(&sums))
                }
            }
            Spans::Columns => self.by_columns(&rows, panels),
        };
        let of_row = |((&number, &row), sums): ((&Int<'c>, &Ptr<'c>), &[Vector<'c>])| {
            let scale = self.scales.filter(|_| self.scales_of_row == 1);
            let scale = scale.map(|at| c.splat(c.load(c.cx.f32_type(), c.at(at, 4 * number), 4)));
            let by = [form.unit(row), scale];
            sums.iter().map(|&sum| by.iter().flatten().fold(sum, |sum, &by| c.fmul(sum, by))).collect()
        };
        numbers.iter().zip(&rows).zip(sums.chunks(panels.len())).map(of_row).collect()
    }

    /// Sums of every row with every panel over one span.
    fn span(
        &self,
        rows: &[Ptr<'c>],
        panels: &[Panel<'c>],
        first: Int<'c>,
        words: usize,
        span: Int<'c>,
    ) -> Vec<Vector<'c>> {
        let (codes, form) = (&self.codes, &*self.form);
        let zeros: Vec<Option<Vector>> = panels.iter().map(|panel| codes.zero(*panel, span)).collect();
        let begun: Vec<Vec<Any>> = rows.iter().map(|&row| form.begin(row, span)).collect();
        let each = begun[0].len();
        let begun = begun.iter().flat_map(|sums| panels.iter().flat_map(|_| sums.clone())).collect();
        let sums = self.products(rows, panels, first, words, begun, |words, panel, _| form.decode(words, zeros[panel]));
        let end =
            |(i, sums): (usize, &[Any<'c>])| form.end(sums, zeros[i % panels.len()], rows[i / panels.len()], span);
        sums.chunks(each).enumerate().map(end).collect()
    }

    /// Adds the products of every row with every panel over some words.
    fn products(
        &self,
        rows: &[Ptr<'c>],
        panels: &[Panel<'c>],
        first: Int<'c>,
        words: usize,
        begun: Vec<Any<'c>>,
        decode: impl Fn(Vector<'c>, usize, Int<'c>) -> Vec<Vector<'c>>,
    ) -> Vec<Any<'c>> {
        let codes = &self.codes;
        let each = begun.len() / rows.len() / panels.len();
        codes.each_word(first, words, UNROLLED / rows.len(), begun, |word, sums| {
            for panel in panels {
                codes.prefetch(*panel, word);
            }
            let factors = |(i, &panel): (usize, &Panel<'c>)| decode(codes.load(panel, word), i, word);
            let factors: Vec<Vec<Vector>> = panels.iter().enumerate().map(factors).collect();
            let add = |(i, sums): (usize, &[Any<'c>])| {
                self.form.add(sums, &factors[i % panels.len()], rows[i / panels.len()], word)
            };
            sums.chunks(each).enumerate().flat_map(add).collect()
        })
    }

    /// The sums of a span by its scales, on top of others.
    fn scaled(
        &self,
        rows: &[Int<'c>],
        panels: &[Panel<'c>],
        span: Int<'c>,
        sums: &[Vector<'c>],
        before: Option<&[Vector<'c>]>,
    ) -> Vec<Vector<'c>> {
        let c = self.codes.c;
        let scales: Vec<Vector> = panels.iter().map(|panel| self.codes.scale(*panel, span)).collect();
        let own = |row: Int<'c>, at: Ptr<'c>| {
            let group = self.codes.scale_of_x(span) + row * self.scales_of_row;
            c.splat(c.load(c.cx.f32_type(), c.at(at, group * 4), 4))
        };
        let in_groups = self.scales.filter(|_| self.scales_of_row > 1);
        let own: Vec<Vector> = in_groups.into_iter().flat_map(|at| rows.iter().map(move |&row| own(row, at))).collect();
        let least: Vec<Vector> = panels.iter().filter_map(|panel| self.codes.least(*panel, span)).collect();
        let total = |&row: &Int<'c>| self.form.total(c.at(self.rows, row * self.form.row_bytes()), span);
        let totals: Vec<Vector> = if least.is_empty() { vec![] } else { rows.iter().map(total).collect() };
        let scaled = |(i, &sum): (usize, &Vector<'c>)| {
            let (row, panel) = (i / panels.len(), i % panels.len());
            let by_own = |v: Vector<'c>| own.get(row).map_or(v, |&own| c.fmul(v, own));
            let before = match least.get(panel) {
                Some(&least) => {
                    let total = by_own(totals[row]);
                    Some(before.map_or_else(|| c.fmul(total, least), |before| c.fma(total, least, before[i])))
                }
                None => before.map(|before| before[i]),
            };
            let (sum, scale) = (by_own(sum), scales[panel]);
            before.map_or_else(|| c.fmul(sum, scale), |before| c.fma(sum, scale, before))
        };
        sums.iter().enumerate().map(scaled).collect()
    }

    /// Sums where every code is scaled by itself.
    fn by_columns(&self, rows: &[Ptr<'c>], panels: &[Panel<'c>]) -> Vec<Vector<'c>> {
        let (c, codes) = (self.codes.c, &self.codes);
        let words = codes.sizes()[1].div_ceil(codes.per_word());
        let begun: Vec<Vec<Any>> = rows.iter().map(|&row| self.form.begin(row, c.int(0))).collect();
        let each = begun[0].len();
        let begun = begun.iter().flat_map(|sums| panels.iter().flat_map(|_| sums.clone())).collect();
        let sums = self.products(rows, panels, c.int(0), words, begun, |words, panel, word| {
            let factors = self.form.decode(words, None).into_iter().enumerate();
            factors.map(|(i, code)| codes.element(code, panels[panel], word * codes.per_word() + i)).collect()
        });
        let end = |(i, sums): (usize, &[Any<'c>])| self.form.end(sums, None, rows[i / panels.len()], c.int(0));
        sums.chunks(each).enumerate().map(end).collect()
    }
}

/// Stages the codes of a row in the type of the operand, and the scales of its groups of columns.
pub fn stage_groups<'c>(
    rows: &Rows<'_, 'c>,
    x: Value,
    number: Int<'c>,
    group: usize,
    row: &Operand<'c>,
    scales: Ptr<'c>,
) -> Result<(), Diagnostic> {
    let (c, width) = (rows.code, row.ty.shape.row().unwrap_or(0));
    c.repeat(0, width.div_ceil(group), 1, |block| {
        let scale = rows.group_of(x, number, block)?;
        c.store(c.at(scales, block * 4), scale.scale(), 4);
        let (first, end) = (block * group, c.smaller(block * group + group, width));
        c.repeat(first, end, LANES, |col| {
            let at = At { row: number, head: None, col: Col::Var(col) };
            rows.store_padded(rows.codes_by(x, at, &scale)?, row, At { row: c.int(0), ..at });
            Ok(())
        })
    })?;
    for col in (width.next_multiple_of(LANES)..row.stride).step_by(LANES) {
        c.store_floats(c.at(row.ptr, row.ty.dtype.size() * col), c.zero(), row.ty.dtype);
    }
    Ok(())
}

/// Rows times words in one turn of a loop.
const UNROLLED: usize = 16;

impl<'a, 'c> Codes<'a, 'c> {
    /// The best form of products for `together` rows of x at once, or for rows of codes.
    fn form(&self, x: &TensorType, are_codes: bool, together: usize) -> Rc<dyn Form<'c> + 'a> {
        let (dtype, pairs) = (self.w.ty.dtype, self.core.has_pairs(DType::BF16));
        let per_word = self.per_word();
        let fits = self.spans() != Spans::Columns;
        let few = |span: usize| span <= bytes::FEW && span.is_multiple_of(LANES) && span < self.sizes()[1];
        let digits = match self.span_columns() {
            _ if are_codes && x.dtype == DType::I8 => 1,
            Some(span) if !are_codes && few(span) => bytes::FEW_DIGITS,
            _ => bytes::DIGITS,
        };
        let bf16 = x.dtype == DType::BF16 || are_codes;
        let short = fits && (bf16 || x.dtype == DType::F16);
        // Three digits are three products for two of pairs, and one row is decoded faster for them.
        let are_nibbles = self.zero.is_none()
            && self.least.is_none()
            && Pairs::decodes(dtype)
            && digits > 1
            && together > 1
            && self.by_pairs;
        if fits && bf16 && pairs && (dtype == DType::F8E4M3 || are_nibbles) {
            return Rc::new(Pairs { c: self.c, dtype, width: self.w.stride });
        }
        if short && dtype != DType::F8E4M3 && pairs && self.w.stride <= bytes::WIDEST {
            return Rc::new(Bytes::new(self, digits, together));
        }
        let totals = self.least.as_ref().map(|_| (self.spans(), self.count()));
        Rc::new(Floats { c: self.c, dtype, per_word, width: self.w.stride, totals })
    }
}
