//! `atomc tune`: finds the best numbers of schedules by measuring, for the table in the compiler's
//! source.
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use atomc::driver::{self, OpenChoices, Options};
use atomc_artifact::files;
use atomc_ir::Arch;
use atomc_passes::BucketOptions;
use atomc_runtime::{Artifact, DeviceChoice, Engine, EngineOptions, Error, Random, Request, Want};
use atomc_targets::tuning::{Origin, Table};

use super::failure::Failure;
use super::model::ModelArgs;
use super::output;
use super::progress::{Progress, Unit};

/// Find the best numbers of schedules on this machine's device
#[derive(clap::Args)]
#[command(after_help = "\
Compiles the model once for each choice that the schedules of its kernels leave open, times every kernel on the device, and
writes which choice was the fastest for each class of kernels. The table goes into the compiler's source, as
targets/tuned/TARGET.txt, so that compiling elsewhere gives the same code. Nothing is tuned when an artifact is loaded.
Weights are random; --layers shortens the model, since layers share their kernels.
--device emu:CHIP takes the times that the model of docs/timing.md predicts for an AMD chip, and marks its lines as modelled.

Examples:
  atomc tune models/Qwen3-8B --target sm_90a --device cuda:0 --layers 2 -o targets/tuned/sm_90a.txt
  atomc tune models/Qwen3-8B --target gfx942 --device emu:gfx942 --layers 2 -o targets/tuned/gfx942.txt")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The target to tune for, which the device must run
    #[arg(long, value_name = "NAME")]
    target: String,
    /// The device to measure on, or emu:CHIP for predicted times
    #[arg(long, value_name = "DEVICE")]
    device: Clock,
    /// Numbers of sequences that a decode step gets kernels of its own for
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    decode: Vec<usize>,
    /// Most tokens of one step
    #[arg(long, value_name = "N", default_value_t = 2048)]
    prefill: usize,
    /// Tokens that each sequence has behind it in a decode step
    #[arg(long, value_name = "N", default_value_t = 1024)]
    position: usize,
    /// Layers to measure [default: the model's]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Steps to take the mean of
    #[arg(long, value_name = "N", default_value_t = 8)]
    steps: usize,
    /// A table whose other classes are kept
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// The table to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// The source of times.
#[derive(Clone, Debug)]
enum Clock {
    Device(DeviceChoice),
    #[cfg(feature = "emulator")]
    Model(super::predict::Modelled),
}

impl std::str::FromStr for Clock {
    type Err = String;

    fn from_str(text: &str) -> Result<Clock, String> {
        match text.strip_prefix("emu:") {
            #[cfg(feature = "emulator")]
            Some(chip) => chip.parse().map(Clock::Model),
            #[cfg(not(feature = "emulator"))]
            Some(_) => Err("this build has no emulator, and no model of times".into()),
            None => text.parse().map(Clock::Device).map_err(|e: atomc_runtime::device::DeviceError| e.to_string()),
        }
    }
}

impl Clock {
    fn origin(&self) -> Origin {
        match self {
            Clock::Device(_) => Origin::Measured,
            #[cfg(feature = "emulator")]
            Clock::Model(_) => Origin::Modelled,
        }
    }

