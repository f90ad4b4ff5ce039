//! Sequences that share beginnings and slots, against a model in which each has tokens of its own.
use super::*;

const BLOCK: usize = 4;
const LONGEST: usize = 64;
const EVERY: usize = 8;

/// The contents that tables should have: for each group those of its blocks, or slots.
struct Model {
    kept: Vec<Kept>,
    /// By group and page: the token at each place.
    pages: Vec<Vec<[u32; BLOCK]>>,
    /// By group and slot: all tokens that went in.
    slots: Vec<Vec<Vec<u32>>>,
    /// Each sequence, with its tokens.
    alive: Vec<(SeqId, Vec<u32>)>,
    seen: Seen,
}

/// Counts of events, by which a test checks that they happened.
#[derive(Debug, Default)]
struct Seen {
    forked_live: usize,
    forked_back: usize,
    rewound: usize,
    healed: usize,
    evicted: usize,
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = crate::checkpoint::mix(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0 as usize % end
    }
}

impl Model {
    fn new(kept: &[Kept], Sizes { blocks, slots, .. }: Sizes) -> Model {
        let slots_of = |kept: &Kept| vec![vec![]; if kept.is_slots() { kept.units(blocks, slots) } else { 0 }];
        Model {
            kept: kept.to_vec(),
            pages: vec![vec![[u32::MAX; BLOCK]; blocks]; kept.len()],
            slots: kept.iter().map(slots_of).collect(),
            alive: vec![],
            seen: Seen::default(),
        }
    }

    fn copy(&mut self, kv: &mut Kv) {
        for BlockCopy { group, from, to } in kv.take_copies() {
            match self.kept[group] {
                Kept::Slots { .. } => self.slots[group][to] = self.slots[group][from].clone(),
                Kept::Pages { .. } => self.pages[group][to] = self.pages[group][from],
            }
        }
    }

    /// A step like the engine's: in parts that end at the positions of snapshots.
    fn step(&mut self, kv: &mut Kv, index: usize, random: &mut Random, count: usize) {
        let id = self.alive[index].0;
        let mut left = count;
        while left > 0 {
            let part = left.min(1 + random.below(9)).min(kv.until_snapshot(id));
            let Ok(grown) = kv.grow(id, part) else { panic!("room was reserved") };
            for position in grown.clone() {
                self.compute(kv, (index, &grown), position, random.below(3) as u32);
            }
            let (before, full) = (kv.snapshots(), kv.free_slots() == 0);
            kv.keep_snapshot(id).unwrap();
            self.seen.evicted += usize::from(full && before > 0 && !kv.copies.is_empty());
            self.copy(kv);
            left -= part;
        }
    }

    /// One more token of a sequence, for which a kernel writes its pages; the first reads a slot,
    /// and those behind which the state is kept write one.
    fn compute(&mut self, kv: &Kv, (index, step): (usize, &Range<usize>), position: usize, token: u32) {
        let (id, tokens) = &mut self.alive[index];
        for (group, table) in kv.tables(*id).unwrap().enumerate() {
            let block = |index: usize| table[index] as usize;
            match self.kept[group] {
                Kept::Slots { ring } => {
                    if position == step.start && position > 0 {
                        let state = &self.slots[group][block(0)];
                        assert_eq!(state, tokens, "the slot of {id} before token {position}");
                    }
                    let entry = match (ring, step.len() <= ring) {
                        (1, _) => Some(0),
                        (_, true) => Some(position + 1 - step.start),
                        (_, false) => (position + 1 == step.end).then_some(1),
                    };
                    if let Some(entry) = entry {
                        self.slots[group][block(entry)] = [&tokens[..], &[token]].concat();
                    }
                }
                Kept::Pages { .. } => self.pages[group][block(position / BLOCK)][position % BLOCK] = token,
            }
        }
        tokens.push(token);
    }

