//! `modelopt`: the format of NVIDIA's Model Optimizer, in `config.json`, or as its own file
//! `hf_quant_config.json` has it.
use std::collections::BTreeMap;

use super::fp8::{CODES, MX_GROUP};
use super::names::Names;
use super::{
    Around, Axes, Blocks, CacheScales, HEAD, InputScales, Inputs, Levels, NVFP4_GROUP, Quantisation, Scheme, Stored,
    nvfp4, one_of_sizes,
};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

/// The field that names a scheme, and the schemes.
const ALGO: &str = "quant_algo";
const SCHEMES: [&str; 5] = ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "NVFP4", "W4A16_NVFP4"];
/// Several schemes, which `quantized_layers` gives to modules.
const MIXED: &str = "MIXED_PRECISION";

pub fn read(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    let own = f.object("quantization")?;
    let of = own.as_ref().unwrap_or(f);
    let mut excluded = of.texts("exclude_modules")?.unwrap_or_default();
    excluded.extend(f.texts("ignore")?.unwrap_or_default());
    excluded.push(HEAD);
    excluded.sort_unstable();
    excluded.dedup();
    let fault = |e| f.fault("config::value", "exclude_modules", e);
    let mut rules = vec![(Names::parts_or_globs(&excluded).map_err(fault)?, None)];
    match of.text(ALGO)?.ok_or_else(|| of.missing(ALGO))? {
        MIXED => rules.extend(mixed(of)?),
        algo => rules.push((Names::all(), Some(scheme(of, algo)?))),
    }
    Ok(Quantisation { method: "modelopt", rules, cache: cache(f, of)? })
}

/// The rules of modules that have schemes by name; others have none.
fn mixed(f: &Fields) -> Result<Vec<(Names, Option<Scheme>)>, Diagnostic> {
    let Some(layers) = f.object("quantized_layers")? else { return Err(f.missing("quantized_layers")) };
    let mut by_scheme: BTreeMap<String, (Vec<&str>, Scheme)> = BTreeMap::new();
    for (name, _) in layers.entries() {
        let Some(layer) = layers.object(name)? else { continue };
        let scheme = scheme(&layer, layer.text(ALGO)?.ok_or_else(|| layer.missing(ALGO))?)?;
        by_scheme.entry(scheme.to_string()).or_insert_with(|| (vec![], scheme)).0.push(name);
    }
    let rule = |(names, scheme): (Vec<&str>, Scheme)| {
        let fault = |e| f.fault("config::value", "quantized_layers", e);
        Ok((Names::parts_or_globs(&names).map_err(fault)?, Some(scheme)))
    };
    by_scheme.into_values().map(rule).collect()
}

fn scheme(f: &Fields, algo: &str) -> Result<Scheme, Diagnostic> {
    let group = |known| match f.size_or_none("group_size")? {
        Some(size) => one_of_sizes(f, "group_size", size, &[known]).map(drop),
        None => Ok(()),
    };
    let codes = |blocks, axes, scales| Scheme {
        blocks,
        stored: Stored::Codes { scale: "weight_scale", axes },
        inputs: Some(Inputs { codes: DType::F8E4M3, scales }),
        ..CODES
    };
    match algo {
        "FP8" => Ok(codes(Blocks::Tensor, Axes::One, InputScales::Static)),
        "FP8_PER_CHANNEL_PER_TOKEN" => Ok(codes(Blocks::Row, Axes::Vector, InputScales::Row)),
        "MXFP8" => {
            group(MX_GROUP)?;
            let scheme = codes(Blocks::Group(MX_GROUP), Axes::Matrix, InputScales::Mx(MX_GROUP));
            Ok(Scheme { scales: DType::E8M0, ..scheme })
        }
        "NVFP4" | "W4A16_NVFP4" => {
            group(NVFP4_GROUP)?;
            let given = (algo == "NVFP4").then_some("input_scale");
            let (weight, scale, number) = ("weight", "weight_scale", "weight_scale_2");
            Ok(nvfp4(Levels { weight, scale, number, over: false, given }))
        }
        other => {
            let fault = f.fault("config::quantised", ALGO, format!("{other:?} is not supported"));
            Err(fault.help(format!("Known: {}, {MIXED}.", SCHEMES.join(", "))))
        }
    }
}

/// The scales of a cache of e4m3: by the tool's name, or as `config.json` describes it.
fn cache(f: &Fields, of: &Fields) -> Result<Option<CacheScales>, Diagnostic> {
    let fp8 = CacheScales { keys: "k_proj.k_scale", values: "v_proj.v_scale", of_projections: true };
    for (f, name) in [(of, "kv_cache_quant_algo"), (f, "kv_cache_scheme")] {
        let Some(value) = f.get(name) else { continue };
        if value.is_object() {
            let Some(spec) = f.object(name)? else { continue };
            let (bits, is_dynamic) = (spec.size("num_bits")?, spec.flag("dynamic")?);
            if (bits, spec.text("type")?, is_dynamic) == (Some(8), Some("float"), Some(false)) {
                return Ok(Some(fp8));
            }
        } else if f.text(name)? == Some("FP8") {
            return Ok(Some(fp8));
        }
        return Err(f.fault("config::quantised", name, "is not supported: it must be FP8, or absent"));
    }
    Ok(None)
}
