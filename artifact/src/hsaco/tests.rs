//! Files built by hand, whole and damaged. Files of a real linker are read by the tests of
//! `targets`.
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const NOTE: usize = 0x100;
const TEXT: usize = 0x800;
const CODE_BYTES: u64 = 8;

struct Fixture {
    metadata: Value,
    abi_version: u8,
    descriptor_to_code: i64,
}

impl Default for Fixture {
    fn default() -> Self {
        let arg =
            |offset, kind| json!({ ".offset": offset, ".size": 8, ".value_kind": kind, ".address_space": "global" });
        let kernel = json!({
            ".name": "k", ".symbol": "k.kd", ".kernarg_segment_size": 272, ".kernarg_segment_align": 8,
            ".args": [arg(0, "global_buffer"), arg(8, "hidden_block_count_x"), arg(16, "hidden_from_the_future")],
            ".group_segment_fixed_size": 1024, ".private_segment_fixed_size": 16, ".wavefront_size": 64,
            ".max_flat_workgroup_size": 256, ".sgpr_count": 30, ".vgpr_count": 100, ".agpr_count": 4,
            ".sgpr_spill_count": 1, ".vgpr_spill_count": 2, ".uses_dynamic_stack": false,
        });
        let target = "amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-";
        let metadata = json!({ "amdhsa.version": [1, 2], "amdhsa.target": target, "amdhsa.kernels": [kernel] });
        Fixture { metadata, abi_version: 3, descriptor_to_code: 64 }
    }
}

