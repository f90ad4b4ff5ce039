//! What must hold inside a manifest for a loader to follow it blindly: indices in range, offsets inside their buffer,
//! shapes that agree with sizes. Every fault names its field as a path, e.g. `targets[0].plans[2].launches[7].kernel`.
use crate::error::Error;
use crate::manifest::*;
use std::collections::BTreeSet;

/// No buffer of a manifest may be larger: sums of a few of them cannot overflow.
const MAX_BYTES: usize = 1 << 48;
/// No count (tokens, tasks, vocabulary, positions) may be larger: kernels compute with 32-bit token numbers.
const MAX_COUNT: usize = 1 << 30;
/// Longest name: those of a target, a variant and a kernel, with their endings, make one file name of at most 255 bytes.
const MAX_NAME: usize = 64;
/// Most work-items in a work-group, on every GPU there is.
const MAX_THREADS: usize = 1024;

type Checked = Result<(), Error>;

/// Checks a manifest of a file with sections of these sizes, the manifest's own among them.
pub fn manifest(manifest: &Manifest, sections: &[usize]) -> Checked {
    model(&manifest.model)?;
    ensure((1..=MAX_COUNT).contains(&manifest.tensor_parallel), "tensor_parallel", || {
        format!("{} is not between 1 and {MAX_COUNT}", manifest.tensor_parallel)
    })?;
    let (vocab, ranks) = (manifest.model.vocab, manifest.tensor_parallel);
    // Logits that a rank may have.
    let widths = if vocab.is_multiple_of(ranks) { [vocab, vocab / ranks] } else { [vocab; 2] };
    let mut names = BTreeSet::new();
    for (index, target) in manifest.targets.iter().enumerate() {
        let at = format!("targets[{index}]");
        name(&target.name, &at, "name")?;
        ensure(names.insert(&target.name), &at, || format!("name: `{}` appears twice", target.name))?;
        check_target(target, &widths, sections, &at)?;
        complete(target, ranks, &format!("{at}.plans"))?;
    }
    Ok(())
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
    count(model.max_positions, "model", "max_positions")
}

fn weight(weight: &Weight, at: &str) -> Checked {
    ensure(matches!(weight.dtype, DType::F32 | DType::F16 | DType::BF16), &format!("{at}.dtype"), || {
        format!("{:?} is not a type for weights: f32, f16, bf16", weight.dtype)
    })?;
    let shape = &weight.shape;
    ensure(matches!(shape.len(), 1 | 2) && !shape.contains(&0), &format!("{at}.shape"), || {
        format!("{shape:?} is not one or two sizes of at least 1")
    })?;
    bytes(weight.bytes, at, "bytes")?;
    layout(weight, at)?;
    let found = expr_shape(&weight.expr, &format!("{at}.expr"))?;
    ensure(found == *shape, &format!("{at}.expr"), || format!("makes shape {found:?}, but the weight has {shape:?}"))
}

fn layout(weight: &Weight, at: &str) -> Checked {
    let (rows, cols) = weight.rows_cols();
    let elements = match weight.layout {
        Layout::Rows { stride } => {
            ensure(rows == 1 || stride >= cols, &format!("{at}.layout.stride"), || {
                format!("{stride} is less than the {cols} columns")
            })?;
            (rows - 1).checked_mul(stride).and_then(|before| before.checked_add(cols))
        }
        Layout::Panels { width, group, rows: padded_rows, cols: padded_cols } => {
            let whole = width >= 1
                && group >= 1
                && padded_rows >= rows
                && padded_cols >= cols
                && padded_rows.is_multiple_of(width)
                && padded_cols.is_multiple_of(group);
            ensure(whole, &format!("{at}.layout"), || {
                format!(
                    "{padded_rows} by {padded_cols} is not a whole number of panels of {width} rows and groups of \
                     {group} columns that hold {rows} by {cols}"
                )
            })?;
            padded_rows.checked_mul(padded_cols)
        }
    };
    let need = elements.and_then(|elements| elements.checked_mul(weight.dtype.size()));
    ensure(need.is_some_and(|need| need <= weight.bytes), &format!("{at}.bytes"), || {
        format!("{} bytes do not hold the layout {:?}", weight.bytes, weight.layout)
    })
}

