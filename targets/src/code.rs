//! A thin layer over the LLVM builder: integers, pointers, vectors of f32, loops.
//!
//! Every logical vector of a kernel has the same number of elements; LLVM splits it where registers
//! are shorter.
mod carried;
pub mod codes;
mod control;
mod elementary;
mod elements;
mod float;
mod int;
mod vector;

use std::cell::Cell;

use atomc_ir::Arch;
use atomc_ir::arch::Machine;
use inkwell::IntPredicate;
use inkwell::builder::Builder;
use inkwell::context::Context;
use inkwell::module::{Linkage, Module};
use inkwell::types::{BasicType, FunctionType, IntType};
use inkwell::values::{BasicValue, BasicValueEnum, FloatValue, FunctionValue, PointerValue, VectorValue};

use crate::llvm::Llvm;
pub(crate) use carried::{Carried, carried};
pub use int::{Int, ToInt};

pub type Ptr<'c> = PointerValue<'c>;
pub type Vector<'c> = VectorValue<'c>;
pub type Any<'c> = BasicValueEnum<'c>;

/// Building in memory that LLVM owns cannot fail once types are right, and wrong types are a bug
/// here.
pub const BUILT: &str = "operands have the types that the instruction wants";

/// One kernel function under construction, as far as all machines have it in common.
pub struct Code<'c> {
    pub cx: &'c Context,
    pub module: Module<'c>,
    pub b: &'c Builder<'c>,
    pub arch: &'c Arch,
    pub function: FunctionValue<'c>,
    /// Elements of a logical vector, for the code that is emitted next.
    lanes: Cell<usize>,
    /// The type of indices and offsets.
    pub index: IntType<'c>,
}

