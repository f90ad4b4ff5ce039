//! Kernels for GPUs, one module a schedule family, written once over work-groups of waves of lanes.
//!
//! Contractions and attention compute with the weight, or the cache, as the left operand: 16 rows of it by 16 tokens. So a
//! lane holds results of one token only, a softmax or a norm stays inside a lane but for the last steps, and the packed
//! layouts are read as the lanes of a matrix instruction want them, 16 bytes a lane and one run of memory a wave.
mod attend;
mod attend_many;
mod attend_one;
mod attend_wide;
mod contract;
mod fragment;
mod largest;
mod machine;
mod matmul;
mod matvec;
mod prepare;
mod ring;
mod rows;
mod spread;
mod square;
mod stored;
mod stream;
mod supply;
mod wide;

use atomc_ir::{Arch, DType, Diagnostic, Family, Graph, Type};
use inkwell::context::Context;
use inkwell::module::Module;

use crate::code::{Code, Int};
use crate::kernel::Kernel;
use crate::tuning::{Choice, Class, Table};
use crate::{KernelInfo, KernelSpec};

/// Bytes at the start of a workspace that hold counters, whichever kernel uses it: behind every launch they are zero, and what
/// one kernel leaves in the rest is never where another counts.
pub const COUNTERS: usize = 128 << 10;

/// Where a kernel is made, and with which numbers.
pub struct Setup<'c> {
    cx: &'c Context,
    arch: &'c Arch,
    choice: Choice,
}

impl<'c> Setup<'c> {
    /// The kernel of a specification, where the kernel before it has ended.
    fn open(&self, spec: &KernelSpec, threads: usize) -> Code<'c> {
        let code = self.open_early(spec, threads);
        code.await_previous();
        code
    }

    /// The kernel of a specification, which must itself [wait](Code::await_previous) for the one before it.
    fn open_early(&self, spec: &KernelSpec, threads: usize) -> Code<'c> {
        machine::open(self.cx, &spec.symbol, self.arch, arguments(spec.body) + 2, threads)
    }
}

/// Whether kernels attend with queries of a type over a cache of another.
pub fn attends(cache: DType, query: DType) -> bool {
    stored::Stored::of(cache, query).is_some()
}

/// The kernel that prepares steps.
pub fn emit_prepare<'c>(cx: &'c Context, arch: &'c Arch) -> (Module<'c>, KernelInfo) {
    prepare::emit(cx, arch)
}

/// At least so many waves of a kernel for AMD on every SIMD, in place of what its schedule asked for, and who orders its
/// instructions.
pub fn want_waves(module: &Module, symbol: &str, waves: usize, scheduler: &str) {
    let function = module.get_function(symbol).expect("the kernel that was emitted");
    machine::want_waves(function, waves);
    machine::set(function, "amdgpu-sched-strategy", scheduler);
}

/// The kernel as a module with one function of that name.
pub fn emit<'c>(cx: &'c Context, spec: &KernelSpec, arch: &'c Arch) -> Result<(Module<'c>, KernelInfo), Diagnostic> {
    let (code, info) = made(cx, spec, arch).map_err(|e| e.at(format!("kernel {} on {}", spec.symbol, arch.name)))?;
    let info = KernelInfo { shared: code.shared.get(), overlaps: code.awaited.get(), ..info };
    Ok((code.finish(), info))
}

fn made<'c>(cx: &'c Context, spec: &KernelSpec, arch: &'c Arch) -> Result<(Code<'c>, KernelInfo), Diagnostic> {
    let found = || Ok(class(spec)?.map_or_else(Choice::default, |class| Table::of(arch).choice(&class)));
    let choice = spec.choice.clone().map_or_else(found, Ok)?;
    let setup = Setup { cx, arch, choice };
    match spec.family {
        Family::Rows => rows::emit(&setup, spec),
        Family::Matvec if spread::suits(spec, arch)? => spread::emit(&setup, spec),
        Family::Matvec if stream::suits(spec, arch, &setup.choice)? => stream::emit(&setup, spec),
        Family::Matvec => matvec::emit(&setup, spec),
        Family::Matmul if wide::suits(spec, arch)? => wide::emit(&setup, spec),
        Family::Matmul => matmul::emit(&setup, spec),
        Family::AttendOne => attend_one::emit(&setup, spec),
        Family::AttendMany if attend_wide::suits(spec, arch)? => attend_wide::emit(&setup, spec),
        Family::AttendMany => attend_many::emit(&setup, spec),
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
        (Family::AttendOne, _) => Choice::all(attend_one::OPEN),
        (Family::Matvec, _) if spread::suits(spec, arch).unwrap_or(false) => vec![],
        (Family::Matvec, _) => {
            let all = Choice::all(stream::OPEN).into_iter();
            all.filter(|choice| stream::suits(spec, arch, choice).unwrap_or(false)).collect()
        }
        (Family::Matmul, _) if wide::suits(spec, arch).unwrap_or(false) => wide::choices(spec).unwrap_or_default(),
        _ => vec![],
    }
}

/// Pointers of a body: operands, then results. The step and the workspace follow.
fn arguments(body: &Graph) -> usize {
    let operands = body.inputs().into_iter().map(|v| if body.ty(v).as_cache().is_some() { 2 } else { 1 });
    let results = body.outputs().iter().filter(|&&v| matches!(body.ty(v), Type::Tensor(_)));
    operands.sum::<usize>() + results.count()
}

fn kernel<'a, 'c>(c: &'a Code<'c>, spec: &KernelSpec<'a>) -> Result<Kernel<'a, 'c>, Diagnostic> {
    Kernel::new(c, spec, |i| c.argument(i))
}

/// Tokens, or rows, that the step has.
fn step_size<'c>(c: &Code<'c>, spec: &KernelSpec, by_rows: bool) -> Int<'c> {
    let field = c.at(c.argument(arguments(spec.body)), c.int(if by_rows { 8 } else { 0 }));
    c.load_fixed(c.cx.i32_type(), field, 8).into_int_value()
}

/// `body` in work-groups whose row the step has.
fn when_in_step<'c>(
    c: &Code<'c>,
    spec: &KernelSpec,
    kernel: &Kernel<'_, 'c>,
    row: Int<'c>,
    body: impl FnOnce() -> Result<(), Diagnostic>,
) -> Result<(), Diagnostic> {
    let mut result = Ok(());
    c.when(c.less(row, step_size(c, spec, kernel.by_rows)), || result = body());
    result
}
