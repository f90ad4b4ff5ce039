//! Flash attention as decode and prefill share it: keys and values as fragments, and scores with
//! queries as their columns.
//!
//! Scores are products of keys (16 at a time) by queries, results of values (16 dimensions at a
//! time) by weights. A lane holds scores of one query only. The keys of a tile are chosen so that a
//! lane's scores are, as weights, its operands of the second product: the keys
//! `held * h + results * t ..` of a step belong to part `h` of the lanes in tile `t`.
use atomc_ir::{DType, Diagnostic, Op, Value};
use inkwell::values::FloatValue;

use crate::cache::Cache;
use crate::code::{Int, Ptr, Vector};
use crate::kernel::{Attending, List, Results, Seen};
use crate::row::{At, Col, Operand, unsupported};
use crate::simt::attention::kv_dequant::Stored;
use crate::simt::attention::sizes::Sizes;
use crate::simt::launch::Kernel;
use crate::simt::machine::Gpu;
use crate::simt::machine::accumulator::Accumulator;
use crate::simt::machine::fragment::{Fragment, Matrix, Place, VEC16};
use crate::simt::rowwise::vector;

/// Fragments by number.
pub type Fragments<'f, 'c> = Box<dyn Fn(usize) -> Fragment<'c> + 'f>;

/// Attention on a GPU.
pub struct Attention<'k, 'a, 'c> {
    pub kernel: &'k Kernel<'a, 'c>,
    pub cache: &'k Cache<'c>,
    pub results: Results<'k, 'c>,
    /// The quantised result, if the kernel quantises, and the columns of a scale.
    pub codes: Option<(Value, usize)>,
    pub heads: usize,
    pub matrix: Matrix<'a, 'c>,
    pub accumulator: Accumulator<'a, 'c>,
    pub stored: Stored,
    pub place: Place<'c>,
    /// Which run of `held` keys of a step the lane has scores of.
    pub half: Int<'c>,
    /// Elements of the vectors in which rows are computed.
    pub lanes: usize,
    query: Value,
    /// A number for each query head, if heads have sinks.
    pub sinks: Option<&'k Operand<'c>>,
    /// Which keys a token sees.
    pub seen: Seen<'c>,
    /// Scores times this are powers of two. Its sign is in the queries.
    pub factor: f64,
    sign: f64,
    /// The panels of values that are summed up: the first one, and their number.
    of_values: (Int<'c>, usize),
}

