//! Layers with the state space of Mamba-2, and what a configuration says of them.
use crate::Diagnostic;
use crate::fields::Fields;
use crate::kind::Weights;
use crate::scales;
use serde_json::json;

/// Longest convolution: published models have four tokens.
const MAX_CONV: usize = 64;
/// Widest heads, and states: kernels keep a head's state in registers or on the stack.
const MAX_DIM: usize = 256;

/// A short convolution, then a linear recurrence by heads, with groups of heads that share what is
/// written and what is read; a gate and a norm of each group behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ssm {
    pub module: &'static str,
    pub heads: usize,
    pub head_dim: usize,
    pub groups: usize,
    /// Numbers of a row that is written into a head's state.
    pub state: usize,
    /// Tokens that the convolution sees.
    pub conv: usize,
    pub conv_bias: bool,
    pub bias: bool,
    /// What the parts of the inner projection are multiplied with: gates, values, what is written,
    /// what is read, steps of time.
    pub factors: [f64; 5],
    pub norm: GroupNorm,
}

/// The norm of each group behind the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupNorm {
    /// Of rows times their gate, rounded before its weight.
    Rounded,
    /// Of rows times their gate, rounded once.
    Gated,
    /// Before rows are multiplied with their gate, rounded once.
    Before,
    /// There is none: rows times their gate.
    None,
}

impl Weights for Ssm {
    fn rows(&self) -> (&'static str, usize) {
        ("mamba_n_heads", self.projected())
    }
}

impl Ssm {
    /// Numbers of a token's heads.
    pub fn width(&self) -> usize {
        self.heads.saturating_mul(self.head_dim)
    }

    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        self.width().saturating_add(self.groups.saturating_mul(2 * self.state))
    }

    /// Rows of the inner projection: gates, channels, and a step of time for each head.
    pub fn projected(&self) -> usize {
        self.width().saturating_add(self.channels()).saturating_add(self.heads)
    }
}

/// What differs between families.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    pub module: &'static str,
    /// Without the fields of the same meaning; without a width heads share out the inner width.
    pub head_dim: Option<usize>,
    pub groups: usize,
    pub state: usize,
    /// Says whether the projections have a bias.
    pub bias: &'static str,
    /// Names the activation behind the convolution.
    pub activation: &'static str,
    /// For a family whose layers have attention beside the state space.
    pub beside: Option<Beside>,
}

