//! What kernels take of an AMD GPU, read from the linked code object: its metadata, and its instructions as LLVM
//! disassembles them.
mod class;
mod loops;
#[cfg(test)]
mod tests;

use atomc_artifact::hsaco::{CodeObject, Kernel};
use atomc_ir::Diagnostic;
use atomc_ir::arch::{ComputeUnit, Simt};

use crate::disasm::{Disassembler, Instruction};
use crate::{LoopReport, Resources};
use class::Class;

/// The facts of a chip that a report needs. "Shared" means: by the SIMDs that one work-group may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub wave: usize,
    /// Vector registers of a SIMD for each lane, and the multiple in which a wave gets them.
    pub vgprs: usize,
    pub vgpr_granule: usize,
    pub max_waves: usize,
    /// Bytes of shared LDS, and the multiple in which a work-group gets them.
    pub lds: usize,
    pub lds_granule: usize,
    /// SIMDs that share the LDS.
    pub simds: usize,
    /// What LLVM's disassembler needs beyond the processor's name.
    pub features: &'static str,
}

impl Limits {
    /// The limits of a chip, whose code needs these features to be read.
    pub fn of(simt: &Simt, features: &'static str) -> Limits {
        let ComputeUnit { simds, lds, lds_granule, vgprs, vgpr_granule, waves, .. } = simt.unit;
        Limits { wave: simt.wave, vgprs, vgpr_granule, max_waves: waves, lds, lds_granule, simds, features }
    }
}

/// A kernel with what it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelResources {
    pub symbol: String,
    pub resources: Resources,
}

/// The kernels of a code object, in its order.
pub fn report(code: &[u8], limits: &Limits) -> Result<Vec<KernelResources>, Diagnostic> {
    let fail = |e| Diagnostic::new("target::report", format!("cannot read the linked code object: {e}"));
    let object = CodeObject::read(code).map_err(fail)?;
    let mut disassembler = Disassembler::amd(&object.isa.processor, limits.features)?;
    let resources = |kernel: &Kernel| {
        let instructions = disassembler.all(&code[kernel.code.file.clone()], kernel.code.address);
        let instructions = instructions.map_err(|e| e.at(format!("kernel {}", kernel.name)))?;
        Ok(KernelResources { symbol: kernel.name.clone(), resources: resources(kernel, &instructions, limits) })
    };
    object.kernels.iter().map(resources).collect()
}

fn resources(kernel: &Kernel, instructions: &[Instruction], limits: &Limits) -> Resources {
    let m = &kernel.metadata;
    let code = trimmed(instructions);
    let classes: Vec<Class> = code.iter().map(|i| Class::of(&i.text)).collect();
    Resources {
        vgprs: m.vgpr_count as usize,
        agprs: m.agpr_count as usize,
        sgprs: m.sgpr_count as usize,
        lds: m.group_segment_fixed_size as usize,
        scratch: m.private_segment_fixed_size as usize,
        vgpr_spills: m.vgpr_spill_count as usize,
        sgpr_spills: m.sgpr_spill_count as usize,
        occupancy: occupancy(m.vgpr_count as usize, m.group_segment_fixed_size as usize, threads(kernel), limits),
        code_bytes: code.iter().map(|i| i.bytes as usize).sum(),
        instructions: code.len(),
        matrix: classes.iter().filter(|c| **c == Class::Matrix).count(),
        loops: loops::innermost(code).into_iter().map(|range| loop_report(&classes[range])).collect(),
    }
}

fn threads(kernel: &Kernel) -> usize {
    kernel.metadata.max_flat_workgroup_size as usize
}

/// Without the padding behind the last end of the program, which LLVM adds for the instruction prefetcher.
fn trimmed(instructions: &[Instruction]) -> &[Instruction] {
    let end = instructions.iter().rposition(|i| i.text.starts_with("s_endpgm"));
    end.map_or(instructions, |end| &instructions[..=end])
}

/// Waves that a SIMD can hold: as many as its registers are enough for, or as the work-groups have for which the LDS is
/// enough (LLVM User Guide for AMDGPU, "Kernel Dispatch"; `AMDGPUBaseInfo.cpp`, `getNumWavesPerEUWithNumVGPRs`;
/// `AMDGPUSubtarget.cpp`, `getOccupancyWithWorkGroupSizes`).
pub fn occupancy(vgprs: usize, lds: usize, threads: usize, limits: &Limits) -> f32 {
    let by_registers = limits.vgprs / vgprs.max(1).next_multiple_of(limits.vgpr_granule);
    let waves = by_registers.min(limits.max_waves) as f32;
    if lds == 0 {
        return waves;
    }
    let groups = limits.lds / lds.next_multiple_of(limits.lds_granule);
    let by_lds = (groups * threads.div_ceil(limits.wave)) as f32 / limits.simds as f32;
    waves.min(by_lds)
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
