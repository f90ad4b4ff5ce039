use super::super::toy::{BLOCK, Toy};
use super::*;
use crate::{Request, Want};

/// Tokens without a salt.
fn plain(tokens: &[u32]) -> Owned<'_> {
    const NONE: &Party = &Party { adapter: None, salt: None };
    Owned { party: NONE, tokens }
}

/// A sequence with these tokens, made of the retained one that it begins like.
fn computed(toy: &mut Toy, prefixes: &mut Prefixes, Owned { party, tokens }: Owned) -> (SeqId, usize) {
    let found = prefixes.find(Owned { party, tokens: &tokens[..tokens.len() - 1] });
    let (sequence, fed) = match found {
        Some(found) => toy.fork(found.sequence, found.tokens).map(|fork| (fork.sequence, fork.tokens)).unwrap(),
        None => (toy.add(), 0),
    };
    let request = Request { sequence, tokens: &tokens[fed..], logits: Want::Nothing };
    toy.step(&[request], &mut |_, _| ()).unwrap();
    (sequence, fed)
}

fn insert(toy: &mut Toy, prefixes: &mut Prefixes, tokens: &[u32]) -> usize {
    salted(toy, prefixes, plain(tokens))
}

fn salted(toy: &mut Toy, prefixes: &mut Prefixes, tokens: Owned) -> usize {
    let (sequence, fed) = computed(toy, prefixes, tokens);
    prefixes.insert(toy, sequence, tokens).unwrap();
    fed
}

fn run(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}

#[test]
fn the_longest_beginning_is_found() {
    let (mut toy, mut prefixes) = (Toy::new(100, 0), Prefixes::new(BLOCK, 100));
    let (a, b) = (run(0, 20), [run(0, 10), run(40, 9)].concat());
    assert_eq!(insert(&mut toy, &mut prefixes, &a), 0);
    assert_eq!(insert(&mut toy, &mut prefixes, &b), 8);
    assert_eq!(prefixes.len(), 2);
    for (tokens, most) in [(&a, 20), (&b, 19), (&[run(0, 9), vec![50]].concat(), 9), (&run(0, 3), 3)] {
        assert_eq!(prefixes.find(plain(tokens)).map(|found| found.tokens), Some(most));
    }
    assert_eq!(prefixes.find(plain(&run(30, 5))), None);
    // A sequence that continues a leaf replaces it; one that is retained already is dropped.
    assert_eq!(insert(&mut toy, &mut prefixes, &[a.clone(), run(50, 5)].concat()), 20);
    assert_eq!(insert(&mut toy, &mut prefixes, &run(0, 6)), 4);
    assert_eq!(prefixes.len(), 2);
    prefixes.clear(&mut toy).unwrap();
    assert_eq!((toy.free_blocks(), prefixes.len()), (100, 0));
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    let (mut toy, mut prefixes) = (Toy::new(100, 0), Prefixes::new(BLOCK, 100));
    let system = run(0, 8);
    insert(&mut toy, &mut prefixes, &run(50, 8));
    insert(&mut toy, &mut prefixes, &[system.clone(), run(20, 8)].concat());
    insert(&mut toy, &mut prefixes, &[system.clone(), run(30, 8)].concat());
    assert_eq!(toy.free_blocks(), 100 - 2 - 4 - 2);
    prefixes.find(plain(&run(50, 8)));
    // The two tails, and then their common part, with the use of the second.
    for (left, shared) in [(94, 8), (96, 8), (98, 0)] {
        assert!(prefixes.evict(&mut toy).unwrap());
        assert_eq!(toy.free_blocks(), left);
        assert_eq!(prefixes.roots.get(&Party::default()).map_or(0, |&root| prefixes.walk(root, &system).along), shared);
    }
    assert!(prefixes.evict(&mut toy).unwrap() && !prefixes.evict(&mut toy).unwrap());
    assert_eq!(toy.free_blocks(), 100);
}

#[test]
fn no_more_are_retained_than_there_may_be() {
    let (mut toy, mut prefixes) = (Toy::new(100, 6), Prefixes::new(BLOCK, 3));
    (0..6).for_each(|i| _ = insert(&mut toy, &mut prefixes, &run(10 * i, 10)));
    assert_eq!(prefixes.len(), 3);
    // All that it has of another, or what a slot or a snapshot of it is behind.
    assert_eq!(insert(&mut toy, &mut prefixes, &[run(50, 10), run(0, 5)].concat()), 10);
    assert_eq!(insert(&mut toy, &mut prefixes, &[run(40, 9), run(0, 5)].concat()), 9);
    assert_eq!(insert(&mut toy, &mut prefixes, &[run(30, 5), run(0, 9)].concat()), 0);
    while prefixes.evict(&mut toy).unwrap() {}
    assert_eq!((toy.free_blocks(), prefixes.nodes.len() - prefixes.unused.len()), (100, 0));
    let mut none = Prefixes::new(BLOCK, 0);
    insert(&mut toy, &mut none, &run(0, 9));
    assert!(none.is_empty() && toy.free_blocks() == 100);
}

#[test]
fn nothing_is_shared_between_parties() {
    let (mut toy, mut prefixes) = (Toy::new(100, 0), Prefixes::new(BLOCK, 100));
    let tokens = run(0, 12);
    let parties = [(None, None), (None, Some("a")), (Some(0), None)];
    let parties = parties.map(|(adapter, salt)| Party { adapter, salt: salt.map(Into::into) });
    for party in &parties {
        let tokens = Owned { party, tokens: &tokens };
        assert_eq!(salted(&mut toy, &mut prefixes, tokens), 0, "{party:?}");
        assert_eq!(prefixes.find(tokens).map(|found| found.tokens), Some(12));
        assert_eq!(salted(&mut toy, &mut prefixes, tokens), 8, "{party:?}: whole blocks");
    }
    assert_eq!((prefixes.len(), toy.free_blocks()), (3, 100 - 3 * 3));
    let others: Vec<SeqId> =
        parties.iter().map(|party| prefixes.find(Owned { party, tokens: &tokens }).unwrap().sequence).collect();
    assert!(others[0] != others[1] && others[1] != others[2]);
    // The entry with the oldest use in all trees is dropped first, its tail and then its whole
    // blocks, and a tree is dropped with its last leaf.
    (0..2).for_each(|_| assert!(prefixes.evict(&mut toy).unwrap()));
    assert_eq!(prefixes.find(plain(&tokens)), None);
    assert_eq!(prefixes.roots.len(), 2);
    while prefixes.evict(&mut toy).unwrap() {}
    assert_eq!((toy.free_blocks(), prefixes.nodes.len() - prefixes.unused.len()), (100, 0));
}
