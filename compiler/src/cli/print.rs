//! `atomc print`: the compiler's view of a model at any point.
use std::io::Write;

use atomc::{driver, frontend};
use atomc_ir::Arch;
use atomc_passes::{Bucket, BucketOptions, Cx};
use atomc_targets::Form;
use clap::ValueEnum;

use super::failure::Failure;
use super::model::ModelArgs;

/// Show what the compiler makes of a model
#[derive(clap::Args)]
#[command(after_help = passes())]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The graph after this pass; without it, the graph that the frontend builds
    #[arg(long, value_name = "PASS", conflicts_with = "emit")]
    after: Option<String>,
    /// What comes out at the end: the fused graph, LLVM's IR, or assembly
    #[arg(long, value_name = "FORM")]
    emit: Option<Emit>,
    /// Kernels for decode:N sequences, any:TOKENSxROWS, or whole:TOKENSxROWS, where nothing but
    /// logits is wanted
    #[arg(long, value_name = "BUCKET", default_value = "decode:1", value_parser = bucket)]
    bucket: Bucket,
    /// Target, or target:variant
    #[arg(long, value_name = "NAME", default_value = "host")]
    target: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Emit {
    Ir,
    Llvm,
    Asm,
}

fn passes() -> String {
    let names: Vec<&str> = atomc_passes::PASSES.iter().map(|pass| pass.name).collect();
    format!(
        "\
Passes, in order: {}

Examples:
  atomc print models/qwen3                                    the model as its frontend reads it
  atomc print models/qwen3 --after fuse                       the kernels of a decode step
  atomc print models/qwen3 --after fuse --bucket whole        the same for prefill
  atomc print models/qwen3 --emit asm --target host:x86-64-v3",
        names.join(", ")
    )
}

/// A bucket by its name for users.
pub fn bucket(text: &str) -> Result<Bucket, String> {
    let count = |n: &str| n.parse::<usize>().ok().filter(|&n| n > 0);
    let default = BucketOptions::default();
    let read = || {
        let (kind, size) = text.split_once(':').map_or((text, None), |(kind, size)| (kind, Some(size)));
        if kind == "decode" {
            return Some(Bucket::Decode { tokens: count(size?)? });
        }
        if kind == "verify" {
            let (sequences, each) = size?.split_once('x')?;
            return Some(Bucket::Verify { sequences: count(sequences)?, each: count(each)? });
        }
        let (tokens, rows) = match size.map(|size| size.split_once('x')) {
            None => (default.tokens, default.rows),
            Some(sizes) => sizes.and_then(|(tokens, rows)| Some((count(tokens)?, count(rows)?)))?,
        };
        match kind {
            "any" if rows <= tokens => Some(Bucket::Any { tokens, rows }),
            "whole" if rows <= tokens => Some(Bucket::Whole { tokens, rows }),
            _ => None,
        }
    };
    read().ok_or(
        "must be decode:N, verify:NxEACH, or any or whole, alone or with :TOKENSxROWS, no more rows than tokens".into(),
    )
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let config = args.model.config()?;
    let cx = Cx { arch: arch(&args.target)?, bucket: args.bucket, invariant: false };
    let text = match (&args.after, args.emit) {
        (Some(pass), _) => driver::lower(&frontend::graph(&config)?, &cx, Some(pass))?.print(),
        (None, Some(Emit::Ir)) => driver::lower(&frontend::graph(&config)?, &cx, None)?.print(),
        (None, Some(Emit::Llvm)) => driver::text(&config, &cx, Form::Llvm)?,
        (None, Some(Emit::Asm)) => driver::text(&config, &cx, Form::Asm)?,
        (None, None) => frontend::graph(&config)?.print(),
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// The named variant of a target, or its best.
pub fn arch(name: &str) -> Result<&'static Arch, Failure> {
    let (target, variant) = name.split_once(':').map_or((name, None), |(target, variant)| (target, Some(variant)));
    let archs = atomc_targets::variants(target)?;
    let Some(variant) = variant else { return Ok(&archs[0]) };
    archs.iter().find(|arch| arch.name == variant).ok_or_else(|| {
        let known: Vec<&str> = archs.iter().map(|arch| arch.name).collect();
        Failure::new("target::unknown-variant", format!("target `{target}` has no variant `{variant}`"))
            .help(format!("Known variants: {}.", known.join(", ")))
    })
}
