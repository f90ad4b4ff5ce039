//! The gated delta rule, or a scan, of many tokens, in chunks of 64 or 32 on matrix instructions
//! (the WY form).
//!
//! A work-group has some columns of a head's state, 16 a wave, in registers. In a chunk, with `G`
//! the running sum of the logarithms of the decay, and keys and queries of length one:
//!
//! - `A_ts = beta_t (k_t k_s) e^(G_t - G_s)` for `s < t`, and `T = (I + A)^-1`;
//! - `D = T (beta (V - e^G K S))` is each token's contribution to the state;
//! - the results are `e^G Q S + P D`, with `P_ts = (q_t k_s) e^(G_t - G_s)` for `s <= t`;
//! - the state is then `e^(G_n) S + K^T (e^(G_n - G) D)`.
//!
//! In a scan keys and queries are as they are, and `D` is `beta V`. Where rows of a state decay
//! apart, factors are those of each row ([`by_row`]).
//!
//! Keys and queries are multiplied as they are stored, which is exact, and their lengths are put
//! to sums. All else is multiplied in f32, so the error is that of the recurrence. Sequences of few
//! tokens in the step go token by token, as in `delta_rule`.
mod by_row;

use atomc_ir::arch::{GpuArch, Simt};
use atomc_ir::{DType, DeltaSizes, Op};
use inkwell::values::FloatValue;

use super::delta::{Part, Shares};
use super::inverse;
pub use super::products::Rows;
use super::products::{COLUMNS, Products, Runs};
use super::{FEW_TOKENS, each_part, element, pad, vector};
use crate::code::{Any, Int, Ptr, Vector};
use crate::recurrent::{Delta, Rule, Run, node};
use crate::row::Operand;
use crate::schedule::WhyNot;
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Matrix, VEC16};
use crate::{KernelSpec, math};
pub use by_row::ByRow;

/// Tokens of a chunk: the first of these that fits the chip's local memory and registers.
const CHUNKS: [usize; 2] = [64, 32];
/// Most waves of a work-group, and the least: a thread for each token of a chunk.
const WAVES: usize = 4;
const LEAST_WAVES: usize = 2;
/// Numbers of f32 that each token of a chunk has.
const OF_TOKEN: usize = 6;

/// How a kernel is cut.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Tokens of a chunk.
    pub chunk: usize,
    /// Rows of the state, and as many as products take.
    pub dim: usize,
    pub padded: usize,
    /// Whether rows of the state decay apart.
    pub by_row: bool,
    pub waves: usize,
    /// Work-groups for a head.
    pub parts: usize,
}

impl Shape {
    fn new(sizes: DeltaSizes, simt: &Simt) -> Option<Shape> {
        let tiles = sizes.value_dim.div_ceil(COLUMNS);
        let waves = tiles.clamp(LEAST_WAVES, WAVES);
        let padded = sizes.key_dim.next_multiple_of(simt.matrix.span(simt.wave));
        let (dim, by_row, parts) = (sizes.key_dim, sizes.decays > 1, tiles.div_ceil(waves));
        let of = |chunk| Shape { chunk, dim, padded, by_row, waves, parts };
        let fits =
            |shape: &Shape| shape.local() <= simt.unit.lds_group && shape.registers(simt) <= simt.unit.vgprs_wave / 2;
        CHUNKS.map(of).into_iter().find(fits)
    }

    /// Bytes from row to row, so that neighbouring rows are in different banks.
    fn pitch(numbers: usize, dtype: DType) -> usize {
        numbers * dtype.size() + VEC16
    }

    /// The type of keys and queries in local memory: the stored one, or that of their products with
    /// decays.
    fn dtype(&self) -> DType {
        if self.by_row { DType::F32 } else { DType::BF16 }
    }

    fn keys(&self) -> usize {
        self.chunk * Shape::pitch(self.padded, self.dtype())
    }

