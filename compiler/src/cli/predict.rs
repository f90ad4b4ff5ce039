//! Times of an artifact's kernels on AMD chips that are not at hand, by the model of
//! `docs/timing.md`. All output says that it is predicted.
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::rc::Rc;

use atomc::emulated::{Emulated, Recorded, Recorder};
use atomc_artifact::Artifact;
use atomc_artifact::manifest::{Arg, Attention, Kernel, Plan, PlanKind, Target, Tasks};
use atomc_emulator::Options;
use atomc_emulator::timing::accuracy::{self, COMPILED, Errors, UNMEASURED, WRITTEN};
use atomc_emulator::timing::chip::Chip;
use atomc_emulator::timing::launch::{Launch, Loop, Prediction};
use atomc_ir::trial::{Run, Step, experts, groups};
use atomc_ir::{Graph, NodeId, Op, TensorType, Value};
use atomc_runtime::Error;
use atomc_runtime::device;
use atomc_runtime::probe::{Probe, ProbeError};
use serde_json::{Value as Json, json};

use super::bench::Lengths;
use super::failure::Failure;
use super::inspect;
use super::verify::launch::Bench;

/// A chip that the model predicts times for.
#[derive(Clone, Copy, Debug)]
pub struct Modelled(pub Chip);

impl std::str::FromStr for Modelled {
    type Err = String;

    fn from_str(text: &str) -> Result<Modelled, String> {
        let known = || accuracy::names().collect::<Vec<_>>().join(", ");
        let none = || {
            format!(
                "the model of times has no numbers for `{text}`, of which no measured time is published; it has: {}",
                known()
            )
        };
        accuracy::named(text).map(Modelled).ok_or_else(none)
    }
}

/// Assumptions about times that depend on data, or on earlier launches.
const ASSUMED: [&str; 3] = [
    "all operands and results of a launch move between HBM and the chip, none stay in caches from the launch before",
    "weights, activations and caches are zeros, and no address depends on them",
    "the choices of tokens are spread evenly over the experts",
];

/// Predicts launches of an artifact on a chip. Equal launches are recorded once.
pub struct Predictor<'a> {
    artifact: &'a Artifact,
    target: &'a Target,
    pub chip: Chip,
    probe: Probe,
    recorder: Recorder,
    known: BTreeMap<Key, Rc<PredictedKernel>>,
    /// The only kernels to predict, if not all are.
    only: Option<BTreeSet<String>>,
}

/// The properties by which launches are alike: their kernel, and the position, tokens and rows of
/// each sequence.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    plan: usize,
    kernel: usize,
    runs: Vec<[usize; 3]>,
}

/// A kernel of a step.
#[derive(Clone, Debug)]
pub struct PredictedKernel {
    pub symbol: String,
    pub location: String,
    pub groups: usize,
    pub bytes: u64,
    pub flops: u64,
    /// Rows and columns of the result, of a product, and the length of its sums.
    pub product: Option<[usize; 3]>,
    pub prediction: Prediction,
}

/// The launches of a kernel in a step, which are alike.
#[derive(Clone, Debug)]
pub struct Launches {
    pub count: usize,
    pub kernel: Rc<PredictedKernel>,
}

impl Launches {
    /// Microseconds of all of them.
    pub fn us(&self) -> f64 {
        self.count as f64 * self.kernel.prediction.us
    }
}

/// A step.
pub struct PredictedStep {
    pub name: String,
    pub tokens: usize,
    /// Sequences that decode; 0 in a prompt's step.
    pub batch: usize,
    pub kernels: Vec<Launches>,
    pub plan: String,
}

impl PredictedStep {
    pub fn seconds(&self) -> f64 {
        self.kernels.iter().map(Launches::us).sum::<f64>() * 1e-6
    }

    fn json(&self) -> Json {
        json!({
            "batch": self.batch,
            "tokens": self.tokens,
            "predicted_seconds": self.seconds(),
            "plan": self.plan,
            "kernels": self.kernels.iter().map(Launches::json).collect::<Vec<Json>>(),
        })
    }
}

