//! Layers with a recurrent state, the gated delta rule (Gated DeltaNet), and what a configuration
//! says of them.
use crate::Diagnostic;
use crate::fields::Fields;
use crate::kind::Weights;

/// Longest convolution: published models have four tokens.
const MAX_CONV: usize = 64;
/// Widest heads: kernels keep a head's state in registers or on the stack.
const MAX_HEAD_DIM: usize = 256;

/// A short convolution of queries, keys and values, then the gated delta rule, by heads of values.
/// Several of these share a query and a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    pub key_heads: usize,
    /// Heads of values, each with a state.
    pub heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub conv: usize,
    pub stored: StoredDelta,
}

impl Weights for Delta {
    fn rows(&self) -> (&'static str, usize) {
        ("linear_num_value_heads", self.channels() + self.value_rows())
    }
}

/// How a checkpoint has the projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredDelta {
    /// `in_proj_qkvz` and `in_proj_ba`, grouped by key head: each head's rows of all parts are
    /// together.
    Grouped,
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`.
    Apart,
    /// `q_proj`, `k_proj` and `v_proj`, each with a convolution, `b_proj`, and two products each
    /// for the decay, which has a number for each element of a key, and for the gate.
    ByChannel,
}

impl Delta {
    /// Rows of queries, or of keys.
    pub fn key_rows(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Rows of values, and of their gates.
    pub fn value_rows(&self) -> usize {
        self.heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_rows() + self.value_rows()
    }
}

/// The layers that have such a mixer, by number; others have none.
pub(crate) fn read(f: &Fields, stored: StoredDelta, layers: usize) -> Result<Vec<Option<Delta>>, Diagnostic> {
    if stored == StoredDelta::ByChannel {
        return by_channel(f, layers);
    }
    let linear = linear(f, layers)?;
    if !linear.contains(&true) {
        return Ok(vec![None; layers]);
    }
    let key_heads = f.or("linear_num_key_heads", Fields::size, 16)?;
    let heads = f.or("linear_num_value_heads", Fields::size, 32)?;
    if !heads.is_multiple_of(key_heads) {
        let message = format!("{heads} is no multiple of linear_num_key_heads, {key_heads}");
        return Err(f.fault("config::value", "linear_num_value_heads", message));
    }
    let width = |name| f.at_most(name, f.or(name, Fields::size, 128)?, MAX_HEAD_DIM);
    let (key_dim, value_dim) = (width("linear_key_head_dim")?, width("linear_value_head_dim")?);
    let name = "linear_conv_kernel_dim";
    let conv = f.at_most(name, f.or(name, Fields::size, 4)?, MAX_CONV)?;
    if conv < 2 {
        return Err(f.fault("config::value", name, "must be at least 2: a convolution of one token has no state"));
    }
    let delta = Delta { key_heads, heads, key_dim, value_dim, conv, stored };
    f.at_most("linear_num_value_heads", delta.heads.max(key_heads), crate::fields::MAX_SIZE / (4 * MAX_HEAD_DIM))?;
    Ok(linear.into_iter().map(|is| is.then(|| delta.clone())).collect())
}

/// The layers with a decay for each element of a key. Releases have an object of their fields,
/// whose lists count layers from 1; transformers writes them beside all others.
fn by_channel(f: &Fields, layers: usize) -> Result<Vec<Option<Delta>>, Diagnostic> {
    let own = f.object("linear_attn_config")?;
    let (of, [heads, dim, conv]) = match &own {
        Some(own) => (own, ["num_heads", "head_dim", "short_conv_kernel_size"]),
        None => (f, ["linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"]),
    };
    let listed = own.as_ref().map(|own| own.sizes("kda_layers")).transpose()?.flatten();
    let linear: Vec<bool> = match (f.layers_of_type("linear_attention", layers)?, listed) {
        (Some(linear), _) => linear,
        (None, Some(listed)) => (1..=layers).map(|layer| listed.contains(&layer)).collect(),
        (None, None) => (0..layers).map(|layer| layer == 0 || !layer.is_multiple_of(4)).collect(),
    };
    f.note("layer_types", &linear[..]);
    let number = |name, read, default, most| of.at_most(name, of.given(name, read, default)?, most);
    let heads = number(heads, Fields::size, 32, crate::fields::MAX_SIZE / (4 * MAX_HEAD_DIM))?;
    let width = number(dim, Fields::size, 128, MAX_HEAD_DIM)?;
    let tokens = number(conv, Fields::size, 4, MAX_CONV)?;
    if tokens < 2 {
        return Err(of.fault("config::value", conv, "must be at least 2: a convolution of one token has no state"));
    }
    let (key_dim, value_dim, stored) = (width, width, StoredDelta::ByChannel);
    let delta = Delta { key_heads: heads, heads, key_dim, value_dim, conv: tokens, stored };
    for (name, number) in [("linear_num_heads", heads), ("linear_head_dim", width), ("linear_conv_kernel_dim", tokens)]
    {
        f.note(name, number);
    }
    Ok(linear.into_iter().map(|is| is.then(|| delta.clone())).collect())
}

/// Whether each layer is linear: those that `layer_types` lists, or else all but each
/// `full_attention_interval`-th.
fn linear(f: &Fields, layers: usize) -> Result<Vec<bool>, Diagnostic> {
    let name = "layer_types";
    let linear = match f.layers_of_type("linear_attention", layers)? {
        Some(linear) => linear,
        None => {
            let interval = f.given("full_attention_interval", Fields::size, 4)?;
            (1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect()
        }
    };
    f.note(name, &linear[..]);
    Ok(linear)
}
