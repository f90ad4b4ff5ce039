//! A thin layer over the LLVM builder: integers, pointers, vectors of f32, loops.
//!
//! Every logical vector of a kernel has the same number of elements; LLVM splits it where registers are shorter.
mod int;

use std::cell::Cell;

use atomc_ir::arch::Machine;
use atomc_ir::{Arch, DType};
use inkwell::builder::Builder;
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::{Linkage, Module};
use inkwell::types::{BasicType, BasicTypeEnum, FunctionType, IntType, VectorType};
use inkwell::values::{
    BasicMetadataValueEnum, BasicValue, BasicValueEnum, FloatValue, FunctionValue, PhiValue, PointerValue, VectorValue,
};
use inkwell::{FloatPredicate, IntPredicate};

use crate::llvm::Llvm;
pub use int::{Int, ToInt};

pub type Ptr<'c> = PointerValue<'c>;
pub type Vector<'c> = VectorValue<'c>;
pub type Any<'c> = BasicValueEnum<'c>;

/// What the exponents of f32 are above those of `f8e4m3`.
const F8_EXPONENT: u64 = 120;

/// Building in memory that LLVM owns cannot fail once types are right, and wrong types are a bug here.
const BUILT: &str = "operands have the types that the instruction wants";

/// One kernel function under construction.
pub struct Code<'c> {
    pub cx: &'c Context,
    pub module: Module<'c>,
    pub b: &'c Builder<'c>,
    pub arch: &'c Arch,
    pub function: FunctionValue<'c>,
    /// Elements of a logical vector, as far as the kernel has come.
    lanes: Cell<usize>,
    /// The type of indices and offsets.
    pub index: IntType<'c>,
    /// Bytes of local memory that the launch must give, beside what the code itself states.
    pub shared: Cell<usize>,
    /// Whether the kernel has waited for the one before it, as it has come so far.
    pub awaited: Cell<bool>,
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
        Code {
            cx,
            module,
            b,
            arch,
            function,
            lanes: Cell::new(lanes),
            index,
            shared: Cell::new(0),
            awaited: Cell::new(false),
        }
    }

    pub fn lanes(&self) -> usize {
        self.lanes.get()
    }

    /// What follows works on vectors of so many elements.
    pub fn set_lanes(&self, lanes: usize) {
        self.lanes.set(lanes);
    }

    pub fn finish(self) -> Module<'c> {
        self.b.build_return(None).expect(BUILT);
        self.module
    }

    // Integers.

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

    /// Whether both conditions hold.
    pub fn both(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        a & b
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

    // Memory.

    /// `p` and so many bytes, which are never negative where indices have 32 bits.
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

    /// A pointer to a buffer, which lies in the address space that `p` points to.
    pub fn load_ptr(&self, p: Ptr<'c>) -> Ptr<'c> {
        self.load_fixed(p.get_type(), p, 8).into_pointer_value()
    }

    /// Loads what nobody changes while the kernel runs.
    pub fn load_fixed(&self, ty: impl BasicType<'c>, p: Ptr<'c>, align: u32) -> Any<'c> {
        let v = self.load(ty, p, align);
        if let (Machine::Simt(_), Some(load)) = (&self.arch.machine, v.as_instruction_value()) {
            let kind = self.cx.get_kind_id("invariant.load");
            load.set_metadata(self.cx.metadata_node(&[]), kind).expect("a load of this context");
        }
        v
    }

    pub fn load_i64(&self, p: Ptr<'c>) -> Int<'c> {
        self.as_int(self.load(self.cx.i64_type(), p, 8))
    }

    /// Element `i` of an i32 array, as an index.
    pub fn load_index(&self, p: Ptr<'c>, i: impl ToInt<'c>) -> Int<'c> {
        let i = i.to_int(self);
        let v = self.as_int(self.load_fixed(self.cx.i32_type(), self.at(p, i * 4), 4));
        if self.index == self.cx.i32_type() {
            return v;
        }
        self.as_int(self.b.build_int_s_extend(v.v, self.index, "").expect(BUILT))
    }

    /// Asks for a cache line that will be read soon.
    pub fn prefetch(&self, p: Ptr<'c>) {
        let n = |n| self.cx.i32_type().const_int(n, false).into();
        // A read, with the highest locality, of data.
        self.call("llvm.prefetch", &[p.get_type().into()], &[p.into(), n(0), n(3), n(1)]);
    }

    // Vectors.

    pub fn f32s(&self) -> VectorType<'c> {
        self.cx.f32_type().vec_type(self.lanes() as u32)
    }

    pub fn ints(&self, ty: IntType<'c>, lanes: usize) -> VectorType<'c> {
        ty.vec_type(lanes as u32)
    }

    /// The integer of so many bytes.
    pub fn bytes_type(&self, bytes: usize) -> IntType<'c> {
        let bits = std::num::NonZero::new(8 * bytes as u32).expect("at least one byte");
        self.cx.custom_width_int_type(bits).expect("at most a few registers")
    }

    pub fn zero(&self) -> Vector<'c> {
        self.f32s().const_zero()
    }

    pub fn number(&self, v: f64) -> FloatValue<'c> {
        self.cx.f32_type().const_float(v)
    }

    /// All lanes the same constant.
    pub fn lit(&self, v: f64) -> Vector<'c> {
        VectorType::const_vector(&vec![self.number(v); self.lanes()])
    }

    pub fn splat(&self, v: impl Into<Any<'c>>) -> Vector<'c> {
        let v = v.into();
        let ty = match v.get_type() {
            BasicTypeEnum::FloatType(t) => t.vec_type(self.lanes() as u32),
            BasicTypeEnum::IntType(t) => t.vec_type(self.lanes() as u32),
            t => panic!("no vector of {t}"),
        };
        let zero = self.cx.i32_type().const_zero();
        let one = self.b.build_insert_element(ty.get_undef(), v, zero, "").expect(BUILT);
        self.b
            .build_shuffle_vector(
                one,
                ty.get_undef(),
                self.cx.i32_type().vec_type(self.lanes() as u32).const_zero(),
                "",
            )
            .expect(BUILT)
    }

    pub fn fadd(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        self.b.build_float_add(a, b, "").expect(BUILT)
    }

    pub fn fsub(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        self.b.build_float_sub(a, b, "").expect(BUILT)
    }

    pub fn fmul(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        self.b.build_float_mul(a, b, "").expect(BUILT)
    }

    /// On GPUs, for f32, within 1.5 units in the last place.
    pub fn fdiv(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        let short = b.get_type() == self.f32s();
        match self.arch.machine {
            Machine::Simt(_) if short => self.fmul(a, self.reciprocal(b)),
            _ => self.b.build_float_div(a, b, "").expect(BUILT),
        }
    }

    /// `a * b + c`, rounded once.
    pub fn fma(&self, a: Vector<'c>, b: Vector<'c>, c: Vector<'c>) -> Vector<'c> {
        self.call("llvm.fma", &[a.get_type().into()], &[a.into(), b.into(), c.into()]).into_vector_value()
    }

    /// `1 / sqrt(sum / count + eps)`.
    pub fn inverse_root(&self, sum: FloatValue<'c>, count: usize, eps: f64) -> FloatValue<'c> {
        if let Machine::Simt(_) = self.arch.machine {
            let mean = self.b.build_float_mul(sum, self.number(1.0 / count as f64), "").expect(BUILT);
            let mean = self.b.build_float_add(mean, self.number(eps), "").expect(BUILT);
            return self.inverse_square_root(mean);
        }
        let ty = &[self.cx.f32_type().into()];
        let mean = self.b.build_float_div(sum, self.number(count as f64), "").expect(BUILT);
        let mean = self.b.build_float_add(mean, self.number(eps), "").expect(BUILT);
        let root = self.call("llvm.sqrt", ty, &[mean.into()]).into_float_value();
        self.b.build_float_div(self.number(1.0), root, "").expect(BUILT)
    }

    pub fn fmax(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        let more = self.b.build_float_compare(FloatPredicate::OGT, b, a, "").expect(BUILT);
        self.choose(more, b, a)
    }

    pub fn choose(&self, mask: Vector<'c>, yes: Vector<'c>, no: Vector<'c>) -> Vector<'c> {
        self.b.build_select(mask, yes, no, "").expect(BUILT).into_vector_value()
    }

    /// Lanes `i` with `i < n`.
    pub fn lanes_below(&self, n: impl ToInt<'c>) -> Vector<'c> {
        self.below(&(0..self.lanes()).collect::<Vec<_>>(), n)
    }

    /// Lanes whose number in the list is below `n`.
    pub fn below(&self, numbers: &[usize], n: impl ToInt<'c>) -> Vector<'c> {
        let n = n.to_int(self);
        let n = self.b.build_int_truncate_or_bit_cast(n.v, self.cx.i32_type(), "").expect(BUILT);
        self.b.build_int_compare(IntPredicate::SLT, self.numbers(numbers), self.splat(n), "").expect(BUILT)
    }

    /// 0, 1, 2, …
    pub fn iota(&self) -> Vector<'c> {
        self.numbers(&(0..self.lanes()).collect::<Vec<_>>())
    }

    fn numbers(&self, numbers: &[usize]) -> Vector<'c> {
        let numbers: Vec<_> = numbers.iter().map(|&i| self.cx.i32_type().const_int(i as u64, false)).collect();
        VectorType::const_vector(&numbers)
    }

    pub fn lane(&self, v: Vector<'c>, i: usize) -> Any<'c> {
        self.b.build_extract_element(v, self.cx.i32_type().const_int(i as u64, false), "").expect(BUILT)
    }

    /// Sum of the lanes, in an order that does not depend on the target.
    pub fn sum(&self, v: Vector<'c>) -> FloatValue<'c> {
        self.fold(v, |a, b| self.fadd(a, b))
    }

    pub fn top(&self, v: Vector<'c>) -> FloatValue<'c> {
        self.fold(v, |a, b| self.fmax(a, b))
    }

    fn fold(&self, v: Vector<'c>, f: impl Fn(Vector<'c>, Vector<'c>) -> Vector<'c>) -> FloatValue<'c> {
        let mut v = v;
        let halves = std::iter::successors(Some(self.lanes() / 2), |n| Some(n / 2)).take_while(|&n| n > 0);
        for half in halves {
            let mask: Vec<usize> = (0..self.lanes()).map(|i| (i + half) % self.lanes()).collect();
            v = f(v, self.shuffle(v, v, &mask));
        }
        self.lane(v, 0).into_float_value()
    }

    /// Lanes of `a` and then of `b`, counted on, in this order.
    pub fn shuffle(&self, a: Vector<'c>, b: Vector<'c>, lanes: &[usize]) -> Vector<'c> {
        let lanes: Vec<_> = lanes.iter().map(|&i| self.cx.i32_type().const_int(i as u64, false)).collect();
        self.b.build_shuffle_vector(a, b, VectorType::const_vector(&lanes), "").expect(BUILT)
    }

    pub fn bitcast(&self, v: impl Into<Any<'c>>, ty: impl BasicType<'c>) -> Any<'c> {
        self.b.build_bit_cast(v.into(), ty, "").expect(BUILT)
    }

    // Elements of the types that tensors have.

    /// What vectors in memory are aligned to. SIMT kernels choose their vectors so that whole ones lie everywhere.
    pub fn alignment(&self, dtype: DType) -> u32 {
        let bytes = match self.arch.machine {
            Machine::Cpu(_) => dtype.size(),
            Machine::Simt(_) => (dtype.size() * self.lanes()).min(16),
        };
        bytes as u32
    }

    /// A vector of consecutive elements as f32.
    pub fn load_floats(&self, p: Ptr<'c>, dtype: DType) -> Vector<'c> {
        self.widen(self.load_bits(p, dtype), dtype)
    }

    /// A vector of consecutive elements as they lie in memory.
    pub fn load_bits(&self, p: Ptr<'c>, dtype: DType) -> Vector<'c> {
        let element = self.bytes_type(dtype.size());
        self.load(self.ints(element, self.lanes()), p, self.alignment(dtype)).into_vector_value()
    }

    /// The bits of as many elements as a vector has, as f32.
    pub fn widen(&self, bits: Vector<'c>, dtype: DType) -> Vector<'c> {
        let lanes = self.lanes();
        match dtype {
            DType::F32 => self.bitcast(bits, self.f32s()).into_vector_value(),
            DType::BF16 => {
                let halves = self.bitcast(bits, self.ints(self.cx.i16_type(), lanes)).into_vector_value();
                self.widen_bf16(
                    self.b.build_int_z_extend(halves, self.ints(self.cx.i32_type(), lanes), "").expect(BUILT),
                )
            }
            DType::F16 => {
                let halves = self.bitcast(bits, self.cx.f16_type().vec_type(lanes as u32)).into_vector_value();
                self.b.build_float_ext(halves, self.f32s(), "").expect(BUILT)
            }
            DType::F8E4M3 => self.widen_f8(bits),
            _ => panic!("no floats are loaded of {}", dtype.name()),
        }
    }

    /// bf16 bits in the low half of each lane, as f32.
    pub fn widen_bf16(&self, v: Vector<'c>) -> Vector<'c> {
        let bits = self.b.build_left_shift(v, self.splat(self.cx.i32_type().const_int(16, false)), "").expect(BUILT);
        self.bitcast(bits, self.f32s()).into_vector_value()
    }

    /// f32 lanes rounded to `dtype`, as integers of its size.
    pub fn narrow(&self, v: Vector<'c>, dtype: DType) -> Vector<'c> {
        match dtype {
            DType::F32 => self.bitcast(v, self.ints(self.cx.i32_type(), self.lanes())).into_vector_value(),
            DType::BF16 => self.narrow_bf16(v),
            DType::F16 => {
                let v = self.b.build_float_trunc(v, self.cx.f16_type().vec_type(self.lanes() as u32), "").expect(BUILT);
                self.bitcast(v, self.ints(self.cx.i16_type(), self.lanes())).into_vector_value()
            }
            DType::F8E4M3 => self.narrow_f8(v),
            _ => panic!("no floats are stored as {}", dtype.name()),
        }
    }

    /// Bytes of `f8e4m3`, without subnormal numbers on the way, which cost CPUs a hundred cycles.
    fn widen_f8(&self, bits: Vector<'c>) -> Vector<'c> {
        let wide = self.ints(self.cx.i32_type(), self.lanes());
        let bits = self.b.build_int_z_extend(bits, wide, "").expect(BUILT);
        let k = |n: u64| self.splat(self.cx.i32_type().const_int(n, false));
        let size = self.b.build_and(bits, k(0x7f), "").expect(BUILT);
        let small = self.b.build_signed_int_to_float(size, self.f32s(), "").expect(BUILT);
        let small = self.bitcast(self.fmul(small, self.lit(1.0 / 512.0)), wide).into_vector_value();
        let normal = self.b.build_left_shift(size, k(20), "").expect(BUILT);
        let normal = self.b.build_int_add(normal, k(F8_EXPONENT << 23), "").expect(BUILT);
        let is_small = self.b.build_int_compare(IntPredicate::ULT, size, k(8), "").expect(BUILT);
        let sign = self.b.build_and(bits, k(0x80), "").expect(BUILT);
        let sign = self.b.build_left_shift(sign, k(24), "").expect(BUILT);
        let bits = self.b.build_or(self.choose(is_small, small, normal), sign, "").expect(BUILT);
        self.bitcast(bits, self.f32s()).into_vector_value()
    }

    /// Round to nearest even, and to the largest number what is larger.
    fn narrow_f8(&self, v: Vector<'c>) -> Vector<'c> {
        let (i8, i32) = (self.cx.i8_type(), self.cx.i32_type());
        let wide = self.ints(i32, self.lanes());
        let k = |n: u64| self.splat(i32.const_int(n, false));
        let as_bits = |v: Vector<'c>| self.bitcast(v, wide).into_vector_value();
        let sub = |a, b| self.b.build_int_sub(a, b, "").expect(BUILT);
        let bits = as_bits(v);
        let size = self.b.build_and(bits, k(0x7fff_ffff), "").expect(BUILT);
        let size = self.bitcast(size, self.f32s()).into_vector_value();
        let fits = self.b.build_float_compare(FloatPredicate::OLT, size, self.lit(448.0), "").expect(BUILT);
        let size = self.choose(fits, size, self.lit(448.0));
        // The last place of a sum with this number is that of the smallest numbers.
        let small = sub(as_bits(self.fadd(size, self.lit(16384.0))), k(16384f32.to_bits().into()));
        let bits_of_size = as_bits(size);
        let odd = self.b.build_right_shift(bits_of_size, k(20), false, "").expect(BUILT);
        let odd = self.b.build_and(odd, k(1), "").expect(BUILT);
        let up = self.b.build_int_add(bits_of_size, k(0x7_ffff), "").expect(BUILT);
        let up = self.b.build_int_add(up, odd, "").expect(BUILT);
        let normal = sub(self.b.build_right_shift(up, k(20), false, "").expect(BUILT), k(F8_EXPONENT << 3));
        let is_small = self.b.build_float_compare(FloatPredicate::OLT, size, self.lit(1.0 / 64.0), "").expect(BUILT);
        let sign = self.b.build_right_shift(bits, k(24), false, "").expect(BUILT);
        let sign = self.b.build_and(sign, k(0x80), "").expect(BUILT);
        let all = self.b.build_or(self.choose(is_small, small, normal), sign, "").expect(BUILT);
        self.b.build_int_truncate(all, self.ints(i8, self.lanes()), "").expect(BUILT)
    }

    /// Round to nearest even. A NaN stays one: on GPUs because its lowest bits, which are those of a wider payload, are clear in
    /// every NaN that arithmetic on short types makes.
    fn narrow_bf16(&self, v: Vector<'c>) -> Vector<'c> {
        let (i16, i32) = (self.cx.i16_type(), self.cx.i32_type());
        if let Machine::Simt(simt) = &self.arch.machine
            && simt.packs_bf16
        {
            let short = self.cx.bf16_type().vec_type(self.lanes() as u32);
            let v = self.b.build_float_trunc(v, short, "").expect(BUILT);
            return self.bitcast(v, self.ints(i16, self.lanes())).into_vector_value();
        }
        let wide = self.ints(i32, self.lanes());
        let k = |n: u64| self.splat(i32.const_int(n, false));
        let bits = self.bitcast(v, wide).into_vector_value();
        let odd =
            self.b.build_and(self.b.build_right_shift(bits, k(16), false, "").expect(BUILT), k(1), "").expect(BUILT);
        let up = self.b.build_int_add(self.b.build_int_add(bits, k(0x7fff), "").expect(BUILT), odd, "").expect(BUILT);
        let up = match self.arch.machine {
            Machine::Simt(_) => up,
            Machine::Cpu(_) => {
                let nan = self.b.build_float_compare(FloatPredicate::UNO, v, v, "").expect(BUILT);
                let quiet = self.b.build_or(bits, k(0x40_0000), "").expect(BUILT);
                self.choose(nan, quiet, up)
            }
        };
        let high = self.b.build_right_shift(up, k(16), false, "").expect(BUILT);
        self.b.build_int_truncate(high, self.ints(i16, self.lanes()), "").expect(BUILT)
    }

    pub fn store_floats(&self, p: Ptr<'c>, v: Vector<'c>, dtype: DType) {
        self.store(p, self.narrow(v, dtype), self.alignment(dtype));
    }

    /// Stores two vectors, none of which is NaN; in one instruction where the CPU can.
    pub fn store_two(&self, p: Ptr<'c>, v: [Vector<'c>; 2], dtype: DType) {
        if dtype == DType::BF16 && self.arch.cpu().dot != atomc_ir::arch::Dot::Widen {
            let name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512";
            return self.store(p, self.call(name, &[], &[v[1].into(), v[0].into()]), 2);
        }
        self.store_floats(p, v[0], dtype);
        self.store_floats(self.at(p, self.lanes() * dtype.size()), v[1], dtype);
    }

    /// Stores the first `count` lanes only.
    pub fn store_some(&self, p: Ptr<'c>, v: Vector<'c>, dtype: DType, count: usize) {
        if count >= self.lanes() {
            return self.store_floats(p, v, dtype);
        }
        let v = self.narrow(v, dtype);
        for i in 0..count {
            self.store(self.at(p, i * dtype.size()), self.lane(v, i), dtype.size() as u32);
        }
    }

    // Control.

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

    /// A loop that carries nothing.
    pub fn repeat(&self, begin: impl ToInt<'c>, end: impl ToInt<'c>, step: usize, body: impl FnOnce(Int<'c>)) {
        self.for_each((begin, end, step), &[], |i, _| {
            body(i);
            vec![]
        });
    }

    /// `body` where the condition holds.
    pub fn when(&self, cond: Int<'c>, body: impl FnOnce()) {
        let [inside, after] = [0; 2].map(|_| self.cx.append_basic_block(self.function, ""));
        self.b.build_conditional_branch(cond.v, inside, after).expect(BUILT);
        self.b.position_at_end(inside);
        body();
        self.b.build_unconditional_branch(after).expect(BUILT);
        self.b.position_at_end(after);
    }
}
