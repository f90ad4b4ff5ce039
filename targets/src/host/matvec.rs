//! Family `matvec`: few rows against a streamed weight. One task is a run of panels; each weight
//! byte is read once and multiplied with every row. Rows that need computing first are computed
//! once a call, into scratch.
use atomc_artifact::manifest;
use atomc_ir::{DType, Diagnostic};

use super::codes::Codes;
use super::contract::Contraction;
use super::dot::{AHEAD, Walk};
use super::signature;
use super::tile::{self, Tiles};
use super::{Host, LANES};
use crate::code::{Code, Ptr, Vector};
use crate::kernel::Kernel;
use crate::{KernelSpec, Tasks};

/// From this number of rows on, multiplying pairs takes longer than reading the weight (`vdpbf16ps`
/// starts every other cycle on the cores that have tiles), and tiles are faster.
const TILE_ROWS: usize = 4;

pub fn emit<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let contraction = Contraction::new(c, &kernel)?;
    if let Some(codes) = contraction.codes()? {
        return emit_codes(c, spec, &kernel, &contraction, codes);
    }
    let (first, end) = signature::tasks(c);
    let mut scratch = 0;
    let (x, stride) = match contraction.rows_in_memory() {
        Some(x) => x,
        None => {
            let stride = contraction.stage(signature::scratch(c), spec.tokens)?;
            scratch = stride * spec.tokens;
            (signature::scratch(c), stride)
        }
    };
    let by_tiles = contraction.dot.has_tiles() && (TILE_ROWS..=tile::ROWS).contains(&spec.tokens);
    let shape = if by_tiles { Shape::of_tiles(&contraction) } else { Shape::of_vectors(c, &contraction, spec.tokens) };
    let job = Job { c, contraction: &contraction, x, stride, rows: spec.tokens, shape };
    let tiles = by_tiles.then(|| Tiles::open(c, spec.tokens));
    let sums_at = c.at(signature::scratch(c), scratch);
    kernel.each(first, end, |task| {
        let panel = |p: usize| task * job.shape.panels + p;
        let weights: Vec<_> = (0..job.shape.panels).flat_map(|p| contraction.weights(panel(p))).collect();
        let sums = match &tiles {
            Some(tiles) => job.by_tiles(tiles, &weights, sums_at),
            None => job.by_vectors(&weights),
        };
        for (m, sums) in sums.iter().enumerate() {
            for (p, sums) in sums.chunks(contraction.pieces()).enumerate() {
                contraction.finish(c.int(m), panel(p), sums)?;
            }
        }
        Ok(())
    })?;
    if let Some(tiles) = tiles {
        tiles.close();
        scratch += job.shape.panels * contraction.pieces() * spec.tokens * LANES * 4;
    }
    Ok(manifest::Kernel::host(Tasks::Fixed(contraction.panels() / job.shape.panels), scratch))
}

/// With a weight of codes.
fn emit_codes<'k, 'a, 'c>(
    c: &'a Code<'c>,
    spec: &KernelSpec,
    kernel: &'k Kernel<'a, 'c>,
    contraction: &Contraction<'k, 'a, 'c>,
    codes: Codes<'a, 'c>,
) -> Result<manifest::Kernel, Diagnostic> {
    let (first, end) = signature::tasks(c);
    let (products, scratch) = contraction.products(codes, signature::scratch(c), spec.tokens, spec.tokens)?;
    c.repeat(0, spec.tokens, 1, |row| contraction.stage_codes(&products, row))?;
    let two = contraction.panels().is_multiple_of(2) && contraction.pieces() == 1;
    let panels = if two && products.rows_together(2, spec.tokens) == spec.tokens { 2 } else { 1 };
    let together = products.rows_together(panels * contraction.pieces(), spec.tokens);
    kernel.each(first, end, |task| {
        let (panel, ahead) = (|p: usize| task * panels + p, Some(c.int(panels)));
        let weights: Vec<_> = (0..panels).flat_map(|p| contraction.weight_panels(panel(p), ahead)).collect();
        for from in (0..spec.tokens).step_by(together) {
            let rows: Vec<_> = (from..(from + together).min(spec.tokens)).map(|m| c.int(m)).collect();
            for (&m, sums) in rows.iter().zip(products.sums(&rows, &weights)) {
                for (p, sums) in sums.chunks(contraction.pieces()).enumerate() {
                    contraction.finish(m, panel(p), sums)?;
                }
            }
        }
        Ok(())
    })?;
    Ok(manifest::Kernel::host(Tasks::Fixed(contraction.panels() / panels), scratch))
}

