//! A wave's way along its share of the keys.
use super::{Part, WAVES};
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::attention::flash::Fragments;
use crate::simt::attention::online_softmax::OnlineSoftmax;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Fragment;

/// One wave, which takes every `WAVES`-th step.
pub struct KvLoop<'w, 'p, 'k, 'a, 'c> {
    part: &'w Part<'p, 'k, 'a, 'c>,
    /// The address of the lane's staged query: its fragments are loaded at every step, so that more
    /// waves have registers.
    staged: Ptr<'c>,
    /// The lane's places in a step's keys and values.
    lanes: [Int<'c>; 2],
}

/// Carried in addition to the running values: the blocks of this step and of the wave's next one,
/// and this step's keys if they are loaded ahead.
struct Ahead<'c> {
    blocks: [Int<'c>; 2],
    keys: Vec<Fragment<'c>>,
}

impl<'c> Ahead<'c> {
    fn carried(&self) -> impl Iterator<Item = Any<'c>> {
        let keys = self.keys.iter().flatten().map(|&v| Any::from(v));
        self.blocks.map(Any::from).into_iter().chain(keys.collect::<Vec<_>>())
    }

    /// The carried values, with `vec16s` vectors in a fragment.
    fn of(c: &Gpu<'c>, carried: &[Any<'c>], vec16s: usize) -> Ahead<'c> {
        let keys: Vec<Vector<'c>> = carried[2..].iter().map(|v| v.into_vector_value()).collect();
        let blocks = [0, 1].map(|i| c.as_int(carried[i]));
        Ahead { blocks, keys: keys.chunks(vec16s).map(|vec16s| vec16s.to_vec()).collect() }
    }
}

impl<'w, 'p, 'k, 'a, 'c> KvLoop<'w, 'p, 'k, 'a, 'c> {
    pub fn new(part: &'w Part<'p, 'k, 'a, 'c>, staged: Ptr<'c>) -> KvLoop<'w, 'p, 'k, 'a, 'c> {
        let a = part.attention;
        let lanes = [a.key_lane(), a.value_lane()].map(|at| a.stored.offset(at));
        KvLoop { part, staged, lanes }
    }

    pub fn all(&self) -> OnlineSoftmax<'c> {
        let (a, c, last) = (self.part.attention, self.part.code(), self.part.last);
        let first = self.part.first + c.wave_index();
        let blocks = [0, WAVES].map(|ahead| self.part.block(first + ahead));
        let keys = if self.part.shape.ahead { self.keys(blocks[0], c.smaller(first, last)) } else { vec![] };
        let mut carried = self.part.begin().carried();
        let count = carried.len();
        carried.extend(Ahead { blocks, keys }.carried());
        let carried = c.for_each((first, last + 1, WAVES), &carried, |step, carried| {
            let (running, ahead) = carried.split_at(count);
            let (running, ahead) =
                self.step(step, &OnlineSoftmax::of(running), Ahead::of(c, ahead, a.matrix.panel_vec16s()));
            running.carried().into_iter().chain(ahead.carried()).collect()
        });
        OnlineSoftmax::of(&carried[..count])
    }

    /// One step. Its values, then the next keys, are loaded before earlier loads are used.
    fn step(&self, step: Int<'c>, running: &OnlineSoftmax<'c>, ahead: Ahead<'c>) -> (OnlineSoftmax<'c>, Ahead<'c>) {
        let (a, c) = (self.part.attention, self.part.code());
        let [block, next] = ahead.blocks;
        let further = self.part.block(step + 2 * WAVES);
        let (scores, values, keys): (_, Fragments<'_, 'c>, _) = if self.part.shape.ahead {
            let values: Vec<Fragment<'c>> = (0..a.panels()).map(self.value(block, step)).collect();
            c.keep_order();
            let keys: Fragments<'_, 'c> = Box::new(|i| a.widened(&ahead.keys[i]));
            let scores = self.scores(&keys);
            c.keep_order();
            let keys = self.keys(next, c.smaller(step + WAVES, self.part.last));
            c.keep_order();
            (scores, Box::new(move |i| a.widened(&values[i])), keys)
        } else {
            let key = self.key(block, step);
            let keys: Fragments<'_, 'c> = Box::new(move |i| a.widened(&key(i)));
            let scores = self.scores(&keys);
            c.keep_order();
            let value = self.value(block, step);
            (scores, Box::new(move |i| a.widened(&value(i))), vec![])
        };
        let first = step * a.span() + a.half * a.held();
        let scores = a.hide(scores, self.part.seen() - first);
        let running = a.accumulate(&[vec![scores]], &values, std::slice::from_ref(running)).remove(0);
        (running, Ahead { blocks: [next, further], keys })
    }

    fn scores(&self, keys: &Fragments<'_, 'c>) -> Vector<'c> {
        let (a, c, staged) = (self.part.attention, self.part.code(), self.staged);
        let chunk = a.span() * a.matrix.dtype.size();
        let kept = self.part.shape.keeps && !a.matrix.converts();
        let query = a.fragments_if(kept, a.chunks(), move |i| a.matrix.load_row(c.at(staged, i * chunk)));
        a.scores(keys, &[query]).remove(0)
    }

    /// Loads fragments of a step's keys by number, as they are stored.
    fn key(&self, block: Int<'c>, step: Int<'c>) -> impl Fn(usize) -> Fragment<'c> + use<'p, 'k, 'a, 'c> {
        let (a, p) = (self.part.attention, self.lane(0, block, step));
        move |i| a.key(p, i)
    }

    fn keys(&self, block: Int<'c>, step: Int<'c>) -> Vec<Fragment<'c>> {
        (0..self.part.attention.keys()).map(self.key(block, step)).collect()
    }

    /// Loads fragments of a step's values by number, as they are stored.
    fn value(&self, block: Int<'c>, step: Int<'c>) -> impl Fn(usize) -> Fragment<'c> + use<'p, 'k, 'a, 'c> {
        let (a, p) = (self.part.attention, self.lane(1, block, step));
        move |i| a.value(p, i)
    }

    /// The address of the lane's keys, or values, of a step.
    fn lane(&self, which: usize, block: Int<'c>, step: Int<'c>) -> Ptr<'c> {
        let c = self.part.code();
        let starts = self.part.attention.turn_in(block, self.part.cache_head, step, 1);
        c.at(starts[which], c.lane_offset(self.lanes[which], step))
    }
}
