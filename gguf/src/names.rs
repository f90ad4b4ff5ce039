//! The names that tensors have on Hugging Face, and how tensors of these names are made of those of
//! a file: llama.cpp's converter changes the order of rows, stacks experts, and adds to norms.
mod delta;

pub use delta::Grouped;

use std::ops::Range;

use crate::config::{Architecture, Keys};
use crate::error::GgufError;
use crate::gguf::{Gguf, Stored};
use crate::types::Type;

/// Names in a layer of a file, and in a layer of Hugging Face. Those with an end are whole names.
type Names = &'static [(&'static str, &'static str)];

/// What names an architecture alone has.
#[derive(Clone, Copy)]
pub(crate) struct Own {
    /// Names that go before those of all.
    layer: Names,
    /// Where experts are, if each has tensors of its own.
    experts: Experts,
    /// The module of an expert that all tokens take.
    shared: &'static str,
}

#[derive(Clone, Copy)]
enum Experts {
    /// A tensor each for gate, up and down, below a module with the number of the expert.
    Each { module: &'static str, names: [&'static str; 3] },
    /// Tensors of all: gate and up alternate, and matrices are transposed.
    Together { module: &'static str },
}

const EACH: Experts = Experts::Each { module: "mlp.experts", names: ["gate_proj", "up_proj", "down_proj"] };

pub(crate) const PLAIN: Own = Own { layer: &[], experts: EACH, shared: "mlp.shared_experts" };

/// Only Mixtral has experts.
pub(crate) const LLAMA: Own = Own {
    layer: &[("ffn_gate_inp", "block_sparse_moe.gate")],
    experts: Experts::Each { module: "block_sparse_moe.experts", names: ["w1", "w3", "w2"] },
    ..PLAIN
};

pub(crate) const QWEN2_MOE: Own =
    Own { layer: &[("ffn_gate_inp_shexp", "mlp.shared_expert_gate")], shared: "mlp.shared_expert", ..PLAIN };

pub(crate) const GEMMA3: Own = Own {
    layer: &[("ffn_norm", "pre_feedforward_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")],
    ..PLAIN
};

pub(crate) const GPT_OSS: Own = Own {
    layer: &[("ffn_gate_inp", "mlp.router"), ("attn_sinks.weight", "self_attn.sinks")],
    experts: Experts::Together { module: "mlp.experts" },
    ..PLAIN
};

pub(crate) const DEEPSEEK2: Own = Own {
    layer: &[
        ("attn_q_a", "self_attn.q_a_proj"),
        ("attn_q_b", "self_attn.q_b_proj"),
        ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
        ("attn_kv_b", "self_attn.kv_b_proj"),
        ("attn_q_a_norm", "self_attn.q_a_layernorm"),
        ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ],
    ..PLAIN
};

pub(crate) const GLM4_MOE: Own = Own {
    layer: &[
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("nextn.eh_proj", "eh_proj"),
        ("nextn.enorm", "enorm"),
        ("nextn.hnorm", "hnorm"),
        ("nextn.embed_tokens", "embed_tokens"),
        ("nextn.shared_head_head", "shared_head.head"),
        ("nextn.shared_head_norm", "shared_head.norm"),
    ],
    ..PLAIN
};

pub(crate) const PHI3: Own =
    Own { layer: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")], ..PLAIN };

pub(crate) const QWEN3_NEXT: Own = Own {
    layer: &[
        ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ("ssm_ba", "linear_attn.in_proj_ba"),
        ("ssm_in", "linear_attn.in_proj_qkvz"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_dt.bias", "linear_attn.dt_bias"),
        ("ssm_a", "linear_attn.A_log"),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
    ],
    shared: "mlp.shared_expert",
    ..PLAIN
};

/// Names outside of layers.
const MODEL: Names = &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Names in layers, of all architectures.
const LAYER: Names = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
];

/// Tensors that say how a rotary embedding turns, which are fields of the configuration.
const ROPE: [&str; 3] = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// A tensor of Hugging Face, and what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How it is made.
    pub made: Made,
}

