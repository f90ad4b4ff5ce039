//! Runs emitted kernels on this machine, on every variant that it supports, against the reference interpreter.
use std::collections::HashMap;
use std::ffi::c_void;

use atomc_ir::interp::{self, BatchState, CacheState, Cx, Tensor, Val};
use atomc_ir::{Arch, CacheType, DType, Dim, Family, Graph, Layout, Op, Type, Value, parse};
use half::{bf16, f16};

use crate::{KernelSpec, Tasks, cache_layout, compile, panels, rows};

/// Whether this CPU can run code of a row. AMX has no stable detection macro.
fn supported(arch: &Arch) -> bool {
    let leaf = std::arch::x86_64::__cpuid_count(7, 0).edx;
    let more = std::arch::x86_64::__cpuid_count(7, 1).eax;
    arch.features.iter().all(|f| match *f {
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bf16" => more >> 5 & 1 == 1,
        "amx-bf16" => leaf >> 22 & 1 == 1 && amx_allowed(),
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        _ => true,
    })
}

/// Asks Linux for the tile registers: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
fn amx_allowed() -> bool {
    unsafe extern "C" {
        fn syscall(number: i64, ...) -> i64;
    }
    // SAFETY: the call has no memory operands.
    unsafe { syscall(158, 0x1023i64, 18i64) == 0 }
}

/// Numbers between -1 and 1 that bf16 and f16 hold exactly.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as i64 % 128) as f64 / 128.0
    }
}

fn store(bytes: &mut [u8], index: usize, v: f64, dtype: DType) {
    let at = index * dtype.size();
    match dtype {
        DType::F32 => bytes[at..at + 4].copy_from_slice(&(v as f32).to_le_bytes()),
        DType::BF16 => bytes[at..at + 2].copy_from_slice(&bf16::from_f64(v).to_le_bytes()),
        DType::F16 => bytes[at..at + 2].copy_from_slice(&f16::from_f64(v).to_le_bytes()),
        DType::I32 => bytes[at..at + 4].copy_from_slice(&(v as i32).to_le_bytes()),
    }
}

fn fetch(bytes: &[u8], index: usize, dtype: DType) -> f64 {
    let at = index * dtype.size();
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as f64,
        DType::BF16 => bf16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).to_f64(),
        DType::F16 => f16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).to_f64(),
        DType::I32 => i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as f64,
    }
}

/// 64-byte aligned memory, filled with NaN bits so that reads of what nobody wrote show.
struct Memory(Vec<[u64; 8]>);

impl Memory {
    fn new(bytes: usize) -> Memory {
        Memory(vec![[u64::MAX; 8]; bytes.div_ceil(64) + 8])
    }
    fn zeroed(bytes: usize) -> Memory {
        Memory(vec![[0; 8]; bytes.div_ceil(64) + 8])
    }
    fn bytes(&mut self) -> &mut [u8] {
        let len = self.0.len() * 64;
        // SAFETY: plain integers as bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
    fn ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

#[repr(C)]
struct Batch {
    positions: *const i32,
    sequences: *const i32,
    tables: *const i32,
    table_stride: i64,
    tiles: *const i32,
    tile_count: i64,
}

/// One step for a kernel: tokens as (sequence, position), and indices for the other i32 parameters.
struct Case<'t> {
    text: &'t str,
    family: Family,
    bucket: usize,
    tokens: &'t [(i32, i32)],
    rows: usize,
    indices: &'t [(&'t str, Vec<i32>)],
    tolerance: f64,
}

const BLOCKS: usize = 12;

/// Sequence s has blocks s, s + 3, s + 6, …: no two neighbours are contiguous.
fn block_of(sequence: i32, position: i32, block_tokens: usize) -> usize {
    sequence as usize + 3 * (position as usize / block_tokens)
}

