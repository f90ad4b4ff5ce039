//! A model for tests of its surroundings, and for the fuzzer of requests.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::kv::{BlockCopy, Kept, Kv, Piece, Sizes};
use crate::offload::{Group, Layout};
use crate::sight::Images;
use crate::{self as runtime, DeviceError, Fork, KvError, Request, SeqId, StepError, Want};

use super::{Backend, Limits, Row};

/// Tokens of a block of its cache.
pub const BLOCK: usize = 4;
/// Tokens of the smallest.
pub(super) const VOCAB: usize = 61;
/// Positions of the smallest.
const POSITIONS: usize = 64;

/// The quality of a toy's draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draft {
    /// It is right four times of five, if the likeliest tokens are chosen.
    Good,
    /// It is always wrong.
    Bad,
    /// It never guesses.
    Silent,
}

/// A model that adds tokens up, over the engine's own cache.
pub struct Toy {
    kv: Kv,
    vocab: usize,
    positions: usize,
    pub(super) held: HashMap<SeqId, Vec<u32>>,
    slots: usize,
    /// Tokens of each step so far.
    pub steps: Vec<Vec<usize>>,
    /// Steps with this token are not finite.
    pub poison: Option<u32>,
    /// Steps with this token fail.
    pub failing: Option<u32>,
    /// Steps with this token panic.
    pub panicking: Option<u32>,
    /// How long a step takes.
    pub pause: Duration,
    /// Its draft, and the number of sequences that a step verifies.
    draft: Option<(Draft, usize)>,
    /// Rows of logits of a step with prompts.
    rows: usize,
    /// The draft fails when it is asked.
    pub failing_draft: bool,
    /// The tokens in each unit of its cache, by group, if it is looked into.
    memory: Option<HashMap<(usize, usize), Vec<u32>>>,
}

/// Slots of a sequence: as many tokens as its steps verify.
const RING: usize = 4;

impl Toy {
    /// One with this cache, and with slots if its state is recurrent.
    pub fn new(blocks: usize, slots: usize) -> Toy {
        Toy::sized(blocks, slots, (VOCAB, POSITIONS))
    }

    /// One with more tokens and positions.
    pub fn sized(blocks: usize, slots: usize, (vocab, positions): (usize, usize)) -> Toy {
        let kept = [Kept::ALL, Kept::Slots { ring: RING }];
        let sizes = Sizes {
            block_tokens: BLOCK,
            blocks,
            slots,
            max_len: positions,
            step: 16,
            snapshot_tokens: 8,
            snapshots: slots,
        };
        let kv = Kv::new(if slots > 0 { &kept } else { &kept[..1] }, sizes);
        Toy {
            kv,
            vocab,
            positions,
            held: HashMap::new(),
            slots,
            steps: vec![],
            poison: None,
            failing: None,
            panicking: None,
            pause: Duration::ZERO,
            draft: None,
            rows: 3,
            failing_draft: false,
            memory: None,
        }
    }

    /// The engine with a cache that has bytes.
    pub fn with_memory(self) -> Toy {
        Toy { memory: Some(HashMap::new()), ..self }
    }

    /// What the pieces of its cache are like.
    pub fn cache_layout(&self) -> Layout {
        let of = |kept: Kept, tokens: usize| Group { kept, page_tokens: BLOCK, bytes: tokens * size_of::<u32>() };
        let mut groups = vec![of(Kept::ALL, BLOCK)];
        // Each state has its number of tokens, and the tokens.
        groups.extend((self.slots > 0).then(|| of(Kept::Slots { ring: RING }, self.positions + 1)));
        Layout { key: [7; 32], block_tokens: BLOCK, groups }
    }

