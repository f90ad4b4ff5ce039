//! Attention over shapes that matter to how GPUs share it out: groups of query heads, widths of
//! heads, block edges, windows, sequences that several work-groups share.
use atomc_ir::Family;
use atomc_ir::trial::Run;
use atomc_tests::kernels::{Case, case, run};

/// Heads of queries and of the cache, numbers of a head, and the window.
#[derive(Clone, Copy)]
struct Heads(usize, usize, usize, usize);

impl Heads {
    fn attention(self, query: &str, cache: &str) -> String {
        let Heads(heads, _, dim, window) = self;
        let width = heads * dim;
        format!(
            "  %a = attention {query}, {cache}, %batch {{scale = 0.2, window = {window}}} : bf16[T, {heads}, {dim}]
  %r = reshape %a {{shape = [T, {width}]}} : bf16[T, {width}]
"
        )
    }

    /// Queries from memory, keys and values from earlier.
    fn many(self) -> String {
        let Heads(heads, kv, dim, _) = self;
        let body = self.attention("%q", "%kv");
        format!(
            "graph @k(%q: bf16[T, {heads}, {dim}], %kv: cache<bf16, {kv}, {dim}>, %batch: batch) {{\n{body}  return %r\n}}"
        )
    }

    /// Queries, keys and values from slices of a product's result, turned by half of their width.
    /// Keys have a norm.
    fn one(self) -> String {
        let Heads(heads, kv, dim, _) = self;
        let (q, k) = (heads * dim, kv * dim);
        let (all, rot, second) = (q + 2 * k, dim / 2, q + k);
        let body = self.attention("%3", "%9");
        format!(
            "graph @k(%qkv: bf16[T, {all}], %kn: bf16[{dim}], %table: f32[T, {rot}], %kv: cache<bf16, {kv}, {dim}>, %batch: batch) {{
  %1 = slice %qkv {{axis = 1, start = 0, len = {q}}} : bf16[T, {q}]
  %2 = reshape %1 {{shape = [T, {heads}, {dim}]}} : bf16[T, {heads}, {dim}]
  %3 = rope %2, %table : bf16[T, {heads}, {dim}]
  %4 = slice %qkv {{axis = 1, start = {q}, len = {k}}} : bf16[T, {k}]
  %5 = reshape %4 {{shape = [T, {kv}, {dim}]}} : bf16[T, {kv}, {dim}]
  %n = rms_norm %5, %kn {{eps = 1e-6}} : bf16[T, {kv}, {dim}]
  %6 = rope %n, %table : bf16[T, {kv}, {dim}]
  %7 = slice %qkv {{axis = 1, start = {second}, len = {k}}} : bf16[T, {k}]
  %8 = reshape %7 {{shape = [T, {kv}, {dim}]}} : bf16[T, {kv}, {dim}]
  %9 = kv_write %kv, %6, %8, %batch : cache<bf16, {kv}, {dim}>
{body}  return %r, %9
}}"
        )
    }
}

/// One token of a sequence for each position.
fn tokens(positions: &[usize]) -> Vec<Run> {
    positions.iter().map(|&p| run(p, 1)).collect()
}

/// A body that quantises its result: the type of codes, the rule, and the layout of the scales.
fn coded(heads: Heads, (to, rule, scales): (&str, &str, &str)) -> String {
    let width = heads.0 * heads.2;
    let quantise = format!("  %c = quantise %r {{to = {to}, rule = {rule}}} : {to}[T, {width}]@{scales}\n  return %c,");
    heads.one().replace("  return %r,", &quantise)
}

/// On GPUs with a row that says that they have such kernels.
fn one_coded(heads: Heads, positions: &[usize], codes: (&str, &str, &str)) {
    let (text, runs) = (coded(heads, codes), tokens(positions));
    let case = Case { runs: &runs, ..case(&text, Family::AttendOne, positions.len().next_power_of_two()) };
    if codes.2.starts_with("mx") { case.check_where_blocks_are_scaled() } else { case.check_on_gpus() }
}

fn one(heads: Heads, positions: &[usize]) {
    let runs = tokens(positions);
    Case { runs: &runs, ..case(&heads.one(), Family::AttendOne, positions.len().next_power_of_two()) }.check();
}

/// A body with sinks of a type for its heads.
fn sunk(text: &str, heads: Heads, dtype: &str) -> String {
    text.replace(", %batch {", ", %batch, %sinks {")
        .replace("%batch: batch", &format!("%batch: batch, %sinks: {dtype}[{}]", heads.0))
}

