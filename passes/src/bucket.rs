//! Buckets: the step sizes that a model is compiled for, each with kernels of its own.
use std::fmt;

use atomc_ir::Diagnostic;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bucket {
    /// Up to `tokens` tokens, each the next one of its own sequence.
    Decode { tokens: usize },
    /// Up to `sequences` sequences with up to `each` tokens: the sequence's next token and the
    /// guesses of a draft. All of them want logits.
    Verify { sequences: usize, each: usize },
    /// Up to `tokens` tokens in runs of any length. Up to `rows` of them want logits.
    Any { tokens: usize, rows: usize },
    /// A bucket of the same size with logits as its only results: no rows are made that they do not
    /// need.
    Whole { tokens: usize, rows: usize },
}

impl Bucket {
    /// `T` at most.
    pub fn tokens(self) -> usize {
        match self {
            Bucket::Decode { tokens } | Bucket::Any { tokens, .. } | Bucket::Whole { tokens, .. } => tokens,
            Bucket::Verify { sequences, each } => sequences * each,
        }
    }

    /// Whether the step has few tokens, each of its own sequence.
    pub fn is_decode(self) -> bool {
        matches!(self, Bucket::Decode { .. })
    }

    /// Whether the step has few tokens.
    pub fn is_few(self) -> bool {
        self.each().is_some()
    }

    /// Sequences of a full step; one, where tokens are in runs of any length.
    pub fn sequences(self) -> usize {
        match self {
            Bucket::Decode { tokens } => tokens,
            Bucket::Verify { sequences, .. } => sequences,
            Bucket::Any { .. } | Bucket::Whole { .. } => 1,
        }
    }

    /// Most tokens of a sequence, where they are few.
    pub fn each(self) -> Option<usize> {
        match self {
            Bucket::Verify { each, .. } => Some(each),
            Bucket::Decode { .. } => Some(1),
            Bucket::Any { .. } | Bucket::Whole { .. } => None,
        }
    }

    /// `R` at most.
    pub fn rows(self) -> usize {
        match self {
            Bucket::Decode { .. } | Bucket::Verify { .. } => self.tokens(),
            Bucket::Any { rows, .. } | Bucket::Whole { rows, .. } => rows,
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bucket::Decode { tokens } => write!(f, "decode {tokens}"),
            Bucket::Verify { sequences, each } => write!(f, "verify {sequences}x{each}"),
            Bucket::Any { tokens, rows } => write!(f, "any {tokens}x{rows}"),
            Bucket::Whole { tokens, rows } => write!(f, "whole {tokens}x{rows}"),
        }
    }
}

/// Which buckets to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketOptions {
    /// Tokens of the decode buckets, ascending.
    pub decode: Vec<usize>,
    /// Tokens of a sequence in the buckets that verify a draft's guesses: one of these buckets for
    /// each decode bucket, with as many sequences. 1 for none.
    pub each: usize,
    /// Tokens and rows of the buckets for all other steps.
    pub tokens: usize,
    pub rows: usize,
}

impl Default for BucketOptions {
    fn default() -> BucketOptions {
        BucketOptions { decode: vec![1, 2, 4, 8], each: 1, tokens: 512, rows: 64 }
    }
}

/// The buckets, smallest first: a step takes the first one that it fits.
pub fn buckets(options: &BucketOptions) -> Result<Vec<Bucket>, Diagnostic> {
    let &BucketOptions { ref decode, each, tokens, rows } = options;
    let bad = |message: String| Err(Diagnostic::new("passes::buckets", message));
    if decode.first() == Some(&0) || !decode.is_sorted_by(|a, b| a < b) {
        return bad(format!("decode buckets {decode:?} must ascend and begin above zero"));
    }
    if each == 0 {
        return bad("no tokens of a sequence are verified: there must be at least one".into());
    }
    if rows == 0 || rows > tokens {
        return bad(format!("{rows} rows of {tokens} tokens: there must be at least one, and no more than tokens"));
    }
    let verify = decode.iter().filter(|_| each > 1).map(|&sequences| Bucket::Verify { sequences, each });
    let decode = decode.iter().map(|&tokens| Bucket::Decode { tokens });
    Ok(decode.chain(verify).chain([Bucket::Any { tokens, rows }, Bucket::Whole { tokens, rows }]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults() {
        let all: Vec<String> = buckets(&BucketOptions::default()).unwrap().iter().map(Bucket::to_string).collect();
        assert_eq!(all, ["decode 1", "decode 2", "decode 4", "decode 8", "any 512x64", "whole 512x64"]);
    }

    #[test]
    fn steps_that_verify() {
        let options = BucketOptions { decode: vec![1, 4], each: 3, ..BucketOptions::default() };
        let all = buckets(&options).unwrap();
        let names: Vec<String> = all.iter().map(Bucket::to_string).collect();
        assert_eq!(names, ["decode 1", "decode 4", "verify 1x3", "verify 4x3", "any 512x64", "whole 512x64"]);
        assert_eq!((all[3].tokens(), all[3].rows(), all[3].each()), (12, 12, Some(3)));
    }

    #[test]
    fn what_is_refused() {
        let check = |decode: &[usize], tokens, rows| {
            buckets(&BucketOptions { decode: decode.to_vec(), each: 1, tokens, rows }).unwrap_err().to_string()
        };
        assert_eq!(check(&[0, 1], 8, 8), "decode buckets [0, 1] must ascend and begin above zero");
        assert_eq!(check(&[2, 2], 8, 8), "decode buckets [2, 2] must ascend and begin above zero");
        assert_eq!(check(&[], 8, 9), "9 rows of 8 tokens: there must be at least one, and no more than tokens");
        assert_eq!(check(&[], 0, 0), "0 rows of 0 tokens: there must be at least one, and no more than tokens");
    }
}
