//! In decode steps products make their rows themselves. Nodes before several products, without
//! other readers, are copied for each product: that costs less than a kernel of their own.
//!
//! ```text
//! %1 = rms_norm %x, %n                  %1 = rms_norm %x, %n
//! %2 = linear %1, %a                    %2 = linear %1, %a
//! %3 = linear %1, %b               =>   %3 = rms_norm %x, %n
//!                                       %4 = linear %3, %b
//! ```
use atomc_ir::{Diagnostic, Graph, NodeId, Op, Rule, Value, Values};

use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let mut changed = false;
    if cx.is_for_few() {
        // Readers first: their operands are then read by each of their copies.
        for id in graph.order().into_iter().rev() {
            let v = Value::from(id);
            let users = graph.users(v);
            let readers = || users.iter().all(|&(user, slot)| slot == 0 && takes_rows(graph, user));
            if users.len() > 1 && is_repeated(graph, id) && !graph.is_output(v) && readers() {
                for &(user, _) in &users[1..] {
                    repeat(graph, id, user)?;
                }
                changed = true;
            }
        }
    }
    Ok(changed.into())
}

/// Whether a product makes such rows itself: norms of whole rows, and quantised rows, except for
/// those that have kernels of their own.
fn is_repeated(graph: &Graph, id: NodeId) -> bool {
    let rank = graph.ty(id.into()).as_tensor().map_or(0, |t| t.shape.rank());
    let is_apart = matches!(graph.op(id), Op::Quantise { rule: Rule::MxCodes(_), .. });
    rank == 2 && !is_apart && matches!(graph.op(id).values(), Values::Normed(_) | Values::Coded)
}

/// Whether a node is a product, or makes rows for products alone.
fn takes_rows(graph: &Graph, id: NodeId) -> bool {
    let coded = graph.op(id).values() == Values::Coded;
    let products = || graph.users(id.into()).iter().all(|&(user, _)| graph.op(user).is_contraction());
    graph.op(id).is_contraction() || coded && products()
}

/// Gives a reader a copy of its own.
fn repeat(graph: &mut Graph, id: NodeId, reader: NodeId) -> Result<(), Diagnostic> {
    let (op, location) = (graph.op(id).clone(), graph.location(id).to_string());
    let copy = graph.push(op, &graph.operands(id), &location)?;
    let mut operands = graph.operands(reader);
    operands[0] = copy.into();
    let (op, location) = (graph.op(reader).clone(), graph.location(reader).to_string());
    let remade = graph.push(op, &operands, &location)?;
    graph.replace_uses(reader.into(), remade.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{ANY, DECODE, check_in, read};

    #[test]
    fn a_norm_is_made_by_each_product() {
        let text = r#"graph @g(%x: bf16[T, 8]) {
            %0 = weight {name = "n"} : bf16[8]
            %1 = rms_norm %x, %0 {eps = 1e-6} : bf16[T, 8]
            %2 = weight {name = "a"} : bf16[8, 8]
            %3 = linear %1, %2 {out = f32} : f32[T, 8]
            %4 = weight {name = "b"} : bf16[8, 8]
            %5 = linear %1, %4 {out = bf16} : bf16[T, 8]
            return %3, %5
        }"#;
        assert_eq!(check_in(&ANY, "repeat", text), read(text).print());
        insta::assert_snapshot!(check_in(&DECODE, "repeat", text), @r#"
        graph @g(%x: bf16[T, 8]) {
          %0 = weight {name = "n"} : bf16[8]
          %1 = rms_norm %x, %0 {eps = 1e-6} : bf16[T, 8]
          %2 = weight {name = "a"} : bf16[8, 8]
          %3 = linear %1, %2 {out = f32} : f32[T, 8]
          %4 = rms_norm %x, %0 {eps = 1e-6} : bf16[T, 8]
          %5 = weight {name = "b"} : bf16[8, 8]
          %6 = linear %4, %5 {out = bf16} : bf16[T, 8]
          return %3, %6
        }
        "#);
        // With another reader, it exists anyway.
        let read_elsewhere = text.replace("return %3, %5", "return %1, %3, %5");
        assert_eq!(check_in(&DECODE, "repeat", &read_elsewhere), read(&read_elsewhere).print());
    }
}
