//! The towers of families: what no field of a configuration says, and the defaults of fields.

/// How a family's towers are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// What names of its tensors begin with.
    pub path: &'static str,
    /// The same in files of an earlier transformers, if more than `model.` differs.
    pub older: Option<&'static str>,
    /// What names of what makes rows of patches begin with, if that is no part of it.
    pub projector: Option<&'static str>,
    /// The product that makes rows of pixels.
    pub patch: Module,
    /// The table of positions, if there is one.
    pub table: Option<&'static str>,
    pub turned: Turned,
    /// The norms before all blocks, and behind them.
    pub around: [Option<&'static str>; 2],
    /// Blocks are called so, with their number behind it.
    pub blocks: &'static str,
    /// The norms of a block's halves.
    pub norms: [&'static str; 2],
    /// Whether norms take the mean off and have a bias, or have neither.
    pub centred: bool,
    pub queries: Queries,
    /// The product behind attention.
    pub out: &'static str,
    /// Whether the products of blocks have biases.
    pub bias: bool,
    /// The gate of a block's MLP, if it has one.
    pub gate: Option<&'static str>,
    /// The products into it and out of it.
    pub mlp: [&'static str; 2],
    pub merger: Merger,
}

/// A product, and whether it has a bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Module {
    pub name: &'static str,
    pub bias: bool,
}

/// The products that make queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Queries {
    /// One makes all three, side by side.
    Together(&'static str),
    Each([&'static str; 3]),
}

/// Which frequencies of a patch's rotary embedding take its row, and which its column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turned {
    /// There is none.
    Never,
    /// The same ones take both.
    Same,
    /// Every other one takes each.
    Alternating,
}

/// How the patches of a group become a row of the language part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Merger {
    /// A norm, the patches side by side, two products with biases (Qwen).
    Beside,
    /// A norm, the patches side by side as a convolution has them, three products (Mistral).
    Unfolded,
    /// Their mean, a norm, and a product whose weight has columns as rows (Gemma).
    Mean,
}

/// What a prompt has in an image's place, in the words of the model's tokenizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prompt {
    /// The tokens behind the tokens of a row of an image, and of its last row.
    pub lines: Option<[&'static str; 2]>,
    /// What templates write for an image, and what is put around its token in the place of that.
    pub written: Option<(&'static str, [&'static str; 2])>,
    /// Whether the tokens of an image see each other, also those that come after them.
    pub together: bool,
}

/// What a family's towers have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Traits {
    pub style: &'static Style,
    pub prompt: Prompt,
    /// The names of the fields for blocks, heads and numbers of a pixel.
    pub fields: [&'static str; 3],
    /// Defaults of blocks, numbers of a row, and heads.
    pub sizes: [usize; 3],
    pub intermediate: usize,
    pub activation: &'static str,
    pub patch: usize,
    /// Frames of a patch by default, where images have several.
    pub frames: Option<usize>,
    /// The field for it, if there is one, and its default.
    pub eps: (Option<&'static str>, f64),
    /// The token of an image by default.
    pub image_token: Option<u32>,
    /// Blocks after which rows for layers of the language part are made, by default; without them
    /// there are none.
    pub deepstack: Option<&'static [usize]>,
    /// How many frequencies take each axis by default: time, rows, columns. Without them tokens of
    /// the language part have one position.
    pub sections: Option<[usize; 3]>,
}

/// The fields outside of `vision_config` that say something of a tower.
pub(super) const OUTSIDE: [&str; 7] = [
    "mm_tokens_per_image",
    "image_token_id",
    "image_token_index",
    "spatial_merge_size",
    "projector_hidden_act",
    "multimodal_projector_bias",
    "vision_feature_layer",
];

const QWEN: Style = Style {
    path: "model.visual",
    older: None,
    projector: None,
    patch: Module { name: "patch_embed.proj", bias: true },
    table: Some("pos_embed"),
    turned: Turned::Same,
    around: [None, None],
    blocks: "blocks",
    norms: ["norm1", "norm2"],
    centred: true,
    queries: Queries::Together("attn.qkv"),
    out: "attn.proj",
    bias: true,
    gate: None,
    mlp: ["mlp.linear_fc1", "mlp.linear_fc2"],
    merger: Merger::Beside,
};

/// For Qwen3-VL.
pub(crate) const QWEN3_VL: Traits = Traits {
    style: &QWEN,
    prompt: Prompt { lines: None, written: None, together: false },
    fields: ["depth", "num_heads", "in_channels"],
    sizes: [27, 1152, 16],
    intermediate: 4304,
    activation: "gelu_pytorch_tanh",
    patch: 16,
    frames: Some(2),
    eps: (None, 1e-6),
    image_token: None,
    deepstack: Some(&[8, 16, 24]),
    sections: Some([24, 20, 20]),
};

/// For Qwen3.5.
pub(crate) const QWEN3_5: Traits = Traits { deepstack: None, sections: Some([11, 11, 10]), ..QWEN3_VL };

const PIXTRAL: Style = Style {
    path: "vision_tower",
    older: None,
    projector: Some("multi_modal_projector"),
    patch: Module { name: "patch_conv", bias: false },
    table: None,
    turned: Turned::Alternating,
    around: [Some("ln_pre"), None],
    blocks: "transformer.layers",
    norms: ["attention_norm", "ffn_norm"],
    centred: false,
    queries: Queries::Each(["attention.q_proj", "attention.k_proj", "attention.v_proj"]),
    out: "attention.o_proj",
    bias: false,
    gate: Some("feed_forward.gate_proj"),
    mlp: ["feed_forward.up_proj", "feed_forward.down_proj"],
    merger: Merger::Unfolded,
};

/// For Mistral Small 3.1 and later.
pub(crate) const MISTRAL3: Traits = Traits {
    style: &PIXTRAL,
    prompt: Prompt { lines: Some(["[IMG_BREAK]", "[IMG_END]"]), written: None, together: false },
    fields: ["num_hidden_layers", "num_attention_heads", "num_channels"],
    sizes: [24, 1024, 16],
    intermediate: 4096,
    activation: "gelu",
    patch: 16,
    frames: None,
    eps: (None, 1e-5),
    image_token: Some(10),
    deepstack: None,
    sections: None,
};

const SIGLIP: Style = Style {
    path: "vision_tower",
    older: Some("vision_tower.vision_model"),
    projector: Some("multi_modal_projector"),
    patch: Module { name: "embeddings.patch_embedding", bias: true },
    table: Some("embeddings.position_embedding"),
    turned: Turned::Never,
    around: [None, Some("post_layernorm")],
    blocks: "encoder.layers",
    norms: ["layer_norm1", "layer_norm2"],
    centred: true,
    queries: Queries::Each(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    out: "self_attn.out_proj",
    bias: true,
    gate: None,
    mlp: ["mlp.fc1", "mlp.fc2"],
    merger: Merger::Mean,
};

/// For Gemma 3. Its processor writes empty lines around an image.
pub(crate) const GEMMA3: Traits = Traits {
    style: &SIGLIP,
    prompt: Prompt {
        lines: None,
        written: Some(("<start_of_image>", ["\n\n<start_of_image>", "<end_of_image>\n\n"])),
        together: true,
    },
    fields: ["num_hidden_layers", "num_attention_heads", "num_channels"],
    sizes: [12, 768, 12],
    intermediate: 3072,
    activation: "gelu_pytorch_tanh",
    patch: 16,
    frames: None,
    eps: (Some("layer_norm_eps"), 1e-6),
    image_token: Some(262_144),
    deepstack: None,
    sections: None,
};
