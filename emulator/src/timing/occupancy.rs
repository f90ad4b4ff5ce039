//! Work-groups that a compute unit runs at once.
use atomc_artifact::hsaco::Descriptor;

use super::cu::CORE;
use crate::isa::Isa;
use crate::launch::Grid;

/// Vector registers of a lane, for all waves of a SIMD; a wave takes eights of them. Source:
/// instruction-set guide of CDNA3.
const REGISTERS: u32 = 512;
const GRANULE: u32 = 8;

/// Waves of a SIMD. Source: LLVM, `AMDGPUBaseInfo.cpp`, `getMaxWavesPerEU` of gfx90a and later.
const WAVES: u32 = 8;

/// Groups of a compute unit that have barriers. Source: LLVM, `getMaxWorkGroupsPerCU`.
const GROUPS: u32 = 16;

/// The groups of this shape that fit on a compute unit: LDS, vector registers and waves decide.
pub fn groups(kernel: &Descriptor, isa: &Isa, grid: &Grid) -> u32 {
    let threads: u32 = grid.threads.iter().product();
    let waves = threads.div_ceil(64).max(1);
    let registers = (kernel.compute_pgm_rsrc1.granulated_vgprs() + 1) * GRANULE;
    let by_waves = (REGISTERS / registers).clamp(1, WAVES) * CORE.simds as u32 / waves;
    let lds = kernel.group_segment_fixed_size + grid.dynamic_lds;
    let by_lds = isa.lds.checked_div(lds).unwrap_or(u32::MAX);
    let most = if waves == 1 { u32::MAX } else { GROUPS };
    by_waves.min(by_lds).min(most).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of 256 work-items on CDNA 4.
    fn room(registers: u32, lds: u32, threads: u32) -> u32 {
        let mut bytes = [0; 64];
        bytes[48..52].copy_from_slice(&(registers / GRANULE - 1).to_le_bytes());
        let kernel = Descriptor::read(&bytes).expect("64 bytes");
        let isa = Isa::find("gfx950").expect("it is known");
        let grid = Grid { groups: [1; 3], threads: [threads, 1, 1], dynamic_lds: lds };
        groups(&kernel, isa, &grid)
    }

    #[test]
    fn registers_lds_and_waves_limit() {
        // 512 registers leave a wave a SIMD, 128 four; 64 would leave eight.
        assert_eq!([512, 256, 128, 64].map(|r| room(r, 0, 256)), [1, 2, 4, 8]);
        assert_eq!([512, 128].map(|r| room(r, 0, 512)), [1, 2]);
        assert_eq!([81920, 65536, 40960].map(|lds| room(64, lds, 256)), [2, 2, 4]);
        // Groups of one wave need no barrier.
        assert_eq!([room(128, 0, 64), room(64, 0, 64), room(64, 0, 128)], [16, 32, 16]);
    }
}
