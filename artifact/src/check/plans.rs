//! Steps: what launches point to and what is the caller's to do lie in the buffers of their target.
use super::{Checked, MAX_STEP, below, bytes, count, ensure, product};
use crate::manifest::*;

/// Checks a plan of a model on this many ranks.
pub(super) fn plan(plan: &Plan, target: &Target, (model, ranks): (&Model, usize), at: &str) -> Checked {
    let layers = model.layers;
    for (field, value) in [("tokens", plan.tokens), ("rows", plan.rows)] {
        ensure((1..=MAX_STEP).contains(&value), &format!("{at}.{field}"), || {
            format!("{value} is not between 1 and {MAX_STEP}")
        })?;
    }
    if let PlanKind::Verify { each } = plan.kind {
        ensure(
            each > 1 && plan.tokens.is_multiple_of(each) && plan.rows == plan.tokens,
            &format!("{at}.kind"),
            || {
                format!(
                    "{each} tokens of a sequence to verify, in steps of {} tokens and {} rows",
                    plan.tokens, plan.rows
                )
            },
        )?;
    }
    bytes(plan.arena_bytes, at, "arena_bytes")?;
    match (plan.draft, &target.draft) {
        (false, _) => logits(plan, model.vocab, ranks, at)?,
        (true, Some(draft)) => logits(plan, draft.vocab, ranks, at)?,
        (true, None) => ensure(false, &format!("{at}.draft"), || "there is no draft".to_owned())?,
    }
    picks(plan, at)?;
    calls(plan, layers, at)?;
    hidden(plan, target, layers, at)?;
    let (is_whole, launches) = (plan.kind == PlanKind::Whole, plan.launches.len());
    ensure(!is_whole || plan.body == launches, &format!("{at}.body"), || {
        format!("launch {}, but a whole step has no head: its body is {launches} launches", plan.body)
    })?;
    ensure(!is_whole || plan.attention == Attention::Own, &format!("{at}.attention"), || {
        "a whole step leaves nothing to its caller".to_owned()
    })?;
    totals(plan, at)?;
    for (index, item) in plan.launches.iter().enumerate() {
        launch(item, plan, target, &format!("{at}.launches[{index}]"))?;
    }
    Ok(())
}

fn launch(launch: &Launch, plan: &Plan, target: &Target, at: &str) -> Checked {
    below(launch.kernel, target.kernels.len(), at, "kernel")?;
    if let Some(chosen) = launch.chosen {
        below(chosen.argument, launch.args.len(), at, "chosen.argument")?;
        ensure(matches!(launch.args[chosen.argument], Arg::Arena { .. }), &format!("{at}.chosen.argument"), || {
            "no value of the arena".into()
        })?;
        ensure(chosen.counted <= launch.bytes, &format!("{at}.chosen.counted"), || {
            format!("{} bytes, but the launch has {}", chosen.counted, launch.bytes)
        })?;
    }
    let mut group = None;
    for (index, arg) in launch.args.iter().enumerate() {
        let at = format!("{at}.args[{index}]");
        match *arg {
            Arg::Arena { offset } => ensure(offset < plan.arena_bytes, &format!("{at}.offset"), || {
                format!("byte {offset}, but the arena has {} bytes", plan.arena_bytes)
            })?,
            Arg::Weight { index } => below(index, target.weights.len(), &at, "index")?,
            Arg::State { state, .. } | Arg::Batch { state } => {
                below(state, target.states.len(), &at, "state")?;
                let own = target.states[state].group;
                ensure(*group.get_or_insert(own) == own, &format!("{at}.state"), || {
                    format!("of group {own}, but the launch has the table of another group")
                })?;
                stream(*arg, target, &at)?;
            }
            Arg::Hidden => ensure(plan.kind != PlanKind::Whole, &at, || "a whole step has no hidden rows".to_owned())?,
            Arg::Drafted { offset } => ensure(target.draft.is_some() && offset < target.hidden.bytes, &at, || {
                format!("byte {offset} of rows for a draft, of {} with hidden rows", target.hidden.bytes)
            })?,
            Arg::Input { which: Input::Sources } => ensure(plan.draft || target.given.is_some(), &at, || {
                "steps of the model have no rows for a draft".to_owned()
            })?,
            Arg::Input { which: Input::Times | Input::Heights | Input::Widths | Input::Ends | Input::Given } => {
                ensure(target.given.is_some(), &at, || "steps are given no rows".to_owned())?
            }
            Arg::Input { which: Input::Taps | Input::Shares } => {
                ensure(target.given.is_some_and(|given| given.taps.is_some()), &at, || "there are no taps".to_owned())?
            }
            Arg::Input { .. } => {}
        }
    }
    Ok(())
}