    /// Bytes of queries, and later of keys with tokens side by side.
    fn queries(&self) -> usize {
        self.keys().max(self.padded * Shape::pitch(self.chunk, self.dtype()))
    }

    fn triangle(&self) -> usize {
        self.chunk * Shape::pitch(self.chunk, DType::F32)
    }

    /// Registers of the state, and of three matrices of a chunk's tokens. As many are for all else.
    fn registers(&self, simt: &Simt) -> usize {
        (self.padded + 3 * self.chunk) * COLUMNS / simt.wave
    }

    pub fn local(&self) -> usize {
        let alike = self.keys() + self.queries() + self.triangle() + OF_TOKEN * 4 * self.chunk;
        if self.by_row { alike + ByRow::local(self) } else { alike }
    }
}

/// The sizes of a body's delta rule, and the type of its keys.
pub fn found(spec: &KernelSpec) -> Result<(DeltaSizes, Option<DType>), WhyNot> {
    let body = spec.body;
    let found = body.ids().find(|&id| matches!(body.op(id), Op::DeltaRule { .. } | Op::Scan {}));
    let found = found.and_then(|id| DeltaSizes::of(body, id).map(|sizes| (id, sizes)));
    let (id, sizes) = found.ok_or_else(|| WhyNot::new("a delta rule of unknown sizes"))?;
    Ok((sizes, body.ty(body.operands(id)[2]).as_tensor().map(|ty| ty.dtype)))
}

pub fn suits(spec: &KernelSpec, arch: GpuArch) -> Result<(), WhyNot> {
    let simt = arch.simt;
    super::has_long_sequences(spec)?;
    let (sizes, dtype) = found(spec)?;
    WhyNot::unless(dtype == Some(DType::BF16), || "keys of another type than bf16".into())?;
    WhyNot::unless(Matrix::native(simt, DType::BF16), || "no products of bf16".into())?;
    WhyNot::unless(!simt.matrix.replicated, || "operands that lanes have twice".into())?;
    WhyNot::unless(Shape::new(sizes, simt).is_some(), || format!("heads of {} numbers", sizes.key_dim))
}

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let simt = setup.gpu()?.simt;
    let shape = Shape::new(found(spec).map_err(|why| why.diagnostic())?.0, simt);
    let shape = shape.ok_or_else(|| WhyNot::new("a delta rule of unknown sizes").diagnostic())?;
    let threads = shape.waves * simt.wave;
    let code = setup.open(spec, threads)?;
    let info = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let delta = Delta::of(&kernel, node(&kernel)?)?;
        let shares = Shares::of(&delta, simt.wave);
        let parts = delta.sizes.heads * shape.parts;
        let local = c.local(shape.local());
        let info = each_part(c, spec, &kernel, parts, threads, |run, number| {
            let [head, part] = c.divide(number, c.int(shape.parts));
            let is_short = c.less(run.end - run.first, FEW_TOKENS);
            c.when(is_short, || {
                let each = shares.parts.div_ceil(shape.parts);
                c.repeat(c.wave_index(), each, shape.waves, |i| {
                    let part = part * each + i;
                    c.when(c.less(part, shares.parts), || Part::new(c, &delta, shares, head, part).run(run));
                });
            });
            c.when(!is_short, || Chunks::new(c, &delta, shape, (head, part), local).run(run));
            c.when(c.equal(number, parts - 1), || pad(c, delta.out, [run.first, run.end], c.thread(), threads));
        })?;
        delta.finish()?;
        info
    };
    Ok((code, info))
}

/// Numbers that each token of a chunk has in local memory.
#[derive(Clone, Copy)]
pub enum OfToken {
    /// The decay up to it, as a logarithm, and as a factor.
    Decay,
    Kept,
    /// The decay from it to the chunk's end.
    Rest,
    Beta,
    /// The factors that give its key, and its query, their intended length.
    Key,
    Query,
}

