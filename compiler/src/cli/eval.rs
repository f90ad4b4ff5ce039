//! `atomc eval`: exact-match accuracy over a file of problems.
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use atomc_artifact::files;
use atomc_runtime::generate::{self, Guesses};
use atomc_runtime::{Artifact, Params};
use serde::Deserialize;
use serde_json::json;

use super::engine::EngineArgs;
use super::failure::Failure;
use super::guesses::GuessArgs;
use super::output;
use super::place::Place;
use super::progress::{Progress, Unit};
use super::run::Placed;
#[cfg(feature = "server")]
use super::seen;
use super::text::Text;

/// Answer problems greedily and count the exact matches
#[derive(clap::Args)]
#[command(after_help = "\
Each line of the file is an object with a \"prompt\" and its \"solution\". An answer matches if it has the same text, blanks
at both ends aside. \"images\", a list of `data:` addresses, or of `file://` ones below the file's folder, are those that the
prompt has places for.

Examples:
  atomc eval m.atomc --weights models/qwen3 problems.jsonl
  atomc eval m.atomc --weights models/qwen3 problems.jsonl --limit 20 --show
  atomc eval m.atomc --weights models/qwen3 problems.jsonl --speculate 3
  atomc eval m.atomc --weights models/qwen3 problems.jsonl --json          {\"exact\":500,\"of\":500}")]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// One problem a line
    problems: PathBuf,
    /// tokenizer.json, or a folder, GGUF file or name of the hub with one, if it is not beside the
    /// weights
    #[arg(long, value_name = "PATH", value_parser = Place::parser())]
    tokenizer: Option<Place>,
    /// Only the first N problems
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Problems that are answered at the same time
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch: usize,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    #[command(flatten)]
    guesses: GuessArgs,
    /// Print the answers that do not match
    #[arg(long, conflicts_with = "json")]
    show: bool,
    /// The result as a JSON object
    #[arg(long)]
    json: bool,
    /// Also write each answer here, a JSON object a line: its text and its tokens
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Problem {
    prompt: String,
    solution: String,
    /// As requests name images.
    #[serde(default)]
    images: Vec<String>,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    args.answers.as_deref().map_or(Ok(()), output::check)?;
    let artifact = args.engine.artifact()?;
    let problems = problems(args)?;
    let text = Text::open(args.engine.tokenizer(args.tokenizer.as_ref(), "Name one with --tokenizer.")?)?;
    let prompts = match problems.iter().any(|problem| !problem.images.is_empty()) {
        true => seen(args, &artifact, (&text, &problems))?,
        false => {
            let positions = artifact.manifest().model.max_positions;
            let encoded = |problem: &Problem| Ok::<_, Failure>((text.encode(&problem.prompt, positions)?, None));
            problems.iter().map(encoded).collect::<Result<_, _>>()?
        }
    };
    let longest = prompts.iter().map(|(prompt, _)| prompt.len()).max().unwrap_or(0).saturating_add(args.max_tokens);
    let width = args.batch.clamp(1, problems.len().max(1));
    let mut engine = args.engine.engine(artifact, std::iter::repeat_n(longest, width), args.guesses.speculate > 0)?;
    args.guesses.check(&engine)?;
    let params = Params { speculate: args.guesses.speculate, ..Params::for_model(engine.model(), args.max_tokens) };

    let progress = Progress::new("answering", Unit::Pieces);
    let (mut answers, mut done, mut guesses) = (vec![None; prompts.len()], 0, Guesses::default());
    progress.at(0, prompts.len() as u64);
    generate::generate_all(&mut engine, &prompts, &params, width, |index, answer| {
        answers[index] = Some(answer.tokens);
        guesses += answer.guesses;
        done += 1;
        progress.at(done, prompts.len() as u64);
        ControlFlow::Continue(())
    })?;
    drop(progress);
    if let Some(path) = &args.answers {
        write_answers(&text, &answers, path)?;
    }
    report(args, (&text, guesses), &problems, &answers)
}

fn problems(args: &Args) -> Result<Vec<Problem>, Failure> {
    let file = files::read_to_string(&args.problems).map_err(|e| Failure::file("problems", &args.problems, e))?;
    let lines = file.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .take(args.limit.unwrap_or(usize::MAX))
        .map(|(index, line)| {
            let wrong = |e| Failure::file("problems", &args.problems, format!("line {}: {e}", index + 1));
            serde_json::from_str(line).map_err(wrong)
        })
        .collect()
}

/// The prompts of problems with images, which are seen before the first answer is made.
#[cfg(feature = "server")]
fn seen(args: &Args, artifact: &Artifact, (text, problems): (&Text, &[Problem])) -> Result<Vec<Placed>, Failure> {
    let model = seen::model(&args.engine)?;
    let folder = args.problems.parent().map(Path::to_owned);
    let eyes = seen::eyes(&args.engine, artifact, (&model, &model.text()?), folder)?;
    let positions = artifact.manifest().model.max_positions;
    let look = |address: &String| eyes.bytes(address).and_then(|bytes| eyes.look(&bytes));
    let prompt = |(index, problem): (usize, &Problem)| {
        let prompt = text.encode(&eyes.prompting().written(problem.prompt.clone()), positions)?;
        let rows = problem.images.iter().map(look).collect::<Result<_, _>>();
        let wrong = |e| Failure::file("problems", &args.problems, format!("problem {}: {e}", index + 1));
        seen::placed(eyes.prompting(), &prompt, rows.map_err(wrong)?)
    };
    problems.iter().enumerate().map(prompt).collect()
}

/// This build sees no images.
#[cfg(not(feature = "server"))]
fn seen(args: &Args, _: &Artifact, _: (&Text, &[Problem])) -> Result<Vec<Placed>, Failure> {
    Err(Failure::file("problems", &args.problems, "this build of atomc sees no images"))
}

fn write_answers(text: &Text, answers: &[Option<Vec<u32>>], path: &Path) -> Result<(), Failure> {
    let mut lines = String::new();
    for answer in answers {
        let tokens = answer.as_deref().unwrap_or_default();
        lines += &json!({ "answer": text.decode(tokens)?, "tokens": tokens }).to_string();
        lines.push('\n');
    }
    output::write(path, lines.as_bytes())
}

fn report(
    args: &Args,
    (text, guesses): (&Text, Guesses),
    problems: &[Problem],
    answers: &[Option<Vec<u32>>],
) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let mut exact = 0;
    for (problem, answer) in problems.iter().zip(answers) {
        let answer = text.decode(answer.as_deref().unwrap_or_default())?;
        if answer.trim() == problem.solution.trim() {
            exact += 1;
        } else if args.show {
            writeln!(
                out,
                "{}\n  answer   {:?}\n  solution {:?}",
                problem.prompt,
                answer.trim(),
                problem.solution.trim()
            )?;
        }
    }
    let (of, Guesses { made, right, steps }) = (problems.len(), guesses);
    match args.json {
        true => {
            let mut found = json!({ "exact": exact, "of": of });
            if guesses.made > 0 {
                found["guesses"] = json!({ "made": made, "right": right, "steps": steps });
            }
            writeln!(out, "{found}")?;
        }
        false => writeln!(out, "{exact} of {of} exact")?,
    }
    if !args.json && guesses.made > 0 {
        writeln!(out, "{right} of {made} guesses right, in {steps} steps")?;
    }
    Ok(())
}
