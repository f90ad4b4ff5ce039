//! Weights that are stored as codes, in every scheme that checkpoints have, on every machine that
//! this one can run or emulate.
use atomc_ir::arch::Isa;
use atomc_ir::{DType, Family, parse};
use atomc_targets::{KernelSpec, compile, rows};
use atomc_tests::kernels::{Case, case, run};

/// How a weight is stored.
#[derive(Clone, Copy)]
struct Scheme {
    codes: &'static str,
    scale: &'static str,
    zero: Option<&'static str>,
    /// Rows and columns of a block; 0 for all of them.
    block: [usize; 2],
}

const fn scheme(codes: &'static str, scale: &'static str, block: [usize; 2]) -> Scheme {
    Scheme { codes, scale, zero: None, block }
}

impl Scheme {
    const fn with_zero(self, zero: &'static str) -> Scheme {
        Scheme { zero: Some(zero), ..self }
    }

    /// Parameters of a weight of `n` by `k`, the operands of its product, and the attribute.
    fn of(self, n: usize, k: usize) -> [String; 3] {
        let side = |of: usize, all: usize| if of == 0 { all } else { of };
        let [rows, cols] = [side(self.block[0], n), side(self.block[1], k)];
        let (high, wide) = (n.div_ceil(rows), k.div_ceil(cols));
        let layout = if rows == 1 { LAYOUT } else { "" };
        let scale = format!("%s: {}[{high}, {wide}]{layout}", self.scale);
        let zero = self.zero.map(|zero| format!(", %z: {zero}[{high}, {wide}]{layout}")).unwrap_or_default();
        let parameters = format!("%w: {}[{n}, {k}]@panels, {scale}{zero}", self.codes);
        let operands = if self.zero.is_some() { "%w, %s, %z" } else { "%w, %s" };
        [parameters, operands.into(), format!("block = [{rows}, {cols}]")]
    }
}

const LAYOUT: &str = "@columns";

/// Scales of a tensor, of rows, of groups and of squares; groups that end inside a word of codes.
const SCHEMES: [Scheme; 29] = [
    scheme("f8e4m3", "f32", [0, 0]),
    scheme("f8e4m3", "bf16", [1, 0]),
    scheme("f8e4m3", "f32", [128, 128]),
    scheme("f8e4m3", "e8m0", [1, 32]),
    scheme("i8", "f32", [0, 0]),
    scheme("i8", "f16", [1, 0]),
    scheme("i8", "bf16", [1, 0]).with_zero("i8"),
    scheme("i8", "f32", [1, 64]),
    scheme("u8", "f32", [1, 0]).with_zero("u8"),
    scheme("u8", "bf16", [1, 128]).with_zero("u8"),
    scheme("u8", "f32", [24, 40]).with_zero("u8"),
    scheme("i4", "f32", [1, 0]),
    scheme("i4", "bf16", [1, 32]),
    scheme("i4", "f16", [1, 128]),
    scheme("i4", "f32", [16, 64]).with_zero("i8"),
    scheme("u4", "f16", [1, 64]).with_zero("u8"),
    scheme("u4", "bf16", [1, 128]).with_zero("u8"),
    scheme("u4", "f16", [1, 32]),
    scheme("f4e2m1", "e8m0", [1, 32]),
    scheme("f4e2m1", "f32", [1, 16]),
    scheme("f4e2m1", "f32", [5, 3]),
    scheme("i8", "f32", [2, 6]).with_zero("i8"),
    scheme("u4", "bf16", [1, 12]).with_zero("u8"),
    // As the types of GGUF have them, where floats are least numbers.
    scheme("u4", "f32", [1, 32]).with_zero("f32"),
    scheme("u4", "f16", [1, 32]).with_zero("f16"),
    scheme("u8", "f32", [1, 16]).with_zero("f32"),
    scheme("i8", "f32", [1, 16]),
    scheme("u4", "f32", [1, 0]).with_zero("f32"),
    scheme("u8", "f16", [1, 12]).with_zero("f16"),
];

