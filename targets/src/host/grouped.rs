//! Families `grouped_matvec` and `grouped_matmul`: each row is multiplied with the matrix of its
//! expert.
//!
//! `grouped_matvec`: each call sorts the rows by their experts. The work is the panels of all
//! experts that have rows, expert by expert. Each thread has an even run of these panels, whichever
//! experts were chosen, and reads a panel once for all of the expert's rows. A call stages a row
//! when it first multiplies with it. `grouped_matmul`: a task is a block of rows of one expert
//! against a few panels. A call's tasks follow each other on a block; it gathers the rows of the
//! block once.
use atomc_artifact::manifest;
use atomc_ir::layout::Groups;
use atomc_ir::{Diagnostic, Layout};

use super::Host;
use super::codes::Products;
use super::contract::{Contraction, LINE};
use super::dot::{AHEAD, Walk};
use super::group::{Sorted, store_word};
use super::heads;
use super::matmul::{Job, SUMS};
use super::signature;
use super::tile::{self, Tiles};
use crate::code::{Code, Int, Ptr, Vector};
use crate::row::unsupported;
use crate::{KernelSpec, Tasks};

/// Most rows of an expert that are multiplied at once, if registers hold their sums.
const MOST: usize = 8;

pub fn emit_matvec<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    if heads::is(spec.body) {
        return heads::emit(c, spec);
    }
    let kernel = signature::kernel(c, spec)?;
    let contraction = Contraction::new(c, &kernel)?;
    let (experts, each) = contraction.experts()?;
    let (pairs, most) = (signature::step(c).0 * kernel.choices, spec.tokens * kernel.choices);
    let (runs, lists) = Runs::find(c, kernel.rows.index(experts)?, pairs, contraction.expert_count(), most);
    let at = c.at(signature::scratch(c), lists);
    // A token has an expert once.
    let rows = Rows::new(&contraction, at, most / each, spec.tokens.min(MOST))?;
    let job = Few { c, contraction: &contraction, rows, runs, each, most: spec.tokens.min(MOST) };
    let panels = job.panels();
    let times = contraction.panels() / panels;
    let (first, end) = signature::tasks(c);
    // There are as many tasks as there can be work at most, and the actual work is shared out among
    // them.
    let all = runs.count * times;
    let [first, end] = [first, end].map(|task| task * all / (most * times));
    kernel
        .each(first, end, |unit| job.unit(Unit { times, panels, run: unit / times, panel: unit % times * panels }))?;
    Ok(manifest::Kernel::host(Tasks::Fixed(most * times), lists + job.rows.bytes))
}

/// Rows in the order of their experts: a run of them for each expert that has some, or for all that
/// have none.
#[derive(Clone, Copy)]
struct Runs<'c> {
    count: Int<'c>,
    experts: usize,
    /// The expert of each run, followed by the number of experts, and the beginning of each run.
    places: Ptr<'c>,
    starts: Ptr<'c>,
    rows: Ptr<'c>,
}

impl<'c> Runs<'c> {
    /// In scratch; returns the bytes that they take there, too.
    fn find(c: &Code<'c>, from: Ptr<'c>, pairs: Int<'c>, experts: usize, most: usize) -> (Runs<'c>, usize) {
        let list = (4 * (most + 1)).next_multiple_of(64);
        let counts = Sorted::bytes(experts);
        let sorted = Sorted::count(c, signature::scratch(c), from, pairs, experts);
        let [places, starts, rows] = [0, 1, 2].map(|i| c.at(signature::scratch(c), counts + i * list));
        let [count, _] = c.carry((0, experts + 1, 1), [c.int(0); 2], |place, [run, first]| {
            let count = sorted.get(place);
            // An expert without rows is overwritten by the next run.
            store_word(c, places, run, place);
            store_word(c, starts, run, first);
            sorted.set(place, first);
            let is_run = c.less(0, count);
            [c.pick_int(is_run, run + 1, run), first + count]
        });
        store_word(c, starts, count, pairs);
        c.repeat(0, pairs, 1, |pair| {
            let place = sorted.place(from, pair);
            let row = sorted.get(place);
            store_word(c, rows, row, pair);
            sorted.set(place, row + 1);
        });
        (Runs { count, experts, places, starts, rows }, counts + 3 * list)
    }
}

/// Rows of x, and whether each is staged.
struct Rows<'a, 'c> {
    c: &'a Code<'c>,
    kind: Kind<'a, 'c>,
    /// A word for each row, if they are staged.
    marks: Option<Ptr<'c>>,
    /// Bytes of scratch.
    bytes: usize,
}

