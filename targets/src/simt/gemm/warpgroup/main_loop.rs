//! The main loop: four waves multiply the K tiles of a tile as they arrive.
use atomc_ir::{DType, Diagnostic};

use super::Group;
use super::codes::{OfStretch, Scales};
use super::epilogue::Epilogue;
use super::shape::{BLOCK, CONSUMERS, EIGHT, GROUP_TOKENS, PRODUCTS, SCALED_ROWS};
use crate::code::{Any, Int};
use crate::simt::gemm::tile::Tile;
use crate::simt::machine::warpgroup::TileForm;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Computes a tile from the stages that begin with a turn.
    pub(super) fn consume(&self, tile: Tile<'c>, first: Int<'c>) -> Result<(), Diagnostic> {
        if self.shape.gathers { self.consume_half(tile, first) } else { self.consume_rows(tile, first) }
    }

    /// Consumes a tile that may have no rows for this group of waves. Then one wave releases the
    /// stages and the others wait for it: a wave that fell back would miss that a stage was filled
    /// twice.
    fn consume_half(&self, tile: Tile<'c>, first: Int<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        let (wave, group) = (c.wave_index() % 4, c.wave_index() / 4);
        let row = c.uniform(tile.row(c, group * GROUP_TOKENS));
        let has_rows = c.less(0, row + 1);
        c.when(!has_rows, || {
            c.when(c.equal(wave, 0), || {
                c.repeat(0, self.shape.count, 1, |i| {
                    self.stages.wait_full(c, first + i);
                    self.stages.release(c, self.is_leader(), first + i);
                });
            });
            c.meet_some(group + 1, CONSUMERS / 2);
        });
        c.when(has_rows, || self.consume_rows(tile, first))
    }

    fn consume_rows(&self, tile: Tile<'c>, first: Int<'c>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        if let Some(scales) = self.codes.as_ref().filter(|_| shape.operands.scales_each_tile()) {
            let sums = match shape.parts() {
                1 => self.scaled_sums(tile, first, scales)?,
                _ => self.scaled_sums_of_parts(tile, first, scales)?,
            };
            let finish = Epilogue::new(self, tile);
            let beside = finish.load_beside(0)?;
            return finish.rounds(&sums, beside);
        }
        let is_leader = self.is_leader();
        let zero = vec![c.zero_sum(self.multiplied()); shape.rows / 2];
        let sums = c.carry((0, shape.count, 1), zero, |i, sums| {
            let turn = first + i;
            self.wait_full(turn);
            let sums = c.mma_async(&sums, self.multiplied(), self.operands(turn), PRODUCTS);
            let is_over = is_leader & c.less(0, i);
            self.stages.release(c, is_over, first + (i - 1));
            sums
        });
        let finish = Epilogue::new(self, tile);
        let beside = finish.load_beside(0)?;
        let sums = c.sums_as_f32(c.mma_wait(&sums, 0));
        self.stages.release(c, is_leader, first + (shape.count - 1));
        finish.rounds(&sums, beside)
    }

    /// Waits until a turn's stage is visible to products.
    fn wait_full(&self, turn: Int<'c>) {
        let c = self.code();
        self.stages.wait_full(c, turn);
        if self.shape.gathers {
            c.show_to_products();
        }
    }

    fn is_leader(&self) -> Int<'c> {
        self.code().equal(self.code().thread() % 128, 0)
    }

    fn multiplied(&self) -> DType {
        self.shape.operands.dtype(self.contraction.matrix.dtype)
    }

    /// The places of the group's rows and of the weight in a turn's stage.
    fn operands(&self, turn: Int<'c>) -> ((Int<'c>, TileForm), (Int<'c>, TileForm)) {
        let [weight, _] = self.shape.stage();
        let rows = self.code().wave_index() / 4 * (GROUP_TOKENS * 128) + weight;
        let at = self.stages.at(turn);
        ((at + rows, TileForm::Swizzled), (at, TileForm::Blocks { along: BLOCK, down: EIGHT }))
    }

    /// The sums of a tile. Those of each K tile are scaled before they are added up: while the
    /// first of two K tiles is scaled, the second is multiplied. The assembler does not follow
    /// products that a loop's next turn waits for.
    fn scaled_sums(&self, tile: Tile<'c>, first: Int<'c>, scales: &Scales<'c>) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, count) = (self.code(), self.shape.count);
        let begin = |i: Int<'c>| self.begin(tile, (first, i), scales);
        let end = |i: Int<'c>, begun: &Begun<'c>, sums: &[Any<'c>], pending: usize| {
            let own = c.sums_as_f32(c.mma_wait(&begun.sums, pending));
            self.stages.release(c, self.is_leader(), first + i);
            scales.add_scaled(self, (&begun.scales, 0), &own, sums)
        };
        let none = vec![c.zero_sum(DType::F32); self.shape.rows / 2];
        let sums = c.try_carry((0, count / 2 * 2, 2), none, |i, sums| {
            let (one, other) = (begin(i)?, begin(i + 1)?);
            let sums = end(i, &one, &sums, 1);
            Ok::<_, Diagnostic>(end(i + 1, &other, &sums, 0))
        })?;
        if count.is_multiple_of(2) {
            return Ok(sums);
        }
        let last = c.int(count - 1);
        Ok(end(last, &begin(last)?, &sums, 0))
    }

    /// The sums of a tile of several parts. While a part's sums are scaled, the other group of
    /// waves multiplies.
    fn scaled_sums_of_parts(
        &self,
        tile: Tile<'c>,
        first: Int<'c>,
        scales: &Scales<'c>,
    ) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let each = shape.rows / 2 / shape.parts();
        let none = vec![c.zero_sum(DType::F32); shape.rows / 2];
        c.try_carry((0, shape.count, 1), none, |i, sums| {
            let turn = first + i;
            let of_stretch = scales.of_stretch(self, tile, i)?;
            self.wait_full(turn);
            let mut made = Vec::new();
            for (part, sums) in sums.chunks(each).enumerate() {
                let (rows, (at, form)) = self.operands(turn);
                let weight = (at + part * (SCALED_ROWS / 8 * EIGHT), form);
                let own = c.mma_async_new(each, self.multiplied(), (rows, weight), PRODUCTS);
                let own = c.sums_as_f32(c.mma_wait(&own, 0));
                if part + 1 == shape.parts() {
                    self.stages.release(c, self.is_leader(), turn);
                }
                made.extend(scales.add_scaled(self, (&of_stretch, part), &own, sums));
            }
            Ok(made)
        })
    }

    /// Begins the products of a K tile.
    fn begin(
        &self,
        tile: Tile<'c>,
        (first, i): (Int<'c>, Int<'c>),
        scales: &Scales<'c>,
    ) -> Result<Begun<'c>, Diagnostic> {
        let (c, turn) = (self.code(), first + i);
        let scales = scales.of_stretch(self, tile, i)?;
        self.wait_full(turn);
        let sums = c.mma_async_new(self.shape.rows / 2, self.multiplied(), self.operands(turn), PRODUCTS);
        Ok(Begun { sums, scales })
    }
}

/// Products of a K tile in flight, and the factors of their sums.
struct Begun<'c> {
    sums: Vec<Any<'c>>,
    scales: OfStretch<'c>,
}
