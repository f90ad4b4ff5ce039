//! NVIDIA's part of the machine.
use inkwell::AddressSpace;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::module::Linkage;
use inkwell::types::{BasicMetadataTypeEnum, BasicType, BasicTypeEnum};
use inkwell::values::{BasicMetadataValueEnum, FloatValue};

use super::Gpu;
use super::LOCAL;
use crate::code::{Any, Int, Ptr};

/// LLVM's number for `ptx_kernel`.
const PTX_KERNEL: u32 = 71;

/// The name of the local memory that a launch gives, and its alignment, which is that of a swizzled
/// tile.
const SHARED: &str = "group_memory";
const SHARED_ALIGN: u32 = 1024;

/// The attribute with the threads of a work-group.
const THREADS: &str = "nvvm.reqntid";

/// Makes the function a kernel for work-groups of `threads` threads.
pub fn make_kernel(code: &Gpu, threads: usize) {
    code.function.set_call_conventions(PTX_KERNEL);
    code.attribute(THREADS, &format!("{threads}"));
}

impl<'c> Gpu<'c> {
    /// Limits the registers of a thread, so that `waves` waves fit on a SIMD, and all waves of the
    /// work-group.
    pub fn want_warps(&self, waves: usize) {
        let unit = &self.simt.unit;
        let threads = self.function.get_string_attribute(AttributeLoc::Function, THREADS);
        let threads = threads.and_then(|threads| threads.get_string_value().to_str().ok()?.parse::<usize>().ok());
        let own = threads.map_or(1, |threads| threads.div_ceil(self.simt.wave * unit.simds));
        let waves = waves.max(own);
        let registers = (unit.vgprs / waves / unit.vgpr_granule * unit.vgpr_granule).min(unit.vgprs_wave);
        self.attribute("nvvm.maxnreg", &format!("{registers}"));
    }

