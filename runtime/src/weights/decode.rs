//! Numbers as a weight has them, of tensors that have them otherwise: words that are made of codes,
//! columns in the place of rows.
//!
//! What is decoded lies row by row, in the order of the weight. Every form has a slow way, a code
//! at a time; those of large matrices have a fast one, a word at a time.
use super::fetch::Grid;
use atomc_artifact::manifest::{DType, Order};

/// How the numbers of a tensor lie, where it is not row by row as the weight has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Form {
    /// Whether rows of the weight are columns of the tensor.
    pub turned: bool,
    /// Numbers along a row of the tensor from one that the weight has to the next.
    pub step: usize,
    pub codes: Option<Codes>,
}

/// Words of several codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Codes {
    /// The type of a word.
    pub from: DType,
    /// The type of the codes in it.
    pub to: DType,
    pub order: Order,
    /// Whether the codes of a word are below each other in the tensor, and not side by side.
    pub down: bool,
    /// What is added to each.
    pub by: i32,
    /// The type of the sum.
    pub becomes: DType,
}

/// Bytes that what is written at once is a multiple of.
const UNIT: usize = 4;
/// Places of the weight's columns that are turned while their lines of the tensor are at hand.
const BLOCK: usize = 128;

/// Where decoded rows lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub rows: usize,
    pub cols: usize,
    /// Elements before the first of a row: of two in a byte the first goes where it does in the
    /// weight.
    pub lead: usize,
    /// Bits of an element.
    pub bits: usize,
}

impl Rows {
    /// Bytes from one row to the next.
    pub fn bytes(&self) -> usize {
        ((self.lead + self.cols) * self.bits).div_ceil(8).next_multiple_of(UNIT)
    }
}

impl Codes {
    /// Codes of a word.
    pub fn places(&self) -> usize {
        self.from.bits() / self.to.bits()
    }

    /// A number for each code of four bytes, with its lowest bits.
    fn each(&self, number: u32) -> u32 {
        let bits = self.to.bits();
        (0..32 / bits).fold(0, |all, at| all | (number & mask(bits)) << (at * bits))
    }

    /// The codes of four bytes, with what is added, which stays in each.
    fn adder(&self) -> impl Fn(u32) -> u32 + Copy + use<> {
        let (by, high) = (self.each(self.by as u32), self.each(1 << (self.to.bits() - 1)));
        move |codes| ((codes & !high) + (by & !high)) ^ ((codes ^ by) & high)
    }

    /// The bits that become of a code.
    fn shifted(&self, code: u32) -> u32 {
        let bits = self.to.bits();
        let signed = matches!(self.to, DType::I8 | DType::I4);
        let value = if signed { ((code << (32 - bits)) as i32) >> (32 - bits) } else { code as i32 };
        value.wrapping_add(self.by) as u32 & mask(self.becomes.bits())
    }
}

fn mask(bits: usize) -> u32 {
    u32::MAX >> (32 - bits)
}

/// Decodes the part of a tensor that lies in a grid. `skip` is the number of codes to skip at the
/// beginning of the first word, along the rows and the columns of the tensor.
pub(super) fn decode(form: Form, grid: Grid, skip: [usize; 2], to: Rows, out: &mut [u8]) {
    let Some(codes) = form.codes else { return places(form, grid, to, out) };
    out.fill(0);
    let same = codes.to.bits() == codes.becomes.bits() && to.lead == 0;
    let plain = codes.order == Order::Plain;
    // Along the words, and across them.
    let [along, across] = if codes.down { skip } else { [skip[1], skip[0]] };
    debug_assert_eq!(across, 0, "words are whole across");
    match (form.turned, codes.down) {
        _ if form.step > 1 => one_by_one(form, codes, grid, skip, to, out),
        (false, false) if same && plain && (along * codes.to.bits()).is_multiple_of(8) => {
            copied(codes, grid, along * codes.to.bits() / 8, to, out);
        }
        (true, true) if same && plain && along == 0 && codes.from.bits() == 32 => words(codes, grid, to, out),
        (true, false) if same && codes.to.bits() == 4 && codes.from.bits() == 32 => {
            nibbles(codes, grid, along, to, out);
        }
        _ => one_by_one(form, codes, grid, skip, to, out),
    }
}

