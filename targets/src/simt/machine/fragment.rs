//! Matrix instructions, whatever the chip has: fragments of operands as lanes hold them, and
//! products of fragments.
//!
//! A fragment of A is 16 rows by [`Matrix::span`] columns of a weight, spread over a wave; one of B
//! the same of a step's tokens, or of queries. The layout decides the columns of a lane, for both
//! operands alike, so their order never shows. A product adds 16 rows by 16 columns of results, or
//! by 8. A lane holds `results` consecutive rows of one column: it knows one token and a few
//! features of it.
use atomc_ir::DType;
use atomc_ir::arch::{BlockScaled, Fp8, MatrixLayout, Product, ProductShape, Simt};
use inkwell::types::{BasicTypeEnum, VectorType};

use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::machine::Gpu;

/// One lane's part of an operand: vectors of 16 bytes, as `<4 x i32>`.
pub type Fragment<'c> = Vec<Vector<'c>>;

/// Bytes of such a vector.
pub const VEC16: usize = 16;

/// The matrix unit for one type of element.
#[derive(Clone, Copy)]
pub struct Matrix<'a, 'c> {
    pub c: &'a Gpu<'c>,
    pub dtype: DType,
    pub layout: MatrixLayout,
    product: Option<Product>,
    wave: usize,
    /// The number of parts of a wave that have vectors in turn, if a lane's do not follow each
    /// other.
    in_turn: Option<usize>,
}

/// A lane's scale of 32 columns: a byte of a word.
#[derive(Clone, Copy)]
pub struct BlockScale<'c> {
    pub word: Int<'c>,
    pub byte: usize,
}

/// The numbers by which `f8f6f4` knows formats.
const E4M3: usize = 0;
const E2M1: usize = 4;

/// The place of a lane in a fragment.
#[derive(Clone, Copy)]
pub struct Place<'c> {
    /// The row of A, and the column of the result and of B^T, that the lane holds.
    pub row: Int<'c>,
    pub column: Int<'c>,
    /// Which part of a fragment's columns it holds.
    pub part: Int<'c>,
    /// Which share of a result's rows it holds, and the first of them.
    pub share: Int<'c>,
    pub results: Int<'c>,
}

/// The layout of operands of a type. A lane holds whole vectors: instructions that take less of a
/// row take parts of one.
pub fn layout_of(simt: &Simt, dtype: DType) -> MatrixLayout {
    let depth = if dtype.bits() <= 8 { VEC16 * 8 / dtype.bits() } else { simt.matrix.depth };
    MatrixLayout { depth, ..simt.matrix }
}

/// The layout of operands of instructions that take scales of 32 columns.
pub fn block_scaled_layout(simt: &Simt) -> MatrixLayout {
    MatrixLayout { depth: BlockScaled::COLUMNS, ..simt.matrix }
}

impl<'a, 'c> Matrix<'a, 'c> {
    pub fn new(c: &'a Gpu<'c>, dtype: DType) -> Matrix<'a, 'c> {
        let simt = c.simt;
        Matrix {
            c,
            dtype,
            layout: layout_of(simt, dtype),
            product: simt.product(dtype),
            wave: simt.wave,
            in_turn: None,
        }
    }

    /// The matrix of instructions which take scales of 32 columns.
    pub fn of_block_scaled(c: &'a Gpu<'c>, dtype: DType) -> Matrix<'a, 'c> {
        let layout = block_scaled_layout(c.simt);
        Matrix { layout, in_turn: Some(c.simt.wave / layout.columns), ..Matrix::new(c, dtype) }
    }

    /// Whether operands are converted before each product.
    pub fn converts(&self) -> bool {
        self.product.is_none()
    }

    /// Whether the machine multiplies elements of this type as they are.
    pub fn native(simt: &Simt, dtype: DType) -> bool {
        simt.product(dtype).is_some()
    }

    /// Columns that one product contracts.
    pub fn span(&self) -> usize {
        self.layout.span(self.wave)
    }

    /// Elements in 16 bytes.
    pub fn vec16(&self) -> usize {
        VEC16 * 8 / self.dtype.bits()
    }

    /// Vectors of one lane's fragment of a row or column.
    pub fn vec16s(&self) -> usize {
        self.layout.depth / self.vec16()
    }

    /// The number of the first vector of a part with `count` vectors, and the distance between its
    /// vectors.
    pub fn vec16s_of(&self, part: Int<'c>, count: usize) -> (Int<'c>, usize) {
        match self.in_turn {
            Some(parts) => (part, parts),
            None => (part * count, 1),
        }
    }

