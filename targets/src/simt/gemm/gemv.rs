//! Family `matvec`: a contraction over the few tokens of a decode step, which reads each byte of the weight once.
//!
//! A work-group makes one panel of the result (16 features, from one panel of each piece), its waves share the columns of the
//! weight, and their sums meet in local memory. A wave has the operands of its next steps in flight, as many as registers
//! allow while all waves stand on a SIMD. Rows that lie in memory are read as they are; others (a norm, chosen rows) are
//! computed once into local memory, in runs as fragments want them.
use atomc_ir::{Arch, Diagnostic, Family};

use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col};
use crate::schedule::Schedule;
use crate::simt::gemm::contract::{Contraction, Sizes};
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine;
use crate::simt::machine::fragment::{Fragment, Matrix, RUN};
use crate::simt::rowwise;
use crate::{KernelInfo, KernelSpec, Tasks};

/// Most waves of a work-group.
const WAVES: usize = 8;
/// Registers for all but sums and what is in flight.
const OTHERS: usize = 20;
/// Least runs, of the weight and of rows in memory, that a lane has in flight.
const IN_FLIGHT: usize = 8;
/// Turns up to which there is no loop.
const UNROLLED: usize = 2;
/// Most bytes of local memory, where rows are computed into it: so that two work-groups fit a compute unit.
const LOCAL: usize = 32 << 10;
/// Bytes of local memory that are left for small exchanges.
const EXCHANGED: usize = 1 << 10;
/// Vectors of a row that a thread has on the way there.
const TOGETHER: usize = 2;

/// How a kernel goes along the weight.
#[derive(Clone, Copy, Debug)]
struct Shape {
    tokens: usize,
    /// Tiles of tokens, and how many each has.
    columns: usize,
    width: usize,
    waves: usize,
    /// Products along the weight in all, and those of a wave whose operands are in flight.
    steps: usize,
    ahead: usize,
}

impl Shape {
    fn new(spec: &KernelSpec, arch: &Arch) -> Result<Shape, Diagnostic> {
        let Sizes { dtype, depth, pieces, plain, .. } = Sizes::of(spec.body)?;
        let simt = arch.simt();
        let steps = arch.memory.padded(depth) / simt.matrix.span(simt.wave);
        let runs = simt.matrix.depth * dtype.size() / RUN;
        let width = simt.matrix.columns;
        let (columns, rows) = (spec.tokens.div_ceil(width), simt.matrix.rows());
        let asked = runs * if plain { pieces * rows + columns } else { pieces * rows };
        let held = pieces * columns * simt.matrix.results + if plain { 0 } else { columns * runs * 4 };
        let free = (simt.unit.vgprs / simt.unit.waves).saturating_sub(held + OTHERS) / 4;
        let ahead = (free.max(IN_FLIGHT) / asked).max(2).min(steps);
        // What the waves leave to each other has room beside rows and what else is exchanged.
        let room = (simt.unit.lds_group - LOCAL - EXCHANGED) / (pieces * spec.tokens * 16 * 4);
        let waves = (steps / ahead).min(room).clamp(1, WAVES);
        Ok(Shape { tokens: spec.tokens, columns, width, waves, steps, ahead })
    }

    fn threads(&self, arch: &Arch) -> usize {
        self.waves * arch.simt().wave
    }
}

pub const SCHEDULE: Schedule = Schedule {
    name: "gemv",
    family: Family::Matvec,
    suits: |spec, arch, _| Ok(Shape::new(spec, arch).map(drop)?),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.arch)?;
    let threads = shape.threads(setup.arch);
    let code = setup.open(spec, threads);
    let panels = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let contraction = Contraction::new(&kernel)?;
        let panel = c.group();
        let walk = Walk::new(&contraction, shape, panel);
        let sums = match contraction.parts.rows_in_memory() {
            Some(x) => walk.all(&InMemory { ptr: x.ptr, stride: x.stride * x.ty.dtype.size() }),
            None => walk.staged(spec)?,
        };
        finish(&contraction, shape, panel, &sums)?;
        contraction.panels()
    };
    Ok((code, KernelInfo::simt(Tasks::Fixed(panels), threads)))
}

/// Where a lane's run of a token's row lies.
trait Source<'c> {
    fn run(&self, m: &Matrix<'_, 'c>, token: Int<'c>, run: Int<'c>) -> Ptr<'c>;
    /// Bytes from one run to the next.
    fn apart(&self) -> usize;
    /// Whether they are far away, so that they must be asked for as early as weights.
    fn is_far(&self) -> bool;
}

