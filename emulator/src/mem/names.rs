//! From mnemonics to [`MemoryOp`]s.
use super::{Address, AtomicOp, Kind, MemoryOp, Registers, Space, Width};
use crate::inst::{Half, Inst, Operand};

/// The memory operation of an instruction; `None` if it is none, or one that is not interpreted.
pub fn resolve(inst: &Inst) -> Option<MemoryOp> {
    let name: &str = &inst.mnemonic;
    if let Some(rest) = name.strip_prefix("ds_") {
        return lds(inst, rest);
    }
    let scalar = [("s_buffer_load_", Space::ScalarBuffer), ("s_load_", Space::Scalar)];
    for (prefix, space) in scalar {
        if let Some(width) = name.strip_prefix(prefix).and_then(load_width) {
            return scalar_load(inst, space, width);
        }
    }
    let writes =
        [("s_store_", "s_atomic_", Space::Scalar), ("s_buffer_store_", "s_buffer_atomic_", Space::ScalarBuffer)];
    for (store, atomic, space) in writes {
        if let Some(width) = name.strip_prefix(store).and_then(plain_width) {
            return scalar_write(inst, space, Kind::Store(width));
        }
        if let Some(atomic) = name.strip_prefix(atomic).and_then(AtomicOp::find) {
            return scalar_write(inst, space, Kind::Atomic(atomic));
        }
    }
    let spaces =
        [("global_", Space::Global), ("flat_", Space::Flat), ("scratch_", Space::Scratch), ("buffer_", Space::Buffer)];
    let (rest, space) = spaces.iter().find_map(|(p, s)| Some((name.strip_prefix(p)?, *s)))?;
    vector(inst, rest, space)
}

fn vector(inst: &Inst, rest: &str, space: Space) -> Option<MemoryOp> {
    let kind = if let Some(width) = rest.strip_prefix("load_lds_").and_then(load_width) {
        Kind::ToLds(width)
    } else if let Some(width) = rest.strip_prefix("load_").and_then(load_width) {
        if inst.modifiers.lds { Kind::ToLds(width) } else { Kind::Load(width) }
    } else if let Some(width) = rest.strip_prefix("store_").and_then(store_width) {
        Kind::Store(width)
    } else {
        Kind::Atomic(AtomicOp::find(rest.strip_prefix("atomic_")?)?)
    };
    let mut operands = inst.operands().iter().map(|s| s.operand);
    let mut op = MemoryOp { space, kind, dst: None, data: None, data2: None, address: NO_ADDRESS };
    if space == Space::Buffer {
        return buffer(op, operands, inst.modifiers.returns);
    }
    let returns = matches!(kind, Kind::Atomic(_)) && inst.modifiers.returns;
    if matches!(kind, Kind::Load(_)) || returns {
        op.dst = Some(registers(operands.next()?)?);
    }
    op.address.vector = registers(operands.next()?);
    if matches!(kind, Kind::Store(_) | Kind::Atomic(_)) {
        op.data = Some(registers(operands.next()?)?);
    }
    match operands.next() {
        Some(Operand::Scalar { index, .. }) => op.address.scalar = Some(index),
        None | Some(Operand::Off) => {}
        Some(_) => return None,
    }
    (op.address.vector.is_some() || space == Space::Scratch).then_some(op)
}

const NO_ADDRESS: Address = Address { vector: None, scalar: None, offset: Operand::Off };

fn buffer(mut op: MemoryOp, mut operands: impl Iterator<Item = Operand>, returns: bool) -> Option<MemoryOp> {
    if !matches!(op.kind, Kind::ToLds(_)) {
        let data = Some(registers(operands.next()?)?);
        match op.kind {
            Kind::Load(_) => op.dst = data,
            Kind::Store(_) => op.data = data,
            _ => (op.data, op.dst) = (data, data.filter(|_| returns)),
        }
    }
    let mut next = operands.next()?;
    op.address.vector = registers(next);
    if op.address.vector.is_some() || next == Operand::Off {
        next = operands.next()?;
    }
    let Operand::Scalar { index, count: 4 } = next else { return None };
    op.address.scalar = Some(index);
    op.address.offset = operands.next()?;
    Some(op)
}

fn scalar_load(inst: &Inst, space: Space, width: Width) -> Option<MemoryOp> {
    let [dst, base, offset] = [0, 1, 2].map(|k| inst.operand(k));
    let Operand::Scalar { index, count } = dst else { return None };
    let Operand::Scalar { index: base, .. } = base else { return None };
    Some(MemoryOp {
        space,
        kind: Kind::Load(width),
        dst: Some(Registers { first: index.into(), count, half: Half::Whole }),
        data: None,
        data2: None,
        address: Address { vector: None, scalar: Some(base), offset },
    })
}

/// Scalar stores and atomics, which the instruction sets of gfx942 and gfx950 do not list; LLVM
/// encodes them as gfx9's, and AITER's kernels count their work-groups with them.
fn scalar_write(inst: &Inst, space: Space, kind: Kind) -> Option<MemoryOp> {
    let load = scalar_load(inst, space, width(4, false, Half::Whole))?;
    let dst = load.dst.filter(|_| matches!(kind, Kind::Atomic(_)) && inst.modifiers.returns);
    Some(MemoryOp { kind, dst, data: load.dst, ..load })
}

