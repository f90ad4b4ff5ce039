//! The cost of verifying a draft's guesses, and of making them.
use std::io::Write;
use std::time::Instant;

use atomc_runtime::{Chosen, Engine, Request, SeqId, Want};
use serde_json::{Value, json};

use super::{APART, Args, Lengths, Timed, kernel_times, median, plan, prefill};
use crate::cli::failure::Failure;

/// Steps of `batch` sequences with their guesses.
pub struct Verify {
    batch: usize,
    each: usize,
    /// Seconds of a step that verifies, and of a decode step of as many sequences.
    pub seconds: f64,
    decode: f64,
    /// For the draft's first guess, and for each further one.
    first: f64,
    more: f64,
    /// Bytes that one more guess moves.
    bytes: u64,
    /// The kernels of a step that verifies.
    pub timed: Timed,
}

/// Measures both after prompts of these tokens. The guessed tokens do not matter: all of them are
/// taken back.
pub fn measure(
    engine: &mut Engine,
    ids: &[u32],
    (batch, decode): (usize, f64),
    args: &Args,
) -> Result<Verify, Failure> {
    let each = args.guesses.speculate + 1;
    let sequences: Vec<SeqId> = (0..batch).map(|_| Ok(prefill(engine, ids)?.0)).collect::<Result<_, Failure>>()?;
    let vocab = engine.model().vocab;
    let tokens: Vec<Vec<u32>> =
        (0..batch).map(|i| (0..each).map(|j| ((i * each + j + 1) * APART % vocab) as u32).collect()).collect();
    let prompts: Vec<(SeqId, usize)> = sequences.iter().map(|&sequence| (sequence, ids.len())).collect();
    let back = |engine: &mut Engine| engine.take_back(&prompts, |_, lacking| ids[lacking].to_vec());
    let requests: Vec<Request> = (sequences.iter().zip(&tokens))
        .map(|(&sequence, tokens)| Request { sequence, tokens, logits: Want::All })
        .collect();
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..args.steps {
        // The draft takes all rows that a step leaves, as where answers are made: the next step
        // has none to keep.
        for count in [1, 2] {
            let start = Instant::now();
            engine.step_picks(&requests)?;
            times[0].push(start.elapsed().as_secs_f64());
            let chosen: Vec<Chosen> =
                sequences.iter().zip(&tokens).map(|(&sequence, tokens)| Chosen { sequence, tokens }).collect();
            let start = Instant::now();
            engine.draft(&chosen, count)?;
            times[count].push(start.elapsed().as_secs_f64());
            back(engine)?;
        }
    }
    let [seconds, first, two] = times.map(median);
    let more = two - first;
    let mut timed = Timed::default();
    if args.times_kernels() {
        let lengths = Lengths { sequences: batch, first: ids.len() + 1, last: ids.len() + each };
        let step = |engine: &mut Engine| {
            engine.step_picks(&requests)?;
            back(engine)
        };
        let steps = |engine: &mut Engine| (0..args.steps).try_for_each(|_| Ok(step(engine)?));
        timed = kernel_times(engine, plan(engine, (batch, each), false), lengths, steps)?;
    }
    for sequence in sequences {
        engine.drop_sequence(sequence)?;
    }
    Ok(Verify { batch, each, seconds, decode, first, more, bytes: engine.draft_bytes(batch), timed })
}

impl Verify {
    pub fn line(&self, out: &mut impl Write, bandwidth: Option<f64>) -> std::io::Result<()> {
        let Verify { batch, each, seconds, decode, first, more, bytes, .. } = self;
        let share =
            bandwidth.map(|bandwidth| format!(", {:.0} % of the bandwidth", 100.0 * *bytes as f64 / more / bandwidth));
        writeln!(
            out,
            "verify, batch {batch}, {each} tokens each: {:.3} ms, {:.2} times a decode step",
            seconds * 1e3,
            seconds / decode
        )?;
        writeln!(
            out,
            "draft, batch {batch}: {:.3} ms for the first guess, {:.3} ms for one more{}",
            first * 1e3,
            more * 1e3,
            share.unwrap_or_default()
        )
    }

    pub fn json(&self) -> Value {
        let Verify { batch, each, seconds, decode, first, more, bytes, .. } = self;
        json!({
            "batch": batch, "tokens_each": each, "seconds": seconds, "times_decode": seconds / decode,
            "draft_seconds": first, "guess_seconds": more, "guess_bytes": bytes,
        })
    }
}