/// The shape of an expression, once its parts fit each other.
fn expr_shape(expr: &WeightExpr, at: &str) -> Result<Vec<usize>, Error> {
    match expr {
        WeightExpr::Tensor { name, shape } => {
            ensure(!name.is_empty(), at, || "a tensor without a name".to_owned())?;
            let sound = matches!(shape.len(), 1 | 2) && product(shape).is_some_and(|n| (1..=MAX_BYTES).contains(&n));
            ensure(sound, at, || format!("{shape:?} is not one or two sizes of at least 1"))?;
            Ok(shape.clone())
        }
        WeightExpr::Concat { axis, parts } => concat_shape(*axis, parts, at),
        WeightExpr::Slice { axis, start, len, of } => {
            let mut shape = expr_shape(of, &format!("{at}.slice.of"))?;
            below(*axis, shape.len(), at, "slice.axis")?;
            let fits = *len >= 1 && start.checked_add(*len).is_some_and(|end| end <= shape[*axis]);
            ensure(fits, &format!("{at}.slice"), || {
                format!("{len} from {start} on do not lie in axis {axis} of {shape:?}")
            })?;
            shape[*axis] = *len;
            Ok(shape)
        }
        WeightExpr::Shard { axis, parts, of } => {
            let mut shape = expr_shape(of, &format!("{at}.shard.of"))?;
            below(*axis, shape.len(), at, "shard.axis")?;
            ensure(*parts >= 1 && shape[*axis].is_multiple_of(*parts), &format!("{at}.shard.parts"), || {
                format!("{parts} equal parts are not to be had of axis {axis} of {shape:?}")
            })?;
            shape[*axis] /= parts;
            Ok(shape)
        }
        WeightExpr::Const { values } => {
            ensure(!values.is_empty(), at, || "a constant without values".to_owned())?;
            Ok(vec![values.len()])
        }
    }
}

fn concat_shape(axis: usize, parts: &[WeightExpr], at: &str) -> Result<Vec<usize>, Error> {
    let mut whole: Option<Vec<usize>> = None;
    for (index, part) in parts.iter().enumerate() {
        let at = format!("{at}.concat.parts[{index}]");
        let shape = expr_shape(part, &at)?;
        below(axis, shape.len(), &at, "axis")?;
        let Some(whole) = &mut whole else {
            whole = Some(shape);
            continue;
        };
        let alike = shape.len() == whole.len() && (0..shape.len()).all(|i| i == axis || shape[i] == whole[i]);
        ensure(alike, &at, || format!("shape {shape:?} does not join {whole:?} along axis {axis}"))?;
        whole[axis] = whole[axis].saturating_add(shape[axis]);
        ensure(product(whole).is_some_and(|n| n <= MAX_BYTES), &at, || format!("{whole:?} is too large"))?;
    }
    whole.ok_or_else(|| Error::Manifest { at: at.to_owned(), detail: "concat of nothing".to_owned() })
}

fn cache(cache: &CacheSpec, at: &str) -> Checked {
    count(cache.block_tokens, at, "block_tokens")?;
    let block = product(&[cache.block_tokens, cache.heads, cache.head_dim, cache.dtype.size()]);
    bytes(cache.block_bytes, at, "block_bytes")?;
    for (field, value) in
        [("v_offset", cache.v_offset), ("block_bytes", cache.block_bytes.saturating_sub(cache.v_offset))]
    {
        ensure(block.is_some_and(|need| need <= value), &format!("{at}.{field}"), || {
            format!("{value} bytes do not hold {} tokens of {} heads", cache.block_tokens, cache.heads)
        })?;
    }
    Ok(())
}

fn data_layout(layout: &DataLayout, at: &str) -> Checked {
    let DataLayout { row, alias, rows, panel, group_bytes, align } = *layout;
    let fields = [("row", row), ("rows", rows), ("panel", panel), ("align", align)];
    fields.into_iter().try_for_each(|(field, value)| count(value, at, field))?;
    // As large as can be where no distance between rows is a bad one.
    ensure(alias >= 1, &format!("{at}.alias"), || "0 elements".to_owned())?;
    ensure(group_bytes >= 4 && group_bytes.is_multiple_of(4), &format!("{at}.group_bytes"), || {
        format!("{group_bytes} is no multiple of the largest element, 4")
    })
}

