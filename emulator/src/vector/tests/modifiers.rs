//! Modifiers of sources and results, modes, and odd encodings.
use super::{refused, run, wave};
use crate::wave::{Rounding, Wave};

fn filled(chip: &str, values: &[u32]) -> Wave {
    let mut wave = wave(chip);
    for (row, value) in values.iter().enumerate() {
        wave.vgpr[row] = [*value; 64];
    }
    wave
}

/// Runs one instruction on registers from v1 on and gives lane 0 of v0, which held `old`.
fn one(chip: &str, text: &str, old: u32, values: &[u32]) -> u32 {
    let mut wave = filled(chip, &[&[old], values].concat());
    run(&mut wave, text);
    wave.vgpr[0][0]
}

fn f(x: f32) -> u32 {
    x.to_bits()
}

#[test]
fn signs_and_magnitudes() {
    assert_eq!(one("gfx942", "v_add_f32_e64 v0, -v1, |v2|", 0, &[f(1.0), f(-3.0)]), f(2.0));
    assert_eq!(one("gfx942", "v_mul_f32_e64 v0, -|v1|, v2", 0, &[f(-2.0), f(3.0)]), f(-6.0));
    assert_eq!(one("gfx942", "v_add_f16_e64 v0, -v1, v2", 0, &[0x3c00, 0x4000]), 0x3c00);
    assert_eq!(one("gfx1100", "v_add_f16_e64 v0.h, -v1.h, |v2.l|", 0x1111_2222, &[0x3c00_0000, 0xc000]), 0x3c00_2222);
    let mut w = filled("gfx942", &[0, 0, 0, 0x3ff0_0000, 0, 0xc008_0000]);
    run(&mut w, "v_add_f64 v[0:1], -v[2:3], |v[4:5]|");
    assert_eq!(f64::from_bits(u64::from(w.vgpr[1][0]) << 32), 2.0);
}

#[test]
fn constants() {
    assert_eq!(one("gfx942", "v_add_f32_e32 v0, 0.5, v1", 0, &[f(1.0)]), f(1.5));
    assert_eq!(one("gfx942", "v_mul_f32_e32 v0, 0.15915494, v1", 0, &[f(1.0)]), 0x3e22_f983);
    assert_eq!(one("gfx942", "v_add_f32_e32 v0, 1, v1", 0, &[f(0.0)]), 1);
    assert_eq!(one("gfx942", "v_add_u32_e32 v0, -16, v1", 0, &[20]), 4);
    assert_eq!(one("gfx942", "v_add_f16_e32 v0, 2.0, v1", 0, &[0x3c00]), 0x4200);
    assert_eq!(one("gfx942", "v_or_b32_e32 v0, 1.0, v1", 0, &[1]), 0x3f80_0001);
    assert_eq!(one("gfx942", "v_and_b32_e32 v0, 0xffff0000, v1", 0, &[u32::MAX]), 0xffff_0000);
    // A packed f16 constant is in the lower half, packed integers take the 32 bits of an f32.
    assert_eq!(one("gfx942", "v_pk_add_f16 v0, v1, 1.0 op_sel_hi:[1,0]", 0, &[0x4000_3c00]), 0x4200_4000);
    assert_eq!(one("gfx942", "v_pk_add_u16 v0, v1, 1.0", 0, &[0x0001_0001]), 0x3f81_0001);
    assert_eq!(one("gfx942", "v_pk_add_u16 v0, v1, -1", 0, &[0x0001_0001]), 0);
    let mut w = filled("gfx942", &[0, 0, 0, 0x3ff0_0000]);
    run(&mut w, "v_mul_f64 v[0:1], v[2:3], 0x40590000");
    assert_eq!(w.vgpr[1][0], 0x4059_0000);
    run(&mut w, "v_mul_f64 v[0:1], v[2:3], 0.15915494309189532");
    assert_eq!((w.vgpr[0][0], w.vgpr[1][0]), (0x6dc9_c882, 0x3fc4_5f30));
    run(&mut w, "v_lshlrev_b64 v[0:1], 4, -1");
    assert_eq!((w.vgpr[0][0], w.vgpr[1][0]), (0xffff_fff0, u32::MAX));
}

