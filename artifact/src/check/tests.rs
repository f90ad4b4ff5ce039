use super::*;
use crate::file::tests::sample;

/// A layout as messages have it.
fn shown(layout: Layout) -> String {
    serde_json::to_string(&layout).unwrap()
}

/// Sizes of the sections of a file with the sample.
const SECTIONS: &[usize] = &[0, 100, 100];

/// Edits a sound manifest and gives the message of the fault.
fn fault(edit: impl FnOnce(&mut Manifest)) -> String {
    let mut edited = sample();
    edit(&mut edited);
    manifest(&edited, SECTIONS).expect_err("the edit must be refused").to_string()
}

#[track_caller]
fn refused(edit: impl FnOnce(&mut Manifest), message: &str) {
    assert_eq!(fault(edit), format!("artifact manifest: {message}"));
}

#[test]
fn the_sample_is_sound() {
    manifest(&sample(), SECTIONS).unwrap();
}

#[test]
fn indices_out_of_range() {
    refused(
        |m| m.targets[0].plans[1].launches[0].kernel = 2,
        "targets[0].plans[1].launches[0].kernel: index 2, but there are 2",
    );
    refused(
        |m| m.targets[0].plans[0].launches[0].args[1] = Arg::Weight { index: 3 },
        "targets[0].plans[0].launches[0].args[1].index: index 3, but there are 3",
    );
    refused(
        |m| m.targets[0].plans[0].launches[0].args[2] = Arg::Batch { state: 2 },
        "targets[0].plans[0].launches[0].args[2].state: index 2, but there are 2",
    );
    for (state, streams) in [(0, 3), (1, 1)] {
        refused(
            |m| m.targets[0].plans[0].launches[0].args[2] = Arg::State { state, stream: streams },
            &format!("targets[0].plans[0].launches[0].args[2].stream: index {streams}, but there are {streams}"),
        );
    }
    refused(
        |m| m.targets[0].plans[0].launches[0].args[3] = Arg::Batch { state: 1 },
        "targets[0].plans[0].launches[0].args[3].state: of group 1, but the launch has the table of another group",
    );
    refused(|m| m.targets[0].variants[0].section = 3, "targets[0].variants[0].section: index 3, but there are 3");
    refused(
        |m| m.targets[0].variants[0].section = 0,
        "targets[0].variants[0].section: section 0 is the manifest, not code",
    );
}

#[test]
fn offsets_out_of_bounds() {
    refused(
        |m| m.targets[0].plans[0].launches[0].args[0] = Arg::Arena { offset: 4096 },
        "targets[0].plans[0].launches[0].args[0].offset: byte 4096, but the arena has 4096 bytes",
    );
    refused(
        |m| m.targets[0].plans[0].logits.offset = 4000,
        "targets[0].plans[0].logits: 4 rows of 8 at byte 4000 do not lie in an arena of 4096 bytes",
    );
    refused(
        |m| m.targets[0].plans[0].logits.offset = usize::MAX - 3,
        &format!(
            "targets[0].plans[0].logits: 4 rows of 8 at byte {} do not lie in an arena of 4096 bytes",
            usize::MAX - 3,
        ),
    );
    refused(|m| m.targets[0].plans[0].logits.offset = 2, "targets[0].plans[0].logits.offset: 2 is not a multiple of 4");
    refused(
        |m| m.targets[0].plans[0].logits.stride = 7,
        "targets[0].plans[0].logits.stride: 7 is less than the width, 8",
    );
    let shared = |ranks, width| {
        move |m: &mut Manifest| {
            m.tensor_parallel = ranks;
            let of = Box::new(WeightExpr::Tensor { name: "t".into(), shape: vec![8 * ranks, 4] });
            m.targets[0].weights[1].expr = WeightExpr::Shard { axis: 0, parts: ranks, of };
            m.targets[0].plans[0].logits.width = width;
        }
    };
    let wrong = |width, widths| {
        format!("targets[0].plans[0].logits.width: {width} is neither the vocabulary nor a rank's part of it, {widths}")
    };
    let mut sound = sample();
    shared(2, 4)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    refused(shared(1, 4), &wrong(4, "[8, 8]"));
    refused(shared(3, 2), &wrong(2, "[8, 8]"));
    refused(shared(4, 4), &wrong(4, "[8, 2]"));
    let picks = |m: &mut Manifest, offset, stride| m.targets[0].plans[0].picks = Some(Picks { offset, stride });
    refused(
        |m| picks(m, 4084, 1),
        "targets[0].plans[0].picks: 4 tokens 1 apart at byte 4084 do not lie in an arena of 4096 bytes",
    );
    refused(|m| picks(m, 2, 1), "targets[0].plans[0].picks.offset: 2 is not a multiple of 4");
    refused(|m| picks(m, 0, 0), "targets[0].plans[0].picks.stride: 0 is not between 1 and 1073741824");
    refused(
        |m| m.targets[0].plans[0].arena_bytes = usize::MAX,
        &format!("targets[0].plans[0].arena_bytes: {} bytes is more than {MAX_BYTES}", usize::MAX),
    );
}

