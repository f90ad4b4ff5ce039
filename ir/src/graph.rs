//! The graph: nodes in a petgraph that is private to this file.
//!
//! Operand order is a slot on each edge, because petgraph yields incoming edges newest first.
use std::fmt;

use petgraph::Direction::{Incoming, Outgoing};
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;

use crate::Diagnostic;
use crate::ops::Op;
use crate::types::Type;

/// A node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(NodeIndex);

/// One result of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// The number of the result.
    pub out: usize,
}

impl From<NodeId> for Value {
    fn from(node: NodeId) -> Value {
        Value { node, out: 0 }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0.index())
    }
}

#[derive(Clone, Debug)]
struct Node {
    op: Op,
    types: Vec<Type>,
    location: String,
    segment: Option<usize>,
}

#[derive(Clone, Debug)]
struct Use {
    slot: usize,
    out: usize,
}

/// A step of a model, or the body of a kernel.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The name in the text form.
    pub name: String,
    nodes: StableDiGraph<Node, Use>,
    inputs: Vec<NodeId>,
    outputs: Vec<Value>,
    /// What each output is called; empty for those without a name.
    names: Vec<String>,
}

impl Graph {
    /// A graph without nodes.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), nodes: StableDiGraph::new(), inputs: vec![], outputs: vec![], names: vec![] }
    }

    /// A new parameter.
    pub fn input(&mut self, name: impl Into<String>, ty: Type) -> Value {
        let id = self.add(Op::Input { name: name.into() }, &[], vec![ty], "");
        self.inputs.push(id);
        id.into()
    }

    /// A new node with types that follow from its op and operands.
    pub fn push(&mut self, op: Op, operands: &[Value], location: &str) -> Result<NodeId, Diagnostic> {
        let types: Vec<&Type> = operands.iter().map(|&v| self.ty(v)).collect();
        let types =
            op.infer(&types).map_err(|e| Diagnostic::new("ir::type", format!("{}: {e}", op.name())).at(location))?;
        Ok(self.add(op, operands, types, location))
    }

    /// A new node of these types. For sources, which have given types, and for the parser; the
    /// verifier checks the rest.
    pub fn add(&mut self, op: Op, operands: &[Value], types: Vec<Type>, location: &str) -> NodeId {
        let id = self.nodes.add_node(Node { op, types, location: location.to_string(), segment: None });
        for (slot, v) in operands.iter().enumerate() {
            self.nodes.add_edge(v.node.0, id, Use { slot, out: v.out });
        }
        NodeId(id)
    }

    /// The graph returns these, without names: the results of a kernel's body go by their order.
    pub fn set_outputs(&mut self, outputs: Vec<Value>) {
        self.names = vec![String::new(); outputs.len()];
        self.outputs = outputs;
    }

    /// The graph returns these, each under its name, or without one if it is empty.
    pub fn set_results(&mut self, results: impl IntoIterator<Item = (String, Value)>) {
        (self.names, self.outputs) = results.into_iter().unzip();
    }

    /// The parameters, in order.
    pub fn inputs(&self) -> Vec<Value> {
        self.inputs.iter().map(|&n| n.into()).collect()
    }

    /// What the graph returns, in order.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// The outputs with their names.
    pub fn results(&self) -> impl Iterator<Item = (&str, Value)> {
        self.names.iter().map(String::as_str).zip(self.outputs.iter().copied())
    }

    /// The output of this name.
    pub fn result(&self, name: &str) -> Option<Value> {
        self.results().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// What a node does.
    pub fn op(&self, id: NodeId) -> &Op {
        &self.nodes[id.0].op
    }

    /// The types of a node's results.
    pub fn types(&self, id: NodeId) -> &[Type] {
        &self.nodes[id.0].types
    }

    /// The type of a value.
    pub fn ty(&self, v: Value) -> &Type {
        &self.nodes[v.node.0].types[v.out]
    }

    /// The Hugging Face module path that the node came from.
    pub fn location(&self, id: NodeId) -> &str {
        &self.nodes[id.0].location
    }

    /// Number of the segment, once the graph is split.
    pub fn segment(&self, id: NodeId) -> Option<usize> {
        self.nodes[id.0].segment
    }

    /// Gives a node the number of its segment.
    pub fn set_segment(&mut self, id: NodeId, segment: usize) {
        self.nodes[id.0].segment = Some(segment);
    }

    /// Every node, in no promised order: what [`Graph::order`] is for.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.node_indices().map(NodeId)
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.node_count()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The operands of a node, in the order of their slots.
    pub fn operands(&self, id: NodeId) -> Vec<Value> {
        let mut uses: Vec<_> = self.nodes.edges_directed(id.0, Incoming).collect();
        uses.sort_by_key(|e| e.weight().slot);
        uses.iter().map(|e| Value { node: NodeId(e.source()), out: e.weight().out }).collect()
    }

    /// The nodes and slots that read a value, in a fixed order. Being an output of the graph is no
    /// use.
    pub fn users(&self, v: Value) -> Vec<(NodeId, usize)> {
        let edges = self.nodes.edges_directed(v.node.0, Outgoing).filter(|e| e.weight().out == v.out);
        let mut users: Vec<_> = edges.map(|e| (NodeId(e.target()), e.weight().slot)).collect();
        users.sort();
        users
    }

    /// Whether the graph returns a value.
    pub fn is_output(&self, v: Value) -> bool {
        self.outputs.contains(&v)
    }

    /// Everything that read `old`, the outputs included, reads `new`.
    pub fn replace_uses(&mut self, old: Value, new: Value) {
        let edges: Vec<_> = self
            .nodes
            .edges_directed(old.node.0, Outgoing)
            .filter(|e| e.weight().out == old.out)
            .map(|e| e.id())
            .collect();
        for e in edges {
            let (_, user) = self.nodes.edge_endpoints(e).expect("an edge that was just listed");
            let slot = self.nodes.remove_edge(e).expect("an edge that was just listed").slot;
            self.nodes.add_edge(new.node.0, user, Use { slot, out: new.out });
        }
        for out in &mut self.outputs {
            if *out == old {
                *out = new;
            }
        }
    }

    /// Removes every node that no output depends on; parameters stay. Returns how many went.
    pub fn sweep(&mut self) -> usize {
        let live: std::collections::BTreeSet<NodeId> =
            self.reach(self.outputs.iter().map(|v| v.node)).into_iter().collect();
        let before = self.nodes.node_count();
        let keep: Vec<bool> = (0..=self.nodes.node_indices().next_back().map_or(0, |i| i.index()))
            .map(|i| live.contains(&NodeId(NodeIndex::new(i))) || self.inputs.contains(&NodeId(NodeIndex::new(i))))
            .collect();
        self.nodes.retain_nodes(|_, i| keep[i.index()]);
        before - self.nodes.node_count()
    }

    /// All nodes, operands before users: parameters, then depth first from the outputs, then what
    /// no output reaches. The order follows from the structure alone, so a graph and its parsed
    /// print have the same one.
    pub fn order(&self) -> Vec<NodeId> {
        let rest: Vec<NodeId> = self.ids().collect();
        self.reach(self.inputs.iter().copied().chain(self.outputs.iter().map(|v| v.node)).chain(rest))
    }

    /// Depth-first post-order from these nodes. A cycle, which only a bug can make, ends where it
    /// closes.
    fn reach(&self, roots: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
        let mut seen = vec![false; self.nodes.node_indices().next_back().map_or(0, |i| i.index() + 1)];
        let mut order = Vec::new();
        let mut stack: Vec<(NodeId, Vec<Value>, usize)> = Vec::new();
        for root in roots {
            if !std::mem::replace(&mut seen[root.0.index()], true) {
                stack.push((root, self.operands(root), 0));
            }
            while let Some((id, operands, next)) = stack.last_mut() {
                if let Some(v) = operands.get(*next) {
                    *next += 1;
                    let node = v.node;
                    if !std::mem::replace(&mut seen[node.0.index()], true) {
                        stack.push((node, self.operands(node), 0));
                    }
                } else {
                    order.push(*id);
                    stack.pop();
                }
            }
        }
        order
    }
}
