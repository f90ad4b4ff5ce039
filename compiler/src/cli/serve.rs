//! `atomc serve`: a model over HTTP, as OpenAI's interface has it.
mod access;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use atomc::model::{self, Model as Files};
use atomc_artifact::{Fingerprint, files};
use atomc_runtime::{Artifact, Engine, TrustList};
use atomc_server::api::{Access, Defaults, Metrics, Service};
use atomc_server::grammar::{FormLimits, Grammars};
use atomc_server::schedule::Options;
use atomc_server::serve::{self, Place};
use atomc_server::text::Text;
use atomc_server::worker::{self, Handle};

use self::access::AccessArgs;
use super::device::Devices;
use super::engine::{EngineArgs, Named, Sequences};
use super::failure::{Failure, tell};
use super::guesses::GuessArgs;
use super::trust;

/// Serve a model over HTTP, as OpenAI's clients know it
#[derive(clap::Args)]
#[command(after_help = "\
A folder is a model's: its artifact is model.atomc in it, which runs if you have made or trusted it (`atomc help trust`), and which
is compiled if it is not there. The artifact of NAME.gguf is NAME.atomc beside it. The server ends on SIGTERM or Ctrl-C, when the
requests that it has are answered. Whoever can reach the address may ask: give a key where that is not you alone, and let a proxy speak TLS.

Examples:
  atomc serve models/qwen3                                      http://127.0.0.1:8000/v1
  atomc serve qwen3-8b-q4_k_m.gguf
  atomc serve m.atomc --weights models/qwen3 --device hip:0
  atomc serve m.atomc --weights models/deepseek-v3 --speculate 2   with an artifact of `atomc compile --draft mtp`
  atomc serve models/qwen3 --host 0.0.0.0 --port 80 --api-key-file keys.txt
  curl localhost:8000/v1/completions -H 'content-type: application/json' -d '{\"prompt\": \"Once\", \"max_tokens\": 20}'")]
pub struct Args {
    /// An artifact, or a model: its folder, or a GGUF file
    #[arg(value_name = "ARTIFACT|MODEL")]
    path: PathBuf,
    #[command(flatten)]
    named: Named,
    /// tokenizer.json, or a folder or GGUF file with one and with the chat template, if they are
    /// not beside the weights
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// What to run on, as with `atomc run`
    #[arg(long, value_name = "DEVICE,…", default_value = "host")]
    device: Devices,
    /// Threads to compute with; 0 takes all
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    #[command(flatten)]
    access: AccessArgs,
    /// Have no page to chat on at `/`
    #[arg(long)]
    no_page: bool,
    /// Names of the model for clients; the first stands in answers [default: the folder's name, or
    /// the file's]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
    served_model_name: Vec<String>,
    /// Most requests that are computed at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    parallel: usize,
    /// Most requests that wait; more are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 512)]
    queue: usize,
    /// Tokens that the KV cache holds [default: as many as `--parallel` sequences may have, or as
    /// fit four fifths of the memory that the weights leave]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    cache_tokens: Option<usize>,
    /// Most tokens of one step, over all requests [default: those of the artifact's largest plan]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    step_tokens: Option<usize>,
    /// Compute each prompt anew, also where others began like it
    #[arg(long)]
    no_prefix_cache: bool,
    #[command(flatten)]
    guesses: GuessArgs,
    /// How a model writes thoughts, which chats then tell apart from their text
    /// (`reasoning_content`) [default: they are text]
    #[arg(long, value_name = "FORM")]
    reasoning_parser: Option<Reasoning>,
    /// Most answers that a request may want of a prompt (`n`)
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    max_choices: usize,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = at_least_one)]
    max_body: usize,
    /// Seconds of processor time that preparing a form of answers (a schema, a grammar) may take
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    grammar_seconds: f64,
    /// Seconds that requests have to end when the server is told to
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
    /// Take temperature, top_p and others of generation_config.json for requests that say nothing
    #[arg(long, value_name = "WHETHER", default_value_t = true, action = clap::ArgAction::Set)]
    generation_config: bool,
    /// What to compile for, where there is no artifact [default: the device]
    #[cfg(feature = "compiler")]
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Ranks that share the model out, where there is no artifact [default: the devices]
    #[cfg(feature = "compiler")]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    tp: Option<usize>,
    /// Ranks with whole experts, where there is no artifact
    #[cfg(feature = "compiler")]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    ep: Option<usize>,
    /// Stages of layers, each with these ranks, where there is no artifact
    #[cfg(feature = "compiler")]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pp: Option<usize>,
}

