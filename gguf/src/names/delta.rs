//! The projection of Qwen3-Next's recurrent layers: rows of each head of keys together on Hugging
//! Face, and all queries, all keys, all values and all gates together in a file.
use super::{Made, Origin, shape};
use crate::config::Keys;
use crate::error::GgufError;

/// Where the rows of a projection lie in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Grouped {
    /// The tensor of queries, keys and values.
    pub qkv: String,
    /// The tensor of gates.
    pub gate: String,
    /// Heads of keys.
    pub heads: usize,
    /// Rows of a head of keys.
    pub keys: usize,
    /// Rows of values that belong to a head of keys.
    pub values: usize,
}

impl Grouped {
    /// The tensors that rows lie in.
    pub(super) fn tensors(&self) -> [&str; 2] {
        [&self.qkv, &self.gate]
    }

    /// The tensor that a row lies in, and which of its rows it is.
    pub(super) fn row(&self, row: usize) -> (&str, usize) {
        let Grouped { qkv, gate, heads, keys, values } = self;
        let (head, at) = (row / (2 * keys + 2 * values), row % (2 * keys + 2 * values));
        let all_keys = heads * keys;
        match at {
            at if at < *keys => (qkv, head * keys + at),
            at if at < 2 * keys => (qkv, all_keys + head * keys + at - keys),
            at if at < 2 * keys + values => (qkv, 2 * all_keys + head * values + at - 2 * keys),
            at => (gate, head * values + at - 2 * keys - values),
        }
    }
}

/// The projection of a layer, from the tensor of its queries, keys and values.
pub(super) fn grouped(keys: &Keys, qkv: &str, name: String) -> Result<Origin, GgufError> {
    let gate = qkv.replace("_qkv", "_gate");
    let (stored, other) = (keys.gguf.tensor(qkv)?, keys.gguf.tensor(&gate)?);
    let count = |key: &str| Ok::<_, GgufError>(usize::try_from(keys.needed(key)?).unwrap_or(usize::MAX));
    let (heads, size) = (count("ssm.group_count")?, count("ssm.state_size")?);
    let (&[rows, columns], &[gates, width]) = (stored.shape(), other.shape()) else {
        return Err(shape(qkv, stored, "two dimensions"));
    };
    let of_keys = heads.checked_mul(size).and_then(|keys| keys.checked_mul(2)).filter(|keys| *keys > 0);
    if of_keys.and_then(|keys| keys.checked_add(gates)) != Some(rows) || !gates.is_multiple_of(heads) {
        return Err(shape(qkv, stored, &format!("rows of queries and keys of {heads} heads, and {gates} of values")));
    }
    if width != columns {
        return Err(shape(&gate, other, &format!("[{gates}, {columns}]")));
    }
    let made = Grouped { qkv: qkv.to_owned(), gate, heads, keys: size, values: gates / heads };
    Ok(Origin { name, shape: vec![rows + gates, columns], made: Made::Grouped(made) })
}
