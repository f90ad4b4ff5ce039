//! Integers of the code under construction, with operators: `row * pitch + 4 * feature` appends the
//! instructions.
use std::ops::{Add, BitAnd, BitOr, BitXor, Deref, Div, Mul, Not, Rem, Sub};

use inkwell::builder::Builder;
use inkwell::values::{BasicMetadataValueEnum, IntValue};

use super::{Any, BUILT, Code};

/// An index, an offset, a word or a condition. An operator appends its instruction at the builder's
/// position; constants take the type of the other side. Quotients and remainders are unsigned.
#[derive(Clone, Copy, Debug)]
pub struct Int<'c> {
    pub v: IntValue<'c>,
    pub(super) b: &'c Builder<'c>,
}

/// An integer of the code, or one that is known while the code is made.
pub trait ToInt<'c> {
    fn to_int(self, code: &Code<'c>) -> Int<'c>;
}

impl<'c> ToInt<'c> for Int<'c> {
    fn to_int(self, _: &Code<'c>) -> Int<'c> {
        self
    }
}

impl<'c> ToInt<'c> for usize {
    fn to_int(self, code: &Code<'c>) -> Int<'c> {
        code.int(self)
    }
}

impl<'c> Int<'c> {
    pub(super) fn new(v: IntValue<'c>, b: &'c Builder<'c>) -> Int<'c> {
        Int { v, b }
    }

    /// A number of the same type.
    pub fn constant(self, n: usize) -> Int<'c> {
        Int { v: self.v.get_type().const_int(n as u64, false), ..self }
    }

    /// The bits moved up.
    pub fn shift_left(self, bits: usize) -> Int<'c> {
        Int { v: self.b.build_left_shift(self.v, self.constant(bits).v, "").expect(BUILT), ..self }
    }

    /// The bits shifted right; the sign is copied if `signed`.
    pub fn shift_right(self, bits: usize, signed: bool) -> Int<'c> {
        Int { v: self.b.build_right_shift(self.v, self.constant(bits).v, signed, "").expect(BUILT), ..self }
    }

    /// The bits moved up by a number that is computed.
    pub fn shifted_up(self, bits: Int<'c>) -> Int<'c> {
        Int { v: self.b.build_left_shift(self.v, bits.v, "").expect(BUILT), ..self }
    }

    /// The bits moved down by a number that is computed, without a sign.
    pub fn shifted_down(self, bits: Int<'c>) -> Int<'c> {
        Int { v: self.b.build_right_shift(self.v, bits.v, false, "").expect(BUILT), ..self }
    }
}

macro_rules! operators {
    ($($trait:ident $operator:ident $build:ident,)*) => { $(
        impl<'c> $trait for Int<'c> {
            type Output = Int<'c>;
            fn $operator(self, o: Int<'c>) -> Int<'c> {
                Int { v: self.b.$build(self.v, o.v, "").expect(BUILT), ..self }
            }
        }

        impl<'c> $trait<usize> for Int<'c> {
            type Output = Int<'c>;
            fn $operator(self, o: usize) -> Int<'c> {
                self.$operator(self.constant(o))
            }
        }

        impl<'c> $trait<Int<'c>> for usize {
            type Output = Int<'c>;
            fn $operator(self, o: Int<'c>) -> Int<'c> {
                o.constant(self).$operator(o)
            }
        }
    )* };
}

operators! {
    Add add build_int_add,
    Sub sub build_int_sub,
    Mul mul build_int_mul,
    Div div build_int_unsigned_div,
    Rem rem build_int_unsigned_rem,
    BitAnd bitand build_and,
    BitOr bitor build_or,
    BitXor bitxor build_xor,
}

impl<'c> Not for Int<'c> {
    type Output = Int<'c>;
    fn not(self) -> Int<'c> {
        Int { v: self.b.build_not(self.v, "").expect(BUILT), ..self }
    }
}

/// Whether both are one value of LLVM's, which says nothing of two that are computed.
impl PartialEq for Int<'_> {
    fn eq(&self, o: &Self) -> bool {
        self.v == o.v
    }
}

/// For the methods of LLVM's values, such as their type.
impl<'c> Deref for Int<'c> {
    type Target = IntValue<'c>;
    fn deref(&self) -> &IntValue<'c> {
        &self.v
    }
}

impl<'c> From<Int<'c>> for Any<'c> {
    fn from(int: Int<'c>) -> Any<'c> {
        int.v.into()
    }
}

impl<'c> From<Int<'c>> for BasicMetadataValueEnum<'c> {
    fn from(int: Int<'c>) -> BasicMetadataValueEnum<'c> {
        int.v.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_does_what_it_says_and_known_numbers_take_the_other_type() {
        let cx = crate::llvm::context();
        let (b, module) = (cx.create_builder(), cx.create_module("test"));
        let function = module.add_function("test", cx.void_type().fn_type(&[], false), None);
        b.position_at_end(cx.append_basic_block(function, ""));
        let seven = Int::new(cx.i64_type().const_int(7, false), &b);
        let known = |v: Int| v.get_zero_extended_constant();
        assert_eq!([known(seven * 6 - 2), known(100 - seven / 2), known(3 + seven % 4)], [Some(40), Some(97), Some(6)]);
        assert_eq!([known(seven & 5), known(seven | 8), known(2 ^ seven)], [Some(5), Some(15), Some(5)]);
        assert_eq!([known(seven.shift_left(2)), known((!seven).shift_right(63, false))], [Some(28), Some(1)]);
        assert_eq!((3 + seven).get_type(), cx.i64_type());
    }
}
