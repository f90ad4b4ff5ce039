//! `atomc bench`: tokens a second, and the share of the machine's memory bandwidth that this takes.
#[cfg(feature = "emulator")]
mod emulated;
mod guesses;
mod ledger;
#[cfg(feature = "emulator")]
mod model;
mod peaks;
mod towers;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use atomc_runtime::manifest::{Arg, Chip, Plan, StateGroup, StreamLayout, Target, Variant};
use atomc_runtime::{Artifact, Engine, Launches, Request, SeqId, Want};
use peaks::Peaks;
use serde_json::{Value, json};

use super::engine::EngineArgs;
use super::failure::Failure;
use super::guesses::GuessArgs;
use super::inspect;
use super::output;
use super::progress::{Progress, Unit};
use super::shown;
use super::trace::Trace;

const DEFAULT_PROMPT: usize = 512;
/// Most sequences, or prefills, to measure: far more than any device decodes at once, and than a
/// median needs.
const MOST: usize = 1 << 16;

/// From the token that one sequence decodes to that of the next: a prime.
const APART: usize = 7919;

/// Measure prefill and decode
#[derive(clap::Args)]
#[command(after_help = "\
Prefill is one prompt alone; decode is one token for each of so many sequences of the same length. Both are medians of whole
steps, from the inputs to the chosen tokens: no logits leave a device that chooses itself. The bytes of a decode step are its
weights, activations and keys and values, each counted once; shares are of the read bandwidth that the host shows in the same
run, of the peaks on the data sheet of a GPU that has a row, or of the rate at which another GPU copies in the same run. Kernels are timed apart from each
other, on a GPU all launches of one replayed in a row; their bytes and operations are those of the largest step that they are
for, and the floor is the time that the peaks allow for these: choose prompts and batches of the sizes that were compiled.
A GPU's driver starts once in a process, for whoever comes first; how long that takes is told apart from opening the artifact.

Examples:
  atomc bench m.atomc --weights models/qwen3
  atomc bench m.atomc --random-weights --threads 2 --batch 1,8
  atomc bench m.atomc --random-weights --speculate 3      what a draft costs, and what verifies it
  atomc bench m.atomc --random-weights --image 4096       and what the tower takes for an image
  atomc bench m.atomc --random-weights --kernels          where the time of a decode step goes
  atomc bench m.atomc --random-weights --ledger           what of it is lost, kernel by kernel
  atomc bench m.atomc --random-weights --trace run.json   the steps for chrome://tracing or ui.perfetto.dev
  atomc bench m.atomc --model MI300X --kernels            what the kernels would take on a chip that is not here
  atomc bench m.atomc --random-weights --device cuda:0 --prompt 2048 --position 1024 --batch 1,8,32 --steps 50")]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens of the prompt [default: 512, or what the model has room for]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    prompt: Option<usize>,
    /// Tokens of each sequence before it decodes [default: as many as the prompt has]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    position: Option<usize>,
    /// Sequences that decode at the same time; several sizes are measured one after the other
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1", value_parser = some)]
    batch: Vec<usize>,
    #[command(flatten)]
    guesses: GuessArgs,
    /// Decode steps to take the median of
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    steps: usize,
    /// Prefills, and images, to take the median of
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = some)]
    repeat: usize,
    /// Also time the artifact's tower with an image of about this many patches
    #[arg(long, value_name = "PATCHES", value_parser = at_least_one)]
    image: Option<usize>,
    /// Sequences that decode take the artifact's slots for adapters in turn. With random weights
    /// these hold zeros, which take the time that others do
    #[arg(long)]
    adapted: bool,
    /// Also time every kernel
    #[arg(long)]
    kernels: bool,
    /// Time every kernel, and set the time beside the least that memory and arithmetic allow it, by
    /// what is lost
    #[arg(long)]
    ledger: bool,
    /// Time every kernel, and write the mean steps as a trace that chrome://tracing and Perfetto
    /// show
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Predict instead of measuring: times on an AMD chip by the model of docs/timing.md, with the
    /// model's error. MI300X (which gfx942 means), MI308X or MI355X (gfx950)
    #[cfg(feature = "emulator")]
    #[arg(long, value_name = "CHIP", group = "WeightArgs", conflicts_with_all = ["device", "ledger", "trace", "image", "adapted"])]
    model: Option<super::predict::Modelled>,
    /// Grade the predictions: beside what `atomc bench --kernels --json` measured of the artifact
    /// with the same prompt, batches and position
    #[cfg(feature = "emulator")]
    #[arg(long, value_name = "FILE", requires = "model", conflicts_with = "json")]
    measured: Option<PathBuf>,
    /// The results as a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The artifact. Predictions take no weights.
    fn artifact(&self) -> Result<Artifact, Failure> {
        #[cfg(feature = "emulator")]
        if self.model.is_some() {
            return self.engine.without_weights();
        }
        self.engine.artifact()
    }

    fn times_kernels(&self) -> bool {
        self.kernels || self.ledger || self.trace.is_some()
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("must be a whole number of at least 1".into())
}