#[test]
fn rows_with_a_name() {
    let rows = |name: &str, offset| NamedRows {
        name: name.into(),
        place: Place { offset, width: 4, stride: 4, dtype: DType::BF16 },
    };
    let named = |m: &mut Manifest, of: &[NamedRows]| {
        let with_head = m.targets[0].plans.iter_mut().filter(|plan| plan.kind != PlanKind::Whole);
        with_head.for_each(|plan| plan.hidden = of.to_vec());
    };
    let mut sound = sample();
    named(&mut sound, &[rows("hidden.0", 0)]);
    manifest(&sound, SECTIONS).unwrap();
    refused(
        |m| named(m, &[rows("a b", 0)]),
        "targets[0].plans[0].hidden[0].name: \"a b\" is not a name of 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`",
    );
    refused(
        |m| named(m, &[rows("hidden.0", 4095)]),
        "targets[0].plans[0].hidden[0].place.offset: 4095 is not a multiple of 2",
    );
    refused(
        |m| named(m, &[rows("hidden.0", 4092)]),
        "targets[0].plans[0].hidden[0].place: 4 rows of 4 at byte 4092 do not lie in an arena of 4096 bytes",
    );
    refused(
        |m| m.targets[0].plans[2].hidden = vec![rows("hidden.0", 0)],
        "targets[0].plans[2].hidden[0]: a whole step has no hidden rows",
    );
    refused(
        |m| m.targets[0].plans[1].hidden = vec![rows("hidden.0", 0)],
        "targets[0].plans[1].hidden: other rows than those of the target's first plan with a head",
    );
    let twice = |m: &mut Manifest, layers| {
        m.model.layers = layers;
        named(m, &[rows("hidden.0", 0), rows("hidden.0", 0)]);
    };
    refused(|m| twice(m, 1), "targets[0].plans[0].hidden: 2 rows with a name of 1 layers");
    refused(|m| twice(m, 2), "targets[0].plans[0].hidden[1].name: `hidden.0` appears twice");
}

#[test]
fn weights_that_disagree_with_themselves() {
    refused(
        |m| m.targets[0].weights[0].shape = vec![3, 4],
        "targets[0].weights[0].expr: makes shape [4, 4], but the weight has [3, 4]",
    );
    refused(
        |m| m.targets[0].weights[0].shape = vec![],
        "targets[0].weights[0].shape: [] is not one to 5 sizes of at least 1",
    );
    refused(
        |m| packed(m, &[4, 4], tensor("t", &[4, 4])),
        "targets[0].weights[0].expr: makes what was not unpacked, but the weight is of u4",
    );
    let panels = shown(Layout::Panels { width: 16, group: 2, rows: 16, cols: 16 });
    for bytes in [0, 511, 513, 1 << 40, usize::MAX] {
        refused(
            |m| m.targets[0].weights[0].bytes = bytes,
            &format!("targets[0].weights[0].bytes: {bytes} bytes, but the layout {panels} takes 512"),
        );
    }
    for group in [0, 1, 4] {
        let wrong = Layout::Panels { width: 16, group, rows: 16, cols: 16 };
        refused(
            |m| m.targets[0].weights[0].layout = wrong,
            &format!("targets[0].weights[0].layout: {}, but the target's layout of 4 by 4 is {panels}", shown(wrong)),
        );
    }
    let columns = |bytes| {
        move |m: &mut Manifest| {
            let weight = &mut m.targets[0].weights[0];
            (weight.layout, weight.bytes) = (Layout::Panels { width: 16, group: 1, rows: 16, cols: 4 }, bytes);
        }
    };
    let mut sound = sample();
    columns(128)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    refused(
        columns(512),
        r#"targets[0].weights[0].bytes: 512 bytes, but the layout {"panels":{"width":16,"group":1,"rows":16,"cols":4}} takes 128"#,
    );
    for stride in [0, 3, 4, 17, 1 << 63, usize::MAX] {
        let wrong = Layout::Rows { stride };
        refused(
            |m| m.targets[0].weights[1].layout = wrong,
            &format!(
                "targets[0].weights[1].layout: {}, but the target's layout of 8 by 4 is {}",
                shown(wrong),
                shown(Layout::Rows { stride: 16 })
            ),
        );
    }
    let mut padded = sample();
    padded.targets[0].weights[2].bytes = 64;
    manifest(&padded, SECTIONS).unwrap();
    // The distance to the next row matters only to products, as there is one row.
    let row = |m: &mut Manifest| {
        let weight = &mut m.targets[0].weights[2];
        (weight.shape, weight.layout) = (vec![1, 2], Layout::Rows { stride: 1 << 63 });
    };
    refused(
        row,
        &format!(
            "targets[0].weights[2].layout: {}, but the target's layout of 1 by 2 is {}",
            shown(Layout::Rows { stride: 1 << 63 }),
            shown(Layout::Rows { stride: 16 })
        ),
    );
}

/// Each matrix of a stack has its padding.
#[test]
fn stacks_of_matrices() {
    let stack = |bytes| {
        move |m: &mut Manifest| {
            let weight = &mut m.targets[0].weights[0];
            (weight.shape, weight.bytes) = (vec![3, 4, 4], bytes);
            weight.expr = WeightExpr::Tensor { name: "t".into(), shape: vec![3, 4, 4] };
        }
    };
    let mut sound = sample();
    stack(3 * 512)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    refused(
        stack(512),
        r#"targets[0].weights[0].bytes: 512 bytes, but the layout {"panels":{"width":16,"group":2,"rows":16,"cols":16}} takes 1536"#,
    );
    refused(
        |m| m.targets[0].weights[0].shape = vec![1, 1, 1, 1, 4, 4],
        "targets[0].weights[0].shape: [1, 1, 1, 1, 4, 4] is not one to 5 sizes of at least 1",
    );
}

