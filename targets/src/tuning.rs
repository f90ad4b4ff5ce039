//! Numbers of schedules that were found by measuring, as a table for each chip that was measured.
//!
//! A line of a table is a class of kernels and what was best for it: `attend_one bf16 32/8x128 : 1 = splits 33`. A kernel takes
//! the numbers of the nearest class of its kind, whose sizes come behind the colon. The tables are part of the source, so the
//! same model gives the same code wherever it is compiled; `atomc tune` writes them.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use atomc_ir::Arch;

/// Kernels that may want the same numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// What cannot differ at all.
    pub kind: String,
    pub sizes: Vec<usize>,
}

/// Numbers of a schedule, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice(BTreeMap<String, usize>);

/// The numbers that a schedule leaves open, and what they may be.
pub type Open = &'static [(&'static str, &'static [usize])];

impl Choice {
    /// A number, where it was chosen.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }

    /// Every way to choose.
    pub fn all(open: Open) -> Vec<Choice> {
        open.iter().fold(vec![Choice::default()], |all, &(name, values)| {
            let with = |choice: &Choice, value: usize| {
                let mut numbers = choice.0.clone();
                numbers.insert(name.into(), value);
                Choice(numbers)
            };
            all.iter().flat_map(|choice| values.iter().map(move |&value| with(choice, value))).collect()
        })
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        write!(f, "{} : {}", self.kind, sizes.join(" "))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&numbers.join(", "))
    }
}

fn read(name: &str, text: &str) -> Table {
    Table::parse(text).unwrap_or_else(|e| panic!("the source's table for {name}: {e}"))
}

/// What was measured on one chip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(Vec<(Class, Choice)>);

/// The tables, by the names of arch rows.
static TABLES: LazyLock<BTreeMap<&str, Table>> = LazyLock::new(|| {
    [("sm_90a", include_str!("../tuned/sm_90a.txt"))].map(|(name, text)| (name, read(name, text))).into()
});
static EMPTY: Table = Table(Vec::new());

impl Table {
    /// What the source has for an arch.
    pub fn of(arch: &Arch) -> &'static Table {
        TABLES.get(arch.name).unwrap_or(&EMPTY)
    }

    pub fn new(lines: Vec<(Class, Choice)>) -> Table {
        Table(lines)
    }

    /// Reads what [`Table`] prints.
    pub fn parse(text: &str) -> Result<Table, String> {
        let line = |line: &str| {
            let (class, choice) = line.split_once(" = ")?;
            let (kind, sizes) = class.split_once(" : ")?;
            let sizes = sizes.split(' ').map(|n| n.parse().ok()).collect::<Option<_>>()?;
            let number = |part: &str| {
                let (name, value) = part.split_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            };
            let choice = choice.split(", ").map(number).collect::<Option<_>>()?;
            Some((Class { kind: kind.into(), sizes }, Choice(choice)))
        };
        let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        let lines = lines.map(|l| line(l).ok_or_else(|| format!("`{l}` is not `KIND : SIZES = NUMBERS`")));
        Ok(Table(lines.collect::<Result<_, _>>()?))
    }

    /// These lines, and another table's for other classes.
    pub fn or(mut self, other: Table) -> Table {
        let new: Vec<_> = other.0.into_iter().filter(|(class, _)| self.0.iter().all(|(c, _)| c != class)).collect();
        self.0.extend(new);
        self.0.sort_by(|(a, _), (b, _)| a.cmp(b));
        self
    }

    /// The numbers of the nearest class of a kind; of equally near ones the first.
    pub fn choice(&self, class: &Class) -> Choice {
        let same = self.0.iter().filter(|(c, _)| c.kind == class.kind && c.sizes.len() == class.sizes.len());
        let near = same.min_by(|(a, _), (b, _)| class.distance(a).total_cmp(&class.distance(b)));
        near.map(|(_, choice)| choice.clone()).unwrap_or_default()
    }
}

impl Class {
    /// How many doublings apart the sizes are in all.
    fn distance(&self, other: &Class) -> f64 {
        let ratio = |(&a, &b): (&usize, &usize)| (a as f64 / b as f64).log2().abs();
        self.sizes.iter().zip(&other.sizes).map(ratio).sum()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(class, choice)| writeln!(f, "{class} = {choice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(kind: &str, sizes: &[usize]) -> Class {
        Class { kind: kind.into(), sizes: sizes.to_vec() }
    }

    #[test]
    fn reads_what_it_prints_and_finds_the_nearest() {
        let [a, b] = [Choice::all(&[("x", &[1, 2]), ("y", &[3])]), Choice::all(&[("x", &[9])])];
        assert_eq!(a.iter().map(Choice::to_string).collect::<Vec<_>>(), ["x 1, y 3", "x 2, y 3"]);
        let table = Table::new(vec![
            (class("k bf16", &[1024, 8]), a[1].clone()),
            (class("k bf16", &[4096, 1]), b[0].clone()),
            (class("other", &[1024, 8]), a[0].clone()),
        ]);
        assert_eq!(Table::parse(&table.to_string()).unwrap(), table);
        assert!(Table::parse("k bf16 1 = x 1").is_err());
        assert_eq!(table.choice(&class("k bf16", &[1024, 8])).get("x"), Some(2));
        assert_eq!(table.choice(&class("k bf16", &[3000, 1])).get("x"), Some(9));
        assert_eq!(table.choice(&class("k f16", &[3000, 1])), Choice::default());
    }
}