impl Case<'_> {
    fn check(&self) {
        let graph = parse(self.text).unwrap();
        graph.verify().unwrap_or_else(|e| panic!("{e}"));
        for arch in rows().iter().filter(|a| supported(a)) {
            self.check_on(&graph, arch);
        }
    }

    fn params(&self, graph: &Graph) -> HashMap<String, Val<f64>> {
        let mut random = Random(7);
        let mut params = HashMap::new();
        for v in graph.inputs() {
            let Op::Input { name } = graph.op(v.node) else { unreachable!() };
            let val = match graph.ty(v) {
                Type::Tensor(t) if t.dtype == DType::I32 => {
                    Val::Int(self.indices.iter().find(|(n, _)| n == name).expect("indices are given").1.clone())
                }
                Type::Tensor(t) => {
                    let shape: Vec<usize> = t.shape.0.iter().map(|d| d.at(self.tokens.len(), self.rows)).collect();
                    let n = shape.iter().product();
                    Val::Float(Tensor::new(shape, (0..n).map(|_| random.next()).collect()))
                }
                Type::Cache(c) => Val::Cache(self.history(*c, &mut random)),
                Type::Batch => {
                    let (sequences, positions) = self.tokens.iter().copied().unzip();
                    Val::Batch(BatchState { sequences, positions })
                }
            };
            params.insert(name.clone(), val);
        }
        params
    }

    /// Entries for every position up to the last of each sequence.
    fn history(&self, c: CacheType, random: &mut Random) -> CacheState<f64> {
        let mut state = CacheState::default();
        for &(s, last) in self.tokens {
            for p in 0..=last {
                let n = c.heads * c.head_dim;
                let mut entry = || (0..n).map(|_| random.next()).collect::<Vec<f64>>();
                state.entries.entry((s, p)).or_insert_with(|| (entry(), entry()));
            }
        }
        state
    }

    fn check_on(&self, graph: &Graph, arch: &Arch) {
        let params = self.params(graph);
        let cx = Cx { tokens: self.tokens.len(), rows: self.rows };
        let want = interp::run(graph, cx, &params, &|_| None).unwrap();
        let mut memory = self.place(graph, arch, &params);
        let outs = self.run(graph, arch, &mut memory);
        for (i, (&v, mut out)) in graph.outputs().iter().zip(outs).enumerate() {
            match (graph.ty(v), &want[i]) {
                (Type::Tensor(t), Val::Float(w)) => {
                    let width = t.shape.row().unwrap();
                    let stride = arch.memory.stride(width);
                    for r in 0..w.data.len() / width {
                        for c in 0..arch.memory.padded(width) {
                            let got = fetch(out.bytes(), r * stride + c, t.dtype);
                            let want = if c < width { w.data[r * width + c] } else { 0.0 };
                            let off = (got - want).abs() / want.abs().max(1.0);
                            assert!(
                                off <= self.tolerance,
                                "{} {} row {r} column {c}: {got}, should be {want}",
                                arch.name,
                                self.text
                            );
                        }
                    }
                }
                (Type::Cache(c), Val::Cache(state)) => {
                    let [k, v] = self.read_cache(*c, arch, &mut memory);
                    for (at, (wk, wv)) in &state.entries {
                        for (got, want) in k[at].iter().zip(wk).chain(v[at].iter().zip(wv)) {
                            assert!(
                                (got - want).abs() <= self.tolerance,
                                "{} cache at {at:?}: {got}, should be {want}",
                                arch.name
                            );
                        }
                    }
                }
                _ => unreachable!("outputs are tensors and caches"),
            }
        }
    }

    /// The memory behind each kernel argument, operands first.
    fn place(&self, graph: &Graph, arch: &Arch, params: &HashMap<String, Val<f64>>) -> Vec<Memory> {
        let mut memory = Vec::new();
        for v in graph.inputs() {
            let Op::Input { name } = graph.op(v.node) else { unreachable!() };
            match (graph.ty(v), &params[name]) {
                (Type::Tensor(_), Val::Int(ints)) => {
                    let mut m = Memory::zeroed(4 * self.bucket.max(ints.len()));
                    ints.iter().enumerate().for_each(|(i, &n)| store(m.bytes(), i, n as f64, DType::I32));
                    memory.push(m);
                }
                (Type::Tensor(t), Val::Float(x)) if t.layout == Layout::Panels => {
                    memory.push(pack(&x.data, x.shape[0], x.shape[1], t.dtype, arch));
                }
                (Type::Tensor(t), Val::Float(x)) => {
                    let width = if t.shape.rank() == 1 { x.shape[0] } else { t.shape.row().unwrap() };
                    let stride = arch.memory.stride(width);
                    let lead = if t.shape.0[0].fixed().is_some() { x.data.len() / width } else { self.bucket };
                    let mut m = Memory::zeroed(lead * stride * t.dtype.size());
                    x.data
                        .iter()
                        .enumerate()
                        .for_each(|(i, &n)| store(m.bytes(), i / width * stride + i % width, n, t.dtype));
                    memory.push(m);
                }
                (Type::Cache(c), Val::Cache(state)) => memory.extend(self.place_cache(*c, state, arch)),
                (Type::Batch, _) => memory.push(Memory::zeroed(size_of::<Batch>())),
                _ => unreachable!("parameters fit their types"),
            }
        }
        memory
    }

    fn place_cache(&self, c: CacheType, state: &CacheState<f64>, arch: &Arch) -> [Memory; 2] {
        let l = cache_layout(c, arch);
        let mut memory = [Memory::zeroed(BLOCKS * l.k_block_bytes), Memory::zeroed(BLOCKS * l.v_block_bytes)];
        for (&(s, p), (k, v)) in &state.entries {
            for i in 0..k.len() {
                let [ka, va] = cache_index(c, arch, s, p, i);
                store(memory[0].bytes(), ka, k[i], c.dtype);
                store(memory[1].bytes(), va, v[i], c.dtype);
            }
        }
        memory
    }

    fn read_cache(&self, c: CacheType, arch: &Arch, memory: &mut [Memory]) -> [HashMap<(i32, i32), Vec<f64>>; 2] {
        let graph = parse(self.text).unwrap();
        let before = graph.inputs().iter().take_while(|&&v| graph.ty(v).as_cache().is_none()).count();
        [0, 1].map(|which| {
            let all = self.tokens.iter().flat_map(|&(s, last)| (0..=last).map(move |p| (s, p)));
            all.map(|(s, p)| {
                let read = |i| fetch(memory[before + which].bytes(), cache_index(c, arch, s, p, i)[which], c.dtype);
                ((s, p), (0..c.heads * c.head_dim).map(read).collect())
            })
            .collect()
        })
    }

    /// Runs the kernel twice over split task ranges, as two threads would; returns the memory of each output.
    fn run(&self, graph: &Graph, arch: &Arch, memory: &mut [Memory]) -> Vec<Memory> {
        let spec = KernelSpec { symbol: "k".into(), family: self.family, body: graph, tokens: self.bucket };
        let object = compile(&[spec], arch).unwrap_or_else(|e| panic!("{e}"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.so");
        std::fs::write(&path, &object.code).unwrap();
        let positions: Vec<i32> = self.tokens.iter().map(|t| t.1).collect();
        let sequences: Vec<i32> = self.tokens.iter().map(|t| t.0).collect();
        let stride = 4;
        let tables: Vec<i32> = (0..3).flat_map(|s| (0..stride).map(move |b| s + 3 * b)).collect();
        let tiles = self.tiles();
        let batch = Batch {
            positions: positions.as_ptr(),
            sequences: sequences.as_ptr(),
            tables: tables.as_ptr(),
            table_stride: stride as i64,
            tiles: tiles.as_ptr(),
            tile_count: tiles.len() as i64 / 2,
        };
        let mut outs: Vec<Memory> = graph.outputs().iter().map(|&v| self.room(graph, v, arch)).collect();
        let mut args: Vec<*mut c_void> = Vec::new();
        let mut next = memory.iter_mut();
        for v in graph.inputs() {
            match graph.ty(v) {
                Type::Batch => {
                    next.next();
                    args.push((&raw const batch).cast_mut().cast());
                }
                Type::Cache(_) => args.extend([next.next().unwrap().ptr(), next.next().unwrap().ptr()]),
                Type::Tensor(_) => args.push(next.next().unwrap().ptr()),
            }
        }
        let tensors = outs.iter_mut().zip(graph.outputs()).filter(|(_, v)| graph.ty(**v).as_tensor().is_some());
        args.extend(tensors.map(|(m, _)| m.ptr()));
        let info = &object.kernels[0];
        let count = match info.tasks {
            Tasks::Fixed(n) => n,
            Tasks::Tokens { per, times } => self.tokens.len().div_ceil(per) * times,
            Tasks::Rows { per, times } => self.rows.div_ceil(per) * times,
            Tasks::Tiles { times } => tiles.len() / 2 * times,
        } as i64;
        let mut scratch = Memory::new(info.scratch);
        let step = [self.tokens.len() as i64, self.rows as i64];
        type Kernel = unsafe extern "C" fn(*const *mut c_void, *const i64, *mut c_void, i64, i64);
        // SAFETY: the object was just made, and the arguments follow its ABI.
        unsafe {
            let library = libloading::Library::new(&path).unwrap();
            let kernel = library.get::<Kernel>(b"k").unwrap();
            for (from, to) in [(0, count / 2), (count / 2, count)] {
                kernel(args.as_ptr(), step.as_ptr(), scratch.ptr(), from, to);
            }
        }
        outs
    }

    fn room(&self, graph: &Graph, v: Value, arch: &Arch) -> Memory {
        match graph.ty(v) {
            Type::Tensor(t) => Memory::new(self.bucket * arch.memory.stride(t.shape.row().unwrap()) * t.dtype.size()),
            _ => Memory::new(0),
        }
    }

    /// Runs of consecutive tokens of one sequence, at most 32 long.
    fn tiles(&self) -> Vec<i32> {
        let mut tiles: Vec<[i32; 2]> = Vec::new();
        for (i, &(s, p)) in self.tokens.iter().enumerate() {
            match tiles.last_mut() {
                Some([_, n]) if *n < 32 && i > 0 && self.tokens[i - 1] == (s, p - 1) => *n += 1,
                _ => tiles.push([i as i32, 1]),
            }
        }
        tiles.concat()
    }
}

fn pack(data: &[f64], n: usize, k: usize, dtype: DType, arch: &Arch) -> Memory {
    let p = panels(n, k, dtype, arch);
    let mut m = Memory::zeroed(p.bytes);
    for r in 0..n {
        for c in 0..k {
            let group = (r / p.width) * (p.cols / p.group) + c / p.group;
            store(m.bytes(), group * p.width * p.group + r % p.width * p.group + c % p.group, data[r * k + c], dtype);
        }
    }
    m
}

/// Element index in K and in V of element `i` of the entry at (sequence, position).
fn cache_index(c: CacheType, arch: &Arch, s: i32, p: i32, i: usize) -> [usize; 2] {
    let l = cache_layout(c, arch);
    let (head, col, offset) = (i / c.head_dim, i % c.head_dim, p as usize % l.block_tokens);
    let base = (block_of(s, p, l.block_tokens) * l.k_block_bytes + head * l.head_bytes) / c.dtype.size();
    let k = offset / 16 * 16 * l.dim + col / l.group * 16 * l.group + offset % 16 * l.group + col % l.group;
    let v = col / 16 * 16 * l.block_tokens + offset / l.group * 16 * l.group + col % 16 * l.group + offset % l.group;
    [base + k, base + v]
}

const STEP: [(i32, i32); 5] = [(0, 3), (0, 4), (0, 5), (1, 0), (2, 33)];

#[test]
fn rows_norm_and_activation() {
    for n in [64, 50] {
        let text = format!(
            "graph @k(%x: bf16[T, {n}], %w: bf16[{n}]) {{
  %0 = rms_norm %x, %w {{eps = 1e-6}} : bf16[T, {n}]
  %1 = silu_mul %0, %x : bf16[T, {n}]
  return %1
}}"
        );
        let case = Case {
            text: &text,
            family: Family::Rows,
            bucket: 8,
            tokens: &STEP,
            rows: 0,
            indices: &[],
            tolerance: 8e-3,
        };
        case.check();
        Case { text: &text.replace("bf16", "f32"), tolerance: 2e-6, ..case }.check();
    }
}

