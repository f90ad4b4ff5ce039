//! Experts: stacks of tensors, of which ranks have some.
use super::*;

/// Experts as checkpoints have them: a tensor each, in one tensor, as columns with gate and up in
/// turn, as codes of 4 bits; for ranks that share out experts, or the width of each.
#[test]
fn experts_as_checkpoints_store_them() {
    use DType::{F4E2M1, I8, U8};
    let (count, wide, hidden) = (5, 14, 36);
    let mut map = Map::default()
        .with("gate_up", Float::F16, &[count, 2 * wide, hidden], 0.0)
        .with("turned", Float::BF16, &[count, hidden, 2 * wide], -9.0)
        .noise("blocks", Float::Code(U8), &[count, 2 * wide, 3, 6])
        .noise("scales", Float::Code(U8), &[count, 2 * wide, 3])
        .with("bias", Float::BF16, &[count, 2 * wide], 3.0);
    for number in 0..count {
        let name = |part: &str| format!("e.{number}.{part}");
        map = map
            .with(&name("gate"), Float::BF16, &[wide, hidden], 100.0 * number as f64)
            .with(&name("up"), Float::F32, &[wide, hidden], -100.0 * number as f64)
            .with(&name("scale"), Float::F32, &[wide], number as f64)
            .noise(&name("words"), Float::Code(DType::I32), &[hidden.div_ceil(8), wide])
            .noise(&name("codes"), Float::Code(I8), &[wide, hidden]);
    }
    let each = |part: &str, shape: &[usize]| stack(&format!("e.*.{part}"), count, shape, None);
    let gate = || each("gate", &[wide, hidden]);
    let both = || concat(1, vec![gate(), each("up", &[wide, hidden])]);
    let turned = || transpose(tensor("turned", &[count, hidden, 2 * wide]));
    let blocks = || {
        let bytes = view(&[count, 2 * wide, 18], tensor("blocks", &[count, 2 * wide, 3, 6]));
        unpack(U8, F4E2M1, 2, hidden, bytes)
    };
    let apart = |of: &dyn Fn() -> WeightExpr| concat(1, vec![every(1, 2, 0, of()), every(1, 2, 1, of())]);
    let half = wide / 2;
    let cases = [
        (DType::BF16, vec![count, 2 * wide, hidden], both()),
        (DType::BF16, vec![count, wide, hidden], stack("e.*.gate", count, &[wide, hidden], Some(("none", 0, 99)))),
        (
            DType::BF16,
            vec![count, wide, hidden],
            stack("x.*.up", count, &[wide, hidden], Some(("gate_up", wide, 2 * wide))),
        ),
        (DType::BF16, vec![count, 2 * wide, hidden], apart(&turned)),
        (DType::BF16, vec![count, 2 * wide, hidden], concat(1, vec![turned()])),
        (DType::BF16, vec![count, hidden, wide], every(2, 2, 1, tensor("turned", &[count, hidden, 2 * wide]))),
        (DType::BF16, vec![count, 5, 12], every(2, 3, 2, every(1, 3, 1, gate()))),
        (DType::BF16, vec![2, hidden, 7], transpose(every(1, 2, 1, every(0, 4, 0, gate())))),
        (F4E2M1, vec![count, 2 * wide, hidden], apart(&blocks)),
        (DType::E8M0, vec![count, wide, 3], every(1, 2, 1, tensor("scales", &[count, 2 * wide, 3]))),
        (DType::F32, vec![count, wide], every(1, 2, 0, tensor("bias", &[count, 2 * wide]))),
        (DType::F32, vec![count, 6 * wide], repeat(1, 3, tensor("bias", &[count, 2 * wide]))),
        (DType::F32, vec![4 * count, wide], repeat(0, 4, every(1, 2, 1, tensor("bias", &[count, 2 * wide])))),
        (DType::F32, vec![count, wide, 1], view(&[count, wide, 1], each("scale", &[wide]))),
        (DType::I4, vec![count, wide, hidden], {
            let words = each("words", &[hidden.div_ceil(8), wide]);
            shift(-8, DType::I4, transpose(unpack(DType::I32, DType::U4, 1, hidden, words)))
        }),
        (I8, vec![count, wide, hidden], each("codes", &[wide, hidden])),
        // Ranks: experts, an odd one short; the width of each; groups that do not divide.
        (DType::BF16, vec![3, 2 * wide, hidden], shard(0, 2, pad(0, 6, both()))),
        (DType::BF16, vec![count, 2 * half, hidden], {
            concat(1, vec![shard(1, 2, gate()), shard(1, 2, each("up", &[wide, hidden]))])
        }),
        (DType::BF16, vec![count, hidden, half], transpose(shard(1, 2, gate()))),
        (F4E2M1, vec![count, 8, hidden], shard(1, 2, pad(1, 16, every(1, 2, 1, blocks())))),
        (F4E2M1, vec![count, 2 * wide, 20], shard(2, 2, pad(2, 40, blocks()))),
        (DType::F32, vec![count, 8], shard(1, 2, pad(1, 16, every(1, 2, 1, tensor("bias", &[count, 2 * wide]))))),
    ];
    let dir = tempfile::tempdir().unwrap();
    let file = map.write(dir.path());
    for (dtype, shape, expr) in &cases {
        for (number, of) in [(0, 1), (0, 2), (1, 2)] {
            let (rank, cols) = (Rank { number, of }, shape[shape.len() - 1]);
            let group = (64 / dtype.bits()).min(8);
            for layout in [Layout::Rows { stride: (cols + 3).next_multiple_of(8) }, panels(16, group, shape)] {
                let weight = weight(*dtype, shape, layout, expr.clone());
                let want = reference(&weight, rank, &map);
                assert!(want.iter().any(|&byte| byte != 0));
                assert_eq!(load_part(&weight, rank, &map), want, "{weight:?} {rank:?}");
                assert_eq!(load_part(&weight, rank, &file), want, "{weight:?} {rank:?} of a file");
            }
        }
    }
}

