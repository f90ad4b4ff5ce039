//! What a `config.json` means: one typed value, with every default as transformers has it.
use serde_json::{Value, json};

use crate::fields::{self, Fields};
use crate::{DType, Diagnostic, Rope};

/// Largest weight that a configuration may ask for. Real ones are a few GiB; beyond this, a number is wrong.
const MAX_WEIGHT_BYTES: usize = 64 << 30;
const MAX_LAYERS: usize = 4096;
/// Attention kernels are unrolled over the elements of a head.
const MAX_HEAD_DIM: usize = 1024;

/// What differs between the architectures: one row each. Defaults are those of transformers' configuration classes.
pub struct Family {
    pub architecture: &'static str,
    qkv_bias: Switch,
    o_bias: Switch,
    mlp_bias: Switch,
    qk_norm: bool,
    window: WindowRule,
    /// Without `num_key_value_heads`; `None`: as many as heads, which `null` means for all.
    kv_heads: Option<usize>,
    /// Without `head_dim`; `None`: the hidden size over the heads, which `null` means for all.
    head_dim: Option<usize>,
    positions: usize,
    bos: Option<u32>,
    eos: Option<u32>,
}

/// Whether a part exists.
enum Switch {
    Always,
    Never,
    /// As this field says; no by default.
    Field(&'static str),
}

/// Which layers attend through a sliding window.
enum WindowRule {
    None,
    /// All, through `sliding_window`, which is this much by default.
    All(usize),
    /// With `use_sliding_window`: those that `layer_types` lists, or else all from `max_window_layers` on.
    Listed,
}

pub const FAMILIES: [Family; 4] = [
    Family {
        architecture: "LlamaForCausalLM",
        qkv_bias: Switch::Field("attention_bias"),
        o_bias: Switch::Field("attention_bias"),
        mlp_bias: Switch::Field("mlp_bias"),
        qk_norm: false,
        window: WindowRule::None,
        kv_heads: None,
        head_dim: None,
        positions: 2048,
        bos: Some(1),
        eos: Some(2),
    },
    Family {
        architecture: "Qwen2ForCausalLM",
        qkv_bias: Switch::Always,
        o_bias: Switch::Never,
        mlp_bias: Switch::Never,
        qk_norm: false,
        window: WindowRule::Listed,
        kv_heads: Some(32),
        head_dim: None,
        positions: 32_768,
        bos: None,
        eos: None,
    },
    Family {
        architecture: "Qwen3ForCausalLM",
        qkv_bias: Switch::Field("attention_bias"),
        o_bias: Switch::Field("attention_bias"),
        mlp_bias: Switch::Never,
        qk_norm: true,
        window: WindowRule::Listed,
        kv_heads: Some(32),
        head_dim: Some(128),
        positions: 32_768,
        bos: None,
        eos: None,
    },
    Family {
        architecture: "MistralForCausalLM",
        qkv_bias: Switch::Never,
        o_bias: Switch::Never,
        mlp_bias: Switch::Never,
        qk_norm: false,
        window: WindowRule::All(4096),
        kv_heads: Some(8),
        head_dim: None,
        positions: 131_072,
        bos: Some(1),
        eos: Some(2),
    },
];

/// What the gate of an MLP goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    Gelu,
    GeluTanh,
    QuickGelu,
    Relu,
}

impl Activation {
    pub fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::QuickGelu => "quick_gelu",
            Activation::Relu => "relu",
        }
    }
}

const ACTIVATIONS: [(&str, Activation); 9] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("quick_gelu", Activation::QuickGelu),
    ("relu", Activation::Relu),
];

/// Types by their names in a configuration.
pub const DTYPES: [(&str, DType); 3] = [("bfloat16", DType::BF16), ("float16", DType::F16), ("float32", DType::F32)];

/// A dense decoder, completely described.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub architecture: &'static str,
    pub dtype: DType,
    /// The type of the KV cache's elements, if not that of everything else.
    pub cache: Option<DType>,
    pub vocab: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Longest sequence that the model was made for.
    pub positions: usize,
    /// Longest sequence that is wanted.
    pub context: usize,
    pub eps: f64,
    pub activation: Activation,
    pub tied: bool,
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub mlp_bias: bool,
    pub qk_norm: bool,
    /// Keys that each layer sees; 0 for all.
    pub windows: Vec<usize>,
    pub rope: Rope,
    pub stop: Vec<u32>,
    pub bos: Option<u32>,
}

