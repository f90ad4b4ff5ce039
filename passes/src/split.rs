//! Numbers the segments: nodes before the first boundary are 0, the boundary is 1, the nodes after
//! it are 2, and so on.
//!
//! ```text
//! %1 = linear %x, %w                    %1 = linear %x, %w                  #0
//! %2 = slice %1 {axis = 1, …}           %2 = slice %1 {axis = 1, …}         #1
//! %3 = rope %2, %table            =>    %3 = rope %2, %table                #1
//! %4 = attention %3, %kv, %batch        %4 = attention %3, %kv, %batch      #1
//! %5 = linear %4, %v                    %5 = linear %4, %v                  #2
//! ```
//!
//! Row-wise ops that serve one boundary alone belong to its segment, because they are fused into
//! it: slices, head norms, rotary embedding, the write into the cache, the reshape of the result,
//! and, where attention quantises, the quantised result. An elementwise op on the result of an op
//! with a state does, too. The epilogue of a contraction does not, nor does a norm over a whole
//! row, which each head would repeat. The caller's work is alone in its segment, as nothing can be
//! fused into it. Parts of rows that are first read after a boundary belong to their reader's
//! segment.
use std::collections::{BTreeMap, BTreeSet};

use atomc_ir::{Class, Diagnostic, Graph, Maker, NodeId, Op, Reads, Rule, Type, Value, Values};

use crate::explain::{Cause, Why};
use crate::fuse;
use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let segments = Splitter::new(graph).segments(cx);
    for &(id, segment) in &segments {
        graph.set_segment(id, segment);
    }
    Ok((!segments.is_empty()).into())
}

pub(crate) struct Splitter<'a> {
    graph: &'a Graph,
    order: Vec<NodeId>,
    place: BTreeMap<NodeId, usize>,
    /// Elementwise ops that follow a contraction directly.
    epilogues: BTreeSet<NodeId>,
}

