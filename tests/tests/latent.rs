//! Attention over caches whose values are a part of keys, or of another width: latent attention,
//! where all query heads share one head of the cache.
use atomc_ir::Family;
use atomc_ir::trial::Run;
use atomc_tests::kernels::{Case, case, run};

/// Query heads, numbers of a value, those that a key has behind them, and the window.
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

    /// Queries and keys of two parts, of which the second is turned and that of keys has a norm.
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
