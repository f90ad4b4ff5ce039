//! A quantised weight, as products take it: a lane loads its codes from memory and decodes them to
//! fragments in registers. Its scales and zero points are addressed here.
//!
//! A lane's part of a fragment is a few consecutive columns, 4 to 16 bytes of codes. A step has as
//! many products as are loaded together: the lane's columns are those of one vector of the step,
//! and it takes the same columns of the rows of x.
use atomc_ir::arch::GpuArch;
use atomc_ir::arch::Simt;
use atomc_ir::{Block, DType, Diagnostic, Layout};
use inkwell::values::FloatValue;

use crate::code::codes::{Decoder, Zero};
use crate::code::{Any, Int, Ptr, Vector, carried};
use crate::contraction::{Encoding, Parts};
use crate::row::{Operand, unsupported};
use crate::schedule::WhyNot;
use crate::simt::gemm::contract::Panel;
use crate::simt::gemm::quantised::Quantised;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, Matrix, Place, VEC16, layout_of};

/// How products of a machine take codes.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    pub encoding: Encoding,
    /// Products of a step.
    pub times: usize,
    /// Columns of a row that a lane has in one product.
    depth: usize,
    /// How quantised operands are multiplied as stored, if they are.
    quantised: Option<Quantised>,
    /// Where the columns of a step have several scales: the groups of a lane's columns of a row.
    /// Its numbers are scaled before they are multiplied.
    own_groups: Option<usize>,
}

impl Steps {
    /// The step sizes that suit a weight, largest first. The columns of a step are whole and share
    /// one scale; or else those of a lane do; or, last, a lane's are whole groups.
    pub fn all(encoding: Encoding, quantised: Option<Quantised>, arch: GpuArch) -> impl Iterator<Item = Steps> + use<> {
        let simt = arch.simt;
        let layout = quantised.map_or(simt.matrix, |quantised| layout_of(simt, quantised.dtype));
        let (span, depth) = (layout.span(simt.wave), layout.depth);
        let (vec16, cols) = (codes_of_vec16(encoding.codes), arch.memory.padded(encoding.size[1]));
        let group = encoding.block.cols;
        let are_steps = move |times: usize| {
            let columns = span * times;
            columns.is_multiple_of(vec16) && cols.is_multiple_of(columns)
        };
        let of_sums = move |times: usize| {
            let fits = encoding.has_one_group() || group.is_multiple_of(span * times);
            fits.then_some((times, None))
        };
        let of_lanes = move |times: usize| {
            (quantised.is_none() && group.is_multiple_of(depth * times)).then_some((times, Some(1)))
        };
        let of_groups = move |times: usize| {
            let own = depth * times;
            (quantised.is_none() && own.is_multiple_of(group)).then_some((times, Some(own / group)))
        };
        let most = vec16 / depth;
        // Steps begin with a vector of each row.
        let lengths = move || {
            let all = std::iter::successors(Some(most), |times| Some(times / 2)).take_while(|&times| times > 0);
            all.filter(move |&times| are_steps(times))
        };
        let ways = lengths().filter_map(of_sums).chain(lengths().filter_map(of_lanes));
        ways.chain(lengths().filter_map(of_groups)).map(move |(times, own_groups)| Steps {
            encoding,
            times,
            depth,
            quantised,
            own_groups,
        })
    }

    /// Whether there is a step size, and if not why.
    pub fn check(encoding: Encoding, quantised: Option<Quantised>, arch: GpuArch) -> Result<(), WhyNot> {
        let span = arch.simt.matrix.span(arch.simt.wave);
        let found = Steps::all(encoding, quantised, arch).next();
        found
            .map(drop)
            .ok_or_else(|| encoding.refused(&format!("a lane's part of {span} columns would have several scales")))
    }

    /// Words of a lane's codes of one row.
    pub fn words(&self) -> usize {
        self.depth * self.times * self.encoding.codes.bits() / 32
    }

    /// Registers of a panel's scales and zero points, where each step has its own.
    pub fn marks(&self, simt: &Simt) -> usize {
        let (scales, rows) = ((simt.matrix.results * self.encoding.scale.size()).div_ceil(4), simt.matrix.rows());
        if let Some(groups) = self.own_groups {
            return groups * rows * (1 + usize::from(self.encoding.zero.or(self.encoding.least).is_some()));
        }
        let least = self.encoding.least.map_or(0, |least| (simt.matrix.results * least.size()).div_ceil(4));
        if self.encoding.is_row_wise() { 0 } else { scales + least + self.encoding.zero.map_or(0, |_| rows) }
    }
}

