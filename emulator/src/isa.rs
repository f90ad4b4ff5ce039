//! The instruction sets that can be interpreted, and what differs between them.

/// What interpreting depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa {
    /// The processor as LLVM names it.
    pub name: &'static str,
    pub family: Family,
    /// Lanes of a wave, as these kernels are compiled.
    pub lanes: u32,
    /// Features that LLVM's disassembler needs in addition to the processor's.
    pub features: &'static str,
    /// Vector registers of a wave; matrix accumulators are counted apart.
    pub vgprs: u16,
    /// Accumulation registers exist (rows 256 to 511 of the register file).
    pub agprs: bool,
    /// 8-bit floats have no infinity, no negative zero, and a bias that is larger by one ("FNUZ").
    pub fnuz: bool,
    /// Bytes of LDS that a work-group may have.
    pub lds: u32,
    /// What the timing model takes of it.
    pub rates: Rates,
}

/// What a compute unit does in a time. The timing model knows CDNA 3 and CDNA 4 and counts other
/// chips as CDNA 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Operations on f16 and on bf16 that a SIMD's matrix unit does in a pass of four clocks.
    pub halves: u32,
    /// The same on types of 8 bits.
    pub bytes: u32,
    /// Bytes of LDS that a compute unit reads or writes in a clock.
    pub lds: u32,
}

/// Source: the guides of CDNA3 and CDNA4, tables of "MFMA" passes.
const CDNA3: Rates = Rates { halves: 2048, bytes: 4096, lds: 128 };
const CDNA4: Rates = Rates { halves: 4096, bytes: 8192, lds: 256 };

/// The generations of encodings and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    Gfx90a,
    Gfx942,
    Gfx950,
    Gfx11,
    Gfx12,
}

impl Family {
    /// CDNA: waves of 64 lanes, accumulation registers, one counter for vector memory.
    pub fn is_cdna(self) -> bool {
        self <= Family::Gfx950
    }
}

const fn rdna(name: &'static str, family: Family) -> Isa {
    Isa {
        name,
        family,
        lanes: 32,
        features: "+real-true16,+wavefrontsize32",
        vgprs: 256,
        agprs: false,
        fnuz: false,
        lds: 65536,
        rates: CDNA3,
    }
}

/// Sources: LLVM's AMDGPUUsage (processors, code-object header), the instruction-set guides of
/// CDNA2, CDNA3, CDNA4, RDNA3, RDNA4.
const ROWS: [Isa; 14] = [
    Isa {
        name: "gfx90a",
        family: Family::Gfx90a,
        lanes: 64,
        features: "",
        vgprs: 256,
        agprs: true,
        fnuz: true,
        lds: 65536,
        rates: CDNA3,
    },
    Isa {
        name: "gfx942",
        family: Family::Gfx942,
        lanes: 64,
        features: "",
        vgprs: 256,
        agprs: true,
        fnuz: true,
        lds: 65536,
        rates: CDNA3,
    },
    Isa {
        name: "gfx950",
        family: Family::Gfx950,
        lanes: 64,
        features: "",
        vgprs: 256,
        agprs: true,
        fnuz: false,
        lds: 163_840,
        rates: CDNA4,
    },
    Isa {
        name: "gfx9-4-generic",
        family: Family::Gfx942,
        lanes: 64,
        features: "",
        vgprs: 256,
        agprs: true,
        // It has no instructions for 8-bit floats.
        fnuz: false,
        lds: 65536,
        rates: CDNA3,
    },
    rdna("gfx1100", Family::Gfx11),
    rdna("gfx1101", Family::Gfx11),
    rdna("gfx1102", Family::Gfx11),
    rdna("gfx1150", Family::Gfx11),
    rdna("gfx1151", Family::Gfx11),
    rdna("gfx1152", Family::Gfx11),
    rdna("gfx11-generic", Family::Gfx11),
    rdna("gfx1200", Family::Gfx12),
    rdna("gfx1201", Family::Gfx12),
    rdna("gfx12-generic", Family::Gfx12),
];

impl Isa {
    /// The row of a processor name, if it can be interpreted.
    pub fn find(name: &str) -> Option<&'static Isa> {
        ROWS.iter().find(|r| r.name == name)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        ROWS.iter().map(|r| r.name)
    }

    /// One bit for each lane of a wave.
    pub fn all_lanes(&self) -> u64 {
        u64::MAX >> (64 - self.lanes)
    }
}
