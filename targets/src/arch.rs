//! The target table: one row per architecture, every fact with its source.
use atomc_ir::Diagnostic;
use atomc_ir::arch::{Arch, Cpu, Dot, Machine, Memory, Vector};

/// The host's kernels share one layout on every CPU: 16 f32 lanes, or 16 rows by 4 bytes of a weight, fill one AVX-512 register
/// and one row of an AMX tile; 32 is the depth of an AMX bf16 tile. A first-level cache has 64 sets of 64 bytes, so rows of 1,024
/// bf16 apart fall on two of them.
const HOST: Memory = Memory { row: 32, alias: 1024, rows: 32, panel: 16, group_bytes: 4, block_tokens: 32, align: 256 };

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

const PSABI: &str = "x86-64 psABI, micro-architecture levels; Intel SDM vol. 1, ch. 15";

/// Best first within a target.
static ROWS: [Arch; 4] = [
    Arch {
        name: "x86-64-v4-amx",
        target: "host",
        source: "Intel SDM vol. 1, ch. 18 (AMX); vol. 2, TDPBF16PS",
        triple: TRIPLE,
        cpu: "x86-64-v4",
        attributes: "+avx512bf16,+amx-tile,+amx-bf16,-prefer-256-bit",
        features: &["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512bf16", "amx-tile", "amx-bf16"],
        machine: Machine::Cpu(Cpu { vector: Vector { lanes: 16, registers: 32 }, dot: Dot::Tiles }),
        memory: HOST,
    },
    Arch {
        name: "x86-64-v4-bf16",
        target: "host",
        source: "Intel SDM vol. 2, VDPBF16PS",
        triple: TRIPLE,
        cpu: "x86-64-v4",
        attributes: "+avx512bf16,-prefer-256-bit",
        features: &["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512bf16"],
        machine: Machine::Cpu(Cpu { vector: Vector { lanes: 16, registers: 32 }, dot: Dot::Pairs }),
        memory: HOST,
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
        memory: HOST,
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
        memory: HOST,
    },
];

/// Every row.
pub fn rows() -> &'static [Arch] {
    &ROWS
}

/// The rows of a target, best first.
pub fn variants(target: &str) -> Result<&'static [Arch], Diagnostic> {
    let Some(first) = ROWS.iter().position(|a| a.target == target) else {
        let mut known: Vec<&str> = ROWS.iter().map(|a| a.target).collect();
        known.dedup();
        return Err(Diagnostic::new("target::unknown", format!("unknown target `{target}`"))
            .help(format!("known targets: {}", known.join(", "))));
    };
    let count = ROWS[first..].iter().take_while(|a| a.target == target).count();
    Ok(&ROWS[first..first + count])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_target_stand_together_and_agree_on_memory() {
        for row in rows() {
            let variants = variants(row.target).unwrap();
            assert_eq!(variants.iter().filter(|a| a.name == row.name).count(), 1);
            assert!(variants.iter().all(|a| a.memory == row.memory && a.triple == row.triple));
            assert_eq!(rows().iter().filter(|a| a.target == row.target).count(), variants.len());
        }
    }

    #[test]
    fn arithmetic_of_the_rows() {
        for a in rows().iter().filter(|a| a.target == "host") {
            let m = a.memory;
            assert_eq!(m.panel * m.group_bytes, 64, "{}: a group of a panel is one cache line", a.name);
            assert_eq!(m.row * 2 % 64, 0, "{}: bf16 rows begin at cache lines", a.name);
            assert_eq!(m.block_tokens % m.panel, 0, "{}", a.name);
            let lanes = a.cpu().vector.lanes;
            assert!(lanes * 2 >= m.panel && m.panel % lanes == 0, "{}", a.name);
            assert!(!a.source.is_empty() && !a.features.is_empty());
        }
    }

    #[test]
    fn unknown_target_lists_the_known() {
        let e = variants("gfx000").unwrap_err();
        assert_eq!((e.message.as_str(), e.help.as_deref()), ("unknown target `gfx000`", Some("known targets: host")));
    }
}
