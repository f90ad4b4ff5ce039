//! `compressed-tensors`: the format of llm-compressor.
use serde_json::Value;

use super::names::Names;
use super::{
    Around, Axes, Blocks, CacheScales, InputScales, Inputs, Levels, NVFP4_GROUP, PLAIN_CACHE, Quantisation, Scheme,
    Stored, nvfp4, one_of_sizes, without,
};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

pub fn read(f: &Fields, around: &Around) -> Result<Quantisation, Diagnostic> {
    for name in ["transform_config", "sparsity_config"] {
        without(f, name)?;
    }
    let state = f.text("quantization_status")?.unwrap_or("compressed");
    if state != "compressed" {
        let message = format!("must be \"compressed\", not {state:?}");
        return Err(f.fault("config::quantised", "quantization_status", message));
    }
    let ignored = f.texts("ignore")?.unwrap_or_default();
    let fault = |e| f.fault("config::value", "ignore", e);
    let mut rules = vec![(Names::targets(&ignored).map_err(fault)?, None)];
    let Some(groups) = f.object("config_groups")? else { return Err(f.missing("config_groups")) };
    let mut named = vec![];
    for (name, _) in groups.entries() {
        let Some(group) = groups.object(name)? else { continue };
        let targets = group.texts("targets")?.ok_or_else(|| group.missing("targets"))?;
        let fault = |e| group.fault("config::value", "targets", e);
        let format = group.text("format")?.or(f.text("format")?);
        named.push((
            !targets.contains(&"Linear"),
            Names::targets(&targets).map_err(fault)?,
            scheme(&group, format, around.dtype)?,
        ));
    }
    // Names and patterns go before classes.
    named.sort_by_key(|(is_named, ..)| !is_named);
    rules.extend(named.into_iter().map(|(_, names, scheme)| (names, scheme)));
    Ok(Quantisation { method: "compressed-tensors", rules, cache: cache(f)? })
}

/// A spec's description of a tensor's numbers.
struct Spec<'a> {
    f: Fields<'a>,
    bits: usize,
    is_float: bool,
    strategy: &'a str,
    group: Option<usize>,
    is_symmetric: bool,
    is_dynamic: bool,
    /// Whether the scales of groups are made while running, and a number of all is in the file.
    is_local: bool,
    /// Whether columns share scales in another order than they have.
    is_sorted: bool,
}