impl Launches {
    fn json(&self) -> Json {
        let (count, kernel) = (self.count as u64, &self.kernel);
        let Prediction { bound, busy, loops, .. } = &kernel.prediction;
        let shown = |l: &Loop| {
            json!({
                "instructions": l.instructions,
                "turns": l.turns,
                "share": rounded(l.share),
                "bound": l.busy.bound().name(),
                "busiest": l.busy.unit.name(),
                "busy": rounded(l.busy.share),
            })
        };
        json!({
            "symbol": kernel.symbol,
            "module": kernel.location,
            "launches": count,
            "work_groups": kernel.groups,
            "predicted_seconds": self.us() * 1e-6,
            "bytes": kernel.bytes * count,
            "flops": kernel.flops * count,
            "product": kernel.product.map(|[m, n, k]| json!({ "m": m, "n": n, "k": k })),
            "bound": bound.name(),
            "busiest": busy.unit.name(),
            "busy": rounded(busy.share),
            "loops": loops.iter().map(shown).collect::<Vec<Json>>(),
        })
    }
}

/// A share, rounded to the digits that it is worth.
fn rounded(share: f64) -> f64 {
    (share * 1000.0).round() / 1000.0
}

/// The words that accompany every prediction.
pub fn caveat(chip: &Chip) -> String {
    let known = chip.accuracy().map(|a| {
        let compiled = a.compiled.map(|errors| said(&errors, COMPILED));
        let compiled = compiled.unwrap_or_else(|| format!("not known for {COMPILED}"));
        format!("the model's error on {}: {}, {compiled}", a.chip, said(&a.written, WRITTEN))
    });
    format!(
        "PREDICTED for {}, not measured; {}; {UNMEASURED}",
        chip.name,
        known.unwrap_or("its error is not known".into())
    )
}

fn said(Errors { rows, median, p90 }: &Errors, of: &str) -> String {
    format!("median {median:.1} %, 90th percentile {p90:.1} % of {rows} times ({of})")
}

fn error_json(Errors { rows, median, p90 }: &Errors, of: &str) -> Json {
    json!({ "median_percent": median, "p90_percent": p90, "rows": rows, "of": of })
}

/// All of a report, for programs.
pub fn json(chip: &Chip, steps: &[PredictedStep]) -> Json {
    let of = |kept: fn(&PredictedStep) -> bool| steps.iter().filter(move |step| kept(step)).map(PredictedStep::json);
    let error = chip.accuracy().map(|a| {
        json!({
            "written": error_json(&a.written, WRITTEN),
            "compiled": a.compiled.map(|errors| error_json(&errors, COMPILED)),
            "not_of": UNMEASURED,
        })
    });
    json!({
        "predicted": true,
        "note": caveat(chip),
        "chip": chip.name,
        "target": chip.gfx,
        "model_error": error,
        "assumed": ASSUMED,
        "prefill": of(|step| step.batch == 0).next(),
        "decode": of(|step| step.batch > 0).collect::<Vec<Json>>(),
    })
}

/// The assumptions, for people.
pub fn assumed() -> impl Iterator<Item = &'static str> {
    ASSUMED.into_iter()
}

impl<'a> Predictor<'a> {
    pub fn new(artifact: &'a Artifact, chip: Chip) -> Result<Predictor<'a>, Failure> {
        let manifest = artifact.manifest();
        let target = &manifest.targets[device::target(manifest, chip.gfx).map_err(Error::from)?];
        let mut device = Emulated::open(artifact, chip.gfx, 1, Options::fast()).map_err(Error::from)?;
        let recorder = device.record();
        let probe = Probe::new(Box::new(device), target);
        Ok(Predictor { artifact, target, chip, probe, recorder, known: BTreeMap::new(), only: None })
    }

    /// Leaves other kernels out of steps.
    pub fn look_at<'s>(&mut self, symbols: impl Iterator<Item = &'s str>) {
        self.only = Some(symbols.map(str::to_owned).collect());
    }

