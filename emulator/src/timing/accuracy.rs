//! How far the model's predictions are off, as far as that is known. Whoever shows a prediction
//! shows this beside it.
use super::chip::Chip;
use super::chips::CHIPS;

/// Errors of predictions for a chip, in per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    pub chip: &'static str,
    /// Measured times that predictions were compared with.
    pub rows: usize,
    /// Half of the errors are below it.
    pub median: f64,
    /// Nine of ten errors are below it.
    pub p90: f64,
}

/// What the errors are those of.
pub const MEASURED: &str = "AITER's hand-written matrix products, each predicted without its own times";

/// What they say nothing about.
pub const UNMEASURED: &str = "no kernel of atomc was measured on such a chip";

/// The columns "left out" of the table in `docs/timing.md`, which a test compares.
const ACCURACIES: [Accuracy; 3] = [
    Accuracy { chip: "MI308X", rows: 367, median: 1.5, p90: 9.8 },
    Accuracy { chip: "MI300X", rows: 30, median: 4.8, p90: 13.4 },
    Accuracy { chip: "MI355X", rows: 1721, median: 6.1, p90: 19.2 },
];

/// The chips that the names of targets mean.
const MEANT: [(&str, &str); 2] = [("gfx942", "MI300X"), ("gfx950", "MI355X")];

/// A chip by its name or by that of the target that means it.
pub fn named(text: &str) -> Option<Chip> {
    let meant = MEANT.iter().find(|(gfx, _)| *gfx == text).map_or(text, |(_, chip)| chip);
    CHIPS.into_iter().find(|chip| chip.name.eq_ignore_ascii_case(meant))
}

/// All names that [`named`] takes.
pub fn names() -> impl Iterator<Item = &'static str> {
    CHIPS.iter().map(|chip| chip.name).chain(MEANT.map(|(gfx, _)| gfx))
}

impl Chip {
    /// How far predictions for this chip are off.
    pub fn accuracy(&self) -> Option<&'static Accuracy> {
        ACCURACIES.iter().find(|accuracy| accuracy.chip == self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracies_are_those_of_the_document() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/timing.md");
        let document = std::fs::read_to_string(document).unwrap();
        for chip in CHIPS {
            let Accuracy { rows, median, p90, .. } = chip.accuracy().unwrap();
            let start = format!("| {}, all | {rows} |", chip.name);
            let end = format!("| {median:.1} % | {p90:.1} % |");
            let row = document.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
            assert!(row.ends_with(&end), "{row} is not {start} ... {end}");
        }
    }

    #[test]
    fn chips_have_names() {
        let name = |text| named(text).map(|chip| chip.name);
        assert_eq!(
            ["gfx942", "mi308x", "MI300X", "gfx950"].map(name),
            ["MI300X", "MI308X", "MI300X", "MI355X"].map(Some)
        );
        assert_eq!(["gfx90a", "gfx1100", "MI250X", ""].map(name), [None; 4]);
        assert!(names().all(|text| named(text).is_some()));
    }
}
