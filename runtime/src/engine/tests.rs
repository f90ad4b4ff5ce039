use super::select::{Part, part, pick};
use super::*;
use crate::checkpoint::Random;
use crate::forks::in_child;
use crate::toy::{self, BLOCK, MAX_POSITIONS, VOCAB};
use crate::weights::packed;
use atomc_artifact::manifest;

fn ids(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 31 + seed * 17) % VOCAB) as u32).collect()
}

fn step<'a>(engine: &'a mut Engine, requests: &[(SeqId, &[u32], Want)]) -> Result<Logits<'a>, StepError> {
    let requests: Vec<Request> =
        requests.iter().map(|&(sequence, tokens, logits)| Request { sequence, tokens, logits }).collect();
    engine.step(&requests)
}

fn best(row: &[f32]) -> u32 {
    assert_eq!(row.len(), VOCAB);
    crate::sample::greedy(row)
}

/// The toy's next token after each prefix.
fn expect(tokens: &[u32]) -> Vec<u32> {
    (1..=tokens.len()).map(|end| toy::next(&tokens[..end])).collect()
}

#[test]
fn prefill_in_any_chunks_and_decode_agree() {
    let tokens = ids(60, 1);
    for mut engine in [toy::engine(1, 0), toy::engine(3, 0), toy::apart(2, 0)] {
        for chunk in [1, 3, 8, 40, 41, 60] {
            let sequence = engine.add_sequence();
            let mut found = Vec::new();
            for part in tokens.chunks(chunk) {
                let logits = step(&mut engine, &[(sequence, part, Want::All)]).unwrap();
                assert_eq!(logits.len(), part.len());
                found.extend(logits.of(0).map(best));
            }
            assert_eq!(found, expect(&tokens), "chunks of {chunk}");
            engine.drop_sequence(sequence).unwrap();
        }
    }
}

#[test]
fn sequences_of_unequal_lengths_share_steps() {
    [toy::engine(2, 1024), toy::apart(2, 1024)].iter_mut().for_each(unequal_lengths);
}

fn unequal_lengths(engine: &mut Engine) {
    let prompts: Vec<Vec<u32>> = [50, 1, 7, 13, 33].iter().enumerate().map(|(i, &len)| ids(len, i)).collect();
    let sequences: Vec<SeqId> = prompts.iter().map(|_| engine.add_sequence()).collect();
    let wants = [Want::Last, Want::All, Want::Nothing, Want::All, Want::Last];
    let requests: Vec<_> = (0..5).map(|i| (sequences[i], &prompts[i][..], wants[i])).collect();
    let logits = step(engine, &requests).unwrap();
    assert_eq!(logits.len(), 1 + 1 + 13 + 1);
    for i in 0..5 {
        let rows: Vec<u32> = logits.of(i).map(best).collect();
        let expect = expect(&prompts[i]);
        assert_eq!(rows, expect[prompts[i].len() - rows.len()..], "request {i}");
    }
    assert!(logits.last(2).is_none());
    for round in 0..3u32 {
        let one = [round];
        let requests: Vec<_> = sequences.iter().map(|&sequence| (sequence, &one[..], Want::Last)).collect();
        let logits = step(engine, &requests).unwrap();
        for (i, prompt) in prompts.iter().enumerate() {
            let whole: Vec<u32> = prompt.iter().copied().chain(0..=round).collect();
            assert_eq!(best(logits.last(i).unwrap()), toy::next(&whole));
        }
    }
}

