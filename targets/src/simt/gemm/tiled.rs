//! Family `matmul`: a contraction over many tokens, in tiles that waves share through local memory.
//!
//! A work-group makes a tile of 128 tokens by 128 rows of the weight. Both operands go through
//! local memory in stretches of columns, laid out as fragments, two stretches in turn: while one is
//! multiplied, the next is on its way from global memory into the other half, or into registers,
//! from which it goes there behind the products. One barrier a stretch.
use atomc_ir::{Arch, Diagnostic, Family};
use inkwell::values::BasicValue;

use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{Operand, unsupported};
use crate::schedule::Schedule;
use crate::simt::gemm::contract::{Contraction, Sizes};
use crate::simt::gemm::global_to_lds::{Loader, mark};
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::accumulator::Squares;
use crate::simt::machine::fragment::{Fragment, Matrix, RUN};
use crate::{KernelInfo, KernelSpec};

/// Panels of 16 rows of the weight, and blocks of 16 tokens, in a tile.
const PANELS: usize = 8;
const BLOCKS: usize = 8;

/// How a tile is cut.
#[derive(Clone, Copy, Debug)]
struct Shape {
    threads: usize,
    /// Panels and blocks that one wave multiplies.
    panels: usize,
    blocks: usize,
    /// Columns in a stretch.
    stretch: usize,
    /// Runs of 16 rows in a stretch.
    runs: usize,
    /// Stretches along the weight.
    count: usize,
    /// Panels of the result that one wave makes.
    made: usize,
    pieces: usize,
}

impl Shape {
    fn new(spec: &KernelSpec, arch: &Arch) -> Result<Shape, Diagnostic> {
        let Sizes { dtype, depth, pieces, .. } = Sizes::of(spec.body)?;
        let (simt, depth) = (arch.simt(), arch.memory.padded(depth));
        // Half as many lanes hold twice as many results each; that is no matter where four waves
        // stand on a SIMD that take twice the registers of 64 by 64 results. Where operands are
        // converted on the way, the registers for that are missing elsewhere.
        let leaves_room = simt.unit.vgprs >= 4 * 2 * (64 * 64 / simt.wave);
        let (panels, blocks) = match Matrix::native(simt, dtype) {
            true => (if leaves_room { 4 } else { simt.wave / 16 }, 4),
            false => (simt.wave / 16, 2),
        };
        if !panels.is_multiple_of(pieces) {
            return Err(unsupported(format!("a tiled contraction with {pieces} pieces")));
        }
        // Two halves of both operands, twice on a unit, if local memory is large.
        let roomy = simt.unit.lds >= 4 * (PANELS + BLOCKS) * 16 * 64 * dtype.size();
        let stretch = if roomy && depth.is_multiple_of(64) { 64 } else { 32 };
        Ok(Shape {
            threads: PANELS / panels * (BLOCKS / blocks) * simt.wave,
            panels,
            blocks,
            stretch,
            runs: stretch * 16 * dtype.size() / RUN,
            count: depth / stretch,
            made: panels / pieces,
            pieces,
        })
    }

    /// Bytes of local memory for the weight's part of a stretch, and for both.
    fn half(&self) -> [usize; 2] {
        let panel = self.runs * RUN;
        [PANELS * panel, (PANELS + BLOCKS) * panel]
    }

    /// Loads with which a wave brings its part of a stretch.
    fn loads(&self) -> usize {
        (PANELS + BLOCKS) * self.runs / self.threads
    }

    /// Panels of the result in a tile.
    fn tile_panels(&self) -> usize {
        PANELS / self.pieces
    }
}

/// Tokens of a tile.
const TOKENS: usize = BLOCKS * 16;

