; 32 x 32 f32 through LDS; 256 work-items, four elements each; a row of the tile has 33 words.
@tile = internal addrspace(3) global [1056 x float] poison, align 16

define amdgpu_kernel void @transpose(ptr addrspace(1) %x, ptr addrspace(1) %o) "amdgpu-flat-work-group-size"="256,256" {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  br label %in
in:
  %k = phi i32 [ 0, %entry ], [ %k2, %in ]
  %i = add i32 %t, %k
  %r = lshr i32 %i, 5
  %c = and i32 %i, 31
  %px = getelementptr float, ptr addrspace(1) %x, i32 %i
  %v = load float, ptr addrspace(1) %px
  %r33 = mul i32 %r, 33
  %at = add i32 %r33, %c
  %pl = getelementptr float, ptr addrspace(3) @tile, i32 %at
  store float %v, ptr addrspace(3) %pl
  %k2 = add i32 %k, 256
  %more = icmp ult i32 %k2, 1024
  br i1 %more, label %in, label %turn
turn:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  br label %out
out:
  %j = phi i32 [ 0, %turn ], [ %j2, %out ]
  %e = add i32 %t, %j
  %er = lshr i32 %e, 5
  %ec = and i32 %e, 31
  %c33 = mul i32 %ec, 33
  %from = add i32 %c33, %er
  %pf = getelementptr float, ptr addrspace(3) @tile, i32 %from
  %w = load float, ptr addrspace(3) %pf
  %po = getelementptr float, ptr addrspace(1) %o, i32 %e
  store float %w, ptr addrspace(1) %po
  %j2 = add i32 %j, 256
  %rest = icmp ult i32 %j2, 1024
  br i1 %rest, label %out, label %end
end:
  ret void
}