impl<'k, 'a, 'c> Attention<'k, 'a, 'c> {
    /// Attention of a kernel that stores its results as they are.
    pub fn new(kernel: &'k Kernel<'a, 'c>) -> Result<Attention<'k, 'a, 'c>, Diagnostic> {
        let made = Self::with_codes(kernel)?;
        if made.codes.is_some() { Err(unsupported("attention whose result becomes codes")) } else { Ok(made) }
    }

    /// Attention of a kernel that may also quantise its results.
    pub fn with_codes(kernel: &'k Kernel<'a, 'c>) -> Result<Attention<'k, 'a, 'c>, Diagnostic> {
        let (c, graph) = (kernel.code, kernel.rows.graph);
        let attending = Attending::of(kernel)?;
        let [cache] = &kernel.caches[..] else { return Err(unsupported("attention over other than one cache")) };
        let coded = match &kernel.outputs[..] {
            [(stored, out)] if matches!(graph.op(stored.node), Op::Quantise { .. }) => Some((*stored, out)),
            _ => None,
        };
        let codes = coded.and_then(|(stored, _)| Some((stored, kernel.rows.scaled_group(stored)?)));
        let results = match (coded, codes) {
            (Some((stored, out)), Some(_)) => {
                attending.is_stored_as(&kernel.rows, graph.operands(stored.node)[0])?;
                Results { out, stats: None }
            }
            _ => attending.results(kernel)?,
        };
        let Attending { query, scale, sinks, seen, .. } = attending;
        let Sizes { heads, stored, .. } = Sizes::of(graph)?;
        let matrix = Matrix::new(c, stored.dtype);
        // Without a scale all keys weigh the same, as they do if the queries are zero.
        let (sign, size) = if scale == 0.0 { (0.0, 1.0) } else { (scale.signum(), scale.abs()) };
        Ok(Attention {
            kernel,
            cache,
            results,
            codes,
            heads,
            place: matrix.place(),
            half: matrix.place().share,
            accumulator: Accumulator::small(matrix),
            stored,
            matrix,
            lanes: vector(graph),
            query,
            sinks,
            seen,
            factor: size * std::f64::consts::LOG2_E,
            sign,
            of_values: (c.int(0), cache.layout.value_dim / 16),
        })
    }

    /// The keys of a token, if they are gathered by their positions.
    pub fn list(&self, token: Int<'c>) -> Option<List<'c>> {
        let c = self.code();
        let position = c.load_index(self.cache.batch.positions, token);
        self.seen.gathers().then(|| self.seen.of(c, position, (token, c.int(0))))
    }

    /// Whether a query has seen a key, by its sum of weights.
    pub fn has_keys(&self, sum: FloatValue<'c>) -> Int<'c> {
        let c = self.code();
        c.float(c.number(0.0)).less(sum)
    }

    /// Stores the highest score and the sum of a head, if the result is of a part of attention: as
    /// exponentials want them.
    pub fn store_stats(&self, place: (Int<'c>, Int<'c>), [top, sum]: [FloatValue<'c>; 2]) {
        let score = self.code().float(top) * self.code().number(self.factor * std::f64::consts::LN_2);
        self.results.store_stats(&self.kernel.rows, place, [score.v, sum]);
    }

    /// Zeros behind the sums of some tokens, by all threads together.
    fn pad_stats(&self, (first, count): (Int<'c>, Int<'c>), threads: usize) {
        let (c, rows, Some(stats)) = (self.code(), &self.kernel.rows, self.results.stats) else { return };
        let (width, padded) = (2 * self.heads, rows.padded(stats));
        c.repeat(c.thread(), count * (padded - width), threads, |i| {
            let (row, col) = (first + i / (padded - width).max(1), i % (padded - width).max(1) + width);
            c.store(rows.address(stats, At { row, head: None, col: Col::Var(col) }), c.number(0.0), 4);
        });
    }

    /// The attention restricted to `count` panels of values from `first` on.
    pub fn of_values(self, first: Int<'c>, count: usize) -> Attention<'k, 'a, 'c> {
        Attention { of_values: (first, count), ..self }
    }

    /// The first dimension of values that are summed up, and their number.
    pub fn values(&self) -> (Int<'c>, usize) {
        let (first, count) = self.of_values;
        (first * 16, count * 16)
    }

    /// The attention by tiles of 32 keys, or dimensions, and 32 queries.
    pub fn by_mfma_32x32(self) -> Attention<'k, 'a, 'c> {
        let accumulator = Accumulator::new(self.matrix);
        Attention { accumulator, half: accumulator.share(), ..self }
    }

    pub fn code(&self) -> &'a Gpu<'c> {
        self.kernel.code
    }

    /// Keys of a step.
    pub fn span(&self) -> usize {
        self.accumulator.span()
    }

    /// Keys that have their scores made together: those of a step, or as many as a tile has rows
    /// for.
    pub fn unit(&self) -> usize {
        self.span().max(16 * self.accumulator.side())
    }

    /// Steps of a block of the cache.
    pub fn steps(&self) -> usize {
        self.cache.layout.block_tokens / self.span()
    }

    /// Consecutive keys of a step that a lane has scores of.
    pub fn held(&self) -> usize {
        self.span() * self.accumulator.width() / self.code().simt.wave
    }

    /// Fragments of keys in a tile, and of a query.
    pub fn chunks(&self) -> usize {
        self.cache.layout.dim / self.span()
    }

    /// Bytes of a panel of keys, as products take it.
    pub fn key_panel(&self) -> usize {
        16 * self.cache.layout.dim * self.matrix.dtype.size()
    }

    /// Bytes of a panel of values, as products take it.
    pub fn value_panel(&self) -> usize {
        16 * self.cache.layout.block_tokens * self.matrix.dtype.size()
    }

    /// The addresses of the keys and values of `turn`, the same for all lanes. A turn is `steps`
    /// steps and lies in `block`.
    pub fn turn_in(&self, block: Int<'c>, head: Int<'c>, turn: Int<'c>, steps: usize) -> [Ptr<'c>; 2] {
        let c = self.code();
        let ([of_keys, of_values], inside) = (self.cache.head(c, block, head), turn % (self.steps() / steps));
        let keys = inside * self.stored.bytes(steps * self.span() / 16 * self.key_panel());
        let values = inside * self.stored.bytes(steps * self.accumulator.step());
        let keys = c.at(c.at(self.cache.k, of_keys), keys);
        [keys, if self.cache.ty.is_prefix { keys } else { c.at(c.at(self.cache.v, of_values), values) }]
    }

    /// Vectors of the query of a token and head, from column `col` on; zeros after the head's
    /// dimensions.
    pub fn query(&self, token: Int<'c>, head: Int<'c>, col: Int<'c>) -> Result<Vector<'c>, Diagnostic> {
        let (c, dim) = (self.code(), self.cache.ty.head_dim);
        let inside = c.less(col, dim);
        let whole = dim == self.cache.layout.dim;
        let safe = if whole { col } else { c.pick_int(inside, col, 0) };
        let v = self.kernel.rows.eval(self.query, At { row: token, head: Some(head), col: Col::Var(safe) })?;
        let v = self.signed(v);
        Ok(if whole { v } else { c.pick(inside, v, c.zero()).into_vector_value() })
    }

    /// Whether queries have the sign of the scale as they are.
    pub fn keeps_sign(&self) -> bool {
        self.sign == 1.0
    }

    /// A vector of a query with the sign of the scale.
    pub fn signed(&self, v: Vector<'c>) -> Vector<'c> {
        let c = self.code();
        if self.sign == 1.0 { v } else { c.fmul(v, c.lit(self.sign)) }
    }

    /// The queries. Powers of two of their scores are taken.
    pub fn query_value(&self) -> Value {
        self.query
    }

    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// A fragment of a query in memory that products take without conversion.
    pub fn stored_query(
        &self,
        token: Int<'c>,
        head: Int<'c>,
        col: Int<'c>,
    ) -> Result<Option<Fragment<'c>>, Diagnostic> {
        let rows = &self.kernel.rows;
        let stored = matches!(rows.graph.op(self.query.node), Op::Input { .. });
        let whole = self.cache.ty.head_dim == self.cache.layout.dim && self.sign == 1.0;
        if !stored || !whole || rows.shape(self.query)?.dtype != self.matrix.dtype {
            return Ok(None);
        }
        let at = At { row: token, head: Some(head), col: Col::Var(col) };
        Ok(Some(self.matrix.load_row(rows.address(rows.operand(self.query)?, at))))
    }

    /// The lane's place in a step's keys.
    pub fn key_lane(&self) -> Int<'c> {
        let (m, results) = (&self.matrix, self.matrix.layout.results);
        let row = self.place.row;
        let key = row / results * self.held() + row % results;
        key / 16 * self.key_panel() + m.in_panel(self.place, key % 16)
    }

    /// `count` fragments, all loaded here. Where products convert them, each is loaded when it is
    /// used.
    pub fn fragments<'f>(&self, count: usize, load: impl Fn(usize) -> Fragment<'c> + 'f) -> Fragments<'f, 'c>
    where
        'c: 'f,
    {
        self.fragments_if(!self.matrix.converts(), count, load)
    }

    /// `count` fragments, all loaded here if they are `kept`. Otherwise each is loaded when it is
    /// used, so that few are held at a time.
    pub fn fragments_if<'f>(
        &self,
        kept: bool,
        count: usize,
        load: impl Fn(usize) -> Fragment<'c> + 'f,
    ) -> Fragments<'f, 'c>
    where
        'c: 'f,
    {
        if !kept {
            return Box::new(load);
        }
        let all: Vec<Fragment<'c>> = (0..count).map(load).collect();
        Box::new(move |i| all[i].clone())
    }

    /// Ends the conversions of a product.
    pub fn converted(&self) {
        if self.matrix.converts() {
            self.code().keep_order();
        }
    }

    /// Fragment `i` of a step's keys as it is stored, tile by tile, from the lane's place.
    pub fn key(&self, p: Ptr<'c>, i: usize) -> Fragment<'c> {
        let m = &self.matrix;
        let (tile, chunk) = (i / self.chunks(), i % self.chunks());
        self.load_panel(p, tile * m.layout.results * VEC16 + chunk * m.panel_step())
    }

    /// A lane's fragment as it is stored in a panel, `bytes` bytes of products further on.
    fn load_panel(&self, p: Ptr<'c>, bytes: usize) -> Fragment<'c> {
        let (c, m) = (self.code(), &self.matrix);
        let at = |offset: usize| c.at(p, self.stored.bytes(bytes + offset));
        m.panel_offsets().map(|offset| self.stored.load_vec16(c, at(offset))).collect()
    }

    /// A fragment as products take it.
    pub fn widened(&self, stored: &[Vector<'c>]) -> Fragment<'c> {
        self.stored.widen(self.code(), stored)
    }

    /// Fragments of the keys of a unit.
    pub fn keys(&self) -> usize {
        self.tiles() * self.chunks()
    }

    /// Tiles of the keys of a unit.
    pub fn tiles(&self) -> usize {
        self.unit() / 16 / self.accumulator.side()
    }

    /// The lane's place in a step's values.
    pub fn value_lane(&self) -> Int<'c> {
        let (m, first) = (&self.matrix, self.of_values.0);
        if !self.cache.ty.is_prefix {
            let lane = m.in_panel(self.place, self.place.row);
            return if self.of_values.1 * 16 == self.cache.layout.value_dim {
                lane
            } else {
                lane + first * self.value_panel()
            };
        }
        let (depth, vec16, row) = (m.layout.depth, m.vec16(), self.place.row);
        let token = self.place.part * depth;
        let column = (first * 16 + row) / vec16 * (16 * VEC16) + row % vec16 * m.dtype.size();
        token / 16 * self.key_panel() + token % 16 * VEC16 + column
    }

    /// Fragment `i` of a step's values as it is stored, from the lane's place.
    pub fn value(&self, p: Ptr<'c>, i: usize) -> Fragment<'c> {
        if self.cache.ty.is_prefix { self.turned(p, i) } else { self.load_panel(p, i * self.value_panel()) }
    }

    /// A fragment of values where these are a part of keys: for some dimensions the numbers of
    /// consecutive tokens, loaded one by one, as each token's dimensions are adjacent.
    fn turned(&self, p: Ptr<'c>, i: usize) -> Fragment<'c> {
        let (c, m) = (self.code(), &self.matrix);
        let (vec16, size) = (m.vec16(), self.stored.bytes(m.dtype.size()));
        let element = c.bytes_type(size);
        let panel = 16 / vec16 * i * (16 * VEC16);
        let vector = |row: usize, first: usize| {
            let at = |k: usize| panel + row * m.dtype.size() + (first + k) * VEC16;
            let put = |all: Vector<'c>, k: usize| {
                let value = c.load(element, c.at(p, self.stored.bytes(at(k))), size as u32);
                let lane = c.cx.i32_type().const_int(k as u64, false);
                c.b.build_insert_element(all, value, lane, "").expect("an element into a vector")
            };
            let all = (0..vec16).fold(c.ints(element, vec16).get_undef(), put);
            c.bitcast(all, c.ints(c.cx.i32_type(), vec16 * size / 4)).into_vector_value()
        };
        let rows = (0..m.layout.rows()).map(|i| 2 * i);
        rows.flat_map(|row| (0..m.vec16s()).map(move |v| (row, v * vec16))).map(|(row, k)| vector(row, k)).collect()
    }

    /// Panels of values that are summed up, or pairs of them in tiles of 32 by 32.
    pub fn panels(&self) -> usize {
        self.of_values.1 / self.accumulator.side()
    }

    /// Scores of the lane's keys of a unit for each query, from the keys' fragments, tile by tile.
    pub fn scores(&self, keys: &Fragments<'_, 'c>, queries: &[Fragments<'_, 'c>]) -> Vec<Vector<'c>> {
        let tile = |t: usize, queries: &[Fragments<'_, 'c>]| {
            let mut sums = vec![self.accumulator.zero(); queries.len()];
            for i in 0..self.chunks() {
                let columns: Vec<Fragment<'c>> = queries.iter().map(|query| query(i)).collect();
                self.accumulator.products(&keys(t * self.chunks() + i), &columns, &mut sums);
                self.converted();
            }
            sums
        };
        let made = |queries: &[Fragments<'_, 'c>]| {
            let tiles: Vec<Vec<Vector<'c>>> = (0..self.tiles()).map(|t| tile(t, queries)).collect();
            let joined = |i: usize| self.code().join(&tiles.iter().map(|sums| sums[i]).collect::<Vec<_>>());
            (0..queries.len()).map(joined).collect::<Vec<_>>()
        };
        queries.chunks(self.matrix.together()).flat_map(made).collect()
    }

    /// A head of a token's key, and of its value if that is no part of it, into the cache, by one
    /// team.
    pub fn write(&self, token: Int<'c>, head: Int<'c>, is_writer: Int<'c>) -> Result<(), Diagnostic> {
        let (cache, rows) = (self.cache, &self.kernel.rows);
        let slot = cache.slot(self.code(), token);
        self.code().when(is_writer, || {
            cache.prepare(rows, token, head)?;
            rows.each_column(cache.width(), |col| cache.write_part(rows, token, head, slot, Col::Var(col)))
        })
    }

    /// Zeros after the last head of some rows, by all threads together.
    pub fn pad(&self, first: Int<'c>, count: Int<'c>, threads: usize) {
        let (c, rows) = (self.code(), &self.kernel.rows);
        self.pad_stats((first, count), threads);
        let (width, padded) = (self.heads * self.cache.ty.value_dim, rows.padded(self.results.out));
        if width == padded {
            return;
        }
        c.set_lanes(self.lanes);
        let vectors = (padded - width) / self.lanes;
        c.repeat(c.thread(), count * vectors, threads, |i| {
            let col = i % vectors * self.lanes + width;
            let at = At { row: first + i / vectors, head: None, col: Col::Var(col) };
            c.store_floats(rows.address(self.results.out, at), c.zero(), self.results.out.ty.dtype);
        });
    }

    /// The first key that a query at a position sees.
    pub fn first_key(&self, position: Int<'c>) -> Int<'c> {
        let c = self.code();
        match self.seen.window {
            0 => c.int(0),
            w => c.larger(position - (w - 1), 0),
        }
    }

    /// The address of columns of a head in a row of the result.
    pub fn result(&self, token: Int<'c>, head: Int<'c>, col: Int<'c>) -> Ptr<'c> {
        let col = head * self.cache.ty.value_dim + col;
        self.kernel.rows.address(self.results.out, At { row: token, head: None, col: Col::Var(col) })
    }

    pub fn out_type(&self) -> DType {
        self.results.out.ty.dtype
    }
}

#[cfg(test)]
mod tests;
