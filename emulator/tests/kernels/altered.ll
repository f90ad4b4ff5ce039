; What gfx9 can do to vector instructions: registers by index, none at all; scalar stores and atomics.
; One wave. v10 to v13 hold the lane's number times 1 to 4; x[0] counts down.
define amdgpu_kernel void @altered(ptr addrspace(1) %x, ptr addrspace(1) %o) "amdgpu-flat-work-group-size"="64,64" {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %r = call { i32, i32, i32, i32, i32 } asm sideeffect "
    v_mov_b32 v10, $5
    v_lshlrev_b32 v11, 1, $5
    v_add_u32 v12, v11, $5
    v_lshlrev_b32 v13, 2, $5
    s_mov_b32 s20, 2
    s_set_gpr_idx_on s20, gpr_idx(SRC0)
    v_mov_b32 v14, v10
    v_add_u32 v15, v11, v10
    s_set_gpr_idx_idx 1
    v_mov_b32 v16, v10
    s_set_gpr_idx_mode gpr_idx(DST)
    v_mov_b32 v16, v13
    s_set_gpr_idx_off
    s_mov_b32 s21, 4
    s_setvskip s21, 2
    v_mov_b32 v10, 0
    global_store_dword v[10:11], v10, off
    s_setvskip s21, 0
    v_mov_b32 v18, v10
    s_store_dword s20, $6, 0x4
    s_mov_b32 s22, 9
    s_atomic_dec s22, $6, 0x0 glc
    s_waitcnt lgkmcnt(0)
    v_mov_b32 $0, v14
    v_mov_b32 $1, v15
    v_mov_b32 $2, v16
    v_mov_b32 $3, v17
    v_add_u32 $4, s22, v18
    ", "=&v,=&v,=&v,=&v,=&v,v,s,~{v10},~{v11},~{v12},~{v13},~{v14},~{v15},~{v16},~{v17},~{v18},~{s20},~{s21},~{s22},~{memory}"(i32 %t, ptr addrspace(1) %x)
  %a = extractvalue { i32, i32, i32, i32, i32 } %r, 0
  %b = extractvalue { i32, i32, i32, i32, i32 } %r, 1
  %c = extractvalue { i32, i32, i32, i32, i32 } %r, 2
  %d = extractvalue { i32, i32, i32, i32, i32 } %r, 3
  %e = extractvalue { i32, i32, i32, i32, i32 } %r, 4
  %row = mul i32 %t, 5
  %p0 = getelementptr i32, ptr addrspace(1) %o, i32 %row
  %p1 = getelementptr i32, ptr addrspace(1) %p0, i32 1
  %p2 = getelementptr i32, ptr addrspace(1) %p0, i32 2
  %p3 = getelementptr i32, ptr addrspace(1) %p0, i32 3
  %p4 = getelementptr i32, ptr addrspace(1) %p0, i32 4
  store i32 %a, ptr addrspace(1) %p0
  store i32 %b, ptr addrspace(1) %p1
  store i32 %c, ptr addrspace(1) %p2
  store i32 %d, ptr addrspace(1) %p3
  store i32 %e, ptr addrspace(1) %p4
  ret void
}

declare i32 @llvm.amdgcn.workitem.id.x()
