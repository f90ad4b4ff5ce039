//! `atomc bench --ledger`: the time of each kernel, compared with its floor.
use std::io::{self, Write};

use super::peaks::Peaks;
use super::{KernelTime, Timed};

/// Kernels by the time that they lose, then the loss of all, and the time in which no kernel runs.
pub fn show(out: &mut impl Write, timed: &Timed, step: f64, peaks: &Peaks) -> io::Result<()> {
    let Some(floors) = floors(timed, peaks) else {
        return writeln!(out, "  no ledger: nothing is known of what this device's memory gives");
    };
    writeln!(out, "  {:>10}  {:>10}  {:>6}  {:>10}  {:>8}", "reached us", "floor us", "share", "lost us", "launches")?;
    for (kernel, floor) in &floors {
        let what = format!("{:>6} x  {}", kernel.launches, kernel.symbol);
        line(out, (kernel.seconds, *floor), &what)?;
    }
    let sum = |of: fn(&(&KernelTime, f64)) -> f64| floors.iter().map(of).sum::<f64>();
    let (reached, floor) = (sum(|(kernel, _)| kernel.seconds), sum(|(_, floor)| *floor));
    line(out, (reached, floor), "        all kernels, timed apart")?;
    line(out, (step, floor), "        the whole step")
}

/// Kernels with their floors, those that lose most first.
fn floors<'a>(timed: &'a Timed, peaks: &Peaks) -> Option<Vec<(&'a KernelTime, f64)>> {
    let floor = |kernel: &'a KernelTime| Some((kernel, peaks.floor(kernel.bytes, kernel.flops, kernel.rate)?));
    let mut all = timed.kernels.iter().map(floor).collect::<Option<Vec<_>>>()?;
    all.sort_by(|(a, x), (b, y)| (b.seconds - y).total_cmp(&(a.seconds - x)));
    Some(all)
}

fn line(out: &mut impl Write, (reached, floor): (f64, f64), what: &str) -> io::Result<()> {
    let [us, least, lost] = [reached, floor, reached - floor].map(|seconds| seconds * 1e6);
    let share = if reached > 0.0 { 100.0 * floor / reached } else { 0.0 };
    writeln!(out, "  {us:>10.1}  {least:>10.1}  {share:>4.0} %  {lost:>10.1}  {what}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use atomc_runtime::manifest::Chip;

    #[test]
    fn what_loses_most_comes_first() {
        let kernel = |symbol: &str, seconds: f64, bytes: u64, flops: u64| KernelTime {
            symbol: symbol.into(),
            launches: 2,
            seconds,
            bytes,
            flops,
            experts: None,
            cached: 0,
            rate: 1,
        };
        let kernels = vec![kernel("near", 9e-6, 8_000, 0), kernel("far", 8e-6, 1_000, 4_000_000)];
        let timed = Timed { kernels, ..Timed::default() };
        let shown = |peaks: &Peaks| {
            let mut out = vec![];
            show(&mut out, &timed, 2e-5, peaks).unwrap();
            String::from_utf8(out).unwrap()
        };
        let chip = Chip { name: "C".into(), bandwidth: 1e9, flops: 1e12 };
        insta::assert_snapshot!(shown(&Peaks::Sheet(chip)), @"
        reached us    floor us   share     lost us  launches
               8.0         4.0    50 %         4.0       2 x  far
               9.0         8.0    89 %         1.0       2 x  near
              17.0        12.0    71 %         5.0          all kernels, timed apart
              20.0        12.0    60 %         8.0          the whole step
        ");
        assert!(shown(&Peaks::Host(1e9)).contains("1.0    12 %"), "bytes alone count where operations have no peak");
        assert!(shown(&Peaks::Unknown).contains("no ledger"));
    }
}
