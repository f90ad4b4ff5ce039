//! The cost of a work-group, as a function of memory latency and of the length of its loop.
use super::cu::{self, Core};
use super::trace::{Event, LINE, Op, Trace, Unit};

/// Latencies, in clocks, for which a compute unit is run; others are interpolated.
pub const LATENCIES: [u64; 9] = [200, 350, 500, 700, 900, 1200, 1600, 2200, 3000];

/// Numbers of a sample after those of the latencies.
const OTHERS: usize = 6;

/// The cost of the work-groups that a compute unit runs at once; often there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Clocks at each of [`LATENCIES`].
    pub clocks: [f64; LATENCIES.len()],
    /// Clocks of the busiest SIMD's matrix unit.
    pub matrix: f64,
    /// Registers that it reads as factors.
    pub factors: f64,
    /// Bytes asked of L1.
    pub loaded: f64,
    /// Bytes of the lines that L1 asks of L2.
    pub missed: f64,
    pub stored: f64,
    /// Bytes of the lines that atomics touch.
    pub atomics: f64,
}

impl Sample {
    pub fn of(trace: &Trace, groups: usize, core: &Core) -> Sample {
        let all = |of: &dyn Fn(&Op, &Event) -> u64| -> f64 {
            let each = trace.waves.iter().flatten().map(|e| of(&trace.ops[e.op as usize], e));
            (each.sum::<u64>() * groups as u64) as f64
        };
        let unit = |op: &Op, unit: Unit, n: u64| if op.unit == unit { n } else { 0 };
        let simds = (trace.waves.len() * groups).min(core.simds) as f64;
        Sample {
            clocks: LATENCIES.map(|latency| cu::clocks(trace, groups, latency, core) as f64),
            matrix: all(&|op, _| unit(op, Unit::Matrix, op.clocks.into())) / simds,
            factors: all(&|op, _| unit(op, Unit::Matrix, op.reads.len() as u64)) / simds,
            loaded: all(&|op, e| unit(op, Unit::Load, e.bytes.into())),
            missed: all(&|op, e| unit(op, Unit::Load, u64::from(e.misses) * LINE)),
            stored: all(&|op, e| unit(op, Unit::Store, e.bytes.into())),
            atomics: all(&|op, e| unit(op, Unit::Atomic, u64::from(e.lines) * LINE)),
        }
    }

    pub fn numbers(&self) -> Vec<f64> {
        let others = [self.matrix, self.factors, self.loaded, self.missed, self.stored, self.atomics];
        self.clocks.iter().chain(&others).copied().collect()
    }

    pub fn from_numbers(numbers: &[f64]) -> Option<Sample> {
        let (clocks, others) = numbers.split_at_checked(LATENCIES.len())?;
        let [matrix, factors, loaded, missed, stored, atomics]: [f64; OTHERS] = others.try_into().ok()?;
        Some(Sample { clocks: clocks.try_into().ok()?, matrix, factors, loaded, missed, stored, atomics })
    }

    /// Clocks at a latency.
    pub fn at(&self, latency: f64) -> f64 {
        let after = LATENCIES.partition_point(|l| (*l as f64) < latency).clamp(1, LATENCIES.len() - 1);
        let [low, high] = [after - 1, after].map(|k| LATENCIES[k] as f64);
        let part = ((latency - low) / (high - low)).max(-0.5);
        self.clocks[after - 1] + (self.clocks[after] - self.clocks[after - 1]) * part
    }
}

/// Samples at two lengths of the loop. Other lengths are on the line through them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    pub k: [f64; 2],
    pub samples: [Sample; 2],
}

impl Profile {
    /// A sample of a work-group that multiplies `k` elements of K.
    pub fn along(&self, k: f64) -> Sample {
        self.line(k, 1.0)
    }

    /// The cost of one more element.
    pub fn slope(&self) -> Sample {
        self.line(1.0, 0.0)
    }

    fn line(&self, k: f64, fixed: f64) -> Sample {
        let [a, b] = self.samples.map(|s| s.numbers());
        let slope = |a: f64, b: f64| (b - a) / (self.k[1] - self.k[0]);
        let value = |(a, b): (&f64, &f64)| fixed * (a - slope(*a, *b) * self.k[0]) + slope(*a, *b) * k;
        Sample::from_numbers(&a.iter().zip(&b).map(value).collect::<Vec<f64>>()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_and_beyond_what_was_recorded() {
        let sample = |k: f64| Sample {
            clocks: LATENCIES.map(|latency| 100.0 + k + latency as f64),
            matrix: k / 2.0,
            ..Sample::default()
        };
        let profile = Profile { k: [2.0, 4.0], samples: [sample(2.0), sample(4.0)] };
        for k in [1.0, 3.0, 9.0] {
            let along = profile.along(k);
            assert_eq!(
                [along.at(350.0), along.at(800.0), along.at(5000.0)],
                [350.0, 800.0, 5000.0].map(|l| 100.0 + k + l)
            );
            assert_eq!(along.matrix, k / 2.0);
        }
        assert_eq!(profile.slope().at(600.0), 1.0);
        assert_eq!(Sample::from_numbers(&sample(3.0).numbers()), Some(sample(3.0)));
    }
}
