//! Panels of codes as panels of floats in scratch, for as many rows as make it worth while.
use atomc_ir::DType;

use super::{Codes, Pairs, Panel, Spans, floats};
use crate::code::{Any, Int, Ptr, Vector};
use crate::host::LANES;

const BUILT: &str = "vectors of words";

/// Columns that share a scale, as pairs.
#[derive(Clone, Copy)]
pub struct Span<'c> {
    pub number: Int<'c>,
    pub first: Int<'c>,
    pub pairs: usize,
}

impl<'c> Codes<'_, 'c> {
    /// Whether sums are scaled: all columns of a row share a scale, or pairs of codes are
    /// multiplied. Otherwise elements are.
    pub fn scales_sums(&self) -> bool {
        self.scales_whole_sums() || self.scales_spans()
    }

    /// Whether they have one scale each, because all columns of a row share it.
    pub fn scales_whole_sums(&self) -> bool {
        self.least.is_none() && matches!(self.spans(), Spans::Whole { .. })
    }

    /// Whether the sums of a span have one scale each, and there are several spans.
    pub fn scales_spans(&self) -> bool {
        self.by_pairs && self.least.is_none() && matches!(self.spans(), Spans::Groups { .. })
    }

    /// If sums of spans are scaled: applies `add` to the sums before each span, one by one.
    pub fn each_span(
        &self,
        zeros: &[Any<'c>],
        add: impl Fn(Span<'c>, &[Any<'c>]) -> Vec<Any<'c>>,
    ) -> Option<Vec<Any<'c>>> {
        let Spans::Groups { count, words, rest } = self.spans() else { return None };
        let (c, pairs) = (self.c, self.per_word() / 2);
        let span = |number: Int<'c>, words_of: usize| Span {
            number,
            first: number * (words * pairs),
            pairs: words_of * pairs,
        };
        self.scales_spans().then(|| {
            let sums = c.for_each((0, count, 1), zeros, |number, sums| add(span(number, words), sums));
            if rest > 0 { add(span(c.int(count), rest), &sums) } else { sums }
        })
    }

    /// A panel's codes without their zero points, or scaled, as a panel of a float type at `to`.
    pub fn unpack(&self, panel: Panel<'c>, to: Ptr<'c>, dtype: DType) {
        if !self.scales_sums() || self.zero.is_some() || !self.core.has_pairs(dtype) || !Pairs::decodes(self.w.ty.dtype)
        {
            return self.unpack_columns(panel, to, dtype);
        }
        let (c, per) = (self.c, self.per_word());
        let pairs = Pairs { c, dtype: self.w.ty.dtype, width: self.w.stride };
        c.repeat(0, self.w.stride / per, 1, |word| {
            self.prefetch(panel, word);
            for (i, pairs) in pairs.panel(self.load(panel, word)).into_iter().enumerate() {
                c.store(c.at(to, (word * (per / 2) + i) * self.step()), pairs, 4);
            }
        });
    }

    /// Unpacks a panel column by column.
    fn unpack_columns(&self, panel: Panel<'c>, to: Ptr<'c>, dtype: DType) {
        let (c, per) = (self.c, self.per_word());
        let all = self.w.stride / per;
        let store = |word: Int<'c>, columns: &[Vector<'c>], is_exact: bool| {
            let to = c.at(to, word * (per * LANES * dtype.size()));
            self.store(to, columns, dtype, is_exact);
        };
        let columns = |word: Int<'c>| -> Vec<Vector<'c>> {
            self.prefetch(panel, word);
            let words = self.load(panel, word);
            (0..per).map(|i| floats::code(c, self.w.ty.dtype, words, i)).collect()
        };
        let span = |first: Int<'c>, words: usize, span: Int<'c>, is_scaled: bool| {
            let zero = self.zero(panel, span);
            let scale = is_scaled.then(|| self.scale(panel, span));
            let least = self.least(panel, span);
            let element = |code: Vector<'c>| {
                let code = zero.map_or(code, |zero| c.fsub(code, zero));
                match (scale, least) {
                    (Some(scale), Some(least)) => c.fma(code, scale, least),
                    (Some(scale), None) => c.fmul(code, scale),
                    (None, _) => code,
                }
            };
            c.repeat(first, first + words, 1, |word| {
                let columns: Vec<Vector> = columns(word).into_iter().map(element).collect();
                store(word, &columns, !is_scaled && self.zero.is_none());
            });
        };
        match self.spans() {
            Spans::Whole { words } => span(c.int(0), words, c.int(0), self.least.is_some()),
            Spans::Groups { count, words, rest } => {
                let is_scaled = !self.scales_spans();
                c.repeat(0, count, 1, |number| span(number * words, words, number, is_scaled));
                if rest > 0 {
                    span(c.int(count * words), rest, c.int(count), is_scaled);
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
