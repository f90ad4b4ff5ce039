//! NVIDIA's part of the machine.
use inkwell::AddressSpace;
use inkwell::module::Linkage;
use inkwell::values::FloatValue;

use super::LOCAL;
use crate::code::{Code, Int, Ptr};

/// LLVM's number for `ptx_kernel`.
const PTX_KERNEL: u32 = 71;

/// The name of the local memory that a launch gives, and its alignment, which is that of a swizzled tile.
const SHARED: &str = "group_memory";
const SHARED_ALIGN: u32 = 1024;

/// Makes the function a kernel for work-groups of so many threads.
pub fn make_kernel(code: &Code, threads: usize) {
    code.function.set_call_conventions(PTX_KERNEL);
    code.attribute("nvvm.reqntid", &format!("{threads}"));
}

impl<'c> Code<'c> {
    /// Registers for a thread, so that there is room for so many waves on a SIMD.
    pub fn want_warps(&self, waves: usize) {
        let unit = &self.arch.simt().unit;
        let registers = (unit.vgprs / waves / unit.vgpr_granule * unit.vgpr_granule).min(unit.vgprs_wave);
        self.attribute("nvvm.maxnreg", &format!("{registers}"));
    }

    /// Local memory, out of what the launch gives: what the code itself states may be 48 KiB at most.
    pub fn shared(&self, bytes: usize, align: usize) -> Ptr<'c> {
        let all = self.module.get_global(SHARED).unwrap_or_else(|| {
            let ty = self.cx.i8_type().array_type(0);
            let global = self.module.add_global(ty, Some(AddressSpace::from(LOCAL)), SHARED);
            global.set_linkage(Linkage::External);
            global.set_alignment(SHARED_ALIGN);
            global
        });
        let first = self.shared.get().next_multiple_of(align);
        self.shared.set(first + bytes);
        self.at(all.as_pointer_value(), self.int(first))
    }

    /// All threads of the work-group meet, and see what each did before.
    pub fn sync(&self) {
        let all = self.cx.i32_type().const_zero();
        self.call("llvm.nvvm.barrier.cta.sync.aligned.all", &[], &[all.into()]);
    }

    pub fn any_vote(&self, condition: Int<'c>) -> Int<'c> {
        self.call("llvm.nvvm.vote.any.sync", &[], &[self.all_lanes().into(), condition.into()]).into_int_value()
    }

    fn all_lanes(&self) -> Int<'c> {
        self.cx.i32_type().const_all_ones()
    }

    /// The lanes of this lane's team. Other teams of the wave may be elsewhere, and must not be waited for.
    fn lanes_of(&self, team: usize) -> Int<'c> {
        if team == self.wave_size() {
            return self.all_lanes();
        }
        let first = self.mul(self.div(self.lane_index(), team), self.int(team));
        self.b.build_left_shift(self.int((1 << team) - 1), first, "").expect("integers")
    }

    /// The value of the lane of the same team whose number differs in this bit.
    pub fn shuffle_by(&self, v: Int<'c>, distance: usize, team: usize) -> Int<'c> {
        let k = |n: u64| self.cx.i32_type().const_int(n, false).into();
        let args = [self.lanes_of(team).into(), v.into(), k(distance as u64), k(0x1f)];
        self.call("llvm.nvvm.shfl.sync.bfly.i32", &[], &args).into_int_value()
    }

    pub fn pin_register(&self, v: FloatValue<'c>) -> FloatValue<'c> {
        let ty = v.get_type().fn_type(&[v.get_type().into()], false);
        let asm = self.cx.create_inline_asm(ty, String::new(), "=f,0".into(), true, false, None, false);
        let made = self.b.build_indirect_call(ty, asm, &[v.into()], "").expect("a number for a number");
        made.try_as_basic_value().basic().expect("a result").into_float_value()
    }
}