#[test]
fn greedy_steps_choose_what_the_logits_say() {
    for mut engine in [toy::engine(2, 1024), toy::apart(2, 1024), toy::engine_without_picks()] {
        let prompts: Vec<Vec<u32>> = [50, 1, 7, 13, 33].iter().enumerate().map(|(i, &len)| ids(len, i)).collect();
        let sequences: Vec<SeqId> = prompts.iter().map(|_| engine.add_sequence()).collect();
        let wants = [Want::Last, Want::All, Want::Nothing, Want::All, Want::Last];
        let request = |i: usize| Request { sequence: sequences[i], tokens: &prompts[i], logits: wants[i] };
        let requests: Vec<Request> = (0..5).map(request).collect();
        let picks = engine.step_greedy(&requests).unwrap();
        let expect = |i: usize| (wants[i] != Want::Nothing).then(|| toy::next(&prompts[i]));
        assert_eq!(picks, (0..5).map(expect).collect::<Vec<_>>());
        assert!(engine.logits().is_empty() && engine.logits().get(0).is_none());
        assert_eq!(engine.step_greedy(&[]).unwrap(), []);
        let fault = engine.step_greedy(&[Request { sequence: sequences[1], tokens: &[97], logits: Want::Last }]);
        assert_eq!(fault.unwrap_err().to_string(), "token 0 of request 0 is 97, but the vocabulary ends at 96");
    }
}

#[test]
fn forks_go_their_own_ways() {
    let mut engine = toy::engine(2, 0);
    let prompt = ids(11, 4);
    let parent = engine.add_sequence();
    step(&mut engine, &[(parent, &prompt, Want::Nothing)]).unwrap();
    let free = engine.cache().free_blocks();
    let fork = engine.fork(parent, prompt.len()).unwrap();
    assert_eq!((fork.tokens, engine.cache().free_blocks()), (11 / BLOCK * BLOCK, free));
    let other: Vec<u32> = [&prompt[..fork.tokens], &[5, 6, 7]].concat();
    let logits =
        step(&mut engine, &[(fork.sequence, &other[fork.tokens..], Want::Last), (parent, &[9], Want::Last)]).unwrap();
    let longer = [&prompt[..], &[9]].concat();
    assert_eq!((best(logits.last(0).unwrap()), best(logits.last(1).unwrap())), (toy::next(&other), toy::next(&longer)));
    engine.drop_sequence(parent).unwrap();
    let logits = step(&mut engine, &[(fork.sequence, &[8], Want::Last)]).unwrap();
    assert_eq!(best(logits.last(0).unwrap()), toy::next(&[&other[..], &[8]].concat()));
}

#[test]
fn logits_that_are_not_finite_are_traced() {
    let bias = |at: usize, value: f32| {
        let value = |i| if i == at { value } else { 0.0 };
        toy::Bias((0..VOCAB).flat_map(|i| f32::to_le_bytes(value(i))).collect())
    };
    let all = toy::Bias(f32::NAN.to_le_bytes().repeat(VOCAB));
    let cases = [(all, "NaN"), (bias(0, f32::NAN), "NaN"), (bias(40, f32::INFINITY), "an infinite number")];
    for mut engine in [toy::engine(2, 0), toy::apart(2, 0), toy::engine_without_picks()] {
        for (number, (source, odd)) in cases.iter().enumerate() {
            engine.load_weights(source, &|_, _| ()).unwrap();
            let sequence = engine.add_sequence();
            let request = [Request { sequence, tokens: &[3, 4], logits: Want::Last }];
            let wanted = format!(
                "the logits are not finite: kernel `head` (launch 2, from 0 on, of plan `whole 8`, toy) is the first that \
                 makes {odd}; weight `head.bias` that it reads holds {odd}"
            );
            // The only odd logit is looked at if it begins a row or is chosen and at hand.
            let (is_seen, is_chosen) = (number < 2, number == 0 || number == 2 && engine.is_host());
            match engine.step(&request).map(|_| ()) {
                Err(error) => assert_eq!((error.to_string(), is_seen), (wanted.clone(), true)),
                Ok(()) => assert!(!is_seen),
            }
            match engine.step_greedy(&request) {
                Err(error) => assert_eq!(error.to_string(), wanted),
                Ok(picks) => assert!(!is_chosen, "{picks:?}"),
            }
            engine.drop_sequence(sequence).unwrap();
        }
        engine.load_weights(&bias(0, 0.0), &|_, _| ()).unwrap();
        let sequence = engine.add_sequence();
        let picks = engine.step_greedy(&[Request { sequence, tokens: &[3, 4], logits: Want::Last }]).unwrap();
        assert_eq!(picks, [Some(toy::next(&[3, 4]))], "the engine goes on with other weights");
    }
}

