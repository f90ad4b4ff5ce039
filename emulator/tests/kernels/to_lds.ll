; Memory to LDS without registers between, then from LDS.
@landing = internal addrspace(3) global [64 x i32] poison, align 16

define amdgpu_kernel void @to_lds(ptr addrspace(1) %x, ptr addrspace(1) %o) "amdgpu-flat-work-group-size"="64,64" {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %t
  call void @llvm.amdgcn.global.load.lds(ptr addrspace(1) %px, ptr addrspace(3) @landing, i32 4, i32 0, i32 0)
  fence syncscope("workgroup") release
  %r = xor i32 %t, 63
  %pl = getelementptr i32, ptr addrspace(3) @landing, i32 %r
  %v = load i32, ptr addrspace(3) %pl
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %t
  store i32 %v, ptr addrspace(1) %po
  ret void
}
declare void @llvm.amdgcn.global.load.lds(ptr addrspace(1), ptr addrspace(3), i32, i32, i32)
