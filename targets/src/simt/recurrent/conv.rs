//! The short convolution: a lane has a vector of channels, and the waves of a work-group take turns
//! at some tokens of the step, whatever sequences they are of.
//!
//! The first tokens of a sequence also see the kept inputs. They belong to the work-group that has
//! the first one, which then writes the new kept inputs: so no other reads what it writes.
use atomc_artifact::manifest;

use crate::code::{Int, Ptr, Vector};
use crate::recurrent::{Conv, Run, State, node};
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::Gpu;
use crate::{KernelSpec, Tasks};

use super::{MANY_TOKENS, element, pad, vector};

/// Most elements of a vector: 16 bytes of the short types.
const LANES: usize = 8;
/// Waves of a work-group in steps of more than `FEW_TOKENS` tokens: some sequence may have many.
const WAVES: usize = 4;
const FEW_TOKENS: usize = 8;
/// Tokens of a work-group in steps of many.
const TOKENS: usize = 16;

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let wave = setup.gpu()?.simt.wave;
    let waves = if spec.tokens > FEW_TOKENS { WAVES } else { 1 };
    let per = if spec.tokens < MANY_TOKENS { 1 } else { TOKENS };
    let code = setup.open(spec, waves * wave)?;
    let times = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let conv = Conv::of(&kernel, node(&kernel)?)?;
        c.set_lanes(vector(conv.channels, vector(conv.start, LANES)));
        let parts = conv.channels.div_ceil(wave * c.lanes());
        let [range, part] = c.divide(c.group(), c.int(parts));
        let (tokens, first) = (launch::step_size(c, spec, false), range * per);
        let column = (part * wave + c.lane_index()) * c.lanes();
        let state = State::of(&kernel)?;
        Channels { c, conv: &conv, state, column, tokens, first, end: first + per, waves }.make();
        c.when(c.equal(part, parts - 1), || {
            pad(c, conv.out, [first, c.smaller(first + per, tokens)], c.thread(), waves * wave);
        });
        conv.finish()?;
        parts
    };
    Ok((code, manifest::Kernel::simt(Tasks::Tokens { per, times }, waves * wave)))
}

/// A vector of channels of some tokens.
struct Channels<'a, 'k, 'c> {
    c: &'a Gpu<'c>,
    conv: &'a Conv<'k, 'c>,
    state: State<'c>,
    column: Int<'c>,
    /// Tokens of the step, and those of the work-group.
    tokens: Int<'c>,
    first: Int<'c>,
    end: Int<'c>,
    waves: usize,
}

impl<'c> Channels<'_, '_, 'c> {
    fn make(&self) {
        let (c, Conv { weight, len, .. }) = (self.c, self.conv);
        let exists = c.less(self.column, self.conv.channels);
        c.when(exists, || {
            let weight = |i: usize| c.load_floats(element(c, weight, c.int(i), self.column), weight.ty.dtype);
            let weights: Vec<Vector> = (0..*len).map(weight).collect();
            // A sequence that begins with the last token has more tokens that see the kept inputs.
            let end = c.smaller(self.end + len.saturating_sub(2), self.tokens);
            c.repeat(self.first + c.wave_index(), end, self.waves, |token| self.token(token, &weights));
        });
        // All waves have read the kept inputs.
        if self.waves > 1 {
            c.barrier();
        }
        c.repeat(self.first + c.wave_index(), c.smaller(self.end, self.tokens), self.waves, |token| {
            self.state.when_first(c, token, self.tokens, |run| c.when(exists & run.has_slot, || self.keep(run)));
        });
    }

    /// Makes a token's results, if it is the work-group's.
    fn token(&self, token: Int<'c>, weights: &[Vector<'c>]) {
        let (c, Conv { out, len, .. }) = (self.c, self.conv);
        let before = self.state.before(c, token, len - 1);
        let first = token - before;
        // A token that sees no kept input belongs to the work-group that has it.
        let by = c.as_int(c.pick(c.less(before, len - 1), first, token));
        c.when(!c.less(by, self.first) & c.less(by, self.end), || {
            let run = self.state.run(c, first, token + 1);
            let taps = weights.iter().enumerate();
            let sum = taps.fold(c.zero(), |sum, (i, &w)| c.fma(self.seen(run, before + i), w, sum));
            let stored = self.conv.stored(c, sum, token, self.column);
            c.store_floats(element(c, out, token, self.column), stored, out.ty.dtype);
        });
    }

    /// Writes the inputs that a sequence keeps behind its tokens. An old input that stays moves to
    /// an earlier place.
    fn keep(&self, run: Run<'c>) {
        let c = self.c;
        run.keep_states(c, |slot, tokens| {
            for i in 0..self.conv.len - 1 {
                let seen = self.seen(run, tokens + i);
                c.store_floats(self.kept(slot, c.int(i)), seen, self.conv.x.ty.dtype);
            }
        });
    }

    /// Inputs by number: first the kept ones, then the tokens of the sequence.
    fn seen(&self, run: Run<'c>, number: Int<'c>) -> Vector<'c> {
        let (c, Conv { x, len, .. }) = (self.c, self.conv);
        let len = *len;
        let token = run.first + (c.larger(number, len - 1) - (len - 1));
        let now = element(c, x, token, self.column);
        if len == 1 {
            return c.load_floats(now, x.ty.dtype);
        }
        let is_kept = c.less(number, len - 1);
        let place = c.pick(is_kept, self.kept(run.slot, c.smaller(number, len - 2)), now).into_pointer_value();
        let exists = !is_kept | run.goes_on;
        c.pick(exists, c.load_floats(place, x.ty.dtype), c.zero()).into_vector_value()
    }

    /// A kept input in a slot.
    fn kept(&self, slot: Ptr<'c>, number: Int<'c>) -> Ptr<'c> {
        let at = number * self.conv.channels + self.column;
        self.c.at(slot, at * self.conv.x.ty.dtype.size())
    }
}
