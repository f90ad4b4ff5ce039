//! `bitsandbytes`: codes of four bits of a book (NF4, FP4), and integers of eight (LLM.int8), as
//! transformers saves them.
use super::names::Names;
use super::{Around, Axes, Blocks, Named, Quantisation, Scheme, Stored, without};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

/// Books of codes, and the tensor that says how they lie.
const BOOKS: [(&str, &str); 2] =
    [("fp4", "weight.quant_state.bitsandbytes__fp4"), ("nf4", "weight.quant_state.bitsandbytes__nf4")];

/// Integers of a row, whose largest is 127 times less than the number of the file.
const EIGHTS: Named = Named {
    weight: "weight",
    scale: "SCB",
    axes: Axes::Vector,
    by: Some(1.0 / 127.0),
    zeros: Some(("weight_format", Axes::One)),
};

pub fn read(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    let is = |name: &str| Ok::<_, Diagnostic>(f.flag(name)?.unwrap_or(false));
    let scheme = match [is("load_in_4bit")? || is("_load_in_4bit")?, is("load_in_8bit")? || is("_load_in_8bit")?] {
        [true, false] => fours(f)?,
        [false, true] => {
            without(f, "llm_int8_has_fp16_weight")?;
            Scheme { codes: DType::I8, blocks: Blocks::Row, stored: Stored::Named(EIGHTS), ..super::fp8::CODES }
        }
        _ => return Err(f.fault("config::quantised", "load_in_4bit", "or load_in_8bit must be true, and not both")),
    };
    let skipped = f.texts("llm_int8_skip_modules")?.unwrap_or_default();
    let fault = |e| f.fault("config::value", "llm_int8_skip_modules", e);
    let all = if skipped.is_empty() { Names::layers(&[]) } else { Names::all() };
    let rules = vec![(Names::parts(&skipped).map_err(fault)?, None), (all, Some(scheme))];
    Ok(Quantisation { method: "bitsandbytes", rules, cache: None })
}

fn fours(f: &Fields) -> Result<Scheme, Diagnostic> {
    f.one_of("bnb_4bit_quant_storage", "uint8", &[("uint8", ())])?;
    let text = f.one_of("bnb_4bit_quant_type", "fp4", &BOOKS)?;
    let nested = f.flag("bnb_4bit_use_double_quant")?.unwrap_or(false);
    Ok(Scheme { codes: DType::U4, stored: Stored::Book { text, nested }, ..super::fp8::CODES })
}
