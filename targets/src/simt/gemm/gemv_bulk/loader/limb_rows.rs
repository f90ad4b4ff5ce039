//! Rows as limbs of fixed-point numbers, in local memory. A limb of all columns is a plane.
use inkwell::values::FloatValue;

use crate::code::{Int, Ptr};
use crate::simt::gemm::contract::Contraction;
use crate::simt::gemm::gemv_bulk::limbs::Integers;
use crate::simt::gemm::gemv_bulk::{Ground, Shape};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;

/// Limbs of a number.
const LIMBS: usize = 4;
/// Tokens in one product: their limbs are its columns.
pub const TILE: usize = 8 / LIMBS;
/// Bytes that are added to a plane of limbs, a multiple of 128 bytes long, so that lanes with
/// different limbs use different banks.
const APART: usize = 32;

/// Bytes from one plane of limbs to the next.
fn plane_bytes(shape: &Shape) -> usize {
    shape.columns().next_multiple_of(128) + APART
}

/// Bytes of the limbs of all tokens.
pub fn limbs_bytes(shape: &Shape) -> usize {
    shape.tokens * plane_bytes(shape) * LIMBS
}

/// Bytes of local memory for limbs, and for the numbers that they are derived from.
pub fn bytes(shape: &Shape) -> usize {
    shape.tokens * (LIMBS * plane_bytes(shape) + 4 * shape.waves() + 4)
}

/// Rows as limbs, in local memory.
pub struct LimbRows<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    how: Integers,
    /// Planes of limbs. The planes of one token are adjacent.
    planes: Ptr<'c>,
    /// The largest number of each wave's part of a token, and the unit of a token's limbs.
    tops: Ptr<'c>,
    units: Ptr<'c>,
}

impl<'s, 'k, 'a, 'c> LimbRows<'s, 'k, 'a, 'c> {
    pub fn begin(ground: Ground<'s, 'k, 'a, 'c>, how: Integers) -> LimbRows<'s, 'k, 'a, 'c> {
        let Ground { contraction, shape, .. } = ground;
        let c = contraction.matrix.c;
        LimbRows {
            contraction,
            shape,
            how,
            planes: c.shared(shape.tokens * LIMBS * plane_bytes(&shape), 128),
            tops: c.shared(shape.tokens * shape.waves() * 4, 16),
            units: c.shared(shape.tokens * 4, 4),
        }
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    /// Eight numbers of a staged row.
    fn numbers(&self, staged: Int<'c>, token: usize, vector: Int<'c>) -> Vec<FloatValue<'c>> {
        let (c, shape, dtype) = (self.code(), self.shape, self.contraction.matrix.dtype);
        let p = c.at_address(staged + (vector * shape.vec16_bytes() + token * shape.token_bytes()));
        c.set_lanes(8);
        let v = c.widen(c.load_vector(c.bytes_type(dtype.size()), 8, p, VEC16), dtype);
        (0..8).map(|i| c.lane(v, i).into_float_value()).collect()
    }

