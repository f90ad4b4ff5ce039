//! Turns a region into a kernel node with a canonical body.
use std::collections::{BTreeMap, BTreeSet};

use atomc_ir::{Diagnostic, Graph, NodeId, Op, Value};

use super::Region;

/// Puts a kernel in place of a region. The old nodes stay until the graph is swept; regions may be
/// replaced in any order.
pub fn replace(graph: &mut Graph, region: &Region, place: &BTreeMap<NodeId, usize>) -> Result<(), Diagnostic> {
    let outputs = outputs(graph, region, place);
    let (body, operands) = body(graph, region, &outputs);
    let op = Op::Kernel { family: region.family, body: Box::new(body) };
    let location = graph.location(region.anchor).to_string();
    let kernel = graph.push(op, &operands, &location)?;
    if let Some(segment) = graph.segment(region.anchor) {
        graph.set_segment(kernel, segment);
    }
    for (out, v) in outputs.into_iter().enumerate() {
        graph.replace_uses(v, Value { node: kernel, out });
    }
    Ok(())
}

/// The values that leave the region: tensors first, then cache states.
fn outputs(graph: &Graph, region: &Region, place: &BTreeMap<NodeId, usize>) -> Vec<Value> {
    let inside: BTreeSet<NodeId> = region.nodes.iter().copied().collect();
    let leaves = |v: &Value| graph.is_output(*v) || graph.users(*v).iter().any(|(user, _)| !inside.contains(user));
    let values = region.nodes.iter().flat_map(|&n| (0..graph.types(n).len()).map(move |out| Value { node: n, out }));
    let mut outputs: Vec<Value> = values.filter(leaves).collect();
    outputs.sort_by_key(|v| (graph.ty(*v).is_state(), place[&v.node], v.out));
    outputs
}

/// The region as a graph of its own, and the values that its parameters stand for: numbered by
/// first use, in the order of the text.
fn body(graph: &Graph, region: &Region, outputs: &[Value]) -> (Graph, Vec<Value>) {
    let inside = region.nodes.iter().map(|&id| (id, None)).collect();
    let mut copy = Copy { from: graph, inside, params: BTreeMap::new(), operands: vec![], body: Graph::new("k") };
    let results = outputs.iter().map(|v| Value { node: copy.node(v.node), out: v.out }).collect();
    copy.body.set_outputs(results);
    (copy.body, copy.operands)
}

struct Copy<'a> {
    from: &'a Graph,
    /// The nodes of the region with their copies.
    inside: BTreeMap<NodeId, Option<NodeId>>,
    params: BTreeMap<Value, Value>,
    operands: Vec<Value>,
    body: Graph,
}

impl Copy<'_> {
    fn node(&mut self, id: NodeId) -> NodeId {
        if let Some(made) = self.inside[&id] {
            return made;
        }
        let operands = self.from.operands(id);
        for v in operands.iter().filter(|v| self.inside.contains_key(&v.node)).copied().collect::<Vec<_>>() {
            self.node(v.node);
        }
        let operands: Vec<Value> = operands.into_iter().map(|v| self.value(v)).collect();
        let made = self.body.add(self.from.op(id).clone(), &operands, self.from.types(id).to_vec(), "");
        self.inside.insert(id, Some(made));
        made
    }

    fn value(&mut self, v: Value) -> Value {
        if let Some(made) = self.inside.get(&v.node) {
            return Value { node: made.expect("operands are copied first"), out: v.out };
        }
        *self.params.entry(v).or_insert_with(|| {
            self.operands.push(v);
            self.body.input(format!("a{}", self.operands.len() - 1), self.from.ty(v).clone())
        })
    }
}
