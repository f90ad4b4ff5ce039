define amdgpu_kernel void @vector_add(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %o, i32 %n) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %g256 = mul i32 %g, 256
  %i = add i32 %g256, %t
  %c = icmp ult i32 %i, %n
  br i1 %c, label %go, label %end
go:
  %i64 = zext i32 %i to i64
  %pa = getelementptr float, ptr addrspace(1) %a, i64 %i64
  %pb = getelementptr float, ptr addrspace(1) %b, i64 %i64
  %po = getelementptr float, ptr addrspace(1) %o, i64 %i64
  %x = load float, ptr addrspace(1) %pa
  %y = load float, ptr addrspace(1) %pb
  %s = fadd float %x, %y
  store float %s, ptr addrspace(1) %po
  br label %end
end:
  ret void
}
