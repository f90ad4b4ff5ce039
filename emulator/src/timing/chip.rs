//! A chip: rounds of work-groups over its compute units, against what its memories give.
use super::profile::Sample;

/// A number of the model that depends on the chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    pub name: &'static str,
    pub unit: &'static str,
    /// What is physically possible; fits stay inside.
    pub range: [f64; 2],
    pub meaning: &'static str,
}

const fn number(name: &'static str, unit: &'static str, range: [f64; 2], meaning: &'static str) -> Number {
    Number { name, unit, range, meaning }
}

pub const COUNT: usize = 12;

/// The numbers of a chip, in the order of [`Chip::numbers`]. Upper ends are the peaks of AMD's
/// white papers and data sheets (HBM, Infinity Cache, L2, clock).
pub const NUMBERS: [Number; COUNT] = [
    number("launch", "us", [1.0, 5.0], "from one kernel to the next"),
    number("memset", "us", [0.2, 5.0], "a kernel that clears, without its bytes"),
    number("clock", "GHz", [1.0, 2.6], "with idle matrix units"),
    number("power", "", [0.0, 0.7], "part of the clock that busy matrix units cost"),
    number("near", "ns", [150.0, 600.0], "latency of Infinity Cache"),
    number("far", "ns", [0.0, 600.0], "what idle HBM adds to it"),
    number("hbm", "TB/s", [2.0, 8.0], "HBM"),
    number("cache", "TB/s", [2.0, 17.0], "Infinity Cache to all XCDs"),
    number("l2", "TB/s", [0.5, 4.0], "L2 to the compute units of an XCD"),
    number("group", "us", [0.0, 4.0], "start and end of a work-group"),
    number("atomics", "TB/s", [0.05, 8.0], "lines of atomics of the chip"),
    number("store", "TB/s", [1.0, 17.0], "bursts of results of the chip"),
];

/// Where a number of a chip comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The fit to measured times.
    Fitted,
    /// Another chip of the same silicon.
    Source,
}

/// A chip's shape and its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    pub name: &'static str,
    pub gfx: &'static str,
    pub cus: u32,
    pub xcds: u32,
    /// The highest clock in GHz and the bandwidth of HBM in TB/s, of AMD's data sheets.
    pub peak_clock: f64,
    pub peak_hbm: f64,
    pub numbers: [f64; COUNT],
    pub origins: [Origin; COUNT],
}

/// A launch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// What one work-group takes.
    pub group: Sample,
    pub groups: f64,
    /// Bytes of the operands, and of the results.
    pub read: f64,
    pub written: f64,
    /// Bytes that one XCD asks of what lies behind its L2, over all rounds.
    pub fetched: f64,
    /// The Infinity Cache has the operands.
    pub resident: bool,
    /// The results are cleared first, by a kernel of its own.
    pub memset: bool,
}

const MICRO: f64 = 1e6;

/// Clocks in which a SIMD at its peak reads a register of factors.
const FACTOR: f64 = 2.0;

/// Limits that are nearly equal add up: the sum is that of the powers.
const OVERLAP: f64 = 3.0;

impl Chip {
    /// The range of a number, which ends at the chip's peak.
    pub fn range(&self, at: usize) -> [f64; 2] {
        let [low, high] = NUMBERS[at].range;
        let peak = match NUMBERS[at].name {
            "clock" => self.peak_clock,
            "hbm" => self.peak_hbm,
            _ => high,
        };
        [low, high.min(peak)]
    }

    /// The chip with another one's numbers where its own are not fitted.
    pub fn with_shared(mut self, other: &Chip) -> Chip {
        for at in (0..COUNT).filter(|at| self.origins[*at] == Origin::Source) {
            self.numbers[at] = other.numbers[at];
        }
        self
    }

