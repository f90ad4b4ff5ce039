//! Quantised weights for rows of floats: slots hold the quantised values as stored, and each lane
//! decodes those of its fragment of the left operand in registers. Two teams have a tile each, so
//! that one decodes while the other multiplies.
//!
//! A lane loads words of quantised values by `ldmatrix`. The columns in these words may be in any
//! order, as long as the rows agree: producers of rows store each vector of 8 columns at the place
//! that matches the lanes' words.
use atomc_ir::arch::GpuArch;
use atomc_ir::{DType, Layout, Op};
use inkwell::values::FloatValue;

use super::Group;
use super::scheduler::Part;
use super::shape::{PANELS, ROW, Shape};
use crate::KernelSpec;
use crate::code::codes::{Decoder, Zero};
use crate::code::{Any, Int, Ptr, Vector};
use crate::contraction::{Encoding, product_of, rows_of};
use crate::schedule::WhyNot;
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::Sizes;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::TileForm;

/// Columns of a swizzled block.
const BLOCK: usize = ROW / 2;
/// Blocks of a K tile, the best first. Products of a block run while the next one is decoded; with
/// one block there is no such overlap in a K tile.
const BLOCKS: [usize; 3] = [2, 3, 1];
/// Teams that multiply.
pub const TEAMS: usize = 2;
/// Registers of a thread that loads the weight, of one that loads rows, and of one that multiplies.
pub const REGISTERS: [usize; 3] = [40, 136, 168];
/// Most tokens for which the accumulators of upper and lower rows fit at once. With more tokens,
/// decoded numbers are scaled instead of sums, where the scales have their type.
const TOGETHER: usize = 32;
/// Panels of a wave.
const OF_WAVE: usize = PANELS / 4;
/// Bytes of a panel's 16 bytes of each row.
const RUN: usize = 16 * VEC16;

/// The layout of a quantised weight in slots.
#[derive(Clone, Copy, Debug)]
pub struct SlotCodes {
    pub encoding: Encoding,
    /// Swizzled blocks of rows in a K tile.
    pub blocks: usize,
    /// Groups of a K tile that have scales of their own.
    pub groups: usize,
    scaling: Scaling,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    /// Whole sums, in the epilogue.
    Epilogue,
    /// Sums of each K tile.
    KTile,
    /// Pairs of decoded numbers, in their type.
    Pairs,
}

impl SlotCodes {
    /// The decoding of a kernel that multiplies floats by a quantised weight.
    pub fn of(spec: &KernelSpec) -> Option<SlotCodes> {
        let body = spec.body;
        let encoding = Encoding::of(body)?;
        let (product, (_, rows)) = (product_of(body)?, rows_of(body)?);
        (rows.layout == Layout::Rows && matches!(body.op(product), Op::Linear { .. } | Op::Grouped { .. }))
            .then_some(())?;
        let sizes = Sizes::of(body).ok()?;
        let tokens = Shape::tokens_of_tile(spec, sizes.experts);
        let k_tile = SlotCodes::k_tile_of(&encoding);
        let scales_sums = tokens <= TOGETHER || !scales_are_numbers(&encoding, sizes.dtype);
        let scaling = match encoding.block.cols {
            _ if encoding.is_row_wise() => Scaling::Epilogue,
            group if group.is_multiple_of(k_tile) && scales_sums => Scaling::KTile,
            _ => Scaling::Pairs,
        };
        let groups = match scaling {
            Scaling::Pairs => (k_tile / encoding.block.cols.max(1)).max(1),
            _ => 1,
        };
        Some(SlotCodes { encoding, blocks: k_tile / BLOCK, groups, scaling })
    }

    /// Columns of a K tile: blocks that divide the rows of the weight into whole K tiles. K tiles
    /// of three blocks have whole groups.
    fn k_tile_of(encoding: &Encoding) -> usize {
        let (group, [_, depth]) = (encoding.block.cols, encoding.size);
        let has_groups = |blocks: usize| blocks < 3 || encoding.is_row_wise() || BLOCK.is_multiple_of(group);
        let fits = |&blocks: &usize| depth.is_multiple_of(blocks * BLOCK) && has_groups(blocks);
        BLOCKS.into_iter().find(fits).unwrap_or(BLOCKS[0]) * BLOCK
    }

    /// Columns of a K tile.
    pub fn k_tile(&self) -> usize {
        self.blocks * BLOCK
    }

