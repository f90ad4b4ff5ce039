//! Kernels of layers with a recurrent state: the short convolution and the gated delta rule, over
//! sequences that begin, continue and end anywhere.
use atomc_ir::trial::{Fill, Run, Step, Trial};
use atomc_ir::{Family, parse};
use atomc_targets::{KernelSpec, ask, compile, rows};
use atomc_tests::kernels::{Case, case, run};

/// A token of each of two old sequences and of a new one.
const DECODE: [Run; 3] = [run(5, 1), run(0, 1), run(1, 1)];

fn check(text: &str, runs: &[Run]) -> Case<'static> {
    let tokens: usize = runs.iter().map(|r| r.tokens).sum();
    Case { runs: Box::leak(runs.into()), ..case(Box::leak(text.into()), Family::Recur, tokens.next_power_of_two()) }
}

/// A convolution over `len` tokens of `channels` channels.
fn conv(channels: usize, len: usize) -> String {
    let before = len - 1;
    format!(
        "graph @k(%s: slots<bf16, {before}, {channels}>, %x: bf16[T, {channels}], %w: bf16[{len}, {channels}], %batch: batch) {{
  %0, %1 = conv %s, %x, %w, %batch : bf16[T, {channels}], slots<bf16, {before}, {channels}>
  return %0, %1
}}"
    )
}

/// A delta rule of heads of keys and of values, and their widths.
fn delta([key_heads, heads]: [usize; 2], [dk, dv]: [usize; 2]) -> String {
    let state = format!("slots<f32, {heads}, {dk}, {dv}>");
    format!(
        "graph @k(%s: {state}, %q: bf16[T, {key_heads}, {dk}], %k: bf16[T, {key_heads}, {dk}], %v: bf16[T, {heads}, {dv}], %g: f32[T, {heads}], %beta: bf16[T, {heads}], %batch: batch) {{
  %0, %1 = delta_rule %s, %q, %k, %v, %g, %beta, %batch {{eps = 1e-6}} : bf16[T, {heads}, {dv}], {state}
  return %0, %1
}}"
    )
}

/// A convolution of a part of each row, followed by an activation.
fn conv_within(channels: usize, start: usize) -> String {
    let (width, state) = (start + channels + 3, format!("slots<bf16, 3, {channels}>"));
    format!(
        "graph @k(%s: {state}, %x: bf16[T, {width}], %w: bf16[4, {channels}], %batch: batch) {{
  %0 = slice %x {{axis = 1, start = {start}, len = {channels}}} : bf16[T, {channels}]
  %1, %2 = conv %s, %0, %w, %batch : bf16[T, {channels}], {state}
  %3 = silu %1 : bf16[T, {channels}]
  return %3, %2
}}"
    )
}

/// A delta rule of parts of rows, of heads of keys and of values and their widths, with gates that
/// are made of others.
fn delta_within([key_heads, heads]: [usize; 2], [dk, dv]: [usize; 2]) -> String {
    let (state, keys) = (format!("slots<f32, {heads}, {dk}, {dv}>"), key_heads * dk);
    let (values, width) = (heads * dv, 2 * keys + heads * dv);
    let gates = 2 * heads + 1;
    format!(
        "graph @k(%s: {state}, %x: bf16[T, {width}], %ab: bf16[T, {gates}], %bias: f32[{heads}], %log: f32[{heads}], %batch: batch) {{
  %0 = slice %x {{axis = 1, start = 0, len = {keys}}} : bf16[T, {keys}]
  %1 = reshape %0 {{shape = [T, {key_heads}, {dk}]}} : bf16[T, {key_heads}, {dk}]
  %2 = slice %x {{axis = 1, start = {keys}, len = {keys}}} : bf16[T, {keys}]
  %3 = reshape %2 {{shape = [T, {key_heads}, {dk}]}} : bf16[T, {key_heads}, {dk}]
  %4 = slice %x {{axis = 1, start = {}, len = {values}}} : bf16[T, {values}]
  %5 = reshape %4 {{shape = [T, {heads}, {dv}]}} : bf16[T, {heads}, {dv}]
  %6 = slice %ab {{axis = 1, start = 1, len = {heads}}} : bf16[T, {heads}]
  %7 = cast %6 {{to = f32}} : f32[T, {heads}]
  %8 = decay %7, %bias, %log : f32[T, {heads}]
  %9 = slice %ab {{axis = 1, start = {}, len = {heads}}} : bf16[T, {heads}]
  %10 = sigmoid %9 : bf16[T, {heads}]
  %11, %12 = delta_rule %s, %1, %3, %5, %8, %10, %batch {{eps = 1e-6}} : bf16[T, {heads}, {dv}], {state}
  return %11, %12
}}",
        2 * keys,
        heads + 1
    )
}

