//! The automatic prefix cache: a radix tree of what sequences that have ended left in the engine.
//!
//! An edge is a run of tokens. Edges are cut where blocks end, and only a leaf may end inside one.
//! Each leaf has a sequence of the engine that holds all tokens from the root to the leaf; inner
//! nodes have none, as any leaf below holds their tokens. When memory is wanted the leaf goes that
//! was used longest ago. If it was the last below its parent its sequence is taken back to where
//! the parent ends, so that what was used more lately stays.
use atomc_runtime::{SeqId, StepError};

use super::backend::Backend;

/// What is retained.
#[derive(Debug)]
pub struct Prefixes {
    /// The first is the root, which has no tokens. Nodes that are gone are empty until they are
    /// used again.
    nodes: Vec<Node>,
    unused: Vec<usize>,
    block: usize,
    clock: u64,
    leaves: usize,
    /// Most leaves.
    most: usize,
}

#[derive(Debug, Default)]
struct Node {
    parent: usize,
    /// Tokens behind the parent's.
    edge: Vec<u32>,
    children: Vec<usize>,
    /// Of leaves.
    sequence: Option<SeqId>,
    used: u64,
}

/// Where a list of tokens leaves the tree.
struct Place {
    node: usize,
    /// Tokens up to the beginning of the node's edge.
    before: usize,
    /// Tokens of the edge that agree.
    along: usize,
}

/// A retained sequence that begins like others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The sequence.
    pub sequence: SeqId,
    /// First tokens that are the same.
    pub tokens: usize,
}

