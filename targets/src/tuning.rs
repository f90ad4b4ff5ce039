//! Numbers of schedules that were found by measuring or by the model of times, as a table for each
//! chip. A line of the model ends with `(modelled)`.
//!
//! A line of a table is a class of kernels and what was best for it:
//! `decode bf16 4 128 : 8 64 = groups 1, stages 1`. A kernel takes the numbers of the nearest class
//! of its schedule and kind; the class's sizes come after the colon. A weight is part of the kind
//! as it is stored, `bf16` or `i4/1x128+zeros`: a measurement with one encoding says nothing of
//! another. A line must name a schedule, a kind of kernels that it makes, and each of its open
//! numbers with a value that it may have. The tables are part of the source, so the same model
//! gives the same code wherever it is compiled; `atomc tune` writes them.
use std::fmt;

use atomc_ir::{Block, DType, Family};

/// Kernels that may want the same numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// The name of the schedule that makes them.
    pub schedule: &'static str,
    pub kind: Kind,
    pub sizes: Vec<usize>,
}

/// The facts that must agree exactly between kernels that may want the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A contraction: the type of its rows, the encoding of its weight, whether rows are read from
    /// memory as they are, and the pieces of its result. Sizes are rows and columns of the weight,
    /// and tokens.
    Gemm { rows: &'static str, weight: Stored, plain: bool, pieces: usize },
    /// Attention: elements of the cache, query heads that share one of its heads, and the size of a
    /// head. Sizes are heads of the cache, and tokens.
    Attention { dtype: &'static str, group: usize, head_dim: usize },
}

/// How a weight is stored: as floats, or as quantised values. The latter have a block of rows and
/// columns that shares a scale, and perhaps a zero point. `None` is all rows, or all columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stored {
    dtype: &'static str,
    block: Option<[Option<usize>; 2]>,
    has_zeros: bool,
}

/// A number that a schedule leaves open, and its allowed values: the first one is the default.
#[derive(Debug, PartialEq, Eq)]
pub struct Number {
    pub name: &'static str,
    pub values: &'static [usize],
}

/// A schedule that leaves numbers open: all that a table's lines must agree with.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    pub schedule: &'static str,
    pub family: Family,
    pub numbers: &'static [Number],
}

/// Numbers of a schedule: all that it leaves open, or none, so that it takes its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    schedule: &'static str,
    numbers: Vec<(&'static Number, usize)>,
}

impl Choice {
    /// No number is chosen.
    pub fn none(schedule: &'static str) -> Choice {
        Choice { schedule, numbers: vec![] }
    }

    /// Every way to choose.
    pub fn all(schedule: &'static str, open: &'static [Number]) -> Vec<Choice> {
        open.iter().fold(vec![Choice::none(schedule)], |all, number| {
            let with = |choice: &Choice, value: usize| {
                let numbers = choice.numbers.iter().copied().chain([(number, value)]).collect();
                Choice { schedule, numbers }
            };
            all.iter().flat_map(|choice| number.values.iter().map(move |&value| with(choice, value))).collect()
        })
    }

    /// The name of the schedule that these numbers are for.
    pub fn schedule(&self) -> &'static str {
        self.schedule
    }

    /// Whether the schedule takes its own numbers.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// A number of the schedule, if it was chosen.
    pub fn get(&self, number: &Number) -> Option<usize> {
        self.numbers.iter().find(|(n, _)| *n == number).map(|&(_, value)| value)
    }

    fn parse(text: &str, schedule: &'static str, open: &'static [Number]) -> Result<Choice, String> {
        let names: Vec<&str> = open.iter().map(|number| number.name).collect();
        let parts: Vec<(&str, &str)> = text.split(", ").filter_map(|part| part.split_once(' ')).collect();
        if parts.iter().map(|(name, _)| *name).ne(names.iter().copied()) {
            return Err(format!("`{text}`: {schedule} leaves open: {}", names.join(", ")));
        }
        let value = |number: &'static Number, text: &str| {
            let known = number.values.iter().copied().find(|value| value.to_string() == text);
            known
                .map(|value| (number, value))
                .ok_or_else(|| format!("{} {text}: one of {:?}", number.name, number.values))
        };
        let numbers = open.iter().zip(&parts).map(|(number, (_, text))| value(number, text));
        Ok(Choice { schedule, numbers: numbers.collect::<Result<_, _>>()? })
    }
}

