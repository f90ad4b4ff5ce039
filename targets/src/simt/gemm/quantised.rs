//! Products of quantised rows and a quantised weight, as sums of quantised values.
//!
//! Values of 8 bits are multiplied as they lie where the chip has an instruction for their type.
//! Scales of whole rows, of either operand, are left to the epilogue. Where scales change along K,
//! each group's partial sums are scaled as they are added up; there bf16, which holds every
//! quantised value, serves chips without such an instruction.
use atomc_ir::arch::{GpuArch, Isa};
use atomc_ir::{DType, Graph, Layout, Op};

use crate::contraction::Encoding;
use crate::simt::machine::fragment::Matrix;

/// Columns that groups have a multiple of: the most whose sums are scaled together.
pub const GROUP: usize = 128;
/// Columns that a row is a multiple of: those that a wave of 64 lanes holds in vectors of 16 rows.
pub const SPAN: usize = 64;
/// Columns of i8 whose sums are less than 2^31.
const EXACT: usize = 1 << 17;

/// Whether sums of so many columns are exact where they are integers.
pub fn sums_exactly(dtype: DType, depth: usize) -> bool {
    dtype != DType::I8 || depth < EXACT
}

/// How such a product is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantised {
    /// The type of numbers that are multiplied.
    pub dtype: DType,
    /// Whether this is that of both operands, so that they are multiplied as they lie.
    pub as_stored: bool,
    /// Whether scales change along K.
    pub has_groups: bool,
    /// Columns of x that share a scale, if these are not all.
    pub row_group: Option<usize>,
    /// Whether another kernel has quantised the rows, so that they are read as they lie.
    pub in_memory: bool,
}

impl Quantised {
    /// That of a body's product, if its sums are those of quantised values.
    pub fn of(body: &Graph, arch: GpuArch) -> Option<Quantised> {
        let product = body.ids().find(|&id| matches!(body.op(id), Op::Linear { .. } | Op::Grouped { .. }))?;
        let encoding = Encoding::of(body).filter(|encoding| encoding.zero.is_none())?;
        let rows = body.operands(product)[0];
        let x = body.ty(rows).as_tensor()?;
        let Layout::Scaled(group) = x.layout else { return None };
        let depth = encoding.size[1];
        let groups = [group, encoding.block.cols].map(|columns| if columns >= depth { 0 } else { columns });
        let fits = arch.memory.padded(depth).is_multiple_of(SPAN) && groups.iter().all(|g| g.is_multiple_of(GROUP));
        let has_groups = groups != [0, 0];
        let as_stored = is_taken(arch, [x.dtype, encoding.codes], depth);
        let is_widened = has_groups && arch.simt.isa == Isa::Amdgcn;
        let found = Quantised {
            dtype: if as_stored { x.dtype } else { DType::BF16 },
            as_stored,
            has_groups,
            row_group: (groups[0] > 0).then_some(group),
            in_memory: as_stored && matches!(body.op(rows.node), Op::Input { .. }),
        };
        (fits && (as_stored || is_widened)).then_some(found)
    }
}

/// Whether an instruction multiplies rows and a weight of these types, and sums of so many columns
/// are exact where they are integers.
fn is_taken(arch: GpuArch, [rows, weight]: [DType; 2], depth: usize) -> bool {
    rows == weight && rows.size() == 1 && Matrix::native(arch.simt, rows) && sums_exactly(rows, depth)
}
