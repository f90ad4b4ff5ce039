//! Family `matvec` where the machine copies runs of memory into local memory by itself: the weight
//! streams through rings of slots, one of each wave, and its first slots are on their way before
//! the kernel before this one has ended.
//!
//! One work-group stays on each compute unit. Of the result it makes a run of panels, in passes
//! over the columns of the weight: a wave takes every `across`-th panel, and of the slots along the
//! columns every `along`-th, and keeps the sums of all its panels of a pass. Rows come into local
//! memory a stretch of columns at a time, the next one under the products of this one. At the end
//! of a pass the sums of the waves meet in local memory.
mod coded;
mod copies;
mod digits;
mod reduce;
mod rows;
mod shape;
#[cfg(test)]
pub mod tests;
mod weights;

use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::{Diagnostic, Family};
use inkwell::values::FloatValue;

use crate::code::{Any, Int, Ptr};
use crate::schedule::{Open, Schedule, WhyNot};
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::{Contraction, Sizes, tuned_by};
use crate::simt::gemm::prologue::Prologue;
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Matrix, VEC16};
use crate::tuning::Choice;
use crate::{KernelSpec, Tasks};
use coded::{CodedRows, Coding, SlotAt};
use digits::Digits;
use rows::Staging;
use shape::{CLUSTER, STEP, Shape};
use weights::{CARRIED, Turn, WeightPipeline};

/// Waves that a SIMD has registers for where tokens are few: another kernel's fit beside.
const FEW_TOKENS: usize = 3;
/// Most tokens.
const TOKENS: usize = 64;

/// Whether a contraction is made this way.
fn suits(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<(), WhyNot> {
    let (sizes, simt) = (Sizes::of(spec.body)?, arch.simt);
    let dtype = coded::multiplied(spec.body, sizes.dtype);
    WhyNot::unless(simt.bulk_copies, || format!("{} has no bulk copies", arch.name))?;
    WhyNot::unless(Matrix::native(simt, dtype), || format!("{} has no MMA of {}", arch.name, dtype.name()))?;
    WhyNot::unless(spec.tokens <= TOKENS, || format!("{} tokens: at most {TOKENS}", spec.tokens))?;
    let shape = Shape::new(spec, arch, choice)?;
    coded::Coded::check(spec.body, &shape)?;
    if !shape.has_coded_rows() {
        Prologue::of(spec.body)?;
    }
    WhyNot::unless(shape.near() <= 8, || {
        format!("{} waves are too few to bring {} tokens", shape.waves(), spec.tokens)
    })?;
    WhyNot::unless(shape.local_bytes() <= simt.unit.lds_group, || {
        format!("{} bytes of local memory: a work-group has {}", shape.local_bytes(), simt.unit.lds_group)
    })
}

pub const SCHEDULE: Schedule = Schedule {
    name: "gemv_bulk",
    family: Family::Matvec,
    invariant: false,
    suits: |spec, arch, choice| suits(spec, launch::gpu(arch)?, choice),
    open: Some(Open { numbers: &[CLUSTER], sizes: tuned_by }),
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?, &setup.choice)?;
    let code = setup.open_early(spec, shape.threads())?;
    code.want_waves(if shape.tiles() == 1 { FEW_TOKENS } else { shape.waves().div_ceil(setup.gpu()?.simt.unit.simds) });
    {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let mut contraction = Contraction::new(&kernel)?;
        contraction.matrix = Matrix::new(c, coded::multiplied(spec.body, contraction.matrix.dtype));
        let contraction = contraction;
        let codes = Codes::of(&contraction.parts)?;
        let members = shape.cluster;
        if members > 1 {
            c.make_cluster(members);
        }
        let (group, member) = (c.group() / members, c.group() % members);
        let bound = |group: Int<'c>| group * shape.panels / shape.groups;
        let (begin, end) = (bound(group), bound(group + 1));
        let (weights, turn) = WeightPipeline::fill(&contraction, codes.as_ref(), shape, (begin, end), member);
        let coding = codes.as_ref().map(|codes| Coding::begin(&contraction, codes, shape, (begin, member)));
        let coded_rows = CodedRows::begin(&contraction, shape, member);
        let staging = match coded_rows {
            Some(_) => None,
            None => Some(Staging::begin(&contraction, shape, spec, member)?),
        };
        let digits = codes.as_ref().filter(|_| shape.digits);
        let digits = digits.map(|codes| Digits::begin(&contraction, shape, codes.encoding));
        if shape.copied || shape.shared_bytes() > 0 {
            c.barrier();
        }
        c.await_previous();
        match (&staging, &coded_rows) {
            (Some(staging), _) => staging.set_scale()?,
            (None, Some(rows)) => rows.stage()?,
            (None, None) => (),
        }
        let partials = match shape.one_pass {
            true => (weights.local, shape.ring_bytes()),
            false => (c.shared(shape.waves() * shape.sums_bytes(), 16), shape.sums_bytes()),
        };
        let (staging, coding, coded_rows) = (staging.as_ref(), coding.as_ref(), coded_rows.as_ref());
        let (weights, digits) = (&weights, digits.as_ref());
        let group = Group {
            contraction: &contraction,
            shape,
            weights,
            staging,
            coding,
            coded_rows,
            digits,
            partials,
            begin,
            end,
            member,
        };
        group.all(turn)?;
    }
    Ok((code, manifest::Kernel::simt(Tasks::Fixed(shape.groups * shape.cluster), shape.threads())))
}