/// Numbers that are only elsewhere.
fn places(form: Form, grid: Grid, to: Rows, out: &mut [u8]) {
    match grid.size {
        1 => places_of::<1>(form, grid, to, out),
        2 => places_of::<2>(form, grid, to, out),
        4 => places_of::<4>(form, grid, to, out),
        _ => places_of::<8>(form, grid, to, out),
    }
}

fn places_of<const SIZE: usize>(Form { turned, step: apart, .. }: Form, grid: Grid, to: Rows, out: &mut [u8]) {
    let step = to.bytes();
    for first in (0..to.cols).step_by(BLOCK) {
        for row in 0..to.rows {
            let out = out[row * step..][..to.cols * SIZE].as_chunks_mut::<SIZE>().0;
            for (col, out) in out.iter_mut().enumerate().skip(first).take(BLOCK) {
                let (line, place) = if turned { (col, row) } else { (row, col) };
                *out = *grid.at(line, place * apart);
            }
        }
    }
}

/// Any form, code by code.
fn one_by_one(form: Form, codes: Codes, grid: Grid, skip: [usize; 2], to: Rows, out: &mut [u8]) {
    let (step, bits, places) = (to.bytes(), codes.to.bits(), codes.places());
    for row in 0..to.rows {
        let out = &mut out[row * step..][..step];
        for col in 0..to.cols {
            let (r, c) = if form.turned { (col, row) } else { (row, col) };
            let (r, c) = (r + skip[0], c * form.step + skip[1]);
            let (r, c, place) = if codes.down { (r / places, c, r % places) } else { (r, c / places, c % places) };
            let word = grid.word(r, c);
            let code = codes.shifted(word >> (codes.order.nth(place) * bits) & mask(bits));
            let at = to.lead + col;
            match to.bits {
                4 => out[at / 2] |= (code as u8) << (at % 2 * 4),
                _ => out[at] = code as u8,
            }
        }
    }
}

/// Rows of codes that lie as the weight has them, but for what is added.
fn copied(codes: Codes, grid: Grid, skip: usize, to: Rows, out: &mut [u8]) {
    let (step, add) = (to.bytes(), codes.adder());
    let bytes = (to.cols * to.bits).div_ceil(8);
    for row in 0..to.rows {
        let from = &grid.row(row)[skip..][..bytes];
        let out = &mut out[row * step..][..step];
        let (whole, rest) = from.as_chunks::<UNIT>();
        for (out, &four) in out.as_chunks_mut().0.iter_mut().zip(whole) {
            *out = add(u32::from_le_bytes(four)).to_le_bytes();
        }
        for (out, &byte) in out[whole.len() * UNIT..].iter_mut().zip(rest) {
            *out = add(byte.into()) as u8;
        }
        clear_behind(to, out);
    }
}

/// Words of codes that are below each other are words of the weight's row.
fn words(codes: Codes, grid: Grid, to: Rows, out: &mut [u8]) {
    let (step, add) = (to.bytes(), codes.adder());
    let count = to.cols.div_ceil(codes.places());
    for first in (0..count).step_by(BLOCK) {
        for row in 0..to.rows {
            let out = out[row * step..][..step].as_chunks_mut().0;
            for (word, out) in out.iter_mut().enumerate().take(count).skip(first).take(BLOCK) {
                *out = add(u32::from_le_bytes(*grid.at(word, row))).to_le_bytes();
            }
        }
    }
    (0..to.rows).for_each(|row| clear_behind(to, &mut out[row * step..][..step]));
}

/// Decodes words with codes side by side: eight of them, below each other, are eight words of as
/// many rows of the weight.
fn nibbles(codes: Codes, grid: Grid, skip: usize, to: Rows, out: &mut [u8]) {
    const EIGHT: usize = 8;
    let (step, add) = (to.bytes(), codes.adder());
    for first in (0..to.cols).step_by(BLOCK) {
        let last = (first + BLOCK).min(to.cols);
        for word in 0..(skip + to.rows).div_ceil(EIGHT) {
            for col in (first..last).step_by(EIGHT) {
                let at = |i: usize| if col + i < last { u32::from_le_bytes(*grid.at(col + i, word)) } else { 0 };
                let turned = turned([at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)]);
                for place in 0..EIGHT {
                    let row = (word * EIGHT + place).checked_sub(skip).filter(|&row| row < to.rows);
                    let Some(row) = row else { continue };
                    let codes = add(turned[codes.order.nth(place)]);
                    out[row * step + col / 2..][..UNIT].copy_from_slice(&codes.to_le_bytes());
                }
            }
        }
    }
    (0..to.rows).for_each(|row| clear_behind(to, &mut out[row * step..][..step]));
}