#[test]
fn clamp_and_multipliers() {
    for (x, want) in [(3.0, 1.0), (-3.0, 0.0), (0.25, 0.25), (f32::NAN, 0.0), (-0.0, 0.0)] {
        assert_eq!(one("gfx942", "v_add_f32_e64 v0, v1, v2 clamp", 0, &[f(x), f(-0.0)]), f(want));
    }
    assert_eq!(one("gfx942", "v_mul_f32_e64 v0, v1, v2 mul:4", 0, &[f(3.0), f(2.0)]), f(24.0));
    assert_eq!(one("gfx942", "v_mul_f32_e64 v0, v1, v2 div:2", 0, &[f(3.0), f(2.0)]), f(3.0));
    assert_eq!(one("gfx942", "v_mul_f32_e64 v0, v1, v2 div:2 clamp", 0, &[f(3.0), f(2.0)]), f(1.0));
    assert_eq!(one("gfx942", "v_pk_add_f16 v0, v1, v2 clamp", 0, &[0x4000_b800, 0x4000_0000]), 0x3c00_0000);
    assert_eq!(one("gfx942", "v_add_u32_e64 v0, v1, v2 clamp", 0, &[u32::MAX, 9]), u32::MAX);
    assert_eq!(one("gfx942", "v_sub_u32_e64 v0, v1, v2 clamp", 0, &[3, 9]), 0);
    assert_eq!(one("gfx942", "v_subrev_u32_e64 v0, v1, v2 clamp", 0, &[9, 3]), 0);
    assert_eq!(one("gfx942", "v_add_i32 v0, v1, v2 clamp", 0, &[i32::MAX as u32, 9]), i32::MAX as u32);
    assert_eq!(one("gfx942", "v_sub_i32 v0, v1, v2 clamp", 0, &[i32::MIN as u32, 9]), i32::MIN as u32);
    assert_eq!(one("gfx942", "v_add_u16_e64 v0, v1, v2 clamp", 0, &[0xfff0, 0x20]), 0xffff);
    assert_eq!(one("gfx942", "v_mad_u32_u24 v0, v1, v2, v3 clamp", 0, &[0xff_ffff, 0xff_ffff, 1]), u32::MAX);
    assert_eq!(one("gfx942", "v_mad_i16 v0, v1, v2, v3 clamp", 0, &[0x7fff, 0x7fff, 1]), 0x7fff);
    assert_eq!(one("gfx942", "v_pk_add_u16 v0, v1, v2 clamp", 0, &[0xfff0_0001, 0x0020_0002]), 0xffff_0003);
    assert_eq!(one("gfx942", "v_pk_sub_i16 v0, v1, v2 clamp", 0, &[0x8000_0001, 0x0001_0002]), 0x8000_ffff);
    assert_eq!(one("gfx942", "v_add_co_u32_e64 v0, s[2:3], v1, v2 clamp", 0, &[u32::MAX, 9]), u32::MAX);
    assert!(refused("gfx942", "v_and_b32_e64 v0, v1, v2 clamp"));
    assert!(refused("gfx942", "v_no_such_thing v0, v1"));
}

