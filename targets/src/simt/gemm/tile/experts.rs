//! Schedulers of tiles that experts make, of rows that chose them.
use atomc_ir::Diagnostic;
use inkwell::IntPredicate;

use super::{Matrix, Rows, Tile, TileSize};
use crate::code::{Int, Ptr, Vector};
use crate::row::unsupported;
use crate::simt::experts::Grouping;
use crate::simt::gemm::contract::Contraction;
use crate::simt::launch;
use crate::simt::machine::Gpu;
use crate::{KernelSpec, Tasks};

/// Rows for which a lane has the experts in flight together, when a wave searches the rows of one
/// expert.
const TOGETHER: usize = 4;

/// The blocks of experts' rows of a product, as an earlier kernel grouped them.
#[derive(Clone, Copy)]
pub struct ExpertBlocks<'c> {
    of: Grouping<'c>,
    from: Ptr<'c>,
    each: usize,
}

impl<'c> ExpertBlocks<'c> {
    pub fn new(contraction: &Contraction<'_, '_, 'c>, spec: &KernelSpec) -> Result<ExpertBlocks<'c>, Diagnostic> {
        let (of, from) = Grouping::of(contraction.matrix.c, &contraction.parts, spec)?;
        Ok(ExpertBlocks { of, from, each: contraction.parts.rows_of_x()? })
    }

    /// The most blocks of a step.
    pub fn most(&self, c: &Gpu<'c>) -> Int<'c> {
        self.of.blocks(c)
    }

    /// Whether a block, perhaps another for each lane, has an expert.
    pub fn has_expert(&self, c: &Gpu<'c>, block: Int<'c>) -> Int<'c> {
        c.less(0, self.of.expert((c, self.from), block) + 1)
    }

    /// The tile of a block and some panels from one on.
    pub fn tile(&self, c: &Gpu<'c>, block: Int<'c>, panel: Int<'c>) -> Tile<'c> {
        let (expert, list) = self.of.block((c, self.from), block);
        Tile::of_expert(panel, expert, list, self.of.tile, self.each)
    }

    /// Finishes the panels of a block's rows by `threads` threads, if the rows have no expert.
    pub fn finish_without(
        &self,
        contraction: &Contraction<'_, '_, 'c>,
        threads: usize,
        block: Int<'c>,
        panels: (Int<'c>, usize),
    ) -> Result<(), Diagnostic> {
        let c = contraction.matrix.c;
        let (expert, list) = self.of.block((c, self.from), block);
        let row = |i: Int<'c>| c.load_made_index(list, i);
        self.of.when_none(c, expert, || contraction.finish_zeros(threads, panels, self.of.tile, row))
    }
}

/// The experts that rows chose, in memory.
#[derive(Clone, Copy)]
pub struct Choices<'c> {
    from: Ptr<'c>,
    each: usize,
    /// The rows of the step. The rows after them, up to the size of the bucket, are never written.
    count: Int<'c>,
}

impl<'c> Choices<'c> {
    /// The choices of a product's rows, if they have some.
    pub fn of(contraction: &Contraction<'_, '_, 'c>, spec: &KernelSpec) -> Result<Option<Choices<'c>>, Diagnostic> {
        let parts = &contraction.parts;
        let Some(experts) = parts.experts() else { return Ok(None) };
        let count = launch::step_size(contraction.matrix.c, spec, false) * parts.choices();
        Ok(Some(Choices { from: parts.kernel.rows.index(experts)?, each: parts.rows_of_x()?, count }))
    }

    /// Finishes the panels of a choice without an expert, by `threads` threads. The epilogue's
    /// operands of an expert, such as a bias, do not exist for such a choice.
    pub fn finish_without(
        &self,
        contraction: &Contraction<'_, '_, 'c>,
        threads: usize,
        choice: Int<'c>,
        panels: (Int<'c>, usize),
    ) -> Result<(), Diagnostic> {
        let c = contraction.matrix.c;
        let has_none = c.less(self.expert(c, choice), 0) & c.less(choice, self.count);
        c.when(has_none, || contraction.finish_zeros(threads, panels, 1, |_| choice))
    }

    /// The expert of a choice of the step's; below zero if it has none.
    fn expert(&self, c: &Gpu<'c>, choice: Int<'c>) -> Int<'c> {
        c.uniform(c.load_made_index(self.from, choice))
    }

    /// The expert of any choice of a bucket: below zero also if no row of the step has made the
    /// choice.
    fn expert_in_step(&self, c: &Gpu<'c>, choice: Int<'c>) -> Int<'c> {
        c.pick_int(c.less(choice, self.count), self.expert(c, choice), c.int(0) - 1)
    }

    /// Whether the step has this row, as a sum over `choices` choices.
    pub fn has_row(&self, c: &Gpu<'c>, row: Int<'c>, choices: usize) -> Int<'c> {
        c.less(row * choices, self.count)
    }

    /// The tile of a choice and some panels from one on.
    pub fn tile(&self, c: &Gpu<'c>, choice: Int<'c>, panel: Int<'c>) -> Tile<'c> {
        Tile::of_choice(c, panel, self.expert_in_step(c, choice), choice, self.each)
    }
}

/// Tiles of blocks of experts' rows: a work-group for each, block after block.
pub struct Blocks<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    size: TileSize,
    blocks: ExpertBlocks<'c>,
}

impl<'s, 'k, 'a, 'c> Blocks<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        size: TileSize,
        spec: &KernelSpec,
    ) -> Result<Blocks<'s, 'k, 'a, 'c>, Diagnostic> {
        Ok(Blocks { contraction, size, blocks: ExpertBlocks::new(contraction, spec)? })
    }

    /// Runs `body` for the work-group's tile, if it has one, and returns the tasks. Rows that have
    /// no expert are finished here.
    pub fn with_tile(&self, body: impl FnOnce(Tile<'c>) -> Result<(), Diagnostic>) -> Result<Tasks, Diagnostic> {
        let (c, across, TileSize { panels, threads, .. }) =
            (self.contraction.matrix.c, self.size.across(self.contraction), self.size);
        let (panel, block) = (c.group() % across * panels, c.uniform(c.group() / across));
        c.when(c.less(block, self.blocks.most(c)), || {
            let rest = self.blocks.finish_without(self.contraction, threads, block, (panel, panels));
            let tile = self.blocks.tile(c, block, panel);
            rest.and(c.when(self.blocks.has_expert(c, block), || body(tile)))
        })?;
        Ok(self.blocks.of.tasks(self.contraction.parts.choices(), across))
    }
}

