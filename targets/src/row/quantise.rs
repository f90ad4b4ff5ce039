//! Quantises rows. Scales follow the rules of `atomc_ir`'s `quantise`, operation by operation in
//! f32. Each number then becomes the nearest code.
use atomc_ir::arch::Fp8;
use atomc_ir::trial::largest;
use atomc_ir::{DType, Diagnostic, LEAST_SCALE, LEAST_SIZE, Layout, Op, Rule, Type, Value};
use inkwell::values::FloatValue;
use inkwell::{FloatPredicate, IntPredicate};

use super::{At, Col, Made, Place, Rows, Team, unsupported};
use crate::code::{Any, Code, Int, Vector};

const BUILT: &str = "floats, and integers of their size";

/// The largest number that e4m3 rounds to zero: half of the smallest code, as a tie goes to the
/// even code.
const LARGEST_ZERO: f64 = 1.0 / 1024.0;

/// The scale of some codes, and how a number is divided by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale<'c> {
    by: By<'c>,
    pub scale: FloatValue<'c>,
}

#[derive(Clone, Copy, Debug)]
enum By<'c> {
    Factor(FloatValue<'c>),
    Divisor(FloatValue<'c>),
}

impl<'c> Rows<'_, 'c> {
    /// Columns that share a scale, if the value is quantised in this kernel or before it.
    pub fn scaled_group(&self, v: Value) -> Option<usize> {
        match self.graph.ty(v) {
            Type::Tensor(t) => match t.layout {
                Layout::Scaled(group) | Layout::Mx(group) => Some(group),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether a value is quantised with one scale for each row.
    pub fn has_row_scale(&self, v: Value) -> bool {
        let width = self.graph.ty(v).as_tensor().and_then(|t| t.shape.last());
        self.scaled_group(v).is_some_and(|group| Some(group) >= width)
    }

    /// The codes of a value, as f32. A row with one scale must have been prepared.
    pub fn codes(&self, v: Value, at: At<'c>) -> Made<'c> {
        match *self.graph.op(v.node) {
            Op::Quantise { to, .. } => {
                let scale = self.row_scale(v)?;
                self.coded(self.eval(self.graph.operands(v.node)[0], at)?, to, scale)
            }
            _ => self.stored_codes(v, at),
        }
    }

    /// The scale of a prepared row's codes.
    pub fn scale(&self, v: Value, row: Int<'c>) -> Result<FloatValue<'c>, Diagnostic> {
        match self.graph.op(v.node) {
            Op::Quantise { .. } => Ok(self.row_scale(v)?.scale),
            _ => self.stored_scale(v, row, self.code.int(0)),
        }
    }

    fn row_scale(&self, v: Value) -> Result<Scale<'c>, Diagnostic> {
        let known = self.scales.borrow().get(&v).copied();
        known.ok_or_else(|| unsupported("codes of rows that are computed later"))
    }

    /// The numbers that a row has after quantising in this kernel: codes times scales.
    pub(super) fn quantised(&self, v: Value, to: DType, rule: Rule, at: At<'c>) -> Made<'c> {
        let (c, x) = (self.code, self.graph.operands(v.node)[0]);
        let scale = match rule {
            Rule::Static | Rule::Row => self.row_scale(v)?,
            Rule::Group(group) | Rule::Power(group) | Rule::Mx(group) | Rule::MxCodes(group) => {
                let scale = self.group_scale(v, to, rule, at.row, self.column(at.col) / group);
                scale?
            }
        };
        Ok(c.fmul(self.coded(self.eval(x, at)?, to, scale)?, c.splat(scale.scale)))
    }

    /// The scale of a group of columns.
    pub fn group_of(&self, v: Value, row: Int<'c>, group: Int<'c>) -> Result<GroupScale<'c>, Diagnostic> {
        match *self.graph.op(v.node) {
            Op::Quantise { to, rule } => Ok(GroupScale { to, scale: self.group_scale(v, to, rule, row, group)? }),
            _ => {
                let scale = self.stored_scale(v, row, group)?;
                let by = By::Factor(self.code.number(1.0));
                Ok(GroupScale { to: self.shape(v)?.dtype, scale: Scale { by, scale } })
            }
        }
    }

    /// The scale of a group that is quantised in this kernel, from the largest absolute value of
    /// its columns ([`Rows::size_of`]).
    pub fn scale_of_size(&self, v: Value, size: FloatValue<'c>) -> Result<GroupScale<'c>, Diagnostic> {
        match *self.graph.op(v.node) {
            Op::Quantise { to, rule } => Ok(GroupScale { to, scale: self.scale_by(rule, to, size) }),
            _ => Err(unsupported("a scale of codes that are made elsewhere")),
        }
    }

    /// The largest absolute value in a vector. NaN if an element is NaN or infinite: such an
    /// element times zero is NaN, which the sum carries on.
    pub fn size_of(&self, v: Vector<'c>) -> FloatValue<'c> {
        let c = self.code;
        let abs = c.call("llvm.fabs", &[v.get_type().into()], &[v.into()]).into_vector_value();
        (c.float(c.top(abs)) + c.sum(c.fmul(v, c.zero()))).v
    }

    /// The codes of numbers as f32, by the scale of their group.
    pub fn coded_by(&self, v: Vector<'c>, group: &GroupScale<'c>) -> Made<'c> {
        self.coded(v, group.to, group.scale)
    }

    /// The codes of a vector as f32. All of its columns have this scale.
    pub fn codes_by(&self, v: Value, at: At<'c>, group: &GroupScale<'c>) -> Made<'c> {
        match *self.graph.op(v.node) {
            Op::Quantise { .. } => self.coded(self.eval(self.graph.operands(v.node)[0], at)?, group.to, group.scale),
            _ => self.stored_codes(v, at),
        }
    }

    /// The codes of a vector as stored in memory. The scale is the group's, or that of a prepared
    /// row.
    pub fn code_bits(&self, v: Value, at: At<'c>, group: Option<&GroupScale<'c>>) -> Made<'c> {
        let c = self.code;
        let Op::Quantise { to, .. } = *self.graph.op(v.node) else {
            let x = self.operand(v)?;
            return Ok(c.load_bits(self.address(x, at), x.ty.dtype));
        };
        let scale = group.map_or_else(|| self.row_scale(v), |group| Ok(group.scale))?;
        Ok(self.bits_of(self.eval(self.graph.operands(v.node)[0], at)?, to, scale))
    }

    /// The codes of numbers as stored in memory, by the scale of their group.
    pub fn bits_by(&self, numbers: Vector<'c>, group: &GroupScale<'c>) -> Vector<'c> {
        self.bits_of(numbers, group.to, group.scale)
    }

    fn bits_of(&self, numbers: Vector<'c>, to: DType, scale: Scale<'c>) -> Vector<'c> {
        if to == DType::F4E2M1 {
            return self.pairs_of_e2m1(numbers, scale.scale);
        }
        let (c, scaled) = (self.code, self.scaled_by(numbers, scale));
        match to {
            DType::F8E4M3 => c.narrow(self.without_negative_zeros(scaled), to),
            _ => to_bits(c, nearest(c, scaled, to), to),
        }
    }

    /// Numbers divided by a power of two, as e2m1, two to a byte. The chip's instruction rounds to
    /// the nearest code, and ties to even.
    fn pairs_of_e2m1(&self, numbers: Vector<'c>, power: FloatValue<'c>) -> Vector<'c> {
        let (c, i32) = (self.code, self.code.cx.i32_type());
        let k = |n: usize| i32.const_int(n as u64, false);
        let bytes = c.lanes() / 2;
        let word = |first: usize| {
            (first..bytes.min(first + 4)).fold(k(0).into(), |word: Any<'c>, byte| {
                let [low, high] = [0, 1].map(|i| c.lane(numbers, 2 * byte + i).into());
                let args = [word.into(), low, high, power.into(), k(byte - first).into()];
                c.call("llvm.amdgcn.cvt.scalef32.pk.fp4.f32", &[], &args)
            })
        };
        let words: Vec<Int<'c>> = (0..bytes).step_by(4).map(|first| c.as_int(word(first))).collect();
        let all = c.bitcast(c.words(&words), c.ints(c.cx.i8_type(), 4 * words.len())).into_vector_value();
        c.part(all, 0, bytes)
    }

    /// Replaces numbers that e4m3 would round to a negative zero by zero, where matrix instructions
    /// read the bits of a negative zero as NaN. So products need not check for them.
    fn without_negative_zeros(&self, numbers: Vector<'c>) -> Vector<'c> {
        let c = self.code;
        if !c.arch.gpu().is_some_and(|gpu| gpu.simt.fp8 == Fp8::Fnuz) {
            return numbers;
        }
        let size = c.call("llvm.fabs", &[numbers.get_type().into()], &[numbers.into()]).into_vector_value();
        let is_zero = c.b.build_float_compare(FloatPredicate::OLE, size, c.lit(LARGEST_ZERO), "").expect(BUILT);
        c.choose(is_zero, c.zero(), numbers)
    }

    fn group_scale(
        &self,
        v: Value,
        to: DType,
        rule: Rule,
        row: Int<'c>,
        group: Int<'c>,
    ) -> Result<Scale<'c>, Diagnostic> {
        let (c, x) = (self.code, self.graph.operands(v.node)[0]);
        let (width, lanes) = (self.shape(x)?.shape.last().unwrap_or(0), c.lanes());
        let (Rule::Group(columns) | Rule::Power(columns) | Rule::Mx(columns) | Rule::MxCodes(columns)) = rule else {
            return self.row_scale(v);
        };
        if !columns.is_multiple_of(lanes) && columns < width {
            return Err(unsupported(format!("a scale for every {columns} columns in vectors of {lanes}")));
        }
        let first = group * columns;
        let end = c.smaller(first + columns, width);
        // Each member of a team looks at the whole group by itself.
        let size = self.size(x, first, end, (row, None), None)?;
        Ok(self.scale_by(rule, to, size))
    }

    /// Emits the scale of a row, where a row has one.
    pub(super) fn prepare_scale(&self, v: Value, to: DType, rule: Rule, place: Place<'c>) -> Result<(), Diagnostic> {
        let (c, operands) = (self.code, self.graph.operands(v.node));
        let width = self.shape(operands[0])?.shape.last().unwrap_or(0);
        let scale = match rule {
            Rule::Group(columns) | Rule::Power(columns) | Rule::Mx(columns) | Rule::MxCodes(columns)
                if columns < width =>
            {
                return Ok(());
            }
            Rule::Static => {
                let (at, lanes) = (At { row: c.int(0), head: None, col: Col::Const(0) }, c.lanes());
                c.set_lanes(1);
                let scale = self.eval(operands[1], at);
                c.set_lanes(lanes);
                let scale = c.lane(scale?, 0).into_float_value();
                Scale { by: By::Factor(self.inverse(c.number(1.0), scale)), scale }
            }
            Rule::Row | Rule::Group(_) | Rule::Power(_) | Rule::Mx(_) | Rule::MxCodes(_) => {
                let size = self.size(operands[0], c.int(0), c.int(width), place, self.team.get())?;
                self.scale_by(rule, to, size)
            }
        };
        self.scales.borrow_mut().insert(v, scale);
        Ok(())
    }

    /// The largest absolute value in a row's columns. NaN if an element is NaN or infinite, as for
    /// [`Rows::size_of`].
    fn size(
        &self,
        x: Value,
        first: Int<'c>,
        end: Int<'c>,
        (row, head): Place<'c>,
        team: Option<Team<'_, 'c>>,
    ) -> Result<FloatValue<'c>, Diagnostic> {
        let c = self.code;
        let (first, apart) = match team {
            Some(team) => (first + team.index * c.lanes(), team.size * c.lanes()),
            None => (first, c.lanes()),
        };
        let [size, odd] = c.try_carry((first, end, apart), [c.zero(); 2], |col, [size, odd]| {
            let v = self.eval(x, At { row, head, col: Col::Var(col) })?;
            let v = c.choose(c.lanes_below(end - col), v, c.zero());
            let abs = c.call("llvm.fabs", &[v.get_type().into()], &[v.into()]).into_vector_value();
            Ok::<_, Diagnostic>([c.fmax(size, abs), c.fma(v, c.zero(), odd)])
        })?;
        let (mut top, mut odd) = (c.top(size), c.sum(odd));
        if let Some(team) = team {
            (top, odd) = (team.threads.team_top(top, team), team.threads.team_sum(odd, team));
        }
        Ok((c.float(top) + odd).v)
    }

    fn inverse(&self, of: FloatValue<'c>, by: FloatValue<'c>) -> FloatValue<'c> {
        (self.code.float(of) / by).v
    }

    fn scale_by(&self, rule: Rule, to: DType, size: FloatValue<'c>) -> Scale<'c> {
        let c = self.code;
        let most = if to == DType::I8 { 127.0 } else { largest(to) };
        // NaN compares false, so it stays NaN.
        let at_least = |v: FloatValue<'c>, least: f64| {
            c.pick(c.float(v).less(c.number(least)), c.number(least), v).into_float_value()
        };
        match rule {
            Rule::Row if to == DType::I8 => {
                let size = at_least(size, LEAST_SIZE);
                let scale = self.inverse(size, c.number(most));
                Scale { by: By::Factor(self.inverse(c.number(most), size)), scale }
            }
            Rule::Group(_) | Rule::Power(_) => {
                let inverse = f64::from(1.0 / most as f32);
                let scale = (c.float(at_least(size, LEAST_SIZE)) * c.number(inverse)).v;
                let scale = if matches!(rule, Rule::Power(_)) { self.power_above(scale) } else { scale };
                Scale { by: By::Divisor(scale), scale }
            }
            Rule::Mx(_) | Rule::MxCodes(_) => self.power_of_two(to, size),
            Rule::Row | Rule::Static => {
                let scale = at_least(self.inverse(size, c.number(most)), LEAST_SCALE);
                Scale { by: By::Factor(self.inverse(c.number(1.0), scale)), scale }
            }
        }
    }

    /// The least power of two that is at least `v`, a normal number.
    fn power_above(&self, v: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code;
        let bits = (c.as_int(c.bitcast(v, c.cx.i32_type())) + 0x7f_ffff).shift_right(23, false).shift_left(23);
        let power = c.bitcast(bits, c.cx.f32_type()).into_float_value();
        // `v - v` is zero, or NaN if `v` is NaN or infinite: NaN stays NaN.
        let odd = c.float(v) - v;
        (c.float(power) + odd).v
    }

    /// The scale of the MX formats, a power of two. e4m3 codes reach 1.75 * 2^8; a larger number
    /// takes the next power. For e2m1 a mantissa of 1.75 or more counts as the next power, and
    /// codes reach 2^2.
    fn power_of_two(&self, to: DType, size: FloatValue<'c>) -> Scale<'c> {
        let c = self.code;
        let bits = c.as_int(c.bitcast(size, c.cx.i32_type()));
        let exponent = match to {
            DType::F4E2M1 => (bits + (1 << 21)).shift_right(23, false) - 2,
            _ => (bits + 0x1f_ffff).shift_right(23, false) - 8,
        };
        let least = c.compare(IntPredicate::SLT, exponent, exponent.constant(1));
        let exponent = c.pick_int(least, exponent.constant(1), exponent);
        let power = |e: Int<'c>| c.bitcast(e.shift_left(23), c.cx.f32_type()).into_float_value();
        // `v - v` is zero, or NaN if `v` is NaN or infinite: NaN stays NaN.
        let odd = c.float(size) - size;
        let scale = (c.float(power(exponent)) + odd).v;
        Scale { by: By::Factor(power(254 - exponent)), scale }
    }

    /// The nearest codes of numbers, as f32.
    fn coded(&self, v: Vector<'c>, to: DType, scale: Scale<'c>) -> Made<'c> {
        Ok(nearest(self.code, self.scaled_by(v, scale), to))
    }

    fn scaled_by(&self, v: Vector<'c>, scale: Scale<'c>) -> Vector<'c> {
        let c = self.code;
        match scale.by {
            By::Factor(factor) => c.fmul(v, c.splat(factor)),
            By::Divisor(divisor) => c.fdiv(v, c.splat(divisor)),
        }
    }

    fn stored_codes(&self, v: Value, at: At<'c>) -> Made<'c> {
        let (c, x) = (self.code, self.operand(v)?);
        Ok(of_bits(c, c.load_bits(self.address(x, at), x.ty.dtype), x.ty.dtype))
    }

    fn stored_scale(&self, v: Value, row: Int<'c>, group: Int<'c>) -> Result<FloatValue<'c>, Diagnostic> {
        let (c, x) = (self.code, self.operand(v)?);
        let at = c.at(x.ptr, row * x.stride + group * 4 + self.padded(x));
        Ok(c.load(c.cx.f32_type(), at, 4).into_float_value())
    }

    /// The numbers of codes in memory: codes times scales.
    pub(super) fn stored(&self, v: Value, group: usize, at: At<'c>) -> Made<'c> {
        let (c, width) = (self.code, self.shape(v)?.shape.last().unwrap_or(0));
        if group < width && !group.is_multiple_of(c.lanes()) {
            return Err(unsupported(format!("a scale for every {group} columns in vectors of {}", c.lanes())));
        }
        let last = width.div_ceil(group) - 1;
        let group = if last == 0 { c.int(0) } else { c.smaller(self.column(at.col) / group, last) };
        let scale = self.stored_scale(v, at.row, group)?;
        Ok(c.fmul(self.stored_codes(v, at)?, c.splat(scale)))
    }
}