    /// A prompt alone, in as many steps of the largest plan as it takes.
    pub fn prompt(&mut self, tokens: usize) -> Result<PredictedStep, Failure> {
        let plan = self.plan(|plan| plan.kind != PlanKind::Decode)?;
        let most = self.target.plans[plan].tokens;
        let mut kernels = Vec::new();
        for position in (0..tokens).step_by(most) {
            let new = most.min(tokens - position);
            let run = Run { position, tokens: new, rows: 1 };
            kernels.extend(self.kernels(plan, &Step::of(vec![run]))?);
        }
        Ok(self.step(format!("prefill {tokens}"), tokens, 0, plan, kernels))
    }

    /// A step of one token for each of `batch` sequences, which have `position` tokens already.
    pub fn decode(&mut self, batch: usize, position: usize) -> Result<PredictedStep, Failure> {
        let fits = |plan: &Plan| plan.tokens >= batch && plan.rows >= batch;
        let plan = self.target.plans.iter().position(|plan| own(plan) && plan.kind == PlanKind::Decode && fits(plan));
        let plan = match plan {
            Some(plan) => plan,
            None => self.plan(fits)?,
        };
        let runs = vec![Run { position, tokens: 1, rows: 1 }; batch];
        let kernels = self.kernels(plan, &Step::of(runs))?;
        Ok(self.step(format!("decode, batch {batch}"), batch, batch, plan, kernels))
    }

    fn step(&self, name: String, tokens: usize, batch: usize, plan: usize, kernels: Vec<Launches>) -> PredictedStep {
        PredictedStep { name, tokens, batch, kernels, plan: inspect::name(&self.target.plans[plan]) }
    }

    /// The last plan of a kind that attends itself.
    fn plan(&self, wanted: impl Fn(&Plan) -> bool) -> Result<usize, Failure> {
        let found = self.target.plans.iter().rposition(|plan| own(plan) && wanted(plan));
        let none = "no plan of the artifact attends itself and takes such a step, which is what the model predicts";
        found.ok_or_else(|| {
            Failure::new("model", none).help("Compile with --attention own,caller, or choose another --batch.")
        })
    }

    /// The kernels of a step, those that take longest first.
    fn kernels(&mut self, plan: usize, step: &Step) -> Result<Vec<Launches>, Failure> {
        let item = &self.target.plans[plan];
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        item.launches.iter().for_each(|launch| *counts.entry(launch.kernel).or_default() += 1);
        let mut kernels = Vec::with_capacity(counts.len());
        for (kernel, count) in counts {
            let symbol = &self.target.kernels[kernel].symbol;
            if self.only.as_ref().is_some_and(|only| !only.contains(symbol)) {
                continue;
            }
            let first = item.launches.iter().position(|launch| launch.kernel == kernel).unwrap_or_default();
            kernels.push(Launches { count, kernel: self.launch(plan, first, step)? });
        }
        kernels.sort_by(|a, b| b.us().total_cmp(&a.us()));
        Ok(kernels)
    }

    /// One launch of a plan in a step.
    pub fn launch(&mut self, plan: usize, launch: usize, step: &Step) -> Result<Rc<PredictedKernel>, Failure> {
        let runs = step.runs.iter().map(|run| [run.position, run.tokens, run.rows]).collect();
        let key = Key { plan, kernel: self.target.plans[plan].launches[launch].kernel, runs };
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let made = Rc::new(self.recorded(plan, launch, step)?);
        self.known.insert(key, made.clone());
        Ok(made)
    }

