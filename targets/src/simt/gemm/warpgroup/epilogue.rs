//! The epilogue: sums are exchanged between lanes in local memory until a lane has 8 features of a
//! token.
use atomc_ir::Diagnostic;

use super::Group;
use super::shape::{EXCHANGE, LANES, LINE, ROUND};
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col};
use crate::simt::gemm::tile::Tile;

/// The end of a tile: for one wave 16 tokens, 64 features at a time.
pub struct Epilogue<'f, 't, 'k, 'a, 'c> {
    group: &'f Group<'t, 'k, 'a, 'c>,
    tile: Tile<'c>,
    /// The rows that the lane finishes, and its first feature.
    rows: [Int<'c>; 4],
    feature: Int<'c>,
    /// The places where it stores its sums of the first 8 features, and loads those of its first
    /// token.
    put: Int<'c>,
    get: Int<'c>,
    /// Whether it loads the later half first, so that all lanes load from different banks.
    late: Int<'c>,
}

impl<'f, 't, 'k, 'a, 'c> Epilogue<'f, 't, 'k, 'a, 'c> {
    pub(super) fn new(group: &'f Group<'t, 'k, 'a, 'c>, tile: Tile<'c>) -> Epilogue<'f, 't, 'k, 'a, 'c> {
        let c = group.code();
        let (lane, wave) = (c.lane_index(), c.wave_index());
        let times = |a: Int<'c>, n: usize| a * n;
        let all = |parts: &[Int<'c>]| parts.iter().copied().reduce(|a, b| a + b).expect("some");
        // A line has a token's features, 8 after 8, permuted by two bits of its number.
        let (row, pair) = (lane / 4, lane % 4);
        let put = all(&[times(row, LINE), times(row % 4, 32), times(pair, 8)]);
        let (line, eight) = (lane / 8, lane % 8);
        let late = eight / 4;
        let place = times(eight, 32) ^ times(line, 32);
        Epilogue {
            group,
            tile,
            rows: [0, 4, 8, 12].map(|part| tile.row(c, times(wave, 16) + line + part)),
            feature: all(&[tile.feature(), times(eight, LANES)]),
            put,
            get: all(&[times(line, LINE), place, times(late, 16)]),
            late: c.equal(late, 1),
        }
    }

    fn at(&self, round: usize, part: usize) -> At<'c> {
        let col = Col::Var(self.feature + round * ROUND);
        At { row: self.rows[part], head: self.tile.head(), col }
    }

    fn exchange(&self, offset: Int<'c>) -> Ptr<'c> {
        let c = self.group.code();
        c.at(self.group.exchange, c.wave_index() * EXCHANGE + offset)
    }

    /// Loads the operands that the epilogue reads in addition to the sums, for each token of a
    /// round.
    pub(super) fn load_beside(&self, round: usize) -> Result<Vec<Vec<Vector<'c>>>, Diagnostic> {
        let c = self.group.code();
        c.set_lanes(LANES);
        (0..4).map(|part| self.group.contraction.parts.beside(self.inside(self.at(round, part)))).collect()
    }

    /// The place itself, if the result has it, or else another.
    fn inside(&self, at: At<'c>) -> At<'c> {
        let (c, padded) = (self.group.code(), self.padded());
        let row = self.group.tokens.map_or(at.row, |tokens| c.smaller(at.row, tokens - 1));
        let at = At { row: if self.tile.is_listed() { c.larger(row, 0) } else { row }, ..at };
        match at.col {
            Col::Var(col) if !padded.is_multiple_of(self.group.shape.features) => {
                At { col: Col::Var(c.smaller(col, padded - LANES)), ..at }
            }
            _ => at,
        }
    }

    fn padded(&self) -> usize {
        let parts = &self.group.contraction.parts;
        parts.kernel.rows.padded(parts.to)
    }

    pub(super) fn rounds(&self, sums: &[Any<'c>], mut beside: Vec<Vec<Vector<'c>>>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.group.code(), self.group.shape);
        let rounds = shape.features / ROUND;
        for round in 0..rounds {
            let of = |piece: usize| &sums[(piece * rounds + round) * ROUND / 2..][..ROUND / 2];
            let pieces: Vec<[Vector<'c>; 4]> = (0..shape.pieces).map(|piece| self.change_lanes(of(piece))).collect();
            c.set_lanes(LANES);
            let scales = self.group.codes.as_ref().map(|codes| {
                let col = contraction_column(self.inside(self.at(round, 0)));
                codes.of_features(self.group, self.tile, col, LANES)
            });
            for (part, beside) in beside.iter().enumerate() {
                let mut sums: Vec<Vector<'c>> = pieces.iter().map(|piece| piece[part]).collect();
                if let Some((codes, of_features)) = self.group.codes.as_ref().zip(scales.as_ref()) {
                    let row = self.tile.source_of(self.group.code(), self.rows[part]);
                    sums = codes.finish(self.group, row, of_features, sums)?;
                }
                self.finish(self.at(round, part), &sums, beside)?;
            }
            if round + 1 < rounds {
                beside = self.load_beside(round + 1)?;
            }
        }
        Ok(())
    }

    fn finish(&self, at: At<'c>, sums: &[Vector<'c>], beside: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (c, padded, contraction) = (self.group.code(), self.padded(), self.group.contraction);
        let store = || contraction.finish_at(at, sums, beside);
        let is_column = || c.less(contraction.parts.kernel.rows.column(at.col), padded);
        self.tile.when_there(c, at.row, || match self.group.tokens {
            Some(tokens) => c.when(c.less(at.row, tokens) & is_column(), store),
            None if padded.is_multiple_of(self.group.shape.features) => store(),
            None => c.when(is_column(), store),
        })
    }

    /// A lane's sums of a round, two features of each 8 for two tokens, as 8 features for each of
    /// four tokens.
    fn change_lanes(&self, sums: &[Any<'c>]) -> [Vector<'c>; 4] {
        let c = self.group.code();
        let f32 = c.cx.f32_type();
        c.meet_in_wave();
        for (eight, four) in sums.chunks(4).enumerate() {
            let to = self.put ^ (32 * eight);
            for (half, two) in four.chunks(2).enumerate() {
                c.store(self.exchange(to + half * 8 * LINE), c.floats(two), 8);
            }
        }
        c.meet_in_wave();
        [0, 1, 2, 3].map(|part| {
            let first = self.exchange(self.get + 4 * part * LINE);
            let second = self.get ^ 16;
            let second = self.exchange(second + 4 * part * LINE);
            let [a, b] = [first, second].map(|p| c.load_vector(f32, 4, p, 16));
            let pick = |yes: Vector<'c>, no: Vector<'c>| c.pick(self.late, yes, no).into_vector_value();
            c.join(&[pick(b, a), pick(a, b)])
        })
    }
}

/// The column of a place, which is known at run time.
fn contraction_column(at: At<'_>) -> Int<'_> {
    match at.col {
        Col::Var(col) => col,
        Col::Const(_) => unreachable!("columns of a tile are found as the kernel runs"),
    }
}
