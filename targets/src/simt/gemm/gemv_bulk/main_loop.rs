//! The passes of a work-group along its panels, and the K tiles of each.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::Shape;
use super::epilogue::Block;
use super::loader::WeightPipeline;
use super::loader::quantised_rows::QuantisedRows;
use super::loader::rows::Staging;
use super::scheduler::{CARRIED, PanelRun, PipelineIndex};
use crate::code::{Any, Int, Ptr};
use crate::simt::gemm::contract::Contraction;
use crate::simt::machine::Gpu;

/// Adds the products of one panel of a pass to the panel's sums. The index names the stage that
/// holds the weight.
pub type AddProducts<'s, 'c> = Box<dyn Fn(usize, PipelineIndex<'c>, &[Any<'c>]) -> Vec<Any<'c>> + 's>;

/// How a schedule multiplies its operands: everything in which the three schedules differ once
/// their operands are in local memory.
pub trait Products<'c> {
    /// Converts rows before they are multiplied. Their first K tile begins at the given place. The
    /// work-group has a barrier before and after.
    fn convert(&self, _: &Gpu<'c>, _rows: Int<'c>) {}

    /// How the products of a stage are added.
    fn of_stage<'s>(&'s self, group: &'s WorkGroup<'_, '_, '_, 'c>, at: StageAt<'c>) -> AddProducts<'s, 'c>;

    /// A factor of all sums of a token, apart from the scales.
    fn unit(&self, _: &Gpu<'c>, _token: Int<'c>) -> Option<FloatValue<'c>> {
        None
    }

    /// Stores a lane's sums of a block for the other waves: those of two tokens, of two rows each.
    fn store(&self, group: &WorkGroup<'_, '_, '_, 'c>, block: Block, sums: [FloatValue<'c>; 4]) {
        let (c, tokens) = (group.code(), group.shape.tokens);
        for second in 0..2 {
            let token = c.lane_index() % 4 * 2 + (8 * block.tile + second);
            let store = || group.store_sums(block, token, [sums[second], sums[2 + second]]);
            match 8 * block.tile + 8 <= tokens {
                true => store(),
                false => c.when(c.less(token, tokens), store),
            }
        }
    }

    /// Whether rows are converted before they are multiplied.
    fn converts(&self) -> bool {
        false
    }
}

/// The address of a stage's rows, the first of the wave's panels in the pass, and the stage among
/// all waves' in a K tile.
#[derive(Clone, Copy)]
pub struct StageAt<'c> {
    pub rows: Int<'c>,
    pub first: Int<'c>,
    pub k_tile: Int<'c>,
    pub along: Int<'c>,
}

/// The rows of a contraction: floats, K tile by K tile, or quantised values, all rows at once.
pub enum Rows<'w, 'k, 'a, 'c> {
    Staged(Box<Staging<'w, 'k, 'a, 'c>>),
    Quantised(Box<QuantisedRows<'w, 'k, 'a, 'c>>),
}

impl<'w, 'k, 'a, 'c> Rows<'w, 'k, 'a, 'c> {
    /// The first work after earlier kernels have ended.
    pub fn begin(&self) -> Result<(), Diagnostic> {
        match self {
            Rows::Staged(staging) => staging.set_scale(),
            Rows::Quantised(rows) => rows.stage(),
        }
    }

    fn staged(&self) -> Option<&Staging<'w, 'k, 'a, 'c>> {
        match self {
            Rows::Staged(staging) => Some(staging),
            Rows::Quantised(_) => None,
        }
    }

    pub fn quantised(&self) -> Option<&QuantisedRows<'w, 'k, 'a, 'c>> {
        match self {
            Rows::Staged(_) => None,
            Rows::Quantised(rows) => Some(rows),
        }
    }