    fn recorded(&mut self, plan: usize, launch: usize, step: &Step) -> Result<PredictedKernel, Failure> {
        let bench = Bench::new(self.target, plan, launch, self.artifact.manifest().model.vocab)?;
        let step = &step.clone().for_slots_of(bench.body());
        let contents = indices(&bench, step);
        let contents: Vec<(Arg, &[u8])> = contents.iter().map(|(arg, bytes)| (*arg, &bytes[..])).collect();
        let ids = vec![1; step.tokens()];
        let fault = |e: ProbeError| Failure::new("model", format!("kernel {}: {e}", bench.symbol));
        self.probe.show(plan, launch, &bench.probe_step(step, &ids, 0), &contents).map_err(fault)?;
        let all = self.recorder.take();
        let none = || Failure::new("model", format!("kernel {}: the step has nothing for it to do", bench.symbol));
        let Recorded { groups, shared, traces } = all.into_iter().next().ok_or_else(none)?;
        let item = &self.target.plans[plan].launches[launch];
        let part = self.part(plan, launch, &bench, step, groups);
        let kernel = &self.target.variants[0].kernels[item.kernel];
        let fetched = fetched(&self.chip, kernel, bench.body(), step.tokens(), &part);
        let (bytes, room) = (part.bytes as f64, room(kernel));
        let launch = Launch { traces, groups, room, bytes, fetched, resident: false, shares: shared > 1 };
        Ok(PredictedKernel {
            symbol: bench.symbol.clone(),
            location: item.location.clone(),
            groups,
            bytes: part.bytes,
            flops: part.flops,
            product: product(bench.body(), step),
            prediction: launch.predict(&self.chip),
        })
    }

    /// The bytes and operations of a launch in this step. Its ledger is for the plan's full size.
    fn part(&self, plan: usize, launch: usize, bench: &Bench, step: &Step, groups: usize) -> Moved {
        let (item, body) = (&self.target.plans[plan], bench.body());
        let launch = &item.launches[launch];
        let varying = tensors(body).filter(|t| t.shape.0.first().is_some_and(|lead| lead.fixed().is_none()));
        let (full, here) = varying.fold((0, 0), |(full, here), t| {
            (full + t.bytes(item.tokens, item.rows) as u64, here + t.bytes(step.tokens(), step.rows()) as u64)
        });
        let scaled = |n: u64| (n as f64 * step.tokens() as f64 / item.tokens as f64) as u64;
        let mut moved = Moved { groups, bytes: launch.bytes.saturating_sub(full) + here, flops: scaled(launch.flops) };
        let state =
            launch.args.iter().find_map(|arg| if let Arg::State { state, .. } = arg { Some(*state) } else { None });
        if let Some(state) = state.filter(|_| self.target.kernels[launch.kernel].family.starts_with("attend")) {
            let first = step.runs[0].position + 1;
            let last = step.runs[0].position + step.runs[0].tokens;
            let lengths = Lengths { sequences: step.runs.len(), first, last };
            moved.bytes += lengths.cached(self.target, state);
            moved.flops += lengths.operations(self.target, launch.kernel, state);
        }
        moved
    }
}

/// The work of a launch.
struct Moved {
    groups: usize,
    bytes: u64,
    flops: u64,
}

fn own(plan: &Plan) -> bool {
    plan.attention == Attention::Own
}

fn tensors(body: &Graph) -> impl Iterator<Item = &TensorType> {
    body.inputs().into_iter().chain(body.outputs().iter().copied()).filter_map(|v| body.ty(v).as_tensor())
}

/// The experts of tokens, which no launch before has made.
fn indices(bench: &Bench, step: &Step) -> Vec<(Arg, Vec<u8>)> {
    let body = bench.body();
    let one = |(operand, v): (usize, Value)| {
        let t = body.ty(v).as_tensor().filter(|t| t.is_indices())?;
        let count = experts(body, v)?;
        let pairs = t.shape.elements(step.tokens(), step.rows());
        // Neighbours of a token are far apart for the next one.
        let even: Vec<i32> = (0..pairs).map(|pair| (pair % count) as i32).collect();
        let words = groups(t, pairs).map_or_else(|| even.clone(), |groups| groups.place(&even));
        Some((bench.args()[bench.arg_of(operand)], words.iter().flat_map(|word| word.to_le_bytes()).collect()))
    };
    let arena = |(arg, _): &(Arg, Vec<u8>)| matches!(arg, Arg::Arena { .. });
    body.inputs().into_iter().enumerate().filter_map(one).filter(arena).collect()
}

