//! `atomc bench` on an emulated chip: counts of the kernels' work instead of their times, which an
//! emulator cannot tell.
use std::collections::BTreeMap;
use std::io::Write;

use atomc::emulated::Tally;
use atomc_emulator::Counts;
use atomc_runtime::{Artifact, Engine, Request, Want};
use serde_json::{Value, json};

use super::{Args, prefill};
use crate::cli::device::Chip;
use crate::cli::failure::Failure;

/// One kind of step.
struct Step {
    name: String,
    /// Bytes that must move and operations that must happen, by the ledger.
    bytes: u64,
    flops: u64,
    kernels: Vec<KernelCounts>,
}

struct KernelCounts {
    symbol: String,
    launches: usize,
    counts: Counts,
}

/// One prefill and one decode step for each batch.
pub fn run(args: &Args, chip: &Chip, artifact: Artifact, prompt: usize) -> Result<(), Failure> {
    let device = chip.open(&artifact, args.engine.threads)?;
    let tally = device.tally();
    let widest = args.batch.iter().copied().max().unwrap_or(1);
    let sequences = std::iter::repeat_n(prompt + 1, widest);
    let mut engine = args.engine.engine_on(vec![Box::new(device)], artifact, sequences, false)?;
    let ids: Vec<u32> = (0..prompt).map(|i| (10 + i as u32) % engine.model().vocab as u32).collect();
    let mut steps = vec![measure(&mut engine, &tally, format!("prefill {prompt}"), |engine| {
        let (sequence, _) = prefill(engine, &ids)?;
        Ok(engine.drop_sequence(sequence)?)
    })?];
    for &batch in &args.batch {
        let sequences = (0..batch).map(|_| Ok(prefill(&mut engine, &ids)?.0)).collect::<Result<Vec<_>, Failure>>()?;
        steps.push(measure(&mut engine, &tally, format!("decode, batch {batch}"), |engine| {
            let tokens = [1];
            let requests: Vec<Request> =
                sequences.iter().map(|&sequence| Request { sequence, tokens: &tokens, logits: Want::Last }).collect();
            engine.step(&requests)?;
            Ok(())
        })?);
        sequences.into_iter().try_for_each(|sequence| engine.drop_sequence(sequence))?;
    }
    report(args, engine.device_name(), &steps)
}

/// Adds the work of a step to the tally, by kernel.
fn measure(
    engine: &mut Engine,
    tally: &Tally,
    name: String,
    step: impl FnOnce(&mut Engine) -> Result<(), Failure>,
) -> Result<Step, Failure> {
    tally.reset();
    step(engine)?;
    let (mut bytes, mut flops) = (0, 0);
    let mut kernels: BTreeMap<usize, KernelCounts> = BTreeMap::new();
    for (plan, counts) in engine.plans().iter().zip(tally.counts()) {
        for (launch, counts) in plan.launches.iter().zip(counts).filter(|(_, counts)| counts.waves > 0) {
            let symbol = engine.target().kernels[launch.kernel].symbol.clone();
            let none = KernelCounts { symbol, launches: 0, counts: Counts::default() };
            let kernel = kernels.entry(launch.kernel).or_insert(none);
            kernel.launches += 1;
            kernel.counts += counts;
            bytes += launch.bytes;
            flops += launch.flops;
        }
    }
    Ok(Step { name, bytes, flops, kernels: kernels.into_values().collect() })
}

impl Step {
    fn total(&self) -> Counts {
        self.kernels.iter().fold(Counts::default(), |mut sum, kernel| {
            sum += kernel.counts;
            sum
        })
    }
}

fn report(args: &Args, device: &str, steps: &[Step]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let steps = steps.iter().map(json).collect::<Vec<Value>>();
        serde_json::to_writer_pretty(&mut out, &json!({ "device": device, "steps": steps }))?;
        return Ok(writeln!(out)?);
    }
    writeln!(out, "{device}: counts, for an emulator has no time of its own; the ledger is of the plan's full size")?;
    for step in steps {
        writeln!(out, "{}; ledger {:.2} MB, {:.3} Gflop", step.name, step.bytes as f64 / 1e6, step.flops as f64 / 1e9)?;
        writeln!(out, "{HEADINGS}")?;
        for kernel in step.kernels.iter().filter(|_| args.kernels) {
            writeln!(out, "{}  {} x {}", line(&kernel.counts), kernel.launches, kernel.symbol)?;
        }
        writeln!(out, "{}  all kernels", line(&step.total()))?;
    }
    Ok(())
}

const HEADINGS: &str = concat!(
    "     waves  instructions     vector     scalar   matrix   global      LDS  MB read  MB written",
    "  matrix Gflop  LDS conflicts"
);

fn line(c: &Counts) -> String {
    let [read, written] = [c.bytes_loaded, c.bytes_stored].map(|bytes| bytes as f64 / 1e6);
    format!(
        "{:>10} {:>13} {:>10} {:>10} {:>8} {:>8} {:>8} {read:>8.2} {written:>11.2} {:>13.3} {:>14}",
        c.waves,
        c.instructions,
        c.valu,
        c.salu,
        c.matrix,
        c.vmem + c.smem,
        c.lds,
        c.flops as f64 / 1e9,
        c.lds_conflicts,
    )
}

fn json(step: &Step) -> Value {
    let kernel = |k: &KernelCounts| json!({ "symbol": k.symbol, "launches": k.launches, "counts": counts(&k.counts) });
    json!({
        "step": step.name,
        "ledger": { "bytes": step.bytes, "flops": step.flops },
        "counts": counts(&step.total()),
        "kernels": step.kernels.iter().map(kernel).collect::<Vec<Value>>(),
    })
}

fn counts(c: &Counts) -> Value {
    json!({
        "waves": c.waves,
        "instructions": c.instructions,
        "valu": c.valu,
        "salu": c.salu,
        "matrix": c.matrix,
        "vmem": c.vmem,
        "smem": c.smem,
        "lds": c.lds,
        "control": c.control,
        "barriers": c.barriers,
        "flops": c.flops,
        "bytes_loaded": c.bytes_loaded,
        "bytes_stored": c.bytes_stored,
        "lds_conflicts": c.lds_conflicts,
    })
}