fn one_sunk(heads: Heads, positions: &[usize], dtype: &str) {
    let runs = tokens(positions);
    let text = sunk(&heads.one(), heads, dtype);
    Case { runs: &runs, ..case(&text, Family::AttendOne, positions.len().next_power_of_two()) }.check();
}

fn many_sunk(heads: Heads, runs: &[Run], dtype: &str) {
    let tokens: usize = runs.iter().map(|r| r.tokens).sum();
    let text = sunk(&heads.many(), heads, dtype);
    Case { runs, ..case(&text, Family::AttendMany, tokens.next_power_of_two()) }.check_in_all_types();
}

fn many(heads: Heads, runs: &[Run]) {
    let tokens: usize = runs.iter().map(|r| r.tokens).sum();
    Case { runs, ..case(&heads.many(), Family::AttendMany, tokens.next_power_of_two()) }.check_in_all_types();
}

/// Tokens of runs that see what comes after them too: each up to the end of its image. Images have
/// so many tokens, with one of text before each; or a run is an image.
fn up_to(heads: Heads, runs: &[Run], image: Option<usize>) {
    let tokens: usize = runs.iter().map(|r| r.tokens).sum();
    let text = heads.many().replace("%batch: batch", "%batch: batch, %ends: i32[T]");
    let text = text.replace(", %batch {", ", %batch, %ends {").replace("attention", "attend_up_to");
    let end = |r: &Run, t: usize| match image {
        None => r.tokens,
        Some(image) if t.is_multiple_of(image + 1) => t + 1,
        Some(image) => r.tokens.min((t / (image + 1) + 1) * (image + 1)),
    };
    let ends: Vec<i32> =
        runs.iter().flat_map(|r| (0..r.tokens).map(move |t| (r.position + end(r, t)) as i32)).collect();
    let indices: &[(&str, &[i32])] = &[("ends", &ends)];
    Case { runs, indices, ..case(&text, Family::AttendMany, tokens.next_power_of_two()) }.check_in_all_types();
}

#[test]
fn images_see_all_of_themselves() {
    up_to(Heads(2, 2, 32, 0), &[run(0, 24), run(0, 4), run(0, 70)], None);
    // The heads of a tower, and a run behind others of its sequence.
    up_to(Heads(3, 3, 72, 0), &[run(0, 33), run(40, 31)], None);
}

#[test]
fn tokens_see_their_image_between_text() {
    up_to(Heads(4, 2, 32, 0), &[run(0, 24), run(5, 3), run(0, 70)], Some(16));
    // Images are longer than what tokens see before them, and than a tile.
    up_to(Heads(2, 1, 64, 9), &[run(0, 90), run(40, 31)], Some(45));
    up_to(Heads(4, 4, 16, 40), &[run(37, 100)], Some(20));
}

#[test]
fn one_token_at_block_edges() {
    one(Heads(4, 4, 16, 0), &[0, 15, 16, 63]);
    one(Heads(8, 1, 80, 0), &[64, 65, 127, 128]);
    one(Heads(4, 2, 32, 0), &[0, 1, 31, 32, 33, 62, 66, 95]);
}

#[test]
fn one_token_of_wide_groups() {
    one(Heads(16, 1, 128, 0), &[70, 3]);
    one(Heads(20, 1, 32, 0), &[5, 200]);
    one(Heads(71, 1, 64, 0), &[130]);
}

#[test]
fn sequences_that_work_groups_share() {
    one(Heads(8, 2, 64, 0), &[1000]);
    one(Heads(2, 1, 32, 0), &[1300, 2]);
    one(Heads(8, 2, 64, 400), &[1000]);
}

#[test]
fn results_that_become_codes() {
    one_coded(Heads(3, 1, 128, 0), &[0, 40, 63], ("f8e4m3", "group(128)", "scaled(128)"));
    one_coded(Heads(2, 2, 128, 0), &[200, 3], ("f8e4m3", "power(128)", "scaled(128)"));
    one_coded(Heads(4, 2, 64, 0), &[1000], ("f8e4m3", "group(32)", "scaled(32)"));
    one_coded(Heads(16, 1, 256, 0), &[70, 5], ("f8e4m3", "group(128)", "scaled(128)"));
    one_coded(Heads(5, 1, 64, 33), &[130], ("f8e4m3", "group(64)", "scaled(64)"));
    one_coded(Heads(6, 2, 64, 0), &[300, 7], ("f4e2m1", "mx_codes(32)", "mx(32)"));
    one_coded(Heads(4, 4, 128, 0), &[63], ("f8e4m3", "mx_codes(32)", "mx(32)"));
}