#[test]
fn children_get_an_error() {
    let mut engine = toy::engine(2, 0);
    let mut alone = toy::engine(1, 0);
    let (sequence, other) = (engine.add_sequence(), alone.add_sequence());
    let said = in_child(|| {
        let refused = step(&mut engine, &[(sequence, &[3], Want::Last)]).map(|_| ()).unwrap_err().to_string();
        let load = engine.load_weights(&Random { seed: 1 }, &|_, _| ());
        let logits = step(&mut alone, &[(other, &[3], Want::Last)]).unwrap();
        let works = best(logits.last(0).unwrap()) == toy::next(&[3]);
        drop(engine);
        works
            && refused.starts_with("the engine was opened before a fork")
            && matches!(load, Err(Error::Device(DeviceError::Forked(_))))
    });
    assert!(said);
}

#[test]
fn caches_and_threads_are_bounded() {
    let open = |options: EngineOptions| Engine::open(toy::path(), &options).map(|_| ()).unwrap_err().to_string();
    toy::path();
    let start = std::time::Instant::now();
    for cache_tokens in [1 << 40, usize::MAX] {
        let message = open(EngineOptions { threads: 1, cache_tokens, ..EngineOptions::default() });
        let wanted = format!("cache_tokens: {cache_tokens} tokens take ");
        assert!(message.starts_with(&wanted) && message.contains("tokens would fit"), "{message}");
    }
    for threads in [1025, usize::MAX] {
        let message = open(EngineOptions { threads, ..EngineOptions::default() });
        assert_eq!(message, format!("threads: cannot start {threads}: there may be 1 to 1024"));
    }
    assert!(start.elapsed() < std::time::Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn refuses_before_anything_runs() {
    let mut engine = toy::engine(1, 16);
    let (a, b) = (engine.add_sequence(), engine.add_sequence());
    let long = ids(MAX_POSITIONS + 1, 0);
    let mut refused = |requests: &[(SeqId, &[u32], Want)], message: &str| {
        assert_eq!(step(&mut engine, requests).unwrap_err().to_string(), message);
        assert_eq!((engine.sequence_len(a).unwrap(), engine.cache().free_blocks()), (0, 4));
    };
    refused(
        &[(b, &[1], Want::Last), (a, &long, Want::Last)],
        "the prompt is longer than the model: request 1 needs 65 positions, the model has 64",
    );
    refused(
        &[(a, &long[..13], Want::Last), (b, &[1], Want::Last)],
        "the KV cache is full: 5 more blocks of 4 tokens are needed, 4 of 4 are free",
    );
    refused(&[(a, &[1, 97], Want::Last)], "token 1 of request 0 is 97, but the vocabulary ends at 96");
    refused(&[(a, &[], Want::Last)], "request 0 has no tokens");
    refused(&[(a, &[1], Want::Last), (a, &[1], Want::Last)], "requests 0 and 1 are for the same sequence");
    engine.drop_sequence(b).unwrap();
    let message = "there is no sequence #1.0: it was dropped, or belongs to another engine";
    assert_eq!(step(&mut engine, &[(b, &[1], Want::Last)]).unwrap_err().to_string(), message);
    assert!(step(&mut engine, &[]).unwrap().is_empty());
    let mut bare = Engine::open(toy::path(), &EngineOptions::default()).unwrap();
    let sequence = bare.add_sequence();
    assert_eq!(step(&mut bare, &[(sequence, &[1], Want::Last)]).unwrap_err().to_string(), "the weights are not loaded");
}

#[test]
fn weights_reload_in_place() {
    let mut engine = toy::engine(1, 0);
    let address = engine.session.memory.weights[0].address();
    let mut bias = vec![0u8; VOCAB * 4];
    bias[3 * 4..4 * 4].copy_from_slice(&1000f32.to_le_bytes());
    engine.load_weights(&toy::Bias(bias), &|_, _| ()).unwrap();
    assert_eq!(engine.session.memory.weights[0].address(), address);
    let sequence = engine.add_sequence();
    let logits = step(&mut engine, &[(sequence, &[50], Want::Last)]).unwrap();
    assert_eq!(best(logits.last(0).unwrap()), 3);
}

#[test]
fn times_launches() {
    let mut engine = toy::engine(2, 0);
    let sequence = engine.add_sequence();
    engine.time_launches();
    step(&mut engine, &[(sequence, &[1, 2, 3], Want::Last)]).unwrap();
    step(&mut engine, &[(sequence, &[1], Want::Last)]).unwrap();
    step(&mut engine, &[(sequence, &[1], Want::Last)]).unwrap();
    let times = engine.take_launch_times();
    assert_eq!(times.iter().map(|times| times.steps).collect::<Vec<_>>(), [2, 0, 1, 0]);
    assert_eq!(times[0].nanoseconds.len(), 3);
    assert!(times[0].nanoseconds.iter().all(|&time| time > 0));
    assert!(engine.take_launch_times().is_empty());
}

#[test]
fn steps_of_one_size_keep_their_memory() {
    let mut engine = toy::engine(1, 0);
    let sequence = engine.add_sequence();
    step(&mut engine, &[(sequence, &ids(20, 1), Want::All)]).unwrap();
    let (gathered, starts) = (engine.output.gathered.as_ptr(), engine.output.starts.as_ptr());
    step(&mut engine, &[(sequence, &ids(20, 2), Want::All)]).unwrap();
    assert_eq!((engine.output.gathered.as_ptr(), engine.output.starts.as_ptr()), (gathered, starts));
}

#[test]
fn picks_among_the_plans_that_take_the_step() {
    let plans = toy::manifest().targets.remove(0).plans;
    let tokens = ids(64, 0);
    let id = SeqId::from_bits(0);
    let whole = |number: usize| plans[number].kind == PlanKind::Whole;
    let last = (0..plans.len()).rfind(|&number| whole(number)).unwrap();
    for count in [1, 40] {
        let requests = [Request { sequence: id, tokens: &tokens[..count], logits: Want::Last }];
        let picked = pick(&plans, &requests, Cursor::default(), (|_| usize::MAX, |number| number == last));
        assert_eq!(picked, last, "{count} tokens");
    }
}

#[test]
fn picks_the_smallest_plan_that_fits() {
    let plans = toy::manifest().targets.remove(0).plans;
    let id = SeqId::from_bits(0);
    let tokens = ids(64, 0);
    let check = |requests: &[(usize, Want)], at: (usize, usize), expect: usize| {
        let requests: Vec<Request> =
            requests.iter().map(|&(n, logits)| Request { sequence: id, tokens: &tokens[..n], logits }).collect();
        assert_eq!(pick(&plans, &requests, Cursor { request: at.0, token: at.1 }, (|_| usize::MAX, |_| true)), expect);
    };
    check(&[(1, Want::Last)], (0, 0), 0);
    check(&[(1, Want::Last); 3], (0, 0), 1);
    check(&[(1, Want::Last); 5], (0, 0), 5);
    check(&[(1, Want::Nothing); 5], (0, 0), 4);
    check(&[(2, Want::Last), (1, Want::Last)], (0, 0), 4);
    check(&[(9, Want::Last)], (0, 0), 5);
    check(&[(64, Want::Last)], (0, 0), 5);
    check(&[(4, Want::All)], (0, 0), 5);
    check(&[(41, Want::All), (1, Want::Last)], (0, 40), 1);
    check(&[(41, Want::Last)], (0, 40), 0);
}

#[test]
fn takes_what_fits() {
    let tokens = ids(10, 0);
    let part = |logits, start, room, rows| {
        part(&Request { sequence: SeqId::from_bits(0), tokens: &tokens, logits }, start, room, rows)
    };
    assert_eq!(part(Want::Nothing, 2, 5, 0), Part { tokens: 5, rows: 0 });
    assert_eq!(part(Want::All, 2, 5, 3), Part { tokens: 3, rows: 3 });
    assert_eq!(part(Want::Last, 2, 8, 1), Part { tokens: 8, rows: 1 });
    assert_eq!(part(Want::Last, 2, 8, 0), Part { tokens: 7, rows: 0 });
    assert_eq!(part(Want::Last, 2, 7, 1), Part { tokens: 7, rows: 0 });
    assert_eq!(part(Want::Last, 9, 7, 0), Part { tokens: 0, rows: 0 });
}

#[test]
fn packed_weights_load_into_any_memory() {
    let tokens = ids(9, 4);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights.safetensors");
    for mut engine in [toy::engine(2, 0), toy::apart(2, 0)] {
        let random = Random { seed: 3 };
        engine.load_weights(&random, &|_, _| ()).unwrap();
        let first = engine.add_sequence();
        let want: Vec<f32> = step(&mut engine, &[(first, &tokens, Want::Last)]).unwrap().last(0).unwrap().to_vec();
        let mut pool = Pool::new(2).unwrap();
        packed::write(&file, (engine.target(), &manifest::TensorNames::default()), Rank::ONLY, &random, &mut pool)
            .unwrap();
        let bytes = std::fs::read(&file).unwrap();
        engine.load_weights(&Random { seed: 4 }, &|_, _| ()).unwrap();
        engine.load_packed(&Packed::open(&file).unwrap(), &|_, _| ()).unwrap();
        let second = engine.add_sequence();
        assert_eq!(step(&mut engine, &[(second, &tokens, Want::Last)]).unwrap().last(0).unwrap(), want);
        // The same weights make the same file, and a file of other weights is refused.
        packed::write(&file, (engine.target(), &manifest::TensorNames::default()), Rank::ONLY, &random, &mut pool)
            .unwrap();
        assert!(std::fs::read(&file).unwrap() == bytes);
        packed::write(
            &file,
            (engine.target(), &manifest::TensorNames::default()),
            Rank { number: 1, of: 2 },
            &random,
            &mut pool,
        )
        .unwrap();
        let refused = engine.load_packed(&Packed::open(&file).unwrap(), &|_, _| ()).unwrap_err();
        assert!(refused.to_string().ends_with("holds weights packed for ranks 2, not 1"), "{refused}");
    }
}

#[test]
fn damaged_packed_weights_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights.safetensors");
    for mut engine in [toy::engine(2, 0), toy::apart(2, 0)] {
        packed::write(
            &file,
            (engine.target(), &manifest::TensorNames::default()),
            Rank::ONLY,
            &Random { seed: 3 },
            &mut Pool::new(2).unwrap(),
        )
        .unwrap();
        let whole = std::fs::read(&file).unwrap();
        let data: usize = engine.target().weights.iter().map(|weight| weight.bytes).sum();
        let mut flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&file, bytes).unwrap();
            let packed = Packed::open(&file).unwrap();
            let refused = engine.load_packed(&packed, &|_, _| ()).unwrap_err();
            assert!(!engine.session.loaded);
            engine.load_packed(&packed.unverified(), &|_, _| ()).unwrap();
            refused.to_string().replace(file.to_str().unwrap(), "<file>")
        };
        let mut end = whole.len() - data;
        for (number, weight) in toy::manifest().targets[0].weights.iter().enumerate() {
            let (first, bytes) = (end, weight.bytes);
            end += bytes;
            let (name, chunk) = (&weight.name, bytes.min(4 << 20));
            let want =
                format!("<file> is damaged: bytes 0 to {chunk} of weight {number}, `{name}`, have another checksum");
            for at in [first, first + chunk / 2, first + chunk - 1] {
                assert_eq!(flipped(at), want);
            }
        }
        assert_eq!(end, whole.len());
        std::fs::write(&file, &whole).unwrap();
        engine.load_packed(&Packed::open(&file).unwrap(), &|_, _| ()).unwrap();
    }
    // As the first version wrote it.
    let header = r#"{"__metadata__":{"atomc":"{\"target\":\"host\",\"rank\":0,\"ranks\":1,\"plan\":\"\"}"}}"#;
    std::fs::write(&file, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let refused = Packed::open(&file).unwrap_err().to_string();
    let want = "holds packed weights of version 1, but this atomc reads version 2: pack the checkpoint again";
    assert!(refused.ends_with(want), "{refused}");
}
