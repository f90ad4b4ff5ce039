//! What a configuration means is decided by transformers: the reference interpreter on each
//! frontend's graph, in f64, against the logits that transformers computes in float64.
use atomc::driver;
use atomc::frontend::{self, Config};
use atomc_config::{BlockChoice, Kind, Pooled};
use atomc_ir::interp::Tensor;
use atomc_passes::Bucket;
use atomc_tests::reference::{Piece, Reference};
use atomc_tests::{CHUNK, Case, Mode, SEQUENCES, cases, cases_of_experts, cases_with_states};

/// Relative. The references differ from ours only in the last bits of the inverse frequencies:
/// their powers are taken in f32 there and in f64 here.
const TOLERANCE: f64 = 2e-6;

struct Model {
    case: Case,
    reference: Reference,
}

fn models() -> impl Iterator<Item = Model> {
    cases().into_iter().chain(cases_of_experts()).chain(cases_with_states()).map(|case| {
        let graph = frontend::graph(&case.config).expect("a graph");
        let weights =
            case.weights_of(&graph).into_iter().map(|(name, t)| (name, Tensor::new(t.shape, t.data))).collect();
        Model { case, reference: Reference { graph, weights } }
    })
}

impl Model {
    fn check(&self, mode: Mode, sequence: usize, logits: &[f64]) {
        let reference = self.case.reference(mode, sequence);
        let size = (reference.iter().map(|v| v * v).sum::<f64>() / reference.len() as f64).sqrt();
        let error = self.case.error(mode, sequence, logits.iter().copied()) / size;
        assert!(error < TOLERANCE, "{} {mode:?} {sequence}: relative error {error:e}", self.case.name);
    }
}

#[test]
fn each_sequence_alone_in_every_mode() {
    for model in models() {
        for (sequence, mode) in (0..SEQUENCES).flat_map(|i| Mode::ALL.map(|mode| (i, mode))) {
            let tokens = model.case.tokens(sequence);
            let (mut caches, mut from, mut logits) = (model.reference.fresh(), 0, vec![]);
            for size in mode.pieces(tokens.len()) {
                let piece = Piece { sequence, from, tokens: &tokens[from..][..size] };
                logits.extend(model.reference.step(&mut caches, &[piece]));
                from += size;
            }
            model.check(mode, sequence, &logits);
        }
    }
}

/// Models that choose blocks of keys.
fn models_of_blocks() -> Vec<Model> {
    let models: Vec<Model> = models().filter(|model| model.case.config.chooses_blocks()).collect();
    assert!(models.len() >= 2, "only {} models choose blocks", models.len());
    models
}

/// Pieces that end within blocks.
#[test]
fn blocks_are_chosen_alike_in_pieces_of_five() {
    for model in models_of_blocks() {
        for sequence in 0..SEQUENCES {
            let (tokens, mut caches) = (model.case.tokens(sequence), model.reference.fresh());
            let step = |(i, tokens)| model.reference.step(&mut caches, &[Piece { sequence, from: 5 * i, tokens }]);
            let logits: Vec<f64> = tokens.chunks(5).enumerate().flat_map(step).collect();
            model.check(Mode::Prefill, sequence, &logits);
        }
    }
}

/// Models with rows of blocks of tokens, and the tokens of their largest block.
fn models_of_rows() -> Vec<(Model, usize)> {
    let largest = |model: Model| {
        let of = |layer: &atomc_config::Layer| layer.half::<Pooled>()?.blocks.map(|blocks| blocks.every);
        let every = model.case.config.layers.iter().filter_map(of).max()?;
        Some((model, every))
    };
    let models: Vec<(Model, usize)> = models().filter_map(largest).collect();
    let every: Vec<usize> = models.iter().map(|(_, every)| *every).collect();
    assert_eq!(every, [8, 4, 128], "blocks of the golden models");
    models
}

/// Pieces of five tokens, of one, and around each end of a largest block.
#[test]
fn blocks_are_pooled_alike_wherever_a_step_ends() {
    for (model, every) in models_of_rows() {
        let around = [every - 1, 1, 1, every - 3, 2, 1, 4];
        for sizes in [&[5][..], &[1], &around] {
            for sequence in 0..SEQUENCES {
                let (tokens, mut caches) = (model.case.tokens(sequence), model.reference.fresh());
                let (mut from, mut logits) = (0, vec![]);
                for size in sizes.iter().cycle() {
                    let rest = &tokens[from..];
                    let tokens = &rest[..rest.len().min(*size)];
                    logits.extend(model.reference.step(&mut caches, &[Piece { sequence, from, tokens }]));
                    from += tokens.len();
                    if tokens.len() == rest.len() {
                        break;
                    }
                }
                model.check(Mode::Prefill, sequence, &logits);
            }
        }
    }
}

