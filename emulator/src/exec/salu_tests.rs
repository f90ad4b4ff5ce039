//! Scalar instructions: sources in `s2` to `s5`, the result in `s0` and `s1`.
use super::control::mode_of;
use super::salu::{extend_immediate, resolve};
use crate::decode::parse;
use crate::inst::scalar;
use crate::isa::Isa;
use crate::wave::Wave;

fn wave() -> Wave {
    let isa = Isa::find("gfx942").expect("a known processor");
    Wave::new(isa, mode_of(0xf0, isa.family), 0)
}

/// The 64 bits of the destination and the condition code after an instruction.
fn run(text: &str, sources: [u64; 2], scc: bool) -> (u64, bool) {
    let mut wave = wave();
    wave.scc = scc;
    wave.set_scalar64(0, 0);
    wave.set_scalar64(2, sources[0]);
    wave.set_scalar64(4, sources[1]);
    let mut inst = parse::instructions(text, 0).unwrap().remove(0);
    extend_immediate(&mut inst);
    let op = resolve(&inst.mnemonic).unwrap_or_else(|| panic!("{text}"));
    (op.run)(&mut wave, &inst);
    (wave.scalar64(0), wave.scc)
}

#[test]
fn sums_and_their_condition() {
    let max = u64::from(u32::MAX);
    assert_eq!(run("s_add_u32 s0, s2, s4", [max, 1], false), (0, true));
    assert_eq!(run("s_addc_u32 s0, s2, s4", [max, 0], true), (0, true));
    assert_eq!(run("s_subb_u32 s0, s2, s4", [5, 5], true), (max, true));
    assert_eq!(run("s_add_i32 s0, s2, s4", [0x7fff_ffff, 1], false), (0x8000_0000, true));
    assert_eq!(run("s_sub_i32 s0, s2, s4", [3, 5], true), (max - 1, false));
    assert_eq!(run("s_min_i32 s0, s2, s4", [max, 1], false), (max, true));
    assert_eq!(run("s_max_u32 s0, s2, s4", [max, 1], false), (max, true));
    assert_eq!(run("s_mul_hi_i32 s0, s2, s4", [max, 2], false), (max, false));
    assert_eq!(run("s_lshl3_add_u32 s0, s2, s4", [0x2000_0000, 7], false), (7, true));
    assert_eq!(run("s_abs_i32 s0, s2", [max - 6, 0], false), (7, true));
    assert_eq!(run("s_add_nc_u64 s[0:1], s[2:3], s[4:5]", [max, 1], true), (max + 1, true));
}

#[test]
fn shifts_and_fields() {
    assert_eq!(run("s_ashr_i32 s0, s2, s4", [0x8000_0000, 33], false), (0xc000_0000, true));
    assert_eq!(run("s_lshl_b64 s[0:1], s[2:3], s4", [3, 33], false), (3 << 33, true));
    assert_eq!(run("s_bfe_u32 s0, s2, 0x80010", [0x00ab_0000, 0], false), (0xab, true));
    assert_eq!(run("s_bfe_i32 s0, s2, 0x80010", [0x00ab_0000, 0], false), (0xffff_ffab, true));
    assert_eq!(run("s_bfe_u32 s0, s2, 0x8", [u64::MAX, 0], true), (0, false));
    assert_eq!(run("s_bfm_b32 s0, s2, s4", [4, 8], false), (0xf00, false));
    assert_eq!(run("s_pack_ll_b32_b16 s0, s2, s4", [0xaaaa_1111, 0xbbbb_2222], false), (0x2222_1111, false));
    assert_eq!(run("s_sext_i32_i8 s0, s2", [0x80, 0], false), (0xffff_ff80, false));
}

#[test]
fn bits_and_counts() {
    assert_eq!(run("s_ff1_i32_b32 s0, s2", [0, 0], false), (u64::from(u32::MAX), false));
    assert_eq!(run("s_ff1_i32_b64 s0, s[2:3]", [1 << 40, 0], false), (40, false));
    assert_eq!(run("s_flbit_i32_b32 s0, s2", [0x0100_0000, 0], false), (7, false));
    assert_eq!(run("s_flbit_i32 s0, s2", [0xff00_0000, 0], false), (8, false));
    assert_eq!(run("s_bcnt1_i32_b64 s0, s[2:3]", [u64::MAX, 0], false), (64, true));
    assert_eq!(run("s_brev_b32 s0, s2", [1, 0], false), (0x8000_0000, false));
    assert_eq!(run("s_andn2_b64 s[0:1], s[2:3], s[4:5]", [7, 7], true), (0, false));
    assert_eq!(run("s_not_b64 s[0:1], s[2:3]", [0, 0], false), (u64::MAX, true));
    assert_eq!(run("s_bitset1_b32 s0, 35", [0, 0], false), (8, false));
}