/// How many tokens two lists have in common at their beginnings.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Prefixes {
    /// With blocks of so many tokens, and at most so many sequences.
    pub fn new(block: usize, most: usize) -> Prefixes {
        Prefixes { nodes: vec![Node::default()], unused: vec![], block: block.max(1), clock: 0, leaves: 0, most }
    }

    /// Sequences that are retained.
    pub fn len(&self) -> usize {
        self.leaves
    }

    /// Whether nothing is retained.
    pub fn is_empty(&self) -> bool {
        self.leaves == 0
    }

    /// The sequence with the longest common beginning, which counts as a use of that.
    pub fn find(&mut self, tokens: &[u32]) -> Option<Match> {
        let mut place = self.walk(tokens);
        let found = place.before + place.along;
        if found == 0 {
            return None;
        }
        let whole = place.along / self.block * self.block;
        if whole > 0 && whole < self.nodes[place.node].edge.len() {
            // What was used is apart from what was not from now on.
            place.node = self.split(place.node, whole);
        }
        self.touch(place.node);
        Some(Match { sequence: self.sequence_below(place.node)?, tokens: found })
    }

    /// Retains a sequence that has these tokens, unless all of them are retained already.
    pub fn insert<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        sequence: SeqId,
        tokens: &[u32],
    ) -> Result<(), StepError> {
        if self.most == 0 || tokens.is_empty() {
            return backend.drop_sequence(sequence);
        }
        let place = self.walk(tokens);
        if place.before + place.along == tokens.len() {
            self.touch(place.node);
            return backend.drop_sequence(sequence);
        }
        self.graft(backend, place, sequence, tokens)?;
        while self.leaves > self.most {
            self.evict(backend)?;
        }
        Ok(())
    }

    /// Lets go of what was used longest ago. Says whether there was anything.
    pub fn evict<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<bool, StepError> {
        let leaves = self.nodes.iter().enumerate().filter(|(_, node)| node.sequence.is_some());
        let Some((leaf, _)) = leaves.min_by_key(|(_, node)| node.used) else { return Ok(false) };
        let Some(sequence) = self.nodes[leaf].sequence.take() else { return Ok(false) };
        let parent = self.remove(leaf);
        self.leaves -= 1;
        if parent == 0 || !self.nodes[parent].children.is_empty() {
            backend.drop_sequence(sequence)?;
            return Ok(true);
        }
        let end = self.end(parent);
        if backend.rewind(sequence, end)? == end {
            self.nodes[parent].sequence = Some(sequence);
            self.leaves += 1;
            return Ok(true);
        }
        // It cannot go back that far alone.
        backend.drop_sequence(sequence)?;
        let mut bare = parent;
        while bare != 0 && self.nodes[bare].children.is_empty() {
            bare = self.remove(bare);
        }
        Ok(true)
    }

    /// Lets go of everything.
    pub fn clear<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<(), StepError> {
        let sequences: Vec<SeqId> = self.nodes.iter_mut().filter_map(|node| node.sequence.take()).collect();
        *self = Prefixes::new(self.block, self.most);
        // All of them, whatever becomes of one.
        sequences.into_iter().map(|sequence| backend.drop_sequence(sequence)).fold(Ok(()), Result::and)
    }

    /// The deepest node that tokens reach, and how far.
    fn walk(&self, tokens: &[u32]) -> Place {
        let mut place = Place { node: 0, before: 0, along: 0 };
        loop {
            let rest = &tokens[place.before + place.along..];
            let agree = |&child: &usize| (common(&self.nodes[child].edge, rest), child);
            let best = self.nodes[place.node].children.iter().map(agree).max_by_key(|&(agree, _)| agree);
            let Some((along, node)) = best.filter(|&(along, _)| along > 0) else { return place };
            place = Place { node, before: place.before + place.along, along };
            if along < self.nodes[node].edge.len() {
                return place;
            }
        }
    }

    /// Puts a sequence where its tokens leave the tree.
    fn graft<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        place: Place,
        sequence: SeqId,
        tokens: &[u32],
    ) -> Result<(), StepError> {
        let Place { node, before, along } = place;
        let is_whole = along == self.nodes[node].edge.len();
        if is_whole && let Some(shorter) = self.nodes[node].sequence.take() {
            // It goes on from a leaf: what it holds is all of that, and more.
            self.nodes[node].sequence = Some(sequence);
            self.nodes[node].edge.extend_from_slice(&tokens[before + along..]);
            self.touch(node);
            return backend.drop_sequence(shorter);
        }
        let whole = along / self.block * self.block;
        let parent = match (is_whole, whole) {
            (true, _) => node,
            (false, 0) => self.nodes[node].parent,
            (false, whole) => self.split(node, whole),
        };
        let start = self.end(parent);
        let leaf =
            self.add(Node { parent, edge: tokens[start..].to_vec(), sequence: Some(sequence), ..Node::default() });
        self.nodes[parent].children.push(leaf);
        self.leaves += 1;
        self.touch(leaf);
        Ok(())
    }

    /// Cuts the edge of a node, and gives the node of its first part.
    fn split(&mut self, node: usize, at: usize) -> usize {
        let Node { parent, used, .. } = self.nodes[node];
        let rest = self.nodes[node].edge.split_off(at);
        let first = std::mem::replace(&mut self.nodes[node].edge, rest);
        let upper = self.add(Node { parent, edge: first, children: vec![node], sequence: None, used });
        self.nodes[node].parent = upper;
        self.nodes[parent].children.iter_mut().filter(|child| **child == node).for_each(|child| *child = upper);
        upper
    }

    fn add(&mut self, node: Node) -> usize {
        match self.unused.pop() {
            Some(index) => {
                self.nodes[index] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    /// Takes a node without children out, and gives its parent.
    fn remove(&mut self, node: usize) -> usize {
        let Node { parent, .. } = std::mem::take(&mut self.nodes[node]);
        self.nodes[parent].children.retain(|&child| child != node);
        self.unused.push(node);
        parent
    }

    /// Tokens from the root to the end of a node.
    fn end(&self, node: usize) -> usize {
        if node == 0 { 0 } else { self.nodes[node].edge.len() + self.end(self.nodes[node].parent) }
    }

    fn touch(&mut self, node: usize) {
        self.clock += 1;
        let mut at = node;
        while at != 0 {
            self.nodes[at].used = self.clock;
            at = self.nodes[at].parent;
        }
    }

    fn sequence_below(&self, node: usize) -> Option<SeqId> {
        let Node { sequence, children, .. } = &self.nodes[node];
        sequence.or_else(|| self.sequence_below(*children.first()?))
    }
}

#[cfg(test)]
mod tests;
