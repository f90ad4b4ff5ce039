//! `atomc inspect`: the contents of an artifact.
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use atomc::model::Model;
use atomc_artifact::manifest::{
    Adapters, Attention, Chip, Kernel, KernelDef, Launch, Manifest, PageStream, Paged, Parts, Plan, PlanKind,
    Resources, StateGroup, Target, Tasks, Variant, Work,
};
use atomc_artifact::{Artifact, FORMAT_VERSION, escaped, escaped_json};
use serde_json::{Value, json};

use atomc_runtime::Error;
use atomc_runtime::adapters::WithAdapters;
use atomc_runtime::checkpoint::Source;
use atomc_runtime::weights::{Fit, Rank, fit};

use super::extract;
use super::failure::Failure;
use super::why;
use super::{opened, shown};

/// Show what an artifact holds and what shaped it
#[derive(clap::Args)]
#[command(after_help = "\
Opening an artifact checks every checksum, so that a file that can be inspected is whole.

Examples:
  atomc inspect m.atomc
  atomc inspect m.atomc --kernels                 with what each takes of a GPU
  atomc inspect m.atomc --kernels --model MI300X  and, predicted, what bounds each and its loops on that chip
  atomc inspect m.atomc --why k5                  which schedule made a kernel, and why not another
  atomc inspect m.atomc --weights DIR             whether a checkpoint fits, by its tensors' names, shapes and types
  atomc inspect m.atomc --json | jq .targets[0].plans
  atomc inspect m.atomc --extract code            the code objects as files")]
pub struct Args {
    artifact: PathBuf,
    /// Also list every kernel, and on GPUs its registers, memory, occupancy and innermost loops
    #[arg(long)]
    kernels: bool,
    /// The artifact's tower, in place of the language part
    #[arg(long)]
    tower: bool,
    /// Also predict what bounds the kernels on an AMD chip, and each of their loops, by the model
    /// of docs/timing.md: this runs work-groups of them in the emulator. MI300X (which gfx942
    /// means), MI308X or MI355X (gfx950)
    #[cfg(feature = "emulator")]
    #[arg(long, value_name = "CHIP", requires = "kernels", conflicts_with = "json")]
    model: Option<super::predict::Modelled>,
    /// Say which schedule made the kernels whose symbol begins with this, and why none before it
    /// did
    #[arg(long, value_name = "KERNEL", conflicts_with_all = ["kernels", "json", "extract"])]
    why: Option<String>,
    /// Write the code objects to this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kernels", "json"])]
    extract: Option<PathBuf>,
    /// Say whether the checkpoint in this folder or GGUF file fits, and which of its tensors are
    /// not read
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kernels", "why", "extract"])]
    weights: Option<PathBuf>,
    /// Everything as a JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let artifact = part(opened::open("artifact", &args.artifact)?, args.tower)?;
    let mut out = std::io::stdout().lock();
    if let Some(dir) = &args.extract {
        let files = extract::all(dir, &artifact)?;
        return Ok(files.iter().try_for_each(|file| writeln!(out, "{}", shown::path(&dir.join(file))))?);
    }
    if let Some(symbol) = &args.why {
        return why::show(&mut out, artifact.manifest(), symbol);
    }
    let fits = args.weights.as_ref().map(|dir| fits(artifact.manifest(), dir)).transpose()?;
    if args.json {
        let mut all = describe(&artifact);
        if let Some(fits) = &fits {
            all["fits"] = fits.iter().map(Fits::json).collect();
        }
        return shown::json(&mut out, &all);
    }
    show(&mut out, &args.artifact, &artifact, args.kernels)?;
    #[cfg(feature = "emulator")]
    if let Some(chip) = args.model {
        super::predict::show(&mut out, &artifact, chip)?;
    }
    fits.iter().flatten().try_for_each(|fits| Ok(writeln!(out, "{fits}")?))
}

/// The artifact, or its tower as one.
pub fn part(artifact: Artifact, tower: bool) -> Result<Artifact, Failure> {
    if tower { Ok(artifact.tower().ok_or(Error::NoTower)?) } else { Ok(artifact) }
}

/// How a checkpoint fits a target.
struct Fits<'a> {
    target: &'a str,
    fit: Fit,
}

impl Fits<'_> {
    fn json(&self) -> Value {
        json!({ "target": self.target, "read": self.fit.read, "ignored": self.fit.ignored })
    }
}

impl std::fmt::Display for Fits<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "fits      {}: {} tensors are read", self.target, self.fit.read)?;
        self.fit.ignored.iter().try_for_each(|(part, count)| write!(f, ", {count} of the {} are not", escaped(part)))
    }
}

