//! Tensor maps, and the products that four waves make together from tiles in local memory while
//! they do other things.
//!
//! A tile consists of blocks of 8 rows by 16 bytes, each 128 consecutive bytes, or of rows of 128
//! bytes with swizzled 16-byte pieces: piece `i` of row `r` lies in place `i ^ r % 8`. The PTX
//! guide: "Asynchronous warpgroup level matrix instructions", and "Tensor-map".
use std::fmt::Write;
use std::ops::Range;

use atomc_ir::DType;
use inkwell::types::BasicType;
use inkwell::values::{BasicMetadataValueEnum, FloatValue};

use super::Gpu;
use crate::code::{Any, Int, Ptr};

/// Bytes of a tensor map.
pub const MAP: usize = 128;

/// How a tensor in global memory is copied: for each dimension, the innermost first, its elements,
/// the bytes from one to the next (none for the first), and the elements of a copy. A copy takes
/// one element of a further dimension, which has no end.
pub struct TensorMap<'m, 'c> {
    pub dtype: DType,
    pub dims: &'m [(usize, usize, usize)],
    /// The bytes from one to the next of the one more, if there is one.
    pub outer: Option<Int<'c>>,
    pub swizzled: bool,
}

/// The layout of a tile in local memory.
#[derive(Clone, Copy, Debug)]
pub enum TileForm {
    /// Blocks of 8 rows by 16 bytes; bytes from one to the next along a row, and to the next 8
    /// rows.
    Blocks { along: usize, down: usize },
    /// Rows of 128 bytes, swizzled.
    Swizzled,
    /// The right operand transposed: its columns are rows of these blocks, and its rows are
    /// adjacent in them. Bytes to the next 8 columns, and to the next 8 rows.
    Turned { along: usize, down: usize },
}

/// A tile in local memory: its address and form.
type Tile<'c> = (Int<'c>, TileForm);

/// The sums that products are added to.
enum Sums<'s, 'c> {
    Before(&'s [Any<'c>]),
    /// No earlier sums: the lane's sums, of this number, are new.
    New(usize),
}

impl TileForm {
    /// Tiles in which 16 bytes of the columns of all `rows` rows are followed by the next 16 bytes.
    pub fn of_columns(rows: usize) -> TileForm {
        TileForm::Blocks { along: rows * 16, down: 128 }
    }

    /// The tile transposed: its rows are contracted.
    pub fn of_columns_turned(rows: usize) -> TileForm {
        TileForm::Turned { along: 128, down: rows * 16 }
    }

    /// Bytes from 16 elements of two bytes to the next.
    fn step(self) -> usize {
        match self {
            TileForm::Blocks { along, .. } | TileForm::Turned { along, .. } => 2 * along,
            TileForm::Swizzled => 32,
        }
    }

    /// The instruction's flag for a tile of 2-byte elements: whether it is transposed.
    fn turned(self) -> u8 {
        u8::from(matches!(self, TileForm::Turned { .. }))
    }

    /// The descriptor's bits other than the address: offsets in units of 16 bytes.
    fn bits(self) -> u64 {
        let (along, down, swizzle) = match self {
            TileForm::Blocks { along, down } | TileForm::Turned { along, down } => (along, down, 0),
            TileForm::Swizzled => (16, 8 * 128, 1),
        };
        (along as u64 / 16) << 16 | (down as u64 / 16) << 32 | swizzle << 62
    }
}

impl<'c> Gpu<'c> {
    /// Sets the registers of each thread of the work-group's four waves from here on: more than at
    /// the launch, or fewer.
    pub fn set_registers(&self, registers: usize, more: bool) {
        let which = if more { "inc" } else { "dec" };
        self.assemble(&format!("setmaxnreg.{which}.sync.aligned.u32 {registers};"), None, "", &[]);
    }

