; Each work-group leaves 256 numbers in %x and counts itself in %c; the last one to count adds up what
; all have left, each work-item numbers of another wave.
@turn = internal addrspace(3) global i32 poison, align 4

; All release before they meet.
define amdgpu_kernel void @shares(ptr addrspace(1) %x, ptr addrspace(1) %c, ptr addrspace(1) %o, i32 %groups) "amdgpu-flat-work-group-size"="256,256" {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %own = shl i32 %g, 8
  %at = add i32 %own, %t
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %at
  store i32 %at, ptr addrspace(1) %px
  fence syncscope("agent") release
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %first = icmp eq i32 %t, 0
  br i1 %first, label %count, label %meet
count:
  %n = atomicrmw add ptr addrspace(1) %c, i32 1 syncscope("agent") acq_rel
  store i32 %n, ptr addrspace(3) @turn
  br label %meet
meet:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %turn = load i32, ptr addrspace(3) @turn
  %next = add i32 %turn, 1
  %last = icmp eq i32 %next, %groups
  br i1 %last, label %collect, label %end
collect:
  fence syncscope("agent") acquire
  %other = xor i32 %t, 255
  br label %loop
loop:
  %i = phi i32 [ 0, %collect ], [ %j, %loop ]
  %sum = phi i32 [ 0, %collect ], [ %more, %loop ]
  %base = shl i32 %i, 8
  %from = add i32 %base, %other
  %pf = getelementptr i32, ptr addrspace(1) %x, i32 %from
  %v = load i32, ptr addrspace(1) %pf
  %more = add i32 %sum, %v
  %j = add i32 %i, 1
  %go = icmp ult i32 %j, %groups
  br i1 %go, label %loop, label %done
done:
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %t
  store i32 %more, ptr addrspace(1) %po
  br label %end
end:
  ret void
}

; Only the one that counts releases.
define amdgpu_kernel void @shares_late(ptr addrspace(1) %x, ptr addrspace(1) %c, ptr addrspace(1) %o, i32 %groups) "amdgpu-flat-work-group-size"="256,256" {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %own = shl i32 %g, 8
  %at = add i32 %own, %t
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %at
  store i32 %at, ptr addrspace(1) %px
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %first = icmp eq i32 %t, 0
  br i1 %first, label %count, label %meet
count:
  fence syncscope("agent") release
  %n = atomicrmw add ptr addrspace(1) %c, i32 1 syncscope("agent") acq_rel
  store i32 %n, ptr addrspace(3) @turn
  br label %meet
meet:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %turn = load i32, ptr addrspace(3) @turn
  %next = add i32 %turn, 1
  %last = icmp eq i32 %next, %groups
  br i1 %last, label %collect, label %end
collect:
  fence syncscope("agent") acquire
  %other = xor i32 %t, 255
  br label %loop
loop:
  %i = phi i32 [ 0, %collect ], [ %j, %loop ]
  %sum = phi i32 [ 0, %collect ], [ %more, %loop ]
  %base = shl i32 %i, 8
  %from = add i32 %base, %other
  %pf = getelementptr i32, ptr addrspace(1) %x, i32 %from
  %v = load i32, ptr addrspace(1) %pf
  %more = add i32 %sum, %v
  %j = add i32 %i, 1
  %go = icmp ult i32 %j, %groups
  br i1 %go, label %loop, label %done
done:
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %t
  store i32 %more, ptr addrspace(1) %po
  br label %end
end:
  ret void
}

