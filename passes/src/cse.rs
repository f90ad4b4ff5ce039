//! Computes a value that occurs twice only once. The first occurrence keeps its location.
//!
//! ```text
//! %0 = weight {name = "w"}         %0 = weight {name = "w"}
//! %1 = rms_norm %x, %0             %1 = rms_norm %x, %0
//! %2 = weight {name = "w"}   =>    return %1, %1
//! %3 = rms_norm %x, %2
//! return %1, %3
//! ```
//!
//! One walk in order: operands are already unique when a node is looked up. Effects need no
//! exception: a cache state is an operand like any other, and no two nodes change the same one.
use std::collections::BTreeMap;

use atomc_ir::{Diagnostic, Graph, NodeId, Op, Type, Value};

use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, _: &Cx) -> Result<Changed, Diagnostic> {
    let mut first: BTreeMap<(String, Vec<Value>, Vec<Type>), NodeId> = BTreeMap::new();
    let mut changed = false;
    for id in graph.order() {
        if matches!(graph.op(id), Op::Input { .. }) {
            continue;
        }
        let key = (graph.op(id).key(), graph.operands(id), graph.types(id).to_vec());
        let same = *first.entry(key).or_insert(id);
        if same != id {
            for out in 0..graph.types(id).len() {
                graph.replace_uses(Value { node: id, out }, Value { node: same, out });
            }
            changed = true;
        }
    }
    Ok(changed.into())
}

#[cfg(test)]
mod tests {
    use crate::testing::check;

    #[test]
    fn weights_and_what_reads_them() {
        let text = r#"graph @g(%x: bf16[T, 4]) {
            %0 = weight {name = "w"} : bf16[4] // first
            %1 = rms_norm %x, %0 {eps = 0.1} : bf16[T, 4] // first
            %2 = weight {name = "w"} : bf16[4] // second
            %3 = rms_norm %x, %2 {eps = 0.1} : bf16[T, 4] // second
            %4 = rms_norm %x, %2 {eps = 0.2} : bf16[T, 4] // third
            return %1, %3, %4
        }"#;
        insta::assert_snapshot!(check("cse", text), @r#"
        graph @g(%x: bf16[T, 4]) {
          %0 = weight {name = "w"} : bf16[4] // first
          %1 = rms_norm %x, %0 {eps = 0.1} : bf16[T, 4] // first
          %2 = rms_norm %x, %0 {eps = 0.2} : bf16[T, 4] // third
          return %1, %1, %2
        }
        "#);
    }

    #[test]
    fn not_what_differs_in_type() {
        let text = r#"graph @g(%x: bf16[T, 4]) {
            %0 = weight {name = "w"} : bf16[4]
            %1 = rms_norm %x, %0 {eps = 0.1} : bf16[T, 4]
            %2 = weight {name = "w"} : f32[4]
            %3 = rms_norm %x, %2 {eps = 0.1} : bf16[T, 4]
            return %1, %3
        }"#;
        assert!(check("cse", text).contains("%3 = rms_norm %x, %2"));
    }
}
