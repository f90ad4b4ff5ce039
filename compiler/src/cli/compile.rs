//! `atomc compile`: a configuration in, an artifact out.
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use atomc::driver::{self, Options};
use atomc::frontend::Config;
use atomc_artifact::Fingerprint;
use atomc_artifact::manifest::Attention;
use atomc_config::{Adapters, Draft, Vision, draft};
use atomc_passes::BucketOptions;
use serde_json::json;

use super::failure::{Failure, tell};
use super::model::{self, ModelArgs};
use super::output;
use super::progress::{Progress, Unit};
use super::shown;
use super::trace::Spans;
use super::trust;

/// Compile a model into one file
#[derive(clap::Args)]
#[command(after_help = "\
Only config.json (and generation_config.json beside it, for the stop tokens) is read, or the head of a GGUF file: no weights are
needed, and the artifact serves every checkpoint of that configuration. The same input makes the same bytes. What is made goes on your
list of artifacts whose code may run where a framework finds them (`atomc help trust`).

Examples:
  atomc compile models/qwen3 -o m.atomc
  atomc compile models/qwen3/config.json --dtype f32 -o m.atomc
  atomc compile qwen3-8b-q4_k_m.gguf --context 8192 -o m.atomc
  atomc compile models/qwen3 --decode 1,2,4,8,16,32 --prefill 1024 -o m.atomc
  atomc compile models/qwen3 --tp 2 --attention own,caller -o rank.atomc
  atomc compile models/qwen3 --invariant -o m.atomc
  atomc compile models/qwen3 --adapters 4 --adapter-rank 32 -o m.atomc
  atomc compile models/deepseek-v3 --draft mtp --speculate 2 -o m.atomc
  atomc compile models/qwen3 --draft models/qwen3-eagle3 -o m.atomc
  atomc compile models/qwen3 --trace compile.json -o m.atomc
  atomc compile models/qwen3 --quant fp8,*.down_proj=none -o m.atomc
  atomc compile models/qwen3-moe --tp 2 --ep 2 -o rank.atomc")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Targets to make code for
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "host")]
    target: Vec<String>,
    /// Numbers of sequences that a decode step gets kernels of its own for
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8")]
    decode: Vec<usize>,
    /// Tokens that may be guessed behind a sequence and verified in one step, up to 7: each size of
    /// `--decode` also gets kernels for so many sequences with their guesses [default: 0, or 3 with
    /// a draft]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=7))]
    speculate: Option<u8>,
    /// What guesses them: `mtp`, the layer that the model's own checkpoint has for it, or the
    /// folder of an EAGLE-3 head for the model, or its config.json
    #[arg(long, value_name = "mtp|EAGLE_FOLDER")]
    draft: Option<PathBuf>,
    /// Most tokens of one step; a longer prompt takes several
    #[arg(long, value_name = "N", default_value_t = BucketOptions::default().tokens)]
    prefill: usize,
    /// Most tokens of one step that can have logits [default: 64, or all]
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    /// Ranks that share the model out, each with a part of every projection
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: usize,
    /// Ranks that hold some of the experts each, whole, where `--tp` alone shares out the width of
    /// each; as many as with `--tp`, or that is 1 and every rank has all else
    #[arg(long, value_name = "N", default_value_t = 1)]
    ep: usize,
    /// Stages of layers, each with the ranks of `--tp` and `--ep`
    #[arg(long, value_name = "N", default_value_t = 1)]
    pp: usize,
    /// Quantise weights while they are loaded: fp8, fp8-block, fp8-weights, int8, int8-weights,
    /// int4-g32, int4-g64, int4-g128, mxfp4 or mxfp4-rows, of all products but the head; or
    /// MODULES=SCHEME, by name, glob or `re:` pattern, where `none` is a scheme too
    #[arg(long, value_name = "RULE,…", value_delimiter = ',')]
    quant: Vec<String>,
    /// LoRA adapters that have room at once beside the weights, for `--adapter` of `run` and
    /// `serve`
    #[arg(long, value_name = "N", default_value_t = 0)]
    adapters: usize,
    /// The largest rank of an adapter
    #[arg(long, value_name = "N", default_value_t = 16)]
    adapter_rank: usize,
    /// Who attends: the artifact's own kernels, or a framework that runs it
    #[arg(long, value_name = "WHO,…", value_delimiter = ',', default_value = "own")]
    attention: Vec<Who>,
    /// Layers whose input rows a framework wants too, beside those behind the last layer, as drafts
    /// of EAGLE-3 do
    #[arg(long, value_name = "LAYER,…", value_delimiter = ',')]
    hidden: Vec<usize>,
    /// Also compile the tower that the checkpoint has for images, so that prompts may have some
    #[arg(long)]
    tower: bool,
    /// Most patches of an image, of 16 by 16 pixels in most towers: larger images are made smaller
    #[arg(long, value_name = "N", default_value_t = driver::PATCHES)]
    patches: usize,
    /// Add every sum up in an order that the row alone decides: the bits of an answer do not depend
    /// on what else is in its steps, nor on how a prompt is cut. Decode steps are slower
    #[arg(long)]
    invariant: bool,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Also write what the compiler did, and when, as a trace that chrome://tracing and Perfetto
    /// show: passes for each step, and kernels
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Leave the list of trusted artifacts as it is
    #[arg(long)]
    no_trust: bool,
    /// Describe what was made as a JSON object
    #[arg(long)]
    json: bool,
}

/// The name of the model's own layer for `--draft`.
const MTP: &str = "mtp";
/// Tokens that a draft guesses, where nothing is said.
const GUESSED: u8 = 3;

