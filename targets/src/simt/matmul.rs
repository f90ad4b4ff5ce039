//! Family `matmul`: a contraction over many tokens, in tiles that waves share through local memory.
//!
//! A work-group makes a tile of 128 tokens by 128 rows of the weight. Both operands go through local memory in
//! stretches of columns, laid out as fragments, two stretches in turn: while one is multiplied, the next is on its way from
//! global memory into registers, and goes into the other half behind the products. One barrier a stretch.
pub mod wide;

use atomc_ir::{Arch, Diagnostic};

use super::Setup;
use super::contract::{Contraction, Sizes};
use super::fragment::{Fragment, Matrix, RUN};
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::row::{Operand, unsupported};
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
        // Half as many lanes hold twice as many results each; that is no matter where even waves with all the registers they may
        // take leave room for others. Where operands are converted on the way, the registers for that are missing elsewhere.
        let leaves_room = simt.unit.vgprs >= 4 * simt.unit.vgprs_wave;
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

    /// Panels of the result in a tile.
    fn tile_panels(&self) -> usize {
        PANELS / self.pieces
    }
}

/// Tokens of a tile.
const TOKENS: usize = BLOCKS * 16;

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> Result<(Code<'c>, KernelInfo), Diagnostic> {
    if wide::fits(spec, setup.arch)? {
        return wide::emit(setup, spec);
    }
    let shape = Shape::new(spec, setup.arch)?;
    let code = setup.open(spec, shape.threads);
    let tasks = {
        let c = &code;
        let fits_twice = 2 * 2 * shape.half()[1] <= setup.arch.simt().unit.lds;
        c.want_waves(if fits_twice { 2 } else { 1 });
        let kernel = super::kernel(c, spec)?;
        let contraction = Contraction::new(&kernel)?;
        let x = contraction.parts.rows_in_memory();
        let x = x.ok_or_else(|| unsupported("rows that are not in memory as the weight's type"))?;
        let times = contraction.panels().div_ceil(shape.tile_panels());
        let (tile, first) = (c.rem(c.group(), times), c.mul(c.div(c.group(), times), c.int(TOKENS)));
        super::when_in_step(c, spec, &kernel, first, || {
            let panel = c.mul(tile, c.int(shape.tile_panels()));
            Tile::new(&contraction, x, shape, (panel, first)).run()
        })?;
        kernel.row_tasks(TOKENS, times)
    };
    Ok((code, KernelInfo::simt(tasks, shape.threads)))
}

struct Tile<'t, 'k, 'a, 'c> {
    contraction: &'t Contraction<'k, 'a, 'c>,
    shape: Shape,
    /// First panel of the result, first token.
    panel: Int<'c>,
    token: Int<'c>,
    /// The wave's place along features and tokens.
    wave: [Int<'c>; 2],
    local: Ptr<'c>,
    /// Where this thread's runs of the first stretch lie: of the weight, then of the rows.
    from: Vec<Ptr<'c>>,
    /// Bytes from one stretch to the next, for each of them.
    step: Vec<usize>,
    /// Where it puts them in a half of local memory.
    to: Vec<Int<'c>>,
}

impl<'t, 'k, 'a, 'c> Tile<'t, 'k, 'a, 'c> {
    fn new(
        contraction: &'t Contraction<'k, 'a, 'c>,
        x: &Operand<'c>,
        shape: Shape,
        (panel, token): (Int<'c>, Int<'c>),
    ) -> Tile<'t, 'k, 'a, 'c> {
        let c = contraction.matrix.c;
        let wave = c.wave_index();
        let along = BLOCKS / shape.blocks;
        let wave = [c.div(wave, along), c.rem(wave, along)];
        let local = c.local(2 * shape.half()[1]);
        let (from, step, to) = (vec![], vec![], vec![]);
        let mut tile = Tile { contraction, shape, panel, token, wave, local, from, step, to };
        tile.place(x);
        tile
    }

