//! The driver: from a configuration to an artifact.
//!
//! For every target and bucket it runs the passes, numbers kernels and weights so that equal ones
//! exist once, and writes down the launches. Then each variant of a target gets one code object of
//! all kernels.
mod drafts;
mod kernels;
mod launches;
mod states;
mod tower;
mod weights;

use std::path::Path;

use atomc_artifact::Fingerprint;
use atomc_artifact::check::MAX_STEP;
use atomc_artifact::manifest::{
    self, Attention, Chip, DataLayout, Hidden, Ignored, Manifest, Pattern, Plan, Renamed, Target, TensorNames, Tied,
    Variant, Weight,
};
use atomc_config::{Adapters, Draft, Latent, OtherPart, Quantisation, Vision};
use atomc_ir::arch::{Machine, Memory};
use atomc_ir::{Arch, DType, Diagnostic, Graph};
use atomc_passes::{Bucket, BucketOptions, Cx};
use atomc_targets::tuning::Class;
use atomc_targets::{Choice, Hosted, KernelSpec};
use serde_json::json;

use crate::frontend::{self, Asked, Config, Part};
pub use kernels::Kernels;
use launches::{Kind, Parts};
use states::States;
pub use tower::weights as tower_weights;
use weights::Weights;
pub use weights::weight;

/// Kernels of a decode bucket are unrolled over its tokens.
const MAX_DECODE: usize = 256;

/// Most adapters at once, and their largest rank.
const MAX_ADAPTERS: usize = 512;
/// Most patches of a tower's step, unless the user says otherwise: those of a megapixel.
pub const PATCHES: usize = 4096;

/// What the name of a table ends with that old checkpoints have for each layer, and that follows
/// from the configuration.
const TABLE: &str = "rotary_emb.inv_freq";

/// What a user may choose about an artifact.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of targets, e.g. `host`.
    pub targets: Vec<String>,
    pub buckets: BucketOptions,
    /// Which of the choices that schedules leave open every kernel takes, round and round, instead
    /// of the one that was found best.
    pub choice: Option<usize>,
    /// Ranks that have a part of each projection.
    pub ranks: usize,
    /// Ranks that hold some of the experts each, whole.
    pub expert_ranks: usize,
    /// Stages of layers, each of which that many ranks share out.
    pub stages: usize,
    /// Which side attends: plans are made for each.
    pub attention: Vec<Attention>,
    /// Layers that frameworks want to see the input rows of, in addition to the rows after the last
    /// layer.
    pub hidden: Vec<usize>,
    /// What guesses the tokens that steps verify.
    pub draft: Option<Draft>,
    /// The tower whose rows tokens may take, if images are wanted.
    pub tower: Option<Vision>,
    /// Most patches of a step of the tower, and of an image.
    pub patches: usize,
    /// Whether the bits of a row must not depend on what else is in its step, nor on the bucket.
    pub invariant: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            targets: vec!["host".into()],
            buckets: BucketOptions::default(),
            choice: None,
            ranks: 1,
            expert_ranks: 1,
            stages: 1,
            attention: vec![Attention::Own],
            hidden: vec![],
            draft: None,
            tower: None,
            patches: PATCHES,
            invariant: false,
        }
    }
}

/// An artifact that is not written yet.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub manifest: Manifest,
    /// The sections after the manifest's own.
    pub code: Vec<Vec<u8>>,
}

impl Compiled {
    /// Writes the artifact; the result identifies what is in it.
    pub fn write(&self, path: &Path) -> Result<Fingerprint, Diagnostic> {
        atomc_artifact::write(path, &self.manifest, &self.code)
            .map_err(|e| Diagnostic::new("artifact::write", e.to_string()))
    }
}

/// Called with the steps done, the steps in all, and the name of the next one.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize, &str);

