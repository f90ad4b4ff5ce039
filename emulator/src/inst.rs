//! A decoded instruction: operands and modifiers, as the text of the disassembler gives them.
use crate::fault::Operation;
use crate::isa::Family;

/// The first row of the register file that is an accumulation register.
pub const AGPR: u16 = 256;

/// Scalar registers by number; the file is flat, so that pairs such as `vcc` are two neighbours.
pub mod scalar {
    pub const VCC: u8 = 106;
    pub const TTMP: u8 = 108;
    pub const M0: u8 = 124;
    /// Reads as zero; writes are dropped.
    pub const NULL: u8 = 125;
    pub const EXEC: u8 = 126;
}

/// Which part of a 32-bit register an operand names (true16 instructions: `v1.l`, `v1.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Half {
    #[default]
    Whole,
    Low,
    High,
}

/// An operand. Destinations and sources are alike; modifiers of sources are in [`Source`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// `count` rows of the vector register file from `row`; accumulation registers begin at row
    /// [`AGPR`].
    Vector { row: u16, count: u8, half: Half },
    /// `count` scalar registers from `index` (see [`scalar`]).
    Scalar { index: u8, count: u8 },
    /// A decimal number in the text: an inline integer constant (or an immediate of a scalar
    /// instruction).
    Int(i64),
    /// An inline floating-point constant as written (`0.5`, `0.15915494` for 1/2pi): its bits
    /// depend on the type of the operand.
    Float(f64),
    /// A hexadecimal number in the text: a literal of at most 32 bits, or 64 if the operand has 64
    /// and the encoding allows it.
    Literal(u64),
    /// The final bits of a constant; a resolver replaces `Int`, `Float` and `Literal` by it.
    Const(u64),
    /// The scalar condition code as a source.
    Scc,
    /// High halves of the apertures of LDS and of scratch: `src_shared_base` and others.
    Aperture(Aperture),
    /// No address (`off`), no register.
    Off,
    /// A branch target: an index of the decoded kernel's instructions.
    Label(u32),
    /// Anything else, as text in the kernel's table: `sendmsg(...)`, `hwreg(...)`; only scalar
    /// instructions have such.
    Named(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aperture {
    SharedBase,
    SharedLimit,
    PrivateBase,
    PrivateLimit,
}

/// An operand with its modifiers in the text: `-v1`, `|v1|`, `-|v1|`, `sext(v1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Source {
    pub operand: Operand,
    pub neg: bool,
    pub abs: bool,
    pub sext: bool,
}

