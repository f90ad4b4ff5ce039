//! The automatic prefix cache: a radix tree of sequences that have ended and stay in the engine.
//!
//! An edge is a run of tokens. Edges are cut at the ends of blocks, and only a leaf may end inside
//! one. Each leaf has a sequence of the engine that holds all tokens from the root to the leaf;
//! inner nodes have none, as any leaf below holds their tokens. When memory is needed, the leaf
//! with the oldest use is dropped. If it was the last one below its parent its sequence is cut to
//! the end of the parent, so that tokens of later use stay.
//!
//! Each party has a tree of its own: a prompt of one never finds tokens of another.
//!
//! Leaves that are dropped for memory may go to a place outside the engine ([`Offload`]).
use std::collections::BTreeMap;

use crate::offload::{self, Offload};
use crate::{SeqId, StepError};

use super::backend::Backend;
use super::task::Party;

/// What is retained.
#[derive(Debug)]
pub struct Prefixes {
    /// Those that are gone are empty until they are used again.
    nodes: Vec<Node>,
    /// The node that each tree begins with, which has no tokens.
    roots: BTreeMap<Party, usize>,
    unused: Vec<usize>,
    block: usize,
    clock: u64,
    leaves: usize,
    /// Most leaves.
    most: usize,
    /// Where leaves go that are dropped for memory.
    offload: Option<Offload>,
}

#[derive(Debug, Default)]
struct Node {
    /// None of roots.
    parent: Option<usize>,
    /// Tokens after the parent's.
    edge: Vec<u32>,
    children: Vec<usize>,
    /// Of leaves.
    sequence: Option<SeqId>,
    used: u64,
}

/// The place at which a list of tokens leaves the tree.
struct Place {
    node: usize,
    /// Tokens up to the beginning of the node's edge.
    before: usize,
    /// Tokens of the edge that agree.
    along: usize,
}

/// Tokens of a party.
#[derive(Clone, Copy, Debug)]
pub struct Owned<'a> {
    /// Sequences are shared only with others of this party.
    pub party: &'a Party,
    /// The tokens.
    pub tokens: &'a [u32],
}

/// A retained sequence that begins like others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The sequence.
    pub sequence: SeqId,
    /// First tokens that are the same.
    pub tokens: usize,
}