#[test]
fn one_token_with_a_window() {
    one(Heads(4, 2, 48, 64), &[63, 64, 200]);
    one(Heads(4, 1, 32, 1), &[0, 64, 65]);
    one(Heads(6, 2, 24, 33), &[31, 32, 33, 97]);
}

#[test]
fn tiles_of_every_size() {
    let runs = [run(0, 1), run(0, 7), run(0, 32), run(0, 33)];
    many(Heads(8, 1, 64, 0), &runs);
    many(Heads(4, 4, 80, 0), &runs);
    many(Heads(6, 2, 16, 0), &runs);
}

#[test]
fn tiles_that_go_on() {
    let runs = [run(63, 2), run(64, 33), run(127, 1), run(100, 40)];
    many(Heads(4, 1, 128, 0), &runs);
    many(Heads(12, 1, 32, 0), &runs);
    many(Heads(2, 1, 72, 0), &runs);
    many(Heads(9, 1, 32, 0), &runs);
}

#[test]
fn tiles_with_a_window() {
    let runs = [run(150, 45), run(0, 40), run(64, 1)];
    for window in [1, 20, 64, 100] {
        many(Heads(4, 1, 64, window), &runs);
    }
}

#[test]
fn wide_heads() {
    one(Heads(4, 2, 256, 0), &[130, 5]);
    many(Heads(4, 1, 256, 0), &[run(60, 20)]);
}

#[test]
fn caches_of_bytes() {
    let runs = tokens(&[0, 31, 32, 63, 200]);
    let heads = Heads(8, 2, 64, 0);
    Case { runs: &runs, ..case(&heads.one(), Family::AttendOne, 8) }.check_with_bytes();
    let heads = Heads(3, 1, 80, 40);
    Case { runs: &runs, ..case(&heads.one(), Family::AttendOne, 8) }.check_with_bytes();
    let runs = [run(150, 45), run(0, 40), run(64, 1)];
    for heads in [Heads(4, 1, 128, 0), Heads(6, 2, 48, 64)] {
        Case { runs: &runs, ..case(&heads.many(), Family::AttendMany, 128) }.check_with_bytes();
    }
}

/// Sinks weigh as much as a few thousand keys, or as nothing.
#[test]
fn sinks_of_one_token() {
    one_sunk(Heads(4, 2, 48, 0), &[0, 31, 64], "bf16");
    one_sunk(Heads(20, 1, 32, 33), &[5, 200], "f32");
    one_sunk(Heads(71, 1, 64, 0), &[130], "f16");
    one_sunk(Heads(4, 2, 256, 0), &[130, 5], "bf16");
}

/// Only one part of a sequence counts the sink.
#[test]
fn sinks_of_sequences_that_work_groups_share() {
    one_sunk(Heads(8, 2, 64, 0), &[1000], "bf16");
    one_sunk(Heads(2, 1, 32, 0), &[1300, 2], "f32");
    one_sunk(Heads(8, 1, 64, 400), &[1000], "bf16");
}

#[test]
fn sinks_of_runs_of_tokens() {
    let runs = [run(63, 2), run(0, 33), run(150, 45), run(127, 1)];
    many_sunk(Heads(8, 1, 64, 20), &runs, "bf16");
    for heads in [Heads(4, 4, 80, 0), Heads(9, 1, 32, 0), Heads(4, 1, 128, 64)] {
        let text = sunk(&heads.many(), heads, "f32");
        Case { runs: &runs, ..case(&text, Family::AttendMany, 128) }.check();
    }
}

#[test]
fn sinks_over_caches_of_bytes() {
    let runs = tokens(&[0, 31, 200]);
    let heads = Heads(8, 2, 64, 40);
    let text = sunk(&heads.one(), heads, "bf16");
    Case { runs: &runs, ..case(&text, Family::AttendOne, 4) }.check_with_bytes();
    let runs = [run(150, 45), run(0, 40)];
    let heads = Heads(6, 2, 48, 64);
    let text = sunk(&heads.many(), heads, "bf16");
    Case { runs: &runs, ..case(&text, Family::AttendMany, 128) }.check_with_bytes();
}
