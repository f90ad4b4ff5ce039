//! The loaders: producers of the weight issue bulk copies, producers of rows load them through
//! registers and the prologue.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::Group;
use super::scheduler::Slot;
use super::shape::{PANELS, ROW, WEIGHT_PRODUCERS};
use crate::code::{Any, Int};
use crate::row::{At, Col};
use crate::simt::machine::fragment::VEC16;

/// Most words of rows that a thread loads at once, and the number for threads with fewer registers.
const WORDS: [usize; 2] = [80, 40];
/// Most slots that one load of rows covers.
const TOGETHER: usize = 8;

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
            let Some((decoded, codes)) = shape.decoded.zip(self.codes.as_ref()) else { return };
            if decoded.scale_bytes() > 0 {
                let piece = self.contraction.first_panel(own / shape.each());
                let own = tile.weight_of(self.contraction, [self.contraction.made(of_result), piece]);
                let mut to = ring.at(turn) + (panel * decoded.scale_bytes() + shape.slot_panels() * chunk);
                for (from, of_group) in codes.runs(c, own, decoded.first_group(slot.along)) {
                    let bytes = of_group * decoded.groups;
                    c.copy_run(asks, (to, from, bytes), full, policy);
                    to = to + bytes;
                }
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
        let words = 4 * shape.row_parts() * (tokens.len() + self.norm.iter().len()) + scales;
        let most = WORDS[usize::from(shape.decoded.is_some())];
        let together = (most / words).clamp(1, TOGETHER);
        let turns = |first: Int<'c>| -> Vec<Int<'c>> { (0..together).map(|i| first + i).collect() };
        let none: Vec<Any> = vec![c.number(0.0).into(); if self.norm.is_some() { tokens.len() } else { 0 }];
        let count = none.len();
        let begin: Vec<Any> = none.into_iter().chain(self.load(&turns(c.int(0)), vec16, &tokens)?).collect();
        let mut result = Ok(());
        c.for_each((0, self.count(), together), &begin, |turn, carried| {
            let (squares, brought) = carried.split_at(count);
            // The next load is in flight while this one is stored.
            let next = self.load(&turns(turn + together), vec16, &tokens);
            let mut squares: Vec<FloatValue> = squares.iter().map(|v| v.into_float_value()).collect();
            let each = brought.len() / together;
            let (turns, words): (_, Vec<&[Any]>) = (turns(turn), brought.chunks(each).collect());
            // Half of the stages at a time, so that products continue with the others.
            let batch = self.shape.stages / 2;
            for (turns, words) in turns.chunks(batch).zip(words.chunks(batch)) {
                for (&turn, words) in turns.iter().zip(words) {
                    let stored = self.store((turn, vec16), &tokens, words, &mut squares);
                    result = std::mem::replace(&mut result, Ok(())).and(stored);
                }
                c.show_to_products();
                c.meet_in_wave();
                for &turn in turns {
                    let arrives = c.equal(c.lane_index(), 0) & c.less(turn, self.count());
                    c.arrive(arrives, self.rows.full(turn));
                }
            }
            let next = next.unwrap_or_else(|e| {
                result = Err(e);
                brought.to_vec()
            });
            squares.into_iter().map(Any::from).chain(next).collect()
        });
        result
    }

    /// The thread's vectors of some turns' columns, as bits. Each turn's are followed by those of
    /// the norm's weights.
    fn load(&self, turns: &[Int<'c>], vec16: Int<'c>, tokens: &[Int<'c>]) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, rows) = (self.code(), &self.contraction.parts.kernel.rows);
        c.set_lanes(self.lanes());
        let last = self.count() - 1;
        let mut all = Vec::new();
        for &turn in turns {
            let turn = c.smaller(turn, last);
            let slot = self.slot(turn);
            let tile = self.tile(slot.number, slot.choice, c.int(0));
            let row = |token: Int<'c>| tile.source(c, tile.inside(c, token));
            let columns = self.columns(turn, vec16);
            for &col in &columns {
                for &token in tokens {
                    all.push(rows.bits(self.from, At { row: row(token), head: None, col })?.into());
                }
            }
            if self.row_groups() {
                let scale = |&token: &Int<'c>| Ok(rows.group_of(self.from, row(token), slot.along)?.scale().into());
                all.extend(tokens.iter().map(scale).collect::<Result<Vec<Any>, Diagnostic>>()?);
            }
            if let Some(norm) = &self.norm {
                for &col in &columns {
                    all.push(rows.bits(norm.weights, At { row: c.int(0), head: None, col })?.into());
                }
            }
        }
        Ok(all)
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
        words: &[Any<'c>],
        squares: &mut [FloatValue<'c>],
    ) -> Result<(), Diagnostic> {
        let (c, shape, ring) = (self.code(), self.shape, &self.rows);
        let dtype = self.contraction.matrix.dtype;
        let is_there = c.less(turn, self.count());
        let along = self.slot(turn).along;
        let mut made = Vec::new();
        let columns = self.columns(turn, vec16);
        let count = tokens.len() * columns.len();
        for (at, bits) in words[..count].iter().enumerate() {
            let (part, i) = (at / tokens.len(), at % tokens.len());
            c.set_lanes(self.lanes());
            let bits = bits.into_vector_value();
            if shape.bytes.is_some() {
                made.push(bits);
                continue;
            }
            let v = c.widen(bits, self.dtype);
            let Some(norm) = &self.norm else {
                made.push(if self.dtype == dtype { bits } else { c.narrow(v, dtype) });
                continue;
            };
            let rows = &self.contraction.parts.kernel.rows;
            let w = c.widen(words[count + part].into_vector_value(), norm.dtype);
            let before = if part > 0 {
                squares[i]
            } else {
                c.pick(c.equal(along, 0), c.number(0.0), squares[i]).into_float_value()
            };
            squares[i] = c.b.build_float_add(before, c.sum(c.fmul(v, v)), "").expect("floats");
            rows.set_scale(norm.value, c.number(1.0));
            rows.bind(self.from, v);
            rows.bind(norm.weights, w);
            let scaled = rows.eval(norm.value, At { row: tokens[i], head: None, col: columns[part] });
            rows.unbind(self.from);
            rows.unbind(norm.weights);
            made.push(c.narrow(scaled?, dtype));
        }
        c.when(is_there, || {
            ring.wait_empty(c, turn);
            let places = self.vec16s(vec16).flat_map(|vec16| tokens.iter().map(move |&token| (token, vec16)));
            for ((token, vec16), &bits) in places.zip(&made) {
                if let Some(decoded) = shape.decoded {
                    self.store_for_decoded(decoded, ring.at(turn), (token, vec16), bits);
                    continue;
                }
                // Pieces of 16 bytes are swizzled.
                let piece = vec16 ^ (token % 8);
                let at = token * ROW + piece * VEC16;
                c.store(self.local(ring.at(turn) + at), bits, VEC16 as u32);
            }
            if self.row_groups() {
                self.store_scales((turn, vec16), tokens, &words[count..][..tokens.len()]);
            }
            if self.norm.is_some() {
                self.store_squares((turn, vec16), tokens, squares);
            }
        });
        Ok(())
    }

    /// Stores the rows' scales of a turn's K tile.
    fn store_scales(&self, (turn, vec16): (Int<'c>, Int<'c>), tokens: &[Int<'c>], scales: &[Any<'c>]) {
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
