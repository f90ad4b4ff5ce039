//! Weights of codes, as checkpoints store them.
use super::*;

fn awq(axis: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Unpack { from: DType::I32, to: DType::U4, axis, len, order: Order::Awq, of: Box::new(of) }
}

/// Codes of two or three bits.
fn narrow(order: Order, axis: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Unpack { from: DType::I32, to: DType::U4, axis, len, order, of: Box::new(of) }
}

fn sort(bits: usize, axis: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Sort { bits, axis, of: Box::new(of), by: Box::new(tensor("g_idx", &[len])) }
}

/// A weight of codes, as checkpoints of each kind store it, with its scales and its zero points.
/// Its sizes are multiples of nothing.
fn stored_codes([rows, cols]: [usize; 2]) -> (Map, Vec<(DType, [usize; 2], WeightExpr)>) {
    use DType::{F4E2M1, I4, I8, I32, U4, U8};
    let (r8, c8, c4, c2, groups) = (rows.div_ceil(8), cols.div_ceil(8), cols.div_ceil(4), cols.div_ceil(2), 3);
    let word = Float::Code(I32);
    let map = Map::default()
        .noise("weight_packed", word, &[rows, c8])
        .noise("weight_packed_8", word, &[rows, c4])
        .noise("weight_zero_point", word, &[r8, groups])
        .noise("gptq.qweight", word, &[c8, rows])
        .noise("gptq8.qweight", word, &[c4, rows])
        .noise("awq.qweight", word, &[cols, r8])
        .noise("qzeros", word, &[groups, r8])
        .noise("gptq3.qweight", word, &[(3 * cols).div_ceil(32), rows])
        .noise("gptq2.qweight", word, &[cols.div_ceil(16), rows])
        .noise("qzeros3", word, &[groups, (3 * rows).div_ceil(32)])
        .integers("g_idx", Float::Code(I32), &[cols], &(0..cols as i64).map(|i| i * 37 % 5).collect::<Vec<_>>())
        .with("scales", Float::F16, &[groups, rows], 0.0)
        .with("channel", Float::BF16, &[rows], 0.0)
        .with("one", Float::F32, &[], 0.5)
        .noise("blocks", Float::Code(U8), &[rows, 1, c2])
        .noise("scale_bytes", Float::Code(U8), &[rows, groups]);
    let (packed, zeros) = (tensor("weight_packed", &[rows, c8]), tensor("qzeros", &[groups, r8]));
    let packed8 = tensor("weight_packed_8", &[rows, c4]);
    let of3 = tensor("gptq3.qweight", &[(3 * cols).div_ceil(32), rows]);
    let zeros3 = tensor("qzeros3", &[groups, (3 * rows).div_ceil(32)]);
    let exprs = vec![
        (U4, [rows, cols], unpack(I32, U4, 1, cols, packed.clone())),
        (I4, [rows, cols], shift(-8, I4, unpack(I32, U4, 1, cols, packed))),
        (I8, [rows, cols], shift(-128, I8, unpack(I32, U8, 1, cols, packed8.clone()))),
        (U8, [rows, groups], shift(0, U8, unpack(I32, U4, 0, rows, tensor("weight_zero_point", &[r8, groups])))),
        (U4, [rows, cols], transpose(unpack(I32, U4, 0, cols, tensor("gptq.qweight", &[c8, rows])))),
        (I4, [rows, cols], shift(-8, I4, transpose(unpack(I32, U4, 0, cols, tensor("gptq.qweight", &[c8, rows]))))),
        (I8, [rows, cols], transpose(shift(-128, I8, unpack(I32, U8, 0, cols, tensor("gptq8.qweight", &[c4, rows]))))),
        (U8, [rows, groups], transpose(shift(1, U8, unpack(I32, U4, 1, rows, zeros.clone())))),
        (U8, [rows, groups], transpose(shift(0, U8, awq(1, rows, zeros)))),
        (U4, [rows, cols], transpose(awq(1, rows, tensor("awq.qweight", &[cols, r8])))),
        (DType::BF16, [rows, groups], transpose(tensor("scales", &[groups, rows]))),
        (DType::F32, [rows, 1], view(&[rows, 1], tensor("channel", &[rows]))),
        (DType::F32, [1, 1], view(&[1, 1], tensor("one", &[]))),
        (U4, [rows, cols], transpose(narrow(Order::Threes, 0, cols, of3.clone()))),
        (
            U4,
            [rows, cols],
            transpose(narrow(Order::Twos, 0, cols, tensor("gptq2.qweight", &[cols.div_ceil(16), rows]))),
        ),
        (U8, [rows, groups], transpose(shift(1, U8, narrow(Order::Threes, 1, rows, zeros3)))),
        (U4, [rows, cols], transpose(narrow(Order::Threes, 0, cols, sort(3, 0, cols, of3)))),
        (U4, [rows, cols], transpose(unpack(I32, U4, 0, cols, sort(4, 0, cols, tensor("gptq.qweight", &[c8, rows]))))),
        (I8, [rows, cols], shift(-128, I8, unpack(I32, U8, 1, cols, sort(8, 1, cols, packed8)))),
        (F4E2M1, [rows, cols], unpack(U8, F4E2M1, 1, cols, view(&[rows, c2], tensor("blocks", &[rows, 1, c2])))),
        (DType::E8M0, [rows, groups], tensor("scale_bytes", &[rows, groups])),
    ];
    (map, exprs)
}

