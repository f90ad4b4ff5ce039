//! Quantised weights for rows of floats: slots hold the quantised values as they lie, and each lane
//! decodes those of its fragment of the left operand in registers. Two teams have a tile each, so
//! that one decodes while the other multiplies.
//!
//! A lane loads words of quantised values by `ldmatrix`. Which columns of the K tile these are is
//! free, as long as the rows agree: producers of rows store each vector of 8 columns where the
//! lanes' words want them.
use atomc_ir::arch::GpuArch;
use atomc_ir::{DType, Graph, Layout, Op};
use inkwell::values::FloatValue;

use super::Group;
use super::scheduler::Part;
use super::shape::{PANELS, ROW};
use crate::code::codes::{Decoder, Zero};
use crate::code::{Any, Int, Ptr, Vector};
use crate::contraction::Encoding;
use crate::schedule::WhyNot;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::TileForm;

/// Columns of a swizzled block.
const BLOCK: usize = ROW / 2;
/// Most blocks of a K tile.
const BLOCKS: usize = 2;
/// Teams that multiply.
pub const TEAMS: usize = 2;
/// Registers of a thread that asks for the weight, of one that brings rows, and of one that
/// multiplies.
pub const REGISTERS: [usize; 3] = [40, 136, 168];
/// Most tokens whose sums of a K tile are there for upper and lower rows at once.
const TOGETHER: usize = 32;
/// Panels of a wave.
const OF_WAVE: usize = PANELS / 4;
/// Bytes of a panel's 16 bytes of each row.
const RUN: usize = 16 * VEC16;

/// How a quantised weight lies in slots.
#[derive(Clone, Copy, Debug)]
pub struct Decoded {
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

impl Decoded {
    /// That of a body whose rows are floats and whose weight is quantised.
    pub fn of(body: &Graph) -> Option<Decoded> {
        let encoding = Encoding::of(body)?;
        let product = body.ids().find(|&id| body.op(id).is_contraction())?;
        let rows = body.ty(body.operands(product)[0]).as_tensor()?;
        (rows.layout == Layout::Rows && matches!(body.op(product), Op::Linear { .. } | Op::Grouped { .. }))
            .then_some(())?;
        let k_tile = Decoded::k_tile_of(&encoding);
        let scaling = match encoding.block.cols {
            _ if encoding.is_row_wise() => Scaling::Epilogue,
            group if group.is_multiple_of(k_tile) => Scaling::KTile,
            _ => Scaling::Pairs,
        };
        let groups = match scaling {
            Scaling::Pairs => k_tile / encoding.block.cols.max(1),
            _ => 1,
        };
        Some(Decoded { encoding, blocks: k_tile / BLOCK, groups, scaling })
    }

    /// Columns of a K tile: as many blocks as rows of the weight are whole K tiles of.
    fn k_tile_of(encoding: &Encoding) -> usize {
        let whole = |blocks: &usize| encoding.size[1].is_multiple_of(blocks * BLOCK);
        (1..=BLOCKS).rev().find(whole).unwrap_or(BLOCKS) * BLOCK
    }

    /// Columns of a K tile.
    pub fn k_tile(&self) -> usize {
        self.blocks * BLOCK
    }

