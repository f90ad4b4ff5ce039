//! The table of architectures: a row has the layers of a family, and the fields of its
//! configurations that describe them.
use crate::attention::{self, GatedBy, QkNorm, RopeRule, ScaleRule, Sinks, Stretch, WindowRule};
use crate::delta::{self, ByChannel, Product, StoredDelta, StoredLog};
use crate::draft::{self, Drafting};
use crate::experts::{
    self, Apart, Correction, GroupRule, LayerRule, NormRule, Score, SharedWidth, ShortRow, StoredExperts, WholeExperts,
};
use crate::fields::{Fields, Names};
use crate::growth;
use crate::kind::Norms;
use crate::latent;
use crate::others::{self, Other};
use crate::quantised;
use crate::scales;
use crate::ssm;
use crate::vision;
use crate::{Diagnostic, mlp};

/// What differs between the architectures. Defaults are those of transformers' configuration
/// classes.
#[derive(Clone, Copy)]
pub struct Family {
    pub architecture: &'static str,
    /// The field with the configuration of the language part, where a checkpoint has other parts.
    pub text_config: Option<&'static str>,
    /// Other names of fields.
    pub(crate) fields: Names,
    /// The types that the language part may have, where makers have parts of several types; the
    /// first is the usual one. Layers of a type are those of a row of its own, if it has one.
    pub(crate) text_types: &'static [(&'static str, Option<&'static Family>)],
    /// What names of all tensors but the head's begin with.
    pub(crate) path: &'static str,
    /// The parts of checkpoints other than the language model.
    pub(crate) others: &'static [Other],
    /// Beginnings of names that some writers use, and those that are in their place here.
    pub(crate) spellings: &'static [(&'static str, &'static str)],
    pub(crate) attention: attention::Traits,
    /// For a family of layers that attend over latent rows instead.
    pub(crate) latent: Option<latent::Traits>,
    /// Whether layers attend over a window and rows of blocks instead.
    pub(crate) pooled: bool,
    /// Whether several streams go through the layers in place of one row.
    pub(crate) streams: bool,
    /// The field that says after how many layers rows are kept, of which halves see mixtures.
    pub(crate) kept_every: Option<&'static str>,
    pub(crate) mlp: mlp::Traits,
    /// For a family with a recurrent state in all of its layers, or some.
    pub(crate) delta: Option<delta::Traits>,
    /// Whether layers may have short convolutions.
    pub(crate) conv: bool,
    /// For a family with state spaces in all of its layers, or some.
    pub(crate) ssm: Option<ssm::Traits>,
    /// Whether each layer is one half: a mixer, or what does with each token alone.
    pub(crate) only: bool,
    /// For a family with experts in all of its layers, or some.
    pub(crate) experts: Option<experts::Traits>,
    /// What releases of codes of `fp8` have.
    pub(crate) fp8: quantised::Release,
    /// For a family that has a drafting layer in its checkpoints.
    pub(crate) mtp: Option<&'static Drafting>,
    /// For a family with a tower for images that can be compiled.
    pub(crate) vision: Option<vision::Traits>,
    pub(crate) norms: [Norms; 2],
    /// Whether what does with each token alone sees what the half before it sees.
    pub(crate) parallel: bool,
    /// What weights of norms are kept as differences from.
    pub(crate) norm_offset: f64,
    /// Whether norms subtract the mean of a row.
    pub(crate) centred: bool,
    pub(crate) scales: scales::Traits,
    /// The tensor of a layer that has the factor of what leaves it.
    pub(crate) scalar: Option<&'static str>,
    /// Whether layers may have embeddings of their own.
    pub(crate) own_rows: bool,
    pub(crate) growth: growth::Rule,
    /// For a family with layers that attend within chunks: `attention_chunk_size` by default.
    pub(crate) chunked: Option<usize>,
    /// Fields that must be null or false.
    pub(crate) refused: &'static [&'static str],
    /// Fields that must be null or one of these texts.
    pub(crate) named: &'static [(&'static str, &'static [&'static str])],
    /// Fields that must be null or true.
    pub(crate) required: &'static [&'static str],
    /// Without `vocab_size`, which there must be otherwise.
    pub(crate) vocab: Option<usize>,
    pub(crate) positions: usize,
    pub(crate) eps: f64,
    pub(crate) eps_field: &'static str,
    /// Whether the head is the embedding.
    pub(crate) tied: bool,
    /// A field that says so in place of the usual one.
    pub(crate) tied_also: Option<&'static str>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
}

/// Whether a part exists.
#[derive(Clone, Copy)]
pub(crate) enum Switch {
    Always,
    Never,
    /// As this field says; no by default.
    Field(&'static str),
    /// As this field says; yes by default.
    Unless(&'static str),
}

impl Switch {
    pub fn read(self, f: &Fields) -> Result<bool, Diagnostic> {
        match self {
            Switch::Always => Ok(true),
            Switch::Never => Ok(false),
            Switch::Field(name) => f.or(name, Fields::flag, false),
            Switch::Unless(name) => f.or(name, Fields::flag, true),
        }
    }
}

impl Family {
    /// Whether frameworks give images to artifacts with a tower: where tokens have three positions,
    /// and an image is nothing but its tokens.
    pub fn sees(&self) -> bool {
        self.vision.is_some_and(|vision| vision.sections.is_some())
    }

    /// The row with the layers of the type that the language part has.
    pub(crate) fn of_text(&self, f: &Fields) -> Result<Family, Diagnostic> {
        let (name, types) = ("model_type", self.text_types);
        let Some((usual, _)) = types.first() else { return Ok(*self) };
        let Some(layers) = f.one_of(name, usual, types)? else { return Ok(*self) };
        f.note(name, f.text(name)?);
        let Family { architecture, text_config, fields, path, others, spellings, .. } = *self;
        Ok(Family { architecture, text_config, fields, text_types: &[], path, others, spellings, ..*layers })
    }
}

const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    text_config: None,
    fields: &[],
    text_types: &[],
    path: "model",
    others: &[],
    spellings: &[],
    attention: attention::Traits {
        qkv_bias: Switch::Field("attention_bias"),
        o_bias: Switch::Field("attention_bias"),
        fused: false,
        qk_norm: QkNorm::None,
        qk_norm_if: Switch::Always,
        norm_names: ["q_norm", "k_norm"],
        value_norm: false,
        shares: false,
        modules: attention::Modules { path: "self_attn", qkv: "qkv_proj", outer: "o_proj" },
        gated: GatedBy::No,
        sinks: Sinks::None,
        window: WindowRule::None,
        blocks: false,
        rope: RopeRule::All,
        in_pairs: false,
        partial: 1.0,
        rotary_dim: false,
        scale: ScaleRule::HeadDim,
        theta: 10_000.0,
        heads: None,
        kv_heads: None,
        head_dim: None,
        window_kv: 1,
        window_heads: false,
        global_dim: None,
        value_dim: None,
        value_scale: None,
    },
    latent: None,
    pooled: false,
    streams: false,
    kept_every: None,
    mlp: mlp::Traits {
        bias: Switch::Field("mlp_bias"),
        fused: false,
        activation: ("hidden_act", "silu"),
        clamped: false,
        situ: false,
        alone: false,
        bounded: None,
        width: mlp::Width::Field("intermediate_size"),
        limits: None,
        factors: None,
        doubled: None,
        modules: mlp::Modules { path: "mlp", gate: "gate_proj", up: "up_proj", down: "down_proj" },
    },
    delta: None,
    conv: false,
    ssm: None,
    only: false,
    experts: None,
    fp8: quantised::USUAL,
    mtp: None,
    vision: None,
    norms: [(Some("input_layernorm"), None), (Some("post_attention_layernorm"), None)],
    parallel: false,
    norm_offset: 0.0,
    centred: false,
    scales: scales::Traits::None,
    scalar: None,
    own_rows: false,
    growth: growth::Rule::None,
    chunked: None,
    refused: &[],
    named: &[],
    required: &[],
    vocab: None,
    positions: 2048,
    eps: 1e-6,
    eps_field: "rms_norm_eps",
    tied: false,
    tied_also: None,
    bos: Some(1),
    eos: Some(2),
};

const QWEN2: Family = Family {
    architecture: "Qwen2ForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Always,
        o_bias: Switch::Never,
        window: WindowRule::Listed,
        kv_heads: Some(32),
        ..LLAMA.attention
    },
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    positions: 32_768,
    bos: None,
    eos: None,
    ..LLAMA
};

