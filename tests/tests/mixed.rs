//! A model with layers that name their mixers: latent attention together with a gated delta rule,
//! as Kimi-Linear has them. No family reads such a configuration yet, so this one is put together
//! of the layers of two.
use std::collections::HashMap;

use atomc::driver::{self, Options};
use atomc::frontend::{self, Config};
use atomc_config::Kind;
use atomc_ir::interp::Tensor;
use atomc_ir::{Graph, Op, Shape};
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::{CheckpointError, Float, Source, Tensor as Stored};
use atomc_runtime::{Artifact, Engine, EngineOptions, Request, Want};
use atomc_tests::random::Random;
use atomc_tests::reference::{Piece, Reference, States};
use serde_json::{Value, json};

const HIDDEN: usize = 48;
const VOCAB: usize = 96;

fn read(fields: Value) -> Config {
    let mut all = json!({
        "hidden_size": HIDDEN, "vocab_size": VOCAB, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 256, "dtype": "bfloat16",
        "num_experts_per_tok": 2, "moe_intermediate_size": 20, "eos_token_id": null,
    });
    all.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    Config::parse(&all.to_string(), None).expect("a good configuration")
}

/// Layers by their mixers: a delta rule, latent attention that is turned, a delta rule, and latent
/// attention that is not, as Kimi-Linear's is.
fn mixed() -> Config {
    let latent = read(json!({
        "architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": null, "kv_lora_rank": 40, "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
        "first_k_dense_replace": 1, "n_shared_experts": 1,
    }));
    let delta = read(json!({
        "architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention", "linear_attention"],
        "linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 24, "linear_value_head_dim": 20,
        "num_experts": 5, "shared_expert_intermediate_size": 28, "num_key_value_heads": 1, "head_dim": 16,
    }));
    let mut layers = vec![delta.layers[0].clone(), latent.layers[0].clone()];
    layers.extend([delta.layers[1].clone(), latent.layers[1].clone()]);
    let Kind::Latent(last) = &mut layers[3].halves[0].kind else { panic!("{:?}", layers[3]) };
    last.embedding = None;
    Config { layers, ..latent }
}

/// Made-up weights of bf16, of the shapes that a graph has.
#[derive(Clone, Default)]
struct Weights(HashMap<String, Tensor<f64>>, HashMap<String, Vec<u8>>);

impl Weights {
    fn of(graph: &Graph) -> Weights {
        let (mut all, mut random) = (Weights::default(), Random(1));
        let mut add = |name: String, shape: Vec<usize>| {
            let scale = if name.contains("embed") { 1.0 } else { 0.2 };
            let mean = if shape.len() == 1 && name.contains("norm") { 1.0 } else { 0.0 };
            let mut number = || {
                let uniform = random.below(1 << 16) as f32 / (1 << 16) as f32 - 0.5;
                half::bf16::from_f32(mean + scale * 3.0 * uniform)
            };
            let numbers: Vec<half::bf16> = (0..shape.iter().product()).map(|_| number()).collect();
            all.1.insert(name.clone(), numbers.iter().flat_map(|n| n.to_le_bytes()).collect());
            all.0.insert(name, Tensor::new(shape, numbers.iter().map(|n| n.to_f64()).collect()));
        };
        for id in graph.ids() {
            let ty = || graph.ty(id.into()).as_tensor().expect("a tensor").shape.clone();
            let fixed = |shape: &Shape| shape.0.iter().map(|dim| dim.fixed().expect("a number")).collect::<Vec<_>>();
            match graph.op(id) {
                Op::Weight { name } => add(name.clone(), fixed(&ty())),
                Op::Weights { name, count, .. } => {
                    let each = fixed(&ty())[1..].to_vec();
                    (0..*count).for_each(|i| add(atomc_ir::nth_name(name, i), each.clone()));
                }
                _ => {}
            }
        }
        all
    }
}

impl Source for Weights {
    fn tensor(&self, name: &str, _: &[usize]) -> Result<Stored<'_>, CheckpointError> {
        let missing = || CheckpointError::Missing { names: vec![name.to_owned()] };
        Ok(Stored::Bytes { float: Float::BF16, bytes: self.1.get(name).ok_or_else(missing)? })
    }

    fn names(&self) -> Vec<&str> {
        self.1.keys().map(String::as_str).collect()
    }
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i + 7 * i + 3) % VOCAB) as u32).collect()
}

fn logits(reference: &Reference, pieces: &[&[u32]]) -> Vec<f64> {
    let (mut states, mut from, mut out) = (reference.fresh(), 0, vec![]);
    for tokens in pieces {
        out.extend(reference.step(&mut states, &[Piece { sequence: 0, from, tokens }]));
        from += tokens.len();
    }
    out
}

