; The rest of the memory units: pushes between lanes, scalar buffers, LDS in 12 and 16 bytes and at unaligned places, LDS atomics
; that give back, flat atomics, halves of registers.
@room = internal addrspace(3) global [64 x [4 x i32]] poison, align 16
@bytes = internal addrspace(3) global [260 x i8] poison, align 16
@cell = internal addrspace(3) global [2 x i32] poison, align 16

define amdgpu_kernel void @units(ptr addrspace(1) %x, ptr addrspace(1) %h, ptr addrspace(1) %o, <4 x i32> %resource, ptr addrspace(1) %count) "amdgpu-flat-work-group-size"="64,64" {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %px = getelementptr i32, ptr addrspace(1) %x, i32 %t
  %v = load i32, ptr addrspace(1) %px
  %next = add i32 %t, 1
  %to = shl i32 %next, 2
  %pushed = call i32 @llvm.amdgcn.ds.permute(i32 %to, i32 %v)

  %inside = call i32 @llvm.amdgcn.s.buffer.load.i32(<4 x i32> %resource, i32 8, i32 0)
  %outside = call i32 @llvm.amdgcn.s.buffer.load.i32(<4 x i32> %resource, i32 64, i32 0)

  %pr = getelementptr [4 x i32], ptr addrspace(3) @room, i32 %t
  %v1 = add i32 %v, 1
  %v2 = add i32 %v, 2
  %t0 = insertelement <3 x i32> poison, i32 %v, i32 0
  %t1 = insertelement <3 x i32> %t0, i32 %v1, i32 1
  %t2 = insertelement <3 x i32> %t1, i32 %v2, i32 2
  store <3 x i32> %t2, ptr addrspace(3) %pr, align 16
  %pr3 = getelementptr i32, ptr addrspace(3) %pr, i32 3
  store i32 7, ptr addrspace(3) %pr3, align 4
  %quad = load volatile <4 x i32>, ptr addrspace(3) %pr, align 16
  %triple = load volatile <3 x i32>, ptr addrspace(3) %pr, align 16
  %q2 = extractelement <4 x i32> %quad, i32 2
  %q3 = extractelement <4 x i32> %quad, i32 3
  %r1 = extractelement <3 x i32> %triple, i32 1
  %q = add i32 %q2, %q3
  %qr = add i32 %q, %r1

  %b4 = shl i32 %t, 2
  %b5 = add i32 %b4, 1
  %pb = getelementptr i8, ptr addrspace(3) @bytes, i32 %b5
  store i32 %v, ptr addrspace(3) %pb, align 1
  %odd = load volatile i32, ptr addrspace(3) %pb, align 1

  store i32 0, ptr addrspace(3) @cell
  %ticket = atomicrmw add ptr addrspace(3) @cell, i32 1 syncscope("workgroup") monotonic
  %float = uitofp i32 %t to float
  %pf = getelementptr i32, ptr addrspace(3) @cell, i32 1
  store float 0.0, ptr addrspace(3) %pf
  %fold = atomicrmw fadd ptr addrspace(3) %pf, float %float syncscope("workgroup") monotonic
  %fsum = load volatile float, ptr addrspace(3) %pf
  %sum = fptoui float %fsum to i32

  %flat = addrspacecast ptr addrspace(1) %count to ptr
  %was = atomicrmw umax ptr %flat, i32 %v syncscope("agent") monotonic, !amdgpu.no.fine.grained.memory !0, !noalias.addrspace !1

  %ph = getelementptr half, ptr addrspace(1) %h, i32 %t
  %h0 = load half, ptr addrspace(1) %ph
  %ph1 = getelementptr half, ptr addrspace(1) %ph, i32 64
  %h1 = load half, ptr addrspace(1) %ph1
  %hs = fadd half %h0, %h1
  %hp0 = insertelement <2 x half> poison, half %hs, i32 0
  %hp = insertelement <2 x half> %hp0, half %h1, i32 1
  %hb = bitcast <2 x half> %hp to i32

  %i = mul i32 %t, 8
  %p0 = getelementptr i32, ptr addrspace(1) %o, i32 %i
  %p1 = getelementptr i32, ptr addrspace(1) %p0, i32 1
  %p2 = getelementptr i32, ptr addrspace(1) %p0, i32 2
  %p3 = getelementptr i32, ptr addrspace(1) %p0, i32 3
  %p4 = getelementptr i32, ptr addrspace(1) %p0, i32 4
  %p5 = getelementptr i32, ptr addrspace(1) %p0, i32 5
  %p6 = getelementptr i32, ptr addrspace(1) %p0, i32 6
  %p7 = getelementptr i32, ptr addrspace(1) %p0, i32 7
  store i32 %pushed, ptr addrspace(1) %p0
  store i32 %inside, ptr addrspace(1) %p1
  store i32 %outside, ptr addrspace(1) %p2
  store i32 %qr, ptr addrspace(1) %p3
  store i32 %odd, ptr addrspace(1) %p4
  store i32 %ticket, ptr addrspace(1) %p5
  store i32 %sum, ptr addrspace(1) %p6
  store i32 %hb, ptr addrspace(1) %p7
  ret void
}
!0 = !{}
!1 = !{i32 5, i32 6}
