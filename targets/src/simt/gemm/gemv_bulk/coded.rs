//! Weights of codes in slots: the codes as they lie, decoded on their way from local memory into
//! registers, and their scales behind them. A lane loads a word of codes of a row, and from the
//! rows the columns that these are. Rows may be codes too: then products are those of codes, and
//! sums are scaled, as often as scales change.
use atomc_ir::{Block, DType, Diagnostic, Graph, Layout, Op, Value};
use inkwell::values::FloatValue;

use super::{Group, Shape, Turn};
use crate::code::codes::{Decoder, Zero};
use crate::code::{Any, Int, Ptr, Vector};
use crate::contraction::Encoding;
use crate::row::{At, Col};
use crate::schedule::WhyNot;
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::Contraction;
use crate::simt::machine;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;

/// Most bytes of rows of codes, which are staged as a whole, as numbers of 16 bits.
const ROWS: usize = 100 << 10;
/// Columns of a step.
const STEP: usize = 32;

/// How a weight of codes lies in slots.
#[derive(Clone, Copy, Debug)]
pub struct Coded {
    /// Bits of a code.
    pub bits: usize,
    /// Steps that share scales, where a row of either has several.
    pub group: Option<usize>,
    /// Bytes of a group's scales, and of its zero points, that come with the codes of a panel.
    pub marks: [usize; 2],
    /// Whether all rows of a panel share the scale of a group, which lies beside the slots.
    pub shared: bool,
    /// Whether rows are codes too, which threads make so many at a time of, and whether they have a
    /// scale for each group.
    pub rows: bool,
    lanes: usize,
    grouped_rows: bool,
}

/// The rows of a body's product, and columns that share a scale, if they are codes.
fn coded_rows(body: &Graph) -> Option<(Value, usize)> {
    let product = body.ids().find(|&id| body.op(id).is_contraction())?;
    let x = body.operands(product)[0];
    match body.ty(x).as_tensor()?.layout {
        Layout::Scaled(group) => Some((x, group)),
        _ => None,
    }
}

impl Coded {
    pub fn of(body: &Graph) -> Option<Coded> {
        let encoding = Encoding::of(body)?;
        let (own, [_, cols]) = (encoding.block.cols, encoding.size);
        let rows = coded_rows(body).map(|(_, group)| group);
        let grouped_rows = rows.is_some_and(|group| group < cols);
        let group = rows.filter(|_| grouped_rows).or((own < cols).then_some(own));
        let shared = own < cols && encoding.block.rows > 1;
        let with_codes = own < cols && !shared;
        // Scales are no rows: how many there are does not matter.
        let parts = |n: usize| {
            body.ids().all(|id| !matches!(body.op(id), Op::Slice { start, .. } | Op::Parts { start, .. } if !start.is_multiple_of(n)))
        };
        let fits =
            |n: &usize| cols.is_multiple_of(*n) && rows.is_none_or(|group| group.is_multiple_of(*n)) && parts(*n);
        Some(Coded {
            bits: encoding.codes.bits(),
            group: group.map(|group| group / STEP),
            marks: match with_codes {
                true => [16 * encoding.scale.size(), encoding.zero.map_or(0, |zero| 16 * zero.size())],
                false => [0, 0],
            },
            shared,
            rows: rows.is_some(),
            lanes: [8, 4, 2].into_iter().find(fits).unwrap_or(1),
            grouped_rows,
        })
    }

