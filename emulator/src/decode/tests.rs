//! Texts as LLVM prints them, and their parsed form.
use super::fatal::{self, Words};
use super::parse::{Unclear, instructions};
use super::{DecodeError, Disassembler, Isa, Kernel};
use crate::exec::step::Registers;
use crate::inst::{
    Dpp, DppControl, Half, Inst, Modifiers, NO_SOURCE, Omod, Operand, Sdwa, Select, Source, Unused, scalar,
};

fn one(text: &str) -> Inst {
    let mut all = instructions(text, 0).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn operands(text: &str) -> Vec<Operand> {
    one(text).operands().iter().map(|s| s.operand).collect()
}

fn vector(row: u16, count: u8) -> Operand {
    Operand::Vector { row, count, half: Half::Whole }
}

fn scalars(index: u8, count: u8) -> Operand {
    Operand::Scalar { index, count }
}

#[test]
fn registers_and_constants() {
    assert_eq!(
        operands("v_mfma_f32_16x16x16_f16 a[0:3], v[2:3], v[4:5], 1.0"),
        [vector(256, 4), vector(2, 2), vector(4, 2), Operand::Float(1.0)]
    );
    assert_eq!(
        operands("s_and_b64 vcc, exec, s[10:11]"),
        [scalars(scalar::VCC, 2), scalars(scalar::EXEC, 2), scalars(10, 2)]
    );
    assert_eq!(
        operands("v_lshl_or_b32 v0, ttmp9, -16, 0xff00"),
        [vector(0, 1), scalars(scalar::TTMP + 9, 1), Operand::Int(-16), Operand::Literal(0xff00)]
    );
    assert_eq!(operands("scratch_load_b32 v1, off, off offset:4"), [vector(1, 1), Operand::Off, Operand::Off]);
    assert_eq!(operands("s_addc_u32 s3, s3, lit(0x0)")[2], Operand::Literal(0));
    let halves = operands("v_add_f16_e32 v0.l, v255.h, v1.l");
    assert_eq!(halves[1], Operand::Vector { row: 255, count: 1, half: Half::High });
}

/// What one half of a register held before matters for no result in the other half.
#[test]
fn halves_are_no_sources() {
    let reads = |text: &str| Registers::of(&one(text), 1, 1).reads.to_vec();
    assert_eq!(reads("v_fma_mixhi_f16 v0, v1, v2, v3 op_sel_hi:[0,0,0]"), [1, 2, 3]);
    assert_eq!(reads("v_mad_mixlo_f16 v0, v1, v2, v3 op_sel_hi:[0,0,0]"), [1, 2, 3]);
    assert_eq!(reads("v_add_f16_e32 v0.l, v1.h, v2.l"), [1, 2]);
    assert_eq!(reads("v_fmac_f32_e32 v0, v1, v2"), [0, 1, 2]);
}

#[test]
fn signs_around_sources() {
    let source = |operand| Source { operand, ..NO_SOURCE };
    let inst = one("v_fma_f32 v0, -v1, |v2|, -|v3|");
    let expected = [
        source(vector(0, 1)),
        Source { neg: true, ..source(vector(1, 1)) },
        Source { abs: true, ..source(vector(2, 1)) },
        Source { neg: true, abs: true, ..source(vector(3, 1)) },
    ];
    assert_eq!(inst.operands(), expected);
    let inst =
        one("v_add_u32_sdwa v0, sext(v1), v2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_2 src1_sel:DWORD");
    assert!(inst.operands[1].sext);
    let sdwa = Sdwa { dst: Select::Word(1), unused: Unused::Preserve, src: [Select::Byte(2), Select::Dword] };
    assert_eq!((&*inst.mnemonic, inst.modifiers.sdwa), ("v_add_u32", Some(sdwa)));
    assert_eq!(one("v_mul_f32_e64 v0, neg(1.0), v1 clamp mul:2").operands[1].operand, Operand::Float(1.0));
}

#[test]
fn modifiers() {
    let of = |text| one(text).modifiers;
    let none = Modifiers::default();
    assert_eq!(of("v_mul_f32_e64 v0, v1, v2 clamp div:2"), Modifiers { clamp: true, omod: Omod::Div2, ..none });
    assert_eq!(
        of("v_pk_fma_f16 v0, v1, v2, v3 op_sel:[0,1,0] op_sel_hi:[1,0,1] neg_lo:[1,0,0] neg_hi:[0,0,1]"),
        Modifiers { op_sel: Some(2), op_sel_hi: Some(5), neg_lo: 1, neg_hi: 4, ..none }
    );
    let dpp =
        Dpp { control: DppControl::RowShr(1), row_mask: 15, bank_mask: 3, bound_ctrl: true, fetch_inactive: false };
    assert_eq!(
        of("v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0x3 bound_ctrl:1"),
        Modifiers { dpp: Some(dpp), ..none }
    );
    assert_eq!(
        of("global_atomic_add_u32 v0, v1, v2, s[0:1] offset:-8 th:TH_ATOMIC_RETURN scope:SCOPE_DEV"),
        Modifiers { offset: -8, returns: true, device: true, ..none }
    );
    assert_eq!(of("ds_read2st64_b32 v[0:1], v2 offset0:1 offset1:9"), Modifiers { offset: 1, offset1: 9, ..none });
}

/// The pattern of bits that each form of `swizzle` means.
#[test]
fn swizzles() {
    let pattern = |form: &str| one(&format!("ds_swizzle_b32 v0, v1 offset:swizzle({form})")).modifiers.offset;
    assert_eq!(pattern("QUAD_PERM,3,2,1,0"), 0x8000 | 0b00_01_10_11);
    assert_eq!(pattern("SWAP,16"), 16 << 10 | 31);
    assert_eq!(pattern("REVERSE,32"), 31 << 10 | 31);
    assert_eq!(pattern("BROADCAST,8,3"), 3 << 5 | 24);
    assert_eq!(pattern("BITMASK_PERM,\"01pip\""), 2 << 10 | 8 << 5 | 7);
}

#[test]
fn dual_instructions() {
    let halves = instructions("v_dual_cndmask_b32 v4, v4, v5 :: v_dual_mul_f32 v3, 2.0, v6", 8).unwrap();
    let names: Vec<&str> = halves.iter().map(|h| &*h.mnemonic).collect();
    assert_eq!(names, ["v_cndmask_b32", "v_mul_f32"]);
    assert_eq!(halves[0].operand(3), scalars(scalar::VCC, 1), "the mask is not printed");
}

#[test]
fn what_is_not_understood() {
    let error = |text| instructions(text, 0).unwrap_err();
    assert_eq!(error("v_add_f32 v0, w1, v2"), Unclear("w1".into()));
    assert_eq!(error("v_add_f32 v0, v1 strange:3"), Unclear("strange:3".into()));
    assert_eq!(error("s_mov_b32 s200, 0"), Unclear("s200".into()));
}

/// The first dword is `s_mov_b32 s0, literal`; a code object may end after it.
#[test]
fn an_instruction_that_ends_behind_the_code_is_none() {
    let code = [0xbe8000ff_u32, 0x2a].map(u32::to_le_bytes).concat();
    for isa in Isa::names().filter_map(Isa::find) {
        let disassembler = Disassembler::new(isa).unwrap();
        assert_eq!(disassembler.next(&code, 0).map(|(_, bytes)| bytes), Some(8), "{}", isa.name);
        (0..8).for_each(|end| assert_eq!(disassembler.next(&code[..end], 0), None, "{}, {end} bytes", isa.name));
        let failed = Kernel::decode(&code[..4], 0x100, isa).unwrap_err();
        assert!(matches!(failed, DecodeError::NotCode { address: 0x100 }), "{failed}");
    }
}

/// The rule, the chips, words that are refused, one that is read, and its text.
type Refused<'t> = (&'t str, &'t [&'t str], &'t [Words], Words, &'t str);