#[test]
fn every_elementwise_op() {
    for op in atomc_ir::Elementwise::ALL {
        let x = ["%x", "%y"][..op.operands().len()].join(", ");
        let text =
            format!("graph @k(%x: f32[T, 40], %y: f32[40]) {{\n  %0 = {} {x} : f32[T, 40]\n  return %0\n}}", op.name());
        let indices = &[];
        Case { text: &text, family: Family::Rows, bucket: 8, tokens: &STEP, rows: 0, indices, tolerance: 1e-6 }.check();
    }
}

#[test]
fn rows_gather_plain_and_packed() {
    let text = "graph @k(%table: bf16[37, 40], %ids: i32[T]) {
  %0 = gather %table, %ids : bf16[T, 40]
  return %0
}";
    let indices = &[("ids", vec![36, 0, 17, 16, 15])];
    let case = Case { text, family: Family::Rows, bucket: 8, tokens: &STEP, rows: 0, indices, tolerance: 0.0 };
    case.check();
    for dtype in ["bf16", "f16", "f32"] {
        let packed = text.replace("[37, 40]", "[37, 40]@panels").replace("bf16", dtype);
        Case { text: &packed, ..case }.check();
    }
}

#[test]
fn rows_rope_table() {
    for (growth, original) in [("0.0", 0), ("4.0", 16)] {
        let text = format!(
            "graph @k(%positions: i32[T], %lengths: i32[T], %f: f32[10]) {{
  %0 = rope_table %positions, %lengths, %f {{scale = 1.25, growth = {growth}, original = {original}}} : f32[T, 20]
  return %0
}}"
        );
        let indices = &[("positions", vec![0, 1, 131071, 77, 500]), ("lengths", vec![1, 17, 131072, 100, 501])];
        Case { text: &text, family: Family::Rows, bucket: 8, tokens: &STEP, rows: 0, indices, tolerance: 3e-7 }.check();
    }
}

