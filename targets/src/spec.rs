//! The request: a kernel of a body, and the form to show it in.
use atomc_ir::{Family, Graph};

use crate::tuning::Choice;

/// One kernel to emit.
#[derive(Clone, Debug)]
pub struct KernelSpec<'a> {
    pub symbol: String,
    pub family: Family,
    pub body: &'a Graph,
    /// Most rows of the step that the kernel is for: the bucket's tokens, or those with wanted
    /// logits.
    pub tokens: usize,
    /// Most tokens of a sequence in these steps, where attention is made for so few.
    pub each: Option<usize>,
    /// Numbers of the schedule to use instead of those that were found best, for `atomc tune`.
    pub choice: Option<Choice>,
    /// Whether a row's result must not depend on the other rows of a step, nor on their number.
    pub invariant: bool,
}

impl<'a> KernelSpec<'a> {
    /// A kernel for steps of `tokens` rows, with the numbers that were found best.
    pub fn new(family: Family, body: &'a Graph, tokens: usize) -> KernelSpec<'a> {
        KernelSpec { symbol: "k".into(), family, body, tokens, each: None, choice: None, invariant: false }
    }
}

/// What [`text`](crate::text) shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Llvm,
    Asm,
}