    /// Which runs this thread brings. Those of one panel, or of 16 rows, are brought by whole waves.
    fn place(&mut self, x: &Operand<'c>) {
        let (c, shape, m) = (self.contraction.matrix.c, self.shape, &self.contraction.matrix);
        let wave = c.arch.simt().wave;
        let waves = shape.runs / wave;
        for half in 0..2 {
            let count = if half == 0 { PANELS } else { BLOCKS };
            for i in (0..count * shape.runs).step_by(shape.threads) {
                let turn = c.add(c.wave_index(), c.int(i / wave));
                let (group, inside) = (c.div(turn, waves), c.mul(c.rem(turn, waves), c.int(wave)));
                let run = c.add(inside, c.lane_index());
                let p = if half == 0 {
                    self.step.push(shape.runs * RUN);
                    c.at(self.weight(group), c.mul(run, c.int(RUN)))
                } else {
                    self.step.push(shape.stretch * m.dtype.size());
                    let token = c.add(c.add(self.token, c.mul(group, c.int(16))), c.rem(run, 16));
                    let row = c.mul(token, c.int(x.stride * m.dtype.size()));
                    c.at(x.ptr, c.add(row, c.mul(c.div(run, 16), c.int(RUN))))
                };
                self.from.push(p);
                let to = c.mul(c.add(c.mul(group, c.int(shape.runs)), run), c.int(RUN));
                self.to.push(c.add(to, c.int(if half == 0 { 0 } else { shape.half()[0] })));
            }
        }
    }

    /// Where the weight's panel begins that stands in a place of the tile: for each wave piece by piece.
    fn weight(&self, place: Int<'c>) -> Ptr<'c> {
        let (c, shape) = (self.contraction.matrix.c, self.shape);
        let (wave, inside) = (c.div(place, shape.panels), c.rem(place, shape.panels));
        let panel = c.add(c.mul(wave, c.int(shape.made)), c.rem(inside, shape.made));
        let panel = self.contraction.made(c.add(panel, self.panel));
        let piece = c.div(inside, shape.made);
        let mut first = c.int(0);
        for (i, start) in self.contraction.parts.starts().enumerate() {
            first = c.pick(c.equal(piece, i), c.int(start / 16), first).into_int_value();
        }
        self.contraction.weight_panel(panel, first)
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let (c, shape) = (self.contraction.matrix.c, self.shape);
        let together = self.contraction.matrix.together();
        let mut sums = vec![self.contraction.matrix.zero(); shape.panels * shape.blocks * together];
        self.put(0, &self.bring(c.int(0)));
        c.barrier();
        // Two stretches at a time, so that each half of local memory has its addresses.
        let pairs = (shape.count - 1) / 2;
        if pairs > 0 {
            let carried: Vec<Any> = sums.iter().map(|&v| v.into()).collect();
            let carried = c.for_each((c.int(1), c.int(1 + 2 * pairs), 2), &carried, |stretch, carried| {
                let mut sums: Vec<Vector<'c>> = carried.iter().map(|v| v.into_vector_value()).collect();
                self.turn(stretch, 1, &mut sums);
                self.turn(c.add(stretch, c.int(1)), 0, &mut sums);
                sums.into_iter().map(|v| v.into()).collect()
            });
            sums = carried.iter().map(|v| v.into_vector_value()).collect();
        }
        if shape.count > 1 + 2 * pairs {
            self.turn(c.int(shape.count - 1), 1, &mut sums);
        }
        self.multiply((shape.count - 1) % 2, &mut sums);
        self.finish(&sums)
    }

    /// Brings a stretch into one half while the other is multiplied.
    fn turn(&self, stretch: Int<'c>, half: usize, sums: &mut [Vector<'c>]) {
        let c = self.contraction.matrix.c;
        let next = self.bring(stretch);
        c.keep_order();
        self.multiply(1 - half, sums);
        c.keep_order();
        self.put(half, &next);
        c.barrier();
    }

