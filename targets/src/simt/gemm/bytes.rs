//! Products of rows and weights that are both quantised to a byte, in the types that matrix
//! instructions take. Scales are applied to sums: to whole sums if a row has one scale, otherwise
//! to those of each K tile, which is a group.
use atomc_ir::{DType, Graph, Layout, Op};

use crate::contraction::{Encoding, has_heads, rows_of};
use crate::schedule::WhyNot;
use crate::simt::gemm::quantised::sums_exactly;

/// Most rows of a weight in a tile.
const ROWS: usize = 128;

/// A product of two operands of the same 8-bit type.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    pub dtype: DType,
    pub encoding: Encoding,
    /// Columns of a row of x that share a scale.
    pub of_rows: usize,
}

impl Bytes {
    pub fn of(body: &Graph) -> Option<Bytes> {
        let is_byte = |e: &Encoding| matches!(e.codes, DType::F8E4M3 | DType::I8) && e.zero.or(e.least).is_none();
        let encoding = Encoding::of(body).filter(|e| is_byte(e) && sums_exactly(e.codes, e.size[1]))?;
        // Heads have products of their own.
        let (x, ty) = rows_of(body).filter(|(_, ty)| ty.dtype == encoding.codes && !has_heads(body))?;
        match ty.layout {
            Layout::Scaled(of_rows) if matches!(body.op(x.node), Op::Input { .. }) => {
                Some(Bytes { dtype: ty.dtype, encoding, of_rows })
            }
            _ => None,
        }
    }

    /// Whether a row of x has one scale, and whether a row of the weight has one.
    pub fn row_wise(&self) -> [bool; 2] {
        [self.of_rows >= self.encoding.size[1], self.encoding.is_row_wise()]
    }

    /// Whether a row of either has several scales.
    pub fn grouped(&self) -> bool {
        self.row_wise() != [true; 2]
    }

    /// Refuses K tiles of `k_tile` columns for which this schedule has no products, and says why.
    pub fn check(&self, k_tile: usize) -> Result<(), WhyNot> {
        let refused = |is: bool, why: &str| self.encoding.refuse_if(is, why);
        if !self.grouped() {
            return Ok(());
        }
        let ([rows, cols], block) = (self.encoding.size, self.encoding.block);
        let groups = [self.of_rows, block.cols].into_iter().all(|group| group == k_tile || group >= cols);
        refused(!groups, &format!("K tiles of {k_tile} columns would have part of a group"))?;
        // A tile has one scale for each piece.
        let high = block.rows.is_multiple_of(ROWS) || block.rows >= rows || block.cols >= cols;
        refused(!high, &format!("tiles of {ROWS} rows would have several scales"))
    }
}