/// Rows as other kernels wrote them.
struct InMemory<'c> {
    ptr: Ptr<'c>,
    stride: usize,
}

impl<'c> Source<'c> for InMemory<'c> {
    fn run(&self, m: &Matrix<'_, 'c>, token: Int<'c>, run: Int<'c>) -> Ptr<'c> {
        let c = m.c;
        c.at(self.ptr, token * self.stride + run * RUN)
    }

    fn apart(&self) -> usize {
        RUN
    }

    fn is_far(&self) -> bool {
        true
    }
}

/// Rows in local memory: the runs of all tokens side by side.
struct Staged<'c> {
    ptr: Ptr<'c>,
    tokens: usize,
    /// The first run that is there.
    first: usize,
}

impl<'c> Source<'c> for Staged<'c> {
    fn run(&self, m: &Matrix<'_, 'c>, token: Int<'c>, run: Int<'c>) -> Ptr<'c> {
        let c = m.c;
        let run = run - self.first;
        c.at(self.ptr, (run * self.tokens + token) * RUN)
    }

    fn apart(&self) -> usize {
        self.tokens * RUN
    }

    fn is_far(&self) -> bool {
        false
    }
}

/// One wave's way along the weight.
struct Walk<'w, 'k, 'a, 'c> {
    contraction: &'w Contraction<'k, 'a, 'c>,
    shape: Shape,
    wave: Int<'c>,
    /// The lane's first run of each piece.
    weights: Vec<Ptr<'c>>,
    /// The token of each column that the lane holds.
    tokens: Vec<Int<'c>>,
    part: Int<'c>,
}

impl<'w, 'k, 'a, 'c> Walk<'w, 'k, 'a, 'c> {
    fn new(contraction: &'w Contraction<'k, 'a, 'c>, shape: Shape, panel: Int<'c>) -> Walk<'w, 'k, 'a, 'c> {
        let m = &contraction.matrix;
        let (c, place) = (m.c, m.place());
        let lane = m.in_panel(place, place.row);
        let weights = contraction.weights(panel).into_iter().map(|p| c.at(p, lane)).collect();
        let token = |j: usize| c.smaller(place.column + shape.width * j, shape.tokens - 1);
        let tokens = (0..shape.columns).map(token).collect();
        Walk { contraction, shape, wave: c.wave_index(), weights, tokens, part: place.part }
    }