; Nothing releases.
define amdgpu_kernel void @shares_unreleased(ptr addrspace(1) %x, ptr addrspace(1) %c, ptr addrspace(1) %o, i32 %groups) "amdgpu-flat-work-group-size"="256,256" {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %own = shl i32 %g, 8
  %at = add i32 %own, %t
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %at
  store i32 %at, ptr addrspace(1) %px
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %first = icmp eq i32 %t, 0
  br i1 %first, label %count, label %meet
count:
  %n = atomicrmw add ptr addrspace(1) %c, i32 1 syncscope("agent") monotonic
  store i32 %n, ptr addrspace(3) @turn
  br label %meet
meet:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %turn = load i32, ptr addrspace(3) @turn
  %next = add i32 %turn, 1
  %last = icmp eq i32 %next, %groups
  br i1 %last, label %collect, label %end
collect:
  fence syncscope("agent") acquire
  %other = xor i32 %t, 255
  br label %loop
loop:
  %i = phi i32 [ 0, %collect ], [ %j, %loop ]
  %sum = phi i32 [ 0, %collect ], [ %more, %loop ]
  %base = shl i32 %i, 8
  %from = add i32 %base, %other
  %pf = getelementptr i32, ptr addrspace(1) %x, i32 %from
  %v = load i32, ptr addrspace(1) %pf
  %more = add i32 %sum, %v
  %j = add i32 %i, 1
  %go = icmp ult i32 %j, %groups
  br i1 %go, label %loop, label %done
done:
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %t
  store i32 %more, ptr addrspace(1) %po
  br label %end
end:
  ret void
}

; Nothing acquires.
define amdgpu_kernel void @shares_unacquired(ptr addrspace(1) %x, ptr addrspace(1) %c, ptr addrspace(1) %o, i32 %groups) "amdgpu-flat-work-group-size"="256,256" {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %own = shl i32 %g, 8
  %at = add i32 %own, %t
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %at
  store i32 %at, ptr addrspace(1) %px
  fence syncscope("agent") release
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %first = icmp eq i32 %t, 0
  br i1 %first, label %count, label %meet
count:
  %n = atomicrmw add ptr addrspace(1) %c, i32 1 syncscope("agent") release
  store i32 %n, ptr addrspace(3) @turn
  br label %meet
meet:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %turn = load i32, ptr addrspace(3) @turn
  %next = add i32 %turn, 1
  %last = icmp eq i32 %next, %groups
  br i1 %last, label %collect, label %end
collect:
  %other = xor i32 %t, 255
  br label %loop
loop:
  %i = phi i32 [ 0, %collect ], [ %j, %loop ]
  %sum = phi i32 [ 0, %collect ], [ %more, %loop ]
  %base = shl i32 %i, 8
  %from = add i32 %base, %other
  %pf = getelementptr i32, ptr addrspace(1) %x, i32 %from
  %v = load i32, ptr addrspace(1) %pf
  %more = add i32 %sum, %v
  %j = add i32 %i, 1
  %go = icmp ult i32 %j, %groups
  br i1 %go, label %loop, label %done
done:
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %t
  store i32 %more, ptr addrspace(1) %po
  br label %end
end:
  ret void
}

; Counts numbers of 256 kinds; what each work-item has stored before nothing reads.
define amdgpu_kernel void @histogram(ptr addrspace(1) %x, ptr addrspace(1) %c, ptr addrspace(1) %o) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %own = shl i32 %g, 8
  %at = add i32 %own, %t
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %at
  %v = load i32, ptr addrspace(1) %px
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %at
  store i32 %v, ptr addrspace(1) %po
  %pc = getelementptr i32, ptr addrspace(1) %c, i32 %v
  %n = atomicrmw add ptr addrspace(1) %pc, i32 1 syncscope("agent") monotonic
  ret void
}

; Each work-group reads what another one has stored before either counts itself.
define amdgpu_kernel void @shares_uncounted(ptr addrspace(1) %x, ptr addrspace(1) %c, ptr addrspace(1) %o, i32 %groups) "amdgpu-flat-work-group-size"="256,256" {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %own = shl i32 %g, 8
  %at = add i32 %own, %t
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %at
  store i32 %at, ptr addrspace(1) %px
  %there = xor i32 %at, 256
  %pt = getelementptr i32, ptr addrspace(1) %x, i32 %there
  %v = load i32, ptr addrspace(1) %pt
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %t
  store i32 %v, ptr addrspace(1) %po
  %n = atomicrmw add ptr addrspace(1) %c, i32 1 syncscope("agent") acq_rel
  ret void
}
