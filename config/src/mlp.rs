//! The gated MLP of each layer, as a configuration describes it.
use crate::Diagnostic;
use crate::family::Switch;
use crate::fields::Fields;
use crate::kind::Weights;
use crate::scales;

/// Two projections, one through an activation, multiplied with each other and projected back.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    pub intermediate: usize,
    pub gate: Gate,
    /// What the projection of the gate is multiplied with before it goes through.
    pub gate_scale: f64,
    pub bias: bool,
    /// Whether the checkpoint has one weight for both projections, by the name of the gate's.
    pub fused: bool,
    pub modules: Modules,
}

/// Modules of the checkpoint: that of the MLP relative to the path of the layer, and its three
/// projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modules {
    pub path: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

impl Weights for Gated {
    fn rows(&self) -> (&'static str, usize) {
        ("intermediate_size", self.intermediate)
    }
}

/// What differs between families.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    pub bias: Switch,
    pub fused: bool,
    /// The field of the activation, and its default.
    pub activation: (&'static str, &'static str),
    /// Whether gates are clamped instead, of experts too.
    pub clamped: bool,
    /// Whether there is no gate: one inner projection, through the activation; of experts too.
    pub alone: bool,
    /// Whether the activation may be `situ`, of experts too.
    pub situ: bool,
    /// Whether both projections are cut off before the activation, of experts too: `swiglu_limit`
    /// by default.
    pub bounded: Option<f64>,
    pub width: Width,
    /// The field that lists a limit for each layer.
    pub limits: Option<&'static str>,
    /// The field with the factor of the gate and that of the result.
    pub factors: Option<&'static str>,
    /// The field that makes MLPs twice as wide in layers without keys and values of their own.
    pub doubled: Option<&'static str>,
    pub modules: Modules,
}

impl Traits {
    /// How many times as wide as the others the MLP of each layer is.
    fn times(&self, f: &Fields, layers: usize) -> Result<Vec<usize>, Diagnostic> {
        let Some(name) = self.doubled else { return Ok(vec![1; layers]) };
        let first = layers.saturating_sub(f.number("num_kv_shared_layers")?.unwrap_or(0));
        let is = f.given(name, Fields::flag, false)? && first < layers;
        f.note(name, is);
        Ok((0..layers).map(|layer| if is && layer >= first { 2 } else { 1 }).collect())
    }

    /// The limit of each layer, if it has one.
    pub(crate) fn limits(&self, f: &Fields, layers: usize) -> Result<Vec<Option<f64>>, Diagnostic> {
        self.limits.map_or_else(|| Ok(vec![None; layers]), |name| f.limits(name, layers))
    }
}

/// The rows of each inner projection.
#[derive(Clone, Copy)]
pub(crate) enum Width {
    /// As this field says.
    Field(&'static str),
    /// Two thirds of `block_ff_dim`, or else `intermediate_size`, times `block_ffn_dim_multiplier`
    /// and up to a multiple of `block_multiple_of`; unless `block_auto_adjust_ff_dim` is false.
    Adjusted,
}

impl Width {
    fn read(self, f: &Fields) -> Result<usize, Diagnostic> {
        let Width::Field(name) = self else { return adjusted(f) };
        f.needed(name, Fields::size)
    }
}

/// See [`Width::Adjusted`]: as transformers' `Lfm2MLP` computes it.
fn adjusted(f: &Fields) -> Result<usize, Diagnostic> {
    let name = if f.has("block_ff_dim") { "block_ff_dim" } else { "intermediate_size" };
    let whole = f.size(name)?.ok_or_else(|| f.missing(name))?;
    let mut width = whole;
    if f.given("block_auto_adjust_ff_dim", Fields::flag, true)? {
        width = 2 * whole / 3;
        let factor = "block_ffn_dim_multiplier";
        let factor = if f.has(factor) { f.positive_or_none(factor)? } else { Some(1.0) };
        if let Some(factor) = factor {
            let unit = f.given("block_multiple_of", Fields::size, 256)?;
            width = ((width as f64 * factor) as usize).next_multiple_of(unit);
        }
    }
    let width = f.at_most(name, width.max(1), crate::fields::MAX_SIZE)?;
    f.note("intermediate_size", width);
    Ok(width)
}

/// What makes an inner row of the two projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `activation(gate) * up`
    Plain(Activation),
    /// `activation(up)`, without a gate.
    Alone(Activation),
    /// As `Plain`, with the activated projection cut off at the limit, and the other one at that
    /// and its negative.
    Limited { activation: Activation, limit: f64 },
    /// `silu(gate) * up`, with the gate cut off at the limit before, and the other one at that and
    /// its negative.
    Bounded { limit: f64 },
    /// `gate * sigmoid(alpha * gate) * (up + 1)`, with both cut off at the limit.
    Clamped { alpha: f64, limit: f64 },
    /// `beta * tanh(gate / beta) * sigmoid(gate) * up`, perhaps with `linear * tanh(up / linear)`.
    Situ { beta: f64, linear: Option<f64> },
}

