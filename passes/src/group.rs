//! Groups rows by their experts, where products have many rows. Where steps have few rows for each
//! expert, kernels look for the rows themselves. Where those kernels would read an expert's weight
//! once for each of its rows, the expected bytes decide.
//!
//! ```text
//! %2 = grouped %x, %w, %experts         %2 = group %experts {experts = 8, tile = 16}
//!                                  =>   %3 = grouped %x, %w, %2
//! ```
use std::collections::BTreeSet;

use atomc_ir::arch::Machine;
use atomc_ir::{Diagnostic, Graph, Layout, NodeId, Op, Value};

use crate::explain::{Cause, Place, Why};
use crate::ledger::{self, part_chosen};
use crate::pass::{Changed, Cx};

/// The fewest rows of a block: those of a matrix instruction.
const LEAST: usize = 16;
/// The most rows of a block: a tile of a product does not grow further.
const MOST: usize = 64;
/// Rows of a block where four waves multiply together, and the fewest rows of an expert for such
/// blocks. Fewer rows fit into tiles that have them as columns.
const WARPGROUP: usize = 128;
const WARPGROUP_LEAST: usize = 33;
/// Bytes of a row that these take at once.
const K_TILE: usize = 128;

/// Most rows of a decode step that are a tile each where four waves multiply together. Such kernels
/// read an expert's weight once for each of its rows. Elsewhere kernels look for rows themselves up
/// to a row for each expert, and read an expert's weight for each token if choices are added up.
const APART: usize = 32;

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let mut changed = false;
    for id in graph.order() {
        // A node that was replaced has no readers.
        if matches!(graph.op(id), Op::Grouped { .. })
            && let Some((experts, group)) = group(graph, id, cx)
        {
            let location = graph.location(experts.node).to_string();
            let readers: Vec<NodeId> = graph.users(experts).into_iter().map(|(user, _)| user).collect();
            let grouped: Value = graph.push(group, &[experts], &location)?.into();
            for reader in readers {
                let old = graph.operands(reader);
                let operands: Vec<Value> = old.iter().map(|&v| if v == experts { grouped } else { v }).collect();
                let location = graph.location(reader).to_string();
                let remade = graph.push(graph.op(reader).clone(), &operands, &location)?;
                graph.replace_uses(reader.into(), remade.into());
            }
            changed = true;
        }
    }
    Ok(changed.into())
}

/// The experts of a product that are not grouped yet, and the op that groups them.
fn group(graph: &Graph, product: NodeId, cx: &Cx) -> Option<(Value, Op)> {
    let step = Step::of(graph, product, cx)?;
    let known = graph.users(step.chosen).iter().any(|&(user, _)| matches!(graph.op(user), Op::Group { .. }));
    let takes_warpgroups = takes_warpgroups(graph, step.chosen, cx);
    // Rows of an expert if all have the same number.
    let each = step.rows.div_ceil(step.experts);
    let tile = match each {
        _ if cx.invariant => LEAST,
        WARPGROUP_LEAST.. if takes_warpgroups => WARPGROUP,
        _ => each.next_power_of_two().clamp(LEAST, MOST),
    };
    let Step { chosen, experts, .. } = step;
    (!known && step.apart(graph, cx).is_none()).then_some((chosen, Op::Group { experts, tile }))
}

/// The choice of a step among the experts of some products.
struct Step {
    /// The value with the expert of each row.
    chosen: Value,
    /// Rows, and the experts that have weights here.
    rows: usize,
    experts: usize,
    /// The experts that are read on average if rows are grouped, and if each row reads its own.
    grouped: f64,
    each: f64,
    /// Bytes of one expert's weights in all these products.
    bytes: f64,
}

impl Step {
    /// The step of a product and of the other products with the same experts, if their rows are not
    /// grouped yet.
    fn of(graph: &Graph, product: NodeId, cx: &Cx) -> Option<Step> {
        let operands = graph.operands(product);
        let (weight, chosen) = (graph.ty(operands[1]).as_tensor()?, operands[2]);
        let ty = graph.ty(chosen).as_tensor().filter(|t| t.layout == Layout::Rows)?;
        let experts = weight.shape.0[0].fixed()?;
        // A rank may hold some of the experts; others have the rest.
        let all = match graph.op(chosen.node) {
            Op::Route { .. } => graph.ty(graph.operands(chosen.node)[0]).as_tensor()?.shape.last()?,
            _ => experts,
        };
        let (choices, tokens) = (ty.choices(), cx.bucket.tokens());
        let rows = tokens * choices;
        Some(Step {
            chosen,
            rows,
            experts,
            grouped: experts as f64 * part_chosen(all, choices, tokens),
            each: (rows * experts) as f64 / all.max(experts) as f64,
            bytes: products(graph, chosen).map(|id| ledger::weight_bytes(graph, id, cx)).sum::<u64>() as f64
                / experts as f64,
        })
    }

