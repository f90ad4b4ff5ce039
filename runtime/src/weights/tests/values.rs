//! What expressions make: values, types, layouts and tasks.
use super::*;

#[test]
fn layouts_and_types() {
    let shapes: [[usize; 2]; 5] = [[1, 1], [16, 64], [37, 51], [5, 700], [130, 18]];
    for shape in shapes {
        for from in [Float::BF16, Float::F16, Float::F32, Float::F64] {
            let source = Map::default().with("t", from, &shape, -3.0);
            for to in [DType::BF16, DType::F16, DType::F32] {
                let mut layouts = vec![Layout::Rows { stride: shape[1] }, Layout::Rows { stride: shape[1] + 13 }];
                layouts.extend(
                    [(16, 2), (8, 1), (1, 4), (3, 5), (32, 8), (16, 64)]
                        .map(|(width, group)| panels(width, group, &shape)),
                );
                for layout in layouts {
                    agrees(&weight(to, &shape, layout, tensor("t", &shape)), &source);
                }
            }
        }
    }
}

/// What checkpoints store weights as is copied bit by bit, and made of nothing else.
#[test]
fn codes_stay_as_they_are() {
    let shape = [37, 51];
    let codes = [DType::F8E4M3, DType::E8M0, DType::I8, DType::U8, DType::I32];
    for from in codes {
        let values: Vec<i64> = (0..37 * 51).map(|i| i % 120).collect();
        let source = Map::default().integers("t", Float::Code(from), &shape, &values);
        for to in codes {
            for layout in [Layout::Rows { stride: 64 }, panels(16, 4, &shape), panels(8, 16, &shape)] {
                let weight = weight(to, &shape, layout, tensor("t", &shape));
                let as_bytes = [(DType::U8, DType::E8M0), (DType::I8, DType::U8)];
                if from == to || as_bytes.contains(&(from, to)) {
                    agrees(&weight, &source);
                    continue;
                }
                let says = format!(
                    "tensor `t` is of type {}, of which no weight of type {} can be made",
                    from.name(),
                    to.name()
                );
                assert_eq!(load_one(&weight, &source).unwrap_err().to_string(), says);
            }
        }
        let float = weight(DType::BF16, &shape, panels(16, 2, &shape), tensor("t", &shape));
        assert!(load_one(&float, &source).is_err());
        let code = weight(from, &shape, panels(16, 2, &shape), tensor("t", &shape));
        assert!(load_one(&code, &Map::default().with("t", Float::F32, &shape, 1.0)).is_err());
        // What is made up are numbers.
        let made_up = load_part(&code, Rank::ONLY, &Random { seed: 1 });
        assert!(
            made_up.iter().any(|&byte| byte != 0)
                && made_up.iter().all(|byte| byte & 0x7f != 0x7f || from != DType::F8E4M3)
        );
    }
}

/// Powers of two as a byte each are scales of f32, the least one too.
#[test]
fn powers_of_two_become_floats() {
    let shape = [5, 51];
    let bytes: Vec<i64> = (0..255).collect();
    let source = Map::default().integers("t", Float::Code(DType::E8M0), &shape, &bytes);
    let plain = weight(DType::F32, &shape, Layout::Rows { stride: 51 }, tensor("t", &shape));
    let made = load_part(&plain, Rank::ONLY, &source);
    let floats = made.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes)));
    assert!(floats.eq((0..255).map(|exponent| f64::from(exponent - 127).exp2())));
    for dtype in [DType::BF16, DType::F16] {
        let half = weight(dtype, &shape, Layout::Rows { stride: 64 }, tensor("t", &shape));
        assert!(load_one(&half, &source).is_err());
    }
}