    /// Why a weight is not decoded this way, if it is not.
    pub fn check(encoding: &Encoding, dtype: DType, arch: GpuArch) -> Result<(), WhyNot> {
        let refused = |is: bool, why: &str| if is { Err(encoding.refused(why)) } else { Ok(()) };
        let (group, [rows, _], k_tile) = (encoding.block.cols, encoding.size, Decoded::k_tile_of(encoding));
        refused(!Decoder::new(arch.arch(), encoding.codes, dtype).makes_pairs(), "values are not decoded in pairs")?;
        if encoding.is_row_wise() {
            return refused(encoding.zero.is_some(), "zero points of whole rows");
        }
        refused(encoding.block.rows > 1, "rows that share a scale")?;
        refused(encoding.zero.is_some() && !rows.is_multiple_of(16), "zero points of part of a panel")?;
        if group.is_multiple_of(k_tile) {
            return Ok(());
        }
        let run = VEC16 * 8 / encoding.codes.bits();
        let whole = k_tile.is_multiple_of(group) && group.is_multiple_of(run);
        refused(!whole, &format!("{run} columns would have several scales"))?;
        let exact = encoding.scale == dtype || encoding.scale == DType::E8M0 && dtype == DType::BF16;
        refused(!exact, &format!("scales are no numbers of {}", dtype.name()))
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

    /// Those of a group.
    fn of_group(&self) -> [usize; 2] {
        [16 * self.encoding.scale.size(), self.encoding.zero.map_or(0, |zero| 16 * zero.size())]
    }

    /// The first group of a K tile.
    pub fn first_group<'c>(&self, k_tile: Int<'c>) -> Int<'c> {
        let (group, columns) = (self.encoding.block.cols, self.k_tile());
        if group > columns { k_tile / (group / columns) } else { k_tile * (columns / group) }
    }

    /// What decodes values into a type.
    fn decoder(&self, c: &Gpu<'_>, dtype: DType) -> Decoder {
        Decoder::new(c.arch, self.encoding.codes, dtype).with_pairs_apart()
    }

    /// Runs of 16 bytes of each row in a block of columns.
    fn runs(&self) -> usize {
        self.encoding.codes.bytes(BLOCK) / VEC16
    }
}

/// Words of the left operand of a stage, of each of its parts: four for each 16 columns.
type Fragments<'c> = Vec<Vec<Int<'c>>>;

/// Words of a part.
const WORDS: usize = BLOCK / 16 * 4;

impl<'c> Group<'_, '_, '_, 'c> {
    /// The sums of a part of a tile: those of upper rows, then those of lower ones.
    ///
    /// A stage is a block of a K tile, or half of its rows. The left operand of the next stage is
    /// decoded while the products of one are under way. The assembler serialises products whose
    /// operands are made after the first product of their stage.
    pub(super) fn decoded_main_loop(&self, part: Part<'c>, decoded: Decoded) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let decoder = decoded.decoder(c, self.contraction.matrix.dtype);
        let is_new = decoded.scaling == Scaling::KTile;
        let by_rows = is_new && shape.columns > TOGETHER;
        let products = DecodedProducts { group: self, decoded, decoder, by_rows };
        let is_first = c.equal(c.lane_index(), 0);
        let count = shape.sums();
        let zero = vec![c.zero_sum(DType::F32); count];
        self.weights.wait_full(c, part.first);
        let begin = zero.into_iter().chain(carried(&products.stage(part.first, 0))).collect::<Vec<_>>();
        let all = c.for_each((part.first, part.end, 1), &begin, |index, all| {
            let (sums, first) = all.split_at(count);
            let first: Vec<Int> = first.iter().map(|&word| c.as_int(word)).collect();
            let first: Fragments = first.chunks(WORDS).map(<[Int]>::to_vec).collect();
            self.rows.wait_full(c, index);
            let (sums, next) = match (is_new, by_rows) {
                (_, true) => products.products_by_rows((part, index), &first, sums),
                (true, _) => products.scaled_products((part, index), &first, sums),
                (false, _) => products.products((part, index), &first, sums),
            };
            c.meet_in_wave();
            self.weights.release(c, is_first, index);
            self.rows.release(c, is_first, index);
            sums.into_iter().chain(carried(&next)).collect()
        });
        all[..count].to_vec()
    }

    /// Stores a vector of 8 columns of a row where the lanes' words want them: pair `i` of a lane's
    /// in the `i`-th vector of 16 bytes of a block, at the lane's place.
    pub(super) fn store_for_decoded(
        &self,
        decoded: Decoded,
        stage: Int<'c>,
        (token, vec16): (Int<'c>, Int<'c>),
        bits: Vector<'c>,
    ) {
        let (c, vec16s) = (self.code(), BLOCK * 2 / VEC16);
        let words = c.bitcast(bits, c.cx.i32_type().vec_type(4)).into_vector_value();
        let words: Vec<Int> = (0..4).map(|i| c.as_int(c.lane(words, i))).collect();
        let words = decoded.decoder(c, self.contraction.matrix.dtype).ordered(c, words);
        let row = stage + vec16 / vec16s * (self.shape.columns * ROW) + token * ROW;
        let place = vec16 % vec16s;
        let put = |number: Int<'c>, bytes: Int<'c>, words: &[Int<'c>]| {
            let at = row + (number ^ (token % 8)) * VEC16 + bytes;
            c.store(self.local(at), c.words(words), 4 * words.len() as u32);
        };
        if decoded.encoding.codes.bits() == 4 {
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

/// Words as a loop carries them.
fn carried<'c>(fragments: &Fragments<'c>) -> Vec<Any<'c>> {
    fragments.iter().flatten().map(|word| Any::from(word.v)).collect()
}

