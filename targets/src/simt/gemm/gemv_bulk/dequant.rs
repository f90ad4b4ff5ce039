//! `gemv_bulk_dequant`: a quantised weight that is decoded on its way from local memory into
//! registers. A lane loads a word of values of a row, and the same columns of the rows of x. Rows
//! may be quantised too: then products are those of quantised values, and sums are scaled whenever
//! scales change.
use atomc_ir::arch::GpuArch;
use atomc_ir::{Diagnostic, Family, Graph};
use inkwell::values::FloatValue;

use super::codes::{PieceScales, STEP, StageCodes, StagePlace, WeightCodes};
use super::loader::quantised_rows::QuantisedRows;
use super::loader::rows::Staging;
use super::main_loop::{AddProducts, Products, Rows, StageAt, WorkGroup};
use super::shape::{CLUSTER, Form, Shape};
use super::{Ground, Operands, emit, fits};
use crate::KernelSpec;
use crate::code::{Any, Int};
use crate::schedule::{Open, Schedule, WhyNot};
use crate::simt::gemm::contract::tuned_by;
use crate::simt::gemm::prologue::Prologue;
use crate::simt::launch;
use crate::simt::machine::fragment::VEC16;
use crate::tuning::Choice;

pub const SCHEDULE: Schedule = Schedule {
    name: "gemv_bulk_dequant",
    family: Family::Matvec,
    invariant: false,
    suits: |spec, arch, choice| suits(spec, launch::gpu(arch)?, choice).map(drop),
    open: Some(Open { numbers: &[CLUSTER], sizes: tuned_by }),
    emit: |setup, spec| launch::finish(emit(setup, spec, form, begin)),
};

fn form(body: &Graph) -> Result<Form, WhyNot> {
    StageCodes::of(body).map(Form::Codes).ok_or_else(|| WhyNot::new("the weight is not quantised"))
}

/// The shape of a kernel that is made this way.
pub fn suits(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, WhyNot> {
    let shape = fits(spec, arch, choice, form)?;
    if !shape.has_quantised_rows() {
        Prologue::of(spec.body)?;
    }
    shape.check(arch)?;
    Ok(shape)
}

fn begin<'w, 'k, 'a, 'c>(ground: Ground<'w, 'k, 'a, 'c>) -> Result<Operands<'w, 'k, 'a, 'c>, Diagnostic> {
    let weight = WeightCodes::begin(ground)?;
    let rows = match QuantisedRows::begin(ground) {
        Some(rows) => Rows::Quantised(Box::new(rows)),
        None => Rows::Staged(Box::new(Staging::begin(ground)?)),
    };
    Ok(Operands { rows, products: Box::new(CodeProducts { weight }) })
}

struct CodeProducts<'w, 'c> {
    weight: WeightCodes<'w, 'c>,
}

impl<'c> Products<'c> for CodeProducts<'_, 'c> {
    fn of_stage<'s>(&'s self, group: &'s WorkGroup<'_, '_, '_, 'c>, at: StageAt<'c>) -> AddProducts<'s, 'c> {
        let before = group.before(at);
        Box::new(move |panel, index, sums| {
            let place = StagePlace::new(group, at, before, panel, index);
            self.products(group, at.rows, place, sums)
        })
    }
}

