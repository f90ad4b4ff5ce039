//! The launches of one bucket: each kernel with the pointers of its arguments.
//!
//! For each operand in order: a tensor is one pointer, a cache two (K, then V), slots one, the
//! batch one, with the table of the kernel's states; then one for each tensor result. A new state
//! of a cache is the old one's memory, so it has none of its own.
use std::collections::HashMap;

use atomc_artifact::manifest::{
    Arg, Attention, Call, Chosen, Hidden, Input, Launch, Logits, NamedRows, Picks, Place, Plan, PlanKind, Work,
};
use atomc_ir::results::{DRAFTED, HIDDEN, LOGITS, PICKS, is_hidden};
use atomc_ir::{Diagnostic, Graph, NodeId, Op, Type, Value};
use atomc_passes::{Bucket, Cx, MemoryPlan, Order, result_bytes};

use super::drafts::Places;
use super::kernels::Kernels;
use super::states::States;
use super::weights::{Encoding, Weights};
use crate::frontend::{ADAPTERS, tower};

/// The parts that plans of a target share.
pub struct Parts<'a> {
    pub states: &'a States,
    pub kernels: &'a mut Kernels,
    pub weights: &'a mut Weights,
}

/// The kind of step that a plan is for.
#[derive(Clone, Copy)]
pub struct Kind {
    pub attention: Attention,
    /// Whether it is a step of the draft.
    pub draft: bool,
    /// The places of rows for a draft, if there is one.
    pub places: Option<Places>,
}

/// The launches, and the rows between body and head, if there are any.
pub fn plan(graph: &Graph, kind: Kind, cx: &Cx, parts: &mut Parts) -> Result<(Plan, Option<Hidden>), Diagnostic> {
    let (hidden, hidden_rows) = hidden(graph, cx)?.unzip();
    let left = if kind.draft || hidden.is_none() { None } else { graph.result(DRAFTED) };
    let order = Order::new(graph, hidden, left);
    if hidden.is_some() {
        check_cut(graph, &order)?;
    }
    check_stages(graph, &order)?;
    let memory = atomc_passes::plan(graph, &order, cx);
    let embedding = embedding(graph, &order);
    let drafted = kind.places.and_then(|places| Some((graph.result(DRAFTED)?, places.left_by(kind.draft))));
    let Parts { states, kernels, weights } = parts;
    let numbers = states.inputs(graph);
    let mut args = Args { graph, cx, memory: &memory, hidden, drafted, kind, states, numbers, weights };
    let (mut launches, mut calls) = (Vec::new(), Vec::new());
    for &id in &order.steps {
        if graph.op(id).is_call() {
            calls.push(Call { before: launches.len(), work: args.work(id)? });
            continue;
        }
        let ledger = atomc_passes::ledger(graph, id, cx);
        launches.push(Launch {
            kernel: kernels.number(graph, id, cx)?,
            args: args.of(id)?,
            segment: graph.segment(id).unwrap_or(0),
            location: graph.location(id).into(),
            bytes: ledger.bytes,
            flops: ledger.flops,
            chosen: chosen(graph, id, cx),
        });
        if embedding == Some(id.into()) {
            calls.push(Call { before: launches.len(), work: Work::Embedding { value: args.place(id.into())? } });
        }
    }
    let plan = Plan {
        kind: match cx.bucket {
            Bucket::Decode { .. } => PlanKind::Decode,
            Bucket::Verify { each, .. } => PlanKind::Verify { each },
            Bucket::Any { .. } => PlanKind::Any,
            Bucket::Whole { .. } => PlanKind::Whole,
        },
        tokens: cx.bucket.tokens(),
        rows: cx.bucket.rows(),
        arena_bytes: memory.bytes,
        attention: kind.attention,
        draft: kind.draft,
        launches,
        body: order.steps[..order.body].iter().filter(|&&id| !graph.op(id).is_call()).count(),
        calls,
        hidden: args.named()?,
        logits: logits(graph, cx, &memory)?,
        picks: picks(graph, cx, &memory),
    };
    Ok((plan, hidden_rows))
}

