//! The resources of attention on each chip.
use std::collections::BTreeSet;

use atomc_ir::arch::Isa;
use atomc_ir::{Family, parse};

use crate::{KernelSpec, LoopReport, Resources, compile, rows};

/// Query heads, heads of the cache, numbers of a head.
type Heads = (usize, usize, usize);

fn body(family: Family, (heads, kv, dim): Heads, dtype: &str) -> String {
    let width = heads * dim;
    let (written, written_type) = match family {
        Family::AttendOne => (
            format!("  %0 = kv_write %kv, %k, %v, %batch : cache<{dtype}, {kv}, {dim}>\n"),
            format!(", %k: {dtype}[T, {kv}, {dim}], %v: {dtype}[T, {kv}, {dim}]"),
        ),
        _ => (String::new(), String::new()),
    };
    let (cache, result) = if written.is_empty() { ("%kv", "%2") } else { ("%0", "%2, %0") };
    format!(
        "graph @k(%q: {dtype}[T, {heads}, {dim}]{written_type}, %kv: cache<{dtype}, {kv}, {dim}>, %batch: batch) {{
{written}  %1 = attention %q, {cache}, %batch {{scale = 0.2, window = 0}} : {dtype}[T, {heads}, {dim}]
  %2 = reshape %1 {{shape = [T, {width}]}} : {dtype}[T, {width}]
  return {result}
}}"
    )
}

/// The chips for which the tests count instructions and registers.
fn chips() -> impl Iterator<Item = &'static atomc_ir::Arch> {
    rows().iter().filter(|a| a.isa() == Some(Isa::Amdgcn))
}

fn resources(family: Family, heads: Heads, dtype: &str, arch: &atomc_ir::Arch) -> Resources {
    let graph = parse(&body(family, heads, dtype)).unwrap();
    graph.verify().unwrap_or_else(|e| panic!("{e}"));
    let spec = KernelSpec::new(family, &graph, 1);
    let object = compile(&[spec], arch).unwrap_or_else(|e| panic!("{e}"));
    object.kernels[0].resources.clone().unwrap()
}

/// The loops over keys.
fn hot(resources: &Resources) -> Vec<LoopReport> {
    resources.loops.iter().copied().filter(|l| l.matrix > 0).collect()
}

#[test]
fn everything_stays_in_registers() {
    for arch in chips() {
        for family in [Family::AttendOne, Family::AttendMany] {
            for (heads, dtype) in [
                ((32, 8, 128), "bf16"),
                ((64, 8, 128), "bf16"),
                ((8, 8, 64), "bf16"),
                ((14, 2, 64), "bf16"),
                ((16, 2, 256), "bf16"),
                ((32, 8, 128), "f16"),
                ((32, 8, 128), "f32"),
            ] {
                let r = resources(family, heads, dtype, arch);
                let at = format!("{} {} {heads:?} {dtype}: {r:?}", arch.name, family.name());
                assert_eq!((r.scratch, r.vgpr_spills, r.sgpr_spills), (0, 0, 0), "{at}");
                assert!(!hot(&r).is_empty(), "{at}");
                assert!(hot(&r).iter().all(|l| l.loads > 0 && l.loads == l.loads_x4), "{at}");
            }
        }
    }
}

#[test]
fn few_instructions_for_each_product() {
    // The most instructions per matrix instruction in the loop over keys that all queries see, for
    // `attend_one` and for `attend_many`, which multiplies twice as much with each instruction.
    for (chip, one, many) in [("gfx90a", 6.5, 6.0), ("gfx942", 6.5, 6.0), ("gfx950", 11.0, 9.0)] {
        let arch = chips().find(|a| a.name == chip).unwrap();
        for (family, most) in [(Family::AttendOne, one), (Family::AttendMany, many)] {
            let r = resources(family, (64, 8, 128), "bf16", arch);
            let loops = hot(&r);
            let least = loops.iter().map(|l| l.instructions as f64 / l.matrix as f64).fold(f64::MAX, f64::min);
            assert!(least <= most, "{chip} {}: {least} in {loops:?}", family.name());
            assert!(r.occupancy >= 2.0, "{chip} {}: {r:?}", family.name());
        }
    }
}

#[test]
fn four_waves_multiply_where_registers_have_room() {
    let arch = rows().iter().find(|a| a.name == "sm_90a").unwrap();
    for (heads, dtype, suits) in [
        ((32, 8, 128), "bf16", true),
        ((40, 8, 128), "f16", true),
        ((28, 4, 96), "bf16", true),
        ((8, 8, 64), "bf16", true),
        ((16, 2, 256), "bf16", true),
        ((8, 2, 160), "f16", true),
        ((16, 2, 288), "bf16", false),
        ((16, 2, 80), "bf16", true),
        ((16, 16, 72), "bf16", true),
        ((16, 2, 84), "bf16", false),
        ((16, 2, 200), "bf16", false),
        ((32, 8, 128), "f32", false),
    ] {
        let graph = parse(&body(Family::AttendMany, heads, dtype)).unwrap();
        let spec = KernelSpec::new(Family::AttendMany, &graph, 512);
        let (schedule, _) = crate::select(&spec, arch).unwrap();
        assert_eq!(schedule.name == "prefill_warpgroup", suits, "{heads:?} {dtype}");
        let object = compile(&[spec], arch).unwrap_or_else(|e| panic!("{e}"));
        let resources = object.kernels[0].resources.as_ref();
        assert!(!suits || resources.is_none_or(|r| (r.scratch, r.vgpr_spills) == (0, 0)), "{heads:?}: {resources:?}");
    }
}

/// Sinks change the values carried into a loop, and no products or loads inside of loops.
#[test]
fn sinks_are_taken_on_every_chip() {
    for arch in rows().iter().filter(|a| a.isa().is_some()) {
        for family in [Family::AttendOne, Family::AttendMany] {
            let plain = body(family, (32, 8, 128), "bf16");
            let sunk = plain.replace(", %batch {", ", %batch, %s {").replace(": batch)", ": batch, %s: bf16[32])");
            let [plain, sunk] = [plain, sunk].map(|text| {
                let graph = parse(&text).unwrap();
                graph.verify().unwrap_or_else(|e| panic!("{e}"));
                let spec = KernelSpec::new(family, &graph, 1);
                compile(&[spec], arch).unwrap_or_else(|e| panic!("{}: {e}", arch.name)).kernels.remove(0)
            });
            let at = format!("{} {}", arch.name, family.name());
            assert_eq!(plain.schedule, sunk.schedule, "{at}");
            let (Some(plain), Some(sunk)) = (plain.resources, sunk.resources) else { continue };
            // LLVM may make two loops of one.
            let loads = |r: &Resources| hot(r).iter().map(|l| (l.matrix, l.loads)).collect::<BTreeSet<_>>();
            assert_eq!(loads(&plain), loads(&sunk), "{at}");
            assert_eq!((sunk.scratch, sunk.vgpr_spills, sunk.sgpr_spills), (0, 0, 0), "{at}");
        }
    }
}
