//! Which elements of a kernel's results are compared where not all are.
//!
//! Results are cut into cells of 16 rows and 16 columns, no larger than any tile of a schedule, and
//! of each cell an element is taken: of another column in each tile of rows, until all columns were
//! there, and of another row in each cell beside it. Rows of experts are cut expert by expert. What
//! a product of rows makes of few rows is so compared in every column at least once. Attention
//! gives whole heads: of each tile of tokens every head of one. What costs little is compared
//! whole.
use super::demand::{contracted, lead, row_width};
use super::mask::Mask;
use super::{Param, Trial};
use crate::graph::Value;
use crate::ops::Op;
use crate::types::{Dim, Type};

/// Rows and columns of a cell.
const CELL: usize = 16;
/// Rows of the largest cell, if there is too much to do with smaller ones.
const MOST_ROWS: usize = 128;
/// Products that are few enough to compute all.
const FEW: usize = 1 << 20;
/// Products of a sample at most, if larger cells have fewer.
const MOST: usize = 1 << 32;
/// Elements of rows that are computed at most, if every other row will do.
const MOST_ELEMENTS: usize = 1 << 23;

/// How often every column is compared, in other rows if there are some: what is wrong with a column
/// may be little in one of them.
pub(super) const REPEATS: usize = 2;
/// The same of columns with scales of their own, of which one is a part of a sum: it may be little
/// in two rows by chance, as it is in one of some hundred.
pub(super) const REPEATS_OF_SCALES: usize = 4;

/// How elements are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// What chooses inside cells.
    pub seed: u64,
    /// Whether every column of a product is wanted once. If not, one of each cell is.
    pub every_column: bool,
}

/// Rows of a result that lie in one tile.
pub(super) type Tiles = Vec<Vec<usize>>;

/// A product of rows, or attention, as far as a sample of its results is concerned.
struct Cells {
    /// Columns that belong together: one, or those of a head.
    unit: usize,
    /// How many units of each cell a tile has; none for as many as it takes to have all of them so
    /// often.
    per: Option<usize>,
    repeats: usize,
    /// Tiles that share out the columns among them.
    sharing: usize,
}