    fn matrix(&self) -> &'w Matrix<'a, 'c> {
        &self.contraction.matrix
    }

    fn zeros(&self) -> Vec<Vector<'c>> {
        vec![self.matrix().zero(); self.weights.len() * self.shape.columns]
    }

    /// Sums over the whole weight.
    fn all(&self, x: &dyn Source<'c>) -> Vec<Vector<'c>> {
        self.range(x, 0, self.shape.steps, self.zeros())
    }

    /// Sums over steps `first` to `end`: as many for each wave, one after the other, then one more for some.
    fn range(&self, x: &dyn Source<'c>, first: usize, end: usize, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        let waves = self.shape.waves;
        let count = (end - first) / waves;
        let begin = self.wave * count + first;
        let sums = self.stretch(x, begin, count, sums);
        self.rest(x, first + count * waves, end, sums)
    }

    /// Steps of the wave from `begin` on. Each takes the registers of the one that was just used, so that as many are always
    /// in flight.
    fn stretch(&self, x: &dyn Source<'c>, begin: Int<'c>, count: usize, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        let c = self.matrix().c;
        let ahead = self.shape.ahead.min(count);
        let ask = |i: usize| {
            c.keep_order();
            self.asked(x, (begin, i))
        };
        let (known, mut sums) = (sums.len(), sums);
        let mut asked: Vec<Vec<Fragment<'c>>> = (0..ahead).map(ask).collect();
        let turn =
            |(from, i): (Int<'c>, usize), sums: &mut [Vector<'c>], asked: &mut [Vec<Fragment<'c>>], more: bool| {
                c.keep_order();
                self.use_up(x, (from, i), &asked[i % ahead], sums);
                if more {
                    c.keep_order();
                    asked[i % ahead] = self.asked(x, (from, i + ahead));
                }
            };
        let looped = if count > UNROLLED * ahead { (count / ahead - 1) * ahead } else { 0 };
        if looped > 0 {
            let columns = asked[0].len() - self.weights.len();
            let all = |sums: &[Vector<'c>], asked: &[Vec<Fragment<'c>>]| -> Vec<Any<'c>> {
                sums.iter().chain(asked.iter().flatten().flatten()).map(|&v| v.into()).collect()
            };
            let carried = c.for_each((0, looped, ahead), &all(&sums, &asked), |at, carried| {
                let (mut sums, mut asked) = self.split(carried, known, columns);
                (0..ahead).for_each(|i| turn((begin + at, i), &mut sums, &mut asked, true));
                all(&sums, &asked)
            });
            (sums, asked) = self.split(&carried, known, columns);
        }
        let begin = begin + looped;
        let left = count - looped;
        (0..left).for_each(|i| turn((begin, i), &mut sums, &mut asked, i + ahead < left));
        sums
    }

    /// What a step needs from far away: rows, if they are there, then weights.
    fn asked(&self, x: &dyn Source<'c>, step: (Int<'c>, usize)) -> Vec<Fragment<'c>> {
        let near = if x.is_far() { self.columns_of(x, step) } else { vec![] };
        near.into_iter().chain(self.weights_of(step)).collect()
    }

    /// Adds the products of a step whose fragments from far away are there.
    fn use_up(&self, x: &dyn Source<'c>, step: (Int<'c>, usize), asked: &[Fragment<'c>], sums: &mut [Vector<'c>]) {
        let (columns, weights) = asked.split_at(asked.len() - self.weights.len());
        match x.is_far() {
            true => self.contraction.multiply(weights, columns, sums),
            false => self.contraction.multiply(weights, &self.columns_of(x, step), sums),
        }
    }

    /// Carried values as so many sums, and what was asked for, step by step.
    fn split(&self, carried: &[Any<'c>], sums: usize, columns: usize) -> (Vec<Vector<'c>>, Vec<Vec<Fragment<'c>>>) {
        let (m, all): (_, Vec<Vector<'c>>) = (self.matrix(), carried.iter().map(|v| v.into_vector_value()).collect());
        let (sums, asked) = all.split_at(sums);
        let near = columns * m.runs();
        let step = |runs: &[Vector<'c>]| {
            let fragments = runs[..near].chunks(m.runs()).chain(runs[near..].chunks(m.panel_runs()));
            fragments.map(|runs| runs.to_vec()).collect()
        };
        (sums.to_vec(), asked.chunks(near + self.weights.len() * m.panel_runs()).map(step).collect())
    }

    /// Steps from `first` up to `end`, which not every wave has one of.
    fn rest(&self, x: &dyn Source<'c>, first: usize, end: usize, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        if first == end {
            return sums;
        }
        let c = self.matrix().c;
        let carried: Vec<Any> = sums.iter().map(|&v| v.into()).collect();
        let begin = self.wave + first;
        let carried = c.for_each((begin, end, self.shape.waves), &carried, |step, carried| {
            let mut sums: Vec<Vector<'c>> = carried.iter().map(|v| v.into_vector_value()).collect();
            self.use_up(x, (step, 0), &self.asked(x, (step, 0)), &mut sums);
            sums.iter().map(|&v| v.into()).collect()
        });
        carried.iter().map(|v| v.into_vector_value()).collect()
    }

    /// Fragments of step `i` behind `step`, piece by piece.
    fn weights_of(&self, (step, i): (Int<'c>, usize)) -> Vec<Fragment<'c>> {
        let m = self.matrix();
        let c = m.c;
        let first = |p: Ptr<'c>| c.at(p, step * m.panel_step());
        self.weights.iter().map(|&p| m.load_panel(c.at(first(p), i * m.panel_step()))).collect()
    }

    /// The rows' fragments of step `i` behind `step`, tile by tile.
    fn columns_of(&self, x: &dyn Source<'c>, (step, i): (Int<'c>, usize)) -> Vec<Fragment<'c>> {
        let m = self.matrix();
        let c = m.c;
        let runs = step * (m.span() / m.run()) + self.part * m.runs();
        let further = c.int(i * m.span() / m.run() * x.apart());
        self.tokens.iter().map(|&token| m.load_runs(c.at(x.run(m, token, runs), further), x.apart())).collect()
    }

    /// Sums with rows that are computed into local memory, a stretch of columns at a time.
    fn staged(&self, spec: &KernelSpec) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let m = self.matrix();
        let (c, Shape { tokens, steps, waves, .. }) = (m.c, self.shape);
        let step_bytes = tokens * m.span() * m.dtype.size();
        let others = waves * (4 + self.weights.len() * tokens * 16 * 4);
        let stretch = (LOCAL.saturating_sub(others) / step_bytes / waves * waves).max(waves).min(steps);
        let local = c.local(stretch * step_bytes);
        let exchange = machine::exchange(c, self.shape.threads(c.arch));
        c.set_lanes(rowwise::vector(spec.body).min(m.run()));
        let lanes = c.lanes();
        let mut sums = self.zeros();
        for first in (0..steps).step_by(stretch) {
            let end = (first + stretch).min(steps);
            if first > 0 {
                c.barrier();
            }
            c.set_lanes(lanes);
            let staged = Staged { ptr: local, tokens, first: first * m.span() / m.run() };
            self.stage(&staged, exchange, first * m.span(), end * m.span())?;
            c.barrier();
            sums = self.range(&staged, first, end, sums);
        }
        Ok(sums)
    }

    /// Computes columns `first` to `end` of every row: one row by all threads, several by a wave each.
    fn stage(&self, to: &Staged<'c>, exchange: Ptr<'c>, first: usize, end: usize) -> Result<(), Diagnostic> {
        let c = self.matrix().c;
        let rows = &self.contraction.parts.kernel.rows;
        let (Shape { tokens, waves, .. }, wave) = (self.shape, c.simt.wave);
        if tokens == 1 {
            rows.set_team(c.group_team(waves * wave, exchange));
            return self.stage_row(to, c.int(0), first, end);
        }
        rows.set_team(c.lanes_team(c.lane_index(), wave));
        let mut result = Ok(());
        c.repeat(self.wave, tokens, waves, |row| result = self.stage_row(to, row, first, end));
        result
    }

    fn stage_row(&self, to: &Staged<'c>, row: Int<'c>, first: usize, end: usize) -> Result<(), Diagnostic> {
        let m = self.matrix();
        let (c, parts) = (m.c, &self.contraction.parts);
        let (rows, x) = (&parts.kernel.rows, parts.x);
        let width = rows.shape(x)?.shape.last().unwrap_or(0);
        rows.forget();
        rows.prepare(x, row, None)?;
        let mut vectors = 0;
        rows.each_column(end - first, |col| {
            vectors += 1;
            if vectors % TOGETHER == 0 {
                c.keep_order();
            }
            let col = if first == 0 { col } else { col + first };
            let v = rows.eval(x, At { row, head: None, col: Col::Var(col) })?;
            let v = if width < end { c.pick(c.less(col, width), v, c.zero()).into_vector_value() } else { v };
            let p = to.run(m, row, col / m.run());
            c.store_floats(c.at(p, col % m.run() * m.dtype.size()), v, m.dtype);
            Ok(())
        })?;
        rows.forget();
        Ok(())
    }
}