#[test]
fn numbers_that_nobody_can_add_up() {
    let launch = |edit: fn(&mut Launch)| {
        move |m: &mut Manifest| {
            let launches = &mut m.targets[0].plans[0].launches;
            launches.push(launches[0].clone());
            edit(&mut launches[0]);
        }
    };
    let says = |field| format!("targets[0].plans[0].launches: their {field} add up to more than a number holds");
    refused(launch(|launch| launch.bytes = u64::MAX), &says("bytes"));
    refused(launch(|launch| launch.flops = u64::MAX), &says("flops"));
    refused(
        |m| m.targets[0].variants[0].kernels[0].resources.as_mut().unwrap().sgpr_spills = usize::MAX,
        &format!("targets[0].variants[0].kernels[0].resources.sgpr_spills: {} is more than 1073741824", usize::MAX),
    );
}

fn tensor(name: &str, shape: &[usize]) -> WeightExpr {
    WeightExpr::Tensor { name: name.into(), shape: shape.to_vec() }
}

fn unpack(to: DType, axis: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Unpack { from: DType::I32, to, axis, len, order: Order::Awq, of: Box::new(of) }
}

/// Makes the first weight one of 4 bits an element.
fn packed(m: &mut Manifest, shape: &[usize], expr: WeightExpr) {
    let weight = &mut m.targets[0].weights[0];
    (weight.dtype, weight.shape, weight.expr) = (DType::U4, shape.to_vec(), expr);
    weight.layout = Layout::Panels { width: 16, group: 8, rows: 16, cols: 16 };
    weight.bytes = 16 * 16 / 2;
}

/// Codes as checkpoints store them: in words, transposed, shifted, with further tensors.
#[test]
fn codes_as_they_are_stored() {
    let words = || tensor("t", &[4, 2]);
    let codes = || unpack(DType::U4, 1, 15, words());
    let sound = |shape: &[usize], expr: WeightExpr| {
        let mut edited = sample();
        packed(&mut edited, shape, expr);
        manifest(&edited, SECTIONS).unwrap();
    };
    let wrong = |expr: WeightExpr, says: &str| {
        refused(|m| packed(m, &[15, 4], expr), &format!("targets[0].weights[0].expr{says}"));
    };
    let transpose = |of| WeightExpr::Transpose { of: Box::new(of) };
    let shift = |by, to, of| WeightExpr::Shift { by, to, of: Box::new(of) };
    let view = |shape: &[usize], of| WeightExpr::View { shape: shape.to_vec(), of: Box::new(of) };
    let expect = |is, told, of| WeightExpr::Expect { is, told: Box::new(told), of: Box::new(of) };
    sound(&[4, 15], codes());
    sound(&[15, 4], transpose(codes()));
    sound(&[4, 15], unpack(DType::U4, 1, 15, view(&[4, 2], tensor("t", &[8]))));
    sound(&[1, 1], unpack(DType::U4, 1, 1, view(&[1, 1], tensor("t", &[]))));
    sound(&[4, 15], shift(8, DType::U4, shift(-8, DType::I4, codes())));
    sound(&[4, 15], expect(Fact::Groups(2), tensor("g_idx", &[15]), codes()));
    wrong(codes(), ": makes shape [4, 15], but the weight has [15, 4]");
    wrong(transpose(tensor("t", &[4, 15])), ": makes what was not unpacked, but the weight is of u4");
    wrong(transpose(tensor("t", &[15])), ".transpose: [15] is no matrix");
    wrong(transpose(tensor("t", &[4, 5, 3])), ": makes shape [4, 3, 5], but the weight has [15, 4]");
    wrong(unpack(DType::U4, 1, 15, codes()), ".unpack.of: codes are made of no others");
    wrong(unpack(DType::U8, 1, 8, words()), ".unpack: i32 is not made of u8 in the order awq");
    wrong(unpack(DType::E8M0, 1, 8, words()), ".unpack: i32 is not made of e8m0 in the order awq");
    wrong(unpack(DType::U4, 2, 15, words()), ".unpack.axis: index 2, but there are 2");
    wrong(unpack(DType::U4, 0, 32, tensor("t", &[4, 2, 2])), ".unpack.axis: 0 is not one of the last two");
    for len in [0, 8, 17, usize::MAX] {
        let says = format!(".unpack.len: {len} codes of 4 bits do not lie in axis 1 of [4, 2]");
        wrong(unpack(DType::U4, 1, len, words()), &says);
    }
    wrong(view(&[60], codes()), ".view.of: only a tensor as it is stored has another shape");
    wrong(view(&[15, 5], tensor("t", &[15, 4])), ".view.shape: [15, 5] has not the numbers of [15, 4]");
    wrong(shift(1, DType::U4, codes()), ".shift: u4 plus 1 does not become u4");
    wrong(shift(1, DType::U8, words()), ".shift: what was not unpacked plus 1 does not become u8");
    wrong(transpose(shift(-8, DType::I4, codes())), ": makes i4, but the weight is of u4");
    wrong(WeightExpr::Offset { by: 1.0, of: Box::new(codes()) }, ".offset: codes have no offset");
    let both = vec![codes(), tensor("u", &[4, 15])];
    wrong(WeightExpr::Concat { axis: 0, parts: both }, ".concat.parts[1]: what was not unpacked does not join u4");
    let floats = WeightExpr::Unpack {
        from: DType::I32,
        to: DType::F4E2M1,
        axis: 0,
        len: 8,
        order: Order::Plain,
        of: Box::new(tensor("t", &[1])),
    };
    wrong(expect(Fact::All(8), floats, codes()), ".expect.told: these are no integers");
    let scaled = |block, scale: &[usize], zero: Option<WeightExpr>| WeightExpr::Scaled {
        block,
        scale: Box::new(tensor("s", scale)),
        zero: zero.map(Box::new),
        of: Box::new(codes()),
    };
    sound(&[4, 15], scaled([1, 4], &[4, 4], None));
    sound(&[4, 15], scaled([3, 15], &[2, 1], Some(tensor("z", &[2, 1]))));
    wrong(scaled([1, 0], &[4, 4], None), ".scaled.block: blocks of [1, 0]");
    wrong(scaled([1, 4], &[4, 3], None), ".scaled.scale: [4, 3], but blocks of [1, 4] in [4, 15] are [4, 4]");
    let short = Some(tensor("z", &[1, 4]));
    wrong(scaled([1, 4], &[4, 4], short), ".scaled.zero: [1, 4], but blocks of [1, 4] in [4, 15] are [4, 4]");
    wrong(expect(Fact::Groups(0), words(), codes()), ".expect.is: groups of nothing");
    wrong(expect(Fact::All(8), tensor("", &[1]), codes()), ".expect.told: a tensor without a name");
}