    /// Makes a map in [`MAP`] bytes of local memory, which are zero. One lane does it.
    pub fn make_map(&self, local: Int<'c>, tensor: Ptr<'c>, map: &TensorMap<'_, 'c>) {
        let element = match map.dtype {
            dtype if dtype.size() == 1 => 0,
            DType::F16 => 6,
            DType::F32 => 7,
            DType::BF16 => 10,
            _ => panic!("no tiles of {}", map.dtype.name()),
        };
        let mut text = String::from("{ .reg .b32 n; .reg .b64 m; ");
        let mut set = |field: &str, place: &str, bits: usize, value: usize| {
            let register = if bits == 64 { "m" } else { "n" };
            let of = format!("tensormap.replace.tile.{field}.shared::cta.b1024.b{bits} [$0], {place}{register}; ");
            write!(text, "mov.b{bits} {register}, {value}; {of}").expect("into memory");
        };
        let inner = map.dims.len();
        set("rank", "", 32, inner + map.outer.iter().len() - 1);
        for (i, &(count, apart, taken)) in map.dims.iter().enumerate() {
            set("box_dim", &format!("{i}, "), 32, taken);
            set("global_dim", &format!("{i}, "), 32, count);
            set("element_stride", &format!("{i}, "), 32, 1);
            if i > 0 {
                set("global_stride", &format!("{}, ", i - 1), 64, apart);
            }
        }
        if map.outer.is_some() {
            set("box_dim", &format!("{inner}, "), 32, 1);
            set("global_dim", &format!("{inner}, "), 32, i32::MAX as usize);
            set("element_stride", &format!("{inner}, "), 32, 1);
            let stride = format!("global_stride.shared::cta.b1024.b64 [$0], {}, $2; ", inner - 1);
            write!(text, "tensormap.replace.tile.{stride}").expect("into memory");
        }
        let swizzle = if map.swizzled { 3 } else { 0 };
        for (field, value) in
            [("elemtype", element), ("interleave_layout", 0), ("swizzle_mode", swizzle), ("fill_mode", 0)]
        {
            write!(text, "tensormap.replace.tile.{field}.shared::cta.b1024.b32 [$0], {value}; ").expect("into memory");
        }
        text.push_str("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [$0], $1; }");
        let operands = if map.outer.is_some() { "r,l,l" } else { "r,l" };
        let outer = map.outer.map(|bytes| self.to_i64(bytes).into());
        let args: Vec<BasicMetadataValueEnum> = [local.into(), tensor.into()].into_iter().chain(outer).collect();
        self.assemble(&text, None, operands, &args);
    }

    /// Clears the local memory of `maps` maps. All lanes of a wave do it together, before one of
    /// them makes the maps.
    pub fn clear_maps(&self, local: Ptr<'c>, maps: usize) {
        for i in 0..maps {
            let word = self.lane_index() * 4 + i * MAP;
            self.store(self.at(local, word), self.cx.i32_type().const_zero(), 4);
        }
        self.meet_in_wave();
    }

    /// Copies a map to global memory, where copies of this wave find it. All its lanes do it
    /// together.
    pub fn place_map(&self, global: Ptr<'c>, local: Int<'c>) {
        let text = format!(
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [$0], [$1], {MAP}; \
             fence.proxy.tensormap::generic.acquire.gpu [$0], {MAP};"
        );
        self.assemble(&text, None, "l,r", &[global.into(), local.into()]);
    }

    /// This thread's copies see a map that another wave placed before the last meeting.
    pub fn see_map(&self, global: Ptr<'c>) {
        let text = format!("fence.proxy.tensormap::generic.acquire.gpu [$0], {MAP};");
        self.assemble(&text, None, "l", &[global.into()]);
    }

