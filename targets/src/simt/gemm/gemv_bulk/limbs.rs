//! `gemv_bulk_limbs`: rows as limbs, which are multiplied with the integers of a quantised weight.
//!
//! A matrix instruction has 8 columns, and few tokens leave most of them idle. Here a row is a row
//! of fixed-point numbers of 32 bits, four signed limbs of 8 bits each, and each limb is a column.
//! Four values of 4 bits become bytes by two instructions, and values of 8 bits are bytes already;
//! conversion to 16-bit numbers would take four times as many instructions. Sums of integers are
//! exact.
use atomc_ir::arch::GpuArch;
use atomc_ir::{DType, Diagnostic, Family, Graph};
use inkwell::values::FloatValue;

use super::codes::{StageCodes, StagePlace, WeightCodes};
use super::epilogue::Block;
use super::loader::limb_rows::{LimbRows, limbs_bytes};
use super::loader::rows::Staging;
use super::main_loop::{AddProducts, Products, Rows, StageAt, WorkGroup};
use super::shape::{Form, Shape};
use super::{Ground, Operands, emit, fits};
use crate::KernelSpec;
use crate::code::{Any, Int};
use crate::contraction::Encoding;
use crate::schedule::{Schedule, WhyNot};
use crate::simt::gemm::prologue::Prologue;
use crate::simt::launch;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;
use crate::tuning::Choice;

/// Most tokens: limbs of more take longer to make than the weight takes to load.
const TOKENS: usize = 4;
/// Most bytes of limbs, for the same reason.
const BYTES: usize = 64 << 10;
/// Most steps of 32 columns that are added up as integers: their sums of byte products stay below
/// 2^21.
const SPAN: usize = 4;
/// The number 1.5 * 2^23 as bits: an integer below 2^22 that is added to these bits is added to the
/// number.
const BASE: (u64, f64) = (0x4b40_0000, 12_582_912.0);

pub const SCHEDULE: Schedule = Schedule {
    name: "gemv_bulk_limbs",
    family: Family::Matvec,
    invariant: false,
    suits: |spec, arch, choice| suits(spec, launch::gpu(arch)?, choice).map(drop),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec, form, begin)),
};

/// The form for a weight of integers, or of a type with so few values that they can be integers,
/// and rows of floats.
fn form(body: &Graph) -> Result<Form, WhyNot> {
    let integers = [DType::I4, DType::U4, DType::I8, DType::U8, DType::F4E2M1];
    let (Some(encoding), Some(layout)) = (Encoding::of(body), StageCodes::of(body)) else {
        return Err(WhyNot::new("the weight is not quantised"));
    };
    let refused = |is: bool, why: &str| encoding.refuse_if(is, why);
    refused(!integers.contains(&encoding.codes), "its values are no integers")?;
    refused(layout.rows.is_some(), "rows are quantised too")?;
    refused(layout.group.is_some_and(|group| !group.is_power_of_two()), "groups are no power of two of steps")?;
    Ok(Form::Limbs(layout))
}

