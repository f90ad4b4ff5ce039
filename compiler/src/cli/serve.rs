//! `atomc serve`: a model over HTTP, as OpenAI's interface has it.
mod access;
mod offload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use atomc::model::Model as Files;
use atomc_artifact::files;
use atomc_runtime::{Artifact, Engine};
use atomc_server::api::{Access, Defaults, Metrics, Service};
use atomc_server::eyes::Eyes;
use atomc_server::grammar::{FormLimits, Grammars};
use atomc_server::schedule::{Options, Scheduler};
use atomc_server::serve;
use atomc_server::text::Text;
use atomc_server::worker::{self, Handle};

use self::access::AccessArgs;
use self::offload::OffloadArgs;
use super::engine::{EngineArgs, Sequences};
use super::failure::{Failure, tell};
use super::guesses::GuessArgs;
use super::made::at_least_one;
use super::place::Place;
use super::seen;

/// Serve a model over HTTP, as OpenAI's clients know it
#[derive(clap::Args)]
#[command(after_help = "\
The artifact of a model is model.atomc in its folder, which runs if you have made or trusted it (`atomc help trust`), and which
is compiled if it is not there. The artifact of NAME.gguf is NAME.atomc beside it. At / there is a page to chat on. The server ends on SIGTERM or Ctrl-C, when the
requests that it has are answered. Whoever can reach the address may ask: give a key where that is not you alone, and let a proxy speak TLS.

Examples:
  atomc serve models/qwen3                                      http://127.0.0.1:8000/v1
  atomc serve qwen3-8b-q4_k_m.gguf
  atomc serve Qwen/Qwen3-0.6B                                  of the hub's cache
  atomc serve m.atomc --weights models/qwen3 --device hip:0
  atomc serve m.atomc --weights models/deepseek-v3 --speculate 2   with an artifact of `atomc compile --draft mtp`
  atomc serve models/qwen3 --host 0.0.0.0 --port 80 --api-key-file keys.txt
  curl localhost:8000/v1/completions -H 'content-type: application/json' -d '{\"prompt\": \"Once\", \"max_tokens\": 20}'")]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// tokenizer.json, or a folder, GGUF file or name of the hub with one and with the chat
    /// template, if they are not beside the weights
    #[arg(long, value_name = "PATH", value_parser = Place::parser())]
    tokenizer: Option<Place>,
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
    offload: OffloadArgs,
    /// Folder below which requests may name images as `file://` addresses [default: none]
    #[arg(long, value_name = "FOLDER")]
    image_folder: Option<PathBuf>,
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
}

/// How thoughts are written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Reasoning {
    /// Between `<think>` and `</think>`, as Qwen and DeepSeek do
    Think,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let limits = args.access.limits()?;
    let address = args.access.address()?;
    let access = args.access.access(address)?;
    let files = Files::at(args.engine.tokenizer(args.tokenizer.as_ref(), "Name one with --tokenizer.")?)?;
    let text = files.text()?;
    let defaults = if args.generation_config { defaults(&files)? } else { Defaults::default() };
    check_names(args, &files)?;
    let artifact = args.engine.artifact()?;
    let eyes = eyes(args, &artifact, (&files, &text))?;
    let sequences = Sequences { at_once: args.parallel, cache_tokens: args.cache_tokens };
    let mut engine = args.engine.serving(artifact, &sequences, &args.guesses)?;
    let stop = engine.model().stop.clone();
    let options = Options {
        running: args.parallel,
        step_tokens: args.step_tokens.unwrap_or(0),
        prefix_cache: !args.no_prefix_cache,
        speculate: args.guesses.speculate,
    };
    let about = about(&engine, &access);
    let offload = args.offload.open(&mut engine)?;
    let mut scheduler = Scheduler::new(engine, options);
    if let Some(offload) = offload {
        scheduler = scheduler.with_offload(offload);
    }
    let (handle, thread) = worker::start_with(scheduler, args.queue).map_err(|e| Failure::new("threads", e))?;
    let model = Model { text: Arc::new(text), eyes, stop, defaults, files: &files };
    let service = service(args, handle.clone(), model, access);
    let name = service.names[0].clone();
    let place = serve::Place { address, limits, grace: Duration::from_secs(args.grace) };
    let served = serve::serve(service, &place, |address| {
        tell(format_args!("`{name}` on {about} at http://{address}/v1"));
    });
    serve::join(&handle, thread);
    served.map_err(|error| Failure::new("address", format!("{}: {error}", place.address)))
}

/// What sees images, if the artifact has a tower.
fn eyes(args: &Args, artifact: &Artifact, of: (&Files, &Text)) -> Result<Option<Eyes>, Failure> {
    match (&artifact.manifest().tower, &args.image_folder) {
        (Some(_), folder) => Ok(Some(seen::eyes(&args.engine, artifact, of, folder.clone())?)),
        (None, Some(folder)) => Err(Failure::file("image_folder", folder, atomc_runtime::Error::NoTower)),
        (None, None) => Ok(None),
    }
}

fn about(engine: &Engine, access: &Access) -> String {
    let tokens = engine.cache().blocks() * engine.cache().block_tokens();
    format!("{}, with a cache of {tokens} tokens, {},", engine.device_name(), access::shown(access))
}

/// The parts of a served model other than the engine.
struct Model<'a> {
    text: Arc<Text>,
    /// What sees images, if the artifact has a tower.
    eyes: Option<Eyes>,
    /// Tokens that end an answer.
    stop: Vec<u32>,
    defaults: Defaults,
    files: &'a Files,
}

fn service(args: &Args, handle: Handle, model: Model<'_>, access: Access) -> Service {
    let Model { text, eyes, stop, defaults, files } = model;
    let templates = files.templates().map_err(|error| error.to_string());
    if let Err(why) = &templates {
        tell(format_args!("warning: chats are refused: {why}"));
    }
    let vocab = handle.limits().vocab;
    Service {
        handle,
        templates,
        eyes,
        thoughts: args.reasoning_parser.is_some(),
        grammars: Grammars::new(text.clone(), vocab, stop.clone(), form_limits(args)),
        text,
        names: names(args, files),
        adapters: args.engine.adapters().into_iter().map(|(name, _)| name).collect(),
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
        true => vec![args.engine.name().map_or_else(|| files.name(), str::to_owned)],
        false => args.served_model_name.clone(),
    }
}

/// Checks that requests can tell the model and its adapters apart.
fn check_names(args: &Args, files: &Files) -> Result<(), Failure> {
    let adapters = args.engine.adapters().into_iter().map(|(name, _)| name);
    let mut all: Vec<String> = names(args, files).into_iter().chain(adapters).collect();
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Failure::new("adapter", format!("two models have the name `{}`", pair[0]))
            .help("--adapter NAME=FOLDER names an adapter.")),
        None => Ok(()),
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