/// How thoughts are written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Reasoning {
    /// Between `<think>` and `</think>`, as Qwen and DeepSeek do
    Think,
}

/// A number that is not zero.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| "must be a whole number from 1 on".into())
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let limits = args.access.limits()?;
    let address = args.access.address()?;
    let access = args.access.access(address)?;
    let engine_args = engine_args(args)?;
    let missing = || Failure::new("tokenizer", "no tokenizer").help("Name one with --tokenizer.");
    let files = Files::at(args.tokenizer.as_deref().or(engine_args.weights.model()).ok_or_else(missing)?)?;
    let text = files.text()?;
    let defaults = if args.generation_config { defaults(&files)? } else { Defaults::default() };
    let artifact = opened(args, &engine_args)?;
    let sequences = Sequences { at_once: args.parallel, cache_tokens: args.cache_tokens };
    let engine = engine_args.serving(artifact, &sequences, &args.guesses)?;
    let stop = engine.model().stop.clone();
    let options = Options {
        running: args.parallel,
        step_tokens: args.step_tokens.unwrap_or(0),
        prefix_cache: !args.no_prefix_cache,
        speculate: args.guesses.speculate,
    };
    let about = about(&engine, &access);
    let (handle, thread) = worker::start(engine, options, args.queue).map_err(|e| Failure::new("threads", e))?;
    let model = Model { text: Arc::new(text), stop, defaults, files: &files };
    let service = service(args, handle.clone(), model, access);
    let name = service.names[0].clone();
    let place = Place { address, limits, grace: Duration::from_secs(args.grace) };
    let served = serve::serve(service, &place, |address| {
        tell(format_args!("`{name}` on {about} at http://{address}/v1"));
    });
    serve::join(&handle, thread);
    served.map_err(|error| Failure::new("address", format!("{}: {error}", place.address)))
}

fn about(engine: &Engine, access: &Access) -> String {
    let tokens = engine.cache().blocks() * engine.cache().block_tokens();
    format!("{}, with a cache of {tokens} tokens, {},", engine.device_name(), access::shown(access))
}

/// The parts of a served model other than the engine.
struct Model<'a> {
    text: Arc<Text>,
    /// Tokens that end an answer.
    stop: Vec<u32>,
    defaults: Defaults,
    files: &'a Files,
}

fn service(args: &Args, handle: Handle, model: Model<'_>, access: Access) -> Service {
    let Model { text, stop, defaults, files } = model;
    let templates = files.templates().map_err(|error| error.to_string());
    if let Err(why) = &templates {
        tell(format_args!("warning: chats are refused: {why}"));
    }
    let vocab = handle.limits().vocab;
    Service {
        handle,
        templates,
        thoughts: args.reasoning_parser.is_some(),
        grammars: Grammars::new(text.clone(), vocab, stop.clone(), form_limits(args)),
        text,
        names: names(args, files),
        stop,
        defaults,
        access,
        page: !args.no_page,
        body_bytes: args.max_body,
        choices: args.max_choices,
        lanes: Arc::default(),
        metrics: Arc::new(Metrics::default()),
        started: SystemTime::now(),
    }
}

fn form_limits(args: &Args) -> FormLimits {
    FormLimits { prepare: Duration::from_secs_f64(args.grammar_seconds), ..FormLimits::default() }
}

/// A time above zero, at most an hour.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    if seconds > 0.0 && seconds <= 3600.0 { Ok(seconds) } else { Err("is not above 0 and at most 3600".into()) }
}

fn names(args: &Args, files: &Files) -> Vec<String> {
    match args.served_model_name.is_empty() {
        true => vec![files.name()],
        false => args.served_model_name.clone(),
    }
}