/// Compiles a model. Weights are not looked at.
pub fn compile(config: &Config, options: &Options, progress: Progress) -> Result<Compiled, Diagnostic> {
    check_invariant(options)?;
    check_stages(options)?;
    check_adapters(config, options)?;
    tower::check(options)?;
    let models = models(config, options)?;
    let buckets = buckets(&options.buckets)?;
    let targets = unique(&options.targets)?;
    targets.iter().flat_map(|(_, archs)| *archs).try_for_each(|arch| check_cache(config, &options.attention, arch))?;
    let of_tower = |archs: &[Arch]| options.tower.as_ref().map_or(0, |_| archs.len() + tower::BUCKETS);
    let steps_of = |archs: &[Arch]| archs.len() + steps(&models, &buckets).count() + of_tower(archs);
    let total = targets.iter().map(|(_, archs)| steps_of(archs)).sum();
    let mut done = 0;
    let mut step = |what: String| {
        progress(done, total, &what);
        done += 1;
    };
    let (mut code, mut made) = (vec![], vec![]);
    for (name, archs) in &targets {
        made.push(target((name, archs), &models, (&buckets, options), &mut code, &mut step)?);
    }
    let vision = options.tower.as_ref();
    let tower = vision.map(|vision| tower::tower((config, vision), options, &targets, (&mut code, &mut step)));
    let manifest = Manifest {
        producer: env!("CARGO_PKG_VERSION").into(),
        config: echo(config, options, &buckets, &targets)?,
        model: facts(config),
        tensors: tensor_names(config, options.draft.as_ref()),
        tensor_parallel: options.ranks,
        expert_parallel: options.expert_ranks,
        pipeline_parallel: options.stages,
        adapters: config.adapters.map(|Adapters { slots, rank }| manifest::Adapters { slots, rank }),
        targets: made,
        tower: tower.transpose()?,
    };
    progress(total, total, "done");
    Ok(Compiled { manifest, code })
}

/// Checks that there is room for an adapter where there is to be some.
fn check_adapters(config: &Config, options: &Options) -> Result<(), Diagnostic> {
    let fault = |message: &str| Err(Diagnostic::new("driver::adapters", message).at("--adapters"));
    match config.adapters {
        Some(Adapters { slots, rank })
            if !(1..=MAX_ADAPTERS).contains(&slots) || !(1..=MAX_ADAPTERS).contains(&rank) =>
        {
            fault(&format!("from 1 to {MAX_ADAPTERS} adapters, of a rank from 1 to {MAX_ADAPTERS}, have room"))
        }
        Some(_) if options.draft.is_some() => fault("a draft guesses for the model without adapters"),
        _ => Ok(()),
    }
}

/// Checks that an arch has kernels which attend over the cache, if they are to, and for its sizes.
fn check_cache(config: &Config, attention: &[Attention], arch: &Arch) -> Result<(), Diagnostic> {
    check_units(config, arch)?;
    check_latent_scales(config, attention, arch)?;
    check_groups(config, arch)?;
    let (cache, query) = (config.cache_dtype(), config.dtype);
    if !attention.contains(&Attention::Own) || atomc_targets::attends(cache, query, arch) {
        return Ok(());
    }
    let message =
        format!("kernels of {} do not attend in {} over a cache of {}", arch.name, query.name(), cache.name());
    let help = "--cache-dtype auto, or --dtype bf16 or f16";
    Err(Diagnostic::new("config::cache", message).at("--cache-dtype").help(help))
}

/// Checks that an arch has kernels that write latent rows with a scale, if they are to.
fn check_latent_scales(config: &Config, attention: &[Attention], arch: &Arch) -> Result<(), Diagnostic> {
    let is_latent = config.layers.iter().any(|layer| layer.half::<Latent>().is_some());
    match &arch.machine {
        Machine::Simt(_) if is_latent && config.cache_scales().is_some() && attention.contains(&Attention::Own) => {
            let message = format!("kernels of {} write no latent rows with a scale of the cache", arch.name);
            let help = "--target host, or take the field of the cache out of the configuration";
            Err(Diagnostic::new("config::cache", message).at("quantization_config").help(help))
        }
        _ => Ok(()),
    }
}

