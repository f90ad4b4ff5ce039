//! What a pass is.
use atomc_ir::{Arch, Diagnostic, Graph, Stage};

use crate::bucket::Bucket;

/// The facts that a pass may use in addition to the graph.
#[derive(Clone, Copy, Debug)]
pub struct Cx<'a> {
    pub arch: &'a Arch,
    pub bucket: Bucket,
    /// Whether a row's bits must not depend on the other rows of its step, nor on the bucket.
    pub invariant: bool,
}

impl Cx<'_> {
    /// Whether kernels are made for the few rows of a decode step. They differ from those of many
    /// rows, and so do a row's bits.
    pub fn is_for_few(&self) -> bool {
        self.bucket.is_few() && !self.invariant
    }

    /// Whether kernels attend with one token of each sequence, and make its key and value
    /// themselves.
    pub fn attends_with_one(&self) -> bool {
        self.bucket.is_decode() && !self.invariant
    }

    /// Most tokens of a sequence, where kernels are made for a few of each.
    pub fn verified(&self) -> Option<usize> {
        self.bucket.each().filter(|&each| each > 1 && !self.invariant)
    }

    /// Whether a kernel of its own quantises rows of this width: in a decode step a few rows are
    /// quantised where they are multiplied.
    pub fn codes_apart(&self, width: usize) -> bool {
        let tokens = self.bucket.tokens();
        !self.is_for_few() || tokens * width > self.arch.requantised.most(tokens)
    }
}

/// Whether a pass changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    No,
    Yes,
}

impl From<bool> for Changed {
    fn from(changed: bool) -> Changed {
        if changed { Changed::Yes } else { Changed::No }
    }
}

/// One rewrite of the whole graph. It may leave nodes that have no readers; the driver removes
/// them.
#[derive(Clone, Copy)]
pub struct Pass {
    pub name: &'static str,
    /// The stage of the graph after the pass. The verifier checks its rules.
    pub stage: Stage,
    pub run: fn(&mut Graph, &Cx) -> Result<Changed, Diagnostic>,
}

impl Pass {
    /// Runs the pass and cleans up after it. The result is not verified here.
    pub(crate) fn apply(&self, graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
        let changed = (self.run)(graph, cx)?;
        if changed == Changed::Yes {
            graph.sweep();
        }
        Ok(changed)
    }
}
