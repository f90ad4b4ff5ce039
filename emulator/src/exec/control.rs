//! Control flow, waits, barriers, and everything that only schedules.
use super::step::{Alteration, Condition, Control};
use super::wait::Wait;
use super::{Group, Side, Stop};
use crate::decode::Kernel;
use crate::fault::{FaultKind, Trap};
use crate::inst::{Inst, Operand, scalar};
use crate::isa::{Family, Isa};
use crate::wave::{Mode, Wave};

/// Instructions without an effect in a functional model, by name.
const NOTHING: [&str; 26] = [
    "s_nop",
    "s_sleep",
    "s_sleep_var",
    "s_setprio",
    "s_setprio_inc_wg",
    "s_clause",
    "s_delay_alu",
    "s_wait_alu",
    "s_waitcnt_depctr",
    "s_wait_idle",
    "s_wait_event",
    "s_set_inst_prefetch_distance",
    "s_inst_prefetch",
    "s_icache_inv",
    "s_dcache_inv",
    "s_dcache_wb",
    "s_gl1_inv",
    "s_sethalt",
    "s_ttracedata",
    "s_ttracedata_imm",
    "s_incperflevel",
    "s_decperflevel",
    "s_prefetch_inst",
    "s_prefetch_inst_pc_rel",
    "s_code_end",
    "s_version",
];

/// Cache controls, messages and prefetches, by the beginning of their names.
const NOTHING_OF: [&str; 11] = [
    "s_sendmsg",
    "s_prefetch_data",
    "s_buffer_prefetch_data",
    "buffer_inv",
    "buffer_wb",
    "buffer_gl",
    "global_inv",
    "global_wb",
    "global_prefetch",
    "flat_prefetch",
    "s_alloc_vgpr",
];

/// Controls of the caches between a work-group and the whole device. Source: LLVM's AMDGPUUsage,
/// "Memory Model", fences of agent scope for each generation.
fn caches(name: &str, text: &str, family: Family) -> Option<Control> {
    let wide = match family {
        Family::Gfx90a | Family::Gfx11 => true,
        Family::Gfx942 | Family::Gfx950 => text.split_whitespace().any(|word| word == "sc1"),
        Family::Gfx12 => text.contains("SCOPE_DEV") || text.contains("SCOPE_SYS"),
    };
    match name {
        "buffer_wbl2" | "global_wb" if wide => Some(Control::WriteBack),
        "buffer_wbinvl1" | "buffer_wbinvl1_vol" | "buffer_inv" | "buffer_gl1_inv" | "global_inv" if wide => {
            Some(Control::Invalidate)
        }
        _ => None,
    }
}

/// The control instruction of a text, if it is one. Targets of branches are byte addresses here;
/// the decoder makes them indices.
pub fn resolve(inst: &Inst, text: &str, isa: &Isa) -> Option<Control> {
    let name: &str = &inst.mnemonic;
    if let Some(control) = caches(name, text, isa.family) {
        return Some(control);
    }
    // A message that returns data is more than a hint.
    if NOTHING.contains(&name) || NOTHING_OF.iter().any(|n| name.starts_with(n)) && !name.contains("_rtn") {
        return Some(Control::Nop);
    }
    if let Some(wait) = Wait::parse(text, isa.family) {
        return Some(Control::Wait(wait));
    }
    if let Some(condition) = branch(name) {
        return Some(Control::Branch { condition, target: 0 });
    }
    let pair = |k: usize| match inst.operand(k) {
        Operand::Scalar { index, .. } => Some(index),
        _ => None,
    };
    Some(match name {
        "s_endpgm" | "s_endpgm_saved" => Control::End,
        "s_barrier" => Control::Barrier,
        "s_barrier_signal" => Control::Signal,
        "s_barrier_wait" => Control::BarrierWait,
        "s_getpc_b64" | "s_get_pc_i64" => Control::GetPc { dst: pair(0)? },
        "s_setpc_b64" | "s_set_pc_i64" => Control::SetPc { src: pair(0)?, link: None },
        "s_swappc_b64" | "s_swap_pc_i64" => Control::SetPc { src: pair(1)?, link: pair(0) },
        "s_memtime" | "s_memrealtime" => Control::Time { dst: pair(0)? },
        "s_set_gpr_idx_on" => Control::Alter(Alteration::IndexOn),
        "s_set_gpr_idx_idx" => Control::Alter(Alteration::Index),
        "s_set_gpr_idx_mode" => Control::Alter(Alteration::IndexMode),
        "s_set_gpr_idx_off" => Control::Alter(Alteration::IndexOff),
        "s_setvskip" => Control::Alter(Alteration::Skip),
        "s_trap" => Control::Trap,
        _ => return mode(name, text, inst),
    })
}

fn branch(name: &str) -> Option<Condition> {
    Some(match name {
        "s_branch" => Condition::Always,
        "s_cbranch_scc0" => Condition::Scc(false),
        "s_cbranch_scc1" => Condition::Scc(true),
        "s_cbranch_vccz" => Condition::Vcc { zero: true },
        "s_cbranch_vccnz" => Condition::Vcc { zero: false },
        "s_cbranch_execz" => Condition::Exec { zero: true },
        "s_cbranch_execnz" => Condition::Exec { zero: false },
        _ => return None,
    })
}

