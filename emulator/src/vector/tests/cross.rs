//! Instructions that are no plain function of one lane: lanes that read each other, and masks.
use super::{run, wave};
use crate::inst::scalar;
use crate::num;
use crate::wave::Wave;

/// Register 1 holds the number of each lane, register 2 a thousand more.
fn numbered(chip: &str) -> Wave {
    let mut wave = wave(chip);
    wave.vgpr[1] = std::array::from_fn(|lane| lane as u32);
    wave.vgpr[2] = std::array::from_fn(|lane| lane as u32 + 1000);
    wave.vgpr[0] = [7; 64];
    wave
}

#[test]
fn single_lanes() {
    let mut w = numbered("gfx942");
    w.set_exec(0xf0);
    run(&mut w, "v_readfirstlane_b32 s4, v1");
    assert_eq!(w.sgpr[4], 4);
    w.set_exec(0);
    run(&mut w, "v_readfirstlane_b32 s4, v1");
    assert_eq!(w.sgpr[4], 0);
    run(&mut w, "v_readlane_b32 s5, v1, 63");
    assert_eq!(w.sgpr[5], 63);
    w.sgpr[6] = 70;
    run(&mut w, "v_readlane_b32 s5, v1, s6");
    assert_eq!(w.sgpr[5], 6);
    run(&mut w, "v_writelane_b32 v0, s6, 9");
    assert_eq!((w.vgpr[0][9], w.vgpr[0][8]), (70, 7));
}

#[test]
fn permutations_of_rows() {
    let mut w = numbered("gfx1100");
    (w.sgpr[4], w.sgpr[5]) = (0x7654_3210, 0xfedc_ba98);
    run(&mut w, "v_permlane16_b32 v0, v1, s4, s5");
    assert_eq!(w.vgpr[0][..32], w.vgpr[1][..32]);
    run(&mut w, "v_permlanex16_b32 v0, v1, s4, s5");
    assert!((0..32).all(|lane| w.vgpr[0][lane] == lane as u32 ^ 16));
    (w.sgpr[4], w.sgpr[5]) = (0x0123_4567, 0x89ab_cdef);
    run(&mut w, "v_permlane16_b32 v0, v1, s4, s5");
    assert_eq!((w.vgpr[0][0], w.vgpr[0][8], w.vgpr[0][31]), (7, 15, 24));
    // An inactive source keeps the old value, reads as zero with bound_ctrl, or is read with fi.
    w.set_exec(0xffff_ff7f);
    w.vgpr[0] = [5; 64];
    run(&mut w, "v_permlane16_b32 v0, v1, s4, s5");
    assert_eq!(w.vgpr[0][0], 5);
    run(&mut w, "v_permlane16_b32 v0, v1, s4, s5 op_sel:[0,1]");
    assert_eq!(w.vgpr[0][0], 0);
    run(&mut w, "v_permlane16_b32 v0, v1, s4, s5 op_sel:[1,0]");
    assert_eq!(w.vgpr[0][0], 7);
    let mut w = numbered("gfx1201");
    w.vgpr[3] = std::array::from_fn(|lane| 15 - lane as u32 % 16);
    run(&mut w, "v_permlane16_var_b32 v0, v1, v3");
    assert_eq!((w.vgpr[0][0], w.vgpr[0][17]), (15, 30));
    run(&mut w, "v_permlanex16_var_b32 v0, v1, v3");
    assert_eq!((w.vgpr[0][0], w.vgpr[0][17]), (31, 14));
    run(&mut w, "v_permlane64_b32 v0, v1");
    assert_eq!(w.vgpr[0][..32], w.vgpr[1][..32]);
}