/// Parts of rows that begin anywhere, with other ops before and after them in the same kernel.
#[test]
fn with_what_is_around() {
    check(&conv_within(108, 64), &[run(0, 7), run(2, 2), run(0, 1), run(63, 3)]).check();
    check(&conv_within(24, 7), &DECODE).check();
    check(&delta_within([1, 3], [24, 20]), &[run(0, 7), run(2, 2), run(0, 1), run(63, 3)]).check();
    check(&delta_within([1, 1], [9, 8]), &DECODE).check();
    check(&delta_within([1, 2], [128, 128]), &[run(9, 1), run(0, 2)]).check();
}

#[test]
fn convolutions() {
    check(&conv(108, 4), &[run(0, 7), run(2, 2), run(0, 1), run(63, 3)]).check_in_all_types();
    check(&conv(208, 2), &[run(3, 1), run(0, 5)]).check();
    // More channels than a task makes.
    check(&conv(600, 3), &DECODE).check();
    // Turns of all waves, and an odd number of channels.
    check(&conv(21, 4), &[run(0, 65), run(4, 1)]).check();
}

/// Lengths around the 64 tokens that may be computed at once, of sequences that begin and that
/// continue.
const LENGTHS: [Run; 6] = [run(0, 1), run(5, 63), run(0, 64), run(0, 65), run(64, 2), run(9, 130)];

#[test]
fn sequences_of_any_length() {
    check(&conv(40, 4), &LENGTHS).check();
    check(&delta([1, 2], [24, 20]), &LENGTHS).check();
}

/// Heads as released, in chunks: new sequences, others that continue, and some of a single token
/// among them, in an order that no multiple of a chunk fits.
#[test]
fn chunks() {
    let mixed = [run(3, 1), run(0, 65), run(7, 63), run(1, 1), run(64, 130)];
    check(&delta([1, 2], [128, 128]), &mixed).check();
    // Rows that no vector fits, parts of rows that begin anywhere, and no slot.
    check(&delta([1, 2], [18, 7]), &[run(0, 65), run(9, 64)]).check();
    let within = check(&delta_within([2, 6], [24, 20]), &[run(2, 65), run(0, 17), run(5, 16), run(3, 2)]);
    Case { slotless: &[1], ..within }.check();
    // More rows than local memory has room for chunks of 64.
    check(&delta([1, 1], [256, 72]), &[run(2, 66)]).check();
}

