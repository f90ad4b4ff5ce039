//! Rows and weights that are both codes of a byte, multiplied as they are. Where a row of each has
//! one scale, the epilogue applies them. Where columns are in groups, a stretch is a group, and its
//! sums are scaled before they are added up: the machine's own sums of codes have fewer bits than
//! f32, and so never grow beyond a group.
use atomc_ir::{DType, Diagnostic, Graph, Layout, Op};
use inkwell::values::FloatValue;

use super::Group;
use super::scheduler::WorkTile;
use super::shape::{GROUP_TOKENS, STRETCH};
use crate::code::{Any, Int, Vector};
use crate::contraction::Encoding;
use crate::row::unsupported;
use crate::schedule::WhyNot;
use crate::simt::gemm::codes;
use crate::simt::gemm::contract::Contraction;

/// A product of codes with codes.
#[derive(Clone, Copy, Debug)]
pub struct Codes8 {
    pub dtype: DType,
    encoding: Encoding,
    /// Columns of a row of x that share a scale.
    of_rows: usize,
}

impl Codes8 {
    pub fn of(body: &Graph) -> Option<Codes8> {
        let encoding = Encoding::of(body).filter(|e| e.codes == DType::F8E4M3 && e.zero.is_none())?;
        let product = body.ids().find(|&id| body.op(id).is_contraction())?;
        let x = body.operands(product)[0];
        let ty = body.ty(x).as_tensor().filter(|t| t.dtype == DType::F8E4M3)?;
        match ty.layout {
            Layout::Scaled(of_rows) if matches!(body.op(x.node), Op::Input { .. }) => {
                Some(Codes8 { dtype: ty.dtype, encoding, of_rows })
            }
            _ => None,
        }
    }

    /// Whether a row of either has several scales.
    pub fn grouped(&self) -> bool {
        !self.encoding.is_row_wise() || self.of_rows < self.encoding.size[1]
    }

    /// Why a body is not made this way, if it is not.
    pub fn check(&self, body: &Graph) -> Result<(), WhyNot> {
        let one = body.ids().find(|&id| body.op(id).is_contraction());
        let plain = one.is_some_and(|id| matches!(body.op(id), Op::Linear { .. }));
        let refused = |is: bool, why: &str| if is { Err(self.encoding.refused(why)) } else { Ok(()) };
        refused(!plain, "experts and heads have products of their own")?;
        if !self.grouped() {
            return Ok(());
        }
        let ([rows, cols], block) = (self.encoding.size, self.encoding.block);
        let groups = [self.of_rows, block.cols].into_iter().all(|group| group == STRETCH || group >= cols);
        refused(!groups, "stretches of 128 columns would have part of a group")?;
        // A tile has one scale for each piece.
        let high = block.rows.is_multiple_of(STRETCH) || block.rows >= rows || block.cols >= cols;
        refused(!high, "tiles of 128 rows would have several scales")
    }
}

/// Where scales are.
pub struct Scales<'c> {
    pub is: Codes8,
    codes: codes::Codes<'c>,
}

/// Scales of a stretch: of the lane's two tokens, and of each piece.
pub struct OfStretch<'c> {
    tokens: [FloatValue<'c>; 2],
    pieces: Vec<FloatValue<'c>>,
}

impl<'c> Scales<'c> {
    pub fn new(is: Codes8, contraction: &Contraction<'_, '_, 'c>) -> Result<Scales<'c>, Diagnostic> {
        let codes = codes::Codes::of(&contraction.parts)?.ok_or_else(|| unsupported("codes without scales"))?;
        Ok(Scales { is, codes })
    }

    fn rows_have_one(&self) -> bool {
        self.is.of_rows >= self.is.encoding.size[1]
    }

    /// Scales that change nothing.
    pub fn none(&self, group: &Group<'_, '_, '_, 'c>) -> OfStretch<'c> {
        let one = group.code().number(1.0);
        OfStretch { tokens: [one; 2], pieces: vec![one; group.shape.pieces] }
    }

    /// Those of a stretch, where it is a group.
    pub(super) fn of_stretch(
        &self,
        group: &Group<'_, '_, '_, 'c>,
        tile: WorkTile<'c>,
        stretch: Int<'c>,
    ) -> Result<OfStretch<'c>, Diagnostic> {
        let (c, parts) = (group.code(), &group.contraction.parts);
        let mut scales = self.none(group);
        if !self.rows_have_one() {
            let wave = c.wave_index();
            let token = tile.token + wave / 4 * GROUP_TOKENS + (wave % 4 * 16 + c.lane_index() / 4);
            for (i, scale) in scales.tokens.iter_mut().enumerate() {
                let row = c.smaller(token + 8 * i, group.room - 1);
                *scale = parts.kernel.rows.group_of(parts.x, row, stretch)?.scale();
            }
        }
        if !self.codes.encoding.is_row_wise() {
            let panels = group.contraction.panels_of(tile.feature / 16, None);
            let one = |panel| c.lane(self.codes.scales(c, (panel, c.int(0)), 1, Some(stretch)), 0);
            scales.pieces = panels.into_iter().map(|panel| one(panel).into_float_value()).collect();
        }
        Ok(scales)
    }

    /// Sums of a stretch, scaled, and those before.
    pub(super) fn add_scaled(
        &self,
        group: &Group<'_, '_, '_, 'c>,
        scales: &OfStretch<'c>,
        own: &[Any<'c>],
        sums: &[Any<'c>],
    ) -> Vec<Any<'c>> {
        let c = group.code();
        let mul = |a: FloatValue<'c>, b: FloatValue<'c>| c.b.build_float_mul(a, b, "").expect("floats");
        let each = sums.len() / scales.pieces.len();
        let factors: Vec<[FloatValue<'c>; 2]> =
            scales.pieces.iter().map(|&piece| scales.tokens.map(|token| mul(piece, token))).collect();
        let one = |(i, (&own, &sum)): (usize, (&Any<'c>, &Any<'c>))| {
            // Two features of a token, then those of the other.
            let factor = factors[i / each][i % 4 / 2];
            let all = [own.into_float_value(), factor, sum.into_float_value()];
            c.call("llvm.fma", &[c.cx.f32_type().into()], &all.map(|v| v.into()))
        };
        own.iter().zip(sums).enumerate().map(one).collect()
    }

    /// The scales of some features, piece by piece, where a row of the weight has one.
    pub(super) fn of_features(&self, group: &Group<'_, '_, '_, 'c>, col: Int<'c>, lanes: usize) -> Vec<Vector<'c>> {
        if !self.codes.encoding.is_row_wise() {
            return vec![];
        }
        let c = group.code();
        let panels = group.contraction.panels_of(col / 16, None);
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
