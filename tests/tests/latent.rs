//! Attention over caches with values that are a part of keys, or of another width: latent
//! attention, where all query heads share one head of the cache.
use std::collections::BTreeMap;

use atomc_ir::interp::{self, BatchState, CacheState, Cx, Tensor, Val};
use atomc_ir::trial::Run;
use atomc_ir::{Family, parse};
use atomc_tests::kernels::{Case, case, run};

/// Query heads, numbers of a value, further numbers of a key, and the window.
#[derive(Clone, Copy)]
struct Latent(usize, usize, usize, usize);

impl Latent {
    fn attention(self, query: &str, cache: &str) -> String {
        let Latent(heads, rank, _, window) = self;
        let width = heads * rank;
        format!(
            "  %a = attention {query}, {cache}, %batch {{scale = 0.2, window = {window}}} : bf16[T, {heads}, {rank}]
  %r = reshape %a {{shape = [T, {width}]}} : bf16[T, {width}]
"
        )
    }

    fn cache(self, dtype: &str) -> String {
        let Latent(_, rank, rope, _) = self;
        format!("cache<{dtype}, 1, {}, prefix {rank}>", rank + rope)
    }

    /// Queries from memory, keys from earlier.
    fn many(self) -> String {
        let (Latent(heads, rank, rope, _), cache) = (self, self.cache("bf16"));
        let (body, dim) = (self.attention("%q", "%kv"), rank + rope);
        format!("graph @k(%q: bf16[T, {heads}, {dim}], %kv: {cache}, %batch: batch) {{\n{body}  return %r\n}}")
    }

    /// Queries and keys of two parts. The second part is rotated, and that of keys has a norm.
    fn one(self) -> String {
        let (Latent(heads, rank, rope, _), cache) = (self, self.cache("bf16"));
        let (body, dim) = (self.attention("%q", "%w"), rank + rope);
        format!(
            "graph @k(%c: bf16[T, {heads}, {rank}], %b: bf16[T, {heads}, {rope}], %x: bf16[T, {dim}], %n: bf16[{rank}], %table: f32[T, {rope}], %kv: {cache}, %batch: batch) {{
  %0 = rope %b, %table : bf16[T, {heads}, {rope}]
  %q = beside %c, %0 : bf16[T, {heads}, {dim}]
  %1 = slice %x {{axis = 1, start = 0, len = {rank}}} : bf16[T, {rank}]
  %2 = reshape %1 {{shape = [T, 1, {rank}]}} : bf16[T, 1, {rank}]
  %3 = rms_norm %2, %n {{eps = 1e-6}} : bf16[T, 1, {rank}]
  %4 = slice %x {{axis = 1, start = {rank}, len = {rope}}} : bf16[T, {rope}]
  %5 = reshape %4 {{shape = [T, 1, {rope}]}} : bf16[T, 1, {rope}]
  %6 = rope %5, %table : bf16[T, 1, {rope}]
  %7 = beside %3, %6 : bf16[T, 1, {dim}]
  %w = key_write %kv, %7, %batch {{values = {rank}}} : {cache}
{body}  return %r, %w
}}"
        )
    }
}

fn check(text: &str, family: Family, runs: &[Run]) -> Case<'static> {
    let tokens: usize = runs.iter().map(|r| r.tokens).sum();
    Case { runs: Box::leak(runs.into()), ..case(Box::leak(text.into()), family, tokens.next_power_of_two()) }
}

fn one(of: Latent, positions: &[usize]) {
    let runs: Vec<Run> = positions.iter().map(|&p| run(p, 1)).collect();
    check(&of.one(), Family::AttendOne, &runs).check();
}

#[test]
fn one_token_of_heads_that_share_a_key() {
    one(Latent(16, 64, 16, 0), &[0, 31, 64, 95]);
    one(Latent(6, 40, 16, 0), &[33, 2]);
    one(Latent(20, 128, 64, 0), &[200]);
}

