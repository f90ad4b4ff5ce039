//! Facts about one chip that passes and emitters read. The rows live in `targets`.
use std::ops::Deref;

use crate::layout::Groups;
use crate::types::{DType, Layout, TensorType};

/// One row of the target table.
#[derive(Clone, Debug, PartialEq)]
pub struct Arch {
    /// `x86-64-v4-amx`, later `gfx942`, …
    pub name: &'static str,
    /// The target it is a variant of: `host`, or the name itself.
    pub target: &'static str,
    /// Where the facts in this row come from.
    pub source: &'static str,
    /// LLVM's target triple.
    pub triple: &'static str,
    /// LLVM's `-mcpu` and `-mattr`.
    pub cpu: &'static str,
    /// LLVM's `-mattr`.
    pub attributes: &'static str,
    /// What a device must report for code of this row to run on it.
    pub features: &'static [&'static str],
    /// The row that this one differs from in numbers or in few instructions only, if there is one:
    /// tests run whole models on this row, and each kernel on that one alone, unless they are asked
    /// for all.
    pub sibling: Option<&'static str>,
    /// Whether tests run kernels of this row, here, in the emulator or on a GPU (`tests/gpu.sh`):
    /// otherwise they are compiled and disassembled only.
    pub executed: bool,
    /// The processor.
    pub machine: Machine,
    /// How data lies.
    pub memory: Memory,
    /// Which rows are quantised where they are multiplied. The same for all variants of a target.
    pub requantised: Known<Requantised>,
    /// Which rows are normed where they are multiplied.
    pub normed: Known<Renormed>,
}

/// How a number came to be that no manual has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// By measuring kernels on the row's own chip, or one like it.
    Measured,
    /// By counting, in the emulator or from other numbers of the row. No chip was timed.
    Counted,
    /// On another row's chip. This one is not measured.
    Estimated {
        /// The name of that row.
        from: &'static str,
    },
}

/// Numbers of a row that no manual has, and how they came to be. No chip speaks for another unless
/// it says so here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<T> {
    /// The numbers.
    pub value: T,
    /// How they came to be.
    pub found: Found,
}

impl<T> Known<T> {
    /// Measured on the row's chip.
    pub const fn measured(value: T) -> Known<T> {
        Known { value, found: Found::Measured }
    }

    /// Counted.
    pub const fn counted(value: T) -> Known<T> {
        Known { value, found: Found::Counted }
    }

    /// Numbers that were taken over from another row.
    pub const fn estimated(value: T, from: &'static str) -> Known<T> {
        Known { value, found: Found::Estimated { from } }
    }
}

impl<T> Deref for Known<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

/// A schedule that makes no kernels for a chip, though it could: another one was faster, or it
/// never ran there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avoided {
    /// The name of the schedule.
    pub schedule: &'static str,
    /// Why, and how that was found.
    pub because: Known<&'static str>,
}

/// Most numbers of a step's rows that are quantised where they are multiplied, as each work-group,
/// or task, quantises all of them. Of more a kernel of its own does it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requantised {
    /// The limit in steps of one token.
    pub one: usize,
    /// The limit for all rows together in steps of several tokens.
    pub several: usize,
    /// Whether attention with one token of each sequence quantises its results where it makes them.
    pub results: bool,
}

impl Requantised {
    /// The limit in steps of `tokens` tokens.
    pub fn most(self, tokens: usize) -> usize {
        if tokens == 1 { self.one } else { self.several }
    }
}

/// Most numbers of a step's rows that are normed where they are multiplied, as each work-group
/// norms all of them. Of more a kernel of its own does it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renormed {
    /// Before a weight of floats.
    pub floats: usize,
    /// Before a quantised weight.
    pub quantised: usize,
}

impl Renormed {
    /// No limit.
    pub const ALL: Renormed = Renormed { floats: usize::MAX, quantised: usize::MAX };
}

impl Arch {
    /// Whether its code is for a family of chips, as LLVM's generic processors are.
    pub fn is_generic(&self) -> bool {
        self.cpu.ends_with("-generic")
    }

