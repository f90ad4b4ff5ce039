//! The experts that a token chooses. A row of scores, and of the numbers that experts are chosen
//! by, are in scratch.
use atomc_ir::{Best, DType, Diagnostic, Op, Router, Score, Value};
use inkwell::FloatPredicate;
use inkwell::values::FloatValue;

use super::rows::pad;
use super::{LANES, signature};
use crate::argmax::Argmax;
use crate::code::{Code, Int, Ptr, Vector};
use crate::held::Held;
use crate::kernel::Kernel;
use crate::math;
use crate::row::{At, Col, unsupported};

const BUILT: &str = "floats";

/// The routers of a body, each once.
pub fn routers(kernel: &Kernel) -> Vec<Value> {
    let mut all: Vec<Value> = vec![];
    for (v, _) in &kernel.outputs {
        let is_route = matches!(kernel.rows.graph.op(v.node), Op::Route { .. });
        if is_route && all.iter().all(|other| other.node != v.node) {
            all.push(*v);
        }
    }
    all
}

/// A row of a router.
struct Row<'r, 'a, 'c> {
    c: &'a Code<'c>,
    kernel: &'r Kernel<'a, 'c>,
    by: Router,
    held: Option<usize>,
    experts: usize,
    /// A score for each expert, and the number that it is chosen by. That number is minus infinity
    /// after the last expert, and for an expert that cannot be chosen.
    scores: Ptr<'c>,
    choices: Ptr<'c>,
    /// The rank of each group: minus infinity if it is kept already, infinity if it stays.
    groups: Ptr<'c>,
    weights: Ptr<'c>,
    /// 1 for each choice that the rank holds, and 0 for others.
    owned: Ptr<'c>,
}

/// Bytes of scratch that a router takes.
pub fn scratch(kernel: &Kernel, v: Value) -> usize {
    let lists = |row: &Row| 1 + usize::from(row.held.is_some());
    let numbers = |row: &Row| 2 * row.padded() + row.by.groups + lists(row) * row.by.k.next_multiple_of(LANES);
    Row::new(kernel, v).map_or(0, |row| 4 * numbers(&row))
}

/// Stores a router's result for a row of logits.
pub fn store<'a, 'c>(kernel: &Kernel<'a, 'c>, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
    let router = Row::new(kernel, v)?;
    router.score(v, row)?;
    router.close_groups();
    router.choose(v, row)?;
    router.weigh(v, row);
    Ok(())
}

/// Stores which experts a row has that are given, and how much each counts.
pub fn store_given<'c>(kernel: &Kernel<'_, 'c>, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let Op::RouteGiven { by } = *rows.graph.op(v.node) else { return Err(unsupported("experts of another op")) };
    let operands = rows.graph.operands(v.node);
    operands.iter().try_for_each(|&operand| rows.prepare(operand, row, None))?;
    let (mut scores, mut experts) = (vec![], vec![]);
    for choice in 0..by.k {
        let named = rows.eval(operands[1], At { row, head: None, col: Col::Var(c.int(choice)) })?;
        let named = c.lane(named, 0).into_float_value();
        let expert = c.b.build_float_to_signed_int(named, c.cx.i32_type(), "").expect(BUILT);
        let wide = c.as_int(c.b.build_int_s_extend_or_bit_cast(expert, c.index, "").expect(BUILT));
        let logit = rows.eval(operands[0], At { row, head: None, col: Col::Var(wide) })?;
        let logit = c.splat(c.lane(logit, 0).into_float_value());
        scores.push(match by.score {
            Score::RootSoftplus => math::root_softplus(c, logit),
            other => return Err(unsupported(format!("given experts with the score {}", other.name()))),
        });
        experts.push(expert);
    }
    let sum = scores[1..].iter().fold(scores[0], |sum, &score| c.fadd(sum, score));
    let sum = by.added().map_or(sum, |added| c.fadd(sum, c.lit(added)));
    for (made, out) in kernel.outputs.iter().filter(|(made, _)| made.node == v.node) {
        if made.out == 0 {
            pad(rows, out, row, by.k);
        }
        for (choice, (&score, &expert)) in scores.iter().zip(&experts).enumerate() {
            if made.out == 1 {
                c.store(c.at(out.ptr, (row * by.k + choice) * 4), expert, 4);
                continue;
            }
            let share = if by.renormalise { c.fdiv(score, sum) } else { score };
            let p = rows.address(out, At { row, head: None, col: Col::Const(choice) });
            c.store_some(p, c.fmul(share, c.lit(by.scale)), DType::F32, 1);
        }
    }
    Ok(())
}

