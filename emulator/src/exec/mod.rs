//! Execution: the loop over a wave's instructions, and a wave's state outside its registers.
mod altered;
pub mod control;
pub mod pending;
pub mod publication;
pub mod salu;
mod salu_float;
#[cfg(test)]
mod salu_tests;
mod shadow;
pub mod step;
pub mod wait;

use crate::counts::Traffic;
use crate::decode::Kernel;
use crate::fault::{Counter, FaultKind, Operation as Access, Trap};
use crate::isa::{Family, Isa};
use crate::mem::lds::Lds;
use crate::mem::{self, MemoryOp, Places};
use crate::memory::Memory;
use crate::timing::trace::Recorder;
use crate::wave::{LANES, Wave};
use pending::{Kind, Operation, Pending, scalar_name};
use publication::{Order, Others};
use step::{Action, Class, Dual};

/// The checks beyond bounds. All of them cost time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Values that the program never computed must not become addresses, stored data, masks or
    /// branch conditions.
    pub uninitialised: bool,
    /// Registers must not be touched while a load into them is outstanding.
    pub waits: bool,
    /// Waves must not use the same bytes of LDS without a barrier between.
    pub races: bool,
    /// All waves of a group must arrive at the same barriers.
    pub barriers: bool,
    /// Work-groups must not read stores of others that are not published.
    pub publication: bool,
}

impl Checks {
    pub const ALL: Checks = Checks { uninitialised: true, waits: true, races: true, barriers: true, publication: true };
    pub const NONE: Checks =
        Checks { uninitialised: false, waits: false, races: false, barriers: false, publication: false };
}

/// The state that the waves of the running group share.
pub struct Group<'a> {
    pub memory: &'a Memory,
    pub lds: Lds,
    pub checks: Checks,
    /// LDS bank conflicts are counted.
    pub conflicts: bool,
    pub traffic: Traffic,
    /// How often each instruction of the kernel ran.
    pub hits: Vec<u64>,
    /// Host address that code addresses count from.
    pub image: u64,
    /// Room for the addresses of an access, to be used again.
    pub spare: Vec<Box<Places>>,
    /// Records the executed instructions, if that is asked for.
    pub recorder: Option<Box<Recorder>>,
    /// The other groups, if this one may publish to them and that is checked.
    pub others: Option<Others<'a>>,
}

impl Group<'_> {
    /// Whether outstanding operations are noted.
    fn outstanding(&self) -> bool {
        self.checks.waits || self.others.is_some()
    }

    /// A wave arrives at a barrier.
    pub fn arrive(&mut self, side: &Side) {
        self.lds.arrive(side);
        if let Some(others) = &mut self.others {
            others.arrive(side);
        }
    }

    /// All waves have arrived.
    pub fn release(&mut self) {
        self.lds.release();
        if let Some(others) = &mut self.others {
            others.release();
        }
    }

    /// Scalars that make addresses must hold something.
    pub fn scalars_written(&self, wave: &Wave, first: u8, count: u8) -> Result<(), Box<Trap>> {
        let missing = (((1u128 << count) - 1) << first) & !wave.scalar_written;
        match missing {
            0 => Ok(()),
            bits => {
                let register = scalar_name(bits.trailing_zeros() as u8);
                Err(Trap::wave(FaultKind::Uninitialised { register }))
            }
        }
    }
}

/// The state that a memory instruction works on.
pub struct Cx<'a, 'm> {
    pub wave: &'a mut Wave,
    pub side: &'a mut Side,
    pub group: &'a mut Group<'m>,
}

/// The state of a wave other than its registers.
pub struct Side {
    /// The number of the wave in its group.
    pub number: usize,
    pub family: Family,
    pub pending: Pending,
    pub scratch: Scratch,
    /// The mode register as its bits.
    pub mode: u32,
    /// Vector instructions are skipped, or registers are indexed: bits 27 and 28 of the mode
    /// register of gfx9.
    pub altered: bool,
    pub lds_issued: u32,
    pub to_lds_issued: u32,
    pub order: Order,
}

