//! Tensors that come one by one.
use super::*;

/// Two weights that share a tensor, and a constant.
fn shared() -> [Weight; 3] {
    let rows = |stride| Layout::Rows { stride };
    let qkv = concat(0, vec![tensor("q", &[4, 6]), tensor("k", &[2, 6]), tensor("v", &[2, 6])]);
    let values = WeightExpr::Const { values: vec![0.5, 2.0] };
    [
        weight(DType::F32, &[8, 6], panels(4, 2, &[8, 6]), qkv),
        weight(DType::BF16, &[4, 6], rows(8), tensor("q", &[4, 6])),
        weight(DType::F32, &[2], rows(2), values),
    ]
}

fn shared_source(base: f64) -> Map {
    let source = Map::default().with("q", Float::BF16, &[4, 6], base);
    source.with("k", Float::F32, &[2, 6], base + 7.0).with("v", Float::F16, &[2, 6], base - 3.0)
}

#[test]
fn tensors_come_in_any_order_and_again() {
    let weights = shared();
    let buffers = || weights.iter().map(|weight| apart::memory(weight.bytes)).collect();
    for order in [["q", "k", "v"], ["v", "k", "q"], ["k", "q", "v"]] {
        let mut stream = Stream::new(&weights, buffers());
        // The second round is a reload in place.
        for base in [0.0, 40.0] {
            let source = shared_source(base);
            for name in order {
                stream.feed(name, &source).unwrap();
            }
            assert_eq!(stream.loading.kept_bytes(), 0, "nothing waits any more");
            stream.finish().unwrap();
            for (index, weight) in weights.iter().enumerate() {
                assert_eq!(stream.bytes(index), reference(weight, Rank::ONLY, &source), "{order:?} {index}");
            }
        }
    }
    // The last of equal names counts.
    let (old, new) = (shared_source(0.0), shared_source(9.0));
    let mut stream = Stream::new(&weights, buffers());
    for (name, source) in [("q", &old), ("k", &new), ("q", &new), ("v", &new)] {
        stream.feed(name, source).unwrap();
    }
    stream.finish().unwrap();
    assert_eq!(stream.bytes(0), reference(&weights[0], Rank::ONLY, &new));
}

/// Some are new until all are: of three tensors the first makes a weight, and the last one the
/// rest.
#[test]
fn weights_of_two_checkpoints_are_told() {
    let (weights, source) = (shared(), shared_source(3.0));
    let mut stream = Stream::new(&weights, weights.iter().map(|weight| apart::memory(weight.bytes)).collect());
    for _ in 0..2 {
        let wrong = Given { float: Float::F32, shape: &[1], numbers: vec![0; 4].into() };
        assert!(stream.give("q", wrong).is_err() && !stream.loading.is_mixed());
        for (name, mixed) in [("k", false), ("q", true), ("v", false)] {
            stream.feed(name, &source).unwrap();
            assert_eq!(stream.loading.is_mixed(), mixed, "{name}");
        }
    }
}

/// A matrix of codes has its scales in the same checkpoint, by the checkpoint's name for them.
#[test]
fn scales_are_found_beside_codes() {
    let scale = |name: &str, shape: &[usize]| tensor(&format!("{name}_scale"), shape);
    // The block of an expression is what rows of several matrices have in common.
    let scaled = |name: &str, rows: usize, shape: &[usize]| WeightExpr::Scaled {
        block: [1, 2],
        scale: Box::new(scale(name, shape)),
        zero: None,
        of: Box::new(tensor(name, &[rows, 6])),
    };
    let cases: [(&str, usize, &[usize], [usize; 2]); 4] =
        [("a", 3, &[2, 2], [2, 4]), ("b", 2, &[1, 2], [2, 4]), ("c", 5, &[5, 1], [1, 6]), ("d", 4, &[1, 1], [4, 6])];
    let codes = concat(0, cases.iter().map(|(name, rows, shape, _)| scaled(name, *rows, shape)).collect());
    let rows = |stride| Layout::Rows { stride };
    let mut weights = vec![weight(DType::F8E4M3, &[14, 6], rows(6), codes)];
    weights.extend(cases.iter().map(|(name, _, shape, _)| weight(DType::F32, shape, rows(2), scale(name, shape))));
    weights.push(weight(DType::BF16, &[4, 6], rows(8), tensor("e", &[4, 6])));
    let loading = Loading::new(&weights, &names(), Rank::ONLY);
    for (name, _, shape, block) in cases {
        let wanted = StoredScales { name: format!("{name}_scale"), shape: shape.to_vec(), block };
        assert_eq!(loading.scales(&weights, name), Some(wanted));
    }
    for name in ["e", "a_scale", "none"] {
        assert_eq!(loading.scales(&weights, name), None, "{name}");
    }
}