/// Some columns of a head's state, and one wave's part of them.
#[derive(Clone)]
pub struct Chunks<'a, 'k, 'c> {
    c: &'a Gpu<'c>,
    delta: &'a Delta<'k, 'c>,
    shape: Shape,
    pub products: Products<'a, 'c>,
    head: Int<'c>,
    /// The lane's columns, the last one if there are no more, and whether they exist.
    columns: Vec<(Int<'c>, Int<'c>)>,
    pub keys: Rows<'c>,
    pub queries: Rows<'c>,
    /// Keys with tokens side by side, where queries were.
    turned: Rows<'c>,
    pub triangle: Rows<'c>,
    of_tokens: Ptr<'c>,
    pub by_row: Option<ByRow<'c>>,
}

impl<'a, 'k, 'c> Chunks<'a, 'k, 'c> {
    pub fn new(
        c: &'a Gpu<'c>,
        delta: &'a Delta<'k, 'c>,
        shape: Shape,
        (head, part): (Int<'c>, Int<'c>),
        local: Ptr<'c>,
    ) -> Self {
        let products = Products::new(c);
        let first = (part * shape.waves + c.wave_index()) * COLUMNS;
        let width = delta.sizes.value_dim;
        let column = |block| {
            let column = first + products.column(block);
            (c.smaller(column, width - 1), c.less(column, width))
        };
        let columns = (0..products.blocks()).map(column).collect();
        let dtype = shape.dtype();
        let rows = |ptr, numbers| Rows { ptr, pitch: Shape::pitch(numbers, dtype), dtype };
        let second = c.at(local, shape.keys());
        let third = c.at(second, shape.queries());
        let triangle = Rows { ptr: third, pitch: Shape::pitch(shape.chunk, DType::F32), dtype: DType::F32 };
        let of_tokens = c.at(third, shape.triangle());
        let by_row = shape.by_row.then(|| ByRow::new(c, &shape, c.at(of_tokens, OF_TOKEN * 4 * shape.chunk)));
        Chunks {
            c,
            delta,
            shape,
            products,
            head,
            columns,
            keys: rows(local, shape.padded),
            queries: rows(second, shape.padded),
            turned: rows(second, shape.chunk),
            triangle,
            of_tokens,
            by_row,
        }
    }

    fn run(&self, run: Run<'c>) {
        let (c, p, sizes) = (self.c, &self.products, self.delta.sizes);
        let of_head = |slot: Ptr<'c>| c.at(slot, self.head * (4 * sizes.key_dim * sizes.value_dim));
        let slot = of_head(run.slot);
        let spans = self.shape.padded / p.span();
        let before = p.runs(spans, |block, span| {
            let number = |i: usize| {
                let (place, exists) = self.kept(p, slot, block, span, i);
                c.pick(run.goes_on & exists, c.load(c.cx.f32_type(), place, 4), c.number(0.0))
            };
            let numbers: Vec<Any> = (0..p.depth()).map(number).collect();
            // Addresses of more rows at once would want more registers.
            c.keep_order();
            c.floats(&numbers)
        });
        let carried: Vec<Any> = before.iter().flatten().map(|&run| run.into()).collect();
        let after = c.for_each((run.first, run.end, self.shape.chunk), &carried, |first, carried| {
            let state = p.runs(spans, |block, span| carried[block * spans + span].into_vector_value());
            let turn = Chunks { products: p.anew(first), ..self.clone() };
            let state = turn.chunk(first, run.end, state);
            state.iter().flatten().map(|&run| run.into()).collect()
        });
        let (p, (has_slot, slot)) = (self.products.anew(run.end), run.last(c));
        let slot = of_head(slot);
        for (i, run_after) in after.iter().enumerate() {
            let (block, span, numbers) = (i / spans, i % spans, c.pin(run_after.into_vector_value()));
            c.when(has_slot & self.columns[block].1, || {
                for i in 0..p.depth() {
                    let (place, exists) = self.kept(&p, slot, block, span, i);
                    let store = || c.store(place, c.lane(numbers, i), 4);
                    if self.all_rows_exist() { store() } else { c.when(exists, store) }
                }
            });
        }
    }