/// Which experts' weights a kernel reads: inputs before the experts are tensors, an argument each.
fn chosen(graph: &Graph, kernel: NodeId, cx: &Cx) -> Option<Chosen> {
    let chosen = atomc_passes::chosen(graph, kernel, cx)?;
    let atomc_passes::Chosen { input: argument, choices, bytes, counted } = chosen;
    Some(Chosen { argument, choices, bytes, counted })
}

/// The hidden rows of all tokens. A whole step has none.
fn hidden(graph: &Graph, cx: &Cx) -> Result<Option<(Value, Hidden)>, Diagnostic> {
    let found = graph.result(HIDDEN);
    let made = |v: Value| {
        let ty = graph.ty(v).as_tensor().filter(|_| matches!(graph.op(v.node), Op::Kernel { .. }))?;
        let (stride, bytes) = (cx.arch.memory.result_stride(ty), result_bytes(ty, cx));
        Some((v, Hidden { dtype: ty.dtype, width: ty.shape.row()?, stride, bytes }))
    };
    match found.and_then(made) {
        None if found.is_none() && matches!(cx.bucket, Bucket::Whole { .. }) => Ok(None),
        None => Err(Diagnostic::new("driver::hidden", format!("no kernel makes a result `{HIDDEN}`"))),
        rows => Ok(rows),
    }
}

/// Checks that body and head can run separately: the head reads the hidden rows, its own results,
/// weights, and the list of wanted rows.
fn check_cut(graph: &Graph, order: &Order) -> Result<(), Diagnostic> {
    let (body, head) = order.steps.split_at(order.body);
    let fault = |id: NodeId, what: &str| {
        Err(Diagnostic::new("driver::cut", format!("a kernel {what}, so body and head cannot be run apart"))
            .at(graph.location(id)))
    };
    let is_rows = |v: &Value| is_input(graph, *v, "rows");
    for &id in body {
        if graph.operands(id).iter().any(is_rows) {
            return fault(id, "before the hidden rows reads which rows are wanted");
        }
    }
    for &id in head {
        let from_head = |v: &Value| Some(*v) == order.hidden || head.contains(&v.node);
        if !graph.operands(id).iter().all(|v| from_head(v) || is_rows(v) || graph.is_constant(v.node)) {
            return fault(id, "behind the hidden rows reads more of the step than them");
        }
    }
    Ok(())
}

/// Checks that the launches of a stage read nothing that one before has made, but what was handed
/// on to it.
fn check_stages(graph: &Graph, order: &Order) -> Result<(), Diagnostic> {
    let (mut now, mut made) = (0, HashMap::new());
    for &id in &order.steps {
        if let Op::HandOn { stage } = *graph.op(id) {
            (now, _) = (stage, made.insert(id, stage));
            continue;
        }
        let other = graph.operands(id).into_iter().find(|v| {
            let is_made = graph.ty(*v).as_tensor().and_then(|_| made.get(&v.node));
            is_made.is_some_and(|stage| *stage != now)
        });
        if let Some(v) = other {
            let message = format!("stage {now} reads what an earlier one makes at {}", graph.location(v.node));
            return Err(Diagnostic::new("driver::stages", message).at(graph.location(id)));
        }
        made.insert(id, now);
    }
    Ok(())
}

fn is_input(graph: &Graph, v: Value, which: &str) -> bool {
    matches!(graph.op(v.node), Op::Input { name } if name == which)
}

/// The first kernel's result, if it alone reads the tokens and no other input of the step.
fn embedding(graph: &Graph, order: &Order) -> Option<Value> {
    let first = *order.steps[..order.body].first()?;
    let ids = graph.inputs().into_iter().find(|&v| is_input(graph, v, "ids"))?;
    let alone = graph.users(ids).iter().all(|&(user, _)| user == first);
    let known = graph.operands(first).iter().all(|v| *v == ids || graph.is_constant(v.node));
    let made = graph.types(first).len() == 1 && matches!(graph.op(first), Op::Kernel { .. });
    (alone && known && made && Some(first.into()) != order.hidden).then(|| first.into())
}

