use super::*;

const ALL: Kept = Kept::ALL;
const SLOT: Kept = Kept::Slots { ring: 1 };
const SEVEN: Kept = Kept::Pages { window: 7, every: 1 };

/// A cache of one group, in which all tokens see all keys.
fn whole(blocks: usize, block_tokens: usize, max_len: usize) -> Kv {
    Kv::new(&[ALL], Sizes { block_tokens, blocks, slots: 0, max_len, step: max_len, snapshot_tokens: 4, snapshots: 0 })
}

/// The blocks of a sequence in the first group.
fn table(kv: &Kv, id: SeqId) -> &[i32] {
    kv.tables(id).unwrap().next().unwrap()
}

fn reserve(kv: &mut Kv, id: SeqId, tokens: usize) -> Result<(), KvError> {
    kv.reserve(std::iter::once((id, tokens)))
}

#[test]
fn grows_by_blocks_and_frees_them() {
    let mut kv = whole(4, 16, 64);
    let a = kv.add();
    assert_eq!(kv.grow(a, 1), Ok(0..1));
    assert_eq!(kv.grow(a, 15), Ok(1..16));
    assert_eq!((table(&kv, a), kv.free_blocks()), (&[0][..], 3));
    assert_eq!(kv.grow(a, 17), Ok(16..33));
    assert_eq!((table(&kv, a), kv.free_blocks(), kv.held(0)), (&[0, 1, 2][..], 1, 0..3));
    kv.drop_sequence(a).unwrap();
    assert_eq!(kv.held(0), 0..0);
    assert_eq!(kv.free_blocks(), 4);
    assert_eq!(kv.len(a), Err(KvError::UnknownSequence { sequence: a }));
    let b = kv.add();
    assert_ne!(a, b);
    assert_eq!(kv.drop_sequence(a), Err(KvError::UnknownSequence { sequence: a }));
    assert_eq!(SeqId::from_bits(b.to_bits()), b);
}

#[test]
fn is_full_without_change() {
    let mut kv = whole(2, 4, 100);
    let (a, b) = (kv.add(), kv.add());
    kv.grow(a, 3).unwrap();
    let error = kv.grow(b, 5).unwrap_err();
    assert_eq!(error, KvError::OutOfBlocks { need: 2, free: 1, blocks: 2, block_tokens: 4 });
    assert_eq!((kv.len(b), kv.free_blocks()), (Ok(0), 1));
    kv.grow(b, 4).unwrap();
    assert_eq!(kv.table_blocks().collect::<Vec<_>>(), [2]);
}

#[test]
fn forks_share_whole_blocks() {
    let mut kv = whole(8, 4, 32);
    let a = kv.add();
    kv.grow(a, 10).unwrap();
    let fork = kv.fork(a, 9).unwrap();
    assert_eq!(fork.tokens, 8);
    assert_eq!(table(&kv, fork.sequence), &table(&kv, a)[..2]);
    kv.grow(fork.sequence, 1).unwrap();
    assert_ne!(table(&kv, fork.sequence)[2], table(&kv, a)[2]);
    kv.drop_sequence(a).unwrap();
    assert_eq!(kv.free_blocks(), 5, "the shared blocks stay");
    kv.drop_sequence(fork.sequence).unwrap();
    assert_eq!(kv.free_blocks(), 8);
    let empty = kv.add();
    assert_eq!(kv.fork(empty, 1), Err(KvError::ForkTooLong { sequence: empty, tokens: 1, len: 0 }));
    assert_eq!(kv.fork(empty, 0).unwrap().tokens, 0);
}

/// Tokens see seven keys: two blocks, or three.
const WINDOW: Sizes =
    Sizes { block_tokens: 4, blocks: 6, slots: 2, max_len: 100, step: 4, snapshot_tokens: 100, snapshots: 2 };

