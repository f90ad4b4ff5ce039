//! Kernels of atomc beside those of Triton for the same operations: registers, local memory,
//! occupancy, and the hottest loop, all read from code objects by the same code.
//!
//! `tests/triton/make.sh peers.py`, then
//! `cargo run --release -p atomc-targets --example compare [-- OPTION ...] [CHIP ...]`. `--summary`
//! sets one line against the best of Triton's settings; `--into FILE` puts the tables at the end of
//! a document
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use atomc_ir::arch::Isa;
use atomc_ir::{Arch, Family, parse};
use atomc_targets::report::{KernelResources, occupancy, report};
use atomc_targets::{KernelSpec, LoopReport, compile, rows};
use serde::Deserialize;

/// An entry of `index.json`.
#[derive(Deserialize)]
struct Peer {
    chip: String,
    operation: String,
    settings: String,
    code: String,
    threads: usize,
    dynamic_lds: usize,
}

/// One of our kernels, and the peers it stands beside: those whose operation begins so.
struct Ours {
    peers: &'static str,
    unit: Unit,
    family: Family,
    tokens: usize,
    text: String,
}

/// What instructions are counted for: what bounds the operation on these chips.
#[derive(Clone, Copy)]
enum Unit {
    /// A 16x16x16 product.
    Product,
    /// 16 bytes that a lane loads.
    Load,
}

fn product(peers: &'static str, unit: Unit, family: Family, tokens: usize) -> Ours {
    let text = "graph @k(%x: bf16[T, 4096], %w: bf16[4096, 4096]@panels) {
  %0 = linear %x, %w {out = bf16} : bf16[T, 4096]
  return %0
}";
    Ours { peers, unit, family, tokens, text: text.into() }
}

fn attention(peers: &'static str, unit: Unit, family: Family, tokens: usize) -> Ours {
    let text = "graph @k(%q: bf16[T, 64, 128], %kv: cache<bf16, 8, 128>, %batch: batch) {
  %0 = attention %q, %kv, %batch {scale = 0.08838834764831845, window = 0} : bf16[T, 64, 128]
  %1 = reshape %0 {shape = [T, 8192]} : bf16[T, 8192]
  return %1
}";
    Ours { peers, unit, family, tokens, text: text.into() }
}

fn operations() -> Vec<Ours> {
    let norm = "graph @k(%x: bf16[T, 4096], %r: bf16[T, 4096], %w: bf16[4096]) {
  %0 = add %x, %r : bf16[T, 4096]
  %1 = rms_norm %0, %w {eps = 1e-6} : bf16[T, 4096]
  return %0, %1
}";
    let silu = "graph @k(%x: bf16[T, 28672]) {
  %0 = slice %x {axis = 1, start = 0, len = 14336} : bf16[T, 14336]
  %1 = slice %x {axis = 1, start = 14336, len = 14336} : bf16[T, 14336]
  %2 = silu_mul %0, %1 : bf16[T, 14336]
  return %2
}";
    vec![
        product("prefill product bf16", Unit::Product, Family::Matmul, 4096),
        product("prefill product, large tile", Unit::Product, Family::Matmul, 4096),
        product("decode product M=16", Unit::Load, Family::Matvec, 16),
        product("decode product M=8", Unit::Load, Family::Matvec, 8),
        product("decode product M=1 ", Unit::Load, Family::Matvec, 1),
        Ours { peers: "add+rmsnorm 4096", unit: Unit::Load, family: Family::Rows, tokens: 512, text: norm.into() },
        Ours { peers: "silu_mul", unit: Unit::Load, family: Family::Rows, tokens: 512, text: silu.into() },
        attention("paged decode", Unit::Load, Family::AttendOne, 8),
        attention("flash prefill", Unit::Product, Family::AttendMany, 512),
    ]
}

/// The loop that computes most: by matrix instructions, then by loads; the shorter of two equals.
/// None where the matrix instructions are outside of loops.
fn hottest(kernel: &KernelResources) -> Option<&LoopReport> {
    let hottest = kernel.resources.loops.iter().max_by_key(|l| (l.matrix, l.loads, usize::MAX - l.instructions));
    hottest.filter(|l| l.matrix > 0 || kernel.whole.matrix == 0)
}

/// Instructions of the hottest loop, or of the whole kernel, for a unit.
fn per_unit(kernel: &KernelResources, unit: Unit) -> f64 {
    let (l, all) = (hottest(kernel).unwrap_or(&kernel.whole), &kernel.whole);
    let share = |part: usize, all: usize| part as f64 / all.max(1) as f64;
    let units = match unit {
        Unit::Product => share(l.matrix, all.matrix) * kernel.multiply_adds as f64 / 4096.0,
        Unit::Load => share(l.loads, all.loads) * kernel.load_bytes as f64 / 16.0,
    };
    l.instructions as f64 / units
}

const HEADER: &str = "| by | VGPR (AGPR) | SGPR | LDS | spills | waves | all | loop | matrix | per unit | VALU / SALU / LDS | loads (16 B) | waits (partial) | overlap | barriers |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// The kernel, then its hottest loop, or all of it where it has none.
fn line(by: &str, kernel: &KernelResources, unit: Unit) -> String {
    let r = &kernel.resources;
    let registers =
        format!("{} ({}) | {} | {} | {}/{}", r.vgprs, r.agprs, r.sgprs, r.lds, r.vgpr_spills, r.sgpr_spills);
    let (l, name) = match hottest(kernel) {
        Some(l) => (l, l.instructions.to_string()),
        None => (&kernel.whole, "-".into()),
    };
    let per = per_unit(kernel, unit);
    let classes = format!("{} / {} / {} | {} ({})", l.valu, l.salu, l.lds, l.loads, l.loads_x4);
    let order = format!("{} ({}) | {} | {}", l.waits, l.partial_waits, l.overlap, l.barriers);
    let (waves, all) = (r.occupancy, r.instructions);
    format!("| {by} | {registers} | {waves:.2} | {all} | {name} | {} | {per:.1} | {classes} | {order} |", l.matrix)
}