    /// The factor of a token's sums, if they are scaled.
    fn scale(&self, token: Int<'c>) -> Option<FloatValue<'c>> {
        match self {
            Rows::Staged(staging) => staging.scale(token),
            Rows::Quantised(rows) => rows.scale(token),
        }
    }
}

/// One work-group's passes along its panels.
pub struct WorkGroup<'w, 'k, 'a, 'c> {
    pub contraction: &'w Contraction<'k, 'a, 'c>,
    pub shape: Shape,
    pub weights: &'w WeightPipeline<'w, 'k, 'a, 'c>,
    pub rows: Rows<'w, 'k, 'a, 'c>,
    pub products: Box<dyn Products<'c> + 'w>,
    /// The address of the waves' partial sums, and the bytes from one wave's to the next.
    pub partials: (Ptr<'c>, usize),
    pub run: PanelRun<'c>,
}

impl<'w, 'k, 'a, 'c> WorkGroup<'w, 'k, 'a, 'c> {
    pub fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    /// A wave's stages before the K tile of a stage, and other waves' among them.
    pub fn before(&self, at: StageAt<'c>) -> Int<'c> {
        at.k_tile * (self.shape.k_tile * self.shape.waves_k)
    }

    /// The rows of floats, which come in K tiles.
    fn staging(&self) -> &Staging<'w, 'k, 'a, 'c> {
        self.rows.staged().expect("rows of floats where they come in K tiles")
    }

    /// Where a buffer of rows begins.
    fn buffer(&self, number: Int<'c>) -> Int<'c> {
        match &self.rows {
            Rows::Staged(staging) => staging.buffer(number),
            Rows::Quantised(rows) => self.code().local_address(rows.local),
        }
    }

    /// The factor of a token's sums, if they are scaled.
    pub fn scale(&self, token: Int<'c>) -> Option<FloatValue<'c>> {
        let c = self.code();
        let scale = self.rows.scale(token);
        let Some(unit) = self.products.unit(c, token) else { return scale };
        Some(scale.map_or(unit, |scale| (c.float(scale) * unit).v))
    }

    /// All passes. Carried values are the pipeline's index, the thread's parts of the next K tiles,
    /// and its squares.
    pub fn all(&self, index: PipelineIndex<'c>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        if let Some(copies) = self.rows.staged().and_then(|staging| staging.copies.as_ref()) {
            copies.load_first();
            return self.only_pass(&index.carried());
        }
        let mut carried: Vec<Any> = index.carried().to_vec();
        if let Some(staging) = self.rows.staged() {
            let mut asked = Vec::new();
            for k_tile in 0..=shape.prefetched {
                asked.extend(staging.load(c.int(k_tile % shape.k_tiles))?);
            }
            let rest = asked.split_off(staging.vectors());
            let squares = staging.store(c.int(0), c.int(0), &asked, c.number(0.0))?;
            if shape.k_tiles == 1 {
                staging.store_squares(squares);
            }
            carried.extend(rest.into_iter().chain([squares.into()]));
        }
        c.barrier();
        if self.products.converts() {
            self.products.convert(c, self.buffer(c.int(0)));
            c.barrier();
        }
        if shape.one_pass {
            return self.only_pass(&carried);
        }
        let passes = (self.run.end - self.run.begin + (shape.pass() - 1)) / shape.pass();
        c.try_for_each((0, passes, 1), &carried, |pass, carried| {
            let carried = self.pass(pass, carried)?;
            self.sync();
            Ok(carried)
        })
        .map(drop)
    }

    /// The only pass.
    fn only_pass(&self, carried: &[Any<'c>]) -> Result<(), Diagnostic> {
        self.pass(self.code().int(0), carried)?;
        // A work-group must not end while another one of its cluster reads its sums.
        if self.shape.cluster > 1 {
            self.code().leave_cluster();
        }
        Ok(())
    }

    /// One pass over the columns of the weight.
    fn pass(&self, pass: Int<'c>, carried: &[Any<'c>]) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let zero = c.number(0.0).into();
        let count = shape.wave_panels * shape.pieces * shape.tiles() * 4;
        let first = pass * shape.wave_panels;
        let begin: Vec<Any> = std::iter::repeat_n(zero, count).chain(carried.iter().copied()).collect();
        // A turn takes as many K tiles as are in flight, so that these keep their registers.
        let turn = |k_tile: Int<'c>, carried: &[Any<'c>]| {
            let mut carried = carried.to_vec();
            for i in 0..shape.prefetched {
                let k_tile = k_tile + i;
                let number = pass * shape.k_tiles + k_tile;
                let rows = self.buffer(number % 2);
                let made = self.k_tile(first, k_tile, rows, &carried[..count + CARRIED]);
                carried.splice(..count + CARRIED, made);
                self.next(number + 1, i, &mut carried[count + CARRIED..])?;
                c.barrier();
            }
            Ok::<_, Diagnostic>(carried)
        };
        let copies = self.rows.staged().and_then(|staging| staging.copies.as_ref());
        let carried = match (shape.k_tiles, copies) {
            (k_tiles, Some(copies)) => c.for_each((0, k_tiles, 1), &begin, |k_tile, carried| {
                let made = self.k_tile(first, k_tile, copies.wait_full(k_tile), carried);
                copies.release(k_tile);
                made
            }),
            (1, None) => {
                let (products, rows) = begin.split_at(count + CARRIED);
                let products = self.k_tile(first, c.int(0), self.buffer(c.int(0)), products);
                products.into_iter().chain(rows.iter().copied()).collect()
            }
            (k_tiles, None) => c.try_for_each((0, k_tiles, shape.prefetched), &begin, turn)?,
        };
        if shape.k_tiles > 1 && !shape.copied {
            self.staging().store_squares(carried[carried.len() - 1].into_float_value());
        }
        let panel = pass * shape.pass();
        self.epilogue(panel, &carried[..count])?;
        Ok(carried[count..].to_vec())
    }

