//! Answers under load are those of lone requests, to the last bit of how likely each token was:
//! with prompts cut anywhere, beginnings taken from others, requests computed again, and what a
//! draft guesses.
mod asked;
mod engines;

use std::path::Path;

use atomc::driver::Options;
use atomc_config::Adapters;
use atomc_passes::BucketOptions;
use atomc_runtime::adapters::Adapter;
use atomc_runtime::{Checkpoint, EngineOptions};

use asked::{Asked, CONTEXT, answers, asked, case, check, pressed};

/// With a cache that has room for some requests, and with one where they are in each other's way.
#[test]
fn answers_under_load_are_those_of_lone_requests() {
    for name in ["qwen3", "mistral", "gemma3", "moe-gpt-oss", "mla-v3", "hybrid-next", "hybrid-3.5"] {
        let case = case(name);
        let [alone, roomy, small] = pressed(&case, [1024, 640, 256]);
        let asked = asked(case.config.vocab);
        let (expect, _) = answers(alone, (1, 0), &asked);
        let [roomy, small] = [roomy, small].map(|engine| {
            let (found, counts) = answers(engine, (8, 0), &asked);
            check(name, &found, (&expect, &asked));
            counts
        });
        assert!(roomy.cached_tokens > 0, "{name}: {roomy:?}");
        // Windows of the second leave room for all.
        assert!(small.preempted > 0 || name == "mistral", "{name}: {small:?}");
    }
}

/// Requests with different adapters share steps and no beginnings.
#[test]
fn answers_with_adapters_are_those_of_lone_requests() {
    let mut case = case("llama3");
    case.config.adapters = Some(Adapters { slots: 2, rank: 8 });
    let options = |cache_tokens| EngineOptions { threads: 2, cache_tokens, slots: 6, ..EngineOptions::default() };
    let buckets = BucketOptions { decode: vec![1, 4], each: 1, tokens: 48, rows: 6 };
    let model = engines::Model { config: &case.config, dir: &case.dir, drafts: false, head: None };
    let compiling = Options { buckets, invariant: true, ..Options::default() };
    let folder = case.dir.parent().expect("golden models").join("adapters");
    let mut all = engines::engines(&model, compiling, [1024, 4096].map(options));
    for engine in &mut all {
        let open = |name| Adapter::open(folder.join(name)).expect("an adapter");
        engine.set_adapters(["plain", "rslora"].map(open).into()).expect("room");
        engine.load_weights(&Checkpoint::open(&case.dir).expect("a checkpoint"), &|_, _| ()).expect("weights");
    }
    let [alone, loaded] = all;
    let mut asked = asked(case.config.vocab);
    // Each prompt is asked of the model and of both adapters.
    asked =
        asked.iter().flat_map(|one| [None, Some(0), Some(1)].map(|adapter| Asked { adapter, ..one.clone() })).collect();
    let (expect, _) = answers(alone, (1, 0), &asked);
    let (found, counts) = answers(loaded, (8, 0), &asked);
    check("llama3", &found, (&expect, &asked));
    assert!(counts.cached_tokens > 0, "{counts:?}");
    let differ = expect.chunks(3).filter(|one| one[0] != one[1] && one[1] != one[2] && one[0] != one[2]).count();
    assert!(differ * 3 > expect.len() / 2, "{differ} prompts have three answers");
}

/// The answers with a draft's guesses. Trained drafts have some of them right.
#[test]
fn answers_with_guesses_are_those_of_lone_requests() {
    const GUESSES: usize = 3;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (golden, models, qwen3) = (here.join("golden"), here.join("models"), here.join("../examples/models/qwen3"));
    let own = |dir: &Path| (dir.to_owned(), None);
    let all = [
        own(&golden.join("draft-next")),
        own(&golden.join("draft-3.5-moe")),
        (golden.join("draft-eagle3"), Some(golden.join("draft-eagle3/head"))),
        own(&models.join("deepseek-v3-mtp")),
        (qwen3, Some(models.join("qwen3-eagle3"))),
    ];
    for (dir, head) in all {
        let name = head.as_ref().unwrap_or(&dir).display().to_string();
        let mut config = atomc_config::read(&dir).expect("a configuration");
        config.context = CONTEXT;
        let options = |(cache_tokens, draft)| EngineOptions {
            threads: 2,
            cache_tokens,
            slots: 20,
            snapshot_tokens: 32,
            draft,
            ..EngineOptions::default()
        };
        let buckets = BucketOptions { decode: vec![1, 4, 8], each: GUESSES + 1, tokens: 64, rows: 24 };
        let compiling = Options { buckets, invariant: true, ..Options::default() };
        let model = engines::Model { config: &config, dir: &dir, drafts: true, head: head.as_deref() };
        let caches = [(1024, false), (1024, true), (256, true)].map(options);
        let [alone, roomy, small] = engines::engines(&model, compiling, caches);
        assert_eq!([&alone, &roomy].map(|engine| engine.verifies_at_once(GUESSES)), [0, 8]);
        let asked = asked(config.vocab);
        let (expect, plain) = answers(alone, (1, 0), &asked);
        assert_eq!(plain.guesses_made, 0);
        let [roomy, small] = [(roomy, 4), (small, 8)].map(|(engine, running)| {
            let (found, counts) = answers(engine, (running, GUESSES), &asked);
            check(&name, &found, (&expect, &asked));
            println!("{name}: {counts:?}");
            counts
        });
        assert!(roomy.cached_tokens > 0 && roomy.guesses_right > 0, "{name}: {roomy:?}");
        assert!(small.preempted > 0 && small.guesses_made > 0, "{name}: {small:?}");
    }
}