    /// The next token of each sequence sees the sequence's own tokens.
    fn check(&self, kv: &Kv) {
        for (id, tokens) in &self.alive {
            let sequence = kv.get(*id).unwrap();
            if sequence.broken.is_some() {
                continue;
            }
            assert_eq!(kv.len(*id), Ok(tokens.len()));
            for (group, table) in kv.tables(*id).unwrap().enumerate() {
                if let Kept::Pages { window, .. } = self.kept[group] {
                    let first = if window == 0 { 0 } else { (tokens.len() + 1).saturating_sub(window) };
                    let page = |position: usize| self.pages[group][table[position / BLOCK] as usize][position % BLOCK];
                    let found: Vec<u32> = (first..tokens.len()).map(page).collect();
                    assert_eq!(found, tokens[first..], "pages of {id} in group {group}");
                } else if !table.is_empty() {
                    let table = sequence.tables[group].entries();
                    for behind in sequence.first_state.max(1)..=tokens.len() {
                        let (slot, tokens) = (table[behind % table.len()] as usize, &tokens[..behind]);
                        assert_eq!(&self.slots[group][slot], tokens, "the slot of {id}");
                    }
                }
            }
        }
    }

    fn fork(&mut self, kv: &mut Kv, random: &mut Random) {
        let (parent, tokens) = &self.alive[random.below(self.alive.len())];
        let wanted = if random.below(2) == 0 { tokens.len() } else { random.below(tokens.len() + 1) };
        let (len, tokens) = (tokens.len(), tokens.clone());
        let Ok(Fork { sequence, tokens: shared }) = kv.fork(*parent, wanted) else { return };
        assert!(shared <= wanted);
        self.seen.forked_live += usize::from(shared == len && shared % BLOCK > 0);
        self.seen.forked_back += usize::from(shared > 0 && shared < len);
        self.alive.push((sequence, tokens[..shared].to_vec()));
        self.copy(kv);
    }

    fn rewind(&mut self, kv: &mut Kv, random: &mut Random) {
        let index = random.below(self.alive.len());
        let (id, tokens) = &mut self.alive[index];
        let was_broken = kv.get(*id).unwrap().broken.is_some();
        let wanted = random.below(tokens.len() + 1);
        let left = kv.rewind(*id, wanted).unwrap();
        assert!(left <= wanted);
        self.seen.rewound += usize::from(left > 0 && left < tokens.len());
        self.seen.healed += usize::from(left > 0 && was_broken);
        tokens.truncate(left);
        self.copy(kv);
    }

    /// Some grow, if there is room, and some of these steps fail when all is computed.
    fn grow(&mut self, kv: &mut Kv, random: &mut Random) {
        let index = random.below(self.alive.len());
        let (id, len) = (self.alive[index].0, self.alive[index].1.len());
        let count = (1 + random.below(20)).min(LONGEST - len);
        if kv.reserve(std::iter::once((id, count))).is_err() {
            return;
        }
        self.step(kv, index, random, count);
        if random.below(8) == 0 {
            kv.undo(id, len).unwrap();
            self.alive[index].1.truncate(len);
        }
    }
}

fn run(kept: &[Kept], sizes: Sizes) -> Seen {
    let (mut kv, mut model, mut random) = (Kv::new(kept, sizes), Model::new(kept, sizes), Random(7));
    for _ in 0..20_000 {
        // Few enough that one of them has a slot to spare.
        match if model.alive.len() > sizes.slots { 4 } else { random.below(10) } {
            0 => model.alive.push((kv.add(), vec![])),
            _ if model.alive.is_empty() => {}
            1 | 2 => model.fork(&mut kv, &mut random),
            3 => model.rewind(&mut kv, &mut random),
            4 | 5 if model.alive.len() > 1 => {
                let (id, _) = model.alive.swap_remove(random.below(model.alive.len()));
                kv.drop_sequence(id).unwrap();
            }
            _ => model.grow(&mut kv, &mut random),
        }
        model.check(&kv);
        assert!(kv.snapshots() <= sizes.snapshots);
    }
    model.alive.drain(..).for_each(|(id, _)| kv.drop_sequence(id).unwrap());
    assert_eq!((kv.free_blocks(), kv.snapshots()), (sizes.blocks, 0));
    if let Some(slots) = kept.iter().find(|kept| kept.is_slots()) {
        assert_eq!(kv.free_slots(), slots.units(sizes.blocks, sizes.slots));
    }
    model.seen
}

