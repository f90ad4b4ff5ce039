//! Kernels against the reference interpreter, wherever they can be run: on this machine for every
//! variant of the host that it has, and in the emulator for GPUs. One list of cases serves all of
//! them.
mod emulated;
mod host;

use std::ffi::c_void;

use atomc_artifact::abi::{Batch, SPARE_TOKENS, TILE_TOKENS};
use atomc_ir::arch::Machine;
use atomc_ir::layout::{CacheLayout, Groups};
use atomc_ir::trial::{Fault, Fill, Operand, Run, Step, Trial};
use atomc_ir::{Arch, Family, Graph, Layout, Op, Type, Value, parse};
use atomc_targets::{KernelSpec, Object, Tasks, compile, rows};

/// Memory as a device would give it: aligned, with readable slack after the end, filled with NaN
/// bits so that reads of unwritten memory show.
struct Memory {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(align(256))]
struct Line(#[expect(dead_code, reason = "read as bytes")] [u8; 256]);

impl Memory {
    fn new(bytes: usize) -> Memory {
        Memory { lines: vec![Line([u8::MAX; 256]); bytes.div_ceil(256) + 1], len: bytes }
    }

    fn of(bytes: &[u8]) -> Memory {
        Memory::with_room(bytes, bytes.len())
    }

    /// The bytes, with room after them.
    fn with_room(bytes: &[u8], room: usize) -> Memory {
        let mut memory = Memory::new(room.max(bytes.len()));
        memory.bytes()[..bytes.len()].copy_from_slice(bytes);
        memory
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: plain bytes; there are enough of them.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    fn ptr(&mut self) -> *mut c_void {
        self.lines.as_mut_ptr().cast()
    }

    fn range(&mut self) -> (u64, u64) {
        (self.ptr() as u64, self.len as u64)
    }
}

fn of_slice<T>(list: &[T]) -> (u64, u64) {
    (list.as_ptr() as u64, size_of_val(list) as u64)
}

/// A launch of the kernel `k`.
struct Launch {
    args: Vec<*mut c_void>,
    /// Tokens and rows.
    step: [i64; 2],
    tasks: usize,
    /// Address and bytes of the memory that the kernel may touch.
    ranges: Vec<(u64, u64)>,
}

/// Whether this machine runs kernels of a row, or emulates it.
pub fn supported(arch: &Arch) -> bool {
    match arch.machine {
        Machine::Cpu(_) => host::supported(arch),
        Machine::Simt(_) => emulated::supported(arch),
    }
}

/// The rows that tests try the kernels of: those that this machine runs or emulates. One row stands
/// for its siblings unless `ATOMC_TEST_SIBLINGS` is set.
pub fn tried() -> impl Iterator<Item = &'static Arch> {
    let all = std::env::var_os("ATOMC_TEST_SIBLINGS").is_some();
    rows().iter().filter(move |arch| supported(arch) && (all || arch.sibling.is_none()))
}

/// Chips on which only the long form, with `ATOMC_TEST_LONG`, tries cases of kernels. Another chip
/// of the same vendor has the same schedules, and golden models of each type run on these too.
const LONG_ONLY: [&str; 2] = ["gfx90a", "gfx1100"];

/// Whether cases of kernels are tried on a row.
fn is_in_this_form(arch: &Arch) -> bool {
    std::env::var_os("ATOMC_TEST_LONG").is_some() || !LONG_ONLY.contains(&arch.name)
}

/// Bytes between pages of a cache.
const GAP: usize = 256;

/// One step for a kernel; indices for the i32 parameters.
#[derive(Clone, Copy)]
pub struct Case<'t> {
    pub text: &'t str,
    pub family: Family,
    /// Tokens of the bucket.
    pub bucket: usize,
    pub runs: &'t [Run],
    /// Runs with slot -1.
    pub slotless: &'t [usize],
    pub indices: &'t [(&'t str, &'t [i32])],
}

