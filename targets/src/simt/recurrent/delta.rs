//! The gated delta rule: a wave has some columns of a head's state in registers for as long as the
//! sequence lasts. Neighbouring lanes are a team, which shares out the rows of the same columns;
//! sums over rows are all that they tell each other. The operands of the next token are loaded
//! while one is computed with.
//!
//! Of the old state S, with keys and queries of length one and `d = beta (v - e^g S^T k)`, the
//! result is `e^g S^T q + (k q) d`: both sums over rows are of the same state, so a token costs one
//! exchange.
use atomc_ir::DType;
use inkwell::IntPredicate;
use inkwell::values::FloatValue;

use crate::KernelSpec;
use crate::code::{Any, Int, Ptr, Vector};
use crate::math;
use crate::recurrent::{Delta, Rule, Run, node};
use crate::row::{Operand, Team, Threads};
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::Gpu;

use super::{each_part, element, pad, vector};

/// Most columns of a lane: 16 bytes of the state.
const COLUMNS: usize = 4;
/// Rows that a lane should not have more of, so that its part of a state fits registers.
const ROWS: usize = 16;
/// Least lanes of a team: as many make a run of 128 bytes of a row with those of the other teams.
const TEAM: usize = 8;

/// How a state is shared out.
#[derive(Clone, Copy)]
pub struct Shares {
    /// Lanes of a team, and the teams of a wave.
    team: usize,
    teams: usize,
    /// Rows and columns of a lane.
    rows: usize,
    columns: usize,
    /// Waves for a head.
    pub parts: usize,
}

impl Shares {
    pub fn of(delta: &Delta, wave: usize) -> Shares {
        let sizes = delta.sizes;
        let team = sizes.key_dim.div_ceil(ROWS).next_power_of_two().clamp(TEAM, wave);
        let (teams, columns) = (wave / team, vector(sizes.value_dim, vector(delta.starts[2], COLUMNS)));
        let rows = sizes.key_dim.div_ceil(team).next_power_of_two();
        Shares { team, teams, rows, columns, parts: sizes.value_dim.div_ceil(teams * columns) }
    }
}

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let wave = setup.gpu()?.simt.wave;
    let code = setup.open(spec, wave)?;
    let info = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let delta = Delta::of(&kernel, node(&kernel)?)?;
        let shares = Shares::of(&delta, wave);
        let parts = delta.sizes.heads * shares.parts;
        let info = each_part(c, spec, &kernel, parts, wave, |run, number| {
            let [head, part] = c.divide(number, c.int(shares.parts));
            Part::new(c, &delta, shares, head, part).run(run);
            c.when(c.equal(number, parts - 1), || pad(c, delta.out, [run.first, run.end], c.thread(), wave));
        })?;
        delta.finish()?;
        info
    };
    Ok((code, info))
}

/// The wave that takes the parts of a head in sequences of few tokens, if a work-group has other
/// columns than a wave: waves take those of all such sequences in turn.
pub struct Few<'c> {
    pub shares: Shares,
    pub head: Int<'c>,
    /// The work-group's number among those of the head, and their number.
    pub part: Int<'c>,
    pub parts: usize,
    pub waves: usize,
    /// Sequences that the work-group had before.
    pub number: Int<'c>,
}

impl<'c> Few<'c> {
    pub fn run(&self, c: &Gpu<'c>, delta: &Delta<'_, 'c>, run: Run<'c>) {
        let each = self.shares.parts.div_ceil(self.parts);
        c.repeat(0, each, 1, |i| {
            let part = self.part * each + i;
            let turn = (self.number * each + i) % self.waves;
            let is_own = c.compare(IntPredicate::EQ, turn, c.wave_index()) & c.less(part, self.shares.parts);
            c.when(is_own, || Part::new(c, delta, self.shares, self.head, part).run(run));
        });
    }
}

/// Some columns of a head's state. The lane has those from `column` on, in rows from `row` on.
/// Lanes without columns of their own compute with the last ones, and store nothing.
pub struct Part<'a, 'k, 'c> {
    c: &'a Gpu<'c>,
    delta: &'a Delta<'k, 'c>,
    shares: Shares,
    team: Team<'a, 'c>,
    head: Int<'c>,
    row: Int<'c>,
    column: Int<'c>,
    has_columns: Int<'c>,
}

/// The operands of a token, as they were loaded.
struct Token<'c> {
    q: Vec<Vector<'c>>,
    k: Vec<Vector<'c>>,
    v: Vector<'c>,
    /// The logarithm of the decay: of all rows, or of each of the lane's.
    g: Vec<FloatValue<'c>>,
    beta: FloatValue<'c>,
}

