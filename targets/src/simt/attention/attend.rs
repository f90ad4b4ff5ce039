//! What both attention families share: keys and values as fragments, and a running softmax whose queries are columns.
//!
//! Scores are products of keys (16 at a time) by queries, results of values (16 dimensions at a time) by weights. A lane holds
//! scores of one query only. Which keys make a tile is chosen so that the scores that a lane gets are, as weights, what it
//! must give to the second product: the keys `held * h + results * t ..` of a step belong to part `h` of the lanes in tile `t`.
use atomc_ir::{Arch, CacheType, DType, Diagnostic, Graph, Op, Value};
use inkwell::FloatPredicate;
use inkwell::values::FloatValue;

use crate::KernelSpec;
use crate::cache::Cache;
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col, Operand, unsupported};
use crate::simt::attention::kv_dequant::Stored;
use crate::simt::launch::Kernel;
use crate::simt::machine::Gpu;
use crate::simt::machine::accumulator::Squares;
use crate::simt::machine::fragment::{Fragment, Matrix, Place, RUN};
use crate::simt::rowwise::vector;
use crate::tuning::Kind;

/// The top of no scores: below every real one, and far from overflow.
pub const LOWEST: f64 = -1e30;

/// What the best numbers of a schedule depend on.
pub fn tuned_by(spec: &KernelSpec) -> Result<(Kind, Vec<usize>), Diagnostic> {
    let s = Sizes::of(spec.body)?;
    let kind = Kind::Attention { dtype: s.cache.dtype.name(), group: s.group(), head_dim: s.cache.head_dim };
    Ok((kind, vec![s.cache.heads, spec.tokens]))
}

/// Panels of values that are used while the next are loaded.
const GROUP: usize = 2;

/// Sizes of the attention of a body, before there is a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub heads: usize,
    pub cache: CacheType,
    pub stored: Stored,
}

impl Sizes {
    pub fn of(body: &Graph) -> Result<Sizes, Diagnostic> {
        let node = body.ids().find(|&id| matches!(body.op(id), Op::Attention { .. }));
        let made = || {
            let operands = body.operands(node?);
            let query = body.ty(operands[0]).as_tensor()?;
            Some((query.dtype, query.shape.0.get(1)?.fixed()?, body.ty(operands[1]).as_cache()?))
        };
        let (query, heads, cache) = made().ok_or_else(|| unsupported("an attention family without attention"))?;
        Ok(Sizes { heads, cache, stored: Stored::new(cache, query)? })
    }

    /// Query heads that share a head of the cache.
    pub fn group(&self) -> usize {
        self.heads / self.cache.heads
    }

    /// Registers that a wave takes.
    pub fn registers(&self, arch: &Arch) -> Registers {
        let simt = arch.simt();
        let (dim, span) = (arch.memory.padded(self.cache.head_dim), simt.matrix.span(simt.wave));
        let size = self.stored.dtype.size();
        let query = dim / span * simt.matrix.depth * size / 4;
        let values = dim / 16 * simt.matrix.rows() * simt.matrix.depth * size / 4;
        let (results, held) = (dim / 16 * simt.matrix.results, span / 16 * simt.matrix.results);
        // Two waves fit a SIMD.
        let most = simt.unit.vgprs_wave.min(simt.unit.vgprs / 2);
        let converts = !simt.products.iter().any(|p| p.dtype == self.stored.dtype);
        Registers { query, keys: span / 16 * simt.matrix.rows() * query, values, results, scores: held, most, converts }
    }
}

/// Registers of a query, of a step's keys and values, of results and of a step's scores, how many there are, and whether
/// products convert what they are given.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub query: usize,
    pub keys: usize,
    pub values: usize,
    pub results: usize,
    pub scores: usize,
    pub most: usize,
    pub converts: bool,
}

/// Fragments by number.
pub type Fragments<'f, 'c> = Box<dyn Fn(usize) -> Fragment<'c> + 'f>;

/// Attention on a GPU.
pub struct Attention<'k, 'a, 'c> {
    pub kernel: &'k Kernel<'a, 'c>,
    pub cache: &'k Cache<'c>,
    pub out: &'k Operand<'c>,
    pub heads: usize,
    pub window: usize,
    pub matrix: Matrix<'a, 'c>,
    pub squares: Squares<'a, 'c>,
    pub stored: Stored,
    pub place: Place<'c>,
    /// Which run of `held` keys of a step the lane has scores of.
    pub half: Int<'c>,
    /// Elements of the vectors in which rows are computed.
    pub lanes: usize,
    query: Value,
    /// Scores times this are powers of two. Its sign is in the queries.
    factor: f64,
    sign: f64,
}

