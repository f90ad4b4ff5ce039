//! Experts as a rank counts them that holds some of them: from the first of these.
use atomc_ir::{Diagnostic, Op, Router, Value};
use inkwell::values::FloatValue;

use crate::code::{Code, Int};
use crate::row::{At, Col, Rows};

const BUILT: &str = "numbers";

/// Which experts a rank holds.
#[derive(Clone, Copy)]
pub struct Held<'c> {
    first: FloatValue<'c>,
    count: usize,
}

impl<'c> Held<'c> {
    /// The experts of a router that this rank holds, unless it holds all.
    pub fn of<'a>(rows: &Rows<'a, 'c>, router: Value) -> Result<Option<Held<'c>>, Diagnostic> {
        let &Op::Route { held: Some(count), .. } = rows.graph.op(router.node) else { return Ok(None) };
        let operands = rows.graph.operands(router.node);
        let (_, Some(first)) = Router::behind_logits(&operands[1..], Some(count)) else { return Ok(None) };
        let first = rows.eval(first, At { row: rows.code.int(0), head: None, col: Col::Const(0) })?;
        Ok(Some(Held { first: rows.code.lane(first, 0).into_float_value(), count }))
    }

    /// An expert in 32 bits, counted from the first that is held, and whether it is held: others
    /// are -1.
    pub fn own(&self, c: &Code<'c>, expert: Int<'c>) -> (Int<'c>, Int<'c>) {
        let float = c.b.build_signed_int_to_float(expert.v, c.cx.f32_type(), "").expect(BUILT);
        let own = c.float(float) - self.first;
        let is_held = own.at_least(c.number(0.0)) & own.less(c.number(self.count as f64));
        let word = c.cx.i32_type();
        let own = own.whole(word);
        (c.as_int(c.pick(is_held, own, word.const_all_ones())), is_held)
    }
}