/// The fewest columns with a scale of their own that kernels of GPUs take.
const LEAST_GROUP: usize = 16;

/// Checks that an arch has kernels for weights with so many scales.
fn check_groups(config: &Config, arch: &Arch) -> Result<(), Diagnostic> {
    let Machine::Simt(_) = &arch.machine else { return Ok(()) };
    let narrow = |&columns: &usize| columns < LEAST_GROUP;
    match config.quantised.iter().flat_map(Quantisation::groups).find(narrow) {
        Some(columns) => {
            let message =
                format!("kernels of {} take a scale for {LEAST_GROUP} columns at least, not for {columns}", arch.name);
            Err(Diagnostic::new("config::quantised", message).at("quantization_config").help("--target host"))
        }
        None => Ok(()),
    }
}

/// Checks that an arch has kernels for the sizes of the model's layers.
fn check_units(config: &Config, arch: &Arch) -> Result<(), Diagnostic> {
    let Machine::Simt(_) = &arch.machine else { return Ok(()) };
    match frontend::units(config).find(|unit| !unit.size.is_multiple_of(unit.unit)) {
        None => Ok(()),
        Some(frontend::Unit { field, size, unit }) => {
            let message = format!("kernels of {} take multiples of {unit}, not {size}", arch.name);
            Err(Diagnostic::new("config::size", message).at(format!("config.json: {field}")))
        }
    }
}

/// Checks that atomc itself does everything that adds up the numbers of a row.
fn check_invariant(options: &Options) -> Result<(), Diagnostic> {
    let no = |what: &str, at: &str, help: &str| {
        let message = format!("{what}, so no artifact can say that a row's bits are always the same");
        Err(Diagnostic::new("driver::invariant", message).at(at).help(help))
    };
    if options.invariant && options.attention.contains(&Attention::Caller) {
        return no("the caller's attention is not atomc's", "--attention", "--attention own");
    }
    Ok(())
}

/// Checks that nothing is wanted of layers in the middle, which the last stage does not have.
fn check_stages(options: &Options) -> Result<(), Diagnostic> {
    let no = |what: &str, at: &str| {
        let message = format!("{what} takes rows of layers that the last of {} stages does not have", options.stages);
        Err(Diagnostic::new("driver::stages", message).at(at).help("leave `--pp` or this option away"))
    };
    match options {
        Options { stages: 0, .. } => Err(Diagnostic::new("driver::stages", "no stages").at("--pp")),
        Options { stages: 1, .. } => Ok(()),
        Options { draft: Some(_), .. } => no("a draft", "--draft"),
        Options { hidden, .. } if !hidden.is_empty() => no("the caller", "--hidden"),
        _ => Ok(()),
    }
}

/// Checks that all plans of a target do the same, by the same schedules: a value that stays in
/// registers in one kernel is rounded between two. The order of independent kernels changes
/// nothing.
fn check_same_kernels((target, archs): (&str, &[Arch]), plans: &[Plan], all: &Kernels) -> Result<(), Diagnostic> {
    let specs = all.specs();
    let made = |spec: &KernelSpec| -> Result<_, Diagnostic> {
        let schedules = archs.iter().map(|arch| Ok(atomc_targets::select(spec, arch)?.0.name));
        Ok((spec.family, spec.body.print(), schedules.collect::<Result<Vec<_>, Diagnostic>>()?))
    };
    let made: Vec<_> = specs.iter().map(made).collect::<Result<_, _>>()?;
    let kernels = |plan: &Plan| {
        let mut all: Vec<_> = plan.launches.iter().map(|launch| &made[launch.kernel]).collect();
        all.sort();
        all
    };
    let first = kernels(&plans[0]);
    let Some(other) = plans.iter().find(|plan| kernels(plan) != first) else { return Ok(()) };
    let named = |plan: &Plan| format!("{:?} of {} tokens", plan.kind, plan.tokens).to_lowercase();
    let message = format!("steps of {target} have other kernels in {} than in {}", named(other), named(&plans[0]));
    Err(Diagnostic::new("driver::invariant", message).at("--invariant"))
}

