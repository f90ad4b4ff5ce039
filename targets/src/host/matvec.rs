//! Family `matvec`: few rows against a streamed weight. One task is a run of panels; each weight byte is read once and
//! multiplied with every row. Rows that need computing first are computed once a call, into scratch.
use atomc_ir::Diagnostic;

use super::code::Code;
use super::contract::Contraction;
use super::kernel::Kernel;
use crate::{KernelInfo, KernelSpec, Tasks};

pub fn emit<'c>(c: &Code<'c>, spec: &KernelSpec) -> Result<KernelInfo, Diagnostic> {
    let kernel = Kernel::new(c, spec)?;
    let contraction = Contraction::new(&kernel)?;
    let (first, end) = c.tasks();
    let mut scratch = 0;
    let (x, stride) = match contraction.rows_in_memory() {
        Some(x) => x,
        None => {
            let stride = contraction.stage(c.scratch(), spec.tokens)?;
            scratch = stride * spec.tokens;
            (c.scratch(), stride)
        }
    };
    let rows: Vec<_> = (0..spec.tokens).map(|m| c.at(x, c.int(m * stride))).collect();
    let shape = Shape::choose(c, &contraction, spec.tokens);
    kernel.each(first, end, |task| {
        let panel = |p: usize| c.add(c.mul(task, c.int(shape.panels)), c.int(p));
        let weights: Vec<_> = (0..shape.panels).flat_map(|p| contraction.weights(panel(p))).collect();
        let count = c.int(contraction.groups());
        let sums = contraction.dot.sums(c, &rows, &weights, (count, contraction.dot.step(c), shape.unroll));
        for (m, sums) in sums.iter().enumerate() {
            for (p, sums) in sums.chunks(contraction.pieces()).enumerate() {
                contraction.finish(c.int(m), panel(p), sums)?;
            }
        }
        Ok(())
    })?;
    Ok(KernelInfo { tasks: Tasks::Fixed(contraction.panels() / shape.panels), scratch })
}

/// How much one task does at once.
struct Shape {
    panels: usize,
    unroll: usize,
}

impl Shape {
    /// As many sums as registers hold beside what is being multiplied: first more panels, because several streams hide the
    /// latency of page borders, then unrolling.
    fn choose(c: &Code, contraction: &Contraction, rows: usize) -> Shape {
        let registers = c.arch.vector.registers * c.arch.vector.lanes / c.arch.memory.panel;
        let room = registers.saturating_sub(2 * contraction.dot.registers()).max(1);
        let sums = |panels: usize, unroll: usize| rows * contraction.pieces() * panels * unroll;
        let fits =
            |panels: &usize| contraction.panels().is_multiple_of(*panels) && (*panels == 1 || sums(*panels, 1) <= room);
        let panels = [4, 2, 1].into_iter().find(fits).unwrap_or(1);
        let unroll = [4, 2, 1].into_iter().find(|&u| u == 1 || sums(panels, u) <= room).unwrap_or(1);
        Shape { panels, unroll }
    }
}
