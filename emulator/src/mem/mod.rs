//! Memory instructions: global, flat, buffer, scratch, LDS and scalar memory.
//!
//! Every vector access becomes one host pointer for each active lane (`address.rs`); loads, stores
//! and atomics (`transfer.rs`, `atomic.rs`) do not know which memory they work on.
mod address;
mod atomic;
mod buffer;
mod exchange;
pub mod lds;
mod names;
mod scalar;
mod transfer;

use crate::exec::Cx;
use crate::fault::Trap;
use crate::inst::{Half, Inst, Operand};

pub use address::{Places, lanes};
pub use atomic::AtomicOp;
pub use names::resolve;

/// The apertures of flat addresses: no host address has these upper halves.
pub mod flat {
    pub const SHARED: u64 = 1 << 48;
    pub const PRIVATE: u64 = 2 << 48;
}

/// A memory instruction, its operands by their parts.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOp {
    pub space: Space,
    pub kind: Kind,
    /// Register of the result: a row of the vector file, or a scalar register.
    pub dst: Option<Registers>,
    pub data: Option<Registers>,
    /// The second value of two-address stores and of compare-and-swap.
    pub data2: Option<Registers>,
    pub address: Address,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Global,
    Flat,
    Scratch,
    Buffer,
    Lds,
    Scalar,
    ScalarBuffer,
}

impl Space {
    /// Whether vector accesses may reach memory that other work-groups see.
    pub fn is_memory(self) -> bool {
        matches!(self, Space::Global | Space::Flat | Space::Buffer)
    }

    pub fn is_scalar(self) -> bool {
        matches!(self, Space::Scalar | Space::ScalarBuffer)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Load(Width),
    Store(Width),
    Atomic(AtomicOp),
    /// Memory to LDS without registers between; bytes of each lane.
    ToLds(Width),
    /// Two loads or stores at distances of `unit` bytes.
    Load2 {
        unit: u32,
        bytes: u8,
    },
    Store2 {
        unit: u32,
        bytes: u8,
    },
    /// `ds_read_b64_tr_b16` and its kin: bits of an element.
    Transpose {
        bits: u8,
    },
    Permute,
    Bpermute,
    Swizzle,
}

/// The type that a lane loads or stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    /// 1, 2, 4, 8, 12 or 16.
    pub bytes: u8,
    /// Narrow loads extend the sign.
    pub signed: bool,
    /// Only this half of the register is loaded or stored (`d16`).
    pub half: Half,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    pub first: u16,
    pub count: u8,
    pub half: Half,
}

/// The operands that make an address; which are there depends on the space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Address {
    pub vector: Option<Registers>,
    pub scalar: Option<u8>,
    pub offset: Operand,
}

/// Executes a memory instruction.
pub fn execute(op: &MemoryOp, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    match (op.space, op.kind) {
        (Space::Scalar | Space::ScalarBuffer, _) => scalar::run(op, inst, cx),
        (_, Kind::Permute | Kind::Bpermute | Kind::Swizzle) => {
            exchange::run(op, inst, cx.wave);
            cx.side.issue_lds(op, cx.group);
            Ok(())
        }
        (_, Kind::ToLds(width)) => transfer::to_lds(op, width, inst, cx),
        (_, Kind::Load2 { unit, bytes }) => transfer::load2(op, unit, bytes, inst, cx),
        (_, Kind::Store2 { unit, bytes }) => transfer::store2(op, unit, bytes, inst, cx),
        (_, Kind::Load(width)) => transfer::load(op, width, inst, cx),
        (_, Kind::Store(width)) => transfer::store(op, width, inst, cx),
        (_, Kind::Atomic(atomic)) => atomic::run(op, atomic, inst, cx),
        (_, Kind::Transpose { bits }) => exchange::transpose(op, bits, inst, cx),
    }
}

impl MemoryOp {
    pub fn is_store_to_memory(&self) -> bool {
        self.kind.is_store() && self.space.is_memory()
    }

    pub fn is_atomic_on_memory(&self) -> bool {
        matches!(self.kind, Kind::Atomic(_)) && self.space.is_memory()
    }

    /// The number of the first operands that are destinations, and those of them that are sources,
    /// too. Loads of half a register are not: an older load of the other half returns before.
    pub fn destinations(&self) -> (u8, u8) {
        let both = matches!(self.kind, Kind::Atomic(_)) && self.space == Space::Buffer;
        if self.dst.is_some() { (1, u8::from(both)) } else { (0, 0) }
    }
}
