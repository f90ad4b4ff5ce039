//! Scales that change along K: a group of columns has sums of its own. They are multiplied by both
//! operands' scales and added to the sums of the groups before.
use inkwell::values::FloatValue;

use super::Group;
use super::block_scales::BlockScales;
use super::shape::Shape;
use crate::code::{Any, Int, Ptr, Vector, carried};
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::Panel;

/// Sums of all columns so far, and of the current group.
pub struct Sums<'c> {
    pub all: Vec<Vector<'c>>,
    /// The sums of a group that has begun and not ended. A loop's turn ends with none.
    group: Vec<Vector<'c>>,
    /// The scales of the current stretch, if they were loaded with it.
    pub held: Option<StretchScales<'c>>,
}

carried!(Sums { all, group, held });

/// The scales of a stretch, which are loaded together with it. Loaded after the next stretch, they
/// would have to wait for it.
pub struct StretchScales<'c> {
    /// For each block of columns the scales of its row, those of two stretches if they are loaded
    /// together.
    pub rows: Vec<Vec<Any<'c>>>,
    /// The number of the stretch among these.
    pub number: usize,
    /// For each panel, or for each tile of panels, the scales of the lane's rows of the weight.
    pub weight: Vec<Vec<Any<'c>>>,
}

carried!(StretchScales { rows, number, weight });

/// How sums are scaled along K, and the addresses of the scales of a wave's part of the tile.
pub enum Scaling<'g, 'c> {
    /// Sums of groups are scaled as they are added up, by those scales that change along K.
    Groups { rows: Option<RowScales<'c>>, weight: Option<WeightScales<'g, 'c>> },
    /// Instructions scale 32 columns.
    Blocks(BlockScales<'c>),
}

/// The scales of rows of x.
pub struct RowScales<'c> {
    /// The addresses of the scales of each block's row.
    at: Vec<Ptr<'c>>,
    /// Columns that share one.
    group: usize,
}

/// The scales of rows of the weight.
pub struct WeightScales<'g, 'c> {
    codes: &'g Codes<'c>,
    panels: Vec<Panel<'c>>,
    /// Whether the rows of a panel share one scale.
    is_shared: bool,
}

impl<'g, 'c> Group<'g, '_, '_, 'c> {
    /// The addresses of scales, if they change along K.
    pub(super) fn scaling(&self) -> Option<Scaling<'g, 'c>> {
        if let Some(blocks) = self.block_scales() {
            return Some(Scaling::Blocks(blocks));
        }
        self.shape.quantised.filter(|quantised| quantised.has_groups)?;
        Some(Scaling::Groups { rows: self.row_scales(), weight: self.weight_scales() })
    }

    fn row_scales(&self) -> Option<RowScales<'c>> {
        let (c, parts, s) = (self.contraction.matrix.c, &self.contraction.parts, &self.accumulator);
        let rows = &parts.kernel.rows;
        let group = rows.scaled_group(parts.x).filter(|_| !rows.has_row_scale(parts.x))?;
        let x = rows.operand(parts.x).ok()?;
        let first = self.wave[1] * (self.shape.blocks * 16) + s.column();
        let of_block = |block: usize| {
            let source = self.tile.source(c, first + s.width() * block);
            c.at(c.at(x.ptr, c.to_i64(source) * x.stride), rows.padded(x))
        };
        Some(RowScales { at: (0..self.blocks()).map(of_block).collect(), group })
    }

    fn weight_scales(&self) -> Option<WeightScales<'g, 'c>> {
        let codes = self.codes.filter(|codes| !codes.encoding.is_row_wise())?;
        let first = self.wave[0] * self.shape.panels;
        let panel = |i: usize| self.tile.weight_of(self.contraction, self.place(first + i));
        let ([all, _], high) = (codes.encoding.size, codes.encoding.block.rows);
        let is_shared = high.is_multiple_of(16) || high >= all;
        Some(WeightScales { codes, panels: (0..self.shape.panels).map(panel).collect(), is_shared })
    }

    /// Whether scales of rows are loaded for two stretches at once, the first of them in the first
    /// half of local memory: each row's are a line of their own.
    fn in_pairs(&self, from: &Scaling<'_, 'c>) -> bool {
        let is_group = match from {
            Scaling::Groups { rows, .. } => rows.as_ref().is_some_and(|rows| rows.group == self.shape.stretch),
            Scaling::Blocks(_) => true,
        };
        is_group && self.shape.has_pairs()
    }

