//! A model for tests that anyone can compute by hand, with kernels in C that read every input an
//! artifact can give them.
//!
//! The cache keeps `id + 1` in K and `position + 1` in V; a token's hidden value is the sum of
//! their products up to it; and its logits are largest for that sum modulo the vocabulary.
use crate::checkpoint::{CheckpointError, Float, Source, Tensor};
use crate::device::apart::Apart;
use crate::engine::{Engine, EngineOptions};
use atomc_artifact::Artifact;
use atomc_artifact::manifest::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub const VOCAB: usize = 97;
pub const BLOCK: usize = 4;
pub const MAX_POSITIONS: usize = 64;
/// Elements from one pick to the next.
pub const PICK: usize = 2;

const KERNELS: &str = r#"
#include <stdint.h>
typedef struct { int64_t tokens, rows; } step;
typedef struct { const int32_t *positions, *sequences, *tables; int64_t stride; const int32_t *tiles; int64_t tile_count, block_stride; } batch;

static int64_t place(const batch *b, int64_t token, int64_t position) {
    return b->tables[b->sequences[token] * b->stride + position / BLOCK] * (b->block_stride / 4) + position % BLOCK;
}

// args: ids, batch, k, v; four tokens a task
void scatter(void *const *args, const step *s, void *scratch, int64_t first, int64_t end) {
    const int32_t *ids = args[0]; const batch *b = args[1]; int32_t *k = args[2], *v = args[3];
    for (int64_t t = first * 4; t < end * 4 && t < s->tokens; t++) {
        k[place(b, t, b->positions[t])] = ids[t] + 1;
        v[place(b, t, b->positions[t])] = b->positions[t] + 1;
    }
}

// args: batch, lengths, k, v, hidden; a tile a task; the products pass through scratch
void attend(void *const *args, const step *s, void *scratch, int64_t first, int64_t end) {
    const batch *b = args[0]; const int32_t *lengths = args[1], *k = args[2], *v = args[3]; int64_t *hidden = args[4];
    int64_t *products = scratch;
    for (int64_t tile = first; tile < end; tile++)
        for (int64_t t = b->tiles[2 * tile], last = t + b->tiles[2 * tile + 1]; t < last; t++) {
            int64_t sum = 0;
            for (int64_t p = 0; p <= b->positions[t] && p < lengths[t]; p++) products[p] = (int64_t)k[place(b, t, p)] * v[place(b, t, p)];
            for (int64_t p = 0; p <= b->positions[t] && p < lengths[t]; p++) sum += products[p];
            hidden[t] = sum;
        }
}

// args: rows, hidden, bias, logits, picks; a row a task
void head(void *const *args, const step *s, void *scratch, int64_t first, int64_t end) {
    const int32_t *rows = args[0]; const int64_t *hidden = args[1]; const float *bias = args[2]; float *logits = args[3]; int32_t *picks = args[4];
    for (int64_t r = first; r < end; r++) {
        float *row = logits + r * (VOCAB + 3), most = -__builtin_inff();
        picks[r * PICK] = 0;
        for (int64_t i = 0; i < VOCAB; i++) {
            int64_t far = i - hidden[rows[r]] % VOCAB;
            row[i] = bias[i] - (far < 0 ? -far : far);
            if (row[i] > most) { most = row[i]; picks[r * PICK] = i; }
        }
    }
}
"#;

/// The likeliest token after these.
pub fn next(tokens: &[u32]) -> u32 {
    let sum: usize = tokens.iter().enumerate().map(|(position, &id)| (id as usize + 1) * (position + 1)).sum();
    (sum % VOCAB) as u32
}

/// What greedy generation gives.
pub fn answer(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    (0..count).for_each(|_| tokens.push(next(&tokens)));
    tokens.split_off(prompt.len())
}

/// The file of the toy artifact, made once.
pub fn path() -> &'static Path {
    static FILE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = FILE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("toy.atomc");
        atomc_artifact::write(&path, &manifest(), &[code(dir.path())]).unwrap();
        (dir, path)
    });
    path
}

