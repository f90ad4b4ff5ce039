//! The target table: one row per architecture, every fact with its source.
mod amd;
mod host;
mod nvidia;

use std::sync::LazyLock;

use atomc_ir::Diagnostic;
use atomc_ir::arch::{Arch, Gemv, Known, Memory, Requantised};

/// A fragment of a weight is one lane's operand of a matrix instruction: 16 bytes of a row, for 16
/// adjacent rows. A wave that loads a fragment reads one run of memory. No row is so long that its
/// cache sets would matter.
const GPU_MEMORY: Memory =
    Memory { row: 32, alias: 1 << 30, rows: 128, panel: 16, group_bytes: 16, block_tokens: 64, align: 256 };

/// As bf16 these fill 96 KB of a work-group's local memory on an H200. The rest holds the weight's
/// pipeline.
const REQUANTISED: Known<Requantised> =
    Known::estimated(Requantised { one: 48 << 10, several: 48 << 10, results: false }, "sm_90a");

/// Two work-groups fit a compute unit of 64 KB. No other numbers were timed on any of these chips,
/// so all have the same.
const GEMV: Known<Gemv> = Known::counted(Gemv { others: 20, in_flight: 8, local: 32 << 10 });

/// Rows of one target are consecutive, best first.
static ROWS: LazyLock<Vec<Arch>> =
    LazyLock::new(|| host::ROWS.into_iter().chain(amd::ROWS).chain(nvidia::ROWS).collect());

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
    use atomc_ir::arch::{Found, Simt};

    use super::*;

    #[test]
    fn rows_of_a_target_stand_together_and_agree_on_memory() {
        for row in rows() {
            let variants = variants(row.target).unwrap();
            assert_eq!(variants.iter().filter(|a| a.name == row.name).count(), 1);
            assert!(
                variants
                    .iter()
                    .all(|a| a.memory == row.memory && a.requantised == row.requantised && a.triple == row.triple)
            );
            assert_eq!(rows().iter().filter(|a| a.target == row.target).count(), variants.len());
        }
    }

    #[test]
    fn arithmetic_of_the_rows() {
        for a in rows().iter().filter_map(|a| a.host()) {
            let m = a.memory;
            assert_eq!(a.target, "host", "{}", a.name);
            assert_eq!(m.panel * m.group_bytes, 64, "{}: a group of a panel is one cache line", a.name);
            assert_eq!(m.row * 2 % 64, 0, "{}: bf16 rows begin at cache lines", a.name);
            assert_eq!(m.block_tokens % m.panel, 0, "{}", a.name);
            let lanes = a.core.vector.lanes;
            assert!(lanes * 2 >= m.panel && m.panel % lanes == 0, "{}", a.name);
            assert!(!a.source.is_empty() && !a.features.is_empty());
        }
    }

    #[test]
    fn arithmetic_of_the_gpu_rows() {
        for a in rows().iter().filter_map(|a| a.gpu()) {
            let (simt, m, name) = (a.simt, a.memory, a.name);
            assert_eq!((a.target, a.cpu, a.features), (name, name, &[name][..]), "a GPU runs the code of its own row");
            assert_eq!(m.panel, 16, "{name}: a panel is one side of a matrix instruction");
            assert_eq!(m.group_bytes, 16, "{name}: a lane loads 16 bytes at once");
            let layout = simt.matrix;
            let rows = layout.results * simt.wave / layout.columns;
            assert_eq!(rows, 16, "{name}: the lanes hold a whole result");
            assert!(m.row.is_multiple_of(layout.span(simt.wave)), "{name}: padded rows are whole products");
            assert!(m.block_tokens.is_multiple_of(32), "{name}");
            let mut a_rows = layout.a_rows;
            a_rows.sort();
            assert_eq!(a_rows.to_vec(), (0..16).collect::<Vec<u8>>(), "{name}: every row is in one lane");
            for p in simt.products {
                let depth = if p.dtype.size() == 1 { m.group_bytes } else { layout.depth };
                assert!(depth.is_multiple_of(p.elements), "{name}: a depth is whole instructions");
            }
            for p in simt.mfma_32x32 {
                let group = m.group_bytes / p.dtype.size();
                let whole = group.is_multiple_of(p.elements) || p.elements.is_multiple_of(group);
                assert!(whole && simt.wave == 64, "{name}: a lane's groups are whole instructions");
            }
            let rates = [atomc_ir::DType::BF16, atomc_ir::DType::F8E4M3].map(|dtype| simt.chip.rate(dtype));
            let of_fp8 = if simt.chip.fp8 > 0.0 { 2 } else { 1 };
            assert_eq!(rates, [1, of_fp8], "{name}: half the bits take half the time");
            let of_fp4 = if simt.chip.fp4 > 0.0 { 4 } else { 1 };
            assert_eq!(simt.chip.rate(atomc_ir::DType::F4E2M1), of_fp4, "{name}: and a quarter a quarter");
            assert!(simt.block_scaled.is_none() || (simt.wave, simt.matrix.columns) == (64, 16), "{name}");
            assert!(simt.block_scaled.is_none() || simt.chip.fp4 > 0.0, "{name}");
            let unit = simt.unit;
            assert!(
                unit.vgprs_wave <= unit.vgprs && unit.lds_group <= unit.lds && unit.vgprs.is_multiple_of(unit.waves)
            );
            assert!(simt.chip.fp8 == 0.0 || simt.fp8 != atomc_ir::arch::Fp8::None, "{name}");
            assert!(!a.source.is_empty() && simt.chip.units > 0);
            let is_asked = simt.bulk_copies || simt.warpgroup_mma;
            assert_eq!(simt.measured.is_some(), is_asked, "{name}: schedules for its copies go by measured numbers");
        }
    }

    /// Numbers that were measured on one chip count for that chip alone, unless they name it.
    #[test]
    fn no_chip_speaks_for_another() {
        let find = |name: &str| rows().iter().find(|row| row.name == name);
        for row in rows() {
            for (what, from) in row.estimated() {
                let source = find(from).unwrap_or_else(|| panic!("{}: no row {from}", row.name));
                assert!(source.name != row.name && source.executed, "{}: {what}", row.name);
            }
        }
        let measured = |name: &str| find(name).and_then(|row| row.gpu()).and_then(|gpu| gpu.simt.measured);
        let (own, other) = (measured("sm_90a").unwrap(), measured("sm_100a").unwrap());
        assert_eq!((own.found, other.found), (Found::Measured, Found::Estimated { from: "sm_90a" }));
        let count = |name: &str| find(name).unwrap().estimated().len();
        assert_eq!(["sm_80", "sm_90a", "sm_100a", "gfx942", "gfx1201"].map(count), [2, 0, 4, 0, 0]);
    }

    #[test]
    fn siblings_differ_in_numbers() {
        let find = |name: &str| rows().iter().find(|row| row.name == name).and_then(|row| row.gpu()).expect("a GPU");
        let siblings: Vec<_> = rows().iter().filter_map(|row| Some((row.gpu()?, find(row.sibling?)))).collect();
        assert!(siblings.len() >= 9);
        for (row, sibling) in siblings {
            assert_eq!(sibling.sibling, None, "{}: all kernels are tested on its sibling", row.name);
            let (unit, chip, fp8) = (sibling.simt.unit, sibling.simt.chip, sibling.simt.fp8);
            assert_eq!(Simt { unit, chip, fp8, ..row.simt.clone() }, *sibling.simt, "{}", row.name);
        }
    }

    #[test]
    fn unknown_target_lists_the_known() {
        let e = variants("gfx000").unwrap_err();
        assert_eq!(
            (e.message.as_str(), e.help.as_deref()),
            (
                "unknown target `gfx000`",
                Some(
                    "known targets: host, gfx90a, gfx942, gfx9-4-generic, gfx950, gfx1100, gfx1101, gfx1102, gfx1150, gfx1151, \
                     gfx1152, gfx11-generic, gfx1200, gfx1201, gfx12-generic, gfx1250, sm_80, sm_90a, sm_100a"
                )
            )
        );
    }
}
