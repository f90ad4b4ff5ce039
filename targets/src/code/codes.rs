//! Codes of weights and caches in registers, as the numbers that products take.
//!
//! Numbers of 4 and of 8 bits have less exponent and less mantissa than those of 16 and of 32,
//! which therefore hold all of them. Floats become others by shifts, which leave the exponent off
//! by a number, and one product with a power of two. Integers are put into the mantissa of a power
//! of two, which is then taken off, together with the zero point.
use atomc_ir::arch::Isa;
use atomc_ir::{Arch, DType};
use inkwell::types::VectorType;
use inkwell::values::FloatValue;

use super::{BUILT, Code, Int, Vector};

/// How codes of one type become numbers of another.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    codes: DType,
    to: DType,
    /// Whether results are pairs of 16-bit numbers. Otherwise they are 32-bit numbers; a bf16 is
    /// the upper half of one.
    pairs: bool,
    conversion: Conversion,
    /// Whether the pairs of a word of 4-bit codes are those that lie half a word apart, which takes
    /// half as many instructions: columns `i` and `i + 4`.
    apart: bool,
}

/// The conversions that the machine has instructions for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conversion {
    Nothing,
    /// Pairs of e4m3 into f16.
    Pairs,
    /// Pairs of e4m3 and of e2m1 into 16 bits, times a power of two.
    ScaledPairs,
}

/// The number that is subtracted from integers, once for each lane that is computed at once.
#[derive(Clone, Copy, Debug)]
pub struct Zero<'c>(pub Vector<'c>);

/// The number of 16 bits that has its last mantissa bit worth one, and its bits.
const BF16_UNIT: (f64, usize) = (128.0, 0x4300);
const F16_UNIT: (f64, usize) = (1024.0, 0x6400);
/// By how much the exponent of e2m1 in the bits of bf16 is less than the number's.
const LACKING: i32 = 126;

impl Decoder {
    /// With the arithmetic that an arch is best at.
    pub fn new(arch: &Arch, codes: DType, to: DType) -> Decoder {
        let packs_bf16 = arch.isa() == Some(Isa::Ptx);
        let conversion = match arch.gpu().map(|gpu| gpu.simt) {
            Some(simt) if simt.bulk_copies && (codes, to) == (DType::F8E4M3, DType::F16) => Conversion::Pairs,
            Some(simt) if simt.scales_pairs && codes.is_code() && !codes.is_integer_code() && to.size() == 2 => {
                Conversion::ScaledPairs
            }
            _ => Conversion::Nothing,
        };
        let looks_up = codes == DType::F4E2M1 && arch.isa() == Some(Isa::Amdgcn);
        let makes_bf16 = packs_bf16 || looks_up || conversion == Conversion::ScaledPairs;
        let pairs = to == DType::F16 || to == DType::BF16 && makes_bf16;
        Decoder { codes, to, pairs, conversion, apart: false }
    }

    /// Whether codes are decoded together with a scale that is a power of two.
    pub fn takes_powers(&self) -> bool {
        self.conversion == Conversion::ScaledPairs
    }