    /// Which of the numbers that no manual has were found on another row's chip, and on which.
    pub fn estimated(&self) -> Vec<(&'static str, &'static str)> {
        let mut all = vec![
            ("how many rows are quantised where they are multiplied", self.requantised.found),
            ("how many rows are normed where they are multiplied", self.normed.found),
        ];
        if let Some(gpu) = self.gpu() {
            all.push(("how `gemv` uses registers", gpu.simt.gemv.found));
            all.push(("how many clusters run at once", gpu.simt.clusters.found));
            all.extend(gpu.simt.measured.map(|known| ("where schedules begin to be faster than others", known.found)));
        }
        let from = |(what, found)| match found {
            Found::Estimated { from } => Some((what, from)),
            Found::Measured | Found::Counted => None,
        };
        all.into_iter().filter_map(from).collect()
    }

    /// Why a schedule makes no kernels for the chip, if it could and is not to.
    pub fn avoided(&self, schedule: &str) -> Option<Known<&'static str>> {
        let all = self.gpu()?.simt.avoided;
        all.iter().find(|avoided| avoided.schedule == schedule).map(|avoided| avoided.because)
    }

    /// The instruction set of a GPU row.
    pub fn isa(&self) -> Option<Isa> {
        match &self.machine {
            Machine::Simt(simt) => Some(simt.isa),
            Machine::Cpu(_) => None,
        }
    }

    /// The row as that of a CPU, if it is one.
    pub fn host(&self) -> Option<CpuArch<'_>> {
        match &self.machine {
            Machine::Cpu(core) => Some(CpuArch { arch: self, core }),
            Machine::Simt(_) => None,
        }
    }

    /// The row as that of a GPU, if it is one.
    pub fn gpu(&self) -> Option<GpuArch<'_>> {
        match &self.machine {
            Machine::Simt(simt) => Some(GpuArch { arch: self, simt }),
            Machine::Cpu(_) => None,
        }
    }
}

/// A row of a CPU, which host kernels are emitted for.
#[derive(Clone, Copy, Debug)]
pub struct CpuArch<'a> {
    arch: &'a Arch,
    /// The processor.
    pub core: &'a Cpu,
}

impl<'a> CpuArch<'a> {
    /// The row.
    pub fn arch(self) -> &'a Arch {
        self.arch
    }
}

impl Deref for CpuArch<'_> {
    type Target = Arch;
    fn deref(&self) -> &Arch {
        self.arch
    }
}

/// A row of a GPU, which SIMT kernels are emitted for.
#[derive(Clone, Copy, Debug)]
pub struct GpuArch<'a> {
    arch: &'a Arch,
    /// The processor.
    pub simt: &'a Simt,
}

impl<'a> GpuArch<'a> {
    /// The row.
    pub fn arch(self) -> &'a Arch {
        self.arch
    }
}

impl Deref for GpuArch<'_> {
    type Target = Arch;
    fn deref(&self) -> &Arch {
        self.arch
    }
}

/// The processor, by how it runs kernels.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "rows stand in one static table")]
pub enum Machine {
    /// A CPU.
    Cpu(Cpu),
    /// A GPU.
    Simt(Simt),
}

/// A CPU core: one thread, wide registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The SIMD unit.
    pub vector: Vector,
    /// How products are made.
    pub dot: Dot,
}

impl Cpu {
    /// Whether one instruction multiplies pairs of such elements.
    pub fn has_pairs(&self, dtype: DType) -> bool {
        dtype == DType::BF16 && self.dot != Dot::Widen
    }

    /// Whether a core multiplies pairs of bf16 every cycle. Those that have tiles start every
    /// other.
    pub fn multiplies_pairs_each_cycle(&self) -> bool {
        self.dot == Dot::Pairs
    }

    /// Whether one instruction multiplies tiles of such elements.
    pub fn has_tiles(&self, dtype: DType) -> bool {
        dtype == DType::BF16 && self.dot == Dot::Tiles
    }
}

/// How kernels of a target want their data laid out. The same for all variants of a target, which
/// share their plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Rows are padded with zeros to a multiple of this many elements.
    pub row: usize,
    /// Rows of activations are not a multiple of this many elements apart: those would share the
    /// same few cache sets.
    pub alias: usize,
    /// Where a step has any number of rows, results have room for a multiple of this many:
    /// contractions compute rows in tiles, and the last tile may be partly beyond the step.
    pub rows: usize,
    /// Rows of a weight in one panel.
    pub panel: usize,
    /// Bytes of one row's group of columns in a panel.
    pub group_bytes: usize,
    /// Tokens in a block of the KV cache.
    pub block_tokens: usize,
    /// Alignment of buffers, and the bytes that kernels may read beyond their end.
    pub align: usize,
}

