//! Says which rows each expert has, where products of many rows go along them expert by expert.
//! Where steps have few rows for each expert, kernels look for themselves.
//!
//! ```text
//! %2 = grouped %x, %w, %experts         %2 = group %experts {experts = 8, tile = 16}
//!                                  =>   %3 = grouped %x, %w, %2
//! ```
use atomc_ir::arch::Machine;
use atomc_ir::{Diagnostic, Graph, Layout, NodeId, Op, Value};

use crate::pass::{Changed, Cx};

/// The fewest rows of a block: what a matrix instruction has at least.
const LEAST: usize = 16;
/// The most: beyond, a tile of a product does not grow.
const MOST: usize = 64;
/// Rows of a block where four waves multiply together, and the rows of an expert beyond which they
/// are that many: fewer fit tiles whose columns are rows.
const WARPGROUP: usize = 128;
const WARPGROUP_LEAST: usize = 33;
/// Bytes of a row that these take at once.
const K_TILE: usize = 128;

/// Rows of a decode step on GPUs up to which kernels look for themselves where four waves multiply
/// together: hardly any share an expert. Elsewhere they do so up to a row for each expert. Then an
/// expert's weight is read for each token of which the choices are added up.
const APART: usize = 32;

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let mut changed = false;
    for id in graph.order() {
        // What was remade is read by nobody.
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

/// The experts of a product that are not grouped yet, and how they will be.
fn group(graph: &Graph, product: NodeId, cx: &Cx) -> Option<(Value, Op)> {
    let operands = graph.operands(product);
    let ty = graph.ty(operands[2]).as_tensor().filter(|t| t.layout == Layout::Rows)?;
    let experts = graph.ty(operands[1]).as_tensor()?.shape.0[0].fixed()?;
    let rows = cx.bucket.tokens() * ty.choices();
    let takes_warpgroups = takes_warpgroups(graph, operands[2], cx);
    let is_few = match cx.arch.machine {
        Machine::Cpu(_) => cx.is_for_few(),
        Machine::Simt(_) if takes_warpgroups => cx.is_for_few() && rows <= APART,
        Machine::Simt(_) => cx.is_for_few() && rows <= experts,
    };
    let known = graph.users(operands[2]).iter().any(|&(user, _)| matches!(graph.op(user), Op::Group { .. }));
    // Rows that an expert has if all have as many.
    let each = rows.div_ceil(experts);
    let tile = match each {
        _ if cx.invariant => LEAST,
        WARPGROUP_LEAST.. if takes_warpgroups => WARPGROUP,
        _ => each.next_power_of_two().clamp(LEAST, MOST),
    };
    (!known && !is_few).then_some((operands[2], Op::Group { experts, tile }))
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
    let products = graph.users(experts).into_iter().map(|(user, _)| user);
    simt.warpgroup_mma && products.filter(|&user| matches!(graph.op(user), Op::Grouped { .. })).all(fits)
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