impl Gated {
    /// This MLP in a layer that may have a limit.
    pub(crate) fn limited(&self, limit: Option<f64>) -> Gated {
        Gated { gate: self.gate.limited(limit), ..self.clone() }
    }
}

impl Gate {
    /// The gate of a layer that may have a limit.
    pub(crate) fn limited(self, limit: Option<f64>) -> Gate {
        match (self, limit) {
            (Gate::Plain(activation), Some(limit)) => Gate::Limited { activation, limit },
            (gate, _) => gate,
        }
    }
}

/// What the gate of an MLP goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    Gelu,
    GeluTanh,
    QuickGelu,
    Relu,
    ReluSquared,
}

impl Activation {
    pub fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::QuickGelu => "quick_gelu",
            Activation::Relu => "relu",
            Activation::ReluSquared => "relu2",
        }
    }
}

const ACTIVATIONS: [(&str, Activation); 10] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("quick_gelu", Activation::QuickGelu),
    ("relu", Activation::Relu),
    ("relu2", Activation::ReluSquared),
];

/// The MLP of each layer.
pub(crate) fn read(f: &Fields, traits: &Traits, layers: usize) -> Result<Vec<Gated>, Diagnostic> {
    let [gate_scale, _] = traits.factors.map_or(Ok([1.0; 2]), |name| scales::several(f, name))?;
    let gated = Gated {
        intermediate: traits.width.read(f)?,
        gate: gate(f, traits)?,
        gate_scale,
        bias: traits.bias.read(f)?,
        fused: traits.fused,
        modules: traits.modules,
    };
    let of = |(limit, times): (Option<f64>, usize)| {
        let intermediate = gated.intermediate.saturating_mul(times);
        Gated { intermediate, ..gated.limited(limit) }
    };
    Ok(traits.limits(f, layers)?.into_iter().zip(traits.times(f, layers)?).map(of).collect())
}

/// The gate of every MLP.
pub(crate) fn gate(f: &Fields, traits: &Traits) -> Result<Gate, Diagnostic> {
    if let Some(usual) = traits.bounded {
        let (name, _) = traits.activation;
        if activation(f, traits.activation)? != Activation::Silu {
            return Err(f.fault(
                "config::unsupported",
                name,
                "an activation of numbers up to a limit: silu is supported",
            ));
        }
        return Ok(Gate::Bounded { limit: f.or("swiglu_limit", Fields::positive, usual)? });
    }
    if traits.situ && f.text(traits.activation.0)? == Some("situ") {
        f.note(traits.activation.0, "situ");
        let beta = f.positive_or_none("activation_situ_beta")?.unwrap_or(1.0);
        let linear = f.positive_or_none("activation_situ_linear_beta")?;
        f.note("activation_situ_beta", beta);
        f.note("activation_situ_linear_beta", linear);
        return Ok(Gate::Situ { beta, linear });
    }
    Ok(match traits.clamped {
        false if traits.alone => Gate::Alone(activation(f, traits.activation)?),
        false => Gate::Plain(activation(f, traits.activation)?),
        true => Gate::Clamped {
            alpha: f.or("swiglu_alpha", Fields::positive, 1.702)?,
            limit: f.or("swiglu_limit", Fields::positive, 7.0)?,
        },
    })
}

pub(crate) fn activation(f: &Fields, (name, default): (&'static str, &'static str)) -> Result<Activation, Diagnostic> {
    if f.has(name) && f.get(name).is_none() {
        return Err(f.fault("config::value", name, "must be a text, not null"));
    }
    let activation = f.one_of(name, default, &ACTIVATIONS)?;
    f.note(name, activation.name());
    Ok(activation)
}