fn logits(graph: &Graph, cx: &Cx, memory: &MemoryPlan) -> Result<Logits, Diagnostic> {
    let made = || {
        let v = graph.result(LOGITS)?;
        let width = graph.ty(v).as_tensor()?.shape.last()?;
        Some(Logits { offset: memory.slots.get(&v)?.offset, width, stride: cx.arch.memory.stride(width) })
    };
    made().ok_or_else(|| Diagnostic::new("driver::logits", format!("no kernel makes a result `{LOGITS}`")))
}

/// The likeliest tokens, if the graph has them.
fn picks(graph: &Graph, cx: &Cx, memory: &MemoryPlan) -> Option<Picks> {
    let v = graph.result(PICKS)?;
    let ty = graph.ty(v).as_tensor().filter(|t| t.is_indices())?;
    Some(Picks { offset: memory.slots.get(&v)?.offset, stride: cx.arch.memory.result_stride(ty) })
}

struct Args<'a> {
    graph: &'a Graph,
    cx: &'a Cx<'a>,
    memory: &'a MemoryPlan,
    hidden: Option<Value>,
    /// Rows that are left for a draft, and where.
    drafted: Option<(Value, usize)>,
    kind: Kind,
    states: &'a States,
    /// The number of each state, for the launches so far.
    numbers: HashMap<Value, usize>,
    weights: &'a mut Weights,
}