    /// Refuses a weight that is not decoded this way.
    pub fn check(encoding: &Encoding, dtype: DType, arch: GpuArch) -> Result<(), WhyNot> {
        let refused = |is: bool, why: &str| encoding.refuse_if(is, why);
        let (group, [rows, _], k_tile) = (encoding.block.cols, encoding.size, SlotCodes::k_tile_of(encoding));
        refused(!Decoder::new(arch.arch(), encoding.codes, dtype).makes_pairs(), "values are not decoded in pairs")?;
        if encoding.is_row_wise() {
            return refused(encoding.zero.is_some(), "zero points of whole rows");
        }
        refused(encoding.least.is_some(), "least numbers of groups")?;
        refused(encoding.block.rows > 1, "rows that share a scale")?;
        refused(encoding.zero.is_some() && !rows.is_multiple_of(16), "zero points of part of a panel")?;
        if group.is_multiple_of(k_tile) {
            return Ok(());
        }
        let run = VEC16 * 8 / encoding.codes.bits();
        let whole = k_tile.is_multiple_of(group) && group.is_multiple_of(run);
        refused(!whole, &format!("{run} columns would have several scales"))?;
        refused(!scales_are_numbers(encoding, dtype), &format!("scales are no numbers of {}", dtype.name()))
    }

    /// Whether decoded numbers are scaled, and not sums.
    pub fn scales_numbers(&self) -> bool {
        self.scaling == Scaling::Pairs
    }

    /// Bytes of a panel's values in a slot.
    pub fn chunk(&self) -> usize {
        self.encoding.codes.bytes(16 * self.k_tile())
    }

    /// Bytes of a panel's scales and zero points in a slot.
    pub fn scale_bytes(&self) -> usize {
        let [scale, zero] = self.of_group();
        if self.scaling == Scaling::Epilogue { 0 } else { self.groups * (scale + zero) }
    }

    /// The bytes of the scales and zero points of a group.
    fn of_group(&self) -> [usize; 2] {
        [16 * self.encoding.scale.size(), self.encoding.zero.map_or(0, |zero| 16 * zero.size())]
    }

    /// The first group of a K tile.
    pub fn first_group<'c>(&self, k_tile: Int<'c>) -> Int<'c> {
        let (group, columns) = (self.encoding.block.cols, self.k_tile());
        if group > columns { k_tile / (group / columns) } else { k_tile * (columns / group) }
    }

    /// The decoder of values into a type.
    fn decoder(&self, c: &Gpu<'_>, dtype: DType) -> Decoder {
        Decoder::new(c.arch, self.encoding.codes, dtype).with_pairs_apart()
    }

    /// Runs of 16 bytes of each row in a block of columns.
    fn runs(&self) -> usize {
        self.encoding.codes.bytes(BLOCK) / VEC16
    }
}

/// Whether each scale is a number of a type.
fn scales_are_numbers(encoding: &Encoding, dtype: DType) -> bool {
    encoding.scale == dtype || encoding.scale == DType::E8M0 && dtype == DType::BF16
}

/// Words of the left operand of a stage, of each of its parts: four for each 16 columns.
type Fragments<'c> = Vec<Vec<Int<'c>>>;

/// Words of a part.
const WORDS: usize = BLOCK / 16 * 4;