fn far(found: &[f64], want: &[f64]) -> f64 {
    assert_eq!(found.len(), want.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    (square(&mut found.iter().zip(want).map(|(a, b)| a - b)) / square(&mut want.iter().copied())).sqrt()
}

/// The results of a layer alone on given rows, with the weights of layer `index`.
fn one_layer(config: &Config, index: usize, weights: &Weights, rows: &Tensor<f64>) -> States {
    let mut alone = config.clone();
    alone.layers = vec![config.layers[index].clone()];
    // Each token is its own row.
    (alone.vocab, alone.tied) = (rows.shape[0], false);
    let graph = frontend::graph(&alone).expect("a graph");
    let mut own: HashMap<String, Tensor<f64>> = weights.0.clone();
    let from = format!("model.layers.{index}.");
    let moved = weights.0.iter().filter_map(|(name, w)| Some((name.strip_prefix(&from)?.to_owned(), w)));
    own.extend(moved.map(|(name, w)| (format!("model.layers.0.{name}"), w.clone())));
    own.insert("model.embed_tokens.weight".into(), rows.clone());
    own.insert("lm_head.weight".into(), rows.clone());
    let ids: Vec<u32> = (0..rows.shape[0] as u32).collect();
    let reference = Reference { graph, weights: own };
    let piece = Piece { sequence: 0, from: 0, tokens: &ids };
    reference.results(&mut reference.fresh(), &[piece])
}

/// Layers in one graph make what each makes alone of the rows of the one before it, as models of
/// one mixer do, which transformers has answered for.
#[test]
fn each_layer_is_what_it_is_alone() {
    let config = mixed();
    let graph = frontend::graph(&config).expect("a graph");
    let weights = Weights::of(&graph);
    let reference = Reference { graph, weights: weights.0.clone() };
    let tokens = tokens(37);
    let all = reference.results(&mut reference.fresh(), &[Piece { sequence: 0, from: 0, tokens: &tokens }]);
    let rows = |results: &States| results["hidden"].float().expect("rows").clone();
    let table = &weights.0["model.embed_tokens.weight"];
    let embedded = tokens.iter().flat_map(|&t| table.data[t as usize * HIDDEN..][..HIDDEN].to_vec()).collect();
    let mut x = Tensor::new(vec![tokens.len(), HIDDEN], embedded);
    for index in 0..config.layers.len() {
        let before = x.clone();
        x = rows(&one_layer(&config, index, &weights, &x));
        assert!(far(&x.data, &before.data) > 0.05, "layer {index} does something");
    }
    let error = far(&rows(&all).data, &x.data);
    assert!(error < 1e-12, "{error:e}");
}

/// Without a rotary embedding a token sees those before it in any order, and with one it does not.
#[test]
fn a_layer_may_have_no_rotary_embedding() {
    let config = mixed();
    let last = |index: usize, tokens: &[u32]| {
        let alone = Config { layers: vec![config.layers[index].clone()], ..config.clone() };
        let graph = frontend::graph(&alone).expect("a graph");
        let all = logits(&Reference { weights: Weights::of(&graph).0, graph }, &[tokens]);
        all[all.len() - VOCAB..].to_vec()
    };
    let tokens = tokens(12);
    let mut other = tokens.clone();
    other[..11].reverse();
    let [turned, plain] = [1, 3].map(|index| far(&last(index, &other), &last(index, &tokens)));
    assert!(turned > 1e-3 && plain < 1e-12, "{turned:e}, {plain:e}");
}

/// Token by token, in pieces, and at once: both kinds of states continue.
#[test]
fn states_go_on() {
    let graph = frontend::graph(&mixed()).expect("a graph");
    let reference = Reference { weights: Weights::of(&graph).0, graph };
    let tokens = tokens(29);
    let want = logits(&reference, &[&tokens]);
    let ones: Vec<&[u32]> = tokens.chunks(1).collect();
    for pieces in [&ones[..], &[&tokens[..8], &tokens[8..9], &tokens[9..]]] {
        let error = far(&logits(&reference, pieces), &want);
        assert!(error < 1e-12, "{error:e}");
    }
}

/// An artifact of it runs on the host, and compiles for GPUs of both vendors.
#[test]
fn compiles_and_runs() {
    let config = mixed();
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 32, rows: 32 };
    let targets = ["host", "gfx942", "sm_90a"].map(String::from).to_vec();
    let options = Options { buckets, targets, ..Options::default() };
    let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let graph = frontend::graph(&config).expect("a graph");
    let weights = Weights::of(&graph);
    let options = EngineOptions { threads: 2, ..EngineOptions::default() };
    let mut engine = Engine::new(Artifact::open(&path).expect("a whole artifact"), &options).expect("it opens");
    engine.load_weights(&weights, &|_, _| ()).expect("weights");
    let tokens = tokens(37);
    let want = logits(&Reference { graph, weights: weights.0 }, &[&tokens]);
    let (sequence, mut found) = (engine.add_sequence(), vec![]);
    for piece in [&tokens[..30], &tokens[30..31], &tokens[31..]] {
        let out = engine.step(&[Request { sequence, tokens: piece, logits: Want::All }]).expect("a step");
        found.extend(out.of(0).flatten().map(|&v| f64::from(v)));
    }
    let error = far(&found, &want);
    assert!(error < 0.05, "{error:e}");
}
