//! Outstanding memory operations of a wave, and the registers they will write.
//!
//! The interpreter completes operations at once; hardware does not. Each operation stays in the
//! queue of its counter until a wait covers it, and touching a register that it loads before that
//! is a fault. Operations of one queue complete in order, except scalar loads, which only a wait
//! for zero covers. Flat operations are in the queues of memory and of LDS; that they complete in
//! order there is LLVM's assumption, too.
use std::collections::VecDeque;

use super::wait::Wait;
use crate::fault::Counter;

/// An operation in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Vector rows that will be written.
    pub row: u16,
    pub rows: u8,
    /// Scalar registers that will be written.
    pub scalar: u8,
    pub scalars: u8,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ordered,
    Unordered,
    /// A load from memory to LDS: in order, and it fills LDS.
    ToLds,
    /// A store to memory: in order.
    Store,
}

/// The hardware's counters hold no more; a wave that would exceed them stalls until older
/// operations are done.
const COUNTER_MAX: usize = 63;

/// The queues of a wave.
#[derive(Debug)]
pub struct Pending {
    queues: [VecDeque<Operation>; 4],
    /// Outstanding loads by row, and the rows that have some, as bits.
    loads: Box<[u8; 512]>,
    rows: [u64; 8],
    scalars: u128,
    any: bool,
    to_lds: u32,
    stores: u32,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending {
            queues: Default::default(),
            loads: Box::new([0; 512]),
            rows: [0; 8],
            scalars: 0,
            any: false,
            to_lds: 0,
            stores: 0,
        }
    }
}

impl Pending {
    pub fn issue(&mut self, counter: Counter, operation: Operation) {
        for row in operation.row..operation.row + u16::from(operation.rows) {
            self.loads[usize::from(row)] += 1;
            self.rows[usize::from(row / 64)] |= 1 << (row % 64);
        }
        self.scalars |= scalar_bits(operation);
        self.to_lds += u32::from(operation.kind == Kind::ToLds);
        self.stores += u32::from(operation.kind == Kind::Store);
        self.any |= operation.rows != 0 || operation.scalars != 0;
        self.queues[counter as usize].push_back(operation);
        self.drain(counter as usize, COUNTER_MAX);
    }

    pub fn wait(&mut self, wait: Wait) {
        for (queue, most) in [wait.vector, wait.store, wait.lds, wait.scalar].into_iter().enumerate() {
            if let Some(most) = most {
                self.drain(queue, usize::from(most));
            }
        }
    }

    /// Operations in flight that the counter of LDS counts.
    pub fn lds_outstanding(&self) -> u32 {
        self.queues[Counter::Lds as usize].iter().filter(|o| o.scalars == 0).count() as u32
    }

    /// Loads to LDS in flight.
    pub fn to_lds_outstanding(&self) -> u32 {
        self.to_lds
    }

    /// Stores to memory in flight.
    pub fn stores_outstanding(&self) -> u32 {
        self.stores
    }

    /// The first register among these that is still being loaded.
    #[inline(always)]
    pub fn conflict(&self, rows: &[u64; 8], scalars: u128) -> Option<(String, Counter)> {
        let hit = |k: usize| rows[k] & self.rows[k];
        if !self.any || ((0..8).all(|k| hit(k) == 0) && scalars & self.scalars == 0) {
            return None;
        }
        Some(self.explain(rows, scalars))
    }

    /// As [`Pending::conflict`], for the destination of a load that is counted by `counter`: older
    /// loads of that queue return before it.
    pub fn overwrites(&self, row: u16, rows: u8, counter: Counter) -> Option<(String, Counter)> {
        let hit = (row..row + u16::from(rows)).find(|r| self.rows[usize::from(r / 64)] >> (r % 64) & 1 != 0)?;
        let others = [Counter::Vector, Counter::Store, Counter::Lds, Counter::Scalar].into_iter();
        let late = |o: &Operation| (o.row..o.row + u16::from(o.rows)).contains(&hit);
        let found = others.filter(|c| *c != counter).find(|c| self.queues[*c as usize].iter().any(late));
        found.map(|c| (vector_name(hit), c))
    }

    #[cold]
    fn explain(&self, rows: &[u64; 8], scalars: u128) -> (String, Counter) {
        let row = (0..8).find_map(|k| {
            let hit = rows[k] & self.rows[k];
            (hit != 0).then(|| (k as u32 * 64 + hit.trailing_zeros()) as u16)
        });
        let counters = [Counter::Vector, Counter::Store, Counter::Lds, Counter::Scalar];
        let of = |test: &dyn Fn(&Operation) -> bool| {
            counters.into_iter().find(|c| self.queues[*c as usize].iter().any(test)).unwrap_or(Counter::Vector)
        };
        match row {
            Some(row) => (vector_name(row), of(&|o| (o.row..o.row + u16::from(o.rows)).contains(&row))),
            None => {
                let index = (scalars & self.scalars).trailing_zeros() as u8;
                (scalar_name(index), of(&|o| scalar_bits(*o) >> index & 1 != 0))
            }
        }
    }

