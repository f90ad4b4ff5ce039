; One work-group a row of 4096 f32: y = x * rsqrt(mean(x * x) + 1e-6) * w, 256 work-items, four elements at a time.
@sums = internal addrspace(3) global [256 x float] poison, align 16

define amdgpu_kernel void @rows(ptr addrspace(1) %x, ptr addrspace(1) %w, ptr addrspace(1) %y) "amdgpu-flat-work-group-size"="256,256" {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %row = mul i32 %g, 4096
  %t4 = mul i32 %t, 4
  br label %square
square:
  %k = phi i32 [ 0, %entry ], [ %k2, %square ]
  %s = phi float [ 0.0, %entry ], [ %s4, %square ]
  %c = add i32 %k, %t4
  %i = add i32 %c, %row
  %i64 = zext i32 %i to i64
  %p = getelementptr float, ptr addrspace(1) %x, i64 %i64
  %v = load <4 x float>, ptr addrspace(1) %p, align 16
  %v0 = extractelement <4 x float> %v, i32 0
  %v1 = extractelement <4 x float> %v, i32 1
  %v2 = extractelement <4 x float> %v, i32 2
  %v3 = extractelement <4 x float> %v, i32 3
  %s1 = call float @llvm.fma.f32(float %v0, float %v0, float %s)
  %s2 = call float @llvm.fma.f32(float %v1, float %v1, float %s1)
  %s3 = call float @llvm.fma.f32(float %v2, float %v2, float %s2)
  %s4 = call float @llvm.fma.f32(float %v3, float %v3, float %s3)
  %k2 = add i32 %k, 1024
  %more = icmp ult i32 %k2, 4096
  br i1 %more, label %square, label %share
share:
  %pl = getelementptr float, ptr addrspace(3) @sums, i32 %t
  store float %s4, ptr addrspace(3) %pl
  br label %tree
tree:
  %d = phi i32 [ 128, %share ], [ %d2, %joined ]
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %in = icmp ult i32 %t, %d
  br i1 %in, label %add, label %joined
add:
  %o = add i32 %t, %d
  %po = getelementptr float, ptr addrspace(3) @sums, i32 %o
  %a = load float, ptr addrspace(3) %pl
  %b = load float, ptr addrspace(3) %po
  %ab = fadd float %a, %b
  store float %ab, ptr addrspace(3) %pl
  br label %joined
joined:
  %d2 = lshr i32 %d, 1
  %again = icmp ugt i32 %d2, 0
  br i1 %again, label %tree, label %scale
scale:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %total = load float, ptr addrspace(3) @sums
  %mean = fmul float %total, 0x3F30000000000000
  %e = fadd float %mean, 0x3EB0C6F7A0000000
  %r = call float @llvm.amdgcn.rsq.f32(float %e)
  %rv = insertelement <4 x float> poison, float %r, i32 0
  %rs = shufflevector <4 x float> %rv, <4 x float> poison, <4 x i32> zeroinitializer
  br label %write
write:
  %j = phi i32 [ 0, %scale ], [ %j2, %write ]
  %jc = add i32 %j, %t4
  %ji = add i32 %jc, %row
  %ji64 = zext i32 %ji to i64
  %jc64 = zext i32 %jc to i64
  %px = getelementptr float, ptr addrspace(1) %x, i64 %ji64
  %pw = getelementptr float, ptr addrspace(1) %w, i64 %jc64
  %py = getelementptr float, ptr addrspace(1) %y, i64 %ji64
  %xv = load <4 x float>, ptr addrspace(1) %px, align 16
  %wv = load <4 x float>, ptr addrspace(1) %pw, align 16
  %xr = fmul <4 x float> %xv, %rs
  %xw = fmul <4 x float> %xr, %wv
  store <4 x float> %xw, ptr addrspace(1) %py, align 16
  %j2 = add i32 %j, 1024
  %rest = icmp ult i32 %j2, 4096
  br i1 %rest, label %write, label %end
end:
  ret void
}
declare float @llvm.fma.f32(float, float, float)
declare float @llvm.amdgcn.rsq.f32(float)
