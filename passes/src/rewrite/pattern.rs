//! Patterns: small graphs without types, matched against a graph from a root upwards.
use std::collections::BTreeMap;

use atomc_ir::{Graph, NodeId, Op, Type, Value, parse};

use crate::explain::{Cause, Why};

/// One side of a rule.
pub struct Pattern {
    /// The inputs are the `?` values; the types in it are ignored.
    pub graph: Graph,
}

/// A match of a pattern in a graph.
#[derive(Clone, Debug, Default)]
pub struct Match {
    pub values: BTreeMap<String, Value>,
    /// The root first.
    pub nodes: Vec<NodeId>,
}

/// The alternative that matched most before it failed.
#[derive(Default)]
pub struct Miss {
    /// The number of nodes that matched.
    pub nodes: usize,
    pub why: Option<Why>,
}

impl Pattern {
    /// Reads a pattern by giving each line a type and each `?` value a parameter. The last line is
    /// the root.
    pub fn new(text: &str) -> Pattern {
        let mut free: Vec<&str> = text.split([' ', ',', '\n']).filter(|w| w.starts_with('?')).collect();
        free.sort();
        free.dedup();
        let params: Vec<String> = free.iter().map(|name| format!("%{name}: f32[T, 1]")).collect();
        let lines: Vec<String> = text.lines().map(|l| format!("{} : f32[T, 1]", l.trim().replace('?', "%?"))).collect();
        let root = lines.last().and_then(|l| l.split(' ').next()).expect("a pattern has a line");
        let text = format!("graph @rule({}) {{\n{}\nreturn {root}\n}}", params.join(", "), lines.join("\n"));
        Pattern { graph: parse(&text).unwrap_or_else(|e| panic!("{e} of the rule\n{text}")) }
    }

    pub fn root(&self) -> NodeId {
        self.graph.outputs()[0].node
    }

    /// Whether an op is one of those before the root.
    pub fn has(&self, op: &Op) -> bool {
        self.graph.ids().any(|id| id != self.root() && self.graph.op(id).key() == op.key())
    }

    /// Whether a node is of the root's kind.
    pub fn roots_at(&self, graph: &Graph, id: NodeId) -> bool {
        graph.op(id).name() == self.graph.op(self.root()).name()
    }

    /// The match of the pattern at `root`, or why it does not fit.
    pub fn matched(&self, graph: &Graph, root: NodeId) -> Result<Match, Miss> {
        let mut miss = Miss::default();
        let alternatives = self.bind(graph, self.root().into(), root.into(), Match::default(), &mut miss);
        for found in alternatives {
            match found.nodes[1..].iter().find(|&&id| escapes(graph, id, &found)) {
                None => return Ok(found),
                Some(&id) => miss.note(found.nodes.len(), || Why::read_elsewhere(graph, id.into(), &found.nodes)),
            }
        }
        Err(miss)
    }

    /// All ways in which pattern value `p` can match `v`, given the match so far.
    fn bind(&self, graph: &Graph, p: Value, v: Value, so_far: Match, miss: &mut Miss) -> Vec<Match> {
        let want = self.graph.op(p.node);
        if let Op::Input { name } = want {
            let mut found = so_far;
            if *found.values.entry(name.clone()).or_insert(v) == v {
                return vec![found];
            }
            miss.note(found.nodes.len(), || Why::new(Cause::Op, format!("`{name}` would be two different values")));
            return vec![];
        }
        let have = graph.op(v.node);
        if have.key() != want.key() {
            let name = |op: &Op| if have.name() == want.name() { op.key() } else { op.name().to_string() };
            miss.note(so_far.nodes.len(), || {
                Why::new(Cause::Op, format!("an operand is `{}`, not `{}`", name(have), name(want)))
            });
            return vec![];
        }
        let operands = graph.operands(v.node);
        if operands.len() != self.graph.operands(p.node).len() {
            let why = || Why::new(Cause::Op, format!("`{}` has other operands", have.name()));
            miss.note(so_far.nodes.len(), why);
            return vec![];
        }
        let mut start = so_far;
        start.nodes.push(v.node);
        let mut orders = vec![self.graph.operands(p.node)];
        if matches!(want, Op::Map(e) if e.commutes()) {
            orders.push(orders[0].iter().rev().copied().collect());
        }
        let mut found = Vec::new();
        for order in orders {
            let step = |ways: Vec<Match>, (&p, &v): (&Value, &Value)| {
                ways.into_iter().flat_map(|m| self.bind(graph, p, v, m, miss)).collect()
            };
            found.extend(order.iter().zip(&operands).fold(vec![start.clone()], step));
        }
        found
    }

    /// Whether this side of a rule, in place of `root`, has the type that `root` has.
    pub fn fits(&self, graph: &Graph, root: NodeId, found: &Match) -> Result<(), Why> {
        let unlike = |text: String| Why::new(Cause::Type, text);
        let mut types: BTreeMap<NodeId, Type> = BTreeMap::new();
        for id in self.graph.order() {
            let ty = match self.graph.op(id) {
                Op::Input { name } => graph.ty(found.values[name]).clone(),
                op => {
                    let operands: Vec<&Type> = self.graph.operands(id).iter().map(|v| &types[&v.node]).collect();
                    op.infer(&operands).map_err(|e| unlike(format!("`{}` cannot be made: {e}", op.name())))?.remove(0)
                }
            };
            types.insert(id, ty);
        }
        let (made, want) = (&types[&self.root()], graph.ty(root.into()));
        if made == want { Ok(()) } else { Err(unlike(format!("the result would be {made}, not {want}"))) }
    }

    /// Makes this side of a rule, which fits, next to `root`.
    pub fn build(&self, graph: &mut Graph, root: NodeId, found: &Match) -> Value {
        let location = graph.location(root).to_string();
        let mut made: BTreeMap<NodeId, Value> = BTreeMap::new();
        for id in self.graph.order() {
            let value = match self.graph.op(id) {
                Op::Input { name } => found.values[name],
                op => {
                    let operands: Vec<Value> = self.graph.operands(id).iter().map(|v| made[&v.node]).collect();
                    graph.push(op.clone(), &operands, &location).expect("the types fit").into()
                }
            };
            made.insert(id, value);
        }
        made[&self.root()]
    }
}

impl Miss {
    fn note(&mut self, nodes: usize, why: impl FnOnce() -> Why) {
        if self.why.is_none() || nodes > self.nodes {
            *self = Miss { nodes, why: Some(why()) };
        }
    }
}

/// Whether a node outside of a match reads the result of a node inside.
fn escapes(graph: &Graph, id: NodeId, found: &Match) -> bool {
    graph.is_output(id.into()) || graph.users(id.into()).iter().any(|(user, _)| !found.nodes.contains(user))
}