/// Rows of the first register that are odd change places with rows of the second that are even.
#[test]
fn swaps() {
    let mut w = numbered("gfx950");
    run(&mut w, "v_permlane32_swap_b32 v1, v2");
    assert!((0..32).all(|l| w.vgpr[1][l] == l as u32 && w.vgpr[1][l + 32] == l as u32 + 1000));
    assert!((0..32).all(|l| w.vgpr[2][l] == l as u32 + 32 && w.vgpr[2][l + 32] == l as u32 + 1032));
    let mut w = numbered("gfx950");
    run(&mut w, "v_permlane16_swap_b32 v1, v2");
    let want = |l: usize| if (l / 16).is_multiple_of(2) { l as u32 } else { l as u32 - 16 + 1000 };
    assert!((0..64).all(|l| w.vgpr[1][l] == want(l)));
    let want = |l: usize| if l / 16 % 2 == 1 { l as u32 + 1000 } else { l as u32 + 16 };
    assert!((0..64).all(|l| w.vgpr[2][l] == want(l)));
    let mut w = numbered("gfx942");
    w.set_exec(1);
    run(&mut w, "v_swap_b32 v1, v2");
    assert_eq!((w.vgpr[1][0], w.vgpr[2][0], w.vgpr[1][1], w.vgpr[2][1]), (1000, 0, 1, 1001));
    let mut w = wave("gfx1100");
    (w.vgpr[1], w.vgpr[2]) = ([0x1111_2222; 64], [0x3333_4444; 64]);
    run(&mut w, "v_swap_b16 v1.h, v2.l");
    assert_eq!((w.vgpr[1][0], w.vgpr[2][0]), (0x4444_2222, 0x3333_1111));
}

#[test]
fn counts_of_bits_below() {
    let mut w = numbered("gfx942");
    (w.sgpr[4], w.sgpr[5]) = (0xf0f0_f0f0, 0x0000_ffff);
    run(&mut w, "v_mbcnt_lo_u32_b32 v3, s4, 10");
    run(&mut w, "v_mbcnt_hi_u32_b32 v4, s5, v3");
    let mask = 0x0000_ffff_f0f0_f0f0u64;
    for lane in 0..64 {
        let below = (mask & ((1u128 << lane) - 1) as u64).count_ones();
        assert_eq!(w.vgpr[4][lane], 10 + below, "{lane}");
    }
}

#[test]
fn selects() {
    let mut w = numbered("gfx942");
    w.set_scalar64(4, 0xff00_0000_0000_00f0);
    run(&mut w, "v_cndmask_b32_e64 v0, v1, v2, s[4:5]");
    assert_eq!((w.vgpr[0][0], w.vgpr[0][4], w.vgpr[0][63]), (0, 1004, 1063));
    w.set_scalar64(scalar::VCC, 1);
    run(&mut w, "v_cndmask_b32_e32 v0, -1, v2, vcc");
    assert_eq!((w.vgpr[0][0], w.vgpr[0][1]), (1000, u32::MAX));
    run(&mut w, "v_cndmask_b32_e64 v0, -v1, |v2|, vcc");
    assert_eq!(w.vgpr[0][5], 5 | 1 << 31);
    let mut w = numbered("gfx1100");
    w.sgpr[4] = 2;
    w.vgpr[0] = [0xaaaa_0000; 64];
    run(&mut w, "v_cndmask_b16 v0.l, v1.l, v2.l, s4");
    assert_eq!((w.vgpr[0][0], w.vgpr[0][1]), (0xaaaa_0000, 0xaaaa_0000 | 1001));
}