    /// Writes a sequence's last token into its cache.
    fn note(&mut self, sequence: SeqId) -> Result<(), StepError> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        let held = &self.held[&sequence];
        for Piece { group, start, end, unit } in self.kv.pieces(sequence)? {
            if end == held.len() {
                memory.insert((group, unit), if group == 0 { held[start..].to_vec() } else { held.clone() });
            }
        }
        Ok(())
    }

    /// Makes the copies that its cache has noted.
    fn copy(&mut self) {
        for BlockCopy { group, from, to } in self.kv.take_copies() {
            let Some(memory) = &mut self.memory else { continue };
            let tokens = memory.get(&(group, from)).cloned().unwrap_or_default();
            memory.insert((group, to), tokens);
        }
    }

    /// The engine with a draft. A step verifies the guesses of `sequences` sequences.
    pub fn with_draft(self, draft: Draft, sequences: usize) -> Toy {
        Toy { draft: Some((draft, sequences)), rows: 16, ..self }
    }

    fn check(&self, requests: &[Request]) -> Result<(), StepError> {
        let has = |token: Option<u32>| requests.iter().any(|r| token.is_some_and(|token| r.tokens.contains(&token)));
        assert!(!has(self.panicking), "it was told to panic");
        if has(self.failing) {
            return Err(failed());
        }
        match has(self.poison) {
            true => Err(StepError::NotFinite(Box::new(crate::engine::NotFinite { origin: None, sought: true }))),
            false => Ok(()),
        }
    }

    fn feed(&mut self, requests: &[Request]) -> Result<Vec<Vec<Vec<f32>>>, StepError> {
        self.steps.push(requests.iter().map(|request| request.tokens.len()).collect());
        std::thread::sleep(self.pause);
        self.check(requests)?;
        self.kv.reserve(requests.iter().map(|request| (request.sequence, request.tokens.len())))?;
        let mut all = vec![];
        for request in requests {
            let mut rows = vec![];
            for &token in request.tokens {
                self.kv.grow(request.sequence, 1)?;
                let held = self.held.get_mut(&request.sequence).expect("it was added");
                held.push(token);
                rows.push(logits(held, self.vocab));
                self.note(request.sequence)?;
                self.kv.keep_snapshot(request.sequence)?;
                self.copy();
            }
            all.push(match request.logits {
                Want::Nothing => vec![],
                Want::Last => rows.split_off(rows.len() - 1),
                Want::All => rows,
            });
        }
        Ok(all)
    }
}

fn failed() -> StepError {
    let (device, detail) = ("toy".to_owned(), "it was told to fail".to_owned());
    StepError::Device(DeviceError::Failed { device, detail })
}

pub(super) fn sum(tokens: &[u32]) -> usize {
    tokens.iter().enumerate().map(|(position, &id)| (id as usize + 1) * (position + 1)).sum()
}

/// The guesses of a draft after these tokens.
fn guesses(draft: Draft, tokens: &[u32], (count, vocab): (usize, usize)) -> Vec<u32> {
    let mut tokens = tokens.to_vec();
    let known = tokens.len();
    for _ in 0..count {
        let best = sum(&tokens) % vocab;
        let guess = match draft {
            Draft::Silent => break,
            Draft::Good if tokens.len() % 5 != 3 => best,
            // Far from the likeliest token.
            Draft::Good | Draft::Bad => (best + vocab / 2) % vocab,
        };
        tokens.push(guess as u32);
    }
    tokens.split_off(known)
}

pub(super) fn logits(tokens: &[u32], vocab: usize) -> Vec<f32> {
    let best = (sum(tokens) % vocab) as i32;
    (0..vocab as i32).map(|id| -((id - best).abs() as f32) / 2.0).collect()
}

impl Backend for Toy {
    fn limits(&self) -> Limits {
        let blocks = self.kv.blocks();
        Limits {
            vocab: self.vocab,
            positions: self.positions.min(blocks * BLOCK),
            step_tokens: 16,
            step_rows: self.rows,
            block_tokens: BLOCK,
            blocks,
            slots: self.slots,
        }
    }

    fn free_blocks(&self) -> usize {
        self.kv.free_blocks()
    }

    fn add(&mut self) -> SeqId {
        let sequence = self.kv.add();
        self.held.insert(sequence, vec![]);
        sequence
    }

    fn adapt(&mut self, _sequence: SeqId, slot: usize) {
        unreachable!("it has no adapter {slot}");
    }

    fn see(&mut self, _: SeqId, _: Arc<Images>) -> Result<(), StepError> {
        Err(StepError::Images("a toy sees none"))
    }

    fn fork(&mut self, sequence: SeqId, tokens: usize) -> Result<Fork, StepError> {
        let fork = self.kv.fork(sequence, tokens)?;
        self.copy();
        self.held.insert(fork.sequence, self.held[&sequence][..fork.tokens].to_vec());
        Ok(fork)
    }