const QWEN3: Family = Family {
    architecture: "Qwen3ForCausalLM",
    attention: attention::Traits {
        qk_norm: QkNorm::Heads,
        window: WindowRule::Listed,
        kv_heads: Some(32),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    ..QWEN2
};

const MISTRAL: Family = Family {
    architecture: "MistralForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Never,
        o_bias: Switch::Never,
        window: WindowRule::All(4096),
        kv_heads: Some(8),
        ..LLAMA.attention
    },
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    positions: 131_072,
    ..LLAMA
};

const SMOLLM3: Family = Family {
    architecture: "SmolLM3ForCausalLM",
    attention: attention::Traits {
        window: WindowRule::WithoutRope,
        rope: RopeRule::Marked(4),
        theta: 2_000_000.0,
        kv_heads: Some(4),
        ..LLAMA.attention
    },
    positions: 32_768,
    tied: true,
    bos: Some(128_000),
    eos: Some(128_001),
    ..LLAMA
};

const GRANITE: Family = Family {
    architecture: "GraniteForCausalLM",
    attention: attention::Traits { scale: ScaleRule::Field("attention_multiplier"), ..LLAMA.attention },
    scales: scales::Traits::Fields,
    ..LLAMA
};

/// The state spaces of Granite and Falcon.
const MAMBA: ssm::Traits = ssm::Traits {
    module: "mamba",
    head_dim: None,
    groups: 1,
    state: 256,
    bias: "mamba_proj_bias",
    activation: "hidden_act",
    beside: None,
};

const GRANITE_HYBRID: Family = Family {
    architecture: "GraniteMoeHybridForCausalLM",
    attention: attention::Traits { rope: RopeRule::Named, ..GRANITE.attention },
    mlp: mlp::Traits {
        bias: Switch::Never,
        fused: true,
        width: mlp::Width::Field("shared_intermediate_size"),
        modules: mlp::Modules { path: "shared_mlp", gate: "input_linear", down: "output_linear", ..LLAMA.mlp.modules },
        ..LLAMA.mlp
    },
    ssm: Some(MAMBA),
    experts: Some(experts::Traits {
        count: (&["num_local_experts"], 8),
        chosen: 2,
        width: ("intermediate_size", 11_008),
        layers: LayerRule::AnyOf,
        router: "block_sparse_moe.router.layer",
        score: Score::Chosen,
        stored: StoredExperts::Each {
            gate: "block_sparse_moe.experts.*.gate_proj",
            up: "block_sparse_moe.experts.*.up_proj",
            down: "block_sparse_moe.experts.*.down_proj",
            whole: Some(WholeExperts {
                gate_up: "block_sparse_moe.input_linear.weight",
                down: "block_sparse_moe.output_linear.weight",
            }),
        },
        shared: Some(SharedWidth::Field("shared_intermediate_size", 1024)),
        shared_module: "shared_mlp",
        ..QWEN3_EXPERTS
    }),
    ..GRANITE
};

const FALCON_H1: Family = Family {
    architecture: "FalconH1ForCausalLM",
    spellings: others::FINAL_LAYERNORM,
    attention: attention::Traits { scale: ScaleRule::OfKeys("key_multiplier"), kv_heads: Some(8), ..LLAMA.attention },
    mlp: mlp::Traits {
        factors: Some("mlp_multipliers"),
        modules: mlp::Modules { path: "feed_forward", ..LLAMA.mlp.modules },
        ..LLAMA.mlp
    },
    ssm: Some(ssm::Traits {
        beside: Some(ssm::Beside { width: ("mamba_d_ssm", 1024), factors: "ssm_multipliers" }),
        ..MAMBA
    }),
    norms: [(Some("input_layernorm"), None), (Some("pre_ff_layernorm"), None)],
    scales: scales::Traits::Halves,
    refused: &["projectors_bias", "mamba_proj_bias"],
    required: &["mamba_use_mlp"],
    positions: 8192,
    eps: 1e-5,
    ..LLAMA
};

const NEMOTRON_H: Family = Family {
    architecture: "NemotronHForCausalLM",
    fields: &[
        ("mamba_num_heads", "mamba_n_heads"),
        ("mamba_head_dim", "mamba_d_head"),
        ("n_groups", "mamba_n_groups"),
        ("ssm_state_size", "mamba_d_state"),
        ("conv_kernel", "mamba_d_conv"),
        ("expand", "mamba_expand"),
        ("use_conv_bias", "mamba_conv_bias"),
        ("norm_eps", "layer_norm_epsilon"),
    ],
    others: others::MTP,
    spellings: &[
        ("backbone.embeddings.", "model.embed_tokens."),
        ("backbone.norm_f.", "model.norm."),
        ("backbone.", "model."),
        ("model.embeddings.", "model.embed_tokens."),
        ("model.norm_f.", "model.norm."),
    ],
    attention: attention::Traits {
        rope: RopeRule::Named,
        qkv_bias: Switch::Never,
        o_bias: Switch::Never,
        kv_heads: Some(8),
        head_dim: Some(128),
        modules: attention::Modules { path: "mixer", ..LLAMA.attention.modules },
        ..LLAMA.attention
    },
    mlp: mlp::Traits {
        alone: true,
        activation: ("mlp_hidden_act", "relu2"),
        modules: mlp::Modules { path: "mixer", gate: "up_proj", ..LLAMA.mlp.modules },
        ..LLAMA.mlp
    },
    ssm: Some(ssm::Traits {
        module: "mixer",
        head_dim: Some(64),
        groups: 8,
        state: 128,
        bias: "use_bias",
        activation: "mamba_hidden_act",
        beside: None,
    }),
    only: true,
    experts: Some(experts::Traits {
        count: (&["n_routed_experts", "num_local_experts"], 8),
        chosen: 2,
        width: ("moe_intermediate_size", 7688),
        layers: LayerRule::All,
        router: "mixer.gate",
        groups: GroupRule::Corrected(1, 1, 1.0),
        correction: ("mixer.gate.e_score_correction_bias", Correction::Row),
        stored: StoredExperts::Each {
            gate: "mixer.experts.*.up_proj",
            up: "mixer.experts.*.up_proj",
            down: "mixer.experts.*.down_proj",
            whole: None,
        },
        shared: Some(SharedWidth::Field("moe_shared_expert_intermediate_size", 7688)),
        shared_module: "mixer.shared_experts",
        short: Some((
            "moe_latent_size",
            ShortRow { width: 0, before: "mixer.fc1_latent_proj", after: "mixer.fc2_latent_proj", norm: None },
        )),
        ..GLM4_MOE_EXPERTS
    }),
    norms: [(Some("norm"), None), (None, None)],
    // Projections with a bias of their own.
    refused: &["mlp_bias", "attention_bias"],
    positions: 4096,
    eps: 1e-5,
    eps_field: "layer_norm_epsilon",
    ..LLAMA
};

const OLMO2: Family = Family {
    architecture: "Olmo2ForCausalLM",
    attention: attention::Traits { qk_norm: QkNorm::Row, ..LLAMA.attention },
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    norms: [(None, Some("post_attention_layernorm")), (None, Some("post_feedforward_layernorm"))],
    eps: 1e-5,
    bos: None,
    eos: Some(50_279),
    ..LLAMA
};

const FUSED_MLP: mlp::Traits = mlp::Traits {
    bias: Switch::Never,
    fused: true,
    modules: mlp::Modules { gate: "gate_up_proj", ..LLAMA.mlp.modules },
    ..LLAMA.mlp
};

const PHI3: Family = Family {
    architecture: "Phi3ForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Never,
        o_bias: Switch::Never,
        fused: true,
        window: WindowRule::All(0),
        ..LLAMA.attention
    },
    mlp: FUSED_MLP,
    positions: 4096,
    eps: 1e-5,
    eos: Some(32_000),
    ..LLAMA
};

