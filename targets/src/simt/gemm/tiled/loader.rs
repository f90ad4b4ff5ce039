//! The loaders: both operands on their way into local memory, as they lie, or decoded.
use atomc_ir::Layout;

use super::Group;
use super::shape::PANELS;
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::Operand;
use crate::simt::gemm::codes_to_lds::{self, CodedRows, CodesLoader};
use crate::simt::gemm::global_to_lds::Loader;
use crate::simt::machine::fragment::VEC16;

/// What brings a stretch: both operands as they lie, or rows alone and a weight that is decoded.
pub struct Loaders<'t, 'c> {
    pub rows: RowLoader<'t, 'c>,
    pub codes: Option<CodesLoader<'t, 'c>>,
}

/// What brings rows, and perhaps the weight with them.
pub enum RowLoader<'t, 'c> {
    Plain(Loader<'t, 'c>),
    Codes(CodedRows<'t, 'c>),
}

/// What was loaded of rows, or nothing if it goes to local memory by itself.
pub enum Next<'c> {
    Vectors(Vec<Vector<'c>>),
    Codes(Vec<(Vector<'c>, Option<Any<'c>>)>),
    Sent,
}

impl<'g, 'c> Group<'g, '_, '_, 'c> {
    pub(super) fn loaders(&self, x: &Operand<'c>) -> Loaders<'g, 'c> {
        let Some(codes) = self.codes else { return Loaders { rows: RowLoader::Plain(self.loader(x)), codes: None } };
        let (c, shape, m) = (self.contraction.matrix.c, self.shape, &self.contraction.matrix);
        let tile = codes_to_lds::Tile { panels: PANELS, columns: shape.stretch, threads: shape.threads };
        let panel = |place: Int<'c>| {
            let panel = self.place(place);
            (self.tile.weight(self.contraction, panel), self.tile.weight_of(self.contraction, panel))
        };
        let codes = CodesLoader::new(c, codes, (m.dtype, tile), panel);
        let rows = match x.ty.layout {
            Layout::Scaled(_) => RowLoader::Codes(CodedRows::new(c, x, (m.dtype, tile), self.tile.first_source())),
            _ => RowLoader::Plain(self.rows_loader(x)),
        };
        Loaders { rows, codes: Some(codes) }
    }

    /// What the wave brings of the rows, where it brings nothing else.
    fn rows_loader(&self, x: &Operand<'c>) -> Loader<'g, 'c> {
        let (c, shape, m) = (self.contraction.matrix.c, self.shape, &self.contraction.matrix);
        let (lanes, size) = (c.simt.wave, m.dtype.size());
        let start = |load: usize| {
            let load = c.wave_index() * shape.loads() + load;
            let (group, inside) = (load / (shape.vec16s / lanes), load % (shape.vec16s / lanes));
            let token = c.to_i64(self.tile.source(group * 16));
            let row = c.at(x.ptr, token * (x.stride * size));
            c.at(row, inside * (lanes / 16 * VEC16))
        };
        let starts: Vec<Ptr<'c>> = (0..shape.loads()).map(start).collect();
        let lane = c.lane_index();
        let in_row = lane % 16 * (x.stride * size) + lane / 16 * VEC16;
        Loader::new(c, &starts, in_row, c.int(shape.stretch * size))
    }

    /// What the wave brings: the first waves the weight's panels, the others rows, 16 by 16. Each
    /// load is the next of local memory.
    fn loader(&self, x: &Operand<'c>) -> Loader<'g, 'c> {
        let (c, shape, m) = (self.contraction.matrix.c, self.shape, &self.contraction.matrix);
        let lanes = c.simt.wave;
        let (size, waves) = (m.dtype.size(), shape.threads / lanes);
        let wave = c.wave_index();
        let weights = c.less(wave, waves / 2);
        let start = |load: usize| {
            let load = wave % (waves / 2) * shape.loads() + load;
            let (group, inside) = (load / (shape.vec16s / lanes), load % (shape.vec16s / lanes));
            let weight = c.at(self.tile.weight(self.contraction, self.place(group)), inside * (lanes * VEC16));
            let token = c.to_i64(self.tile.source(group * 16));
            let row = token * (x.stride * size);
            let row = c.at(c.at(x.ptr, row), inside * (lanes / 16 * VEC16));
            c.pick(weights, weight, row).into_pointer_value()
        };
        let starts: Vec<Ptr<'c>> = (0..shape.loads()).map(start).collect();
        let lane = c.lane_index();
        let in_row = lane % 16 * (x.stride * size) + lane / 16 * VEC16;
        let lane = c.pick_int(weights, lane * VEC16, in_row);
        let step = c.pick_int(weights, shape.vec16s * VEC16, shape.stretch * size);
        Loader::new(c, &starts, lane, step)
    }

    /// The panel of the result that stands in a place of the tile, for each wave piece by piece,
    /// and the panel of the weight at which its piece begins.
    fn place(&self, place: Int<'c>) -> [Int<'c>; 2] {
        let (c, shape) = (self.contraction.matrix.c, self.shape);
        let (wave, inside) = (place / shape.panels, place % shape.panels);
        let panel = wave * shape.made + inside % shape.made;
        let panel = self.contraction.made(panel + self.tile.panel());
        let piece = inside / shape.made;
        let mut first = c.int(0);
        for (i, start) in self.contraction.parts.starts().enumerate() {
            first = c.pick_int(c.equal(piece, i), start / 16, first);
        }
        [panel, first]
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

    /// Where the wave's part of a half begins.
    fn to(&self, half: usize) -> Ptr<'c> {
        self.contraction.matrix.c.at(self.to, self.contraction.matrix.c.int(half * self.shape.half()[1]))
    }

    /// The last vector first: when it is there, all are, and there is nothing to wait for any more.
    fn put(&self, half: usize, vec16s: &[Vector<'c>]) {
        let c = self.contraction.matrix.c;
        let base = c.at(self.to(half), c.lane_index() * VEC16);
        for (i, &vec16) in vec16s.iter().enumerate().rev() {
            c.store(c.at(base, i * c.simt.wave * VEC16), vec16, VEC16 as u32);
        }
    }
}
