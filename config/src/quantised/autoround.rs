//! `auto-round`: the format of Intel's AutoRound, which has codes as GPTQ or AWQ have them, and
//! other bits for modules by name.
use super::awq_gptq::{self, Numbers};
use super::names::Names;
use super::{Around, Quantisation, Scheme, Stored, Told, one_of_sizes, without};
use crate::fields::Fields;
use crate::{Diagnostic, Order};

/// Bits from which on a module has no codes.
const FLOATS: usize = 16;
/// How words are packed: the name, and what is stored.
const PACKINGS: [(&str, Stored); 5] = [
    ("auto_round:auto_gptq", Stored::Gptq { taken: 1, told: Told::Nothing, order: Order::Plain }),
    ("auto_round:gptq", Stored::Gptq { taken: 1, told: Told::Nothing, order: Order::Plain }),
    ("auto_round:gptqmodel", Stored::Gptq { taken: 0, told: Told::Groups, order: Order::Plain }),
    ("auto_round", Stored::Gptq { taken: 0, told: Told::Nothing, order: Order::Plain }),
    ("auto_round:auto_awq", Stored::Awq),
];

pub fn read(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    check_numbers(f)?;
    for name in ["rotation_config", "super_bits"] {
        without(f, name)?;
    }
    let stored = f.one_of("packing_format", "auto_round:auto_gptq", &PACKINGS)?;
    let excluded = f.texts("modules_to_not_convert")?.unwrap_or_default();
    let mut rules = vec![(Names::within(&excluded), None)];
    if let Some(extra) = f.object("extra_config")? {
        // Names go before patterns.
        for is_pattern in [false, true] {
            for (name, _) in extra.entries().filter(|(name, _)| Names::is_pattern(name) == is_pattern) {
                let Some(own) = extra.object(name)? else { continue };
                check_numbers(&own)?;
                let fault = |e| extra.fault("config::value", name, e);
                let names = if is_pattern { Names::pattern(name) } else { Names::targets(&[name]) };
                rules.push((names.map_err(fault)?, scheme([&own, f], stored)?));
            }
        }
    }
    rules.push((Names::layers(&[]), scheme([f, f], stored)?));
    Ok(Quantisation { method: "auto-round", rules, cache: None })
}

/// Checks that weights are integers, and rows floats.
fn check_numbers(f: &Fields) -> Result<(), Diagnostic> {
    f.one_of("data_type", "int", &[("int", ())])?;
    match f.size("act_bits")? {
        Some(bits) if bits < FLOATS => {
            Err(f.fault("config::quantised", "act_bits", format!("{bits} is not supported, only {FLOATS}")))
        }
        _ => Ok(()),
    }
}

/// The scheme of a module, whose own fields go before those of all.
fn scheme([own, all]: [&Fields; 2], stored: Stored) -> Result<Option<Scheme>, Diagnostic> {
    let of = |name: &str| if own.has(name) { own } else { all };
    let bits = of("bits").size("bits")?.ok_or_else(|| all.missing("bits"))?;
    if bits >= FLOATS {
        return Ok(None);
    }
    let known: &[usize] = if stored == Stored::Awq { &[4] } else { &[4, 8] };
    one_of_sizes(of("bits"), "bits", bits, known)?;
    let blocks = awq_gptq::blocks(of("group_size"))?;
    let is_symmetric = stored != Stored::Awq && of("sym").flag("sym")?.unwrap_or(true);
    Ok(Some(awq_gptq::scheme(Numbers { bits, is_symmetric, blocks }, stored)))
}
