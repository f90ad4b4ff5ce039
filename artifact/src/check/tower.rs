//! A tower: a model of its own, with one kind of plan, and what steps are given that take its rows.
use super::{Checked, below, bytes, check_target, count, ensure, model, name, product, stages, states, weights};
use crate::manifest::*;

/// Most patches of a side, pixels of a patch's side, and the like.
const MAX_SIDE: usize = 1 << 16;

/// Checks a tower, and gives its targets.
pub(super) fn tower<'t>(tower: &'t Tower, of: &Manifest, sections: &[usize]) -> Result<&'t [Target], crate::Error> {
    let Tiling { channels, frames, patch, merge, only, side } = tower.tiling;
    let sizes = [("channels", channels), ("frames", frames), ("patch", patch), ("merge", merge)];
    for (field, value) in
        sizes.into_iter().chain(only.map(|only| ("only", only))).chain(side.map(|side| ("side", side)))
    {
        count(value, "tower.tiling", field)?;
        ensure(value <= MAX_SIDE, &format!("tower.tiling.{field}"), || format!("{value} is more than {MAX_SIDE}"))?;
    }
    model(&tower.model)?;
    below(tower.image_token as usize, of.model.vocab, "tower", "image_token")?;
    ensure(of.devices() == 1, "tower", || "a tower of a model that devices share out".to_owned())?;
    ensure(tower.model.vocab.is_multiple_of(of.model.hidden), "tower.model.vocab", || {
        format!("{} numbers are no rows of {}", tower.model.vocab, of.model.hidden)
    })?;
    let same = tower.targets.iter().map(|target| &target.name).eq(of.targets.iter().map(|target| &target.name));
    ensure(same, "tower.targets", || "not those of the model".to_owned())?;
    for (index, target) in tower.targets.iter().enumerate() {
        let at = format!("tower.targets[{index}]");
        name(&target.name, &at, "name")?;
        states::states(target, tower.model.layers, &at)?;
        check_target(target, (&tower.model, 1), sections, &at)?;
        stages::stages(target, 1, &at)?;
        weights::shards(&target.weights, 1, &format!("{at}.weights"))?;
        let fits = |given: &Given| given.width == tower.tiling.numbers() && given.taps.is_some() == side.is_some();
        ensure(target.given.as_ref().is_some_and(fits), &format!("{at}.given"), || "not a patch".to_owned())?;
        let whole = |plan: &Plan| plan.kind == PlanKind::Whole && !plan.draft && plan.attention == Attention::Own;
        ensure(target.plans.iter().all(whole) && !target.plans.is_empty(), &format!("{at}.plans"), || {
            "a tower has plans of kind `whole` alone".to_owned()
        })?;
        let rows = tower.model.vocab;
        let of_model =
            of.targets[index].given.as_ref().is_some_and(|given| given.width == rows && given.taps.is_none());
        ensure(of_model, &format!("targets[{index}].given"), || format!("not the rows of the tower, of {rows}"))?;
    }
    Ok(&tower.targets)
}

/// Checks that rows which steps are given can be counted.
pub(super) fn given(target: &Target, at: &str) -> Checked {
    let Some(Given { dtype, width, stride, rows, taps }) = target.given else { return Ok(()) };
    count(width, at, "width")?;
    ensure(stride >= width, &format!("{at}.stride"), || format!("{stride} is less than the width, {width}"))?;
    let tokens = target.plans.iter().map(|plan| plan.tokens).max().unwrap_or(0);
    ensure(rows >= tokens, &format!("{at}.rows"), || format!("{rows}, but a step has {tokens} tokens"))?;
    bytes(product(&[rows, stride, dtype.size()]).unwrap_or(usize::MAX), at, "rows")?;
    let Some(Taps { count: taps, stride }) = taps else { return Ok(()) };
    count(taps, at, "taps.count")?;
    ensure(stride >= taps, &format!("{at}.taps.stride"), || format!("{stride} is less than {taps}"))?;
    bytes(product(&[rows, stride, size_of::<f32>()]).unwrap_or(usize::MAX), at, "taps.stride")
}
