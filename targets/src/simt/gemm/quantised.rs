//! Products of quantised rows and a quantised weight of 8 bits, which the chip's matrix instructions
//! take as they lie.
//!
//! Sums are those of quantised values. Scales of whole rows, of either operand, are left to the
//! epilogue. Where scales change along K, each group's partial sums are scaled as they are added up.
use atomc_ir::arch::GpuArch;
use atomc_ir::{DType, Graph, Layout, Op};

use crate::contraction::Encoding;
use crate::simt::machine::fragment::Matrix;

/// Columns whose sums are scaled together: a group, or a part of one.
pub const GROUP: usize = 128;
/// Columns that a row is a multiple of: those that a wave of 64 lanes holds in vectors of 16 rows.
pub const SPAN: usize = 64;
/// Columns of i8 whose sums are less than 2^31.
const EXACT: usize = 1 << 17;

/// How such a product is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantised {
    /// The type of both operands.
    pub dtype: DType,
    /// Whether scales change along K.
    pub has_groups: bool,
    /// Columns of x that share a scale, if these are not all.
    pub row_group: Option<usize>,
    /// Whether another kernel has quantised the rows.
    pub in_memory: bool,
}

impl Quantised {
    /// That of a body's product, if the chip multiplies its operands as they lie.
    pub fn of(body: &Graph, arch: GpuArch) -> Option<Quantised> {
        let product = body.ids().find(|&id| matches!(body.op(id), Op::Linear { .. } | Op::Grouped { .. }))?;
        let encoding = Encoding::of(body)?;
        let rows = body.operands(product)[0];
        let x = body.ty(rows).as_tensor()?;
        let Layout::Scaled(group) = x.layout else { return None };
        let (dtype, depth) = (encoding.codes, encoding.size[1]);
        let groups = [group, encoding.block.cols].map(|columns| if columns >= depth { 0 } else { columns });
        let takes = x.dtype == dtype && dtype.size() == 1 && Matrix::native(arch.simt, dtype);
        let fits = arch.memory.padded(depth).is_multiple_of(SPAN) && groups.iter().all(|g| g.is_multiple_of(GROUP));
        let is_exact = dtype != DType::I8 || depth < EXACT;
        let found = Quantised {
            dtype,
            has_groups: groups != [0, 0],
            row_group: (groups[0] > 0).then_some(group),
            in_memory: matches!(body.op(rows.node), Op::Input { .. }),
        };
        (takes && fits && is_exact && encoding.zero.is_none()).then_some(found)
    }
}