    /// Vectors of one lane's fragment of a panel.
    pub fn panel_vec16s(&self) -> usize {
        self.vec16s() * self.layout.rows()
    }

    /// Bytes from one fragment of a panel to the next.
    pub fn panel_step(&self) -> usize {
        self.span() / self.vec16() * 16 * VEC16
    }

    pub fn place(&self) -> Place<'c> {
        let (c, lane) = (self.c, self.c.lane_index());
        let (column, share) = match self.layout.columns {
            16 => (lane % 16, lane / 16),
            columns => (lane / (self.wave / columns), lane % (self.wave / columns)),
        };
        let part = if self.layout.replicated { c.int(0) } else { share };
        Place { row: self.row(column), column, part, share, results: share * self.layout.results }
    }

    /// The first row of A that a lane of a column holds.
    fn row(&self, column: Int<'c>) -> Int<'c> {
        let c = self.c;
        let is =
            |order: fn(usize) -> usize| self.layout.a_rows.iter().enumerate().all(|(i, &row)| row as usize == order(i));
        if is(|i| i) {
            return column;
        }
        // Rows 0, 8, 1, 9, …: the low bit becomes the high one.
        if is(|i| i % 2 * 8 + i / 2) {
            return column % 2 * 8 + column / 2;
        }
        // Two of four, and the other two in the second half.
        let halves = is(|i| i % 8 / 2 * 4 + i / 8 * 2 + i % 2);
        assert!(halves, "{}: rows of A in an order that there is no formula for", c.arch.name);
        column / 2 * 4 + column % 2
    }

    /// How far apart the lanes are that share a column.
    pub fn sharing(&self) -> &'static [usize] {
        match (self.layout.columns, self.wave) {
            (8, _) => &[1, 2],
            (_, 64) => &[16, 32],
            _ => &[16],
        }
    }

    /// The byte of a panel's fragment at which a lane's first vector lies, for a row of the panel.
    pub fn in_panel(&self, place: Place<'c>, row: Int<'c>) -> Int<'c> {
        self.vec16s_of(place.part, self.vec16s()).0 * (16 * VEC16) + row * VEC16
    }

    /// Loads a lane's fragment from a panel.
    pub fn load_panel(&self, p: Ptr<'c>) -> Fragment<'c> {
        self.panel_offsets().map(|offset| self.load_vec16(self.c.at(p, offset))).collect()
    }

    /// The offsets of a lane's vectors in a panel: 16 rows apart, and two apart if the lane holds
    /// two rows.
    pub fn panel_offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let (vec16s, apart) = (self.vec16s(), self.in_turn.unwrap_or(1) * 16 * VEC16);
        (0..self.layout.rows()).flat_map(move |i| (0..vec16s).map(move |vec16| 2 * i * VEC16 + vec16 * apart))
    }

    /// Loads a lane's fragment of columns in the layout of a panel.
    pub fn load_columns(&self, p: Ptr<'c>) -> Fragment<'c> {
        self.load_vec16s(p, 16 * VEC16)
    }

    /// Loads a lane's fragment from a row of memory, with its vectors one after the other.
    pub fn load_row(&self, p: Ptr<'c>) -> Fragment<'c> {
        self.load_vec16s(p, VEC16)
    }

    pub fn load_vec16s(&self, p: Ptr<'c>, apart: usize) -> Fragment<'c> {
        (0..self.vec16s()).map(|i| self.load_vec16(self.c.at(p, i * apart))).collect()
    }

    pub fn load_vec16(&self, p: Ptr<'c>) -> Vector<'c> {
        self.c.load_vector(self.c.cx.i32_type(), 4, p, VEC16)
    }

    /// f32 numbers, as many as a lane holds of a fragment, rounded to the type of elements.
    pub fn fragment_of(&self, values: &[Vector<'c>]) -> Fragment<'c> {
        let c = self.c;
        let lanes = c.lanes();
        let all = c.join(values);
        let count = all.get_type().get_size() as usize;
        c.set_lanes(count);
        let bits = c.narrow(all, self.dtype);
        c.set_lanes(lanes);
        let words = c.bitcast(bits, c.cx.i32_type().vec_type((count * self.dtype.size() / 4) as u32));
        let words = words.into_vector_value();
        (0..count * self.dtype.size() / VEC16).map(|i| c.part(words, 4 * i, 4)).collect()
    }

    /// Results that are all zero.
    pub fn zero(&self) -> Vector<'c> {
        self.c.cx.f32_type().vec_type(self.layout.results as u32).const_zero()
    }

    /// `count` sums of zero, of the type that instructions add up in.
    pub fn zero_sums(&self, count: usize) -> Vector<'c> {
        let cx = self.c.cx;
        match self.dtype {
            DType::I8 => cx.i32_type().vec_type(count as u32).const_zero(),
            _ => cx.f32_type().vec_type(count as u32).const_zero(),
        }
    }

    /// Whether e4m3 has other bits in instructions than in memory. OCP numbers are twice as large
    /// there, and their negative zero has the bits of NaN. So zeros lose their sign when weights
    /// are loaded (`Weight::unsigned_zeros`) and when rows are quantised. The NaN bits of OCP count
    /// as 480, as in every decoder.
    fn is_fnuz(&self) -> bool {
        self.dtype == DType::F8E4M3 && self.c.simt.fp8 == Fp8::Fnuz
    }

    /// The factor that turns sums into those of the operands.
    pub fn unit(&self) -> f64 {
        if self.is_fnuz() { 4.0 } else { 1.0 }
    }

    /// Sums as f32, in that unit.
    pub fn as_floats(&self, sums: Vector<'c>) -> Vector<'c> {
        let (c, count) = (self.c, sums.get_type().get_size());
        match self.dtype {
            DType::I8 => {
                let floats = c.cx.f32_type().vec_type(count);
                c.b.build_signed_int_to_float(sums, floats, "").expect("integers of 32 bits")
            }
            _ => sums,
        }
    }

    /// `sums + a * b`.
    pub fn product(&self, a: &Fragment<'c>, b: &Fragment<'c>, sums: Vector<'c>) -> Vector<'c> {
        match self.product {
            Some(Product { shape: ProductShape::Mma { .. }, .. }) => {
                let mut sums = [sums];
                self.products(a, std::slice::from_ref(b), &mut sums);
                sums[0]
            }
            Some(product) => self.instructions(product, a, b, sums),
            None if self.dtype == DType::F16 => self.widened(a, b, sums),
            None => self.in_parts(a, b, sums),
        }
    }

    /// Blocks of columns that one instruction takes.
    pub fn together(&self) -> usize {
        16 / self.layout.columns
    }

    /// `sums[j] + a * b[j]`. An instruction that takes two blocks of columns halves the number of
    /// instructions.
    pub fn products(&self, a: &Fragment<'c>, b: &[Fragment<'c>], sums: &mut [Vector<'c>]) {
        match self.product {
            Some(p @ Product { shape: ProductShape::Mma { .. }, .. }) => {
                b.chunks(self.together())
                    .zip(sums.chunks_mut(self.together()))
                    .for_each(|(b, sums)| self.two_blocks(p, a, b, sums));
            }
            _ => b.iter().zip(sums).for_each(|(b, sum)| *sum = self.product(a, b, *sum)),
        }
    }

    /// Our columns are the rows of `m16n8k16`: those of the first block, then those of the second,
    /// or zeros.
    fn two_blocks(&self, p: Product, a: &Fragment<'c>, b: &[Fragment<'c>], sums: &mut [Vector<'c>]) {
        let c = self.c;
        let f32 = c.cx.f32_type();
        let word = |fragment: &[Vector<'c>], i: usize| self.word(p, c.as_int(c.lane(fragment[i / 4], i % 4)));
        let nothing = self.word(p, c.int(0));
        let at = |i: u64| c.cx.i32_type().const_int(i, false);
        let rows: Vec<&[Vector<'c>]> = a.chunks(self.vec16s()).collect();
        for (half, row) in rows.iter().enumerate() {
            let lanes = |sums: &[Vector<'c>], block: usize| -> [Any<'c>; 2] {
                let of = |i| sums.get(block).map_or(f32.const_zero().into(), |&s| c.lane(s, 2 * half + i));
                [of(0), of(1)]
            };
            let [mut low, mut high] = [lanes(sums, 0), lanes(sums, 1)];
            for step in 0..self.layout.depth / p.elements {
                let of = |block: usize, i: usize| b.get(block).map_or(nothing, |b| word(b, 2 * step + i));
                let args = [of(0, 0), of(1, 0), of(0, 1), of(1, 1), word(row, 2 * step), word(row, 2 * step + 1)];
                let args: Vec<_> = args.into_iter().chain(low).chain(high).map(|v| v.into()).collect();
                let made = c.call(p.intrinsic, &[], &args).into_struct_value();
                let sum = |i| c.b.build_extract_value(made, i, "").expect("four sums");
                (low, high) = ([sum(0), sum(1)], [sum(2), sum(3)]);
            }
            for (sum, made) in sums.iter_mut().zip([low, high]) {
                for (i, v) in made.into_iter().enumerate() {
                    *sum = c.b.build_insert_element(*sum, v, at((2 * half + i) as u64), "").expect("a sum into sums");
                }
            }
        }
    }

    /// 16 rows by 8 columns of sums, with the rows as `m16n8k16` has them, and the products of
    /// words as [`Gpu::load_blocks`] gives them: of a panel, and of columns.
    pub fn blocks(&self, panel: [Int<'c>; 4], columns: [Int<'c>; 2], sums: &[Any<'c>]) -> Vec<Any<'c>> {
        let c = self.c;
        let product = self.product.expect("elements that the machine multiplies");
        let words = panel.into_iter().chain(columns).map(|v| self.word(product, v));
        let args: Vec<_> = words.chain(sums.iter().copied()).map(|v| v.into()).collect();
        let made = c.call(product.intrinsic, &[], &args).into_struct_value();
        (0..4).map(|i| c.b.build_extract_value(made, i, "").expect("four sums")).collect()
    }

    /// A word as the intrinsic wants it.
    fn word(&self, p: Product, word: Int<'c>) -> Any<'c> {
        match p.shape {
            ProductShape::Mma { integers: false } => self.c.bitcast(word, self.c.cx.f16_type().vec_type(2)),
            _ => word.into(),
        }
    }

    /// `sums + a * b` by one of the machine's instructions, as often as the fragments need it.
    pub fn instructions(&self, p: Product, a: &Fragment<'c>, b: &Fragment<'c>, sums: Vector<'c>) -> Vector<'c> {
        let words = p.elements * p.dtype.size() / 4;
        let (a, b) = (self.c.join(a), self.c.join(b));
        (0..a.get_type().get_size() as usize / words).fold(sums, |sums, i| {
            let part = |v: Vector<'c>| self.operand(p, self.c.part(v, i * words, words));
            self.instruction(p, part(a), part(b), sums)
        })
    }

    /// Words as the intrinsic wants its elements.
    fn operand(&self, p: Product, words: Vector<'c>) -> Any<'c> {
        let (c, n) = (self.c, p.elements as u32);
        let integers = match p.shape {
            ProductShape::Mfma { integers } | ProductShape::Wmma { integers } => integers,
            ProductShape::WmmaReuse | ProductShape::MfmaF8f6f4 | ProductShape::WmmaIu8 => false,
            ProductShape::Mma { .. } => unreachable!("words one by one"),
        };
        let ty: BasicTypeEnum = match p.dtype {
            DType::F32 if n == 1 => c.cx.f32_type().into(),
            DType::F32 => c.cx.f32_type().vec_type(n).into(),
            DType::F16 => c.cx.f16_type().vec_type(n).into(),
            DType::BF16 if integers => c.cx.i16_type().vec_type(n).into(),
            DType::BF16 => self.bfloat(n).into(),
            DType::I8 | DType::F8E4M3 => match (p.shape, n / 4) {
                (_, 1) => c.cx.i32_type().into(),
                (ProductShape::Mfma { .. }, 2) => c.cx.i64_type().into(),
                (_, words) => c.cx.i32_type().vec_type(words).into(),
            },
            _ => panic!("no products of {}", p.dtype.name()),
        };
        c.bitcast(words, ty)
    }

    fn bfloat(&self, n: u32) -> VectorType<'c> {
        self.c.cx.bf16_type().vec_type(n)
    }

    fn instruction(&self, p: Product, a: Any<'c>, b: Any<'c>, sums: Vector<'c>) -> Vector<'c> {
        let c = self.c;
        let (zero, no) = (c.cx.i32_type().const_zero().into(), c.cx.bool_type().const_zero().into());
        let made = match p.shape {
            ProductShape::Mfma { .. } => c.call(p.intrinsic, &[], &[a.into(), b.into(), sums.into(), zero, zero, zero]),
            ProductShape::Wmma { .. } => {
                c.call(p.intrinsic, &[sums.get_type().into(), a.get_type()], &[a.into(), b.into(), sums.into()])
            }
            ProductShape::MfmaF8f6f4 => {
                let args = [a.into(), b.into(), sums.into(), zero, zero, zero, zero, zero, zero];
                c.call(p.intrinsic, &[a.get_type(), b.get_type()], &args)
            }
            ProductShape::WmmaIu8 => {
                let signed = c.cx.bool_type().const_all_ones().into();
                let args = [signed, a.into(), signed, b.into(), sums.into(), no];
                c.call(p.intrinsic, &[sums.get_type().into(), a.get_type()], &args)
            }
            ProductShape::WmmaReuse => {
                let plain = c.cx.i16_type().const_zero().into();
                let args = [no, a.into(), no, b.into(), plain, sums.into(), no, no];
                c.call(p.intrinsic, &[sums.get_type().into(), a.get_type()], &args)
            }
            ProductShape::Mma { .. } => unreachable!("its columns are not ours"),
        };
        made.into_vector_value()
    }

    /// `sums + a * b` by an instruction that multiplies each 32 columns by a scale of either.
    pub fn block_scaled(
        &self,
        intrinsic: &str,
        [a, b]: [&Fragment<'c>; 2],
        [of_a, of_b]: [BlockScale<'c>; 2],
        sums: Vector<'c>,
    ) -> Vector<'c> {
        let (c, i32) = (self.c, self.c.cx.i32_type());
        let k = |n: usize| i32.const_int(n as u64, false).into();
        let (a, b) = (c.join(a), c.join(b));
        let format = k(if self.dtype == DType::F4E2M1 { E2M1 } else { E4M3 });
        let args = [a.into(), b.into(), sums.into(), format, format];
        let scales = [k(of_a.byte), of_a.word.v.into(), k(of_b.byte), of_b.word.v.into()];
        let args: Vec<_> = args.into_iter().chain(scales).collect();
        c.call(intrinsic, &[a.get_type().into(), b.get_type().into()], &args).into_vector_value()
    }

    /// f16 products by way of f32, if the machine's own lose subnormal numbers.
    fn widened(&self, a: &Fragment<'c>, b: &Fragment<'c>, sums: Vector<'c>) -> Vector<'c> {
        let c = self.c;
        let wide = |x: &Fragment<'c>| -> Fragment<'c> {
            let words = c.join(x);
            let n = 2 * words.get_type().get_size();
            let halves = c.bitcast(words, c.cx.f16_type().vec_type(n)).into_vector_value();
            let floats = c.b.build_float_ext(halves, c.cx.f32_type().vec_type(n), "").expect("f16 to f32");
            let words = c.bitcast(floats, c.cx.i32_type().vec_type(n)).into_vector_value();
            (0..n as usize / 4).map(|i| c.part(words, 4 * i, 4)).collect()
        };
        Matrix::new(c, DType::F32).product(&wide(a), &wide(b), sums)
    }

    /// f32 products if the machine has none: each number is exactly the sum of three bf16. Of the
    /// nine products the three smallest, below 2^-24 of the largest, are left out. An infinity
    /// becomes NaN.
    fn in_parts(&self, a: &Fragment<'c>, b: &Fragment<'c>, sums: Vector<'c>) -> Vector<'c> {
        let bf16 = Matrix::new(self.c, DType::BF16);
        let (a, b) = (self.thirds(a), self.thirds(b));
        // The small products are added first, so that the sums are rounded twice and not six times.
        let small = [(0, 2), (2, 0), (1, 1), (0, 1), (1, 0)];
        let small = small.iter().fold(self.zero(), |sum, &(i, j)| bf16.product(&a[i], &b[j], sum));
        self.c.fadd(bf16.product(&a[0], &b[0], sums), small)
    }

    /// The upper 8, middle 8 and lower 8 bits of f32 numbers, each as a fragment of bf16.
    pub fn thirds(&self, x: &Fragment<'c>) -> [Fragment<'c>; 3] {
        let c = self.c;
        let words = c.join(x);
        let n = words.get_type().get_size();
        let (floats, ints) = (c.cx.f32_type().vec_type(n), c.cx.i32_type().vec_type(n));
        let k = |bits: u64| VectorType::const_vector(&vec![c.cx.i32_type().const_int(bits, false); n as usize]);
        let mut rest = c.bitcast(words, floats).into_vector_value();
        [0; 3].map(|_| {
            let bits = c.bitcast(rest, ints).into_vector_value();
            let high = c.b.build_and(bits, k(0xffff_0000), "").expect("integers");
            rest = c.fsub(rest, c.bitcast(high, floats).into_vector_value());
            let halves = c.b.build_right_shift(high, k(16), false, "").expect("integers");
            let halves = c.b.build_int_truncate(halves, c.cx.i16_type().vec_type(n), "").expect("integers");
            let packed = c.bitcast(halves, c.cx.i32_type().vec_type(n / 2)).into_vector_value();
            (0..n as usize / 8).map(|i| c.part(packed, 4 * i, 4)).collect()
        })
    }
}
