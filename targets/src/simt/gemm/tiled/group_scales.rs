//! Scales that change along K: a group of columns has sums of its own. They are multiplied by both
//! operands' scales and added to the sums of the groups before.
use inkwell::values::FloatValue;

use super::Group;
use super::block_scales::{BlockScales, StretchScales};
use super::shape::Shape;
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::Panel;
use crate::simt::machine::Gpu;

/// Sums of all columns so far, and of the current group.
pub struct Sums<'c> {
    pub all: Vec<Vector<'c>>,
    pub group: Vec<Vector<'c>>,
    /// The scales of the current stretch, if they were loaded with it.
    pub held: Option<Held<'c>>,
}

/// Scales that are loaded together with their stretch. Loaded after the next stretch, they would
/// have to wait for it.
pub enum Held<'c> {
    Groups(Scales<'c>),
    Blocks(StretchScales<'c>),
}

impl<'c> Held<'c> {
    pub fn carried(&self) -> Vec<Any<'c>> {
        match self {
            Held::Groups(scales) => scales.carried(),
            Held::Blocks(scales) => scales.carried(),
        }
    }

    /// The scales as a loop has carried them.
    pub fn of_carried(&self, c: &Gpu<'c>, carried: &[Any<'c>]) -> Held<'c> {
        match self {
            Held::Groups(scales) => Held::Groups(scales.of_carried(carried)),
            Held::Blocks(scales) => Held::Blocks(scales.of_carried(c, carried)),
        }
    }
}

impl<'c> Sums<'c> {
    /// The scales as a loop carries them.
    pub fn carried(&self) -> Vec<Any<'c>> {
        let held = self.held.iter().flat_map(Held::carried);
        self.all.iter().map(|&v| v.into()).chain(held).collect()
    }

    /// The sums as a loop has carried them.
    pub fn of_carried(&self, c: &Gpu<'c>, carried: &[Any<'c>]) -> Sums<'c> {
        let (all, held) = carried.split_at(self.all.len());
        let all = all.iter().map(|v| v.into_vector_value()).collect();
        Sums { all, group: vec![], held: self.held.as_ref().map(|like| like.of_carried(c, held)) }
    }
}

/// How sums are scaled along K, and the addresses of the scales.
pub enum Scaling<'g, 'c> {
    /// Sums of groups are scaled as they are added up.
    Groups(GroupScales<'g, 'c>),
    /// Instructions scale 32 columns.
    Blocks(BlockScales<'c>),
}

/// The addresses of the scales of a wave's part of the tile, as far as they change along K.
pub struct GroupScales<'g, 'c> {
    rows: Option<RowScales<'c>>,
    weight: Option<WeightScales<'g, 'c>>,
}

/// The scales of rows of x.
struct RowScales<'c> {
    /// The addresses of the scales of each block's row.
    at: Vec<Ptr<'c>>,
    /// Columns that share one.
    group: usize,
}

/// The scales of rows of the weight.
struct WeightScales<'g, 'c> {
    codes: &'g Codes<'c>,
    panels: Vec<Panel<'c>>,
    /// Whether the rows of a panel share one scale.
    is_shared: bool,
}

/// The scales of a group of columns: of each block's column, and of each panel's rows, one for each
/// result of the lane, or one for all.
pub struct Scales<'c> {
    /// Scales of one group, or of two consecutive ones.
    rows: Option<Vec<Vector<'c>>>,
    /// The group that these are for.
    number: usize,
    weight: Option<Vec<Vec<Vector<'c>>>>,
}

