//! `atomc explain`: the places in which the compiler fused several ops into one kernel, and those
//! in which it did not, with reasons.
use std::collections::BTreeMap;
use std::io::Write;

use atomc::frontend::{self, Part};
use atomc_passes::{Bucket, Cause, Cx, Place};
use serde_json::{Value, json};

use super::failure::Failure;
use super::model::{self, ModelArgs};
use super::print;
use super::shown::{self, without_numbers};

/// Say for every place where work might be done in one go whether it is, and if not, why
#[derive(clap::Args)]
#[command(after_help = "\
A place is a group of products that read the same rows, a rule of which two nodes are there, the rows of a layer's experts, a
kernel of several ops, or a value that goes through memory between two kernels, one of which is neither a product nor
attention. Layers that have the same places are one line. Reasons are of these kinds:
  read elsewhere   the value exists in memory anyway
  type             types of elements or encodings do not agree
  boundary         attention, a recurrent state or the caller's work is between
  shape            rows, widths or axes do not fit
  chip             kernels for this chip do not do it
  step             it does not pay, or is not possible, in steps of this size
  op               no kernel takes such an op there
  order            a value on the way comes out of another kernel
`atomc inspect --why KERNEL` says which schedule makes a kernel, and why none before it does.

Examples:
  atomc explain models/qwen3 --target gfx942
  atomc explain models/qwen3 --bucket whole --not        what is left apart in prefill
  atomc explain models/qwen3 --cause shape,chip
  atomc explain models/qwen3 --tp 2 --cause boundary    what sums over ranks keep apart
  atomc explain models/qwen3 --json | jq '.[] | select(.cause == \"shape\")'")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Kernels for decode:N sequences, any:TOKENSxROWS, or whole:TOKENSxROWS, where nothing but
    /// logits is wanted
    #[arg(long, value_name = "BUCKET", default_value = "decode:1", value_parser = print::bucket)]
    bucket: Bucket,
    /// Target, or target:variant
    #[arg(long, value_name = "NAME", default_value = "host")]
    target: String,
    /// What one of so many ranks runs that share the model out
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: usize,
    /// As `--quant` of `atomc compile`
    #[arg(long, value_name = "RULE,…", value_delimiter = ',')]
    quant: Vec<String>,
    /// Places alone whose work is not done in one go
    #[arg(long)]
    not: bool,
    /// Places alone that are left for reasons of these kinds, e.g. shape,chip
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = cause)]
    cause: Vec<Cause>,
    /// Every place of every layer as a JSON list
    #[arg(long)]
    json: bool,
}

fn cause(text: &str) -> Result<Cause, String> {
    let names: Vec<&str> = Cause::ALL.iter().map(|cause| cause.name()).collect();
    let found = Cause::ALL.into_iter().find(|cause| cause.name() == text);
    found.ok_or_else(|| format!("must be one of {}", names.join(", ")))
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut config = args.model.config()?;
    model::quantise(&mut config, &args.quant)?;
    let part = Part { ranks: args.tp, ..Part::default() };
    let cx = Cx { arch: print::arch(&args.target)?, bucket: args.bucket, invariant: false };
    let mut places = atomc_passes::explain(&frontend::graph_of(&config, part)?, &cx)?;
    let (all, made) = (places.len(), places.iter().filter(|place| place.why_not.is_none()).count());
    places.retain(|place| match &place.why_not {
        None => !args.not && args.cause.is_empty(),
        Some(why) => args.cause.is_empty() || args.cause.contains(&why.cause),
    });
    let out = &mut std::io::stdout().lock();
    if args.json {
        return shown::json(out, &places.iter().map(described).collect::<Vec<Value>>());
    }
    writeln!(out, "{}, {}: {made} places in one go, {} not", cx.arch.name, cx.bucket, all - made)?;
    lines(&places).iter().try_for_each(|line| Ok(writeln!(out, "{line}")?))
}

fn described(place: &Place) -> Value {
    let Place { pass, location, what, why_not } = place;
    let (cause, why) = why_not.as_ref().map(|why| (why.cause.name(), &why.text)).unzip();
    json!({ "pass": pass, "location": location, "what": what, "fused": why_not.is_none(), "cause": cause, "why": why })
}

/// Places as text. Those that differ only in the numbers of layers are one line, at the place of
/// the first.
fn lines(places: &[Place]) -> Vec<String> {
    let mut lines: Vec<(Place, usize)> = vec![];
    let mut line_of: BTreeMap<String, usize> = BTreeMap::new();
    for place in places {
        let line = *line_of.entry(without_numbers(&place.to_string())).or_insert(lines.len());
        match lines.get_mut(line) {
            Some((_, count)) => *count += 1,
            None => lines.push((place.clone(), 1)),
        }
    }
    let line = |(place, count): &(Place, usize)| match count {
        1 => format!("  {place}"),
        count => format!("  {} ({count})", without_numbers(&place.to_string())),
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atomc_passes::Why;

    fn place(location: &str, why_not: Option<Why>) -> Place {
        Place { pass: "fuse", location: location.into(), what: "add -> rms_norm".into(), why_not }
    }

    #[test]
    fn layers_are_one_line() {
        let why = |text: &str| Why { cause: Cause::Shape, text: text.to_owned().into() };
        let all = [
            place("model.layers.0", Some(why("parts of 6 columns: `add` of model.layers.1.mlp"))),
            place("model.norm", None),
            place("model.layers.1", Some(why("parts of 6 columns: `add` of model.layers.2.mlp"))),
            place("model.layers.2", Some(why("parts of 7 columns: `add` of model.layers.2.mlp"))),
        ];
        assert_eq!(
            lines(&all),
            [
                "  fuse: model.layers.*: add -> rms_norm: not, shape: parts of 6 columns: `add` of model.layers.*.mlp (2)",
                "  fuse: model.norm: add -> rms_norm",
                "  fuse: model.layers.2: add -> rms_norm: not, shape: parts of 7 columns: `add` of model.layers.2.mlp",
            ]
        );
    }
}
