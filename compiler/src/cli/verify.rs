//! `atomc verify`: every kernel of an artifact on a device against the reference interpreter.
pub mod cases;
mod dump;
mod fit;
pub mod launch;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use atomc_artifact::escaped;
use atomc_artifact::manifest::Target;
use atomc_ir::trial::{Fault, Verdict};
use atomc_runtime::probe::Probe;
use atomc_runtime::{Artifact, Error, pool};
use serde_json::json;

use super::engine::{ArtifactArgs, DeviceArg};
use super::failure::Failure;
use super::inspect;
use super::progress::{Progress, Unit};
use super::shown;
use cases::Case;
use dump::Dump;
use launch::Bench;

/// Run every kernel on a device and compare it with the reference
#[derive(clap::Args)]
#[command(after_help = "\
Each kernel runs alone in each plan that uses it, on random operands and on zeros, large and subnormal ones, with one token
and a full step, sequences of different lengths, long ones, and positions at the edges of cache blocks. The file says what each kernel
must compute; the interpreter computes it in 64 bits together with an error budget for every element, which follows from the
types, the lengths of sums and the data. A kernel is right if no element is further off than its budget and if it wrote
nothing but its results.

Examples:
  atomc verify m.atomc
  atomc verify m.atomc --device host:x86-64-v3 --kernel attend
  atomc verify m.atomc --dump launches            to replay them with other tools

Exit codes: 0 all right, 1 a kernel is wrong or something failed, 2 wrong usage.")]
pub struct Args {
    #[command(flatten)]
    artifact: ArtifactArgs,
    /// What to run on; `atomc run --help` lists what there is
    #[arg(long, value_name = "DEVICE", default_value = "host")]
    device: DeviceArg,
    /// Threads to compute with; 0 takes all
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Only kernels whose name or family has this text in it
    #[arg(long, value_name = "TEXT")]
    kernel: Option<String>,
    /// Random operands from this seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Also write each launch to this folder: code, arguments, memory before and after
    /// (docs/dumps.md)
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// The table as a JSON object
    #[arg(long)]
    json: bool,
}

/// A kernel in a plan.
struct Row {
    symbol: String,
    family: String,
    plan: String,
    cases: usize,
    verdict: Verdict,
    /// The case of the first fault.
    failed: Option<String>,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let artifact = args.artifact.open()?;
    let target = args.device.target(artifact.manifest()).map_err(Error::from)?;
    let device = args.device.open(&artifact, pool::threads(args.threads, 1))?;
    let mut probe = Probe::new(device, &artifact.manifest().targets[target]);
    let dump = args.dump.as_deref().map(|dir| Dump::new(dir, &artifact, &probe)).transpose()?;
    let todo = launches(probe.target(), args.kernel.as_deref());
    if todo.is_empty() {
        return Err(Failure::new("verify", "no kernel has such a name").help("`atomc inspect --kernels` lists them."));
    }
    let progress = Progress::new("verifying", Unit::Pieces);
    let mut rows = Vec::with_capacity(todo.len());
    for (done, &(plan, launch)) in todo.iter().enumerate() {
        progress.at(done as u64, todo.len() as u64);
        rows.push(check(&artifact, &mut probe, (plan, launch), args.seed, dump.as_ref())?);
    }
    progress.at(todo.len() as u64, todo.len() as u64);
    drop(progress);
    show(args, &probe, &rows)
}

/// A launch of each kernel in each plan, by number.
pub fn launches(target: &Target, filter: Option<&str>) -> Vec<(usize, usize)> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (plan, item) in target.plans.iter().enumerate() {
        for (number, launch) in item.launches.iter().enumerate() {
            let def = &target.kernels[launch.kernel];
            let wanted = filter.is_none_or(|text| def.symbol.contains(text) || def.family.contains(text));
            if wanted && seen.insert((plan, launch.kernel)) {
                found.push((plan, number));
            }
        }
    }
    found
}

