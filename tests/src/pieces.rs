//! Sequences that leave the cache of an engine, piece by piece, and come back.
use std::sync::Arc;

use atomc_runtime::kv::Piece;
use atomc_runtime::sight::Images;
use atomc_runtime::{Engine, Request, SeqId, Want};

/// A sequence, which may have images.
fn sequence(engine: &mut Engine, images: Option<&Arc<Images>>) -> SeqId {
    let sequence = engine.add_sequence();
    if let Some(images) = images {
        engine.see(sequence, images.clone()).expect("images");
    }
    sequence
}

/// The bits of the logits after a token.
fn next(engine: &mut Engine, sequence: SeqId, token: u32) -> Vec<u32> {
    let request = Request { sequence, tokens: &[token], logits: Want::Last };
    engine.step(&[request]).expect("a step").of(0).flatten().map(|value| value.to_bits()).collect()
}

/// Checks that a sequence goes on as before, to the last bit, when its pieces have left the cache
/// and come back, and others have had its pages meanwhile.
pub fn check(what: &str, engine: &mut Engine, tokens: &[u32], images: Option<&Arc<Images>>) {
    let (&last, first) = tokens.split_last().expect("tokens");
    let before = sequence(engine, images);
    engine.step(&[Request { sequence: before, tokens: first, logits: Want::Nothing }]).expect("a step");
    let mut kept: Vec<(Piece, Arc<[u8]>)> = vec![];
    for piece in engine.pieces(before).expect("pieces") {
        kept.push((piece, engine.read_piece(&piece).expect("bytes").into()));
    }
    let expect = next(engine, before, last);
    engine.drop_sequence(before).expect("a live sequence");
    let other = engine.add_sequence();
    let ones = vec![1; tokens.len()];
    engine.step(&[Request { sequence: other, tokens: &ones, logits: Want::Nothing }]).expect("a step");
    engine.drop_sequence(other).expect("a live sequence");
    let back = sequence(engine, images);
    let same = |a: &Piece, b: &Piece| (a.group, a.start, a.end) == (b.group, b.start, b.end);
    let mut load = |piece: &Piece| kept.iter().find(|(other, _)| same(piece, other)).map(|(_, bytes)| bytes.clone());
    assert_eq!(engine.bring(back, first.len(), &mut load).expect("room"), first.len(), "{what}");
    assert_eq!(next(engine, back, last), expect, "{what}");
    engine.drop_sequence(back).expect("a live sequence");
}
