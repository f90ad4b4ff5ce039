//! The whole order, and the driver: the only place that runs, times and verifies passes.
use std::time::Instant;

use atomc_ir::results::is_hidden;
use atomc_ir::{Diagnostic, Graph, Stage};

use crate::bucket::Bucket;
use crate::pass::{Cx, Pass};
use crate::{canonicalise, cse, dce, fuse, group, merge_weights, mx_codes, narrow, pack, repeat, rewrite, split};

pub const PASSES: &[Pass] = &[
    Pass { name: "dce", stage: Stage::Model, run: dce::run },
    Pass { name: "canonicalise", stage: Stage::Model, run: canonicalise::run },
    Pass { name: "narrow", stage: Stage::Model, run: narrow::run },
    Pass { name: "cse", stage: Stage::Model, run: cse::run },
    Pass { name: "merge_weights", stage: Stage::Model, run: merge_weights::run },
    Pass { name: "rewrite", stage: Stage::Model, run: rewrite::run },
    Pass { name: "mx_codes", stage: Stage::Model, run: mx_codes::run },
    Pass { name: "pack", stage: Stage::Model, run: pack::run },
    Pass { name: "group", stage: Stage::Model, run: group::run },
    Pass { name: "repeat", stage: Stage::Model, run: repeat::run },
    Pass { name: "split", stage: Stage::Segmented, run: split::run },
    Pass { name: "fuse", stage: Stage::Fused, run: fuse::run },
];

/// Runs all passes, or those up to and with `until`, on the wanted results of a step. `observe`
/// sees the graph after each.
pub fn run(
    graph: &mut Graph,
    cx: &Cx,
    until: Option<&str>,
    observe: &mut dyn FnMut(&Pass, &Graph),
) -> Result<(), Diagnostic> {
    let end = until.map_or(Ok(PASSES.len() - 1), find)?;
    graph.verify().map_err(|e| Diagnostic::new("ir::verify", e.to_string()))?;
    // A value that a step hands out is stored by a kernel of its own, which rounds it: for bits
    // that do not depend on the step it is stored here too.
    let (whole, last) = (matches!(cx.bucket, Bucket::Whole { .. }), end == PASSES.len() - 1);
    if whole && !cx.invariant {
        drop_hidden(graph);
    }
    drive(&PASSES[..=end], graph, cx, observe)?;
    if whole && cx.invariant && last {
        drop_hidden(graph);
    }
    Ok(())
}

/// Takes hidden rows from the results: nobody reads them of a whole step.
fn drop_hidden(graph: &mut Graph) {
    let wanted = graph.results().filter(|(name, _)| !is_hidden(name)).map(|(name, v)| (name.to_string(), v));
    let wanted: Vec<_> = wanted.collect();
    graph.set_results(wanted);
}

fn drive(
    passes: &[Pass],
    graph: &mut Graph,
    cx: &Cx,
    observe: &mut dyn FnMut(&Pass, &Graph),
) -> Result<(), Diagnostic> {
    let input = graph.clone();
    for pass in passes {
        let _span = tracing::debug_span!("pass", name = pass.name).entered();
        let start = Instant::now();
        let changed = pass.apply(graph, cx)?;
        if let Err(e) = graph.verify_at(pass.stage) {
            panic!("pass `{}` for {} broke the graph: {e}\nIt began as\n{}", pass.name, cx.bucket, input.print());
        }
        tracing::debug!(pass = pass.name, bucket = %cx.bucket, ?changed, nodes = graph.len(), took = ?start.elapsed());
        observe(pass, graph);
    }
    Ok(())
}

fn find(name: &str) -> Result<usize, Diagnostic> {
    PASSES.iter().position(|p| p.name == name).ok_or_else(|| {
        let known: Vec<&str> = PASSES.iter().map(|p| p.name).collect();
        Diagnostic::new("passes::unknown-pass", format!("there is no pass `{name}`"))
            .help(format!("the passes are {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests;