/// The rows that a slot is multiplied with: where each tile of them begins for the lane, and what
/// was loaded for all panels.
struct Columns<'c> {
    tiles: Vec<Int<'c>>,
    held: Vec<[Int<'c>; 4]>,
}

impl<'c> Columns<'c> {
    fn new(walk: &Group<'_, '_, '_, 'c>, rows: Int<'c>) -> Columns<'c> {
        let (c, shape) = (walk.code(), walk.shape);
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
        Columns { held: all.map(|(step, tile)| columns.blocks(walk, step, tile)).collect(), ..columns }
    }

    /// The four runs of a step.
    fn blocks(&self, walk: &Group<'_, '_, '_, 'c>, step: usize, tile: usize) -> [Int<'c>; 4] {
        let (c, shape) = (walk.code(), walk.shape);
        let load = || c.load_blocks(self.tiles[tile] + step * 4 * shape.vec16_bytes());
        self.held.get(step * shape.tiles() + tile).copied().unwrap_or_else(load)
    }
}

/// One work-group's way along its panels.
struct Group<'w, 'k, 'a, 'c> {
    contraction: &'w Contraction<'k, 'a, 'c>,
    shape: Shape,
    weights: &'w WeightPipeline<'w, 'k, 'a, 'c>,
    /// The rows: of floats, or of codes.
    staging: Option<&'w Staging<'w, 'k, 'a, 'c>>,
    coded_rows: Option<&'w CodedRows<'w, 'k, 'a, 'c>>,
    digits: Option<&'w Digits<'w, 'k, 'a, 'c>>,
    /// Where the weight is stored as codes.
    coding: Option<&'w Coding<'w, 'c>>,
    /// Where the sums of the waves meet, and how many bytes from one wave's to the next.
    partials: (Ptr<'c>, usize),
    begin: Int<'c>,
    end: Int<'c>,
    member: Int<'c>,
}

impl<'k, 'a, 'c> Group<'_, 'k, 'a, 'c> {
    fn code(&self) -> &Gpu<'c> {
        self.contraction.matrix.c
    }

    /// The rows of floats, of which there are stretches.
    fn staging(&self) -> &Staging<'_, 'k, 'a, 'c> {
        self.staging.expect("rows of floats where they come in stretches")
    }