/// The defaults of a model's folder for fields that requests do not have. A file has none.
fn defaults(files: &Files) -> Result<Defaults, Failure> {
    let Files::Folder(_) = files else { return Ok(Defaults::default()) };
    let file = files.folder().join("generation_config.json");
    match files::read_to_string(&file) {
        Ok(text) => Defaults::parse(&text).map_err(|error| {
            let help = "Mend it, or serve without it: `--generation-config false`.";
            Failure::file("generation_config", &file, error).help(help)
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Defaults::default()),
        Err(error) => Err(Failure::file("generation_config", &file, error)),
    }
}

/// Where artifact and weights are. A model's artifact has a place of its own.
fn engine_args(args: &Args) -> Result<EngineArgs, Failure> {
    let (artifact, model) = match model::artifact(&args.path) {
        Some(artifact) => (artifact, Some(args.path.as_path())),
        None => (args.path.clone(), None),
    };
    EngineArgs::named(artifact, &args.named, model, (args.device.clone(), args.threads))
}

/// Opens the artifact. One that the user did not name runs only if the user trusts it, asked for a
/// signature, or has just had it compiled.
fn opened(args: &Args, engine: &EngineArgs) -> Result<Artifact, Failure> {
    let found = model::artifact(&args.path);
    let missing = found.as_ref().filter(|file| !file.exists());
    let made = missing.map(|file| compiled(args, file)).transpose()?;
    check_target(args, made.is_some())?;
    let artifact = engine.artifact()?;
    let is_asked = found.is_none() || args.named.is_signed() || made == Some(artifact.fingerprint());
    if let Some(file) = found
        && !is_asked
        && !TrustList::read(&trust::place()?)?.has(artifact.fingerprint())
    {
        let help = format!(
            "`atomc trust {0}` if you would run it as a program, or name it: `atomc serve {0} --weights {1}`.",
            file.display(),
            args.path.display()
        );
        return Err(Failure::file("trust", &file, "lies beside the model, and is not on your list").help(help));
    }
    Ok(artifact)
}

/// Checks that no target is named where nothing is compiled.
#[cfg(feature = "compiler")]
fn check_target(args: &Args, is_made: bool) -> Result<(), Failure> {
    match &args.target {
        Some(target) if !is_made => {
            let message = format!("--target {target}: there is an artifact, and nothing is compiled");
            Err(Failure::new("target", message).help("`atomc inspect` shows what an artifact's targets are."))
        }
        _ => Ok(()),
    }
}

/// There is no such option.
#[cfg(not(feature = "compiler"))]
fn check_target(_: &Args, _: bool) -> Result<(), Failure> {
    Ok(())
}

/// Makes the artifact of a model.
#[cfg(feature = "compiler")]
fn compiled(args: &Args, file: &Path) -> Result<Fingerprint, Failure> {
    let target = match &args.target {
        Some(target) => target.clone(),
        None => args.device.first().known_target()?,
    };
    let place = if args.path.is_dir() { "in" } else { "beside" };
    tell(format_args!("no artifact {place} {}: compiling for {target}", args.path.display()));
    let mut words: Vec<std::ffi::OsString> =
        vec![args.path.clone().into(), "--target".into(), target.into(), "-o".into(), file.into()];
    // Whole experts alone are ranks too.
    let of_stage = args.device.len() / args.pp.unwrap_or(1);
    let tp = args.tp.or((args.ep.is_none() && of_stage > 1).then_some(of_stage));
    for (option, ranks) in [("--tp", tp), ("--ep", args.ep), ("--pp", args.pp)] {
        words.extend(ranks.into_iter().flat_map(|ranks| [option.into(), ranks.to_string().into()]));
    }
    let compile = super::compile::Args::parsed(&words).map_err(|fault| Failure::new("compile", fault))?;
    super::compile::made(&compile, &super::trace::Spans::new())
}

/// Says that this build makes none.
#[cfg(not(feature = "compiler"))]
fn compiled(args: &Args, file: &Path) -> Result<Fingerprint, Failure> {
    let message = format!("no artifact: there is no {}", file.display());
    let model = args.path.display();
    let help = format!(
        "This build cannot compile. On a machine with the whole atomc: `atomc compile {model} -o model.atomc`; \
         then `atomc serve model.atomc --weights {model}` here."
    );
    Err(Failure::new("artifact", message).help(help))
}
