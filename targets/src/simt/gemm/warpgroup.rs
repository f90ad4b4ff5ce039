//! Family `matmul` where four waves multiply together, and the machine copies tiles by itself.
//!
//! A work-group stays, and makes one tile of 128 tokens after the other. One lane of it asks for
//! tiles of both operands, stretch by stretch, as soon as there is room in a ring in local memory;
//! two groups of four waves, each with 64 tokens, multiply what has come. So copies of the next
//! tile are under way while this one is finished. Tokens are the left operand here: a lane has sums
//! of two tokens, which change lanes in local memory until each has 8 consecutive features.
//!
//! A weight's tile comes as blocks of 8 rows by 16 bytes, just as they lie in panels; that of the
//! rows is swizzled.
use atomc_ir::{Arch, Diagnostic, Family};

use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col, Operand, unsupported};
use crate::schedule::{Schedule, WhyNot};
use crate::simt::gemm::contract::{Contraction, Sizes, tuned_by};
use crate::simt::launch;
use crate::simt::launch::Kernel;
use crate::simt::launch::{COUNTERS, Setup, arguments, kernel, step_size};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Matrix;
use crate::simt::machine::pipeline::{Pipeline, split_roles};
use crate::simt::machine::wide::{MAP, TensorMap, TileForm};
use crate::tuning::{Choice, Number, Open};
use crate::{KernelInfo, KernelSpec, Tasks};

/// Rows of the weight in a tile.
const ROWS: [usize; 4] = [256, 192, 128, 64];
/// They may be chosen by measuring.
const TILE: Number = Number { name: "tile", values: &ROWS };
/// Tokens that a group of four waves multiplies, and those of a tile.
const GROUP_TOKENS: usize = 64;
const TOKENS: usize = 2 * GROUP_TOKENS;
/// Threads that multiply. Four more waves are there for the one that copies, since registers are
/// dealt out to four at a time.
const CONSUMERS: usize = 256;
const THREADS: usize = CONSUMERS + 128;
/// Registers of a thread that copies, and of one that multiplies.
const REGISTERS: [usize; 2] = [40, 232];
/// Columns in a stretch, which are 128 bytes, and how many products a stretch takes.
const STRETCH: usize = 64;
const PRODUCTS: usize = STRETCH / 16;
/// Bytes of 8 rows of a weight's stretch: 8 blocks of 8 rows by 16 bytes.
const BLOCK: usize = 128;
const EIGHT: usize = 8 * BLOCK;
/// Features that change lanes at once, and the bytes of local memory that a wave has for it: 16
/// tokens.
const ROUND: usize = 64;
const LINE: usize = ROUND * 4;
const EXCHANGE: usize = 16 * LINE;
/// Consecutive features of a lane.
const LANES: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Rows of the weight in a tile, and features of each piece that it makes.
    rows: usize,
    features: usize,
    pieces: usize,
    /// Stretches along the weight, and how many fit local memory at once.
    count: usize,
    stages: usize,
    /// Tiles along the features, and work-groups that make all of them.
    across: usize,
    groups: usize,
}

/// Whether the machine has what it takes for this contraction.
fn suits(spec: &KernelSpec, arch: &Arch, choice: &Choice) -> Result<(), WhyNot> {
    let Sizes { dtype, pieces, .. } = Sizes::of(spec.body)?;
    let simt = arch.simt();
    WhyNot::unless(simt.wide_products, || format!("{} has no warpgroup MMA", arch.name))?;
    WhyNot::unless(Matrix::native(simt, dtype), || format!("{} has no MMA of {}", arch.name, dtype.name()))?;
    let chosen = choice.get(&TILE);
    WhyNot::unless(possible(pieces).any(|rows| chosen.is_none_or(|chosen| chosen == rows)), || {
        let tile = chosen.map_or("no tile".into(), |rows| format!("a tile of {rows} rows"));
        format!("{tile} is whole rounds of {ROUND} features of {pieces} pieces")
    })
}

/// Rows that a tile may have: whole rounds of features of each piece.
fn possible(pieces: usize) -> impl Iterator<Item = usize> {
    ROWS.into_iter().filter(move |rows| rows.is_multiple_of(pieces * ROUND))
}

