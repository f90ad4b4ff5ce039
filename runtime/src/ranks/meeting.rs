//! Where ranks of a stage meet: what each brings, what they make of it, and what the stage before
//! hands on to them.
use crate::device::DeviceError;
use atomc_artifact::manifest::DType;
use half::{bf16, f16};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A place to meet for a fixed number of ranks.
#[derive(Debug)]
pub(super) struct Meeting {
    ranks: usize,
    state: Mutex<State>,
    turned: Condvar,
}

/// The bytes that each rank has brought.
type Brought = Arc<Vec<Vec<u8>>>;

#[derive(Debug, Default)]
struct State {
    /// By rank; none where it has not come yet.
    come: Vec<Option<Vec<u8>>>,
    /// What all brought to the last meeting that was complete.
    last: Brought,
    /// Meetings that were complete.
    turn: u64,
    /// By rank: what the stage before has handed on to it, the first of it first.
    handed: Vec<VecDeque<Vec<u8>>>,
    /// The first rank, of any stage, that will not come any more.
    left: Option<usize>,
}

impl Meeting {
    pub fn new(ranks: usize) -> Meeting {
        let state = State { come: vec![None; ranks], handed: vec![VecDeque::new(); ranks], ..State::default() };
        Meeting { ranks, state: Mutex::new(state), turned: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a step: all ranks take part.
    pub fn begin(&self) {
        let mut state = self.lock();
        state.left = None;
        state.come.fill(None);
        state.handed.iter_mut().for_each(VecDeque::clear);
    }

    /// Hands rows on to a rank, which may take them later.
    pub fn hand(&self, rank: usize, rows: Vec<u8>) {
        self.lock().handed[rank].push_back(rows);
        self.turned.notify_all();
    }

    /// The next rows that were handed on to a rank.
    pub fn take(&self, rank: usize) -> Result<Vec<u8>, DeviceError> {
        let mut state = self.lock();
        loop {
            if let Some(rows) = state.handed[rank].pop_front() {
                return Ok(rows);
            }
            if let Some(rank) = state.left {
                return Err(DeviceError::Left { rank });
            }
            state = self.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A rank takes no part any more: those that wait for it get an error.
    pub fn leave(&self, rank: usize) {
        self.lock().left.get_or_insert(rank);
        self.turned.notify_all();
    }

    /// What all ranks bring, in their order.
    pub fn gather(&self, rank: usize, own: &[u8]) -> Result<Brought, DeviceError> {
        let mut state = self.lock();
        state.come[rank] = Some(own.to_vec());
        let turn = state.turn;
        if state.come.iter().all(Option::is_some) {
            state.last = Arc::new(state.come.iter_mut().filter_map(Option::take).collect());
            state.turn += 1;
            self.turned.notify_all();
        }
        while state.turn == turn {
            if let Some(rank) = state.left {
                return Err(DeviceError::Left { rank });
            }
            state = self.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state.last.clone())
    }

    /// Replaces this rank's numbers by the sums of all ranks'. A rank makes its share of them.
    pub fn sum(&self, rank: usize, own: &mut [u8], dtype: DType) -> Result<(), DeviceError> {
        let all = self.gather(rank, own)?;
        let count = own.len() / dtype.size();
        let share =
            |rank: usize| rank * count / self.ranks * dtype.size()..(rank + 1) * count / self.ranks * dtype.size();
        let sums = self.gather(rank, &summed(&all, share(rank), dtype))?;
        sums.iter().enumerate().for_each(|(rank, sums)| own[share(rank)].copy_from_slice(sums));
        Ok(())
    }
}

/// The sums of a range of all ranks' numbers, in the order of the ranks.
fn summed(all: &[Vec<u8>], range: Range<usize>, dtype: DType) -> Vec<u8> {
    let mut sums = vec![0.0; range.len() / dtype.size()];
    for part in all {
        sums.iter_mut().zip(part[range.clone()].chunks_exact(dtype.size())).for_each(|(sum, x)| *sum += read(x, dtype));
    }
    let mut bytes = vec![0; range.len()];
    bytes.chunks_exact_mut(dtype.size()).zip(sums).for_each(|(to, sum)| write(to, sum, dtype));
    bytes
}

/// Adds numbers to others of the same type.
pub(super) fn add(to: &mut [u8], more: &[u8], dtype: DType) {
    let pairs = to.chunks_exact_mut(dtype.size()).zip(more.chunks_exact(dtype.size()));
    pairs.for_each(|(to, more)| write(to, read(to, dtype) + read(more, dtype), dtype));
}

/// A number of one of the types in which models compute.
fn read(bytes: &[u8], dtype: DType) -> f32 {
    match (bytes, dtype) {
        (&[a, b], DType::BF16) => bf16::from_le_bytes([a, b]).to_f32(),
        (&[a, b], DType::F16) => f16::from_le_bytes([a, b]).to_f32(),
        (&[a, b, c, d], _) => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}

fn write(to: &mut [u8], value: f32, dtype: DType) {
    match dtype {
        DType::BF16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        DType::F16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        _ => to.copy_from_slice(&value.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn sums_are_the_same_on_all_ranks() {
        let meeting = Meeting::new(3);
        let parts = [[1.0, 2.0, 3.0, 4.0, 5.0], [1e8, 0.5, -3.0, 0.0, 1.0], [-1e8, 0.25, 1.0, 1.0, 1.0]];
        let got: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let start = |(rank, part): (usize, &[f32; 5])| {
                let (meeting, mut own) = (&meeting, numbers(part));
                scope.spawn(move || meeting.sum(rank, &mut own, DType::F32).map(|()| own).unwrap())
            };
            let threads: Vec<_> = parts.iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // 1 + 1e8 is 1e8 in f32, so the order shows.
        let want = numbers(&[0.0, 2.75, 1.0, 5.0, 7.0]);
        assert!(got.iter().all(|sums| *sums == want));
    }

    #[test]
    fn a_rank_that_leaves_ends_the_wait_of_others() {
        let meeting = Meeting::new(2);
        let waited = std::thread::scope(|scope| {
            let waits = scope.spawn(|| meeting.gather(0, &[1]));
            meeting.leave(1);
            waits.join().unwrap()
        });
        assert!(matches!(waited, Err(DeviceError::Left { rank: 1 })));
        meeting.begin();
        let both = std::thread::scope(|scope| {
            let waits = scope.spawn(|| meeting.gather(0, &[1]));
            (meeting.gather(1, &[2]).unwrap(), waits.join().unwrap().unwrap())
        });
        assert_eq!(*both.0, [[1], [2]]);
        assert_eq!(both.0, both.1);
    }

    #[test]
    fn takes_what_was_handed_on_in_order() {
        let meeting = Meeting::new(2);
        let taken = std::thread::scope(|scope| {
            let waits = scope.spawn(|| [meeting.take(1).unwrap(), meeting.take(1).unwrap()]);
            meeting.hand(1, vec![1]);
            meeting.hand(1, vec![2]);
            waits.join().unwrap()
        });
        assert_eq!(taken, [[1], [2]]);
        meeting.hand(0, vec![3]);
        meeting.begin();
        meeting.leave(5);
        assert!(matches!(meeting.take(0), Err(DeviceError::Left { rank: 5 })));
    }

    #[test]
    fn adds_in_the_type_of_the_numbers() {
        let bytes = |x: f32| bf16::from_f32(x).to_le_bytes().to_vec();
        let mut sum = bytes(256.0);
        add(&mut sum, &bytes(0.5), DType::BF16);
        assert_eq!(sum, bytes(256.0));
    }
}
