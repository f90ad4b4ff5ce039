use atomc_ir::{Graph, parse};

use super::*;
use crate::tuning::Choice;

/// A norm, then a contraction.
fn body(width: usize, rows: usize, dtype: &str) -> Graph {
    let text = format!(
        "graph @k(%x: bf16[T, {width}], %g: bf16[{width}], %w: bf16[{rows}, {width}]@panels) {{
  %0 = rms_norm %x, %g {{eps = 1e-6}} : bf16[T, {width}]
  %1 = linear %0, %w {{out = bf16}} : bf16[T, {rows}]
  return %1
}}"
    );
    parse(&text.replace("bf16", dtype)).unwrap()
}

/// Gate and up of a dense layer, `rows` rows each.
fn gated(width: usize, rows: usize) -> Graph {
    let [gated, _] = crate::simt::gemm::gemv_bulk::tests::bodies(width, rows);
    gated
}

fn row(name: &str) -> GpuArch<'static> {
    crate::rows().iter().find(|a| a.name == name).unwrap().gpu().unwrap()
}

fn spec(body: &Graph, tokens: usize) -> KernelSpec<'_> {
    KernelSpec::new(Family::Matvec, body, tokens)
}

/// A table's numbers replace the chip's.
#[test]
fn chosen_numbers_share_the_work_out() {
    let (body, arch) = (body(4096, 6144, "bf16"), row("sm_90a"));
    let spec = spec(&body, 64);
    let own = Shape::new(&spec, arch, &Choice::none("stream_k")).unwrap();
    let groups = |choice: &Choice| Shape::new(&spec, arch, choice).unwrap().groups;
    let all = Choice::all("stream_k", &[GROUPS, LEAST]);
    assert_eq!(all.len(), GROUPS.values.len() * LEAST.values.len());
    for choice in &all {
        let (each, least) = (choice.get(&GROUPS).unwrap(), choice.get(&LEAST).unwrap());
        let most = (own.tiles * each).min(own.units().div_ceil(least)).min(arch.simt.chip.units);
        assert_eq!(groups(choice), most, "{choice}");
    }
    assert!(all.iter().any(|choice| groups(choice) != own.groups));
}

/// A quantised weight of `width` columns in groups of `group`, each with a scale of type `scale`.
fn quantised(width: usize, codes: &str, group: usize, scale: &str) -> Graph {
    let groups = width / group;
    let text = format!(
        "graph @k(%x: bf16[T, {width}], %w: {codes}[4096, {width}]@panels, %s: {scale}[4096, {groups}]@columns) {{
  %0 = linear %x, %w, %s {{out = bf16, block = [1, {group}]}} : bf16[T, 4096]
  return %0
}}"
    );
    parse(&text).unwrap()
}

/// K tiles have two blocks of 64 columns if they can, or three; both divide the rows evenly.
#[test]
fn k_tiles_of_quantised_weights() {
    let arch = row("sm_90a");
    let of = |width: usize, codes: &str, group: usize, scale: &str| {
        let body = quantised(width, codes, group, scale);
        let shape = Shape::new(&spec(&body, 16), arch, &Choice::none("stream_k")).unwrap();
        assert_eq!(shape.row_threads() * shape.row_parts() * 8, shape.k_tile);
        assert_eq!(shape.loaded_tokens() * shape.row_threads(), shape::ROW_PRODUCERS);
        shape.k_tile
    };
    assert_eq!(of(2048, "f4e2m1", 32, "e8m0"), 128);
    assert_eq!(of(2880, "f4e2m1", 32, "e8m0"), 192);
    assert_eq!(of(2944, "f4e2m1", 32, "e8m0"), 128);
    assert_eq!(of(320, "f4e2m1", 32, "e8m0"), 64);
    assert_eq!(of(4096, "i4", 128, "bf16"), 128);
}

/// Sums are scaled as long as the sums of a whole K tile fit at once; with more tokens numbers are
/// scaled, if scales are numbers of their type.
#[test]
fn numbers_are_scaled_where_sums_do_not_fit() {
    let of = |tokens: usize, scale: &str| {
        let body = quantised(4096, "i4", 128, scale);
        SlotCodes::of(&spec(&body, tokens)).unwrap().scales_numbers()
    };
    assert_eq!([16, 32, 33, 64].map(|tokens| of(tokens, "bf16")), [false, false, true, true]);
    assert_eq!([32, 64].map(|tokens| of(tokens, "f16")), [false, false]);
}

#[test]
fn only_many_tokens_of_rows_without_rest_spread() {
    let suits =
        |body: &Graph, tokens, arch: &str| suits(&spec(body, tokens), row(arch), &Choice::none("stream_k")).is_ok();
    let plain = body(4096, 6144, "bf16");
    assert!([17, 32, 48, 64].into_iter().all(|tokens| suits(&plain, tokens, "sm_90a")));
    assert!([1, 16, 65].into_iter().all(|tokens| !suits(&plain, tokens, "sm_90a")));
    assert!(["sm_80", "sm_100a", "gfx942"].into_iter().all(|arch| !suits(&plain, 64, arch)));
    assert!(suits(&gated(4096, 12288), 64, "sm_90a"));
    // Few slots for each unit.
    let small = gated(1024, 3072);
    assert!(suits(&small, 33, "sm_90a") && !suits(&small, 32, "sm_90a"));
    // Columns that are no multiple of a slot's, and norms that do not commute in so few exponents.
    assert!(!suits(&body(4128, 6144, "bf16"), 64, "sm_90a") && !suits(&body(4096, 6144, "f16"), 64, "sm_90a"));
}

