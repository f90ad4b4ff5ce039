//! A recurrent state on a GPU.
use super::*;
use crate::kv::SeqId;
use atomc_artifact::manifest::{Arg, KernelDef, Launch, Slots, State, StateGroup};

/// The toy with a recurrent state after its attention.
fn recurrent(fake: &Fake) -> Artifact {
    let mut manifest = toy::manifest();
    let target = &mut manifest.targets[0];
    target.states.push(State { layer: 0, group: 1 });
    target.groups.push(StateGroup::Slots(Slots { bytes: 64, each: 1 }));
    let body =
        "graph @k(%a0: i32[T, 2], %a1: batch, %a2: slots<i32, 16>) {\n  %0 = recur : slots<i32, 16>\n  return %0\n}\n";
    target.kernels.push(KernelDef { symbol: "advance".into(), body: body.into(), ..target.kernels[1].clone() });
    for variant in &mut target.variants {
        variant.kernels.push(Kernel { tasks: Tasks::Fixed(1), ..variant.kernels[0].clone() });
    }
    for plan in &mut target.plans {
        let hidden = plan.launches[1].args[4];
        let args = vec![hidden, Arg::Batch { state: 1 }, Arg::State { state: 1, stream: 0 }];
        plan.launches.insert(2, Launch { kernel: 3, args, ..plan.launches[1].clone() });
        plan.body += 1;
    }
    fake.artifact_of(manifest, |_| ())
}

fn engine(fake: &Fake) -> Engine {
    fake.engine_of(
        recurrent(fake),
        &EngineOptions { cache_tokens: 256, snapshot_tokens: 12, slots: 16, ..EngineOptions::default() },
    )
}

fn feed(engine: &mut Engine, sequence: SeqId, tokens: &[u32]) -> u32 {
    greedy(engine, &[Request { sequence, tokens, logits: Want::Last }])[0]
}

/// The choice after each prefix.
fn chosen(engine: &mut Engine, tokens: &[u32]) -> Vec<u32> {
    let sequence = engine.add_sequence();
    let (first, rest) = tokens.split_at(9);
    let mut all = vec![feed(engine, sequence, first)];
    all.extend(rest.iter().map(|&token| feed(engine, sequence, &[token])));
    engine.drop_sequence(sequence).unwrap();
    all
}

/// Launches are replayed to be timed, on the data that happens to be in the arena. The next step
/// finds none of it in slots.
pub fn timing_leaves_slots_as_they_are(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = engine(&fake);
    let tokens: Vec<u32> = (0..20).map(|i| (i * 31 + 5) % VOCAB as u32).collect();
    let want = chosen(&mut engine, &tokens);
    assert_ne!(want[1], toy::next(&tokens[..10]), "the state says something");
    engine.time_launches();
    assert_eq!(chosen(&mut engine, &tokens), want);
    let times = engine.take_launch_times();
    assert_eq!((times[0].steps, &times[0].nanoseconds[..]), (11, &[11 * 250_000; 4][..]));
}

/// Copies are the device's own, on the stream of the steps: nothing is waited for.
pub fn sequences_go_on_from_copies_of_slots(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = engine(&fake);
    let tokens: Vec<u32> = (0..30).map(|i| (i * 31 + 5) % VOCAB as u32).collect();
    let (parent, other) = (engine.add_sequence(), [11, 12, 13]);
    feed(&mut engine, parent, &tokens);
    for (wanted, shared) in [(30, 30), (29, 24), (14, 12), (7, 0)] {
        fake.log();
        let fork = engine.fork(parent, wanted).unwrap();
        assert_eq!(fork.tokens, shared);
        // The slot, and of all tokens the last page.
        let copies = ["copy within", "copy within; copy within"][usize::from(shared == 30)];
        assert_eq!(fake.log(), if shared == 0 { "" } else { copies });
        let found = feed(&mut engine, fork.sequence, &[&tokens[shared..wanted], &other].concat());
        engine.drop_sequence(fork.sequence).unwrap();
        let alone = engine.add_sequence();
        assert_eq!(found, feed(&mut engine, alone, &[&tokens[..wanted], &other].concat()), "{wanted} tokens");
        engine.drop_sequence(alone).unwrap();
    }
    assert_eq!(engine.rewind(parent, 27).unwrap(), 24);
    let found = feed(&mut engine, parent, &tokens[24..28]);
    let alone = engine.add_sequence();
    assert_eq!(found, feed(&mut engine, alone, &tokens[..28]));
}
