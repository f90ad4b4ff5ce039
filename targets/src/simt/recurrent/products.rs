//! Products of a wave with right operands and results that stay in registers.
//!
//! A wave has 16 columns. Of each a lane holds runs of consecutive numbers, as a right operand
//! takes them. The rows of the left operand, in local memory, are taken in an order that gives
//! results in such runs too, so results are the right operand of the next product as they are.
//!
//! Numbers of f32 are sums of three of bf16, so products are as good as those of f32.
use atomc_ir::DType;

use crate::code::{Int, Ptr, Vector};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, Matrix, Place};

/// Columns of a wave.
pub const COLUMNS: usize = 16;

/// Runs of numbers of a lane's columns: block by block of columns as products have them, and of
/// each block span by span.
pub type Runs<'c> = Vec<Vec<Vector<'c>>>;

/// A matrix in local memory, row by row.
#[derive(Clone, Copy)]
pub struct Rows<'c> {
    pub ptr: Ptr<'c>,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// bf16, or f32.
    pub dtype: DType,
}

/// The waves of a barrier, where some write what others read.
#[derive(Clone, Copy)]
pub enum Meeting {
    /// All of the work-group.
    All,
    /// A part of the threads, at a barrier of their own.
    Some { barrier: usize, threads: usize },
}

/// The operands of a wave's products.
#[derive(Clone, Copy)]
pub struct Products<'a, 'c> {
    pub c: &'a Gpu<'c>,
    pub place: Place<'c>,
    /// The thread's number in its work-group.
    pub thread: Int<'c>,
    meeting: Meeting,
    short: Matrix<'a, 'c>,
    wide: Matrix<'a, 'c>,
}

impl<'c> Rows<'c> {
    pub fn at(&self, c: &Gpu<'c>, row: Int<'c>, column: Int<'c>) -> Ptr<'c> {
        c.at(self.ptr, row * self.pitch + column * self.dtype.size())
    }
}

impl<'a, 'c> Products<'a, 'c> {
    pub fn new(c: &'a Gpu<'c>) -> Products<'a, 'c> {
        Products::meeting(c, Meeting::All)
    }

    /// The products of the first of a work-group's waves.
    pub fn meeting(c: &'a Gpu<'c>, meeting: Meeting) -> Products<'a, 'c> {
        let (short, wide) = (Matrix::new(c, DType::BF16), Matrix::new(c, DType::F32));
        Products { c, place: short.place(), thread: c.thread(), meeting, short, wide }
    }

    /// A barrier of the waves. Each sees the others' earlier writes.
    pub fn meet(&self) {
        match self.meeting {
            Meeting::All => self.c.barrier(),
            Meeting::Some { barrier, threads } => self.c.meet_some(self.c.int(barrier), threads),
        }
    }

    /// The products with places computed again for each turn of a loop, or after one; `turn` is
    /// never negative. Otherwise LLVM would compute what all turns share once, and keep it in
    /// registers, which are too few.
    pub fn anew(&self, turn: Int<'c>) -> Self {
        let made = |of| self.c.lane_offset(of, turn);
        let Place { row, column, part, share, results } = self.place;
        let [row, column, part, share, results] = [row, column, part, share, results].map(made);
        Products { place: Place { row, column, part, share, results }, thread: made(self.thread), ..*self }
    }

    pub fn span(&self) -> usize {
        self.short.span()
    }

    /// Numbers of a run.
    pub fn depth(&self) -> usize {
        self.short.layout.depth
    }

    pub fn results(&self) -> usize {
        self.short.layout.results
    }

    pub fn blocks(&self) -> usize {
        self.short.together()
    }

    /// The lane's column of a block.
    pub fn column(&self, block: usize) -> Int<'c> {
        self.place.column + block * self.short.layout.columns
    }