/// That a state has the stream. A slot is one.
fn stream(arg: Arg, target: &Target, at: &str) -> Checked {
    let Arg::State { state, stream } = arg else { return Ok(()) };
    let streams = match target.group(state) {
        StateGroup::Paged(pages) => pages.streams.len(),
        StateGroup::Slots(_) => 1,
    };
    below(stream, streams, at, "stream")
}

/// That what the launches of a step move and compute can be added up.
fn totals(plan: &Plan, at: &str) -> Checked {
    let sum = |of: fn(&Launch) -> u64| plan.launches.iter().try_fold(0u64, |sum, launch| sum.checked_add(of(launch)));
    for (field, total) in [("bytes", sum(|launch| launch.bytes)), ("flops", sum(|launch| launch.flops))] {
        ensure(total.is_some(), &format!("{at}.launches"), || {
            format!("their {field} add up to more than a number holds")
        })?;
    }
    Ok(())
}

fn calls(plan: &Plan, layers: usize, at: &str) -> Checked {
    let launches = plan.launches.len();
    ensure(plan.body <= launches, &format!("{at}.body"), || format!("launch {}, but there are {launches}", plan.body))?;
    let mut last = 0;
    for (index, call) in plan.calls.iter().enumerate() {
        let at = format!("{at}.calls[{index}]");
        // A caller runs the head by itself, so that nothing of its own can be due in it.
        let gathers = matches!(call.work, Work::AllGather { .. });
        let (first, end, what) = match gathers {
            true if plan.kind == PlanKind::Whole => (last, launches, "the last launch"),
            true => (plan.body.max(last), launches, "the last launch"),
            false => (last, plan.body, "the body's end"),
        };
        ensure((first..=end).contains(&call.before), &format!("{at}.before"), || {
            format!("{} is not between {first}, where the call before it is, and {what}, {end}", call.before)
        })?;
        last = call.before;
        match call.work {
            Work::Embedding { value } => place(value, plan, &format!("{at}.work.embedding.value"))?,
            Work::AllReduce { value, added } => {
                let at = format!("{at}.work.all_reduce");
                place(value, plan, &format!("{at}.value"))?;
                added.map_or(Ok(()), |added| {
                    place(added, plan, &format!("{at}.added"))?;
                    let fact = |place: Place| (place.width, place.stride, place.dtype);
                    ensure(fact(added) == fact(value), &format!("{at}.added"), || "not as the sum is".to_owned())
                })?;
            }
            Work::AllGather { part, whole } => gathered(plan, (part, whole), &format!("{at}.work.all_gather"))?,
            Work::HandOn { made, taken, .. } => {
                let at = format!("{at}.work.hand_on");
                place(made, plan, &format!("{at}.made"))?;
                place(taken, plan, &format!("{at}.taken"))?;
                let fact = |place: Place| (place.width, place.stride, place.dtype);
                ensure(fact(taken) == fact(made), &format!("{at}.taken"), || "not as what was made".to_owned())?;
            }
            Work::Attention { layer, heads, q, k, v, out, .. } => {
                let at = format!("{at}.work.attention");
                ensure(plan.attention == Attention::Caller, &at, || "in a plan that attends itself".to_owned())?;
                below(layer, layers, &at, "layer")?;
                count(heads, &at, "heads")?;
                let places = [("q", q), ("k", k), ("v", v), ("out", out)];
                for (field, value) in [("k", k), ("v", v)] {
                    ensure(value.width.is_multiple_of(heads), &format!("{at}.{field}.width"), || {
                        format!("{} is not a multiple of the heads, {heads}", value.width)
                    })?;
                }
                places.into_iter().try_for_each(|(field, value)| place(value, plan, &format!("{at}.{field}")))?;
            }
        }
    }
    Ok(())
}

/// That the logits of all ranks are gathered of this rank's.
fn gathered(plan: &Plan, (part, whole): (Place, Place), at: &str) -> Checked {
    let Logits { offset, width, stride } = plan.logits;
    let own = Place { offset, width, stride, dtype: DType::F32 };
    ensure(part == own, &format!("{at}.part"), || "not where the logits are".to_owned())?;
    let fits = whole.dtype == part.dtype && whole.width.is_multiple_of(part.width);
    ensure(fits, &format!("{at}.whole"), || format!("{} numbers of parts of {}", whole.width, part.width))?;
    rows_in(plan.rows, whole, plan, &format!("{at}.whole"))
}