/// Which side attends.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Who {
    Own,
    Caller,
}

impl Args {
    /// Parses the words after `atomc compile` of a command line.
    pub fn parsed(words: &[OsString]) -> Result<Args, clap::Error> {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("compile").no_binary_name(true));
        <Args as clap::FromArgMatches>::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    /// Applies the options to a configuration.
    pub fn applied(&self, config: Config) -> Result<Config, Failure> {
        let mut config = self.model.applied(config)?;
        config.adapters = (self.adapters > 0).then_some(Adapters { slots: self.adapters, rank: self.adapter_rank });
        Ok(config)
    }

    /// The draft of a model, if options name one.
    fn draft(&self, config: &Config) -> Result<Option<Draft>, Failure> {
        let Some(draft) = &self.draft else { return Ok(None) };
        if self.speculate == Some(0) {
            return Err(Failure::new("draft", "a draft guesses no tokens with --speculate 0"));
        }
        if draft.as_os_str() != MTP {
            return Ok(Some(draft::read(draft, config)?));
        }
        let missing = || Failure::new("draft", format!("{} has no layer that drafts", config.architecture));
        config.draft()?.ok_or_else(missing).map(Some)
    }

    /// The driver's options, for a configuration with all options applied.
    pub fn options(&self, config: &Config) -> Result<Options, Failure> {
        let draft = self.draft(config)?;
        let guessed = self.speculate.unwrap_or(if draft.is_some() { GUESSED } else { 0 });
        let rows = self.rows.unwrap_or(BucketOptions::default().rows.min(self.prefill));
        let buckets =
            BucketOptions { decode: self.decode.clone(), each: usize::from(guessed) + 1, tokens: self.prefill, rows };
        let attention = self.attention.iter().map(|who| match who {
            Who::Own => Attention::Own,
            Who::Caller => Attention::Caller,
        });
        let tower = self.tower.then(|| Vision::of(config)).transpose()?;
        Ok(Options {
            targets: self.target.clone(),
            buckets,
            choice: None,
            ranks: self.tp,
            expert_ranks: self.ep,
            stages: self.pp,
            attention: attention.collect(),
            hidden: self.hidden.clone(),
            draft,
            tower,
            patches: self.patches,
            invariant: self.invariant,
        })
    }
}

/// Address space that a small model takes to compile; without it LLVM ends the process.
const LEAST_MEMORY: u64 = 512 << 20;

/// Checks that a limit of this process leaves the compiler enough memory.
fn check_memory() -> Result<(), Failure> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is of the call's type and outlives it.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    if !known || limit.rlim_cur >= LEAST_MEMORY {
        return Ok(());
    }
    let (has, least) = (limit.rlim_cur >> 20, LEAST_MEMORY >> 20);
    let message = format!("a limit leaves this process {has} MiB of address space; compiling takes at least {least}");
    Err(Failure::new("memory", message).help("`ulimit -v` shows the limit, and `ulimit -v unlimited` lifts it."))
}

pub fn run(args: &Args, spans: &Spans) -> Result<(), Failure> {
    let made = made(args, spans)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let Made { key, fingerprint, bytes, seconds, .. } = &made;
        let (named, path) = (fingerprint.to_string(), shown::json_path(&args.output)?);
        let facts = json!({ "path": path, "bytes": bytes, "key": key, "fingerprint": named, "seconds": seconds });
        writeln!(out, "{facts}")?;
    } else {
        writeln!(out, "{made}")?;
    }
    Ok(())
}

/// An artifact that was made.
pub struct Made {
    path: PathBuf,
    bytes: u64,
    key: String,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    seconds: f64,
}

impl std::fmt::Display for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:.2} MB in {:.2} s", shown::path(&self.path), self.bytes as f64 / 1e6, self.seconds)
    }
}

/// Compiles.
pub fn made(args: &Args, spans: &Spans) -> Result<Made, Failure> {
    let start = Instant::now();
    check_memory()?;
    if args.json {
        shown::json_path(&args.output)?;
    }
    output::check(&args.output)?;
    args.trace.as_deref().map_or(Ok(()), output::check)?;
    let mut config = args.applied(args.model.read()?)?;
    model::quantise(&mut config, &args.quant)?;
    let options = args.options(&config)?;
    let progress = Progress::new("compiling", Unit::Pieces);
    let mut report = |done: usize, total: usize, what: &str| {
        tracing::debug!(done, total, what);
        progress.at(done as u64, total as u64);
    };
    let compiled = driver::compile(&config, &options, &mut report)?;
    drop(progress);
    if let Some(file) = &args.trace {
        output::write(file, &spans.take().written()?)?;
    }
    let fingerprint = compiled.write(&args.output)?;
    if !args.no_trust {
        trust_it(&args.output, &compiled.manifest.model.architecture, fingerprint);
    }
    let bytes = std::fs::metadata(&args.output).map_err(|e| Failure::file("output", &args.output, e))?.len();
    let (path, key, seconds) = (args.output.clone(), compiled.manifest.key(), start.elapsed().as_secs_f64());
    Ok(Made { path, bytes, key, fingerprint, seconds })
}

/// The artifact is there, whether or not the list can be written: a read-only home is no reason to
/// fail.
fn trust_it(file: &Path, architecture: &str, fingerprint: Fingerprint) {
    if let Err(error) = trust::add(file, architecture, fingerprint) {
        let help = "a framework that finds it beside a model asks for `atomc trust`";
        let what = "is not on the list of trusted artifacts";
        tell(format_args!("warning: {} {what}: {error}; {help}", file.display()));
    }
}
