//! Fits the model of times to measured ones, and predicts.
mod aiter;

use std::collections::BTreeMap;
use std::path::PathBuf;

fn main() {
    let var = |name: &str| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set")));
    let (times, folder) = (var("ATOMC_AMD_TIMES"), var("ATOMC_AITER"));
    let text = std::fs::read_to_string(times.join("gemm_asm.csv")).expect("gemm_asm.csv");
    let mut kernels: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let f: Vec<&str> = line.split(',').collect();
        *kernels.entry((f[0].to_string(), f[8].to_string())).or_default() += 1;
    }
    let arena = aiter::Arena::new();
    for ((gfx, kernel), rows) in kernels {
        let family = aiter::Family::of(&kernel).expect("a known family");
        let [m, n] = aiter::tile(&kernel).expect("a tile");
        let code = match aiter::load(&folder, &gfx, family, &kernel) {
            Ok(code) => code,
            Err(e) => {
                println!("{gfx} {kernel}: {e}");
                continue;
            }
        };
        let splits = if kernel.contains("splitk") { 2 } else { 1 };
        let both = [2048u32, 4096].map(|k| aiter::record(&code, family, aiter::Product { m, n, k: k * splits, splits }, &arena));
        match both {
            [Ok(a), Ok(b)] => {
                use atomc_emulator::timing::{cu::CORE, profile::Sample};
                let start = std::time::Instant::now();
                let [sa, sb] = [&a, &b].map(|t| Sample::of(t, 1, &CORE));
                let per = |a: f64, b: f64| (b - a) / 8.0;
                let fixed = |a: f64, b: f64| a - (b - a);
                println!(
                    "{gfx} {kernel} {rows}: per 256: matrix {} clocks {:?} L1 {} L2 {} | fixed {:?} stored {} atomics {} ({} events, {:.3} s)",
                    per(sa.matrix, sb.matrix),
                    [2, 4, 6].map(|i| per(sa.clocks[i], sb.clocks[i])),
                    per(sa.loaded, sb.loaded), per(sa.missed, sb.missed),
                    [2, 4, 6].map(|i| fixed(sa.clocks[i], sb.clocks[i])), sa.stored, sa.atomics,
                    a.waves.iter().map(Vec::len).sum::<usize>(), start.elapsed().as_secs_f64(),
                );
            }
            [a, b] => println!("{gfx} {kernel}: {:?} {:?}", a.err(), b.err()),
        }
    }
}
