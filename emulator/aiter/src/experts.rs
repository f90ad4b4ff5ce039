//! Experts in one launch (`fmoe`), and the choice of experts (`topksoftmax`).
use super::numbers::{Element, Random, shuffle};
use super::{Buffer, Case, Slots, THREADS};
use atomc_emulator::Grid;

/// Experts with fp8 operands, a scale for 128 by 128 of weights and for 128 of a token.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub tokens: usize,
    /// Numbers of a token.
    pub dim: usize,
    /// Rows of the gate, and as many of the second product of it.
    pub inner: usize,
    pub experts: usize,
    /// Experts of a token.
    pub chosen: usize,
    /// Rows and inner columns of a work-group.
    pub tile: (usize, usize),
    /// Work-groups that take tiles in turn; none where each has one.
    pub persistent: usize,
}

/// Tokens in the order of their experts, padded to whole tiles.
struct Sorted {
    ids: Vec<u32>,
    weights: Vec<f32>,
    experts: Vec<u32>,
}

impl Experts {
    fn sort(self, choices: &[(usize, f32)]) -> Sorted {
        let Experts { tokens, experts, chosen, tile, .. } = self;
        let mut sorted = Sorted { ids: Vec::new(), weights: Vec::new(), experts: Vec::new() };
        for expert in 0..experts {
            for (at, (_, weight)) in choices.iter().enumerate().filter(|(_, c)| c.0 == expert) {
                sorted.ids.push((at / chosen) as u32 | ((at % chosen) as u32) << 24);
                sorted.weights.push(*weight);
            }
            sorted.ids.resize(sorted.ids.len().next_multiple_of(tile.0), (tokens | chosen << 24) as u32);
            sorted.weights.resize(sorted.ids.len(), 0.0);
            sorted.experts.resize(sorted.ids.len() / tile.0, expert as u32);
        }
        sorted
    }

    /// Experts and weights of every token.
    fn choose(self, random: &mut Random) -> Vec<(usize, f32)> {
        let mut choices = Vec::new();
        for _ in 0..self.tokens {
            let order = random.order(self.experts);
            choices.extend(order[..self.chosen].iter().map(|e| (*e as usize, random.between(0.2, 0.8))));
        }
        choices
    }

    pub fn case(self, chip: &str, name: &str, seed: u64) -> Case {
        let Experts { tokens, dim, inner, experts, chosen, tile, persistent } = self;
        let element = Element::Fp8(chip == "gfx942");
        let mut random = Random::new(seed);
        let choices = self.choose(&mut random);
        let sorted = self.sort(&choices);
        let x = element.random(tokens * dim, &mut random);
        let gates = element.random(experts * 2 * inner * dim, &mut random);
        let downs = element.random(experts * dim * inner, &mut random);
        let x_scales = random.floats(dim / 128 * tokens, 0.004, 0.008);
        let gate_scales = random.floats(experts * (2 * inner / 128) * (dim / 128), 0.002, 0.004);
        let down_scales = random.floats(experts * (dim / 128) * (inner / 128), 0.004, 0.008);
        let buffers = vec![
            Buffer::zeros(tokens * dim * 2),
            Buffer::bytes(&x),
            Buffer::bytes(&shuffle(&gates, dim)),
            Buffer::words(&[sorted.ids.len() as u32, tokens as u32]),
            Buffer::bytes(&shuffle(&downs, inner)),
            Buffer::floats(&x_scales),
            Buffer::floats(&gate_scales),
            Buffer::floats(&down_scales),
            Buffer::zeros(experts * inner * 4),
            Buffer::words(&sorted.ids),
            Buffer::floats(&sorted.weights),
            Buffer::words(&sorted.experts),
        ];
        let parts = inner.div_ceil(tile.1);
        let total = persistent / parts * parts;
        let mut slots = Slots::default();
        slots.buffers(&buffers);
        let gate_row = [dim, dim, inner, dim * 2, 2 * inner * dim, inner * dim];
        let scale_row =
            [2 * inner / 128 * (dim / 128) * 4, dim / 128 * (inner / 128) * 4, inner * 4, chosen, total, parts];
        let words = [&[dim, inner, tokens, experts][..], &gate_row, &scale_row].concat();
        slots.words(&words.iter().map(|v| *v as u32).collect::<Vec<u32>>());
        let groups = if persistent > 0 { [persistent, 1] } else { [parts, sorted.experts.len()] };
        let weights = Weights { size: self, element, x, gates, downs, x_scales, gate_scales, down_scales };
        Case {
            path: format!("{chip}/fmoe/silu/{name}.co"),
            sizes: format!("{tokens} tokens of {dim}, {experts} experts of {inner}, {chosen} a token"),
            grid: Grid { groups: [groups[0] as u32, groups[1] as u32, 1], threads: [THREADS, 1, 1], dynamic_lds: 0 },
            arguments: slots,
            buffers,
            compare: Box::new(move |b| (b[0].as_bf16().collect(), weights.run(&choices))),
            // What the first product gives becomes fp8, with its own scale a token and 128.
            allowed: 3e-2,
        }
    }
}