impl<'r, 'a, 'c> Row<'r, 'a, 'c> {
    fn new(kernel: &'r Kernel<'a, 'c>, v: Value) -> Result<Row<'r, 'a, 'c>, Diagnostic> {
        let (c, rows) = (kernel.code, &kernel.rows);
        let Op::Route { by, held } = *rows.graph.op(v.node) else { unreachable!("a router was asked for") };
        let experts = rows.shape(rows.graph.operands(v.node)[0])?.shape.last().unwrap_or(0);
        let padded = experts.next_multiple_of(LANES);
        let at = |numbers: usize| c.at(signature::scratch(c), 4 * numbers);
        let weights = 2 * padded + by.groups;
        let owned = weights + by.k.next_multiple_of(LANES);
        let [scores, choices, groups, weights, owned] = [0, padded, 2 * padded, weights, owned].map(at);
        Ok(Row { c, kernel, by, held, experts, scores, choices, groups, weights, owned })
    }

    fn padded(&self) -> usize {
        self.experts.next_multiple_of(LANES)
    }

    /// A number of a list in scratch.
    fn number(&self, list: Ptr<'c>, at: Int<'c>) -> FloatValue<'c> {
        self.c.load(self.c.cx.f32_type(), self.c.at(list, at * 4), 4).into_float_value()
    }

    fn set(&self, list: Ptr<'c>, at: Int<'c>, v: FloatValue<'c>) {
        self.c.store(self.c.at(list, at * 4), v, 4);
    }

