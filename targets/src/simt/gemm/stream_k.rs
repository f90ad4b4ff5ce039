//! Family `matvec` for many tokens, where four waves multiply together: the weight streams through a ring of slots in local memory,
//! and its first slots are on their way before the kernel before this one has ended.
//!
//! A slot has 64 columns of 8 panels, as many of each piece of the result. All slots of the weight, tile by tile of such panels,
//! are shared out evenly: a work-group has a run of them, so it ends, begins, or is in the midst of a tile. Where a tile is several
//! work-groups', each leaves its sums in the workspace, and the last of them to finish adds all of them up, in their order.
//!
//! Four waves ask for slots. Four bring the rows' columns of each slot, as products take them. A norm commutes with the
//! contraction, so rows are brought as they are times the norm's weights, and sums are scaled by what the squares of a row come to.
//! Four waves multiply: the panels' upper rows are 64 rows of one product, and the lower ones of another.
use atomc_ir::{Arch, DType, Diagnostic, Family, Op, Value};
use inkwell::values::FloatValue;

use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col};
use crate::schedule::{Schedule, WhyNot};
use crate::simt::gemm::contract::{Contraction, Sizes};
use crate::simt::gemm::gemv_bulk;
use crate::simt::launch;
use crate::simt::launch::{COUNTERS, Setup, arguments, kernel};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Matrix;
use crate::simt::machine::pipeline::Ring;
use crate::simt::machine::wide::TileForm;
use crate::simt::rowwise;
use crate::{KernelInfo, KernelSpec, Tasks};

/// Most tokens.
const TOKENS: usize = 64;
/// Tokens that the waves that bring rows bring at a time.
const BROUGHT: usize = 16;
/// Columns of a slot, and products along them.
const COLUMNS: usize = 64;
const PRODUCTS: usize = COLUMNS / 16;
/// Panels in a tile, and bytes of a panel in a slot: 8 blocks of 16 rows by 16 bytes, of which half is 8 rows.
const PANELS: usize = 8;
const HALF: usize = 128;
const CHUNK: usize = COLUMNS / 8 * 2 * HALF;
/// Threads that multiply, that bring rows, that ask for the weight, and all. A lane's copies go out one after the other, so four
/// waves ask for some panels each.
const WORKERS: usize = 128;
const BRINGERS: usize = 128;
const ASKERS: usize = 128;
const THREADS: usize = WORKERS + BRINGERS + ASKERS;
/// Registers of a thread that asks, of one that brings rows, and of one that multiplies.
const REGISTERS: [usize; 3] = [56, 208, 240];
/// Tokens whose sums change threads at a time, consecutive features of a thread then, and bytes from one token's 16 sums to the next.
const ROUND: usize = 32;
const LANES: usize = 8;
const PITCH: usize = 80;
/// Most words of rows that a thread loads at once, most slots whose rows these are, and most slots whose rows are there.
const WORDS: usize = 80;
const TOGETHER: usize = 8;
const STAGES: usize = 8;
/// Most bytes of local memory for rows, most slots of the weight, and bytes for barriers and what is small.
const ROWS: usize = 32 << 10;
const SLOTS: usize = 16;
const SMALL: usize = 4 << 10;
/// Most words of others' sums that a thread loads at once.
const LOADED: usize = 96;

/// How the work is shared out.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Tokens of the step, and as many as products have.
    tokens: usize,
    columns: usize,
    /// Pieces of the result, its panels, tiles of them, and slots along the weight.
    pieces: usize,
    panels: usize,
    tiles: usize,
    length: usize,
    groups: usize,
    /// Slots of the ring, and stages of rows.
    slots: usize,
    stages: usize,
}

impl Shape {
    fn new(spec: &KernelSpec, arch: &Arch) -> Result<Shape, Diagnostic> {
        let Sizes { rows, depth, pieces, .. } = Sizes::of(spec.body)?;
        let simt = arch.simt();
        let (tokens, columns) = (spec.tokens, spec.tokens.next_multiple_of(BROUGHT));
        let panels = arch.memory.padded(rows / pieces) / arch.memory.panel;
        let (tiles, length) = (panels.div_ceil(PANELS / pieces), depth / COLUMNS);
        let stages = (ROWS / (columns * COLUMNS * 2)).min(STAGES);
        let mut shape = Shape { tokens, columns, pieces, panels, tiles, length, groups: 0, slots: 0, stages };
        let room = simt.unit.lds_group.saturating_sub(shape.sums_bytes() + shape.rows_bytes() + SMALL);
        shape.slots = (room / shape.slot_bytes()).min(SLOTS);
        let measured = launch::measured(arch)?.stream_k;
        let most = (tiles * measured.groups).min((tiles * length).div_ceil(measured.least));
        shape.groups = simt.chip.units.min(most);
        Ok(shape)
    }

    fn units(&self) -> usize {
        self.tiles * self.length
    }

    /// Panels of the result in a tile.
    fn each(&self) -> usize {
        PANELS / self.pieces
    }

