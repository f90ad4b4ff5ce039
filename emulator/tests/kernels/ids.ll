; Ids and sizes in three dimensions, from registers, hidden arguments and the dispatch packet.
define amdgpu_kernel void @ids(ptr addrspace(1) %o) "amdgpu-flat-work-group-size"="24,24" {
  %x = call i32 @llvm.amdgcn.workitem.id.x()
  %y = call i32 @llvm.amdgcn.workitem.id.y()
  %z = call i32 @llvm.amdgcn.workitem.id.z()
  %gx = call i32 @llvm.amdgcn.workgroup.id.x()
  %gy = call i32 @llvm.amdgcn.workgroup.id.y()
  %gz = call i32 @llvm.amdgcn.workgroup.id.z()
  %hidden = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %nx = load i32, ptr addrspace(4) %hidden
  %pny = getelementptr i32, ptr addrspace(4) %hidden, i32 1
  %ny = load i32, ptr addrspace(4) %pny
  %psx = getelementptr i16, ptr addrspace(4) %hidden, i32 6
  %sx16 = load i16, ptr addrspace(4) %psx
  %packet = call ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
  %psy = getelementptr i16, ptr addrspace(4) %packet, i32 3
  %sy16 = load i16, ptr addrspace(4) %psy
  %sx = zext i16 %sx16 to i32
  %sy = zext i16 %sy16 to i32
  %gzy = mul i32 %gz, %ny
  %gzy2 = add i32 %gzy, %gy
  %gzx = mul i32 %gzy2, %nx
  %group = add i32 %gzx, %gx
  %zy = mul i32 %z, %sy
  %zy2 = add i32 %zy, %y
  %zx = mul i32 %zy2, %sx
  %item = add i32 %zx, %x
  %g24 = mul i32 %group, 24
  %i = add i32 %g24, %item
  %p = getelementptr i32, ptr addrspace(1) %o, i32 %i
  store i32 %i, ptr addrspace(1) %p
  ret void
}