/// For each rule, words that break it, and similar words that are an instruction.
#[test]
fn what_ends_the_disassembler_is_no_instruction() {
    let cdna: &[&str] = &["gfx90a", "gfx942", "gfx950"];
    let cases: [Refused; 9] = [
        (
            "a part of a register that there is not",
            cdna,
            // The result's part, the treatment of its other bits, the operand's part; of a
            // comparison the sources'.
            &[
                [0x7e00_02f9, 0x0006_0701, 0, 0],
                [0x7e00_02f9, 0x0006_1e01, 0, 0],
                [0x7e00_02f9, 0x0007_0601, 0, 0],
                [0x7c84_02f9, 0x0706_0001, 0, 0],
                [0x7c84_02f9, 0x0607_0001, 0, 0],
            ],
            [0x7c84_02f9, 0x0606_0001, 0, 0],
            "v_cmp_eq_f32_sdwa vcc, v1, v1 src0_sel:DWORD src1_sel:DWORD",
        ),
        (
            "a literal behind eight bytes",
            cdna,
            &[[0xd1cb_0000, 0x0402_00ff, 0, 0], [0xd1cb_0000, 0x0401_ff00, 0, 0], [0xd1cb_0000, 0x03fe_0100, 0, 0]],
            [0xd1cb_0000, 0x0402_0100, 0, 0],
            "v_fma_f32 v0, v0, v0, v0",
        ),
        (
            "a literal behind eight bytes",
            &["gfx950"],
            &[[0xd3ac_0000, 0x0002_0100, 0xd3ad_0800, 0x03fe_0100]],
            [0xd3ac_0000, 0x0002_0100, 0xd3ad_0800, 0x0402_0100],
            "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[0:7], v[0:7], v[0:3], v0, v0 op_sel_hi:[0,0,0]",
        ),
        (
            "a comparison into a literal",
            cdna,
            &[[0xd042_00ff, 0x0002_0100, 0, 0]],
            [0xd042_0004, 0x0002_0100, 0, 0],
            "v_cmp_eq_f32_e64 s[4:5], v0, v0",
        ),
        (
            "a literal as a buffer's offset",
            cdna,
            &[[0xe050_0000, 0xff00_0000, 0, 0], [0xe880_0000, 0xff00_0000, 0, 0]],
            [0xe050_0000, 0x0400_0000, 0, 0],
            "buffer_load_dword v0, off, s[0:3], s4",
        ),
        (
            "scalars as sums of a matrix",
            cdna,
            &[[0xd3c0_0000, 0x0002_0100, 0, 0], [0xd3c0_0000, 0x03ae_0100, 0, 0]],
            [0xd3d9_4000, 0x0000_0000, 0, 0],
            "v_accvgpr_write_b32 a0, s0",
        ),
        (
            "scalars as a matrix",
            &["gfx950"],
            &[[0xd3ae_0200, 0x0001_8500, 0, 0], [0xd3ac_0000, 0x0002_0100, 0xd3ad_0800, 0x0402_00f7]],
            [0xd3ae_0200, 0x0402_0100, 0, 0],
            "v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[0:5], v[0:7], v[0:15] cbsz:2",
        ),
        (
            "scalars as 32 numbers",
            &["gfx950"],
            &[[0xd254_0000, 0, 0, 0], [0xd263_0000, 0xe3, 0, 0]],
            [0xd260_0000, 0x0002_0100, 0, 0],
            "v_cvt_scalef32_pk32_f16_fp6 v[0:15], v[0:5], v0",
        ),
        (
            "three trap registers",
            &["gfx1201"],
            &[[0xf400_bb00, 0, 0, 0], [0xf402_bec0, 0, 0, 0]],
            [0xf400_bf00, 0, 0, 0],
            "s_load_b96 null, s[0:1], s0 offset:0x0",
        ),
    ];
    let barrier = ("a literal as a barrier", &["gfx1201"][..], &[[0xbe80_4eff, 0, 0, 0], [0xbe80_52ff, 0, 0, 0]][..]);
    let signal = ([0xbe80_4ec1, 0, 0, 0], "s_barrier_signal -1");
    let cases = cases.into_iter().chain([(barrier.0, barrier.1, barrier.2, signal.0, signal.1)]);
    for (rule, chips, broken, good, text) in cases {
        for isa in chips.iter().map(|name| Isa::find(name).expect("it is known")) {
            let disassembler = Disassembler::new(isa).expect("LLVM knows it");
            let read = |words: Words| disassembler.next(&words.map(u32::to_le_bytes).concat(), 0).map(|(text, _)| text);
            assert_eq!(read(good).as_deref(), Some(text), "{rule}, {}", isa.name);
            for &words in broken {
                assert_eq!(fatal::broken(isa, words), Some(rule), "{}: {words:x?}", isa.name);
                assert_eq!(read(words), None, "{rule}, {}: {words:x?}", isa.name);
            }
        }
    }
}

/// Random words on every chip, with a bias to encodings that have crashed LLVM's disassembler.
/// Without the rules a few hundred words end this process.
#[test]
fn random_words_leave_the_disassembler_alive() {
    for isa in Isa::names().filter_map(Isa::find) {
        let disassembler = Disassembler::new(isa).expect("LLVM knows it");
        let mut state = 88_172_645_463_325_252u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d)
        };
        let read = (0..60_000).filter(|_| {
            let mut words: [u32; 5] = std::array::from_fn(|_| (random() >> 16) as u32);
            let (kind, at) = (random(), [0, 9, 18, 24, 0, 9, 18, 24][(random() >> 61) as usize]);
            match kind % 4 {
                0 => words[1] |= 0xff << at,
                1 => words[3] |= 0xff << at,
                2 => words[0] = words[0] & !0xff | (0xf9 + (kind >> 8) as u32 % 7),
                _ => words.iter_mut().for_each(|word| *word &= (random() >> 16) as u32),
            }
            disassembler.next(&words.map(u32::to_le_bytes).concat(), 0).is_some()
        });
        assert!(read.count() > 10_000, "{}: they are instructions often enough", isa.name);
    }
}