fn some(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=MOST).contains(n)).ok_or(format!("must be a whole number from 1 to {MOST}"))
}

struct Prefill {
    tokens: usize,
    seconds: f64,
    timed: Timed,
}

struct Decode {
    batch: usize,
    seconds: f64,
    bytes: u64,
    timed: Timed,
}

/// The times of a step, if it was timed.
#[derive(Default)]
struct Timed {
    /// Name of the plan that ran.
    plan: String,
    kernels: Vec<KernelTime>,
    launches: Vec<LaunchTime>,
}

/// One launch of a step, in order.
struct LaunchTime {
    symbol: String,
    location: String,
    seconds: f64,
}

/// One kernel of a step.
struct KernelTime {
    symbol: String,
    launches: usize,
    seconds: f64,
    bytes: u64,
    flops: u64,
    /// The number of experts with weights that a launch read, if it reads some.
    experts: Option<f64>,
    /// Bytes of keys and values among those above.
    cached: u64,
    /// Operations in the time of one on 16-bit floats.
    rate: u32,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    args.trace.as_deref().map_or(Ok(()), output::check)?;
    let start = Instant::now();
    let driver = args.engine.device.start()?;
    let started = (!driver.is_empty()).then(|| start.elapsed().as_secs_f64());
    let start = Instant::now();
    let artifact = args.artifact()?;
    if args.adapted && artifact.manifest().adapters.is_none() {
        let help = "`atomc compile --adapters N --adapter-rank R` makes room.";
        return Err(Failure::new("bench", "the artifact has no room for adapters").help(help));
    }
    let positions = artifact.manifest().model.max_positions;
    // Timing the kernels takes as many steps again.
    let steps = args.steps.saturating_mul(if args.times_kernels() { 2 } else { 1 });
    let prompt = args.prompt.unwrap_or(DEFAULT_PROMPT.min(positions.saturating_sub(steps)).max(1));
    let position = args.position.unwrap_or(prompt);
    if prompt.max(position.saturating_add(steps)) > positions {
        let message = format!(
            "a prompt of {prompt} tokens, or {steps} steps from position {position} on, is more than the model's {positions} \
             positions"
        );
        return Err(Failure::new("bench", message).help("Choose smaller --prompt, --position and --steps."));
    }
    #[cfg(feature = "emulator")]
    if let Some(chip) = args.model {
        return model::run(args, chip, &artifact, model::Tokens { prompt, position });
    }
    #[cfg(feature = "emulator")]
    if let super::device::DeviceArg::Emulated(chip) = args.engine.device.first() {
        if args.ledger || args.trace.is_some() || args.image.is_some() {
            let message = "an emulator has no time, which --ledger, --trace and --image are about";
            return Err(Failure::new("bench", message).help("--kernels counts what kernels do there"));
        }
        return emulated::run(args, chip, artifact, prompt);
    }
    let widest = args.batch.iter().copied().max().unwrap_or(1);
    // Decoding starts when the prompt is forgotten.
    let longest = (position + steps + 2 * args.guesses.speculate).max(prompt.div_ceil(widest));
    let drafts = args.guesses.speculate > 0;
    let devices = args.engine.device.open(&artifact, args.engine.threads)?;
    let mut engine = args.engine.unloaded(devices, artifact, std::iter::repeat_n(longest, widest), drafts)?;
    args.guesses.check(&engine)?;
    if args.times_kernels() && !engine.times_launches() {
        let message = "kernels of ranks that meet in the host's memory are not timed";
        return Err(Failure::new("bench", message).help("Leave --kernels, --ledger and --trace away."));
    }
    let opened = start.elapsed().as_secs_f64();
    args.engine.load(&mut engine)?;
    let loaded = start.elapsed().as_secs_f64() - opened;
    let image = args.image.map(|patches| towers::measure(args, engine.artifact(), patches)).transpose()?;
    let ids: Vec<u32> = (0..prompt.max(position + 1)).map(|i| (10 + i as u32) % engine.model().vocab as u32).collect();

