//! Rows of the table of vector instructions, and the macros that make handlers of formulas.
use super::Handler;
use super::kinds::Class;
use crate::inst::Inst;
use crate::isa::Isa;

/// The two builds of one handler: for any processor, and for one with AVX2 and FMA.
pub type Builds = [Handler; 2];

/// A vector instruction.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its mnemonics on all chips, separated by spaces.
    pub names: &'static str,
    pub run: Builds,
    /// With the `clamp` modifier on integers.
    pub saturating: Option<Builds>,
    pub dsts: u8,
    /// Classes of the operands in the order of the text, without destinations. The last repeats.
    pub sources: &'static [Class],
    /// The class of the result.
    pub result: Class,
    pub reads_dst: u8,
    pub reads_vcc: bool,
    pub crosses_lanes: bool,
    pub selects: bool,
    /// Writes 16 bits into a register and keeps the others on every chip (gfx9 clears the upper
    /// half in most cases).
    pub keeps_high: bool,
    /// Takes `op_sel` and its like in its own way, or needs another check; `false` refuses the
    /// instruction.
    pub prepare: Option<fn(&mut Inst, &Isa) -> bool>,
}

impl Entry {
    pub const fn new(names: &'static str, run: Builds, sources: &'static [Class], result: Class) -> Entry {
        Entry {
            names,
            run,
            saturating: None,
            dsts: 1,
            sources,
            result,
            reads_dst: 0,
            reads_vcc: false,
            crosses_lanes: false,
            selects: false,
            keeps_high: false,
            prepare: None,
        }
    }

    /// The class of source `k`.
    pub fn class(&self, k: usize) -> Class {
        self.sources.get(k).or(self.sources.last()).copied().unwrap_or(Class::B32)
    }
}

/// Builds a handler twice from one inlined body.
macro_rules! builds {
    ($body:path) => {{
        unsafe fn portable(wave: &mut $crate::wave::Wave, inst: &$crate::inst::Inst) {
            $body(wave, inst)
        }
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
        unsafe fn fast(wave: &mut $crate::wave::Wave, inst: &$crate::inst::Inst) {
            $body(wave, inst)
        }
        [portable as $crate::vector::Handler, fast as $crate::vector::Handler]
    }};
}

/// The number of lanes of a loop, in a form that shows the compiler that it is 32 or 64.
macro_rules! lanes {
    ($wave:ident) => {
        if $wave.isa.lanes == 64 { 64 } else { 32 }
    };
}

/// A row from a formula over one lane: `op!("names", F32 = (a: F32, b: F32) => a + b)`. Sources
/// that are read from the destination are first, in brackets:
/// `op!("names", F32 = [d: F32] (a: F32) => ...)`.
macro_rules! op {
    ($names:literal, $R:ident = $([$d:ident : $D:ident])? ($($s:ident : $S:ident),*) => $e:expr) => {{
        use $crate::vector::kinds::Kind as _;
        #[inline(always)]
        fn body(wave: &mut $crate::wave::Wave, inst: &$crate::inst::Inst) {
            $(let $d = $D::fetch(wave, inst, 0);)?
            let mut position = 0;
            $(position += 1; let $s = $S::fetch(wave, inst, position);)*
            let _ = position;
            let mut out = $R::zero();
            for lane in 0..lanes!(wave) {
                $(let $d = $D::get($d[lane]);)?
                $(let $s = $S::get($s[lane]);)*
                out[lane] = $R::put($e);
            }
            $R::store(wave, inst, &mut out);
        }
        #[allow(unused_mut)]
        let mut row = Entry::new($names, builds!(body), &[$($S::CLASS),*], $R::CLASS);
        $(let _ = $D::CLASS; row.reads_dst = 1;)?
        row
    }};
}

/// As [`op`], with arithmetic that obeys the rounding mode: the formula calls methods of `r`.
macro_rules! rounded {
    ($names:literal, $R:ident = |$r:ident| $([$d:ident : $D:ident])? ($($s:ident : $S:ident),*) => $e:expr) => {{
        use $crate::vector::arith::{Direction, Nearest};
        use $crate::vector::kinds::Kind as _;
        #[inline(always)]
        fn body(wave: &mut $crate::wave::Wave, inst: &$crate::inst::Inst) {
            match $R::rounding(&wave.mode) {
                $crate::wave::Rounding::NearestEven => towards(wave, inst, Nearest),
                other => directed(wave, inst, other),
            }
        }
        #[inline(never)]
        fn directed(wave: &mut $crate::wave::Wave, inst: &$crate::inst::Inst, r: $crate::wave::Rounding) {
            towards(wave, inst, r)
        }
        #[inline(always)]
        fn towards<T: Direction>(wave: &mut $crate::wave::Wave, inst: &$crate::inst::Inst, $r: T) {
            $(let $d = $D::fetch(wave, inst, 0);)?
            let mut position = 0;
            $(position += 1; let $s = $S::fetch(wave, inst, position);)*
            let _ = position;
            let mut out = $R::zero();
            for lane in 0..lanes!(wave) {
                $(let $d = $D::get($d[lane]);)?
                $(let $s = $S::get($s[lane]);)*
                out[lane] = $R::put($e);
            }
            $R::store(wave, inst, &mut out);
        }
        #[allow(unused_mut)]
        let mut row = Entry::new($names, builds!(body), &[$($S::CLASS),*], $R::CLASS);
        $(let _ = $D::CLASS; row.reads_dst = 1;)?
        row
    }};
}

pub(crate) use {builds, lanes, op, rounded};