    fn vector(&self, list: Ptr<'c>, at: Int<'c>) -> Vector<'c> {
        self.c.load_floats(self.c.at(list, at * 4), DType::F32)
    }

    /// A vector of numbers in which experts that do not exist have the value `other`.
    fn inside(&self, v: Vector<'c>, col: Int<'c>, other: f64) -> Vector<'c> {
        self.c.choose(self.c.lanes_below(self.experts - col), v, self.c.lit(other))
    }

    /// Scores of all experts, and the numbers that they are chosen by.
    fn score(&self, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
        let (c, rows) = (self.c, &self.kernel.rows);
        let operands = rows.graph.operands(v.node);
        rows.prepare(operands[0], row, None)?;
        let (bias, _) = Router::behind_logits(&operands[1..], self.held);
        let by_logits = self.by.by_logits(bias.is_some());
        let top = c.try_carry((0, self.experts, LANES), c.lit(f64::NEG_INFINITY), |col, top| {
            let logits = rows.eval(operands[0], At { row, head: None, col: Col::Var(col) })?;
            let scores = match self.by.score {
                Score::Sigmoid => c.fdiv(c.lit(1.0), c.fadd(c.lit(1.0), math::exp(c, c.fsub(c.zero(), logits)))),
                Score::RootSoftplus => math::root_softplus(c, logits),
                Score::Softmax | Score::Chosen => logits,
            };
            let logits = self.inside(logits, col, f64::NEG_INFINITY);
            c.store(c.at(self.scores, col * 4), scores, 4);
            c.store(c.at(self.choices, col * 4), logits, 4);
            Ok::<_, Diagnostic>(c.fmax(top, logits))
        })?;
        if self.by.score == Score::Softmax {
            let top = c.splat(c.top(top));
            let sum = c.carry((0, self.experts, LANES), c.zero(), |col, sum| {
                let part = math::exp(c, c.fsub(self.vector(self.scores, col), top));
                let part = self.inside(part, col, 0.0);
                c.store(c.at(self.scores, col * 4), part, 4);
                c.fadd(sum, part)
            });
            let sum = c.splat(c.sum(sum));
            c.repeat(0, self.experts, LANES, |col| {
                c.store(c.at(self.scores, col * 4), c.fdiv(self.vector(self.scores, col), sum), 4);
            });
        }
        if by_logits {
            return Ok(());
        }
        c.repeat(0, self.experts, LANES, |col| {
            let mut choice = self.vector(self.scores, col);
            if let Some(bias) = bias {
                let bias = rows.eval(bias, At { row: c.int(0), head: None, col: Col::Var(col) })?;
                choice = c.fadd(choice, bias);
            }
            c.store(c.at(self.choices, col * 4), self.inside(choice, col, f64::NEG_INFINITY), 4);
            Ok(())
        })
    }

    fn greater(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> Int<'c> {
        self.c.float(a).greater(b)
    }

    /// Leaves the experts of those groups alone that are best.
    fn close_groups(&self) {
        let (c, Router { groups, kept, best, .. }) = (self.c, self.by);
        if groups == 1 {
            return;
        }
        let each = self.experts / groups;
        let least = c.number(f64::NEG_INFINITY);
        c.repeat(0, groups, 1, |group| {
            let first = group * each;
            let [one, two] = c.carry((first, first + each, 1), [least; 2], |expert, [one, two]| {
                let v = self.number(self.choices, expert);
                let (is_best, is_second) = (self.greater(v, one), self.greater(v, two));
                let second = c.pick(is_second, v, two).into_float_value();
                [c.pick(is_best, v, one), c.pick(is_best, one, second)].map(|v| v.into_float_value())
            });
            let is_sum = best == Best::Sum2 && each > 1;
            let good = if is_sum { (c.float(one) + two).v } else { one };
            self.set(self.groups, group, good);
        });
        c.repeat(0, kept, 1, |_| {
            let (_, best) = c.carry((0, groups, 1), (least, c.int(0)), |group, (most, best)| {
                let v = self.number(self.groups, group);
                let is_open = self.greater(c.number(f64::INFINITY), v);
                let better = is_open & self.greater(v, most);
                (c.pick(better, v, most).into_float_value(), c.pick_int(better, group, best))
            });
            self.set(self.groups, best, c.number(f64::INFINITY));
        });
        c.repeat(0, groups, 1, |group| {
            let is_closed = self.greater(c.number(f64::INFINITY), self.number(self.groups, group));
            c.when(is_closed, || {
                let first = group * each;
                c.repeat(first, first + each, 1, |expert| self.set(self.choices, expert, least));
            });
        });
    }

    /// Stores the experts that are chosen, and leaves their scores.
    fn choose(&self, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
        let c = self.c;
        let held = Held::of(&self.kernel.rows, v)?;
        c.repeat(0, self.by.k, 1, |choice| {
            let found = c.carry((0, self.experts, LANES), Argmax::none(c, c.int(0)), |col, before| {
                before.or_vector(c, self.vector(self.choices, col), col)
            });
            let (_, expert) = found.of_lanes(c);
            let wide = c.b.build_int_z_extend(expert.v, c.cx.i64_type(), "").expect("an index");
            let at = c.as_int(wide);
            self.set(self.weights, choice, self.number(self.scores, at));
            self.set(self.choices, at, c.number(f64::NEG_INFINITY));
            let expert = held.map_or(expert, |held| {
                let (own, is_held) = held.own(c, expert);
                self.set(self.owned, choice, c.pick(is_held, c.number(1.0), c.number(0.0)).into_float_value());
                own
            });
            for (_, out) in self.kernel.outputs.iter().filter(|(o, _)| o.node == v.node && o.out == 1) {
                c.store(c.at(out.ptr, (row * self.by.k + choice) * 4), expert, 4);
            }
        });
        Ok(())
    }

    /// Stores how much each of them counts.
    fn weigh(&self, v: Value, row: Int<'c>) {
        let (c, Router { k, score, renormalise, scale, .. }) = (self.c, self.by);
        let columns = || (0..k).step_by(LANES);
        let some = |v: Vector<'c>, col: usize| c.choose(c.lanes_below(k - col), v, c.zero());
        let mut weights: Vec<Vector> = columns().map(|col| some(self.vector(self.weights, c.int(col)), col)).collect();
        if score == Score::Chosen {
            // The largest weight is the first.
            let top = c.splat(c.lane(weights[0], 0).into_float_value());
            let below = |(&w, col): (&Vector<'c>, usize)| some(math::exp(c, c.fsub(w, top)), col);
            weights = weights.iter().zip(columns()).map(below).collect();
        }
        if renormalise || score == Score::Chosen {
            let sum = weights[1..].iter().fold(weights[0], |sum, &w| c.fadd(sum, w));
            let sum = c.splat(c.sum(sum));
            let sum = self.by.added().map_or(sum, |added| c.fadd(sum, c.lit(added)));
            weights = weights.iter().zip(columns()).map(|(&w, col)| some(c.fdiv(w, sum), col)).collect();
        }
        if self.held.is_some() {
            // Not a product: weights of experts on other ranks may be NaN.
            let owned = |(&w, col): (&Vector<'c>, usize)| {
                let owned = some(self.vector(self.owned, c.int(col)), col);
                let is_owned = c.b.build_float_compare(FloatPredicate::OGT, owned, c.zero(), "").expect(BUILT);
                c.choose(is_owned, w, c.zero())
            };
            weights = weights.iter().zip(columns()).map(owned).collect();
        }
        for (_, out) in self.kernel.outputs.iter().filter(|(o, _)| o.node == v.node && o.out == 0) {
            for col in (0..self.kernel.rows.padded(out)).step_by(LANES) {
                let lanes = weights.get(col / LANES).map_or(c.zero(), |&w| c.fmul(w, c.lit(scale)));
                c.store_floats(
                    self.kernel.rows.address(out, At { row, head: None, col: Col::Const(col) }),
                    lanes,
                    DType::F32,
                );
            }
        }
    }
}