fn registers(operand: Operand) -> Option<Registers> {
    match operand {
        Operand::Vector { row, count, half } => Some(Registers { first: row, count, half }),
        _ => None,
    }
}

const fn width(bytes: u8, signed: bool, half: Half) -> Width {
    Width { bytes, signed, half }
}

fn plain_width(name: &str) -> Option<Width> {
    let bytes = match name {
        "dword" | "b32" => 4,
        "dwordx2" | "b64" => 8,
        "dwordx3" | "b96" => 12,
        "dwordx4" | "b128" => 16,
        // Only scalar loads are wider.
        "dwordx8" | "b256" => 32,
        "dwordx16" | "b512" => 64,
        _ => return None,
    };
    Some(width(bytes, false, Half::Whole))
}

fn load_width(name: &str) -> Option<Width> {
    plain_width(name).or_else(|| {
        Some(match name {
            "ubyte" | "u8" => width(1, false, Half::Whole),
            "sbyte" | "i8" => width(1, true, Half::Whole),
            "ushort" | "u16" => width(2, false, Half::Whole),
            "sshort" | "i16" => width(2, true, Half::Whole),
            "short_d16" | "d16_b16" | "u16_d16" => width(2, false, Half::Low),
            "short_d16_hi" | "d16_hi_b16" | "u16_d16_hi" => width(2, false, Half::High),
            "ubyte_d16" | "d16_u8" | "u8_d16" => width(1, false, Half::Low),
            "ubyte_d16_hi" | "d16_hi_u8" | "u8_d16_hi" => width(1, false, Half::High),
            "sbyte_d16" | "d16_i8" | "i8_d16" => width(1, true, Half::Low),
            "sbyte_d16_hi" | "d16_hi_i8" | "i8_d16_hi" => width(1, true, Half::High),
            _ => return None,
        })
    })
}

fn store_width(name: &str) -> Option<Width> {
    plain_width(name).or_else(|| {
        Some(match name {
            "byte" | "b8" => width(1, false, Half::Whole),
            "short" | "b16" => width(2, false, Half::Whole),
            "byte_d16_hi" | "d16_hi_b8" | "b8_d16_hi" => width(1, false, Half::High),
            "short_d16_hi" | "d16_hi_b16" | "b16_d16_hi" => width(2, false, Half::High),
            _ => return None,
        })
    })
}

fn lds(inst: &Inst, rest: &str) -> Option<MemoryOp> {
    let kind = lds_kind(rest)?;
    let mut operands = inst.operands().iter().map(|s| registers(s.operand));
    let mut op = MemoryOp { space: Space::Lds, kind, dst: None, data: None, data2: None, address: NO_ADDRESS };
    // A first register that is not an address.
    let returns = rest.contains("_rtn") || !matches!(kind, Kind::Store(_) | Kind::Store2 { .. } | Kind::Atomic(_));
    if returns {
        op.dst = operands.next()?;
    }
    op.address.vector = operands.next()?;
    op.data = operands.next().flatten();
    op.data2 = operands.next().flatten();
    if rest.starts_with("cmpstore") {
        // From gfx11 on the new value is first, as in the other memories.
        (op.data, op.data2) = (op.data2, op.data);
    }
    let complete = match kind {
        Kind::Store(_) | Kind::Atomic(_) | Kind::Permute | Kind::Bpermute => op.data.is_some(),
        Kind::Store2 { .. } => op.data2.is_some(),
        _ => true,
    };
    (complete && op.address.vector.is_some()).then_some(op)
}

fn lds_kind(rest: &str) -> Option<Kind> {
    if let Some(pair) = two_addresses(rest) {
        return Some(pair);
    }
    Some(match rest {
        "permute_b32" => Kind::Permute,
        "bpermute_b32" => Kind::Bpermute,
        "swizzle_b32" => Kind::Swizzle,
        "read_b64_tr_b16" => Kind::Transpose { bits: 16 },
        "read_b64_tr_b8" => Kind::Transpose { bits: 8 },
        "read_b64_tr_b4" => Kind::Transpose { bits: 4 },
        "read_b96_tr_b6" => Kind::Transpose { bits: 6 },
        _ => {
            let load = rest.strip_prefix("read_").or_else(|| rest.strip_prefix("load_"));
            let store = rest.strip_prefix("write_").or_else(|| rest.strip_prefix("store_"));
            match (load, store) {
                (Some(name), _) => Kind::Load(load_width(name)?),
                (_, Some(name)) => Kind::Store(store_width(name)?),
                _ => Kind::Atomic(AtomicOp::find_lds(rest)?),
            }
        }
    })
}

/// `read2st64_b64` and, from gfx11 on, `load_2addr_stride64_b64`.
fn two_addresses(rest: &str) -> Option<Kind> {
    let (stem, bytes) = match rest.rsplit_once('_')? {
        (stem, "b32") => (stem, 4),
        (stem, "b64") => (stem, 8),
        _ => return None,
    };
    let unit = u32::from(bytes);
    Some(match stem {
        "read2" | "load_2addr" => Kind::Load2 { unit, bytes },
        "read2st64" | "load_2addr_stride64" => Kind::Load2 { unit: unit * 64, bytes },
        "write2" | "store_2addr" => Kind::Store2 { unit, bytes },
        "write2st64" | "store_2addr_stride64" => Kind::Store2 { unit: unit * 64, bytes },
        _ => return None,
    })
}