    /// Why a body is not made this way, if it is not.
    pub fn check(body: &Graph, shape: &Shape) -> Result<(), WhyNot> {
        let (Some(encoding), Some(coded)) = (Encoding::of(body), shape.coded) else { return Ok(()) };
        let Block { rows: high, cols: wide } = encoding.block;
        let [rows, cols] = encoding.size;
        let refused = |is: bool, why: &str| if is { Err(encoding.refused(why)) } else { Ok(()) };
        let of_rows = coded_rows(body).map_or(cols, |(_, group)| group);
        let both = of_rows < cols && wide < cols && of_rows != wide;
        refused(both, "rows have scales for other columns")?;
        let group = of_rows.min(wide);
        refused(group < cols && !cols.is_multiple_of(group.max(STEP)), "scales of part of a group")?;
        let apart = coded.grouped_rows && of_rows > 32 * coded.lanes;
        refused(apart, "the columns of a group are in several waves")?;
        refused(group < cols && !group.is_multiple_of(STEP), "steps of 32 columns would have several scales")?;
        refused(wide >= cols && encoding.zero.is_some(), "zero points of whole rows")?;
        refused(high > 1 && wide < cols && !high.is_multiple_of(16) && high < rows, "scales of part of a panel")?;
        refused(encoding.zero.is_some() && !rows.is_multiple_of(16), "zero points of part of a panel")?;
        refused(!cols.is_multiple_of(STEP), "part of a step of 32 columns")?;
        refused(!shape.steps.is_multiple_of(coded.least_steps()), "slots would have part of a group")?;
        let bytes = shape.columns() * 2 * shape.tokens;
        refused(coded.rows && bytes > ROWS, "rows of codes do not fit local memory")
    }

    pub fn marks_bytes(&self) -> usize {
        self.marks[0] + self.marks[1]
    }

    /// Steps that a slot has a multiple of: whole groups, and whole loads of blocks.
    pub fn least_steps(&self) -> usize {
        let loads = 8 / self.bits;
        self.group.unwrap_or(1).max(loads)
    }

    /// Groups of so many steps.
    pub fn groups_of(&self, steps: usize) -> usize {
        self.group.map_or(1, |group| steps / group)
    }

    /// Columns of a row's 16 bytes, and those of a lane.
    fn run(&self) -> usize {
        VEC16 * 8 / self.bits
    }

    fn each(&self) -> usize {
        32 / self.bits
    }
}

/// What a weight's codes are decoded with, and the scales that all rows of a panel share, in local
/// memory.
pub struct Coding<'k, 'c> {
    pub codes: &'k Codes<'c>,
    decoder: Decoder,
    shared: Ptr<'c>,
}

impl<'k, 'c> Coding<'k, 'c> {
    /// Brings what no kernel writes. The work-group meets before it is read.
    pub fn begin(
        contraction: &Contraction<'_, '_, 'c>,
        codes: &'k Codes<'c>,
        shape: Shape,
        (begin, member): (Int<'c>, Int<'c>),
    ) -> Coding<'k, 'c> {
        let c = contraction.matrix.c;
        let coding = Coding {
            codes,
            decoder: Decoder::new(c.arch, codes.encoding.codes, contraction.matrix.dtype).with_pairs_apart(),
            shared: c.shared(shape.shared_bytes(), 16),
        };
        let (all, groups) = (shape.shared_bytes() / 4, shape.scale_groups());
        if all > 0 {
            let before = member * groups;
            c.repeat(c.thread(), all, shape.threads(), |i| {
                let (row, group) = (i / groups, i % groups);
                let panels = contraction.panels_of(begin + row / shape.pieces, None);
                let piece = row % shape.pieces;
                let one = |panel| codes.scales(c, (panel, c.int(0)), 1, Some(before + group));
                let all: Vec<_> = panels.into_iter().map(|panel| c.lane(one(panel), 0)).collect();
                let scale =
                    all.iter().enumerate().skip(1).fold(all[0], |v, (i, &other)| c.pick(c.equal(piece, i), other, v));
                c.store(c.at(coding.shared, i * 4), scale, 4);
            });
        }
        coding
    }
}

/// Rows of codes as numbers in local memory, with their scales.
pub struct CodedRows<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    x: Value,
    /// Columns that share a scale, where rows have several.
    group: Option<usize>,
    /// The first column of the work-group's share.
    first: Int<'c>,
    pub local: Ptr<'c>,
    /// Scales of all tokens, group by group.
    scales: Ptr<'c>,
    exchange: Ptr<'c>,
}