    /// The source of times in words, for a reader of the table.
    fn said(&self, arch: &Arch) -> String {
        match self {
            Clock::Device(_) => format!("on {}", arch.gpu().map_or(arch.name, |gpu| gpu.simt.chip.name)),
            #[cfg(feature = "emulator")]
            Clock::Model(chip) => format!("by the model of docs/timing.md for {}, not measured", chip.0.name),
        }
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    output::check(&args.output)?;
    let mut config = args.model.config()?;
    if let Some(layers) = args.layers {
        config.shorten(layers);
    }
    let [arch] = atomc_targets::variants(&args.target)? else {
        return Err(Failure::new("tune", format!("target `{}` has several variants", args.target)));
    };
    let buckets =
        BucketOptions { decode: args.decode.clone(), each: 1, tokens: args.prefill, rows: 64.min(args.prefill) };
    let options =
        |choice| Options { targets: vec![args.target.clone()], buckets: buckets.clone(), choice, ..Options::default() };
    let open = driver::open_choices(&config, &options(None), arch)?;
    if open.is_empty() {
        return Err(Failure::new("tune", format!("schedules leave nothing open on {}", args.target)));
    }
    let count = open.iter().map(|kernel| kernel.choices.len()).max().unwrap_or(0);
    let progress = Progress::new("measuring", Unit::Pieces);
    let mut times: Vec<BTreeMap<String, f64>> = Vec::with_capacity(count);
    for choice in 0..count {
        progress.at(choice as u64, count as u64);
        let compiled = driver::compile(&config, &options(Some(choice)), &mut |_, _, _| ())?;
        let file = tempfile::NamedTempFile::new()?;
        compiled.write(file.path())?;
        times.push(measure(args, Artifact::open(file.path())?, &open)?);
    }
    drop(progress);
    let table = merged(args, arch, best(&open, &times, args.device.origin()))?;
    let text = format!("# Made by `atomc tune` {}: see its help.\n{table}", args.device.said(arch));
    output::write(&args.output, text.as_bytes())?;
    report(&open, &times)
}

/// Seconds of one launch of each kernel that has something open.
fn measure(args: &Args, artifact: Artifact, open: &[OpenChoices]) -> Result<BTreeMap<String, f64>, Failure> {
    match &args.device {
        Clock::Device(device) => measured(args, device, artifact),
        #[cfg(feature = "emulator")]
        Clock::Model(chip) => predicted(args, chip, &artifact, open),
    }
}

/// Predicted seconds. Where plans share a kernel, the step in which it takes longest counts.
#[cfg(feature = "emulator")]
fn predicted(
    args: &Args,
    chip: &super::predict::Modelled,
    artifact: &Artifact,
    open: &[OpenChoices],
) -> Result<BTreeMap<String, f64>, Failure> {
    let mut predictor = super::predict::Predictor::new(artifact, chip.0)?;
    predictor.look_at(open.iter().map(|kernel| kernel.symbol.as_str()));
    let mut steps = vec![predictor.prompt(args.prefill)?];
    for &batch in &args.decode {
        steps.push(predictor.decode(batch, args.position)?);
    }
    let mut seconds: BTreeMap<String, f64> = BTreeMap::new();
    for one in steps.iter().flat_map(|step| &step.kernels) {
        let known = seconds.entry(one.kernel.symbol.clone()).or_default();
        *known = known.max(one.kernel.prediction.us * 1e-6);
    }
    Ok(seconds)
}

/// Measured seconds.
fn measured(args: &Args, device: &DeviceChoice, artifact: Artifact) -> Result<BTreeMap<String, f64>, Failure> {
    let widest = args.decode.iter().copied().max().unwrap_or(1);
    let room = |tokens: usize| tokens.next_multiple_of(256);
    let cache_tokens = widest * room(args.position + 2 * args.steps + 2) + room(args.prefill);
    let options = EngineOptions { device: device.clone(), cache_tokens, slots: widest + 1, ..EngineOptions::default() };
    let mut engine = Engine::new(artifact, &options)?;
    engine.load_weights(&Random { seed: 0 }, &|_, _| ())?;
    let ids: Vec<u32> =
        (0..args.prefill.max(args.position) as u32).map(|i| (10 + i) % engine.model().vocab as u32).collect();
    let mut seconds = BTreeMap::new();
    let many: Vec<_> = (0..widest).map(|_| engine.add_sequence()).collect();
    for &sequence in &many {
        engine.step(&[Request { sequence, tokens: &ids[..args.position], logits: Want::Nothing }])?;
    }
    for &batch in &args.decode {
        let requests: Vec<Request> =
            many[..batch].iter().map(|&sequence| Request { sequence, tokens: &ids[..1], logits: Want::Last }).collect();
        engine.step_greedy(&requests)?;
        engine.time_launches();
        for _ in 0..args.steps {
            engine.step_greedy(&requests)?;
        }
        add(&mut engine, &mut seconds);
    }
    for turn in 0..3 {
        let sequence = engine.add_sequence();
        if turn == 1 {
            engine.time_launches();
        }
        engine.step(&[Request { sequence, tokens: &ids[..args.prefill], logits: Want::Last }]).map_err(Error::from)?;
        engine.drop_sequence(sequence)?;
    }
    add(&mut engine, &mut seconds);
    Ok(seconds)
}

/// Adds times of a launch of each kernel. If plans share a kernel, the plan in which it takes
/// longest counts.
fn add(engine: &mut Engine, seconds: &mut BTreeMap<String, f64>) {
    let timed = engine.take_launch_times();
    for (plan, times) in engine.plans().iter().zip(timed).filter(|(_, times)| times.steps > 0) {
        let mut sums: BTreeMap<usize, (f64, usize)> = BTreeMap::new();
        for (launch, nanoseconds) in plan.launches.iter().zip(&times.nanoseconds) {
            let sum = sums.entry(launch.kernel).or_default();
            *sum = (sum.0 + *nanoseconds as f64 * 1e-9, sum.1 + times.steps as usize);
        }
        for (kernel, (sum, count)) in sums {
            let known = seconds.entry(engine.target().kernels[kernel].symbol.clone()).or_default();
            *known = known.max(sum / count as f64);
        }
    }
}

/// The fastest choice of each class, with its time: the sum over the kernels of the class.
fn best(open: &[OpenChoices], times: &[BTreeMap<String, f64>], origin: Origin) -> Table {
    let mut classes: BTreeMap<_, Vec<&OpenChoices>> = BTreeMap::new();
    for kernel in open {
        classes.entry(&kernel.class).or_default().push(kernel);
    }
    let line = |(class, kernels): (&atomc_targets::tuning::Class, Vec<&OpenChoices>)| {
        let took = |choice: usize| kernels.iter().filter_map(|k| times[choice].get(&k.symbol)).sum::<f64>();
        let (choices, ran) = (&kernels[0].choices, |choice: &usize| took(*choice) > 0.0);
        let least = (0..choices.len()).filter(ran).map(took).min_by(f64::total_cmp)?;
        let fastest = (0..choices.len()).filter(ran).find(|&choice| took(choice) <= least * origin.tie())?;
        Some((class.clone(), choices[fastest].clone(), origin))
    };
    Table::new(classes.into_iter().filter_map(line).collect())
}

fn merged(args: &Args, arch: &Arch, table: Table) -> Result<Table, Failure> {
    let Some(path) = &args.keep else { return Ok(table) };
    let text = files::read_to_string(path).map_err(|e| Failure::file("keep", path, e))?;
    Ok(table.or(atomc_targets::read_table(&text, arch).map_err(|e| Failure::new("tune::table", e))?))
}

/// Shows the time of every choice.
fn report(open: &[OpenChoices], times: &[BTreeMap<String, f64>]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for kernel in open {
        writeln!(out, "{}  {}", kernel.symbol, kernel.class)?;
        for (choice, times) in kernel.choices.iter().zip(times) {
            match times.get(&kernel.symbol) {
                Some(seconds) => writeln!(out, "  {:9.2} us  {choice}", seconds * 1e6)?,
                None => writeln!(out, "   not run    {choice}")?,
            }
        }
    }
    Ok(())
}
