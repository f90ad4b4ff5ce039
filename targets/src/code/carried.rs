//! Values that loops carry from turn to turn, in the form in which their users have them.
use inkwell::values::FloatValue;

use super::codes::Zero;
use super::{Any, Code, Int, ToInt, Vector};

/// A value that a loop carries in registers.
pub trait Carried<'c>: Sized {
    /// Appends the registers that hold the value.
    fn registers(&self, all: &mut Vec<Any<'c>>);

    /// A value of the same form, in the next registers.
    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> Self;
}

/// A structure that is carried field by field, in this order.
macro_rules! carried {
    ($name:ident { $($field:ident),+ }) => {
        impl<'c> $crate::code::Carried<'c> for $name<'c> {
            fn registers(&self, all: &mut Vec<$crate::code::Any<'c>>) {
                $($crate::code::Carried::registers(&self.$field, all);)+
            }

            fn moved(&self, next: &mut dyn FnMut() -> $crate::code::Any<'c>) -> Self {
                $name { $($field: $crate::code::Carried::moved(&self.$field, next)),+ }
            }
        }
    };
}
pub(crate) use carried;

impl<'c> Carried<'c> for Any<'c> {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        all.push(*self);
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> Any<'c> {
        next()
    }
}

impl<'c> Carried<'c> for Vector<'c> {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        all.push((*self).into());
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> Vector<'c> {
        next().into_vector_value()
    }
}

impl<'c> Carried<'c> for FloatValue<'c> {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        all.push((*self).into());
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> FloatValue<'c> {
        next().into_float_value()
    }
}

impl<'c> Carried<'c> for Int<'c> {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        all.push(self.v.into());
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> Int<'c> {
        Int { v: next().into_int_value(), ..*self }
    }
}

impl<'c> Carried<'c> for Zero<'c> {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        self.0.registers(all);
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> Zero<'c> {
        Zero(self.0.moved(next))
    }
}

/// A number that is known while the code is made takes no register.
impl<'c> Carried<'c> for usize {
    fn registers(&self, _: &mut Vec<Any<'c>>) {}

    fn moved(&self, _: &mut dyn FnMut() -> Any<'c>) -> usize {
        *self
    }
}

impl<'c, T: Carried<'c>> Carried<'c> for Vec<T> {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        self.iter().for_each(|one| one.registers(all));
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> Vec<T> {
        self.iter().map(|one| one.moved(next)).collect()
    }
}

impl<'c, T: Carried<'c>> Carried<'c> for Option<T> {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        self.iter().for_each(|one| one.registers(all));
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> Option<T> {
        self.as_ref().map(|one| one.moved(next))
    }
}

impl<'c, T: Carried<'c>, const N: usize> Carried<'c> for [T; N] {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        self.iter().for_each(|one| one.registers(all));
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> [T; N] {
        std::array::from_fn(|i| self[i].moved(next))
    }
}

impl<'c, A: Carried<'c>, B: Carried<'c>> Carried<'c> for (A, B) {
    fn registers(&self, all: &mut Vec<Any<'c>>) {
        self.0.registers(all);
        self.1.registers(all);
    }

    fn moved(&self, next: &mut dyn FnMut() -> Any<'c>) -> (A, B) {
        let first = self.0.moved(next);
        (first, self.1.moved(next))
    }
}

fn registers<'c>(value: &impl Carried<'c>) -> Vec<Any<'c>> {
    let mut all = vec![];
    value.registers(&mut all);
    all
}

fn moved<'c, T: Carried<'c>>(like: &T, registers: &[Any<'c>]) -> T {
    let mut registers = registers.iter().copied();
    like.moved(&mut || registers.next().expect("as many registers as the value had"))
}

impl<'c> Code<'c> {
    /// `for i in (begin..end).step_by(step)`, with a value carried from turn to turn.
    pub fn carry<T: Carried<'c>>(
        &self,
        bounds: (impl ToInt<'c>, impl ToInt<'c>, usize),
        before: T,
        body: impl FnOnce(Int<'c>, T) -> T,
    ) -> T {
        let after = self.for_each(bounds, &registers(&before), |i, now| registers(&body(i, moved(&before, now))));
        moved(&before, &after)
    }

    /// The loop with a body that may fail to be built. The loop returns its error.
    pub fn try_carry<T: Carried<'c>, E>(
        &self,
        bounds: (impl ToInt<'c>, impl ToInt<'c>, usize),
        before: T,
        body: impl FnOnce(Int<'c>, T) -> Result<T, E>,
    ) -> Result<T, E> {
        let body = |i, now: &[Any<'c>]| body(i, moved(&before, now)).map(|after| registers(&after));
        let after = self.try_for_each(bounds, &registers(&before), body)?;
        Ok(moved(&before, &after))
    }

    /// The value that `change` makes if a condition holds, or the value as it was.
    pub fn carry_if<T: Carried<'c>>(&self, condition: Int<'c>, before: T, change: impl FnOnce(&T) -> T) -> T {
        let after = self.change_if(condition, &registers(&before), |_| registers(&change(&before)));
        moved(&before, &after)
    }
}
