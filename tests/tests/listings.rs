//! What every family looks like on every chip: the block of LLVM IR, and the loop of assembly, that most of the work is in.
use atomc_ir::arch::Isa;
use atomc_ir::{Arch, Family, parse};
use atomc_targets::{Form, KernelSpec, rows, text};

const NORM: &str = "graph @k(%x: bf16[T, 512], %r: bf16[T, 512], %w: bf16[512]) {
  %0 = add %r, %x : bf16[T, 512]
  %1 = rms_norm %0, %w {eps = 1e-6} : bf16[T, 512]
  return %0, %1
}";

const GATED: &str = "graph @k(%x: bf16[T, 4096], %w: bf16[1024, 4096]@panels) {
  %0 = linear %x, %w {out = bf16} : bf16[T, 1024]
  %1 = slice %0 {axis = 1, start = 0, len = 512} : bf16[T, 512]
  %2 = slice %0 {axis = 1, start = 512, len = 512} : bf16[T, 512]
  %3 = silu_mul %1, %2 : bf16[T, 512]
  return %3
}";

const PLAIN: &str = "graph @k(%x: bf16[T, 4096], %w: bf16[1024, 4096]@panels) {
  %0 = linear %x, %w {out = bf16} : bf16[T, 1024]
  return %0
}";

const DECODE: &str = "graph @k(%qkv: bf16[T, 1536], %kv: cache<bf16, 2, 128>, %batch: batch) {
  %0 = slice %qkv {axis = 1, start = 0, len = 1024} : bf16[T, 1024]
  %1 = reshape %0 {shape = [T, 8, 128]} : bf16[T, 8, 128]
  %2 = slice %qkv {axis = 1, start = 1024, len = 256} : bf16[T, 256]
  %3 = reshape %2 {shape = [T, 2, 128]} : bf16[T, 2, 128]
  %4 = slice %qkv {axis = 1, start = 1280, len = 256} : bf16[T, 256]
  %5 = reshape %4 {shape = [T, 2, 128]} : bf16[T, 2, 128]
  %6 = kv_write %kv, %3, %5, %batch : cache<bf16, 2, 128>
  %7 = attention %1, %6, %batch {scale = 0.1, window = 0} : bf16[T, 8, 128]
  %8 = reshape %7 {shape = [T, 1024]} : bf16[T, 1024]
  return %8, %6
}";

const PREFILL: &str = "graph @k(%q: bf16[T, 8, 128], %kv: cache<bf16, 2, 128>, %batch: batch) {
  %0 = attention %q, %kv, %batch {scale = 0.1, window = 0} : bf16[T, 8, 128]
  %1 = reshape %0 {shape = [T, 1024]} : bf16[T, 1024]
  return %1
}";

/// A body, its family, and tokens of the bucket.
const KERNELS: [(&str, Family, usize); 5] = [
    (NORM, Family::Rows, 512),
    (GATED, Family::Matvec, 1),
    (GATED, Family::Matmul, 512),
    (DECODE, Family::AttendOne, 1),
    (PREFILL, Family::AttendMany, 512),
];

fn is_matrix(line: &str) -> bool {
    ["v_mfma", "v_wmma", "mma.sync", "wgmma.mma", "amdgcn.mfma", "amdgcn.wmma", "nvvm.mma"]
        .iter()
        .any(|name| line.contains(name))
}

/// The innermost loop with the most matrix instructions; all of it where there is none.
fn main_loop(assembly: &str) -> String {
    let begins = |l: &&str| *l != "k:" && !l.contains(".entry k(");
    let ends = |l: &&str| !l.contains("s_endpgm") && *l != "}";
    let lines: Vec<&str> = assembly.lines().skip_while(begins).take_while(ends).collect();
    let label = |name: &str| lines.iter().position(|l| l.strip_suffix(':') == Some(name));
    let back = |(end, line): (usize, &&str)| {
        let mut words = line.trim_end_matches(';').split_whitespace().skip_while(|w| w.starts_with('@'));
        let is_branch = |w: &str| w.starts_with("s_cbranch_") || w == "s_branch" || w == "bra" || w == "bra.uni";
        words.next().filter(|&w| is_branch(w))?;
        let start = label(words.last()?)?;
        (start < end).then_some((start, end))
    };
    let loops: Vec<(usize, usize)> = lines.iter().enumerate().filter_map(back).collect();
    let innermost = |l: &&(usize, usize)| !loops.iter().any(|o| o != *l && o.0 >= l.0 && o.1 <= l.1);
    let work = |&&(start, end): &&(usize, usize)| lines[start..=end].iter().filter(|l| is_matrix(l)).count();
    let best = loops.iter().filter(innermost).max_by_key(work).filter(|l| work(l) > 0);
    let (start, end) = best.copied().unwrap_or((0, lines.len() - 1));
    let instruction =
        |l: &&&str| l.trim() != "ret;" && (!l.trim_start().starts_with(['.', ';', '/']) || l.starts_with(".LBB"));
    lines[start..=end].iter().filter(instruction).map(|l| format!("{}\n", l.trim())).collect()
}

/// The block with the most matrix instructions; all of the function where there is none.
fn main_block(ir: &str) -> String {
    let function: Vec<&str> = ir.lines().skip_while(|l| !l.starts_with("define")).take_while(|l| *l != "}").collect();
    let blocks = function.split(|l| l.is_empty());
    let work = |block: &&[&str]| block.iter().filter(|l| is_matrix(l)).count();
    let best = blocks.max_by_key(work).filter(|b| work(b) > 0);
    best.unwrap_or(&function).join("\n")
}

#[test]
fn main_loops() {
    let chips: Vec<&Arch> = rows().iter().filter(|a| a.isa().is_some()).collect();
    assert_eq!(chips.len(), 9);
    let wide = |chip: &&Arch| chip.simt().wide_products;
    let many: Vec<&Arch> = chips.iter().copied().filter(wide).collect();
    for (body, family, tokens) in KERNELS {
        check(body, (family, tokens), family.name(), &chips);
    }
    check(PLAIN, (Family::Matvec, 64), "matvec_many", &many);
}

fn check(body: &str, (family, tokens): (Family, usize), name: &str, chips: &[&Arch]) {
    let graph = parse(body).unwrap();
    graph.verify().unwrap_or_else(|e| panic!("{e}"));
    let spec = KernelSpec { symbol: "k".into(), family, body: &graph, tokens, choice: None };
    for chip in chips {
        let show = |form| text(std::slice::from_ref(&spec), chip, form).unwrap_or_else(|e| panic!("{e}"));
        let assembly = main_loop(&show(Form::Asm));
        let listing = match chip.isa() {
            // PTX is LLVM's block once more, in other words.
            Some(Isa::Ptx) => assembly,
            _ => format!("{}\n----\n{assembly}", main_block(&show(Form::Llvm))),
        };
        insta::assert_snapshot!(format!("{name}_{}", chip.name), listing);
    }
}
