//! The state of one wave: registers, masks and modes.
use crate::inst::{AGPR, Operand, scalar};
use crate::isa::Isa;

/// Lanes that a row of the register file has room for; waves of 32 lanes use the lower half.
pub const LANES: usize = 64;

/// One vector register of all lanes.
pub type Row = [u32; LANES];

/// Rounding of results, as the mode register and the kernel descriptor encode it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rounding {
    #[default]
    NearestEven,
    Up,
    Down,
    TowardZero,
}

/// The fields of the mode register that arithmetic depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub round32: Rounding,
    pub round16_64: Rounding,
    /// Subnormal sources and results of f32 are kept (else they are flushed to zero of the same
    /// sign).
    pub denormals32_in: bool,
    pub denormals32_out: bool,
    /// Whether f16 and f64 inputs, and results, keep denormals.
    pub denormals16_64_in: bool,
    pub denormals16_64_out: bool,
    /// Clamp turns NaN into zero (always so on gfx12).
    pub dx10_clamp: bool,
    pub ieee: bool,
    /// `FP16_OVFL` (bit 23): results of f16 and of 8-bit floats that overflow become the largest
    /// finite number.
    pub fp16_ovfl: bool,
}

/// The content of registers that were not written: a signalling NaN, an address that is mapped
/// nowhere.
const VECTOR_POISON: u32 = 0x7fa5_a5a5;
const SCALAR_POISON: u32 = 0xa5a5_a5a5;

/// One wave.
pub struct Wave {
    pub isa: &'static Isa,
    /// Rows 0 to 255 are the vector registers, rows from [`AGPR`] the accumulation registers.
    pub vgpr: Box<[Row]>,
    /// All scalar registers by the numbers in [`scalar`]; `vcc`, `exec`, `m0` and `ttmp` are among
    /// them.
    pub sgpr: [u32; 128],
    pub scc: bool,
    pub mode: Mode,
    /// Bit k of `written[r]`: lane k of row r holds a value that the program computed from
    /// initialised ones.
    pub written: Box<[u64]>,
    /// Bit k: scalar register k holds a value that the program computed from initialised ones.
    pub scalar_written: u128,
    /// Whether the condition code is initialised.
    pub scc_written: bool,
    /// Index of the next instruction.
    pub pc: usize,
    /// The number of the wave in its work-group.
    pub number: u32,
}

impl Wave {
    /// A wave with registers that hold a poison. No program computes it by chance.
    pub fn new(isa: &'static Isa, mode: Mode, number: u32) -> Wave {
        let rows = if isa.agprs { usize::from(AGPR) * 2 } else { usize::from(isa.vgprs) };
        let mut wave = Wave {
            isa,
            vgpr: vec![[VECTOR_POISON; LANES]; rows].into_boxed_slice(),
            sgpr: [SCALAR_POISON; 128],
            scc: false,
            mode,
            written: vec![0; rows].into_boxed_slice(),
            scalar_written: 0,
            scc_written: false,
            pc: 0,
            number,
        };
        wave.sgpr[usize::from(scalar::NULL)] = 0;
        wave.scalar_written |= 1 << scalar::NULL;
        wave.set_exec(isa.all_lanes());
        wave
    }

    /// Makes it another wave: the rows that were in use hold poison again.
    pub fn reset(&mut self, rows: &[u64; 8]) {
        for row in (0..self.vgpr.len()).filter(|r| rows[r / 64] >> (r % 64) & 1 != 0) {
            self.vgpr[row] = [VECTOR_POISON; LANES];
            self.written[row] = 0;
        }
        // Work-item ids are there even if no instruction reads them.
        self.written[0] = 0;
        self.sgpr = [SCALAR_POISON; 128];
        self.sgpr[usize::from(scalar::NULL)] = 0;
        self.scalar_written = 1 << scalar::NULL;
        (self.scc, self.scc_written) = (false, false);
        self.set_exec(self.isa.all_lanes());
    }

    /// The lanes that vector instructions act on.
    #[inline(always)]
    pub fn exec(&self) -> u64 {
        self.scalar64(scalar::EXEC)
    }

    /// Sets the active lanes; a wave of 32 has no upper half.
    #[inline(always)]
    pub fn set_exec(&mut self, lanes: u64) {
        self.set_scalar64(scalar::EXEC, lanes & self.isa.all_lanes());
        self.scalar_written |= 3 << scalar::EXEC;
    }

    #[inline(always)]
    pub fn scalar64(&self, index: u8) -> u64 {
        let i = usize::from(index);
        u64::from(self.sgpr[i]) | u64::from(self.sgpr[i + 1]) << 32
    }

    #[inline(always)]
    pub fn set_scalar64(&mut self, index: u8, value: u64) {
        let i = usize::from(index);
        self.sgpr[i] = value as u32;
        self.sgpr[i + 1] = (value >> 32) as u32;
    }

    /// A mask of lanes in one scalar register (waves of 32) or two (waves of 64); reads of `null`
    /// give zero.
    #[inline(always)]
    pub fn mask(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Scalar { index, .. } if self.isa.lanes == 64 && index != scalar::NULL => self.scalar64(index),
            Operand::Scalar { index, .. } => u64::from(self.sgpr[usize::from(index)]),
            Operand::Const(v) => v & self.isa.all_lanes(),
            _ => 0,
        }
    }

    /// Writes a mask of lanes. Inactive lanes' bits must be zero already, as comparisons leave
    /// them.
    #[inline(always)]
    pub fn set_mask(&mut self, operand: Operand, mask: u64) {
        let Operand::Scalar { index, .. } = operand else { return };
        match index {
            scalar::NULL => {}
            scalar::EXEC => self.set_exec(mask),
            _ if self.isa.lanes == 64 => self.set_scalar64(index, mask),
            _ => self.sgpr[usize::from(index)] = mask as u32,
        }
    }

    /// Writes one scalar register; `null` drops the value and the upper half of `exec` does not
    /// exist in waves of 32.
    #[inline(always)]
    pub fn set_scalar(&mut self, index: u8, value: u32) {
        if index != scalar::NULL && !(index == scalar::EXEC + 1 && self.isa.lanes == 32) {
            self.sgpr[usize::from(index)] = value;
        }
    }
}