    /// Whether pairs are multiplied by an instruction.
    pub fn multiplies_pairs<'c>(&self, c: &Code<'c>) -> bool {
        self.pairs && (self.to == DType::F16 || c.arch.isa() == Some(Isa::Ptx))
    }

    /// Words of codes, times a power of two, as words of numbers, all in order. Each product is
    /// rounded once.
    pub fn times_power<'c>(&self, c: &Code<'c>, words: &[Int<'c>], power: FloatValue<'c>) -> Vec<Int<'c>> {
        words.iter().flat_map(|&word| self.scaled_pairs(c, word, power)).collect()
    }

    fn scaled_pairs<'c>(&self, c: &Code<'c>, word: Int<'c>, power: FloatValue<'c>) -> Vec<Int<'c>> {
        let (codes, number) = match self.codes {
            DType::F8E4M3 => ("fp8", c.cx.bool_type()),
            _ => ("fp4", c.cx.i32_type()),
        };
        let name = format!("llvm.amdgcn.cvt.scalef32.pk.{}.{codes}", self.to.name());
        let pair = |i: usize| {
            let args = [word.into(), power.into(), number.const_int(i as u64, false).into()];
            self.as_word(c, c.call(&name, &[], &args).into_vector_value())
        };
        (0..32 / self.codes.bits() / 2).map(pair).collect()
    }

    /// A decoder that pairs columns half a word apart, where it makes pairs.
    pub fn with_pairs_apart(self) -> Decoder {
        Decoder { apart: self.pairs && self.codes.bits() == 4, ..self }
    }

    /// The decoded words of one word of codes, in the order of its codes.
    pub fn ordered<'c>(&self, c: &Code<'c>, words: Vec<Int<'c>>) -> Vec<Int<'c>> {
        if !self.apart {
            return words;
        }
        let half = words.len() / 2;
        let two = |i: usize| {
            let both = |bytes: u64| {
                let bytes = c.cx.i32_type().const_int(bytes, false);
                c.as_int(c.call("llvm.nvvm.prmt", &[], &[words[i].into(), words[half + i].into(), bytes.into()]))
            };
            [both(0x5410), both(0x7632)]
        };
        (0..half).flat_map(two).collect()
    }

    /// Whether numbers are computed in pairs of 16 bits.
    pub fn makes_pairs(&self) -> bool {
        self.pairs
    }

    /// Words of decoded numbers times a scale, each product rounded once. A pair's scale must be
    /// one of its type.
    pub fn scaled<'c>(&self, c: &Code<'c>, words: &[Int<'c>], scale: FloatValue<'c>) -> Vec<Int<'c>> {
        let scale = self.alike(c, scale);
        words.iter().map(|&word| self.as_word(c, c.fmul(self.as_numbers(c, word), scale))).collect()
    }

    /// The zero point of integers, a number of 32 bits with a sign.
    pub fn zero<'c>(&self, c: &Code<'c>, zero: Int<'c>) -> Zero<'c> {
        let zero = c.b.build_signed_int_to_float(zero.v, c.cx.f32_type(), "").expect(BUILT);
        let all = c.b.build_float_add(zero, c.number(self.base()), "").expect(BUILT);
        Zero(self.alike(c, all))
    }

    /// The number that is subtracted from integers with zero point 0.
    fn base(&self) -> f64 {
        let bias = self.bias() as f64;
        match (self.pairs, self.to, self.codes) {
            (true, DType::F16, _) => F16_UNIT.0 + bias,
            // Codes of 8 bits are computed as signed numbers.
            (true, _, DType::U8) => -128.0,
            (true, ..) => 0.0,
            (false, ..) => bias,
        }
    }

    /// The offset that makes signed codes unsigned without changing their order.
    fn bias(&self) -> usize {
        match self.codes {
            DType::I4 => 8,
            DType::I8 => 128,
            _ => 0,
        }
    }

    /// Numbers that are all the same, as many as are computed with at once.
    fn alike<'c>(&self, c: &Code<'c>, v: FloatValue<'c>) -> Vector<'c> {
        let lanes = c.lanes();
        c.set_lanes(if self.pairs { 2 } else { 1 });
        let all = c.splat(v);
        let all = if self.pairs { c.b.build_float_trunc(all, self.numbers(c), "").expect(BUILT) } else { all };
        c.set_lanes(lanes);
        all
    }

    /// The type of numbers that are computed with at once.
    fn numbers<'c>(&self, c: &Code<'c>) -> VectorType<'c> {
        match (self.pairs, self.to) {
            (true, DType::F16) => c.cx.f16_type().vec_type(2),
            (true, _) => c.cx.bf16_type().vec_type(2),
            (false, _) => c.cx.f32_type().vec_type(1),
        }
    }

    fn lit<'c>(&self, c: &Code<'c>, v: f64) -> Vector<'c> {
        let ty = self.numbers(c);
        let one = ty.get_element_type().into_float_type().const_float(v);
        VectorType::const_vector(&vec![one; ty.get_size() as usize])
    }

    /// Words of 4-bit integers as pairs of numbers, all in order, before the
    /// [offset](Decoder::raised_by) is subtracted.
    pub fn raised_pairs<'c>(&self, c: &Code<'c>, words: &[Int<'c>]) -> Vec<Int<'c>> {
        words.iter().flat_map(|&word| self.pairs_of_nibbles(c, word)).collect()
    }

    /// The offset of these numbers from integers with zero point 0, or with the zero point of
    /// [a decoder](Decoder::zero) into f32.
    pub fn raised_by<'c>(&self, c: &Code<'c>, zero: Option<Zero<'c>>) -> FloatValue<'c> {
        let unit = if self.to == DType::F16 { F16_UNIT.0 } else { BF16_UNIT.0 };
        match zero {
            // It is more by the bias already.
            Some(zero) => {
                let zero = c.lane(zero.0, 0).into_float_value();
                c.b.build_float_add(zero, c.number(unit), "").expect(BUILT)
            }
            None => c.number(unit + self.bias() as f64),
        }
    }

    /// Words of codes as words of numbers, less their zero point, all in order.
    pub fn decode<'c>(&self, c: &Code<'c>, words: &[Int<'c>], zero: Option<Zero<'c>>) -> Vec<Int<'c>> {
        words.iter().flat_map(|&word| self.word(c, word, zero)).collect()
    }

    fn word<'c>(&self, c: &Code<'c>, word: Int<'c>, zero: Option<Zero<'c>>) -> Vec<Int<'c>> {
        let made = match (self.codes, self.pairs) {
            (DType::F8E4M3 | DType::F4E2M1, true) => self.pairs_of_floats(c, word),
            (DType::F8E4M3 | DType::F4E2M1, false) => self.words_of_floats(c, word),
            (_, true) => self.pairs_of_integers(c, word, zero),
            (_, false) => self.words_of_integers(c, word, zero),
        };
        match (self.pairs, self.to) {
            (false, DType::BF16) => {
                made.chunks(2).map(|two| two[0].shift_right(16, false) | (two[1] & 0xffff_0000)).collect()
            }
            _ => made,
        }
    }

    /// The bits of numbers, as numbers.
    fn as_numbers<'c>(&self, c: &Code<'c>, bits: Int<'c>) -> Vector<'c> {
        c.bitcast(bits, self.numbers(c)).into_vector_value()
    }

    fn as_word<'c>(&self, c: &Code<'c>, numbers: Vector<'c>) -> Int<'c> {
        c.as_int(c.bitcast(numbers, c.cx.i32_type()))
    }

    /// Turns bits with an exponent that is too small by `exponent` into the numbers that they mean.
    /// Subnormal numbers stay exact.
    fn raised<'c>(&self, c: &Code<'c>, bits: Int<'c>, exponent: i32) -> Int<'c> {
        self.as_word(c, c.fmul(self.as_numbers(c, bits), self.lit(c, f64::from(exponent).exp2())))
    }

    fn pairs_of_floats<'c>(&self, c: &Code<'c>, word: Int<'c>) -> Vec<Int<'c>> {
        let half = self.to == DType::F16;
        if self.conversion == Conversion::ScaledPairs {
            return self.scaled_pairs(c, word, c.number(1.0));
        }
        if self.conversion == Conversion::Pairs {
            let two = |v: Int<'c>| {
                let bits = c.b.build_int_truncate(v.v, c.cx.i16_type(), "").expect(BUILT);
                self.as_word(c, c.call("llvm.nvvm.e4m3x2.to.f16x2.rn", &[], &[bits.into()]).into_vector_value())
            };
            return vec![two(word), two(word.shift_right(16, false))];
        }
        if self.codes == DType::F8E4M3 {
            let (by, exponent) = if half { (1, 8) } else { (4, 120) };
            let bits = |v: Int<'c>| (v & 0x8000_8000) | (v & 0x7f00_7f00).shift_right(by, false);
            return upper_bytes(c, word).map(|v| self.raised(c, bits(v), exponent)).to_vec();
        }
        if !self.apart && c.arch.isa() == Some(Isa::Ptx) {
            return self.pairs_of_nibble_floats(c, word);
        }
        if c.arch.isa() == Some(Isa::Amdgcn) {
            return self.pairs_by_bytes(c, word);
        }
        let exponent = if half { 14 } else { LACKING };
        self.lowered_pairs(word).into_iter().map(|bits| self.raised(c, bits, exponent)).collect()
    }

    /// Pairs of e2m1 as bits with an exponent that is too small by a constant.
    fn lowered_pairs<'c>(&self, word: Int<'c>) -> Vec<Int<'c>> {
        let by = if self.to == DType::F16 { 3 } else { 6 };
        let wanted = 0x8000_8000 | 0x7000_7000 >> by;
        // A product with two powers of two puts a nibble's sign bit where the sign belongs, and its
        // other bits where they belong: one instruction instead of two shifts, in a pipe that masks
        // do not need.
        let apart = |word: Int<'c>, i: usize| {
            let up = 12 - 4 * i;
            ((word & (0x000f_000f << (4 * i))) * ((1 << up) + (1 << (up - by)))) & wanted
        };
        let upper = |i: usize| {
            let v = upper_nibbles(word, i);
            (v & 0x8000_8000) | (v & 0x7000_7000).shift_right(by, false)
        };
        let lower = || word.shift_right(8, false);
        match self.apart {
            true => [word, lower()].iter().flat_map(|&word| [apart(word, 0), apart(word, 1)]).collect(),
            false => (0..4).map(upper).collect(),
        }
    }

    /// Whether a scale of e8m0 and the missing exponent of the codes' bits are combined into one
    /// factor, unless [the scale is too large](Decoder::has_no_factor).
    pub fn takes_exponents(&self) -> bool {
        self.apart && (self.codes, self.to) == (DType::F4E2M1, DType::BF16)
    }

    /// The factor of a byte of e8m0, as a pair of equal numbers.
    pub fn factor_of<'c>(&self, byte: Int<'c>) -> Int<'c> {
        byte * 0x0080_0080 + LACKING as usize * 0x0080_0080
    }

    /// Whether one of some bytes of e8m0 is so large that no number of the type is the factor.
    pub fn has_no_factor<'c>(&self, c: &Code<'c>, bytes: &[Int<'c>]) -> Int<'c> {
        let most = bytes.iter().copied().reduce(|most, byte| c.larger(most, byte)).expect("a scale at least");
        c.less(254 - LACKING as usize, most)
    }

    /// A word of codes times a factor, as words of numbers.
    pub fn times_factor<'c>(&self, c: &Code<'c>, word: Int<'c>, factor: Int<'c>) -> Vec<Int<'c>> {
        let factor = self.as_numbers(c, factor);
        let times = |bits: Int<'c>| self.as_word(c, c.fmul(self.as_numbers(c, bits), factor));
        self.lowered_pairs(word).into_iter().map(times).collect()
    }

    /// The upper and lower bytes of 0, 0.5, 1 and 1.5, and of 2, 3, 4 and 6.
    fn bytes_of_nibble_floats(&self) -> [[u64; 2]; 2] {
        match self.to {
            DType::F16 => [[0x3e3c_3800, 0x4644_4240], [0, 0]],
            _ => [[0x3f3f_3f00, 0x4040_4040], [0xc080_0000, 0xc080_4000]],
        }
    }

    /// As the function below, where a permutation takes a byte's number from a byte. The four codes
    /// of even columns are looked up together, and so are those of odd columns.
    fn pairs_by_bytes<'c>(&self, c: &Code<'c>, word: Int<'c>) -> Vec<Int<'c>> {
        let permute = |low: Int<'c>, high: Int<'c>, bytes: Int<'c>| {
            c.as_int(c.call("llvm.amdgcn.perm", &[], &[high.into(), low.into(), bytes.into()]))
        };
        let number = |bits: u64| c.as_int(c.cx.i32_type().const_int(bits, false));
        let [upper, lower] = self.bytes_of_nibble_floats();
        let four = |table: [u64; 2], sizes: Int<'c>| permute(number(table[0]), number(table[1]), sizes);
        let two = |signs: Int<'c>, sizes: Int<'c>| {
            let sizes = sizes & 0x0707_0707;
            let high = four(upper, sizes) | (signs & 0x8080_8080);
            let low = if lower == [0, 0] { number(0) } else { four(lower, sizes) };
            [0x0501_0400, 0x0703_0602].map(|bytes| permute(low, high, number(bytes)))
        };
        let even = two(word.shift_left(4), word);
        let odd = two(word, word.shift_right(4, false));
        let in_order =
            |(even, odd): (Int<'c>, Int<'c>)| [0x0504_0100, 0x0706_0302].map(|bytes| permute(even, odd, number(bytes)));
        even.into_iter().zip(odd).flat_map(in_order).collect()
    }

    /// Decodes e2m1: the machine's byte permutation looks up four bytes at a time.
    fn pairs_of_nibble_floats<'c>(&self, c: &Code<'c>, word: Int<'c>) -> Vec<Int<'c>> {
        let [upper, lower] = self.bytes_of_nibble_floats();
        let (sizes, raised) = (word & 0x7777_7777, word.shift_left(4));
        let signs = [0x1504, 0x3726].map(|bytes| permuted(c, word, raised, bytes) & 0x8080_8080);
        let four = |table: [u64; 2], at: usize| {
            let [low, high] = table.map(|bytes| c.as_int(c.cx.i32_type().const_int(bytes, false)));
            let four = if at == 0 { sizes } else { sizes.shift_right(16, false) };
            c.as_int(c.call("llvm.nvvm.prmt", &[], &[low.into(), high.into(), four.into()]))
        };
        let two = |at: usize| {
            let high = four(upper, at) | signs[at];
            let low = if lower == [0, 0] { c.int(0) } else { four(lower, at) };
            [0x5140, 0x7362].map(|bytes| permuted(c, low, high, bytes))
        };
        [two(0), two(1)].concat()
    }

    /// Pairs of 4-bit integers, each with the upper byte of a number that has its last mantissa bit
    /// worth one.
    fn pairs_of_nibbles<'c>(&self, c: &Code<'c>, word: Int<'c>) -> Vec<Int<'c>> {
        let unit = if self.to == DType::F16 { F16_UNIT.1 } else { BF16_UNIT.1 };
        let ptx = c.arch.isa() == Some(Isa::Ptx);
        if self.apart || !ptx {
            let other = (unit | self.bias()) * 0x1_0001;
            return match self.apart && ptx {
                true => (0..4).map(|i| masked_xor(c, moved(word, -4 * i as isize), 0x000f_000f, other)).collect(),
                false => (0..4).map(|i| self.nibbles(word, i) ^ other).collect(),
            };
        }
        let bytes = |v: Int<'c>| (v & 0x0f0f_0f0f) ^ (self.bias() * 0x0101_0101);
        let (even, odd) = (bytes(word), bytes(word.shift_right(4, false)));
        let unit = c.int(unit >> 8);
        let two = |four: u64| {
            let four = permuted(c, even, odd, four);
            [0x4140, 0x4342].map(|bytes| permuted(c, four, unit, bytes))
        };
        [two(0x5140), two(0x7362)].concat()
    }

    /// Two nibbles in the lower bits of halves.
    fn nibbles<'c>(&self, word: Int<'c>, i: usize) -> Int<'c> {
        if self.apart { moved(word, -4 * i as isize) & 0x000f_000f } else { lower_nibbles(word, i) }
    }

    /// Decodes by way of f32: its upper bits are those of the codes.
    fn words_of_floats<'c>(&self, c: &Code<'c>, word: Int<'c>) -> Vec<Int<'c>> {
        let (bits, by, mask, exponent) = match self.codes {
            DType::F8E4M3 => (8, 4, 0x87f0_0000, 120),
            _ => (4, 6, 0x81c0_0000, 126),
        };
        let one =
            |i: usize| self.raised(c, word.shift_left(32 - bits * (i + 1)).shift_right(by, true) & mask, exponent);
        (0..32 / bits).map(one).collect()
    }

    fn pairs_of_integers<'c>(&self, c: &Code<'c>, word: Int<'c>, zero: Option<Zero<'c>>) -> Vec<Int<'c>> {
        let four = self.codes.bits() == 4;
        let codes = if four { self.pairs_of_nibbles(c, word) } else { lower_bytes(c, word).to_vec() };
        let twice = |bits: usize| bits << 16 | bits;
        let number = |v: Int<'c>| match (self.to, four) {
            (DType::F16, true) => self.as_numbers(c, v),
            // The zero point is taken off apart: both together may have more bits than a mantissa.
            (_, true) => c.fsub(self.as_numbers(c, v), self.lit(c, BF16_UNIT.0 + self.bias() as f64)),
            (DType::F16, _) => self.as_numbers(c, v ^ twice(F16_UNIT.1 | self.bias())),
            // A mantissa has 7 bits: those of a number without its sign.
            (_, false) => {
                let signed = if self.codes == DType::U8 { v ^ twice(0x80) } else { v };
                let part = |mask: usize| self.as_numbers(c, (signed & twice(mask)) | twice(BF16_UNIT.1));
                c.fsub(part(0x7f), part(0x80))
            }
        };
        codes.into_iter().map(|v| self.as_word(c, self.less(c, number(v), zero))).collect()
    }

    fn words_of_integers<'c>(&self, c: &Code<'c>, word: Int<'c>, zero: Option<Zero<'c>>) -> Vec<Int<'c>> {
        let all = |code: usize| (0..32 / self.codes.bits()).fold(0, |all, _| all << self.codes.bits() | code);
        let word = if self.bias() > 0 { word ^ all(self.bias()) } else { word };
        // Bytes become floats by one instruction.
        let bytes = match self.codes.bits() {
            4 => vec![word & 0x0f0f_0f0f, word.shift_right(4, false) & 0x0f0f_0f0f],
            _ => vec![word],
        };
        let one = |(byte, word): (usize, &Int<'c>)| {
            let code = word.shift_right(8 * byte, false) & 0xff;
            let number = c.b.build_unsigned_int_to_float(code.v, c.cx.f32_type(), "").expect(BUILT);
            self.as_word(c, self.less(c, c.floats(&[number.into()]), zero))
        };
        (0..4).flat_map(|byte| bytes.iter().map(move |word| (byte, word))).map(one).collect()
    }

    /// Integers less their zero point and their offset.
    fn less<'c>(&self, c: &Code<'c>, v: Vector<'c>, zero: Option<Zero<'c>>) -> Vector<'c> {
        match zero {
            Some(zero) => c.fsub(v, zero.0),
            None if self.base() != 0.0 => c.fsub(v, self.lit(c, self.base())),
            None => v,
        }
    }
}