#[test]
fn windows_give_blocks_back() {
    let mut kv = Kv::new(&[SEVEN], WINDOW);
    let a = kv.add();
    for len in 0..100 {
        kv.grow(a, 1).unwrap();
        let table = table(&kv, a);
        let seen = len.max(6) - 6;
        assert_eq!(table.len(), len / 4 + 1);
        assert!(table[..seen / 4].iter().all(|&block| block == 0), "{len}: {table:?}");
        let mut held = table[seen / 4..].to_vec();
        held.sort();
        held.dedup();
        assert_eq!((held.len(), kv.free_blocks()), (table.len() - seen / 4, 6 - held.len()), "{len}: {table:?}");
    }
    kv.drop_sequence(a).unwrap();
    assert_eq!((kv.free_blocks(), kv.held(0)), (6, 0..0));
    assert_eq!(kv.table_blocks().collect::<Vec<_>>(), [25]);
}

/// A sequence longer than the cache is admitted, as it is computed in parts; two are, while they
/// fit.
#[test]
fn windows_need_no_more_than_they_hold() {
    let mut kv = Kv::new(&[SEVEN], WINDOW);
    let (a, b) = (kv.add(), kv.add());
    reserve(&mut kv, a, 100).unwrap();
    let error = kv.has_room([(Some(a), 100), (None, 100)].into_iter()).unwrap_err();
    assert_eq!(error, KvError::OutOfBlocks { need: 8, free: 6, blocks: 6, block_tokens: 4 });
    kv.has_room([(Some(a), 100), (None, 8)].into_iter()).unwrap();
    for _ in 0..25 {
        kv.grow(a, 4).unwrap();
    }
    assert_eq!(kv.grow(b, 8), Ok(0..8));
    assert!(matches!(kv.grow(b, 13), Err(KvError::OutOfBlocks { .. })));
    assert_eq!(kv.len(b), Ok(8));
}

