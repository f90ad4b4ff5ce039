//! Which schedule makes a kernel: the lists of all schedules, one for each machine.
//!
//! The order of a list is its priority: a kernel gets the first schedule of its family that suits.
//! Emitting, tuning, symbols and `atomc inspect --why` read the lists here, and nothing below knows
//! which schedules there are.
use std::collections::BTreeMap;
use std::sync::LazyLock;

use atomc_artifact::manifest;
use atomc_ir::arch::Machine;
use atomc_ir::{Arch, Diagnostic};
use inkwell::module::Module;

use crate::llvm::Llvm;
use crate::row::unsupported;
use crate::schedule::{Schedule, Setup, WhyNot};
use crate::spec::KernelSpec;
use crate::tuning::{Choice, Class, Table, Tunable};
use crate::{host, simt};

/// The tables of numbers that the source has, by the names of arch rows.
static TABLES: LazyLock<BTreeMap<&str, Table>> = LazyLock::new(|| {
    let read = |text| Table::parse(text, &tunable(simt::SCHEDULES));
    [
        ("gfx942", include_str!("../tuned/gfx942.txt")),
        ("gfx950", include_str!("../tuned/gfx950.txt")),
        ("sm_90a", include_str!("../tuned/sm_90a.txt")),
    ]
    .map(|(name, text)| (name, read(text).unwrap_or_else(|e| panic!("the source's table for {name}: {e}"))))
    .into()
});
static NO_TABLE: Table = Table::none();

/// A schedule, and its answer.
pub struct Asked {
    pub schedule: &'static Schedule,
    pub choice: Choice,
    pub answer: Result<(), WhyNot>,
}

/// The schedules of an arch's machine, best first.
pub fn schedules(arch: &Arch) -> &'static [Schedule] {
    match arch.machine {
        Machine::Cpu(_) => host::SCHEDULES,
        Machine::Simt(_) => simt::SCHEDULES,
    }
}

/// The source's table for an arch.
fn table(arch: &Arch) -> &'static Table {
    TABLES.get(arch.name).unwrap_or(&NO_TABLE)
}

/// The schedules of a list that leave numbers open.
fn tunable(schedules: &[Schedule]) -> Vec<Tunable> {
    schedules.iter().filter_map(Schedule::tunable).collect()
}

/// Reads a table of numbers for an arch. Its lines must be for schedules of that machine.
pub fn read_table(text: &str, arch: &Arch) -> Result<Table, String> {
    Table::parse(text, &tunable(schedules(arch)))
}

/// The schedules of a kernel's family up to the one that makes it, which is the last unless there
/// is none.
pub fn ask(spec: &KernelSpec, arch: &Arch) -> Result<Vec<Asked>, Diagnostic> {
    let (mut all, table) = (vec![], table(arch));
    for schedule in schedules(arch).iter().filter(|s| s.family == spec.family) {
        let choice = schedule.choice(spec, table)?;
        let answer = schedule.keeps_rows_apart(spec).and_then(|()| schedule.is_wanted(arch));
        let answer = answer.and_then(|()| (schedule.suits)(spec, arch, &choice));
        let is_found = answer.is_ok();
        all.push(Asked { schedule, choice, answer });
        if is_found {
            break;
        }
    }
    Ok(all)
}

/// The schedule that makes a kernel, and its numbers.
pub fn select(spec: &KernelSpec, arch: &Arch) -> Result<(&'static Schedule, Choice), Diagnostic> {
    let mut all = ask(spec, arch)?;
    match all.pop_if(|last| last.answer.is_ok()) {
        Some(found) => Ok((found.schedule, found.choice)),
        None => {
            let said = |a: &Asked| a.answer.as_ref().err().map(|why| format!("{}: {why}", a.schedule.name));
            let said: Vec<String> = all.iter().filter_map(said).collect();
            let said = if said.is_empty() { "the machine has none".into() } else { said.join("; ") };
            Err(unsupported(format!("no schedule for {}: {said}", spec.family.name())))
        }
    }
}

/// The kernel as a module with one function of its symbol.
pub fn emit<'c>(
    llvm: Llvm<'c>,
    spec: &KernelSpec,
    arch: &'c Arch,
) -> Result<(Module<'c>, manifest::Kernel), Diagnostic> {
    let made = || {
        let (schedule, choice) = select(spec, arch)?;
        let (module, info) = (schedule.emit)(&Setup { llvm, arch, choice }, spec)?;
        Ok((module, manifest::Kernel { schedule: schedule.name.into(), ..info }))
    };
    made().map_err(|e: Diagnostic| e.at(format!("kernel {} on {}", spec.symbol, arch.name)))
}

/// The class of a kernel and every choice of numbers that its schedule leaves open, if it leaves
/// any.
pub fn open(spec: &KernelSpec, arch: &Arch) -> Result<Option<(Class, Vec<Choice>)>, Diagnostic> {
    let (schedule, _) = select(spec, arch)?;
    let Some(class) = schedule.class(spec)? else { return Ok(None) };
    let all = schedule.choices().into_iter();
    let all: Vec<Choice> = all.filter(|choice| (schedule.suits)(spec, arch, choice).is_ok()).collect();
    Ok((!all.is_empty()).then_some((class, all)))
}