/// Slices of a qkv matrix, norms, rotary embedding, the write into the cache.
fn qkv(heads: usize, kv: usize, dim: usize, rot: usize, tail: &str, returns: &str) -> String {
    let (q, k) = (heads * dim, kv * dim);
    let n = q + 2 * k;
    format!(
        "graph @k(%qkv: bf16[T, {n}], %qn: bf16[{dim}], %kn: bf16[{dim}], %table: f32[T, {rot}], %kv: cache<bf16, {kv}, {dim}>, %batch: batch) {{
  %0 = slice %qkv {{axis = 1, start = 0, len = {q}}} : bf16[T, {q}]
  %1 = reshape %0 {{shape = [T, {heads}, {dim}]}} : bf16[T, {heads}, {dim}]
  %2 = rms_norm %1, %qn {{eps = 1e-6}} : bf16[T, {heads}, {dim}]
  %3 = rope %2, %table : bf16[T, {heads}, {dim}]
  %4 = slice %qkv {{axis = 1, start = {q}, len = {k}}} : bf16[T, {k}]
  %5 = reshape %4 {{shape = [T, {kv}, {dim}]}} : bf16[T, {kv}, {dim}]
  %6 = rms_norm %5, %kn {{eps = 1e-6}} : bf16[T, {kv}, {dim}]
  %7 = rope %6, %table : bf16[T, {kv}, {dim}]
  %8 = slice %qkv {{axis = 1, start = {}, len = {k}}} : bf16[T, {k}]
  %9 = reshape %8 {{shape = [T, {kv}, {dim}]}} : bf16[T, {kv}, {dim}]
  %10 = kv_write %kv, %7, %9, %batch : cache<bf16, {kv}, {dim}>
{tail}  return {returns}
}}",
        q + k
    )
}