/// Scores so far of the query that a lane has: the highest, the sum of weights (of this lane's keys only), and weighted sums of
/// values.
#[derive(Clone)]
pub struct Running<'c> {
    pub top: FloatValue<'c>,
    pub sum: FloatValue<'c>,
    pub values: Vec<Vector<'c>>,
}

/// The highest score of a query, and by what weights under the one before shrink.
#[derive(Clone, Copy)]
struct Top<'c> {
    value: FloatValue<'c>,
    shrink: FloatValue<'c>,
}

impl<'c> Running<'c> {
    pub fn carried(&self) -> Vec<Any<'c>> {
        let values = self.values.iter().map(|&v| v.into());
        [self.top.into(), self.sum.into()].into_iter().chain(values).collect()
    }

    pub fn of(carried: &[Any<'c>]) -> Running<'c> {
        let values = carried[2..].iter().map(|v| v.into_vector_value()).collect();
        Running { top: carried[0].into_float_value(), sum: carried[1].into_float_value(), values }
    }
}

impl<'k, 'a, 'c> Attention<'k, 'a, 'c> {
    pub fn new(kernel: &'k Kernel<'a, 'c>) -> Result<Attention<'k, 'a, 'c>, Diagnostic> {
        let (c, graph) = (kernel.code, kernel.rows.graph);
        let node = kernel.the("attention", |op| matches!(op, Op::Attention { .. }))?;
        let Op::Attention { scale, window } = *graph.op(node.node) else { unreachable!("just matched") };
        let [cache] = &kernel.caches[..] else { return Err(unsupported("attention over other than one cache")) };
        let (result, out) = kernel.output()?;
        let flattened = matches!(graph.op(result.node), Op::Reshape { .. }) && graph.operands(result.node) == [node];
        if result != node && !flattened {
            return Err(unsupported("attention whose result is computed on"));
        }
        let Sizes { heads, stored, .. } = Sizes::of(graph)?;
        let matrix = Matrix::new(c, stored.dtype);
        // Without a scale all keys weigh the same, as they do if the queries are zero.
        let (sign, size) = if scale == 0.0 { (0.0, 1.0) } else { (scale.signum(), scale.abs()) };
        Ok(Attention {
            kernel,
            cache,
            out,
            heads,
            window,
            place: matrix.place(),
            half: matrix.place().share,
            squares: Squares::small(matrix),
            stored,
            matrix,
            lanes: vector(graph),
            query: graph.operands(node.node)[0],
            factor: size * std::f64::consts::LOG2_E,
            sign,
        })
    }

    /// The same by squares of 32 keys, or dimensions, by as many queries.
    pub fn by_large_squares(self) -> Attention<'k, 'a, 'c> {
        let squares = Squares::new(self.matrix);
        Attention { squares, half: squares.share(), ..self }
    }

    pub fn code(&self) -> &'a Gpu<'c> {
        self.kernel.code
    }

    /// Keys of a step.
    pub fn span(&self) -> usize {
        self.squares.span()
    }

    /// Keys whose scores are made together: those of a step, or of as many as a square has rows for.
    pub fn unit(&self) -> usize {
        self.span().max(16 * self.squares.side())
    }

    /// Steps of a block of the cache.
    pub fn steps(&self) -> usize {
        self.cache.layout.block_tokens / self.span()
    }

    /// Consecutive keys of a step that a lane has scores of.
    pub fn held(&self) -> usize {
        self.span() * self.squares.width() / self.code().simt.wave
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

    /// Where the keys and values of `turn` begin, the same for all lanes; a turn is so many steps, and lies in this block.
    pub fn turn_in(&self, block: Int<'c>, head: Int<'c>, (turn, steps): (Int<'c>, usize)) -> [Ptr<'c>; 2] {
        let c = self.code();
        let (at, inside) = (self.cache.head(c, block, head), turn % (self.steps() / steps));
        let keys = inside * self.stored.bytes(steps * self.span() / 16 * self.key_panel());
        let values = inside * self.stored.bytes(steps * self.squares.step());
        [c.at(c.at(self.cache.k, at), keys), c.at(c.at(self.cache.v, at), values)]
    }

    /// Vectors of the query of a token and head, from column `col` on; zeros behind the head's dimensions.
    pub fn query(&self, token: Int<'c>, head: Int<'c>, col: Int<'c>) -> Result<Vector<'c>, Diagnostic> {
        let (c, dim) = (self.code(), self.cache.ty.head_dim);
        let inside = c.less(col, dim);
        let whole = dim == self.cache.layout.dim;
        let safe = if whole { col } else { c.pick_int(inside, col, 0) };
        let v = self.kernel.rows.eval(self.query, At { row: token, head: Some(head), col: Col::Var(safe) })?;
        let v = self.signed(v);
        Ok(if whole { v } else { c.pick(inside, v, c.zero()).into_vector_value() })
    }

    /// A vector of a query with the sign of the scale.
    pub fn signed(&self, v: Vector<'c>) -> Vector<'c> {
        let c = self.code();
        if self.sign == 1.0 { v } else { c.fmul(v, c.lit(self.sign)) }
    }

    /// The queries, and what scores times are powers of two.
    pub fn query_value(&self) -> Value {
        self.query
    }

    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// A fragment of a query that lies in memory as products take it.
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

    /// Where the lane's keys begin in a step's.
    pub fn key_lane(&self) -> Int<'c> {
        let (m, results) = (&self.matrix, self.matrix.layout.results);
        let row = self.place.row;
        let key = row / results * self.held() + row % results;
        key / 16 * self.key_panel() + m.in_panel(self.place, key % 16)
    }

    /// So many fragments, all loaded here; or, where products convert them, each where it is wanted.
    pub fn fragments<'f>(&self, count: usize, load: impl Fn(usize) -> Fragment<'c> + 'f) -> Fragments<'f, 'c>
    where
        'c: 'f,
    {
        self.fragments_if(!self.matrix.converts(), count, load)
    }

    /// So many fragments, all loaded here if they are `kept`; or each where it is wanted, so that few are there at a time.
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

    /// Ends what a product converted.
    fn converted(&self) {
        if self.matrix.converts() {
            self.code().keep_order();
        }
    }

    /// Fragment `i` of a step's keys as it is stored, tile by tile, from where the lane's begin.
    pub fn key(&self, p: Ptr<'c>, i: usize) -> Fragment<'c> {
        let m = &self.matrix;
        let (tile, chunk) = (i / self.chunks(), i % self.chunks());
        self.load_panel(p, tile * m.layout.results * RUN + chunk * m.panel_step())
    }

    /// A lane's fragment as it is stored in a panel, so many bytes of products on.
    fn load_panel(&self, p: Ptr<'c>, bytes: usize) -> Fragment<'c> {
        let (c, m) = (self.code(), &self.matrix);
        let at = |offset: usize| c.at(p, self.stored.bytes(bytes + offset));
        m.panel_offsets().map(|offset| self.stored.load_run(c, at(offset))).collect()
    }

    /// A fragment as products take it.
    pub fn widened(&self, stored: &[Vector<'c>]) -> Fragment<'c> {
        self.stored.widen(self.code(), stored)
    }

    /// Fragments of the keys of a unit.
    pub fn keys(&self) -> usize {
        self.tiles() * self.chunks()
    }

    /// Squares of the keys of a unit.
    pub fn tiles(&self) -> usize {
        self.unit() / 16 / self.squares.side()
    }

    /// Fragment `i` of a step's values as it is stored, from where the lane's begin.
    pub fn value(&self, p: Ptr<'c>, i: usize) -> Fragment<'c> {
        self.load_panel(p, i * self.value_panel())
    }

    /// Panels of values, or pairs of them in large squares.
    pub fn panels(&self) -> usize {
        self.cache.layout.dim / 16 / self.squares.side()
    }

    pub fn lowest(&self) -> FloatValue<'c> {
        self.code().number(LOWEST)
    }

    pub fn begin(&self) -> Running<'c> {
        let c = self.code();
        let values = vec![self.squares.zero(); self.panels()];
        Running { top: self.lowest(), sum: c.number(0.0), values }
    }

    /// Scores of the lane's keys of a unit for each query, from the keys' fragments, tile by tile.
    pub fn scores(&self, keys: &Fragments<'_, 'c>, queries: &[Fragments<'_, 'c>]) -> Vec<Vector<'c>> {
        let tile = |t: usize, queries: &[Fragments<'_, 'c>]| {
            let mut sums = vec![self.squares.zero(); queries.len()];
            for i in 0..self.chunks() {
                let columns: Vec<Fragment<'c>> = queries.iter().map(|query| query(i)).collect();
                self.squares.products(&keys(t * self.chunks() + i), &columns, &mut sums);
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

    /// Scores without those of keys that a query does not see. Key `i` of the lane is seen if `i <= after`, and in a window if
    /// `after - window < i`.
    pub fn hide(&self, scores: Vector<'c>, after: Int<'c>) -> Vector<'c> {
        self.hide_some(scores, after, |i| i)
    }

    /// The same where the lane's keys are not consecutive.
    pub fn hide_some(&self, scores: Vector<'c>, after: Int<'c>, key: impl Fn(usize) -> usize) -> Vector<'c> {
        let c = self.code();
        c.set_lanes(self.held());
        let keys: Vec<usize> = (0..self.held()).map(key).collect();
        let end = after + 1;
        let never = c.lit(f64::NEG_INFINITY);
        let scores = c.choose(c.below(&keys, end), scores, never);
        match self.window {
            0 => scores,
            w => c.choose(c.below(&keys, end - w), never, scores),
        }
    }

    /// Takes the scores of some steps into what is running, for each of some queries; values come panel by panel of dimensions,
    /// step by step.
    pub fn add(&self, scores: &[Vec<Vector<'c>>], values: &Fragments<'_, 'c>, to: &[Running<'c>]) -> Vec<Running<'c>> {
        let c = self.code();
        let (steps, panels) = (scores[0].len(), self.panels());
        let load = |first: usize| -> Vec<Fragment<'c>> {
            (first * steps..(first + GROUP).min(panels) * steps).map(values).collect()
        };
        let mut next = if self.matrix.converts() { vec![] } else { load(0) };
        let tops: Vec<Top<'c>> = scores.iter().zip(to).map(|(scores, running)| self.top(scores, running)).collect();
        let old = self.shrunk(&tops, to);
        let soften = |((scores, top), running): ((&Vec<Vector<'c>>, &Top<'c>), &Running<'c>)| {
            let (weights, sum) = self.soften(scores, *top, running);
            (weights, Running { top: top.value, sum, values: vec![] })
        };
        let (weights, mut made): (Vec<Vec<Fragment<'c>>>, Vec<Running<'c>>) =
            scores.iter().zip(&tops).zip(to).map(soften).unzip();
        c.set_lanes(self.matrix.layout.results);
        for first in (0..panels).step_by(GROUP) {
            if first > 0 {
                c.keep_order();
            }
            let now =
                if self.matrix.converts() { load(first) } else { std::mem::replace(&mut next, load(first + GROUP)) };
            for (panel, values) in (first..).zip(now.chunks(steps)) {
                let together = self.matrix.together();
                for ((weights, old), new) in
                    weights.chunks(together).zip(old.chunks(together)).zip(made.chunks_mut(together))
                {
                    let mut sums: Vec<Vector<'c>> = old.iter().map(|old| old[panel]).collect();
                    for (step, v) in values.iter().enumerate() {
                        let columns: Vec<Fragment<'c>> = weights.iter().map(|w| w[step].clone()).collect();
                        self.squares.products(v, &columns, &mut sums);
                        self.converted();
                    }
                    new.iter_mut().zip(sums).for_each(|(new, sums)| new.values.push(sums));
                }
            }
        }
        made
    }

    /// The highest score, new ones among them.
    fn top(&self, scores: &[Vector<'c>], to: &Running<'c>) -> Top<'c> {
        let c = self.code();
        c.set_lanes(self.held());
        let all = scores.iter().flat_map(|&s| (0..self.held()).map(move |i| c.lane(s, i).into_float_value()));
        let top = all.fold(to.top, |a, b| self.max(a, b));
        let value = c.across(top, self.squares.sharing(), |a, b| self.max(a, b));
        Top { value, shrink: self.power(to.top, value) }
    }

    /// Weighted sums of values, query by query, shrunk if some top of the wave rose: after a few turns few do.
    fn shrunk(&self, tops: &[Top<'c>], to: &[Running<'c>]) -> Vec<Vec<Vector<'c>>> {
        let c = self.code();
        c.set_lanes(self.squares.zero().get_type().get_size() as usize);
        let all: Vec<Any<'c>> = to.iter().flat_map(|r| r.values.iter().map(|&v| v.into())).collect();
        let rises = |top: &Top<'c>| c.b.build_float_compare(FloatPredicate::UNE, top.shrink, c.number(1.0), "");
        let rises = tops.iter().map(|top| rises(top).expect("floats"));
        let some = rises.reduce(|a, b| c.b.build_or(a, b, "").expect("conditions")).expect("a query");
        let all = c.change_if(c.any_lane(c.as_int(some)), &all, |all| {
            let values = all.chunks(self.panels()).zip(tops);
            let shrunk = values.flat_map(|(values, top)| {
                let shrink = c.splat(top.shrink);
                values.iter().map(move |v| c.fmul(v.into_vector_value(), shrink).into())
            });
            shrunk.collect()
        });
        all.chunks(self.panels()).map(|values| values.iter().map(|v| v.into_vector_value()).collect()).collect()
    }

    /// Weights of scores as fragments, and the new sum.
    fn soften(&self, scores: &[Vector<'c>], top: Top<'c>, to: &Running<'c>) -> (Vec<Fragment<'c>>, FloatValue<'c>) {
        let c = self.code();
        c.set_lanes(self.held());
        let below = c.splat(c.b.build_float_mul(top.value, c.number(-self.factor), "").expect("floats"));
        let weights: Vec<_> = scores.iter().map(|&s| c.exp2(c.simt.isa, c.fma(s, c.lit(self.factor), below))).collect();
        let all = weights[1..].iter().fold(weights[0], |a, &b| c.fadd(a, b));
        let sum = self.fma(to.sum, top.shrink, c.sum(all));
        (weights.iter().map(|&w| self.whole(self.matrix.fragment_of(&[w]))).collect(), sum)
    }

    /// The sum of all weights of a query, from each lane's.
    pub fn total(&self, sum: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.across(sum, self.squares.sharing(), |a, b| c.b.build_float_add(a, b, "").expect("floats"))
    }

    /// What a weight becomes if the highest score rises.
    pub fn power(&self, old: FloatValue<'c>, new: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        let by = c.b.build_float_sub(old, new, "").expect("floats");
        let by = c.b.build_float_mul(by, c.number(self.factor), "").expect("floats");
        c.power_of_two(c.simt.isa, by)
    }

    pub fn max(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.call("llvm.maxnum", &[c.cx.f32_type().into()], &[a.into(), b.into()]).into_float_value()
    }

    pub fn fma(&self, a: FloatValue<'c>, b: FloatValue<'c>, to: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.call("llvm.fma", &[c.cx.f32_type().into()], &[a.into(), b.into(), to.into()]).into_float_value()
    }

    /// A fragment of weights. Where both rows of lanes must have all of it, each gets the other's half.
    fn whole(&self, own: Fragment<'c>) -> Fragment<'c> {
        if !self.matrix.layout.replicated {
            return own;
        }
        let c = self.code();
        let other: Fragment<'c> = own.iter().map(|&run| c.map_words(run, |word| c.other_row(word))).collect();
        let low = c.equal(self.half, 0);
        let ordered = |a: &Fragment<'c>, b: &Fragment<'c>| -> Fragment<'c> {
            a.iter().zip(b).map(|(&a, &b)| c.pick(low, a, b).into_vector_value()).collect()
        };
        [ordered(&own, &other), ordered(&other, &own)].concat()
    }

    /// Zeros behind the last head of some rows, by all threads together.
    pub fn pad(&self, first: Int<'c>, count: Int<'c>, threads: usize) {
        let (c, rows) = (self.code(), &self.kernel.rows);
        let (width, padded) = (self.heads * self.cache.ty.head_dim, rows.padded(self.out));
        if width == padded {
            return;
        }
        c.set_lanes(self.lanes);
        let vectors = (padded - width) / self.lanes;
        c.repeat(c.thread(), count * vectors, threads, |i| {
            let col = i % vectors * self.lanes + width;
            let at = At { row: first + i / vectors, head: None, col: Col::Var(col) };
            c.store_floats(rows.address(self.out, at), c.zero(), self.out.ty.dtype);
        });
    }

    /// The first key that a query at a position sees.
    pub fn first_key(&self, position: Int<'c>) -> Int<'c> {
        let c = self.code();
        match self.window {
            0 => c.int(0),
            w => c.larger(position - (w - 1), 0),
        }
    }

    /// The address of columns of a head in a row of the result.
    pub fn result(&self, token: Int<'c>, head: Int<'c>, col: Int<'c>) -> Ptr<'c> {
        let col = head * self.cache.ty.head_dim + col;
        self.kernel.rows.address(self.out, At { row: token, head: None, col: Col::Var(col) })
    }

    pub fn out_type(&self) -> DType {
        self.out.ty.dtype
    }
}

#[cfg(test)]
mod tests;
