//! Rows of the host: levels of x86-64.
use atomc_ir::arch::{Arch, Cpu, Dot, Known, Machine, Memory, Renormed, Vector};

/// The host's kernels share one layout on every CPU: 16 f32 lanes, or 16 rows by 4 bytes of a
/// weight, fill one AVX-512 register and one row of an AMX tile; 32 is the depth of an AMX bf16
/// tile. A first-level cache has 64 sets of 64 bytes, so rows of 1,024 bf16 apart fall on two of
/// them.
const HOST: Memory = Memory { row: 32, alias: 1024, rows: 32, panel: 16, group_bytes: 4, block_tokens: 32, align: 256 };

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

const PSABI: &str = "x86-64 psABI, micro-architecture levels; Intel SDM vol. 1, ch. 15";

/// Best first.
pub const ROWS: [Arch; 4] = [
    Arch {
        name: "x86-64-v4-amx",
        target: "host",
        source: "Intel SDM vol. 1, ch. 18 (AMX); vol. 2, TDPBF16PS, VPDPBUSD, VPERMI2B",
        triple: TRIPLE,
        cpu: "x86-64-v4",
        attributes: "+avx512vnni,+avx512vbmi,+avx512bf16,+amx-tile,+amx-bf16,-prefer-256-bit",
        features: &[
            "avx512f",
            "avx512bw",
            "avx512dq",
            "avx512vl",
            "avx512cd",
            "avx512vnni",
            "avx512vbmi",
            "avx512bf16",
            "amx-tile",
            "amx-bf16",
        ],
        machine: Machine::Cpu(Cpu { vector: Vector { lanes: 16, registers: 32 }, dot: Dot::Tiles }),
        sibling: None,
        executed: true,
        memory: HOST,
        requantised: super::REQUANTISED,
        normed: Known::counted(Renormed::ALL),
    },
    Arch {
        name: "x86-64-v4-bf16",
        target: "host",
        source: "Intel SDM vol. 2, VDPBF16PS, VPDPBUSD, VPERMI2B",
        triple: TRIPLE,
        cpu: "x86-64-v4",
        attributes: "+avx512vnni,+avx512vbmi,+avx512bf16,-prefer-256-bit",
        features: &[
            "avx512f",
            "avx512bw",
            "avx512dq",
            "avx512vl",
            "avx512cd",
            "avx512vnni",
            "avx512vbmi",
            "avx512bf16",
        ],
        machine: Machine::Cpu(Cpu { vector: Vector { lanes: 16, registers: 32 }, dot: Dot::Pairs }),
        sibling: None,
        executed: true,
        memory: HOST,
        requantised: super::REQUANTISED,
        normed: Known::counted(Renormed::ALL),
    },
    Arch {
        name: "x86-64-v4",
        target: "host",
        source: PSABI,
        triple: TRIPLE,
        cpu: "x86-64-v4",
        attributes: "-prefer-256-bit",
        features: &["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"],
        machine: Machine::Cpu(Cpu { vector: Vector { lanes: 16, registers: 32 }, dot: Dot::Widen }),
        sibling: None,
        executed: true,
        memory: HOST,
        requantised: super::REQUANTISED,
        normed: Known::counted(Renormed::ALL),
    },
    Arch {
        name: "x86-64-v3",
        target: "host",
        source: PSABI,
        triple: TRIPLE,
        cpu: "x86-64-v3",
        attributes: "",
        features: &["avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "movbe"],
        machine: Machine::Cpu(Cpu { vector: Vector { lanes: 8, registers: 16 }, dot: Dot::Widen }),
        sibling: None,
        executed: true,
        memory: HOST,
        requantised: super::REQUANTISED,
        normed: Known::counted(Renormed::ALL),
    },
];
