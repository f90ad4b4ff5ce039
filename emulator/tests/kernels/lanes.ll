; Moves between lanes: sum of a wave by bpermute, a reversal by swizzle, a shift and a mirror by DPP, ballot, first lane.
define amdgpu_kernel void @lanes(ptr addrspace(1) %x, ptr addrspace(1) %o, i32 %width) {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %t
  %v = load i32, ptr addrspace(1) %px
  br label %sum
sum:
  %d = phi i32 [ 1, %entry ], [ %d2, %sum ]
  %s = phi i32 [ %v, %entry ], [ %s2, %sum ]
  %other = xor i32 %t, %d
  %bytes = shl i32 %other, 2
  %got = call i32 @llvm.amdgcn.ds.bpermute(i32 %bytes, i32 %s)
  %s2 = add i32 %s, %got
  %d2 = shl i32 %d, 1
  %more = icmp ult i32 %d2, %width
  br i1 %more, label %sum, label %rest
rest:
  %swapped = call i32 @llvm.amdgcn.ds.swizzle(i32 %v, i32 31775)
  %shifted = call i32 @llvm.amdgcn.update.dpp.i32(i32 -7, i32 %v, i32 273, i32 15, i32 15, i1 false)
  %mirrored = call i32 @llvm.amdgcn.update.dpp.i32(i32 0, i32 %v, i32 320, i32 15, i32 15, i1 true)
  %odd = trunc i32 %v to i1
  %votes = call i64 @llvm.amdgcn.ballot.i64(i1 %odd)
  %low = trunc i64 %votes to i32
  %first = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %v)
  %i = mul i32 %t, 6
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %i
  %p1 = getelementptr i32, ptr addrspace(1) %po, i32 1
  %p2 = getelementptr i32, ptr addrspace(1) %po, i32 2
  %p3 = getelementptr i32, ptr addrspace(1) %po, i32 3
  %p4 = getelementptr i32, ptr addrspace(1) %po, i32 4
  %p5 = getelementptr i32, ptr addrspace(1) %po, i32 5
  store i32 %s2, ptr addrspace(1) %po
  store i32 %swapped, ptr addrspace(1) %p1
  store i32 %shifted, ptr addrspace(1) %p2
  store i32 %mirrored, ptr addrspace(1) %p3
  store i32 %low, ptr addrspace(1) %p4
  store i32 %first, ptr addrspace(1) %p5
  ret void
}