    /// Stores the next K tile, counted over all passes, which is the `i`-th in flight, and loads
    /// another.
    fn next(&self, number: Int<'c>, i: usize, rows: &mut [Any<'c>]) -> Result<(), Diagnostic> {
        let (c, shape, vectors) = (self.code(), self.shape, self.staging().vectors());
        let squares = rows[rows.len() - 1].into_float_value();
        let words = &mut rows[i * vectors..(i + 1) * vectors];
        let sum = self.staging().store(number % shape.k_tiles, number % 2, words, squares)?;
        let later = number + shape.prefetched;
        let later = if shape.one_pass { later } else { later % shape.k_tiles };
        words.copy_from_slice(&self.staging().load(later)?);
        // The first pass sees the whole row.
        let is_new = c.less(number, shape.k_tiles);
        rows[rows.len() - 1] = c.pick(is_new, sum, squares);
        Ok(())
    }

    /// The products of one K tile. `rows` is the place of its rows.
    fn k_tile(&self, first: Int<'c>, k_tile: Int<'c>, rows: Int<'c>, carried: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let count = match shape.stages_of_a_wave() {
            Some(stages) if stages.is_multiple_of(shape.k_tile) => c.int(shape.k_tile),
            _ => {
                let left = self.weights.stages - k_tile * shape.k_tile;
                c.smaller(c.larger(left, 0), shape.k_tile)
            }
        };
        c.for_each((0, count, 1), carried, |stage, carried| {
            let along = stage * shape.waves_k + self.weights.along;
            let rows = rows + along * (shape.steps * 4 * shape.vec16_bytes());
            let (sums, index) = carried.split_at(carried.len() - CARRIED);
            let index = PipelineIndex::of(c, index);
            self.stage(StageAt { rows, first, k_tile, along }, index, sums)
        })
    }

    /// The products of one stage of each panel of the pass, and the pipeline's next index.
    fn stage(&self, at: StageAt<'c>, mut index: PipelineIndex<'c>, sums: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let add = self.products.of_stage(self, at);
        let mut all = Vec::new();
        for (panel, sums) in sums.chunks(sums.len() / shape.wave_panels).enumerate() {
            if shape.even() {
                all.extend(add(panel, index, sums));
                index = self.weights.release(index);
                continue;
            }
            let is_there = c.less(at.first + panel, self.weights.panels);
            let once = c.pick_int(is_there, 1, 0);
            let carried: Vec<Any> = sums.iter().copied().chain(index.carried()).collect();
            let made = c.for_each((0, once, 1), &carried, |_, carried| {
                let (sums, index) = carried.split_at(carried.len() - CARRIED);
                let index = PipelineIndex::of(c, index);
                let sums = add(panel, index, sums);
                sums.into_iter().chain(self.weights.release(index).carried()).collect()
            });
            let (sums, after) = made.split_at(made.len() - CARRIED);
            index = PipelineIndex::of(c, after);
            all.extend(sums.iter().copied());
        }
        all.extend(index.carried());
        all
    }
}
