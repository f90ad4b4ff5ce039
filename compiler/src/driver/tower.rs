//! The tower of an artifact: a model of its own, with plans for steps of patches, beside the
//! targets of the language part.
use atomc_artifact::check::MAX_STEP;
use atomc_artifact::manifest::{
    self, Attention, Given, Ignored, Pattern, Renamed, Taps, Target, TensorNames, Tiling, Weight, Written,
};
use atomc_config::Vision;
use atomc_ir::arch::Memory;
use atomc_ir::{Arch, Diagnostic, Dim, Graph, Op, TensorType};
use atomc_passes::{Bucket, Cx};

use super::kernels::Kernels;
use super::launches::{self, Kind, Parts};
use super::states::States;
use super::weights::Weights;
use super::{Model, Options, PATCHES, lower, target};
use crate::frontend::tower::{GIVEN, SHARES};
use crate::frontend::{self, Config, Part};

/// Sizes of steps that have plans.
pub const BUCKETS: usize = 2;
/// How many times as large each is as the one before it.
const TIMES: usize = 4;

/// Checks that the other options leave a tower room.
pub fn check(options: &Options) -> Result<(), Diagnostic> {
    let Some(vision) = &options.tower else { return Ok(()) };
    let no = |message: String, at: &str| Err(Diagnostic::new("driver::tower", message).at(at));
    let with = |what: &str, at| no(format!("a tower with {what} is not supported yet"), at);
    let (patches, each) = (options.patches, vision.merged() * TIMES);
    let together = vision.only.filter(|_| vision.prompt.together).map(|side| side * side / vision.merged());
    if let Some(tokens) = together.filter(|&tokens| tokens > options.buckets.tokens) {
        let message = format!("steps of {} tokens: an image's {tokens} are in one step", options.buckets.tokens);
        return no(message, "--prefill");
    }
    if let Some(side) = vision.only.filter(|side| side * side > patches) {
        return no(format!("{patches} patches: every image has {}", side * side), "--patches");
    }
    match options {
        Options { draft: Some(_), .. } => with("a draft", "--draft"),
        Options { stages, ranks, expert_ranks, .. } if stages * ranks * expert_ranks > 1 => {
            with("ranks that share the model out", "--tp, --ep or --pp")
        }
        _ if options.attention != [Attention::Own] => with("a caller that attends", "--attention"),
        _ if !(each..=MAX_STEP).contains(&patches) || !patches.is_multiple_of(each) => {
            no(format!("{patches} patches: a multiple of {each}, up to {MAX_STEP}"), "--patches")
        }
        _ => Ok(()),
    }
}

/// The tower, with the code of its variants added to that of the artifact.
pub fn tower(
    (config, vision): (&Config, &Vision),
    options: &Options,
    targets: &[(String, &[Arch])],
    (code, step): (&mut Vec<Vec<u8>>, &mut dyn FnMut(String)),
) -> Result<manifest::Tower, Diagnostic> {
    let graph = frontend::tower::graph(config, vision)?;
    let model = Model { graph, part: Part::default(), is_draft: false, is_plain: false };
    let buckets = [options.patches / TIMES, options.patches].map(|tokens| bucket(vision, tokens));
    let own = Options { tower: None, invariant: false, ..options.clone() };
    let mut made: Vec<Target> = Vec::with_capacity(targets.len());
    for (name, archs) in targets {
        let step = &mut |what: String| step(format!("{what} of the tower"));
        made.push(target((name, archs), std::slice::from_ref(&model), (&buckets, &own), code, step)?);
    }
    let &Vision { channels, frames, patch, merge, only, side, image_token, prompt, .. } = vision;
    Ok(manifest::Tower {
        tiling: Tiling { channels, frames, patch, merge, only, side },
        image_token,
        lines: prompt.lines.map(|ends| ends.map(str::to_owned)),
        written: prompt.written.map(|(mark, around)| Written { mark: mark.into(), around: around.map(str::to_owned) }),
        together: prompt.together,
        model: facts((config, vision), options.patches),
        tensors: names(config, vision),
        targets: made,
    })
}

