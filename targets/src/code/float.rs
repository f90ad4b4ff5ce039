//! Floats of the code under construction, with operators, as integers have them.
use std::ops::{Add, Deref, Div, Mul, Neg, Sub};

use inkwell::FloatPredicate;
use inkwell::builder::Builder;
use inkwell::types::IntType;
use inkwell::values::{BasicMetadataValueEnum, FloatValue};

use super::{Any, BUILT, Code, Int};

/// A number. An operator appends its instruction at the builder's position; constants take the type
/// of the other side.
#[derive(Clone, Copy, Debug)]
pub struct Float<'c> {
    pub v: FloatValue<'c>,
    b: &'c Builder<'c>,
}

impl<'c> Code<'c> {
    /// A value of LLVM's as a number with operators.
    pub fn float(&self, v: impl Into<Any<'c>>) -> Float<'c> {
        Float { v: v.into().into_float_value(), b: self.b }
    }
}

impl<'c> Float<'c> {
    /// Whether it is less; false for NaN.
    pub fn less(self, o: impl Into<FloatValue<'c>>) -> Int<'c> {
        self.compare(FloatPredicate::OLT, o)
    }

    /// Whether it is greater; false for NaN.
    pub fn greater(self, o: impl Into<FloatValue<'c>>) -> Int<'c> {
        self.compare(FloatPredicate::OGT, o)
    }

    /// Whether it is no less.
    pub fn at_least(self, o: impl Into<FloatValue<'c>>) -> Int<'c> {
        self.compare(FloatPredicate::OGE, o)
    }

    /// The whole part, as an integer of a type.
    pub fn whole(self, ty: IntType<'c>) -> Int<'c> {
        Int::new(self.b.build_float_to_signed_int(self.v, ty, "").expect(BUILT), self.b)
    }

    /// Whether both are the same number.
    pub fn equals(self, o: impl Into<FloatValue<'c>>) -> Int<'c> {
        self.compare(FloatPredicate::OEQ, o)
    }

    /// Whether the numbers differ, or one is NaN.
    pub fn differs(self, o: impl Into<FloatValue<'c>>) -> Int<'c> {
        self.compare(FloatPredicate::UNE, o)
    }

    fn compare(self, how: FloatPredicate, o: impl Into<FloatValue<'c>>) -> Int<'c> {
        Int::new(self.b.build_float_compare(how, self.v, o.into(), "").expect(BUILT), self.b)
    }
}

macro_rules! operators {
    ($($trait:ident $operator:ident $build:ident,)*) => { $(
        impl<'c, O: Into<FloatValue<'c>>> $trait<O> for Float<'c> {
            type Output = Float<'c>;
            fn $operator(self, o: O) -> Float<'c> {
                Float { v: self.b.$build(self.v, o.into(), "").expect(BUILT), ..self }
            }
        }
    )* };
}

operators! {
    Add add build_float_add,
    Sub sub build_float_sub,
    Mul mul build_float_mul,
    Div div build_float_div,
}

impl<'c> Neg for Float<'c> {
    type Output = Float<'c>;
    fn neg(self) -> Float<'c> {
        Float { v: self.b.build_float_neg(self.v, "").expect(BUILT), ..self }
    }
}

/// For the methods of LLVM's values, such as their type.
impl<'c> Deref for Float<'c> {
    type Target = FloatValue<'c>;
    fn deref(&self) -> &FloatValue<'c> {
        &self.v
    }
}

impl<'c> From<Float<'c>> for FloatValue<'c> {
    fn from(float: Float<'c>) -> FloatValue<'c> {
        float.v
    }
}

impl<'c> From<Float<'c>> for Any<'c> {
    fn from(float: Float<'c>) -> Any<'c> {
        float.v.into()
    }
}

impl<'c> From<Float<'c>> for BasicMetadataValueEnum<'c> {
    fn from(float: Float<'c>) -> BasicMetadataValueEnum<'c> {
        float.v.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_does_what_it_says() {
        let cx = crate::llvm::context();
        let (b, module) = (cx.create_builder(), cx.create_module("test"));
        let function = module.add_function("test", cx.void_type().fn_type(&[], false), None);
        b.position_at_end(cx.append_basic_block(function, ""));
        let number = |v: f64| cx.f32_type().const_float(v);
        let six = Float { v: number(6.0), b: &b };
        let known = |v: Float| v.v.get_constant().map(|(v, _)| v);
        let all = [six + number(2.0), six - number(2.0), six * six, six / number(4.0), -six];
        assert_eq!(all.map(known), [8.0, 4.0, 36.0, 1.5, -6.0].map(Some));
        let said = [six.less(number(7.0)), six.greater(number(7.0)), six.equals(six), six.differs(six)];
        assert_eq!(said.map(|v| v.get_zero_extended_constant()), [1, 0, 1, 0].map(Some));
    }
}