#[test]
fn carries() {
    let edges = [0u32, 1, 2, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff, 77];
    let names = [("v_add_co_u32", 0), ("v_sub_co_u32", 1), ("v_subrev_co_u32", 2)];
    let with_carry = [("v_addc_co_u32", 0), ("v_subb_co_u32", 1), ("v_subbrev_co_u32", 2)];
    let rdna = [("v_add_co_ci_u32", 0), ("v_sub_co_ci_u32", 1), ("v_subrev_co_ci_u32", 2)];
    let cases = names.map(|n| (n, false, "gfx942")).into_iter();
    let cases = cases.chain(with_carry.map(|n| (n, true, "gfx942"))).chain(rdna.map(|n| (n, true, "gfx942")));
    for ((name, kind), carry_in, chip) in cases {
        let mut w = wave(chip);
        w.vgpr[1] = std::array::from_fn(|lane| edges[lane / 8]);
        w.vgpr[2] = std::array::from_fn(|lane| edges[lane % 8]);
        let input = 0xa5a5_a5a5_5a5a_5a5a_u64;
        w.set_scalar64(4, input);
        run(&mut w, &format!("{name}_e64 v0, s[6:7], v1, v2{}", if carry_in { ", s[4:5]" } else { "" }));
        for lane in 0..64 {
            let (a, b) = (i128::from(w.vgpr[1][lane]), i128::from(w.vgpr[2][lane]));
            let c = if carry_in { i128::from(input >> lane & 1) } else { 0 };
            let exact = [a + b + c, a - b - c, b - a - c][kind];
            assert_eq!(w.vgpr[0][lane], exact as u32, "{name}");
            let carry = exact < 0 || exact > i128::from(u32::MAX);
            assert_eq!(w.scalar64(6) >> lane & 1 == 1, carry, "{name} of {a} {b} {c}");
        }
    }
}

#[test]
fn wide_products_and_sums() {
    for (name, signed) in
        [("v_mad_u64_u32", false), ("v_mad_i64_i32", true), ("v_mad_co_u64_u32", false), ("v_mad_co_i64_i32", true)]
    {
        let mut w = wave("gfx942");
        let edges = [0u32, 1, u32::MAX, 0x8000_0000];
        w.vgpr[2] = std::array::from_fn(|lane| edges[lane % 4]);
        w.vgpr[3] = std::array::from_fn(|lane| edges[lane / 4 % 4]);
        let addend = [0u64, u64::MAX, 1 << 63, i64::MAX as u64];
        w.vgpr[4] = std::array::from_fn(|lane| addend[lane / 16] as u32);
        w.vgpr[5] = std::array::from_fn(|lane| (addend[lane / 16] >> 32) as u32);
        run(&mut w, &format!("{name} v[0:1], s[4:5], v2, v3, v[4:5]"));
        for lane in 0..64 {
            let (a, b, c) = (edges[lane % 4], edges[lane / 4 % 4], addend[lane / 16]);
            let exact = match signed {
                true => i128::from(a as i32) * i128::from(b as i32) + i128::from(c as i64),
                false => i128::from(a) * i128::from(b) + i128::from(c),
            };
            let got = u64::from(w.vgpr[0][lane]) | u64::from(w.vgpr[1][lane]) << 32;
            assert_eq!(got, exact as u64, "{name}");
            let fits = if signed { i64::try_from(exact).is_ok() } else { u64::try_from(exact).is_ok() };
            assert_eq!(w.scalar64(4) >> lane & 1 == 0, fits, "{name}");
        }
    }
}

/// The whole sequence that LLVM emits divides correctly; here with numbers that need every branch
/// of the scaling.
#[test]
fn divisions_are_rounded_correctly() {
    let edges = [
        1.0f32,
        -3.0,
        1e-38,
        1e-40,
        1e38,
        3e-45,
        -2e38,
        0.1,
        7e19,
        1.5e-30,
        f32::MAX,
        1e-22,
        0.0,
        f32::INFINITY,
        f32::NAN,
        -0.0,
        5.6e-44,
        80.0,
    ];
    let pairs: Vec<(f32, f32)> = edges.iter().flat_map(|n| edges.map(|d| (*n, d))).collect();
    for chunk in pairs.chunks(64) {
        let mut w = wave("gfx942");
        for (lane, (n, d)) in chunk.iter().enumerate() {
            (w.vgpr[1][lane], w.vgpr[2][lane]) = (n.to_bits(), d.to_bits());
        }
        for text in [
            "v_div_scale_f32 v3, s[4:5], v2, v2, v1",
            "v_div_scale_f32 v4, vcc, v1, v2, v1",
            "v_rcp_f32_e32 v5, v3",
            "v_fma_f32 v6, -v3, v5, 1.0",
            "v_fmac_f32_e32 v5, v6, v5",
            "v_mul_f32_e32 v6, v4, v5",
            "v_fma_f32 v7, -v3, v6, v4",
            "v_fmac_f32_e32 v6, v7, v5",
            "v_fma_f32 v3, -v3, v6, v4",
            "v_div_fmas_f32 v3, v3, v5, v6",
            "v_div_fixup_f32 v0, v3, v2, v1",
        ] {
            run(&mut w, text);
        }
        for (lane, (n, d)) in chunk.iter().enumerate() {
            let (got, want) = (f32::from_bits(w.vgpr[0][lane]), n / d);
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{n:e} / {d:e}: {got:e}, not {want:e}"
            );
        }
    }
}

