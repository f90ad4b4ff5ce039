//! `atomc run`: a prompt in, text out.
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use atomc_runtime::generate::{self, Answer, Finish};
use atomc_runtime::{Params, Sampling};
use serde_json::json;

use super::engine::EngineArgs;
use super::failure::Failure;
use super::text::Text;

/// Answer a prompt; the text appears as it is made
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  atomc run m.atomc --weights models/qwen3 --prompt 'Q: Ana has 12 apples. Ana eats 3. How many …\nA:'
  atomc run m.atomc --weights models/qwen3 --prompt - < question.txt
  atomc run m.atomc --weights models/qwen3 --prompt 'Once' --temperature 0.8 --top-p 0.95 --seed 7
  atomc run m.atomc --weights models/qwen3 --prompt 'Once' --json")]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// What to go on from; `-` reads standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
    /// tokenizer.json, or a folder with one, if it is not beside the weights
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Most tokens to add
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    /// How freely to choose; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature)]
    temperature: f32,
    /// Choose among the K most likely tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Choose among the fewest tokens that are this likely together, above 0 and up to 1
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    top_p: f32,
    /// The same seed and options give the same text
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// One JSON object at the end instead of a stream of text
    #[arg(long)]
    json: bool,
}

fn temperature(text: &str) -> Result<f32, String> {
    checked(text, |temperature| Sampling { temperature, ..Sampling::default() })
}

fn probability(text: &str) -> Result<f32, String> {
    checked(text, |top_p| Sampling { top_p, ..Sampling::default() })
}

/// A number that the runtime takes in its place.
fn checked(text: &str, place: impl FnOnce(f32) -> Sampling) -> Result<f32, String> {
    let value = text.parse().map_err(|_| "not a number")?;
    place(value).check().map(|()| value).map_err(|error| error.to_string())
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let artifact = args.engine.artifact()?;
    let tokenizer = args.tokenizer.as_deref().or(args.engine.weights.dir());
    let missing = || Failure::new("tokenizer", "no tokenizer").help("Name one with --tokenizer.");
    let text = Text::open(tokenizer.ok_or_else(missing)?)?;
    let prompt = text.encode(&read(&args.prompt)?)?;
    let mut engine = args.engine.engine(artifact, [prompt.len().saturating_add(args.max_tokens)])?;
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed };
    let params = Params { sampling, ..Params::for_model(engine.model(), args.max_tokens) };
    let mut stream = Stream::new(&text, args.json);
    let answer = generate::generate(&mut engine, &prompt, &params, |token| stream.push(token))?;
    stream.end(&answer.tokens)?;
    if args.json {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", describe(&text, &prompt, &answer)?)?;
    }
    Ok(())
}

fn read(prompt: &str) -> Result<String, Failure> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| Failure::new("prompt", error))?;
    Ok(text)
}

fn describe(text: &Text, prompt: &[u32], answer: &Answer) -> Result<serde_json::Value, Failure> {
    let finish = match answer.finish {
        Finish::Stop(_) => "stop",
        Finish::Length => "length",
        Finish::Caller => "closed",
    };
    Ok(json!({
        "text": text.decode(&answer.tokens)?,
        "tokens": answer.tokens,
        "prompt_tokens": prompt.len(),
        "finish": finish,
    }))
}

/// Writes pieces of text as their tokens come.
struct Stream<'a> {
    text: &'a Text,
    piece: Box<dyn FnMut(u32) -> Result<String, Failure> + 'a>,
    silent: bool,
    written: usize,
    failed: Option<Failure>,
}

impl<'a> Stream<'a> {
    fn new(text: &'a Text, silent: bool) -> Stream<'a> {
        Stream { text, piece: Box::new(text.stream()), silent, written: 0, failed: None }
    }

    fn push(&mut self, token: u32) -> ControlFlow<()> {
        if self.silent {
            return ControlFlow::Continue(());
        }
        match (self.piece)(token).and_then(|piece| self.write(&piece)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    fn write(&mut self, piece: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(piece.as_bytes())?;
        out.flush()?;
        self.written += piece.len();
        Ok(())
    }

    /// What is left where the last character was not complete, and the end of the line.
    fn end(&mut self, tokens: &[u32]) -> Result<(), Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        if self.silent {
            return Ok(());
        }
        let whole = self.text.decode(tokens)?;
        self.write(whole.get(self.written..).unwrap_or_default())?;
        if !whole.ends_with('\n') {
            self.write("\n")?;
        }
        Ok(())
    }
}
