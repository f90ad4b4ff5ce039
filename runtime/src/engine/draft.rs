//! The draft of an artifact: a small model that guesses the tokens after a sequence, which the next
//! step of the model verifies.
//!
//! For each token of the model, a step of the draft takes the row that the model left for it and
//! the next token. It has the positions, tables and blocks of the model's own steps, so the engine
//! keeps only the places of the rows that no step of the draft has taken yet. A draft changes the
//! speed of answers and never the answers: if a row is missing, it only guesses worse.
use super::select::{self, Size};
use super::{Engine, StepError};
use crate::kv::SeqId;
use atomc_artifact::manifest::{Draft, DraftRows, Plan, PlanKind};
use std::collections::HashMap;
use std::ops::Range;

/// Tokens of a sequence that the model has chosen since its draft was asked last.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// A sequence of this engine, which no other of the call is for.
    pub sequence: SeqId,
    /// The tokens after the last ones that steps have computed: the last is new to the engine.
    pub tokens: &'a [u32],
}

/// The engine's state of its draft.
#[derive(Debug)]
pub(super) struct Drafting {
    rows: DraftRows,
    /// Tokens that it guesses among.
    vocab: usize,
    /// The draft's plans among those of the engine.
    plans: Range<usize>,
    /// Rows that no step of the draft has taken.
    left: HashMap<SeqId, Left>,
    /// The sequence of each row that is kept.
    kept: Vec<Option<SeqId>>,
}

/// Consecutive rows of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    row: usize,
    count: usize,
    /// The position of the first one's token.
    position: usize,
}

impl Left {
    fn last(self) -> Left {
        let before = self.count - 1;
        Left { row: self.row + before, count: 1, position: self.position + before }
    }
}

/// Tokens that a step of the draft takes: each follows a row of the model, and gets that row's
/// position.
#[derive(Debug)]
struct Run {
    sequence: SeqId,
    tokens: Vec<u32>,
    sources: Vec<usize>,
    position: usize,
    /// Whether a guess is wanted after the last one.
    guesses: bool,
}

impl Drafting {
    pub(super) fn new(draft: &Draft, plans: Range<usize>) -> Drafting {
        let kept = vec![None; draft.rows.keeps];
        Drafting { rows: draft.rows, vocab: draft.vocab, plans, left: HashMap::new(), kept }
    }

    /// The rows of a sequence that no step of the draft has taken; from now on there are none.
    pub(super) fn take(&mut self, sequence: SeqId) -> Option<Left> {
        self.kept.iter_mut().filter(|kept| **kept == Some(sequence)).for_each(|kept| *kept = None);
        self.left.remove(&sequence)
    }

    /// A sequence has `tokens` from now on.
    pub(super) fn rewind(&mut self, sequence: SeqId, tokens: usize) {
        match self.left.get_mut(&sequence) {
            Some(left) if left.position < tokens => left.count = left.count.min(tokens - left.position),
            Some(_) => _ = self.take(sequence),
            None => {}
        }
    }

    /// A free row to keep for a sequence, which has none.
    fn keep(&mut self, sequence: SeqId) -> Option<usize> {
        let place = self.kept.iter().position(Option::is_none)?;
        self.kept[place] = Some(sequence);
        Some(self.rows.kept + place)
    }

    /// Whether a row is one of those that are kept.
    fn is_kept(&self, row: usize) -> bool {
        row >= self.rows.kept
    }
}

/// A part of a request that a plan of the model has run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran<'a> {
    pub sequence: SeqId,
    pub tokens: &'a [u32],
    /// The first token's position, and its place in the step.
    pub position: usize,
    pub first: usize,
    /// Whether no token of it is a guess.
    pub sure: bool,
}

impl Engine {
    /// The number of tokens of a sequence that a step verifies; none without a draft.
    pub fn verifies(&self) -> Option<usize> {
        self.plans().iter().filter_map(|plan| plan.kind.each().filter(|&each| each > 1)).max()
    }