    fn all_rows_exist(&self) -> bool {
        self.shape.padded == self.shape.dim
    }

    /// The place of a number of a run of the state, and whether it exists; another place if not.
    fn kept(&self, p: &Products<'_, 'c>, slot: Ptr<'c>, block: usize, span: usize, i: usize) -> (Ptr<'c>, Int<'c>) {
        let (c, width, column) = (self.c, self.delta.sizes.value_dim, self.columns[block].0);
        if self.all_rows_exist() {
            // One address for each lane, plus constants.
            let from = c.at(slot, (p.first(0) * width + column) * 4);
            return (c.at(from, (span * p.span() + i) * width * 4), c.always());
        }
        let row = p.first(span) + i;
        (c.at(slot, (c.smaller(row, self.shape.dim - 1) * width + column) * 4), c.less(row, self.shape.dim))
    }

    /// Computes the chunk that begins at a token, and returns the new state.
    fn chunk(&self, first: Int<'c>, end: Int<'c>, state: Runs<'c>) -> Runs<'c> {
        let (c, p, shape) = (self.c, &self.products, self.shape);
        // The old values have been read.
        c.barrier();
        self.bring(first, end);
        c.barrier();
        self.lengths();
        if self.by_row.is_none() {
            self.decays();
        }
        c.barrier();
        let tokens = shape.chunk / p.span();
        let whole = |_, _| true;
        let column = |span: usize| p.first(span);
        let own_row = |row| row;
        let lower = |of: usize, span: usize| span <= of;
        let (made, by_queries) = match self.delta.rule {
            Rule::Delta { .. } => self.differences(first, end, &state),
            Rule::Sum { .. } => {
                let by_queries = p.multiply((self.queries, column, own_row), &state, p.zeros(tokens), whole);
                c.set_lanes(p.depth());
                let values =
                    |block, span| c.fmul(self.of_run(OfToken::Beta, span), self.values(first, end, block, span));
                (p.runs(tokens, values), by_queries)
            }
        };
        if self.by_row.is_none() {
            self.pairs(self.queries, OfToken::Query);
            c.barrier();
        }
        self.turn();
        c.set_lanes(p.depth());
        let old = p.runs(tokens, |block, span| {
            c.fmul(by_queries[block][span], self.decayed(OfToken::Kept, OfToken::Query, span))
        });
        let scores = self.by_row.as_ref().map_or(self.triangle, |by_row| by_row.scores);
        let mut seen = p.multiply((scores, column, own_row), &made, old, lower);
        if let Rule::Sum { skip } = self.delta.rule {
            let skip = self.delta.weight_of(c, skip, self.head);
            c.set_lanes(p.depth());
            seen = p.runs(tokens, |block, span| {
                c.fma(c.splat(skip), self.values(first, end, block, span), seen[block][span])
            });
        }
        self.store((first, end), &seen);
        c.barrier();
        c.set_lanes(p.depth());
        let made =
            p.runs(tokens, |block, span| c.fmul(made[block][span], self.decayed(OfToken::Rest, OfToken::Key, span)));
        let kept = |span| match &self.by_row {
            Some(by_row) => by_row.kept(p, &shape, span),
            None => c.splat(self.of_token(OfToken::Kept, c.int(shape.chunk - 1))),
        };
        let kept: Vec<Vector> = (0..shape.padded / p.span()).map(kept).collect();
        let state = p.runs(kept.len(), |block, span| c.fmul(state[block][span], kept[span]));
        p.multiply((self.turned, column, own_row), &made, state, whole)
    }

    /// What each token puts into the state by the delta rule, and the products of queries with it.
    fn differences(&self, first: Int<'c>, end: Int<'c>, state: &Runs<'c>) -> (Runs<'c>, Runs<'c>) {
        let (c, p, chunk) = (self.c, &self.products, self.shape.chunk);
        let keys = match &self.by_row {
            Some(by_row) => {
                self.pairs_by_row(by_row);
                self.raise_halves(by_row, p.thread, self.threads());
                c.barrier();
                by_row.keys
            }
            None => {
                self.pairs(self.keys, OfToken::Key);
                self.keys
            }
        };
        let tokens = chunk / p.span();
        let [by_keys, by_queries] = p.multiply_both([keys, self.queries], state, tokens);
        c.barrier();
        inverse::invert(p, self.triangle, chunk);
        c.set_lanes(p.depth());
        let wanted = p.runs(tokens, |block, span| {
            let seen = c.fmul(by_keys[block][span], self.decayed(OfToken::Kept, OfToken::Key, span));
            let beta = self.of_run(OfToken::Beta, span);
            c.fmul(beta, c.fsub(self.values(first, end, block, span), seen))
        });
        c.barrier();
        let lower = |of: usize, span: usize| span <= of;
        let rows = (self.triangle, |span: usize| p.first(span), |row| row);
        let made = p.multiply(rows, &wanted, p.zeros(tokens), lower);
        c.barrier();
        (made, by_queries)
    }

    fn threads(&self) -> usize {
        self.shape.waves * self.c.simt.wave
    }

    /// The place of a token's number.
    fn place(&self, of: OfToken, token: Int<'c>) -> Ptr<'c> {
        self.c.at(self.of_tokens, (token + of as usize * self.shape.chunk) * 4)
    }

    pub fn of_token(&self, of: OfToken, token: Int<'c>) -> FloatValue<'c> {
        self.c.load_number(self.place(of, token), DType::F32)
    }

    /// The numbers of a run of tokens.
    fn of_run(&self, of: OfToken, span: usize) -> Vector<'c> {
        self.c.load_vector(
            self.c.cx.f32_type(),
            self.products.depth(),
            self.place(of, self.products.first(span)),
            VEC16,
        )
    }

    /// The factors of a run of tokens, times the decay `by` unless operands have it.
    fn decayed(&self, by: OfToken, of: OfToken, span: usize) -> Vector<'c> {
        match self.by_row {
            Some(_) => self.of_run(of, span),
            None => self.c.fmul(self.of_run(by, span), self.of_run(of, span)),
        }
    }

    /// Loads keys, queries and gates of a chunk, with zeros where there are no tokens.
    pub fn bring(&self, first: Int<'c>, end: Int<'c>) {
        let (c, delta, shape, threads) = (self.c, self.delta, self.shape, self.threads());
        let [q, k, _] = delta.starts;
        let most = VEC16 / DType::BF16.size();
        let lanes = vector(shape.dim, vector(q, vector(k, most)));
        let head = self.head / (delta.sizes.heads / delta.sizes.key_heads);
        let in_row = shape.padded / lanes;
        let count = shape.chunk * in_row;
        c.set_lanes(lanes);
        let bring = |x: &Operand<'c>, i: usize| {
            let number = c.smaller(self.products.thread + i, count - 1);
            let [row, column] = [number / in_row, number % in_row * lanes];
            let token = first + row;
            let from =
                element(c, x, c.smaller(token, end - 1), head * shape.dim + c.smaller(column, shape.dim - lanes));
            let bits = c.load_bits(from, DType::BF16);
            let exists = c.less(token, end) & c.less(column, shape.dim);
            (row, column, c.pick(exists, bits, bits.get_type().const_zero()))
        };
        let turns = (0..count).step_by(threads);
        let all: Vec<_> = turns.map(|i| [bring(&delta.k, i), bring(&delta.q, i)]).collect();
        for both in all {
            for (to, (row, column, bits)) in [self.keys, self.queries].into_iter().zip(both) {
                match to.dtype {
                    DType::BF16 => c.store(to.at(c, row, column), bits, c.alignment(DType::BF16)),
                    dtype => {
                        c.store_floats(to.at(c, row, column), c.widen(bits.into_vector_value(), DType::BF16), dtype)
                    }
                }
            }
        }
        if let Some(by_row) = &self.by_row {
            self.bring_decays(by_row, (first, end));
        }
        c.when(c.less(self.products.thread, shape.chunk), || {
            let token = first + self.products.thread;
            let last = c.smaller(token, end - 1);
            let beta = (OfToken::Beta, delta.rate(c, last, self.head));
            let kept = (!shape.by_row).then(|| (OfToken::Kept, delta.decay(c, last, self.head, c.int(0))));
            for (of, gate) in kept.into_iter().chain([beta]) {
                let gate = c.pick(c.less(token, end), gate, c.number(0.0));
                c.store(self.place(of, self.products.thread), gate, 4);
            }
        });
    }

