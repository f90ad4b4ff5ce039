//! Operands on their way from global into local memory: runs that a wave loads together, stretch by stretch.
//!
//! What lanes add to an address stays in one register for all of a wave's loads. What differs between loads is the same for all
//! lanes, and so is what a stretch adds: scalar registers and no vector arithmetic.
use inkwell::AddressSpace;
use inkwell::values::BasicValueEnum;

use super::fragment::RUN;
use crate::code::{Code, Int, Ptr, Vector};

/// LLVM's address space of buffer resources.
const RESOURCE: u16 = 8;
/// Bytes that a resource spans: as many as a signed offset reaches.
const SPAN: u64 = 0x7fff_ffff;

/// One load of each stretch.
enum Source<'c> {
    Buffer(BasicValueEnum<'c>),
    Address(Ptr<'c>),
}

/// The loads of a wave.
pub struct Stream<'k, 'c> {
    c: &'k Code<'c>,
    sources: Vec<Source<'c>>,
    /// What the lane adds to each of them, and what all lanes add for each stretch.
    lane: Int<'c>,
    step: Int<'c>,
}

impl<'k, 'c> Stream<'k, 'c> {
    /// Loads that begin at `starts`, the same for all lanes.
    pub fn new(c: &'k Code<'c>, starts: &[Ptr<'c>], lane: Int<'c>, step: Int<'c>) -> Stream<'k, 'c> {
        let source = |&p: &Ptr<'c>| match c.arch.simt().buffer_word {
            Some(word) => Source::Buffer(resource(c, p, word)),
            None => Source::Address(p),
        };
        Stream { c, sources: starts.iter().map(source).collect(), lane, step }
    }

    /// Loads the lane's runs of a stretch.
    pub fn bring(&self, stretch: Int<'c>) -> Vec<Vector<'c>> {
        let (c, words) = (self.c, self.c.cx.i32_type().vec_type(4));
        let along = c.mul(stretch, self.step);
        let load = |source: &Source<'c>| match *source {
            Source::Buffer(resource) => {
                let plain = c.cx.i32_type().const_zero();
                let args = [resource.into(), self.lane.into(), along.into(), plain.into()];
                c.call("llvm.amdgcn.raw.ptr.buffer.load", &[words.into()], &args).into_vector_value()
            }
            Source::Address(p) => {
                let inside = c.add(c.lane_offset(self.lane, stretch), along);
                c.load_vector(c.cx.i32_type(), 4, c.at(p, inside), RUN)
            }
        };
        self.sources.iter().map(load).collect()
    }
}

fn resource<'c>(c: &Code<'c>, p: Ptr<'c>, word: u32) -> BasicValueEnum<'c> {
    let ty = c.cx.ptr_type(AddressSpace::from(RESOURCE));
    let stride = c.cx.i16_type().const_zero();
    let (span, word) = (c.cx.i64_type().const_int(SPAN, false), c.cx.i32_type().const_int(word.into(), false));
    let args = [p.into(), stride.into(), span.into(), word.into()];
    c.call("llvm.amdgcn.make.buffer.rsrc", &[ty.into(), p.get_type().into()], &args)
}