impl Case<'_> {
    pub fn check(&self) {
        self.check_where(|_| true);
    }

    /// On CPUs only.
    pub fn check_on_cpus(&self) {
        self.check_where(|arch| matches!(arch.machine, Machine::Cpu(_)));
    }

    /// Checks every float type.
    pub fn check_on_cpus_in_all_types(&self) {
        for dtype in ["bf16", "f16", "f32"] {
            Case { text: &self.text.replace("bf16", dtype), ..*self }.check_on_cpus();
        }
    }

    /// On GPUs only.
    pub fn check_on_gpus(&self) {
        self.check_where(|arch| arch.isa().is_some());
    }

    /// On chips that have matrix instructions with scales of 32 columns.
    pub fn check_where_blocks_are_scaled(&self) {
        self.check_where(|arch| arch.gpu().is_some_and(|gpu| gpu.simt.block_scaled.is_some()));
    }

    fn check_where(&self, wanted: impl Fn(&Arch) -> bool) {
        let graph = parse(self.text).expect("a body in the text of the IR");
        graph.verify().unwrap_or_else(|e| panic!("{e}"));
        for arch in tried().filter(|a| is_in_this_form(a) && wanted(a)) {
            if let Some(fault) = self.fault_on(&graph, arch) {
                panic!("{} {}, {fault}", arch.name, self.text);
            }
        }
    }

    /// The fault of the kernel that a row's facts make.
    pub fn fault_on(&self, graph: &Graph, arch: &Arch) -> Option<String> {
        let spec = KernelSpec::new(self.family, graph, self.bucket);
        let object = compile(&[spec], arch).unwrap_or_else(|e| panic!("{e}"));
        let fault = |fill: Fill| Some(format!("{}: {}", fill.name(), self.fault_with(graph, arch, &object, fill)?));
        Fill::ALL.into_iter().find_map(fault)
    }

    /// In every float type.
    pub fn check_in_all_types(&self) {
        for dtype in ["bf16", "f16", "f32"] {
            Case { text: &self.text.replace("bf16", dtype), ..*self }.check();
        }
    }

    /// With caches of bytes, which GPUs widen to types of two only.
    pub fn check_with_bytes(&self) {
        let text = self.text.replace("cache<bf16", "cache<f8e4m3");
        for dtype in ["bf16", "f16", "f32"] {
            let case = Case { text: &text.replace("bf16", dtype), ..*self };
            case.check_where(|arch| dtype != "f32" || matches!(arch.machine, Machine::Cpu(_)));
        }
    }

    fn fault_with(&self, graph: &Graph, arch: &Arch, object: &Object, fill: Fill) -> Option<Fault> {
        let inputs = graph.inputs();
        let indices = |number: usize| {
            let Op::Input { name } = graph.op(inputs[number].node) else { unreachable!() };
            Some(self.indices.iter().find(|(n, _)| n == name)?.1.to_vec())
        };
        let step = Step::of(self.runs.to_vec());
        let trial = Trial::new(graph, arch.memory, step, (fill, 7), &indices).expect("a body that can be tried");
        let mut trial = trial.without_slots(self.slotless);
        trial.gap = GAP;
        let (want, operands) = (trial.want().expect("a result of the interpreter"), trial.operands());
        let room = |(&v, operand): (&Value, &Operand)| match (graph.ty(v), operand) {
            // Entries beyond the step are zeros.
            (Type::Tensor(t), Operand::Tensor(bytes)) if t.is_indices() => {
                Memory::of(&[bytes.clone(), vec![0; 4 * self.bucket]].concat())
            }
            _ => memory(operand, self.room(graph, v, arch)),
        };
        let mut memory: Vec<Memory> = inputs.iter().zip(&operands).map(room).collect();
        let mut outs = self.run(&trial, arch, object, &mut memory);
        let result = |(&v, out): (&Value, &mut Memory)| match trial.state(v) {
            Some(operand) => memory[operand].bytes().to_vec(),
            None => out.bytes().to_vec(),
        };
        let got: Vec<Vec<u8>> = graph.outputs().iter().zip(&mut outs).map(result).collect();
        trial.judge(&operands, &want, &got).fault
    }

    /// Runs the kernel; returns the memory of each output.
    fn run(&self, trial: &Trial, arch: &Arch, object: &Object, memory: &mut [Memory]) -> Vec<Memory> {
        let (graph, mut state, mut tiles) = (trial.graph, trial.step.batch(), self.tiles());
        let (mut tables, stride) = tables(trial, arch.memory.block_tokens);
        // Kernels work on groups of tokens and read whole ones.
        for list in [&mut state.positions, &mut state.sequences, &mut tables, &mut tiles] {
            list.resize(list.len() + SPARE_TOKENS, 0);
        }
        let tile_count = self.tiles().len() as i64 / 2;
        let apart = |v: Value| match graph.ty(v) {
            Type::Cache(c) => Some(trial.block_stride(*c)),
            Type::Slots(s) => Some(trial.slot_stride(s)),
            _ => None,
        };
        let block_stride = graph.inputs().into_iter().filter_map(apart).max().unwrap_or(0);
        let batch = [Batch {
            positions: state.positions.as_ptr(),
            sequences: state.sequences.as_ptr(),
            tables: tables.as_ptr(),
            table_stride: stride as i64,
            tiles: tiles.as_ptr(),
            tile_count,
            block_stride: block_stride as i64,
        }];
        let mut outs: Vec<Memory> = graph.outputs().iter().map(|&v| Memory::new(self.room(graph, v, arch))).collect();
        let mut args: Vec<*mut c_void> = Vec::new();
        let mut ranges = vec![];
        for (v, memory) in graph.inputs().into_iter().zip(memory) {
            match graph.ty(v) {
                Type::Batch => args.push(batch.as_ptr().cast_mut().cast()),
                Type::Cache(c) => {
                    let v_offset = CacheLayout::of(*c, &arch.memory).v_offset;
                    args.extend([memory.ptr(), memory.ptr().wrapping_byte_add(v_offset)]);
                }
                Type::Tensor(_) | Type::Slots(_) => args.push(memory.ptr()),
            }
            ranges.push(memory.range());
        }
        let tensors = outs.iter_mut().zip(graph.outputs()).filter(|(_, v)| graph.ty(**v).as_tensor().is_some());
        for (out, _) in tensors {
            args.push(out.ptr());
            ranges.push(out.range());
        }
        let (tokens, rows) = (trial.step.tokens(), trial.step.rows());
        let tasks = match object.kernels[0].tasks {
            Tasks::Fixed(n) => n,
            Tasks::Tokens { per, times } => tokens.div_ceil(per) * times,
            Tasks::Rows { per, times } => rows.div_ceil(per) * times,
            Tasks::Choices { choices, per, times } => (tokens * choices).div_ceil(per) * times,
            Tasks::Blocks { choices, experts, tile, times } => {
                Groups { experts, tile, pairs: tokens * choices }.blocks() * times
            }
            Tasks::Tiles { times } => tile_count as usize * times,
            Tasks::Shared { few, limit, many } => if tokens <= limit { few } else { many }.tasks(tokens),
        };
        ranges.push(of_slice(&batch));
        ranges.extend([&state.positions, &state.sequences, &tables, &tiles].map(|list| of_slice(list)));
        let mut launch = Launch { args, step: [tokens as i64, rows as i64], tasks, ranges };
        launch.ranges.push(of_slice(&launch.step));
        match arch.machine {
            Machine::Cpu(_) => host::run(object, &launch),
            Machine::Simt(_) => emulated::run(arch, object, &launch),
        }
        outs
    }

    /// Bytes that a plan has for a tensor of the step: for the bucket's tokens, in whole tiles of
    /// rows where it takes any.
    fn room(&self, graph: &Graph, v: Value, arch: &Arch) -> usize {
        let Type::Tensor(t) = graph.ty(v) else { return 0 };
        if t.shape.0[0].fixed().is_some() {
            return 0;
        }
        let rows = t.shape.0[0].at(self.bucket, self.bucket);
        if let Layout::Grouped { experts, tile } = t.layout {
            return 4 * Groups { experts, tile, pairs: rows }.words();
        }
        let any = !matches!(self.family, Family::Matvec | Family::GroupedMatvec | Family::AttendOne);
        let rows = if any { rows.next_multiple_of(arch.memory.rows) } else { rows };
        t.dtype.bytes(rows * arch.memory.result_stride(t))
    }

    /// First token and count of each tile, of one run each, with empty ones in between, as the
    /// kernel places them that prepares steps on GPUs.
    fn tiles(&self) -> Vec<i32> {
        let tokens: usize = self.runs.iter().map(|run| run.tokens).sum();
        let (mut tiles, mut first) = (vec![0; 2 * (tokens / TILE_TOKENS + self.runs.len())], 0);
        for (number, run) in self.runs.iter().enumerate() {
            for at in (0..run.tokens).step_by(TILE_TOKENS) {
                let place = 2 * (first / TILE_TOKENS + number + at / TILE_TOKENS);
                tiles[place..place + 2]
                    .copy_from_slice(&[(first + at) as i32, (run.tokens - at).min(TILE_TOKENS) as i32]);
            }
            first += run.tokens;
        }
        tiles
    }
}