impl<'a> Spec<'a> {
    fn read(f: &Fields<'a>, name: &str) -> Result<Option<Spec<'a>>, Diagnostic> {
        let Some(f) = f.object(name)? else { return Ok(None) };
        let is_local = match f.get("dynamic").and_then(Value::as_str) {
            None => false,
            Some("local") => true,
            Some(_) => return Err(f.fault("config::quantised", "dynamic", "must be true, false or \"local\"")),
        };
        let spec = Spec {
            bits: f.size("num_bits")?.unwrap_or(8),
            is_float: f.one_of("type", "int", &[("int", false), ("float", true)])?,
            strategy: f.text("strategy")?.unwrap_or("tensor"),
            group: f.size_or_none("group_size")?,
            is_symmetric: f.flag("symmetric")?.unwrap_or(true),
            is_dynamic: !is_local && f.flag("dynamic")?.unwrap_or(false),
            is_local,
            is_sorted: f.one_of("actorder", "weight", &ORDERS)?,
            f,
        };
        Ok(Some(spec))
    }

    fn unknown(&self, name: &str) -> Diagnostic {
        let Spec { bits, is_float, strategy, is_symmetric, .. } = *self;
        let numbers = if is_float { "floats" } else { "integers" };
        let symmetric = if is_symmetric { "symmetric" } else { "asymmetric" };
        let message =
            format!("{symmetric} {numbers} of {bits} bits with a scale for each {strategy} are not supported");
        self.f.fault("config::quantised", name, message)
    }

    fn group(&self) -> Result<usize, Diagnostic> {
        self.group.ok_or_else(|| self.f.missing("group_size"))
    }
}

/// How columns were ordered when they were quantised, and whether `weight_g_idx` has that order.
const ORDERS: [(&str, bool); 4] = [("weight", false), ("static", false), ("group", true), ("dynamic", true)];

/// The formats that have a reader here. Others are refused by their name, before the fields that
/// only they have are read.
const FORMATS: [&str; 8] = [
    "naive-quantized",
    "float-quantized",
    "int-quantized",
    "pack-quantized",
    "mxfp8-quantized",
    "mxfp4-pack-quantized",
    NVFP4,
    "dense",
];

/// The format with scales of two levels.
const NVFP4: &str = "nvfp4-pack-quantized";

fn scheme(f: &Fields, format: Option<&str>, dtype: DType) -> Result<Option<Scheme>, Diagnostic> {
    if let Some(other) = format.filter(|format| !FORMATS.contains(format)) {
        let fault = f.fault("config::quantised", "format", format!("{other:?} is not supported"));
        return Err(fault.help(format!("Known: {}.", FORMATS.join(", "))));
    }
    let Some(weights) = Spec::read(f, "weights")? else { return Ok(None) };
    if let Some(outputs) = Spec::read(f, "output_activations")? {
        return Err(outputs.unknown("strategy"));
    }
    if weights.is_local {
        return Err(weights.f.fault("config::quantised", "dynamic", "must be true or false for weights"));
    }
    if format == Some(NVFP4) {
        return levels(f, &weights).map(Some);
    }
    let inputs = Spec::read(f, "input_activations")?.map(|spec| inputs(&spec)).transpose()?;
    if weights.is_sorted && (format != Some("pack-quantized") || inputs.is_some()) {
        let message = "columns in another order (act-order) go with \"pack-quantized\" and rows of floats alone";
        return Err(weights.f.fault("config::quantised", "actorder", message));
    }
    let scheme = match (format.unwrap_or("naive-quantized"), weights.bits, weights.is_float) {
        ("pack-quantized", 4 | 8, false) => packed(&weights, dtype)?,
        ("float-quantized" | "naive-quantized", 8, true) | ("int-quantized" | "naive-quantized", 8, false)
            if weights.is_symmetric =>
        {
            plain(&weights)?
        }
        ("mxfp8-quantized", 8, true) => Scheme {
            scales: DType::E8M0,
            blocks: Blocks::Group(weights.group()?),
            stored: Stored::Codes { scale: "weight_scale", axes: Axes::Matrix },
            ..super::fp8::CODES
        },
        ("mxfp4-pack-quantized", 4, true) => Scheme {
            codes: DType::F4E2M1,
            scales: DType::E8M0,
            blocks: Blocks::Group(weights.group()?),
            zeros: false,
            stored: Stored::Pairs { weight: "weight_packed", scale: "weight_scale" },
            inputs: None,
        },
        ("dense", ..) => return Ok(None),
        (other, ..) => {
            let message = format!("{other:?} is not supported for this kind of numbers");
            return Err(f.fault("config::quantised", "format", message));
        }
    };
    Ok(Some(Scheme { inputs, ..scheme }))
}

/// Pairs of codes with scales of two levels. Rows that the file would quantise alike stay floats:
/// only the number of all their scales is in it.
fn levels(f: &Fields, weights: &Spec) -> Result<Scheme, Diagnostic> {
    let check = |spec: &Spec| match (spec.bits, spec.is_float, spec.is_symmetric, spec.strategy) {
        (4, true, true, "tensor_group") => one_of_sizes(&spec.f, "group_size", spec.group()?, &[NVFP4_GROUP]).map(drop),
        _ => Err(spec.unknown("strategy")),
    };
    check(weights)?;
    let inputs = Spec::read(f, "input_activations")?;
    inputs.as_ref().map_or(Ok(()), check)?;
    let given = inputs.filter(|inputs| !inputs.is_dynamic).map(|_| "input_global_scale");
    let (weight, scale, number) = ("weight_packed", "weight_scale", "weight_global_scale");
    Ok(nvfp4(Levels { weight, scale, number, over: true, given }))
}

/// A code an element.
fn plain(weights: &Spec) -> Result<Scheme, Diagnostic> {
    let (blocks, axes) = match weights.strategy {
        "tensor" => (Blocks::Tensor, Axes::One),
        "channel" => (Blocks::Row, Axes::Matrix),
        "group" => (Blocks::Group(weights.group()?), Axes::Matrix),
        "block" => match weights.f.sizes("block_structure")?.as_deref() {
            Some(&[rows, cols]) => (Blocks::Square(rows, cols), Axes::Matrix),
            _ => return Err(weights.f.fault("config::value", "block_structure", "must be two sizes")),
        },
        _ => return Err(weights.unknown("strategy")),
    };
    let codes = if weights.is_float { DType::F8E4M3 } else { DType::I8 };
    Ok(Scheme { codes, blocks, stored: Stored::Codes { scale: "weight_scale", axes }, ..super::fp8::CODES })
}

/// Words of codes.
fn packed(weights: &Spec, dtype: DType) -> Result<Scheme, Diagnostic> {
    let blocks = match weights.strategy {
        "channel" => Blocks::Row,
        "group" => Blocks::Group(weights.group()?),
        _ => return Err(weights.unknown("strategy")),
    };
    let codes = match (weights.bits, weights.is_symmetric) {
        (4, true) => DType::I4,
        (4, false) => DType::U4,
        (_, true) => DType::I8,
        (_, false) => DType::U8,
    };
    let zeros = !weights.is_symmetric;
    let sorted = blocks != Blocks::Row && weights.is_sorted;
    Ok(Scheme { codes, scales: dtype, blocks, zeros, stored: Stored::Words { sorted }, inputs: None })
}

fn inputs(spec: &Spec) -> Result<Inputs, Diagnostic> {
    let codes = match (spec.bits, spec.is_float, spec.is_symmetric) {
        (8, true, true) => DType::F8E4M3,
        (8, false, true) => DType::I8,
        (4, true, true) => DType::F4E2M1,
        _ => return Err(spec.unknown("num_bits")),
    };
    let scales = match (spec.strategy, spec.is_dynamic) {
        _ if spec.is_local => return Err(spec.unknown("strategy")),
        ("tensor", false) if codes != DType::F4E2M1 => InputScales::Static,
        ("token", true) if codes != DType::F4E2M1 => InputScales::Row,
        ("group", true) => match one_of_sizes(&spec.f, "group_size", spec.group()?, &[32, 128])? {
            32 if codes != DType::I8 => InputScales::Mx(32),
            128 if codes == DType::F8E4M3 => InputScales::Group(128),
            _ => return Err(spec.unknown("strategy")),
        },
        _ => return Err(spec.unknown("strategy")),
    };
    Ok(Inputs { codes, scales })
}

/// The scales of a cache of e4m3.
fn cache(f: &Fields) -> Result<Option<CacheScales>, Diagnostic> {
    let Some(spec) = Spec::read(f, "kv_cache_scheme")? else { return Ok(None) };
    match (spec.bits, spec.is_float, spec.is_symmetric, spec.strategy, spec.is_dynamic || spec.is_local) {
        (8, true, true, "tensor", false) => Ok(Some(PLAIN_CACHE)),
        _ => Err(spec.unknown("strategy")),
    }
}