    /// Begins to copy a box of a tensor, from these elements on, into local memory. Elements beyond
    /// the tensor are zeros.
    pub fn copy_box(&self, to: Int<'c>, map: Ptr<'c>, first: &[Int<'c>], barrier: Int<'c>) {
        let n = first.len();
        let places: Vec<String> = (3..3 + n).map(|i| format!("${i}")).collect();
        let text = format!(
            "cp.async.bulk.tensor.{n}d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {{{}}}], [$2];",
            places.join(", ")
        );
        let args = [to.into(), map.into(), barrier.into()].into_iter().chain(first.iter().map(|&v| v.into()));
        self.assemble(&text, None, &format!("r,l,r{}", ",r".repeat(n)), &args.collect::<Vec<_>>());
    }

    /// This thread arrives at a barrier, if the condition holds.
    pub fn arrive(&self, condition: Int<'c>, barrier: Int<'c>) {
        let text = "{ .reg .pred p; setp.ne.b32 p, $0, 0; @p mbarrier.arrive.shared::cta.b64 _, [$1]; }";
        self.assemble(text, None, "r,r", &[self.word_of(condition), barrier.into()]);
    }

    /// The descriptor of the tile at an address in local memory.
    pub fn tile_at(&self, address: Int<'c>, form: TileForm) -> Int<'c> {
        let units = address % (1 << 18) / 16;
        self.to_i64(units) | form.bits() as usize
    }

    /// `sums += a * b^T` over `steps` times 32 bytes of columns, with 64 rows of `a` and twice as
    /// many of `b` as a lane has sums: these products are begun, and all that were begun before are
    /// done. Until [`Gpu::mma_wait`] nothing else may touch the sums.
    pub fn mma_async(
        &self,
        sums: &[Any<'c>],
        dtype: DType,
        operands: (Tile<'c>, Tile<'c>),
        steps: usize,
    ) -> Vec<Any<'c>> {
        self.mma_of_tiles(Sums::Before(sums), dtype, operands, steps)
    }

    /// The products into `sums` new sums of a lane.
    pub fn mma_async_new(
        &self,
        sums: usize,
        dtype: DType,
        operands: (Tile<'c>, Tile<'c>),
        steps: usize,
    ) -> Vec<Any<'c>> {
        self.mma_of_tiles(Sums::New(sums), dtype, operands, steps)
    }

    fn mma_of_tiles(
        &self,
        sums: Sums<'_, 'c>,
        dtype: DType,
        (a, b): (Tile<'c>, Tile<'c>),
        steps: usize,
    ) -> Vec<Any<'c>> {
        let (n, before) = match sums {
            Sums::Before(sums) => (sums.len(), sums),
            Sums::New(count) => (count, &[][..]),
        };
        let first = n + before.len();
        let all: Vec<String> = (0..n).map(|i| format!("${i}")).collect();
        let (all, product) = (all.join(","), product_of(dtype, 2 * n));
        // 8-bit elements lie in the machine's order, and are not transposed.
        let forms = match dtype {
            DType::I8 => String::new(),
            dtype if dtype.size() == 1 => ", 1, 1".into(),
            _ => format!(", 1, 1, {}, {}", a.1.turned(), b.1.turned()),
        };
        let mut text = format!("{{ .reg .b64 a, b; mov.b64 a, ${first}; mov.b64 b, ${}; ", first + 1);
        text.push_str("wgmma.fence.sync.aligned; ");
        for step in 0..steps {
            let adds = u8::from(step > 0 || !before.is_empty());
            write!(text, "{product} {{{all}}}, a, b, {adds}{forms}; ").expect("into memory");
            if step + 1 < steps {
                let (next_a, next_b) = (a.1.step() / 16, b.1.step() / 16);
                write!(text, "add.s64 a, a, {next_a}; add.s64 b, b, {next_b}; ").expect("into memory");
            }
        }
        text.push_str("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1; }");
        self.make_sums(&text, (n, dtype), before, &[self.tile_at(a.0, a.1), self.tile_at(b.0, b.1)])
    }

    /// As [`Gpu::mma_async`] with `a` in registers ("rs"), four words for each 16 columns, and
    /// without a wait for others: `sums + a * b^T`.
    pub fn mma_async_rs(&self, sums: &[Any<'c>], dtype: DType, a: &[Int<'c>], b: (Int<'c>, TileForm)) -> Vec<Any<'c>> {
        let n = sums.len();
        let text = products_of_words((n, 2 * n), dtype, a.len(), b.1, true);
        let words: Vec<Int<'c>> = a.iter().copied().chain([self.tile_at(b.0, b.1)]).collect();
        self.change_sums(&text, sums, &words)
    }

    /// The products into `sums` new sums of a lane.
    pub fn mma_async_rs_new(&self, sums: usize, dtype: DType, a: &[Int<'c>], b: (Int<'c>, TileForm)) -> Vec<Any<'c>> {
        let text = products_of_words((sums, sums), dtype, a.len(), b.1, false);
        let words: Vec<Int<'c>> = a.iter().copied().chain([self.tile_at(b.0, b.1)]).collect();
        self.make_sums(&text, (sums, dtype), &[], &words)
    }

    /// The initial sum of products of a type.
    pub fn zero_sum(&self, dtype: DType) -> Any<'c> {
        if dtype == DType::I8 { self.cx.i32_type().const_zero().into() } else { self.cx.f32_type().const_zero().into() }
    }

    /// Sums as f32; they may be sums of integers.
    pub fn sums_as_f32(&self, sums: Vec<Any<'c>>) -> Vec<Any<'c>> {
        let f32 = self.cx.f32_type();
        let float = |sum: Any<'c>| match sum {
            Any::IntValue(sum) => self.b.build_signed_int_to_float(sum, f32, "").expect("an integer").into(),
            sum => sum,
        };
        sums.into_iter().map(float).collect()
    }

