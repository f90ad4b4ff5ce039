//! Launching kernels: the work of a GPU's command processor before the first instruction.
use atomc_artifact::hsaco::{self, ValueKind};

use crate::code::CodeObject;
use crate::counts::Counts;
use crate::decode::Kernel;
use crate::exec::{Checks, Scratch, Side, control};
use crate::fault::{Fault, FaultKind, LaunchError};
use crate::inst::scalar;
use crate::isa::{Family, Isa};
use crate::memory::{Access, Memory};
use crate::schedule;
use crate::timing::trace::Trace;
use crate::wave::Wave;

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub groups: [u32; 3],
    /// Work-items of a group.
    pub threads: [u32; 3],
    /// Bytes of LDS in addition to those that the kernel declares.
    pub dynamic_lds: u32,
}

impl Grid {
    /// One dimension, no dynamic LDS.
    pub fn linear(groups: u32, threads: u32) -> Grid {
        Grid { groups: [groups, 1, 1], threads: [threads, 1, 1], dynamic_lds: 0 }
    }
}

/// How to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub checks: Checks,
    /// Bank conflicts of LDS are counted.
    pub conflicts: bool,
    /// 0 runs groups in order and each wave to its next barrier. Any other value shuffles groups
    /// and interleaves waves at random points, always the same ones for the same seed.
    pub seed: u64,
    /// Anything but 0 takes waves in turn, that many instructions each, as a chip does with 1 where
    /// nothing stalls. Kernels that only time saves from a race are right that way. Waves then are
    /// not shuffled, whatever the seed.
    pub quantum: u32,
    /// Work-groups run on that many threads of the host. More than one makes the order of groups'
    /// atomics a matter of chance.
    pub threads: usize,
    /// Instructions that one work-group may execute.
    pub limit: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { checks: Checks::ALL, conflicts: true, seed: 1, quantum: 0, threads: 1, limit: 1 << 36 }
    }
}

impl Options {
    /// Without checks other than those of bounds.
    pub fn fast() -> Options {
        Options { checks: Checks::NONE, conflicts: false, seed: 0, ..Options::default() }
    }
}

/// Runs kernels. It has no state of its own; code objects keep their decoded kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Emulator;

impl Emulator {
    /// Runs a kernel to its end. `arguments` are the explicit ones, laid out as the metadata says;
    /// hidden ones are added.
    pub fn launch(
        &self,
        code: &CodeObject,
        symbol: &str,
        grid: Grid,
        arguments: &[u8],
        memory: &Memory,
        options: &Options,
    ) -> Result<Counts, Fault> {
        let (dispatch, decoded) = Emulator::dispatch(code, symbol, grid, arguments)?;
        let memory = dispatch.map(code, memory);
        schedule::run(&dispatch, decoded, &memory, options)
    }

    /// Runs one work-group of a launch and returns its trace. Matrix instructions give no results.
    pub fn record(
        &self,
        code: &CodeObject,
        symbol: &str,
        grid: Grid,
        arguments: &[u8],
        memory: &Memory,
        group: [u32; 3],
    ) -> Result<Trace, Fault> {
        let (dispatch, decoded) = Emulator::dispatch(code, symbol, grid, arguments)?;
        let memory = dispatch.map(code, memory);
        let ([x, y, _], [a, b, c]) = (grid.groups.map(u64::from), group.map(u64::from));
        schedule::record(&dispatch, decoded, &memory, (c * y + b) * x + a)
    }

    fn dispatch<'a>(
        code: &'a CodeObject,
        symbol: &str,
        grid: Grid,
        arguments: &[u8],
    ) -> Result<(Dispatch<'a>, &'a Kernel), Fault> {
        let fault = |kind| Fault { kernel: symbol.into(), site: None, kind };
        let unknown = || fault(FaultKind::UnknownKernel { known: code.kernels().map(str::to_string).collect() });
        let kernel = code.kernel(symbol).ok_or_else(unknown)?;
        let decoded = code.decoded(symbol).ok_or_else(unknown)?;
        let decoded = decoded.as_ref().map_err(|e| fault(FaultKind::Decode(e.clone())))?;
        let dispatch = Dispatch::new(code, kernel, grid, arguments).map_err(|e| fault(FaultKind::Launch(e)))?;
        Ok((dispatch, decoded))
    }
}

