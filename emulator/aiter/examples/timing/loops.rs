//! The clock that main loops imply, without any fit of a chip: clocks of the model along 256
//! elements of K, over the measured time of these.
use crate::cache::Cache;
use crate::fit::quantile;
use crate::rows::{self, Row};

/// Loops that wait neither for memory nor for other groups, on MI308X.
const LOOPS: [&str; 5] = [
    "I8gemm_bf16_perTokenI8_BpreShuffle_128x128",
    "I8gemm_bf16_perTokenI8_BpreShuffle_112x256",
    "fp8gemm_bf16_blockscale_BpreShuffle_128x128",
    "fp8gemm_bf16_blockscale_BpreShuffle_96x128",
    "fp8gemm_bf16_blockscale_BpreShuffle_64x128",
];
const CUS: u32 = 80;

/// Elements of K of a step of the table.
const STEP: f64 = 256.0;

/// Latency in clocks that these loops hide.
const LATENCY: f64 = 500.0;

pub fn report(rows: &[Row], cache: &Cache) {
    let mut implied = [Vec::new(), Vec::new()];
    for kernel in LOOPS {
        let of: Vec<&Row> = rows.iter().filter(|r| r.cus == CUS && r.kernel == kernel).collect();
        let whole = of.iter().find(|r| r.whole() && r.splits == 1);
        let (Some(us), Some(profile)) = (steady(&of), whole.and_then(|r| rows::profile_of(cache, r))) else {
            println!("  {kernel}: too few rows");
            continue;
        };
        let slope = profile.slope();
        let clocks = [slope.at(LATENCY), slope.matrix].map(|c| c * STEP);
        let ghz = clocks.map(|c| c / us * 1e-3);
        println!("  {kernel:45} {us:.3} us, {:.0} clocks, {:.3} GHz; matrix only {:.3} GHz", clocks[0], ghz[0], ghz[1]);
        implied.iter_mut().zip(ghz).for_each(|(all, ghz)| all.push(ghz));
    }
    for (name, all) in ["stream", "matrix only"].iter().zip(&implied) {
        let spread = quantile(all, 1.0) / quantile(all, 0.0) - 1.0;
        println!("  spread of the clock, {name}: {:.1} %", spread * 100.0);
    }
}

/// Microseconds along 256 elements of one round: the last factor of `a + rounds * (b + c * steps)`,
/// which comes closest to the rows by the square of the relative error.
fn steady(rows: &[&Row]) -> Option<f64> {
    let mut sums = [[0.0; 4]; 3];
    for row in rows {
        let rounds = f64::from(row.groups().div_ceil(CUS));
        let terms = [1.0, rounds, rounds * f64::from(row.along()) / STEP, row.us];
        for (sums, term) in sums.iter_mut().zip(terms) {
            sums.iter_mut().zip(terms).for_each(|(sum, other)| *sum += term * other / (row.us * row.us));
        }
    }
    // Gauss and Jordan.
    for at in 0..3 {
        let pivot = sums[at];
        if pivot[at].abs() < 1e-12 {
            return None;
        }
        sums[at] = pivot.map(|v| v / pivot[at]);
        for other in (0..3).filter(|o| *o != at) {
            let factor = sums[other][at];
            (0..4).for_each(|k| sums[other][k] -= factor * sums[at][k]);
        }
    }
    Some(sums[2][3])
}