/// Tiles of experts' rows that were not grouped: work-groups for some panels and each row of the
/// result. The work-group of an expert's first row computes as many of its rows as a tile has
/// columns, and so on; the work-groups of the other rows have nothing to do. So an expert's weight
/// is read once, and only if a row has it.
pub struct Grouped<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    size: TileSize,
    /// Rows of a step of the bucket's size.
    most: usize,
    chosen: Choices<'c>,
}

impl<'s, 'k, 'a, 'c> Grouped<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        size: TileSize,
        spec: &KernelSpec,
    ) -> Result<Grouped<'s, 'k, 'a, 'c>, Diagnostic> {
        let chosen = Choices::of(contraction, spec)?.ok_or_else(|| unsupported("a grouped product without experts"))?;
        Ok(Grouped { contraction, size, most: spec.tokens * contraction.parts.choices(), chosen })
    }

    /// Runs `body` for the work-group's tile, if it has one, and returns the tasks. Rows that have
    /// no expert are finished here.
    pub fn with_tile(&self, body: impl FnOnce(Tile<'c>) -> Result<(), Diagnostic>) -> Result<Tasks, Diagnostic> {
        let c = self.contraction.matrix.c;
        let (across, TileSize { panels, columns, threads }) = (self.size.across(self.contraction), self.size);
        let (panel, row) = (c.group() % across * panels, c.uniform(c.group() / across));
        c.when(c.less(row, self.chosen.count), || {
            let expert = self.chosen.expert(c, row);
            let without =
                c.when(c.less(expert, 0), || self.contraction.finish_zeros(threads, (panel, panels), 1, |_| row));
            c.when(c.less(0, expert + 1), || {
                let list = c.local(columns * 4);
                let is_first = self.find(list, expert, row);
                let made = c.when(is_first, || {
                    c.barrier();
                    body(Tile::of_expert(panel, expert, list, columns, self.chosen.each))
                });
                without.and(made)
            })
        })?;
        Ok(Tasks::Choices { choices: self.contraction.parts.choices(), per: 1, times: across })
    }

    /// Lists the rows of an expert from a row on, as many as a tile has columns, and returns
    /// whether a tile begins with that row. Each wave looks at all rows, one a lane, and the first
    /// wave writes.
    fn find(&self, list: Ptr<'c>, expert: Int<'c>, row: Int<'c>) -> Int<'c> {
        let (c, columns) = (self.contraction.matrix.c, self.size.columns);
        let (lane, lanes) = (c.lane_index(), c.simt.wave);
        let is_first_wave = c.less(c.thread(), lanes);
        let is_asked = c.less(c.thread(), columns);
        c.when(is_asked, || c.store(c.at(list, c.thread() * 4), c.as_int(c.index.const_all_ones()), 4));
        // The number of rows seen with the expert, and the number of those before this one.
        let turn = |base: Int<'c>, has: Int<'c>, [seen, before]: [Int<'c>; 2]| {
            let at = base + lane;
            let is = c.compare(IntPredicate::EQ, has, expert) & c.less(at, self.chosen.count);
            let those = |end: Int<'c>| c.count_lanes(is, end);
            let before = before + those(c.smaller(c.larger(row - base, 0), lanes));
            let place = seen + those(lane) - before;
            let is_listed = is_first_wave & is & c.less(row, at + 1) & c.less(place, columns);
            c.when(is_listed, || c.store(c.at(list, place * 4), at, 4));
            [seen + those(c.int(lanes)), before]
        };
        let [_, before] = c.carry((0, self.most, TOGETHER * lanes), [c.int(0); 2], |base, found| {
            let bases = || (0..TOGETHER).map(|i| base + i * lanes);
            // All loads before the first use.
            let load = |base: Int<'c>| c.load_made_index(self.chosen.from, c.smaller(base + lane, self.most - 1));
            let loaded: Vec<_> = bases().map(load).collect();
            bases().zip(loaded).fold(found, |found, (base, has)| turn(base, has, found))
        });
        c.equal(before % columns, 0)
    }
}

/// Tiles of a token's row, which is the sum over its choices. Sums never leave a work-group. The
/// work-group multiplies the weights of all choices one after the other, or deals them out to its
/// waves.
pub struct Combined<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    tokens: Int<'c>,
    chosen: Choices<'c>,
}

