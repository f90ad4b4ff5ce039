//! Lays contraction weights out as their kernels read them. Other readers of such a weight read the
//! packed one, so that a tied embedding exists once. Scales and zero points are packed in columns
//! of panels if each row of a weight has its own; where rows share them they stay as they are.
//!
//! ```text
//! %0 = weight {name = "embed"} : bf16[512, 64]         %0 = weight {name = "embed"} : bf16[512, 64]
//! %1 = gather %0, %ids                                 %1 = pack %0 : bf16[512, 64]@panels
//! …                                              =>    %2 = gather %1, %ids
//! %8 = linear %7, %0 {out = f32}                       …
//!                                                      %9 = linear %8, %1 {out = f32}
//! ```
use std::collections::BTreeMap;

use atomc_ir::{Diagnostic, Graph, Layout, NodeId, Op, Reads, Value};

use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, _: &Cx) -> Result<Changed, Diagnostic> {
    let mut changed = false;
    for id in graph.order() {
        let operands = graph.operands(id);
        let wants = |slot| Some((operands[slot], graph.op(id).reads(slot).layout()?));
        let wants: Vec<(Value, Layout)> = (0..operands.len()).filter_map(wants).collect();
        if wants.is_empty() {
            continue;
        }
        // Scales and zero points too: a weight plan makes them as well.
        let reads = |slot: usize| graph.op(id).reads(slot);
        let given = |slot: usize| reads(slot).layout().is_some() || reads(slot) == Reads::Shared;
        if !(0..operands.len()).all(|slot| !given(slot) || graph.is_constant(operands[slot].node)) {
            return Err(Diagnostic::new("passes::computed-weight", "the weight of a linear must be a constant")
                .at(graph.location(id))
                .help("weights, and slices and concats of them, are constants"));
        }
        for (v, layout) in wants {
            if graph.ty(v).as_tensor().is_some_and(|t| t.layout != layout) {
                pack(graph, v, layout)?;
                changed = true;
            }
        }
    }
    Ok(changed.into())
}

