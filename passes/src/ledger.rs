//! The ledger: what a kernel must move and compute in a step of the bucket's size.
use std::ops::AddAssign;

use atomc_ir::{Graph, NodeId, Op, Reads, TensorType, Type, Value};

use crate::pass::Cx;

/// The least that a kernel moves and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Each operand and each result once, without padding. Of a table that is gathered from, only
    /// the chosen rows. Of a cache, the step's own keys and values, because the lengths of
    /// sequences are not known. Of slots, those of the fewest possible sequences.
    pub bytes: u64,
    /// Operations of contractions, an addition and a multiplication each.
    pub flops: u64,
}

impl AddAssign for Ledger {
    fn add_assign(&mut self, other: Ledger) {
        self.bytes += other.bytes;
        self.flops += other.flops;
    }
}

/// The experts that a kernel reads the weights of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The body's input with the expert of each row, and the rows of each token.
    pub input: usize,
    pub choices: usize,
    /// Bytes of the weights of one expert, and those in the ledger.
    pub bytes: u64,
    pub counted: u64,
}

/// The experts with weights that a kernel reads, if it reads some that the step chooses.
pub fn chosen(graph: &Graph, kernel: NodeId, cx: &Cx) -> Option<Chosen> {
    let body = body_of(graph, kernel)?;
    let product = body.ids().find(|&id| matches!(body.op(id), Op::Grouped { .. }))?;
    let operands = body.operands(product);
    let experts = all_experts(graph, kernel);
    let inputs = body.inputs();
    let all = weight_bytes(body, product, cx);
    let count = body.ty(operands[1]).as_tensor()?.shape.0[0].fixed()?;
    let input = inputs.iter().position(|&input| input == operands[2])?;
    // What a caller gives is in no buffer of the step's.
    if matches!(graph.op(graph.operands(kernel)[input].node), Op::Input { .. }) {
        return None;
    }
    Some(Chosen {
        input,
        choices: body.ty(operands[2]).as_tensor()?.choices(),
        bytes: all / count.max(1) as u64,
        counted: weights(body, product).into_iter().map(|v| read_bytes(body, v, experts, cx)).sum(),
    })
}

/// The weights of experts that a product multiplies by, with their scales and zero points.
fn weights(graph: &Graph, product: NodeId) -> Vec<Value> {
    let operands = graph.operands(product).into_iter().enumerate();
    operands.filter(|&(slot, _)| slot != 0 && slot != 2).map(|(_, v)| v).collect()
}

/// Bytes of the weights of all experts that a product multiplies with.
pub fn weight_bytes(graph: &Graph, product: NodeId, cx: &Cx) -> u64 {
    weights(graph, product).into_iter().filter_map(|v| graph.ty(v).as_tensor()).map(|t| bytes(t, cx)).sum()
}

/// The ledger of one kernel; nothing for any other node.
pub fn ledger(graph: &Graph, kernel: NodeId, cx: &Cx) -> Ledger {
    let Op::Kernel { body, .. } = graph.op(kernel) else { return Ledger::default() };
    let experts = all_experts(graph, kernel);
    let read: u64 = body.inputs().into_iter().map(|v| read_bytes(body, v, experts, cx)).sum();
    let tensors = graph.types(kernel).iter().filter_map(Type::as_tensor);
    let written: u64 = tensors.map(|t| bytes(t, cx)).sum();
    Ledger { bytes: read + written, flops: body.ids().map(|id| flops(body, id, cx)).sum() }
}

fn bytes(t: &TensorType, cx: &Cx) -> u64 {
    t.bytes(cx.bucket.tokens(), cx.bucket.rows()) as u64
}

/// The number of experts that the tokens of a kernel's product choose from, if it is known: more
/// than there are weights of, where ranks hold some each.
fn all_experts(graph: &Graph, kernel: NodeId) -> Option<usize> {
    let (mut kernel, mut body) = (kernel, body_of(graph, kernel)?);
    let product = body.ids().find(|&id| matches!(body.op(id), Op::Grouped { .. }))?;
    let mut chosen = body.operands(product)[2];
    loop {
        let slot = body.inputs().iter().position(|&input| input == chosen)?;
        let made = graph.operands(kernel)[slot];
        (kernel, body) = (made.node, body_of(graph, made.node)?);
        let made = body.outputs()[made.out];
        let from = *body.operands(made.node).first()?;
        match body.op(made.node) {
            Op::Route { .. } => return body.ty(from).as_tensor()?.shape.last(),
            Op::Group { .. } => chosen = from,
            _ => return None,
        }
    }
}

fn body_of(graph: &Graph, kernel: NodeId) -> Option<&Graph> {
    match graph.op(kernel) {
        Op::Kernel { body, .. } => Some(body),
        _ => None,
    }
}