    /// Most sequences of which one plan verifies `guesses` guesses each; none without a draft.
    pub fn verifies_at_once(&self, guesses: usize) -> usize {
        let verifies =
            |plan: &Plan| plan.kind.each().filter(|&each| each > guesses.max(1)).map(|each| plan.tokens / each);
        self.plans().iter().filter(|_| self.has_draft()).filter_map(verifies).max().unwrap_or(0)
    }

    /// Whether the engine has a draft that guesses tokens.
    pub fn has_draft(&self) -> bool {
        self.draft.is_some()
    }

    /// Bytes that the draft moves at least for a guess after each of `sequences` sequences.
    pub fn draft_bytes(&self, sequences: usize) -> u64 {
        let Some(draft) = &self.draft else { return 0 };
        let plans = &self.session.plans[draft.plans.clone()];
        let size = Size { tokens: sequences, rows: sequences, sequences, longest: 1 };
        plans[select::choose(plans, size, |_| true)].launches.iter().map(|launch| launch.bytes).sum()
    }

    /// Guesses up to `count` tokens after each sequence, the likeliest of the draft's. A sequence
    /// gets no guesses without room for them, or if the draft lacks the rows of the model's last
    /// step.
    pub fn draft(&mut self, chosen: &[Chosen], count: usize) -> Result<Vec<Vec<u32>>, StepError> {
        let mut guesses = vec![Vec::new(); chosen.len()];
        let Some(draft) = &self.draft else { return Ok(guesses) };
        let few = |plan: &Plan| plan.kind == PlanKind::Decode;
        let width = self.session.plans[draft.plans.clone()].iter().filter(|plan| few(plan)).map(|plan| plan.rows).max();
        let width = width.unwrap_or(1);
        let asked: Vec<usize> = (0..chosen.len()).filter(|_| count > 0).collect();
        for asked in asked.chunks(width) {
            self.draft_some(chosen, asked, (count, &mut guesses))?;
        }
        Ok(guesses)
    }

    fn draft_some(
        &mut self,
        chosen: &[Chosen],
        asked: &[usize],
        (count, guesses): (usize, &mut [Vec<u32>]),
    ) -> Result<(), StepError> {
        let mut under_way: Vec<(usize, Run)> = Vec::with_capacity(asked.len());
        for &index in asked {
            if let Some(run) = self.first_run(&chosen[index], count)? {
                under_way.push((index, run));
            }
        }
        for number in 0..count {
            if under_way.is_empty() {
                break;
            }
            let runs: Vec<&Run> = under_way.iter().map(|(_, run)| run).collect();
            let picks = self.draft_step(&runs)?;
            let vocab = self.draft.as_ref().map_or(0, |draft| draft.vocab);
            let mut next = Vec::with_capacity(under_way.len());
            for (row, ((index, run), pick)) in under_way.into_iter().zip(picks).enumerate() {
                // A draft with logits that are not finite picks nothing.
                let Some(token) = (pick < vocab as u32).then(|| self.model_token(pick)).flatten() else { continue };
                guesses[index].push(token);
                let position = run.position + run.tokens.len();
                if number + 1 < count {
                    next.push((index, Run { tokens: vec![token], sources: vec![row], position, ..run }));
                }
            }
            under_way = next;
        }
        Ok(())
    }

    /// The draft's first run after the tokens that the model has chosen.
    fn first_run(&mut self, chosen: &Chosen, count: usize) -> Result<Option<Run>, StepError> {
        let &Chosen { sequence, tokens } = chosen;
        let len = self.kv.len(sequence)?;
        let max = self.model().max_positions;
        let Some(draft) = &mut self.draft else { return Ok(None) };
        let Some(left) = draft.take(sequence) else { return Ok(None) };
        // A sequence that was taken back and computed again has fewer rows.
        let tokens = &tokens[tokens.len().saturating_sub(left.count)..];
        let fits = left.count == tokens.len() && left.position + left.count == len;
        if !fits || len + count > max || self.kv.make_room(sequence, count).is_err() {
            return Ok(None);
        }
        let sources = (left.row..left.row + left.count).collect();
        Ok(Some(Run { sequence, tokens: tokens.to_vec(), sources, position: left.position, guesses: true }))
    }