impl Side {
    pub fn new(number: usize, isa: &Isa, scratch: Scratch, mode: u32) -> Side {
        Side {
            number,
            family: isa.family,
            pending: Pending::default(),
            scratch,
            mode,
            altered: false,
            lds_issued: 0,
            to_lds_issued: 0,
            order: Order::default(),
        }
    }

    /// The number of the last use of LDS that is certainly done.
    pub fn lds_retired(&self) -> u32 {
        self.lds_issued - self.pending.lds_outstanding().min(self.lds_issued)
    }

    pub fn to_lds_retired(&self) -> u32 {
        self.to_lds_issued - self.pending.to_lds_outstanding().min(self.to_lds_issued)
    }

    /// A load, or an atomic that returns the old value, has begun.
    pub fn issue_load(&mut self, op: &MemoryOp, dst: mem::Registers, group: &Group) {
        if !group.outstanding() {
            return;
        }
        let operation = Operation { row: dst.first, rows: dst.count, scalar: 0, scalars: 0, kind: Kind::Ordered };
        match op.space {
            mem::Space::Lds => self.pending.issue(Counter::Lds, operation),
            mem::Space::Flat => {
                self.pending.issue(Counter::Vector, operation);
                self.pending.issue(Counter::Lds, operation);
            }
            _ => self.pending.issue(Counter::Vector, operation),
        }
    }

    /// A store, or an atomic without a result.
    pub fn issue_store(&mut self, op: &MemoryOp, group: &Group) {
        if !group.outstanding() {
            return;
        }
        let operation = Operation { row: 0, rows: 0, scalar: 0, scalars: 0, kind: Kind::Ordered };
        let memory = if self.family.is_cdna() { Counter::Vector } else { Counter::Store };
        if !op.is_store_to_memory() {
            let counter = if op.space == mem::Space::Lds { Counter::Lds } else { memory };
            self.pending.issue(counter, operation);
        } else {
            self.order.store_issued();
            self.pending.issue(memory, Operation { kind: Kind::Store, ..operation });
        }
        if op.space == mem::Space::Flat {
            self.pending.issue(Counter::Lds, operation);
        }
    }

    /// A permutation: it uses the LDS unit, but no memory.
    pub fn issue_lds(&mut self, op: &MemoryOp, group: &Group) {
        self.lds_issued += 1;
        if let Some(dst) = op.dst {
            self.issue_load(op, dst, group);
        }
    }

    pub fn issue_to_lds(&mut self, group: &Group) {
        if group.outstanding() {
            let operation = Operation { row: 0, rows: 0, scalar: 0, scalars: 0, kind: Kind::ToLds };
            self.pending.issue(Counter::Vector, operation);
        }
    }

    pub fn issue_scalar(&mut self, op: &MemoryOp, group: &Group) {
        let (Some(dst), true) = (op.dst, group.outstanding()) else { return };
        let operation =
            Operation { row: 0, rows: 0, scalar: dst.first as u8, scalars: dst.count, kind: Kind::Unordered };
        let counter = if self.family >= Family::Gfx12 { Counter::Scalar } else { Counter::Lds };
        self.pending.issue(counter, operation);
    }

    /// A scalar store or atomic.
    pub fn issue_scalar_write(&mut self, op: &MemoryOp, group: &Group) {
        if op.dst.is_some() {
            self.issue_scalar(op, group);
        } else if group.outstanding() {
            let operation = Operation { row: 0, rows: 0, scalar: 0, scalars: 0, kind: Kind::Unordered };
            self.pending.issue(Counter::Lds, operation);
        }
    }
}

/// Private memory of a wave: one lane's bytes after the other's.
pub struct Scratch {
    bytes: Vec<u32>,
    /// Bytes of one lane.
    size: u32,
}

impl Scratch {
    pub fn new(size: u32) -> Scratch {
        let size = size.next_multiple_of(16);
        Scratch { bytes: vec![0x7fa5_a5a5; size as usize / 4 * LANES], size }
    }