impl<'s, 'k, 'a, 'c> Combined<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        spec: &KernelSpec,
    ) -> Result<Combined<'s, 'k, 'a, 'c>, Diagnostic> {
        let tokens = launch::step_size(contraction.matrix.c, spec, false);
        let chosen = Choices::of(contraction, spec)?.ok_or_else(|| unsupported("a sum of choices without experts"))?;
        Ok(Combined { contraction, tokens, chosen })
    }

    /// Adds up the sums of the tile of each choice, or of every `step`-th from a first one on, and
    /// finishes with the tile of the token. Returns the tasks.
    pub fn each(
        &self,
        zeros: &[Vector<'c>],
        (first, step): (Int<'c>, usize),
        sums: impl FnOnce(Tile<'c>) -> Result<Vec<Vector<'c>>, Diagnostic>,
        finish: impl FnOnce(Tile<'c>, &[Vector<'c>]) -> Result<(), Diagnostic>,
    ) -> Result<Tasks, Diagnostic> {
        let m = &self.contraction.matrix;
        let (c, parts) = (m.c, &self.contraction.parts);
        let (panels, choices) = (self.contraction.panels(), parts.choices());
        let (panel, token) = (c.group() % panels, c.uniform(c.group() / panels));
        let tile = |expert: Int<'c>, row: Int<'c>| {
            let (matrix, rows) = (Matrix::Expert(expert), Rows::One(row));
            Tile { panel, columns: 1, matrix, rows, each: self.chosen.each }
        };
        c.when(c.less(token, self.tokens), || {
            let all = c.try_carry((first, choices, step), zeros.to_vec(), |choice, all| {
                let row = token * choices + choice;
                let expert = self.chosen.expert(c, row);
                let sums = sums(tile(c.larger(expert, 0), row))?;
                let weight = parts.weight_of(token, choice)?;
                let weight = c.pick(c.less(expert, 0), c.number(0.0), weight);
                c.set_lanes(m.layout.results);
                Ok(all.into_iter().zip(sums).map(|(all, sum)| c.fma(sum, c.splat(weight), all)).collect())
            })?;
            finish(tile(c.int(0), token), &all)
        })?;
        Ok(Tasks::Tokens { per: 1, times: panels })
    }
}
