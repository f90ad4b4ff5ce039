; A wave makes 32 x 32 of c = a * b^T with depth 1024 (bf16 in, f32 out), four 16x16x16 matrix instructions a step.
define amdgpu_kernel void @matrix(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %c) "amdgpu-flat-work-group-size"="256,256" {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %lane = and i32 %t, 63
  %wave = lshr i32 %t, 6
  %r = and i32 %lane, 15
  %q = lshr i32 %lane, 4
  %wr = mul i32 %wave, 32
  %ra = add i32 %wr, %r
  %gr = mul i32 %g, 32
  %rb = add i32 %gr, %r
  %q4 = mul i32 %q, 4
  %ra_ = mul i32 %ra, 1024
  %rb_ = mul i32 %rb, 1024
  %ia = add i32 %ra_, %q4
  %ib = add i32 %rb_, %q4
  br label %loop
loop:
  %k = phi i32 [ 0, %entry ], [ %k2, %loop ]
  %c00 = phi <4 x float> [ zeroinitializer, %entry ], [ %d00, %loop ]
  %c01 = phi <4 x float> [ zeroinitializer, %entry ], [ %d01, %loop ]
  %c10 = phi <4 x float> [ zeroinitializer, %entry ], [ %d10, %loop ]
  %c11 = phi <4 x float> [ zeroinitializer, %entry ], [ %d11, %loop ]
  %ka = add i32 %ia, %k
  %kb = add i32 %ib, %k
  %pa0 = getelementptr bfloat, ptr addrspace(1) %a, i32 %ka
  %pb0 = getelementptr bfloat, ptr addrspace(1) %b, i32 %kb
  %pa1 = getelementptr bfloat, ptr addrspace(1) %pa0, i32 16384
  %pb1 = getelementptr bfloat, ptr addrspace(1) %pb0, i32 16384
  %a0 = load <4 x i16>, ptr addrspace(1) %pa0, align 8
  %a1 = load <4 x i16>, ptr addrspace(1) %pa1, align 8
  %b0 = load <4 x i16>, ptr addrspace(1) %pb0, align 8
  %b1 = load <4 x i16>, ptr addrspace(1) %pb1, align 8
  %d00 = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(<4 x i16> %a0, <4 x i16> %b0, <4 x float> %c00, i32 0, i32 0, i32 0)
  %d01 = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(<4 x i16> %a0, <4 x i16> %b1, <4 x float> %c01, i32 0, i32 0, i32 0)
  %d10 = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(<4 x i16> %a1, <4 x i16> %b0, <4 x float> %c10, i32 0, i32 0, i32 0)
  %d11 = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(<4 x i16> %a1, <4 x i16> %b1, <4 x float> %c11, i32 0, i32 0, i32 0)
  %k2 = add i32 %k, 16
  %more = icmp ult i32 %k2, 1024
  br i1 %more, label %loop, label %done
done:
  %sum0 = fadd <4 x float> %d00, %d01
  %sum1 = fadd <4 x float> %d10, %d11
  %sum = fadd <4 x float> %sum0, %sum1
  %g256 = mul i32 %g, 256
  %o = add i32 %g256, %t
  %o4 = mul i32 %o, 4
  %po = getelementptr float, ptr addrspace(1) %c, i32 %o4
  store <4 x float> %sum, ptr addrspace(1) %po, align 16
  ret void
}
declare <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(<4 x i16>, <4 x i16>, <4 x float>, i32, i32, i32)
