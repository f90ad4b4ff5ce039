//! The words after the operands.
use crate::inst::{Dpp, DppControl, Modifiers, Omod, Sdwa, Select, Unused};

/// Notes one modifier; an unknown one is an error.
pub fn apply(m: &mut Modifiers, word: &str) -> Result<(), ()> {
    if flag(m, word) {
        return Ok(());
    }
    let (name, value) = word.split_once(':').ok_or(())?;
    let done = bits(m, name, value)
        .or_else(|| number(m, name, value))
        .or_else(|| dpp(m, name, value))
        .or_else(|| sdwa(m, name, value))
        .or_else(|| policy(m, name, value));
    done.ok_or(())
}

fn flag(m: &mut Modifiers, word: &str) -> bool {
    match word {
        "clamp" => m.clamp = true,
        "offen" => m.offen = true,
        "idxen" => m.idxen = true,
        "addr64" => m.addr64 = true,
        "lds" => m.lds = true,
        "gds" => m.gds = true,
        "glc" => (m.glc, m.returns) = (true, true),
        "sc0" => (m.sc0, m.returns) = (true, true),
        "sc1" => m.sc1 = true,
        "nt" => m.nt = true,
        "slc" => m.slc = true,
        "dlc" => m.dlc = true,
        "row_mirror" => dpp_of(m).control = DppControl::RowMirror,
        "row_half_mirror" => dpp_of(m).control = DppControl::RowHalfMirror,
        _ => return false,
    }
    true
}

/// `[1,0,1]`: bit k is element k.
fn list(value: &str) -> Option<Vec<u8>> {
    value.strip_prefix('[')?.strip_suffix(']')?.split(',').map(|n| n.parse().ok()).collect()
}

fn bits(m: &mut Modifiers, name: &str, value: &str) -> Option<()> {
    let set = || Some(list(value)?.iter().enumerate().fold(0, |all, (k, bit)| all | (bit & 1) << k));
    match name {
        "op_sel" => m.op_sel = Some(set()?),
        "op_sel_hi" => m.op_sel_hi = Some(set()?),
        "neg_lo" => m.neg_lo = set()?,
        "neg_hi" => m.neg_hi = set()?,
        _ => return None,
    }
    Some(())
}

fn integer(value: &str) -> Option<i64> {
    let (sign, digits) = value.strip_prefix('-').map_or((1, value), |d| (-1, d));
    let n = match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(sign * n)
}

fn number(m: &mut Modifiers, name: &str, value: &str) -> Option<()> {
    if name == "offset" && value.starts_with("swizzle(") {
        m.offset = swizzle(value)?;
        return Some(());
    }
    let n = integer(value);
    let small = n.and_then(|n| u8::try_from(n).ok());
    match (name, value) {
        ("offset" | "offset0", _) => m.offset = i32::try_from(n?).ok()?,
        ("offset1", _) => m.offset1 = i32::try_from(n?).ok()?,
        ("cbsz", _) => m.cbsz = small?,
        ("abid", _) => m.abid = small?,
        ("blgp", _) => m.blgp = small?,
        ("bitop3", _) => m.bitop3 = small?,
        ("byte_sel", _) => m.byte_sel = small?,
        ("mul", "2") => m.omod = Omod::Mul2,
        ("mul", "4") => m.omod = Omod::Mul4,
        ("div", "2") => m.omod = Omod::Div2,
        ("wait_exp" | "wait_va_vdst" | "wait_vm_vsrc" | "wait_vdst", _) => {}
        _ => return None,
    }
    Some(())
}

fn dpp_of(m: &mut Modifiers) -> &mut Dpp {
    m.dpp.get_or_insert(Dpp {
        control: DppControl::QuadPerm([0, 1, 2, 3]),
        row_mask: 15,
        bank_mask: 15,
        bound_ctrl: false,
        fetch_inactive: false,
    })
}