/// The shape of a kernel that is made this way.
pub fn suits(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, WhyNot> {
    let shape = fits(spec, arch, choice, form)?;
    WhyNot::unless(spec.tokens <= TOKENS, || format!("{} tokens: at most {TOKENS}", spec.tokens))?;
    WhyNot::unless(limbs_bytes(&shape) <= BYTES, || {
        format!("{} bytes of limbs: at most {BYTES}", limbs_bytes(&shape))
    })?;
    WhyNot::unless(shape.is_whole(), || "rows come in several K tiles".into())?;
    Prologue::of(spec.body)?;
    shape.check(arch)?;
    Ok(shape)
}

fn begin<'w, 'k, 'a, 'c>(ground: Ground<'w, 'k, 'a, 'c>) -> Result<Operands<'w, 'k, 'a, 'c>, Diagnostic> {
    let weight = WeightCodes::begin(ground)?;
    let rows = Rows::Staged(Box::new(Staging::begin(ground)?));
    let how = Integers { values: weight.codes.encoding.codes };
    let limbs = LimbRows::begin(ground, how);
    Ok(Operands { rows, products: Box::new(Limbs { weight, how, limbs }) })
}

/// A weight of integers, and rows as limbs.
struct Limbs<'w, 'k, 'a, 'c> {
    weight: WeightCodes<'w, 'c>,
    how: Integers,
    limbs: LimbRows<'w, 'k, 'a, 'c>,
}

/// How values become bytes.
#[derive(Clone, Copy, Debug)]
pub struct Integers {
    pub values: DType,
}

impl Integers {
    /// The factor from a value to its byte, and the number that the byte zero stands for.
    pub fn unit(self) -> (usize, usize) {
        match self.values {
            DType::I4 => (16, 0),
            DType::U4 => (16, 8),
            DType::U8 => (1, 128),
            DType::F4E2M1 => (4, 0),
            _ => (1, 0),
        }
    }

    /// The columns in each of the two words that four values become. With 4 bits, one word has the
    /// even columns and one the odd ones, or, where a table has their bytes, the first and the last
    /// ones.
    pub fn order(self) -> [[usize; 4]; 2] {
        match self.values {
            DType::I4 | DType::U4 => [[0, 2, 4, 6], [1, 3, 5, 7]],
            _ => [[0, 1, 2, 3], [4, 5, 6, 7]],
        }
    }

    /// A word of 4-bit values as two words of bytes.
    fn of_word<'c>(self, c: &Gpu<'c>, word: Int<'c>) -> [Int<'c>; 2] {
        let sign = if self.values == DType::U4 { 0x8080_8080 } else { 0 };
        if self.values != DType::F4E2M1 {
            return [word.shift_left(4), word].map(|word| (word & 0xf0f0_f0f0) ^ sign);
        }
        // Three bits choose a byte of the table. If the fourth bit is set, the result is the byte's
        // sign, which is zero for all bytes: so a byte that one word chooses is zero in the other.
        // A negative number is stored as its half in 7 bits, and shifted left.
        let table = |bytes: [u8; 8]| {
            let half = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
            [0, 4].map(|i| c.int(half(i) as usize))
        };
        let four_times = [0, 2, 4, 6, 8, 12, 16, 24];
        let (positive, negative) = (table(four_times), table(four_times.map(|v| (128 - v / 2) % 128)));
        let other = word ^ 0x8888_8888;
        [0, 16].map(|by| {
            let chosen =
                |[low, high]: [Int<'c>; 2], word: Int<'c>| c.choose_bytes(low, high, word.shift_right(by, false));
            chosen(positive, word) + chosen(negative, other).shift_left(1)
        })
    }

    /// The bytes of one step for the lane's two rows. `words` holds `of` steps.
    fn panel<'c>(self, c: &Gpu<'c>, words: [Int<'c>; 4], step: usize, of: usize) -> [Int<'c>; 4] {
        if of == 1 {
            let sign = if self.values == DType::U8 { 0x8080_8080 } else { 0 };
            return words.map(|word| word ^ sign);
        }
        let [low, high] = [0, 1].map(|i| self.of_word(c, words[step * 2 + i]));
        [low[0], high[0], low[1], high[1]]
    }
}

impl<'c> Products<'c> for Limbs<'_, '_, '_, 'c> {
    fn converts(&self) -> bool {
        true
    }

    fn convert(&self, _: &Gpu<'c>, rows: Int<'c>) {
        self.limbs.make(rows);
    }

    fn of_stage<'s>(&'s self, group: &'s WorkGroup<'_, '_, '_, 'c>, at: StageAt<'c>) -> AddProducts<'s, 'c> {
        let before = group.before(at);
        Box::new(move |panel, index, sums| {
            let place = StagePlace::new(group, at, before, panel, index);
            self.products(group, place, sums)
        })
    }

    fn unit(&self, _: &Gpu<'c>, token: Int<'c>) -> Option<FloatValue<'c>> {
        Some(self.limbs.unit(token))
    }

    fn store(&self, group: &WorkGroup<'_, '_, '_, 'c>, block: Block, sums: [FloatValue<'c>; 4]) {
        let sums = [0, 2].map(|row| self.limbs.joined([sums[row], sums[row + 1]]));
        let (token, is_there) = self.limbs.token(block.tile);
        group.code().when(is_there, || group.store_sums(block, token, sums));
    }
}

