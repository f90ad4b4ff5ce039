//! From fused kernels to code objects.
//!
//! Emitting is a pure function of a kernel and an arch row; each kernel has an LLVM context of its
//! own, so they compile in parallel.
//!
//! `arch/` has the arch rows, a file a vendor. `tuning.rs` reads the tables in `tuned/`.
//! `select.rs` chooses a schedule of the type in `schedule.rs`. `llvm.rs`, `link.rs` and
//! `metadata.rs` use LLVM; `ptx.rs` makes NVIDIA's modules.
//!
//! There are two sets of schedules: `host/` for CPUs and `simt/` for GPUs, of the families of
//! `ir/src/family.rs`. Both use `code.rs` with `code/` (the builder of all machines, and `Int` and
//! `Float` with their operators), `math.rs`, `row.rs` (evaluates row-wise ops a vector at a time,
//! without materialising anything), `kernel.rs`, `cache.rs` and `contraction.rs`. The inner steps
//! of products are `host/dot.rs`, `host/codes/` and `simt/machine/fragment.rs`.
//! `simt/machine/mod.rs` is `Gpu`, the builder with everything that only GPUs have; host kernels
//! cannot reach it. GPU schedules are in `simt/{gemm,experts,attention,recurrent,rowwise}/`, a file
//! or a folder each, and in the list in `simt/mod.rs`; all of them use `simt/launch.rs`.
//!
//! `report.rs` reads the resources of GPU kernels from the linked code object: registers, LDS and
//! occupancy, and for each innermost loop the instructions of each class, the waits that leave
//! loads in flight, and the arithmetic that hides a load. Loaders read one metadata note, so
//! `metadata.rs` merges the notes of all kernels before linking.
pub mod arch;
mod argmax;
mod cache;
mod choice;
mod code;
mod contraction;
mod disasm;
mod held;
mod host;
mod jobs;
mod kernel;
mod link;
mod llvm;
mod math;
mod metadata;
mod ptx;
mod recurrent;
pub mod report;
mod row;
mod schedule;
mod select;
mod simt;
mod spec;
mod steps;
pub mod tuning;

use atomc_ir::arch::{GpuArch, Isa, Machine};
use atomc_ir::{Arch, DType, Diagnostic, Family, Tokens};

use llvm::Llvm;
use report::KernelResources;

pub use arch::{rows, variants};
pub use atomc_artifact::manifest::{self, LoopReport, Module, Resources, Tasks};
pub use jobs::Object;
use jobs::{Job, parallel};
pub use schedule::{Schedule, WhyNot};
pub use select::{Asked, ask, open, read_table, schedules, select};
pub use simt::COUNTERS;
pub use spec::{Form, KernelSpec};
pub use tuning::Choice;

/// Whether kernels of an arch attend with queries of a type over a cache of another.
pub fn attends(cache: DType, query: DType, arch: &Arch) -> bool {
    match arch.machine {
        Machine::Cpu(_) => true,
        Machine::Simt(_) => simt::attends(cache, query),
    }
}

/// Whether a family's kernels are made for the tokens of one bucket.
pub fn is_for_one_bucket(family: Family, arch: &Arch) -> bool {
    match family.tokens() {
        Tokens::Any | Tokens::FewOnGpus => false,
        Tokens::Bucket => true,
        Tokens::BucketOnGpus => arch.isa().is_some(),
    }
}

/// Whether steps of few tokens of a sequence, which decode or verify guesses, have kernels of the
/// family of their own on the machine, and others share theirs.
pub fn few_apart(family: Family, arch: &Arch) -> bool {
    family.tokens() == Tokens::FewOnGpus && arch.isa().is_some()
}

/// Whether steps that verify guesses have kernels of their own for the family on the machine:
/// several tokens of a sequence read its keys together.
pub fn verifies_apart(family: Family, arch: &Arch) -> bool {
    family == Family::AttendMany && arch.isa().is_some()
}

/// The kernels of a GPU that work for a framework or for ranks, in addition to those of bodies.
#[derive(Clone, Debug)]
pub struct Hosted {
    /// Makes a step's inputs.
    pub prepare: manifest::Kernel,
    /// Makes weights.
    pub pack: manifest::Kernel,
    /// Exchanges rows among ranks, if there are several.
    pub exchange: Option<manifest::Kernel>,
}

/// Code of all kernels: one code object, or a module for each.
pub fn compile(kernels: &[KernelSpec], arch: &Arch) -> Result<Object, Diagnostic> {
    compile_jobs(&kernels.iter().map(Job::Body).collect::<Vec<_>>(), arch)
}

/// Compiles kernels and, on GPUs, the kernels that work for a framework, and for ranks if there are
/// several.
pub fn compile_hosted(
    kernels: &[KernelSpec],
    ranks: usize,
    arch: &Arch,
) -> Result<(Object, Option<Hosted>), Diagnostic> {
    let own = [Job::Prepare, Job::Pack].into_iter().chain((ranks > 1).then_some(Job::Exchange));
    let own = own.filter(|_| arch.isa().is_some());
    let jobs: Vec<Job> = kernels.iter().map(Job::Body).chain(own).collect();
    let mut object = compile_jobs(&jobs, arch)?;
    let mut own = object.kernels.split_off(kernels.len()).into_iter();
    let hosted = own.next().zip(own.next()).map(|(prepare, pack)| Hosted { prepare, pack, exchange: own.next() });
    Ok((object, hosted))
}