/// Codes in the bytes of a vector.
pub fn codes_of_vec16(codes: DType) -> usize {
    VEC16 * 8 / codes.bits()
}

/// Numbers of 32 bits, changed, in the type of products.
pub fn narrowed<'c>(
    c: &Gpu<'c>,
    numbers: &[Int<'c>],
    dtype: DType,
    change: impl Fn(Vector<'c>) -> Vector<'c>,
) -> Vec<Int<'c>> {
    let lanes = c.lanes();
    c.set_lanes(numbers.len());
    let floats = c.bitcast(c.words(numbers), c.f32s()).into_vector_value();
    let bits = c.narrow(change(floats), dtype);
    let words = numbers.len() * dtype.size() / 4;
    let bits = c.bitcast(bits, c.cx.i32_type().vec_type(words as u32)).into_vector_value();
    c.set_lanes(lanes);
    (0..words).map(|i| c.as_int(c.lane(bits, i))).collect()
}

/// Codes times their scale, and what is added to them if there is something.
pub fn scaled<'c>(c: &Gpu<'c>, floats: Vector<'c>, scale: FloatValue<'c>, least: Option<FloatValue<'c>>) -> Vector<'c> {
    match least {
        Some(least) => c.fma(floats, c.splat(scale), c.splat(least)),
        None => c.fmul(floats, c.splat(scale)),
    }
}

/// Scales, zero points or least numbers of a weight in memory.
struct Marks<'c> {
    operand: Operand<'c>,
    encoding: Encoding,
}

/// The scales or zero points of some rows of a panel, for the first group of columns: consecutive,
/// one for all, or each at an address of its own.
#[derive(Clone)]
pub struct MarksAt<'c> {
    first: Vec<Ptr<'c>>,
    rows: usize,
    /// Whether the weight has each of the rows, if it may lack some.
    has: Vec<Int<'c>>,
}

impl<'c> Marks<'c> {
    fn is_packed(&self) -> bool {
        self.operand.ty.layout == Layout::Columns
    }

