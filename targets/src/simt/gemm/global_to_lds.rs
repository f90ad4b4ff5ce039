//! Copies of operands from global into local memory: vectors that a wave loads together, stretch by
//! stretch.
//!
//! The offset of a lane stays in one register for all of a wave's loads. The differences between
//! loads, and the offset of a stretch, are the same for all lanes: scalar registers and no vector
//! arithmetic. If the machine can, vectors go to local memory without passing through registers.
use atomc_ir::arch::{Isa, Simt};
use inkwell::AddressSpace;
use inkwell::intrinsics::Intrinsic;
use inkwell::values::{BasicMetadataValueEnum, BasicValueEnum, InstructionValue, MetadataValue};

use crate::code::{Int, Ptr, Vector};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;

/// LLVM's address space of buffer resources.
const RESOURCE: u16 = 8;
/// Bytes that a resource spans: as many as a signed offset reaches.
const SPAN: u64 = 0x7fff_ffff;
/// Most bytes that an instruction adds to both addresses.
const ADDED: usize = 4096;
/// Halves of local memory, or stages, that have scopes of their own.
pub const MOST_STAGES: usize = 4;
/// Most loads that the counter of a wave holds, which is also the operand of `s_waitcnt` that waits
/// for nothing else. Source: CDNA3 ISA, S_WAITCNT.
const MOST_COUNTED: usize = 63;
const OTHER_COUNTS: usize = 0xf << 8 | 0x7 << 4;

/// One load of each stretch.
enum Source<'c> {
    Buffer(BasicValueEnum<'c>),
    Address(Ptr<'c>),
}

/// The loads of a wave. Each fills the next bytes of local memory.
pub struct Loader<'k, 'c> {
    c: &'k Gpu<'c>,
    sources: Vec<Source<'c>>,
    /// The lane's offset for all of them, or for each, and the offset of all lanes for each
    /// stretch.
    lane: Vec<Int<'c>>,
    step: Int<'c>,
}

impl<'k, 'c> Loader<'k, 'c> {
    /// Loads that begin at `starts`, the same for all lanes, plus the lane's offset: one for all
    /// loads, or one for each.
    pub fn new(c: &'k Gpu<'c>, starts: &[Ptr<'c>], lane: Vec<Int<'c>>, step: Int<'c>) -> Loader<'k, 'c> {
        let mut loader = Loader { c, sources: vec![], lane, step };
        let source = |(i, &p): (usize, &Ptr<'c>)| match c.simt.buffer_word {
            Some(word) => {
                let less = if loader.is_direct() { loader.added(i) } else { 0 };
                let p = c.at(p, c.as_int(c.cx.i64_type().const_int((less as u64).wrapping_neg(), true)));
                Source::Buffer(resource(c, p, word))
            }
            None => Source::Address(p),
        };
        loader.sources = starts.iter().enumerate().map(source).collect();
        loader
    }

    /// Whether vectors go to local memory without registers.
    pub fn is_direct(&self) -> bool {
        is_direct(self.c)
    }

    /// The lane's offset from the start of a load.
    fn lane(&self, load: usize) -> Int<'c> {
        self.lane[load % self.lane.len()]
    }

    /// Bytes of local memory that a load fills.
    fn load_bytes(&self) -> usize {
        self.c.simt.wave * VEC16
    }

    /// The constant offset that the instruction of a direct load adds to both addresses. Loads in
    /// its reach share one address in local memory.
    fn added(&self, load: usize) -> usize {
        load * self.load_bytes() % ADDED
    }

    /// Loads the lane's vectors of a stretch.
    pub fn load(&self, stretch: Int<'c>) -> Vec<Vector<'c>> {
        let (c, words) = (self.c, self.c.cx.i32_type().vec_type(4));
        let along = stretch * self.step;
        let load = |(i, source): (usize, &Source<'c>)| match *source {
            Source::Buffer(resource) => {
                let plain = c.cx.i32_type().const_zero();
                let args = [resource.into(), self.lane(i).into(), along.into(), plain.into()];
                c.call("llvm.amdgcn.raw.ptr.buffer.load", &[words.into()], &args).into_vector_value()
            }
            Source::Address(p) => c.load_vector(c.cx.i32_type(), 4, self.address((i, p), stretch), VEC16),
        };
        self.sources.iter().enumerate().map(load).collect()
    }

    /// The lane's address in a stretch, where there are no resources.
    fn address(&self, (load, p): (usize, Ptr<'c>), stretch: Int<'c>) -> Ptr<'c> {
        let c = self.c;
        c.at(p, c.lane_offset(self.lane(load), stretch) + stretch * self.step)
    }

    /// Copies the wave's vectors of a stretch to local memory. They have arrived after
    /// [`Loader::wait`] and a barrier.
    pub fn load_async(&self, stretch: Int<'c>, to: Ptr<'c>, half: usize) {
        let c = self.c;
        let k = |n: usize| c.cx.i32_type().const_int(n as u64, false);
        for (i, source) in self.sources.iter().enumerate() {
            let (at, zero) = (i * self.load_bytes(), k(0).into());
            let sent = match *source {
                Source::Buffer(resource) => {
                    let added = self.added(i);
                    let along = (stretch * self.step).into();
                    let to = c.at(to, at - added).into();
                    let args =
                        [resource.into(), to, k(VEC16).into(), self.lane(i).into(), along, k(added).into(), zero];
                    command(c, "llvm.amdgcn.raw.ptr.buffer.load.lds", &args)
                }
                Source::Address(p) => {
                    let to = c.at(to, c.lane_index() * VEC16 + at);
                    let args = [self.address((i, p), stretch).into(), to.into(), zero, zero];
                    command(c, "llvm.amdgcn.global.load.async.to.lds.b128", &args)
                }
            };
            mark(c, sent, half);
        }
    }

    /// A barrier after which the oldest stretch in flight has arrived from all waves. The `later`
    /// ones after it stay in flight. All reads of local memory before the barrier have ended.
    pub fn await_first(&self, later: usize) {
        let c = self.c;
        let most = later * self.sources.len();
        assert!(most <= MOST_COUNTED, "{most} loads on their way");
        let counts = (most & 0xf) | (most >> 4 << 14) | OTHER_COUNTS;
        command(c, "llvm.amdgcn.s.waitcnt", &[c.cx.i32_type().const_int(counts as u64, false).into()]);
        command(c, "llvm.amdgcn.s.barrier", &[]);
    }

    /// After the next barrier, this wave's copies have arrived. Barriers already wait for loads
    /// through resources and for stores, but not for loads that have a counter of their own.
    pub fn wait(&self) {
        if let Source::Address(_) = self.sources[0] {
            command(self.c, "llvm.amdgcn.s.wait.asynccnt", &[self.c.cx.i16_type().const_zero().into()]);
        }
    }
}

fn is_direct(c: &Gpu) -> bool {
    goes_direct(c.simt)
}

/// Whether a machine's vectors go to local memory without registers.
pub fn goes_direct(simt: &Simt) -> bool {
    simt.isa == Isa::Amdgcn && simt.direct_to_lds >= VEC16
}

/// Loads of vectors of some words from `start` on, the same for all lanes, plus the lane's offset
/// and a constant offset for each. With resources no address is computed.
pub fn load_from<'c>(c: &Gpu<'c>, start: Ptr<'c>, lane: Int<'c>, offsets: &[usize], words: usize) -> Vec<Vector<'c>> {
    let ty = c.cx.i32_type().vec_type(words as u32);
    let Some(word) = c.simt.buffer_word else {
        let load = |&offset: &usize| c.load_vector(c.cx.i32_type(), words, c.at(c.at(start, offset), lane), 4 * words);
        return offsets.iter().map(load).collect();
    };
    let resource = resource(c, start, word);
    let load = |&offset: &usize| {
        let k = |n: usize| c.cx.i32_type().const_int(n as u64, false).into();
        let args = [resource.into(), lane.into(), k(offset), k(0)];
        c.call("llvm.amdgcn.raw.ptr.buffer.load", &[ty.into()], &args).into_vector_value()
    };
    offsets.iter().map(load).collect()
}

