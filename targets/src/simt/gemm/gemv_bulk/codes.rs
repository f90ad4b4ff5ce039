//! A quantised weight in pipeline stages: its values as they are stored, then the scales and zero
//! points of their groups. Both schedules that take quantised weights read them here.
use atomc_ir::{Block, DType, Diagnostic, Graph, Layout, Op, Value};
use inkwell::values::FloatValue;

use super::main_loop::{StageAt, WorkGroup};
use super::scheduler::PipelineIndex;
use super::{Ground, Shape};
use crate::code::codes::{Decoder, Zero};
use crate::code::{Int, Ptr};
use crate::contraction::{Encoding, rows_of};
use crate::row::unsupported;
use crate::schedule::WhyNot;
use crate::simt::gemm::codes::Codes;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;

/// Most bytes of quantised rows, which are staged as a whole, as numbers of 16 bits.
const ROWS: usize = 100 << 10;
/// Columns of a step.
pub const STEP: usize = 32;

/// The layout of a quantised weight in stages, and how rows are quantised if they are, too.
#[derive(Clone, Copy, Debug)]
pub struct StageCodes {
    /// Bits of a value.
    pub bits: usize,
    /// Steps that share scales, if a row of either operand has several.
    pub group: Option<usize>,
    /// Bytes of a group's scales, and of its zero points, that are copied with the values of a
    /// panel.
    pub scales: usize,
    pub zeros: usize,
    /// Whether all rows of a panel share the scale of a group. Such scales lie apart from the
    /// pipelines.
    pub shared: bool,
    pub rows: Option<RowCodes>,
}

/// How quantised rows are made.
#[derive(Clone, Copy, Debug)]
pub struct RowCodes {
    /// Values that a thread makes at a time.
    pub lanes: usize,
    /// Whether a row has a scale for each group of columns.
    pub grouped: bool,
}

/// The rows of a body's product, and columns that share a scale, if they are quantised.
pub fn quantised_rows(body: &Graph) -> Option<(Value, usize)> {
    let (x, ty) = rows_of(body)?;
    if let Layout::Scaled(group) = ty.layout { Some((x, group)) } else { None }
}

impl StageCodes {
    pub fn of(body: &Graph) -> Option<StageCodes> {
        let encoding = Encoding::of(body)?;
        let (own, [_, cols]) = (encoding.block.cols, encoding.size);
        let of_rows = quantised_rows(body).map(|(_, group)| group);
        let of_groups = of_rows.filter(|&group| group < cols);
        let group = of_groups.or((own < cols).then_some(own));
        let shared = own < cols && encoding.block.rows > 1;
        let with_values = own < cols && !shared;
        // Scales are no rows: their number does not matter.
        let parts = |n: usize| {
            body.ids().all(|id| !matches!(body.op(id), Op::Slice { start, .. } | Op::Parts { start, .. } if !start.is_multiple_of(n)))
        };
        let fits =
            |n: &usize| cols.is_multiple_of(*n) && of_rows.is_none_or(|group| group.is_multiple_of(*n)) && parts(*n);
        let lanes = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        Some(StageCodes {
            bits: encoding.codes.bits(),
            group: group.map(|group| group / STEP),
            scales: if with_values { 16 * encoding.scale.size() } else { 0 },
            zeros: encoding.zero.filter(|_| with_values).map_or(0, |zero| 16 * zero.size()),
            shared,
            rows: of_rows.map(|_| RowCodes { lanes, grouped: of_groups.is_some() }),
        })
    }

    /// Refuses a body that stages like these cannot serve.
    pub fn check(self, body: &Graph, shape: &Shape) -> Result<(), WhyNot> {
        let Some(encoding) = Encoding::of(body) else { return Ok(()) };
        let Block { rows: high, cols: wide } = encoding.block;
        let [rows, cols] = encoding.size;
        let refused = |is: bool, why: &str| encoding.refuse_if(is, why);
        let of_rows = quantised_rows(body).map_or(cols, |(_, group)| group);
        let both = of_rows < cols && wide < cols && of_rows != wide;
        refused(encoding.least.is_some(), "least numbers of groups")?;
        refused(both, "rows have scales for other columns")?;
        let group = of_rows.min(wide);
        refused(group < cols && !cols.is_multiple_of(group.max(STEP)), "scales of part of a group")?;
        let apart = self.rows.is_some_and(|rows| rows.grouped && of_rows > 32 * rows.lanes);
        refused(apart, "the columns of a group are in several waves")?;
        refused(group < cols && !group.is_multiple_of(STEP), "steps of 32 columns would have several scales")?;
        refused(wide >= cols && encoding.zero.is_some(), "zero points of whole rows")?;
        refused(high > 1 && wide < cols && !high.is_multiple_of(16) && high < rows, "scales of part of a panel")?;
        refused(encoding.zero.is_some() && !rows.is_multiple_of(16), "zero points of part of a panel")?;
        refused(!cols.is_multiple_of(STEP), "part of a step of 32 columns")?;
        refused(!shape.steps.is_multiple_of(self.least_steps()), "stages would have part of a group")?;
        let bytes = shape.columns() * 2 * shape.tokens;
        refused(self.rows.is_some() && bytes > ROWS, "quantised rows do not fit local memory")
    }

    pub fn scales_bytes(&self) -> usize {
        self.scales + self.zeros
    }

    /// The number that the steps of a stage are a multiple of: whole groups, and whole loads of
    /// blocks.
    pub fn least_steps(&self) -> usize {
        let loads = 8 / self.bits;
        self.group.unwrap_or(1).max(loads)
    }

