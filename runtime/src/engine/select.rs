//! Which plan runs next, and how much of a request fits it.
use super::{Cursor, Request, SeqId, Want};
use atomc_artifact::manifest::{Plan, PlanKind};

/// The plan for the rest of a step, up to the first sequence that has to stop before its tokens
/// end; `until` gives the end of each. It is the first `decode` plan that takes all of it if it is
/// one token of each sequence, or the first `verify` plan if it is a few of each, else the first
/// `whole` plan that does, else the largest `whole` plan, which leaves a rest. `takes` says which
/// plans run the step at all.
pub(super) fn pick(
    plans: &[Plan],
    requests: &[Request],
    at: Cursor,
    (until, takes): (impl Fn(SeqId) -> usize, impl Fn(usize) -> bool),
) -> usize {
    let mut size = Size::default();
    for (index, request) in requests[at.request..].iter().enumerate() {
        let start = if index == 0 { at.token } else { 0 };
        let (left, end) = (request.tokens.len() - start, until(request.sequence));
        let taken = part(request, start, end, usize::MAX);
        size.tokens += taken.tokens;
        size.rows += taken.rows;
        size.sequences += 1;
        size.longest = taken.tokens.max(size.longest);
        if end < left {
            break;
        }
    }
    choose(plans, size, takes)
}

/// The size of the work that is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub tokens: usize,
    pub rows: usize,
    pub sequences: usize,
    /// Tokens of the sequence that has the most.
    pub longest: usize,
}

/// The plan for all of it, or the one that leaves the least, of those that `takes` says.
pub(super) fn choose(plans: &[Plan], size: Size, takes: impl Fn(usize) -> bool) -> usize {
    let Size { tokens, rows, sequences, longest } = size;
    let fits = |plan: &(usize, &Plan)| plan.1.tokens >= tokens && plan.1.rows >= rows;
    let taken = || plans.iter().enumerate().filter(|(number, _)| takes(*number));
    let of = |kind| taken().filter(move |(_, plan)| plan.kind == kind);
    let few = |plan: &(usize, &Plan)| {
        plan.1.kind.each().is_some_and(|each| longest <= each && sequences * each <= plan.1.tokens)
    };
    let decode = taken().find(|plan| few(plan) && fits(plan));
    let whole = || of(PlanKind::Whole).find(fits).or_else(|| of(PlanKind::Whole).max_by_key(|(_, plan)| plan.tokens));
    // There is a plan of kind `whole`: the engine was checked for it when it was opened.
    decode.or_else(whole).map_or(0, |(index, _)| index)
}

/// The part of a request that one plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub tokens: usize,
    pub rows: usize,
}

/// The most that fits, from token `start` on. A last token that wants logits waits for a plan with
/// a row left.
pub(super) fn part(request: &Request, start: usize, room: usize, rows: usize) -> Part {
    let left = request.tokens.len() - start;
    match request.logits {
        Want::Nothing => Part { tokens: left.min(room), rows: 0 },
        Want::All => {
            let tokens = left.min(room).min(rows);
            Part { tokens, rows: tokens }
        }
        Want::Last if left <= room && rows > 0 => Part { tokens: left, rows: 1 },
        Want::Last => Part { tokens: (left - 1).min(room), rows: 0 },
    }
}