#[test]
fn rows_prepare_attention() {
    for (dim, rot) in [(32, 32), (20, 20), (20, 12), (48, 24)] {
        let text = qkv(4, 2, dim, rot, "", "%3, %10");
        Case { text: &text, family: Family::Rows, bucket: 8, tokens: &STEP, rows: 0, indices: &[], tolerance: 2e-2 }
            .check();
    }
}

#[test]
fn attention_of_one_token_each() {
    let tokens = [(0, 3), (1, 0), (2, 70)];
    for (heads, kv, dim, window) in [(4, 2, 32, 0), (3, 3, 20, 0), (7, 1, 64, 40), (4, 1, 48, 1)] {
        let width = heads * dim;
        let tail = format!(
            "  %11 = attention %3, %10, %batch {{scale = 0.2, window = {window}}} : bf16[T, {heads}, {dim}]
  %12 = reshape %11 {{shape = [T, {width}]}} : bf16[T, {width}]
"
        );
        let text = qkv(heads, kv, dim, dim, &tail, "%12, %10");
        let case = Case {
            text: &text,
            family: Family::AttendOne,
            bucket: 4,
            tokens: &tokens,
            rows: 0,
            indices: &[],
            tolerance: 2e-2,
        };
        case.check();
        for (dtype, tolerance) in [("f32", 5e-6), ("f16", 3e-3)] {
            Case { text: &text.replace("bf16", dtype), tolerance, ..case }.check();
        }
    }
}