#[test]
fn widths_of_released_models() {
    one(Latent(16, 512, 64, 0), &[70]);
    check(&Latent(16, 512, 64, 0).many(), Family::AttendMany, &[run(40, 3)]).check();
}

/// Shares of a sequence meet in pairs: those of 6, of 2 and of 1 work-groups.
#[test]
fn long_sequences_are_shared_out() {
    one(Latent(16, 512, 64, 0), &[700, 255, 3]);
    one(Latent(128, 512, 64, 0), &[700]);
}

/// Tiles of 64 queries: heads of one token, with few in the last tile, and of several tokens.
#[test]
fn tiles_of_heads_and_tokens() {
    let runs = [run(61, 4), run(0, 3)];
    check(&Latent(20, 512, 64, 0).many(), Family::AttendMany, &runs).check();
    check(&Latent(128, 512, 64, 0).many(), Family::AttendMany, &[run(130, 2)]).check();
    check(&Latent(40, 256, 32, 0).many(), Family::AttendMany, &[run(30, 5)]).check();
    one(Latent(40, 256, 32, 0), &[64, 10]);
    one(Latent(12, 256, 32, 0), &[33]);
}

#[test]
fn tiles_of_two_types() {
    let of = Latent(20, 512, 64, 0);
    let many = of.many();
    check(&many.replace("bf16", "f16"), Family::AttendMany, &[run(31, 3)]).check();
    check(&many, Family::AttendMany, &[run(31, 3)]).check_with_bytes();
    check(&Latent(16, 512, 64, 0).one(), Family::AttendOne, &[run(140, 1)]).check_with_bytes();
}

#[test]
fn runs_of_tokens() {
    let runs = [run(0, 7), run(63, 2), run(100, 5)];
    check(&Latent(6, 64, 16, 0).many(), Family::AttendMany, &runs).check_in_all_types();
    check(&Latent(18, 40, 8, 20).many(), Family::AttendMany, &runs).check();
}

#[test]
fn caches_of_bytes() {
    let runs = [run(0, 3), run(63, 2)];
    let text = |of: Latent, text: String| text.replace(&of.cache("bf16"), &of.cache("f8e4m3"));
    let of = Latent(6, 64, 16, 0);
    check(&text(of, of.many()), Family::AttendMany, &runs).check();
    check(&text(of, of.one()), Family::AttendOne, &[run(35, 1), run(2, 1)]).check();
}

#[test]
fn values_of_another_width_than_keys() {
    for (keys, values) in [(96, 64), (32, 80)] {
        let all = 4 * values;
        let many = format!(
            "graph @k(%q: bf16[T, 4, {keys}], %kv: cache<bf16, 2, {keys}, {values}>, %batch: batch) {{
  %a = attention %q, %kv, %batch {{scale = 0.2, window = 0}} : bf16[T, 4, {values}]
  %r = reshape %a {{shape = [T, {all}]}} : bf16[T, {all}]
  return %r
}}"
        );
        check(&many, Family::AttendMany, &[run(60, 7), run(0, 2)]).check();
        let one = format!(
            "graph @k(%q: bf16[T, 4, {keys}], %k: bf16[T, 2, {keys}], %v: bf16[T, 2, {values}], %kv: cache<bf16, 2, {keys}, {values}>, %batch: batch) {{
  %w = kv_write %kv, %k, %v, %batch : cache<bf16, 2, {keys}, {values}>
  %a = attention %q, %w, %batch {{scale = 0.2, window = 0}} : bf16[T, 4, {values}]
  %r = reshape %a {{shape = [T, {all}]}} : bf16[T, {all}]
  return %r, %w
}}"
        );
        check(&one, Family::AttendOne, &[run(60, 1), run(3, 1)]).check();
    }
}

/// The write alone, as steps of many tokens have it.
#[test]
fn keys_are_written() {
    let text = "graph @k(%k: bf16[T, 1, 80], %kv: cache<bf16, 1, 80, prefix 64>, %batch: batch) {
  %w = key_write %kv, %k, %batch {values = 64} : cache<bf16, 1, 80, prefix 64>
  return %w
}";
    check(text, Family::Rows, &[run(60, 7), run(0, 2)]).check_in_all_types();
}

