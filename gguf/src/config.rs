//! The `config.json` that a file's metadata make: what atomc reads, in the words of Hugging Face.
//!
//! A row of the table is one architecture of llama.cpp. Fields that all have are in `common`, the
//! others in a function of the row (`config/families.rs`).
mod families;
mod rope;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json, json};

use crate::coded::Coded;
use crate::error::{GgufError, KeyFault};
use crate::gguf::Gguf;
use crate::names::{self, Made, origins};
use crate::types::Type;
use crate::value::Value;

/// An architecture of llama.cpp.
pub(crate) struct Architecture {
    /// Its name in `general.architecture`, and what its keys begin with.
    pub name: &'static str,
    /// Adds the fields that it alone has, its class among them.
    fields: fn(&Keys, &mut Fields) -> Result<(), GgufError>,
    /// Whether rows of queries and keys are in pairs, for a rotary embedding of pairs.
    pub in_pairs: bool,
    /// What was added to weights of norms.
    pub norm_offset: f32,
    /// Names that its tensors alone have (`names.rs`).
    pub names: names::Own,
}

/// The fields of a configuration.
type Fields = Map<String, Json>;

const QWEN2: Architecture =
    Architecture { name: "qwen2", fields: families::qwen2, in_pairs: false, norm_offset: 0.0, names: names::PLAIN };

/// All architectures that are read.
const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "llama", fields: families::llama, in_pairs: true, names: names::LLAMA, ..QWEN2 },
    QWEN2,
    Architecture { name: "qwen3", fields: families::qwen3, ..QWEN2 },
    Architecture { name: "qwen2moe", fields: families::qwen2moe, names: names::QWEN2_MOE, ..QWEN2 },
    Architecture { name: "qwen3moe", fields: families::qwen3moe, ..QWEN2 },
    Architecture { name: "gemma3", fields: families::gemma3, norm_offset: 1.0, names: names::GEMMA3, ..QWEN2 },
    Architecture { name: "gpt-oss", fields: families::gpt_oss, names: names::GPT_OSS, ..QWEN2 },
    Architecture { name: "deepseek2", fields: families::deepseek2, names: names::DEEPSEEK2, ..QWEN2 },
    Architecture { name: "glm4moe", fields: families::glm4moe, names: names::GLM4_MOE, ..QWEN2 },
    Architecture {
        name: "qwen3next",
        fields: families::qwen3next,
        norm_offset: 1.0,
        names: names::QWEN3_NEXT,
        ..QWEN2
    },
    Architecture { name: "phi3", fields: families::phi3, names: names::PHI3, ..QWEN2 },
    Architecture { name: "granite", fields: families::granite, in_pairs: true, ..QWEN2 },
];

impl Architecture {
    /// The row of a file.
    pub fn of(gguf: &Gguf) -> Result<&'static Architecture, GgufError> {
        let key = "general.architecture";
        let found = gguf.metadata().text(key)?.ok_or_else(|| GgufError::NoKey { key: key.to_owned() })?;
        let known = || ARCHITECTURES.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        let row = ARCHITECTURES.iter().find(|row| row.name == found);
        row.ok_or_else(|| GgufError::Architecture { found: found.to_owned(), known: known() })
    }
}

/// The `config.json` of a file.
pub fn config(gguf: &Gguf) -> Result<Json, GgufError> {
    let architecture = Architecture::of(gguf)?;
    let keys = Keys { gguf, architecture: architecture.name };
    let mut fields = Fields::new();
    common(&keys, &mut fields)?;
    rope::add(&keys, &mut fields)?;
    (architecture.fields)(&keys, &mut fields)?;
    if let Some(quantised) = quantised(gguf)? {
        fields.insert("quantization_config".to_owned(), quantised);
    }
    Ok(Json::Object(fields))
}

/// How numbers stay codes, and whose they are: by the names of the file's types. Experts of one
/// tensor are one entry.
fn quantised(gguf: &Gguf) -> Result<Option<Json>, GgufError> {
    let mut modules: BTreeMap<Type, BTreeSet<String>> = BTreeMap::new();
    for origin in origins(gguf)? {
        let Some(kind) = origin.kind(gguf)? else { continue };
        let Some(module) = origin.name.strip_suffix(".weight") else { continue };
        modules.entry(kind).or_default().insert(match origin.made {
            Made::Slice { .. } => starred(module),
            _ => module.to_owned(),
        });
    }
    let entry = |(kind, modules): (Type, BTreeSet<String>)| {
        let Coded { codes, group, scales, least } = kind.coded()?;
        let mut entry = json!({ "codes": codes.name(), "group": group, "scales": scales.name(), "modules": modules });
        if let Some(least) = least {
            entry["least"] = json!(least.name());
        }
        Some((kind.name().to_owned(), entry))
    };
    let types: Fields = modules.into_iter().filter_map(entry).collect();
    Ok((!types.is_empty()).then(|| json!({ "quant_method": "gguf", "types": types })))
}

/// The name of an expert's module for all experts of its layer.
fn starred(module: &str) -> String {
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    let Some((before, part)) = module.rsplit_once('.') else { return module.to_owned() };
    match before.rsplit_once('.').filter(|(_, number)| is_number(number)) {
        Some((before, _)) => format!("{before}.*.{part}"),
        None => module.to_owned(),
    }
}

