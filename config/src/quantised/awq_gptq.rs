//! `awq` and `gptq`: codes of 2, 3, 4 or 8 bits in words, of the transposed weight.
use super::names::Names;
use super::{Around, Blocks, Quantisation, Scheme, Stored, Told, one_of_sizes, without};
use crate::fields::Fields;
use crate::{DType, Diagnostic, Order};

pub fn awq(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    bits(f, &[4])?;
    f.one_of("version", "gemm", &[("gemm", ()), ("GEMM", ())])?;
    let zeros = f.flag("zero_point")?.unwrap_or(true);
    if !zeros {
        return Err(f.fault("config::quantised", "zero_point", "must be true"));
    }
    let scheme = scheme(Numbers { bits: 4, is_symmetric: false, blocks: blocks(f)? }, Stored::Awq);
    let excluded = f.texts("modules_to_not_convert")?.unwrap_or_default();
    let rules = vec![(Names::within(&excluded), None), products(f, scheme)?];
    Ok(Quantisation { method: "awq", rules, cache: None })
}

pub fn gptq(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    let bits = bits(f, &BITS)?;
    let taken = f.one_of("checkpoint_format", "gptq", &[("gptq", 1), ("gptq_v2", 0)])?;
    let blocks = blocks(f)?;
    // A row with one scale has no order.
    let is_sorted = f.flag("desc_act")? == Some(true) && blocks != Blocks::Row;
    let told = if is_sorted { Told::Order } else { Told::Groups };
    without(f, "modules_in_block_to_quantize")?;
    let numbers = Numbers { bits, is_symmetric: f.flag("sym")?.unwrap_or(true), blocks };
    if bits == 8 && !numbers.is_symmetric && taken > 0 {
        let message = "\"gptq\" has no zero points of all 8 bits: save the model as \"gptq_v2\"";
        return Err(f.fault("config::quantised", "checkpoint_format", message));
    }
    let scheme = scheme(numbers, Stored::Gptq { taken, told, order: order(bits) });
    let mut rules = vec![];
    if let Some(dynamic) = f.object("dynamic")? {
        for (pattern, _) in dynamic.entries() {
            let Some(excluded) = pattern.strip_prefix("-:") else {
                let message = "only patterns that exclude modules are supported, which begin with -:";
                return Err(dynamic.fault("config::quantised", pattern, message));
            };
            let fault = |e| dynamic.fault("config::value", pattern, e);
            rules.push((Names::pattern(excluded).map_err(fault)?, None));
        }
    }
    rules.push(products(f, scheme)?);
    Ok(Quantisation { method: "gptq", rules, cache: None })
}

/// Bits of a code that GPTQ has.
pub const BITS: [usize; 4] = [2, 3, 4, 8];

/// How codes lie in words.
pub fn order(bits: usize) -> Order {
    match bits {
        2 => Order::Twos,
        3 => Order::Threes,
        _ => Order::Plain,
    }
}

/// What the codes of a weight are.
pub struct Numbers {
    pub bits: usize,
    pub is_symmetric: bool,
    pub blocks: Blocks,
}

/// Codes in words, with scales of f16.
pub fn scheme(Numbers { bits, is_symmetric, blocks }: Numbers, stored: Stored) -> Scheme {
    Scheme {
        // Symmetric codes have their zero point in the middle, which makes them signed integers.
        // Those of fewer bits become codes of 4 bits, and keep their zero points.
        codes: match (bits, is_symmetric) {
            (4, true) => DType::I4,
            (2..=4, _) => DType::U4,
            (_, true) => DType::I8,
            (_, false) => DType::U8,
        },
        scales: DType::F16,
        blocks,
        zeros: !is_symmetric || bits < 4,
        stored,
        inputs: None,
    }
}

/// The products that a scheme is for: with `lm_head`, the head too.
fn products(f: &Fields, scheme: Scheme) -> Result<(Names, Option<Scheme>), Diagnostic> {
    let with_head = f.flag("lm_head")?.unwrap_or(false);
    Ok((if with_head { Names::all() } else { Names::layers(&[]) }, Some(scheme)))
}

fn bits(f: &Fields, known: &[usize]) -> Result<usize, Diagnostic> {
    let name = if f.get("bits").is_some() { "bits" } else { "w_bit" };
    let bits = f.size(name)?.ok_or_else(|| f.missing("bits"))?;
    one_of_sizes(f, name, bits, known)
}

/// The elements that share a scale: a group of columns, or a whole row for -1.
pub fn blocks(f: &Fields) -> Result<Blocks, Diagnostic> {
    let name = if f.get("group_size").is_some() { "group_size" } else { "q_group_size" };
    if f.get(name).is_none() {
        return Err(f.missing("group_size"));
    }
    Ok(f.size_or_none(name)?.map_or(Blocks::Row, Blocks::Group))
}
