//! Kernels and their code.
use super::{Checked, MAX_COUNT, MAX_THREADS, below, bytes, count, ensure, name};
use crate::error::Error;
use crate::manifest::*;
use std::collections::BTreeSet;

/// The kernels of a target; what each takes and makes.
pub(super) fn kernels<'a>(kernels: &'a [KernelDef], at: &str) -> Result<Vec<Signature<'a>>, Error> {
    let mut symbols = BTreeSet::new();
    let mut signatures = Vec::with_capacity(kernels.len());
    for (index, kernel) in kernels.iter().enumerate() {
        let at = format!("{at}[{index}]");
        name(&kernel.symbol, &at, "symbol")?;
        ensure(symbols.insert(&kernel.symbol), &format!("{at}.symbol"), || {
            format!("`{}` appears twice", kernel.symbol)
        })?;
        count(kernel.tokens, &at, "tokens")?;
        let fault =
            || Error::Manifest { at: format!("{at}.body"), detail: "no graph with operands and results".into() };
        signatures.push(Signature::of(&kernel.body).ok_or_else(fault)?);
    }
    Ok(signatures)
}

pub(super) fn variant(variant: &Variant, kernels: usize, sections: &[usize], at: &str) -> Checked {
    below(variant.section, sections.len(), at, "section")?;
    ensure(variant.section != 0, &format!("{at}.section"), || "section 0 is the manifest, not code".to_owned())?;
    ensure(variant.kernels.len() == kernels, &format!("{at}.kernels"), || {
        format!("{} kernels, but the target has {kernels}", variant.kernels.len())
    })?;
    for (index, item) in variant.kernels.iter().enumerate() {
        kernel(item, sections[variant.section], &format!("{at}.kernels[{index}]"))?;
    }
    let hosted = [("prepare", &variant.prepare), ("pack", &variant.pack), ("exchange", &variant.exchange)];
    hosted.into_iter().try_for_each(|(name, item)| {
        item.iter().try_for_each(|item| kernel(item, sections[variant.section], &format!("{at}.{name}")))
    })
}

fn kernel(kernel: &Kernel, section: usize, at: &str) -> Checked {
    name(&kernel.schedule, at, "schedule")?;
    bytes(kernel.scratch, at, "scratch")?;
    bytes(kernel.workspace, at, "workspace")?;
    bytes(kernel.shared, at, "shared")?;
    if let Some(resources) = &kernel.resources {
        let spills = [("vgpr_spills", resources.vgpr_spills), ("sgpr_spills", resources.sgpr_spills)];
        spills.into_iter().try_for_each(|(field, spills)| {
            ensure(spills <= MAX_COUNT, &format!("{at}.resources.{field}"), || {
                format!("{spills} is more than {MAX_COUNT}")
            })
        })?;
    }
    if let Some(own) = &kernel.module {
        module(own, section, &format!("{at}.module"))?;
    }
    ensure(kernel.together > 0, &format!("{at}.together"), || "a launch of no work-groups".into())?;
    ensure(kernel.rate > 0, &format!("{at}.rate"), || "operations that take no time".into())?;
    ensure(kernel.threads <= MAX_THREADS, &format!("{at}.threads"), || {
        format!("{} work-items are more than a work-group's {MAX_THREADS}", kernel.threads)
    })?;
    match kernel.tasks {
        Tasks::Fixed(n) => count(n, at, "tasks.fixed"),
        Tasks::Tiles { times } => count(times, at, "tasks.times"),
        Tasks::Choices { choices, per, times } => {
            count(choices, at, "tasks.choices")?;
            count(per, at, "tasks.per")?;
            count(times, at, "tasks.times")
        }
        Tasks::Blocks { choices, experts, tile, times } => {
            count(choices, at, "tasks.choices")?;
            count(experts, at, "tasks.experts")?;
            count(tile, at, "tasks.tile")?;
            count(times, at, "tasks.times")
        }
        Tasks::Tokens { per, times } | Tasks::Rows { per, times } => {
            count(per, at, "tasks.per")?;
            count(times, at, "tasks.times")
        }
        Tasks::Shared { few, limit: _, many } => [few, many].into_iter().try_for_each(|parts| {
            count(parts.per, at, "tasks.per")?;
            count(parts.times, at, "tasks.times")?;
            count(parts.splits, at, "tasks.splits")?;
            count(parts.most, at, "tasks.most")
        }),
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
