//! Makes the corpora: `cargo test -p atomc-fuzz --test seeds -- --ignored`. They are the smallest
//! sound input of each kind.
use std::path::Path;

use atomc::driver::{self, Options};
use atomc::frontend;
use atomc_emulator::isa::Isa;
use atomc_runtime::weights::Rank;
use atomc_runtime::weights::packed;
use atomc_runtime::{Checkpoint, Pool};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");

const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/src/images");
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gguf/tests/fixtures");

fn write(target: &str, name: &str, bytes: impl AsRef<[u8]>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(target);
    std::fs::create_dir_all(&dir).expect("a folder");
    std::fs::write(dir.join(name), bytes).expect("a file");
}

/// A model of one layer, with one kind of step.
fn small(text: &str, target: &str) -> driver::Compiled {
    let mut config = frontend::Config::parse(text, None).expect("a model");
    config.context = 32;
    let mut options = Options { targets: vec![target.into()], ..Options::default() };
    (options.buckets.decode, options.buckets.tokens, options.buckets.rows) = (vec![1], 8, 2);
    driver::compile(&config, &options, &mut |_, _, _| ()).expect("an artifact")
}

fn tiny() -> String {
    let text = std::fs::read_to_string(format!("{GOLDEN}/llama-gqa-tied/config.json")).expect("a golden model");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for (field, size) in [
        ("hidden_size", 16),
        ("intermediate_size", 16),
        ("num_hidden_layers", 1),
        ("vocab_size", 16),
        ("num_attention_heads", 1),
        ("num_key_value_heads", 1),
        ("head_dim", 16),
        ("max_position_embeddings", 32),
    ] {
        config[field] = size.into();
    }
    config.to_string()
}

/// A page of the toy's cache, but for its name and its checksum.
fn pieces() {
    let [group, tokens] = [0_u32, 4].map(u32::to_le_bytes);
    let header = [&b"atomcpc1"[..], &[7; 32], &[1; 32], &group, &tokens, &16_u64.to_le_bytes(), &[0; 32]];
    write("pieces", "page", [&header.concat()[..], &[2; 16], &[3; 16]].concat());
}