    /// Loads this thread's runs of a stretch.
    fn bring(&self, stretch: Int<'c>) -> Vec<Vector<'c>> {
        let m = &self.contraction.matrix;
        let c = m.c;
        let load = |(&p, &step): (&Ptr<'c>, &usize)| m.load_run(c.at(p, c.mul(stretch, c.int(step))));
        self.from.iter().zip(&self.step).map(load).collect()
    }

    fn put(&self, half: usize, runs: &[Vector<'c>]) {
        let c = self.contraction.matrix.c;
        let base = c.at(self.local, c.int(half * self.shape.half()[1]));
        for (&to, &run) in self.to.iter().zip(runs) {
            c.store(c.at(base, to), run, RUN as u32);
        }
    }

    fn multiply(&self, half: usize, sums: &mut [Vector<'c>]) {
        let m = &self.contraction.matrix;
        let (c, place, shape) = (m.c, m.place(), self.shape);
        let base = c.at(self.local, c.int(half * shape.half()[1]));
        let wave = |along: usize, each: usize| c.mul(self.wave[along], c.int(each * shape.runs * RUN));
        let weights = c.at(base, c.add(wave(0, shape.panels), m.in_panel(place, place.row)));
        let tokens = c.add(wave(1, shape.blocks), m.in_panel(place, place.column));
        let tokens = c.at(base, c.add(tokens, c.int(shape.half()[0])));
        for step in 0..shape.stretch / m.span() {
            let load =
                |p: Ptr<'c>, i: usize| m.load_panel(c.at(p, c.int(i * shape.runs * RUN + step * m.panel_step())));
            let a: Vec<Fragment<'c>> = (0..shape.panels).map(|i| load(weights, i)).collect();
            let column = |i: usize| {
                let (block, part) = (i / m.together(), i % m.together());
                let at = block * shape.runs * RUN + step * m.panel_step() + part * m.layout.columns * RUN;
                m.load_columns(c.at(tokens, c.int(at)))
            };
            // Where every lane holds whole rows, the fragments of all blocks would fill its registers.
            let blocks = shape.blocks * m.together();
            let together = if m.layout.replicated { 1 } else { blocks };
            for first in (0..blocks).step_by(together) {
                let b: Vec<Fragment<'c>> = (first..first + together).map(column).collect();
                for (a, sums) in a.iter().zip(sums.chunks_mut(blocks)) {
                    m.products(a, &b, &mut sums[first..first + together]);
                }
                if together < blocks {
                    c.keep_order();
                }
            }
        }
    }

    fn finish(&self, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let m = &self.contraction.matrix;
        let (c, place, shape) = (m.c, m.place(), self.shape);
        let sums: Vec<Vector<'c>> = sums.iter().map(|&sum| c.pin(sum)).collect();
        let first = c.add(self.panel, c.mul(self.wave[0], c.int(shape.made)));
        let tokens = c.add(self.token, c.mul(self.wave[1], c.int(shape.blocks * 16)));
        let mut result = Ok(());
        for made in 0..shape.made {
            let panel = c.add(first, c.int(made));
            c.when(c.less(panel, c.int(self.contraction.panels())), || {
                let col = c.add(c.mul(panel, c.int(16)), place.results);
                let blocks = shape.blocks * m.together();
                for block in 0..blocks {
                    let token = c.add(c.add(tokens, c.int(m.layout.columns * block)), place.column);
                    let sum = |piece: usize| sums[(piece * shape.made + made) * blocks + block];
                    let sums: Vec<Vector<'c>> = (0..shape.pieces).map(sum).collect();
                    let done = self.contraction.finish(token, col, &sums);
                    result = std::mem::replace(&mut result, Ok(())).and(done);
                    // One block at a time: what all of them take together has no room beside the sums.
                    c.keep_order();
                }
            });
        }
        result
    }
}