    /// The model's number of a token of the draft's, if it has one.
    fn model_token(&self, token: u32) -> Option<u32> {
        let token = match self.draft_map.is_empty() {
            true => token,
            false => *self.draft_map.get(token as usize)?,
        };
        ((token as usize) < self.model().vocab).then_some(token)
    }

    /// Runs a plan of the draft, and returns its picks after the runs that want guesses.
    fn draft_step(&mut self, runs: &[&Run]) -> Result<Vec<u32>, StepError> {
        let Some(draft) = &self.draft else { return Ok(Vec::new()) };
        let size = Size {
            tokens: runs.iter().map(|run| run.tokens.len()).sum(),
            rows: runs.iter().filter(|run| run.guesses).count(),
            sequences: runs.len(),
            longest: runs.iter().map(|run| run.tokens.len()).max().unwrap_or(0),
        };
        let plans = draft.plans.clone();
        let plan = plans.start + select::choose(&self.session.plans[plans], size, |_| true);
        self.session.inputs.clear();
        for run in runs {
            let length = run.position + run.tokens.len();
            self.session.inputs.push(&run.tokens, run.position, length, self.kv.tables(run.sequence)?);
            self.session.inputs.take_rows(&run.sources);
            self.session.inputs.want(usize::from(run.guesses));
        }
        self.run(plan)?;
        let mut picks = Vec::with_capacity(size.rows);
        if let Some(place) = self.session.plans[plan].picks {
            self.gather_picks(place, &mut picks)?;
        }
        Ok(picks)
    }

    /// Runs before a plan of the model overwrites rows that no step of the draft has taken. Keeps
    /// the last one of each sequence, if there is room.
    pub(super) fn keep_rows(&mut self) -> Result<(), StepError> {
        let Some(draft) = &mut self.draft else { return Ok(()) };
        let DraftRows { offset, stride, .. } = draft.rows;
        let open: Vec<SeqId> =
            draft.left.iter().filter(|(_, left)| !draft.is_kept(left.row)).map(|(&id, _)| id).collect();
        for sequence in open {
            let Some(left) = draft.take(sequence).map(Left::last) else { continue };
            let Some(place) = draft.keep(sequence) else { continue };
            let (from, to) = (offset + left.row * stride, offset + place * stride);
            for session in std::iter::once(&mut self.session).chain(&mut self.others) {
                session.memory.hidden.copy_within(from..from + stride, to)?;
            }
            draft.left.insert(sequence, Left { row: place, ..left });
        }
        Ok(())
    }

    /// After a plan of the model: the draft's own step for the tokens that have a known next one
    /// and are no guesses. The other rows wait for the next token.
    pub(super) fn follow(&mut self, plan: usize, parts: &[Ran]) -> Result<(), StepError> {
        // Guesses that do not fit a plan for few tokens have no guesses after them.
        let is_long = !self.session.plans[plan].kind.is_few();
        let Some(draft) = &mut self.draft else { return Ok(()) };
        let mut runs = Vec::new();
        for part in parts {
            let (first, count) = (draft.rows.model + part.first, part.tokens.len());
            let before = draft.take(part.sequence);
            let before = before.filter(|left| left.position + left.count == part.position).map(Left::last);
            let is_sure = part.sure || is_long;
            let left = if is_sure {
                Left { row: first + count - 1, count: 1, position: part.position + count - 1 }
            } else {
                Left { row: first, count, position: part.position }
            };
            draft.left.insert(part.sequence, left);
            if !is_sure {
                continue;
            }
            let known = usize::from(before.is_none());
            let sources: Vec<usize> = before.iter().map(|left| left.row).chain(first..first + count - 1).collect();
            let tokens = part.tokens[known..].to_vec();
            if !tokens.is_empty() {
                let position = part.position + known - 1;
                runs.push(Run { sequence: part.sequence, tokens, sources, position, guesses: false });
            }
        }
        if runs.is_empty() {
            return Ok(());
        }
        self.draft_step(&runs.iter().collect::<Vec<_>>()).map(drop)
    }
}