    /// The scales of `rows` rows of a panel, from row `row` on.
    fn at(&self, c: &Gpu<'c>, panel: Panel<'c>, row: Int<'c>, rows: usize) -> MarksAt<'c> {
        let (x, size) = (&self.operand, self.operand.ty.dtype.size());
        if self.is_packed() {
            let panel = c.at(x.ptr, c.to_i64(panel.number) * (16 * x.stride * size));
            return MarksAt { first: vec![c.at(panel, row * size)], rows, has: vec![] };
        }
        let ([all, _], Block { rows: high, .. }) = (self.encoding.size, self.encoding.block);
        let matrix = all.div_ceil(high) * x.stride * size;
        let first = panel.expert.map_or(x.ptr, |expert| c.at(x.ptr, c.to_i64(expert) * matrix));
        let one = |i: usize| {
            if high >= all {
                return first;
            }
            let row = c.smaller(panel.own * 16 + row + i, all - 1);
            c.at(first, row / high * (x.stride * size))
        };
        let count = if high.is_multiple_of(rows) || high >= all { 1 } else { rows };
        // Rows that pad the weight have codes of zero, which a zero point would turn into numbers.
        let pads = self.encoding.zero.is_some() && !all.is_multiple_of(16);
        let has = |i: usize| c.less(panel.own * 16 + row + i, all);
        let has = if pads { (0..rows).map(has).collect() } else { vec![] };
        MarksAt { first: (0..count).map(one).collect(), rows, has }
    }

    /// Loads the scales or zero points of a group of columns.
    fn load(&self, c: &Gpu<'c>, at: &MarksAt<'c>, group: Option<Int<'c>>) -> Vec<Any<'c>> {
        let size = self.operand.ty.dtype.size();
        let element = c.bytes_type(size);
        let (count, apart) = if self.is_packed() { (at.rows, 16 * size) } else { (1, size) };
        let one = |&p: &Ptr<'c>| {
            let p = group.map_or(p, |group| c.at(p, group * apart));
            Any::from(c.load_vector(element, count, p, (count * size).min(VEC16)))
        };
        at.first.iter().map(one).collect()
    }

    /// The loaded values as f32 of each row.
    fn floats(&self, c: &Gpu<'c>, at: &MarksAt<'c>, bits: &[Any<'c>]) -> Vector<'c> {
        let rows = at.rows;
        let (lanes, dtype) = (c.lanes(), self.operand.ty.dtype);
        let parts: Vec<Vector<'c>> = bits.iter().map(|bits| bits.into_vector_value()).collect();
        c.set_lanes(parts[0].get_type().get_size() as usize);
        let floats: Vec<Vector<'c>> = parts.iter().map(|&bits| c.widen(bits, dtype)).collect();
        c.set_lanes(rows);
        let all = match (&floats[..], c.lanes()) {
            (&[one], rows) if one.get_type().get_size() as usize == rows => one,
            (&[one], _) => c.splat(c.lane(one, 0)),
            (each, _) => c.floats(&each.iter().map(|&one| c.lane(one, 0)).collect::<Vec<_>>()),
        };
        c.set_lanes(lanes);
        let number = |(i, &has): (usize, &Int<'c>)| c.pick(has, c.lane(all, i), c.number(0.0));
        if at.has.is_empty() { all } else { c.floats(&at.has.iter().enumerate().map(number).collect::<Vec<_>>()) }
    }

    /// The numbers of `rows` rows of a panel, from row `row` on.
    fn numbers(
        &self,
        c: &Gpu<'c>,
        (panel, row): (Panel<'c>, Int<'c>),
        rows: usize,
        group: Option<Int<'c>>,
    ) -> Vector<'c> {
        let at = self.at(c, panel, row, rows);
        self.floats(c, &at, &self.load(c, &at, group))
    }

    /// The loaded value of one row as an integer.
    fn integer(&self, c: &Gpu<'c>, bits: Any<'c>) -> Int<'c> {
        let (byte, word) = (c.lane(bits.into_vector_value(), 0).into_int_value(), c.cx.i32_type());
        let made = match self.operand.ty.dtype {
            DType::I8 => c.b.build_int_s_extend(byte, word, ""),
            _ => c.b.build_int_z_extend(byte, word, ""),
        };
        c.as_int(made.expect("a byte to a word"))
    }
}

/// A quantised weight in memory.
pub struct Codes<'c> {
    pub encoding: Encoding,
    scale: Marks<'c>,
    zero: Option<Marks<'c>>,
    /// Numbers that are added to codes times scales.
    least: Option<Marks<'c>>,
}

impl<'c> Codes<'c> {
    /// The codes of a contraction, if its weight is quantised.
    pub fn of(parts: &Parts<'_, '_, 'c>) -> Result<Option<Codes<'c>>, Diagnostic> {
        let Some(encoding) = Encoding::of(parts.kernel.rows.graph) else { return Ok(None) };
        let mut marks = parts.marks()?.into_iter().map(|operand| Marks { operand: operand.clone(), encoding });
        let scale = marks.next().ok_or_else(|| unsupported("codes without scales"))?;
        let (zero, least) = match marks.next() {
            Some(marks) if encoding.least.is_some() => (None, Some(marks)),
            zero => (zero, None),
        };
        Ok(Some(Codes { encoding, scale, zero, least }))
    }

    /// Issues the copies of the scales, and then of the zero points, of some groups of a panel to
    /// local memory from `to` on: `copy` issues one, given the place, the address and the bytes.
    /// All of them lie in columns.
    pub fn copy_marks(
        &self,
        c: &Gpu<'c>,
        panel: Panel<'c>,
        (group, count): (Int<'c>, usize),
        mut to: Int<'c>,
        copy: impl Fn((Int<'c>, Ptr<'c>, usize)),
    ) {
        let run = |marks: &Marks<'c>| {
            let bytes = 16 * marks.operand.ty.dtype.size();
            (c.at(marks.at(c, panel, c.int(0), 1).first[0], group * bytes), bytes * count)
        };
        let runs: Vec<_> = std::iter::once(&self.scale).chain(&self.zero).map(run).collect();
        for (from, bytes) in runs {
            copy((to, from, bytes));
            to = to + bytes;
        }
    }

    /// Loads one scale from local memory.
    pub fn scale_at(&self, c: &Gpu<'c>, p: Ptr<'c>) -> FloatValue<'c> {
        let (lanes, dtype) = (c.lanes(), self.scale.operand.ty.dtype);
        let bits = c.load_vector(c.bytes_type(dtype.size()), 1, p, dtype.size());
        c.set_lanes(1);
        let scale = c.lane(c.widen(bits, dtype), 0).into_float_value();
        c.set_lanes(lanes);
        scale
    }

