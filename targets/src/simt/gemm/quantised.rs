//! Products of quantised rows and a quantised weight, as sums of quantised values.
//!
//! Values of 8 bits are multiplied as stored if the chip has an instruction for their type. Scales
//! of whole rows, of either operand, are applied in the epilogue. If scales change along K, each
//! group's partial sums are scaled as they are added up; without such an instruction the values are
//! then multiplied as bf16, which holds every quantised value.
//!
//! MX codes with scales for 32 columns use instructions that take the scales of both operands too.
use atomc_ir::arch::{BlockScaled, GpuArch, Isa, MatrixLayout, Simt};
use atomc_ir::{Block, DType, Graph, Layout, Op, TensorType};

use crate::contraction::{Encoding, has_heads, rows_of};
use crate::schedule::WhyNot;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Matrix, block_scaled_layout, layout_of};

/// The columns of a group are a multiple of this: the most columns that are summed before scaling.
pub const GROUP: usize = 128;
/// The columns of a row are a multiple of this: the columns that a wave of 64 lanes holds in
/// vectors of 16 rows.
pub const SPAN: usize = 64;
/// Up to this many columns, sums of i8 products stay below 2^31.
const EXACT: usize = 1 << 17;

/// Whether integer sums over `depth` columns are exact.
pub fn sums_exactly(dtype: DType, depth: usize) -> bool {
    dtype != DType::I8 || depth < EXACT
}

/// How such a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantised {
    /// The type of the products' operands.
    pub dtype: DType,
    /// Whether both operands have this type, so that they are multiplied as stored.
    pub as_stored: bool,
    /// Whether scales change along K.
    pub has_groups: bool,
    /// Columns of x that share a scale, if they are not all.
    pub row_group: Option<usize>,
    /// Whether another kernel has quantised the rows, so that they are read from memory.
    pub in_memory: bool,
    /// The instructions with scales for 32 columns of both operands, if they are used.
    pub block_scaled: Option<BlockScaled>,
}

impl Quantised {
    /// The types of a body's product, if it sums quantised values.
    pub fn of(body: &Graph, arch: GpuArch) -> Option<Quantised> {
        // Heads have products of their own.
        let (rows, x) = rows_of(body).filter(|_| !has_heads(body))?;
        let encoding = Encoding::of(body).filter(|encoding| encoding.zero.or(encoding.least).is_none())?;
        let group = match x.layout {
            Layout::Scaled(group) => group,
            Layout::Mx(group) => return Quantised::of_mx((x, group), encoding, arch),
            _ => return None,
        };
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
            block_scaled: None,
        };
        (fits && (as_stored || is_widened)).then_some(found)
    }

    /// The types for rows of MX codes and a weight of MX codes.
    fn of_mx((x, group): (&TensorType, usize), encoding: Encoding, arch: GpuArch) -> Option<Quantised> {
        let block = Block { rows: 1, cols: BlockScaled::COLUMNS };
        let alike = encoding.codes == x.dtype && encoding.scale == DType::E8M0 && encoding.block == block;
        let fits = group == BlockScaled::COLUMNS && encoding.size[1].is_multiple_of(BlockScaled::SPAN);
        let block_scaled = Some(arch.simt.block_scaled(x.dtype).filter(|_| alike && fits)?);
        let (dtype, in_memory) = (x.dtype, true);
        Some(Quantised { dtype, as_stored: true, has_groups: false, row_group: None, in_memory, block_scaled })
    }

    /// The type of both operands, if they are multiplied as stored.
    pub fn stored_as(&self) -> Option<DType> {
        self.as_stored.then_some(self.dtype)
    }

    /// How operands lie.
    pub fn layout(&self, simt: &Simt) -> MatrixLayout {
        match self.block_scaled {
            Some(_) => block_scaled_layout(simt),
            None => layout_of(simt, self.dtype),
        }
    }

    /// What multiplies.
    pub fn matrix<'a, 'c>(&self, c: &'a Gpu<'c>) -> Matrix<'a, 'c> {
        match self.block_scaled {
            Some(_) => Matrix::of_block_scaled(c, self.dtype),
            None => Matrix::new(c, self.dtype),
        }
    }

    /// Refuses rows that only instructions with scales of their own multiply, if these cannot be
    /// used.
    pub fn check(body: &Graph, arch: GpuArch) -> Result<(), WhyNot> {
        let is_made = rows_of(body).is_none_or(|(_, x)| !matches!(x.layout, Layout::Mx(_)))
            || Quantised::of(body, arch).is_some();
        WhyNot::unless(is_made, || "no instruction takes the scales of such rows and of the weight".into())
    }
}

/// Whether a matrix instruction takes rows and a weight of these types, and integer sums over
/// `depth` columns are exact.
fn is_taken(arch: GpuArch, [rows, weight]: [DType; 2], depth: usize) -> bool {
    rows == weight && rows.size() == 1 && Matrix::native(arch.simt, rows) && sums_exactly(rows, depth)
}
