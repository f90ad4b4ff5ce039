//! Numbers that stay codes: what products make of a file's blocks is what they make of its floats.
use super::*;
use atomc_gguf::Type;
use half::f16;

/// Places of the scales of 16 bits in a block, and their size.
type Scales = &'static [(usize, f32)];

/// The scales of each type, which make weights of some hundredths. Types with minima have no
/// negative ones.
const SCALES: [(Type, Scales, bool); 15] = [
    (Type::Q4_0, &[(0, 0.006)], true),
    (Type::Q4_1, &[(0, 0.006), (2, -0.05)], false),
    (Type::Q5_0, &[(0, 0.003)], true),
    (Type::Q5_1, &[(0, 0.003), (2, -0.05)], false),
    (Type::Q8_0, &[(0, 0.0005)], false),
    (Type::Q2_K, &[(80, 0.001), (82, 0.003)], false),
    (Type::Q3_K, &[(108, 0.0005)], true),
    (Type::Q4_K, &[(0, 0.000_06), (2, 0.0006)], false),
    (Type::Q5_K, &[(0, 0.000_03), (2, 0.0006)], false),
    (Type::Q6_K, &[(208, 0.000_02)], true),
    (Type::IQ4_NL, &[(0, 0.0005)], true),
    (Type::IQ4_XS, &[(0, 0.000_02)], true),
    (Type::TQ1_0, &[(52, 0.05)], true),
    (Type::TQ2_0, &[(64, 0.05)], true),
    (Type::MXFP4, &[], false),
];

/// Numbers of 32 bits: of a linear congruential generator.
fn random(state: &mut u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *state >> 8
}

/// Blocks of any codes.
fn blocks(kind: Type, elements: usize, state: &mut u32) -> Vec<u8> {
    let (_, scales, signs) = SCALES.into_iter().find(|(own, ..)| *own == kind).expect("a type of codes");
    let block = |_| {
        let mut block: Vec<u8> = (0..kind.block_bytes()).map(|_| random(state) as u8).collect();
        for &(at, size) in scales {
            let size = size * (0.5 + random(state) as f32 / (1 << 24) as f32);
            let size = if signs && random(state) & 64 == 0 { -size } else { size };
            block[at..at + 2].copy_from_slice(&f16::from_f32(size).to_le_bytes());
        }
        if kind == Type::MXFP4 {
            block[0] = 118 + (random(state) & 3) as u8;
        }
        block
    };
    (0..elements / kind.block()).flat_map(block).collect()
}

/// A model of one layer with products of a type, and a head that is the embedding, of a type too.
fn written(kind: Type) -> Written {
    let (hidden, width, heads, kv, head, vocab) = (256usize, 512, 4, 2, 64, 96);
    let mut written = Written::default();
    written.text("general.architecture", "llama");
    written.config(
        "llama",
        &json!({
            "num_hidden_layers": 1, "max_position_embeddings": 128, "hidden_size": hidden, "intermediate_size": width,
            "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head, "rms_norm_eps": 1e-6,
            "rope_parameters": { "rope_theta": 10000.0 },
        }),
    );
    let mut state = kind.id() + 1;
    for (name, shape) in [
        ("token_embd", [vocab, hidden]),
        ("blk.0.attn_q", [heads * head, hidden]),
        ("blk.0.attn_k", [kv * head, hidden]),
        ("blk.0.attn_v", [kv * head, hidden]),
        ("blk.0.attn_output", [hidden, heads * head]),
        ("blk.0.ffn_gate", [width, hidden]),
        ("blk.0.ffn_up", [width, hidden]),
        ("blk.0.ffn_down", [hidden, width]),
    ] {
        let bytes = blocks(kind, shape[0] * shape[1], &mut state);
        written.blocks(&format!("{name}.weight"), &shape, kind.id(), bytes);
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        written.tensor(&format!("{name}.weight"), &[hidden], Kind::F32, &vec![1.0; hidden]);
    }
    written
}

fn engine(bench: &Bench, config: &atomc_config::Config) -> Engine {
    let compiled = driver::compile(config, &buckets(), &mut |_, _, _| ()).expect("it compiles");
    compiled.write(&bench.path("m.atomc")).expect("an artifact");
    let artifact = Artifact::open(bench.path("m.atomc")).expect("an artifact");
    Engine::new(artifact, &EngineOptions { cache_tokens: 64, threads: 1, ..EngineOptions::default() })
        .expect("it opens")
}

#[test]
fn every_type_of_codes_is_multiplied() {
    assert!(Type::ALL.iter().all(|kind| kind.coded().is_none() || SCALES.iter().any(|(own, ..)| own == kind)));
    let bench = Bench::empty();
    for (kind, ..) in SCALES {
        bench.write("m.gguf", written(kind).bytes());
        let file = Model::at(&bench.path("m.gguf")).expect("a file");
        // Of f32 no element is rounded; of bf16 all are, in either way.
        for (dtype, budget) in [(DType::F32, 1e-5), (DType::BF16, 0.03)] {
            let mut config = file.config().expect("a configuration");
            config.dtype = dtype;
            assert!(config.scheme("model.layers.0.mlp.up_proj").is_some(), "{}", kind.name());
            let found = logits(&mut engine(&bench, &config), &*file.weights().expect("weights"));
            config.quantised = None;
            let want = logits(&mut engine(&bench, &config), &*file.weights().expect("weights"));
            let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect::<Vec<_>>();
            let (found, want) = (floats(found), floats(want));
            let size = want.iter().fold(0f32, |most, v| most.max(v.abs()));
            let off = found.iter().zip(&want).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(size > 1e-3 && off <= size * budget, "{} {}: {off} of {size}", kind.name(), dtype.name());
        }
    }
}

#[test]
fn a_file_of_other_types_is_refused() {
    let bench = Bench::empty();
    let at = |kind: Type| {
        bench.write(kind.name(), written(kind).bytes());
        Model::at(&bench.path(kind.name())).expect("a file")
    };
    let (own, other) = (at(Type::Q4_K), at(Type::Q6_K));
    let mut engine = engine(&bench, &own.config().expect("a configuration"));
    let fault = engine.load_weights(&*other.weights().expect("weights"), &|_, _| ()).expect_err("another type");
    let found = fault.to_string();
    let says = "is of type Q6_K, of which no weight of type Q4_K can be made";
    assert!(found.starts_with("tensor `model.") && found.ends_with(says), "{found}");
    engine.load_weights(&*own.weights().expect("weights"), &|_, _| ()).expect("its own type");
}