    /// A scale of a byte in local memory, as the byte.
    pub fn scale_byte_at(&self, c: &Gpu<'c>, p: Ptr<'c>) -> Int<'c> {
        self.scale.integer(c, c.load_vector(c.bytes_type(1), 1, p, 1).into())
    }

    /// A zero point in local memory.
    pub fn zero_at(&self, c: &Gpu<'c>, decoder: &Decoder, p: Ptr<'c>) -> Option<Zero<'c>> {
        let zero = self.zero.as_ref()?;
        Some(decoder.zero(c, zero.integer(c, c.load_vector(c.bytes_type(1), 1, p, 1).into())))
    }

    /// The zero point as a number.
    pub fn zero_number_at(&self, c: &Gpu<'c>, p: Ptr<'c>) -> Option<FloatValue<'c>> {
        let zero = self.zero.as_ref()?;
        let bits = zero.integer(c, c.load_vector(c.bytes_type(1), 1, p, 1).into());
        Some(c.b.build_signed_int_to_float(bits.v, c.cx.f32_type(), "").expect("an integer"))
    }

    /// The group of a column, if a row has several.
    pub fn group(&self, c: &Gpu<'c>, column: Int<'c>) -> Option<Int<'c>> {
        (!self.encoding.is_row_wise()).then(|| self.group_of(c, column))
    }

    /// The group of a column. Columns that pad rows may lie behind the last one, of which they are
    /// then.
    fn group_of(&self, c: &Gpu<'c>, column: Int<'c>) -> Int<'c> {
        self.there(c, column / self.encoding.block.cols)
    }

    /// A group, or the last one if there is none of its number.
    fn there(&self, c: &Gpu<'c>, number: Int<'c>) -> Int<'c> {
        let (group, cols) = (self.encoding.block.cols, self.encoding.size[1]);
        let groups = cols.div_ceil(group);
        if c.arch.memory.padded(cols) > groups * group { c.smaller(number, groups - 1) } else { number }
    }

    /// The scales of `rows` rows of a panel, from row `row` on.
    pub fn scales(&self, c: &Gpu<'c>, place: (Panel<'c>, Int<'c>), rows: usize, group: Option<Int<'c>>) -> Vector<'c> {
        self.scale.numbers(c, place, rows, group)
    }

    /// The least numbers of `rows` rows of a panel, from row `row` on, if the weight has some.
    pub fn least(
        &self,
        c: &Gpu<'c>,
        place: (Panel<'c>, Int<'c>),
        rows: usize,
        group: Option<Int<'c>>,
    ) -> Option<Vector<'c>> {
        Some(self.least.as_ref()?.numbers(c, place, rows, group))
    }

    /// The address of the scales of a row of a panel. All scales of the panel lie in columns.
    pub fn scales_of_row(&self, c: &Gpu<'c>, panel: Panel<'c>, row: Int<'c>) -> Ptr<'c> {
        self.scale.at(c, panel, row, 1).first[0]
    }

    /// The zero point of a row of a panel, if the weight has some.
    pub fn zero(
        &self,
        c: &Gpu<'c>,
        decoder: &Decoder,
        (panel, row): (Panel<'c>, Int<'c>),
        group: Option<Int<'c>>,
    ) -> Option<Zero<'c>> {
        let zero = self.zero.as_ref()?;
        let bits = zero.load(c, &zero.at(c, panel, row, 1), group);
        Some(decoder.zero(c, zero.integer(c, bits[0])))
    }
}

/// Scales as loaded, those of the rows of the lane's results, and zero points, those of the rows of
/// its codes; or least numbers, as scales are. Where numbers are scaled, all are those of the rows
/// of its codes, group by group.
pub struct StepMarks<'c> {
    pub scales: Vec<Any<'c>>,
    pub zeros: Vec<Any<'c>>,
}

/// The lane's part of a panel for a step: its bits of each row, and the scales and zero points that
/// come with them.
pub struct StepWeight<'c> {
    pub rows: Vec<Vector<'c>>,
    pub marks: Option<StepMarks<'c>>,
}

