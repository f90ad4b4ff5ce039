//! Scales, zero points and least numbers of a panel's 16 rows, as vectors of f32.
use atomc_ir::{DType, Layout};

use super::{Codes, Panel};
use crate::code::{Int, Ptr, Vector};
use crate::host::LANES;
use crate::row::Operand;

const BUILT: &str = "vectors of integers";

impl<'c> Codes<'_, 'c> {
    /// The scale of a panel's rows, for one of the spans of columns.
    pub fn scale(&self, panel: Panel<'c>, span: Int<'c>) -> Vector<'c> {
        self.of_rows(&self.scale, panel, self.block_of(span, self.block.cols))
    }

    pub fn zero(&self, panel: Panel<'c>, span: Int<'c>) -> Option<Vector<'c>> {
        self.zero.as_ref().map(|zero| self.of_rows(zero, panel, self.block_of(span, self.block.cols)))
    }

    /// What is added to each number of a panel's rows, for one of the spans of columns.
    pub fn least(&self, panel: Panel<'c>, span: Int<'c>) -> Option<Vector<'c>> {
        self.least.as_ref().map(|least| self.of_rows(least, panel, self.block_of(span, self.block.cols)))
    }

    /// The numbers of a column's codes.
    pub fn element(&self, code: Vector<'c>, panel: Panel<'c>, col: Int<'c>) -> Vector<'c> {
        let c = self.c;
        let [_, groups] = self.grid();
        let group = c.smaller(col / self.block.cols, groups - 1);
        let code = self.zero.as_ref().map_or(code, |zero| c.fsub(code, self.of_rows(zero, panel, group)));
        let scale = self.of_rows(&self.scale, panel, group);
        match &self.least {
            Some(least) => c.fma(code, scale, self.of_rows(least, panel, group)),
            None => c.fmul(code, scale),
        }
    }

    pub(super) fn grid(&self) -> [usize; 2] {
        let [rows, cols] = self.sizes();
        self.block.grid(rows, cols)
    }

    fn of_rows(&self, of: &Operand<'c>, panel: Panel<'c>, group: Int<'c>) -> Vector<'c> {
        let (c, dtype) = (self.c, of.ty.dtype);
        let size = dtype.size();
        let bits = c.bytes_type(size);
        if of.ty.layout == Layout::Columns {
            let bytes = LANES * size;
            let at = c.at(of.ptr, (panel.number * of.stride + group) * bytes);
            if let Some(ahead) = panel.ahead {
                c.prefetch(c.at(at, ahead * (of.stride * bytes)));
            }
            return self.widened(c.load(c.ints(bits, LANES), at, size as u32).into_vector_value(), dtype);
        }
        let load = |row: Int<'c>| c.load(bits, self.in_rows(of, row, group), size as u32);
        let (height, [rows, _]) = (self.block.rows, self.grid());
        let block = |row: Int<'c>| if rows == 1 { c.int(0) } else { c.smaller(row / height, rows - 1) };
        if rows == 1 || height.is_multiple_of(LANES) {
            return self.widened(c.splat(load(block(panel.number * LANES))), dtype);
        }
        let own = (0..LANES).fold(c.ints(bits, LANES).get_undef(), |all, lane| {
            let at = c.cx.i32_type().const_int(lane as u64, false);
            c.b.build_insert_element(all, load(block(panel.number * LANES + lane)), at, "").expect(BUILT)
        });
        self.widened(own, dtype)
    }

    fn in_rows(&self, of: &Operand<'c>, row: Int<'c>, group: Int<'c>) -> Ptr<'c> {
        self.c.at(of.ptr, (row * of.stride + group) * of.ty.dtype.size())
    }

    /// Bits of a scale or of a zero point as f32.
    fn widened(&self, bits: Vector<'c>, dtype: DType) -> Vector<'c> {
        let c = self.c;
        let wide = c.ints(c.cx.i32_type(), LANES);
        let k = |n: u64| c.splat(c.cx.i32_type().const_int(n, false));
        let unsigned = || c.b.build_int_z_extend(bits, wide, "").expect(BUILT);
        match dtype {
            DType::U8 => c.b.build_signed_int_to_float(unsigned(), c.f32s(), "").expect(BUILT),
            DType::I8 => {
                let signed = c.b.build_int_s_extend(bits, wide, "").expect(BUILT);
                c.b.build_signed_int_to_float(signed, c.f32s(), "").expect(BUILT)
            }
            DType::E8M0 => {
                let byte = unsigned();
                let power = c.b.build_left_shift(byte, k(23), "").expect(BUILT);
                // 2^-127 has no leading one.
                let least = c.b.build_int_compare(inkwell::IntPredicate::EQ, byte, k(0), "").expect(BUILT);
                let none = c.b.build_int_compare(inkwell::IntPredicate::EQ, byte, k(255), "").expect(BUILT);
                let power = c.choose(none, k(0x7fc0_0000), c.choose(least, k(0x40_0000), power));
                c.bitcast(power, c.f32s()).into_vector_value()
            }
            float => c.widen(bits, float),
        }
    }
}
