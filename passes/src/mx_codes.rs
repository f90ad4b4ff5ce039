//! Keeps rows that MX quantises as codes with their scales, where the chip has instructions that
//! multiply both as they are. Elsewhere, and before products that such instructions do not make,
//! rows are the numbers that codes and scales mean. A step of one token has such a kernel too: on
//! MI355X the four products of a layer of Qwen3-8B take 32 us with it and 110 us where each
//! work-group quantises its rows (predicted).
//!
//! ```text
//! %0 = quantise %x {to = f4e2m1, rule = mx(32)}         %0 = quantise %x {to = f4e2m1, rule = mx_codes(32)}
//!    : bf16[T, 128]                               =>       : f4e2m1[T, 128]@mx(32)
//! %1 = linear %0, %w, %s {block = [1, 32]}              %1 = linear %0, %w, %s {block = [1, 32]}
//! ```
use atomc_ir::arch::BlockScaled;
use atomc_ir::{Block, DType, Diagnostic, Graph, NodeId, Op, Rule};

use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let mut changed = false;
    for id in graph.order() {
        let Op::Quantise { to, rule: Rule::Mx(columns) } = *graph.op(id) else { continue };
        let users = graph.users(id.into());
        let takes = |&(user, slot): &(NodeId, usize)| slot == 0 && takes_codes(graph, user, to);
        if graph.is_output(id.into()) || !is_multiplied(graph, id, (to, columns), cx) || !users.iter().all(takes) {
            continue;
        }
        let (op, location) = (Op::Quantise { to, rule: Rule::MxCodes(columns) }, graph.location(id).to_string());
        let codes = graph.push(op, &graph.operands(id), &location)?;
        for (user, _) in users {
            let mut operands = graph.operands(user);
            operands[0] = codes.into();
            let (op, location) = (graph.op(user).clone(), graph.location(user).to_string());
            let remade = graph.push(op, &operands, &location)?;
            graph.replace_uses(user.into(), remade.into());
        }
        changed = true;
    }
    Ok(changed.into())
}

/// Whether the chip multiplies such codes, in rows that another kernel makes.
fn is_multiplied(graph: &Graph, id: NodeId, (to, columns): (DType, usize), cx: &Cx) -> bool {
    let has_instructions = cx.arch.gpu().is_some_and(|gpu| gpu.simt.block_scaled(to).is_some());
    let width = graph.ty(id.into()).as_tensor().and_then(|t| t.shape.last()).unwrap_or(0);
    let fits = columns == BlockScaled::COLUMNS && width.is_multiple_of(BlockScaled::SPAN);
    has_instructions && fits
}

/// Whether a node is a product with a weight of such codes that has a power of two as scale for the
/// same number of columns.
fn takes_codes(graph: &Graph, product: NodeId, to: DType) -> bool {
    let (Op::Linear { block, .. } | Op::Grouped { block, .. }) = *graph.op(product) else { return false };
    let operands = graph.operands(product);
    let Some(marks) = graph.op(product).marks() else { return false };
    let dtype = |slot: usize| Some(graph.ty(*operands.get(slot)?).as_tensor()?.dtype);
    let is_mx = block == Some(Block { rows: 1, cols: BlockScaled::COLUMNS });
    is_mx && operands.len() == marks + 1 && dtype(1) == Some(to) && dtype(marks) == Some(DType::E8M0)
}

#[cfg(test)]
mod tests {
    use crate::testing::{ANY, check_in, read};

    #[test]
    fn without_instructions_rows_stay_numbers() {
        let text = r#"graph @g(%x: bf16[T, 128]) {
            %0 = quantise %x {to = f4e2m1, rule = mx(32)} : bf16[T, 128]
            %1 = weight {name = "w"} : f4e2m1[16, 128]
            %2 = weight {name = "s"} : e8m0[16, 4]
            %3 = linear %0, %1, %2 {out = bf16, block = [1, 32]} : bf16[T, 16]
            return %3
        }"#;
        assert_eq!(check_in(&ANY, "mx_codes", text), read(text).print());
    }
}
