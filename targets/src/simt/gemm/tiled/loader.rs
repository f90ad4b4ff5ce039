//! The loaders: both operands on their way into local memory, as stored or decoded.
use atomc_ir::Layout;

use super::Group;
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::Operand;
use crate::simt::gemm::codes_to_lds::{self, Blocks, CodedRows, CodesLoader};
use crate::simt::gemm::global_to_lds::Loader;
use crate::simt::machine::fragment::VEC16;

/// The loader of a stretch: both operands as stored, or rows alone and a weight that is decoded.
pub struct Loaders<'t, 'c> {
    pub rows: RowLoader<'t, 'c>,
    pub codes: Option<CodesLoader<'t, 'c>>,
}

/// The loader of rows, and perhaps of the weight with them.
pub enum RowLoader<'t, 'c> {
    Plain(Loader<'t, 'c>),
    Codes(CodedRows<'t, 'c>),
}

/// The loaded rows, or nothing if they go to local memory without registers.
pub enum Next<'c> {
    Vectors(Vec<Vector<'c>>),
    Codes(Vec<(Vector<'c>, Option<Any<'c>>)>),
    Sent,
}

impl<'g, 'c> Group<'g, '_, '_, 'c> {
    pub(super) fn loaders(&self, x: &Operand<'c>) -> Loaders<'g, 'c> {
        let Some(codes) = self.codes.filter(|_| self.shape.is_coded) else {
            return Loaders { rows: RowLoader::Plain(self.loader(x)), codes: None };
        };
        let (c, shape, m) = (self.contraction.matrix.c, self.shape, &self.contraction.matrix);
        let tile = codes_to_lds::Tile {
            panels: shape.side,
            columns: shape.stretch,
            threads: shape.threads,
            blocks: Blocks::as_in_memory(shape.stretch, m.dtype),
            scales_sums: shape.quantised.is_some(),
        };
        let panel = |place: Int<'c>| {
            let panel = self.place(place);
            (self.tile.weight(self.contraction, panel), self.tile.weight_of(self.contraction, panel))
        };
        let codes = CodesLoader::new(c, codes, m.dtype, tile, c.thread(), panel);
        let rows = match x.ty.layout {
            Layout::Scaled(_) => {
                let source = |block, row| self.tile.source(c, block + row);
                RowLoader::Codes(CodedRows::new(c, x, (m.dtype, tile), source))
            }
            _ => RowLoader::Plain(self.rows_loader(x)),
        };
        Loaders { rows, codes: Some(codes) }
    }

    /// The wave's loads of rows, if it loads nothing else.
    fn rows_loader(&self, x: &Operand<'c>) -> Loader<'g, 'c> {
        let (c, shape, m) = (self.contraction.matrix.c, self.shape, &self.contraction.matrix);
        let first = c.wave_index() * shape.loads();
        let starts: Vec<Ptr<'c>> = (0..shape.loads()).map(|load| self.rows_of_load(x, first + load)).collect();
        Loader::new(c, &starts, self.in_rows(x, first), c.int(m.dtype.bytes(shape.stretch)))
    }

    /// The address of 16 rows in a vector of all lanes, the same for all of these.
    fn rows_of_load(&self, x: &Operand<'c>, load: Int<'c>) -> Ptr<'c> {
        let (c, m) = (self.contraction.matrix.c, &self.contraction.matrix);
        let lanes = c.simt.wave;
        let [group, inside] = self.place_of_load(load);
        let token = c.to_i64(self.tile.first_source(c, group * 16));
        let row = token * m.dtype.bytes(x.stride);
        c.at(c.at(x.ptr, row), inside * (lanes / 16 * VEC16) + self.tile.in_row(self.contraction))
    }

    /// The 16 rows or the panel of a load, and which of its vectors of all lanes.
    fn place_of_load(&self, load: Int<'c>) -> [Int<'c>; 2] {
        let in_group = self.shape.vec16s / self.contraction.matrix.c.simt.wave;
        [load / in_group, load % in_group]
    }

    /// The lane's offsets: the same for all loads if rows are consecutive, otherwise one for each
    /// from the first one on.
    fn in_rows(&self, x: &Operand<'c>, first: Int<'c>) -> Vec<Int<'c>> {
        let (c, m) = (self.contraction.matrix.c, &self.contraction.matrix);
        let (lane, bytes) = (c.lane_index(), m.dtype.bytes(x.stride));
        let of_row = |row: Int<'c>| row * bytes + lane / 16 * VEC16;
        if !self.tile.is_listed() {
            return vec![of_row(lane % 16)];
        }
        let row = |load: usize| {
            let [group, _] = self.place_of_load(first + load);
            of_row(self.tile.source(c, group * 16 + lane % 16))
        };
        (0..self.shape.loads()).map(row).collect()
    }

    /// The wave's loads: the first waves load the weight's panels, the others rows, 16 by 16. Each
    /// load fills the next part of local memory.
    fn loader(&self, x: &Operand<'c>) -> Loader<'g, 'c> {
        let (c, shape, m) = (self.contraction.matrix.c, self.shape, &self.contraction.matrix);
        let lanes = c.simt.wave;
        let waves = shape.threads / lanes;
        let wave = c.wave_index();
        let weights = c.less(wave, waves / 2);
        let first = wave % (waves / 2) * shape.loads();
        let start = |load: usize| {
            let load = first + load;
            let [group, inside] = self.place_of_load(load);
            let weight = c.at(self.tile.weight(self.contraction, self.place(group)), inside * (lanes * VEC16));
            c.pick(weights, weight, self.rows_of_load(x, load)).into_pointer_value()
        };
        let starts: Vec<Ptr<'c>> = (0..shape.loads()).map(start).collect();
        let rows = self.in_rows(x, first);
        let in_panel = c.lane_index() * VEC16;
        let lane = rows.into_iter().map(|row| c.pick_int(weights, in_panel, row)).collect();
        let step = c.pick_int(weights, shape.vec16s * VEC16, m.dtype.bytes(shape.stretch));
        Loader::new(c, &starts, lane, step)
    }

    /// The panel of the result at a place of the tile, for each wave piece by piece, and the panel
    /// of the weight at which its piece begins.
    pub(super) fn place(&self, place: Int<'c>) -> [Int<'c>; 2] {
        let shape = self.shape;
        let (wave, inside) = (place / shape.panels, place % shape.panels);
        let panel = wave * shape.made + inside % shape.made;
        let panel = self.contraction.made(panel + self.tile.panel());
        [panel, self.contraction.first_panel(inside / shape.made)]
    }

    pub(super) fn load_rows(&self, rows: &RowLoader<'g, 'c>, stretch: Int<'c>, half: usize) -> Next<'c> {
        match rows {
            RowLoader::Plain(loader) if loader.is_direct() => {
                loader.load_async(stretch, self.to(half), half);
                Next::Sent
            }
            RowLoader::Plain(loader) => Next::Vectors(loader.load(stretch)),
            RowLoader::Codes(loader) => Next::Codes(loader.load(stretch)),
        }
    }

    pub(super) fn put_rows(&self, rows: &RowLoader<'g, 'c>, half: usize, next: &Next<'c>) {
        match (rows, next) {
            (RowLoader::Plain(loader), Next::Sent) => loader.wait(),
            (_, Next::Vectors(vec16s)) => self.put(half, vec16s),
            (RowLoader::Codes(loader), Next::Codes(codes)) => {
                let behind = self.contraction.matrix.c.at(self.half(half), self.shape.half()[0]);
                loader.put(behind, codes);
            }
            _ => unreachable!("what was loaded is of the same kind"),
        }
    }

    /// The address of the wave's part of a half.
    pub(super) fn to(&self, half: usize) -> Ptr<'c> {
        self.contraction.matrix.c.at(self.to, self.contraction.matrix.c.int(half * self.shape.half()[1]))
    }

    /// The last vector first: when it has arrived, all have, and no further waits are needed.
    fn put(&self, half: usize, vec16s: &[Vector<'c>]) {
        let m = &self.contraction.matrix;
        let c = m.c;
        let base = c.at(self.to(half), c.lane_index() * VEC16);
        for (i, &vec16) in vec16s.iter().enumerate().rev() {
            c.store(c.at(base, i * c.simt.wave * VEC16), vec16, VEC16 as u32);
        }
    }
}
