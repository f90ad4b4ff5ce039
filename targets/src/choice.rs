//! The best of many scores, which are compared as whole numbers in their order. The least number of
//! the best is found byte by byte, from the highest one on.
use atomc_ir::{CacheType, Diagnostic, Graph, Op, Value};
use inkwell::values::FloatValue;

use crate::code::{Code, Int, Ptr};
use crate::row::unsupported;

const BUILT: &str = "numbers";
/// Values of a byte.
pub const DIGITS: usize = 256;

/// The number of a score above all others.
pub const ABOVE_ALL: u64 = u32::MAX as u64;

/// The choice of a body.
pub struct Choice {
    pub cache: CacheType,
    pub query: Value,
    /// The weights of heads whose scores are added up; without them each head has a list of its
    /// own.
    pub weight: Option<Value>,
    heads: usize,
    /// Entries of a list.
    pub k: usize,
    /// Positions of an entry, and how many of the last entries are always taken.
    pub size: usize,
    pub local: usize,
    /// Tokens of a row of the cache.
    pub every: usize,
}

impl Choice {
    /// The only choice of a body.
    pub fn of(body: &Graph) -> Result<Choice, Diagnostic> {
        let made = |id| {
            let operands = body.operands(id);
            let (weight, cache, [k, size, local]) = match *body.op(id) {
                Op::Choose { k, .. } => (Some(operands[1]), operands[2], [k, 1, 0]),
                Op::ChooseBlocks { k, block, local } => (None, operands[1], [k, block, local]),
                _ => return None,
            };
            let (query, cache) = (operands[0], body.ty(cache).as_cache()?);
            let every = if let Op::Choose { every: Some(every), .. } = *body.op(id) { every } else { 1 };
            let heads = body.ty(query).as_tensor()?.shape.0.get(1)?.fixed()?;
            Some(Choice { cache, query, weight, heads, k, size, local, every })
        };
        match &body.ids().filter_map(made).collect::<Vec<_>>()[..] {
            [_] => Ok(body.ids().find_map(made).expect("just found")),
            all => Err(unsupported(format!("{} choices where the family wants one", all.len()))),
        }
    }

    /// Heads whose scores are added up, and lists of a token.
    pub fn heads(&self) -> usize {
        if self.weight.is_some() { self.heads } else { 1 }
    }

    pub fn lists(&self) -> usize {
        self.heads / self.heads()
    }

    /// Whether an entry is one of the last ones, where `own` has the token's position.
    pub fn is_local<'c>(&self, c: &Code<'c>, entry: Int<'c>, own: Int<'c>) -> Int<'c> {
        c.less(own, entry + self.local)
    }
}

/// A score as a number of 32 bits in the order of the scores; both zeros are one. No score is zero,
/// so that any key may be chosen, even if all scores are NaN.
pub fn number<'c>(c: &Code<'c>, score: FloatValue<'c>) -> Int<'c> {
    let word = c.cx.i32_type();
    let score = c.b.build_float_add(score, c.number(0.0), "").expect(BUILT);
    let bits = c.as_int(c.bitcast(score, word));
    let number = bits ^ (bits.shift_right(31, true) | c.as_int(word.const_int(1 << 31, false)));
    c.pick_int(c.equal(number, 0), number.constant(1), number)
}

/// A number of a list of such numbers, as an index.
pub fn load<'c>(c: &Code<'c>, list: Ptr<'c>, at: Int<'c>) -> Int<'c> {
    wide(c, c.as_int(c.load(c.cx.i32_type(), c.at(list, at * 4), 4)))
}

/// A number as an index.
pub fn wide<'c>(c: &Code<'c>, number: Int<'c>) -> Int<'c> {
    c.as_int(c.b.build_int_z_extend_or_bit_cast(number.v, c.index, "").expect(BUILT))
}

/// The bytes of a number above one of its bytes.
pub fn above(number: Int<'_>, byte: usize) -> Int<'_> {
    if byte == 3 { number.constant(0) } else { number.shift_right(8 * (byte + 1), false) }
}

/// One byte of a number.
pub fn digit(number: Int<'_>, byte: usize) -> Int<'_> {
    number.shift_right(8 * byte, false) & 0xff
}

/// Of `n` counts from one of a list on the number of the last one with at least as many from it on
/// as are wanted, and the sum of those after it.
pub fn last_of<'c>(c: &Code<'c>, (counts, from, n): (Ptr<'c>, Int<'c>, usize), wanted: Int<'c>) -> [Int<'c>; 2] {
    let all: Vec<Int<'c>> = (0..n).map(|i| load(c, counts, from + i)).collect();
    let none = c.int(0);
    let [_, last, before] = (0..n).rev().fold([none; 3], |[sum, last, before], i| {
        let total = sum + all[i];
        let is_last = c.less(sum, wanted) & !c.less(total, wanted);
        [total, c.pick_int(is_last, c.int(i), last), c.pick_int(is_last, sum, before)]
    });
    [last, before]
}

/// Of counts for each value of a byte the largest value with at least as many numbers from it on as
/// are wanted, and the count of those above it.
pub fn last_digit<'c>(c: &Code<'c>, counts: Ptr<'c>, wanted: Int<'c>) -> [Int<'c>; 2] {
    let none = c.int(0);
    let [_, digit, before] = c.carry((0, DIGITS, 1), [none; 3], |i, [sum, digit, before]| {
        let candidate = (DIGITS - 1) - i;
        let total = sum + load(c, counts, candidate);
        let is_last = c.less(sum, wanted) & !c.less(total, wanted);
        [total, c.pick_int(is_last, candidate, digit), c.pick_int(is_last, sum, before)]
    });
    [digit, before]
}
