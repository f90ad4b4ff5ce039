//! Runs emitted kernels on this machine, on every variant that it supports, against the reference interpreter.
use std::ffi::c_void;

use atomc_ir::trial::{Fill, Operand, Run, Step, Trial};
use atomc_ir::{Arch, Dim, Family, Graph, Op, Type, Value, parse};

use crate::{KernelSpec, Object, Tasks, compile, rows, variants};

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

/// 64-byte aligned memory, filled with NaN bits so that reads of what nobody wrote show.
struct Memory(Vec<[u64; 8]>);

impl Memory {
    fn new(bytes: usize) -> Memory {
        Memory(vec![[u64::MAX; 8]; bytes.div_ceil(64) + 8])
    }
    fn of(bytes: &[u8]) -> Memory {
        let mut memory = Memory::new(bytes.len());
        memory.bytes()[..bytes.len()].copy_from_slice(bytes);
        memory
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

/// One step for a kernel; indices for the i32 parameters.
#[derive(Clone, Copy)]
struct Case<'t> {
    text: &'t str,
    family: Family,
    bucket: usize,
    runs: &'t [Run],
    indices: &'t [(&'t str, &'t [i32])],
}

impl Case<'_> {
    fn check(&self) {
        let graph = parse(self.text).unwrap();
        graph.verify().unwrap_or_else(|e| panic!("{e}"));
        for arch in variants("host").unwrap().iter().filter(|a| supported(a)) {
            let spec = KernelSpec { symbol: "k".into(), family: self.family, body: &graph, tokens: self.bucket };
            let object = compile(&[spec], arch).unwrap_or_else(|e| panic!("{e}"));
            for fill in Fill::ALL {
                self.check_on(&graph, arch, &object, fill);
            }
        }
    }

    /// In every float type.
    fn check_in_all_types(&self) {
        for dtype in ["bf16", "f16", "f32"] {
            Case { text: &self.text.replace("bf16", dtype), ..*self }.check();
        }
    }

    fn check_on(&self, graph: &Graph, arch: &Arch, object: &Object, fill: Fill) {
        let inputs = graph.inputs();
        let indices = |number: usize| {
            let Op::Input { name } = graph.op(inputs[number].node) else { unreachable!() };
            Some(self.indices.iter().find(|(n, _)| n == name)?.1.to_vec())
        };
        let step = Step { runs: self.runs.to_vec() };
        let trial = Trial::new(graph, arch.memory, step, (fill, 7), &indices).unwrap();
        let (want, operands) = (trial.want().unwrap(), trial.operands());
        let mut memory: Vec<[Memory; 2]> = operands.iter().map(memory).collect();
        let mut outs = self.run(&trial, arch, object, &mut memory);
        let result = |(&v, out): (&Value, &mut Memory)| match trial.state(v) {
            Some(operand) => memory[operand].each_mut().map(|m| m.bytes().to_vec()).to_vec(),
            None => vec![out.bytes().to_vec()],
        };
        let got: Vec<Vec<Vec<u8>>> = graph.outputs().iter().zip(&mut outs).map(result).collect();
        if let Some(fault) = trial.judge(&operands, &want, &got).fault {
            panic!("{} {}, {}: {fault}", arch.name, self.text, fill.name());
        }
    }

    /// Runs the kernel twice over split task ranges, as two threads would; returns the memory of each output.
    fn run(&self, trial: &Trial, arch: &Arch, object: &Object, memory: &mut [[Memory; 2]]) -> Vec<Memory> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.so");
        std::fs::write(&path, &object.code).unwrap();
        let (graph, state, tiles) = (trial.graph, trial.step.batch(), self.tiles());
        let (tables, stride) = tables(&trial.step, arch.memory.block_tokens);
        let batch = Batch {
            positions: state.positions.as_ptr(),
            sequences: state.sequences.as_ptr(),
            tables: tables.as_ptr(),
            table_stride: stride as i64,
            tiles: tiles.as_ptr(),
            tile_count: tiles.len() as i64 / 2,
        };
        let mut outs: Vec<Memory> = graph.outputs().iter().map(|&v| self.room(graph, v, arch)).collect();
        let mut args: Vec<*mut c_void> = Vec::new();
        for (v, [first, second]) in graph.inputs().into_iter().zip(memory) {
            match graph.ty(v) {
                Type::Batch => args.push((&raw const batch).cast_mut().cast()),
                Type::Cache(_) => args.extend([first.ptr(), second.ptr()]),
                Type::Tensor(_) => args.push(first.ptr()),
            }
        }
        let tensors = outs.iter_mut().zip(graph.outputs()).filter(|(_, v)| graph.ty(**v).as_tensor().is_some());
        args.extend(tensors.map(|(m, _)| m.ptr()));
        let info = &object.kernels[0];
        let (tokens, rows) = (trial.step.tokens(), trial.step.rows());
        let count = match info.tasks {
            Tasks::Fixed(n) => n,
            Tasks::Tokens { per, times } => tokens.div_ceil(per) * times,
            Tasks::Rows { per, times } => rows.div_ceil(per) * times,
            Tasks::Tiles { times } => tiles.len() / 2 * times,
        } as i64;
        let mut scratch = Memory::new(info.scratch);
        let step = [tokens as i64, rows as i64];
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

