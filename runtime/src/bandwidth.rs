//! The memory bandwidth of this machine, which limits the speed of a decode step.
use crate::memory::Buffer;
use crate::pool::Pool;
use std::io;
use std::time::Instant;

/// Bytes that one task reads: large enough for the prefetchers, small enough to share out evenly.
const TASK: usize = 4 << 20;

/// Distance of the prefetches ahead of the loads: hardware prefetchers stop at page borders.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 2048;

/// Read bandwidth in bytes a second with all threads of the pool: the best of `rounds` sums over a
/// buffer of `bytes`, which is to be much larger than the caches.
pub fn measure(pool: &mut Pool, bytes: usize, rounds: usize) -> io::Result<f64> {
    let tasks = (bytes / TASK).max(1);
    let mut buffer = Buffer::new(tasks * TASK)?;
    // Pages exist once they are written; zero pages would be read from the cache.
    buffer.as_mut_slice().chunks_mut(4096).for_each(|page| page[0] = 1);
    let buffer = &buffer;
    let mut best = f64::INFINITY;
    for _ in 0..rounds.max(1) {
        let start = Instant::now();
        pool.for_each(tasks, |task| {
            std::hint::black_box(sum(&buffer.as_slice()[task * TASK..][..TASK]));
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(buffer.len() as f64 / best)
}

/// Adds up the numbers in a part, with the widest loads that there are.
fn sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature is there.
            return unsafe { sum_avx512(bytes) };
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature is there.
            return unsafe { sum_avx2(bytes) };
        }
    }
    sum_lanes(bytes)
}

/// Eight independent sums over cache lines, which the compiler turns into vector adds of whatever
/// width is allowed.
#[inline(always)]
fn sum_lanes(bytes: &[u8]) -> u64 {
    let mut sums = [[0u64; 8]; 8];
    for block in bytes.as_chunks::<512>().0 {
        for (sums, line) in sums.iter_mut().zip(block.as_chunks::<64>().0) {
            for (sum, &word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(word));
            }
        }
    }
    sums.as_flattened().iter().fold(0, |a, &b| a.wrapping_add(b))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::*;
    let mut sums = [_mm512_setzero_si512(); 8];
    for block in bytes.as_chunks::<512>().0 {
        for (i, sum) in sums.iter_mut().enumerate() {
            let line = block.as_ptr().wrapping_add(i * 64);
            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD).cast());
            // SAFETY: 64 bytes of the block, at any alignment.
            *sum = _mm512_add_epi64(*sum, unsafe { _mm512_loadu_si512(line.cast()) });
        }
    }
    sums.into_iter().fold(0, |total, sum| total.wrapping_add(_mm512_reduce_add_epi64(sum) as u64))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(bytes: &[u8]) -> u64 {
    sum_lanes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_agree() {
        let bytes: Vec<u8> = (0..4096u32).map(|i| (i * 7 % 251) as u8).collect();
        let expect =
            bytes.as_chunks::<8>().0.iter().fold(0u64, |sum, &word| sum.wrapping_add(u64::from_le_bytes(word)));
        assert_eq!(sum(&bytes), expect);
        assert_eq!(sum_lanes(&bytes), expect);
    }

    #[test]
    fn measures_something() {
        let rate = measure(&mut Pool::new(2).unwrap(), 16 << 20, 2).unwrap();
        assert!(rate > 1e7, "{rate}");
    }
}
