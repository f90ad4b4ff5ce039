//! How plans wire their launches: that each launch finds in the arena what one before it left
//! there, whole and of the type that its kernel takes, and that nothing is left unread. Plans that
//! call a framework are not walked through: what a caller writes between launches is its own.
use std::ops::Range;

use atomc_artifact::manifest::{Arg, Plan, PlanKind, Target, Work};
use atomc_ir::arch::Memory;
use atomc_ir::{Graph, TensorType};

use super::fit::{Fit, Room};

/// Which buffer of a step a value lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffer {
    Arena,
    Hidden,
}

/// A value between launches.
struct Left {
    buffer: Buffer,
    bytes: Range<usize>,
    ty: TensorType,
    by: String,
    is_read: bool,
}

/// The launches of a plan, one after the other.
struct Walk<'a> {
    plan: &'a Plan,
    target: &'a Target,
    memory: &'a Memory,
    left: Vec<Left>,
}

/// What is wrong with the plans of a target, whose kernels have these bodies.
pub fn check(target: &Target, bodies: &[Graph], memory: &Memory) -> Result<(), String> {
    for (number, plan) in target.plans.iter().enumerate() {
        let fault = |launch: usize, what: String| {
            let item = &plan.launches[launch];
            let symbol = &target.kernels[item.kernel].symbol;
            format!("plans[{number}].launches[{launch}], {symbol} of {}: {what}", item.location)
        };
        // Embeddings of the caller lie where those of tokens do.
        let is_own = plan.calls.iter().all(|call| matches!(call.work, Work::Embedding { .. }));
        let mut walk = Walk { plan, target, memory, left: vec![] };
        for (launch, item) in plan.launches.iter().enumerate() {
            let body = &bodies[item.kernel];
            let fit = Fit { target, plan, memory };
            fit.check(body, &item.args).map_err(|e| fault(launch, e))?;
            if is_own {
                walk.launch(launch, body).map_err(|e| fault(launch, e))?;
            }
        }
        if !is_own {
            continue;
        }
        walk.end().map_err(|e| format!("plans[{number}]: {e}"))?;
    }
    Ok(())
}

impl Walk<'_> {
    fn launch(&mut self, number: usize, body: &Graph) -> Result<(), String> {
        let args = &self.plan.launches[number].args;
        let mut place = args.iter();
        let mut read = vec![];
        for v in body.inputs() {
            let arg = *place.next().unwrap_or(&Arg::Hidden);
            if body.ty(v).as_cache().is_some() {
                place.next();
            }
            let (Some(ty), Some((buffer, offset))) = (body.ty(v).as_tensor(), at(arg)) else { continue };
            self.read(buffer, offset, ty, number)?;
            read.push((buffer, self.bytes(ty, offset)));
        }
        for &v in body.outputs() {
            let Some(ty) = body.ty(v).as_tensor() else { continue };
            let Some((buffer, offset)) = place.next().and_then(|&arg| at(arg)) else { continue };
            let bytes = self.bytes(ty, offset);
            if read.iter().any(|(other, operand)| *other == buffer && overlap(operand, &bytes)) {
                return Err(format!("its result {ty} at byte {offset} lies over what it reads"));
            }
            read.push((buffer, bytes.clone()));
            let by = format!("launches[{number}]");
            self.write(Left { buffer, bytes, ty: ty.clone(), by, is_read: false })?;
        }
        Ok(())
    }

    fn bytes(&self, ty: &TensorType, offset: usize) -> Range<usize> {
        let size = Room::of(self.target, self.plan).bytes(ty, self.memory);
        offset..offset + size.expect("a size that lies in a buffer")
    }

    fn read(&mut self, buffer: Buffer, offset: usize, ty: &TensorType, number: usize) -> Result<(), String> {
        let found = self.left.iter_mut().rev().find(|left| left.buffer == buffer && left.bytes.start == offset);
        let Some(left) = found else {
            // A draft, or a head by itself, goes on from what another plan left.
            let is_others = buffer == Buffer::Hidden && (self.plan.draft || number >= self.plan.body);
            return if is_others {
                Ok(())
            } else {
                Err(format!("it reads {ty} at byte {offset}, where nothing is left"))
            };
        };
        if left.ty != *ty {
            return Err(format!("it reads {ty} at byte {offset}, where {} left {}", left.by, left.ty));
        }
        left.is_read = true;
        Ok(())
    }

    fn write(&mut self, new: Left) -> Result<(), String> {
        let is_over = |left: &Left| left.buffer == new.buffer && overlap(&left.bytes, &new.bytes);
        if let Some(lost) = self.left.iter().find(|left| is_over(left) && !left.is_read && !self.is_named(left)) {
            let (by, start) = (&lost.by, new.bytes.start);
            return Err(format!(
                "what it writes at byte {start} lies over what {by} left at {} for nobody",
                lost.bytes.start
            ));
        }
        self.left.retain(|left| !is_over(left));
        self.left.push(new);
        Ok(())
    }

    /// Whether whoever runs the plan takes a value when it has run.
    fn is_named(&self, left: &Left) -> bool {
        let plan = self.plan;
        let named = plan.hidden.iter().map(|rows| rows.place.offset).chain([plan.logits.offset]);
        let mut named = named.chain(plan.picks.map(|picks| picks.offset));
        left.buffer == Buffer::Hidden || named.any(|offset| left.bytes.start == offset)
    }

    fn end(&self) -> Result<(), String> {
        if let Some(lost) = self.left.iter().find(|left| !left.is_read && !self.is_named(left)) {
            return Err(format!("nothing reads what {} left at byte {}", lost.by, lost.bytes.start));
        }
        let there =
            |buffer, offset: usize| self.left.iter().any(|left| left.buffer == buffer && left.bytes.start == offset);
        let has_head = self.plan.body < self.plan.launches.len() || self.plan.kind == PlanKind::Whole;
        if has_head && !there(Buffer::Arena, self.plan.logits.offset) {
            return Err(format!("no launch leaves logits at byte {}", self.plan.logits.offset));
        }
        Ok(())
    }
}

/// Where an argument lies among what launches leave to each other.
fn at(arg: Arg) -> Option<(Buffer, usize)> {
    match arg {
        Arg::Arena { offset } => Some((Buffer::Arena, offset)),
        _ => arg.in_hidden().map(|offset| (Buffer::Hidden, offset)),
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
