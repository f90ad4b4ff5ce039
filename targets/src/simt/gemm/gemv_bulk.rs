//! Family `matvec` where the machine copies runs of memory into local memory by itself. The weight
//! streams through pipelines, one for each wave. Their first stages are loaded before the previous
//! kernel has ended.
//!
//! One work-group stays on each compute unit. It makes a run of panels of the result, in passes
//! over the columns of the weight. A wave takes every `waves_n`-th panel, and every `waves_k`-th
//! stage along the columns, and keeps the sums of all its panels of a pass. Rows are copied into
//! local memory a K tile at a time, the next one during the products of this one. At the end of a
//! pass the sums of the waves are added in local memory.
//!
//! There are three schedules, a file each: `floats`, `dequant` and `limbs`. They decide how the
//! operands in local memory are multiplied (`main_loop::Products`); everything else is shared.
mod codes;
mod dequant;
mod epilogue;
mod floats;
mod limbs;
mod loader;
mod main_loop;
mod scheduler;
mod shape;
#[cfg(test)]
pub mod tests;

use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::{Diagnostic, Graph};

use crate::schedule::WhyNot;
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::{Contraction, Sizes};
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::fragment::Matrix;
use crate::tuning::Choice;
use crate::{KernelSpec, Tasks};
use codes::multiplied;
pub use dequant::SCHEDULE as DEQUANT;
pub use floats::SCHEDULE;
pub use limbs::SCHEDULE as LIMBS;
use loader::WeightPipeline;
use main_loop::{Products, Rows, WorkGroup};
use scheduler::PanelRun;
use shape::{Form, Shape};

/// Waves that a SIMD has registers for where tokens are few. The next kernel's waves fit in as
/// well.
const FEW_TOKENS: usize = 3;
/// Most tokens.
const TOKENS: usize = 64;

/// The form in which a schedule multiplies its operands, or why it does not.
type FormOf = fn(&Graph) -> Result<Form, WhyNot>;

/// The shape of a kernel, if the machine and the operands allow it.
fn fits(spec: &KernelSpec, arch: GpuArch, choice: &Choice, form: FormOf) -> Result<Shape, WhyNot> {
    let (sizes, simt) = (Sizes::of(spec.body)?, arch.simt);
    let dtype = multiplied(spec.body, sizes.dtype);
    WhyNot::unless(simt.bulk_copies, || format!("{} has no bulk copies", arch.name))?;
    let form = form(spec.body)?;
    WhyNot::unless(Matrix::native(simt, dtype), || format!("{} has no MMA of {}", arch.name, dtype.name()))?;
    WhyNot::unless(spec.tokens <= TOKENS, || format!("{} tokens: at most {TOKENS}", spec.tokens))?;
    let shape = Shape::new(spec, arch, choice, form)?;
    form.codes().map_or(Ok(()), |layout| layout.check(spec.body, &shape))?;
    Ok(shape)
}

/// The parts that operands are built on.
#[derive(Clone, Copy)]
struct Ground<'w, 'k, 'a, 'c> {
    contraction: &'w Contraction<'k, 'a, 'c>,
    codes: Option<&'w Codes<'c>>,
    shape: Shape,
    spec: &'w KernelSpec<'w>,
    run: PanelRun<'c>,
}

/// The source of rows, and the products of rows with the weight.
struct Operands<'w, 'k, 'a, 'c> {
    rows: Rows<'w, 'k, 'a, 'c>,
    products: Box<dyn Products<'c> + 'w>,
}

/// Begins to load a schedule's operands, as far as no kernel writes them.
type Begin = for<'w, 'k, 'a, 'c> fn(Ground<'w, 'k, 'a, 'c>) -> Result<Operands<'w, 'k, 'a, 'c>, Diagnostic>;

/// A kernel of a schedule.
fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec, form: FormOf, begin: Begin) -> launch::Made<'c> {
    let form = form(spec.body).map_err(WhyNot::diagnostic)?;
    let shape = Shape::new(spec, setup.gpu()?, &setup.choice, form)?;
    let code = setup.open_early(spec, shape.threads())?;
    code.want_waves(if shape.tiles() == 1 { FEW_TOKENS } else { shape.waves().div_ceil(setup.gpu()?.simt.unit.simds) });
    {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let mut contraction = Contraction::new(&kernel)?;
        contraction.matrix = Matrix::new(c, multiplied(spec.body, contraction.matrix.dtype));
        let contraction = contraction;
        let codes = Codes::of(&contraction.parts)?;
        let codes = codes.as_ref();
        if shape.cluster > 1 {
            c.make_cluster(shape.cluster);
        }
        let run = PanelRun::new(c, shape);
        let (weights, index) = WeightPipeline::fill(&contraction, codes, shape, run);
        let Operands { rows, products } = begin(Ground { contraction: &contraction, codes, shape, spec, run })?;
        if shape.copied || shape.shared_bytes() > 0 {
            c.barrier();
        }
        c.await_previous();
        rows.begin()?;
        let partials = match shape.one_pass {
            true => (weights.local, shape.pipeline_bytes()),
            false => (c.shared(shape.waves() * shape.sums_bytes(), 16), shape.sums_bytes()),
        };
        let weights = &weights;
        WorkGroup { contraction: &contraction, shape, weights, rows, products, partials, run }.all(index)?;
    }
    Ok((code, manifest::Kernel::simt(Tasks::Fixed(shape.groups * shape.cluster), shape.threads())))
}
