//! `atomc verify`: every kernel of an artifact on a device against the reference interpreter.
pub mod cases;
mod dump;
mod fit;
pub mod launch;
mod wires;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use atomc_artifact::escaped;
use atomc_artifact::manifest::{Arg, Target};
use atomc_ir::trial::{Fault, Verdict};
use atomc_runtime::probe::Probe;
use atomc_runtime::{Artifact, Error, pool};
use serde_json::json;

use super::device::DeviceArg;
use super::engine::ArtifactArgs;
use super::failure::Failure;
use super::inspect;
use super::progress::{Progress, Unit};
use super::shown;
use cases::Case;
use dump::Dump;
use launch::{Bench, Options};

/// Run every kernel on a device and compare it with the reference
#[derive(clap::Args)]
#[command(after_help = "\
Each kernel runs alone in each plan that uses it, on random operands and on zeros, large and subnormal ones, with one token
and a full step, sequences of different lengths, long ones, and positions at the edges of cache blocks. The file says what each kernel
must compute; the interpreter computes it in 64 bits together with an error budget for every element, which follows from the
types, the lengths of sums and the data. A kernel is right if no element is further off than its budget and if it wrote
nothing but its results.

Of large results a sample is computed: an element of each 16 rows by 16 columns, in the full step every column of a weight at
least twice, of every expert rows, of attention every head. The table says how many elements of all. Padding, and all memory
that is not a kernel's to write, is compared whole. --whole computes all elements.

Examples:
  atomc verify m.atomc
  atomc verify m.atomc --seed 2                   another sample, of other operands
  atomc verify m.atomc --whole --kernel down_proj
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
    /// The kernels of the artifact's tower, in place of the language part's
    #[arg(long)]
    tower: bool,
    /// Only kernels whose name or family has this text in it
    #[arg(long, value_name = "TEXT")]
    kernel: Option<String>,
    /// Random operands, and a sample of the results, from this seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Compute all elements of every result, not a sample of the large ones
    #[arg(long)]
    whole: bool,
    /// Memory of the host to take for a kernel at most: bytes, or with KiB, MiB or GiB behind;
    /// all that this machine has if not given
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<usize>,
    /// Also write each launch to this folder: code, arguments, memory before and after
    /// (docs/dumps.md); computes all elements
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
    let artifact = inspect::part(args.artifact.open()?, args.tower)?;
    let target = args.device.target(artifact.manifest()).map_err(Error::from)?;
    let device = args.device.open(&artifact, pool::threads(args.threads, 1))?;
    let mut probe = Probe::new(device, &artifact.manifest().targets[target]);
    let dump = args.dump.as_deref().map(|dir| Dump::new(dir, &artifact, &probe)).transpose()?;
    let todo = launches(probe.target(), args.kernel.as_deref());
    if todo.is_empty() {
        return Err(Failure::new("verify", "no kernel has such a name").help("`atomc inspect --kernels` lists them."));
    }
    wired(probe.target())?;
    let options = Options {
        seed: args.seed,
        whole: args.whole || dump.is_some(),
        threads: probe.threads(),
        memory: args.memory.unwrap_or_else(atomc_runtime::memory::installed),
        on_host: probe.is_in_host_memory().map_err(|e| Failure::new("device", e))?,
    };
    let progress = Progress::new("verifying", Unit::Pieces);
    let mut rows = BTreeMap::new();
    for (done, number) in by_weights(probe.target(), &todo).into_iter().enumerate() {
        progress.at(done as u64, todo.len() as u64);
        rows.insert(number, check(&artifact, &mut probe, todo[number], &options, dump.as_ref())?);
    }
    progress.at(todo.len() as u64, todo.len() as u64);
    drop(progress);
    show(args, &options, &probe, &rows.into_values().collect::<Vec<_>>())
}

/// That each launch of every plan takes what its kernel does, and that those before it left it.
fn wired(target: &Target) -> Result<(), Failure> {
    let bodies = target.kernels.iter().map(launch::body).collect::<Result<Vec<_>, _>>()?;
    wires::check(target, &bodies, &launch::memory(target)).map_err(|e| Failure::new("verify", e))
}

