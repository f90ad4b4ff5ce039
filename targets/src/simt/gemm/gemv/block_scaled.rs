//! Matrix instructions that take the scales of 32 columns of both operands. Codes stay as they are
//! stored. A step is one product of 128 columns; a lane has 32 of them, of one row, and their
//! scale.
use atomc_ir::arch::BlockScaled;

use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::gemm::codes::{Codes, StepWeight};
use crate::simt::gemm::contract::Contraction;
use crate::simt::gemm::tile::Tile;
use crate::simt::machine::fragment::{BlockScale, Fragment, Matrix, Place};

/// Bytes of a panel's scales for 32 columns.
const ROWS: usize = 16;
/// Scales of a row that a step takes.
const OF_STEP: usize = BlockScaled::SPAN / BlockScaled::COLUMNS;

/// The weight's scales, and the instructions that multiply.
pub struct ScaledProducts<'c> {
    intrinsic: &'static str,
    /// Where the lane's scales begin in each piece's panel.
    weights: Vec<Ptr<'c>>,
    /// Bits by which the scales of a step of a row are shifted so that the lane's comes first.
    shift: Int<'c>,
}

impl<'c> ScaledProducts<'c> {
    pub fn new(
        contraction: &Contraction<'_, '_, 'c>,
        codes: &Codes<'c>,
        instructions: BlockScaled,
        (tile, place): (&Tile<'c>, Place<'c>),
    ) -> ScaledProducts<'c> {
        let c = contraction.matrix.c;
        let panels = tile.weights_of(contraction, tile.panel()).into_iter();
        let weights = panels.map(|panel| c.at(codes.scales_of_row(c, panel, place.row), place.part * ROWS)).collect();
        ScaledProducts { intrinsic: instructions.small, weights, shift: place.part * 8 }
    }

    /// Loads the scale of the lane's codes of a step of a piece.
    pub fn load(&self, m: &Matrix<'_, 'c>, piece: usize, step: Int<'c>) -> Any<'c> {
        let c = m.c;
        c.byte_as_word(c.at(self.weights[piece], step * (OF_STEP * ROWS))).into()
    }

    /// Adds the products of one step of a piece with `columns`.
    pub fn add(
        &self,
        m: &Matrix<'_, 'c>,
        weight: &StepWeight<'c>,
        (columns, scales): (&[Fragment<'c>], &[Any<'c>]),
        sums: &mut [Vector<'c>],
    ) {
        let marks = weight.marks.as_ref().expect("codes come with their scale");
        let of_a = BlockScale { word: m.c.as_int(marks.scales[0]), byte: 0 };
        for ((b, &word), sum) in columns.iter().zip(scales).zip(sums) {
            let of_b = BlockScale { word: m.c.as_int(word).shifted_down(self.shift), byte: 0 };
            *sum = m.block_scaled(self.intrinsic, [&weight.rows, b], [of_a, of_b], *sum);
        }
    }
}