impl<'c> Scales<'c> {
    fn carried(&self) -> Vec<Any<'c>> {
        let rows = self.rows.iter().flatten().map(|&v| v.into());
        rows.chain(self.weight.iter().flatten().flatten().map(|&v| v.into())).collect()
    }

    fn of_carried(&self, carried: &[Any<'c>]) -> Scales<'c> {
        let mut next = carried.iter();
        let mut next = || next.next().expect("as many values as it had");
        let rows = self.rows.as_ref().map(|rows| rows.iter().map(|_| next().into_vector_value()).collect());
        let mut of_panel = |panel: &Vec<Vector<'c>>| panel.iter().map(|_| next().into_vector_value()).collect();
        let weight = self.weight.as_ref().map(|weight| weight.iter().map(&mut of_panel).collect());
        Scales { rows, number: self.number, weight }
    }
}

impl<'g, 'c> Group<'g, '_, '_, 'c> {
    /// The addresses of scales, if they change along K.
    pub(super) fn scaling(&self) -> Option<Scaling<'g, 'c>> {
        if let Some(blocks) = self.block_scales() {
            return Some(Scaling::Blocks(blocks));
        }
        self.shape.quantised.filter(|quantised| quantised.has_groups)?;
        Some(Scaling::Groups(GroupScales { rows: self.row_scales(), weight: self.weight_scales() }))
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
    fn in_pairs(&self, rows: &RowScales<'c>) -> bool {
        rows.group == self.shape.stretch && self.shape.count.is_multiple_of(2)
    }

    /// Loads the scales of the group of a stretch, and perhaps those of rows for the next group.
    fn load_scales(&self, from: &GroupScales<'_, 'c>, stretch: Int<'c>) -> Scales<'c> {
        let c = self.contraction.matrix.c;
        let rows = from.rows.as_ref().map(|rows| {
            let (at, count) = (stretch * self.shape.stretch / rows.group * 4, if self.in_pairs(rows) { 2 } else { 1 });
            let ty = c.cx.f32_type().vec_type(count as u32);
            rows.at.iter().map(|&p| c.load(ty, c.at(p, at), 4 * count as u32).into_vector_value()).collect()
        });
        Scales { rows, number: 0, weight: self.load_weight_scales(from, stretch) }
    }

    /// Loads the scales of the next stretch, in the second half.
    fn load_second_scales(&self, from: &GroupScales<'_, 'c>, stretch: Int<'c>, held: &Scales<'c>) -> Scales<'c> {
        match &from.rows {
            Some(rows) if !self.in_pairs(rows) => self.load_scales(from, stretch),
            rows => {
                let number = if rows.is_some() { 1 } else { 0 };
                Scales { rows: held.rows.clone(), number, weight: self.load_weight_scales(from, stretch) }
            }
        }
    }

    fn load_weight_scales(&self, from: &GroupScales<'_, 'c>, stretch: Int<'c>) -> Option<Vec<Vec<Vector<'c>>>> {
        let (c, s) = (self.contraction.matrix.c, &self.accumulator);
        let column = stretch * self.shape.stretch;
        from.weight.as_ref().map(|weight| {
            let group = weight.codes.group(column);
            let of_panel = |&panel: &Panel<'c>| match weight.is_shared {
                true => vec![weight.codes.scales(c, (panel, c.int(0)), 1, group)],
                false => {
                    let results = s.results(s.zero(), 0).into_iter();
                    let count = |sums: Vector<'c>| sums.get_type().get_size() as usize;
                    results.map(|(row, sums)| weight.codes.scales(c, (panel, row), count(sums), group)).collect()
                }
            };
            weight.panels.iter().map(of_panel).collect()
        })
    }

    /// Multiplies a stretch in a half of local memory, and adds its sums: scaled, at the end of a
    /// group.
    pub(super) fn multiply_stretch(
        &self,
        scaling: Option<&Scaling<'_, 'c>>,
        (stretch, half): (Int<'c>, usize),
        sums: &mut Sums<'c>,
    ) {
        let from = match scaling {
            Some(Scaling::Groups(from)) => from,
            Some(Scaling::Blocks(from)) => {
                let Some(Held::Blocks(scales)) = &sums.held else { unreachable!("scales come with each stretch") };
                return self.multiply(half, Some((from, scales)), &mut sums.all);
            }
            None => return self.multiply(half, None, &mut sums.all),
        };
        let in_group = self.shape.in_group();
        if let Some(Held::Groups(scales)) = &sums.held {
            return self.multiply_groups(half, scales, &mut sums.all);
        }
        // Stretches with odd numbers are in the second half.
        if half % in_group == 0 {
            sums.group = vec![self.accumulator.zero(); sums.all.len()];
        }
        let ends = (half + 1).is_multiple_of(in_group);
        let scales = ends.then(|| self.load_scales(from, stretch));
        self.contraction.matrix.c.keep_order();
        self.multiply(half, None, &mut sums.group);
        if let Some(scales) = scales {
            self.add_group(&scales, sums);
        }
    }

    /// Adds the rest of a group that the last stretch has not ended.
    pub(super) fn add_rest(&self, scaling: Option<&Scaling<'_, 'c>>, stretch: Int<'c>, sums: &mut Sums<'c>) {
        let Some(Scaling::Groups(from)) = scaling else { return };
        if !self.shape.count.is_multiple_of(self.shape.in_group()) {
            self.add_group(&self.load_scales(from, stretch), sums);
        }
    }

    fn add_group(&self, scales: &Scales<'c>, sums: &mut Sums<'c>) {
        for (i, (all, &group)) in sums.all.iter_mut().zip(&sums.group).enumerate() {
            self.add_scaled_sums(scales, (i, group), all);
        }
    }

    /// Adds the `i`-th of the sums of a group to that of all columns.
    pub(super) fn add_scaled_sums(&self, scales: &Scales<'c>, (i, group): (usize, Vector<'c>), all: &mut Vector<'c>) {
        let (c, m, blocks) = (self.contraction.matrix.c, &self.contraction.matrix, self.blocks());
        let factors = self.factors(scales, i / blocks, i % blocks);
        *all = c.fma(m.as_floats(group), factors, *all);
    }

    /// The factors of the sums of some panels and a block of columns.
    fn factors(&self, scales: &Scales<'c>, tile: usize, block: usize) -> Vector<'c> {
        let (c, m, s) = (self.contraction.matrix.c, &self.contraction.matrix, &self.accumulator);
        let times = |a: FloatValue<'c>, b| c.b.build_float_mul(a, b, "").expect("floats");
        let unit = (m.unit() != 1.0).then(|| c.number(m.unit()));
        let of_row = scales.rows.as_ref().map(|rows| c.lane(rows[block], scales.number).into_float_value());
        let of_row = of_row.map_or(unit, |row| Some(unit.map_or(row, |unit| times(row, unit))));
        let of_panel = |panel: usize| {
            let weight = scales.weight.as_ref().map(|weight| &weight[tile * s.side() + panel]);
            let part = |(i, (_, sums)): (usize, (Int<'c>, Vector<'c>))| {
                c.set_lanes(sums.get_type().get_size() as usize);
                match (weight, of_row) {
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
            Some(Scaling::Groups(_)) => c.cx.f32_type().vec_type(zero.get_type().get_size()).const_zero(),
            Some(Scaling::Blocks(_)) | None => zero,
        };
        let count = self.shape.panels / s.side() * self.blocks();
        let sums = Sums { all: vec![all; count], group: vec![], held: None };
        let held = self.next_scales(scaling, (self.first, 0), None);
        Sums { held, ..sums }
    }

    /// Loads the scales of the next stretch, if they are loaded with it: a group is then no longer
    /// than a stretch. The scales of the previous stretch are held.
    pub(super) fn next_scales(
        &self,
        scaling: Option<&Scaling<'_, 'c>>,
        (stretch, half): (Int<'c>, usize),
        held: Option<&Held<'c>>,
    ) -> Option<Held<'c>> {
        match (scaling?, held) {
            (Scaling::Blocks(from), Some(Held::Blocks(held))) if half % 2 == 1 => {
                Some(Held::Blocks(self.load_second_blocks(from, stretch, held)))
            }
            (Scaling::Blocks(from), _) => Some(Held::Blocks(self.load_blocks(from, stretch))),
            (Scaling::Groups(from), Some(Held::Groups(held))) if half % 2 == 1 => {
                Some(Held::Groups(self.load_second_scales(from, stretch, held)))
            }
            (Scaling::Groups(from), _) => {
                (self.shape.in_group() == 1).then(|| Held::Groups(self.load_scales(from, stretch)))
            }
        }
    }
}