    /// The factors that give keys and queries length one.
    pub fn lengths(&self) {
        let (c, shape) = (self.c, self.shape);
        let most = VEC16 / DType::BF16.size();
        let length = |rows: Rows<'c>, token: Int<'c>| {
            c.set_lanes(most);
            let sum = (0..shape.padded).step_by(most).fold(c.zero(), |sum, column| {
                let numbers = c.load_floats(rows.at(c, token, c.int(column)), rows.dtype);
                c.fma(numbers, numbers, sum)
            });
            c.inverse_root(c.sum(sum), 1, self.delta.eps())
        };
        let is_sum = matches!(self.delta.rule, Rule::Sum { .. });
        c.when(c.less(self.products.thread, shape.chunk), || {
            let token = self.products.thread;
            let key = if is_sum { c.number(1.0) } else { length(self.keys, token) };
            c.store(self.place(OfToken::Key, token), key, 4);
            c.set_lanes(1);
            let query = match is_sum {
                true => c.lit(1.0),
                false => {
                    let query = c.floats(&[length(self.queries, token).into()]);
                    c.set_lanes(1);
                    c.fmul(query, c.lit((shape.dim as f64).powf(-0.5)))
                }
            };
            c.store(self.place(OfToken::Query, token), query, 4);
        });
    }