/// How a tensor is made of tensors of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    /// Of one as it is, perhaps without a dimension of one.
    Whole { tensor: String },
    /// Of one of several that are stacked.
    Slice { tensor: String, index: usize },
    /// Of rows that are in pairs in each head: all first ones of the pairs, then all second ones.
    Halves { tensor: String, heads: usize },
    /// Of a weight of a norm to which something was added.
    Less { tensor: String, offset: f32 },
    /// Of a stack of matrices, each of which is transposed.
    Transposed { tensor: String },
    /// Of two stacks, whose rows alternate, and with more than one row for each, columns.
    Alternating { even: String, odd: String },
    /// Of two matrices, whose rows are in the order of heads.
    Grouped(Grouped),
    /// Of numbers whose logarithms are what is wanted, with the sign changed.
    Logarithm { tensor: String },
    /// Of a matrix for each head that makes keys, which is transposed, and one that makes values.
    Latent { keys: String, values: String, heads: usize },
}

/// All tensors of Hugging Face that a file has, sorted by their names.
pub fn origins(gguf: &Gguf) -> Result<Vec<Origin>, GgufError> {
    let architecture = Architecture::of(gguf)?;
    let keys = Keys { gguf, architecture: architecture.name };
    let rule = Rule { gguf, architecture, heads: [keys.heads()?, keys.kv_heads()?] };
    let mut origins = Vec::new();
    for tensor in gguf.names().filter(|name| !ROPE.contains(name)) {
        rule.add(tensor, &mut origins)?;
    }
    origins.sort_by(|one: &Origin, two| one.name.cmp(&two.name));
    match origins.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(GgufError::Same { name: pair[0].name.clone() }),
        None => Ok(origins),
    }
}

struct Rule<'a> {
    gguf: &'a Gguf,
    architecture: &'static Architecture,
    /// Heads of queries and of keys.
    heads: [u64; 2],
}

