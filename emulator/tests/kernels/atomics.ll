; Counters of every kind: returned tickets, floats, maxima, compare-and-swap loops, 64 bits, pairs of bf16, and a histogram in LDS.
@bins = internal addrspace(3) global [16 x i32] poison, align 16

define amdgpu_kernel void @atomics(ptr addrspace(1) %u32, ptr addrspace(1) %f32, ptr addrspace(1) %u64, ptr addrspace(1) %tickets, ptr addrspace(1) %counts) "amdgpu-flat-work-group-size"="128,128" {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %g128 = mul i32 %g, 128
  %i = add i32 %g128, %t
  %ticket = atomicrmw add ptr addrspace(1) %u32, i32 1 syncscope("agent") monotonic
  %pt = getelementptr i32, ptr addrspace(1) %tickets, i32 %ticket
  store i32 %i, ptr addrspace(1) %pt
  %pmax = getelementptr i32, ptr addrspace(1) %u32, i32 1
  %m = atomicrmw max ptr addrspace(1) %pmax, i32 %i syncscope("agent") monotonic
  %pmin = getelementptr i32, ptr addrspace(1) %u32, i32 2
  %neg = sub i32 0, %i
  %n = atomicrmw min ptr addrspace(1) %pmin, i32 %neg syncscope("agent") monotonic
  %x = uitofp i32 %i to float
  %fa = atomicrmw fadd ptr addrspace(1) %f32, float %x syncscope("agent") monotonic, !amdgpu.no.fine.grained.memory !0
  %i64 = zext i32 %i to i64
  %wide = shl i64 %i64, 30
  %ua = atomicrmw add ptr addrspace(1) %u64, i64 %wide syncscope("agent") monotonic
  %pc = getelementptr i32, ptr addrspace(1) %u32, i32 3
  %seen0 = load i32, ptr addrspace(1) %pc
  br label %try
try:
  %seen = phi i32 [ %seen0, %entry ], [ %now, %try ]
  %want = add i32 %seen, 3
  %pair = cmpxchg ptr addrspace(1) %pc, i32 %seen, i32 %want syncscope("agent") monotonic monotonic
  %now = extractvalue { i32, i1 } %pair, 0
  %ok = extractvalue { i32, i1 } %pair, 1
  br i1 %ok, label %bin, label %try
bin:
  %small = icmp ult i32 %t, 16
  br i1 %small, label %clear, label %ready
clear:
  %pz = getelementptr i32, ptr addrspace(3) @bins, i32 %t
  store i32 0, ptr addrspace(3) %pz
  br label %ready
ready:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %square = mul i32 %t, %t
  %which = and i32 %square, 15
  %pb = getelementptr i32, ptr addrspace(3) @bins, i32 %which
  %b = atomicrmw add ptr addrspace(3) %pb, i32 1 syncscope("workgroup") monotonic
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  br i1 %small, label %tell, label %end
tell:
  %pl = getelementptr i32, ptr addrspace(3) @bins, i32 %t
  %sum = load i32, ptr addrspace(3) %pl
  %po = getelementptr i32, ptr addrspace(1) %counts, i32 %t
  %a = atomicrmw add ptr addrspace(1) %po, i32 %sum syncscope("agent") monotonic
  br label %end
end:
  ret void
}
!0 = !{}