    fn slot_bytes(&self) -> usize {
        PANELS * CHUNK
    }

    fn stage_bytes(&self) -> usize {
        self.columns * COLUMNS * 2
    }

    fn rows_bytes(&self) -> usize {
        self.stages * self.stage_bytes()
    }

    fn sums_bytes(&self) -> usize {
        PANELS * self.columns.min(ROUND) * PITCH
    }

    fn rounds(&self) -> usize {
        self.columns.div_ceil(ROUND)
    }

    /// Sums of a thread.
    fn sums(&self) -> usize {
        self.columns
    }

    /// Bytes of a work-group's sums of a tile, and of a row's squares behind them.
    fn partial_bytes(&self) -> usize {
        (self.sums() * WORKERS + self.columns) * 4
    }

    /// Most work-groups that have slots of one tile, two at least.
    fn sharing(&self) -> usize {
        let owners = |tile: usize| self.owner((tile + 1) * self.length - 1) - self.owner(tile * self.length) + 1;
        (0..self.tiles).map(owners).max().unwrap_or(1).max(2)
    }

    /// The work-group that has a slot.
    fn owner(&self, unit: usize) -> usize {
        ((unit + 1) * self.groups - 1) / self.units()
    }
}

/// Whether the machine has what it takes for this contraction.
fn suits(spec: &KernelSpec, arch: &Arch) -> Result<(), WhyNot> {
    let (sizes, simt) = (Sizes::of(spec.body)?, arch.simt());
    let Sizes { dtype, depth, pieces, .. } = sizes;
    WhyNot::unless(simt.wide_products, || format!("{} has no warpgroup MMA", arch.name))?;
    WhyNot::unless(simt.bulk_copies, || format!("{} has no bulk copies", arch.name))?;
    WhyNot::unless(Matrix::native(simt, dtype) && dtype.size() == 2, || {
        format!("weights of {}: warpgroup MMA takes 16-bit floats", dtype.name())
    })?;
    let least = launch::measured(arch)?.stream_k.tokens;
    WhyNot::unless((least..=TOKENS).contains(&spec.tokens), || {
        format!("{} tokens: from {least} to {TOKENS}", spec.tokens)
    })?;
    WhyNot::unless(depth.is_multiple_of(COLUMNS), || format!("{depth} columns are no multiple of {COLUMNS}"))?;
    WhyNot::unless(PANELS.is_multiple_of(pieces), || format!("{pieces} pieces do not share {PANELS} panels out"))?;
    WhyNot::unless(rowwise::vector(spec.body) == LANES, || format!("rows are not whole vectors of {LANES} elements"))?;
    let linear = spec.body.ids().find(|&id| matches!(spec.body.op(id), Op::Linear { .. }));
    let x = linear.map(|id| spec.body.operands(id)[0]);
    WhyNot::unless(x.is_some_and(|x| gemv_bulk::brings(spec.body, x)), || {
        "rows are neither in memory nor a norm of rows in memory".into()
    })?;
    let is_norm = x.is_some_and(|x| matches!(spec.body.op(x.node), Op::RmsNorm { .. }));
    WhyNot::unless(!is_norm || dtype == DType::BF16, || {
        format!("a norm into {}: rows before it may not fit", dtype.name())
    })?;
    pays(spec, arch)
}

/// Whether there is work enough, and room for it.
fn pays(spec: &KernelSpec, arch: &Arch) -> Result<(), WhyNot> {
    let (shape, units, measured) = (Shape::new(spec, arch)?, arch.simt().chip.units, launch::measured(arch)?.stream_k);
    WhyNot::unless(spec.tokens > measured.few || shape.units() >= measured.slots * units, || {
        let (slots, each) = (shape.units(), measured.slots);
        format!("{slots} slots of the weight on {units} units: {} tokens take {each} each", spec.tokens)
    })?;
    WhyNot::unless(shape.slots >= 2 && shape.stages >= 2, || {
        "local memory has no room for two slots and two stages".into()
    })?;
    WhyNot::unless(4 * shape.tiles <= COUNTERS, || {
        format!("{} tiles: the workspace has {} counters", shape.tiles, COUNTERS / 4)
    })
}

pub const SCHEDULE: Schedule = Schedule {
    name: "stream_k",
    family: Family::Matvec,
    suits: |spec, arch, _| suits(spec, arch),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.arch)?;
    let code = setup.open_early(spec, THREADS);
    {
        let c = &code;
        c.want_waves(THREADS / 128);
        let kernel = kernel(c, spec)?;
        let contraction = Contraction::new(&kernel)?;
        Group::new(&contraction, shape, spec)?.run()?;
    }
    let workspace = COUNTERS + shape.groups * 2 * shape.partial_bytes();
    Ok((code, KernelInfo { workspace, ..KernelInfo::simt(Tasks::Fixed(shape.groups), THREADS) }))
}

/// The norm that rows go through.
struct Norm {
    value: Value,
    weights: Value,
    /// The type of the weights.
    dtype: DType,
    eps: f64,
}

