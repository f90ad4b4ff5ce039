//! The clock that main loops imply, without any fit: clocks of the model of a work-group over the
//! time that one more round of work-groups takes.
use std::collections::BTreeMap;

use crate::fit::quantile;
use crate::rows::{Profiles, Row};

/// Loops that wait neither for memory nor for other groups, on MI308X.
const LOOPS: [&str; 5] = [
    "I8gemm_bf16_perTokenI8_BpreShuffle_128x128",
    "I8gemm_bf16_perTokenI8_BpreShuffle_112x256",
    "fp8gemm_bf16_blockscale_BpreShuffle_128x128",
    "fp8gemm_bf16_blockscale_BpreShuffle_96x128",
    "fp8gemm_bf16_blockscale_BpreShuffle_64x128",
];
const CUS: u32 = 80;

/// Latency in clocks that hides behind these loops.
const LATENCY: f64 = 500.0;

pub fn report(rows: &[Row], profiles: &Profiles) {
    let mut implied = [Vec::new(), Vec::new()];
    for kernel in LOOPS {
        let of: Vec<&Row> =
            rows.iter().filter(|r| r.cus == CUS && r.kernel == kernel && r.splits == 1 && r.whole()).collect();
        let (Some((k, us)), Some(profile)) = (round(&of), of.first().and_then(|r| profiles.get(r))) else {
            println!("  {kernel}: too few rows");
            continue;
        };
        let group = profile.along(k.into());
        let clocks = [group.at(LATENCY), group.matrix];
        let ghz = clocks.map(|c| c / us * 1e-3);
        println!(
            "  {kernel:45} K {k}: {us:.2} us a round, {:.0} clocks, {:.3} GHz; matrix only {:.3} GHz",
            clocks[0], ghz[0], ghz[1]
        );
        implied.iter_mut().zip(ghz).for_each(|(all, ghz)| all.push(ghz));
    }
    for (name, all) in ["stream", "matrix only"].iter().zip(&implied) {
        let spread = quantile(all, 1.0) / quantile(all, 0.0) - 1.0;
        println!("  spread of the clock, {name}: {:.1} %", spread * 100.0);
    }
}

/// Of the K with most rows, it and the microseconds of a round: the median of what rows of
/// different rounds differ by.
fn round(rows: &[&Row]) -> Option<(u32, f64)> {
    let mut by_k: BTreeMap<u32, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|r| by_k.entry(r.k).or_default().push(r));
    let (k, rows) = by_k.into_iter().max_by_key(|(_, rows)| rows.len())?;
    let rounds = |r: &Row| f64::from(r.groups().div_ceil(CUS));
    let pairs = rows.iter().enumerate().flat_map(|(at, a)| rows[at + 1..].iter().map(move |b| (a, b)));
    let apart = pairs.filter(|(a, b)| rounds(a) != rounds(b));
    let each: Vec<f64> = apart.map(|(a, b)| (b.us - a.us) / (rounds(b) - rounds(a))).collect();
    (!each.is_empty()).then(|| (k, quantile(&each, 0.5)))
}
