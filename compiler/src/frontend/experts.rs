//! The graph of a layer's experts, and how ranks share them out. Each rank makes a part of a sum: a
//! part of the width of each expert, or else some of the experts.
use atomc_config::{Apart, Correction, Experts, Gate, Gated, Score, ShortRow, StoredExperts};
use atomc_ir::{Best, Builder, DType, Diagnostic, Elementwise, Fact, Op, Value, Whole};

use super::layer::{Given, Kind, LayerBuilder, Left, Made, Rows, shard};
use super::product::{Factor, Stack, expected};

impl Kind for Experts {
    /// What is not a multiple is padded.
    fn share(&self, ranks: usize) -> Result<Experts, String> {
        let shared = self.shared.as_ref().map(|shared| shared.share(ranks)).transpose()?;
        Ok(Experts { shared, ..self.clone() })
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, given: Given) -> Left {
        let ids = given.tokens.ids;
        let made = match (&self.apart, &self.shared) {
            (Some(apart), Some(shared)) => builder.experts_apart((self, apart, shared), x, ids)?,
            _ => builder.experts(self, x, [x, ids])?,
        };
        Ok((made, vec![]))
    }
}

/// How experts are shared out among ranks, each rank with a run of them. If their number is no
/// multiple of the ranks, the first ranks have one expert more. The other ranks have weights of
/// equal size, and their last expert is zeros.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    count: usize,
    ranks: usize,
}

impl Held {
    fn new(count: usize, ranks: usize) -> Option<Held> {
        (ranks > 1).then_some(Held { count, ranks })
    }

    /// Experts in the weights of a rank.
    fn most(self) -> usize {
        self.count.div_ceil(self.ranks)
    }

    /// The first expert of a rank.
    fn first(self, rank: usize) -> usize {
        rank * (self.count / self.ranks) + rank.min(self.count % self.ranks)
    }

    /// The rank's part of something with a place for each expert along its first axis.
    pub fn take(self, b: &mut Builder, all: Value) -> Made {
        let Held { count, ranks } = self;
        let mut all = all;
        if !count.is_multiple_of(ranks) {
            let mut part = |rank| {
                let (start, end) = (self.first(rank), self.first(rank + 1));
                let own = b.push(Op::Slice { axis: 0, start, len: end - start }, &[all])?;
                let pad = Op::Pad { axis: 0, len: self.most() };
                if end - start < self.most() { b.push(pad, &[own]) } else { Ok(own) }
            };
            let parts: Vec<Value> = (0..ranks).map(&mut part).collect::<Result<_, _>>()?;
            all = b.push(Op::Concat { axis: 0 }, &parts)?;
        }
        shard(b, all, 0, ranks)
    }

    /// The number of the rank's first expert.
    fn first_of_rank(self, b: &mut Builder) -> Made {
        let firsts = b.push(Op::Numbers { values: (0..self.ranks).map(|rank| self.first(rank)).collect() }, &[])?;
        shard(b, firsts, 0, self.ranks)
    }
}

/// The two inner projections and the outer one, for a rank.
struct Projections<'a> {
    gate: Factor<'a>,
    up: Factor<'a>,
    down: Factor<'a>,
    /// The biases of gate, up and down.
    biases: Option<[Value; 3]>,
}

impl<'a> LayerBuilder<'a> {
    /// The sum of what the experts of each token and the one that all tokens have make of `x`, each
    /// through norms of its own.
    fn experts_apart(&mut self, (all, apart, shared): (&Experts, &Apart, &Gated), x: Value, ids: Value) -> Made {
        let [before, after] = apart.shared;
        let seen = self.normed(x, Some(before))?;
        let made = self.mlp(shared, seen)?;
        let of_shared = self.normed(made, Some(after))?;
        let path = format!("{}.{}", self.path, apart.scale);
        self.b.at(&path);
        let hidden = self.config.hidden;
        let scale = self.b.weight(path, self.config.dtype, &[hidden]);
        let routed = self.unweighted(x, hidden)?;
        let routed = self.b.map(Elementwise::Mul, &[routed, scale])?;
        let routed = self.b.scale(routed, (hidden as f64).powf(-0.5))?;
        let [before, after] = apart.others;
        let seen = self.normed(x, Some(before))?;
        let made = self.experts(all, seen, [routed, ids])?;
        let of_others = self.normed(made, Some(after))?;
        self.b.at(self.path.clone());
        self.b.add(of_shared, of_others)
    }