/// Our kernel beside the one of some peers that takes the fewest instructions among those that
/// spill least.
fn summary(operation: &Ours, ours: &KernelResources, peers: &[(String, KernelResources)]) -> String {
    let (unit, operation) = (operation.unit, operation.peers.trim());
    let rank = |k: &KernelResources| (k.resources.vgpr_spills + k.resources.sgpr_spills, per_unit(k, unit));
    let best = peers.iter().min_by(|a, b| rank(&a.1).partial_cmp(&rank(&b.1)).expect("numbers"));
    let Some((name, best)) = best else { return format!("| {operation} | none |") };
    let (a, b) = (&ours.resources, &best.resources);
    let registers = format!("{} / {} | {:.2} / {:.2}", a.vgprs, b.vgprs, a.occupancy, b.occupancy);
    let spills = format!("{} / {}", a.vgpr_spills + a.sgpr_spills, b.vgpr_spills + b.sgpr_spills);
    let wide = |k: &KernelResources| {
        let l = hottest(k).unwrap_or(&k.whole);
        100 * l.loads_x4 / l.loads.max(1)
    };
    let code = format!("{:.1} / {:.1} | {}% / {}%", per_unit(ours, unit), per_unit(best, unit), wide(ours), wide(best));
    format!("| {operation} | {} | {registers} | {spills} | {} / {} | {code} |", name.trim(), a.lds, b.lds)
}

const SUMMARY: &str = "| operation | Triton's best | VGPR | waves | spills | LDS | per unit | 16-byte loads |
|---|---|---|---|---|---|---|---|
";

fn only(mut kernels: Vec<KernelResources>) -> Result<KernelResources, String> {
    match kernels.len() {
        1 => Ok(kernels.remove(0)),
        n => Err(format!("{n} kernels in a code object of one")),
    }
}

fn ours(kernel: &Ours, arch: &Arch) -> Result<KernelResources, Box<dyn Error>> {
    let graph = parse(&kernel.text)?;
    let spec = KernelSpec::new(kernel.family, &graph, kernel.tokens);
    Ok(only(report(&compile(&[spec], arch)?.code, arch.gpu().ok_or("no GPU")?)?)?)
}

fn peer(peer: &Peer, folder: &Path, arch: &Arch) -> Result<KernelResources, Box<dyn Error>> {
    let mut kernel = only(report(&fs::read(folder.join(&peer.code))?, arch.gpu().ok_or("no GPU")?)?)?;
    let (r, simt) = (&mut kernel.resources, arch.gpu().ok_or("no GPU")?.simt);
    r.lds += peer.dynamic_lds;
    r.occupancy = occupancy(&simt.unit, r.vgprs, r.lds, peer.threads.div_ceil(simt.wave));
    Ok(kernel)
}

/// All operations on a chip: one line each, or a table each.
fn chip(arch: &Arch, peers: &[Peer], folder: &Path, short: bool) -> Result<String, Box<dyn Error>> {
    let mut out = format!("\n### {}\n\n{}", arch.name, if short { SUMMARY } else { "" });
    for kernel in operations() {
        let ours = ours(&kernel, arch)?;
        let operation = kernel.peers.trim();
        let mut beside = Vec::new();
        for p in peers.iter().filter(|p| p.chip == arch.name && p.operation.starts_with(kernel.peers)) {
            let name = format!("{} {}", &p.operation[operation.len()..], p.settings);
            beside.push((name.trim().to_string(), peer(p, folder, arch)?));
        }
        if short {
            let (large, equal): (Vec<_>, Vec<_>) = beside.into_iter().partition(|(name, _)| name.contains("mi32"));
            for peers in [equal, large].iter().filter(|peers| !peers.is_empty()) {
                writeln!(out, "{}", summary(&kernel, &ours, peers))?;
            }
            continue;
        }
        writeln!(out, "{operation}\n\n{HEADER}\n{}", line("**atomc**", &ours, kernel.unit))?;
        for (name, peer) in &beside {
            writeln!(out, "{}", line(&format!("Triton {name}"), peer, kernel.unit))?;
        }
        writeln!(out)?;
    }
    Ok(out)
}

/// Tables in a document stand behind this line, to its end.
const MARK: &str = "<!-- made by the command above; everything below is replaced -->\n";

fn main() -> Result<(), Box<dyn Error>> {
    let folder = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/triton/peers");
    let index = fs::read(folder.join("index.json"))
        .map_err(|e| format!("{}: {e}; tests/triton/make.sh peers.py writes it", folder.display()))?;
    let peers: Vec<Peer> = serde_json::from_slice(&index)?;
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let short = args.iter().any(|a| a == "--summary");
    args.retain(|a| a != "--summary");
    let document = args.iter().position(|a| a == "--into").map(|at| args.drain(at..at + 2).nth(1).unwrap_or_default());
    let asked = |arch: &&Arch| args.is_empty() || args.iter().any(|c| c == arch.name);
    let mut out = String::new();
    for arch in rows().iter().filter(|a| a.isa() == Some(Isa::Amdgcn)).filter(asked) {
        out += &chip(arch, &peers, folder, short)?;
    }
    let Some(document) = document else {
        print!("{out}");
        return Ok(());
    };
    let text = fs::read_to_string(&document)?;
    let (head, _) = text.split_once(MARK).ok_or_else(|| format!("{document} has no line {MARK}"))?;
    Ok(fs::write(&document, format!("{head}{MARK}{out}"))?)
}
