//! The main loop: while a stretch is multiplied, the next is loaded into the other half of local
//! memory. With room for more, several are in flight (`stages`).
use inkwell::values::BasicValue;

use super::Group;
use super::block_scales::BlockScales;
use super::group_scales::{Scaling, StretchScales, Sums};
use super::loader::{Loaders, RowLoader};
use crate::code::{Int, Ptr, Vector};
use crate::simt::gemm::global_to_lds::mark;
use crate::simt::machine::fragment::{BlockScale, Fragment, VEC16};

/// An operand of a wave in a half of local memory: the address of the lane's part, the fragments of
/// a step, and the rows or columns of a fragment.
struct Half<'c> {
    half: usize,
    first: Ptr<'c>,
    count: usize,
    width: usize,
    is_rows: bool,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// The sums of the wave's part of the tile.
    pub(super) fn main_loop(&self, loaders: &Loaders<'_, 'c>) -> Vec<Vector<'c>> {
        let (c, shape) = (self.contraction.matrix.c, self.shape);
        let scaling = self.scaling();
        let scaling = scaling.as_ref();
        if let (RowLoader::Plain(loader), true) = (&loaders.rows, shape.is_staged()) {
            return self.staged_loop(loader, scaling);
        }
        let mut sums = self.zeros(scaling);
        if let Some(codes) = &loaders.codes {
            codes.put(self.half(0), &codes.load(self.first));
        }
        let first = self.load_rows(&loaders.rows, self.first, 0);
        self.put_rows(&loaders.rows, 0, &first);
        c.barrier();
        // Two stretches at a time, so that each half of local memory has its addresses. Parts of a
        // tile have even numbers of stretches.
        let pairs = (shape.count - 1) / 2;
        let end = if self.share.is_some() { self.count - 1 } else { c.int(1 + 2 * pairs) };
        if pairs > 0 {
            sums = c.carry((1, end, 2), sums, |stretch, mut sums| {
                let stretch = if self.share.is_none() { stretch } else { stretch + self.first };
                self.turn((loaders, scaling), stretch, 1, &mut sums);
                self.turn((loaders, scaling), stretch + 1, 0, &mut sums);
                sums
            });
        }
        let last = self.first + (self.count - 1);
        if shape.count > 1 + 2 * pairs {
            self.turn((loaders, scaling), last, 1, &mut sums);
        }
        self.multiply_stretch(scaling, (last, (shape.count - 1) % 2), &mut sums);
        self.add_rest(scaling, last, &mut sums);
        self.finished(sums.all)
    }

    /// Loads a stretch into one half while the previous one is multiplied in the other.
    fn turn(
        &self,
        (loaders, scaling): (&Loaders<'_, 'c>, Option<&Scaling<'_, 'c>>),
        stretch: Int<'c>,
        half: usize,
        sums: &mut Sums<'c>,
    ) {
        let c = self.contraction.matrix.c;
        let codes = loaders.codes.as_ref().map(|codes| (codes, codes.load(stretch)));
        let held = self.next_scales(scaling, (stretch, half), sums.held.as_ref());
        let next = self.load_rows(&loaders.rows, stretch, half);
        c.keep_order();
        self.multiply_stretch(scaling, (stretch - 1, 1 - half), sums);
        if let Some((codes, loaded)) = &codes {
            codes.put(self.half(half), loaded);
        }
        self.put_rows(&loaders.rows, half, &next);
        c.barrier();
        sums.held = held;
    }

    /// Multiplies the stretch in a half of local memory, by scales of 32 columns if there are some.
    pub(super) fn multiply(
        &self,
        half: usize,
        scales: Option<(&BlockScales<'c>, &StretchScales<'c>)>,
        sums: &mut [Vector<'c>],
    ) {
        let (c, steps) = (self.contraction.matrix.c, self.shape.stretch / self.accumulator.span());
        let [rows, columns] = self.operands(half);
        let all = |operand: &Half<'c>, step: usize| -> Vec<Fragment<'c>> {
            (0..operand.count).map(|i| self.fragment(operand, i, step)).collect()
        };
        let add = |[a, b]: [&[Fragment<'c>]; 2], step: usize, sums: &mut [Vector<'c>]| match scales {
            Some((from, of)) => self.add_scaled([a, b], self.scales_of_step(from, of, step), sums),
            None => self.add(a, b, 0, sums),
        };
        if self.shape.is_wide() {
            // The sums leave registers for the fragments of one step. The SIMD's other wave
            // multiplies while they are loaded.
            for step in 0..steps {
                add([&all(&rows, step), &all(&columns, step)], step, sums);
                c.keep_order();
            }
            return;
        }
        if self.accumulator.side() > 1 {
            // Fragments are half as many: those of the next step are loaded while one is
            // multiplied.
            let mut next = (all(&rows, 0), all(&columns, 0));
            for step in 1..=steps {
                let (a, b) = next;
                next = if step < steps { (all(&rows, step), all(&columns, step)) } else { (vec![], vec![]) };
                c.keep_order();
                add([&a, &b], step - 1, sums);
                c.keep_order();
            }
            return;
        }
        for step in 0..steps {
            let a = all(&rows, step);
            // Where every lane holds whole rows, the fragments of all blocks would fill its
            // registers.
            let together = if self.contraction.matrix.layout.replicated { 1 } else { columns.count };
            for first in (0..columns.count).step_by(together) {
                let b: Vec<_> = (first..first + together).map(|i| self.fragment(&columns, i, step)).collect();
                self.add(&a, &b, first, sums);
                c.keep_order();
            }
        }
    }

    /// Multiplies the stretch in a half of local memory. Each column block has one scale there.
    /// Sums are scaled one tile at a time, so that the other tiles keep their registers. The SIMD's
    /// other wave multiplies while this one scales.
    pub(super) fn multiply_groups(&self, half: usize, scales: &StretchScales<'c>, sums: &mut [Vector<'c>]) {
        let (c, steps) = (self.contraction.matrix.c, self.shape.stretch / self.accumulator.span());
        let [rows, columns] = self.operands(half);
        let along = |operand: &Half<'c>, i: usize| -> Vec<Fragment<'c>> {
            (0..steps).map(|step| self.fragment(operand, i, step)).collect()
        };
        let mut a = along(&rows, 0);
        for block in 0..columns.count {
            let b = along(&columns, block);
            for tile in 0..rows.count {
                let mut group = [self.accumulator.zero()];
                for (a, b) in a.iter().zip(&b) {
                    self.accumulator.products(a, std::slice::from_ref(b), &mut group);
                }
                c.keep_order();
                // Each block reads the rows again: the fragments of all blocks do not fit into
                // registers.
                if block + 1 < columns.count || tile + 1 < rows.count {
                    a = along(&rows, (tile + 1) % rows.count);
                }
                let i = tile * columns.count + block;
                self.add_scaled_sums(scales, (i, group[0]), &mut sums[i]);
                c.keep_order();
            }
        }
    }

    /// The wave's rows of the weight and its tokens in a half of local memory.
    fn operands(&self, half: usize) -> [Half<'c>; 2] {
        let (s, shape, c) = (&self.accumulator, self.shape, self.contraction.matrix.c);
        let (panel, [tokens, whole]) = (shape.vec16s * VEC16, shape.half());
        let operand = |along: usize, panels: usize, lane: Int<'c>, first: usize| {
            let inside = self.wave[along] * (panels * panel) + lane;
            c.at(c.at(self.local, inside), first)
        };
        let rows = operand(0, shape.panels, s.row_offset(panel), half * whole);
        let columns = operand(1, shape.blocks, s.column_offset(panel), half * whole + tokens);
        let (side, width) = (16 * s.side(), s.width());
        [
            Half { half, first: rows, count: shape.panels / s.side(), width: side, is_rows: true },
            Half { half, first: columns, count: self.blocks(), width, is_rows: false },
        ]
    }

    fn fragment(&self, operand: &Half<'c>, i: usize, step: usize) -> Fragment<'c> {
        let (s, c) = (&self.accumulator, self.contraction.matrix.c);
        let row = i * operand.width;
        let p = c.at(operand.first, row / 16 * self.shape.vec16s * VEC16 + row % 16 * VEC16 + step * s.step());
        let fragment = if operand.is_rows { s.load_rows(p) } else { s.load_columns(p) };
        fragment.iter().for_each(|vec16| mark(c, vec16.as_instruction_value().expect("a load"), operand.half));
        fragment
    }

    /// Adds the products of all rows with all columns, with a scale for each block of columns and
    /// each tile of rows.
    fn add_scaled(
        &self,
        [a, b]: [&[Fragment<'c>]; 2],
        [of_blocks, of_tiles]: [Vec<BlockScale<'c>>; 2],
        sums: &mut [Vector<'c>],
    ) {
        for ((a, of_a), sums) in a.iter().zip(of_tiles).zip(sums.chunks_mut(self.blocks())) {
            self.accumulator.scaled_products((a, of_a), b, &of_blocks, sums);
        }
    }

    /// Adds products of all rows with some blocks of columns, from the `first` on.
    fn add(&self, a: &[Fragment<'c>], b: &[Fragment<'c>], first: usize, sums: &mut [Vector<'c>]) {
        for (a, sums) in a.iter().zip(sums.chunks_mut(self.blocks())) {
            self.accumulator.products(a, b, &mut sums[first..first + b.len()]);
        }
    }
}