impl Splitter<'_> {
    pub(crate) fn new(graph: &Graph) -> Splitter<'_> {
        let order = graph.order();
        let place = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let mut epilogues = BTreeSet::new();
        for &id in &order {
            let contracted = |v: &Value| graph.op(v.node).is_contraction() || epilogues.contains(&v.node);
            if matches!(graph.op(id), Op::Map(_)) && graph.operands(id).iter().any(contracted) {
                epilogues.insert(id);
            }
        }
        Splitter { graph, order, place, epilogues }
    }

    fn segments(&self, cx: &Cx) -> Vec<(NodeId, usize)> {
        let mut segment: BTreeMap<NodeId, usize> = BTreeMap::new();
        let boundaries = self.order.iter().filter(|&&id| self.graph.op(id).is_boundary());
        for (i, &boundary) in boundaries.enumerate() {
            for id in self.around(boundary, &segment, cx) {
                segment.insert(id, 2 * i + 1);
            }
        }
        let computed = |id: &&NodeId| !matches!(self.graph.op(**id), Op::Input { .. }) && !self.graph.is_constant(**id);
        let mut all = Vec::new();
        for &id in self.order.iter().filter(computed) {
            // After a boundary, which is odd, comes the next even number.
            let after = |v: Value| segment.get(&v.node).map_or(0, |s| s.next_multiple_of(2));
            let first = self.graph.operands(id).into_iter().map(after).max().unwrap_or(0);
            all.push((id, *segment.entry(id).or_insert(first)));
        }
        self.sink(&mut segment, &all);
        all.into_iter().map(|(id, _)| (id, segment[&id])).collect()
    }

    /// Parts of rows belong to the segment of their first reader after a boundary, which reads them
    /// in place: a kernel for them alone would copy them.
    fn sink(&self, segment: &mut BTreeMap<NodeId, usize>, all: &[(NodeId, usize)]) {
        for &(id, own) in all.iter().rev() {
            let is_part = matches!(self.graph.op(id), Op::Slice { axis: 1, .. } | Op::Reshape { .. });
            let first = self.graph.users(id.into()).into_iter().map(|(user, _)| segment[&user]).min();
            let sinks = is_part && own % 2 == 0 && !self.graph.is_output(id.into());
            if let Some(first) = first.filter(|first| sinks && *first > own && first % 2 == 0) {
                segment.insert(id, first);
            }
        }
    }

    /// A boundary with the ops that serve it alone.
    fn around(&self, boundary: NodeId, taken: &BTreeMap<NodeId, usize>, cx: &Cx) -> BTreeSet<NodeId> {
        let graph = self.graph;
        let mut inside = BTreeSet::from([boundary]);
        if graph.op(boundary).is_call() {
            return inside;
        }
        if reads_what_lies(graph.op(boundary)) {
            inside.extend(self.flattened(boundary));
            return inside;
        }
        let mut next = BTreeSet::new();
        let mut last = boundary;
        loop {
            next.extend(graph.operands(last).iter().map(|v| self.place[&v.node]));
            // Latest first: all users of a node are decided when its turn comes.
            let serving = std::iter::from_fn(|| next.pop_last())
                .map(|place| self.order[place])
                .find(|id| !taken.contains_key(id) && self.serves(*id, &inside).is_ok());
            let Some(id) = serving else { break };
            inside.insert(id);
            last = id;
        }
        if let Some(user) = self.flattened(boundary) {
            inside.insert(user);
            inside.extend(self.codes(boundary, user, cx));
        }
        if graph.types(boundary).iter().any(|ty| matches!(ty, Type::Slots(_))) {
            inside.extend(fuse::elementwise_after(graph, boundary));
        }
        inside
    }

    /// The reshape of a boundary's result, if nothing else reads that.
    fn flattened(&self, boundary: NodeId) -> Option<NodeId> {
        let [(user, _)] = self.graph.users(boundary.into())[..] else { return None };
        let is_reshape = matches!(self.graph.op(user), Op::Reshape { .. });
        (is_reshape && !self.graph.is_output(boundary.into())).then_some(user)
    }

    /// The quantised results of attention with one token, if the columns that share a scale belong
    /// to one head: the lanes that have the head's results find the scale.
    fn codes(&self, attention: NodeId, flat: NodeId, cx: &Cx) -> Option<NodeId> {
        let graph = self.graph;
        let [(id, _)] = graph.users(flat.into())[..] else { return None };
        let Op::Quantise { rule, .. } = *graph.op(id) else { return None };
        let (Rule::Group(columns) | Rule::Power(columns) | Rule::MxCodes(columns)) = rule else { return None };
        let cache = graph.ty(*graph.operands(attention).get(1)?).as_cache()?;
        let are_even = !cache.is_prefix && cache.head_dim == cache.value_dim;
        let is_whole = cx.arch.memory.padded(cache.value_dim) == cache.value_dim;
        let of_head = columns.is_power_of_two() && cache.value_dim.is_multiple_of(columns);
        let makes_codes = cx.attends_with_one() && cx.arch.requantised.results;
        (makes_codes && are_even && is_whole && of_head && !graph.is_output(flat.into())).then_some(id)
    }

    /// Why a node is not in this segment, on a graph of nodes that know their segments.
    pub(crate) fn why(&self, id: NodeId, segment: Option<usize>) -> Why {
        let inside = self.order.iter().copied().filter(|&other| self.graph.segment(other) == segment).collect();
        let between = || Why::new(Cause::Boundary, "attention, a state or the caller's work is between");
        // Boundaries have odd numbers.
        let boundary = segment.filter(|segment| segment % 2 == 1);
        boundary.and_then(|_| self.serves(id, &inside).err()).unwrap_or_else(between)
    }

    /// Checks that a node is fused into the boundary that is inside.
    fn serves(&self, id: NodeId, inside: &BTreeSet<NodeId>) -> Result<(), Why> {
        let graph = self.graph;
        let op = graph.op(id);
        if op.class() == Class::Effect {
            // A state that several boundaries read belongs to the first one.
            return Ok(());
        }
        let same_row = |slot| matches!(op.reads(slot), Reads::Row | Reads::Shared);
        let inline = op.maker() == Maker::Inline && (0..graph.operands(id).len()).all(same_row);
        let rank = graph.ty(id.into()).as_tensor().map_or(0, |t| t.shape.rank());
        let whole_row = matches!(op.values(), Values::Normed(_)) && rank == 2;
        let v = Value::from(id);
        if graph.is_output(v) || graph.users(v).iter().any(|(user, _)| !inside.contains(user)) {
            let by: Vec<NodeId> = inside.iter().copied().collect();
            return Err(Why::read_elsewhere(graph, v, &by));
        }
        if self.epilogues.contains(&id) {
            return Err(Why::new(Cause::Op, "the product before it takes it"));
        }
        if whole_row {
            return Err(Why::new(Cause::Shape, "each head would norm the whole row again"));
        }
        match inline && !graph.is_constant(id) {
            true => Ok(()),
            false => Err(Why::new(Cause::Op, format!("a boundary does not take `{}`", op.name()))),
        }
    }
}

