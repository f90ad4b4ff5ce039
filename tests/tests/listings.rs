//! What every family looks like on every chip: how many instructions of each kind its loops have,
//! and the order of those in the loop that does most of the work.
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

/// e4m3 in squares of 128, with rows in groups of 128.
const BLOCKS: &str = "graph @k(%x: f8e4m3[T, 4096]@scaled(128), %w: f8e4m3[1024, 4096]@panels, %s: f32[8, 32]) {
  %0 = linear %x, %w, %s {out = bf16, block = [128, 128]} : bf16[T, 1024]
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

/// What an instruction does, by how its name begins: the first that fits.
const CLASSES: [(&str, &[&str]); 11] = [
    ("matrix", &["v_mfma", "v_wmma", "v_swmmac", "mma.", "wgmma.mma"]),
    ("loads", &["global_load", "buffer_load", "ld.global"]),
    ("stores", &["global_store", "st.global"]),
    ("copies", &["cp."]),
    ("lds loads", &["ds_read", "ds_load", "ds_bpermute", "ld.shared", "ldmatrix"]),
    ("lds stores", &["ds_write", "ds_store", "st.shared"]),
    ("shuffles", &["ds_swizzle", "v_permlane", "shfl"]),
    ("waits", &["s_wait", "s_barrier", "bar.", "mbarrier", "wgmma.wait", "wgmma.fence", "fence"]),
    ("branches", &["s_cbranch", "s_branch", "bra"]),
    ("scalar", &["s_"]),
    ("vector", &[""]),
];

fn class(name: &str) -> usize {
    CLASSES.iter().position(|(_, begins)| begins.iter().any(|b| name.starts_with(b))).expect("the last one fits all")
}

/// An assembly line's instruction, without the predicate before it.
fn mnemonic(line: &str) -> Option<&str> {
    let line = line.trim();
    let is_code = !line.starts_with(['.', ';', '/', '$', '{', '}']) && !line.ends_with(':');
    let name = line.split_whitespace().find(|w| !w.starts_with('@'))?;
    is_code.then(|| name.trim_end_matches(';'))
}

/// First and last lines of the loops, a loop before those inside it.
fn loops(lines: &[&str]) -> Vec<(usize, usize)> {
    let label = |name: &str| lines.iter().position(|l| l.strip_suffix(':') == Some(name));
    let back = |(end, line): (usize, &&str)| {
        let mut words = line.trim_end_matches(';').split_whitespace().skip_while(|w| w.starts_with('@'));
        let is_branch = |w: &str| w.starts_with("s_cbranch_") || w == "s_branch" || w == "bra" || w == "bra.uni";
        words.next().filter(|&w| is_branch(w))?;
        let start = label(words.last()?)?;
        (start < end).then_some((start, end))
    };
    let mut all: Vec<(usize, usize)> = lines.iter().enumerate().filter_map(back).collect();
    all.sort_by_key(|&(start, end)| (start, std::cmp::Reverse(end)));
    all
}

/// The number of instructions of each class.
fn counts(lines: &[&str]) -> String {
    let mut counts = [0; CLASSES.len()];
    lines.iter().filter_map(|l| mnemonic(l)).for_each(|name| counts[class(name)] += 1);
    let named = CLASSES.iter().zip(counts).filter(|(_, n)| *n > 0).map(|((name, _), n)| format!("{n} {name}"));
    named.collect::<Vec<_>>().join(", ")
}

/// The instructions in order, equal neighbours as one line. Registers change with every release of
/// LLVM.
fn instructions(lines: &[&str]) -> String {
    let mut runs: Vec<(&str, usize)> = vec![];
    for name in lines.iter().filter_map(|l| mnemonic(l)) {
        match runs.last_mut() {
            Some((last, n)) if *last == name => *n += 1,
            _ => runs.push((name, 1)),
        }
    }
    runs.into_iter().map(|(name, n)| if n == 1 { format!("{name}\n") } else { format!("{name} x{n}\n") }).collect()
}

