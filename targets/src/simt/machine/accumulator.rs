//! Results of a tiled product as instructions make them: 16 rows by a block of columns, or squares of 32 by 32 where the chip has
//! instructions for that, which take half as many operands for the same work.
use atomc_ir::DType;
use atomc_ir::arch::{Product, Simt};

use crate::code::{Int, Ptr, Vector};
use crate::simt::machine::fragment::{Fragment, Matrix, Place, RUN};

/// The products of a wave, square by square.
#[derive(Clone, Copy)]
pub struct Squares<'a, 'c> {
    matrix: Matrix<'a, 'c>,
    place: Place<'c>,
    large: Option<Product>,
}

/// Rows that a lane holds of a square's column, of a large instruction's results: groups of so many.
const GROUP: usize = 4;

fn large(simt: &Simt, dtype: DType) -> Option<Product> {
    simt.large_products.iter().copied().find(|p| p.dtype == dtype)
}

/// Whether there are squares of 32 for a type.
pub fn are_large(simt: &Simt, dtype: DType) -> bool {
    large(simt, dtype).is_some()
}

/// Columns that a step of large squares contracts: a run of each lane.
pub fn large_span(simt: &Simt, dtype: DType) -> usize {
    simt.wave / 32 * RUN / dtype.size()
}

impl<'a, 'c> Squares<'a, 'c> {
    /// Squares as large as they are made.
    pub fn new(matrix: Matrix<'a, 'c>) -> Squares<'a, 'c> {
        Squares { large: large(matrix.c.simt, matrix.dtype), ..Squares::small(matrix) }
    }

    /// Squares of one panel.
    pub fn small(matrix: Matrix<'a, 'c>) -> Squares<'a, 'c> {
        Squares { matrix, place: matrix.place(), large: None }
    }

    /// Panels of the rows.
    pub fn side(&self) -> usize {
        if self.large.is_some() { 2 } else { 1 }
    }

    /// Columns of a block: a side's, or half as many.
    pub fn width(&self) -> usize {
        if self.large.is_some() { 32 } else { self.matrix.layout.columns }
    }

    /// Columns of both operands that a step contracts.
    pub fn span(&self) -> usize {
        let simt = self.matrix.c.simt;
        if self.large.is_some() { large_span(simt, self.matrix.dtype) } else { self.matrix.span() }
    }

    /// Bytes from one step to the next in a panel.
    pub fn step(&self) -> usize {
        self.span() / self.matrix.run() * 16 * RUN
    }

    /// Where the lane's part begins of a square's rows, whose panels are so many bytes apart.
    pub fn rows(&self, panel: usize) -> Int<'c> {
        self.along(panel, self.place.row)
    }

    pub fn columns(&self, panel: usize) -> Int<'c> {
        self.along(panel, self.place.column)
    }

    fn along(&self, panel: usize, row: Int<'c>) -> Int<'c> {
        let c = self.matrix.c;
        if self.large.is_none() {
            return self.matrix.in_panel(self.place, row);
        }
        let lane = c.lane_index();
        let (in_side, part) = (lane % 32 / 16, lane / 32);
        let first = in_side * panel + part * (16 * RUN);
        first + row * RUN
    }

    /// A step of a square's rows.
    pub fn load_rows(&self, p: Ptr<'c>) -> Fragment<'c> {
        if self.large.is_some() { vec![self.matrix.load_run(p)] } else { self.matrix.load_panel(p) }
    }

    /// A step of a block of columns.
    pub fn load_columns(&self, p: Ptr<'c>) -> Fragment<'c> {
        if self.large.is_some() { vec![self.matrix.load_run(p)] } else { self.matrix.load_columns(p) }
    }

    pub fn zero(&self) -> Vector<'c> {
        let results = if self.large.is_some() { 32 / 8 * GROUP } else { self.matrix.layout.results };
        self.matrix.c.cx.f32_type().vec_type(results as u32).const_zero()
    }

    /// `sums[j] + a * b[j]`.
    pub fn products(&self, a: &Fragment<'c>, b: &[Fragment<'c>], sums: &mut [Vector<'c>]) {
        match self.large {
            Some(product) => {
                let add = |(b, sums): (_, &mut Vector<'c>)| *sums = self.matrix.instructions(product, a, b, *sums);
                b.iter().zip(sums).for_each(add);
            }
            None => self.matrix.products(a, b, sums),
        }
    }

    /// How far apart the lanes are that share a column.
    pub fn sharing(&self) -> &'static [usize] {
        if self.large.is_some() { &[32] } else { self.matrix.sharing() }
    }

    /// Which part of a step's columns the lane holds, and which share of a block's results.
    pub fn share(&self) -> Int<'c> {
        let c = self.matrix.c;
        if self.large.is_some() { c.lane_index() / 32 } else { self.place.share }
    }

    /// The column of a block that the lane has results of.
    pub fn column(&self) -> Int<'c> {
        let c = self.matrix.c;
        if self.large.is_some() { c.lane_index() % 32 } else { self.place.column }
    }

    /// The lane's consecutive results in one of a square's panels, and the first one's row.
    pub fn results(&self, sums: Vector<'c>, panel: usize) -> Vec<(Int<'c>, Vector<'c>)> {
        let c = self.matrix.c;
        if self.large.is_none() {
            return vec![(self.place.results, sums)];
        }
        // The halves of a wave have groups of rows in turn.
        let group = |i: usize| {
            let row = 8 * i + c.lane_index() / 32 * GROUP;
            (row, c.part(sums, (2 * panel + i) * GROUP, GROUP))
        };
        vec![group(0), group(1)]
    }
}
