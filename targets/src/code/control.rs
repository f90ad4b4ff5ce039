//! Calls, loops and conditions.
use inkwell::intrinsics::Intrinsic;
use inkwell::types::BasicTypeEnum;
use inkwell::values::{BasicMetadataValueEnum, PhiValue};

use super::{Any, BUILT, Code, Int, ToInt};

impl<'c> Code<'c> {
    /// An intrinsic call.
    pub fn call(&self, name: &str, types: &[BasicTypeEnum<'c>], args: &[BasicMetadataValueEnum<'c>]) -> Any<'c> {
        self.call_maybe(name, types, args).unwrap_or_else(|| self.int(0).into())
    }

    fn call_maybe(
        &self,
        name: &str,
        types: &[BasicTypeEnum<'c>],
        args: &[BasicMetadataValueEnum<'c>],
    ) -> Option<Any<'c>> {
        let intrinsic = Intrinsic::find(name).unwrap_or_else(|| panic!("LLVM 22 has {name}"));
        let f = intrinsic.get_declaration(&self.module, types).unwrap_or_else(|| panic!("{name} takes these types"));
        self.b.build_call(f, args, "").expect(BUILT).try_as_basic_value().basic()
    }

    /// `for i in (begin..end).step_by(step)`, with values carried from turn to turn.
    pub fn for_each(
        &self,
        (begin, end, step): (impl ToInt<'c>, impl ToInt<'c>, usize),
        carried: &[Any<'c>],
        body: impl FnOnce(Int<'c>, &[Any<'c>]) -> Vec<Any<'c>>,
    ) -> Vec<Any<'c>> {
        let (begin, end) = (begin.to_int(self), end.to_int(self));
        let before = self.b.get_insert_block().expect("open");
        let [head, inside, after] = [0; 3].map(|_| self.cx.append_basic_block(self.function, ""));
        self.b.build_unconditional_branch(head).expect(BUILT);
        self.b.position_at_end(head);
        let i = self.b.build_phi(self.index, "").expect(BUILT);
        let phis: Vec<PhiValue> = carried.iter().map(|v| self.b.build_phi(v.get_type(), "").expect(BUILT)).collect();
        i.add_incoming(&[(&begin.v, before)]);
        for (phi, v) in phis.iter().zip(carried) {
            phi.add_incoming(&[(v, before)]);
        }
        let at = self.as_int(i.as_basic_value());
        self.b.build_conditional_branch(self.less(at, end).v, inside, after).expect(BUILT);
        self.b.position_at_end(inside);
        let values: Vec<Any> = phis.iter().map(|p| p.as_basic_value()).collect();
        let next = body(at, &values);
        let last = self.b.get_insert_block().expect("open");
        i.add_incoming(&[(&(at + step).v, last)]);
        for (phi, v) in phis.iter().zip(&next) {
            phi.add_incoming(&[(v, last)]);
        }
        self.b.build_unconditional_branch(head).expect(BUILT);
        self.b.position_at_end(after);
        values
    }

    /// The loop with a body that may fail to be built. The loop returns its error.
    pub fn try_for_each<E>(
        &self,
        bounds: (impl ToInt<'c>, impl ToInt<'c>, usize),
        carried: &[Any<'c>],
        body: impl FnOnce(Int<'c>, &[Any<'c>]) -> Result<Vec<Any<'c>>, E>,
    ) -> Result<Vec<Any<'c>>, E> {
        let mut result = Ok(());
        let values = self.for_each(bounds, carried, |i, values| {
            body(i, values).unwrap_or_else(|e| {
                result = Err(e);
                values.to_vec()
            })
        });
        result.map(|()| values)
    }

    /// A loop that carries nothing. Its body is built once. The builder's result is returned, which
    /// may be an error.
    pub fn repeat<R>(
        &self,
        begin: impl ToInt<'c>,
        end: impl ToInt<'c>,
        step: usize,
        body: impl FnOnce(Int<'c>) -> R,
    ) -> R {
        let mut built = None;
        self.for_each((begin, end, step), &[], |i, _| {
            built = Some(body(i));
            vec![]
        });
        built.expect("a body that was built")
    }

    /// Repeats `body` until it says that it is done, `most` times at most. Returns whether it was
    /// done before the last time, and what it made last. That follows from the number of turns,
    /// which each thread has: LLVM keeps a condition from within a loop in a mask with undefined
    /// bits.
    pub fn until<R>(&self, most: usize, body: impl FnOnce() -> (Int<'c>, R)) -> (Int<'c>, R) {
        let before = self.b.get_insert_block().expect("open");
        let [inside, after] = [0; 2].map(|_| self.cx.append_basic_block(self.function, ""));
        self.b.build_unconditional_branch(inside).expect(BUILT);
        self.b.position_at_end(inside);
        let turn = self.b.build_phi(self.index, "").expect(BUILT);
        turn.add_incoming(&[(&self.int(0).v, before)]);
        let (done, made) = body();
        let next = self.as_int(turn.as_basic_value()) + 1;
        turn.add_incoming(&[(&next.v, self.b.get_insert_block().expect("open"))]);
        let ends = done | !self.less(next, most);
        self.b.build_conditional_branch(ends.v, after, inside).expect(BUILT);
        self.b.position_at_end(after);
        (self.less(next, most - 1), made)
    }

    /// Emits `body` under a condition. The builder's result is returned.
    pub fn when<R>(&self, cond: Int<'c>, body: impl FnOnce() -> R) -> R {
        let [inside, after] = [0; 2].map(|_| self.cx.append_basic_block(self.function, ""));
        self.b.build_conditional_branch(cond.v, inside, after).expect(BUILT);
        self.b.position_at_end(inside);
        let built = body();
        self.b.build_unconditional_branch(after).expect(BUILT);
        self.b.position_at_end(after);
        built
    }

    /// Values changed by `change` if a condition holds, or unchanged.
    pub fn change_if(
        &self,
        condition: Int<'c>,
        values: &[Any<'c>],
        change: impl FnOnce(&[Any<'c>]) -> Vec<Any<'c>>,
    ) -> Vec<Any<'c>> {
        let before = self.b.get_insert_block().expect("open");
        let (changed, inside) = self.when(condition, || {
            let changed = change(values);
            (changed, self.b.get_insert_block().expect("open"))
        });
        let merge = |(old, new): (&Any<'c>, &Any<'c>)| {
            let phi = self.b.build_phi(old.get_type(), "").expect("a block's begin");
            phi.add_incoming(&[(old, before), (new, inside)]);
            phi.as_basic_value()
        };
        values.iter().zip(&changed).map(merge).collect()
    }
}