/// The weight plan of a tower on an arch, and the names of what is not its own. No kernel is
/// emitted.
pub fn weights(config: &Config, vision: &Vision, arch: &Arch) -> Result<(Vec<Weight>, TensorNames), Diagnostic> {
    let graph = frontend::tower::graph(config, vision)?;
    let (mut kernels, mut weights) = (Kernels::new(false), Weights::default());
    let states = States::of([&graph])?;
    let mut parts = Parts { states: &states, kernels: &mut kernels, weights: &mut weights };
    let cx = Cx { arch, bucket: bucket(vision, PATCHES), invariant: false };
    let kind = Kind { attention: Attention::Own, draft: false, places: None };
    launches::plan(&lower(&graph, &cx, None)?, kind, &cx, &mut parts)?;
    Ok((weights.list, names(config, vision)))
}

fn bucket(vision: &Vision, tokens: usize) -> Bucket {
    Bucket::Whole { tokens, rows: tokens / vision.merged() }
}

fn facts((config, vision): (&Config, &Vision), patches: usize) -> manifest::Model {
    manifest::Model {
        architecture: config.architecture.into(),
        layers: vision.depth,
        hidden: vision.width,
        vocab: vision.rows() * config.hidden,
        max_positions: patches,
        stop: vec![],
        bos: None,
    }
}

/// Names of all that is not the tower's.
fn names(config: &Config, vision: &Vision) -> TensorNames {
    let own: Vec<String> = [Some(vision.style.path), vision.style.projector]
        .into_iter()
        .flatten()
        .map(|path| format!("{path}."))
        .collect();
    // Files before transformers 5 have no `model.` before either part, and may since.
    let spelling = |own: &String| match own.strip_prefix("model.") {
        Some(short) => short.to_owned(),
        None => format!("model.{own}"),
    };
    let older = vision.style.older.map(|older| Renamed { from: format!("{older}."), to: own[0].clone() });
    let others = own.iter().map(|own| Renamed { from: spelling(own), to: own.clone() });
    let others: Vec<Renamed> = older.into_iter().chain(others).collect();
    let is_own = |begins: &String| own.contains(begins) || others.iter().any(|other| other.from == *begins);
    let begins = |part: &str, begins: String| Ignored { part: part.into(), names: Pattern::Begin(begins) };
    let ignored = config.others.iter().filter(|other| !is_own(&other.begins));
    let ignored = ignored.map(|other| begins(other.part, other.begins.clone()));
    let language = [format!("{}.", config.path), "lm_head.".into()].map(|name| begins("language part", name));
    let spelled = config.spellings.iter().map(|&(from, to)| Renamed { from: from.into(), to: to.into() });
    TensorNames {
        ignored: language.into_iter().chain(ignored).collect(),
        renamed: others.iter().cloned().chain(spelled).collect(),
        tied: None,
    }
}

/// The rows that the steps of a graph are given.
pub fn given(graph: &Graph, buckets: &[Bucket], memory: &Memory) -> Option<Given> {
    let input = |wanted: &str| -> Option<&TensorType> {
        let is_it = |op: &Op| matches!(op, Op::Input { name } if name == wanted);
        graph.inputs().into_iter().find(|v| is_it(graph.op(v.node))).and_then(|v| graph.ty(v).as_tensor())
    };
    let ty = input(GIVEN)?;
    let (width, tokens) = (ty.shape.row()?, buckets.iter().map(|bucket| bucket.tokens()).max()?);
    let taps = input(SHARES).and_then(|ty| match ty.shape.0[..] {
        [_, Dim::Fixed(count)] => Some(Taps { count, stride: memory.stride(count) }),
        _ => None,
    });
    let rows = tokens.next_multiple_of(memory.rows);
    Some(Given { dtype: ty.dtype, width, stride: memory.stride(width), rows, taps })
}
