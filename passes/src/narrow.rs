//! Chooses rows before work on each row instead of after it, where only the chosen rows are read.
//!
//! ```text
//! %0 = linear %x, %w    : bf16[T, 8]        %0 = gather %x, %rows : bf16[R, 4]
//! %1 = add %0, %y       : bf16[T, 8]        %1 = linear %0, %w    : bf16[R, 8]
//! %2 = gather %1, %rows : bf16[R, 8]   =>   %2 = gather %y, %rows : bf16[R, 8]
//! return %2                                 %3 = add %1, %2       : bf16[R, 8]
//!                                           return %3
//! ```
//!
//! Attention needs all tokens of its layer, so the pass serves the nodes after the last attention:
//! of a prompt, only one token's row goes on from there.
use std::collections::BTreeMap;

use atomc_ir::{Diagnostic, Dim, Graph, NodeId, Op, Reads, Type, Value};

use crate::bucket::Bucket;
use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    // Chosen rows have other kernels, with other roundings between their ops.
    if !matches!(cx.bucket, Bucket::Whole { .. }) || cx.invariant {
        return Ok(Changed::No);
    }
    let order = graph.order();
    let narrow = narrow(graph, &order);
    let mut narrowed = Narrowed { made: BTreeMap::new(), chosen: BTreeMap::new() };
    for id in order {
        if let Some(&rows) = narrow.get(&id) {
            narrowed.remake(graph, id, rows)?;
        } else if let Some((table, _)) = choice(graph, id)
            && let Some(&made) = narrowed.made.get(&table.node)
        {
            graph.replace_uses(id.into(), made.into());
        }
    }
    Ok((!narrowed.made.is_empty()).into())
}

/// The nodes that have only some of their rows read, always the same ones, with the choice of these
/// rows.
fn narrow(graph: &Graph, order: &[NodeId]) -> BTreeMap<NodeId, Value> {
    let mut narrow: BTreeMap<NodeId, Value> = BTreeMap::new();
    for &id in order.iter().rev().filter(|&&id| has_row_a_token(graph, id.into()) && !graph.is_output(id.into())) {
        let wanted = |&(user, slot): &(NodeId, usize)| match choice(graph, user) {
            Some((_, rows)) => (slot == 0).then_some(rows),
            None => narrow.get(&user).copied(),
        };
        let users = graph.users(id.into());
        let mut wanted = users.iter().map(wanted);
        if let Some(Some(rows)) = wanted.next()
            && wanted.all(|other| other == Some(rows))
            && can_narrow(graph, id, rows)
        {
            narrow.insert(id, rows);
        }
    }
    narrow
}

/// Whether row i of the result needs, of each operand that has a row for each token, row i alone,
/// and the op makes chosen rows of chosen rows.
fn can_narrow(graph: &Graph, id: NodeId, rows: Value) -> bool {
    let op = graph.op(id);
    let narrowed = |(slot, &v): (usize, &Value)| match has_row_a_token(graph, v) {
        false => Some(graph.ty(v).clone()),
        true if op.reads(slot).is_row() => Op::Gather {}.infer(&[graph.ty(v), graph.ty(rows)]).ok()?.pop(),
        true => None,
    };
    let operands: Option<Vec<Type>> = graph.operands(id).iter().enumerate().map(narrowed).collect();
    let lead = |ty: &Type| ty.as_tensor().and_then(|t| t.shape.0.first().copied());
    let made = operands.and_then(|types| op.infer(&types.iter().collect::<Vec<_>>()).ok());
    made.is_some_and(|made| made.iter().all(|ty| lead(ty) == lead(graph.ty(rows))))
}

fn has_row_a_token(graph: &Graph, v: Value) -> bool {
    graph.ty(v).as_tensor().is_some_and(|ty| ty.shape.0.first() == Some(&Dim::Tokens))
}

/// The value of all tokens that a node chooses rows of, and the choice.
fn choice(graph: &Graph, id: NodeId) -> Option<(Value, Value)> {
    let (Reads::Chosen, [table, rows]) = (graph.op(id).reads(0), &graph.operands(id)[..]) else { return None };
    has_row_a_token(graph, *table).then_some((*table, *rows))
}

struct Narrowed {
    /// The replacement of each node, with its chosen rows only.
    made: BTreeMap<NodeId, NodeId>,
    /// The chosen rows of values that have all rows.
    chosen: BTreeMap<(Value, Value), NodeId>,
}

impl Narrowed {
    fn remake(&mut self, graph: &mut Graph, id: NodeId, rows: Value) -> Result<(), Diagnostic> {
        let location = graph.location(id).to_string();
        let mut operands = graph.operands(id);
        for v in &mut operands {
            if let Some(&made) = self.made.get(&v.node).or_else(|| self.chosen.get(&(*v, rows))) {
                *v = made.into();
            } else if has_row_a_token(graph, *v) {
                let chosen = graph.push(Op::Gather {}, &[*v, rows], &location)?;
                self.chosen.insert((*v, rows), chosen);
                *v = chosen.into();
            }
        }
        let made = graph.push(graph.op(id).clone(), &operands, &location)?;
        self.made.insert(id, made);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ANY, WHOLE, check_in, read};