/// How a checkpoint fits each target, for all ranks.
fn fits<'a>(manifest: &'a Manifest, dir: &Path) -> Result<Vec<Fits<'a>>, Failure> {
    let weights = Model::at(dir)?.weights()?;
    let of = manifest.ranks();
    let mut all = Vec::with_capacity(manifest.targets.len());
    for target in &manifest.targets {
        let roomy = WithAdapters::new(manifest, target, &*weights, &[]).map_err(Error::from)?;
        let weights: &dyn Source = roomy.as_ref().map_or(&*weights, |roomy| roomy);
        let mut fits = (0..of).map(|number| fit(&target.weights, &manifest.tensors, Rank { number, of }, weights));
        let first = fits.next().transpose().map_err(Error::from)?;
        fits.try_for_each(|fit| fit.map(|_| ())).map_err(Error::from)?;
        all.extend(first.map(|fit| Fits { target: &target.name, fit }));
    }
    Ok(all)
}

/// Everything as text.
pub fn show(out: &mut impl Write, path: &Path, artifact: &Artifact, kernels: bool) -> Result<(), Failure> {
    let (m, name) = (artifact.manifest(), shown::path(path));
    let producer = escaped(&m.producer);
    writeln!(out, "{name}: {}, format {FORMAT_VERSION}, by atomc {producer}", size(artifact.bytes()))?;
    writeln!(out, "key       {}", m.key())?;
    writeln!(out, "content   {}", artifact.fingerprint())?;
    model(out, m)?;
    for target in &m.targets {
        show_target(out, artifact, target, kernels)?;
    }
    writeln!(out, "shaped by {}", escaped_json(&m.config.to_string()))?;
    Ok(())
}

fn model(out: &mut impl Write, m: &Manifest) -> Result<(), Failure> {
    let model = &m.model;
    writeln!(
        out,
        "model     {}: {} layers of {}, vocabulary {}, {} positions, stop tokens {:?}",
        escaped(&model.architecture),
        model.layers,
        model.hidden,
        model.vocab,
        model.max_positions,
        model.stop
    )?;
    let ignored = m.tensors.ignored.iter();
    let parts: Vec<_> = ignored.map(|i| format!("{} ({})", escaped(&i.part), escaped(&i.names.text()))).collect();
    if !parts.is_empty() {
        writeln!(out, "not read  {}", parts.join(", "))?;
    }
    if let Some(Adapters { slots, rank }) = m.adapters {
        writeln!(out, "adapters  room for {slots}, of rank {rank} at most")?;
    }
    if let Some(tower) = &m.tower {
        let (model, patch) = (&tower.model, tower.tiling.patch);
        writeln!(
            out,
            "tower     {} blocks of {}, images of up to {} patches of {patch} by {patch} pixels (--tower)",
            model.layers, model.hidden, model.max_positions
        )?;
    }
    if m.pipeline_parallel > 1 {
        writeln!(out, "stages    {} of layers", m.pipeline_parallel)?;
    }
    if m.ranks() > 1 {
        write!(out, "ranks     for each of {} that share ", m.ranks())?;
        match (m.tensor_parallel, m.expert_parallel) {
            (_, 1) => writeln!(out, "the model out")?,
            (1, _) => writeln!(out, "the experts out, and have all else")?,
            _ => writeln!(out, "the model out, experts whole")?,
        }
    }
    Ok(())
}

fn weight_bytes(target: &Target) -> usize {
    target.weights.iter().map(|weight| weight.bytes).sum()
}

/// The states of each group of pages, and the pages. Other groups are in the report alone.
fn pages(target: &Target) -> impl Iterator<Item = (usize, &Paged)> {
    target.groups.iter().enumerate().filter_map(|(number, group)| match group {
        StateGroup::Paged(pages) => Some((target.states.iter().filter(|state| state.group == number).count(), pages)),
        StateGroup::Slots(_) => None,
    })
}

/// Bytes of pages that a token takes, over `states` states.
fn page_bytes(target: &Target, (states, pages): (usize, &Paged)) -> usize {
    pages.block_bytes.saturating_mul(states) / (target.layout.block_tokens * pages.every)
}

/// Bytes of pages that a token takes, over all states.
fn cache_bytes(target: &Target) -> usize {
    pages(target).map(|group| page_bytes(target, group)).fold(0, usize::saturating_add)
}