/// Heads, elements of a head of x before and of those that are multiplied, and rows of a matrix.
#[derive(Clone, Copy)]
struct Heads(usize, usize, usize, usize);

impl Heads {
    fn text(self, weight: &str, more: [&str; 3]) -> String {
        let (Heads(heads, before, cols, rows), [param, operand, block]) = (self, more);
        let (step, out) = (before + cols, heads * rows);
        let all = heads * step;
        format!(
            "graph @k(%x: bf16[T, {all}], %w: {weight}[{heads}, {rows}, {cols}]@panels{param}) {{
  %0 = parts %x {{count = {heads}, start = {before}, len = {cols}, step = {step}}} : bf16[T, {heads}, {cols}]
  %1 = per_head %0, %w{operand} {{out = bf16{block}}} : bf16[T, {heads}, {rows}]
  %2 = reshape %1 {{shape = [T, {out}]}} : bf16[T, {out}]
  return %2
}}"
        )
    }

    /// The product with a scale for each block of `high` rows and `wide` columns.
    fn in_blocks(self, high: usize, wide: usize) -> String {
        let Heads(heads, _, cols, rows) = self;
        let (down, along) = (rows.div_ceil(high), cols.div_ceil(wide));
        let param = format!(", %s: f32[{heads}, {down}, {along}]");
        self.text("f8e4m3", [&param, ", %s", &format!(", block = [{high}, {wide}]")])
    }
}

const FEW: Family = Family::GroupedMatvec;
const MANY: Family = Family::GroupedMatmul;

#[test]
fn products_of_heads_with_their_own_matrices() {
    let bare = |heads: Heads| heads.text("bf16", [""; 3]);
    for heads in [Heads(6, 16, 32, 40), Heads(3, 8, 40, 48)] {
        check(&bare(heads), FEW, &[run(0, 3)]).check_in_all_types();
        check(&bare(heads), MANY, &[run(0, 37)]).check();
    }
    // Rows of heads that lie in memory as they are multiplied, in tiles that are not all full.
    for heads in [Heads(2, 64, 128, 144), Heads(3, 0, 96, 128)] {
        check(&bare(heads), FEW, &[run(0, 40)]).check();
        check(&bare(heads), MANY, &[run(0, 131)]).check_in_all_types();
    }
    // The result alone, as attention reads it.
    let text = bare(Heads(4, 0, 128, 64)).replace("return %2", "return %1");
    let text: Vec<&str> = text.lines().filter(|line| !line.contains("reshape")).collect();
    check(&text.join("\n"), FEW, &[run(0, 1)]).check();
}

#[test]
fn matrices_of_heads_as_codes() {
    check(&Heads(2, 64, 128, 256).in_blocks(128, 128), FEW, &[run(0, 2)]).check();
    check(&Heads(2, 0, 256, 128).in_blocks(128, 128), MANY, &[run(0, 5)]).check();
    check(&Heads(2, 64, 128, 256).in_blocks(128, 128), MANY, &[run(0, 140)]).check();
}

#[test]
fn neighbours_are_rotated() {
    let text = "graph @k(%x: bf16[T, 3, 24], %table: f32[T, 16]) {
  %0 = rope_pairs %x, %table : bf16[T, 3, 24]
  %1 = reshape %0 {shape = [T, 72]} : bf16[T, 72]
  return %1
}";
    check(text, Family::Rows, &[run(0, 5)]).check_in_all_types();
    let whole = text.replace("24]", "16]").replace("72", "48");
    check(&whole, Family::Rows, &[run(0, 5)]).check();
}

