//! What products with the weights of experts need beside themselves.
pub mod group;

use atomc_ir::layout::Groups;

use crate::code::{Int, ToInt};
use crate::simt::machine::Gpu;

/// How the rows of this step are grouped, as [`Groups`] has it.
#[derive(Clone, Copy)]
pub struct Grouping<'c> {
    pub experts: usize,
    pub tile: usize,
    pub pairs: Int<'c>,
}

impl<'c> Grouping<'c> {
    /// The most blocks.
    pub fn blocks(&self, c: &Gpu<'c>) -> Int<'c> {
        (self.pairs + c.smaller(self.pairs, self.experts + 1) * (self.tile - 1)) / self.tile
    }

    /// Where the experts of blocks begin, and their pairs.
    pub fn parts(&self, c: &Gpu<'c>) -> [Int<'c>; 2] {
        let up = |v: Int<'c>| (v + (Groups::ALIGN - 1)) / Groups::ALIGN * Groups::ALIGN;
        let experts = up(self.pairs.to_int(c));
        [experts, experts + up(self.blocks(c))]
    }
}