impl Args<'_> {
    fn of(&mut self, kernel: NodeId) -> Result<Vec<Arg>, Diagnostic> {
        let mut args = Vec::new();
        for (slot, v) in self.graph.operands(kernel).into_iter().enumerate() {
            match self.graph.ty(v) {
                Type::Cache(_) => {
                    let state = self.numbers[&v];
                    args.extend([0, 1].map(|stream| Arg::State { state, stream }));
                }
                Type::Slots(_) => args.push(Arg::State { state: self.numbers[&v], stream: 0 }),
                Type::Batch => args.push(Arg::Batch { state: self.state_of(kernel)? }),
                Type::Tensor(_) => args.push(self.operand(v, Encoding::of(self.graph, kernel, slot))?),
            }
        }
        for out in 0..self.graph.types(kernel).len() {
            let v = Value { node: kernel, out };
            if let Some(arg) = self.drafted_at(v) {
                args.push(arg);
                continue;
            }
            match self.memory.slots.get(&v) {
                None if Some(v) == self.hidden => args.push(Arg::Hidden),
                Some(slot) => args.push(Arg::Arena { offset: slot.offset }),
                None => _ = self.numbers.insert(v, self.state_of_result(kernel, out)),
            }
        }
        Ok(args)
    }

    /// Rows that are left for a draft.
    fn drafted_at(&self, v: Value) -> Option<Arg> {
        self.drafted.filter(|(drafted, _)| *drafted == v).map(|(_, offset)| Arg::Drafted { offset })
    }

    /// A state of a kernel that reads the batch, which has the table of all of them.
    fn state_of(&self, kernel: NodeId) -> Result<usize, Diagnostic> {
        let operands = self.graph.operands(kernel);
        let mut states = operands.iter().filter_map(|v| self.numbers.get(v).copied());
        let fault = |what: &str| {
            let message = format!("a kernel reads the batch and {what}, whose table it should have");
            Err(Diagnostic::new("driver::state", message).at(self.graph.location(kernel)))
        };
        let Some(first) = states.next() else { return fault("no state") };
        let group = |state: usize| self.states.list[state].group;
        if states.all(|state| group(state) == group(first)) { Ok(first) } else { fault("states of several groups") }
    }

    /// The caller's work, with the places of its operands and its result.
    fn work(&self, call: NodeId) -> Result<Work, Diagnostic> {
        let graph = self.graph;
        let operands = graph.operands(call);
        match *graph.op(call) {
            Op::AllReduce {} => {
                let value = operands[0];
                if graph.users(value).len() != 1 || graph.is_output(value) {
                    let message = "what is summed over ranks, in place, is read by something else";
                    return Err(Diagnostic::new("driver::call", message).at(graph.location(call)));
                }
                let added = operands.get(1).map(|&added| self.place(added)).transpose()?;
                Ok(Work::AllReduce { value: self.place(value)?, added })
            }
            Op::AllGather { .. } => {
                Ok(Work::AllGather { part: self.place(operands[0])?, whole: self.place(call.into())? })
            }
            Op::HandOn { stage } => {
                Ok(Work::HandOn { stage, made: self.place(operands[0])?, taken: self.place(call.into())? })
            }
            Op::CallerAttention { layer, scale, window } => {
                let [q, k, v] = [0, 1, 2].map(|operand| self.place(operands[operand]));
                let heads = graph.ty(operands[1]).as_tensor().and_then(|k| k.shape.0.get(1)?.fixed());
                let heads = heads.expect("keys have heads, as the verifier sees to");
                Ok(Work::Attention { layer, heads, q: q?, k: k?, v: v?, out: self.place(call.into())?, scale, window })
            }
            ref op => {
                Err(Diagnostic::new("driver::call", format!("no caller does `{}`", op.name())).at(graph.location(call)))
            }
        }
    }

    /// The rows of all tokens that are results, other than those that logits are made of.
    fn named(&self) -> Result<Vec<NamedRows>, Diagnostic> {
        let named = self.graph.results().filter(|(name, _)| is_hidden(name) && *name != HIDDEN);
        named.map(|(name, v)| Ok(NamedRows { name: name.to_string(), place: self.place(v)? })).collect()
    }

    fn place(&self, v: Value) -> Result<Place, Diagnostic> {
        let made = || {
            let ty = self.graph.ty(v).as_tensor()?;
            let (width, stride) = (ty.shape.row()?, self.cx.arch.memory.result_stride(ty));
            Some(Place { offset: self.memory.slots.get(&v)?.offset, width, stride, dtype: ty.dtype })
        };
        made().ok_or_else(|| {
            Diagnostic::new("driver::call", "what a caller works on is not in the arena")
                .at(self.graph.location(v.node))
        })
    }

    fn operand(&mut self, v: Value, encoding: Option<Encoding>) -> Result<Arg, Diagnostic> {
        if Some(v) == self.hidden {
            return Ok(Arg::Hidden);
        }
        if let Some(arg) = self.drafted_at(v) {
            return Ok(arg);
        }
        if let Some(slot) = self.memory.slots.get(&v) {
            return Ok(Arg::Arena { offset: slot.offset });
        }
        if let Op::Input { name } = self.graph.op(v.node) {
            return match self.kind.places.filter(|_| name == DRAFTED) {
                Some(places) => Ok(Arg::Drafted { offset: places.rows() }),
                None => Ok(Arg::Input { which: input(name)? }),
            };
        }
        Ok(Arg::Weight { index: self.weights.number(self.graph, v, encoding, self.cx.arch)? })
    }

    /// The number of the state that a kernel makes: that of the state which the writes in its body
    /// begin with.
    fn state_of_result(&self, kernel: NodeId, out: usize) -> usize {
        let Op::Kernel { body, .. } = self.graph.op(kernel) else { unreachable!("launches are kernels") };
        let mut v = body.outputs()[out];
        while !matches!(body.op(v.node), Op::Input { .. }) {
            let operands = body.operands(v.node);
            v = operands.into_iter().find(|&o| body.ty(o).is_state()).expect("a state comes from a state");
        }
        let slot = body.inputs().iter().position(|&i| i == v).expect("an input is in the list");
        self.numbers[&self.graph.operands(kernel)[slot]]
    }
}

/// The input of a frontend's name.
fn input(name: &str) -> Result<Input, Diagnostic> {
    match name {
        "ids" => Ok(Input::Ids),
        "positions" => Ok(Input::Positions),
        "lengths" => Ok(Input::Lengths),
        "rows" => Ok(Input::Rows),
        "sources" => Ok(Input::Sources),
        ADAPTERS => Ok(Input::Adapters),
        tower::TIMES => Ok(Input::Times),
        tower::HEIGHTS => Ok(Input::Heights),
        tower::WIDTHS => Ok(Input::Widths),
        tower::ENDS => Ok(Input::Ends),
        tower::TAPS => Ok(Input::Taps),
        tower::SHARES => Ok(Input::Shares),
        tower::GIVEN => Ok(Input::Given),
        other => Err(Diagnostic::new("driver::input", format!("no runtime gives a `{other}`"))
            .help("Graphs take ids, positions, lengths, rows, batch and caches.")),
    }
}