impl<'c> Group<'_, '_, '_, 'c> {
    /// The sums of a part of a tile: those of upper rows, then those of lower ones.
    ///
    /// A stage is a block of a K tile, or half of its rows. The left operand of the next stage is
    /// decoded while the products of this stage run. The assembler serialises products if their
    /// operands are made after the first product of their stage.
    pub(super) fn codes_main_loop(&self, part: Part<'c>, layout: SlotCodes) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let decoder = layout.decoder(c, self.contraction.matrix.dtype);
        let is_new = layout.scaling == Scaling::KTile;
        let by_rows = is_new && shape.columns > TOGETHER;
        let products = CodeProducts { group: self, layout, decoder, by_rows };
        let is_first = c.equal(c.lane_index(), 0);
        let zero = vec![c.zero_sum(DType::F32); shape.sums()];
        self.weights.wait_full(c, part.first);
        let begin = (zero, products.stage(part.first, 0));
        let (sums, _) = c.carry((part.first, part.end, 1), begin, |index, (sums, first)| {
            self.rows.wait_full(c, index);
            let after = match (is_new, by_rows) {
                (_, true) => products.products_by_rows((part, index), &first, &sums),
                (true, _) => products.scaled_products((part, index), &first, &sums),
                (false, _) => products.products((part, index), &first, &sums),
            };
            c.meet_in_wave();
            self.weights.release(c, is_first, index);
            self.rows.release(c, is_first, index);
            after
        });
        sums
    }

    /// Stores a vector of 8 columns of a row so that it matches the lanes' words: pair `i` of a
    /// lane in the `i`-th vector of 16 bytes of a block, at the lane's place.
    pub(super) fn store_for_codes(
        &self,
        layout: SlotCodes,
        stage: Int<'c>,
        (token, vec16): (Int<'c>, Int<'c>),
        bits: Vector<'c>,
    ) {
        let (c, vec16s) = (self.code(), BLOCK * 2 / VEC16);
        let words = c.bitcast(bits, c.cx.i32_type().vec_type(4)).into_vector_value();
        let words: Vec<Int> = (0..4).map(|i| c.as_int(c.lane(words, i))).collect();
        let words = layout.decoder(c, self.contraction.matrix.dtype).ordered(c, words);
        let row = stage + vec16 / vec16s * (self.shape.columns * ROW) + token * ROW;
        let place = vec16 % vec16s;
        let put = |number: Int<'c>, bytes: Int<'c>, words: &[Int<'c>]| {
            let at = row + (number ^ (token % 8)) * VEC16 + bytes;
            c.store(self.local(at), c.words(words), 4 * words.len() as u32);
        };
        if layout.encoding.codes.bits() == 4 {
            // A vector is a lane's word of a run.
            let (run, lane) = (place / 4, place % 4);
            words.iter().enumerate().for_each(|(i, &word)| put(run * 4 + i, lane * 4, &[word]));
        } else {
            // A vector is two lanes' words of a run.
            let (run, lane) = (place / 2, place % 2 * 2);
            (0..2).for_each(|i| put(run * 2 + i, lane * 4, &[words[i], words[i + 2]]));
        }
    }
}

/// A part of a tile, and the pipeline's index of a K tile of it.
type At<'c> = (Part<'c>, Int<'c>);

/// The upper or lower rows of a block of columns: the pipeline's index of a K tile, the block, and
/// 1 for the lower ones.
type Half<'c> = (Int<'c>, usize, usize);

/// Reads the wave's part of a slot, decodes it, and multiplies it with its rows.
struct CodeProducts<'r, 'g, 'k, 'a, 'c> {
    group: &'r Group<'g, 'k, 'a, 'c>,
    layout: SlotCodes,
    decoder: Decoder,
    /// Whether a stage is upper or lower rows of both blocks, and not a block of both.
    by_rows: bool,
}

