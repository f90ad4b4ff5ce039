//! The main loop with more than two stretches in local memory: all but the one that is multiplied
//! are in flight.
//!
//! A turn waits for the oldest stretch alone, by the count of the wave's loads in flight. One
//! barrier serves twice: that stretch has arrived from all waves, and all waves have read the
//! previous one, which the next load overwrites.
use super::Group;
use super::group_scales::{Scaling, StretchScales, Sums};
use crate::code::{Int, Vector, carried};
use crate::simt::gemm::global_to_lds::Loader;

/// Carried from turn to turn: sums, and the scales of the stretches in flight.
struct Flow<'c> {
    sums: Sums<'c>,
    scales: Vec<StretchScales<'c>>,
}

carried!(Flow { sums, scales });

impl<'c> Group<'_, '_, '_, 'c> {
    /// The sums of the wave's part of the tile. It has at least as many stretches as there are
    /// stages; if the tile is shared, a multiple of them.
    pub(super) fn staged_loop(&self, loader: &Loader<'_, 'c>, scaling: Option<&Scaling<'_, 'c>>) -> Vec<Vector<'c>> {
        let (c, stages) = (self.contraction.matrix.c, self.shape.stages);
        let ahead = stages - 1;
        let mut flow = self.begin((loader, scaling));
        // Turns that load another stretch: those of the loop, where the stage is a constant, and
        // the rest.
        let (looped, rest) = match self.share {
            Some(_) => (self.count - stages, 1),
            None => {
                let turns = self.shape.count - ahead;
                (c.int(turns - turns % stages), turns % stages)
            }
        };
        flow = c.carry((0, looped, stages), flow, |at, mut flow| {
            for stage in 0..stages {
                self.staged_turn((loader, scaling), (self.first + at + stage, stage), ahead - 1, &mut flow);
            }
            flow
        });
        for turn in 0..rest + ahead {
            let later = (ahead - 1).min(rest + ahead - 1 - turn);
            let place = (self.first + looped + turn, turn % stages);
            match turn < rest {
                true => self.staged_turn((loader, scaling), place, later, &mut flow),
                false => {
                    loader.await_first(later);
                    self.multiply_stage(scaling, place, &mut flow);
                }
            }
        }
        self.finished(flow.sums.all)
    }

    /// Loads as many stretches as there is room for, less one.
    fn begin(&self, from: (&Loader<'_, 'c>, Option<&Scaling<'_, 'c>>)) -> Flow<'c> {
        let mut sums = self.zeros(from.1);
        let mut flow = Flow { scales: sums.held.take().into_iter().collect(), sums };
        from.0.load_async(self.first, self.to(0), 0);
        for stage in 1..self.shape.stages - 1 {
            self.ask(from, (self.first + stage, stage), &mut flow);
        }
        flow
    }

    fn ask(
        &self,
        (loader, scaling): (&Loader<'_, 'c>, Option<&Scaling<'_, 'c>>),
        (stretch, stage): (Int<'c>, usize),
        flow: &mut Flow<'c>,
    ) {
        let next = self.next_scales(scaling, (stretch, stage), flow.scales.last());
        flow.scales.extend(next);
        loader.load_async(stretch, self.to(stage), stage);
    }

    /// Multiplies a stretch, and loads another in the place of the previous one.
    fn staged_turn(
        &self,
        from: (&Loader<'_, 'c>, Option<&Scaling<'_, 'c>>),
        (stretch, stage): (Int<'c>, usize),
        later: usize,
        flow: &mut Flow<'c>,
    ) {
        let (stages, ahead) = (self.shape.stages, self.shape.stages - 1);
        from.0.await_first(later);
        self.ask(from, (stretch + ahead, (stage + ahead) % stages), flow);
        self.multiply_stage(from.1, (stretch, stage), flow);
    }

    fn multiply_stage(&self, scaling: Option<&Scaling<'_, 'c>>, place: (Int<'c>, usize), flow: &mut Flow<'c>) {
        let c = self.contraction.matrix.c;
        c.keep_order();
        flow.sums.held = (!flow.scales.is_empty()).then(|| flow.scales.remove(0));
        self.multiply_stretch(scaling, place, &mut flow.sums);
        flow.sums.held = None;
        c.keep_order();
    }
}
