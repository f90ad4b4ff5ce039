//! Removes nodes that no output depends on.
//!
//! ```text
//! %0 = silu %x                %0 = silu %x
//! %1 = gelu %x          =>    return %0
//! return %0
//! ```
//!
//! The driver does the same after each pass that changed something. This pass removes unused nodes
//! of the frontend.
use atomc_ir::{Diagnostic, Graph};

use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, _: &Cx) -> Result<Changed, Diagnostic> {
    Ok((graph.sweep() > 0).into())
}

#[cfg(test)]
mod tests {
    use crate::testing::check;

    #[test]
    fn what_nothing_needs() {
        let text = "graph @g(%x: f32[T, 4], %y: f32[T, 4]) {
            %0 = silu %x : f32[T, 4]
            %1 = gelu %0 : f32[T, 4]
            return %0
        }";
        insta::assert_snapshot!(check("dce", text), @"
        graph @g(%x: f32[T, 4], %y: f32[T, 4]) {
          %0 = silu %x : f32[T, 4]
          return %0
        }
        ");
    }
}