/// A plain product, with a bias and a residual.
fn biased(scheme: Scheme, k: usize, n: usize) -> String {
    let [weight, operands, block] = scheme.of(n, k);
    format!(
        "graph @k(%x: bf16[T, {k}], {weight}, %b: bf16[{n}], %r: bf16[T, {n}]) {{
  %0 = linear %x, {operands} {{out = bf16, {block}}} : bf16[T, {n}]
  %1 = add %0, %b : bf16[T, {n}]
  %2 = add %r, %1 : bf16[T, {n}]
  return %2
}}"
    )
}

/// A norm, and a product in two pieces.
fn gated(scheme: Scheme, k: usize, n: usize) -> String {
    let [weight, operands, block] = scheme.of(2 * n, k);
    let all = 2 * n;
    format!(
        "graph @k(%x: bf16[T, {k}], %wn: bf16[{k}], {weight}) {{
  %0 = rms_norm %x, %wn {{eps = 1e-6}} : bf16[T, {k}]
  %1 = linear %0, {operands} {{out = bf16, {block}}} : bf16[T, {all}]
  %2 = slice %1 {{axis = 1, start = 0, len = {n}}} : bf16[T, {n}]
  %3 = slice %1 {{axis = 1, start = {n}, len = {n}}} : bf16[T, {n}]
  %4 = silu_mul %2, %3 : bf16[T, {n}]
  return %4
}}"
    )
}

/// Schemes that GPUs take: a product, of 32 columns at most, has one scale for each row; of
/// integers the columns of a lane in a product have one.
fn on_gpus() -> impl Iterator<Item = Scheme> {
    let least = |scheme: &Scheme| if scheme.codes.starts_with('f') { 32 } else { 16 };
    SCHEMES.into_iter().chain(MORE).filter(move |scheme| scheme.block[1].is_multiple_of(least(scheme)))
}

/// Squares with rows that are no whole panels, and zero points of squares.
const MORE: [Scheme; 5] = [
    scheme("u4", "f32", [3, 32]).with_zero("f32"),
    scheme("i8", "f32", [24, 64]).with_zero("i8"),
    scheme("u4", "bf16", [3, 32]).with_zero("u8"),
    scheme("i4", "f16", [1, 256]).with_zero("i8"),
    scheme("u8", "e8m0", [1, 32]),
];

/// The body with activations of another type.
fn with_activations(text: &str, dtype: &str) -> String {
    text.replace("bf16[T", &format!("{dtype}[T")).replace("out = bf16", &format!("out = {dtype}"))
}

fn name(scheme: Scheme) -> String {
    format!("{} by {} {:?} {:?}", scheme.codes, scheme.scale, scheme.zero, scheme.block)
}

#[test]
fn every_type_of_codes_has_schemes() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_code()) {
        assert!(SCHEMES.iter().any(|scheme| scheme.codes == dtype.name()), "{}", dtype.name());
    }
}

#[test]
fn matvec_of_codes() {
    for scheme in SCHEMES {
        eprintln!("{}", name(scheme));
        for (bucket, k, n) in [(1, 200, 50), (4, 256, 64), (8, 72, 160)] {
            let runs = &[run(0, 1); 3][..bucket.min(3)];
            let text = biased(scheme, k, n);
            Case { runs, ..case(&text, Family::Matvec, bucket) }.check_on_cpus();
        }
    }
}

#[test]
fn matvec_of_codes_with_norm_and_pieces() {
    for scheme in SCHEMES {
        eprintln!("{}", name(scheme));
        let text = gated(scheme, 160, 48);
        Case { runs: &[run(0, 1); 2], ..case(&text, Family::Matvec, 2) }.check_on_cpus_in_all_types();
    }
}

#[test]
fn matmul_of_codes() {
    for scheme in SCHEMES {
        eprintln!("{}", name(scheme));
        for (k, n) in [(200, 50), (256, 160)] {
            let text = biased(scheme, k, n);
            Case { runs: &[run(0, 37)], ..case(&text, Family::Matmul, 64) }.check_on_cpus();
        }
    }
}

#[test]
fn matmul_of_codes_in_other_types() {
    for scheme in SCHEMES.into_iter().step_by(3) {
        let text = biased(scheme, 136, 50);
        Case { runs: &[run(0, 5)], ..case(&text, Family::Matmul, 64) }.check_on_cpus_in_all_types();
    }
}