/// What plans are made of: a part of the model, or the draft.
struct Model {
    graph: Graph,
    part: Part,
    is_draft: bool,
    /// For steps without adapters, where the model before it has room for them.
    is_plain: bool,
}

impl Model {
    /// Whether there is a plan for a bucket. A step is whole only without a caller that attends, as
    /// in an engine.
    fn takes(&self, bucket: &Bucket) -> bool {
        match bucket {
            Bucket::Whole { .. } => self.part.attention == Attention::Own,
            Bucket::Any { .. } | Bucket::Decode { .. } | Bucket::Verify { .. } => true,
        }
    }

    /// What its steps are, where there are others.
    fn meaning(&self) -> &'static str {
        match (self.is_draft, self.is_plain) {
            (true, _) => " of the draft",
            (_, true) => " without adapters",
            _ => "",
        }
    }
}

/// What the models keep between steps: those that attend do, and plain ones what others do.
fn states(models: &[Model]) -> Result<States, Diagnostic> {
    let own = models.iter().filter(|model| model.part.attention == Attention::Own && !model.is_plain);
    States::of(own.map(|model| &model.graph))
}

fn models(config: &Config, options: &Options) -> Result<Vec<Model>, Diagnostic> {
    let mut all: Vec<Model> = Vec::with_capacity(options.attention.len());
    for &attention in &options.attention {
        let Options { ranks, expert_ranks, stages, .. } = *options;
        let part = Part { ranks, expert_ranks, stages, attention };
        if all.iter().any(|model: &Model| model.part == part) {
            return Err(Diagnostic::new("driver::attention", format!("`{}` is named twice", named(attention))));
        }
        let verified = Some(options.buckets.each).filter(|&each| each > 1);
        let asked =
            Asked { hidden: &options.hidden, draft: options.draft.as_ref(), verified, tower: options.tower.as_ref() };
        let graph = frontend::graph_with(config, part, asked)?;
        all.push(Model { graph, part, is_draft: false, is_plain: false });
        // A row's bits depend on its kernels.
        if config.adapters.is_some() && !options.invariant {
            let plain = Config { adapters: None, ..config.clone() };
            all.push(Model {
                graph: frontend::graph_with(&plain, part, asked)?,
                part,
                is_draft: false,
                is_plain: true,
            });
        }
        if let Some(draft) = &options.draft {
            let graph = frontend::draft_graph(config, draft, part)?;
            all.push(Model { graph, part, is_draft: true, is_plain: false });
        }
    }
    match all.is_empty() {
        true => Err(Diagnostic::new("driver::attention", "nobody is named to attend").help("--attention own")),
        false => Ok(all),
    }
}

/// What there is a plan for: each model in each bucket that it takes.
fn steps<'a>(models: &'a [Model], buckets: &'a [Bucket]) -> impl Iterator<Item = (&'a Model, Bucket)> {
    let all = models.iter().flat_map(move |model| buckets.iter().map(move |&bucket| (model, bucket)));
    all.filter(|(model, bucket)| model.takes(bucket))
}

fn named(attention: Attention) -> &'static str {
    match attention {
        Attention::Own => "own",
        Attention::Caller => "caller",
    }
}

