//! Elements of the types that tensors have, between memory and f32.
use atomc_ir::DType;
use atomc_ir::arch::Machine;
use inkwell::values::FloatValue;
use inkwell::{FloatPredicate, IntPredicate};

use super::{BUILT, Code, Ptr, Vector};

/// The difference of the exponents' biases of f32 and `f8e4m3`.
const F8_EXPONENT: u64 = 120;

impl<'c> Code<'c> {
    /// The alignment of vectors in memory. SIMT kernels choose their vectors so that all of them
    /// are whole.
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

    /// A single element as f32.
    pub fn load_number(&self, p: Ptr<'c>, dtype: DType) -> FloatValue<'c> {
        let lanes = self.lanes();
        self.set_lanes(1);
        let number = self.lane(self.load_floats(p, dtype), 0).into_float_value();
        self.set_lanes(lanes);
        number
    }

    /// A vector of consecutive elements as bits, without conversion.
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
            DType::E8M0 => self.widen_e8m0(bits),
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

    /// Widens exponents. The smallest one has no normal number; NaN becomes infinity.
    fn widen_e8m0(&self, bits: Vector<'c>) -> Vector<'c> {
        let wide = self.ints(self.cx.i32_type(), self.lanes());
        let k = |n: u64| self.splat(self.cx.i32_type().const_int(n, false));
        let bits = self.b.build_int_z_extend(bits, wide, "").expect(BUILT);
        let normal = self.b.build_left_shift(bits, k(23), "").expect(BUILT);
        let is_least = self.b.build_int_compare(IntPredicate::EQ, bits, k(0), "").expect(BUILT);
        self.bitcast(self.choose(is_least, k(1 << 22), normal), self.f32s()).into_vector_value()
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

    /// Rounds to nearest even. Larger numbers become the largest one.
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

    /// Round to nearest even. A NaN stays one: on GPUs because its lowest bits, which are those of
    /// a wider payload, are clear in every NaN that arithmetic on short types makes.
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
}