/// Columns that no step divides, several steps, and tokens of several tiles.
#[test]
fn matvec_of_codes_on_gpus() {
    for scheme in on_gpus() {
        eprintln!("{}", name(scheme));
        for (bucket, k, n) in [(1, 200, 50), (20, 512, 48)] {
            let runs = &[run(0, 1); 3][..bucket.min(3)];
            Case { runs, ..case(&biased(scheme, k, n), Family::Matvec, bucket) }.check_on_gpus();
        }
    }
}

#[test]
fn matvec_of_codes_with_norm_and_pieces_on_gpus() {
    for scheme in on_gpus() {
        eprintln!("{}", name(scheme));
        for dtype in ["bf16", "f16", "f32"] {
            let text = with_activations(&gated(scheme, 200, 48), dtype);
            Case { runs: &[run(0, 1); 2], ..case(&text, Family::Matvec, 8) }.check_on_gpus();
        }
    }
}

#[test]
fn matmul_of_codes_on_gpus() {
    for scheme in on_gpus() {
        eprintln!("{}", name(scheme));
        let text = biased(scheme, 200, 50);
        Case { runs: &[run(0, 140)], ..case(&text, Family::Matmul, 256) }.check_on_gpus();
    }
}

#[test]
fn matmul_of_codes_in_other_types_on_gpus() {
    for scheme in on_gpus() {
        eprintln!("{}", name(scheme));
        for dtype in ["f16", "f32"] {
            let text = with_activations(&biased(scheme, 96, 50), dtype);
            Case { runs: &[run(0, 5)], ..case(&text, Family::Matmul, 64) }.check_on_gpus();
        }
    }
}

#[test]
fn schedules_say_which_codes_they_do_not_take() {
    let arch = rows().iter().find(|arch| arch.name == "gfx942").expect("a row of the table");
    let error = |scheme: Scheme, family| {
        let graph = parse(&biased(scheme, 96, 48)).unwrap();
        let spec = KernelSpec::new(family, &graph, 1);
        compile(&[spec], arch).unwrap_err().message
    };
    let odd = scheme("f4e2m1", "f32", [5, 3]);
    let what = "f4e2m1[48, 96] with a scale for each 5 by 3";
    assert_eq!(
        error(odd, Family::Matvec),
        format!(
            "no schedule for matvec: stream_k: gfx942 has no warpgroup MMA; gemv_bulk: gfx942 has no bulk copies; \
             gemv_bulk_limbs: gfx942 has no bulk copies; gemv_bulk_dequant: gfx942 has no bulk copies; \
             gemm_warpgroup_few: 1 tokens of floats: 33 at least; \
             gemm_tiled_few: 1 tokens: multiples of 16 from 32 on; \
             gemv: {what}: a lane's part of 32 columns would have several scales"
        )
    );
    assert_eq!(
        error(odd, Family::Matmul),
        format!(
            "no schedule for matmul: gemm_warpgroup: gfx942 has no warpgroup MMA; \
             gemv_rows: 96 columns: 1024 at least; \
             gemm_tiled: {what}: 8 columns would have several scales"
        )
    );
}

/// Nothing here executes these; the vendor's assembler takes them where it is at hand.
#[test]
fn codes_for_nvidia_are_made() {
    let chips = rows().iter().filter(|arch| arch.isa() == Some(Isa::Ptx));
    for (arch, scheme) in chips.flat_map(|arch| on_gpus().map(move |scheme| (arch, scheme))) {
        let text = [biased(scheme, 200, 50), with_activations(&gated(scheme, 512, 64), "f16")];
        let bodies = text.map(|text| parse(&text).unwrap());
        let kinds = [(0, Family::Matvec, 4), (1, Family::Matvec, 32), (0, Family::Matmul, 256)];
        let spec = |(body, family, tokens): (usize, Family, usize)| KernelSpec::new(family, &bodies[body], tokens);
        for spec in kinds.map(spec) {
            let made = compile(&[spec], arch).unwrap_or_else(|e| panic!("{} {}: {e}", arch.name, name(scheme)));
            let scratch = made.kernels[0].resources.as_ref().map_or(0, |taken| taken.scratch);
            assert_eq!(scratch, 0, "{} {}", arch.name, name(scheme));
        }
    }
}