#[test]
fn halves_by_modifier_and_by_name() {
    assert_eq!(
        one("gfx942", "v_mad_u16 v0, v1, v2, v3 op_sel:[1,0,0,1]", 0x1111_2222, &[0x0003_0000, 5, 1]),
        0x0010_2222
    );
    assert_eq!(one("gfx942", "v_mad_u16 v0, v1, v2, v3", 0x1111_2222, &[3, 5, 1]), 0x1111_0010);
    // Most 16-bit results of gfx9 clear the upper half.
    assert_eq!(one("gfx942", "v_add_u16_e32 v0, v1, v2", 0x1111_2222, &[3, 5]), 8);
    assert_eq!(one("gfx942", "v_max3_f16 v0, v1, v2, v3", 0x1111_2222, &[0x3c00, 0, 0]), 0x3c00);
    assert_eq!(one("gfx1100", "v_add_nc_u16 v0.l, v1.h, v2.l", 0x1111_2222, &[0x0003_0000, 5]), 0x1111_0008);
    assert_eq!(one("gfx1100", "v_mov_b16_e32 v0.h, v1.l", 0x1111_2222, &[7]), 0x0007_2222);
    assert_eq!(one("gfx1100", "v_cvt_f32_f16_e32 v0, v1.h", 0, &[0x4000_0000]), f(2.0));
    assert_eq!(
        one("gfx942", "v_pk_add_u16 v0, v1, v2 op_sel:[1,0] op_sel_hi:[0,1]", 0, &[0x0001_0002, 0x0010_0020]),
        0x0012_0021
    );
    assert_eq!(
        one("gfx942", "v_pk_mul_f16 v0, v1, v2 neg_lo:[1,0] neg_hi:[0,1]", 0, &[0x3c00_3c00, 0x4000_4000]),
        0xc000_c000
    );
}

#[test]
fn packed_f32() {
    let values = [0, 0, f(1.0), f(2.0), f(10.0), f(20.0), f(100.0), f(200.0)];
    let mut w = filled("gfx942", &values);
    let mut two = |text: &str| {
        run(&mut w, text);
        [w.vgpr[0][0], w.vgpr[1][0]].map(f32::from_bits)
    };
    assert_eq!(two("v_pk_add_f32 v[0:1], v[2:3], v[4:5]"), [11.0, 22.0]);
    assert_eq!(two("v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel:[1,0] op_sel_hi:[0,1]"), [20.0, 20.0]);
    assert_eq!(two("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] neg_lo:[1,0,0] neg_hi:[0,0,1]"), [90.0, -160.0]);
    assert_eq!(two("v_pk_mul_f32 v[0:1], v[2:3], 2.0 op_sel_hi:[1,0]"), [2.0, 4.0]);
    assert_eq!(two("v_pk_mov_b32 v[0:1], v[2:3], v[4:5] op_sel:[0,1]"), [1.0, 20.0]);
    assert_eq!(two("v_pk_mov_b32 v[0:1], v[2:3], v[4:5] op_sel:[1,0]"), [2.0, 10.0]);
}

#[test]
fn mixed_products() {
    let values = [f(3.0), 0x4000_3c00, f(0.5)];
    assert_eq!(one("gfx942", "v_fma_mix_f32 v0, v1, v2, v3", 0, &[f(3.0), f(2.0), f(0.5)]), f(6.5));
    assert_eq!(one("gfx942", "v_fma_mix_f32 v0, v1, v2, v3 op_sel:[0,1,0] op_sel_hi:[0,1,0]", 0, &values), f(6.5));
    assert_eq!(
        one("gfx942", "v_fma_mix_f32 v0, v1, -v2, |v3| op_sel_hi:[0,1,0]", 0, &[f(3.0), 0x4000_3c00, f(-0.5)]),
        f(-2.5)
    );
    assert_eq!(one("gfx942", "v_fma_mixlo_f16 v0, v1, v2, v3 op_sel_hi:[0,1,0]", 0x1111_2222, &values), 0x1111_4300);
    assert_eq!(one("gfx942", "v_fma_mixhi_f16 v0, v1, v2, v3 op_sel_hi:[0,1,0]", 0x1111_2222, &values), 0x4300_2222);
    assert_eq!(
        one("gfx1201", "v_fma_mixhi_f16 v0, v1, v2, v3 op_sel_hi:[0,1,0] clamp", 0x1111_2222, &values),
        0x3c00_2222
    );
    assert_eq!(one("gfx942", "v_mad_mix_f32 v0, v1, v2, v3", 0, &[f(3.0), f(2.0), f(0.5)]), f(6.5));
    assert_eq!(one("gfx942", "v_mad_mixlo_f16 v0, v1, v2, 1.0 op_sel_hi:[0,1,1]", 0, &values), 0x4400);
    assert_eq!(one("gfx942", "v_mad_mixhi_f16 v0, v1, v2, v3 op_sel_hi:[0,1,0]", 0, &values), 0x4300_0000);
}