    /// First token and count of each tile: at most 32 tokens of a run.
    fn tiles(&self) -> Vec<i32> {
        let (mut tiles, mut first) = (Vec::new(), 0);
        for run in self.runs {
            for at in (0..run.tokens).step_by(32) {
                tiles.extend([(first + at) as i32, (run.tokens - at).min(32) as i32]);
            }
            first += run.tokens;
        }
        tiles
    }
}

/// The tables of all sequences, and how far one is from the next.
fn tables(step: &Step, block_tokens: usize) -> (Vec<i32>, usize) {
    let tables: Vec<Vec<i32>> = (0..step.runs.len()).map(|s| step.table(s, block_tokens)).collect();
    let stride = tables.iter().map(Vec::len).max().unwrap() + 1;
    (tables.iter().flat_map(|t| t.iter().copied().chain(std::iter::repeat(0)).take(stride)).collect(), stride)
}

/// An operand in memory that a kernel may read.
fn memory(operand: &Operand) -> [Memory; 2] {
    match operand {
        Operand::Tensor(bytes) => [Memory::of(bytes), Memory::new(0)],
        Operand::Cache { k, v } => [Memory::of(k), Memory::of(v)],
        Operand::Batch => [Memory::new(0), Memory::new(0)],
    }
}

const STEP: [Run; 3] = [run(3, 3), run(0, 1), run(33, 1)];

const fn run(position: usize, tokens: usize) -> Run {
    Run { position, tokens, rows: 0 }
}

fn case(text: &str, family: Family, bucket: usize) -> Case<'_> {
    Case { text, family, bucket, runs: &STEP, indices: &[] }
}

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
        case(&text, Family::Rows, 8).check_in_all_types();
    }
}

#[test]
fn every_elementwise_op() {
    for op in atomc_ir::Elementwise::ALL {
        let x = ["%x", "%y"][..op.operands().len()].join(", ");
        let text =
            format!("graph @k(%x: f32[T, 40], %y: f32[40]) {{\n  %0 = {} {x} : f32[T, 40]\n  return %0\n}}", op.name());
        case(&text, Family::Rows, 8).check();
    }
}

#[test]
fn rows_gather_plain_and_packed() {
    let text = "graph @k(%table: bf16[37, 40], %ids: i32[T]) {
  %0 = gather %table, %ids : bf16[T, 40]
  return %0
}";
    for text in [text, &text.replace("[37, 40]", "[37, 40]@panels")] {
        Case { indices: &[("ids", &[36, 0, 17, 16, 15])], ..case(text, Family::Rows, 8) }.check_in_all_types();
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
        let indices: &[(&str, &[i32])] =
            &[("positions", &[0, 1, 131071, 77, 500]), ("lengths", &[1, 17, 131072, 100, 501])];
        Case { indices, ..case(&text, Family::Rows, 8) }.check();
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
        case(&text, Family::Rows, 8).check();
    }
}

#[test]
fn attention_of_one_token_each() {
    let runs = [run(3, 1), run(0, 1), run(70, 1)];
    for (heads, kv, dim, window) in [(4, 2, 32, 0), (3, 3, 20, 0), (7, 1, 64, 40), (4, 1, 48, 1)] {
        let width = heads * dim;
        let tail = format!(
            "  %11 = attention %3, %10, %batch {{scale = 0.2, window = {window}}} : bf16[T, {heads}, {dim}]
  %12 = reshape %11 {{shape = [T, {width}]}} : bf16[T, {width}]
"
        );
        let text = qkv(heads, kv, dim, dim, &tail, "%12, %10");
        Case { runs: &runs, ..case(&text, Family::AttendOne, 4) }.check_in_all_types();
    }
}

#[test]
fn attention_of_runs_of_tokens() {
    let runs = [run(5, 40), run(64, 1), run(0, 33)];
    for (heads, kv, dim, window) in [(4, 2, 32, 0), (3, 3, 20, 0), (2, 1, 64, 7), (1, 1, 128, 33)] {
        let width = heads * dim;
        let text = format!(
            "graph @k(%q: bf16[T, {heads}, {dim}], %kv: cache<bf16, {kv}, {dim}>, %batch: batch) {{
  %0 = attention %q, %kv, %batch {{scale = 0.2, window = {window}}} : bf16[T, {heads}, {dim}]
  %1 = reshape %0 {{shape = [T, {width}]}} : bf16[T, {width}]
  return %1
}}"
        );
        Case { runs: &runs, ..case(&text, Family::AttendMany, 96) }.check_in_all_types();
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
    for bucket in [1, 2, 4, 8] {
        let runs = &[run(0, 1); 3][..bucket.min(3)];
        for text in [gated(72, 48), gated(64, 64), BIASED.to_string()] {
            Case { runs, ..case(&text, Family::Matvec, bucket) }.check_in_all_types();
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
    let mut runs = STEP;
    runs[1].rows = 1;
    runs[2].rows = 1;
    Case { runs: &runs, indices: &[("rows", &[4, 0])], ..case(text, Family::Matvec, 8) }.check();
}

#[test]
fn matmul_with_epilogues() {
    let gated = gated(96, 48).replace("rms_norm %x, %wn {eps = 1e-6}", "silu %x");
    let gated = gated
        .lines()
        .map(|l| if l.contains("silu %x") { "" } else { l })
        .collect::<Vec<_>>()
        .join("\n")
        .replace("%0,", "%x,");
    for text in [BIASED.to_string(), gated] {
        for tokens in [300, 5] {
            Case { runs: &[run(0, tokens)], ..case(&text, Family::Matmul, 320) }.check_in_all_types();
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