    /// Local memory out of the launch's share: memory that the code itself states may be 48 KiB at
    /// most.
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
        self.at(all.as_pointer_value(), first)
    }

    /// A barrier of all threads of the work-group. Each sees the others' earlier writes.
    pub fn sync(&self) {
        let all = self.cx.i32_type().const_zero();
        self.call("llvm.nvvm.barrier.cta.sync.aligned.all", &[], &[all.into()]);
    }

    /// A barrier of `threads` threads. Each sees what the others did before.
    pub fn meet_some(&self, barrier: Int<'c>, threads: usize) {
        self.call("llvm.nvvm.barrier.cta.sync.aligned.count", &[], &[barrier.into(), self.int(threads).into()]);
    }

    /// Arrives at such a barrier without waiting: the others see this thread's earlier writes.
    pub fn come_to_some(&self, barrier: Int<'c>, threads: usize) {
        self.assemble(&format!("bar.arrive $0, {threads};"), None, "r", &[barrier.into()]);
    }

    pub fn any_vote(&self, condition: Int<'c>) -> Int<'c> {
        self.as_int(self.call("llvm.nvvm.vote.any.sync", &[], &[self.all_lanes().into(), condition.into()]))
    }

    /// A bit for each lane.
    pub fn ballot_vote(&self, condition: Int<'c>) -> Int<'c> {
        self.as_int(self.call("llvm.nvvm.vote.ballot.sync", &[], &[self.all_lanes().into(), condition.into()]))
    }

    fn all_lanes(&self) -> Int<'c> {
        self.as_int(self.cx.i32_type().const_all_ones())
    }

    /// The lanes of this lane's team. Other teams of the wave may be elsewhere, and must not be
    /// waited for.
    fn lanes_of(&self, team: usize) -> Int<'c> {
        if team == self.wave_size() {
            return self.all_lanes();
        }
        let first = self.lane_index() / team * team;
        self.as_int(self.b.build_left_shift(self.int((1 << team) - 1).v, first.v, "").expect("integers"))
    }

    /// The value of the lane of the same team that differs in this bit of its number.
    pub fn shuffle_by(&self, v: Int<'c>, distance: usize, team: usize) -> Int<'c> {
        let k = |n: u64| self.cx.i32_type().const_int(n, false).into();
        let args = [self.lanes_of(team).into(), v.into(), k(distance as u64), k(0x1f)];
        self.as_int(self.call("llvm.nvvm.shfl.sync.bfly.i32", &[], &args))
    }

    pub fn pin_register(&self, v: FloatValue<'c>) -> FloatValue<'c> {
        let ty = v.get_type().fn_type(&[v.get_type().into()], false);
        let asm = self.cx.create_inline_asm(ty, String::new(), "=f,0".into(), true, false, None, false);
        let made = self.b.build_indirect_call(ty, asm, &[v.into()], "").expect("a number for a number");
        made.try_as_basic_value().basic().expect("a result").into_float_value()
    }
}

/// Copies of runs of global memory into local memory that the machine makes by itself. Each has a
/// barrier in local memory that counts the bytes that have arrived. Addresses in local memory are
/// numbers here.
impl<'c> Gpu<'c> {
    pub fn local_address(&self, p: Ptr<'c>) -> Int<'c> {
        self.as_int(self.b.build_ptr_to_int(p, self.cx.i32_type(), "").expect("a pointer"))
    }

    /// Local memory at such an address.
    pub fn at_address(&self, address: Int<'c>) -> Ptr<'c> {
        let ty = self.cx.ptr_type(AddressSpace::from(LOCAL));
        self.b.build_int_to_ptr(address.v, ty, "").expect("an address")
    }

    /// Initialises a barrier that one thread arms. Others see it after the next
    /// [`Gpu::show_barriers`].
    pub fn make_barrier(&self, barrier: Int<'c>) {
        self.make_barrier_of(1, barrier);
    }

    /// As [`Gpu::make_barrier`], for a barrier that completes a turn when `threads` threads have
    /// arrived.
    pub fn make_barrier_of(&self, threads: usize, barrier: Int<'c>) {
        self.assemble(&format!("mbarrier.init.shared::cta.b64 [$0], {threads};"), None, "r", &[barrier.into()]);
    }

    /// The machine's copies see the barriers that this thread made.
    pub fn show_barriers(&self) {
        self.assemble("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;", None, "", &[]);
    }

    /// Makes this thread's writes visible to the machine's copies that are issued after the next
    /// barrier.
    pub fn show_to_copies(&self) {
        self.assemble("fence.proxy.async;", None, "", &[]);
    }

    /// Makes this thread's writes to local memory visible to products that are issued after the
    /// next barrier.
    pub fn show_to_products(&self) {
        self.assemble("fence.proxy.async.shared::cta;", None, "", &[]);
    }

    /// If the condition holds, the barrier's next turn is complete when `bytes` bytes have arrived.
    pub fn expect_bytes(&self, condition: Int<'c>, barrier: Int<'c>, bytes: usize) {
        let text = "{ .reg .pred p; setp.ne.b32 p, $0, 0; \
                    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2; }";
        self.assemble(text, None, "r,r,r", &[self.word_of(condition), barrier.into(), self.int(bytes).into()]);
    }

    /// The cache policy of data that is read once.
    pub fn once(&self) -> Int<'c> {
        let text = "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;";
        self.as_int(self.assemble(text, Some(self.cx.i64_type().into()), "=l", &[]).expect("a policy"))
    }

    /// Begins to copy a run of memory, if the condition holds.
    pub fn copy_run(
        &self,
        condition: Int<'c>,
        (to, from, bytes): (Int<'c>, Ptr<'c>, usize),
        barrier: Int<'c>,
        policy: Int<'c>,
    ) {
        let text = "{ .reg .pred p; setp.ne.b32 p, $0, 0; \
                    @p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint \
                    [$1], [$2], $3, [$4], $5; }";
        let args =
            [self.word_of(condition), to.into(), from.into(), self.int(bytes).into(), barrier.into(), policy.into()];
        self.assemble(text, None, "r,r,l,r,r,l", &args);
    }

    /// Begins to copy a run of memory that other work-groups read as well.
    pub fn copy_run_often(&self, to: Int<'c>, from: Ptr<'c>, bytes: usize, barrier: Int<'c>) {
        let text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];";
        let args = [to.into(), from.into(), self.int(bytes).into(), barrier.into()];
        self.assemble(text, None, "r,l,r,r", &args);
    }

    /// Begins to copy 16 bytes of memory into local memory, from this lane.
    pub fn copy_vec16(&self, to: Int<'c>, from: Ptr<'c>) {
        let text = "cp.async.cg.shared.global [$0], [$1], 16;";
        self.assemble(text, None, "r,l", &[to.into(), from.into()]);
    }

    /// This thread arrives at a barrier as soon as all its copies by [`Gpu::copy_vec16`] have
    /// arrived. Products see them after the barrier and [`Gpu::show_to_products`].
    pub fn arrive_behind_copies(&self, barrier: Int<'c>) {
        self.assemble("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", None, "r", &[barrier.into()]);
    }

    /// Waits for all of this lane's copies by [`Gpu::copy_vec16`].
    pub fn await_copies(&self) {
        self.assemble("cp.async.wait_all;", None, "", &[]);
    }

    /// Prefetches a run of memory into the cache of all units. Nothing signals its arrival.
    pub fn bring_near(&self, from: Ptr<'c>, bytes: usize) {
        let text = format!("cp.async.bulk.prefetch.L2.global [$0], {bytes};");
        self.assemble(&text, None, "l", &[from.into()]);
    }

    /// Waits for the end of a barrier's turn, by its last bit.
    pub fn await_bytes(&self, barrier: Int<'c>, turn: Int<'c>) {
        self.await_turn(barrier, turn);
        self.meet_in_wave();
    }

    /// As [`Gpu::await_bytes`], for this thread alone.
    pub fn await_turn(&self, barrier: Int<'c>, turn: Int<'c>) {
        let text = "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; \
                    @p bra done; bra again; done: }";
        self.assemble(text, None, "r,r", &[barrier.into(), turn.into()]);
    }

    /// Four words of each of four neighbouring lanes: lane `i` gets the words `i` of all four, in
    /// the order of the lanes.
    pub fn turn_four(&self, words: &[Int<'c>]) -> [Int<'c>; 4] {
        let mut words: [Int<'c>; 4] = std::array::from_fn(|i| words[i]);
        let lane = self.lane_index();
        for distance in [1, 2] {
            let is_late = self.equal(lane / distance % 2, 1);
            for first in (0..4).filter(|i| i & distance == 0) {
                let [early, late] = [first, first + distance].map(|i| words[i]);
                let sent = self.pick_int(is_late, early, late);
                let got = self.shuffle_by(sent, distance, self.simt.wave);
                words[first] = self.pick_int(is_late, got, early);
                words[first + distance] = self.pick_int(is_late, late, got);
            }
        }
        words
    }

    /// Waits until a counter in memory has reached a number, and sees the earlier writes of those
    /// that counted.
    pub fn await_count(&self, counter: Ptr<'c>, count: Int<'c>) {
        let text = "{ .reg .pred p; .reg .b32 n; again: ld.acquire.gpu.global.u32 n, [$0]; \
                    setp.ge.u32 p, n, $1; @p bra done; bra again; done: }";
        self.assemble(text, None, "l,r", &[counter.into(), count.into()]);
    }

    /// A barrier of all lanes of the wave. Each sees the others' earlier writes.
    pub fn meet_in_wave(&self) {
        self.call("llvm.nvvm.bar.warp.sync", &[], &[self.all_lanes().into()]);
    }

    /// Four blocks of 8 rows of 16 bytes in local memory, as words of a matrix instruction's
    /// operand: lane `i` gives the address of row `i % 8` of block `i / 8`, and gets two columns of
    /// row `i / 4` of each.
    pub fn load_blocks(&self, row: Int<'c>) -> [Int<'c>; 4] {
        let i32 = self.cx.i32_type();
        let four = self.cx.struct_type(&[i32.into(); 4], false);
        let text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];";
        let made = self.assemble(text, Some(four.into()), "=r,=r,=r,=r,r", &[row.into()]).expect("four words");
        let made = made.into_struct_value();
        [0, 1, 2, 3].map(|i| self.as_int(self.b.build_extract_value(made, i, "").expect("four words")))
    }

    /// 16 rows by 8 columns of sums of integers, and the products of words of four bytes each as
    /// [`Gpu::load_blocks`] gives them.
    pub fn integer_blocks(&self, panel: [Int<'c>; 4], columns: [Int<'c>; 2], sums: [Int<'c>; 4]) -> [Int<'c>; 4] {
        let args: Vec<_> = panel.into_iter().chain(columns).chain(sums).map(|v| v.into()).collect();
        let made = self.call("llvm.nvvm.mma.m16n8k32.row.col.s8", &[], &args).into_struct_value();
        [0, 1, 2, 3].map(|i| self.as_int(self.b.build_extract_value(made, i, "").expect("four sums")))
    }

    /// Four bytes of two words, each chosen by four bits of a third. The highest of the four bits
    /// selects the byte's sign for all of its bits.
    pub fn choose_bytes(&self, low: Int<'c>, high: Int<'c>, which: Int<'c>) -> Int<'c> {
        self.as_int(self.call("llvm.nvvm.prmt", &[], &[low.into(), high.into(), which.into()]))
    }

    /// The largest of the lanes' numbers, which have no sign.
    pub fn largest_of_wave(&self, v: Int<'c>) -> Int<'c> {
        self.as_int(self.call("llvm.nvvm.redux.sync.umax", &[], &[v.into(), self.all_lanes().into()]))
    }

    /// The nearest integer; the even one of two.
    pub fn nearest(&self, v: FloatValue<'c>) -> Int<'c> {
        self.as_int(self.call("llvm.nvvm.f2i.rn", &[], &[v.into()]))
    }

    /// Makes every `groups` consecutive work-groups a cluster.
    pub fn make_cluster(&self, groups: usize) {
        self.attribute("nvvm.cluster_dim", &format!("{groups},1,1"));
    }

    /// A barrier of all threads of the cluster. Each sees the others' writes to local memory.
    /// Waiting for other memory as well takes a microsecond.
    pub fn meet_in_cluster(&self) {
        self.assemble("fence.release.sync_restrict::shared::cta.cluster;", None, "", &[]);
        self.leave_cluster();
        self.assemble("fence.acquire.sync_restrict::shared::cluster.cluster;", None, "", &[]);
    }

    /// A barrier of all threads of the cluster, without an order of their accesses: for the end of
    /// a kernel that has used everything it read from others.
    pub fn leave_cluster(&self) {
        self.call("llvm.nvvm.barrier.cluster.arrive.relaxed.aligned", &[], &[]);
        self.call("llvm.nvvm.barrier.cluster.wait.aligned", &[], &[]);
    }

    /// Local memory as another work-group of the cluster has it.
    pub fn of_member(&self, p: Ptr<'c>, member: Int<'c>) -> Ptr<'c> {
        self.call("llvm.nvvm.mapa.shared.cluster", &[], &[p.into(), member.into()]).into_pointer_value()
    }

    pub fn word_of(&self, condition: Int<'c>) -> BasicMetadataValueEnum<'c> {
        self.b.build_int_z_extend(condition.v, self.cx.i32_type(), "").expect("a condition").into()
    }

    /// An instruction that LLVM has no name for, or not in all forms. It is not moved, and all
    /// lanes reach it together.
    pub fn assemble(
        &self,
        text: &str,
        result: Option<BasicTypeEnum<'c>>,
        operands: &str,
        args: &[BasicMetadataValueEnum<'c>],
    ) -> Option<Any<'c>> {
        let types: Vec<BasicMetadataTypeEnum<'c>> = args.iter().map(|a| type_of(*a)).collect();
        let ty = result.map_or(self.cx.void_type().fn_type(&types, false), |t| t.fn_type(&types, false));
        let operands = if operands.is_empty() { "~{memory}".into() } else { format!("{operands},~{{memory}}") };
        let asm = self.cx.create_inline_asm(ty, text.into(), operands, true, false, None, false);
        let call = self.b.build_indirect_call(ty, asm, args, "").expect("operands as the constraints say");
        let convergent = Attribute::get_named_enum_kind_id("convergent");
        call.add_attribute(AttributeLoc::Function, self.cx.create_enum_attribute(convergent, 0));
        call.try_as_basic_value().basic()
    }
}

fn type_of<'c>(v: BasicMetadataValueEnum<'c>) -> BasicMetadataTypeEnum<'c> {
    match v {
        BasicMetadataValueEnum::IntValue(v) => v.get_type().into(),
        BasicMetadataValueEnum::PointerValue(v) => v.get_type().into(),
        BasicMetadataValueEnum::FloatValue(v) => v.get_type().into(),
        v => panic!("no operand of an instruction: {v:?}"),
    }
}