    let progress = Progress::new("measuring", Unit::Pieces);
    let (mut done, total) = (0, (args.repeat + args.batch.len() + 2) as u64);
    let mut tick = || {
        progress.at(done, total);
        done += 1;
    };
    tick();
    let before = Peaks::of(&mut engine)?;
    let mut times = Vec::with_capacity(args.repeat);
    for _ in 0..args.repeat {
        tick();
        let (sequence, seconds) = prefill(&mut engine, &ids[..prompt])?;
        engine.drop_sequence(sequence)?;
        times.push(seconds);
    }
    let mut prefilled = Prefill { tokens: prompt, seconds: median(times), timed: Timed::default() };
    if args.times_kernels() {
        let plan = engine.plans().len() - 1;
        let lengths = Lengths { sequences: 1, first: 1, last: prompt };
        prefilled.timed = kernel_times(&mut engine, plan, lengths, |engine| {
            let (sequence, _) = prefill(engine, &ids[..prompt])?;
            Ok(engine.drop_sequence(sequence)?)
        })?;
    }
    let mut decodes = Vec::with_capacity(args.batch.len());
    for &batch in &args.batch {
        tick();
        decodes.push(decode(&mut engine, &ids[..position], batch, args)?);
    }
    let mut verified = Vec::new();
    for decode in decodes.iter().filter(|_| drafts) {
        let of = (decode.batch, decode.seconds);
        // One token further: a step that is taken back would begin a page each time, and clear it.
        verified.push(guesses::measure(&mut engine, &ids[..=position], of, args)?);
    }
    tick();
    let peaks = Peaks::of(&mut engine)?.better(before);
    drop(progress);
    let (device, product) = (engine.device_name().to_owned(), engine.product().map(str::to_owned));
    let report =
        Report { device, product, peaks, started, opened, loaded, image, prefill: prefilled, decodes, verified };
    if let Some(file) = &args.trace {
        output::write(file, &report.trace()?)?;
    }
    match args.json {
        true => report.json(),
        false => report.text(args),
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A new sequence with this prompt, and the seconds that it took.
fn prefill(engine: &mut Engine, ids: &[u32]) -> Result<(SeqId, f64), Failure> {
    let sequence = engine.add_sequence();
    let start = Instant::now();
    engine.step_greedy(&[Request { sequence, tokens: ids, logits: Want::Last }])?;
    Ok((sequence, start.elapsed().as_secs_f64()))
}

fn decode(engine: &mut Engine, ids: &[u32], batch: usize, args: &Args) -> Result<Decode, Failure> {
    let mut sequences = Vec::with_capacity(batch);
    for _ in 0..batch {
        sequences.push(prefill(engine, ids)?.0);
    }
    let slots = engine.manifest().adapters.filter(|_| args.adapted).map_or(0, |room| room.slots);
    for (index, &sequence) in sequences.iter().enumerate().filter(|_| slots > 0) {
        engine.adapt(sequence, index % slots);
    }
    // Other tokens for each sequence, which routers send to other experts.
    let vocab = engine.model().vocab;
    let tokens: Vec<u32> = (0..batch).map(|i| ((i + 1) * APART % vocab) as u32).collect();
    let requests: Vec<Request> = (sequences.iter().zip(&tokens))
        .map(|(&sequence, token)| Request { sequence, tokens: std::slice::from_ref(token), logits: Want::Last })
        .collect();
    let mut times = Vec::with_capacity(args.steps);
    for _ in 0..args.steps {
        let start = Instant::now();
        engine.step_greedy(&requests)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let plan = plan(engine, (batch, 1), slots > 0);
    let lengths = |length| Lengths { sequences: batch, first: length, last: length };
    let half = ids.len() + args.steps / 2;
    let mut timed = Timed::default();
    if args.times_kernels() {
        let steps =
            |engine: &mut Engine| (0..args.steps).try_for_each(|_| Ok(engine.step_greedy(&requests).map(|_| ())?));
        // The cache is longer by then.
        timed = kernel_times(engine, plan, lengths(half + args.steps), steps)?;
    }
    for sequence in sequences {
        engine.drop_sequence(sequence)?;
    }
    let weights = match timed.kernels.is_empty() {
        true => engine.plans()[plan].launches.iter().map(|launch| launch.bytes).sum(),
        // With the weights of the experts that were really chosen, and without keys and values.
        false => timed.kernels.iter().map(|kernel| kernel.bytes - kernel.cached).sum::<u64>(),
    };
    let cached = (0..engine.target().states.len()).map(|state| lengths(half).cached(engine.target(), state));
    let bytes = weights + cached.sum::<u64>();
    Ok(Decode { batch, seconds: median(times), bytes, timed })
}

/// The plan for a step of `batch` sequences with `each` tokens, with adapters or without: a decode
/// step for one token.
fn plan(engine: &Engine, (batch, each): (usize, usize), adapted: bool) -> usize {
    let plans = engine.plans();
    let own = adapted || plans.iter().all(Plan::adapts);
    let fits = |plan: &Plan| plan.tokens >= batch * each && plan.rows >= batch * each && plan.adapts() == own;
    let few = |plan: &Plan| plan.kind.each().is_some_and(|most| each <= most && batch * most <= plan.tokens);
    let decode = plans.iter().position(|plan| few(plan) && fits(plan));
    decode.or_else(|| plans.iter().position(fits)).unwrap_or(plans.len() - 1)
}

/// The sequences of a step, all alike: how long each is after its first new token, and after its
/// last.
#[derive(Clone, Copy)]
pub struct Lengths {
    pub sequences: usize,
    pub first: usize,
    pub last: usize,
}

impl Lengths {
    /// Bytes of keys and values that attention over a state reads, each once.
    pub fn cached(self, target: &Target, state: usize) -> u64 {
        let StateGroup::Paged(pages) = target.group(state) else { return 0 };
        let streams = pages.streams.iter().filter(|stream| !matches!(stream.layout, StreamLayout::Prefix { .. }));
        let one: usize = streams.map(|stream| stream.heads * stream.width * stream.dtype.size()).sum();
        self.sequences as u64 * seen(self.last, pages.window) * one as u64
    }

    /// Operations of a kernel's attention over a state.
    pub fn operations(self, target: &Target, kernel: usize, state: usize) -> u64 {
        let StateGroup::Paged(pages) = target.group(state) else { return 0 };
        let Ok(body) = atomc_ir::parse(&target.kernels[kernel].body) else { return 0 };
        let pairs: u64 = (self.first..=self.last).map(|length| seen(length, pages.window)).sum();
        let of_pair = body.ids().map(|id| {
            let operands = body.operands(id);
            body.op(id).work_of_pair(&operands.iter().map(|&v| body.ty(v)).collect::<Vec<_>>())
        });
        self.sequences as u64 * pairs * of_pair.sum::<usize>() as u64
    }
}

/// The number of tokens, of `length`, that the last one sees.
fn seen(length: usize, window: usize) -> u64 {
    (if window == 0 { length } else { window.min(length) }) as u64
}

/// Times of the kernels of a plan, in the mean of the steps that `run` takes.
fn kernel_times(
    engine: &mut Engine,
    plan: usize,
    lengths: Lengths,
    run: impl FnOnce(&mut Engine) -> Result<(), Failure>,
) -> Result<Timed, Failure> {
    engine.time_launches();
    run(engine)?;
    let times = &engine.take_launch_times()[plan];
    let variant = peaks::variant(engine.target(), engine.device_name());
    Ok(Stepped { target: engine.target(), plan: &engine.plans()[plan], variant, times, lengths }.timed())
}

/// Steps of a plan whose launches were timed.
struct Stepped<'a> {
    target: &'a Target,
    plan: &'a Plan,
    variant: Option<&'a Variant>,
    times: &'a Launches,
    lengths: Lengths,
}

impl Stepped<'_> {
    /// The mean of a launch's numbers.
    fn mean(&self, all: &[u64], launch: usize) -> f64 {
        all.get(launch).copied().unwrap_or(0) as f64 / self.times.steps.max(1) as f64
    }

    /// The times by launch and by kernel, those that take longest first.
    fn timed(&self) -> Timed {
        let mut by_symbol: BTreeMap<String, KernelTime> = BTreeMap::new();
        let mut launches = Vec::with_capacity(self.times.nanoseconds.len());
        for (index, launch) in self.plan.launches.iter().enumerate() {
            let symbol = self.target.kernels[launch.kernel].symbol.clone();
            let seconds = self.mean(&self.times.nanoseconds, index) * 1e-9;
            launches.push(LaunchTime { symbol: symbol.clone(), location: launch.location.clone(), seconds });
            let entry = by_symbol.entry(symbol).or_insert_with_key(|symbol| KernelTime {
                symbol: symbol.clone(),
                launches: 0,
                seconds: 0.0,
                bytes: 0,
                flops: 0,
                experts: launch.chosen.map(|_| 0.0),
                cached: 0,
                rate: inspect::rate(self.variant.map_or(&[][..], |variant| &variant.kernels), launch.kernel),
            });
            entry.launches += 1;
            entry.seconds += seconds;
            self.count(index, entry);
        }
        let mut all: Vec<_> = by_symbol.into_values().collect();
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Timed { plan: inspect::name(self.plan), kernels: all, launches }
    }

    /// Adds what a launch moves and computes.
    fn count(&self, index: usize, entry: &mut KernelTime) {
        let launch = &self.plan.launches[index];
        let attends = self.target.kernels[launch.kernel].family.starts_with("attend");
        let state =
            launch.args.iter().find_map(|arg| if let Arg::State { state, .. } = arg { Some(*state) } else { None });
        let (bytes, flops) = match state.filter(|_| attends) {
            Some(state) => {
                (self.lengths.cached(self.target, state), self.lengths.operations(self.target, launch.kernel, state))
            }
            None => (0, 0),
        };
        entry.bytes += launch.bytes + bytes;
        entry.cached += bytes;
        if let (Some(chosen), Some(experts)) = (launch.chosen, entry.experts.as_mut()) {
            // The weights that were really read, in place of those of an even choice.
            let read = self.mean(&self.times.experts, index);
            *experts += (read - *experts) / entry.launches as f64;
            entry.bytes = entry.bytes - chosen.counted + (read * chosen.bytes as f64) as u64;
        }
        entry.flops += launch.flops + flops;
    }
}

struct Report {
    device: String,
    product: Option<String>,
    peaks: Peaks,
    /// Seconds that a GPU's driver took to start.
    started: Option<f64>,
    /// Seconds from then on until steps could be run but for the weights, and from then on until
    /// those were there.
    opened: f64,
    loaded: f64,
    image: Option<towers::Seen>,
    prefill: Prefill,
    decodes: Vec<Decode>,
    verified: Vec<guesses::Verify>,
}

impl KernelTime {
    /// Rates at the plan's full size.
    fn line(&self, out: &mut impl Write, chip: Option<&Chip>) -> std::io::Result<()> {
        let KernelTime { symbol, launches, seconds, bytes, flops, rate, experts, .. } = self;
        let experts = experts.map(|experts| format!("  {experts:.1} experts")).unwrap_or_default();
        let [bytes, flops] = [bytes, flops].map(|&n| n as f64 / seconds / 1e9);
        let floor = chip.map(|chip| 100.0 * chip.floor(self.bytes, self.flops, *rate) / seconds);
        let floor = floor.map(|share| format!("  {share:>3.0} % of the floor"));
        writeln!(
            out,
            "  {:>10.1} us  {launches:>4} x  {bytes:>7.2} GB/s  {flops:>8.1} GFLOP/s{}{experts}  {symbol}",
            seconds * 1e6,
            floor.unwrap_or_default()
        )
    }

