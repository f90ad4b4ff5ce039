//! `fp8`: codes of e4m3, as DeepSeek, Qwen and Kimi are released.
use super::names::Names;
use super::{Around, Axes, Blocks, EXPERTS, InputScales, Inputs, Quantisation, Scheme, Stored, without};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

/// Columns that share a scale in MX formats.
pub const MX_GROUP: usize = 32;

/// What releases of a family have with `fp8`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Release {
    /// The tensor with the scales of blocks.
    pub scale: &'static str,
    /// Ends of the names of products whose weights are floats.
    pub floats: &'static [&'static str],
    /// What names of experts' products have in them, for a family whose releases say by a field
    /// which codes these have.
    pub experts: Option<&'static str>,
}

/// Scales as most have them, and codes of one type.
pub(crate) const USUAL: Release = Release { scale: "weight_scale_inv", floats: &[], experts: None };

pub fn read(f: &Fields, around: &Around) -> Result<Quantisation, Diagnostic> {
    f.one_of("fmt", "e4m3", &[("e4m3", ()), ("float8_e4m3fn", ())])?;
    let is_dynamic = f.one_of("activation_scheme", "dynamic", &[("dynamic", true), ("static", false)])?;
    if f.flag("is_checkpoint_fp8_serialized")? == Some(false) {
        let message = "must be true: there are no codes otherwise";
        return Err(f.fault("config::quantised", "is_checkpoint_fp8_serialized", message));
    }
    // Scales in memory are f32 in both. A file may have powers of two as one byte each.
    let is_power = f.one_of("scale_fmt", "float", &[("float", false), ("ue8m0", true)])?;
    let square = f.sizes("weight_block_size")?;
    let scheme = match square.as_deref() {
        None if is_power => return Err(f.fault("config::quantised", "scale_fmt", "\"ue8m0\" goes with blocks alone")),
        None => Scheme {
            blocks: Blocks::Tensor,
            stored: Stored::Codes { scale: "weight_scale", axes: Axes::One },
            inputs: inputs(if is_dynamic { InputScales::Row } else { InputScales::Static }),
            ..CODES
        },
        Some(&[rows, cols]) if is_dynamic => Scheme {
            blocks: Blocks::Square(rows, cols),
            stored: Stored::Codes { scale: around.release.scale, axes: Axes::Matrix },
            inputs: inputs(if is_power { InputScales::Power(cols) } else { InputScales::Group(cols) }),
            ..CODES
        },
        Some([_, _]) => {
            let message = "\"static\" does not go with weight_block_size";
            return Err(f.fault("config::quantised", "activation_scheme", message));
        }
        Some(_) => return Err(f.fault("config::value", "weight_block_size", "must be two sizes")),
    };
    let of_experts = experts(f, around, &scheme)?;
    all_but_excluded(f, "fp8", (around.release.floats, of_experts), scheme)
}

/// The rule of experts, if their codes are others than those of `plain`: e2m1, with a power of two
/// for 32 columns, which multiply rows as they are. The field is beside the method's own, or among
/// those of the model.
fn experts(f: &Fields, around: &Around, plain: &Scheme) -> Result<Option<(Names, Scheme)>, Diagnostic> {
    let Some(modules) = around.release.experts else {
        without(f, EXPERTS)?;
        without(around.model, EXPERTS)?;
        return Ok(None);
    };
    let known = [("fp8", false), ("fp4", true)];
    let outer = around.model.one_of(EXPERTS, "fp8", &known)?;
    let is_fours = f.one_of(EXPERTS, known[usize::from(outer)].0, &known)?;
    if around.model.get(EXPERTS).is_some() && is_fours != outer {
        let message = format!("is another than that of the model, {:?}", known[usize::from(outer)].0);
        return Err(f.fault("config::quantised", EXPERTS, message));
    }
    if is_fours && matches!(plain.blocks, Blocks::Tensor) {
        return Err(f.fault("config::quantised", EXPERTS, "\"fp4\" goes with weight_block_size"));
    }
    let fours = Scheme {
        codes: DType::F4E2M1,
        scales: DType::E8M0,
        blocks: Blocks::Group(MX_GROUP),
        stored: Stored::Pairs { weight: "weight", scale: around.release.scale },
        inputs: None,
        ..plain.clone()
    };
    Ok(is_fours.then(|| (Names::within(&[modules]), fours)))
}

/// `mxfp8`: codes of e4m3 with a power of two for 32 columns, as MiniMax-M3 is released.
pub fn read_powers(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    f.one_of("activation_scheme", "dynamic", &[("dynamic", ())])?;
    if f.sizes("weight_block_size")?.is_some_and(|block| block != [1, MX_GROUP]) {
        let message = format!("must be [1, {MX_GROUP}], which mxfp8 means");
        return Err(f.fault("config::value", "weight_block_size", message));
    }
    let scheme = Scheme {
        scales: DType::E8M0,
        blocks: Blocks::Group(MX_GROUP),
        stored: Stored::Codes { scale: "weight_scale_inv", axes: Axes::Matrix },
        inputs: inputs(InputScales::Mx(MX_GROUP)),
        ..CODES
    };
    all_but_excluded(f, "mxfp8", (&[], None), scheme)
}

/// Every product in a scheme but those of modules that are listed, that are `floats`, or that have
/// a rule of their own.
fn all_but_excluded(
    f: &Fields,
    method: &'static str,
    (floats, own): (&[&'static str], Option<(Names, Scheme)>),
    scheme: Scheme,
) -> Result<Quantisation, Diagnostic> {
    let mut excluded = vec!["lm_head"];
    excluded.extend(floats);
    for name in ["modules_to_not_convert", "ignored_layers"] {
        excluded.extend(f.texts(name)?.unwrap_or_default());
    }
    excluded.sort_unstable();
    excluded.dedup();
    let fault = |e| f.fault("config::value", "modules_to_not_convert", e);
    let mut rules = vec![(Names::parts(&excluded).map_err(fault)?, None)];
    rules.extend(own.map(|(names, scheme)| (names, Some(scheme))));
    rules.push((Names::all(), Some(scheme)));
    Ok(Quantisation { method, rules, cache: None })
}

/// Codes of e4m3 with scales in f32.
pub const CODES: Scheme = Scheme {
    codes: DType::F8E4M3,
    scales: DType::F32,
    blocks: Blocks::Tensor,
    zeros: false,
    stored: Stored::Codes { scale: "weight_scale", axes: Axes::One },
    inputs: None,
};

fn inputs(scales: InputScales) -> Option<Inputs> {
    Some(Inputs { codes: DType::F8E4M3, scales })
}