impl<'a, 'k, 'c> Part<'a, 'k, 'c> {
    pub fn new(c: &'a Gpu<'c>, delta: &'a Delta<'k, 'c>, shares: Shares, head: Int<'c>, part: Int<'c>) -> Self {
        let index = c.lane_index() % shares.team;
        let wanted = (part * shares.teams + c.lane_index() / shares.team) * shares.columns;
        let has_columns = c.less(wanted, delta.sizes.value_dim);
        let column = c.smaller(wanted, delta.sizes.value_dim - shares.columns);
        let team = c.lanes_team(index, shares.team);
        Part { c, delta, shares, team, head, row: index * shares.rows, column, has_columns }
    }

    /// All tokens of a sequence, one after the other.
    pub fn run(&self, run: Run<'c>) {
        let c = self.c;
        c.set_lanes(self.shares.columns);
        let state = (0..self.shares.rows).map(|i| {
            let (row, exists) = self.own_row(i);
            c.pick(run.goes_on & exists, c.load_floats(self.place(run.slot, row), DType::F32), c.zero())
        });
        let state: Vec<Any> = state.collect();
        let first = self.load(run.first);
        let decays = first.g.len();
        let carried = [state, first.carried()].concat();
        let after = c.for_each((run.first, run.end, 1), &carried, |token, carried| {
            let (state, now) = carried.split_at(self.shares.rows);
            let next = self.load(c.smaller(token + 1, run.end - 1));
            let state = self.token(token, state, Token::of(now, decays));
            run.keep_behind(c, token, |slot| self.keep(slot, &state));
            [state, next.carried()].concat()
        });
        run.keep_last(c, |slot| self.keep(slot, &after[..self.shares.rows]));
    }