/// Random admissions, forks, growth, failures and returns: whatever a sequence shares, its next
/// token reads the entries of its own tokens.
#[test]
fn nobody_reads_what_another_made() {
    let sizes = Sizes {
        block_tokens: BLOCK,
        blocks: 40,
        slots: 6,
        max_len: LONGEST,
        step: 9,
        snapshot_tokens: EVERY,
        snapshots: 4,
    };
    let four = Kept::Slots { ring: 4 };
    let with_window = [ALL, Kept::Pages { window: 30, every: 1 }, SLOT];
    for kept in [&[SLOT, ALL, SLOT][..], &with_window, &[four, ALL, four]] {
        let mut counts = [0; 5];
        for slots in [3, 6, 16] {
            let Seen { forked_live, forked_back, rewound, healed, evicted } = run(kept, Sizes { slots, ..sizes });
            let seen = [forked_live, forked_back, rewound, healed, evicted];
            counts.iter_mut().zip(seen).for_each(|(count, seen)| *count += seen);
        }
        assert!(counts.iter().all(|&count| count > 20), "{kept:?}: {counts:?}");
    }
    for kept in [&[ALL][..], &[SEVEN, ALL]] {
        let seen = run(kept, sizes);
        assert!(seen.forked_back > 10 && seen.rewound > 10, "{seen:?}");
    }
}

/// A cache of slots alone, and one of pages.
fn with_slots(slots: usize, snapshots: usize) -> Kv {
    let sizes = Sizes { blocks: 30, slots, snapshots, snapshot_tokens: EVERY, ..WINDOW };
    Kv::new(&[SLOT, ALL], sizes)
}

/// Gives a sequence tokens as an engine does.
fn feed(kv: &mut Kv, id: SeqId, mut tokens: usize) {
    while tokens > 0 {
        let part = tokens.min(kv.until_snapshot(id));
        kv.grow(id, part).unwrap();
        kv.keep_snapshot(id).unwrap();
        tokens -= part;
    }
}

#[test]
fn sequences_go_on_from_the_last_snapshot() {
    let mut kv = with_slots(5, 5);
    let a = kv.add();
    feed(&mut kv, a, 21);
    assert_eq!((kv.snapshots(), kv.free_slots()), (2, 2));
    let copies: Vec<BlockCopy> = kv.take_copies().collect();
    assert_eq!(copies, [BlockCopy { group: 0, from: 0, to: 1 }, BlockCopy { group: 0, from: 0, to: 2 }]);
    let [late, early, none] = [20, 15, 7].map(|tokens| kv.fork(a, tokens).unwrap());
    assert_eq!([late.tokens, early.tokens, none.tokens], [16, 8, 0]);
    let copies: Vec<BlockCopy> = kv.take_copies().collect();
    assert_eq!(copies, [BlockCopy { group: 0, from: 2, to: 3 }, BlockCopy { group: 0, from: 1, to: 4 }]);
    assert_eq!(kv.rewind(a, 20), Ok(16));
    assert_eq!(kv.take_copies().collect::<Vec<_>>(), [BlockCopy { group: 0, from: 2, to: 0 }]);
    assert_eq!(kv.rewind(a, 17), Err(KvError::NotBack { sequence: a, tokens: 17, len: 16 }));
    // The snapshot after 16 tokens is held by another sequence too, and stays.
    assert_eq!((kv.rewind(a, 15), kv.snapshots()), (Ok(8), 2));
    kv.drop_sequence(late.sequence).unwrap();
    assert_eq!(kv.snapshots(), 1);
}