/// What a state space beside attention has of its own.
#[derive(Clone, Copy)]
pub(crate) struct Beside {
    /// The field of the inner width, and its default; null means by the hidden size.
    pub width: (&'static str, usize),
    /// The field with the factors of the inner projection's parts.
    pub factors: &'static str,
}

impl Beside {
    /// The norm, which there need not be.
    fn norm(f: &Fields) -> Result<GroupNorm, Diagnostic> {
        if !f.or("mamba_rms_norm", Fields::flag, false)? {
            return Ok(GroupNorm::None);
        }
        let before = f.or("mamba_norm_before_gate", Fields::flag, true)?;
        Ok(if before { GroupNorm::Before } else { GroupNorm::Gated })
    }
}

/// Such a mixer for the layers that are said to have one.
pub(crate) fn read(f: &Fields, traits: &Traits, hidden: usize, is: Vec<bool>) -> Result<Vec<Option<Ssm>>, Diagnostic> {
    if !is.contains(&true) {
        return Ok(vec![None; is.len()]);
    }
    let heads = f.or("mamba_n_heads", Fields::size, 128)?;
    let width = width(f, traits, hidden)?;
    let head_dim = match f.get("mamba_d_head").is_none_or(|value| *value == json!("auto")) {
        true => traits.head_dim.unwrap_or(width / heads),
        false => f.given("mamba_d_head", Fields::size, 1)?,
    };
    let head_dim = f.at_most("mamba_d_head", head_dim.max(1), MAX_DIM)?;
    f.note("mamba_d_head", head_dim);
    if traits.beside.is_some() && head_dim.saturating_mul(heads) != width {
        let message = format!("{head_dim} elements of {heads} heads are not the inner width, {width}");
        return Err(f.fault("config::value", "mamba_d_head", message));
    }
    let groups = f.or("mamba_n_groups", Fields::size, traits.groups)?;
    if !heads.is_multiple_of(groups) {
        let message = format!("{heads} is no multiple of mamba_n_groups, {groups}");
        return Err(f.fault("config::value", "mamba_n_heads", message));
    }
    let state = f.at_most("mamba_d_state", f.or("mamba_d_state", Fields::size, traits.state)?, MAX_DIM)?;
    let name = "mamba_d_conv";
    let conv = f.at_most(name, f.or(name, Fields::size, 4)?, MAX_CONV)?;
    if conv < 2 {
        return Err(f.fault("config::value", name, "must be at least 2: a convolution of one token has no state"));
    }
    check_steps(f)?;
    let name = traits.activation;
    if f.text(name)?.is_some_and(|activation| !matches!(activation, "silu" | "swish")) {
        return Err(f.fault("config::unsupported", name, "is not supported: it must be silu"));
    }
    let conv_bias = f.or("mamba_conv_bias", Fields::flag, true)?;
    let bias = f.or(traits.bias, Fields::flag, false)?;
    let (factors, norm) = match traits.beside {
        Some(beside) => (scales::several(f, beside.factors)?, Beside::norm(f)?),
        None => ([1.0; 5], GroupNorm::Rounded),
    };
    let module = traits.module;
    let ssm = Ssm { module, heads, head_dim, groups, state, conv, conv_bias, bias, factors, norm };
    f.at_most("mamba_n_heads", ssm.projected(), crate::fields::MAX_SIZE)?;
    Ok(is.into_iter().map(|is| is.then(|| ssm.clone())).collect())
}

/// Numbers of a token's heads.
fn width(f: &Fields, traits: &Traits, hidden: usize) -> Result<usize, Diagnostic> {
    let by_hidden = f.given("mamba_expand", Fields::size, 2)?.saturating_mul(hidden);
    let Some(Beside { width: (name, usual), .. }) = traits.beside else { return Ok(by_hidden) };
    let width = match f.has(name) {
        true => f.size(name)?.unwrap_or(by_hidden),
        false => usual,
    };
    f.note(name, width);
    Ok(width)
}

/// Whether each layer is of this kind: those that `layer_types` lists, or else all.
/// `layers_block_type` is an old name of the field.
pub(crate) fn listed(f: &Fields, layers: usize) -> Result<Vec<bool>, Diagnostic> {
    let old = "layers_block_type";
    let name = if f.has("layer_types") || !f.has(old) { "layer_types" } else { old };
    let Some(types) = f.texts(name)? else { return Ok(vec![true; layers]) };
    let of = |found: &&str| match *found {
        "mamba" | "linear_attention" => Ok(true),
        "attention" | "full_attention" => Ok(false),
        other => Err(f.fault("config::value", name, format!("unknown layer type {other:?}"))),
    };
    let is: Vec<bool> = f.of_layers(name, types, layers)?.iter().map(of).collect::<Result<_, _>>()?;
    f.note("layer_types", &is[..]);
    Ok(is)
}

/// Steps of time have no limits, as in every release.
fn check_steps(f: &Fields) -> Result<(), Diagnostic> {
    let name = "time_step_limit";
    let none = match f.get(name) {
        None => true,
        Some(value) => value.as_array().is_some_and(|limits| {
            let [low, high] = &limits[..] else { return false };
            low.as_f64() == Some(0.0) && high.as_f64().is_none_or(|high| high.is_infinite() || high > 1e30)
        }),
    };
    match none {
        true => Ok(()),
        false => Err(f.fault("config::unsupported", name, "is not supported: steps of time may be limited by 0 alone")),
    }
}