#[test]
fn divisions_of_f64_are_rounded_correctly() {
    let edges = [
        1.0f64,
        -3.0,
        1e-308,
        1e-310,
        1e308,
        5e-324,
        -2e307,
        0.1,
        7e190,
        1.5e-230,
        f64::MAX,
        0.0,
        f64::INFINITY,
        f64::NAN,
    ];
    let pairs: Vec<(f64, f64)> = edges.iter().flat_map(|n| edges.map(|d| (*n, d))).collect();
    for chunk in pairs.chunks(64) {
        let mut w = wave("gfx942");
        for (lane, (n, d)) in chunk.iter().enumerate() {
            for (row, x) in [(2, n.to_bits()), (4, d.to_bits())] {
                (w.vgpr[row][lane], w.vgpr[row + 1][lane]) = (x as u32, (x >> 32) as u32);
            }
        }
        for text in [
            "v_div_scale_f64 v[6:7], s[4:5], v[4:5], v[4:5], v[2:3]",
            "v_rcp_f64_e32 v[8:9], v[6:7]",
            "v_fma_f64 v[10:11], -v[6:7], v[8:9], 1.0",
            "v_fmac_f64_e32 v[8:9], v[8:9], v[10:11]",
            "v_fma_f64 v[10:11], -v[6:7], v[8:9], 1.0",
            "v_fmac_f64_e32 v[8:9], v[8:9], v[10:11]",
            "v_div_scale_f64 v[10:11], vcc, v[2:3], v[4:5], v[2:3]",
            "v_mul_f64 v[12:13], v[10:11], v[8:9]",
            "v_fma_f64 v[6:7], -v[6:7], v[12:13], v[10:11]",
            "v_div_fmas_f64 v[6:7], v[6:7], v[8:9], v[12:13]",
            "v_div_fixup_f64 v[0:1], v[6:7], v[4:5], v[2:3]",
        ] {
            run(&mut w, text);
        }
        for (lane, (n, d)) in chunk.iter().enumerate() {
            let got = f64::from_bits(u64::from(w.vgpr[0][lane]) | u64::from(w.vgpr[1][lane]) << 32);
            let want = n / d;
            // The mask of f64 says that subnormal quotients may be off by one in the last place.
            let near = want.is_subnormal() && got.to_bits().abs_diff(want.to_bits()) <= 1;
            assert!(
                got.to_bits() == want.to_bits() || near || got.is_nan() && want.is_nan(),
                "{n:e} / {d:e}: {got:e}, not {want:e}"
            );
        }
    }
}

#[test]
fn any_function_of_three_bits() {
    let mut w = wave("gfx950");
    (w.vgpr[1], w.vgpr[2], w.vgpr[3]) = ([0xf0f0_f0f0; 64], [0xcccc_cccc; 64], [0xaaaa_aaaa; 64]);
    for table in 0..=255u32 {
        run(&mut w, &format!("v_bitop3_b32 v0, v1, v2, v3 bitop3:{table:#x}"));
        assert_eq!(w.vgpr[0][5], table * 0x0101_0101, "{table:#x}");
    }
    w.vgpr[0] = [0x1234_5678; 64];
    run(&mut w, "v_bitop3_b16 v0, v1, v2, v3 bitop3:0x80");
    assert_eq!(w.vgpr[0][5], 0x1234_8080);
}

