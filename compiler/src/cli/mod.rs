//! The verbs of `atomc`, one file each, and what they share.
mod bench;
mod check;
#[cfg(feature = "compiler")]
mod compile;
mod completions;
mod device;
mod devices;
mod diff;
mod doctor;
mod engine;
mod eval;
#[cfg(feature = "compiler")]
mod explain;
mod extract;
mod failure;
mod flow;
#[cfg(all(test, feature = "compiler"))]
mod forged;
mod guesses;
mod hub;
mod inspect;
mod logits;
mod made;
#[cfg(feature = "compiler")]
mod model;
mod opened;
mod output;
mod pack;
mod place;
#[cfg(feature = "emulator")]
mod predict;
#[cfg(feature = "compiler")]
mod print;
mod progress;
mod report;
mod run;
#[cfg(feature = "server")]
mod seen;
#[cfg(feature = "server")]
mod serve;
mod shown;
mod sign;
#[cfg(feature = "compiler")]
mod targets;
mod text;
mod trace;
mod trust;
#[cfg(feature = "compiler")]
mod tune;
mod verify;
mod why;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use failure::Failure;
use trace::Spans;

/// Compiles language models ahead of time into one small file, and runs it.
#[derive(Parser)]
#[command(name = "atomc", version, propagate_version = true, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[cfg(feature = "compiler")]
const EXAMPLES: &str = "\
Examples:
  atomc compile models/qwen3 -o m.atomc           one file for this kind of machine; needs no weights
  atomc run m.atomc --weights models/qwen3 --prompt 'Q: Ana has 12 apples. Ana finds 3 more. How many …'
  atomc serve models/qwen3                        the same over HTTP, for OpenAI's clients
  atomc bench m.atomc --random-weights            how fast, and how close to what memory allows
  atomc inspect m.atomc                           what is in the file
  atomc verify m.atomc                            every kernel against the reference

ATOMC_LOG selects what is logged to standard error, e.g. ATOMC_LOG=debug or ATOMC_LOG=atomc_passes=debug.
Exit codes: 0 done, 1 failed, 2 wrong usage.";

#[cfg(not(feature = "compiler"))]
const EXAMPLES: &str = "\
Examples:
  atomc run m.atomc --weights models/qwen3 --prompt 'Q: Ana has 12 apples. Ana finds 3 more. How many …'
  atomc serve m.atomc --weights models/qwen3      the same over HTTP, for OpenAI's clients
  atomc bench m.atomc --random-weights            how fast, and how close to what memory allows
  atomc inspect m.atomc                           what is in the file
  atomc verify m.atomc                            every kernel against the reference

This build runs artifacts and cannot compile them.
ATOMC_LOG selects what is logged to standard error, e.g. ATOMC_LOG=debug.
Exit codes: 0 done, 1 failed, 2 wrong usage.";

#[derive(Subcommand)]
enum Verb {
    #[cfg(feature = "compiler")]
    Compile(compile::Args),
    Run(run::Args),
    #[cfg(feature = "server")]
    Serve(Box<serve::Args>),
    Bench(bench::Args),
    Check(check::Args),
    Inspect(inspect::Args),
    Eval(eval::Args),
    Logits(logits::Args),
    Verify(verify::Args),
    Pack(pack::Args),
    Trust(trust::Args),
    Sign(sign::Args),
    #[cfg(feature = "compiler")]
    Explain(explain::Args),
    #[cfg(feature = "compiler")]
    Print(print::Args),
    #[cfg(feature = "compiler")]
    Targets(targets::Args),
    #[cfg(feature = "compiler")]
    Tune(tune::Args),
    Devices(devices::Args),
    Diff(diff::Args),
    Report(report::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
}

/// The number of queues that CUDA's driver makes for streams in parallel. atomc uses one stream;
/// seven more queues took a third of its start.
const QUEUES: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "1");

pub fn main() -> ExitCode {
    if std::env::var_os(QUEUES.0).is_none() {
        // SAFETY: there are no other threads yet.
        unsafe { std::env::set_var(QUEUES.0, QUEUES.1) };
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(help) => return show_help(&help),
    };
    let spans = Spans::new();
    if let Err(failure) = log(cli.verb.is_traced().then(|| spans.clone())) {
        return end(Err(failure));
    }
    let done = match &cli.verb {
        #[cfg(feature = "compiler")]
        Verb::Compile(args) => compile::run(args, &spans),
        Verb::Run(args) => run::run(args),
        #[cfg(feature = "server")]
        Verb::Serve(args) => serve::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Inspect(args) => inspect::run(args),
        Verb::Eval(args) => eval::run(args),
        Verb::Logits(args) => logits::run(args),
        Verb::Verify(args) => verify::run(args),
        Verb::Pack(args) => pack::run(args),
        Verb::Trust(args) => trust::run(args),
        Verb::Sign(args) => sign::run(args),
        #[cfg(feature = "compiler")]
        Verb::Explain(args) => explain::run(args),
        #[cfg(feature = "compiler")]
        Verb::Print(args) => print::run(args),
        #[cfg(feature = "compiler")]
        Verb::Targets(args) => targets::run(args),
        #[cfg(feature = "compiler")]
        Verb::Tune(args) => tune::run(args),
        Verb::Devices(args) => devices::run(args),
        Verb::Diff(args) => diff::run(args),
        Verb::Report(args) => report::run(args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Completions(args) => completions::run(args),
    };
    end(done.and_then(|()| Ok(std::io::stdout().flush()?)))
}

/// Shows help or the version, or what is wrong with the arguments.
fn show_help(help: &clap::Error) -> ExitCode {
    match help.print() {
        Err(error) if !help.use_stderr() => end(Err(error.into())),
        _ => ExitCode::from(help.exit_code() as u8),
    }
}

fn end(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has seen enough.
        Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(Failure::Report(report)) => {
            failure::show(*report);
            ExitCode::FAILURE
        }
    }
}

impl Verb {
    /// Whether the spans of the compiler are wanted.
    fn is_traced(&self) -> bool {
        match self {
            #[cfg(feature = "compiler")]
            Verb::Compile(args) => args.trace.is_some(),
            _ => false,
        }
    }
}

/// Begins to log what `ATOMC_LOG` selects, which is nothing where it is not set.
fn log(spans: Option<Spans>) -> Result<(), Failure> {
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let selected = std::env::var_os("ATOMC_LOG").unwrap_or_default();
    let selected = selected.to_string_lossy();
    let filter: Targets = match &*selected {
        "" => Targets::new(),
        text => text.parse().map_err(|error| Failure::new("log", format!("ATOMC_LOG: {text:?}: {error}")))?,
    };
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // What cannot be written to standard error is not told there, which would panic.
    let log = log.log_internal_errors(false).with_filter(filter);
    let spans = spans.map(|spans| spans.clone().with_filter(spans));
    tracing_subscriber::registry().with(log).with(spans).init();
    Ok(())
}
