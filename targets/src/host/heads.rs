//! Products of heads that have a matrix each: a task is some tokens' rows of one head against a few
//! panels of its matrix. A call's tasks follow each other on a head; it gathers the rows of the
//! head once.
use atomc_artifact::manifest;
use atomc_ir::{Diagnostic, Graph, Op};
use inkwell::IntPredicate;

use super::Host;
use super::contract::{Contraction, LINE};
use super::group::store_word;
use super::matmul::{Job, SUMS};
use super::signature;
use super::tile::{self, Tiles};
use crate::KernelSpec;
use crate::code::Int;
use crate::row::unsupported;

/// Most tokens of a task.
const MOST: usize = SUMS;
/// Tokens from which on tiles are worth it.
const TILED: usize = 16;

/// Whether a body has such a product.
pub fn is(body: &Graph) -> bool {
    body.ids().any(|id| matches!(body.op(id), Op::PerHead { .. }))
}

pub fn emit<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let contraction = Contraction::new(c, &kernel)?;
    let heads = contraction.heads().ok_or_else(|| unsupported("a product of heads without heads"))?;
    let most = if spec.invariant { MOST } else { spec.tokens.min(MOST) };
    let by_tiles = contraction.dot.has_tiles() && most >= TILED;
    let panels = if contraction.panels().is_multiple_of(2) { 2 } else { 1 };
    let times = contraction.panels() / panels;
    let codes = contraction.codes()?;
    let sums = if by_tiles { SUMS * SUMS * 4 } else { 0 };
    let unpacked = if codes.is_some() { panels * contraction.float_panel_bytes() } else { 0 };
    let list = (4 * most).next_multiple_of(64);
    // Which rows are there, which tokens they are of, and they themselves.
    let state = c.at(signature::scratch(c), sums + unpacked);
    let (tokens, rows) = (c.at(state, LINE), c.at(state, LINE + list));
    c.store(state, 0 - c.int(1), 8);
    let (step, by_rows) = signature::step(c);
    let total = if kernel.by_rows { by_rows } else { step };
    let (first, end) = signature::tasks(c);
    let open = by_tiles.then(|| Tiles::open(c, tile::ROWS));
    kernel.each(first, end, |task| {
        let (place, panel) = (task / times, task % times * panels);
        let (from, head) = (place / heads * most, place % heads);
        let count = c.smaller(total - from, most);
        let own = contraction.of_expert(head);
        let mut gathered = Ok(());
        c.when(c.compare(IntPredicate::NE, c.load_i64(state), place), || {
            c.store(state, place, 8);
            c.repeat(0, count, 1, |row: Int<'c>| {
                store_word(c, tokens, row, from + row);
                gathered = own.unpack_row(from + row, c.at(rows, row * own.row_bytes()));
            });
        });
        gathered?;
        let codes = codes.as_ref().map(|codes| codes.of_expert(head));
        let scratch = codes.as_ref().map(|codes| (codes, c.at(signature::scratch(c), sums)));
        let x = (rows, own.row_bytes());
        let job =
            Job { c, contraction: &own, x, panel, panels, scratch, chosen: Some((tokens, 1)), few: spec.invariant };
        match &open {
            Some(tiles) => job.by_tiles(tiles, c.int(0), count),
            None => job.by_vectors(c.int(0), count),
        }
    })?;
    if let Some(tiles) = open {
        tiles.close();
    }
    // Products take whole groups of rows.
    let room = most.next_multiple_of(SUMS) * contraction.row_bytes();
    let tasks = kernel.row_tasks(most, heads * times);
    Ok(manifest::Kernel::host(tasks, sums + unpacked + LINE + list + room))
}