impl<'c> Code<'c> {
    /// A function of this type, open at its first block.
    pub fn open(
        llvm: Llvm<'c>,
        symbol: &str,
        arch: &'c Arch,
        ty: FunctionType<'c>,
        lanes: usize,
        index: IntType<'c>,
    ) -> Code<'c> {
        let Llvm { cx, b } = llvm;
        let module = cx.create_module(symbol);
        let function = module.add_function(symbol, ty, Some(Linkage::External));
        b.position_at_end(cx.append_basic_block(function, ""));
        Code { cx, module, b, arch, function, lanes: Cell::new(lanes), index }
    }

    pub fn lanes(&self) -> usize {
        self.lanes.get()
    }

    /// Sets the number of elements of the vectors that later calls emit.
    pub fn set_lanes(&self, lanes: usize) {
        self.lanes.set(lanes);
    }

    pub fn finish(self) -> Module<'c> {
        self.b.build_return(None).expect(BUILT);
        self.module
    }

    pub fn int(&self, n: usize) -> Int<'c> {
        Int::new(self.index.const_int(n as u64, false), self.b)
    }

    /// A value of LLVM's as an integer.
    pub fn as_int(&self, v: impl Into<Any<'c>>) -> Int<'c> {
        Int::new(v.into().into_int_value(), self.b)
    }

    /// An index with 64 bits, which is never negative.
    pub fn to_i64(&self, a: Int<'c>) -> Int<'c> {
        match a.get_type().get_bit_width() {
            64 => a,
            _ => self.as_int(self.b.build_int_z_extend(a.v, self.cx.i64_type(), "").expect(BUILT)),
        }
    }

    pub fn less(&self, a: impl ToInt<'c>, b: impl ToInt<'c>) -> Int<'c> {
        self.compare(IntPredicate::SLT, a, b)
    }

    pub fn equal(&self, a: Int<'c>, b: usize) -> Int<'c> {
        self.compare(IntPredicate::EQ, a, a.constant(b))
    }

    pub fn compare(&self, how: IntPredicate, a: impl ToInt<'c>, b: impl ToInt<'c>) -> Int<'c> {
        let (a, b) = (a.to_int(self), b.to_int(self));
        self.as_int(self.b.build_int_compare(how, a.v, b.v, "").expect(BUILT))
    }

    pub fn pick(&self, cond: Int<'c>, yes: impl Into<Any<'c>>, no: impl Into<Any<'c>>) -> Any<'c> {
        self.b.build_select(cond.v, yes.into(), no.into(), "").expect(BUILT)
    }

    pub fn pick_int(&self, cond: Int<'c>, yes: impl ToInt<'c>, no: impl ToInt<'c>) -> Int<'c> {
        self.as_int(self.pick(cond, yes.to_int(self), no.to_int(self)))
    }

    pub fn smaller(&self, a: impl ToInt<'c>, b: impl ToInt<'c>) -> Int<'c> {
        let (a, b) = (a.to_int(self), b.to_int(self));
        self.pick_int(self.less(a, b), a, b)
    }

    pub fn larger(&self, a: impl ToInt<'c>, b: impl ToInt<'c>) -> Int<'c> {
        let (a, b) = (a.to_int(self), b.to_int(self));
        self.pick_int(self.less(a, b), b, a)
    }

    /// A number of 64 bits that fits an index.
    pub fn to_index(&self, v: Int<'c>) -> Int<'c> {
        self.as_int(self.b.build_int_truncate_or_bit_cast(v.v, self.index, "").expect(BUILT))
    }

    /// The bits of a number up to its highest one.
    pub fn bits(&self, v: Int<'c>) -> Int<'c> {
        let no = self.cx.bool_type().const_zero();
        let above = self.as_int(self.call("llvm.ctlz", &[v.get_type().into()], &[v.into(), no.into()]));
        v.get_type().get_bit_width() as usize - above
    }

    /// The quotient and the remainder of numbers that are known when the kernel runs.
    pub fn divide(&self, a: Int<'c>, b: Int<'c>) -> [Int<'c>; 2] {
        let quotient = a / b;
        [quotient, a - quotient * b]
    }

    /// A condition that holds.
    pub fn always(&self) -> Int<'c> {
        self.as_int(self.cx.bool_type().const_all_ones())
    }

    /// A lane's offset from an address that all lanes share, in a loop with the counter `turn`,
    /// which is never negative. LLVM leaves the addition to the load only if it sees in the same
    /// block that the offset has 32 bits, so it is computed again in each turn.
    pub fn lane_offset(&self, offset: Int<'c>, turn: Int<'c>) -> Int<'c> {
        let sign = turn.shift_right(31, false);
        offset + sign
    }

    /// `p` plus `bytes`, which must not be negative where indices have 32 bits.
    pub fn at(&self, p: Ptr<'c>, bytes: impl ToInt<'c>) -> Ptr<'c> {
        let bytes = self.to_i64(bytes.to_int(self));
        // SAFETY: no inbounds promise is made; the address is plain arithmetic.
        unsafe { self.b.build_gep(self.cx.i8_type(), p, &[bytes.v], "") }.expect(BUILT)
    }

    pub fn load(&self, ty: impl BasicType<'c>, p: Ptr<'c>, align: u32) -> Any<'c> {
        let v = self.b.build_load(ty, p, "").expect(BUILT);
        v.as_instruction_value().expect("a load").set_alignment(align).expect("a power of two");
        v
    }

    pub fn store(&self, p: Ptr<'c>, v: impl Into<Any<'c>>, align: u32) {
        self.b.build_store(p, v.into()).expect(BUILT).set_alignment(align).expect("a power of two");
    }

    /// Loads a pointer to a buffer from `p`.
    pub fn load_ptr(&self, p: Ptr<'c>) -> Ptr<'c> {
        self.load_fixed(p.get_type(), p, 8).into_pointer_value()
    }

    /// Loads memory that does not change while the kernel runs.
    pub fn load_fixed(&self, ty: impl BasicType<'c>, p: Ptr<'c>, align: u32) -> Any<'c> {
        let v = self.load(ty, p, align);
        if let (Machine::Simt(_), Some(load)) = (&self.arch.machine, v.as_instruction_value()) {
            let kind = self.cx.get_kind_id("invariant.load");
            load.set_metadata(self.cx.metadata_node(&[]), kind).expect("a load of this context");
        }
        v
    }

    /// A byte of memory, which is never negative, as a word.
    pub fn byte_as_word(&self, p: Ptr<'c>) -> Int<'c> {
        let byte = self.load(self.cx.i8_type(), p, 1).into_int_value();
        self.as_int(self.b.build_int_z_extend(byte, self.cx.i32_type(), "").expect(BUILT))
    }

    pub fn load_i64(&self, p: Ptr<'c>) -> Int<'c> {
        self.as_int(self.load(self.cx.i64_type(), p, 8))
    }

    /// Element `i` of an i32 array that no kernel writes, as an index.
    pub fn load_index(&self, p: Ptr<'c>, i: impl ToInt<'c>) -> Int<'c> {
        let i = i.to_int(self);
        self.index_of(self.load_fixed(self.cx.i32_type(), self.at(p, i * 4), 4))
    }

    /// As [`Code::load_index`], of an array that a kernel before this one wrote.
    pub fn load_made_index(&self, p: Ptr<'c>, i: impl ToInt<'c>) -> Int<'c> {
        let i = i.to_int(self);
        self.index_of(self.load(self.cx.i32_type(), self.at(p, i * 4), 4))
    }

    /// An i32 as an index.
    fn index_of(&self, v: Any<'c>) -> Int<'c> {
        let v = self.as_int(v);
        if self.index == self.cx.i32_type() {
            return v;
        }
        self.as_int(self.b.build_int_s_extend(v.v, self.index, "").expect(BUILT))
    }

    /// Prefetches a cache line that will be read soon.
    pub fn prefetch(&self, p: Ptr<'c>) {
        let n = |n| self.cx.i32_type().const_int(n, false).into();
        // A read, with the highest locality, of data.
        self.call("llvm.prefetch", &[p.get_type().into()], &[p.into(), n(0), n(3), n(1)]);
    }

    /// The integer type of `bytes` bytes.
    pub fn bytes_type(&self, bytes: usize) -> IntType<'c> {
        let bits = std::num::NonZero::new(8 * bytes as u32).expect("at least one byte");
        self.cx.custom_width_int_type(bits).expect("at most a few registers")
    }

    pub fn number(&self, v: f64) -> FloatValue<'c> {
        self.cx.f32_type().const_float(v)
    }
}
