//! Whether a launch and its kernel's body are about the same memory, and how much of the host's it
//! takes to try them.
use atomc_artifact::manifest::{self, Arg, Input, PageStream, Plan, Slots, StateGroup, StreamLayout, Target, Weight};
use atomc_ir::arch::Memory;
use atomc_ir::layout::{Groups, Panels};
use atomc_ir::trial::Step;
use atomc_ir::{CacheType, Dim, Graph, Layout, TensorType, Type};

use serde_json::json;

use super::launch::GAP;

/// The largest step of a plan, for which its buffers have room.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub tokens: usize,
    pub rows: usize,
    /// Results have room for a multiple of this number of rows.
    round: usize,
}

impl Room {
    pub fn of(target: &Target, plan: &Plan) -> Room {
        let round = if target.is_for_few(plan) { 1 } else { target.layout.rows };
        Room { tokens: plan.tokens, rows: plan.rows, round }
    }

    /// Bytes of activations, or of indices, with all the rows that there is room for.
    pub fn bytes(&self, t: &TensorType, memory: &Memory) -> Option<usize> {
        let lead = t.shape.0.first().map_or(1, |d| d.at(self.tokens, self.rows));
        if let Layout::Grouped { experts, tile } = t.layout {
            return Groups { experts, tile, pairs: lead }.words().checked_mul(t.dtype.size());
        }
        let rows = lead.checked_next_multiple_of(self.round)?;
        t.shape.row()?.checked_next_multiple_of(memory.row)?;
        rows.checked_mul(t.dtype.bytes(memory.result_stride(t)))
    }
}

/// A launch of a plan, together with its body.
pub struct Fit<'a> {
    pub target: &'a Target,
    pub plan: &'a Plan,
    pub memory: &'a Memory,
}

