//! What must hold inside a manifest for a loader to follow it blindly: indices in range, offsets
//! inside their buffer, shapes that agree with sizes. Every fault names its field as a path, e.g.
//! `targets[0].plans[2].launches[7].kernel`.
mod arguments;
mod code;
mod layout;
mod names;
mod plans;
mod stages;
mod states;
mod tower;
mod weights;

use crate::error::Error;
use crate::manifest::*;
use atomc_dtype::step::MAX_BYTES;
use std::collections::BTreeSet;

/// Most tokens, and most rows of logits, in one step: activations of a step lie in one arena.
pub const MAX_STEP: usize = 1 << 16;
/// Most ranks that share a model out: eight machines of eight GPUs, more than any model has heads
/// of keys and values for.
pub const MAX_RANKS: usize = 64;

/// No count (tokens, tasks, vocabulary, positions) may be larger: kernels compute with 32-bit token
/// numbers.
const MAX_COUNT: usize = 1 << 30;
/// Longest name: those of a target, a variant and a kernel, with their endings, make one file name
/// of at most 255 bytes.
pub const MAX_NAME: usize = 64;
/// Most layers: some ten times as many as the deepest model has.
const MAX_LAYERS: usize = 4096;
/// Most work-items in a work-group, on every GPU there is.
const MAX_THREADS: usize = 1024;

type Checked = Result<(), Error>;

/// Checks a manifest of a file with sections of these sizes, the manifest's own among them.
pub fn manifest(manifest: &Manifest, sections: &[usize]) -> Checked {
    model(&manifest.model)?;
    ensure((1..=MAX_RANKS).contains(&manifest.tensor_parallel), "tensor_parallel", || {
        format!("{} is not between 1 and {MAX_RANKS}", manifest.tensor_parallel)
    })?;
    let experts = manifest.expert_parallel;
    let fits = experts == 1 || manifest.tensor_parallel == 1 || experts == manifest.tensor_parallel;
    ensure((1..=MAX_RANKS).contains(&experts) && fits, "expert_parallel", || {
        format!(
            "{experts} is neither 1 nor tensor_parallel, {}, nor the ranks of experts alone",
            manifest.tensor_parallel
        )
    })?;
    let devices = product(&[manifest.ranks(), manifest.pipeline_parallel]);
    let known = devices.is_some_and(|devices| (1..=MAX_RANKS).contains(&devices));
    ensure(known, "pipeline_parallel", || {
        format!("{} stages of {} ranks, but {MAX_RANKS} are the most", manifest.pipeline_parallel, manifest.ranks())
    })?;
    ensure(!manifest.targets.is_empty(), "targets", || "an artifact without a target has no code".to_owned())?;
    let ranks = manifest.ranks();
    let mut names = BTreeSet::new();
    for (index, target) in manifest.targets.iter().enumerate() {
        let at = format!("targets[{index}]");
        name(&target.name, &at, "name")?;
        ensure(names.insert(&target.name), &at, || format!("name: `{}` appears twice", target.name))?;
        states::states(target, manifest.model.layers, &at)?;
        check_target(target, (&manifest.model, ranks), sections, &at)?;
        stages::stages(target, manifest.pipeline_parallel, &at)?;
        weights::shards(&target.weights, ranks, &format!("{at}.weights"))?;
        complete(target, ranks, &format!("{at}.plans"))?;
    }
    names::names(manifest)?;
    let towers = manifest.tower.as_ref().map_or(Ok(&[][..]), |tower| tower::tower(tower, manifest, sections))?;
    named(manifest.targets.iter().chain(towers), sections.len())
}

/// That every section of code is some variant's.
fn named<'a>(targets: impl Iterator<Item = &'a Target>, sections: usize) -> Checked {
    let named: BTreeSet<usize> = targets.flat_map(|target| &target.variants).map(|v| v.section).collect();
    let idle = (1..sections).find(|section| !named.contains(section));
    ensure(idle.is_none(), "targets", || format!("no variant names section {} of the file", idle.unwrap_or(0)))
}

fn ensure(holds: bool, at: &str, detail: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Error::Manifest { at: at.to_owned(), detail: detail() }) }
}

/// A number of things that must exist and can be counted.
fn count(value: usize, at: &str, field: &str) -> Checked {
    ensure((1..=MAX_COUNT).contains(&value), &format!("{at}.{field}"), || {
        format!("{value} is not between 1 and {MAX_COUNT}")
    })
}

fn bytes(value: usize, at: &str, field: &str) -> Checked {
    ensure(value <= MAX_BYTES, &format!("{at}.{field}"), || format!("{value} bytes is more than {MAX_BYTES}"))
}

fn below(index: usize, len: usize, at: &str, field: &str) -> Checked {
    ensure(index < len, &format!("{at}.{field}"), || format!("index {index}, but there are {len}"))
}

