//! The tile schedulers. Without experts every work-group has one panel of the result, for all
//! tokens of the step. With the weights of experts a work-group has one panel too, for the rows of
//! one expert, or for one token, whose choices it adds up. Nothing else knows which panels there
//! are, what panels of the weight they are made of, or which rows the columns of a tile are.
use atomc_ir::Diagnostic;
use inkwell::IntPredicate;

use super::Shape;
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::unsupported;
use crate::simt::experts::Grouping;
use crate::simt::gemm::contract::{Contraction, Panel};
use crate::simt::launch;
use crate::simt::machine::Gpu;
use crate::{KernelSpec, Tasks};

/// Rows of which a lane has the experts on their way together, where a wave looks for those of one.
const TOGETHER: usize = 4;

/// The panels of a contraction, one for each work-group.
pub struct OnePanel<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    tokens: usize,
}

/// What a work-group makes: a panel of the result, of some columns.
#[derive(Clone, Copy)]
pub struct WorkTile<'c> {
    panel: Int<'c>,
    columns: usize,
    rows: Option<RowsOfExpert<'c>>,
}

/// The rows of the result that the columns of a tile are, if these are an expert's.
#[derive(Clone, Copy)]
struct RowsOfExpert<'c> {
    expert: Int<'c>,
    rows: Listed<'c>,
    /// Rows for each of x.
    each: usize,
}

/// Which rows.
#[derive(Clone, Copy)]
enum Listed<'c> {
    /// That of each column, -1 where there is none.
    At(Ptr<'c>),
    /// This one.
    One(Int<'c>),
    /// So many from one on.
    Run(Int<'c>, Int<'c>),
}

impl<'s, 'k, 'a, 'c> OnePanel<'s, 'k, 'a, 'c> {
    pub fn new(contraction: &'s Contraction<'k, 'a, 'c>, shape: Shape) -> OnePanel<'s, 'k, 'a, 'c> {
        OnePanel { contraction, tokens: shape.tokens }
    }

    /// The work-group's.
    pub fn work_tile(&self) -> WorkTile<'c> {
        WorkTile { panel: self.contraction.matrix.c.group(), columns: self.tokens, rows: None }
    }

    /// Work-groups of the kernel.
    pub fn tasks(&self) -> Tasks {
        Tasks::Fixed(self.contraction.panels())
    }
}

/// The panels of a contraction with the weights of experts: work-groups for each panel and each row
/// of the result. The first row of an expert stands for as many as a tile has columns, and so on;
/// work-groups of the other rows have nothing to do. So an expert's weight is read once, and only
/// if a row has it.
pub struct Grouped<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    /// Rows of a step of the bucket's size, and of this one.
    most: usize,
    count: Int<'c>,
    from: Ptr<'c>,
    each: usize,
}

