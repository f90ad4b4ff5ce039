//! A chip: rounds of work-groups over its compute units, against what its memories give.
use super::profile::Sample;

/// A number of the model that depends on the chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    pub which: Which,
    pub name: &'static str,
    pub unit: &'static str,
    /// The physically possible range; fits stay inside.
    pub range: [f64; 2],
    pub meaning: &'static str,
}

macro_rules! numbers {
    ($($which:ident = $name:literal, $unit:literal, $range:expr, $meaning:literal;)*) => {
        /// The numbers by name: what the timing model reads of a chip.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Which {
            $(#[doc = $meaning] $which,)*
        }

        pub const COUNT: usize = [$($name),*].len();

        /// The numbers of a chip, in the order of [`Chip::numbers`]. Upper ends are the peaks of
        /// AMD's white papers and data sheets (HBM, Infinity Cache, L2, clock).
        pub const NUMBERS: [Number; COUNT] =
            [$(Number { which: Which::$which, name: $name, unit: $unit, range: $range, meaning: $meaning }),*];
    };
}

numbers! {
    Launch = "launch", "us", [1.0, 5.0], "from one kernel to the next";
    Memset = "memset", "us", [0.2, 5.0], "another kernel of the call, as one that clears";
    Clock = "clock", "GHz", [1.0, 2.6], "with idle matrix units";
    Power = "power", "", [0.0, 0.7], "part of the clock that busy matrix units cost";
    Near = "near", "ns", [150.0, 600.0], "latency of Infinity Cache";
    Far = "far", "ns", [0.0, 600.0], "what idle HBM adds to it";
    Hbm = "hbm", "TB/s", [2.0, 8.0], "HBM";
    Cache = "cache", "TB/s", [2.0, 17.0], "Infinity Cache to all XCDs";
    L2 = "l2", "TB/s", [0.5, 4.0], "L2 to the compute units of an XCD";
    Group = "group", "us", [0.0, 4.0], "start and end of a work-group";
    Atomics = "atomics", "TB/s", [0.05, 8.0], "lines of atomics of the chip";
    Store = "store", "TB/s", [1.0, 17.0], "bursts of results of the chip";
}

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
    /// Operations of fp8 that a compute unit's matrix units do in a clock at their peak.
    pub fp8_rate: f64,
    pub numbers: [f64; COUNT],
    pub origins: [Origin; COUNT],
}

/// A launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// What the work-groups take that a compute unit runs at once.
    pub group: Sample,
    /// Their number.
    pub together: f64,
    /// What those take that are left for the last round, if they are fewer.
    pub rest: Option<Sample>,
    pub groups: f64,
    /// Bytes of the operands, and of the results.
    pub read: f64,
    pub written: f64,
    /// Bytes that one XCD requests from the memory beyond its L2, over all rounds.
    pub fetched: f64,
    /// The Infinity Cache has the operands.
    pub resident: bool,
    /// The results are cleared first, by a kernel of its own.
    pub memset: bool,
}

/// Where the microseconds of a launch go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    pub launch: f64,
    /// Compute units, with L2, starts of groups and bursts of results.
    pub compute: f64,
    /// The work-groups' own clocks in it.
    pub own: f64,
    /// HBM.
    pub memory: f64,
    /// Infinity Cache.
    pub cache: f64,
    pub memset: f64,
}

impl Default for Work {
    /// No work-group, one a compute unit at once.
    fn default() -> Work {
        Work {
            group: Sample::default(),
            together: 1.0,
            rest: None,
            groups: 0.0,
            read: 0.0,
            written: 0.0,
            fetched: 0.0,
            resident: false,
            memset: false,
        }
    }
}

const MICRO: f64 = 1e6;

/// Clocks in which a SIMD at its peak reads a register of factors.
const FACTOR: f64 = 2.0;

/// Limits that are nearly equal add up: the sum is that of the powers.
const OVERLAP: f64 = 6.0;

/// How much longer HBM takes to answer if it has as much to do as the groups, over what it takes
/// idle; and the work beyond which it does not get longer, since then HBM alone decides.
const QUEUE: f64 = 2.0;
const SATURATED: f64 = 2.0;

impl Chip {
    /// The range of a number, which ends at the chip's peak.
    pub fn range(&self, at: usize) -> [f64; 2] {
        let [low, high] = NUMBERS[at].range;
        let peak = match NUMBERS[at].which {
            Which::Clock => self.peak_clock,
            Which::Hbm => self.peak_hbm,
            _ => high,
        };
        [low, high.min(peak)]
    }

    /// One of the numbers.
    pub fn number(&self, which: Which) -> f64 {
        self.numbers[which as usize]
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
        let parts = self.parts(work);
        let limits = [parts.compute, parts.memory, parts.cache];
        let body = limits.iter().map(|t| t.powf(OVERLAP)).sum::<f64>().powf(1.0 / OVERLAP);
        parts.launch + body + parts.memset
    }

