//! Pipelines through local memory. Producers fill places, and consumers release them. Each place
//! has a barrier for "full" and one for "empty". The number of an item, counted from the first,
//! gives its place and its round.
use crate::code::Int;
use crate::simt::machine::Gpu;

#[derive(Clone, Copy)]
pub struct Pipeline<'c> {
    pub places: usize,
    /// Bytes of a place.
    pub bytes: usize,
    /// Addresses of the first place and of the barriers: first those of full places.
    pub local: Int<'c>,
    pub barriers: Int<'c>,
}

impl<'c> Pipeline<'c> {
    pub fn new(c: &Gpu<'c>, places: usize, bytes: usize, align: usize) -> Pipeline<'c> {
        let local = c.local_address(c.shared(places * bytes, align));
        Pipeline { places, bytes, local, barriers: c.local_address(c.shared(2 * places * 8, 8)) }
    }

    /// Initialises the barriers, by one thread: `full` threads arrive to say that a place is full,
    /// and `empty` threads to say that it is empty.
    pub fn make_barriers(&self, c: &Gpu<'c>, [full, empty]: [usize; 2]) {
        for i in (0..self.places).map(|i| c.int(i)) {
            c.make_barrier_of(full, self.full(i));
            c.make_barrier_of(empty, self.empty(i));
        }
    }

    fn place(&self, turn: Int<'c>) -> Int<'c> {
        turn % self.places
    }

    /// The last bit of how often the turn's place was used before.
    fn round(&self, turn: Int<'c>) -> Int<'c> {
        turn / self.places % 2
    }

    /// The place of a turn's data.
    pub fn at(&self, turn: Int<'c>) -> Int<'c> {
        self.local + self.place(turn) * self.bytes
    }

    /// The barrier that says that a turn's data has arrived.
    pub fn full(&self, turn: Int<'c>) -> Int<'c> {
        self.barriers + self.place(turn) * 8
    }

    fn empty(&self, turn: Int<'c>) -> Int<'c> {
        self.full(turn) + 8 * self.places
    }

    /// Waits until a turn's data has arrived.
    pub fn wait_full(&self, c: &Gpu<'c>, turn: Int<'c>) {
        c.await_turn(self.full(turn), self.round(turn));
    }

    /// Waits until there is room for a turn's data: its place has been released.
    pub fn wait_empty(&self, c: &Gpu<'c>, turn: Int<'c>) {
        c.await_turn(self.empty(turn), 1 - self.round(turn));
    }

    /// Releases a turn's data, if the condition holds.
    pub fn release(&self, c: &Gpu<'c>, condition: Int<'c>, turn: Int<'c>) {
        c.arrive(condition, self.empty(turn));
    }
}

/// Divides a work-group's threads by their roles: the first `consumers` of them consume, the others
/// produce. Each role has its own number of registers.
pub fn split_roles<'c>(
    c: &Gpu<'c>,
    consumers: usize,
    [of_producer, of_consumer]: [usize; 2],
    produce: impl FnOnce(),
    consume: impl FnOnce(),
) {
    c.when(c.less(consumers - 1, c.thread()), || {
        c.set_registers(of_producer, false);
        produce();
    });
    c.when(c.less(c.thread(), consumers), || {
        c.set_registers(of_consumer, true);
        consume();
    });
}