/// Counts of the function and of each loop, then the innermost loop with the most matrix
/// instructions, if there is one.
fn listing(assembly: &str) -> String {
    let begins = |l: &&str| *l != "k:" && !l.contains(".entry k(");
    let ends = |l: &&str| !l.contains("s_endpgm") && *l != "}";
    let lines: Vec<&str> = assembly.lines().skip_while(begins).take_while(ends).collect();
    let loops = loops(&lines);
    let mut text = format!("all: {}\n", counts(&lines));
    for &(start, end) in &loops {
        let depth = loops.iter().filter(|o| o.0 <= start && o.1 >= end).count();
        text += &format!("{}loop: {}\n", "  ".repeat(depth), counts(&lines[start..=end]));
    }
    let innermost = |l: &&(usize, usize)| !loops.iter().any(|o| o != *l && o.0 >= l.0 && o.1 <= l.1);
    let work = |&&(start, end): &&(usize, usize)| {
        lines[start..=end].iter().filter_map(|l| mnemonic(l)).filter(|name| class(name) == 0).count()
    };
    if let Some(&(start, end)) = loops.iter().filter(innermost).max_by_key(work).filter(|l| work(l) > 0) {
        text += &format!("----\n{}", instructions(&lines[start..=end]));
    }
    text
}

#[test]
fn main_loops() {
    let chips: Vec<&Arch> = rows().iter().filter(|a| a.isa().is_some() && a.sibling.is_none()).collect();
    assert_eq!(chips.len(), 9);
    let wide = |chip: &&Arch| chip.gpu().is_some_and(|gpu| gpu.simt.warpgroup_mma);
    let many: Vec<&Arch> = chips.iter().copied().filter(wide).collect();
    for (body, family, tokens) in KERNELS {
        check(body, (family, tokens), family.name(), &chips);
    }
    check(PLAIN, (Family::Matvec, 64), "matvec_many", &many);
    let amd: Vec<&Arch> = chips.iter().copied().filter(|chip| chip.isa() == Some(Isa::Amdgcn)).collect();
    check(BLOCKS, (Family::Matmul, 512), "matmul_blocks", &amd);
    check(BLOCKS, (Family::Matvec, 8), "matvec_blocks", &amd);
}

fn check(body: &str, (family, tokens): (Family, usize), name: &str, chips: &[&Arch]) {
    let graph = parse(body).expect("a body in the text of the IR");
    graph.verify().unwrap_or_else(|e| panic!("{e}"));
    // For many tokens, a tile along all of K, as long prompts have it.
    let invariant = family == Family::Matmul;
    let spec = KernelSpec { invariant, ..KernelSpec::new(family, &graph, tokens) };
    for chip in chips {
        let assembly = text(std::slice::from_ref(&spec), chip, Form::Asm).unwrap_or_else(|e| panic!("{e}"));
        insta::assert_snapshot!(format!("{name}_{}", chip.name), listing(&assembly));
    }
}

/// Rows that lie further from the begin of a table than 32 bits of bytes reach are found with 64:
/// the table of the layers' own rows of Gemma 4 E2B has 4.7 GB.
#[test]
fn rows_of_large_tables() {
    let chips: Vec<&Arch> = rows().iter().filter(|a| a.isa().is_some()).collect();
    let far = |rows: usize, chip: &Arch| {
        let body = format!(
            "graph @k(%w: bf16[{rows}, 8960], %ids: i32[T]) {{
  %0 = gather %w, %ids : bf16[T, 8960]
  %1 = scale %0 {{by = 16.0}} : bf16[T, 8960]
  return %1
}}"
        );
        let graph = parse(&body).expect("a body in the text of the IR");
        let spec = KernelSpec::new(Family::Rows, &graph, 1);
        let text = text(std::slice::from_ref(&spec), chip, Form::Llvm).unwrap_or_else(|e| panic!("{e}"));
        text.lines().any(|line| line.contains(" = mul ") && line.contains(" i64 ") && line.ends_with(", 17920"))
    };
    for chip in chips {
        assert_eq!([far(239_674, chip), far(239_675, chip)], [false, true], "{}", chip.name);
    }
}
