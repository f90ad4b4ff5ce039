//! A model's folder written as a GGUF file, as llama.cpp's converter does it.
use std::path::Path;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// Types of numbers in a file: their names in `general.file_type`, and in the list of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    BF16,
    Q8,
}

/// Numbers in a block of `Q8_0`.
const BLOCK: usize = 32;
/// Where tensors may begin.
const ALIGNMENT: usize = 32;

/// Names of modules of Hugging Face and in a file.
const NAMES: [(&str, &str); 14] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

impl Kind {
    fn codes(self) -> (u32, u32) {
        match self {
            Kind::F32 => (0, 0),
            Kind::F16 => (1, 1),
            Kind::BF16 => (32, 30),
            Kind::Q8 => (7, 8),
        }
    }

    fn encode(self, floats: &[f32]) -> Vec<u8> {
        match self {
            Kind::F32 => floats.iter().flat_map(|float| float.to_le_bytes()).collect(),
            Kind::F16 => floats.iter().flat_map(|float| f16::from_f32(*float).to_le_bytes()).collect(),
            Kind::BF16 => floats.iter().flat_map(|float| bf16::from_f32(*float).to_le_bytes()).collect(),
            Kind::Q8 => floats.chunks_exact(BLOCK).flat_map(block).collect(),
        }
    }
}

/// A block of `Q8_0`: its scale, then its codes.
fn block(floats: &[f32]) -> Vec<u8> {
    let scale = floats.iter().fold(0.0f32, |most, float| most.max(float.abs())) / 127.0;
    let code = |float: &f32| if scale == 0.0 { 0 } else { (float / scale).round() as i8 as u8 };
    f16::from_f32(scale).to_le_bytes().into_iter().chain(floats.iter().map(code)).collect()
}

