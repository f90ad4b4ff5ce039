//! What a `config.json` means: one typed value, with every default as transformers has it.
use serde_json::{Map, Value, json};

use crate::attention::{self, Attention};
use crate::family::{self, Family};
use crate::fields::{self, Facts, Fields};
use crate::mlp::{self, Gated};
use crate::scales::{self, Scales};
use crate::{DType, Diagnostic, Rope};

/// Largest weight that a configuration may ask for. Real ones are a few GiB; beyond this, a number is wrong.
const MAX_WEIGHT_BYTES: usize = 64 << 30;
const MAX_LAYERS: usize = 4096;

/// Types by their names in a configuration.
pub const DTYPES: [(&str, DType); 3] = [("bfloat16", DType::BF16), ("float16", DType::F16), ("float32", DType::F32)];

/// A decoder, completely described: embeddings, layers, a norm and a head.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub architecture: &'static str,
    pub dtype: DType,
    /// The type of the KV cache's elements, if not that of everything else.
    pub cache: Option<DType>,
    pub vocab: usize,
    pub hidden: usize,
    pub layers: Vec<Layer>,
    /// Rotary embeddings that layers name.
    pub ropes: Vec<Rope>,
    /// Longest sequence that the model was made for.
    pub positions: usize,
    /// Longest sequence that is wanted.
    pub context: usize,
    pub scales: Scales,
    /// What weights of norms are kept as differences from.
    pub norm_offset: f64,
    pub eps: f64,
    pub tied: bool,
    pub stop: Vec<u32>,
    pub bos: Option<u32>,
    /// What the fields were found to mean.
    pub facts: Facts,
}

/// Each half adds to what goes through.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub mixer: Mixer,
    pub feed_forward: FeedForward,
    pub norms: Norms,
}

/// The norms before and behind each half of a layer, by their names in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    pub mixer: (Option<&'static str>, Option<&'static str>),
    pub feed_forward: (Option<&'static str>, Option<&'static str>),
}

/// How a layer lets tokens see each other.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    Attention(Attention),
}

/// What a layer does with each token alone.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward {
    Gated(Gated),
}

impl Layer {
    /// Its attention, if it attends.
    pub fn attention(&self) -> Option<&Attention> {
        let Mixer::Attention(attention) = &self.mixer;
        Some(attention)
    }
}

impl Config {
    pub fn cache_dtype(&self) -> DType {
        self.cache.unwrap_or(self.dtype)
    }

    /// Longest sequence that the rotary embeddings make something of.
    pub fn reach(&self) -> usize {
        self.ropes.iter().map(|rope| rope.reach(self.positions)).min().unwrap_or(self.positions)
    }

    /// The first so many layers only, to measure: layers share their kernels.
    pub fn shorten(&mut self, layers: usize) {
        self.layers.truncate(layers);
        self.facts.set("num_hidden_layers", self.layers.len());
    }

    /// Reads the text of a `config.json` and of the `generation_config.json` beside it.
    pub fn parse(text: &str, generation: Option<&str>) -> Result<Config, Diagnostic> {
        let map = fields::parse("config.json", text)?;
        Config::read(&Fields::new("config.json", &map), generation)
    }

    pub(crate) fn read(f: &Fields, generation: Option<&str>) -> Result<Config, Diagnostic> {
        let family = family::of(f)?;
        if f.get("quantization_config").is_some() {
            let message = "quantised checkpoints cannot be read yet";
            return Err(f.fault("config::quantised", "quantization_config", message));
        }
        for name in family.refused {
            if f.get(name).is_some_and(|value| *value != json!(false)) {
                return Err(f.fault("config::unsupported", name, "is not supported: it must be null or false"));
            }
        }
        let count = f.needed("num_hidden_layers", Fields::size)?;
        let count = f.at_most("num_hidden_layers", count, MAX_LAYERS)?;
        let (vocab, hidden) = (f.needed("vocab_size", Fields::size)?, f.needed("hidden_size", Fields::size)?);
        let positions = f.or("max_position_embeddings", Fields::size, family.positions)?;
        let (attention, ropes) = attention::read(f, &family.attention, (hidden, count, positions))?;
        let mlp = mlp::read(f, &family.mlp)?;
        let layer = |attention| Layer {
            mixer: Mixer::Attention(attention),
            feed_forward: FeedForward::Gated(mlp.clone()),
            norms: family.norms,
        };
        let config = Config {
            architecture: family.architecture,
            dtype: dtype(f)?,
            cache: None,
            vocab,
            hidden,
            layers: attention.into_iter().map(layer).collect(),
            positions,
            context: ropes.iter().map(|rope| rope.usual(positions)).min().unwrap_or(positions),
            ropes,
            norm_offset: family.norm_offset,
            scales: scales::read(f, family.scales, hidden)?,
            eps: f.or("rms_norm_eps", Fields::not_negative, family.eps)?,
            tied: f.or("tie_word_embeddings", Fields::flag, family.tied)?,
            stop: stop(f, family, generation)?,
            bos: bos(f, family)?,
            facts: f.facts(),
        };
        config.check_weights(f)?;
        Ok(config)
    }

    fn check_weights(&self, f: &Fields) -> Result<(), Diagnostic> {
        let Layer { mixer: Mixer::Attention(attention), feed_forward: FeedForward::Gated(mlp), .. } = &self.layers[0];
        let width = attention.heads.saturating_mul(attention.head_dim);
        for (name, rows) in
            [("vocab_size", self.vocab), ("intermediate_size", mlp.intermediate), ("num_attention_heads", width)]
        {
            let bytes = rows.saturating_mul(self.hidden).saturating_mul(self.dtype.size());
            if bytes > MAX_WEIGHT_BYTES {
                let message = format!("makes a weight of {rows} by {} elements, {} GiB", self.hidden, bytes >> 30);
                let help = format!("A weight may have {} GiB at most.", MAX_WEIGHT_BYTES >> 30);
                return Err(f.fault("config::too-large", name, message).help(help));
            }
        }
        Ok(())
    }

    /// Every fact, for the artifact's record of what shaped it; [`differences`](crate::differences) compares them.
    pub fn echo(&self) -> Value {
        let mut echo: Map<_, _> = self.facts.iter().map(|(name, fact)| (name.to_owned(), fact.clone())).collect();
        // What a user may choose in the place of what the fields say.
        echo.insert("dtype".into(), json!(self.dtype.name()));
        echo.insert("cache_dtype".into(), json!(self.cache_dtype().name()));
        echo.insert("context".into(), json!(self.context));
        Value::Object(echo)
    }
}

fn dtype(f: &Fields) -> Result<DType, Diagnostic> {
    let field = if f.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    f.one_of(field, "bfloat16", &DTYPES)
}

/// Tokens that end an answer, from both files.
fn stop(f: &Fields, family: &Family, generation: Option<&str>) -> Result<Vec<u32>, Diagnostic> {
    let name = "eos_token_id";
    let mut stop = if f.has(name) { f.tokens(name)? } else { family.eos.into_iter().collect() };
    if let Some(text) = generation {
        let map = fields::parse("generation_config.json", text)?;
        stop.extend(Fields::new("generation_config.json", &map).tokens(name)?);
    }
    stop.sort_unstable();
    stop.dedup();
    f.note(name, &stop[..]);
    Ok(stop)
}

/// The token that begins a prompt.
fn bos(f: &Fields, family: &Family) -> Result<Option<u32>, Diagnostic> {
    let name = "bos_token_id";
    let bos = if f.has(name) { f.tokens(name)?.first().copied() } else { family.bos };
    f.note(name, bos);
    Ok(bos)
}
