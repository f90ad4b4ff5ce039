//! What a GPU has beyond the builder: the signature of a kernel, who a thread is, local memory, barriers, and lanes that
//! exchange values. Everything here is one instruction or a few; what vendors name or do differently is in `amdgcn` and `ptx`.
pub mod accumulator;
mod amdgcn;
pub mod fragment;
pub mod pipeline;
mod ptx;
pub mod wide;

use atomc_ir::Arch;
use atomc_ir::arch::Isa;
use inkwell::AddressSpace;
use inkwell::attributes::AttributeLoc;
use inkwell::llvm_sys::LLVMAtomicOrdering;
use inkwell::llvm_sys::core::{LLVMBuildFenceSyncScope, LLVMGetSyncScopeID, LLVMSetAtomicSyncScopeID};
use inkwell::module::Linkage;
use inkwell::types::{BasicType, VectorType};
use inkwell::values::{AsValueRef, FloatValue, FunctionValue};

use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::llvm::Llvm;

/// Address spaces, by the numbers that AMDGPU and NVPTX share.
const GLOBAL: u16 = 1;
const LOCAL: u16 = 3;

/// An empty kernel of so many pointers, for work-groups of so many threads.
pub fn open<'c>(llvm: Llvm<'c>, symbol: &str, arch: &'c Arch, pointers: usize, threads: usize) -> Code<'c> {
    open_with_numbers(llvm, symbol, arch, (pointers, 0), threads)
}

/// The same with so many numbers of 64 bits behind the pointers.
pub fn open_with_numbers<'c>(
    llvm: Llvm<'c>,
    symbol: &str,
    arch: &'c Arch,
    (pointers, numbers): (usize, usize),
    threads: usize,
) -> Code<'c> {
    let cx = llvm.cx;
    let p = cx.ptr_type(AddressSpace::from(GLOBAL));
    let parameters = [vec![p.into(); pointers], vec![cx.i64_type().into(); numbers]].concat();
    let ty = cx.void_type().fn_type(&parameters, false);
    let code = Code::open(llvm, symbol, arch, ty, 1, cx.i32_type());
    let function = code.function;
    match code.isa() {
        Isa::Amdgcn => amdgcn::make_kernel(&code, threads),
        Isa::Ptx => ptx::make_kernel(&code, threads),
    }
    let noalias = inkwell::attributes::Attribute::get_named_enum_kind_id("noalias");
    for i in 0..pointers {
        function.add_attribute(AttributeLoc::Param(i as u32), cx.create_enum_attribute(noalias, 0));
    }
    code
}

/// At least so many waves of an AMD kernel on every SIMD; what was asked for before does not count any more.
pub fn want_waves(kernel: FunctionValue, waves: usize) {
    set(kernel, "amdgpu-waves-per-eu", &waves.to_string());
}