/// Bodies of completions (0) and chats (1), and whole connections (3).
fn requests() {
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}"#;
    let user = r#""messages":[{"role":"user","content":"x"}],"max_tokens":4"#;
    let tools = format!(r#""tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]"#);
    let form = format!(r#"{{"type":"json_schema","json_schema":{{"name":"s","schema":{schema}}}}}"#);
    let bodies = [
        (0, r#"{"prompt":"Q: Ana","max_tokens":3,"temperature":0.5,"top_k":5,"min_p":0.1,"seed":1}"#.to_owned()),
        (0, r#"{"prompt":[[1,2],[3]],"max_tokens":2,"logprobs":2,"echo":true,"stop":["a","\n"]}"#.to_owned()),
        (
            0,
            r#"{"prompt":"x","n":2,"stream":true,"stream_options":{"include_usage":true},"logit_bias":{"3":5}}"#.into(),
        ),
        (1, format!(r#"{{{user},{tools},"tool_choice":"required","parallel_tool_calls":false}}"#)),
        (1, format!(r#"{{{user},"response_format":{form},"frequency_penalty":0.5,"repetition_penalty":1.1}}"#)),
        (1, format!(r#"{{{user},"structured_outputs":{{"regex":"<think>[ab]{{1,3}}</think>c"}},"stream":true}}"#)),
        (
            1,
            r#"{"messages":[{"role":"assistant","content":[{"type":"text","text":"y"}],"tool_calls":
            [{"function":{"name":"f","arguments":"{}"}}]}],"max_completion_tokens":2,"logprobs":true,"top_logprobs":2}"#
                .to_owned(),
        ),
        (3, "GET /v1/models HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\norigin: http://a\r\n\r\n".to_owned()),
        (
            3,
            "POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n\
             17\r\n{\"prompt\":[1],\"stream\":1\r\n0\r\n\r\n"
                .to_owned(),
        ),
    ];
    for (index, (kind, body)) in bodies.into_iter().enumerate() {
        write("requests", &format!("{index}.bin"), [&[kind], body.as_bytes()].concat());
    }
}

#[test]
#[ignore = "writes into the tree"]
fn make() {
    let text = tiny();
    for target in ["host", "gfx942"] {
        let made = small(&text, target);
        let mut manifest = made.manifest.clone();
        manifest.targets[0].variants.truncate(1);
        manifest.targets[0].variants[0].section = 1;
        let json = serde_json::to_vec(&manifest).expect("JSON");
        write("manifest", &format!("{target}.json"), &json);
        let artifact = atomc_artifact::encode(&manifest, &[vec![0; 64]]);
        write("file", &format!("{target}.bin"), artifact.expect("a sound artifact"));
        for kernel in &manifest.targets[0].kernels {
            write("bodies", &format!("{}.txt", kernel.symbol), &kernel.body);
        }
        if target == "gfx942" {
            write("code_object", "gfx942.hsaco", &made.code[0]);
        }
    }
    for case in ["llama3", "llama-yarn-mscale", "llama-dynamic", "qwen2-sliding", "qwen3-tied", "mistral"] {
        let text = std::fs::read_to_string(format!("{GOLDEN}/{case}/config.json")).expect("a golden model");
        let graph = frontend::graph(&frontend::Config::parse(&text, None).expect("a model")).expect("a graph");
        write("ir_text", &format!("{case}.txt"), graph.print());
        write("config", &format!("{case}.json"), text + "\0{\"eos_token_id\": [2, 3]}");
    }
    instructions();
    checkpoints(&text);
    for name in ["larger.png", "alpha.png", "grey.png", "palette.png", "lossless.webp", "photo.jpg"] {
        write("image", name, std::fs::read(format!("{IMAGES}/{name}")).expect("a file"));
    }
    for name in ["qwen2.gguf", "phi3.gguf", "gpt-oss.gguf", "spm.gguf"] {
        write("gguf", name, std::fs::read(format!("{FIXTURES}/{name}")).expect("a file"));
    }
    requests();
    pieces();
    for seed in 0..8u64 {
        let bytes: Vec<u8> = (0..64u64).map(|i| (((i + 1) * (seed * 37 + 11) * 2_654_435_761) >> 13) as u8).collect();
        write("weights", &format!("{seed}.bin"), bytes);
    }
}

/// Words for each chip, by chance: every other one is an instruction.
fn instructions() {
    let mut state = 88_172_645_463_325_252u64;
    for chip in 0..Isa::names().count() {
        let bytes: Vec<u8> = (0..1280)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        write("instructions", &format!("{chip}.bin"), [&[chip as u8][..], &bytes].concat());
    }
}

fn checkpoints(text: &str) {
    let index = br#"{"metadata": {"total_size": 4}, "weight_map": {"a": "one.safetensors"}}"#;
    write("checkpoint", "index", [&[0u8][..], index].concat());
    let made = small(text, "host");
    let dir = tempfile::tempdir().expect("a folder");
    let tensors = tensors(&made.manifest.targets[0].weights);
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape.clone(), bytes);
            (name.clone(), view.expect("a tensor"))
        })
        .collect();
    let bytes = safetensors::serialize(views, None).expect("a checkpoint");
    write("checkpoint", "file", [&[1u8][..], &bytes].concat());
    std::fs::write(dir.path().join("model.safetensors"), &bytes).expect("a file");
    let checkpoint = Checkpoint::open(dir.path()).expect("a checkpoint");
    let out = dir.path().join("weights.host.safetensors");
    let mut pool = Pool::new(1).expect("one thread");
    packed::write(&out, (&made.manifest.targets[0], &made.manifest.tensors), Rank::ONLY, &checkpoint, &mut pool)
        .expect("packed weights");
    write("packed", "host.safetensors", std::fs::read(out).expect("a file"));
}

/// The tensors that weights are made of, as zeros.
fn tensors(weights: &[atomc_runtime::manifest::Weight]) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let all: std::collections::BTreeMap<_, _> = weights.iter().flat_map(|weight| weight.expr.tensors()).collect();
    all.into_iter()
        .map(|(name, shape)| {
            let bytes = vec![0; shape.iter().product::<usize>() * 2];
            (name.into_owned(), shape.to_vec(), bytes)
        })
        .collect()
}