/// Everything that is the same for all waves of a launch.
pub struct Dispatch<'a> {
    pub isa: &'static Isa,
    pub kernel: &'a hsaco::Kernel,
    pub grid: Grid,
    pub lds: u32,
    pub image: u64,
    /// Kernel arguments, then the dispatch packet, then a stand-in for a queue, in units of 16
    /// bytes.
    block: Vec<u128>,
    packet: usize,
    queue: usize,
}

/// Bytes of the packet (an AQL kernel dispatch packet) and of the stand-in for a queue, which is
/// all zeros.
const PACKET: usize = 64;
const QUEUE: usize = 256;

impl<'a> Dispatch<'a> {
    fn new(
        code: &CodeObject,
        kernel: &'a hsaco::Kernel,
        grid: Grid,
        arguments: &[u8],
    ) -> Result<Dispatch<'a>, LaunchError> {
        let isa = code.isa;
        let meta = &kernel.metadata;
        let found = grid.threads.iter().map(|n| u64::from(*n)).product();
        let limit = u64::from(meta.max_flat_workgroup_size.min(1024));
        if found == 0 || found > limit {
            return Err(LaunchError::Threads { found, limit });
        }
        if meta.wavefront_size != isa.lanes {
            return Err(LaunchError::Lanes { found: meta.wavefront_size, wanted: isa.lanes });
        }
        let lds = u64::from(kernel.descriptor.group_segment_fixed_size) + u64::from(grid.dynamic_lds);
        if lds > u64::from(isa.lds) {
            return Err(LaunchError::Lds { found: lds, limit: isa.lds });
        }
        if meta.private_segment_fixed_size > 1 << 20 {
            return Err(LaunchError::Scratch(meta.private_segment_fixed_size.into()));
        }
        let size = kernel.descriptor.kernarg_size.max(meta.kernarg_segment_size) as usize;
        // Arguments of hand-written kernels may extend beyond those of their metadata.
        let extra = if meta.args.iter().any(|a| !a.value_kind.explicit()) { 0 } else { arguments.len() };
        let size = size.max(extra).next_multiple_of(64);
        let mut dispatch = Dispatch {
            isa,
            kernel,
            grid,
            lds: lds as u32,
            image: code.image(),
            block: vec![0; (size + PACKET + QUEUE) / 16],
            packet: size,
            queue: size + PACKET,
        };
        dispatch.explicit(arguments)?;
        dispatch.hidden()?;
        dispatch.packet();
        Ok(dispatch)
    }

    fn explicit(&mut self, arguments: &[u8]) -> Result<(), LaunchError> {
        let ends = self.kernel.metadata.explicit_args().map(|a| (a.offset + a.size) as usize);
        let wanted = ends.max().unwrap_or(0);
        let found = arguments.len();
        // A caller may have laid out the whole segment.
        if found < wanted || found > self.packet {
            return Err(LaunchError::Arguments { found, wanted });
        }
        self.write(0, arguments);
        Ok(())
    }

    fn hidden(&mut self) -> Result<(), LaunchError> {
        let queue = self.address() + self.queue as u64;
        let Grid { groups, threads, dynamic_lds } = self.grid;
        let dims = (0..3).rev().find(|k| groups[*k] * threads[*k] > 1).map_or(1, |k| k as u64 + 1);
        for arg in &self.kernel.metadata.args {
            use ValueKind::*;
            let value: u64 = match arg.value_kind {
                kind if kind.explicit() => continue,
                HiddenBlockCountX => groups[0].into(),
                HiddenBlockCountY => groups[1].into(),
                HiddenBlockCountZ => groups[2].into(),
                HiddenGroupSizeX => threads[0].into(),
                HiddenGroupSizeY => threads[1].into(),
                HiddenGroupSizeZ => threads[2].into(),
                HiddenGridDims => dims,
                HiddenDynamicLdsSize => dynamic_lds.into(),
                HiddenPrivateBase => crate::mem::flat::PRIVATE >> 32,
                HiddenSharedBase => crate::mem::flat::SHARED >> 32,
                HiddenQueuePtr => queue,
                // Groups are always whole; services of a host process are absent.
                HiddenRemainderX | HiddenRemainderY | HiddenRemainderZ => 0,
                HiddenGlobalOffsetX | HiddenGlobalOffsetY | HiddenGlobalOffsetZ | HiddenNone => 0,
                HiddenPrintfBuffer | HiddenHostcallBuffer | HiddenDefaultQueue => 0,
                HiddenCompletionAction | HiddenMultigridSyncArg | HiddenHeapV1 => 0,
                other => return Err(LaunchError::Hidden(format!("{other:?}"))),
            };
            let (at, size) = (arg.offset as usize, (arg.size as usize).min(8));
            self.write(at, &value.to_le_bytes()[..size]);
        }
        Ok(())
    }

    fn packet(&mut self) {
        let at = self.packet;
        let Grid { groups, threads, .. } = self.grid;
        for k in 0..3 {
            self.write(at + 4 + 2 * k, &(threads[k] as u16).to_le_bytes());
            self.write(at + 12 + 4 * k, &(groups[k] * threads[k]).to_le_bytes());
        }
        self.write(at + 2, &3u16.to_le_bytes());
        self.write(at + 24, &self.kernel.metadata.private_segment_fixed_size.to_le_bytes());
        self.write(at + 28, &self.lds.to_le_bytes());
        self.write(at + 32, &(self.image + self.kernel.descriptor_address).to_le_bytes());
        self.write(at + 40, &self.address().to_le_bytes());
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (k, byte) in bytes.iter().enumerate() {
            let unit = &mut self.block[(at + k) / 16];
            let shift = (at + k) % 16 * 8;
            *unit = *unit & !(0xff << shift) | u128::from(*byte) << shift;
        }
    }

    /// The address of the kernel arguments.
    fn address(&self) -> u64 {
        self.block.as_ptr() as u64
    }

    /// The caller's memory with the ranges of the launch.
    fn map(&self, code: &CodeObject, memory: &Memory) -> Memory {
        let mut all = memory.clone();
        // SAFETY: both live as long as the launch and are only read.
        unsafe {
            all.map(self.address(), self.block.len() as u64 * 16, Access::Read);
            all.map(code.image(), code.image_bytes(), Access::Read);
        }
        all
    }

    /// Waves of a group.
    pub fn waves(&self) -> u32 {
        self.grid.threads.iter().product::<u32>().div_ceil(self.isa.lanes)
    }

    /// The mode register at the start.
    fn mode(&self) -> u32 {
        let rsrc1 = self.kernel.descriptor.compute_pgm_rsrc1;
        let floats = rsrc1.0 >> 12 & 0xff;
        floats | rsrc1.dx10_clamp() << 8 | rsrc1.ieee_mode() << 9 | rsrc1.fp16_overflow() << 23
    }

    pub fn side(&self, number: u32) -> Side {
        let size = self.kernel.metadata.private_segment_fixed_size;
        Side::new(number as usize, self.isa, Scratch::new(size), self.mode())
    }

    /// Puts a wave into its initial state. Registers must hold poison already.
    pub fn start(&self, wave: &mut Wave, group: [u32; 3], kernel: &Kernel) {
        wave.mode = control::mode_of(self.mode(), self.isa.family);
        wave.set_exec(self.lanes(wave.number));
        let user = self.user_scalars(wave);
        self.system_scalars(wave, user, group);
        self.work_items(wave);
        // The first 256 bytes are code for older firmware: it loads the registers that are
        // preloaded here.
        let skip = if self.kernel.descriptor.preload.length > 0 { 256 } else { 0 };
        wave.pc = kernel.index(self.kernel.code.address + skip).unwrap_or(usize::MAX);
    }

    /// The lanes of a wave that have a work-item.
    fn lanes(&self, number: u32) -> u64 {
        let threads = self.grid.threads.iter().product::<u32>();
        let left = (threads - number * self.isa.lanes).min(self.isa.lanes);
        u64::MAX >> (64 - left)
    }

    /// User scalar registers in the order of LLVM's guide, "Initial Kernel Execution State"; gives
    /// their number.
    fn user_scalars(&self, wave: &mut Wave) -> u8 {
        let descriptor = &self.kernel.descriptor;
        let p = descriptor.properties;
        let mut next = 0u8;
        let mut push = |words: &[u32]| {
            words.iter().for_each(|w| set(wave, &mut next, *w));
        };
        let pair = |v: u64| [v as u32, (v >> 32) as u32];
        let private = p.private_segment_buffer() != 0;
        if private {
            push(&private_segment());
        }
        let pairs = [
            (p.dispatch_ptr(), self.address() + self.packet as u64),
            (p.queue_ptr(), self.address() + self.queue as u64),
            (p.kernarg_segment_ptr(), self.address()),
            (p.dispatch_id(), 0),
            (p.flat_scratch_init(), 0),
        ];
        pairs.iter().filter(|(wanted, _)| *wanted != 0).for_each(|(_, value)| push(&pair(*value)));
        if p.private_segment_size() != 0 {
            push(&[self.kernel.metadata.private_segment_fixed_size]);
        }
        for k in 0..descriptor.preload.length {
            push(&[self.argument(usize::from(descriptor.preload.offset + k))]);
        }
        descriptor.compute_pgm_rsrc2.user_sgprs() as u8
    }

    /// A dword of the kernel arguments.
    fn argument(&self, dword: usize) -> u32 {
        self.block.get(dword / 4).map_or(0, |unit| (unit >> (dword % 4 * 32)) as u32)
    }

    fn system_scalars(&self, wave: &mut Wave, first: u8, group: [u32; 3]) {
        let rsrc2 = self.kernel.descriptor.compute_pgm_rsrc2;
        let mut next = first;
        if self.isa.family >= Family::Gfx12 {
            let ttmp = |n: u8| scalar::TTMP + n;
            set(wave, &mut ttmp(9), group[0]);
            set(wave, &mut ttmp(7), group[1] & 0xffff | group[2] << 16);
            set(wave, &mut ttmp(8), wave.number << 25);
            return;
        }
        let ids = [rsrc2.workgroup_id_x(), rsrc2.workgroup_id_y(), rsrc2.workgroup_id_z()];
        for (id, wanted) in group.into_iter().zip(ids) {
            if wanted != 0 {
                set(wave, &mut next, id);
            }
        }
        if rsrc2.workgroup_info() != 0 {
            set(wave, &mut next, 0);
        }
        // The wave's part of all scratch: each wave has its own here, so the offset is zero.
        if rsrc2.private_segment() != 0 && self.isa.family == Family::Gfx90a {
            set(wave, &mut next, 0);
        }
    }

    /// `v0` holds the three ids, ten bits each.
    fn work_items(&self, wave: &mut Wave) {
        let [x, y, _] = self.grid.threads;
        let first = wave.number * self.isa.lanes;
        for lane in 0..self.isa.lanes {
            let n = first + lane;
            wave.vgpr[0][lane as usize] = (n % x) | (n / x % y) << 10 | (n / (x * y)) << 20;
        }
        wave.written[0] = wave.exec();
    }
}

fn set(wave: &mut Wave, next: &mut u8, value: u32) {
    wave.sgpr[usize::from(*next)] = value;
    wave.scalar_written |= 1 << *next;
    *next += 1;
}

/// The resource of private memory (gfx90a): swizzled, with the lane's number as the index. The base
/// is not used.
fn private_segment() -> [u32; 4] {
    [0, 1 << 31, u32::MAX, 1 << 23 | 3 << 21]
}