impl Rule<'_> {
    fn add(&self, tensor: &str, origins: &mut Vec<Origin>) -> Result<(), GgufError> {
        let stored = self.gguf.tensor(tensor)?;
        let layered = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let Some((layer, rest)) = layered else {
            let name = named(MODEL, tensor).ok_or_else(|| self.unnamed(tensor))?;
            origins.push(self.one(tensor, name, stored));
            return Ok(());
        };
        let is_number = !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            return Err(self.unnamed(tensor));
        }
        let prefix = format!("model.layers.{layer}");
        match rest.strip_prefix("ffn_").and_then(|rest| rest.split_once("_exps.")) {
            Some(part) => self.experts((tensor, stored), &prefix, part, origins),
            None => {
                origins.extend(self.of_layer((tensor, stored), &prefix, rest)?);
                Ok(())
            }
        }
    }

    /// The tensor that is made of one of a layer, except of experts. There is none where it is made
    /// with another one.
    fn of_layer(
        &self,
        (tensor, stored): (&str, Stored),
        prefix: &str,
        rest: &str,
    ) -> Result<Option<Origin>, GgufError> {
        let has = |part: &str, other: &str| self.gguf.has(&tensor.replace(part, other));
        match rest {
            "attn_v_b.weight" if has("_v_b", "_k_b") => Ok(None),
            "attn_k_b.weight" => {
                let (values, name) = (tensor.replace("_k_b", "_v_b"), format!("{prefix}.self_attn.kv_b_proj.weight"));
                self.latent((tensor, stored), values, name).map(Some)
            }
            "attn_gate.weight" if has("_gate", "_qkv") => Ok(None),
            "attn_qkv.weight" if has("_qkv", "_gate") => {
                let keys = Keys { gguf: self.gguf, architecture: self.architecture.name };
                delta::grouped(&keys, tensor, format!("{prefix}.linear_attn.in_proj_qkvz.weight")).map(Some)
            }
            _ => {
                let own = named(self.architecture.names.layer, rest).or_else(|| named(LAYER, rest));
                let name = own.or_else(|| self.shared(rest)).ok_or_else(|| self.unnamed(tensor))?;
                let name = format!("{prefix}.{name}");
                match self.heads_of(rest) {
                    Some(heads) => halves((tensor, stored), heads, name).map(Some),
                    None => Ok(Some(self.one(tensor, name, stored))),
                }
            }
        }
    }

    /// The name of a part of the expert that all tokens take.
    fn shared(&self, rest: &str) -> Option<String> {
        let (part, end) = rest.strip_prefix("ffn_")?.split_once("_shexp.")?;
        let is_known = ["gate", "up", "down"].contains(&part);
        is_known.then(|| format!("{}.{part}_proj.{end}", self.architecture.names.shared))
    }

    fn unnamed(&self, tensor: &str) -> GgufError {
        GgufError::Unnamed { name: tensor.to_owned(), architecture: self.architecture.name }
    }

    /// The heads whose rows are in pairs, if they are.
    fn heads_of(&self, rest: &str) -> Option<u64> {
        let which = match rest.split_once('.')?.0 {
            "attn_q" => 0,
            "attn_k" => 1,
            _ => return None,
        };
        self.architecture.in_pairs.then_some(self.heads[which])
    }

    /// A tensor that is made of one.
    fn one(&self, tensor: &str, name: String, stored: Stored) -> Origin {
        let (offset, tensor) = (self.architecture.norm_offset, tensor.to_owned());
        let mut shape = stored.shape().to_vec();
        // A row, which the converter makes a number for each column of.
        if name.ends_with(".shared_expert_gate.weight") && shape.len() == 1 {
            shape.insert(0, 1);
        }
        // A kernel for each channel.
        if name.ends_with(".conv1d.weight") && shape.len() == 2 {
            shape.insert(1, 1);
        }
        let is_norm = name.ends_with("norm.weight") && !name.ends_with(".linear_attn.norm.weight");
        let made = if offset != 0.0 && is_norm {
            Made::Less { tensor, offset }
        } else if name.ends_with(".A_log") {
            Made::Logarithm { tensor }
        } else {
            Made::Whole { tensor }
        };
        Origin { name, shape, made }
    }

    fn experts(
        &self,
        (tensor, stored): (&str, Stored),
        prefix: &str,
        (part, end): (&str, &str),
        origins: &mut Vec<Origin>,
    ) -> Result<(), GgufError> {
        let parts: &[usize] = match part {
            "gate" => &[0],
            "up" => &[1],
            "down" => &[2],
            "gate_up" => &[0, 1],
            _ => return Err(self.unnamed(tensor)),
        };
        match self.architecture.names.experts {
            Experts::Each { module, names } => {
                let &[count, rows, columns] = stored.shape() else {
                    return Err(shape(tensor, stored, "three dimensions"));
                };
                if !rows.is_multiple_of(parts.len()) {
                    return Err(shape(tensor, stored, "as many rows of gates as of others"));
                }
                let slices = (0..count * parts.len()).map(|index| Origin {
                    name: format!(
                        "{prefix}.{module}.{}.{}.{end}",
                        index / parts.len(),
                        names[parts[index % parts.len()]]
                    ),
                    shape: vec![rows / parts.len(), columns],
                    made: Made::Slice { tensor: tensor.to_owned(), index },
                });
                origins.extend(slices);
            }
            Experts::Together { .. } if parts.len() > 1 => return Err(self.unnamed(tensor)),
            // It is made with the tensor of gates.
            Experts::Together { .. } if part == "up" && self.gguf.has(&tensor.replace("_up_", "_gate_")) => {}
            Experts::Together { module } => {
                origins.push(self.together((tensor, stored), &format!("{prefix}.{module}"), (part, end))?);
            }
        }
        Ok(())
    }

    /// A tensor of all experts, as gpt-oss has them.
    fn together(
        &self,
        (tensor, stored): (&str, Stored),
        module: &str,
        (part, end): (&str, &str),
    ) -> Result<Origin, GgufError> {
        let is_bias = end == "bias";
        let end = if is_bias { "_bias" } else { "" };
        let sizes = stored.shape();
        if sizes.len() != if is_bias { 2 } else { 3 } {
            return Err(shape(tensor, stored, if is_bias { "two dimensions" } else { "three dimensions" }));
        }
        let tensor = tensor.to_owned();
        if part == "down" {
            let name = format!("{module}.down_proj{end}");
            return Ok(if is_bias {
                Origin { name, shape: sizes.to_vec(), made: Made::Whole { tensor } }
            } else {
                Origin { name, shape: vec![sizes[0], sizes[2], sizes[1]], made: Made::Transposed { tensor } }
            });
        }
        let odd = tensor.replace("_gate_", "_up_");
        let other = self.gguf.tensor(&odd)?;
        if other.shape() != sizes {
            return Err(shape(&odd, other, &format!("{sizes:?}")));
        }
        let both = if is_bias { vec![sizes[0], 2 * sizes[1]] } else { vec![sizes[0], sizes[2], 2 * sizes[1]] };
        let name = format!("{module}.gate_up_proj{end}");
        Ok(Origin { name, shape: both, made: Made::Alternating { even: tensor, odd } })
    }

    fn latent(&self, (keys, stored): (&str, Stored), values: String, name: String) -> Result<Origin, GgufError> {
        let other = self.gguf.tensor(&values)?;
        let (&[heads, rank, nope], &[also, v, width]) = (stored.shape(), other.shape()) else {
            return Err(shape(keys, stored, "three dimensions"));
        };
        if (also, width) != (heads, rank) {
            return Err(shape(&values, other, &format!("[{heads}, {v}, {rank}]")));
        }
        let made = Made::Latent { keys: keys.to_owned(), values, heads };
        Ok(Origin { name, shape: vec![heads * (nope + v), rank], made })
    }
}

