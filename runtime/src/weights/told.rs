//! Checks a checkpoint against the assumptions of the weight plan: tensors that only describe how
//! others are stored, scales, and codes that must not be NaN.
use super::fetch::fetch;
use super::making::Making;
use super::pack::{self, Piece, RUN};
use super::parts::{Name, Origin, Part, Scaled, Told, Value};
use super::present;
use crate::checkpoint::{CheckpointError, Float, Source, Tensor};
use atomc_artifact::manifest::DType;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

/// Rows that are checked together.
const ROWS: usize = 64;

/// Finds faults of a weight's tensors before anything is made of them. Tensors that a source makes
/// up pass.
pub(super) fn check<'a>(
    value: &Value<'a>,
    source: &'a dyn Source,
    missing: &mut BTreeSet<String>,
) -> Result<(), CheckpointError> {
    value.told.iter().try_for_each(|told| check_told(told, source, missing))?;
    value.scaled.iter().try_for_each(|scaled| check_scales(scaled, source, missing))
}

/// Checks that the tensors which only describe others have types that can.
pub(super) fn check_types(
    value: &Value,
    source: &dyn Source,
    missing: &mut BTreeSet<String>,
) -> Result<(), CheckpointError> {
    // Floats are parts of the weight itself. Their types are checked with it.
    for part in value.told.iter().filter(|told| !told.is.is_of_floats()).flat_map(|told| &told.parts) {
        let Origin::Tensor { name, ref shape } = part.origin else { continue };
        if let Some(data) = present(source.tensor(&name.text(), shape), missing)? {
            check_integers(data, part, &name.text())?;
        }
    }
    Ok(())
}

fn check_told(told: &Told, source: &dyn Source, missing: &mut BTreeSet<String>) -> Result<(), CheckpointError> {
    if told.is.is_of_floats() {
        return check_floats(told, source, missing);
    }
    let mut all = Vec::new();
    for part in &told.parts {
        let Some(pieces) = pieces(std::slice::from_ref(part), &told.shape, source, missing)? else { return Ok(()) };
        pieces.iter().try_for_each(|piece| check_integers(piece.data, part, &piece.name.text()))?;
        all.extend(pieces);
    }
    let [rows, cols] = matrix(&told.shape);
    let mut numbers = Vec::with_capacity(rows * cols);
    for row in 0..rows {
        numbers.extend(integers(&all, row, 0..cols)?);
    }
    match told.is.fault(&numbers, cols) {
        None => Ok(()),
        Some(detail) => Err(CheckpointError::Told { name: names(&all), detail }),
    }
}

/// Checks that the model can compute with the floats.
fn check_floats(told: &Told, source: &dyn Source, missing: &mut BTreeSet<String>) -> Result<(), CheckpointError> {
    for part in &told.parts {
        let Some(pieces) = pieces(std::slice::from_ref(part), &told.shape, source, missing)? else { return Ok(()) };
        for piece in &pieces {
            piece.data.check_becomes(part.stored(DType::F32), piece.name)?;
            look(piece, &|number| told.is.suits(number), &mut |_, at, number| {
                let detail = format!("it has {number} at {at:?}, and {}", told.is.wants());
                Err(CheckpointError::Told { name: piece.name.to_string(), detail })
            })?;
        }
    }
    Ok(())
}

/// The names of the tensors of pieces; of many only the first ones.
fn names(pieces: &[Piece]) -> String {
    let names: BTreeSet<Cow<str>> = pieces.iter().map(|piece| piece.name.text()).collect();
    let more = names.len().saturating_sub(SHOWN);
    let shown = names.into_iter().take(SHOWN).collect::<Vec<_>>().join("`, `");
    if more == 0 { shown } else { format!("{shown}` and {more} more, `…") }
}

/// Most names of tensors in a message.
const SHOWN: usize = 4;

/// Checks that a tensor which only describes others has integers, or the words that they are packed
/// in.
pub(super) fn check_integers(data: Tensor, part: &Part, name: &str) -> Result<(), CheckpointError> {
    let (Tensor::Bytes { float, .. } | Tensor::Stored { float, .. } | Tensor::Device { float, .. }) = data else {
        return Ok(());
    };
    let fits = match float {
        Float::I64 => !part.is_packed(),
        Float::Code(dtype) if part.is_packed() => part.stored(dtype) == dtype,
        Float::Code(dtype) => dtype.integers().is_some(),
        _ => false,
    };
    let fault = || CheckpointError::Integers { name: name.to_owned(), found: float.name() };
    if fits { Ok(()) } else { Err(fault()) }
}

