//! The check of reads of other work-groups' stores.
//!
//! A group publishes by an atomic operation on memory, a counter as a rule; another one that gets
//! the counter's old value back may read what was published. For that, each store must have been
//! done before the atomic, by a wait of **the wave that stored**: hardware counts outstanding
//! stores for each wave, so a wait of the wave that publishes says nothing of the others', and a
//! barrier waits for waves, not for their stores. On gfx942 and gfx950 the stores must also have
//! been written back from the cache of their die (`buffer_wbl2 sc1`, done at the next wait for
//! zero), and on the reader's side the caches must be invalidated after the atomic.
//!
//! The check is made at the read, not at the atomic: an atomic that only counts (a histogram)
//! publishes nothing that is read, and stores may be outstanding then. The facts for it were noted
//! before, so it does not depend on the order in which groups and waves happen to run: each byte
//! has its last store, each atomic the stores of its group that were done, and each wave the part
//! of the counters that it has read. A barrier hands all of that from wave to wave. Only kernels
//! that have an atomic operation on memory pay for it; other kernels cannot publish, since
//! work-groups that wait for each other do not end here.
//!
//! The check is generous: an invalidation by any wave serves those that meet it at a barrier,
//! though on RDNA two halves of a work-group processor have caches of their own.
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Side;
use super::wait::Wait;
use crate::fault::{FaultKind, Operation, Trap, Unordered};
use crate::inst::Inst;
use crate::isa::Family;
use crate::mem::{Places, lanes};

/// Waves that a group can have.
const WAVES: usize = 32;

/// For each wave of a group, the number of the last store that is done, written back or ordered.
type Reach = [u32; WAVES];

/// The number of atomics on each counter that were read, by the counter's address.
type History = BTreeMap<u64, usize>;

/// The state that a launch's groups share: the last store to each byte, and the publications.
#[derive(Default)]
pub struct Stores {
    /// The page of each page number: an index into `pages`.
    index: HashMap<u64, usize>,
    pages: Vec<Box<Page>>,
    events: Vec<Event>,
    /// Atomics on each counter, in their order.
    counters: HashMap<u64, Vec<Arc<Publication>>>,
}

const PAGE: u64 = 4096;

/// For each byte the last store to it: one more than its index in `events`, or 0.
type Page = [u32; PAGE as usize];

/// A store instruction of a wave.
#[derive(Clone, Copy, Debug)]
struct Event {
    group: [u32; 3],
    wave: usize,
    number: u32,
    /// The address of the instruction.
    address: u64,
    /// It goes past the caches that need writing back.
    through: bool,
}

/// An atomic operation, and the stores that were done before it.
#[derive(Debug)]
struct Publication {
    group: [u32; 3],
    /// The address of the instruction.
    address: u64,
    stores: Done,
    /// The wave's knowledge of other groups, which it passes on.
    knows: History,
}

/// Stores of a group's waves that are done.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    /// Covered by waits of the wave that stored.
    performed: Reach,
    /// Written back, too.
    written: Reach,
}

impl Publication {
    fn covers(&self, event: &Event, family: Family) -> Result<(), Unordered> {
        let published = self.address;
        if event.number > self.stores.performed[event.wave] {
            return Err(Unordered::Outstanding { published });
        }
        if writes_back(family) && !event.through && event.number > self.stores.written[event.wave] {
            return Err(Unordered::Cached { published });
        }
        Ok(())
    }
}

/// Whether the cache in which stores end is not that of the whole device.
fn writes_back(family: Family) -> bool {
    matches!(family, Family::Gfx942 | Family::Gfx950)
}

impl Stores {
    /// Whether counters that were read so far order an event's store before now.
    fn ordered(&self, event: &Event, read: &History, family: Family) -> Result<(), Unordered> {
        let mut best = Unordered::Unread;
        let (mut open, mut seen) = (vec![read], History::new());
        while let Some(history) = open.pop() {
            for (counter, &count) in history {
                let seen = seen.entry(*counter).or_default();
                let before = std::mem::replace(seen, count.max(*seen));
                for publication in self.counters[counter][..count].iter().skip(before) {
                    if publication.group != event.group {
                        open.push(&publication.knows);
                        continue;
                    }
                    match publication.covers(event, family) {
                        Ok(()) => return Ok(()),
                        Err(why) => best = why,
                    }
                }
            }
        }
        Err(best)
    }

