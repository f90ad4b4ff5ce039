//! The epilogue: each wave makes results of its sums, a panel and a block of columns at a time.
use atomc_ir::Diagnostic;

use super::Group;
use crate::code::{Any, Int, Vector};
use crate::simt::gemm::contract::Panel;

impl<'c> Group<'_, '_, '_, 'c> {
    pub(super) fn epilogue(&self, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (s, shape, c) = (&self.accumulator, self.shape, self.contraction.matrix.c);
        let sums: Vec<Vector<'c>> = sums.iter().map(|&sum| c.pin(sum)).collect();
        let first = self.tile.panel() + self.wave[0] * shape.made;
        let columns = self.wave[1] * (shape.blocks * 16) + s.column();
        let mut result = Ok(());
        for made in 0..shape.made {
            let panel = first + made;
            c.when(c.less(panel, self.contraction.panels()), || {
                let col = panel * 16;
                let scales = self.scales(panel);
                for block in 0..self.blocks() {
                    let token = self.tile.row(c, columns + s.width() * block);
                    let of_row = self.row_scale(self.tile.source_of(c, token));
                    let results = |piece: usize| {
                        let panel = piece * shape.made + made;
                        let results = s.results(sums[panel / s.side() * self.blocks() + block], panel % s.side());
                        let scaled = |(i, (row, sums)): (usize, (Int<'c>, Vector<'c>))| {
                            let sums = scales.get(piece).map_or(sums, |scales| c.fmul(sums, scales[i]));
                            (row, self.times(sums, of_row))
                        };
                        results.into_iter().enumerate().map(scaled).collect::<Vec<_>>()
                    };
                    let pieces: Vec<_> = (0..shape.pieces).map(results).collect();
                    for (i, &(row, _)) in pieces[0].iter().enumerate() {
                        let sums: Vec<Vector<'c>> = pieces.iter().map(|p| p[i].1).collect();
                        self.tile.when_there(c, token, || {
                            let done = match self.tile.head() {
                                Some(head) => self.contraction.finish_head(token, head, col + row, &sums),
                                None => self.contraction.finish(token, col + row, &sums),
                            };
                            result = std::mem::replace(&mut result, Ok(())).and(done);
                        });
                    }
                    // One block at a time: what all of them take together has no room beside the
                    // sums.
                    c.keep_order();
                }
            });
        }
        result
    }

    /// Of each piece of a panel of the result: the scales of the lane's rows, which they have but
    /// one of, group by group.
    fn scales(&self, panel: Int<'c>) -> Vec<Vec<Vector<'c>>> {
        let (s, c) = (&self.accumulator, self.contraction.matrix.c);
        let Some(codes) = self.codes.filter(|codes| codes.encoding.is_row_wise()) else { return vec![] };
        let of_piece = |number: Panel<'c>| {
            let rows = s.results(s.zero(), 0).into_iter();
            rows.map(|(row, sums)| codes.scales(c, (number, row), sums.get_type().get_size() as usize, None)).collect()
        };
        self.tile.weights_of(self.contraction, panel).into_iter().map(of_piece).collect()
    }

    /// The scale of a row of codes, which lies behind it.
    fn row_scale(&self, token: Int<'c>) -> Option<Any<'c>> {
        let (c, parts) = (self.contraction.matrix.c, &self.contraction.parts);
        let rows = &parts.kernel.rows;
        let x = rows.operand(parts.x).ok().filter(|_| rows.has_row_scale(parts.x))?;
        let row = c.at(x.ptr, c.to_i64(token) * x.stride);
        Some(c.load(c.cx.f32_type(), c.at(row, rows.padded(x)), 4))
    }

    fn times(&self, sums: Vector<'c>, scale: Option<Any<'c>>) -> Vector<'c> {
        let c = self.contraction.matrix.c;
        let Some(scale) = scale else { return sums };
        c.set_lanes(sums.get_type().get_size() as usize);
        c.fmul(sums, c.splat(scale))
    }
}