/// The sum of a mixed product is rounded to f32 before it is rounded to f16: here the first step
/// makes a tie.
#[test]
fn mixed_products_round_twice() {
    let values = [f(1.0 + 2f32.powi(-11)), f(1.0), f(2f32.powi(-40))];
    assert_eq!(one("gfx942", "v_fma_mixlo_f16 v0, v1, v2, v3", 0, &values), 0x3c00);
}

#[test]
fn parts_of_words() {
    let text = |tail: &str| format!("v_or_b32_sdwa v0, v1, v2 {tail}");
    let values = [0x8899_aabb, 0x1122_3344];
    let word = |tail: &str| one("gfx942", &text(tail), 0x5566_7788, &values);
    assert_eq!(word("dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD"), 0x1122_bbdd);
    assert_eq!(word("dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:BYTE_0"), 0x0000_00cc);
    assert_eq!(word("dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:BYTE_0"), 0x00ff_0000);
    assert_eq!(word("dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0 src1_sel:BYTE_0"), 0x5566_ff88);
    assert_eq!(word("dst_sel:BYTE_0 dst_unused:UNUSED_SEXT src0_sel:BYTE_0 src1_sel:BYTE_0"), 0xffff_ffff);
    let sext = "v_add_u32_sdwa v0, sext(v1), v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:BYTE_0";
    assert_eq!(one("gfx942", sext, 0, &values), 0xffff_aabbu32.wrapping_add(0x44));
    let half = "v_cvt_f32_f16_sdwa v0, -v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1";
    assert_eq!(one("gfx942", half, 0, &[0x4000_0000]), f(-2.0));
}

/// v0 of all lanes after an instruction on v1, which holds the numbers of the lanes.
fn moved(chip: &str, exec: u64, tail: &str) -> Vec<u32> {
    let mut w = filled(chip, &[77]);
    w.vgpr[1] = std::array::from_fn(|lane| lane as u32);
    w.set_exec(exec);
    run(&mut w, &format!("v_mov_b32_dpp v0, v1 {tail}"));
    w.vgpr[0][..w.isa.lanes as usize].to_vec()
}

#[test]
fn lanes_of_neighbours() {
    const ALL: u64 = u64::MAX;
    let check = |tail: &str, want: fn(u32) -> u32| {
        let got = moved("gfx942", ALL, tail);
        assert_eq!(got, (0..64).map(want).collect::<Vec<_>>(), "{tail}");
    };
    check("quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf", |l| l ^ 3);
    check("row_shl:1 row_mask:0xf bank_mask:0xf", |l| if l % 16 == 15 { 77 } else { l + 1 });
    check("row_shl:1 row_mask:0xf bank_mask:0xf bound_ctrl:1", |l| if l % 16 == 15 { 0 } else { l + 1 });
    check("row_shr:3 row_mask:0xf bank_mask:0xf", |l| if l % 16 < 3 { 77 } else { l - 3 });
    check("row_ror:4 row_mask:0xf bank_mask:0xf", |l| l / 16 * 16 + (l + 12) % 16);
    check("row_mirror row_mask:0xf bank_mask:0xf", |l| l ^ 15);
    check("row_half_mirror row_mask:0xf bank_mask:0xf", |l| l ^ 7);
    check("wave_shl:1 row_mask:0xf bank_mask:0xf", |l| if l == 63 { 77 } else { l + 1 });
    check("wave_shr:1 row_mask:0xf bank_mask:0xf", |l| if l == 0 { 77 } else { l - 1 });
    check("wave_rol:1 row_mask:0xf bank_mask:0xf", |l| (l + 1) % 64);
    check("wave_ror:1 row_mask:0xf bank_mask:0xf", |l| (l + 63) % 64);
    check("row_bcast:15 row_mask:0xa bank_mask:0xf", |l| if l / 16 % 2 == 1 { l / 16 * 16 - 1 } else { 77 });
    check("row_bcast:31 row_mask:0xc bank_mask:0xf", |l| if l >= 32 { 31 } else { 77 });
    check("row_newbcast:5 row_mask:0xf bank_mask:0xf", |l| l / 16 * 16 + 5);
    check(
        "quad_perm:[0,0,0,0] row_mask:0x5 bank_mask:0x3",
        |l| {
            if l / 16 % 2 == 0 && l % 16 < 8 { l & !3 } else { 77 }
        },
    );
    let rdna = |tail: &str| moved("gfx1100", ALL, tail);
    assert_eq!(rdna("row_xmask:5 row_mask:0xf bank_mask:0xf"), (0..32).map(|l| l ^ 5).collect::<Vec<_>>());
    assert_eq!(rdna("row_share:2 row_mask:0xf bank_mask:0xf"), (0..32).map(|l| l / 16 * 16 + 2).collect::<Vec<_>>());
    assert_eq!(rdna("dpp8:[7,6,5,4,3,2,1,0]"), (0..32).map(|l| l ^ 7).collect::<Vec<_>>());
}

