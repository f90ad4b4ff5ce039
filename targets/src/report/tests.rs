use inkwell::OptimizationLevel;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::targets::{CodeModel, FileType, RelocMode, Target, TargetTriple};

use super::*;

use atomc_ir::arch::Isa;

fn chips() -> impl Iterator<Item = &'static atomc_ir::Arch> {
    crate::rows().iter().filter(|a| a.isa() == Some(Isa::Amdgcn))
}

fn chip(name: &str) -> &'static atomc_ir::Arch {
    chips().find(|a| a.name == name).unwrap()
}

/// A linked code object of LLVM IR.
fn object(ir: &str, arch: &atomc_ir::Arch) -> Vec<u8> {
    crate::link::shared(&[relocatable(ir, arch)]).unwrap()
}

fn relocatable(ir: &str, arch: &atomc_ir::Arch) -> Vec<u8> {
    let cx = crate::llvm::context();
    let text = MemoryBuffer::create_from_memory_range_copy(format!("{ir}\0").as_bytes(), "test");
    let module = cx.create_module_from_ir(text).unwrap();
    let triple = TargetTriple::create("amdgcn-amd-amdhsa");
    let target = Target::from_triple(&triple).unwrap();
    let level = OptimizationLevel::Default;
    let machine = target
        .create_target_machine(&triple, arch.cpu, arch.attributes, level, RelocMode::PIC, CodeModel::Default)
        .unwrap();
    module.set_triple(&triple);
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    machine.write_to_memory_buffer(&module, FileType::Object).unwrap().as_slice().to_vec()
}

/// Sums rows of 16 bytes. The next row is loaded before the last one is used.
const STREAM: &str = r#"
declare i32 @llvm.amdgcn.workitem.id.x()
define amdgpu_kernel void @stream(ptr addrspace(1) noalias %in, ptr addrspace(1) noalias %out, i32 %n) #0 {
entry:
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %first.at = getelementptr <4 x float>, ptr addrspace(1) %in, i32 %lane
  %first = load <4 x float>, ptr addrspace(1) %first.at
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %loop ]
  %at = phi ptr addrspace(1) [ %first.at, %entry ], [ %next.at, %loop ]
  %now = phi <4 x float> [ %first, %entry ], [ %next, %loop ]
  %sum = phi <4 x float> [ zeroinitializer, %entry ], [ %sum1, %loop ]
  %next.at = getelementptr i8, ptr addrspace(1) %at, i64 4096
  %next = load <4 x float>, ptr addrspace(1) %next.at
  %sum1 = call <4 x float> @llvm.fma.v4f32(<4 x float> %now, <4 x float> %now, <4 x float> %sum)
  %i1 = add i32 %i, 1
  %more = icmp ult i32 %i1, %n
  br i1 %more, label %loop, label %done
done:
  %to = getelementptr <4 x float>, ptr addrspace(1) %out, i32 %lane
  store <4 x float> %sum1, ptr addrspace(1) %to
  ret void
}
declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)
attributes #0 = { "amdgpu-flat-work-group-size"="256,256" "uniform-work-group-size"="true" }
"#;

/// An outer loop with a barrier around a loop of matrix instructions that read LDS.
const MATRIX: &str = r#"
@tile = internal addrspace(3) global [20480 x i8] poison, align 16
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier()
declare <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(<4 x i16>, <4 x i16>, <4 x float>, i32, i32, i32)
define amdgpu_kernel void @matrix(ptr addrspace(1) noalias %in, ptr addrspace(1) noalias %out, i32 %n, i32 %m) #0 {
entry:
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %lds = getelementptr [16 x i8], ptr addrspace(3) @tile, i32 %lane
  br label %outer
outer:
  %o = phi i32 [ 0, %entry ], [ %o1, %after ]
  %acc0 = phi <4 x float> [ zeroinitializer, %entry ], [ %acc2, %after ]
  %row = mul i32 %o, 256
  %index = add i32 %row, %lane
  %at = getelementptr <4 x i32>, ptr addrspace(1) %in, i32 %index
  %tile = load <4 x i32>, ptr addrspace(1) %at
  store <4 x i32> %tile, ptr addrspace(3) %lds
  call void @llvm.amdgcn.s.barrier()
  br label %inner