fn read_bytes(body: &Graph, v: Value, experts: Option<usize>, cx: &Cx) -> u64 {
    let users = body.users(v);
    let gathered = |&(user, slot): &(NodeId, usize)| body.op(user).reads(slot) == Reads::Chosen;
    if let Some(&(product, slot)) = users.iter().find(|(user, _)| matches!(body.op(*user), Op::Grouped { .. }))
        && slot != 0
        && slot != 2
        && let Some(t) = body.ty(v).as_tensor()
    {
        return (bytes(t, cx) as f64 * part_of(body, product, experts, cx)) as u64;
    }
    match body.ty(v) {
        Type::Tensor(_) if !users.is_empty() && users.iter().all(gathered) => {
            users.iter().filter_map(|(user, _)| body.ty((*user).into()).as_tensor()).map(|t| bytes(t, cx)).sum()
        }
        Type::Tensor(t) => bytes(t, cx),
        Type::Cache(c) => (cx.bucket.tokens() * c.numbers() * c.dtype.size()) as u64,
        // Of each sequence one is read, and those of the tokens behind which it is kept are
        // written.
        Type::Slots(s) => {
            let written = cx.bucket.each().filter(|&each| s.keeps(each, false)).unwrap_or(1);
            ((1 + written) * cx.bucket.sequences() * s.dtype.bytes(s.numbers())) as u64
        }
        Type::Batch => 0,
    }
}

/// The part of the experts that a product's step chooses on average.
fn part_of(body: &Graph, product: NodeId, experts: Option<usize>, cx: &Cx) -> f64 {
    let operands = body.operands(product);
    let tensor = |v: Value| body.ty(v).as_tensor();
    let count = experts.or(tensor(operands[1]).and_then(|t| t.shape.0[0].fixed())).unwrap_or(1);
    part_chosen(count, tensor(operands[2]).map_or(1, TensorType::choices), cx.bucket.tokens())
}

/// The share of `experts` experts that a step chooses on average, if all are equally likely.
pub fn part_chosen(experts: usize, choices: usize, tokens: usize) -> f64 {
    let missed = 1.0 - choices.min(experts) as f64 / experts as f64;
    1.0 - missed.powi(i32::try_from(tokens).unwrap_or(i32::MAX))
}

