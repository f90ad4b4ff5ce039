//! Counts of a kernel's run.
use crate::exec::step::{Action, Class, Control, Step};
use crate::fault::Operation;

/// Sums over all waves of a launch. Instructions count once for each wave that executes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub waves: u64,
    pub instructions: u64,
    pub salu: u64,
    pub valu: u64,
    pub matrix: u64,
    pub smem: u64,
    pub vmem: u64,
    pub lds: u64,
    pub control: u64,
    pub barriers: u64,
    /// Floating-point operations of matrix instructions.
    pub flops: u64,
    /// Bytes of global memory that lanes and scalar loads read or wrote, whether caches would have
    /// had them or not.
    pub bytes_loaded: u64,
    pub bytes_stored: u64,
    /// Cycles of waiting for LDS banks, by the model of [`crate::mem::lds::conflicts`].
    pub lds_conflicts: u64,
}

/// The part of the counts that depends on data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub loaded: u64,
    pub stored: u64,
    pub lds_conflicts: u64,
}

impl Traffic {
    #[inline]
    pub fn count(&mut self, operation: Operation, bytes: u64) {
        match operation {
            Operation::Read => self.loaded += bytes,
            Operation::Write => self.stored += bytes,
            Operation::Atomic => {
                self.loaded += bytes;
                self.stored += bytes;
            }
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, o: Counts) {
        let pairs = [
            (&mut self.waves, o.waves),
            (&mut self.instructions, o.instructions),
            (&mut self.salu, o.salu),
            (&mut self.valu, o.valu),
            (&mut self.matrix, o.matrix),
            (&mut self.smem, o.smem),
            (&mut self.vmem, o.vmem),
            (&mut self.lds, o.lds),
            (&mut self.control, o.control),
            (&mut self.barriers, o.barriers),
            (&mut self.flops, o.flops),
            (&mut self.bytes_loaded, o.bytes_loaded),
            (&mut self.bytes_stored, o.bytes_stored),
            (&mut self.lds_conflicts, o.lds_conflicts),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum += more);
    }
}

impl Counts {
    /// Adds a kernel's instructions, each as often as it ran.
    pub fn add(&mut self, steps: &[Step], hits: &[u64], traffic: &Traffic) {
        for (step, n) in steps.iter().zip(hits) {
            self.instructions += n;
            *self.class(step.class) += n;
            self.flops += n * u64::from(step.flops);
            if matches!(step.action, Action::Control(Control::Barrier | Control::Signal)) {
                self.barriers += n;
            }
        }
        self.bytes_loaded += traffic.loaded;
        self.bytes_stored += traffic.stored;
        self.lds_conflicts += traffic.lds_conflicts;
    }

    fn class(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::Salu => &mut self.salu,
            Class::Valu => &mut self.valu,
            Class::Matrix => &mut self.matrix,
            Class::Smem => &mut self.smem,
            Class::Vmem => &mut self.vmem,
            Class::Lds => &mut self.lds,
            Class::Control => &mut self.control,
        }
    }
}