impl<'c> CodeProducts<'_, 'c> {
    /// The products of one stage.
    fn products(
        &self,
        group: &WorkGroup<'_, '_, '_, 'c>,
        rows: Int<'c>,
        place: StagePlace<'c>,
        sums: &[Any<'c>],
    ) -> Vec<Any<'c>> {
        let (c, shape) = (group.code(), group.shape);
        let layout = self.weight.layout;
        let (lane, tiles, run) = (c.lane_index(), shape.tiles(), layout.run());
        let column = lane % 4 * layout.each();
        let tile_at = |tile: usize| {
            let token = c.smaller(lane / 4 + 8 * tile, shape.tokens - 1);
            rows + (token * shape.token_bytes() + column / 8 * shape.vec16_bytes() + column % 8 * 2)
        };
        let places: Vec<Int> = (0..tiles).map(tile_at).collect();
        let runs = shape.steps * STEP / run;
        let in_group = layout.group.map(|group| group * STEP / run);
        let mut sums = sums.to_vec();
        let zeros = || vec![c.number(0.0).into(); sums.len()];
        let mut own: Vec<Any> = zeros();
        let mut words = Vec::new();
        let mut scales: Vec<PieceScales> = Vec::new();
        for i in 0..runs {
            let number = in_group.map_or(0, |count| i / count);
            if i % 2 == 0 {
                let load = |piece: usize| {
                    c.load_blocks(place.base + (piece * shape.piece_bytes() + i * 16 * VEC16) + lane * VEC16)
                };
                words = (0..shape.pieces).map(load).collect();
            }
            if in_group.is_none_or(|count| i % count == 0) && (in_group.is_some() || i == 0) {
                let of = |piece| self.weight.scales(c, place, piece, c.int(number));
                scales = (0..shape.pieces).map(of).collect();
            }
            let into = if in_group.is_some() { &mut own } else { &mut sums };
            let words: Vec<_> = words.iter().map(|words| [words[i % 2 * 2], words[i % 2 * 2 + 1]]).collect();
            let x = RunAt { places: &places, apart: i * run / 8 * shape.vec16_bytes() };
            self.add_run(group, &words, &scales, x, into);
            let Some(count) = in_group.filter(|count| (i + 1) % count == 0) else { continue };
            let number = place.along * layout.groups_of(shape.steps) + i / count;
            add_scaled(group, &scales, number, &own, &mut sums);
            own = vec![c.number(0.0).into(); sums.len()];
        }
        sums
    }

    /// Adds the products of the columns of a word: the words of the lane's two rows of each piece,
    /// and the address of the rows of x.
    fn add_run(
        &self,
        group: &WorkGroup<'_, '_, '_, 'c>,
        words: &[[Int<'c>; 2]],
        scales: &[PieceScales<'c>],
        x: RunAt<'_, 'c>,
        sums: &mut [Any<'c>],
    ) {
        let (c, m, decoder) = (group.code(), &group.contraction.matrix, &self.weight.decoder);
        let (tiles, each) = (x.places.len(), self.weight.layout.each());
        let decoded = |(words, scales): (&[Int<'c>; 2], &PieceScales<'c>)| {
            [0, 1].map(|high| {
                let zero = scales.zeros.as_ref().map(|zeros| zeros[high]);
                decoder.decode(c, &[words[high]], zero)
            })
        };
        let decoded: Vec<[Vec<Int>; 2]> = words.iter().zip(scales).map(decoded).collect();
        for (tile, &place) in x.places.iter().enumerate() {
            let x = c.load_vector(c.cx.i32_type(), each / 2, c.at_address(place + x.apart), 2 * each);
            let x: Vec<Int> = (0..each / 2).map(|i| c.as_int(c.lane(x, i))).collect();
            let x = decoder.ordered(c, x);
            for (piece, [low, high]) in decoded.iter().enumerate() {
                let at = 4 * (piece * tiles + tile);
                for (k, x) in x.chunks(2).enumerate() {
                    let panel = [low[2 * k], high[2 * k], low[2 * k + 1], high[2 * k + 1]];
                    let made = m.blocks(panel, [x[0], x[1]], &sums[at..at + 4]);
                    sums[at..at + 4].copy_from_slice(&made);
                }
            }
        }
    }
}

/// For each tile, the address of the lane's part of a stage's rows, and the distance from there to
/// a run of columns.
#[derive(Clone, Copy)]
struct RunAt<'p, 'c> {
    places: &'p [Int<'c>],
    apart: usize,
}

/// Adds the sums of a group of columns, scaled.
fn add_scaled<'c>(
    group: &WorkGroup<'_, '_, '_, 'c>,
    scales: &[PieceScales<'c>],
    number: Int<'c>,
    own: &[Any<'c>],
    sums: &mut [Any<'c>],
) {
    let (c, tiles) = (group.code(), group.shape.tiles());
    let mul = |a: FloatValue<'c>, b: FloatValue<'c>| (c.float(a) * b).v;
    let of_rows: Vec<_> =
        (0..tiles).map(|tile| group.rows.quantised().and_then(|rows| rows.of_tile(tile, number))).collect();
    for (piece, scales) in scales.iter().enumerate() {
        for (tile, of_rows) in of_rows.iter().enumerate() {
            for i in 0..4 {
                let at = 4 * (piece * tiles + tile) + i;
                let (row, token) = (i / 2, i % 2);
                let scale = match (scales.scales, of_rows) {
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