impl Shape {
    fn new(spec: &KernelSpec, arch: &Arch, choice: &Choice) -> Result<Shape, Diagnostic> {
        let Sizes { dtype, rows: all, depth, pieces, .. } = Sizes::of(spec.body)?;
        let (unit, width) = (&arch.simt().unit, arch.memory.padded(all / pieces));
        let across = |rows: usize| width.div_ceil(rows / pieces);
        let (tiles, units) = (|rows: usize| spec.tokens.div_ceil(TOKENS) * across(rows), arch.simt().chip.units);
        let cost = launch::measured(arch)?.tile_cost;
        let best = possible(pieces).min_by_key(|&rows| tiles(rows).div_ceil(units) * (rows + cost));
        let rows = choice.get(&TILE).or(best).ok_or_else(|| unsupported(format!("{pieces} pieces in a tile")))?;
        let room = unit.lds_group - CONSUMERS / 32 * EXCHANGE - 2 * MAP - unit.lds_granule;
        Ok(Shape {
            rows,
            features: rows / pieces,
            pieces,
            count: arch.memory.padded(depth).div_ceil(STRETCH),
            stages: room / ((rows + TOKENS) * STRETCH * dtype.size()),
            across: across(rows),
            groups: units.min(tiles(rows)),
        })
    }

    /// Bytes of a stretch of the weight, and of both operands.
    fn stage(&self) -> [usize; 2] {
        [self.rows / 8 * EIGHT, self.rows / 8 * EIGHT + TOKENS * 128]
    }
}

pub const SCHEDULE: Schedule = Schedule {
    name: "gemm_warpgroup",
    family: Family::Matmul,
    suits,
    open: Some(Open { numbers: &[TILE], sizes: tuned_by }),
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.arch, &setup.choice)?;
    let code = setup.open_early(spec, THREADS);
    {
        let c = &code;
        c.want_waves(THREADS / 128);
        let kernel = kernel(c, spec)?;
        let contraction = Contraction::new(&kernel)?;
        let x = contraction.parts.rows_in_memory();
        let x = x.ok_or_else(|| unsupported("rows that are not in memory as the weight's type"))?;
        Stretches::new(&contraction, x, shape, spec).run(&kernel, spec)?;
    }
    let workspace = COUNTERS + shape.groups * 2 * MAP;
    Ok((code, KernelInfo { workspace, ..KernelInfo::simt(Tasks::Fixed(shape.groups), THREADS) }))
}

/// Stretches of both operands on their way through local memory.
struct Stretches<'t, 'k, 'a, 'c> {
    contraction: &'t Contraction<'k, 'a, 'c>,
    x: &'t Operand<'c>,
    shape: Shape,
    /// Tokens that the rows have room for.
    room: usize,
    stages: Pipeline<'c>,
    maps: Ptr<'c>,
    exchange: Ptr<'c>,
    /// This work-group's place for maps.
    placed: Ptr<'c>,
}

/// A tile: its first token, and its first feature.
#[derive(Clone, Copy)]
struct Tile<'c> {
    token: Int<'c>,
    feature: Int<'c>,
}

impl<'t, 'k, 'a, 'c> Stretches<'t, 'k, 'a, 'c> {
    fn new(
        contraction: &'t Contraction<'k, 'a, 'c>,
        x: &'t Operand<'c>,
        shape: Shape,
        spec: &KernelSpec,
    ) -> Stretches<'t, 'k, 'a, 'c> {
        let c = contraction.matrix.c;
        let [_, bytes] = shape.stage();
        let local = c.local_address(c.shared(shape.stages * bytes, 1024));
        let exchange = c.shared(CONSUMERS / 32 * EXCHANGE, LINE);
        let maps = c.shared(2 * MAP, MAP);
        let barriers = c.local_address(c.shared(2 * shape.stages * 8, 8));
        let stages = Pipeline { places: shape.stages, bytes, local, barriers };
        let workspace = c.argument(arguments(spec.body) + 1);
        let placed = c.at(workspace, c.group() * (2 * MAP) + COUNTERS);
        let room = spec.tokens.next_multiple_of(c.arch.memory.rows);
        Stretches { contraction, x, shape, room, stages, maps, exchange, placed }
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    fn run(&self, kernel: &Kernel<'a, 'c>, spec: &KernelSpec) -> Result<(), Diagnostic> {
        let c = self.code();
        let wave = c.wave_index();
        c.when(c.equal(c.thread(), 0), || {
            self.stages.make_barriers(c, [1, CONSUMERS / 128]);
            c.show_barriers();
        });
        let copies = c.equal(wave, CONSUMERS / 32);
        c.when(copies, || self.make_maps());
        c.await_previous();
        c.barrier();
        let times = (step_size(c, spec, kernel.by_rows) + (TOKENS - 1)) / TOKENS;
        let produce = || {
            c.when(copies, || {
                self.place_maps();
                c.when(c.equal(c.lane_index(), 0), || self.each_tile(times, |tile, turn| self.produce(tile, turn)));
            });
        };
        let mut result = Ok(());
        let consume = || self.each_tile(times, |tile, turn| result = self.consume(tile, turn));
        split_roles(c, CONSUMERS, REGISTERS, produce, consume);
        result
    }

    /// `body` for each tile of this work-group, with the turn of its first stretch. Tiles of the
    /// same features are made at the same time, so that weights are read once.
    fn each_tile(&self, times: Int<'c>, body: impl FnOnce(Tile<'c>, Int<'c>)) {
        let c = self.code();
        let tiles = times * self.shape.across;
        c.for_each((c.group(), tiles, self.shape.groups), &[c.int(0).into()], |number, turn| {
            let turn = c.as_int(turn[0]);
            let column = number / times;
            let token = (number - column * times) * TOKENS;
            body(Tile { token, feature: column * self.shape.features }, turn);
            vec![(turn + self.shape.count).into()]
        });
    }

    fn make_maps(&self) {
        let (c, w, x, shape) = (self.code(), &self.contraction.parts.w, self.x, self.shape);
        c.clear_maps(self.maps, 2);
        let (size, panel) = (w.ty.dtype.size(), c.arch.memory.panel);
        let all = c.arch.memory.padded(w.ty.shape.0[0].fixed().unwrap_or(0));
        let weight = [
            (BLOCK / size, 0, BLOCK / size),
            (w.stride * size / 16, panel * 16, 8),
            (panel / 8, BLOCK, panel / 8),
            (all / panel, panel * w.stride * size, shape.features / panel),
        ];
        let rows = [(w.stride, 0, STRETCH), (self.room, x.stride * size, TOKENS)];
        c.when(c.equal(c.lane_index(), 0), || {
            let map = |dims, swizzled| TensorMap { dtype: w.ty.dtype, dims, outer: None, swizzled };
            c.make_map(self.map(0), w.ptr, &map(&weight, false));
            c.make_map(self.map(1), x.ptr, &map(&rows, true));
        });
        c.meet_in_wave();
    }

    fn map(&self, i: usize) -> Int<'c> {
        self.code().local_address(self.code().at(self.maps, i * MAP))
    }

