//! The resources of kernels on an AMD GPU, read from the linked code object: its metadata, and its
//! instructions as LLVM disassembles them.
mod class;
mod loops;
#[cfg(test)]
mod tests;

use atomc_artifact::hsaco::{CodeObject, Kernel};
use atomc_ir::Diagnostic;
use atomc_ir::arch::{ComputeUnit, GpuArch};

use crate::disasm::{Disassembler, Instruction};
use crate::jobs::parallel;
use crate::{LoopReport, Resources};
use class::Class;

/// A kernel with its resources.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelResources {
    pub symbol: String,
    pub resources: Resources,
    /// All of its instructions by class, loops and the rest.
    pub whole: LoopReport,
    /// Multiply-adds that its matrix instructions make, each counted once.
    pub multiply_adds: usize,
    /// Bytes that its loads from global memory fetch for a lane.
    pub load_bytes: usize,
}

/// The kernels of a code object for a GPU's row, in its order.
pub fn report(code: &[u8], arch: GpuArch) -> Result<Vec<KernelResources>, Diagnostic> {
    let fail = |e| Diagnostic::new("target::report", format!("cannot read the linked code object: {e}"));
    let object = CodeObject::read(code).map_err(fail)?;
    parallel(&object.kernels, |kernel| {
        let mut disassembler = Disassembler::amd(arch.cpu, arch.attributes)?;
        let instructions = disassembler.all(&code[kernel.code.file.clone()], kernel.code.address);
        let instructions = instructions.map_err(|e| e.at(format!("kernel {}", kernel.name)))?;
        Ok(resources(kernel, trimmed(&instructions), arch))
    })
}

fn resources(kernel: &Kernel, code: &[Instruction], arch: GpuArch) -> KernelResources {
    let m = &kernel.metadata;
    let waves = (m.max_flat_workgroup_size as usize).div_ceil(arch.simt.wave);
    let classes: Vec<Class> = code.iter().map(|i| Class::of(&i.text)).collect();
    let resources = Resources {
        vgprs: m.vgpr_count as usize,
        agprs: m.agpr_count as usize,
        sgprs: m.sgpr_count as usize,
        lds: m.group_segment_fixed_size as usize,
        scratch: m.private_segment_fixed_size as usize,
        vgpr_spills: m.vgpr_spill_count as usize,
        sgpr_spills: m.sgpr_spill_count as usize,
        occupancy: occupancy(&arch.simt.unit, m.vgpr_count as usize, m.group_segment_fixed_size as usize, waves),
        code_bytes: code.iter().map(|i| i.bytes as usize).sum(),
        instructions: code.len(),
        matrix: classes.iter().filter(|c| **c == Class::Matrix).count(),
        loops: loops::innermost(code).into_iter().map(|range| loop_report(&classes[range])).collect(),
    };
    let multiply_adds = code.iter().map(|i| class::multiply_adds(&i.text)).sum();
    let bytes = |c: &Class| if let Class::Load { bytes } = c { *bytes } else { 0 };
    let load_bytes = classes.iter().map(bytes).sum();
    KernelResources { symbol: kernel.name.clone(), resources, whole: loop_report(&classes), multiply_adds, load_bytes }
}

/// The instructions without the padding after the last end of the program, which LLVM adds for the
/// instruction prefetcher.
fn trimmed(instructions: &[Instruction]) -> &[Instruction] {
    let end = instructions.iter().rposition(|i| i.text.starts_with("s_endpgm"));
    end.map_or(instructions, |end| &instructions[..=end])
}

/// Waves that a SIMD can hold: as many as its registers are enough for, or as the work-groups have
/// for which the unit's LDS is enough (LLVM's `AMDGPUBaseInfo.cpp`, `getNumWavesPerEUWithNumVGPRs`,
/// and `AMDGPUSubtarget.cpp`, `getOccupancyWithWorkGroupSizes`). The metadata's count of registers
/// has those for accumulation in it.
pub fn occupancy(unit: &ComputeUnit, vgprs: usize, lds: usize, group_waves: usize) -> f32 {
    let waves = (unit.vgprs / vgprs.max(1).next_multiple_of(unit.vgpr_granule)).min(unit.waves) as f32;
    match unit.lds.checked_div(lds.next_multiple_of(unit.lds_granule)) {
        Some(groups) => waves.min((groups * group_waves) as f32 / unit.simds as f32),
        None => waves,
    }
}

fn loop_report(body: &[Class]) -> LoopReport {
    let count = |f: &dyn Fn(&Class) -> bool| body.iter().filter(|c| f(c)).count();
    LoopReport {
        instructions: body.len(),
        matrix: count(&|c| *c == Class::Matrix),
        valu: count(&|c| *c == Class::Vector),
        salu: count(&|c| *c == Class::Scalar),
        lds: count(&|c| *c == Class::Lds),
        loads: count(&|c| matches!(c, Class::Load { .. })),
        loads_x4: count(&|c| *c == Class::Load { bytes: 16 }),
        waits: count(&|c| matches!(c, Class::Wait { .. })),
        partial_waits: count(&|c| matches!(c, Class::Wait { loads: Some(1..) })),
        overlap: loops::overlap(body),
        barriers: count(&|c| *c == Class::Barrier),
    }
}