    /// The groups in `steps` steps.
    pub fn groups_of(&self, steps: usize) -> usize {
        self.group.map_or(1, |group| steps / group.max(1))
    }

    /// Columns in 16 bytes of a row.
    pub fn run(&self) -> usize {
        VEC16 * 8 / self.bits
    }

    /// Columns of a lane's word.
    pub fn each(&self) -> usize {
        32 / self.bits
    }
}

/// A quantised weight: its decoder, and in local memory the scales that all rows of a panel share.
pub struct WeightCodes<'k, 'c> {
    pub codes: &'k Codes<'c>,
    pub layout: StageCodes,
    pub decoder: Decoder,
    shape: Shape,
    shared: Ptr<'c>,
}

/// The place of a panel's stage: the panel counted from the work-group's first, the stage along the
/// work-group's share of it, and the address in local memory.
#[derive(Clone, Copy)]
pub struct StagePlace<'c> {
    panel: Int<'c>,
    pub along: Int<'c>,
    pub base: Int<'c>,
}

impl<'c> StagePlace<'c> {
    /// The place of a panel in its stage, after the stage has arrived. `before` counts the stages
    /// before the K tile.
    pub fn new(
        group: &WorkGroup<'_, '_, '_, 'c>,
        at: StageAt<'c>,
        before: Int<'c>,
        panel: usize,
        index: PipelineIndex<'c>,
    ) -> StagePlace<'c> {
        let (c, across) = (group.code(), group.shape.waves_n);
        let panel = (at.first + panel) * across + c.wave_index() % across;
        StagePlace { panel, along: before + at.along, base: group.weights.wait_full(index) }
    }
}

/// The scales and zero points of a group of values, for the lane's two rows.
pub struct PieceScales<'c> {
    pub scales: Option<[FloatValue<'c>; 2]>,
    /// Zero points as the decoder takes them, and as numbers.
    pub zeros: Option<[Zero<'c>; 2]>,
    pub zero_numbers: Option<[FloatValue<'c>; 2]>,
}

impl<'k, 'c> WeightCodes<'k, 'c> {
    /// Loads everything that no kernel writes. The work-group has a barrier before it is read.
    pub fn begin(ground: Ground<'k, '_, '_, 'c>) -> Result<WeightCodes<'k, 'c>, Diagnostic> {
        let Ground { contraction, codes, shape, run, .. } = ground;
        let c = contraction.matrix.c;
        let missing = || unsupported("a weight that is not quantised");
        let (codes, layout) = codes.zip(shape.form.codes()).ok_or_else(missing)?;
        let weight = WeightCodes {
            codes,
            layout,
            decoder: Decoder::new(c.arch, codes.encoding.codes, contraction.matrix.dtype).with_pairs_apart(),
            shape,
            shared: c.shared(shape.shared_bytes(), 16),
        };
        let (all, groups) = (shape.shared_bytes() / 4, shape.scale_groups());
        if all > 0 {
            let before = run.member * groups;
            c.repeat(c.thread(), all, shape.threads(), |i| {
                let (row, group) = (i / groups, i % groups);
                let panels = contraction.panels_of(run.begin + row / shape.pieces, None);
                let piece = row % shape.pieces;
                let one = |panel| codes.scales(c, (panel, c.int(0)), 1, Some(before + group));
                let all: Vec<_> = panels.into_iter().map(|panel| c.lane(one(panel), 0)).collect();
                let scale =
                    all.iter().enumerate().skip(1).fold(all[0], |v, (i, &other)| c.pick(c.equal(piece, i), other, v));
                c.store(c.at(weight.shared, i * 4), scale, 4);
            });
        }
        Ok(weight)
    }

    /// Scales, and zero points, of the lane's two rows of a panel for a group of a stage.
    pub fn scales(&self, c: &Gpu<'c>, at: StagePlace<'c>, piece: usize, group: Int<'c>) -> PieceScales<'c> {
        let (layout, shape) = (self.layout, self.shape);
        let groups = layout.groups_of(shape.steps);
        if layout.shared {
            let row = at.panel * shape.pieces + piece;
            let number = row * shape.scale_groups() + at.along * groups + group;
            let scale = c.load(c.cx.f32_type(), c.at(self.shared, number * 4), 4).into_float_value();
            return PieceScales { scales: Some([scale; 2]), zeros: None, zero_numbers: None };
        }
        let (scale, zero) = (layout.scales, layout.zeros);
        if scale == 0 {
            return PieceScales { scales: None, zeros: None, zero_numbers: None };
        }
        let first = at.base + (piece * shape.piece_bytes() + shape.values_bytes());
        let of = |high: usize, before: usize, bytes: usize| {
            let row = (c.lane_index() / 4 + 8 * high) * (bytes / 16);
            c.at_address(first + (group * bytes + before) + row)
        };
        let scales = [0, 1].map(|high| self.codes.scale_at(c, of(high, 0, scale)));
        let zeros = (zero > 0).then(|| {
            [0, 1].map(|high| {
                let zero = self.codes.zero_at(c, &self.decoder, of(high, groups * scale, zero));
                zero.expect("zero points of a weight that has some")
            })
        });
        let zero_numbers = (zero > 0).then(|| {
            let number = |high| self.codes.zero_number_at(c, of(high, groups * scale, zero));
            [0, 1].map(|high| number(high).expect("zero points of a weight that has some"))
        });
        PieceScales { scales: Some(scales), zeros, zero_numbers }
    }
}

/// The type of the products' operands: values of quantised rows are f16, as the machine converts
/// e4m3 to f16 by itself.
pub fn multiplied(body: &Graph, dtype: DType) -> DType {
    if quantised_rows(body).is_some() { DType::F16 } else { dtype }
}