    /// Makes limbs of staged rows. Threads need a barrier before they are read.
    pub fn make(&self, staged: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let (vectors, threads, word) = (shape.columns() / 8, shape.threads(), c.cx.i32_type());
        let top_at = |token: usize, wave: Int<'c>| c.at(self.tops, (wave + token * shape.waves()) * 4);
        for token in 0..shape.tokens {
            let top = c.carry((c.thread(), vectors, threads), c.as_int(word.const_zero()), |i, top| {
                let bits = |v: FloatValue<'c>| c.as_int(c.bitcast(v, word)) & 0x7fff_ffff;
                let all = self.numbers(staged, token, i).into_iter().map(bits);
                all.fold(top, |a, b| c.larger(a, b))
            });
            c.store(top_at(token, c.wave_index()), c.largest_of_wave(top), 4);
        }
        c.barrier();
        for token in 0..shape.tokens {
            let load = |wave: usize| c.as_int(c.load(word, top_at(token, c.int(wave)), 4));
            let top = (1..shape.waves()).fold(load(0), |top, wave| c.larger(top, load(wave)));
            // Numbers stay below 2^30, so limbs carry into the highest one and not beyond.
            let exponent = top.shift_right(23, false);
            let safe = c.larger(exponent, 30);
            let power = |exponent: Int<'c>| c.bitcast(exponent.shift_left(23), c.cx.f32_type()).into_float_value();
            let scale = power(283 - safe);
            c.when(c.equal(c.thread(), 0), || {
                // Infinity or NaN makes a row of NaN.
                let unit = c.pick(c.equal(exponent, 255), c.number(f64::NAN), power(safe - 29));
                let (times, _) = self.how.unit();
                let unit = c.float(unit) * c.number(1.0 / times as f64);
                c.store(c.at(self.units, token * 4), unit, 4);
            });
            c.repeat(c.thread(), vectors, threads, |i| {
                let limbs = |v: FloatValue<'c>| (c.nearest((c.float(v) * scale).v) + 0x8080_8080) ^ 0x8080_8080;
                let all: Vec<Int> = self.numbers(staged, token, i).into_iter().map(limbs).collect();
                let [low, high] = self.how.order().map(|columns| transposed(c, columns.map(|i| all[i])));
                for (limb, words) in low.into_iter().zip(high).enumerate() {
                    self.store(token * LIMBS + limb, i, words.into());
                }
            });
        }
    }

    /// Stores a limb of eight numbers.
    fn store(&self, plane: usize, vector: Int<'c>, [low, high]: [Int<'c>; 2]) {
        let c = self.code();
        let at = |column: Int<'c>| c.at(self.planes, column + plane * plane_bytes(&self.shape));
        if self.how.values.bits() == 4 {
            return c.store(at(vector * 8), c.words(&[low, high]), 8);
        }
        // A lane has four columns of both halves of 32.
        let (block, part) = (vector / 4, vector % 4);
        let first = block * 32 + part % 2 * 16 + part / 2 * 4;
        c.store(at(first), low, 4);
        c.store(at(first + 8), high, 4);
    }

    /// The unit of a token's sums.
    pub fn unit(&self, token: Int<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.load(c.cx.f32_type(), c.at(self.units, token * 4), 4).into_float_value()
    }

    /// The addresses of the lane's limbs of each tile.
    pub fn places(&self) -> Vec<Int<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let (lane, planes) = (c.lane_index(), c.local_address(self.planes));
        let place = |tile: usize| {
            let plane = c.smaller(lane / 4 + 8 * tile, LIMBS * shape.tokens - 1);
            planes + (plane * plane_bytes(&shape) + lane % 4 * 8)
        };
        (0..shape.tiles()).map(place).collect()
    }

    /// A row's sums of two limbs as one number, in `unit`s of its token.
    pub fn joined(&self, [low, high]: [FloatValue<'c>; 2]) -> FloatValue<'c> {
        let c = self.code();
        let both = c.float(high) * c.number(256.0) + low;
        let is_low = c.equal(c.lane_index() % 2, 0);
        let own = c.pick(is_low, both, both * c.number(65536.0)).into_float_value();
        c.across(own, &[1], |a, b| (c.float(a) + b).v)
    }

    /// The token of a tile that the lane has sums of after [`LimbRows::joined`]. Every other lane
    /// has the same token.
    pub fn token(&self, tile: usize) -> (Int<'c>, Int<'c>) {
        let (c, lane) = (self.code(), self.code().lane_index());
        let token = lane % 4 / 2 + TILE * tile;
        (token, c.equal(lane % 2, 0) & c.less(token, self.shape.tokens))
    }
}

/// Byte `i` of each of four words, as word `i`.
fn transposed<'c>(c: &Gpu<'c>, [x, y, z, w]: [Int<'c>; 4]) -> [Int<'c>; 4] {
    let choose = |a, b, bytes: usize| c.choose_bytes(a, b, c.int(bytes));
    let pairs = [0x5140, 0x7362].map(|bytes| (choose(x, y, bytes), choose(z, w, bytes)));
    let [(a, b), (d, e)] = pairs;
    [choose(a, b, 0x5410), choose(a, b, 0x7632), choose(d, e, 0x5410), choose(d, e, 0x7632)]
}