/// Experts: a tensor each, or one of all; each second row; an axis that is padded for ranks.
#[test]
fn stacks_of_tensors() {
    let whole = |start, rows| Some(Whole { name: "all".into(), start, rows });
    let stack = |name: &str, count, shape: &[usize], whole| WeightExpr::Stack {
        name: name.into(),
        count,
        shape: shape.to_vec(),
        whole,
    };
    let every = |axis, step, start, of| WeightExpr::Every { axis, step, start, of: Box::new(of) };
    let pad = |axis, len, of| WeightExpr::Pad { axis, len, of: Box::new(of) };
    let view = |shape: &[usize], of| WeightExpr::View { shape: shape.to_vec(), of: Box::new(of) };
    let transpose = |of| WeightExpr::Transpose { of: Box::new(of) };
    let four_bits = |of: WeightExpr| unpack(DType::U4, 1, 8, of);
    let sound = |expr: WeightExpr| {
        let mut edited = sample();
        packed(&mut edited, &[4, 8], expr);
        manifest(&edited, SECTIONS).unwrap();
    };
    let wrong = |expr: WeightExpr, says: &str| {
        refused(|m| packed(m, &[4, 8], expr), &format!("targets[0].weights[0].expr{says}"));
    };
    sound(four_bits(stack("t.*.w", 4, &[1], None)));
    sound(four_bits(view(&[4, 1], stack("t.*.w", 4, &[1, 1], None))));
    sound(four_bits(stack("t.*.w", 4, &[1], whole(2, 3))));
    sound(every(0, 3, 1, four_bits(tensor("t", &[11, 1]))));
    sound(transpose(every(1, 2, 1, unpack(DType::U4, 0, 8, tensor("t", &[1, 9])))));
    sound(pad(0, 4, four_bits(tensor("t", &[3, 1]))));
    for name in ["t", "t.*.*", ""] {
        let says = format!(".unpack.of.stack.name: {name:?} has not one star in the place of a number");
        wrong(four_bits(stack(name, 4, &[1], None)), &says);
    }
    for count in [0, usize::MAX] {
        let says = format!(".unpack.of.stack.count: {count} is not one to 8192");
        wrong(four_bits(stack("*", count, &[1], None)), &says);
    }
    wrong(stack("*", 4, &[], None), ".stack: [4] is not one to 5 sizes of at least 1");
    wrong(stack("*", 4, &[0], None), ".stack: [4, 0] is not one to 5 sizes of at least 1");
    for (start, rows) in [(3, 3), (usize::MAX, 3), (0, 1 << 60)] {
        let says = format!(".unpack.of.stack.whole: 1 rows from {start} on are not to be had of {rows}");
        wrong(four_bits(stack("*", 4, &[1], whole(start, rows))), &says);
    }
    let says = ".unpack.of.view.of: only a tensor as it is stored has another shape";
    wrong(four_bits(view(&[4, 1], stack("*", 4, &[1, 1], whole(0, 1)))), says);
    wrong(four_bits(view(&[4, 1], stack("*", 2, &[2, 1], None))), says);
    let codes = || four_bits(tensor("t", &[9, 1]));
    for (step, start) in [(0, 0), (2, 2), (20, 9)] {
        let says = format!(".every: each place that is {start} more than a multiple of {step} is not to be had of 9");
        wrong(every(0, step, start, codes()), &says);
    }
    wrong(every(2, 2, 0, codes()), ".every.axis: index 2, but there are 2");
    wrong(every(1, 2, 0, codes()), ".every.axis: several of its places are in a word");
    wrong(every(0, 2, 0, transpose(codes())), ".every.axis: several of its places are in a word");
    wrong(four_bits(every(1, 2, 0, tensor("t", &[4, 2]))), ".unpack.axis: places of it were left out");
    wrong(pad(0, 8, codes()), ".pad.len: 8, but there are 9 already");
    let says = format!(".pad: [{}, 8] is not one to 5 sizes of at least 1", usize::MAX);
    wrong(pad(0, usize::MAX, codes()), &says);
}

