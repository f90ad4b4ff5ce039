//! Applies the fusion rules, which are written in the IR's own text.
//!
//! ```text
//! %0 = silu %gate
//! %1 = mul %0, %up      =>    %0 = silu_mul %gate, %up
//! return %1                   return %0
//! ```
//!
//! One walk in order. At each node the rules are tried in the order of the table until none fires.
mod pattern;
mod rules;

use atomc_ir::results::HIDDEN;
use atomc_ir::{Diagnostic, Graph, NodeId, Value};

use crate::explain::{Cause, Place, Why};
use crate::pass::{Changed, Cx};
use pattern::{Match, Miss, Pattern};
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

/// For each rule, in order: where it fires, and where it nearly fires: its root is there with a
/// node before it, or that node without its root.
pub fn explain(graph: &Graph, _: &Cx) -> Result<Vec<Place>, Diagnostic> {
    let rules: Vec<Prepared> = RULES.iter().map(Prepared::new).collect();
    let mut all = Vec::new();
    for rule in &rules {
        for id in graph.order() {
            let Some(outcome) = rule.fires_at(graph, id) else { continue };
            let (location, what) = (graph.location(id).into(), rule.name.into());
            all.push(Place { pass: "rewrite", location, what, why_not: outcome.err() });
        }
    }
    Ok(all)
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

    /// The values that the rule's pattern matches at `root`.
    fn fits(&self, graph: &Graph, root: NodeId) -> Result<Match, Miss> {
        let found = self.find.matched(graph, root)?;
        let is_hidden = graph.result(HIDDEN) == Some(root.into());
        let fits = match is_hidden && self.make.graph.op(self.make.root()).is_call() {
            true => Err(Why::new(Cause::Op, "kernels make hidden rows, not calls")),
            false => self.make.fits(graph, root, &found),
        };
        fits.map_err(|why| Miss { nodes: found.nodes.len(), why: Some(why) })?;
        Ok(found)
    }

    /// Whether the rule fires at a node, or why not; `None` where no one would expect it to.
    fn fires_at(&self, graph: &Graph, id: NodeId) -> Option<Result<(), Why>> {
        if self.find.roots_at(graph, id) {
            return match self.fits(graph, id) {
                Ok(_) => Some(Ok(())),
                // The root alone gives no reason to expect the rest.
                Err(miss) => miss.why.filter(|_| miss.nodes > 1).map(Err),
            };
        }
        let read = graph.users(Value::from(id)).iter().any(|&(user, _)| self.find.roots_at(graph, user));
        let root = self.find.graph.op(self.find.root()).name();
        let lost = || Err(Why::new(Cause::Op, format!("no `{root}` reads `{}`", graph.op(id).name())));
        (self.find.has(graph.op(id)) && !read).then(lost)
    }

    /// Fires at `root` if it can, and returns the new root.
    fn apply(&self, graph: &mut Graph, root: NodeId) -> Option<NodeId> {
        if !self.find.roots_at(graph, root) {
            return None;
        }
        let found = self.fits(graph, root).ok()?;
        let made = self.make.build(graph, root, &found);
        graph.replace_uses(root.into(), made);
        tracing::trace!(rule = self.name, at = graph.location(root), "fires");
        Some(made.node)
    }
}

#[cfg(test)]
mod tests;