    /// Why rows are not grouped, if they are not: then kernels search the rows of an expert
    /// themselves.
    fn apart(&self, graph: &Graph, cx: &Cx) -> Option<Why> {
        if !cx.is_for_few() {
            return None;
        }
        match &cx.arch.machine {
            Machine::Cpu(_) => Some("kernels of few tokens look for an expert's rows themselves".into()),
            Machine::Simt(simt) if takes_warpgroups(graph, self.chosen, cx) => {
                let spare = simt.measured.as_ref().map_or(0, |measured| measured.grouping);
                let more = ((self.each - self.grouped) * self.bytes) as usize;
                (self.rows <= APART && more <= spare).then(|| {
                    let [more, spare] = [more, spare].map(|bytes| bytes.div_ceil(1 << 20));
                    format!(
                        "an expert's weights once for each row are {more} MiB more, and grouping takes the time of {spare}"
                    )
                })
            }
            Machine::Simt(_) => (self.rows <= self.experts)
                .then(|| "kernels look for an expert's rows themselves up to a row for each expert".into()),
        }
        .map(|text| Why::new(Cause::Step, text))
    }
}

/// The products of rows with the experts that they chose.
fn products(graph: &Graph, chosen: Value) -> impl Iterator<Item = NodeId> {
    let products = graph.users(chosen).into_iter().map(|(user, _)| user);
    products.filter(move |&user| matches!(graph.op(user), Op::Grouped { .. }))
}

/// The experts of each layer, and why their rows are not grouped.
pub fn explain(graph: &Graph, cx: &Cx) -> Result<Vec<Place>, Diagnostic> {
    let mut seen = BTreeSet::new();
    let place = |id: NodeId| {
        let step = Step::of(graph, id, cx).filter(|step| seen.insert(step.chosen))?;
        let what = format!("{} rows of about {:.0} experts", step.rows, step.grouped);
        let location = graph.location(id).to_string();
        Some(Place { pass: "group", location, what, why_not: step.apart(graph, cx) })
    };
    let products = graph.ids().filter(|&id| matches!(graph.op(id), Op::Grouped { .. }));
    Ok(products.filter_map(place).collect())
}

/// Whether four waves multiply together in all products of some experts' rows.
fn takes_warpgroups(graph: &Graph, experts: Value, cx: &Cx) -> bool {
    let Machine::Simt(simt) = &cx.arch.machine else { return false };
    let fits = |product: NodeId| {
        let x = graph.ty(graph.operands(product)[0]).as_tensor();
        x.is_some_and(|x| {
            let bytes = x.shape.last().unwrap_or(0) * x.dtype.size();
            x.dtype.size() <= 2 && bytes.is_multiple_of(K_TILE)
        })
    };
    simt.warpgroup_mma && products(graph, experts).all(fits)
}

#[cfg(test)]
mod tests {
    use crate::testing::{ANY, DECODE, check_in, read};

    const TEXT: &str = r#"graph @g(%x: bf16[T, 8], %y: bf16[T*2, 8], %experts: i32[T*2]) {
            %0 = weight {name = "up"} : bf16[5, 16, 8]
            %1 = grouped %x, %0, %experts {out = bf16} : bf16[T*2, 16]
            %2 = weight {name = "down"} : bf16[5, 16, 8]
            %3 = grouped %y, %2, %experts {out = bf16} : bf16[T*2, 16]
            return %1, %3
        }"#;

    #[test]
    fn rows_are_grouped_once_for_all_products() {
        assert_eq!(check_in(&DECODE, "group", TEXT), read(TEXT).print());
        insta::assert_snapshot!(check_in(&ANY, "group", TEXT), @r#"
        graph @g(%x: bf16[T, 8], %y: bf16[T*2, 8], %experts: i32[T*2]) {
          %0 = weight {name = "up"} : bf16[5, 16, 8]
          %1 = group %experts {experts = 5, tile = 64} : i32[T*2]@grouped(5, 64)
          %2 = grouped %x, %0, %1 {out = bf16} : bf16[T*2, 16]
          %3 = weight {name = "down"} : bf16[5, 16, 8]
          %4 = grouped %y, %3, %1 {out = bf16} : bf16[T*2, 16]
          return %2, %4
        }
        "#);
    }
}
