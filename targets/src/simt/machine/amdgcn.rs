//! AMD's part of the machine.
use atomc_ir::arch::RowExchange;

use super::Gpu;
use crate::code::{Int, Vector};

/// LLVM's number for `amdgpu_kernel`.
const AMDGPU_KERNEL: u32 = 91;

/// Values that a launch offers and our kernels never use. Without these promises each costs
/// registers and set-up.
const UNUSED: [&str; 13] = [
    "amdgpu-no-dispatch-ptr",
    "amdgpu-no-queue-ptr",
    "amdgpu-no-dispatch-id",
    "amdgpu-no-workgroup-id-y",
    "amdgpu-no-workgroup-id-z",
    "amdgpu-no-workitem-id-y",
    "amdgpu-no-workitem-id-z",
    "amdgpu-no-implicitarg-ptr",
    "amdgpu-no-hostcall-ptr",
    "amdgpu-no-heap-ptr",
    "amdgpu-no-multigrid-sync-arg",
    "amdgpu-no-completion-action",
    "amdgpu-no-default-queue",
];

/// Makes the function a kernel for work-groups of `threads` threads.
pub fn make_kernel(code: &Gpu, threads: usize) {
    code.function.set_call_conventions(AMDGPU_KERNEL);
    UNUSED.iter().for_each(|key| code.attribute(key, ""));
    code.attribute("amdgpu-flat-work-group-size", &format!("{threads},{threads}"));
    code.attribute("uniform-work-group-size", "true");
    // Products add up in ordinary registers: with accumulation registers, every turn of a loop
    // would copy them.
    code.attribute("amdgpu-agpr-alloc", "0");
}

impl<'c> Gpu<'c> {
    /// The lower, or the upper, halves of two words as one.
    pub fn pair_halves(&self, [first, second]: [Int<'c>; 2], upper: bool) -> Int<'c> {
        let bytes = self.cx.i32_type().const_int(if upper { 0x0706_0302 } else { 0x0504_0100 }, false);
        self.as_int(self.call("llvm.amdgcn.perm", &[], &[second.into(), first.into(), bytes.into()]))
    }

    /// A bit for each lane.
    pub fn ballot(&self, condition: Int<'c>) -> Int<'c> {
        let bits = if self.wave_size() == 64 { self.cx.i64_type() } else { self.cx.i32_type() };
        self.as_int(self.call("llvm.amdgcn.ballot", &[bits.into()], &[condition.into()]))
    }

    pub fn pin_vector(&self, v: Vector<'c>) -> Vector<'c> {
        let ty = v.get_type().fn_type(&[v.get_type().into()], false);
        let asm = self.cx.create_inline_asm(ty, String::new(), "=v,0".into(), true, false, None, false);
        let made = self.b.build_indirect_call(ty, asm, &[v.into()], "").expect("a vector for a vector");
        made.try_as_basic_value().basic().expect("a result").into_vector_value()
    }

    pub fn pair_in_rows(&self, v: Int<'c>, distance: usize) -> (Int<'c>, Int<'c>) {
        match (distance, self.simt.rows_of_16) {
            // quad_perm(1, 0, 3, 2), quad_perm(2, 3, 0, 1), row_half_mirror, row_mirror
            (1, _) => (v, self.dpp(v, 0xb1)),
            (2, _) => (v, self.dpp(v, 0x4e)),
            (4, _) => (v, self.dpp(v, 0x141)),
            (8, _) => (v, self.dpp(v, 0x140)),
            (16, RowExchange::PermuteX16) => (v, self.other_row(v)),
            (16, RowExchange::Swap) => self.swap("llvm.amdgcn.permlane16.swap", v),
            (32, RowExchange::Swap) => self.swap("llvm.amdgcn.permlane32.swap", v),
            // ds_swizzle's bit mode: and 31, or 0, exclusive or 16.
            (16, RowExchange::Crossbar) => (v, self.swizzle(v, 0x401f)),
            (32, _) => (v, self.of_lane(v, self.lane_index() ^ 32)),
            _ => unreachable!("waves have at most 64 lanes"),
        }
    }

    fn dpp(&self, v: Int<'c>, control: u64) -> Int<'c> {
        let k = |n| self.cx.i32_type().const_int(n, false).into();
        let bound = self.cx.bool_type().const_int(1, false).into();
        let zero = self.cx.i32_type().const_zero();
        let args = [zero.into(), v.into(), k(control), k(0xf), k(0xf), bound];
        self.as_int(self.call("llvm.amdgcn.update.dpp", &[v.get_type().into()], &args))
    }

    fn swizzle(&self, v: Int<'c>, pattern: u64) -> Int<'c> {
        let pattern = self.cx.i32_type().const_int(pattern, false);
        self.as_int(self.call("llvm.amdgcn.ds.swizzle", &[], &[v.into(), pattern.into()]))
    }

    /// The value that another lane of the wave holds.
    pub fn of_lane(&self, v: Int<'c>, lane: Int<'c>) -> Int<'c> {
        self.as_int(self.call("llvm.amdgcn.ds.bpermute", &[], &[(lane * 4).into(), v.into()]))
    }

    /// The value of the same lane in the other row of 16, in waves of 32.
    pub fn other_row(&self, v: Int<'c>) -> Int<'c> {
        let k = |n| self.cx.i32_type().const_int(n, false).into();
        let no = self.cx.bool_type().const_zero().into();
        let args = [v.into(), v.into(), k(0x7654_3210), k(0xfedc_ba98), no, no];
        self.as_int(self.call("llvm.amdgcn.permlanex16", &[v.get_type().into()], &args))
    }

    fn swap(&self, name: &str, v: Int<'c>) -> (Int<'c>, Int<'c>) {
        let no = self.cx.bool_type().const_zero();
        let both = self.call(name, &[], &[v.into(), v.into(), no.into(), no.into()]).into_struct_value();
        let part = |i| self.as_int(self.b.build_extract_value(both, i, "").expect("two results"));
        (part(0), part(1))
    }
}