impl Kind {
    /// Reads a printed kind, for kernels of a family, and the number of its sizes.
    fn parse(text: &str, family: Family) -> Option<(Kind, usize)> {
        use Family::{AttendMany, AttendOne, GroupedMatmul, GroupedMatvec, Matmul, Matvec};
        match (family, &text.split(' ').collect::<Vec<_>>()[..]) {
            (
                Matvec | Matmul | GroupedMatvec | GroupedMatmul,
                [rows, weight, origin @ ("plain" | "computed"), pieces],
            ) => {
                let (rows, weight) = (dtype(rows)?, Stored::parse(weight)?);
                Some((Kind::Gemm { rows, weight, plain: *origin == "plain", pieces: pieces.parse().ok()? }, 3))
            }
            (AttendOne | AttendMany, [cache, group, head_dim]) => {
                let (group, head_dim) = (group.parse().ok()?, head_dim.parse().ok()?);
                Some((Kind::Attention { dtype: dtype(cache)?, group, head_dim }, 2))
            }
            _ => None,
        }
    }
}

/// A type's name, if it is one.
fn dtype(text: &str) -> Option<&'static str> {
    DType::ALL.iter().map(|dtype| dtype.name()).find(|name| *name == text)
}

impl Stored {
    /// A weight of floats.
    pub fn floats(dtype: DType) -> Stored {
        Stored { dtype: dtype.name(), block: None, has_zeros: false }
    }

    /// A quantised weight of `rows` rows and `cols` columns.
    pub fn quantised(dtype: DType, block: Block, [rows, cols]: [usize; 2], has_zeros: bool) -> Stored {
        let part = |block: usize, all: usize| (block < all).then_some(block);
        let block = Some([part(block.rows, rows), part(block.cols, cols)]);
        Stored { dtype: dtype.name(), block, has_zeros }
    }

    /// Reads a printed encoding.
    fn parse(text: &str) -> Option<Stored> {
        let Some((name, rest)) = text.split_once('/') else {
            return Some(Stored { dtype: dtype(text)?, block: None, has_zeros: false });
        };
        let part = |text: &str| match text {
            "all" => Some(None),
            number => number.parse().ok().filter(|&n: &usize| n > 0).map(Some),
        };
        let (block, has_zeros) = rest.strip_suffix("+zeros").map_or((rest, false), |block| (block, true));
        let (rows, cols) = block.split_once('x')?;
        Some(Stored { dtype: dtype(name)?, block: Some([part(rows)?, part(cols)?]), has_zeros })
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dtype)?;
        let Some(block) = self.block else { return Ok(()) };
        let [rows, cols] = block.map(|part| part.map_or("all".into(), |n| n.to_string()));
        write!(f, "/{rows}x{cols}{}", if self.has_zeros { "+zeros" } else { "" })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Gemm { rows, weight, plain, pieces } => {
                write!(f, "{rows} {weight} {} {pieces}", if *plain { "plain" } else { "computed" })
            }
            Kind::Attention { dtype, group, head_dim } => write!(f, "{dtype} {group} {head_dim}"),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        write!(f, "{} {} : {}", self.schedule, self.kind, sizes.join(" "))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> =
            self.numbers.iter().map(|(number, value)| format!("{} {value}", number.name)).collect();
        f.write_str(&numbers.join(", "))
    }
}

/// The origin of the times that a line is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Measured,
    /// Predicted without the chip, by the model of `docs/timing.md`.
    Modelled,
}

impl Origin {
    /// Times of choices this close are equal, and the first choice is taken: a schedule's own
    /// numbers are first.
    pub fn tie(self) -> f64 {
        match self {
            Origin::Measured => 1.0,
            Origin::Modelled => 1.02,
        }
    }
}

/// The end of a line that is not based on a measurement.
const MODELLED: &str = " (modelled)";

/// Numbers that were measured on one chip, or modelled for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(Vec<(Class, Choice, Origin)>);

impl Table {
    /// A table without lines.
    pub const fn none() -> Table {
        Table(Vec::new())
    }

    /// Its lines, in order.
    pub fn lines(&self) -> &[(Class, Choice, Origin)] {
        &self.0
    }

    pub fn new(lines: Vec<(Class, Choice, Origin)>) -> Table {
        Table(lines)
    }

    /// Reads what [`Table`] prints. Its lines must be for these schedules.
    pub fn parse(text: &str, schedules: &[Tunable]) -> Result<Table, String> {
        let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        let lines = lines.map(|l| line(l, schedules).map_err(|why| format!("`{l}`: {why}")));
        Ok(Table(lines.collect::<Result<_, _>>()?))
    }

    /// These lines, and another table's for other classes.
    pub fn or(mut self, other: Table) -> Table {
        let new: Vec<_> = other.0.into_iter().filter(|(class, ..)| self.0.iter().all(|(c, ..)| c != class)).collect();
        self.0.extend(new);
        self.0.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        self
    }

