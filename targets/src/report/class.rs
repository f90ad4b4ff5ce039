//! The class of an instruction, by its text.

/// The classes that a report counts. Pairs of vector instructions in one word are one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Matrix,
    /// Any other vector arithmetic.
    Vector,
    /// Scalar arithmetic, loads and branches.
    Scalar,
    /// Access to LDS.
    Lds,
    /// A load from global memory, to registers or to LDS, of this many bytes for each lane.
    Load {
        bytes: usize,
    },
    /// A store to global memory. Up to gfx9, which spells sizes as words, stores share a counter
    /// with loads.
    Store {
        counted: bool,
    },
    /// A wait; `loads` is the number of loads from global memory that may be in flight after it.
    Wait {
        loads: Option<usize>,
    },
    Barrier,
    /// Atomic operations, scratch memory, hints, and instructions for the hardware's own needs.
    Other,
}

/// Mnemonics that do nothing, or say how to schedule.
const HINTS: &[&str] = &[
    "s_nop",
    "s_delay_alu",
    "s_clause",
    "s_sleep",
    "s_setprio",
    "s_code_end",
    "s_waitcnt_depctr",
    "s_wait_alu",
    "s_set_vgpr_msb",
    "s_inst_prefetch",
    "s_set_inst_prefetch_distance",
];

impl Class {
    pub fn of(text: &str) -> Class {
        let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let starts = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
        match name {
            _ if HINTS.contains(&name) => Class::Other,
            _ if starts(&["v_mfma", "v_smfmac", "v_wmma", "v_swmmac"]) => Class::Matrix,
            _ if name.starts_with("v_") => Class::Vector,
            _ if name.starts_with("ds_") => Class::Lds,
            _ if starts(&["global_load", "buffer_load", "flat_load", "cluster_load"]) => {
                Class::Load { bytes: load_bytes(name) }
            }
            _ if starts(&["global_store", "buffer_store", "flat_store"]) => {
                Class::Store { counted: ["byte", "short", "dword"].iter().any(|size| name.contains(size)) }
            }
            "s_barrier" | "s_barrier_wait" => Class::Barrier,
            "s_waitcnt" => Class::Wait { loads: field(operands, "vmcnt") },
            "s_wait_loadcnt" => Class::Wait { loads: number(operands) },
            "s_wait_loadcnt_dscnt" => Class::Wait { loads: number(operands).map(|n| n >> 8 & 0x3f) },
            _ if starts(&["s_waitcnt_", "s_wait_"]) => Class::Wait { loads: None },
            _ if name.starts_with("s_") => Class::Scalar,
            _ => Class::Other,
        }
    }
}

/// M times N times K of a matrix instruction, as its name says: `v_mfma_f32_32x32x8bf16_1k`. 0 for
/// others.
pub fn multiply_adds(text: &str) -> usize {
    let shape = |part: &str| {
        let sizes = part.split('x').map(|n| n.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok());
        let sizes: Vec<usize> = sizes.collect::<Option<_>>()?;
        (sizes.len() == 3).then(|| sizes.iter().product())
    };
    match Class::of(text) {
        Class::Matrix => text.split(['_', ' ']).find_map(shape).unwrap_or(0),
        _ => 0,
    }
}

/// `global_load_dwordx4` and `global_load_b128` alike.
fn load_bytes(name: &str) -> usize {
    let last = name.rsplit('_').find(|p| !matches!(*p, "d16" | "hi" | "lds")).unwrap_or_default();
    match last {
        "dwordx4" | "b128" => 16,
        "dwordx3" | "b96" => 12,
        "dwordx2" | "b64" => 8,
        "dword" | "b32" => 4,
        "ushort" | "sshort" | "short" | "b16" | "u16" | "i16" => 2,
        _ => 1,
    }
}

/// `vmcnt(3)` of `vmcnt(3) lgkmcnt(0)`.
fn field(operands: &str, name: &str) -> Option<usize> {
    let rest = operands.split_once(name)?.1;
    rest.strip_prefix('(')?.split_once(')')?.0.parse().ok()
}

fn number(operand: &str) -> Option<usize> {
    let operand = operand.trim();
    match operand.strip_prefix("0x") {
        Some(hex) => usize::from_str_radix(hex, 16).ok(),
        None => operand.parse().ok(),
    }
}
