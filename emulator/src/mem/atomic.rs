//! Atomic operations on global memory, scratch and LDS.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::address::{lanes, places};
use super::transfer::finish;
use super::{MemoryOp, Space};
use crate::exec::Cx;
use crate::fault::{FaultKind, Operation, Trap};
use crate::inst::Inst;
use crate::num::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::wave::Wave;

/// The function of an atomic, and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicOp {
    action: Action,
    on: Type,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Add,
    Sub,
    ReverseSub,
    Min,
    Max,
    And,
    Or,
    Xor,
    Increment,
    Decrement,
    Swap,
    CompareSwap,
    /// Zero if the difference is negative.
    SubClamp,
    /// No change if the difference is negative.
    SubIf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
    PackedF16,
    PackedBf16,
}

impl Type {
    fn bytes(self) -> u32 {
        if matches!(self, Type::U64 | Type::I64 | Type::F64) { 8 } else { 4 }
    }

    fn find(name: &str) -> Option<Type> {
        Some(match name {
            "u32" | "b32" => Type::U32,
            "i32" => Type::I32,
            "u64" | "b64" => Type::U64,
            "i64" => Type::I64,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }
}

impl AtomicOp {
    /// The operation of a mnemonic after `global_atomic_` and the like.
    pub fn find(name: &str) -> Option<AtomicOp> {
        AtomicOp::packed(name).or_else(|| AtomicOp::old(name)).or_else(|| AtomicOp::typed(name))
    }

    /// The operation of a mnemonic after `ds_`.
    pub fn find_lds(name: &str) -> Option<AtomicOp> {
        let name = name.replacen("_rtn", "", 1);
        AtomicOp::packed(&name).or_else(|| AtomicOp::typed(&name))
    }

    /// Bytes of the value.
    pub fn bytes(self) -> u32 {
        self.on.bytes()
    }

    pub fn compares(self) -> bool {
        self.action == Action::CompareSwap
    }

    /// Changes the value at an address; gives back the old one.
    ///
    /// # Safety
    /// As for `exchange`.
    pub unsafe fn exchange(self, at: u64, data: u64, compare: u64) -> u64 {
        // SAFETY: the caller's.
        unsafe { exchange(at, self.bytes(), |old| self.apply(old, data, compare)) }
    }

    fn packed(name: &str) -> Option<AtomicOp> {
        let on = match name {
            "pk_add_f16" => Type::PackedF16,
            "pk_add_bf16" => Type::PackedBf16,
            _ => return None,
        };
        Some(AtomicOp { action: Action::Add, on })
    }

    /// Names before gfx11: the sign is in the action, the width is a suffix.
    fn old(name: &str) -> Option<AtomicOp> {
        let (name, wide) = name.strip_suffix("_x2").map_or((name, false), |n| (n, true));
        let (action, signed) = match name {
            "smin" => (Action::Min, true),
            "smax" => (Action::Max, true),
            "umin" => (Action::Min, false),
            "umax" => (Action::Max, false),
            _ if name.contains('_') || matches!(name, "min" | "max") => return None,
            _ => (action(name)?, false),
        };
        let on = match (wide, signed) {
            (false, false) => Type::U32,
            (false, true) => Type::I32,
            (true, false) => Type::U64,
            (true, true) => Type::I64,
        };
        Some(AtomicOp { action, on })
    }

    fn typed(name: &str) -> Option<AtomicOp> {
        let (name, on) = name.rsplit_once('_')?;
        let name = name.strip_suffix("_num").unwrap_or(name);
        Some(AtomicOp { action: action(name)?, on: Type::find(on)? })
    }

    fn apply(self, old: u64, data: u64, compare: u64) -> u64 {
        match self.on {
            Type::U32 => self.unsigned(old, data, compare, u64::from(u32::MAX)),
            Type::U64 => self.unsigned(old, data, compare, u64::MAX),
            Type::I32 => {
                let (a, b) = (old as i32, data as i32);
                u64::from(self.signed(a.into(), b.into()) as u32)
            }
            Type::I64 => self.signed(old as i64, data as i64) as u64,
            Type::F32 => {
                let (a, b) = (f32::from_bits(old as u32), f32::from_bits(data as u32));
                u64::from(self.float(a.into(), b.into(), f64::from(a + b)).to_f32_bits())
            }
            Type::F64 => {
                let (a, b) = (f64::from_bits(old), f64::from_bits(data));
                self.float(a, b, a + b).to_bits()
            }
            Type::PackedF16 => halves(old, data, |a, b| f32_to_f16(f16_to_f32(a) + f16_to_f32(b))),
            Type::PackedBf16 => halves(old, data, |a, b| f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b))),
        }
    }