inner:
  %i = phi i32 [ 0, %outer ], [ %i1, %inner ]
  %acc1 = phi <4 x float> [ %acc0, %outer ], [ %acc2, %inner ]
  %off = mul i32 %i, 512
  %a.at = getelementptr i8, ptr addrspace(3) %lds, i32 %off
  %b.at = getelementptr i8, ptr addrspace(3) %a.at, i32 8
  %a = load <4 x i16>, ptr addrspace(3) %a.at
  %b = load <4 x i16>, ptr addrspace(3) %b.at
  %acc2 = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(<4 x i16> %a, <4 x i16> %b, <4 x float> %acc1, i32 0, i32 0, i32 0)
  %i1 = add i32 %i, 1
  %more = icmp ult i32 %i1, %m
  br i1 %more, label %inner, label %after
after:
  call void @llvm.amdgcn.s.barrier()
  %o1 = add i32 %o, 1
  %on = icmp ult i32 %o1, %n
  br i1 %on, label %outer, label %done
done:
  %to = getelementptr <4 x float>, ptr addrspace(1) %out, i32 %lane
  store <4 x float> %acc2, ptr addrspace(1) %to
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="256,256" "uniform-work-group-size"="true" }
"#;

#[test]
fn streaming_loops_on_every_chip() {
    for arch in chips() {
        let chip = arch.name;
        let reports = report(&object(STREAM, arch), arch.gpu().unwrap()).unwrap();
        let [KernelResources { symbol, resources: r, .. }] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!((symbol.as_str(), r.lds, r.scratch, r.matrix), ("stream", 0, 0, 0));
        assert_eq!((r.vgpr_spills, r.sgpr_spills), (0, 0));
        assert_eq!(r.occupancy, arch.gpu().unwrap().simt.unit.waves as f32, "{chip}");
        let [l] = &r.loops[..] else { panic!("{chip}: {:?}", r.loops) };
        assert_eq!((l.loads, l.loads_x4, l.lds, l.barriers, l.matrix), (1, 1, 0, 0, 0), "{chip}");
        assert!(l.valu >= 2 && l.salu >= 2 && l.waits >= 1, "{chip}: {l:?}");
        assert!(l.overlap >= 1, "{chip}: {l:?}");
        assert!(r.instructions > l.instructions && r.code_bytes >= 4 * r.instructions, "{chip}: {r:?}");
    }
}

#[test]
fn matrix_loops() {
    for chip in ["gfx90a", "gfx942", "gfx950"] {
        let reports = report(&object(MATRIX, self::chip(chip)), self::chip(chip).gpu().unwrap()).unwrap();
        let r = &reports[0].resources;
        assert_eq!((r.lds, r.matrix, r.loops.len()), (20480, 1, 1), "{chip}");
        let l = r.loops[0];
        assert_eq!((l.matrix, l.loads, l.barriers, l.lds), (1, 0, 0, 1), "{chip}: {l:?}");
        assert_eq!(r.occupancy, if chip == "gfx950" { 8. } else { 3. }, "three groups of four waves on four SIMDs");
    }
}

/// The file agrees with the requests to LLVM.
#[test]
fn code_objects_of_every_chip_are_read() {
    for arch in chips() {
        let chip = arch.name;
        let code = object(STREAM, arch);
        let object = CodeObject::read(&code).unwrap();
        assert_eq!((object.isa.processor.as_str(), object.relocations.len()), (chip, 0));
        let kernel = object.kernel("stream").unwrap();
        let m = &kernel.metadata;
        assert_eq!((m.wavefront_size as usize, m.max_flat_workgroup_size), (arch.gpu().unwrap().simt.wave, 256));
        let sizes: Vec<_> = m.explicit_args().map(|a| (a.offset, a.size)).collect();
        assert_eq!(sizes, [(0, 8), (8, 8), (16, 4)]);
        assert_eq!(kernel.descriptor.kernarg_size, m.kernarg_segment_size);
        assert_eq!(kernel.descriptor.properties.wave32() == 1, arch.gpu().unwrap().simt.wave == 32);
        assert_eq!(kernel.descriptor.properties.kernarg_segment_ptr(), 1);
        assert!(object.segments.iter().any(|s| s.executable && s.file.contains(&kernel.code.file.start)));
    }
}

#[test]
fn occupancy_by_registers_and_by_lds() {
    let unit = &chip("gfx942").gpu().unwrap().simt.unit;
    let cases = [(64, 0, 8.), (65, 0, 7.), (128, 0, 4.), (129, 0, 3.), (256, 0, 2.), (512, 0, 1.), (32, 65536, 1.)];
    for (vgprs, lds, waves) in cases {
        assert_eq!(occupancy(unit, vgprs, lds, 4), waves, "{vgprs} {lds}");
    }
    assert_eq!(occupancy(unit, 40, 40960, 2), 0.5);
    let unit = &chip("gfx1100").gpu().unwrap().simt.unit;
    for (vgprs, waves) in [(96, 16.), (97, 12.), (168, 9.), (256, 5.)] {
        assert_eq!(occupancy(unit, vgprs, 0, 4), waves, "{vgprs}");
    }
}