/// A number of bytes.
fn bytes(text: &str) -> Result<usize, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let unit = units.iter().find_map(|&(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (number, unit) = unit.unwrap_or((text, 1usize));
    let bytes = number.trim().parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "must be a number of bytes, or of KiB, MiB or GiB".into())
}

/// The order in which launches are tried: those with the same weights one after the other, so that
/// each weight is made once.
fn by_weights(target: &Target, todo: &[(usize, usize)]) -> Vec<usize> {
    let weights = |&number: &usize| {
        let (plan, launch) = todo[number];
        let args = target.plans[plan].launches[launch].args.iter();
        let mut weights: Vec<usize> =
            args.filter_map(|arg| if let Arg::Weight { index } = arg { Some(*index) } else { None }).collect();
        weights.sort_by_key(|&weight| std::cmp::Reverse(target.weights[weight].bytes));
        weights
    };
    let mut order: Vec<usize> = (0..todo.len()).collect();
    order.sort_by_cached_key(weights);
    order
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
    options: &Options,
    dump: Option<&Dump>,
) -> Result<Row, Failure> {
    let bench = Bench::new(probe.target(), plan, launch, artifact.manifest().model.vocab)?;
    let target = probe.target();
    let (item, max_positions) = (&target.plans[plan], artifact.manifest().model.max_positions);
    let mut cases = Case::all(item, bench.reads_cache(), target.layout.block_tokens, max_positions);
    cases.retain(|case| bench.takes(case));
    let def = &target.kernels[target.plans[plan].launches[launch].kernel];
    let mut row = Row {
        symbol: def.symbol.clone(),
        family: def.family.clone(),
        plan: inspect::name(&target.plans[plan]),
        cases: cases.len(),
        verdict: Verdict::default(),
        failed: None,
    };
    for (number, case) in cases.iter().enumerate() {
        let run = bench.run(probe, case, options)?;
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

fn show(args: &Args, options: &Options, probe: &Probe, rows: &[Row]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let wrong = rows.iter().filter(|row| row.failed.is_some()).count();
    if args.json {
        shown::json(&mut out, &describe(options, probe, rows))?;
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
        "{:longest$}  {:11}  {:plans$}  {:>5}  {:>9}  {:>11}  {:>12}  status",
        "kernel", "family", "plan", "cases", "compared", "of elements", "error/budget"
    )?;
    for row in rows {
        let status = if row.failed.is_some() { "WRONG" } else { "ok" };
        let Row { symbol, plan, cases, verdict: Verdict { worst, elements, all, .. }, .. } = row;
        let family = escaped(&row.family);
        writeln!(
            out,
            "{symbol:longest$}  {family:11}  {plan:plans$}  {cases:>5}  {elements:>9}  {all:>11}  {worst:>12.3}  {status}"
        )?;
    }
    for row in rows {
        if let (Some(case), Some(fault)) = (&row.failed, &row.verdict.fault) {
            writeln!(out, "{} in {}, {case}: {}", row.symbol, row.plan, escaped(&fault.to_string()))?;
        }
    }
    let right = rows.iter().filter(|row| row.failed.is_none()).count();
    let sum = |count: fn(&Verdict) -> usize| rows.iter().map(|row| count(&row.verdict)).sum::<usize>();
    let (compared, all) = (sum(|verdict| verdict.elements), sum(|verdict| verdict.all));
    if compared < all {
        writeln!(out, "a sample: {compared} of {all} elements were compared; --whole compares all")?;
    }
    writeln!(out, "{right} of {} right on {}", rows.len(), probe.device_name())?;
    Ok(())
}

fn describe(options: &Options, probe: &Probe, rows: &[Row]) -> serde_json::Value {
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
            "of": row.verdict.all,
            "unbounded": row.verdict.unbounded,
            "worst": number(row.verdict.worst),
            "right": row.failed.is_none(),
            "fault": fault,
        })
    };
    let whole = options.whole;
    json!({ "device": probe.device_name(), "whole": whole, "seed": options.seed, "kernels": rows.iter().map(row).collect::<Vec<_>>() })
}
