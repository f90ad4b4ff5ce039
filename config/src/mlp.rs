//! The gated MLP of each layer, as a configuration describes it.
use crate::Diagnostic;
use crate::family::Switch;
use crate::fields::Fields;
use crate::kind::Weights;

/// Two projections, one through an activation, multiplied with each other and projected back.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    pub intermediate: usize,
    pub activation: Activation,
    pub bias: bool,
    /// Whether the checkpoint has one weight for both projections.
    pub fused: bool,
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
}

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

/// The MLP of every layer.
pub(crate) fn read(f: &Fields, traits: &Traits) -> Result<Gated, Diagnostic> {
    Ok(Gated {
        intermediate: f.needed("intermediate_size", Fields::size)?,
        activation: activation(f, traits.activation)?,
        bias: traits.bias.read(f)?,
        fused: traits.fused,
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