impl Trial<'_> {
    /// The elements of each result to compare.
    pub(super) fn sample(&self, sampling: Sampling) -> Vec<(Value, Mask)> {
        let outputs = self.graph.outputs().iter().copied();
        outputs.filter(|&v| lead(self.graph.ty(v)).is_some()).map(|v| (v, self.wanted(v, sampling))).collect()
    }

    fn wanted(&self, v: Value, sampling: Sampling) -> Mask {
        let cx = self.step.cx();
        let ty = self.graph.ty(v);
        let (dim, width) = (lead(ty).unwrap_or(Dim::Fixed(1)), row_width(ty));
        let mut mask = Mask::new(dim.at(cx.tokens, cx.rows), width);
        let attention = self.graph.ids().find(|&id| self.graph.op(id).attends());
        let key =
            |part: usize| hash(sampling.seed, self.graph.outputs().iter().position(|&o| o == v).unwrap_or(0), part);
        match (contracted(self.graph), attention, ty) {
            _ if mask.rows == 0 => {}
            (_, _, Type::Cache(_) | Type::Slots(_)) | (None, None, _) => self.rows(&mut mask, key(0)),
            (Some(cols), _, _) if mask.rows * width * cols <= FEW => all(&mut mask),
            (Some(work), _, _) => {
                let mut tiles = self.tiles(dim, mask.rows, CELL);
                let per = if sampling.every_column { None } else { Some(1) };
                let repeats = if self.has_scales_of_rows(|_| true) { REPEATS_OF_SCALES } else { REPEATS };
                let mut cells = Cells { unit: 1, per, repeats, sharing: tiles.len() };
                while tiles.len() * width.div_ceil(CELL) * work > MOST && tiles.iter().any(|t| t.len() > CELL / 2) {
                    let next = 2 * tiles.iter().map(Vec::len).max().unwrap_or(CELL).next_power_of_two();
                    if next > MOST_ROWS {
                        break;
                    }
                    tiles = self.tiles(dim, mask.rows, next);
                }
                let of_experts = self.has_scales_of_rows(|op| matches!(op, Op::Grouped { .. }));
                cells.sharing = if of_experts { self.fewest(dim, &tiles) } else { tiles.len() };
                cells.choose(&tiles, &mut mask, &key);
            }
            (None, Some(id), _) => {
                let unit = self.graph.ty(id.into()).as_tensor().and_then(|t| t.shape.last()).unwrap_or(1);
                let positions: usize = self.step.runs.iter().map(|run| run.tokens * (run.position + run.tokens)).sum();
                let work = positions / mask.rows.max(1) * 2;
                if mask.rows * width * work <= FEW {
                    all(&mut mask);
                    return mask;
                }
                let mut side = CELL;
                while mask.rows.div_ceil(side) * width * work > MOST && side < MOST_ROWS {
                    side *= 2;
                }
                let tiles = self.tiles(dim, mask.rows, side);
                Cells { unit, per: Some(CELL), repeats: 1, sharing: 1 }.choose(&tiles, &mut mask, &key);
            }
        }
        mask
    }

    /// All rows, or some of each of so many that follow each other.
    fn rows(&self, mask: &mut Mask, key: u64) {
        let widest = self.graph.ids().flat_map(|id| self.graph.types(id).to_vec());
        let widest = widest.filter(|ty| lead(ty).is_some()).map(|ty| row_width(&ty) * choices(&ty)).max().unwrap_or(1);
        let every = (mask.rows * widest).div_ceil(MOST_ELEMENTS).max(1);
        for first in (0..mask.rows).step_by(every) {
            let row = first + hash(key, first, 0) as usize % every.min(mask.rows - first);
            mask.set_range(row, 0..mask.width);
        }
        let last = mask.rows.saturating_sub(1);
        mask.set_range(last, 0..mask.width);
    }

    /// Tiles of so many rows of a result: of rows that have experts those of one each.
    pub(super) fn tiles(&self, dim: Dim, rows: usize, most: usize) -> Tiles {
        let of = self.experts_of(dim).filter(|experts| experts.len() == rows);
        let Some(experts) = of else { return (0..rows).collect::<Vec<_>>().chunks(most).map(<[_]>::to_vec).collect() };
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|&row| experts[row]);
        order.chunk_by(|&a, &b| experts[a] == experts[b]).flat_map(|own| own.chunks(most).map(<[_]>::to_vec)).collect()
    }

    /// The experts of a result's rows, if they have some.
    fn experts_of(&self, dim: Dim) -> Option<&[i32]> {
        let node = self.graph.ids().find(|&id| matches!(self.graph.op(id), Op::Grouped { .. }))?;
        let list = self.graph.operands(node)[2];
        let number = self.graph.inputs().into_iter().position(|v| v == list)?;
        match &self.params[number] {
            Param::Indices(experts) if matches!(dim, Dim::Choices(_)) => Some(experts),
            _ => None,
        }
    }

    /// Whether rows of a weight have scales of their own, so that one of them is in one column.
    fn has_scales_of_rows(&self, wanted: impl Fn(&Op) -> bool) -> bool {
        self.graph.ids().map(|id| self.graph.op(id)).filter(|op| wanted(op)).any(|op| match op {
            Op::Linear { block, .. } | Op::PerHead { block, .. } | Op::Grouped { block, .. } => {
                block.is_some_and(|block| block.rows < CELL)
            }
            _ => false,
        })
    }

    /// Tiles of the expert that has the fewest.
    fn fewest(&self, dim: Dim, tiles: &Tiles) -> usize {
        let Some(experts) = self.experts_of(dim) else { return tiles.len() };
        tiles.chunk_by(|a, b| experts[a[0]] == experts[b[0]]).map(<[_]>::len).min().unwrap_or(1)
    }
}

impl Cells {
    fn choose(&self, tiles: &Tiles, mask: &mut Mask, key: &impl Fn(usize) -> u64) {
        let units = mask.width / self.unit;
        let per = self.per.unwrap_or_else(|| (self.repeats * CELL).div_ceil(self.sharing.max(1)));
        for (number, tile) in tiles.iter().enumerate() {
            for cell in 0..units.div_ceil(CELL) {
                let own = CELL.min(units - cell * CELL);
                let chosen = key(cell);
                // An odd step meets all columns.
                let (first, step) = (chosen as usize % CELL, ((chosen >> 32) as usize % CELL) | 1);
                // The next cell goes on with the rows.
                let start = hash(key(usize::MAX), number, 0) as usize % tile.len() + cell * per;
                for n in 0..per {
                    let unit = cell * CELL + (first + (number * per + n) * step) % CELL % own;
                    let row = tile[(start + n + n / CELL) % tile.len()];
                    mask.set_range(row, unit * self.unit..(unit + 1) * self.unit);
                }
            }
        }
        let ends = |len: usize| [0, len.saturating_sub(1)];
        for row in ends(mask.rows) {
            ends(units).iter().for_each(|unit| mask.set_range(row, unit * self.unit..(unit + 1) * self.unit));
        }
    }
}

/// Rows for each token.
fn choices(ty: &Type) -> usize {
    ty.as_tensor().map_or(1, |t| t.choices())
}

fn all(mask: &mut Mask) {
    (0..mask.rows).for_each(|row| mask.set_range(row, 0..mask.width));
}

/// A number that follows from others: a round of SplitMix64.
fn hash(seed: u64, a: usize, b: usize) -> u64 {
    let z = seed
        .wrapping_add((a as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add((b as u64).wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