#[test]
fn codes_as_checkpoints_store_them() {
    for shape in [[16, 64], [1, 1], [37, 51], [130, 310]] {
        let (map, exprs) = stored_codes(shape);
        let dir = tempfile::tempdir().unwrap();
        let file = map.write(dir.path());
        for (dtype, shape, expr) in exprs {
            let group = 32 / dtype.bits();
            for layout in [
                Layout::Rows { stride: shape[1].next_multiple_of(16) },
                panels(16, group, &shape),
                panels(8, 4 * group, &shape),
            ] {
                let weight = weight(dtype, &shape, layout, expr.clone());
                let want = reference(&weight, Rank::ONLY, &map);
                assert_eq!(load_part(&weight, Rank::ONLY, &map), want, "{weight:?}");
                assert_eq!(load_part(&weight, Rank::ONLY, &file), want, "{weight:?} of a file");
            }
        }
    }
}

#[test]
fn places_of_groups() {
    for float in [Float::Code(DType::I32), Float::I64] {
        let map = Map::default().integers("g_idx", float, &[7], &[2, 0, 1, 0, 2, 1, 0]);
        let dir = tempfile::tempdir().unwrap();
        let of = Box::new(tensor("g_idx", &[7]));
        let weight = weight(DType::F32, &[7], Layout::Rows { stride: 8 }, WeightExpr::Places { of });
        let want = [1.0f32, 3.0, 6.0, 2.0, 5.0, 0.0, 4.0].map(f32::to_le_bytes).concat();
        assert_eq!(load_one(&weight, &map).unwrap(), want);
        assert_eq!(load_one(&weight, &map.write(dir.path())).unwrap(), want);
    }
}

/// Merged weights are joined, those of ranks are cut, inside words too.
#[test]
fn codes_are_joined_and_cut() {
    let (rows, cols) = (24, 48);
    let (map, exprs) = stored_codes([rows, cols]);
    let dir = tempfile::tempdir().unwrap();
    let file = map.write(dir.path());
    for (dtype, [rows, cols], expr) in exprs.into_iter().filter(|(_, [_, cols], _)| *cols >= 3) {
        let all = || expr.clone();
        let part = slice(0, 5, 14, all());
        let cases = [
            ([rows + 14, cols], concat(0, vec![all(), part])),
            ([rows, 2 * cols - 1], concat(1, vec![slice(1, 1, cols - 1, all()), all()])),
            ([rows / 2, cols], shard(0, 2, all())),
            ([rows, cols / 3], shard(1, 3, all())),
            ([rows + rows / 4, cols / 3], concat(0, vec![shard(1, 3, all()), shard(0, 4, shard(1, 3, all()))])),
            ([cols, 2 * rows], transpose(concat(0, vec![all(), all()]))),
            ([7, 2], slice(0, 3, 7, slice(1, 1, 2, all()))),
        ];
        for (shape, expr) in cases {
            for (number, of) in [(0, 1), (1, 12), (11, 12)] {
                let rank = Rank { number, of };
                let group = 32 / dtype.bits();
                for layout in [Layout::Rows { stride: shape[1].next_multiple_of(8) }, panels(16, group, &shape)] {
                    let weight = weight(dtype, &shape, layout, expr.clone());
                    let want = reference(&weight, rank, &map);
                    assert_eq!(load_part(&weight, rank, &map), want, "{weight:?} {rank:?}");
                    assert_eq!(load_part(&weight, rank, &file), want, "{weight:?} {rank:?} of a file");
                    // Neighbours that are there already are replaced, and nothing else is.
                    let mut out = want.clone();
                    out.iter_mut().for_each(|byte| *byte = !*byte);
                    load_over(&weight, rank, &map, &mut out);
                    let padding = reference_mask(&weight);
                    for (at, (byte, &mask)) in out.iter().zip(&padding).enumerate() {
                        assert_eq!((byte ^ want[at]) & mask, 0, "{weight:?} byte {at}");
                        assert_eq!((byte ^ !want[at]) & !mask, 0, "{weight:?} padding of byte {at}");
                    }
                }
            }
        }
    }
}