/// Tensors of experts in any order, and those of a checkpoint that has them in one.
#[test]
fn experts_come_one_by_one_or_together() {
    let (count, shape) = (12, [6, 10]);
    let gate = || stack("e.*.gate", count, &shape, Some(("gate_up", 0, 12)));
    let up = || stack("e.*.up", count, &shape, Some(("gate_up", 6, 12)));
    let down = || stack("e.*.down", count, &[10, 6], Some(("down", 0, 10)));
    let weights = [
        weight(DType::BF16, &[count, 12, 10], panels(8, 2, &[12, 10]), concat(1, vec![gate(), up()])),
        weight(DType::BF16, &[count, 10, 6], panels(8, 2, &[10, 6]), down()),
    ];
    let buffers = || weights.iter().map(|weight| apart::memory(weight.bytes)).collect::<Vec<_>>();
    let mut each = Map::default();
    for (at, number) in (0..count).flat_map(|number| [number; 3].into_iter().enumerate()) {
        let (part, shape) = [("gate", shape), ("up", shape), ("down", [10, 6])][at];
        each = each.with(&format!("e.{number}.{part}"), Float::BF16, &shape, (number * 3 + at) as f64);
    }
    let together = Map::default().with("gate_up", Float::F32, &[count, 12, 10], 4.0);
    let together = together.with("down", Float::F16, &[count, 10, 6], -4.0);
    let at_once = |source: &Map| {
        let (mut buffers, pool) = (buffers(), &mut Pool::new(2).unwrap());
        let sink = Sink { weights: &weights, rank: Rank::ONLY, buffers: &mut buffers, pool };
        load(sink, &names(), source, &|_, _| ())
    };
    for source in [&each, &together] {
        at_once(source).unwrap();
        let mut names = source.names();
        for _ in 0..2 {
            names.reverse();
            let mut stream = Stream::new(&weights, buffers());
            for name in &names {
                stream.feed(name, source).unwrap();
            }
            assert_eq!(stream.loading.kept_bytes(), 0);
            stream.finish().unwrap();
            for (index, weight) in weights.iter().enumerate() {
                assert_eq!(stream.bytes(index), reference(weight, Rank::ONLY, source));
            }
        }
    }
    // What is missing or there twice is named.
    let mut without = Map(each.0.clone());
    without.0.remove("e.7.up");
    without.0.remove("e.11.gate");
    let lacks = "the checkpoint lacks 2 tensors that the model needs: e.11.gate, e.7.up";
    assert_eq!(at_once(&without).unwrap_err().to_string(), lacks);
    let mut stream = Stream::new(&weights, buffers());
    without.names().into_iter().for_each(|name| stream.feed(name, &without).unwrap());
    assert_eq!(stream.finish().unwrap_err().to_string(), lacks);
    let mut both = Map(each.0.clone());
    both.0.extend(together.0.clone());
    let twice = "the checkpoint has both `gate_up` and `e.0.gate`, which are the same weights: \
                 one or the other may be there";
    assert_eq!(at_once(&both).unwrap_err().to_string(), twice);
    let twice = twice.replace("gate_up", "down").replace("e.0.gate", "e.0.down");
    for order in [["e.0.down", "down"], ["down", "e.0.down"]] {
        let mut stream = Stream::new(&weights, buffers());
        stream.feed(order[0], &both).unwrap();
        assert_eq!(stream.feed(order[1], &both).unwrap_err().to_string(), twice);
    }
    let mut stream = Stream::new(&weights, buffers());
    stream.feed("down", &together).unwrap();
    assert_eq!(stream.loading.missing().len(), 2 * count);
}

/// Of experts that ranks hold some of, a rank waits for its own and keeps no others.
#[test]
fn a_rank_waits_for_what_it_has_a_part_of() {
    let of = WeightExpr::Stack { name: "e.*".into(), count: 4, shape: vec![2, 8], whole: None };
    let layout = Layout::Rows { stride: 8 };
    let weights = [weight(DType::F32, &[2, 2, 8], layout, shard(0, 2, of))];
    let bytes = |number: u8| vec![number; 2 * 8 * 4];
    let rank = Rank { number: 1, of: 2 };
    let mut loading = Loading::new(&weights, &names(), rank);
    assert_eq!(loading.missing(), ["e.2", "e.3"]);
    let (mut buffers, mut pool) = ([DeviceBuffer::Host(Buffer::new(weights[0].bytes).unwrap())], Pool::new(1).unwrap());
    for number in [3, 0, 2, 1] {
        let given = Given { float: Float::F32, shape: &[2, 8], numbers: bytes(number).into() };
        let sink = Sink { weights: &weights, rank, buffers: &mut buffers, pool: &mut pool };
        loading.feed(&format!("e.{number}"), given, sink).unwrap();
        assert_eq!(loading.kept_bytes(), if number == 3 || number == 0 { 64 } else { 0 }, "{number}");
    }
    loading.finish(Sink { weights: &weights, rank, buffers: &mut buffers, pool: &mut pool }).unwrap();
    let mut found = vec![0; weights[0].bytes];
    buffers[0].download(0, &mut found).unwrap();
    assert!(found == [bytes(2), bytes(3)].concat());
}
