//! What the loops of products with weights of codes have on a CPU: experts are multiplied as dense
//! weights are, and a weight is decoded once for all rows that are multiplied together.
use std::collections::BTreeMap;

use atomc_ir::{Family, parse};
use atomc_targets::{Form, KernelSpec, rows, text};

/// The row of cores that multiply pairs of bf16 every cycle.
const ARCH: &str = "x86-64-v4-bf16";

/// A weight: its codes, the attribute of its blocks, and how rows of x are stored.
struct Encoding {
    codes: &'static str,
    block: &'static str,
    x: &'static str,
    /// What looks codes up: one such instruction makes a factor of every row's product.
    lookup: &'static [&'static str],
    /// Rows that registers hold the sums of, with two panels.
    together: usize,
}

const NIBBLES: &[&str] = &["vpermw"];
const BYTES: &[&str] = &["vpermi2b", "vpermt2b"];

const ENCODINGS: [Encoding; 3] = [
    Encoding { codes: "f8e4m3", block: "[128, 128]", x: "f8e4m3", lookup: BYTES, together: 5 },
    Encoding { codes: "i4", block: "[1, 128]", x: "bf16", lookup: NIBBLES, together: 6 },
    Encoding { codes: "f4e2m1", block: "[1, 32]", x: "bf16", lookup: NIBBLES, together: 6 },
];

impl Encoding {
    /// The type of the scales of `matrices` matrices of 1,024 by 1,024.
    fn scales(&self, matrices: &str) -> String {
        match self.codes {
            "f8e4m3" => format!("f32[{matrices}8, 8]"),
            "i4" => format!("bf16[{matrices}1024, 8]@columns"),
            _ => format!("e8m0[{matrices}1024, 32]@columns"),
        }
    }

    fn rows(&self, rows: &str) -> String {
        let layout = if self.x == "bf16" { "" } else { "@scaled(128)" };
        format!("{}[{rows}, 1024]{layout}", self.x)
    }

    fn dense(&self) -> String {
        let Encoding { codes, block, .. } = self;
        format!(
            "graph @k(%x: {}, %w: {codes}[1024, 1024]@panels, %s: {}) {{
  %0 = linear %x, %w, %s {{out = bf16, block = {block}}} : bf16[T, 1024]
  return %0
}}",
            self.rows("T"),
            self.scales("")
        )
    }

    /// Products of eight choices of a token with experts, with rows that are grouped or not.
    fn experts(&self, layout: &str) -> String {
        let Encoding { codes, block, .. } = self;
        format!(
            "graph @k(%x: {}, %w: {codes}[32, 1024, 1024]@panels, %e: i32[T*8]{layout}, %s: {}) {{
  %0 = grouped %x, %w, %e, %s {{out = bf16, block = {block}}} : bf16[T*8, 1024]
  return %0
}}",
            self.rows("T*8"),
            self.scales("32, ")
        )
    }
}

/// The number of each instruction in a loop, by their names; `spill` is a vector in the stack.
type Counts = BTreeMap<String, usize>;

/// The innermost loops of a kernel that have products.
fn loops(body: &str, family: Family, tokens: usize) -> Vec<Counts> {
    let arch = rows().iter().find(|row| row.name == ARCH).expect("a row");
    let body = parse(body).expect("a body");
    let spec = KernelSpec::new(family, &body, tokens);
    let listing = text(&[spec], arch, Form::Asm).expect("a kernel");
    let lines: Vec<&str> = listing.lines().map(|line| line.split('#').next().unwrap_or("").trim()).collect();
    let mut innermost: Vec<[usize; 2]> = vec![];
    for (end, line) in lines.iter().enumerate() {
        let Some(target) = line.starts_with('j').then(|| line.split_whitespace().nth(1)).flatten() else { continue };
        let Some(start) = lines[..end].iter().position(|line| line.strip_suffix(':') == Some(target)) else { continue };
        // A loop that ends before this one and begins in it lies in it.
        if !innermost.iter().any(|inner| inner[0] >= start) {
            innermost.push([start, end]);
        }
    }
    let counts = innermost.into_iter().map(|[start, end]| {
        let mut counts = Counts::new();
        for line in &lines[start..end] {
            let name = line.split_whitespace().next().unwrap_or("");
            *counts.entry(name.into()).or_default() += 1;
            if line.contains("%zmm") && line.contains("(%rsp)") {
                *counts.entry("spill".into()).or_default() += 1;
            }
        }
        counts
    });
    counts.filter(|counts| count(counts, &["vdpbf16ps"]) > 0).collect()
}

fn count(counts: &Counts, names: &[&str]) -> usize {
    names.iter().filter_map(|name| counts.get(*name)).sum()
}

/// Every number of rows that registers hold sums for has a loop, in which a word of codes is
/// decoded once, and few vectors leave their register.
#[test]
fn few_rows_of_an_expert_share_what_is_decoded() {
    for encoding in ENCODINGS {
        let loops = loops(&encoding.experts(""), Family::GroupedMatvec, 16);
        let mut heights: Vec<usize> = vec![];
        for counts in &loops {
            let (products, lookups) = (count(counts, &["vdpbf16ps"]), count(counts, encoding.lookup));
            assert_eq!(products % lookups, 0, "{}: {counts:?}", encoding.codes);
            heights.push(products / lookups);
            assert!(count(counts, &["spill"]) * 8 <= products, "{}: {counts:?}", encoding.codes);
        }
        heights.sort_unstable();
        heights.dedup();
        assert_eq!(heights, (1..=encoding.together).collect::<Vec<_>>(), "{}", encoding.codes);
    }
}

/// The loop that has most products: eight rows by two panels, which are decoded before it. That of
/// experts is the dense one's.
#[test]
fn many_rows_of_an_expert_go_through_the_dense_loop() {
    let main = |body: &str, family: Family| {
        let loops = loops(body, family, 128);
        loops.into_iter().max_by_key(|counts| count(counts, &["vdpbf16ps"])).expect("a loop of products")
    };
    for encoding in ENCODINGS {
        let dense = main(&encoding.dense(), Family::Matmul);
        let experts = main(&encoding.experts("@grouped(32, 64)"), Family::GroupedMatmul);
        assert_eq!(count(&dense, &["vdpbf16ps"]) % 16, 0, "{}: {dense:?}", encoding.codes);
        assert_eq!(count(&dense, &["spill"]) + count(&dense, encoding.lookup), 0, "{}: {dense:?}", encoding.codes);
        let vectors = |counts: &Counts| -> Counts {
            counts.iter().filter(|(name, _)| name.starts_with('v')).map(|(name, &n)| (name.clone(), n)).collect()
        };
        assert_eq!(vectors(&dense), vectors(&experts), "{}", encoding.codes);
    }
}