    /// Loads the scales of a stretch. Those of rows may have come with the stretch before.
    fn load_scales(
        &self,
        from: &Scaling<'_, 'c>,
        stretch: Int<'c>,
        before: Option<&StretchScales<'c>>,
    ) -> StretchScales<'c> {
        let (rows, number) = match before.filter(|_| self.in_pairs(from)) {
            Some(before) => (before.rows.clone(), 1),
            None => (self.load_row_scales(from, stretch), 0),
        };
        let weight = match from {
            Scaling::Groups { weight, .. } => self.load_weight_scales(weight.as_ref(), stretch),
            Scaling::Blocks(blocks) => self.load_block_weights(blocks, stretch),
        };
        StretchScales { rows, number, weight }
    }

    fn load_row_scales(&self, from: &Scaling<'_, 'c>, stretch: Int<'c>) -> Vec<Vec<Any<'c>>> {
        let c = self.contraction.matrix.c;
        let rows = match from {
            Scaling::Groups { rows: Some(rows), .. } => rows,
            Scaling::Groups { rows: None, .. } => return vec![],
            Scaling::Blocks(blocks) => return self.load_block_rows(blocks, stretch),
        };
        let (at, count) = (stretch * self.shape.stretch / rows.group * 4, if self.in_pairs(from) { 2 } else { 1 });
        let ty = c.cx.f32_type().vec_type(count as u32);
        rows.at.iter().map(|&p| vec![c.load(ty, c.at(p, at), 4 * count as u32)]).collect()
    }

    fn load_weight_scales(&self, from: Option<&WeightScales<'_, 'c>>, stretch: Int<'c>) -> Vec<Vec<Any<'c>>> {
        let (c, s) = (self.contraction.matrix.c, &self.accumulator);
        let column = stretch * self.shape.stretch;
        let Some(weight) = from else { return vec![] };
        let group = weight.codes.group(c, column);
        let scales = |panel, row, count| weight.codes.scales(c, (panel, row), count, group).into();
        let of_panel = |&panel: &Panel<'c>| match weight.is_shared {
            true => vec![scales(panel, c.int(0), 1)],
            false => {
                let results = s.results(s.zero(), 0).into_iter();
                results.map(|(row, sums)| scales(panel, row, sums.get_type().get_size() as usize)).collect()
            }
        };
        weight.panels.iter().map(of_panel).collect()
    }

    /// Multiplies a stretch in a half of local memory, and adds its sums: scaled, at the end of a
    /// group.
    pub(super) fn multiply_stretch(
        &self,
        scaling: Option<&Scaling<'_, 'c>>,
        (stretch, half): (Int<'c>, usize),
        sums: &mut Sums<'c>,
    ) {
        let from = match (scaling, &sums.held) {
            (None, _) => return self.multiply(half, None, &mut sums.all),
            (Some(Scaling::Blocks(from)), Some(scales)) => {
                return self.multiply(half, Some((from, scales)), &mut sums.all);
            }
            (Some(_), Some(scales)) => return self.multiply_groups(half, scales, &mut sums.all),
            (Some(from), None) => from,
        };
        let in_group = self.shape.in_group();
        // Stretches with odd numbers are in the second half.
        if half % in_group == 0 {
            sums.group = vec![self.accumulator.zero(); sums.all.len()];
        }
        let ends = (half + 1).is_multiple_of(in_group);
        let scales = ends.then(|| self.load_scales(from, stretch, None));
        self.contraction.matrix.c.keep_order();
        self.multiply(half, None, &mut sums.group);
        if let Some(scales) = scales {
            self.add_group(&scales, sums);
        }
    }

    /// Adds the rest of a group that the last stretch has not ended.
    pub(super) fn add_rest(&self, scaling: Option<&Scaling<'_, 'c>>, stretch: Int<'c>, sums: &mut Sums<'c>) {
        if let Some(from) = scaling.filter(|_| !sums.group.is_empty()) {
            self.add_group(&self.load_scales(from, stretch, None), sums);
        }
    }

    fn add_group(&self, scales: &StretchScales<'c>, sums: &mut Sums<'c>) {
        let group = std::mem::take(&mut sums.group);
        for (i, (all, group)) in sums.all.iter_mut().zip(group).enumerate() {
            self.add_scaled_sums(scales, (i, group), all);
        }
    }

    /// Adds the `i`-th of the sums of a group to that of all columns.
    pub(super) fn add_scaled_sums(
        &self,
        scales: &StretchScales<'c>,
        (i, group): (usize, Vector<'c>),
        all: &mut Vector<'c>,
    ) {
        let (c, m, blocks) = (self.contraction.matrix.c, &self.contraction.matrix, self.blocks());
        let factors = self.factors(scales, i / blocks, i % blocks);
        *all = c.fma(m.as_floats(group), factors, *all);
    }

    /// The factors of the sums of some panels and a block of columns.
    fn factors(&self, scales: &StretchScales<'c>, tile: usize, block: usize) -> Vector<'c> {
        let (c, m, s) = (self.contraction.matrix.c, &self.contraction.matrix, &self.accumulator);
        let times = |a: FloatValue<'c>, b: FloatValue<'c>| (c.float(a) * b).v;
        let unit = (m.unit() != 1.0).then(|| c.number(m.unit()));
        let of_row = scales.rows.get(block).map(|row| c.lane(row[0].into_vector_value(), scales.number));
        let of_row = of_row.map(|row| row.into_float_value());
        let of_row = of_row.map_or(unit, |row| Some(unit.map_or(row, |unit| times(row, unit))));
        let of_panel = |panel: usize| {
            let weight = scales.weight.get(tile * s.side() + panel);
            let weight: Option<Vec<Vector<'c>>> =
                weight.map(|rows| rows.iter().map(|v| v.into_vector_value()).collect());
            let part = |(i, (_, sums)): (usize, (Int<'c>, Vector<'c>))| {
                c.set_lanes(sums.get_type().get_size() as usize);
                match (&weight, of_row) {
                    (Some(weight), _) if weight.len() == 1 && weight[0].get_type().get_size() == 1 => {
                        let scale = c.lane(weight[0], 0).into_float_value();
                        c.splat(of_row.map_or(scale, |row| times(row, scale)))
                    }
                    (Some(weight), Some(row)) => c.fmul(weight[i], c.splat(row)),
                    (Some(weight), None) => weight[i],
                    (None, row) => c.splat(row.unwrap_or_else(|| c.number(1.0))),
                }
            };
            s.results(s.zero(), 0).into_iter().enumerate().map(part).collect::<Vec<_>>()
        };
        let lanes = c.lanes();
        let all: Vec<Vector<'c>> = (0..s.side()).flat_map(of_panel).collect();
        c.set_lanes(lanes);
        c.join(&all)
    }

    /// Sums at the end, as f32.
    pub(super) fn finished(&self, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        let (c, m, Shape { quantised, .. }) = (self.contraction.matrix.c, &self.contraction.matrix, self.shape);
        if quantised.is_none_or(|quantised| quantised.has_groups) {
            return sums;
        }
        let lanes = c.lanes();
        let one = |sums: Vector<'c>| {
            let floats = m.as_floats(sums);
            c.set_lanes(floats.get_type().get_size() as usize);
            if m.unit() == 1.0 { floats } else { c.fmul(floats, c.lit(m.unit())) }
        };
        let all = sums.into_iter().map(one).collect();
        c.set_lanes(lanes);
        all
    }

    /// Sums before the first stretch.
    pub(super) fn zeros(&self, scaling: Option<&Scaling<'_, 'c>>) -> Sums<'c> {
        let (c, s) = (self.contraction.matrix.c, &self.accumulator);
        let zero = s.zero();
        let all = match scaling {
            Some(Scaling::Groups { .. }) => c.cx.f32_type().vec_type(zero.get_type().get_size()).const_zero(),
            Some(Scaling::Blocks(_)) | None => zero,
        };
        let count = self.shape.panels / s.side() * self.blocks();
        Sums { all: vec![all; count], group: vec![], held: self.next_scales(scaling, (self.first, 0), None) }
    }

    /// Loads the scales of the next stretch, if they are loaded with it: a group is then no longer
    /// than a stretch. The scales of the previous stretch are held.
    pub(super) fn next_scales(
        &self,
        scaling: Option<&Scaling<'_, 'c>>,
        (stretch, half): (Int<'c>, usize),
        held: Option<&StretchScales<'c>>,
    ) -> Option<StretchScales<'c>> {
        let from = scaling.filter(|from| matches!(from, Scaling::Blocks(_)) || self.shape.in_group() == 1)?;
        Some(self.load_scales(from, stretch, held.filter(|_| half % 2 == 1)))
    }
}