pub const SCHEDULE: Schedule = Schedule {
    name: "gemm_tiled",
    family: Family::Matmul,
    suits: |spec, arch, _| Ok(Shape::new(spec, arch).map(drop)?),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.arch)?;
    let code = setup.open(spec, shape.threads);
    let tasks = {
        let c = &code;
        let fits_twice = 2 * 2 * shape.half()[1] <= setup.arch.simt().unit.lds;
        c.want_waves(if fits_twice { 2 } else { 1 });
        let kernel = launch::kernel(c, spec)?;
        let contraction = Contraction::new(&kernel)?;
        let x = contraction.parts.rows_in_memory();
        let x = x.ok_or_else(|| unsupported("rows that are not in memory as the weight's type"))?;
        let times = contraction.panels().div_ceil(shape.tile_panels());
        let (tile, first) = (c.group() % times, c.group() / times * TOKENS);
        launch::when_in_step(c, spec, &kernel, first, || {
            let panel = tile * shape.tile_panels();
            let tile = Tile::new(&contraction, shape, (panel, first));
            tile.run(&tile.loader(x))
        })?;
        kernel.row_tasks(TOKENS, times)
    };
    Ok((code, KernelInfo::simt(tasks, shape.threads)))
}

struct Tile<'t, 'k, 'a, 'c> {
    contraction: &'t Contraction<'k, 'a, 'c>,
    squares: Squares<'a, 'c>,
    shape: Shape,
    /// First panel of the result, first token.
    panel: Int<'c>,
    token: Int<'c>,
    /// The wave's place along features and tokens.
    wave: [Int<'c>; 2],
    local: Ptr<'c>,
    /// Where the wave's part begins of the first half.
    to: Ptr<'c>,
}

/// An operand of a wave in a half of local memory: where the lane's part begins, how many fragments
/// a step has, and of how many rows or columns.
struct Half<'c> {
    half: usize,
    first: Ptr<'c>,
    count: usize,
    width: usize,
    is_rows: bool,
}

impl<'t, 'k, 'a, 'c> Tile<'t, 'k, 'a, 'c> {
    fn new(
        contraction: &'t Contraction<'k, 'a, 'c>,
        shape: Shape,
        (panel, token): (Int<'c>, Int<'c>),
    ) -> Tile<'t, 'k, 'a, 'c> {
        let c = contraction.matrix.c;
        let wave = c.wave_index();
        let along = BLOCKS / shape.blocks;
        let wave = [wave / along, wave % along];
        let (squares, local) = (Squares::new(contraction.matrix), c.local(2 * shape.half()[1]));
        let lanes = c.simt.wave;
        let first = c.wave_index() * (shape.loads() * lanes * RUN);
        let to = c.at(local, first);
        Tile { contraction, squares, shape, panel, token, wave, local, to }
    }

    /// What the wave brings: the first waves the weight's panels, the others rows, 16 by 16. Each
    /// load is the next of local memory.
    fn loader(&self, x: &Operand<'c>) -> Loader<'a, 'c> {
        let (c, shape, m) = (self.contraction.matrix.c, self.shape, &self.contraction.matrix);
        let lanes = c.simt.wave;
        let (size, waves) = (m.dtype.size(), shape.threads / lanes);
        let wave = c.wave_index();
        let weights = c.less(wave, waves / 2);
        let start = |load: usize| {
            let load = wave % (waves / 2) * shape.loads() + load;
            let (group, inside) = (load / (shape.runs / lanes), load % (shape.runs / lanes));
            let weight = c.at(self.weight(group), inside * (lanes * RUN));
            let token = c.to_i64(self.token + group * 16);
            let row = token * (x.stride * size);
            let row = c.at(c.at(x.ptr, row), inside * (lanes / 16 * RUN));
            c.pick(weights, weight, row).into_pointer_value()
        };
        let starts: Vec<Ptr<'c>> = (0..shape.loads()).map(start).collect();
        let lane = c.lane_index();
        let in_row = lane % 16 * (x.stride * size) + lane / 16 * RUN;
        let lane = c.pick_int(weights, lane * RUN, in_row);
        let step = c.pick_int(weights, shape.runs * RUN, shape.stretch * size);
        Loader::new(c, &starts, lane, step)
    }