/// Eight by eight codes of four bits: word `i` of the result has those that are the `i`th of their
/// words.
fn turned(mut words: [u32; 8]) -> [u32; 8] {
    for (step, mask) in [(4, 0x0000_ffff), (2, 0x00ff_00ff), (1, 0x0f0f_0f0f_u32)] {
        for at in (0..8).filter(|at| at & step == 0) {
            let (one, other) = (words[at], words[at + step]);
            words[at] = one & mask | (other & mask) << (4 * step);
            words[at + step] = one >> (4 * step) & mask | other & !mask;
        }
    }
    words
}

/// Clears the bits after the last code of a row.
fn clear_behind(to: Rows, row: &mut [u8]) {
    let bits = (to.lead + to.cols) * to.bits;
    if !bits.is_multiple_of(8) {
        row[bits / 8] &= mask(bits % 8) as u8;
    }
    row[bits.div_ceil(8)..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_of_codes_are_turned() {
        let words = std::array::from_fn(|row| {
            (0..8).fold(0, |word, col| word | ((row * 3 + col * 5) as u32 & 15) << (4 * col))
        });
        for (col, word) in turned(words).into_iter().enumerate() {
            for (row, other) in words.into_iter().enumerate() {
                assert_eq!(word >> (4 * row) & 15, other >> (4 * col) & 15, "{row} {col}");
            }
        }
    }

    /// The fast ways are those that large matrices take; the slow one is the meaning.
    #[test]
    fn fast_ways_make_what_the_slow_one_makes() {
        let bytes: Vec<u8> = (0..1 << 19).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let types = [
            (DType::U4, DType::U4, 0),
            (DType::U4, DType::I4, -8),
            (DType::I4, DType::U4, 8),
            (DType::F4E2M1, DType::F4E2M1, 0),
            (DType::U8, DType::I8, -128),
            (DType::U8, DType::U8, 0),
            (DType::U4, DType::U8, 1),
            (DType::I4, DType::I8, -1),
        ];
        let mut compared = 0;
        for (to, becomes, by) in types {
            for (from, order) in [(DType::I32, Order::Plain), (DType::U8, Order::Plain), (DType::I32, Order::Awq)] {
                let places = from.bits() / to.bits();
                if !order.suits(places) {
                    continue;
                }
                for (turned, down) in [(false, false), (false, true), (true, false), (true, true)] {
                    for (rows, cols, along, lead) in [(24, 40, 0, 0), (19, 301, 0, 0), (33, 27, 3, 0), (9, 35, 2, 1)] {
                        let codes = Codes { from, to, order, down, by, becomes };
                        let lead = if becomes.bits() == 4 { lead } else { 0 };
                        let shape = Rows { rows, cols, lead, bits: becomes.bits() };
                        let skip = if down { [along, 0] } else { [0, along] };
                        let grid = Grid { bytes: &bytes, size: from.size(), stride: 331 };
                        let made = |decode: &dyn Fn(&mut [u8])| {
                            let mut out = vec![0xee; shape.bytes() * rows];
                            decode(&mut out);
                            out
                        };
                        let form = Form { turned, step: 1, codes: Some(codes) };
                        let quick = made(&|out| decode(form, grid, skip, shape, out));
                        let slow = made(&|out| {
                            out.fill(0);
                            one_by_one(form, codes, grid, skip, shape, out);
                        });
                        assert!(quick == slow, "{form:?} {shape:?} {skip:?}");
                        compared += usize::from(slow.iter().any(|&byte| byte != 0));
                    }
                }
            }
        }
        assert!(compared > 100, "something was compared");
    }
}