/// Marks an instruction as using one half, or stage, of local memory alone: LLVM would otherwise
/// wait with it for copies to the others.
pub fn mark<'c>(c: &Gpu<'c>, instruction: InstructionValue<'c>, half: usize) {
    if !is_direct(c) {
        return;
    }
    let set = |kind: &str, halves: &[usize]| {
        let scopes: Vec<_> = halves.iter().map(|&half| scope(c, half).into()).collect();
        let scopes = c.cx.metadata_node(&scopes);
        instruction.set_metadata(scopes, c.cx.get_kind_id(kind)).expect("an instruction of this context");
    };
    set("alias.scope", &[half]);
    set("noalias", &(0..MOST_STAGES).filter(|&other| other != half).collect::<Vec<_>>());
}

/// An intrinsic without a result.
fn command<'c>(c: &Gpu<'c>, name: &str, args: &[BasicMetadataValueEnum<'c>]) -> InstructionValue<'c> {
    let intrinsic = Intrinsic::find(name).unwrap_or_else(|| panic!("LLVM 22 has {name}"));
    let f = intrinsic.get_declaration(&c.module, &[]).unwrap_or_else(|| panic!("{name} has no types"));
    c.b.build_call(f, args, "").expect("open").try_as_basic_value().expect_instruction("no result")
}

fn scope<'c>(c: &Gpu<'c>, half: usize) -> MetadataValue<'c> {
    let name = |name: &str| c.cx.metadata_string(name).into();
    let domain = c.cx.metadata_node(&[name("local memory")]);
    c.cx.metadata_node(&[name(["first half", "second half", "third", "fourth"][half]), domain.into()])
}

fn resource<'c>(c: &Gpu<'c>, p: Ptr<'c>, word: u32) -> BasicValueEnum<'c> {
    let ty = c.cx.ptr_type(AddressSpace::from(RESOURCE));
    let stride = c.cx.i16_type().const_zero();
    let (span, word) = (c.cx.i64_type().const_int(SPAN, false), c.cx.i32_type().const_int(word.into(), false));
    let args = [p.into(), stride.into(), span.into(), word.into()];
    c.call("llvm.amdgcn.make.buffer.rsrc", &[ty.into(), p.get_type().into()], &args)
}
