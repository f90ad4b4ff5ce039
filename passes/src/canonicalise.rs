//! Removes steps that change nothing, and merges steps that are one.
//!
//! ```text
//! %0 = slice %x {axis = 1, start = 8, len = 8}         %0 = slice %x {axis = 1, start = 12, len = 4}
//! %1 = slice %0 {axis = 1, start = 4, len = 4}    =>   return %0
//! %2 = reshape %1 {shape = [T, 4]}
//! return %2
//! ```
//!
//! One walk in order: a node's operands are canonical when it is looked at. In steps with the next
//! token of each sequence there is nothing that comes after a token, so attention up to a later
//! position is attention up to the token's own.
use atomc_ir::{Diagnostic, Graph, NodeId, Op, Value};

use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let mut changed = false;
    for id in graph.order() {
        let mut value = Value::from(id);
        while let Some(simpler) = simplify(graph, cx, value.node) {
            graph.replace_uses(value, simpler);
            value = simpler;
            changed = true;
        }
    }
    Ok(changed.into())
}

/// An equal value that takes fewer steps.
fn simplify(graph: &mut Graph, cx: &Cx, id: NodeId) -> Option<Value> {
    let operands = graph.operands(id);
    let &x = operands.first()?;
    if is_nop(graph, id, &operands) {
        return Some(x);
    }
    let inner = graph.operands(x.node);
    let (op, operands) = match (graph.op(id), graph.op(x.node)) {
        (Op::Reshape { shape }, Op::Reshape { .. }) => (Op::Reshape { shape: shape.clone() }, inner),
        (&Op::Slice { axis, start, len }, &Op::Slice { axis: same, start: skipped, .. }) if axis == same => {
            (Op::Slice { axis, start: start + skipped, len }, inner)
        }
        (&Op::Parts { count, start, len, step }, &Op::Slice { axis: 1, start: skipped, .. }) => {
            (Op::Parts { count, start: start + skipped, len, step }, inner)
        }
        (&Op::Slice { axis, start, len }, Op::Concat { axis: same }) if axis == *same => {
            let (part, start) = part_of(graph, &inner, axis, start, len)?;
            (Op::Slice { axis, start, len }, vec![part])
        }
        (&Op::Concat { axis }, _) => (Op::Concat { axis }, flat(graph, &operands, axis)?),
        (&Op::AttendUpTo { scale, window }, _) if cx.bucket.is_decode() => {
            (Op::Attention { scale, window }, operands[..3].to_vec())
        }
        _ => return None,
    };
    let location = graph.location(id).to_string();
    Some(graph.push(op, &operands, &location).expect("operands that fit before").into())
}

/// Whether the node gives its only operand back.
fn is_nop(graph: &Graph, id: NodeId, operands: &[Value]) -> bool {
    let kept = graph.op(id).values().are_kept();
    kept && operands.len() == 1 && graph.ty(operands[0]) == graph.ty(id.into())
}

/// The operand of a concat that holds this range alone, and the beginning of the range in it.
fn part_of(graph: &Graph, parts: &[Value], axis: usize, mut start: usize, len: usize) -> Option<(Value, usize)> {
    for &part in parts {
        let size = graph.ty(part).as_tensor()?.shape.0[axis].fixed()?;
        if start < size {
            return (start + len <= size).then_some((part, start));
        }
        start -= size;
    }
    None
}

/// The operands with each concat along the same axis replaced by its own; `None` if there is none.
fn flat(graph: &Graph, operands: &[Value], axis: usize) -> Option<Vec<Value>> {
    let nested = |v: &Value| matches!(graph.op(v.node), &Op::Concat { axis: a } if a == axis);
    operands.iter().any(nested).then(|| {
        let parts = |v: &Value| if nested(v) { graph.operands(v.node) } else { vec![*v] };
        operands.iter().flat_map(parts).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::testing::{ANY, DECODE, check, read};

    /// Where there are as many positions as tokens say, which is what the steps are for.
    #[test]
    fn nothing_comes_after_the_next_token() {
        let text = "graph @g(%q: bf16[T, 4, 16], %kv: cache<bf16, 2, 16>, %batch: batch, %ends: i32[T]) {
            %0 = attend_up_to %q, %kv, %batch, %ends {scale = 0.25, window = 8} : bf16[T, 4, 16]
            return %0
        }";
        let made = |cx| {
            let mut graph = read(text);
            run(&mut graph, cx).expect("a canonical graph");
            graph.sweep();
            graph.print()
        };
        assert_eq!(made(&ANY), read(text).print());
        insta::assert_snapshot!(made(&DECODE), @"
        graph @g(%q: bf16[T, 4, 16], %kv: cache<bf16, 2, 16>, %batch: batch, %ends: i32[T]) {
          %0 = attention %q, %kv, %batch {scale = 0.25, window = 8} : bf16[T, 4, 16]
          return %0
        }
        ");
    }

    #[test]
    fn chains_of_one_kind() {
        let text = "graph @g(%x: bf16[T, 16]) {
            %0 = slice %x {axis = 1, start = 4, len = 12} : bf16[T, 12]
            %1 = slice %0 {axis = 1, start = 4, len = 8} : bf16[T, 8]
            %2 = reshape %1 {shape = [T, 2, 4]} : bf16[T, 2, 4]
            %3 = reshape %2 {shape = [T, 4, 2]} : bf16[T, 4, 2]
            %4 = reshape %3 {shape = [T, 8]} : bf16[T, 8]
            return %3, %4
        }";
        insta::assert_snapshot!(check("canonicalise", text), @"
        graph @g(%x: bf16[T, 16]) {
          %0 = slice %x {axis = 1, start = 8, len = 8} : bf16[T, 8]
          %1 = reshape %0 {shape = [T, 4, 2]} : bf16[T, 4, 2]
          return %1, %0
        }
        ");
    }

    #[test]
    fn steps_that_change_nothing() {
        let text = "graph @g(%x: bf16[T, 8]) {
            %0 = cast %x {to = bf16} : bf16[T, 8]
            %1 = slice %0 {axis = 1, start = 0, len = 8} : bf16[T, 8]
            %2 = concat %1 {axis = 1} : bf16[T, 8]
            %3 = reshape %2 {shape = [T, 8]} : bf16[T, 8]
            return %3
        }";
        insta::assert_snapshot!(check("canonicalise", text), @"
        graph @g(%x: bf16[T, 8]) {
          return %x
        }
        ");
    }

    #[test]
    fn a_part_of_a_concat() {
        let text = "graph @g(%x: bf16[T, 4], %y: bf16[T, 8]) {
            %0 = concat %x, %y {axis = 1} : bf16[T, 12]
            %1 = concat %0, %x {axis = 1} : bf16[T, 16]
            %2 = slice %1 {axis = 1, start = 4, len = 8} : bf16[T, 8]
            %3 = slice %1 {axis = 1, start = 14, len = 2} : bf16[T, 2]
            %4 = slice %1 {axis = 1, start = 2, len = 4} : bf16[T, 4]
            return %2, %3, %4
        }";
        insta::assert_snapshot!(check("canonicalise", text), @"
        graph @g(%x: bf16[T, 4], %y: bf16[T, 8]) {
          %0 = slice %x {axis = 1, start = 2, len = 2} : bf16[T, 2]
          %1 = concat %x, %y, %x {axis = 1} : bf16[T, 16]
          %2 = slice %1 {axis = 1, start = 2, len = 4} : bf16[T, 4]
          return %y, %0, %2
        }
        ");
    }
}
