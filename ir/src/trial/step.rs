//! Steps to try kernels with.
use crate::Graph;
use crate::interp::{BatchState, Cx};

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Position of the first.
    pub position: usize,
    /// New tokens.
    pub tokens: usize,
    /// How many of the last want a row of logits.
    pub rows: usize,
}

/// A step: runs of different sequences, numbered in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// A run of tokens for each sequence.
    pub runs: Vec<Run>,
    /// Slots in the table of a sequence.
    pub slots: usize,
}

impl Step {
    /// A step in which a sequence has one slot.
    pub fn of(runs: Vec<Run>) -> Step {
        Step { runs, slots: 1 }
    }

    /// With tables for the slots of a graph.
    pub fn for_slots_of(self, graph: &Graph) -> Step {
        let entries = graph.inputs().into_iter().filter_map(|v| Some(graph.ty(v).as_slots()?.entries()));
        Step { slots: entries.max().unwrap_or(1), ..self }
    }

    /// `T`
    pub fn tokens(&self) -> usize {
        self.runs.iter().map(|r| r.tokens).sum()
    }

    /// `R`
    pub fn rows(&self) -> usize {
        self.runs.iter().map(|r| r.rows).sum()
    }

    /// The sizes, for the interpreter.
    pub fn cx(&self) -> Cx {
        Cx::of(self.tokens(), self.rows())
    }

    /// The sequence and position of each token.
    pub fn batch(&self) -> BatchState {
        let tokens = self.runs.iter().enumerate().flat_map(|(s, r)| (0..r.tokens).map(move |t| (s, r.position + t)));
        let (sequences, positions) = tokens.map(|(s, p)| (s as i32, p as i32)).unzip();
        BatchState { sequences, positions }
    }

    /// Length of each token's sequence after the step.
    pub fn lengths(&self) -> Vec<i32> {
        self.runs.iter().flat_map(|r| std::iter::repeat_n((r.position + r.tokens) as i32, r.tokens)).collect()
    }

    /// The tokens that want logits.
    pub fn wanted(&self) -> Vec<i32> {
        let mut end = 0;
        let mut wanted = Vec::new();
        for run in &self.runs {
            end += run.tokens;
            wanted.extend((end - run.rows..end).map(|t| t as i32));
        }
        wanted
    }

    /// Blocks that a cache needs for it, and one that no sequence has.
    pub fn blocks(&self, block_tokens: usize) -> usize {
        let longest = self.runs.iter().map(|r| r.position + r.tokens).max().unwrap_or(0);
        longest.div_ceil(block_tokens).max(self.slots) * self.runs.len() + 1
    }

    /// The block of a sequence's position. Consecutive blocks of a sequence are not neighbours,
    /// unless there is a single sequence: then they lie backwards.
    pub fn block(&self, sequence: usize, position: usize, block_tokens: usize) -> usize {
        let blocks = self.blocks(block_tokens);
        blocks - 1 - (sequence + self.runs.len() * (position / block_tokens))
    }

    /// The blocks of a sequence in order, and its slots.
    pub fn table(&self, sequence: usize, block_tokens: usize) -> Vec<i32> {
        let run = self.runs[sequence];
        let blocks = (run.position + run.tokens).div_ceil(block_tokens).max(self.slots);
        (0..blocks).map(|block| self.block(sequence, block * block_tokens, block_tokens) as i32).collect()
    }
}
