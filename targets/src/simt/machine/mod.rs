//! What a GPU has beyond the builder: the signature of a kernel, indices of threads, local memory,
//! barriers, and lanes that exchange values. Everything here is one instruction or a few; what
//! vendors name or do differently is in `amdgcn` and `ptx`.
pub mod accumulator;
mod amdgcn;
pub mod fragment;
mod lanes;
pub mod pipeline;
mod ptx;
pub mod warpgroup;

use std::cell::Cell;
use std::ops::Deref;

use atomc_ir::arch::GpuArch;
use atomc_ir::arch::{Isa, Simt};
use inkwell::attributes::AttributeLoc;
use inkwell::llvm_sys::LLVMAtomicOrdering;
use inkwell::llvm_sys::core::{LLVMBuildFenceSyncScope, LLVMGetSyncScopeID, LLVMSetAtomicSyncScopeID};
use inkwell::module::{Linkage, Module};
use inkwell::values::{AsValueRef, BasicValue, FunctionValue};
use inkwell::{AddressSpace, AtomicOrdering};

use crate::code::{Code, Int, Ptr, Vector};
use crate::llvm::Llvm;

/// Address spaces, by the numbers that AMDGPU and NVPTX share.
const GLOBAL: u16 = 1;
const LOCAL: u16 = 3;

/// An empty kernel with `pointers` pointers, for work-groups of `threads` threads.
pub fn open<'c>(llvm: Llvm<'c>, symbol: &str, arch: GpuArch<'c>, pointers: usize, threads: usize) -> Gpu<'c> {
    open_with_numbers(llvm, symbol, arch, pointers, 0, threads)
}

/// An empty kernel with 64-bit numbers after its pointers.
pub fn open_with_numbers<'c>(
    llvm: Llvm<'c>,
    symbol: &str,
    arch: GpuArch<'c>,
    pointers: usize,
    numbers: usize,
    threads: usize,
) -> Gpu<'c> {
    let cx = llvm.cx;
    let p = cx.ptr_type(AddressSpace::from(GLOBAL));
    let parameters = [vec![p.into(); pointers], vec![cx.i64_type().into(); numbers]].concat();
    let ty = cx.void_type().fn_type(&parameters, false);
    let code = Code::open(llvm, symbol, arch.arch(), ty, 1, cx.i32_type());
    let code = Gpu { code, simt: arch.simt, shared: Cell::new(0), awaited: Cell::new(false) };
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

/// Asks for at least `waves` waves of an AMD kernel on every SIMD, in place of an earlier request.
pub fn want_waves(kernel: FunctionValue, waves: usize) {
    set(kernel, "amdgpu-waves-per-eu", &waves.to_string());
}

/// A string attribute of a kernel.
pub fn set(kernel: FunctionValue, key: &str, value: &str) {
    let attribute = kernel.get_type().get_context().create_string_attribute(key, value);
    kernel.add_attribute(AttributeLoc::Function, attribute);
}

/// Local memory in which the waves of a work-group exchange a float each.
pub fn exchange<'c>(c: &Gpu<'c>, threads: usize) -> Ptr<'c> {
    c.local(threads / c.simt.wave * 4)
}

/// A kernel for GPUs under construction: the builder that all machines share, and the parts that
/// only GPUs have.
pub struct Gpu<'c> {
    code: Code<'c>,
    pub simt: &'c Simt,
    /// Bytes of local memory that the launch must give, in addition to what the code itself states.
    pub shared: Cell<usize>,
    /// Whether the emitted code has waited for the previous kernel.
    pub awaited: Cell<bool>,
}

impl<'c> Deref for Gpu<'c> {
    type Target = Code<'c>;
    fn deref(&self) -> &Code<'c> {
        &self.code
    }
}