    /// The numbers of the nearest class of a kind; of equally near ones the first.
    pub fn choice(&self, class: &Class) -> Option<Choice> {
        let same = self.0.iter().filter(|(c, ..)| c.schedule == class.schedule && c.kind == class.kind);
        let near = same.min_by(|(a, ..), (b, ..)| class.distance(a).total_cmp(&class.distance(b)));
        near.map(|(_, choice, _)| choice.clone())
    }
}

/// A line of a table for one of these schedules.
fn line(text: &str, schedules: &[Tunable]) -> Result<(Class, Choice, Origin), String> {
    let (text, origin) = text.strip_suffix(MODELLED).map_or((text, Origin::Measured), |text| (text, Origin::Modelled));
    let parts = || {
        let (class, choice) = text.split_once(" = ")?;
        let (kind, sizes) = class.split_once(" : ")?;
        let (schedule, kind) = kind.split_once(' ')?;
        Some((schedule, kind, sizes, choice))
    };
    let (name, kind, sizes, choice) = parts().ok_or("it is not `SCHEDULE KIND : SIZES = NUMBERS`")?;
    let found = schedules.iter().find(|s| s.schedule == name);
    let &Tunable { schedule, family, numbers } = found.ok_or_else(|| {
        let known: Vec<&str> = schedules.iter().map(|s| s.schedule).collect();
        format!("schedules that leave numbers open: {}", known.join(", "))
    })?;
    let (kind, count) = Kind::parse(kind, family).ok_or_else(|| format!("{name} makes no `{kind}`"))?;
    let sizes: Option<Vec<usize>> = sizes.split(' ').map(|n| n.parse().ok().filter(|&n| n > 0)).collect();
    let sizes = sizes
        .filter(|sizes| sizes.len() == count)
        .ok_or_else(|| format!("{name} counts {count} sizes, none of them 0"))?;
    Ok((Class { schedule, kind, sizes }, Choice::parse(choice, schedule, numbers)?, origin))
}

impl Class {
    /// The doublings between the sizes, summed over all sizes.
    fn distance(&self, other: &Class) -> f64 {
        let ratio = |(&a, &b): (&usize, &usize)| (a as f64 / b as f64).log2().abs();
        self.sizes.iter().zip(&other.sizes).map(ratio).sum()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(class, choice, origin)| {
            writeln!(f, "{class} = {choice}{}", if *origin == Origin::Modelled { MODELLED } else { "" })
        })
    }
}

#[cfg(test)]
mod tests {
    use atomc_ir::Block;

    use super::*;

    /// A product of few tokens, attention, and a product of experts.
    const SCHEDULES: &[Tunable] = &[
        Tunable { schedule: "gemv_bulk", family: Family::Matvec, numbers: &[CLUSTER] },
        Tunable {
            schedule: "decode",
            family: Family::AttendOne,
            numbers: &[Number { name: "groups", values: &[1, 2] }, Number { name: "stages", values: &[1, 2] }],
        },
        Tunable { schedule: "gemv_grouped", family: Family::GroupedMatvec, numbers: &[CLUSTER] },
    ];
    const CLUSTER: Number = Number { name: "cluster", values: &[1, 2, 4] };

    const SOME: &str = "gemv_bulk bf16 bf16 plain 1 : 1024 2048 8 = cluster 2\n\
                        gemv_bulk bf16 bf16 plain 1 : 4096 4096 1 = cluster 4\n\
                        decode bf16 4 128 : 8 64 = groups 1, stages 2 (modelled)\n";

    #[test]
    fn reads_what_it_prints_and_finds_the_nearest() {
        let table = Table::parse(SOME, SCHEDULES).unwrap();
        assert_eq!(table.to_string(), SOME);
        let gemm = |rows, weight, sizes: [usize; 3]| {
            let kind = Kind::Gemm { rows, weight: Stored::parse(weight).unwrap(), plain: true, pieces: 1 };
            let choice = table.choice(&Class { schedule: "gemv_bulk", kind, sizes: sizes.to_vec() });
            choice.map(|choice| choice.to_string())
        };
        assert_eq!(gemm("bf16", "bf16", [1024, 2048, 4]).as_deref(), Some("cluster 2"));
        assert_eq!(gemm("bf16", "bf16", [3000, 4096, 1]).as_deref(), Some("cluster 4"));
        assert_eq!(gemm("f16", "f16", [1024, 2048, 8]), None);
        assert_eq!(gemm("bf16", "i4/1x128", [1024, 2048, 8]), None);
    }

