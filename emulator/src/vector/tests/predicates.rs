//! All comparisons: each predicate by the relations that it accepts: less, equal, greater and
//! unordered.
use std::cmp::Ordering::{self, Equal, Greater, Less};
use std::sync::LazyLock;

use super::{combinations, is_wide, register, run, wave};
use crate::inst::scalar;

type Accept = fn(Option<Ordering>) -> bool;

const FLOATS: &[(&str, Accept)] = &[
    ("f", |_| false),
    ("lt", |o| o == Some(Less)),
    ("eq", |o| o == Some(Equal)),
    ("le", |o| matches!(o, Some(Less | Equal))),
    ("gt", |o| o == Some(Greater)),
    ("lg", |o| matches!(o, Some(Less | Greater))),
    ("ge", |o| matches!(o, Some(Greater | Equal))),
    ("o", |o| o.is_some()),
    ("u", |o| o.is_none()),
    ("nge", |o| !matches!(o, Some(Greater | Equal))),
    ("nlg", |o| !matches!(o, Some(Less | Greater))),
    ("ngt", |o| o != Some(Greater)),
    ("nle", |o| !matches!(o, Some(Less | Equal))),
    ("neq", |o| o != Some(Equal)),
    ("nlt", |o| o != Some(Less)),
    ("tru", |_| true),
    ("t", |_| true),
];

const INTEGERS: &[(&str, Accept)] = &[
    ("f", |_| false),
    ("lt", |o| o == Some(Less)),
    ("eq", |o| o == Some(Equal)),
    ("le", |o| o != Some(Greater)),
    ("gt", |o| o == Some(Greater)),
    ("ne", |o| o != Some(Equal)),
    ("ge", |o| o != Some(Less)),
    ("t", |_| true),
];

/// Suffix, letter of the sources, order.
type Kind = (&'static str, char, fn(u64, u64) -> Option<Ordering>);

const FLOAT_KINDS: &[Kind] = &[
    ("f32", 'f', |a, b| f32::from_bits(a as u32).partial_cmp(&f32::from_bits(b as u32))),
    ("f16", 'h', |a, b| half::f16::from_bits(a as u16).partial_cmp(&half::f16::from_bits(b as u16))),
    ("f64", 'd', |a, b| f64::from_bits(a).partial_cmp(&f64::from_bits(b))),
];

const INTEGER_KINDS: &[Kind] = &[
    ("i32", 'u', |a, b| Some((a as i32).cmp(&(b as i32)))),
    ("u32", 'u', |a, b| Some(a.cmp(&b))),
    ("i16", 's', |a, b| Some((a as i16).cmp(&(b as i16)))),
    ("u16", 's', |a, b| Some(a.cmp(&b))),
    ("i64", 'w', |a, b| Some((a as i64).cmp(&(b as i64)))),
    ("u64", 'w', |a, b| Some(a.cmp(&b))),
];

fn all() -> impl Iterator<Item = (String, Kind, Accept)> {
    let list = |predicates: &'static [(&str, Accept)], kinds: &'static [Kind]| {
        predicates.iter().flat_map(move |p| kinds.iter().map(move |k| (format!("{}_{}", p.0, k.0), *k, p.1)))
    };
    list(FLOATS, FLOAT_KINDS).chain(list(INTEGERS, INTEGER_KINDS))
}

pub fn names() -> impl Iterator<Item = &'static str> {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let classes = ["f16", "f32", "f64"].map(|t| format!("class_{t}"));
        all().map(|a| a.0).chain(classes).flat_map(|n| [format!("v_cmp_{n}"), format!("v_cmpx_{n}")]).collect()
    });
    NAMES.iter().map(String::as_str)
}

#[test]
fn comparisons_do_as_defined() {
    for (name, (_, letter, order), accept) in all() {
        check("gfx942", &format!("v_cmp_{name}_e64 s[10:11]"), letter, |a, b| accept(order(a, b)));
        check("gfx1201", &format!("v_cmp_{name}_e64 s10"), letter, |a, b| accept(order(a, b)));
    }
}

fn check(chip: &str, head: &str, letter: char, wanted: impl Fn(u64, u64) -> bool) {
    let mut wave = wave(chip);
    let lanes = wave.isa.lanes as usize;
    let text = format!("{head}, {}, {}", register(letter, 1), register(letter, 2));
    // Lane 3 is inactive: its bit stays zero.
    let exec = wave.isa.all_lanes() & !8;
    wave.set_exec(exec);
    for chunk in combinations(&format!("{letter}{letter}")).chunks(lanes) {
        for (lane, values) in chunk.iter().enumerate() {
            for (k, value) in values.iter().enumerate() {
                wave.vgpr[2 * k + 2][lane] = *value as u32;
                if is_wide(letter) {
                    wave.vgpr[2 * k + 3][lane] = (value >> 32) as u32;
                }
            }
        }
        run(&mut wave, &text);
        let mask = u64::from(wave.sgpr[10]) | if lanes == 64 { u64::from(wave.sgpr[11]) << 32 } else { 0 };
        for (lane, values) in chunk.iter().enumerate() {
            let want = wanted(values[0], values[1]) && lane != 3;
            assert_eq!(mask >> lane & 1 == 1, want, "{chip}: {text}: of {values:x?}");
        }
    }
}

#[test]
fn cmpx_writes_exec_and_on_gfx9_vcc() {
    let mut old = wave("gfx942");
    old.vgpr[1] = std::array::from_fn(|lane| lane as u32);
    run(&mut old, "v_cmpx_gt_u32_e32 vcc, 7, v1");
    assert_eq!((old.exec(), old.scalar64(scalar::VCC)), (0x7f, 0x7f));
    let mut new = wave("gfx1100");
    new.vgpr[1] = std::array::from_fn(|lane| lane as u32);
    new.set_scalar64(scalar::VCC, 0x55);
    run(&mut new, "v_cmpx_gt_u32_e32 7, v1");
    assert_eq!((new.exec(), new.scalar64(scalar::VCC)), (0x7f, 0x55));
}

/// One bit for each class, from signalling NaN to positive infinity.
#[test]
fn classes() {
    let of32 = [
        0x7f80_0001u32,
        0x7fc0_0000,
        0xff80_0000,
        0xbf80_0000,
        0x8000_0001,
        0x8000_0000,
        0,
        1,
        0x3f80_0000,
        0x7f80_0000,
    ];
    let of16 = [0x7c01u32, 0x7e00, 0xfc00, 0xbc00, 0x8001, 0x8000, 0, 1, 0x3c00, 0x7c00];
    for class in 0..10 {
        let mut wave = wave("gfx942");
        for lane in 0..10 {
            wave.vgpr[1][lane] = of32[lane];
            wave.vgpr[2][lane] = of16[lane];
            let as_f64 = f64::from(f32::from_bits(of32[lane])).to_bits();
            let wide = match lane {
                0 => 0x7ff0_0000_0000_0001,
                4 => 1 << 63 | 1,
                7 => 1,
                _ => as_f64,
            };
            wave.vgpr[4][lane] = wide as u32;
            wave.vgpr[5][lane] = (wide >> 32) as u32;
            wave.vgpr[6][lane] = 1 << class;
        }
        wave.set_exec(0x3ff);
        for (name, source) in [("f32", "v1"), ("f16", "v2"), ("f64", "v[4:5]")] {
            run(&mut wave, &format!("v_cmp_class_{name}_e64 s[2:3], {source}, v6"));
            assert_eq!(wave.scalar64(2), 1 << class, "{name}");
        }
    }
}
