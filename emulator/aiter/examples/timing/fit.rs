//! Errors of predictions, and the search for the numbers of a chip.
use std::collections::{BTreeMap, BTreeSet};

use atomc_emulator::timing::chip::{COUNT, Chip, Origin, Work};

/// A row with its work.
#[derive(Clone)]
pub struct Case {
    /// Its kernels, one after the other.
    pub works: Vec<Work>,
    pub us: f64,
    pub kernel: String,
    /// M, N and K, or what a row of another table has.
    pub shape: String,
    pub kind: String,
}

impl Case {
    /// Prediction over measurement, less one.
    pub fn error(&self, chip: &Chip) -> f64 {
        chip.call(&self.works) / self.us - 1.0
    }
}

pub fn errors(cases: &[Case], chip: &Chip) -> Vec<f64> {
    cases.iter().map(|c| c.error(chip)).collect()
}

/// A part of the sorted values.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (part * (sorted.len().max(1) - 1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

pub struct Summary {
    pub median: f64,
    pub ninety: f64,
    pub bias: f64,
}

pub fn summary(errors: &[f64]) -> Summary {
    let sizes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
    let bias = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    Summary { median: quantile(&sizes, 0.5), ninety: quantile(&sizes, 0.9), bias }
}

/// Mean error of each kernel with at least that many rows.
pub fn biases(cases: &[Case], errors: &[f64], rows: usize) -> BTreeMap<String, (usize, f64)> {
    let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    for (case, error) in cases.iter().zip(errors) {
        let sum = sums.entry(case.kernel.clone()).or_default();
        *sum = (sum.0 + 1, sum.1 + error);
    }
    sums.retain(|_, (n, _)| *n >= rows);
    sums.values_mut().for_each(|(n, sum)| *sum /= *n as f64);
    sums
}

/// Cases of one table, and how much a fit regards them.
pub struct Table<'a> {
    pub cases: &'a [Case],
    pub weight: f64,
}

/// What a fit makes small: of each table the median error, a part of the 90th percentile, and the
/// mean bias of kernels.
fn loss(tables: &[Table], chip: &Chip) -> f64 {
    let of = |table: &Table| {
        let errors = errors(table.cases, chip);
        let all = summary(&errors);
        let mean = errors.iter().map(|e| e.abs().min(1.0)).sum::<f64>() / errors.len() as f64;
        let biases = biases(table.cases, &errors, 10);
        let bias = biases.values().map(|(_, b)| b.abs()).sum::<f64>() / biases.len().max(1) as f64;
        table.weight * (all.median + 0.25 * all.ninety + 0.5 * mean + 0.25 * bias)
    };
    tables.iter().filter(|t| !t.cases.is_empty()).map(of).sum()
}

fn fitted(chip: &Chip) -> impl Iterator<Item = usize> {
    let origins = chip.origins;
    (0..COUNT).filter(move |at| origins[*at] == Origin::Fitted)
}

/// Times that a search goes through all numbers.
const ROUNDS: usize = 80;

/// Searches from the chip's numbers, and from `restarts` others around the best so far.
pub fn fit(tables: &[Table], start: &Chip, restarts: usize) -> Chip {
    let rounds = ROUNDS;
    let (mut chip, mut best) = descend(tables, start, rounds);
    let mut random = 1u64;
    for _ in 0..restarts {
        let mut other = chip;
        for at in fitted(start) {
            let [low, high] = start.range(at);
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let part = (random >> 40) as f64 / (1 << 24) as f64 - 0.5;
            let value = &mut other.numbers[at];
            *value = (*value * (1.0 + 0.5 * part)).clamp(low, high);
        }
        let (next, value) = descend(tables, &other, rounds);
        if value < best {
            (chip, best) = (next, value);
        }
    }
    chip
}

/// Searches each number in turn, with steps that grow where they help and shrink where not, and
/// after each round once more the way that the round has gone (Hooke and Jeeves).
fn descend(tables: &[Table], start: &Chip, rounds: usize) -> (Chip, f64) {
    let mut best = (*start, loss(tables, start));
    let mut steps: [f64; COUNT] = std::array::from_fn(|at| (start.range(at)[1] - start.range(at)[0]) / 16.0);
    for _ in 0..rounds {
        let before = best.0;
        for at in fitted(start) {
            let moved = [steps[at], -steps[at]].into_iter().any(|step| attempt(tables, &mut best, &[(at, step)]));
            let [low, high] = start.range(at);
            steps[at] = (steps[at] * if moved { 1.5 } else { 0.5 }).clamp((high - low) / 4096.0, (high - low) / 4.0);
        }
        let way: Vec<(usize, f64)> = fitted(start).map(|at| (at, best.0.numbers[at] - before.numbers[at])).collect();
        attempt(tables, &mut best, &way);
    }
    best
}

/// Takes a change of some numbers if it is better.
fn attempt(tables: &[Table], best: &mut (Chip, f64), changes: &[(usize, f64)]) -> bool {
    let mut next = best.0;
    for (at, change) in changes {
        let [low, high] = next.range(*at);
        next.numbers[*at] = (next.numbers[*at] + change).clamp(low, high);
    }
    let value = loss(tables, &next);
    let better = value < best.1;
    if better {
        *best = (next, value);
    }
    better
}

/// Predictions for each kernel by numbers that were fitted to all others.
pub fn leave_out(cases: &[Case], start: &Chip) -> Vec<f64> {
    let mut errors = vec![0.0; cases.len()];
    let kernels: BTreeSet<&str> = cases.iter().map(|c| c.kernel.as_str()).collect();
    for kernel in kernels {
        let others: Vec<Case> = cases.iter().filter(|c| c.kernel != kernel).cloned().collect();
        let chip = fit(&[Table { cases: &others, weight: 1.0 }], &blank(start), LEFT_OUT_RESTARTS);
        for (error, case) in errors.iter_mut().zip(cases).filter(|(_, c)| c.kernel == kernel) {
            *error = case.error(&chip);
        }
    }
    errors
}

/// The chip with round numbers, so that nothing of an earlier fit remains.
pub fn blank(chip: &Chip) -> Chip {
    let mut blank = *chip;
    fitted(chip).for_each(|at| blank.numbers[at] = TYPICAL[at].min(chip.range(at)[1]));
    blank
}

/// Searches are short if there is one for each kernel.
pub const LEFT_OUT_RESTARTS: usize = 2;

/// Where they begin: round numbers of no chip.
const TYPICAL: [f64; COUNT] = [2.5, 1.0, 2.0, 0.2, 300.0, 100.0, 5.0, 10.0, 2.0, 0.5, 2.0, 8.0];

/// The case with a group that takes as long as its matrix instructions, whatever the latency.
pub fn matrix_only(case: &Case) -> Case {
    let mut case = case.clone();
    for work in &mut case.works {
        work.group.clocks = work.group.clocks.map(|_| work.group.matrix);
    }
    case
}