fn check(
    artifact: &Artifact,
    probe: &mut Probe,
    (plan, launch): (usize, usize),
    seed: u64,
    dump: Option<&Dump>,
) -> Result<Row, Failure> {
    let bench = Bench::new(probe.target(), plan, launch, artifact.manifest().model.vocab)?;
    let target = probe.target();
    let (item, max_positions) = (&target.plans[plan], artifact.manifest().model.max_positions);
    let cases = Case::all(item, bench.reads_cache(), target.layout.block_tokens, max_positions);
    let def = &target.kernels[target.plans[plan].launches[launch].kernel];
    let mut row = Row {
        symbol: def.symbol.clone(),
        family: def.family.clone(),
        plan: inspect::name(&target.plans[plan]),
        cases: cases.len(),
        verdict: Verdict::default(),
        failed: None,
    };
    let machine = atomc_runtime::memory::installed();
    for (number, case) in cases.iter().enumerate() {
        bench.check_room(probe.target(), case, machine)?;
        let run = bench.run(probe, case, seed)?;
        if let Some(dump) = dump {
            dump.write(probe, &bench, &run, (plan, launch, number), case)?;
        }
        if run.verdict.fault.is_some() && row.failed.is_none() {
            row.failed = Some(case.to_string());
        }
        row.verdict = std::mem::take(&mut row.verdict).and(run.verdict);
    }
    Ok(row)
}

fn show(args: &Args, probe: &Probe, rows: &[Row]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let wrong = rows.iter().filter(|row| row.failed.is_some()).count();
    if args.json {
        shown::json(&mut out, &describe(probe, rows))?;
    } else {
        table(&mut out, probe, rows)?;
    }
    match wrong {
        0 => Ok(()),
        _ => Err(Failure::new("verify", format!("{wrong} of {} kernels are wrong", rows.len()))),
    }
}

fn table(out: &mut impl Write, probe: &Probe, rows: &[Row]) -> Result<(), Failure> {
    let longest = rows.iter().map(|row| row.symbol.len()).max().unwrap_or(0).max("kernel".len());
    let plans = rows.iter().map(|row| row.plan.len()).max().unwrap_or(0).max("plan".len());
    writeln!(
        out,
        "{:longest$}  {:11}  {:plans$}  {:>5}  {:>9}  {:>12}  status",
        "kernel", "family", "plan", "cases", "elements", "error/budget"
    )?;
    for row in rows {
        let status = if row.failed.is_some() { "WRONG" } else { "ok" };
        let Row { symbol, plan, cases, verdict: Verdict { worst, elements, .. }, .. } = row;
        let family = escaped(&row.family);
        writeln!(
            out,
            "{symbol:longest$}  {family:11}  {plan:plans$}  {cases:>5}  {elements:>9}  {worst:>12.3}  {status}"
        )?;
    }
    for row in rows {
        if let (Some(case), Some(fault)) = (&row.failed, &row.verdict.fault) {
            writeln!(out, "{} in {}, {case}: {}", row.symbol, row.plan, escaped(&fault.to_string()))?;
        }
    }
    let right = rows.iter().filter(|row| row.failed.is_none()).count();
    writeln!(out, "{right} of {} right on {}", rows.len(), probe.device_name())?;
    Ok(())
}

fn describe(probe: &Probe, rows: &[Row]) -> serde_json::Value {
    let row = |row: &Row| {
        // JSON has no infinity: a number that is not finite is left out.
        let number = |v: f64| v.is_finite().then_some(v);
        let fault = row.verdict.fault.as_ref().map(|fault| match fault {
            Fault::Element { at, got, want, budget } => json!({
                "case": row.failed,
                "what": at,
                "got": number(*got),
                "want": number(*want),
                "budget": number(*budget),
            }),
            Fault::Other(what) => json!({ "case": row.failed, "what": what }),
        });
        json!({
            "kernel": row.symbol,
            "family": row.family,
            "plan": row.plan,
            "cases": row.cases,
            "elements": row.verdict.elements,
            "unbounded": row.verdict.unbounded,
            "worst": number(row.verdict.worst),
            "right": row.failed.is_none(),
            "fault": fault,
        })
    };
    json!({ "device": probe.device_name(), "kernels": rows.iter().map(row).collect::<Vec<_>>() })
}