    /// Sums, and others times a factor each.
    pub fn add_scaled(
        &self,
        sums: &[Any<'c>],
        others: &[Any<'c>],
        factor: impl Fn(usize) -> FloatValue<'c>,
    ) -> Vec<Any<'c>> {
        let one = |(i, (&sum, &other)): (usize, (&Any<'c>, &Any<'c>))| {
            let all = [other, factor(i).into(), sum].map(|v| v.into());
            self.call("llvm.fma", &[self.cx.f32_type().into()], &all)
        };
        sums.iter().zip(others).enumerate().map(one).collect()
    }

    /// Waits until all products are done, except for the `pending` that were begun last.
    pub fn mma_wait(&self, sums: &[Any<'c>], pending: usize) -> Vec<Any<'c>> {
        self.change_sums(&format!("wgmma.wait_group.sync.aligned {pending};"), sums, &[])
    }

    /// An instruction that changes sums in their registers.
    fn change_sums(&self, text: &str, sums: &[Any<'c>], words: &[Int<'c>]) -> Vec<Any<'c>> {
        let dtype = if sums.iter().any(|sum| sum.is_int_value()) { DType::I8 } else { DType::F32 };
        self.make_sums(text, (sums.len(), dtype), sums, words)
    }

    /// An instruction that makes sums of products of a type, added to earlier sums if there are
    /// any.
    fn make_sums(
        &self,
        text: &str,
        (count, dtype): (usize, DType),
        before: &[Any<'c>],
        words: &[Int<'c>],
    ) -> Vec<Any<'c>> {
        let (ty, register) = match dtype {
            DType::I8 => (self.cx.i32_type().as_basic_type_enum(), "=r"),
            _ => (self.cx.f32_type().as_basic_type_enum(), "=f"),
        };
        let result = self.cx.struct_type(&vec![ty; count], false);
        let word = |v: &Int<'c>| if v.get_type().get_bit_width() == 64 { "l".into() } else { "r".into() };
        let operands = (0..count).map(|_| register.to_owned());
        let operands = operands.chain((0..before.len()).map(|i| i.to_string())).chain(words.iter().map(word));
        let args: Vec<BasicMetadataValueEnum> =
            before.iter().map(|&v| v.into()).chain(words.iter().map(|&v| v.into())).collect();
        let made =
            self.assemble(text, Some(result.as_basic_type_enum()), &operands.collect::<Vec<_>>().join(","), &args);
        let made = made.expect("sums").into_struct_value();
        (0..count as u32).map(|i| self.b.build_extract_value(made, i, "").expect("a sum")).collect()
    }
}

/// The instruction that multiplies 32 bytes of columns with `rows` rows of the right operand.
fn product_of(dtype: DType, rows: usize) -> String {
    if dtype == DType::I8 {
        return format!("wgmma.mma_async.sync.aligned.m64n{rows}k32.s32.s8.s8");
    }
    let name = if dtype == DType::F8E4M3 { "e4m3" } else { dtype.name() };
    format!("wgmma.mma_async.sync.aligned.m64n{rows}k{}.f32.{name}.{name}", 32 / dtype.size())
}

/// Products of operands `$first` on: the words of the left operand and the tile of the right one.
/// They make `sums` sums.
fn products_of_words((sums, first): (usize, usize), dtype: DType, words: usize, form: TileForm, adds: bool) -> String {
    let list = |range: Range<usize>| range.map(|i| format!("${i}")).collect::<Vec<_>>().join(",");
    let (all, name) = (list(0..sums), dtype.name());
    let product = format!("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{name}.{name}", 2 * sums);
    // Only the low half of a tile's descriptor is an address, so steps need no carry.
    let mut text = String::from("{ .reg .b64 b; .reg .b32 low, high, next; .reg .pred p; ");
    write!(text, "mov.b64 {{low, high}}, ${}; setp.ne.b32 p, {}, 0; ", first + words, u8::from(adds))
        .expect("into memory");
    text.push_str("wgmma.fence.sync.aligned; ");
    for step in 0..words / 4 {
        let a = list(first + 4 * step..first + 4 * step + 4);
        let at = form.step() / 16 * step;
        write!(text, "add.s32 next, low, {at}; mov.b64 b, {{next, high}}; ").expect("into memory");
        write!(text, "{product} {{{all}}}, {{{a}}}, b, p, 1, 1, {}; ", form.turned()).expect("into memory");
        if step == 0 && !adds {
            text.push_str("setp.ne.b32 p, 1, 0; ");
        }
    }
    text.push_str("wgmma.commit_group.sync.aligned; }");
    text
}
