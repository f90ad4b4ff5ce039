//! The data flow between the launches of a plan, read from their arguments: which launch reads a
//! result of which, and how long each value is kept in the arena.
use std::collections::{BTreeMap, BTreeSet};

use atomc_artifact::manifest::{Arg, DataLayout, KernelDef, Plan, Target};
use atomc_ir::arch::Memory;
use atomc_ir::{Graph, Layout, Op, TensorType};

use super::failure::Failure;

/// Most fixed elements of a result with a computed size: multiplied by the tokens of a step and the
/// bytes of an element, it stays far below the largest `usize`.
const MOST_ELEMENTS: usize = 1 << 36;

/// The kernels' bodies, as far as reports need them.
pub struct Bodies(Vec<Body>);

struct Body {
    ops: String,
    /// Tensors that it makes. A launch has an argument for each.
    results: Vec<TensorType>,
}

/// A value that is in the arena from the launch that makes it to the last one that reads it.
pub struct Kept {
    pub offset: usize,
    pub bytes: usize,
    pub from: usize,
    /// The last launch that reads it. The number of launches if the caller of the plan reads it.
    pub to: usize,
}

/// One plan.
pub struct Flow {
    /// Pairs of launches: the second one reads a result or a write of the first.
    pub edges: BTreeSet<(usize, usize)>,
    pub kept: Vec<Kept>,
}

impl Bodies {
    pub fn of(target: &Target) -> Result<Bodies, Failure> {
        target.kernels.iter().map(body).collect::<Result<_, _>>().map(Bodies)
    }

    /// Names of a kernel's ops, in order.
    pub fn ops(&self, kernel: usize) -> &str {
        &self.0[kernel].ops
    }

    pub fn flow(&self, target: &Target, plan: &Plan) -> Flow {
        let memory = memory(&target.layout);
        let mut flow = Flow { edges: BTreeSet::new(), kept: vec![] };
        // The launch that last wrote a state, the one that made the hidden rows, and those that
        // made rows for a draft.
        let (mut wrote, mut hidden, mut drafted) = (BTreeMap::new(), None, BTreeMap::new());
        for (number, launch) in plan.launches.iter().enumerate() {
            let results = &self.0[launch.kernel].results;
            let (read, made) = launch.args.split_at(launch.args.len().saturating_sub(results.len()));
            for arg in read {
                let maker = match *arg {
                    Arg::Arena { offset } => flow.read(offset, number),
                    Arg::Hidden => hidden,
                    Arg::Drafted { offset } => drafted.get(&offset).copied(),
                    Arg::State { state, .. } => wrote.insert(state, number).filter(|&other| other != number),
                    _ => None,
                };
                flow.edges.extend(maker.map(|maker| (maker, number)));
            }
            for (arg, ty) in made.iter().zip(results) {
                match *arg {
                    Arg::Arena { offset } => {
                        let bytes = memory.result_bytes(ty, (plan.tokens, plan.rows), target.is_for_few(plan));
                        flow.kept.push(Kept { offset, bytes, from: number, to: number });
                    }
                    Arg::Hidden => hidden = Some(number),
                    Arg::Drafted { offset } => _ = drafted.insert(offset, number),
                    _ => (),
                }
            }
        }
        let end = plan.launches.len();
        let wanted = [Some(plan.logits.offset), plan.picks.map(|picks| picks.offset)].into_iter().flatten();
        for offset in wanted.chain(plan.hidden.iter().map(|rows| rows.place.offset)) {
            flow.read(offset, end);
        }
        flow
    }
}

impl Flow {
    /// Keeps the value at a place until a launch, and returns the launch that made it.
    fn read(&mut self, offset: usize, number: usize) -> Option<usize> {
        let there = |kept: &&mut Kept| (kept.offset..kept.offset + kept.bytes).contains(&offset);
        let kept = self.kept.iter_mut().rev().find(there)?;
        kept.to = kept.to.max(number);
        Some(kept.from)
    }

    /// The most bytes that are kept at once.
    pub fn peak(&self) -> usize {
        let at = |number| self.kept.iter().filter(move |kept| (kept.from..=kept.to).contains(&number));
        self.kept.iter().map(|kept| at(kept.from).map(|other| other.bytes).sum()).max().unwrap_or(0)
    }
}

fn body(def: &KernelDef) -> Result<Body, Failure> {
    let wrong = |e: String| Failure::new("report", format!("kernel {}: its body cannot be read: {e}", def.symbol));
    let graph = atomc_ir::parse(&def.body).map_err(|e| wrong(e.to_string()))?;
    graph.verify().map_err(|e| wrong(e.to_string()))?;
    let results: Vec<TensorType> = graph.outputs().iter().filter_map(|&v| graph.ty(v).as_tensor().cloned()).collect();
    if let Some(large) = results.iter().find(|ty| !is_sane(ty)) {
        return Err(wrong(format!("{:?} is more than any chip has", large.shape)));
    }
    Ok(Body { ops: ops(&graph), results })
}

/// Whether the size of a result can be computed. Its type comes from the artifact and may be
/// hostile.
fn is_sane(ty: &TensorType) -> bool {
    let elements = ty.shape.0.iter().filter_map(|dim| dim.fixed()).fold(1, usize::saturating_mul);
    let groups = match ty.layout {
        Layout::Grouped { experts, tile } => experts.saturating_mul(tile),
        _ => 1,
    };
    elements.max(groups) <= MOST_ELEMENTS
}

fn ops(graph: &Graph) -> String {
    let computing = graph.order().into_iter().filter(|&id| !matches!(graph.op(id), Op::Input { .. }));
    computing.map(|id| graph.op(id).name()).collect::<Vec<_>>().join(" ")
}

fn memory(layout: &DataLayout) -> Memory {
    let DataLayout { row, alias, rows, panel, group_bytes, block_tokens, align } = *layout;
    Memory { row, alias, rows, panel, group_bytes, block_tokens, align }
}
