//! The errors of the model's predictions, as far as they are known. Every output of a prediction
//! shows them.
use super::chip::Chip;
use super::chips::CHIPS;

/// Errors of predictions, in per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Measured times that predictions were compared with.
    pub rows: usize,
    /// Half of the errors are below it.
    pub median: f64,
    /// Nine of ten errors are below it.
    pub p90: f64,
}

/// Errors of predictions for a chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    pub chip: &'static str,
    /// For products that were written by hand.
    pub written: Errors,
    /// For a compiler's products, if such times are known for the chip.
    pub compiled: Option<Errors>,
}

/// The kernels of [`Accuracy::written`].
pub const WRITTEN: &str = "AITER's hand-written matrix products, each predicted without its own times";

/// The kernels of [`Accuracy::compiled`].
pub const COMPILED: &str = "matrix products that Triton compiles, as atomc does, predicted without their times";

/// The limits of these errors.
pub const UNMEASURED: &str = "no kernel of atomc was measured on such a chip";

/// The numbers in the tables of `docs/timing.md`, which a test compares: the columns "left out",
/// and the errors of Triton's products by numbers that were fitted to kernels by hand.
const ACCURACIES: [Accuracy; 3] = [
    Accuracy { chip: "MI308X", written: errors(367, 1.8, 14.5), compiled: Some(errors(4, 45.1, 53.2)) },
    Accuracy { chip: "MI300X", written: errors(30, 6.5, 11.0), compiled: None },
    Accuracy { chip: "MI355X", written: errors(1721, 6.6, 20.8), compiled: Some(errors(151, 18.4, 44.6)) },
];

const fn errors(rows: usize, median: f64, p90: f64) -> Errors {
    Errors { rows, median, p90 }
}

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
        let has = |start: String, end: String| {
            let found = document.lines().any(|line| line.starts_with(&start) && line.ends_with(&end));
            assert!(found, "no line is {start} ... {end}");
        };
        let mut compiled = String::from("| products and experts by hand, from round numbers |");
        for accuracy in CHIPS.iter().filter_map(Chip::accuracy) {
            let all = |rows| format!("| {}, all | {rows} |", accuracy.chip);
            let Errors { rows, median, p90 } = accuracy.written;
            has(all(rows), format!("| {median:.1} % | {p90:.1} % |"));
            if let Some(Errors { rows, median, p90 }) = accuracy.compiled {
                has(all(rows), " |".into());
                compiled += &format!(" {median:.1}, {p90:.1} % |");
            }
        }
        has(compiled, String::new());
        assert!(CHIPS.iter().all(|chip| chip.accuracy().is_some()));
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
