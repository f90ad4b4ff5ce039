//! Checkpoints' formats of weights that are no plain tensors, and the further tensors of such a
//! weight.
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Where the codes of consecutive places lie in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The first has the lowest bits.
    #[default]
    Plain,
    /// Of eight places the even ones have the lower half of the word, as AWQ's kernels for GEMM
    /// want it.
    Awq,
    /// Codes of two bits, the first in the lowest ones, which become wider ones.
    Twos,
    /// The same of three bits: 32 of them are three words, and two of these lie in two words each.
    Threes,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 4] = [Order::Plain, Order::Awq, Order::Twos, Order::Threes];

    /// The name in graphs and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Order::Plain => "plain",
            Order::Awq => "awq",
            Order::Twos => "twos",
            Order::Threes => "threes",
        }
    }

    /// The bits of a stored code, if these are fewer than its type has.
    pub fn bits(self) -> Option<usize> {
        match self {
            Order::Plain | Order::Awq => None,
            Order::Twos => Some(2),
            Order::Threes => Some(3),
        }
    }

    /// The words that have `len` codes, which would be `codes` to a word if they were stored as
    /// wide as they become.
    pub fn words(self, len: usize, codes: usize) -> usize {
        match self.bits() {
            None => len.div_ceil(codes),
            Some(bits) => len.saturating_mul(bits).div_ceil(WORD),
        }
    }

    /// Whether words of `codes` codes may have this order.
    pub fn suits(self, codes: usize) -> bool {
        match self {
            Order::Plain => codes > 1,
            // Words of 32 bits and codes of four.
            Order::Awq | Order::Twos | Order::Threes => codes == 8,
        }
    }

    /// Which of a word's codes, counted from the lowest bits, is that of a place; of codes that are
    /// stored narrower, once they are wide.
    pub fn nth(self, place: usize) -> usize {
        match self {
            Order::Plain | Order::Twos | Order::Threes => place,
            Order::Awq => place / 2 + place % 2 * 4,
        }
    }
}

/// The size of a tensor that is a text: the most bytes that it has.
pub const TEXT: usize = 1 << 16;

/// Bits of a word of codes.
pub const WORD: usize = 32;

/// The places of numbers in the order of these, of equal ones in their own.
pub fn places<T: Ord>(numbers: &[T]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..numbers.len()).collect();
    places.sort_by_key(|&place| &numbers[place]);
    places
}

/// A code of some bits in words that lie `step` apart, counted from the first bit on.
pub fn code(words: &[u32], step: usize, bits: usize, number: usize) -> u32 {
    let (at, first) = (number * bits / WORD, number * bits % WORD);
    let low = words[at * step] >> first;
    let high = if first + bits > WORD { words[(at + 1) * step] << (WORD - first) } else { 0 };
    (low | high) & (u32::MAX >> (WORD - bits))
}

/// What numbers of a checkpoint must be: integers of a tensor that only says how others are stored,
/// or floats that the model computes with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fact {
    /// Each of them this one: zero points of a symmetric scheme.
    All(i32),
    /// These, in this order: the sizes of a weight.
    Are(Vec<i32>),
    /// For each column the number of its group, with this many consecutive columns in a group.
    Groups(usize),
    /// For each column the number of its group: this many columns have the first one, as many the
    /// next one, and so on, in any order.
    Members(usize),
    /// Floats that rows are divided by, each one of [`SCALES`].
    Scales,
    /// Floats that are added to others, none larger than [`MOST_ADDED`].
    Addends,
    /// Whole numbers from 0 on below this one, as floats.
    Below(usize),
}

/// Scales of rows and of a cache: what f32 holds stays a number and no zero when it is divided by
/// one and multiplied with a code.
pub const SCALES: RangeInclusive<f32> = f32::from_bits(63 << 23)..=f32::from_bits(191 << 23);
/// The largest number that is added to scores, either way: sums of a few are finite.
pub const MOST_ADDED: f32 = 1e30;

impl Fact {
    /// Whether it is said of floats.
    pub fn is_of_floats(&self) -> bool {
        matches!(self, Fact::Scales | Fact::Addends | Fact::Below(_))
    }

