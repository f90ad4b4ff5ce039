use super::VectorOp;
use crate::inst::Inst;
use crate::isa::Isa;
pub fn resolve(_: &mut Inst, _: &'static Isa) -> Option<VectorOp> {
    None
}
