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
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 2] = [Order::Plain, Order::Awq];

    /// The name in graphs and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Order::Plain => "plain",
            Order::Awq => "awq",
        }
    }

    /// Whether words of `codes` codes may have this order.
    pub fn suits(self, codes: usize) -> bool {
        match self {
            Order::Plain => codes > 1,
            Order::Awq => codes == 8,
        }
    }

    /// Which of a word's codes, counted from the lowest bits, is that of a place.
    pub fn nth(self, place: usize) -> usize {
        match self {
            Order::Plain => place,
            Order::Awq => place / 2 + place % 2 * 4,
        }
    }
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
                    "column {at} is in group {is}, not {want}: columns in another order (act-order) are not supported"
                )
            }),
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
                "column 1 is in group 1, not 0: columns in another order (act-order) are not supported",
            ),
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