/// A string attribute of a kernel.
pub fn set(kernel: FunctionValue, key: &str, value: &str) {
    let attribute = kernel.get_type().get_context().create_string_attribute(key, value);
    kernel.add_attribute(AttributeLoc::Function, attribute);
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

    /// A number of the kernel, by its place among all parameters.
    pub fn number_argument(&self, i: usize) -> Int<'c> {
        self.as_int(self.function.get_nth_param(i as u32).expect("as many as the kernel was opened with"))
    }

    /// A number of 64 bits that fits an index.
    pub fn to_index(&self, v: Int<'c>) -> Int<'c> {
        self.as_int(self.b.build_int_truncate_or_bit_cast(v.v, self.index, "").expect("integers"))
    }

    /// How many bits a number has, up to its highest.
    pub fn bits(&self, v: Int<'c>) -> Int<'c> {
        let no = self.cx.bool_type().const_zero();
        let above = self.as_int(self.call("llvm.ctlz", &[v.get_type().into()], &[v.into(), no.into()]));
        v.get_type().get_bit_width() as usize - above
    }

    /// The quotient and the remainder of numbers that are known when the kernel runs.
    pub fn divide(&self, a: Int<'c>, b: Int<'c>) -> [Int<'c>; 2] {
        let quotient = a / b;
        [quotient, a - quotient * b]
    }

    /// A condition that holds.
    pub fn always(&self) -> Int<'c> {
        self.as_int(self.cx.bool_type().const_all_ones())
    }

    pub fn negate(&self, condition: Int<'c>) -> Int<'c> {
        !condition
    }

    fn isa(&self) -> Isa {
        self.arch.simt().isa
    }

    /// A string attribute of the kernel.
    fn attribute(&self, key: &str, value: &str) {
        set(self.function, key, value);
    }

    /// At least so many waves on every SIMD: how many registers a thread may take.
    pub fn want_waves(&self, waves: usize) {
        match self.isa() {
            Isa::Amdgcn => want_waves(self.function, waves),
            Isa::Ptx => self.want_warps(waves),
        }
    }

    /// The thread's number in its work-group.
    pub fn thread(&self) -> Int<'c> {
        self.who(["llvm.amdgcn.workitem.id.x", "llvm.nvvm.read.ptx.sreg.tid.x"])
    }

    /// The work-group's number.
    pub fn group(&self) -> Int<'c> {
        self.who(["llvm.amdgcn.workgroup.id.x", "llvm.nvvm.read.ptx.sreg.ctaid.x"])
    }

    fn who(&self, [amdgcn, ptx]: [&str; 2]) -> Int<'c> {
        self.as_int(self.call(if self.isa() == Isa::Amdgcn { amdgcn } else { ptx }, &[], &[]))
    }

    fn wave_size(&self) -> usize {
        self.arch.simt().wave
    }

    /// The lane's number in its wave.
    pub fn lane_index(&self) -> Int<'c> {
        self.thread() % self.wave_size()
    }

    /// The wave's number in its work-group, the same register for all lanes.
    pub fn wave_index(&self) -> Int<'c> {
        self.uniform(self.thread() / self.wave_size())
    }

    /// The kernel before this one has ended, and all see what it wrote. Where kernels may begin early, every kernel comes here in
    /// every thread, before it touches anything that another kernel writes, and before it writes anything: only weights and
    /// sizes in the code may be read earlier. So when a kernel is beyond this, not only the one before it has ended but all
    /// before that, since each of them could only end after its own wait. The next kernel may begin from here on.
    pub fn await_previous(&self) {
        if self.arch.simt().dependent_launch {
            self.call("llvm.nvvm.griddepcontrol.launch.dependents", &[], &[]);
            self.call("llvm.nvvm.griddepcontrol.wait", &[], &[]);
            self.awaited.set(true);
        }
    }

    /// A number that all lanes agree on, as one that the scalar unit holds.
    pub fn uniform(&self, v: Int<'c>) -> Int<'c> {
        match self.isa() {
            Isa::Amdgcn => self.as_int(self.call("llvm.amdgcn.readfirstlane", &[v.get_type().into()], &[v.into()])),
            Isa::Ptx => v,
        }
    }

    /// Local memory of a work-group.
    pub fn local(&self, bytes: usize) -> Ptr<'c> {
        match self.isa() {
            Isa::Amdgcn => self.stated(bytes),
            Isa::Ptx => self.shared(bytes, 16),
        }
    }

    /// Local memory that the code states.
    fn stated(&self, bytes: usize) -> Ptr<'c> {
        let ty = self.cx.i8_type().array_type(bytes as u32);
        let global = self.module.add_global(ty, Some(AddressSpace::from(LOCAL)), "lds");
        global.set_linkage(Linkage::Internal);
        global.set_alignment(16);
        global.set_initializer(&ty.get_undef());
        global.as_pointer_value()
    }

    /// All threads of the work-group meet; what each wrote before, all see behind.
    pub fn barrier(&self) {
        match self.isa() {
            Isa::Amdgcn => {
                self.fence("workgroup", LLVMAtomicOrdering::LLVMAtomicOrderingRelease);
                self.call("llvm.amdgcn.s.barrier", &[], &[]);
                self.fence("workgroup", LLVMAtomicOrdering::LLVMAtomicOrderingAcquire);
            }
            Isa::Ptx => self.sync(),
        }
    }

    /// What this thread wrote, threads anywhere on the device see that acquire it.
    pub fn release(&self) {
        self.fence(self.device(), LLVMAtomicOrdering::LLVMAtomicOrderingRelease);
    }

    pub fn acquire(&self) {
        self.fence(self.device(), LLVMAtomicOrdering::LLVMAtomicOrderingAcquire);
    }

    /// LLVM's name for what all threads of the device see.
    fn device(&self) -> &'static str {
        if self.isa() == Isa::Amdgcn { "agent" } else { "device" }
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

    /// `2^x` by the machine's own instruction: within two units in the last place, 0 for what would be subnormal.
    pub fn exp2(&self, x: Vector<'c>) -> Vector<'c> {
        self.each(x, |v| self.power_of_two(v))
    }

    /// `2^x` of one number.
    pub fn power_of_two(&self, x: FloatValue<'c>) -> FloatValue<'c> {
        self.elementary(["llvm.amdgcn.exp2", "llvm.nvvm.ex2.approx.ftz"], x)
    }

    /// `1 / x`, within one unit in the last place.
    pub fn reciprocal(&self, x: Vector<'c>) -> Vector<'c> {
        self.each(x, |v| self.elementary(["llvm.amdgcn.rcp", "llvm.nvvm.rcp.approx.ftz.f"], v))
    }

    /// `1 / sqrt(x)`, within two units in the last place.
    pub fn inverse_square_root(&self, x: FloatValue<'c>) -> FloatValue<'c> {
        self.elementary(["llvm.amdgcn.rsq", "llvm.nvvm.rsqrt.approx.f"], x)
    }

    /// A function of one number that both machines have an instruction for.
    fn elementary(&self, [amdgcn, ptx]: [&str; 2], x: FloatValue<'c>) -> FloatValue<'c> {
        let f32 = [self.cx.f32_type().into()];
        match self.isa() {
            Isa::Amdgcn => self.call(amdgcn, &f32, &[x.into()]),
            // Some of these are for one type only, and take none.
            Isa::Ptx => self.call(ptx, if ptx.ends_with("ftz") { &f32 } else { &[] }, &[x.into()]),
        }
        .into_float_value()
    }

    /// No instruction is moved across: what was asked for before is under way while what follows computes. For NVIDIA's GPUs
    /// the vendor's assembler orders instructions, and takes no advice.
    pub fn keep_order(&self) {
        if self.isa() == Isa::Amdgcn {
            let none = self.cx.i32_type().const_zero();
            self.call("llvm.amdgcn.sched.barrier", &[], &[none.into()]);
        }
    }

    /// Whether a condition holds in some lane, the same for all lanes.
    pub fn any_lane(&self, condition: Int<'c>) -> Int<'c> {
        match self.isa() {
            Isa::Amdgcn => self.any_in_ballot(condition),
            Isa::Ptx => self.any_vote(condition),
        }
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
        let sign = turn.shift_right(31, false);
        offset + sign
    }

    /// Words as a vector.
    pub fn words(&self, words: &[Int<'c>]) -> Vector<'c> {
        self.in_a_row(self.cx.i32_type().vec_type(words.len() as u32), words.iter().map(|&word| word.into()))
    }

    /// Floats of 32 bits as a vector.
    pub fn floats(&self, floats: &[Any<'c>]) -> Vector<'c> {
        self.in_a_row(self.cx.f32_type().vec_type(floats.len() as u32), floats.iter().copied())
    }

    fn in_a_row(&self, ty: VectorType<'c>, elements: impl Iterator<Item = Any<'c>>) -> Vector<'c> {
        elements.enumerate().fold(ty.get_undef(), |all, (i, element)| {
            let at = self.cx.i32_type().const_int(i as u64, false);
            self.b.build_insert_element(all, element, at, "").expect("an element into its vector")
        })
    }

    /// A function of every word of a vector.
    pub fn map_words(&self, v: Vector<'c>, f: impl Fn(Int<'c>) -> Int<'c>) -> Vector<'c> {
        (0..v.get_type().get_size() as usize).fold(v.get_type().get_undef(), |all, i| {
            let at = self.cx.i32_type().const_int(i as u64, false);
            let word = f(self.as_int(self.lane(v, i)));
            self.b.build_insert_element(all, word.v, at, "").expect("a word into words")
        })
    }

    /// The same value, which is computed here and not later: matrix instructions want every lane of the wave, so they may not be
    /// moved to where only some lanes need what they make. LLVM's sinking does not know that of all of them.
    pub fn pin(&self, v: Vector<'c>) -> Vector<'c> {
        match self.isa() {
            Isa::Amdgcn => self.pin_vector(v),
            Isa::Ptx => self.each(v, |v| self.pin_register(v)),
        }
    }

    /// A scalar function of every element.
    fn each(&self, x: Vector<'c>, f: impl Fn(FloatValue<'c>) -> FloatValue<'c>) -> Vector<'c> {
        let mut result = x.get_type().get_undef();
        for i in 0..x.get_type().get_size() as usize {
            let at = self.cx.i32_type().const_int(i as u64, false);
            let v = f(self.lane(x, i).into_float_value());
            result = self.b.build_insert_element(result, v, at, "").expect("a float into floats");
        }
        result
    }

    /// Numbers of 32 bits of this lane and of one `distance` lanes away, in any order, in teams of so many lanes that come here
    /// together. The lanes of each group of `distance` must agree already where the distance is 4 or 8.
    pub fn pair(&self, v: Int<'c>, distance: usize, team: usize) -> (Int<'c>, Int<'c>) {
        match self.isa() {
            Isa::Amdgcn => self.pair_in_rows(v, distance),
            Isa::Ptx => (v, self.shuffle_by(v, distance, team)),
        }
    }

    fn exclusive_or(&self, a: Int<'c>, b: usize) -> Int<'c> {
        a ^ b
    }

    /// Combines a value over lanes whose numbers differ in the bits of `distances`, smallest first; all of them get the result.
    /// All lanes of the wave take part.
    pub fn across(
        &self,
        v: FloatValue<'c>,
        distances: &[usize],
        f: impl Fn(FloatValue<'c>, FloatValue<'c>) -> FloatValue<'c>,
    ) -> FloatValue<'c> {
        self.in_teams(self.wave_size(), v, distances, f)
    }

    fn in_teams(
        &self,
        team: usize,
        v: FloatValue<'c>,
        distances: &[usize],
        f: impl Fn(FloatValue<'c>, FloatValue<'c>) -> FloatValue<'c>,
    ) -> FloatValue<'c> {
        let i32 = self.cx.i32_type();
        distances.iter().fold(v, |v, &distance| {
            let (a, b) = self.pair(self.as_int(self.bitcast(v, i32)), distance, team);
            let float = |v: Int<'c>| self.bitcast(v, self.cx.f32_type()).into_float_value();
            f(float(a), float(b))
        })
    }

    /// The sum over groups of `size` neighbouring lanes, a power of two.
    pub fn lanes_sum(&self, v: FloatValue<'c>, size: usize) -> FloatValue<'c> {
        let distances: Vec<usize> = std::iter::successors(Some(1), |d| Some(d * 2)).take_while(|&d| d < size).collect();
        self.in_teams(size, v, &distances, |a, b| self.b.build_float_add(a, b, "").expect("floats"))
    }

    /// The sum over the `size` threads of the work-group, by way of local memory with a float for each wave. The memory may
    /// be used again after the next barrier.
    pub fn group_sum(&self, v: FloatValue<'c>, size: usize, exchange: Ptr<'c>) -> FloatValue<'c> {
        let waves = size / self.wave_size();
        let sum = self.lanes_sum(v, self.wave_size());
        if waves == 1 {
            return sum;
        }
        let mine = self.at(exchange, self.wave_index() * 4);
        self.barrier();
        self.when(self.equal(self.lane_index(), 0), || self.store(mine, sum, 4));
        self.barrier();
        let part = |i: usize| self.load(self.cx.f32_type(), self.at(exchange, 4 * i), 4).into_float_value();
        (1..waves).fold(part(0), |sum, i| self.b.build_float_add(sum, part(i), "").expect("floats"))
    }

    /// The next of the turns at a counter in global memory.
    pub fn take_turn(&self, counter: Ptr<'c>) -> Int<'c> {
        let one = self.cx.i32_type().const_int(1, false);
        let order = inkwell::AtomicOrdering::AcquireRelease;
        let turn =
            self.b.build_atomicrmw(inkwell::AtomicRMWBinOp::Add, counter, one, order).expect("an integer in memory");
        // SAFETY: the value is an atomic instruction of this module's context.
        unsafe { LLVMSetAtomicSyncScopeID(turn.as_value_ref(), self.scope(self.device())) };
        self.as_int(turn)
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