    fn page(&mut self, number: u64) -> &mut Page {
        let next = self.pages.len();
        let at = *self.index.entry(number).or_insert(next);
        if at == next {
            self.pages.push(vec![0; PAGE as usize].into_boxed_slice().try_into().expect("a page's length"));
        }
        &mut self.pages[at]
    }

    /// The last stores to bytes in one page.
    fn stores(&self, address: u64, bytes: u64) -> Option<&[u32]> {
        let at = *self.index.get(&(address / PAGE))?;
        let first = (address % PAGE) as usize;
        Some(&self.pages[at][first..first + bytes as usize])
    }
}

/// The parts of a range, one for each page.
fn parts(address: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = address + bytes;
    (address / PAGE..=(end - 1) / PAGE).map(move |page| {
        let first = address.max(page * PAGE);
        (first, end.min((page + 1) * PAGE) - first)
    })
}

/// The stores of a wave that are done, and its knowledge of others.
#[derive(Default)]
pub struct Order {
    /// Stores issued so far.
    stored: u32,
    written: Reach,
    /// A write-back that has begun.
    asked: Option<Reach>,
    /// Counters that were read.
    acquired: History,
    /// Those of them that were followed by an invalidation of the caches.
    known: History,
    /// Stores of a wave of another group that were found to be ordered, up to this number.
    ordered: HashMap<([u32; 3], usize), u32>,
}

impl Order {
    pub fn store_issued(&mut self) {
        self.stored += 1;
    }

    /// A write-back is counted by the counter of vector memory.
    pub fn waited(&mut self, wait: &Wait) {
        if let (Some(0), Some(asked)) = (wait.vector, self.asked) {
            raise(&mut self.written, &asked);
            self.asked = None;
        }
    }

    fn performed(&self, side: &Side) -> u32 {
        self.stored - side.pending.stores_outstanding().min(self.stored)
    }
}

fn raise(reach: &mut Reach, other: &Reach) {
    reach.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

fn join(history: &mut History, other: &History) {
    for (counter, count) in other {
        let own = history.entry(*counter).or_default();
        *own = (*own).max(*count);
    }
}

/// The knowledge that waves of a group share by a barrier.
#[derive(Clone, Default)]
struct Met {
    stores: Done,
    acquired: History,
    known: History,
}

/// The running group among those of its launch.
pub struct Others<'a> {
    stores: &'a Mutex<Stores>,
    group: [u32; 3],
    visible: Met,
    arrived: Met,
}

