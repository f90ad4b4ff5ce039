use atomc_ir::trial::fetch;

use super::*;
use crate::Form;
use crate::llvm::{self, Llvm};

fn decoded(decoder: Decoder, words: &[u32], zero: Option<i32>) -> Vec<u32> {
    folded(|c| {
        let known = |bits: u32| c.as_int(c.cx.i32_type().const_int(bits.into(), false));
        let zero = zero.map(|zero| decoder.zero(c, known(zero as u32)));
        let words: Vec<Int> = words.iter().map(|&word| known(word)).collect();
        decoder.decode(c, &words, zero)
    })
}

/// LLVM folds constants: the words that a function of constants stores are in its text.
fn folded(words: impl for<'c> FnOnce(&Code<'c>) -> Vec<Int<'c>>) -> Vec<u32> {
    let cx = llvm::context();
    let b = cx.create_builder();
    let arch = crate::rows().iter().find(|arch| arch.name == "x86-64-v3").unwrap();
    let pointer = cx.ptr_type(Default::default());
    let ty = cx.void_type().fn_type(&[pointer.into()], false);
    let c = Code::open(Llvm { cx: &cx, b: &b }, "k", arch, ty, 1, cx.i64_type());
    let out = c.function.get_nth_param(0).unwrap().into_pointer_value();
    for (i, word) in words(&c).into_iter().enumerate() {
        c.store(c.at(out, 4 * i), word, 4);
    }
    let text = llvm::text(&c.finish(), arch, Form::Llvm).unwrap();
    let stored = |line: &str| line.trim().strip_prefix("store i32 ")?.split(',').next()?.parse::<i64>().ok();
    text.lines().filter_map(stored).map(|word| word as u32).collect()
}

/// Every code of every type, in pairs and by way of words, less some zero points.
#[test]
fn every_code() {
    let ways = [(DType::BF16, true), (DType::BF16, false), (DType::F16, true), (DType::F32, false)];
    for codes in DType::ALL.into_iter().filter(|dtype| dtype.is_code()) {
        let bytes: Vec<u8> = match codes.bits() {
            4 => (0..16).flat_map(|low| [low | 0x50, low << 4 | 10]).collect(),
            _ => (0..=255).collect(),
        };
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
        let zeros: &[Option<i32>] =
            if codes.is_integer_code() { &[None, Some(0), Some(8), Some(-3), Some(15), Some(128)] } else { &[None] };
        for ((to, pairs), zero) in ways.into_iter().flat_map(|way| zeros.iter().map(move |&zero| (way, zero))) {
            let got =
                decoded(Decoder { codes, to, pairs, conversion: Conversion::Nothing, apart: false }, &words, zero);
            let got: Vec<u8> = got.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(got.len(), bytes.len() * 8 / codes.bits() * to.size());
            for i in 0..bytes.len() * 8 / codes.bits() {
                let want = fetch(&bytes, i, codes) - f64::from(zero.unwrap_or(0));
                let got = fetch(&got, i, to);
                // Signed integers of eight bits are exact; larger ones are rounded.
                let exact = to != DType::BF16 || want.abs() <= 256.0;
                let right = if exact { got == want } else { (got - want).abs() <= 1.0 };
                assert!(
                    right || got.is_nan() && want.is_nan() || is_nan_of_f8(codes, bytes[i * codes.bits() / 8]),
                    "{} {i} less {zero:?} as {} {pairs}: {got}, not {want}",
                    codes.name(),
                    to.name()
                );
            }
        }
    }
}

/// Pairs of a word, half a word apart, of each code of e2m1, times scales of e8m0: as one
/// factor, if there is one.
#[test]
fn a_scale_and_what_bits_lack_are_a_factor() {
    let decoder =
        Decoder { codes: DType::F4E2M1, to: DType::BF16, pairs: true, conversion: Conversion::Nothing, apart: true };
    assert!(decoder.takes_exponents());
    let words = [0x7654_3210_u32, 0xfedc_ba98, 0x0f1e_2d3c];
    for byte in [0, 1, 60, 127, 128] {
        let got = folded(|c| {
            let known = |bits: u32| c.as_int(c.cx.i32_type().const_int(bits.into(), false));
            let factor = decoder.factor_of(known(byte));
            words.iter().flat_map(|&word| decoder.times_factor(c, known(word), factor)).collect()
        });
        let scale = (f64::from(byte) - 127.0).exp2();
        let want = words.iter().flat_map(|word| {
            let code = move |i: usize| fetch(&word.to_le_bytes(), i, DType::F4E2M1) * scale;
            (0..4).flat_map(move |i| [code(i), code(i + 4)])
        });
        let bytes: Vec<u8> = got.iter().flat_map(|word| word.to_le_bytes()).collect();
        let got: Vec<f64> = (0..8 * words.len()).map(|i| fetch(&bytes, i, DType::BF16)).collect();
        assert_eq!(got, want.collect::<Vec<_>>(), "{byte}");
    }
    let has_none = |byte: u32| {
        folded(|c| {
            let known = |bits: u32| c.as_int(c.cx.i32_type().const_int(bits.into(), false));
            vec![c.pick_int(decoder.has_no_factor(c, &[known(3), known(byte)]), known(1), known(0))]
        })
    };
    assert_eq!([128, 129, 255].map(has_none), [[0], [1], [1]]);
}

/// Whether bits are NaN. A decoder that does not check reads them as 480.
fn is_nan_of_f8(codes: DType, bits: u8) -> bool {
    codes == DType::F8E4M3 && bits & 0x7f == 0x7f
}
