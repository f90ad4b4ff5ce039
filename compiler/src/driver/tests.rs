use std::collections::BTreeSet;

use super::*;
use atomc_artifact::manifest::WeightExpr;
use atomc_artifact::{Expected, Made};

fn config(layers: usize, tied: bool) -> Config {
    let text = json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 160,
        "max_position_embeddings": 512, "tie_word_embeddings": tied,
    });
    Config::parse(&text.to_string(), None).expect("a good configuration")
}

fn options(decode: &[usize]) -> Options {
    let buckets = BucketOptions { decode: decode.to_vec(), each: 1, tokens: 64, rows: 8 };
    Options { buckets, ..Options::default() }
}

fn compiled(layers: usize, tied: bool, decode: &[usize]) -> Compiled {
    compile(&config(layers, tied), &options(decode), &mut |_, _, _| ()).expect("a model that compiles")
}

/// The launches of a plan, one a line.
fn listing(compiled: &Compiled, plan: usize) -> String {
    let target = &compiled.manifest.targets[0];
    let line = |l: &atomc_artifact::manifest::Launch| {
        let args: Vec<String> = l.args.iter().map(|a| argument(compiled, a)).collect();
        format!("{} #{} ({})", target.kernels[l.kernel].symbol, l.segment, args.join(", "))
    };
    target.plans[plan].launches.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn argument(compiled: &Compiled, arg: &atomc_artifact::manifest::Arg) -> String {
    use atomc_artifact::manifest::Arg;
    match *arg {
        Arg::Arena { offset } => format!("@{offset}"),
        Arg::Weight { index } => compiled.manifest.targets[0].weights[index].name.replace("model.layers.0.", ""),
        Arg::State { state, stream } => format!("{}{state}", ["K", "V"][stream]),
        Arg::Batch { .. } => "batch".into(),
        Arg::Hidden => "hidden".into(),
        Arg::Drafted { offset } => format!("drafted{offset}"),
        Arg::Input { which } => format!("{which:?}").to_lowercase(),
    }
}

#[test]
fn launches_of_one_layer() {
    let compiled = compiled(1, true, &[1]);
    let listings = ["decode 1", "any", "whole"].iter().enumerate();
    let listings: Vec<String> = listings.map(|(plan, name)| format!("{name}\n{}", listing(&compiled, plan))).collect();
    insta::assert_snapshot!(listings.join("\n\n"));
}

/// The launches of one layer's plan by family, with the calls where they are due and a bar where
/// the head begins.
fn outline(plan: &Plan, target: &Target) -> String {
    let mut words: Vec<String> = plan.launches.iter().map(|l| target.kernels[l.kernel].family.clone()).collect();
    words.insert(plan.body, "|".into());
    for call in plan.calls.iter().rev() {
        let word = match call.work {
            manifest::Work::Embedding { .. } => "embedding",
            manifest::Work::AllReduce { added: None, .. } => "all_reduce",
            manifest::Work::AllReduce { added: Some(_), .. } => "all_reduce add",
            manifest::Work::AllGather { .. } => "all_gather",
            manifest::Work::HandOn { .. } => "hand_on",
            manifest::Work::Attention { .. } => "caller",
        };
        // The bar stands before the head.
        words.insert(call.before + usize::from(call.before > plan.body), format!("[{word}]"));
    }
    words.join(" ")
}

#[test]
fn callers_work_between_launches() {
    let outlines = |ranks| {
        let attention = vec![Attention::Own, Attention::Caller];
        let options = Options { ranks, attention, ..options(&[1]) };
        let compiled = compile(&config(1, true), &options, &mut |_, _, _| ()).expect("a model that compiles");
        assert_eq!(compiled.manifest.tensor_parallel, ranks);
        let target = &compiled.manifest.targets[0];
        let [manifest::StateGroup::Paged(pages)] = &target.groups[..] else { panic!("one group of pages") };
        assert_eq!(pages.streams[0].heads, 2 / ranks);
        target.plans.iter().map(|plan| outline(plan, target)).collect::<Vec<_>>().join("\n")
    };
    // Embedding, table of the rotary embedding, the layer, the head.
    insta::assert_snapshot!(outlines(1), @"
    rows [embedding] matvec rows attend_one matvec matvec matvec | matvec rows
    rows [embedding] rows matmul rows rows attend_many matmul rows matmul matmul | rows matmul rows
    rows [embedding] rows matmul rows rows attend_many rows rows matmul rows matmul matmul rows matmul rows |
    rows [embedding] matvec rows rows [caller] matvec matvec matvec | matvec rows
    rows [embedding] rows matmul rows rows [caller] matmul rows matmul matmul | rows matmul rows
    ");
    insta::assert_snapshot!(outlines(2), @"
    rows [embedding] matvec rows attend_one matvec [all_reduce add] matvec matvec [all_reduce] rows | matvec rows
    rows [embedding] rows matmul rows rows attend_many matmul [all_reduce add] rows matmul matmul [all_reduce] rows | rows matmul rows
    rows [embedding] rows matmul rows rows attend_many matmul [all_reduce add] rows matmul matmul [all_reduce] rows rows matmul rows |
    rows [embedding] matvec rows rows [caller] matvec [all_reduce add] matvec matvec [all_reduce] rows | matvec rows
    rows [embedding] rows matmul rows rows [caller] matmul [all_reduce add] rows matmul matmul [all_reduce] rows | rows matmul rows
    ");
}

#[test]
fn layers_whose_input_cannot_be_had() {
    let fault = |hidden: &[usize]| {
        let options = Options { hidden: hidden.to_vec(), ..options(&[1]) };
        let d = compile(&config(2, true), &options, &mut |_, _, _| ()).expect_err("a fault");
        format!("[{}] {d}", d.code)
    };
    insta::assert_snapshot!(fault(&[0, 2]), @"[config::hidden] --hidden: there is no layer 2: those of the model are 0 to 1");
    insta::assert_snapshot!(fault(&[1, 0, 1]), @"[config::hidden] --hidden: layer 1 is named twice");
}

#[test]
fn parts_that_cannot_be_made() {
    let fault = |ranks, attention: &[Attention]| {
        let options = Options { ranks, attention: attention.to_vec(), ..options(&[1]) };
        let d = compile(&config(1, true), &options, &mut |_, _, _| ()).expect_err("a fault");
        format!("[{}] {d}", d.code)
    };
    let own = [Attention::Own];
    insta::assert_snapshot!(fault(3, &own), @"[config::ranks] --tp: 4 attention heads cannot be shared out among 3 ranks");
    insta::assert_snapshot!(fault(8, &own), @"[config::ranks] --tp: 4 attention heads cannot be shared out among 8 ranks");
    insta::assert_snapshot!(fault(0, &own), @"[config::ranks] --tp: 4 attention heads cannot be shared out among 0 ranks");
    insta::assert_snapshot!(fault(65, &own), @"[config::ranks] --tp: 65 ranks, but 64 are the most that share a model out");
    insta::assert_snapshot!(fault(1, &[Attention::Own, Attention::Own]), @"[driver::attention] `own` is named twice");
    insta::assert_snapshot!(fault(1, &[]), @"[driver::attention] nobody is named to attend");
}

#[test]
fn latent_sizes_that_no_kernel_of_a_gpu_takes() {
    let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/mla-v3"));
    let text = std::fs::read_to_string(dir.join("config.json")).expect("a configuration");
    let made = |field: &str, size: usize, target: &str| {
        let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        config[field] = size.into();
        let config = Config::parse(&config.to_string(), None).expect("a good configuration");
        let options = Options { targets: vec![target.into()], ..options(&[1]) };
        compile(&config, &options, &mut |_, _, _| ()).map(drop).map_err(|fault| fault.to_string())
    };
    for (field, odd, unit) in [("kv_lora_rank", 42, 4), ("v_head_dim", 6, 4), ("qk_nope_head_dim", 5, 2)] {
        for target in ["gfx942", "sm_90a"] {
            let says = format!("config.json: {field}: kernels of {target} take multiples of {unit}, not {odd}");
            assert_eq!(made(field, odd, target), Err(says));
            assert_eq!(made(field, odd.next_multiple_of(unit), target), Ok(()));
        }
    }
    assert_eq!(made("kv_lora_rank", 42, "host"), Ok(()));
}

#[test]
fn caches_that_no_kernel_reads() {
    let make = |target: &str, dtype, attention| {
        let config = Config { dtype, cache: Some(atomc_ir::DType::F8E4M3), ..config(1, true) };
        let options = Options { targets: vec![target.into()], attention: vec![attention], ..options(&[1]) };
        let made = compile(&config, &options, &mut |_, _, _| ());
        made.map(drop).map_err(|d| format!("[{}] {d}; {}", d.code, d.help.as_deref().unwrap_or_default()))
    };
    let (f32, bf16) = (atomc_ir::DType::F32, atomc_ir::DType::BF16);
    for target in ["gfx942", "gfx1201", "sm_90a"] {
        let says = format!(
            "[config::cache] --cache-dtype: kernels of {target} do not attend in f32 over a cache of f8e4m3; \
             --cache-dtype auto, or --dtype bf16 or f16"
        );
        assert_eq!(make(target, f32, Attention::Own), Err(says));
    }
    // If the caller attends, nothing reads the cache, and the host reads every one.
    for (target, dtype, attention) in
        [("gfx942", f32, Attention::Caller), ("gfx942", bf16, Attention::Own), ("host", f32, Attention::Own)]
    {
        assert_eq!(make(target, dtype, attention), Ok(()));
    }
}

#[test]
fn layers_share_kernels() {
    let kernels = |layers| compiled(layers, true, &[1]).manifest.targets[0].kernels.len();
    assert_eq!(kernels(2), kernels(9));
}

#[test]
fn the_manifest_says_what_kernels_compute() {
    let compiled = compiled(1, true, &[1]);
    let target = &compiled.manifest.targets[0];
    assert_eq!(target.kernels.len(), target.variants[0].kernels.len());
    for kernel in &target.kernels {
        let body = atomc_ir::parse(&kernel.body).expect("a body that parses");
        assert_eq!(body.print(), kernel.body);
        body.verify().expect("a sound body");
    }
}

#[test]
fn kernels_and_their_symbols_say_which_schedule_made_them() {
    let options = Options { targets: vec!["host".into(), "gfx942".into()], ..options(&[1]) };
    let compiled = compile(&config(1, true), &options, &mut |_, _, _| ()).expect("a model that compiles");
    for (target, names) in compiled.manifest.targets.iter().zip([
        ["attend_many", "attend_one", "matmul", "matvec", "rows"],
        ["decode", "gemm_tiled", "gemv", "prefill", "rowwise"],
    ]) {
        for variant in &target.variants {
            let used: BTreeSet<&str> = variant.kernels.iter().map(|kernel| kernel.schedule.as_str()).collect();
            assert_eq!(used.into_iter().collect::<Vec<_>>(), names, "{}", variant.name);
            for (number, (def, kernel)) in target.kernels.iter().zip(&variant.kernels).enumerate() {
                assert!(def.symbol.starts_with(&format!("k{number}_{}", kernel.schedule)), "{}", def.symbol);
            }
        }
    }
    let prepare = compiled.manifest.targets[1].variants[0].prepare.as_ref().expect("a GPU makes a step's inputs");
    assert_eq!(prepare.schedule, "step_inputs");
}

#[test]
fn buckets_share_weights_and_all_but_unrolled_kernels() {
    let (one, three) = (compiled(2, false, &[1]), compiled(2, false, &[1, 2, 4]));
    assert_eq!(one.manifest.targets[0].weights, three.manifest.targets[0].weights);
    let matvecs = |c: &Compiled| {
        let kernels = &c.manifest.targets[0].kernels;
        (kernels.iter().filter(|k| k.family == "matvec").count(), kernels.len())
    };
    let ((few, all), (many, more)) = (matvecs(&one), matvecs(&three));
    assert_eq!((many, more), (3 * few, all + 2 * few));
}

#[test]
fn a_tied_head_is_one_buffer() {
    let embeddings = |tied| {
        let weights = compiled(1, tied, &[1]).manifest.targets.remove(0).weights;
        weights.iter().filter(|w| w.shape == [160, 64]).map(|w| w.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(embeddings(true), ["model.embed_tokens.weight"]);
    let mut untied = embeddings(false);
    untied.sort();
    assert_eq!(untied, ["lm_head.weight", "model.embed_tokens.weight"]);
}

#[test]
fn same_input_same_bytes() {
    let encode = || {
        let Compiled { manifest, code } = compiled(2, true, &[1, 2]);
        atomc_artifact::encode(&manifest, &code).expect("a sound manifest")
    };
    assert!(encode() == encode());
}

#[test]
fn what_shapes_the_artifact_is_in_its_key() {
    let key = |config: &Config, options: &Options| {
        let buckets = atomc_passes::buckets(&options.buckets).expect("good buckets");
        let targets = unique(&options.targets).expect("known targets");
        echo(config, options, &buckets, &targets).expect("no assembler takes part").to_string()
    };
    let (base, plain) = (config(1, true), options(&[1]));
    assert_eq!(key(&base, &plain), key(&config(1, true), &options(&[1])));
    assert_ne!(key(&base, &plain), key(&config(2, true), &plain));
    assert_ne!(key(&base, &plain), key(&base, &options(&[1, 2])));
    assert_ne!(key(&base, &plain), key(&base, &Options { ranks: 2, ..plain.clone() }));
    assert_ne!(key(&base, &plain), key(&base, &Options { attention: vec![Attention::Caller], ..plain.clone() }));
    assert_ne!(key(&base, &plain), key(&Config { context: 64, ..base.clone() }, &plain));
}

#[test]
fn unknown_and_repeated_targets() {
    let fault = |names: &[&str]| {
        let options = Options { targets: names.iter().map(|n| n.to_string()).collect(), ..options(&[1]) };
        let d = compile(&config(1, true), &options, &mut |_, _, _| ()).expect_err("a fault");
        format!("[{}] {d}; {}", d.code, d.help.as_deref().unwrap_or_default())
    };
    insta::assert_snapshot!(fault(&["gfx000"]), @"[target::unknown] unknown target `gfx000`; known targets: host, gfx90a, gfx942, gfx9-4-generic, gfx950, gfx1100, gfx1101, gfx1102, gfx1150, gfx1151, gfx1152, gfx11-generic, gfx1200, gfx1201, gfx12-generic, gfx1250, sm_80, sm_90a, sm_100a");
    insta::assert_snapshot!(fault(&["host", "host"]), @"[target::twice] target `host` is named twice;");
    insta::assert_snapshot!(fault(&[]), @"[target::none] no target is named; --target host");
}

#[test]
fn buckets_that_would_unroll_without_end() {
    let fault = |decode: usize, tokens: usize| {
        let options =
            Options { buckets: BucketOptions { decode: vec![decode], each: 1, tokens, rows: 1 }, ..Options::default() };
        compile(&config(1, true), &options, &mut |_, _, _| ()).expect_err("a fault").to_string()
    };
    insta::assert_snapshot!(fault(257, 64), @"a decode bucket of 257 tokens: 256 is the most");
    insta::assert_snapshot!(fault(1, 65_537), @"a step of 65537 tokens: 65536 is the most");
}

/// A value that is another, of the same kind, for a field of a configuration.
fn another(name: &str, value: &serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match (name, value) {
        ("architectures", _) => json!(["Qwen2ForCausalLM"]),
        ("hidden_act", _) => json!("gelu"),
        ("dtype", _) => json!("float16"),
        ("rope_parameters", _) => json!({ "rope_type": "default", "rope_theta": 500.0 }),
        (_, Value::Bool(is)) => json!(!is),
        (_, Value::Number(n)) => n.as_u64().map_or(json!(0.5), |n| json!(2 * n)),
        (_, Value::Null) => json!(3),
        (_, other) => json!(format!("{other} 2")),
    }
}

/// The key of an artifact determines its bytes: each field of a configuration, and each option,
/// changes the key or nothing. Those that change nothing are named.
#[test]
fn what_changes_an_artifact_changes_its_key() {
    let fields = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": null,
        "dtype": "bfloat16", "eos_token_id": null, "head_dim": 16, "hidden_act": "silu", "hidden_size": 64,
        "initializer_range": 0.02, "intermediate_size": 96, "max_position_embeddings": 512, "mlp_bias": false,
        "num_attention_heads": 4, "num_hidden_layers": 1, "num_key_value_heads": 2, "pad_token_id": null,
        "rms_norm_eps": 1e-5, "rope_parameters": { "rope_theta": 10000.0, "rope_type": "default" },
        "tie_word_embeddings": false, "use_cache": true, "vocab_size": 96,
    });
    let parsed = |fields: &serde_json::Value| Config::parse(&fields.to_string(), None).expect("a good configuration");
    let (config, options) = (parsed(&fields), Options { targets: vec!["gfx1201".into()], ..options(&[]) });
    // What an option changes in the key is seen without the code.
    let key = |config: &Config, options: &Options| {
        let (buckets, targets) = (buckets(&options.buckets).unwrap(), unique(&options.targets).unwrap());
        echo(config, options, &buckets, &targets).unwrap()
    };
    let made = |config: &Config, options: &Options| {
        compile(config, options, &mut |_, _, _| ()).expect("a model that compiles")
    };
    let (known, artifact) = (key(&config, &options), made(&config, &options));
    assert_eq!(artifact.manifest.config, known);
    let mut idle: Vec<String> = vec![];
    let mut check = |what: &str, config: &Config, options: &Options| {
        let producer = artifact.manifest.producer.clone();
        let expected = Expected::Made(Made { producer, config: key(config, options) });
        if key(config, options) != known {
            // If another value is expected, the refusal names the field.
            let refusal = artifact.manifest.expect(&expected).expect_err(what).to_string();
            assert!(refusal.contains("expected: config."), "{what}: {refusal}");
        } else {
            artifact.manifest.expect(&expected).expect("the same");
            let other = made(config, options);
            let same = other.manifest == artifact.manifest && other.code == artifact.code;
            assert!(same, "{what} changes the artifact and not its key");
            idle.push(what.into());
        }
    };
    for (name, value) in fields.as_object().expect("an object") {
        let mut changed = fields.clone();
        changed[name] = another(name, value);
        check(name, &parsed(&changed), &options);
    }
    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = config.clone();
        change(&mut config);
        config
    };
    check("--context", &with(&|config| config.context = 128), &options);
    check("--dtype", &with(&|config| config.dtype = atomc_ir::DType::F32), &options);
    check("--cache-dtype", &with(&|config| config.cache = Some(atomc_ir::DType::F8E4M3)), &options);
    let quantised = with(&|config| config.quantise(&["int8".to_string()]).expect("a scheme"));
    check("--quant", &quantised, &options);
    let buckets = |decode: &[usize], tokens, rows| BucketOptions { decode: decode.to_vec(), each: 1, tokens, rows };
    let others: [(&str, Options); 9] = [
        ("--target", Options { targets: vec!["gfx942".into()], ..options.clone() }),
        ("--decode", Options { buckets: buckets(&[2], 64, 8), ..options.clone() }),
        ("--prefill", Options { buckets: buckets(&[], 32, 8), ..options.clone() }),
        ("--rows", Options { buckets: buckets(&[], 64, 4), ..options.clone() }),
        ("--tp", Options { ranks: 2, ..options.clone() }),
        ("--attention", Options { attention: vec![Attention::Caller], ..options.clone() }),
        ("--hidden", Options { hidden: vec![0], ..options.clone() }),
        ("--invariant", Options { invariant: true, ..options.clone() }),
        ("the choice", Options { choice: Some(1), ..options.clone() }),
    ];
    others.iter().for_each(|(what, options)| check(what, &config, options));
    assert_eq!(idle, ["attention_dropout", "initializer_range", "pad_token_id", "use_cache"]);
}

/// The floats of a checkpoint other than weights: wrong ones would change answers in silence.
#[test]
fn floats_beside_weights_are_checked_when_they_are_loaded() {
    let checked = |model: &str| -> BTreeSet<String> {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(model);
        let config = crate::frontend::read(&dir).expect("a model");
        let compiled = compile(&config, &options(&[]), &mut |_, _, _| ()).expect("a model that compiles");
        let mut all = BTreeSet::new();
        for weight in &compiled.manifest.targets[0].weights {
            weight.expr.fold(&mut |expr, _: Vec<()>| {
                if let WeightExpr::Expect { is, told, .. } = expr
                    && let WeightExpr::Tensor { name, .. } = &**told
                {
                    let name = name.rsplit('.').next().unwrap_or_default();
                    all.insert(format!("{name} {}", is.text()));
                }
            });
        }
        all
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(checked("q-cache"), names(&["k_scale scales()", "v_scale scales()"]));
    assert_eq!(checked("q-fp8-static"), names(&["input_scale scales()", "k_scale scales()", "v_scale scales()"]));
    assert_eq!(checked("mla-v3"), names(&["e_score_correction_bias addends()"]));
    assert_eq!(checked("moe-gpt-oss"), names(&["bias addends()"]));
}