/// Rows and columns of the result of a body's product, and the length of its sums.
fn product(body: &Graph, step: &Step) -> Option<[usize; 3]> {
    let node = product_of(body)?;
    let tensor = |v: Value| body.ty(v).as_tensor();
    let [.., n, k] = tensor(body.operands(node)[1])?.shape.0[..] else { return None };
    let m = tensor(node.into())?.shape.0.first()?.at(step.tokens(), step.rows());
    Some([m, n.fixed()?, k.fixed()?])
}

fn product_of(body: &Graph) -> Option<NodeId> {
    body.ids().find(|id| matches!(body.op(*id), Op::Linear { .. } | Op::Grouped { .. }))
}

/// Work-groups for which a compute unit has registers and LDS.
fn room(kernel: &Kernel) -> usize {
    const SIMDS: f32 = 4.0;
    const WAVE: usize = 64;
    let waves = kernel.resources.as_ref().map_or(1.0, |r| r.occupancy) * SIMDS;
    (waves as usize / kernel.threads.div_ceil(WAVE).max(1)).max(1)
}

/// Bytes that one XCD requests from the memory beyond its L2. Products with tiles of tokens request
/// each tile of an operand once a round of work-groups; an XCD gets every eighth work-group. If a
/// token's choices are added up, work-groups request their panels of each choice's weight. All
/// other bytes are requested once.
fn fetched(chip: &Chip, kernel: &Kernel, body: &Graph, tokens: usize, moved: &Moved) -> f64 {
    let even = moved.bytes as f64 / f64::from(chip.xcds);
    let (Tasks::Tokens { per, times }, Some(product)) = (kernel.tasks, product_of(body)) else { return even };
    if let Some(of_token) = weights_of_token(body, product) {
        return (of_token * tokens as f64 / f64::from(chip.xcds)).max(even);
    }
    let sum = |of: &dyn Fn(&TensorType) -> bool| {
        let types = body.inputs().into_iter().filter_map(|v| body.ty(v).as_tensor());
        types.filter(|t| of(t)).map(|t| t.bytes(tokens, tokens) as f64).sum::<f64>()
    };
    let varies = |t: &TensorType| t.shape.0.first().is_some_and(|lead| lead.fixed().is_none());
    let tile = [sum(&varies) * per as f64 / tokens.max(1) as f64, sum(&|t| !varies(t)) / times as f64];
    let at_once = (chip.cus / chip.xcds) as usize * room(kernel);
    let mine: Vec<usize> = (0..moved.groups).step_by(chip.xcds as usize).collect();
    let of_round = |round: &[usize]| {
        let different =
            |of: &dyn Fn(usize) -> usize| round.iter().map(|group| of(*group)).collect::<BTreeSet<_>>().len() as f64;
        different(&|group| group / times) * tile[0] + different(&|group| group % times) * tile[1]
    };
    mine.chunks(at_once).map(of_round).sum()
}

/// Bytes of the weights that the choices of a token read, of a product with those of experts.
fn weights_of_token(body: &Graph, product: NodeId) -> Option<f64> {
    let Op::Grouped { .. } = body.op(product) else { return None };
    let operands = body.operands(product);
    let [weights, chosen] = [1, 2].map(|i| body.ty(operands[i]).as_tensor());
    let share = chosen?.choices() as f64 / experts(body, operands[2])? as f64;
    Some(weights?.bytes(1, 1) as f64 * share)
}

