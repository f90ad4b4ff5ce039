; Work-item t stores to LDS and reads what the work-item of another wave stored.
@shared = internal addrspace(3) global [256 x float] poison, align 16

define amdgpu_kernel void @shared_reverse(ptr addrspace(1) %x, ptr addrspace(1) %o) "amdgpu-flat-work-group-size"="256,256" {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %px = getelementptr float, ptr addrspace(1) %x, i32 %t
  %v = load float, ptr addrspace(1) %px
  %pl = getelementptr float, ptr addrspace(3) @shared, i32 %t
  store float %v, ptr addrspace(3) %pl
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %r = xor i32 %t, 255
  %pr = getelementptr float, ptr addrspace(3) @shared, i32 %r
  %w = load float, ptr addrspace(3) %pr
  %po = getelementptr float, ptr addrspace(1) %o, i32 %t
  store float %w, ptr addrspace(1) %po
  ret void
}

; The same without a store: nothing was ever there.
define amdgpu_kernel void @shared_never(ptr addrspace(1) %o) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %pl = getelementptr float, ptr addrspace(3) @shared, i32 %t
  %w = load volatile float, ptr addrspace(3) %pl
  %po = getelementptr float, ptr addrspace(1) %o, i32 %t
  store float %w, ptr addrspace(1) %po
  ret void
}

; Only the first waves come to the barrier.
define amdgpu_kernel void @shared_leaves(ptr addrspace(1) %o, i32 %n) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %in = icmp ult i32 %t, %n
  br i1 %in, label %stay, label %end
stay:
  call void @llvm.amdgcn.s.barrier()
  br label %end
end:
  ret void
}