/// Adds the waves' sums and stores the results.
fn finish<'c>(
    contraction: &Contraction<'_, '_, 'c>,
    shape: Shape,
    panel: Int<'c>,
    sums: &[Vector<'c>],
) -> Result<(), Diagnostic> {
    let m = &contraction.matrix;
    let (c, place, results) = (m.c, m.place(), m.layout.results);
    let Shape { tokens, columns, width, waves, .. } = shape;
    let sums: Vec<Vector<'c>> = sums.iter().map(|&sum| c.pin(sum)).collect();
    let first = panel * 16;
    let mut result = Ok(());
    let token = |j: usize| place.column + width * j;
    if waves == 1 {
        for j in 0..columns {
            let sums: Vec<Vector<'c>> = sums.iter().skip(j).step_by(columns).copied().collect();
            c.when(c.less(token(j), tokens), || {
                let done = contraction.finish(token(j), first + place.results, &sums);
                result = std::mem::replace(&mut result, Ok(())).and(done);
            });
        }
        return result;
    }
    let pieces = sums.len() / columns;
    let local = c.local(waves * pieces * tokens * 16 * 4);
    let at = |wave: Int<'c>, piece: usize, token: Int<'c>, feature: Int<'c>| {
        let row = (wave * pieces + piece) * tokens + token;
        c.at(local, (row * 16 + feature) * 4)
    };
    for j in 0..columns {
        c.when(c.less(token(j), tokens), || {
            for (piece, sums) in sums.chunks(columns).enumerate() {
                c.store(at(c.wave_index(), piece, token(j), place.results), sums[j], 16);
            }
        });
    }
    c.barrier();
    let count = 16 / results;
    c.repeat(c.thread(), tokens * count, shape.threads(c.arch), |item| {
        let (token, feature) = (item / count, item % count * results);
        let load = |wave: usize, piece: usize| {
            c.load_vector(c.cx.f32_type(), results, at(c.int(wave), piece, token, feature), 16)
        };
        let sum = |piece: usize| (1..waves).fold(load(0, piece), |sum, wave| c.fadd(sum, load(wave, piece)));
        let sums: Vec<Vector<'c>> = (0..pieces).map(sum).collect();
        result = contraction.finish(token, first + feature, &sums);
    });
    result
}