#[test]
fn inactive_lanes_are_no_source() {
    let exec = !2u64;
    // Lane 0 reads the inactive lane 1.
    let first = |tail: &str| moved("gfx1100", exec, tail)[0];
    assert_eq!(first("quad_perm:[1,1,1,1] row_mask:0xf bank_mask:0xf"), 77);
    assert_eq!(first("quad_perm:[1,1,1,1] row_mask:0xf bank_mask:0xf bound_ctrl:1"), 0);
    assert_eq!(first("quad_perm:[1,1,1,1] row_mask:0xf bank_mask:0xf fi:1"), 1);
    assert_eq!(moved("gfx1100", exec, "quad_perm:[0,0,0,0] row_mask:0xf bank_mask:0xf")[1], 77);
    // The second source is not moved.
    let mut w = filled("gfx942", &[0]);
    w.vgpr[1] = std::array::from_fn(|lane| lane as u32);
    w.vgpr[2] = [100; 64];
    run(&mut w, "v_add_u32_dpp v0, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1");
    assert_eq!((w.vgpr[0][0], w.vgpr[0][5]), (100, 104));
}

#[test]
fn inactive_lanes_keep_their_values() {
    for chip in ["gfx942", "gfx1201"] {
        let mut w = filled(chip, &[5, 1, 2]);
        w.set_exec(0x8000_0001);
        run(&mut w, "v_add_u32_e32 v0, v1, v2");
        assert_eq!((w.vgpr[0][0], w.vgpr[0][1], w.vgpr[0][31]), (3, 5, 3));
        run(&mut w, "v_mov_b64_e32 v[0:1], -1");
        assert_eq!((w.vgpr[0][1], w.vgpr[1][31], w.vgpr[1][2]), (5, u32::MAX, 1));
    }
}