/// The group without a window lacks blocks, the other does not.
#[test]
fn each_group_has_blocks_of_its_own() {
    let mut kv = Kv::new(&[SEVEN, ALL], WINDOW);
    let a = kv.add();
    for _ in 0..6 {
        kv.grow(a, 4).unwrap();
    }
    let held: Vec<usize> = kv.get(a).unwrap().tables.iter().map(|table| table.held().len()).collect();
    assert_eq!((held, kv.free_blocks()), (vec![3, 6], 0));
    let error = kv.grow(a, 1).unwrap_err();
    assert_eq!(error, KvError::OutOfBlocks { need: 1, free: 0, blocks: 6, block_tokens: 4 });
    assert_eq!(kv.table_blocks().collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn forks_share_what_windows_left() {
    let mut kv = Kv::new(&[SEVEN, ALL], WINDOW);
    let a = kv.add();
    kv.grow(a, 12).unwrap();
    assert_eq!(kv.fork(a, 9).unwrap().tokens, 8, "a prompt is there as a whole");
    kv.grow(a, 1).unwrap();
    let late = kv.fork(a, 12).unwrap();
    assert_eq!(late.tokens, 12);
    assert_eq!(
        kv.tables(late.sequence).unwrap().collect::<Vec<_>>(),
        kv.tables(a).unwrap().map(|t| &t[..3]).collect::<Vec<_>>()
    );
    assert_eq!(kv.fork(a, 9).unwrap().tokens, 0, "token 8 sees block 0, which was given back");
    kv.grow(late.sequence, 1).unwrap();
}

/// Random adds, forks, growth and drops, in caches with and without windows: every block is either
/// free or in as many tables as its count says, admitted sequences find room, and the blocks that
/// the next token sees are there.
#[test]
fn never_loses_a_block() {
    for windows in [&[0][..], &[9], &[0, 9], &[1, 5, 64]] {
        let sizes = Sizes { blocks: 32, slots: 0, max_len: 64, step: 9, ..WINDOW };
        let kept: Vec<Kept> = windows.iter().map(|&window| Kept::Pages { window, every: 1 }).collect();
        let mut kv = Kv::new(&kept, sizes);
        let mut alive: Vec<SeqId> = Vec::new();
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = crate::checkpoint::mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            state as usize % below
        };
        for _ in 0..5000 {
            match random(4) {
                0 => alive.push(kv.add()),
                1 if !alive.is_empty() => {
                    let from = alive[random(alive.len())];
                    alive.push(kv.fork(from, random(kv.len(from).unwrap() + 1)).unwrap().sequence);
                }
                2 if !alive.is_empty() => grow_some(&mut kv, &alive, &mut random),
                3 if !alive.is_empty() => kv.drop_sequence(alive.swap_remove(random(alive.len()))).unwrap(),
                _ => {}
            }
            check(&kv, &alive, windows);
        }
    }
}

/// Lengthens some sequences in parts, if there is room for all.
fn grow_some(kv: &mut Kv, alive: &[SeqId], random: &mut impl FnMut(usize) -> usize) {
    let first = random(alive.len());
    let many = &alive[first..(first + 3).min(alive.len())];
    let tokens: Vec<usize> = many.iter().map(|&id| (1 + random(30)).min(64 - kv.len(id).unwrap())).collect();
    if kv.reserve(many.iter().copied().zip(tokens.iter().copied())).is_err() {
        return;
    }
    for (&id, tokens) in many.iter().zip(tokens) {
        let mut left = tokens;
        while left > 0 {
            let part = left.min(1 + random(9));
            kv.grow(id, part).expect("room was reserved");
            left -= part;
        }
    }
}

fn check(kv: &Kv, alive: &[SeqId], windows: &[usize]) {
    for (number, (group, &window)) in kv.groups.iter().zip(windows).enumerate() {
        let mut holders = vec![0; kv.blocks()];
        for &id in alive {
            let (len, table) = (kv.len(id).unwrap(), kv.tables(id).unwrap().nth(number).unwrap());
            assert_eq!(table.len(), len.div_ceil(4));
            let held = kv.get(id).unwrap().tables[number].held();
            let seen = if window == 0 { 0 } else { (len + 1).saturating_sub(window) / 4 };
            assert!(held.len() >= table.len() - seen.min(table.len()), "what the next token sees is there");
            held.iter().for_each(|&block| holders[block as usize] += 1);
        }
        assert_eq!(holders, group.holders);
        assert_eq!(holders.iter().filter(|&&n| n == 0).count(), group.free());
    }
}

/// A slot is a sequence's as long as that is there, and then another's.
#[test]
fn sequences_have_a_slot_each() {
    let mut kv = Kv::new(&[SLOT, ALL, SLOT], Sizes { blocks: 30, ..WINDOW });
    let (a, b, c) = (kv.add(), kv.add(), kv.add());
    assert_eq!((kv.grow(a, 9), kv.grow(a, 1), kv.grow(b, 1)), (Ok(0..9), Ok(9..10), Ok(0..1)));
    let slots = |kv: &Kv, id| kv.tables(id).unwrap().map(<[i32]>::to_vec).collect::<Vec<_>>();
    assert_eq!(slots(&kv, a), [vec![0], vec![0, 1, 2], vec![0]]);
    assert_eq!(kv.grow(c, 1), Err(KvError::OutOfSlots { need: 1, free: 0, slots: 2 }));
    assert_eq!((slots(&kv, c)[1].len(), kv.free_blocks()), (0, 26));
    assert_eq!(kv.fork(a, 8).unwrap().tokens, 0, "what the slot held after 8 tokens is gone");
    kv.drop_sequence(a).unwrap();
    assert_eq!((kv.grow(c, 5), slots(&kv, c)[0].clone()), (Ok(0..5), vec![0]));
}

/// A step that failed is taken back: blocks are free again, and the sequence continues at the same
/// token.
#[test]
fn goes_back_to_where_a_step_began() {
    let mut kv = whole(6, 4, 24);
    let (a, b) = (kv.add(), kv.add());
    kv.grow(a, 6).unwrap();
    kv.grow(b, 3).unwrap();
    let (had, free) = (table(&kv, a).to_vec(), kv.free_blocks());
    kv.grow(a, 11).unwrap();
    kv.undo(a, 6).unwrap();
    assert_eq!((table(&kv, a), kv.len(a), kv.free_blocks()), (&had[..], Ok(6), free));
    kv.undo(b, 3).unwrap();
    assert_eq!(kv.len(b), Ok(3));
    let shared = kv.fork(a, 4).unwrap();
    kv.grow(shared.sequence, 5).unwrap();
    kv.undo(shared.sequence, 4).unwrap();
    assert_eq!(table(&kv, shared.sequence), &had[..1]);
    for id in [a, b, shared.sequence] {
        kv.drop_sequence(id).unwrap();
    }
    assert_eq!(kv.free_blocks(), 6);
}

/// Blocks that were given back and a state that has advanced are lost: then the sequence is of no
/// more use, unless it had nothing before.
#[test]
fn sequences_that_cannot_go_back_are_broken() {
    for kept in [SEVEN, SLOT] {
        let mut kv = Kv::new(&[ALL, kept], Sizes { blocks: 12, max_len: 40, step: 40, ..WINDOW });
        let a = kv.add();
        kv.grow(a, 20).unwrap();
        kv.undo(a, 0).unwrap();
        assert_eq!((kv.len(a), kv.free_blocks()), (Ok(0), 12));
        kv.grow(a, 10).unwrap();
        kv.grow(a, 10).unwrap();
        // The next token's window begins after the first blocks.
        reserve(&mut kv, a, 1).unwrap();
        kv.undo(a, 10).unwrap();
        assert_eq!(reserve(&mut kv, a, 1), Err(KvError::Broken { sequence: a }));
        assert_eq!(kv.fork(a, 4).unwrap_err(), KvError::Broken { sequence: a });
        kv.drop_sequence(a).unwrap();
        assert_eq!(kv.free_blocks(), 12);
        let b = kv.add();
        kv.grow(b, 10).unwrap();
    }
}

mod sharing;

/// Entries of four tokens: a page of theirs is of four blocks of tokens. A sequence that begins
/// like another has the pages that are full, and a copy of the last one.
#[test]
fn pages_of_entries_of_several_tokens() {
    let four = Kept::Pages { window: 0, every: 4 };
    let sizes =
        Sizes { block_tokens: 4, blocks: 200, slots: 0, max_len: 800, step: 800, snapshot_tokens: 4, snapshots: 0 };
    let mut kv = Kv::new(&[ALL, four], sizes);
    assert_eq!([ALL, four].map(|kept| kept.units(200, 0)), [200, 50 + SLOTS]);
    let tables = |kv: &Kv, id: SeqId| kv.tables(id).unwrap().map(<[i32]>::to_vec).collect::<Vec<_>>();
    let a = kv.add();
    kv.grow(a, 39).unwrap();
    let of_a = tables(&kv, a);
    assert_eq!((of_a[0].len(), of_a[1].len()), (10, 3));
    let fork = kv.fork(a, 39).unwrap();
    assert_eq!(fork.tokens, 36);
    let of_fork = tables(&kv, fork.sequence);
    assert_eq!((&of_fork[0][..], &of_fork[1][..2]), (&of_a[0][..9], &of_a[1][..2]));
    let copy = BlockCopy { group: 1, from: of_a[1][2] as usize, to: of_fork[1][2] as usize };
    assert!(kv.take_copies().eq([copy]) && copy.from != copy.to);
    // Inside a page that both hold nobody may write.
    assert_eq!(kv.rewind(fork.sequence, 33), Ok(32));
    assert_eq!(kv.rewind(fork.sequence, 20), Ok(16));
    assert_eq!(kv.rewind(a, 37), Ok(37));
    for id in [a, fork.sequence] {
        kv.drop_sequence(id).unwrap();
    }
    assert_eq!(kv.free_blocks(), 50 + SLOTS);
}