/// A fork at the end of a sequence has all of it, with a copy of the block that is not full.
#[test]
fn sequences_go_on_from_where_another_is() {
    let mut kv = with_slots(2, 0);
    let a = kv.add();
    feed(&mut kv, a, 10);
    let fork = kv.fork(a, 10).unwrap();
    assert_eq!((fork.tokens, kv.free_blocks()), (10, 26));
    let copies: Vec<BlockCopy> = kv.take_copies().collect();
    assert_eq!(copies, [BlockCopy { group: 0, from: 0, to: 1 }, BlockCopy { group: 1, from: 2, to: 3 }]);
    // No slot is left for a third.
    assert_eq!(kv.fork(a, 10).unwrap().tokens, 0);
}

/// Sequences that begin take the slots of snapshots. A sequence that resumes from the only snapshot
/// takes over its slot if no other is free.
#[test]
fn snapshots_make_place() {
    let mut kv = with_slots(3, 3);
    let (a, b, c) = (kv.add(), kv.add(), kv.add());
    feed(&mut kv, a, 20);
    assert_eq!((kv.snapshots(), kv.free_slots()), (2, 0));
    feed(&mut kv, b, 1);
    assert_eq!(kv.snapshots(), 1, "the first of them went");
    kv.take_copies();
    let fork = kv.fork(a, 19).unwrap();
    assert_eq!((fork.tokens, kv.snapshots(), kv.take_copies().len()), (16, 0, 0));
    assert_eq!(kv.tables(fork.sequence).unwrap().next().unwrap(), [2]);
    assert_eq!(kv.grow(c, 1), Err(KvError::OutOfSlots { need: 1, free: 0, slots: 3 }));
    assert_eq!(kv.rewind(a, 19), Ok(0), "nothing is kept of it");
    assert_eq!(kv.grow(c, 1), Ok(0..1));
}

/// A sequence that goes back does not write blocks that others hold.
#[test]
fn a_shared_block_is_not_gone_back_into() {
    let mut kv = whole(8, 4, 32);
    let a = kv.add();
    kv.grow(a, 10).unwrap();
    let fork = kv.fork(a, 8).unwrap().sequence;
    assert_eq!((kv.rewind(a, 9), kv.rewind(a, 6)), (Ok(9), Ok(4)));
    assert_eq!(kv.grow(a, 4), Ok(4..8));
    assert_ne!(table(&kv, a)[1], table(&kv, fork)[1]);
}

/// With four slots a sequence has the states behind its last four tokens if they came in short
/// steps, and that behind the last one otherwise.
#[test]
fn sequences_go_back_behind_tokens_of_a_short_step() {
    let sizes = Sizes { blocks: 30, slots: 2, snapshots: 0, snapshot_tokens: EVERY, ..WINDOW };
    let mut kv = Kv::new(&[Kept::Slots { ring: 4 }, ALL], sizes);
    assert_eq!((kv.free_slots(), kv.ring()), (8, 4));
    let (a, b, c) = (kv.add(), kv.add(), kv.add());
    kv.grow(a, 6).unwrap();
    assert_eq!(kv.tables(a).unwrap().next().unwrap(), [0, 2, 2, 3, 0], "the last of six in place of the first");
    kv.grow(a, 1).unwrap();
    kv.grow(a, 3).unwrap();
    // Behind 6 tokens it was in the slot that 10 tokens have now.
    assert_eq!((kv.rewind(a, 8), kv.take_copies().len()), (Ok(8), 0));
    assert_eq!((kv.rewind(a, 7), kv.take_copies().len()), (Ok(7), 0));
    kv.grow(a, 2).unwrap();
    let fork = kv.fork(a, 8).unwrap();
    let copies: Vec<BlockCopy> = kv.take_copies().collect();
    assert_eq!((fork.tokens, copies), (8, vec![BlockCopy { group: 0, from: 0, to: 4 }]));
    assert_eq!(kv.grow(b, 1), Err(KvError::OutOfSlots { need: 1, free: 0, slots: 2 }));
    assert_eq!(kv.rewind(a, 5), Ok(0), "the state behind 5 tokens is gone");
    assert_eq!((kv.grow(b, 1), kv.grow(c, 1).is_err()), (Ok(0..1), true));
}