/// Every panel of every piece is in a tile, every slot belongs to one work-group, and no more
/// work-groups have slots of a tile than can share it.
#[test]
fn shares_cover_the_weight() {
    let gated = [(64, 96), (1024, 3072), (4096, 12288)].map(|(width, rows)| (gated(width, rows), 2 * rows));
    let sizes = [(64, 96), (768, 2304), (4096, 4096), (4096, 6144), (12288, 4096), (4096, 151936)];
    let plain = sizes.map(|(width, rows)| (body(width, rows, "bf16"), rows));
    for (body, rows) in gated.iter().chain(&plain) {
        for tokens in [17, 33, 64] {
            let s = Shape::new(&spec(body, tokens), row("sm_90a"), &Choice::none("stream_k")).unwrap();
            assert!(s.tiles * s.each() * s.pieces * 16 >= *rows, "{s:?}");
            let bound = |group: usize| group * s.units() / s.groups;
            assert_eq!((bound(0), bound(s.groups)), (0, s.units()));
            for unit in 0..s.units() {
                let owner = s.owner(unit);
                assert!((bound(owner)..bound(owner + 1)).contains(&unit), "{s:?}: {unit}");
            }
            for tile in 0..s.tiles {
                let (begin, end) = (tile * s.length, (tile + 1) * s.length);
                let has = |&group: &usize| bound(group) < end && begin < bound(group + 1);
                let owners = (0..s.groups).filter(has).count();
                assert!(owners <= s.sharing(), "{s:?}: {owners}");
            }
        }
    }
}

#[test]
fn local_memory_holds_what_it_must() {
    let arch = row("sm_90a");
    for tokens in [17, 33, 48, 64] {
        for body in [body(64, 96, "bf16"), body(768, 2304, "bf16"), body(4096, 6144, "bf16"), gated(4096, 12288)] {
            let cx = crate::llvm::context();
            let b = cx.create_builder();
            let (_, info) =
                crate::select::emit(crate::llvm::Llvm { cx: &cx, b: &b }, &spec(&body, tokens), arch.arch()).unwrap();
            assert!(info.shared <= arch.simt.unit.lds_group, "{tokens} tokens: {}", info.shared);
        }
    }
}

/// A contraction with a weight of 4-bit integers in groups.
fn grouped(width: usize, rows: usize, group: usize, scale: &str) -> Graph {
    let groups = width / group;
    let text = format!(
        "graph @k(%x: bf16[T, {width}], %w: i4[{rows}, {width}]@panels, %s: {scale}[{rows}, {groups}]@columns) {{
  %0 = linear %x, %w, %s {{out = bf16, block = [1, {group}]}} : bf16[T, {rows}]
  return %0
}}"
    );
    parse(&text).unwrap()
}

/// Groups as wide as a K tile scale the sums. Smaller groups scale the decoded numbers, which must
/// have the scale's type.
#[test]
fn quantised_weights_of_whole_groups_are_decoded() {
    let suits = |body: &Graph, tokens| suits(&spec(body, tokens), row("sm_90a"), &Choice::none("stream_k")).is_ok();
    for (group, scale, least) in [(128, "bf16", 8), (256, "f32", 8), (32, "bf16", 16), (64, "bf16", 16)] {
        let body = grouped(4096, 6144, group, scale);
        assert!([least, 32, 64].into_iter().all(|tokens| suits(&body, tokens)), "groups of {group}");
        assert!([least - 1, 65].into_iter().all(|tokens| !suits(&body, tokens)), "groups of {group}");
    }
    assert!(!suits(&grouped(4096, 6144, 32, "f32"), 64));
    assert!(suits(&grouped(4160, 6144, 64, "bf16"), 64), "K tiles of 64 columns");
    assert!(!suits(&grouped(4128, 6144, 32, "bf16"), 64), "part of a K tile");
}

/// Each team has a tile: all panels are in one, all slots are shared out, and local memory holds
/// slots, stages and the sums of both teams.
#[test]
fn two_teams_cover_a_quantised_weight() {
    for (width, rows) in [(128, 96), (4096, 4096), (4096, 6144), (12288, 4096), (4096, 4112)] {
        let body = grouped(width, rows, 128, "bf16");
        for tokens in [8, 33, 64] {
            let spec = spec(&body, tokens);
            let s = Shape::new(&spec, row("sm_90a"), &Choice::none("stream_k")).unwrap();
            assert_eq!((s.teams, s.consumers(), s.threads()), (2, 256, 512));
            assert!(s.tiles * s.teams * s.each() * 16 >= rows, "{s:?}");
            assert_eq!(s.units(), s.tiles * width / 128);
            let used = s.slots * s.slot_bytes() + s.rows_bytes() + s.teams * s.sums_bytes();
            assert!(s.slots >= 2 && used <= 227 << 10, "{s:?}");
        }
    }
}

/// Shares divide a tile's tokens, so that no thread reads past its sums.
#[test]
fn shares_divide_the_tokens_of_a_tile() {
    let arch = row("sm_90a");
    let (floats, codes) = (body(4096, 6144, "bf16"), quantised(4096, "i4", 128, "bf16"));
    for (body, most) in [(&floats, shape::ROUND), (&codes, shape::TOKENS)] {
        for tokens in [1, 16, 20, 33, 48, 64] {
            let shape = Shape::new(&spec(body, tokens), arch, &Choice::none("stream_k")).unwrap();
            let is_most = shape.columns.is_multiple_of(most);
            assert_eq!(shape.share(), if is_most { most } else { shape::TOKENS }, "{tokens} tokens");
            assert_eq!(shape.columns % shape.share(), 0, "{tokens} tokens");
        }
    }
}
