//! Which experts a token chooses: one wave looks at its logits, as many in each lane.
use atomc_ir::{Best, Diagnostic, Graph, Op, Router, Score, Value};
use inkwell::values::FloatValue;
use inkwell::{FloatPredicate, IntPredicate};

use crate::argmax::larger;
use crate::code::{Any, Int, Vector};
use crate::held::Held;
use crate::math;
use crate::row::{At, Col, Rows, Team, Threads, unsupported};
use crate::simt::launch::Kernel;
use crate::simt::machine::Gpu;

/// Most experts of a token: a row of as many weights is one vector of a wave's lanes.
const MOST: usize = 32;

pub fn is_route(graph: &Graph, v: Value) -> bool {
    matches!(graph.op(v.node), Op::Route { .. } | Op::RouteGiven { .. })
}

/// One of a lane's experts.
#[derive(Clone, Copy)]
struct Expert<'c> {
    number: Int<'c>,
    score: FloatValue<'c>,
    /// The number that it is chosen by: minus infinity if it cannot be chosen.
    choice: FloatValue<'c>,
}

/// Stores a router's result for a row of logits, in a work-group of one wave.
pub fn store<'a, 'c>(kernel: &Kernel<'a, 'c>, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let Op::Route { by, held } = *rows.graph.op(v.node) else { unreachable!("a router was asked for") };
    check(by)?;
    let lanes = c.lanes();
    c.set_lanes(1);
    let router = Wave { c, by, held, team: c.lanes_team(c.lane_index(), c.simt.wave) };
    let mut experts = router.experts(rows, v, row)?;
    router.close_groups(&mut experts, rows.shape(rows.graph.operands(v.node)[0])?.shape.last().unwrap_or(0));
    let chosen = router.choose(&mut experts);
    let mut weights = router.weights(chosen.iter().map(|&(_, score)| score).collect());
    let mut numbers: Vec<Int<'c>> = chosen.iter().map(|&(number, _)| number).collect();
    if let Some(held) = Held::of(rows, v)? {
        for (number, weight) in numbers.iter_mut().zip(&mut weights) {
            let (own, is_held) = held.own(c, *number);
            *number = own;
            *weight = c.pick(is_held, *weight, c.number(0.0)).into_float_value();
        }
    }
    for (out, operand) in kernel.outputs.iter().filter(|(out, _)| out.node == v.node) {
        let lane = c.lane_index();
        let first = if out.out == 0 { row * operand.stride } else { row * by.k };
        let place = c.at(operand.ptr, (first + lane) * 4);
        let of_lane = |values: Vec<Any<'c>>, none: Any<'c>| {
            let value = |other, (i, &v): (usize, &Any<'c>)| c.pick(c.equal(lane, i), v, other);
            values.iter().enumerate().fold(none, value)
        };
        if out.out == 0 {
            let value = of_lane(weights.iter().map(|&w| w.into()).collect(), c.number(0.0).into());
            c.when(c.less(lane, rows.padded(operand)), || c.store(place, value, 4));
        } else {
            let value = of_lane(numbers.iter().map(|number| number.v.into()).collect(), c.int(0).v.into());
            c.when(c.less(lane, by.k), || c.store(place, value, 4));
        }
    }
    c.set_lanes(lanes);
    Ok(())
}

/// Checks that a wave has a lane for each choice.
fn check(by: Router) -> Result<(), Diagnostic> {
    let message = || unsupported(format!("a router that chooses more than {MOST} experts"));
    if by.k <= MOST { Ok(()) } else { Err(message()) }
}

/// Stores which experts a row has that are given, and how much each counts: a lane has one of them.
pub fn store_given<'c>(kernel: &Kernel<'_, 'c>, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let Op::RouteGiven { by } = *rows.graph.op(v.node) else { unreachable!("experts were given") };
    check(by)?;
    let lanes = c.lanes();
    c.set_lanes(1);
    let (operands, lane) = (rows.graph.operands(v.node), c.lane_index());
    operands.iter().try_for_each(|&operand| rows.prepare(operand, row, None))?;
    let is_there = c.less(lane, by.k);
    let number = |operand: Value, col: Int<'c>| {
        let made = rows.eval(operand, At { row, head: None, col: Col::Var(col) })?;
        Ok::<_, Diagnostic>(c.lane(made, 0).into_float_value())
    };
    let named = number(operands[1], c.smaller(lane, by.k - 1))?;
    let expert = c.float(named).whole(c.cx.i32_type());
    let logit =
        number(operands[0], c.as_int(c.b.build_int_s_extend_or_bit_cast(expert.v, c.index, "").expect("a number")))?;
    let score = match by.score {
        Score::RootSoftplus => c.lane(math::root_softplus(c, c.splat(logit)), 0),
        other => return Err(unsupported(format!("given experts with the score {}", other.name()))),
    };
    let score = c.pick(is_there, score, c.number(0.0)).into_float_value();
    let sum = c.team_sum(score, c.lanes_team(lane, c.simt.wave));
    let sum = by.added().map_or(sum, |added| (c.float(sum) + c.number(added)).v);
    let share = if by.renormalise { c.lane(c.fdiv(c.splat(score), c.splat(sum)), 0).into_float_value() } else { score };
    let weight = (c.float(share) * c.number(by.scale)).v;
    for (out, operand) in kernel.outputs.iter().filter(|(out, _)| out.node == v.node) {
        if out.out == 0 {
            let place = c.at(operand.ptr, (row * operand.stride + lane) * 4);
            c.when(c.less(lane, rows.padded(operand)), || c.store(place, weight, 4));
        } else {
            c.when(is_there, || c.store(c.at(operand.ptr, (row * by.k + lane) * 4), expert, 4));
        }
    }
    c.set_lanes(lanes);
    Ok(())
}