/// Steps of many tokens have chunks where the chip multiplies as they want it; others say why not.
#[test]
fn who_has_chunks() {
    let answer = |text: &str, arch: &atomc_ir::Arch, tokens, schedule| {
        let graph = parse(text).unwrap();
        let spec = KernelSpec::new(Family::Recur, &graph, tokens);
        let asked = ask(&spec, arch).unwrap();
        let chunks = asked.iter().find(|a| a.schedule.name == schedule).unwrap();
        chunks.answer.as_ref().err().map(|why| why.to_string())
    };
    let said = |arch, tokens, schedule| answer(&delta([2, 4], [128, 128]), arch, tokens, schedule);
    let by_row = |arch, schedule| answer(&apart(4, 128, 128), arch, 512, schedule);
    let row = |name| rows().iter().find(|arch| arch.name == name).unwrap();
    for name in ["gfx90a", "gfx942", "gfx950", "gfx1201", "gfx1250"] {
        assert_eq!(said(row(name), 512, "delta_chunks"), None, "{name}");
        assert_eq!(said(row(name), 8, "delta_chunks"), Some("steps of 8 tokens".into()), "{name}");
        assert_eq!(by_row(row(name), "delta_chunks"), None, "{name}");
    }
    assert_eq!(said(row("gfx1100"), 512, "delta_chunks"), Some("operands that lanes have twice".into()));
    assert_eq!(said(row("sm_80"), 512, "delta_chunks"), Some("no chip of this kind ever ran it".into()));
    assert_eq!(said(row("sm_80"), 512, "delta_warpgroup"), Some("sm_80 has no warpgroup MMA".into()));
    assert_eq!(said(row("sm_90a"), 512, "delta_warpgroup"), None);
    assert_eq!(by_row(row("sm_90a"), "delta_warpgroup"), None);
    let half = answer(&apart(4, 64, 64), row("sm_90a"), 512, "delta_warpgroup");
    assert_eq!(half, Some("states of 64 by 64".into()));
    assert_eq!(said(row("sm_90a"), 8, "delta_warpgroup"), Some("steps of 8 tokens".into()));
}

/// They read zeros, whatever their position, and write nothing.
#[test]
fn sequences_without_a_slot() {
    for text in [conv(108, 4), conv(21, 2), delta([1, 3], [24, 20]), delta([1, 1], [128, 128])] {
        let some = check(&text, &[run(0, 3), run(7, 2), run(3, 1), run(1, 1)]);
        Case { slotless: &[0, 2], ..some }.check();
        Case { slotless: &[0, 1, 2, 3], ..some }.check();
    }
}

#[test]
fn delta_rules() {
    check(&delta([1, 3], [24, 20]), &[run(0, 7), run(2, 2), run(0, 1), run(63, 3)]).check_in_all_types();
    check(&delta([2, 6], [20, 24]), &DECODE).check();
    check(&delta([1, 2], [128, 128]), &[run(9, 1), run(0, 2)]).check();
    // Rows and columns that no vector fits, and more rows than lanes of the least team have.
    check(&delta([1, 2], [18, 7]), &[run(0, 65), run(1, 3)]).check();
    check(&delta([1, 1], [256, 16]), &[run(1, 1), run(0, 2)]).check();
}

/// Chips that are not emulated, too.
#[test]
fn every_target_has_kernels() {
    for text in [conv(1536, 4), delta([2, 4], [128, 128]), apart(4, 128, 128)] {
        let graph = parse(&text).unwrap();
        for (arch, tokens) in rows().iter().flat_map(|arch| [1, 512].map(|tokens| (arch, tokens))) {
            let spec = KernelSpec::new(Family::Recur, &graph, tokens);
            let made = compile(&[spec], arch).unwrap_or_else(|e| panic!("{}: {e}", arch.name));
            let Some(r) = &made.kernels[0].resources else { continue };
            let spills = [r.scratch, r.vgpr_spills, r.sgpr_spills];
            assert_eq!(spills, [0; 3], "{}: scratch and registers that did not fit", arch.name);
        }
    }
}

/// The state behind each token of a short run, and behind the last one of a long run, each in a
/// slot of its own: of runs as long as there are slots, one shorter and one longer, in steps of few
/// tokens and of many.
#[test]
fn states_behind_tokens() {
    let within = |each: usize, text: String| text.replace('>', &format!(", each {each}>"));
    for each in [2, 8] {
        let few = [run(5, each), run(0, each - 1), run(7, 1), run(0, each), run(2, each + 1)];
        let many = [run(3, each), run(0, 65), run(9, 2), run(1, 80)];
        for text in [conv(108, 4), conv(21, 2), delta([1, 2], [24, 20]), delta_within([1, 3], [24, 20])] {
            let text = within(each, text);
            check(&text, &few).check();
            Case { slotless: &[1, 3], ..check(&text, &many) }.check();
        }
    }
    let released = within(4, delta([1, 2], [128, 128]));
    check(&released, &[run(9, 4), run(0, 4), run(3, 2)]).check();
    check(&released, &[run(9, 4), run(0, 130), run(17, 1), run(8, 3)]).check();
}