/// Keys and values of each head, made of latent rows, against latent rows as the keys of all heads:
/// the same in real numbers.
#[test]
fn the_absorbed_form_is_the_plain_one() {
    // 3 heads of keys of 4 numbers and 2 that are turned, values of 5, latent rows of 7.
    let text = |body: &str, cache: &str| {
        format!(
            "graph @k(%q: f32[T, 18], %c: f32[T, 7], %p: f32[T, 1, 2], %kv: {cache}, %batch: batch) {{
  %w = weight {{name = \"kv_b\"}} : f32[27, 7]
  %qn = parts %q {{count = 3, start = 0, len = 4, step = 6}} : f32[T, 3, 4]
  %qp = parts %q {{count = 3, start = 4, len = 2, step = 6}} : f32[T, 3, 2]
{body}  return %y
}}"
        )
    };
    let plain = "  %b = linear %c, %w {out = f32} : f32[T, 27]
  %kn = parts %b {count = 3, start = 0, len = 4, step = 9} : f32[T, 3, 4]
  %v = parts %b {count = 3, start = 4, len = 5, step = 9} : f32[T, 3, 5]
  %ps = concat %p, %p, %p {axis = 1} : f32[T, 3, 2]
  %k = beside %kn, %ps : f32[T, 3, 6]
  %s = kv_write %kv, %k, %v, %batch : cache<f32, 3, 6, 5>
  %qs = beside %qn, %qp : f32[T, 3, 6]
  %y = attention %qs, %s, %batch {scale = 0.3, window = 0} : f32[T, 3, 5]
";
    let absorbed = "  %ws = view %w {shape = [3, 9, 7]} : f32[3, 9, 7]
  %wk = slice %ws {axis = 1, start = 0, len = 4} : f32[3, 4, 7]
  %wt = transpose %wk : f32[3, 7, 4]
  %wv = slice %ws {axis = 1, start = 4, len = 5} : f32[3, 5, 7]
  %qa = per_head %qn, %wt {out = f32} : f32[T, 3, 7]
  %qs = beside %qa, %qp : f32[T, 3, 9]
  %ch = reshape %c {shape = [T, 1, 7]} : f32[T, 1, 7]
  %k = beside %ch, %p : f32[T, 1, 9]
  %s = key_write %kv, %k, %batch {values = 7} : cache<f32, 1, 9, prefix 7>
  %a = attention %qs, %s, %batch {scale = 0.3, window = 0} : f32[T, 3, 7]
  %y = per_head %a, %wv {out = f32} : f32[T, 3, 5]
";
    let numbers = |seed: usize, shape: &[usize]| {
        let number = |i: usize| ((i + seed) as f64 * 0.7).sin() * 1.5;
        Tensor::new(shape.to_vec(), (0..shape.iter().product()).map(number).collect())
    };
    let batch = BatchState { sequences: vec![0, 1, 0, 0, 1], positions: vec![0, 0, 1, 2, 1] };
    let run = |text: &str| -> Vec<f64> {
        let graph = parse(text).expect("a graph");
        graph.verify().unwrap_or_else(|e| panic!("{e}"));
        let params = BTreeMap::from([
            ("q".to_string(), Val::Float(numbers(1, &[5, 18]))),
            ("c".to_string(), Val::Float(numbers(100, &[5, 7]))),
            ("p".to_string(), Val::Float(numbers(200, &[5, 1, 2]))),
            ("kv".to_string(), Val::Cache(CacheState::default())),
            ("batch".to_string(), Val::Batch(batch.clone())),
        ]);
        let weight = |_: &str| Some(numbers(300, &[27, 7]));
        let out = interp::run::<f64>(&graph, Cx::of(5, 0), &params, &weight).expect("a result");
        out[0].float().expect("numbers").data.clone()
    };
    let plain = run(&text(plain, "cache<f32, 3, 6, 5>"));
    let absorbed = run(&text(absorbed, "cache<f32, 1, 9, prefix 7>"));
    assert_eq!(plain.len(), 75);
    for (plain, absorbed) in plain.iter().zip(&absorbed) {
        assert!((plain - absorbed).abs() < 1e-12, "{plain} {absorbed}");
    }
}