    /// Whether a float is as it must be.
    pub fn suits(&self, number: f32) -> bool {
        match self {
            Fact::Scales => SCALES.contains(&number),
            Fact::Addends => number.abs() <= MOST_ADDED,
            Fact::Below(end) => (0.0..*end as f32).contains(&number) && number.fract() == 0.0,
            _ => false,
        }
    }

    /// What floats have to be, for messages.
    pub fn wants(&self) -> &'static str {
        match self {
            Fact::Scales => "scales of rows and of a cache lie between 2^-64 and 2^64",
            Fact::Below(_) => "experts are whole numbers below their count",
            Fact::Addends => "what is added to scores is a number of at most 1e30",
            _ => "they are integers",
        }
    }

    /// The fault of numbers in rows of `width`, if there is one. Sizes and groups are those of each
    /// row: a stack of tensors has one for each.
    pub fn fault(&self, numbers: &[i32], width: usize) -> Option<String> {
        match self {
            Fact::All(_) | Fact::Scales | Fact::Addends | Fact::Below(_) => self.fault_of_row(numbers),
            _ => numbers.chunks(width.max(1)).find_map(|row| self.fault_of_row(row)),
        }
    }

    fn fault_of_row(&self, numbers: &[i32]) -> Option<String> {
        let other = |want: &dyn Fn(usize) -> i64| {
            let at = (0..numbers.len()).find(|&at| i64::from(numbers[at]) != want(at))?;
            Some((at, numbers[at], want(at)))
        };
        match self {
            Fact::All(one) => {
                other(&|_| (*one).into()).map(|(at, is, want)| format!("number {at} is {is}, not {want}"))
            }
            Fact::Are(all) => (numbers != all).then(|| format!("it is {numbers:?}, not {all:?}")),
            Fact::Groups(size) => other(&|at| (at / size) as i64).map(|(at, is, want)| {
                format!(
                    "column {at} is in group {is}, not {want}: columns in another order (act-order) without `desc_act`"
                )
            }),
            Fact::Members(size) => {
                let places = places(numbers);
                let at = (0..places.len()).find(|&at| i64::from(numbers[places[at]]) != (at / size) as i64)?;
                Some(format!("groups are not of {size} columns each: group {} is not", at / size))
            }
            Fact::Scales | Fact::Addends | Fact::Below(_) => {
                let at = numbers.iter().position(|&number| !self.suits(number as f32))?;
                Some(format!("number {at} is {}: {}", numbers[at], self.wants()))
            }
        }
    }

    /// The text of graphs.
    pub fn text(&self) -> String {
        match self {
            Fact::All(one) => format!("all({one})"),
            Fact::Are(all) => format!("are({})", all.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")),
            Fact::Groups(size) => format!("groups({size})"),
            Fact::Members(size) => format!("members({size})"),
            Fact::Scales => "scales()".into(),
            Fact::Addends => "addends()".into(),
            Fact::Below(end) => format!("below({end})"),
        }
    }

    /// What a text says, if it is one of [`Fact::text`].
    pub fn of_text(text: &str) -> Option<Fact> {
        let (name, numbers) = text.strip_suffix(')')?.split_once('(')?;
        match name {
            "all" => numbers.parse().ok().map(Fact::All),
            "are" => numbers.split(", ").map(|n| n.parse().ok()).collect::<Option<_>>().map(Fact::Are),
            "scales" => numbers.is_empty().then_some(Fact::Scales),
            "addends" => numbers.is_empty().then_some(Fact::Addends),
            "below" => numbers.parse().ok().filter(|&end| end > 0).map(Fact::Below),
            "members" => numbers.parse().ok().filter(|&size| size > 0).map(Fact::Members),
            "groups" => numbers.parse().ok().filter(|&size| size > 0).map(Fact::Groups),
            _ => None,
        }
    }
}

