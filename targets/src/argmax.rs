//! The largest elements that the lanes of a vector have seen, with their columns.
use inkwell::FloatPredicate;
use inkwell::values::FloatValue;

use crate::code::{Code, Int, Vector, carried};

/// For each lane the largest element so far, and the column of lane 0 in its vector.
#[derive(Clone, Copy)]
pub struct Argmax<'c> {
    values: Vector<'c>,
    firsts: Vector<'c>,
}

carried!(Argmax { values, firsts });

impl<'c> Argmax<'c> {
    /// The state before the first vector. A lane that never sees a value above minus infinity keeps
    /// its own first column. If that holds for all lanes, they are equal and column 0 is the
    /// result.
    pub fn none(c: &Code<'c>, first: Int<'c>) -> Argmax<'c> {
        Argmax { values: c.lit(f64::NEG_INFINITY), firsts: c.splat(short(c, first)) }
    }

    /// After the vector that begins at a column, beyond those before. NaN is never greater.
    pub fn or_vector(self, c: &Code<'c>, v: Vector<'c>, first: Int<'c>) -> Argmax<'c> {
        let greater = c.b.build_float_compare(FloatPredicate::OGT, v, self.values, "").expect("vectors of floats");
        Argmax {
            values: c.choose(greater, v, self.values),
            firsts: c.choose(greater, c.splat(short(c, first)), self.firsts),
        }
    }

    /// The largest of all lanes, and its column.
    pub fn of_lanes(self, c: &Code<'c>) -> (FloatValue<'c>, Int<'c>) {
        let columns = c.b.build_int_add(self.firsts, c.iota(), "").expect("vectors of integers");
        let lane = |i: usize| (c.lane(self.values, i).into_float_value(), c.as_int(c.lane(columns, i)));
        (1..c.lanes()).map(lane).fold(lane(0), |a, b| larger(c, a, b))
    }
}

/// The larger of two elements, with its column; of equals the first one.
pub fn larger<'c>(
    c: &Code<'c>,
    (a, a_col): (FloatValue<'c>, Int<'c>),
    (b, b_col): (FloatValue<'c>, Int<'c>),
) -> (FloatValue<'c>, Int<'c>) {
    let earlier = c.float(b).equals(a) & c.less(b_col, a_col);
    let takes_b = c.float(b).greater(a) | earlier;
    (c.pick(takes_b, b, a).into_float_value(), c.pick_int(takes_b, b_col, a_col))
}

/// A column in 32 bits, as results have it.
fn short<'c>(c: &Code<'c>, col: Int<'c>) -> Int<'c> {
    c.as_int(c.b.build_int_truncate_or_bit_cast(col.v, c.cx.i32_type(), "").expect("an integer"))
}