impl Fit<'_> {
    /// Checks that arguments are the body's operands and results, in its order, and that each lies
    /// in its buffer.
    pub fn check(&self, body: &Graph, args: &[Arg]) -> Result<(), String> {
        let operands = body.inputs().into_iter().map(|v| (body.ty(v), true));
        let results = body.outputs().iter().map(|&v| (body.ty(v), false)).filter(|(ty, _)| ty.as_tensor().is_some());
        let mut rest = args.iter().enumerate();
        let lacks = || format!("its launch has {} arguments, its body needs more", args.len());
        for (ty, is_operand) in operands.chain(results) {
            let (number, &arg) = rest.next().ok_or_else(lacks)?;
            let values = if ty.as_cache().is_some() { Some(*rest.next().ok_or_else(lacks)?.1) } else { None };
            if !self.fits(ty, arg, values, is_operand) {
                return Err(format!("argument {number} of its launch is {}, which is no {ty} of the body", json!(arg)));
            }
        }
        match rest.len() {
            0 => Ok(()),
            more => Err(format!("its launch has {} arguments, its body needs {}", args.len(), args.len() - more)),
        }
    }

    /// Whether an argument is of a type. A cache's values are the argument after its keys.
    fn fits(&self, ty: &Type, arg: Arg, values: Option<Arg>, is_operand: bool) -> bool {
        match (ty, arg) {
            (Type::Batch, Arg::Batch { .. }) => true,
            (Type::Cache(cache), Arg::State { state, stream: 0 }) => {
                values == Some(Arg::State { state, stream: 1 }) && self.is_cache(*cache, state)
            }
            (Type::Slots(slots), Arg::State { state, stream: 0 }) => {
                matches!(self.target.group(state), StateGroup::Slots(found) if *found == Slots { bytes: slots.bytes(), each: slots.each })
            }
            (Type::Tensor(t), Arg::Arena { offset }) => self.lies(t, offset, self.plan.arena_bytes),
            (Type::Tensor(t), Arg::Hidden | Arg::Drafted { .. }) => {
                self.lies(t, arg.in_hidden().unwrap_or(0), self.target.hidden.bytes)
            }
            (Type::Tensor(t), Arg::Weight { index }) => {
                is_operand && is_weight(t, &self.target.weights[index], self.memory)
            }
            (Type::Tensor(t), Arg::Input { which }) => is_operand && is_input(t, which),
            _ => false,
        }
    }

    fn is_cache(&self, cache: CacheType, state: usize) -> bool {
        let StateGroup::Paged(pages) = self.target.group(state) else { return false };
        let [k, v] = &pages.streams[..] else { return false };
        let is = |stream: &PageStream, width, layout| {
            (stream.heads, stream.width, stream.layout) == (cache.heads, width, layout) && cache.dtype == stream.dtype
        };
        let values = if cache.is_prefix { StreamLayout::Prefix { of: 0 } } else { StreamLayout::Numbers };
        is(k, cache.head_dim, StreamLayout::Tokens) && is(v, cache.value_dim, values)
    }

    /// Whether all rows that the plan may have lie in a buffer.
    fn lies(&self, t: &TensorType, offset: usize, bytes: usize) -> bool {
        let size = Room::of(self.target, self.plan).bytes(t, self.memory);
        let end = size.and_then(|size| size.checked_add(offset));
        !t.layout.is_packed() && end.is_some_and(|end| end <= bytes)
    }

    /// Bytes of the host's memory that a try with a step takes: the trial's, and those of the
    /// device's buffers, filled, there and back.
    pub fn need(&self, body: &Graph, args: &[Arg], step: &Step) -> Option<usize> {
        let device = self.need_of_weights(args)?.checked_add(self.need_of_device()?)?;
        atomc_ir::trial::need(body, self.memory, step, GAP)?.checked_add(device)
    }

    /// The same without what the reference takes, where it computes a sample, and without weights
    /// that lie in a memory of the device's own.
    pub fn need_of_sample(&self, body: &Graph, args: &[Arg], step: &Step, on_host: bool) -> Option<usize> {
        let weights = if on_host { self.need_of_weights(args)? } else { 0 };
        let device = weights.checked_add(self.need_of_device()?)?;
        atomc_ir::trial::need_of_operands(body, self.memory, step, GAP)?.checked_add(device)
    }

    fn need_of_weights(&self, args: &[Arg]) -> Option<usize> {
        args.iter().try_fold(0usize, |sum, arg| match *arg {
            Arg::Weight { index } => sum.checked_add(self.target.weights[index].bytes),
            _ => Some(sum),
        })
    }

    fn need_of_device(&self) -> Option<usize> {
        let device = [self.plan.arena_bytes, self.target.hidden.bytes, self.target.workspace()];
        device.into_iter().try_fold(0usize, |sum, bytes| sum.checked_add(bytes.checked_mul(3)?))
    }
}

fn is_weight(t: &TensorType, weight: &Weight, memory: &Memory) -> bool {
    // Rows lie as the target has them for their width: the artifact was checked.
    let layout = match (weight.layout, t.shape.sizes().as_deref()) {
        (manifest::Layout::Rows { .. }, _) => t.layout == Layout::Rows,
        (manifest::Layout::Panels { width, group, rows, cols }, Some(&[.., r, c])) => {
            let p = Panels::in_layout(t.layout, [r, c], t.dtype, memory);
            p.is_some_and(|p| (p.width, p.group, p.rows, p.cols) == (width, group, rows, cols))
        }
        _ => false,
    };
    layout && t.shape.sizes().as_ref() == Some(&weight.shape) && t.dtype == weight.dtype
}

fn is_input(t: &TensorType, which: Input) -> bool {
    let lead = match which {
        Input::Ids | Input::Positions | Input::Lengths | Input::Sources => Dim::Tokens,
        Input::Times | Input::Heights | Input::Widths | Input::Ends => Dim::Tokens,
        Input::Rows => Dim::Rows,
        Input::Adapters => Dim::Choices(1),
        Input::Taps => Dim::Choices(t.choices()),
        Input::Shares | Input::Given => {
            return t.dtype.is_float() && t.shape.rank() == 2 && t.shape.0[0] == Dim::Tokens;
        }
    };
    t.is_indices() && t.shape.0[0] == lead
}