fn shape(tensor: &str, stored: Stored, want: &str) -> GgufError {
    GgufError::Shape { name: tensor.to_owned(), found: stored.shape().to_vec(), want: want.to_owned() }
}

/// The name that a list has for one, whole or without its end.
fn named(names: Names, full: &str) -> Option<String> {
    let find = |name: &str| names.iter().find(|(own, _)| *own == name).map(|(_, other)| *other);
    if let Some(other) = find(full) {
        return Some(other.to_owned());
    }
    let (name, end) = full.rsplit_once('.').filter(|(_, end)| ["weight", "bias"].contains(end))?;
    find(name).map(|other| format!("{other}.{end}"))
}

/// A tensor with rows in pairs.
fn halves((tensor, stored): (&str, Stored), heads: u64, name: String) -> Result<Origin, GgufError> {
    let rows = stored.shape().first().copied().unwrap_or(0);
    let pairs = usize::try_from(heads).ok().and_then(|heads| heads.checked_mul(2));
    if rows == 0 || pairs.is_none_or(|pairs| !rows.is_multiple_of(pairs)) {
        return Err(shape(tensor, stored, &format!("rows of {heads} heads")));
    }
    let made = Made::Halves { tensor: tensor.to_owned(), heads: heads as usize };
    Ok(Origin { name, shape: stored.shape().to_vec(), made })
}

impl Origin {
    /// Where a row lies in the file: the tensor, and the row among all of it. There is none if rows
    /// are made of columns, or numbers change.
    pub fn row(&self, row: usize) -> Option<(&str, usize)> {
        let rows: usize = self.shape[..self.shape.len().saturating_sub(1)].iter().product();
        match &self.made {
            Made::Whole { tensor } => Some((tensor, row)),
            Made::Slice { tensor, index } => Some((tensor, index * rows + row)),
            Made::Grouped(grouped) => Some(grouped.row(row)),
            Made::Halves { tensor, heads } if self.shape.len() > 1 => Some((tensor, paired(row, rows / heads))),
            _ => None,
        }
    }

    /// The type of its numbers, if they may stay codes: if rows are rows of the file, of one type,
    /// in whole blocks.
    pub fn kind(&self, gguf: &Gguf) -> Result<Option<Type>, GgufError> {
        let [_, .., columns] = self.shape[..] else { return Ok(None) };
        if self.row(0).is_none() || !self.name.ends_with(".weight") {
            return Ok(None);
        }
        let of = |tensor: &str| Ok::<_, GgufError>(gguf.tensor(tensor)?.kind());
        let kinds = match &self.made {
            Made::Grouped(grouped) => grouped.tensors().map(of).into_iter().collect::<Result<Vec<_>, _>>()?,
            _ => vec![of(self.row(0).map_or("", |(tensor, _)| tensor))?],
        };
        let kind = kinds[0];
        let fits = kinds.iter().all(|&other| other == kind) && columns.is_multiple_of(kind.block());
        Ok(Some(kind).filter(|kind| fits && kind.coded().is_some()))
    }

    /// The bytes of some rows of such a tensor in the file, one after the other.
    pub fn blocks(&self, gguf: &Gguf, rows: Range<usize>) -> Result<Vec<u8>, GgufError> {
        let columns = self.shape.last().copied().unwrap_or(0);
        let mut all = Vec::new();
        for row in rows {
            let (tensor, row) = self.row(row).expect("rows are rows of the file");
            let stored = gguf.tensor(tensor)?;
            let bytes = columns / stored.kind().block() * stored.kind().block_bytes();
            let first = all.len();
            all.resize(first + bytes, 0);
            stored.read(row * bytes, &mut all[first..])?;
        }
        Ok(all)
    }

