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
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StoredDelta {
    /// `in_proj_qkvz` and `in_proj_ba`, grouped by key head: each head's rows of all parts are
    /// together.
    Grouped,
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`.
    Apart,
    /// `q_proj`, `k_proj` and `v_proj`, each with a convolution, `b_proj`, and products for the
    /// gate and for the decay, which has a number for each element of a key.
    ByChannel(ByChannel),
}

/// A layer with a decay for each element of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByChannel {
    /// Its module in the checkpoint, relative to the path of the layer, and the outer projection.
    pub module: &'static str,
    pub outer: &'static str,
    pub decay: Product,
    pub gate: Product,
    pub log: StoredLog,
    /// What logarithms of decays stay above, where they are a logistic function and not a softplus.
    pub least: Option<f64>,
}

/// How `A_log` has its number for each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredLog {
    Heads,
    /// As the third of four axes.
    FourAxes,
    /// As the first of as many numbers as a head has elements.
    FirstOfWidth,
}

/// How a row of values is made of the hidden row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// By one product.
    Whole,
    /// By way of a row of a head's width.
    Short,
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

/// What differs between families.
#[derive(Clone, Copy)]
pub(crate) enum Traits {
    /// A decay for each head.
    ByHead(StoredDelta),
    /// A decay for each element of a key.
    ByChannel(ByChannel, Rule),
}

/// Where a family says which layers are of this kind, and how large they are.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Rule {
    /// In an object of their own, which transformers writes beside all others.
    Object,
    /// Heads are those of attention, and each `layer_group_size`-th layer is another, which is this
    /// by default.
    Groups(usize),
}

/// The layers that have such a mixer, by number; others have none.
pub(crate) fn read(f: &Fields, traits: Traits, layers: usize) -> Result<Vec<Option<Delta>>, Diagnostic> {
    let stored = match traits {
        Traits::ByHead(stored) => stored,
        Traits::ByChannel(channels, Rule::Object) => return in_object(f, channels, layers),
        Traits::ByChannel(channels, Rule::Groups(usual)) => return in_groups(f, channels, (layers, usual)),
    };
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
fn in_object(f: &Fields, channels: ByChannel, layers: usize) -> Result<Vec<Option<Delta>>, Diagnostic> {
    let own = f.object("linear_attn_config")?;
    let (of, names) = match &own {
        Some(own) => (own, ["num_heads", "head_dim", "short_conv_kernel_size"]),
        None => (f, NOTED),
    };
    let whole = of.given("use_full_rank_gate", Fields::flag, channels.gate == Product::Whole)?;
    let gate = if whole { Product::Whole } else { Product::Short };
    f.note("use_full_rank_gate", whole);
    let least = least((of, "gate_lower_bound"), channels.least)?;
    let channels = ByChannel { gate, least, ..channels };
    let listed = own.as_ref().map(|own| own.sizes("kda_layers")).transpose()?.flatten();
    let linear: Vec<bool> = match (f.layers_of_type("linear_attention", layers)?, listed) {
        (Some(linear), _) => linear,
        (None, Some(listed)) => (1..=layers).map(|layer| listed.contains(&layer)).collect(),
        (None, None) => (0..layers).map(|layer| layer == 0 || !layer.is_multiple_of(4)).collect(),
    };
    f.note("layer_types", &linear[..]);
    let delta = of_channels(of, channels, names)?;
    Ok(linear.into_iter().map(|is| is.then(|| delta.clone())).collect())
}

/// The same, where such layers have the heads of attention. What transformers has read, it writes
/// by names of its own, and `head_dim` is another size then.
fn in_groups(
    f: &Fields,
    channels: ByChannel,
    (layers, usual): (usize, usize),
) -> Result<Vec<Option<Delta>>, Diagnostic> {
    let linear = match f.layers_of_type("linear_attention", layers)? {
        Some(linear) => linear,
        None => {
            let group = f.given("layer_group_size", Fields::size, usual)?;
            (1..=layers).map(|layer| !layer.is_multiple_of(group)).collect()
        }
    };
    f.note("layer_types", &linear[..]);
    let released = ["num_attention_heads", "head_dim", "short_conv_kernel_size"];
    let names = [0, 1, 2].map(|i| if f.has(NOTED[i]) { NOTED[i] } else { released[i] });
    let least = match f.or("kda_safe_gate", Fields::flag, channels.least.is_some())? {
        true => least((f, "kda_lower_bound"), channels.least)?,
        false => None,
    };
    let delta = of_channels(f, ByChannel { least, ..channels }, names)?;
    Ok(linear.into_iter().map(|is| is.then(|| delta.clone())).collect())
}

/// What logarithms of decays stay above, as a field says: a number below zero.
fn least((f, name): (&Fields, &'static str), usual: Option<f64>) -> Result<Option<f64>, Diagnostic> {
    let least = f.negative_or_none(name)?.or(usual);
    f.note(name, least);
    Ok(least)
}

/// What the sizes of such layers are noted as.
const NOTED: [&str; 3] = ["linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"];

/// A layer with the sizes that fields of these names have.
fn of_channels(f: &Fields, channels: ByChannel, names: [&'static str; 3]) -> Result<Delta, Diagnostic> {
    let [heads, dim, conv] = names;
    let number = |name, default, most| f.at_most(name, f.given(name, Fields::size, default)?, most);
    let heads = number(heads, 32, crate::fields::MAX_SIZE / (4 * MAX_HEAD_DIM))?;
    let width = number(dim, 128, MAX_HEAD_DIM)?;
    let tokens = number(conv, 4, MAX_CONV)?;
    if tokens < 2 {
        return Err(f.fault("config::value", conv, "must be at least 2: a convolution of one token has no state"));
    }
    if channels.log == StoredLog::FirstOfWidth && heads > width {
        return Err(f.fault("config::value", names[0], format!("{heads} heads, of which `A_log` has {width} numbers")));
    }
    for (name, size) in NOTED.into_iter().zip([heads, width, tokens]) {
        f.note(name, size);
    }
    let (key_dim, value_dim, stored) = (width, width, StoredDelta::ByChannel(channels));
    Ok(Delta { key_heads: heads, heads, key_dim, value_dim, conv: tokens, stored })
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
