; Steps of the Collatz iteration: every lane leaves the loop at another time, with a branch inside.
define amdgpu_kernel void @collatz(ptr addrspace(1) %o, i32 %n) {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %g64 = mul i32 %g, 64
  %i = add i32 %g64, %t
  %in = icmp ult i32 %i, %n
  br i1 %in, label %start, label %end
start:
  %v0 = add i32 %i, 1
  br label %loop
loop:
  %v = phi i32 [ %v0, %start ], [ %v2, %next ]
  %s = phi i32 [ 0, %start ], [ %s2, %next ]
  %one = icmp eq i32 %v, 1
  br i1 %one, label %store, label %step
step:
  %odd = trunc i32 %v to i1
  br i1 %odd, label %up, label %down
up:
  %v3 = mul i32 %v, 3
  %v31 = add i32 %v3, 1
  br label %next
down:
  %vh = lshr i32 %v, 1
  br label %next
next:
  %v2 = phi i32 [ %v31, %up ], [ %vh, %down ]
  %s2 = add i32 %s, 1
  br label %loop
store:
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %i
  store i32 %s, ptr addrspace(1) %po
  br label %end
end:
  ret void
}