    fn json(&self, peaks: &Peaks) -> Value {
        let KernelTime { symbol, launches, seconds, bytes, flops, rate, experts, .. } = self;
        let floor = peaks.floor(self.bytes, self.flops, *rate);
        json!({ "symbol": symbol, "launches": launches, "seconds": seconds, "bytes": bytes, "flops": flops, "experts": experts, "floor_seconds": floor })
    }
}

impl Decode {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

impl Report {
    /// The mean steps in sequence, with each launch at its time.
    fn trace(&self) -> Result<Vec<u8>, Failure> {
        let mut trace = Trace::default();
        let decodes = self.decodes.iter().map(|d| (format!("decode, batch {}", d.batch), &d.timed));
        let prefill = (format!("prefill {}", self.prefill.tokens), &self.prefill.timed);
        let mut start = 0.0;
        for (step, timed) in std::iter::once(prefill).chain(decodes) {
            let whole: f64 = timed.launches.iter().map(|launch| launch.seconds).sum();
            trace.add(&step, "step", (start, whole), 0, json!({ "plan": timed.plan }));
            for LaunchTime { symbol, location, seconds } in &timed.launches {
                trace.add(symbol, "launch", (start, *seconds), 0, json!({ "module": location }));
                start += seconds;
            }
        }
        trace.written()
    }

