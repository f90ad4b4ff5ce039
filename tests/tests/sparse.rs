//! Attention that chooses what it reads: the positions of each token, and attention over them.
use atomc_ir::Family;
use atomc_ir::trial::Run;
use atomc_tests::kernels::{Case, case, run};

fn check(text: &str, family: Family, runs: &[Run]) {
    let tokens: usize = runs.iter().map(|r| r.tokens).sum();
    Case { runs, ..case(text, family, tokens.next_power_of_two()) }.check_in_all_types();
}

/// In the types with the exponents of f32. In f16 weights are rounded to its smallest numbers,
/// which results in f32 show.
fn check_wide(text: &str, family: Family, runs: &[Run]) {
    let tokens: usize = runs.iter().map(|r| r.tokens).sum();
    for dtype in ["bf16", "f32"] {
        let text = &text.replace("bf16", dtype);
        Case { runs, ..case(text, family, tokens.next_power_of_two()) }.check();
    }
}

/// Queries of some heads, of so many numbers, over keys of their width, of which `k` are chosen.
fn choose(heads: usize, dim: usize, k: usize) -> String {
    format!(
        "graph @k(%q: bf16[T, {heads}, {dim}], %w: f32[T, {heads}], %keys: cache<bf16, 1, {dim}, prefix 8>, %batch: batch) {{
  %0 = choose %q, %w, %keys, %batch {{k = {k}}} : i32[T*{k}]
  return %0
}}"
    )
}

/// Attention of some heads over a cache, by lists of `k` positions.
fn attend(heads: usize, dim: usize, cache: &str, values: usize, k: usize) -> String {
    let width = heads * values;
    format!(
        "graph @k(%q: bf16[T, {heads}, {dim}], %kv: {cache}, %batch: batch, %list: i32[T*{k}]) {{
  %0 = attend_listed %q, %kv, %batch, %list {{scale = 0.2}} : bf16[T, {heads}, {values}]
  %1 = reshape %0 {{shape = [T, {width}]}} : bf16[T, {width}]
  return %1
}}"
    )
}

#[test]
fn the_best_of_few_positions_are_chosen() {
    check(&choose(4, 32, 8), Family::Choose, &[run(0, 3), run(40, 2), run(7, 1), run(6, 1)]);
}

/// Lists are cut more than once.
#[test]
fn the_best_of_many_positions_are_chosen() {
    check(&choose(5, 16, 24), Family::Choose, &[run(700, 1), run(1_500, 1)]);
}

#[test]
fn widths_of_released_indexers() {
    check(&choose(64, 128, 64), Family::Choose, &[run(300, 1)]);
}

#[test]
fn listed_positions_of_latent_rows() {
    let runs = [run(0, 3), run(90, 2), run(11, 1)];
    check(&attend(4, 24, "cache<bf16, 1, 24, prefix 16>", 16, 12), Family::AttendListed, &runs);
    check(&attend(20, 576, "cache<bf16, 1, 576, prefix 512>", 512, 40), Family::AttendListed, &[run(70, 2)]);
}

/// Work-groups share the list of a token.
#[test]
fn long_lists_of_latent_rows() {
    let text = attend(4, 576, "cache<bf16, 1, 576, prefix 512>", 512, 260);
    check(&text, Family::AttendListed, &[run(300, 1), run(200, 1)]);
}

#[test]
fn listed_positions_of_keys_and_values() {
    let runs = [run(0, 2), run(50, 2)];
    check(&attend(6, 32, "cache<bf16, 2, 32>", 32, 12), Family::AttendListed, &runs);
    check(&attend(4, 64, "cache<bf16, 4, 64, 32>", 32, 300), Family::AttendListed, &[run(290, 1)]);
}

/// Queries of some heads over keys of their width, of which each chooses `k` blocks.
fn choose_blocks(heads: usize, dim: usize, [k, block, local]: [usize; 3]) -> String {
    let entries = heads * k;
    format!(
        "graph @k(%q: bf16[T, {heads}, {dim}], %keys: cache<bf16, 1, {dim}, prefix {dim}>, %batch: batch) {{
  %0 = choose_blocks %q, %keys, %batch {{k = {k}, block = {block}, local = {local}}} : i32[T*{entries}]
  return %0
}}"
    )
}