#[test]
fn signs_of_dot_products_are_modifiers() {
    let mut w = wave("gfx1100");
    (w.vgpr[1], w.vgpr[2], w.vgpr[3]) = ([0xff02_0180; 64], [0x0203_ff02; 64], [100; 64]);
    for (modifier, a_signed, b_signed) in
        [("", false, false), (" neg_lo:[1,0,0]", true, false), (" neg_lo:[1,1,0]", true, true)]
    {
        let part = |x: u32, n: usize, signed: bool| {
            let byte = x.to_le_bytes()[n];
            if signed { i32::from(byte as i8) } else { i32::from(byte) }
        };
        let want = (0..4).map(|n| part(0xff02_0180, n, a_signed) * part(0x0203_ff02, n, b_signed)).sum::<i32>() + 100;
        run(&mut w, &format!("v_dot4_i32_iu8 v0, v1, v2, v3{modifier}"));
        assert_eq!(w.vgpr[0][0] as i32, want);
    }
    run(&mut w, "v_dot8_i32_iu4 v0, v1, v2, v3 neg_lo:[1,1,0]");
    let nibble = |x: u32, n: u32| (x << (28 - 4 * n)) as i32 >> 28;
    let want = (0..8).map(|n| nibble(0xff02_0180, n) * nibble(0x0203_ff02, n)).sum::<i32>() + 100;
    assert_eq!(w.vgpr[0][0] as i32, want);
}

#[test]
fn eight_bit_conversions() {
    let mut w = wave("gfx942");
    w.vgpr[1] = [0x7f81_48c8; 64];
    run(&mut w, "v_cvt_pk_f32_fp8_e32 v[2:3], v1");
    assert_eq!(
        [w.vgpr[2][0], w.vgpr[3][0]].map(f32::from_bits),
        [-num::E4M3_FNUZ.decode(0x48), num::E4M3_FNUZ.decode(0x48)]
    );
    run(&mut w, "v_cvt_pk_f32_bf8_sdwa v[2:3], v1 src0_sel:WORD_1");
    assert_eq!(f32::from_bits(w.vgpr[3][0]), num::E5M2_FNUZ.decode(0x7f));
    run(&mut w, "v_cvt_f32_fp8_sdwa v2, v1 src0_sel:BYTE_2");
    assert_eq!(f32::from_bits(w.vgpr[2][0]), num::E4M3_FNUZ.decode(0x81));
    let mut w = wave("gfx1201");
    (w.vgpr[1], w.vgpr[4], w.vgpr[5], w.vgpr[0]) =
        ([0x7f81_48c8; 64], [500f32.to_bits(); 64], [2f32.to_bits(); 64], [0x1111_2222; 64]);
    run(&mut w, "v_cvt_f32_fp8_e64 v2, v1 byte_sel:1");
    assert_eq!(f32::from_bits(w.vgpr[2][0]), num::E4M3.decode(0x48));
    // Beyond 448 a number is NaN, or the largest with FP16_OVFL.
    run(&mut w, "v_cvt_pk_fp8_f32 v0.h, v4, v5");
    assert_eq!(w.vgpr[0][0], 0x407f_2222);
    w.mode.fp16_ovfl = true;
    run(&mut w, "v_cvt_pk_fp8_f32 v0.h, v4, v5");
    assert_eq!(w.vgpr[0][0], 0x407e_2222);
    // Stochastic rounding: the random bits of the third operand decide; the result is one byte.
    (w.vgpr[4], w.vgpr[6]) = ([1.03125f32.to_bits(); 64], std::array::from_fn(|lane| (lane as u32) << 27));
    run(&mut w, "v_cvt_sr_fp8_f32 v0, v4, v6 byte_sel:2");
    let ups = (0..32).filter(|lane| w.vgpr[0][*lane] == 0x4039_2222).count();
    assert_eq!(ups, 8);
    run(&mut w, "v_cvt_sr_bf8_f32 v0, v5, v6");
    assert_eq!(w.vgpr[0][0] & 0xff, 0x40);
}