/// Large weights, in several tasks.
#[test]
fn large_weights_of_codes() {
    let shape = [2100, 1010];
    let (map, exprs) = stored_codes(shape);
    let dir = tempfile::tempdir().unwrap();
    let file = map.write(dir.path());
    for (dtype, shape, expr) in exprs.into_iter().filter(|(dtype, ..)| dtype.bits() == 4) {
        let layout = panels(16, 32 / dtype.bits(), &shape);
        let weight = weight(dtype, &shape, layout, expr);
        assert!(tasks(0, &weight).len() > 1);
        let made = load_part(&weight, Rank::ONLY, &file);
        assert!(made == load_part(&weight, Rank::ONLY, &map));
        assert!(made == reference(&weight, Rank::ONLY, &map), "{weight:?}");
    }
}

/// Codes of a weight that waits for what tells how it is stored.
#[test]
fn what_is_told_must_be_so() {
    let word = Float::Code(DType::I32);
    let expect = |is, told, of| WeightExpr::Expect { is, told: Box::new(told), of: Box::new(of) };
    let codes = || shift(-8, DType::I4, transpose(unpack(DType::I32, DType::U4, 0, 32, tensor("q", &[4, 8]))));
    let zeros = || shift(1, DType::U8, unpack(DType::I32, DType::U4, 1, 8, tensor("z", &[2, 1])));
    let expr = expect(
        Fact::Groups(16),
        tensor("g", &[32]),
        expect(Fact::All(8), zeros(), expect(Fact::Are(vec![8, 32]), tensor("s", &[2]), codes())),
    );
    let weight = weight(DType::I4, &[8, 32], panels(16, 8, &[8, 32]), expr);
    let groups: Vec<i64> = (0..32).map(|at| at / 16).collect();
    let source = || {
        let map = Map::default().noise("q", word, &[4, 8]).integers("g", word, &[32], &groups);
        map.integers("z", word, &[2, 1], &[0x7777_7777; 2]).integers("s", Float::I64, &[2], &[8, 32])
    };
    agrees(&weight, &source());
    let says = |source: &Map| {
        let at_once = load_one(&weight, source).unwrap_err().to_string();
        for order in [["q", "g", "z", "s"], ["s", "z", "g", "q"]] {
            let mut stream = Stream::new(std::slice::from_ref(&weight), vec![apart::memory(weight.bytes)]);
            let fed = order.iter().try_for_each(|name| stream.feed(name, source));
            assert_eq!(fed.unwrap_err().to_string(), at_once);
            assert_eq!(stream.bytes(0), vec![0; weight.bytes]);
        }
        at_once.replace("is not as the model needs it: ", "")
    };
    let mut turned = groups.clone();
    turned.swap(3, 20);
    assert_eq!(
        says(&source().integers("g", word, &[32], &turned)),
        "tensor `g` column 3 is in group 1, not 0: columns in another order (act-order) without `desc_act`"
    );
    assert_eq!(
        says(&source().integers("z", word, &[2, 1], &[0x7777_7777, 0x7777_6777])),
        "tensor `z` number 11 is 7, not 8"
    );
    assert_eq!(says(&source().integers("s", Float::I64, &[2], &[32, 8])), "tensor `s` it is [32, 8], not [8, 32]");
    assert_eq!(
        says(&source().integers("s", Float::I64, &[2], &[8, 32 + (1 << 32)])),
        "tensor `s` it is [8, -2147483648], not [8, 32]"
    );
    assert_eq!(says(&source().with("g", Float::F32, &[32], 0.0)), "tensor `g` is of type f32, but must be integers");
    assert_eq!(
        says(&source().with("q", Float::F32, &[4, 8], 0.0)),
        "tensor `q` is of type f32, of which no weight of type i32 can be made"
    );
    let mut without = source();
    without.0.remove("g");
    assert_eq!(
        load_one(&weight, &without).unwrap_err().to_string(),
        "the checkpoint lacks a tensor that the model needs: g"
    );
}