/// Gives all readers of `w` in a layout, and of rows of it, the packed weight.
fn pack(graph: &mut Graph, w: Value, to: Layout) -> Result<(), Diagnostic> {
    let takes = |reads: Reads| reads == Reads::Chosen || reads.layout() == Some(to);
    let mut readers: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    for (user, slot) in graph.users(w).into_iter().filter(|&(user, slot)| takes(graph.op(user).reads(slot))) {
        readers.entry(user).or_default().push(slot);
    }
    let location = graph.location(w.node).to_string();
    let packed: Value = graph.push(Op::Pack { to }, &[w], &location)?.into();
    for (id, slots) in readers {
        let mut operands = graph.operands(id);
        let (op, location) = (graph.op(id).clone(), graph.location(id).to_string());
        slots.into_iter().for_each(|slot| operands[slot] = packed);
        let reader = graph.push(op, &operands, &location)?;
        graph.replace_uses(id.into(), reader.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DECODE, check, read};

    #[test]
    fn a_tied_embedding_is_packed_once() {
        let text = r#"graph @g(%ids: i32[T]) {
            %0 = weight {name = "embed"} : bf16[16, 8] // embed
            %1 = gather %0, %ids : bf16[T, 8]
            %2 = linear %1, %0 {out = f32} : f32[T, 16] // lm_head
            return %2
        }"#;
        insta::assert_snapshot!(check("pack", text), @r#"
        graph @g(%ids: i32[T]) {
          %0 = weight {name = "embed"} : bf16[16, 8] // embed
          %1 = pack %0 : bf16[16, 8]@panels // embed
          %2 = gather %1, %ids : bf16[T, 8]
          %3 = linear %2, %1 {out = f32} : f32[T, 16] // lm_head
          return %3
        }
        "#);
    }

    #[test]
    fn an_embedding_of_its_own_is_not() {
        let text = r#"graph @g(%ids: i32[T]) {
            %0 = weight {name = "embed"} : bf16[16, 8]
            %1 = gather %0, %ids : bf16[T, 8]
            return %1
        }"#;
        assert!(!check("pack", text).contains("panels"));
    }

    #[test]
    fn codes_are_packed_with_scales_and_zero_points_in_columns() {
        let text = r#"graph @g(%x: bf16[T, 64]) {
            %0 = weight {name = "w"} : u4[8, 128]
            %1 = slice %0 {axis = 1, start = 64, len = 64} : u4[8, 64]
            %2 = weight {name = "s"} : f16[8, 4]
            %3 = slice %2 {axis = 1, start = 2, len = 2} : f16[8, 2]
            %4 = weight {name = "z"} : u8[8, 4]
            %5 = slice %4 {axis = 1, start = 2, len = 2} : u8[8, 2]
            %6 = linear %x, %1, %3, %5 {out = bf16, block = [1, 32]} : bf16[T, 8]
            return %6
        }"#;
        insta::assert_snapshot!(check("pack", text), @r#"
        graph @g(%x: bf16[T, 64]) {
          %0 = weight {name = "w"} : u4[8, 128]
          %1 = slice %0 {axis = 1, start = 64, len = 64} : u4[8, 64]
          %2 = pack %1 : u4[8, 64]@panels
          %3 = weight {name = "s"} : f16[8, 4]
          %4 = slice %3 {axis = 1, start = 2, len = 2} : f16[8, 2]
          %5 = pack %4 {to = columns} : f16[8, 2]@columns
          %6 = weight {name = "z"} : u8[8, 4]
          %7 = slice %6 {axis = 1, start = 2, len = 2} : u8[8, 2]
          %8 = pack %7 {to = columns} : u8[8, 2]@columns
          %9 = linear %x, %2, %5, %8 {out = bf16, block = [1, 32]} : bf16[T, 8]
          return %9
        }
        "#);
        let computed = text
            .replace("%3 = slice %2 {axis = 1, start = 2, len = 2}", "%3 = relu %s")
            .replace("64]) {", "64], %s: f16[8, 2]) {");
        let e = run(&mut read(&computed), &DECODE).unwrap_err();
        assert_eq!(e.message, "the weight of a linear must be a constant");
    }

    /// A tensor may be codes for one reader and zero points for another, or both for the same one.
    #[test]
    fn each_operand_gets_its_own_layout() {
        let text = r#"graph @g(%x: bf16[T, 4]) {
            %0 = weight {name = "w"} : i8[8, 4]
            %1 = weight {name = "s"} : f16[8, 4]
            %2 = linear %x, %0, %1, %0 {out = bf16, block = [1, 1]} : bf16[T, 8]
            return %2
        }"#;
        let after = check("pack", text);
        assert_eq!((after.matches("@panels").count(), after.matches("@columns").count()), (1, 2), "{after}");
    }

    #[test]
    fn scales_that_rows_share_stay() {
        let text = r#"graph @g(%x: bf16[T, 64]) {
            %0 = weight {name = "w"} : f8e4m3[8, 64]
            %1 = weight {name = "s"} : f32[4, 2]
            %2 = linear %x, %0, %1 {out = bf16, block = [2, 32]} : bf16[T, 8]
            return %2
        }"#;
        let after = check("pack", text);
        assert_eq!((after.matches("@panels").count(), after.matches("@columns").count()), (1, 0), "{after}");
    }

    #[test]
    fn computed_weights_are_refused() {
        let text = r#"graph @g(%x: bf16[T, 8]) {
            %0 = weight {name = "w"} : bf16[8, 8]
            %1 = relu %0 : bf16[8, 8]
            %2 = linear %x, %1 {out = bf16} : bf16[T, 8] // l.0.q
            return %2
        }"#;
        let e = run(&mut read(text), &DECODE).unwrap_err();
        assert_eq!(e.to_string(), "l.0.q: the weight of a linear must be a constant");
    }
}
