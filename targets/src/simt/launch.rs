//! The common ground of all schedules: the kernel under construction, its arguments, and the size
//! of the step.
use std::mem::offset_of;
use std::ops::Deref;

use atomc_artifact::{abi, manifest};
use atomc_ir::arch::GpuArch;
use atomc_ir::arch::Measured;
use atomc_ir::{Arch, DType, Diagnostic, Graph, Type};
use inkwell::module::Module;

use crate::KernelSpec;
use crate::code::Int;
use crate::kernel;
use crate::row::unsupported;
pub use crate::schedule::Setup;
use crate::simt::machine;
use crate::simt::machine::Gpu;

/// Bytes at the start of a workspace that hold counters of any kernel. They are zero after every
/// launch; the other data of kernels lies after them.
pub const COUNTERS: usize = 128 << 10;

/// The row of a GPU.
pub fn gpu(arch: &Arch) -> Result<GpuArch<'_>, Diagnostic> {
    arch.gpu().ok_or_else(|| unsupported(format!("{} is no GPU", arch.name)))
}

impl<'c> Setup<'c> {
    /// The row of the GPU that the kernel is for.
    pub fn gpu(&self) -> Result<GpuArch<'c>, Diagnostic> {
        gpu(self.arch)
    }

    /// Opens the kernel of a specification, after the previous kernel has ended.
    pub fn open(&self, spec: &KernelSpec, threads: usize) -> Result<Gpu<'c>, Diagnostic> {
        let code = self.open_early(spec, threads)?;
        code.await_previous();
        Ok(code)
    }

    /// The kernel of a specification, which must itself [wait](Gpu::await_previous) for the one
    /// before it.
    pub fn open_early(&self, spec: &KernelSpec, threads: usize) -> Result<Gpu<'c>, Diagnostic> {
        Ok(machine::open(self.llvm, &spec.symbol, self.gpu()?, arguments(spec.body) + 2, threads))
    }
}

/// The result of a schedule.
pub type Made<'c> = Result<(Gpu<'c>, manifest::Kernel), Diagnostic>;

/// The kernel's module, and the needs of its code at a launch.
pub fn finish(made: Made) -> Result<(Module, manifest::Kernel), Diagnostic> {
    let (code, info) = made?;
    let info = manifest::Kernel { shared: code.shared.get(), overlaps: code.awaited.get(), ..info };
    Ok((code.finish(), info))
}

/// The numbers that were measured on the arch's chip, or estimated for it.
pub fn measured(arch: GpuArch) -> Result<Measured, Diagnostic> {
    let found = arch.simt.measured.map(|known| known.value);
    found.ok_or_else(|| unsupported(format!("{}: nothing was measured on its chip", arch.name)))
}

/// [`manifest::Kernel::rate`] of a product of operands of a type, if both are multiplied as stored.
pub fn rate(arch: GpuArch, as_stored: Option<DType>) -> u32 {
    as_stored.map_or(1, |dtype| arch.simt.chip.rate(dtype))
}

/// Pointers of a body: operands, then results. The step and the workspace follow.
pub fn arguments(body: &Graph) -> usize {
    let operands = body.inputs().into_iter().map(|v| if body.ty(v).as_cache().is_some() { 2 } else { 1 });
    let results = body.outputs().iter().filter(|&&v| matches!(body.ty(v), Type::Tensor(_)));
    operands.sum::<usize>() + results.count()
}

/// A kernel's body, with the code of a GPU.
pub struct Kernel<'a, 'c> {
    pub code: &'a Gpu<'c>,
    body: kernel::Kernel<'a, 'c>,
}

impl<'a, 'c> Deref for Kernel<'a, 'c> {
    type Target = kernel::Kernel<'a, 'c>;
    fn deref(&self) -> &kernel::Kernel<'a, 'c> {
        &self.body
    }
}

/// The body with the kernel's arguments as its operands and results.
pub fn kernel<'a, 'c>(c: &'a Gpu<'c>, spec: &KernelSpec<'a>) -> Result<Kernel<'a, 'c>, Diagnostic> {
    Ok(Kernel { code: c, body: kernel::Kernel::new(c, spec, |i| c.argument(i))? })
}

/// Tokens, or rows, that the step has.
pub fn step_size<'c>(c: &Gpu<'c>, spec: &KernelSpec, by_rows: bool) -> Int<'c> {
    let offset = if by_rows { offset_of!(abi::Step, rows) } else { offset_of!(abi::Step, tokens) };
    let field = c.at(c.argument(arguments(spec.body)), offset);
    c.as_int(c.load_fixed(c.cx.i32_type(), field, 8))
}

/// Runs `body` in work-groups with a row that the step has.
pub fn when_in_step<'c>(
    c: &Gpu<'c>,
    spec: &KernelSpec,
    kernel: &Kernel<'_, 'c>,
    row: Int<'c>,
    body: impl FnOnce() -> Result<(), Diagnostic>,
) -> Result<(), Diagnostic> {
    c.when(c.less(row, step_size(c, spec, kernel.by_rows) * kernel.choices), body)
}