fn dpp(m: &mut Modifiers, name: &str, value: &str) -> Option<()> {
    let n = integer(value).and_then(|n| u8::try_from(n).ok());
    let control = match name {
        "quad_perm" => DppControl::QuadPerm(list(value)?.try_into().ok()?),
        "dpp8" => DppControl::Dpp8(list(value)?.try_into().ok()?),
        "row_shl" => DppControl::RowShl(n?),
        "row_shr" => DppControl::RowShr(n?),
        "row_ror" => DppControl::RowRor(n?),
        "wave_shl" => DppControl::WaveShl,
        "wave_shr" => DppControl::WaveShr,
        "wave_rol" => DppControl::WaveRol,
        "wave_ror" => DppControl::WaveRor,
        "row_bcast" => DppControl::RowBcast(n?),
        "row_newbcast" | "row_share" => DppControl::RowShare(n?),
        "row_xmask" => DppControl::RowXmask(n?),
        "row_mask" => {
            dpp_of(m).row_mask = n?;
            return Some(());
        }
        "bank_mask" => {
            dpp_of(m).bank_mask = n?;
            return Some(());
        }
        // LLVM prints 1 where older assemblers wrote 0; the text is there only if the bit is set.
        "bound_ctrl" => {
            dpp_of(m).bound_ctrl = true;
            return Some(());
        }
        "fi" => {
            dpp_of(m).fetch_inactive = n? == 1;
            return Some(());
        }
        _ => return None,
    };
    dpp_of(m).control = control;
    Some(())
}

fn sdwa(m: &mut Modifiers, name: &str, value: &str) -> Option<()> {
    let select = || {
        Some(match value {
            "BYTE_0" => Select::Byte(0),
            "BYTE_1" => Select::Byte(1),
            "BYTE_2" => Select::Byte(2),
            "BYTE_3" => Select::Byte(3),
            "WORD_0" => Select::Word(0),
            "WORD_1" => Select::Word(1),
            "DWORD" => Select::Dword,
            _ => return None,
        })
    };
    if !matches!(name, "dst_sel" | "src0_sel" | "src1_sel" | "dst_unused") {
        return None;
    }
    let sdwa = m.sdwa.get_or_insert(Sdwa::default());
    match name {
        "dst_sel" => sdwa.dst = select()?,
        "src0_sel" => sdwa.src[0] = select()?,
        "src1_sel" => sdwa.src[1] = select()?,
        "dst_unused" => {
            sdwa.unused = match value {
                "UNUSED_PAD" => Unused::Pad,
                "UNUSED_SEXT" => Unused::Sext,
                "UNUSED_PRESERVE" => Unused::Preserve,
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(())
}

/// Cache policy of gfx12: `scope:SCOPE_DEV`, `th:TH_ATOMIC_RETURN`.
fn policy(m: &mut Modifiers, name: &str, value: &str) -> Option<()> {
    match name {
        "th" => m.returns |= value.contains("ATOMIC_RETURN") || value.contains("ATOMIC_RT_RETURN"),
        "scope" => {
            m.device = matches!(value, "SCOPE_DEV" | "SCOPE_SYS");
            m.system = value == "SCOPE_SYS";
        }
        _ => return None,
    }
    Some(())
}

/// The 16-bit pattern of `swizzle(MODE,...)`; the forms are those of LLVM's assembler.
fn swizzle(value: &str) -> Option<i32> {
    let inner = value.strip_prefix("swizzle(")?.strip_suffix(')')?;
    let mut parts = inner.split(',');
    let mode = parts.next()?;
    let rest: Vec<&str> = parts.collect();
    let n = |k: usize| rest.get(k)?.parse::<i32>().ok();
    let mask = |and: i32, or: i32, xor: i32| and | or << 5 | xor << 10;
    Some(match mode {
        "QUAD_PERM" => 0x8000 | n(0)? | n(1)? << 2 | n(2)? << 4 | n(3)? << 6,
        "BROADCAST" => mask(32 - n(0)?, n(1)?, 0),
        "REVERSE" => mask(31, 0, n(0)? - 1),
        "SWAP" => mask(31, 0, n(0)?),
        "BITMASK_PERM" => {
            let text = rest.first()?.trim_matches('"');
            let at = |c: char| text.chars().fold(0, |all, t| all << 1 | i32::from(t == c));
            // A digit fixes a bit, `p` keeps it, `i` inverts it.
            mask(at('p') | at('i'), at('1'), at('i'))
        }
        _ => return None,
    })
}
