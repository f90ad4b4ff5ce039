//! Kernels for x86-64 CPUs, one module a schedule family.
mod attend;
mod contract;
mod dot;
mod matmul;
mod matvec;
mod rows;
mod signature;
mod tile;

use atomc_ir::{Diagnostic, Family};
use inkwell::module::Module;

use crate::code::Code;
use crate::schedule::{Emit, Schedule, Setup};
use crate::{KernelInfo, KernelSpec};

/// Elements of a logical vector.
const LANES: usize = 16;

/// All schedules: one for each family.
pub const SCHEDULES: &[Schedule] = &[
    only("rows", Family::Rows, |setup, spec| emit(setup, spec, rows::emit)),
    only("matvec", Family::Matvec, |setup, spec| emit(setup, spec, matvec::emit)),
    only("matmul", Family::Matmul, |setup, spec| emit(setup, spec, matmul::emit)),
    only("attend_one", Family::AttendOne, |setup, spec| emit(setup, spec, attend::emit_one)),
    only("attend_many", Family::AttendMany, |setup, spec| emit(setup, spec, attend::emit_many)),
];

/// The only schedule of a family.
const fn only(name: &'static str, family: Family, emit: Emit) -> Schedule {
    Schedule { name, family, suits: |_, _, _| Ok(()), open: None, emit }
}

fn emit<'c>(
    setup: &Setup<'c>,
    spec: &KernelSpec,
    body: impl Fn(&Code<'c>, &KernelSpec) -> Result<KernelInfo, Diagnostic>,
) -> Result<(Module<'c>, KernelInfo), Diagnostic> {
    let code = signature::open(setup.llvm, &spec.symbol, setup.arch);
    let info = body(&code, spec)?;
    Ok((code.finish(), info))
}