const GEMMA3: Family = Family {
    architecture: "Gemma3ForCausalLM",
    attention: attention::Traits {
        qk_norm: QkNorm::Heads,
        window: WindowRule::Pattern(6, 4096),
        rope: RopeRule::ByWindow(10_000.0),
        scale: ScaleRule::Root("query_pre_attn_scalar", 256.0),
        theta: 1_000_000.0,
        kv_heads: Some(4),
        head_dim: Some(256),
        ..LLAMA.attention
    },
    mlp: mlp::Traits { bias: Switch::Never, activation: ("hidden_activation", "gelu_pytorch_tanh"), ..LLAMA.mlp },
    norms: [
        (Some("input_layernorm"), Some("post_attention_layernorm")),
        (Some("pre_feedforward_layernorm"), Some("post_feedforward_layernorm")),
    ],
    norm_offset: 1.0,
    scales: scales::Traits::Root,
    refused: &["attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"],
    positions: 131_072,
    tied: true,
    bos: Some(2),
    eos: Some(1),
    ..LLAMA
};

// Without an image, tokens see what those of the language model alone see. Published files leave
// out what is as in the first one of them.
const GEMMA3_IMAGES: Family = Family {
    architecture: "Gemma3ForConditionalGeneration",
    text_config: Some("text_config"),
    path: "model.language_model",
    others: others::TOWER,
    spellings: others::LANGUAGE_MODEL,
    vision: Some(vision::GEMMA3),
    attention: attention::Traits { heads: Some(8), ..GEMMA3.attention },
    vocab: Some(262_208),
    ..GEMMA3
};

// Without an image, tokens see what those of the language model alone see.
const GEMMA4: Family = Family {
    architecture: "Gemma4ForCausalLM",
    attention: attention::Traits {
        window: WindowRule::Through(6, 512),
        rope: RopeRule::Proportional(10_000.0, 0.25),
        scale: ScaleRule::One,
        value_norm: true,
        shares: true,
        heads: Some(8),
        global_dim: Some(512),
        ..GEMMA3.attention
    },
    mlp: mlp::Traits { doubled: Some("use_double_wide_mlp"), ..GEMMA3.mlp },
    experts: Some(experts::Traits {
        count: (&["num_experts"], 128),
        chosen: 8,
        chosen_field: "top_k_experts",
        width: ("moe_intermediate_size", 704),
        layers: LayerRule::If("enable_moe_block"),
        router: "router.proj",
        renormalise: NormRule::Always,
        stored: StoredExperts::Each {
            gate: "experts.*.gate_proj",
            up: "experts.*.up_proj",
            down: "experts.*.down_proj",
            whole: Some(WholeExperts { gate_up: "experts.gate_up_proj", down: "experts.down_proj" }),
        },
        shared: Some(SharedWidth::Field("intermediate_size", 9216)),
        shared_module: "mlp",
        apart: Some(Apart {
            shared: ["pre_feedforward_layernorm", "post_feedforward_layernorm_1"],
            others: ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"],
            scale: "router.scale",
            factors: "router.per_expert_scale",
        }),
        ..QWEN3_EXPERTS
    }),
    others: others::GEMMA4,
    norm_offset: 0.0,
    scales: scales::Traits::RootCapped("final_logit_softcapping"),
    scalar: Some("layer_scalar"),
    own_rows: true,
    refused: &[],
    named: &[("use_bidirectional_attention", &["vision"])],
    vocab: Some(262_144),
    ..GEMMA3
};

const GEMMA4_IMAGES: Family = Family {
    architecture: "Gemma4ForConditionalGeneration",
    text_config: Some("text_config"),
    path: "model.language_model",
    others: others::GEMMA4_TOWERS,
    ..GEMMA4
};

const GEMMA4_UNIFIED: Family = Family {
    architecture: "Gemma4UnifiedForCausalLM",
    attention: attention::Traits { window: WindowRule::Through(6, 1024), ..GEMMA4.attention },
    experts: None,
    own_rows: false,
    positions: 262_144,
    ..GEMMA4
};

const GEMMA4_UNIFIED_IMAGES: Family = Family {
    architecture: "Gemma4UnifiedForConditionalGeneration",
    text_config: Some("text_config"),
    path: "model.language_model",
    others: others::GEMMA4_TOWERS,
    ..GEMMA4_UNIFIED
};

const MINISTRAL3: Family = Family {
    architecture: "Ministral3ForCausalLM",
    attention: attention::Traits {
        window: WindowRule::All(0),
        rope: RopeRule::Stretched(Stretch { factor: 16.0, original: 16_384, truncate: true, scaled: false }),
        theta: 1_000_000.0,
        head_dim: Some(128),
        ..MISTRAL.attention
    },
    growth: growth::Rule::Rope { beta: 0.1, length: 16_384 },
    positions: 262_144,
    eps: 1e-5,
    ..MISTRAL
};

const MISTRAL3: Family = Family {
    architecture: "Mistral3ForConditionalGeneration",
    text_config: Some("text_config"),
    text_types: &[("mistral", None), ("ministral3", Some(&MINISTRAL3)), ("mistral4", Some(&MISTRAL4))],
    path: "model.language_model",
    others: others::TOWER,
    spellings: others::LANGUAGE_MODEL,
    vision: Some(vision::MISTRAL3),
    ..MISTRAL
};

const QWEN3_EXPERTS: experts::Traits = experts::Traits {
    count: (&["num_experts", "num_local_experts"], 128),
    chosen: 8,
    chosen_field: "num_experts_per_tok",
    width: ("moe_intermediate_size", 768),
    layers: LayerRule::Sparse,
    router: "mlp.gate",
    router_bias: false,
    score: Score::Softmax,
    renormalise: NormRule::Field(false),
    groups: GroupRule::None,
    null_factor: false,
    correction: ("mlp.gate.e_score_correction_bias", Correction::Row),
    corrected: Switch::Always,
    limits: None,
    table: None,
    on_input: false,
    bias: false,
    stored: StoredExperts::Each {
        gate: "mlp.experts.*.gate_proj",
        up: "mlp.experts.*.up_proj",
        down: "mlp.experts.*.down_proj",
        whole: Some(WholeExperts { gate_up: "mlp.experts.gate_up_proj", down: "mlp.experts.down_proj" }),
    },
    shared: None,
    shared_module: "mlp.shared_experts",
    shared_gate: false,
    short: None,
    short_norm_if: None,
    apart: None,
};

const QWEN3_MOE: Family = Family {
    architecture: "Qwen3MoeForCausalLM",
    attention: attention::Traits {
        qk_norm: QkNorm::Heads,
        window: WindowRule::Switched(4096),
        kv_heads: Some(4),
        ..LLAMA.attention
    },
    experts: Some(QWEN3_EXPERTS),
    ..QWEN2
};

/// Experts of Mixtral and of MiniMax.
const BLOCK_SPARSE: StoredExperts = StoredExperts::Each {
    gate: "block_sparse_moe.experts.*.w1",
    up: "block_sparse_moe.experts.*.w3",
    down: "block_sparse_moe.experts.*.w2",
    whole: None,
};

const MIXTRAL: Family = Family {
    architecture: "MixtralForCausalLM",
    attention: attention::Traits { window: WindowRule::All(0), theta: 1_000_000.0, ..MISTRAL.attention },
    experts: Some(experts::Traits {
        count: (&["num_local_experts", "num_experts"], 8),
        chosen: 2,
        width: ("intermediate_size", 14_336),
        layers: LayerRule::All,
        router: "block_sparse_moe.gate",
        renormalise: NormRule::Always,
        stored: BLOCK_SPARSE,
        ..QWEN3_EXPERTS
    }),
    positions: 131_072,
    eps: 1e-5,
    ..MISTRAL
};

const GLM4_MOE_EXPERTS: experts::Traits = experts::Traits {
    count: (&["n_routed_experts", "num_local_experts"], 128),
    width: ("moe_intermediate_size", 1408),
    layers: LayerRule::From(1),
    score: Score::Sigmoid,
    renormalise: NormRule::Field(true),
    groups: GroupRule::Corrected(1, 1, 1.0),
    shared: Some(SharedWidth::Times("n_shared_experts", 1)),
    ..QWEN3_EXPERTS
};