/// Scales of inputs and of the cache, and what is added to scores, in whichever type they come.
#[test]
fn floats_that_a_model_cannot_compute_with() {
    let name = "model.layers.0.self_attn.k_scale";
    let of = |is| {
        let expr = WeightExpr::Expect { is, told: Box::new(tensor(name, &[3])), of: Box::new(tensor(name, &[3])) };
        weight(DType::F32, &[3], Layout::Rows { stride: 16 }, expr)
    };
    let source =
        |float: Float, last: f64| Map::default().with(name, float, &[3], 0.0).set(name, float, &[0.5, 2.0, last]);
    let says = |is: Fact, source: Map| {
        let weight = of(is);
        let at_once = load_one(&weight, &source).unwrap_err().to_string();
        let mut stream = Stream::new(std::slice::from_ref(&weight), vec![apart::memory(weight.bytes)]);
        assert_eq!(stream.feed(name, &source).unwrap_err().to_string(), at_once);
        at_once
    };
    // Experts by token, as integers of either size or as floats.
    for float in [Float::I64, Float::Code(DType::I32), Float::F32] {
        let source = |last: i64| match float {
            Float::F32 => Map::default().with(name, float, &[3], 0.0).set(name, float, &[0.0, 2.0, last as f64]),
            _ => Map::default().integers(name, float, &[3], &[0, 2, last]),
        };
        agrees(&of(Fact::Below(6)), &source(5));
        for bad in [6, -1] {
            let said = says(Fact::Below(6), source(bad));
            assert!(said.ends_with(" at [0, 2], and experts are whole numbers below their count"), "{said}");
        }
    }
    for float in [Float::F32, Float::BF16] {
        agrees(&of(Fact::Scales), &source(float, 1e-9));
        agrees(&of(Fact::Addends), &source(float, -14.0));
        for (bad, shown) in
            [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (0.0, "0"), (-1.0, "-1"), (1e-30, ""), (1e30, "")]
        {
            let said = says(Fact::Scales, source(float, bad));
            let start = format!("tensor `{name}` is not as the model needs it: it has {shown}");
            assert!(said.starts_with(&start), "{said}");
            assert!(
                said.ends_with(" at [0, 2], and scales of rows and of a cache lie between 2^-64 and 2^64"),
                "{said}"
            );
        }
        for bad in [f64::NAN, f64::NEG_INFINITY, 1e31] {
            let said = says(Fact::Addends, source(float, bad));
            assert!(said.ends_with(" at [0, 2], and what is added to scores is a number of at most 1e30"), "{said}");
        }
    }
}