    #[test]
    fn work_on_rows_that_nobody_reads() {
        let text = r#"graph @g(%x: bf16[T, 16], %y: bf16[T, 16], %rows: i32[R]) {
            %0 = weight {name = "n"} : bf16[16]
            %1 = rms_norm %x, %0 {eps = 1e-6} : bf16[T, 16]
            %2 = weight {name = "w"} : bf16[32, 16]
            %3 = linear %1, %2 {out = bf16} : bf16[T, 32]
            %4 = slice %3 {axis = 1, start = 0, len = 16} : bf16[T, 16]
            %5 = slice %3 {axis = 1, start = 16, len = 16} : bf16[T, 16]
            %6 = mul %4, %5 : bf16[T, 16]
            %7 = add %6, %x : bf16[T, 16]
            %8 = add %7, %y : bf16[T, 16]
            %9 = gather %8, %rows : bf16[R, 16]
            return %9
        }"#;
        assert_eq!(check_in(&ANY, "narrow", text), read(text).print());
        insta::assert_snapshot!(check_in(&WHOLE, "narrow", text), @r#"
        graph @g(%x: bf16[T, 16], %y: bf16[T, 16], %rows: i32[R]) {
          %0 = gather %x, %rows : bf16[R, 16]
          %1 = weight {name = "n"} : bf16[16]
          %2 = rms_norm %0, %1 {eps = 1e-6} : bf16[R, 16]
          %3 = weight {name = "w"} : bf16[32, 16]
          %4 = linear %2, %3 {out = bf16} : bf16[R, 32]
          %5 = slice %4 {axis = 1, start = 0, len = 16} : bf16[R, 16]
          %6 = slice %4 {axis = 1, start = 16, len = 16} : bf16[R, 16]
          %7 = mul %5, %6 : bf16[R, 16]
          %8 = add %7, %0 : bf16[R, 16]
          %9 = gather %y, %rows : bf16[R, 16]
          %10 = add %8, %9 : bf16[R, 16]
          return %10
        }
        "#);
    }

    #[test]
    fn rows_that_somebody_reads() {
        let text = r#"graph @g(%x: bf16[T, 16], %rows: i32[R]) {
            %0 = silu %x : bf16[T, 16]
            %1 = silu %0 : bf16[T, 16]
            %2 = gather %1, %rows : bf16[R, 16]
            %3 = silu %1 : bf16[T, 16]
            %4 = gather %3, %rows : bf16[R, 16]
            return %1, %2, %4
        }"#;
        insta::assert_snapshot!(check_in(&WHOLE, "narrow", text), @"
        graph @g(%x: bf16[T, 16], %rows: i32[R]) {
          %0 = silu %x : bf16[T, 16]
          %1 = silu %0 : bf16[T, 16]
          %2 = gather %1, %rows : bf16[R, 16]
          %3 = gather %1, %rows : bf16[R, 16]
          %4 = silu %3 : bf16[R, 16]
          return %1, %2, %4
        }
        ");
    }

    #[test]
    fn rows_of_choices_stay_those_of_all_tokens() {
        let text = r#"graph @g(%x: bf16[T, 16], %y: bf16[T*1, 16], %p: f32[T*1, 1], %rows: i32[R]) {
            %0 = combine %y, %p : bf16[T, 16]
            %1 = add %x, %0 : bf16[T, 16]
            %2 = gather %1, %rows : bf16[R, 16]
            return %2
        }"#;
        insta::assert_snapshot!(check_in(&WHOLE, "narrow", text), @r"
        graph @g(%x: bf16[T, 16], %y: bf16[T*1, 16], %p: f32[T*1, 1], %rows: i32[R]) {
          %0 = gather %x, %rows : bf16[R, 16]
          %1 = combine %y, %p : bf16[T, 16]
          %2 = gather %1, %rows : bf16[R, 16]
          %3 = add %0, %2 : bf16[R, 16]
          return %3
        }
        ");
    }

    #[test]
    fn what_needs_other_rows() {
        let text = r#"graph @g(%q: bf16[T, 2, 4], %kv0: cache<bf16, 2, 4>, %batch: batch, %rows: i32[R]) {
            %0 = kv_write %kv0, %q, %q, %batch : cache<bf16, 2, 4>
            %1 = attention %q, %0, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4]
            %2 = reshape %1 {shape = [T, 8]} : bf16[T, 8]
            %3 = gather %2, %rows : bf16[R, 8]
            return %3, %0
        }"#;
        insta::assert_snapshot!(check_in(&WHOLE, "narrow", text), @"
        graph @g(%q: bf16[T, 2, 4], %kv0: cache<bf16, 2, 4>, %batch: batch, %rows: i32[R]) {
          %0 = kv_write %kv0, %q, %q, %batch : cache<bf16, 2, 4>
          %1 = attention %q, %0, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4]
          %2 = reshape %1 {shape = [T, 8]} : bf16[T, 8]
          %3 = gather %2, %rows : bf16[R, 8]
          return %3, %0
        }
        ");
    }
}