    fn place_maps(&self) {
        let c = self.code();
        (0..2).for_each(|i| c.place_map(c.at(self.placed, i * MAP), self.map(i)));
    }

    /// Asks for all stretches of a tile, from a turn on.
    fn produce(&self, tile: Tile<'c>, first: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let [weight, all] = shape.stage();
        c.repeat(0, shape.count, 1, |i| {
            let turn = first + i;
            let (full, to) = (self.stages.full(turn), self.stages.at(turn));
            self.stages.wait_empty(c, turn);
            c.expect_bytes(c.always(), full, all);
            for (piece, start) in self.contraction.parts.starts().enumerate() {
                let panel = (tile.feature + start) / c.arch.memory.panel;
                let to = to + piece * shape.features / 8 * EIGHT;
                c.copy_box(to, self.placed, &[c.int(0), i * 8, c.int(0), panel], full);
            }
            let rows = c.at(self.placed, MAP);
            c.copy_box(to + weight, rows, &[i * STRETCH, tile.token], full);
        });
    }

    /// Makes a tile of what comes from a turn on.
    fn consume(&self, tile: Tile<'c>, first: Int<'c>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let [weight, _] = shape.stage();
        let group = c.wave_index() / 4;
        let is_leader = c.equal(c.thread() % 128, 0);
        let rows = group * (GROUP_TOKENS * 128) + weight;
        let zero: Vec<Any> = vec![c.cx.f32_type().const_zero().into(); shape.rows / 2];
        let sums = c.for_each((0, shape.count, 1), &zero, |i, sums| {
            let turn = first + i;
            self.stages.wait_full(c, turn);
            let at = self.stages.at(turn);
            let blocks = TileForm::Blocks { along: BLOCK, down: EIGHT };
            let operands = ((at + rows, TileForm::Swizzled), (at, blocks));
            let sums = c.begin_products(sums, self.contraction.matrix.dtype, operands, PRODUCTS);
            let is_over = is_leader & c.less(0, i);
            self.stages.release(c, is_over, first + (i - 1));
            sums
        });
        let finish = Epilogue::new(self, tile);
        let beside = finish.load_beside(0)?;
        let sums = c.end_products(&sums, 0);
        self.stages.release(c, is_leader, first + (shape.count - 1));
        finish.rounds(&sums, beside)
    }
}

/// The end of a tile: for one wave 16 tokens, 64 features at a time.
struct Epilogue<'f, 't, 'k, 'a, 'c> {
    stretches: &'f Stretches<'t, 'k, 'a, 'c>,
    /// The lane's first token, and its first feature.
    token: Int<'c>,
    feature: Int<'c>,
    /// Where it puts its sums of the first 8 features, and finds those of its first token.
    put: Int<'c>,
    get: Int<'c>,
    /// Whether it finds the later half first, so that all lanes load from different banks.
    late: Int<'c>,
}