/// Guesses behind each token of a block, which end in the next block, leave nothing that later
/// tokens see.
#[test]
fn guesses_are_taken_back_at_each_place_of_a_block() {
    for (model, every) in models_of_rows() {
        let (tokens, mut caches) = (model.case.tokens(0), model.reference.fresh());
        let first = every.saturating_sub(10);
        let prompt = Piece { sequence: 0, from: 0, tokens: &tokens[..first] };
        let mut logits = if first > 0 { model.reference.step(&mut caches, &[prompt]) } else { vec![] };
        for (from, _) in tokens.iter().enumerate().skip(first) {
            let wrong: Vec<u32> = (0..5).map(|i| (tokens[from] + 1 + i) % model.case.config.vocab as u32).collect();
            model.reference.step(&mut caches, &[Piece { sequence: 0, from, tokens: &wrong }]);
            logits.extend(
                model.reference.step(&mut caches, &[Piece { sequence: 0, from, tokens: &tokens[from..][..1] }]),
            );
        }
        model.check(Mode::Prefill, 0, &logits);
    }
}

/// Where all blocks are chosen, attention is what it is without a choice.
#[test]
fn all_blocks_are_all_keys() {
    for model in models_of_blocks() {
        let logits = |most: Option<usize>| {
            let mut config = model.case.config.clone();
            for half in config.layers.iter_mut().flat_map(|layer| &mut layer.halves) {
                let Kind::Attention(attention) = &mut half.kind else { continue };
                attention.blocks = attention.blocks.and_then(|blocks| Some(BlockChoice { most: most?, ..blocks }));
            }
            let graph = frontend::graph(&config).expect("a graph");
            let reference = Reference { graph, weights: model.reference.weights.clone() };
            let tokens = model.case.tokens(0);
            reference.step(&mut reference.fresh(), &[Piece { sequence: 0, from: 0, tokens: &tokens }])
        };
        assert_eq!(logits(Some(12)), logits(None), "{}", model.case.name);
        assert_ne!(logits(Some(11)), logits(None), "{}", model.case.name);
    }
}

/// Three sequences of unequal lengths, a chunk of each that has one left in every step.
#[test]
fn sequences_in_one_batch() {
    for model in models() {
        let tokens: Vec<Vec<u32>> = (0..SEQUENCES).map(|i| model.case.tokens(i)).collect();
        let (mut caches, mut logits) = (model.reference.fresh(), vec![vec![]; SEQUENCES]);
        for from in (0..tokens[0].len()).step_by(CHUNK) {
            let piece = |i: usize| {
                let rest = tokens[i].get(from..).filter(|t| !t.is_empty())?;
                Some(Piece { sequence: i, from, tokens: &rest[..rest.len().min(CHUNK)] })
            };
            let pieces: Vec<Piece> = (0..SEQUENCES).filter_map(piece).collect();
            let out = model.reference.step(&mut caches, &pieces);
            let mut rest = &out[..];
            for p in &pieces {
                let (own, others) = rest.split_at(p.tokens.len() * model.case.config.vocab);
                logits[p.sequence].extend(own);
                rest = others;
            }
        }
        (0..SEQUENCES).for_each(|i| model.check(Mode::Chunked, i, &logits[i]));
    }
}

/// The reference computes without rounding to the types of the graph, so the passes may not change
/// a bit that shows.
#[test]
fn passes_keep_the_meaning() {
    let arch = &atomc_targets::variants("host").expect("a target")[0];
    for model in models() {
        let (tokens, rows) = (64, 64);
        for bucket in [Bucket::Decode { tokens: 1 }, Bucket::Any { tokens, rows }, Bucket::Whole { tokens, rows }] {
            let cx = atomc_passes::Cx { arch, bucket, invariant: false };
            let graph =
                driver::lower(&model.reference.graph, &cx, None).unwrap_or_else(|e| panic!("{}: {e}", model.case.name));
            let reference = Reference { graph, weights: model.reference.weights.clone() };
            let model = Model { case: model.case.clone(), reference };
            for sequence in 0..SEQUENCES {
                let tokens = model.case.tokens(sequence);
                let logits =
                    model.reference.step(&mut model.reference.fresh(), &[Piece { sequence, from: 0, tokens: &tokens }]);
                model.check(Mode::Prefill, sequence, &logits);
            }
        }
    }
}

#[test]
fn older_spellings_mean_the_same() {
    let mut seen = 0;
    for case in cases().into_iter().filter(|case| case.dir.join("config.v4.json").exists()) {
        let read = |name| Config::parse(&std::fs::read_to_string(case.dir.join(name)).expect("a file"), None);
        assert_eq!(read("config.v4.json"), read("config.json"), "{}", case.name);
        seen += 1;
    }
    assert!(seen >= 5);
}