fn check_scales<'a>(
    scaled: &Scaled<'a>,
    source: &'a dyn Source,
    missing: &mut BTreeSet<String>,
) -> Result<(), CheckpointError> {
    let mut of = |value: &Value<'a>| pieces(&value.parts, &value.shape, source, missing);
    let (scales, codes) = (of(&scaled.scale)?, of(&scaled.codes)?);
    let zeros = scaled.zero.as_ref().map(|zero| of(zero)).transpose()?.flatten();
    let (Some(scales), Some(codes)) = (scales, codes) else { return Ok(()) };
    // Floats are no zero points: they are added, so a code of nothing is zero.
    let (zeros, least): (Option<Vec<Piece>>, _) = match zeros {
        Some(pieces) if pieces.iter().any(has_floats) => (None, pieces),
        zeros => (zeros, Vec::new()),
    };
    least.iter().try_for_each(|piece| {
        look(piece, &|number| number.is_finite(), &mut |_, at, number| {
            let detail = format!("it has {number} at {at:?}, and no least number is not finite");
            Err(CheckpointError::Told { name: piece.name.to_string(), detail })
        })
    })?;
    // Scales that are quantised here pass.
    if scales.iter().any(|piece| matches!(piece.made, Some(Making::Encode(_)))) {
        return Ok(());
    }
    let is_signed = codes.iter().all(has_integers_of_words);
    let good = |scale: f32| scale.is_finite() && (scale > 0.0 || scale < 0.0 && is_signed);
    scales.iter().try_for_each(|piece| {
        look(piece, &good, &mut |place, at, scale| {
            let name = || piece.name.to_string();
            match scale == 0.0 {
                true if is_zero(scaled, &codes, zeros.as_deref(), place)? => Ok(()),
                true => Err(CheckpointError::ZeroScale { name: name(), at }),
                false => Err(CheckpointError::Scale { name: name(), scale, at }),
            }
        })
    })
}

/// Whether a piece has integers out of words. AutoRound gives them negative scales, so that the
/// least code means the largest number.
fn has_integers_of_words(piece: &Piece) -> bool {
    piece.form.and_then(|form| form.codes).is_some_and(|codes| codes.becomes.is_integer_code())
}

/// Whether a piece has floats.
fn has_floats(piece: &Piece) -> bool {
    match piece.data {
        Tensor::Bytes { float, .. } | Tensor::Stored { float, .. } | Tensor::Device { float, .. } => {
            matches!(float, Float::BF16 | Float::F16 | Float::F32 | Float::F64)
        }
        Tensor::Values(_) => true,
        Tensor::Random(_) => false,
    }
}

/// Called with each number that fails a check: its place among the numbers, its place in its
/// tensor, and the number.
type Found<'a> = &'a mut dyn FnMut([usize; 2], [usize; 2], f32) -> Result<(), CheckpointError>;

/// Calls `found` with each number that is not `good`.
fn look(whole: &Piece, good: &dyn Fn(f32) -> bool, found: Found) -> Result<(), CheckpointError> {
    let (mut memory, mut numbers) = (Vec::new(), [0.0; RUN]);
    let (first, (place, down, beside)) = (whole.at.0, whole.places());
    for start in (first..first + whole.rows.len()).step_by(ROWS) {
        let rows = start..(start + ROWS).min(first + whole.rows.len());
        for piece in fetch(std::slice::from_ref(whole), &rows, &mut memory)? {
            let runs = |row: usize| (0..piece.cols.len()).step_by(RUN).map(move |skip| (row, skip));
            for (row, skip) in (0..rows.len()).flat_map(runs) {
                let numbers = &mut numbers[..RUN.min(piece.cols.len() - skip)];
                read(&piece.data, (piece.rows.start + row) * piece.stride + piece.cols.start + skip, numbers);
                for (col, &scale) in numbers.iter().enumerate().filter(|(_, scale)| !good(**scale)) {
                    let (row, col) = (start + row, skip + col);
                    let place = place + (row - first) * down + col * beside;
                    found([row, whole.at.1 + col], [place / whole.width, place % whole.width], scale)?;
                }
            }
        }
    }
    Ok(())
}