impl Memory {
    /// Elements of a row with its padding.
    pub fn padded(&self, width: usize) -> usize {
        width.next_multiple_of(self.row)
    }

    /// Panels of a packed matrix of `rows` rows. Rows are padded like columns, so that a kernel may
    /// fill whole rows of its result.
    pub fn panels(&self, rows: usize) -> usize {
        self.padded(rows) / self.panel
    }

    /// Bytes of a panel with rows of `stride` elements, padding included.
    pub fn panel_bytes(&self, dtype: DType, stride: usize) -> usize {
        dtype.bytes(self.panel * stride)
    }

    /// Bytes of a packed matrix of `rows` rows of `stride` elements, padding included.
    pub fn packed_bytes(&self, dtype: DType, rows: usize, stride: usize) -> usize {
        dtype.bytes(self.padded(rows) * stride)
    }

    /// Bytes of a panel from one group of columns to the next.
    pub fn group_step(&self) -> usize {
        self.panel * self.group_bytes
    }

    /// Elements from one row of activations to the next.
    pub fn stride(&self, width: usize) -> usize {
        let padded = self.padded(width);
        if padded.is_multiple_of(self.alias) { padded + self.row } else { padded }
    }

    /// Elements from one row of a result to the next. Indices lie one after the other, as kernels
    /// read them.
    pub fn result_stride(&self, t: &TensorType) -> usize {
        let width = t.shape.row().unwrap_or(0);
        match t.layout {
            _ if t.is_indices() => 1,
            _ => match self.row_scales(t) {
                Some(scales) => self.stride(scales.end()) * 8 / t.dtype.bits(),
                None => self.stride(width),
            },
        }
    }

    /// The scales after the codes of a row, if rows have some.
    pub fn row_scales(&self, t: &TensorType) -> Option<RowScales> {
        let width = t.width();
        let first = t.dtype.bytes(self.padded(width));
        match t.layout {
            Layout::Scaled(group) => Some(RowScales { group, dtype: DType::F32, first, count: width.div_ceil(group) }),
            Layout::Mx(group) => {
                let count = self.padded(width).div_ceil(group);
                Some(RowScales { group, dtype: DType::E8M0, first, count })
            }
            Layout::Rows | Layout::Panels | Layout::Columns | Layout::Grouped { .. } => None,
        }
    }

    /// Bytes that a result needs in a step of `tokens` tokens and `rows` rows of logits: padding of
    /// rows, alignment, and the bytes that kernels may read past the end; in steps of any mixture
    /// also room for spare rows.
    pub fn result_bytes(&self, ty: &TensorType, (tokens, rows): (usize, usize), is_decode: bool) -> usize {
        let lead = ty.shape.0.first().map_or(1, |lead| lead.at(tokens, rows));
        let bytes = match ty.layout {
            Layout::Grouped { experts, tile } => Groups { experts, tile, pairs: lead }.words() * ty.dtype.size(),
            _ if is_decode => ty.dtype.bytes(lead * self.result_stride(ty)),
            _ => ty.dtype.bytes(lead.next_multiple_of(self.rows) * self.result_stride(ty)),
        };
        bytes.next_multiple_of(self.align) + self.align
    }
}

/// Where the scales of a row of codes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowScales {
    /// Columns that share one.
    pub group: usize,
    /// Their type.
    pub dtype: DType,
    /// The byte of the row with which they begin.
    pub first: usize,
    /// The number of scales.
    pub count: usize,
}

impl RowScales {
    /// The end of the scales.
    pub fn end(&self) -> usize {
        self.first + self.dtype.bytes(self.count)
    }
}

/// The SIMD unit of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// f32 elements in one register.
    pub lanes: usize,
    /// Vector registers.
    pub registers: usize,
}

impl Vector {
    /// The number of vectors of `elements` f32 elements that all registers hold.
    pub fn holds(&self, elements: usize) -> usize {
        self.registers * self.lanes / elements
    }
}

/// How bf16 products are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dot {
    /// Widen to f32, multiply and add.
    Widen,
    /// `vdpbf16ps`: pairs of bf16 into f32 lanes.
    Pairs,
    /// `tdpbf16ps` on tiles of 16 rows of 64 bytes for many rows at once, `vdpbf16ps` for few.
    Tiles,
}

