//! The kernel that makes weights of tensors on the device: [`Pack`](atomc_artifact::abi::Pack) has
//! its parameters. A work-group makes a run of units of one panel, in the order of their addresses,
//! a thread one after the other: stores are runs of memory, and loads are as long as the rows of a
//! wave's units.
//!
//! A unit that has all its numbers in sequence is loaded at once, others number by number. NaN get
//! the bits that the host makes, whatever the chip's own conversions give.
use atomc_artifact::abi::{CONVERSIONS, Number, PACK_RUN, PACK_UNIT};
use atomc_artifact::manifest;
use atomc_artifact::manifest::PACK;
use atomc_ir::DType;
use atomc_ir::arch::GpuArch;
use inkwell::IntPredicate;
use inkwell::module::Module;
use inkwell::types::VectorType;

use crate::Tasks;
use crate::code::{Int, Ptr, Vector};
use crate::llvm::Llvm;
use crate::simt::machine;
use crate::simt::machine::Gpu;

const THREADS: usize = 256;
/// The bit of an f32 that makes a NaN a quiet one.
const QUIET: u64 = 0x40_0000;

/// The kernel as a module. Like the one that makes inputs it begins when all before it has ended.
pub fn emit<'c>(llvm: Llvm<'c>, arch: GpuArch<'c>) -> (Module<'c>, manifest::Kernel) {
    let code = machine::open_with_numbers(llvm, PACK, arch, 3, 12, THREADS);
    let conversion = code.number_argument(3);
    for (number, &(from, to)) in CONVERSIONS.iter().enumerate() {
        code.when(code.equal(conversion, number), || Rectangle::new(&code, from, to).run());
    }
    let info = manifest::Kernel::simt(Tasks::Fixed(1), THREADS);
    (code.finish(), manifest::Kernel { schedule: "pack".into(), ..info })
}

/// The kernel's parameters, for numbers of one type that become another.
struct Rectangle<'k, 'c> {
    c: &'k Gpu<'c>,
    types: (Number, Number),
    /// Numbers in a unit.
    group: usize,
    from: Ptr<'c>,
    to: Ptr<'c>,
    differs: Ptr<'c>,
    /// In numbers, of 64 bits.
    row_stride: Int<'c>,
    col_stride: Int<'c>,
    rows: Int<'c>,
    cols: Int<'c>,
    padded_rows: Int<'c>,
    padded_cols: Int<'c>,
    row: Int<'c>,
    col: Int<'c>,
    width: Int<'c>,
    panel_bytes: Int<'c>,
    /// The number that is added to each number, as the bits of an f32.
    offset: Int<'c>,
}

impl<'k, 'c> Rectangle<'k, 'c> {
    fn new(c: &'k Gpu<'c>, from: Number, to: Number) -> Rectangle<'k, 'c> {
        let number = |i| c.number_argument(4 + i);
        let [rows, cols, padded_rows, padded_cols, row, col, width] =
            std::array::from_fn(|i| c.to_index(number(2 + i)));
        Rectangle {
            c,
            types: (from, to),
            group: PACK_UNIT / to.size(),
            from: c.argument(0),
            to: c.argument(1),
            differs: c.argument(2),
            row_stride: number(0),
            col_stride: number(1),
            rows,
            cols,
            padded_rows,
            padded_cols,
            row,
            col,
            width,
            panel_bytes: number(9),
            offset: number(10),
        }
    }

    fn run(&self) {
        let (c, group) = (self.c, self.group);
        let first = self.col / group;
        let units = ((self.col + self.padded_cols + (group - 1)) / group - first) * self.width;
        let [panel, run] = c.divide(c.group(), (units + (PACK_RUN - 1)) / PACK_RUN);
        let panel = panel + self.row / self.width;
        let to = c.at(self.to, c.to_i64(panel) * self.panel_bytes);
        let start = run * PACK_RUN;
        c.repeat(start + c.thread(), c.smaller(start + PACK_RUN, units), THREADS, |place| {
            let [unit, inside] = c.divide(place, self.width);
            let (unit, row) = (unit + first, panel * self.width + inside - self.row);
            let to = c.at(to, (unit * self.width + inside) * PACK_UNIT);
            c.when(self.is_within(row, self.padded_rows), || self.make(to, row, unit * group - self.col));
        });
    }