/// The first of two launches (`fmoe_2stages`): gate and up of every token's experts, with a scale a
/// token and one a row.
#[derive(Clone, Copy, Debug)]
pub struct FirstStage {
    pub size: Experts,
    pub element: Element,
    /// What the gate gives is multiplied by the expert's weight.
    pub weighted: bool,
}

impl FirstStage {
    pub fn case(self, chip: &str, name: &str, seed: u64) -> Case {
        let Experts { tokens, dim, inner, experts, chosen, tile, .. } = self.size;
        let FirstStage { element, weighted, .. } = self;
        let mut random = Random::new(seed);
        let choices = self.size.choose(&mut random);
        let sorted = self.size.sort(&choices);
        let x = element.random(tokens * dim, &mut random);
        let gates = element.random(experts * 2 * inner * dim, &mut random);
        let x_scales = random.floats(tokens, 0.004, 0.008);
        let gate_scales = random.floats(experts * 2 * inner, 0.002, 0.004);
        let buffers = vec![
            Buffer::zeros(tokens * chosen * inner * 2),
            Buffer::bytes(&x),
            Buffer::bytes(&shuffle(&gates, dim)),
            Buffer::words(&[sorted.ids.len() as u32, tokens as u32]),
            Buffer::floats(&x_scales),
            Buffer::floats(&gate_scales),
            Buffer::words(&sorted.ids),
            Buffer::words(&sorted.experts),
            Buffer::floats(&sorted.weights),
        ];
        let mut slots = Slots::default();
        slots.buffers(&buffers[..6]).null().buffers(&buffers[6..8]);
        let strides = [dim, dim, chosen * inner * 2, 2 * inner * dim, 2 * inner * 4, inner * 4, chosen, 0, 0];
        let words = [&[dim, inner, tokens, experts][..], &strides].concat();
        slots.words(&words.iter().map(|v| *v as u32).collect::<Vec<u32>>()).buffers(&buffers[8..]);
        let compare = move |b: &[Buffer]| {
            let mut wanted = Vec::new();
            for (at, (expert, weight)) in choices.iter().enumerate() {
                let token = at / chosen;
                let x = element.values(&x[token * dim..][..dim], dim);
                let row = |row: usize| {
                    let row = expert * 2 * inner + row;
                    let sum = dot(&x, |k| element.value(&gates, row * dim + k));
                    sum * f64::from(x_scales[token]) * f64::from(gate_scales[row])
                };
                let factor = if weighted { f64::from(*weight) } else { 1.0 };
                wanted.extend((0..inner).map(|n| silu(factor * row(n)) * factor * row(inner + n)));
            }
            (b[0].as_bf16().collect(), wanted)
        };
        Case {
            path: format!("{chip}/fmoe_2stages/{name}.co"),
            sizes: format!("{tokens} tokens of {dim}, {experts} experts of {inner}, {chosen} a token"),
            grid: Grid {
                groups: [inner.div_ceil(tile.1) as u32, sorted.experts.len() as u32, 1],
                threads: [THREADS, 1, 1],
                dynamic_lds: 0,
            },
            arguments: slots,
            buffers,
            compare: Box::new(compare),
            allowed: 1e-2,
        }
    }
}

struct Weights {
    size: Experts,
    element: Element,
    x: Vec<u8>,
    gates: Vec<u8>,
    downs: Vec<u8>,
    x_scales: Vec<f32>,
    gate_scales: Vec<f32>,
    down_scales: Vec<f32>,
}