/// The bytes of a word in the upper bytes of halves of two.
fn upper_bytes<'c>(c: &Code<'c>, word: Int<'c>) -> [Int<'c>; 2] {
    if c.arch.isa() == Some(Isa::Ptx) {
        return [0x1404, 0x3424].map(|bytes| chosen(c, word, bytes));
    }
    let low = (word & 0xff).shift_left(8) | (word & 0xff00).shift_left(16);
    [low, (word & 0xff_0000).shift_right(8, false) | (word & 0xff00_0000)]
}

/// The bytes of a word in the lower bytes of halves of two.
fn lower_bytes<'c>(c: &Code<'c>, word: Int<'c>) -> [Int<'c>; 2] {
    if c.arch.isa() == Some(Isa::Ptx) {
        return [0x4140, 0x4342].map(|bytes| chosen(c, word, bytes));
    }
    let low = (word & 0xff) | (word & 0xff00).shift_left(8);
    [low, (word & 0xff_0000).shift_right(16, false) | (word & 0xff00_0000).shift_right(8, false)]
}

/// Bytes of a word by number, from the lowest on; 4 is zero.
fn chosen<'c>(c: &Code<'c>, word: Int<'c>, bytes: u64) -> Int<'c> {
    permuted(c, word, c.as_int(c.cx.i32_type().const_zero()), bytes)
}

