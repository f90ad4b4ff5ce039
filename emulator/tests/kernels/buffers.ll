; Buffer resources: what lies outside reads as zero and is not written.
define amdgpu_kernel void @buffers(ptr addrspace(1) %x, ptr addrspace(1) %o, i32 %flags) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %rx = call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1) %x, i16 0, i64 100, i32 %flags)
  %ro = call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1) %o, i16 0, i64 160, i32 %flags)
  %at = shl i32 %t, 3
  %v = call <2 x i32> @llvm.amdgcn.raw.ptr.buffer.load.v2i32(ptr addrspace(8) %rx, i32 %at, i32 0, i32 0)
  %w = add <2 x i32> %v, <i32 1, i32 1>
  call void @llvm.amdgcn.raw.ptr.buffer.store.v2i32(<2 x i32> %w, ptr addrspace(8) %ro, i32 %at, i32 0, i32 0)
  ret void
}