/// How much one task does at once.
struct Shape {
    panels: usize,
    unroll: usize,
}

impl Shape {
    /// As many sums as fit in registers next to the operands: two streams of panels, then
    /// unrolling.
    fn of_vectors(c: &Code, contraction: &Contraction, rows: usize) -> Shape {
        let registers = contraction.dot.core.vector.holds(c.arch.memory.panel);
        let room = registers.saturating_sub(2 * contraction.dot.registers()).max(1);
        let sums = |panels: usize, unroll: usize| rows * contraction.pieces() * panels * unroll;
        let two = contraction.panels().is_multiple_of(2) && contraction.pieces() == 1 && sums(2, 1) <= room;
        let panels = if two { 2 } else { 1 };
        let unroll = [4, 2, 1].into_iter().find(|&u| u == 1 || sums(panels, u) <= room).unwrap_or(1);
        Shape { panels, unroll }
    }

    fn of_tiles(contraction: &Contraction) -> Shape {
        let two = contraction.panels().is_multiple_of(2) && contraction.pieces() == 1;
        Shape { panels: if two { 2 } else { 1 }, unroll: 1 }
    }
}

struct Job<'j, 'k, 'a, 'c> {
    c: &'a Code<'c>,
    contraction: &'j Contraction<'k, 'a, 'c>,
    x: Ptr<'c>,
    stride: usize,
    rows: usize,
    shape: Shape,
}

impl<'c> Job<'_, '_, '_, 'c> {
    fn by_vectors(&self, weights: &[Ptr<'c>]) -> Vec<Vec<Vector<'c>>> {
        let (c, dot) = (self.c, &self.contraction.dot);
        let rows: Vec<_> = (0..self.rows).map(|m| c.at(self.x, m * self.stride)).collect();
        let (count, step) = (self.contraction.groups(), dot.step(c));
        let walk = Walk { count, step, unroll: self.shape.unroll, ahead: Some(c.int(AHEAD)) };
        dot.sums(c, &rows, weights, walk)
    }

    /// At most four weights, one tile of sums each.
    fn by_tiles(&self, tiles: &Tiles<'_, 'c>, weights: &[Ptr<'c>], sums: Ptr<'c>) -> Vec<Vec<Vector<'c>>> {
        let c = self.c;
        (0..weights.len()).for_each(|t| tiles.zero(t));
        c.repeat(0, self.contraction.groups() / tile::ROWS, 1, |k| {
            tiles.load(4, c.at(self.x, k * tile::ROW_BYTES), self.stride);
            for (n, &w) in weights.iter().enumerate() {
                let at = c.at(w, k * (tile::ROWS * tile::ROW_BYTES));
                for row in 0..tile::ROWS {
                    c.prefetch(c.at(at, AHEAD + row * tile::ROW_BYTES));
                }
                tiles.load(6 + n % 2, at, tile::ROW_BYTES);
                tiles.multiply(n, 4, 6 + n % 2);
            }
        });
        let row = tile::ROW_BYTES * weights.len();
        let at = |m: usize, n: usize| c.at(sums, m * row + n * tile::ROW_BYTES);
        (0..weights.len()).for_each(|n| tiles.store(n, at(0, n), row));
        (0..self.rows).map(|m| (0..weights.len()).map(|n| c.load_floats(at(m, n), DType::F32)).collect()).collect()
    }
}
