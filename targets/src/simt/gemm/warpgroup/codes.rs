//! The operands: both floats, both quantised bytes, or rows of floats and a quantised weight that
//! the loader decodes.
//!
//! For bytes, the epilogue applies the scales if each row has one. If columns are in groups, a K
//! tile is a group, and its sums are scaled before they are added up: the machine's own sums of
//! e4m3 have fewer bits than f32, and so never grow beyond a group.
use atomc_ir::{DType, Diagnostic, Graph};
use inkwell::values::FloatValue;

use super::Group;
use super::shape::{GROUP_TOKENS, STRETCH};
use crate::code::{Any, Int, Vector};
use crate::contraction::Encoding;
use crate::schedule::WhyNot;
use crate::simt::gemm::bytes::Bytes;
use crate::simt::gemm::codes::{Codes, codes_of_vec16};
use crate::simt::gemm::codes_to_lds;
use crate::simt::gemm::contract::{Contraction, Sizes};
use crate::simt::gemm::tile::Tile;

/// How operands are multiplied.
#[derive(Clone, Copy, Debug)]
pub enum Operands {
    /// Both as they lie.
    Floats,
    /// Both as stored, quantised to a byte.
    Bytes(Bytes),
    /// Rows as stored, the weight decoded in local memory.
    Codes,
}

impl Operands {
    pub fn of(body: &Graph) -> Operands {
        match Bytes::of(body) {
            Some(bytes) => Operands::Bytes(bytes),
            None if Encoding::of(body).is_some() => Operands::Codes,
            None => Operands::Floats,
        }
    }

    /// The type of the products' operands, for a product that has floats of another.
    pub fn dtype(&self, of_floats: DType) -> DType {
        if let Operands::Bytes(bytes) = self { bytes.dtype } else { of_floats }
    }

    /// Whether sums are scaled with each K tile.
    pub fn scales_each_tile(&self) -> bool {
        matches!(self, Operands::Bytes(bytes) if bytes.grouped())
    }

    /// Refuses a body that is not made this way.
    pub fn check(&self, body: &Graph, padded_depth: usize) -> Result<(), WhyNot> {
        let Some(encoding) = Encoding::of(body) else { return Ok(()) };
        let refused = |is: bool, why: &str| encoding.refuse_if(is, why);
        if let Operands::Bytes(bytes) = self {
            return bytes.check(STRETCH);
        }
        let Sizes { dtype, plain, .. } = Sizes::of(body)?;
        refused(
            !plain || dtype.size() != 2,
            "only rows of 16-bit floats, or of the weight's own bytes, are multiplied",
        )?;
        let columns = STRETCH / dtype.size();
        let whole = padded_depth.is_multiple_of(columns) && columns.is_multiple_of(codes_of_vec16(encoding.codes));
        refused(!whole, "rows are not whole K tiles of 64 columns")?;
        codes_to_lds::check(&encoding, dtype)
    }
}

/// A quantised weight, and the columns of x for each scale, if rows are quantised too.
pub struct Scales<'c> {
    pub codes: Codes<'c>,
    of_rows: Option<usize>,
}

/// Scales of a stretch: of the lane's two tokens, and of features that share one, piece by piece.
pub struct OfStretch<'c> {
    tokens: [FloatValue<'c>; 2],
    features: Vec<FloatValue<'c>>,
}

impl<'c> Scales<'c> {
    /// The scales of a contraction, if its weight is quantised.
    pub fn new(operands: Operands, contraction: &Contraction<'_, '_, 'c>) -> Result<Option<Scales<'c>>, Diagnostic> {
        let of_rows = if let Operands::Bytes(bytes) = operands { Some(bytes.of_rows) } else { None };
        Ok(Codes::of(&contraction.parts)?.map(|codes| Scales { codes, of_rows }))
    }

    fn rows_have_one(&self) -> bool {
        self.of_rows.is_some_and(|columns| columns >= self.codes.encoding.size[1])
    }

    /// Scales that change nothing.
    pub fn none(&self, group: &Group<'_, '_, '_, 'c>) -> OfStretch<'c> {
        let one = group.code().number(1.0);
        OfStretch { tokens: [one; 2], features: vec![one; group.shape.rows / group.shape.scaled_features()] }
    }