/// A tensor that has all matrices of a stack where a checkpoint has no tensor for each: rows from
/// `start` on of the `rows` that each of its matrices has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Whole {
    /// Of the tensor.
    pub name: String,
    /// The first row.
    pub start: usize,
    /// Rows of a matrix of the tensor.
    pub rows: usize,
}

/// What stands for the number in the name of a stack.
pub const STAR: &str = "*";

/// The name of one tensor of a stack: its number in the place of the star.
pub fn nth_name(stack: &str, number: usize) -> String {
    stack.replacen(STAR, &number.to_string(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awq_has_even_places_below_odd_ones() {
        // The places of a word's codes, from the lowest bits, are 0 2 4 6 1 3 5 7.
        let places = [0, 2, 4, 6, 1, 3, 5, 7];
        assert_eq!(places.map(|place| Order::Awq.nth(place)), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn codes_lie_across_words() {
        // Codes 10 and 21 of three bits lie in two words each.
        let words = [1 << 30, 1 | 1 << 31, 0b11];
        let codes: Vec<u32> = (0..32).map(|number| code(&words, 1, 3, number)).collect();
        assert_eq!((codes[10], codes[21]), (0b101, 0b111));
        assert_eq!(codes.iter().filter(|&&code| code != 0).count(), 2);
        assert_eq!(code(&[7, 0xc000_0000], 1, 2, 31), 3);
        assert_eq!(code(&[0, 7, u32::MAX], 2, 32, 1), u32::MAX);
        assert_eq!((Order::Threes.words(64, 8), Order::Twos.words(33, 8), Order::Plain.words(33, 8)), (6, 3, 5));
        assert_eq!(places(&[2, 0, 1, 0]), [1, 3, 2, 0]);
    }

    #[test]
    fn floats_that_are_divided_by_or_added() {
        let (tiny, huge) = (f32::powi(2.0, -64), f32::powi(2.0, 64));
        assert!([tiny, 1e-9, 1.0, 448.0, huge].iter().all(|&scale| Fact::Scales.suits(scale)));
        let wrong = [0.0, -0.0, -1.0, 1e-40, tiny / 2.0, huge * 2.0, 1e30, f32::INFINITY, f32::NAN];
        assert!(!wrong.iter().any(|&scale| Fact::Scales.suits(scale)));
        assert!([0.0, -1e9, 14.5, MOST_ADDED].iter().all(|&number| Fact::Addends.suits(number)));
        assert!(![f32::NAN, f32::NEG_INFINITY, 1e31].iter().any(|&number| Fact::Addends.suits(number)));
        assert!([0.0, -0.0, 5.0].iter().all(|&number| Fact::Below(6).suits(number)));
        assert!(![-1.0, 6.0, 0.5, f32::NAN].iter().any(|&number| Fact::Below(6).suits(number)));
        for fact in [Fact::Scales, Fact::Addends, Fact::Below(6)] {
            assert!(fact.is_of_floats());
            assert_eq!(Fact::of_text(&fact.text()), Some(fact));
        }
    }

    #[test]
    fn facts() {
        for (fact, good, bad, says) in [
            (Fact::All(8), &[8, 8][..], &[8, 7][..], "number 1 is 7, not 8"),
            (Fact::Are(vec![512, 192]), &[512, 192], &[192, 512], "it is [192, 512], not [512, 192]"),
            (
                Fact::Groups(2),
                &[0, 0, 1],
                &[0, 1, 1],
                "column 1 is in group 1, not 0: columns in another order (act-order) without `desc_act`",
            ),
            (Fact::Members(2), &[1, 0, 0, 1, 2], &[0, 1, 1, 1, 2], "groups are not of 2 columns each: group 0 is not"),
        ] {
            assert_eq!(fact.fault(good, good.len()), None);
            assert_eq!(fact.fault(bad, bad.len()).as_deref(), Some(says));
            assert_eq!(Fact::of_text(&fact.text()), Some(fact));
        }
        for wrong in ["scales(1)", "addends", "all()", "are(1,2)", "groups(0)", "some(1)", "all(1", ""] {
            assert_eq!(Fact::of_text(wrong), None, "{wrong}");
        }
    }
}