impl<'c> Limbs<'_, '_, '_, 'c> {
    /// The products of one stage.
    fn products(&self, group: &WorkGroup<'_, '_, '_, 'c>, place: StagePlace<'c>, sums: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, shape, layout) = (group.code(), group.shape, self.weight.layout);
        let span = layout.group.unwrap_or(SPAN).min(SPAN).min(shape.steps);
        // Blocks come in pairs.
        let unit = span.max(8 / layout.bits).min(shape.steps);
        let first = place.along * (shape.steps * 32);
        let places: Vec<Int> = self.limbs.places().into_iter().map(|place| place + first).collect();
        let run = |first: Int<'c>, sums: &[Any<'c>]| {
            let steps = Steps { place, rows: &places, span, first, count: unit };
            self.steps(group, &steps, sums)
        };
        match shape.steps / unit {
            1 => run(c.int(0), sums),
            count => c.carry((0, count, 1), sums.to_vec(), |i, sums| run(i * unit, &sums)),
        }
    }

    /// The products of some steps of a stage.
    fn steps(&self, group: &WorkGroup<'_, '_, '_, 'c>, u: &Steps<'_, 'c>, sums: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, shape, how) = (group.code(), group.shape, self.how);
        let (tiles, in_pair) = (shape.tiles(), 8 / self.weight.layout.bits);
        let word = c.cx.i32_type();
        let none = [c.as_int(word.const_int(BASE.0, false)); 4];
        let ones = [c.int(0x0101_0101); 4];
        let (mut sums, mut own) = (sums.to_vec(), vec![none; shape.pieces * tiles]);
        let is_off = self.weight.codes.encoding.zero.is_some() || how.unit().1 > 0;
        let mut columns = vec![none; tiles];
        let mut words = Vec::new();
        for step in 0..u.count {
            if step % in_pair == 0 {
                let from = u.place.base + (u.first + step) * shape.step_bytes() + c.lane_index() * VEC16;
                words = (0..shape.pieces).map(|piece| c.load_blocks(from + piece * shape.piece_bytes())).collect();
            }
            let panels: Vec<[Int; 4]> =
                words.iter().map(|&words| how.panel(c, words, step % in_pair, in_pair)).collect();
            for (tile, &place) in u.rows.iter().enumerate() {
                let x = c.load_vector(word, 2, c.at_address(place + (u.first + step) * 32), 8);
                let x = [0, 1].map(|i| c.as_int(c.lane(x, i)));
                for (piece, &panel) in panels.iter().enumerate() {
                    let own = &mut own[piece * tiles + tile];
                    *own = c.integer_blocks(panel, x, *own);
                }
                if is_off {
                    columns[tile] = c.integer_blocks(ones, x, columns[tile]);
                }
            }
            if (step + 1).is_multiple_of(u.span) {
                let number = (u.first + step) / self.weight.layout.group.unwrap_or(shape.steps);
                self.add_scaled(group, u, number, &Added { own: &own, columns: &columns }, &mut sums);
                own.fill(none);
                columns.fill(none);
            }
        }
        sums
    }

    /// Adds sums of integers, scaled, less the zero points' part of the columns.
    fn add_scaled(
        &self,
        group: &WorkGroup<'_, '_, '_, 'c>,
        u: &Steps<'_, 'c>,
        number: Int<'c>,
        added: &Added<'_, 'c>,
        sums: &mut [Any<'c>],
    ) {
        let (c, tiles) = (group.code(), group.shape.tiles());
        let float = c.cx.f32_type();
        let as_float = |bits: Int<'c>| (c.float(c.bitcast(bits, float)) - c.number(BASE.1)).v;
        let fma = |a: FloatValue<'c>, b: FloatValue<'c>, sum: FloatValue<'c>| {
            c.call("llvm.fma", &[float.into()], &[a, b, sum].map(|v| v.into())).into_float_value()
        };
        let (times, bias) = self.how.unit();
        for piece in 0..group.shape.pieces {
            let scales = self.weight.scales(c, u.place, piece, number);
            for (tile, columns) in added.columns.iter().enumerate() {
                for i in 0..4 {
                    let (row, at) = (i / 2, piece * tiles + tile);
                    let mut v = as_float(added.own[at][i]);
                    let zero = scales.zero_numbers.map(|zeros| zeros[row]);
                    if zero.is_some() || bias > 0 {
                        let zero = zero.unwrap_or(c.number(0.0));
                        let off = (c.float(c.number(bias as f64)) - zero) * c.number(times as f64);
                        v = fma(off.v, as_float(columns[i]), v);
                    }
                    let sum = &mut sums[4 * at + i];
                    *sum = match scales.scales {
                        Some(scales) => fma(scales[row], v, sum.into_float_value()).into(),
                        None => (c.float(v) + sum.into_float_value()).into(),
                    };
                }
            }
        }
    }
}

/// Some steps of a stage: the addresses of the stage and of the lane's limbs of each tile, the
/// number of steps that are added up as integers, and the steps.
struct Steps<'u, 'c> {
    place: StagePlace<'c>,
    rows: &'u [Int<'c>],
    span: usize,
    first: Int<'c>,
    count: usize,
}

/// Sums of integers: for each piece and tile, and for the columns alone of each tile.
struct Added<'u, 'c> {
    own: &'u [[Int<'c>; 4]],
    columns: &'u [[Int<'c>; 4]],
}