impl StepMarks<'_> {
    /// The marks of some groups, and behind them those of others.
    fn and(mut self, others: Self) -> Self {
        self.scales.extend(others.scales);
        self.zeros.extend(others.zeros);
        self
    }
}

carried!(StepMarks { scales, zeros });
carried!(StepWeight { rows, marks });

/// One wave's steps along a quantised weight.
pub struct Way<'w, 'a, 'c> {
    codes: &'w Codes<'c>,
    steps: Steps,
    matrix: Matrix<'a, 'c>,
    decoder: Decoder,
    /// For each piece: the scales, and the zero points or least numbers.
    places: Vec<[Vec<MarksAt<'c>>; 2]>,
    /// The first of the lane's columns in a step.
    column: Int<'c>,
    /// Those scales and zero points as loaded, where each row has only one.
    fixed: Vec<StepMarks<'c>>,
}

impl<'w, 'a, 'c> Way<'w, 'a, 'c> {
    /// Along some panels.
    pub fn new(codes: &'w Codes<'c>, steps: Steps, matrix: Matrix<'a, 'c>, panels: &[Panel<'c>]) -> Way<'w, 'a, 'c> {
        let (c, place) = (matrix.c, matrix.place());
        let decoded = if steps.own_groups.is_some() { DType::F32 } else { matrix.dtype };
        let decoder = Decoder::new(c.arch, codes.encoding.codes, decoded);
        let of_results = |marks: &Marks<'c>, panel| vec![marks.at(c, panel, place.results, matrix.layout.results)];
        let of_codes = |marks: &Marks<'c>, panel: Panel<'c>| -> Vec<MarksAt<'c>> {
            (0..matrix.layout.rows()).map(|i| marks.at(c, panel, place.row + 2 * i, 1)).collect()
        };
        let one = |marks: &Marks<'c>, panel| match steps.own_groups {
            Some(_) => of_codes(marks, panel),
            None => of_results(marks, panel),
        };
        let behind = |panel| match (&codes.zero, &codes.least) {
            (Some(zero), _) => of_codes(zero, panel),
            (None, Some(least)) => one(least, panel),
            (None, None) => vec![],
        };
        let places = panels.iter().map(|&panel| [one(&codes.scale, panel), behind(panel)]).collect();
        let column = place.part * (steps.depth * steps.times);
        let mut way = Way { codes, steps, matrix, decoder, places, column, fixed: Vec::new() };
        if codes.encoding.is_row_wise() {
            way.fixed = way.places.iter().map(|at| way.load_marks(at, None)).collect();
        }
        way
    }