    /// Stores the lane's part of a state into a slot.
    fn keep(&self, slot: Ptr<'c>, state: &[Any<'c>]) {
        let c = self.c;
        c.when(self.has_columns, || {
            for (i, numbers) in state.iter().enumerate() {
                let (row, exists) = self.own_row(i);
                let store = || c.store_floats(self.place(slot, row), numbers.into_vector_value(), DType::F32);
                if self.all_rows_exist() { store() } else { c.when(exists, store) }
            }
        });
    }

    /// Where the lane's columns of a row lie in a slot.
    fn place(&self, slot: Ptr<'c>, row: Int<'c>) -> Ptr<'c> {
        let sizes = self.delta.sizes;
        let head = self.c.at(slot, self.head * (4 * sizes.key_dim * sizes.value_dim));
        self.c.at(head, (row * sizes.value_dim + self.column) * 4)
    }

    fn all_rows_exist(&self) -> bool {
        self.shares.team * self.shares.rows == self.delta.sizes.key_dim
    }

    /// A row of the lane, and whether it exists; the last row if not.
    fn own_row(&self, i: usize) -> (Int<'c>, Int<'c>) {
        let (c, row) = (self.c, self.row + i);
        if self.all_rows_exist() {
            return (row, c.always());
        }
        (c.smaller(row, self.delta.sizes.key_dim - 1), c.less(row, self.delta.sizes.key_dim))
    }

    /// The operands of a token: of its query and key the lane's rows.
    fn load(&self, token: Int<'c>) -> Token<'c> {
        let (c, delta, sizes) = (self.c, self.delta, self.delta.sizes);
        let shared = self.head / (sizes.heads / sizes.key_heads);
        let beta = delta.rate(c, token, self.head);
        let decays = if delta.by_row() { self.shares.rows } else { 1 };
        let g = (0..decays).map(|i| delta.decay(c, token, self.head, self.own_row(i).0)).collect();
        let v = element(c, &delta.v, token, self.head * sizes.value_dim + self.column);
        let v = c.load_floats(v, delta.v.ty.dtype);
        let row = |x: &Operand<'c>| {
            let lanes = c.lanes();
            c.set_lanes(self.vector());
            let parts = (0..self.shares.rows).step_by(self.vector()).map(|i| {
                let (row, exists) = self.own_part(i);
                let bits = c.load_bits(element(c, x, token, shared * sizes.key_dim + row), x.ty.dtype);
                match self.all_rows_exist() {
                    true => bits,
                    false => c.pick(exists, bits, bits.get_type().const_zero()).into_vector_value(),
                }
            });
            let parts: Vec<Vector> = parts.collect();
            c.set_lanes(lanes);
            parts
        };
        Token { q: row(&delta.q), k: row(&delta.k), v, g, beta }
    }

    /// Elements of a query or key that are loaded at once: as many as fit both a lane's rows and a
    /// head, and 16 bytes at most.
    fn vector(&self) -> usize {
        let most = 16 / self.delta.q.ty.dtype.size();
        let [q, k, _] = self.delta.starts;
        let most = vector(q, vector(k, most));
        vector(self.delta.sizes.key_dim, most).min(self.shares.rows)
    }

    /// As [`Part::own_row`], of as many as are loaded at once: they exist all or not at all.
    fn own_part(&self, i: usize) -> (Int<'c>, Int<'c>) {
        let (c, row, dim) = (self.c, self.row + i, self.delta.sizes.key_dim);
        if self.all_rows_exist() {
            return (row, c.always());
        }
        (c.smaller(row, dim - self.vector()), c.less(row, dim))
    }

    /// The elements of a query or key.
    fn elements(&self, parts: &[Vector<'c>]) -> Vec<FloatValue<'c>> {
        let (c, count) = (self.c, self.vector());
        let lanes = c.lanes();
        c.set_lanes(count);
        let all = parts.iter().flat_map(|&bits| {
            let floats = c.widen(bits, self.delta.q.ty.dtype);
            (0..count).map(move |i| c.lane(floats, i).into_float_value())
        });
        let all: Vec<FloatValue> = all.collect();
        c.set_lanes(lanes);
        all
    }

    /// Stores a token's result and returns the new state.
    fn token(&self, token: Int<'c>, state: &[Any<'c>], x: Token<'c>) -> Vec<Any<'c>> {
        let (c, delta, sizes) = (self.c, self.delta, self.delta.sizes);
        let state: Vec<Vector> = state.iter().map(|v| v.into_vector_value()).collect();
        let (q, k) = (self.elements(&x.q), self.elements(&x.k));
        let inner = |a: &[FloatValue<'c>], b: &[FloatValue<'c>]| {
            c.set_lanes(1);
            let products = a.iter().zip(b);
            let sum = products.fold(c.zero(), |sum, (&a, &b)| c.fma(c.splat(a), c.splat(b), sum));
            let sum = c.team_sum(c.lane(sum, 0).into_float_value(), self.team);
            c.set_lanes(self.shares.columns);
            sum
        };
        let (of_q, of_k) = match delta.rule {
            Rule::Sum { .. } => (c.lit(1.0), c.lit(1.0)),
            Rule::Delta { eps } => {
                let length = |x: &[FloatValue<'c>]| c.splat(c.inverse_root(inner(x, x), 1, eps));
                let (of_q, of_k) = (length(&q), length(&k));
                (c.fmul(of_q, c.lit((sizes.key_dim as f64).powf(-0.5))), of_k)
            }
        };
        let both = c.fmul(c.splat(inner(&q, &k)), of_k);
        c.set_lanes(1);
        let kept: Vec<FloatValue> =
            x.g.iter().map(|&g| c.lane(math::exp(c, c.splat(g)), 0).into_float_value()).collect();
        c.set_lanes(self.shares.columns);
        // Rows that decay apart do so before they are added up.
        let state: Vec<Vector> = match delta.by_row() {
            true => state.iter().zip(&kept).map(|(&row, &kept)| c.fmul(c.splat(kept), row)).collect(),
            false => state,
        };
        let kept = if delta.by_row() { c.lit(1.0) } else { c.splat(kept[0]) };
        let sum = |by: &[FloatValue<'c>]| {
            let rows = by.iter().zip(&state);
            let sum = rows.fold(c.zero(), |sum, (&by, &row)| c.fma(row, c.splat(by), sum));
            c.each(sum, |part| c.team_sum(part, self.team))
        };
        let (with_q, beta) = (sum(&q), c.splat(x.beta));
        let new = match delta.rule {
            Rule::Sum { .. } => x.v,
            Rule::Delta { .. } => c.fsub(x.v, c.fmul(kept, c.fmul(sum(&k), of_k))),
        };
        let d = c.fmul(beta, new);
        let seen = c.fma(both, d, c.fmul(kept, with_q));
        let seen = match delta.rule {
            Rule::Sum { skip } => c.fma(c.splat(delta.weight_of(c, skip, self.head)), x.v, seen),
            Rule::Delta { .. } => c.fmul(of_q, seen),
        };
        let stores = self.has_columns & c.equal(self.team.index, 0);
        c.when(stores, || {
            let place = element(c, delta.out, token, self.head * sizes.value_dim + self.column);
            c.store_floats(place, seen, delta.out.ty.dtype);
        });
        let d = c.fmul(d, of_k);
        let rows = state.iter().zip(&k);
        rows.map(|(&row, &k)| c.fma(c.splat(k), d, c.fmul(kept, row)).into()).collect()
    }
}

impl<'c> Token<'c> {
    fn carried(self) -> Vec<Any<'c>> {
        let rows = self.q.into_iter().chain(self.k).map(Any::from);
        let gates = self.g.into_iter().map(Any::from);
        rows.chain([self.v.into(), self.beta.into()]).chain(gates).collect()
    }

    /// What was carried, with so many decays.
    fn of(carried: &[Any<'c>], decays: usize) -> Token<'c> {
        let (rows, rest) = carried.split_at(carried.len() - 2 - decays);
        let rows: Vec<Vector> = rows.iter().map(|v| v.into_vector_value()).collect();
        let (q, k) = rows.split_at(rows.len() / 2);
        Token {
            q: q.to_vec(),
            k: k.to_vec(),
            v: rest[0].into_vector_value(),
            g: rest[2..].iter().map(|g| g.into_float_value()).collect(),
            beta: rest[1].into_float_value(),
        }
    }
}
