//! Lays contraction weights out as their kernels read them. What else reads such a weight reads the packed one, so that a
//! tied embedding exists once. Scales and zero points stay as they are: what lies beside what is for the kernels to say.
//!
//! ```text
//! %0 = weight {name = "embed"} : bf16[512, 64]         %0 = weight {name = "embed"} : bf16[512, 64]
//! %1 = gather %0, %ids                                 %1 = pack %0 : bf16[512, 64]@panels
//! …                                              =>    %2 = gather %1, %ids
//! %8 = linear %7, %0 {out = f32}                       …
//!                                                      %9 = linear %8, %1 {out = f32}
//! ```
use atomc_ir::{Diagnostic, Graph, Layout, NodeId, Op, Reads, Value};

use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, _: &Cx) -> Result<Changed, Diagnostic> {
    let mut changed = false;
    for id in graph.order() {
        let operands = graph.operands(id);
        let panels = |(slot, &v): (usize, &Value)| (graph.op(id).reads(slot) == Reads::Panels).then_some(v);
        let Some(w) = operands.iter().enumerate().find_map(panels) else { continue };
        if graph.ty(w).as_tensor().is_some_and(|t| t.layout == Layout::Panels) {
            continue;
        }
        // Scales and zero points too, of which a weight plan is made as well.
        if !operands[1..].iter().all(|v| graph.is_constant(v.node)) {
            return Err(Diagnostic::new("passes::computed-weight", "the weight of a linear must be a constant")
                .at(graph.location(id))
                .help("weights, and slices and concats of them, are constants"));
        }
        pack(graph, w)?;
        changed = true;
    }
    Ok(changed.into())
}

/// Everything that reads `w` in panels, or rows of it, reads it packed.
fn pack(graph: &mut Graph, w: Value) -> Result<(), Diagnostic> {
    let readers: Vec<NodeId> = graph
        .users(w)
        .into_iter()
        .filter(|&(user, slot)| matches!(graph.op(user).reads(slot), Reads::Panels | Reads::Chosen))
        .map(|(user, _)| user)
        .collect();
    let location = graph.location(w.node).to_string();
    let packed: Value = graph.push(Op::Pack {}, &[w], &location)?.into();
    for id in readers {
        let mut operands = graph.operands(id);
        let (op, location) = (graph.op(id).clone(), graph.location(id).to_string());
        for v in operands.iter_mut().filter(|v| **v == w) {
            *v = packed;
        }
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
    fn codes_are_packed_and_scales_stay() {
        let text = r#"graph @g(%x: bf16[T, 64]) {
            %0 = weight {name = "w"} : u4[8, 128]
            %1 = slice %0 {axis = 1, start = 64, len = 64} : u4[8, 64]
            %2 = weight {name = "s"} : f16[8, 4]
            %3 = slice %2 {axis = 1, start = 2, len = 2} : f16[8, 2]
            %4 = weight {name = "z"} : u4[8, 4]
            %5 = slice %4 {axis = 1, start = 2, len = 2} : u4[8, 2]
            %6 = linear %x, %1, %3, %5 {out = bf16, block = [1, 32]} : bf16[T, 8]
            return %6
        }"#;
        let after = check("pack", text);
        assert_eq!(after.matches("pack ").count(), 1, "{after}");
        assert!(after.contains("linear %x, %2, %4, %6 {out = bf16, block = [1, 32]} : bf16[T, 8]"), "{after}");
        let computed = text
            .replace("%3 = slice %2 {axis = 1, start = 2, len = 2}", "%3 = relu %s")
            .replace("64]) {", "64], %s: f16[8, 2]) {");
        let e = run(&mut read(&computed), &DECODE).unwrap_err();
        assert_eq!(e.message, "the weight of a linear must be a constant");
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