impl<'s, 'k, 'a, 'c> Grouped<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        shape: Shape,
        spec: &KernelSpec,
    ) -> Result<Grouped<'s, 'k, 'a, 'c>, Diagnostic> {
        let (c, parts) = (contraction.matrix.c, &contraction.parts);
        let experts = parts.experts().ok_or_else(|| unsupported("a grouped product without experts"))?;
        let choices = parts.choices();
        Ok(Grouped {
            contraction,
            shape,
            most: spec.tokens * choices,
            count: launch::step_size(c, spec, false) * choices,
            from: parts.kernel.rows.index(experts)?,
            each: parts.rows_of_x()?,
        })
    }

    /// Work-groups of the kernel.
    pub fn tasks(&self) -> Tasks {
        let choices = self.contraction.parts.choices();
        Tasks::Choices { choices, per: 1, times: self.contraction.panels() }
    }

    /// Does `body` with the work-group's tile, if it has one. Rows that have no expert are finished
    /// here.
    pub fn each(&self, body: impl FnOnce(WorkTile<'c>) -> Result<(), Diagnostic>) -> Result<(), Diagnostic> {
        let c = self.contraction.matrix.c;
        let panels = self.contraction.panels();
        let (panel, row) = (c.group() % panels, c.uniform(c.group() / panels));
        let (mut made, mut without) = (Ok(()), Ok(()));
        c.when(c.less(row, self.count), || {
            let expert = c.uniform(c.load_made_index(self.from, row));
            c.when(c.less(expert, 0), || without = self.finish_row(row, panel));
            c.when(c.less(0, expert + 1), || {
                let list = c.local(self.shape.tokens * 4);
                let is_first = self.find(list, expert, row);
                c.when(is_first, || {
                    c.barrier();
                    let rows = RowsOfExpert { expert, rows: Listed::At(list), each: self.each };
                    made = body(WorkTile { panel, columns: self.shape.tokens, rows: Some(rows) });
                });
            });
        });
        without.and(made)
    }

    /// The results of a panel that are made of zeros.
    fn finish_row(&self, row: Int<'c>, panel: Int<'c>) -> Result<(), Diagnostic> {
        self.contraction.finish_zeros(self.shape.threads(self.contraction.matrix.c.simt), (panel, 1), 1, |_| row)
    }

    /// Writes down the rows of an expert from one on, as many as a tile has columns. Says whether a
    /// tile begins with that row. Each wave looks at all rows, one a lane, and the first writes.
    fn find(&self, list: Ptr<'c>, expert: Int<'c>, row: Int<'c>) -> Int<'c> {
        let (c, columns) = (self.contraction.matrix.c, self.shape.tokens);
        let (lane, lanes) = (c.lane_index(), c.simt.wave);
        let is_first_wave = c.less(c.thread(), lanes);
        let is_asked = c.less(c.thread(), columns);
        c.when(is_asked, || c.store(c.at(list, c.thread() * 4), c.as_int(c.index.const_all_ones()), 4));
        // How many rows were seen with the expert, and how many of them are before this one.
        let turn = |base: Int<'c>, has: Int<'c>, [seen, before]: [Int<'c>; 2]| {
            let at = base + lane;
            let is = c.compare(IntPredicate::EQ, has, expert) & c.less(at, self.count);
            let those = |end: Int<'c>| c.count_lanes(is, end);
            let before = before + those(c.smaller(c.larger(row - base, 0), lanes));
            let place = seen + those(lane) - before;
            let is_listed = is_first_wave & is & c.less(row, at + 1) & c.less(place, columns);
            c.when(is_listed, || c.store(c.at(list, place * 4), at, 4));
            [seen + those(c.int(lanes)), before]
        };
        let carried = [c.int(0); 2].map(|v| Any::from(v.v));
        let found = c.for_each((0, self.most, TOGETHER * lanes), &carried, |base, carried| {
            let bases = || (0..TOGETHER).map(|i| base + i * lanes);
            // All loads before the first use.
            let load = |base: Int<'c>| c.load_made_index(self.from, c.smaller(base + lane, self.most - 1));
            let loaded: Vec<_> = bases().map(load).collect();
            let first = [0, 1].map(|i| c.as_int(carried[i]));
            let made = bases().zip(loaded).fold(first, |found, (base, has)| turn(base, has, found));
            made.map(|v| v.v.into()).to_vec()
        });
        c.equal(c.as_int(found[1]) % columns, 0)
    }
}

/// The panels of a token's row, which is the sum over its choices: a work-group goes along the
/// weights of all of them, one after the other, so that sums never leave it.
pub struct Combined<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    tokens: Int<'c>,
    from: Ptr<'c>,
    each: usize,
}

