//! Values that lanes of a wave, or threads of a work-group, combine.
use atomc_ir::arch::Isa;
use inkwell::values::FloatValue;
use inkwell::{FloatPredicate, IntPredicate};

use super::Gpu;
use crate::code::{BUILT, Int, Ptr};
use crate::row::{Team, Threads};

impl<'c> Gpu<'c> {
    /// The threads of a work-group as a team, with local memory that has a float for each wave.
    pub fn group_team(&self, size: usize, exchange: Ptr<'c>) -> Team<'_, 'c> {
        Team { index: self.thread(), size, exchange: Some(exchange), threads: self }
    }

    /// Neighbouring lanes of a wave as a team, a power of two of them, of which this one is the
    /// `index`th.
    pub fn lanes_team(&self, index: Int<'c>, size: usize) -> Team<'_, 'c> {
        Team { index, size, exchange: None, threads: self }
    }

    /// Whether a condition holds in some lane, the same for all lanes.
    pub fn any_lane(&self, condition: Int<'c>) -> Int<'c> {
        match self.isa() {
            Isa::Amdgcn => {
                let lanes = self.ballot(condition);
                self.compare(IntPredicate::NE, lanes, lanes.constant(0))
            }
            Isa::Ptx => self.any_vote(condition),
        }
    }

    /// The number of the wave's first `lanes` lanes in which a condition holds. All lanes take
    /// part.
    pub fn count_lanes(&self, condition: Int<'c>, lanes: Int<'c>) -> Int<'c> {
        let all = match self.isa() {
            Isa::Amdgcn => self.ballot(condition),
            Isa::Ptx => self.ballot_vote(condition),
        };
        let places = self.as_int(self.b.build_int_z_extend_or_bit_cast(lanes.v, all.get_type(), "").expect(BUILT));
        let first = self.as_int(self.b.build_left_shift(all.constant(1).v, places.v, "").expect(BUILT)) - 1;
        let asked = self.pick_int(self.less(lanes, self.wave_size()), all & first, all);
        let count = self.as_int(self.call("llvm.ctpop", &[all.get_type().into()], &[asked.into()]));
        self.as_int(self.b.build_int_truncate_or_bit_cast(count.v, self.index, "").expect(BUILT))
    }

    /// The 32-bit values of this lane and of the one `distance` lanes away, in any order, in teams
    /// of `team` lanes that all call this. Where the distance is 4 or 8, the lanes of each group of
    /// `distance` must already agree.
    pub fn pair(&self, v: Int<'c>, distance: usize, team: usize) -> (Int<'c>, Int<'c>) {
        match self.isa() {
            Isa::Amdgcn => self.pair_in_rows(v, distance),
            Isa::Ptx => (v, self.shuffle_by(v, distance, team)),
        }
    }

    /// Combines a value over the lanes that have numbers differing in the bits of `distances`,
    /// smallest first. All of them get the result. All lanes of the wave take part.
    pub fn across(
        &self,
        v: FloatValue<'c>,
        distances: &[usize],
        f: impl Fn(FloatValue<'c>, FloatValue<'c>) -> FloatValue<'c>,
    ) -> FloatValue<'c> {
        self.in_teams(self.wave_size(), v, distances, f)
    }

    fn in_teams(
        &self,
        team: usize,
        v: FloatValue<'c>,
        distances: &[usize],
        f: impl Fn(FloatValue<'c>, FloatValue<'c>) -> FloatValue<'c>,
    ) -> FloatValue<'c> {
        let i32 = self.cx.i32_type();
        distances.iter().fold(v, |v, &distance| {
            let (a, b) = self.pair(self.as_int(self.bitcast(v, i32)), distance, team);
            let float = |v: Int<'c>| self.bitcast(v, self.cx.f32_type()).into_float_value();
            f(float(a), float(b))
        })
    }

    /// The largest number of `size` neighbouring lanes, a power of two; NaN if one of them is NaN.
    pub fn largest_of(&self, v: FloatValue<'c>, size: usize) -> FloatValue<'c> {
        self.over_lanes(v, size, &|a, b| {
            self.call("llvm.maximum", &[self.cx.f32_type().into()], &[a.into(), b.into()]).into_float_value()
        })
    }

    /// Combines a value over groups of `size` neighbouring lanes, a power of two.
    pub fn over_lanes(&self, v: FloatValue<'c>, size: usize, f: Combine<'_, 'c>) -> FloatValue<'c> {
        let distances: Vec<usize> = std::iter::successors(Some(1), |d| Some(d * 2)).take_while(|&d| d < size).collect();
        self.in_teams(size, v, &distances, f)
    }

    /// Combines a value over the `size` threads of the work-group, by way of local memory with a
    /// float for each wave. The memory may be used again after the next barrier.
    fn over_group(&self, v: FloatValue<'c>, size: usize, exchange: Ptr<'c>, f: Combine<'_, 'c>) -> FloatValue<'c> {
        let waves = size / self.wave_size();
        let sum = self.over_lanes(v, self.wave_size(), f);
        if waves == 1 {
            return sum;
        }
        let mine = self.at(exchange, self.wave_index() * 4);
        self.barrier();
        self.when(self.equal(self.lane_index(), 0), || self.store(mine, sum, 4));
        self.barrier();
        let part = |i: usize| self.load(self.cx.f32_type(), self.at(exchange, 4 * i), 4).into_float_value();
        (1..waves).fold(part(0), |sum, i| f(sum, part(i)))
    }

    fn over_team(&self, v: FloatValue<'c>, team: Team<'_, 'c>, f: Combine<'_, 'c>) -> FloatValue<'c> {
        match team.exchange {
            Some(exchange) => self.over_group(v, team.size, exchange, f),
            None => self.over_lanes(v, team.size, f),
        }
    }
}

/// A function that combines two numbers.
pub type Combine<'f, 'c> = &'f dyn Fn(FloatValue<'c>, FloatValue<'c>) -> FloatValue<'c>;

impl<'c> Threads<'c> for Gpu<'c> {
    fn team_sum(&self, v: FloatValue<'c>, team: Team<'_, 'c>) -> FloatValue<'c> {
        self.over_team(v, team, &|a, b| self.b.build_float_add(a, b, "").expect("floats"))
    }

    fn team_top(&self, v: FloatValue<'c>, team: Team<'_, 'c>) -> FloatValue<'c> {
        self.over_team(v, team, &|a, b| {
            let more = self.b.build_float_compare(FloatPredicate::OGT, b, a, "").expect("floats");
            self.pick(self.as_int(more), b, a).into_float_value()
        })
    }

    fn keep_order(&self) {
        Gpu::keep_order(self);
    }
}