#[test]
fn expressions() {
    let source = Map::default()
        .with("q", Float::BF16, &[40, 24], 0.0)
        .with("k", Float::F32, &[9, 24], 1000.0)
        .with("wide", Float::BF16, &[49, 301], -7.0)
        .with("bias", Float::F16, &[30], 5.0);
    let rows =
        || concat(0, vec![tensor("q", &[40, 24]), slice(0, 2, 6, tensor("k", &[9, 24])), tensor("q", &[40, 24])]);
    let both =
        || concat(1, vec![concat(0, vec![tensor("q", &[40, 24]), tensor("k", &[9, 24])]), tensor("wide", &[49, 301])]);
    let cut = || slice(1, 3, 299, slice(0, 7, 40, both()));
    let cases = [
        (vec![86, 24], rows()),
        (vec![49, 325], both()),
        (vec![40, 299], cut()),
        (vec![35, 24], slice(0, 20, 35, rows())),
        (vec![13, 5], slice(0, 37, 13, slice(1, 1, 5, rows()))),
        (vec![19, 24], concat(0, vec![shard(0, 4, tensor("q", &[40, 24])), tensor("k", &[9, 24])])),
        (
            vec![13, 12],
            concat(0, vec![shard(1, 2, tensor("k", &[9, 24])), shard(0, 10, shard(1, 2, tensor("q", &[40, 24])))]),
        ),
        (vec![7, 43], shard(1, 7, shard(0, 7, tensor("wide", &[49, 301])))),
    ];
    let cases = cases.iter().flat_map(|case| [(0, 1), (0, 4), (1, 4), (3, 4), (6, 7)].map(|rank| (case.clone(), rank)));
    for ((shape, expr), (number, of)) in cases {
        let rank = Rank { number, of };
        let shape: [usize; 2] = shape.try_into().unwrap();
        for layout in [Layout::Rows { stride: shape[1] }, panels(16, 2, &shape), panels(8, 4, &shape)] {
            for to in [DType::BF16, DType::F32] {
                let weight = weight(to, &shape, layout, expr.clone());
                assert_eq!(load_part(&weight, rank, &source), reference(&weight, rank, &source), "{weight:?}");
            }
        }
    }
    let vector = concat(
        0,
        vec![
            slice(0, 3, 20, tensor("bias", &[30])),
            WeightExpr::Const { values: vec![1.5, -2.25] },
            tensor("bias", &[30]),
        ],
    );
    let raised = WeightExpr::Offset { by: 1.0, of: Box::new(vector.clone()) };
    for (to, expr) in [(DType::F32, vector), (DType::F32, raised.clone()), (DType::BF16, raised)] {
        let weight = weight(to, &[52], Layout::Rows { stride: 52 }, expr);
        assert_eq!(load_part(&weight, Rank::ONLY, &source), reference(&weight, Rank::ONLY, &source));
    }
}

/// Experts are a stack of matrices, stacked from a tensor each or in the checkpoint already.
#[test]
fn stacks_of_matrices() {
    let source = Map::default()
        .with("a", Float::BF16, &[1, 20, 36], 0.0)
        .with("b", Float::BF16, &[1, 20, 36], -100.0)
        .with("all", Float::F32, &[5, 40, 36], 7.0)
        .with("deep", Float::F16, &[2, 3, 10, 7], 1.0);
    let all = || tensor("all", &[5, 40, 36]);
    let stack = || concat(0, vec![tensor("a", &[1, 20, 36]), tensor("b", &[1, 20, 36])]);
    let cases = [
        (vec![5, 40, 36], all()),
        (vec![2, 20, 36], stack()),
        (vec![7, 20, 36], concat(0, vec![stack(), slice(1, 10, 20, all())])),
        (vec![2, 60, 36], concat(1, vec![stack(), slice(0, 3, 2, all())])),
        (vec![2, 20, 72], concat(2, vec![stack(), slice(1, 20, 20, slice(0, 1, 2, all()))])),
        (vec![5, 10, 18], shard(2, 2, shard(1, 4, all()))),
        (vec![1, 20, 36], slice(1, 3, 20, shard(0, 5, all()))),
        (vec![2, 2, 10, 5], slice(3, 1, 5, slice(1, 1, 2, tensor("deep", &[2, 3, 10, 7])))),
        (vec![1, 3, 20, 7], concat(2, vec![shard(0, 2, tensor("deep", &[2, 3, 10, 7])); 2])),
    ];
    for (shape, expr) in &cases {
        for (number, of) in [(0, 1), (0, 4), (3, 4)] {
            let rank = Rank { number, of };
            let cols = shape[shape.len() - 1];
            for layout in [Layout::Rows { stride: cols + 3 }, panels(16, 2, shape), panels(8, 4, shape)] {
                let weight = weight(DType::BF16, shape, layout, expr.clone());
                assert_eq!(load_part(&weight, rank, &source), reference(&weight, rank, &source), "{weight:?}");
            }
        }
    }
    let large = [3, 600, 1500];
    let source = Map::default().with("t", Float::BF16, &large, 0.0);
    for layout in [Layout::Rows { stride: 1504 }, panels(16, 8, &large)] {
        let weight = weight(DType::BF16, &large, layout, tensor("t", &large));
        assert!(tasks(0, &weight).len() > 4);
        agrees(&weight, &source);
    }
}