    /// The number of the first of the lane's run in a span.
    pub fn first(&self, span: usize) -> Int<'c> {
        self.place.part * self.depth() + span * self.span()
    }

    /// Runs of `spans` spans.
    pub fn runs(&self, spans: usize, mut run: impl FnMut(usize, usize) -> Vector<'c>) -> Runs<'c> {
        (0..self.blocks()).map(|block| (0..spans).map(|span| run(block, span)).collect()).collect()
    }

    pub fn zeros(&self, spans: usize) -> Runs<'c> {
        self.runs(spans, |_, _| self.c.cx.f32_type().vec_type(self.depth() as u32).const_zero())
    }

    /// The row of the left operand for this row of a tile, so that results are runs.
    fn row(&self, tile: usize, row: Int<'c>) -> Int<'c> {
        let (results, tiles) = (self.results(), self.depth() / self.results());
        let first = tile / tiles * self.span() + tile % tiles * results;
        row / results * self.depth() + row % results + first
    }

    /// The lane's part of a tile's rows, which are `rows` of the matrix, from columns of `column`
    /// on, as parts of bf16.
    pub fn left(&self, matrix: Rows<'c>, column: Int<'c>, row: impl Fn(Int<'c>) -> Int<'c>) -> Vec<Fragment<'c>> {
        let of = if matrix.dtype == DType::F32 { &self.wide } else { &self.short };
        let rows = (0..self.short.layout.rows()).map(|i| row(self.place.row + 2 * i));
        let all: Fragment<'c> = rows.flat_map(|row| of.load_row(matrix.at(self.c, row, column))).collect();
        if matrix.dtype == DType::F32 { self.wide.thirds(&all).to_vec() } else { vec![all] }
    }

    /// Rows of a matrix in local memory as columns, part by part: those of a block from `first` on.
    pub fn stored_columns(&self, matrix: Rows<'c>, first: Int<'c>, span: usize) -> Vec<Vec<Fragment<'c>>> {
        let at = |block| matrix.at(self.c, first + self.column(block), self.first(span));
        let blocks = 0..self.blocks();
        match matrix.dtype {
            DType::F32 => by_part(blocks.map(|block| self.wide.thirds(&self.wide.load_row(at(block))))),
            _ => vec![blocks.map(|block| self.short.load_row(at(block))).collect()],
        }
    }

    /// A span of runs as parts of bf16, part by part.
    fn parts(&self, runs: &Runs<'c>, span: usize) -> Vec<Vec<Fragment<'c>>> {
        by_part(runs.iter().map(|of_block| self.wide.thirds(&self.wide.fragment_of(&[of_block[span]]))))
    }

    /// Adds products of parts, the small ones first. Products below 2^-24 of the largest are left
    /// out.
    pub fn add(&self, left: &[Fragment<'c>], right: &[Vec<Fragment<'c>>], sums: &mut [Vector<'c>]) {
        for size in (0..3).rev() {
            for (i, left) in left.iter().enumerate().filter(|&(i, _)| i <= size) {
                if let Some(right) = right.get(size - i) {
                    self.short.products(left, right, sums);
                }
            }
        }
    }

    /// `sums + left * right`, for the rows of a matrix with columns that begin at `column`.
    /// `wanted` says whether a span of rows and a span of columns hold anything.
    pub fn multiply(
        &self,
        (matrix, column, row): (Rows<'c>, impl Fn(usize) -> Int<'c>, impl Fn(Int<'c>) -> Int<'c>),
        right: &Runs<'c>,
        sums: Runs<'c>,
        wanted: impl Fn(usize, usize) -> bool,
    ) -> Runs<'c> {
        let mut sums = self.tiles(&sums);
        for span in 0..right[0].len() {
            let right = self.parts(right, span);
            self.add_rows((matrix, column(span), &row), &right, &mut sums, |of| wanted(of, span));
        }
        self.joined(&sums)
    }

    /// Two matrices times the same operand, with the operand's parts made once: `spans` of rows
    /// each.
    pub fn multiply_both(&self, left: [Rows<'c>; 2], right: &Runs<'c>, spans: usize) -> [Runs<'c>; 2] {
        let mut sums = [0; 2].map(|_| self.tiles(&self.zeros(spans)));
        for span in 0..right[0].len() {
            let right = self.parts(right, span);
            for (matrix, sums) in left.into_iter().zip(&mut sums) {
                self.add_rows((matrix, self.first(span), &|row| row), &right, sums, |_| true);
            }
        }
        sums.map(|sums| self.joined(&sums))
    }

    /// Adds products of a span of all rows of a matrix, from a column on, to results tile by tile.
    fn add_rows(
        &self,
        (matrix, column, row): (Rows<'c>, Int<'c>, &dyn Fn(Int<'c>) -> Int<'c>),
        right: &[Vec<Fragment<'c>>],
        sums: &mut [Vec<Vector<'c>>],
        wanted: impl Fn(usize) -> bool,
    ) {
        let tiles = self.depth() / self.results();
        for (tile, sums) in sums.iter_mut().enumerate().filter(|(tile, _)| wanted(tile / tiles)) {
            let left = self.left(matrix, column, |r| row(self.row(tile, r)));
            self.add(&left, right, sums);
            // Rows of more tiles at once would want more registers.
            self.c.keep_order();
        }
    }

    /// Runs tile by tile, those of all blocks.
    fn tiles(&self, runs: &Runs<'c>) -> Vec<Vec<Vector<'c>>> {
        let (results, tiles) = (self.results(), self.depth() / self.results());
        let part = |run: Vector<'c>, tile: usize| self.c.part(run, tile % tiles * results, results);
        let of_tile = |tile: usize| runs.iter().map(|of_block| part(of_block[tile / tiles], tile)).collect();
        (0..runs[0].len() * tiles).map(of_tile).collect()
    }

    fn joined(&self, sums: &[Vec<Vector<'c>>]) -> Runs<'c> {
        let tiles = self.depth() / self.results();
        let run = |block: usize, span: usize| {
            self.c.join(&sums[span * tiles..][..tiles].iter().map(|sums| sums[block]).collect::<Vec<_>>())
        };
        self.runs(sums.len() / tiles, run)
    }
}

/// Parts of blocks, part by part.
fn by_part<'c>(blocks: impl Iterator<Item = [Fragment<'c>; 3]>) -> Vec<Vec<Fragment<'c>>> {
    let blocks: Vec<[Fragment<'c>; 3]> = blocks.collect();
    (0..3).map(|part| blocks.iter().map(|thirds| thirds[part].clone()).collect()).collect()
}