    /// Microseconds of the kernels of one call. Kernels after the first one begin as soon as one
    /// that clears memory.
    pub fn call(&self, kernels: &[Work]) -> f64 {
        let [launch, next, ..] = self.numbers;
        let all: f64 = kernels.iter().map(|work| self.time(work)).sum();
        all - kernels.len().saturating_sub(1) as f64 * (launch - next)
    }

    /// The microseconds that each limit alone would leave.
    pub fn parts(&self, work: &Work) -> Parts {
        let [launch, memset, clock, power, near, far, hbm, cache, l2, group, atomics, store] = self.numbers;
        let [full, rest] = self.rounds(work.groups, work.together);
        let (last, rounds) = (work.rest.unwrap_or(work.group), full + rest);
        let batches = work.groups / work.together;
        // Compute units of an XCD that have work at once.
        let active = (batches / f64::from(self.xcds)).min(f64::from(self.cus / self.xcds)).max(1.0);
        let filled = batches / (rounds * f64::from(self.cus));
        let from_hbm = if work.resident { 0.0 } else { work.read } + work.written;
        let memory = from_hbm / hbm * 1e-12 * MICRO;
        let (mut ghz, mut latency) = (clock, near + far);
        let mut own = [0.0; 2];
        for _ in 0..3 {
            let clocks = [work.group, last].map(|group| group.at(latency * ghz));
            own = clocks.map(|clocks| clocks / ghz * 1e-3);
            ghz = clock * (1.0 - power * filled * work.group.factors * FACTOR / clocks[0]);
            let busy = full * own[0] + rest * own[1];
            latency = if work.resident { near } else { near + far * (1.0 + QUEUE * (memory / busy).min(SATURATED)) };
        }
        let shared = [work.group, last].map(|group| group.missed * active / l2 * 1e-12 * MICRO);
        let adds = work.group.atomics * batches / atomics * 1e-12 * MICRO;
        let stores = work.group.stored * batches / store * 1e-12 * MICRO;
        let groups = full * own[0].max(shared[0]) + rest * own[1].max(shared[1]);
        let compute = groups + rounds * group + adds + stores;
        let fabric = work.fetched * f64::from(self.xcds) / cache * 1e-12 * MICRO;
        let clears = if work.memset { memset + work.written / hbm * 1e-12 * MICRO } else { 0.0 };
        Parts { launch, compute, own: full * own[0] + rest * own[1], memory, cache: fabric, memset: clears }
    }

    /// Work-groups of the busiest compute unit. XCDs take groups in turn.
    pub fn each(&self, groups: f64) -> f64 {
        let each = (groups / f64::from(self.xcds)).ceil();
        (each / f64::from(self.cus / self.xcds)).ceil().max(1.0)
    }

    /// Rounds of as many groups as a compute unit runs at once, and whether fewer are left.
    fn rounds(&self, groups: f64, together: f64) -> [f64; 2] {
        let each = self.each(groups);
        let full = (each / together).floor();
        [full, f64::from(full * together < each)]
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
            fp8_rate: 4096.0,
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
    fn groups_run_at_once_and_fewer_are_left() {
        let rest = Some(Sample { clocks: [3000.0; LATENCIES.len()], ..Sample::default() });
        let two = |groups| Work { together: 2.0, rest, ..work(groups) };
        [(32.0, 7.0), (33.0, 10.0), (64.0, 12.0), (96.0, 17.0)]
            .iter()
            .for_each(|(n, us)| close(plain().time(&two(*n)), *us));
    }

    #[test]
    fn bytes_take_time_unless_a_cache_has_them() {
        // A terabyte a second is a megabyte a microsecond.
        let much = Work { read: 1000e6, ..work(1.0) };
        close(plain().time(&much), 2.0 + (1000f64.powi(6) + 5f64.powi(6)).powf(1.0 / 6.0));
        close(plain().time(&Work { resident: true, ..much }), 7.0);
    }

    #[test]
    fn clearing_is_a_kernel_of_its_own() {
        let cleared = Work { written: 3e6, memset: true, ..work(1.0) };
        close(plain().time(&cleared), 2.0 + (5f64.powi(6) + 3f64.powi(6)).powf(1.0 / 6.0) + 1.0 + 3.0);
    }

    #[test]
    fn further_kernels_of_a_call_begin_sooner() {
        // A launch takes 2 and clearing 1.
        let plain = plain();
        close(plain.call(&[work(1.0)]), 7.0);
        close(plain.call(&[work(1.0), work(16.0), work(17.0)]), 7.0 + 6.0 + 11.0);
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
        assert!(NUMBERS.iter().enumerate().all(|(at, number)| number.which as usize == at));
    }
}