    /// What experts made, times the factor of each.
    fn by_factors(&mut self, all: &Experts, apart: &Apart, made: Value, experts: Value) -> Made {
        let path = format!("{}.{}", self.path, apart.factors);
        self.b.at(&path);
        let factors = self.b.weight(path, DType::F32, &[all.count]);
        let rows = self.b.push(Op::View { shape: vec![all.count, 1] }, &[factors])?;
        let mut rows = self.b.push(Op::Repeat { axis: 1, times: self.config.hidden }, &[rows])?;
        if let Some(held) = Held::new(all.count, self.part.expert_ranks) {
            rows = held.take(self.b, rows)?;
        }
        let rows = self.b.gather(rows, experts)?;
        self.b.map(Elementwise::Mul, &[made, rows])
    }

    /// What the experts of each token make of `x`, chosen by other rows or by ids, and the one that
    /// all tokens have, if it has no norms of its own.
    fn experts(&mut self, all: &Experts, x: Value, [routed, ids]: [Value; 2]) -> Made {
        let dtype = self.config.dtype;
        let held = Held::new(all.count, self.part.expert_ranks);
        let (mut weights, experts, ones) = self.route(all, held, [routed, ids])?;
        let mut entering = match all.short {
            Some(ShortRow { width, before, .. }) => self.rows(x, Rows::all(before, width), 1, false)?,
            None => x,
        };
        if let Some(ones) = ones {
            entering = self.b.push(Op::Combine {}, &[entering, weights])?;
            weights = ones;
        }
        let Projections { gate, up, down, biases } = self.projections_of(all)?;
        let mut inner = match all.gate {
            Gate::Alone(_) => [up.multiply_grouped(self.b, entering, experts, dtype)?; 2],
            _ => {
                let gate = gate.multiply_grouped(self.b, entering, experts, dtype)?;
                [gate, up.multiply_grouped(self.b, entering, experts, dtype)?]
            }
        };
        if let Some([gate, up, _]) = biases {
            for (v, bias) in inner.iter_mut().zip([gate, up]) {
                *v = self.biased(*v, bias, experts)?;
            }
        }
        self.b.at(format!("{}.mlp", self.path));
        let inner = self.through(all.gate, inner)?;
        let mut made = down.multiply_grouped(self.b, inner, experts, dtype)?;
        if let Some(apart) = &all.apart {
            made = self.by_factors(all, apart, made, experts)?;
        }
        // Every rank that has a part of each expert has its whole outer bias, which counts once.
        let is_cut = self.part.ranks > 1 && held.is_none();
        let bias = biases.map(|[_, _, down]| down);
        if let Some(bias) = bias.filter(|_| !is_cut) {
            made = self.biased(made, bias, experts)?;
        }
        let mut out = self.b.push(Op::Combine {}, &[made, weights])?;
        if let Some(row) = all.short {
            return self.behind_short(all, row, (out, x));
        }
        // A rank has all of it, or a part.
        let shared = all.shared.as_ref().filter(|_| all.apart.is_none());
        let shared = shared.map(|shared| self.shared(all, shared, x)).transpose()?;
        let (before, behind) = if self.part.ranks > 1 { (shared, None) } else { (None, shared) };
        if let Some(shared) = before {
            out = self.b.add(out, shared)?;
        }
        if self.part.all() > 1 {
            out = self.b.push(Op::AllReduce {}, &[out])?;
        }
        if let Some(shared) = behind {
            out = self.b.add(out, shared)?;
        }
        if let Some(bias) = bias.filter(|_| is_cut) {
            let rows = self.b.gather(bias, experts)?;
            let rows = self.b.push(Op::Combine {}, &[rows, weights])?;
            out = self.b.add(out, rows)?;
        }
        Ok(out)
    }

    /// The hidden row of a short one that experts made, of which a rank has a part of a sum; and
    /// what the expert that all tokens have makes of `x`. Ranks add both up apart, as a norm may
    /// lie between.
    fn behind_short(&mut self, all: &Experts, row: ShortRow, (made, x): (Value, Value)) -> Made {
        let mut made = if self.part.all() > 1 { self.b.push(Op::AllReduce {}, &[made])? } else { made };
        if let Some(norm) = row.norm {
            made = self.norm(made, norm, row.width)?;
        }
        let made = self.rows(made, Rows::all(row.after, self.config.hidden), 1, false)?;
        let Some(shared) = &all.shared else { return Ok(made) };
        let mut shared = self.shared(all, shared, x)?;
        if self.part.ranks > 1 {
            shared = self.b.push(Op::AllReduce {}, &[shared])?;
        }
        self.b.add(made, shared)
    }

