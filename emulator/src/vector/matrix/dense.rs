//! Dense products of tiles.

/// An accumulator.
pub trait Number: Copy + Default {
    fn mac(self, a: Self, b: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn mac(self, a: f32, b: f32) -> f32 {
        a.mul_add(b, self)
    }
}

impl Number for f64 {
    #[inline(always)]
    fn mac(self, a: f64, b: f64) -> f64 {
        a.mul_add(b, self)
    }
}

impl Number for i32 {
    #[inline(always)]
    fn mac(self, a: i32, b: i32) -> i32 {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

/// Adds products to four rows of sixteen sums, k ascending. `a` and `b` are k-major with `m`
/// numbers for each k; the rows are those from `row` on, the columns those from `column` on.
#[inline(always)]
pub fn four_rows<T: Number>(sums: &mut [[T; 16]; 4], a: &[T], b: &[T], m: usize, row: usize, column: usize) {
    let mut acc = *sums;
    for (a, b) in a.chunks_exact(m).zip(b.chunks_exact(m)) {
        let (Some(a), Some(b)) = (a[row..].first_chunk::<4>(), b[column..].first_chunk::<16>()) else { return };
        for r in 0..4 {
            for j in 0..16 {
                acc[r][j] = acc[r][j].mac(a[r], b[j]);
            }
        }
    }
    *sums = acc;
}
