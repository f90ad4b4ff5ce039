//! The tile: a part of a product's result that a work-group makes. Schedulers make tiles, and
//! loaders and epilogues read them: the panels of the result, the matrix of the weight, and the
//! rows that are the columns. An expert's weight and a head's are both a matrix.
pub mod experts;
pub mod grid;
pub mod heads;

use crate::code::{Int, Ptr};
use crate::simt::gemm::contract::{Contraction, Panel};
use crate::simt::machine::Gpu;

/// Panels of a product's result, for some of its rows.
#[derive(Clone, Copy)]
pub struct Tile<'c> {
    /// The first panel of the result.
    panel: Int<'c>,
    /// Columns of the tile.
    columns: usize,
    matrix: Matrix<'c>,
    rows: Rows<'c>,
    /// Rows of the result for each row of x.
    each: usize,
}

/// The matrix of the weight that makes a tile.
#[derive(Clone, Copy)]
enum Matrix<'c> {
    /// There is but one.
    Only,
    Expert(Int<'c>),
    Head(Int<'c>),
}

/// The rows of the result that are the columns of a tile.
#[derive(Clone, Copy)]
enum Rows<'c> {
    /// All from this one on.
    From(Int<'c>),
    /// `count` rows from `first` on.
    Run { first: Int<'c>, count: Int<'c> },
    /// This one.
    One(Int<'c>),
    /// For each column the row in a list, -1 for none.
    Listed(Ptr<'c>),
}

/// The sizes of a scheduler's tiles, and the threads that make one.
#[derive(Clone, Copy)]
pub struct TileSize {
    pub panels: usize,
    pub columns: usize,
    pub threads: usize,
}

impl TileSize {
    /// Tiles along the features of a product's result.
    pub fn across(&self, contraction: &Contraction<'_, '_, '_>) -> usize {
        contraction.panels().div_ceil(self.panels)
    }
}

impl<'c> Tile<'c> {
    /// The tile of the rows from `first` on, by the weight's only matrix.
    pub fn from_row(panel: Int<'c>, row: Int<'c>, columns: usize) -> Tile<'c> {
        Tile { panel, columns, matrix: Matrix::Only, rows: Rows::From(row), each: 1 }
    }

    /// The tile without columns after the step's `rows` rows.
    pub fn cut(self, c: &Gpu<'c>, rows: usize) -> Tile<'c> {
        let first = self.row(c, c.int(0));
        Tile { rows: Rows::Run { first, count: c.int(rows) - first }, ..self }
    }

    /// The tile of the rows of an expert in a list. Each row of x has `each` rows of the result.
    pub fn of_expert(panel: Int<'c>, expert: Int<'c>, list: Ptr<'c>, columns: usize, each: usize) -> Tile<'c> {
        Tile { panel, columns, matrix: Matrix::Expert(expert), rows: Rows::Listed(list), each }
    }

    /// The tile of a row, by the matrix of the expert that a choice of it has; below zero if none.
    pub fn of_choice(c: &Gpu<'c>, panel: Int<'c>, expert: Int<'c>, choice: Int<'c>, each: usize) -> Tile<'c> {
        let count = c.pick_int(c.less(expert, 0), 0, 1);
        let rows = Rows::Run { first: choice, count };
        Tile { panel, columns: 1, matrix: Matrix::Expert(c.larger(expert, 0)), rows, each }
    }

    /// The tile with the matrix of a head.
    pub fn of_head(self, head: Int<'c>) -> Tile<'c> {
        Tile { matrix: Matrix::Head(head), ..self }
    }

    /// The panels of the tile, for another row, if it exists.
    pub fn of_row(self, c: &Gpu<'c>, row: Int<'c>, is_there: Int<'c>) -> Tile<'c> {
        Tile { columns: 1, rows: Rows::Run { first: row, count: c.pick_int(is_there, 1, 0) }, ..self }
    }

    /// The rows of the tile, from a further panel on.
    pub fn further(self, panels: Int<'c>) -> Tile<'c> {
        Tile { panel: self.panel + panels, ..self }
    }

    /// The first panel of the result, and the first feature.
    pub fn panel(&self) -> Int<'c> {
        self.panel
    }

    pub fn feature(&self) -> Int<'c> {
        self.panel * 16
    }

    /// The matrix of the weight, if there are several.
    fn matrix(&self) -> Option<Int<'c>> {
        match self.matrix {
            Matrix::Only => None,
            Matrix::Expert(number) | Matrix::Head(number) => Some(number),
        }
    }

    /// The head of its rows, if each head has a matrix of its own.
    pub fn head(&self) -> Option<Int<'c>> {
        if let Matrix::Head(head) = self.matrix { Some(head) } else { None }
    }

    /// The byte of a row of x at which the columns of its rows begin: heads with matrices of their
    /// own have columns of their own.
    pub fn in_row(&self, contraction: &Contraction<'_, '_, 'c>) -> Int<'c> {
        let m = &contraction.matrix;
        match self.head().zip(contraction.parts.head_rows()) {
            Some((head, rows)) => rows.column(head) * m.dtype.size(),
            None => m.c.int(0),
        }
    }

    /// Whether its columns may have no row.
    pub fn may_lack_rows(&self) -> bool {
        matches!(self.rows, Rows::Run { .. } | Rows::Listed(_))
    }

    /// Whether its columns are rows in any order.
    pub fn is_listed(&self) -> bool {
        matches!(self.rows, Rows::Listed(_))
    }

    /// The address of a panel of the weight: the panel of the result, in the piece that begins at a
    /// panel.
    pub fn weight(&self, contraction: &Contraction<'_, '_, 'c>, [panel, piece]: [Int<'c>; 2]) -> Ptr<'c> {
        contraction.weight_panel(panel, piece, self.matrix())
    }

    /// The panel, by which scales are found.
    pub fn weight_of(&self, contraction: &Contraction<'_, '_, 'c>, [panel, piece]: [Int<'c>; 2]) -> Panel<'c> {
        contraction.numbered(panel + piece, self.matrix())
    }

    /// The addresses of the weight's panels of all pieces, for a panel of the result.
    pub fn weights(&self, contraction: &Contraction<'_, '_, 'c>, panel: Int<'c>) -> Vec<Ptr<'c>> {
        contraction.weights(panel, self.matrix())
    }

    /// The panels, by which scales are found.
    pub fn weights_of(&self, contraction: &Contraction<'_, '_, 'c>, panel: Int<'c>) -> Vec<Panel<'c>> {
        contraction.panels_of(panel, self.matrix())
    }

    /// The column, limited to the last one.
    pub fn inside(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        c.smaller(column, self.columns - 1)
    }

    /// The row of the result that a column is; -1 if it may have none and has none.
    pub fn row(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        match self.rows {
            Rows::From(first) => first + column,
            Rows::Run { first, count } => {
                c.pick_int(c.less(column, count), first + column, c.as_int(c.index.const_all_ones()))
            }
            Rows::One(row) => row,
            Rows::Listed(list) => c.load_made_index(list, column),
        }
    }

    /// The row of x that a row is made of; any row if there is none.
    pub fn source_of(&self, c: &Gpu<'c>, row: Int<'c>) -> Int<'c> {
        match self.rows {
            Rows::From(_) => row,
            _ => c.larger(row, 0) / self.each,
        }
    }

    /// The row of x that a column is made of.
    pub fn source(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        self.source_of(c, self.row(c, column))
    }

    /// Rows of x that follow each other in columns are counted from this one.
    pub fn first_source(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        if self.is_listed() { c.int(0) } else { self.source(c, column) }
    }

    /// Whether a column has a row.
    pub fn has(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        let inside = c.less(column, self.columns);
        match self.rows {
            Rows::From(_) | Rows::One(_) => inside,
            Rows::Run { .. } | Rows::Listed(_) => inside & c.less(0, self.row(c, self.inside(c, column)) + 1),
        }
    }

    /// Runs `body` for the row of a column, if it exists.
    pub fn when_there<R>(&self, c: &Gpu<'c>, row: Int<'c>, body: impl FnOnce() -> R) -> R {
        match self.rows {
            Rows::From(_) | Rows::One(_) => body(),
            Rows::Run { .. } | Rows::Listed(_) => c.when(c.less(0, row + 1), body),
        }
    }
}