    /// What the expert that all tokens have makes of `x`.
    fn shared(&mut self, all: &Experts, shared: &Gated, x: Value) -> Made {
        if !all.shared_gate {
            return self.part_of_mlp(shared, x);
        }
        let made = self.part_of_mlp(shared, x)?;
        let path = format!("{}.{}_gate", self.path, shared.modules.path);
        self.b.at(&path);
        let weight = self.b.weight(format!("{path}.weight"), self.config.dtype, &[1, self.config.hidden]);
        let score = self.b.linear(x, weight, DType::F32)?;
        let score = self.b.map(Elementwise::Sigmoid, &[score])?;
        self.b.push(Op::Combine {}, &[made, score])
    }

    /// Rows and the biases of their experts.
    fn biased(&mut self, rows: Value, bias: Value, experts: Value) -> Made {
        let bias = self.b.gather(bias, experts)?;
        self.b.add(rows, bias)
    }

    /// The weights of each token's experts, and which these are. Where the weight of the only
    /// expert multiplies its input, also what multiplies its result: one, or zero if another rank
    /// has it.
    fn route(
        &mut self,
        all: &Experts,
        held: Option<Held>,
        [x, ids]: [Value; 2],
    ) -> Result<(Value, Value, Option<Value>), Diagnostic> {
        let (router, count) = (&all.router, all.count);
        let path = format!("{}.{}", self.path, router.module);
        self.b.at(&path);
        let weight = self.b.weight(format!("{path}.weight"), self.config.dtype, &[count, self.config.hidden]);
        let mut logits = self.b.linear(x, weight, DType::F32)?;
        if router.bias {
            let bias = expected(self.b, format!("{path}.bias"), &[count], Fact::Addends)?;
            logits = self.b.add(logits, bias)?;
        }
        let correction = match router.correction {
            Some((tensor, shape)) => {
                let (name, row) = (format!("{}.{tensor}", self.path), [count]);
                Some(match shape {
                    Correction::Row => expected(self.b, name, &row, Fact::Addends)?,
                    Correction::Matrix => {
                        let matrix = self.b.weight(name, DType::F32, &[1, count]);
                        let row = self.b.push(Op::View { shape: row.to_vec() }, &[matrix])?;
                        self.b.push(Op::Expect { is: Fact::Addends }, &[row, row])?
                    }
                })
            }
            None => None,
        };
        let by = atomc_ir::Router {
            k: router.chosen,
            score: match router.score {
                Score::Softmax => atomc_ir::Score::Softmax,
                Score::Sigmoid => atomc_ir::Score::Sigmoid,
                Score::Chosen => atomc_ir::Score::Chosen,
                Score::RootSoftplus => atomc_ir::Score::RootSoftplus,
            },
            groups: router.groups,
            kept: router.kept,
            best: if router.by_two { Best::Sum2 } else { Best::Max },
            renormalise: router.renormalise,
            scale: router.scale,
        };
        if let Some(table) = router.table {
            let (name, shape) = (format!("{}.{table}", self.path), [self.config.vocab, router.chosen]);
            let table = expected(self.b, name, &shape, Fact::Below(count))?;
            let chosen = self.b.gather(table, ids)?;
            let weights = self.b.push(Op::RouteGiven { by }, &[logits, chosen])?;
            return Ok((weights, Value { out: 1, ..weights }, None));
        }
        let first = held.map(|held| held.first_of_rank(self.b)).transpose()?;
        let operands: Vec<Value> = [logits].into_iter().chain(correction).chain(first).collect();
        let held = held.map(Held::most);
        let weights = self.b.push(Op::Route { by, held }, &operands)?;
        let ones = atomc_ir::Router { score: atomc_ir::Score::Chosen, ..by };
        let ones = all.on_input.then(|| self.b.push(Op::Route { by: ones, held }, &operands)).transpose()?;
        Ok((weights, Value { out: 1, ..weights }, ones))
    }

