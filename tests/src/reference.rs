//! The reference interpreter on the graph of a step, in f64.
use std::collections::{BTreeMap, HashMap};

use atomc_ir::interp::{self, BatchState, CacheState, Cx, SlotState, Tensor, Val};
use atomc_ir::{Graph, Op, Type};

/// A graph and its weights.
#[derive(Clone)]
pub struct Reference {
    pub graph: Graph,
    pub weights: HashMap<String, Tensor<f64>>,
}

/// Consecutive tokens of one sequence.
pub struct Piece<'a> {
    pub sequence: usize,
    pub from: usize,
    pub tokens: &'a [u32],
}

/// What layers keep between steps, by name.
pub type States = BTreeMap<String, Val<f64>>;

impl Reference {
    /// The states of no sequence.
    pub fn fresh(&self) -> States {
        let states = self.graph.inputs().into_iter().filter_map(|v| match (self.graph.op(v.node), self.graph.ty(v)) {
            (Op::Input { name }, Type::Cache(_)) => Some((name.clone(), Val::Cache(CacheState::default()))),
            (Op::Input { name }, Type::Slots(ty)) => Some((name.clone(), Val::Slots(SlotState::new(ty)))),
            _ => None,
        });
        states.collect()
    }

    /// Logits of every token of a step, piece after piece.
    pub fn step(&self, states: &mut States, pieces: &[Piece]) -> Vec<f64> {
        self.results(states, pieces).remove("logits").expect("logits").float().expect("numbers").data.clone()
    }

    /// All results of a step by name, the logits of every token among them.
    pub fn results(&self, states: &mut States, pieces: &[Piece]) -> States {
        self.results_with(states, pieces, States::new())
    }

    /// The results of a graph that has further parameters.
    pub fn results_with(&self, states: &mut States, pieces: &[Piece], mut further: States) -> States {
        let (mut ids, mut lengths, mut batch) = (vec![], vec![], BatchState::default());
        for p in pieces {
            ids.extend(p.tokens.iter().map(|&t| t as i32));
            for i in 0..p.tokens.len() {
                lengths.push((p.from + p.tokens.len()) as i32);
                batch.positions.push((p.from + i) as i32);
                batch.sequences.push(p.sequence as i32);
            }
        }
        let n = ids.len();
        let mut params: States = BTreeMap::from([
            ("ids".into(), Val::Int(ids)),
            ("positions".into(), Val::Int(batch.positions.clone())),
            ("lengths".into(), Val::Int(lengths)),
            ("rows".into(), Val::Int((0..n as i32).collect())),
            ("batch".into(), Val::Batch(batch)),
        ]);
        params.append(&mut states.clone());
        params.append(&mut further);
        let weight = |name: &str| self.weights.get(name).cloned();
        let out = interp::run(&self.graph, Cx::of(n, n), &params, &weight).unwrap_or_else(|e| panic!("{e}"));
        let names = self.graph.results().map(|(name, _)| name.to_owned());
        let results: States = names.zip(out).collect();
        for (name, state) in states {
            state.clone_from(&results[name]);
        }
        results
    }
}
