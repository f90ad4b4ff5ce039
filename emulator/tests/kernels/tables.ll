; Constants beside the code: one reached from the program counter, one through a table of addresses that the loader fills in.
@near = internal addrspace(4) constant [4 x i32] [i32 3, i32 1, i32 4, i32 1]
@far = addrspace(4) constant [4 x i32] [i32 2, i32 7, i32 1, i32 8]
@where = addrspace(1) constant ptr addrspace(4) @far

define amdgpu_kernel void @tables(ptr addrspace(1) %o, i32 %k) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %i = and i32 %t, 3
  %pn = getelementptr i32, ptr addrspace(4) @near, i32 %i
  %n = load i32, ptr addrspace(4) %pn
  %pf = getelementptr i32, ptr addrspace(4) @far, i32 %k
  %f = load i32, ptr addrspace(4) %pf
  %pw = load volatile ptr addrspace(4), ptr addrspace(1) @where
  %pi = getelementptr i32, ptr addrspace(4) %pw, i32 %i
  %w = load i32, ptr addrspace(4) %pi
  %n100 = mul i32 %n, 100
  %f10 = mul i32 %f, 10
  %s1 = add i32 %n100, %f10
  %s = add i32 %s1, %w
  %po = getelementptr i32, ptr addrspace(1) %o, i32 %t
  store i32 %s, ptr addrspace(1) %po
  ret void
}
