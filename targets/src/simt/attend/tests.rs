//! Dumps while tuning.
use atomc_ir::{Family, parse};

use crate::{Form, KernelSpec, compile, rows, text};

fn one(heads: usize, kv: usize, dim: usize, dtype: &str, window: usize) -> String {
    let (q, k) = (heads * dim, kv * dim);
    let n = q + 2 * k;
    format!(
        "graph @k(%qkv: {dtype}[T, {n}], %qn: {dtype}[{dim}], %kn: {dtype}[{dim}], %table: f32[T, {dim}], %kv: cache<{dtype}, {kv}, {dim}>, %batch: batch) {{
  %0 = slice %qkv {{axis = 1, start = 0, len = {q}}} : {dtype}[T, {q}]
  %1 = reshape %0 {{shape = [T, {heads}, {dim}]}} : {dtype}[T, {heads}, {dim}]
  %2 = rms_norm %1, %qn {{eps = 1e-6}} : {dtype}[T, {heads}, {dim}]
  %3 = rope %2, %table : {dtype}[T, {heads}, {dim}]
  %4 = slice %qkv {{axis = 1, start = {q}, len = {k}}} : {dtype}[T, {k}]
  %5 = reshape %4 {{shape = [T, {kv}, {dim}]}} : {dtype}[T, {kv}, {dim}]
  %6 = rms_norm %5, %kn {{eps = 1e-6}} : {dtype}[T, {kv}, {dim}]
  %7 = rope %6, %table : {dtype}[T, {kv}, {dim}]
  %8 = slice %qkv {{axis = 1, start = {}, len = {k}}} : {dtype}[T, {k}]
  %9 = reshape %8 {{shape = [T, {kv}, {dim}]}} : {dtype}[T, {kv}, {dim}]
  %10 = kv_write %kv, %7, %9, %batch : cache<{dtype}, {kv}, {dim}>
  %11 = attention %3, %10, %batch {{scale = 0.2, window = {window}}} : {dtype}[T, {heads}, {dim}]
  %12 = reshape %11 {{shape = [T, {q}]}} : {dtype}[T, {q}]
  return %12, %10
}}",
        q + k
    )
}

fn many(heads: usize, kv: usize, dim: usize, dtype: &str, window: usize) -> String {
    let width = heads * dim;
    format!(
        "graph @k(%q: {dtype}[T, {heads}, {dim}], %kv: cache<{dtype}, {kv}, {dim}>, %batch: batch) {{
  %0 = attention %q, %kv, %batch {{scale = 0.2, window = {window}}} : {dtype}[T, {heads}, {dim}]
  %1 = reshape %0 {{shape = [T, {width}]}} : {dtype}[T, {width}]
  return %1
}}"
    )
}

#[test]
fn dump() {
    let var = |n: &str, d: &str| std::env::var(n).unwrap_or(d.into());
    let only = var("ONLY", "");
    for config in var("CASES", "32,8,128,bf16,0").split(' ') {
        let f: Vec<&str> = config.split(',').collect();
        let d: Vec<usize> = f[..3].iter().map(|v| v.parse().unwrap()).collect();
        let (dtype, window) = (f[3], f[4].parse().unwrap());
        println!("== {config}");
        for (family, text_of) in [
            (Family::AttendOne, one(d[0], d[1], d[2], dtype, window)),
            (Family::AttendMany, many(d[0], d[1], d[2], dtype, window)),
        ] {
            if !family.name().contains(&var("FAM", "")) {
                continue;
            }
            let graph = parse(&text_of).unwrap();
            graph.verify().unwrap();
            for arch in rows()
                .iter()
                .filter(|a| matches!(a.machine, atomc_ir::arch::Machine::Simt(_)) && a.name.contains(&only))
            {
                let spec = KernelSpec { symbol: "k".into(), family, body: &graph, tokens: 1 };
                let asm = text(std::slice::from_ref(&spec), arch, Form::Asm).unwrap();
                std::fs::write(format!("/tmp/att_{}_{}.s", arch.name, family.name()), asm).unwrap();
                let object = compile(&[spec], arch).unwrap();
                let i = &object.kernels[0];
                let r = i.resources.clone().unwrap();
                print!(
                    "{:8} {:11} thr {} vgpr {} sgpr {} lds {} scr {} spill {}/{} occ {} instr {} matrix {} |",
                    arch.name,
                    family.name(),
                    i.threads,
                    r.vgprs,
                    r.sgprs,
                    r.lds,
                    r.scratch,
                    r.vgpr_spills,
                    r.sgpr_spills,
                    r.occupancy,
                    r.instructions,
                    r.matrix
                );
                for l in r.loops.iter().filter(|l| l.matrix > 0) {
                    print!(
                        " [{} mat {} valu {} salu {} lds {} ld {}/{} w {}({}) ov {} b {}: {:.1}]",
                        l.instructions,
                        l.matrix,
                        l.valu,
                        l.salu,
                        l.lds,
                        l.loads,
                        l.loads_x4,
                        l.waits,
                        l.partial_waits,
                        l.overlap,
                        l.barriers,
                        l.instructions as f32 / l.matrix as f32
                    );
                }
                println!();
            }
        }
    }
}