const GLM4_MOE: Family = Family {
    architecture: "Glm4MoeForCausalLM",
    attention: attention::Traits {
        o_bias: Switch::Never,
        qk_norm: QkNorm::Heads,
        qk_norm_if: Switch::Field("use_qk_norm"),
        kv_heads: Some(8),
        partial: 0.5,
        ..LLAMA.attention
    },
    experts: Some(GLM4_MOE_EXPERTS),
    others: others::DRAFT_LAYERS,
    mtp: Some(&draft::BEHIND),
    positions: 131_072,
    eps: 1e-5,
    ..QWEN2
};

const GPT_OSS: Family = Family {
    architecture: "GptOssForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Unless("attention_bias"),
        o_bias: Switch::Unless("attention_bias"),
        sinks: Sinks::All("sinks"),
        window: WindowRule::Pattern(2, 128),
        rope: RopeRule::Stretched(Stretch { factor: 32.0, original: 4096, truncate: false, scaled: true }),
        theta: 150_000.0,
        kv_heads: Some(8),
        head_dim: Some(64),
        ..LLAMA.attention
    },
    mlp: mlp::Traits { clamped: true, ..QWEN2.mlp },
    experts: Some(experts::Traits {
        count: (&["num_local_experts", "num_experts"], 128),
        chosen: 4,
        width: ("intermediate_size", 2880),
        layers: LayerRule::All,
        router: "mlp.router",
        router_bias: true,
        score: Score::Chosen,
        renormalise: NormRule::Never,
        bias: true,
        stored: StoredExperts::Together { path: "mlp.experts", alternating: true },
        ..QWEN3_EXPERTS
    }),
    positions: 131_072,
    eps: 1e-5,
    ..QWEN2
};

const DEEPSEEK_V3_EXPERTS: experts::Traits = experts::Traits {
    count: (&["n_routed_experts", "num_local_experts"], 256),
    width: ("moe_intermediate_size", 2048),
    layers: LayerRule::From(3),
    score: Score::Sigmoid,
    renormalise: NormRule::Field(true),
    groups: GroupRule::Corrected(8, 4, 2.5),
    shared: Some(SharedWidth::Times("n_shared_experts", 1)),
    ..QWEN3_EXPERTS
};

const LATENT: latent::Traits = latent::Traits {
    turned: true,
    marked: true,
    stretch: None,
    part: latent::PartOf::Turned,
    theta: 10_000.0,
    sizes: latent::Sizes { q_rank: Some(1536), rank: 512, nope: 128 },
    modules: LLAMA.attention.modules,
    gated: latent::GateRule::None,
    model_eps: false,
    indexer: None,
};

const DEEPSEEK_V3: Family = Family {
    architecture: "DeepseekV3ForCausalLM",
    latent: Some(LATENT),
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    experts: Some(DEEPSEEK_V3_EXPERTS),
    refused: &["attention_bias"],
    others: others::DRAFT_LAYERS,
    mtp: Some(&draft::BEHIND),
    positions: 4096,
    bos: Some(0),
    eos: Some(1),
    ..LLAMA
};

const KIMI_DELTA: ByChannel = ByChannel {
    module: "self_attn",
    outer: "o_proj",
    decay: Product::Short,
    gate: Product::Short,
    log: StoredLog::FourAxes,
    least: None,
};