/// Shows the bounds of every kernel and of its loops, for a full step of the last plan that has it.
pub fn show(out: &mut impl Write, artifact: &Artifact, chip: Modelled) -> Result<(), Failure> {
    let mut predictor = Predictor::new(artifact, chip.0)?;
    writeln!(out, "{}", caveat(&chip.0))?;
    let target = predictor.target;
    for (number, def) in target.kernels.iter().enumerate() {
        let has = |plan: &Plan| own(plan) && plan.launches.iter().any(|launch| launch.kernel == number);
        let Some(plan) = target.plans.iter().rposition(has) else { continue };
        let item = &target.plans[plan];
        let launch = item.launches.iter().position(|launch| launch.kernel == number).unwrap_or_default();
        let kernel = predictor.launch(plan, launch, &predictor.full(item))?;
        writeln!(out, "  kernel  {} in {}", def.symbol, inspect::name(item))?;
        lines(&kernel).iter().try_for_each(|line| writeln!(out, "          {line}"))?;
    }
    Ok(())
}

impl Predictor<'_> {
    /// A step with as many tokens as a plan takes: of one prompt, or of several sequences that
    /// decode.
    fn full(&self, plan: &Plan) -> Step {
        let most = self.artifact.manifest().model.max_positions;
        match plan.kind {
            PlanKind::Decode | PlanKind::Verify { .. } => {
                let each = plan.kind.each().unwrap_or(1).min(most);
                let run = Run { position: POSITION.min(most - each), tokens: each, rows: each };
                Step::of(vec![run; plan.tokens / each])
            }
            PlanKind::Any | PlanKind::Whole => {
                Step::of(vec![Run { position: 0, tokens: plan.tokens.min(most), rows: 1 }])
            }
        }
    }
}

/// Tokens of each sequence of a decode step, if the user does not say.
const POSITION: usize = 512;

/// One line of a kernel and one of each of its loops.
fn lines(kernel: &PredictedKernel) -> Vec<String> {
    let Prediction { us, bound, busy, loops } = &kernel.prediction;
    let percent = |share: f64| (100.0 * share).round();
    let head = format!(
        "predicted {us:.1} us, bound by {}; the busiest unit is {} ({} %)",
        bound.name(),
        busy.unit.name(),
        percent(busy.share)
    );
    let one = |l: &Loop| {
        format!(
            "predicted loop of {}: {} turns, {} % of a work-group's clocks, bound by {}; {} is busy {} %",
            l.instructions,
            l.turns,
            percent(l.share),
            l.busy.bound().name(),
            l.busy.unit.name(),
            percent(l.busy.share)
        )
    };
    std::iter::once(head).chain(loops.iter().map(one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_without_numbers_are_refused() {
        let refused = |text: &str| text.parse::<Modelled>().map(|m| m.0.name).unwrap_err();
        assert_eq!(
            refused("gfx90a"),
            "the model of times has no numbers for `gfx90a`, of which no measured time is published; it has: MI308X, MI300X, MI355X, \
             gfx942, gfx950"
        );
        assert!(refused("gfx1100").contains("`gfx1100`"));
        assert_eq!("mi308x".parse::<Modelled>().map(|m| m.0.gfx), Ok("gfx942"));
    }

    #[test]
    fn whatever_is_shown_says_that_it_is_predicted() {
        let chip = "gfx950".parse::<Modelled>().unwrap().0;
        let accuracy = chip.accuracy().unwrap();
        let text = caveat(&chip);
        assert!(text.starts_with("PREDICTED for MI355X, not measured"), "{text}");
        let compiled = accuracy.compiled.unwrap();
        for Errors { rows, median, p90 } in [accuracy.written, compiled] {
            assert!(text.contains(&format!("median {median:.1} %, 90th percentile {p90:.1} % of {rows} ")), "{text}");
        }
        let value = json(&chip, &[]);
        let p90 = &value["model_error"]["compiled"]["p90_percent"];
        assert_eq!((&value["predicted"], p90), (&json!(true), &json!(compiled.p90)));
        let text = caveat(&"MI300X".parse::<Modelled>().unwrap().0);
        assert!(text.contains("not known for matrix products that Triton compiles"), "{text}");
    }
}
