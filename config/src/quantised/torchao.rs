//! `torchao`: codes with their scales as transformers saves them in safetensors.
use serde_json::Value;

use super::names::Names;
use super::{Around, Axes, Blocks, InputScales, Inputs, Named, Quantisation, Scheme, Stored, without};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

/// The tensors of a weight with a code an element.
const CODES: Named =
    Named { weight: "_weight_qdata", scale: "_weight_scale", axes: Axes::Matrix, by: None, zeros: None };

/// A configuration's name, its codes, and whether rows become codes, too.
const TYPES: [(&str, (DType, bool)); 4] = [
    ("Int8WeightOnlyConfig", (DType::I8, false)),
    ("Int8DynamicActivationInt8WeightConfig", (DType::I8, true)),
    ("Float8WeightOnlyConfig", (DType::F8E4M3, false)),
    ("Float8DynamicActivationFloat8WeightConfig", (DType::F8E4M3, true)),
];

pub fn read(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    without(f, "include_input_output_embeddings")?;
    if f.text("quant_type").is_ok_and(|name| name.is_some()) {
        let message = "is a name, as older versions wrote it into files of pickled tensors";
        let help =
            "Load the model with transformers and save it again with a torchao of 2026, which writes safetensors.";
        return Err(f.fault("config::quantised", "quant_type", message).help(help));
    }
    let types = f.object("quant_type")?.ok_or_else(|| f.missing("quant_type"))?;
    let of = types.object("default")?.ok_or_else(|| types.missing("default"))?;
    let name = of.text("_type")?.ok_or_else(|| of.missing("_type"))?;
    let Some((_, (codes, is_dynamic))) = TYPES.into_iter().find(|(known, _)| *known == name) else {
        let known = TYPES.map(|(known, _)| known).join(", ");
        let help =
            "Others are saved as floats (`model.dequantize()` of transformers), and become codes here with `--quant`.";
        let fault = of.fault("config::quantised", "_type", format!("{name:?} is not supported"));
        return Err(fault.help(format!("Known: {known}. {help}")));
    };
    if of.size("_version")? != Some(2) {
        let message = "only version 2 is supported";
        return Err(of
            .fault("config::quantised", "_version", message)
            .help("Save the model again with a torchao of 2026."));
    }
    let data = of.object("_data")?.ok_or_else(|| of.missing("_data"))?;
    let scheme = scheme(&data, codes, is_dynamic)?;
    let excluded = f.texts("modules_to_not_convert")?.unwrap_or_default();
    let fault = |e| f.fault("config::value", "modules_to_not_convert", e);
    let rules = vec![(Names::parts(&excluded).map_err(fault)?, None), (Names::layers(&[]), Some(scheme))];
    Ok(Quantisation { method: "torchao", rules, cache: None })
}

fn scheme(f: &Fields, codes: DType, is_dynamic: bool) -> Result<Scheme, Diagnostic> {
    for name in ["group_size", "reduce_range", "weight_only_decode"] {
        without(f, name)?;
    }
    if codes == DType::F8E4M3 {
        for name in ["weight_dtype", "activation_dtype"] {
            if let Some(of) = f.object(name)? {
                of.one_of("_data", "float8_e4m3fn", &[("float8_e4m3fn", ())])?;
            }
        }
    } else if let Some(of) = f.object("act_mapping_type")? {
        of.one_of("_data", "SYMMETRIC", &[("SYMMETRIC", ())])?;
    }
    let blocks = granularity(f)?;
    let zeros = (codes == DType::I8).then_some(("_weight_zero_point", Axes::Matrix));
    let inputs = is_dynamic.then_some(Inputs { codes, scales: InputScales::Row });
    Ok(Scheme { codes, blocks, stored: Stored::Named(Named { zeros, ..CODES }), inputs, ..super::fp8::CODES })
}

/// What has a scale: of the weight and, where two are listed, of rows.
fn granularity(f: &Fields) -> Result<Blocks, Diagnostic> {
    let one = |value: &Value| match value.get("_type").and_then(Value::as_str) {
        Some("PerRow") => Some(Blocks::Row),
        Some("PerTensor") => Some(Blocks::Tensor),
        _ => None,
    };
    let blocks = match f.get("granularity") {
        None => Some(Blocks::Row),
        Some(Value::Array(two)) if two.len() == 2 && one(&two[0]) == one(&two[1]) => one(&two[1]),
        Some(value) => one(value),
    };
    let message = "must be PerRow or PerTensor, the same for rows and weight";
    blocks.ok_or_else(|| f.fault("config::quantised", "granularity", message))
}
