//! Kernels for GPUs, one module a schedule family, written once over work-groups of waves of lanes.
//!
//! Contractions and attention compute with the weight, or the cache, as the left operand: 16 rows of it by 16 tokens. So a
//! lane holds results of one token only, a softmax or a norm stays inside a lane but for the last steps, and the packed
//! layouts are read as the lanes of a matrix instruction want them, 16 bytes a lane and one run of memory a wave.
mod attention;
mod gemm;
mod launch;
mod machine;
mod rowwise;
mod step_inputs;

use atomc_ir::{Arch, DType, Diagnostic, Family};
use inkwell::module::Module;

use crate::code::Code;
use crate::llvm::Llvm;
use crate::tuning::{Choice, Class, Table};
use crate::{KernelInfo, KernelSpec};
use attention::{attend, decode, kv_dequant, prefill, prefill_warpgroup};
use gemm::{contract, gemv, gemv_bulk, stream_k, tiled, warpgroup};
pub use launch::COUNTERS;
use launch::Setup;

/// Whether kernels attend with queries of a type over a cache of another.
pub fn attends(cache: DType, query: DType) -> bool {
    kv_dequant::Stored::of(cache, query).is_some()
}

/// The kernel that prepares steps.
pub fn emit_prepare<'c>(llvm: Llvm<'c>, arch: &'c Arch) -> (Module<'c>, KernelInfo) {
    step_inputs::emit(llvm, arch)
}

/// At least so many waves of a kernel for AMD on every SIMD, in place of what its schedule asked for, and who orders its
/// instructions.
pub fn want_waves(module: &Module, symbol: &str, waves: usize, scheduler: &str) {
    let function = module.get_function(symbol).expect("the kernel that was emitted");
    machine::want_waves(function, waves);
    machine::set(function, "amdgpu-sched-strategy", scheduler);
}

/// The kernel as a module with one function of that name.
pub fn emit<'c>(llvm: Llvm<'c>, spec: &KernelSpec, arch: &'c Arch) -> Result<(Module<'c>, KernelInfo), Diagnostic> {
    let (code, info) = made(llvm, spec, arch).map_err(|e| e.at(format!("kernel {} on {}", spec.symbol, arch.name)))?;
    let info = KernelInfo { shared: code.shared.get(), overlaps: code.awaited.get(), ..info };
    Ok((code.finish(), info))
}

fn made<'c>(llvm: Llvm<'c>, spec: &KernelSpec, arch: &'c Arch) -> Result<(Code<'c>, KernelInfo), Diagnostic> {
    let found = || Ok(class(spec)?.map_or_else(Choice::default, |class| Table::of(arch).choice(&class)));
    let choice = spec.choice.clone().map_or_else(found, Ok)?;
    let setup = Setup { llvm, arch, choice };
    match spec.family {
        Family::Rows => rowwise::emit(&setup, spec),
        Family::Matvec if stream_k::suits(spec, arch)? => stream_k::emit(&setup, spec),
        Family::Matvec if gemv_bulk::suits(spec, arch, &setup.choice)? => gemv_bulk::emit(&setup, spec),
        Family::Matvec => gemv::emit(&setup, spec),
        Family::Matmul if warpgroup::suits(spec, arch)? => warpgroup::emit(&setup, spec),
        Family::Matmul => tiled::emit(&setup, spec),
        Family::AttendOne => decode::emit(&setup, spec),
        Family::AttendMany if prefill_warpgroup::suits(spec, arch)? => prefill_warpgroup::emit(&setup, spec),
        Family::AttendMany => prefill::emit(&setup, spec),
    }
}

/// What the best numbers for a kernel depend on, where its family leaves some open.
pub fn class(spec: &KernelSpec) -> Result<Option<Class>, Diagnostic> {
    let family = spec.family.name();
    Ok(Some(match spec.family {
        Family::Rows => return Ok(None),
        Family::Matvec | Family::Matmul => {
            let s = contract::Sizes::of(spec.body)?;
            let from = if s.plain { "plain" } else { "computed" };
            let kind = format!("{family} {} {from} {}", s.dtype.name(), s.pieces);
            Class { kind, sizes: vec![s.rows, s.depth, spec.tokens] }
        }
        Family::AttendOne | Family::AttendMany => {
            let s = attend::Sizes::of(spec.body)?;
            let kind = format!("{family} {} {} {}", s.cache.dtype.name(), s.group(), s.cache.head_dim);
            Class { kind, sizes: vec![s.cache.heads, spec.tokens] }
        }
    }))
}

/// Every choice of numbers that the kernel's schedule leaves open on an arch.
pub fn choices(spec: &KernelSpec, arch: &Arch) -> Vec<Choice> {
    match (spec.family, arch.isa()) {
        (_, None) => vec![],
        (Family::AttendOne, _) => Choice::all(decode::OPEN),
        (Family::Matvec, _) if stream_k::suits(spec, arch).unwrap_or(false) => vec![],
        (Family::Matvec, _) => {
            let all = Choice::all(gemv_bulk::OPEN).into_iter();
            all.filter(|choice| gemv_bulk::suits(spec, arch, choice).unwrap_or(false)).collect()
        }
        (Family::Matmul, _) if warpgroup::suits(spec, arch).unwrap_or(false) => {
            warpgroup::choices(spec).unwrap_or_default()
        }
        _ => vec![],
    }
}