fn flops(body: &Graph, id: NodeId, cx: &Cx) -> u64 {
    let elements = |t: &TensorType| t.shape.elements(cx.bucket.tokens(), cx.bucket.rows());
    let operands = body.operands(id);
    let types: Vec<&Type> = operands.iter().map(|&v| body.ty(v)).collect();
    (body.ty(id.into()).as_tensor().map_or(0, elements) * body.op(id).work(&types)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DECODE, read};
    use crate::{Bucket, Cx};

    fn check(cx: &Cx, params: &str, kernel: &str) -> (u64, u64) {
        let graph = read(&format!("graph @g({params}) {{\n{kernel}\nreturn %y\n}}"));
        let Ledger { bytes, flops } = ledger(&graph, graph.outputs()[0].node, cx);
        (bytes, flops)
    }

    #[test]
    fn a_contraction() {
        let params = "%x: bf16[T, 8], %w: bf16[16, 8]@panels, %r: bf16[T, 16]";
        let kernel = "%y = kernel %x, %w, %r {family = matvec} : bf16[T, 16]
            graph @k(%a0: bf16[T, 8], %a1: bf16[16, 8]@panels, %a2: bf16[T, 16]) {
              %0 = linear %a0, %a1 {out = bf16} : bf16[T, 16]
              %1 = add %a2, %0 : bf16[T, 16]
              return %1
            }";
        assert_eq!(check(&DECODE, params, kernel), (2 * (8 + 128 + 16 + 16), 2 * 8 * 16));
        let four = Cx { bucket: Bucket::Decode { tokens: 4 }, ..DECODE };
        assert_eq!(check(&four, params, kernel), (2 * (4 * 8 + 128 + 4 * 16 + 4 * 16), 2 * 4 * 8 * 16));
    }

    /// 4 bits an element, and its scales.
    #[test]
    fn a_contraction_of_codes() {
        let params = "%x: bf16[T, 64], %w: i4[16, 64]@panels, %s: bf16[16, 2]";
        let kernel = "%y = kernel %x, %w, %s {family = matvec} : bf16[T, 16]
            graph @k(%a0: bf16[T, 64], %a1: i4[16, 64]@panels, %a2: bf16[16, 2]) {
              %0 = linear %a0, %a1, %a2 {out = bf16, block = [1, 32]} : bf16[T, 16]
              return %0
            }";
        let bytes = 2 * 64 + 16 * 64 / 2 + 2 * 16 * 2 + 2 * 16;
        assert_eq!(check(&DECODE, params, kernel), (bytes, 2 * 64 * 16));
    }

    /// A token chooses 2 of 4 experts, so two tokens choose three on average; of a rank that holds
    /// half of them, proportionally.
    #[test]
    fn of_experts_those_that_are_chosen_on_average() {
        let text = |held: &str, first: &str, count: usize| {
            format!(
                "graph @g(%l: f32[T, 4], %x: bf16[T, 8], %w: bf16[{count}, 16, 8]@panels{first}) {{
  %c, %e = kernel %l{operand} {{family = rows}} : f32[T, 2], i32[T*2]
    graph @k(%a0: f32[T, 4]{param}) {{
      %0, %1 = route %a0{last} {{by = (2, softmax, 1, 1, max, true, 1.0){held}}} : f32[T, 2], i32[T*2]
      return %0, %1
    }}
  %y = kernel %x, %w, %e {{family = grouped_matvec}} : bf16[T*2, 16]
    graph @k(%a0: bf16[T, 8], %a1: bf16[{count}, 16, 8]@panels, %a2: i32[T*2]) {{
      %0 = grouped %a0, %a1, %a2 {{out = bf16}} : bf16[T*2, 16]
      return %0
    }}
  return %c, %y
}}",
                operand = if first.is_empty() { "" } else { ", %first" },
                param = if first.is_empty() { "" } else { ", %a1: f32[1]" },
                last = if first.is_empty() { "" } else { ", %a1" },
            )
        };
        let two = Cx { bucket: Bucket::Decode { tokens: 2 }, ..DECODE };
        let bytes = |text: &str| {
            let graph = read(text);
            ledger(&graph, graph.outputs()[1].node, &two).bytes
        };
        let rest = 2 * (2 * 8) + 4 * (2 * 2) + 2 * (4 * 16);
        assert_eq!(bytes(&text("", "", 4)), rest + 3 * 2 * (16 * 8));
        assert_eq!(bytes(&text(", held = 2", ", %first: f32[1]", 2)), rest + 3 * (16 * 8));
    }

    #[test]
    fn of_a_table_only_the_rows_that_are_read() {
        let kernel = "%y = kernel %w, %ids {family = rows} : bf16[T, 8]
            graph @k(%a0: bf16[1000, 8], %a1: i32[T]) {
              %0 = gather %a0, %a1 : bf16[T, 8]
              return %0
            }";
        assert_eq!(check(&DECODE, "%w: bf16[1000, 8], %ids: i32[T]", kernel), (16 + 4 + 16, 0));
    }

    /// Bytes of slots are those of the fewest sequences: a prompt may be one sequence, and its
    /// state is read and written once.
    #[test]
    fn of_slots_those_of_the_least_sequences() {
        let kernel = "%y, %t = kernel %s, %q, %k, %v, %g, %b, %batch {family = recur} : bf16[T, 2, 8], slots<f32, 2, 4, 8>
            graph @k(%a0: slots<f32, 2, 4, 8>, %a1: bf16[T, 1, 4], %a2: bf16[T, 1, 4], %a3: bf16[T, 2, 8], %a4: f32[T, 2], %a5: f32[T, 2], %a6: batch) {
              %0, %1 = delta_rule %a0, %a1, %a2, %a3, %a4, %a5, %a6 {eps = 1e-6} : bf16[T, 2, 8], slots<f32, 2, 4, 8>
              return %0, %1
            }";
        let params = "%s: slots<f32, 2, 4, 8>, %q: bf16[T, 1, 4], %k: bf16[T, 1, 4], %v: bf16[T, 2, 8], %g: f32[T, 2], %b: f32[T, 2], %batch: batch";
        let graph = read(&format!("graph @g({params}) {{\n{kernel}\nreturn %y, %t\n}}"));
        let of = |bucket: Bucket| ledger(&graph, graph.outputs()[0].node, &Cx { bucket, ..DECODE });
        let (slot, token) = (2 * 4 * (2 * 4 * 8), 2 * (4 + 4 + 16) + 4 * (2 + 2) + 2 * 16);
        let flops = 3 * 2 * 4 * 16;
        for (bucket, tokens, sequences) in [
            (Bucket::Decode { tokens: 4 }, 4, 4),
            (Bucket::Verify { sequences: 2, each: 3 }, 6, 2),
            (Bucket::Whole { tokens: 512, rows: 64 }, 512, 1),
        ] {
            let Ledger { bytes, flops: found } = of(bucket);
            assert_eq!((bytes, found), (sequences * slot + tokens * token, tokens * flops), "{bucket}");
        }
    }

    #[test]
    fn of_a_cache_the_keys_and_values_of_the_step() {
        let kernel = "%y = kernel %q, %kv, %batch {family = attend_many} : bf16[T, 4, 4]
            graph @k(%a0: bf16[T, 4, 4], %a1: cache<bf16, 2, 4>, %a2: batch) {
              %0 = attention %a0, %a1, %a2 {scale = 0.5, window = 0} : bf16[T, 4, 4]
              return %0
            }";
        let params = "%q: bf16[T, 4, 4], %kv: cache<bf16, 2, 4>, %batch: batch";
        assert_eq!(check(&DECODE, params, kernel), (32 + 2 * 16 + 32, 0));
    }
}
