//! `atomc targets`: the targets that models can be compiled for.
use std::io::Write;

use atomc_ir::Arch;
use atomc_ir::arch::{Chip, Cpu, Dot, Fp8, Machine, Product, Simt};
use serde_json::{Value, json};

use super::failure::Failure;

/// List what models can be compiled for
#[derive(clap::Args)]
#[command(after_help = "\
`--target` of `atomc compile` takes the names in the first column. The numbers are those of the largest product with each
chip: compute units, GB/s, dense TFLOP/s in bf16 and fp8; `-` is what a chip does not have, `?` what nobody has published.

Examples:
  atomc targets
  atomc targets --json | jq '.[] | {name, source}'")]
pub struct Args {
    /// Every fact as a JSON list
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &atomc_targets::rows().iter().map(describe).collect::<Vec<_>>())?;
        return Ok(writeln!(out)?);
    }
    table(&mut out)
}

fn table(out: &mut impl Write) -> Result<(), Failure> {
    writeln!(
        out,
        "{:14} {:15} {:17} {:>4} {:>6} {:>7} {:>5} {:>6} {:>7} {:>7} fp8 is",
        "target", "variant", "chip", "wave", "LDS", "VGPRs", "units", "GB/s", "bf16", "fp8"
    )?;
    atomc_targets::rows().iter().try_for_each(|arch| row(out, arch))
}

fn row(out: &mut impl Write, arch: &Arch) -> Result<(), Failure> {
    write!(out, "{:14} {:15} ", arch.target, arch.name)?;
    match &arch.machine {
        Machine::Cpu(cpu) => writeln!(out, "{} lanes of f32, bf16 by {}", cpu.vector.lanes, dot(cpu))?,
        Machine::Simt(simt) => {
            let Chip { name, units, bandwidth, bf16, fp8, .. } = simt.chip;
            let units = if bandwidth > 0.0 { units.to_string() } else { "?".into() };
            writeln!(
                out,
                "{name:17} {:>4} {:>6} {:>7} {units:>5} {:>6} {:>7} {:>7} {}{}",
                simt.wave,
                format!("{}K", simt.unit.lds >> 10),
                format!("{}/{}", simt.unit.vgprs, simt.unit.vgpr_granule),
                published(bandwidth),
                published(bf16),
                if simt.fp8 == Fp8::None { "-".into() } else { published(fp8) },
                fp8_name(simt.fp8).unwrap_or("-"),
                if arch.executed { "" } else { "  compiled, never executed" },
            )?;
        }
    }
    Ok(())
}

fn published(number: f64) -> String {
    if number > 0.0 { format!("{number:.0}") } else { "?".into() }
}

fn fp8_name(fp8: Fp8) -> Option<&'static str> {
    match fp8 {
        Fp8::None => None,
        Fp8::Fnuz => Some("FNUZ"),
        Fp8::Ocp => Some("OCP"),
    }
}

fn dot(cpu: &Cpu) -> &'static str {
    match cpu.dot {
        Dot::Widen => "widening",
        Dot::Pairs => "pairs",
        Dot::Tiles => "tiles",
    }
}

fn describe(arch: &Arch) -> Value {
    let memory = arch.memory;
    let mut row = json!({
        "target": arch.target,
        "name": arch.name,
        "source": arch.source,
        "triple": arch.triple,
        "features": arch.features,
        "executed": arch.executed,
        "layout": {
            "row": memory.row,
            "alias": memory.alias,
            "rows": memory.rows,
            "panel": memory.panel,
            "group_bytes": memory.group_bytes,
            "block_tokens": memory.block_tokens,
            "align": memory.align,
        },
    });
    match &arch.machine {
        Machine::Cpu(cpu) => {
            let registers = cpu.vector.registers;
            row["cpu"] = json!({ "lanes": cpu.vector.lanes, "registers": registers, "bf16": dot(cpu) });
        }
        Machine::Simt(simt) => row["gpu"] = gpu(simt),
    }
    row
}

fn gpu(simt: &Simt) -> Value {
    let (unit, chip) = (&simt.unit, &simt.chip);
    let published = |number: f64| (number > 0.0).then_some(number);
    let products = |products: &[Product]| -> Vec<Value> {
        let one = |p: &Product| json!({ "dtype": p.dtype.name(), "intrinsic": p.intrinsic, "elements": p.elements });
        products.iter().map(one).collect()
    };
    json!({
        "wave": simt.wave,
        "simds": unit.simds,
        "lds": unit.lds,
        "lds_group": unit.lds_group,
        "vgprs": unit.vgprs,
        "vgpr_granule": unit.vgpr_granule,
        "waves": unit.waves,
        "chip": chip.name,
        "units": published(chip.bandwidth).map(|_| chip.units),
        "bandwidth": published(chip.bandwidth),
        "bf16": published(chip.bf16),
        "fp8": published(chip.fp8),
        "fp4": published(chip.fp4),
        "fp8_is": fp8_name(simt.fp8),
        "matrix": {
            "depth": simt.matrix.depth,
            "results": simt.matrix.results,
            "replicated": simt.matrix.replicated,
            "a_rows": simt.matrix.a_rows,
            "products": products(simt.products),
            "mfma_32x32": products(simt.mfma_32x32),
        },
        "direct_to_lds": simt.direct_to_lds,
        "bulk_copies": simt.bulk_copies,
        "warpgroup_mma": simt.warpgroup_mma,
        "dependent_launch": simt.dependent_launch,
        "clusters": simt.clusters.value,
        "packs_bf16": simt.packs_bf16,
        "scales_pairs": simt.scales_pairs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row() {
        let mut out = Vec::new();
        table(&mut out).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap());
        let names: Vec<&str> = atomc_targets::rows().iter().map(|arch| arch.name).collect();
        let described: Vec<Value> = atomc_targets::rows().iter().map(describe).collect();
        assert!(names.iter().zip(&described).all(|(name, row)| row["name"] == *name && !row["source"].is_null()));
    }
}