/// Whether a boundary's kernel reads its rows and its cache from memory: any token of the step may
/// choose, or attend to, what another one wrote.
fn reads_what_lies(op: &Op) -> bool {
    matches!(op, Op::Choose { .. } | Op::ChooseBlocks { .. } | Op::AttendListed { .. } | Op::AttendPart { .. })
}

#[cfg(test)]
mod tests {
    use crate::testing::check;

    #[test]
    fn what_serves_a_boundary_belongs_to_it() {
        let text = r#"graph @g(%x: bf16[T, 16], %table: f32[T, 4], %kv0: cache<bf16, 1, 4>, %batch: batch) {
            %0 = silu %x : bf16[T, 16]
            %1 = slice %0 {axis = 1, start = 0, len = 8} : bf16[T, 8]
            %2 = reshape %1 {shape = [T, 2, 4]} : bf16[T, 2, 4]
            %3 = rope %2, %table : bf16[T, 2, 4]
            %4 = slice %0 {axis = 1, start = 8, len = 4} : bf16[T, 4]
            %5 = reshape %4 {shape = [T, 1, 4]} : bf16[T, 1, 4]
            %6 = kv_write %kv0, %5, %5, %batch : cache<bf16, 1, 4>
            %7 = attention %3, %6, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4]
            %8 = reshape %7 {shape = [T, 8]} : bf16[T, 8]
            %9 = silu %8 : bf16[T, 8]
            return %9, %4, %6
        }"#;
        insta::assert_snapshot!(check("split", text), @"
        graph @g(%x: bf16[T, 16], %table: f32[T, 4], %kv0: cache<bf16, 1, 4>, %batch: batch) {
          %0 = silu %x : bf16[T, 16] #0
          %1 = slice %0 {axis = 1, start = 0, len = 8} : bf16[T, 8] #1
          %2 = reshape %1 {shape = [T, 2, 4]} : bf16[T, 2, 4] #1
          %3 = rope %2, %table : bf16[T, 2, 4] #1
          %4 = slice %0 {axis = 1, start = 8, len = 4} : bf16[T, 4] #0
          %5 = reshape %4 {shape = [T, 1, 4]} : bf16[T, 1, 4] #1
          %6 = kv_write %kv0, %5, %5, %batch : cache<bf16, 1, 4> #1
          %7 = attention %3, %6, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4] #1
          %8 = reshape %7 {shape = [T, 8]} : bf16[T, 8] #1
          %9 = silu %8 : bf16[T, 8] #2
          return %9, %4, %6
        }
        ");
    }

    #[test]
    fn an_epilogue_stays_with_its_contraction() {
        let text = r#"graph @g(%x: bf16[T, 8], %kv0: cache<bf16, 2, 4>, %batch: batch) {
            %0 = weight {name = "w"} : bf16[8, 8]
            %1 = pack %0 : bf16[8, 8]@panels
            %2 = linear %x, %1 {out = bf16} : bf16[T, 8]
            %3 = weight {name = "b"} : bf16[8]
            %4 = add %2, %3 : bf16[T, 8]
            %5 = reshape %4 {shape = [T, 2, 4]} : bf16[T, 2, 4]
            %6 = kv_write %kv0, %5, %5, %batch : cache<bf16, 2, 4>
            %7 = attention %5, %6, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4]
            %8 = attention %7, %6, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4]
            return %8
        }"#;
        insta::assert_snapshot!(check("split", text), @r#"
        graph @g(%x: bf16[T, 8], %kv0: cache<bf16, 2, 4>, %batch: batch) {
          %0 = weight {name = "w"} : bf16[8, 8]
          %1 = pack %0 : bf16[8, 8]@panels
          %2 = linear %x, %1 {out = bf16} : bf16[T, 8] #0
          %3 = weight {name = "b"} : bf16[8]
          %4 = add %2, %3 : bf16[T, 8] #0
          %5 = reshape %4 {shape = [T, 2, 4]} : bf16[T, 2, 4] #1
          %6 = kv_write %kv0, %5, %5, %batch : cache<bf16, 2, 4> #1
          %7 = attention %5, %6, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4] #1
          %8 = attention %7, %6, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4] #3
          return %8
        }
        "#);
    }
}
