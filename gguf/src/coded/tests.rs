use super::*;

/// Bytes that are all different enough: of a linear congruential generator.
fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((*state >> 24) as u8)
    };
    let mut state = seed;
    std::iter::from_fn(|| next(&mut state)).take(count).collect()
}

/// What the pieces of a weight mean, by the arithmetic of products.
fn meant(coded: &Coded, split: &Split) -> Vec<f32> {
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let float = |piece: Piece, at: usize| {
        let bytes = split.bytes(coded, piece);
        match coded.dtype(piece) {
            DType::F16 => scale(bytes[2 * at], bytes[2 * at + 1]),
            DType::E8M0 => power(bytes[at]),
            DType::U8 => f32::from(bytes[at]),
            _ => f32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap()),
        }
    };
    let codes = split.bytes(coded, Piece::Codes);
    let nibble = |at: usize| codes[at / 2] >> (4 * (at % 2)) & 15;
    let code = |at: usize| match coded.codes {
        DType::I8 => f32::from(codes[at] as i8),
        DType::U8 => f32::from(codes[at]),
        DType::U4 => f32::from(nibble(at)),
        DType::I4 => f32::from((nibble(at) << 4) as i8 >> 4),
        DType::F4E2M1 => E2M1[usize::from(nibble(at) & 7)] * if nibble(at) > 7 { -1.0 } else { 1.0 },
        other => panic!("{}", other.name()),
    };
    (0..split.codes.len())
        .map(|at| {
            let by = float(Piece::Scales, at / coded.group);
            match coded.least {
                None => code(at) * by,
                Some(DType::U8) => (code(at) - float(Piece::Least, at / coded.group)) * by,
                Some(_) => code(at) * by + float(Piece::Least, at / coded.group),
            }
        })
        .collect()
}

/// Blocks of any bits, of which a scale that is no finite number is left out.
#[test]
fn pieces_mean_what_the_reference_makes() {
    for &kind in Type::ALL {
        let Some(coded) = kind.coded() else { continue };
        let (mut seen, mut zeros) = (0, 0);
        for seed in 0..200 {
            let mut block = bytes(kind.block_bytes(), seed);
            if seed % 7 == 0 {
                // A block of nothing: its scale is zero, its codes are not.
                let (at, len) = match kind {
                    Type::Q2_K => (80, 4),
                    Type::Q3_K => (108, 2),
                    Type::Q6_K => (208, 2),
                    Type::TQ1_0 => (52, 2),
                    Type::TQ2_0 => (64, 2),
                    Type::MXFP4 => (0, 0),
                    _ => (0, 2),
                };
                block[at..at + len].fill(0);
            }
            let mut want = vec![0.0; kind.block()];
            kind.dequantise(&block, &mut want);
            if want.iter().any(|number| !number.is_finite()) {
                continue;
            }
            let split = Split::of(kind, &block);
            if split.scales.iter().any(|scale| scale.is_nan()) {
                continue;
            }
            let found = meant(&coded, &split);
            // A zero may have another sign.
            assert_eq!(found, want, "{} {seed}", kind.name());
            let nothing = |codes: &[i16]| codes.iter().all(|&code| code == 0 || coded.least == Some(DType::U8));
            for (codes, scale) in split.codes.chunks(coded.group).zip(&split.scales) {
                assert!(*scale != 0.0 || nothing(codes), "{} {seed}", kind.name());
                zeros += usize::from(*scale == 0.0);
                let stays = coded.least.is_some_and(DType::is_float);
                assert!(*scale >= 0.0 || stays || codes.contains(&-128), "{} {seed}", kind.name());
            }
            seen += 1;
        }
        assert!(seen > 100, "{}: {seen}", kind.name());
        assert!(zeros > 10 || kind == Type::MXFP4, "{}: {zeros}", kind.name());
    }
}

#[test]
fn pieces_have_the_widths_of_rows() {
    for &kind in Type::ALL {
        let Some(coded) = kind.coded() else { continue };
        let columns = 2 * kind.block();
        let split = Split::of(kind, &bytes(2 * kind.block_bytes(), 5));
        for piece in Piece::ALL.into_iter().filter(|&piece| coded.has(piece)) {
            let want = coded.width(piece, columns) * coded.dtype(piece).size();
            assert_eq!(split.bytes(&coded, piece).len(), want, "{} {}", kind.name(), piece.name());
        }
    }
}
