//! The loaders: producers of the weight issue bulk copies, producers of rows load them through
//! registers and the prologue.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::Group;
use super::scheduler::Slot;
use super::shape::{PANELS, ROW, WEIGHT_PRODUCERS};
use crate::code::{Int, Vector, carried};
use crate::row::{At, Col};
use crate::simt::gemm::prologue::Prologue;
use crate::simt::machine::fragment::VEC16;

/// Most words of rows that a thread loads at once, and the number for threads with fewer registers.
const WORDS: [usize; 2] = [80, 40];
/// Most slots that one load of rows covers.
const TOGETHER: usize = 8;

/// The columns of a turn that a thread loaded, as bits: those of each part of the slot's columns
/// and each token, the scales of rows, and the norm's weights of each part.
struct Brought<'c> {
    rows: Vec<Vec<Vector<'c>>>,
    scales: Vec<FloatValue<'c>>,
    weights: Vec<Vector<'c>>,
}

carried!(Brought { rows, scales, weights });

impl<'c> Group<'_, '_, '_, 'c> {
    /// Issues the copies of a wave's share of all slots of the weight: a lane for each of its
    /// panels.
    pub(super) fn produce_weight(&self, wave: Int<'c>) {
        let (c, shape, ring) = (self.code(), self.shape, &self.weights);
        let (lane, policy, share) = (c.lane_index(), c.once(), shape.slot_panels() / (WEIGHT_PRODUCERS / 32));
        let asks = c.less(lane, share);
        let panel = wave * share + lane % share;
        let arms = c.equal(lane, 0) & c.equal(wave, 0);
        c.repeat(0, self.count(), 1, |turn| {
            let slot = self.slot(turn);
            let full = ring.full(turn);
            ring.wait_empty(c, turn);
            c.expect_bytes(arms, full, shape.slot_bytes());
            c.meet_in_wave();
            let team = if shape.teams == 1 { c.int(0) } else { panel / PANELS };
            let own = panel - team * PANELS;
            let tile = self.tile(slot.number, slot.choice, team);
            let of_result = tile.panel() + own % shape.each();
            let pieces = tile.weights(self.contraction, of_result);
            let from = (1..shape.pieces)
                .fold(pieces[0], |from, i| c.pick(c.less(own, i * shape.each()), from, pieces[i]).into_pointer_value());
            let chunk = shape.chunk();
            let from = c.at(from, slot.along * chunk);
            let to = ring.at(turn) + panel * chunk;
            c.copy_run(asks, (to, from, chunk), full, policy);
            let Some((layout, codes)) = shape.codes.zip(self.codes.as_ref()) else { return };
            if layout.scale_bytes() > 0 {
                let piece = self.contraction.first_panel(own / shape.each());
                let own = tile.weight_of(self.contraction, [self.contraction.made(of_result), piece]);
                let to = ring.at(turn) + (panel * layout.scale_bytes() + shape.slot_panels() * chunk);
                let groups = (layout.first_group(slot.along), layout.groups);
                codes.copy_marks(c, own, groups, to, |run| c.copy_run(asks, run, full, policy));
            }
        });
    }

    /// Loads the rows' columns of all slots. A thread loads 16 bytes of every n-th token, for each
    /// part of a slot's columns.
    pub(super) fn produce_rows(&self) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let (thread, together) = (c.thread() - shape.consumers(), shape.loaded_tokens());
        let (vec16, first) = (thread % shape.row_threads(), thread / shape.row_threads());
        let tokens: Vec<Int<'c>> = (0..shape.columns / together).map(|i| first + together * i).collect();
        let scales = if self.row_groups() { tokens.len() } else { 0 };
        let words = 4 * shape.row_parts() * (tokens.len() + self.prologue.norm.iter().len()) + scales;
        let most = WORDS[usize::from(shape.codes.is_some())];
        let together = (most / words).clamp(1, TOGETHER);
        let turns = |first: Int<'c>| -> Vec<Int<'c>> { (0..together).map(|i| first + i).collect() };
        let load = |turns: &[Int<'c>]| -> Result<Vec<Brought<'c>>, Diagnostic> {
            c.set_lanes(self.lanes());
            let last = self.count() - 1;
            turns.iter().map(|&turn| self.load(c.smaller(turn, last), vec16, &tokens)).collect()
        };
        let squares = vec![c.number(0.0); if self.prologue.norm.is_some() { tokens.len() } else { 0 }];
        let begin = (squares, load(&turns(c.int(0)))?);
        let all = c.try_carry((0, self.count(), together), begin, |turn, (mut squares, brought)| {
            // The next load is in flight while this one is stored.
            let next = load(&turns(turn + together))?;
            let turns = turns(turn);
            // Half of the stages at a time, so that products continue with the others.
            let batch = self.shape.stages / 2;
            for (turns, brought) in turns.chunks(batch).zip(brought.chunks(batch)) {
                for (&turn, brought) in turns.iter().zip(brought) {
                    self.store((turn, vec16), &tokens, brought, &mut squares)?;
                }
                c.show_to_products();
                c.meet_in_wave();
                for &turn in turns {
                    let arrives = c.equal(c.lane_index(), 0) & c.less(turn, self.count());
                    c.arrive(arrives, self.rows.full(turn));
                }
            }
            Ok((squares, next))
        });
        all.map(drop)
    }

    /// The thread's vectors of a turn's columns.
    fn load(&self, turn: Int<'c>, vec16: Int<'c>, tokens: &[Int<'c>]) -> Result<Brought<'c>, Diagnostic> {
        let (c, rows) = (self.code(), &self.contraction.parts.kernel.rows);
        let slot = self.slot(turn);
        let tile = self.tile(slot.number, slot.choice, c.int(0));
        let row = |token: Int<'c>| tile.source(c, tile.inside(c, token));
        let columns = self.columns(turn, vec16);
        let bits = |value, row, col| rows.bits(value, At { row, head: None, col });
        let of_part = |&col| tokens.iter().map(|&token| bits(self.prologue.from, row(token), col)).collect();
        let rows_of_x = columns.iter().map(of_part).collect::<Result<_, _>>()?;
        let groups = if self.row_groups() { tokens } else { &[] };
        let scale = |&token: &Int<'c>| Ok(rows.group_of(self.prologue.from, row(token), slot.along)?.scale());
        let scales = groups.iter().map(scale).collect::<Result<_, Diagnostic>>()?;
        let weights = self.prologue.norm.iter().flat_map(|norm| columns.iter().map(|&col| (norm.weights, col)));
        let weights = weights.map(|(weights, col)| bits(weights, c.int(0), col)).collect::<Result<_, _>>()?;
        Ok(Brought { rows: rows_of_x, scales, weights })
    }

    /// A thread's vectors in a row of a slot.
    fn vec16s(&self, vec16: Int<'c>) -> impl Iterator<Item = Int<'c>> {
        let shape = self.shape;
        (0..shape.row_parts()).map(move |part| vec16 + part * shape.row_threads())
    }

    /// The first columns of these in a turn's slot.
    fn columns(&self, turn: Int<'c>, vec16: Int<'c>) -> Vec<Col<'c>> {
        let first = self.slot(turn).along * self.shape.k_tile;
        self.vec16s(vec16).map(|vec16| Col::Var(first + vec16 * self.lanes())).collect()
    }

    /// Elements of a thread's vector of a row.
    fn lanes(&self) -> usize {
        VEC16 / (self.shape.row_bytes() / self.shape.k_tile)
    }

    /// Whether each K tile has scales of its own for the rows.
    pub(super) fn row_groups(&self) -> bool {
        self.shape.bytes.is_some_and(|bytes| !bytes.row_wise()[0])
    }

    /// Stores a turn's columns as products take them, without yet telling the consumers, and adds
    /// up squares. The last turn of a part of a tile stores the squares as well.
    fn store(
        &self,
        (turn, vec16): (Int<'c>, Int<'c>),
        tokens: &[Int<'c>],
        brought: &Brought<'c>,
        squares: &mut [FloatValue<'c>],
    ) -> Result<(), Diagnostic> {
        let (c, shape, ring) = (self.code(), self.shape, &self.rows);
        let is_there = c.less(turn, self.count());
        let made = self.made((turn, vec16), tokens, brought, squares)?;
        c.when(is_there, || {
            ring.wait_empty(c, turn);
            let places = self.vec16s(vec16).flat_map(|vec16| tokens.iter().map(move |&token| (token, vec16)));
            for ((token, vec16), bits) in places.zip(made) {
                if let Some(layout) = shape.codes {
                    self.store_for_codes(layout, ring.at(turn), (token, vec16), bits);
                    continue;
                }
                // Pieces of 16 bytes are swizzled.
                let piece = vec16 ^ (token % 8);
                let at = token * ROW + piece * VEC16;
                c.store(self.local(ring.at(turn) + at), bits, VEC16 as u32);
            }
            if self.row_groups() {
                self.store_scales((turn, vec16), tokens, &brought.scales);
            }
            if self.prologue.norm.is_some() {
                self.store_squares((turn, vec16), tokens, squares);
            }
        });
        Ok(())
    }

    /// A turn's vectors after the prologue, part by part. Their squares are added up.
    fn made(
        &self,
        (turn, vec16): (Int<'c>, Int<'c>),
        tokens: &[Int<'c>],
        brought: &Brought<'c>,
        squares: &mut [FloatValue<'c>],
    ) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let (c, dtype, prologue) = (self.code(), self.contraction.matrix.dtype, &self.prologue);
        let along = self.slot(turn).along;
        let columns = self.columns(turn, vec16);
        let all =
            brought.rows.iter().enumerate().flat_map(|(part, rows)| rows.iter().enumerate().map(move |at| (part, at)));
        let one = |(part, (i, &bits)): (usize, (usize, &Vector<'c>))| {
            c.set_lanes(self.lanes());
            if self.shape.bytes.is_some() {
                return Ok(bits);
            }
            let v = c.widen(bits, prologue.dtype);
            let Some(norm) = prologue.norm else {
                return Ok(if prologue.dtype == dtype { bits } else { c.narrow(v, dtype) });
            };
            let w = c.widen(brought.weights[part], norm.dtype);
            let before = if part > 0 {
                squares[i]
            } else {
                c.pick(c.equal(along, 0), c.number(0.0), squares[i]).into_float_value()
            };
            squares[i] = Prologue::add_squares(c, before, v);
            let rows = &self.contraction.parts.kernel.rows;
            rows.set_scale(norm.value, c.number(1.0));
            let at = At { row: tokens[i], head: None, col: columns[part] };
            Ok(c.narrow(prologue.normed(rows, norm, [v, w], at)?, dtype))
        };
        all.map(one).collect()
    }

    /// Stores the rows' scales of a turn's K tile.
    fn store_scales(&self, (turn, vec16): (Int<'c>, Int<'c>), tokens: &[Int<'c>], scales: &[FloatValue<'c>]) {
        let c = self.code();
        c.when(c.equal(vec16, 0), || {
            for (&token, &scale) in tokens.iter().zip(scales) {
                c.store(self.row_scale(turn, token), scale, 4);
            }
        });
    }

    /// Stores the squares of rows, if a turn's columns are the last ones of a part of a tile.
    fn store_squares(&self, (turn, vec16): (Int<'c>, Int<'c>), tokens: &[Int<'c>], squares: &[FloatValue<'c>]) {
        let (c, shape) = (self.code(), self.shape);
        let Slot { number, along, .. } = self.slot(turn);
        let part = self.nth_part(number);
        let ends = c.equal(turn + 1 - self.count(), 0);
        let ends = ends | c.equal(along, shape.length - 1);
        c.when(ends, || {
            let to = self.squares.at(part);
            self.squares.wait_empty(c, part);
            for (&token, &sum) in tokens.iter().zip(squares) {
                let add = |a, b| c.b.build_float_add(a, b, "").expect("floats");
                let neighbours: &[usize] = if shape.row_threads() > 8 { &[1, 2, 4, 8] } else { &[1, 2, 4] };
                let sum = c.across(sum, neighbours, add);
                c.when(c.equal(vec16, 0), || c.store(self.local(to + token * 4), sum, 4));
            }
            c.arrive(c.always(), self.squares.full(part));
        });
    }
}
