//! `quark`: the format of AMD's tool.
use serde_json::Value;

use super::names::Names;
use super::{Around, Axes, Blocks, CacheScales, InputScales, Inputs, Quantisation, Scheme, Stored, without};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

pub fn read(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    let Some(export) = f.object("export")? else { return Err(f.missing("export")) };
    without(f, "softmax_quant_spec")?;
    let format = export.text("weight_format")?.unwrap_or("real_quantized");
    if format != "real_quantized" {
        let message = format!("must be \"real_quantized\", not {format:?}");
        return Err(export.fault("config::quantised", "weight_format", message));
    }
    let excluded = f.texts("exclude")?.unwrap_or_default();
    let mut rules = vec![(Names::globs(&excluded).map_err(|e| f.fault("config::value", "exclude", e))?, None)];
    if let Some(layers) = f.object("layer_quant_config")? {
        for (name, _) in layers.entries() {
            let names = Names::globs(&[name.as_str()]).map_err(|e| layers.fault("config::value", name, e))?;
            let Some(spec) = layers.object(name)? else { continue };
            rules.push((names, scheme(&spec)?));
        }
    }
    let types = f.object("layer_type_quant_config")?;
    let of_type = types.as_ref().map(|types| types.object("Linear")).transpose()?.flatten();
    match of_type.or(f.object("global_quant_config")?) {
        Some(spec) => rules.push((Names::all(), scheme(&spec)?)),
        None => return Err(f.missing("global_quant_config")),
    }
    Ok(Quantisation { method: "quark", rules, cache: cache(f)? })
}

/// The specification of one kind of tensors.
struct Spec<'a> {
    f: Fields<'a>,
    dtype: &'a str,
    scheme: &'a str,
    is_dynamic: bool,
    group: Option<usize>,
    scales: &'a str,
}

impl<'a> Spec<'a> {
    fn read(f: &Fields<'a>, name: &str) -> Result<Option<Spec<'a>>, Diagnostic> {
        let several = matches!(f.get(name), Some(Value::Array(list)) if list.len() > 1);
        if several {
            return Err(f.fault("config::quantised", name, "several forms, one after the other, are not supported"));
        }
        let f = match f.first(name)? {
            Some(first) => first,
            None => return Ok(None),
        };
        let text = |name: &str| f.text(name).and_then(|text| text.ok_or_else(|| f.missing(name)));
        let (dtype, scheme) = (text("dtype")?, text("qscheme")?);
        let (is_dynamic, group) = (f.flag("is_dynamic")?.unwrap_or(false), f.size_or_none("group_size")?);
        let scales = f.text("scale_format")?.unwrap_or("float");
        Ok(Some(Spec { dtype, scheme, is_dynamic, group, scales, f }))
    }

    fn unknown(&self) -> Diagnostic {
        let Spec { dtype, scheme, scales, .. } = self;
        let message = format!("{dtype:?} with scales of {scales:?} {scheme:?} is not supported");
        self.f.fault("config::quantised", "dtype", message)
    }
}

fn scheme(f: &Fields) -> Result<Option<Scheme>, Diagnostic> {
    let Some(weight) = Spec::read(f, "weight")? else { return Ok(None) };
    for name in ["output_tensors", "bias"] {
        if let Some(spec) = Spec::read(f, name)? {
            return Err(spec.unknown());
        }
    }
    let inputs = Spec::read(f, "input_tensors")?.map(|spec| inputs(&spec)).transpose()?;
    let codes = match weight.dtype {
        "fp8_e4m3" => DType::F8E4M3,
        "int8" if weight.f.flag("symmetric")? != Some(false) => DType::I8,
        "fp4" => DType::F4E2M1,
        _ => return Err(weight.unknown()),
    };
    let axes = |blocks, axes| (blocks, Stored::Codes { scale: "weight_scale", axes });
    let (blocks, stored) = match (weight.scheme, weight.group) {
        ("per_tensor", _) if codes != DType::F4E2M1 => axes(Blocks::Tensor, Axes::One),
        ("per_channel", _) if codes != DType::F4E2M1 => axes(Blocks::Row, Axes::Vector),
        ("per_group", Some(columns)) if codes == DType::F4E2M1 && weight.scales == "e8m0" => {
            (Blocks::Group(columns), Stored::Pairs { weight: "weight", scale: "weight_scale" })
        }
        ("per_block", _) if codes == DType::F8E4M3 => match weight.f.sizes("block_size")?.as_deref() {
            Some(&[rows, cols]) => axes(Blocks::Square(rows, cols), Axes::Matrix),
            _ => return Err(weight.f.fault("config::value", "block_size", "must be two sizes")),
        },
        _ => return Err(weight.unknown()),
    };
    let scales = if codes == DType::F4E2M1 { DType::E8M0 } else { DType::F32 };
    Ok(Some(Scheme { codes, scales, blocks, zeros: false, stored, inputs }))
}

fn inputs(spec: &Spec) -> Result<Inputs, Diagnostic> {
    let (codes, scales) = match (spec.dtype, spec.scheme, spec.is_dynamic, spec.group) {
        ("fp8_e4m3", "per_tensor", false, _) => (DType::F8E4M3, InputScales::Static),
        ("fp8_e4m3", "per_channel", true, _) => (DType::F8E4M3, InputScales::Row),
        ("int8", "per_channel", true, _) => (DType::I8, InputScales::Row),
        ("fp8_e4m3", "per_group", true, Some(128)) => (DType::F8E4M3, InputScales::Group(128)),
        ("fp4", "per_group", true, Some(32)) => (DType::F4E2M1, InputScales::Mx(32)),
        ("fp8_e4m3", "per_group", true, Some(32)) if spec.scales == "e8m0" => (DType::F8E4M3, InputScales::Mx(32)),
        _ => return Err(spec.unknown()),
    };
    Ok(Inputs { codes, scales })
}

/// The scales of a cache of e4m3.
fn cache(f: &Fields) -> Result<Option<CacheScales>, Diagnostic> {
    let Some(config) = f.object("kv_cache_quant_config")?.filter(|config| config.entries().next().is_some()) else {
        return Ok(None);
    };
    for (name, _) in config.entries() {
        let Some(layer) = config.object(name)? else { continue };
        if let Some(spec) = Spec::read(&layer, "output_tensors")?
            && (spec.dtype, spec.scheme, spec.is_dynamic) != ("fp8_e4m3", "per_tensor", false)
        {
            return Err(spec.unknown());
        }
    }
    Ok(Some(CacheScales { keys: "k_proj.output_scale", values: "v_proj.output_scale", of_projections: true }))
}
