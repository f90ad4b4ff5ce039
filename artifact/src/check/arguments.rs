//! Checks that the arguments of a launch are of the kinds that its kernel takes. Code follows every
//! pointer without checks, and an argument too few is whatever follows the list.
use super::{Checked, ensure};
use crate::manifest::*;

/// All launches of a plan, by what their kernels take and make.
pub(super) fn plan(plan: &Plan, signatures: &[Signature], at: &str) -> Checked {
    plan.launches
        .iter()
        .enumerate()
        .try_for_each(|(number, item)| launch(item, &signatures[item.kernel], &format!("{at}.launches[{number}].args")))
}

fn launch(launch: &Launch, signature: &Signature, at: &str) -> Checked {
    let operands = signature.operands.iter().flat_map(|&ty| {
        // Keys and values of a cache are two arguments.
        let count = if ty.starts_with("cache<") { 2 } else { 1 };
        (0..count).map(move |stream| Takes { ty, stream, is_operand: true })
    });
    let results = signature.results.iter().filter(|ty| !is_state(ty));
    let results = results.map(|&ty| Takes { ty, stream: 0, is_operand: false });
    let takes: Vec<Takes> = operands.chain(results).collect();
    let (has, wants) = (launch.args.len(), takes.len());
    ensure(has == wants, at, || format!("{has} arguments, but the kernel takes {wants}"))?;
    for (number, (&arg, takes)) in launch.args.iter().zip(&takes).enumerate() {
        ensure(takes.takes(arg), &format!("{at}[{number}]"), || {
            let arg = serde_json::to_string(&arg).unwrap_or_default();
            format!("{arg}, but the kernel takes {}", takes.ty)
        })?;
        // Keys and values are of one layer.
        let state = |arg| if let Arg::State { state, .. } = arg { Some(state) } else { None };
        let same = takes.stream == 0 || state(launch.args[number - 1]) == state(arg);
        ensure(same, &format!("{at}[{number}].state"), || "keys and values of two states".into())?;
    }
    Ok(())
}

/// What a kernel takes for an argument.
struct Takes<'a> {
    ty: &'a str,
    /// Of a cache.
    stream: usize,
    is_operand: bool,
}

impl Takes<'_> {
    fn takes(&self, arg: Arg) -> bool {
        let is_of_step = || self.ty.split_once('[').is_some_and(|(_, shape)| shape.starts_with(['T', 'R']));
        match arg {
            Arg::Batch { .. } => self.ty == "batch",
            Arg::State { stream, .. } => is_state(self.ty) && stream == self.stream,
            _ if self.ty == "batch" || is_state(self.ty) => false,
            Arg::Weight { .. } => self.is_operand && !is_of_step(),
            Arg::Input { which: Input::Shares } => self.is_operand && self.ty.starts_with("f32[T"),
            Arg::Input { which: Input::Given } => self.is_operand && is_of_step() && !self.ty.starts_with("i32["),
            Arg::Input { .. } => self.is_operand && self.ty.starts_with("i32["),
            Arg::Arena { .. } | Arg::Hidden | Arg::Drafted { .. } => true,
        }
    }
}
