//! `mxfp4`: the experts of GPT-OSS as they are released.
use super::names::Names;
use super::{Around, Blocks, Quantisation, Scheme, Stored};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

/// Columns that share a scale.
const GROUP: usize = 32;

pub fn read(f: &Fields, _: &Around) -> Result<Quantisation, Diagnostic> {
    let excluded = f.texts("modules_to_not_convert")?.unwrap_or_default();
    let fault = |e| f.fault("config::value", "modules_to_not_convert", e);
    let scheme = Scheme {
        codes: DType::F4E2M1,
        scales: DType::E8M0,
        blocks: Blocks::Group(GROUP),
        zeros: false,
        stored: Stored::Blocks,
        inputs: None,
    };
    let rules = vec![(Names::parts(&excluded).map_err(fault)?, None), (Names::within(&[".experts"]), Some(scheme))];
    Ok(Quantisation { method: "mxfp4", rules, cache: None })
}