#[test]
fn subnormal_numbers_follow_the_mode() {
    let run_with = |change: fn(&mut Wave), text: &str, values: &[u32]| {
        let mut w = filled("gfx942", &[&[0], values].concat());
        change(&mut w);
        run(&mut w, text);
        w.vgpr[0][0]
    };
    let tiny = [f(1e-40), f(1.0)];
    type Change = fn(&mut Wave);
    let keep: Change = |_| {};
    let no_in: Change = |w| w.mode.denormals32_in = false;
    let no_out: Change = |w| w.mode.denormals32_out = false;
    assert_eq!(run_with(keep, "v_mul_f32_e32 v0, v1, v2", &tiny), f(1e-40));
    assert_eq!(run_with(no_in, "v_mul_f32_e32 v0, v1, v2", &tiny), 0);
    assert_eq!(run_with(no_in, "v_mul_f32_e64 v0, -v1, v2", &tiny), 0x8000_0000);
    assert_eq!(run_with(no_out, "v_mul_f32_e32 v0, v1, v2", &[f(1e-20), f(1e-20)]), 0);
    assert_eq!(run_with(no_in, "v_mov_b32_e32 v0, v1", &tiny), f(1e-40));
    let half: Change = |w| (w.mode.denormals16_64_in, w.mode.denormals16_64_out) = (false, false);
    assert_eq!(run_with(half, "v_pk_add_f16 v0, v1, v2", &[0x0001_3c00, 0x3c00_8001]), 0x3c00_3c00);
    assert_eq!(run_with(half, "v_mul_f16_e32 v0, v1, v2", &[0x0400, 0x3800]), 0);
    assert_eq!(run_with(half, "v_cvt_f32_f16_e32 v0, v1", &[1]), 0);
}

#[test]
fn results_round_in_the_mode_s_direction() {
    let directions = [Rounding::NearestEven, Rounding::Up, Rounding::Down, Rounding::TowardZero];
    let all = |text: &str, values: &[u32]| {
        directions.map(|r| {
            let mut w = filled("gfx942", &[&[0, 0], values].concat());
            (w.mode.round32, w.mode.round16_64) = (r, r);
            run(&mut w, text);
            w.vgpr[0][0]
        })
    };
    let one = f(1.0);
    assert_eq!(all("v_add_f32_e32 v0, v2, v3", &[one, f(1e-12)]), [one, one + 1, one, one]);
    assert_eq!(all("v_sub_f32_e32 v0, v2, v3", &[one, f(1e-12)]), [one, one, one - 1, one - 1]);
    assert_eq!(all("v_mul_f32_e32 v0, v2, v3", &[one + 1, one + 1]), [one + 2, one + 3, one + 2, one + 2]);
    assert_eq!(all("v_fma_f32 v0, v2, v3, v4", &[one, one, f(-1e-12)]), [one, one, one - 1, one - 1]);
    assert_eq!(all("v_add_f16_e32 v0, v2, v3", &[0x3c00, 0x0001]), [0x3c00, 0x3c01, 0x3c00, 0x3c00]);
    assert_eq!(all("v_cvt_f16_f32_e32 v0, v2", &[f(1.0001)]), [0x3c00, 0x3c01, 0x3c00, 0x3c00]);
    assert_eq!(all("v_cvt_f32_u32_e32 v0, v2", &[0x0100_0001]), [0x4b80_0000, 0x4b80_0001, 0x4b80_0000, 0x4b80_0000]);
    // An exact zero is negative when rounding down.
    assert_eq!(all("v_sub_f32_e32 v0, v2, v3", &[one, one]), [0, 0, 0x8000_0000, 0]);
    // f64: 1 + 2^-60.
    let tiny = f64::from_bits((1023 - 60) << 52).to_bits();
    let values = [0, 0x3ff0_0000, tiny as u32, (tiny >> 32) as u32];
    assert_eq!(all("v_add_f64 v[0:1], v[2:3], v[4:5]", &values), [0, 1, 0, 0]);
    assert_eq!(all("v_fma_f64 v[0:1], v[2:3], v[2:3], v[4:5]", &values), [0, 1, 0, 0]);
    let x = [1, 0x3ff0_0000];
    assert_eq!(all("v_mul_f64 v[0:1], v[2:3], v[2:3]", &x), [2, 3, 2, 2]);
}

#[test]
fn scalar_results() {
    let mut w = wave("gfx1201");
    w.sgpr[4] = f(4.0);
    w.set_exec(0);
    run(&mut w, "v_s_rcp_f32 s5, s4");
    run(&mut w, "v_s_sqrt_f32 s6, s4");
    assert_eq!([w.sgpr[5], w.sgpr[6]], [f(0.25), f(2.0)]);
}
