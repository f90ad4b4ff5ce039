//! Panels of codes as panels of floats in scratch, for as many rows as make it worth while.
use atomc_ir::DType;

use super::{Codes, Panel, Spans, floats};
use crate::code::{Int, Ptr, Vector};
use crate::host::LANES;

const BUILT: &str = "vectors of words";

impl<'c> Codes<'_, 'c> {
    /// Whether sums are scaled, because all columns of a row share a scale. Otherwise elements are.
    pub fn scales_sums(&self) -> bool {
        matches!(self.spans(), Spans::Whole { .. })
    }

    /// A panel's codes without their zero points, or what they mean, as a panel of a float type at
    /// `to`.
    pub fn unpack(&self, panel: Panel<'c>, to: Ptr<'c>, dtype: DType) {
        let (c, per) = (self.c, self.per_word());
        let all = self.w.stride / per;
        let store = |word: Int<'c>, columns: &[Vector<'c>], is_exact: bool| {
            let to = c.at(to, word * (per * LANES * dtype.size()));
            self.store(to, columns, dtype, is_exact);
        };
        let columns = |word: Int<'c>| -> Vec<Vector<'c>> {
            let words = self.load(panel, word);
            (0..per).map(|i| floats::code(c, self.w.ty.dtype, words, i)).collect()
        };
        let span = |first: Int<'c>, words: usize, span: Int<'c>, is_scaled: bool| {
            let zero = self.zero(panel, span);
            let scale = is_scaled.then(|| self.scale(panel, span));
            let element = |code: Vector<'c>| {
                let code = zero.map_or(code, |zero| c.fsub(code, zero));
                scale.map_or(code, |scale| c.fmul(code, scale))
            };
            c.repeat(first, first + words, 1, |word| {
                let columns: Vec<Vector> = columns(word).into_iter().map(element).collect();
                store(word, &columns, !is_scaled && self.zero.is_none());
            });
        };
        match self.spans() {
            Spans::Whole { words } => span(c.int(0), words, c.int(0), false),
            Spans::Groups { count, words, rest } => {
                c.repeat(0, count, 1, |number| span(number * words, words, number, true));
                if rest > 0 {
                    span(c.int(count * words), rest, c.int(count), true);
                }
                c.repeat(count * words + rest, all, 1, |word| store(word, &vec![c.zero(); per], true));
            }
            Spans::Columns => c.repeat(0, all, 1, |word| {
                let element = |(i, code)| self.element(code, panel, word * per + i);
                let columns: Vec<Vector> = columns(word).into_iter().enumerate().map(element).collect();
                store(word, &columns, false);
            }),
        }
    }

    /// Stores columns as groups of a panel.
    fn store(&self, to: Ptr<'c>, columns: &[Vector<'c>], dtype: DType, is_exact: bool) {
        let c = self.c;
        let group = c.arch.memory.group_bytes / dtype.size();
        for (i, columns) in columns.chunks(group).enumerate() {
            let words = match columns {
                &[low, high] => self.pair(low, high, dtype, is_exact),
                columns => columns[0],
            };
            c.store(c.at(to, i * self.step()), words, 4);
        }
    }

    /// Two columns of 16 rows, side by side in words.
    fn pair(&self, low: Vector<'c>, high: Vector<'c>, dtype: DType, is_exact: bool) -> Vector<'c> {
        let c = self.c;
        let wide = c.ints(c.cx.i32_type(), LANES);
        let k = |n: u64| c.splat(c.cx.i32_type().const_int(n, false));
        if dtype == DType::BF16 && is_exact {
            let [low, high] = [low, high].map(|v| c.bitcast(v, wide).into_vector_value());
            let low = c.b.build_right_shift(low, k(16), false, "").expect(BUILT);
            return c.b.build_or(low, c.b.build_and(high, k(0xffff_0000), "").expect(BUILT), "").expect(BUILT);
        }
        if self.core.has_pairs(dtype) {
            let name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512";
            let both = c.call(name, &[], &[high.into(), low.into()]).into_vector_value();
            let order: Vec<usize> = (0..2 * LANES).map(|i| i / 2 + i % 2 * LANES).collect();
            return c.bitcast(c.shuffle(both, both, &order), wide).into_vector_value();
        }
        let [low, high] = [low, high].map(|v| c.b.build_int_z_extend(c.narrow(v, dtype), wide, "").expect(BUILT));
        c.b.build_or(low, c.b.build_left_shift(high, k(16), "").expect(BUILT), "").expect(BUILT)
    }
}
