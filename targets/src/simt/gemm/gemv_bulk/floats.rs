//! `gemv_bulk`: rows and a weight of floats, multiplied as they are in local memory.
use atomc_ir::arch::GpuArch;
use atomc_ir::{Diagnostic, Family, Graph};

use super::loader::rows::Staging;
use super::main_loop::{AddProducts, Products, Rows, StageAt, WorkGroup};
use super::shape::{CLUSTER, Form, STEP, Shape};
use super::{Ground, Operands, emit, fits};
use crate::KernelSpec;
use crate::code::{Any, Int};
use crate::contraction::Encoding;
use crate::schedule::{Open, Schedule, WhyNot};
use crate::simt::gemm::contract::tuned_by;
use crate::simt::gemm::prologue::Prologue;
use crate::simt::launch;
use crate::simt::machine::fragment::VEC16;
use crate::tuning::Choice;

pub const SCHEDULE: Schedule = Schedule {
    name: "gemv_bulk",
    family: Family::Matvec,
    invariant: false,
    suits: |spec, arch, choice| suits(spec, launch::gpu(arch)?, choice).map(drop),
    open: Some(Open { numbers: &[CLUSTER], sizes: tuned_by }),
    emit: |setup, spec| launch::finish(emit(setup, spec, form, begin)),
};

fn form(body: &Graph) -> Result<Form, WhyNot> {
    Encoding::none(body).map(|()| Form::Floats)
}

/// The shape of a kernel that is made this way.
pub fn suits(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, WhyNot> {
    let shape = fits(spec, arch, choice, form)?;
    Prologue::of(spec.body)?;
    shape.check(arch)?;
    Ok(shape)
}

fn begin<'w, 'k, 'a, 'c>(ground: Ground<'w, 'k, 'a, 'c>) -> Result<Operands<'w, 'k, 'a, 'c>, Diagnostic> {
    Ok(Operands { rows: Rows::Staged(Box::new(Staging::begin(ground)?)), products: Box::new(Floats) })
}

struct Floats;

/// The rows for the products of a stage: each tile's address for the lane, and the fragments that
/// were loaded for all panels.
struct Columns<'c> {
    tiles: Vec<Int<'c>>,
    held: Vec<[Int<'c>; 4]>,
}

impl<'c> Columns<'c> {
    fn new(group: &WorkGroup<'_, '_, '_, 'c>, rows: Int<'c>) -> Columns<'c> {
        let (c, shape) = (group.code(), group.shape);
        let lane = c.lane_index();
        let column = |tile: usize| {
            let token = c.smaller(lane % 8 + 8 * tile, shape.tokens - 1);
            let vec16 = lane / 8 * shape.vec16_bytes();
            rows + (vec16 + token * shape.token_bytes())
        };
        let columns = Columns { tiles: (0..shape.tiles()).map(column).collect(), held: vec![] };
        if !shape.holds_rows() {
            return columns;
        }
        let all = (0..shape.steps).flat_map(|step| (0..shape.tiles()).map(move |tile| (step, tile)));
        Columns { held: all.map(|(step, tile)| columns.blocks(group, step, tile)).collect(), ..columns }
    }

    /// The four runs of a step.
    fn blocks(&self, group: &WorkGroup<'_, '_, '_, 'c>, step: usize, tile: usize) -> [Int<'c>; 4] {
        let (c, shape) = (group.code(), group.shape);
        let load = || c.load_blocks(self.tiles[tile] + step * 4 * shape.vec16_bytes());
        self.held.get(step * shape.tiles() + tile).copied().unwrap_or_else(load)
    }
}

impl<'c> Products<'c> for Floats {
    fn of_stage<'s>(&'s self, group: &'s WorkGroup<'_, '_, '_, 'c>, at: StageAt<'c>) -> AddProducts<'s, 'c> {
        // With few tokens the places are computed again for each panel: registers are for the
        // panels in flight.
        let kept = (group.shape.tiles() > 1).then(|| Columns::new(group, at.rows));
        Box::new(move |_, index, sums| {
            let from = group.weights.wait_full(index) + group.code().lane_index() * VEC16;
            match &kept {
                Some(kept) => products(group, from, kept, sums),
                None => products(group, from, &Columns::new(group, at.rows), sums),
            }
        })
    }
}

/// The products of the stage at this address of the lane.
fn products<'c>(
    group: &WorkGroup<'_, '_, '_, 'c>,
    from: Int<'c>,
    rows: &Columns<'c>,
    sums: &[Any<'c>],
) -> Vec<Any<'c>> {
    let (c, m, shape) = (group.code(), &group.contraction.matrix, group.shape);
    let mut sums = sums.to_vec();
    for step in 0..shape.steps {
        let panel = |piece: usize, half: usize| {
            c.load_blocks(from + (piece * shape.piece_bytes() + step * STEP + half * STEP / 2))
        };
        let panels: Vec<[_; 2]> = (0..shape.pieces).map(|piece| [panel(piece, 0), panel(piece, 1)]).collect();
        for tile in 0..shape.tiles() {
            let b = rows.blocks(group, step, tile);
            for (piece, panel) in panels.iter().enumerate() {
                let at = 4 * (piece * shape.tiles() + tile);
                for half in 0..2 {
                    let made = m.blocks(panel[half], [b[2 * half], b[2 * half + 1]], &sums[at..at + 4]);
                    sums.splice(at..at + 4, made);
                }
            }
        }
    }
    sums
}
