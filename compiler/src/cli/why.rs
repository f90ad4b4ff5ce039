//! `atomc inspect --why`: which schedule made a kernel, and why none before it did.
use std::io::Write;

use atomc_artifact::escaped;
use atomc_artifact::manifest::{KernelDef, Manifest, Target, Variant};

use super::failure::Failure;

/// Shows the kernels with this symbol, or with one that continues it after a `_`.
pub fn show(out: &mut impl Write, manifest: &Manifest, symbol: &str) -> Result<(), Failure> {
    let mut found = false;
    for target in &manifest.targets {
        for (number, def) in target.kernels.iter().enumerate().filter(|(_, def)| is_named(def, symbol)) {
            found = true;
            writeln!(out, "{} of {}: {}, {} tokens", def.symbol, target.name, escaped(&def.family), def.tokens)?;
            target.variants.iter().try_for_each(|variant| show_variant(out, (target, variant), def, number))?;
        }
    }
    match found {
        true => Ok(()),
        false => Err(Failure::new("inspect", format!("no kernel `{symbol}`; there are {}", all(&manifest.targets)))),
    }
}

fn is_named(def: &KernelDef, symbol: &str) -> bool {
    def.symbol.strip_prefix(symbol).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn all(targets: &[Target]) -> String {
    let mut symbols: Vec<&str> = targets.iter().flat_map(|t| &t.kernels).map(|def| def.symbol.as_str()).collect();
    symbols.dedup();
    symbols.join(", ")
}

fn show_variant(
    out: &mut impl Write,
    (target, variant): (&Target, &Variant),
    def: &KernelDef,
    number: usize,
) -> Result<(), Failure> {
    let made_by = &variant.kernels[number].schedule;
    writeln!(out, "  {}: {made_by}", variant.name)?;
    reasons((target.invariant, variant), def, made_by)?.iter().try_for_each(|line| Ok(writeln!(out, "    {line}")?))
}

/// This compiler's reasons for the kernel of a variant. `invariant` says whether a row's bits must
/// not depend on other rows.
#[cfg(feature = "compiler")]
pub fn reasons((invariant, variant): (bool, &Variant), def: &KernelDef, made_by: &str) -> Result<Vec<String>, Failure> {
    use atomc_ir::Family;
    use atomc_targets::{Asked, KernelSpec};

    let wrong = |what: String| Failure::new("inspect", format!("kernel {}: {what}", def.symbol));
    let body = atomc_ir::parse(&def.body).map_err(|e| wrong(format!("its body cannot be read: {e}")))?;
    body.verify().map_err(|e| wrong(format!("its body is broken: {e}")))?;
    let family = Family::ALL.into_iter().find(|family| family.name() == def.family);
    let arch = atomc_targets::rows().iter().find(|arch| arch.name == variant.name);
    let (Some(family), Some(arch)) = (family, arch) else {
        let unknown = if family.is_none() { escaped(&def.family) } else { variant.name.clone() };
        return Ok(vec![format!("this compiler does not know {unknown}")]);
    };
    let spec = KernelSpec {
        symbol: def.symbol.clone(),
        family,
        body: &body,
        tokens: def.tokens,
        each: def.each,
        choice: None,
        invariant,
    };
    let asked = atomc_targets::ask(&spec, arch)?;
    let line = |Asked { schedule, choice, answer }: &Asked| match answer {
        Err(why) => Some(format!("not {}: {why}", schedule.name)),
        Ok(()) if schedule.name != made_by => Some(format!("this compiler would take {}", schedule.name)),
        Ok(()) => Some(format!("{}: {choice}", schedule.name)).filter(|_| !choice.is_empty()),
    };
    let estimated = arch.estimated().into_iter().map(|(what, from)| format!("estimated from {from}: {what}"));
    Ok(asked.iter().filter_map(line).chain(estimated).collect())
}

/// The schedules are in the compiler.
#[cfg(not(feature = "compiler"))]
pub fn reasons(_: (bool, &Variant), _: &KernelDef, _: &str) -> Result<Vec<String>, Failure> {
    Ok(vec!["this build does not compile, and cannot say why not another".into()])
}

#[cfg(all(test, feature = "compiler"))]
mod tests {
    use super::*;

    /// The reasons for a gate and up of a dense layer for `tokens` tokens, made by a schedule.
    fn said(tokens: usize, made_by: &str, arch: &str) -> Vec<String> {
        let body = "graph @k(%x: bf16[T, 1024], %g: bf16[1024], %w: bf16[6144, 1024]@panels) {
  %0 = rms_norm %x, %g {eps = 1e-6} : bf16[T, 1024]
  %1 = linear %0, %w {out = bf16} : bf16[T, 6144]
  %2 = slice %1 {axis = 1, start = 0, len = 3072} : bf16[T, 3072]
  %3 = slice %1 {axis = 1, start = 3072, len = 3072} : bf16[T, 3072]
  %4 = silu_mul %2, %3 : bf16[T, 3072]
  return %4
}";
        let def = KernelDef { symbol: "k5".into(), family: "matvec".into(), body: body.into(), tokens, each: None };
        let variant = Variant {
            name: arch.into(),
            features: vec![],
            chip: None,
            executed: true,
            section: 1,
            kernels: vec![],
            prepare: None,
            pack: None,
            exchange: None,
        };
        reasons((false, &variant), &def, made_by).unwrap_or_else(|_| panic!("a sound body"))
    }

    #[test]
    fn every_schedule_before_says_why_not() {
        assert_eq!(
            said(32, "gemv_bulk", "sm_90a"),
            ["not stream_k: 768 slots of the weight on 132 units: 32 tokens take 12 each", "gemv_bulk: cluster 2"]
        );
        assert_eq!(said(64, "stream_k", "sm_90a"), Vec::<String>::new());
        assert_eq!(
            said(1, "gemv", "gfx942"),
            [
                "not stream_k: gfx942 has no warpgroup MMA",
                "not gemv_bulk: gfx942 has no bulk copies",
                "not gemv_bulk_limbs: gfx942 has no bulk copies",
                "not gemv_bulk_dequant: gfx942 has no bulk copies",
                "not gemm_warpgroup_few: the weight is not quantised",
                "not gemm_tiled_few: 1 tokens: multiples of 16 from 32 on",
                "gemv: waves 8"
            ]
        );
    }

    /// For a chip that was not measured, each number names the chip that it was measured on.
    #[test]
    fn estimates_are_told() {
        assert_eq!(
            said(32, "gemv_bulk", "sm_100a"),
            [
                "not stream_k: sm_100a has no warpgroup MMA",
                "estimated from sm_90a: how many rows are quantised where they are multiplied",
                "estimated from sm_90a: how many rows are normed where they are multiplied",
                "estimated from sm_90a: how many clusters run at once",
                "estimated from sm_90a: where schedules begin to be faster than others",
            ]
        );
    }

    #[test]
    fn what_this_compiler_does_not_know_or_would_do_otherwise() {
        assert_eq!(said(64, "spread", "sm_90a"), ["this compiler would take stream_k"]);
        assert_eq!(said(1, "gemv", "gfx9999"), ["this compiler does not know gfx9999"]);
    }

    #[test]
    fn a_number_of_a_kernel_is_enough() {
        let def = |symbol: &str| KernelDef {
            symbol: symbol.into(),
            family: String::new(),
            body: String::new(),
            tokens: 1,
            each: None,
        };
        let is = |name: &str| is_named(&def("k5_gemv_x1_mlp"), name);
        assert!(is("k5") && is("k5_gemv_x1_mlp") && is("k5_gemv"));
        assert!(!is("k") && !is("k5_g") && !is("5"));
    }
}
