//! Inverts a lower triangle with ones on the diagonal, in local memory, in place.
//!
//! Blocks of 16 by 16 on the diagonal are inverted by substitution, a column for each thread. Two
//! neighbouring blocks and the block below the first are `[a 0; b c]`, with the inverse
//! `[a' 0; -c' b a', c']`: so blocks become twice as large until there is one.
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::machine::Gpu;

use super::products::{COLUMNS, Products, Rows, Runs};

/// Rows and columns of the blocks to begin with.
pub const BLOCK: usize = 16;

/// Inverts a triangle of `rows` rows, in a work-group with a thread for each row and a wave for
/// each 32. The caller has barriers before and after.
pub fn invert<'c>(p: &Products<'_, 'c>, triangle: Rows<'c>, rows: usize) {
    diagonal(p, triangle, rows);
    let mut half = BLOCK;
    while half < rows {
        p.meet();
        double(p, triangle, half, rows);
        half *= 2;
    }
}

/// Inverts the blocks on the diagonal.
fn diagonal<'c>(p: &Products<'_, 'c>, triangle: Rows<'c>, rows: usize) {
    let c = p.c;
    let (column, block) = (p.thread % BLOCK, p.thread / BLOCK % (rows / BLOCK) * BLOCK);
    let at = |row: usize, column: usize| triangle.at(c, block + row, block + column);
    c.set_lanes(1);
    let mut made: Vec<Vector<'c>> = vec![];
    for row in 0..BLOCK {
        let one = c.pick(c.equal(column, row), c.lit(1.0), c.zero()).into_vector_value();
        let known: Vec<Any<'c>> = (0..row.next_multiple_of(4)).step_by(4).flat_map(|i| four(c, at(row, i))).collect();
        let terms = made.iter().zip(known);
        made.push(terms.fold(one, |sum, (&made, known)| c.fma(c.fmul(c.splat(known), c.lit(-1.0)), made, sum)));
    }
    // All threads have read the values that are overwritten.
    p.meet();
    c.when(c.less(p.thread, rows), || {
        for (row, &made) in made.iter().enumerate() {
            c.store(triangle.at(c, block + row, block + column), made, 4);
        }
    });
}

/// Four numbers of local memory.
fn four<'c>(c: &Gpu<'c>, p: Ptr<'c>) -> Vec<Any<'c>> {
    let all = c.load_vector(c.cx.f32_type(), 4, p, 16);
    (0..4).map(|i| c.lane(all, i)).collect()
}

/// Makes one block of two neighbours, everywhere on the diagonal: each wave has some columns.
fn double<'c>(p: &Products<'_, 'c>, triangle: Rows<'c>, half: usize, rows: usize) {
    let (c, spans) = (p.c, half.div_ceil(p.span()));
    let units = rows / (2 * COLUMNS);
    let unit = c.wave_index() % units;
    let (pair, part) = (unit / (half / COLUMNS), unit % (half / COLUMNS));
    let first = pair * (2 * half);
    let second = first + half;
    let column = |block: usize| first + part * COLUMNS + p.column(block);
    // Numbers of a run that the block has.
    let own = |span: usize, run: Vector<'c>| {
        c.set_lanes(p.depth());
        c.choose(c.lanes_below(c.int(half) - p.first(span)), run, c.zero())
    };
    let upper = p.runs(spans, |block, span| {
        let number = |i: usize| {
            let row = c.smaller(p.first(span) + i, half - 1);
            c.load(c.cx.f32_type(), triangle.at(c, first + row, column(block)), 4)
        };
        own(span, c.floats(&(0..p.depth()).map(number).collect::<Vec<_>>()))
    });
    // For columns that no block has, other columns are loaded and multiplied by nothing.
    let columns = |from: Int<'c>| move |span: usize| c.smaller(from + p.first(span), rows - p.depth());
    let row = |r: Int<'c>| second + c.smaller(r, half - 1);
    let all = |_, _| true;
    let made = p.multiply((triangle, columns(first), row), &upper, p.zeros(spans), all);
    let made = p.runs(spans, |block, span| own(span, made[block][span]));
    let made: Runs<'c> = p.multiply((triangle, columns(second), row), &made, p.zeros(spans), all);
    let made = p.runs(spans, |block, span| c.pin(made[block][span]));
    // All threads have read the values that are overwritten.
    p.meet();
    c.when(c.less(c.wave_index(), units), || {
        for (block, of_block) in made.iter().enumerate() {
            for (span, &run) in of_block.iter().enumerate() {
                for i in 0..p.depth() {
                    let row = p.first(span) + i;
                    let negative = -c.float(c.lane(run, i));
                    let store = || c.store(triangle.at(c, second + row, column(block)), negative, 4);
                    if spans * p.span() == half { store() } else { c.when(c.less(row, half), store) }
                }
            }
        }
    });
}