const KIMI_LINEAR: Family = Family {
    architecture: "KimiLinearForCausalLM",
    // As transformers' `attribute_map` has them.
    fields: &[
        ("model_max_length", "max_position_embeddings"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("moe_renormalize", "norm_topk_prob"),
        ("num_expert_group", "n_group"),
        ("num_shared_experts", "n_shared_experts"),
    ],
    latent: Some(KIMI_LATENT),
    kept_every: Some("attn_res_block_size"),
    mlp: mlp::Traits { situ: true, ..DEEPSEEK_V3.mlp },
    delta: Some(delta::Traits::ByChannel(KIMI_DELTA, delta::Rule::Object)),
    experts: Some(experts::Traits {
        count: (&["num_experts", "num_local_experts"], 256),
        chosen: 8,
        width: ("moe_intermediate_size", 1024),
        layers: LayerRule::Typed(1),
        router: "block_sparse_moe.gate",
        groups: GroupRule::Corrected(1, 1, 2.446),
        correction: ("block_sparse_moe.gate.e_score_correction_bias", Correction::Row),
        stored: BLOCK_SPARSE,
        shared_module: "block_sparse_moe.shared_experts",
        short: Some((
            "routed_expert_hidden_size",
            ShortRow {
                width: 0,
                before: "block_sparse_moe.routed_expert_down_proj",
                after: "block_sparse_moe.routed_expert_up_proj",
                norm: Some("block_sparse_moe.routed_expert_norm"),
            },
        )),
        short_norm_if: Some("latent_moe_use_norm"),
        ..DEEPSEEK_V3_EXPERTS
    }),
    required: &["mla_use_nope"],
    others: others::KIMI,
    mtp: None,
    positions: 1 << 20,
    eps: 1e-5,
    bos: Some(163_584),
    eos: Some(163_586),
    ..DEEPSEEK_V3
};

const KIMI_LATENT: latent::Traits = latent::Traits {
    turned: false,
    sizes: latent::Sizes { q_rank: None, ..LATENT.sizes },
    gated: latent::GateRule::If("mla_use_output_gate", "g_proj"),
    ..LATENT
};

// As vLLM and SGLang have it.
const KIMI_K3: Family = Family {
    architecture: "KimiK3ForConditionalGeneration",
    text_config: Some("text_config"),
    path: "model.language_model",
    others: others::KIMI_K3_TOWER,
    spellings: others::LANGUAGE_MODEL,
    latent: Some(latent::Traits { model_eps: true, ..KIMI_LATENT }),
    delta: Some(delta::Traits::ByChannel(
        ByChannel { log: StoredLog::FirstOfWidth, ..KIMI_DELTA },
        delta::Rule::Object,
    )),
    ..KIMI_LINEAR
};

const DEEPSEEK_V32: Family = Family {
    architecture: "DeepseekV32ForCausalLM",
    latent: Some(latent::Traits { indexer: Some((64, false)), ..LATENT }),
    experts: Some(experts::Traits { layers: LayerRule::Typed(3), ..DEEPSEEK_V3_EXPERTS }),
    mtp: None,
    positions: 163_840,
    ..DEEPSEEK_V3
};

const DEEPSEEK_V4: Family = Family {
    architecture: "DeepseekV4ForCausalLM",
    spellings: others::WITHOUT_MODEL,
    others: others::MTP,
    pooled: true,
    streams: true,
    mlp: mlp::Traits {
        bias: Switch::Never,
        bounded: Some(10.0),
        modules: mlp::Modules { path: "ffn", gate: "w1", up: "w3", down: "w2" },
        ..LLAMA.mlp
    },
    experts: Some(experts::Traits {
        count: (&["n_routed_experts", "num_local_experts"], 256),
        chosen: 6,
        width: ("moe_intermediate_size", 2048),
        layers: LayerRule::All,
        router: "ffn.gate",
        score: Score::RootSoftplus,
        renormalise: NormRule::Always,
        groups: GroupRule::Whole(Some(("routed_scaling_factor", 1.5))),
        correction: ("ffn.gate.bias", Correction::Row),
        table: Some(("ffn.gate.tid2eid", 3)),
        stored: StoredExperts::Each {
            gate: "ffn.experts.*.w1",
            up: "ffn.experts.*.w3",
            down: "ffn.experts.*.w2",
            whole: None,
        },
        shared: Some(SharedWidth::Times("n_shared_experts", 1)),
        shared_module: "ffn.shared_experts",
        ..QWEN3_EXPERTS
    }),
    fp8: quantised::Release {
        scale: "scale",
        floats: &["compressor.wkv", "compressor.wgate", "indexer.weights_proj"],
        experts: Some(".experts."),
    },
    norms: [(Some("attn_norm"), None), (Some("ffn_norm"), None)],
    refused: &["attention_bias", "mlp_bias"],
    positions: 1_048_576,
    bos: Some(0),
    eos: Some(1),
    ..LLAMA
};

const GLM_DSA: Family = Family {
    architecture: "GlmMoeDsaForCausalLM",
    latent: Some(latent::Traits { indexer: Some((32, true)), ..LATENT }),
    experts: Some(experts::Traits {
        groups: GroupRule::Corrected(1, 1, 2.5),
        layers: LayerRule::Typed(3),
        ..DEEPSEEK_V3_EXPERTS
    }),
    positions: 202_752,
    eps: 1e-5,
    ..DEEPSEEK_V32
};

const DEEPSEEK_V2: Family = Family {
    architecture: "DeepseekV2ForCausalLM",
    latent: Some(latent::Traits { marked: false, ..LATENT }),
    experts: Some(experts::Traits {
        count: (&["n_routed_experts", "num_experts"], 64),
        chosen: 6,
        width: ("moe_intermediate_size", 1407),
        layers: LayerRule::From(0),
        renormalise: NormRule::Never,
        groups: GroupRule::Method,
        shared: Some(SharedWidth::Times("n_shared_experts", 2)),
        ..QWEN3_EXPERTS
    }),
    refused: &["attention_bias", "mlp_bias", "norm_topk_prob"],
    others: &[],
    mtp: None,
    positions: 2048,
    bos: Some(1),
    eos: Some(2),
    ..DEEPSEEK_V3
};

const QWEN3_NEXT: Family = Family {
    architecture: "Qwen3NextForCausalLM",
    others: others::MTP,
    mtp: Some(&draft::APART),
    attention: attention::Traits {
        qkv_bias: Switch::Field("attention_bias"),
        o_bias: Switch::Field("attention_bias"),
        qk_norm: QkNorm::Heads,
        gated: GatedBy::Elements,
        partial: 0.25,
        kv_heads: Some(2),
        head_dim: Some(256),
        ..LLAMA.attention
    },
    delta: Some(delta::Traits::ByHead(StoredDelta::Grouped)),
    experts: Some(experts::Traits {
        count: (&["num_experts", "num_local_experts"], 512),
        chosen: 10,
        width: ("moe_intermediate_size", 512),
        renormalise: NormRule::Field(true),
        shared: Some(SharedWidth::Field("shared_expert_intermediate_size", 512)),
        shared_module: "mlp.shared_expert",
        shared_gate: true,
        ..QWEN3_EXPERTS
    }),
    norm_offset: 1.0,
    ..QWEN2
};

// Positions have three rows, which are equal where all is text: `mrope_section`, which says what
// frequencies take which row, changes nothing.
const QWEN3_5: Family = Family {
    architecture: "Qwen3_5ForConditionalGeneration",
    text_config: Some("text_config"),
    path: "model.language_model",
    others: others::MTP_AND_VISUAL,
    mtp: Some(&draft::APART_COUNTED),
    vision: Some(vision::QWEN3_5),
    attention: attention::Traits { kv_heads: Some(4), ..QWEN3_NEXT.attention },
    delta: Some(delta::Traits::ByHead(StoredDelta::Apart)),
    experts: None,
    ..QWEN3_NEXT
};

const QWEN3_5_MOE: Family = Family {
    architecture: "Qwen3_5MoeForConditionalGeneration",
    attention: QWEN3_NEXT.attention,
    experts: Some(experts::Traits {
        count: (&["num_experts", "num_local_experts"], 256),
        chosen: 8,
        width: ("moe_intermediate_size", 512),
        layers: LayerRule::All,
        renormalise: NormRule::Always,
        shared: Some(SharedWidth::Field("shared_expert_intermediate_size", 512)),
        shared_module: "mlp.shared_expert",
        shared_gate: true,
        ..QWEN3_EXPERTS
    }),
    ..QWEN3_5
};

// What transformers saves of the language part.
const QWEN3_5_TEXT: Family = Family {
    architecture: "Qwen3_5ForCausalLM",
    text_config: None,
    path: "model",
    spellings: others::SAVED_ALONE,
    vision: None,
    ..QWEN3_5
};

const QWEN3_5_MOE_TEXT: Family = Family {
    architecture: "Qwen3_5MoeForCausalLM",
    text_config: None,
    path: "model",
    spellings: others::SAVED_ALONE,
    vision: None,
    ..QWEN3_5_MOE
};

const SEED_OSS: Family = Family {
    architecture: "SeedOssForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Unless("attention_bias"),
        o_bias: Switch::Field("attention_out_bias"),
        kv_heads: Some(8),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    positions: 524_288,
    bos: Some(0),
    ..LLAMA
};

const GRANITE_SWA: Family = Family {
    architecture: "GraniteSWAForCausalLM",
    attention: attention::Traits {
        sinks: Sinks::All("sinks"),
        window: WindowRule::AllButFirst(4, 128),
        rope: RopeRule::Listed,
        kv_heads: Some(4),
        ..GRANITE.attention
    },
    positions: 8192,
    eps: 1e-5,
    tied: true,
    bos: Some(100_257),
    eos: Some(100_257),
    ..GRANITE
};

const OLMO3: Family = Family {
    architecture: "Olmo3ForCausalLM",
    attention: attention::Traits {
        window: WindowRule::Pattern(4, 4096),
        rope: RopeRule::ByWindow(500_000.0),
        theta: 500_000.0,
        ..OLMO2.attention
    },
    ..OLMO2
};

const EXAONE4: Family = Family {
    architecture: "Exaone4ForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Never,
        o_bias: Switch::Never,
        qk_norm: QkNorm::Heads,
        window: WindowRule::Pattern(4, 4096),
        rope: RopeRule::OfWindows,
        kv_heads: Some(32),
        ..LLAMA.attention
    },
    bos: Some(0),
    eos: Some(2),
    ..OLMO2
};

const EXAONE_MOE: Family = Family {
    architecture: "ExaoneMoeForCausalLM",
    others: others::MTP,
    experts: Some(experts::Traits {
        count: (&["num_experts"], 64),
        width: ("moe_intermediate_size", 1024),
        layers: LayerRule::Typed(1),
        score: Score::Sigmoid,
        renormalise: NormRule::Field(true),
        groups: GroupRule::Corrected(1, 1, 2.5),
        correction: ("mlp.e_score_correction_bias", Correction::Row),
        shared: Some(SharedWidth::Times("num_shared_experts", 1)),
        ..QWEN3_EXPERTS
    }),
    norms: LLAMA.norms,
    bos: Some(1),
    eos: Some(53),
    ..EXAONE4
};

// As its release calls it, and transformers does not.
const EXAONE_MOE_RELEASED: Family = Family { architecture: "ExaoneMoEForCausalLM", ..EXAONE_MOE };

const GLM: Family = Family {
    architecture: "GlmForCausalLM",
    attention: attention::Traits {
        o_bias: Switch::Never,
        in_pairs: true,
        partial: 0.5,
        kv_heads: Some(2),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    mlp: FUSED_MLP,
    positions: 131_072,
    eps: 1.5625e-07,
    bos: None,
    eos: None,
    ..LLAMA
};

const GLM4: Family = Family {
    architecture: "Glm4ForCausalLM",
    norms: [
        (Some("input_layernorm"), Some("post_self_attn_layernorm")),
        (Some("post_attention_layernorm"), Some("post_mlp_layernorm")),
    ],
    ..GLM
};

const ERNIE4_5: Family = Family {
    architecture: "Ernie4_5ForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Field("use_bias"),
        o_bias: Switch::Field("use_bias"),
        in_pairs: true,
        theta: 500_000.0,
        kv_heads: Some(2),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    mlp: mlp::Traits { bias: Switch::Field("use_bias"), ..LLAMA.mlp },
    positions: 131_072,
    eps: 1e-5,
    tied: true,
    ..LLAMA
};

const ERNIE4_5_MOE: Family = Family {
    architecture: "Ernie4_5_MoeForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Never,
        o_bias: Switch::Never,
        kv_heads: Some(4),
        head_dim: None,
        ..ERNIE4_5.attention
    },
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    experts: Some(experts::Traits {
        count: (&["moe_num_experts", "num_experts"], 64),
        chosen: 6,
        chosen_field: "moe_k",
        width: ("moe_intermediate_size", 1536),
        layers: LayerRule::Between(1),
        renormalise: NormRule::Always,
        groups: GroupRule::Whole(None),
        correction: ("mlp.moe_statics.e_score_correction_bias", Correction::Matrix),
        shared: Some(SharedWidth::Times("moe_num_shared_experts", 2)),
        ..QWEN3_EXPERTS
    }),
    others: others::ERNIE_MTP,
    refused: &["use_bias"],
    ..ERNIE4_5
};