fn compile_jobs(jobs: &[Job], arch: &Arch) -> Result<Object, Diagnostic> {
    let gpu = arch.gpu();
    if let Some(gpu) = gpu.filter(|gpu| gpu.simt.isa == Isa::Ptx) {
        return ptx::compile(jobs, gpu);
    }
    let (objects, mut kernels): (Vec<_>, Vec<_>) = parallel(jobs, |job| {
        let _span = tracing::debug_span!("kernel", symbol = job.symbol(), arch = arch.name).entered();
        object(job, arch, None)
    })?
    .into_iter()
    .unzip();
    let Some(gpu) = gpu else { return Ok(Object { code: link::shared(&objects)?, kernels }) };
    let code = linked(objects.clone(), gpu)?;
    let mut found = resources(&code, jobs, gpu)?;
    let numbers: Vec<usize> = (0..jobs.len()).collect();
    let better = parallel(&numbers, |&i| match steps::spills(&found[i]) {
        0 => one_wave_more(&jobs[i], gpu, &kernels[i], &found[i]),
        _ => without_spills(&jobs[i], gpu, &found[i]),
    })?;
    let is_final = better.iter().all(Option::is_none);
    let mut chosen = objects;
    for (i, (object, taken)) in better.into_iter().enumerate().filter_map(|(i, better)| Some((i, better?))) {
        (chosen[i], found[i]) = (object, taken);
    }
    for (kernel, taken) in kernels.iter_mut().zip(found) {
        kernel.resources = Some(taken.resources);
    }
    Ok(Object { code: if is_final { code } else { linked(chosen, gpu)? }, kernels })
}

/// A code object of kernels. The metadata come in the kernels' order.
fn linked(objects: Vec<Vec<u8>>, gpu: GpuArch) -> Result<Vec<u8>, Diagnostic> {
    link::shared(&metadata::merge(objects, gpu.arch())?)
}

/// A kernel's object. If `waves` is given, one of LLVM's instruction schedulers has to leave room
/// for that many waves on a SIMD.
fn object(job: &Job, arch: &Arch, waves: Option<(usize, &str)>) -> Result<(Vec<u8>, manifest::Kernel), Diagnostic> {
    let cx = llvm::context();
    let b = cx.create_builder();
    let (module, info) = job.emit(Llvm { cx: &cx, b: &b }, arch)?;
    if let Some((waves, scheduler)) = waves {
        simt::want_waves(&module, job.symbol(), waves, scheduler);
    }
    Ok((llvm::object(&module, arch)?, info))
}

/// The resources of each kernel of a code object.
fn resources(code: &[u8], jobs: &[Job], gpu: GpuArch) -> Result<Vec<KernelResources>, Diagnostic> {
    let found = report::report(code, gpu)?;
    match found.iter().map(|kernel| kernel.symbol.as_str()).eq(jobs.iter().map(|job| job.symbol())) {
        true => Ok(found),
        false => Err(Diagnostic::new("target::report", format!("{}: other kernels than were asked for", gpu.name))),
    }
}

/// A better object of a kernel, with another wave on each SIMD, if a few registers less are enough
/// for it, and its resources.
fn one_wave_more(
    job: &Job,
    gpu: GpuArch,
    info: &manifest::Kernel,
    found: &KernelResources,
) -> Result<Option<(Vec<u8>, KernelResources)>, Diagnostic> {
    let waves = steps::within_reach(&gpu.simt.unit, info.threads.div_ceil(gpu.simt.wave), found);
    for (waves, scheduler) in waves.into_iter().flat_map(|waves| steps::SCHEDULERS.map(|s| (waves, s))) {
        let (other, _) = object(job, gpu.arch(), Some((waves, scheduler)))?;
        let taken = resources(&linked(vec![other.clone()], gpu)?, std::slice::from_ref(job), gpu)?.remove(0);
        if steps::is_better(&taken, found) {
            tracing::debug!(symbol = job.symbol(), vgprs = found.resources.vgprs, waves, scheduler, "one wave more");
            return Ok(Some((other, taken)));
        }
    }
    Ok(None)
}

/// An object of a kernel with fewer spills, by fewer waves on each SIMD or another of LLVM's
/// schedulers, and its resources.
fn without_spills(
    job: &Job,
    gpu: GpuArch,
    found: &KernelResources,
) -> Result<Option<(Vec<u8>, KernelResources)>, Diagnostic> {
    let waves = (1..=found.resources.occupancy.max(1.0) as usize).rev();
    let mut best = None;
    let mut least = steps::spills(found);
    for (waves, scheduler) in waves.flat_map(|waves| steps::SCHEDULERS.map(|s| (waves, s))) {
        let (other, _) = object(job, gpu.arch(), Some((waves, scheduler)))?;
        let taken = resources(&linked(vec![other.clone()], gpu)?, std::slice::from_ref(job), gpu)?.remove(0);
        let spills = steps::spills(&taken);
        tracing::debug!(symbol = job.symbol(), waves, scheduler, spills, "instead of spilling");
        if spills < least {
            (least, best) = (spills, Some((other, taken)));
        }
        if least == 0 {
            break;
        }
    }
    Ok(best)
}

/// The release of the assembler that shapes an arch's code, if one takes part.
pub fn assembler(arch: &Arch) -> Result<Option<String>, Diagnostic> {
    match arch.isa() {
        Some(Isa::Ptx) => ptx::Assembler::find()?.map(|found| found.version()).transpose(),
        _ => Ok(None),
    }
}

/// The kernels as LLVM IR or as assembly, one after the other.
pub fn text(kernels: &[KernelSpec], arch: &Arch, form: Form) -> Result<String, Diagnostic> {
    let parts = parallel(kernels, |spec| {
        let cx = llvm::context();
        let b = cx.create_builder();
        let (module, _) = select::emit(Llvm { cx: &cx, b: &b }, spec, arch)?;
        llvm::text(&module, arch, form)
    })?;
    Ok(parts.join("\n"))
}