    /// All its numbers, as floats: the reference for every other way to make it.
    pub fn floats(&self, gguf: &Gguf) -> Result<Vec<f32>, GgufError> {
        let read = |tensor: &str| gguf.tensor(tensor)?.floats();
        Ok(match &self.made {
            Made::Whole { tensor } => read(tensor)?,
            Made::Less { tensor, offset } => read(tensor)?.into_iter().map(|number| number - offset).collect(),
            Made::Logarithm { tensor } => read(tensor)?.into_iter().map(|number| (-number).ln()).collect(),
            Made::Grouped(grouped) => {
                let of = |row| {
                    let ((tensor, row), columns) = (grouped.row(row), self.shape[1]);
                    gguf.tensor(tensor)?.floats_of(row * columns..(row + 1) * columns)
                };
                (0..self.shape[0]).map(of).collect::<Result<Vec<_>, _>>()?.concat()
            }
            Made::Slice { tensor, index } => {
                let size: usize = self.shape.iter().product();
                gguf.tensor(tensor)?.floats_of(index * size..(index + 1) * size)?
            }
            Made::Halves { tensor, heads } => {
                let (all, rows) = (read(tensor)?, self.shape[0]);
                let of = |row| &all[paired(row, rows / heads) * (all.len() / rows)..][..all.len() / rows];
                (0..rows).flat_map(of).copied().collect()
            }
            Made::Transposed { tensor } => transposed(&read(tensor)?, self.shape[2], self.shape[1]),
            Made::Alternating { even, odd } => self.alternating(&read(even)?, &read(odd)?),
            Made::Latent { keys, values, heads } => {
                let (keys, values, rank) = (read(keys)?, read(values)?, self.shape[1]);
                let (of_keys, of_values) = (keys.len() / heads, values.len() / heads);
                let keys = transposed(&keys, rank, of_keys / rank);
                let head = |at| [&keys[at * of_keys..][..of_keys], &values[at * of_values..][..of_values]].concat();
                (0..*heads).flat_map(head).collect()
            }
        })
    }

    /// Elements of a part: they follow each other, and are made without the rest of the tensor. A
    /// part is a row, the matrix of an expert or of a head where columns become rows, or all of a
    /// tensor that has few.
    pub fn part(&self) -> usize {
        let columns = self.shape.last().copied().unwrap_or(1);
        match &self.made {
            Made::Transposed { .. } | Made::Alternating { .. } => self.shape[1..].iter().product(),
            Made::Latent { heads, .. } => self.shape[0] / heads * columns,
            _ if self.row(0).is_none() => self.shape.iter().product(),
            _ => columns,
        }
    }

    /// The numbers of a part, as floats.
    pub fn floats_of(&self, gguf: &Gguf, part: usize) -> Result<Vec<f32>, GgufError> {
        let size = self.part();
        let read =
            |tensor: &str, part: usize, size: usize| gguf.tensor(tensor)?.floats_of(part * size..(part + 1) * size);
        Ok(match &self.made {
            Made::Transposed { tensor } => transposed(&read(tensor, part, size)?, self.shape[2], self.shape[1]),
            Made::Alternating { even, odd } => {
                self.alternating(&read(even, part, size / 2)?, &read(odd, part, size / 2)?)
            }
            Made::Latent { keys, values, heads } => {
                let size = |tensor: &str| Ok::<_, GgufError>(gguf.tensor(tensor)?.elements() / heads);
                let (own, rank) = (read(keys, part, size(keys)?)?, self.shape[1]);
                [transposed(&own, rank, own.len() / rank), read(values, part, size(values)?)?].concat()
            }
            _ => match self.row(part) {
                Some((tensor, row)) => read(tensor, row, size)?,
                None => self.floats(gguf)?,
            },
        })
    }

    fn alternating(&self, even: &[f32], odd: &[f32]) -> Vec<f32> {
        let (columns, depth) = match self.shape[..] {
            [_, depth, columns] => (columns, depth),
            _ => (self.shape[1], 1),
        };
        let (even, odd) = (transposed(even, columns / 2, depth), transposed(odd, columns / 2, depth));
        even.into_iter().zip(odd).flat_map(|(even, odd)| [even, odd]).collect()
    }
}

/// Where a row lies among those in pairs, of heads of a size.
fn paired(row: usize, size: usize) -> usize {
    let (head, at) = (row / size, row % size);
    head * size + at % (size / 2) * 2 + at / (size / 2)
}

/// A stack of matrices of these rows and columns, each transposed.
fn transposed(all: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let matrix = |one: &[f32]| -> Vec<f32> {
        (0..columns).flat_map(|column| one.iter().skip(column).step_by(columns).copied()).collect()
    };
    all.chunks_exact(rows * columns).flat_map(matrix).collect()
}

#[cfg(test)]
mod tests;