/// Whether the codes of a block are all its zero point.
fn is_zero(
    scaled: &Scaled,
    codes: &[Piece],
    zeros: Option<&[Piece]>,
    [row, col]: [usize; 2],
) -> Result<bool, CheckpointError> {
    let &[.., rows, cols] = &scaled.codes.shape[..] else { return Ok(true) };
    let grid = rows.div_ceil(scaled.block[0]);
    let first = row / grid * rows + row % grid * scaled.block[0];
    let last = (first + scaled.block[0]).min((row / grid + 1) * rows);
    let columns = col * scaled.block[1]..((col + 1) * scaled.block[1]).min(cols);
    let zero = zeros.map(|zeros| integers(zeros, row, col..col + 1)).transpose()?.map_or(0, |zero| zero[0]);
    for row in first..last {
        if integers(codes, row, columns.clone())?.iter().any(|&code| code != zero) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks that no code of a piece is NaN.
pub(super) fn check_piece(piece: &Piece) -> Result<(), CheckpointError> {
    let Tensor::Bytes { float, bytes } = piece.data else { return Ok(()) };
    let row = |row: usize| &bytes[row * piece.stride..][piece.cols.clone()];
    piece.rows.clone().try_for_each(|at| match has_others(float, row(at)) {
        true => Err(CheckpointError::NotANumber { name: piece.name.to_string() }),
        false => Ok(()),
    })
}

/// Checks that no code is NaN. Only codes with an exponent can be.
pub(super) fn check_numbers(name: &str, float: Float, codes: &[u8]) -> Result<(), CheckpointError> {
    match has_others(float, codes) {
        true => Err(CheckpointError::NotANumber { name: name.to_owned() }),
        false => Ok(()),
    }
}

/// Whether some code is NaN.
fn has_others(float: Float, codes: &[u8]) -> bool {
    let bad = || codes.iter().fold(false, |bad, code| bad | (code & 0x7f == 0x7f));
    float == Float::Code(DType::F8E4M3) && bad()
}

/// The pieces of parts; nothing if a tensor is missing or made up.
fn pieces<'a>(
    parts: &[Part<'a>],
    shape: &[usize],
    source: &'a dyn Source,
    missing: &mut BTreeSet<String>,
) -> Result<Option<Vec<Piece<'a>>>, CheckpointError> {
    let mut pieces = Vec::new();
    for part in parts {
        let (name, data) = match part.origin {
            Origin::Values(values) => (Name::Of(""), Tensor::Values(values)),
            Origin::Tensor { name, ref shape } => match present(source.tensor(&name.text(), shape), missing)? {
                None | Some(Tensor::Random(_)) => return Ok(None),
                Some(data) => (name, data),
            },
        };
        let by = part.making(source, missing)?;
        pieces.extend(part.pieces(name, (data, by), shape));
    }
    Ok(Some(pieces))
}

fn matrix(shape: &[usize]) -> [usize; 2] {
    match *shape {
        [ref rows @ .., cols] => [rows.iter().product(), cols],
        [] => [1, 1],
    }
}

/// Columns of a row as integers. For floats, the integer is zero exactly if the float is zero.
fn integers(pieces: &[Piece], row: usize, columns: Range<usize>) -> Result<Vec<i32>, CheckpointError> {
    let (mut memory, mut all) = (Vec::new(), vec![0; columns.len()]);
    for piece in fetch(pieces, &(row..row + 1), &mut memory)? {
        let Tensor::Bytes { float, bytes } = piece.data else { continue };
        let first = columns.start.max(piece.at.1);
        for col in first..columns.end.min(piece.at.1 + piece.cols.len()).max(first) {
            let number = piece.rows.start * piece.stride + piece.cols.start + col - piece.at.1;
            all[col - columns.start] = integer(float, bytes, number);
        }
    }
    Ok(all)
}

pub(super) fn integer(float: Float, bytes: &[u8], number: usize) -> i32 {
    let half = || bytes[number / 2] >> (number % 2 * 4) & 15;
    match float {
        Float::I64 => {
            let wide = i64::from_le_bytes(bytes[number * 8..][..8].try_into().expect("eight bytes"));
            // No check expects a number this large, so it fails all of them.
            i32::try_from(wide).unwrap_or(i32::MIN)
        }
        Float::Code(DType::I32) => i32::from_le_bytes(bytes[number * 4..][..4].try_into().expect("four bytes")),
        Float::Code(DType::I8) => i32::from(bytes[number] as i8),
        Float::Code(DType::U4) => half().into(),
        Float::Code(DType::I4) => (i32::from(half()) << 28) >> 28,
        // Without the sign: -0 is zero, too.
        Float::Code(DType::F4E2M1) => (half() & 7).into(),
        Float::Code(DType::F8E4M3) => (bytes[number] & 0x7f).into(),
        _ => bytes[number].into(),
    }
}

/// Reads scales, or other numbers that a model needs as they are.
pub(super) fn read(data: &Tensor, first: usize, out: &mut [f32]) {
    match *data {
        Tensor::Bytes { float: Float::Code(code), bytes } if code != DType::I32 => {
            out.iter_mut().zip(&bytes[first..]).for_each(|(out, &exponent)| *out = pack::power(exponent));
        }
        _ => pack::read(data, first, out),
    }
}