/// Immediates of the `k` forms have a sign that the text does not show.
#[test]
fn immediates() {
    assert_eq!(run("s_movk_i32 s0, 0xff80", [0, 0], false), (0xffff_ff80, false));
    assert_eq!(run("s_addk_i32 s0, 0xfffe", [0, 0], true), (0xffff_fffe, false));
    assert!(run("s_cmpk_lt_i32 s2, 0xfff0", [0xffff_ffe0, 0], false).1);
    assert!(!run("s_cmpk_lt_u32 s2, 0xfff0", [0xffff_ffe0, 0], false).1);
    assert_eq!(run("s_mov_b64 s[0:1], -1", [0, 0], false), (u64::MAX, false));
    assert_eq!(run("s_and_b64 s[0:1], s[2:3], 0xff00ff00", [u64::MAX, 0], false), (0xff00_ff00, true));
    assert_eq!(run("s_mov_b64 s[0:1], src_shared_base", [0, 0], false), (crate::mem::flat::SHARED, false));
}

#[test]
fn choices_and_comparisons() {
    assert_eq!(run("s_cselect_b32 s0, s2, s4", [1, 2], true).0, 1);
    assert_eq!(run("s_cselect_b64 s[0:1], s[2:3], s[4:5]", [1, 2], false).0, 2);
    assert_eq!(run("s_cmov_b32 s0, s2", [9, 0], false).0, 0);
    assert!(run("s_cmp_gt_i32 s2, s4", [1, 0xffff_ffff], false).1);
    assert!(!run("s_cmp_gt_u32 s2, s4", [1, 0xffff_ffff], true).1);
    assert!(run("s_bitcmp1_b32 s2, 4", [16, 0], false).1);
    assert!(run("s_cmp_lg_u64 s[2:3], s[4:5]", [1 << 32, 0], false).1);
}

#[test]
fn execution_masks() {
    let mut wave = wave();
    wave.set_exec(0b1100);
    wave.set_scalar64(2, 0b1010);
    let inst = parse::instructions("s_and_saveexec_b64 s[0:1], s[2:3]", 0).unwrap().remove(0);
    (resolve(&inst.mnemonic).unwrap().run)(&mut wave, &inst);
    assert_eq!((wave.scalar64(0), wave.exec(), wave.scc), (0b1100, 0b1000, true));
    let inst = parse::instructions("s_wqm_b64 s[0:1], s[2:3]", 0).unwrap().remove(0);
    wave.set_scalar64(2, 1 << 5 | 1 << 62);
    (resolve(&inst.mnemonic).unwrap().run)(&mut wave, &inst);
    assert_eq!(wave.scalar64(0), 0xf0 | 0xf << 60);
    wave.set_scalar(scalar::NULL, 5);
    assert_eq!(wave.sgpr[usize::from(scalar::NULL)], 0);
}

#[test]
fn floating_point() {
    let f = |x: f32| u64::from(x.to_bits());
    assert_eq!(run("s_mul_f32 s0, s2, s4", [f(1.5), f(-2.0)], false).0, f(-3.0));
    assert_eq!(run("s_cvt_u32_f32 s0, s2", [f(-3.0), 0], false).0, 0);
    assert_eq!(run("s_cvt_i32_f32 s0, s2", [f(-3.7), 0], false).0, u64::from(-3i32 as u32));
    assert_eq!(run("s_cvt_f32_u32 s0, s2", [u64::from(u32::MAX), 0], false).0, f(4294967296.0));
    assert_eq!(run("s_fmac_f32 s0, s2, s4", [f(2.0), f(3.0)], false).0, f(6.0));
    assert_eq!(run("s_min_num_f32 s0, s2, s4", [f(f32::NAN), f(3.0)], false).0, f(3.0));
    assert!(run("s_cmp_nlt_f32 s2, s4", [f(f32::NAN), f(3.0)], false).1);
    assert!(!run("s_cmp_lg_f32 s2, s4", [f(f32::NAN), f(3.0)], true).1);
}