    /// Where the weight's panel begins that stands in a place of the tile: for each wave piece by
    /// piece.
    fn weight(&self, place: Int<'c>) -> Ptr<'c> {
        let (c, shape) = (self.contraction.matrix.c, self.shape);
        let (wave, inside) = (place / shape.panels, place % shape.panels);
        let panel = wave * shape.made + inside % shape.made;
        let panel = self.contraction.made(panel + self.panel);
        let piece = inside / shape.made;
        let mut first = c.int(0);
        for (i, start) in self.contraction.parts.starts().enumerate() {
            first = c.pick_int(c.equal(piece, i), start / 16, first);
        }
        self.contraction.weight_panel(panel, first)
    }

    fn run(&self, loader: &Loader<'a, 'c>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.contraction.matrix.c, self.shape);
        let mut sums = vec![self.squares.zero(); shape.panels / self.squares.side() * self.blocks()];
        if loader.is_direct() {
            loader.load_async(c.int(0), self.to(0), 0);
            loader.wait();
        } else {
            self.put(0, &loader.load(c.int(0)));
        }
        c.barrier();
        // Two stretches at a time, so that each half of local memory has its addresses.
        let pairs = (shape.count - 1) / 2;
        if pairs > 0 {
            let carried: Vec<Any> = sums.iter().map(|&v| v.into()).collect();
            let carried = c.for_each((1, 1 + 2 * pairs, 2), &carried, |stretch, carried| {
                let mut sums: Vec<Vector<'c>> = carried.iter().map(|v| v.into_vector_value()).collect();
                self.turn(loader, stretch, 1, &mut sums);
                self.turn(loader, stretch + 1, 0, &mut sums);
                sums.into_iter().map(|v| v.into()).collect()
            });
            sums = carried.iter().map(|v| v.into_vector_value()).collect();
        }
        if shape.count > 1 + 2 * pairs {
            self.turn(loader, c.int(shape.count - 1), 1, &mut sums);
        }
        self.multiply((shape.count - 1) % 2, &mut sums);
        self.finish(&sums)
    }

