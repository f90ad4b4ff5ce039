//! Kernels for x86-64 CPUs, one module a schedule family.
mod attend;
mod contract;
mod dot;
mod matmul;
mod matvec;
mod rows;
mod signature;
mod tile;

use atomc_ir::{Arch, Diagnostic, Family};
use inkwell::module::Module;

use crate::llvm::Llvm;
use crate::{KernelInfo, KernelSpec};

/// Elements of a logical vector.
const LANES: usize = 16;

/// The kernel as a module with one function of that name.
pub fn emit<'c>(llvm: Llvm<'c>, spec: &KernelSpec, arch: &'c Arch) -> Result<(Module<'c>, KernelInfo), Diagnostic> {
    let code = signature::open(llvm, &spec.symbol, arch);
    let info = match spec.family {
        Family::Rows => rows::emit(&code, spec),
        Family::Matvec => matvec::emit(&code, spec),
        Family::Matmul => matmul::emit(&code, spec),
        Family::AttendOne => attend::emit_one(&code, spec),
        Family::AttendMany => attend::emit_many(&code, spec),
    };
    let info = info.map_err(|e| e.at(format!("kernel {} on {}", spec.symbol, arch.name)))?;
    Ok((code.finish(), info))
}
