//! The parts of a chunk that do not depend on the state.
use atomc_ir::DType;
use inkwell::IntPredicate;
use inkwell::values::FloatValue;

use super::super::products::{Meeting, Products};
use super::super::{element, inverse, vector};
use super::{CHUNK, Chunk, Chunks, MAKERS, OfToken, TEAM};
use crate::code::Ptr;
use crate::row::Operand;
use crate::simt::machine::fragment::VEC16;

/// Elements of 16 bytes.
const LANES: usize = 8;

impl<'c> Chunks<'_, '_, 'c> {
    /// Makes a chunk's stage.
    pub(super) fn make(&self, chunk: Chunk<'c>) {
        let c = self.c;
        self.bring(chunk);
        c.show_to_products();
        c.meet_some(c.int(MAKERS), TEAM);
        let keys = self.rows(self.keys(chunk));
        let pairs = c.mma_async_new(CHUNK / 2, DType::BF16, (keys, keys), self.shape.dim / 16);
        self.lengths(chunk);
        c.when(c.equal(c.wave_index(), 0), || self.gates(chunk));
        c.meet_some(c.int(MAKERS), TEAM);
        let pairs = c.mma_wait(&pairs, 0);
        let pairs: Vec<FloatValue> = pairs.iter().map(|v| v.into_float_value()).collect();
        self.store_pairs(chunk, &pairs);
        c.meet_some(c.int(MAKERS), TEAM);
        let products = Products::meeting(c, Meeting::Some { barrier: MAKERS, threads: TEAM });
        inverse::invert(&products, self.triangle(chunk), CHUNK);
    }

    /// Loads keys and queries, with zeros where there are no tokens. Eight lanes have eight tokens,
    /// so that they write 128 consecutive bytes.
    fn bring(&self, chunk: Chunk<'c>) {
        let (c, delta, dim) = (self.c, self.delta, self.shape.dim);
        let [q, k, _] = delta.starts;
        let lanes = vector(dim, vector(q, vector(k, LANES)));
        let head = self.head / (delta.sizes.heads / delta.sizes.key_heads);
        c.set_lanes(lanes);
        let in_row = dim / lanes;
        let bring = |x: &Operand<'c>, tile: Ptr<'c>, i: usize| {
            let number = c.thread() + i;
            let (token, column) = (number / (8 * in_row) * 8 + number % 8, number / 8 % in_row * lanes);
            let from = element(c, x, c.smaller(chunk.first + token, chunk.end - 1), head * dim + column);
            let bits = c.load_bits(from, DType::BF16);
            let bits = c.pick(c.less(chunk.first + token, chunk.end), bits, bits.get_type().const_zero());
            let at = column / LANES * (CHUNK * VEC16) + token * VEC16 + column % LANES * 2;
            (c.at(tile, at), bits)
        };
        let turns = (0..CHUNK * in_row).step_by(TEAM);
        let (keys, queries) = (self.keys(chunk), self.queries(chunk));
        let all: Vec<_> = turns.flat_map(|i| [bring(&delta.k, keys, i), bring(&delta.q, queries, i)]).collect();
        for (to, bits) in all {
            c.store(to, bits, (2 * lanes) as u32);
        }
    }

    /// The factors that give keys and queries length one: half of the threads have a key each.
    fn lengths(&self, chunk: Chunk<'c>) {
        let (c, dim) = (self.c, self.shape.dim);
        let is_query = !c.less(c.thread(), CHUNK);
        let token = c.thread() % CHUNK;
        let tile = c.pick(is_query, self.queries(chunk), self.keys(chunk)).into_pointer_value();
        c.set_lanes(LANES);
        let sum = (0..dim / LANES).fold(c.zero(), |sum, i| {
            let numbers = c.load_floats(c.at(tile, token * VEC16 + i * (CHUNK * VEC16)), DType::BF16);
            c.fma(numbers, numbers, sum)
        });
        let length = c.float(c.inverse_root(c.sum(sum), 1, self.delta.eps()));
        let scale = c.pick(is_query, c.number((dim as f64).powf(-0.5)), c.number(1.0));
        let [key, query] = [OfToken::Key, OfToken::Query].map(|of| self.place(chunk, of, token));
        let place = c.pick(is_query, query, key).into_pointer_value();
        c.store(place, (length * scale.into_float_value()).v, 4);
    }

    /// The rate of each token's new value, and the logarithm of the decay up to it. A lane has two
    /// tokens.
    fn gates(&self, chunk: Chunk<'c>) {
        let c = self.c;
        let mut before = c.float(c.number(0.0));
        for half in 0..2 {
            let token = c.lane_index() + half * 32;
            let at = chunk.first + token;
            let gates = self.delta.gates(c, c.smaller(at, chunk.end - 1), self.head);
            let [kept, beta] = gates.map(|gate| c.pick(c.less(at, chunk.end), gate, c.number(0.0)).into_float_value());
            let (upto, all) = self.sums_upto(kept);
            c.store(self.place(chunk, OfToken::Decay, token), (before + upto).v, 4);
            c.store(self.place(chunk, OfToken::Beta, token), beta, 4);
            before = before + all;
        }
    }

    /// The sum of the lanes' numbers up to this one's, and of all.
    fn sums_upto(&self, own: FloatValue<'c>) -> (FloatValue<'c>, FloatValue<'c>) {
        let c = self.c;
        [1, 2, 4, 8, 16].into_iter().fold((own, own), |(upto, all), distance: usize| {
            let other = c.across(all, &[distance], |_, other| other);
            let is_behind = c.equal(c.lane_index() / distance % 2, 1);
            let upto = c.pick(is_behind, (c.float(upto) + other).v, upto).into_float_value();
            (upto, (c.float(all) + other).v)
        })
    }

    /// Stores the triangle that `T` is the inverse of.
    fn store_pairs(&self, chunk: Chunk<'c>, pairs: &[FloatValue<'c>]) {
        let (c, triangle) = (self.c, self.triangle(chunk));
        for half in [0, 1] {
            let token = self.row() + 8 * half;
            let [decay, beta, key] =
                [OfToken::Decay, OfToken::Beta, OfToken::Key].map(|of| self.of_token(chunk, of, token));
            let own = (c.float(beta) * key).v;
            for (eight, four) in pairs.chunks(4).enumerate() {
                let other = self.side() + 8 * eight;
                let [decays, keys] = [OfToken::Decay, OfToken::Key].map(|of| self.of_two(chunk, of, other));
                let two: Vec<_> = (0..2)
                    .map(|i| {
                        let kept = self.exp((c.float(decay) - decays[i]).v);
                        let made = c.float(four[2 * half + i]) * (c.float(own) * keys[i]).v * kept;
                        let diagonal =
                            c.pick(c.compare(IntPredicate::EQ, token, other + i), c.number(1.0), c.number(0.0));
                        c.pick(c.less(other + i, token), made.v, diagonal)
                    })
                    .collect();
                c.store(triangle.at(c, token, other), c.floats(&two), 8);
            }
        }
    }
}