const HUNYUAN: Family = Family {
    architecture: "HunYuanDenseV1ForCausalLM",
    attention: attention::Traits {
        qk_norm: QkNorm::Turned,
        norm_names: ["query_layernorm", "key_layernorm"],
        rope: RopeRule::Alpha,
        ..LLAMA.attention
    },
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    eps: 1e-5,
    ..LLAMA
};

const HUNYUAN_MOE: Family = Family {
    architecture: "HunYuanMoEV1ForCausalLM",
    experts: Some(experts::Traits {
        count: (&["num_experts"], 1),
        chosen: 1,
        chosen_field: "moe_topk",
        width: ("intermediate_size", 11_008),
        layers: LayerRule::All,
        router: "mlp.gate.wg",
        renormalise: NormRule::Always,
        shared: Some(SharedWidth::Times("num_shared_expert", 1)),
        shared_module: "mlp.shared_mlp",
        ..QWEN3_EXPERTS
    }),
    refused: &["use_cla"],
    ..HUNYUAN
};

const DOTS1: Family = Family {
    architecture: "Dots1ForCausalLM",
    attention: attention::Traits {
        o_bias: Switch::Field("attention_bias"),
        qk_norm_if: Switch::Always,
        window: WindowRule::From(4096, 62),
        kv_heads: Some(32),
        partial: 1.0,
        ..GLM4_MOE.attention
    },
    experts: Some(experts::Traits {
        chosen: 6,
        layers: LayerRule::From(0),
        renormalise: NormRule::Field(false),
        shared: Some(SharedWidth::Times("n_shared_experts", 2)),
        ..GLM4_MOE_EXPERTS
    }),
    others: &[],
    mtp: None,
    positions: 2048,
    eps: 1e-6,
    ..GLM4_MOE
};