/// A GPU: work-groups of waves of lanes that share local memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Simt {
    /// Lanes of a wave.
    pub wave: usize,
    /// What a compute unit has.
    pub unit: ComputeUnit,
    /// The chip that the numbers of the ledger are for.
    pub chip: Chip,
    /// How matrix instructions lay their operands over a wave.
    pub matrix: MatrixLayout,
    /// Matrix instructions, one for each type of element at most.
    pub products: &'static [Product],
    /// Matrix instructions for 32 by 32 results, likewise. Lanes `l` and `l + 32` hold row `l` of
    /// A, and of B^T, each its half of the columns; of the result, column `l`, and in turn four
    /// rows each.
    pub mfma_32x32: &'static [Product],
    /// Matrix instructions that also take a scale of e8m0 for each 32 columns of both operands, if
    /// there are some.
    pub block_scaled: Option<BlockScaled>,
    /// The 8-bit floats of the matrix instructions. If there are none, the lists above have no
    /// instructions for them.
    pub fp8: Fp8,
    /// Whether two f32 become two bf16 in one instruction.
    pub packs_bf16: bool,
    /// Whether pairs of e4m3 and of e2m1, times a power of two, become floats of 16 bits in one
    /// instruction.
    pub scales_pairs: bool,
    /// Bytes that one lane can load from global into local memory without registers in between; 0
    /// if none.
    pub direct_to_lds: usize,
    /// The last word of a buffer's resource in which offsets count bytes; none if loads do without
    /// resources.
    pub buffer_word: Option<u32>,
    /// Whether the machine copies whole runs of global memory into local memory by itself, and says
    /// when they have come.
    pub bulk_copies: bool,
    /// Whether four waves together multiply tiles straight from local memory, while they do other
    /// things (`wgmma`).
    pub warpgroup_mma: bool,
    /// Whether a kernel may begin while the one before it ends, and wait for it later.
    pub dependent_launch: bool,
    /// Clusters of two work-groups, which see each other's local memory, that run at once, and
    /// clusters of four; 0 if there are none.
    pub clusters: Known<[usize; 2]>,
    /// The numbers of products of few rows with a weight that streams through registers.
    pub gemv: Known<Gemv>,
    /// What schedules for bulk copies and warpgroup products go by; none where there are neither.
    pub measured: Option<Known<Measured>>,
    /// Schedules that make no kernels for the chip, though they could.
    pub avoided: &'static [Avoided],
    /// How lanes of different rows of 16 exchange values.
    pub rows_of_16: RowExchange,
    /// Which of LLVM's intrinsics the machine has.
    pub isa: Isa,
}

impl Simt {
    /// The matrix instruction for a type of elements.
    pub fn product(&self, dtype: DType) -> Option<Product> {
        self.of_type(self.products, dtype)
    }

    /// The matrix instruction for 32 by 32 results of a type of elements.
    pub fn product_32x32(&self, dtype: DType) -> Option<Product> {
        self.of_type(self.mfma_32x32, dtype)
    }

    /// The matrix instructions with scales for 32 columns, for codes of a type.
    pub fn block_scaled(&self, dtype: DType) -> Option<BlockScaled> {
        self.block_scaled.filter(|_| matches!(dtype, DType::F8E4M3 | DType::F4E2M1))
    }

    fn of_type(&self, all: &[Product], dtype: DType) -> Option<Product> {
        let lacks = dtype == DType::F8E4M3 && self.fp8 == Fp8::None;
        all.iter().copied().find(|p| p.dtype == dtype && !lacks)
    }
}

/// What products of few rows by single waves (`gemv`) go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemv {
    /// Registers for all but sums and what is in flight.
    pub others: usize,
    /// Least vectors, of the weight and of rows in memory, that a lane has in flight.
    pub in_flight: usize,
    /// Most bytes of local memory, where rows are computed into it.
    pub local: usize,
}