impl<'s, 'k, 'a, 'c> CodedRows<'s, 'k, 'a, 'c> {
    pub fn begin(
        contraction: &'s Contraction<'k, 'a, 'c>,
        shape: Shape,
        share: Int<'c>,
    ) -> Option<CodedRows<'s, 'k, 'a, 'c>> {
        let c = contraction.matrix.c;
        let (x, group) = coded_rows(contraction.parts.kernel.rows.graph)?;
        let coded = shape.coded.filter(|coded| coded.rows)?;
        Some(CodedRows {
            contraction,
            shape,
            x,
            group: coded.grouped_rows.then_some(group),
            first: share * shape.columns(),
            local: c.shared(shape.stretch_bytes(), 128),
            scales: c.shared(shape.scale_groups() * 8 * shape.tiles() * 4, 16),
            exchange: machine::exchange(c, shape.threads()),
        })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    /// Stages all rows: one by all threads, several by a wave each.
    pub fn stage(&self) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let rows = &self.contraction.parts.kernel.rows;
        c.set_lanes(shape.coded.map_or(1, |coded| coded.lanes));
        if shape.tokens == 1 {
            rows.set_team(c.group_team(shape.threads(), self.exchange));
            return self.row(c.int(0), (c.thread(), shape.threads()));
        }
        rows.set_team(c.lanes_team(c.lane_index(), c.simt.wave));
        let mut result = Ok(());
        c.repeat(c.wave_index(), shape.tokens, shape.waves(), |token| {
            result = self.row(token, (c.lane_index(), c.simt.wave));
        });
        result
    }

    fn store(&self, token: Int<'c>, near: Int<'c>, v: Vector<'c>) {
        let (c, shape, m) = (self.code(), self.shape, &self.contraction.matrix);
        let to = near / m.vec16() * shape.vec16_bytes() + token * shape.token_bytes();
        c.store_floats(c.at(self.local, to + near % m.vec16() * m.dtype.size()), v, m.dtype);
    }

    fn store_scale(&self, token: Int<'c>, group: Int<'c>, scale: FloatValue<'c>) {
        let c = self.code();
        let at = group * (8 * self.shape.tiles()) + token;
        c.store(c.at(self.scales, at * 4), scale, 4);
    }

    /// A row, of which each member of a team makes every so many vectors.
    fn row(&self, token: Int<'c>, (index, team): (Int<'c>, usize)) -> Result<(), Diagnostic> {
        let (c, rows, x) = (self.code(), &self.contraction.parts.kernel.rows, self.x);
        let is_made = matches!(rows.graph.op(x.node), Op::Quantise { .. });
        rows.forget();
        rows.prepare(x, token, None)?;
        let lanes = c.lanes();
        let columns = self.shape.columns();
        let mut result = Ok(());
        let turn = team * lanes;
        c.repeat(index * lanes, columns.next_multiple_of(32 * lanes), turn, |near| {
            let made = self.vector(token, near, is_made);
            result = std::mem::replace(&mut result, Ok(())).and(made);
        });
        result?;
        if self.group.is_none() {
            let scale = rows.scale(x, token)?;
            c.when(c.equal(index, 0), || self.store_scale(token, c.int(0), scale));
        }
        rows.forget();
        Ok(())
    }

    /// A vector of a row. All lanes have a part in the size of a group, and some of them no column.
    fn vector(&self, token: Int<'c>, near: Int<'c>, is_made: bool) -> Result<(), Diagnostic> {
        let (c, rows, x) = (self.code(), &self.contraction.parts.kernel.rows, self.x);
        let (columns, lanes) = (self.shape.columns(), c.lanes());
        let (safe, is_there) = (c.smaller(near, columns - lanes), c.less(near, columns));
        let at = At { row: token, head: None, col: Col::Var(self.first + safe) };
        let Some(group) = self.group else {
            let v = rows.codes(x, at)?;
            c.when(is_there, || self.store(token, safe, v));
            return Ok(());
        };
        let number = safe / group;
        let (scale, v) = if is_made {
            let v = rows.eval(rows.graph.operands(x.node)[0], at)?;
            let scale = rows.scale_of_size(x, c.largest_of(rows.size_of(v), group / lanes))?;
            let v = rows.coded_by(v, &scale)?;
            (scale, v)
        } else {
            let scale = rows.group_of(x, token, self.first / group + number)?;
            let v = rows.codes_by(x, at, &scale)?;
            (scale, v)
        };
        c.when(is_there, || self.store(token, safe, v));
        c.when(c.equal(near % group, 0) & is_there, || self.store_scale(token, number, scale.scale()));
        Ok(())
    }

    /// What sums of a token are scaled by, if all by the same.
    pub fn scale(&self, token: Int<'c>) -> Option<FloatValue<'c>> {
        let c = self.code();
        let load = || c.load(c.cx.f32_type(), c.at(self.scales, token * 4), 4).into_float_value();
        self.group.is_none().then(load)
    }

    /// The scales of the lane's two tokens of a tile, for a group of columns.
    fn of_tile(&self, tile: usize, group: Int<'c>) -> Option<[FloatValue<'c>; 2]> {
        let c = self.code();
        self.group?;
        let at = group * (8 * self.shape.tiles()) + (c.lane_index() % 4 * 2 + 8 * tile);
        let both = c.load_vector(c.cx.f32_type(), 2, c.at(self.scales, at * 4), 8);
        Some([0, 1].map(|i| c.lane(both, i).into_float_value()))
    }
}

