use atomc_ir::{Family, Graph, parse};

use super::shape::CLUSTER;
use super::*;
use crate::rows;

/// Gate and up of a dense layer, or a plain contraction with a residual.
pub fn bodies(width: usize, hidden: usize) -> [Graph; 2] {
    let both = 2 * hidden;
    let gate = format!(
        "graph @k(%x: bf16[T, {width}], %g: bf16[{width}], %w: bf16[{both}, {width}]@panels) {{
  %0 = rms_norm %x, %g {{eps = 1e-6}} : bf16[T, {width}]
  %1 = linear %0, %w {{out = bf16}} : bf16[T, {both}]
  %2 = slice %1 {{axis = 1, start = 0, len = {hidden}}} : bf16[T, {hidden}]
  %3 = slice %1 {{axis = 1, start = {hidden}, len = {hidden}}} : bf16[T, {hidden}]
  %4 = silu_mul %2, %3 : bf16[T, {hidden}]
  return %4
}}"
    );
    let down = format!(
        "graph @k(%x: bf16[T, {hidden}], %w: bf16[{width}, {hidden}]@panels, %r: bf16[T, {width}]) {{
  %0 = linear %x, %w {{out = bf16}} : bf16[T, {width}]
  %1 = add %r, %0 : bf16[T, {width}]
  return %1
}}"
    );
    [gate, down].map(|text| parse(&text).unwrap())
}

/// Every panel, column and token belongs to some wave, and local memory holds everything.
#[test]
fn shapes_cover_the_work() {
    let arch = rows().iter().find(|a| a.name == "sm_90a").unwrap().gpu().unwrap();
    for (width, hidden) in [(896, 4864), (1024, 3072), (4096, 12288), (5120, 25600), (8192, 28672)] {
        for body in bodies(width, hidden) {
            for tokens in [1, 2, 3, 4, 7, 8, 16, 32, 64] {
                let spec = KernelSpec::new(Family::Matvec, &body, tokens);
                let some: Vec<Shape> = Choice::all(SCHEDULE.name, &[CLUSTER])
                    .iter()
                    .filter_map(|choice| floats::suits(&spec, arch, choice).ok())
                    .collect();
                let (choice, case) = (Choice::none(SCHEDULE.name), format!("{width} {hidden}, {tokens} tokens"));
                assert!(tokens > 32 || floats::suits(&spec, arch, &choice).is_ok(), "{case}");
                for s in some {
                    let depth = Sizes::of(&body).unwrap().depth;
                    assert_eq!(s.columns() * s.cluster, arch.memory.padded(depth), "{case}");
                    assert!(s.k_tile_columns() * s.k_tiles >= s.columns(), "{case}");
                    assert!(s.k_tile_columns() * (s.k_tiles - 1) < s.columns(), "{case}");
                    assert!(!s.one_pass || s.pass() * s.groups >= s.panels, "{case}");
                    let stages = s.panels.div_ceil(s.groups * s.waves_n) * s.stages_k.div_ceil(s.waves_k);
                    let sums = if s.one_pass { s.sums_bytes().div_ceil(s.stage_bytes()) } else { 0 };
                    assert!(s.stages <= stages.max(sums), "{case}");
                    assert!(s.groups * s.cluster <= arch.simt.chip.units, "{case}");
                    assert!(s.near() * s.blocks() >= tokens && s.k_tiles.is_multiple_of(s.prefetched.max(1)), "{case}");
                    assert!(s.local_bytes() <= arch.simt.unit.lds_group, "{case}");
                }
            }
        }
    }
}

/// A plain contraction with a quantised weight in groups.
fn quantised(values: &str, group: usize, width: usize, hidden: usize) -> Graph {
    let text = format!(
        "graph @k(%x: bf16[T, {hidden}], %w: {values}[{width}, {hidden}]@panels, %s: bf16[{width}, {groups}]@columns, \
         %r: bf16[T, {width}]) {{
  %0 = linear %x, %w, %s {{out = bf16, block = [1, {group}]}} : bf16[T, {width}]
  %1 = add %r, %0 : bf16[T, {width}]
  return %1
}}",
        groups = hidden / group
    );
    parse(&text).unwrap()
}

/// Few tokens are multiplied as limbs with integers, and local memory has room for them.
#[test]
fn few_tokens_are_limbs() {
    let arch = rows().iter().find(|a| a.name == "sm_90a").unwrap().gpu().unwrap();
    let limbs = |body: &Graph, tokens: usize| {
        let spec = KernelSpec::new(Family::Matvec, body, tokens);
        let shape = limbs::suits(&spec, arch, &Choice::none(LIMBS.name)).ok();
        assert!(shape.is_none_or(|shape| shape.tiles() == tokens.div_ceil(2)));
        shape.is_some()
    };
    for values in ["i4", "i8", "f4e2m1"] {
        let [near, far] = [4096, 12288].map(|depth| quantised(values, 32, 4096, depth));
        assert_eq!([1, 2, 3, 8].map(|tokens| limbs(&near, tokens)), [true, true, true, false], "{values}");
        assert_eq!([1, 2].map(|tokens| limbs(&far, tokens)), [true, false], "{values}");
    }
    assert!(!limbs(&quantised("f8e4m3", 128, 4096, 4096), 1));
}

/// Without such copies, or without products of such elements, contractions use another schedule.
#[test]
fn others_do_not_stream() {
    let [gate, _] = bodies(64, 96);
    let single = parse(&gate.print().replace("bf16", "f32")).unwrap();
    let all = [
        ("sm_80", &gate, "sm_80 has no bulk copies"),
        ("gfx942", &gate, "gfx942 has no bulk copies"),
        ("sm_90a", &single, "sm_90a has no MMA of f32"),
    ];
    for (name, body, why) in all {
        let arch = rows().iter().find(|a| a.name == name).unwrap().gpu().unwrap();
        let spec = KernelSpec::new(Family::Matvec, body, 1);
        assert_eq!(floats::suits(&spec, arch, &Choice::none(SCHEDULE.name)).unwrap_err().to_string(), why);
    }
}