#[test]
fn attention_of_runs_of_tokens() {
    let mut tokens: Vec<(i32, i32)> = (5..45).map(|p| (0, p)).collect();
    tokens.push((1, 64));
    tokens.extend((0..33).map(|p| (2, p)));
    for (heads, kv, dim, window) in [(4, 2, 32, 0), (3, 3, 20, 0), (2, 1, 64, 7), (1, 1, 128, 33)] {
        let width = heads * dim;
        let text = format!(
            "graph @k(%q: bf16[T, {heads}, {dim}], %kv: cache<bf16, {kv}, {dim}>, %batch: batch) {{
  %0 = attention %q, %kv, %batch {{scale = 0.2, window = {window}}} : bf16[T, {heads}, {dim}]
  %1 = reshape %0 {{shape = [T, {width}]}} : bf16[T, {width}]
  return %1
}}"
        );
        let case = Case {
            text: &text,
            family: Family::AttendMany,
            bucket: 96,
            tokens: &tokens,
            rows: 0,
            indices: &[],
            tolerance: 1e-2,
        };
        case.check();
        for (dtype, tolerance) in [("f32", 5e-6), ("f16", 3e-3)] {
            Case { text: &text.replace("bf16", dtype), tolerance, ..case }.check();
        }
    }
}

/// A norm, a contraction in two pieces, a gated activation.
fn gated(k: usize, n: usize) -> String {
    format!(
        "graph @k(%x: bf16[T, {k}], %wn: bf16[{k}], %w: bf16[{}, {k}]@panels) {{
  %0 = rms_norm %x, %wn {{eps = 1e-6}} : bf16[T, {k}]
  %1 = linear %0, %w {{out = bf16}} : bf16[T, {}]
  %2 = slice %1 {{axis = 1, start = 0, len = {n}}} : bf16[T, {n}]
  %3 = slice %1 {{axis = 1, start = {n}, len = {n}}} : bf16[T, {n}]
  %4 = silu_mul %2, %3 : bf16[T, {n}]
  return %4
}}",
        2 * n,
        2 * n
    )
}

