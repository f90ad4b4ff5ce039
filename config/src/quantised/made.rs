//! Quantising while loading: a user's rules instead of a checkpoint's `quantization_config`.
use super::names::Names;
use super::{Blocks, InputScales, Inputs, Quantisation, Scheme, Stored};
use crate::{DType, Diagnostic};

/// Names of schemes.
const SCHEMES: [&str; 10] = [
    "fp8",
    "fp8-block",
    "fp8-weights",
    "int8",
    "int8-weights",
    "int4-g32",
    "int4-g64",
    "int4-g128",
    "mxfp4",
    "mxfp4-rows",
];
/// No scheme: modules stay as they are.
const NONE: &str = "none";
/// Rows and columns of a square, and columns of a group of rows of e4m3.
const SQUARE: usize = 128;
/// Columns that share a power of two.
const MX_GROUP: usize = 32;

impl Quantisation {
    /// The quantisation that rules describe, each `SCHEME` or `MODULES=SCHEME`. A module has the
    /// first rule with modules that names it, else the rule without modules, which leaves out
    /// heads and products whose names end as `floats` do.
    pub fn made(rules: &[String], dtype: DType, floats: &'static [&'static str]) -> Result<Quantisation, Diagnostic> {
        let fault =
            |rule: &str, message: String| Diagnostic::new("config::quant", format!("--quant {rule}: {message}"));
        let (mut named, mut all) = (Vec::new(), None);
        for rule in rules {
            let (modules, name) = match rule.rsplit_once('=') {
                Some((modules, name)) => (Some(modules), name),
                None => (None, rule.as_str()),
            };
            let scheme = scheme(name, dtype).ok_or_else(|| {
                fault(rule, format!("unknown scheme {name:?}")).help(format!("Known: {}, {NONE}.", SCHEMES.join(", ")))
            })?;
            match modules {
                Some("") => {
                    let message = format!("it names no modules; without `=`, {name} is for all products");
                    return Err(fault(rule, message));
                }
                Some(modules) => named.push((Names::globs(&[modules]).map_err(|e| fault(rule, e))?, scheme)),
                None if all.is_some() => return Err(fault(rule, "there is a scheme for all modules already".into())),
                None => all = Some(scheme),
            }
        }
        named.extend(all.map(|scheme| (Names::layers(floats), scheme)));
        Ok(Quantisation { method: "made", rules: named, cache: None })
    }
}

/// A scheme by its name, if there is one; of `none` there is nothing in it.
fn scheme(name: &str, dtype: DType) -> Option<Option<Scheme>> {
    let plain = Scheme {
        codes: DType::F8E4M3,
        scales: DType::F32,
        blocks: Blocks::Row,
        zeros: false,
        stored: Stored::Floats,
        inputs: None,
    };
    let rows = |codes, scales| Some(Inputs { codes, scales });
    let mxfp4 = Scheme { codes: DType::F4E2M1, scales: DType::E8M0, blocks: Blocks::Group(MX_GROUP), ..plain.clone() };
    let int4 = |columns| Scheme { codes: DType::I4, scales: dtype, blocks: Blocks::Group(columns), ..plain.clone() };
    Some(Some(match name {
        NONE => return Some(None),
        "fp8" => Scheme { inputs: rows(DType::F8E4M3, InputScales::Row), ..plain },
        "fp8-block" => Scheme {
            blocks: Blocks::Square(SQUARE, SQUARE),
            inputs: rows(DType::F8E4M3, InputScales::Group(SQUARE)),
            ..plain
        },
        "fp8-weights" => plain,
        "int8" => Scheme { codes: DType::I8, inputs: rows(DType::I8, InputScales::Row), ..plain },
        "int8-weights" => Scheme { codes: DType::I8, ..plain },
        "int4-g32" => int4(32),
        "int4-g64" => int4(64),
        "int4-g128" => int4(128),
        "mxfp4" => mxfp4,
        "mxfp4-rows" => Scheme { inputs: rows(DType::F4E2M1, InputScales::Mx(MX_GROUP)), ..mxfp4 },
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_modules_go_first() {
        let made = |rules: &[&str]| {
            let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
            Quantisation::made(&rules, DType::BF16, &["mixer.gate"])
        };
        let q = made(&["fp8", "*.o_proj=int4-g32", "re:.*mlp=none"]).expect("rules");
        let codes = |module: &str| q.scheme(&[module]).map(|scheme| scheme.codes);
        assert_eq!(codes("model.layers.0.self_attn.q_proj"), Some(DType::F8E4M3));
        assert_eq!(codes("model.layers.0.self_attn.o_proj"), Some(DType::I4));
        assert_eq!((codes("model.layers.0.mlp.up_proj"), codes("lm_head")), (None, None));
        assert_eq!((codes("model.layers.0.mixer.gate"), codes("model.layers.0.mixer.up")), (None, Some(DType::F8E4M3)));
        for name in SCHEMES {
            assert!(scheme(name, DType::BF16).flatten().is_some(), "{name}");
        }
        for (rules, says) in [
            (&["fp9"][..], "--quant fp9: unknown scheme \"fp9\""),
            (&["=fp8"], "--quant =fp8: it names no modules; without `=`, fp8 is for all products"),
            (&["fp8", "int8"], "--quant int8: there is a scheme for all modules already"),
            (&["re:(=fp8"], "--quant re:(=fp8: \"(\" is no pattern"),
        ] {
            let fault = made(rules).expect_err("a fault").to_string();
            assert!(fault.contains(says), "{fault}");
        }
    }
}