/// The keys of an architecture in a file.
pub(crate) struct Keys<'a> {
    pub gguf: &'a Gguf,
    pub architecture: &'a str,
}

impl Keys<'_> {
    /// A key with its beginning.
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A size, if there is one. Of a list with one for each layer all must be the same.
    fn size(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let full = self.full(key);
        let metadata = self.gguf.metadata();
        if !matches!(metadata.get(&full), Some(Value::List(_))) {
            return metadata.size(&full);
        }
        let sizes = metadata.sizes(&full)?.unwrap_or_default();
        match sizes.iter().find(|size| **size != sizes[0]) {
            Some(other) => Err(self.fault(key, "the same for all layers", format!("{} and {other}", sizes[0]))),
            None => Ok(sizes.first().copied()),
        }
    }

    /// A size that there must be.
    pub fn needed(&self, key: &str) -> Result<u64, GgufError> {
        self.size(key)?.ok_or_else(|| GgufError::NoKey { key: self.full(key) })
    }

    fn real(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.gguf.metadata().real(&self.full(key))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.gguf.metadata().flag(&self.full(key))
    }

    fn sizes(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        self.gguf.metadata().sizes(&self.full(key))
    }

    fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.gguf.metadata().text(&self.full(key))
    }

    /// What is wrong with a key's value.
    fn fault(&self, key: &str, want: impl ToString, found: impl ToString) -> GgufError {
        let fault = KeyFault::Value { want: want.to_string(), found: found.to_string() };
        GgufError::Key { key: self.full(key), fault }
    }

    /// Layers of the model, without those that draft.
    pub fn layers(&self) -> Result<u64, GgufError> {
        let (all, drafting) = (self.needed("block_count")?, self.size("nextn_predict_layers")?.unwrap_or(0));
        match all.checked_sub(drafting) {
            Some(layers) if layers > 0 => Ok(layers),
            _ => Err(self.fault("nextn_predict_layers", format!("less than the {all} blocks"), drafting)),
        }
    }

    pub fn heads(&self) -> Result<u64, GgufError> {
        match self.needed("attention.head_count")? {
            0 => Err(self.fault("attention.head_count", "above 0", 0)),
            heads => Ok(heads),
        }
    }

    pub fn kv_heads(&self) -> Result<u64, GgufError> {
        match self.size("attention.head_count_kv")? {
            None => self.heads(),
            Some(0) => Err(self.fault("attention.head_count_kv", "above 0", 0)),
            Some(heads) => Ok(heads),
        }
    }

    /// The size of a head of queries and keys.
    pub fn head_dim(&self) -> Result<u64, GgufError> {
        if let Some(size) = self.size("attention.key_length")? {
            return Ok(size);
        }
        Ok(self.needed("embedding_length")? / self.heads()?)
    }

    /// Whether the first layer has a tensor.
    fn has(&self, name: &str) -> bool {
        self.gguf.has(&format!("blk.0.{name}"))
    }
}

/// Fields that every architecture has.
fn common(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    let embedding = keys.gguf.tensor("token_embd.weight")?;
    let &[vocab, _] = embedding.shape() else {
        let (name, want) = ("token_embd.weight".to_owned(), "two dimensions".to_owned());
        return Err(GgufError::Shape { name, found: embedding.shape().to_vec(), want });
    };
    let mut add = |name: &str, value: Json| _ = fields.insert(name.to_owned(), value);
    add("dtype", json!(dtype(keys.gguf)?));
    add("vocab_size", json!(vocab));
    add("hidden_size", json!(keys.needed("embedding_length")?));
    add("num_hidden_layers", json!(keys.layers()?));
    add("num_attention_heads", json!(keys.heads()?));
    add("num_key_value_heads", json!(keys.kv_heads()?));
    add("max_position_embeddings", json!(keys.needed("context_length")?));
    let eps = "attention.layer_norm_rms_epsilon";
    add("rms_norm_eps", json!(keys.real(eps)?.ok_or_else(|| GgufError::NoKey { key: keys.full(eps) })?));
    add("hidden_act", json!("silu"));
    add("tie_word_embeddings", json!(!keys.gguf.has("output.weight")));
    if let Some(width) = keys.size("feed_forward_length")? {
        add("intermediate_size", json!(width));
    }
    let metadata = keys.gguf.metadata();
    add("bos_token_id", json!(metadata.size("tokenizer.ggml.bos_token_id")?));
    let mut ends = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ends.extend(metadata.size(&format!("tokenizer.ggml.{name}_token_id"))?.filter(|id| !ends.contains(id)));
    }
    add("eos_token_id", if ends.len() > 1 { json!(ends) } else { json!(ends.first()) });
    Ok(())
}

/// The type that a model computes with: that of its weights, where they are floats.
fn dtype(gguf: &Gguf) -> Result<&'static str, GgufError> {
    Ok(match gguf.metadata().size("general.file_type")? {
        Some(0) => "float32",
        Some(1) => "float16",
        _ => "bfloat16",
    })
}

#[cfg(test)]
mod tests;