    /// The share of the bytes that a decode step could read in its time.
    fn share(&self, decode: &Decode) -> Option<f64> {
        self.peaks.bandwidth().map(|bandwidth| decode.rate() / bandwidth)
    }

    fn text(&self, args: &Args) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let product = self.product.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
        writeln!(out, "{}{product}{}", self.device, self.peaks.text())?;
        let started = self.started.map(|s| format!("driver started in {s:.3} s, ")).unwrap_or_default();
        writeln!(out, "{started}opened in {:.3} s without weights, which took {:.1} s", self.opened, self.loaded)?;
        let (chip, meaning) = (self.peaks.chip(), self.peaks.meaning());
        let shown = |out: &mut _, timed: &Timed, seconds: f64| match args.ledger {
            true => ledger::show(out, timed, seconds, &self.peaks),
            false if args.kernels => timed.kernels.iter().try_for_each(|k| k.line(out, chip)),
            false => Ok(()),
        };
        if let Some(image) = &self.image {
            image.line(&mut out, chip)?;
            shown(&mut out, &image.timed, image.seconds)?;
        }
        let Prefill { tokens, seconds, ref timed } = self.prefill;
        writeln!(out, "prefill {tokens}: {:.1} tokens/s, {:.2} ms", tokens as f64 / seconds, seconds * 1e3)?;
        shown(&mut out, timed, seconds)?;
        for d in &self.decodes {
            writeln!(
                out,
                "decode, batch {}: {:.2} tokens/s, {:.3} ms a step, {:.2} GB/s{}",
                d.batch,
                d.batch as f64 / d.seconds,
                d.seconds * 1e3,
                d.rate() / 1e9,
                self.share(d).map(|s| format!(", {:.0} % of the {meaning}", 100.0 * s)).unwrap_or_default(),
            )?;
            shown(&mut out, &d.timed, d.seconds)?;
        }
        for verify in &self.verified {
            verify.line(&mut out, self.peaks.bandwidth())?;
            shown(&mut out, &verify.timed, verify.seconds)?;
        }
        Ok(())
    }