    /// Microseconds of a launch.
    pub fn time(&self, work: &Work) -> f64 {
        let [launch, memset, clock, power, near, far, hbm, cache, l2, group, atomics, store] = self.numbers;
        let rounds = self.rounds(work.groups);
        // Work-groups that an XCD runs at once.
        let active = (work.groups / f64::from(self.xcds)).min(f64::from(self.cus / self.xcds)).max(1.0);
        let filled = work.groups / (rounds * f64::from(self.cus));
        let from_hbm = if work.resident { 0.0 } else { work.read } + work.written;
        let memory = from_hbm / hbm * 1e-12 * MICRO;
        let (mut ghz, mut latency) = (clock, near + far);
        let mut own = 0.0;
        for _ in 0..3 {
            let clocks = work.group.at(latency * ghz);
            own = clocks / ghz * 1e-3;
            ghz = clock * (1.0 - power * filled * work.group.factors * FACTOR / clocks);
            latency = if work.resident { near } else { near + far * (1.0 + memory / (rounds * own)) };
        }
        let shared = work.group.missed * active / l2 * 1e-12 * MICRO;
        let adds = work.group.atomics * work.groups / rounds / atomics * 1e-12 * MICRO;
        let stores = work.group.stored * work.groups / rounds / store * 1e-12 * MICRO;
        let compute = rounds * (own.max(shared) + group + adds + stores);
        let fabric = work.fetched * f64::from(self.xcds) / cache * 1e-12 * MICRO;
        let body = [compute, memory, fabric].iter().map(|t| t.powf(OVERLAP)).sum::<f64>().powf(1.0 / OVERLAP);
        let clears = if work.memset { memset + work.written / hbm * 1e-12 * MICRO } else { 0.0 };
        launch + body + clears
    }

    /// Rounds of work-groups over the compute units. XCDs take groups in turn.
    fn rounds(&self, groups: f64) -> f64 {
        let each = (groups / f64::from(self.xcds)).ceil();
        (each / f64::from(self.cus / self.xcds)).ceil().max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::chips::CHIPS;
    use super::super::profile::LATENCIES;
    use super::*;

    /// 1 GHz, no power, no latency, and nothing else that takes time.
    fn plain() -> Chip {
        let numbers = [2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1e9, 1e9, 0.0, 1e9, 1e9];
        Chip {
            name: "plain",
            gfx: "",
            cus: 16,
            xcds: 8,
            peak_clock: 2.0,
            peak_hbm: 8.0,
            numbers,
            origins: [Origin::Source; COUNT],
        }
    }

    fn work(groups: f64) -> Work {
        let group = Sample { clocks: [5000.0; LATENCIES.len()], ..Sample::default() };
        Work { group, groups, ..Work::default() }
    }

    fn close(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-6, "{a} is not {b}");
    }

    #[test]
    fn groups_come_in_rounds() {
        let chip = plain();
        [(1.0, 7.0), (16.0, 7.0), (17.0, 12.0), (33.0, 17.0)]
            .iter()
            .for_each(|(n, us)| close(chip.time(&work(*n)), *us));
    }

    #[test]
    fn bytes_take_time_unless_a_cache_has_them() {
        // A terabyte a second is a megabyte a microsecond.
        let much = Work { read: 1000e6, ..work(1.0) };
        close(plain().time(&much), 2.0 + (1000f64.powi(3) + 125.0).cbrt());
        close(plain().time(&Work { resident: true, ..much }), 7.0);
    }

    #[test]
    fn clearing_is_a_kernel_of_its_own() {
        let cleared = Work { written: 3e6, memset: true, ..work(1.0) };
        close(plain().time(&cleared), 2.0 + (125.0f64 + 27.0).cbrt() + 1.0 + 3.0);
    }

    #[test]
    fn numbers_are_possible() {
        for chip in CHIPS {
            for (at, value) in chip.numbers.into_iter().enumerate() {
                let [low, high] = chip.range(at);
                assert!(low <= value && value <= high, "{} {}", chip.name, NUMBERS[at].name);
            }
            assert!(chip.cus.is_multiple_of(chip.xcds), "{}", chip.name);
        }
    }
}
