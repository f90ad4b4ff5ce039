//! The weights of a target: what each is made of, and how it lies in memory.
use serde::{Deserialize, Serialize};

use super::{DType, WeightExpr};

/// One buffer of parameters in device memory, and how to make it from a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// For messages: the expression in one line, e.g. `concat(a.weight, b.weight)`.
    pub name: String,
    /// Type of the elements in the buffer, whatever the checkpoint has.
    pub dtype: DType,
    /// Logical shape: one axis or more.
    pub shape: Vec<usize>,
    /// How the elements lie in the buffer.
    pub layout: Layout,
    /// Size of the buffer, padding included.
    pub bytes: usize,
    /// How to make the values, in their logical shape.
    pub expr: WeightExpr,
    /// Whether zeros of e4m3 lose their sign: the bits of a negative one are no number to the
    /// target's instructions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsigned_zeros: bool,
}

impl Weight {
    /// The logical shape as a stack of matrices: how many, their rows, their columns. A vector is
    /// one row.
    pub fn matrices(&self) -> [usize; 3] {
        match self.shape[..] {
            [ref stack @ .., rows, cols] => [stack.iter().product(), rows, cols],
            _ => [1, 1, self.shape.iter().product()],
        }
    }
}

/// Where element (row, column) of a weight lies. Padding is zero. The matrices of a stack lie one
/// after the other, each with its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Layout {
    /// Row-major; `stride` elements from one row to the next. A vector is one row.
    Rows {
        /// Elements from one row to the next.
        stride: usize,
    },
    /// Panels of `width` rows; inside a panel, groups of `group` consecutive columns; inside a
    /// group, row by row: element (r, c) is at
    /// `((r / width) * (cols / group) + c / group) * width * group + (r % width) * group + c % group`.
    /// `rows` and `cols` are the padded sizes.
    Panels {
        /// Rows of a panel.
        width: usize,
        /// Columns that lie together in a row.
        group: usize,
        /// Rows with padding, a multiple of `width`.
        rows: usize,
        /// Columns with padding, a multiple of `group`.
        cols: usize,
    },
}