#[test]
fn expressions_that_do_not_fit() {
    let tensor = |shape: &[usize]| WeightExpr::Tensor { name: "t".into(), shape: shape.to_vec() };
    let concat = |axis, parts: Vec<WeightExpr>| {
        move |m: &mut Manifest| m.targets[0].weights[1].expr = WeightExpr::Concat { axis, parts }
    };
    refused(concat(0, vec![]), "targets[0].weights[1].expr: concat of nothing");
    refused(
        concat(2, vec![tensor(&[8, 4])]),
        "targets[0].weights[1].expr.concat.parts[0].axis: index 2, but there are 2",
    );
    refused(
        concat(0, vec![tensor(&[4, 4]), tensor(&[4, 3])]),
        "targets[0].weights[1].expr.concat.parts[1]: shape [4, 3] does not join [4, 4] along axis 0",
    );
    refused(
        concat(0, vec![tensor(&[usize::MAX, 4])]),
        &format!("targets[0].weights[1].expr.concat.parts[0]: [{}, 4] is not one to 5 sizes of at least 1", usize::MAX,),
    );
    let slice = |start, len| {
        move |m: &mut Manifest| {
            let of = Box::new(WeightExpr::Tensor { name: "t".into(), shape: vec![10, 4] });
            m.targets[0].weights[1].expr = WeightExpr::Slice { axis: 0, start, len, of };
        }
    };
    refused(slice(3, 8), "targets[0].weights[1].expr.slice: 8 from 3 on do not lie in axis 0 of [10, 4]");
    refused(
        slice(usize::MAX, 8),
        &format!("targets[0].weights[1].expr.slice: 8 from {} on do not lie in axis 0 of [10, 4]", usize::MAX),
    );
    let mut sound = sample();
    slice(2, 8)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
}