/// Rows of floats with their distance, or rows staged for codes.
enum Kind<'a, 'c> {
    Floats(Ptr<'c>, usize),
    Codes(Box<Products<'a, 'c>>),
}

impl<'a, 'c> Rows<'a, 'c> {
    /// `count` rows with their marks at `at`. At most some of them are multiplied together.
    fn new(
        contraction: &Contraction<'_, 'a, 'c>,
        at: Ptr<'c>,
        count: usize,
        together: usize,
    ) -> Result<Rows<'a, 'c>, Diagnostic> {
        let c = contraction.code();
        let marks = (4 * count).next_multiple_of(64);
        let to = c.at(at, marks);
        let (kind, bytes) = match (contraction.codes()?, contraction.rows_in_memory()) {
            (Some(codes), _) => {
                let (products, bytes) = contraction.products(codes, to, count, together)?;
                (Kind::Codes(Box::new(products)), bytes)
            }
            (None, Some((x, stride))) => {
                return Ok(Rows { c, kind: Kind::Floats(x, stride), marks: None, bytes: 0 });
            }
            (None, None) => {
                let stride = contraction.staged_row();
                (Kind::Floats(to, stride), stride * count)
            }
        };
        c.repeat(0, count, 1, |row| store_word(c, at, row, c.int(0)));
        Ok(Rows { c, kind, marks: Some(at), bytes: marks + bytes })
    }

    /// Stages a row, unless it is.
    fn stage(&self, contraction: &Contraction<'_, 'a, 'c>, row: Int<'c>) -> Result<(), Diagnostic> {
        let (c, Some(marks)) = (self.c, self.marks) else { return Ok(()) };
        c.when(c.equal(c.load_made_index(marks, row), 0), || {
            store_word(c, marks, row, c.int(1));
            match &self.kind {
                Kind::Codes(products) => contraction.stage_codes(products, row),
                &Kind::Floats(to, stride) => contraction.stage_row(row, c.at(to, row * stride)),
            }
        })
    }
}

/// Some panels of a run of rows.
#[derive(Clone, Copy)]
struct Unit<'c> {
    /// Units of each run.
    times: usize,
    panels: usize,
    run: Int<'c>,
    panel: Int<'c>,
}

struct Few<'j, 'k, 'a, 'c> {
    c: &'a Code<'c>,
    contraction: &'j Contraction<'k, 'a, 'c>,
    rows: Rows<'a, 'c>,
    runs: Runs<'c>,
    /// Rows of the result for each of x.
    each: usize,
    /// Rows at most that are multiplied together.
    most: usize,
}