/// What one work-group does.
struct Group<'g, 'k, 'a, 'c> {
    contraction: &'g Contraction<'k, 'a, 'c>,
    shape: Shape,
    norm: Option<Norm>,
    /// Rows as they lie in memory, their type and width.
    from: Value,
    dtype: DType,
    width: usize,
    weights: Ring<'c>,
    rows: Ring<'c>,
    /// Squares of rows, for each part of a tile.
    squares: Ring<'c>,
    /// In local memory: sums of a tile, what sums are scaled by, and one word for all.
    sums: Ptr<'c>,
    scales: Ptr<'c>,
    word: Ptr<'c>,
    workspace: Ptr<'c>,
    begin: Int<'c>,
    end: Int<'c>,
}

/// A work-group's part of a tile.
#[derive(Clone, Copy)]
struct Part<'c> {
    tile: Int<'c>,
    /// Its first slot and their end, as the work-group counts them.
    first: Int<'c>,
    end: Int<'c>,
    /// The first work-group that has slots of this tile, and how many have.
    owner: Int<'c>,
    owners: Int<'c>,
}

impl<'g, 'k, 'a, 'c> Group<'g, 'k, 'a, 'c> {
    fn new(
        contraction: &'g Contraction<'k, 'a, 'c>,
        shape: Shape,
        spec: &KernelSpec,
    ) -> Result<Group<'g, 'k, 'a, 'c>, Diagnostic> {
        let (c, parts) = (contraction.matrix.c, &contraction.parts);
        let (graph, x) = (parts.kernel.rows.graph, parts.x);
        let operands = graph.operands(x.node);
        let norm = match graph.op(x.node) {
            Op::RmsNorm { eps } => {
                let dtype = parts.kernel.rows.shape(operands[1])?.dtype;
                Some(Norm { value: x, weights: operands[1], dtype, eps: *eps })
            }
            _ => None,
        };
        let from = if norm.is_some() { operands[0] } else { x };
        let ty = parts.kernel.rows.shape(from)?;
        let bound = |group: Int<'c>| group * shape.units() / shape.groups;
        Ok(Group {
            contraction,
            shape,
            norm,
            from,
            dtype: ty.dtype,
            width: ty.shape.last().unwrap_or(0),
            weights: Ring::new(c, shape.slots, shape.slot_bytes(), 1024),
            rows: Ring::new(c, shape.stages, shape.stage_bytes(), 1024),
            sums: c.shared(shape.sums_bytes(), 16),
            squares: Ring::new(c, 2, shape.columns * 4, 16),
            scales: c.shared(shape.columns * 4, 16),
            word: c.shared(4, 4),
            workspace: c.argument(arguments(spec.body) + 1),
            begin: bound(c.group()),
            end: bound(c.group() + 1),
        })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let c = self.code();
        c.when(c.equal(c.thread(), 0), || {
            self.weights.make_barriers(c, [1, 1]);
            self.rows.make_barriers(c, [BRINGERS / 32, 1]);
            self.squares.make_barriers(c, [BRINGERS, WORKERS]);
            c.show_barriers();
        });
        c.barrier();
        let (wave, workers, all) = (c.wave_index(), WORKERS / 32, (WORKERS + BRINGERS) / 32);
        c.when(c.less(all - 1, wave), || {
            c.set_registers(REGISTERS[0], false);
            self.fetch(wave - all);
            c.await_previous();
        });
        let [mut brought, mut made] = [Ok(()), Ok(())];
        c.when(c.less(workers - 1, wave) & c.less(wave, all), || {
            c.set_registers(REGISTERS[1], true);
            c.await_previous();
            brought = self.bring();
        });
        c.when(c.less(wave, workers), || {
            c.set_registers(REGISTERS[2], true);
            c.await_previous();
            made = self.make();
        });
        brought.and(made)
    }