#[test]
fn targets_that_cannot_run() {
    refused(|m| m.targets.clear(), "targets: an artifact without a target has no code");
    refused(|m| m.targets[0].variants.clear(), "targets[0].variants: a target without code");
    refused(
        |m| drop(m.targets[0].plans.remove(1)),
        "targets[0].plans: no plan of kind `any`, which every target needs",
    );
    refused(|m| drop(m.targets[0].plans.pop()), "targets[0].plans: no plan of kind `whole`, which an engine needs");
    let whole = |change: fn(&mut Plan)| move |m: &mut Manifest| change(&mut m.targets[0].plans[2]);
    refused(
        whole(|plan| plan.body = 0),
        "targets[0].plans[2].body: launch 0, but a whole step has no head: its body is 1 launches",
    );
    refused(
        whole(|plan| plan.attention = Attention::Caller),
        "targets[0].plans[2].attention: a whole step leaves nothing to its caller",
    );
    refused(
        whole(|plan| plan.launches[0].args[0] = Arg::Hidden),
        "targets[0].plans[2].launches[0].args[0]: a whole step has no hidden rows",
    );
    refused(
        |m| drop(m.targets[0].variants[1].kernels.pop()),
        "targets[0].variants[1].kernels: 1 kernels, but the target has 2",
    );
    refused(
        |m| m.targets[0].variants[1].name = "x86-64-v4".into(),
        "targets[0].variants[1]: name: `x86-64-v4` appears twice",
    );
    refused(
        |m| m.targets[0].variants[0].kernels[0].tasks = Tasks::Tokens { per: 0, times: 1 },
        "targets[0].variants[0].kernels[0].tasks.per: 0 is not between 1 and 1073741824",
    );
    refused(|m| m.targets[0].kernels[1].symbol = "k0".into(), "targets[0].kernels[1].symbol: `k0` appears twice");
    refused(
        |m| m.targets[0].variants[1].kernels[0].rate = 0,
        "targets[0].variants[1].kernels[0].rate: operations that take no time",
    );
    refused(
        |m| m.targets[0].variants[1].kernels[0].together = 0,
        "targets[0].variants[1].kernels[0].together: a launch of no work-groups",
    );
    refused(
        |m| m.targets[0].variants[1].kernels[0].threads = 1025,
        "targets[0].variants[1].kernels[0].threads: 1025 work-items are more than a work-group's 1024",
    );
    refused(
        |m| m.targets[0].variants[1].kernels[1].workspace = usize::MAX,
        &format!("targets[0].variants[1].kernels[1].workspace: {} bytes is more than {MAX_BYTES}", usize::MAX),
    );
    let module = |cubin| {
        move |m: &mut Manifest| {
            let ptx = Extent { start: 0, bytes: 64 };
            m.targets[0].variants[0].kernels[1].module = Some(Module { ptx, cubin });
        }
    };
    let mut sound = sample();
    module(Some(Extent { start: 64, bytes: 36 }))(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    refused(
        module(Some(Extent { start: 64, bytes: 37 })),
        "targets[0].variants[0].kernels[1].module.cubin: 37 bytes at byte 64 do not lie in a section of 100 bytes",
    );
    refused(|m| m.targets[0].plans[0].tokens = 0, "targets[0].plans[0].tokens: 0 is not between 1 and 65536");
    refused(
        |m| m.targets[0].plans[2].rows = 1 << 30,
        "targets[0].plans[2].rows: 1073741824 is not between 1 and 65536",
    );
}

/// Names become parts of paths: of extracted code, of dumps, of packed weights.
#[test]
fn names_that_would_leave_their_folder() {
    let long = "n".repeat(MAX_NAME + 1);
    let wrong = ["", ".", "..", "/dev/shm/victim", "../escaped", "a/b", "a\\b", "a\0b", "a b", "é", "\x1b[2J", &long];
    for name in wrong {
        let says = |field: &str| {
            let start: String = name.chars().take(MAX_NAME).collect();
            format!("{field}: {start:?} is not a name of 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`")
        };
        refused(|m| m.targets[0].name = name.into(), &says("targets[0].name"));
        refused(|m| m.targets[0].variants[1].name = name.into(), &says("targets[0].variants[1].name"));
        refused(|m| m.targets[0].kernels[1].symbol = name.into(), &says("targets[0].kernels[1].symbol"));
    }
    let mut sound = sample();
    (sound.targets[0].name, sound.targets[0].kernels[0].symbol) = (".a-b_C.9".into(), "n".repeat(MAX_NAME));
    manifest(&sound, SECTIONS).unwrap();
}

/// Edits the pages of the sample.
#[track_caller]
fn refused_pages(edit: impl FnOnce(&mut Paged), message: &str) {
    let edit = |m: &mut Manifest| match &mut m.targets[0].groups[0] {
        StateGroup::Paged(pages) => edit(pages),
        StateGroup::Slots(_) => unreachable!("the sample's first group"),
    };
    refused(edit, &format!("targets[0].groups[0].paged.{message}"));
}

#[test]
fn states_without_a_layer_or_a_group() {
    refused(|m| m.targets[0].states[1].layer = 1, "targets[0].states[1].layer: index 1, but there are 1");
    refused(|m| m.targets[0].states[1].group = 2, "targets[0].states[1].group: index 2, but there are 2");
    refused(|m| m.targets[0].states[1].group = 0, "targets[0].groups[1]: no state is of this group");
    let many = |m: &mut Manifest| m.targets[0].states = vec![State { layer: 0, group: 0 }; 1 << 15];
    refused(many, "targets[0].states: 32768 are more than 16384");
    refused(
        |m| m.targets[0].groups[1] = StateGroup::Slots(Slots { bytes: 1 << 60, each: 1 }),
        "targets[0].groups[1].slots.bytes: 1152921504606846976 bytes is more than 281474976710656",
    );
}

#[test]
fn pages_are_what_their_streams_take() {
    refused_pages(
        |pages| pages.streams[1].at.start = 511,
        "streams[1].at.start: 511, but the streams before it end at 512",
    );
    refused_pages(
        |pages| pages.streams[1].at.bytes = 511,
        "streams[1].at.bytes: 511, but 16 tokens of 1 heads of 2 take 512 bytes",
    );
    refused_pages(|pages| pages.block_bytes = 1025, "block_bytes: 1025, but the streams take 1024");
    refused_pages(
        |pages| pages.streams[0].heads = 1 << 30,
        "streams[0].at.bytes: 512, but 16 tokens of 1073741824 heads of 2 take more than a page may, 4294967296,",
    );
    let heads = format!("streams[0].heads: {} is not between 1 and 1073741824", usize::MAX);
    refused_pages(|pages| pages.streams[0].heads = usize::MAX, &heads);
    refused_pages(|pages| pages.streams.clear(), "streams: 0 are not between 1 and 8");
    let window = format!("window: {} keys are more than 1073741824", usize::MAX);
    refused_pages(|pages| pages.window = usize::MAX, &window);
    refused_pages(|pages| pages.every = 3, "every: 3 is not a power of two between 1 and 1024");
    let both = |pages: &mut Paged| (pages.window, pages.every) = (8, 4);
    refused(
        |m| match &mut m.targets[0].groups[0] {
            StateGroup::Paged(pages) => both(pages),
            StateGroup::Slots(_) => unreachable!("the sample's first group"),
        },
        "targets[0].groups[0].paged: a window of 8 keys, but an entry is of 4 tokens",
    );
    refused_pages(
        |pages| pages.streams[0].name = "../k".into(),
        r#"streams[0].name: "../k" is not a name of 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`"#,
    );
}

/// Keys and values need not be equally wide, and values may be a part of keys.
#[test]
fn streams_of_all_kinds() {
    let mut sound = sample();
    let StateGroup::Paged(pages) = &mut sound.targets[0].groups[0] else { unreachable!("the sample's first group") };
    assert_eq!(pages.values(), 0..1024, "of the prefix and of `v`");
    (pages.streams[0].width, pages.streams[0].at.bytes, pages.block_bytes) = (17, 1024, 1536);
    pages.streams[1].at.start = 1024;
    pages.streams[2] = PageStream { width: 16, layout: StreamLayout::Prefix { of: 0 }, ..pages.streams[0].clone() };
    manifest(&sound, SECTIONS).unwrap();
    let says = "streams[2]: is no part of the rows of `k`: same place, type and heads, at most 2";
    refused_pages(|pages| pages.streams[2].width = 3, says);
    refused_pages(|pages| pages.streams[2].at.start = 1, says);
    refused_pages(|pages| pages.streams[2].heads = 2, says);
    refused_pages(
        |pages| pages.streams[2].layout = StreamLayout::Prefix { of: 2 },
        "streams[2].layout.prefix.of: index 2, but there are 2",
    );
    refused_pages(
        |pages| pages.streams[2].layout = StreamLayout::Prefix { of: 1 },
        "streams[2]: is no part of the rows of `v`: same place, type and heads, at most 2",
    );
}

#[test]
fn models_of_absurd_size() {
    refused(|m| m.model.layers = 1 << 40, "model.layers: 1099511627776 is not between 1 and 4096");
    refused(|m| m.model.vocab = 0, "model.vocab: 0 is not between 1 and 1073741824");
    refused(|m| m.model.max_positions = 1 << 40, "model.max_positions: 1099511627776 is not between 1 and 1073741824");
}

/// What emitters cannot make, whatever the states and the weights.
#[test]
fn layouts_that_nothing_is_made_for() {
    type Field = fn(&mut DataLayout) -> &mut usize;
    let fields: [(&str, Field, usize); 7] = [
        ("row", |l| &mut l.row, 1),
        ("rows", |l| &mut l.rows, 1),
        ("panel", |l| &mut l.panel, 1),
        ("align", |l| &mut l.align, 1),
        ("group_bytes", |l| &mut l.group_bytes, 4),
        ("block_tokens", |l| &mut l.block_tokens, 1),
        ("alias", |l| &mut l.alias, 16),
    ];
    for (name, field, least) in fields {
        let most = if name == "alias" { 1 << 30 } else { 1024 };
        for value in [0, 3, 7, 15, 17, 33, 2 * most, 1 << 62, usize::MAX] {
            refused(
                |m| *field(&mut m.targets[0].layout) = value,
                &format!("targets[0].layout.{name}: {value} is not a power of two between {least} and {most}"),
            );
        }
    }
    // Each is sound alone, but not with the rest.
    let clash = |edit: fn(&mut DataLayout), says: &str| refused(|m| edit(&mut m.targets[0].layout), says);
    let panels = |width, group, side| shown(Layout::Panels { width, group, rows: side, cols: side });
    let have = panels(16, 2, 16);
    let other =
        |want: &str| format!("targets[0].weights[0].layout: {have}, but the target's layout of 4 by 4 is {want}");
    clash(|l| l.row = 32, &other(&panels(16, 2, 32)));
    clash(|l| l.panel = 8, &other(&panels(8, 2, 16)));
    clash(|l| l.panel = 32, &other("one that no buffer holds"));
    clash(|l| l.group_bytes = 8, &other(&panels(16, 4, 16)));
    clash(|l| l.group_bytes = 1024, &other("one that no buffer holds"));
    let pages = |says: &str| format!("targets[0].groups[0].paged.streams[0]{says}");
    let panels = ": pages of 8 tokens are not whole panels of layout.panel, 16";
    clash(|l| l.block_tokens = 8, &pages(panels));
    clash(|l| l.block_tokens = 32, &pages(".at.bytes: 512, but 32 tokens of 1 heads of 2 take 1024 bytes"));
}

#[test]
fn hidden_rows_and_shares() {
    refused(|m| m.targets[0].hidden.stride = 3, "targets[0].hidden.stride: 3 is less than the width, 4");
    refused(|m| m.targets[0].hidden.bytes = 383, "targets[0].hidden.bytes: 383 bytes do not hold 32 rows of 6");
    refused(|m| m.tensor_parallel = 0, "tensor_parallel: 0 is not between 1 and 64");
    refused(|m| m.tensor_parallel = 1 << 30, "tensor_parallel: 1073741824 is not between 1 and 64");
    refused(|m| m.tensor_parallel = 64, "targets[0].weights: cut for 1 ranks, but there are 64");
    let shard = |parts| {
        move |m: &mut Manifest| {
            m.tensor_parallel = 2;
            let of = Box::new(WeightExpr::Tensor { name: "t".into(), shape: vec![16, 4] });
            m.targets[0].weights[1].expr = WeightExpr::Shard { axis: 0, parts, of };
        }
    };
    refused(shard(3), "targets[0].weights[1].expr.shard.parts: 3 equal parts are not to be had of axis 0 of [16, 4]");
    refused(shard(4), "targets[0].weights[1].expr: makes shape [4, 4], but the weight has [8, 4]");
    let mut sound = sample();
    shard(2)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    let ranks = |ranks| {
        move |m: &mut Manifest| {
            shard(2)(m);
            m.tensor_parallel = ranks;
        }
    };
    refused(ranks(1), "targets[0].weights[1].expr: a shard of 2 parts for 1 ranks");
    refused(ranks(3), "targets[0].weights[1].expr: a shard of 2 parts for 3 ranks");
    refused(ranks(4), "targets[0].weights: cut for 2 ranks, but there are 4");
    let experts = |experts| {
        move |m: &mut Manifest| {
            shard(2)(m);
            m.expert_parallel = experts;
        }
    };
    let neither = "is neither 1 nor tensor_parallel, 2, nor the ranks of experts alone";
    for count in [0, 3, 65] {
        refused(experts(count), &format!("expert_parallel: {count} {neither}"));
    }
    let mut sound = sample();
    experts(2)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    sound.tensor_parallel = 1;
    manifest(&sound, SECTIONS).unwrap();
    refused(|m| m.expert_parallel = 2, "targets[0].weights: cut for 1 ranks, but there are 2");
}

#[test]
fn calls_that_nobody_can_answer() {
    let value = Place { offset: 256, width: 5, stride: 8, dtype: DType::BF16 };
    let reduce = |before, value| {
        move |m: &mut Manifest| {
            m.targets[0].plans[1].calls = vec![Call { before, work: Work::AllReduce { value, added: None } }];
        }
    };
    let mut sound = sample();
    reduce(1, value)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    refused(|m| m.targets[0].plans[1].body = 2, "targets[0].plans[1].body: launch 2, but there are 1");
    refused(
        reduce(2, value),
        "targets[0].plans[1].calls[0].before: 2 is not between 0, where the call before it is, and the body's end, 1",
    );
    refused(
        reduce(0, Place { offset: 4096 - 511, ..value }),
        "targets[0].plans[1].calls[0].work.all_reduce.value.offset: 3585 is not a multiple of 2",
    );
    refused(
        reduce(0, Place { offset: 4096 - 510, ..value }),
        "targets[0].plans[1].calls[0].work.all_reduce.value: 32 rows of 8 at byte 3586 do not lie in an arena of 4096 bytes",
    );
    refused(
        reduce(0, Place { stride: 4, ..value }),
        "targets[0].plans[1].calls[0].work.all_reduce.value.stride: 4 is less than the width, 5",
    );
    let attend = |layer, heads, attention| {
        move |m: &mut Manifest| {
            let [q, k, v, out] = [value; 4];
            let work = Work::Attention { layer, heads, q, k, v, out, scale: 1.0, window: 0 };
            m.targets[0].plans.retain(|plan| plan.kind != PlanKind::Whole || attention == Attention::Own);
            m.targets[0].plans.iter_mut().for_each(|plan| plan.attention = attention);
            m.targets[0].plans[1].calls = vec![Call { before: 0, work }];
        }
    };
    let mut sound = sample();
    attend(0, 5, Attention::Caller)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    refused(
        attend(0, 2, Attention::Caller),
        "targets[0].plans[1].calls[0].work.attention.k.width: 5 is not a multiple of the heads, 2",
    );
    refused(
        attend(1, 1, Attention::Caller),
        "targets[0].plans[1].calls[0].work.attention.layer: index 1, but there are 1",
    );
    refused(attend(0, 1, Attention::Own), "targets[0].plans[1].calls[0].work.attention: in a plan that attends itself");
    refused(
        |m| m.targets[0].plans[0].attention = Attention::Caller,
        "targets[0].plans: no plan of kind `any`, which every target needs",
    );
}

/// Code follows the pointers that it takes, whatever there are.
#[test]
fn launches_have_what_their_kernels_take() {
    let args = |edit: fn(&mut Vec<Arg>)| move |m: &mut Manifest| edit(&mut m.targets[0].plans[0].launches[0].args);
    let at = "targets[0].plans[0].launches[0].args";
    refused(args(|args| _ = args.pop()), &format!("{at}: 4 arguments, but the kernel takes 5"));
    refused(args(|args| args.push(Arg::Hidden)), &format!("{at}: 6 arguments, but the kernel takes 5"));
    refused(
        args(|args| args[2] = Arg::Batch { state: 0 }),
        &format!("{at}[2]: {{\"batch\":{{\"state\":0}}}}, but the kernel takes cache<bf16, 1, 2>"),
    );
    refused(
        args(|args| args.swap(2, 3)),
        &format!("{at}[2]: {{\"state\":{{\"state\":0,\"stream\":1}}}}, but the kernel takes cache<bf16, 1, 2>"),
    );
    refused(
        args(|args| args[0] = Arg::Weight { index: 2 }),
        &format!("{at}[0]: {{\"weight\":{{\"index\":2}}}}, but the kernel takes bf16[T, 4]"),
    );
    refused(
        args(|args| args[0] = Arg::Input { which: Input::Ids }),
        &format!("{at}[0]: {{\"input\":{{\"which\":\"ids\"}}}}, but the kernel takes bf16[T, 4]"),
    );
    refused(
        |m| {
            m.targets[0].states.push(State { layer: 0, group: 0 });
            m.targets[0].plans[0].launches[0].args[3] = Arg::State { state: 2, stream: 1 };
        },
        &format!("{at}[3].state: keys and values of two states"),
    );
    refused(
        |m| m.targets[0].kernels[1].body = "graph @k() {}".into(),
        "targets[0].kernels[1].body: no graph with operands and results",
    );
}
