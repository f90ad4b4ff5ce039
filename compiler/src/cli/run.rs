//! `atomc run`: a prompt in, text out; or tokens in and out, if there is no tokenizer.
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use atomc_runtime::generate::{self, Answer, Finish, Guesses};
use atomc_runtime::sight::Images;
use atomc_runtime::{Artifact, Params, Sampling};
use serde_json::json;

use super::engine::EngineArgs;
use super::failure::Failure;
use super::guesses::GuessArgs;
use super::place::Place;
#[cfg(feature = "server")]
use super::seen::Seen;
use super::text::Text;

/// Answer a prompt; the text appears as it is made
#[derive(clap::Args)]
#[command(after_help = "\
Of a model the artifact is model.atomc in its folder, or NAME.atomc beside NAME.gguf. If there is none it is compiled for the device.

Examples:
  atomc run qwen3-8b-q4_k_m.gguf --prompt 'Once'
  atomc run Qwen/Qwen3-0.6B --prompt 'Once'                        of the hub's cache
  atomc run m.atomc --weights models/qwen3 --prompt 'Q: Ana has 12 apples. Ana eats 3. How many …\nA:'
  atomc run m.atomc --weights models/qwen3 --prompt - < question.txt
  atomc run m.atomc --weights models/qwen3 --prompt 'Once' --temperature 0.8 --top-p 0.95 --seed 7
  atomc run m.atomc --weights models/qwen3 --prompt 'Once' --json
  atomc run m.atomc --weights models/qwen3-vl --image cat.png --prompt 'What is this?'       compiled with --tower
  atomc run m.atomc --weights models/deepseek-v3 --prompt 'Once' --speculate 3
  atomc run m.atomc --weights models/kimi-k2 --tokens 163584,2742      without a tokenizer")]
#[command(group = clap::ArgGroup::new("asked").required(true))]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// What to go on from; `-` reads standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, group = "asked")]
    prompt: Option<String>,
    /// The same as numbers of tokens, for a model whose tokenizer is elsewhere; the answer is
    /// numbers too. `-` reads standard input
    #[arg(long, value_name = "N,…", group = "asked", conflicts_with = "tokenizer")]
    tokens: Option<String>,
    /// tokenizer.json, or a folder, GGUF file or name of the hub with one, if it is not beside the
    /// weights
    #[arg(long, value_name = "PATH", value_parser = Place::parser())]
    tokenizer: Option<Place>,
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
    /// Choose among tokens that are at least this likely beside the most likely one, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = least)]
    min_p: f32,
    /// The same seed and options give the same text
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// An image to ask about, a PNG, JPEG or WebP file; several in their order. The prompt becomes
    /// a message of a chat with the images before it, unless it says where they are with the
    /// model's own text for one
    #[cfg(feature = "server")]
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    image: Vec<std::path::PathBuf>,
    #[command(flatten)]
    guesses: GuessArgs,
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

fn least(text: &str) -> Result<f32, String> {
    checked(text, |min_p| Sampling { min_p, ..Sampling::default() })
}

/// A number that the runtime takes in its place.
fn checked(text: &str, place: impl FnOnce(f32) -> Sampling) -> Result<f32, String> {
    let value = text.parse().map_err(|_| "not a number")?;
    place(value).check().map(|()| value).map_err(|error| error.to_string())
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let artifact = args.engine.artifact()?;
    let Asked { words, prompt, images } = args.asked(&artifact)?;
    let mut engine =
        args.engine.engine(artifact, [prompt.len().saturating_add(args.max_tokens)], args.guesses.speculate > 0)?;
    args.guesses.check(&engine)?;
    let &Args { temperature, top_k, top_p, min_p, seed, .. } = args;
    let sampling = Sampling { temperature, top_k, top_p, min_p, seed };
    let params = Params {
        sampling,
        speculate: args.guesses.speculate,
        images,
        ..Params::for_model(engine.model(), args.max_tokens)
    };
    let mut stream = Stream::new(&words, args.json);
    let answer = generate::generate(&mut engine, &prompt, &params, |token| stream.push(token))?;
    stream.end(&answer.tokens)?;
    if args.json {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", describe(&words, &prompt, &answer)?)?;
    }
    Ok(())
}

/// Tokens of a prompt, and its images.
pub type Placed = (Vec<u32>, Option<Arc<Images>>);

/// What an answer goes on from.
struct Asked {
    words: Words,
    prompt: Vec<u32>,
    images: Option<Arc<Images>>,
}