/// A file as it is put together.
#[derive(Default)]
pub struct Written {
    keys: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Written {
    /// The model of a folder, of an architecture that a file names.
    pub fn of_folder(folder: &Path, architecture: &str, kind: Kind) -> Written {
        let mut written = Written::default();
        written.text("general.architecture", architecture);
        written.size("general.file_type", kind.codes().0);
        let read = |name: &str| std::fs::read(folder.join(name)).expect("a file of a model");
        let config: Value = serde_json::from_slice(&read("config.json")).expect("JSON");
        written.config(architecture, &config);
        if folder.join("tokenizer.json").exists() {
            written.tokenizer(&serde_json::from_slice(&read("tokenizer.json")).expect("JSON"));
        }
        let bytes = read("model.safetensors");
        let tensors = SafeTensors::deserialize(&bytes).expect("a checkpoint");
        for (name, tensor) in tensors.tensors() {
            let heads = match name.rsplit('.').nth(1) {
                Some("q_proj") => &config["num_attention_heads"],
                Some("k_proj") => &config["num_key_value_heads"],
                _ => &Value::Null,
            };
            let mut floats = floats(tensor.dtype(), tensor.data());
            if let Some(heads) = heads.as_u64().filter(|_| architecture == "llama") {
                floats = in_pairs(&floats, tensor.shape()[0], heads as usize);
            }
            let kind = if tensor.shape().len() == 1 { Kind::F32 } else { kind };
            written.tensor(&renamed(&name), tensor.shape(), kind, &floats);
        }
        written
    }

    fn key(&mut self, name: &str, kind: u32, value: &[u8]) {
        self.keys.push([&text(name)[..], &kind.to_le_bytes(), value].concat());
    }

    pub fn text(&mut self, name: &str, value: &str) {
        self.key(name, 8, &text(value));
    }

    pub fn size(&mut self, name: &str, value: u32) {
        self.key(name, 4, &value.to_le_bytes());
    }

    fn list(&mut self, name: &str, kind: u32, items: &[Vec<u8>]) {
        let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
        self.key(name, 9, &[head, items.concat()].concat());
    }

    pub fn config(&mut self, architecture: &str, config: &Value) {
        let size = |field: &str| config[field].as_u64().expect("a size") as u32;
        let heads = size("num_attention_heads");
        let head = config["head_dim"].as_u64().map_or(size("hidden_size") / heads, |size| size as u32);
        for (key, size) in [
            ("block_count", size("num_hidden_layers")),
            ("context_length", size("max_position_embeddings")),
            ("embedding_length", size("hidden_size")),
            ("feed_forward_length", size("intermediate_size")),
            ("attention.head_count", heads),
            ("attention.head_count_kv", size("num_key_value_heads")),
            ("attention.key_length", head),
            ("attention.value_length", head),
            ("rope.dimension_count", head),
        ] {
            self.size(&format!("{architecture}.{key}"), size);
        }
        let base = &config["rope_parameters"]["rope_theta"];
        for (key, real) in [("rope.freq_base", base), ("attention.layer_norm_rms_epsilon", &config["rms_norm_eps"])] {
            let real = real.as_f64().expect("a number") as f32;
            self.key(&format!("{architecture}.{key}"), 6, &real.to_le_bytes());
        }
        if let Some(end) = config["eos_token_id"].as_u64() {
            self.size("tokenizer.ggml.eos_token_id", end as u32);
        }
    }

    /// A tokenizer that cuts digits apart, as the examples' models have it.
    fn tokenizer(&mut self, json: &Value) {
        let vocabulary = json["model"]["vocab"].as_object().expect("tokens");
        let mut tokens = vec![Vec::new(); vocabulary.len()];
        for (token, id) in vocabulary {
            tokens[id.as_u64().expect("a number") as usize] = text(token);
        }
        let mut types = vec![1i32; tokens.len()];
        for added in json["added_tokens"].as_array().expect("tokens") {
            types[added["id"].as_u64().expect("a number") as usize] = 3;
        }
        let merge = |pair: &Value| {
            let token = |at: usize| pair[at].as_str().expect("a token");
            text(&format!("{} {}", token(0), token(1)))
        };
        let merges: Vec<Vec<u8>> = json["model"]["merges"].as_array().expect("merges").iter().map(merge).collect();
        self.text("tokenizer.ggml.model", "gpt2");
        self.text("tokenizer.ggml.pre", "smollm");
        self.list("tokenizer.ggml.tokens", 8, &tokens);
        self.list(
            "tokenizer.ggml.token_type",
            5,
            &types.iter().map(|kind| kind.to_le_bytes().to_vec()).collect::<Vec<_>>(),
        );
        self.list("tokenizer.ggml.merges", 8, &merges);
    }

    pub fn tensor(&mut self, name: &str, shape: &[usize], kind: Kind, floats: &[f32]) {
        self.tensors.push((name.to_owned(), shape.to_vec(), kind.codes().1, kind.encode(floats)));
    }

    /// A tensor of blocks that are made elsewhere.
    pub fn blocks(&mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) {
        self.tensors.push((name.to_owned(), shape.to_vec(), kind, bytes));
    }

    /// Leaves a tensor out.
    pub fn without(mut self, name: &str) -> Written {
        self.tensors.retain(|tensor| tensor.0 != name);
        self
    }

    /// Says another type of a tensor.
    pub fn with_type(mut self, name: &str, kind: u32) -> Written {
        self.tensors.iter_mut().filter(|tensor| tensor.0 == name).for_each(|tensor| tensor.2 = kind);
        self
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        self.keys.iter().for_each(|key| bytes.extend(key));
        let mut offset = 0;
        for (name, shape, kind, data) in &self.tensors {
            bytes.extend(text(name));
            bytes.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend((offset as u64).to_le_bytes());
            offset += data.len().next_multiple_of(ALIGNMENT);
        }
        for (_, _, _, data) in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            bytes.extend(data);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }
}

/// The name of a tensor in a file.
fn renamed(name: &str) -> String {
    let (module, end) = name.rsplit_once('.').expect("a module and what it is");
    let layered = module.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let own = layered.map_or(module, |(_, own)| own);
    let (_, other) = NAMES.iter().find(|(known, _)| *known == own).unwrap_or_else(|| panic!("{name} has no name"));
    match layered {
        Some((layer, _)) => format!("blk.{layer}.{other}.{end}"),
        None => format!("{other}.{end}"),
    }
}

/// The numbers of a tensor of a checkpoint.
fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        other => panic!("{other:?} is no type of these models"),
    }
}

/// Rows of heads in pairs, for a rotary embedding of pairs.
fn in_pairs(floats: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (columns, half) = (floats.len() / rows, rows / heads / 2);
    let row = |row: usize| &floats[row * columns..][..columns];
    let pairs =
        (0..heads).flat_map(|head| (0..half).flat_map(move |at| [0, half].map(|part| 2 * half * head + part + at)));
    pairs.flat_map(row).copied().collect()
}