    fn json(&self) -> Result<(), Failure> {
        let kernels = |timed: &Timed| timed.kernels.iter().map(|k| k.json(&self.peaks)).collect::<Vec<Value>>();
        let decode = |d: &Decode| {
            json!({
                "batch": d.batch,
                "tokens_per_second": d.batch as f64 / d.seconds,
                "seconds": d.seconds,
                "bytes": d.bytes,
                "bytes_per_second": d.rate(),
                "share_of_bandwidth": self.share(d),
                "plan": d.timed.plan,
                "kernels": kernels(&d.timed),
            })
        };
        let mut value = json!({
            "device": self.device,
            "product": self.product,
            "driver_seconds": self.started,
            "open_seconds": self.opened,
            "weights_seconds": self.loaded,
            "prefill": {
                "tokens": self.prefill.tokens,
                "tokens_per_second": self.prefill.tokens as f64 / self.prefill.seconds,
                "seconds": self.prefill.seconds,
                "plan": self.prefill.timed.plan,
                "kernels": kernels(&self.prefill.timed),
            },
            "decode": self.decodes.iter().map(decode).collect::<Vec<Value>>(),
        });
        if !self.verified.is_empty() {
            value["verify"] = self.verified.iter().map(guesses::Verify::json).collect();
        }
        if let Some(image) = &self.image {
            value["image"] = image.json(kernels(&image.timed));
        }
        for (key, fact) in self.peaks.json() {
            value[key] = fact;
        }
        shown::json(&mut std::io::stdout().lock(), &value)
    }
}