    fn unsigned(self, old: u64, data: u64, compare: u64, mask: u64) -> u64 {
        let value = match self.action {
            Action::Add => old.wrapping_add(data),
            Action::Sub => old.wrapping_sub(data),
            Action::ReverseSub => data.wrapping_sub(old),
            Action::Min => old.min(data),
            Action::Max => old.max(data),
            Action::And => old & data,
            Action::Or => old | data,
            Action::Xor => old ^ data,
            Action::Increment => {
                if old >= data {
                    0
                } else {
                    old + 1
                }
            }
            Action::Decrement => {
                if old == 0 || old > data {
                    data
                } else {
                    old - 1
                }
            }
            Action::Swap => data,
            Action::CompareSwap => {
                if old == compare {
                    data
                } else {
                    old
                }
            }
            Action::SubClamp => old.saturating_sub(data),
            Action::SubIf => {
                if old >= data {
                    old - data
                } else {
                    old
                }
            }
        };
        value & mask
    }

    fn signed(self, old: i64, data: i64) -> i64 {
        if self.action == Action::Min { old.min(data) } else { old.max(data) }
    }

    fn float(self, a: f64, b: f64, sum: f64) -> f64 {
        match self.action {
            Action::Min => a.min(b),
            Action::Max => a.max(b),
            _ => sum,
        }
    }
}

trait ToF32Bits {
    fn to_f32_bits(self) -> u32;
}

impl ToF32Bits for f64 {
    fn to_f32_bits(self) -> u32 {
        (self as f32).to_bits()
    }
}

fn halves(old: u64, data: u64, f: impl Fn(u16, u16) -> u16) -> u64 {
    u64::from(f(old as u16, data as u16)) | u64::from(f((old >> 16) as u16, (data >> 16) as u16)) << 16
}

fn action(name: &str) -> Option<Action> {
    Some(match name {
        "add" => Action::Add,
        "sub" => Action::Sub,
        "rsub" => Action::ReverseSub,
        "min" => Action::Min,
        "max" => Action::Max,
        "and" => Action::And,
        "or" => Action::Or,
        "xor" => Action::Xor,
        "inc" => Action::Increment,
        "dec" => Action::Decrement,
        "swap" | "wrxchg" | "storexchg" => Action::Swap,
        "cmpswap" | "cmpst" | "cmpstore" => Action::CompareSwap,
        "csub" | "sub_clamp" => Action::SubClamp,
        "cond_sub" => Action::SubIf,
        _ => return None,
    })
}

/// Executes an atomic, lane after lane.
pub fn run(op: &MemoryOp, atomic: AtomicOp, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let bytes = atomic.on.bytes();
    let offset = i64::from(inst.modifiers.offset);
    let places = places(op, offset, bytes, Operation::Atomic, inst, cx)?;
    let counters = lanes(places.lanes & !places.in_lds).map(|lane| places.at[lane]);
    let others = cx.group.others.as_ref().filter(|_| op.space.is_memory());
    let _turn = others.map(|others| others.publish(counters, op.dst.is_some(), inst, cx.side));
    for lane in lanes(places.lanes) {
        let at = places.at[lane];
        if at % u64::from(bytes) != 0 {
            let kind = FaultKind::Misaligned { operation: Operation::Atomic, address: at, bytes };
            return Err(Trap::lane(kind, lane as u32));
        }
        let (data, compare) = values(op, atomic, lane, cx.wave);
        // SAFETY: `places` checked the bytes; they are aligned; other work-groups use them
        // atomically, too.
        let old = unsafe { exchange(at, bytes, |old| atomic.apply(old, data, compare)) };
        if let Some(dst) = op.dst {
            let row = usize::from(dst.first);
            cx.wave.vgpr[row][lane] = old as u32;
            if bytes == 8 {
                cx.wave.vgpr[row + 1][lane] = (old >> 32) as u32;
            }
        }
    }
    cx.group.spare.push(places);
    match op.dst {
        Some(dst) => {
            let count = (bytes / 4) as u8;
            finish(op, super::Registers { count, ..dst }, cx);
        }
        None => cx.side.issue_store(op, cx.group),
    }
    Ok(())
}

/// The new value, and the value for the comparison.
fn values(op: &MemoryOp, atomic: AtomicOp, lane: usize, wave: &Wave) -> (u64, u64) {
    let count = atomic.on.bytes() as usize / 4;
    let read = |row: usize| {
        let low = u64::from(wave.vgpr[row][lane]);
        if count == 2 { low | u64::from(wave.vgpr[row + 1][lane]) << 32 } else { low }
    };
    let data = usize::from(op.data.expect("atomics have data").first);
    match (atomic.action, op.space, op.data2) {
        (Action::CompareSwap, Space::Lds, Some(new)) => (read(new.first.into()), read(data)),
        (Action::CompareSwap, ..) => (read(data), read(data + count)),
        _ => (read(data), 0),
    }
}

/// Replaces the value at an address by a function of it; gives back the old one.
///
/// # Safety
/// The address is aligned, valid, and otherwise used atomically while others may use it.
unsafe fn exchange(at: u64, bytes: u32, f: impl Fn(u64) -> u64) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        if bytes == 4 {
            let cell = AtomicU32::from_ptr(at as *mut u32);
            let next = |old: u32| Some(f(old.into()) as u32);
            u64::from(cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or_else(|old| old))
        } else {
            let cell = AtomicU64::from_ptr(at as *mut u64);
            cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(f(old))).unwrap_or_else(|old| old)
        }
    }
}