#[test]
fn tasks_cover_large_weights_once() {
    for layout in [Layout::Rows { stride: 2048 }, panels(16, 2, &[5000, 2048])] {
        let shape = [5000, 2048];
        let weight = weight(DType::BF16, &shape, layout, tensor("t", &shape));
        let tasks = tasks(0, &weight);
        assert!(tasks.len() > 10);
        assert!(
            tasks
                .windows(2)
                .all(|pair| pair[0].rows.end == pair[1].rows.start && pair[0].bytes.end == pair[1].bytes.start)
        );
        assert_eq!(
            (tasks[0].bytes.start, tasks.last().unwrap().bytes.end, tasks.last().unwrap().rows.end),
            (0, weight.bytes, 5000)
        );
        agrees(&weight, &Map::default().with("t", Float::BF16, &shape, 0.0));
    }
}

#[test]
fn rounds_to_nearest_even() {
    let values: Vec<f32> = vec![1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1e-40, 3.4e38, f32::INFINITY, 70000.0];
    for (dtype, expect) in [
        (DType::BF16, [0x3f80, 0x3f82, 0x8001, 0x7f80, 0x7f80, 0x4789]),
        (DType::F16, [0x3c04, 0x3c0c, 0x8000, 0x7c00, 0x7c00, 0x7c00]),
    ] {
        let bytes = load_one(
            &weight(dtype, &[6], Layout::Rows { stride: 6 }, WeightExpr::Const { values: values.clone() }),
            &Map::default(),
        )
        .unwrap();
        let found: Vec<u16> = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(found, expect);
    }
}

#[test]
fn random_weights_do_not_depend_on_layout() {
    let shape = [100, 301];
    let rows =
        load_one(&weight(DType::F32, &shape, Layout::Rows { stride: 301 }, tensor("t", &shape)), &Random { seed: 5 })
            .unwrap();
    let packed =
        load_one(&weight(DType::F32, &shape, panels(16, 1, &shape), tensor("t", &shape)), &Random { seed: 5 }).unwrap();
    let value = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[at * 4..][..4].try_into().unwrap());
    for (r, c) in [(0, 0), (17, 300), (99, 1), (50, 150)] {
        assert_eq!(value(&rows, r * 301 + c), value(&packed, (r / 16 * 301 + c) * 16 + r % 16));
    }
}

#[test]
fn missing_and_unused_tensors_change_nothing() {
    let source = Map::default().with("a", Float::BF16, &[4], 1.0).with("left", Float::BF16, &[1], 0.0).with(
        "over",
        Float::BF16,
        &[1],
        0.0,
    );
    let vector = |name: &str| weight(DType::BF16, &[4], Layout::Rows { stride: 4 }, tensor(name, &[4]));
    let mut buffers: Vec<DeviceBuffer> = (0..3).map(|_| DeviceBuffer::Host(Buffer::new(8).unwrap())).collect();
    let mut message = |tensors: [&str; 3]| {
        let (weights, pool) = (tensors.map(vector), &mut Pool::new(1).unwrap());
        let error = load(
            Sink { weights: &weights, rank: Rank::ONLY, buffers: &mut buffers, pool },
            &names(),
            &source,
            &|_, _| (),
        )
        .unwrap_err();
        assert!(buffers.iter().all(|buffer| buffer.host_view().unwrap() == [0; 8]));
        error.to_string()
    };
    assert_eq!(message(["a", "y", "x"]), "the checkpoint lacks 2 tensors that the model needs: x, y");
    assert_eq!(message(["a", "a", "a"]), "the checkpoint has 2 tensors that the model does not use: left, over");
}

#[test]
fn tensors_of_other_parts_may_stay() {
    let embedding = weight(DType::BF16, &[4], Layout::Rows { stride: 4 }, tensor(EMBEDDING, &[4]));
    let source = || Map::default().with(EMBEDDING, Float::BF16, &[4], 1.0);
    for other in ["model.layers.9.embed_tokens.weight", "language_model.layers.9.eh_proj.weight"] {
        load_one(&embedding, &source().with(other, Float::BF16, &[8], 0.0)).unwrap();
    }
    load_one(&embedding, &source().with("model.layers.0.rotary_emb.inv_freq", Float::F32, &[8], 0.0)).unwrap();
    load_one(&embedding, &source().with(HEAD, Float::BF16, &[4], 1.0)).unwrap();
    let untied = load_one(&embedding, &source().with(HEAD, Float::BF16, &[4], 2.0)).unwrap_err();
    assert!(untied.to_string().starts_with("`lm_head.weight` of the checkpoint is not the embedding"));
    for other in ["lm_head.bias", "model.layers.8.eh_proj.weight", "mtp.norm.weight", "visual.model.layers.9.x"] {
        let message = load_one(&embedding, &source().with(other, Float::BF16, &[4], 1.0)).unwrap_err().to_string();
        assert_eq!(message, format!("the checkpoint has a tensor that the model does not use: {other}"));
    }
}