/// One target: its plans, which number kernels and weights, and the code of each of its variants,
/// which is added to `code`.
fn target(
    (name, archs): (&str, &[Arch]),
    models: &[Model],
    (buckets, options): (&[Bucket], &Options),
    code: &mut Vec<Vec<u8>>,
    step: &mut dyn FnMut(String),
) -> Result<Target, Diagnostic> {
    let (mut kernels, mut weights, states) = (Kernels::new(options.invariant), Weights::default(), states(models)?);
    let mut plans: Vec<Plan> = Vec::with_capacity(buckets.len());
    let mut hidden: Vec<Hidden> = Vec::with_capacity(buckets.len());
    let places = drafts::Places::of(models, buckets, (&archs[0], options))?;
    let mut parts = Parts { states: &states, kernels: &mut kernels, weights: &mut weights };
    for (model, bucket) in steps(models, buckets) {
        step(format!("{name}, {bucket}{}", model.meaning()));
        let cx = Cx { arch: &archs[0], bucket, invariant: options.invariant };
        let graph = lower(&model.graph, &cx, None)?;
        let kind = Kind { attention: model.part.attention, draft: model.is_draft, places };
        let (plan, rows) = launches::plan(&graph, kind, &cx, &mut parts)?;
        plans.push(plan);
        hidden.extend(rows);
    }
    if options.invariant {
        let own: Vec<Plan> = plans.iter().filter(|plan| !plan.draft).cloned().collect();
        check_same_kernels((name, archs), &own, &kernels)?;
    }
    let mut variants = Vec::with_capacity(archs.len());
    for arch in archs {
        step(format!("{}, {} kernels", arch.name, kernels.count()));
        let specs = kernels.specs().into_iter().map(|spec| choose(spec, arch, options.choice));
        let specs: Vec<KernelSpec> = specs.collect::<Result<_, _>>()?;
        let (object, hosted) = atomc_targets::compile_hosted(&specs, options.ranks.max(options.expert_ranks), arch)?;
        code.push(object.code);
        variants.push(variant(arch, code.len(), object.kernels, hosted));
    }
    let (groups, layout) = (states.groups(&archs[0]), layout(&archs[0].memory));
    // All plans have the same rows, and share a buffer that holds those of the largest.
    let hidden = hidden.into_iter().max_by_key(|rows| rows.bytes).unwrap_or(NO_ROWS);
    let given = models.first().and_then(|model| tower::given(&model.graph, buckets, &archs[0].memory));
    let (hidden, draft) = drafts::rows(hidden, places, options)?;
    let (weights, kernels, states) = (weights.list, kernels.defs(), states.list);
    let (name, invariant) = (name.into(), options.invariant);
    Ok(Target { name, invariant, layout, weights, states, groups, hidden, draft, given, kernels, variants, plans })
}

/// The rows between bodies and heads where no plan has a head.
const NO_ROWS: Hidden = Hidden { dtype: DType::F32, width: 1, stride: 1, bytes: 0 };

/// The kernel with one of the choices that its schedule leaves open.
fn choose<'a>(spec: KernelSpec<'a>, arch: &Arch, choice: Option<usize>) -> Result<KernelSpec<'a>, Diagnostic> {
    let Some(n) = choice else { return Ok(spec) };
    let choice = atomc_targets::open(&spec, arch)?.map(|(_, all)| all[n % all.len()].clone());
    Ok(KernelSpec { choice, ..spec })
}

/// Each kernel of a model on an arch: its symbol, its class, and how it may be varied.
pub fn open_choices(config: &Config, options: &Options, arch: &Arch) -> Result<Vec<OpenChoices>, Diagnostic> {
    let mut all = vec![];
    let kernels = kernels(config, options, arch)?;
    for spec in kernels.specs() {
        if let Some((class, choices)) = atomc_targets::open(&spec, arch)? {
            all.push(OpenChoices { symbol: spec.symbol, class, choices });
        }
    }
    Ok(all)
}

/// Each kernel of a model on an arch, before it is emitted.
pub fn kernels(config: &Config, options: &Options, arch: &Arch) -> Result<Kernels, Diagnostic> {
    Ok(planned(config, options, arch)?.0)
}

