//! What is legal, at every stage. Collects all errors and prints them inside the listing.
use std::collections::HashMap;
use std::fmt;

use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Class, Op, Stage};
use crate::types::{Layout, Type};

/// Everything that is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    pub messages: Vec<String>,
    /// The graph's text with each message below its line.
    pub listing: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in\n{}", self.messages.join("; "), self.listing)
    }
}

impl std::error::Error for VerifyError {}

#[derive(Default)]
struct Errors {
    nodes: HashMap<NodeId, Vec<String>>,
    messages: Vec<String>,
}

impl Errors {
    fn add(&mut self, id: NodeId, message: String) {
        self.nodes.entry(id).or_default().push(message.clone());
        self.messages.push(message);
    }
}

impl Graph {
    /// Rules that hold at every stage.
    pub fn verify(&self) -> Result<(), VerifyError> {
        self.verify_at(Stage::Model)
    }

    /// The rules of a stage and of all before it.
    pub fn verify_at(&self, stage: Stage) -> Result<(), VerifyError> {
        let mut errors = Errors::default();
        let order = self.order();
        let place: HashMap<NodeId, usize> = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        if self.outputs().is_empty() {
            errors.messages.push("the graph returns nothing".into());
        }
        for &id in &order {
            self.check_operands(id, &place, &mut errors);
            self.check_types(id, &mut errors);
            self.check_caches(id, &mut errors);
            self.check_stage(id, stage, &mut errors);
        }
        if errors.messages.is_empty() {
            return Ok(());
        }
        let listing = self.print_with(&|id| errors.nodes.get(&id).cloned().unwrap_or_default());
        Err(VerifyError { messages: errors.messages, listing })
    }

    fn check_operands(&self, id: NodeId, place: &HashMap<NodeId, usize>, errors: &mut Errors) {
        for v in self.operands(id) {
            if place[&v.node] >= place[&id] {
                errors.add(id, "the graph has a cycle".into());
            }
            if v.out >= self.types(v.node).len() {
                errors.add(id, format!("reads result {} of a node with {}", v.out, self.types(v.node).len()));
            }
        }
    }

    fn check_types(&self, id: NodeId, errors: &mut Errors) {
        for ty in self.types(id) {
            if let Type::Tensor(t) = ty
                && !t.shape.well_formed()
            {
                errors.add(id, format!("{ty}: only the first axis may be symbolic, and none may be zero"));
            }
        }
        if self.op(id).class() == Class::Source {
            return;
        }
        let operands = self.operands(id);
        if operands.iter().any(|v| v.out >= self.types(v.node).len()) {
            return;
        }
        let types: Vec<&Type> = operands.iter().map(|&v| self.ty(v)).collect();
        match self.op(id).infer(&types) {
            Err(e) => errors.add(id, format!("{}: {e}", self.op(id).name())),
            Ok(want) if want != self.types(id) => {
                let list = |types: &[Type]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
                errors.add(id, format!("has type {}, should be {}", list(self.types(id)), list(&want)));
            }
            Ok(_) => {}
        }
        if let Op::Kernel { body, .. } = self.op(id)
            && let Err(e) = body.verify()
        {
            errors.add(id, format!("body: {}", e.messages.join("; ")));
        }
    }

    /// A cache state is changed at most once: otherwise two histories of one buffer would exist. A state that is changed is not
    /// read any more, or a later write could be seen by an earlier read.
    fn check_caches(&self, id: NodeId, errors: &mut Errors) {
        for out in 0..self.types(id).len() {
            let v = Value { node: id, out };
            if self.ty(v).as_cache().is_none() {
                continue;
            }
            let users = self.users(v);
            let writes =
                users.iter().filter(|(user, _)| self.types(*user).iter().any(|t| t.as_cache().is_some())).count();
            if writes > 1 || writes == 1 && (users.len() > 1 || self.is_output(v)) {
                errors.add(
                    id,
                    format!(
                        "a cache state that is written has one user, not {}",
                        users.len() + self.is_output(v) as usize
                    ),
                );
            }
        }
    }

    fn check_stage(&self, id: NodeId, stage: Stage, errors: &mut Errors) {
        let op = self.op(id);
        let constant = self.is_constant(id);
        if stage >= Stage::Segmented {
            if self.segment(id).is_none() && !constant && !matches!(op, Op::Input { .. }) {
                errors.add(id, "has no segment".into());
            }
            if let Op::Linear { .. } = op
                && self.ty(self.operands(id)[1]).as_tensor().is_some_and(|t| t.layout != Layout::Panels)
            {
                errors.add(id, "its weight is not packed".into());
            }
        }
        if stage >= Stage::Fused && !constant && !matches!(op, Op::Input { .. } | Op::Kernel { .. }) {
            errors.add(id, format!("`{}` is in no kernel", op.name()));
        }
    }

    /// Whether a node depends on weights and constants alone, through ops that a weight plan may hold.
    pub fn is_constant(&self, id: NodeId) -> bool {
        match self.op(id).class() {
            Class::Source => matches!(self.op(id), Op::Weight { .. }),
            Class::Layout => self.operands(id).iter().all(|v| self.is_constant(v.node)),
            _ => false,
        }
    }
}