#[cfg(test)]
mod tests {
    use atomc_ir::Family;

    use super::*;

    /// Names are parts of symbols, and say which schedule is meant.
    #[test]
    fn names_are_unique_words() {
        for all in [host::SCHEDULES, simt::SCHEDULES] {
            for schedule in all {
                assert!(schedule.name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{}", schedule.name);
                assert_eq!(all.iter().filter(|s| s.name == schedule.name).count(), 1, "{}", schedule.name);
            }
        }
    }

    #[test]
    fn every_family_has_a_schedule() {
        for all in [host::SCHEDULES, simt::SCHEDULES] {
            assert!(Family::ALL.iter().all(|&family| all.iter().any(|s| s.family == family)));
        }
    }

    /// Codes of MX with their scales are multiplied at the rate of their bits.
    #[test]
    fn rates_of_mx_codes() {
        let of = |chip: &str, codes: &str| {
            let text = format!(
                "graph @k(%x: {codes}[T, 128]@mx(32), %w: {codes}[64, 128]@panels, %s: e8m0[64, 4]@columns) {{
  %0 = linear %x, %w, %s {{out = bf16, block = [1, 32]}} : bf16[T, 64]
  return %0
}}"
            );
            let body = atomc_ir::parse(&text).unwrap();
            let (symbol, tokens) = ("k".into(), 128);
            let spec = KernelSpec { symbol, ..KernelSpec::new(Family::Matmul, &body, tokens) };
            let arch = crate::rows().iter().find(|arch| arch.name == chip).unwrap();
            let cx = crate::llvm::context();
            let made = emit(Llvm { cx: &cx, b: &cx.create_builder() }, &spec, arch).map(|(_, kernel)| kernel.rate);
            made.map_err(|e| e.to_string())
        };
        assert_eq!([of("gfx950", "f4e2m1"), of("gfx950", "f8e4m3")], [Ok(4), Ok(2)]);
        let refused = of("gfx942", "f4e2m1").unwrap_err();
        assert!(refused.contains("no instruction takes the scales of such rows"), "{refused}");
    }

    /// A chip's row names only schedules that exist.
    #[test]
    fn avoided_schedules_exist() {
        for gpu in crate::rows().iter().filter_map(|arch| arch.gpu()) {
            for avoided in gpu.simt.avoided {
                assert!(simt::SCHEDULES.iter().any(|s| s.name == avoided.schedule), "{}: {avoided:?}", gpu.name);
            }
        }
    }

    #[test]
    fn no_schedule_for_a_body_says_what_each_of_them_misses() {
        let text = "graph @k(%x: bf16[T, 64], %w: bf16[96, 64]@panels) {
  %0 = linear %x, %w {out = bf16} : bf16[T, 96]
  %1 = slice %0 {axis = 1, start = 0, len = 32} : bf16[T, 32]
  return %1
}";
        let body = atomc_ir::parse(text).unwrap();
        let spec = KernelSpec::new(Family::Matmul, &body, 8192);
        let arch = crate::rows().iter().find(|a| a.name == "gfx942").unwrap();
        let error = select(&spec, arch).err().unwrap();
        let why = "gemm_warpgroup: gfx942 has no warpgroup MMA; \
                   gemv_rows: 64 tiles of 128 by 128 are enough for 304 units; \
                   gemm_tiled: a tiled contraction with 3 pieces";
        assert_eq!(error.message, format!("no schedule for matmul: {why}"));
    }

    #[test]
    fn schedules_that_decode_nothing_say_so() {
        let text = "graph @k(%x: bf16[T, 64], %w: i4[32, 64]@panels, %s: bf16[32, 2]@columns) {
  %0 = linear %x, %w, %s {out = bf16, block = [1, 32]} : bf16[T, 32]
  return %0
}";
        let body = atomc_ir::parse(text).unwrap();
        body.verify().unwrap();
        let arch = &crate::variants("sm_90a").unwrap()[0];
        let spec = KernelSpec::new(Family::Matvec, &body, 1);
        let asked = ask(&spec, arch).unwrap();
        let said = |a: &Asked| (a.schedule.name, a.answer.as_ref().map_err(WhyNot::to_string).copied());
        let why = || Err("i4[32, 64] with a scale for each 1 by 32: it decodes no weights".to_string());
        let few = Err("1 tokens: from 16 to 64".to_string());
        let want = [("stream_k", few), ("gemv_bulk", why()), ("gemv_bulk_limbs", Ok(()))];
        assert_eq!(asked.iter().map(said).collect::<Vec<_>>(), want);
    }

    /// Every table is for an arch row, and its lines are possible.
    #[test]
    fn tables_of_the_source() {
        for (name, table) in TABLES.iter() {
            assert!(crate::rows().iter().any(|arch| arch.name == *name), "{name}");
            assert!(!table.lines().is_empty(), "{name}");
            for (i, (class, ..)) in table.lines().iter().enumerate() {
                assert!(table.lines()[..i].iter().all(|(other, ..)| other != class), "{name}: {class} twice");
            }
        }
    }
}
