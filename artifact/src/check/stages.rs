//! Stages of layers: every plan has the launches of each, in order.
use super::{Checked, ensure};
use crate::manifest::*;

/// Checks that each plan of a target has this many stages, with launches in each.
pub(super) fn stages(target: &Target, stages: usize, at: &str) -> Checked {
    for (number, plan) in target.plans.iter().enumerate() {
        let at = format!("{at}.plans[{number}]");
        let mut starts = vec![(0, 0)];
        starts.extend(plan.calls.iter().filter_map(|call| match call.work {
            Work::HandOn { stage, .. } => Some((stage, call.before)),
            _ => None,
        }));
        starts.dedup();
        let in_order = starts.iter().map(|&(stage, _)| stage).eq(0..stages);
        ensure(in_order, &format!("{at}.calls"), || {
            let of: Vec<usize> = starts.iter().map(|&(stage, _)| stage).collect();
            format!("stages {of:?} of {stages}, each of which begins once")
        })?;
        let mut ends = starts.iter().skip(1).map(|&(_, before)| before).chain([plan.launches.len()]);
        let filled = starts.iter().all(|&(_, first)| ends.next().is_some_and(|end| first < end));
        ensure(filled, &format!("{at}.calls"), || "a stage has no launches".to_owned())?;
        ensure(stages == 1 || !plan.draft, &format!("{at}.draft"), || "a draft has no stages".to_owned())?;
        ensure(stages == 1 || plan.hidden.is_empty(), &format!("{at}.hidden"), || {
            "rows that a stage behind does not have".to_owned()
        })?;
    }
    Ok(())
}