impl<'s, 'k, 'a, 'c> Combined<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        spec: &KernelSpec,
    ) -> Result<Combined<'s, 'k, 'a, 'c>, Diagnostic> {
        let (c, parts) = (contraction.matrix.c, &contraction.parts);
        let experts = parts.experts().ok_or_else(|| unsupported("a sum of choices without experts"))?;
        let (tokens, from) = (launch::step_size(c, spec, false), parts.kernel.rows.index(experts)?);
        Ok(Combined { contraction, tokens, from, each: parts.rows_of_x()? })
    }

    /// Work-groups of the kernel.
    pub fn tasks(&self) -> Tasks {
        Tasks::Tokens { per: 1, times: self.contraction.panels() }
    }

    /// Adds up what `sums` makes of the tile of each choice, and finishes with the tile of the
    /// token.
    pub fn each(
        &self,
        zeros: &[Vector<'c>],
        sums: impl FnOnce(WorkTile<'c>) -> Result<Vec<Vector<'c>>, Diagnostic>,
        finish: impl FnOnce(WorkTile<'c>, &[Vector<'c>]) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let m = &self.contraction.matrix;
        let (c, parts) = (m.c, &self.contraction.parts);
        let (panels, choices) = (self.contraction.panels(), parts.choices());
        let (panel, token) = (c.group() % panels, c.uniform(c.group() / panels));
        let tile = |expert: Int<'c>, row: Int<'c>| {
            let rows = RowsOfExpert { expert, rows: Listed::One(row), each: self.each };
            WorkTile { panel, columns: 1, rows: Some(rows) }
        };
        let mut made = Ok(());
        c.when(c.less(token, self.tokens), || {
            let mut failed = Ok(());
            let carried: Vec<Any<'c>> = zeros.iter().map(|&v| v.into()).collect();
            let all = c.for_each((0, choices, 1), &carried, |choice, carried| {
                let row = token * choices + choice;
                let expert = c.uniform(c.load_made_index(self.from, row));
                let add = || {
                    let sums = sums(tile(c.larger(expert, 0), row))?;
                    let weight = parts.weight_of(token, choice)?;
                    let weight = c.pick(c.less(expert, 0), c.number(0.0), weight);
                    c.set_lanes(m.layout.results);
                    let add = |(&all, sum): (&Any<'c>, Vector<'c>)| {
                        c.fma(sum, c.splat(weight), all.into_vector_value()).into()
                    };
                    Ok(carried.iter().zip(sums).map(add).collect())
                };
                add().unwrap_or_else(|e| {
                    failed = Err(e);
                    carried.to_vec()
                })
            });
            let all: Vec<Vector<'c>> = all.iter().map(|v| v.into_vector_value()).collect();
            made = failed.and_then(|()| finish(tile(c.int(0), token), &all));
        });
        made
    }
}

/// The panels of a contraction with the weights of experts, for each block of rows of one expert.
pub struct Blocks<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    of: Grouping<'c>,
    from: Ptr<'c>,
    each: usize,
}

impl<'s, 'k, 'a, 'c> Blocks<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        shape: Shape,
        spec: &KernelSpec,
    ) -> Result<Blocks<'s, 'k, 'a, 'c>, Diagnostic> {
        let (of, from) = Grouping::of(contraction.matrix.c, &contraction.parts, spec)?;
        Ok(Blocks { contraction, shape, of, from, each: contraction.parts.rows_of_x()? })
    }

    /// Work-groups of the kernel.
    pub fn tasks(&self) -> Tasks {
        self.of.tasks(self.contraction.parts.choices(), self.contraction.panels())
    }

    /// Does `body` with the work-group's tile, if it has one. Rows that have no expert are finished
    /// here.
    pub fn each(&self, body: impl FnOnce(WorkTile<'c>) -> Result<(), Diagnostic>) -> Result<(), Diagnostic> {
        let (c, panels) = (self.contraction.matrix.c, self.contraction.panels());
        let (panel, block) = (c.group() % panels, c.uniform(c.group() / panels));
        let threads = self.shape.threads(c.simt);
        let without =
            |row: &dyn Fn(Int<'c>) -> Int<'c>| self.contraction.finish_zeros(threads, (panel, 1), self.of.tile, row);
        self.of.of_block((c, self.from), block, without, |expert, list| {
            let rows = RowsOfExpert { expert, rows: Listed::At(list), each: self.each };
            body(WorkTile { panel, columns: self.shape.tokens, rows: Some(rows) })
        })
    }
}

/// The panels of a contraction of heads with a matrix of their own each, for blocks of tokens.
pub struct PerHead<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    heads: usize,
    rows: Int<'c>,
}

