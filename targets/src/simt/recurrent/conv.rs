//! The short convolution: a lane has a vector of channels, and the waves of a work-group take turns
//! at the tokens of the sequence.
use crate::KernelSpec;
use crate::code::{Int, Ptr, Vector};
use crate::recurrent::{Conv, Run, node};
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::Gpu;

use super::{each_part, element, pad, vector};

/// Most elements of a vector: 16 bytes of the short types.
const LANES: usize = 8;
/// Waves of a work-group in steps of more than so many tokens: some sequence may have many.
const WAVES: usize = 4;
const FEW_TOKENS: usize = 8;

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let wave = setup.gpu()?.simt.wave;
    let waves = if spec.tokens > FEW_TOKENS { WAVES } else { 1 };
    let code = setup.open(spec, waves * wave)?;
    let info = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let conv = Conv::of(&kernel, node(&kernel)?)?;
        c.set_lanes(vector(conv.channels, vector(conv.start, LANES)));
        let parts = conv.channels.div_ceil(wave * c.lanes());
        let info = each_part(c, spec, &kernel, parts, waves * wave, |run, part| {
            let column = (part * wave + c.lane_index()) * c.lanes();
            Channels { c, conv: &conv, run, column, waves }.make();
            c.when(c.equal(part, parts - 1), || pad(c, conv.out, run, c.thread(), waves * wave));
        })?;
        conv.finish()?;
        info
    };
    Ok((code, info))
}

/// A vector of channels of one sequence.
struct Channels<'a, 'k, 'c> {
    c: &'a Gpu<'c>,
    conv: &'a Conv<'k, 'c>,
    run: Run<'c>,
    column: Int<'c>,
    waves: usize,
}

impl<'c> Channels<'_, '_, 'c> {
    fn make(&self) {
        let (c, Conv { weight, out, len, .. }) = (self.c, self.conv);
        let exists = c.less(self.column, self.conv.channels);
        let tokens = self.run.end - self.run.first;
        c.when(exists, || {
            let weight = |i: usize| c.load_floats(element(c, weight, c.int(i), self.column), weight.ty.dtype);
            let weights: Vec<Vector> = (0..*len).map(weight).collect();
            c.repeat(c.wave_index(), tokens, self.waves, |token| {
                let taps = weights.iter().enumerate();
                let sum = taps.fold(c.zero(), |sum, (i, &w)| c.fma(self.seen(token + i), w, sum));
                let token = self.run.first + token;
                let stored = self.conv.stored(c, sum, token, self.column);
                c.store_floats(element(c, out, token, self.column), stored, out.ty.dtype);
            });
        });
        // All have read what was kept.
        if self.waves > 1 {
            c.barrier();
        }
        let keeps = exists & self.run.has_slot & c.equal(c.wave_index(), 0);
        c.when(keeps, || {
            // What is kept of what was kept before lies behind its new place.
            for i in 0..len - 1 {
                c.store_floats(self.kept(c.int(i)), self.seen(tokens + i), self.conv.x.ty.dtype);
            }
        });
    }

    /// What was kept, and behind it the sequence's tokens, by number.
    fn seen(&self, number: Int<'c>) -> Vector<'c> {
        let (c, Conv { x, len, .. }) = (self.c, self.conv);
        let len = *len;
        let token = self.run.first + (c.larger(number, len - 1) - (len - 1));
        let now = element(c, x, token, self.column);
        if len == 1 {
            return c.load_floats(now, x.ty.dtype);
        }
        let is_kept = c.less(number, len - 1);
        let place = c.pick(is_kept, self.kept(c.smaller(number, len - 2)), now).into_pointer_value();
        let exists = !is_kept | self.run.goes_on;
        c.pick(exists, c.load_floats(place, x.ty.dtype), c.zero()).into_vector_value()
    }

    fn kept(&self, number: Int<'c>) -> Ptr<'c> {
        let at = number * self.conv.channels + self.column;
        self.c.at(self.run.slot, at * self.conv.x.ty.dtype.size())
    }
}