impl Fixture {
    /// One segment that is the whole file, with the descriptor and then the code at its end.
    fn build(&self) -> Vec<u8> {
        let mut file = vec![0; TEXT];
        let note = rmp_serde::to_vec(&self.metadata).unwrap();
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01\x40");
        put(8, &[self.abi_version]);
        put(16, &[3, 0, 224, 0, 1, 0, 0, 0]);
        put(32, &64u64.to_le_bytes());
        put(40, &0x700u64.to_le_bytes());
        put(48, &0x4cu32.to_le_bytes());
        put(52, &half_words(&[64, 56, 2, 64, 3, 2]));
        let end = TEXT as u64 + 64 + CODE_BYTES;
        let note_bytes = 20 + note.len().next_multiple_of(4) as u64;
        put(64, &words(&[1 | 5 << 32, 0, 0x10000, 0, end, end + 32, 4096]));
        put(120, &words(&[4 | 4 << 32, NOTE as u64, NOTE as u64, 0, note_bytes, note_bytes, 4]));
        put(NOTE, &[7, 0, 0, 0]);
        put(NOTE + 4, &(note.len() as u32).to_le_bytes());
        put(NOTE + 8, &NT_AMDGPU_METADATA.to_le_bytes());
        put(NOTE + 12, b"AMDGPU\0\0");
        put(NOTE + 20, &note);
        put(0x600, b"\0k\0k.kd\0");
        let text = 0x10000 + TEXT as u64;
        put(0x640 + 24, &words(&[1 | 0x12 << 32 | 1 << 48, text + 64, CODE_BYTES]));
        put(0x640 + 48, &words(&[3 | 0x11 << 32 | 1 << 48, text, 64]));
        put(0x700 + 64, &words(&[11 << 32, 2, 0, 0x640, 72, 2 | 1 << 32, 8, 24]));
        put(0x700 + 128, &words(&[3 << 32, 2, 0, 0x600, 8, 0, 1, 0]));
        file.extend([1024u32, 16, 272, 0].iter().flat_map(|w| w.to_le_bytes()));
        file.extend(self.descriptor_to_code.to_le_bytes());
        file.extend([0; 20]);
        file.extend([24u32, 0x00af_0000 | 12, 0x8d].iter().flat_map(|w| w.to_le_bytes()));
        file.extend(half_words(&[8, 2 | 1 << 7, 0, 0]));
        file.extend([0xbf81_0000u32, 0xbf80_0000].iter().flat_map(|w| w.to_le_bytes()));
        file
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn half_words(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[test]
fn everything_is_read() {
    let file = Fixture::default().build();
    let object = CodeObject::read(&file).unwrap();
    assert_eq!((object.version, object.flags, object.isa.to_string().as_str()), (5, 0x4c, "gfx942:sramecc+:xnack-"));
    assert_eq!(object.segments.len(), 1);
    assert_eq!(object.segments[0].size, file.len() as u64 + 32);
    assert!(object.segments[0].executable && !object.segments[0].writable);
    let k = object.kernel("k").unwrap();
    assert_eq!((k.descriptor_address, k.code.address), (0x10800, 0x10840));
    assert_eq!(k.code.file, TEXT + 64..file.len());
    let d = k.descriptor;
    assert_eq!((d.group_segment_fixed_size, d.private_segment_fixed_size, d.kernarg_size), (1024, 16, 272));
    assert_eq!((d.compute_pgm_rsrc1.granulated_vgprs(), d.accum_offset(), d.tg_split()), (12, 100, false));
    assert_eq!((d.compute_pgm_rsrc1.denorm_mode_32(), d.compute_pgm_rsrc1.denorm_mode_16_64()), (3, 3));
    assert_eq!((d.compute_pgm_rsrc1.dx10_clamp(), d.compute_pgm_rsrc1.ieee_mode()), (1, 1));
    assert_eq!((d.compute_pgm_rsrc2.private_segment(), d.compute_pgm_rsrc2.user_sgprs()), (1, 6));
    assert_eq!(d.compute_pgm_rsrc2.workgroup_id_x(), 1);
    assert_eq!((d.properties.kernarg_segment_ptr(), d.properties.wave32()), (1, 0));
    assert_eq!(d.preload, Preload { length: 2, offset: 1 });
    let m = &k.metadata;
    assert_eq!((m.vgpr_count, m.agpr_count, m.sgpr_count), (100, 4, 30));
    assert_eq!((m.vgpr_spill_count, m.sgpr_spill_count, m.max_flat_workgroup_size), (2, 1, 256));
    let kinds: Vec<_> = m.args.iter().map(|a| a.value_kind).collect();
    assert_eq!(kinds, [ValueKind::GlobalBuffer, ValueKind::HiddenBlockCountX, ValueKind::Unknown]);
    assert_eq!(m.explicit_args().count(), 1);
}

#[test]
fn hand_written_files_are_read() {
    let mut fixture = Fixture::default();
    fixture.metadata.as_object_mut().unwrap().remove("amdhsa.target");
    let mut file = fixture.build();
    // The function's symbol has no size: it ends where its section does, here the second one.
    let mut put = |at: usize, word: u64| file[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(0x640 + 24, 1 | 0x12 << 32 | 2 << 48);
    put(0x640 + 24 + 16, 0);
    put(0x700 + 128 + 16, 0x10840 + CODE_BYTES - 8);
    let object = CodeObject::read(&file).unwrap();
    assert_eq!(object.isa.to_string(), "gfx942");
    assert_eq!(object.kernel("k").unwrap().code.file, TEXT + 64..file.len());
    assert_eq!(Isa::of_flags(0x54f).unwrap().to_string(), "gfx950");
    assert_eq!(Isa::of_flags(0xe4c).unwrap().to_string(), "gfx942:sramecc+:xnack-");
}

#[test]
fn faults_are_named() {
    let message = |f: Fixture| CodeObject::read(&f.build()).unwrap_err().to_string();
    let version = Fixture { abi_version: 9, ..Fixture::default() };
    assert!(message(version).contains("version 9 is unknown"));
    let entry = Fixture { descriptor_to_code: 68, ..Fixture::default() };
    assert_eq!(message(entry), "kernel `k`: its descriptor enters at 0x10844, its symbol is at 0x10840");
    let mut symbol = Fixture::default();
    symbol.metadata["amdhsa.kernels"][0][".symbol"] = json!("other.kd");
    assert_eq!(message(symbol), "kernel `k`: there is no symbol `other.kd`");
    let mut field = Fixture::default();
    field.metadata["amdhsa.kernels"][0][".vgpr_count"] = json!("many");
    assert!(message(field).starts_with("the code object's metadata is damaged"));
    assert!(CodeObject::read(b"\x7fELF").unwrap_err().to_string().starts_with("not a 64-bit ELF file"));
    let object = CodeObject::read(&Fixture::default().build()).unwrap();
    assert_eq!(object.kernel("q").unwrap_err().to_string(), "no kernel `q`; the code object has: k");
}

#[test]
fn target_ids() {
    let device = Isa::parse("gfx942:sramecc+:xnack-").unwrap();
    assert!(Isa::parse("amdgcn-amd-amdhsa--gfx942").unwrap().runs_on(&device));
    assert!(Isa::parse("amdgcn-amd-amdhsa--gfx942:xnack-").unwrap().runs_on(&device));
    assert!(Isa::parse("amdgpu9.42-amd-amdhsa-unknown-gfx942").unwrap().runs_on(&device));
    assert_eq!(Isa::parse("amdgcn-amd-amdhsa--gfx9-4-generic").unwrap().processor, "gfx9-4-generic");
    assert!(!Isa::parse("gfx942:xnack+").unwrap().runs_on(&device));
    assert!(!Isa::parse("gfx950").unwrap().runs_on(&device));
    for bad in ["", "sm_90", "gfx942:", "gfx942:+", "gfx942:xnack"] {
        assert!(Isa::parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn damage_never_panics(
        changes in prop::collection::vec((0usize..0x848, any::<u8>()), 1..8),
        cut in prop::option::of(0usize..0x848),
    ) {
        let mut file = Fixture::default().build();
        for (at, value) in changes {
            file[at] = value;
        }
        file.truncate(cut.unwrap_or(file.len()));
        if let Ok(object) = CodeObject::read(&file) {
            prop_assert!(object.segments.iter().all(|s| s.file.end <= file.len()));
            prop_assert!(object.kernels.iter().all(|k| k.code.file.end <= file.len()));
        }
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut file = Fixture::default().build();
        file[NOTE + 20..NOTE + 20 + bytes.len()].copy_from_slice(&bytes);
        let _ = CodeObject::read(&file);
        let _ = CodeObject::read(&bytes);
    }
}