/// The weight plan of a model on an arch. No kernel is emitted.
pub fn weights(config: &Config, options: &Options, arch: &Arch) -> Result<Vec<Weight>, Diagnostic> {
    Ok(planned(config, options, arch)?.1.list)
}

fn planned(config: &Config, options: &Options, arch: &Arch) -> Result<(Kernels, Weights), Diagnostic> {
    check_cache(config, &options.attention, arch)?;
    let (mut kernels, mut weights) = (Kernels::new(options.invariant), Weights::default());
    let models = models(config, options)?;
    let (states, buckets) = (states(&models)?, buckets(&options.buckets)?);
    let places = drafts::Places::of(&models, &buckets, (arch, options))?;
    let mut parts = Parts { states: &states, kernels: &mut kernels, weights: &mut weights };
    for (model, bucket) in steps(&models, &buckets) {
        let cx = Cx { arch, bucket, invariant: options.invariant };
        let graph = lower(&model.graph, &cx, None)?;
        let kind = Kind { attention: model.part.attention, draft: model.is_draft, places };
        launches::plan(&graph, kind, &cx, &mut parts)?;
    }
    Ok((kernels, weights))
}

/// A kernel with numbers that its schedule leaves open.
#[derive(Clone, Debug)]
pub struct OpenChoices {
    pub symbol: String,
    pub class: Class,
    pub choices: Vec<Choice>,
}

/// The model's graph after the passes, or after those up to and with `until`.
pub fn lower(model: &Graph, cx: &Cx, until: Option<&str>) -> Result<Graph, Diagnostic> {
    let _span = tracing::debug_span!("lower", bucket = %cx.bucket, arch = cx.arch.name).entered();
    let mut graph = model.clone();
    atomc_passes::run(&mut graph, cx, until, &mut |_, _| ())?;
    Ok(graph)
}

/// The kernels of one bucket as text.
pub fn text(config: &Config, cx: &Cx, form: atomc_targets::Form) -> Result<String, Diagnostic> {
    check_cache(config, &[Attention::Own], cx.arch)?;
    let model = frontend::graph(config)?;
    let (graph, states) = (lower(&model, cx, None)?, States::of([&model])?);
    let (mut kernels, mut weights) = (Kernels::new(cx.invariant), Weights::default());
    let mut parts = Parts { states: &states, kernels: &mut kernels, weights: &mut weights };
    launches::plan(&graph, Kind { attention: Attention::Own, draft: false, places: None }, cx, &mut parts)?;
    atomc_targets::text(&kernels.specs(), cx.arch, form)
}

fn buckets(options: &BucketOptions) -> Result<Vec<Bucket>, Diagnostic> {
    let bound = |what: &str, size: usize, most: usize| {
        let message = || format!("{what} of {size} tokens: {most} is the most");
        if size > most { Err(Diagnostic::new("driver::bucket", message())) } else { Ok(()) }
    };
    bound("a decode bucket", options.decode.iter().copied().max().unwrap_or(0), MAX_DECODE)?;
    bound("a step", options.tokens, MAX_STEP)?;
    atomc_passes::buckets(options)
}