    fn drain(&mut self, queue: usize, most: usize) {
        if self.queues[queue].len() <= most {
            return;
        }
        let mixed = most != 0 && self.queues[queue].iter().any(|o| o.kind == Kind::Unordered);
        match mixed {
            true => self.drain_mixed(queue, most),
            false => {
                for _ in most..self.queues[queue].len() {
                    let operation = self.queues[queue].pop_front().expect("it is as long as that");
                    self.retire(operation);
                }
            }
        }
        if self.scalars != 0 {
            self.scalars = self.queues.iter().flatten().fold(0, |all, o| all | scalar_bits(*o));
        }
        self.any = self.scalars != 0 || self.rows.iter().any(|r| *r != 0);
    }

    fn drain_mixed(&mut self, queue: usize, most: usize) {
        let ordered = self.queues[queue].iter().filter(|o| o.kind != Kind::Unordered).count();
        let mut retire = ordered.saturating_sub(most);
        let mut kept = VecDeque::new();
        while let Some(operation) = self.queues[queue].pop_front() {
            let done = match operation.kind {
                Kind::Unordered => false,
                _ if retire > 0 => {
                    retire -= 1;
                    true
                }
                _ => false,
            };
            match done {
                true => self.retire(operation),
                false => kept.push_back(operation),
            }
        }
        self.queues[queue] = kept;
    }

    fn retire(&mut self, operation: Operation) {
        for row in operation.row..operation.row + u16::from(operation.rows) {
            let left = &mut self.loads[usize::from(row)];
            *left -= 1;
            if *left == 0 {
                self.rows[usize::from(row / 64)] &= !(1 << (row % 64));
            }
        }
        self.to_lds -= u32::from(operation.kind == Kind::ToLds);
        self.stores -= u32::from(operation.kind == Kind::Store);
    }
}

fn scalar_bits(operation: Operation) -> u128 {
    ((1u128 << operation.scalars) - 1) << operation.scalar
}

/// `v7` or `a7`.
pub fn vector_name(row: u16) -> String {
    match row.checked_sub(crate::inst::AGPR) {
        Some(n) => format!("a{n}"),
        None => format!("v{row}"),
    }
}

pub fn scalar_name(index: u8) -> String {
    use crate::inst::scalar::{EXEC, M0, TTMP, VCC};
    match index {
        VCC => "vcc_lo".into(),
        i if i == VCC + 1 => "vcc_hi".into(),
        M0 => "m0".into(),
        EXEC => "exec_lo".into(),
        i if i > EXEC => "exec_hi".into(),
        i if (TTMP..M0).contains(&i) => format!("ttmp{}", i - TTMP),
        i => format!("s{i}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(row: u16) -> Operation {
        Operation { row, rows: 1, scalar: 0, scalars: 0, kind: Kind::Ordered }
    }

    fn blocked(pending: &Pending, row: u16) -> bool {
        let mut rows = [0; 8];
        rows[usize::from(row / 64)] = 1 << (row % 64);
        pending.conflict(&rows, 0).is_some()
    }

    #[test]
    fn loads_return_in_order() {
        let mut pending = Pending::default();
        (0..3).for_each(|row| pending.issue(Counter::Vector, load(row)));
        pending.wait(Wait { vector: Some(2), ..Wait::default() });
        assert!(!blocked(&pending, 0) && blocked(&pending, 1) && blocked(&pending, 2));
        pending.wait(Wait { lds: Some(0), ..Wait::default() });
        assert!(blocked(&pending, 1));
        pending.wait(Wait { vector: Some(0), ..Wait::default() });
        assert!(!blocked(&pending, 2));
    }

    #[test]
    fn scalar_loads_need_a_wait_for_zero() {
        let mut pending = Pending::default();
        let scalar = Operation { row: 0, rows: 0, scalar: 4, scalars: 2, kind: Kind::Unordered };
        pending.issue(Counter::Lds, scalar);
        pending.issue(Counter::Lds, load(300));
        pending.wait(Wait { lds: Some(1), ..Wait::default() });
        assert_eq!(pending.conflict(&[0; 8], 1 << 5), Some(("s5".into(), Counter::Lds)));
        assert!(blocked(&pending, 300));
        pending.wait(Wait { lds: Some(0), ..Wait::default() });
        assert_eq!(pending.conflict(&[0; 8], 1 << 5), None);
        assert!(!blocked(&pending, 300));
    }
}
