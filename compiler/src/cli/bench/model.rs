//! `atomc bench --model`: predicted times for chips that were not measured, and the error if there
//! is a measurement.
use std::io::Write;
use std::path::Path;

use atomc_artifact::{escaped, files};
use atomc_emulator::timing::chip::Chip;
use atomc_runtime::Artifact;
use serde_json::Value;

use super::Args;
use crate::cli::failure::Failure;
use crate::cli::predict::{self, Launches, Modelled, PredictedStep, Predictor};
use crate::cli::progress::{Progress, Unit};
use crate::cli::shown;

/// Tokens of the prompt, and of sequences that decode.
#[derive(Clone, Copy)]
pub struct Tokens {
    pub prompt: usize,
    pub position: usize,
}

pub fn run(args: &Args, chip: Modelled, artifact: &Artifact, tokens: Tokens) -> Result<(), Failure> {
    let measured = args.measured.as_deref().map(Measured::read).transpose()?;
    let steps = predicted(args, chip.0, artifact, tokens)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let mut value = predict::json(&chip.0, &steps);
        value["position"] = tokens.position.into();
        return shown::json(&mut out, &value);
    }
    writeln!(out, "{}", predict::caveat(&chip.0))?;
    writeln!(out, "assumed: sequences that decode have {} tokens", tokens.position)?;
    predict::assumed().try_for_each(|what| writeln!(out, "assumed: {what}"))?;
    match measured {
        Some(measured) => measured.grade(&mut out, &chip.0, &steps),
        None => steps.iter().try_for_each(|step| show(&mut out, step, args.kernels)),
    }
}

fn predicted(args: &Args, chip: Chip, artifact: &Artifact, tokens: Tokens) -> Result<Vec<PredictedStep>, Failure> {
    let mut predictor = Predictor::new(artifact, chip)?;
    let progress = Progress::new("predicting", Unit::Pieces);
    let total = args.batch.len() as u64 + 1;
    progress.at(0, total);
    let mut steps = vec![predictor.prompt(tokens.prompt)?];
    for (done, &batch) in (1..).zip(&args.batch) {
        progress.at(done, total);
        steps.push(predictor.decode(batch, tokens.position)?);
    }
    progress.at(total, total);
    Ok(steps)
}

fn show(out: &mut impl Write, step: &PredictedStep, kernels: bool) -> Result<(), Failure> {
    let (seconds, tokens) = (step.seconds(), step.tokens as f64);
    writeln!(out, "{}: predicted {:.3} ms, {:.1} tokens/s", step.name, 1e3 * seconds, tokens / seconds)?;
    for launches in step.kernels.iter().filter(|_| kernels) {
        let (count, us, kernel) = (launches.count, launches.us(), &launches.kernel);
        let bound = kernel.prediction.bound.name();
        writeln!(out, "  predicted {us:>10.1} us  {count:>4} x  {bound:<14}  {}", kernel.symbol)?;
    }
    Ok(())
}

/// The measured times of a chip.
struct Measured {
    product: String,
    bench: Value,
}

/// A kernel, or a whole step, in microseconds.
struct Pair {
    what: String,
    measured: f64,
    predicted: f64,
}

impl Pair {
    fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

impl Measured {
    fn read(path: &Path) -> Result<Measured, Failure> {
        let wrong = |what: String| Failure::file("measured", path, what);
        let bytes = files::read(path).map_err(|error| wrong(error.to_string()))?;
        let bench: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
        let is_times = bench["prefill"]["seconds"].is_number() && bench["decode"].is_array();
        match bench["predicted"].as_bool() {
            Some(true) => Err(wrong("its times are predicted, not measured".into())),
            _ if !is_times => Err(wrong("it is not what `atomc bench --kernels --json` writes".into())),
            _ => Ok(Measured { product: bench["product"].as_str().unwrap_or("an unnamed device").into(), bench }),
        }
    }

    /// The measured form of a step, if there is one.
    fn step(&self, step: &PredictedStep) -> Option<&Value> {
        if step.batch == 0 {
            return Some(&self.bench["prefill"]).filter(|prefill| prefill["tokens"] == step.tokens);
        }
        self.bench["decode"].as_array()?.iter().find(|decode| decode["batch"] == step.batch)
    }

    /// A line for each kernel and step that both have, then how far the model is off.
    fn grade(&self, out: &mut impl Write, chip: &Chip, steps: &[PredictedStep]) -> Result<(), Failure> {
        writeln!(out, "measured on {}, predicted for {}", escaped(&self.product), chip.name)?;
        if !self.product.contains(chip.name) {
            writeln!(out, "these are different chips: the errors below are not the model's")?;
        }
        let (mut kernels, mut whole) = (Vec::new(), Vec::new());
        for step in steps {
            let Some(measured) = self.step(step) else { continue };
            kernels.extend(pairs(step, measured));
            let seconds = measured["seconds"].as_f64().unwrap_or_default();
            whole.push(Pair { what: step.name.clone(), measured: 1e6 * seconds, predicted: 1e6 * step.seconds() });
        }
        if whole.is_empty() {
            let message = "none of the predicted steps was measured";
            return Err(Failure::new("measured", message).help("Give both the same --prompt and --batch."));
        }
        writeln!(out, "{:>12}  {:>12}  {:>7}", "measured us", "predicted us", "error")?;
        for pair in kernels.iter().chain(&whole) {
            let Pair { what, measured, predicted } = pair;
            writeln!(out, "{measured:>12.1}  {predicted:>12.1}  {:>+5.0} %  {what}", 100.0 * pair.error())?;
        }
        for (of, pairs) in [("kernels", &kernels), ("steps", &whole)] {
            let Some([median, p90]) = errors(pairs) else { continue };
            writeln!(out, "error over {} {of}: median {median:.1} %, 90th percentile {p90:.1} %", pairs.len())?;
        }
        Ok(())
    }
}

/// The kernels that both have.
fn pairs(step: &PredictedStep, measured: &Value) -> Vec<Pair> {
    let all = measured["kernels"].as_array().map_or(&[][..], Vec::as_slice);
    let found = |symbol: &str| all.iter().find(|k| k["symbol"] == symbol)?["seconds"].as_f64();
    let pair = |launches: &Launches| {
        let symbol = &launches.kernel.symbol;
        let measured = found(symbol).filter(|seconds| *seconds > 0.0)?;
        let what = format!("{}: {symbol}", step.name);
        Some(Pair { what, measured: 1e6 * measured, predicted: launches.us() })
    };
    step.kernels.iter().filter_map(pair).collect()
}

/// Median and 90th percentile of the errors without their signs, in per cent.
fn errors(pairs: &[Pair]) -> Option<[f64; 2]> {
    let mut all: Vec<f64> = pairs.iter().map(|pair| 100.0 * pair.error().abs()).collect();
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all.get((part * (all.len() - 1) as f64).round() as usize).copied();
    if all.is_empty() { None } else { Some([at(0.5)?, at(0.9)?]) }
}