/// A name that can be a part of a file's, wherever the file may not leave its folder.
fn name(name: &str, at: &str, field: &str) -> Checked {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let sound = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) && !matches!(name, "." | "..");
    ensure(sound, &format!("{at}.{field}"), || {
        let start: String = name.chars().take(MAX_NAME).collect();
        format!("{start:?} is not a name of 1 to {MAX_NAME} of A-Z, a-z, 0-9, `_`, `.` and `-`")
    })
}

fn product(factors: &[usize]) -> Option<usize> {
    factors.iter().try_fold(1usize, |product, &factor| product.checked_mul(factor))
}

fn model(model: &Model) -> Checked {
    count(model.vocab, "model", "vocab")?;
    count(model.max_positions, "model", "max_positions")?;
    ensure((1..=MAX_LAYERS).contains(&model.layers), "model.layers", || {
        format!("{} is not between 1 and {MAX_LAYERS}", model.layers)
    })
}

fn check_target(target: &Target, model: (&Model, usize), sections: &[usize], at: &str) -> Checked {
    layout::data(&target.layout, &format!("{at}.layout"))?;
    for (index, item) in target.weights.iter().enumerate() {
        weights::weight(item, &target.layout, &format!("{at}.weights[{index}]"))?;
    }
    states::groups(target, at)?;
    hidden(target, &format!("{at}.hidden"))?;
    draft(target, &format!("{at}.draft"))?;
    tower::given(target, &format!("{at}.given"))?;
    let signatures = code::kernels(&target.kernels, &format!("{at}.kernels"))?;
    ensure(!target.variants.is_empty(), &format!("{at}.variants"), || "a target without code".to_owned())?;
    let mut names = BTreeSet::new();
    for (index, item) in target.variants.iter().enumerate() {
        let at = format!("{at}.variants[{index}]");
        name(&item.name, &at, "name")?;
        ensure(names.insert(&item.name), &at, || format!("name: `{}` appears twice", item.name))?;
        code::variant(item, target.kernels.len(), sections, &at)?;
    }
    for (index, item) in target.plans.iter().enumerate() {
        plans::plan(item, target, model, &format!("{at}.plans[{index}]"))?;
        arguments::plan(item, &signatures, &format!("{at}.plans[{index}]"))?;
    }
    Ok(())
}

/// Checks that there are plans for every step: for each value of `attention`, and for an engine if
/// it can run the model.
fn complete(target: &Target, ranks: usize, at: &str) -> Checked {
    let has = |kind, attention| target.plans.iter().any(|p| !p.draft && p.kind == kind && p.attention == attention);
    let any = target.plans.iter().all(|plan| has(PlanKind::Any, plan.attention)) && !target.plans.is_empty();
    ensure(any, at, || "no plan of kind `any`, which every target needs".to_owned())?;
    let alone = ranks == 1 && has(PlanKind::Any, Attention::Own);
    ensure(!alone || has(PlanKind::Whole, Attention::Own), at, || {
        "no plan of kind `whole`, which an engine needs".to_owned()
    })
}

/// That all rows for a draft lie in the buffer of the hidden rows.
fn draft(target: &Target, at: &str) -> Checked {
    let Some(draft) = &target.draft else { return Ok(()) };
    count(draft.vocab, at, "vocab")?;
    let DraftRows { offset, stride, model, kept, keeps } = draft.rows;
    let most = |drafts: bool, size: fn(&Plan) -> usize| {
        target.plans.iter().filter(|plan| plan.draft == drafts).map(size).max().unwrap_or(0)
    };
    let own = most(true, |plan| plan.rows) <= model;
    let models = model.checked_add(most(false, |plan| plan.tokens)).is_some_and(|end| end <= kept);
    let end = kept.checked_add(keeps).and_then(|rows| product(&[rows, stride])?.checked_add(offset));
    let fits = stride >= target.hidden.width.saturating_mul(target.hidden.dtype.size());
    let sound = own && models && fits && end.is_some_and(|end| end <= target.hidden.bytes);
    ensure(sound, &format!("{at}.rows"), || format!("they overlap, or do not fit {} bytes", target.hidden.bytes))
}

fn hidden(target: &Target, at: &str) -> Checked {
    let Hidden { dtype, width, stride, bytes: size } = target.hidden;
    count(width, at, "width")?;
    ensure(stride >= width, &format!("{at}.stride"), || format!("{stride} is less than the width, {width}"))?;
    bytes(size, at, "bytes")?;
    // A whole step has no hidden rows.
    let has_rows = target.plans.iter().filter(|plan| plan.kind != PlanKind::Whole);
    let tokens = has_rows.map(|plan| plan.tokens).max().unwrap_or(0);
    let need = product(&[tokens, stride, dtype.size()]);
    ensure(need.is_some_and(|need| need <= size), &format!("{at}.bytes"), || {
        format!("{size} bytes do not hold {tokens} rows of {stride}")
    })
}

#[cfg(test)]
mod tests;