impl<'c> CodeProducts<'_, '_, '_, '_, 'c> {
    /// Adds the products of a K tile. Its first stage is decoded already. A stage is a block of
    /// columns.
    fn products(&self, at: At<'c>, first: &Fragments<'c>, sums: &[Any<'c>]) -> (Vec<Any<'c>>, Fragments<'c>) {
        let (c, half) = (self.group.code(), self.group.shape.columns / 2);
        let of = |block: usize, a: &Fragments<'c>, sums: &[Any<'c>]| -> Vec<Any<'c>> {
            let sums = |i: usize| if sums.is_empty() { sums } else { &sums[i * half..][..half] };
            [0, 1].map(|i| self.begin(at.1, block, &a[i], sums(i))).concat()
        };
        let own = (1..self.layout.blocks).fold(of(0, first, sums), |own, block| {
            let a = self.stage(at.1, block);
            of(block, &a, &c.mma_wait(&own, 0))
        });
        if self.layout.blocks == 1 {
            // The products would take the operands of the next stage, which the assembler would
            // serialise.
            let own = c.mma_wait(&own, 0);
            return (own, self.next_stage(at));
        }
        let next = self.next_stage(at);
        (c.mma_wait(&own, 0), next)
    }

    /// The products where sums of the K tile are scaled.
    fn scaled_products(&self, at: At<'c>, first: &Fragments<'c>, sums: &[Any<'c>]) -> (Vec<Any<'c>>, Fragments<'c>) {
        let (own, next) = self.products(at, first, &[]);
        let (upper, lower) = own.split_at(own.len() / 2);
        ([self.add_scaled(at.1, 0, sums, upper), self.add_scaled(at.1, 1, sums, lower)].concat(), next)
    }

    /// The products where a stage is upper or lower rows, so that fewer sums of a K tile are held
    /// at once.
    fn products_by_rows(&self, at: At<'c>, first: &Fragments<'c>, sums: &[Any<'c>]) -> (Vec<Any<'c>>, Fragments<'c>) {
        let c = self.group.code();
        let of = |a: &Fragments<'c>| {
            a.iter().enumerate().fold(vec![], |own: Vec<Any<'c>>, (block, a)| self.begin(at.1, block, a, &own))
        };
        let upper = of(first);
        let second = self.stage(at.1, 1);
        let upper = c.mma_wait(&upper, 0);
        let lower = of(&second);
        let upper = self.add_scaled(at.1, 0, sums, &upper);
        let next = self.next_stage(at);
        let lower = self.add_scaled(at.1, 1, sums, &c.mma_wait(&lower, 0));
        ([upper, lower].concat(), next)
    }

    /// Begins the products of a block of columns with upper or lower rows, added to sums if there
    /// are any.
    fn begin(&self, index: Int<'c>, block: usize, a: &[Int<'c>], sums: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, group) = (self.group.code(), self.group);
        let (columns, dtype) = (group.shape.columns, group.contraction.matrix.dtype);
        let rows = (group.rows.at(index) + block * (columns * ROW), TileForm::Swizzled);
        match sums.is_empty() {
            true => c.mma_async_rs_new(columns / 2, dtype, a, rows),
            false => c.mma_async_rs(sums, dtype, a, rows),
        }
    }

    /// The first stage of the next K tile.
    fn next_stage(&self, (part, index): At<'c>) -> Fragments<'c> {
        let c = self.group.code();
        let next = c.smaller(index + 1, part.end - 1);
        self.group.weights.wait_full(c, next);
        self.stage(next, 0)
    }

    /// Adds a K tile's scaled sums to all sums, for upper or lower rows: of two tokens those of the
    /// first panel, then those of the second.
    fn add_scaled(&self, index: Int<'c>, half: usize, sums: &[Any<'c>], own: &[Any<'c>]) -> Vec<Any<'c>> {
        let (scales, _) = self.scales((index, 0, half));
        self.group.code().add_scaled(&sums[half * own.len()..][..own.len()], own, |i| scales[i % 4 / 2])
    }

    /// A slot, and the number of the wave's first panel in it.
    fn place(&self, index: Int<'c>) -> (Int<'c>, Int<'c>) {
        let group = self.group;
        (group.weights.at(index), group.team() * PANELS + group.wave() * OF_WAVE)
    }

    /// The left operand of a stage of a K tile.
    fn stage(&self, index: Int<'c>, stage: usize) -> Fragments<'c> {
        let halves: Vec<Half<'c>> = match self.by_rows {
            true => (0..self.layout.blocks).map(|block| (index, block, stage)).collect(),
            false => (0..2).map(|half| (index, stage, half)).collect(),
        };
        let words: Vec<Vec<Int<'c>>> = halves.iter().map(|&half| self.words(half)).collect();
        let whole = || halves.iter().zip(&words).map(|(&half, words)| self.half(half, words)).collect();
        match &self.group.codes {
            Some(codes) if self.layout.scaling == Scaling::Pairs && self.decoder.takes_exponents() => {
                self.by_exponents(codes, &halves, &words, whole)
            }
            _ => whole(),
        }
    }

    /// A stage for which the scale's exponent is added to the exponents of numbers, unless one of
    /// the wave's scales is too large for that: then it is made as by `whole`.
    fn by_exponents(
        &self,
        codes: &Codes<'c>,
        halves: &[Half<'c>],
        words: &[Vec<Int<'c>>],
        whole: impl FnOnce() -> Fragments<'c>,
    ) -> Fragments<'c> {
        let c = self.group.code();
        let places = halves.iter().flat_map(|&half| self.places(half, 0, self.layout.of_group()[0]));
        let bytes: Vec<Int<'c>> = places.map(|p| codes.scale_byte_at(c, p)).collect();
        let of_half = |(words, bytes): (&Vec<Int<'c>>, &[Int<'c>])| {
            let factors: Vec<Int<'c>> = bytes.iter().map(|&byte| self.decoder.factor_of(byte)).collect();
            self.of_runs(words, |word, group| self.decoder.times_factor(c, word, factors[group]))
        };
        let made: Fragments<'c> = words.iter().zip(bytes.chunks(bytes.len() / halves.len())).map(of_half).collect();
        let is_large = c.any_vote(self.decoder.has_no_factor(c, &bytes));
        c.carry_if(is_large, made, |_| whole())
    }

    /// The upper or lower rows of a block of columns.
    fn half(&self, half: Half<'c>, words: &[Int<'c>]) -> Vec<Int<'c>> {
        let c = self.group.code();
        let (scales, zeros) = self.scales(half);
        self.of_runs(words, |word, group| {
            let numbers = self.decoder.decode(c, &[word], zeros.get(group).copied());
            match self.layout.scaling {
                Scaling::Pairs => self.decoder.scaled(c, &numbers, scales[group]),
                _ => numbers,
            }
        })
    }

    /// The left operand of half a block. `numbers` decodes each word of the wave's panels, given
    /// the number of its group.
    fn of_runs(&self, words: &[Int<'c>], numbers: impl Fn(Int<'c>, usize) -> Vec<Int<'c>>) -> Vec<Int<'c>> {
        let (runs, groups) = (self.layout.runs(), self.groups_of_block());
        let of_panel = |panel: usize| -> Vec<Int<'c>> {
            let of_run = |(run, &word): (usize, &Int<'c>)| numbers(word, panel * groups + run * groups / runs);
            words[panel * runs..][..runs].iter().enumerate().flat_map(of_run).collect()
        };
        let panels: Vec<Vec<Int>> = (0..OF_WAVE).map(of_panel).collect();
        (0..2 * WORDS / 4).flat_map(|pair| [panels[0][pair], panels[1][pair]]).collect()
    }

    /// A word of each run of 16 bytes of each of the wave's panels. Each load takes four runs.
    fn words(&self, (index, block, half): Half<'c>) -> Vec<Int<'c>> {
        let c = self.group.code();
        let (lane, (slot, panel)) = (c.lane_index(), self.place(index));
        let (runs, chunk) = (self.layout.runs(), self.layout.chunk());
        let load = |first: usize| {
            let number = lane / 8 + first;
            let at = (panel + number / runs) * chunk + (number % runs + block * runs) * RUN;
            c.load_blocks(slot + at + (lane % 8 + 8 * half) * VEC16)
        };
        (0..OF_WAVE * runs).step_by(4).flat_map(load).collect()
    }

    /// Groups of a block that have scales.
    fn groups_of_block(&self) -> usize {
        (self.layout.groups / self.layout.blocks).max(1)
    }

    /// For each of the wave's panels, the scales and zero points of the lane's row for the groups
    /// of a block, if they come with slots.
    fn scales(&self, at: Half<'c>) -> (Vec<FloatValue<'c>>, Vec<Zero<'c>>) {
        let (c, layout) = (self.group.code(), self.layout);
        let Some(codes) = self.group.codes.as_ref().filter(|_| layout.scale_bytes() > 0) else {
            return (vec![], vec![]);
        };
        let [scale, zero] = layout.of_group();
        let scales = self.places(at, 0, scale).into_iter().map(|p| codes.scale_at(c, p)).collect();
        let zeros = if zero > 0 { self.places(at, layout.groups * scale, zero) } else { vec![] };
        (scales, zeros.into_iter().filter_map(|p| codes.zero_at(c, &self.decoder, p)).collect())
    }

    /// The addresses of the lane's scales or zero points in a slot, for each of the wave's panels
    /// and each group of a block. Those of a group take `bytes` bytes; the first ones lie `first`
    /// bytes into the panel's.
    fn places(&self, (index, block, half): Half<'c>, first: usize, bytes: usize) -> Vec<Ptr<'c>> {
        let (group, layout) = (self.group, self.layout);
        let (c, groups) = (group.code(), self.groups_of_block());
        let (slot, panel) = self.place(index);
        let base = slot + group.shape.slot_panels() * layout.chunk();
        let row = c.lane_index() / 4 + 8 * half;
        let of_block = if layout.groups > 1 { block * groups } else { 0 };
        let place = |(i, group): (usize, usize)| {
            let own = base + (panel + i) * layout.scale_bytes();
            c.at_address(own + row * (bytes / 16) + (first + (of_block + group) * bytes))
        };
        (0..OF_WAVE).flat_map(|i| (0..groups).map(move |group| (i, group))).map(place).collect()
    }
}