impl<'s, 'k, 'a, 'c> PerHead<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        shape: Shape,
        spec: &KernelSpec,
    ) -> Result<PerHead<'s, 'k, 'a, 'c>, Diagnostic> {
        let (c, parts) = (contraction.matrix.c, &contraction.parts);
        let heads = parts.heads().ok_or_else(|| unsupported("a product of heads without heads"))?;
        let results = contraction.matrix.layout.results;
        if !parts.width().is_multiple_of(results) {
            return Err(unsupported(format!("heads of {} features, {results} of which a lane has", parts.width())));
        }
        let rows = launch::step_size(c, spec, parts.kernel.by_rows);
        Ok(PerHead { contraction, shape, heads, rows })
    }

    /// Work-groups of the kernel.
    pub fn tasks(&self) -> Tasks {
        let times = self.heads * self.contraction.panels();
        self.contraction.parts.kernel.row_tasks(self.shape.tokens, times)
    }

    /// Does `body` with the work-group's tile, if it has one.
    pub fn each(&self, body: impl FnOnce(WorkTile<'c>) -> Result<(), Diagnostic>) -> Result<(), Diagnostic> {
        let c = self.contraction.matrix.c;
        let panels = self.contraction.panels();
        let (panel, place) = (c.group() % panels, c.uniform(c.group() / panels));
        let (head, first) = (place % self.heads, place / self.heads * self.shape.tokens);
        let mut made = Ok(());
        c.when(c.less(first, self.rows), || {
            let count = c.smaller(self.rows - first, self.shape.tokens);
            let rows = RowsOfExpert { expert: head, rows: Listed::Run(first, count), each: 1 };
            made = body(WorkTile { panel, columns: self.shape.tokens, rows: Some(rows) });
        });
        made
    }
}

impl<'c> WorkTile<'c> {
    fn expert(&self) -> Option<Int<'c>> {
        self.rows.map(|rows| rows.expert)
    }

    /// The head whose rows it has, where each has a matrix of its own.
    pub fn head(&self) -> Option<Int<'c>> {
        self.rows.filter(|rows| matches!(rows.rows, Listed::Run(..))).map(|rows| rows.expert)
    }

    /// Where the weight's panel of each piece begins.
    pub fn weights(&self, contraction: &Contraction<'_, '_, 'c>) -> Vec<Ptr<'c>> {
        contraction.weights(self.panel, self.expert())
    }

    /// These panels, by which scales are found.
    pub fn panels(&self, contraction: &Contraction<'_, '_, 'c>) -> Vec<Panel<'c>> {
        contraction.panels_of(self.panel, self.expert())
    }

    /// The first feature of the result.
    pub fn feature(&self) -> Int<'c> {
        self.panel * 16
    }

    /// The same column, or the last one, if it is beyond that.
    pub fn column(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        c.smaller(column, self.columns - 1)
    }

    /// Whether there is such a column.
    pub fn has(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        let inside = c.less(column, self.columns);
        match self.rows {
            None | Some(RowsOfExpert { rows: Listed::One(_), .. }) => inside,
            Some(_) => inside & c.less(0, self.result(c, self.column(c, column)) + 1),
        }
    }

    /// `body` for a column of the tile, if a row of the result is there.
    pub fn when_there(&self, c: &Gpu<'c>, column: Int<'c>, body: impl FnOnce()) {
        match self.rows {
            None | Some(RowsOfExpert { rows: Listed::One(_), .. }) => body(),
            Some(_) => c.when(c.less(0, self.result(c, column) + 1), body),
        }
    }

    /// The row of x that a column is multiplied of: any where there is none.
    pub fn source(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        match self.rows {
            None => column,
            Some(rows) => c.larger(self.result(c, column), 0) / rows.each,
        }
    }

    /// The row of the result that a column of the tile is.
    pub fn result(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        match self.rows {
            None => column,
            Some(RowsOfExpert { rows: Listed::At(list), .. }) => c.as_int(c.load(c.index, c.at(list, column * 4), 4)),
            Some(RowsOfExpert { rows: Listed::One(row), .. }) => row,
            Some(RowsOfExpert { rows: Listed::Run(first, count), .. }) => {
                c.pick_int(c.less(column, count), first + column, c.as_int(c.index.const_all_ones()))
            }
        }
    }
}