impl Config {
    pub fn cache_dtype(&self) -> DType {
        self.cache.unwrap_or(self.dtype)
    }

    /// The first so many layers only, to measure: layers share their kernels.
    pub fn shorten(&mut self, layers: usize) {
        self.layers = self.layers.min(layers);
        self.windows.truncate(self.layers);
    }

    /// Reads the text of a `config.json` and of the `generation_config.json` beside it.
    pub fn parse(text: &str, generation: Option<&str>) -> Result<Config, Diagnostic> {
        let map = fields::parse("config.json", text)?;
        let f = Fields::new("config.json", &map);
        let family = family(&f)?;
        if f.get("quantization_config").is_some() {
            return Err(f.fault(
                "config::quantised",
                "quantization_config",
                "quantised checkpoints cannot be read yet",
            ));
        }
        let (heads, hidden) = (f.needed_size("num_attention_heads")?, f.needed_size("hidden_size")?);
        let head_dim = head_dim(&f, family, hidden, heads)?;
        let positions = f.size("max_position_embeddings")?.unwrap_or(family.positions);
        let layers = f.needed_size("num_hidden_layers")?;
        for (name, size, most) in [("num_hidden_layers", layers, MAX_LAYERS), ("head_dim", head_dim, MAX_HEAD_DIM)] {
            if size > most {
                return Err(f.fault("config::too-large", name, format!("must be at most {most}, not {size}")));
            }
        }
        let rope = Rope::read(&f, head_dim, positions)?;
        let on = |switch: &Switch| match switch {
            Switch::Always => Ok(true),
            Switch::Never => Ok(false),
            Switch::Field(name) => Ok(f.flag(name)?.unwrap_or(false)),
        };
        let config = Config {
            architecture: family.architecture,
            dtype: dtype(&f)?,
            cache: None,
            vocab: f.needed_size("vocab_size")?,
            hidden,
            intermediate: f.needed_size("intermediate_size")?,
            layers,
            heads,
            kv_heads: kv_heads(&f, family, heads)?,
            head_dim,
            positions,
            context: rope.reach(positions),
            eps: f.not_negative("rms_norm_eps")?.unwrap_or(1e-6),
            activation: activation(&f)?,
            tied: f.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: on(&family.qkv_bias)?,
            o_bias: on(&family.o_bias)?,
            mlp_bias: on(&family.mlp_bias)?,
            qk_norm: family.qk_norm,
            windows: windows(&f, &family.window, layers)?,
            rope,
            stop: stop(&f, family, generation)?,
            bos: if f.has("bos_token_id") { f.tokens("bos_token_id")?.first().copied() } else { family.bos },
        };
        config.check_weights(&f)?;
        Ok(config)
    }

    fn check_weights(&self, f: &Fields) -> Result<(), Diagnostic> {
        let width = self.heads.saturating_mul(self.head_dim);
        for (name, rows) in
            [("vocab_size", self.vocab), ("intermediate_size", self.intermediate), ("num_attention_heads", width)]
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
        json!({
            "architecture": self.architecture,
            "dtype": self.dtype.name(),
            "cache_dtype": self.cache_dtype().name(),
            "vocab": self.vocab,
            "hidden": self.hidden,
            "intermediate": self.intermediate,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "positions": self.positions,
            "context": self.context,
            "eps": self.eps,
            "activation": self.activation.name(),
            "tied": self.tied,
            "qkv_bias": self.qkv_bias,
            "o_bias": self.o_bias,
            "mlp_bias": self.mlp_bias,
            "qk_norm": self.qk_norm,
            "windows": self.windows,
            "rope": self.rope.echo(),
            "stop": self.stop,
            "bos": self.bos,
        })
    }
}