/// Attention of some heads over a cache, by lists of `k` blocks for each of its heads.
fn attend_blocks(heads: usize, dim: usize, cache: (&str, usize), [k, block]: [usize; 2]) -> String {
    let (width, entries, cache) = (heads * dim, cache.1 * k, cache.0);
    format!(
        "graph @k(%q: bf16[T, {heads}, {dim}], %kv: {cache}, %batch: batch, %list: i32[T*{entries}]) {{
  %0 = attend_listed %q, %kv, %batch, %list {{scale = 0.2, block = {block}}} : bf16[T, {heads}, {dim}]
  %1 = reshape %0 {{shape = [T, {width}]}} : bf16[T, {width}]
  return %1
}}"
    )
}

/// Blocks smaller and larger than a page, the last of them whole or not, with as many as there are
/// and with fewer.
#[test]
fn the_best_blocks_are_chosen() {
    let runs = [run(0, 3), run(46, 2), run(15, 1), run(16, 1)];
    check(&choose_blocks(2, 24, [4, 4, 1]), Family::Choose, &runs);
    check(&choose_blocks(3, 16, [2, 8, 0]), Family::Choose, &runs);
    check(&choose_blocks(1, 16, [3, 128, 2]), Family::Choose, &[run(700, 1), run(511, 2)]);
}

/// Work-groups share the keys of a list.
#[test]
fn the_best_of_many_blocks_are_chosen() {
    check(&choose_blocks(4, 128, [16, 128, 1]), Family::Choose, &[run(4_000, 1)]);
    check(&choose_blocks(2, 16, [24, 8, 0]), Family::Choose, &[run(700, 1), run(1_500, 1)]);
}

#[test]
fn chosen_blocks_of_keys_and_values() {
    let runs = [run(0, 2), run(50, 2), run(31, 1)];
    check(&attend_blocks(6, 32, ("cache<bf16, 2, 32>", 2), [3, 4]), Family::AttendListed, &runs);
    check(&attend_blocks(6, 16, ("cache<bf16, 3, 16>", 3), [2, 8]), Family::AttendListed, &runs);
    check(&attend_blocks(16, 128, ("cache<bf16, 1, 128>", 1), [3, 128]), Family::AttendListed, &[run(700, 1)]);
}

/// A part of the attention of some heads over rows that are key and value: those of a window, all
/// rows of so many tokens that are complete, or listed ones.
fn attend_part([heads, dim]: [usize; 2], [window, every, k]: [usize; 3]) -> String {
    let row = if every == 1 { String::new() } else { format!(", every = {every}") };
    let (list, listed) = match k {
        0 => (String::new(), ""),
        _ => (format!(", %list: i32[T*{k}]"), ", %list"),
    };
    format!(
        "graph @k(%q: bf16[T, {heads}, {dim}], %kv: cache<bf16, 1, {dim}, prefix {dim}>, %batch: batch{list}) {{
  %0, %1 = attend_part %q, %kv, %batch{listed} {{scale = 0.2, window = {window}{row}}} : f32[T, {heads}, {dim}], f32[T, {}]
  return %0, %1
}}",
        2 * heads
    )
}

/// Tokens without a key among them, and lists that are longer and shorter than what tokens see.
#[test]
fn parts_of_attention() {
    let runs = [run(0, 5), run(90, 2), run(11, 1)];
    for seen in [[12, 1, 0], [0, 1, 0], [0, 4, 0], [0, 4, 8]] {
        check_wide(&attend_part([4, 24], seen), Family::AttendListed, &runs);
    }
    for seen in [[12, 1, 0], [0, 4, 8]] {
        check_wide(&attend_part([20, 512], seen), Family::AttendListed, &runs);
    }
}

/// Work-groups share what a token sees.
#[test]
fn long_parts_of_attention() {
    check_wide(&attend_part([4, 512], [0, 2, 0]), Family::AttendListed, &[run(700, 1), run(400, 1)]);
    check_wide(&attend_part([4, 512], [0, 2, 260]), Family::AttendListed, &[run(600, 1), run(400, 1)]);
}

/// Of rows of four tokens: none, some, and as many as a list has room for.
#[test]
fn rows_of_several_tokens_are_chosen() {
    let text = choose(4, 32, 8).replace("{k = 8}", "{k = 8, every = 4}");
    check(&text, Family::Choose, &[run(0, 5), run(30, 3), run(33, 1), run(2_000, 1)]);
}