    /// Makes a unit. The rectangle may have a part of it, and the tensor less.
    fn make(&self, to: Ptr<'c>, row: Int<'c>, col: Int<'c>) {
        let (c, size) = (self.c, self.types.0.size());
        let from = c.at(self.from, c.to_i64(row) * self.row_stride * size);
        let exists = c.less(row, self.rows);
        let has_all = self.is_within(col, self.cols) & self.is_within(col + (self.group - 1), self.cols);
        let align = (self.group * size).min(PACK_UNIT);
        let start = c.at(from, self.signed(col) * size);
        let whole = exists & has_all & c.equal(self.col_stride, 1) & self.is_aligned(start, align);
        c.when(whole, || {
            c.set_lanes(self.group);
            self.convert(to, self.load(start, align), PACK_UNIT);
        });
        c.when(!whole, || {
            c.repeat(0, self.group, 1, |i| self.make_one(to, from, exists, col + i, i));
        });
    }

    /// Makes one number of a unit, if the rectangle has it.
    fn make_one(&self, to: Ptr<'c>, from: Ptr<'c>, row_exists: Int<'c>, col: Int<'c>, i: Int<'c>) {
        let (c, (wide, short)) = (self.c, (self.types.0.size(), self.types.1.size()));
        c.set_lanes(1);
        let to = c.at(to, i * short);
        c.when(self.is_within(col, self.padded_cols), || {
            let exists = row_exists & c.less(col, self.cols);
            c.when(exists, || {
                let from = c.at(from, c.to_i64(col) * self.col_stride * wide);
                self.convert(to, self.load(from, wide), short);
            });
            c.when(!exists, || self.put(to, c.ints(c.bytes_type(short), 1).const_zero(), short));
        });
    }

    /// Stores numbers, or says that others are there.
    fn put(&self, to: Ptr<'c>, made: Vector<'c>, align: usize) {
        let c = self.c;
        let packs = c.as_int(c.b.build_is_null(self.differs, "").expect("a pointer"));
        c.when(packs, || c.store(to, made, align as u32));
        c.when(!packs, || {
            let all = c.bytes_type(align);
            let there = c.load(made.get_type(), to, align as u32);
            let [made, there] = [made.into(), there].map(|numbers| c.as_int(c.bitcast(numbers, all)));
            let differ = c.compare(IntPredicate::NE, made, there);
            c.when(differ, || c.store(self.differs, c.cx.i32_type().const_int(1, false), 4));
        });
    }