/// Numbers that no manual has: by measuring kernels on a chip, where one schedule begins to be
/// faster than another, and how work is cut best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of local memory through which the weight of a few tokens' contraction streams: what is
    /// on its way covers the time from one kernel to the next.
    pub ring_bytes: usize,
    /// Tokens from which on work-groups share out the columns of such a weight, as a cluster.
    pub cluster_tokens: usize,
    /// Panels of each work-group from which on a cluster has two of them, and four below.
    pub cluster_panels: usize,
    /// Where stream-K pays.
    pub stream_k: StreamK,
    /// Bytes of weights in the time that a decode step takes to group experts' rows: kernels that
    /// say which rows each expert has and that add choices up.
    pub grouping: usize,
    /// The cost of a tile of warpgroup products apart from its products, as rows of the weight: its
    /// copies of tokens, and its end.
    pub tile_cost: usize,
    /// Registers of a thread that copies, and of one that multiplies, where two groups of four
    /// waves multiply and four more waves are there for the copies.
    pub registers: [usize; 2],
    /// How prefill by warpgroup products is cut.
    pub prefill: WarpgroupPrefill,
}

/// How far prefill by warpgroup products goes: what registers and local memory hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarpgroupPrefill {
    /// Query heads of a work-group at most.
    pub heads: usize,
    /// Largest heads with results, scores and weights that fit the registers.
    pub dim: usize,
    /// Largest heads with queries that fit as well.
    pub in_registers: usize,
    /// Most blocks of the cache on their way.
    pub stages: usize,
}

/// Where stream-K is faster than products of single waves, and how it shares slots of a weight out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamK {
    /// Fewest tokens.
    pub tokens: usize,
    /// Fewest tokens of rows of floats with a quantised weight: where sums are scaled, and where
    /// decoded numbers are.
    pub decoded: [usize; 2],
    /// Tokens up to which every unit must have `slots` slots.
    pub few: usize,
    /// Slots of a unit with which the loops outweigh where sums meet.
    pub slots: usize,
    /// Most work-groups for each tile, about.
    pub groups: usize,
    /// Fewest slots of a work-group, about: of a weight that is multiplied as it lies, and of one
    /// that is decoded.
    pub least: [usize; 2],
    /// Most slots that hold rows at once.
    pub stages: usize,
    /// Most bytes of local memory for rows.
    pub row_bytes: usize,
    /// Most slots of the weight.
    pub ring: usize,
    /// Registers of a thread that asks for the weight, of one that brings rows, and of one that
    /// multiplies.
    pub registers: [usize; 3],
}

/// The instruction set of a GPU, as far as kernels call its intrinsics by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AMD's.
    Amdgcn,
    /// NVIDIA's portable assembly.
    Ptx,
}

/// Registers and local memory of one compute unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeUnit {
    /// SIMDs of a compute unit.
    pub simds: usize,
    /// Bytes of local memory that the work-groups on one unit share.
    pub lds: usize,
    /// Most bytes of local memory of one work-group, and the multiple in which it gets them.
    pub lds_group: usize,
    /// The multiple in which a work-group gets local memory, in bytes.
    pub lds_granule: usize,
    /// Vector registers of one SIMD, in registers of a whole wave, and how many are given at a
    /// time.
    pub vgprs: usize,
    /// The granule in which vector registers are given out.
    pub vgpr_granule: usize,
    /// Most vector registers of one wave, accumulation registers among them.
    pub vgprs_wave: usize,
    /// Most waves on one SIMD.
    pub waves: usize,
}

/// The largest product with an architecture, for estimates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// The product.
    pub name: &'static str,
    /// Compute units.
    pub units: usize,
    /// Peak memory bandwidth in GB/s.
    pub bandwidth: f64,
    /// Dense matrix peaks in TFLOP/s; 0 where there is no such instruction or the vendor has named
    /// no number.
    pub bf16: f64,
    /// As `bf16`, of 8-bit floats.
    pub fp8: f64,
    /// As `bf16`, of 4-bit floats.
    pub fp4: f64,
}

impl Chip {
    /// Operations on elements of a type in the time of one on 16-bit floats. Data sheets give 8-bit
    /// integers the number of 8-bit floats, and without these, that of bf16.
    pub fn rate(&self, dtype: DType) -> u32 {
        match dtype {
            DType::F8E4M3 | DType::I8 if self.fp8 > 0.0 && self.bf16 > 0.0 => (self.fp8 / self.bf16).round() as u32,
            DType::F4E2M1 if self.fp4 > 0.0 && self.bf16 > 0.0 => (self.fp4 / self.bf16).round() as u32,
            _ => 1,
        }
    }
}