#[test]
fn classes() {
    use Class::*;
    let cases = [
        ("v_mfma_f32_16x16x16_bf16 a[0:3], v[2:3], v[4:5], a[0:3]", Matrix),
        ("v_wmma_f32_16x16x16_bf16 v[16:23], v[0:7], v[8:15], v[16:23]", Matrix),
        ("v_dual_mul_f32 v0, v1, v2 :: v_dual_add_f32 v3, v4, v5", Vector),
        ("s_waitcnt vmcnt(3) lgkmcnt(0)", Wait { loads: Some(3) }),
        ("s_waitcnt lgkmcnt(0)", Wait { loads: None }),
        ("s_wait_loadcnt 0x2", Wait { loads: Some(2) }),
        ("s_wait_loadcnt_dscnt 0x301", Wait { loads: Some(3) }),
        ("s_wait_dscnt 0x0", Wait { loads: None }),
        ("s_waitcnt_depctr 0xfffe", Other),
        ("global_load_dwordx4 v[0:3], v4, s[0:1]", Load { bytes: 16 }),
        ("buffer_load_dwordx4 v0, s[0:3], 0 offen lds", Load { bytes: 16 }),
        ("global_load_lds_dwordx4 v[0:1], off", Load { bytes: 16 }),
        ("global_load_b128 v[0:3], v4, s[0:1]", Load { bytes: 16 }),
        ("global_load_d16_hi_b16 v0, v4, s[0:1]", Load { bytes: 2 }),
        ("global_store_dwordx4 v4, v[0:3], s[0:1]", Store { counted: true }),
        ("global_store_b128 v4, v[0:3], s[0:1]", Store { counted: false }),
        ("scratch_load_dword v0, off, off", Other),
        ("ds_read_b128 v[0:3], v4", Lds),
        ("s_barrier", Barrier),
        ("s_barrier_signal -1", Scalar),
        ("s_barrier_wait 0xffff", Barrier),
        ("s_load_dwordx4 s[0:3], s[4:5], 0x0", Scalar),
        ("s_nop 1", Other),
    ];
    for (text, class) in cases {
        assert_eq!(Class::of(text), class, "{text}");
    }
}

#[test]
fn overlap_counts_around_the_back_edge() {
    use Class::*;
    let (load, all) = (Load { bytes: 16 }, Wait { loads: Some(0) });
    assert_eq!(loops::overlap(&[load, all, Matrix, Matrix]), 0);
    assert_eq!(loops::overlap(&[all, Lds, load, Matrix, Vector]), 2);
    assert_eq!(loops::overlap(&[load, Wait { loads: Some(1) }, Matrix, Matrix, Vector]), 3);
    assert_eq!(loops::overlap(&[load, load, Matrix, all]), 1);
    assert_eq!(loops::overlap(&[Matrix]), 0);
}

#[test]
fn objects_of_many_kernels_have_one_note() {
    let arch = chip("gfx942");
    let part = |name: &str| relocatable(&STREAM.replace("@stream", name), arch);
    let parts = ["@a", "@b", "@c"].map(part).to_vec();
    let alone = crate::link::shared(&parts).unwrap();
    assert!(CodeObject::read(&alone).is_err_and(|e| matches!(e, atomc_artifact::hsaco::Error::ManyNotes)));
    let code = crate::link::shared(&crate::metadata::merge(parts, arch).unwrap()).unwrap();
    let names: Vec<String> = CodeObject::read(&code).unwrap().kernels.into_iter().map(|k| k.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn work_of_matrix_instructions() {
    use super::class::multiply_adds;
    assert_eq!(multiply_adds("v_mfma_f32_32x32x8bf16_1k v[0:15], v[28:29], v[26:27], 0"), 8192);
    assert_eq!(multiply_adds("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3]"), 32768);
    assert_eq!(multiply_adds("v_wmma_f32_16x16x16_bf16 v[0:7], v[8:11], v[12:15], v[0:7]"), 4096);
    assert_eq!(multiply_adds("v_pk_mul_f32 v[0:1], v[2:3], v[4:5]"), 0);
}
