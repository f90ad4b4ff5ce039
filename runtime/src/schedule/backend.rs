//! The scheduler's interface to an engine, so that its tests need none.
use crate::kv::Piece;
use crate::manifest::{PlanKind, StateGroup};
use crate::sight::Images;
use crate::{self as runtime, Engine, Fork, KvError, Request, SeqId, StepError};
use std::borrow::BorrowMut;
use std::sync::Arc;

/// Sizes that do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Token ids are below this.
    pub vocab: usize,
    /// Most tokens of a sequence: the model's positions, or the tokens of the cache.
    pub positions: usize,
    /// Tokens of the largest plan.
    pub step_tokens: usize,
    /// Rows of logits of the largest plan that takes prompts.
    pub step_rows: usize,
    /// Tokens of a block of the cache.
    pub block_tokens: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Sequences that have a recurrent state at once; 0 if the model has none.
    pub slots: usize,
}

/// The token of a step that a row of logits follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index of its request.
    pub request: usize,
    /// Index among the rows of that request.
    pub index: usize,
}

/// An engine with sequences.
pub trait Backend: Send {
    /// Sizes that do not change.
    fn limits(&self) -> Limits;

    /// Blocks that no sequence holds.
    fn free_blocks(&self) -> usize;

    /// A new, empty sequence.
    fn add(&mut self) -> SeqId;

    /// As [`Engine::adapt`].
    fn adapt(&mut self, sequence: SeqId, slot: usize);
    /// As [`Engine::see`].
    fn see(&mut self, sequence: SeqId, images: Arc<Images>) -> Result<(), StepError>;

    /// As [`Engine::fork`].
    fn fork(&mut self, sequence: SeqId, tokens: usize) -> Result<Fork, StepError>;

    /// As [`Engine::rewind`].
    fn rewind(&mut self, sequence: SeqId, tokens: usize) -> Result<usize, StepError>;

    /// As [`Engine::drop_sequence`].
    fn drop_sequence(&mut self, sequence: SeqId) -> Result<(), StepError>;

    /// As [`Engine::pieces`].
    fn pieces(&mut self, sequence: SeqId) -> Result<Vec<Piece>, StepError>;

    /// As [`Engine::read_piece`].
    fn read_piece(&mut self, piece: &Piece) -> Result<Vec<u8>, StepError>;

    /// As [`Engine::bring`].
    fn bring(
        &mut self,
        sequence: SeqId,
        tokens: usize,
        load: &mut dyn FnMut(&Piece) -> Option<Arc<[u8]>>,
    ) -> Result<usize, StepError>;

    /// Whether sequences, or new ones, have room to grow to the given number of tokens each, all of
    /// them together.
    fn has_room(&self, growing: &[(Option<SeqId>, usize)]) -> Result<(), KvError>;

    /// A step, of which each row of logits is seen once, in order.
    fn step(&mut self, requests: &[Request], see: &mut dyn FnMut(Row, &[f32])) -> Result<(), StepError>;

    /// A step that returns only the likeliest token after each row.
    fn step_picks(&mut self, requests: &[Request]) -> Result<Vec<Vec<u32>>, StepError>;

    /// Most sequences of which one plan verifies `guesses` guesses each; 0 without a draft.
    fn verifies(&self, guesses: usize) -> usize;

    /// As [`Engine::draft`].
    fn draft(&mut self, chosen: &[runtime::Chosen], count: usize) -> Result<Vec<Vec<u32>>, StepError>;
}

/// One of its own, or one that it borrows.
impl<E: BorrowMut<Engine> + Send> Backend for E {
    fn limits(&self) -> Limits {
        let engine: &Engine = self.borrow();
        let (plans, model, cache) = (engine.plans(), engine.model(), engine.cache());
        let most = |size: fn(&crate::manifest::Plan) -> usize| plans.iter().map(size).max().unwrap_or(1);
        let block_tokens = engine.target().layout.block_tokens;
        let blocks = cache.blocks();
        // Pages before a window are given back, so the cache does not limit a sequence there.
        let keeps_all = |group: &StateGroup| matches!(group, StateGroup::Paged(pages) if pages.window == 0);
        let held = if engine.target().groups.iter().any(keeps_all) { blocks * block_tokens } else { usize::MAX };
        Limits {
            vocab: model.vocab,
            positions: model.max_positions.min(held),
            step_tokens: most(|plan| plan.tokens),
            step_rows: most(|plan| if plan.kind == PlanKind::Whole { plan.rows } else { 1 }),
            block_tokens,
            blocks,
            slots: (cache.free_slots() + cache.snapshots()) / cache.ring(),
        }
    }

    fn free_blocks(&self) -> usize {
        self.borrow().cache().free_blocks()
    }

    fn add(&mut self) -> SeqId {
        self.borrow_mut().add_sequence()
    }

    fn adapt(&mut self, sequence: SeqId, slot: usize) {
        Engine::adapt(self.borrow_mut(), sequence, slot);
    }

    fn see(&mut self, sequence: SeqId, images: Arc<Images>) -> Result<(), StepError> {
        Engine::see(self.borrow_mut(), sequence, images)
    }

    fn fork(&mut self, sequence: SeqId, tokens: usize) -> Result<Fork, StepError> {
        Engine::fork(self.borrow_mut(), sequence, tokens)
    }

    fn rewind(&mut self, sequence: SeqId, tokens: usize) -> Result<usize, StepError> {
        Engine::rewind(self.borrow_mut(), sequence, tokens)
    }

    fn drop_sequence(&mut self, sequence: SeqId) -> Result<(), StepError> {
        Engine::drop_sequence(self.borrow_mut(), sequence)
    }

    fn pieces(&mut self, sequence: SeqId) -> Result<Vec<Piece>, StepError> {
        Engine::pieces(self.borrow(), sequence)
    }

    fn read_piece(&mut self, piece: &Piece) -> Result<Vec<u8>, StepError> {
        Engine::read_piece(self.borrow_mut(), piece)
    }

    fn bring(
        &mut self,
        sequence: SeqId,
        tokens: usize,
        load: &mut dyn FnMut(&Piece) -> Option<Arc<[u8]>>,
    ) -> Result<usize, StepError> {
        Engine::bring(self.borrow_mut(), sequence, tokens, load)
    }

    fn has_room(&self, growing: &[(Option<SeqId>, usize)]) -> Result<(), KvError> {
        self.borrow().cache().has_room(growing.iter().copied())
    }

    fn step(&mut self, requests: &[Request], see: &mut dyn FnMut(Row, &[f32])) -> Result<(), StepError> {
        let logits = Engine::step(self.borrow_mut(), requests)?;
        for request in 0..requests.len() {
            logits.of(request).enumerate().for_each(|(index, row)| see(Row { request, index }, row));
        }
        Ok(())
    }

    fn step_picks(&mut self, requests: &[Request]) -> Result<Vec<Vec<u32>>, StepError> {
        Engine::step_picks(self.borrow_mut(), requests)
    }

    fn verifies(&self, guesses: usize) -> usize {
        Engine::verifies_at_once(self.borrow(), guesses)
    }

    fn draft(&mut self, chosen: &[runtime::Chosen], count: usize) -> Result<Vec<Vec<u32>>, StepError> {
        Engine::draft(self.borrow_mut(), chosen, count)
    }
}