    /// The rank's part of the experts' projections.
    fn projections_of(&mut self, all: &Experts) -> Result<Projections<'a>, Diagnostic> {
        let &Experts { count, width, bias, .. } = all;
        let (ranks, dtype) = (self.part.ranks, self.config.dtype);
        let hidden = all.short.map_or(self.config.hidden, |row| row.width);
        let path = |module: &str| format!("{}.{module}", self.path);
        let b = &mut *self.b;
        let ([gate, up, down], path) = match all.stored {
            StoredExperts::Each { gate, up, down, whole } => {
                let stack = |name: &dyn Fn(&atomc_config::WholeExperts) -> &'static str, start, rows| Stack {
                    count,
                    joined: false,
                    whole: whole.map(|whole| Whole { name: path(name(&whole)), start, rows }),
                };
                let inner = |start| stack(&|whole| whole.gate_up, start, 2 * width);
                let outer = stack(&|whole| whole.down, 0, hidden);
                let gate = Factor::experts(b, self.config, &path(gate), (inner(0), [width, hidden]))?;
                let up = Factor::experts(b, self.config, &path(up), (inner(width), [width, hidden]))?;
                let down = Factor::experts(b, self.config, &path(down), (outer, [hidden, width]))?;
                ([gate, up, down], String::new())
            }
            StoredExperts::Apart { gate, up, down } => {
                let stack = || Stack { count, joined: true, whole: None };
                let gate = Factor::experts(b, self.config, &path(gate), (stack(), [width, hidden]))?;
                let up = Factor::experts(b, self.config, &path(up), (stack(), [width, hidden]))?;
                let down = Factor::experts(b, self.config, &path(down), (stack(), [hidden, width]))?;
                ([gate, up, down], String::new())
            }
            StoredExperts::Together { path: module, alternating } => {
                let path = path(module);
                let inner = |b: &mut Builder, half: usize| {
                    let take = match alternating {
                        true => Op::Every { axis: 1, step: 2, start: half },
                        false => Op::Slice { axis: 1, start: half * width, len: width },
                    };
                    Factor::together(b, self.config, (&path, "gate_up_proj"), (count, [width, hidden], Some(take)))
                };
                let (gate, up) = (inner(b, 0)?, inner(b, 1)?);
                let down = Factor::together(b, self.config, (&path, "down_proj"), (count, [hidden, width], None))?;
                ([gate, up, down], path)
            }
        };
        let biases = if bias { Some(biases(b, dtype, &path, (count, [hidden, width]))?) } else { None };
        if let Some(held) = Held::new(count, self.part.expert_ranks) {
            let [gate, up, down] = [gate.held(b, held)?, up.held(b, held)?, down.held(b, held)?];
            let take = |[gate, up, down]: [Value; 3]| Ok([held.take(b, gate)?, held.take(b, up)?, held.take(b, down)?]);
            return Ok(Projections { gate, up, down, biases: biases.map(take).transpose()? });
        }
        if ranks == 1 {
            return Ok(Projections { gate, up, down, biases });
        }
        // Columns that share a scale stay together, and every rank has as many of them; the last
        // ranks have some that are zero.
        let unit = down.unit();
        let padded = width.div_ceil(unit).next_multiple_of(ranks) * unit;
        let cut = |b: &mut Builder, factor: Factor<'a>, axis| {
            let factor = if padded == width { factor } else { factor.pad(b, axis, padded)? };
            factor.shard(b, axis, ranks)
        };
        let [gate, up, down] = [cut(b, gate, 0)?, cut(b, up, 0)?, cut(b, down, 1)?];
        let biases = match biases {
            Some([gate, up, down]) => {
                let mut cut = |v| {
                    let v = if padded == width { v } else { b.push(Op::Pad { axis: 1, len: padded }, &[v])? };
                    shard(b, v, 1, ranks)
                };
                Some([cut(gate)?, cut(up)?, down])
            }
            None => None,
        };
        Ok(Projections { gate, up, down, biases })
    }
}

/// The biases of gate and up, which take turns, and of the outer projection.
fn biases(
    b: &mut Builder,
    dtype: DType,
    path: &str,
    (count, [hidden, width]): (usize, [usize; 2]),
) -> Result<[Value; 3], Diagnostic> {
    b.at(path);
    let both = b.weight(format!("{path}.gate_up_proj_bias"), dtype, &[count, 2 * width]);
    let gate = b.push(Op::Every { axis: 1, step: 2, start: 0 }, &[both])?;
    let up = b.push(Op::Every { axis: 1, step: 2, start: 1 }, &[both])?;
    Ok([gate, up, b.weight(format!("{path}.down_proj_bias"), dtype, &[count, hidden])])
}