/// Where a slot lies: its rows, the panel counted from the work-group's first, and its number along
/// the work-group's share of it.
#[derive(Clone, Copy)]
pub struct SlotAt<'c> {
    pub rows: Int<'c>,
    pub panel: Int<'c>,
    pub along: Int<'c>,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// The products of one slot of codes.
    pub(super) fn slot_of_codes(
        &self,
        (coding, coded): (&Coding<'_, 'c>, Coded),
        at: SlotAt<'c>,
        turn: Turn<'c>,
        sums: &[Any<'c>],
    ) -> Vec<Any<'c>> {
        let (c, m, shape) = (self.code(), &self.contraction.matrix, self.shape);
        let (lane, tiles) = (c.lane_index(), shape.tiles());
        let base = self.weights.wait_full(turn);
        let (run, each) = (coded.run(), coded.each());
        let column = lane % 4 * each;
        let tile_at = |tile: usize| {
            let token = c.smaller(lane / 4 + 8 * tile, shape.tokens - 1);
            at.rows + (token * shape.token_bytes() + column / 8 * shape.vec16_bytes() + column % 8 * 2)
        };
        let places: Vec<Int> = (0..tiles).map(tile_at).collect();
        let runs = shape.steps * STEP / run;
        let in_group = coded.group.map(|group| group * STEP / run);
        let mut sums = sums.to_vec();
        let zeros = || vec![c.number(0.0).into(); sums.len()];
        let mut own: Vec<Any> = zeros();
        let mut words = Vec::new();
        let mut marks: Vec<PieceMarks> = Vec::new();
        for i in 0..runs {
            let group = in_group.map_or(0, |count| i / count);
            if i % 2 == 0 {
                let load =
                    |piece: usize| c.load_blocks(base + (piece * shape.piece_bytes() + i * 16 * VEC16) + lane * VEC16);
                words = (0..shape.pieces).map(load).collect();
            }
            if in_group.is_none_or(|count| i % count == 0) && (in_group.is_some() || i == 0) {
                let of = |piece| self.marks_of((coding, coded), at, (base, piece), c.int(group));
                marks = (0..shape.pieces).map(of).collect();
            }
            let into = if in_group.is_some() { &mut own } else { &mut sums };
            let decoded: Vec<[Vec<Int>; 2]> = words
                .iter()
                .zip(&marks)
                .map(|(words, marks)| {
                    [0, 1].map(|high| {
                        let zero = marks.zeros.as_ref().map(|zeros| zeros[high]);
                        coding.decoder.decode(c, &[words[i % 2 * 2 + high]], zero)
                    })
                })
                .collect();
            for (tile, &place) in places.iter().enumerate() {
                let from = c.at_address(place + i * run / 8 * shape.vec16_bytes());
                let x = c.load_vector(c.cx.i32_type(), each / 2, from, 2 * each);
                let x: Vec<Int> = (0..each / 2).map(|i| c.as_int(c.lane(x, i))).collect();
                let x = coding.decoder.ordered(c, x);
                for (piece, [low, high]) in decoded.iter().enumerate() {
                    let at = 4 * (piece * tiles + tile);
                    for (k, x) in x.chunks(2).enumerate() {
                        let panel = [low[2 * k], high[2 * k], low[2 * k + 1], high[2 * k + 1]];
                        let made = m.blocks(panel, [x[0], x[1]], &into[at..at + 4]);
                        into.splice(at..at + 4, made);
                    }
                }
            }
            let Some(count) = in_group.filter(|count| (i + 1) % count == 0) else { continue };
            let number = at.along * coded.groups_of(shape.steps) + i / count;
            self.add_scaled(&marks, number, &own, &mut sums);
            own = vec![c.number(0.0).into(); sums.len()];
        }
        sums
    }

    /// Adds the sums of a group, scaled.
    fn add_scaled(&self, marks: &[PieceMarks<'c>], group: Int<'c>, own: &[Any<'c>], sums: &mut [Any<'c>]) {
        let (c, tiles) = (self.code(), self.shape.tiles());
        let mul = |a: FloatValue<'c>, b: FloatValue<'c>| c.b.build_float_mul(a, b, "").expect("floats");
        let of_rows: Vec<_> =
            (0..tiles).map(|tile| self.coded_rows.and_then(|rows| rows.of_tile(tile, group))).collect();
        for (piece, marks) in marks.iter().enumerate() {
            for (tile, of_rows) in of_rows.iter().enumerate() {
                for i in 0..4 {
                    let at = 4 * (piece * tiles + tile) + i;
                    let (row, token) = (i / 2, i % 2);
                    let scale = match (marks.scales, of_rows) {
                        (Some(own), Some(rows)) => mul(own[row], rows[token]),
                        (Some(own), None) => own[row],
                        (None, Some(rows)) => rows[token],
                        (None, None) => c.number(1.0),
                    };
                    let all = [own[at].into_float_value(), scale, sums[at].into_float_value()];
                    sums[at] = c.call("llvm.fma", &[c.cx.f32_type().into()], &all.map(|v| v.into()));
                }
            }
        }
    }

    /// Scales, and zero points, of the lane's two rows of a panel for a group of a slot.
    pub(super) fn marks_of(
        &self,
        (coding, coded): (&Coding<'_, 'c>, Coded),
        at: SlotAt<'c>,
        (base, piece): (Int<'c>, usize),
        group: Int<'c>,
    ) -> PieceMarks<'c> {
        let (c, shape) = (self.code(), self.shape);
        let groups = coded.groups_of(shape.steps);
        if coded.shared {
            let row = at.panel * shape.pieces + piece;
            let number = row * shape.scale_groups() + at.along * groups + group;
            let scale = c.load(c.cx.f32_type(), c.at(coding.shared, number * 4), 4).into_float_value();
            return PieceMarks { scales: Some([scale; 2]), zeros: None, zero_numbers: None };
        }
        let [scale, zero] = coded.marks;
        if scale == 0 {
            return PieceMarks { scales: None, zeros: None, zero_numbers: None };
        }
        let first = base + (piece * shape.piece_bytes() + shape.codes_bytes());
        let of = |high: usize, before: usize, bytes: usize| {
            let row = (c.lane_index() / 4 + 8 * high) * (bytes / 16);
            c.at_address(first + (group * bytes + before) + row)
        };
        let scales = [0, 1].map(|high| coding.codes.scale_at(c, of(high, 0, scale)));
        let zeros = (zero > 0).then(|| {
            [0, 1].map(|high| {
                let zero = coding.codes.zero_at(c, &coding.decoder, of(high, groups * scale, zero));
                zero.expect("zero points of a weight that has some")
            })
        });
        let zero_numbers = (zero > 0).then(|| {
            let number = |high| coding.codes.zero_number_at(c, of(high, groups * scale, zero));
            [0, 1].map(|high| number(high).expect("zero points of a weight that has some"))
        });
        PieceMarks { scales: Some(scales), zeros, zero_numbers }
    }
}

/// What goes with a group of codes of the lane's two rows.
pub struct PieceMarks<'c> {
    pub scales: Option<[FloatValue<'c>; 2]>,
    /// Zero points as the decoder takes them, and as numbers.
    zeros: Option<[Zero<'c>; 2]>,
    pub zero_numbers: Option<[FloatValue<'c>; 2]>,
}

/// The type of numbers that are multiplied: codes of rows are numbers of f16, into which the
/// machine converts e4m3 by itself.
pub fn multiplied(body: &Graph, dtype: DType) -> DType {
    if coded_rows(body).is_some() { DType::F16 } else { dtype }
}
