//! What a GPU has beyond the builder: the signature of a kernel, who a thread is, local memory, barriers, and lanes that
//! exchange values. Everything here is one instruction or a few.
use atomc_ir::Arch;
use atomc_ir::arch::RowExchange;
use inkwell::attributes::AttributeLoc;
use inkwell::context::Context;
use inkwell::llvm_sys::LLVMAtomicOrdering;
use inkwell::llvm_sys::core::{LLVMBuildFenceSyncScope, LLVMGetSyncScopeID, LLVMSetAtomicSyncScopeID};
use inkwell::module::Linkage;
use inkwell::types::BasicType;
use inkwell::values::{AsValueRef, FloatValue};
use inkwell::{AddressSpace, IntPredicate};

use crate::code::{Any, Code, Int, Ptr, Vector};

/// Address spaces, by the numbers that AMDGPU and NVPTX share.
const GLOBAL: u16 = 1;
const LOCAL: u16 = 3;

/// LLVM's number for `amdgpu_kernel`.
const AMDGPU_KERNEL: u32 = 91;

/// What a launch gives that our kernels never ask for. Without these promises each costs registers and set-up.
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

/// An empty kernel of so many pointers, for work-groups of so many threads.
pub fn open<'c>(cx: &'c Context, symbol: &str, arch: &'c Arch, pointers: usize, threads: usize) -> Code<'c> {
    let p = cx.ptr_type(AddressSpace::from(GLOBAL));
    let ty = cx.void_type().fn_type(&vec![p.into(); pointers], false);
    let code = Code::open(cx, symbol, arch, ty, 1, cx.i32_type());
    let function = code.function;
    function.set_call_conventions(AMDGPU_KERNEL);
    let text = |key: &str, value: &str| {
        function.add_attribute(AttributeLoc::Function, cx.create_string_attribute(key, value));
    };
    UNUSED.iter().for_each(|key| text(key, ""));
    text("amdgpu-flat-work-group-size", &format!("{threads},{threads}"));
    text("uniform-work-group-size", "true");
    // Products add up in ordinary registers: with accumulation registers, every turn of a loop would copy them.
    text("amdgpu-agpr-alloc", "0");
    let noalias = inkwell::attributes::Attribute::get_named_enum_kind_id("noalias");
    for i in 0..pointers {
        function.add_attribute(AttributeLoc::Param(i as u32), cx.create_enum_attribute(noalias, 0));
    }
    code
}

/// Local memory in which the waves of a work-group exchange a float each.
pub fn exchange<'c>(c: &Code<'c>, threads: usize) -> Ptr<'c> {
    c.local(threads / c.arch.simt().wave * 4)
}