fn check_target(target: &Target, widths: &[usize], sections: &[usize], at: &str) -> Checked {
    for (index, item) in target.weights.iter().enumerate() {
        weight(item, &format!("{at}.weights[{index}]"))?;
    }
    data_layout(&target.layout, &format!("{at}.layout"))?;
    cache(&target.cache, &format!("{at}.cache"))?;
    hidden(target, &format!("{at}.hidden"))?;
    kernels(&target.kernels, &format!("{at}.kernels"))?;
    ensure(!target.variants.is_empty(), &format!("{at}.variants"), || "a target without code".to_owned())?;
    let mut names = BTreeSet::new();
    for (index, item) in target.variants.iter().enumerate() {
        let at = format!("{at}.variants[{index}]");
        name(&item.name, &at, "name")?;
        ensure(names.insert(&item.name), &at, || format!("name: `{}` appears twice", item.name))?;
        variant(item, target.kernels.len(), sections, &at)?;
    }
    for (index, item) in target.plans.iter().enumerate() {
        plan(item, target, widths, &format!("{at}.plans[{index}]"))?;
    }
    Ok(())
}

/// That there are plans for whatever a step may be: for whoever attends, and for an engine if it can run the model.
fn complete(target: &Target, ranks: usize, at: &str) -> Checked {
    let has = |kind, attention| target.plans.iter().any(|p| p.kind == kind && p.attention == attention);
    let any = target.plans.iter().all(|plan| has(PlanKind::Any, plan.attention)) && !target.plans.is_empty();
    ensure(any, at, || "no plan of kind `any`, which every target needs".to_owned())?;
    let alone = ranks == 1 && has(PlanKind::Any, Attention::Own);
    ensure(!alone || has(PlanKind::Whole, Attention::Own), at, || {
        "no plan of kind `whole`, which an engine needs".to_owned()
    })
}

fn hidden(target: &Target, at: &str) -> Checked {
    let Hidden { dtype, width, stride, bytes: size } = target.hidden;
    count(width, at, "width")?;
    ensure(stride >= width, &format!("{at}.stride"), || format!("{stride} is less than the width, {width}"))?;
    bytes(size, at, "bytes")?;
    let tokens = target.plans.iter().map(|plan| plan.tokens).max().unwrap_or(0);
    let need = product(&[tokens, stride, dtype.size()]);
    ensure(need.is_some_and(|need| need <= size), &format!("{at}.bytes"), || {
        format!("{size} bytes do not hold {tokens} rows of {stride}")
    })
}

fn kernels(kernels: &[KernelDef], at: &str) -> Checked {
    let mut symbols = BTreeSet::new();
    for (index, kernel) in kernels.iter().enumerate() {
        let at = format!("{at}[{index}]");
        name(&kernel.symbol, &at, "symbol")?;
        ensure(symbols.insert(&kernel.symbol), &format!("{at}.symbol"), || {
            format!("`{}` appears twice", kernel.symbol)
        })?;
        count(kernel.tokens, &at, "tokens")?;
    }
    Ok(())
}

fn variant(variant: &Variant, kernels: usize, sections: &[usize], at: &str) -> Checked {
    below(variant.section, sections.len(), at, "section")?;
    ensure(variant.section != 0, &format!("{at}.section"), || "section 0 is the manifest, not code".to_owned())?;
    ensure(variant.kernels.len() == kernels, &format!("{at}.kernels"), || {
        format!("{} kernels, but the target has {kernels}", variant.kernels.len())
    })?;
    for (index, item) in variant.kernels.iter().enumerate() {
        kernel(item, sections[variant.section], &format!("{at}.kernels[{index}]"))?;
    }
    variant.prepare.iter().try_for_each(|item| kernel(item, sections[variant.section], &format!("{at}.prepare")))
}

fn kernel(kernel: &Kernel, section: usize, at: &str) -> Checked {
    bytes(kernel.scratch, at, "scratch")?;
    bytes(kernel.workspace, at, "workspace")?;
    bytes(kernel.shared, at, "shared")?;
    if let Some(own) = &kernel.module {
        module(own, section, &format!("{at}.module"))?;
    }
    ensure(kernel.threads <= MAX_THREADS, &format!("{at}.threads"), || {
        format!("{} work-items are more than a work-group's {MAX_THREADS}", kernel.threads)
    })?;
    match kernel.tasks {
        Tasks::Fixed { count: n } => count(n, at, "tasks.count"),
        Tasks::Tiles { times } => count(times, at, "tasks.times"),
        Tasks::Tokens { per, times } | Tasks::Rows { per, times } => {
            count(per, at, "tasks.per")?;
            count(times, at, "tasks.times")
        }
    }
}

