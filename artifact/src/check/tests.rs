use super::*;
use crate::file::tests::sample;

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
        |m| m.targets[0].plans[0].launches[0].args[2] = Arg::CacheV { layer: 1 },
        "targets[0].plans[0].launches[0].args[2].layer: index 1, but there are 1",
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
fn weights_that_disagree_with_themselves() {
    refused(
        |m| m.targets[0].weights[0].shape = vec![3, 4],
        "targets[0].weights[0].expr: makes shape [4, 4], but the weight has [3, 4]",
    );
    refused(
        |m| m.targets[0].weights[0].shape = vec![],
        "targets[0].weights[0].shape: [] is not one or two sizes of at least 1",
    );
    refused(
        |m| m.targets[0].weights[0].dtype = DType::I32,
        "targets[0].weights[0].dtype: I32 is not a type for weights: f32, f16, bf16",
    );
    refused(
        |m| m.targets[0].weights[0].bytes = 127,
        "targets[0].weights[0].bytes: 127 bytes do not hold the layout Panels { width: 16, group: 2, rows: 16, cols: 4 }",
    );
    refused(
        |m| m.targets[0].weights[0].layout = Layout::Panels { width: 16, group: 0, rows: 16, cols: 4 },
        "targets[0].weights[0].layout: 16 by 4 is not a whole number of panels of 16 rows and groups of 0 columns that hold 4 by 4",
    );
    refused(
        |m| m.targets[0].weights[1].layout = Layout::Rows { stride: 3 },
        "targets[0].weights[1].layout.stride: 3 is less than the 4 columns",
    );
    refused(
        |m| m.targets[0].weights[1].layout = Layout::Rows { stride: usize::MAX },
        &format!("targets[0].weights[1].bytes: 64 bytes do not hold the layout Rows {{ stride: {} }}", usize::MAX,),
    );
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
        &format!(
            "targets[0].weights[1].expr.concat.parts[0]: [{}, 4] is not one or two sizes of at least 1",
            usize::MAX,
        ),
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
    refused(|m| m.targets[0].plans[0].tokens = 0, "targets[0].plans[0].tokens: 0 is not between 1 and 1073741824");
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

#[test]
fn caches_and_models_of_absurd_size() {
    refused(
        |m| m.targets[0].cache.block_tokens = 0,
        "targets[0].cache.block_tokens: 0 is not between 1 and 1073741824",
    );
    refused(
        |m| m.targets[0].cache.v_offset = 63,
        "targets[0].cache.v_offset: 63 bytes do not hold 16 tokens of 1 heads",
    );
    refused(
        |m| m.targets[0].cache.block_bytes = 127,
        "targets[0].cache.block_bytes: 63 bytes do not hold 16 tokens of 1 heads",
    );
    refused(
        |m| m.targets[0].cache.v_offset = 129,
        "targets[0].cache.block_bytes: 0 bytes do not hold 16 tokens of 1 heads",
    );
    refused(
        |m| m.targets[0].cache.heads = usize::MAX,
        &format!("targets[0].cache.v_offset: 64 bytes do not hold 16 tokens of {} heads", usize::MAX),
    );
    refused(|m| m.model.vocab = 0, "model.vocab: 0 is not between 1 and 1073741824");
    refused(|m| m.model.max_positions = 1 << 40, "model.max_positions: 1099511627776 is not between 1 and 1073741824");
}

#[test]
fn hidden_rows_and_shares() {
    refused(|m| m.targets[0].hidden.stride = 3, "targets[0].hidden.stride: 3 is less than the width, 4");
    refused(|m| m.targets[0].hidden.bytes = 383, "targets[0].hidden.bytes: 383 bytes do not hold 32 rows of 6");
    refused(|m| m.tensor_parallel = 0, "tensor_parallel: 0 is not between 1 and 1073741824");
    let shard = |parts| {
        move |m: &mut Manifest| {
            let of = Box::new(WeightExpr::Tensor { name: "t".into(), shape: vec![16, 4] });
            m.targets[0].weights[1].expr = WeightExpr::Shard { axis: 0, parts, of };
        }
    };
    refused(shard(3), "targets[0].weights[1].expr.shard.parts: 3 equal parts are not to be had of axis 0 of [16, 4]");
    refused(shard(4), "targets[0].weights[1].expr: makes shape [4, 4], but the weight has [8, 4]");
    let mut sound = sample();
    shard(2)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
}

#[test]
fn calls_that_nobody_can_answer() {
    let value = Place { offset: 256, width: 5, stride: 8, dtype: DType::BF16 };
    let reduce = |before, value| {
        move |m: &mut Manifest| {
            m.targets[0].plans[1].calls = vec![Call { before, work: Work::AllReduce { value } }];
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
    let attend = |layer, attention| {
        move |m: &mut Manifest| {
            let [q, k, v, out] = [value; 4];
            let work = Work::Attention { layer, q, k, v, out, scale: 1.0, window: 0 };
            m.targets[0].plans.retain(|plan| plan.kind != PlanKind::Whole || attention == Attention::Own);
            m.targets[0].plans.iter_mut().for_each(|plan| plan.attention = attention);
            m.targets[0].plans[1].calls = vec![Call { before: 0, work }];
        }
    };
    let mut sound = sample();
    attend(0, Attention::Caller)(&mut sound);
    manifest(&sound, SECTIONS).unwrap();
    refused(
        attend(1, Attention::Caller),
        "targets[0].plans[1].calls[0].work.attention.layer: index 1, but there are 1",
    );
    refused(attend(0, Attention::Own), "targets[0].plans[1].calls[0].work.attention: in a plan that attends itself");
    refused(
        |m| m.targets[0].plans[0].attention = Attention::Caller,
        "targets[0].plans: no plan of kind `any`, which every target needs",
    );
}
