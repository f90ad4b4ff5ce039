; One value through scratch, through flat pointers to scratch, LDS and memory, and in bytes and halves.
@word = internal addrspace(3) global [64 x i32] poison, align 16

define amdgpu_kernel void @places(ptr addrspace(1) %x, ptr addrspace(1) %bytes, ptr addrspace(1) %o, i32 %k) "amdgpu-flat-work-group-size"="64,64" {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %a = alloca [16 x i32], align 4, addrspace(5)
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %t
  %v = load i32, ptr addrspace(1) %px
  %slot = and i32 %t, 15
  %pa = getelementptr i32, ptr addrspace(5) %a, i32 %slot
  %pk = getelementptr i32, ptr addrspace(5) %a, i32 %k
  store volatile i32 0, ptr addrspace(5) %pk
  store volatile i32 %v, ptr addrspace(5) %pa
  %s = load volatile i32, ptr addrspace(5) %pk
  %f = addrspacecast ptr addrspace(5) %pa to ptr
  %fv = load volatile i32, ptr %f
  %pl = getelementptr i32, ptr addrspace(3) @word, i32 %t
  store volatile i32 %fv, ptr addrspace(3) %pl
  %fl = addrspacecast ptr addrspace(3) %pl to ptr
  %even0 = and i32 %t, 1
  %even = icmp eq i32 %even0, 0
  %fx = addrspacecast ptr addrspace(1) %px to ptr
  %mixed = select i1 %even, ptr %fl, ptr %fx
  %mv = load volatile i32, ptr %mixed
  %pb = getelementptr i8, ptr addrspace(1) %bytes, i32 %t
  %b = load i8, ptr addrspace(1) %pb
  %bs = sext i8 %b to i32
  %low = trunc i32 %v to i16
  %ph = getelementptr i16, ptr addrspace(1) %o, i32 %t
  %po = getelementptr i32, ptr addrspace(1) %o, i32 64
  store i16 %low, ptr addrspace(1) %ph
  %nb = trunc i32 %bs to i8
  %nb1 = add i8 %nb, 1
  store i8 %nb1, ptr addrspace(1) %pb
  %sum1 = add i32 %mv, %bs
  %sum = add i32 %sum1, %s
  %pt = getelementptr i32, ptr addrspace(1) %po, i32 %t
  store i32 %sum, ptr addrspace(1) %pt
  ret void
}