/// The artifact with another manifest, in a folder that is removed with it.
pub fn with(manifest: &Manifest) -> (tempfile::TempDir, Artifact) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("toy.atomc");
    atomc_artifact::write(&path, manifest, &[code(dir.path())]).unwrap();
    let artifact = Artifact::open(&path).unwrap();
    (dir, artifact)
}

/// An engine with the toy's weights and without picks in its plans.
pub fn engine_without_picks() -> Engine {
    let mut manifest = manifest();
    manifest.targets[0].plans.iter_mut().for_each(|plan| plan.picks = None);
    let (_dir, artifact) = with(&manifest);
    let mut engine = Engine::new(artifact, &EngineOptions { cache_tokens: 1024, ..EngineOptions::default() }).unwrap();
    engine.load_weights(&Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap();
    engine
}

/// An engine with the toy's weights.
pub fn engine(threads: usize, cache_tokens: usize) -> Engine {
    let options = EngineOptions { threads, cache_tokens, ..EngineOptions::default() };
    let mut engine = Engine::open(path(), &options).unwrap();
    engine.load_weights(&Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap();
    engine
}

/// The same on a device with memory of its own.
pub fn apart(threads: usize, cache_tokens: usize) -> Engine {
    let artifact = Artifact::open(path()).unwrap();
    let options = EngineOptions { threads, cache_tokens, ..EngineOptions::default() };
    let device = Apart::new(options.device.open(&artifact, threads).unwrap());
    let mut engine = Engine::with_device(artifact, "host", Box::new(device), &options).unwrap();
    engine.load_weights(&Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap();
    engine
}

/// The only tensor, in bytes.
pub struct Bias(pub Vec<u8>);

impl Source for Bias {
    fn tensor(&self, name: &str, _: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        assert_eq!(name, "head.bias");
        Ok(Tensor::Bytes { float: Float::F32, bytes: &self.0 })
    }

    fn names(&self) -> Vec<&str> {
        vec!["head.bias"]
    }
}

fn code(dir: &Path) -> Vec<u8> {
    let (source, object) = (dir.join("toy.c"), dir.join("toy.so"));
    std::fs::write(&source, KERNELS).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-nostdlib"]);
    cc.args([format!("-DVOCAB={VOCAB}"), format!("-DBLOCK={BLOCK}"), format!("-DPICK={PICK}")]);
    assert!(cc.arg(&source).arg("-o").arg(&object).status().unwrap().success());
    std::fs::read(object).unwrap()
}

pub fn manifest() -> Manifest {
    let bias = WeightExpr::Tensor { name: "head.bias".into(), shape: vec![VOCAB] };
    let stream = |name: &str, start, layout| {
        let (at, dtype) = (Extent { start, bytes: BLOCK * 4 }, DType::I32);
        PageStream { name: name.into(), at, dtype, heads: 1, width: 1, layout }
    };
    let streams = vec![stream("k", 0, StreamLayout::Tokens), stream("v", BLOCK * 4, StreamLayout::Numbers)];
    Manifest {
        producer: "toy".into(),
        config: serde_json::json!({}),
        model: Model {
            architecture: "Toy".into(),
            layers: 1,
            hidden: 1,
            vocab: VOCAB,
            max_positions: MAX_POSITIONS,
            stop: vec![96],
            bos: None,
        },
        tensors: TensorNames::default(),
        tensor_parallel: 1,
        expert_parallel: 1,
        pipeline_parallel: 1,
        adapters: None,
        tower: None,
        targets: vec![Target {
            name: "host".into(),
            invariant: false,
            layout: DataLayout {
                row: 1,
                alias: 1024,
                rows: 1,
                panel: 1,
                group_bytes: 4,
                block_tokens: BLOCK,
                align: 64,
            },
            weights: vec![Weight {
                name: "head.bias".into(),
                dtype: DType::F32,
                shape: vec![VOCAB],
                layout: Layout::Rows { stride: VOCAB },
                bytes: VOCAB * 4,
                expr: bias,
                unsigned_zeros: false,
            }],
            states: vec![State { layer: 0, group: 0 }],
            groups: vec![StateGroup::Paged(Paged { block_bytes: 2 * BLOCK * 4, streams, window: 0, every: 1 })],
            // One number of eight bytes for each token.
            hidden: Hidden { dtype: DType::I32, width: 2, stride: 2, bytes: 40 * 8 },

            draft: None,
            given: None,
            kernels: vec![
                def(
                    "scatter",
                    "%a0: i32[T], %a1: batch, %a2: cache<i32, 1, 1>",
                    "  %0 = kv_write : cache<i32, 1, 1>\n  return %0\n",
                ),
                def(
                    "attend",
                    "%a0: batch, %a1: i32[T], %a2: cache<i32, 1, 1>",
                    "  %0 = attention : i32[T, 2]\n  return %0\n",
                ),
                def(
                    "head",
                    "%a0: i32[R], %a1: i32[T, 2], %a2: f32[97]",
                    "  %0 = linear : f32[R, 97]\n  %1 = argmax %0 : i32[R]\n  return %0, %1\n",
                ),
            ],
            variants: vec![variant("from-the-future", &["no-such-feature"]), variant("plain", &[])],
            plans: vec![
                plan(PlanKind::Decode, 1, 1),
                plan(PlanKind::Decode, 4, 4),
                plan(PlanKind::Any, 8, 2),
                plan(PlanKind::Any, 40, 3),
                plan(PlanKind::Whole, 8, 2),
                plan(PlanKind::Whole, 40, 3),
            ],
        }],
    }
}

fn def(symbol: &str, takes: &str, body: &str) -> KernelDef {
    KernelDef {
        symbol: symbol.into(),
        family: "toy".into(),
        body: format!("graph @k({takes}) {{\n{body}}}\n"),
        tokens: 40,
        each: None,
    }
}

fn variant(name: &str, features: &[&str]) -> Variant {
    let kernel = |tasks, scratch| Kernel { schedule: "toy".into(), ..Kernel::host(tasks, scratch) };
    Variant {
        name: name.into(),
        features: features.iter().map(|&name| name.to_owned()).collect(),
        chip: None,
        executed: true,
        section: 1,
        kernels: vec![
            kernel(Tasks::Tokens { per: 4, times: 1 }, 0),
            kernel(Tasks::Tiles { times: 1 }, MAX_POSITIONS * 8),
            kernel(Tasks::Rows { per: 1, times: 1 }, 0),
        ],
        prepare: None,
        pack: None,
        exchange: None,
    }
}

fn plan(kind: PlanKind, tokens: usize, rows: usize) -> Plan {
    let input = |which| Arg::Input { which };
    let [k, v] = [0, 1].map(|stream| Arg::State { state: 0, stream });
    let batch = Arg::Batch { state: 0 };
    let logits = Logits { offset: 0, width: VOCAB, stride: VOCAB + 3 };
    let launch = |kernel, args: &[Arg]| Launch {
        kernel,
        args: args.to_vec(),
        segment: kernel,
        location: "toy".into(),
        bytes: 1,
        flops: 1,
        chosen: None,
    };
    let picks = Picks { offset: logits.offset + rows * logits.stride * 4, stride: PICK };
    let end = (picks.offset + rows * picks.stride * 4).next_multiple_of(8);
    let is_whole = kind == PlanKind::Whole;
    let (hidden, arena_bytes) =
        if is_whole { (Arg::Arena { offset: end }, end + tokens * 8) } else { (Arg::Hidden, end) };
    let head = [
        input(Input::Rows),
        hidden,
        Arg::Weight { index: 0 },
        Arg::Arena { offset: logits.offset },
        Arg::Arena { offset: picks.offset },
    ];
    Plan {
        kind,
        draft: false,
        tokens,
        rows,
        arena_bytes,
        attention: Attention::Own,
        launches: vec![
            launch(0, &[input(Input::Ids), batch, k, v]),
            launch(1, &[batch, input(Input::Lengths), k, v, hidden]),
            launch(2, &head),
        ],
        body: if is_whole { 3 } else { 2 },
        calls: vec![],
        hidden: vec![],
        logits,
        picks: Some(picks),
    }
}