impl<'c> Few<'_, '_, '_, 'c> {
    /// Whether registers hold the sums of `height` rows with `panels` panels.
    fn fits(&self, height: usize, panels: usize) -> bool {
        let (c, pieces) = (self.c, self.contraction.pieces());
        match &self.rows.kind {
            Kind::Codes(products) => products.rows_together(panels * pieces, height) == height,
            Kind::Floats(..) => {
                let registers = self.contraction.dot.core.vector.holds(c.arch.memory.panel);
                let room = registers.saturating_sub(2 * self.contraction.dot.registers()).max(1);
                height * pieces * panels <= room
            }
        }
    }

    /// Panels of a unit of work.
    fn panels(&self) -> usize {
        let two = self.contraction.panels().is_multiple_of(2) && self.contraction.pieces() == 1;
        if two && self.fits(2.min(self.most), 2) { 2 } else { 1 }
    }

    /// A unit for all rows of its run.
    fn unit(&self, unit: Unit<'c>) -> Result<(), Diagnostic> {
        let (c, runs) = (self.c, &self.runs);
        let place = c.load_made_index(runs.places, unit.run);
        let [first, end] = [unit.run, unit.run + 1].map(|run| c.load_made_index(runs.starts, run));
        let has_expert = c.less(place, runs.experts);
        c.when(has_expert, || {
            c.repeat(first, end, 1, |row| self.rows.stage(self.contraction, self.row_of_x(row)))?;
            self.multiply(place, first, end, unit)
        })?;
        c.when(!has_expert, || {
            c.repeat(first, end, 1, |row| {
                let zeros = vec![c.zero(); unit.panels * self.contraction.pieces()];
                self.finish(c.load_made_index(runs.rows, row), unit.panel, &zeros)
            })
        })
    }

    /// The row of x of a row in the order of experts.
    fn row_of_x(&self, row: Int<'c>) -> Int<'c> {
        self.c.load_made_index(self.runs.rows, row) / self.each
    }

    fn multiply(&self, expert: Int<'c>, first: Int<'c>, end: Int<'c>, unit: Unit<'c>) -> Result<(), Diagnostic> {
        let c = self.c;
        let multiplied = Multiplied {
            expert,
            contraction: self.contraction.of_expert(expert),
            panel: unit.panel,
            panels: unit.panels,
            ahead: self.ahead(expert, unit),
        };
        let most = (1..=self.most).rev().find(|&height| self.fits(height, unit.panels)).unwrap_or(1);
        let rest = first + (end - first) / most * most;
        c.repeat(first, rest, most, |row| self.rows_of(&multiplied, row, most))?;
        (1..most).try_for_each(|height| {
            let is_rest = c.equal(end - rest, height);
            c.when(is_rest, || self.rows_of(&multiplied, rest, height))
        })
    }

    /// The distance in panels from a unit's panels to those of the next unit. After an expert's
    /// last unit, these are the panels of the next expert that has rows. The last expert has no
    /// next one.
    fn ahead(&self, expert: Int<'c>, unit: Unit<'c>) -> Int<'c> {
        let (c, runs) = (self.c, &self.runs);
        let next = c.load_made_index(runs.places, unit.run + 1);
        let is_known = c.less(unit.run + 1, runs.count) & c.less(next, runs.experts);
        let next = c.pick_int(is_known, next, expert);
        let other = (next - expert) * self.contraction.matrix_panels() - unit.panel;
        let is_last = c.equal(unit.panel, (unit.times - 1) * unit.panels);
        c.pick_int(is_last, other, unit.panels)
    }

    /// Multiplies `height` rows of a run from `row` on.
    fn rows_of(&self, of: &Multiplied<'_, '_, 'c>, row: Int<'c>, height: usize) -> Result<(), Diagnostic> {
        let (c, panels) = (self.c, of.panels);
        let pairs: Vec<Int> = (0..height).map(|i| c.load_made_index(self.runs.rows, row + i)).collect();
        let x: Vec<Int> = pairs.iter().map(|&pair| pair / self.each).collect();
        let sums = match &self.rows.kind {
            Kind::Codes(products) => {
                let weights = |p| of.contraction.weight_panels(of.panel + p, Some(of.ahead));
                products.of_expert(of.expert).sums(&x, &(0..panels).flat_map(weights).collect::<Vec<_>>())
            }
            &Kind::Floats(at, stride) => {
                let rows: Vec<Ptr> = x.iter().map(|&row| c.at(at, row * stride)).collect();
                let weights: Vec<_> = (0..panels).flat_map(|p| of.contraction.weights(of.panel + p)).collect();
                let unroll = [4, 2].into_iter().find(|&u| self.fits(height * u, panels)).unwrap_or(1);
                let (count, step) = (of.contraction.groups(), of.contraction.dot.step(c));
                of.contraction.dot.sums(c, &rows, &weights, Walk { count, step, unroll, ahead: Some(c.int(AHEAD)) })
            }
        };
        pairs.iter().zip(&sums).try_for_each(|(&pair, sums)| self.finish(pair, of.panel, sums))
    }

    fn finish(&self, pair: Int<'c>, panel: Int<'c>, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let pieces = sums.chunks(self.contraction.pieces()).enumerate();
        pieces.into_iter().try_for_each(|(p, sums)| self.contraction.finish(pair, panel + p, sums))
    }
}

/// Panels of an expert that rows are multiplied with.
struct Multiplied<'k, 'a, 'c> {
    expert: Int<'c>,
    contraction: Contraction<'k, 'a, 'c>,
    panel: Int<'c>,
    panels: usize,
    /// The distance in panels to those that are read next.
    ahead: Int<'c>,
}