impl<'f, 't, 'k, 'a, 'c> Epilogue<'f, 't, 'k, 'a, 'c> {
    fn new(stretches: &'f Stretches<'t, 'k, 'a, 'c>, tile: Tile<'c>) -> Epilogue<'f, 't, 'k, 'a, 'c> {
        let c = stretches.code();
        let (lane, wave) = (c.lane_index(), c.wave_index());
        let times = |a: Int<'c>, n: usize| a * n;
        let all = |parts: &[Int<'c>]| parts.iter().copied().reduce(|a, b| a + b).expect("some");
        // A line has a token's features, those of 8 after the other, mixed up by two bits of its
        // number.
        let (row, pair) = (lane / 4, lane % 4);
        let put = all(&[times(row, LINE), times(row % 4, 32), times(pair, 8)]);
        let (line, eight) = (lane / 8, lane % 8);
        let late = eight / 4;
        let place = times(eight, 32) ^ times(line, 32);
        Epilogue {
            stretches,
            token: all(&[tile.token, times(wave, 16), line]),
            feature: all(&[tile.feature, times(eight, LANES)]),
            put,
            get: all(&[times(line, LINE), place, times(late, 16)]),
            late: c.equal(late, 1),
        }
    }

    fn at(&self, round: usize, part: usize) -> At<'c> {
        let col = Col::Var(self.feature + round * ROUND);
        At { row: self.token + 4 * part, head: None, col }
    }

    fn exchange(&self, offset: Int<'c>) -> Ptr<'c> {
        let c = self.stretches.code();
        c.at(self.stretches.exchange, c.wave_index() * EXCHANGE + offset)
    }

    /// Asks for what the epilogue reads beside the sums, for each of a round's tokens.
    fn load_beside(&self, round: usize) -> Result<Vec<Vec<Vector<'c>>>, Diagnostic> {
        let c = self.stretches.code();
        c.set_lanes(LANES);
        (0..4).map(|part| self.stretches.contraction.parts.beside(self.inside(self.at(round, part)))).collect()
    }

    /// The same place, if it is one of the result's, or another.
    fn inside(&self, at: At<'c>) -> At<'c> {
        let (c, padded) = (self.stretches.code(), self.padded());
        match at.col {
            Col::Var(col) if !padded.is_multiple_of(self.stretches.shape.features) => {
                At { col: Col::Var(c.smaller(col, padded - LANES)), ..at }
            }
            _ => at,
        }
    }

    fn padded(&self) -> usize {
        let parts = &self.stretches.contraction.parts;
        parts.kernel.rows.padded(parts.to)
    }

    fn rounds(&self, sums: &[Any<'c>], mut beside: Vec<Vec<Vector<'c>>>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.stretches.code(), self.stretches.shape);
        let rounds = shape.features / ROUND;
        for round in 0..rounds {
            let of = |piece: usize| &sums[(piece * rounds + round) * ROUND / 2..][..ROUND / 2];
            let pieces: Vec<[Vector<'c>; 4]> = (0..shape.pieces).map(|piece| self.change_lanes(of(piece))).collect();
            c.set_lanes(LANES);
            for (part, beside) in beside.iter().enumerate() {
                let sums: Vec<Vector<'c>> = pieces.iter().map(|piece| piece[part]).collect();
                self.finish(self.at(round, part), &sums, beside)?;
            }
            if round + 1 < rounds {
                beside = self.load_beside(round + 1)?;
            }
        }
        Ok(())
    }

    fn finish(&self, at: At<'c>, sums: &[Vector<'c>], beside: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (c, padded) = (self.stretches.code(), self.padded());
        let contraction = self.stretches.contraction;
        if padded.is_multiple_of(self.stretches.shape.features) {
            return contraction.finish_at(at, sums, beside);
        }
        let mut result = Ok(());
        let col = contraction.parts.kernel.rows.column(at.col);
        c.when(c.less(col, padded), || result = contraction.finish_at(at, sums, beside));
        result
    }

    /// A lane's sums of a round, two features of each 8 for two tokens, as 8 features for each of
    /// four tokens.
    fn change_lanes(&self, sums: &[Any<'c>]) -> [Vector<'c>; 4] {
        let c = self.stretches.code();
        let f32 = c.cx.f32_type();
        c.meet_in_wave();
        for (eight, four) in sums.chunks(4).enumerate() {
            let to = self.put ^ (32 * eight);
            for (half, two) in four.chunks(2).enumerate() {
                c.store(self.exchange(to + half * 8 * LINE), c.floats(two), 8);
            }
        }
        c.meet_in_wave();
        [0, 1, 2, 3].map(|part| {
            let first = self.exchange(self.get + 4 * part * LINE);
            let second = self.get ^ 16;
            let second = self.exchange(second + 4 * part * LINE);
            let [a, b] = [first, second].map(|p| c.load_vector(f32, 4, p, 16));
            let pick = |yes: Vector<'c>, no: Vector<'c>| c.pick(self.late, yes, no).into_vector_value();
            c.join(&[pick(b, a), pick(a, b)])
        })
    }
}
