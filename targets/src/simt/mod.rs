//! Kernels for GPUs, one module a schedule family, written once over work-groups of waves of lanes.
//!
//! Contractions and attention compute with the weight, or the cache, as the left operand: 16 rows
//! of it by 16 tokens. So a lane holds results of one token only, a softmax or a norm stays inside
//! a lane but for the last steps, and the packed layouts are read as the lanes of a matrix
//! instruction want them, 16 bytes a lane and one run of memory a wave.
mod attention;
mod exchange;
mod experts;
mod gemm;
mod keys;
mod launch;
mod machine;
mod pack;
mod recurrent;
mod rowwise;
mod sparse;
mod step_inputs;

use atomc_artifact::manifest;
use atomc_ir::DType;
use atomc_ir::arch::GpuArch;
use inkwell::module::Module;

use crate::llvm::Llvm;
use crate::schedule::Schedule;
use attention::{decode, kv_dequant, latent, latent_warpgroup, prefill, prefill_warpgroup};
use gemm::{gemv, gemv_bulk, stream_k, tiled, warpgroup};
pub use launch::{COUNTERS, gpu};

/// All schedules: a kernel gets the first of its family that suits.
pub const SCHEDULES: &[Schedule] = &[
    rowwise::SCHEDULE,
    experts::group::SCHEDULE,
    stream_k::SCHEDULE,
    gemv_bulk::SCHEDULE,
    gemv_bulk::LIMBS,
    gemv_bulk::DEQUANT,
    warpgroup::FEW,
    tiled::FEW,
    gemv::SCHEDULE,
    stream_k::CHOICES,
    warpgroup::FEW_HEADS,
    gemv::GROUPED,
    stream_k::GROUPED,
    warpgroup::GROUPED,
    warpgroup::HEADS,
    tiled::BLOCKS,
    tiled::HEADS,
    gemv::BLOCKS,
    warpgroup::SCHEDULE,
    gemv::ROWS,
    tiled::SCHEDULE,
    latent_warpgroup::SCHEDULE,
    latent::SCHEDULE,
    decode::SCHEDULE,
    latent_warpgroup::TOKENS,
    latent::MANY,
    decode::VERIFY,
    prefill_warpgroup::SCHEDULE,
    prefill::SCHEDULE,
    decode::TOKENS,
    sparse::choose::SCHEDULE,
    latent_warpgroup::LISTED,
    latent::LISTED,
    sparse::attend::SCHEDULE,
    recurrent::CONV,
    recurrent::WARPGROUP,
    recurrent::CHUNKS,
    recurrent::DELTA,
];

/// Whether kernels attend with queries of a type over a cache of another.
pub fn attends(cache: DType, query: DType) -> bool {
    kv_dequant::Stored::of(cache, query).is_some()
}

/// The kernel that prepares steps.
pub fn emit_prepare<'c>(llvm: Llvm<'c>, arch: GpuArch<'c>) -> (Module<'c>, manifest::Kernel) {
    step_inputs::emit(llvm, arch)
}

/// The kernel that makes weights.
pub fn emit_pack<'c>(llvm: Llvm<'c>, arch: GpuArch<'c>) -> (Module<'c>, manifest::Kernel) {
    pack::emit(llvm, arch)
}

/// The kernel by which ranks exchange rows.
pub fn emit_exchange<'c>(llvm: Llvm<'c>, arch: GpuArch<'c>) -> (Module<'c>, manifest::Kernel) {
    exchange::emit(llvm, arch)
}

/// Asks for at least `waves` waves of an AMD kernel on every SIMD, in place of its schedule's
/// request, and sets the scheduler of its instructions.
pub fn want_waves(module: &Module, symbol: &str, waves: usize, scheduler: &str) {
    let function = module.get_function(symbol).expect("the kernel that was emitted");
    machine::want_waves(function, waves);
    machine::set(function, "amdgpu-sched-strategy", scheduler);
}