const BIASED: &str = "graph @k(%x: bf16[T, 72], %w: bf16[50, 72]@panels, %b: bf16[50], %r: bf16[T, 50]) {
  %0 = linear %x, %w {out = bf16} : bf16[T, 50]
  %1 = add %0, %b : bf16[T, 50]
  %2 = add %r, %1 : bf16[T, 50]
  return %2
}";

#[test]
fn matvec_with_norm_activation_bias_residual() {
    let tokens = [(0, 0), (1, 0), (2, 0)];
    for bucket in [1, 2, 4, 8] {
        let tokens = &tokens[..bucket.min(3)];
        for text in [gated(72, 48), gated(64, 64), BIASED.to_string()] {
            let case =
                Case { text: &text, family: Family::Matvec, bucket, tokens, rows: 0, indices: &[], tolerance: 3e-2 };
            case.check();
            Case { text: &text.replace("bf16", "f32"), tolerance: 2e-6, ..case }.check();
            Case { text: &text.replace("bf16", "f16"), tolerance: 4e-3, ..case }.check();
        }
    }
}

#[test]
fn matvec_of_chosen_rows_to_f32() {
    let text = "graph @k(%x: bf16[T, 64], %rows: i32[R], %wn: bf16[64], %w: bf16[83, 64]@panels) {
  %0 = gather %x, %rows : bf16[R, 64]
  %1 = rms_norm %0, %wn {eps = 1e-6} : bf16[R, 64]
  %2 = linear %1, %w {out = f32} : f32[R, 83]
  return %2
}";
    let indices = &[("rows", vec![4, 0])];
    Case { text, family: Family::Matvec, bucket: 8, tokens: &STEP, rows: 2, indices, tolerance: 2e-2 }.check();
}

#[test]
fn matmul_with_epilogues() {
    let tokens: Vec<(i32, i32)> = (0..300).map(|p| (0, p)).collect();
    let gated = gated(96, 48).replace("rms_norm %x, %wn {eps = 1e-6}", "silu %x");
    let gated = gated
        .lines()
        .map(|l| if l.contains("silu %x") { "" } else { l })
        .collect::<Vec<_>>()
        .join("\n")
        .replace("%0,", "%x,");
    for text in [BIASED.to_string(), gated] {
        for tokens in [&tokens[..], &tokens[..5]] {
            let case = Case {
                text: &text,
                family: Family::Matmul,
                bucket: 320,
                tokens,
                rows: 0,
                indices: &[],
                tolerance: 2e-2,
            };
            case.check();
            Case { text: &text.replace("bf16", "f32"), tolerance: 4e-6, ..case }.check();
            Case { text: &text.replace("bf16", "f16"), tolerance: 4e-3, ..case }.check();
        }
    }
}

#[test]
fn unsupported_bodies_are_errors() {
    let text = "graph @k(%x: bf16[T, 64], %w: bf16[100, 64]@panels) {
  %0 = linear %x, %w {out = bf16} : bf16[T, 100]
  %1 = slice %0 {axis = 1, start = 0, len = 50} : bf16[T, 50]
  %2 = slice %0 {axis = 1, start = 50, len = 50} : bf16[T, 50]
  %3 = mul %1, %2 : bf16[T, 50]
  return %3
}";
    let graph = parse(text).unwrap();
    assert!(graph.inputs().iter().all(|&v| graph.ty(v).as_tensor().is_some_and(|t| t.shape.0[0] != Dim::Rows)));
    let spec = KernelSpec { symbol: "k".into(), family: Family::Matvec, body: &graph, tokens: 1 };
    let e = compile(&[spec], &rows()[0]).unwrap_err();
    assert_eq!(e.to_string(), "kernel k on x86-64-v4-amx: a slice of 50 from 50 of a contraction");
}