/// Bytes of two words by number, from the lowest of the first on.
fn permuted<'c>(c: &Code<'c>, low: Int<'c>, high: Int<'c>, bytes: u64) -> Int<'c> {
    let bytes = c.cx.i32_type().const_int(bytes, false);
    c.as_int(c.call("llvm.nvvm.prmt", &[], &[low.into(), high.into(), bytes.into()]))
}

/// `(word & mask) ^ other` by one instruction, which takes one constant and a register: NVIDIA's
/// assembler makes two of two constants.
fn masked_xor<'c>(c: &Code<'c>, word: Int<'c>, mask: usize, other: usize) -> Int<'c> {
    let i32 = c.cx.i32_type();
    let ty = i32.fn_type(&[i32.into(), i32.into()], false);
    let text = format!("lop3.b32 $0, $1, {mask}, $2, 0x6a;");
    let asm = c.cx.create_inline_asm(ty, text, "=r,r,r".into(), false, false, None, false);
    let made = c.b.build_indirect_call(ty, asm, &[word.v.into(), c.int(other).v.into()], "").expect(BUILT);
    c.as_int(made.try_as_basic_value().basic().expect("a word"))
}

/// Nibbles `2 * i` and the next one in the upper bits of halves. The bits below them are arbitrary.
fn upper_nibbles<'c>(word: Int<'c>, i: usize) -> Int<'c> {
    (moved(word, 12 - 8 * i as isize) & 0xffff) | (moved(word, 24 - 8 * i as isize) & 0xffff_0000)
}

/// Nibbles `2 * i` and the next one in the lower bits of halves.
fn lower_nibbles<'c>(word: Int<'c>, i: usize) -> Int<'c> {
    (moved(word, -8 * i as isize) & 0xf) | (moved(word, 12 - 8 * i as isize) & 0xf_0000)
}

/// The bits moved up, or down.
fn moved<'c>(word: Int<'c>, by: isize) -> Int<'c> {
    match by {
        0 => word,
        1.. => word.shift_left(by as usize),
        _ => word.shift_right(by.unsigned_abs(), false),
    }
}

#[cfg(test)]
mod tests;