/// Reads the wave's part of a slot, decodes it, and multiplies it with its rows.
struct DecodedProducts<'r, 'g, 'k, 'a, 'c> {
    group: &'r Group<'g, 'k, 'a, 'c>,
    decoded: Decoded,
    decoder: Decoder,
    /// Whether a stage is upper or lower rows of both blocks, and not a block of both.
    by_rows: bool,
}

impl<'c> DecodedProducts<'_, '_, '_, '_, 'c> {
    /// Adds the products of a K tile, of which the first stage is decoded. A stage is a block of
    /// columns.
    fn products(&self, at: At<'c>, first: &Fragments<'c>, sums: &[Any<'c>]) -> (Vec<Any<'c>>, Fragments<'c>) {
        let (c, half) = (self.group.code(), self.group.shape.columns / 2);
        let of = |block: usize, a: &Fragments<'c>, sums: &[Any<'c>]| -> Vec<Any<'c>> {
            let sums = |i: usize| if sums.is_empty() { sums } else { &sums[i * half..][..half] };
            [0, 1].map(|i| self.begin(at.1, block, &a[i], sums(i))).concat()
        };
        let own = (1..self.decoded.blocks).fold(of(0, first, sums), |own, block| {
            let a = self.stage(at.1, block);
            of(block, &a, &c.mma_wait(&own, 0))
        });
        if self.decoded.blocks == 1 {
            // Its operands would be those of the stage behind it, which the assembler serialises.
            let own = c.mma_wait(&own, 0);
            return (own, self.next_stage(at));
        }
        let next = self.next_stage(at);
        (c.mma_wait(&own, 0), next)
    }

    /// The same where sums of the K tile are scaled.
    fn scaled_products(&self, at: At<'c>, first: &Fragments<'c>, sums: &[Any<'c>]) -> (Vec<Any<'c>>, Fragments<'c>) {
        let (own, next) = self.products(at, first, &[]);
        let (upper, lower) = own.split_at(own.len() / 2);
        ([self.add_scaled(at.1, 0, sums, upper), self.add_scaled(at.1, 1, sums, lower)].concat(), next)
    }

    /// The same where a stage is upper or lower rows, so that fewer sums of a K tile are there at
    /// once.
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

    /// The first stage of the K tile behind one.
    fn next_stage(&self, (part, index): At<'c>) -> Fragments<'c> {
        let c = self.group.code();
        let next = c.smaller(index + 1, part.end - 1);
        self.group.weights.wait_full(c, next);
        self.stage(next, 0)
    }

    /// All sums' upper or lower rows, and those of a K tile, scaled: of two tokens those of the
    /// first panel, then those of the second.
    fn add_scaled(&self, index: Int<'c>, half: usize, sums: &[Any<'c>], own: &[Any<'c>]) -> Vec<Any<'c>> {
        let (scales, _) = self.scales(index, 0, half);
        self.group.code().add_scaled(&sums[half * own.len()..][..own.len()], own, |i| scales[i % 4 / 2])
    }

    /// A slot, and the number of the wave's first panel in it.
    fn place(&self, index: Int<'c>) -> (Int<'c>, Int<'c>) {
        let group = self.group;
        (group.weights.at(index), group.team() * PANELS + group.wave() * OF_WAVE)
    }

    /// The left operand of a stage of a K tile.
    fn stage(&self, index: Int<'c>, stage: usize) -> Fragments<'c> {
        match self.by_rows {
            true => (0..self.decoded.blocks).map(|block| self.half(index, block, stage)).collect(),
            false => (0..2).map(|half| self.half(index, stage, half)).collect(),
        }
    }

    /// The upper or lower rows of a block of columns.
    fn half(&self, index: Int<'c>, block: usize, half: usize) -> Vec<Int<'c>> {
        let (c, runs) = (self.group.code(), self.decoded.runs());
        let words = self.words(index, block, half);
        let (scales, zeros) = self.scales(index, block, half);
        let of_panel = |panel: usize| -> Vec<Int<'c>> {
            let of_run = |(run, &word): (usize, &Int<'c>)| {
                let groups = self.groups_of_block();
                let group = panel * groups + run * groups / runs;
                let numbers = self.decoder.decode(c, &[word], zeros.get(group).copied());
                match self.decoded.scaling {
                    Scaling::Pairs => self.decoder.scaled(c, &numbers, scales[group]),
                    _ => numbers,
                }
            };
            words[panel * runs..][..runs].iter().enumerate().flat_map(of_run).collect()
        };
        let panels: Vec<Vec<Int>> = (0..OF_WAVE).map(of_panel).collect();
        (0..2 * WORDS / 4).flat_map(|pair| [panels[0][pair], panels[1][pair]]).collect()
    }

    /// A word of each run of 16 bytes of each of the wave's panels. Each load takes four runs.
    fn words(&self, index: Int<'c>, block: usize, half: usize) -> Vec<Int<'c>> {
        let c = self.group.code();
        let (lane, (slot, panel)) = (c.lane_index(), self.place(index));
        let (runs, chunk) = (self.decoded.runs(), self.decoded.chunk());
        let load = |first: usize| {
            let number = lane / 8 + first;
            let at = (panel + number / runs) * chunk + (number % runs + block * runs) * RUN;
            c.load_blocks(slot + at + (lane % 8 + 8 * half) * VEC16)
        };
        (0..OF_WAVE * runs).step_by(4).flat_map(load).collect()
    }

    /// Groups of a block that have scales.
    fn groups_of_block(&self) -> usize {
        (self.decoded.groups / self.decoded.blocks).max(1)
    }

    /// Of each of the wave's panels, the lane's row's scales and zero points for the groups of a
    /// block, if they come with slots.
    fn scales(&self, index: Int<'c>, block: usize, half: usize) -> (Vec<FloatValue<'c>>, Vec<Zero<'c>>) {
        let (group, decoded) = (self.group, self.decoded);
        let (c, of_panel) = (group.code(), decoded.scale_bytes());
        let Some(codes) = group.codes.as_ref().filter(|_| of_panel > 0) else { return (vec![], vec![]) };
        let (slot, panel) = self.place(index);
        let base = slot + group.shape.slot_panels() * decoded.chunk();
        let row = c.lane_index() / 4 + 8 * half;
        let [scale, zero] = decoded.of_group();
        let first = if decoded.groups > 1 { block * self.groups_of_block() } else { 0 };
        let places = (0..OF_WAVE).flat_map(|i| (0..self.groups_of_block()).map(move |group| (i, first + group)));
        let (mut scales, mut zeros) = (vec![], vec![]);
        for (i, group) in places {
            let own = base + (panel + i) * of_panel;
            let at = |first: usize, bytes: usize| -> Ptr<'c> {
                c.at_address(own + row * (bytes / 16) + (first + group * bytes))
            };
            scales.push(codes.scale_at(c, at(0, scale)));
            if zero > 0 {
                zeros.extend(codes.zero_at(c, &self.decoder, at(decoded.groups * scale, zero)));
            }
        }
        (scales, zeros)
    }
}