#[test]
fn names_of_another_writer() {
    let embedding = weight(DType::BF16, &[4], Layout::Rows { stride: 4 }, tensor(EMBEDDING, &[4]));
    let (other, head) = ("language_model.embed_tokens.weight", [(HEAD, 1.0), (HEAD, 2.0)]);
    let source = || Map::default().with(other, Float::BF16, &[4], 1.0);
    let plain = load_one(&embedding, &Map::default().with(EMBEDDING, Float::BF16, &[4], 1.0)).unwrap();
    assert!(load_one(&embedding, &source()).unwrap() == plain);
    let [same, differs] =
        head.map(|(head, value)| load_one(&embedding, &source().with(head, Float::BF16, &[4], value)));
    assert!(same.unwrap() == plain && differs.unwrap_err().to_string().starts_with("`lm_head.weight`"));
    let message = load_one(&embedding, &source().with(EMBEDDING, Float::BF16, &[4], 1.0)).unwrap_err().to_string();
    let both = "the checkpoint has both `model.embed_tokens.weight` and `language_model.embed_tokens.weight`";
    assert!(message.starts_with(both), "{message}");
    let message = load_one(&embedding, &source().with("language_model.x", Float::BF16, &[4], 1.0)).unwrap_err();
    assert_eq!(message.to_string(), "the checkpoint has a tensor that the model does not use: language_model.x");
}

#[test]
fn a_checkpoint_fits_by_its_names_shapes_and_types() {
    let weights = [weight(DType::BF16, &[4], Layout::Rows { stride: 4 }, tensor(EMBEDDING, &[4]))];
    let source = || Map::default().with("model.layers.9.a", Float::F32, &[1], 0.0);
    let fits = |source: &Map| fit(&weights, &names(), Rank::ONLY, source);
    let found = fits(&source().with(EMBEDDING, Float::F32, &[4], 0.0)).unwrap();
    assert_eq!((found.read, found.ignored), (1, BTreeMap::from([("other".to_owned(), 1)])));
    let fault = |source: &Map| fits(source).unwrap_err().to_string();
    assert_eq!(fault(&source()), format!("the checkpoint lacks a tensor that the model needs: {EMBEDDING}"));
    let extra = source().with(EMBEDDING, Float::F32, &[4], 0.0).with("x", Float::F32, &[1], 0.0);
    assert_eq!(fault(&extra), "the checkpoint has a tensor that the model does not use: x");
    assert_eq!(
        fault(&source().with(EMBEDDING, Float::Code(DType::I8), &[4], 0.0)),
        "tensor `model.embed_tokens.weight` is of type i8, of which no weight of type bf16 can be made"
    );
}

#[test]
fn weights_larger_than_the_stage() {
    let shape = [9001, 2001];
    let weight = weight(DType::BF16, &shape, panels(16, 8, &shape), tensor("t", &shape));
    assert!(weight.bytes > STAGE_BYTES);
    load_one(&weight, &Random { seed: 3 }).unwrap();
}

#[test]
fn reports_progress() {
    let shape = [3000, 1024];
    let weight = weight(DType::BF16, &shape, Layout::Rows { stride: 1024 }, tensor("t", &shape));
    let last = std::sync::Mutex::new(Vec::new());
    let mut buffers = [DeviceBuffer::Host(Buffer::new(weight.bytes).unwrap())];
    let sink = Sink { weights: &[weight], rank: Rank::ONLY, buffers: &mut buffers, pool: &mut Pool::new(2).unwrap() };
    load(sink, &names(), &Random { seed: 1 }, &|done, total| last.lock().unwrap().push((done, total))).unwrap();
    let reports = last.into_inner().unwrap();
    let total = 3000 * 1024 * 2;
    assert_eq!((reports[0], *reports.iter().max().unwrap()), ((0, total), (total, total)));
    assert!(reports.len() > 4);
}