/// The wave that works on a row. Vectors have one element.
struct Wave<'a, 'c> {
    c: &'a Gpu<'c>,
    by: Router,
    held: Option<usize>,
    team: Team<'a, 'c>,
}

impl<'a, 'c> Wave<'a, 'c> {
    /// The lane's experts with their scores.
    fn experts(&self, rows: &Rows<'a, 'c>, v: Value, row: Int<'c>) -> Result<Vec<Expert<'c>>, Diagnostic> {
        let (c, wave) = (self.c, self.c.simt.wave);
        let operands = rows.graph.operands(v.node);
        let count = rows.shape(operands[0])?.shape.last().unwrap_or(0);
        rows.set_team(self.team);
        rows.prepare(operands[0], row, None)?;
        let numbers: Vec<Int<'c>> = (0..count.div_ceil(wave)).map(|i| c.lane_index() + i * wave).collect();
        let least = c.number(f64::NEG_INFINITY);
        let known = |number: Int<'c>, v: FloatValue<'c>| c.pick(c.less(number, count), v, least).into_float_value();
        let column = |number: Int<'c>| Col::Var(c.smaller(number, count - 1));
        let scalar = |v: Vector<'c>| c.lane(v, 0).into_float_value();
        let mut logits = Vec::with_capacity(numbers.len());
        for &number in &numbers {
            let at = At { row, head: None, col: column(number) };
            logits.push(known(number, scalar(rows.eval(operands[0], at)?)));
        }
        let (bias, _) = Router::behind_logits(&operands[1..], self.held);
        let by_logits = self.by.by_logits(bias.is_some()).then(|| logits.clone());
        let scores = match self.by.score {
            Score::Chosen => logits,
            Score::RootSoftplus => logits.into_iter().map(|l| scalar(math::root_softplus(c, c.splat(l)))).collect(),
            Score::Sigmoid => logits.into_iter().map(|l| self.logistic(l)).collect(),
            Score::Softmax => {
                let top = c.team_top(logits.iter().copied().reduce(|a, b| self.more(a, b)).unwrap_or(least), self.team);
                let parts = numbers.iter().zip(logits).map(|(&number, l)| {
                    let inside = c.less(number, count);
                    let part = self.below(c.pick(inside, l, top).into_float_value(), top);
                    c.pick(inside, part, c.number(0.0)).into_float_value()
                });
                self.shares(parts.collect(), |own| c.team_sum(own, self.team))
            }
        };
        let mut experts = Vec::with_capacity(numbers.len());
        for (i, (&number, score)) in numbers.iter().zip(scores).enumerate() {
            let mut choice = by_logits.as_ref().map_or(score, |logits| logits[i]);
            if let Some(bias) = bias {
                let at = At { row: c.int(0), head: None, col: column(number) };
                choice = self.add(choice, scalar(rows.eval(bias, at)?));
            }
            experts.push(Expert { number, score, choice: known(number, choice) });
        }
        rows.forget();
        Ok(experts)
    }

    /// Leaves the experts of those groups alone that are best.
    fn close_groups(&self, experts: &mut [Expert<'c>], count: usize) {
        let (c, Router { groups, kept, best, .. }) = (self.c, self.by);
        if groups == 1 {
            return;
        }
        let (each, least) = (count / groups, c.number(f64::NEG_INFINITY));
        let mut goods: Vec<(FloatValue<'c>, Int<'c>)> = Vec::with_capacity(groups);
        for group in 0..groups {
            let inside = |e: &Expert<'c>| c.less(group * each, e.number + 1) & c.less(e.number, (group + 1) * each);
            let own = |e: &Expert<'c>| Expert { choice: c.pick(inside(e), e.choice, least).into_float_value(), ..*e };
            let mut own: Vec<Expert<'c>> = experts.iter().map(own).collect();
            let times = if best == Best::Max { 1 } else { 2.min(each) };
            let sum = (0..times).map(|_| self.take_best(&mut own).1.choice).reduce(|a, b| self.add(a, b));
            goods.push((sum.unwrap_or(least), c.int(group)));
        }
        // All lanes know all groups.
        let mut open = vec![c.less(1, 0); groups];
        for _ in 0..kept {
            let (_, group) = goods.iter().copied().reduce(|a, b| larger(c, a, b)).expect("a group");
            for (i, (good, _)) in goods.iter_mut().enumerate() {
                let is = c.equal(group, i);
                open[i] = open[i] | is;
                *good = c.pick(is, least, *good).into_float_value();
            }
        }
        for expert in experts {
            let is_open = |i: usize| open[i] & c.equal(expert.number / each, i);
            let is_open = (1..groups).fold(is_open(0), |any, i| any | is_open(i));
            expert.choice = c.pick(is_open, expert.choice, least).into_float_value();
        }
    }

    /// The experts that are chosen, with their scores, the same in all lanes.
    fn choose(&self, experts: &mut [Expert<'c>]) -> Vec<(Int<'c>, FloatValue<'c>)> {
        let one = |_| {
            let (number, best) = self.take_best(experts);
            (number, best.score)
        };
        (0..self.by.k).map(one).collect()
    }

    /// The best of all lanes' experts, which cannot be chosen any more.
    fn take_best(&self, experts: &mut [Expert<'c>]) -> (Int<'c>, Expert<'c>) {
        let c = self.c;
        let own = experts.iter().copied().reduce(|a, b| self.better(a, b)).expect("an expert in each lane");
        let distances = std::iter::successors(Some(1), |d| Some(d * 2)).take_while(|&d| d < c.simt.wave);
        let best = distances.fold(own, |own, distance| {
            let (word, float) = (c.cx.i32_type(), c.cx.f32_type());
            let both = |v: FloatValue<'c>| {
                let (a, b) = c.pair(c.as_int(c.bitcast(v, word)), distance, c.simt.wave);
                [a, b].map(|v| c.bitcast(v, float).into_float_value())
            };
            let (numbers, scores, choices) =
                (c.pair(own.number, distance, c.simt.wave), both(own.score), both(own.choice));
            let a = Expert { number: numbers.0, score: scores[0], choice: choices[0] };
            self.better(a, Expert { number: numbers.1, score: scores[1], choice: choices[1] })
        });
        let least = c.number(f64::NEG_INFINITY);
        for expert in experts {
            let is = c.compare(IntPredicate::EQ, expert.number, best.number);
            expert.choice = c.pick(is, least, expert.choice).into_float_value();
        }
        (best.number, best)
    }

    /// The better one of two experts; of equals the first one.
    fn better(&self, a: Expert<'c>, b: Expert<'c>) -> Expert<'c> {
        let c = self.c;
        let compare = |how| c.as_int(c.b.build_float_compare(how, b.choice, a.choice, "").expect("floats"));
        let earlier = compare(FloatPredicate::OEQ) & c.less(b.number, a.number);
        let takes_b = compare(FloatPredicate::OGT) | earlier;
        let pick = |b: FloatValue<'c>, a: FloatValue<'c>| c.pick(takes_b, b, a).into_float_value();
        Expert {
            number: c.pick_int(takes_b, b.number, a.number),
            score: pick(b.score, a.score),
            choice: pick(b.choice, a.choice),
        }
    }

    /// How much each of the chosen experts counts.
    fn weights(&self, mut scores: Vec<FloatValue<'c>>) -> Vec<FloatValue<'c>> {
        let (c, Router { score, renormalise, scale, .. }) = (self.c, self.by);
        if score == Score::Chosen {
            // The largest score is the first.
            let top = scores[0];
            scores = self.shares(scores.into_iter().map(|s| self.below(s, top)).collect(), |own| own);
        }
        if renormalise {
            let sum = scores.iter().copied().reduce(|a, b| self.add(a, b)).expect("an expert");
            let sum = self.by.added().map_or(sum, |added| self.add(sum, c.number(added)));
            scores = scores.into_iter().map(|s| self.divide(s, sum)).collect();
        }
        let scaled = |s| c.b.build_float_mul(s, c.number(scale), "").expect("floats");
        if scale == 1.0 { scores } else { scores.into_iter().map(scaled).collect() }
    }

    /// The exponential of a number less another.
    fn below(&self, v: FloatValue<'c>, top: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.c;
        let less = c.b.build_float_sub(v, top, "").expect("floats");
        c.lane(math::exp(c, c.splat(less)), 0).into_float_value()
    }

    /// Parts by the sum of all; `whole` makes it of the lane's.
    fn shares(
        &self,
        parts: Vec<FloatValue<'c>>,
        whole: impl FnOnce(FloatValue<'c>) -> FloatValue<'c>,
    ) -> Vec<FloatValue<'c>> {
        let sum = whole(parts.iter().copied().reduce(|a, b| self.add(a, b)).expect("a number"));
        parts.into_iter().map(|v| self.divide(v, sum)).collect()
    }

    fn logistic(&self, v: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.c;
        let less = math::exp(c, c.fsub(c.zero(), c.splat(v)));
        c.lane(c.fdiv(c.lit(1.0), c.fadd(c.lit(1.0), less)), 0).into_float_value()
    }

    fn add(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        self.c.b.build_float_add(a, b, "").expect("floats")
    }

    fn more(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.c;
        let more = c.as_int(c.b.build_float_compare(FloatPredicate::OGT, b, a, "").expect("floats"));
        c.pick(more, b, a).into_float_value()
    }

    fn divide(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.c;
        c.lane(c.fdiv(c.splat(a), c.splat(b)), 0).into_float_value()
    }
}