impl<'c> Code<'c> {
    /// A pointer of the kernel, by its number.
    pub fn argument(&self, i: usize) -> Ptr<'c> {
        self.function.get_nth_param(i as u32).expect("as many as the kernel was opened with").into_pointer_value()
    }

    /// At least so many waves on every SIMD: how many registers a thread may take.
    pub fn want_waves(&self, waves: usize) {
        let attribute = self.cx.create_string_attribute("amdgpu-waves-per-eu", &format!("{waves}"));
        self.function.add_attribute(AttributeLoc::Function, attribute);
    }

    /// The thread's number in its work-group.
    pub fn thread(&self) -> Int<'c> {
        self.call("llvm.amdgcn.workitem.id.x", &[], &[]).into_int_value()
    }

    /// The work-group's number.
    pub fn group(&self) -> Int<'c> {
        self.call("llvm.amdgcn.workgroup.id.x", &[], &[]).into_int_value()
    }

    fn wave_size(&self) -> usize {
        self.arch.simt().wave
    }

    /// The lane's number in its wave.
    pub fn lane_index(&self) -> Int<'c> {
        self.rem(self.thread(), self.wave_size())
    }

    /// The wave's number in its work-group, the same register for all lanes.
    pub fn wave_index(&self) -> Int<'c> {
        self.uniform(self.div(self.thread(), self.wave_size()))
    }

    /// A number that all lanes agree on, as one that the scalar unit holds.
    pub fn uniform(&self, v: Int<'c>) -> Int<'c> {
        self.call("llvm.amdgcn.readfirstlane", &[v.get_type().into()], &[v.into()]).into_int_value()
    }

    /// Local memory of a work-group.
    pub fn local(&self, bytes: usize) -> Ptr<'c> {
        let ty = self.cx.i8_type().array_type(bytes as u32);
        let global = self.module.add_global(ty, Some(AddressSpace::from(LOCAL)), "lds");
        global.set_linkage(Linkage::Internal);
        global.set_alignment(16);
        global.set_initializer(&ty.get_undef());
        global.as_pointer_value()
    }

    /// All threads of the work-group meet; what each wrote before, all see behind.
    pub fn barrier(&self) {
        self.fence("workgroup", LLVMAtomicOrdering::LLVMAtomicOrderingRelease);
        self.call("llvm.amdgcn.s.barrier", &[], &[]);
        self.fence("workgroup", LLVMAtomicOrdering::LLVMAtomicOrderingAcquire);
    }

    /// What this thread wrote, threads anywhere on the device see that acquire it.
    pub fn release(&self) {
        self.fence("agent", LLVMAtomicOrdering::LLVMAtomicOrderingRelease);
    }

    pub fn acquire(&self) {
        self.fence("agent", LLVMAtomicOrdering::LLVMAtomicOrderingAcquire);
    }

    fn fence(&self, scope: &str, ordering: LLVMAtomicOrdering) {
        // SAFETY: the builder stands inside a function of this module.
        unsafe {
            LLVMBuildFenceSyncScope(self.b.as_mut_ptr(), ordering, self.scope(scope), c"".as_ptr());
        }
    }

    /// LLVM's number for a scope of synchronisation.
    fn scope(&self, name: &str) -> u32 {
        // SAFETY: the context is alive, and the name is a slice of that length.
        unsafe { LLVMGetSyncScopeID(self.module.get_context().raw(), name.as_ptr().cast(), name.len()) }
    }

    /// `2^x` by the machine's own instruction: within one unit in the last place, 0 for what would be subnormal.
    pub fn exp2(&self, x: Vector<'c>) -> Vector<'c> {
        self.each(x, |v| self.call("llvm.amdgcn.exp2", &[self.cx.f32_type().into()], &[v.into()]))
    }

    /// `1 / x`, within one unit in the last place.
    pub fn reciprocal(&self, x: Vector<'c>) -> Vector<'c> {
        self.each(x, |v| self.call("llvm.amdgcn.rcp", &[self.cx.f32_type().into()], &[v.into()]))
    }

    /// No instruction is moved across: what was asked for before is under way while what follows computes.
    pub fn keep_order(&self) {
        let none = self.cx.i32_type().const_zero();
        self.call("llvm.amdgcn.sched.barrier", &[], &[none.into()]);
    }

    /// Whether a condition holds in some lane, the same for all lanes.
    pub fn any_lane(&self, condition: Int<'c>) -> Int<'c> {
        let bits = if self.wave_size() == 64 { self.cx.i64_type() } else { self.cx.i32_type() };
        let lanes = self.call("llvm.amdgcn.ballot", &[bits.into()], &[condition.into()]).into_int_value();
        self.b.build_int_compare(IntPredicate::NE, lanes, bits.const_zero(), "").expect("integers")
    }

    /// Values as `change` makes them where a condition holds, or as they are.
    pub fn change_if(
        &self,
        condition: Int<'c>,
        values: &[Any<'c>],
        change: impl FnOnce(&[Any<'c>]) -> Vec<Any<'c>>,
    ) -> Vec<Any<'c>> {
        let before = self.b.get_insert_block().expect("open");
        let mut changed = vec![];
        self.when(condition, || changed = change(values));
        let after = self.b.get_insert_block().expect("open");
        let inside = after.get_previous_basic_block().expect("what is done under the condition");
        let merge = |(old, new): (&Any<'c>, &Any<'c>)| {
            let phi = self.b.build_phi(old.get_type(), "").expect("a block's begin");
            phi.add_incoming(&[(old, before), (new, inside)]);
            phi.as_basic_value()
        };
        values.iter().zip(&changed).map(merge).collect()
    }

    /// A lane's offset from an address that is the same for all lanes, in a loop whose number, never negative, is `turn`. LLVM
    /// leaves the sum to the load only if it sees in the same block that the offset has 32 bits, so it is made anew each turn.
    pub fn lane_offset(&self, offset: Int<'c>, turn: Int<'c>) -> Int<'c> {
        let sign = self.b.build_right_shift(turn, turn.get_type().const_int(31, false), false, "").expect("integers");
        self.add(offset, sign)
    }

    /// A function of every word of a vector.
    pub fn map_words(&self, v: Vector<'c>, f: impl Fn(Int<'c>) -> Int<'c>) -> Vector<'c> {
        (0..v.get_type().get_size() as usize).fold(v.get_type().get_undef(), |all, i| {
            let at = self.cx.i32_type().const_int(i as u64, false);
            let word = f(self.lane(v, i).into_int_value());
            self.b.build_insert_element(all, word, at, "").expect("a word into words")
        })
    }

    /// The same value, which is computed here and not later: matrix instructions want every lane of the wave, so they may not be
    /// moved to where only some lanes need what they make. LLVM's sinking does not know that of all of them.
    pub fn pin(&self, v: Vector<'c>) -> Vector<'c> {
        let ty = v.get_type().fn_type(&[v.get_type().into()], false);
        let asm = self.cx.create_inline_asm(ty, String::new(), "=v,0".into(), true, false, None, false);
        let made = self.b.build_indirect_call(ty, asm, &[v.into()], "").expect("a vector for a vector");
        made.try_as_basic_value().basic().expect("a result").into_vector_value()
    }

    /// A scalar function of every element.
    fn each(&self, x: Vector<'c>, f: impl Fn(FloatValue<'c>) -> Any<'c>) -> Vector<'c> {
        let mut result = x.get_type().get_undef();
        for i in 0..x.get_type().get_size() as usize {
            let at = self.cx.i32_type().const_int(i as u64, false);
            let v = f(self.lane(x, i).into_float_value());
            result = self.b.build_insert_element(result, v, at, "").expect("a float into floats");
        }
        result
    }

    /// Numbers of 32 bits of this lane and of one `distance` lanes away, in any order. The lanes of each group of `distance`
    /// must agree already where the distance is 4 or 8.
    pub fn pair(&self, v: Int<'c>, distance: usize) -> (Int<'c>, Int<'c>) {
        match (distance, self.arch.simt().rows_of_16) {
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
            (32, _) => (v, self.of_lane(v, self.exclusive_or(self.lane_index(), 32))),
            _ => unreachable!("waves have at most 64 lanes"),
        }
    }

    fn dpp(&self, v: Int<'c>, control: u64) -> Int<'c> {
        let k = |n| self.cx.i32_type().const_int(n, false).into();
        let bound = self.cx.bool_type().const_int(1, false).into();
        let zero = self.cx.i32_type().const_zero();
        let args = [zero.into(), v.into(), k(control), k(0xf), k(0xf), bound];
        self.call("llvm.amdgcn.update.dpp", &[v.get_type().into()], &args).into_int_value()
    }

    fn swizzle(&self, v: Int<'c>, pattern: u64) -> Int<'c> {
        let pattern = self.cx.i32_type().const_int(pattern, false);
        self.call("llvm.amdgcn.ds.swizzle", &[], &[v.into(), pattern.into()]).into_int_value()
    }

    /// The value that another lane of the wave holds.
    pub fn of_lane(&self, v: Int<'c>, lane: Int<'c>) -> Int<'c> {
        self.call("llvm.amdgcn.ds.bpermute", &[], &[self.mul(lane, self.int(4)).into(), v.into()]).into_int_value()
    }

    /// The value of the same lane in the other row of 16, in waves of 32.
    pub fn other_row(&self, v: Int<'c>) -> Int<'c> {
        let k = |n| self.cx.i32_type().const_int(n, false).into();
        let no = self.cx.bool_type().const_zero().into();
        let args = [v.into(), v.into(), k(0x7654_3210), k(0xfedc_ba98), no, no];
        self.call("llvm.amdgcn.permlanex16", &[v.get_type().into()], &args).into_int_value()
    }

    fn swap(&self, name: &str, v: Int<'c>) -> (Int<'c>, Int<'c>) {
        let no = self.cx.bool_type().const_zero();
        let both = self.call(name, &[], &[v.into(), v.into(), no.into(), no.into()]).into_struct_value();
        let part = |i| self.b.build_extract_value(both, i, "").expect("two results").into_int_value();
        (part(0), part(1))
    }

    fn exclusive_or(&self, a: Int<'c>, b: usize) -> Int<'c> {
        self.b.build_xor(a, self.int(b), "").expect("integers")
    }

    /// Combines a value over lanes whose numbers differ in the bits of `distances`, smallest first; all of them get the result.
    pub fn across(
        &self,
        v: FloatValue<'c>,
        distances: &[usize],
        f: impl Fn(FloatValue<'c>, FloatValue<'c>) -> FloatValue<'c>,
    ) -> FloatValue<'c> {
        let i32 = self.cx.i32_type();
        distances.iter().fold(v, |v, &distance| {
            let (a, b) = self.pair(self.bitcast(v, i32).into_int_value(), distance);
            let float = |v: Int<'c>| self.bitcast(v, self.cx.f32_type()).into_float_value();
            f(float(a), float(b))
        })
    }

    /// The sum over groups of `size` neighbouring lanes, a power of two.
    pub fn lanes_sum(&self, v: FloatValue<'c>, size: usize) -> FloatValue<'c> {
        let distances: Vec<usize> = std::iter::successors(Some(1), |d| Some(d * 2)).take_while(|&d| d < size).collect();
        self.across(v, &distances, |a, b| self.b.build_float_add(a, b, "").expect("floats"))
    }

    /// The sum over the `size` threads of the work-group, by way of local memory with a float for each wave. The memory may
    /// be used again after the next barrier.
    pub fn group_sum(&self, v: FloatValue<'c>, size: usize, exchange: Ptr<'c>) -> FloatValue<'c> {
        let waves = size / self.wave_size();
        let sum = self.lanes_sum(v, self.wave_size());
        if waves == 1 {
            return sum;
        }
        let mine = self.at(exchange, self.mul(self.wave_index(), self.int(4)));
        self.barrier();
        self.when(self.equal(self.lane_index(), 0), || self.store(mine, sum, 4));
        self.barrier();
        let part = |i: usize| self.load(self.cx.f32_type(), self.at(exchange, self.int(4 * i)), 4).into_float_value();
        (1..waves).fold(part(0), |sum, i| self.b.build_float_add(sum, part(i), "").expect("floats"))
    }

    pub fn equal(&self, a: Int<'c>, b: usize) -> Int<'c> {
        let b = a.get_type().const_int(b as u64, false);
        self.b.build_int_compare(IntPredicate::EQ, a, b, "").expect("integers")
    }

    /// The next of the turns at a counter in global memory.
    pub fn take_turn(&self, counter: Ptr<'c>) -> Int<'c> {
        let one = self.cx.i32_type().const_int(1, false);
        let order = inkwell::AtomicOrdering::AcquireRelease;
        let turn =
            self.b.build_atomicrmw(inkwell::AtomicRMWBinOp::Add, counter, one, order).expect("an integer in memory");
        // SAFETY: the value is an atomic instruction of this module's context.
        unsafe { LLVMSetAtomicSyncScopeID(turn.as_value_ref(), self.scope("agent")) };
        turn
    }

    /// Several vectors of one type, as one longer vector.
    pub fn join(&self, parts: &[Vector<'c>]) -> Vector<'c> {
        let mut parts = parts.to_vec();
        while parts.len() > 1 {
            parts = parts.chunks(2).map(|pair| self.join_two(pair[0], pair[1])).collect();
        }
        parts[0]
    }

    fn join_two(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        let all: Vec<usize> = (0..2 * a.get_type().get_size() as usize).collect();
        self.shuffle(a, b, &all)
    }

    /// Elements `from` to `from + count` of a vector.
    pub fn part(&self, v: Vector<'c>, from: usize, count: usize) -> Vector<'c> {
        let all: Vec<usize> = (from..from + count).collect();
        if count == v.get_type().get_size() as usize { v } else { self.shuffle(v, v, &all) }
    }

    /// A load that takes part in no other thread's work.
    pub fn load_vector(&self, element: impl BasicType<'c>, count: usize, p: Ptr<'c>, align: usize) -> Vector<'c> {
        let ty = element.as_basic_type_enum();
        let ty = match ty {
            inkwell::types::BasicTypeEnum::IntType(t) => t.vec_type(count as u32),
            inkwell::types::BasicTypeEnum::FloatType(t) => t.vec_type(count as u32),
            t => panic!("no vector of {t}"),
        };
        self.load(ty, p, align as u32).into_vector_value()
    }
}