/// That rows with a name are in the arena, and that plans with a head have the same ones.
fn hidden(plan: &Plan, target: &Target, layers: usize, at: &str) -> Checked {
    let many = plan.hidden.len();
    ensure(many <= layers, &format!("{at}.hidden"), || format!("{many} rows with a name of {layers} layers"))?;
    for (index, rows) in plan.hidden.iter().enumerate() {
        let at = format!("{at}.hidden[{index}]");
        ensure(plan.kind != PlanKind::Whole, &at, || "a whole step has no hidden rows".to_owned())?;
        super::name(&rows.name, &at, "name")?;
        let is_first = plan.hidden[..index].iter().all(|other| other.name != rows.name);
        ensure(is_first, &format!("{at}.name"), || format!("`{}` appears twice", rows.name))?;
        place(rows.place, plan, &format!("{at}.place"))?;
    }
    let fact = |rows: &NamedRows| (rows.name.clone(), rows.place.width, rows.place.dtype);
    let has_head = |plan: &Plan| plan.kind != PlanKind::Whole && !plan.draft;
    let first = target.plans.iter().find(|plan| has_head(plan));
    let same = |first: &Plan| first.hidden.iter().map(fact).eq(plan.hidden.iter().map(fact));
    let is_same = !has_head(plan) || first.is_none_or(same);
    ensure(is_same, &format!("{at}.hidden"), || {
        "other rows than those of the target's first plan with a head".to_owned()
    })
}

fn place(place: Place, plan: &Plan, at: &str) -> Checked {
    rows_in(plan.tokens, place, plan, at)
}

/// That so many rows lie in the arena.
fn rows_in(rows: usize, place: Place, plan: &Plan, at: &str) -> Checked {
    let Place { offset, width, stride, dtype } = place;
    count(width, at, "width")?;
    ensure(stride >= width, &format!("{at}.stride"), || format!("{stride} is less than the width, {width}"))?;
    ensure(offset.is_multiple_of(dtype.size()), &format!("{at}.offset"), || {
        format!("{offset} is not a multiple of {}", dtype.size())
    })?;
    let end = product(&[rows, stride, dtype.size()]).and_then(|size| size.checked_add(offset));
    ensure(end.is_some_and(|end| end <= plan.arena_bytes), at, || {
        format!("{rows} rows of {stride} at byte {offset} do not lie in an arena of {} bytes", plan.arena_bytes)
    })
}

/// Logits of a vocabulary, of which a rank may have its part alone.
fn logits(plan: &Plan, vocab: usize, ranks: usize, at: &str) -> Checked {
    let Logits { offset, width, stride } = plan.logits;
    let widths = if vocab.is_multiple_of(ranks) { [vocab, vocab / ranks] } else { [vocab; 2] };
    ensure(widths.contains(&width), &format!("{at}.logits.width"), || {
        format!("{width} is neither the vocabulary nor a rank's part of it, {widths:?}")
    })?;
    ensure(stride >= width, &format!("{at}.logits.stride"), || format!("{stride} is less than the width, {width}"))?;
    ensure(offset.is_multiple_of(size_of::<f32>()), &format!("{at}.logits.offset"), || {
        format!("{offset} is not a multiple of {}", size_of::<f32>())
    })?;
    let end = product(&[plan.rows, stride, size_of::<f32>()]).and_then(|size| size.checked_add(offset));
    ensure(end.is_some_and(|end| end <= plan.arena_bytes), &format!("{at}.logits"), || {
        format!("{} rows of {stride} at byte {offset} do not lie in an arena of {} bytes", plan.rows, plan.arena_bytes)
    })
}

fn picks(plan: &Plan, at: &str) -> Checked {
    let Some(Picks { offset, stride }) = plan.picks else { return Ok(()) };
    count(stride, &format!("{at}.picks"), "stride")?;
    ensure(offset.is_multiple_of(size_of::<i32>()), &format!("{at}.picks.offset"), || {
        format!("{offset} is not a multiple of {}", size_of::<i32>())
    })?;
    let end = product(&[plan.rows, stride, size_of::<i32>()]).and_then(|size| size.checked_add(offset));
    ensure(end.is_some_and(|end| end <= plan.arena_bytes), &format!("{at}.picks"), || {
        format!(
            "{} tokens {stride} apart at byte {offset} do not lie in an arena of {} bytes",
            plan.rows, plan.arena_bytes
        )
    })
}