/// Each target with its arch rows.
fn unique(names: &[String]) -> Result<Vec<(String, &'static [Arch])>, Diagnostic> {
    let mut all: Vec<(String, &'static [Arch])> = Vec::with_capacity(names.len());
    for name in names {
        let archs = atomc_targets::variants(name)?;
        if all.iter().any(|(other, _)| other == name) {
            return Err(Diagnostic::new("target::twice", format!("target `{name}` is named twice")));
        }
        all.push((name.clone(), archs));
    }
    match all.is_empty() {
        true => Err(Diagnostic::new("target::none", "no target is named").help("--target host")),
        false => Ok(all),
    }
}

fn variant(arch: &Arch, section: usize, kernels: Vec<manifest::Kernel>, hosted: Option<Hosted>) -> Variant {
    let exchange = hosted.as_ref().and_then(|hosted| hosted.exchange.clone());
    let (prepare, pack) = hosted.map(|hosted| (hosted.prepare, hosted.pack)).unzip();
    Variant {
        name: arch.name.into(),
        features: arch.features.iter().map(|f| f.to_string()).collect(),
        chip: chip(arch),
        executed: arch.executed,
        section,
        kernels,
        prepare,
        pack,
        exchange,
    }
}

fn chip(arch: &Arch) -> Option<Chip> {
    let Machine::Simt(simt) = &arch.machine else { return None };
    let atomc_ir::arch::Chip { name, bandwidth, bf16, .. } = simt.chip;
    // Nothing is known of a chip that is not announced.
    (bandwidth > 0.0 && bf16 > 0.0).then(|| Chip { name: name.into(), bandwidth: bandwidth * 1e9, flops: bf16 * 1e12 })
}

fn facts(config: &Config) -> manifest::Model {
    manifest::Model {
        architecture: config.architecture.into(),
        layers: config.layers.len(),
        hidden: config.hidden,
        vocab: config.vocab,
        max_positions: config.context,
        stop: config.stop.clone(),
        bos: config.bos,
    }
}

/// Names of tensors in checkpoints of the model, and of its draft, other than those of the plan.
pub fn tensor_names(config: &Config, draft: Option<&Draft>) -> TensorNames {
    let renamed = config.spellings.iter().map(|&(from, to)| Renamed { from: from.into(), to: to.into() });
    let other = |other: &OtherPart| Ignored { part: other.part.into(), names: Pattern::Begin(other.begins.clone()) };
    let table = Ignored { part: "table of the rotary embedding".into(), names: Pattern::End(TABLE.into()) };
    let tied = config.tied.then(|| Tied { embedding: frontend::embedding(config), head: frontend::HEAD.into() });
    let others = draft.map_or_else(|| config.others.clone(), |draft| draft.others(config));
    TensorNames { renamed: renamed.collect(), ignored: others.iter().map(other).chain([table]).collect(), tied }
}

fn layout(memory: &Memory) -> DataLayout {
    let Memory { row, alias, rows, panel, group_bytes, block_tokens, align } = *memory;
    DataLayout { row, alias, rows, panel, group_bytes, block_tokens, align }
}

/// Everything that shaped the artifact: its hash is the key.
fn echo(
    config: &Config,
    options: &Options,
    buckets: &[Bucket],
    targets: &[(String, &[Arch])],
) -> Result<serde_json::Value, Diagnostic> {
    let mut echo = json!({
        "model": config.echo(),
        "targets": options.targets,
        "tensor_parallel": options.ranks,
        "attention": options.attention,
        "buckets": buckets.iter().map(Bucket::to_string).collect::<Vec<_>>(),
    });
    // What was there before the option has the key that it had.
    if !options.hidden.is_empty() {
        echo["hidden"] = json!(options.hidden);
    }
    if options.expert_ranks > 1 {
        echo["expert_parallel"] = json!(options.expert_ranks);
    }
    if options.stages > 1 {
        echo["pipeline_parallel"] = json!(options.stages);
    }
    if let Some(Adapters { slots, rank }) = config.adapters {
        echo["adapters"] = json!({ "slots": slots, "rank": rank });
    }
    if let Some(draft) = &options.draft {
        echo["draft"] = draft.echo();
    }
    if let Some(vision) = &options.tower {
        echo["tower"] = vision.echo();
        echo["patches"] = json!(options.patches);
    }
    if options.invariant {
        echo["invariant"] = json!(true);
    }
    if let Some(choice) = options.choice {
        echo["choice"] = json!(choice);
    }
    for arch in targets.iter().flat_map(|(_, archs)| *archs) {
        if let Some(release) = atomc_targets::assembler(arch)? {
            echo["ptxas"] = release.into();
        }
    }
    // Programs differ in whether they keep the order of fields.
    echo.sort_all_objects();
    Ok(echo)
}

#[cfg(test)]
mod tests;