/// How a DPP instruction chooses the lane it reads its first source from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DppControl {
    QuadPerm([u8; 4]),
    RowShl(u8),
    RowShr(u8),
    RowRor(u8),
    WaveShl,
    WaveShr,
    WaveRol,
    WaveRor,
    RowMirror,
    RowHalfMirror,
    /// `row_bcast:15` or `row_bcast:31` (gfx9).
    RowBcast(u8),
    /// `row_newbcast` (gfx90a) and `row_share` (gfx10 and later): every lane of a row reads this
    /// one.
    RowShare(u8),
    RowXmask(u8),
    /// `dpp8:[...]`: each lane of eight names the lane it reads.
    Dpp8([u8; 8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dpp {
    pub control: DppControl,
    pub row_mask: u8,
    pub bank_mask: u8,
    /// Lanes that read out of range get zero; without it they keep the old value.
    pub bound_ctrl: bool,
    /// Inactive lanes may be read (`fi:1`).
    pub fetch_inactive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Select {
    Byte(u8),
    Word(u8),
    #[default]
    Dword,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Unused {
    #[default]
    Pad,
    Sext,
    Preserve,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sdwa {
    pub dst: Select,
    pub unused: Unused,
    pub src: [Select; 2],
}

/// Modifiers after the operands. Bit k of a bit set belongs to source k, as the list in the text.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Modifiers {
    pub clamp: bool,
    /// The factor of the result: `mul:2`, `mul:4`, `div:2`.
    pub omod: Omod,
    /// `None` if the text has no list: the default depends on the instruction (`op_sel_hi` of
    /// packed ones is all ones).
    pub op_sel: Option<u8>,
    pub op_sel_hi: Option<u8>,
    pub neg_lo: u8,
    pub neg_hi: u8,
    pub dpp: Option<Dpp>,
    pub sdwa: Option<Sdwa>,
    /// Signed byte offset of memory instructions; `offset0` of two-address LDS instructions; the
    /// pattern of `ds_swizzle`.
    pub offset: i32,
    pub offset1: i32,
    pub cbsz: u8,
    pub abid: u8,
    pub blgp: u8,
    pub bitop3: u8,
    pub byte_sel: u8,
    pub offen: bool,
    pub idxen: bool,
    pub addr64: bool,
    pub lds: bool,
    pub gds: bool,
    /// Cache policy bits and their gfx940 descendants.
    pub glc: bool,
    pub sc0: bool,
    pub sc1: bool,
    pub nt: bool,
    pub slc: bool,
    pub dlc: bool,
    /// An atomic gives back the old value: `glc` (gfx90a, gfx11), `sc0` (gfx942),
    /// `th:TH_ATOMIC_RETURN` (gfx12).
    pub returns: bool,
    /// `scope:SCOPE_DEV` or wider (gfx12).
    pub device: bool,
    /// `scope:SCOPE_SYS` (gfx12).
    pub system: bool,
}

impl Modifiers {
    /// An access to memory goes past all caches that the whole device does not share. Source:
    /// LLVM's AMDGPUUsage, "Memory Model", atomic loads and stores of agent scope.
    pub fn passes_caches(&self, family: Family) -> bool {
        match family {
            Family::Gfx90a | Family::Gfx11 => self.glc,
            Family::Gfx942 | Family::Gfx950 => self.sc1,
            Family::Gfx12 => self.device,
        }
    }

    /// An access reaches memory that other devices use too. Source: LLVM's AMDGPUUsage, "Memory
    /// Model", atomic loads and stores of system scope. Stores of gfx90a and gfx11 go through their
    /// caches by themselves.
    pub fn reaches_devices(&self, family: Family, operation: Operation) -> bool {
        match family {
            Family::Gfx90a | Family::Gfx11 if operation == Operation::Write => true,
            Family::Gfx90a | Family::Gfx11 => self.glc,
            Family::Gfx942 | Family::Gfx950 => self.sc0 && self.sc1,
            Family::Gfx12 => self.system,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Omod {
    #[default]
    None,
    Mul2,
    Mul4,
    Div2,
}

/// Most operands an instruction has, destinations included.
pub const MAX_OPERANDS: usize = 6;

/// One instruction, or one half of a dual one.
#[derive(Clone, Debug)]
pub struct Inst {
    /// Without the suffix of the encoding (`_e32`, `_e64`, `_dpp`, `_sdwa`, `_e64_dpp`).
    pub mnemonic: Box<str>,
    /// All operands in the order of the text, destinations first.
    pub operands: [Source; MAX_OPERANDS],
    pub count: u8,
    pub modifiers: Modifiers,
    /// Byte offset from the start of the code section.
    pub address: u64,
    /// Free for resolvers: a small table index or an immediate.
    pub aux: u64,
}

pub const NO_SOURCE: Source = Source { operand: Operand::Off, neg: false, abs: false, sext: false };

impl Inst {
    pub fn operands(&self) -> &[Source] {
        &self.operands[..usize::from(self.count)]
    }

    pub fn operand(&self, index: usize) -> Operand {
        self.operands[index].operand
    }
}

impl Operand {
    /// The bits of a constant in an instruction that takes 32-bit values (floating-point or
    /// integer).
    pub fn bits32(self) -> Option<u32> {
        match self {
            Operand::Int(v) => Some(v as u32),
            Operand::Float(v) => Some((v as f32).to_bits()),
            Operand::Literal(v) | Operand::Const(v) => Some(v as u32),
            _ => None,
        }
    }
}