fn family(f: &Fields) -> Result<&'static Family, Diagnostic> {
    let known = || {
        let names: Vec<_> = FAMILIES.iter().map(|f| f.architecture).collect();
        format!("Known architectures: {}.", names.join(", "))
    };
    let name = "architectures";
    let names = f.texts(name)?.unwrap_or_default();
    let first = names.first().ok_or_else(|| f.missing(name).help(known()))?;
    FAMILIES.iter().find(|family| family.architecture == *first).ok_or_else(|| {
        f.fault("config::unknown-architecture", name, format!("unknown architecture {first:?}")).help(known())
    })
}

fn head_dim(f: &Fields, family: &Family, hidden: usize, heads: usize) -> Result<usize, Diagnostic> {
    let default = family.head_dim.filter(|_| !f.has("head_dim"));
    if let Some(given) = f.size("head_dim")?.or(default) {
        return Ok(given);
    }
    if !hidden.is_multiple_of(heads) {
        let message = format!("{hidden} is no multiple of num_attention_heads, {heads}, and there is no head_dim");
        return Err(f.fault("config::value", "hidden_size", message));
    }
    Ok(hidden / heads)
}

fn kv_heads(f: &Fields, family: &Family, heads: usize) -> Result<usize, Diagnostic> {
    let name = "num_key_value_heads";
    let default = family.kv_heads.filter(|_| !f.has(name));
    let kv_heads = f.size(name)?.or(default).unwrap_or(heads);
    if heads.is_multiple_of(kv_heads) {
        return Ok(kv_heads);
    }
    let message = format!("num_attention_heads, {heads}, is no multiple of {kv_heads}");
    Err(f.fault("config::value", name, message))
}

fn dtype(f: &Fields) -> Result<DType, Diagnostic> {
    let field = if f.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    one_of(f, field, "bfloat16", &DTYPES)
}

fn activation(f: &Fields) -> Result<Activation, Diagnostic> {
    let name = "hidden_act";
    if f.has(name) && f.get(name).is_none() {
        return Err(f.fault("config::value", name, "must be a text, not null"));
    }
    one_of(f, name, "silu", &ACTIVATIONS)
}

fn one_of<T: Copy>(f: &Fields, name: &str, default: &str, known: &[(&str, T)]) -> Result<T, Diagnostic> {
    let found = f.text(name)?.unwrap_or(default);
    known.iter().find(|(n, _)| *n == found).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(n, _)| *n).collect();
        f.fault("config::value", name, format!("unknown value {found:?}")).help(format!("Known: {}.", names.join(", ")))
    })
}

fn windows(f: &Fields, rule: &WindowRule, layers: usize) -> Result<Vec<usize>, Diagnostic> {
    let name = "sliding_window";
    let window = match rule {
        WindowRule::None => return Ok(vec![0; layers]),
        WindowRule::All(default) if !f.has(name) => *default,
        WindowRule::All(_) => f.size_or_none(name)?.unwrap_or(0),
        WindowRule::Listed if !f.flag("use_sliding_window")?.unwrap_or(false) => 0,
        WindowRule::Listed if !f.has(name) => 4096,
        WindowRule::Listed => f.size_or_none(name)?.unwrap_or(0),
    };
    if matches!(rule, WindowRule::All(_)) {
        return Ok(vec![window; layers]);
    }
    let Some(types) = f.texts("layer_types")? else {
        let first = f.size_or_none("max_window_layers")?.unwrap_or(if f.has("max_window_layers") { 0 } else { 28 });
        return Ok((0..layers).map(|i| if i >= first { window } else { 0 }).collect());
    };
    if types.len() != layers {
        let message = format!("lists {} layers, num_hidden_layers is {layers}", types.len());
        return Err(f.fault("config::value", "layer_types", message));
    }
    let of = |ty: &&str| match *ty {
        "full_attention" => Ok(0),
        "sliding_attention" if window == 0 => Err(f
            .fault("config::value", "layer_types", "lists sliding_attention, but the model has no window")
            .help("A window is a sliding_window, and use_sliding_window true.")),
        "sliding_attention" => Ok(window),
        other => Err(f
            .fault("config::value", "layer_types", format!("unknown layer type {other:?}"))
            .help("Known layer types: full_attention, sliding_attention.")),
    };
    types.iter().map(of).collect()
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
    Ok(stop)
}