/// Rows of three codes with a scale each, and a zero point.
#[test]
fn scales_are_finite_and_zero_only_where_codes_are() {
    let expr = |zero: bool| WeightExpr::Scaled {
        block: [2, 3],
        scale: Box::new(transpose(tensor("s", &[2, 3]))),
        zero: zero.then(|| Box::new(tensor("z", &[3, 2]))),
        of: Box::new(tensor("w", &[5, 6])),
    };
    let of = |zero| weight(DType::I8, &[5, 6], panels(16, 4, &[5, 6]), expr(zero));
    let codes: Vec<i64> = (0..30).map(|at| if at / 6 == 4 && at % 6 >= 3 { 3 } else { at - 7 }).collect();
    let source = |scales: [f32; 6]| {
        let mut map = Map::default().integers("w", Float::Code(DType::I8), &[5, 6], &codes);
        map = map.integers("z", Float::Code(DType::I8), &[3, 2], &[1, 2, 0, 0, 0, 3]);
        map.0.insert("s".into(), (Float::F32, vec![2, 3], scales.iter().flat_map(|s| s.to_le_bytes()).collect()));
        map
    };
    let without_zero = |scales| {
        let mut map = source(scales);
        map.0.remove("z");
        map
    };
    agrees(&of(true), &source([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    // The last block has its zero point everywhere.
    agrees(&of(true), &source([1.0, 2.0, 3.0, 4.0, 5.0, 0.0]));
    let says = |weight: &Weight, source: Map| {
        let at_once = load_one(weight, &source).unwrap_err().to_string();
        let mut stream = Stream::new(std::slice::from_ref(weight), vec![apart::memory(weight.bytes)]);
        let fed = source.names().into_iter().try_for_each(|name| stream.feed(name, &source));
        assert_eq!(fed.unwrap_err().to_string(), at_once);
        assert_eq!(stream.bytes(0), vec![0; weight.bytes]);
        at_once
    };
    let zero = "tensor `s` has a scale of zero at [1, 2], where the weight is not zero";
    assert_eq!(says(&of(false), without_zero([1.0, 2.0, 3.0, 4.0, 5.0, 0.0])), zero);
    let zero = "tensor `s` has a scale of zero at [0, 1], where the weight is not zero";
    assert_eq!(says(&of(true), source([1.0, -0.0, 3.0, 4.0, 5.0, 6.0])), zero);
    for (wrong, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-1.5, "-1.5"), (f32::NEG_INFINITY, "-inf")] {
        let message = format!("tensor `s` has the scale {shown} at [1, 0]; scales must be finite and not negative");
        assert_eq!(says(&of(true), source([1.0, 2.0, 3.0, wrong, 5.0, 6.0])), message);
    }
    // Integers out of words may have scales with a sign.
    let expr = WeightExpr::Scaled {
        block: [1, 3],
        scale: Box::new(tensor("s", &[5, 2])),
        zero: None,
        of: Box::new(unpack(DType::I32, DType::U4, 1, 6, tensor("w", &[5, 1]))),
    };
    let words = weight(DType::U4, &[5, 6], panels(16, 8, &[5, 6]), expr);
    let source = |scale: f32| {
        let mut map = Map::default().noise("w", Float::Code(DType::I32), &[5, 1]);
        let scales = [1.0, 2.0, scale, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, -10.0f32];
        map.0.insert("s".into(), (Float::F32, vec![5, 2], scales.iter().flat_map(|s| s.to_le_bytes()).collect()));
        map
    };
    agrees(&words, &source(-3.0));
    for (wrong, shown) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let message = format!("tensor `s` has the scale {shown} at [1, 0]; scales must be finite and not negative");
        assert_eq!(says(&words, source(wrong)), message);
    }
    // Of powers of two only NaN is wrong.
    let expr = WeightExpr::Scaled {
        block: [1, 32],
        scale: Box::new(tensor("e", &[3, 2])),
        zero: None,
        of: Box::new(unpack(DType::U8, DType::F4E2M1, 1, 64, tensor("b", &[3, 32]))),
    };
    let mx = weight(DType::F4E2M1, &[3, 64], panels(16, 8, &[3, 64]), expr);
    let source = |exponent| {
        let map = Map::default().noise("b", Float::Code(DType::U8), &[3, 32]);
        map.integers("e", Float::Code(DType::U8), &[3, 2], &[0, 1, 127, exponent, 254, 3])
    };
    agrees(&mx, &source(200));
    assert_eq!(
        says(&mx, source(255)),
        "tensor `e` has the scale NaN at [1, 1]; scales must be finite and not negative"
    );
}

/// Codes that are no numbers are seen before a tensor changes anything; in a whole checkpoint, when
/// they are packed.
#[test]
fn codes_are_numbers() {
    let weight = weight(DType::F8E4M3, &[3, 8], panels(16, 4, &[3, 8]), tensor("w", &[3, 8]));
    for bad in [0x7f, 0xff] {
        let mut codes = vec![0x7e; 24];
        codes[17] = bad;
        let source = Map::default().integers("w", Float::Code(DType::F8E4M3), &[3, 8], &codes);
        let says = "tensor `w` has codes that are no numbers";
        let at_once = load_one(&weight, &source).map(drop);
        assert_eq!(at_once.as_ref().unwrap_err().to_string(), says);
        assert!(!are_loaded(true, &at_once), "some weights may be new");
        let mut stream = Stream::new(std::slice::from_ref(&weight), vec![apart::memory(weight.bytes)]);
        assert_eq!(stream.feed("w", &source).unwrap_err().to_string(), says);
        assert_eq!(stream.bytes(0), vec![0; weight.bytes]);
        assert_eq!(stream.loading.missing(), ["w"]);
    }
}

/// Zeros of e4m3 lose their sign where a target's instructions have none, and nothing else changes.
#[test]
fn zeros_lose_their_sign_where_a_target_has_none() {
    let signed = weight(DType::F8E4M3, &[3, 8], panels(16, 4, &[3, 8]), tensor("w", &[3, 8]));
    let unsigned = Weight { unsigned_zeros: true, ..signed.clone() };
    let codes: Vec<i64> = (0..24).map(|i| [0x80, 0x00, 0x81, 0x01, 0x7e, 0xfe][i % 6]).collect();
    let source = Map::default().integers("w", Float::Code(DType::F8E4M3), &[3, 8], &codes);
    let [as_stored, made] = [&signed, &unsigned].map(|weight| load_one(weight, &source).unwrap());
    assert!(as_stored.contains(&0x80));
    let without: Vec<u8> = as_stored.iter().map(|&code| if code == 0x80 { 0 } else { code }).collect();
    assert_eq!(made, without);
}