    /// Encodings are told apart by types, blocks and zero points, and read as they print.
    #[test]
    fn encodings_of_a_weight() {
        let all = ["bf16", "i4/1x128", "u4/1x128+zeros", "f8e4m3/128x128", "i8/1xall", "f8e4m3/allxall"];
        let read = all.map(|text| Stored::parse(text).unwrap());
        assert_eq!(read.map(|stored| stored.to_string()), all);
        assert!((1..all.len()).all(|i| !read[..i].contains(&read[i])));
        let rows = Stored::quantised(DType::I8, Block { rows: 1, cols: 4096 }, [1024, 4096], false);
        assert_eq!(rows.to_string(), "i8/1xall");
        assert_eq!(["i4/", "i4/1x0", "i5/1x8", "i4/1x8+zero"].map(Stored::parse), [None; 4]);
    }

    /// Products of experts may have lines too.
    #[test]
    fn grouped_families_have_lines() {
        let line = "gemv_grouped bf16 i4/1x32 plain 2 : 1536 2048 8 = cluster 2\n";
        assert_eq!(Table::parse(line, SCHEDULES).unwrap().to_string(), line);
        assert_eq!(Kind::parse("bf16 bf16 plain 1", Family::Rows), None);
    }

    #[test]
    fn every_choice_once() {
        const OPEN: &[Number] = &[Number { name: "x", values: &[1, 2] }, Number { name: "y", values: &[3] }];
        let all = Choice::all("s", OPEN);
        assert_eq!(all.iter().map(Choice::to_string).collect::<Vec<_>>(), ["x 1, y 3", "x 2, y 3"]);
        assert_eq!((all[1].get(&OPEN[0]), all[1].get(&OPEN[1])), (Some(2), Some(3)));
    }

    /// A line that no schedule would read is an error, which lists the known ones.
    #[test]
    fn a_line_that_has_no_effect_is_refused() {
        let why = |line: &str| Table::parse(line, SCHEDULES).unwrap_err();
        let all = [
            "gemv_bulk bf16 bf16 plain 1 1024 2048 8 = cluster 2",
            "gemv_bluk bf16 bf16 plain 1 : 1024 2048 8 = cluster 2",
            "gemv bf16 bf16 plain 1 : 1024 2048 8 = cluster 2",
            "gemv_bulk bf16 bf16 32 1 : 1024 2048 8 = cluster 2",
            "gemv_bulk bf61 bf16 plain 1 : 1024 2048 8 = cluster 2",
            "gemv_bulk bf16 bf16 plain 1 : 1024 2048 = cluster 2",
            "gemv_bulk bf16 bf16 plain 1 : 1024 0 8 = cluster 2",
            "gemv_bulk bf16 bf16 plain 1 : 1024 2048 8 = members 2",
            "gemv_bulk bf16 bf16 plain 1 : 1024 2048 8 = cluster 3",
            "decode bf16 4 128 : 8 64 = groups 1",
        ];
        insta::assert_snapshot!(all.map(why).join("\n"), @r"
        `gemv_bulk bf16 bf16 plain 1 1024 2048 8 = cluster 2`: it is not `SCHEDULE KIND : SIZES = NUMBERS`
        `gemv_bluk bf16 bf16 plain 1 : 1024 2048 8 = cluster 2`: schedules that leave numbers open: gemv_bulk, decode, gemv_grouped
        `gemv bf16 bf16 plain 1 : 1024 2048 8 = cluster 2`: schedules that leave numbers open: gemv_bulk, decode, gemv_grouped
        `gemv_bulk bf16 bf16 32 1 : 1024 2048 8 = cluster 2`: gemv_bulk makes no `bf16 bf16 32 1`
        `gemv_bulk bf61 bf16 plain 1 : 1024 2048 8 = cluster 2`: gemv_bulk makes no `bf61 bf16 plain 1`
        `gemv_bulk bf16 bf16 plain 1 : 1024 2048 = cluster 2`: gemv_bulk counts 3 sizes, none of them 0
        `gemv_bulk bf16 bf16 plain 1 : 1024 0 8 = cluster 2`: gemv_bulk counts 3 sizes, none of them 0
        `gemv_bulk bf16 bf16 plain 1 : 1024 2048 8 = members 2`: `members 2`: gemv_bulk leaves open: cluster
        `gemv_bulk bf16 bf16 plain 1 : 1024 2048 8 = cluster 3`: cluster 3: one of [1, 2, 4]
        `decode bf16 4 128 : 8 64 = groups 1`: `groups 1`: decode leaves open: groups, stages
        ");
    }
}