    /// The scales of a K tile that is a group.
    pub(super) fn of_stretch(
        &self,
        group: &Group<'_, '_, '_, 'c>,
        tile: Tile<'c>,
        stretch: Int<'c>,
    ) -> Result<OfStretch<'c>, Diagnostic> {
        let (c, parts) = (group.code(), &group.contraction.parts);
        let mut scales = self.none(group);
        if self.of_rows.is_some() && !self.rows_have_one() {
            let wave = c.wave_index();
            let column = wave / 4 * GROUP_TOKENS + (wave % 4 * 16 + c.lane_index() / 4);
            for (i, scale) in scales.tokens.iter_mut().enumerate() {
                let row = c.smaller(tile.source(c, column + 8 * i), group.room - 1);
                *scale = parts.kernel.rows.group_of(parts.x, row, stretch)?.scale();
            }
        }
        if !self.codes.encoding.is_row_wise() {
            let one = |panel| c.lane(self.codes.scales(c, (panel, c.int(0)), 1, Some(stretch)), 0).into_float_value();
            let shape = group.shape;
            let firsts = (0..shape.features / shape.scaled_features()).map(|i| i * shape.scaled_features() / 16);
            let all: Vec<Vec<FloatValue>> = firsts
                .map(|first| tile.weights_of(group.contraction, tile.panel() + first).into_iter().map(one).collect())
                .collect();
            scales.features = (0..shape.pieces).flat_map(|piece| all.iter().map(move |of| of[piece])).collect();
        }
        Ok(scales)
    }

    /// Sums of a part of a tile in a stretch, scaled, and those before.
    pub(super) fn add_scaled(
        &self,
        group: &Group<'_, '_, '_, 'c>,
        (scales, part): (&OfStretch<'c>, usize),
        own: &[Any<'c>],
        sums: &[Any<'c>],
    ) -> Vec<Any<'c>> {
        let c = group.code();
        let of_part = scales.features.len() / group.shape.parts();
        let mul = |a: FloatValue<'c>, b: FloatValue<'c>| c.b.build_float_mul(a, b, "").expect("floats");
        let each = sums.len() / of_part;
        let factors: Vec<[FloatValue<'c>; 2]> = scales.features[part * of_part..][..of_part]
            .iter()
            .map(|&feature| scales.tokens.map(|token| mul(feature, token)))
            .collect();
        // Two features of a token, then those of the other.
        c.add_scaled(sums, own, |i| factors[i / each][i % 4 / 2])
    }

    /// The scales of some features, piece by piece, where a row of the weight has one.
    pub(super) fn of_features(
        &self,
        group: &Group<'_, '_, '_, 'c>,
        tile: Tile<'c>,
        col: Int<'c>,
        lanes: usize,
    ) -> Vec<Vector<'c>> {
        if !self.codes.encoding.is_row_wise() {
            return vec![];
        }
        let c = group.code();
        let panels = tile.weights_of(group.contraction, col / 16);
        panels.into_iter().map(|panel| self.codes.scales(c, (panel, col % 16), lanes, None)).collect()
    }

    /// Sums of a token as numbers.
    pub(super) fn finish(
        &self,
        group: &Group<'_, '_, '_, 'c>,
        token: Int<'c>,
        of_features: &[Vector<'c>],
        sums: Vec<Vector<'c>>,
    ) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let (c, parts) = (group.code(), &group.contraction.parts);
        let mut sums = sums;
        if self.rows_have_one() {
            let scale = parts.kernel.rows.scale(parts.x, c.smaller(token, group.room - 1))?;
            sums.iter_mut().for_each(|sum| *sum = c.fmul(*sum, c.splat(scale)));
        }
        sums.iter_mut().zip(of_features).for_each(|(sum, &scale)| *sum = c.fmul(*sum, scale));
        Ok(sums)
    }
}