impl Weights {
    /// In float64.
    fn run(&self, choices: &[(usize, f32)]) -> Vec<f64> {
        let Experts { tokens, dim, inner, chosen, .. } = self.size;
        let mut out = vec![0.0; tokens * dim];
        for (at, (expert, weight)) in choices.iter().enumerate() {
            let token = at / chosen;
            let x: Vec<f64> = (0..dim)
                .map(|k| {
                    self.element.value(&self.x, token * dim + k) * f64::from(self.x_scales[k / 128 * tokens + token])
                })
                .collect();
            let row = |row: usize| dot(&x, |k| self.gate(*expert, row, k));
            let middle: Vec<f64> = (0..inner).map(|n| silu(row(n)) * row(inner + n)).collect();
            let out = &mut out[token * dim..][..dim];
            out.iter_mut().enumerate().for_each(|(n, out)| {
                *out += f64::from(*weight) * dot(&middle, |k| self.down(*expert, n, k));
            });
        }
        out
    }

    fn gate(&self, expert: usize, row: usize, k: usize) -> f64 {
        let Experts { dim, inner, .. } = self.size;
        let scale = self.gate_scales[(expert * (2 * inner / 128) + row / 128) * (dim / 128) + k / 128];
        self.element.value(&self.gates, (expert * 2 * inner + row) * dim + k) * f64::from(scale)
    }

    fn down(&self, expert: usize, row: usize, k: usize) -> f64 {
        let Experts { dim, inner, .. } = self.size;
        let scale = self.down_scales[(expert * (dim / 128) + row / 128) * (inner / 128) + k / 128];
        self.element.value(&self.downs, (expert * dim + row) * inner + k) * f64::from(scale)
    }
}

fn dot(x: &[f64], w: impl Fn(usize) -> f64) -> f64 {
    x.iter().enumerate().map(|(k, x)| x * w(k)).sum()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Softmax over experts, and the largest of them.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub tokens: usize,
    /// Rows of a work-group.
    pub rows: usize,
    pub experts: usize,
    pub chosen: usize,
    /// The logits are bf16, else float32.
    pub bf16: bool,
    /// Weights of a token sum up to one.
    pub renormalise: bool,
}

impl Choice {
    pub fn case(self, chip: &str, name: &str, seed: u64) -> Case {
        let Choice { tokens, rows, experts, chosen, bf16, renormalise } = self;
        let mut random = Random::new(seed);
        // All different, so that there is one order: steps that bf16 has, too.
        let logits: Vec<f32> = (0..tokens)
            .flat_map(|_| random.order(experts).into_iter().map(|n| (n as f32 - experts as f32 / 2.0) / 64.0))
            .collect();
        let buffers = vec![
            Buffer::zeros(tokens * chosen * 4),
            Buffer::zeros(tokens * chosen * 4),
            if bf16 {
                Buffer::halves(&logits.iter().map(|v| atomc_emulator::num::f32_to_bf16(*v)).collect::<Vec<u16>>())
            } else {
                Buffer::floats(&logits)
            },
        ];
        let mut slots = Slots::default();
        let words = [tokens, experts, chosen, usize::from(renormalise), chosen * 4];
        slots.buffers(&buffers).words(&words.map(|v| v as u32));
        let compare = move |b: &[Buffer]| {
            let mut got = vec![0.0; tokens * experts];
            for (at, (index, weight)) in b[0].as_words().zip(b[1].as_floats()).enumerate() {
                // An index beyond the experts is as wrong as can be.
                match got.get_mut(at / chosen * experts + index as usize).filter(|_| (index as usize) < experts) {
                    Some(cell) => *cell += weight,
                    None => got[at / chosen * experts] = f64::NAN,
                }
            }
            (got, logits.chunks_exact(experts).flat_map(|row| self.choose(row)).collect())
        };
        Case {
            path: format!("{chip}/topksoftmax/{name}.co"),
            sizes: format!("{tokens} tokens, {chosen} of {experts}"),
            grid: Grid::linear(tokens.div_ceil(rows) as u32, THREADS),
            arguments: slots,
            buffers,
            compare: Box::new(compare),
            allowed: 1e-5,
        }
    }

    /// Weights of all experts of a token, zero where one is not chosen.
    fn choose(&self, logits: &[f32]) -> Vec<f64> {
        let powers: Vec<f64> = logits.iter().map(|v| f64::from(*v).exp()).collect();
        let mut sorted = powers.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = sorted[self.chosen - 1];
        let sum: f64 = if self.renormalise { sorted[..self.chosen].iter().sum() } else { powers.iter().sum() };
        powers.iter().map(|p| if *p >= least { p / sum } else { 0.0 }).collect()
    }
}