#[test]
fn scaled_conversions() {
    let mut w = wave("gfx950");
    let scale = 8f32;
    (w.vgpr[1], w.vgpr[2], w.vgpr[3]) = ([24f32.to_bits(); 64], [(-4f32).to_bits(); 64], [scale.to_bits(); 64]);
    w.vgpr[0] = [0x1111_2222; 64];
    run(&mut w, "v_cvt_scalef32_pk_fp8_f32 v0, v1, v2, v3 op_sel:[0,0,0,1]");
    let code = |x: f32| num::E4M3.encode(x.into(), crate::wave::Rounding::NearestEven, num::Overflow::Special);
    assert_eq!(w.vgpr[0][0], 0x2222 | code(3.0) << 16 | code(-0.5) << 24);
    run(&mut w, "v_cvt_scalef32_pk_f32_fp8 v[4:5], v0, v3 op_sel:[1,0,0]");
    assert_eq!([w.vgpr[4][0], w.vgpr[5][0]].map(f32::from_bits), [24.0, -4.0]);
    w.vgpr[0] = [0; 64];
    run(&mut w, "v_cvt_scalef32_pk_fp4_f32 v0, v1, v2, v3 op_sel:[0,0,1,1]");
    assert_eq!(w.vgpr[0][0], 0x9500_0000);
    run(&mut w, "v_cvt_scalef32_pk_bf16_fp4 v4, v0, v3 op_sel:[1,1,0]");
    assert_eq!(w.vgpr[4][0], u32::from(num::f32_to_bf16(24.0)) | u32::from(num::f32_to_bf16(-4.0)) << 16);
    w.vgpr[0] = [0x7e00_3c00 & 0xffff | 0x4000_0000; 64];
    run(&mut w, "v_cvt_scalef32_pk_bf8_f16 v6, v0, v3");
    let code = |x: f32| num::E5M2.encode(x.into(), crate::wave::Rounding::NearestEven, num::Overflow::Special);
    assert_eq!(w.vgpr[6][0] & 0xffff, code(0.125) | code(0.25) << 8);
    run(&mut w, "v_cvt_scalef32_f32_bf8 v7, v6, v3 op_sel:[1,0,0]");
    assert_eq!(f32::from_bits(w.vgpr[7][0]), 2.0);
}

#[test]
fn stochastic_bf16() {
    let mut w = wave("gfx950");
    (w.vgpr[1], w.vgpr[2], w.vgpr[3]) =
        ([0x3f80_4000; 64], [0x3f80_0000; 64], std::array::from_fn(|lane| (lane as u32) << 26));
    run(&mut w, "v_cvt_sr_pk_bf16_f32 v0, v1, v2, v3");
    assert_eq!((0..64).filter(|lane| w.vgpr[0][*lane] == 0x3f80_3f81).count(), 16);
    assert!((0..64).all(|lane| w.vgpr[0][lane] >> 16 == 0x3f80));
}

#[test]
fn stochastic_halves() {
    let mut w = wave("gfx950");
    (w.vgpr[0], w.vgpr[1]) = ([0x1111_2222; 64], [0x3f80_4000; 64]);
    w.vgpr[3] = std::array::from_fn(|lane| (lane as u32) << 26);
    run(&mut w, "v_cvt_sr_bf16_f32 v0, v1, v3");
    assert_eq!((0..64).filter(|lane| w.vgpr[0][*lane] == 0x1111_3f81).count(), 16);
    // A quarter of the way from 1 to the next f16.
    w.vgpr[1] = [(1f32 + 2f32.powi(-12)).to_bits(); 64];
    run(&mut w, "v_cvt_sr_f16_f32 v0, v1, v3");
    assert_eq!((0..64).filter(|lane| w.vgpr[0][*lane] == 0x1111_3c01).count(), 16);
    assert!((0..64).all(|lane| matches!(w.vgpr[0][lane], 0x1111_3c01 | 0x1111_3c00)));
}
