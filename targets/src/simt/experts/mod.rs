//! The parts that products with the weights of experts need in addition to the products.
pub mod group;

use atomc_ir::layout::Groups;
use atomc_ir::{Diagnostic, Layout};
use inkwell::IntPredicate;

use crate::code::{Int, Ptr, ToInt};
use crate::contraction::Parts;
use crate::row::unsupported;
use crate::simt::launch;
use crate::simt::machine::Gpu;
use crate::{KernelSpec, Tasks};

/// How the rows of this step are grouped, as [`Groups`] has it.
#[derive(Clone, Copy)]
pub struct Grouping<'c> {
    pub experts: usize,
    pub tile: usize,
    pub pairs: Int<'c>,
}

impl<'c> Grouping<'c> {
    /// The grouping of a contraction with the weights of experts, and its place.
    pub fn of(
        c: &Gpu<'c>,
        parts: &Parts<'_, '_, 'c>,
        spec: &KernelSpec,
    ) -> Result<(Grouping<'c>, Ptr<'c>), Diagnostic> {
        let given = parts.experts().and_then(|v| Some((v, spec.body.ty(v).as_tensor()?.layout)));
        let Some((v, Layout::Grouped { experts, tile })) = given else {
            return Err(unsupported("a product of many rows whose experts are not grouped"));
        };
        let pairs = launch::step_size(c, spec, false) * parts.choices();
        Ok((Grouping { experts, tile, pairs }, parts.kernel.rows.index(v)?))
    }

    /// `times` work-groups for each block.
    pub fn tasks(&self, choices: usize, times: usize) -> Tasks {
        Tasks::Blocks { choices, experts: self.experts, tile: self.tile, times }
    }

    /// The expert of a block, below zero if it has none, and the list of its rows.
    pub fn block(&self, (c, from): (&Gpu<'c>, Ptr<'c>), block: Int<'c>) -> (Int<'c>, Ptr<'c>) {
        let [_, rows] = self.parts(c);
        (c.uniform(self.expert((c, from), block)), c.at(from, (rows + block * self.tile) * 4))
    }

    /// The expert of a block, perhaps another for each lane.
    pub fn expert(&self, (c, from): (&Gpu<'c>, Ptr<'c>), block: Int<'c>) -> Int<'c> {
        let [experts, _] = self.parts(c);
        c.load_made_index(from, experts + block)
    }

    /// Runs `body` if a block has rows without an expert.
    pub fn when_none<R>(&self, c: &Gpu<'c>, expert: Int<'c>, body: impl FnOnce() -> R) -> R {
        let none = c.as_int(c.index.const_int(Groups::NONE as i64 as u64, true));
        c.when(c.compare(IntPredicate::EQ, expert, none), body)
    }

    /// The most blocks.
    pub fn blocks(&self, c: &Gpu<'c>) -> Int<'c> {
        (self.pairs + c.smaller(self.pairs, self.experts + 1) * (self.tile - 1)) / self.tile
    }

    /// The beginnings of the blocks' experts, and of their pairs.
    pub fn parts(&self, c: &Gpu<'c>) -> [Int<'c>; 2] {
        let up = |v: Int<'c>| (v + (Groups::ALIGN - 1)) / Groups::ALIGN * Groups::ALIGN;
        let experts = up(self.pairs.to_int(c));
        [experts, experts + up(self.blocks(c))]
    }
}