    /// Where a buffer of rows begins.
    fn buffer(&self, number: Int<'c>) -> Int<'c> {
        match (self.staging, self.coded_rows) {
            (Some(staging), _) => staging.buffer(number),
            (None, rows) => self.code().local_address(rows.expect("rows of codes, or of floats").local),
        }
    }

    /// What the sums of a token are to be scaled by, if they are.
    fn scale(&self, token: Int<'c>) -> Option<FloatValue<'c>> {
        let c = self.code();
        let scale = match (self.staging, self.coded_rows) {
            (Some(staging), _) => staging.scale(token),
            (None, rows) => rows.and_then(|rows| rows.scale(token)),
        };
        let Some(digits) = self.digits else { return scale };
        let unit = digits.scale(token);
        Some(scale.map_or(unit, |scale| c.b.build_float_mul(scale, unit, "").expect("floats")))
    }

    /// All passes. What is carried: the turn, the thread's parts of the next stretches, and its
    /// squares.
    fn all(&self, turn: Turn<'c>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        if let Some(copies) = self.staging.and_then(|staging| staging.copies.as_ref()) {
            copies.load_first();
            return self.only_pass(&turn.carried());
        }
        let mut carried: Vec<Any> = turn.carried().to_vec();
        if let Some(staging) = self.staging {
            let mut asked = Vec::new();
            for stretch in 0..=shape.ahead {
                asked.extend(staging.load(c.int(stretch % shape.stretches))?);
            }
            let rest = asked.split_off(staging.vectors());
            let squares = staging.store(c.int(0), c.int(0), &asked, c.number(0.0))?;
            if shape.stretches == 1 {
                staging.store_squares(squares);
            }
            carried.extend(rest.into_iter().chain([squares.into()]));
        }
        c.barrier();
        if let Some(digits) = self.digits {
            digits.make(self.buffer(c.int(0)));
            c.barrier();
        }
        if shape.one_pass {
            return self.only_pass(&carried);
        }
        let passes = (self.end - self.begin + (shape.pass() - 1)) / shape.pass();
        let mut result = Ok(());
        c.for_each((0, passes, 1), &carried, |pass, carried| {
            let made = self.pass(pass, carried);
            self.sync();
            made.unwrap_or_else(|e| {
                result = Err(e);
                carried.to_vec()
            })
        });
        result
    }

    /// The only pass.
    fn only_pass(&self, carried: &[Any<'c>]) -> Result<(), Diagnostic> {
        self.pass(self.code().int(0), carried)?;
        // Nobody leaves while others read its sums.
        if self.shape.cluster > 1 {
            self.code().leave_cluster();
        }
        Ok(())
    }

    /// One pass over the columns of the weight.
    fn pass(&self, pass: Int<'c>, carried: &[Any<'c>]) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let zero = c.number(0.0).into();
        let count = shape.together * shape.pieces * shape.tiles() * 4;
        let first = pass * shape.together;
        let begin: Vec<Any> = std::iter::repeat_n(zero, count).chain(carried.iter().copied()).collect();
        let mut result = Ok(());
        // As many stretches a turn as are on their way, so that what is on its way need not change
        // its registers.
        let turn = |stretch: Int<'c>, carried: &[Any<'c>]| {
            let mut carried = carried.to_vec();
            for i in 0..shape.ahead {
                let stretch = stretch + i;
                let number = pass * shape.stretches + stretch;
                let rows = self.buffer(number % 2);
                let made = self.stretch(first, stretch, rows, &carried[..count + CARRIED]);
                carried.splice(..count + CARRIED, made);
                let next = self.next(number + 1, i, &mut carried[count + CARRIED..]);
                result = std::mem::replace(&mut result, Ok(())).and(next);
                c.barrier();
            }
            carried
        };
        let copies = self.staging.and_then(|staging| staging.copies.as_ref());
        let carried = match (shape.stretches, copies) {
            (stretches, Some(copies)) => c.for_each((0, stretches, 1), &begin, |stretch, carried| {
                let made = self.stretch(first, stretch, copies.wait_full(stretch), carried);
                copies.release(stretch);
                made
            }),
            (1, None) => {
                let (products, rows) = begin.split_at(count + CARRIED);
                let products = self.stretch(first, c.int(0), self.buffer(c.int(0)), products);
                products.into_iter().chain(rows.iter().copied()).collect()
            }
            (stretches, None) => c.for_each((0, stretches, shape.ahead), &begin, turn),
        };
        result?;
        if shape.stretches > 1 && !shape.copied {
            self.staging().store_squares(carried[carried.len() - 1].into_float_value());
        }
        let panel = pass * shape.pass();
        self.reduce(panel, &carried[..count])?;
        Ok(carried[count..].to_vec())
    }

    /// Stores the next stretch, counted over all passes, which is the `i`-th on its way, and asks
    /// for another.
    fn next(&self, number: Int<'c>, i: usize, rows: &mut [Any<'c>]) -> Result<(), Diagnostic> {
        let (c, shape, vectors) = (self.code(), self.shape, self.staging().vectors());
        let squares = rows[rows.len() - 1].into_float_value();
        let words = &mut rows[i * vectors..(i + 1) * vectors];
        let sum = self.staging().store(number % shape.stretches, number % 2, words, squares)?;
        let later = number + shape.ahead;
        let later = if shape.one_pass { later } else { later % shape.stretches };
        words.copy_from_slice(&self.staging().load(later)?);
        // The first pass sees the whole row.
        let is_new = c.less(number, shape.stretches);
        rows[rows.len() - 1] = c.pick(is_new, sum, squares);
        Ok(())
    }

    /// The products of one stretch, whose rows begin there.
    fn stretch(&self, first: Int<'c>, stretch: Int<'c>, rows: Int<'c>, carried: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let count = match shape.slots_of_a_wave() {
            Some(slots) if slots.is_multiple_of(shape.stretch) => c.int(shape.stretch),
            _ => {
                let left = self.weights.slots - stretch * shape.stretch;
                c.smaller(c.larger(left, 0), shape.stretch)
            }
        };
        c.for_each((0, count, 1), carried, |slot, carried| {
            let along = slot * shape.along + self.weights.along;
            let rows = rows + along * (shape.steps * 4 * shape.vec16_bytes());
            let (sums, turn) = carried.split_at(carried.len() - CARRIED);
            let mut turn = Turn::of(c, turn);
            // Of few tokens the places are made anew for each panel: registers are for the panels
            // under way.
            let kept = (shape.tiles() > 1 && self.coding.is_none()).then(|| Columns::new(self, rows));
            let columns = (rows, kept.as_ref());
            let before = stretch * (shape.stretch * shape.along);
            let mut all = Vec::new();
            for (panel, sums) in sums.chunks(sums.len() / shape.together).enumerate() {
                let slot = |turn: Turn<'c>, sums: &[Any<'c>]| match self.coding.zip(shape.coded) {
                    None => self.slot(columns, turn, sums),
                    Some(coding) => {
                        let panel = (first + panel) * shape.across + c.wave_index() % shape.across;
                        let at = SlotAt { rows, panel, along: before + along };
                        match self.digits {
                            Some(digits) => self.slot_of_digits(coding, digits, at, turn, sums),
                            None => self.slot_of_codes(coding, at, turn, sums),
                        }
                    }
                };
                let sums = if shape.even() {
                    let sums = slot(turn, sums);
                    turn = self.weights.release(turn);
                    sums
                } else {
                    let is_there = c.less(first + panel, self.weights.panels);
                    let once = c.pick_int(is_there, 1, 0);
                    let carried: Vec<Any> = sums.iter().copied().chain(turn.carried()).collect();
                    let made = c.for_each((0, once, 1), &carried, |_, carried| {
                        let (sums, turn) = carried.split_at(carried.len() - CARRIED);
                        let turn = Turn::of(c, turn);
                        let sums = slot(turn, sums);
                        sums.into_iter().chain(self.weights.release(turn).carried()).collect()
                    });
                    let (sums, after) = made.split_at(made.len() - CARRIED);
                    turn = Turn::of(c, after);
                    sums.to_vec()
                };
                all.extend(sums);
            }
            all.extend(turn.carried());
            all
        })
    }

    /// The products of one slot.
    fn slot(&self, (rows, kept): (Int<'c>, Option<&Columns<'c>>), turn: Turn<'c>, sums: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, m, shape) = (self.code(), &self.contraction.matrix, self.shape);
        let from = self.weights.wait_full(turn) + c.lane_index() * VEC16;
        let made;
        let rows = match kept {
            Some(kept) => kept,
            None => {
                made = Columns::new(self, rows);
                &made
            }
        };
        let mut sums = sums.to_vec();
        for step in 0..shape.steps {
            let panel = |piece: usize, half: usize| {
                c.load_blocks(from + (piece * shape.piece_bytes() + step * STEP + half * STEP / 2))
            };
            let panels: Vec<[_; 2]> = (0..shape.pieces).map(|piece| [panel(piece, 0), panel(piece, 1)]).collect();
            for tile in 0..shape.tiles() {
                let b = rows.blocks(self, step, tile);
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
}