/// Reads and writes of the mode register; settings that only schedule are nothing.
fn mode(name: &str, text: &str, inst: &Inst) -> Option<Control> {
    match name {
        "s_denorm_mode" => return Some(Control::SetMode { from: 4, width: 4, value: constant(inst.operand(0))? }),
        "s_round_mode" => return Some(Control::SetMode { from: 0, width: 4, value: constant(inst.operand(0))? }),
        _ => {}
    }
    let inner = text.split_once("hwreg(")?.1;
    let (place, rest) = inner.split_once(')')?;
    let mut parts = place.split(',').map(str::trim);
    let register = parts.next()?;
    let from = parts.next().map_or(Some(0), |n| n.parse().ok())?;
    let width = parts.next().map_or(Some(32), |n| n.parse().ok())?;
    let is_mode = matches!(register, "HW_REG_MODE" | "HW_REG_WAVE_MODE");
    match name {
        _ if !is_mode && name.starts_with("s_setreg") && register.contains("SCHED_MODE") => Some(Control::Nop),
        "s_setreg_imm32_b32" if is_mode => {
            let value = super::wait::immediate(rest.trim_start_matches(','))?;
            Some(Control::SetMode { from, width, value })
        }
        "s_setreg_b32" if is_mode => {
            let source = crate::decode::parse::scalar_register(rest.trim_start_matches(',').trim())?;
            Some(Control::SetModeFrom { from, width, source })
        }
        "s_getreg_b32" if is_mode => {
            let dst = text.split_once(' ')?.1.split_once(',')?.0;
            Some(Control::GetMode { from, width, dst: crate::decode::parse::scalar_register(dst)? })
        }
        _ => None,
    }
}

fn constant(operand: Operand) -> Option<u32> {
    operand.bits32()
}

/// Executes a control instruction and moves `wave.pc`. A value tells the loop to stop.
#[inline(always)]
pub fn execute(
    control: Control,
    wave: &mut Wave,
    side: &mut Side,
    group: &mut Group,
    kernel: &Kernel,
) -> Result<Option<Stop>, Box<Trap>> {
    let next = wave.pc + 1;
    match control {
        Control::Nop => {}
        Control::Wait(wait) => {
            side.pending.wait(wait);
            side.order.waited(&wait);
        }
        Control::Branch { condition, target } => {
            wave.pc = if holds(condition, wave) { target as usize } else { next };
            return Ok(None);
        }
        Control::End => return Ok(Some(Stop::Ended)),
        Control::Barrier => {
            wave.pc = next;
            return Ok(Some(Stop::Signal(true)));
        }
        Control::Signal => {
            wave.pc = next;
            return Ok(Some(Stop::Signal(false)));
        }
        Control::BarrierWait => {
            wave.pc = next;
            return Ok(Some(Stop::Wait));
        }
        _ => return rare(control, wave, side, group, kernel).map(|()| None),
    }
    wave.pc = next;
    Ok(None)
}

#[inline(always)]
fn holds(condition: Condition, wave: &Wave) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Scc(set) => wave.scc == set,
        Condition::Vcc { zero } => {
            let vcc = wave.scalar64(scalar::VCC) & wave.isa.all_lanes();
            (vcc == 0) == zero
        }
        Condition::Exec { zero } => (wave.exec() == 0) == zero,
    }
}

#[cold]
fn rare(control: Control, wave: &mut Wave, side: &mut Side, group: &Group, kernel: &Kernel) -> Result<(), Box<Trap>> {
    let next = wave.pc + 1;
    let after = group.image + kernel.steps.get(next).map_or(kernel.end, |s| s.inst.address);
    match control {
        Control::GetPc { dst } => wave.set_scalar64(dst, after),
        Control::SetPc { src, link } => {
            let target = wave.scalar64(src).wrapping_sub(group.image);
            if let Some(link) = link {
                wave.set_scalar64(link, after);
                wave.scalar_written |= 3 << link;
            }
            wave.pc = kernel.index(target).ok_or_else(|| Trap::wave(FaultKind::LeftCode))?;
            return Ok(());
        }
        Control::Time { dst } => {
            // Time advances with every instruction: enough for a program that measures itself.
            wave.set_scalar64(dst, group.hits.iter().sum());
            wave.scalar_written |= 3 << dst;
        }
        Control::WriteBack => {
            if let Some(others) = &group.others {
                others.write_back(side);
            }
        }
        Control::Invalidate => {
            if let Some(others) = &group.others {
                others.invalidate(side);
            }
        }
        Control::Alter(what) => super::altered::alter(what, &kernel.steps[wave.pc].inst, wave, side),
        Control::SetMode { from, width, value } => set_mode(wave, side, from, width, value),
        Control::SetModeFrom { from, width, source } => {
            let value = wave.sgpr[usize::from(source)];
            set_mode(wave, side, from, width, value);
        }
        Control::GetMode { from, width, dst } => {
            wave.set_scalar(dst, side.mode >> from & mask(width));
            wave.scalar_written |= 1 << dst;
        }
        _ => return Err(Trap::wave(FaultKind::Unsupported("the kernel gave up (s_trap)".into()))),
    }
    wave.pc = next;
    Ok(())
}

fn mask(width: u8) -> u32 {
    u32::MAX >> (32 - u32::from(width.clamp(1, 32)))
}

fn set_mode(wave: &mut Wave, side: &mut Side, from: u8, width: u8, value: u32) {
    let mask = mask(width);
    side.mode = side.mode & !(mask << from) | (value & mask) << from;
    wave.mode = mode_of(side.mode, side.family);
}

/// The fields of the mode register.
pub fn mode_of(bits: u32, family: Family) -> Mode {
    use crate::wave::Rounding;
    let bit = |n: u32| bits >> n & 1 != 0;
    // From gfx12 on these two are no longer optional.
    let always = family >= Family::Gfx12;
    Mode {
        round32: Rounding::from_bits(bits),
        round16_64: Rounding::from_bits(bits >> 2),
        denormals32_in: bit(4),
        denormals32_out: bit(5),
        denormals16_64_in: bit(6),
        denormals16_64_out: bit(7),
        dx10_clamp: bit(8) || always,
        ieee: bit(9) || always,
        fp16_ovfl: bit(23),
    }
}
