//! Places where a reader expects one kernel, or one product, and what the passes made of each.
//! Passes give the reason where they decide.
use std::borrow::Cow;
use std::fmt;

use atomc_ir::{Diagnostic, Graph, NodeId, Value};

use crate::pass::{Cx, Pass};
use crate::pipeline::{self, PASSES};
use crate::{fuse, group, merge_weights, rewrite};

/// The kind of reason that keeps work apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The value exists in memory anyway, because something else reads it.
    ReadElsewhere,
    /// Types of elements or encodings do not agree.
    Type,
    /// Attention, a recurrent state or the caller's work is between.
    Boundary,
    /// Rows, widths or axes do not fit.
    Shape,
    /// Kernels for this chip do not do it.
    Chip,
    /// It does not pay, or is not possible, in steps of this size.
    Step,
    /// No kernel takes such an op in this place.
    Op,
    /// A value on the way comes out of another kernel.
    Order,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 8] = [
        Cause::ReadElsewhere,
        Cause::Type,
        Cause::Boundary,
        Cause::Shape,
        Cause::Chip,
        Cause::Step,
        Cause::Op,
        Cause::Order,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Cause::ReadElsewhere => "read elsewhere",
            Cause::Type => "type",
            Cause::Boundary => "boundary",
            Cause::Shape => "shape",
            Cause::Chip => "chip",
            Cause::Step => "step",
            Cause::Op => "op",
            Cause::Order => "order",
        }
    }
}

/// Why work is not done together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The kind of reason.
    pub cause: Cause,
    /// The reason in words.
    pub text: Cow<'static, str>,
}

impl Why {
    pub(crate) fn new(cause: Cause, text: impl Into<Cow<'static, str>>) -> Why {
        Why { cause, text: text.into() }
    }

    /// The reason that a value is read by more nodes than these, or is a result of the graph.
    pub(crate) fn read_elsewhere(graph: &Graph, v: Value, by: &[NodeId]) -> Why {
        let mut others: Vec<NodeId> = graph.users(v).into_iter().map(|(user, _)| user).collect();
        others.retain(|user| !by.contains(user));
        others.dedup();
        let named = |&id: &NodeId| match graph.location(id) {
            "" => format!("`{}`", graph.op(id).name()),
            location => format!("`{}` of {location}", graph.op(id).name()),
        };
        let text = match &others[..] {
            [] => "it is a result of the step".into(),
            [one] => format!("{} reads it too", named(one)),
            [first, rest @ ..] => format!("{} and {} more read it too", named(first), rest.len()),
        };
        Why::new(Cause::ReadElsewhere, text)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.cause.name(), self.text)
    }
}

/// One place where a reader expects that work is done together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The pass that decides.
    pub pass: &'static str,
    /// The module path.
    pub location: String,
    /// The ops that are done together, or could be, in order.
    pub what: String,
    /// `None` if they are.
    pub why_not: Option<Why>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = if self.location.is_empty() { "?" } else { &self.location };
        write!(f, "{}: {location}: {}", self.pass, self.what)?;
        self.why_not.as_ref().map_or(Ok(()), |why| write!(f, ": not, {why}"))
    }
}

type Explain = fn(&Graph, &Cx) -> Result<Vec<Place>, Diagnostic>;

/// The passes that merge work, each with its explanation of a graph.
const EXPLAINED: &[(&str, Explain)] = &[
    ("merge_weights", merge_weights::explain),
    ("rewrite", rewrite::explain),
    ("group", group::explain),
    ("fuse", fuse::explain),
];

/// Every place of a model's step where a reader expects that work is done together, in the order of
/// the passes that decide.
pub fn explain(model: &Graph, cx: &Cx) -> Result<Vec<Place>, Diagnostic> {
    let mut all = Ok(vec![]);
    let mut before = |pass: &Pass, graph: &Graph| {
        let at = PASSES.iter().position(|other| other.name == pass.name);
        let next = at.and_then(|at| PASSES.get(at + 1));
        let explained = EXPLAINED.iter().find(|(name, _)| next.is_some_and(|next| next.name == *name));
        if let (Some((_, explain)), Ok(places)) = (explained, &mut all) {
            match explain(graph, cx) {
                Ok(found) => places.extend(found),
                Err(e) => all = Err(e),
            }
        }
    };
    pipeline::run(&mut model.clone(), cx, None, &mut before)?;
    all
}

#[cfg(test)]
mod tests;