    fn count(&self) -> Int<'c> {
        self.end - self.begin
    }

    /// The tile of a slot, and which of its slots it is.
    fn place(&self, turn: Int<'c>) -> [Int<'c>; 2] {
        let length = self.shape.length;
        let unit = self.begin + turn;
        [unit / length, unit % length]
    }

    /// Which of the work-group's tiles a tile is.
    fn part(&self, tile: Int<'c>) -> Int<'c> {
        tile - self.begin / self.shape.length
    }

    /// Asks for a wave's share of all slots of the weight: a lane for each of its panels.
    fn fetch(&self, wave: Int<'c>) {
        let (c, shape, ring) = (self.code(), self.shape, &self.weights);
        let (lane, policy, share) = (c.lane_index(), c.once(), PANELS / (ASKERS / 32));
        let asks = c.less(lane, share);
        let panel = wave * share + lane % share;
        let arms = c.equal(lane, 0) & c.equal(wave, 0);
        c.repeat(0, self.count(), 1, |turn| {
            let [tile, along] = self.place(turn);
            let full = ring.full(turn);
            ring.await_empty(c, turn);
            c.expect_bytes(arms, full, shape.slot_bytes());
            c.meet_in_wave();
            let of_result = tile * shape.each() + panel % shape.each();
            let pieces = self.contraction.weights(of_result);
            let from = (1..shape.pieces).fold(pieces[0], |from, i| {
                c.pick(c.less(panel, i * shape.each()), from, pieces[i]).into_pointer_value()
            });
            let from = c.at(from, along * CHUNK);
            let to = ring.at(turn) + panel * CHUNK;
            c.copy_run(asks, (to, from, CHUNK), full, policy);
        });
    }

    /// Brings the rows' columns of all slots. A thread has 16 bytes of each 16th token.
    fn bring(&self) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let thread = c.thread() - WORKERS;
        let (run, first) = (thread % (COLUMNS / LANES), thread / (COLUMNS / LANES));
        let tokens: Vec<Int<'c>> = (0..shape.columns / BROUGHT).map(|i| first + BROUGHT * i).collect();
        let together = (WORDS / (4 * (tokens.len() + self.norm.iter().len()))).clamp(1, TOGETHER);
        let turns = |first: Int<'c>| -> Vec<Int<'c>> { (0..together).map(|i| first + i).collect() };
        let none: Vec<Any> = vec![c.number(0.0).into(); if self.norm.is_some() { tokens.len() } else { 0 }];
        let count = none.len();
        let begin: Vec<Any> = none.into_iter().chain(self.load(&turns(c.int(0)), run, &tokens)?).collect();
        let mut result = Ok(());
        c.for_each((0, self.count(), together), &begin, |turn, carried| {
            let (squares, brought) = carried.split_at(count);
            // What comes next is on its way while this is stored.
            let next = self.load(&turns(turn + together), run, &tokens);
            let mut squares: Vec<FloatValue> = squares.iter().map(|v| v.into_float_value()).collect();
            let each = brought.len() / together;
            let (turns, words): (_, Vec<&[Any]>) = (turns(turn), brought.chunks(each).collect());
            // Half of the stages at a time, so that products go on with the others.
            let batch = self.shape.stages / 2;
            for (turns, words) in turns.chunks(batch).zip(words.chunks(batch)) {
                for (&turn, words) in turns.iter().zip(words) {
                    let stored = self.store((turn, run), &tokens, words, &mut squares);
                    result = std::mem::replace(&mut result, Ok(())).and(stored);
                }
                c.show_to_products();
                c.meet_in_wave();
                for &turn in turns {
                    let comes = c.equal(c.lane_index(), 0) & c.less(turn, self.count());
                    c.come(comes, self.rows.full(turn));
                }
            }
            let next = next.unwrap_or_else(|e| {
                result = Err(e);
                brought.to_vec()
            });
            squares.into_iter().map(Any::from).chain(next).collect()
        });
        result
    }

    /// The thread's vectors of some turns' columns, as bits, each turn's with those of the norm's weights behind them.
    fn load(&self, turns: &[Int<'c>], run: Int<'c>, tokens: &[Int<'c>]) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, rows) = (self.code(), &self.contraction.parts.kernel.rows);
        c.set_lanes(LANES);
        let last = self.count() - 1;
        let mut all = Vec::new();
        for &turn in turns {
            let col = Col::Var(self.column(c.smaller(turn, last), run));
            for &token in tokens {
                let row = c.smaller(token, self.shape.tokens - 1);
                all.push(rows.bits(self.from, At { row, head: None, col })?.into());
            }
            if let Some(norm) = &self.norm {
                all.push(rows.bits(norm.weights, At { row: c.int(0), head: None, col })?.into());
            }
        }
        Ok(all)
    }

    /// The first column of a thread's run in a turn's slot.
    fn column(&self, turn: Int<'c>, run: Int<'c>) -> Int<'c> {
        let [_, along] = self.place(turn);
        along * COLUMNS + run * LANES
    }

    /// Stores what came of a turn's columns as products take it, of which nobody is told yet, and adds up squares. With the last
    /// columns of a part of a tile these are stored, too.
    fn store(
        &self,
        (turn, run): (Int<'c>, Int<'c>),
        tokens: &[Int<'c>],
        words: &[Any<'c>],
        squares: &mut [FloatValue<'c>],
    ) -> Result<(), Diagnostic> {
        let (c, shape, ring) = (self.code(), self.shape, &self.rows);
        let dtype = self.contraction.matrix.dtype;
        let is_there = c.less(turn, self.count());
        let [tile, along] = self.place(turn);
        let mut made = Vec::new();
        for (i, bits) in words[..tokens.len()].iter().enumerate() {
            c.set_lanes(LANES);
            let bits = bits.into_vector_value();
            let v = c.widen(bits, self.dtype);
            let Some(norm) = &self.norm else {
                made.push(if self.dtype == dtype { bits } else { c.narrow(v, dtype) });
                continue;
            };
            let rows = &self.contraction.parts.kernel.rows;
            let w = c.widen(words[tokens.len()].into_vector_value(), norm.dtype);
            let before = c.pick(c.equal(along, 0), c.number(0.0), squares[i]).into_float_value();
            squares[i] = c.b.build_float_add(before, c.sum(c.fmul(v, v)), "").expect("floats");
            rows.set_scale(norm.value, c.number(1.0));
            rows.bind(self.from, v);
            rows.bind(norm.weights, w);
            let col = Col::Var(self.column(turn, run));
            let scaled = rows.eval(norm.value, At { row: tokens[i], head: None, col });
            rows.unbind(self.from);
            rows.unbind(norm.weights);
            made.push(c.narrow(scaled?, dtype));
        }
        c.when(is_there, || {
            ring.await_empty(c, turn);
            for (&token, &bits) in tokens.iter().zip(&made) {
                // Pieces of 16 bytes are swizzled.
                let piece = run ^ (token % 8);
                let at = token * (COLUMNS * 2) + piece * 16;
                c.store(self.local(ring.at(turn) + at), bits, 16);
            }
            if self.norm.is_some() {
                let part = self.part(tile);
                let ends = c.equal(turn + 1 - self.count(), 0);
                let ends = ends | c.equal(along, shape.length - 1);
                c.when(ends, || {
                    let to = self.squares.at(part);
                    self.squares.await_empty(c, part);
                    for (&token, &sum) in tokens.iter().zip(&*squares) {
                        let add = |a, b| c.b.build_float_add(a, b, "").expect("floats");
                        let sum = c.across(sum, &[1, 2, 4], add);
                        c.when(c.equal(run, 0), || c.store(self.local(to + token * 4), sum, 4));
                    }
                    c.come(c.always(), self.squares.full(part));
                });
            }
        });
        Ok(())
    }

    /// Local memory at an address.
    fn local(&self, address: Int<'c>) -> Ptr<'c> {
        let c = self.code();
        c.at(self.sums, address - c.local_address(self.sums))
    }

    /// Makes the work-group's part of each of its tiles.
    fn make(&self) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let units = shape.units();
        let owner = |unit: Int<'c>| ((unit + 1) * shape.groups - 1) / units;
        let mut result = Ok(());
        let last = (self.end - 1) / shape.length;
        c.repeat(self.begin / shape.length, last + 1, 1, |tile| {
            let start = tile * shape.length;
            let stop = start + shape.length;
            let first = owner(start);
            let part = Part {
                tile,
                first: c.larger(start, self.begin) - self.begin,
                end: c.smaller(stop, self.end) - self.begin,
                owner: first,
                owners: owner(stop - 1) - first + 1,
            };
            let sums = self.multiply(part);
            result = self.finish(part, &sums);
        });
        result
    }

    fn speaks(&self) -> Int<'c> {
        let c = self.code();
        c.equal(c.thread(), 0)
    }

    /// The sums of a part of a tile: those of upper rows, then those of lower ones.
    fn multiply(&self, part: Part<'c>) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let each = shape.columns / 2;
        let zero: Vec<Any> = vec![c.cx.f32_type().const_zero().into(); shape.sums()];
        let sums = c.for_each((part.first, part.end, 1), &zero, |turn, sums| {
            self.weights.await_full(c, turn);
            self.rows.await_full(c, turn);
            let slot = self.weights.at(turn);
            let stage = self.rows.at(turn);
            let mut all = Vec::new();
            for (i, sums) in sums.chunks(each).enumerate() {
                let a = slot + i * HALF;
                let blocks = TileForm::Blocks { along: 2 * HALF, down: CHUNK };
                let operands = ((a, blocks), (stage, TileForm::Swizzled));
                all.extend(c.begin_products(sums, self.contraction.matrix.dtype, operands, PRODUCTS));
                if i == 0 {
                    let before = turn - 1;
                    let is_over = self.speaks() & c.less(part.first, turn);
                    self.weights.leave(c, is_over, before);
                    self.rows.leave(c, is_over, before);
                }
            }
            all
        });
        let sums = c.end_products(&sums, 0);
        self.weights.leave(c, self.speaks(), part.end - 1);
        sums
    }

    /// The workers meet.
    fn meet(&self) {
        self.code().meet_some(1, WORKERS);
    }

    /// Puts the sums of a part of a tile into the result, or with those of others.
    fn finish(&self, part: Part<'c>, sums: &[Any<'c>]) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let own = self.own_squares(part);
        let beside: Vec<_> = (0..shape.rounds()).map(|round| self.ask(part.tile, round)).collect::<Result<_, _>>()?;
        let shared = c.less(1, part.owners);
        let number = c.group() - part.owner;
        let counter = c.at(self.workspace, part.tile * 4);
        c.when(c.equal(c.thread(), 0), || c.store(self.word, c.int(0), 4));
        c.when(shared, || {
            self.leave(self.partial(part, number), sums, own);
            self.meet();
            c.when(self.speaks(), || {
                c.release();
                c.store(self.word, c.take_turn(counter), 4);
            });
        });
        self.meet();
        let turn = c.as_int(c.load(c.cx.i32_type(), self.word, 4));
        let is_last = c.equal(part.owners - turn - 1, 0);
        let others = c.pick_int(is_last & shared, 1, 0);
        let all: Vec<Any> = sums.iter().copied().chain(own.map(Any::from)).collect();
        let all = c.for_each((0, others, 1), &all, |_, all| {
            c.acquire();
            c.when(self.speaks(), || c.store(counter, c.cx.i32_type().const_zero(), 4));
            let (sums, own) = all.split_at(shape.sums());
            self.add_others(part, number, sums, own.first().map(|v| v.into_float_value()))
        });
        let (sums, own) = all.split_at(shape.sums());
        let mut result = Ok(());
        c.when(is_last, || {
            if let (Some(own), Some(norm)) = (own.first(), &self.norm) {
                let scale = c.inverse_root(own.into_float_value(), self.width, norm.eps);
                c.when(c.less(c.thread(), shape.columns), || {
                    c.store(c.at(self.scales, c.thread() * 4), scale, 4);
                });
            }
            for (round, beside) in beside.iter().enumerate() {
                if round > 0 {
                    self.meet();
                }
                self.exchange(round, sums);
                self.meet();
                let made = self.results(part.tile, round, beside);
                result = std::mem::replace(&mut result, Ok(())).and(made);
            }
        });
        self.meet();
        result
    }

    /// The thread's row's squares of a part of a tile, if there is a norm. Behind this the last stage of rows is not needed any more.
    fn own_squares(&self, part: Part<'c>) -> Option<FloatValue<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let last = part.end - 1;
        let own = self.norm.is_some().then(|| {
            let number = self.part(part.tile);
            let row = c.smaller(c.thread(), shape.columns - 1);
            let from = self.squares.at(number);
            self.squares.await_full(c, number);
            let own = c.load(c.cx.f32_type(), self.local(from + row * 4), 4);
            self.squares.leave(c, c.always(), number);
            own.into_float_value()
        });
        self.rows.leave(c, self.speaks(), last);
        own
    }

    /// Where a work-group leaves its sums of this tile, which is its first or another.
    fn partial(&self, part: Part<'c>, number: Int<'c>) -> Ptr<'c> {
        let (c, shape) = (self.code(), self.shape);
        let group = part.owner + number;
        let begin = group * shape.units() / shape.groups;
        let is_first = c.equal(begin / shape.length - part.tile, 0);
        let which = c.pick_int(is_first, 0, 1);
        let place = (group * 2 + which) * shape.partial_bytes();
        c.at(self.workspace, place + COUNTERS)
    }

    /// Where the thread's four sums from the `i`-th on lie in what a work-group leaves, and its row's squares.
    fn four_at(&self, partial: Ptr<'c>, i: usize) -> Ptr<'c> {
        let c = self.code();
        c.at(partial, c.thread() * 16 + i * WORKERS * 4)
    }

    fn squares_at(&self, partial: Ptr<'c>) -> Ptr<'c> {
        let (c, shape) = (self.code(), self.shape);
        let row = c.smaller(c.thread(), shape.columns - 1);
        c.at(partial, row * 4 + shape.sums() * WORKERS * 4)
    }

    fn leave(&self, partial: Ptr<'c>, sums: &[Any<'c>], squares: Option<FloatValue<'c>>) {
        let (c, shape) = (self.code(), self.shape);
        for (i, four) in sums.chunks(4).enumerate() {
            c.store(self.four_at(partial, 4 * i), c.floats(four), 16);
        }
        if let Some(squares) = squares {
            c.when(c.less(c.thread(), shape.columns), || c.store(self.squares_at(partial), squares, 4));
        }
    }

    /// All work-groups' sums of a tile, added up in their order, and squares of rows.
    fn add_others(
        &self,
        part: Part<'c>,
        number: Int<'c>,
        sums: &[Any<'c>],
        own: Option<FloatValue<'c>>,
    ) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let f32 = c.cx.f32_type();
        let (most, last) = (shape.sharing(), part.owners - 1);
        let conditions = |f: &dyn Fn(Int<'c>) -> Int<'c>| -> Vec<Int<'c>> { (0..most).map(|i| f(c.int(i))).collect() };
        let real = conditions(&|i| c.less(i, part.owners));
        let mine = conditions(&|i| c.equal(number - i, 0));
        let early = conditions(&|i| c.less(i, number));
        // The others are those before this one, then those behind it.
        let other = |i: usize| c.pick_int(early[i], i, i + 1);
        let partials: Vec<Ptr<'c>> = (0..most - 1).map(|i| self.partial(part, c.smaller(other(i), last))).collect();
        let add = |loaded: &[FloatValue<'c>], own: FloatValue<'c>| {
            let of = |i: usize| {
                let [early_one, late_one] = [i, i.saturating_sub(1)].map(|i| loaded[i.min(most - 2)]);
                let loaded = c.pick(early[i], early_one, late_one).into_float_value();
                c.pick(mine[i], own, loaded).into_float_value()
            };
            (1..most).fold(of(0), |before, i| {
                let sum = c.b.build_float_add(before, of(i), "").expect("floats");
                c.pick(real[i], sum, before).into_float_value()
            })
        };
        let own = own.map(|own| {
            let loaded: Vec<FloatValue> =
                partials.iter().map(|&p| c.load(f32, self.squares_at(p), 4).into_float_value()).collect();
            add(&loaded, own).into()
        });
        let mut all: Vec<Any> = Vec::new();
        let together = (LOADED / (4 * partials.len())).max(1);
        for (group, some) in sums.chunks(4 * together).enumerate() {
            let load = |four: usize| -> Vec<Vector<'c>> {
                let at = 4 * (group * together + four);
                partials.iter().map(|&p| c.load_vector(f32, 4, self.four_at(p, at), 16)).collect()
            };
            let loaded: Vec<_> = (0..some.len() / 4).map(load).collect();
            for (i, own) in some.iter().enumerate() {
                let lane = |v: &Vector<'c>| c.lane(*v, i % 4).into_float_value();
                let loaded: Vec<_> = loaded[i / 4].iter().map(lane).collect();
                all.push(add(&loaded, own.into_float_value()).into());
            }
        }
        all.into_iter().chain(own).collect()
    }

    /// The sums of a round of a tile change threads through local memory.
    fn exchange(&self, round: usize, sums: &[Any<'c>]) {
        let (c, shape) = (self.code(), self.shape);
        let (lane, wave) = (c.lane_index(), c.wave_index());
        let (feature, token) = (lane / 4, lane % 4 * 2);
        for (half, sums) in sums.chunks(shape.columns / 2).enumerate() {
            for (j, &v) in sums.iter().skip(round * ROUND / 2).take(ROUND / 2).enumerate() {
                // Two tokens of 8 of the wave's first panel, then of its second.
                let panel = wave * 2 + j / 2 % 2;
                let token = token + (j / 4 * 8 + j % 2);
                let at = self.sums_at(panel, token);
                let feature = feature + 8 * half;
                c.store(c.at(at, feature * 4), v, 4);
            }
        }
    }

    fn sums_at(&self, panel: Int<'c>, token: Int<'c>) -> Ptr<'c> {
        let (c, shape) = (self.code(), self.shape);
        let row = panel * shape.columns.min(ROUND) + token;
        c.at(self.sums, row * PITCH)
    }

    /// The thread's runs of features of a round: token of the round, panel of the tile's result, and first feature of the panel.
    fn runs(&self, round: usize) -> Vec<[Int<'c>; 3]> {
        let c = self.code();
        let each = self.shape.each();
        let count = (self.shape.tokens - round * ROUND).min(ROUND) * each * 16 / LANES;
        let run = |i: usize| {
            let item = c.thread() + i * WORKERS;
            let (half, rest) = (item % 2, item / 2);
            [rest / each, rest % each, half * LANES]
        };
        (0..count.div_ceil(WORKERS)).map(run).collect()
    }

    /// Where a run lies in the result, and whether it does.
    fn run_at(&self, tile: Int<'c>, round: usize, [token, panel, feature]: [Int<'c>; 3]) -> (At<'c>, Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let token = token + round * ROUND;
        let panel = tile * shape.each() + panel;
        let is_there = c.less(token, shape.tokens) & c.less(panel, shape.panels);
        let col = panel * 16 + feature;
        (At { row: token, head: None, col: Col::Var(col) }, is_there)
    }

    /// Asks for what the epilogue reads beside the sums.
    fn ask(&self, tile: Int<'c>, round: usize) -> Result<Vec<Vec<Vector<'c>>>, Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        c.set_lanes(LANES);
        let of = |run: [Int<'c>; 3]| {
            let (at, _) = self.run_at(tile, round, run);
            let Col::Var(col) = at.col else { unreachable!("a run has a variable column") };
            let (row, last) = (c.smaller(at.row, shape.tokens - 1), c.int(16 * shape.panels - LANES));
            self.contraction.parts.beside(At { row, head: None, col: Col::Var(c.smaller(col, last)) })
        };
        self.runs(round).into_iter().map(of).collect()
    }

    /// Stores the results of a round of a tile.
    fn results(&self, tile: Int<'c>, round: usize, beside: &[Vec<Vector<'c>>]) -> Result<(), Diagnostic> {
        let c = self.code();
        let f32 = c.cx.f32_type();
        let mut result = Ok(());
        for (run, beside) in self.runs(round).into_iter().zip(beside) {
            let (at, is_there) = self.run_at(tile, round, run);
            c.when(is_there, || {
                let [token, panel, feature] = run;
                c.set_lanes(LANES);
                let scale = self.norm.is_some().then(|| {
                    let scale = c.load(f32, c.at(self.scales, at.row * 4), 4);
                    c.splat(scale.into_float_value())
                });
                let piece = |i: usize| {
                    let panel = panel + i * self.shape.each();
                    let p = c.at(self.sums_at(panel, token), feature * 4);
                    let sums = c.join(&[0, 16].map(|more| c.load_vector(f32, 4, c.at(p, more), 16)));
                    scale.map_or(sums, |scale| c.fmul(sums, scale))
                };
                let sums: Vec<_> = (0..self.shape.pieces).map(piece).collect();
                let made = self.contraction.finish_at(at, &sums, beside);
                result = std::mem::replace(&mut result, Ok(())).and(made);
            });
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use atomc_ir::{Graph, parse};

    use super::*;

    /// A norm, then a contraction.
    fn body(width: usize, rows: usize, dtype: &str) -> Graph {
        let text = format!(
            "graph @k(%x: bf16[T, {width}], %g: bf16[{width}], %w: bf16[{rows}, {width}]@panels) {{
  %0 = rms_norm %x, %g {{eps = 1e-6}} : bf16[T, {width}]
  %1 = linear %0, %w {{out = bf16}} : bf16[T, {rows}]
  return %1
}}"
        );
        parse(&text.replace("bf16", dtype)).unwrap()
    }

    /// Gate and up of a dense layer, so many rows of each.
    fn gated(width: usize, rows: usize) -> Graph {
        let [gated, _] = crate::simt::gemm::gemv_bulk::tests::bodies(width, rows);
        gated
    }

    fn row(name: &str) -> &'static Arch {
        crate::rows().iter().find(|a| a.name == name).unwrap()
    }

    fn spec(body: &Graph, tokens: usize) -> KernelSpec<'_> {
        KernelSpec { symbol: "k".into(), family: Family::Matvec, body, tokens, choice: None }
    }

    #[test]
    fn only_many_tokens_of_rows_without_rest_spread() {
        let suits = |body: &Graph, tokens, arch: &str| suits(&spec(body, tokens), row(arch)).is_ok();
        let plain = body(4096, 6144, "bf16");
        assert!([17, 32, 48, 64].into_iter().all(|tokens| suits(&plain, tokens, "sm_90a")));
        assert!([1, 16, 65].into_iter().all(|tokens| !suits(&plain, tokens, "sm_90a")));
        assert!(["sm_80", "sm_100a", "gfx942"].into_iter().all(|arch| !suits(&plain, 64, arch)));
        assert!(suits(&gated(4096, 12288), 64, "sm_90a"));
        // Few slots for each unit.
        let small = gated(1024, 3072);
        assert!(suits(&small, 33, "sm_90a") && !suits(&small, 32, "sm_90a"));
        // Columns that are no multiple of a slot's, and norms that do not commute in so few exponents.
        assert!(!suits(&body(4128, 6144, "bf16"), 64, "sm_90a") && !suits(&body(4096, 6144, "f16"), 64, "sm_90a"));
    }

    /// Every panel of every piece is in a tile, every slot is one work-group's, and no more work-groups have slots of a tile than
    /// sums are added of.
    #[test]
    fn shares_cover_the_weight() {
        let gated = [(64, 96), (1024, 3072), (4096, 12288)].map(|(width, rows)| (gated(width, rows), 2 * rows));
        let sizes = [(64, 96), (768, 2304), (4096, 4096), (4096, 6144), (12288, 4096), (4096, 151936)];
        let plain = sizes.map(|(width, rows)| (body(width, rows, "bf16"), rows));
        for (body, rows) in gated.iter().chain(&plain) {
            for tokens in [17, 33, 64] {
                let s = Shape::new(&spec(body, tokens), row("sm_90a")).unwrap();
                assert!(s.tiles * s.each() * s.pieces * 16 >= *rows, "{s:?}");
                let bound = |group: usize| group * s.units() / s.groups;
                assert_eq!((bound(0), bound(s.groups)), (0, s.units()));
                for unit in 0..s.units() {
                    let owner = s.owner(unit);
                    assert!((bound(owner)..bound(owner + 1)).contains(&unit), "{s:?}: {unit}");
                }
                for tile in 0..s.tiles {
                    let (begin, end) = (tile * s.length, (tile + 1) * s.length);
                    let has = |&group: &usize| bound(group) < end && begin < bound(group + 1);
                    let owners = (0..s.groups).filter(has).count();
                    assert!(owners <= s.sharing(), "{s:?}: {owners}");
                }
            }
        }
    }

    #[test]
    fn local_memory_holds_what_it_must() {
        let arch = row("sm_90a");
        for tokens in [17, 33, 48, 64] {
            for body in [body(64, 96, "bf16"), body(768, 2304, "bf16"), body(4096, 6144, "bf16"), gated(4096, 12288)] {
                let cx = crate::llvm::context();
                let b = cx.create_builder();
                let (_, info) =
                    crate::schedule::emit(crate::llvm::Llvm { cx: &cx, b: &b }, &spec(&body, tokens), arch).unwrap();
                assert!(info.shared <= arch.simt().unit.lds_group, "{tokens} tokens: {}", info.shared);
            }
        }
    }
}
