//! Snapshots of slots, taken after whole blocks of tokens. A sequence resumes from one if it begins
//! like another, or if it is taken back.
//!
//! A snapshot has a unit in each group of slots. Sequences that begin with its tokens hold it as
//! they hold the blocks of these tokens, and it is dropped with the last of them. It is dropped
//! sooner if its units are needed: the one with the oldest use first.

/// All snapshots of a cache.
#[derive(Debug)]
pub struct Snapshots {
    /// Tokens from one to the next of a sequence.
    every: usize,
    /// Most snapshots.
    most: usize,
    /// Entries without holders are free.
    all: Vec<Snapshot>,
    /// Counts the calls that make or use a snapshot.
    clock: u64,
}

#[derive(Debug, Default)]
struct Snapshot {
    holders: u32,
    made: u64,
    used: u64,
    /// By group; of those with pages none.
    units: Vec<Option<i32>>,
}

/// A sequence's hold of a snapshot after `tokens` of its tokens. A snapshot that went meanwhile is
/// recognised as such.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub tokens: usize,
    index: usize,
    made: u64,
}

impl Snapshots {
    /// None are made if `most` is zero.
    pub fn new(every: usize, most: usize) -> Snapshots {
        Snapshots { every: every.max(1), most, all: Vec::with_capacity(most), clock: 0 }
    }

    /// The number of snapshots.
    pub fn count(&self) -> usize {
        self.all.iter().filter(|snapshot| snapshot.holders > 0).count()
    }

    pub fn is_full(&self) -> bool {
        self.count() >= self.most
    }

    /// Tokens until a sequence of `len` tokens wants one.
    pub fn until(&self, len: usize) -> usize {
        if self.most == 0 { usize::MAX } else { self.every - len % self.every }
    }

    /// Whether a sequence of `len` tokens wants one.
    pub fn wants(&self, len: usize) -> bool {
        self.most > 0 && len > 0 && len.is_multiple_of(self.every)
    }

    pub fn is_there(&self, mark: Mark) -> bool {
        let snapshot = &self.all[mark.index];
        snapshot.holders > 0 && snapshot.made == mark.made
    }

    /// The unit of a snapshot in each group of slots.
    pub fn units(&self, mark: Mark) -> &[Option<i32>] {
        &self.all[mark.index].units
    }

    /// A snapshot in these units, held once.
    pub fn add(&mut self, tokens: usize, units: impl Iterator<Item = Option<i32>>) -> Mark {
        let free = self.all.iter().position(|snapshot| snapshot.holders == 0);
        let index = free.unwrap_or_else(|| {
            self.all.push(Snapshot::default());
            self.all.len() - 1
        });
        self.clock += 1;
        let (snapshot, made) = (&mut self.all[index], self.clock);
        (snapshot.holders, snapshot.made, snapshot.used) = (1, made, made);
        snapshot.units.clear();
        snapshot.units.extend(units);
        Mark { tokens, index, made }
    }

    /// One more sequence holds it.
    pub fn hold(&mut self, mark: Mark) {
        self.all[mark.index].holders += 1;
    }

    /// Notes that a sequence resumes from it.
    pub fn touch(&mut self, mark: Mark) {
        self.clock += 1;
        self.all[mark.index].used = self.clock;
    }

    /// Releases a sequence's hold. Returns the units of the snapshot if that was the last one.
    pub fn let_go(&mut self, mark: Mark) -> &[Option<i32>] {
        if !self.is_there(mark) {
            return &[];
        }
        let snapshot = &mut self.all[mark.index];
        snapshot.holders -= 1;
        if snapshot.holders == 0 { &snapshot.units } else { &[] }
    }

    /// Forgets the one that was used longest ago, held or not, and returns its units.
    pub fn evict(&mut self) -> &[Option<i32>] {
        let there = self.all.iter_mut().filter(|snapshot| snapshot.holders > 0);
        there.min_by_key(|snapshot| snapshot.used).map_or(&[], |snapshot| {
            snapshot.holders = 0;
            &snapshot.units
        })
    }
}