fn show_memory(out: &mut impl Write, target: &Target) -> Result<(), Failure> {
    writeln!(out, "  weights {} buffers, {}", target.weights.len(), size(weight_bytes(target)))?;
    for (states, group) in pages(target) {
        let Some(PageStream { heads, width, dtype, .. }) = group.streams.first() else { continue };
        let tokens = target.layout.block_tokens * group.every;
        let bytes = size(page_bytes(target, (states, group)));
        write!(
            out,
            "  cache   {states} layers of {heads} heads of {width} {}, blocks of {tokens} tokens, {bytes} a token",
            dtype.name()
        )?;
        if group.window > 0 {
            write!(out, ", of the last {} alone", group.window)?;
        }
        if group.every > 1 {
            write!(out, ", an entry for {} tokens", group.every)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn show_target(out: &mut impl Write, artifact: &Artifact, target: &Target, kernels: bool) -> Result<(), Failure> {
    let invariant = if target.invariant { ", invariant: a row's bits are the same in every step" } else { "" };
    writeln!(out, "target    {}{invariant}", target.name)?;
    show_memory(out, target)?;
    // The rows of the first plan that has some.
    let named = target.plans.iter().map(|plan| &plan.hidden).find(|rows| !rows.is_empty());
    if let Some(rows) = named {
        let names: Vec<&str> = rows.iter().map(|rows| rows.name.as_str()).collect();
        writeln!(out, "  rows    {} beside the last hidden ones", names.join(", "))?;
    }
    for v in &target.variants {
        let (code, count) = (size(artifact.sections()[v.section].length), v.kernels.len());
        let unseen = if v.executed { "" } else { ", compiled but never executed" };
        let form = form(v);
        writeln!(
            out,
            "  variant {}: {count} kernels, {code}{form}, needs {}{unseen}",
            v.name,
            escaped(&v.features.join(" "))
        )?;
        show_extremes(out, v)?;
    }
    let chip = target.variants.first().and_then(|variant| variant.chip.as_ref());
    for plan in &target.plans {
        let s = Summary::of(plan);
        writeln!(
            out,
            "  plan    {}: {} launches in {} segments{}, arena {}, at full size {} moved and {:.3} Gflop{}",
            name(plan),
            plan.launches.len(),
            s.segments,
            if s.calls == 0 { String::new() } else { format!(", {} calls between them", s.calls) },
            size(plan.arena_bytes),
            size(s.bytes as usize),
            s.flops as f64 / 1e9,
            chip.map(|chip| at_peaks(plan, chip, &target.variants[0].kernels)).unwrap_or_default(),
        )?;
    }
    if kernels {
        for (index, (def, kernel)) in target.kernels.iter().zip(&target.variants[0].kernels).enumerate() {
            let uses = |plan: &Plan| plan.launches.iter().filter(|launch| launch.kernel == index).count();
            let plans = target.plans.iter().filter(|plan| uses(plan) > 0);
            let plans: Vec<String> = plans.map(|plan| format!("{} x {}", name(plan), uses(plan))).collect();
            writeln!(
                out,
                "  kernel  {}: {}, {}, {}; {}",
                def.symbol,
                escaped(&def.family),
                kernel.schedule,
                tasks(kernel),
                plans.join(", ")
            )?;
            if let Some(resources) = &kernel.resources {
                show_resources(out, kernel.threads, resources)?;
            }
        }
    }
    Ok(())
}

/// The form of code of kernels that have modules of their own.
fn form(variant: &Variant) -> &'static str {
    let modules: Vec<_> = variant.kernels.iter().filter_map(|kernel| kernel.module.as_ref()).collect();
    match modules.iter().all(|module| module.cubin.is_some()) {
        _ if modules.is_empty() => "",
        true => " of PTX and cubins",
        false => " of PTX",
    }
}

/// The most, or the least, that the kernels of a GPU's variant take.
fn show_extremes(out: &mut impl Write, variant: &Variant) -> Result<(), Failure> {
    let all: Vec<&Resources> = variant.kernels.iter().filter_map(|kernel| kernel.resources.as_ref()).collect();
    if all.is_empty() {
        return Ok(());
    }
    let most = |of: fn(&Resources) -> usize| all.iter().map(|r| of(r)).max().unwrap_or(0);
    let occupancy = all.iter().map(|r| r.occupancy).fold(f32::INFINITY, f32::min);
    writeln!(
        out,
        "          at most {} VGPRs, {} B of LDS, {} B of scratch, {} spills; at least {occupancy} waves on a SIMD",
        most(|r| r.vgprs),
        most(|r| r.lds),
        most(|r| r.scratch),
        most(|r| r.vgpr_spills + r.sgpr_spills)
    )?;
    Ok(())
}

/// The resources of a kernel, and below it one line for each innermost loop.
fn show_resources(out: &mut impl Write, threads: usize, r: &Resources) -> Result<(), Failure> {
    let Resources { vgprs, agprs, sgprs, lds, scratch, vgpr_spills, sgpr_spills, occupancy, .. } = r;
    writeln!(
        out,
        "          {threads} threads, {vgprs} VGPRs ({agprs} for accumulation), {sgprs} SGPRs, LDS {lds} B, scratch {scratch} B, \
         {} spilled, {occupancy} waves on a SIMD, {} in {} instructions, {} matrix",
        vgpr_spills + sgpr_spills,
        size(r.code_bytes),
        r.instructions,
        r.matrix
    )?;
    for l in &r.loops {
        writeln!(
            out,
            "          loop of {}: {} matrix, {} vector, {} scalar, {} LDS, {} loads ({} of 16 B), {} waits ({} partial), \
             {} barriers, {} instructions under a load",
            l.instructions,
            l.matrix,
            l.valu,
            l.salu,
            l.lds,
            l.loads,
            l.loads_x4,
            l.waits,
            l.partial_waits,
            l.barriers,
            l.overlap
        )?;
    }
    Ok(())
}

pub fn name(plan: &Plan) -> String {
    let who = match plan.attention {
        Attention::Own => "",
        Attention::Caller => ", the caller attends",
    };
    let who = if plan.draft { format!("{who}, of the draft") } else { who.to_owned() };
    match plan.kind {
        PlanKind::Decode => format!("decode {}{who}", plan.tokens),
        PlanKind::Verify { each } => format!("verify {}x{each}{who}", plan.tokens / each),
        PlanKind::Any => format!("any {} with {} rows{who}", plan.tokens, plan.rows),
        PlanKind::Whole => format!("whole {} with {} rows{who}", plan.tokens, plan.rows),
    }
}

fn tasks(kernel: &Kernel) -> String {
    match kernel.tasks {
        Tasks::Fixed(count) => format!("{count} tasks"),
        Tasks::Tokens { per, times } => format!("tokens / {per} * {times} tasks"),
        Tasks::Rows { per, times } => format!("rows / {per} * {times} tasks"),
        Tasks::Choices { choices, per, times } => format!("tokens * {choices} / {per} * {times} tasks"),
        Tasks::Blocks { choices, tile, times, .. } => {
            format!("blocks of {tile} of tokens * {choices} * {times} tasks")
        }
        Tasks::Tiles { times } => format!("tiles * {times} tasks"),
        Tasks::Shared { few, limit, many } => {
            let parts = |Parts { per, times, splits, most }: Parts| {
                format!("tokens / {per} * {times} * up to {splits} tasks, {most} at most where tasks share")
            };
            let of_few = if limit > 0 { format!(", to {limit} tokens {}", parts(few)) } else { String::new() };
            format!("{}{of_few}", parts(many))
        }
    }
}

/// Sums over the launches of a plan.
struct Summary {
    segments: usize,
    /// The work that its caller has to do.
    calls: usize,
    bytes: u64,
    flops: u64,
}

impl Summary {
    fn of(plan: &Plan) -> Summary {
        let segments: BTreeSet<usize> = plan.launches.iter().map(|launch| launch.segment).collect();
        Summary {
            segments: segments.len(),
            calls: plan.calls.iter().filter(|call| !matches!(call.work, Work::Embedding { .. })).count(),
            bytes: plan.launches.iter().map(|launch| launch.bytes).sum(),
            flops: plan.launches.iter().map(|launch| launch.flops).sum(),
        }
    }
}

/// The time that a chip's peaks allow for a plan, launch by launch; keys and values of earlier
/// tokens are not counted.
fn at_peaks(plan: &Plan, chip: &Chip, kernels: &[Kernel]) -> String {
    let floor = |launch: &Launch| chip.floor(launch.bytes, launch.flops, rate(kernels, launch.kernel));
    let floor: f64 = plan.launches.iter().map(floor).sum();
    format!(": {:.2} ms on {} at its peaks", 1e3 * floor, escaped(&chip.name))
}

/// [`Kernel::rate`] of a kernel by its number.
pub fn rate(kernels: &[Kernel], number: usize) -> u32 {
    kernels.get(number).map_or(1, |kernel| kernel.rate)
}

/// A number of bytes to read.
pub fn size(bytes: usize) -> String {
    match bytes as f64 {
        n if n < 1e3 => format!("{n} B"),
        n if n < 1e6 => format!("{:.1} kB", n / 1e3),
        n if n < 1e9 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.2} GB", n / 1e9),
    }
}

pub fn describe(artifact: &Artifact) -> Value {
    let m = artifact.manifest();
    json!({
        "bytes": artifact.bytes(),
        "format": FORMAT_VERSION,
        "producer": m.producer,
        "key": m.key(),
        "fingerprint": artifact.fingerprint().to_string(),
        "model": m.model,
        "tensors": m.tensors,
        "tensor_parallel": m.tensor_parallel,
        "expert_parallel": m.expert_parallel,
        "targets": m.targets.iter().map(|target| describe_target(artifact, target)).collect::<Vec<Value>>(),
        "config": m.config,
    })
}

fn describe_target(artifact: &Artifact, target: &Target) -> Value {
    json!({
        "name": target.name,
        "invariant": target.invariant,
        "weights": { "buffers": target.weights.len(), "bytes": weight_bytes(target) },
        "cache": { "states": target.states, "groups": target.groups, "bytes_per_token": cache_bytes(target) },
        "hidden": target.hidden,
        "variants": target.variants.iter().map(|v| describe_variant(artifact, target, v)).collect::<Vec<Value>>(),
        "plans": target.plans.iter().map(describe_plan).collect::<Vec<Value>>(),
    })
}

fn describe_variant(artifact: &Artifact, target: &Target, v: &Variant) -> Value {
    json!({
        "name": v.name,
        "features": v.features,
        "chip": v.chip,
        "executed": v.executed,
        "prepare": v.prepare,
        "pack": v.pack,
        "exchange": v.exchange,
        "code_bytes": artifact.sections()[v.section].length,
        "kernels": target.kernels.iter().zip(&v.kernels).map(describe_kernel).collect::<Vec<Value>>(),
    })
}

/// The body of a kernel is left out: it is long, and `atomc print` shows it better.
fn describe_kernel((def, kernel): (&KernelDef, &Kernel)) -> Value {
    json!({
        "symbol": def.symbol,
        "family": def.family,
        "tokens": def.tokens,
        "schedule": kernel.schedule,
        "tasks": kernel.tasks,
        "scratch": kernel.scratch,
        "threads": kernel.threads,
        "workspace": kernel.workspace,
        "shared": kernel.shared,
        "overlaps": kernel.overlaps,
        "together": kernel.together,
        "module": kernel.module,
        "resources": kernel.resources,
    })
}

fn describe_plan(plan: &Plan) -> Value {
    let s = Summary::of(plan);
    json!({
        "kind": plan.kind,
        "tokens": plan.tokens,
        "rows": plan.rows,
        "attention": plan.attention,
        "launches": plan.launches.len(),
        "body": plan.body,
        "calls": plan.calls,
        "hidden": plan.hidden,
        "segments": s.segments,
        "arena_bytes": plan.arena_bytes,
        "bytes": s.bytes,
        "flops": s.flops,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atomc_artifact::manifest::LoopReport;

    #[test]
    fn what_a_kernel_takes() {
        let inner = LoopReport {
            instructions: 140,
            matrix: 64,
            valu: 16,
            salu: 10,
            lds: 24,
            loads: 8,
            loads_x4: 8,
            waits: 13,
            partial_waits: 4,
            overlap: 57,
            barriers: 2,
        };
        let resources = Resources {
            vgprs: 182,
            agprs: 16,
            sgprs: 30,
            lds: 32768,
            scratch: 0,
            vgpr_spills: 1,
            sgpr_spills: 2,
            occupancy: 1.5,
            code_bytes: 5120,
            instructions: 900,
            matrix: 128,
            loops: vec![inner],
        };
        let mut out = Vec::new();
        show_resources(&mut out, 256, &resources).unwrap();
        let kernel = |resources| Kernel {
            schedule: "gemm_tiled".into(),
            tasks: Tasks::Fixed(1),
            scratch: 0,
            threads: 0,
            workspace: 0,
            shared: 0,
            rate: 1,
            overlaps: false,
            together: 1,
            module: None,
            resources,
        };
        let variant = Variant {
            name: "gfx942".into(),
            features: vec![],
            chip: None,
            executed: true,
            section: 1,
            kernels: vec![kernel(Some(resources)), kernel(None)],
            prepare: None,
            pack: None,
            exchange: None,
        };
        show_extremes(&mut out, &variant).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap());
    }
}