fn module(module: &Module, section: usize, at: &str) -> Checked {
    let parts = [("ptx", Some(module.ptx)), ("cubin", module.cubin)];
    parts.into_iter().filter_map(|(field, part)| Some((field, part?))).try_for_each(|(field, part)| {
        let sound = part.bytes >= 1 && part.start.checked_add(part.bytes).is_some_and(|end| end <= section);
        ensure(sound, &format!("{at}.{field}"), || {
            format!("{} bytes at byte {} do not lie in a section of {section} bytes", part.bytes, part.start)
        })
    })
}

fn plan(plan: &Plan, target: &Target, widths: &[usize], at: &str) -> Checked {
    count(plan.tokens, at, "tokens")?;
    count(plan.rows, at, "rows")?;
    bytes(plan.arena_bytes, at, "arena_bytes")?;
    logits(plan, widths, at)?;
    picks(plan, at)?;
    calls(plan, target, at)?;
    let (is_whole, launches) = (plan.kind == PlanKind::Whole, plan.launches.len());
    ensure(!is_whole || plan.body == launches, &format!("{at}.body"), || {
        format!("launch {}, but a whole step has no head: its body is {launches} launches", plan.body)
    })?;
    ensure(!is_whole || plan.attention == Attention::Own, &format!("{at}.attention"), || {
        "a whole step leaves nothing to its caller".to_owned()
    })?;
    for (index, launch) in plan.launches.iter().enumerate() {
        let at = format!("{at}.launches[{index}]");
        below(launch.kernel, target.kernels.len(), &at, "kernel")?;
        for (index, arg) in launch.args.iter().enumerate() {
            let at = format!("{at}.args[{index}]");
            match *arg {
                Arg::Arena { offset } => ensure(offset < plan.arena_bytes, &format!("{at}.offset"), || {
                    format!("byte {offset}, but the arena has {} bytes", plan.arena_bytes)
                })?,
                Arg::Weight { index } => below(index, target.weights.len(), &at, "index")?,
                Arg::CacheK { layer } | Arg::CacheV { layer } => below(layer, target.cache.layers, &at, "layer")?,
                Arg::Hidden => ensure(!is_whole, &at, || "a whole step has no hidden rows".to_owned())?,
                Arg::Input { .. } => {}
            }
        }
    }
    Ok(())
}

fn calls(plan: &Plan, target: &Target, at: &str) -> Checked {
    let launches = plan.launches.len();
    ensure(plan.body <= launches, &format!("{at}.body"), || format!("launch {}, but there are {launches}", plan.body))?;
    let mut last = 0;
    for (index, call) in plan.calls.iter().enumerate() {
        let at = format!("{at}.calls[{index}]");
        // The head is run by itself, so that nothing can be due in it.
        ensure((last..=plan.body).contains(&call.before), &format!("{at}.before"), || {
            format!(
                "{} is not between {last}, where the call before it is, and the body's end, {}",
                call.before, plan.body
            )
        })?;
        last = call.before;
        match call.work {
            Work::Embedding { value } => place(value, plan, &format!("{at}.work.embedding.value"))?,
            Work::AllReduce { value } => place(value, plan, &format!("{at}.work.all_reduce.value"))?,
            Work::Attention { layer, q, k, v, out, .. } => {
                let at = format!("{at}.work.attention");
                ensure(plan.attention == Attention::Caller, &at, || "in a plan that attends itself".to_owned())?;
                below(layer, target.cache.layers, &at, "layer")?;
                let places = [("q", q), ("k", k), ("v", v), ("out", out)];
                places.into_iter().try_for_each(|(field, value)| place(value, plan, &format!("{at}.{field}")))?;
            }
        }
    }
    Ok(())
}

fn place(place: Place, plan: &Plan, at: &str) -> Checked {
    let Place { offset, width, stride, dtype } = place;
    count(width, at, "width")?;
    ensure(stride >= width, &format!("{at}.stride"), || format!("{stride} is less than the width, {width}"))?;
    ensure(offset.is_multiple_of(dtype.size()), &format!("{at}.offset"), || {
        format!("{offset} is not a multiple of {}", dtype.size())
    })?;
    let end = product(&[plan.tokens, stride, dtype.size()]).and_then(|size| size.checked_add(offset));
    ensure(end.is_some_and(|end| end <= plan.arena_bytes), at, || {
        format!(
            "{} rows of {stride} at byte {offset} do not lie in an arena of {} bytes",
            plan.tokens, plan.arena_bytes
        )
    })
}

fn logits(plan: &Plan, widths: &[usize], at: &str) -> Checked {
    let Logits { offset, width, stride } = plan.logits;
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

#[cfg(test)]
mod tests;
