//! The accumulator of a tiled product, as instructions make it: tiles of 16 rows by a block of
//! columns, or of 32 by 32 where the chip has such instructions, which take half as many operands
//! for the same work.
use atomc_ir::DType;
use atomc_ir::arch::{BlockScaled, Product, ProductShape, Simt};

use crate::code::{Int, Ptr, Vector};
use crate::simt::machine::fragment::{BlockScale, Fragment, Matrix, Place, VEC16};

/// The products of a wave, tile by tile.
#[derive(Clone, Copy)]
pub struct Accumulator<'a, 'c> {
    matrix: Matrix<'a, 'c>,
    place: Place<'c>,
    /// The instruction for tiles of 32 by 32, if they are made by one.
    mfma_32x32: Option<Product>,
}

/// Rows in one group of those that a lane holds of a column of a tile of 32 by 32.
const GROUP: usize = 4;

/// Whether there is an instruction for tiles of 32 by 32 of a type.
pub fn has_mfma_32x32(simt: &Simt, dtype: DType) -> bool {
    simt.product_32x32(dtype).is_some()
}

/// Columns that a step of such tiles contracts: a vector of each lane, or as many as an instruction
/// takes.
pub fn mfma_32x32_span(simt: &Simt, dtype: DType) -> usize {
    simt.product_32x32(dtype).map_or(0, |product| span_32x32(simt, product))
}

fn span_32x32(simt: &Simt, product: Product) -> usize {
    simt.wave / 32 * product.elements.max(VEC16 * 8 / product.dtype.bits())
}

impl<'a, 'c> Accumulator<'a, 'c> {
    /// Tiles as large as instructions make them.
    pub fn new(matrix: Matrix<'a, 'c>) -> Accumulator<'a, 'c> {
        Accumulator { mfma_32x32: matrix.c.simt.product_32x32(matrix.dtype), ..Accumulator::small(matrix) }
    }

    /// Tiles of instructions that take scales of 32 columns.
    pub fn block_scaled(matrix: Matrix<'a, 'c>, instructions: BlockScaled) -> Accumulator<'a, 'c> {
        let (dtype, intrinsic) = (matrix.dtype, instructions.large);
        let product = Product { dtype, intrinsic, elements: BlockScaled::COLUMNS, shape: ProductShape::MfmaF8f6f4 };
        Accumulator { mfma_32x32: Some(product), ..Accumulator::small(matrix) }
    }

    /// Tiles of one panel.
    pub fn small(matrix: Matrix<'a, 'c>) -> Accumulator<'a, 'c> {
        Accumulator { matrix, place: matrix.place(), mfma_32x32: None }
    }

    /// Panels of the rows.
    pub fn side(&self) -> usize {
        if self.mfma_32x32.is_some() { 2 } else { 1 }
    }

    /// Columns of a block: a side's, or half as many.
    pub fn width(&self) -> usize {
        if self.mfma_32x32.is_some() { 32 } else { self.matrix.layout.columns }
    }

    /// Columns of both operands that a step contracts.
    pub fn span(&self) -> usize {
        match self.mfma_32x32 {
            Some(product) => span_32x32(self.matrix.c.simt, product),
            None => self.matrix.span(),
        }
    }

    /// Bytes from one step to the next in a panel.
    pub fn step(&self) -> usize {
        self.span() / self.matrix.vec16() * 16 * VEC16
    }

    /// The place of the lane's part of a tile's rows. Panels are `panel` bytes apart.
    pub fn row_offset(&self, panel: usize) -> Int<'c> {
        self.along(panel, self.place.row)
    }

    pub fn column_offset(&self, panel: usize) -> Int<'c> {
        self.along(panel, self.place.column)
    }

    fn along(&self, panel: usize, row: Int<'c>) -> Int<'c> {
        let c = self.matrix.c;
        if self.mfma_32x32.is_none() {
            return self.matrix.in_panel(self.place, row);
        }
        let lane = c.lane_index();
        let (in_side, part) = (lane % 32 / 16, lane / 32);
        let first = in_side * panel + part * (16 * VEC16);
        first + row * VEC16
    }

    /// A step of a tile's rows.
    pub fn load_rows(&self, p: Ptr<'c>) -> Fragment<'c> {
        if self.mfma_32x32.is_some() { self.load_32x32(p) } else { self.matrix.load_panel(p) }
    }

    /// A step of a block of columns.
    pub fn load_columns(&self, p: Ptr<'c>) -> Fragment<'c> {
        if self.mfma_32x32.is_some() { self.load_32x32(p) } else { self.matrix.load_columns(p) }
    }

    /// The lane's vectors of a step of 32 rows or columns, each next to that of the other half.
    fn load_32x32(&self, p: Ptr<'c>) -> Fragment<'c> {
        let c = self.matrix.c;
        let halves = c.simt.wave / 32;
        let vec16s = self.span() / (halves * self.matrix.vec16());
        (0..vec16s).map(|i| self.matrix.load_vec16(c.at(p, i * halves * 16 * VEC16))).collect()
    }

    pub fn zero(&self) -> Vector<'c> {
        self.matrix.zero_sums(if self.mfma_32x32.is_some() { 32 / 8 * GROUP } else { self.matrix.layout.results })
    }

    /// `sums[j] + a * b[j]`.
    pub fn products(&self, a: &Fragment<'c>, b: &[Fragment<'c>], sums: &mut [Vector<'c>]) {
        match self.mfma_32x32 {
            Some(product) => {
                let add = |(b, sums): (_, &mut Vector<'c>)| *sums = self.matrix.instructions(product, a, b, *sums);
                b.iter().zip(sums).for_each(add);
            }
            None => self.matrix.products(a, b, sums),
        }
    }

    /// `sums[j] + a * b[j]`; each lane has scales of its columns of `a` and of each `b`.
    pub fn scaled_products(
        &self,
        (a, of_a): (&Fragment<'c>, BlockScale<'c>),
        b: &[Fragment<'c>],
        of_b: &[BlockScale<'c>],
        sums: &mut [Vector<'c>],
    ) {
        let product = self.mfma_32x32.expect("instructions that take scales make tiles of 32 by 32");
        for ((b, &of_b), sums) in b.iter().zip(of_b).zip(sums) {
            *sums = self.matrix.block_scaled(product.intrinsic, [a, b], [of_a, of_b], *sums);
        }
    }

    /// How far apart the lanes are that share a column.
    pub fn sharing(&self) -> &'static [usize] {
        if self.mfma_32x32.is_some() { &[32] } else { self.matrix.sharing() }
    }

    /// Which part of a step's columns the lane holds, and which share of a block's results.
    pub fn share(&self) -> Int<'c> {
        let c = self.matrix.c;
        if self.mfma_32x32.is_some() { c.lane_index() / 32 } else { self.place.share }
    }

    /// The column of a block that the lane has results of.
    pub fn column(&self) -> Int<'c> {
        let c = self.matrix.c;
        if self.mfma_32x32.is_some() { c.lane_index() % 32 } else { self.place.column }
    }

    /// The lane's consecutive results in one of a tile's panels, and the first one's row.
    pub fn results(&self, sums: Vector<'c>, panel: usize) -> Vec<(Int<'c>, Vector<'c>)> {
        let c = self.matrix.c;
        if self.mfma_32x32.is_none() {
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