impl<'c> Gpu<'c> {
    pub fn finish(self) -> Module<'c> {
        self.code.finish()
    }

    /// A pointer of the kernel, by its number.
    pub fn argument(&self, i: usize) -> Ptr<'c> {
        self.function.get_nth_param(i as u32).expect("as many as the kernel was opened with").into_pointer_value()
    }

    /// A number of the kernel, by its place among all parameters.
    pub fn number_argument(&self, i: usize) -> Int<'c> {
        self.as_int(self.function.get_nth_param(i as u32).expect("as many as the kernel was opened with"))
    }

    fn isa(&self) -> Isa {
        self.simt.isa
    }

    /// A string attribute of the kernel.
    fn attribute(&self, key: &str, value: &str) {
        set(self.function, key, value);
    }

    /// Asks for at least `waves` waves on every SIMD, which limits the registers of a thread.
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
        self.simt.wave
    }

    /// The lane's number in its wave.
    pub fn lane_index(&self) -> Int<'c> {
        self.thread() % self.wave_size()
    }

    /// The wave's number in its work-group, the same register for all lanes.
    pub fn wave_index(&self) -> Int<'c> {
        self.uniform(self.thread() / self.wave_size())
    }

    /// Waits until the previous kernel has ended; all threads see its writes. If kernels may begin
    /// early, every thread of every kernel comes here before it touches memory that another kernel
    /// writes, and before it writes anything: only weights and constants may be read earlier. So
    /// after this wait all earlier kernels have ended, since each could only end after its own
    /// wait. The next kernel may begin from here on.
    pub fn await_previous(&self) {
        if self.simt.dependent_launch {
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

    /// A barrier of all threads of the work-group. Each thread's earlier writes are visible to all
    /// after it.
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

    /// Makes the wave's writes to local memory visible to its other lanes. A wave's accesses are
    /// done in order, so this holds back the compiler alone.
    pub fn wave_barrier(&self) {
        self.fence("wavefront", LLVMAtomicOrdering::LLVMAtomicOrderingRelease);
        self.call("llvm.amdgcn.wave.barrier", &[], &[]);
        self.fence("wavefront", LLVMAtomicOrdering::LLVMAtomicOrderingAcquire);
    }

    /// [`Gpu::barrier`], after which one thread may publish the writes of all: it releases and
    /// takes a turn. NVIDIA's release covers what the thread has seen by a barrier. AMD's GPUs
    /// count stores in flight for each wave, and LLVM's fence of a work-group does not wait for
    /// them on gfx9, so there each wave releases its own.
    pub fn barrier_to_publish(&self) {
        if self.isa() == Isa::Amdgcn {
            self.release();
        }
        self.barrier();
    }

    /// Makes this thread's writes visible to threads anywhere on the device that acquire them.
    pub fn release(&self) {
        self.fence(self.device(), LLVMAtomicOrdering::LLVMAtomicOrderingRelease);
    }

    pub fn acquire(&self) {
        self.fence(self.device(), LLVMAtomicOrdering::LLVMAtomicOrderingAcquire);
    }

    /// LLVM's name of the scope of all threads of the device.
    fn device(&self) -> &'static str {
        if self.isa() == Isa::Amdgcn { "agent" } else { "device" }
    }

    fn fence(&self, scope: &str, ordering: LLVMAtomicOrdering) {
        // SAFETY: the builder's position is inside a function of this module.
        unsafe {
            LLVMBuildFenceSyncScope(self.b.as_mut_ptr(), ordering, self.scope(scope), c"".as_ptr());
        }
    }

    /// LLVM's number for a scope of synchronisation.
    fn scope(&self, name: &str) -> u32 {
        // SAFETY: the context is alive, and the name is a slice of that length.
        unsafe { LLVMGetSyncScopeID(self.module.get_context().raw(), name.as_ptr().cast(), name.len()) }
    }

    /// No instruction is moved across: earlier loads are in flight while later code computes. For
    /// NVIDIA's GPUs the vendor's assembler orders instructions, and takes no hints.
    pub fn keep_order(&self) {
        if self.isa() == Isa::Amdgcn {
            let none = self.cx.i32_type().const_zero();
            self.call("llvm.amdgcn.sched.barrier", &[], &[none.into()]);
        }
    }

    /// The value, computed here and not later. Matrix instructions need every lane of the wave, so
    /// they must not be moved to a place where only some lanes need their result. LLVM's sinking
    /// does not know that for all of them.
    pub fn pin(&self, v: Vector<'c>) -> Vector<'c> {
        match self.isa() {
            Isa::Amdgcn => self.pin_vector(v),
            Isa::Ptx => self.each(v, |v| self.pin_register(v)),
        }
    }

    /// Stores four words where other devices read them, past all caches. Each pair of words arrives
    /// whole. AMD's GPUs would wait for each volatile store, and have no atomic one of 16 bytes.
    pub fn store_shared(&self, p: Ptr<'c>, words: &[Int<'c>; 4]) {
        match self.isa() {
            Isa::Amdgcn => words.chunks(2).enumerate().for_each(|(half, pair)| {
                let pair = self.bitcast(self.words(pair), self.cx.i64_type());
                let store = self.b.build_store(self.at(p, half * 8), pair).expect("words into memory");
                store.set_alignment(8).expect("a power of two");
                store.set_atomic_ordering(AtomicOrdering::Monotonic).expect("a store");
            }),
            Isa::Ptx => {
                let store = self.b.build_store(p, self.words(words)).expect("words into memory");
                store.set_alignment(16).expect("a power of two");
                store.set_volatile(true).expect("a store");
            }
        }
    }

    /// Loads four words that other devices write, from memory and not from a cache.
    pub fn load_shared(&self, p: Ptr<'c>) -> [Int<'c>; 4] {
        match self.isa() {
            Isa::Amdgcn => {
                let pairs = [0, 8].map(|offset| {
                    let pair = self.load(self.cx.i64_type(), self.at(p, offset), 8);
                    let load = pair.as_instruction_value().expect("a load");
                    load.set_atomic_ordering(AtomicOrdering::Monotonic).expect("a load");
                    self.bitcast(pair, self.ints(self.cx.i32_type(), 2)).into_vector_value()
                });
                std::array::from_fn(|i| self.as_int(self.lane(pairs[i / 2], i % 2)))
            }
            Isa::Ptx => {
                let words = self.load(self.ints(self.cx.i32_type(), 4), p, 16);
                words.as_instruction_value().expect("a load").set_volatile(true).expect("a load");
                std::array::from_fn(|i| self.as_int(self.lane(words.into_vector_value(), i)))
            }
        }
    }

    /// Makes this thread's writes visible to other devices that acquire them.
    pub fn release_to_devices(&self) {
        self.fence("", LLVMAtomicOrdering::LLVMAtomicOrderingRelease);
    }

    /// Sees what other devices have released.
    pub fn acquire_from_devices(&self) {
        self.fence("", LLVMAtomicOrdering::LLVMAtomicOrderingAcquire);
    }

    /// Adds to a number in local memory, which others may do at the same time.
    pub fn add_local(&self, p: Ptr<'c>, v: Int<'c>) {
        let order = AtomicOrdering::Monotonic;
        let add = self.b.build_atomicrmw(inkwell::AtomicRMWBinOp::Add, p, v.v, order).expect("an integer in memory");
        // SAFETY: the value is an atomic instruction of this module's context.
        unsafe { LLVMSetAtomicSyncScopeID(add.as_value_ref(), self.scope(self.group_scope())) };
    }

    /// LLVM's name of the scope of all threads of a work-group.
    fn group_scope(&self) -> &'static str {
        if self.isa() == Isa::Amdgcn { "workgroup" } else { "block" }
    }

    /// Takes the next turn at a counter in global memory. It acquires; the data was released
    /// before.
    pub fn take_turn(&self, counter: Ptr<'c>) -> Int<'c> {
        let one = self.cx.i32_type().const_int(1, false);
        let order = AtomicOrdering::Acquire;
        let turn =
            self.b.build_atomicrmw(inkwell::AtomicRMWBinOp::Add, counter, one, order).expect("an integer in memory");
        // SAFETY: the value is an atomic instruction of this module's context.
        unsafe { LLVMSetAtomicSyncScopeID(turn.as_value_ref(), self.scope(self.device())) };
        self.as_int(turn)
    }
}