    /// The bits of as many numbers as a vector has.
    fn load(&self, from: Ptr<'c>, align: usize) -> Vector<'c> {
        let c = self.c;
        let ty = c.ints(c.bytes_type(self.types.0.size()), c.lanes());
        c.load(ty, from, align as u32).into_vector_value()
    }

    /// Puts numbers of the tensor in the weight's type there. Rounds to nearest, ties to even;
    /// 64-bit numbers are rounded to 32 bits first.
    fn convert(&self, to: Ptr<'c>, bits: Vector<'c>, align: usize) {
        let (c, (from, short)) = (self.c, self.types);
        let is_plain = c.equal(self.offset, 0);
        match from == short {
            true if from == Number::Byte => self.put(to, bits, align),
            true => {
                c.when(is_plain, || self.put(to, bits, align));
                c.when(!is_plain, || self.put(to, self.narrow(self.raised(self.widen(bits))), align));
            }
            false => {
                let wide = self.widen(bits);
                let raised = c.pick(is_plain, wide, self.raised(wide)).into_vector_value();
                self.put(to, self.narrow(raised), align);
            }
        }
    }

    /// The bits of f32 and an offset. NaN keep their bits, and become quiet.
    fn raised(&self, bits: Vector<'c>) -> Vector<'c> {
        let c = self.c;
        let by = c.b.build_int_truncate(self.offset.v, c.cx.i32_type(), "").expect("an integer");
        let by = c.bitcast(c.splat(by), c.f32s()).into_vector_value();
        let sum = c.fadd(c.bitcast(bits, c.f32s()).into_vector_value(), by);
        let sum = c.bitcast(sum, self.words()).into_vector_value();
        c.choose(self.above(self.and(bits, 0x7fff_ffff), 0x7f80_0000), self.or(bits, QUIET), sum)
    }

    /// The bits of f32 that a number has. Signalling NaN become quiet.
    fn widen(&self, bits: Vector<'c>) -> Vector<'c> {
        let c = self.c;
        match self.types.0 {
            Number::F32 | Number::Byte => bits,
            Number::BF16 => {
                let wide = self.shifted(self.extended(bits), 16);
                c.choose(self.above(self.and(wide, 0x7fff_ffff), 0x7f80_0000), self.or(wide, QUIET), wide)
            }
            Number::F16 => {
                let value = c.bitcast(c.widen(bits, DType::F16), self.words()).into_vector_value();
                let bits = self.extended(bits);
                let sign = self.shifted(self.and(bits, 0x8000), 16);
                let nan = self.or(self.joined(sign, self.shifted(self.and(bits, 0x3ff), 13)), 0x7f80_0000 | QUIET);
                c.choose(self.above(self.and(bits, 0x7fff), 0x7c00), nan, value)
            }
            Number::F64 => self.widen_double(bits),
        }
    }

    fn widen_double(&self, bits: Vector<'c>) -> Vector<'c> {
        let c = self.c;
        let doubles = c.bitcast(bits, c.cx.f64_type().vec_type(c.lanes() as u32)).into_vector_value();
        let value = c.b.build_float_trunc(doubles, c.f32s(), "").expect("floats");
        let value = c.bitcast(value, self.words()).into_vector_value();
        let low = |v| c.b.build_int_truncate(v, self.words(), "").expect("integers");
        let sign = self.and(low(self.right(bits, 32)), 0x8000_0000);
        let fraction = self.and(low(self.right(bits, 29)), QUIET - 1);
        let nan = self.or(self.joined(sign, fraction), 0x7f80_0000 | QUIET);
        c.choose(self.above(self.and(bits, (1 << 63) - 1), 0x7ff << 52), nan, value)
    }

    /// Numbers of the weight's type out of the bits of f32.
    fn narrow(&self, bits: Vector<'c>) -> Vector<'c> {
        let (c, dtype) = match self.types.1 {
            Number::BF16 => (self.c, DType::BF16),
            Number::F16 => (self.c, DType::F16),
            Number::F32 | Number::F64 | Number::Byte => return bits,
        };
        let value = c.narrow(c.bitcast(bits, c.f32s()).into_vector_value(), dtype);
        let high = self.right(self.or(bits, QUIET), 16);
        let nan = match dtype {
            DType::BF16 => high,
            _ => {
                let fraction = self.and(self.right(bits, 13), 0x3ff);
                self.or(self.joined(self.and(high, 0x8000), fraction), 0x7e00)
            }
        };
        let nan = c.b.build_int_truncate(nan, value.get_type(), "").expect("integers");
        c.choose(self.above(self.and(bits, 0x7fff_ffff), 0x7f80_0000), nan, value)
    }

    // Bits, in vectors.

    fn words(&self) -> VectorType<'c> {
        self.c.ints(self.c.cx.i32_type(), self.c.lanes())
    }

    fn extended(&self, bits: Vector<'c>) -> Vector<'c> {
        self.c.b.build_int_z_extend(bits, self.words(), "").expect("integers")
    }

    fn same(&self, v: Vector<'c>, n: u64) -> Vector<'c> {
        self.c.splat(v.get_type().get_element_type().into_int_type().const_int(n, false))
    }

    fn and(&self, v: Vector<'c>, n: u64) -> Vector<'c> {
        self.c.b.build_and(v, self.same(v, n), "").expect("integers")
    }

    fn or(&self, v: Vector<'c>, n: u64) -> Vector<'c> {
        self.joined(v, self.same(v, n))
    }

    fn joined(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        self.c.b.build_or(a, b, "").expect("integers")
    }

    fn shifted(&self, v: Vector<'c>, bits: u64) -> Vector<'c> {
        self.c.b.build_left_shift(v, self.same(v, bits), "").expect("integers")
    }

    fn right(&self, v: Vector<'c>, bits: u64) -> Vector<'c> {
        self.c.b.build_right_shift(v, self.same(v, bits), false, "").expect("integers")
    }

    fn above(&self, v: Vector<'c>, n: u64) -> Vector<'c> {
        self.c.b.build_int_compare(IntPredicate::UGT, v, self.same(v, n), "").expect("integers")
    }

    // Indices that may be negative.

    /// Whether `0 <= i < end`.
    fn is_within(&self, i: Int<'c>, end: Int<'c>) -> Int<'c> {
        self.c.compare(IntPredicate::ULT, i, end)
    }

    fn signed(&self, i: Int<'c>) -> Int<'c> {
        self.c.as_int(self.c.b.build_int_s_extend(i.v, self.c.cx.i64_type(), "").expect("integers"))
    }

    fn is_aligned(&self, p: Ptr<'c>, bytes: usize) -> Int<'c> {
        let c = self.c;
        let address = c.as_int(c.b.build_ptr_to_int(p, c.cx.i64_type(), "").expect("a pointer"));
        c.equal(address & (bytes - 1), 0)
    }
}