    /// Brings a stretch into one half while the other is multiplied.
    fn turn(&self, loader: &Loader<'a, 'c>, stretch: Int<'c>, half: usize, sums: &mut [Vector<'c>]) {
        let c = self.contraction.matrix.c;
        if loader.is_direct() {
            loader.load_async(stretch, self.to(half), half);
            c.keep_order();
            self.multiply(1 - half, sums);
            loader.wait();
        } else {
            let next = loader.load(stretch);
            c.keep_order();
            self.multiply(1 - half, sums);
            self.put(half, &next);
        }
        c.barrier();
    }

    /// Blocks of columns that the wave multiplies.
    fn blocks(&self) -> usize {
        self.shape.blocks * 16 / self.squares.width()
    }

    /// Where the wave's part of a half begins.
    fn to(&self, half: usize) -> Ptr<'c> {
        self.contraction.matrix.c.at(self.to, self.contraction.matrix.c.int(half * self.shape.half()[1]))
    }

    /// The last run first: when it is there, all are, and there is nothing to wait for any more.
    fn put(&self, half: usize, runs: &[Vector<'c>]) {
        let c = self.contraction.matrix.c;
        let base = c.at(self.to(half), c.lane_index() * RUN);
        for (i, &run) in runs.iter().enumerate().rev() {
            c.store(c.at(base, i * c.simt.wave * RUN), run, RUN as u32);
        }
    }

    fn multiply(&self, half: usize, sums: &mut [Vector<'c>]) {
        let (c, steps) = (self.contraction.matrix.c, self.shape.stretch / self.squares.span());
        let [rows, columns] = self.operands(half);
        let all = |operand: &Half<'c>, step: usize| -> Vec<Fragment<'c>> {
            (0..operand.count).map(|i| self.fragment(operand, i, step)).collect()
        };
        if self.squares.side() > 1 {
            // Fragments are half as many: the next step's come while one is multiplied.
            let mut next = (all(&rows, 0), all(&columns, 0));
            for step in 1..=steps {
                let (a, b) = next;
                next = if step < steps { (all(&rows, step), all(&columns, step)) } else { (vec![], vec![]) };
                c.keep_order();
                self.add(&a, &b, 0, sums);
                c.keep_order();
            }
            return;
        }
        for step in 0..steps {
            let a = all(&rows, step);
            // Where every lane holds whole rows, the fragments of all blocks would fill its
            // registers.
            let together = if self.contraction.matrix.layout.replicated { 1 } else { columns.count };
            for first in (0..columns.count).step_by(together) {
                let b: Vec<_> = (first..first + together).map(|i| self.fragment(&columns, i, step)).collect();
                self.add(&a, &b, first, sums);
                c.keep_order();
            }
        }
    }

    /// The wave's rows of the weight and its tokens in a half of local memory.
    fn operands(&self, half: usize) -> [Half<'c>; 2] {
        let (s, shape, c) = (&self.squares, self.shape, self.contraction.matrix.c);
        let (panel, [tokens, whole]) = (shape.runs * RUN, shape.half());
        let operand = |along: usize, panels: usize, lane: Int<'c>, first: usize| {
            let inside = self.wave[along] * (panels * panel) + lane;
            c.at(c.at(self.local, inside), first)
        };
        let rows = operand(0, shape.panels, s.rows(panel), half * whole);
        let columns = operand(1, shape.blocks, s.columns(panel), half * whole + tokens);
        let (side, width) = (16 * s.side(), s.width());
        [
            Half { half, first: rows, count: shape.panels / s.side(), width: side, is_rows: true },
            Half { half, first: columns, count: self.blocks(), width, is_rows: false },
        ]
    }

    fn fragment(&self, operand: &Half<'c>, i: usize, step: usize) -> Fragment<'c> {
        let (s, c) = (&self.squares, self.contraction.matrix.c);
        let row = i * operand.width;
        let p = c.at(operand.first, row / 16 * self.shape.runs * RUN + row % 16 * RUN + step * s.step());
        let fragment = if operand.is_rows { s.load_rows(p) } else { s.load_columns(p) };
        fragment.iter().for_each(|run| mark(c, run.as_instruction_value().expect("a load"), operand.half));
        fragment
    }

    /// Adds products of all rows with some blocks of columns, from the `first` on.
    fn add(&self, a: &[Fragment<'c>], b: &[Fragment<'c>], first: usize, sums: &mut [Vector<'c>]) {
        for (a, sums) in a.iter().zip(sums.chunks_mut(self.blocks())) {
            self.squares.products(a, b, &mut sums[first..first + b.len()]);
        }
    }

    fn finish(&self, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (s, shape, c) = (&self.squares, self.shape, self.contraction.matrix.c);
        let sums: Vec<Vector<'c>> = sums.iter().map(|&sum| c.pin(sum)).collect();
        let first = self.panel + self.wave[0] * shape.made;
        let tokens = self.token + self.wave[1] * (shape.blocks * 16) + s.column();
        let mut result = Ok(());
        for made in 0..shape.made {
            let panel = first + made;
            c.when(c.less(panel, self.contraction.panels()), || {
                let col = panel * 16;
                for block in 0..self.blocks() {
                    let token = tokens + s.width() * block;
                    let results = |piece: usize| {
                        let panel = piece * shape.made + made;
                        s.results(sums[panel / s.side() * self.blocks() + block], panel % s.side())
                    };
                    let pieces: Vec<_> = (0..shape.pieces).map(results).collect();
                    for (i, &(row, _)) in pieces[0].iter().enumerate() {
                        let sums: Vec<Vector<'c>> = pieces.iter().map(|p| p[i].1).collect();
                        let done = self.contraction.finish(token, col + row, &sums);
                        result = std::mem::replace(&mut result, Ok(())).and(done);
                    }
                    // One block at a time: what all of them take together has no room beside the
                    // sums.
                    c.keep_order();
                }
            });
        }
        result
    }
}