    /// The byte of a panel at which the lane's codes of the first step begin.
    pub fn in_panel(&self, place: Place<'c>) -> Int<'c> {
        let own = self.steps.words() * 4;
        let shared = VEC16 / own;
        place.part / shared * (16 * VEC16) + place.row * VEC16 + place.part % shared * own
    }

    /// Bytes of a panel from one step to the next.
    pub fn step_bytes(&self) -> usize {
        self.codes.encoding.codes.bytes(16 * self.matrix.span() * self.steps.times)
    }

    /// Loads what a step needs of a piece's panel. The lane's codes begin at `p`.
    pub fn load(&self, piece: usize, p: Ptr<'c>, step: Int<'c>) -> StepWeight<'c> {
        let c = self.matrix.c;
        let words = self.steps.words();
        let row = |i: usize| c.load_vector(c.cx.i32_type(), words, c.at(p, 2 * i * VEC16), 4 * words);
        let rows = (0..self.matrix.layout.rows()).map(row).collect();
        let (columns, group) = (self.matrix.span() * self.steps.times, self.codes.encoding.block.cols);
        let groups: Vec<Int<'c>> = match self.steps.own_groups {
            _ if !self.fixed.is_empty() => vec![],
            Some(groups) => {
                let column = step * columns + self.column;
                (0..groups).map(|i| self.codes.group_of(c, column + i * group)).collect()
            }
            None if self.codes.encoding.has_one_group() => vec![c.int(0)],
            None => vec![self.codes.there(c, step / (group / columns))],
        };
        let of_groups = groups.into_iter().map(|group| self.load_marks(&self.places[piece], Some(group)));
        StepWeight { rows, marks: of_groups.reduce(StepMarks::and) }
    }

    fn load_marks(&self, [scales, zeros]: &[Vec<MarksAt<'c>>; 2], group: Option<Int<'c>>) -> StepMarks<'c> {
        let c = self.matrix.c;
        let load = |marks: &Marks<'c>, all: &[MarksAt<'c>]| -> Vec<Any<'c>> {
            all.iter().flat_map(|at| marks.load(c, at, group)).collect()
        };
        let behind = self.codes.zero.as_ref().or(self.codes.least.as_ref());
        StepMarks { scales: load(&self.codes.scale, scales), zeros: behind.map_or(vec![], |marks| load(marks, zeros)) }
    }

    /// Adds the products of a step of a piece with the step's columns, product by product. Columns
    /// may have scales of their own.
    pub fn add(
        &self,
        piece: usize,
        weight: &StepWeight<'c>,
        (columns, scales_of_columns): (&[Vec<Fragment<'c>>], &[FloatValue<'c>]),
        sums: &mut [Vector<'c>],
    ) {
        let (c, m) = (self.matrix.c, &self.matrix);
        let marks = self.fixed.get(piece).or(weight.marks.as_ref()).expect("scales of a step or of whole rows");
        let zero = |bits: &Any<'c>| {
            let zero = self.codes.zero.as_ref().expect("zero points where some were loaded");
            self.decoder.zero(c, zero.integer(c, *bits))
        };
        let behind: &[Any<'c>] = if self.codes.zero.is_some() { &marks.zeros } else { &[] };
        let zeros: Vec<Zero<'c>> = behind.iter().map(zero).collect();
        let fragments = self.fragments(&weight.rows, &zeros, (piece, marks));
        let are_sums = self.steps.own_groups.is_some() || !self.fixed.is_empty();
        if are_sums && scales_of_columns.is_empty() {
            return fragments.iter().zip(columns).for_each(|(a, b)| m.products(a, b, sums));
        }
        let mut own = vec![m.zero_sums(m.layout.results); sums.len()];
        fragments.iter().zip(columns).for_each(|(a, b)| m.products(a, b, &mut own));
        let [places, _] = &self.places[piece];
        let scales = (!are_sums).then(|| self.codes.scale.floats(c, &places[0], &marks.scales));
        let scales = scales.map(|scales| self.in_unit(scales));
        let lanes = c.lanes();
        c.set_lanes(m.layout.results);
        for (i, (sum, own)) in sums.iter_mut().zip(own).enumerate() {
            let factors = match (scales, scales_of_columns.get(i)) {
                (Some(scales), None) => scales,
                (Some(scales), Some(&column)) => c.fmul(scales, c.splat(column)),
                (None, Some(&column)) => self.in_unit(c.splat(column)),
                (None, None) => unreachable!("a step is scaled by one of its operands"),
            };
            *sum = c.fma(m.as_floats(own), factors, *sum);
        }
        c.set_lanes(lanes);
        self.add_least((piece, marks), columns, sums);
    }

    /// Adds the least numbers of a step, times the sums of its columns: products with ones.
    fn add_least(
        &self,
        (piece, marks): (usize, &StepMarks<'c>),
        columns: &[Vec<Fragment<'c>>],
        sums: &mut [Vector<'c>],
    ) {
        let (c, m) = (self.matrix.c, &self.matrix);
        let Some(least) = self.codes.least.as_ref().filter(|_| self.steps.own_groups.is_none()) else { return };
        let [_, places] = &self.places[piece];
        let least = least.floats(c, &places[0], &marks.zeros);
        let one = match m.dtype {
            DType::F32 => 0x3f80_0000,
            DType::F16 => 0x3c00_3c00,
            _ => 0x3f80_3f80,
        };
        let one = c.as_int(c.cx.i32_type().const_int(one, false));
        let ones: Fragment<'c> = vec![c.words(&[one; VEC16 / 4]); m.layout.rows() * m.vec16s()];
        let mut totals = vec![m.zero_sums(m.layout.results); sums.len()];
        columns.iter().for_each(|column| m.products(&ones, column, &mut totals));
        let lanes = c.lanes();
        c.set_lanes(m.layout.results);
        sums.iter_mut().zip(totals).for_each(|(sum, total)| *sum = c.fma(m.as_floats(total), least, *sum));
        c.set_lanes(lanes);
    }

    /// Factors for sums as instructions return them.
    fn in_unit(&self, factors: Vector<'c>) -> Vector<'c> {
        let (c, lanes) = (self.matrix.c, self.matrix.c.lanes());
        if self.matrix.unit() == 1.0 {
            return factors;
        }
        c.set_lanes(factors.get_type().get_size() as usize);
        let scaled = c.fmul(factors, c.lit(self.matrix.unit()));
        c.set_lanes(lanes);
        scaled
    }

    /// The fragment of each product of a step.
    fn fragments(
        &self,
        codes: &[Vector<'c>],
        zeros: &[Zero<'c>],
        (piece, marks): (usize, &StepMarks<'c>),
    ) -> Vec<Fragment<'c>> {
        let (c, m) = (self.matrix.c, &self.matrix);
        let row = |(i, &words): (usize, &Vector<'c>)| -> Vec<Vector<'c>> {
            let words: Vec<Int> = (0..self.steps.words()).map(|i| c.as_int(c.lane(words, i))).collect();
            if self.steps.quantised.is_some_and(|quantised| quantised.as_stored) {
                return words.chunks(VEC16 / 4).map(|vec16| c.words(vec16)).collect();
            }
            let Some(groups) = self.steps.own_groups else {
                let numbers = self.decoder.decode(c, &words, zeros.get(i).copied());
                return numbers.chunks(VEC16 / 4).map(|vec16| c.words(vec16)).collect();
            };
            let of_group = |(group, words): (usize, &[Int<'c>])| {
                let mark = group * m.layout.rows() + i;
                self.scaled(self.decoder.decode(c, words, zeros.get(mark).copied()), piece, (i, mark), marks)
            };
            let numbers: Vec<Int> = words.chunks(words.len() / groups).enumerate().flat_map(of_group).collect();
            numbers.chunks(VEC16 / 4).map(|vec16| c.words(vec16)).collect()
        };
        let rows: Vec<Vec<Vector<'c>>> = codes.iter().enumerate().map(row).collect();
        let product =
            |i: usize| rows.iter().flat_map(|row| row[i * m.vec16s()..(i + 1) * m.vec16s()].to_vec()).collect();
        (0..self.steps.times).map(product).collect()
    }

    /// The numbers of a row of the lane's codes by the scale that is `mark` of the step's, in the
    /// type of products.
    fn scaled(
        &self,
        numbers: Vec<Int<'c>>,
        piece: usize,
        (row, mark): (usize, usize),
        marks: &StepMarks<'c>,
    ) -> Vec<Int<'c>> {
        let (c, [scales, behind]) = (self.matrix.c, &self.places[piece]);
        let number = |of: &Marks<'c>, at: &MarksAt<'c>, bits: &Any<'c>| {
            c.lane(of.floats(c, at, std::slice::from_ref(bits)), 0).into_float_value()
        };
        let scale = number(&self.codes.scale, &scales[row], &marks.scales[mark]);
        let least = self.codes.least.as_ref().map(|least| number(least, &behind[row], &marks.zeros[mark]));
        narrowed(c, &numbers, self.matrix.dtype, |floats| scaled(c, floats, scale, least))
    }

    /// Whether sums of a step are scaled by rows of x, or of the weight, as they are added up.
    fn has_groups(&self) -> bool {
        self.steps.quantised.is_some_and(|quantised| quantised.has_groups)
    }

    /// The sums of all pieces, `each` of them a piece, times the scales of rows that have one scale
    /// only.
    pub fn finish(&self, sums: Vec<Vector<'c>>, each: usize) -> Vec<Vector<'c>> {
        let c = self.matrix.c;
        if self.fixed.is_empty() {
            return sums;
        }
        let scaled = |(sums, (marks, [places, _])): (&[Vector<'c>], (&StepMarks<'c>, &[Vec<MarksAt<'c>>; 2]))| {
            let scales = self.codes.scale.floats(c, &places[0], &marks.scales);
            // Sums of groups are numbers already.
            let scales = if self.has_groups() { scales } else { self.in_unit(scales) };
            let number = |sum| if self.has_groups() { sum } else { self.matrix.as_floats(sum) };
            sums.iter().map(|&sum| c.fmul(number(sum), scales)).collect::<Vec<_>>()
        };
        sums.chunks(each).zip(self.fixed.iter().zip(&self.places)).flat_map(scaled).collect()
    }
}