/// A delta rule with a decay for each row of a state: as many numbers of a token as its keys have.
fn apart(heads: usize, dk: usize, dv: usize) -> String {
    let text = delta([heads, heads], [dk, dv]);
    text.replace(&format!("%g: f32[T, {heads}]"), &format!("%g: f32[T, {}]", heads * dk))
}

#[test]
fn rows_that_decay_apart() {
    check(&apart(3, 24, 20), &[run(0, 7), run(2, 2), run(0, 1), run(63, 3)]).check_in_all_types();
    check(&apart(2, 20, 24), &DECODE).check();
    check(&apart(2, 18, 7), &[run(0, 65), run(9, 64)]).check();
    let released = apart(2, 128, 128);
    check(&released, &[run(9, 1), run(0, 2), run(5, 130)]).check();
    let verified = released.replace('>', ", each 4>");
    check(&verified, &[run(9, 4), run(0, 3), run(2, 5)]).check();
    Case { slotless: &[1], ..check(&verified, &[run(9, 4), run(3, 3)]) }.check();
}

/// As [`apart`], with decays that are made of numbers that begin at an odd element of a row, as
/// models have them: a part of the tokens keeps all, others keep nothing.
fn apart_within(heads: usize, dk: usize, dv: usize) -> String {
    let width = heads * dk;
    let gates = format!("%a: bf16[T, {}], %bias: f32[{width}], %log: f32[{width}]", width + 1);
    let made = format!(
        "%10 = slice %a {{axis = 1, start = 1, len = {width}}} : bf16[T, {width}]
  %11 = cast %10 {{to = f32}} : f32[T, {width}]
  %g = decay %11, %bias, %log : f32[T, {width}]
  %0, %1 ="
    );
    apart(heads, dk, dv).replace(&format!("%g: f32[T, {width}]"), &gates).replace("%0, %1 =", &made)
}

/// In chunks: new sequences and others that continue, of lengths around a chunk and around the
/// blocks that it is made of.
#[test]
fn rows_that_decay_apart_in_chunks() {
    check(&apart(1, 24, 20), &[run(0, 15), run(5, 16), run(0, 17), run(9, 31), run(0, 33), run(1, 1)]).check();
    check(&apart(2, 18, 7), &LENGTHS).check();
    check(&apart_within(2, 24, 20), &[run(2, 65), run(0, 17), run(5, 16)]).check();
    check(&apart_within(1, 128, 128), &[run(0, 40), run(5, 34)]).check();
    let released = apart(2, 128, 128);
    check(&released, &[run(3, 1), run(0, 65), run(7, 63), run(64, 130)]).check();
    let kept = released.replace('>', ", each 4>");
    Case { slotless: &[2], ..check(&kept, &[run(9, 4), run(0, 130), run(17, 40), run(8, 3)]) }.check();
}

/// Rows that decay alike are those of a head with one decay.
#[test]
fn rows_that_decay_alike() {
    let gates = "%a: f32[T, 2], %bias: f32[2], %log: f32[2]";
    let made = |text: String, width: usize, rest: &str| {
        let with = format!("%one = decay %a, %bias, %log : f32[T, 2]{rest}\n  %0, %1 =");
        parse(&text.replace(&format!("%g: f32[T, {width}]"), gates).replace("%0, %1 =", &with)).unwrap()
    };
    let one = made(delta([2, 2], [24, 20]).replace("%g, %beta, %batch {", "%one, %beta, %batch {"), 2, "");
    let alike = made(apart(2, 24, 20), 48, "\n  %g = repeat %one {axis = 1, times = 24} : f32[T, 48]");
    let memory = rows()[0].memory;
    let made = [&one, &alike].map(|graph| {
        let step = Step::of(vec![run(3, 9), run(0, 40)]);
        let trial = Trial::new(graph, memory, step, (Fill::Random, 7), &|_| None).unwrap();
        trial.want().unwrap()
    });
    assert_eq!(made[0], made[1]);
}