    /// The host address of a lane's byte.
    pub fn place(&mut self, lane: usize, address: u32, bytes: u32, operation: Access) -> Result<u64, Box<Trap>> {
        if u64::from(address) + u64::from(bytes) > u64::from(self.size) {
            let kind = FaultKind::ScratchOutOfBounds { operation, address, bytes, size: self.size };
            return Err(Trap::lane(kind, lane as u32));
        }
        Ok(self.bytes.as_mut_ptr() as u64 + lane as u64 * u64::from(self.size) + u64::from(address))
    }
}

/// A wave with its state outside the registers.
pub struct Runner {
    pub wave: Wave,
    pub side: Side,
    pub ended: bool,
    /// The instruction that signalled the barrier, until the barrier opens.
    pub arrived: Option<usize>,
    /// It must not continue before as many barriers as `awaits` have opened.
    pub waits: bool,
    pub awaits: u32,
}

/// Why the loop stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Budget,
    /// It signals its arrival at a barrier; with `true` it also waits there.
    Signal(bool),
    /// It waits for the barrier that it signalled.
    Wait,
    Ended,
}

/// Runs a wave until it must stop or `budget` instructions are done. The fault's place is
/// `wave.pc`.
pub fn run(runner: &mut Runner, group: &mut Group, kernel: &Kernel, budget: u32) -> Result<Stop, Box<Trap>> {
    match (group.recorder.is_some(), group.checks == Checks::NONE) {
        (true, _) => steps::<false, true>(runner, group, kernel, budget),
        (false, true) => steps::<false, false>(runner, group, kernel, budget),
        (false, false) => steps::<true, false>(runner, group, kernel, budget),
    }
}

fn steps<const CHECK: bool, const RECORD: bool>(
    runner: &mut Runner,
    group: &mut Group,
    kernel: &Kernel,
    budget: u32,
) -> Result<Stop, Box<Trap>> {
    let Runner { wave, side, .. } = runner;
    for _ in 0..budget {
        let pc = wave.pc;
        let Some(step) = kernel.steps.get(pc) else { return Err(Trap::wave(FaultKind::LeftCode)) };
        if side.altered && (step.class.is_vector() || matches!(step.action, Action::Vector(_))) {
            altered::step::<CHECK>(step, wave, side, group)?;
            wave.pc = pc + 1;
            continue;
        }
        group.hits[pc] += 1;
        if CHECK {
            shadow::check(step, wave, side, &group.checks)?;
        }
        if RECORD && let Some(recorder) = &mut group.recorder {
            recorder.step(side.number, pc);
        }
        match &step.action {
            Action::Vector(_) if RECORD && step.class == Class::Matrix => {}
            // SAFETY: `resolve` gave the handler for this instruction on this machine.
            Action::Vector(handler) => unsafe { handler(wave, &step.inst) },
            Action::Scalar(run) => run(wave, &step.inst),
            Action::Memory(op) => mem::execute(op, &step.inst, &mut Cx { wave, side, group })?,
            Action::Dual(dual) => pair(dual, wave),
            Action::Control(control) => {
                if let Some(stop) = control::execute(*control, wave, side, group, kernel)? {
                    return Ok(stop);
                }
                continue;
            }
        }
        wave.pc = pc + 1;
    }
    Ok(Stop::Budget)
}

/// Both halves of a dual instruction read before either writes.
fn pair(dual: &Dual, wave: &mut Wave) {
    let [(first, a), (second, b)] = [&dual.first, &dual.second].map(|(handler, inst)| (*handler, inst));
    // SAFETY: `resolve` gave the handlers for these instructions on this machine.
    unsafe {
        let Some(row) = dual.swap.map(usize::from) else {
            first(wave, a);
            return second(wave, b);
        };
        let old = wave.vgpr[row];
        first(wave, a);
        let new = std::mem::replace(&mut wave.vgpr[row], old);
        second(wave, b);
        wave.vgpr[row] = new;
    }
}
