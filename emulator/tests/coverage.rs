//! Vector instructions that LLVM knows on a processor and this interpreter does not: every opcode
//! of every vector encoding is disassembled, and those that cannot be resolved must be in the list
//! below.
#![allow(clippy::unwrap_used, reason = "what tests call may unwrap as they do")]
use std::collections::BTreeSet;

use atomc_emulator::decode::{disasm::Disassembler, parse};
use atomc_emulator::isa::Isa;
use atomc_emulator::vector;

/// Without an interpretation: sparse products, conversions of 32 numbers at a time, cube maps,
/// video, registers by index.
const MISSING: &[&str] = &[
    "v_smfmac_",
    "v_swmmac_",
    "v_cvt_scalef32_pk32_",
    "v_cvt_scalef32_2xpk16_",
    "v_cvt_scalef32_sr_",
    "v_cvt_scalef32_f16_",
    "v_cubema_f32",
    "v_cubesc_f32",
    "v_cubetc_f32",
    "v_cvt_pkaccum_u8_f32",
    "v_mqsad_",
    "v_qsad_",
    "v_screen_partition_4se_b32",
    "v_movrel",
    "v_mullit_f32",
    "v_swaprel_b32",
    "v_interp_",
];

/// Encodings with each opcode once; the operands are registers that suit most of them.
fn words(isa: &Isa) -> Vec<[u32; 2]> {
    let cdna = isa.family.is_cdna();
    let (vop3, vop3p) = if cdna { (0xd000_0000, 0xd380_0000) } else { (0xd400_0000, 0xcc00_0000u32) };
    let vector = |n: u32| 0x100 + n;
    let mut words = Vec::new();
    words.extend((0..256).map(|op| [0x7e00_0000 | 2 << 17 | op << 9 | vector(2), 0]));
    words.extend((0..64).map(|op| [op << 25 | 4 << 17 | 4 << 9 | vector(4), 0]));
    words.extend((0..256).map(|op| [0x7c00_0000 | op << 17 | 4 << 9 | vector(4), 0]));
    for op in 0..1024 {
        for sdst in [0, 2 << 8] {
            words.push([vop3 | op << 16 | 4 | sdst, vector(4) | vector(6) << 9 | vector(8) << 18]);
        }
    }
    for op in 0..128 {
        for size in [8, 16, 32] {
            words.push([vop3p | op << 16 | 0x40, vector(size) | vector(2 * size) << 9 | vector(64) << 18]);
            words.push([vop3p | op << 16 | 0x40, vector(size) | vector(2 * size) << 9 | vector(64) << 18 | 3 << 27]);
        }
    }
    words
}

#[test]
fn what_has_no_interpretation_is_listed() {
    for isa in Isa::names().filter_map(Isa::find) {
        let disassembler = Disassembler::new(isa).unwrap();
        let (mut known, mut missing) = (BTreeSet::new(), BTreeSet::new());
        for words in words(isa) {
            let bytes: Vec<u8> = words.iter().chain(&[0, 0]).flat_map(|w| w.to_le_bytes()).collect();
            let Some((text, _)) = disassembler.next(&bytes, 0) else { continue };
            if !text.starts_with("v_") || text.contains("/*") {
                continue;
            }
            let mut inst = parse::instructions(&text, 0).unwrap_or_else(|e| panic!("{text}: {e:?}")).remove(0);
            let resolved = vector::resolve(&mut inst, isa).is_some();
            if resolved {
                known.insert(inst.mnemonic)
            } else {
                missing.insert(inst.mnemonic)
            };
        }
        let listed = |name: &str| MISSING.iter().any(|m| name.starts_with(m));
        let unlisted: Vec<_> = missing.difference(&known).filter(|name| !listed(name)).collect();
        assert!(unlisted.is_empty(), "{}: {unlisted:?}", isa.name);
        assert!(known.len() > 400, "{}: only {} are known", isa.name, known.len());
    }
}
