//! `gguf`: codes as the file of a GGUF model has them, by the types of its tensors. No tool writes
//! this form into a `config.json`; the reader of such files does.
use super::names::Names;
use super::{Around, Blocks, Quantisation, Scheme, Stored};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

/// The names of types, which are parts of the names of tensors that an artifact reads.
const TYPES: [&str; 15] = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0",
    "TQ2_0", "MXFP4",
];

pub fn read(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    let types = f.object("types")?.ok_or_else(|| f.missing("types"))?;
    let mut rules = Vec::new();
    for (name, _) in types.entries() {
        let kind = TYPES.iter().find(|known| *known == name).ok_or_else(|| {
            let help = format!("Known: {}.", TYPES.join(", "));
            types.fault("config::quantised", name, "is no type of numbers that stay codes").help(help)
        })?;
        let own = types.object(name)?.ok_or_else(|| types.missing(name))?;
        let modules = own.texts("modules")?.ok_or_else(|| own.missing("modules"))?;
        let names = Names::globs(&modules).map_err(|e| own.fault("config::value", "modules", e))?;
        rules.push((names, Some(scheme(kind, &own)?)));
    }
    Ok(Quantisation { method: super::GGUF, rules, cache: None })
}

fn scheme(kind: &'static str, f: &Fields) -> Result<Scheme, Diagnostic> {
    let codes = dtype(f, "codes", DType::is_code)?.ok_or_else(|| f.missing("codes"))?;
    let scales = dtype(f, "scales", DType::is_scale)?.ok_or_else(|| f.missing("scales"))?;
    let least = dtype(f, "least", |least| codes.is_integer_code() && (least.is_float() || least.is_zero_point()))?;
    let group = f.size("group")?.ok_or_else(|| f.missing("group"))?;
    let stored = Stored::Typed { kind, least };
    Ok(Scheme { codes, scales, blocks: Blocks::Group(group), zeros: false, stored, inputs: None })
}

/// A type of numbers by its name, if the field is there.
fn dtype(f: &Fields, name: &str, fits: impl Fn(DType) -> bool) -> Result<Option<DType>, Diagnostic> {
    let Some(text) = f.text(name)? else { return Ok(None) };
    let found = DType::from_name(text).filter(|&dtype| fits(dtype));
    found.map(Some).ok_or_else(|| f.fault("config::quantised", name, format!("{text:?} is no type for them")))
}
