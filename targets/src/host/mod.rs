//! Kernels for x86-64 CPUs, one module a schedule family.
//!
//! Sixteen f32 lanes, or 16 rows by 4 bytes, are one AVX-512 register, one cache line and one row
//! of an AMX tile. So weights are packed in panels of 16 rows; inside a panel, groups of 4 bytes of
//! consecutive columns lie row by row. Matrix-vector kernels stream these bytes (`vdpbf16ps`, or
//! widened multiply-add), and AMX loads the same bytes as tiles. Keys in the cache are laid out as
//! a packed weight of 32 rows, values as one with tokens as columns, so attention is two
//! contractions. Rows of activations are padded to 32 elements with zeros, and every kernel keeps
//! the padding zero. A tied embedding exists once, packed: the lookup gathers from panels.
mod attend;
mod choose;
mod codes;
mod contract;
mod dot;
mod group;
mod grouped;
mod heads;
mod matmul;
mod matvec;
mod pool;
mod recur;
mod route;
mod rows;
mod signature;
mod streams;
mod tile;

use std::ops::Deref;

use atomc_artifact::manifest;
use atomc_ir::arch::Cpu;
use atomc_ir::{Diagnostic, Family};
use inkwell::module::Module;

use crate::KernelSpec;
use crate::code::Code;
use crate::row::unsupported;
use crate::schedule::{Emit, Schedule, Setup};

/// Elements of a logical vector.
const LANES: usize = 16;

/// All schedules: one for each family.
pub const SCHEDULES: &[Schedule] = &[
    only("rows", Family::Rows, |setup, spec| emit(setup, spec, rows::emit)),
    few("matvec", Family::Matvec, |setup, spec| emit(setup, spec, matvec::emit)),
    only("matmul", Family::Matmul, |setup, spec| emit(setup, spec, matmul::emit)),
    few("attend_one", Family::AttendOne, |setup, spec| emit(setup, spec, attend::emit_one)),
    only("attend_many", Family::AttendMany, |setup, spec| emit(setup, spec, attend::emit_many)),
    only("choose", Family::Choose, |setup, spec| emit(setup, spec, choose::emit)),
    only("attend_listed", Family::AttendListed, |setup, spec| emit(setup, spec, attend::emit_one)),
    only("group", Family::Group, |setup, spec| emit(setup, spec, group::emit)),
    few("grouped_matvec", Family::GroupedMatvec, |setup, spec| emit(setup, spec, grouped::emit_matvec)),
    only("grouped_matmul", Family::GroupedMatmul, |setup, spec| emit(setup, spec, grouped::emit_matmul)),
    only("recur", Family::Recur, |setup, spec| emit(setup, spec, recur::emit)),
];

/// The only schedule of a family.
const fn only(name: &'static str, family: Family, emit: Emit) -> Schedule {
    Schedule { name, family, invariant: true, suits: |_, _, _| Ok(()), open: None, emit }
}

/// A schedule with unrolled rows: the order in which a row is summed depends on the number of rows.
const fn few(name: &'static str, family: Family, emit: Emit) -> Schedule {
    Schedule { invariant: false, ..only(name, family, emit) }
}

/// A kernel for CPUs under construction: the builder that all machines share, and the processor.
pub struct Host<'c> {
    code: Code<'c>,
    core: &'c Cpu,
}

impl<'c> Deref for Host<'c> {
    type Target = Code<'c>;
    fn deref(&self) -> &Code<'c> {
        &self.code
    }
}

fn emit<'c>(
    setup: &Setup<'c>,
    spec: &KernelSpec,
    body: impl Fn(&Host<'c>, &KernelSpec) -> Result<manifest::Kernel, Diagnostic>,
) -> Result<(Module<'c>, manifest::Kernel), Diagnostic> {
    let arch = setup.arch.host().ok_or_else(|| unsupported(format!("{} is no CPU", setup.arch.name)))?;
    let host = Host { code: signature::open(setup.llvm, &spec.symbol, arch), core: arch.core };
    let info = body(&host, spec)?;
    Ok((host.code.finish(), info))
}