/// The length of the common beginning of two lists.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Prefixes {
    /// A tree with blocks of `block` tokens, and at most `most` sequences.
    pub fn new(block: usize, most: usize) -> Prefixes {
        Prefixes {
            nodes: vec![],
            roots: BTreeMap::new(),
            unused: vec![],
            block: block.max(1),
            clock: 0,
            leaves: 0,
            most,
            offload: None,
        }
    }

    /// Has leaves that are dropped for memory go to another place.
    pub fn leave_to(&mut self, offload: Offload) {
        self.offload = Some(offload);
    }

    /// Counts of that place.
    pub fn offloaded(&self) -> Option<offload::Counts> {
        self.offload.as_ref().map(Offload::counts)
    }

    /// Lengthens a sequence that has the first `have` of a prompt's tokens by what that place has
    /// of the next ones. Returns the tokens that it has then.
    pub fn bring<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        sequence: SeqId,
        prompt: (Owned, usize),
    ) -> Result<usize, StepError> {
        match &mut self.offload {
            Some(offload) => offload.bring(backend, sequence, prompt),
            None => Ok(prompt.1),
        }
    }

    /// Has everything go to that place, and to files if it has some.
    pub fn save<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<(), StepError> {
        if self.offload.is_some() {
            while self.evict(backend)? {}
        }
        self.offload.iter_mut().for_each(Offload::flush);
        Ok(())
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
    pub fn find(&mut self, Owned { party, tokens }: Owned) -> Option<Match> {
        let mut place = self.walk(*self.roots.get(party)?, tokens);
        let found = place.before + place.along;
        if found == 0 {
            return None;
        }
        let whole = place.along / self.block * self.block;
        if whole > 0 && whole < self.nodes[place.node].edge.len() {
            // The used part is separate from the rest from now on.
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
        Owned { party, tokens }: Owned,
    ) -> Result<(), StepError> {
        if self.most == 0 || tokens.is_empty() {
            return backend.drop_sequence(sequence);
        }
        let root = self.root(party);
        let place = self.walk(root, tokens);
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

    /// Drops the leaf with the oldest use. Returns whether there was one.
    pub fn evict<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<bool, StepError> {
        let leaves = self.nodes.iter().enumerate().filter(|(_, node)| node.sequence.is_some());
        let Some((leaf, _)) = leaves.min_by_key(|(_, node)| node.used) else { return Ok(false) };
        let Some(sequence) = self.nodes[leaf].sequence.take() else { return Ok(false) };
        let left = self.leave(backend, leaf, sequence);
        let parent = self.remove(leaf);
        self.leaves -= 1;
        // It is dropped even if it could not be left.
        left.or_else(|error| backend.drop_sequence(sequence).and(Err(error)))?;
        let Some(parent) = parent.filter(|&parent| self.is_bare(parent)) else {
            backend.drop_sequence(sequence)?;
            return Ok(true);
        };
        let end = self.end(parent);
        if backend.rewind(sequence, end)? == end {
            self.nodes[parent].sequence = Some(sequence);
            self.leaves += 1;
            return Ok(true);
        }
        // It cannot go back that far alone.
        backend.drop_sequence(sequence)?;
        let mut bare = Some(parent);
        while let Some(node) = bare.filter(|&node| self.is_bare(node)) {
            bare = self.remove(node);
        }
        Ok(true)
    }

    /// Has a leaf go to the place outside the engine, except for what its parent has too.
    fn leave<B: Backend + ?Sized>(&mut self, backend: &mut B, leaf: usize, sequence: SeqId) -> Result<(), StepError> {
        let Some(mut offload) = self.offload.take() else { return Ok(()) };
        let (mut edges, mut at) = (vec![], leaf);
        while let Some(parent) = self.nodes[at].parent {
            edges.push(&self.nodes[at].edge[..]);
            at = parent;
        }
        edges.reverse();
        let from = self.end(leaf) - self.nodes[leaf].edge.len();
        let party = self.roots.iter().find(|(_, root)| **root == at).map(|(party, _)| party);
        let saved = party.map_or(Ok(()), |party| {
            let tokens = edges.concat();
            offload.save(backend, sequence, (Owned { party, tokens: &tokens }, from))
        });
        self.offload = Some(offload);
        saved
    }

    /// Lets go of everything in the engine.
    pub fn clear<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<(), StepError> {
        let sequences: Vec<SeqId> = self.nodes.iter_mut().filter_map(|node| node.sequence.take()).collect();
        let offload = self.offload.take();
        *self = Prefixes { offload, ..Prefixes::new(self.block, self.most) };
        // All of them, even if one fails.
        sequences.into_iter().map(|sequence| backend.drop_sequence(sequence)).fold(Ok(()), Result::and)
    }

    /// The root of a party's tree.
    fn root(&mut self, party: &Party) -> usize {
        if let Some(&root) = self.roots.get(party) {
            return root;
        }
        let root = self.add(Node::default());
        self.roots.insert(party.clone(), root);
        root
    }

    /// Whether a node below a root has nothing below itself.
    fn is_bare(&self, node: usize) -> bool {
        self.nodes[node].parent.is_some() && self.nodes[node].children.is_empty()
    }

    /// The deepest node that tokens reach from a root, and how far.
    fn walk(&self, root: usize, tokens: &[u32]) -> Place {
        let mut place = Place { node: root, before: 0, along: 0 };
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

    /// Adds a sequence at the place at which its tokens leave the tree.
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
            // It continues a leaf, and holds all of the leaf's tokens.
            self.nodes[node].sequence = Some(sequence);
            self.nodes[node].edge.extend_from_slice(&tokens[before + along..]);
            self.touch(node);
            return backend.drop_sequence(shorter);
        }
        let whole = along / self.block * self.block;
        let parent = match (is_whole, whole, self.nodes[node].parent) {
            (false, 0, Some(parent)) => parent,
            (false, 1.., _) => self.split(node, whole),
            _ => node,
        };
        let start = self.end(parent);
        let leaf = self.add(Node {
            parent: Some(parent),
            edge: tokens[start..].to_vec(),
            sequence: Some(sequence),
            ..Node::default()
        });
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
        self.nodes[node].parent = Some(upper);
        if let Some(parent) = parent {
            let siblings = &mut self.nodes[parent].children;
            siblings.iter_mut().filter(|child| **child == node).for_each(|child| *child = upper);
        }
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

    /// Removes a node without children, and returns its parent. A root is removed with its last
    /// child.
    fn remove(&mut self, node: usize) -> Option<usize> {
        let parent = std::mem::take(&mut self.nodes[node]).parent;
        self.unused.push(node);
        let above = parent?;
        self.nodes[above].children.retain(|&child| child != node);
        if self.nodes[above].parent.is_none() && self.nodes[above].children.is_empty() {
            self.roots.retain(|_, &mut root| root != above);
            self.unused.push(above);
            return None;
        }
        parent
    }

    /// Tokens from the root to the end of a node.
    fn end(&self, node: usize) -> usize {
        self.nodes[node].parent.map_or(0, |parent| self.nodes[node].edge.len() + self.end(parent))
    }

    fn touch(&mut self, node: usize) {
        self.clock += 1;
        let mut at = Some(node);
        while let Some(node) = at {
            self.nodes[node].used = self.clock;
            at = self.nodes[node].parent;
        }
    }

    fn sequence_below(&self, node: usize) -> Option<SeqId> {
        let Node { sequence, children, .. } = &self.nodes[node];
        sequence.or_else(|| self.sequence_below(*children.first()?))
    }
}

#[cfg(test)]
mod tests;