/// Where the elements of products lie, which are 16 rows of A by `columns` of B. With 16 columns, a
/// lane of row `lane % 16` holds `depth` consecutive columns of A, and likewise of B^T, beginning
/// at `depth * (lane / 16)`; on `replicated` machines every row of 16 lanes holds the same. Of the
/// result it holds column `lane % 16` and `results` consecutive rows from `results * (lane / 16)`
/// on, if A's rows were given in the order `a_rows`. With 8 columns, four neighbouring lanes share
/// a column, which is `lane / 4`, each with its part of the depth and of the rows; a lane holds two
/// rows of A, those with the numbers `lane / 4` and 8 more in the order `a_rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    /// Columns of B: 16 or 8.
    pub columns: usize,
    /// Consecutive columns of A that a lane holds.
    pub depth: usize,
    /// Consecutive rows of the result that a lane holds.
    pub results: usize,
    /// Whether every row of 16 lanes holds the same of A and of B.
    pub replicated: bool,
    /// The rows of A in the order in which lanes hold them.
    pub a_rows: [u8; 16],
}

impl MatrixLayout {
    /// Columns of A that one product of a wave contracts.
    pub fn span(&self, wave: usize) -> usize {
        if self.replicated { self.depth } else { self.depth * wave / self.columns }
    }

    /// Rows of A that a lane holds.
    pub fn rows(&self) -> usize {
        16 / self.columns
    }
}

/// A matrix instruction on elements of one type, accumulating in f32, or in i32 where these are i8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The type of A and B.
    pub dtype: DType,
    /// Name of LLVM's intrinsic.
    pub intrinsic: &'static str,
    /// Elements of A, and of B, that one lane gives to one instruction; a depth of the layout takes
    /// several.
    pub elements: usize,
    /// The intrinsic's arguments.
    pub shape: ProductShape,
}

/// Matrix instructions on codes of e4m3 or e2m1 and scales of e8m0, which multiply 32 columns each,
/// accumulating in f32.
///
/// Columns come in vectors of 16 bytes. With `n` parts of a wave, which are 4 of 16 lanes or 2 of
/// 32, part `p` has vectors `p` and, of e4m3, `p + n` of an instruction's columns, in their order;
/// and the scale of the `p`-th 32 columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockScaled {
    /// LLVM's intrinsic for 16 by 16 results of 128 columns.
    pub small: &'static str,
    /// The instruction for 32 by 32 results of 64 columns.
    pub large: &'static str,
}

impl BlockScaled {
    /// Columns that share a scale.
    pub const COLUMNS: usize = 32;
    /// Columns that rows are a multiple of: those of the smaller instruction.
    pub const SPAN: usize = 128;
}

/// What an intrinsic's arguments look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductShape {
    /// `(A, B, C, cbsz, abid, blgp)`; A and B as integers of 16 bits for the older names.
    Mfma {
        /// Whether A and B are integers.
        integers: bool,
    },
    /// `(A, B, C, cbsz, blgp, scales)`: e4m3, where all of these are zero.
    MfmaF8f6f4,
    /// `(A, B, C)`.
    Wmma {
        /// Whether A and B are integers.
        integers: bool,
    },
    /// `(signA, A, signB, B, C, clamp)`.
    WmmaIu8,
    /// `(negA, A, negB, B, modC, C, reuseA, reuseB)`.
    WmmaReuse,
    /// `m16n8k16`: its 16 rows are two of our blocks of columns, and its 8 columns are rows of A.
    /// Operands are four words and two words, results four sums. Words are integers, or pairs of
    /// halves.
    Mma {
        /// Whether words are integers.
        integers: bool,
    },
}

/// Which 8-bit floats the matrix instructions take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8 {
    /// None at all.
    None,
    /// Without a negative zero and with another bias.
    Fnuz,
    /// The floats of the OCP.
    Ocp,
}

/// How a value comes from a lane 16 or 32 away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowExchange {
    /// Through the local memory's crossbar (`ds_swizzle`, `ds_bpermute`).
    Crossbar,
    /// `v_permlane16_swap`, `v_permlane32_swap`.
    Swap,
    /// `v_permlanex16`.
    PermuteX16,
    /// `shfl.sync`, from any lane.
    Shuffle,
}
