//! Kernels of GPUs, run by the emulator with all of its checks.
use std::ffi::c_void;

use atomc_emulator::isa::Isa;
use atomc_emulator::{Access, CodeObject, Emulator, Grid, Memory, Options};
use atomc_ir::Arch;
use atomc_targets::{COUNTERS, Object};

use super::Launch;

/// Whether the emulator executes code of a row.
pub fn supported(arch: &Arch) -> bool {
    Isa::find(arch.name).is_some()
}

/// Runs the kernel `k`, a work-group for each task.
pub fn run(arch: &Arch, object: &Object, launch: &Launch) {
    let code = CodeObject::load(&object.code).unwrap_or_else(|e| panic!("{}: {e}", arch.name));
    let mut workspace = super::Memory::of(&vec![0; object.kernels[0].workspace]);
    let mut memory = Memory::default();
    let slack = arch.memory.align as u64;
    let ranges = launch.ranges.iter().copied().chain([(workspace.ptr() as u64, object.kernels[0].workspace as u64)]);
    for (address, bytes) in ranges {
        // SAFETY: the ranges are buffers that live until this function returns; each is followed by
        // slack.
        unsafe { memory.map_with_slack(address, bytes, slack, Access::ReadWrite) };
    }
    let step: *const c_void = launch.step.as_ptr().cast();
    let pointers = launch.args.iter().map(|p| p.cast_const()).chain([step, workspace.ptr().cast_const()]);
    let arguments: Vec<u8> = pointers.flat_map(|p| (p as u64).to_le_bytes()).collect();
    let grid = Grid::linear(launch.tasks as u32, object.kernels[0].threads as u32);
    let done = Emulator.launch(&code, "k", grid, &arguments, &memory, &Options::default());
    done.unwrap_or_else(|e| panic!("{}: {e}", arch.name));
    assert!(workspace.bytes().iter().take(COUNTERS).all(|&b| b == 0), "{}: counters are left as they were", arch.name);
}