/// The tables of all sequences, and how far one is from the next.
fn tables(trial: &Trial, block_tokens: usize) -> (Vec<i32>, usize) {
    let (step, of) = (&trial.step, |s: usize| trial.step.table(s, block_tokens));
    let mut tables: Vec<Vec<i32>> = (0..step.runs.len()).map(of).collect();
    trial.slotless.iter().for_each(|&s| tables[s].fill(-1));
    let stride = tables.iter().map(Vec::len).max().expect("a step has a sequence") + 1;
    (tables.iter().flat_map(|t| t.iter().copied().chain(std::iter::repeat(0)).take(stride)).collect(), stride)
}

/// An operand in memory that a kernel may read.
fn memory(operand: &Operand, room: usize) -> Memory {
    match operand {
        Operand::Tensor(bytes) => Memory::with_room(bytes, room),
        Operand::Cache(pages) => Memory::of(pages),
        Operand::Batch => Memory::new(0),
    }
}

pub const STEP: [Run; 3] = [run(3, 3), run(0, 1), run(33, 1)];

pub const fn run(position: usize, tokens: usize) -> Run {
    Run { position, tokens, rows: 0 }
}

pub fn case(text: &str, family: Family, bucket: usize) -> Case<'_> {
    Case { text, family, bucket, runs: &STEP, slotless: &[], indices: &[] }
}