    /// The decay from token to token.
    fn decays(&self) {
        let (c, shape) = (self.c, self.shape);
        c.when(c.less(self.products.thread, shape.chunk), || {
            c.set_lanes(1);
            let token = self.products.thread;
            let sums = c.for_each((0, shape.chunk, 1), &[c.zero().into(), c.zero().into()], |other, sums| {
                let [own, all] = [0, 1].map(|i| sums[i].into_vector_value());
                let gate = c.floats(&[self.of_token(OfToken::Kept, other).into()]);
                let all = c.fadd(all, gate);
                vec![c.pick(c.less(token, other), own, all), all.into()]
            });
            let [own, all] = [0, 1].map(|i| sums[i].into_vector_value());
            c.store(self.place(OfToken::Decay, token), own, 4);
            c.store(self.place(OfToken::Rest, token), math::exp(c, c.fsub(all, own)), 4);
        });
        // All have read the gates.
        c.barrier();
        c.when(c.less(self.products.thread, shape.chunk), || {
            c.set_lanes(1);
            let own = c.floats(&[self.of_token(OfToken::Decay, self.products.thread).into()]);
            c.store(self.place(OfToken::Kept, self.products.thread), math::exp(c, own), 4);
        });
    }

    /// Products of the rows of all tokens with the keys of those before: for keys, times beta and
    /// with ones on the diagonal; for queries, with their own.
    fn pairs(&self, rows: Rows<'c>, of: OfToken) {
        let (c, p, shape) = (self.c, &self.products, self.shape);
        let results = p.results();
        c.repeat(c.wave_index(), shape.chunk / COLUMNS, shape.waves, |unit| {
            let first = unit * COLUMNS;
            let mut sums: Vec<Vec<Vector>> = (0..shape.chunk / 16)
                .map(|_| vec![c.cx.f32_type().vec_type(results as u32).const_zero(); p.blocks()])
                .collect();
            for span in 0..shape.padded / p.span() {
                let right = p.stored_columns(rows, first, span);
                for (tile, sums) in sums.iter_mut().enumerate() {
                    let left = p.left(self.keys, p.first(span), |row| row + 16 * tile);
                    p.add(&left, &right, sums);
                }
            }
            for block in 0..p.blocks() {
                let token = first + p.column(block);
                c.set_lanes(results);
                let own = self.of_token(of, token);
                let own = c.splat(own);
                let own = match of {
                    OfToken::Query => own,
                    _ => c.fmul(own, c.splat(self.of_token(OfToken::Beta, token))),
                };
                let decay = c.splat(self.of_token(OfToken::Decay, token));
                for (tile, sums) in sums.iter().enumerate() {
                    let other = p.place.results + 16 * tile;
                    let of_others = |of| c.load_vector(c.cx.f32_type(), results, self.place(of, other), VEC16);
                    let kept = math::exp(c, c.fsub(decay, of_others(OfToken::Decay)));
                    let factor = c.fmul(c.fmul(own, of_others(OfToken::Key)), kept);
                    let made = c.fmul(sums[block], factor);
                    let made = match of {
                        OfToken::Query => c.choose(c.lanes_below(token - other + 1), made, c.zero()),
                        _ => {
                            let one = c.choose(c.lanes_below(token - other + 1), c.lit(1.0), c.zero());
                            c.choose(c.lanes_below(token - other), made, one)
                        }
                    };
                    c.store(self.triangle.at(c, token, other), made, VEC16 as u32);
                }
            }
        });
    }