/// A framework that sleeps takes away the memory of a device: an update of all tensors makes all of
/// it again, padding and constants too.
#[test]
fn updates_make_anew_what_was_lost() {
    let (weights, source) = (shared(), shared_source(3.0));
    let mut stream = Stream::new(&weights, weights.iter().map(|weight| apart::memory(weight.bytes)).collect());
    for _ in 0..2 {
        for (buffer, weight) in stream.buffers.iter_mut().zip(&weights) {
            buffer.upload(0, &vec![255; weight.bytes]).unwrap();
        }
        for name in ["k", "q", "v"] {
            stream.feed(name, &source).unwrap();
            let Stream { weights, buffers, pool, loading } = &mut stream;
            loading.constants(Sink { weights, rank: Rank::ONLY, buffers, pool }).unwrap();
        }
        for (index, weight) in weights.iter().enumerate() {
            assert_eq!(stream.bytes(index), reference(weight, Rank::ONLY, &source), "{index}");
        }
    }
}

/// A head that is tied to the embedding may arrive before it, after it, and again, if it is the
/// same.
#[test]
fn a_tied_head_is_the_embedding() {
    let (head, embedding) = (HEAD, EMBEDDING);
    let weights = [weight(DType::BF16, &[4], Layout::Rows { stride: 4 }, tensor(embedding, &[4]))];
    let source = |base| Map::default().with(head, Float::BF16, &[4], base).with(embedding, Float::BF16, &[4], base);
    let (one, two) = (source(1.0), source(2.0));
    let fed = |tensors: &[(&str, &Map)]| {
        let mut stream = Stream::new(&weights, vec![apart::memory(weights[0].bytes)]);
        tensors.iter().try_for_each(|(name, source)| stream.feed(name, *source)).map(|()| stream.bytes(0))
    };
    let same = reference(&weights[0], Rank::ONLY, &one);
    assert_eq!(fed(&[(head, &one), (embedding, &one)]).unwrap(), same);
    assert_eq!(fed(&[(embedding, &one), (head, &one)]).unwrap(), same);
    assert_eq!(fed(&[(head, &two), (embedding, &two), (embedding, &one), (head, &one)]).unwrap(), same);
    for tensors in [[(head, &two), (embedding, &one)], [(embedding, &one), (head, &two)]] {
        assert!(matches!(fed(&tensors), Err(Error::Checkpoint(CheckpointError::Untied))));
    }
}

#[test]
fn keeps_only_what_a_weight_waits_for() {
    let weights = shared();
    let mut stream = Stream::new(&weights, weights.iter().map(|weight| apart::memory(weight.bytes)).collect());
    let source = shared_source(1.0);
    stream.feed("q", &source).unwrap();
    assert_eq!(stream.loading.kept_bytes(), 4 * 6 * 2);
    stream.feed("v", &source).unwrap();
    assert_eq!(stream.loading.kept_bytes(), 4 * 6 * 2 + 2 * 6 * 2);
    assert_eq!(stream.bytes(1), reference(&weights[1], Rank::ONLY, &source), "what has all its tensors is there");
    assert_eq!(stream.bytes(0), vec![0; weights[0].bytes]);
    assert_eq!(stream.loading.missing(), ["k"]);
    stream.feed("k", &source).unwrap();
    // One of three again: the other two are wanted again.
    stream.feed("q", &source).unwrap();
    assert_eq!(stream.finish().unwrap_err().to_string(), "the checkpoint lacks 2 tensors that the model needs: k, v");
}

#[test]
fn says_what_is_wrong_with_a_tensor() {
    let weights = shared();
    let mut stream = Stream::new(&weights, weights.iter().map(|weight| apart::memory(weight.bytes)).collect());
    let mut refused = |name: &str, shape: &[usize], bytes: usize| {
        let given = Given { float: Float::BF16, shape, numbers: vec![0; bytes].into() };
        stream.give(name, given).err().map(|error| error.to_string())
    };
    assert_eq!(refused("q", &[6, 4], 48).unwrap(), "tensor `q` has shape [6, 4], but the model needs [4, 6]");
    assert_eq!(refused("q", &[4, 6], 47).unwrap(), "tensor `q` has 47 bytes, but its shape and type take 48");
    assert_eq!(refused("w", &[1], 2).unwrap(), "the checkpoint has a tensor that the model does not use: w");
    assert_eq!(refused("model.layers.0.self_attn.rotary_emb.inv_freq", &[8], 0), None);
    assert_eq!(stream.loading.missing(), ["k", "q", "v"]);
}