pub fn emit_matmul<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    if heads::is(spec.body) {
        return heads::emit(c, spec);
    }
    let kernel = signature::kernel(c, spec)?;
    let contraction = Contraction::new(c, &kernel)?;
    let (experts, each) = contraction.experts()?;
    let Layout::Grouped { experts: count, tile } = kernel.rows.shape(experts)?.layout else {
        return Err(unsupported("a tiled product with the weights of experts whose rows are not grouped"));
    };
    let by_tiles = contraction.dot.has_tiles();
    let wide = 2 / contraction.pieces().min(2);
    let panels = if contraction.panels().is_multiple_of(wide) { wide } else { 1 };
    if by_tiles && panels * contraction.pieces() > 2 {
        return Err(unsupported("a tiled contraction in more than two pieces"));
    }
    let times = contraction.panels() / panels;
    let codes = contraction.codes()?;
    let sums = if by_tiles { SUMS * SUMS * 4 } else { 0 };
    let unpacked = if codes.is_some() { panels * contraction.pieces() * contraction.float_panel_bytes() } else { 0 };
    let state = c.at(signature::scratch(c), sums + unpacked);
    let gathered = Gathered { c, block: state, count: c.at(state, 8), rows: c.at(state, LINE) };
    c.store(gathered.block, 0 - c.int(1), 8);
    let from = kernel.rows.index(experts)?;
    let pairs = signature::step(c).0 * kernel.choices;
    let even = |n: Int<'c>| (n + (Groups::ALIGN - 1)) / Groups::ALIGN * Groups::ALIGN;
    let blocks = (pairs + c.smaller(pairs, count + 1) * (tile - 1)) / tile;
    let places = c.at(from, even(pairs) * 4);
    let lists = c.at(places, even(blocks) * 4);
    let (first, end) = signature::tasks(c);
    let open = by_tiles.then(|| Tiles::open(c, tile::ROWS));
    kernel.each(first, end, |task| {
        let (block, panel) = (task / times, task % times * panels);
        let expert = c.load_made_index(places, block);
        let list = c.at(lists, block * (4 * tile));
        c.when(c.less(expert, 0), || {
            c.repeat(0, tile, 1, |row| finish_none(c, &contraction, c.load_made_index(list, row), panel, panels))
        })?;
        c.when(c.less(0, expert + 1), || {
            gathered.gather(&contraction, block, list, (tile, each))?;
            let contraction = contraction.of_expert(expert);
            let codes = codes.as_ref().map(|codes| codes.of_expert(expert));
            let scratch = codes.as_ref().map(|codes| (codes, c.at(signature::scratch(c), sums)));
            let x = (gathered.rows, contraction.row_bytes());
            let (chosen, few) = (Some((list, each)), spec.invariant);
            let job = Job { c, contraction: &contraction, x, panel, panels, scratch, chosen, few };
            let to = c.load_i64(gathered.count);
            match &open {
                Some(tiles) => job.by_tiles(tiles, c.int(0), to),
                None => job.by_vectors(c.int(0), to),
            }
        })
    })?;
    if let Some(tiles) = open {
        tiles.close();
    }
    let rows = tile.next_multiple_of(SUMS) * contraction.row_bytes();
    let tasks = Tasks::Blocks { choices: kernel.choices, experts: count, tile, times };
    Ok(manifest::Kernel::host(tasks, sums + unpacked + LINE + rows))
}

/// Some panels of a pair that has no expert: its results are zeros. An empty block has no pairs.
fn finish_none<'c>(
    c: &Host<'c>,
    contraction: &Contraction<'_, '_, 'c>,
    pair: Int<'c>,
    panel: Int<'c>,
    panels: usize,
) -> Result<(), Diagnostic> {
    c.when(c.less(0, pair + 1), || {
        let zeros = vec![c.zero(); contraction.pieces()];
        (0..panels).try_for_each(|p| contraction.finish(pair, panel + p, &zeros))
    })
}

/// The rows of a block in scratch: the block, and the number of rows.
struct Gathered<'a, 'c> {
    c: &'a Code<'c>,
    block: Ptr<'c>,
    count: Ptr<'c>,
    rows: Ptr<'c>,
}

impl<'c> Gathered<'_, 'c> {
    /// Gathers the rows of a block, unless they are there.
    fn gather(
        &self,
        contraction: &Contraction<'_, '_, 'c>,
        block: Int<'c>,
        list: Ptr<'c>,
        (tile, each): (usize, usize),
    ) -> Result<(), Diagnostic> {
        let (c, mut result) = (self.c, Ok(()));
        c.when(c.compare(inkwell::IntPredicate::NE, c.load_i64(self.block), block), || {
            c.store(self.block, block, 8);
            c.repeat(0, tile, 1, |row| {
                let pair = c.load_made_index(list, row);
                c.when(c.less(0, pair + 1), || {
                    c.store(self.count, row + 1, 8);
                    result = contraction.unpack_row(pair / each, c.at(self.rows, row * contraction.row_bytes()));
                });
            });
        });
        result
    }
}