    /// Values of a run of tokens in the lane's column.
    fn values(&self, first: Int<'c>, end: Int<'c>, block: usize, span: usize) -> Vector<'c> {
        let (c, p, v) = (self.c, &self.products, &self.delta.v);
        let column = self.head * self.delta.sizes.value_dim + self.columns[block].0;
        let value = |i: usize| {
            let token = c.smaller(first + p.first(span) + i, end - 1);
            c.load_number(element(c, v, token, column), v.ty.dtype).into()
        };
        c.floats(&(0..p.depth()).map(value).collect::<Vec<_>>())
    }

    fn store(&self, (first, end): (Int<'c>, Int<'c>), seen: &Runs<'c>) {
        let (c, p, out) = (self.c, &self.products, self.delta.out);
        let seen = p.runs(seen[0].len(), |block, span| c.pin(seen[block][span]));
        c.set_lanes(1);
        for (of_block, &(column, exists)) in seen.iter().zip(&self.columns) {
            let column = self.head * self.delta.sizes.value_dim + column;
            for (span, &run) in of_block.iter().enumerate() {
                for i in 0..p.depth() {
                    let token = first + p.first(span) + i;
                    c.when(exists & c.less(token, end), || {
                        c.store_floats(element(c, out, token, column), c.part(run, i, 1), out.ty.dtype);
                    });
                }
            }
        }
    }

    /// Writes keys with tokens side by side where queries were.
    fn turn(&self) {
        let (c, shape, threads) = (self.c, self.shape, self.threads());
        let bytes = shape.dtype().size();
        let (number, side) = (c.bytes_type(bytes), VEC16 / bytes);
        let count = shape.padded * shape.chunk / side;
        c.repeat(self.products.thread, count, threads, |i| {
            let [row, token] = [i % shape.padded, i / shape.padded * side];
            let all = (0..side).fold(c.ints(number, side).get_undef(), |all, i| {
                let number = c.load(number, self.keys.at(c, token + i, row), bytes as u32);
                let at = c.cx.i32_type().const_int(i as u64, false);
                c.b.build_insert_element(all, number, at, "").expect("an element into a vector")
            });
            c.store(self.turned.at(c, row, token), all, VEC16 as u32);
        });
    }
}
