//! `fp8`: codes of e4m3, as DeepSeek, Qwen and Kimi are released.
use super::names::Names;
use super::{Axes, Blocks, InputScales, Inputs, Quantisation, Scheme, Stored, without};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

/// Columns that share a scale in MX formats.
const MX_GROUP: usize = 32;

pub fn read(f: &Fields, _: DType) -> Result<Quantisation, Diagnostic> {
    f.one_of("fmt", "e4m3", &[("e4m3", ()), ("float8_e4m3fn", ())])?;
    let is_dynamic = f.one_of("activation_scheme", "dynamic", &[("dynamic", true), ("static", false)])?;
    if f.flag("is_checkpoint_fp8_serialized")? == Some(false) {
        let message = "must be true: there are no codes otherwise";
        return Err(f.fault("config::quantised", "is_checkpoint_fp8_serialized", message));
    }
    // Scales in the file are f32 in both.
    let is_power = f.one_of("scale_fmt", "float", &[("float", false), ("ue8m0", true)])?;
    without(f, "expert_dtype")?;
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
            stored: Stored::Codes { scale: "weight_scale_inv", axes: Axes::Matrix },
            inputs: inputs(if is_power { InputScales::Power(cols) } else { InputScales::Group(cols) }),
            ..CODES
        },
        Some([_, _]) => {
            let message = "\"static\" does not go with weight_block_size";
            return Err(f.fault("config::quantised", "activation_scheme", message));
        }
        Some(_) => return Err(f.fault("config::value", "weight_block_size", "must be two sizes")),
    };
    all_but_excluded(f, "fp8", scheme)
}

/// `mxfp8`: codes of e4m3 with a power of two for 32 columns, as MiniMax-M3 is released.
pub fn read_powers(f: &Fields, _: DType) -> Result<Quantisation, Diagnostic> {
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
    all_but_excluded(f, "mxfp8", scheme)
}

/// Every product in a scheme but those of modules that are listed.
fn all_but_excluded(f: &Fields, method: &'static str, scheme: Scheme) -> Result<Quantisation, Diagnostic> {
    let mut excluded = vec!["lm_head"];
    for name in ["modules_to_not_convert", "ignored_layers"] {
        excluded.extend(f.texts(name)?.unwrap_or_default());
    }
    excluded.sort_unstable();
    excluded.dedup();
    let fault = |e| f.fault("config::value", "modules_to_not_convert", e);
    let rules = vec![(Names::parts(&excluded).map_err(fault)?, None), (Names::all(), Some(scheme))];
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