    fn rewind(&mut self, sequence: SeqId, tokens: usize) -> Result<usize, StepError> {
        let left = self.kv.rewind(sequence, tokens)?;
        self.copy();
        self.held.get_mut(&sequence).expect("it was added").truncate(left);
        Ok(left)
    }

    fn drop_sequence(&mut self, sequence: SeqId) -> Result<(), StepError> {
        self.held.remove(&sequence);
        Ok(self.kv.drop_sequence(sequence)?)
    }

    fn pieces(&mut self, sequence: SeqId) -> Result<Vec<Piece>, StepError> {
        Ok(self.kv.pieces(sequence)?)
    }

    fn read_piece(&mut self, piece: &Piece) -> Result<Vec<u8>, StepError> {
        let tokens = &self.memory.as_ref().expect("it has memory")[&(piece.group, piece.unit)];
        let of_page = (tokens.clone(), BLOCK);
        let of_state = || ([&[tokens.len() as u32], &tokens[..]].concat(), self.positions + 1);
        let (mut tokens, room) = if piece.group == 0 { of_page } else { of_state() };
        tokens.resize(room, 0);
        Ok(tokens.into_iter().flat_map(u32::to_le_bytes).collect())
    }

    fn bring(
        &mut self,
        sequence: SeqId,
        tokens: usize,
        load: &mut dyn FnMut(&Piece) -> Option<Arc<[u8]>>,
    ) -> Result<usize, StepError> {
        let before = self.held[&sequence].len();
        let (mut states, mut pages) = (vec![], self.held[&sequence].clone());
        for piece in self.kv.bring(sequence, tokens)? {
            let Some(bytes) = load(&piece) else {
                return self.rewind(sequence, before);
            };
            let loaded: Vec<u32> = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
            let Piece { group, start, end, unit } = piece;
            let own = if group == 0 { &loaded[..end - start] } else { &loaded[1..=loaded[0] as usize] };
            self.memory.as_mut().expect("it has memory").insert((group, unit), own.to_vec());
            if group == 0 {
                pages.truncate(start);
                pages.extend(own);
            } else {
                states.push(own.to_vec());
            }
        }
        // A page alone, or a state alone, that is another's would show in answers.
        states.iter().for_each(|state| assert_eq!(*state, pages));
        self.held.insert(sequence, pages);
        self.kv.keep_snapshot(sequence)?;
        self.copy();
        Ok(tokens)
    }

    fn has_room(&self, growing: &[(Option<SeqId>, usize)]) -> Result<(), KvError> {
        self.kv.has_room(growing.iter().copied())
    }

    fn step(&mut self, requests: &[Request], see: &mut dyn FnMut(Row, &[f32])) -> Result<(), StepError> {
        for (request, rows) in self.feed(requests)?.iter().enumerate() {
            rows.iter().enumerate().for_each(|(index, row)| see(Row { request, index }, row));
        }
        Ok(())
    }

    fn step_picks(&mut self, requests: &[Request]) -> Result<Vec<Vec<u32>>, StepError> {
        let all = self.feed(requests)?;
        Ok(all.iter().map(|rows| rows.iter().map(|row| runtime::greedy(row)).collect()).collect())
    }

    fn verifies(&self, guesses: usize) -> usize {
        self.draft.filter(|_| guesses > 0).map_or(0, |(_, sequences)| sequences)
    }

    fn draft(&mut self, chosen: &[runtime::Chosen], count: usize) -> Result<Vec<Vec<u32>>, StepError> {
        if self.failing_draft {
            return Err(failed());
        }
        let mut all = vec![];
        for &runtime::Chosen { sequence, tokens } in chosen {
            let held = &self.held[&sequence];
            let (&last, before) = tokens.split_last().expect("an answer has begun");
            // It holds the tokens of the answer and no others: wrong guesses were taken back.
            assert!(held.ends_with(before), "{held:?} does not end with {before:?}");
            let fits = held.len() + count <= self.positions;
            all.push(match self.draft {
                Some((draft, _)) if fits && self.kv.make_room(sequence, count).is_ok() => {
                    guesses(draft, &[&held[..], &[last]].concat(), (count, self.vocab))
                }
                _ => vec![],
            });
        }
        Ok(all)
    }
}