impl Args {
    fn asked(&self, artifact: &Artifact) -> Result<Asked, Failure> {
        let Some(prompt) = &self.prompt else {
            let prompt = numbers(&read(self.tokens.as_deref().unwrap_or_default())?)?;
            return Ok(Asked { words: Words::Numbers, prompt, images: None });
        };
        let text = Text::open(self.tokenizer()?)?;
        let (prompt, images) = self.placed(artifact, &text, read(prompt)?)?;
        Ok(Asked { words: Words::Text(Box::new(text)), prompt, images })
    }

    /// The tokens of a prompt, with those of its images.
    #[cfg(feature = "server")]
    fn placed(&self, artifact: &Artifact, text: &Text, prompt: String) -> Result<Placed, Failure> {
        let positions = artifact.manifest().model.max_positions;
        if self.image.is_empty() {
            return Ok((text.encode(&prompt, positions)?, None));
        }
        let seen = Seen::new(&self.engine, artifact, &self.image)?;
        let prompt = text.encode(&seen.asked(&prompt)?, positions)?;
        seen.placed(&prompt)
    }

    /// The tokens of a prompt: this build sees no images.
    #[cfg(not(feature = "server"))]
    fn placed(&self, artifact: &Artifact, text: &Text, prompt: String) -> Result<Placed, Failure> {
        Ok((text.encode(&prompt, artifact.manifest().model.max_positions)?, None))
    }

    fn tokenizer(&self) -> Result<&Path, Failure> {
        self.engine.tokenizer(self.tokenizer.as_ref(), "Name one with --tokenizer, or use --tokens.")
    }
}

/// How tokens are read and shown.
enum Words {
    Text(Box<Text>),
    Numbers,
}

impl Words {
    /// A function that returns the text to show for each token, called for one token after the
    /// other.
    fn stream(&self) -> Box<dyn FnMut(u32) -> Result<String, Failure> + '_> {
        match self {
            Words::Text(text) => Box::new(text.stream()),
            Words::Numbers => {
                let mut before = "";
                Box::new(move |token| Ok(format!("{}{token}", std::mem::replace(&mut before, ","))))
            }
        }
    }

    fn whole(&self, tokens: &[u32]) -> Result<String, Failure> {
        match self {
            Words::Text(text) => text.decode(tokens),
            Words::Numbers => Ok(tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

/// Numbers of tokens, with commas or white space between them.
fn numbers(list: &str) -> Result<Vec<u32>, Failure> {
    let words = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let bad = |word: &str| Failure::new("tokens", format!("{word:?} is not the number of a token"));
    let found: Vec<u32> = words.map(|word| word.parse().map_err(|_| bad(word))).collect::<Result<_, _>>()?;
    match found.is_empty() {
        true => Err(Failure::new("tokens", "a prompt needs at least one")),
        false => Ok(found),
    }
}

fn read(prompt: &str) -> Result<String, Failure> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| Failure::new("prompt", error))?;
    Ok(text)
}

fn describe(words: &Words, prompt: &[u32], answer: &Answer) -> Result<serde_json::Value, Failure> {
    let finish = match answer.finish {
        Finish::Stop(_) => "stop",
        Finish::Length => "length",
        Finish::Caller => "closed",
    };
    let mut described = json!({
        "tokens": answer.tokens,
        "prompt_tokens": prompt.len(),
        "finish": finish,
    });
    if answer.guesses.made > 0 {
        let Guesses { made, right, steps } = answer.guesses;
        described["guesses"] = json!({ "made": made, "right": right, "steps": steps });
    }
    if let Words::Text(text) = words {
        described["text"] = text.decode(&answer.tokens)?.into();
    }
    Ok(described)
}

/// Writes the answer piece by piece.
struct Stream<'a> {
    words: &'a Words,
    piece: Box<dyn FnMut(u32) -> Result<String, Failure> + 'a>,
    silent: bool,
    written: usize,
    failed: Option<Failure>,
}

impl<'a> Stream<'a> {
    fn new(words: &'a Words, silent: bool) -> Stream<'a> {
        Stream { words, piece: words.stream(), silent, written: 0, failed: None }
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

    /// Prints the rest of an incomplete last character, and the end of the line.
    fn end(&mut self, tokens: &[u32]) -> Result<(), Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        if self.silent {
            return Ok(());
        }
        let whole = self.words.whole(tokens)?;
        self.write(whole.get(self.written..).unwrap_or_default())?;
        if !whole.ends_with('\n') {
            self.write("\n")?;
        }
        Ok(())
    }
}