/// The scale of a group of columns, with the type of its codes.
pub struct GroupScale<'c> {
    to: DType,
    scale: Scale<'c>,
}

impl<'c> GroupScale<'c> {
    pub fn scale(&self) -> FloatValue<'c> {
        self.scale.scale
    }
}

/// The nearest code of a type, as f32. Ties go away from zero for integers, and to even otherwise.
fn nearest<'c>(c: &Code<'c>, v: Vector<'c>, to: DType) -> Vector<'c> {
    let intrinsic = |name: &str, v: Vector<'c>| c.call(name, &[v.get_type().into()], &[v.into()]).into_vector_value();
    match to {
        DType::I8 => {
            let v = c.fmax(intrinsic("llvm.round", v), c.lit(-128.0));
            let more = c.b.build_float_compare(FloatPredicate::OGT, v, c.lit(127.0), "").expect(BUILT);
            c.choose(more, c.lit(127.0), v)
        }
        DType::F4E2M1 => {
            let below = |v, most: f64| c.b.build_float_compare(FloatPredicate::OLT, v, c.lit(most), "").expect(BUILT);
            let size = intrinsic("llvm.fabs", v);
            let size = c.choose(below(size, 6.0), size, c.lit(6.0));
            let multiple =
                |step: f64| c.fmul(intrinsic("llvm.roundeven", c.fmul(size, c.lit(1.0 / step))), c.lit(step));
            let large = c.choose(below(size, 4.0), multiple(1.0), multiple(2.0));
            let size = c.choose(below(size, 2.0), multiple(0.5), large);
            let size = c.choose(below(size, 6.0), size, c.lit(6.0));
            c.call("llvm.copysign", &[v.get_type().into()], &[size.into(), v.into()]).into_vector_value()
        }
        _ => of_bits(c, c.narrow(v, to), to),
    }
}

/// Codes from memory as f32.
fn of_bits<'c>(c: &Code<'c>, bits: Vector<'c>, dtype: DType) -> Vector<'c> {
    match dtype {
        DType::I8 => {
            let wide = c.b.build_int_s_extend(bits, c.ints(c.cx.i32_type(), c.lanes()), "").expect(BUILT);
            c.b.build_signed_int_to_float(wide, c.f32s(), "").expect(BUILT)
        }
        _ => c.widen(bits, dtype),
    }
}

/// Converts codes from f32 to their form in memory.
pub fn to_bits<'c>(c: &Code<'c>, codes: Vector<'c>, dtype: DType) -> Vector<'c> {
    match dtype {
        DType::I8 => {
            // NaN has no integer code, so it becomes zero. Its scale is NaN.
            let is_number = c.b.build_float_compare(FloatPredicate::ORD, codes, codes, "").expect(BUILT);
            let codes = c.choose(is_number, codes, c.zero());
            c.b.build_float_to_signed_int(codes, c.ints(c.cx.i8_type(), c.lanes()), "").expect(BUILT)
        }
        _ => c.narrow(codes, dtype),
    }
}
