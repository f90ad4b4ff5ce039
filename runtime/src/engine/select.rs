//! Which plan runs next, and how much of a request fits it.
use super::{Cursor, Request, Want};
use atomc_artifact::manifest::{Plan, PlanKind};

/// The plan for what is left of a step: the first `decode` plan that takes all of it if it is one
/// token of each sequence, else the first `whole` plan that does, else the largest `whole` plan,
/// which leaves a rest.
pub(super) fn pick(plans: &[Plan], requests: &[Request], at: Cursor) -> usize {
    let left = &requests[at.request..];
    let tokens = left.iter().map(|request| request.tokens.len()).sum::<usize>() - at.token;
    let rows =
        left.iter().map(Request::rows).sum::<usize>() - left.first().map_or(0, |first| rows_before(first, at.token));
    let single = tokens == left.len();
    let fits = |plan: &(usize, &Plan)| plan.1.tokens >= tokens && plan.1.rows >= rows;
    let of = |kind| plans.iter().enumerate().filter(move |(_, plan)| plan.kind == kind);
    let decode = of(PlanKind::Decode).find(|plan| single && fits(plan));
    let whole = || of(PlanKind::Whole).find(fits).or_else(|| of(PlanKind::Whole).max_by_key(|(_, plan)| plan.tokens));
    // There is a plan of kind `whole`: the engine was checked for it when it was opened.
    decode.or_else(whole).map_or(0, |(index, _)| index)
}

/// Rows that the first tokens of a request want.
fn rows_before(request: &Request, tokens: usize) -> usize {
    if request.logits == Want::All { tokens } else { 0 }
}

/// What one plan takes of a request.
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