const SOLAR_OPEN: Family = Family {
    architecture: "SolarOpenForCausalLM",
    attention: attention::Traits {
        o_bias: Switch::Never,
        theta: 1_000_000.0,
        kv_heads: Some(8),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    experts: Some(experts::Traits {
        width: ("moe_intermediate_size", 1280),
        layers: LayerRule::All,
        ..GLM4_MOE_EXPERTS
    }),
    others: &[],
    mtp: None,
    ..GLM4_MOE
};

const HY_V3: Family = Family {
    architecture: "HYV3ForCausalLM",
    attention: attention::Traits {
        qk_norm: QkNorm::Heads,
        theta: 11_158_840.0,
        kv_heads: Some(8),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    mlp: LLAMA.mlp,
    experts: Some(experts::Traits {
        count: (&["num_experts", "num_local_experts"], 192),
        width: ("moe_intermediate_size", 1536),
        layers: LayerRule::Typed(1),
        router: "mlp.router.gate",
        score: Score::Sigmoid,
        renormalise: NormRule::Always,
        groups: GroupRule::Whole(Some(("router_scaling_factor", 2.826))),
        correction: ("mlp.expert_bias", Correction::Row),
        shared: Some(SharedWidth::Times("num_shared_experts", 1)),
        shared_module: "mlp.shared_mlp",
        ..QWEN3_EXPERTS
    }),
    others: others::DRAFT_LAYERS,
    refused: &["mlp_bias"],
    positions: 131_072,
    eps: 1e-5,
    bos: None,
    eos: None,
    ..LLAMA
};

const MINIMAX_M2_EXPERTS: experts::Traits = experts::Traits {
    count: (&["num_local_experts", "num_experts"], 256),
    chosen: 8,
    width: ("intermediate_size", 1536),
    layers: LayerRule::All,
    router: "block_sparse_moe.gate",
    score: Score::Sigmoid,
    renormalise: NormRule::Always,
    groups: GroupRule::Whole(None),
    correction: ("block_sparse_moe.e_score_correction_bias", Correction::Row),
    stored: BLOCK_SPARSE,
    ..QWEN3_EXPERTS
};

const MINIMAX_M2: Family = Family {
    architecture: "MiniMaxM2ForCausalLM",
    attention: attention::Traits {
        qkv_bias: Switch::Never,
        o_bias: Switch::Never,
        qk_norm: QkNorm::Row,
        rotary_dim: true,
        theta: 5_000_000.0,
        kv_heads: Some(8),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    experts: Some(MINIMAX_M2_EXPERTS),
    others: others::MTP,
    positions: 196_608,
    eps: 1e-6,
    bos: Some(200_034),
    eos: Some(200_020),
    ..LLAMA
};

const MINIMAX_M3: Family = Family {
    architecture: "MiniMaxM3SparseForCausalLM",
    attention: attention::Traits {
        qk_norm: QkNorm::Heads,
        blocks: true,
        partial: 0.5,
        kv_heads: Some(4),
        heads: Some(64),
        ..MINIMAX_M2.attention
    },
    mlp: mlp::Traits {
        bias: Switch::Never,
        clamped: true,
        width: mlp::Width::Field("dense_intermediate_size"),
        ..LLAMA.mlp
    },
    experts: Some(experts::Traits {
        count: (&["num_local_experts", "num_experts"], 128),
        chosen: 4,
        width: ("intermediate_size", 3072),
        layers: LayerRule::Marked,
        groups: GroupRule::Whole(Some(("routed_scaling_factor", 2.0))),
        shared: Some(SharedWidth::Field("shared_intermediate_size", 3072)),
        shared_module: "block_sparse_moe.shared_experts",
        ..MINIMAX_M2_EXPERTS
    }),
    norm_offset: 1.0,
    refused: &["attention_output_gate"],
    required: &["use_gemma_norm", "use_qk_norm", "use_routing_bias"],
    positions: 524_288,
    ..MINIMAX_M2
};

const MINIMAX_M3_IMAGES: Family = Family {
    architecture: "MiniMaxM3SparseForConditionalGeneration",
    text_config: Some("text_config"),
    path: "model.language_model",
    others: others::MINIMAX_M3_TOWER,
    spellings: others::LANGUAGE_MODEL,
    ..MINIMAX_M3
};

const GLM4_MOE_LITE: Family = Family {
    architecture: "Glm4MoeLiteForCausalLM",
    experts: Some(experts::Traits {
        count: (&["n_routed_experts", "num_local_experts"], 64),
        chosen: 4,
        width: ("moe_intermediate_size", 1536),
        layers: LayerRule::Typed(1),
        groups: GroupRule::Corrected(1, 1, 1.8),
        ..DEEPSEEK_V3_EXPERTS
    }),
    positions: 202_752,
    eps: 1e-5,
    ..DEEPSEEK_V3
};

const KIMI_K25: Family = Family {
    architecture: "KimiK25ForConditionalGeneration",
    text_config: Some("text_config"),
    text_types: &[("kimi_k2", None), ("deepseek_v3", None)],
    path: "model.language_model",
    others: others::KIMI_TOWER,
    spellings: others::LANGUAGE_MODEL,
    mtp: None,
    ..DEEPSEEK_V3
};

// As transformers calls it, and vLLM does not.
const KIMI_K25_SAVED: Family = Family { architecture: "Kimi_K25ForConditionalGeneration", ..KIMI_K25 };

// Positions have three rows, which are equal where all is text, and rows of images that are added
// to layers are none.
const QWEN3_VL: Family = Family {
    architecture: "Qwen3VLForConditionalGeneration",
    text_config: Some("text_config"),
    path: "model.language_model",
    others: others::VISUAL,
    vision: Some(vision::QWEN3_VL),
    attention: attention::Traits { window: WindowRule::None, theta: 500_000.0, ..QWEN3.attention },
    positions: 128_000,
    ..QWEN3
};

const QWEN3_VL_MOE: Family = Family {
    architecture: "Qwen3VLMoeForConditionalGeneration",
    attention: attention::Traits { kv_heads: Some(16), head_dim: None, ..QWEN3_VL.attention },
    experts: Some(experts::Traits {
        count: (&["num_experts", "num_local_experts"], 60),
        chosen: 4,
        width: ("moe_intermediate_size", 1408),
        renormalise: NormRule::Always,
        stored: StoredExperts::Together { path: "mlp.experts", alternating: false },
        ..QWEN3_EXPERTS
    }),
    ..QWEN3_VL
};

const COHERE2: Family = Family {
    architecture: "Cohere2ForCausalLM",
    attention: attention::Traits {
        window: WindowRule::Pattern(4, 4096),
        rope: RopeRule::OnlyOfWindows,
        in_pairs: true,
        ..LLAMA.attention
    },
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    norms: [(Some("input_layernorm"), None), (None, None)],
    parallel: true,
    centred: true,
    scales: scales::Traits::Logits("logit_scale", 0.0625),
    positions: 8192,
    eps: 1e-5,
    eps_field: "layer_norm_eps",
    tied: true,
    bos: Some(5),
    eos: Some(255_001),
    ..LLAMA
};

const MISTRAL4: Family = Family {
    architecture: "Mistral4ForCausalLM",
    latent: Some(latent::Traits {
        stretch: Some(Stretch { factor: 128.0, original: 8192, truncate: true, scaled: false }),
        part: latent::PartOf::Head,
        sizes: latent::Sizes { q_rank: Some(1024), rank: 256, nope: 64 },
        ..LATENT
    }),
    experts: Some(experts::Traits {
        count: (&["n_routed_experts", "num_local_experts"], 128),
        chosen: 4,
        layers: LayerRule::From(0),
        score: Score::Softmax,
        groups: GroupRule::Plain(1, 1, 1.0),
        ..DEEPSEEK_V3_EXPERTS
    }),
    growth: growth::Rule::Rope { beta: 0.1, length: 8192 },
    others: &[],
    mtp: None,
    positions: 1_048_576,
    bos: Some(1),
    eos: Some(2),
    ..DEEPSEEK_V3
};

const LFM2: Family = Family {
    architecture: "Lfm2ForCausalLM",
    spellings: others::EMBEDDING_NORM,
    attention: attention::Traits {
        qkv_bias: Switch::Never,
        o_bias: Switch::Never,
        qk_norm: QkNorm::Heads,
        norm_names: ["q_layernorm", "k_layernorm"],
        modules: attention::Modules { outer: "out_proj", ..LLAMA.attention.modules },
        theta: 1_000_000.0,
        kv_heads: Some(8),
        ..LLAMA.attention
    },
    mlp: mlp::Traits {
        bias: Switch::Never,
        width: mlp::Width::Adjusted,
        modules: mlp::Modules { path: "feed_forward", gate: "w1", up: "w3", down: "w2" },
        ..LLAMA.mlp
    },
    conv: true,
    norms: [(Some("operator_norm"), None), (Some("ffn_norm"), None)],
    refused: &["conv_bias"],
    positions: 128_000,
    eps: 1e-5,
    eps_field: "norm_eps",
    tied: true,
    tied_also: Some("tie_embedding"),
    ..LLAMA
};

const LFM2_MOE: Family = Family {
    architecture: "Lfm2MoeForCausalLM",
    mlp: mlp::Traits { width: LLAMA.mlp.width, ..LFM2.mlp },
    experts: Some(experts::Traits {
        count: (&["num_experts", "num_local_experts"], 32),
        chosen: 4,
        width: ("moe_intermediate_size", 1792),
        layers: LayerRule::Behind("num_dense_layers", 2),
        router: "feed_forward.gate",
        score: Score::Sigmoid,
        renormalise: NormRule::Field(true),
        groups: GroupRule::Whole(Some(("routed_scaling_factor", 1.0))),
        correction: ("feed_forward.expert_bias", Correction::Row),
        corrected: Switch::Unless("use_expert_bias"),
        stored: StoredExperts::Each {
            gate: "feed_forward.experts.*.w1",
            up: "feed_forward.experts.*.w3",
            down: "feed_forward.experts.*.w2",
            whole: Some(WholeExperts {
                gate_up: "feed_forward.experts.gate_up_proj",
                down: "feed_forward.experts.down_proj",
            }),
        },
        ..QWEN3_EXPERTS
    }),
    ..LFM2
};

const MIMO_V2_FLASH: Family = Family {
    architecture: "MiMoV2FlashForCausalLM",
    attention: attention::Traits {
        o_bias: Switch::Never,
        sinks: Sinks::Windows("attention_sink_bias"),
        window: WindowRule::Inner(6, 129),
        rope: RopeRule::ByWindow(10_000.0),
        partial: 0.334,
        theta: 5_000_000.0,
        kv_heads: Some(4),
        head_dim: Some(192),
        window_kv: 2,
        value_dim: Some(128),
        value_scale: Some(("attention_value_scale", 0.707)),
        ..LLAMA.attention
    },
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    experts: Some(experts::Traits {
        count: (&["n_routed_experts", "num_local_experts"], 256),
        width: ("moe_intermediate_size", 2048),
        layers: LayerRule::Typed(1),
        null_factor: true,
        shared: None,
        ..GLM4_MOE_EXPERTS
    }),
    others: others::MIMO_MTP,
    positions: 131_072,
    eps: 1e-5,
    bos: Some(1),
    eos: None,
    ..LLAMA
};

const BAILING_MOE_V2: Family = Family {
    architecture: "BailingMoeV2ForCausalLM",
    spellings: others::WORD_EMBEDDINGS,
    attention: attention::Traits {
        qkv_bias: Switch::Field("use_qkv_bias"),
        o_bias: Switch::Never,
        fused: true,
        qk_norm: QkNorm::Heads,
        qk_norm_if: Switch::Field("use_qk_norm"),
        norm_names: ["query_layernorm", "key_layernorm"],
        modules: attention::Modules { path: "attention", qkv: "query_key_value", outer: "dense" },
        rotary_dim: true,
        ..LLAMA.attention
    },
    mlp: mlp::Traits { bias: Switch::Never, ..LLAMA.mlp },
    experts: Some(experts::Traits {
        count: (&["num_experts"], 16),
        chosen: 2,
        width: ("moe_intermediate_size", 512),
        layers: LayerRule::From(0),
        correction: ("mlp.gate.expert_bias", Correction::Row),
        groups: GroupRule::Corrected(8, 4, 2.5),
        shared: Some(SharedWidth::Times("num_shared_experts", 1)),
        ..GLM4_MOE_EXPERTS
    }),
    others: others::DRAFT_LAYERS,
    refused: &["use_bias", "norm_head"],
    required: &["use_rmsnorm", "moe_router_enable_expert_bias"],
    positions: 16_384,
    eps: 1e-5,
    bos: None,
    eos: None,
    ..LLAMA
};

const BAILING_MOE_V3: Family = Family {
    architecture: "BailingMoeV3ForCausalLM",
    // As transformers' `attribute_map` has them.
    fields: &[
        ("model_max_length", "max_position_embeddings"),
        ("moe_renormalize", "norm_topk_prob"),
        ("num_expert_group", "n_group"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("n_shared_experts", "num_shared_experts"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
    ],
    spellings: others::WORD_EMBEDDINGS,
    latent: Some(latent::Traits {
        part: latent::PartOf::Others,
        theta: 6_000_000.0,
        sizes: latent::Sizes { q_rank: None, ..LATENT.sizes },
        modules: attention::Modules { path: "attention", outer: "dense", ..LATENT.modules },
        gated: latent::GateRule::Named("g_proj"),
        ..LATENT
    }),
    delta: Some(delta::Traits::ByChannel(BAILING_DELTA, delta::Rule::Groups(6))),
    mlp: mlp::Traits { limits: Some("share_expert_swiglu_limit_list"), ..DEEPSEEK_V3.mlp },
    experts: Some(experts::Traits {
        count: (&["num_experts", "num_local_experts"], 512),
        width: ("moe_intermediate_size", 768),
        layers: LayerRule::Typed(2),
        correction: ("mlp.gate.expert_bias", Correction::Row),
        limits: Some("expert_swiglu_limit_list"),
        shared: Some(SharedWidth::Times("num_shared_experts", 1)),
        ..DEEPSEEK_V3_EXPERTS
    }),
    refused: &["attention_bias", "use_bias", "norm_head", "use_mla_nope", "multi_gate"],
    required: &["use_rmsnorm", "moe_router_enable_expert_bias", "no_kda_lora"],
    others: others::DRAFT_LAYERS,
    mtp: None,
    positions: 262_144,
    bos: None,
    eos: Some(156_895),
    ..DEEPSEEK_V3
};

const BAILING_DELTA: ByChannel = ByChannel {
    module: "attention",
    outer: "o_proj",
    decay: Product::Whole,
    gate: Product::Whole,
    log: StoredLog::Heads,
    least: Some(-5.0),
};

// As transformers calls and saves it: outer projections have one name in all layers.
const BAILING_HYBRID: Family = Family {
    architecture: "BailingHybridForCausalLM",
    delta: Some(delta::Traits::ByChannel(ByChannel { outer: "dense", ..BAILING_DELTA }, delta::Rule::Groups(6))),
    ..BAILING_MOE_V3
};

const LLAMA4: Family = Family {
    architecture: "Llama4ForCausalLM",
    attention: attention::Traits {
        qk_norm: QkNorm::Unweighted,
        qk_norm_if: Switch::Unless("use_qk_norm"),
        rope: RopeRule::Marked(4),
        in_pairs: true,
        theta: 500_000.0,
        kv_heads: Some(8),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    mlp: mlp::Traits {
        bias: Switch::Never,
        width: mlp::Width::Field("intermediate_size_mlp"),
        modules: mlp::Modules { path: "feed_forward", ..LLAMA.mlp.modules },
        ..LLAMA.mlp
    },
    experts: Some(experts::Traits {
        count: (&["num_local_experts", "num_experts"], 16),
        chosen: 1,
        width: ("intermediate_size", 8192),
        layers: LayerRule::Named,
        router: "feed_forward.router",
        score: Score::Sigmoid,
        renormalise: NormRule::Never,
        on_input: true,
        stored: StoredExperts::Together { path: "feed_forward.experts", alternating: false },
        shared: Some(SharedWidth::Times("n_shared_experts", 1)),
        shared_module: "feed_forward.shared_expert",
        ..QWEN3_EXPERTS
    }),
    growth: growth::Rule::Tuned { beta: 0.1, length: 8192 },
    chunked: Some(8192),
    positions: 131_072,
    eps: 1e-5,
    ..LLAMA
};

const LLAMA4_IMAGES: Family = Family {
    architecture: "Llama4ForConditionalGeneration",
    text_config: Some("text_config"),
    others: others::LLAMA4_TOWER,
    spellings: others::LLAMA4_LANGUAGE_MODEL,
    ..LLAMA4
};

const STEP3P5: Family = Family {
    architecture: "Step3p5ForCausalLM",
    // As transformers' `attribute_map` has them.
    fields: &[
        ("num_attention_groups", "num_key_value_heads"),
        ("moe_num_experts", "n_routed_experts"),
        ("moe_top_k", "num_experts_per_tok"),
        ("share_expert_dims", "share_expert_dim"),
    ],
    spellings: others::SAVED_ALONE,
    attention: attention::Traits {
        qk_norm: QkNorm::Heads,
        gated: GatedBy::Heads("g_proj"),
        window: WindowRule::Typed,
        window_heads: true,
        rope: RopeRule::ByLayer,
        scale: ScaleRule::RootOrHeadDim("query_pre_attn_scalar"),
        heads: Some(64),
        kv_heads: Some(8),
        head_dim: Some(128),
        ..LLAMA.attention
    },
    mlp: mlp::Traits { limits: Some("swiglu_limits_shared"), ..LLAMA.mlp },
    experts: Some(experts::Traits {
        count: (&["n_routed_experts"], 288),
        width: ("moe_intermediate_size", 1280),
        layers: LayerRule::Enumerated(3),
        router: "moe.gate",
        score: Score::Sigmoid,
        renormalise: NormRule::Always,
        groups: GroupRule::Whole(Some(("moe_router_scaling_factor", 1.0))),
        correction: ("moe.router_bias", Correction::Row),
        limits: Some("swiglu_limits"),
        stored: StoredExperts::Apart { gate: "moe.gate_proj", up: "moe.up_proj", down: "moe.down_proj" },
        shared: Some(SharedWidth::Field("share_expert_dim", 1280)),
        shared_module: "share_expert",
        ..QWEN3_EXPERTS
    }),
    others: others::STEP,
    norm_offset: 1.0,
    refused: &["mlp_bias", "sink", "use_bidirectional_attention"],
    required: &[
        "use_head_wise_attn_gate",
        "use_qk_norm",
        "use_moe_router_bias",
        "need_fp32_gate",
        "norm_expert_weight",
        "zero_centered",
    ],
    positions: 128_000,
    eps: 1e-5,
    bos: None,
    eos: None,
    ..LLAMA
};

const STEP3P7: Family =
    Family { architecture: "Step3p7ForConditionalGeneration", text_config: Some("text_config"), ..STEP3P5 };

pub const FAMILIES: &[Family] = &[
    LLAMA,
    QWEN2,
    QWEN3,
    MISTRAL,
    SMOLLM3,
    GRANITE,
    OLMO2,
    PHI3,
    GEMMA3,
    GEMMA3_IMAGES,
    GEMMA4,
    GEMMA4_IMAGES,
    GEMMA4_UNIFIED,
    GEMMA4_UNIFIED_IMAGES,
    MISTRAL3,
    QWEN3_MOE,
    MIXTRAL,
    GLM4_MOE,
    GPT_OSS,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    KIMI_LINEAR,
    GLM_DSA,
    DEEPSEEK_V4,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_5_TEXT,
    QWEN3_5_MOE_TEXT,
    MINISTRAL3,
    SEED_OSS,
    GRANITE_SWA,
    OLMO3,
    EXAONE4,
    EXAONE_MOE,
    EXAONE_MOE_RELEASED,
    GLM,
    GLM4,
    ERNIE4_5,
    ERNIE4_5_MOE,
    HUNYUAN,
    HUNYUAN_MOE,
    DOTS1,
    SOLAR_OPEN,
    HY_V3,
    MINIMAX_M2,
    MINIMAX_M3,
    MINIMAX_M3_IMAGES,
    GLM4_MOE_LITE,
    KIMI_K25,
    KIMI_K25_SAVED,
    QWEN3_VL,
    QWEN3_VL_MOE,
    COHERE2,
    MISTRAL4,
    LFM2,
    LFM2_MOE,
    MIMO_V2_FLASH,
    BAILING_MOE_V2,
    LLAMA4,
    LLAMA4_IMAGES,
    STEP3P5,
    STEP3P7,
    GRANITE_HYBRID,
    NEMOTRON_H,
    BAILING_MOE_V3,
    BAILING_HYBRID,
    FALCON_H1,
    KIMI_K3,
];

/// The row of a configuration.
pub(crate) fn of(f: &Fields) -> Result<&'static Family, Diagnostic> {
    let known = || {
        let names: Vec<_> = FAMILIES.iter().map(|f| f.architecture).collect();
        format!("Known architectures: {}.", names.join(", "))
    };
    let name = "architectures";
    let names = f.texts(name)?.unwrap_or_default();
    let first = names.first().ok_or_else(|| f.missing(name).help(known()))?;
    f.note(name, *first);
    FAMILIES.iter().find(|family| family.architecture == *first).ok_or_else(|| {
        f.fault("config::unknown-architecture", name, format!("unknown architecture {first:?}")).help(known())
    })
}
