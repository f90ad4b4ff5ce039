//! How fast kernels of one token read weights of each scheme, in the shapes of Qwen3-0.6B, on all
//! cores of this machine: `cargo run -p atomc-tests --example decode [THREADS]`. The code is LLVM's
//! in every profile.
//!
//! Each kernel goes over copies of its weight, which are more than caches hold. Threads do not wait
//! for each other between them.
use std::error::Error;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use atomc_artifact::abi::{HostKernel, Step};
use atomc_ir::arch::Machine;
use atomc_ir::{DType, Family, parse};
use atomc_targets::{KernelSpec, Tasks, compile, rows};
use atomc_tests::kernels::supported;

/// Bytes of all copies of a weight.
const STREAM: usize = 256 << 20;
const ROUNDS: usize = 25;

/// Name, rows, columns.
const SHAPES: [(&str, usize, usize); 4] =
    [("qkv", 4096, 1024), ("gate, up", 6144, 1024), ("down", 1024, 3072), ("head", 151936, 1024)];

/// Codes, scales, zero points, columns of a group (0: a row).
const SCHEMES: [(&str, &str, &str, usize); 9] = [
    ("bf16", "", "", 0),
    ("f8e4m3", "f32", "", 0),
    ("i8", "f32", "", 0),
    ("i8", "f16", "", 32),
    ("i4", "f16", "", 32),
    ("i4", "bf16", "", 128),
    ("u4", "f16", "u8", 128),
    ("u4", "f16", "u8", 32),
    ("f4e2m1", "e8m0", "", 32),
];

fn main() -> Result<(), Box<dyn Error>> {
    let cores = std::thread::available_parallelism()?.get();
    let threads = std::env::args().nth(1).map_or(Ok(cores), |n| n.parse())?;
    println!("| codes | scales | {} |", SHAPES.map(|(name, ..)| format!("{name}: GB/s, us")).join(" | "));
    println!("|---|---|{}", "---|".repeat(SHAPES.len()));
    let memory = memory((STREAM + (400 << 20)) / 4);
    for scheme in SCHEMES {
        let mut cells = vec![];
        for (_, n, k) in SHAPES {
            let (bytes, time) = measure(scheme, n, k, threads, &memory)?;
            let micros = time.as_secs_f64() * 1e6;
            cells.push(format!("{:.1}, {micros:.0}", bytes as f64 / micros / 1e3));
        }
        let (codes, scale, zero, group) = scheme;
        let group = if group == 0 { "row".to_owned() } else { group.to_string() };
        println!("| {codes} | {scale} {zero} {group} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// `words` words in large pages, as the runtime has them.
fn memory(words: usize) -> Vec<u32> {
    const ADVICE_HUGE: i32 = 14;
    unsafe extern "C" {
        fn madvise(start: *mut u8, bytes: usize, advice: i32) -> i32;
    }
    let mut memory: Vec<u32> = Vec::with_capacity(words);
    let start = memory.as_mut_ptr().cast::<u8>();
    let page = start.wrapping_add(start.align_offset(4096));
    // SAFETY: advice changes no content. Where it is not taken, pages are small.
    unsafe { madvise(page, words * 4 - 4096, ADVICE_HUGE) };
    memory.resize(words, 0x3c3c_3c3c);
    memory
}

/// The body of a kernel, and the bytes of its weight with scales and zero points.
fn body((codes, scale, zero, group): (&str, &str, &str, usize), n: usize, k: usize) -> (String, usize) {
    let size = |dtype: &str, elements: usize| DType::from_name(dtype).map_or(0, |dtype| dtype.bytes(elements));
    let group = if group == 0 { k } else { group };
    let (mut parameters, mut operands, mut block) = (String::new(), String::new(), String::new());
    let blocks = k.div_ceil(group);
    if !scale.is_empty() {
        parameters += &format!(", %s: {scale}[{n}, {blocks}]@columns");
        operands += ", %s";
        block = format!(", block = [1, {group}]");
    }
    if !zero.is_empty() {
        parameters += &format!(", %z: {zero}[{n}, {blocks}]@columns");
        operands += ", %z";
    }
    let text = format!(
        "graph @k(%x: bf16[T, {k}], %w: {codes}[{n}, {k}]@panels{parameters}) {{
  %0 = linear %x, %w{operands} {{out = bf16{block}}} : bf16[T, {n}]
  return %0
}}"
    );
    (text, size(codes, n * k) + size(scale, n * blocks) + size(zero, n * blocks))
}

/// Bytes of a weight, and the time that all threads together take for it, of the best round: others
/// work on such machines too.
fn measure(
    scheme: (&str, &str, &str, usize),
    n: usize,
    k: usize,
    threads: usize,
    memory: &[u32],
) -> Result<(usize, Duration), Box<dyn Error>> {
    let (text, bytes) = body(scheme, n, k);
    let graph = parse(&text)?;
    let arch = rows().iter().find(|arch| matches!(arch.machine, Machine::Cpu(_)) && supported(arch));
    let arch = arch.ok_or("no row for this machine")?;
    let spec = KernelSpec::new(Family::Matvec, &graph, 1);
    let object = compile(&[spec], arch)?;
    let Tasks::Fixed(tasks) = object.kernels[0].tasks else { return Err("tasks of any number".into()) };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("k.so");
    std::fs::write(&path, &object.code)?;
    // SAFETY: the object was just made.
    let library = unsafe { libloading::Library::new(&path)? };
    // SAFETY: the symbol has this type.
    let kernel = unsafe { *library.get::<HostKernel>(b"k")? };
    let (copies, step) = (STREAM.div_ceil(bytes), Step { tokens: 1, rows: 1 });
    let barrier = Barrier::new(threads);
    let run = |thread: usize| {
        let mut scratch = vec![0u64; object.kernels[0].scratch / 8 + 64];
        let mut out = vec![0u16; n + 64];
        let mut times = vec![];
        let share = |thread: usize| (tasks * thread / threads) as i64;
        for _ in 0..ROUNDS {
            barrier.wait();
            let start = Instant::now();
            for copy in 0..copies {
                let base: *const u8 = memory.as_ptr().cast();
                let at = |offset: usize| base.wrapping_add(offset).cast_mut();
                // Rows of x, the codes, their scales and zero points.
                let weight = copy * bytes.next_multiple_of(256);
                let mut args = vec![at(0), at(weight)];
                args.extend(
                    [1, 2].map(|i| at(weight + DType::from_name(scheme.0).map_or(0, |d| d.bytes(n * k)) + i * 64)),
                );
                args.truncate(graph.inputs().len());
                args.push(out.as_mut_ptr().cast());
                // SAFETY: the arguments follow the ABI, and all that is read is in `memory`.
                unsafe { kernel(args.as_ptr(), &step, scratch.as_mut_ptr().cast(), share(thread), share(thread + 1)) };
            }
            barrier.wait();
            times.push(start.elapsed());
        }
        times.sort();
        times[0]
    };
    let time = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let time = run(0);
        others.into_iter().for_each(|thread| drop(thread.join()));
        time
    });
    Ok((bytes, time / copies as u32))
}