impl<'a> Others<'a> {
    pub fn new(stores: &'a Mutex<Stores>) -> Others<'a> {
        Others { stores, group: [0; 3], visible: Met::default(), arrived: Met::default() }
    }

    /// Another group runs.
    pub fn reset(&mut self, group: [u32; 3]) {
        *self = Others { group, ..Others::new(self.stores) };
    }

    /// A wave arrives at a barrier.
    pub fn arrive(&mut self, side: &Side) {
        let arrived = &mut self.arrived;
        arrived.stores.performed[side.number] = side.order.performed(side);
        raise(&mut arrived.stores.written, &side.order.written);
        join(&mut arrived.acquired, &side.order.acquired);
        join(&mut arrived.known, &side.order.known);
    }

    /// All waves have arrived.
    pub fn release(&mut self) {
        self.visible = self.arrived.clone();
    }

    /// Stores that a wave may say are done.
    fn done(&self, side: &Side) -> Done {
        let mut done = self.visible.stores;
        done.performed[side.number] = side.order.performed(side);
        raise(&mut done.written, &side.order.written);
        done
    }

    /// The wave has stores written back: its own, which go the same way before, and those of others
    /// that are known to be done.
    pub fn write_back(&self, side: &mut Side) {
        let mut asked = self.done(side).performed;
        asked[side.number] = side.order.stored;
        raise(&mut asked, &side.order.asked.unwrap_or_default());
        side.order.asked = Some(asked);
    }

    /// The wave invalidates caches.
    pub fn invalidate(&self, side: &mut Side) {
        let Order { acquired, known, .. } = &mut side.order;
        join(known, acquired);
        join(known, &self.visible.acquired);
    }

    /// The knowledge of a wave, and of its group since the last barrier.
    fn history(&self, own: &History, of: impl Fn(&Met) -> &History) -> History {
        let mut all = of(&self.visible).clone();
        join(&mut all, own);
        all
    }

    fn stores(&self) -> MutexGuard<'a, Stores> {
        // The locked value is whole between any two statements.
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lanes of an access to memory: stores are noted, loads are checked.
    pub fn access(
        &self,
        places: &Places,
        in_memory: u64,
        bytes: u32,
        operation: Operation,
        inst: &Inst,
        side: &mut Side,
    ) -> Result<(), Box<Trap>> {
        let ranges = lanes(in_memory).map(|lane| (lane, places.at[lane], places.bytes(lane, bytes)));
        match operation {
            Operation::Write => self.stored(ranges.map(|(_, at, bytes)| (at, bytes)), inst, side),
            Operation::Read => {
                let past = inst.modifiers.passes_caches(side.family);
                for (lane, at, bytes) in ranges {
                    self.read(at, bytes, past, side).map_err(|kind| Trap::lane(kind, lane as u32))?;
                }
            }
            Operation::Atomic => {}
        }
        Ok(())
    }

    fn stored(&self, ranges: impl Iterator<Item = (u64, u64)>, inst: &Inst, side: &Side) {
        let mut stores = self.stores();
        stores.events.push(Event {
            group: self.group,
            wave: side.number,
            number: side.order.stored + 1,
            address: inst.address,
            through: inst.modifiers.passes_caches(side.family),
        });
        let event = stores.events.len() as u32;
        for (address, bytes) in ranges.flat_map(|(address, bytes)| parts(address, bytes)) {
            let first = (address % PAGE) as usize;
            stores.page(address / PAGE)[first..first + bytes as usize].fill(event);
        }
    }

    /// Checks a read of bytes.
    pub fn read(&self, address: u64, bytes: u64, past_caches: bool, side: &mut Side) -> Result<(), FaultKind> {
        let stores = self.stores();
        for (address, bytes) in parts(address, bytes) {
            let Some(events) = stores.stores(address, bytes) else { continue };
            let mut last = 0;
            for (k, &event) in events.iter().enumerate().filter(|(_, event)| **event != 0) {
                if event == last {
                    continue;
                }
                last = event;
                let event = &stores.events[event as usize - 1];
                self.ordered(&stores, event, past_caches, side).map_err(|why| FaultKind::Unpublished {
                    address: address + k as u64,
                    group: event.group,
                    wave: event.wave as u32,
                    store: event.address,
                    why,
                })?;
            }
        }
        Ok(())
    }

    fn ordered(&self, stores: &Stores, event: &Event, past_caches: bool, side: &mut Side) -> Result<(), Unordered> {
        let from = (event.group, event.wave);
        if event.group == self.group || side.order.ordered.get(&from).is_some_and(|upto| event.number <= *upto) {
            return Ok(());
        }
        let acquired = self.history(&side.order.acquired, |met| &met.acquired);
        if past_caches {
            return stores.ordered(event, &acquired, side.family);
        }
        let known = self.history(&side.order.known, |met| &met.known);
        if stores.ordered(event, &known, side.family).is_err() {
            return Err(stores.ordered(event, &acquired, side.family).err().unwrap_or(Unordered::Stale));
        }
        let upto = side.order.ordered.entry(from).or_default();
        *upto = event.number.max(*upto);
        Ok(())
    }

    /// Publishes the wave's finished stores to the counters of an atomic operation's lanes, and
    /// notes the publications that it reads there. The caller holds the result until the operation
    /// is done; no other group publishes meanwhile.
    pub fn publish(
        &self,
        counters: impl Iterator<Item = u64>,
        returns: bool,
        inst: &Inst,
        side: &mut Side,
    ) -> MutexGuard<'a, Stores> {
        let mut stores = self.stores();
        let publication = Arc::new(Publication {
            group: self.group,
            address: inst.address,
            stores: self.done(side),
            knows: self.history(&side.order.acquired, |met| &met.acquired),
        });
        for counter in counters {
            let all = stores.counters.entry(counter).or_default();
            if returns && !all.is_empty() {
                side.order.acquired.insert(counter, all.len());
            }
            if !all.last().is_some_and(|last| Arc::ptr_eq(last, &publication)) {
                all.push(publication.clone());
            }
        }
        stores
    }
}
