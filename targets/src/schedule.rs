//! A schedule: a way to make the kernels of a family. Only `select.rs` knows all of them.
use std::fmt;

use atomc_artifact::manifest;
use atomc_ir::arch::Found;
use atomc_ir::{Arch, Diagnostic, Family};
use inkwell::module::Module;

use crate::llvm::Llvm;
use crate::row::unsupported;
use crate::spec::KernelSpec;
use crate::tuning::{Choice, Class, Kind, Number, Table, Tunable};

/// A way to make the kernels of a family.
pub struct Schedule {
    /// As manifests, symbols and tables of numbers have it.
    pub name: &'static str,
    pub family: Family,
    /// Whether a row's result has the same bits whatever other rows a step has, and however many:
    /// each sum is in an order that the row alone decides, and the same in all kernels it makes.
    pub invariant: bool,
    /// Whether it makes a kernel on an arch with these numbers.
    pub suits: fn(&KernelSpec, &Arch, &Choice) -> Result<(), WhyNot>,
    /// The numbers that it leaves open, to be found by measuring.
    pub open: Option<Open>,
    pub emit: Emit,
}

/// All that a schedule leaves open.
pub struct Open {
    pub numbers: &'static [Number],
    pub sizes: Sizes,
}

/// The kind and the sizes of a kernel, which the best numbers depend on.
pub type Sizes = fn(&KernelSpec) -> Result<(Kind, Vec<usize>), Diagnostic>;

/// Makes a kernel as a module with one function of its symbol.
pub type Emit = for<'c> fn(&Setup<'c>, &KernelSpec) -> Result<(Module<'c>, manifest::Kernel), Diagnostic>;

/// The place where a kernel is built, and its numbers.
pub struct Setup<'c> {
    pub llvm: Llvm<'c>,
    pub arch: &'c Arch,
    pub choice: Choice,
}

/// Why a schedule does not make a kernel, for writers of kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyNot(String);

impl WhyNot {
    pub fn new(why: impl Into<String>) -> WhyNot {
        WhyNot(why.into())
    }

    /// The reason as an error of emitting.
    pub fn diagnostic(self) -> Diagnostic {
        unsupported(self.0)
    }

    /// An error with this reason, unless a condition holds.
    pub fn unless(holds: bool, why: impl FnOnce() -> String) -> Result<(), WhyNot> {
        if holds { Ok(()) } else { Err(WhyNot(why())) }
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Diagnostic> for WhyNot {
    fn from(found: Diagnostic) -> WhyNot {
        WhyNot(found.to_string())
    }
}

impl Schedule {
    /// The numbers for a kernel: those that it asks for, or the best ones of a table.
    pub fn choice(&self, spec: &KernelSpec, table: &Table) -> Result<Choice, Diagnostic> {
        if let Some(choice) = spec.choice.as_ref().filter(|choice| choice.schedule() == self.name) {
            return Ok(choice.clone());
        }
        Ok(self.class(spec)?.and_then(|class| table.choice(&class)).unwrap_or(Choice::none(self.name)))
    }

    /// Checks that rows do not change each other's results, if they must not.
    pub fn keeps_rows_apart(&self, spec: &KernelSpec) -> Result<(), WhyNot> {
        let why = || "the order of its sums depends on how many rows a step has".to_owned();
        WhyNot::unless(self.invariant || !spec.invariant, why)
    }

    /// Refuses a schedule if the chip has faster ones, or if it never ran there.
    pub fn is_wanted(&self, arch: &Arch) -> Result<(), WhyNot> {
        arch.avoided(self.name).map_or(Ok(()), |because| {
            Err(WhyNot::new(match because.found {
                Found::Estimated { from } => format!("{}: estimated from {from}", because.value),
                Found::Measured | Found::Counted => because.value.to_owned(),
            }))
        })
    }

    /// The class of a kernel: the facts that its best numbers depend on, if some are open.
    pub fn class(&self, spec: &KernelSpec) -> Result<Option<Class>, Diagnostic> {
        let Some(open) = &self.open else { return Ok(None) };
        let (kind, sizes) = (open.sizes)(spec)?;
        Ok(Some(Class { schedule: self.name, kind, sizes }))
    }

    /// Every way to choose its numbers.
    pub fn choices(&self) -> Vec<Choice> {
        self.open.as_ref().map_or(vec![], |open| Choice::all(self.name, open.numbers))
    }

    /// The numbers that a line of a table may set for it, if it leaves some open.
    pub fn tunable(&self) -> Option<Tunable> {
        let open = self.open.as_ref()?;
        Some(Tunable { schedule: self.name, family: self.family, numbers: open.numbers })
    }
}
