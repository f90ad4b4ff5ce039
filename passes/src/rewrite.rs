//! Applies the fusion rules, which are written in the IR's own text.
//!
//! ```text
//! %0 = silu %gate
//! %1 = mul %0, %up      =>    %0 = silu_mul %gate, %up
//! return %1                   return %0
//! ```
//!
//! One walk in order; at each node the rules are tried in the order of the table until none fires.
mod pattern;
mod rules;

use std::fmt;

use atomc_ir::{Diagnostic, Graph, NodeId};

use crate::pass::{Changed, Cx};
use pattern::Pattern;
pub use rules::{RULES, Rule};

pub fn run(graph: &mut Graph, _: &Cx) -> Result<Changed, Diagnostic> {
    let rules: Vec<Prepared> = RULES.iter().map(Prepared::new).collect();
    let mut changed = false;
    for id in graph.order() {
        let mut root = id;
        while let Some(made) = rules.iter().find_map(|r| r.apply(graph, root)) {
            root = made;
            changed = true;
        }
    }
    Ok(changed.into())
}

/// What one rule thinks of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub rule: &'static str,
    pub root: NodeId,
    /// The module path of the root.
    pub location: String,
    /// `None` if the rule fires.
    pub why_not: Option<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: ", self.rule, if self.location.is_empty() { "?" } else { &self.location })?;
        f.write_str(self.why_not.as_deref().unwrap_or("fires"))
    }
}

/// For each rule and each node that could be its root, in order: whether it would fire on the graph
/// as it is, or why not.
pub fn explain(graph: &Graph) -> Vec<Explanation> {
    let rules: Vec<Prepared> = RULES.iter().map(Prepared::new).collect();
    let mut all = Vec::new();
    for root in graph.order() {
        for r in rules.iter().filter(|r| r.find.roots_at(graph, root)) {
            let why_not = r.find.matched(graph, root).and_then(|m| r.make.fits(graph, root, &m)).err();
            all.push(Explanation { rule: r.name, root, location: graph.location(root).to_string(), why_not });
        }
    }
    all
}

/// A rule with its text read.
struct Prepared {
    name: &'static str,
    find: Pattern,
    make: Pattern,
}

impl Prepared {
    fn new(rule: &Rule) -> Prepared {
        Prepared { name: rule.name, find: Pattern::new(rule.find), make: Pattern::new(rule.make) }
    }

    /// Fires at `root` if it can; gives the new root.
    fn apply(&self, graph: &mut Graph, root: NodeId) -> Option<NodeId> {
        if !self.find.roots_at(graph, root) {
            return None;
        }
        let found = self.find.matched(graph, root).ok()?;
        self.make.fits(graph, root, &found).ok()?;
        let made = self.make.build(graph, root, &found);
        graph.replace_uses(root.into(), made);
        tracing::trace!(rule = self.name, at = graph.location(root), "fires");
        Some(made.node)
    }
}

#[cfg(test)]
mod tests;
