//! The passes of a work-group along its panels, and the K tiles of each.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::Shape;
use super::epilogue::Block;
use super::loader::WeightPipeline;
use super::loader::copies::Copies;
use super::loader::quantised_rows::QuantisedRows;
use super::loader::rows::Staging;
use super::scheduler::{PanelRun, PipelineIndex};
use crate::code::{Any, Int, Ptr, carried};
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

/// What a pass hands on to the next one: the wave's place in its pipeline, the thread's parts of
/// the K tiles in flight, and the squares of its row.
struct Flow<'c> {
    index: PipelineIndex<'c>,
    asked: Vec<Vec<Any<'c>>>,
    squares: Option<FloatValue<'c>>,
}

carried!(Flow { index, asked, squares });

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

    /// All passes.
    pub fn all(&self, index: PipelineIndex<'c>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let mut flow = Flow { index, asked: vec![], squares: None };
        if let Some(copies) = self.copies() {
            copies.load_first();
            return self.only_pass(flow);
        }
        if let Some(staging) = self.rows.staged() {
            let load = |k_tile: usize| staging.load(c.int(k_tile % shape.k_tiles));
            flow.asked = (0..=shape.prefetched).map(load).collect::<Result<_, _>>()?;
            let first = flow.asked.remove(0);
            let squares = staging.store(c.int(0), c.int(0), &first, c.number(0.0))?;
            if shape.k_tiles == 1 {
                staging.store_squares(squares);
            }
            flow.squares = Some(squares);
        }
        c.barrier();
        if self.products.converts() {
            self.products.convert(c, self.buffer(c.int(0)));
            c.barrier();
        }
        if shape.one_pass {
            return self.only_pass(flow);
        }
        let passes = (self.run.end - self.run.begin + (shape.pass() - 1)) / shape.pass();
        c.try_carry((0, passes, 1), flow, |pass, flow| {
            let flow = self.pass(pass, flow)?;
            self.sync();
            Ok(flow)
        })
        .map(drop)
    }

    /// The copies of rows, if the machine makes them.
    fn copies(&self) -> Option<&Copies<'w, 'k, 'a, 'c>> {
        self.rows.staged()?.copies.as_ref()
    }

    /// The only pass.
    fn only_pass(&self, flow: Flow<'c>) -> Result<(), Diagnostic> {
        self.pass(self.code().int(0), flow)?;
        // A work-group must not end while another one of its cluster reads its sums.
        if self.shape.cluster > 1 {
            self.code().leave_cluster();
        }
        Ok(())
    }

    /// One pass over the columns of the weight.
    fn pass(&self, pass: Int<'c>, flow: Flow<'c>) -> Result<Flow<'c>, Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let count = shape.wave_panels * shape.pieces * shape.tiles() * 4;
        let zeros: Vec<Any> = vec![c.number(0.0).into(); count];
        let first = pass * shape.wave_panels;
        let (sums, flow) = match (shape.k_tiles, self.copies()) {
            (k_tiles, Some(copies)) => c.carry((0, k_tiles, 1), (zeros, flow), |k_tile, (sums, flow)| {
                let (sums, index) = self.k_tile((first, k_tile), copies.wait_full(k_tile), sums, flow.index);
                copies.release(k_tile);
                (sums, Flow { index, ..flow })
            }),
            (1, None) => {
                let (sums, index) = self.k_tile((first, c.int(0)), self.buffer(c.int(0)), zeros, flow.index);
                (sums, Flow { index, ..flow })
            }
            // A turn takes as many K tiles as are in flight, so that these keep their registers.
            (k_tiles, None) => c.try_carry((0, k_tiles, shape.prefetched), (zeros, flow), |k_tile, (sums, flow)| {
                (0..shape.prefetched).try_fold((sums, flow), |(sums, flow), i| {
                    let k_tile = k_tile + i;
                    let number = pass * shape.k_tiles + k_tile;
                    let rows = self.buffer(number % 2);
                    let (sums, index) = self.k_tile((first, k_tile), rows, sums, flow.index);
                    let flow = self.next(number + 1, i, Flow { index, ..flow })?;
                    c.barrier();
                    Ok::<_, Diagnostic>((sums, flow))
                })
            })?,
        };
        if let Some(squares) = flow.squares.filter(|_| shape.k_tiles > 1) {
            self.staging().store_squares(squares);
        }
        self.epilogue(pass * shape.pass(), &sums)?;
        Ok(flow)
    }

    /// Stores the next K tile, counted over all passes, which is the `i`-th in flight, and loads
    /// another.
    fn next(&self, number: Int<'c>, i: usize, mut flow: Flow<'c>) -> Result<Flow<'c>, Diagnostic> {
        let (c, shape, staging) = (self.code(), self.shape, self.staging());
        let squares = flow.squares.expect("squares of rows of floats");
        let sum = staging.store(number % shape.k_tiles, number % 2, &flow.asked[i], squares)?;
        let later = number + shape.prefetched;
        let later = if shape.one_pass { later } else { later % shape.k_tiles };
        flow.asked[i] = staging.load(later)?;
        // The first pass sees the whole row.
        let is_new = c.less(number, shape.k_tiles);
        flow.squares = Some(c.pick(is_new, sum, squares).into_float_value());
        Ok(flow)
    }

    /// Adds the products of one K tile of the wave's panels from `first` on. `rows` is the place of
    /// its rows.
    fn k_tile(
        &self,
        (first, k_tile): (Int<'c>, Int<'c>),
        rows: Int<'c>,
        sums: Vec<Any<'c>>,
        index: PipelineIndex<'c>,
    ) -> (Vec<Any<'c>>, PipelineIndex<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let count = match shape.stages_of_a_wave() {
            Some(stages) if stages.is_multiple_of(shape.k_tile) => c.int(shape.k_tile),
            _ => {
                let left = self.weights.stages - k_tile * shape.k_tile;
                c.smaller(c.larger(left, 0), shape.k_tile)
            }
        };
        c.carry((0, count, 1), (sums, index), |stage, (sums, index)| {
            let along = stage * shape.waves_k + self.weights.along;
            let rows = rows + along * (shape.steps * 4 * shape.vec16_bytes());
            self.stage(StageAt { rows, first, k_tile, along }, index, &sums)
        })
    }

    /// Adds the products of one stage of each panel of the pass.
    fn stage(
        &self,
        at: StageAt<'c>,
        mut index: PipelineIndex<'c>,
        sums: &[Any<'c>],
    ) -> (Vec<Any<'c>>, PipelineIndex<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let add = self.products.of_stage(self, at);
        let mut all = Vec::new();
        for (panel, sums) in sums.chunks(sums.len() / shape.wave_panels).enumerate() {
            let turn = |sums: &[Any<'c>], index| (add(panel, index, sums), self.weights.release(index));
            let (sums, after) = if shape.even() {
                turn(sums, index)
            } else {
                let is_there = c.less(at.first + panel, self.weights.panels);
                let once = c.pick_int(is_there, 1, 0);
                c.carry((0, once, 1), (sums.to_vec(), index), |_, (sums, index)| turn(&sums, index))
            };
            all.extend(sums);
            index = after;
        }
        (all, index)
    }
}
